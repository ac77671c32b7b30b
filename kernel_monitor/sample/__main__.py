"""The sampler process: `python -m kernel_monitor.sample --interval 0.1 --parent PID --parent-start T`.

It writes frames to stdout (see `pipes`), reads commands from stdin (see `loop`), and ends when stdin ends or when its
parent does.
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
"""Python's switch interval. The loop's thread shares the GIL with the threads that read slow metrics, query NVML and
record; with Python's own 5 ms a frame could come that much late."""


def main() -> int:
    """Sample until the kernel has ended; return the exit status."""
    # An interrupt is meant for the user's cell, not for the sampler.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    options = _options()

    # Imported here, after the interrupt is ignored.
    from ..os_process import request_realtime
    from .clock import SessionClock
    from .frame_builder import Background, FrameBuilder
    from .gpu.gpus import Gpus
    from .host.cpu import Frequency, Topology, host_facts, open_cpu
    from .host.load import Disk, Load, Memory, Network, Pressure
    from .host.process_limits import Container, Limits
    from .host.processes import ProcessTree
    from .loop import Loop, Notices, RecorderLink
    from .pipes import Input, Output

    interval, clock, notices = options.interval, SessionClock(options.zero, options.origin), Notices()
    kernel = os.getppid() if options.parent is None else options.parent
    recording = RecorderLink(options.session, clock, notices.recorder)
    cores, tree, gpus = open_cpu(), ProcessTree(kernel), Gpus(interval)
    background = Background(
        [Load(), Memory(), Disk(), Network(), Pressure(), Container(kernel), tree, Frequency(lambda: cores.cores)],
        [Topology(lambda: cores.cores), Limits(kernel)],
        notices.report_failure,
        interval,
        clock.zero,
    )
    background.start()
    gpus.set_processes(tree.pids)
    gpus.start()
    frames = FrameBuilder(cores, background, gpus, host_facts(), notices.report_failure, interval)
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
    # All objects so far live until the end. Without them a garbage collection takes 0.1 ms, with them several.
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
    from . import pipes

    parser = argparse.ArgumentParser(prog="python -m kernel_monitor.sample", description=__doc__)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between samples, 0.01 to 60")
    parser.add_argument("--zero", type=float, default=0.0, help="monotonic time at which the session began")
    parser.add_argument("--origin", type=float, help="Unix time at which the session began")
    parser.add_argument("--session", default="", help="the session's name")
    named = os.environ.get(pipes.RECORD)
    parser.add_argument(
        "--record",
        type=Path,
        default=None if named is None else Path(named),
        help=f"the file to record the session to; by default that of {pipes.RECORD}, or none",
    )
    parser.add_argument("--parent", type=int, help="the process with which this one ends")
    parser.add_argument("--parent-start", type=float, help="its start time (kernel_monitor.os_process.start_of)")
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
