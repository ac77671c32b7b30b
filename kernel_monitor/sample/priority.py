"""Ask to be woken in time.

Beside busy processes Linux lets a woken process wait until the running one has used its slice: measured on 2 cores
beside two spinning threads, the interval's p99 at 10 Hz is 102 to 104 ms (a bare timer's as well), with a real-time
priority 100.1 ms. The thread that samples runs for about one per cent of the time, and the kernel's own limit for
real-time processes (95 %) stands behind it.
"""

from __future__ import annotations

import os


def ask_for_punctuality() -> bool:
    """Give the calling thread the lowest real-time priority where the system permits it; returns whether it did.

    Root has the right, and whoever was given CAP_SYS_NICE or an rtprio limit; others keep the usual priority.
    Threads and processes started afterwards do not inherit it.
    """
    if not hasattr(os, "sched_setscheduler"):
        return False  # macOS, Windows
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False  # not permitted: the usual case, and no fault
    return True
