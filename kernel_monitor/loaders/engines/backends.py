"""The engines there are, whether each can run here, and why not. Nothing heavy is imported to find out."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from ...errors import BackendUnavailable, TransformNotTranslatable
from ..data.keyed import KeyedDataset
from ..transforms.ops.colour import Jitter
from ..transforms.program import Program
from ..transforms.translate import share, translate
from .base import Engine
from .dali_batch import Batches
from .dali_engine import DEPTH as DALI_DEPTH
from .dali_engine import DaliEngine
from .dali_graph import Translated, Work
from .own_pipeline import OwnPipeline
from .rest_engine import Packing, RestEngine
from .synthetic import CONFIRM, SyntheticEngine
from .synthetic import NAME as SYNTHETIC
from .torch_engine import NAME, InlineEngine, WorkersEngine, sentence, why_not_sent

DALI_BATCH = 64  # samples, where the wrapped loader has no batch size; the pipeline grows


class Backend(NamedTuple):
    """Whether a backend can run here.

    Attributes:
        available: whether `switch` to it is accepted.
        reason: why not, a sentence; None where it is available.
        confirm: what to ask a person before switching to it; None where there is nothing to ask.
        note: which part of the transforms it does not do itself, and where that runs, a sentence; None where it does
            all of them.
    """

    available: bool
    reason: str | None
    confirm: str | None = None
    note: str | None = None


class Given(NamedTuple):
    """Settings of a DataLoader that may be assigned between two iterations; each as the DataLoader has it."""

    collate_fn: Any
    worker_init_fn: Any
    pin_memory: Any
    timeout: Any
    num_workers: int
    prefetch_factor: int | None
    multiprocessing_context: Any

    @classmethod
    def of(cls, wrapped: DataLoader[Any]) -> Given:
        """As they are now."""
        return cls(*(getattr(wrapped, name) for name in cls._fields))

    def same(self, other: Given) -> bool:
        """Whether nothing was assigned; functions are compared by identity."""
        return all(one is two or (type(one) is int and one == two) for one, two in zip(self, other, strict=True))


@dataclass(frozen=True)
class Setting:
    """What an engine is built for.

    Attributes:
        keyed: the data set by keys.
        wrapped: the user's DataLoader.
        given: its settings when the engine was built.
        device: where `dali-gpu` decodes.
        workers: processes of `torchvision`.
        threads: CPU threads of DALI.
        prefetch: batches in flight, per worker or in all for DALI; None: each engine's usual number.
        careful: whether new workers must not be forked where that is not safe.
        own: the user's own DALI pipeline function, or None.
        fused_decode: whether a crop that comes first is decoded alone (DALI's ROI decode), not cut out afterwards.
        on_error: "raise" or "skip", for files that cannot be read.
        program: the data set's transform for DALI.
        refusal: why there is no program.
    """

    keyed: KeyedDataset
    wrapped: DataLoader[Any]
    given: Given
    device: torch.device
    workers: int
    threads: int
    prefetch: int | None = None
    careful: bool = False
    own: Callable[..., Any] | None = None
    fused_decode: bool = True
    on_error: str = "raise"
    program: Program | None = None
    refusal: str | None = None


def setting(
    keyed: KeyedDataset,
    wrapped: DataLoader[Any],
    device: torch.device,
    *,
    own: Callable[..., Any] | None = None,
    on_error: str = "raise",
) -> Setting:
    """Describe a wrapped loader as it is, its transform translated."""
    return translated(
        Setting(
            keyed,
            wrapped,
            Given.of(wrapped),
            device,
            wrapped.num_workers,
            _threads(wrapped),
            own=own,
            on_error=on_error,
        )
    )


def translated(setting: Setting) -> Setting:
    """The setting with the data set's transform as it is now."""
    try:
        return replace(setting, program=translate(setting.keyed.source.transform), refusal=None)
    except TransformNotTranslatable as refusal:
        return replace(setting, program=None, refusal=str(refusal))


@dataclass(frozen=True)
class Spec:
    """One entry of the registry.

    Attributes:
        name: of the backend.
        obstacle: why it cannot run, None where it can.
        build: makes the engine.
        uses: the knobs (fields of `Knobs`) that it is built with.
        confirm: what to ask a person before switching to it.
    """

    name: str
    obstacle: Callable[[Setting], str | None]
    build: Callable[[Setting], Engine]
    uses: frozenset[str]
    confirm: str | None = None


def _torchvision(setting: Setting) -> Engine:
    if setting.workers > 0:
        return WorkersEngine(setting.keyed, setting.wrapped, setting.workers, setting.prefetch, careful=setting.careful)
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
    if setting.own is not None:  # it opens the files and transforms them, in whatever way it likes
        return None
    return setting.keyed.source.obstacle or setting.refusal


def _no_dali_cpu(setting: Setting) -> str | None:
    obstacle = _no_dali(setting) or _slow_colours(setting)
    return obstacle or (_no_workers_for_rest(setting) if rest_in_workers(setting) else None)


def _slow_colours(setting: Setting) -> str | None:
    """Why changing the colours of PIL images is not for DALI where it has no cores of its own.

    It takes DALI five times as much CPU time as Pillow: transforms/costs.json, both tables.
    """
    program = setting.program
    if program is None or setting.own is not None or setting.workers == 0 or not _crowded(setting):
        return None
    if not any(isinstance(step, Jitter) and not step.cut for step in program.steps):
        return None
    return (
        "ColorJitter takes DALI several times the CPU time that Pillow takes, and DALI would take it from the loader's "
        f"workers: {_wanted(setting)}"
    )


def _threads_beside(setting: Setting) -> int:
    """DALI's threads beside the loader's workers, where nobody says how many."""
    return min(cores(), setting.workers)


def _needed(setting: Setting) -> int:
    return setting.workers + _threads_beside(setting) + 1


def _crowded(setting: Setting) -> bool:
    """Whether DALI would have no cores of its own beside the loader's workers."""
    return cores() < _needed(setting)


def _wanted(setting: Setting) -> str:
    return (
        f"{_needed(setting)} cores are needed for {setting.workers} workers, {_threads_beside(setting)} threads of "
        f"DALI and the training loop, and there are {cores()}."
    )


def _no_workers_for_rest(setting: Setting) -> str | None:
    """Why what DALI cannot do must not be left to workers; on the loop's own thread it would be slower than without.

    Workers of that kind are new processes, as nothing is forked where DALI runs.
    """
    program = setting.program
    if program is None or program.rest is None:
        return None
    if not program.steps:
        return (
            f"DALI would only decode, and hand whole images to the workers. {program.reason} Put what crops or resizes "
            "before it."
        )
    if _crowded(setting):
        # DALI saves a tenth of the CPU time of a chain's beginning: as much as handing its images on costs. What is
        # gained is that it works beside the workers, on cores of its own.
        return (
            f"{program.reason} It would stay with the loader's workers, and DALI would take CPU time from them: "
            f"{_wanted(setting)}"
        )
    obstacle = why_not_sent(setting.keyed, setting.wrapped)
    return None if obstacle is None else f"{program.reason} It would run in workers beside DALI. {sentence(obstacle)}"


def _no_gpu(setting: Setting) -> str | None:
    if not torch.cuda.is_available():
        return f"No GPU is usable here: {cuda_obstacle()}"
    if setting.device.type != "cuda":
        return f"The loader's device is {setting.device}."
    index: int | None = setting.device.index  # torch's stubs leave out that "cuda" alone has none
    count = torch.cuda.device_count()
    if index is not None and index >= count:
        return f"There is no {setting.device}: {count} CUDA device{' is' if count == 1 else 's are'} visible."
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
    return max(1, min(cores(), wrapped.num_workers or 4))


def cores() -> int:
    """Logical cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu(setting: Setting) -> int:
    """Number of the CUDA device that `dali-gpu` decodes on."""
    index: int | None = setting.device.index  # torch's stubs leave out that "cuda" alone has none
    return torch.cuda.current_device() if index is None else index


def _dali(name: str, setting: Setting) -> Engine:
    work: Work
    if setting.own is not None:
        work = OwnPipeline(setting.own)
    elif setting.program is not None:
        work = Translated(setting.program, fused=setting.fused_decode)
    else:
        raise BackendUnavailable(f"{name} cannot be used: {setting.refusal}")
    wrapped, keyed = setting.wrapped, setting.keyed
    device = gpu(setting) if name == "dali-gpu" else None
    in_workers = device is None and rest_in_workers(setting)
    batches = (Packing if in_workers else Batches)(
        name,
        keyed,
        work,
        wrapped.collate_fn,
        device=device,
        pin=wrapped.pin_memory and torch.cuda.is_available(),
        own_memory=wrapped.num_workers == 0,
    )
    engine = DaliEngine(
        keyed,
        work,
        batches,
        batch_size=wrapped.batch_size or DALI_BATCH,
        threads=setting.threads,
        depth=setting.prefetch or DALI_DEPTH,
        device=device,
    )
    return RestEngine(keyed, wrapped, engine, setting.workers, setting.prefetch) if in_workers else engine


def rest_in_workers(setting: Setting) -> bool:
    """Whether `dali-cpu` leaves a part of the transforms to workers, as the loader has some."""
    program = setting.program
    return setting.own is None and program is not None and program.rest is not None and setting.workers > 0


_DALI_KNOBS = frozenset({"threads", "prefetch", "fused_decode"})

SPECS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec(NAME, lambda _: None, _torchvision, frozenset({"workers", "prefetch"})),
        Spec("dali-cpu", _no_dali_cpu, lambda setting: _dali("dali-cpu", setting), _DALI_KNOBS),
        Spec("dali-gpu", _no_gpu, lambda setting: _dali("dali-gpu", setting), _DALI_KNOBS),
        Spec(SYNTHETIC, lambda _: None, lambda setting: SyntheticEngine(setting.device), frozenset(), CONFIRM),
    )
}


def availability(setting: Setting) -> dict[str, Backend]:
    """Every backend's name and whether it can run."""
    found = {}
    for name, spec in SPECS.items():
        reason = spec.obstacle(setting)
        found[name] = Backend(reason is None, reason, spec.confirm, None if reason else _note(name, setting))
    return found


def _note(name: str, setting: Setting) -> str | None:
    if not name.startswith("dali-") or setting.own is not None or setting.program is None:
        return None
    in_workers = name == "dali-cpu" and rest_in_workers(setting)
    where = "in the loader's workers" if in_workers else "on the thread of the training loop"
    return share(setting.keyed.source.transform, setting.program, where)


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
