"""The interface of `ranks` to the rest of the package: live ranks, their half in each process, and their commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ..plugins import Command
from . import run_command, switch_command
from .rank_client import follow

if TYPE_CHECKING:
    from ..runtime import Monitor
    from ..store import Store
    from .rank_tracker import RankTracker

__all__ = ["COMMANDS", "MAGICS", "follow", "live_ranks"]


def live_ranks(store: Store, complain: Callable[[str], object], add_event: Callable[..., object]) -> RankTracker:
    """Return the ranks of one session (`runtime.optional_parts.LiveRanks`); `complain` gets a reason why none can join.

    Each iteration of a process that is a rank itself calls `follow` with its meter.
    """
    from .rank_tracker import RankTracker

    return RankTracker(store, complain, add_event)


def _ranks(monitor: Monitor) -> RankTracker:
    return cast("RankTracker", monitor.live_session.ranks)


# ---- `kernel-monitor run` and `kernel-monitor switch`.

COMMANDS = (
    Command(
        "run",
        "run a training script as it is, and record it or show it in a notebook's dashboard",
        run_command.run,
        run_command.add_arguments,
        "Runs a script (train.py …), a module (-m …) or another command, such as torchrun, with no change to its code: "
        "its DataLoaders are measured, and kernel-monitor switch switches them meanwhile. It is shown in the dashboard "
        "of a notebook (--join, or KERNEL_MONITOR_JOIN); without one it is recorded. The exit status is the command's.",
    ),
    Command(
        "switch",
        "switch a loader of a script or a notebook that runs, or list them",
        switch_command.run,
        switch_command.add_arguments,
        "Switches a loader of this user's scripts (kernel-monitor run) and notebooks on this machine to another "
        "engine, and prints the outcome; without an engine, lists the loaders. Exit status 0: switched; 1: it "
        "cannot be, with the reason; 3: asked for, and no batch came yet.",
    ),
)


# ---- `%monitor join`.


def _join(monitor: Monitor, _options: argparse.Namespace) -> str:
    monitor.start()
    return _ranks(monitor).join_words()


MAGICS = (
    Command("join", "%monitor join                   what to set so that ranks started elsewhere appear here", _join),
)
