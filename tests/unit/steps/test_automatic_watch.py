"""Phases of loops that call no `watch`, and that training and torch stay as they are."""

from __future__ import annotations

import copy
import gc
import math
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.modules import module as module_hooks
from torch.utils.data import DataLoader, TensorDataset

from kernel_monitor.steps import attached, automatic_watch, boundary, watch, watch_loader
from kernel_monitor.steps.measured_step import Step
from kernel_monitor.steps.phase_times import OPTIMIZER, thread_phases, watched_models
from kernel_monitor.steps.watched_loader import live
from tests.unit.burning import BURN, Model, Slow, as_before, close, x

BATCHES = 8
TRAINED = {"forward", "backward", "optimizer"}
PARTLY = {"backward", "optimizer"}

Parameters = list[torch.Tensor]


made: list[DataLoader[Any]] = []  # by this test: a loader's steps go with it


@pytest.fixture(autouse=True)
def clean(heap_frozen: None) -> Iterator[None]:
    """After the test, torch has its own functions and no hooks."""
    before = torch_functions()
    watched = as_before()
    next(watched)
    yield
    attached.detach()
    made.clear()
    next(watched, None)
    assert torch_functions() == before


def torch_functions() -> list[Any]:
    optimizers = sys.modules["torch.optim.optimizer"]
    return [
        (torch.autograd.backward, DataLoader.__iter__),
        (torch.jit._recursive.get_hook_stubs, torch.cuda.make_graphed_callables),
        dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks),
        dict(module_hooks._global_forward_pre_hooks), dict(module_hooks._global_forward_hooks),
    ]  # fmt: skip


def batches(count: int = BATCHES) -> DataLoader[Any]:
    random = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(4 * count, 6, generator=random), torch.randn(4 * count, 2, generator=random))
    made.append(DataLoader(data, batch_size=4, shuffle=True))
    return made[-1]


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    )


def loss(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(found.float(), wanted)


# ---- Loops as people write them. Each returns the modules that it trained.


def plain(make: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)) -> list[torch.nn.Module]:
    model = network()
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * BATCHES)  # wraps `optimizer.step`
    loader = batches()
    for _ in range(2):
        for images, wanted in loader:
            optimizer.zero_grad()
            loss(model(images), wanted).backward()
            optimizer.step()
            schedule.step()
    return [model]


def adam() -> list[torch.nn.Module]:
    return plain(lambda parameters: torch.optim.AdamW(parameters, lr=0.01))


def accumulation() -> list[torch.nn.Module]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = batches()
    for _ in range(2):
        for number, (images, wanted) in enumerate(loader):
            loss(model(images), wanted).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    return [model]


def mixed_precision() -> list[torch.nn.Module]:
    model, scaler = network(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for images, wanted in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(images)
        scaler.scale(loss(found, wanted)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [model]


def closures() -> list[torch.nn.Module]:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for images, wanted in batches():

        def closure(images: torch.Tensor = images, wanted: torch.Tensor = wanted) -> torch.Tensor:
            optimizer.zero_grad()
            found = loss(model(images), wanted)
            found.backward()
            return found

        optimizer.step(closure)
    return [model]


def adversaries() -> list[torch.nn.Module]:
    maker, judge = (
        torch.nn.Linear(3, 6),
        torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)),
    )
    makers, judges = torch.optim.Adam(maker.parameters(), 0.01), torch.optim.Adam(judge.parameters(), 0.01)
    for images, _ in batches():
        judges.zero_grad()
        (judge(maker(torch.randn(4, 3)).detach()).mean() - judge(images).mean()).backward()
        judges.step()
        makers.zero_grad()
        (-judge(maker(torch.randn(4, 3))).mean()).backward()
        makers.step()
    return [maker, judge]


def backbone_and_head() -> list[torch.nn.Module]:
    backbone, head = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    for images, wanted in batches():
        optimizer.zero_grad()
        loss(head(backbone(images).relu()), wanted).backward()
        optimizer.step()
    return [backbone, head]


def layer_by_layer() -> list[torch.nn.Module]:
    layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(12))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for images, wanted in batches():
        optimizer.zero_grad()
        found = images
        for layer in layers:
            found = layer(found)
        loss(found[:, :2], wanted).backward()
        optimizer.step()
    return [layers]


def optimizers_in_backward() -> list[torch.nn.Module]:
    model = network()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)
    for images, wanted in batches():
        loss(model(images), wanted).backward()
    return [model]


class Wrapper:
    """An optimizer of a framework, around one of torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


def wrapped_optimizer() -> list[torch.nn.Module]:
    model = network()
    optimizer: Any = Wrapper(torch.optim.Adam(model.parameters(), lr=0.01))
    for images, wanted in batches():
        optimizer.zero_grad()
        loss(model(images), wanted).backward()
        optimizer.step()
    return [model]


def scripted() -> list[torch.nn.Module]:
    model = torch.jit.script(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, wanted in batches():
        optimizer.zero_grad()
        loss(model(images), wanted).backward()
        optimizer.step()
    return [model]


def compiled_local() -> list[torch.nn.Module]:
    torch._dynamo.reset()
    inner = network()
    model = torch.compile(inner, backend="eager")
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    for images, wanted in batches():
        optimizer.zero_grad()
        loss(model(images), wanted).backward()
        optimizer.step()
    return [inner]


def transformer() -> list[torch.nn.Module]:
    """Evaluates after the training: torch has a fast path for layers without hooks, with other rounding."""
    layer = torch.nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    loader = batches()
    for _ in range(2):
        for images, wanted in loader:
            optimizer.zero_grad()
            loss(layer(images[:, None])[:, 0, :2], wanted).backward()
            optimizer.step()
    layer.eval()
    with torch.no_grad():
        layer.register_buffer("found", layer(torch.ones(2, 3, 6)))
    return [layer]


compiled_model: Any = None


def compiled_global() -> list[torch.nn.Module]:
    global compiled_model  # noqa: PLW0603 - as in a script
    torch._dynamo.reset()
    inner = network()
    compiled_model = torch.compile(inner, backend="eager")
    optimizer = torch.optim.SGD(compiled_model.parameters(), lr=0.1)
    for images, wanted in batches():
        optimizer.zero_grad()
        loss(compiled_model(images), wanted).backward()
        optimizer.step()
    compiled_model = None
    return [inner]


def compiled_in_place() -> list[torch.nn.Module]:
    global compiled_model  # noqa: PLW0603 - as in a script
    torch._dynamo.reset()
    inner = compiled_model = network()
    compiled_model.compile(backend="eager")
    optimizer = torch.optim.SGD(compiled_model.parameters(), lr=0.1)
    for images, wanted in batches():
        optimizer.zero_grad()
        loss(compiled_model(images), wanted).backward()
        optimizer.step()
    compiled_model = None
    return [inner]


def distributed() -> list[torch.nn.Module]:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = network()
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        for number, (images, wanted) in enumerate(batches()):
            optimizer.zero_grad()
            if number % 2:
                with parallel.no_sync():
                    loss(parallel(images), wanted).backward()
            else:
                loss(parallel(images), wanted).backward()
            optimizer.step()
        return [model]
    finally:
        torch.distributed.destroy_process_group()


LOOPS: list[tuple[Callable[[], list[torch.nn.Module]], set[str]]] = [
    (plain, TRAINED), (adam, TRAINED), (accumulation, TRAINED), (mixed_precision, TRAINED), (closures, TRAINED),
    (adversaries, TRAINED), (backbone_and_head, TRAINED), (layer_by_layer, PARTLY), (optimizers_in_backward, TRAINED),
    (wrapped_optimizer, TRAINED), (scripted, PARTLY), (compiled_local, PARTLY), (compiled_global, TRAINED),
    (compiled_in_place, TRAINED), (distributed, TRAINED), (transformer, PARTLY),
]  # fmt: skip


def run(loop: Callable[[], list[torch.nn.Module]]) -> tuple[Parameters, torch.Tensor, list[list[str]]]:
    """Return what the loop leaves: the parameters and buffers, the state of the random numbers, the hooks."""
    torch.manual_seed(0)
    models = loop()
    values = [value.detach().clone() for model in models for value in model.state_dict().values()]
    hooks = [sorted(key for key in vars(inside) if "hook" in key) for model in models for inside in model.modules()]
    return values, torch.get_rng_state(), hooks


def steps() -> list[Step]:
    """Return the steps of the newest loader."""
    source = attached.attached(made[-1])
    assert source is not None
    return source.meter.steps_since(0)[0]


def seen(step: Step) -> set[str]:
    return {name for name in ("copy", *TRAINED) if not math.isnan(getattr(step, name))}


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize(("loop", "phases"), LOOPS, ids=[loop.__name__ for loop, _ in LOOPS])
def test_a_loop_has_phases_and_the_same_result(
    loop: Callable[[], list[torch.nn.Module]], phases: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "compiled" not in loop.__name__:
        monkeypatch.setattr(automatic_watch, "_torch_compiles", lambda: False)  # other tests of this process do
    expected = run(loop)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    attached.attach()
    found: list[Step] = []
    trained: list[torch.nn.Module] = []

    def measured() -> list[torch.nn.Module]:
        trained.extend(loop())
        found.extend(steps())
        return trained

    values, numbers, hooks = run(measured)
    attached.detach()
    assert all(torch.equal(value, other) for value, other in zip(values, expected[0], strict=True))
    assert torch.equal(numbers, expected[1])
    assert hooks == expected[2]
    assert not any(
        inside._forward_hooks or inside._forward_pre_hooks for model in trained for inside in model.modules()
    )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2 * graphs
    assert seen(found[-1]) == phases
    assert all(seen(step) <= phases for step in found)
    for step in found:
        parts = [step.wait, step.forward, step.backward, step.optimizer]
        assert sum(part for part in parts if not math.isnan(part)) <= step.step + 1e-9


def train(model: Any, optimizer: Any, source: Any = None, work: Callable[[int], object] = lambda number: None) -> None:
    for number, _ in enumerate(batches() if source is None else source):
        model(x()).sum().backward()
        optimizer.step()
        work(number)


@pytest.fixture(autouse=True)
def eager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, whatever other tests of this process have done."""
    if "loop" not in request.fixturenames:
        monkeypatch.setattr(automatic_watch, "_torch_compiles", lambda: False)


def test_the_phases_are_those_of_a_watched_model() -> None:
    model = Model()
    optimizer = Slow(model.parameters(), lr=0.1)
    attached.attach()
    train(model, optimizer)
    found = steps()
    assert len(found) == BATCHES
    later = found[2:]
    assert close([step.forward for step in later], BURN)
    assert close([step.backward for step in later], BURN)
    rest = [step.step - step.wait - step.forward - step.backward - step.optimizer for step in later]
    assert min(rest) < BURN
    assert min(step.optimizer for step in later) < 2 * BURN


def test_evaluation_has_the_forward_of_the_model_that_is_trained() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached.attach()
    train(model, optimizer)
    validation = batches()
    with torch.no_grad():
        for _ in validation:
            model(x())
    source = attached.attached(validation)
    assert source is not None
    assert [seen(step) for step in source.meter.steps_since(0)[0]] == [{"forward"}] * BATCHES


def test_what_the_user_watches_is_all_that_is_watched() -> None:
    model, other = Model(), Model()
    optimizer, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
    attached.attach()
    train(model, optimizer)
    train(other, second)
    assert len(model._forward_hooks) == len(other._forward_hooks) == 1
    found = watch(other, second)
    assert not model._forward_hooks
    assert len(other._forward_hooks) == len(second._optimizer_step_pre_hooks) == 1
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not model._forward_hooks
    attached.detach()
    assert len(other._forward_hooks) == watched_models.count == 1
    found.stop()
    assert not other._forward_hooks


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_a_model_is_scripted_pickled_and_copied_as_if_it_were_not_watched() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached.attach()
    results: list[Any] = []

    def work(number: int) -> None:
        if number in (0, 1, 5):
            results.append((torch.jit.script(model), pickle.dumps(model), copy.deepcopy(model)))
            assert len(model._forward_hooks) == (number > 0)

    for number, (images, wanted) in enumerate(batches()):
        loss(model(images), wanted).backward()
        optimizer.step()
        work(number)
    assert all(b"kernel_monitor" not in pickled for _, pickled, _ in results)
    attached.detach()
    for scripted_model, pickled, copied in results:  # the scripted model has the parameters themselves
        assert torch.equal(scripted_model(torch.ones(4, 6)), model(torch.ones(4, 6)))
        assert torch.equal(copied(torch.ones(4, 6)), pickle.loads(pickled)(torch.ones(4, 6)))  # noqa: S301 - made above


def test_a_step_that_raises_leaves_no_phase_open_and_the_error_is_the_user_s() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached.attach()

    def fails() -> Any:
        raise KeyError("the user's")

    def work(number: int) -> None:
        with pytest.raises(KeyError, match="the user's"):
            optimizer.step(fails)

    train(model, optimizer, work=work)
    assert all(seen(step) == TRAINED for step in steps()[3:])


def test_a_fault_of_ours_is_logged_once_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(automatic_watch, "_faulty", False)
    monkeypatch.setattr(automatic_watch, "_parameters", lambda optimizer: 1 / 0)
    attached.attach()
    model = Model()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model = Model()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(caplog.records) == 1
    caplog.clear()


class Odd(torch.nn.Linear):
    """A module whose parameters cannot be listed, or that takes no hooks."""

    def parameters(self, recurse: bool = True) -> Any:
        raise RuntimeError("not now")


def test_a_module_that_cannot_be_looked_at_is_not_watched(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(automatic_watch, "_faulty", False)
    attached.attach()
    odd = Odd(4, 4)
    train(odd, torch.optim.SGD([odd.weight, odd.bias], lr=0.1))
    assert len(caplog.records) == 1
    caplog.clear()
    assert seen(steps()[-1]) == PARTLY


def test_optimizers_of_other_threads_and_of_loops_that_are_not_measured_are_left_alone() -> None:
    model = Model()
    attached.attach()
    next(iter(batches()))
    before = list(thread_phases().spent)

    def other() -> None:
        model(x()).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert watched_models.count == 0
    assert thread_phases().spent == before


def test_a_watched_iterable_has_phases_too_once_loaders_are_attached() -> None:
    model = Model()
    attached.attach()
    iterable = watch_loader(range(6), name="iterable")
    train(model, Slow(model.parameters(), lr=0.1), iterable)
    (source,) = [source for source in live() if source.name == "iterable"]
    assert seen(source.meter.steps_since(0)[0][-1]) == TRAINED


def test_detached_in_the_middle_of_a_step_by_another_thread_the_hooks_go_at_its_boundary() -> None:
    model = Model()
    inside, goes_on = threading.Event(), threading.Event()

    class Waits(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if len(model._forward_hooks):
                inside.set()
                assert goes_on.wait(60)
            return super().step(closure)

    def stop() -> None:
        assert inside.wait(60)
        attached.detach()
        assert len(torch_functions()[2]) == 1
        goes_on.set()

    attached.attach()
    thread = threading.Thread(target=stop)
    thread.start()
    train(model, Waits(model.parameters(), lr=0.1), watch_loader(range(6)))
    thread.join()
    assert torch_functions()[2:] == [{}, {}, {}, {}]
    assert boundary.waiting == ()


def test_detached_in_a_function_its_loader_goes_when_that_returns() -> None:
    def run() -> weakref.ref[DataLoader[Any]]:
        loader = batches()
        made.clear()
        attached.attach()
        for _ in loader:
            pass
        attached.detach()
        return weakref.ref(loader)

    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()


def test_a_forked_child_has_no_hooks() -> None:
    attached.attach()
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    status: list[int] = []

    def work(number: int) -> None:
        if number in (0, 4):  # the model is looked for, and is watched
            child = os.fork()
            if child == 0:
                functions = torch_functions()
                inert = functions[2:] == [{}, {}, {}, {}] and attached.attached(batches()) is None
                model(x())
                optimizer.step()
                os._exit(0 if inert and thread_phases().spent[OPTIMIZER] == 0.0 else 1)
            status.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    train(model, optimizer, work=work)
    assert status == [0, 0]
    assert len(torch_functions()[2]) == 1
