"""The trainings of a sweep: of the presets (images, chain of transforms, loader, model, step), and of a notebook."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

from ..analysis.segments import IN_FLIGHT
from ..errors import MonitorError
from ..loaders import SwitchableLoader, switchable
from ..os_process import usable_cores
from ..runtime import monitor
from .presets import FUSED, Choice, Grid, Row, backend_of

if TYPE_CHECKING:
    from torch import nn


MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_ANGLE = 5  # degrees, either way
ENDLESS = 10_000_000  # samples of an epoch that no window comes to the end of
SEED = 0
RATE, MOMENTUM = 0.01, 0.9  # of SGD

Step = Callable[[Any], object]


@dataclass(frozen=True)
class Training:
    """A loader and what is done with each of its batches.

    Attributes:
        watched: the handle that ends the measuring of phases.
        keep: whether the loader is its owner's, who goes on with it.
        threads: of torch's operators before; 0: they were left as they are.
    """

    loader: SwitchableLoader
    step: Step
    watched: Any = None
    keep: bool = False
    threads: int = 0

    def end(self) -> None:
        """Give back workers, threads and memory."""
        if self.threads:
            torch.set_num_threads(self.threads)
        if self.watched is not None:
            self.watched.stop()
        if not self.keep:
            self.loader.release()


def device() -> torch.device:
    """Return where presets train."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def chain(row: Row) -> Any:
    """Return the transforms of a row, the same objects for every engine.

    The crop comes before the normalisation, which changes neither a pixel nor the work of the reading: DALI then does
    the whole chain.
    """
    last = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    if row.chain == "crop first":
        first = [transforms.RandomResizedCrop(row.crop), transforms.RandomHorizontalFlip()]
        return transforms.Compose([*first, *last])
    augmented = [
        one
        for _ in range(row.load)
        for one in (
            transforms.RandomHorizontalFlip(),
            transforms.RandomVerticalFlip(),
            transforms.RandomRotation(_ANGLE),
        )
    ]
    return transforms.Compose([*augmented, transforms.Resize(row.resize), transforms.CenterCrop(row.crop), *last])


def folder(data: Path) -> ImageFolder:
    """Return the images, a folder for each class.

    Raises:
        MonitorError: there are none.
    """
    try:
        return ImageFolder(data)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MonitorError(f"{data} is no folder of images in one folder per class ({error}).") from error


def prepare(row: Row, grid: Grid, data: Path) -> Training:
    """Return the training of one row of a preset.

    Raises:
        MonitorError: there is no such model, or the loader cannot be made.
    """
    where = device()
    images = ImageFolder(data, chain(row))
    if len(images) < row.batch:
        raise MonitorError(f"A batch of {row.batch} needs as many images, and there are {len(images)}.")
    # An epoch's beginning waits for the first batch: windows of some seconds lie within one epoch.
    sampler = RandomSampler(images, num_samples=None if grid.epochs else ENDLESS)
    workers = row.knobs["workers"]
    plain = DataLoader(
        images,
        batch_size=row.batch,
        sampler=sampler,
        num_workers=workers,
        prefetch_factor=row.knobs["prefetch"] if workers else None,
        persistent_workers=workers > 0,
        pin_memory=where.type == "cuda",
        drop_last=not grid.epochs,
    )
    loader = switchable(plain, name=row.name, seed=SEED)
    if loader.knobs.threads is not None:
        loader.set(threads=row.knobs["threads"], prefetch=row.knobs["prefetch"])
    threads = 0 if where.type == "cuda" else torch.get_num_threads()
    if threads:
        torch.set_num_threads(_training_threads(usable_cores()))
    torch.manual_seed(SEED)
    network = model(str(row.model), len(images.classes)).to(where)
    optimizer = torch.optim.SGD(network.parameters(), RATE, MOMENTUM)
    return Training(loader, supervised(network, optimizer, where), monitor.watch(network, optimizer), threads=threads)


def _training_threads(cores: int) -> int:
    """Threads of torch's operators where a preset trains on the CPU: half of the cores.

    With a thread on every core, operators wait for threads whose core a worker has: steps then vary fivefold.
    """
    return max(1, cores // 2)


def model(name: str, classes: int) -> nn.Module:
    """Return a model of torchvision with random weights.

    Raises:
        MonitorError: torchvision has none of that name.
    """
    try:
        made: nn.Module = models.get_model(name, weights=None, num_classes=classes)
    except ValueError as error:
        raise MonitorError(f"torchvision has no model {name!r}.") from error
    return made


def supervised(network: nn.Module, optimizer: torch.optim.Optimizer, where: torch.device | None) -> Step:
    """Return a step of supervised training: copy, forward, cross entropy, backward, update."""

    def step(batch: Any) -> None:
        images, labels = batch
        with monitor.phase("copy"):
            images = images.to(where, non_blocking=True)
            labels = labels.to(where, non_blocking=True)
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# ---- The loop of one row: it trains, switches engines, and measures windows of what is delivered.

CHANGE_S = 180.0  # longest that another engine may take to deliver its first batch
_MOST_WARM_UP = 64  # batches that are left out at most before a window


class _CellFailed(MonitorError):
    """An engine of a row cannot be measured; the message is the cause. The other cells go on."""


@dataclass(frozen=True)
class Counted:
    """The samples delivered by the loader's own counters: `replaced` ones were replayed."""

    batches: int = 0
    samples: int = 0
    replaced: int = 0
    skipped: int = 0
    decoded: dict[str, int] = field(default_factory=dict)

    def since(self, before: Counted) -> Counted:
        decoded = {name: count - before.decoded.get(name, 0) for name, count in self.decoded.items()}
        return Counted(
            self.batches - before.batches,
            self.samples - before.samples,
            self.replaced - before.replaced,
            self.skipped - before.skipped,
            {name: count for name, count in decoded.items() if count},
        )


@dataclass(frozen=True)
class Timed:
    """One window: its mark, s of wall time until its last step was done, and what was delivered in it."""

    label: str
    seconds: float
    steps: int
    counted: Counted
    epochs: int  # whole ones; 0: a window of some seconds


class TrainingLoop:
    """Trains on one loader for as long as it is asked to.

    `tell` is called between steps, for the progress. `failed`: a step failed with the engine in use; its batches are
    then taken without a step until another engine delivers.
    """

    def __init__(self, training: Training, tell: Callable[[], None], *, failed: bool = False) -> None:
        self._failed = failed
        self.loader = training.loader
        self._training = training
        self._tell = tell
        self._batches: Iterator[Any] | None = None
        self._before = Counted()  # what was delivered in epochs that have ended
        self._ended = 0  # epochs that came to their end
        self._entered: Any = None  # the newest epoch whose counts are in `_before`

    def change(self, engine: str) -> None:
        """Go on with an engine, and train until what was loaded in advance is used up.

        Raises:
            _CellFailed: it cannot run here, did not start, or delivered nothing in `CHANGE_S`.
        """
        loader, name = self.loader, backend_of(engine)
        found = loader.backends.get(name)
        if found is None or not found.available:
            reason = (
                f"there is no such engine; there are {', '.join(loader.backends)}" if found is None else found.reason
            )
            raise _CellFailed(f"{name}: {reason}")
        until = time.monotonic() + CHANGE_S
        if loader.switch_state.active != name:
            loader.switch(name)
        self._hand_over()
        while loader.backend != name or loader.switch_state.wanted is not None:
            clicks = loader.clicks
            if clicks and clicks[-1].target == name and clicks[-1].outcome == "failed":
                raise _CellFailed(f"{name} did not start: {clicks[-1].message}")
            if time.monotonic() > until:
                raise _CellFailed(f"{name} delivered nothing within {CHANGE_S:g} s of the switch.")
            self._hand_over()
        self._failed = False
        for _ in range(self.warm_up(name)):
            self._step()
        self._check(name)

    def warm_up(self, name: str) -> int:
        """Return how many batches of an engine were, or may have been, loaded before its speed shows."""
        knobs = self.loader.knobs
        ahead = knobs.workers * knobs.prefetch if name in ("torchvision", "ray") else knobs.prefetch
        return min(max(IN_FLIGHT, ahead) + 1, _MOST_WARM_UP)

    def measure(self, engine: str, label: str, seconds: float, steps: int) -> Timed:
        """Measure a window of at least so many seconds and steps, marked with `label` in the recording.

        Raises:
            _CellFailed: another engine delivered in it.
        """
        self._finish_device()
        before, ended, done = self._counted(), self._ended, 0
        began = time.monotonic()
        while done < steps or time.monotonic() - began < seconds:
            batch = self._next()
            if not done:
                monitor.mark(label)  # here, because the step before ends where this batch is asked for
            self._work(batch)
            done += 1
        return self._timed(engine, label, began, done, before, 0 if ended == self._ended else self._ended - ended)

    def measure_epochs(self, engine: str, label: str, epochs: int) -> Timed:
        """Measure a window of whole epochs, which begins with a new iteration."""
        self._batches = None
        self._enter_ended()
        self._finish_device()
        before, done = self._counted(), 0
        began = time.monotonic()
        for number in range(epochs):
            for batch in self.loader:
                if not done:
                    monitor.mark(label)
                self._work(batch)
                done += 1
            if not done:
                raise _CellFailed(f"epoch {number + 1} of {backend_of(engine)} delivered no batch.")
            self._enter_ended()
        return self._timed(engine, label, began, done, before, epochs)

    def _timed(self, engine: str, label: str, began: float, steps: int, before: Counted, epochs: int) -> Timed:
        self._finish_device()
        seconds = time.monotonic() - began
        self._check(backend_of(engine))
        return Timed(label, seconds, steps, self._counted().since(before), epochs)

    def _check(self, name: str) -> None:
        if self.loader.backend != name:
            raise _CellFailed(f"{name} could not go on: {self.loader.switch_state.status}")

    def _hand_over(self) -> None:
        batch = self._next()
        if not self._failed:
            self._work(batch)

    def _step(self) -> None:
        self._work(self._next())

    def _next(self) -> Any:
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.loader)
            try:
                return next(self._batches)
            except StopIteration:
                self._batches = None
                self._enter_ended()
        raise _CellFailed("an epoch delivered no batch.")

    def _work(self, batch: Any) -> None:
        self._training.step(batch)
        self._tell()

    def _finish_device(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def _enter_ended(self) -> None:
        """Note that the newest epoch has ended: later ones count on from what it delivered."""
        newest = self.loader.newest
        if newest is not None and newest is not self._entered:
            self._before = self._counted()
            self._ended += newest.finished
            self._entered = newest

    def _counted(self) -> Counted:
        newest, before = self.loader.newest, self._before
        if newest is None or newest is self._entered:
            return before
        decoded = dict(before.decoded)
        for name, count in newest.decoded.items():
            decoded[name] = decoded.get(name, 0) + count
        return Counted(
            before.batches + newest.batches,
            before.samples + newest.samples,
            before.replaced + newest.replaced,
            before.skipped + newest.skipped,
            decoded,
        )


# ---- The sweep of a loader and a training that a person has.

KNOBS = ("workers", "prefetch", "threads")


def own_grid(loader: SwitchableLoader, choice: Choice, knobs: Sequence[Mapping[str, int]] | None) -> Grid:
    """Return a row for each setting of the knobs; without named engines, those that can run and ask no question.

    Raises:
        MonitorError: a knob is none.
    """
    found = loader.backends
    able = [name for name, one in found.items() if one.available and one.confirm is None]
    dali = next((name for name in ("dali-gpu", "dali-cpu") if name in able), "dali-cpu")
    words = {"dali": dali, "dali-fused": f"{dali} {FUSED}", "native": "torchvision"}
    engines = tuple(dict.fromkeys(words.get(one, one) for one in choice.engines or able))
    rows = []
    for setting in knobs or ({},):
        if unknown := sorted(set(setting) - set(KNOBS)):
            raise MonitorError(f"There is no knob {unknown[0]!r}. There are: {', '.join(KNOBS)}.")
        words_of = ", ".join(f"{name} {setting[name]}" for name in KNOBS if name in setting)
        rows.append(Row(words_of or loader.name, engines, knobs=dict(setting)))
    passes, seconds = choice.times()
    return Grid(
        "own",
        tuple(rows),
        passes=passes,
        seconds=seconds,
        epochs=choice.epochs,
        short=choice.short,
        quick=choice.quick,
        images=len(loader.dataset),
        data=loader.name,
    )


def own_training(
    loader: SwitchableLoader, step: Callable[[Any], object] | None, model: Any, optimizer: Any
) -> Callable[[Row], Training]:
    """Return what prepares a row: its knobs are set; the loader goes on where it was.

    Raises:
        MonitorError: there is neither a step nor a model with its optimizer.
    """
    if step is None and (model is None or optimizer is None):
        raise MonitorError("A sweep of your own needs the step of your loop, step=…, or model= and optimizer=.")
    where = None if model is None else next(model.parameters()).device

    def prepare(row: Row) -> Training:
        if row.knobs:
            loader.set(**row.knobs)
        watched = None if model is None else monitor.watch(model, optimizer)
        return Training(loader, step or supervised(model, optimizer, where), watched, keep=True)

    return prepare


@contextmanager
def as_before(loader: SwitchableLoader) -> Iterator[None]:
    """Give a loader back its engine and its knobs afterwards."""
    engine, knobs = loader.backend, loader.knobs
    fused = loader.fused_decode
    try:
        yield
    finally:
        if loader.fused_decode != fused:
            loader.fused_decode = fused
        now = loader.knobs._asdict()
        changed = {name: value for name, value in knobs._asdict().items() if value is not None and now[name] != value}
        if changed:
            loader.set(**changed)
        loader.switch(engine)
