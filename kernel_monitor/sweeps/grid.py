"""What a sweep measures: a grid of rows, each with the engines that are compared in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

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
        empty_epoch: whether the comparison with an iterator that is never reset is re-enacted.
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
    empty_epoch: bool = False
    images: int = 0
    data: str = ""

    def to_json(self) -> dict[str, Any]:
        made = asdict(self)
        made["rows"] = [{**row, "engines": list(row["engines"])} for row in made["rows"]]
        return made


def backend_of(engine: str) -> str:
    """The loader's name of an engine: `dali-cpu` of `dali-cpu fused`."""
    return engine.removesuffix(f" {FUSED}")


def fused_of(engine: str, row: Row) -> bool | None:
    """Whether DALI is to fuse its decode for this engine; None where the row compares no fused one."""
    if not backend_of(engine).startswith("dali") or not any(other.endswith(f" {FUSED}") for other in row.engines):
        return None
    return engine.endswith(f" {FUSED}")


def order_of(row: Row, number: int) -> tuple[str, ...]:
    """The engines of a row in the order of its pass `number` (from 1): A B, then B A, so that drift hits all alike."""
    return row.engines if number % 2 else row.engines[::-1]
