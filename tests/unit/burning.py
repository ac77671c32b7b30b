"""A model and an optimizer that take a known time, and loops over them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kernel_monitor.steps import watch_loader
from kernel_monitor.steps.measured_step import Step
from kernel_monitor.steps.phase_times import thread_phases, watched_models
from kernel_monitor.steps.watched_loader import live

BURN = 0.004  # s


def burn(seconds: float = BURN) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


class Back(torch.autograd.Function):
    """Does `work` on the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, work: Callable[[], object]) -> torch.Tensor:
        ctx.work = work
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.work()
        return gradients[0], None


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.raises: BaseException | None = None
        self.work: Callable[[float], None] = burn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.work(BURN)
        if self.raises is not None:
            raise self.raises
        made: torch.Tensor = Back.apply(self.linear(x), burn)
        return made


class Slow(torch.optim.SGD):
    """An optimizer that takes its time, too."""

    def step(self, closure: Any = None) -> Any:
        burn()
        return super().step(closure)


def as_before() -> Iterator[None]:
    """For a fixture: after the test, nothing is watched and torch has its own functions."""
    backward = torch.autograd.backward
    yield
    gc.collect()
    assert watched_models.count == 0
    assert torch.autograd.backward is backward
    assert thread_phases().idle


def x() -> torch.Tensor:
    return torch.ones(2, 4)


def spent() -> list[float]:
    book = thread_phases()
    return list(book.spent)


def over(loop: Any, count: int = 6) -> list[Step]:
    """The steps of a loop that calls `loop` in each, but for the first."""
    watching = watch_loader(range(count), name="over")
    for number in watching:
        loop(number)
    source = [one for one in live() if one.name == "over"][-1]
    return source.meter.steps_since(0)[0][1:]


def close(values: Sequence[float], expected: float) -> bool:
    """Return whether so long a burn was measured in each step, and in the quickest of them nothing else."""
    # Bursts of a loaded machine lengthen burns, though not every one; nothing shortens them.
    return min(values) >= expected and min(values) < expected + BURN
