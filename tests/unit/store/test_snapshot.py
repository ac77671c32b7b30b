"""A snapshot goes through bytes unharmed, and bytes that are none are refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kernel_monitor.errors import SessionError
from kernel_monitor.store import Snapshot, Store
from tests.unit.store.test_store import HELLO

HOSTILE = [
    "</script><script>alert(1)</script>",
    "\"'`${x}\\",
    "\x00\x1b[31m\u2028\u202e",
    "\udcff lone surrogate of an odd file name",
    "☃ 🂡",
    "../../etc/passwd",
]


def snapshot() -> Snapshot:
    store = Store(5, origin=1.79e9)
    store.set_host({**HELLO, "host": {**HELLO["host"], "cpu_model": HOSTILE[0]}})
    store.set_loaders([{"id": "loader-1", "name": HOSTILE[1]}])
    for number in range(7):
        store.append(number / 10, [number, 150_000_000_000], {"loader/loader-1/wait": number / 3})
    for text in HOSTILE:
        store.add_event("switch-failed", 0.5, message=text)
    return store.snapshot([{"id": "loader-1", "status": HOSTILE[3]}], {text: text for text in HOSTILE})


def test_everything_goes_through_bytes_unharmed() -> None:
    before = snapshot()
    after = Snapshot.from_bytes(before.to_bytes())
    assert after.schema == before.schema
    assert after.seq.tolist() == before.seq.tolist() == [3, 4, 5, 6, 7]
    assert after.time.tolist() == before.time.tolist()
    assert np.array_equal(after.values, before.values, equal_nan=True)
    assert np.isnan(after.values[:, 2]).all()
    assert [str(one.dtype) for one in (after.seq, after.time, after.values)] == ["int64", "float64", "float32"]
    assert [event["message"] for event in after.events] == HOSTILE
    assert after.loaders == [{"id": "loader-1", "status": HOSTILE[3]}]
    assert after.facts == {text: text for text in HOSTILE}
    after = Snapshot.from_bytes(Store().snapshot([], {}).to_bytes())
    assert after.values.shape == (0, 0)
    assert after.events == []


def test_no_pickle_is_written() -> None:
    with zipfile.ZipFile(io.BytesIO(snapshot().to_bytes())) as archive:
        for name in archive.namelist():
            assert b"'|O'" not in archive.read(name)[:128]


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_no_pickle_is_read(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    with np.load(io.BytesIO(snapshot().to_bytes())) as archive:
        arrays = dict(archive)
    arrays["seq"] = np.array([Trap(trap)], dtype=object)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    with pytest.raises(SessionError, match="not a readable snapshot"):
        Snapshot.from_bytes(buffer.getvalue())
    assert not trap.exists()


@pytest.mark.parametrize("cut", [0, 1, 30, 500, -1, -200])
def test_bytes_cut_short_are_refused(cut: int) -> None:
    with pytest.raises(SessionError, match="not a readable snapshot"):
        Snapshot.from_bytes(snapshot().to_bytes()[:cut])


def test_what_does_not_fit_or_cannot_be_said_in_json_is_refused() -> None:
    good = snapshot()
    bad = Snapshot(good.schema, good.seq, good.time, good.values[:, :2], [], [], {})
    with pytest.raises(SessionError, match="do not fit"):
        Snapshot.from_bytes(bad.to_bytes())
    with pytest.raises(TypeError):
        Store().snapshot([], {"object": object()}).to_bytes()
