"""What the recorder is given is in the file."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kernel_monitor.record import session_file as file_module
from kernel_monitor.record import writer
from kernel_monitor.record.format import size_of, wal_of
from kernel_monitor.record.reader import open_session
from kernel_monitor.record.writer import Recorder

from ..waiting import until
from .recorded import SERIES, Told, feed, hello, recorder, recording, session, waves


def test_frames_come_back_as_they_were(path: Path) -> None:
    times, values = waves(1500)  # two chunks and a rest
    with recorder(path, rows=1500) as (_, told):
        pass
    rows = open_session(path).rows()
    assert rows.schema.names == tuple(name for name, _ in SERIES)
    assert [series.unit for series in rows.schema.series] == [unit for _, unit in SERIES]
    assert rows.time.tolist() == times.tolist()
    assert np.array_equal(rows.values, values)
    assert rows.seq.tolist() == list(range(1, 1501))
    assert told.states == ["recording", "off"]


def test_what_the_kernel_tells_is_there(path: Path) -> None:
    event = {"kind": "switch", "time": 1.5, "loader": "loader-1", "source": "torchvision", "target": "dali-cpu"}
    steps = [[0.5 + n / 10, 0, n, 32, 0.01, 0.1] for n in range(20)]
    with recorder(path, rows=20) as (one, told):
        one.command({"do": "event", "event": event})
        one.command({"do": "facts", "facts": {"versions": {"torch": "2.6"}}})
        one.command({"do": "loaders", "loaders": [{"id": "loader-1", "name": "old"}]})
        one.command({"do": "loaders", "loaders": [{"id": "loader-1", "name": "train"}]})
        one.command({"do": "steps", "loader": "loader-1", "rows": steps[:10], "dropped": 3})
        one.command({"do": "steps", "loader": "loader-1", "rows": steps[10:], "dropped": 0})
    found = open_session(path)
    assert found.events() == [{"id": 1, **event}]
    assert found.facts == {"versions": {"torch": "2.6"}}
    assert found.loaders == [{"id": "loader-1", "name": "train"}]
    table = found.steps()
    assert table["loader"].tolist() == ["loader-1"] * 20
    assert table["end"].tolist() == [row[0] for row in steps]
    assert table["batch"].tolist() == list(range(20))
    assert table["images"].tolist() == [32] * 20
    assert told.states == ["recording", "off"]


def test_loaders_values_stand_beside_their_frames(path: Path) -> None:
    times, _ = waves(700)
    with recorder(path, rows=700) as (one, _):
        # The kernel counts the same times with another rounding, and has nothing to say of some frames.
        rows = [[times[n] + 1e-7, {"loader/a/images": float(n), "loader/a/wait": None}] for n in range(10, 650, 2)]
        one.command({"do": "values", "rows": rows[:100]})
        one.command({"do": "values", "rows": rows[100:]})
        one.command({"do": "values", "rows": [[times[699], {"loader/b/step": 7.0}]]})
        one.command({"do": "values", "rows": [[times[699] + 5, {"loader/b/step": 9.0}]]})  # of no frame
    found = open_session(path).rows()
    assert found.schema.names[-3:] == ("loader/a/images", "loader/a/wait", "loader/b/step")
    assert found.schema.series[-3].unit == "images/s"
    assert [one.id for one in found.schema.loaders] == ["a", "b"]
    images = found.values[:, -3]
    assert images[10:650:2].tolist() == list(range(10, 650, 2))
    assert np.isnan(images[11:650:2]).all()
    assert np.isnan(images[:10]).all()
    assert np.isnan(found.values[:, -2]).all()
    assert np.flatnonzero(~np.isnan(found.values[:, -1])).tolist() == [699]


def test_series_that_come_and_go_are_one_table(path: Path) -> None:
    with recorder(path) as (one, _):
        one.hello(0.0, hello([("cpu/0/busy", "%"), ("swap/in", "B/s")]))
        feed(one, np.array([0.05, 0.15]), np.array([[1, 2], [3, 4]], dtype=np.float32))
        one.hello(0.0, hello([("cpu/0/busy", "%"), ("gpu/0/power", "%")], interval=0.2, gpu_reason=None))
        feed(one, np.array([0.35, 0.55]), np.array([[5, 6], [7, 8]], dtype=np.float32))
    found = open_session(path)
    rows = found.rows()
    assert rows.schema.names == ("cpu/0/busy", "gpu/0/power", "swap/in")
    assert rows.schema.interval == 0.2
    assert np.array_equal(
        rows.values, np.array([[1, np.nan, 2], [3, np.nan, 4], [5, 6, np.nan], [7, 8, np.nan]]), equal_nan=True
    )
    assert found.check() == []


def test_a_frame_before_any_hello_is_not_guessed_at(path: Path) -> None:
    with recorder(path) as (one, _):
        one.frame(0.05, 0, b"\0\0\x80?")
        one.hello(0.0, hello())
        feed(one, *waves(3, start=0.15))
    assert open_session(path).rows().time.tolist()[0] == 0.15


def test_what_makes_no_sense_is_told_once_and_harms_nothing(path: Path) -> None:
    with recorder(path, rows=0) as (one, told):
        for _ in range(3):
            one.command({"do": "steps", "loader": "x", "rows": [["not", "a", "step"]]})
            one.command({"do": "event", "event": {"kind": "no time"}})
        one.command({"do": "event", "event": {"kind": "good", "time": 1}})
        feed(one, *waves(10))
    assert told.warnings == [f"Not recorded: '{kind}' from the kernel " for kind in ("steps", "event")]
    found = open_session(path)
    assert len(found.rows()) == 10
    assert [event["kind"] for event in found.events()] == ["good"]


def test_the_same_session_is_continued(path: Path) -> None:
    assert session(path, 20).ended is not None
    with recorder(path, rows=0) as (one, told):
        feed(one, *waves(20, start=10.05))
        assert told.wait_for("recording")
        # Written again, it has not ended; the file says so before its first row.
        assert open_session(path).ended is None
    found = open_session(path)
    assert len(found.rows()) == 40
    assert found.seconds == pytest.approx(11.9)


def test_off_and_on_at_once_loses_nothing(path: Path) -> None:
    ones = []
    for number in range(6):
        one = Recorder(path, session="s", origin=1.0, on_state=Told().append)
        one.start()
        one.hello(0.0, hello())
        feed(one, *waves(50, start=0.05 + 5 * number))
        one.close("off", goodbye=True)  # and the next begins while this one still writes
        ones.append(one)
    assert all(one.join(20) for one in ones)
    found = open_session(path)
    assert len(found.rows()) == 300
    assert found.check() == []


def test_only_the_owner_may_read_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "sessions"
    before = os.umask(0)
    try:
        with recording(folder / "a.kmsession"):
            until(wal_of(folder / "a.kmsession").exists)
            files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    finally:
        os.umask(before)
    assert files == dict.fromkeys(("a.kmsession", "a.kmsession-wal", "a.kmsession-shm"), 0o600)
    assert stat.S_IMODE((folder / "a.kmsession").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [file.name for file in folder.iterdir()] == ["a.kmsession"]  # closed, it is one plain file


def test_a_session_keeps_to_its_size_by_letting_go_of_the_oldest(path: Path) -> None:
    limit = 1 << 20
    random = np.random.default_rng(0)
    rows, width = 6_000, 100
    times = 0.05 + 0.1 * np.arange(rows, dtype=np.float64)
    values = random.normal(size=(rows, width)).astype(np.float32)
    with recorder(path, max_bytes=limit) as (one, _):
        one.hello(0.0, hello([(f"gpu/{n}/power", "%") for n in range(width)]))
        one.command({"do": "steps", "loader": "x", "rows": [[t, 0, 0, 1, 0.1, 0.1] for t in (1.0, 599.0)]})
        for start in range(0, rows, 600):
            feed(one, times[start : start + 600], values[start : start + 600])
    assert size_of(path) < 1.1 * limit
    found = open_session(path)
    kept = found.rows()
    assert 0 < len(kept) < rows
    assert kept.seq[-1] == rows  # the numbers go on from those that went
    assert kept.seq[0] == rows - len(kept) + 1
    assert np.array_equal(kept.values, values[-len(kept) :])
    assert found.steps()["end"].tolist() == [1.0, 599.0]  # one batch: it goes when the last of it would
    assert found.check() == []


def test_a_disk_that_stands_still_costs_frames_which_are_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "QUEUE_BYTES", 20_000)
    stuck, free = threading.Event(), threading.Event()
    add = file_module.SessionFile.add_rows

    def slow(self: file_module.SessionFile, layout: int, rows: list[tuple[float, int, bytes]]) -> None:
        if not free.is_set():
            stuck.set()
            assert free.wait(30)
        add(self, layout, rows)

    monkeypatch.setattr(file_module.SessionFile, "add_rows", slow)
    times, values = waves(2000)
    with recorder(path, rows=0) as (one, told):
        feed(one, times[:5], values[:5])
        assert stuck.wait(20)
        begun = time.monotonic()
        for number in range(5, 1999):
            one.frame(times[number], 0, values[number].tobytes())
        assert time.monotonic() - begun < 5  # it waited for nothing
        free.set()
        until(lambda: not one._queue)
        one.frame(times[1999], 0, values[1999].tobytes())
        late = until(lambda: [one for one in told if "too slow" in one["message"]])
    found = open_session(path)
    lost = 2000 - len(found.rows())
    assert lost > 0
    assert f"{lost} samples" in late[0]["message"]
    with found._table() as table:
        missed = sum(int(table.load(run).missed.sum()) for run in table.stored("host"))
    assert missed == lost


def test_the_sampler_process_loads_nothing_heavy() -> None:
    code = (
        "import sys, kernel_monitor.record.writer, kernel_monitor.record.sessions, json; "
        "print(json.dumps([m for m in ('numpy', 'pandas', 'platformdirs', 'IPython', 'bokeh') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == []


def test_a_jump_of_the_wall_clock_bends_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, values = waves(200)
    right = time.time
    with recorder(path, rows=0) as (one, told):
        feed(one, times[:100], values[:100])
        told.wait_for("recording")
        monkeypatch.setattr(time, "time", lambda: right() - 86400)
        feed(one, times[100:], values[100:])
        until(lambda: not one._queue)
        monkeypatch.undo()
    found = open_session(path)
    assert found.rows().time.tolist() == times.tolist()
    stamps = found.to_pandas().index.to_series().diff().dropna().dt.total_seconds()
    assert np.allclose(stamps, 0.1, atol=1e-5)
