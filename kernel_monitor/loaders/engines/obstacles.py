"""Why an engine cannot run here, as sentences with the remedy. Nothing heavy is imported to find out."""

from __future__ import annotations

import importlib.util
import sys

import torch

from ...os_process import usable_cores
from ..transforms.ops.colour import Jitter
from .setting import Setting, rest_in_workers
from .torch_engine import CAN_OFFER
from .worker_start import sentence, why_not_sent


def no_dali(setting: Setting) -> str | None:
    if sys.platform != "linux":
        return "DALI runs on Linux only (on Windows: in WSL)."
    try:
        found = importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # there is no package `nvidia` at all
        found = False
    if not found:
        return "DALI is not installed; pip install 'kernel-monitor[dali]'."
    if setting.own is not None:  # it opens and transforms the files by itself
        return None
    return setting.keyed.source.obstacle or setting.refusal


def no_dali_cpu(setting: Setting) -> str | None:
    obstacle = no_dali(setting) or _slow_colours(setting)
    return obstacle or (_no_workers_for_rest(setting) if rest_in_workers(setting) else None)


def _slow_colours(setting: Setting) -> str | None:
    """Why DALI should not change the colours of PIL images where it has no cores of its own.

    It takes DALI five to six times as much CPU time as Pillow (measured on processors of AMD and Intel).
    """
    program = setting.program
    crowded = _too_few_cores(setting)
    if program is None or setting.own is not None or setting.workers == 0 or crowded is None:
        return None
    if not any(isinstance(step, Jitter) and not step.cut for step in program.steps):
        return None
    return (
        "ColorJitter takes DALI several times the CPU time that Pillow takes, and DALI would take it from the loader's "
        f"workers: {crowded}"
    )


def _too_few_cores(setting: Setting) -> str | None:
    """Why DALI would have no cores of its own beside the loader's workers; None if it would."""
    cores, workers = usable_cores(), setting.workers
    threads = min(cores, workers)
    needed = workers + threads + 1
    if cores >= needed:
        return None
    return (
        f"{needed} cores are needed for {workers} workers, {threads} threads of DALI and the training loop, and there "
        f"are {cores}."
    )


def _no_workers_for_rest(setting: Setting) -> str | None:
    """Why workers cannot do what DALI leaves to torchvision (on the loop's own thread it would be slower than without).

    They are new processes, as nothing is forked where DALI runs.
    """
    program = setting.program
    if program is None or program.rest is None:
        return None
    if not program.steps:
        return (
            f"DALI would only decode, and hand whole images to the workers. {program.reason} Put what crops or resizes "
            "before it."
        )
    crowded = _too_few_cores(setting)
    if crowded is not None:
        # DALI saves a tenth of the CPU time of a chain's beginning: as much as handing its images on costs. What is
        # gained is that it works beside the workers, on cores of its own.
        return (
            f"{program.reason} It would stay with the loader's workers, and DALI would take CPU time from them: "
            f"{crowded}"
        )
    if not CAN_OFFER:
        return f"{program.reason} PyTorch {torch.__version__} cannot give single batches to workers beside DALI."
    obstacle = why_not_sent(setting.keyed, setting.wrapped)
    return None if obstacle is None else f"{program.reason} It would run in workers beside DALI. {sentence(obstacle)}"


def no_gpu(setting: Setting) -> str | None:
    if not torch.cuda.is_available():
        return f"No GPU is usable here: {cuda_obstacle()}"
    if setting.device.type != "cuda":
        return f"The loader's device is {setting.device}."
    index: int | None = setting.device.index  # torch's stubs leave out that "cuda" alone has none
    count = torch.cuda.device_count()
    if index is not None and index >= count:
        return f"There is no {setting.device}: {count} CUDA device{' is' if count == 1 else 's are'} visible."
    return no_dali(setting)


def cuda_obstacle() -> str:
    """Why torch cannot use a GPU, as NVML or torch report it."""
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
