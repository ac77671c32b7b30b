"""*Tune* on real loaders, with the loop on a thread of its own: what it finds, keeps and undoes, and what ends it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.datasets import ImageFolder

from kernel_monitor.diagnosis import tune_run
from kernel_monitor.diagnosis.trials import Candidate, Trial, over_epochs
from kernel_monitor.errors import MonitorError
from kernel_monitor.loaders import switchable
from kernel_monitor.runtime import Monitor
from kernel_monitor.sample.host.process_limits import SharedMemory
from kernel_monitor.steps.measured_step import WARM_UP, Step
from tests.loaders.conftest import augmented
from tests.unit.checks import not_none, wait_for
from tests.unit.training import Train, Training, image_folder, in_threads, loader_of, loops, monitor_that_samples

pytestmark = in_threads

folder = pytest.fixture(scope="module")(image_folder)
monitor = pytest.fixture(monitor_that_samples)
train = pytest.fixture(loops)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short windows: what is tested here is not what is fastest."""
    monkeypatch.setattr(tune_run, "WINDOW_S", 0.5)
    monkeypatch.setattr(tune_run, "SETTLE_S", (0.1, 1.0))


class Slow(Dataset[torch.Tensor]):
    """Samples that wait, as for a disk: more workers than cores help."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.full((2,), index)


class Loop(Training):
    """A loop over tensors, that notes the samples of each epoch."""

    def _run(self) -> None:
        self.epochs: list[list[int]] = []
        while not self._left.is_set():
            seen: list[int] = []
            for batch in self.loader:
                seen += batch[:, 0].tolist()
                if self._left.is_set():
                    return
            self.epochs.append(seen)


def state(monitor: Monitor) -> dict[str, Any]:
    return cast("dict[str, Any]", not_none(monitor.diagnosing))


def ended(monitor: Monitor) -> dict[str, Any]:
    wait_for(lambda: state(monitor)["state"] != "running", 90)
    return state(monitor)


def trying(monitor: Monitor, label: str) -> None:
    wait_for(lambda: state(monitor)["message"].startswith(f"measuring {label}"), 60)


@pytest.mark.parametrize("wrapped", [True, False])
def test_samples_that_wait_get_more_workers_and_undo_brings_the_old_ones_back(monitor: Monitor, wrapped: bool) -> None:
    plain = DataLoader(Slow(), batch_size=4, shuffle=True, num_workers=1)
    loop = Loop(switchable(plain, name="slow") if wrapped else plain)
    try:
        wait_for(lambda: monitor.loaders and monitor.loaders[0].state()["batch"] > 5, 30)
        begun = time.monotonic()
        found = not_none(monitor.tune(seconds=40))
        assert time.monotonic() - begun < 60
        json.dumps(found, allow_nan=False)
        (one,) = monitor.loaders
        kept = not_none(one.state()["knobs"]["workers"])
        assert kept >= 4
        assert one.backend == "torchvision"
        assert found["line"].startswith(f"DataLoader(…, num_workers={kept}, prefetch_factor=")
        assert found["undo"] == "torchvision, 1 worker"
        assert {run["label"] for run in found["runs"]} >= {"torchvision, 1 worker", "torchvision, 2 workers"}
        rates = {run["label"]: run["rate"] for run in found["runs"] if run["rate"] is not None}
        assert max(rates.values()) > 3 * rates["torchvision, 1 worker"]
        assert found["line"] in str(found)
        assert (state(monitor)["state"], state(monitor)["seconds_left"]) == ("done", 0)
        event = next(one for one in monitor.store.events() if one["kind"] == "diagnosis")
        assert event["result"] == found
        monitor.undo_tune()
        assert one.state()["knobs"]["workers"] == 1
        assert (state(monitor)["result"]["undo"], state(monitor)["result"]["line"]) == (None, None)
        with pytest.raises(MonitorError, match="nothing to undo"):
            monitor.undo_tune()
        count = len(loop.epochs)
        wait_for(lambda: len(loop.epochs) > count, 60)
        assert (one.state()["lost"], one.state()["doubled"]) == (0, 0)
    finally:
        loop.leave()
        if wrapped:
            loop.loader.release()
    assert loop.epochs
    assert all(sorted(epoch) == list(range(400)) for epoch in loop.epochs)
    del loop.loader, plain


def test_engines_and_threads_are_tried_and_the_first_setting_stays_where_the_loop_is_the_limit(
    monitor: Monitor, folder: Path
) -> None:
    data = ImageFolder(str(folder), augmented())
    order = RandomSampler(data, replacement=True, num_samples=10_000)  # one epoch: its beginning is not the limit
    plain = DataLoader(data, batch_size=4, sampler=order, num_workers=1)
    loop = Training(switchable(plain, name="train"), 0.1)
    try:
        wait_for(lambda: len(loop.came) > 5)
        found = not_none(monitor.tune(seconds=30))
        wait_for(lambda: loop.loader.backend == "torchvision", 90)
        knobs = loop.loader.knobs
    finally:
        loop.leave()
        loop.loader.release()
        del loop.loader
    engines = {run["backend"] for run in found["runs"]}
    assert engines == {"torchvision", "dali-cpu", "threads"}
    assert (found["line"], found["undo"]) == (None, None)
    assert found["sentence"].startswith("None of ")
    assert "is surely faster than torchvision, 1 worker:" in found["sentence"]
    assert (knobs.workers, knobs.threads) == (1, 1)
    with pytest.raises(MonitorError, match="nothing to undo"):
        monitor.undo_tune()


@pytest.mark.parametrize("label", ["torchvision, 1 worker", "dali-cpu"])
def test_cancelled_it_goes_back_to_engine_and_knobs(label: str, monitor: Monitor, train: Train) -> None:
    loop = train()
    wait_for(lambda: len(loop.came) > 5)
    monitor.tune(seconds=60, wait=False)
    trying(monitor, label)
    with pytest.raises(MonitorError, match="train is being tuned"):
        monitor.diagnose(wait=False)
    with pytest.raises(MonitorError, match="still runs"):
        monitor.undo_tune()
    assert monitor.cancel_diagnosis() is True
    last = ended(monitor)
    assert (last["state"], last["message"]) == ("cancelled", "It was cancelled.")
    wait_for(lambda: loop.loader.backend == "torchvision")
    assert loop.loader.knobs.workers == 0


def test_a_knob_that_a_person_turns_ends_it_and_stays(monitor: Monitor, train: Train) -> None:
    loop = train()
    wait_for(lambda: len(loop.came) > 5)
    monitor.tune(seconds=60, wait=False)
    trying(monitor, "torchvision, 1 worker")
    monitor.set(prefetch=5)
    last = ended(monitor)
    assert (last["state"], last["message"]) == (
        "cancelled",
        "Stopped, as a knob was turned meanwhile: they stay so.",
    )
    assert loop.loader.knobs.prefetch == 5


def test_an_engine_that_a_person_chooses_ends_it_and_stays(monitor: Monitor, train: Train) -> None:
    loop = train()
    wait_for(lambda: len(loop.came) > 5)
    monitor.tune(seconds=60, wait=False)
    trying(monitor, "torchvision, 1 worker")
    monitor.switch("dali-cpu")
    assert ended(monitor)["state"] == "cancelled"
    wait_for(lambda: loop.loader.backend == "dali-cpu")
    assert loop.loader.knobs.workers == 0  # not that of the setting that was being tried


def test_what_leaves_too_little_memory_is_dropped_at_once_and_nothing_larger_is_tried(
    monitor: Monitor, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has no room for a worker."""
    loop = train()
    wait_for(lambda: len(loop.came) > 5)

    def available() -> int:
        return (4 << 30) if loop.loader.knobs.workers < 1 else (100 << 20)

    monkeypatch.setattr(tune_run, "memory_available", available)
    found = not_none(monitor.tune(seconds=40))
    problems = {run["label"]: run["problem"] for run in found["runs"]}
    assert problems["torchvision, 1 worker"] == "it left only 100 MiB of memory"
    assert loop.loader.knobs.workers == 0
    assert not any("2 workers" in label for label in problems)

    monkeypatch.setattr(tune_run, "memory_available", lambda: 600 << 20)
    run = tune_run.TuneRun(loop.loader, monitor.diagnosis.context, seconds=60)  # never started
    refusal = run._refusal(Candidate("torchvision", 100, None, None))
    assert re.fullmatch(
        r"torchvision, 100 workers was not tried: [\d.]+ GiB more would be needed, and 0.6 GiB are available\.",
        not_none(refusal),
    )


def test_a_container_with_little_shared_memory_gets_no_more_workers_than_it_can_hold(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Docker has it: 64 MiB. Each batch that waits in it takes 8 of them."""
    loop = Loop(switchable(DataLoader(Slow(), batch_size=4, num_workers=1), name="slow"))
    asked: list[int] = []

    def shared() -> SharedMemory:
        workers = loop.loader.knobs.workers
        asked.append(workers)
        used = 8 * 2 * workers << 20
        return SharedMemory(64 << 20, used, (64 << 20) - used)

    monkeypatch.setattr(tune_run, "shared_memory", shared)
    try:
        wait_for(lambda: monitor.loaders and monitor.loaders[0].state()["batch"] > 5, 30)
        found = not_none(monitor.tune(seconds=20))
    finally:
        loop.leave()
        loop.loader.release()
    assert max(asked) <= 3
    assert any("batches in flight would take 64 MiB of /dev/shm, which has 64" in line for line in found["cannot"])
    del loop.loader


def test_a_loop_that_ends_ends_it_and_the_next_one_begins_as_before(
    monitor: Monitor, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_monitor.diagnosis.loop_guard.PAUSE_S", 1.0)
    loop = train()
    wait_for(lambda: len(loop.came) > 5)
    monitor.tune(seconds=60, wait=False)
    trying(monitor, "dali-cpu")
    loop.leave()
    last = ended(monitor)
    assert last["state"] == "failed"
    assert "the loop has ended, or it pauses" in last["message"]
    next(iter(loop.loader))
    assert (loop.loader.backend, loop.loader.knobs.workers) == ("torchvision", 0)


def test_bad_times_are_refused(monitor: Monitor, train: Train) -> None:
    loop = train()
    for seconds in (5, 601, True, "60"):
        with pytest.raises(MonitorError, match="Tune takes 15 to 600 seconds"):
            monitor.tune(seconds=seconds)  # type: ignore[arg-type]
    with pytest.raises(MonitorError, match="no loader was tuned"):
        monitor.undo_tune()
    assert loop.loader.history == []


def in_bursts(epochs: int, *, skip: int = 0, start: float = 0.0) -> list[Step]:
    """Steps of epochs of ten batches of four images that come at once: 1 s for the first, 1 ms for each other."""
    steps, now = [], start
    for number in range(10 * epochs):
        epoch, batch = divmod(number, 10)
        took = 0.001 if batch else 1.0
        now += took
        steps.append(Step(now, epoch, batch, 4, took, took, flags=0 if batch else WARM_UP))
    return steps[skip:]


MEASURED = Trial("torchvision", rate=4000.0, rate_low=3000.0, rate_high=5000.0)


@pytest.mark.parametrize("skip", [0, 1, 7])
def test_rates_are_those_of_whole_epochs(skip: int) -> None:
    whole = over_epochs(MEASURED, in_bursts(3, skip=skip), 10)
    count = 3 if skip == 0 else 2
    assert (whole.rate, whole.seconds) == pytest.approx((40 / 1.009, count * 1.009))
    assert (whole.samples, whole.steps) == (count * 40, count * 10)
    assert (whole.step, whole.wait) == pytest.approx((100.9, 100.9))
    assert whole.rate_low == pytest.approx(0.75 * whole.rate)


def test_quartiles_are_those_of_many_epochs() -> None:
    whole = over_epochs(MEASURED, in_bursts(8), 10)
    assert (whole.rate_low, whole.rate_high) == pytest.approx((whole.rate, whole.rate))


def test_steps_of_two_times_make_no_epoch_together() -> None:
    """Seven steps of one time and nine of another: sixteen, but of no ten in a row is one known to be a beginning."""
    apart = [*in_bursts(1, skip=3), *in_bursts(1, skip=1, start=60.0)]
    assert over_epochs(MEASURED, apart, 10) == MEASURED
    assert over_epochs(MEASURED, [*apart, *in_bursts(1, start=90.0)], 10).samples == 40
    assert over_epochs(MEASURED, in_bursts(3), 0) == MEASURED


def test_a_pause_of_the_loop_within_an_epoch_counts_neither_its_time_nor_its_samples() -> None:
    steps = in_bursts(1)
    paused = [step._replace(end=step.end + 30, step=30.001) if step.batch == 9 else step for step in steps]
    whole = over_epochs(MEASURED, paused, 10)
    assert (whole.samples, whole.seconds) == pytest.approx((36, 1.008))
    assert (whole.steps, whole.step, whole.wait) == pytest.approx((9, 112.0, 112.0))


def test_an_evaluation_between_epochs_is_no_time_of_the_loader() -> None:
    first, second = in_bursts(1), in_bursts(1, start=11.009)
    second = [step._replace(epoch=1) for step in second]
    assert over_epochs(MEASURED, [*first, *second], 10).seconds == pytest.approx(2.018)


def test_a_loader_that_was_never_wrapped_goes_back_to_torchs_own_iterators(monitor: Monitor, folder: Path) -> None:
    loader = loader_of(folder)
    loop = Training(loader)
    try:
        wait_for(lambda: len(loop.came) > 5)
        monitor.tune(seconds=60, wait=False)
        trying(monitor, "dali-cpu")
        monitor.cancel_diagnosis()
        assert ended(monitor)["state"] == "cancelled"
        (one,) = monitor.loaders
        wait_for(lambda: one.backend == "torchvision")
        assert not one._live.knobs_set
        assert (one.state()["lost"], one.state()["doubled"]) == (0, 0)
    finally:
        loop.leave()
        del loop.loader, loader
