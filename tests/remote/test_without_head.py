"""The last test of the folder, as the cluster does not survive it: its head goes."""

from __future__ import annotations

import time

import pytest
import torch

from .conftest import Make, RunningCluster, until
from .test_faults import Slow, on_ray, whole


def test_the_head_goes(cluster: RunningCluster, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray then ends the process that has joined: that is not the kernel. Usually after 60 s, here after 3."""
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
    torch.manual_seed(2)
    loader = on_ray(make, dataset=Slow(400, 0.01), shuffle=True)
    batches = []
    for number, batch in enumerate(loader):
        batches.append(batch)
        if number == 2:
            assert loader.backend == "ray"
            next(process for process in cluster.processes() if process.name() == "gcs_server").kill()
        if number == 10:  # the workers go on without a head, until the driver process ends
            driver = loader.pool["ray"].engine._driver  # type: ignore[attr-defined]
            until(lambda: driver._process.poll() is not None)  # noqa: B023
            time.sleep(0.1)
    whole(loader, batches)
    assert loader.backend == "torchvision"
    assert "ray failed: Ray's driver process ended: Failed to connect to GCS" in loader.state()["status"]
