"""Writes the code that draws a sample's random numbers, and computes the inputs of DALI's operators from them.

The numbers are drawn by torchvision's own functions, in the order in which the transforms draw them. So a sample gets
what the transforms would give it from the same state of torch's generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...errors import TransformNotTranslatable
from ..transforms import geometry
from ..transforms.operation import Step
from ..transforms.program import Program
from ..transforms.translate import Link
from .graph import laid_out, literal

_BLANK = "torch.empty(1).expand(3, {}, {})"


@dataclass
class Draws:
    """The code of the draws.

    Attributes:
        lines: the body of a function of `height` and `width`, which fills `given`.
        moves: the same operations on a mask, as the body of a function of `mask` and `given`.
        imports: the names of `torchvision.transforms` that they use.
        random: whether anything is drawn.
    """

    lines: list[str] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    random: bool = False
    centers: bool = False  # whether `center_start` is called


def draws_of(program: Program, links: Sequence[Link], name: Callable[[str], str]) -> Draws:
    """Return the code of a program's draws.

    Args:
        program: the program.
        links: the user's transforms.
        name: returns the name of an input in the code.

    Raises:
        TransformNotTranslatable: a transform's draws cannot be written; the message names it.
    """
    found = Draws()
    body = program.body
    drawn = {step.operation for step in (*program.steps, *program.tail)}
    for link in links:
        if link.inside:
            raise _unwritten(link.transform, "which of its transforms are applied is drawn, which has no code form yet")
        # A draw that changes no pixels must still be made: all later ones would be others.
        if link.op is not None and link.op.inject is not None and link.operation not in drawn:
            raise _unwritten(link.transform, "it changes nothing, and still draws random numbers")
    transforms = {link.operation: link.transform for link in links}
    steps: list[tuple[int, Step]] = [*enumerate(body), *((-1, flip) for flip in program.mirrors)]
    if program.tail:
        raise _unwritten(transforms[program.tail[0].operation], "it works on the scaled image")
    for place, (k, step) in enumerate(steps):
        write = _WRITERS.get(type(step))
        if write is None:
            raise _unwritten(transforms[step.operation], "its random numbers have no code form yet")
        later = any(_reads_size(other) for _, other in steps[place + 1 :])
        write(found, step, transforms[step.operation], partial(_input, name, k), later)
    return found


def _input(name: Callable[[str], str], k: int, base: str) -> str:
    """Return the name in the code of an input of step `k`; -1 for the fused flips."""
    return name(f"{base}{k}" if k >= 0 else base)


def _unwritten(transform: Any, reason: str) -> TransformNotTranslatable:
    return TransformNotTranslatable(
        f"The loader cannot be written as code because of {type(transform).__name__}: {reason}. Take it out, or keep "
        "the loader as it is."
    )


def _reads_size(step: Step) -> bool:
    return not isinstance(step, geometry.Mirror) and not (isinstance(step, geometry.Scale) and step._fixed)


def _give(draws: Draws, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        draws.lines.append(f'    given["{name}"] = {value}')


def _cut(draws: Draws, start: str, shape: str) -> None:
    draws.moves += laid_out("mask = F.crop(", ["mask", f'*given["{start}"]', f'*given["{shape}"]'])


def _random_box(
    draws: Draws, step: geometry.RandomBox, _transform: Any, name: Callable[[str], str], later: bool
) -> None:
    draws.random = True
    draws.imports.add("RandomResizedCrop")
    arguments = [_BLANK.format("height", "width"), f"scale={literal(step.scale)}", f"ratio={literal(step.ratio)}"]
    draws.lines += laid_out("top, left, height, width = RandomResizedCrop.get_params(", arguments)
    _give(draws, {name("start"): "(top, left)", name("shape"): "(height, width)"})
    _cut(draws, name("start"), name("shape"))
    del later


def _random_window(
    draws: Draws, step: geometry.RandomWindow, transform: Any, name: Callable[[str], str], later: bool
) -> None:
    if step.pad_if_needed:
        raise _unwritten(transform, "it pads smaller images, by pad_if_needed=True")
    draws.random = True
    left, top, right, bottom = step.sides
    if any(step.sides) and any(step.fill):
        draws.moves.append(_COLOURED)
    tall = f"height + {top + bottom}" if top + bottom else "height"
    wide = f"width + {left + right}" if left + right else "width"
    draws.imports.add("RandomCrop")
    if type(transform).__module__.startswith("torchvision.transforms.v2"):
        draws.imports.add("v2")
        draws.imports.discard("RandomCrop")
        made = f"v2.RandomCrop({literal(step.size)}).make_params("
        draws.lines += laid_out(f"drawn = {made}", [f"[{_BLANK.format(tall, wide)}]"])
        draws.lines.append('    top, left = drawn["top"], drawn["left"]')
    else:
        arguments = [_BLANK.format(tall, wide), literal(step.size)]
        draws.lines += laid_out("top, left, _, _ = RandomCrop.get_params(", arguments)
    start = f"({f'top - {top}' if top else 'top'}, {f'left - {left}' if left else 'left'})"
    _give(draws, {name("start"): start, name("shape"): literal(step.size)})
    _cut(draws, name("start"), name("shape"))
    if later:
        draws.lines.append(f"    height, width = {literal(step.size)[1:-1]}")


_COLOURED = "a colour"
"""In `moves`: masks cannot follow, as it is not known what theirs are filled with."""


def _crop_center(
    draws: Draws, step: geometry.CropCenter, _transform: Any, name: Callable[[str], str], later: bool
) -> None:
    draws.centers = True
    height, width = step.size
    start = f"(center_start(height, {height}), center_start(width, {width}))"
    _give(draws, {name("start"): start, name("shape"): literal(step.size)})
    _cut(draws, name("start"), name("shape"))
    if later:
        draws.lines.append(f"    height, width = {height}, {width}")


def _padded(draws: Draws, step: geometry.Padded, _transform: Any, name: Callable[[str], str], later: bool) -> None:
    left, top, right, bottom = step.sides
    shape = f"(height + {top + bottom}, width + {left + right})"
    _give(draws, {name("start"): literal((-top, -left)), name("shape"): shape})
    draws.moves.append(_COLOURED)
    if later:
        draws.lines.append(f'    height, width = given["{name("shape")}"]')


def _scale(draws: Draws, step: geometry.Scale, transform: Any, name: Callable[[str], str], later: bool) -> None:
    if step.interpolation in geometry.NEAREST or step.other is not None or step.max_size is not None:
        raise _unwritten(transform, "its interpolation or max_size has no code form yet")
    if step._fixed:
        draws.moves.append(f"    mask = F.resize(mask, {literal(list(step.size or ()))})")
        if later:
            draws.lines.append(f"    height, width = {literal(tuple(step.size or ()))[1:-1]}")
        return
    (edge,) = step.size or (0,)
    draws.lines += [
        "    if width <= height:",
        f"        height, width = int({edge} * height / width), {edge}",
        "    else:",
        f"        height, width = {edge}, int({edge} * width / height)",
    ]
    _give(draws, {name("size"): "(height, width)"})
    draws.moves.append(f'    mask = F.resize(mask, given["{name("size")}"])')


def _mirror(draws: Draws, step: geometry.Mirror, transform: Any, name: Callable[[str], str], later: bool) -> None:
    if len(step.gates) != 1:
        raise _unwritten(transform, "whether it is applied is drawn by the transform around it")
    del later
    draws.random = True
    given, drawn = name("mirror"), f"int(torch.rand(1) < {literal(step.gates[0].high)})"
    known = any(line.startswith(f'    given["{given}"]') for line in draws.lines)
    draws.lines.append(f'    given["{given}"] {"^" if known else ""}= {drawn}')
    flip = "vertical_flip" if step.vertical else "horizontal_flip"
    if not known:
        draws.moves += [f'    if given["{given}"]:', f"        mask = F.{flip}(mask)"]


_WRITERS: dict[type[Step], Callable[[Draws, Any, Any, Callable[[str], str], bool], None]] = {
    geometry.RandomBox: _random_box,
    geometry.RandomWindow: _random_window,
    geometry.CropCenter: _crop_center,
    geometry.Padded: _padded,
    geometry.Scale: _scale,
    geometry.Mirror: _mirror,
}


def masks_follow(draws: Draws) -> bool:
    """Return whether the operations on masks are known."""
    return _COLOURED not in draws.moves
