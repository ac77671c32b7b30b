"""A session survives the end of everybody: kill -9 of the kernel, of the sampler, of both, at any moment.

`RECORDER_KILLS` says how often each; 12 if it is not set. The moments come from a seed that a failure prints.
"""

from __future__ import annotations

import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kernel_monitor.errors import SessionError
from kernel_monitor.record.reader import open_session
from kernel_monitor.record.sessions import read_entry

from .kernels import Kernel

KILLS = int(os.environ.get("RECORDER_KILLS", "12"))
AT_ONCE = 6
LONGEST_S = 2.5
ALLOWED_S = 1.0


def killed(path: Path, who: str, seed: int) -> str:
    """Kill `who` at a moment that `seed` gives; returns what is wrong with what was recorded, or nothing."""
    name = f"seed {seed}, {who}"
    moment = random.Random(seed).uniform(0.0, LONGEST_S)
    kernel = Kernel(path, f"{seed:08x}")
    try:
        kernel.wait_for(lambda: bool(kernel.frames))
        first = kernel.frames[0]
        kernel.wait_for(lambda: kernel.frames[-1] >= first + moment)
        sampler = kernel.sampler
        if who in ("sampler", "both"):
            sampler.kill()
        if who in ("kernel", "both"):
            kernel.kill()
        else:
            died = kernel.frames[-1]
            kernel.wait_for(lambda: kernel.frames[-1] > died + 0.6)  # from the sampler that was started instead
            sampler = kernel.sampler
            kernel.tell("goodbye")
        kernel.gone(sampler)
        return judge(kernel, who, name)
    finally:
        kernel.clean()


def judge(kernel: Kernel, who: str, name: str) -> str:
    got = np.array(kernel.frames)
    try:
        session = open_session(kernel.path)
    except SessionError as error:
        if re.search("is empty|nothing was recorded", str(error)) and got[-1] - got[0] < ALLOWED_S:
            return ""  # nothing was written yet
        return f"{name}: it does not open: {error}"
    damage = session.check()
    if damage:
        return f"{name}: {damage}"
    recorded = session.rows().time
    apart = np.abs(recorded[np.searchsorted(recorded, got).clip(0, len(recorded) - 1)] - got)
    before = np.abs(recorded[(np.searchsorted(recorded, got) - 1).clip(0)] - got)
    missing = got[np.minimum(apart, before) > 1e-4]
    if len(missing) and missing[-1] - missing[0] > ALLOWED_S:
        return f"{name}: {len(missing)} frames from {missing[0]:.2f} to {missing[-1]:.2f} s are missing"
    ended, live = session.ended, session.live
    if live or ended is None:
        return f"{name}: it seems to live"
    if ended["goodbye"] != (who == "sampler"):
        return f"{name}: goodbye is {ended}"
    if who == "both" and read_entry(kernel.path).goodbye:
        return f"{name}: it said goodbye"
    return ""


@pytest.mark.parametrize("who", ["kernel", "sampler", "both"])
def test_whoever_is_killed_at_most_a_second_is_missing(tmp_path: Path, who: str) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    seeds = range(seed, seed + KILLS)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda one: killed(tmp_path / f"{one}.kmsession", who, one), seeds))
    assert [problem for problem in found if problem] == []
