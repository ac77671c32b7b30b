"""The real sampler records what the real client gets: turned off and on, on a full disk, beside another, copied."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kernel_monitor.record.reader import open_session
from kernel_monitor.record.sessions import left_without_goodbye, read_entry, sessions

from .kernels import Kernel
from .recorded import small_disk

COPIES = 30


@contextmanager
def kernel(path: Path, session: str = "0123456789abcdef", interval: float = 0.05) -> Iterator[Kernel]:
    one = Kernel(path, session, interval)
    try:
        one.wait_for(lambda: bool(one.frames))
        yield one
    finally:
        one.clean()


def test_everything_that_the_kernel_got_is_recorded(path: Path) -> None:
    with kernel(path) as one:
        one.wait_for(lambda: len(one.frames) > 40)
        live = read_entry(path)
        one.end()
    assert live.live
    assert not live.goodbye
    found = open_session(path)
    ended = found.ended
    assert ended is not None
    assert ended["goodbye"]
    assert ended["reason"] == "stopped"
    rows = found.rows()
    # The sampler may have taken one more while it was being ended, and the first ones before the file was there.
    assert np.isin(np.round(one.frames, 4), np.round(rows.time, 4)).all()
    images = rows.values[:, rows.schema.columns["loader/a/images"]]
    told = ~np.isnan(images)
    assert told.sum() >= len(one.frames) - 3
    assert np.allclose(images[told], rows.time[told], atol=1e-3)  # each beside the frame that it was counted for
    assert {"sample/interval", "memory/used", "cpu/0/busy"} <= set(rows.schema.names)
    assert len([event for event in found.events() if event["kind"] == "tick"]) >= len(one.frames) - 3
    assert "python" in found.facts["versions"]
    assert next(notice["state"] for notice in one.notices if notice.get("kind") == "recorder") == "recording"
    assert found.check() == []


def test_a_killed_kernel_is_reported_by_the_next(tmp_path: Path, path: Path) -> None:
    with kernel(path) as one:
        one.wait_for(lambda: len(one.frames) > 25)
        assert left_without_goodbye(tmp_path) is None  # it lives
        sampler = one.sampler
        one.kill()
        one.gone(sampler)
    found = left_without_goodbye(tmp_path)
    assert found is not None
    assert found.path == path
    ended = open_session(path).ended
    assert ended is not None
    assert ended["reason"] == "the kernel ended without goodbye"


def test_recording_is_turned_off_and_on(path: Path) -> None:
    with kernel(path) as one:
        one.wait_for(lambda: len(one.frames) > 20)
        one.tell({"do": "record", "path": None})
        one.wait_for(lambda: "off" in one.states)
        off = one.wait_for_frames(20)
        one.tell({"do": "record", "path": str(path)})
        one.wait_for(lambda: one.notices[-1].get("state") == "recording")
        on = one.wait_for_frames(20)
        one.end()
    times = open_session(path).rows().time
    unrecorded = [moment for moment in one.frames if np.abs(times - moment).min() > 1e-3]
    assert 15 <= len(unrecorded) <= on - off + 20
    assert max(np.diff(one.frames)) < 0.5  # turning it off and on held up nothing
    assert open_session(path).check() == []


def test_two_kernels_record_at_once(tmp_path: Path) -> None:
    paths = [tmp_path / "a.kmsession", tmp_path / "b.kmsession"]
    with kernel(paths[0], "a" * 32) as one, kernel(paths[1], "b" * 32) as two:
        one.wait_for(lambda: len(one.frames) > 20 and len(two.frames) > 20)
        assert [found.live for found in sessions(tmp_path)] == [True, True]
        one.end()
        two.end()
    assert {found.id[0] for found in sessions(tmp_path) if found.goodbye} == {"a", "b"}
    for path in paths:
        assert open_session(path).check() == []


def test_copies_taken_while_it_records_are_whole(tmp_path: Path) -> None:
    path, seed = tmp_path / "a.kmsession", random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with kernel(path) as one:
        one.wait_for(lambda: len(one.frames) > 25)
        session = open_session(path)
        for number in range(COPIES):
            time.sleep(dice.uniform(0, 0.25))
            got = one.frames[-1]
            copy = open_session(session.copy(tmp_path / f"copy-{number}.kmsession"))
            assert copy.check() == []
            assert copy.rows().time[-1] > got - 1.0
            assert copy.path.stat().st_mode & 0o777 == 0o600
            assert not copy.live
            assert [file.name for file in tmp_path.glob(f"copy-{number}.*")] == [copy.path.name]
        one.end()
    assert max(np.diff(one.frames)) < 0.5  # and held up nothing
    assert open_session(path).check() == []


def test_a_full_disk_ends_the_recording_and_not_the_sampling(tmp_path: Path) -> None:
    """On a tmpfs of its own; where this user may not mount, the folder goes instead: the same end by another cause."""
    folder = tmp_path / "small"
    path, ballast, rows = folder / "a.kmsession", folder / "ballast", 0
    with small_disk(folder) as mounted:
        with kernel(path) as one:
            one.wait_for(lambda: len(one.frames) > 25)
            if mounted:
                _fill(ballast)
            else:
                shutil.rmtree(folder)
            one.wait_for(lambda: "stopped" in one.states)
            told = next(notice for notice in one.notices if notice.get("state") == "stopped")
            assert ("The disk is full" if mounted else "is gone") in told["message"]
            one.wait_for_frames(20)
            if mounted:
                stopped = open_session(path)
                rows = len(stopped.rows())
                assert rows > 10
                assert stopped.check() == []
                ballast.unlink()
            one.tell({"do": "record", "path": str(path)})
            one.wait_for(lambda: one.notices[-1].get("state") == "recording")
            one.wait_for_frames(20)
            one.end()
        assert max(np.diff(one.frames)) < 0.5
        found = open_session(path)
        assert len(found.rows()) > max(10, rows)
        assert found.check() == []


def _fill(file: Path) -> None:
    """Write until there is no room left."""
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(4096))
        except OSError:
            return
