"""The order in which *Tune* tries settings, on machines that are formulas: what it finds, and after how many tries."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kernel_monitor.diagnosis.search import Search
from kernel_monitor.diagnosis.trials import Candidate, Trial

Rate = Callable[[Candidate], float]
CPU = ["torchvision", "dali-cpu", "threads"]


def processes(candidate: Candidate, cores: int, each: float) -> float:
    """Images/s of workers that compute: they share the cores, and lose a little for each one too many."""
    workers = candidate.workers
    return each * (0.7 if workers == 0 else min(workers, cores) - 0.04 * max(0, workers - cores))


def threads(candidate: Candidate, cores: int, each: float, usual: int) -> float:
    many = candidate.threads or usual
    return each * (min(many, cores) - 0.05 * max(0, many - cores))


def machine(
    cores: int, decode: float, dali: float, step: float = 1e9, *, disk: float = 0.0, jitter: float = 0.0
) -> Rate:
    """The rate of each setting.

    Args:
        decode: images/s of one core with torchvision; `dali`: with DALI.
        step: images/s that the loop takes at most.
        disk: of a worker's time for an image, the share in which it waits for the disk.
        jitter: the share that more batches in flight bring.
    """

    def rate(candidate: Candidate) -> float:
        if candidate.engine == "torchvision":
            waiting = min(candidate.workers or 1, cores / (1 - disk)) * decode * (1 - disk)
            found = waiting if disk > 0 else processes(candidate, cores, decode)
        else:
            engine = dali if candidate.engine == "dali-cpu" else 0.8 * dali
            found = threads(candidate, cores, engine, min(cores, 4))
        if candidate.prefetch is not None:
            found *= 1 + jitter
        return min(found, step)

    return rate


LOADS: dict[str, tuple[int, Candidate, Rate]] = {
    "two cores, two workers": (2, Candidate("torchvision", 2, None, None), machine(2, 100, 130)),
    "no workers": (2, Candidate("torchvision", 0, None, 2), machine(2, 100, 90)),
    "too many workers": (2, Candidate("torchvision", 12, None, None), machine(2, 100, 40)),
    "a slow step": (8, Candidate("torchvision", 4, None, None), machine(8, 100, 130, step=150)),
    "eight cores, one worker": (8, Candidate("torchvision", 1, None, None), machine(8, 100, 80)),
    "64 cores, four workers": (64, Candidate("torchvision", 4, None, None), machine(64, 100, 30)),
    "64 cores, DALI": (64, Candidate("torchvision", 4, None, None), machine(64, 100, 300)),
    "a slow disk": (2, Candidate("torchvision", 2, None, None), machine(2, 100, 20, disk=0.9)),
    "batches of different cost": (4, Candidate("torchvision", 4, None, None), machine(4, 100, 60, jitter=0.2)),
    "DALI already": (4, Candidate("dali-cpu", 2, None, 1), machine(4, 100, 130)),
}


def tune(
    base: Candidate, cores: int, rate: Rate, *, noise: float = 0.0, engines: list[str] = CPU, **more: object
) -> Search:
    draw = random.Random(7)
    search = Search(base, engines, cores, 2, lambda: min(cores, 4), **more)  # type: ignore[arg-type]

    def look(candidate: Candidate, spread: float) -> None:
        found = rate(candidate) * (1 + draw.gauss(0, spread))
        wide = 1.35 * spread  # of the quartiles of single seconds, whose mean over four has this spread
        search.measured[candidate] = Trial(
            candidate.engine, rate=found, rate_low=found * (1 - wide), rate_high=found * (1 + wide), seconds=4.0
        )

    for candidate in search.candidates():
        assert candidate not in search.measured
        look(candidate, noise)
    for most in (4, 2):
        contenders = search.contenders(most)
        for candidate in contenders if len(contenders) > 1 else []:
            look(candidate, noise / 2)
    return search


def best_of_all(base: Candidate, cores: int, rate: Rate) -> float:
    workers = [base._replace(engine="torchvision", workers=many, prefetch=p) for many in range(80) for p in (None, 4)]
    threaded = [base._replace(engine=e, threads=t) for e in ("dali-cpu", "threads") for t in range(1, 2 * cores + 1)]
    return max(map(rate, [*workers, *threaded]))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_it_finds_95_percent_of_the_best_of_all_settings(load: str, noise: float) -> None:
    cores, base, rate = LOADS[load]
    search = tune(base, cores, rate, noise=noise)
    assert rate(search.best) >= 0.95 * best_of_all(base, cores, rate)
    assert len(search.measured) <= 18
    assert next(iter(search.measured)) == base
    assert search.best in search.measured


@pytest.mark.parametrize("load", LOADS)
def test_what_it_keeps_is_not_slower_than_before(load: str) -> None:
    cores, base, rate = LOADS[load]
    assert rate(tune(base, cores, rate, noise=0.05).best) >= 0.97 * rate(base)


def test_where_nothing_is_faster_the_setting_in_use_stays() -> None:
    """The loop is the limit: no setting changes that."""
    base = Candidate("torchvision", 3, None, None)
    search = tune(base, 8, machine(8, 100, 130, step=90), noise=0.03)
    assert search.best == base


def test_of_settings_that_are_alike_it_takes_the_one_that_needs_least() -> None:
    base = Candidate("torchvision", 1, None, None)
    search = tune(base, 16, machine(16, 100, 10, step=350), engines=["torchvision"])
    assert search.best.workers <= 8
    assert search.best.prefetch is None


def test_what_is_refused_is_not_tried_and_nothing_larger_either() -> None:
    base = Candidate("torchvision", 2, None, None)
    search = tune(
        base,
        32,
        machine(32, 100, 1),
        engines=["torchvision"],
        refused=lambda candidate: "no memory" if candidate.workers > 8 else None,
    )
    assert max(candidate.workers for candidate in search.measured) == 8
    assert search.best.workers == 8
    assert set(search.refusals.values()) == {"no memory"}


def test_an_engine_that_fails_is_not_climbed_and_never_chosen() -> None:
    base = Candidate("torchvision", 2, None, 2)
    search = Search(base, CPU, 2, 2, lambda: 2)
    for candidate in search.candidates():
        rate = machine(2, 100, 400)(candidate)
        failed = "no such operator" if candidate.engine == "dali-cpu" else None
        search.measured[candidate] = Trial(candidate.engine, rate=rate, rate_low=rate, rate_high=rate, problem=failed)
    assert [one for one in search.measured if one.engine == "dali-cpu"] == [base._replace(engine="dali-cpu")]
    assert search.best.engine == "threads"
