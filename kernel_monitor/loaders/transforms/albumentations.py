"""The transforms of albumentations (2.0 and its successors) that are translated to DALI.

Their resizes are OpenCV's: linear, without antialiasing. Other transforms run after DALI, on its images.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from . import colour, geometry
from .chain import ByName, Chain, Op, Refused, SeededByName, takes_name
from .operation import Cursor, Gate, Injection
from .params import CROP_DRAWS, Floats, UInt64s, crop_box, uniforms

_LINEAR = 1  # cv2.INTER_LINEAR
_ARRAYS = ("array", "float array")


def _array(chain: Chain, transform: Any, *, certain: bool = True) -> None:
    """Refuse a transform that would fail in albumentations, or that only some samples would get."""
    if chain.kind not in _ARRAYS:
        raise Refused("it is given no NumPy array")
    if certain and transform.p < 1:
        raise Refused(f"it is applied by chance (p={transform.p})")


def _linear(chain: Chain, transform: Any) -> None:
    _array(chain, transform)
    if transform.interpolation != _LINEAR or transform.area_for_downscale is not None:
        raise Refused("its interpolation is not linear")
    chain.pixels()


def _resize(chain: Chain, transform: Any) -> None:
    _linear(chain, transform)
    chain.size = transform.height, transform.width
    chain.steps.append(geometry.Scale(chain.operation, chain.size, antialias=False))


def _max_size(chain: Chain, transform: Any, longest: bool) -> None:
    _linear(chain, transform)
    if not isinstance(transform.max_size, int):
        raise Refused("its max_size is not one number")
    chain.size = None
    chain.steps.append(geometry.ScaleEdge(chain.operation, (transform.max_size,), antialias=False, longest=longest))


def _random_resized_crop(chain: Chain, transform: Any) -> None:
    _linear(chain, transform)
    chain.size = int(transform.size[0]), int(transform.size[1])
    chain.steps.append(geometry.RandomBox(chain.operation, tuple(transform.scale), tuple(transform.ratio)))
    chain.steps.append(geometry.Scale(chain.operation, chain.size, antialias=False))


def _window(chain: Chain, transform: Any, step: Callable[[int, tuple[int, int]], geometry.Window]) -> None:
    _array(chain, transform)
    chain.spatial()
    if transform.pad_if_needed:
        raise Refused("it pads smaller images")
    chain.size = transform.height, transform.width
    chain.steps.append(step(chain.operation, chain.size))


def _random_window(operation: int, size: tuple[int, int]) -> geometry.RandomWindow:
    return geometry.RandomWindow(operation, size, (0, 0, 0, 0), False, geometry.BLACK)


def _gates(chain: Chain, transform: Any) -> tuple[Gate, ...]:
    return (*chain.gates, Gate(chain.operation, 0.0, float(transform.p)))


def _flip(chain: Chain, transform: Any, vertical: bool) -> None:
    _array(chain, transform, certain=False)
    chain.spatial()
    chain.steps.append(geometry.Mirror(chain.operation, _gates(chain, transform), vertical))


def _plain_brightness(transform: Any) -> bool:
    return bool(transform.brightness_by_max) and not transform.ensure_safe_range


def _brightness(chain: Chain, transform: Any) -> None:
    _array(chain, transform, certain=False)
    if chain.kind != "array":
        raise Refused("it computes on floating-point pixels; put it before Normalize")
    if not _plain_brightness(transform):
        raise Refused("it looks at the pixels first (brightness_by_max=False or ensure_safe_range=True)")
    chain.pixels()
    limits = tuple(transform.contrast_limit), tuple(transform.brightness_limit)
    chain.steps.append(colour.BrightnessContrast(chain.operation, *limits, _gates(chain, transform)))


def _normalize(chain: Chain, transform: Any) -> None:
    _array(chain, transform)
    if transform.normalization != "standard" or chain.kind != "array":
        raise Refused(f"its normalization is {transform.normalization}, on {chain.kind}s")
    most = float(transform.max_pixel_value)
    mean, std = _three(transform.mean), _three(transform.std)
    if not all(std):
        raise Refused("a standard deviation is zero")
    chain.kind = "float array"
    chain.scale([1 / (s * most) for s in std], [-m / s for m, s in zip(mean, std, strict=True)])
    chain.normalised = True


def _three(value: Any) -> list[float]:
    values = [float(value)] * 3 if isinstance(value, int | float) else [float(channel) for channel in value]
    if len(values) != 3:
        raise Refused(f"it has {len(values)} means or standard deviations")
    return values


def _to_tensor(chain: Chain, transform: Any) -> None:
    _array(chain, transform)
    chain.kind = "tensor" if chain.kind == "array" else "floats"


def _left(_chain: Chain, _transform: Any) -> None:
    raise Refused("it is not among the transforms that this version translates to DALI")


class Coin(ByName):
    """A transform that draws only whether it is applied, with probability `p`."""

    _open: list[bool]

    def begin(self, keys: UInt64s) -> None:
        self._open = Gate(self.operation, 0.0, float(self.transform.p)).open(keys).tolist()

    def __call__(self, image: Any) -> Any:
        self.drawn = self._open[self.cursor.row]
        return super().__call__(image) if self.drawn else image


class _Drawn(ByName):
    """A transform that gets its parameters from its own `get_params_dependent_on_data`."""

    draws = 2  # uniform numbers per sample
    _numbers: Floats  # [n, draws], the numbers of the batch begun last

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        super().__init__(operation, transform, cursor)
        self.transform.get_params_dependent_on_data = lambda *_args, **_named: self.given()

    def begin(self, keys: UInt64s) -> None:
        self._numbers = uniforms(keys, self.operation, self.draws)

    def __call__(self, image: Any) -> Any:
        self.drawn = self.draw(self._numbers[self.cursor.row].tolist(), *image.shape[:2])
        return super().__call__(image)

    def draw(self, numbers: list[float], height: int, width: int) -> Any:
        """Return the parameters of a sample for an image of this size."""
        raise NotImplementedError

    def given(self) -> dict[str, Any]:
        """Return the result of `get_params_dependent_on_data`."""
        raise NotImplementedError


class Window(_Drawn):
    """RandomCrop, which draws (top, left, padding); the padding is None."""

    def draw(self, numbers: list[float], height: int, width: int) -> Any:
        size = self.transform.height, self.transform.width
        return geometry.place(height, width, numbers, size, (0, 0, 0, 0), False)

    def given(self) -> dict[str, Any]:
        top, left, _ = self.drawn
        return {
            "crop_coords": (left, top, left + self.transform.width, top + self.transform.height),
            "pad_params": None,
        }


class Box(_Drawn):
    """RandomResizedCrop, which draws (top, left, height, width)."""

    draws = CROP_DRAWS

    def draw(self, numbers: list[float], height: int, width: int) -> Any:
        return crop_box(height, width, numbers, self.transform.scale, self.transform.ratio)

    def given(self) -> dict[str, Any]:
        top, left, height, width = self.drawn
        return {"crop_coords": (left, top, left + width, top + height)}


class BrightnessContrast(_Drawn):
    """RandomBrightnessContrast, which draws (factor, addend) if it is applied."""

    draws = colour.BRIGHTNESS_DRAWS
    _open: list[bool]

    def begin(self, keys: UInt64s) -> None:
        super().begin(keys)
        self._open = Gate(self.operation, 0.0, float(self.transform.p)).open(keys).tolist()

    def __call__(self, image: Any) -> Any:
        return super().__call__(image) if self._open[self.cursor.row] else image

    def draw(self, numbers: list[float], _height: int, _width: int) -> Any:
        return colour.brightness(numbers, self.transform.contrast_limit, self.transform.brightness_limit)

    def given(self) -> dict[str, Any]:
        return {"alpha": self.drawn[0], "beta": self.drawn[1]}


def _if(known: Callable[[Any], bool], inject: type[Injection]) -> Callable[[int, Any, Cursor], Injection]:
    """Return a factory of `inject` for transforms whose settings are `known`, and of `SeededByName` for others."""

    def made(operation: int, transform: Any, cursor: Cursor) -> Injection:
        return (inject if known(transform) else SeededByName)(operation, transform, cursor)

    return made


def _always(transform: Any) -> bool:
    return bool(transform.p >= 1)


def _one_size(transform: Any) -> bool:
    return bool(transform.p >= 1 and isinstance(transform.max_size, int))


def _unpadded(transform: Any) -> bool:
    return bool(transform.p >= 1 and not transform.pad_if_needed)


OPS: dict[str, Op] = {
    "Resize": Op(_resize, _if(_always, ByName)),
    "SmallestMaxSize": Op(partial(_max_size, longest=False), _if(_one_size, ByName)),
    "LongestMaxSize": Op(partial(_max_size, longest=True), _if(_one_size, ByName)),
    "RandomResizedCrop": Op(_random_resized_crop, _if(_always, Box)),
    "CenterCrop": Op(partial(_window, step=geometry.CropMiddle), _if(_unpadded, ByName)),
    "RandomCrop": Op(partial(_window, step=_random_window), _if(_unpadded, Window)),
    "HorizontalFlip": Op(partial(_flip, vertical=False), Coin),
    "VerticalFlip": Op(partial(_flip, vertical=True), Coin),
    "RandomBrightnessContrast": Op(_brightness, _if(_plain_brightness, BrightnessContrast)),
    "Normalize": Op(_normalize, _if(_always, ByName), scales=True),
    "ToTensorV2": Op(_to_tensor, _if(_always, ByName), scales=True),
    "NoOp": Op(partial(_array, certain=False), ByName),
}
OTHER = Op(_left, SeededByName)


def find(transform: Any) -> Op | None:
    """Return the entry of a transform of albumentations; unknown transforms of it share an entry."""
    if not takes_name(transform):
        return None
    kind = type(transform)
    current = hasattr(transform, "py_random") and hasattr(transform, "get_params_dependent_on_data")
    return OPS.get(kind.__name__, OTHER) if kind.__module__.startswith("albumentations.") and current else OTHER
