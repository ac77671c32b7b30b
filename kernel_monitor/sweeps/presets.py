"""The grids that have a name. `docs/howto/sweep.md` says what each is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..errors import MonitorError

# ---- What a sweep measures: a grid of rows, each with the engines that are compared in it.

FUSED = "fused"
"""The word behind the name of a DALI engine that decodes only the region which the first crop keeps."""
Chain = Literal["repeated", "crop first", "own"]


@dataclass(frozen=True)
class Row:
    """One line of the table: one training on one chain of transforms, with its engines beside each other.

    Attributes:
        name: unique in its grid, such as `resnet18 · load 4`.
        engines: in the order in which the first pass takes them; `dali-cpu fused` is `dali-cpu` with its decode fused.
        model: of torchvision; None where the training is the user's own.
        chain: `repeated`: `load` times [horizontal flip, vertical flip, rotation], then resize, crop and normalise;
            `crop first`: random resized crop, flip, normalise.
        batch: samples in a batch.
        resize, crop: pixels: shorter side after the resize, side of what is delivered.
        knobs: `workers`, `prefetch`, `threads`, as far as they are set.
    """

    name: str
    engines: tuple[str, ...]
    model: str | None = None
    chain: Chain = "own"
    load: int = 0
    batch: int = 0
    resize: int = 0
    crop: int = 0
    knobs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """All rows of a sweep and how each of their cells is measured.

    Attributes:
        preset: name of the preset, or `own`.
        rows: in the order in which they are measured.
        passes: how often each engine of a row is measured; every second pass takes the engines backwards.
        seconds: of a window at least; not used with `epochs`.
        steps: of a window at least.
        epochs: whole epochs in a window; 0: windows of `seconds`.
        short: the small form for machines without a GPU.
        quick: the quick form, with few and short windows.
        images: samples of the data set.
        data: name of the folder of images, or `demo`.
    """

    preset: str
    rows: tuple[Row, ...]
    passes: int = 2
    seconds: float = 10.0
    steps: int = 12
    epochs: int = 0
    short: bool = False
    quick: bool = False
    images: int = 0
    data: str = ""

    def to_json(self) -> dict[str, Any]:
        made = asdict(self)
        made["rows"] = [{**row, "engines": list(row["engines"])} for row in made["rows"]]
        return made


def backend_of(engine: str) -> str:
    """Return the loader's name of an engine: `dali-cpu` of `dali-cpu fused`."""
    return engine.removesuffix(f" {FUSED}")


def fused_of(engine: str, row: Row) -> bool | None:
    """Return whether DALI is to fuse its decode for this engine; None where the row compares no fused one."""
    if not backend_of(engine).startswith("dali") or not any(other.endswith(f" {FUSED}") for other in row.engines):
        return None
    return engine.endswith(f" {FUSED}")


def order_of(row: Row, number: int) -> tuple[str, ...]:
    """Return the engines of a row in the order of its pass `number` (from 1): A B, then B A, so that drift hits all
    alike.
    """
    return row.engines if number % 2 else row.engines[::-1]


# ---- The published figures that a preset is measured beside, with the machines that they are of.


@dataclass(frozen=True)
class Published:
    """One published table: `cells` has by row and column what it says, `words` what can and cannot be compared."""

    title: str
    machine: str
    unit: str
    columns: tuple[str, ...]
    cells: dict[str, tuple[float, ...]]
    words: tuple[str, ...]
    images: str = ""


_SAGEMAKER = Published(
    title="DALI on SageMaker, as published",
    machine="8 vCPU and one V100; imagenette2 in full size, batch 32",
    unit="s per epoch",
    columns=("Trial A, torchvision", "Trial B, DALI"),
    cells={
        "resnet18 · load 1": (41.67, 21.3),
        "resnet18 · load 4": (49.95, 21.37),
        "resnet18 · load 8": (61.92, 21.08),
        "resnet18 · load 12": (77.82, 21.33),
        "resnet50 · load 1": (72.64, 46.94),
        "resnet50 · load 4": (75.21, 45.02),
        "resnet50 · load 8": (81.22, 46.29),
        "resnet50 · load 12": (88.89, 46.43),
        "resnet152 · load 1": (166.96, 119.96),
        "resnet152 · load 4": (169.68, 115.23),
        "resnet152 · load 8": (169.03, 117.73),
        "resnet152 · load 12": (173.18, 114.38),
    },
    words=(
        (
            "Comparable: how a column changes with the load. It grows where the loop waits for the processor, and "
            "stays level with an engine that is fast enough."
        ),
        "Not comparable: the seconds themselves. They are of another machine, other images and another size of epoch.",
        (
            "Not comparable: Trial B with Trial A. The published script never reset DALI's iterator and took the mean "
            "of two epochs, of which the second very probably delivered nothing. Doubled, ResNet152 with DALI is "
            "slower than with torchvision."
        ),
        (
            "Not comparable either: the work. Its DALI pipeline always flipped and rotated by exactly 5 degrees on a "
            "growing canvas, shuffled where torchvision did not, and cropped 256 and then 224. Here both engines "
            "compute the same crops, flips and angles of the same samples in the same order."
        ),
    ),
    images="imagenette2 (9,469 images in its training part)",
)
_CASE_STUDY = Published(
    title="ResNet50 with DALI, a case study, as published",
    machine="MXNet; DGX-2: 16 GPUs × 256, AWS P3: 8 × 192, TITAN RTX: 1 × 128",
    unit="images/s",
    columns=("native", "synthetic", "DALI", "DALI, fused decode"),
    cells={
        "DGX-2": (12586, 22656, 21034, 21592),
        "AWS P3": (5740, 10738, 10138, 10418),
        "TITAN RTX": (553, 585, 575, 578),
    },
    words=(
        (
            "Comparable: the share of the synthetic ceiling that a loader reaches. The published DALI reaches 95.3 % "
            "(DGX-2), 97.0 % (P3) and 98.8 % (TITAN RTX) of it with fused decode."
        ),
        "Not comparable: images/s. They are of other GPUs, another framework and mixed precision.",
    ),
)
PUBLISHED = {"sagemaker-dali": _SAGEMAKER, "resnet50-case-study": _CASE_STUDY}


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
_SHORT_BATCH = 8
SECONDS, PASSES = {False: 20.0, True: 4.0}, {False: 2, True: 4}
"""Of a window at least, and how often a cell is measured: without a GPU, training and loading share the cores, and the
steps vary more."""
QUICK_SECONDS, QUICK_PASSES = {False: 3.0, True: 2.0}, 2
_QUICK_LOADS = (LOADS[0], LOADS[-1])
"""Of the quick form, in which a table takes two or three minutes: less exact, and its page says so."""
_MOST_WORKERS = 16


@dataclass(frozen=True)
class Choice:
    """The choices that a person has for a preset; None and 0: as the preset has it."""

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
    """Return the grid of a preset on a machine with so many usable `cores`, with a GPU or without.

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
    batch = choice.batch or (_SHORT_BATCH if choice.short else BATCH[name])
    passes, seconds = choice.times()
    return Grid(
        preset=name,
        rows=_rows(name, choice, dali, batch, choice.workers or max(1, min(cores, _MOST_WORKERS)), cores),
        passes=passes,
        seconds=seconds,
        epochs=choice.epochs,
        short=choice.short,
        quick=choice.quick,
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
        from ..report.formats import plural  # imports NumPy, which the command line's help does without

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
        for load in choice.loads or (_QUICK_LOADS if choice.quick else LOADS)
    )


def _engine(name: str, dali: str) -> str:
    """Return the engines of this machine for `dali` and `dali-fused`; others as they are."""
    return {"dali": dali, "dali-fused": f"{dali} {FUSED}", "native": "torchvision"}.get(name, name)


def _knobs(workers: int, prefetch: int) -> dict[str, int]:
    """Return knobs with as many threads of DALI as workers of torchvision."""
    return {"workers": workers, "prefetch": prefetch, "threads": workers}


def _counts(cores: int) -> list[int]:
    """From one worker to twice the cores, in powers of two of the cores."""
    wanted = {1, cores // 4, cores // 2, cores, 2 * cores}
    return sorted(count for count in wanted if 1 <= count <= 4 * _MOST_WORKERS)
