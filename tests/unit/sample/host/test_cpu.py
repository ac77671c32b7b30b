"""The cores: their load against /proc read on its own, their clocks, their places; on hosts that are not there, too."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fakehost import FakeHost, ranges
from kernel_monitor.sample import probe as procfs
from kernel_monitor.sample.host.cpu import (
    FIELDS,
    NOT_COUNTED,
    Counts,
    Cpu,
    Frequency,
    ProcStat,
    Split,
    Topology,
    host_facts,
    open_cpu,
    psutil_counts,
)

Times = tuple[int, ...]


def stat(*cores: Times, numbers: Sequence[int] = (0, 1, 2)) -> str:
    """A /proc/stat: (user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice) of each core."""
    lines = [
        f"cpu{number} {' '.join(map(str, (*times, 0, 0)[:10]))}"
        for number, times in zip(numbers, cores, strict=False)
        if times
    ]
    return "\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 12345 0 0 0", "ctxt 1", ""])


def shares(probe: Cpu | Split) -> dict[str, float]:
    values = list(probe.read(time.monotonic()))
    return dict(zip([name for name, _ in probe.series], values, strict=True))


def started(tmp_path: Path, *cores: Times, **more: Any) -> tuple[Path, Cpu]:
    """A /proc/stat and a probe that has read it once, so that its windows have begun."""
    file = tmp_path / "stat"
    file.write_text(stat(*cores, **more))
    probe = Cpu(ProcStat(file))
    shares(probe)
    shares(probe.split)
    return file, probe


def test_busy_and_iowait_are_shares_of_the_window_and_so_are_their_parts(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text(stat((10, 0, 0, 100, 0, 0, 0, 0), (0, 0, 0, 50, 50, 0, 0, 0)))
    probe = Cpu(ProcStat(file))
    assert all(math.isnan(value) for value in shares(probe).values())  # no window yet
    assert all(math.isnan(value) for value in shares(probe.split).values())
    # Core 0: 20 ticks of which 1 user, 2 nice, 3 system, 8 idle, 2 iowait, 1 irq, 1 softirq, 2 steal.
    file.write_text(stat((11, 2, 3, 108, 2, 1, 1, 2), (0, 0, 0, 50, 60, 0, 0, 0)))
    assert shares(probe) == {
        "cpu/0/busy": pytest.approx(50.0),
        "cpu/0/iowait": pytest.approx(10.0),
        "cpu/1/busy": pytest.approx(0.0),
        "cpu/1/iowait": pytest.approx(100.0),
    }
    assert shares(probe.split) == {
        "cpu/0/user": pytest.approx(15.0),
        "cpu/0/system": pytest.approx(25.0),
        "cpu/0/steal": pytest.approx(10.0),
        "cpu/1/user": 0.0,
        "cpu/1/system": 0.0,
        "cpu/1/steal": 0.0,
    }


def test_a_guests_time_is_not_counted_twice(tmp_path: Path) -> None:
    file, probe = started(tmp_path, (0,) * 10)
    file.write_text(stat((30, 0, 0, 70, 0, 0, 0, 0, 30, 0)))  # all of user's 30 ticks were a guest's
    assert shares(probe)["cpu/0/busy"] == pytest.approx(30.0)
    assert shares(probe.split)["cpu/0/user"] == pytest.approx(30.0)
    file, probe = started(tmp_path, (0,) * 8)
    for user in (10, 10, 30):
        file.write_text(stat((user, 0, 0, 100 - user, 0, 0, 0, 0)))
        shares(probe)
    assert shares(probe.split)["cpu/0/user"] == pytest.approx(30.0)


def test_a_window_without_a_tick_holds_the_value_and_grows(tmp_path: Path) -> None:
    file, probe = started(tmp_path, (0, 0, 0, 0, 0, 0, 0, 0))
    file.write_text(stat((3, 0, 0, 1, 0, 0, 0, 0)))
    assert shares(probe)["cpu/0/busy"] == pytest.approx(75.0)
    assert shares(probe)["cpu/0/busy"] == pytest.approx(75.0)
    file.write_text(stat((4, 0, 0, 2, 0, 0, 0, 0)))
    assert shares(probe)["cpu/0/busy"] == pytest.approx(50.0)


def test_counters_that_step_back_give_no_absurd_shares(tmp_path: Path) -> None:
    file, probe = started(tmp_path, (100, 0, 0, 100, 100, 0, 0, 0))
    file.write_text(stat((110, 0, 0, 101, 98, 0, 0, 0)))
    assert shares(probe) == {"cpu/0/busy": pytest.approx(100 * (1 - 1 / 9)), "cpu/0/iowait": 0.0}
    file.write_text(stat((111, 0, 0, 90, 120, 0, 0, 0)))  # 12 ticks by the total, 22 by iowait
    assert shares(probe) == {"cpu/0/busy": 0.0, "cpu/0/iowait": 100.0}
    file.write_text(stat((1, 0, 0, 1, 0, 0, 0, 0)))  # the core was off and began again
    assert math.isnan(shares(probe)["cpu/0/busy"])
    file.write_text(stat((2, 0, 0, 1, 0, 0, 0, 0)))
    assert shares(probe)["cpu/0/busy"] == pytest.approx(100.0)


def test_a_core_that_goes_offline_is_missing_and_the_others_keep_their_names(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text(stat((0,) * 8, (0,) * 8, (0,) * 8))
    probe = Cpu(ProcStat(file))
    assert probe.cores == (0, 1, 2)
    probe.read(0.0)
    shares(probe.split)
    file.write_text(stat((1, 0, 0, 3, 0, 0, 0, 0), (), (2, 0, 0, 2, 0, 0, 0, 0)))
    found = shares(probe)
    assert found["cpu/0/busy"] == pytest.approx(25.0)
    assert math.isnan(found["cpu/1/busy"])
    assert math.isnan(found["cpu/1/iowait"])
    assert found["cpu/2/busy"] == pytest.approx(50.0)
    split = shares(probe.split)
    assert [split["cpu/0/user"], split["cpu/2/user"]] == pytest.approx([25.0, 50.0])
    assert math.isnan(split["cpu/1/user"])
    file.write_text(stat((2, 0, 0, 6, 0, 0, 0, 0), (9, 0, 0, 9, 0, 0, 0, 0), (4, 0, 0, 4, 0, 0, 0, 0)))
    assert math.isnan(shares(probe)["cpu/1/busy"])  # back, but without a window yet
    file.write_text(stat((3, 0, 0, 9, 0, 0, 0, 0), (12, 0, 0, 10, 0, 0, 0, 0), (6, 0, 0, 6, 0, 0, 0, 0)))
    assert shares(probe)["cpu/1/busy"] == pytest.approx(75.0)


def test_a_core_that_comes_later_adds_its_series(tmp_path: Path) -> None:
    file, probe = started(tmp_path, (0,) * 8, (0,) * 8, numbers=(0, 2))
    before = probe.series
    file.write_text(stat((1, 0, 0, 3, 0, 0, 0, 0), (0,) * 8, (1, 0, 0, 1, 0, 0, 0, 0)))
    found = shares(probe)
    assert probe.series is not before  # which is how the loop sees it
    assert list(found) == [f"cpu/{core}/{part}" for core in (0, 1, 2) for part in ("busy", "iowait")]
    assert [found["cpu/0/busy"], found["cpu/2/busy"]] == pytest.approx([25.0, 50.0])
    assert math.isnan(found["cpu/1/busy"])
    assert len(shares(probe.split)) == 9
    file.write_text(stat((2, 0, 0, 6, 0, 0, 0, 0), (2, 0, 0, 2, 0, 0, 0, 0), (1, 0, 0, 4, 0, 0, 0, 0)))
    assert shares(probe)["cpu/1/busy"] == pytest.approx(50.0)


@pytest.mark.parametrize("cores", [1, 300])
def test_any_number_of_cores_fits(tmp_path: Path, cores: int) -> None:
    file = tmp_path / "stat"
    times = [(number * 10**12,) * 8 for number in range(cores)]
    file.write_text(stat(*times, numbers=range(cores)))
    probe = Cpu(ProcStat(file))
    assert probe.cores == tuple(range(cores))
    probe.read(0.0)
    file.write_text(stat(*[(a + 1,) * 8 for a, *_ in times], numbers=range(cores)))
    assert set(shares(probe).values()) == {75.0, 12.5}


def test_a_sandbox_that_leaves_the_interrupts_out_is_read_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text(stat((1,) * 8, (2,) * 8).replace("intr 12345 0 0 0\n", ""))
    counts = ProcStat(file)()
    assert counts == Counts((0, 1), ([1, 2],) * 8, [8, 16])


def test_what_a_system_does_not_count_is_absent_with_the_reason() -> None:
    still = [[10.0], [0.0], [0.0], [10.0], [0.0], [0.0], [0.0], [0.0]]
    moved = [[15.0], [0.0], [0.0], [15.0], [0.0], [0.0], [0.0], [0.0]]
    counts = iter([Counts((0,), still, [20.0]), Counts((0,), still, [20.0]), Counts((0,), moved, [30.0])])
    probe = Cpu(lambda: next(counts), ("user", "nice", "system", "idle"))
    probe.read(0.0)
    probe.split.read(0.0)
    assert shares(probe) == {"cpu/0/busy": 50.0}
    assert shares(probe.split) == {"cpu/0/user": 50.0, "cpu/0/system": 0.0}
    assert (probe.reasons, probe.split.reasons) == ({"cpu/<n>/iowait": NOT_COUNTED}, {"cpu/<n>/steal": NOT_COUNTED})
    assert open_cpu().reasons == open_cpu().split.reasons == {}  # Linux counts all


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
    probe, other = open_cpu(), Cpu(psutil_counts, FIELDS)
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as spinner:
        try:
            assert spinner.stdout is not None
            spinner.stdout.readline()
            before = Path("/proc/stat").read_text()
            probe.read(time.monotonic())
            shares(probe.split)
            other.read(time.monotonic())
            time.sleep(2.0)
            after = Path("/proc/stat").read_text()
            found, by_psutil, split = shares(probe), shares(other), shares(probe.split)
        finally:
            spinner.kill()
    assert found[f"cpu/{core}/busy"] >= 97.0
    by_hand = busy_by_hand(before, after)
    assert set(by_hand) == set(probe.cores)
    for number, busy in by_hand.items():
        assert found[f"cpu/{number}/busy"] == pytest.approx(busy, abs=3.0)
        assert by_psutil[f"cpu/{number}/busy"] == pytest.approx(busy, abs=3.0)
        parts = sum(split[f"cpu/{number}/{part}"] for part in ("user", "system", "steal"))
        assert parts == pytest.approx(found[f"cpu/{number}/busy"], abs=1.0)


def test_the_cores_of_a_host_that_is_not_there(tmp_path: Path) -> None:
    machine = FakeHost(tmp_path, sockets=4, cores=256)
    probe = Cpu(ProcStat(tmp_path / "proc/stat"))
    topology = Topology(lambda: probe.cores, tmp_path / "sys/devices/system")
    frequency = Frequency(lambda: probe.cores, tmp_path / "sys/devices/system/cpu", tmp_path / "proc")
    probe.read(0.0)
    for _ in range(20):
        machine.tick(0.1)
    found = shares(probe)
    for core in range(256):
        assert found[f"cpu/{core}/busy"] == pytest.approx(100 * machine.share(core), abs=25.0)
    # The load goes round the sockets: they differ.
    means = [sum(found[f"cpu/{core}/busy"] for core in range(first, first + 64)) / 64 for first in range(0, 256, 64)]
    assert max(means) - min(means) > 30
    blocks = [list(range(first, first + 64)) for first in range(0, 256, 64)]
    assert topology.read() == {"sockets": blocks, "numa": blocks}
    assert topology.reasons == {}
    clocks = frequency.read(0.0)
    assert [name for name, _ in frequency.series] == [f"cpu/{core}/frequency" for core in range(256)]
    assert all(1500 <= clock <= 3500 for clock in clocks)

    machine.offline(70)
    machine.tick(0.1)
    found = shares(probe)
    assert {name for name, value in found.items() if math.isnan(value)} == {"cpu/70/busy", "cpu/70/iowait"}
    assert topology.read() == {"sockets": blocks, "numa": blocks}  # it keeps its place
    machine.online(70)
    shares(probe)
    machine.tick(0.1)
    assert not any(math.isnan(value) for value in shares(probe).values())


def test_one_look_at_256_cores_is_cheap(tmp_path: Path) -> None:
    machine = FakeHost(tmp_path, sockets=4, cores=256)
    probe = Cpu(ProcStat(tmp_path / "proc/stat"))
    probe.read(0.0)
    spent = []
    for _ in range(20):
        machine.tick(0.1)
        began = time.thread_time()
        probe.read(0.0)
        spent.append(time.thread_time() - began)
    assert min(spent) < 1.5e-3  # 0.35 ms where this was written


def test_the_topology_of_this_machine(tmp_path: Path) -> None:
    cores = open_cpu().cores
    found = Topology(lambda: cores).read()
    assert sorted(core for group in found["sockets"] for core in group) == list(cores)
    assert sorted(core for group in found["numa"] for core in group) == list(cores)
    topology = Topology(lambda: (0, 1), tmp_path)
    assert topology.read() == {"sockets": [[0, 1]], "numa": [[0, 1]]}
    assert set(topology.reasons) == {"topology/sockets", "topology/numa"}


@pytest.mark.parametrize(("text", "expected"), [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5]), ("\n", [])])
def test_lists_of_sysfs(text: str, expected: list[int]) -> None:
    assert procfs.parse_list(text) == expected
    assert ranges(expected) == text.strip()


def frequency(tmp_path: Path, **files: str) -> Frequency:
    """Of two cores; `files` by their names: each core's of cpufreq, or cpuinfo."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "cpuinfo").write_text(files.pop("cpuinfo", "processor\t: 0\n\nprocessor\t: 1\n"))
    for name, text in files.items():
        for core in (0, 1):
            (tmp_path / f"cpu{core}/cpufreq").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"cpu{core}/cpufreq/{name}").write_text(text)
    return Frequency(lambda: (0, 1), tmp_path, tmp_path)


CPUINFO = "processor\t: 0\ncpu MHz\t\t: 2596.142\n\nprocessor\t: 1\ncpu MHz\t\t: 1200.000\n"


def test_frequencies_come_from_the_first_source_that_has_them(tmp_path: Path) -> None:
    with_scaling = frequency(tmp_path / "a", scaling_cur_freq="2400000\n", cpuinfo_cur_freq="1\n", cpuinfo=CPUINFO)
    assert with_scaling.read(0.0) == [2400.0, 2400.0]
    (tmp_path / "a/cpu1/cpufreq/scaling_cur_freq").unlink()  # it went offline
    first, second = with_scaling.read(0.0)
    assert first == 2400.0
    assert math.isnan(second)
    assert frequency(tmp_path / "b", cpuinfo_cur_freq="2300000\n", cpuinfo=CPUINFO).read(0.0) == [2300.0, 2300.0]
    assert frequency(tmp_path / "c", cpuinfo=CPUINFO).read(0.0) == [2596.142, 1200.0]
    nowhere = frequency(tmp_path)
    assert (nowhere.series, list(nowhere.read(0.0))) == ((), [])
    assert "cpufreq" in nowhere.reasons["frequency"]


def test_the_facts_of_this_machine() -> None:
    facts = host_facts()
    text = Path("/proc/stat").read_text()
    assert facts["logical_cpus"] == len(re.findall(r"^cpu\d+ ", text, re.MULTILINE))
    assert facts["memory_total"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert facts["platform"] == "Linux"
    assert facts["cpu_model"]
