"""What a chain of transforms amounts to: steps on pixels, then one scaling, then what is left to torchvision.

A `Program` is the meeting point of the engines: `translate` writes it, `dali_graph` builds a pipeline from it,
`arrays` computes a batch's parameters for it with the functions that the torchvision engine uses as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .geometry import Mirror
from .operation import Fed, Step, int32, opened
from .params import Ints, UInt64s


@dataclass(frozen=True)
class Program:
    """A translated chain."""

    steps: tuple[Step, ...]  # on 8-bit RGB pixels, in order
    # (height, width) of every image at the end, pixels; None where it is not the same for all, which only a program
    # with `rest` may have
    size: tuple[int, int] | None
    floating: bool  # whether DALI's result is float32, else uint8
    # factor, offset: per channel, result = pixel (0 to 255) * factor + offset
    factor: tuple[float, ...] = (1.0, 1.0, 1.0)
    offset: tuple[float, ...] = (0.0, 0.0, 0.0)
    # position in the flattened chain from which the user's own transforms are run on DALI's 8-bit RGB images [height,
    # width, 3]; None where DALI does everything, and gives [3, height, width]
    rest: int | None = None
    # what the transform at `rest` expects: `pil`, `tensor` (uint8 [3, height, width]), `image` (that as torchvision's
    # `tv_tensors.Image`) or `array` (NumPy's, uint8 [height, width, 3])
    rest_kind: str = "pil"
    tail: tuple[Step, ...] = ()  # steps on the scaled result, [3, height, width]
    reason: str | None = None  # why there is a rest, a sentence; None where there is none
    names: tuple[str, ...] = field(default=(), compare=False)  # of the transforms of the flattened chain, for people

    @property
    def mirrors(self) -> tuple[Mirror, ...]:
        """The mirrorings at the end that are fused into the scaling."""
        found: list[Mirror] = []
        for step in reversed(self.steps if self.rest is None else ()):
            if not isinstance(step, Mirror) or step.vertical:
                break
            found.append(step)
        return tuple(reversed(found))

    @property
    def body(self) -> tuple[Step, ...]:
        """The steps before those."""
        return self.steps[: len(self.steps) - len(self.mirrors)]


def arrays(program: Program, keys: UInt64s, heights: Ints, widths: Ints) -> Fed:
    """Return what a pipeline of `program` is fed for n samples: int32[n, ...] or float32[n, ...] by input's name.

    Those of step k of the body and, numbered on from there, of the tail; `mirror` where fused mirrorings end the steps.
    The samples' `keys` are uint64[n]; `heights` and `widths` those of the files' images, int64[n], pixels.
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
    """Return what each sample draws for DALI's part, by operation, in the form of `Injected.drawn`; see `arrays`."""
    found: list[dict[int, Any]] = [{} for _ in keys]
    sizes = np.stack([heights, widths], axis=1)
    for step in (*program.steps, *program.tail):
        for row, value in enumerate(step.drawn(keys, sizes)):
            if value is not None:
                found[row][step.operation] = value
        _, sizes = step.arrays(0, keys, sizes)
    return found


def share(program: Program, where: str) -> str | None:
    """Return what DALI does of a chain and what remains, a sentence; None where nothing remains.

    `where` is where that runs, as in "in the loader's workers".
    """
    if program.rest is None:
        return None
    done, left = program.names[: program.rest], program.names[program.rest :]
    does = f"decodes and does {', '.join(done)}" if done else "only decodes"
    if not left:
        return f"DALI {does}; what makes a batch of it runs {where}."
    more = f" and {len(left) - 1} more run" if len(left) > 1 else " runs"
    return f"DALI {does}; {left[0]}{more} {where}."
