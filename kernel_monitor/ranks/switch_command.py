"""`kernel-monitor switch`: lists the loaders of this user's scripts and kernels, and switches one of them."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from .. import own_files
from ..errors import MonitorError
from ..os_process import is_alive
from . import session_files, terminal_requests
from .session_files import VARIABLE, Join, JoinError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import zmq

_ANSWER_S = 3.0  # time to wait for a session's answer: its thread may have to wait for the GIL
_ASK_S = 0.25  # between two requests for the loader's state
_NOTHING = "Nothing runs here that can be switched. Start a script with kernel-monitor run train.py, or %monitor."
_HEADINGS = ("process", "command", "loader", "engine", "state")


class _Loader(NamedTuple):
    """A loader of a session."""

    folder: str  # of the session
    pid: int
    title: str
    state: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.state["name"])

    def is_called(self, name: str) -> bool:
        """Return whether `name` is its id or its name; the name of a job's loader may be given without the job."""
        return name in (self.state["id"], self.name, self.name.partition(" · ")[0])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "engine", nargs="?", type="name", help="torchvision, dali-cpu …; without an engine, the loaders are listed"
    )
    parser.add_argument("--list", action="store_true", help="list the loaders, as without an engine")
    parser.add_argument("--loader", metavar="NAME", type="name", help="the loader to switch, if several run")
    whose = "the process: its id, its command or a word of it, its notebook, or its session's folder"
    parser.add_argument("--session", metavar="NAME", type="name", help=whose)
    parser.add_argument(
        "--yes", action="store_true", help="confirm an engine that asks for confirmation, such as synthetic"
    )
    patience = "how long to wait for the engine's first batch (default: 20)"
    parser.add_argument("--seconds", metavar="S", type=float, default=20.0, help=patience)


def run(options: argparse.Namespace) -> int:
    """List the loaders, or switch one; return the exit status (0, 1 or 3; see docs/howto/headless.md).

    Raises:
        JoinError: pyzmq is not installed.
    """
    session_files.remove_left()
    with _Sessions(_named(options.session)) as sessions:
        loaders, remarks = sessions.loaders(options.session)
        if options.engine is None or options.list:
            sys.stdout.write(f"{_table(loaders, remarks)}\n")
            return 0
        try:
            chosen = _chosen(loaders, remarks, options.loader)
            asked = sessions.switch(chosen, options.engine, confirmed=options.yes)
        except MonitorError as error:
            return _refused(str(error))
        # Where another process may have been meant, the answer names the one that was switched.
        name = f"{asked.name} of {asked.title} (process {asked.pid})" if remarks else asked.name
        return _follow(sessions, asked, name, options.engine, options.seconds)


def _follow(sessions: _Sessions, loader: _Loader, name: str, engine: str, seconds: float) -> int:
    """Wait for the first batch of the engine, and print the outcome after `name`; return the exit status."""
    from .job_loaders import reached  # imports NumPy, which a rank does without

    until = time.monotonic() + seconds
    while True:
        state = sessions.state(loader)
        if state is None:
            return _refused(f"{name}: its loop or its process ended before the first batch of {engine}")
        if state["wanted"] is None:
            if not reached(state["backend"], engine):
                return _refused(f"{name}: {state['status']}")
            sys.stdout.write(f"{name}: {state['status']}\n")
            return 0
        if time.monotonic() > until:
            late = f"No batch of it came within {seconds:g} s; the request stands."
            sys.stdout.write(f"{name}: {state['status']} {late}\n")
            return 3
        time.sleep(_ASK_S)


def _refused(reason: str) -> int:
    sys.stderr.write(f"kernel-monitor: {reason}\n")
    return 1


def _chosen(loaders: Sequence[_Loader], remarks: Sequence[str], name: str | None) -> _Loader:
    """Return the loader to switch. MonitorError: there is none, or there are several."""
    switchable = [loader for loader in loaders if loader.state["backends"]]
    if not switchable:
        raise MonitorError(" ".join(remarks) or _NOTHING)
    found = [loader for loader in switchable if name is None or loader.is_called(name)]
    # The loader of the process that started a job's other ranks stands for theirs: a switch of it holds for all.
    found = [loader for loader in found if not loader.state.get("beside")] or found
    if len(found) == 1:
        return found[0]
    several = "Several loaders run: say which by --loader or --session."
    problem = several if found else f"No loader is called {name!r}."
    raise MonitorError(f"{problem}\n{_table(found or switchable, [])}")


def _table(loaders: Iterable[_Loader], remarks: Sequence[str]) -> str:
    rows = [(str(one.pid), one.title, one.name, one.state["backend"], _progress(one.state)) for one in loaders]
    if not rows:
        return "\n".join(remarks) or _NOTHING
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    padded = [map(str.ljust, row, widths) for row in (_HEADINGS, *rows)]
    return "\n".join([*("  ".join(cells).rstrip() for cells in padded), *remarks])


def _progress(state: dict[str, Any]) -> str:
    whole = "" if state["batches"] is None else f" of {state['batches']:,}"
    place = f"epoch {state['epoch'] + 1}, batch {state['batch']:,}{whole}"
    untouched = state["status"].partition(",")[0] in (state["backend"], "watched")
    return place if untouched else f"{place}; {state['status']}"


def _named(session: str | None) -> list[tuple[str, Join]]:
    """Return this user's sessions on this machine, by folder, and the session whose folder is given, if one is."""
    found = dict(session_files.sessions())
    if session is not None and session.isdecimal():  # do not wait for the answers of the others
        found = {folder: join for folder, join in found.items() if join.pid == int(session)}
    for folder in (os.environ.get(VARIABLE), session):
        if folder is not None and Path(folder, session_files.FILE).is_file():
            found.setdefault(str(own_files.expanded(folder)), session_files.read(folder))
    return list(found.items())


class _Sessions:
    """Connections to the servers of some sessions, each over its Unix socket and with its keys."""

    def __init__(self, joins: Sequence[tuple[str, Join]]) -> None:
        try:
            import zmq
        except ImportError as error:
            raise JoinError(f"Sessions cannot be reached: pyzmq is missing ({error}); pip install pyzmq.") from None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._joins = dict(joins)
        self._numbers = itertools.count(1)
        self._sockets = {folder: self._connected(join) for folder, join in joins}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._context.destroy(linger=0)

    def loaders(self, session: str | None) -> tuple[list[_Loader], list[str]]:
        """Return the loaders of the sessions, or of those called `session`, and a sentence on each without one."""
        answers = self._ask(list(self._sockets))
        found: list[_Loader] = []
        remarks: list[str] = []
        for folder, join in self._joins.items():
            answer = answers.get(folder)
            title = "" if answer is None else answer["title"]
            if session is not None and session not in (str(join.pid), title, folder, *title.split()):
                continue
            if answer is None:
                remarks.append(f"The process {join.pid} does not answer.")
            elif not answer["loaders"]:
                remarks.append(f"{title} (process {join.pid}) has no loader yet: none of its loops has begun.")
            else:
                found += [_Loader(folder, join.pid, title, state) for state in answer["loaders"]]
        if session is not None and not found and not remarks:
            remarks.append(f"No process here is called {session!r}; kernel-monitor switch lists the processes.")
        return found, remarks

    def switch(self, loader: _Loader, engine: str, *, confirmed: bool) -> _Loader:
        """Ask for a switch. MonitorError: it is refused."""
        asked = (engine, loader.state["id"], confirmed)
        answer = self._ask([loader.folder], *asked).get(loader.folder)
        if answer is None:
            raise MonitorError(f"The process {loader.pid} does not answer.")
        if "refused" in answer:
            raise MonitorError(answer["refused"].replace("by confirmed=True", "by --yes"))
        return loader

    def state(self, loader: _Loader) -> dict[str, Any] | None:
        """Return the loader's state, the last known one while its process does not answer; None if it has ended."""
        answer = self._ask([loader.folder]).get(loader.folder)
        if answer is None and is_alive(loader.pid, self._joins[loader.folder].start):
            return {**loader.state, "wanted": "", "status": "no answer yet."}
        states = [] if answer is None else answer["loaders"]
        return next((state for state in states if state["id"] == loader.state["id"]), None)

    def _connected(self, join: Join) -> zmq.Socket[bytes]:
        import zmq

        socket = self._context.socket(zmq.DEALER)
        socket.curve_serverkey = join.server.encode()
        socket.curve_publickey = join.public.encode()
        socket.curve_secretkey = join.secret.encode()
        socket.connect(next(address for address in join.addresses if address.startswith("ipc:")))
        return socket

    def _ask(
        self, folders: Sequence[str], engine: str | None = None, loader: str | None = None, confirmed: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Send a request to some sessions; return the answers that come within `_ANSWER_S`, by session folder."""
        import zmq

        number = next(self._numbers)
        message = terminal_requests.request(engine, loader, confirmed=confirmed, number=number)
        waiting = {self._sockets[folder]: folder for folder in folders}
        poller = zmq.Poller()
        for socket in waiting:
            socket.send(message)
            poller.register(socket, zmq.POLLIN)
        answers: dict[str, dict[str, Any]] = {}
        until = time.monotonic() + _ANSWER_S
        while waiting and (left := until - time.monotonic()) > 0:
            for socket, _ in poller.poll(int(1000 * left) + 1):
                answer = json.loads(socket.recv())
                if answer["number"] == number:  # else a late answer to an earlier request
                    answers[waiting.pop(socket)] = answer
                    poller.unregister(socket)
        return answers
