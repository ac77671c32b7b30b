"""torch.profiler on the thread of a training loop; gives way to a profiler that the loop's own code starts.

The profiler's state belongs to its thread, so the loop's own thread starts and stops it. `save` is C++ that releases
the GIL, and the trace is read by another process (`operators`); `let_go` holds the GIL.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import MonitorError

OTHER = "Another profiler is running in this process: only one can at a time. Profile again when it has ended."
# The least severe message that kineto, torch.profiler's C++ part, may write to stderr: none. At its own default it
# writes two lines into the cell's output for each profile, and an error where there is no GPU.
_SILENT = "99"


class OperatorProfile:
    """One profile: `start`, `stop` (both on the loop's thread), `save` (on any), `let_go` (between two steps).

    `displaced` is called, on the loop's thread, when the loop's own code starts a profiler in the meantime. Ours has
    been stopped by then and gives way.
    """

    def __init__(self, displaced: Callable[[], None]) -> None:
        self._displaced = displaced
        self._profile: Any = None
        self._running = False
        self._give_back: Callable[[], None] | None = None
        self.gpu_reason: str | None = None

    def start(self) -> None:
        """Raises a `MonitorError` where there is no torch in this process, or another profiler is running."""
        if "torch" not in sys.modules:
            raise MonitorError("Nothing to profile: torch is not in use in this process.")
        import torch
        from torch.profiler import ProfilerActivity

        if in_use():
            raise MonitorError(OTHER)
        activities = [ProfilerActivity.CPU]
        self.gpu_reason = gpu_reason()
        if self.gpu_reason is None:
            activities.append(ProfilerActivity.CUDA)
        with _silence():
            # Where torch clears the events of each cycle, it warns that it does; not in all versions.
            known = inspect.signature(torch.profiler.profile).parameters
            more: dict[str, Any] = {"acc_events": True} if "acc_events" in known else {}
            self._profile = torch.profiler.profile(activities=activities, **more)
            self._give_back = _watch_for_others(self._profile, self._give_way)
            try:
                self._profile.start()
            except BaseException:
                self._give_back()
                raise
        self._running = True

    def stop(self) -> None:
        """End; does nothing where it has ended."""
        if not self._running:
            return
        self._running = False
        if self._give_back is not None:
            self._give_back()
        self._profile.stop()

    def save(self, path: Path) -> None:
        """Write the trace as JSON; raises a `MonitorError` where the profiler has no results."""
        profile = self._profile
        # Without results torch would follow a null pointer.
        if profile is None or getattr(profile.profiler, "kineto_results", None) is None:
            raise MonitorError("The profiler of torch returned no trace.")
        profile.export_chrome_trace(str(path))

    def let_go(self) -> bool:
        """Free the memory of a profile that has ended; returns whether there was any.

        It may take as long as a step (`freed` in `benchmarks.stalls`), and the GIL is held. torch's object is in a
        cycle with its own methods: left to Python's collector, it would be freed at any time, in the middle of a step.
        """
        if self._running or self._profile is None:
            return False
        profile, self._profile = self._profile, None
        if profile.profiler is not None:
            profile.profiler.kineto_results = None
        return True

    def _give_way(self) -> None:
        self.stop()
        self._displaced()


def in_use() -> bool:
    """Whether a profiler runs in this process, on this thread or, as far as torch tells, on another."""
    from torch import autograd

    here: Callable[[], bool] = getattr(autograd, "_profiler_enabled", lambda: False)
    return here() or bool(getattr(autograd.profiler, "_is_profiler_enabled", False))


def gpu_reason() -> str | None:
    """Why kernels of a GPU cannot be listed; None if they can."""
    import torch
    from torch.profiler import ProfilerActivity, supported_activities

    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU that it can use"
    if ProfilerActivity.CUDA not in supported_activities():
        return "this torch is built without CUPTI, which lists the kernels"
    return None if torch.cuda.is_initialized() else "this process has not used the GPU"


def _watch_for_others(ours: Any, give_way: Callable[[], None]) -> Callable[[], None]:
    """Have `give_way` called before another profiler starts on this thread; returns what ends that.

    Two profilers on a thread take each other's results, and asking for those of the loser crashes the process.
    """
    from torch.autograd import profiler

    profile: Any = profiler.profile
    original = getattr(profile, "_prepare_trace", None)
    if original is None:
        return lambda: None
    thread = threading.get_ident()

    def prepare(self: Any) -> Any:
        if self is not getattr(ours, "profiler", None) and threading.get_ident() == thread:
            give_way()
        return original(self)

    def give_back() -> None:
        if profile._prepare_trace is prepare:
            profile._prepare_trace = original

    profile._prepare_trace = prepare
    return give_back


@contextmanager
def _silence() -> Iterator[None]:
    """Kineto reads this variable once, when it is first used."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = _SILENT
    try:
        yield
    finally:
        os.environ.pop(name, None)
