"""A kernel of its own that is interrupted, forked, ended and killed: its sampler goes with it, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.unit.checks import wait_for
from tests.unit.sampler_taken import ROOT, gone

KERNEL = """
import ctypes, os, signal, sys, time
from kernel_monitor.sample.sampler_client import SamplerClient
frames = []
exits = []
client = SamplerClient(
    0.05, lambda hello: None, lambda stamp, missed, values: frames.append(stamp), lambda notice: None, exits.append
)
client.start()
while len(frames) < 3:
    time.sleep(0.01)
print(client.pid, flush=True)
"""


@contextmanager
def kernel(rest: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that samples and then does `rest`; with the sampler's number."""
    with subprocess.Popen(
        [sys.executable, "-c", KERNEL + textwrap.dedent(rest)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **options,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def test_nothing_survives_a_kernel_that_ends_without_stopping() -> None:
    with kernel("print('end', flush=True)", stderr=subprocess.PIPE) as (process, sampler):
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read() == "end\n"
        assert process.stderr.read() == ""
        assert process.wait(10) == 0
        assert gone(sampler)


def test_nothing_survives_a_kernel_that_is_killed() -> None:
    with kernel("time.sleep(60)") as (process, sampler):
        process.kill()
        wait_for(lambda: gone(sampler), 3.0)


def test_a_forked_child_neither_holds_the_sampler_nor_touches_it() -> None:
    rest = """
    child = os.fork()
    if child == 0:
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                and os.path.exists(f"/proc/self/fd/{fd}")]
        assert not any(name.startswith("pipe:") for name in held), held
        assert client.pid is None
        client.stop()
        print("child", flush=True)
        time.sleep(60)
    before = len(frames)
    while len(frames) < before + 5:
        time.sleep(0.01)
    print("parent", exits, client.restarts, child, flush=True)
    time.sleep(60)
    """
    with kernel(rest) as (process, sampler):
        assert process.stdout is not None
        said = sorted([process.stdout.readline().strip(), process.stdout.readline().strip()])
        assert said[0] == "child"
        assert said[1].startswith("parent [] 0 ")
        child = int(said[1].split()[-1])
        try:
            process.kill()
            wait_for(lambda: gone(sampler), 3.0)
            assert not gone(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_that_holds_the_pipe_does_not_keep_the_sampler_of_a_killed_kernel() -> None:
    # A fork that Python does not know of runs none of its hooks, so that the child keeps both pipes open.
    rest = """
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
    time.sleep(60)
    """
    with kernel(rest) as (process, sampler):
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            ends = {Path(f"/proc/{sampler}/fd/{fd}").readlink() for fd in (0, 1)}
            held = {descriptor.readlink() for descriptor in Path(f"/proc/{child}/fd").iterdir()}
            assert ends <= held
            process.kill()  # and not waited for: a zombie counts as gone
            wait_for(lambda: gone(sampler), 3.0)
            assert not gone(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_an_interrupt_of_the_kernels_group_does_not_end_the_sampler() -> None:
    rest = """
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        before = len(frames)
        while len(frames) < before + 5:
            time.sleep(0.01)
        print(client.pid, client.restarts, flush=True)
    """
    with kernel(rest, start_new_session=True) as (process, sampler):
        assert process.stdout is not None
        assert os.getsid(sampler) == sampler  # out of reach of whatever is sent to the kernel's group
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        os.kill(sampler, signal.SIGINT)
        assert process.stdout.readline().split() == [str(sampler), "0"]
        assert process.wait(10) == 0
        assert gone(sampler)


def test_a_module_in_the_notebooks_folder_does_not_take_the_place_of_ours(tmp_path: Path) -> None:
    (tmp_path / "psutil.py").write_text("raise SystemExit('the wrong psutil')")
    source = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport psutil\n{KERNEL}print(exits)"
    source = f"import os\nos.chdir({str(tmp_path)!r})\n{source}"
    found = subprocess.run([sys.executable, "-P", "-c", source], capture_output=True, text=True, timeout=20, check=True)
    assert found.stdout.splitlines()[1] == "[]"
