"""The sampler process: `python -m kernel_monitor.sample --interval 0.1 --parent PID --parent-start T`.

Frames go to stdout (see `wire`); the process ends when its stdin ends or its parent does.
"""

from __future__ import annotations

import argparse
import signal
import sys


def main() -> int:
    """Sample until the kernel has gone; returns the exit status."""
    # An interrupt is meant for the user's cell, never for the sampler.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="python -m kernel_monitor.sample", description=__doc__)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between samples, 0.01 to 60")
    parser.add_argument("--zero", type=float, default=0.0, help="monotonic time from which intervals are counted")
    parser.add_argument("--parent", type=int, help="the process whose end ends this one")
    parser.add_argument("--parent-start", type=float, help="when it began (kernel_monitor.sample.process.start_of)")
    options = parser.parse_args()
    if not 0.01 <= options.interval <= 60:
        parser.error(f"the interval is {options.interval:g} s; it must lie between 0.01 and 60 s")
    if (options.parent is None) != (options.parent_start is None):
        parser.error("--parent and --parent-start go together")

    from . import host
    from .cpu import cpu
    from .disk import Disk
    from .gpu import Gpus
    from .loop import Loop, Parent
    from .memory import Memory
    from .network import Network
    from .pipes import Input, Output
    from .priority import ask_for_punctuality

    cores = cpu()
    gpus = Gpus(options.interval)
    gpus.start()
    ask_for_punctuality()  # this thread only: the one that waits for the driver keeps its priority
    loop = Loop(
        options.interval,
        options.zero,
        Input(sys.stdin.fileno()),
        Output(sys.stdout.fileno()),
        [cores, Memory(), Disk(), Network()],
        gpus,
        {"cpus": list(cores.cores), "host": host.facts()},
        None if options.parent is None else Parent(options.parent, options.parent_start),
    )
    try:
        loop.run()
    except BrokenPipeError:
        pass  # the kernel closed its end: this is how it may end, too
    finally:
        gpus.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
