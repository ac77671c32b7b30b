"""Limits and their use, in every layout of control groups that a kernel may be started in."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.metrics import GROUPS, METRICS, matching
from kernel_monitor.sample.host.process_limits import Container, Groups, Limits

PID = os.getpid()  # its cores are asked of the kernel itself
CORES = sorted(os.sched_getaffinity(0))
NONE_V1 = 9223372036854771712


def system(root: Path, places: str, *mounts: str) -> Path:
    """A root with the process's `/proc/<pid>/cgroup` and `mountinfo`."""
    process = root / "proc" / str(PID)
    process.mkdir(parents=True, exist_ok=True)
    (process / "cgroup").write_text(places)
    other = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
    lines = [other, *(f"{30 + number} 22 0:{28 + number} {mount}" for number, mount in enumerate(mounts))]
    (process / "mountinfo").write_text("\n".join([*lines, ""]))
    return root


def group(folder: Path, files: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def v1_cpu(quota: int, *, periods: int = 0, throttled: int = 0, used: int = 0) -> dict[str, object]:
    """The files of a group of cpu and cpuacct together; the CPU time in ns."""
    return {
        "cpu.cfs_quota_us": quota,
        "cpu.cfs_period_us": 100_000,
        "cpu.stat": f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 1",
        "cpuacct.usage": used,
    }


def v1_memory(limit: int, *, used: int = 0, inactive: int = 0, beyond: int = NONE_V1) -> dict[str, object]:
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": used,
        "memory.stat": f"inactive_file 3\nhierarchical_memory_limit {beyond}\ntotal_inactive_file {inactive}",
    }


def v2_cpu(limit: str, *, periods: int = 0, throttled: int = 0, used: int = 0) -> dict[str, object]:
    """The CPU's files of a group of version 2; the CPU time in µs."""
    stat = f"usage_usec {used}\nuser_usec 1\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 9"
    return {"cpu.max": limit, "cpu.stat": stat}


def v2_memory(limit: object, *, used: int = 0, inactive: int = 0) -> dict[str, object]:
    return {"memory.max": limit, "memory.current": used, "memory.stat": f"anon 1\ninactive_file {inactive}"}


V1_MOUNTS = (
    "/ /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct",
    "/ /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory",
    "/ /sys/fs/cgroup/cpuset rw,nosuid - cgroup cgroup rw,cpuset",
)
V1_PLACES = "4:memory:/docker/abc\n3:cpuset:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/x:y\n"


def v1(root: Path) -> Path:
    """Version 1 seen from the host, or from a container without a namespace and with all mounted."""
    top = system(root, V1_PLACES, *V1_MOUNTS) / "sys/fs/cgroup"
    group(top / "cpu,cpuacct", v1_cpu(-1))
    group(top / "cpu,cpuacct/docker", v1_cpu(-1))
    group(top / "cpu,cpuacct/docker/abc", v1_cpu(150_000))
    group(top / "memory", v1_memory(NONE_V1))
    group(top / "memory/docker", v1_memory(NONE_V1))
    group(top / "memory/docker/abc", v1_memory(1 << 30, beyond=1 << 30))
    group(top / "cpuset/docker/abc", {"cpuset.effective_cpus": f"{CORES[0]},70-71"})
    return root


def v2(root: Path) -> Path:
    """Version 2 with a tighter group around the process's own."""
    mount = "/ /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot"
    top = system(root, "0::/user.slice/pod/ctr\n", mount) / "sys/fs/cgroup"
    group(top, {"cpu.stat": "usage_usec 1", "cgroup.controllers": "cpu memory"})  # the outermost has no limits
    group(top / "user.slice", {**v2_cpu("max 100000"), **v2_memory("max")})
    group(top / "user.slice/pod", {**v2_cpu("50000 100000"), **v2_memory(2 << 30)})
    group(top / "user.slice/pod/ctr", {**v2_cpu("400000 100000"), **v2_memory(1 << 30)})
    group(top / "user.slice/pod/ctr", {"cpuset.cpus.effective": f"{CORES[0]}-{CORES[0]}"})
    return root


def hybrid(root: Path) -> Path:
    """Version 2 mounted beside version 1, which has the controllers; with a blank in a group's name."""
    top = system(
        root,
        "4:memory:/my group\n2:cpu,cpuacct:/\n0::/my group\n",
        *V1_MOUNTS,
        "/ /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    )
    group(top / "sys/fs/cgroup/cpu,cpuacct", v1_cpu(25_000))
    group(top / "sys/fs/cgroup/memory/my group", v1_memory(1 << 28))
    group(top / "sys/fs/cgroup/unified/my group", {"cgroup.procs": ""})
    return root


def namespaced_v2(root: Path) -> Path:
    """A container with a namespace of its own: its group is the outermost that it sees, and does have limits."""
    top = system(root, "0::/\n", "/ /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw") / "sys/fs/cgroup"
    group(top, {**v2_cpu("200000 100000"), **v2_memory(3 << 20)})
    return root


def bound_v1(root: Path) -> Path:
    """A container without a namespace that is shown its own groups alone; a group around it is tighter in memory."""
    top = system(root, V1_PLACES, *(mount.replace("/ ", "/docker/abc ", 1) for mount in V1_MOUNTS)) / "sys/fs/cgroup"
    group(top / "cpu,cpuacct", v1_cpu(300_000))
    group(top / "memory", v1_memory(1 << 30, beyond=1 << 29))
    return root


def elsewhere(root: Path) -> Path:
    """What is mounted is not what the process is said to be in: it is taken for the process's own."""
    mount = "/../../.. /sys/fs/cgroup ro - cgroup2 cgroup rw"
    top = system(root, "0::/../other\n", mount) / "sys/fs/cgroup"
    group(top, {**v2_cpu("10000 20000"), **v2_memory("max")})
    return root


def unlimited(root: Path) -> Path:
    top = system(root, "0::/a\n", "/ /sys/fs/cgroup rw - cgroup2 cgroup rw") / "sys/fs/cgroup/a"
    group(top, {**v2_cpu("max 100000"), **v2_memory(1 << 60)})
    return root


def none(root: Path) -> Path:
    return system(root, "0::/\n")


LAYOUTS: list[tuple[Any, list[int], float | None, int | None, str | None]] = [
    (v1, CORES[:1], 1.5, 1 << 30, "cgroup v1"),
    (v2, CORES[:1], 0.5, 1 << 30, "cgroup v2"),
    (hybrid, CORES, 0.25, 1 << 28, "cgroup v1"),
    (namespaced_v2, CORES, 2.0, 3 << 20, "cgroup v2"),
    (bound_v1, CORES, 3.0, 1 << 29, "cgroup v1"),
    (elsewhere, CORES, 0.5, None, "cgroup v2"),
    (unlimited, CORES, None, None, "cgroup v2"),
    (none, CORES, None, None, None),
    (Path, CORES, None, None, None),  # a system without control groups
]


@pytest.mark.parametrize(("layout", "cpus", "quota", "memory", "source"), LAYOUTS)
def test_the_limits_and_the_metrics_of_each_layout(
    tmp_path: Path, layout: Any, cpus: list[int], quota: float | None, memory: int | None, source: str | None
) -> None:
    limits = Limits(PID, layout(tmp_path))
    assert limits.read() == {"cpus": cpus, "cpu_quota": quota, "memory": memory, "source": source}
    assert set(limits.reasons) == (set() if source else {"limits"})
    probe = Container(PID, layout(tmp_path))
    names = {name for name, _ in probe.series}
    assert ("container/cpu" in names) == ("container/throttled" in names) == (quota is not None)
    assert ("container/memory" in names) == ("container/memory_percent" in names) == (memory is not None)
    of_the_group = {metric.name for metric in METRICS if metric.group == "container"}
    assert set(probe.reasons) == (of_the_group - names if source else {"container"})
    assert probe.period == GROUPS["container"]
    for name, unit in probe.series:
        (entry,) = matching(name)
        assert (entry.unit, entry.group) == (unit, "container")


def test_use_is_that_of_the_group_with_the_tightest_limit_v2(tmp_path: Path) -> None:
    folder = v2(tmp_path) / "sys/fs/cgroup/user.slice/pod"
    group(folder, v2_cpu("50000 100000", periods=100, throttled=10, used=1_000_000))
    group(folder / "ctr", v2_memory(1 << 30, used=900 << 20, inactive=388 << 20))
    probe = Container(PID, tmp_path)
    first = probe.read(10.0)
    assert all(math.isnan(value) for value in first[:2])
    assert first[2:] == [512 << 20, 50.0]
    group(folder, v2_cpu("50000 100000", periods=110, throttled=14, used=1_200_000))
    # 0.2 s of CPU time in 1 s, of half a core: 40 %; 4 of 10 periods.
    assert probe.read(11.0)[:2] == pytest.approx([40.0, 40.0])
    assert probe.read(12.0)[:2] == [0.0, 0.0]  # asleep: no period


def test_use_is_that_of_the_group_with_the_tightest_limit_v1(tmp_path: Path) -> None:
    top = v1(tmp_path) / "sys/fs/cgroup"
    group(top / "memory/docker/abc", v1_memory(1 << 30, used=600 << 20, inactive=344 << 20))
    probe = Container(PID, tmp_path)
    assert probe.read(0.0)[2:] == [256 << 20, 25.0]
    group(top / "cpu,cpuacct/docker/abc", v1_cpu(150_000, periods=5, throttled=5, used=1_500_000_000))
    assert probe.read(1.0)[:2] == pytest.approx([100.0, 100.0])


def test_limits_that_come_change_and_go_are_followed(tmp_path: Path) -> None:
    folder = unlimited(tmp_path) / "sys/fs/cgroup/a"
    limits, probe = Limits(PID, tmp_path), Container(PID, tmp_path)
    assert (probe.read(100.0), probe.series) == ([], ())
    group(folder, {**v2_cpu("100000 100000"), **v2_memory(1 << 20, used=1 << 19)})
    assert limits.read()["cpu_quota"] == 1.0
    assert probe.read(104.0) == []  # looked at every 5 s
    assert probe.read(105.0)[2:] == [1 << 19, 50.0]
    assert len(probe.series) == 4
    group(folder, {**v2_cpu("200000 100000", used=1_000_000, periods=1), **v2_memory("max")})
    assert limits.read() == {"cpus": CORES, "cpu_quota": 2.0, "memory": None, "source": "cgroup v2"}
    assert probe.read(110.0)[:1] == pytest.approx([10.0])
    assert [name for name, _ in probe.series] == ["container/cpu", "container/throttled"]
    assert set(probe.reasons) == {"container/memory", "container/memory_percent"}


def test_a_process_that_is_moved_is_followed(tmp_path: Path) -> None:
    top = unlimited(tmp_path) / "sys/fs/cgroup"
    limits = Limits(PID, tmp_path)
    assert limits.read()["memory"] is None
    group(top / "b", v2_memory(1 << 25))
    (tmp_path / f"proc/{PID}/cgroup").write_text("0::/b\n")
    assert limits.read()["memory"] == 1 << 25


def test_cpu_time_that_another_group_counts_is_not_taken_for_the_groups_own(tmp_path: Path) -> None:
    system(
        tmp_path,
        "2:cpu:/limited\n1:cpuacct:/\n",
        "/ /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
        "/ /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct",
    )
    group(tmp_path / "sys/fs/cgroup/cpu/limited", v1_cpu(50_000))
    group(tmp_path / "sys/fs/cgroup/cpuacct", {"cpuacct.usage": 10**12})
    assert Limits(PID, tmp_path).read()["cpu_quota"] == 0.5
    probe = Container(PID, tmp_path)
    assert probe.series == ()
    assert "differ" in probe.reasons["container/cpu"]


def test_the_cores_are_those_of_the_kernels_process_as_they_are_now() -> None:
    source = f"import os\ninput()\nos.sched_setaffinity(0, [{CORES[-1]}])\nprint(1, flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            limits = Limits(child.pid)
            assert limits.read()["cpus"] == CORES
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
            assert limits.read()["cpus"] == CORES[-1:]
        finally:
            child.kill()


def test_the_groups_of_this_machine_are_folders_that_hold_the_process() -> None:
    found = Groups(PID).find()
    for name, one in found.items():
        listed = (Path(one.folders[0]) / "cgroup.procs").read_text().split()
        assert str(PID) in listed, name
        assert all(Path(inner).parent == Path(outer) for inner, outer in pairwise(one.folders))
