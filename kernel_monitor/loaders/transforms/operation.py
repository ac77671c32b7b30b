"""Operations: for DALI a step with explicit parameters, for torchvision a copy that takes its draws from the plan.

torch, torchvision and DALI are imported when used: a calibration (`calibration_process`) imports this without torch.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .params import ERASE_DRAWS, Floats, Ints, UInt64s, erase_box, stream_seeds, uniforms

_Bools = npt.NDArray[np.bool_]
Fed = dict[str, npt.NDArray[np.int32] | npt.NDArray[np.float32]]


class Graph:
    """A DALI pipeline that is being defined, on the CUDA device of this number or, for None, on the CPU.

    Steps get DALI's operators and types from it, so that they can be imported without DALI.
    """

    def __init__(self, device: int | None) -> None:
        from nvidia.dali import fn, types

        self.fn, self.types = fn, types
        self.device = "cpu" if device is None else "gpu"  # where images are
        self.arguments_of_images = device is None  # named arguments, read on the CPU, may be computed from images

    def fed(self, name: str, ndim: int, dtype: str = "INT32") -> Any:
        """Return the node of an input that gets a value for each sample."""
        return self.fn.external_source(name=name, dtype=getattr(self.types, dtype), ndim=ndim)

    def beside_images(self, node: Any) -> Any:
        """Return the node on the images' device, for arithmetic with them."""
        return node.gpu() if self.device == "gpu" else node


@dataclass(frozen=True)
class Step:
    """An operation with explicit parameters, on 8-bit RGB pixels [height, width, 3] unless noted otherwise."""

    operation: int  # number of the transform, from which its random numbers are drawn

    @property
    def region(self) -> bool:
        """Whether the inputs `start<k>` and `shape<k>` name a part inside the image.

        A decoder may then decode just that, and the step is not built.
        """
        return False

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        """Return the inputs of n samples by name, and the images' sizes after the step.

        Input names end with `k`, the number of the step in its program. The keys are uint64[n], the sizes int64[n, 2],
        height and width of the images, pixels.
        """
        raise NotImplementedError

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        """Return the draws of each sample in the form of `Injection.drawn`: None for a step that is not random."""
        return [None] * len(keys)

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        """Return the DALI node of the step's result."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gate:
    """A condition for a transform: it is applied if a uniform number is at least `low` and less than `high`."""

    operation: int
    low: float
    high: float

    def open(self, keys: UInt64s) -> _Bools:
        """Return bool[n]: whether the transform is applied to each sample."""
        number = uniforms(keys, self.operation, 1)[:, 0]
        applied: _Bools = (self.low <= number) & (number < self.high)
        return applied


Gates = tuple[Gate, ...]


def opened(gates: Gates, keys: UInt64s) -> _Bools:
    """Return bool[n]: whether every gate is open for each sample."""
    if not gates:
        return np.ones(len(keys), dtype=np.bool_)
    applied = gates[0].open(keys)
    for gate in gates[1:]:
        applied &= gate.open(keys)
    return applied


def where_open(gates: Gates, keys: UInt64s, drawn: list[Any]) -> list[Any]:
    """Return `drawn` with None for each sample for which a gate is closed."""
    return [value if is_open else None for value, is_open in zip(drawn, opened(gates, keys).tolist(), strict=True)]


def coins(gates: Gates, keys: UInt64s) -> list[Any]:
    """Return the draws for a transform that draws only whether it is applied; its own gate is the last."""
    return where_open(gates[:-1], keys, gates[-1].open(keys).tolist())


def int32(values: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Return the integers in the type of DALI's inputs."""
    return np.ascontiguousarray(values, dtype=np.int32)


def float32(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return the numbers in the type of DALI's inputs."""
    return np.ascontiguousarray(values, dtype=np.float32)


def between(uniform: Floats, low: float, high: float) -> Floats:
    """Return uniform numbers from `low` to `high`, rounded to float32 for DALI and torchvision alike."""
    return float32(low + (high - low) * uniform).astype(np.float64)


class Cursor:
    """The row of the batch that is being computed."""

    row = 0


class Injection:
    """A copy of one of the user's random transforms, whose random numbers come from the sample's key."""

    drawn: Any

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        self.operation = operation
        self.drawn = None  # the draws of the sample computed last; None if it drew nothing
        self.cursor = cursor
        self.transform = copy.copy(transform)

    def begin(self, keys: UInt64s) -> None:
        """Draw the numbers of a batch; `keys` is uint64[n]."""
        raise NotImplementedError

    def __call__(self, image: Any) -> Any:
        """Transform the image of the cursor's row."""
        raise NotImplementedError


class Coin(Injection):
    """A transform that draws only whether it is applied, with probability `p`."""

    _open: list[bool]

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        super().__init__(operation, transform, cursor)
        self._gate = Gate(operation, 0.0, float(transform.p))
        self.transform.p = 1.0

    def begin(self, keys: UInt64s) -> None:
        self._open = self._gate.open(keys).tolist()

    def __call__(self, image: Any) -> Any:
        self.drawn = self._open[self.cursor.row]
        return self.transform(image) if self.drawn else image


class Parameters(Injection):
    """A transform that gets its parameters from a method of its own: `make_params` in v2, `get_params` in v1."""

    draws = 1  # uniform numbers per sample
    names: tuple[str, ...] = ()  # names of the parameters in v2
    _numbers: Floats  # [n, draws], the numbers of the batch begun last

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        from torchvision.transforms import v2

        super().__init__(operation, transform, cursor)
        if isinstance(self.transform, v2.Transform):
            self.transform.make_params = lambda _: self.v2()
        else:
            self.transform.get_params = lambda *_args, **_named: self.v1()

    def begin(self, keys: UInt64s) -> None:
        self._numbers = uniforms(keys, self.operation, self.draws)

    def __call__(self, image: Any) -> Any:
        from torchvision.transforms import functional

        _, height, width = functional.get_dimensions(image)
        self.drawn = self.draw(self._numbers[self.cursor.row], height, width)
        return self.transform(image)

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        """Return the parameters of a sample for an image of this size; its `numbers` are float64[draws]."""
        raise NotImplementedError

    def v1(self) -> Any:
        """Return the result of the first version's `get_params`."""
        return self.drawn

    def v2(self) -> dict[str, Any]:
        """Return the result of the second version's `make_params`."""
        return dict(zip(self.names, self.v1(), strict=True))


class Seeded(Injection):
    """Any other transform, called itself (no copy) after the generators that it may draw from were seeded.

    In the training's process the caller restores them, see `random_streams`.
    """

    _seeds: list[int]

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        from ..random_streams import Streams

        self.operation, self.drawn, self.cursor, self.transform = operation, None, cursor, transform
        self._streams = Streams(transform)

    def begin(self, keys: UInt64s) -> None:
        self._seeds = stream_seeds(keys, self.operation)

    def __call__(self, image: Any) -> Any:
        self._streams.seed(self._seeds[self.cursor.row])
        return self.transform(image)


# ---- Random erasing, which is done after the scaling, because it may fill with any number.

_DRAWS = 1 + ERASE_DRAWS  # the first decides whether the image is erased


@dataclass(frozen=True)
class Erase(Step):
    """RandomErasing, if all `gates` are open, on [3, height, width] of any type.

    `scale` are shares of the area, `ratio` are height / width, `fill` is a value for each channel.
    """

    scale: tuple[float, ...]
    ratio: tuple[float, ...]
    fill: tuple[float, ...]
    gates: Gates

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        boxes = np.array([box or (0, 0, 0, 0) for box in self.drawn(keys, sizes)]).reshape(-1, 4)
        return {f"start{k}": float32(boxes[:, :2]), f"shape{k}": float32(boxes[:, 2:])}, sizes

    def drawn(self, keys: UInt64s, sizes: Ints) -> list[Any]:
        numbers = uniforms(keys, self.operation, _DRAWS)[:, 1:].tolist()
        pairs = zip(sizes.tolist(), numbers, strict=True)
        boxes = [erase_box(h, w, draws, self.scale, self.ratio) for (h, w), draws in pairs]
        return where_open(self.gates, keys, boxes)

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        start, shape = graph.fed(f"start{k}", 1, "FLOAT"), graph.fed(f"shape{k}", 1, "FLOAT")
        return graph.fn.erase(image, anchor=start, shape=shape, axis_names="HW", fill_value=list(self.fill))


class EraseInjection(Parameters):
    """RandomErasing, which draws (top, left, height, width)."""

    draws = _DRAWS
    names = ("i", "j", "h", "w", "v")
    _open: list[bool]

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        super().__init__(operation, transform, cursor)
        self._gate = Gate(operation, 0.0, float(transform.p))
        self.transform.p = 1.0

    def begin(self, keys: UInt64s) -> None:
        super().begin(keys)
        self._open = self._gate.open(keys).tolist()

    def __call__(self, image: Any) -> Any:
        return super().__call__(image) if self._open[self.cursor.row] else image

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        return erase_box(height, width, numbers[1:].tolist(), self.transform.scale, self.transform.ratio)

    def v1(self) -> Any:
        import torch

        return (*self.drawn, torch.tensor(filling(self.transform))[:, None, None])


def filling(erasing: Any) -> list[float]:
    """Return RandomErasing's value: a list of one number, or of one for each channel."""
    value = erasing.value
    return [float(value)] if isinstance(value, (int, float)) else [float(channel) for channel in value]
