"""The engines there are, whether each can run here, and why not. Nothing heavy is imported to find out."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from ...errors import BackendUnavailable, TransformNotTranslatable
from ..data.keyed import KeyedDataset
from ..transforms.program import Program
from ..transforms.translate import translate
from .base import Engine
from .dali_engine import DaliEngine
from .torch_engine import NAME, InlineEngine, WorkersEngine

DALI_BATCH = 64  # samples, where the wrapped loader has no batch size; the pipeline grows


class Backend(NamedTuple):
    """Whether a backend can run here.

    Attributes:
        available: whether `switch` to it is accepted.
        reason: why not, a sentence; None where it is available.
    """

    available: bool
    reason: str | None


@dataclass(frozen=True)
class Setting:
    """What an engine is built for: the data set by keys, the wrapped loader, the translation, the device."""

    keyed: KeyedDataset
    wrapped: DataLoader[Any]
    device: torch.device
    program: Program | None
    refusal: str | None  # why there is no program


def setting(keyed: KeyedDataset, wrapped: DataLoader[Any], device: torch.device) -> Setting:
    """Translate the data set's transform as it is now."""
    try:
        return Setting(keyed, wrapped, device, translate(keyed.source.transform), None)
    except TransformNotTranslatable as refusal:
        return Setting(keyed, wrapped, device, None, str(refusal))


@dataclass(frozen=True)
class Spec:
    """One entry of the registry: its name, why it cannot run (None: it can), and how to build it."""

    name: str
    obstacle: Callable[[Setting], str | None]
    build: Callable[[Setting], Engine]


def _torchvision(setting: Setting) -> Engine:
    if setting.wrapped.num_workers > 0:
        return WorkersEngine(setting.keyed, setting.wrapped)
    return InlineEngine(setting.keyed, setting.wrapped)


def _no_dali(setting: Setting) -> str | None:
    if sys.platform != "linux":
        return "DALI runs on Linux only (on Windows: in WSL)."
    try:
        found = importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # there is no package `nvidia` at all
        found = False
    if not found:
        return "DALI is not installed; pip install 'kernel-monitor[dali]'."
    source = setting.keyed.source
    if not source.opens_plainly:
        shown = getattr(source.loader, "__name__", type(source.loader).__name__)
        return f"The data set opens its files by {shown}, and DALI would decode them itself."
    return setting.refusal


def _no_gpu(setting: Setting) -> str | None:
    if setting.device.type != "cuda":
        if not torch.cuda.is_available():
            return f"No GPU is usable here: {cuda_obstacle()}"
        return f"The loader's device is {setting.device}."
    return _no_dali(setting)


def cuda_obstacle() -> str:
    """Why torch cannot use a GPU, in NVML's words or torch's own."""
    try:
        import pynvml
    except ImportError:
        pynvml = None
    if pynvml is not None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return f"{error}."
        pynvml.nvmlShutdown()
    if torch.version.cuda is None:
        return "this torch was built without CUDA."
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0]
    return "torch.cuda.is_available() is false."


def _threads(wrapped: DataLoader[Any]) -> int:
    """CPU threads for DALI: as many as the wrapped loader has workers, at most one per core given to us."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, wrapped.num_workers or 4))


def gpu(setting: Setting) -> int:
    """Number of the CUDA device that `dali-gpu` decodes on."""
    index: int | None = setting.device.index  # torch's stubs leave out that "cuda" alone has none
    return torch.cuda.current_device() if index is None else index


def _dali(name: str, setting: Setting) -> Engine:
    if setting.program is None:
        raise BackendUnavailable(f"{name} cannot be used: {setting.refusal}")
    wrapped = setting.wrapped
    device = None
    if name == "dali-gpu":
        device = gpu(setting)
    return DaliEngine(
        name,
        setting.keyed,
        setting.program,
        wrapped.collate_fn,
        batch_size=wrapped.batch_size or DALI_BATCH,
        threads=_threads(wrapped),
        device=device,
        pin=wrapped.pin_memory and torch.cuda.is_available(),
    )


SPECS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec(NAME, lambda _: None, _torchvision),
        Spec("dali-cpu", _no_dali, lambda setting: _dali("dali-cpu", setting)),
        Spec("dali-gpu", _no_gpu, lambda setting: _dali("dali-gpu", setting)),
    )
}


def availability(setting: Setting) -> dict[str, Backend]:
    """Every backend's name and whether it can run."""
    reasons = {name: spec.obstacle(setting) for name, spec in SPECS.items()}
    return {name: Backend(reason is None, reason) for name, reason in reasons.items()}


def resolve(name: str, backends: dict[str, Backend]) -> str:
    """Return the backend that a name means: `dali` is `dali-gpu` where that can run, else `dali-cpu`.

    Raises:
        BackendUnavailable: there is no such backend or it cannot run here; the message lists those that can.
    """
    meant = name
    if name == "dali":
        meant = "dali-gpu" if backends["dali-gpu"].available else "dali-cpu"
    usable = ", ".join(other for other, backend in backends.items() if backend.available)
    if meant not in backends:
        known = ", ".join(backends)
        raise BackendUnavailable(f"There is no backend {name!r}. There are: {known}; usable here: {usable}.")
    backend = backends[meant]
    if not backend.available:
        raise BackendUnavailable(f"{meant} cannot be used: {backend.reason} Usable here: {usable}.")
    return meant
