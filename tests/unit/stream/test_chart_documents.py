"""Chart documents: made once for a shape, kept, and with every session's own loaders in them."""

from __future__ import annotations

import functools
import json
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from kernel_monitor import warm
from kernel_monitor.errors import MonitorError
from kernel_monitor.runtime import Monitor
from kernel_monitor.steps import watch_loader, watched_loader
from kernel_monitor.store import Schema, Store
from kernel_monitor.store.charts import Kind, document_shape, fill_document
from kernel_monitor.stream import chart_documents
from kernel_monitor.stream.chart_documents import Documents, key_of
from kernel_monitor.stream.render_process import run_module
from tests.unit.checks import not_none, threads, wait_for
from tests.unit.sessions import hello

HELLO = hello(
    "cpu/0/busy", "cpu/1/busy", cpus=[0, 1], gpu_reason="no driver",
    host={"cpu_model": "x", "memory_total": 7, "reasons": {}},
)  # fmt: skip
NAMES = ('train "\\', "kmloader0namekmend")
"""What must not be taken for anything else in JSON or among our own names."""


def schema(*loaders: str, first: int = 1, phased: bool = True, **changes: Any) -> Schema:
    store = Store()
    store.set_host({**HELLO, **changes})
    store.set_charts(("cpu", "gpu", "images", "wait", "phases"))
    store.set_loaders([{"id": f"loader-{first + k}", "name": name, "phased": phased} for k, name in enumerate(loaders)])
    return store.page_schema


@functools.cache
def rendered(module: str, stdin: bytes, **options: Any) -> bytes:
    """What a process makes of it, for every test that needs it: starting Bokeh takes seconds."""
    return run_module(module, stdin, **options)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a process would have been started for."""
    started: list[str] = []

    def run(module: str, stdin: bytes, **options: Any) -> bytes:
        started.append(module)
        return rendered(module, stdin, **options)

    monkeypatch.setattr(chart_documents, "run_module", run)
    return started


def test_sessions_of_one_machine_share_a_shape() -> None:
    one, other = schema("train"), schema("valid", first=7, origin=5.0, interval=1.0)
    assert one != other
    assert document_shape(one) == document_shape(other)
    assert len({key_of(document_shape(schema("a")), kind) for kind in get_args(Kind)}) == 3


@pytest.mark.parametrize(
    "other",
    [
        schema("a", "b"),
        schema("a", phased=False),
        schema("a", gpu_reason="another"),
        schema("a", cpus=[0, 1, 2]),
        replace(schema("a"), charts=("cpu",)),
        schema("a", host={"topology": {"sockets": [0, 1]}}),
    ],
)
def test_what_is_drawn_otherwise_has_another_shape(other: Schema) -> None:
    assert key_of(document_shape(other), "live") != key_of(document_shape(schema("a")), "live")


@pytest.mark.parametrize("kind", ["live", "report"])
def test_a_document_has_room_for_loaders_that_are_still_to_come(tmp_path: Path, count: list[str], kind: Kind) -> None:
    """Twenty loaders that come one after another need few documents, and no key shows the room that is left."""
    keys = [key_of(document_shape(schema(*["a"] * number, phased=False)), kind) for number in range(25)]
    assert len(set(keys)) == 10
    assert keys[17] == keys[24] != keys[16]
    names = [f"<{k}>" for k in range(5)]
    text = Documents(tmp_path).get(schema(*names, phased=False), kind).decode()
    assert all(f'"{name}"' in text for name in names)
    assert text.count('["display","none"]') == 1, "of six entries one is for nobody"
    assert "loader/loader-5/wait" in text
    assert len(count) == 1


def test_a_gpu_that_is_called_like_a_placeholder_keeps_its_name() -> None:
    assert fill_document(b'"kmloader7namekmend"', schema("train")) == b'"kmloader7namekmend"'
    text = json.dumps({"a": "kmloader", "b": "kmloader0id", "c": "\\"}).encode()
    assert fill_document(text, schema("train")) == text


@pytest.mark.parametrize("kind", ["live", "recorded", "report"])
def test_a_document_is_as_if_it_had_been_made_for_this_session(tmp_path: Path, count: list[str], kind: Kind) -> None:
    """Differential: filled in, the shape's document is the one of a schema that has the loaders themselves."""
    wanted = schema(*NAMES)
    plain = replace(wanted, version=0, interval=1.0, origin=0.0, capacity=1)
    request = json.dumps({"schema": plain.to_json(), "kind": kind}).encode()
    # A loader that is called like our own placeholder is taken for one where the document is made with its name.
    made = json.loads(rendered("kernel_monitor.views", request).replace(b"kmloader0displaykmend", b"flex"))
    got = json.loads(Documents(tmp_path).get(wanted, kind))
    assert (got["lines"], got["doc"]["roots"]) == (made["lines"], made["doc"]["roots"])
    text = json.dumps(got)
    assert all(json.dumps(name)[1:-1] in text for name in NAMES)
    assert "loader-1/images" in text
    assert "kmloader1" not in text


def test_it_is_made_once_and_kept(tmp_path: Path, count: list[str]) -> None:
    first = Documents(tmp_path)
    got: list[bytes] = []
    with threads(*[lambda: got.append(first.get(schema("train")))] * 4):
        pass
    assert len(count) == 1
    assert len({*got, first.get(schema("train"))}) == 1
    assert Documents(tmp_path).get(schema("train")) == got[0]
    assert len(count) == 1
    assert b"another" in Documents(tmp_path).get(schema("another", "b", first=3))
    assert len(count) == 2


def test_a_damaged_file_is_made_again(tmp_path: Path, count: list[str]) -> None:
    before = Documents(tmp_path).get(schema("train"))
    (file,) = tmp_path.glob("*.json")
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole.replace(b"Range1d", b"Rangeld", 1)):
        file.write_bytes(damaged)
        assert len(Documents(tmp_path).get(schema("train"))) == len(before)
        assert file.read_bytes() != damaged
    assert len(count) == 4


def test_charts_come_where_nothing_can_be_kept(tmp_path: Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("no folder")
    kept = Documents(nowhere)
    kept.warm()
    assert kept._warming is None
    assert b"images" in kept.get(schema("train"))


def test_where_there_is_no_home_nothing_is_written_beside_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: list[str]
) -> None:
    """Where no home is known, the cache folder is `~/.cache` to the letter."""
    monkeypatch.chdir(tmp_path)
    kept = Documents(Path("~/.cache/kernel_monitor"))
    kept.warm()
    assert b"images" in kept.get(schema("train"))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_told_and_the_next_one_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> bytes:
        raise MonitorError("Bokeh is not there")

    kept = Documents(tmp_path)
    monkeypatch.setattr(chart_documents, "run_module", fail)
    for _ in range(2):
        with pytest.raises(MonitorError, match="Bokeh is not there"):
            kept.get(schema("train"))
    monkeypatch.setattr(chart_documents, "run_module", run_module)
    assert b"images" in kept.get(schema("train"))


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart_documents, "KEPT", 2)
    kept = Documents(tmp_path)
    for number in range(4):
        kept.warm_up([(schema(*"abcd"[:number]), "live")], lambda wanted, kind: {"charts": wanted.charts, "kind": kind})
        time.sleep(0.01)
    assert len(list(tmp_path.glob("*.json"))) <= 2


def test_warming_up_makes_what_the_first_minute_needs(tmp_path: Path, count: list[str]) -> None:
    """The first charts of this very machine come from what `warm` made: no process is started for them."""
    kept = Documents(tmp_path)
    kept.warm()
    machine = next(warm._hellos())
    for kind in warm.KINDS:
        assert [len(wanted.loaders) for wanted in warm._usual(machine, kind) if kept.get(wanted, kind)] == [
            1,
            0,
            1,
            2,
            2,
            1,
        ]
    assert count == []
    began = time.monotonic()
    assert warm.warm(tmp_path) == 0
    assert time.monotonic() - began < 15
    known = not_none(kept.hello())
    store = Store()
    store.set_host(machine)
    assert store.set_host(known).version == 1  # as the sampler says it again
    process = kept._warming
    kept.warm()
    assert kept._warming is process  # it is known to be warm


def test_a_session_has_its_charts_before_its_sampler_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler takes some tenths of a second to start, in which pages build the charts that it is going to fill."""
    monkeypatch.setattr(watched_loader, "_live", weakref.WeakValueDictionary())  # no loops of other tests
    monitor = Monitor()
    loader = watch_loader([1, 2], name="train")
    machine = next(warm._hellos())
    monitor.live_session.expected_hello = lambda: machine
    try:
        monitor.start(record=False, interval=0.2)
        before = monitor.store.page_schema
        assert monitor.store.last_seq == 0
        assert any(one.name.startswith("cpu/") for one in before.series)
        assert "train" in [one.name for one in before.loaders]
        wait_for(lambda: monitor.store.last_seq > 0)
        assert monitor.store.page_schema == before  # so that no page builds them again
    finally:
        monitor.stop()
    assert len(loader) == 2


@pytest.mark.parametrize("known", [None, {"cpus": [0]}, {**HELLO, "cpus": [7], "gpu_reason": "another"}])
def test_what_was_expected_amiss_is_put_right_by_the_sampler(known: dict[str, Any] | None) -> None:
    monitor = Monitor()
    monitor.live_session.expected_hello = lambda: known
    try:
        monitor.start(record=False)
        wait_for(lambda: monitor.store.last_seq > 0)
        assert list(monitor.store.schema.cpus) == next(warm._hellos())["cpus"]
    finally:
        monitor.stop()
