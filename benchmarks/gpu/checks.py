"""What this machine has of what the parts need: `python -m benchmarks.gpu.checks FILE` writes it as JSON.

A process of its own: a library that cannot be loaded must not end the run, and importing torch and DALI takes memory.
Nothing but the standard library is imported before a check needs it.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from kernel_monitor._version import DALI_PACKAGES

KIT = "`make gpu-kit` packs it for a machine without a network"


class Lacking(Exception):
    """Something is missing; the message has cause and remedy."""


def package(name: str, remedy: str) -> str:
    """The version of an installed package that can be imported.

    Raises:
        Lacking: it is missing, or cannot be loaded.
    """
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        raise Lacking(f"The package {name} is not installed in {sys.executable}; {remedy}.") from None
    return version


def imported(module: str, name: str, remedy: str) -> str:
    version = package(name, remedy)
    try:
        importlib.import_module(module)
    except Exception as error:
        raise Lacking(f"{name} {version} cannot be loaded: {type(error).__name__}: {error}") from error
    return version


def gpu() -> str:
    """The GPUs that NVML lists, by name."""
    from kernel_monitor.sample.gpu.nvml import NvmlError, open_devices

    try:
        devices = open_devices()
    except NvmlError as error:
        raise Lacking(f"NVML finds no GPU: {error}") from error
    names = [device.name for device in devices]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def driver() -> str:
    """Its version, and the newest CUDA that it runs."""
    pynvml: Any = importlib.import_module("pynvml")
    try:
        pynvml.nvmlInit()
        number = pynvml.nvmlSystemGetCudaDriverVersion()
        return f"{pynvml.nvmlSystemGetDriverVersion()}, CUDA up to {number // 1000}.{number % 1000 // 10}"
    except pynvml.NVMLError as error:
        raise Lacking(f"The NVIDIA driver does not answer NVML: {error}") from error


def cuda() -> str:
    """The GPU that torch computes on, after it did."""
    import torch

    if torch.version.cuda is None:
        raise Lacking(f"torch {torch.__version__} is a build without CUDA; install one for this machine's driver.")
    try:
        total = float(torch.ones(1024, device="cuda").sum())
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise Lacking(
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot compute on a GPU: {reason}"
        ) from error
    if total != 1024:
        raise Lacking(f"torch {torch.__version__} computes wrongly on this GPU: the sum of 1,024 ones is {total:g}.")
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.version.cuda}, {torch.cuda.get_device_name()}, compute capability {major}.{minor}"


def nvidia_smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Lacking("There is no nvidia-smi on the PATH; it comes with the driver.")
    asked = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise Lacking(f"nvidia-smi fails: {(done.stdout + done.stderr).strip().splitlines()[0]}")
    return "answers"


def dali() -> str:
    """The version of whichever package brings it."""
    installed = {found.name for found in metadata.distributions()}
    name = next((name for name in DALI_PACKAGES if name in installed), DALI_PACKAGES[0])
    return imported("nvidia.dali", name, KIT)


def python() -> str:
    if sys.version_info < (3, 11):  # noqa: UP036 (a clone is run by whichever Python there is)
        raise Lacking(f"Python 3.11 or newer is needed; this is {platform.python_version()}.")
    return platform.python_version()


TORCH = "install torch and torchvision for this machine's CUDA"
CHECKS: dict[str, Callable[[], str]] = {
    "Python": python,
    "kernel_monitor": lambda: imported("kernel_monitor", "kernel-monitor", KIT),
    "torch": lambda: imported("torch", "torch", TORCH),
    "torchvision": lambda: imported("torchvision", "torchvision", TORCH),
    "pytest": lambda: package("pytest", KIT),
    "driver": driver,
    "GPU": gpu,
    "CUDA": cuda,
    "DALI": dali,
    "nvidia-smi": nvidia_smi,
}
"""By what the parts call it."""


def find() -> dict[str, Any]:
    """Run every check.

    Returns `found`, what is here, and `lacking`, a sentence for each that is not, both by the check's name; `machine`,
    processor and system.
    """
    found, lacking = {}, {}
    for name, check in CHECKS.items():
        try:
            found[name] = check()
        except Lacking as error:
            lacking[name] = str(error)
        except Exception as error:  # noqa: BLE001 (as in `imported`: the other checks go on)
            lacking[name] = f"{name} cannot be checked: {type(error).__name__}: {error}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "found": found,
        "lacking": lacking,
        "machine": f"{processor()}, {cores} logical cores, {platform.platform()}",
    }


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(find(), indent=1) + "\n", "utf-8")
