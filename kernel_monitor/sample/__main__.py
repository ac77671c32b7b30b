"""The sampler process: `python -m kernel_monitor.sample --interval 0.1 --parent PID --parent-start T`.

Frames go to stdout (see `messages`), commands come by stdin (see `loop`); the process ends with its stdin or its
parent.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from pathlib import Path

SWITCH_S = 0.0005
"""The clock's thread shares the interpreter with those that read slow metrics, query NVML and record. A thread that
computes gives way after this long; Python's own 5 ms would be the clock's error."""


def main() -> int:
    """Sample until the kernel has gone; returns the exit status."""
    # An interrupt is meant for the user's cell, not for the sampler.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    options = _options()

    # Imported here, after the interrupt is ignored.
    from ..os_process import request_realtime
    from .clock import SessionClock
    from .frame_builder import Background, FrameBuilder
    from .gpu.gpus import Gpus
    from .host.cpu import Frequency, cpu
    from .host.facts import Topology, facts
    from .host.load import Disk, Load, Memory, Network, Pressure
    from .host.process_limits import Container, Limits
    from .host.processes import ProcessTree
    from .loop import Loop, Notices, RecorderLink
    from .pipes import Input, Output

    interval, clock, notices = options.interval, SessionClock(options.zero, options.origin), Notices()
    kernel = os.getppid() if options.parent is None else options.parent
    recording = RecorderLink(options.session, clock, notices.recorder)
    cores, tree, gpus = cpu(), ProcessTree(kernel), Gpus(interval)
    background = Background(
        [Load(), Memory(), Disk(), Network(), Pressure(), Container(kernel), tree, Frequency(lambda: cores.cores)],
        [Topology(lambda: cores.cores), Limits(kernel)],
        notices.complain,
        interval,
        clock.zero,
    )
    background.start()
    gpus.set_processes(tree.pids)
    gpus.start()
    frames = FrameBuilder(cores, background, gpus, facts(), notices.complain, interval)
    loop = Loop(
        interval,
        clock,
        Input(sys.stdin.fileno()),
        Output(sys.stdout.fileno()),
        frames,
        gpus,
        tree,
        recording,
        notices,
        background.replan,
        None if options.parent is None else (options.parent, options.parent_start),
    )
    if options.record is not None:
        recording.start(options.record)
    request_realtime()  # for this thread only: those that wait for the driver or a disk keep their priority
    # These objects live until the end: without them a collection takes less than 0.1 ms, with them several.
    gc.collect()
    gc.freeze()
    try:
        loop.run()
    finally:
        background.stop()
        gpus.stop()
        recording.close()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernel_monitor.sample", description=__doc__)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between samples, 0.01 to 60")
    parser.add_argument("--zero", type=float, default=0.0, help="monotonic time at which the session began")
    parser.add_argument("--origin", type=float, help="Unix time of that moment")
    parser.add_argument("--session", default="", help="the session's name")
    parser.add_argument("--record", type=Path, help="the file to record the session to; none by default")
    parser.add_argument("--parent", type=int, help="the process with which this one ends")
    parser.add_argument("--parent-start", type=float, help="when it began (kernel_monitor.os_process.start_of)")
    options = parser.parse_args()
    if not 0.01 <= options.interval <= 60:
        parser.error(f"the interval is {options.interval:g} s; it must lie between 0.01 and 60 s")
    if (options.parent is None) != (options.parent_start is None):
        parser.error("--parent and --parent-start go together")
    if options.origin is None:
        options.origin = time.time() - (time.monotonic() - options.zero)
    return options


if __name__ == "__main__":
    sys.exit(main())
