"""The sampler and its recorder: on, off, and a kernel that goes without a word."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

from kernel_monitor.record.reader import open_session
from tests.unit.checks import not_none, wait_for
from tests.unit.sampler_taken import Taken, running


def states(taken: Taken) -> list[str]:
    return [notice["state"] for notice in taken.notices if notice.get("kind") == "recorder"]


def test_recording_begins_ends_and_goes_on_as_it_is_told(tmp_path: Path) -> None:
    file = tmp_path / "one.kmsession"
    with running(0.05, session="a" * 32) as taken:
        assert states(taken) == []
        taken.client.send({"do": "record", "path": str(file)})
        wait_for(lambda: states(taken) == ["recording"])
        assert taken.notices[-1]["path"] == str(file)
        taken.more(20)
        taken.client.send({"do": "record", "path": None})
        wait_for(lambda: states(taken) == ["recording", "off"])
        paused = taken.frames[-1][0]
        time.sleep(0.5)
        taken.client.send({"do": "record", "path": str(file)})
        wait_for(lambda: states(taken) == ["recording", "off", "recording"])
        taken.more(20)
        taken.client.send({"do": "goodbye", "reason": "stopped"})
    session = open_session(file)
    rows = session.rows()
    assert session.id == "a" * 32
    assert session.ended is not None
    assert session.ended["goodbye"]
    assert len(rows.time) >= 30
    recorded_gap = max(b - a for a, b in itertools.pairwise(rows.time))
    assert recorded_gap >= 0.4  # the pause, in which sampling went on
    assert any(stamp > paused + 0.1 for stamp, _, _ in taken.frames)
    # The recording's rows are the frames that the kernel got, to the bit.
    names = [series.name for series in session.schema.series]
    busy = names.index("cpu/0/busy")
    stored = {
        round(float(moment), 6): float(value) for moment, value in zip(rows.time, rows.values[:, busy], strict=True)
    }
    matched = 0
    for stamp, _, values in taken.frames:
        moment = round(taken.client.clock.time(stamp), 6)
        if moment in stored:
            matched += 1
            assert stored[moment] == values["cpu/0/busy"] or math.isnan(stored[moment])
    assert matched >= 25


def test_a_kernel_that_goes_without_a_word_is_recorded_as_such(tmp_path: Path) -> None:
    file = tmp_path / "two.kmsession"
    with running(0.05, session="b" * 32, record=file) as taken:
        wait_for(lambda: states(taken) == ["recording"])
        taken.more(15)
    ended = not_none(open_session(file).ended)
    assert not ended["goodbye"]
    assert "without goodbye" in ended["reason"]
