"""`kernel-monitor run`: runs a script or a command, and measures its DataLoaders with no change to its code.

Each of its Python processes imports `startup/sitecustomize.py` at its start, as that folder is in PYTHONPATH. Otherwise
the script, and the processes that it starts, run as they would without this command: a Python, and whatever joins a
session, takes this process's place, so that its process id, its signals and its end are those of this command. Other
commands, whose processes join a session of this process, run as a child, which ends with it.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from .. import own_files
from ..errors import MonitorError
from . import session_files, terminal_requests
from .script_process import REPORT, RUN, recorded
from .session_files import KEYS, VARIABLE, JoinError

STARTUP = Path(__file__).parent / "startup"
_PYTHON = re.compile(r"python[\d.]*(\.exe)?")
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Signals that are passed on to the command. SIGINT is, too, unless a terminal has sent it to both processes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    place = "the folder or address that %%monitor join prints: show the script in that notebook, and do not record it"
    parser.add_argument("--join", metavar="PLACE", type="name", help=place)
    parser.add_argument("--report", metavar="FILE", type="name", help="write the report of the recording at the end")
    module = "run a module, as python -m does"
    parser.add_argument("-m", dest="module", metavar="MODULE …", nargs=argparse.REMAINDER, help=module)
    words = "a script with its arguments (train.py --epochs 3), or another command (torchrun train.py)"
    parser.add_argument("words", metavar="COMMAND …", nargs=argparse.REMAINDER, help=words)


def run(options: argparse.Namespace) -> int:
    """Run the command in place of this process, or as its child; then return its exit status.

    Raises:
        MonitorError: there is no such session or command.
    """
    command = _command(options)
    place = options.join or os.environ.get(VARIABLE)
    if place is not None:
        if options.report is not None:
            raise MonitorError("--report needs a recording, and --join makes none: export the report in the notebook.")
        session_files.read(place, os.environ.get(KEYS))
        joined = place if place.startswith("tcp:") else str(own_files.expanded(place))
        return _become(command, {VARIABLE: joined})
    if options.report is not None:
        from ..output import check

        check(options.report)
    if _is_python(command):
        report = "" if options.report is None else str(own_files.expanded(options.report))
        return _become(command, {RUN: str(os.getpid()), REPORT: report})
    status, (path, message) = _run_recorded(command)
    sys.stderr.write((f"recorded: {path}\n" if path else "") + (f"kernel-monitor: {message}\n" if message else ""))
    if path and options.report is not None:
        _report(path, options.report)
    return _ended(status)


def _command(options: argparse.Namespace) -> list[str]:
    """Return the command to run; a script or a module is run by this Python."""
    if options.module is not None:
        if not options.module:
            raise MonitorError("run -m needs a module: kernel-monitor run -m package.train")
        return [sys.executable, "-m", *options.module]
    words: list[str] = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not words:
        raise MonitorError("run needs a command: kernel-monitor run train.py, or kernel-monitor run torchrun train.py")
    return [sys.executable, *words] if words[0].endswith(".py") else words


def _is_python(command: Sequence[str]) -> bool:
    return command[0] == sys.executable or _PYTHON.fullmatch(Path(command[0]).name) is not None


def _become(command: Sequence[str], more: Mapping[str, str]) -> int:
    """Run a command in place of this process, which does not return; on Windows as a child: return its exit status.

    Raises:
        JoinError: there is no such command.
    """
    if sys.platform == "win32":
        return _run(command, more)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and a command would go on to ignore
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], list(command), _environment(more))  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise _cannot_run(command, error) from None


def _run_recorded(command: Sequence[str]) -> tuple[int, tuple[str | None, str]]:
    """Run a command whose processes join a session of this process; return its status and what `recorded` returned."""
    from ..runtime import monitor

    terminal_requests.set_title(command)
    outcome = recorded()
    try:
        return _run(command, {}), outcome
    finally:
        monitor.stop("the command has ended")


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command, with `more` variables."""
    environment = {**os.environ, **more}
    paths = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{STARTUP}{os.pathsep}{paths}" if paths else str(STARTUP)
    return environment


def _run(command: Sequence[str], more: Mapping[str, str]) -> int:
    """Run a command as a child, which ends with this process; return its exit status, negative for a signal.

    Raises:
        JoinError: there is no such command.
    """
    # Handlers and not SIG_IGN, which the command would inherit.
    try:
        with _signals_passed_on() as started:
            process = subprocess.Popen(command, env=_environment(more), preexec_fn=_dying_with(os.getpid()))  # noqa: PLW1509 - it takes no lock
            started.append(process)
            return process.wait()
    except OSError as error:
        raise _cannot_run(command, error) from None


def _cannot_run(command: Sequence[str], error: OSError) -> JoinError:
    return JoinError(f"{command[0]} cannot be run: {error.strerror}.")


def _dying_with(parent: int) -> Callable[[], None] | None:
    """Return what has Linux kill a child with the process `parent`, to be called in the child; elsewhere None."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def begin() -> None:
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return begin


def _ended(status: int) -> int:
    """End as the command has ended: by its signal, or by the exit status that is returned."""
    if status >= 0 or sys.platform == "win32":
        return status
    atexit._run_exitfuncs()
    sys.stdout.flush()
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status  # the signal is blocked


@contextlib.contextmanager
def _signals_passed_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Pass the signals that this process gets on to the processes in the list that is yielded."""
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: object) -> None:
        for process in started:
            if number != signal.SIGINT or not _in_foreground():
                process.send_signal(number)

    names = [name for name in (*_PASSED_ON, "SIGINT") if hasattr(signal, name)]
    numbers = [number for name in names if signal.getsignal(number := getattr(signal, name)) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Return whether this process is in a terminal's foreground; then the terminal sends SIGINT to the command, too."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _report(recorded: str, file: str) -> None:
    """Write the report of a recording."""
    from ..cli import main

    with contextlib.redirect_stdout(sys.stderr):  # stdout is the command's
        main(["report", recorded, "-o", file])
