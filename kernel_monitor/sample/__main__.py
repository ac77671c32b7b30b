"""The sampler process: `python -m kernel_monitor.sample --interval 0.1 --parent PID --parent-start T`.

Frames go to stdout (see `wire`), commands come by stdin (see `commands`); the process ends when its stdin ends or its
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
"""The clock's thread shares the interpreter with those that read slowly moving metrics, ask the driver and record. One
that computes gives way after this long; Python's own 5 ms would be the clock's error."""


def main() -> int:
    """Sample until the kernel has gone; returns the exit status."""
    # An interrupt is meant for the user's cell, never for the sampler.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    options = _options()

    from .background import Background
    from .clock import SessionClock
    from .commands import Commands
    from .frames import Frames
    from .gpu.gpus import Gpus
    from .host import facts as host
    from .host.container import Container
    from .host.cpu import cpu
    from .host.disk import Disk
    from .host.frequency import Frequency
    from .host.limits import Limits
    from .host.load import Load
    from .host.memory import Memory
    from .host.network import Network
    from .host.pressure import Pressure
    from .host.processes import ProcessTree
    from .host.topology import Topology
    from .loop import Loop, Notices, Parent
    from .pipes import Input, Output
    from .priority import ask_for_punctuality
    from .recording import Recording

    interval, clock, notices = options.interval, SessionClock(options.zero, options.origin), Notices()
    kernel = os.getppid() if options.parent is None else options.parent
    recording = Recording(options.session, clock, notices.recorder)
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
    frames = Frames(
        [cores, cores.split],
        background,
        gpus,
        {"host": host.facts()},
        lambda: cores.cores,
        notices.complain,
        interval,
    )
    loop = Loop(
        interval,
        clock,
        Input(sys.stdin.fileno()),
        Output(sys.stdout.fileno()),
        frames,
        gpus,
        lambda: tree.pids,
        recording,
        notices,
        None if options.parent is None else Parent(options.parent, options.parent_start),
    )
    loop.on_replan(background.replan)
    if options.record is not None:
        recording.start(options.record)
    ask_for_punctuality()  # this thread only: those that wait for the driver or a disk keep their priority
    # What was made up to here stays: without it a collection takes less than 0.1 ms, with it several.
    gc.collect()
    gc.freeze()
    try:
        loop.run(Commands(loop.set_interval, tree.set_workers, recording, notices.warn))
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
    parser.add_argument("--record", type=Path, help="the file to record the session to; without it there is none")
    parser.add_argument("--parent", type=int, help="the process whose end ends this one")
    parser.add_argument("--parent-start", type=float, help="when it began (kernel_monitor.sample.process.start_of)")
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
