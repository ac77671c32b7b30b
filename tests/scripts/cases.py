"""The scripts that there are: the product of data sets, kinds of workers and moments of switches."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

from .kinds import FRAMEWORKS, KINDS

SWITCHES = ("none", "before", "between", "waited", "middle", "twice", "late")
AT_ONCE = ("between", "late")
"""When nothing waits for the engine, so that it may be taken back before it delivers."""
CONTEXTS = ("fork", "spawn", "forkserver")
PER_KIND = 2  # scripts of a sample: of each data set
SLOW = {True: 2, False: 1}  # scripts of a sample with workers that import torch, not MONAI: once, or in each epoch


@dataclass(frozen=True, order=True)
class Setting:
    """What a script and its plain variant have in common."""

    kind: str  # of the data set, see `kinds`
    workers: int
    persistent: bool
    context: str  # how workers start; "" where there are none
    seed: int  # of the script's order

    @property
    def guarded(self) -> bool:
        """Whether the script has `if __name__ == "__main__":`, which plain torch needs for such workers."""
        return self.context not in ("", "fork")

    @property
    def epochs(self) -> int:
        """How many it runs; fewer where each imports torch in every worker."""
        return 3 if self.guarded else 4

    def __str__(self) -> str:
        kept = "kept" if self.persistent else "anew"
        return f"{self.kind}-{self.workers}" + (f"-{kept}-{self.context}" if self.workers else "")


@dataclass(frozen=True, order=True)
class Case:
    """One script. `direct`: started as `python script.py`, not forked from a process that has imported torch."""

    setting: Setting
    switch: str  # when it switches, one of `SWITCHES`
    direct: bool = False

    def __str__(self) -> str:
        return f"{self.setting}-{self.switch}"


def every(seed: int) -> list[Case]:
    """The whole product, without what plain torch cannot do either."""
    ways = [(0, False, ""), *((2, kept, context) for kept in (False, True) for context in CONTEXTS)]
    return [
        Case(Setting(kind, *way, seed), switch)
        for kind, way, switch in itertools.product(KINDS, ways, SWITCHES)
        if KINDS[kind].sendable or way[2] in ("", "fork")
    ]


def sample(seed: int) -> list[Case]:
    """Some of them, and of each data set at least `PER_KIND`."""
    choice = random.Random(seed)
    cases = every(seed)
    chosen: list[Case] = []
    for kept, count in SLOW.items():
        slow = [case for case in cases if case.setting.guarded and case.setting.kind not in FRAMEWORKS]
        chosen += choice.sample([case for case in slow if case.setting.persistent is kept], count)
    for kind in KINDS:
        quick = [case for case in cases if case.setting.kind == kind and not case.setting.guarded]
        chosen += choice.sample(quick, PER_KIND)
    return chosen


def in_cells(seed: int) -> list[Case]:
    """Those that are executed in a notebook's kernel."""
    found = [
        Case(Setting("own", 2, False, "fork", seed), "between"),
        Case(Setting("transform", 2, False, "fork", seed), "waited"),
    ]
    rest = [case for case in sample(seed) if case.setting.context == "fork" and case.setting.kind not in FRAMEWORKS]
    return found + random.Random(seed).sample(rest, 2)


def known(seed: int) -> list[Case]:
    """Those that are known to matter, started as people start them."""
    found = [
        Case(Setting("own", 2, False, "fork", seed), "between"),
        Case(Setting("transform", 2, False, "fork", seed), "between"),
        Case(Setting("counter", 2, True, "fork", seed), "middle"),
        Case(Setting("lock", 2, False, "fork", seed), "between"),
    ]
    return [replace(case, direct=True) for case in found]
