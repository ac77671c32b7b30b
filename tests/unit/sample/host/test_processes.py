"""The kernel's process tree: who is counted as what, and that no process gives figures that cannot be."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks.metrics import GROUPS, METRICS, matching
from kernel_monitor.os_process import FORK_SERVER
from kernel_monitor.sample.host.processes import ROLES, ProcessTree, ProcSource, PsutilSource, Source, Usage
from tests.unit.checks import not_none, wait_for

TICK = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
KERNEL = 100


class Fake:
    """A `/proc` of processes that are made up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").mkdir()
        (folder / "sys").mkdir()

    def put(
        self,
        pid: int,
        parent: int,
        *,
        ticks: int = 0,
        pages: int = 1,
        moved: tuple[int, int] | None = (0, 0),
        start: int = 0,
        name: str = "python",
        state: str = "S",
        command: str = "",
    ) -> None:
        """A process as it is now: user and system time together in ticks of 10 ms, resident pages, start in ticks."""
        folder = self.folder / str(pid)
        folder.mkdir(exist_ok=True)
        fields = [state, parent, 1, 1, 0, -1, 0, 1, 2, 3, 4, ticks - ticks // 3, ticks // 3, 5, 6, 20, 0, 7, 0]
        stat = " ".join(map(str, [*fields, start or pid, 10**9, pages, *range(25)]))
        (folder / "stat").write_text(f"{pid} ({name}) {stat}\n")
        if moved is not None:
            io = f"rchar: 9\nwchar: 9\nsyscr: 9\nread_bytes: {moved[0]}\nwrite_bytes: {moved[1]}\n"
            (folder / "io").write_text(f"{io}cancelled_write_bytes: 7\n")
        (folder / "cmdline").write_text(command or f"program-{pid}\0")

    def end(self, pid: int) -> None:
        for file in (self.folder / str(pid)).iterdir():
            file.unlink()
        (self.folder / str(pid)).rmdir()

    def tree(self) -> ProcessTree:
        return ProcessTree(KERNEL, ProcSource(KERNEL, str(self.folder)))


@pytest.fixture
def proc(tmp_path: Path) -> Fake:
    fake = Fake(tmp_path)
    fake.put(1, 0, ticks=10**6)
    fake.put(KERNEL, 1, ticks=500, pages=1000, command="python\0-m\0kernel\0")
    return fake


def read(tree: ProcessTree, now: float) -> dict[str, float]:
    return dict(zip([name for name, _ in tree.series], tree.read(now), strict=True))


def test_what_it_brings_is_in_the_table() -> None:
    tree = ProcessTree(os.getpid())
    assert tree.period == GROUPS["process"]
    assert tree.reasons == {}
    for name, unit in tree.series:
        (entry,) = matching(name)
        assert (entry.unit, entry.group) == (unit, "process")
    assert len(tree.series) == len(ROLES) * sum(metric.group == "process" for metric in METRICS)


def test_the_roles(proc: Fake) -> None:
    own = os.getpid()
    proc.put(own, KERNEL)
    proc.put(201, KERNEL, command="python\0-m\0kernel\0")  # forked
    proc.put(202, KERNEL, name="pt_data_worker", command="python\0spawn\0")
    proc.put(203, KERNEL, command="python\0named\0")
    proc.put(204, KERNEL, name=") S 1 (", command="sh\0")
    proc.put(205, KERNEL, name=FORK_SERVER, command="python\0-m\0kernel\0")  # forked, but no worker
    proc.put(50, 204)  # a child of a child, with a lower number
    proc.put(300, 1, name="pt_data_worker", command="python\0-m\0kernel\0")  # somebody else's
    tree = proc.tree()
    tree.set_workers([203, 300])
    found = read(tree, 1.0)
    assert {role: found[f"process/{role}/count"] for role in ROLES} == {
        "kernel": 1,
        "workers": 3,
        "sampler": 1,
        "others": 3,
    }
    assert found["process/kernel/memory"] == 1000 * PAGE
    assert tree.pids == {KERNEL, own, 201, 202, 203, 204, 205, 50}
    tree.set_workers([])
    assert read(tree, 2.0)["process/workers/count"] == 2


def test_cpu_and_bytes_are_those_of_the_window(proc: Fake) -> None:
    proc.put(201, KERNEL, ticks=10**6, pages=3, moved=(10**9, 0), name="pt_data_worker")
    proc.put(202, KERNEL, ticks=7, pages=4, moved=(0, 10**9), name="pt_data_worker")
    tree = proc.tree()
    first = read(tree, 10.0)
    assert math.isnan(first["process/workers/cpu"])
    assert math.isnan(first["process/workers/read"])
    assert first["process/workers/memory"] == 7 * PAGE
    proc.put(KERNEL, 1, ticks=500 + 150, pages=1000, moved=(0, 6000))
    proc.put(201, KERNEL, ticks=10**6 + 200, pages=3, moved=(10**9 + 500, 100), name="pt_data_worker")
    proc.put(202, KERNEL, ticks=7 + 100, pages=5, moved=(700, 10**9), name="pt_data_worker")
    found = read(tree, 12.0)
    assert (found["process/kernel/cpu"], found["process/kernel/write"]) == pytest.approx((75.0, 3000.0))
    assert (found["process/workers/cpu"], found["process/workers/read"]) == pytest.approx((150.0, 600.0))
    assert (found["process/workers/write"], found["process/workers/memory"]) == (50.0, 8 * PAGE)


def test_a_role_that_nobody_plays_has_a_count_alone_and_counters_that_step_back_count_nothing(proc: Fake) -> None:
    tree = proc.tree()
    read(tree, 1.0)
    found = read(tree, 2.0)
    assert found["process/workers/count"] == 0
    assert all(math.isnan(found[f"process/workers/{part}"]) for part in ("cpu", "memory", "read", "write"))
    tree = proc.tree()
    read(tree, 1.0)
    proc.put(KERNEL, 1, ticks=499)
    assert read(tree, 2.0)["process/kernel/cpu"] == 0.0


def test_processes_that_come_and_go_give_no_absurd_figures(proc: Fake) -> None:
    proc.put(201, KERNEL, ticks=10**6, name="pt_data_worker")
    proc.put(202, KERNEL, ticks=10**6, name="pt_data_worker")
    tree = proc.tree()
    read(tree, 10.0)
    proc.end(201)
    proc.put(202, KERNEL, ticks=10**6 + 50, name="pt_data_worker")
    proc.put(
        203, KERNEL, ticks=30, moved=(0, 400), name="pt_data_worker"
    )  # began in the window: all of it is the window's
    found = read(tree, 11.0)
    assert (found["process/workers/cpu"], found["process/workers/write"]) == pytest.approx((80.0, 400.0))
    assert found["process/workers/count"] == 2
    proc.put(202, KERNEL, ticks=10**6 + 70, name="pt_data_worker", state="Z", pages=0)  # ended, not yet waited for
    found = read(tree, 12.0)
    assert (found["process/workers/cpu"], found["process/workers/count"]) == pytest.approx((20.0, 1))
    proc.end(202)
    proc.end(203)
    assert read(tree, 13.0)["process/workers/count"] == 0


def test_another_process_of_the_same_number_is_another_process(proc: Fake) -> None:
    proc.put(201, KERNEL, ticks=1000, start=5, name="pt_data_worker")
    tree = proc.tree()
    read(tree, 1.0)
    proc.put(201, 1, ticks=90_000, start=6)  # somebody else's
    assert read(tree, 2.0)["process/workers/count"] == 0
    assert read(tree, 3.0)["process/workers/count"] == 0
    proc.put(202, KERNEL, ticks=1000, start=7, name="pt_data_worker")
    assert read(tree, 4.0)["process/workers/cpu"] == pytest.approx(1000.0)
    proc.put(202, KERNEL, ticks=20, start=8, name="pt_data_worker")  # ours again, and less than the one before used
    read(tree, 5.0)
    found = read(tree, 6.0)
    assert (found["process/workers/count"], found["process/workers/cpu"]) == pytest.approx((1, 20.0))


def test_a_child_that_lost_its_parent_is_still_the_kernels(proc: Fake) -> None:
    proc.put(201, KERNEL)
    proc.put(202, 201)
    tree = proc.tree()
    assert read(tree, 1.0)["process/others/count"] == 2
    proc.end(201)
    proc.put(202, 1)
    assert read(tree, 2.0)["process/others/count"] == 1


def test_a_child_that_was_seen_before_it_became_its_program_is_no_worker(proc: Fake) -> None:
    proc.put(201, KERNEL, command="python\0-m\0kernel\0")
    tree = proc.tree()
    assert read(tree, 1.0)["process/workers/count"] == 1
    proc.put(201, KERNEL, command="sh\0-c\0sleep 9\0")
    found = read(tree, 2.0)
    assert (found["process/workers/count"], found["process/others/count"]) == (0, 1)


def test_bytes_that_are_not_told_are_absent_and_the_reason_is_given(proc: Fake) -> None:
    (proc.folder / f"{KERNEL}/io").unlink()
    tree = proc.tree()
    names = {name for name, _ in tree.series}
    assert "process/kernel/cpu" in names
    assert set(tree.reasons) == {f"process/{role}/{part}" for role in ROLES for part in ("read", "write")}
    assert not names & tree.reasons.keys()
    assert "/io cannot be read" in tree.reasons["process/kernel/read"]
    assert len(tree.read(1.0)) == len(tree.series)


def test_one_process_whose_bytes_are_not_told_leaves_the_others(proc: Fake) -> None:
    proc.put(201, KERNEL)
    proc.put(202, KERNEL, moved=None)
    tree = proc.tree()
    read(tree, 1.0)
    proc.put(201, KERNEL, moved=(50, 60))
    found = read(tree, 2.0)
    assert (found["process/others/read"], found["process/others/write"]) == (50.0, 60.0)


def test_a_tree_of_64_workers_costs_little(proc: Fake) -> None:
    for pid in range(1000, 1300):
        proc.put(pid, 1)  # others of this machine
    for pid in range(2000, 2064):
        proc.put(pid, KERNEL, name="pt_data_worker")
    tree = proc.tree()
    assert read(tree, 0.0)["process/workers/count"] == 64
    costs = []
    for now in range(1, 12):
        for pid in range(2000, 2064):
            proc.put(pid, KERNEL, ticks=50 * now, name="pt_data_worker")
        began = time.thread_time()
        found = read(tree, float(now))
        costs.append(time.thread_time() - began)
        assert found["process/workers/cpu"] == pytest.approx(3200.0)
    assert sorted(costs)[len(costs) // 2] < 0.015  # three times the bar: this machine may be busy with other things


class Gone(ProcSource):
    """Processes that end between the listing and the look."""

    def usage(self, pid: int) -> Usage | None:
        return super().usage(pid) if pid == KERNEL else None


def test_processes_that_end_while_they_are_looked_at_are_left_out(proc: Fake) -> None:
    proc.put(201, KERNEL)
    tree = ProcessTree(KERNEL, Gone(KERNEL, str(proc.folder)))
    assert read(tree, 1.0)["process/others/count"] == 0


SPIN = "print(1, flush=True)\nwhile True: pass"
WAIT = "data = b'x' * (64 << 20)\nprint(1, flush=True)\ninput()"


@contextmanager
def child(source: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("source", [ProcSource, PsutilSource])
def test_both_sources_see_the_same_of_real_processes(source: type[ProcSource] | type[PsutilSource]) -> None:
    with child(SPIN) as spinner, child(WAIT) as waiter:
        processes: Source = source(os.getpid())
        assert {os.getpid(), spinner.pid, waiter.pid} <= set(processes.pids())
        assert 1 not in processes.pids()
        found = not_none(processes.usage(waiter.pid))
        assert found.parent == os.getpid()
        assert not found.ended
        assert found.resident == pytest.approx(psutil.Process(waiter.pid).memory_info().rss, rel=0.02)
        assert found.resident > 64 << 20
        assert found.moved is not None
        before, began = processes.usage(spinner.pid), psutil.Process(spinner.pid).cpu_times()
        time.sleep(1.0)
        after, ended = processes.usage(spinner.pid), psutil.Process(spinner.pid).cpu_times()
        assert before is not None
        assert after is not None
        used = ended.user + ended.system - began.user - began.system
        assert after.cpu - before.cpu == pytest.approx(used, abs=0.05)
        assert processes.command(waiter.pid) != processes.command(spinner.pid)
        waiter.kill()
        waiter.wait()
        assert processes.usage(waiter.pid) is None
        assert waiter.pid not in processes.pids()


def test_a_forked_child_is_a_worker_and_a_started_one_is_not() -> None:
    source = (
        "import os, subprocess, sys, time\n"
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(60)\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(pid, flush=True)\n"
        "try: input()\n"
        "finally: os.kill(pid, 9); other.kill()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as kernel:
        assert kernel.stdout is not None
        assert kernel.stdin is not None
        forked = int(kernel.stdout.readline())
        tree = ProcessTree(kernel.pid)
        tree.read(0.0)
        found = read(tree, 1.0)
        assert (found["process/workers/count"], found["process/others/count"]) == (1, 1)
        assert found["process/kernel/count"] == 1
        assert found["process/workers/memory"] == pytest.approx(psutil.Process(forked).memory_info().rss, rel=0.1)
        kernel.stdin.close()
        kernel.wait(10)


def test_the_samplers_own_use_is_finer_than_a_tick() -> None:
    tree = ProcessTree(os.getppid())
    tree.read(began := time.monotonic())
    used = time.process_time()
    while time.process_time() - used < 0.0234:
        pass
    now = time.monotonic()
    found = read(tree, now)
    assert found["process/sampler/cpu"] * (now - began) / 100 == pytest.approx(time.process_time() - used, abs=0.008)


def test_a_process_that_nobody_waited_for_holds_no_memory() -> None:
    script = "import subprocess, time; p = subprocess.Popen(['true']); print(p.pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            wait_for(lambda: psutil.Process(child).status() == psutil.STATUS_ZOMBIE)
            tree = ProcessTree(parent.pid)
            tree.read(0.0)
            values = read(tree, 1.0)
        finally:
            parent.kill()
    assert values["process/others/count"] == 0
    assert math.isnan(values["process/others/memory"])
    assert values["process/kernel/memory"] > 1e6
