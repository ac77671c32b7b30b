"""The phases of a watched model in the steps of a loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from kernel_monitor import monitor
from kernel_monitor.steps import phase, watch
from tests.unit.burning import BURN, Model, Slow, as_before, burn, close, over, x

clean = pytest.fixture(autouse=True)(as_before)


@pytest.fixture
def model() -> Model:
    return Model()


def test_forward_backward_and_optimizer_of_each_step(model: Model) -> None:
    optimizer = Slow(model.parameters(), lr=0.1)
    with monitor.watch(model, optimizer):

        def loop(number: int) -> None:
            model(x()).sum().backward()
            optimizer.step()

        steps = over(loop)
    assert len(steps) == 5
    assert close([one.forward for one in steps], BURN)
    assert close([one.backward for one in steps], BURN)
    assert close([one.optimizer for one in steps], BURN)
    for one in steps:
        assert math.isnan(one.copy)
        assert one.wait + one.forward + one.backward + one.optimizer <= one.step + 1e-9


def test_several_forwards_and_backwards_add_up_and_accumulation_leaves_steps_without_optimizer(model: Model) -> None:
    optimizer = Slow(model.parameters(), lr=0.1)
    with watch(model, optimizer):

        def loop(number: int) -> None:
            for _ in range(2):
                model(x()).sum().backward()
            if number % 2 == 0:
                optimizer.step()

        steps = over(loop)
    assert close([one.forward for one in steps], 2 * BURN)
    assert close([one.backward for one in steps], 2 * BURN)
    assert {one.optimizer for one in steps if one.batch % 2} == {0.0}
    assert close([one.optimizer for one in steps if one.batch % 2 == 0], BURN)


def test_without_the_optimizer_its_time_is_not_measured(model: Model) -> None:
    optimizer = Slow(model.parameters(), lr=0.1)
    with watch(model):
        steps = over(lambda number: (model(x()).sum().backward(), optimizer.step()))
    assert all(math.isnan(one.optimizer) for one in steps)
    assert all(one.step - one.forward - one.backward > BURN for one in steps)


def test_a_closure_s_forward_and_backward_are_not_the_optimizer_s(model: Model) -> None:
    optimizer = Slow(model.parameters(), lr=0.1)

    def closure() -> Any:
        loss = model(x()).sum()
        loss.backward()
        return loss

    with watch(model, optimizer):
        steps = over(lambda number: optimizer.step(closure))
    assert close([one.forward for one in steps], BURN)
    assert close([one.backward for one in steps], BURN)
    for one in steps:
        assert one.optimizer >= BURN
        assert one.forward + one.backward + one.optimizer <= one.step


def test_checkpointing_computes_again_inside_backward_and_counts_once(model: Model) -> None:
    with watch(model):
        steps = over(lambda number: checkpoint(model, x().requires_grad_(), use_reentrant=False).sum().backward())
    assert close([one.forward for one in steps], 2 * BURN)
    assert close([one.backward for one in steps], BURN)
    for one in steps:
        assert one.forward + one.backward <= one.step


def test_evaluation_without_gradients_has_a_forward_only(model: Model) -> None:
    def loop(number: int) -> None:
        with torch.no_grad():
            model(x())

    with watch(model):
        steps = over(loop)
    assert close([one.forward for one in steps], BURN)
    for one in steps:
        assert math.isnan(one.backward)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_in_forward_leaves_no_phase_open(model: Model, kind: type[BaseException]) -> None:
    def loop(number: int) -> None:
        model.raises = kind() if number == 2 else None
        if number == 2:
            with pytest.raises(kind):
                model(x())
        else:
            model(x())
        burn()

    with watch(model):
        steps = over(loop)
    others = [one for one in steps if one.batch != 2]
    assert close([one.forward for one in others], BURN)
    assert all(one.step - one.forward > BURN for one in others)


def test_an_exception_in_the_optimizer_leaves_no_phase_open(model: Model) -> None:
    optimizer = Slow(model.parameters(), lr=0.1)

    def closure() -> Any:
        raise ValueError("the closure's own")

    with watch(model, optimizer):

        def loop(number: int) -> None:
            if number == 2:
                with pytest.raises(ValueError, match="the closure's own"):
                    optimizer.step(closure)
            model(x())

        steps = over(loop)
    assert close([one.forward for one in steps], BURN)
    assert [one.optimizer for one in steps if one.batch > 2] == [0.0] * 3


def test_grad_scaler_and_optimizers_in_a_framework_s_own(model: Model) -> None:
    class Accelerated:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    optimizer = Slow(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with watch(model, Accelerated(optimizer)):  # type: ignore[arg-type]

        def loop(number: int) -> None:
            scaler.scale(model(x()).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        steps = over(loop)
    assert close([one.backward for one in steps], BURN)
    assert close([one.optimizer for one in steps], BURN)


def test_phases_by_hand_and_by_hooks_are_the_same_phases(model: Model) -> None:
    with watch(model):

        def loop(number: int) -> None:
            with phase("forward"):
                model(x())
                burn()

        steps = over(loop)
    assert close([one.forward for one in steps], 2 * BURN)
