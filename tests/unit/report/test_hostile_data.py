"""Sessions that say little or went wrong: a report of each that says what it cannot say, and never a traceback."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_monitor.errors import MonitorError
from kernel_monitor.recorded import Opened
from kernel_monitor.report.page import render
from kernel_monitor.store import Snapshot, Store
from tests.unit.analysis.test_compare_segments import session
from tests.unit.pages import Page
from tests.unit.sessions import Run, build


def states(**fields: Any) -> list[dict[str, Any]]:
    return [{"batches": 640, "planned": 20480, **fields}]


def text_of(snapshot: Snapshot) -> str:
    text = Page(render(snapshot)).text
    for trace in ("Traceback", "nan", "inf ", "None"):
        assert trace not in text, text[max(text.find(trace) - 100, 0) : text.find(trace) + 100]
    return text


def test_no_row_at_all() -> None:
    text = text_of(Store(origin=1.79e9).snapshot([], {}))
    assert "no sample" in text
    assert "Undetermined" in text
    assert "What this session cannot say" in text


def test_no_step() -> None:
    text = text_of(build(20.0, states=states(), loaders={"loader-1": "train"}))
    assert "Undetermined no segment to judge" in text
    assert "switchable" in text  # what to do about it


def test_one_step() -> None:
    run = Run(1.0, 20.0, step=0.5, wait=0.4, steps=1)
    text = text_of(build(20.0, runs=[run], states=states(batch=1, samples=32)))
    assert "Undetermined" in text
    assert "1 step" in text


def test_one_row() -> None:
    assert "Undetermined" in text_of(build(0.1))


def test_no_gpu() -> None:
    snapshot = build(30.0, runs=[Run(0.0, 30.0)], states=states(batch=300, samples=9600))
    text = text_of(snapshot)
    assert "no GPU" in text
    assert "GPU utilisation, mean" not in text
    assert "Lacked a signal" in text


def test_an_unfinished_epoch_is_flagged() -> None:
    text = text_of(build(30.0, runs=[Run(0.0, 30.0)], states=states(batch=300, samples=9600)))
    assert "9,600 20,480" in text
    assert "⚠" in text
    assert "Careful: 1 epoch may not be compared by time (train 1)" in text


def test_a_clock_that_jumped_is_a_gap() -> None:
    whole = build(60.0, gpus=1, runs=[Run(0.0, 60.0)], states=states(batch=600, samples=19200))
    later = np.where(whole.time > 30.0, whole.time + 7200.0, whole.time)
    rows = whole.steps.rows.copy()
    rows["end"] = np.where(rows["end"] > 30.0, rows["end"] + 7200.0, rows["end"])
    text = text_of(replace(whole, time=later, steps=replace(whole.steps, rows=rows)))
    assert "2 h 1 min" in text
    counted = re.search(r", start (\d+ \w+) ", text)
    assert counted is not None
    assert counted[1] in ("59 s", "60 s", "1 min")  # the time that was slept is no time of the segment


def test_steps_that_go_back_in_time() -> None:
    whole = build(30.0, runs=[Run(0.0, 30.0)], states=states(batch=300, samples=9600))
    rows = whole.steps.rows.copy()
    rows["step"][50] = -5.0
    rows["wait"][50] = np.nan
    assert "Verdict" in text_of(replace(whole, steps=replace(whole.steps, rows=rows)))


def test_a_file_of_before_there_were_phases() -> None:
    older = build(30.0, gpus=1, runs=[Run(0.0, 30.0)], states=states(batch=300, samples=9600), steps=False)
    assert not len(older.steps)
    text = text_of(older)
    assert "no single step was kept" in text
    assert "Phases need monitor.watch(model, optimizer)." in text


@pytest.mark.parametrize(
    ("price", "words"), [(0.0, "At a price of zero everything is free"), (None, "No price is set")]
)
def test_a_price_of_zero_and_no_price(price: float | None, words: str) -> None:
    facts = {} if price is None else {"price": price, "currency": "€"}
    snapshot = build(30.0, runs=[Run(0.0, 30.0)], states=states(batch=300, samples=9600), facts=facts)
    assert words in text_of(snapshot)


def test_damage_is_told_on_top_and_in_its_section() -> None:
    told = {"ended": None, "live": False, "bin_s": None, "rows": 420, "damaged": ["rows 100 to 199: zlib"]}
    snapshot = session()
    text = text_of(replace(snapshot, facts={**snapshot.facts, "recorded": told}))
    assert "1 damaged piece left out" in text
    assert "The recording is damaged and was read around it: rows 100 to 199: zlib" in text


def test_what_is_no_session_is_a_named_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.kmsession"
    broken.write_bytes(b"SQLite format 3\0" + b"\x17" * 4096)
    empty = tmp_path / "empty.kmsession"
    sqlite3.connect(empty).close()
    for path in (broken, empty, tmp_path / "missing.kmsession"):
        with pytest.raises(MonitorError):
            Opened().open(path).render()


def test_events_that_say_too_little_are_no_obstacle() -> None:
    events = [
        {"id": 1, "kind": "mark", "time": 5.0, "label": ""},
        {"id": 2, "kind": "diagnosis", "time": 6.0, "result": None, "message": "no step came"},
        {"id": 3, "kind": "profile", "time": 7.0, "result": None, "message": "no step came"},
        {"id": 4, "kind": "something-newer", "time": 8.0, "what": {"x": [1]}},
    ]
    snapshot = build(30.0, runs=[Run(0.0, 30.0)], states=states(batch=300, samples=9600), events=events)
    assert "Verdict" in text_of(snapshot)
