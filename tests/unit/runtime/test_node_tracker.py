"""Columns of other machines come and go, and no source harms the thread that asks it."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_monitor.node_sources import Node, NodeTable, node_series, register
from kernel_monitor.record.reader import open_session
from kernel_monitor.runtime import Monitor
from kernel_monitor.runtime.node_tracker import (
    FADE_S,
    KEPT_GONE,
    LEFT,
    MOST_CORES,
    REFRESH_S,
    UNFOLDED_CORES,
    NodeTracker,
)
from kernel_monitor.sample.node_sampler import NodeSampler
from kernel_monitor.store import Store
from tests.unit.checks import contains, not_none, wait_for
from tests.unit.sessions import hello


class Source:
    """Says what a test wants."""

    def __init__(self, *nodes: Node) -> None:
        self.known: Any = list(nodes)
        self.newest: Any = {}
        register(self)

    def nodes(self) -> list[Node]:
        if isinstance(self.known, Exception):
            raise self.known
        return list(self.known)

    def values(self) -> dict[str, float]:
        if isinstance(self.newest, Exception):
            raise self.newest
        return dict(self.newest)


class Following:
    """A tracker, its store and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.store = Store()
        self.store.set_host(hello("cpu/0/busy"))
        self.tracker = NodeTracker(self.store, self.said.append, clock=lambda: self.now)

    def refresh(self) -> tuple[Node, ...]:
        self.now += REFRESH_S
        self.tracker.refresh()
        return self.store.schema.nodes

    def row(self) -> dict[str, float]:
        """A row's values of nodes, as the store has them."""
        self.store.append(self.now, [1.0], self.tracker.values())
        rows = self.store.rows(self.store.last_seq - 1)
        found = dict(zip(rows.schema.names, rows.values[0].tolist(), strict=True))
        return {name: value for name, value in found.items() if name.startswith("node/") and value == value}


@pytest.fixture
def following(no_nodes: None) -> Following:
    return Following()


def test_without_a_source_nothing_changes(following: Following) -> None:
    version = following.store.schema.version
    assert following.refresh() == ()
    assert following.row() == {}
    assert following.store.schema.version == version


def test_columns_come_with_a_node_and_stay_with_the_reason_when_it_goes(following: Following) -> None:
    table = NodeTable(clock=lambda: following.now)
    node = table.add("a", "rack-a", [0, 2])
    (known,) = following.refresh()
    assert known == Node("node-1", "rack-a", (0, 2))
    series = tuple(name for name, _ in node_series("node-1", (0, 2)))
    assert following.store.schema.names == ("cpu/0/busy", *series)
    assert {one.name: one.unit for one in following.store.schema.series}["node/node-1/batches"] == "batches/s"
    table.update(node, {"cpu/2/busy": 50.0, "memory": 9.0, "cpu/7/busy": 1.0, "odd": 1.0})
    table.delivered(node, 3)
    following.now += 0.5
    reading = {"node/node-1/cpu/2/busy": 50.0, "node/node-1/busy": 50.0, "node/node-1/memory": 9.0}
    assert following.row() == {**reading, "node/node-1/batches": 2.0}
    table.gone(node, "its machine\nwas taken away")
    assert following.refresh() == (Node("node-1", "rack-a", (0, 2), alive=False, reason="its machine was taken away"),)
    assert following.row() == {"node/node-1/batches": 0.0}, "no rate of its last few rows"
    following.now += FADE_S
    assert following.row() == {}
    assert following.store.schema.names == ("cpu/0/busy", *series), "the past stays"
    assert following.store.rows().values[0][2] == 50.0
    table.add("a", "rack-a", [0, 2])
    assert following.refresh() == (Node("node-1", "rack-a", (0, 2)),)
    del table
    gc.collect()
    assert following.refresh() == (Node("node-1", "rack-a", (0, 2), alive=False, reason=LEFT),)


def test_nodes_that_come_together_change_the_columns_once(following: Following) -> None:
    table = NodeTable()
    version = following.store.schema.version
    table.add("a", "a", [0])
    following.refresh()
    for key in "bcdef":
        table.add(key, key, [0])
        following.tracker.refresh()  # with every frame
    assert following.store.schema.version == version + 1
    assert len(following.refresh()) == 6
    assert following.store.schema.version == version + 2


def test_of_machines_that_come_and_go_all_day_the_last_ones_keep_their_rows(following: Following) -> None:
    table = NodeTable()
    stays = table.add("stays", "stays", [0])
    for number in range(KEPT_GONE + 5):
        node = table.add(f"spot {number}", f"spot-{number}", [0, 1])
        following.refresh()
        table.gone(node, "taken away")
        following.refresh()
    found = following.refresh()
    assert [node.name for node in found] == ["stays", *(f"spot-{number}" for number in range(5, KEPT_GONE + 5))]
    assert found[0].id == stays
    version = following.store.schema.version
    following.refresh()
    assert following.store.schema.version == version


def test_many_cores_are_folded_and_pages_are_sent_the_means_until_they_ask(following: Following) -> None:
    table = NodeTable(clock=lambda: following.now)
    wide = table.add("a", "rack-a", range(UNFOLDED_CORES), gpus=("H100", "H100"))
    following.store.set_charts(["nodes"])
    assert not following.refresh()[0].folded
    narrow = table.add("b", "rack-b", [0])
    assert [node.folded for node in following.refresh()] == [True, True]
    table.update(wide, {"cpu/0/busy": 10.0, "cpu/1/busy": 30.0, "gpu/0/utilisation": 80.0, "gpu/1/utilisation": 90.0})
    found = following.row()
    assert (found["node/node-1/busy"], found["node/node-1/gpu"]) == (20.0, 85.0)

    def sent(node: str) -> set[str]:
        parts = ("cpu", "busy", "gpu")
        names = (name.split("/") for name in following.store.page_schema.names)
        return {"/".join(name[2:]) for name in names if name[:2] == ["node", node] and name[2] in parts}

    assert sent(wide) == {"busy", "gpu"}
    following.tracker.unfold((narrow,))
    assert (sent(wide), sent(narrow)) == ({"busy", "gpu"}, {"cpu/0/busy"})
    following.tracker.unfold(("all",))
    assert len(sent(wide)) == UNFOLDED_CORES + 2
    assert {"gpu/0/utilisation", "gpu/1/utilisation"} <= sent(wide)
    following.tracker.unfold(("none",))
    assert [node.folded for node in following.refresh()] == [True, True]
    following.tracker.unfold(None)
    assert sent(narrow) == {"busy"}
    assert len(following.store.rows().schema.names) > UNFOLDED_CORES  # the rows keep every core


def test_two_loaders_on_one_machine_make_one_node(following: Following) -> None:
    one, other = NodeTable(clock=lambda: following.now), NodeTable(clock=lambda: following.now)
    node = one.add("a", "rack-a", [0, 1])
    assert other.add("a", "rack-a", [0, 1]) == node
    following.refresh()
    for table in (one, other):
        table.update(node, {"cpu/0/busy": 30.0})
        table.delivered(node)
    following.now += 1.0
    following.tracker.values()
    for table in (one, other):
        table.delivered(node, 2)
    following.now += 1.0
    assert following.row() == {"node/node-1/cpu/0/busy": 30.0, "node/node-1/busy": 30.0, "node/node-1/batches": 4.0}
    one.gone(node, "its worker ended")
    assert following.refresh()[0].alive


@pytest.mark.parametrize(
    "values", [RuntimeError("no link to rack-a"), {"node/n/memory": "much"}, {"node/n/memory": 10**400}, [1, 2], None]
)
def test_a_source_whose_values_fail_is_shown_with_the_cause_and_harms_nothing(
    following: Following, values: object
) -> None:
    source, good = Source(Node("n", "rack-a", (0,))), NodeTable()
    kept = good.add("b", "rack-b", [0])
    good.update(kept, {"memory": 3.0})
    following.refresh()
    source.newest = values
    assert following.row()["node/node-1/memory"] == 3.0
    first = following.refresh()[0]
    assert (first.id, first.alive) == ("n", False)
    assert first.reason is not None
    assert first.reason.startswith("its load cannot be read: ")
    assert len(following.said) == 1
    following.now += FADE_S
    source.newest = {"node/n/memory": 4.0, "cpu/0/busy": 77.0, "node/n/network/sent": float("inf")}
    following.row()
    following.refresh()
    assert following.row() == {"node/n/memory": 4.0, "node/node-1/memory": 3.0, "node/node-1/batches": 0.0}
    assert following.store.rows().values[-1][0] == 1.0, "another's series stays"
    assert following.refresh()[0].alive


@pytest.mark.parametrize(
    "nodes", [OSError("gone"), [Node("a/b", "x")], [Node("", "x")], [Node("n", "x", (-1,))], [None], 7]
)
def test_a_source_whose_nodes_make_no_sense_is_named(following: Following, nodes: object) -> None:
    source = Source(Node("n", "rack-a", (0,)))
    assert following.refresh()[0].alive
    source.known = nodes
    (node,) = following.refresh()
    assert (node.id, node.cores, node.alive) == ("n", (0,), False)
    assert len(following.said) == 1
    assert "The load of other machines is not shown" in following.said[0]


def test_names_are_made_safe_and_more_cores_than_fit_are_left_out(following: Following) -> None:
    source = Source(Node("n", "rack\x1b[31m\n" + "a" * 200, tuple(range(MOST_CORES))), Node("m", "", (0, 1)))
    wide, narrow = following.refresh()
    assert "\x1b" not in wide.name
    assert len(wide.name) == 80
    assert (len(wide.cores), narrow.name, narrow.cores) == (MOST_CORES, "m", ())
    source.newest = {"node/m/batches": 2.0}
    assert following.row() == {"node/m/batches": 2.0}


def test_a_real_session_shows_and_records_them(no_nodes: None, tmp_path: Path) -> None:
    monitor, table, sampler = Monitor(), NodeTable(), NodeSampler()
    monitor.start(interval=0.05, record=tmp_path)
    try:
        node = table.add("0123abcd", "rack-a", sampler.cores)
        path = not_none(monitor.recording["path"])

        def rows() -> int:
            table.update(node, sampler.read())
            table.delivered(node)
            monitor.live_session.add_event("mark", 0.5, label="rack-a joined")
            found = monitor.store.rows()
            column = found.schema.columns.get(f"node/{node}/memory")
            return 0 if column is None else int(np.isfinite(found.values[:, column]).sum())

        wait_for(lambda: rows() >= 20, every=0.05)
        assert "nodes" in monitor.settings["charts"]
        assert "machine rack-a: " in monitor.status()
        page = monitor.export(tmp_path / "report.html").read_text("utf-8")
        contains(page, f"node/{node}/memory", "node-1 joined")
        assert "rack-a" not in page
    finally:
        monitor.stop()
    recorded = open_session(path)
    assert [(one.id, one.name, one.cores) for one in recorded.schema.nodes] == [(node, node, sampler.cores)]
    values = recorded.rows(series=[f"node/{node}/memory", f"node/{node}/batches", f"node/{node}/cpu/0/busy"]).values
    assert np.isfinite(values).sum(axis=0).min() >= 15
    assert {event["label"] for event in recorded.events()} == {"node-1 joined"}
    assert "rack-a" not in json.dumps([recorded.events(), recorded.facts, recorded.schema.to_json()])
