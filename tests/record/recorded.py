"""What the recorder's tests share: a small machine's frames, and sessions made of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.record import writer
from kernel_monitor.record.reader import Session, open_session
from kernel_monitor.record.writer import Recorder

ORIGIN = float(round(time.time() - 3600))  # sessions of long ago are deleted when a new one begins
SERIES = [("sample/interval", "s"), ("cpu/0/busy", "%"), ("cpu/1/busy", "%"), ("memory/used", "B")]


def hello(series: Sequence[tuple[str, str]] = SERIES, interval: float = 0.1, **changes: Any) -> dict[str, Any]:
    """What a sampler says."""
    return {
        "interval": interval,
        "series": [{"name": name, "unit": unit} for name, unit in series],
        "cpus": [0, 1],
        "gpus": [],
        "gpu_reason": "NVML Shared Library Not Found",
        "host": {"cpu_model": "test", "logical_cpus": 2, "memory_total": 1 << 34, "platform": "Linux"},
        **changes,
    }


class Told(list[dict[str, Any]]):
    """The states that a recorder told of."""

    @property
    def states(self) -> list[str]:
        return [one["state"] for one in self]

    def wait_for(self, state: str, seconds: float = 20.0) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for one in list(self):
                if one["state"] == state:
                    return one
            time.sleep(0.01)
        raise AssertionError(f"no {state} within {seconds:g} s, but {list(self)}")


@contextmanager
def recorder(
    path: Path, *, session: str = "0123456789abcdef", origin: float = ORIGIN, **options: Any
) -> Iterator[tuple[Recorder, Told]]:
    """A recorder that is closed with a goodbye at the end; frames' stamps are session times."""
    told = Told()
    one = Recorder(path, session=session, origin=origin, on_state=told.append, **options)
    one.start()
    before, writer.LAST_S = writer.LAST_S, 60.0  # all is packed at the end, however slow this machine is
    try:
        yield one, told
    finally:
        one.close("the test ended", goodbye=True)
        assert one.join(30)
        writer.LAST_S = before


@contextmanager
def recording(path: Path, **options: Any) -> Iterator[tuple[Recorder, Told]]:
    """A recorder that got its first five frames, and said that it records."""
    with recorder(path, **options) as (one, told):
        one.hello(0.0, hello())
        feed(one, *waves(5))
        told.wait_for("recording")
        yield one, told


def feed(one: Recorder, times: npt.NDArray[np.float64], values: npt.NDArray[np.float32]) -> None:
    """Give frames to a recorder, no faster than it takes them."""
    for moment, row in zip(times.tolist(), values.astype("<f4"), strict=True):
        one.frame(moment, 0, row.tobytes())
        while len(one._queue) > 4000:
            time.sleep(0.001)


def waves(
    rows: int, start: float = 0.05, interval: float = 0.1
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]:
    """Frames of `SERIES`: times, values."""
    times = start + interval * np.arange(rows, dtype=np.float64)
    busy = 50 + 50 * np.sin(times)
    values = np.stack([np.full(rows, interval), busy, np.round(100 - busy), 1e9 + 1e6 * times], axis=1)
    return times.astype(np.float64), values.astype(np.float32)


def session(path: Path, rows: int = 30, **options: Any) -> Session:
    """A finished session of `rows` frames."""
    with recorder(path, **options) as (one, _):
        one.hello(0.0, hello())
        feed(one, *waves(rows))
    return open_session(path)
