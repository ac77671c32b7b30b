"""The cost of recording, and of reading a recording: an hour of a large machine, faster than real time.

    python -m benchmarks.record [--minutes 60] [--cores 64] [--gpus 8] [--interval 0.1]

The frames (`benchmarks/replay.py`) go through the sampler's own recorder, in the same process; reading is measured in a
process of its own that has imported nothing yet, so that its times include NumPy's and pandas' import.
"""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from kernel_monitor.os_process import request_realtime
from kernel_monitor.record import codec, session_file, writer
from kernel_monitor.record.format import size_of
from kernel_monitor.record.session_file import CHUNK_ROWS
from kernel_monitor.record.writer import Recorder

from .replay import Replay

BAR_BYTES, BAR_OPEN_S, BAR_FRAME_S = 30e6, 1.0, 2.0
SWITCH_S = 0.0005  # as in the sampler's process

READING = """
import json, resource, sys, time
begun = time.perf_counter()
from kernel_monitor.record.reader import open_session
session = open_session(sys.argv[1])
seconds, schema = session.seconds, session.schema
opened, opened_cpu = time.perf_counter(), time.process_time()
snapshot = session.snapshot()
shown, shown_cpu = time.perf_counter(), time.process_time()
import pandas
imported = time.perf_counter()
frame = session.to_pandas()
framed, framed_cpu = time.perf_counter(), time.process_time()
print(json.dumps({
    "open_s": opened - begun, "snapshot_s": shown - opened, "import_pandas_s": imported - shown,
    "open_cpu_s": opened_cpu, "pandas_cpu_s": framed_cpu - shown_cpu,
    "to_pandas_s": framed - imported, "rows": len(frame), "columns": len(frame.columns), "seconds": seconds,
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "bins": len(snapshot.seq),
}))
"""


def write(path: Path, replay: Replay, rows: int) -> dict[str, Any]:
    """Record `rows` frames; return the seconds of all threads and of the recorder's own, and its bytes."""
    blocks = [replay.block(min(600, rows - start)) for start in range(0, rows, 600)]
    frames = [
        (moment, row.tobytes()) for times, values in blocks for moment, row in zip(times.tolist(), values, strict=True)
    ]
    states: list[dict[str, Any]] = []
    writer.LAST_S = 60.0  # faster than real time, more is left to pack at the end
    begun, before, taken = time.perf_counter(), time.process_time(), 0.0
    recorder = Recorder(path, session=uuid.uuid4().hex, origin=time.time(), on_state=states.append)
    recorder.start()
    recorder.hello(0.0, replay.hello)
    for moment, row in frames:
        at = time.thread_time()
        recorder.frame(moment, 0, row)
        taken += time.thread_time() - at
        # As fast as the recorder can: real frames come one by one, with time in between.
        while len(recorder._queue) > 400:
            time.sleep(0.01)
    recorder.close("the replay ended", goodbye=True)
    recorder.join()
    spent, wall = time.process_time() - before, time.perf_counter() - begun
    if states[-1]["state"] != "off":
        raise SystemExit(f"the recording failed: {states[-1]['message']}")
    return {"wall_s": wall, "spent_s": spent, "taken_s": taken, "bytes": size_of(path)}


def read(path: Path) -> dict[str, Any]:
    """Open the recording, bin it and make its DataFrame in a new process; return the durations."""
    done = subprocess.run([sys.executable, "-c", READING, str(path)], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def pieces(replay: Replay, rows: int) -> dict[str, float]:
    """Pack some rows; return the thread's CPU seconds, those of the longest piece, and the bytes."""
    times, values = replay.block(rows)
    names = [column.name for column in replay.columns]
    job = codec.encode(names, times.astype("<f8").tobytes(), bytes(4 * rows), values.astype("<f4").tobytes())
    begun = last = time.thread_time()
    longest = 0.0
    while True:
        try:
            next(job)
        except StopIteration as end:
            return {"cpu_s": time.thread_time() - begun, "longest_s": longest, "bytes": len(end.value)}
        now = time.thread_time()
        longest, last = max(longest, now - last), now


def beside(replay: Replay, seconds: float, *, recording: bool) -> list[float]:
    """Return the delays (s, sorted) of a thread that wakes 20 times a second, with or without recording its frames.

    The recorder packs every 50 rows here, a dozen times as often as usual.
    """
    rows = round(20 * seconds)
    blocks = [replay.block(min(600, rows - start)) for start in range(0, rows, 600)]
    frames = [row.tobytes() for _, values in blocks for row in values]
    late = []
    with tempfile.TemporaryDirectory() as folder:
        states: list[dict[str, Any]] = []
        path = Path(folder, "a.kmsession")
        recorder = Recorder(path, session="s", origin=time.time(), on_state=states.append)
        if recording:
            session_file.CHUNK_ROWS = 50
            recorder.start()
            recorder.hello(0.0, {**replay.hello, "interval": 0.05})
        began = due = time.monotonic()
        for frame in frames:
            due = max(due + 0.05, time.monotonic())
            select.select([], [], [], max(0.0, due - time.monotonic()))
            late.append(time.monotonic() - due)
            if recording:
                recorder.frame(time.monotonic() - began, 0, frame)
        recorder.close("the benchmark ended")
        recorder.join()
        session_file.CHUNK_ROWS = CHUNK_ROWS
    return sorted(late)


def main() -> int:
    """Measure and print; the exit status is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of session time")
    parser.add_argument("--cores", type=int, default=64)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between frames")
    parser.add_argument("--keep", type=Path, help="the file to write; a temporary one if not given")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)
    replay = Replay(options.cores, options.gpus, options.interval)
    rows = round(options.minutes * 60 / options.interval)
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder, "replay.kmsession")
        written = write(path, replay, rows)
        found = read(path)
        found = min((found, read(path)), key=lambda one: one["to_pandas_s"])
    packed = pieces(replay, CHUNK_ROWS)
    request_realtime()
    alone, busy = (beside(replay, 30.0, recording=recording) for recording in (False, True))
    hours = rows * options.interval / 3600
    frame_s = found["import_pandas_s"] + found["to_pandas_s"]
    print(f"{len(replay.columns)} series, {rows:,} frames, {hours:.2f} h of session time in {written['wall_s']:.1f} s")
    print(f"written: {written['bytes'] / 1e6:.2f} MB, {written['bytes'] / rows:.0f} B a frame")
    print(f"taking a frame: {1e6 * written['taken_s'] / rows:.1f} µs of the clock's thread")
    print(f"all of recording: {1e6 * written['spent_s'] / rows:.0f} µs of CPU a frame,", end=" ")
    print(f"{100 * written['spent_s'] / rows / options.interval:.2f} % of a core")
    print(f"packing {CHUNK_ROWS} rows: {1e3 * packed['cpu_s']:.0f} ms of CPU, the longest piece", end=" ")
    print(f"{1e3 * packed['longest_s']:.2f} ms (zlib's share of it without the GIL), {packed['bytes']:,} B")
    for name, late in (("alone", alone), ("that is recorded", busy)):
        print(f"a clock {name} is late by {1e3 * late[len(late) // 2]:.2f} ms,", end=" ")
        print(f"p99 {1e3 * late[int(len(late) * 0.99)]:.2f} ms, at most {1e3 * late[-1]:.2f} ms")
    print(f"reading: open {found['open_s']:.2f} s, {found['bins']} bins in {found['snapshot_s']:.2f} s,", end=" ")
    print(f"pandas' import {found['import_pandas_s']:.2f} s, DataFrame {found['to_pandas_s']:.2f} s,", end=" ")
    print(f"peak {found['peak_bytes'] / 1e6:.0f} MB for {found['rows'] * found['columns'] * 4 / 1e6:.0f} MB of values")
    print(f"of which CPU: open {found['open_cpu_s']:.2f} s, pandas' import and DataFrame {found['pandas_cpu_s']:.2f} s")
    bars = [
        ("size of an hour", written["bytes"] / hours, BAR_BYTES, "B"),
        ("opening", found["open_s"], BAR_OPEN_S, "s"),
        ("DataFrame, with the import", frame_s, BAR_FRAME_S, "s"),
    ]
    for name, value, bar, unit in bars:
        print(f"{'met   ' if value <= bar else 'MISSED'}  {name}: {value:.3g} {unit} (at most {bar:g})")
    return 0 if all(value <= bar for _, value, bar, _ in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
