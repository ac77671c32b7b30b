"""Steps and phases that the loop marks itself: `with step():` and `with phase("copy"):`."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Self

from ..errors import MonitorError
from . import cuda_times
from .measured_step import PHASES
from .phases import thread_phases
from .sources import Epoch, Source
from .step_meter import StepClock


class phase:  # noqa: N801 - used as a function
    """Count what is done in this block as a phase of the step: `copy`, `forward`, `backward` or `optimizer`.

    A block inside another one counts for itself only.

    Raises:
        MonitorError: there is no such phase.
    """

    def __init__(self, name: str) -> None:
        if name not in PHASES:
            raise MonitorError(f"There is no phase {name!r}. The phases are: {', '.join(PHASES)}.")
        self._kind = PHASES.index(name)

    def __enter__(self) -> None:
        phases = thread_phases()
        if not phases.on_device and _cuda_in_use():
            cuda_times.use_cuda()
            phases.on_device = True
        phases.enter(self._kind)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        thread_phases().leave(self._kind)


def _cuda_in_use() -> bool:
    # Not there without PyTorch, nor while another thread imports it.
    initialized = getattr(getattr(sys.modules.get("torch"), "cuda", None), "is_initialized", None)
    return initialized is not None and bool(initialized())


class _Loop:
    """A loop of this thread under `step`."""

    def __init__(self, name: str) -> None:
        self.source = Source(name)
        self.clock = StepClock(self.source.meter)
        self.epoch: Epoch = self.source.begin()
        self.open = False


class _Loops(threading.local):
    """This thread's loops by name; they end with the thread."""

    def __init__(self) -> None:
        self.by_name: dict[str, _Loop] = {}


_loops = _Loops()


class step:  # noqa: N801 - used as a function
    """One step of a loop that has no loader to watch; gives itself to `as`.

    The step is what is done in the block. Call `got` when the batch has come, else the wait is not measured. A block
    that raises is no step.

    Args:
        name: of the loop; loops of one thread with different names are different sources.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = "steps" if name is None else name
        self._loop: _Loop | None = None
        self._samples = 0

    def __enter__(self) -> Self:
        loop = _loops.by_name.get(self._name)
        if loop is None:
            loop = _loops.by_name[self._name] = _Loop(self._name)
        if loop.open:
            raise MonitorError(f"A step of {self._name!r} is inside another one. Name one of the loops: step('inner').")
        loop.clock.ask()
        loop.clock.went_on()
        loop.open = True
        self._loop, self._samples = loop, 0
        return self

    def got(self, samples: int = 0) -> None:
        """The batch has come, of so many samples: what the step took so far was the wait for it.

        A MonitorError outside of the step's block.
        """
        loop = self._loop
        if loop is None:
            raise MonitorError("got() belongs inside the block: with monitor.step() as step: step.got(len(batch))")
        loop.clock.got(samples, epoch=loop.epoch.number, batch=loop.epoch.batches)
        self._samples += samples

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.open = False
        if error is not None:
            loop.clock.stop()
            return
        loop.clock.finish(loop.epoch.number, loop.epoch.batches)
        loop.epoch.batches += 1
        loop.epoch.samples += self._samples
