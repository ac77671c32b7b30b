"""Programs: a translated chain of transforms, as steps on pixels, then a scaling, then torchvision's own transforms.

All engines use the `Program`: `translate` writes it, `dali_graph` builds a pipeline from it, and `arrays` computes a
batch's parameters for it, with the functions that the torchvision engine uses, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .geometry import Mirror
from .operation import Fed, Step, int32, opened
from .params import Ints, UInt64s


@dataclass(frozen=True)
class Program:
    """A translated chain."""

    steps: tuple[Step, ...]  # steps on 8-bit RGB pixels, in order
    # (height, width), in pixels, of every image at the end; None if it differs between images, which requires a `rest`.
    size: tuple[int, int] | None
    floating: bool  # whether DALI's result is float32, else uint8
    # factor, offset: per channel, with result = pixel (0 to 255) * factor + offset.
    factor: tuple[float, ...] = (1.0, 1.0, 1.0)
    offset: tuple[float, ...] = (0.0, 0.0, 0.0)
    # Position in the flat chain from which the user's own transforms run on DALI's 8-bit RGB images [height, width, 3];
    # None if DALI does everything, and returns [3, height, width].
    rest: int | None = None
    # The kind of image that the transform at `rest` expects: `pil`, `tensor` (uint8 [3, height, width]), `image` (such
    # a tensor as torchvision's `tv_tensors.Image`) or `array` (NumPy array, uint8 [height, width, 3]).
    rest_kind: str = "pil"
    tail: tuple[Step, ...] = ()  # steps on the scaled result, [3, height, width]
    reason: str | None = None  # a sentence on why there is a rest; None if there is none
    names: tuple[str, ...] = field(default=(), compare=False)  # the names of the flat chain's transforms, for people

    @property
    def mirrors(self) -> tuple[Mirror, ...]:
        """The flips at the end, which are fused into the scaling."""
        found: list[Mirror] = []
        for step in reversed(self.steps if self.rest is None else ()):
            if not isinstance(step, Mirror) or step.vertical:
                break
            found.append(step)
        return tuple(reversed(found))

    @property
    def body(self) -> tuple[Step, ...]:
        """The steps before `mirrors`."""
        return self.steps[: len(self.steps) - len(self.mirrors)]


def arrays(program: Program, keys: UInt64s, heights: Ints, widths: Ints) -> Fed:
    """Return the inputs of a pipeline of `program` for n samples: int32[n, ...] or float32[n, ...] by input name.

    The names carry the number of a step in the body or, numbered on from there, in the tail; `mirror` is the input of
    fused flips. The samples' `keys` are uint64[n]; `heights` and `widths` those of the files' images, int64[n], pixels.
    """
    fed: Fed = {}
    sizes = np.stack([heights, widths], axis=1)
    for k, step in enumerate((*program.body, *program.tail)):
        inputs, sizes = step.arrays(k, keys, sizes)
        fed.update(inputs)
    if program.mirrors:
        mirror = np.zeros(len(keys), dtype=np.bool_)
        for flip in program.mirrors:
            mirror ^= opened(flip.gates, keys)
        fed["mirror"] = int32(mirror)
    return fed


def drawn(program: Program, keys: UInt64s, heights: Ints, widths: Ints) -> list[dict[int, Any]]:
    """Return each sample's draws in DALI's part, in the form of `Injected.drawn`; arguments as in `arrays`."""
    found: list[dict[int, Any]] = [{} for _ in keys]
    sizes = np.stack([heights, widths], axis=1)
    for step in (*program.steps, *program.tail):
        for row, value in enumerate(step.drawn(keys, sizes)):
            if value is not None:
                found[row][step.operation] = value
        _, sizes = step.arrays(0, keys, sizes)
    return found


def share(program: Program, where: str, who: str) -> str | None:
    """Return what a pipeline does of a chain and what remains, a sentence; None where nothing remains.

    `where` is where that runs, as in "in the loader's workers"; `who` does it, as in "DALI" or "the engine".
    """
    if program.rest is None:
        return None
    subject = who[0].upper() + who[1:]
    done, left = program.names[: program.rest], program.names[program.rest :]
    does = f"decodes and does {', '.join(done)}" if done else "only decodes"
    if not left:
        return f"{subject} {does}; what makes a batch of it runs {where}."
    more = f" and {len(left) - 1} more run" if len(left) > 1 else " runs"
    return f"{subject} {does}; {left[0]}{more} {where}."


def distinct(programs: Sequence[Program]) -> tuple[list[Program], list[int]]:
    """Return the programs that differ, and for each program its number among them."""
    found: list[Program] = []
    for program in programs:
        if program not in found:
            found.append(program)
    return found, [found.index(program) for program in programs]
