"""An exception at each call inside this package, once: every sample is delivered, in order, and the fault is shown.
So it is for DataLoaders that are only attached to.

A run of a loader is traced to find the calls that it makes on any thread of the loop's process. Then it is run again
for each of them, and that call raises. `make test` takes a sample; its seed is printed with each failure,
INJECT_SEED=… takes the sample of another one, INJECT_SEED=random any. INJECT=long takes all of them, INJECT=3/8 the
third of eight parts, INJECT=epoch.py the calls whose name or place has that in it. `--log-file=…
--log-file-level=INFO` tells which call is next, and at the end how many were reached.

A fault that only the outermost guard has caught is a failure, unless the module where it was raised is listed below.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

import kernel_monitor
from kernel_monitor.loaders import events, switchable, takeover
from kernel_monitor.loaders.engines import fork_server, worker_start
from kernel_monitor.loaders.loader import FixedLoader
from kernel_monitor.steps import attached

from ..attached_loops import attaching
from ..conftest import augmented, make_folder
from ..photos import Photos

PACKAGE = str(Path(kernel_monitor.__file__).parent)
IMAGES, BATCH, EPOCHS = 24, 4, 3
_ASKED = os.environ.get("INJECT_SEED") or "0"  # a change is not to fail by a fault that was there before
SEED = random.SystemRandom().randrange(10**6) if _ASKED == "random" else int(_ASKED)
PART = os.environ.get("INJECT", "")  # empty: a sample
SAMPLE = 0 if PART else 22  # points of each kind of loader; 0: all, or those of a part
SAMPLE_ATTACHED = SAMPLE and 6
IN_TORCHS_PLACE = (
    "_next_of_engine",
    "_through_torch_iterator",
    "hold",
    "_made",
    "EpochIterator.__next__",
    "Takeover._iterate",
    "Takeover.begin.<locals>.<lambda>",
    "_worker_start",
    "_time_samples",
    "current",
    "called",
)
"""Called by what stands in for a function of torch's or a library's: the bodies are guarded, their own calls tried."""

LISTED = {
    "loaders/loader.py": "it begins an epoch: nothing of ours stands outside of it but the guard",
    "loaders/switching/epoch.py": "it is the iteration: the same, and the guard itself",
    "loaders/switching/engine_pool.py": "asked by the iteration which engine delivers, and its hold on that engine",
    "loaders/switching/preparation.py": "asked at each boundary whether an engine waits",
    "loaders/switching/switch.py": "told by the iteration what was delivered",
    "loaders/plan.py": "the plan: what is not planned no engine can deliver",
    "loaders/orders.py": "the same",
    "loaders/resume.py": "the same",
    "loaders/attributes.py": "reads the attributes of samplers and data sets for these",
    "loaders/random_streams.py": "the same, and the generators that keep a sample's numbers apart from the training's",
    "loaders/dataset_changes.py": "what the engines are shown of the data set at the start of an epoch",
    "loaders/data": "the same: it is examined there",
    "loaders/transforms": "the same: its transforms are translated anew",
    "loaders/engines": "engines that are built, started and asked on the loop's thread",
    "loaders/engines/engine.py": "read where engines are built",
    "loaders/state.py": "paths that are taken out of a message",
    "loaders/events.py": "told by the iteration what happened",
    "ray": "asked whether other machines work for the loader",
    "integrations": "samplers and process groups are looked at when an epoch begins",
    "steps": "the clock of the loop's steps",
    "os_process.py": "cores are counted where engines are built",
    "privacy.py": "a message's paths",
    "text.py": "a name",
    "ranks": "the steps of a rank",
}


log = logging.getLogger(__name__)


class Fault(Exception):
    """The injected one."""


def _in_package() -> Any:
    """A function that raises as if it stood in the package: the tracer must not be taken for code of the user's."""
    names: dict[str, Any] = {"Fault": Fault}
    exec(compile("def raise_fault(text):\n    raise Fault(text)", f"{PACKAGE}/injected.py", "exec"), names)  # noqa: S102
    return names["raise_fault"]


raise_fault = _in_package()


class Call(NamedTuple):
    """A call of a function of this package by another, or by the loop."""

    caller: str  # file and line
    callee: str  # file below the package, and qualified name

    def __str__(self) -> str:
        return f"{self.callee} from {self.caller}"


class Tracer:
    """Counts the calls inside the package, and lets the n-th of one of them raise."""

    def __init__(self, target: Call | None = None, number: int = 1) -> None:
        self.seen: Counter[Call] = Counter()
        self.raised = False
        self._target, self._left = target, number
        self._process = os.getpid()
        self.paused = False  # while the test itself asks the loader something

    def __enter__(self) -> Tracer:
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self.paused and threading.current_thread() is threading.main_thread():
            return
        if event != "call" or not code.co_filename.startswith(PACKAGE) or os.getpid() != self._process:
            return
        caller = frame.f_back
        if caller is None or "__del__" in (code.co_name, caller.f_code.co_name) or code.co_name == "<module>":
            return  # what an object's end raises, Python itself shows
        place = caller.f_code.co_filename
        if not place.startswith(PACKAGE) or caller.f_code.co_qualname == "SwitchableLoader.__iter__":
            return  # the loop itself: there is nothing of ours yet that could catch it
        if caller.f_code.co_qualname in ("attach", "detach", "_replace", "_restore_all"):
            return  # by the monitor, not by the loop
        if code.co_qualname in IN_TORCHS_PLACE:
            return
        if caller.f_code.co_qualname == "Takeover._iterate" and code.co_name == "iterate":
            return
        if code.co_qualname in ("_check", "_known", "given"):
            return  # the arguments of `switchable` are checked: there is no loader yet
        call = Call(
            f"{Path(place).name}:{caller.f_lineno}", f"{code.co_filename[len(PACKAGE) + 1 :]}:{code.co_qualname}"
        )
        self.seen[call] += 1
        if call == self._target and not self.raised:
            self._left -= 1
            if self._left == 0:
                self.raised = True
                raise_fault(f"Fault injected into {call}")


class Own(Photos):
    def __init__(self, root: Path) -> None:
        super().__init__(sorted(root.glob("*/*.jpg")), augmented(16))


class Folder(ImageFolder):
    """An ImageFolder whose target is the index."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, augmented(16))
        self.samples: list[tuple[str, int]] = [(path, index) for index, (path, _) in enumerate(self.imgs)]


class Ran(NamedTuple):
    epochs: list[list[int]]  # of each epoch, the targets in order
    shown: str  # all that people could read


def drawn() -> torch.Generator:
    """The order's own: with no workers plain's samples would draw from the default one, too."""
    return torch.Generator().manual_seed(3)


def train(dataset: Any, workers: int, tracer: Tracer) -> Ran:
    """Three epochs with a switch to DALI in the first and back in the second."""
    shown: list[str] = []
    unlisten = events.listen(lambda event: shown.append(str(event)))
    loader: Any = switchable(DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, generator=drawn()))
    epochs: list[list[int]] = []
    try:
        for epoch in range(EPOCHS):
            epochs.append([])
            for number, (images, targets) in enumerate(loader):
                assert images.shape[1:] == (3, 16, 16)
                epochs[-1] += targets.tolist()
                if number == 1 and epoch < 2:
                    target = ("dali-cpu", "torchvision")[epoch]
                    tracer.paused = True
                    available = target in loader.backends and loader.backends[target].available
                    tracer.paused = False
                    if available:
                        loader.switch(target)
                        deadline = time.monotonic() + 5
                        while loader.switch_state.preparing is not None and time.monotonic() < deadline:
                            time.sleep(0.002)
        tracer.paused = True
        shown += [str(loader.backends)]
        if not isinstance(loader, FixedLoader):
            shown += [loader.state()["status"], *loader.switch_state.faults]
            loader.release()
    finally:
        unlisten()
    return Ran(epochs, "\n".join(shown))


def train_attached(dataset: Any, workers: int, tracer: Tracer) -> Ran:
    """The same over a DataLoader that is attached to."""
    shown: list[str] = []
    unlisten = events.listen(lambda event: shown.append(str(event)))
    loader: Any = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, generator=drawn())
    epochs: list[list[int]] = []
    engines = made = None
    try:
        for epoch in range(EPOCHS):
            epochs.append([])
            for number, (images, targets) in enumerate(loader):
                assert images.shape[1:] == (3, 16, 16)
                epochs[-1] += targets.tolist()
                tracer.paused = True
                source = attached.attached(loader)
                engines = None if source is None else takeover.takeover(source)
                made = None if engines is None else engines.loader
                if made is not None:
                    deadline = time.monotonic() + 5
                    while made.switch_state.preparing is not None and time.monotonic() < deadline:
                        time.sleep(0.002)
                target = ("dali-cpu", "torchvision", "")[epoch]
                available = engines is not None and target in engines.backends and engines.backends[target].available
                tracer.paused = False
                if number == 1 and engines is not None and available:
                    engines.switch(target)
        tracer.paused = True
        if engines is not None:
            shown += [engines.state()["status"], *(() if made is None else made.switch_state.faults)]
            engines.release()
    finally:
        unlisten()
    return Ran(epochs, "\n".join(shown))


def expected(dataset: Any) -> list[list[int]]:
    plain: Any = DataLoader(dataset, BATCH, shuffle=True, generator=drawn())
    return [[target for _, targets in plain for target in targets.tolist()] for _ in range(EPOCHS)]


def part(calls: list[Call], part: str) -> list[Call]:
    """Return all calls, every eighth beginning with the third for `3/8`, or those in whose text the part stands."""
    if part == "long":
        return calls
    number, _, parts = part.partition("/")
    if number.isdigit() and parts.isdigit():
        assert 1 <= int(number) <= int(parts), f"INJECT={part}"
        return calls[int(number) - 1 :: int(parts)]
    return [call for call in calls if part in str(call)]


KINDS = [(kind, workers) for kind in (Folder, Own) for workers in (0, 2)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("injection"), IMAGES)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Few threads: what is tested is the order of calls, not the load."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


violent = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
kinds = pytest.mark.parametrize(
    ("kind", "workers"), KINDS, ids=[f"{kind.__name__}-{workers}" for kind, workers in KINDS]
)


@violent
@kinds
def test_a_fault_at_any_call_ends_no_loop(
    kind: Any, workers: int, images: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(train, kind, workers, images, SAMPLE, caplog, monkeypatch)


@violent
@kinds
def test_a_fault_at_any_call_ends_no_loop_that_is_attached_to(
    kind: Any, workers: int, images: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(dataset: Any, workers: int, tracer: Tracer) -> Ran:
        if workers == 0:  # each run is the first to click: the fork server is made in it
            monkeypatch.setattr(worker_start, "_dali_runs", threading.Event())
            monkeypatch.setattr(fork_server, "_server", None)
        try:
            with attaching():
                return train_attached(dataset, workers, tracer)
        finally:
            if workers == 0 and fork_server._server is not None:
                fork_server._server.close()

    inject(run, kind, workers, images, SAMPLE_ATTACHED, caplog, monkeypatch)


def inject(
    train: Callable[[Any, int, Tracer], Ran],
    kind: Any,
    workers: int,
    images: Path,
    sample: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unraisable: list[str] = []  # at an object's end, where Python itself shows it
    monkeypatch.setattr(sys, "unraisablehook", lambda found: unraisable.append(repr(found.exc_value)))
    dataset = kind(images)
    order = expected(dataset)
    with Tracer() as tracer:
        assert train(dataset, workers, tracer).epochs == order
    calls = sorted(tracer.seen)
    assert len(calls) > 300
    chance = random.Random(f"{SEED} {kind.__name__} {workers}")
    chosen = chance.sample(calls, sample) if sample else part(calls, PART)
    wrong: list[str] = []
    reached = 0
    for place, call in enumerate(chosen):
        log.info("%d of %d, %d reached, %d wrong: %s", place + 1, len(chosen), reached, len(wrong), call)
        caplog.clear()
        unraisable.clear()
        number = chance.randint(1, min(tracer.seen[call], 4))
        with Tracer(call, number) as injecting, caplog.at_level(logging.DEBUG, "kernel_monitor"):
            try:
                ran = train(dataset, workers, injecting)
            except Exception as error:  # noqa: BLE001 - that is what is tested
                wrong.append(f"{call} ({number}): raised {type(error).__name__}: {error}")
                log.info("%s", wrong[-1])
                continue
        if not injecting.raised:
            log.info("not reached: %s", call)
            continue  # threads took another way this time
        reached += 1
        if ran.epochs != order:
            counts = [f"{len(set(epoch))} of {IMAGES}" for epoch in ran.epochs]
            wrong.append(f"{call} ({number}): delivered {counts} in {len(ran.epochs)} epochs")
        if "Fault" not in ran.shown + caplog.text + "".join(unraisable):
            wrong.append(f"{call} ({number}): is not shown")
        module = call.callee.partition(":")[0]
        if "kernel_monitor failed" in ran.shown and not any(module.startswith(listed) for listed in LISTED):
            wrong.append(f"{call} ({number}): only the outermost guard caught it")
    log.info("%d of %d calls reached, %d wrong\n%s", reached, len(chosen), len(wrong), "\n".join(wrong))
    assert not wrong, "\n".join(wrong) + f"\nINJECT_SEED={SEED}"
