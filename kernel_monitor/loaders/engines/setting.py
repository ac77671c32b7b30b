"""What an engine is built for: data set, settings of the wrapped DataLoader, knobs, translated transforms."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from ...errors import TransformNotTranslatable
from ...os_process import usable_cores
from ...text import cause
from ..data.keyed_dataset import KeyedDataset
from ..random_streams import Streams
from ..transforms.inject import Injected
from ..transforms.program import Program
from ..transforms.translate import translate

log = logging.getLogger(__name__)


class GivenSettings(NamedTuple):
    """Settings of a DataLoader that the user may assign between two iterations; each as the DataLoader has it."""

    collate_fn: Any
    worker_init_fn: Any
    pin_memory: Any
    timeout: Any
    num_workers: int
    prefetch_factor: int | None
    multiprocessing_context: Any

    @classmethod
    def of(cls, wrapped: DataLoader[Any]) -> GivenSettings:
        return cls(*(getattr(wrapped, name) for name in cls._fields))

    def same(self, other: GivenSettings) -> bool:
        """Whether nothing was assigned; functions are compared by identity."""
        return all(a is b or (type(a) is int and a == b) for a, b in zip(self, other, strict=True))


@dataclass(frozen=True)
class Setting:
    """What an engine is built for."""

    keyed: KeyedDataset  # the data set by keys
    wrapped: DataLoader[Any]  # the user's DataLoader
    given: GivenSettings  # its settings when the engine was built
    device: torch.device  # where `dali-gpu` decodes
    workers: int  # processes of `torchvision`
    threads: int  # CPU threads of DALI
    prefetch: int | None = None  # batches in flight, per worker or in all for DALI; None: each engine's usual number
    own: Callable[..., Any] | None = None  # the user's own DALI pipeline function, or None
    fused_decode: bool | None = None  # whether a crop that comes first is decoded alone; None: on the CPU
    program: Program | None = None  # the data set's transform for DALI
    refusal: str | None = None  # why there is no program

    def fused(self, device: int | None) -> bool:
        """Whether a crop that comes first is decoded alone (DALI's ROI decode) on a CUDA device, or None, the CPU.

        Not on a GPU by itself: before nvJPEG 13.2 its decoders refuse a part of an image with fancy upsampling, which
        our pixels need; nvImageCodec then decodes on the CPU, with a warning on stderr for each image.
        """
        return device is None if self.fused_decode is None else self.fused_decode


def setting(
    keyed: KeyedDataset, wrapped: DataLoader[Any], device: torch.device, own: Callable[..., Any] | None = None
) -> Setting:
    """Describe a wrapped loader as it is, its transform translated."""
    # DALI gets as many threads as the loader has workers, at most one per core given to us.
    threads = max(1, min(usable_cores(), wrapped.num_workers or 4))
    return translated(Setting(keyed, wrapped, GivenSettings.of(wrapped), device, wrapped.num_workers, threads, own=own))


def translated(setting: Setting) -> Setting:
    """The setting with the data set's transform as it is now."""
    source = setting.keyed.source
    try:
        unexamined = _unexamined("transform", Injected(source.transform).failure) or _unexamined(
            "collate function", Streams(setting.wrapped.collate_fn).failure
        )
        program = None if unexamined is not None else translate(source.transform, source.kind)
        return replace(setting, program=program, refusal=unexamined)
    except TransformNotTranslatable as refusal:
        return replace(setting, program=None, refusal=str(refusal))
    except Exception as error:  # whatever the user's own classes raise
        log.info("the transform cannot be examined", exc_info=True)
        return replace(setting, program=None, refusal=_unexamined("transform", cause(error)))


def _unexamined(what: str, failure: str | None) -> str | None:
    return None if failure is None else f"The {what} cannot be examined ({failure})."


def rest_in_workers(setting: Setting) -> bool:
    """Whether `dali-cpu` leaves a part of the transforms to workers, as the loader has some."""
    program = setting.program
    return setting.own is None and program is not None and program.rest is not None and setting.workers > 0


def gpu(setting: Setting) -> int:
    """Number of the CUDA device that `dali-gpu` decodes on."""
    index: int | None = setting.device.index  # torch's stubs leave out that "cuda" alone has none
    return torch.cuda.current_device() if index is None else index
