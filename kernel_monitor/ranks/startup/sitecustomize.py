"""Runs at the start of every Python process of a command that `kernel-monitor run` has started.

Python imports it because its folder is in PYTHONPATH. It removes that folder from `sys.path`, imports the user's own
`sitecustomize` if there is one, and measures the process once torch is imported. Its faults end no process, and any
Python 3 can run it, also one without kernel_monitor.
"""

from __future__ import annotations

import os
import sys
from typing import Any


class _AfterTorch:
    """An import finder that leaves torch to the other finders, and calls `_begin` after torch is imported."""

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec: Any = importlib.util.find_spec(name)
        loader = None if spec is None else spec.loader
        if loader is not None:
            original = loader.exec_module

            def exec_module(module: Any) -> None:
                del loader.exec_module
                original(module)
                _begin()

            loader.exec_module = exec_module
        return spec


def _begin() -> None:
    try:
        from kernel_monitor.ranks.script_process import begin

        begin()
    except Exception as error:  # whatever it is, the script goes on without it
        import logging

        logging.getLogger("kernel_monitor").info("this process is not measured (%r)", error)
        logging.getLogger("kernel_monitor").debug("The traceback of that:", exc_info=True)


def _say_whether_measured() -> None:
    """Say on stderr that the script's own process has not been measured; not in its forks."""
    if "torch" not in sys.modules and os.environ.get("KERNEL_MONITOR_RUN") == str(os.getpid()) and sys.stderr:
        sys.stderr.write("kernel-monitor: nothing was measured in this process, as it never imported torch\n")


def _import_users_sitecustomize() -> None:
    """Import the `sitecustomize` that Python would have imported without this one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would be imported for it
    sys.path[:] = [entry for entry in sys.path if os.path.normpath(entry) != here]  # no abspath: it needs a folder
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


# The processes of kernel_monitor itself, such as the sampler, are not measured.
if not any(word.partition(".")[0] == "kernel_monitor" for word in getattr(sys, "orig_argv", [])[1:]):
    sys.meta_path.insert(0, _AfterTorch())
    if os.environ.get("KERNEL_MONITOR_RUN") == str(os.getpid()):
        import atexit

        atexit.register(_say_whether_measured)
_import_users_sitecustomize()
