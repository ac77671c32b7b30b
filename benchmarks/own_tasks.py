"""The comparison of engines on data sets of other tasks than classification; `benchmarks.own_data` runs it.

Each data set of `benchmarks.task_data` is iterated by the plain DataLoader, by `torchvision`, `dali-cpu` and `threads`,
in turns within one process. Where an engine is refused, or gives up, its sentence stands in place of the figure, and
its bar is missed. *CPU ms* is the CPU time of loop and workers for a sample, which other programs disturb less than the
rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode

from kernel_monitor.errors import BackendUnavailable
from kernel_monitor.loaders import SwitchableLoader, switchable

from . import task_data
from .common import Bar, spread, switch_and_settle
from .loaders import Contestant, epoch

SEGMENTATION, DETECTION, MULTI_CROP = "segmentation", "detection", "multi-crop"
KINDS = (SEGMENTATION, DETECTION, MULTI_CROP)
PLAIN, TORCHVISION, DALI, THREADS = "DataLoader", "torchvision", "dali-cpu", "threads"
ENGINES = (DALI, THREADS)
LEAST = {(SEGMENTATION, DALI): 1.2, (SEGMENTATION, THREADS): 1.2, (MULTI_CROP, DALI): 1.3, (MULTI_CROP, THREADS): 1.3}
"""The least ratio of the samples/s of an engine to those of the plain DataLoader."""


class Task(NamedTuple):
    """A data set and the DataLoader that its users would make.

    Attributes:
        kind: one of `KINDS`.
        name: of the data set.
        dataset: the data set.
        batch: samples in a batch.
        batches: number of batches in an epoch.
        collate: the DataLoader's `collate_fn`; None: torch's own.
        count: returns the number of samples in a batch.
    """

    kind: str
    name: str
    dataset: Dataset[Any]
    batch: int
    batches: int
    count: Callable[[Any], int]
    collate: Callable[[list[Any]], Any] | None = None

    @property
    def samples(self) -> int:
        """Number of samples in an epoch."""
        return self.batch * self.batches

    def loader(self, workers: int) -> DataLoader[Any]:
        """Return a new DataLoader."""
        return DataLoader(
            self.dataset,
            batch_size=self.batch,
            sampler=RandomSampler(self.dataset, num_samples=self.samples),  # type: ignore[arg-type]
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=self.collate,
        )


def tasks(kinds: list[str], photographs: Path, scenes: Path) -> Iterator[Task]:
    """Yield the data sets of these kinds: over a demo set, and over a folder that `street_scenes` has made."""
    if SEGMENTATION in kinds:
        for name, dataset in (
            ("segmentation, v2", task_data.StreetScenes(scenes, task_data.segmentation_v2())),
            ("segmentation, by hand", task_data.StreetScenesByHand(scenes, task_data.segmentation_by_hand())),
        ):
            yield Task(SEGMENTATION, name, dataset, 8, 32, lambda batch: len(batch[0]))
    if DETECTION in kinds:
        boxes = task_data.Boxes([path for path, _ in ImageFolder(photographs).samples], task_data.detection())
        yield Task(DETECTION, "detection, v2", boxes, 8, 32, lambda batch: len(batch[0]), task_data.as_lists)
    if MULTI_CROP in kinds:
        for name, interpolation, colours in (
            ("multi-crop", InterpolationMode.BILINEAR, False),
            ("multi-crop, bicubic", InterpolationMode.BICUBIC, False),
            ("multi-crop of DINO", InterpolationMode.BICUBIC, True),
        ):
            views = task_data.multi_crop(photographs, interpolation, colours)
            yield Task(MULTI_CROP, name, views, 16, 20, lambda batch: len(batch[1]))


class Rates:
    """The samples/s of a task's contestants in each round, and why an engine has none.

    Attributes:
        refusals: the sentences, by engine; none as long as it takes part.
        taken: samples of the engines' epochs by decoder.
        reasons: samples of these epochs that were left to the data set's own code, by engine and reason.
        cpu_ms: CPU time per sample of this process and its workers, ms, in each round.
    """

    def __init__(self, task: Task, workers: int) -> None:
        self.task = task
        self.refusals: dict[str, str] = {}
        self.taken: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.rates: dict[str, list[float]] = {name: [] for name in (PLAIN, TORCHVISION, *ENGINES)}
        self.cpu_ms: dict[str, list[float]] = {name: [] for name in self.rates}
        self._lead = 2 * workers + 4
        self._plain = task.loader(workers)
        self._switched: dict[str, SwitchableLoader] = {
            name: switchable(task.loader(workers), name=f"{task.name}, {name}") for name in (TORCHVISION, *ENGINES)
        }
        for engine in ENGINES:
            availability = self._switched[engine].backends[engine]
            if not availability.available:
                self._refuse(engine, availability.reason)

    def start(self) -> None:
        """Start the workers of each, before DALI's threads run."""
        loaders: list[Any] = [self._plain, *self._switched.values()]
        for loader in loaders:
            next(iter(loader))

    def run(self, name: str, *, warm: bool = False) -> None:
        """Iterate an epoch of a contestant that still takes part; a `warm` one is not recorded."""
        switched = self._switched.get(name)
        if name != PLAIN and switched is None:
            return

        if name in ENGINES and switched is not None:
            try:
                switch_and_settle(switched, name)
            except (BackendUnavailable, SystemExit) as error:
                self._refuse(name, str(error))
                return
        loader: Any = self._plain if switched is None else switched
        before = cpu_seconds()
        found = epoch(Contestant(lambda: None, lambda: loader, self.task.count), self._lead, self.task.samples)
        if name in ENGINES and switched is not None:
            self.taken.update(switched.decoded())
            self.reasons.update(f"{name}: {fallback.reason}" for fallback in switched.fallbacks())
            if switched.backend != name:
                self._refuse(name, switched.switch_state.status)
                return
        if not warm:
            self.rates[name].append(found.rate)
            self.cpu_ms[name].append(1e3 * (cpu_seconds() - before) / found.samples)

    def close(self) -> None:
        """End workers and DALI's threads."""
        for loader in self._switched.values():
            loader.release()

    def _refuse(self, engine: str, sentence: str | None) -> None:
        self.refusals[engine] = sentence or f"{engine} gave up without a reason"
        self.rates[engine].clear()
        self.cpu_ms[engine].clear()
        self._switched.pop(engine).release()

    def show(self) -> list[Bar]:
        """Print the table's rows of this task; return its bars."""
        bars = []
        for name, rates in self.rates.items():
            label = f"{self.task.name}: {name}"
            least = LEAST.get((self.task.kind, name))
            if not rates:
                print(f"{label:36}  {self.refusals.get(name)}")
                if least is not None:
                    bars.append(Bar(f"{label} / {PLAIN}, which is refused", 0.0, least))
                continue
            median, lower, upper = spread(rates)
            row = f"{label:36}{median:9.1f}{f'{lower:.1f} to {upper:.1f}':>18}{spread(self.cpu_ms[name])[0]:8.1f}"
            if name != PLAIN:
                ratio, low, high = spread([a / b for a, b in zip(rates, self.rates[PLAIN], strict=True)])
                row += f"{ratio:9.3f}{f'{low:.3f} to {high:.3f}':>18}"
                if least is not None:
                    bars.append(Bar(f"{label} / {PLAIN}, quartiles {low:.3f} to {high:.3f}", ratio, least))
            print(row)
        if self.taken:
            decoded = ", ".join(f"{count:,} by {decoder}" for decoder, count in self.taken.items())
            print(f"{'':36}  decoded: {decoded}")
        for reason, count in self.reasons.most_common(3):
            print(f"{'':36}  {count:,} left to its own code: {reason}")
        return bars


def compare(
    kinds: list[str], photographs: Path, scenes: Path, workers: int, rounds: int
) -> tuple[list[Bar], dict[str, Any]]:
    """Measure and print; return the bars and the figures."""
    field = [Rates(task, workers) for task in tasks(kinds, photographs, scenes)]
    try:
        for one in field:
            one.start()
        for one in field:
            for name in tuple(one.rates):
                one.run(name, warm=True)
            print(f"warm: {one.task.name}", flush=True)
        for number in range(rounds):
            for one in field:
                for name in tuple(one.rates)[:: -1 if number % 2 else 1]:
                    one.run(name)
                figures = "  ".join(f"{name} {rates[-1]:.1f}" for name, rates in one.rates.items() if rates)
                print(f"round {number + 1}/{rounds}  {one.task.name}: {figures}", flush=True)
    finally:
        for one in field:
            one.close()
    print(f"\n{'samples/s':36}{'median':>9}{'quartiles':>18}{'CPU ms':>8}{'of plain':>9}{'quartiles':>18}")
    bars = [bar for one in field for bar in one.show()]
    return bars, {
        one.task.name: {"rates": one.rates, "cpu_ms": one.cpu_ms, "refusals": one.refusals, "decoded": one.taken}
        for one in field
    }


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its workers so far."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children(recursive=True)))
