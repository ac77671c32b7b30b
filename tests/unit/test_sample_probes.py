"""The figures are right: against /proc read on its own, and against counters whose answer is known."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kernel_monitor.sample import host, process
from kernel_monitor.sample.cpu import Cpu, ProcStat, cpu, psutil_times
from kernel_monitor.sample.disk import Disk
from kernel_monitor.sample.memory import Memory
from kernel_monitor.sample.network import Network
from kernel_monitor.sample.probe import Rates


def stat(*cores: tuple[int, ...], numbers: tuple[int, ...] = (0, 1, 2)) -> str:
    """A /proc/stat: (user, nice, system, idle, iowait, irq, softirq, steal) of each core."""
    lines = [
        f"cpu{number} {' '.join(map(str, times))} 0 0" for number, times in zip(numbers, cores, strict=False) if times
    ]
    return "\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 12345 0 0 0", "ctxt 1", ""])


def shares(probe: Cpu) -> dict[str, float]:
    return dict(zip([name for name, _ in probe.series], probe.read(time.monotonic()), strict=True))


def test_busy_and_iowait_are_shares_of_the_window(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text(stat((10, 0, 0, 100, 0, 0, 0, 0), (0, 0, 0, 50, 50, 0, 0, 0)))
    probe = Cpu(ProcStat(str(file)))
    assert all(math.isnan(value) for value in shares(probe).values())  # no window yet
    # Core 0: 20 ticks of which 1 user, 2 nice, 3 system, 8 idle, 2 iowait, 1 irq, 1 softirq, 2 steal.
    file.write_text(stat((11, 2, 3, 108, 2, 1, 1, 2), (0, 0, 0, 50, 60, 0, 0, 0)))
    assert shares(probe) == {
        "cpu/0/busy": pytest.approx(50.0),
        "cpu/0/iowait": pytest.approx(10.0),
        "cpu/1/busy": pytest.approx(0.0),
        "cpu/1/iowait": pytest.approx(100.0),
    }


def test_a_window_without_a_tick_holds_the_value_and_grows(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text(stat((0, 0, 0, 0, 0, 0, 0, 0)))
    probe = Cpu(ProcStat(str(file)))
    probe.read(0.0)
    file.write_text(stat((3, 0, 0, 1, 0, 0, 0, 0)))
    assert shares(probe)["cpu/0/busy"] == pytest.approx(75.0)
    assert shares(probe)["cpu/0/busy"] == pytest.approx(75.0)
    file.write_text(stat((4, 0, 0, 2, 0, 0, 0, 0)))
    assert shares(probe)["cpu/0/busy"] == pytest.approx(50.0)


def test_counters_that_step_back_give_no_absurd_shares(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text(stat((100, 0, 0, 100, 100, 0, 0, 0)))
    probe = Cpu(ProcStat(str(file)))
    probe.read(0.0)
    file.write_text(stat((110, 0, 0, 101, 98, 0, 0, 0)))
    assert shares(probe) == {"cpu/0/busy": pytest.approx(100 * (1 - 1 / 9)), "cpu/0/iowait": 0.0}
    file.write_text(stat((1, 0, 0, 1, 0, 0, 0, 0)))  # the core was off and began again
    assert math.isnan(shares(probe)["cpu/0/busy"])
    file.write_text(stat((2, 0, 0, 1, 0, 0, 0, 0)))
    assert shares(probe)["cpu/0/busy"] == pytest.approx(100.0)


def test_a_core_that_goes_offline_is_missing_and_the_others_keep_their_names(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text(stat((0,) * 8, (0,) * 8, (0,) * 8))
    probe = Cpu(ProcStat(str(file)))
    assert probe.cores == (0, 1, 2)
    probe.read(0.0)
    file.write_text(stat((1, 0, 0, 3, 0, 0, 0, 0), (), (2, 0, 0, 2, 0, 0, 0, 0)))
    found = shares(probe)
    assert found["cpu/0/busy"] == pytest.approx(25.0)
    assert math.isnan(found["cpu/1/busy"])
    assert math.isnan(found["cpu/1/iowait"])
    assert found["cpu/2/busy"] == pytest.approx(50.0)
    file.write_text(stat((2, 0, 0, 6, 0, 0, 0, 0), (9, 0, 0, 9, 0, 0, 0, 0), (4, 0, 0, 4, 0, 0, 0, 0)))
    assert math.isnan(shares(probe)["cpu/1/busy"])  # back, but without a window yet
    file.write_text(stat((3, 0, 0, 9, 0, 0, 0, 0), (12, 0, 0, 10, 0, 0, 0, 0), (6, 0, 0, 6, 0, 0, 0, 0)))
    assert shares(probe)["cpu/1/busy"] == pytest.approx(75.0)


def test_hundreds_of_cores_fit(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    cores = [(number * 10**12,) * 8 for number in range(300)]
    file.write_text(stat(*cores, numbers=tuple(range(300))))
    assert Cpu(ProcStat(str(file))).cores == tuple(range(300))


def test_the_memory_is_what_proc_says() -> None:
    used, percent = Memory().read(0.0)
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (1024 * int(facts[key].split()[0]) for key in ("MemTotal", "MemAvailable"))
    assert used == pytest.approx(total - available, abs=0.02 * total)  # others take and give between the two looks
    assert percent == pytest.approx(100 * used / total, abs=0.01)


def disk_bytes() -> tuple[int, int]:
    """Read and written by devices with hardware behind them, straight from the kernel's table."""
    read = written = 0
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if Path(f"/sys/block/{fields[2]}/device").exists():
            read += 512 * int(fields[5])
            written += 512 * int(fields[9])
    return read, written


def test_the_disks_rates_add_up_to_what_was_written(tmp_path: Path) -> None:
    probe = Disk()
    assert all(math.isnan(rate) for rate in probe.read(time.monotonic()))
    before, began = disk_bytes(), time.monotonic()
    with Path(tmp_path / "file").open("wb") as file:
        file.write(os.urandom(8 << 20))
        os.fsync(file.fileno())
    rates = probe.read(now := time.monotonic())
    after = disk_bytes()
    seconds = now - began
    assert not any(math.isnan(rate) for rate in rates)
    assert rates[0] * seconds == pytest.approx(after[0] - before[0], rel=0.1, abs=2 << 20)
    assert rates[1] * seconds == pytest.approx(after[1] - before[1], rel=0.1, abs=2 << 20)


def test_only_disks_with_hardware_count_where_there_are_any(tmp_path: Path) -> None:
    names = frozenset(psutil.disk_io_counters(perdisk=True))
    first, *_ = sorted(names)
    probe = Disk(tmp_path)
    assert all(math.isnan(rate) for rate in probe.read(1.0))
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / first / "device").mkdir()
    only_hardware = Disk(tmp_path)
    only_hardware.read(1.0)
    assert only_hardware._counted == (first,)
    (tmp_path / first / "device").rmdir()
    whole = Disk(tmp_path)
    whole.read(1.0)
    assert set(whole._counted) == {name for name in names if not name.startswith(("loop", "ram", "zram"))}


def network_bytes() -> tuple[int, int]:
    """Received and sent by interfaces with hardware behind them, else all but the loopback, from the kernel's table."""
    rows = [line.replace(":", " ").split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    outward = [row for row in rows if row[0] != "lo"]
    counted = [row for row in outward if Path(f"/sys/class/net/{row[0]}/device").exists()] or outward
    return sum(int(row[1]) for row in counted), sum(int(row[9]) for row in counted)


def test_the_networks_rates_leave_the_loopback_out() -> None:
    probe = Network()
    probe.read(began := time.monotonic())
    before, loopback = network_bytes(), psutil.net_io_counters(pernic=True)["lo"].bytes_sent
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            for _ in range(256):
                sender.sendall(bytes(1 << 16))
                got = 0
                while got < 1 << 16:
                    got += len(receiver.recv(1 << 16))
    rates = probe.read(now := time.monotonic())
    after = network_bytes()
    assert psutil.net_io_counters(pernic=True)["lo"].bytes_sent - loopback >= 16 << 20
    for rate, old, new in zip(rates, before, after, strict=True):
        assert rate * (now - began) == pytest.approx(new - old, rel=0.1, abs=2 << 20)


def test_rates() -> None:
    rates = Rates(2)
    assert all(math.isnan(rate) for rate in rates.update(10.0, (100, 7)))
    assert rates.update(10.5, (200, 7)) == [200.0, 0.0]
    wrapped = rates.update(11.5, (50, 17))
    assert math.isnan(wrapped[0])
    assert wrapped[1] == 10.0
    assert rates.update(12.5, (60, 17)) == [10.0, 0.0]


def busy_by_hand(before: str, after: str) -> dict[int, float]:
    """Busy per core between two texts of /proc/stat, in per cent."""
    found = {}
    for old, new in zip(before.splitlines(), after.splitlines(), strict=False):
        if old.startswith("cpu") and not old.startswith("cpu "):
            a, b = ([int(field) for field in line.split()[1:9]] for line in (old, new))
            window = sum(b) - sum(a)
            found[int(old.split()[0][3:])] = 100 * (1 - (b[3] + b[4] - a[3] - a[4]) / window)
    return found


def test_a_core_with_a_pinned_loop_is_busy_and_all_cores_are_as_proc_says() -> None:
    core = max(os.sched_getaffinity(0))
    source = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(1, flush=True)\nwhile True: pass"
    probe, other = cpu(), Cpu(psutil_times)
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as spinner:
        try:
            assert spinner.stdout is not None
            spinner.stdout.readline()
            before = Path("/proc/stat").read_text()
            probe.read(time.monotonic())
            other.read(time.monotonic())
            time.sleep(2.0)
            after = Path("/proc/stat").read_text()
            found, by_psutil = shares(probe), shares(other)
        finally:
            spinner.kill()
    assert found[f"cpu/{core}/busy"] >= 97.0
    by_hand = busy_by_hand(before, after)
    assert set(by_hand) == set(probe.cores)
    for number, busy in by_hand.items():
        assert found[f"cpu/{number}/busy"] == pytest.approx(busy, abs=3.0)
        assert by_psutil[f"cpu/{number}/busy"] == pytest.approx(busy, abs=3.0)


def test_a_system_that_does_not_count_iowait_has_none() -> None:
    ticks = iter([[(0, 10.0, 8.0, math.nan)], [(0, 10.0, 8.0, math.nan)], [(0, 20.0, 13.0, math.nan)]])
    probe = Cpu(lambda: next(ticks))
    probe.read(0.0)
    found = shares(probe)
    assert found["cpu/0/busy"] == pytest.approx(50.0)
    assert math.isnan(found["cpu/0/iowait"])


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    start = process.start_of(os.getpid())
    assert start is not None
    assert process.is_alive(os.getpid(), start)
    assert not process.is_alive(os.getpid(), start - 5.0)  # another process had this number
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child_start = process.start_of(child.pid)
        assert child_start == pytest.approx(since_boot, abs=1.0)
        assert child_start is not None
        assert process.is_alive(child.pid, child_start)
        child.kill()
        until = time.monotonic() + 5
        while process.is_alive(child.pid, child_start) and time.monotonic() < until:
            time.sleep(0.01)
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE  # not waited for, yet gone
        assert process.start_of(child.pid) is None
    assert process.start_of(child.pid) is None


def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    link = tmp_path / "a) Z 1 (b"
    link.symlink_to(sys.executable)
    with subprocess.Popen([link, "-c", "input()"], stdin=subprocess.PIPE) as child:
        until = time.monotonic() + 5
        while "Z 1" not in Path(f"/proc/{child.pid}/comm").read_text() and time.monotonic() < until:
            time.sleep(0.01)
        assert "Z 1" in Path(f"/proc/{child.pid}/comm").read_text()
        start = process.start_of(child.pid)
        assert start is not None
        assert start == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=10.0)
        child.kill()


def test_the_facts_of_this_machine() -> None:
    facts = host.facts()
    assert facts["logical_cpus"] == os.cpu_count()
    assert facts["memory_total"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert facts["platform"] == "Linux"
    assert facts["cpu_model"]
