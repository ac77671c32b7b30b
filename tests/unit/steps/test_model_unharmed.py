"""Watching changes nothing of the model or of torch that stays, whatever the model is wrapped in."""

from __future__ import annotations

import copy
import gc
import io
import math
import os
import pickle
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_monitor.errors import MonitorError
from kernel_monitor.steps import watch, watch_loader
from kernel_monitor.steps.phase_times import BACKWARD, FORWARD, OPTIMIZER, watched_models
from kernel_monitor.steps.watched_loader import live
from tests.unit.burning import BURN, Model, Slow, as_before, close, over, spent, x
from tests.unit.checks import loaded_by, threads

clean = pytest.fixture(autouse=True)(as_before)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.mark.parametrize("how", ["around", "in place", "in place later", "inside"])
def test_a_compiled_model_runs_in_one_graph_as_before(how: str) -> None:
    torch._dynamo.reset()
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    options: dict[str, Any] = {"backend": "eager", "fullgraph": True}
    if how == "in place":
        inner.compile(**options)
    model: Any = torch.compile(inner, **options) if how in ("around", "inside") else inner
    found = watch(inner if how == "inside" else model)
    if how == "in place later":
        inner.compile(**options)
        assert watch(inner) is found
    torch._dynamo.utils.counters.clear()
    steps = over(lambda number: model(x()).sum().backward())
    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    # What is called is not what is watched: its forward is unknown, not zero.
    assert all(math.isnan(one.forward) == (how == "inside") for one in steps)
    assert all(one.backward > 0 for one in steps)
    found.stop()
    assert model(x()).shape == (2, 4)
    assert not inner._forward_hooks
    after = spent()
    model(x()).sum().backward()
    assert spent() == after


def test_copies_and_files_of_a_watched_model_are_not_watched_and_need_nothing_of_ours(model: Model) -> None:
    optimizer = Slow(model.parameters(), lr=0.1)
    plain = torch.nn.Linear(4, 4)
    with watch(model, optimizer), watch(plain):
        file = io.BytesIO()
        torch.save(plain, file)
        assert b"kernel_monitor" not in pickle.dumps(plain) + file.getvalue()
        file.seek(0)
        copies = [copy.deepcopy(model), copy.deepcopy(plain), torch.load(file, weights_only=False)]
        assert list(model.state_dict()) == ["linear.weight", "linear.bias"]
        twin = copy.deepcopy(optimizer)
        before = spent()
        for one in copies:
            one(x())
        twin.step()
        assert spent() == before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not model._forward_hooks_always_called
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_watching_again_is_the_same_watch_with_both_optimizers(model: Model) -> None:
    first, second = Slow(model.parameters(), lr=0.1), Slow(model.parameters(), lr=0.1)
    found = watch(model, first)
    assert watch(model, first) is found
    assert watch(model) is found
    assert watch(model, second) is found
    assert watched_models.count == 1
    found_times = []
    for _ in range(5):
        before = spent()
        model(x())
        first.step()
        second.step()
        found_times.append([after - earlier for after, earlier in zip(spent(), before, strict=True)])
    assert close([times[FORWARD] for times in found_times], BURN)
    assert close([times[OPTIMIZER] for times in found_times], 2 * BURN)
    found.stop()
    found.stop()
    assert not found.running
    assert repr(found) == "<Watch, stopped>"
    after = spent()
    model(x()).sum().backward()
    assert spent() == after
    again = watch(model)
    assert again is not found
    assert repr(again) == "<Watch of Model>"
    again.stop()


def test_a_model_that_is_gone_is_not_watched_and_neither_is_kept_alive() -> None:
    model = Model()
    optimizer = Slow(model.parameters(), lr=0.1)
    found: Any = watch(model, optimizer)
    dead = weakref.ref(model), weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert dead[1]() is None
    assert found.running
    del model
    gc.collect()
    assert dead[0]() is None
    assert not found.running
    assert watched_models.count == 0


def test_one_model_in_two_threads_is_in_each_one_s_own_steps(model: Model) -> None:
    results: dict[int, list[float]] = {}
    model.work = time.sleep  # two threads cannot burn at the same time

    def run(count: int) -> None:
        watching = watch_loader(range(6), name=f"thread {count}")
        for _ in watching:
            for _ in range(count):
                model(x())
        source = next(one for one in live() if one.name == f"thread {count}")
        results[count] = [one.forward for one in source.meter.steps_since(0)[0][1:]]

    with watch(model), threads(lambda: run(1), lambda: run(4)):
        pass
    assert all(value >= BURN for value in results[1])
    assert all(value >= 4 * BURN for value in results[4])
    assert min(results[1]) < 4 * BURN


def test_a_step_in_which_watching_begins_or_ends_has_no_phases(model: Model) -> None:
    found: list[Any] = []

    def loop(number: int) -> None:
        if number == 2:
            found.append(watch(model))
        model(x())
        if number == 5:
            found[0].stop()

    phased = {one.batch: not math.isnan(one.forward) for one in over(loop, 8)}
    assert phased == {1: False, 2: False, 3: True, 4: True, 5: False, 6: False, 7: False}


def test_somebody_else_s_wrapper_around_ours_stays(model: Model) -> None:
    original = torch.autograd.backward
    found, calls = watch(model), []
    ours = torch.autograd.backward

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return ours(*args, **kwargs)

    try:
        torch.autograd.backward = theirs
        found.stop()
        assert torch.autograd.backward is theirs
        before = spent()
        model(x()).sum().backward()
        assert spent() == before
        with watch(model):
            model(x()).sum().backward()
        assert spent()[BACKWARD] - before[BACKWARD] >= BURN
        assert len(calls) == 2
    finally:
        torch.autograd.backward = ours
        with watch(model):
            pass
    assert torch.autograd.backward is original


def test_what_is_not_torch_s_is_refused_with_what_to_do() -> None:
    with pytest.raises(MonitorError, match=r"phase\('forward'\)"):
        watch(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(MonitorError, match=r"phase\('optimizer'\)"):
        watch(torch.nn.Linear(1, 1), object())  # type: ignore[arg-type]


FORKED = """
import os, sys, torch
from kernel_monitor.steps import phase, step, watch, watch_loader
from kernel_monitor.steps.phase_times import thread_phases, watched_models
from kernel_monitor.steps.watched_loader import live

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
found = watch(model, optimizer)
kept = watch_loader(range(3))
with step(), phase("forward"):
    model(torch.ones(1, 2))
child = os.fork()
if child == 0:
    try:
        assert watched_models.count == 0
        assert live() == []
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert thread_phases().spent == [0.0] * 5, thread_phases().spent
        found.stop()
        list(kept)
        os._exit(0)
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert watched_models.count == 1
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
assert all(value > 0 for value in thread_phases().spent[1:4])
"""


def test_in_a_forked_child_everything_is_inert() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_steps_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import kernel_monitor.steps as steps; from kernel_monitor import watch_loader\n"
        "list(watch_loader(range(3)))\n"
        "with steps.step(), steps.phase('copy'): pass"
    )
    assert loaded_by(code, "torch", "numpy") == []


def test_a_script_that_watches_ends_without_a_word(tmp_path: Path) -> None:
    """Its model lives until Python ends, when the globals of our modules are gone."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom kernel_monitor import monitor\n"
        "model = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "monitor.watch(model, optimizer)\nmodel(torch.ones(1, 2)).sum().backward()\noptimizer.step()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
