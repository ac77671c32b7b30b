"""The engines there are, whether each can run here, and why not."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from importlib import metadata
from typing import NamedTuple

import torch

from ..._version import DALI_PACKAGES
from ...errors import BackendUnavailable
from ...os_process import usable_cores
from ...plugins import plugin
from ...text import quoted
from ..data.calls import CACHED
from ..transforms import recorded
from ..transforms.colour import Jitter
from ..transforms.program import share
from ..transforms.recorded import Forms
from . import thread_pipeline
from .dali_batch import Batches, Work
from .dali_graph import Make, OwnPipeline, Parts, Translated, build
from .dali_parts import PartBatches
from .dali_trace import Recorded, TracedBatches, first_encoded
from .engine import Engine, Setting, Spec, gpu, rest_in_workers
from .pipeline_engine import DEPTH as DALI_DEPTH
from .pipeline_engine import PipelineEngine
from .rest_engine import Packing, PartPacking, RestEngine
from .synthetic import CONFIRM, SyntheticEngine
from .synthetic import NAME as SYNTHETIC
from .torch_engine import CAN_OFFER, NAME, InlineEngine, WorkersEngine
from .worker_start import why_not_sent

THREADS = "threads"  # the engine for which torch computes the chains, in threads of this process
PIPELINES = ("dali-gpu", "dali-cpu", THREADS)  # the engines that compute the operators of a chain
OLDEST_DALI = (2, 2)  # as in pyproject.toml: the first whose image decoders have `adjust_orientation`
_BATCH = 64  # samples, if the wrapped loader has no batch size; the pipeline grows


_CACHED_BY_WORKERS = (
    "keeps the images that it has decoded, in each worker for itself: once each worker keeps all nothing is decoded "
    "any more, and a switch would make it slower"
)
_CACHED_FOR_AN_EPOCH = (
    "keeps the images that it has decoded, but only until the epoch ends, as the loader's workers are new in each "
    "epoch: set persistent_workers=True, or load the images in __init__"
)
_UNSEEDED = "What the data set draws is not seeded (seeded=False), so that DALI could not give the same samples."


class Backend(NamedTuple):
    """The availability of one backend."""

    available: bool  # whether `switch` to it is accepted
    reason: str | None  # why not, a sentence; None where it is available
    confirm: str | None = None  # what to ask a person before switching to it; None where there is nothing to ask
    note: str | None = None  # which transforms it leaves to others, and where they run; that it may be slower; or None


def _torchvision(setting: Setting) -> Engine:
    if setting.workers > 0:
        return WorkersEngine(setting.keyed, setting.wrapped, setting.workers, setting.prefetch)
    return InlineEngine(setting.keyed, setting.wrapped)


def maker(name: str) -> Make:
    """Return what makes the pipelines of an engine."""
    return thread_pipeline.make if name == THREADS else build


def _pipeline(name: str, setting: Setting) -> Engine:
    """Return the engine of a pipeline: DALI's, on the CPU or a GPU, or one of threads."""
    work: Work
    device, make = gpu(setting) if name == "dali-gpu" else None, maker(name)
    if setting.own is not None:
        work = OwnPipeline(setting.own)
    elif setting.forms is not None:
        return _pipeline_engine(_traced_batches(name, setting, setting.forms, device), setting)
    elif setting.others:
        work = Parts(setting.programs, fused=setting.fused(device), make=make)
    elif setting.program is not None:
        work = Translated(setting.program, fused=setting.fused(device), make=make)
    else:
        raise BackendUnavailable(f"{name} cannot be used: {setting.refusal}")
    wrapped, keyed = setting.wrapped, setting.keyed
    in_workers = device is None and rest_in_workers(setting)
    batches: Batches
    if isinstance(work, Parts):
        batches = (PartPacking if in_workers else PartBatches)(name, keyed, wrapped, work, device)
    else:
        batches = (Packing if in_workers else Batches)(name, keyed, wrapped, work, device)
    engine = _pipeline_engine(batches, setting)
    return RestEngine(keyed, wrapped, engine, setting.workers, setting.prefetch) if in_workers else engine


def _pipeline_engine(batches: Batches, setting: Setting) -> PipelineEngine:
    size, depth = setting.wrapped.batch_size or _BATCH, setting.prefetch or DALI_DEPTH
    return PipelineEngine(batches, batch_size=size, threads=setting.threads, depth=depth)


def _traced_batches(name: str, setting: Setting, forms: Forms, device: int | None) -> Batches:
    encoded = first_encoded(setting.keyed.source.traces)
    work = Recorded(forms, encoded=encoded, fused=setting.fused(device), make=maker(name))
    return TracedBatches(name, setting.keyed, setting.wrapped, work, device)


def _dali_missing() -> str | None:
    """Return why DALI cannot be imported here, a sentence; None where it can."""
    if sys.platform != "linux":
        return "DALI runs on Linux only (on Windows: in WSL)."
    try:
        found = importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # there is no package `nvidia` at all
        found = False
    if not found:
        return (
            "DALI is not installed; pip install 'kernel-monitor[dali]', or 'kernel-monitor[dali-cuda13]' for CUDA 13."
        )
    if sys.flags.optimize > 1 and "nvidia.dali" not in sys.modules:  # its modules add to their own docstrings
        return "DALI cannot be imported where Python leaves docstrings out: start it without -OO (or PYTHONOPTIMIZE=2)."
    return _dali_too_old()


@cache
def _dali_too_old() -> str | None:
    """Return that the installed DALI lacks arguments that the graphs use, a sentence; None for one that has them."""
    for name in DALI_PACKAGES:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_DALI:
            return f"DALI {version} is too old; pip install --upgrade '{name}>={'.'.join(map(str, OLDEST_DALI))}'."
    return None


def _no_dali(setting: Setting) -> str | None:
    return _dali_missing() or _no_chain(setting)


def _no_chain(setting: Setting) -> str | None:
    """Return why there is no chain of operators for a pipeline; None if there is one."""
    if not setting.keyed.source.seeded:
        return _UNSEEDED
    if setting.own is not None:  # it opens and transforms the files by itself
        return None
    return _of_workers(setting) or setting.refusal


def _of_workers(setting: Setting) -> str | None:
    """Return the setting's obstacle, which for images that are kept depends on the loader's workers."""
    obstacle, wrapped = setting.obstacle, setting.wrapped
    if obstacle is None or setting.workers == 0 or CACHED not in obstacle:
        return obstacle
    return obstacle.replace(CACHED, _CACHED_BY_WORKERS if wrapped.persistent_workers else _CACHED_FOR_AN_EPOCH)


def _no_dali_cpu(setting: Setting) -> str | None:
    return _no_dali(setting) or _no_rest(setting)


def _no_threads(setting: Setting) -> str | None:
    if setting.own is not None:
        return "The pipeline given as dali= is for DALI alone."
    obstacle = _no_chain(setting) or _no_rest(setting)
    return None if obstacle is None else f"It computes what DALI can compute. {obstacle}"


def _no_rest(setting: Setting) -> str | None:
    """Return why workers cannot do what DALI leaves to torchvision (the loop's own thread would be too slow).

    They are new processes, forked from the fork server, as nothing is forked where DALI runs.
    """
    if not rest_in_workers(setting):
        return None
    program = next(program for program in setting.programs if program.rest is not None)
    if not program.steps:
        return (
            f"DALI would only decode, and hand whole images to the workers. {program.reason} Put what crops or resizes "
            "before it."
        )
    if not CAN_OFFER:
        return f"{program.reason} PyTorch {torch.__version__} cannot give single batches to workers beside DALI."
    obstacle = why_not_sent(setting.keyed, setting.wrapped)
    return None if obstacle is None else f"{program.reason} It would run in workers beside DALI. {obstacle}"


def _crowded(name: str, setting: Setting) -> str | None:
    """Return that an engine may be slower, as a sentence; None where it has cores of its own beside the workers."""
    cores, workers = usable_cores(), setting.workers
    threads = min(cores, workers)
    needed = workers + threads + 1
    if setting.own is not None or cores >= needed:
        return None
    # DALI saves a tenth of the CPU time of a chain's beginning: as much as handing its images on costs. What is gained
    # is that it works beside the workers, on cores of its own.
    if rest_in_workers(setting):
        return (
            f"It may be slower here: {workers} workers, {threads} threads and the training loop share {cores} cores. "
            "Tune measures it."
        )
    # Colours of PIL images take DALI five to six times the CPU time (measured on processors of AMD and Intel).
    jitter = any(isinstance(step, Jitter) and not step.cut for program in setting.programs for step in program.steps)
    if name == "dali-cpu" and workers > 0 and jitter:
        return "It may be slower here: ColorJitter takes DALI several times the CPU time that Pillow takes."
    return None


def _no_gpu(setting: Setting) -> str | None:
    if not torch.cuda.is_available():
        return f"No GPU is usable here: {_cuda_obstacle()}"
    if setting.device.type != "cuda":
        return f"The loader's device is {setting.device}."
    index: int | None = setting.device.index  # torch's stubs leave out that "cuda" alone has none
    count = torch.cuda.device_count()
    if index is not None and index >= count:
        return f"There is no {setting.device}: {count} CUDA device{' is' if count == 1 else 's are'} visible."
    return _no_dali(setting)


def _no_gpu_yet() -> str | None:
    """Return why this process cannot use a GPU, or has used none yet; None where it has.

    torch is not asked: that would read CUDA_VISIBLE_DEVICES, which the user's code may still set.
    """
    if torch.cuda.is_initialized():
        return None
    missing = _gpu_missing()
    if missing is not None:
        return f"No GPU is usable here: {missing}"
    return "This process has not used a GPU yet; dali-gpu can be chosen once it has."


def _gpu_missing() -> str | None:
    """Return why there is no GPU for torch, as NVML or torch report it; None where there may be one."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"{error}."
    pynvml.nvmlShutdown()
    return "this torch was built without CUDA." if torch.version.cuda is None else None


def _cuda_obstacle() -> str:
    """Return why torch cannot use a GPU."""
    missing = _gpu_missing()
    if missing is not None:
        return missing
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0]
    return "torch.cuda.is_available() is false."


_PIPELINE_KNOBS = frozenset({"threads", "prefetch", "fused_decode"})


RAY = "ray"  # the engine whose workers are on other machines; optional
_ray = plugin(RAY)

SPECS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec(NAME, lambda _: None, _torchvision, frozenset({"workers", "prefetch"})),
        Spec("dali-cpu", _no_dali_cpu, lambda setting: _pipeline("dali-cpu", setting), _PIPELINE_KNOBS),
        Spec("dali-gpu", _no_gpu, lambda setting: _pipeline("dali-gpu", setting), _PIPELINE_KNOBS),
        Spec(THREADS, _no_threads, lambda setting: _pipeline(THREADS, setting), _PIPELINE_KNOBS - {"fused_decode"}),
        Spec(
            SYNTHETIC,
            lambda _: None,
            lambda setting: SyntheticEngine(setting.device),
            frozenset(),
            lambda: CONFIRM,
            replays=True,
        ),
        *([] if _ray is None else [_ray.spec()]),
    )
}


def availability(setting: Setting, *, starts_cuda: bool = True) -> dict[str, Backend]:
    """Every backend's name and whether it can run; without `starts_cuda` torch is not asked for GPUs before its use."""
    found = {}
    for name, spec in SPECS.items():
        reason = _no_gpu_yet() if name == "dali-gpu" and not starts_cuda else None
        reason = reason or spec.obstacle(setting)
        found[name] = Backend(
            reason is None, reason, spec.confirm and spec.confirm(), None if reason else _note(name, setting)
        )
    return found


def availability_here() -> dict[str, Backend]:
    """Every backend's name and whether this machine can run it, for a loader that was not examined."""
    found = {}
    for name, spec in SPECS.items():
        reason = _dali_missing() if name.startswith("dali-") else None
        if name == "dali-gpu":
            reason = reason or _no_gpu_yet()
        elif name == RAY and _ray is not None:
            reason = _ray.missing()
        found[name] = Backend(reason is None, reason, spec.confirm and spec.confirm())
    return found


def _note(name: str, setting: Setting) -> str | None:
    program = next((program for program in setting.programs if program.rest is not None), None)
    if not (name == THREADS or name.startswith("dali-")) or setting.own is not None:
        return None
    who = "the engine" if name == THREADS else "DALI"
    if setting.forms is not None:
        return recorded.share(setting.forms, "on the thread of the training loop", who)
    found = None if name == "dali-gpu" else _crowded(name, setting)
    if program is None:
        return found
    in_workers = name != "dali-gpu" and rest_in_workers(setting)
    parts = share(program, "in the loader's workers" if in_workers else "on the thread of the training loop", who)
    return parts if found is None else f"{parts} {found}"


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
        raise BackendUnavailable(f"There is no backend {quoted(name)}. There are: {known}; usable here: {usable}.")
    backend = backends[meant]
    if not backend.available:
        raise BackendUnavailable(f"{meant} cannot be used: {backend.reason} Usable here: {usable}.")
    return meant
