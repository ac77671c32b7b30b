"""Who reports other machines, what these are called, and what a table of readings gives."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from kernel_monitor import node_sources
from kernel_monitor.node_sources import Node, NodeTable, node_id, node_series, pseudonyms
from kernel_monitor.privacy import pseudonymous
from tests.unit.checks import threads


@pytest.fixture(autouse=True)
def fresh(heap_frozen: None, no_nodes: None) -> Iterator[None]:
    yield
    gc.collect()
    assert node_sources.live() == []


def table() -> tuple[NodeTable, list[float]]:
    now = [100.0]
    return NodeTable(stale_s=3.0, clock=lambda: now[0]), now


def test_a_source_is_known_for_as_long_as_it_is_used_and_not_in_a_forked_child() -> None:
    one, _ = table()
    other, _ = table()
    assert node_sources.live() == [one, other]
    child = os.fork()
    if child == 0:
        os._exit(7 if node_sources.live() == [] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    del one
    gc.collect()
    assert node_sources.live() == [other]


def test_a_machine_has_one_id_whoever_names_it_and_whenever() -> None:
    one, _ = table()
    other, _ = table()
    assert [one.add("abc", "rack-a", [1, 0, 1]), one.add("def", "rack-b", [0]), other.add("abc", "rack-a", [0, 1])] == [
        "node-1", "node-2", "node-1",
    ]  # fmt: skip
    assert one.nodes() == [Node("node-1", "rack-a", (0, 1)), Node("node-2", "rack-b", (0,))]
    assert node_id("abc", "10.0.0.7") == "node-1"
    assert pseudonyms() == {
        "abc": "node-1", "rack-a": "node-1", "10.0.0.7": "node-1", "def": "node-2", "rack-b": "node-2",
    }  # fmt: skip


def test_a_table_gives_the_newest_reading_and_the_rate_of_batches() -> None:
    one, now = table()
    node = one.add("a", "rack-a", [0, 3])
    assert [name for name, _ in node_series(node, [0, 3])] == [
        f"node/node-1/{part}"
        for part in ("cpu/0/busy", "cpu/3/busy", "network/received", "network/sent", "memory", "batches", "busy")
    ]
    one.update(node, {"cpu/0/busy": 10.0, "memory": 5.0})
    one.update("node-9", {"memory": 1.0})
    one.delivered(node)
    one.delivered(node, 4)
    now[0] += 0.5
    reading = {"node/node-1/cpu/0/busy": 10.0, "node/node-1/memory": 5.0}
    assert one.values() == {**reading, "node/node-1/batches": 10.0}
    now[0] += 2.0
    assert one.values() == {**reading, "node/node-1/batches": 0.0}  # held until the next
    now[0] += 1.0
    assert one.values() == {"node/node-1/batches": 0.0}  # too old
    one.update(node, {"memory": 6.0})
    one.gone(node, "killed")
    one.update(node, {"memory": 7.0})  # a late answer
    assert one.values() == {}
    assert one.nodes() == [Node("node-1", "rack-a", (0, 3), alive=False, reason="killed")]
    assert one.add("a", "rack-a", [0]) == node
    assert one.nodes() == [Node("node-1", "rack-a", (0,))]


def test_a_table_counts_every_batch_of_many_threads_once() -> None:
    one, now = table()
    node = one.add("a", "rack-a", [0])
    counted = 0.0

    def deliver() -> None:
        for _ in range(500):
            one.delivered(node)
            one.update(node, {"memory": 1.0})

    with threads(*[deliver] * 4) as delivering:
        while any(thread.is_alive() for thread in delivering):
            now[0] += 1.0
            counted += one.values()["node/node-1/batches"]
    now[0] += 1.0
    assert counted + one.values()["node/node-1/batches"] == 2000


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("Rack-A answers no more.", "node-1 answers no more."),
        ("rack-a.example.com:6379 is gone", "node-1:6379 is gone"),
        ("rack-ab and track-a stay, 'rack-a' goes", "rack-ab and track-a stay, 'node-1' goes"),
        ("10.0.0.5, 110.0.0.5, 10.0.0.50 and 10.0.0.5.", "node-2, 110.0.0.5, 10.0.0.50 and node-2."),
        ("rac\u212a-a and rack-a, ſpot-1", "node-1 and node-1, node"),
        ("ray://10.0.0.5/rack-a", "ray://node-2/node-1"),
    ],
)  # fmt: skip
def test_a_name_is_replaced_where_it_is_a_word(text: str, shared: str) -> None:
    names = {"rack-a": "node-1", "10.0.0.5": "node-2", "rack": "node-3", "spot-1": "node-4"}
    assert pseudonymous([{"message": text}], names) == [{"message": shared}]


def test_what_is_no_text_about_machines_stays() -> None:
    names = {"train": "node-1", "torchvision": "node-2", "is": "node-3", "2026": "node-4"}
    event = {"kind": "switch", "loader": "train", "target": "torchvision", "message": "train is gone", "time": 1.5}
    assert pseudonymous(event, names) == {**event, "message": "node-1 is gone"}
    state = {"name": "train set", "nodes": [{"id": "Train", "name": "train.example", "workers": 2}], "batch": 7}
    assert pseudonymous(state, names) == {**state, "nodes": [{"id": "node-1", "name": "node-1", "workers": 2}]}
    assert pseudonymous(event, {}) is event
