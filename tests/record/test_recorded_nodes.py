"""Other machines in a recording: each has rows of its own beside the host's, and old recordings have none."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_monitor.node_sources import Node, node_series
from kernel_monitor.record.format import SERIES as MOST_SERIES
from kernel_monitor.record.reader import open_session
from kernel_monitor.record.writer import Recorder
from kernel_monitor.recorded import RecordedSession
from kernel_monitor.report.page import render
from kernel_monitor.runtime.recorder import RecorderFeed
from kernel_monitor.store import Snapshot

from .recorded import SERIES, feed, recorder, session, sql, waves

NODES = (
    Node("node-1", "rack-a", (0, 1, 3)),
    Node("node-2", "rack-b", (0, 1), alive=False, reason="rack-b answers no more"),
)


class Kernel:
    """The kernel's half: what it sends goes to a recorder as the sampler passes it on."""

    def __init__(self, one: Recorder, hidden: dict[str, str] | None) -> None:
        self.now = 0.0
        self.feed = RecorderFeed(
            lambda message: one.command(json.loads(json.dumps(message))),
            lambda: True,
            clock=lambda: self.now,
            hidden=lambda: hidden,
        )

    def row(self, at: float, nodes: tuple[Node, ...], values: dict[str, float]) -> None:
        self.now = at
        self.feed.nodes(at, nodes, values)
        self.feed.row(at, {"loader/loader-1/images": at}, [], [])


def value(name: str, at: float) -> float:
    """What a series has at a session time; NaN where that reading is missing."""
    if name == "node/node-1/memory" and 2.0 < at < 3.0:
        return float("nan")
    return float(np.float32(at + 10 * len(name)))


def recorded(path: Path, rows: int = 200, hidden: dict[str, str] | None = None) -> Path:
    """A session in which node 2 works for the first half, node 1 from the middle of it, and gets a core at the end."""
    times, values = waves(rows)
    with recorder(path, rows=0) as (one, _):
        kernel = Kernel(one, hidden)
        kernel.feed.begin({})
        for at, row in zip(times.tolist(), values.astype("<f4"), strict=True):
            one.frame(at, 0, row.tobytes())
            here, series = working(rows, at)
            found = {name: value(name, at) for name in series}
            kernel.row(at, here, {name: entry for name, entry in found.items() if entry == entry})
        kernel.feed.goodbye("done", [], [])
    return path


def working(rows: int, at: float) -> tuple[tuple[Node, ...], list[str]]:
    """The nodes as they are known at a time, and the series that have values."""
    half, end = 0.05 * rows, 0.09 * rows
    first = Node("node-1", "rack-a", (0, 1, 3) if at > end else (0, 1))
    second = NODES[1] if at > half else Node("node-2", "rack-b", (0, 1))
    there = ([second] if at <= half else []) + ([first] if at > half / 2 else [])
    names = [name for node in there for name, _ in node_series(node.id, node.cores)]
    return ((first, second) if at > half / 2 else (second,)), names


def test_every_value_of_a_node_comes_back_by_its_name(path: Path) -> None:
    found = open_session(recorded(path))
    assert found.check() == []
    assert found.schema.nodes == NODES
    rows = found.rows()
    names = [name for node in NODES for name, _ in node_series(node.id, node.cores)]
    assert set(names) == {name for name in rows.schema.names if name.startswith("node/")}
    for name in names:
        got = rows.values[:, rows.schema.columns[name]]
        wanted = [value(name, at) if name in working(200, at)[1] else np.nan for at in rows.time.tolist()]
        np.testing.assert_array_equal(got, np.array(wanted, dtype=np.float32), name)
    np.testing.assert_array_equal(rows.values[:, rows.schema.columns["loader/loader-1/images"]], np.float32(rows.time))
    part = found.rows(start=8.0, end=12.0, series=["node/node-1/batches", "cpu/1/busy"])
    assert part.values.shape == (40, 2)
    assert np.isfinite(part.values).all()
    assert found.to_pandas(["node/node-2/cpu/1/busy"]).iloc[0, 0] == value("node/node-2/cpu/1/busy", 0.05)


def test_a_long_session_has_means_of_them(path: Path) -> None:
    short = open_session(recorded(path)).snapshot(max_rows=20)
    assert short.facts["recorded"]["bin_s"] is not None
    column = short.values[:, short.schema.columns["node/node-2/batches"]]
    assert np.isfinite(column[:9]).all()
    assert np.isnan(column[11:]).all()
    assert np.all(np.diff(column[:9]) > 0)
    last = short.values[-1, short.schema.columns["node/node-1/cpu/1/busy"]]
    assert last == pytest.approx(value("node/node-1/cpu/1/busy", float(short.time[-1])), abs=1.0)


def test_names_are_recorded_only_where_that_is_allowed(tmp_path: Path) -> None:
    names = {"rack-a": "node-1", "rack-b": "node-2"}
    path = recorded(tmp_path / "a.kmsession", hidden=names)
    for file in tmp_path.iterdir():
        assert b"rack-" not in file.read_bytes()
    nodes = open_session(path).schema.nodes
    assert [(node.name, node.reason) for node in nodes] == [("node-1", None), ("node-2", "node-2 answers no more")]
    copied = open_session(path).copy(tmp_path / "b.kmsession")
    assert open_session(copied).schema.nodes == nodes


def test_the_dashboard_and_the_report_of_a_recording_have_them(path: Path) -> None:
    opened = RecordedSession(open_session(recorded(path, hidden={})))
    assert "nodes" in opened.charts
    assert {"node/node-1/cpu/3/busy", "node/node-2/batches"} <= set(opened.page_rows.schema.names)
    assert "node-2 is gone: rack-b answers no more" in json.loads(opened.document)["doc"]["roots"].__repr__()
    page = render(opened.snapshot)
    assert "node/node-1/cpu/3/busy" in page
    again = Snapshot.from_bytes(opened.snapshot.to_bytes())
    assert again.schema == opened.snapshot.schema


def test_a_session_without_nodes_is_as_ever(path: Path) -> None:
    found = session(path)
    assert found.schema.nodes == ()
    assert list(found.schema.names) == [name for name, _ in SERIES]
    data = found.snapshot().schema.to_json()
    assert data.pop("nodes") == []
    assert type(found.schema).from_json(data).nodes == ()  # a snapshot of an older version


def test_more_machines_than_can_be_read_leave_the_host_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernel_monitor.record import session_facts

    path = recorded(tmp_path / "a.kmsession")
    monkeypatch.setattr(session_facts, "SERIES", len(SERIES) + 12)
    with pytest.warns(UserWarning, match="more than"):
        rows = open_session(path).rows()
    assert len(rows) == 200
    assert np.isfinite(rows.values[:, : len(SERIES)]).all()
    assert len(SERIES) + 12 < MOST_SERIES


@pytest.mark.parametrize(
    "nodes",
    [
        "x",
        [7],
        [{"id": "node-1"}],
        [{"id": "node-1", "name": 4}],
        [{"id": "node-1", "name": "a", "alive": "no", "reason": [], "cores": "all"}],
    ],
)
def test_odd_states_of_nodes_are_left_out_and_the_values_stay(tmp_path: Path, nodes: Any) -> None:
    path = recorded(tmp_path / "a.kmsession", rows=20)
    sql(path, "UPDATE meta SET value = ? WHERE key = 'nodes'", values=(json.dumps(nodes),))
    found = open_session(path)
    assert {node.id: node.cores for node in found.schema.nodes} == {"node-1": (0, 1, 3), "node-2": (0, 1)}
    assert all(node.alive for node in found.schema.nodes)
    assert np.isfinite(found.rows().values[:, found.schema.columns["node/node-2/batches"]]).any()


@pytest.mark.parametrize(
    "nodes",
    [
        7,
        {"node-1": {"cores": [0], "rows": [[1.0, "AAAA"]]}},
        {"node-1": {"cores": [0], "rows": [[1.0, "\x00"]]}},
        {"node-1": {"rows": []}},
        {"node-1": {"cores": [0], "rows": [[None, base64.b64encode(bytes(20)).decode()]]}},
    ],
)
def test_a_message_that_makes_no_sense_is_told_and_ends_nothing(path: Path, nodes: Any) -> None:
    with recorder(path, rows=0) as (one, told):
        one.command({"do": "node-values", "nodes": nodes})
        feed(one, *waves(5))
    assert any("node-values" in str(state.get("message")) for state in told)
    assert len(open_session(path).rows()) == 5
