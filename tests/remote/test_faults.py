"""What goes wrong in a cluster: the loop gets every sample once, in its order, and its cause is shown."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

from kernel_monitor.errors import BackendUnavailable, SampleError
from kernel_monitor.loaders import SwitchableLoader
from kernel_monitor.ray import cluster as ray_cluster
from kernel_monitor.ray import driver_process
from kernel_monitor.ray.node_worker import versions

from ..loaders.conftest import augmented, settle, violent
from .conftest import Kept, Make, RunningCluster, until


class Slow(Dataset[Any]):
    """Samples that take a while."""

    def __init__(self, samples: int = 120, seconds: float = 0.02) -> None:
        self.samples, self.seconds = samples, seconds

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.rand(2), index


def on_ray(make: Make, **options: Any) -> SwitchableLoader:
    loader = make(**options)
    loader.switch("ray")
    return loader


def whole(loader: SwitchableLoader, batches: list[Any]) -> None:
    """The epoch was delivered once, as planned."""
    targets = torch.cat([batch[1] for batch in batches]).tolist()
    plan = loader.plan()
    labels = getattr(loader.dataset, "targets", range(len(loader.dataset)))
    assert targets == [labels[index] for index in plan]
    assert sorted(plan) == list(range(len(loader.dataset)))
    state = loader.state()
    assert (state["lost"], state["doubled"], state["samples"]) == (0, 0, len(loader.dataset))


def test_workers_are_killed_again_and_again(quick: RunningCluster, make: Make) -> None:
    torch.manual_seed(1)
    expected = list(make(shuffle=True))
    torch.manual_seed(1)
    loader = on_ray(make, shuffle=True)
    batches = []
    for number, batch in enumerate(loader):
        batches.append(batch)
        if number in (3, 12):
            quick.kill_worker(number)
    whole(loader, batches)
    assert loader.decoded() == {"ray": 120}, loader.state()["status"]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(batches, expected, strict=True))
    until(lambda: sum(node.workers for node in loader.nodes) == 2)  # others were started in their places


def test_a_worker_that_does_not_answer_is_not_waited_for(quick: RunningCluster, make: Make) -> None:
    loader = on_ray(make, dataset=Slow(seconds=0.005), shuffle=True)
    batches, stopped = [], None
    list(loader)  # the usual times are known, and both workers are there
    until(lambda: sum(node.workers for node in loader.nodes) == 2)
    began = time.monotonic()
    try:
        for number, batch in enumerate(loader):
            batches.append(batch)
            if number == 8:
                stopped = quick.workers()[0]
                stopped.suspend()
    finally:
        if stopped is not None:
            stopped.resume()
    whole(loader, batches)
    assert loader.decoded() == {"ray": 120}, loader.state()["status"]
    assert time.monotonic() - began < 30


def test_a_slow_batch_is_waited_for_in_a_cluster_that_is_there(quick: RunningCluster, make: Make) -> None:
    """It takes longer than a cluster that is gone is waited for."""
    loader = on_ray(make, dataset=Slow(8, 1.0))
    whole(loader, list(loader))
    assert loader.decoded() == {"ray": 8}, loader.state()["status"]


def test_the_driver_process_is_killed(cluster: RunningCluster, kept: Kept, make: Make) -> None:
    kept.close()  # what other tests share has workers, too
    loader = on_ray(make, shuffle=True)
    batches = []
    for number, batch in enumerate(loader):
        batches.append(batch)
        if number == 2:
            assert loader.backend == "ray"
            os.kill(loader.pool["ray"].engine._driver.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    whole(loader, batches)
    assert loader.backend == "torchvision"
    assert "ray failed: Ray's driver process ended: killed by SIGKILL; torchvision goes on" in loader.state()["status"]
    until(lambda: not cluster.workers())  # they end with it


def test_release_leaves_nothing_on_the_nodes(cluster: RunningCluster, kept: Kept, make: Make) -> None:
    kept.close()
    until(lambda: not cluster.workers())
    loader = on_ray(make)
    list(loader)
    assert cluster.workers()
    driver: Any = loader.pool["ray"].engine._driver  # type: ignore[attr-defined]
    loader.switch("torchvision")
    list(loader)  # its workers are forked, with copies of the pipe to the driver process
    loader.release()
    assert driver._process.returncode == 0  # it was not killed
    until(lambda: not cluster.workers())
    assert loader.nodes == []


SCRIPT = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from kernel_monitor import switchable

class Mine(Dataset):  # defined here: sent by value
    def __len__(self): return 40
    def __getitem__(self, index): return Box(index)

class Box:
    def __init__(self, index): self.index = index

if __name__ == "__main__":
    loader = switchable(DataLoader(Mine(), batch_size=4, num_workers=2, collate_fn=lambda boxes: boxes))
    loader.switch("ray")
    seen = []
    for boxes in loader:
        assert all(type(box) is Box for box in boxes)
        seen += [box.index for box in boxes]
    assert seen == list(range(40)), seen
    assert loader.decoded() == {"ray": 40}, loader.switch_state.status
    assert "ray" not in sys.modules  # nothing of it in the process of the training: it may be forked
    print("delivered", flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_scripts_leave_nothing_on_the_nodes(cluster: RunningCluster, kept: Kept, tmp_path: Path) -> None:
    kept.close()
    until(lambda: not cluster.workers())
    script = tmp_path / "training.py"
    script.write_text(SCRIPT)
    codes = {"ends": 0, "killed": -signal.SIGKILL}
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = {how: subprocess.Popen([sys.executable, script, how], **options) for how in codes}
    for how, process in running.items():
        printed, errors = process.communicate(timeout=120)
        assert printed == "delivered\n", errors  # and nothing that Ray prints
        assert process.returncode == codes[how]
    until(lambda: not cluster.workers() and not drivers())


def drivers() -> list[psutil.Process]:
    """Driver processes that nobody owns any more."""
    orphans = [process for process in psutil.process_iter(["cmdline", "ppid"]) if process.info["ppid"] == 1]
    return [one for one in orphans if any(part.endswith("ray/driver.py") for part in one.info["cmdline"] or ())]


@violent
def test_an_interrupt_while_the_loop_waits(quick: RunningCluster, make: Make) -> None:
    loader = on_ray(make, dataset=Slow(40, 0.05), shuffle=True)
    iterator = iter(loader)
    next(iterator)
    threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident or 0, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        for _ in iterator:
            pass
    whole(loader, list(loader))
    assert loader.decoded() == {"ray": 40}


def test_other_versions_on_the_nodes(cluster: RunningCluster, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {**versions(), "torch": "1.0.1"}
    here = versions()["torch"]
    monkeypatch.setattr(driver_process, "versions", lambda: found)
    loader = on_ray(make)
    assert len(list(loader)) == 30
    assert loader.decoded() == {"torchvision": 120}
    status = loader.state()["status"]
    assert f"it has torch {here} instead of 1.0.1" in status
    assert "No node can work for the loader" in status


def test_a_data_set_that_cannot_be_sent(cluster: RunningCluster, make: Make, folder: Path) -> None:
    dataset: Any = ImageFolder(folder, augmented())
    dataset.lock = threading.Lock()
    loader = make(dataset=dataset, num_workers=0)
    backend = loader.backends["ray"]
    assert not backend.available
    assert backend.reason == "The data set cannot be sent to other machines: cannot pickle '_thread.lock' object."
    with pytest.raises(BackendUnavailable, match="cannot be sent"):
        loader.switch("ray")


class Failing(Slow):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            raise ValueError("not this one")
        return super().__getitem__(index)


def test_an_error_of_the_users_code_is_raised_as_torch_raises_it(quick: RunningCluster, make: Make) -> None:
    raised = []
    for name in ("torchvision", "ray"):
        loader = make(dataset=Failing(20, 0.0))
        loader.switch(name)
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        with pytest.raises(ValueError, match="not this one") as caught:
            next(iterator)
        raised.append(str(caught.value).splitlines()[-1])
        assert len(next(iterator)[1]) == 4  # the loop may go on, as with any switchable loader
        assert loader.backend == name
    assert raised[0] == raised[1] == "ValueError: not this one"


def test_a_missing_file(quick: RunningCluster, make: Make, folder: Path) -> None:
    errors = []
    for name in ("torchvision", "ray"):
        dataset: Any = ImageFolder(folder, augmented())
        dataset.samples[5] = (str(folder / "nowhere.jpg"), 0)
        loader = make(dataset=dataset)
        loader.switch(name)
        with pytest.raises(SampleError) as caught:
            list(loader)
        errors.append((str(caught.value), caught.value.path, caught.value.index, type(caught.value.__cause__)))
        skipping = make(dataset=dataset, on_error="skip")
        skipping.switch(name)
        assert sum(len(batch[1]) for batch in skipping) == 119
        assert [skip.index for skip in skipping.skipped()] == [5]
        assert skipping.backend == name
    assert errors[0] == errors[1]


class Deadly(Slow):
    def __getitem__(self, index: int) -> Any:
        from torch.utils.data import get_worker_info

        if index == 30 and get_worker_info() is not None and "ray::" in " ".join(psutil.Process().cmdline()):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_sample_that_kills_every_worker(quick: RunningCluster, make: Make) -> None:
    """As where a node's memory runs out: it is not tried for ever."""
    loader = on_ray(make, dataset=Deadly(60, 0.0))
    whole(loader, list(loader))
    assert loader.backend == "torchvision"
    assert "3 workers ended while they computed batch 7" in loader.state()["status"]


class Unpacked(Slow):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


def with_lock(samples: list[Any]) -> Any:
    return torch.stack([sample[0] for sample in samples]), torch.tensor([index for _, index in samples]), Once()


class Once:
    """Cannot be sent by a worker of the cluster."""

    def __reduce__(self) -> Any:
        if "ray::" in " ".join(psutil.Process().cmdline()):
            raise TypeError("this stays here")
        return Once, ()


def test_a_batch_that_cannot_be_sent(quick: RunningCluster, make: Make) -> None:
    loader = on_ray(make, dataset=Slow(20, 0.0), collate_fn=with_lock)
    assert torch.cat([batch[1] for batch in loader]).tolist() == list(range(20))
    assert loader.backend == "torchvision"
    assert "this stays here" in loader.state()["status"]


def test_knobs_are_turned_while_it_runs(quick: RunningCluster, make: Make) -> None:
    loader = on_ray(make, dataset=Slow(400, 0.005), shuffle=True)
    seen, batches = set(), []
    for number, batch in enumerate(loader):
        batches.append(batch)
        if number in (10, 50):
            loader.set(workers=3 if number == 10 else 1)
            until(lambda: sum(node.workers for node in loader.nodes) == loader.knobs.workers, loader)
        seen.add(sum(node.workers for node in loader.nodes))
    whole(loader, batches)
    assert {1, 3} <= seen
    assert loader.decoded() == {"ray": 400}, loader.state()["status"]
    assert loader.pool["ray"].engine.depth == 2


def test_a_changed_data_set_is_sent_again(quick: RunningCluster, make: Make) -> None:
    dataset = Slow(24, 0.0)
    loader = on_ray(make, dataset=dataset)
    for samples in (24, 16):
        dataset.samples = samples
        dataset.seconds = samples / 1000
        assert torch.cat([batch[1] for batch in loader]).tolist()[:16] == list(range(16))
    assert loader.backend == "ray"


def test_nothing_listens_beyond_this_machine(quick: RunningCluster) -> None:
    listening = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True), *quick.processes()]:
        with contextlib.suppress(psutil.Error):
            connections = process.net_connections(kind="inet")
            listening |= {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert listening


def test_clients_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ray_cluster.VARIABLE, "ray://somewhere:10001")
    backend = make(num_workers=0).backends["ray"]
    assert not backend.available
    assert "ray start --address" in (backend.reason or "")


def test_an_address_where_no_cluster_is(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ray_cluster.VARIABLE, "127.0.0.1:9")
    loader = on_ray(make, num_workers=0)
    settle(loader)
    assert len(list(loader)) == 30
    assert "ray failed: Ray at 127.0.0.1:9 cannot be used: nothing answers there" in loader.state()["status"]


def test_a_ray_of_our_own(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ray_cluster.VARIABLE, raising=False)
    loader = make()
    assert [backend.confirm for backend in loader.backends.values()][-1] == ray_cluster.ASK
    loader.switch("ray")
    assert len(list(loader)) == 30
    assert loader.decoded() == {"ray": 120}, loader.state()["status"]
    assert loader.backends["ray"].confirm is None  # it runs already
    assert [node.is_ours for node in loader.nodes if node.workers] == [True]
    assert "nodes" not in loader.state()  # no machine beside this one, and none to pay for
    driver: Any = loader.pool["ray"].engine
    started = psutil.Process(driver._driver.pid).children(recursive=True)
    assert any(process.name() == "gcs_server" for process in started)
    loader.release()
    until(lambda: not any(process.is_running() for process in started))
