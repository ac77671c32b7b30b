"""The file that a sweep keeps on disk: `sweep.json` in its folder, replaced as a whole after each pass."""

from __future__ import annotations

import json
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from .._version import DALI_PACKAGES, __version__
from ..errors import MonitorError
from ..os_process import usable_cores
from ..output import write
from ..sample.host.cpu import host_facts
from .presets import Grid

NAME = "sweep.json"
PAGE = "index.html"
RECORDINGS = "recordings"
FORMAT = 1


class SweepFile:
    """The passes of one sweep. A pass, all engines of a row once, is there as a whole or not at all."""

    def __init__(self, folder: Path, content: dict[str, Any]) -> None:
        self.folder = folder
        self.content = content

    @property
    def passes(self) -> list[dict[str, Any]]:
        """In the order in which they were measured."""
        found: list[dict[str, Any]] = self.content["passes"]
        return found

    def has(self, row: str, number: int) -> bool:
        return any((one["row"], one["number"]) == (row, number) for one in self.passes)

    def add(self, made: dict[str, Any]) -> None:
        """Keep a pass. Raises MonitorError if another process has measured into this folder meanwhile."""
        if read(self.folder).content != self.content:
            raise MonitorError(f"Another sweep writes into {self.folder}: give this one a folder with --output.")
        self.passes.append(made)
        self.save()

    def save(self) -> None:
        """Raises MonitorError if the disk does not take it."""
        write(self.folder / NAME, json.dumps(self.content, indent=1) + "\n")


def begin(folder: Path, grid: Grid, about: dict[str, Any], *, again: bool = False) -> SweepFile:
    """Return the sweep of this grid in a folder: a new one, or the one that is there, to go on with.

    Args:
        folder: it is made if need be.
        about: what else is kept of it: `machine`, `versions`, `images`.
        again: begin anew, whatever is there.

    Raises:
        MonitorError: the folder has the sweep of another grid, or cannot be used.
    """
    made = {"format": FORMAT, "grid": grid.to_json(), "began": time.time(), **about, "passes": []}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MonitorError(f"The folder {folder} cannot be made: {error.strerror}. Name another one.") from error
    if (folder / NAME).exists() and not again:
        found = read(folder)
        found.content["grid"].setdefault("quick", False)  # of an earlier version
        if found.content["grid"] != made["grid"]:
            raise MonitorError(
                f"{folder} has the sweep of another grid ({_difference(found.content['grid'], made['grid'])}): "
                "name another folder with --output, or measure anew with --again."
            )
        return found
    SweepFile(folder, made).save()
    return read(folder)


def read(folder: Path) -> SweepFile:
    """Return the sweep in a folder. Raises MonitorError if there is none that can be read."""
    try:
        content = json.loads((folder / NAME).read_text("utf-8"))
    except FileNotFoundError:
        raise MonitorError(f"{folder} has no {NAME}: it is no folder of a sweep.") from None
    except (OSError, ValueError) as error:
        raise MonitorError(f"{folder / NAME} cannot be read ({error}): delete it, or name another folder.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise MonitorError(f"{folder / NAME} was not written by this version: name another folder.")
    return SweepFile(folder, content)


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return the first setting in which two grids differ, in words."""
    for name, value in now.items():
        if before.get(name) != value:
            if name == "rows":
                return f"{len(before.get('rows') or ())} rows there, {len(value)} now, or other settings of them"
            return f"{name}: {before.get(name)} there, {value} now"
    return "other settings"


# ---- Machine and versions of a sweep, as they stand in its file and on its page: no name of a host or a user.

_PACKAGES = ("torch", "torchvision", "pillow", *DALI_PACKAGES)


def machine_facts() -> dict[str, Any]:
    """Return `machine` (processor, cores, memory in bytes, system, GPU or None) and `versions`."""
    import torch

    found = host_facts()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {"kernel-monitor": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "machine": {
            "processor": found["cpu_model"],
            "cores": found["logical_cpus"],
            "usable_cores": usable_cores(),
            "memory": found["memory_total"],
            "system": found["platform"],
            "gpu": gpu,
        },
        "versions": versions,
    }
