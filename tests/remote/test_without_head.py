"""The last tests of the folder, as no cluster survives them: its head goes, or all of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import psutil
import pytest
import torch

from kernel_monitor.ray import cluster as ray_cluster

from .conftest import Make, RunningCluster, until
from .test_faults import Slow, on_ray, whole

LONGEST = 5.0  # s that a loop may wait for a cluster that is gone


def is_gcs(process: psutil.Process) -> bool:
    return process.name() == "gcs_server"


@pytest.mark.alone
@pytest.mark.parametrize(
    ("goes", "cause"),
    [
        (lambda process: True, "the cluster's head does not answer"),
        (lambda process: not is_gcs(process), "Ray on this machine does not answer"),
    ],
    ids=["everything", "all but the head"],
)
def test_a_cluster_that_is_gone_is_not_waited_for(
    make: Make, monkeypatch: pytest.MonkeyPatch, goes: Callable[[psutil.Process], bool], cause: str
) -> None:
    """Ray itself waits for 60 s, or 15; sometimes it is the first to notice."""
    cluster = RunningCluster(nodes=0, head=2)
    try:
        monkeypatch.setenv(ray_cluster.VARIABLE, cluster.address)
        torch.manual_seed(2)
        loader = on_ray(make, dataset=Slow(400, 0.01), shuffle=True)
        batches, waits, asked = [], [], time.monotonic()
        for number, batch in enumerate(loader):
            waits.append(time.monotonic() - asked)
            batches.append(batch)
            if number == 0:
                until(lambda: loader.switch_state.preparing is None)
            if number == 5:
                assert loader.backend == "ray"
                for process in filter(goes, cluster.processes()):
                    process.kill()
            asked = time.monotonic()
        whole(loader, batches)
        assert max(waits[6:]) < LONGEST
        assert loader.backend == "torchvision"
        assert re.search(f"ray failed: ({cause}|Ray's driver process ended: .)", loader.state()["status"])
    finally:
        cluster.stop()


def test_the_head_goes(cluster: RunningCluster, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray then ends the process that has joined: that is not the kernel.

    Usually after 60 s, here after 8: a head on a busy machine does not answer for some.
    """
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "8")
    torch.manual_seed(2)
    loader = on_ray(make, dataset=Slow(400, 0.01), shuffle=True)
    batches, of_ray = [], 0
    for number, batch in enumerate(loader):
        batches.append(batch)
        if number == 0:
            until(lambda: loader.switch_state.preparing is None)
        if loader.backend != "ray":  # its first batch may take longer than the next of torchvision
            continue
        of_ray += 1
        if of_ray == 1:
            next(filter(is_gcs, cluster.processes())).kill()
        if of_ray == 8:  # the workers go on without a head, until the driver process ends
            driver = loader.pool["ray"].engine._driver  # type: ignore[attr-defined]
            until(lambda: driver._process.poll() is not None)  # noqa: B023
            time.sleep(0.1)
    assert of_ray >= 8
    whole(loader, batches)
    assert loader.backend == "torchvision"
    # Ray's log has the cause at one level of its own or another; without it the status says what Ray does then.
    cause = "(Failed to connect to GCS|Ray ended it, as it does without its cluster)"
    assert re.search(f"ray failed: Ray's driver process ended: {cause}", loader.state()["status"])
