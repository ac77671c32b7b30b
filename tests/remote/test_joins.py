"""A click on `ray` on machines that are busy or full: nothing that passes by itself is taken for a refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from torch.utils.data import DataLoader

from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.ray import cluster as ray_cluster
from kernel_monitor.ray import driver_process

from .conftest import Make, RunningCluster, until
from .running import command
from .test_faults import Slow, whole

JOINS = int(os.environ.get("JOINS", "1"))  # one after the other, on a machine that is quiet and on one that is busy
ONE_S = 300  # within which each has to be over
OF_ONE_SCRIPT = 5  # at most
SPIN = "while True: pass"


@pytest.mark.alone
@pytest.mark.timeout(JOINS * ONE_S)
@pytest.mark.parametrize("busy", [2, 0], ids=["busy", "quiet"])
def test_every_join_succeeds(busy: int) -> None:
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(busy)]
    found: list[dict[str, Any]] = []
    try:
        while len(found) < JOINS:
            many = min(OF_ONE_SCRIPT, JOINS - len(found))
            command = [sys.executable, "-m", "tests.remote.joins", str(many)]
            script = subprocess.run(command, capture_output=True, text=True, check=False, timeout=many * ONE_S)
            lines = [json.loads(line) for line in script.stdout.splitlines() if line.startswith('{"outcome')]
            assert len(lines) == many, script.stderr
            found += lines
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    refused = [(one["outcome"], one["status"]) for one in found if one["outcome"] != "done" or not one["exact"]]
    took = sorted(one["s"] for one in found)
    print(f"{len(found) - len(refused)} of {len(found)} joins succeeded, in {took[0]} to {took[-1]} s: {refused}")
    assert not refused


INFO = (
    "[2026-11-29 09:00:00,123 E 7 7] core_worker.cc:496: :info_message: Attempting to recover 1 lost objects by "
    "resubmitting their tasks or setting a new primary location from existing copies.\n"
)
FATAL = (
    "[2026-11-29 09:00:01,123 C 7 9] (driver) gcs_rpc_client.h:151: Failed to connect to GCS within 8 seconds.\n"
    "[2026-11-29 09:00:01,124 I 7 9] (driver) core_worker.cc:1: Exiting.\n"
)
RAISED = 'Traceback (most recent call last):\n  File "driver.py", line 1, in main\n    x()\nMemoryError: no room\n'
ENDED = "Ray ended it, as it does without its cluster"


@pytest.mark.parametrize(
    ("log", "code", "cause"),
    [
        (INFO, 1, ENDED),
        ("", 0, ENDED),
        (INFO, -9, "killed by SIGKILL"),
        (f"\x1b[31m{FATAL}\x1b[0m{INFO}", -6, "Failed to connect to GCS within 8 seconds."),
        (RAISED + INFO, 1, "MemoryError: no room"),
        (RAISED, 0, ENDED),  # of a thread, say, which ended nothing
    ],
)
def test_a_line_of_the_log_is_no_cause_unless_it_ended_the_process(log: str, code: int, cause: str) -> None:
    assert driver_process.last_words(log, code) == cause


@pytest.fixture(scope="module")
def holder() -> Iterator[SwitchableLoader]:
    """A loader whose worker has the only core of the cluster, which new loaders find by RAY_ADDRESS."""
    cluster = RunningCluster(nodes=0, head=1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ray_cluster.VARIABLE, cluster.address)
            loader = switchable(DataLoader(Slow(8, 0.0), batch_size=4, num_workers=1))
            loader.switch("ray")
            until(lambda: list(loader) and loader.backend == "ray", loader)
            yield loader
            loader.release()
    finally:
        cluster.stop()


TAKEN = (
    "switching to ray: waiting for a core, as all that Ray has are taken (10 minutes at most, or until another engine "
    "is chosen); torchvision goes on"
)


def waits(loader: SwitchableLoader) -> bool:
    return loader.state()["status"] == TAKEN


def drivers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "ray/driver.py" in command(child)]


@pytest.mark.parametrize("end", ["another engine", "release", "dropped", "other settings"])
def test_a_wait_ends_with_the_users_word(
    end: str, holder: SwitchableLoader, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    loader = make(dataset=Slow(40, 0.0))
    list(loader)
    others = drivers()
    loader.switch("ray")
    until(lambda: waits(loader), loader)
    began = time.monotonic()
    if end == "another engine":
        loader.switch("torchvision")
        assert loader.switch_state.clicks[0].outcome == "superseded"
        assert loader.state()["status"] == "torchvision"
        loader.switch("ray")  # and back: it joins again
        until(lambda: waits(loader), loader)
        loader.switch("torchvision")
        loader.release(idle=True)
    elif end == "release":
        loader.release()
        assert loader.switch_state.clicks[0].outcome == "cancelled"
    elif end == "dropped":
        loader.end()
    else:
        loader.num_workers = 0  # every engine is built anew, and the new one waits in its turn
        whole(loader, list(loader))
        until(lambda: waits(loader), loader)
        loader.switch("torchvision")
    until(lambda: drivers() == others)
    assert time.monotonic() - began < 60
    whole(loader, list(loader))
    assert not caplog.records
    assert holder.backend == "ray"
    assert len(list(holder)) == 2


def test_a_wait_ends_at_the_stated_time(holder: SwitchableLoader, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_process, "WAITS_AT_MOST", 30.0)
    loader = make(dataset=Slow(8, 0.0))
    loader.switch("ray")
    until(lambda: list(loader) and loader.switch_state.preparing is None, loader)
    assert loader.state()["status"] == (
        "ray failed: Ray did not start: no worker was there within 30 s: waiting for a core, as all that Ray has are "
        "taken; torchvision goes on"
    )
    assert loader.switch_state.clicks[0].outcome == "failed"


def test_a_full_machine_is_waited_for_while_the_other_engine_goes_on(holder: SwitchableLoader, make: Make) -> None:
    loader = make(dataset=Slow(120, 0.005), shuffle=True)
    loader.switch("ray")  # before the first batch, which does not wait for it
    whole(loader, list(loader))
    until(lambda: waits(loader), loader)
    assert set(loader.decoded()) == {"torchvision"}
    loader.switch("ray")  # once more
    loader.set(workers=1)  # as Tune does
    whole(loader, list(loader))
    assert waits(loader)
    assert [click.outcome for click in loader.switch_state.clicks] == ["pending"]

    holder.release()
    until(lambda: list(loader) and loader.backend == "ray", loader)
    assert sum(node.workers for node in loader.nodes) == 1
    whole(loader, list(loader))
    assert loader.decoded() == {"ray": 120}, loader.state()["status"]
