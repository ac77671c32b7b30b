"""The figures of the status bar, from rows as they are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from kernel_monitor.runtime.publisher import machine_figures as glance
from kernel_monitor.store import Store
from tests.unit.sessions import hello

NAMES = ["cpu/0/busy", "cpu/1/busy", "memory/used", "container/memory"]
NAMES += [f"gpu/{k}/{part}" for k in (0, 1) for part in ("utilisation", "memory_used")]


def store(limits: dict[str, Any] | None = None, gpus: int = 2) -> Store:
    one = Store(20)
    host = {"cpu_model": "a", "logical_cpus": 2, "memory_total": 16e9, "platform": "Linux"}
    known = [{"index": k, "name": "H100", "memory_total": 80_000_000_000} for k in range(gpus)]
    one.set_host(hello(*NAMES, cpus=[0, 1], gpus=known, host=host if limits is None else {**host, "limits": limits}))
    one.set_loaders([{"id": "a", "name": "train"}, {"id": "b", "name": "validation"}])
    return one


def test_the_means_of_the_rows() -> None:
    one = store()
    one.append(0.1, [0, 50, 3e9, 1e9, 80, 10e9, 90, 20e9], {"loader/a/images": 100.0, "loader/b/images": 10.0})
    one.append(0.2, [100, 50, 4e9, 2e9, 100, 11e9, 70, 21e9], {"loader/a/images": 300.0})
    figures = glance(one.rows(), loaders=["a", "b"])
    assert json.loads(json.dumps(figures)) == {
        "cpu": 50.0,
        "gpu": 85.0,
        "memory_used": 4e9,
        "memory_total": 16e9,
        "gpu_memory_used": 32e9,
        "gpu_memory_total": 160_000_000_000,
        "images": 210.0,
    }


def test_what_is_missing_is_none_and_never_zero() -> None:
    one = store(gpus=0)
    nothing = glance(one.rows(), loaders=[])
    one.append(0.1, [np.nan] * 8)
    for figures in (nothing, glance(one.rows(), loaders=["a", "gone"])):
        assert {**figures, "memory_total": None} == dict.fromkeys(figures)


def test_a_container_is_measured_by_its_own_limits() -> None:
    one = store({"cpus": [1], "cpu_quota": None, "memory": 4_000_000_000, "source": "cgroup v2"})
    one.append(0.1, [100, 20, 9e9, 2e9, 0, 0, 0, 0])
    figures = glance(one.rows(), loaders=[])
    assert (figures["cpu"], figures["memory_used"], figures["memory_total"]) == (20.0, 2e9, 4_000_000_000)
