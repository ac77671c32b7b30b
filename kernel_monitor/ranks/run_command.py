"""`kernel-monitor run`: runs a script or a command, and measures its DataLoaders with no change to its code.

Each of its Python processes imports `startup/sitecustomize.py` at its start, as that folder is in PYTHONPATH. Otherwise
the script, and the processes that it starts, run as they would without this command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .. import own_files
from ..errors import MonitorError
from . import session_files, terminal_requests
from .script_process import RECORDINGS, recorded
from .session_files import KEYS, VARIABLE, JoinError

_Outcome = tuple[str | None, str]  # the path of a recording, or None; a message
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
    """Run the command and return its exit status.

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
        return _run(command, {VARIABLE: joined})
    if options.report is not None:
        from ..output import check

        check(options.report)
    outcomes: list[_Outcome]
    status, outcomes = (_run_recorded_in_process if _is_python(command) else _run_recorded_here)(command)
    for path, message in outcomes or [(None, "nothing was measured: no process of the command has imported torch")]:
        sys.stderr.write((f"recorded: {path}\n" if path else "") + (f"kernel-monitor: {message}\n" if message else ""))
    paths = [path for path, _ in outcomes if path]
    if paths and options.report is not None:
        _report(paths, options.report)
    return status


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


def _run_recorded_in_process(command: Sequence[str]) -> tuple[int, list[_Outcome]]:
    """Run a Python whose processes record themselves; return its exit status and what became of the recordings."""
    try:
        temporary = tempfile.TemporaryDirectory(prefix="kernel-monitor-run-", ignore_cleanup_errors=True)
    except OSError as error:
        why = f"nothing was measured, as no temporary folder can be made ({error.strerror})"
        return _run(command, {}), [(None, why)]
    with temporary as folder:
        status = _run(command, {RECORDINGS: folder})
        try:
            files = sorted(Path(folder).iterdir(), key=lambda path: path.lstat().st_mtime)
            return status, [json.loads(own_files.read(path)) for path in files]
        except (OSError, ValueError) as error:  # the command has emptied the temporary folder
            return status, [(None, f"where the session was recorded is not known: {error}")]


def _run_recorded_here(command: Sequence[str]) -> tuple[int, list[_Outcome]]:
    """Run a command whose processes join a session of this process; return its exit status and that recording."""
    from ..runtime import monitor

    terminal_requests.set_title(command)
    outcome = recorded()
    try:
        return _run(command, {}), [outcome]
    finally:
        monitor.stop("the command has ended")


def _run(command: Sequence[str], more: Mapping[str, str]) -> int:
    """Run a command with `more` environment variables; return its exit status.

    Raises:
        JoinError: there is no such command.
    """
    environment = {**os.environ, **more}
    paths = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{STARTUP}{os.pathsep}{paths}" if paths else str(STARTUP)
    # Handlers and not SIG_IGN, which the command would inherit.
    try:
        with _signals_passed_on() as started:
            process = subprocess.Popen(command, env=environment)
            started.append(process)
            status = process.wait()
    except OSError as error:
        raise JoinError(f"{command[0]} cannot be run: {error.strerror}.") from None
    return status if status >= 0 else 128 - status


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


def _report(recorded: Sequence[str], file: str) -> None:
    """Write the report of the newest recording."""
    from ..cli import main

    with contextlib.redirect_stdout(sys.stderr):  # stdout is the command's
        main(["report", recorded[-1], "-o", file])
