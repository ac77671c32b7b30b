"""Optional parts of the package: the engine `ray`, the ranks of a job, sweeps, and the profiler.

Each is a package of this distribution with a module `plugin`, which defines what the rest of the package calls. Nothing
else of it is imported from outside (a contract in `pyproject.toml` says so), so that the product works without it.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType

PLUGINS = ("profiler", "ranks", "ray", "sweeps")


@cache
def plugin(name: str) -> ModuleType | None:
    """Return the module `plugin` of an optional package; None where the package is not installed."""
    if importlib.util.find_spec(f"{__package__}.{name}") is None:
        return None
    return importlib.import_module(f"{__package__}.{name}.plugin")
