"""What the host probes read: counters whose answer is known, what this machine says, and what it cannot say."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from benchmarks.metrics import GROUPS, METRICS, matching
from kernel_monitor import os_process as process
from kernel_monitor.sample import probe as procfs
from kernel_monitor.sample.host.load import Disk, Load, Memory, Network, Pressure
from kernel_monitor.sample.host.process_limits import Container, Limits
from kernel_monitor.sample.probe import Probe, Rates
from tests.unit.checks import not_none, wait_for


def named(probe: Probe, values: Sequence[float]) -> dict[str, float]:
    return dict(zip([name for name, _ in probe.series], values, strict=True))


@pytest.mark.parametrize("probe", [Memory(), Load(), Disk(), Network(), Pressure()], ids=lambda probe: probe.group)
def test_what_a_probe_brings_is_in_the_table_and_what_it_lacks_has_a_reason(probe: Probe) -> None:
    assert probe.period == GROUPS[probe.group]
    for name, unit in probe.series:
        (entry,) = matching(name)
        assert (entry.unit, entry.group) == (unit, probe.group)
    of_the_group = {metric.name for metric in METRICS if metric.group == probe.group}
    missing = of_the_group - {name for name, _ in probe.series}
    if probe.group not in probe.reasons:
        assert missing == set(probe.reasons)
    assert all(words and words == words.strip() for words in probe.reasons.values())
    assert len(probe.read(time.monotonic())) == len(probe.series)


@pytest.mark.parametrize("kind", [Load, Disk, Network, Pressure])
def test_a_system_that_does_not_have_the_file_has_a_reason(tmp_path: Path, kind: type[Load]) -> None:
    probe = kind(tmp_path)
    assert (probe.series, probe.read(0.0)) == ((), [])
    assert set(probe.reasons) == {probe.group}
    assert "proc" in probe.reasons[probe.group] or str(tmp_path) in probe.reasons[probe.group]


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {row[0].rstrip(":"): 1024 * int(row[1]) for row in rows}


def test_the_memory_is_what_proc_says() -> None:
    probe = Memory()
    found, facts = named(probe, probe.read(0.0)), meminfo()
    # Others take and give between the two looks.
    near = 0.02 * facts["MemTotal"]
    assert found["memory/available"] == pytest.approx(facts["MemAvailable"], abs=near)
    assert found["memory/used"] == facts["MemTotal"] - found["memory/available"]
    assert found["memory/percent"] == pytest.approx(100 * found["memory/used"] / facts["MemTotal"])
    assert found["swap/used"] == pytest.approx(facts["SwapTotal"] - facts["SwapFree"], abs=near)


def test_swapping_is_counted_in_bytes(tmp_path: Path) -> None:
    sizes = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\nSwapCached: 7 kB\nSwapTotal: 100 kB\n"
    (tmp_path / "meminfo").write_text(f"{sizes}SwapFree: 60 kB\n")
    (tmp_path / "vmstat").write_text("pgpgin 9\npswpin 10\npswpout 20\npgfault 3\n")
    probe = Memory(tmp_path)
    first = probe.read(10.0)
    assert first[:4] == [750 * 1024, 75.0, 250 * 1024, 40 * 1024]
    assert all(math.isnan(rate) for rate in first[4:])
    (tmp_path / "vmstat").write_text("pgpgin 9\npswpin 13\npswpout 26\npgfault 3\n")
    found = named(probe, probe.read(12.0))
    page = os.sysconf("SC_PAGE_SIZE")
    assert (found["swap/in"], found["swap/out"]) == (1.5 * page, 3 * page)
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    (tmp_path / "vmstat").write_text("pgpgin 9\npgfault 3\n")
    probe = Memory(tmp_path)
    found = named(probe, probe.read(0.0))
    assert found["swap/used"] == 0
    assert "swap/in" not in found
    assert set(probe.reasons) == {"swap/in", "swap/out"}
    assert "vmstat" in probe.reasons["swap/in"]


def test_the_load_is_what_proc_says(tmp_path: Path) -> None:
    probe = Load()
    found = named(probe, probe.read(0.0))
    assert [found[f"host/load{minutes}"] for minutes in (1, 5, 15)] == pytest.approx(os.getloadavg(), abs=0.1)
    assert found["host/processes"] >= 1  # this one
    (tmp_path / "loadavg").write_text("0.50 12.25 3.00 17/2034 999\n")
    assert Load(tmp_path).read(0.0) == [0.5, 12.25, 3.0, 17.0]


def pressure_file(some: int, full: int | None) -> str:
    lines = [f"some avg10=1.00 avg60=2.00 avg300=3.00 total={some}"]
    if full is not None:
        lines.append(f"full avg10=0.00 avg60=0.00 avg300=0.00 total={full}")
    return "\n".join([*lines, ""])


def test_pressure_is_the_share_of_the_window_that_was_lost(tmp_path: Path) -> None:
    folder = tmp_path / "pressure"
    folder.mkdir()
    for resource in ("cpu", "memory", "io"):
        (folder / resource).write_text(pressure_file(1_000_000, None if resource == "cpu" else 500_000))
    probe = Pressure(tmp_path)
    assert all(math.isnan(share) for share in probe.read(100.0))
    (folder / "cpu").write_text(pressure_file(1_500_000, None))
    (folder / "memory").write_text(pressure_file(1_000_000, 500_000))
    (folder / "io").write_text(pressure_file(3_000_300, 600_000))
    assert named(probe, probe.read(102.0)) == {
        "pressure/cpu": 25.0,
        "pressure/memory": 0.0,
        "pressure/memory_full": 0.0,
        "pressure/io": 100.0,  # some microseconds more than the window has
        "pressure/io_full": 5.0,
    }


def test_pressure_that_the_kernel_lacks_is_absent_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = Pressure(tmp_path)
    assert none.series == ()
    assert none.read(0.0) == []
    assert set(none.reasons) == {"pressure"}
    assert "no /proc/pressure" in none.reasons["pressure"]
    folder = tmp_path / "pressure"
    folder.mkdir()
    (folder / "cpu").write_text(pressure_file(0, None))
    (folder / "memory").write_text("nonsense")
    only_cpu = Pressure(tmp_path)
    assert [name for name, _ in only_cpu.series] == ["pressure/cpu"]
    assert set(only_cpu.reasons) == {"pressure/memory", "pressure/memory_full", "pressure/io", "pressure/io_full"}
    assert "no line" in only_cpu.reasons["pressure/memory_full"]

    def read(path: str) -> bytes:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)  # what a kernel with psi=0 answers

    monkeypatch.setattr(procfs, "read", read)
    assert "psi=1" in Pressure(tmp_path).reasons["pressure"]


def diskstats(**disks: tuple[int, int, int]) -> str:
    """A /proc/diskstats: sectors read, sectors written, milliseconds with work, of each disk."""
    return "".join(
        f" 8 {minor} {name} 1 2 {read} 4 5 6 {written} 8 9 {busy} 11 12 13 14 15\n"
        for minor, (name, (read, written, busy)) in enumerate(disks.items())
    )


def hardware(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name / "device").mkdir(parents=True)
    return folder


def test_the_busiest_disk_counts_as_busy_and_a_new_one_does_not_disturb_the_others(tmp_path: Path) -> None:
    block = hardware(tmp_path / "block", "sda", "sdb", "sdc")
    (tmp_path / "diskstats").write_text(diskstats(sda=(0, 0, 0), sda1=(0, 0, 0), sdb=(0, 0, 0)))
    probe = Disk(tmp_path, block)
    assert all(math.isnan(value) for value in probe.read(10.0))
    (tmp_path / "diskstats").write_text(diskstats(sda=(4, 2, 500), sda1=(4, 2, 900), sdb=(0, 8, 250)))
    assert named(probe, probe.read(11.0)) == {"disk/read": 2048.0, "disk/write": 5120.0, "disk/busy": 50.0}
    later = diskstats(sda=(4, 2, 2600), sda1=(4, 2, 900), sdb=(0, 8, 250), sdc=(10**6, 10**6, 10**6))
    (tmp_path / "diskstats").write_text(later)
    assert named(probe, probe.read(12.0)) == {"disk/read": 0.0, "disk/write": 0.0, "disk/busy": 100.0}
    (tmp_path / "diskstats").write_text(later.replace(" 0 8 250", " 0 8 250").replace("1000000 8", "1000002 8"))
    assert named(probe, probe.read(13.0))["disk/write"] == 1024.0


def test_without_a_visible_disk_there_is_a_reason_until_one_comes(tmp_path: Path) -> None:
    (tmp_path / "diskstats").write_text(diskstats(loop0=(1, 1, 1)))
    probe = Disk(tmp_path, hardware(tmp_path / "block"))
    assert (probe.series, probe.read(1.0)) == ((), [])
    assert "no disk" in probe.reasons["disk"]
    hardware(tmp_path / "block", "nvme0n1")
    (tmp_path / "diskstats").write_text(diskstats(loop0=(1, 1, 1), nvme0n1=(1, 1, 1)))
    assert len(probe.read(2.0)) == len(probe.series) == 3
    assert probe.reasons == {}


def test_only_disks_with_hardware_count_where_there_are_any(tmp_path: Path) -> None:
    names = ("dm-0", "loop0", "ram0", "sda", "sda1", "zram0", "cciss/c0d0")
    (tmp_path / "diskstats").write_text(diskstats(**dict.fromkeys(names, (0, 0, 0))))
    block = tmp_path / "block"
    for name in set(names) - {"sda1"}:  # a partition is in its disk's folder
        (block / name.replace("/", "!")).mkdir(parents=True)
    assert set(Disk(tmp_path, block)._rates) == {"dm-0", "sda", "cciss/c0d0"}
    (block / "sda/device").mkdir()
    (block / "cciss!c0d0/device").mkdir()
    assert set(Disk(tmp_path, block)._rates) == {"sda", "cciss/c0d0"}


def net_dev(**interfaces: tuple[int, int]) -> str:
    """A /proc/net/dev: bytes received and sent by each interface."""
    rows = [f"{name:>6}: {received:7} 1 2 3 4 5 6 7 {sent} 9 10\n" for name, (received, sent) in interfaces.items()]
    return "".join(["Inter-| Receive | Transmit\n", " face |bytes packets |bytes packets\n", *rows])


def test_interfaces_with_hardware_count_and_the_loopback_never(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    file, net = tmp_path / "net/dev", tmp_path / "class"
    file.write_text(net_dev(lo=(0, 0)))
    probe = Network(tmp_path, net)
    assert (probe.series, probe.read(0.0)) == ((), [])
    assert "loopback" in probe.reasons["network"]
    file.write_text(net_dev(lo=(0, 0), br0=(0, 0), eth0=(0, 0)))
    assert all(math.isnan(rate) for rate in probe.read(1.0))
    assert probe.reasons == {}
    file.write_text(net_dev(lo=(900, 900), br0=(10, 20), eth0=(30, 40)))
    assert probe.read(2.0) == [40.0, 60.0]
    hardware(net, "eth0")
    file.write_text(net_dev(lo=(900, 900), br0=(10, 20), eth0=(35, 42), veth1=(10**6, 10**6)))
    assert probe.read(3.0) == [5.0, 2.0]


def test_rates() -> None:
    rates = Rates()
    assert all(math.isnan(rate) for rate in rates.update(10.0, (100, 7)))
    assert rates.update(10.5, (200, 7)) == [200.0, 0.0]
    wrapped = rates.update(11.5, (50, 17))
    assert math.isnan(wrapped[0])
    assert wrapped[1] == 10.0
    assert rates.update(12.5, (60, 17)) == [10.0, 0.0]


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    start = not_none(process.start_of(os.getpid()))
    assert process.is_alive(os.getpid(), start)
    assert not process.is_alive(os.getpid(), start - 5.0)  # another process had this number
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child_start = not_none(process.start_of(child.pid))
        assert child_start == pytest.approx(since_boot, abs=1.0)
        assert process.is_alive(child.pid, child_start)
        child.kill()
        wait_for(lambda: not process.is_alive(child.pid, child_start), 5)
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE  # not waited for, yet gone
        assert process.start_of(child.pid) is None
    assert process.start_of(child.pid) is None


def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    link = tmp_path / "a) Z 1 (b"
    link.symlink_to(sys.executable)
    with subprocess.Popen([link, "-c", "input()"], stdin=subprocess.PIPE) as child:
        wait_for(lambda: "Z 1" in Path(f"/proc/{child.pid}/comm").read_text(), 5)
        start = not_none(process.start_of(child.pid))
        assert start == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=10.0)
        child.kill()


def test_systems_without_proc_are_asked_through_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: tuple[type[Memory | Disk | Network | Load | Pressure], ...] = (Memory, Disk, Network, Load, Pressure)
    by_proc = {kind: kind() for kind in kinds}
    for kind in kinds:
        monkeypatch.setattr(f"{kind.__module__}.LINUX", False)
    by_psutil = {kind: kind() for kind in kinds}
    for probe in by_psutil.values():
        of_the_group = {metric.name for metric in METRICS if metric.group == probe.group}
        present = {name for name, _ in probe.series}
        if probe.group not in probe.reasons:
            assert set(probe.reasons) == of_the_group - present
        assert len(probe.read(0.0)) == len(present)
    assert by_psutil[Pressure].series == ()
    assert set(by_psutil[Disk].reasons) == {"disk/busy"}
    memory, other = (named(probes[Memory], probes[Memory].read(1.0)) for probes in (by_psutil, by_proc))
    assert memory["memory/available"] == pytest.approx(other["memory/available"], rel=0.02)
    assert memory["memory/percent"] == pytest.approx(other["memory/percent"], abs=2.0)
    assert memory["swap/used"] == other["swap/used"]
    assert by_psutil[Load].read(1.0) == pytest.approx(by_proc[Load].read(1.0)[:3], abs=0.1)


def test_limits_of_systems_without_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_monitor.sample.host.process_limits.LINUX", False)
    limits, probe = Limits(os.getpid()), Container(os.getpid())
    cpus = sorted(os.sched_getaffinity(0))
    assert limits.read() == {"cpus": cpus, "cpu_quota": None, "memory": None, "source": None}
    assert "only Linux" in limits.reasons["limits"]
    assert (probe.read(0.0), set(probe.reasons)) == ([], {"container"})
