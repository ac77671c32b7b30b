"""Whatever is done to a loader, in whatever order and at whatever moment: what it delivers is the plan.

By default 500 schedules with in-process engines and 60 on real workers, DALI and threads, always the same; with
SCHEDULES=long 10,000 and 1,000, others each time, whose seed is printed (SCHEDULES=long:SEED plays those again).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from kernel_monitor.loaders.engines.backends import SPECS

from ..conftest import violent
from .fakes import BACKENDS, CALLS, FakeStage, specs
from .machine import Machine
from .reals import LOSES_LOCKS, RealStage
from .schedule import MOST, SAMPLERS, Config, Step, Totals
from .traced import KINDS, TRACED, Samples, write

HANGS = 60.0  # s for one schedule
Kinds = dict[str, Samples]


@dataclass(frozen=True)
class Effort:
    """Whether it is the long run, and which schedules: None for the same every time."""

    long: bool
    seed: int | None


def effort() -> Effort:
    kind, _, seed = os.environ.get("SCHEDULES", "").partition(":")
    if kind not in ("", "long"):
        raise ValueError(f"SCHEDULES={kind}: there is only `long` or `long:SEED`")
    if not kind:
        return Effort(False, None)
    return Effort(True, int(seed) if seed else int.from_bytes(os.urandom(4), "little"))


# ---- schedules


@st.composite
def configs(draw: st.DrawFn, kinds: Sequence[str] = ("photos",)) -> Config:
    kind = draw(st.sampled_from(kinds))
    size = draw(st.one_of(st.integers(0, MOST), st.integers(10, MOST), st.integers(0, 3)))
    return Config(
        size=size,
        batch_size=draw(st.one_of(st.integers(1, 2), st.integers(1, 6))),
        drop_last=draw(st.booleans()),
        sampler=draw(st.sampled_from(SAMPLERS)),
        workers=draw(st.sampled_from((0, 2))),
        skip=draw(st.booleans()),
        bad=draw(st.frozensets(st.integers(0, MOST - 1), max_size=4 if kind == "photos" else 1)),  # else none traces it
        depth=draw(st.integers(1, 4)),
        eager=draw(st.booleans()),
        kind=kind,
    )


def steps(backends: tuple[str, ...], planted: st.SearchStrategy[Step], knobs: st.SearchStrategy[Step]) -> Any:
    which = st.integers(0, 1)
    asked = st.builds(lambda run, count: Step("next", (run, count)), which, st.integers(1, 4))
    on_a_run = st.builds(lambda what, run: Step(what, (run,)), st.sampled_from(("finish", "drop")), which)
    switched = st.sampled_from(backends).map(lambda name: Step("switch", (name,)))
    plain = st.sampled_from(
        ("settle", "begin", "begin", "save", "save", "resume", "resume", "load", "release", "restart")
    )
    numbered = st.integers(0, 3).map(lambda epoch: Step("set_epoch", (epoch,)))
    one = st.one_of(plain.map(Step), asked, switched, planted, asked, on_a_run, knobs, planted, asked, numbered)
    return st.lists(one, min_size=8, max_size=20).map(lambda rest: [Step("begin"), *rest])


def plants(latest: int, what: tuple[str, ...]) -> st.SearchStrategy[Step]:
    after, gap, one = st.integers(0, latest), st.integers(0, 4), st.sampled_from(what)
    alone = st.builds(lambda *args: Step("plant", args), after, one)
    return st.one_of(alone, st.builds(lambda *args: Step("burst", args), after, one, gap, one))


def turns(values: dict[str, tuple[int, ...]]) -> st.SearchStrategy[Step]:
    every = [Step("turn", (knob, value)) for knob, several in values.items() for value in several]
    return st.sampled_from(every)


# ---- playing them


class Watchdog:
    """Ends the process with every thread's stack and the schedule, if one schedule takes for ever."""

    def __init__(self) -> None:
        self._schedule: str | None = None
        self._deadline = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def over(self, schedule: str) -> Iterator[None]:
        self._schedule, self._deadline = schedule, time.monotonic() + HANGS
        try:
            yield
        finally:
            self._schedule = None

    def _watch(self) -> None:
        while not self._stop.wait(1):
            schedule = self._schedule
            if schedule is not None and time.monotonic() > self._deadline:
                print(f"\nthis schedule hangs:\n{schedule}\n", file=sys.__stderr__, flush=True)
                faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
                os._exit(3)


def play(
    usual: int,
    long: int,
    kind: str,
    schedules: st.SearchStrategy[Any],
    one: Callable[[Config, list[Step], Totals], None],
) -> Totals:
    """Play as many schedules as are usual, or those of the long run."""
    wanted, totals, begun = effort(), Totals(), time.monotonic()
    count = long if wanted.long else usual

    with Watchdog() as watchdog:

        @hypothesis.settings(
            max_examples=count,
            derandomize=wanted.seed is None,
            database=None,
            deadline=None,
            print_blob=True,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(schedules)
        def run(schedule: tuple[Config, list[Step]]) -> None:
            with watchdog.over(repr(schedule)):
                one(*schedule, totals)

        if wanted.seed is not None:
            print(f"\n{kind}: to play these again, SCHEDULES=long:{wanted.seed}", flush=True)
            run = hypothesis.seed(wanted.seed)(run)
        run()
    seconds = time.monotonic() - begun
    print(f"\n{totals.schedules:,} schedules {kind}, {seconds:.0f} s: {totals}", flush=True)
    assert totals.schedules >= count
    return totals


def test_in_process_engines(
    samples: Kinds,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    stages: list[FakeStage] = []
    for name, spec in specs(lambda: stages[-1]).items():
        monkeypatch.setitem(SPECS, name, spec)
    knobs = {"workers": (0, 1, 3), "prefetch": (1, 2, 5), "threads": (1, 2)}
    backends = (*BACKENDS, "synthetic")
    moments = (
        "interrupt",
        "interrupt",
        "interrupt",
        "built",
        *backends,
        *backends,
        *CALLS,
        "prefetch=1",
        "prefetch=3",
        "workers=1",
        "threads=3",
    )
    planted = plants(12, moments)
    schedules = st.tuples(configs(), steps(backends, planted, turns(knobs)))
    with ThreadPoolExecutor(1) as clicker, capsys.disabled():

        def one(config: Config, todo: list[Step], totals: Totals) -> None:
            stages[:] = [FakeStage(config, samples["photos"].dataset(()), clicker)]
            Machine(config, stages[-1], totals).play(todo)

        totals = play(500, 10_000, "with in-process engines", schedules, one)
    covers(totals, BACKENDS, 10)


@violent
@pytest.mark.parametrize(
    ("kinds", "usual", "long"), [(("photos",), 60, 1_000), (TRACED, 56, 800)], ids=["photos", "traced"]
)
def test_real_workers_dali_and_threads(
    kinds: tuple[str, ...],
    usual: int,
    long: int,
    samples: Kinds,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    backends = ("torchvision", "dali-cpu", "threads", "synthetic")
    moments = (
        "interrupt",
        "interrupt",
        "dali-cpu",
        "torchvision",
        "threads",
        "torchvision",
        "synthetic",
        "threads=2",
        "workers=0",
    )
    planted = plants(12, moments)
    schedules = st.tuples(configs(kinds), steps(backends, planted, turns({"threads": (1, 2), "workers": (0,)})))

    def one(config: Config, todo: list[Step], totals: Totals) -> None:
        stage = RealStage(config, samples[config.kind])
        try:
            Machine(config, stage, totals).play(todo)
        finally:
            stage.close()

    with capsys.disabled():
        totals = play(usual, long, f"on real workers, DALI and threads, {kinds[0]}", schedules, one)
    if kinds == TRACED:
        totals.skipped = max(1, totals.skipped)  # few schedules come to a damaged file; those of photos do
    covers(totals, ("torchvision", "dali-cpu", "threads"), 1, interrupts=not LOSES_LOCKS)


def covers(totals: Totals, backends: tuple[str, ...], least: int, *, interrupts: bool = True) -> None:
    found = dict(vars(totals))
    if not interrupts:
        assert found.pop("interrupts") == 0
    assert set(found.pop("decoders")) == set(backends)
    assert min(found.values()) >= least, found


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Kinds:
    """The samples of each kind of data set."""
    root = write(tmp_path_factory.mktemp("samples"))
    return {name: Samples(kind, root) for name, kind in KINDS.items()}
