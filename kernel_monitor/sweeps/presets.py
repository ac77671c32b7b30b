"""The grids that have a name. `docs/howto/sweep.md` says what each is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import MonitorError
from ..report.formats import plural
from .grid import FUSED, Grid, Row

PRESETS = {
    "sagemaker-dali": "ResNet18, 50 and 152 at four augmentation loads, torchvision beside DALI",
    "resnet50-case-study": "ResNet50: native, synthetic, DALI, DALI with fused decode",
    "workers": "workers or threads × prefetch, torchvision beside DALI",
}
MODELS = ("resnet18", "resnet50", "resnet152")
LOADS = (1, 4, 8, 12)
PREFETCH = (2, 4)
SIZES = {False: (256, 224), True: (73, 64)}
"""Pixels of resize and crop, by whether the sweep is short: the same share of the image."""
BATCH = {"sagemaker-dali": 32, "resnet50-case-study": 128, "workers": 32}
SHORT_BATCH = 8
SECONDS, PASSES = {False: 20.0, True: 4.0}, {False: 2, True: 4}
"""Of a window at least, and how often a cell is measured: without a GPU, training and loading share the cores, and the
steps vary more."""
QUICK_SECONDS, QUICK_PASSES = {False: 3.0, True: 2.0}, 2
QUICK_LOADS = (LOADS[0], LOADS[-1])
"""Of the quick form, in which a table takes two or three minutes: less exact, and its page says so."""
MOST_WORKERS = 16


@dataclass(frozen=True)
class Choice:
    """What a person may choose of a preset; None and 0: as the preset has it."""

    models: Sequence[str] | None = None
    loads: Sequence[int] | None = None
    engines: Sequence[str] | None = None
    batch: int = 0
    workers: int = 0
    seconds: float = 0.0
    epochs: int = 0
    passes: int = 0
    short: bool = False
    quick: bool = False

    def times(self) -> tuple[int, float]:
        """Passes, and s of a window."""
        passes = QUICK_PASSES if self.quick else PASSES[self.short]
        seconds = (QUICK_SECONDS if self.quick else SECONDS)[self.short]
        return self.passes or passes, self.seconds or seconds


def preset(name: str, choice: Choice, *, cores: int, gpu: bool, images: int, data: str) -> Grid:
    """The grid of a preset on a machine with so many usable `cores`, with a GPU or without.

    Raises:
        MonitorError: there is no such preset, or a choice is none.
    """
    if name not in PRESETS:
        raise MonitorError(f"There is no sweep {name!r}. There are: {', '.join(PRESETS)}.")
    for what in ("seconds", "epochs", "passes", "batch", "workers"):
        value = getattr(choice, what)
        if value < 0:
            raise MonitorError(f"--{what} must not be negative, and {value:g} is.")
    if any(load < 0 for load in choice.loads or ()):
        raise MonitorError("--loads are 0 or more: how often flips and rotation are repeated.")
    dali = "dali-gpu" if gpu else "dali-cpu"
    batch = choice.batch or (SHORT_BATCH if choice.short else BATCH[name])
    passes, seconds = choice.times()
    return Grid(
        preset=name,
        rows=_rows(name, choice, dali, batch, choice.workers or max(1, min(cores, MOST_WORKERS)), cores),
        passes=passes,
        seconds=seconds,
        epochs=choice.epochs,
        short=choice.short,
        quick=choice.quick,
        empty_epoch=name == "sagemaker-dali",
        images=images,
        data=data,
    )


def _rows(name: str, choice: Choice, dali: str, batch: int, workers: int, cores: int) -> tuple[Row, ...]:
    resize, crop = SIZES[choice.short]
    # An engine between those two, because a change of the fused decode would otherwise come in the middle of a run.
    usual = ("torchvision", dali, "synthetic", f"{dali} {FUSED}") if name == "resnet50-case-study" else ()
    engines = tuple(dict.fromkeys(_engine(one, dali) for one in choice.engines or usual or ("torchvision", dali)))
    if name == "resnet50-case-study":
        return tuple(
            Row(model, engines, model, "crop first", batch=batch, resize=resize, crop=crop, knobs=_knobs(workers, 2))
            for model in choice.models or ("resnet50",)
        )
    if name == "workers":
        return tuple(
            Row(
                f"{'' if model is None else f'{model} · '}{plural(count, 'worker')}, prefetch {ahead}",
                engines,
                model or "resnet18",
                "repeated",
                load,
                batch,
                resize,
                crop,
                _knobs(count, ahead),
            )
            for model in choice.models or (None,)
            for load in choice.loads or (1,)
            for count in _counts(cores)
            for ahead in PREFETCH
        )
    return tuple(
        Row(f"{model} · load {load}", engines, model, "repeated", load, batch, resize, crop, _knobs(workers, 2))
        for model in choice.models or MODELS
        for load in choice.loads or (QUICK_LOADS if choice.quick else LOADS)
    )


def _engine(name: str, dali: str) -> str:
    """`dali` and `dali-fused` as the engines of this machine; others as they are."""
    return {"dali": dali, "dali-fused": f"{dali} {FUSED}", "native": "torchvision"}.get(name, name)


def _knobs(workers: int, prefetch: int) -> dict[str, int]:
    """As many threads of DALI as workers of torchvision."""
    return {"workers": workers, "prefetch": prefetch, "threads": workers}


def _counts(cores: int) -> list[int]:
    """From one worker to twice the cores, in powers of two of the cores."""
    wanted = {1, cores // 4, cores // 2, cores, 2 * cores}
    return sorted(count for count in wanted if 1 <= count <= 4 * MOST_WORKERS)
