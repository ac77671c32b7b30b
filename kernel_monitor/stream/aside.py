"""`python -S aside.py MODULE`: as `python -m MODULE`, beside training that may want every core.

Where two threads of a training loop wait for each other at every operator and a third process wants a core as well,
Linux sometimes puts both threads on one core and the third on the other, and it balances busy cores only every 0.1 to
0.2 s: so long is one step of the loop then (`benchmarks.stalls`). A core that has nothing left to do takes a waiting
thread at once. So, while more want to run than there are cores, a second process makes this one leave its core every
few milliseconds; woken in time where the system permits it. It is a process because a signal's handler in this one
would have to wait for long calls into C. And it is there before anything is imported, `site` included.
"""

from __future__ import annotations

import os
import sys
import time

EVERY_S = 0.004
NICENESS = 5
"""A third of what a training thread gets of a core that both want; of an idle core, all. More would take minutes."""


def main() -> None:
    """Run the module that `sys.argv` names; ends the process."""
    del sys.argv[0]
    mover = start_mover()
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    import runpy
    import signal
    import site
    import traceback

    site.main()
    code: object = None
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
    except BaseException:  # noqa: BLE001 - told as the interpreter would
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if mover is not None:
        os.kill(mover, signal.SIGKILL)
        os.waitpid(mover, 0)
    # To take an interpreter with a rendered report to pieces takes 0.1 s.
    os._exit(code if isinstance(code, int) else int(code is not None))


def start_mover() -> int | None:
    """The process that keeps this one moving; None where that is not known to help, or cannot be done."""
    if not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2:
        return None
    moved = os.getpid()
    mover = os.fork()
    if mover:
        return mover
    try:
        # Who reads what this process writes waits until nobody can write any more.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        keep_moving(moved)
    finally:
        os._exit(0)  # without a /proc that tells, the work goes on as Linux places it


def keep_moving(pid: int) -> None:
    """Make a process, the parent of this one, leave its core again and again, until it has ended."""
    # As in `sample.priority`, but nothing is imported here that takes as long as a part of a step.
    try:  # noqa: SIM105
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        pass  # not permitted: the usual priority, and no fault
    load = os.open("/proc/loadavg", os.O_RDONLY)
    stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    allowed = os.sched_getaffinity(0)
    # Of fewer cores than the machine has, it is not told how many want them.
    cores = os.cpu_count() or 1
    enough = cores if len(allowed) == cores else 0
    while os.getppid() == pid:
        time.sleep(EVERY_S)
        if wanting(os.pread(load, 128, 0)) - 1 > enough:  # this one aside
            os.sched_setaffinity(pid, allowed - {core(os.pread(stat, 1024, 0))})


def wanting(loadavg: bytes) -> int:
    """Threads that run or want to, of the whole machine, from the text of /proc/loadavg."""
    return int(loadavg.split()[3].split(b"/")[0])


def core(stat: bytes) -> int:
    """The core that a process ran on last, from the text of its /proc/<pid>/stat (proc_pid_stat(5), field 39)."""
    return int(stat.rsplit(b")", 1)[1].split()[36])


if __name__ == "__main__":
    main()
