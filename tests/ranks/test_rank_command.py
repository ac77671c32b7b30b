"""Which processes can be started again as one rank alone, and how."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kernel_monitor.os_process import child_environment
from kernel_monitor.ranks.alone_run import FORKED, UNKNOWN, JobCommands, RankCommand, command_of, supervisor
from kernel_monitor.ranks.session_files import JoinError

from ..waiting import until
from .peers import started

SLEEP = "import time; time.sleep(60)"


def test_a_script_is_known_with_its_arguments_and_environment(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLEEP, "utf-8")
    with started(
        "-u", "-X", "dev", str(script), "--lr", "1", RANK="3", WORLD_SIZE="4", TORCHELASTIC_RUN_ID="x"
    ) as process:
        time.sleep(0.2)
        command = command_of(process.pid)
        process.kill()
    assert command.words[1:] == ("-u", "-X", "dev", str(script), "--lr", "1")
    assert command.text == f"python {script} --lr 1"
    alone = command.alone("/join")
    assert (alone["WORLD_SIZE"], alone["KERNEL_MONITOR_JOIN"]) == ("1", "/join")
    assert not {"RANK", "TORCHELASTIC_RUN_ID"} & alone.keys()
    assert alone["MASTER_PORT"].isdecimal()


@pytest.mark.parametrize("words", [("-c", SLEEP), ("-m", "ipykernel_launcher", "-f", "x"), ("-",)])
def test_what_is_no_script_is_refused(words: tuple[str, ...]) -> None:
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(0.1)
            with pytest.raises(JoinError, match=r"a function of this notebook|cannot be read"):
                command_of(process.pid)
        finally:
            process.kill()
    with pytest.raises(JoinError, match="cannot be read"):
        command_of(process.pid)


def test_a_fork_of_this_process_is_refused() -> None:
    commands = JobCommands()
    assert commands.of(1) == UNKNOWN
    commands.refresh({1: os.getpid()})
    assert commands.of(1) == FORKED


def test_its_supervisor_ends_all_of_it_even_what_ignores_interrupts(tmp_path: Path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], stderr=subprocess.DEVNULL)\n"
        "open('ready', 'w').write(f'{child.pid} {os.environ[\"RANK\"]}')\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "time.sleep(60)\n",
        "utf-8",
    )
    command = RankCommand((sys.executable, str(script)), str(tmp_path), {})
    with subprocess.Popen(
        supervisor(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        ready = tmp_path / "ready"
        child, rank = until(lambda: ready.read_text("utf-8").split() if ready.exists() else [])
        assert rank == "0"
        os.kill(process.pid, 0)
        process.stdin.close()
        assert process.wait(15) == 3
    for number in (pid, int(child)):
        until(lambda: not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE, 3)  # noqa: B023
