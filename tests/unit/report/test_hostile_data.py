"""Sessions that say little or went wrong: a report of each that says what it cannot say, and never a traceback."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
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
from tests.unit.checks import contains, not_none
from tests.unit.pages import Page
from tests.unit.sessions import Run, build


def looped(seconds: float = 30.0, **more: Any) -> Snapshot:
    """A loop of steps of 0.1 s."""
    count = {"batches": 640, "planned": 20480, "batch": round(10 * seconds), "samples": round(320 * seconds)}
    return build(seconds, runs=[Run(0.0, seconds)], states=[count], **more)


def odd_step() -> Snapshot:
    whole = looped()
    rows = whole.steps.rows.copy()
    rows["step"][50], rows["wait"][50] = -5.0, np.nan
    return replace(whole, steps=replace(whole.steps, rows=rows))


def damaged() -> Snapshot:
    told = {"ended": None, "live": False, "bin_s": None, "rows": 420, "damaged": ["rows 100 to 199: zlib"]}
    snapshot = session()
    return replace(snapshot, facts={**snapshot.facts, "recorded": told})


def text_of(snapshot: Snapshot) -> str:
    text = Page(render(snapshot)).text
    for trace in ("Traceback", "nan", "inf ", "None"):
        assert trace not in text, text[max(text.find(trace) - 100, 0) : text.find(trace) + 100]
    return text


ONE_STEP = {"batches": 640, "planned": 20480, "batch": 1, "samples": 32}
SPARE_EVENTS = [
    {"id": 1, "kind": "mark", "time": 5.0, "label": ""},
    {"id": 2, "kind": "diagnosis", "time": 6.0, "result": None, "message": "no step came"},
    {"id": 3, "kind": "profile", "time": 7.0, "result": None, "message": "no step came"},
    {"id": 4, "kind": "something-newer", "time": 8.0, "what": {"x": [1]}},
]
SESSIONS: dict[str, tuple[Callable[[], Snapshot], tuple[str, ...]]] = {
    "no row": (
        lambda: Store(origin=1.79e9).snapshot([], {}), ("no sample", "Undetermined", "What this session cannot say"),
    ),
    "no step": (
        lambda: build(20.0, loaders={"loader-1": "train"}), ("Undetermined no segment to judge", "watch_loader("),
    ),
    "one step": (
        lambda: build(20.0, runs=[Run(1.0, 20.0, step=0.5, wait=0.4, steps=1)], states=[ONE_STEP]),
        ("Undetermined", "1 step"),
    ),
    "one row": (lambda: build(0.1), ("Undetermined",)),
    "no GPU": (looped, ("no GPU", "Lacked a signal")),
    "an unfinished epoch": (
        looped, ("9,600 20,480", "⚠", "Careful: 1 epoch may not be compared by time (train 1)"),
    ),
    "no price": (looped, ("No price is set",)),
    "a step that goes back in time": (odd_step, ("Verdict",)),
    "before there were phases": (
        lambda: looped(gpus=1, steps=False),
        ("no single step was kept", "Phases need monitor.watch(model, optimizer)."),
    ),
    "damaged": (
        damaged,
        ("1 damaged piece left out", "The recording is damaged and was read around it: rows 100 to 199: zlib"),
    ),
    "events that say too little": (lambda: looped(events=SPARE_EVENTS), ("Verdict",)),
}  # fmt: skip


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_that_says_little_has_a_report_that_says_so(name: str) -> None:
    make, words = SESSIONS[name]
    text = text_of(make())
    contains(text, *words)
    if name == "no GPU":
        assert "GPU utilisation, mean" not in text


def test_a_clock_that_jumped_is_a_gap() -> None:
    whole = looped(60.0, gpus=1)
    later = np.where(whole.time > 30.0, whole.time + 7200.0, whole.time)
    rows = whole.steps.rows.copy()
    rows["end"] = np.where(rows["end"] > 30.0, rows["end"] + 7200.0, rows["end"])
    text = text_of(replace(whole, time=later, steps=replace(whole.steps, rows=rows)))
    assert "2 h 1 min" in text
    counted = not_none(re.search(r", start (\d+ \w+) ", text))
    assert counted[1] in ("59 s", "60 s", "1 min")  # the time that was slept is no time of the segment


def test_what_is_no_session_is_a_named_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.kmsession"
    broken.write_bytes(b"SQLite format 3\0" + b"\x17" * 4096)
    empty = tmp_path / "empty.kmsession"
    sqlite3.connect(empty).close()
    for path in (broken, empty, tmp_path / "missing.kmsession"):
        with pytest.raises(MonitorError):
            Opened().open(path).render()
