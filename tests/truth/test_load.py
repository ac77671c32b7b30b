"""The load of cores and processes: a process that uses a known share of one core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .watch import Beside, contiguous, core_seconds, cpu_seconds, total, watching

pytestmark = pytest.mark.alone

SECONDS = 2.5
CORE = max(os.sched_getaffinity(0))

BURNER = """
import os, sys, time
share, core = float(sys.argv[1]), int(sys.argv[2])
os.sched_setaffinity(0, [core])
print(1, flush=True)
began, used = time.monotonic(), time.process_time()
while True:
    if time.process_time() - used < share * (time.monotonic() - began):
        continue
    time.sleep(0.01)
"""


@contextmanager
def burner(share: float) -> Iterator[subprocess.Popen[bytes]]:
    """A child process, pinned to one core, of which it uses `share`."""
    command = [sys.executable, "-S", "-c", BURNER, str(share), str(CORE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_a_process_that_uses_a_known_share_of_a_core(share: float) -> None:
    with (
        burner(share) as process,
        watching() as watch,
        Beside(lambda: cpu_seconds(process.pid)) as used,
        Beside(lambda: core_seconds(CORE)[0]) as busy,
        Beside(lambda: core_seconds(CORE)[1]) as passed,
    ):
        begun = time.monotonic()
        watch.wait(begun + SECONDS + 1.0, "process/others/cpu")
        time.sleep(0.1)
        of_process = watch.readings("process/others/cpu", begun)
        of_core = watch.readings(f"cpu/{CORE}/busy", begun)
        assert contiguous(of_process)
        seconds = of_process[-1].end - of_process[0].begin
        assert seconds >= SECONDS - 0.2
        # As /proc tells it to somebody else, over the same windows.
        found, told = total(of_process) / seconds, 100 * used.growth(of_process) / seconds
        assert found == pytest.approx(told, abs=3.0)
        of_core = [reading for reading in of_core if reading.end < of_process[-1].end]
        mean = total(of_core) / sum(reading.end - reading.begin for reading in of_core)
        assert mean == pytest.approx(100 * busy.growth(of_core) / passed.growth(of_core), abs=3.0)
        if share == 1.0:
            assert mean >= 97.0
        # As it was meant, as far as others left it the core.
        others = 100 * busy.growth(of_process) / seconds - told
        assert found == pytest.approx(min(100 * share, 100 - others), abs=9.0)


def test_the_kernel_and_the_sampler_are_counted_as_themselves() -> None:
    with watching() as watch, Beside(lambda: cpu_seconds(os.getpid())) as used:
        begun = time.monotonic()
        until = begun + 3.5
        while time.monotonic() < until:
            pass
        watch.wait(time.monotonic(), "process/kernel/cpu")
        readings = watch.readings("process/kernel/cpu", begun)
        seconds = readings[-1].end - readings[0].begin
        assert total(readings) == pytest.approx(100 * used.growth(readings), abs=3.0 * seconds)
        sampler = watch.readings("process/sampler/cpu", begun)
        assert 0 < sampler[-1].value < 30  # a few per cent, on a machine that does nothing else
        assert watch.readings("process/sampler/count")[-1].value == 1
        assert watch.readings("process/kernel/count")[-1].value == 1


def test_workers_are_those_that_torch_calls_so() -> None:
    source = (
        "import ctypes, sys\n"
        "ctypes.CDLL(None).prctl(15, b'pt_data_worker')\n"  # PR_SET_NAME, as torch.multiprocessing does
        "print(1, flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-S", "-c", source]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as second,
    ):
        try:
            for process in (first, second):
                assert process.stdout is not None
                process.stdout.readline()
            with watching() as watch:
                assert watch.readings("process/workers/count")[-1].value == 2
                first.kill()
                first.wait()
                watch.wait(time.monotonic() + 1.0, "process/workers/count")
                assert watch.readings("process/workers/count")[-1].value == 1
        finally:
            first.kill()
            second.kill()
