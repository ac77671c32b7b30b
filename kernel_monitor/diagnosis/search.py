"""Which settings of a loader *Tune* measures next, by what those before them reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from ..analysis.advice import CLEAR
from .trials import THREADED, TORCHVISION, Candidate, Trial, least_saved, surely_saved

STEP = 0.03  # a step of a knob that gains less than this share of the rate is the last one
NEAR = 0.85  # engines that may reach this share of the best rate have their threads tried, too
ALIKE = 0.98  # of settings that reach this share of the best rate, the one that takes least of the machine is chosen
CONTENDERS = (4, 2)  # how many settings are measured again, in each round; the one in use besides
FEWEST_MOST = 32  # workers that may be tried on any machine: those that wait for a disk or a network need no core
_THREADS = 16  # of an engine, where it begins
_LARGE = 8  # cores; on larger machines steps are larger


class Search:
    """The settings that were measured, and those to be measured next.

    Args:
        base: the setting in use; it is measured first.
        engines: those that can run here.
        cores: that this process may use.
        prefetch: batches in flight, as it is now.
        threads: returns those that an engine has where a candidate names none.
        refused: why a candidate is not to be tried; None where it may be.
    """

    def __init__(
        self,
        base: Candidate,
        engines: Sequence[str],
        cores: int,
        prefetch: int,
        threads: Callable[[], int],
        refused: Callable[[Candidate], str | None] = lambda _: None,
    ) -> None:
        self.base = base
        self.measured: dict[Candidate, Trial] = {}
        self.refusals: dict[Candidate, str] = {}
        self._engines, self._cores = engines, cores
        self._prefetch, self._threads, self._refused = prefetch, threads, refused

    def candidates(self) -> Iterator[Candidate]:
        """Return what to try, one after the other; each is to be in `measured` before the next one is asked for.

        First more and fewer workers of `torchvision`, as long as they can be forked fast: once DALI runs, they are not.
        Then the other engines; then more and fewer threads of those that come near the best; then more in flight.
        """
        base = self.base
        yield base
        workers = base._replace(engine=TORCHVISION)
        if TORCHVISION in self._engines:
            yield from self._tried(workers)
            if self.rate(workers) > NEAR / 2 * self.rate(base):
                most = max(FEWEST_MOST, 2 * self._cores)
                yield from self._climb(workers, "workers", least=0 if base.workers == 0 else 1, most=most)
        for engine in self._engines:
            if engine != TORCHVISION:
                yield from self._tried(self._with_threads(engine))
        top = self.rate(self.top)
        for engine in self._engines:
            threaded = self._with_threads(engine)
            # At most, twice the threads bring twice the images.
            possible = self.rate(threaded) * max(1.0, self._cores / (threaded.threads or self._threads()))
            if engine in THREADED and possible >= NEAR * top:
                yield from self._climb(threaded, "threads", least=1, most=2 * self._cores)
        for factor in (2, 4):
            before = self.top
            more = before._replace(prefetch=factor * self._prefetch)
            if before.engine == TORCHVISION and before.workers == 0:
                return
            yield from self._tried(more)
            if self.top == before:
                return

    def contenders(self, most: int) -> list[Candidate]:
        """Return the settings to be measured again: the best ones, as far as their spreads meet, and the one in use.

        One alone: it is decided.
        """
        top = self.top
        best = self.measured[top]
        meet = [
            candidate
            for candidate, trial in self._usable.items()
            if candidate not in (top, self.base) and least_saved(trial, best) < CLEAR and trial.rate > NEAR * best.rate
        ]
        found = [top, *sorted(meet, key=lambda candidate: -self.rate(candidate))][:most]
        base = self._usable.get(self.base)
        if base is not None and self.base not in found and least_saved(base, best) < 2 * STEP:
            found.append(self.base)
        return found

    @property
    def top(self) -> Candidate:
        """The setting of the highest rate."""
        return max(self._usable, key=self.rate, default=self.base)

    @property
    def best(self) -> Candidate:
        """The setting to keep: the one in use where no other is surely faster; the smallest of those that are alike."""
        top = self.top
        usable = self._usable
        base, best = usable.get(self.base), usable.get(top)
        if best is None:
            return self.base
        alike = [candidate for candidate, trial in usable.items() if trial.rate >= ALIKE * best.rate]
        if base is not None:
            alike = [candidate for candidate in alike if surely_saved(base, usable[candidate]) >= CLEAR]
            if surely_saved(base, best) < CLEAR or not alike:
                return self.base
        return min(alike, key=lambda candidate: (self._size(candidate), -self.rate(candidate)))

    def rate(self, candidate: Candidate) -> float:
        """Images/s of a candidate; 0 where it has none."""
        trial = self.measured.get(candidate)
        return 0.0 if trial is None or trial.problem is not None else trial.rate

    @property
    def _usable(self) -> dict[Candidate, Trial]:
        return {candidate: trial for candidate, trial in self.measured.items() if trial.problem is None}

    def _size(self, candidate: Candidate) -> float:
        """Return how much of the machine a candidate may take: its processes and threads, and batches in flight."""
        if candidate.engine == TORCHVISION:
            return candidate.workers + 0.1 * bool(candidate.prefetch)
        return (candidate.threads or self._cores) + 0.1 * bool(candidate.prefetch)

    def _with_threads(self, engine: str) -> Candidate:
        """Return an engine with as many threads as there are cores, or as it has."""
        many = min(self._cores, _THREADS)
        usual = self.base.threads or min(self._cores, self.base.workers or 4)
        return self.base._replace(engine=engine, threads=self.base.threads if usual >= many else many)

    def _tried(self, candidate: Candidate) -> Iterator[Candidate]:
        if candidate in self.measured:
            return
        why = self._refused(candidate)
        if why is None:
            yield candidate
        else:
            self.refusals[candidate] = why

    def _climb(
        self, start: Candidate, knob: Literal["workers", "threads"], *, least: int, most: int
    ) -> Iterator[Candidate]:
        """Multiply a knob as long as that gains, else divide it; then try between the best and its neighbours.

        More workers than two for each core are first made fewer: that costs no start of processes.
        """
        factor = 2 if self._cores <= _LARGE else 4
        first: int = start.workers if knob == "workers" else start.threads or self._threads()
        tried = [first]

        def at(value: int) -> Candidate:
            if value == first:
                return start
            return start._replace(workers=value) if knob == "workers" else start._replace(threads=value)

        def more(value: int) -> int:
            return max(value, min(most, max(value + 1, factor * value)))

        def fewer(value: int) -> int:
            return min(value, max(least, value // factor))

        # A rate rises to its best and then falls: where half as many lose nothing, twice as many gain nothing.
        many = knob == "workers" and first > 2 * self._cores
        for following in (fewer, more) if many else (more, fewer):
            value = first
            while (new := following(value)) != value:
                yield from self._tried(at(new))
                tried.append(new)
                if self.rate(at(new)) < (1 + STEP) * self.rate(at(value)):
                    break
                value = new
            if value != first or (many and self.rate(at(new)) > (1 - STEP) * self.rate(start)):
                break
        tried.sort(key=lambda value: self.rate(at(value)))
        best = tried.pop()
        below = max((value for value in tried if value < best), default=best)
        above = min((value for value in tried if value > best), default=best)
        for between in ((below + best) // 2, (best + above) // 2):
            yield from self._tried(at(between))
