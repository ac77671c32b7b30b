"""Other machines in charts and reports: named in full or as far as there is room, gone ones with the reason."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest
from bokeh.models import Grid, LinearAxis

from kernel_monitor.node_sources import Node, NodeTable
from kernel_monitor.report.page import render, section
from kernel_monitor.report.privacy import clean
from kernel_monitor.report.sections import Subject
from kernel_monitor.runtime import Monitor
from kernel_monitor.runtime.node_tracker import NodeTracker
from kernel_monitor.store import Schema, Snapshot
from kernel_monitor.store.charts import document_shape, fill_document
from kernel_monitor.views import document, layout
from tests.browser.scenes import machine, run
from tests.unit.checks import contains, not_none
from tests.unit.pages import Page
from tests.unit.reports import nothing
from tests.unit.views.test_figures import every, tags

LONG = "ip-10-0-12-34.eu-central-1.compute.internal"


def schema(*nodes: Node, charts: tuple[str, ...] = ("nodes",)) -> Schema:
    return machine(cores=2, sockets=1, nodes=1, gpus=0, others=nodes, charts=charts)


def tiles(of: Schema) -> dict[str, Any]:
    return tags(of)["nodes-tiles"]


def words(of: Schema) -> list[str]:
    """The names beside the heatmap, from the lowest."""
    (axis,) = [axis for axis in every(layout(of), LinearAxis) if axis.major_label_standoff == 2]
    return [axis.major_label_overrides[place].text for place in sorted(axis.major_label_overrides, key=float)]


def numbered(roots: object) -> str:
    """Models of a document with ids from 0, which else go on from document to document."""
    ids: dict[str, str] = {}
    return re.sub(r'"p\d+"', lambda found: ids.setdefault(found[0], f'"{len(ids)}"'), json.dumps(roots))


def text(of: Schema) -> str:
    return json.dumps(document(of))


def test_the_first_machine_is_on_top_and_each_core_is_a_row() -> None:
    found = tiles(schema(Node("node-1", "rack-a", (0, 1)), Node("node-2", "rack-b", (0, 4))))
    assert found["rows"] == [
        f"node/{node}/cpu/{core}/busy" for node, core in (("node-2", 0), ("node-2", 4), ("node-1", 0), ("node-1", 1))
    ]
    assert found["labels"] == ["rack-b · core 0", "rack-b · core 4", "rack-a · core 0", "rack-a · core 1"]


@pytest.mark.parametrize(
    ("cores", "nodes", "shown"),
    [
        (16, 1, ["ip-10-0-12-34"]),
        (8, 2, ["ip-10-0-12-34"] * 2),
        (4, 2, ["ip-1…2-34"] * 2),
        (2, 2, ["ip-…34"] * 2),
        (2, 32, [str(k) for k in range(32, 0, -1)]),  # too low for any name
    ],
)
def test_a_name_is_cut_to_the_room_beside_its_rows(cores: int, nodes: int, shown: list[str]) -> None:
    machines = [Node(f"node-{k}", LONG, tuple(range(cores))) for k in range(1, nodes + 1)]
    assert words(schema(*machines)) == shown
    assert LONG in text(schema(*machines))


def test_one_that_is_gone_is_hatched_and_its_reason_told() -> None:
    of = schema(Node("node-1", "rack-a", (0, 1)), Node("node-2", "rack-b", (0,), alive=False, reason="taken away"))
    (hatching,) = [one for one in every(layout(of), Grid) if one.name == "hatched"]
    assert list(hatching.ticker.ticks) == [0.0, 0.0, 1.0]
    assert tiles(of)["labels"][0] == "rack-b · core 0 · gone"
    assert "rack-b is gone: taken away" in text(of)


def test_machines_whose_cores_are_not_known_have_lines_alone() -> None:
    of = schema(Node("node-1", "rack-a"), Node("node-2", "rack-b"))
    assert "nodes-tiles" not in text(of)
    contains(text(of), "the cores of 2 more are not shown", "node/node-2/network/sent")


@pytest.mark.parametrize("cores", [(0, 1, 2, 3), (0,), tuple(range(200))])
def test_a_document_of_the_shape_is_filled_as_if_it_had_been_made_for_these_machines(cores: tuple[int, ...]) -> None:
    charts = ("nodes", "memory")
    one = schema(
        Node("node-1", 'a "\\', cores), Node("node-2", LONG, cores),
        Node("node-3", "x", cores, alive=False, reason="gone"), charts=charts,
    )  # fmt: skip
    other = schema(
        Node("node-7", "kmnode0idkmend", cores), Node("n", "b", cores),
        Node("y", "x", cores, alive=False, reason="?"), charts=charts,
    )  # fmt: skip
    assert document_shape(one) == document_shape(other)
    made = json.dumps(document(document_shape(one)), separators=(",", ":")).encode()
    for wanted in (one, other):
        plain = replace(wanted, version=0, interval=1.0, origin=0.0, capacity=1)
        again, got = document(plain), json.loads(fill_document(made, wanted))
        assert numbered(got["doc"]["roots"]) == numbered(again["doc"]["roots"])
        assert sorted(got["lines"]) == again["lines"]


def test_what_is_drawn_otherwise_has_another_shape() -> None:
    of = Node("node-1", "rack-a", (0, 1))
    shapes = [
        document_shape(schema(*nodes))
        for nodes in ([], [of], [of, of], [replace(of, cores=(0,))], [replace(of, alive=False)])
    ]
    assert all(one != other for k, one in enumerate(shapes) for other in shapes[:k])
    with_node, without = schema(of), schema()
    hidden = with_node.restricted(set(without.names))
    assert document_shape(hidden) == document_shape(without), "no chart shows it"


# -- reports ----------------------------------------------------------------------------------------------------------


def session() -> Snapshot:
    nodes = (
        Node("node-1", "rack-a", (0, 1)),
        Node("node-2", LONG, (0,), alive=False, reason=f"{LONG} answers no more"),
    )
    found = run(schema(*nodes, charts=()), seconds=30.0)
    message = f"the worker on rack-a ({LONG}) is restarted"
    return replace(found, events=[*found.events, {"id": 3, "kind": "mark", "time": 20.0, "label": message}])


def test_a_report_has_the_machines_and_not_their_names() -> None:
    page = render(session(), nothing("nothing"))
    assert "rack-a" not in page
    assert "compute.internal" not in page
    assert "node/node-1/cpu/1/busy" in page
    allowed = session()
    kept = render(replace(allowed, facts={**allowed.facts, "node_names": True}), nothing("nothing"))
    assert "rack-a" in kept
    assert LONG in kept


def test_the_table_of_machines_says_what_they_did() -> None:
    snapshot = clean(session())
    found = not_none(section(Subject(snapshot, nothing("nothing"), UTC), "nodes"))
    said = Page(found).text
    assert re.search(r"node-1 2 (79|80)(\.\d)? % \d+(\.\d)? % 6(\.\d+)? 15.* MB/s .* worked", " ".join(said.split()))
    assert "gone: node-2 answers no more" in said
    assert section(Subject(run(schema(charts=()), seconds=5.0), nothing("nothing"), UTC), "nodes") is None


def test_a_live_export_names_machines_only_where_that_is_allowed(
    no_nodes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_monitor.runtime.node_tracker.REFRESH_S", 0.0)
    sent: list[Snapshot] = []
    monkeypatch.setattr("kernel_monitor.runtime.export.render_report", sent.append)
    one = Monitor()
    table = NodeTable()
    node = table.add("0123abcd", "rack-a", [0], "10.0.0.5")
    tracker = one.live_session.nodes
    assert isinstance(tracker, NodeTracker)
    tracker.refresh()
    monkeypatch.setattr(one.exporter, "snapshot", lambda: replace(
        session(), schema=one.store.schema, events=[{"id": 1, "kind": "switch-failed", "message": "10.0.0.5, 0123abcd"}]
    ))  # fmt: skip
    one.exporter.render()
    one.configure(node_names=True)
    one.exporter.render()
    hidden, named = sent
    assert [found.name for found in hidden.schema.nodes] == [node]
    assert hidden.events[0]["message"] == "node-1, node-1"
    assert [found.name for found in named.schema.nodes] == ["rack-a"]
    assert named.events[0]["message"] == "10.0.0.5, 0123abcd"
