"""The interface of `ranks` to the rest of the package: live ranks, their half in each process, and their commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..field_checks import flag, maybe, only, whole
from ..plugins import Command, Request
from . import run_command, switch_command
from .rank_client import follow

if TYPE_CHECKING:
    from ..protocol.message_types import FindingsReply
    from ..runtime import Monitor
    from ..store import Store
    from .rank_tracker import RankTracker

__all__ = ["COMMANDS", "MAGICS", "REQUESTS", "follow", "live_ranks"]


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


# ---- `%monitor join`, `%monitor alone`, and a page's request to run one rank alone.


def _join(monitor: Monitor, _options: argparse.Namespace) -> str:
    monitor.start()
    return _ranks(monitor).join_words()


def _add_alone(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--yes", action="store_true")


def _alone(monitor: Monitor, options: argparse.Namespace) -> str:
    job, seconds = options.job, options.seconds
    if options.yes:
        return str(monitor.run_alone(job, seconds=seconds, confirmed=True))
    question = _ranks(monitor).alone.question(job, seconds)
    which = "" if job is None else f" {job}"
    return f"Warning: {question}\nNothing was started. If you mean it: %monitor alone{which} --yes"


def _answer_alone(monitor: Monitor, args: Mapping[str, Any]) -> FindingsReply:
    if args["cancel"]:
        monitor.stop_alone()
    else:
        monitor.run_alone(args["job"], confirmed=args["confirmed"], wait=False)
    findings = monitor.publisher.findings()
    return {"status": "ok", "ranks": findings["ranks"], "alone": findings["alone"]}


MAGICS = (
    Command("join", "%monitor join                   what to set so that ranks started elsewhere appear here", _join),
    Command(
        "alone",
        """%monitor alone [JOB] [--seconds S] [--yes]
                                run one rank of a job that has ended alone for S seconds (default 20), to compare""",
        _alone,
        _add_alone,
    ),
)
_ALONE = only(job=(maybe(whole()), None), confirmed=(flag, False), cancel=(flag, False))
REQUESTS = (Request("alone", _answer_alone, _ALONE, slow=True),)
