"""Optional parts of the package: the profiler, the ranks of a job, the engine `ray`, and sweeps.

Each is a package of this distribution with a module `plugin`, which the rest of the package asks for by `plugin(name)`
and never imports (a contract in `pyproject.toml` says so): with the folder deleted, everything else works. What a
module `plugin` may define:

- `COMMANDS`: `Command`s of the command line; `run(options)` returns the exit status.
- `MAGICS`: `Command`s of `%monitor`; `run(monitor, options)` returns what to print, a text or a `Later`.
- `REQUESTS`: `Request`s of pages.
- the functions that one place of the core calls: `live_ranks` and `follow` of `ranks`, `profiler` of `profiler`,
  `sweep` of `sweeps`.

A module `plugin` imports nothing heavy at its top, because all of them are imported for the command line's help.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from .errors import MonitorError

PLUGINS = {
    "profiler": "The profiler is",
    "ranks": "Ranks are",
    "ray": "The engine ray is",
    "sweeps": "Sweeps are",
}
"""The names of the optional packages, each with the beginning of the sentence that says that it is missing."""

_COMMANDS = {
    "join": "ranks",
    "profile": "profiler",
    "run": "ranks",
    "sweep": "sweeps",
    "switch": "ranks",
}
"""The commands and requests of each, by which a missing one is named."""


class Command(NamedTuple):
    """A command of the command line or of `%monitor`."""

    name: str
    help: str  # of the command line one line; of `%monitor` the command's lines in `%monitor help`
    run: Callable[..., Any]
    add_arguments: Callable[[argparse.ArgumentParser], object] = lambda _parser: None
    description: str = ""  # of the command line


class Later(NamedTuple):
    """An answer of `%monitor` that a later cell prints."""

    text: str  # printed at once; the place of the answer follows it
    answer: Callable[[], str | None]  # called after each cell until it returns the answer


class Request(NamedTuple):
    """A request of pages: `answer` takes the monitor and the arguments, which `fields` has checked, and replies."""

    name: str
    answer: Callable[[Any, Mapping[str, Any]], Mapping[str, object]]
    fields: Callable[[Any], Any]
    slow: bool = False  # takes more than a millisecond, and is answered on a thread


@cache
def plugin(name: str) -> ModuleType | None:
    """Return the module `plugin` of an optional package; None where the package is not installed."""
    package = f"{__package__}.{name}"
    try:
        return importlib.import_module(f"{package}.plugin")
    except ModuleNotFoundError as error:
        if error.name not in (package, f"{package}.plugin"):
            raise
        return None


def contributions(kind: str) -> list[Any]:
    """Return the `COMMANDS`, `MAGICS` or `REQUESTS` of all optional packages that are installed."""
    modules = [found for name in PLUGINS if (found := plugin(name)) is not None]
    return [entry for module in modules for entry in getattr(module, kind, ())]


def missing(name: str) -> MonitorError:
    """Return the error that says that an optional package is not installed."""
    return MonitorError(f"{PLUGINS[name]} not part of this installation of kernel_monitor.")


def missing_command(command: str) -> MonitorError | None:
    """Return the same for a command of a package that is not installed; None for any other command."""
    name = _COMMANDS.get(command)
    return missing(name) if name is not None and plugin(name) is None else None
