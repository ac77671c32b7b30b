"""Other hosts of ranks: one rank of each reads the machine, and its readings are those of a machine of the page."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from kernel_monitor import node_sources
from kernel_monitor.ranks import identity
from kernel_monitor.ranks.hosts import ENDED, KEPT_GONE, MOST_HOSTS, MOST_KNOWN, SILENT_S, Hosts
from kernel_monitor.ranks.jobs import Jobs
from kernel_monitor.ranks.rank_client import READING_S, HostSampler
from kernel_monitor.ranks.rank_frames import Frame, Identity, Machine, packed, unpacked
from kernel_monitor.ranks.rank_server import RankServer
from kernel_monitor.ranks.session_files import VARIABLE

from ..waiting import until
from .peers import LOOP, Clock

READ = Machine([0, 1], ["H100"], ["GPU-AB-1"], {"cpu/0/busy": 20.0, "cpu/1/busy": 40.0, "gpu/0/utilisation": 91.0})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(node_sources, "_ids", {})
    monkeypatch.setattr(node_sources, "_pseudonyms", {})
    return Clock()


def frame(pid: int, host: str = "far", **more: Any) -> Frame:
    of = Identity(host, f"{host}-name", pid, 1.0, 1, pid, 4, "job")
    values = {"sent": 0.0, "cpu": 1.0, "images": math.nan, "dropped": 0, "left_out": 0, "offset": None, "bound": None}
    return Frame(**{"identity": of, **values, "bye": None, "steps": [], **more})


def test_one_rank_of_each_host_reads_it_and_none_of_this_one(clock: Clock) -> None:
    hosts = Hosts(clock=clock)
    assert [hosts.heard(frame(pid, host)) for host in ("a", "b") for pid in (1, 2, 1)] == [True, False, True] * 2
    assert not hosts.heard(frame(1, identity.host_key()))


def test_another_rank_reads_when_the_chosen_one_ends_or_falls_silent(clock: Clock) -> None:
    hosts = Hosts(clock=clock)
    assert hosts.heard(frame(1))
    assert not hosts.heard(frame(1, bye="it has finished"))
    assert hosts.heard(frame(2, machine=READ))
    clock.now += SILENT_S - 0.1
    assert not hosts.heard(frame(3))
    clock.now += 0.2
    assert hosts.heard(frame(3))
    assert not hosts.heard(frame(2))


def test_readings_are_those_of_a_machine_until_its_ranks_have_ended(clock: Clock) -> None:
    hosts = Hosts(clock=clock)
    hosts.heard(frame(1))
    assert hosts.table.nodes() == []
    hosts.heard(frame(1, machine=READ))
    (node,) = hosts.table.nodes()
    assert (node.id, node.name, node.cores, node.gpus) == ("node-1", "far-name", (0, 1), ("H100",))
    assert hosts.table.values()["node/node-1/cpu/1/busy"] == 40.0
    assert node_sources.pseudonyms()["far-name"] == "node-1"
    hosts.refresh({"far"})
    assert hosts.table.nodes()[0].alive
    hosts.refresh(set())
    (gone,) = hosts.table.nodes()
    assert (gone.alive, gone.reason, gone.cores) == (False, ENDED, (0, 1))
    hosts.heard(frame(5))
    hosts.heard(frame(5, machine=READ))
    assert hosts.table.nodes()[0].alive


def test_hosts_their_names_cores_and_shapes_are_bounded(clock: Clock) -> None:
    hosts = Hosts(clock=clock)
    wide = Machine(list(range(1500)), [], [], {"cpu/0/busy": 20.0, "memory": 1e9})
    for number in range(MOST_HOSTS):
        hosts.heard(hosts.admitted(frame(1, f"host {number}", machine=wide)))
    assert [len(node.cores) for node in hosts.table.nodes()] == [1500] + [0] * (MOST_HOSTS - 1)
    assert "node/node-2/cpu/0/busy" not in hosts.table.values()
    assert hosts.table.values()["node/node-2/memory"] == 1e9
    with pytest.raises(ValueError, match=f"more than {MOST_HOSTS} other hosts at once"):
        hosts.admitted(frame(1, "one more"))
    # What a host is called, and what it has, does not change for ever.
    for number in range(100):
        of = frame(1, "host 0", machine=READ._replace(cores=list(range(number))))
        renamed = of._replace(identity=of.identity._replace(name=f"name {number}"))
        hosts.heard(hosts.admitted(renamed))
    assert hosts.table.nodes()[0].name == "host 0-name"
    assert len(hosts.table.nodes()[0].cores) < 5
    assert len(node_sources.pseudonyms()) == 2 * MOST_HOSTS
    # Those whose ranks have ended make room, and the page forgets them.
    number = MOST_HOSTS
    while number < MOST_KNOWN:
        hosts.refresh(set())
        for each in range(number, min(number + MOST_HOSTS, MOST_KNOWN)):
            hosts.heard(hosts.admitted(frame(1, f"host {each}", machine=READ)))
        number += MOST_HOSTS
    hosts.refresh(set())
    assert len(hosts.table.nodes()) == KEPT_GONE
    with pytest.raises(ValueError, match=f"more than {MOST_KNOWN} other hosts in a session"):
        hosts.admitted(frame(1, "one more"))
    assert hosts.admitted(frame(2, "host 0")).identity.name == "host 0-name"


def test_a_rank_has_the_node_and_the_gpu_of_its_host(clock: Clock) -> None:
    asked: list[str] = []

    def here(uuid: str) -> int:
        asked.append(uuid)
        return 3

    hosts, jobs = Hosts(here, clock), Jobs(clock)
    far, near = frame(1, device="ab-1"), frame(2, identity.host_key(), device="cd-2")
    for found in (far, frame(1, machine=READ), far, near, near):
        hosts.heard(found)
        jobs.heard(found, hosts.gpu(found))
    assert [(rank.node, rank.host, rank.gpu) for rank in jobs.ranks()] == [("node-1", "far-name", 0), ("", "", 3)]
    assert asked == ["cd-2"]  # once: NVML is opened for it


def test_a_frame_brings_device_and_machine_and_damaged_ones_are_refused() -> None:
    sent = frame(1, device="ab-1", machine=READ)
    found = unpacked(packed(sent))
    assert (found.device, found.machine) == ("ab-1", READ)
    assert unpacked(packed(frame(1))).machine is None
    for wrong in (
        READ._replace(cores=[-1]),
        READ._replace(cores=list(range(5000))),
        READ._replace(uuids=[]),
        READ._replace(values=cast("dict[str, float]", {"cpu/0/busy": "much"})),
        READ._replace(values=cast("dict[str, float]", [1])),
    ):
        with pytest.raises(ValueError, match=r"machine|float|no frame"):
            unpacked(packed(frame(1, machine=wrong)))


def test_the_machine_is_read_only_while_that_is_wanted_and_once_a_second() -> None:
    sampler = HostSampler()
    assert sampler.reading(time.monotonic()) is None
    sampler.wanted = True
    now = time.monotonic()
    first = sampler.reading(now)
    assert first is not None
    assert len(first.cores) >= 1
    assert sampler.reading(now + READING_S / 2) is None
    time.sleep(0.3)
    second = sampler.reading(now + 1)
    assert second is not None
    assert {f"cpu/{core}/busy" for core in first.cores} <= set(second.values)
    assert second.values["memory"] > 0
    sampler.wanted = False
    assert sampler.reading(now + 9) is None


def test_a_machine_that_cannot_be_read_harms_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("no /proc here")

    monkeypatch.setattr("kernel_monitor.ranks.rank_client._readers", fails)
    sampler = HostSampler()
    sampler.wanted = True
    assert [sampler.reading(now) for now in (10.0, 20.0)] == [None, None]


BOTH = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, "RANK": str(k)}) for k in (0, 1)]
for rank in ranks: rank.wait()
"""
ISOLATED = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def isolated() -> bool:
    """Whether processes may have numbers of their own here, as in a container: another host, as far as ranks know."""
    return bool(shutil.which("unshare")) and subprocess.run([*ISOLATED, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not isolated(), reason="namespaces are not permitted here")
def test_of_two_real_ranks_of_another_host_one_reads_it_and_the_other_one_when_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    server = RankServer()
    process = subprocess.Popen(
        [*ISOLATED, sys.executable, "-c", BOTH, LOOP], env={**os.environ, VARIABLE: server.folder}
    )
    try:
        until(lambda: len(server.ranks()) == 2 and len(server.hosts.table.nodes()) == 1)
        (node,) = server.hosts.table.nodes()
        assert node.cores
        assert {rank.node for rank in server.ranks()} == {node.id}
        until(lambda: f"node/{node.id}/cpu/{node.cores[0]}/busy" in server.hosts.table.values())
        (reader,) = server.hosts.readers()
        (killed,) = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if Path(f"/proc/{child.pid}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()[-1]
            == str(reader)
        ]
        killed.kill()
        until(lambda: server.hosts.readers() not in ([], [reader]))
        until(lambda: server.hosts.table.values().get(f"node/{node.id}/memory", 0) > 0)
        assert server.hosts.table.nodes() == [node]
        process.kill()
        until(lambda: not server.hosts.table.nodes()[0].alive)
        assert server.hosts.table.nodes()[0].reason == ENDED
    finally:
        process.kill()
        process.wait()
        server.stop()
