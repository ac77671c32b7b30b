"""`python -S aside.py MODULE`: as `python -m MODULE`, beside training that may want every core.

Where two threads of a training loop wait for each other at every operator and a third process wants a core as well,
Linux sometimes puts both threads on one core and the third on the other, and it balances busy cores only every 0.1 to
0.2 s: so long is one step of the loop then (`benchmarks.stalls`). A core that has nothing left to do takes a waiting
thread at once. So the module runs in a child of this process, which stops it for two thirds of the time (SIGSTOP,
SIGCONT) while more want to run than there are cores; woken in time where the system permits it. Then a step of the loop
gets about half as long again, however the threads are placed. The child begins before anything is imported, `site`
included; it is a child of this process because the kernel that trains must not be sent a SIGCHLD at each stop.
"""

from __future__ import annotations

import os
import sys
import time

LOAD = "/proc/loadavg"
RUN_S = 0.002
REST_S = 0.004
NICENESS = 5
"""Where nobody can stop it: a third of what a training thread gets of a core that both want; of an idle core, all."""
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Run the module that `sys.argv` names; ends the process."""
    del sys.argv[0]
    if not sys.platform.startswith("linux"):
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        work()
    governor = os.getpid()
    worker = os.fork()
    if not worker:
        end_with(governor)
        work()
    # Who reads what the worker writes waits until nobody can write any more.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    status = govern(worker)
    if status < 0:  # by a signal, as the worker did
        os.kill(os.getpid(), -status)
    os._exit(status)


def work() -> None:
    """Run the module; ends the process."""
    import runpy
    import site
    import traceback

    # A write to a pipe that a stop interrupts is cut short. Python goes on with the rest, but where it has no buffer
    # (PYTHONUNBUFFERED) the rest would be lost.
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
    code: object = None
    try:
        site.main()
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
    # To take an interpreter with a rendered report to pieces takes 0.1 s.
    os._exit(code if isinstance(code, int) else int(code is not None))


def end_with(parent: int) -> None:
    """Have this process killed when its parent is, by whomever: nobody else would let it go on once it is stopped."""
    import ctypes
    from _signal import SIGKILL  # type: ignore[import-not-found]

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL))
    if os.getppid() != parent:  # killed meanwhile
        os.kill(os.getpid(), SIGKILL)


def govern(worker: int) -> int:
    """Let a child of this process run only so much while others want its core; returns its exit status."""
    # Not `signal`, which takes 5 ms to import: the child would run freely meanwhile. Windows has neither of them.
    from _signal import SIGCONT, SIGSTOP

    # As in `sample.priority`, but nothing is imported here that takes as long as a part of a step.
    try:  # noqa: SIM105
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        pass  # not permitted: the usual priority, and no fault
    try:
        load = os.open(LOAD, os.O_RDONLY)
    except OSError:  # a hardened container: the work is done all the same, as where there is no Linux
        os.setpriority(os.PRIO_PROCESS, worker, NICENESS)
        return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    # Of fewer cores than the machine has, it is not told how many want them: whoever wants any may want these.
    cores = len(os.sched_getaffinity(0))
    while True:
        if wanting(os.pread(load, 128, 0)) - 1 > cores:  # this one aside
            os.kill(worker, SIGSTOP)
            time.sleep(REST_S)
            os.kill(worker, SIGCONT)
        time.sleep(RUN_S)
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def wanting(loadavg: bytes) -> int:
    """Threads that run or want to, of the whole machine, from the text of /proc/loadavg."""
    return int(loadavg.split()[3].split(b"/")[0])


if __name__ == "__main__":
    main()
