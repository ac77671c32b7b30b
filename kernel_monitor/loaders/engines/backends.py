"""The engines there are, whether each can run here, and why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...errors import BackendUnavailable
from ..transforms.translate import share
from .dali_batch import Batches
from .dali_engine import DEPTH as DALI_DEPTH
from .dali_engine import DaliEngine
from .dali_graph import Translated, Work
from .engine import Engine
from .obstacles import no_dali_cpu, no_gpu
from .own_pipeline import OwnPipeline
from .rest_engine import Packing, RestEngine
from .setting import Setting, gpu, rest_in_workers
from .synthetic import CONFIRM, SyntheticEngine
from .synthetic import NAME as SYNTHETIC
from .torch_engine import NAME, InlineEngine, WorkersEngine

DALI_BATCH = 64  # samples, if the wrapped loader has no batch size; the pipeline grows


class Backend(NamedTuple):
    """Whether a backend can run here.

    Attributes:
        available: whether `switch` to it is accepted.
        reason: why not, a sentence; None where it is available.
        confirm: what to ask a person before switching to it; None where there is nothing to ask.
        note: which part of the transforms it leaves to others, and where that runs, a sentence; None if none.
    """

    available: bool
    reason: str | None
    confirm: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Spec:
    """One entry of the registry."""

    name: str  # of the backend
    obstacle: Callable[[Setting], str | None]  # why it cannot run, None where it can
    build: Callable[[Setting], Engine]  # makes the engine
    uses: frozenset[str]  # the knobs (fields of `Knobs`) that it is built with
    confirm: str | None = None  # what to ask a person before switching to it


def _torchvision(setting: Setting) -> Engine:
    if setting.workers > 0:
        return WorkersEngine(setting.keyed, setting.wrapped, setting.workers, setting.prefetch, careful=setting.careful)
    return InlineEngine(setting.keyed, setting.wrapped)


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


_DALI_KNOBS = frozenset({"threads", "prefetch", "fused_decode"})

SPECS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec(NAME, lambda _: None, _torchvision, frozenset({"workers", "prefetch"})),
        Spec("dali-cpu", no_dali_cpu, lambda setting: _dali("dali-cpu", setting), _DALI_KNOBS),
        Spec("dali-gpu", no_gpu, lambda setting: _dali("dali-gpu", setting), _DALI_KNOBS),
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
    usable = ", ".join(known for known, backend in backends.items() if backend.available)
    if meant not in backends:
        known = ", ".join(backends)
        raise BackendUnavailable(f"There is no backend {name!r}. There are: {known}; usable here: {usable}.")
    backend = backends[meant]
    if not backend.available:
        raise BackendUnavailable(f"{meant} cannot be used: {backend.reason} Usable here: {usable}.")
    return meant
