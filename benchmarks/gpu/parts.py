"""The parts of a run. To add one, add an entry to `PARTS`: a name, a command, a limit where it is not 8 minutes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 480.0
ON_GPU = ("GPU", "CUDA", "DALI")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
WORKERS = min(CORES, 16)


@dataclass(frozen=True)
class Part:
    """One measurement, in a process of its own.

    Attributes:
        name: of its files in the results, and for `--parts`.
        title: what it shows, for people.
        command: arguments of Python. It writes its figures to the file that `--json` names, with `bars` where it has
            some (`benchmarks.common.report`), `counts` of what was measured, and ends with 0, or with 1 where a bar is
            missed or a test fails.
        limit_s: longest that it may take.
        needs: checks that must have been met (`checks.CHECKS`).
        sources: files and folders whose change makes it run again, besides the package itself.
    """

    name: str
    title: str
    command: tuple[str, ...]
    limit_s: float = LIMIT_S
    needs: tuple[str, ...] = ON_GPU
    sources: tuple[str, ...] = ()


PARTS = (
    Part(
        "tests",
        "`tests/gpu`",
        (
            "-m", "pytest", "tests/gpu", "--verbose", "-s", "-p", "no:cacheprovider", "-p", "pytest_timeout",
            "-p", "benchmarks.gpu.outcomes",
        ),
        needs=(*ON_GPU, "pytest"),
        sources=("benchmarks/gpu/outcomes.py", "benchmarks/metrics.py", "tests/gpu", "tests/conftest.py"),
    ),
    Part(
        "parity",
        "pixels of `dali-gpu` beside `torchvision`, decode fused and not",
        ("-m", "benchmarks.gpu.parity", "--backend", "dali-gpu"),
        sources=("benchmarks/gpu/parity.py", "benchmarks/common.py"),
    ),
    Part(
        "parity-cpu",
        "the same of `dali-cpu`, for comparison",
        ("-m", "benchmarks.gpu.parity", "--backend", "dali-cpu"),
        needs=("DALI",),
        sources=("benchmarks/gpu/parity.py", "benchmarks/common.py"),
    ),
    Part(
        "rows",
        "GPU rows beside `nvidia-smi`",
        ("-m", "benchmarks.gpu.rows"),
        needs=("GPU", "CUDA", "nvidia-smi"),
        sources=("benchmarks/gpu/rows.py", "benchmarks/common.py"),
    ),
    Part(
        "loaders",
        "images/s of every engine",
        (
            "-m", "benchmarks.loaders", "--rounds", "4", "--workers", str(WORKERS),
            "--samples", str(max(2048, 512 * WORKERS)),
        ),
        sources=("benchmarks/loaders.py", "benchmarks/chains.py", "benchmarks/common.py", "benchmarks/gpu/parity.py"),
    ),
    Part(
        "swap",
        "what a swap costs the loop",
        ("-m", "benchmarks.swap", "--workers", str(WORKERS)),
        sources=("benchmarks/swap.py", "benchmarks/common.py"),
    ),
    Part(
        "sweep",
        "the published table of models and loads, with what was delivered",
        (
            "-m", "benchmarks.sweep", "--preset", "sagemaker-dali", "--runs", "1", "--whole",
            "--arguments", "--loads 1 12 --seconds 4 --images 1024",
        ),
        sources=("benchmarks/sweep.py", "benchmarks/common.py"),
    ),
    Part(
        "case-study",
        "ResNet50: `dali-gpu`, fused and not, beside the synthetic ceiling",
        (
            "-m", "benchmarks.sweep", "--preset", "resnet50-case-study", "--runs", "1", "--whole",
            "--arguments", "--seconds 8 --images 1024",
        ),
        sources=("benchmarks/sweep.py", "benchmarks/common.py"),
    ),
)  # fmt: skip
ALWAYS = ("kernel_monitor", "torch", "torchvision", "Python")
"""What every part needs."""


def unmet(part: Part, checks: dict[str, Any]) -> str | None:
    """Why a part cannot run here, a sentence; None where it can."""
    lacking: dict[str, str] = checks["lacking"]
    reasons = [lacking[need] for need in (*ALWAYS, *part.needs) if need in lacking]
    return reasons[0] if reasons else None


def fingerprint(part: Part, checks: dict[str, Any]) -> str:
    """A digest of everything that a part's result depends on: command, machine, versions, sources."""
    found = hashlib.sha256(json.dumps([part.command, checks["found"], checks["machine"]]).encode())
    package = importlib.util.find_spec("kernel_monitor")
    folders = [Path(place) for place in (package.submodule_search_locations or ())] if package is not None else []
    for place in (*folders, *(ROOT / source for source in part.sources)):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            found.update(path.relative_to(place.parent).as_posix().encode())
            found.update(path.read_bytes())
    return found.hexdigest()
