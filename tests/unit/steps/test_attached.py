"""Attached DataLoaders: their names and entries, and torch's classes, which are restored."""

from __future__ import annotations

import functools
import gc
import importlib.util
import math
import multiprocessing
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from kernel_monitor import watch_loader
from kernel_monitor.runtime import Monitor
from kernel_monitor.steps import attached
from kernel_monitor.steps.attached_loader import AttachedLoader
from kernel_monitor.steps.watched_loader import live

ITER, NEXT = DataLoader.__iter__, _BaseDataLoaderIter.__next__


def in_place() -> tuple[Any, Any]:
    return vars(DataLoader)["__iter__"], vars(_BaseDataLoaderIter)["__next__"]


def is_plain() -> bool:
    return in_place() == (ITER, NEXT) and not hasattr(sys.modules[attached.MODULE], "_kernel_monitor_attached")


@pytest.fixture(autouse=True)
def attaching() -> Iterator[None]:
    gc.collect()
    assert is_plain()
    assert attached.attach()
    yield
    attached.detach()
    assert is_plain()


def numbers(samples: int = 8, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(samples)), **{"batch_size": 2, **options})


def entry(loader: Any) -> AttachedLoader:
    found = attached.attached(loader)
    assert found is not None
    return found


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loop_site", "loader_name", "loader_kinds.keeps", "AttachedSteps", "AttachedLoader"])
def test_a_fault_of_ours_costs_the_measurement_and_no_batch(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault")

    module = "kernel_monitor.steps.attached_entries" if name == "AttachedLoader" else attached.__name__
    monkeypatch.setattr(f"{module}.{name}", fault)
    assert [batch.tolist() for (batch,) in numbers()] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert "a fault in kernel_monitor: a DataLoader is not measured" in caplog.text


# -- entries ----------------------------------------------------------------------------------------------------------

val_loader: Any = None


def test_steps_and_epochs_are_counted() -> None:
    loader = numbers()
    for _ in range(2):
        assert [batch.tolist() for (batch,) in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    found = entry(loader)
    assert [(one["epoch"], one["batches"], one["samples"], one["finished"]) for one in found.epochs()] == [
        (0, 4, 8, True), (1, 4, 8, True)
    ]  # fmt: skip
    assert found.length == 4
    steps = found.meter.steps_since(0)[0]
    assert [(one.epoch, one.batch) for one in steps] == [(epoch, batch) for epoch in (0, 1) for batch in range(4)]
    assert all(not math.isnan(one.wait) for one in steps)
    assert found.meter.idle


@pytest.mark.parametrize(
    ("collate", "given"),
    [
        pytest.param(lambda rows: tuple(zip(*rows, strict=True)), 1, id="lists, as of detection"),
        pytest.param(lambda rows: torch.cat([row[0][None] for row in rows] * 2), 6, id="two views in one tensor"),
        pytest.param(lambda rows: rows[:1], 1, id="others dropped"),
        pytest.param(lambda rows: {"rows": rows}, 1, id="dictionary"),
    ],
)
def test_a_batch_has_as_many_samples_as_indices_whatever_the_collate_function_makes_of_them(
    collate: Any, given: int
) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(7, 3, 4, 4)), batch_size=3, collate_fn=collate)
    assert len(next(iter(loader))) == given
    for _ in loader:
        pass
    newest = entry(loader).epochs()[-1]
    assert (newest["samples"], newest["planned"], newest["lost"]) == (7, 7, 0)


def test_the_samples_of_batches_of_several_sizes_are_those_in_the_batch() -> None:
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_sampler=[[0, 1, 2], [3], [4, 5, 6, 7]])
    for _ in loader:
        pass
    assert entry(loader).epochs()[-1]["samples"] == 8


def test_a_name_is_a_global_variable_s_a_variable_s_in_the_loop_s_line_or_the_data_set_s() -> None:
    global val_loader  # noqa: PLW0603 - a global is what is tested
    val_loader = numbers()
    for _ in val_loader:
        pass
    assert entry(val_loader).name == "val_loader"
    train_dl = numbers()
    for _number, _ in enumerate(train_dl):
        pass
    assert entry(train_dl).name == "train_dl"
    unnamed = numbers()
    list(unnamed)
    assert entry(unnamed).name == "TensorDataset"
    namespace: dict[str, Any] = {"stuff": [numbers()]}
    exec("for _ in stuff[0]: pass", namespace)  # noqa: S102 - no file has that line
    assert entry(namespace["stuff"][0]).name == "TensorDataset_2"  # the other one lives
    val_loader = None


def test_no_name_is_the_id_of_another_loader() -> None:
    """A page chooses by id and a person by name, with one argument: where they coincide, both would be refused."""
    loaders = [numbers() for _ in range(4)]
    for loader in loaders:
        for _ in loader:
            pass
    entries = [entry(loader) for loader in loaders]
    assert len({one.name for one in entries}) == 4
    assert all(re.fullmatch(r"loader-\d+", one.id) for one in entries)
    assert not any(re.fullmatch(r"loader-\d+", one.name) for one in entries)


def test_a_name_is_what_the_loop_goes_over_not_what_it_gives_to_its_body_or_shows() -> None:
    def progress(loader: Any, **_shown: str) -> Any:
        return loader

    trainloader = numbers()
    for _, _data in enumerate(trainloader, 0):
        data = _data
    assert entry(trainloader).name == "trainloader"
    test_loader = numbers()
    for data in test_loader:
        assert data
    assert entry(test_loader).name == "test_loader"
    train_loader = numbers()
    for batch in iter(progress(train_loader, desc=f"train {len(data)}")):
        assert batch
    assert entry(train_loader).name == "train_loader"
    valid_loader = numbers()
    assert [len(data) for (data,) in valid_loader] == [2, 2, 2, 2]
    assert entry(valid_loader).name == "valid_loader"


def test_a_name_is_a_global_variable_s_also_where_a_function_has_the_loop() -> None:
    function = "def epoch(loader):\n    for _ in loader: pass\n"
    namespace: dict[str, Any] = {"_": None, "training": numbers(), "validation": numbers()}
    namespace["_1"] = namespace["validation"]  # as IPython keeps what a cell returns
    exec(function + "epoch(training)\nepoch(validation)", namespace)  # noqa: S102 - no function of this file's
    assert [entry(namespace[name]).name for name in ("training", "validation")] == ["training", "validation"]


def test_an_iterator_of_which_nothing_is_asked_is_no_loader() -> None:
    loader = numbers()
    iter(loader)
    assert attached.attached(loader) is None


def test_loaders_made_anew_for_each_epoch_are_one() -> None:
    data = TensorDataset(torch.arange(4))
    for _ in range(3):
        for _batch in DataLoader(data, 2):
            pass
    (found,) = [one for one in live() if isinstance(one, AttachedLoader) and one.name == "data"]
    assert [one["epoch"] for one in found.epochs()] == [0, 1, 2]
    assert [one["batches"] for one in found.epochs()] == [2, 2, 2]


def test_loaders_that_live_at_the_same_time_and_those_of_other_data_are_several() -> None:
    data = TensorDataset(torch.arange(4))
    both = [DataLoader(data, 2), DataLoader(data, 1)]
    for one in [*both, numbers(), *both]:
        for _batch in one:
            pass
    assert entry(both[0]) is not entry(both[1])
    assert [len(entry(one).epochs()) for one in both] == [2, 2]
    assert [entry(one).length for one in both] == [2, 4]


def test_a_watched_loader_is_not_measured_a_second_time() -> None:
    loader = numbers()
    list(watch_loader(loader, name="once"))
    assert attached.attached(loader) is None


def test_a_data_set_without_weak_references_is_no_obstacle() -> None:
    loader: Any = DataLoader((1, 2, 3), 2)  # type: ignore[arg-type]
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == [[[1, 2], [3]]] * 2
    assert len(entry(loader).epochs()) == 2


class Holding(DataLoader[Any]):
    """It keeps its own iterator, as those of some frameworks do."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        vars(self)["batches"] = super().__iter__()


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_nothing_is_kept_alive(options: dict[str, Any]) -> None:
    """By reference counts alone, as without the monitor."""
    gc.collect()
    gc.disable()
    try:
        loader = numbers(**options)
        batches = iter(loader)
        (batch,) = next(batches)
        kept: list[weakref.ref[Any]] = [weakref.ref(one) for one in (batches, batch, loader.dataset, entry(loader))]
        list(batches)
        gone = weakref.ref(loader)
        del batches, batch, loader
        assert [one() for one in (gone, *kept)] == [None] * 5
        holding = Holding(TensorDataset(torch.arange(4)), **options)
        next(vars(holding)["batches"])
        gone = weakref.ref(holding)
        del holding
        assert gone() is None
    finally:
        gc.enable()


def test_a_loader_lives_as_long_as_the_loop_over_it_and_not_longer() -> None:
    batches = iter(DataLoader(TensorDataset(torch.arange(4))))
    next(batches)
    (source,) = [one for one in live() if isinstance(one, AttachedLoader)]
    assert source.loader is not None
    list(batches)
    assert source.loader is None


# -- torch's classes --------------------------------------------------------------------------------------------------


def test_classes_and_attributes_stay_torch_s() -> None:
    loader = numbers()
    attributes = dict(vars(loader))
    batches = iter(loader)
    assert type(batches) is torch.utils.data.dataloader._SingleProcessDataLoaderIter
    list(batches)
    assert vars(loader) == attributes
    assert (DataLoader.__iter__.__doc__, DataLoader.__iter__.__name__) == (ITER.__doc__, "__iter__")
    assert DataLoader.__iter__.__annotations__ == ITER.__annotations__


def test_attaching_a_thousand_times_leaves_torch_s_own_functions() -> None:
    for number in range(1000):
        assert attached.attach()
        assert attached.attach()
        assert vars(DataLoader)["__iter__"].__wrapped__ is ITER
        if number % 100 == 0:
            assert len(list(numbers())) == 4
        attached.detach()
        assert is_plain()


def copy_of_the_module() -> Any:
    """As a fresh import of the extension makes it."""
    spec = importlib.util.spec_from_file_location("kernel_monitor.steps.attached_again", attached.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_second_copy_of_the_module_takes_the_first_one_s_place() -> None:
    loader = numbers()
    begun, started = iter(loader), iter(loader)
    next(started)
    copy = copy_of_the_module()
    try:
        assert copy.attach()
        assert vars(DataLoader)["__iter__"].__wrapped__ is ITER
        assert [len(list(begun)), len(list(started))] == [4, 3]
        assert len(list(loader)) == 4
        assert [one["batches"] for one in copy.attached(loader).epochs()] == [4]
        attached.detach()  # the first one has nothing there any more
        assert vars(DataLoader)["__iter__"].__globals__ is vars(copy)
        assert len(list(loader)) == 4
        assert len(copy.attached(loader).epochs()) == 2
    finally:
        copy.detach()
        del sys.modules[copy.__name__]


class Tool:
    """Another tool that replaces `DataLoader.__iter__` and torch's `__next__`, and counts."""

    def __init__(self) -> None:
        self.counts = [0, 0]
        self._before = in_place()
        iterate, take = self._before

        @functools.wraps(iterate)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            self.counts[0] += 1
            return iterate(loader)

        @functools.wraps(take)
        def __next__(batches: Any) -> Any:  # noqa: N807
            self.counts[1] += 1
            return take(batches)

        self.put(__iter__, __next__)

    def put(self, iterate: Any, take: Any) -> None:
        DataLoader.__iter__ = iterate  # type: ignore[method-assign]
        _BaseDataLoaderIter.__next__ = take  # type: ignore[method-assign]

    def undo(self) -> None:
        self.put(*self._before)


def counted(loader: Any, tool: Tool) -> tuple[int, int, list[int]]:
    """One epoch: how often it was counted by us, and by the tool."""
    before, tool.counts[:] = list(tool.counts), [0, 0]
    found = attached.attached(loader)
    earlier = 0 if found is None else len(found.epochs())
    assert len(list(loader)) == 4
    ours = attached.attached(loader)
    epochs = [] if ours is None else ours.epochs()
    tool.counts, counts = [0, 0], tool.counts
    assert before == [0, 0]
    return len(epochs) - earlier, epochs[-1]["batches"] if len(epochs) > earlier else 0, counts


def test_a_tool_from_before_stays_whoever_is_undone_first() -> None:
    attached.detach()
    tool = Tool()
    theirs, loader = in_place(), numbers()
    attached.attach()
    assert counted(loader, tool) == (1, 4, [1, 5])
    attached.detach()
    assert in_place() == theirs
    assert counted(loader, tool) == (0, 0, [1, 5])
    attached.attach()
    tool.undo()  # and with it our functions
    assert is_plain() is False
    assert in_place() == (ITER, NEXT)
    assert counted(loader, tool) == (0, 0, [0, 0])


def test_a_tool_from_after_stays_and_nothing_is_measured_twice() -> None:
    tool, loader = Tool(), numbers()
    theirs = in_place()
    assert counted(loader, tool) == (1, 4, [1, 5])
    attached.detach()
    assert in_place() == theirs
    assert counted(loader, tool) == (0, 0, [1, 5])
    attached.attach()  # around theirs, with ours inside of it
    assert vars(DataLoader)["__iter__"].__wrapped__ is theirs[0]
    assert counted(loader, tool) == (1, 4, [1, 5])
    attached.detach()
    assert in_place() == theirs
    tool.undo()  # puts back what it found: ours, which does nothing
    assert counted(loader, tool) == (0, 0, [0, 0])
    attached.attach()
    attached.detach()


def test_an_iteration_goes_on_without_the_monitor_and_with_it_again() -> None:
    loader = numbers()
    batches = iter(loader)
    seen = [next(batches)[0].tolist()]
    attached.detach()
    seen.append(next(batches)[0].tolist())
    attached.attach()
    seen += [batch.tolist() for (batch,) in batches]
    assert seen == [[0, 1], [2, 3], [4, 5], [6, 7]]
    # Of what was delivered meanwhile nothing is known: that iteration is not counted to its end, as nothing was lost.
    assert [(one["samples"], one["lost"], one["finished"]) for one in entry(loader).epochs()] == [(2, 0, False)]


def test_a_loader_that_is_iterated_before_and_after_a_stop_is_one_loader() -> None:
    loader = numbers()
    list(loader)
    found = entry(loader)
    for _ in range(2):
        attached.detach()
        list(loader)
        attached.attach()
        list(loader)
    assert [one for one in live() if one.name == found.name or one.name.startswith(f"{found.name}-")] == [found]
    assert entry(loader) is found
    assert [(one["samples"], one["finished"]) for one in found.epochs()] == [(8, True)] * 3


class Reporting(Dataset[Any]):
    """Its samples say whether torch's classes are as torch made them."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        iterate, take = vars(DataLoader)["__iter__"], vars(_BaseDataLoaderIter)["__next__"]
        ours = [hasattr(one, "_kernel_monitor_function") for one in (iterate, take)]
        return os.getpid(), sum(ours), len(list(DataLoader(range(3))))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_have_torch_s_own_functions(method: str) -> None:
    loader: Any = DataLoader(Reporting(), num_workers=1, multiprocessing_context=method)
    found = [[int(one) for one in batch] for batch in loader]
    assert [one[1:] for one in found] == [[0, 3]] * 2
    assert found[0][0] != os.getpid()
    assert len(entry(loader).epochs()) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_torch_s_own_functions() -> None:
    loader = numbers()
    batches = iter(loader)
    next(batches)
    ours, theirs = multiprocessing.Pipe()

    def tell() -> None:
        theirs.send((is_plain(), len(list(batches)), len(list(loader)), len(live())))

    child = multiprocessing.get_context("fork").Process(target=tell)
    child.start()
    assert ours.recv() == (True, 3, 4, 0)
    child.join()
    assert len(list(batches)) == 3
    assert len(entry(loader).epochs()) == 1


def test_the_setting_turns_it_off_and_on() -> None:
    attached.detach()
    monitor = Monitor()
    try:
        monitor.configure(attach=False)
        monitor.start(record=False)
        assert is_plain()
        monitor.configure(attach=True)
        loader = numbers()
        list(loader)
        assert len(entry(loader).epochs()) == 1
        monitor.configure(attach=False)
        assert is_plain()
        monitor.configure(attach=True)
        assert not is_plain()
    finally:
        monitor.stop()
    assert is_plain()


SCRIPT = """
import sys, time
import kernel_monitor
from kernel_monitor import monitor
assert "torch" not in sys.modules
monitor.start(record=False, interval=0.1)
assert "torch" not in sys.modules
import torch
from torch.utils.data import DataLoader
if {attaches}:
    deadline = time.monotonic() + 60
    while not hasattr(DataLoader.__iter__, "__wrapped__") and time.monotonic() < deadline:
        time.sleep(0.01)
else:
    monitor.stop()
    assert not hasattr(DataLoader.__iter__, "__wrapped__")
torch.manual_seed(3)
loader = DataLoader(range(9), 2, shuffle=True)
seen = [batch.tolist() for _ in range(2) for batch in loader]
print(seen, torch.rand(3).tolist(), [one.kind for one in monitor.loaders])
monitor.stop()
assert not hasattr(DataLoader.__iter__, "__wrapped__")
"""


def test_torch_may_be_imported_after_the_start() -> None:
    """And the first iteration imports what a click needs, which draws no numbers."""
    printed = []
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(attaches=attaches)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for attaches in (True, False)
    ]
    for process in running:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        printed.append(out.strip())
    assert printed[0].endswith("['attached']")
    assert printed[0].replace("['attached']", "[]") == printed[1]
