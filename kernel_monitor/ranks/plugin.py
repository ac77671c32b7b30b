"""The interface of `ranks` to the rest of the package: live ranks, their half in each process, and their commands."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ..errors import MonitorError
from ..plugins import Command, Request
from . import session_files
from .rank_client import follow
from .session_files import KEYS, VARIABLE, JoinError

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


# ---- `kernel-monitor run`: a command whose processes join a session, of a kernel or of its own.


def _add_run(parser: argparse.ArgumentParser) -> None:
    place = "the folder or address that %%monitor join prints"
    parser.add_argument("--join", metavar="PLACE", type="name", help=place)
    parser.add_argument("words", metavar="-- COMMAND …", nargs=argparse.REMAINDER, help="such as: -- torchrun train.py")


def _run_command(options: argparse.Namespace) -> int:
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not words:
        raise MonitorError("run needs a command: kernel-monitor run -- torchrun train.py")
    place = options.join or os.environ.get(VARIABLE)
    if place is not None:
        return _run(words, place)
    from ..runtime import monitor

    monitor.start()
    try:
        return _run(words, None)
    finally:
        monitor.stop("the command has ended")
        path = monitor.recording["path"]
        if path is not None:
            sys.stderr.write(f"recorded: {path}\n")


def _run(command: Sequence[str], place: str | None) -> int:
    """Run a command, whose processes join the session of a folder or address, if given; returns its exit status.

    An interrupt is the command's to handle, which gets it too. JoinError: there is no such session or command.
    """
    environment = dict(os.environ)
    if place is not None:
        session_files.read(place, os.environ.get(KEYS))
        environment[VARIABLE] = place if place.startswith("tcp:") else os.path.abspath(place)  # noqa: PTH100 - as given
    # A handler and not SIG_IGN, which the command would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        process = subprocess.Popen(command, env=environment)
        status = process.wait()
    except OSError as error:
        raise JoinError(f"{command[0]} cannot be run: {error.strerror}.") from None
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


COMMANDS = (
    Command(
        "run",
        "run a training, and record it or show its processes in a notebook's dashboard",
        _run_command,
        _add_run,
        "Runs a command, such as a training of several processes (ranks). What their loaders do (those wrapped by "
        "switchable or watch_loader) is shown in the dashboard of a notebook (--join, or KERNEL_MONITOR_JOIN); without "
        "one it is recorded. The exit status is the command's.",
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


def _answer_alone(monitor: Monitor, args: Mapping[str, object]) -> FindingsReply:
    from ..control import flag, number, only

    only("alone", args, "job", "confirmed", "cancel")
    if flag("alone", args, "cancel"):
        monitor.stop_alone()
    else:
        monitor.run_alone(number("alone", args, "job"), confirmed=flag("alone", args, "confirmed"), wait=False)
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
REQUESTS = (Request("alone", _answer_alone, slow=True),)
