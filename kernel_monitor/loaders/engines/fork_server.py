"""A fork server: a copy of this process, made before DALI starts threads in it, from which workers are forked later.

A fork copies one thread only: locks that threads of DALI hold at that moment would stay locked in the copy. So the
engines fork nothing once DALI runs in the process. The server is forked just before, by the thread of the training
loop, as torch forks workers. It has one thread and waits. A worker forked from it inherits what was there at that time:
the script without running it again, and the locks, open files and shared memory of the data sets, which cannot be
pickled and are named by their number instead. All else is sent as it is when the worker starts.

The server ends with this process. It uses memory for pages that this process writes to afterwards.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import socket
import stat
import threading
import warnings
import weakref
from collections.abc import Iterable
from multiprocessing import context, popen_forkserver, process, reduction, resource_tracker, util
from multiprocessing.connection import wait  # select() takes no descriptor above 1,023
from multiprocessing.forkserver import read_signed, write_signed
from typing import Any, ClassVar

from ...errors import MonitorError
from ...os_process import FORK_SERVER, writes_to_pipe
from ...own_files import working_folder
from ..data.worker_settings import Inherited

_MOST_FDS = 64  # descriptors that one worker is given; a DataLoader's need about ten
PATIENCE_S = 30.0  # time for the server to fork a worker; after that the loop continues without it
POLL_S = 1.0  # period at which the server checks that its parent lives, where the kernel sends no signal

_server: _ForkServer | None = None
_lock = threading.Lock()
_received_fds: list[int] = []  # in a worker: the descriptors that came with its process object
_inherited: dict[int, Any] = {}  # in the server and its workers: objects that cannot be pickled, by number


class NoWorkers(MonitorError):
    """No worker can be forked from the server: it has ended, or the data set cannot be sent to it."""

    @classmethod
    def ended(cls) -> NoWorkers:
        return cls("the process from which workers are forked has ended")


class _ForkServer:
    """This process's half: makes the server and asks it for workers.

    Args:
        inherited: objects that cannot be pickled and that workers are to have as this process has them.

    Raises:
        OSError: this process cannot be forked.
    """

    def __init__(self, inherited: Iterable[Any] = ()) -> None:
        self._owner = os.getpid()
        self._requests = threading.Lock()  # one request is written at a time
        self._numbers: dict[int, tuple[int, Any]] = {}  # by id: the number, and how to get the object
        values: dict[int, Any] = {}
        for number, value in enumerate(inherited):
            values[number] = value
            self._numbers[id(value)] = number, _reference(value)
        self._socket, theirs = socket.socketpair()
        on_main_thread = threading.current_thread() is threading.main_thread()
        util._flush_std_streams()  # type: ignore[attr-defined]  # else the copy would write the buffered text again
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _serve(theirs, values, self._owner, ends_with_thread=on_main_thread)
        theirs.close()

    def number(self, value: Any) -> int | None:
        """Return the number of an object that existed when the server was made, for workers; None for other objects."""
        found = self._numbers.get(id(value))
        return found[0] if found is not None and found[1]() is value else None

    @property
    def runs(self) -> bool:
        """Whether this process can ask the server for workers."""
        if self._owner != os.getpid():
            return False
        try:
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:  # it has ended, and other code has collected its exit status
            return False

    def fork(self, data: bytes, fds: list[int]) -> tuple[int, int]:
        """Fork a worker that loads `data`, a process object; return its process id and its status pipe.

        Raises:
            NoWorkers: the server has ended.
        """
        data_r, data_w = os.pipe()
        status_r, status_w = os.pipe()
        left = {data_r, data_w, status_r, status_w}  # after an interrupt, too, so that the worker gets EOF
        try:
            try:
                with self._requests:
                    socket.send_fds(self._socket, [b"w"], [data_r, status_w, _tracker(), *fds])
            except OSError as error:
                raise NoWorkers.ended() from error
            for fd in (data_r, status_w):
                left.discard(fd)
                os.close(fd)
            try:
                if not wait([status_r], PATIENCE_S):
                    raise TimeoutError
                pid = read_signed(status_r)
                left.discard(data_w)
                with os.fdopen(data_w, "wb") as file:
                    file.write(data)
            except (OSError, EOFError) as error:  # TimeoutError is an OSError
                why = "a worker could not be forked, or ended before it had been sent the data set"
                raise NoWorkers(why) from error
            left.discard(status_r)
        finally:
            for fd in left:
                os.close(fd)
        return pid, status_r

    def close(self) -> None:
        """End the server; workers that were forked from it end with their loaders."""
        if self._owner != os.getpid():
            return
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def server() -> _ForkServer | None:
    """Return the server of this process; None if none was made, or it has ended."""
    found = _server
    return found if found is not None and found.runs else None


def start(inherited: Iterable[Any]) -> None:
    """Make the server of this process. Call it before DALI runs, on the thread of the training loop."""
    global _server  # noqa: PLW0603 - one for each process
    with _lock:
        if _server is None or not _server.runs:
            _server = _ForkServer(inherited)
            atexit.register(_server.close)


def number(value: Any) -> int | None:
    """Return the number of an object that this process's server has inherited; None for any other."""
    return None if _server is None else _server.number(value)


def numbered(number: int) -> Any:
    """Return, in a worker, the object with a number that the server has inherited."""
    return _inherited[number]


class _DupFd:
    """A descriptor that goes to the worker with its process object."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        return _received_fds[self._place]


class _Popen(popen_forkserver.Popen):
    """The process object's handle, as multiprocessing's own for its fork server: same status pipe, same `poll`."""

    DupFd: ClassVar[Any] = _DupFd
    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        found = server()
        if found is None:
            raise NoWorkers.ended()
        file = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(_surroundings(process_obj), file)
            reduction.dump(process_obj, file)
        finally:
            context.set_spawning_popen(None)
        self.pid, self.sentinel = found.fork(file.getvalue(), self._fds)
        self.finalizer = util.Finalize(self, os.close, (self.sentinel,))


def _tracker() -> int:
    """Return the descriptor of the pipe to multiprocessing's resource tracker, which removes leaked named locks."""
    fd: Any = resource_tracker.getfd()
    return int(fd)


class WorkerProcess(context.ForkServerProcess):
    """A process that is forked from the fork server."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - multiprocessing's name
        return _Popen(process_obj)


class WorkerContext(context.ForkServerContext):
    """A multiprocessing context whose processes are forked from the fork server."""

    Process = WorkerProcess


def _surroundings(process_obj: Any) -> dict[str, Any]:
    """Return the settings of this process that a forked worker would inherit, and that may have changed since."""
    return {
        "name": process_obj._name,
        "authkey": bytes(process.current_process().authkey),
        "environ": dict(os.environ),
        "folder": working_folder(),
        "collects": gc.isenabled(),
        "filters": [entry for entry in warnings.filters if entry[2].__module__ != "__main__"],
        "settings": Inherited.now(),
    }


def _reference(value: Any) -> Any:
    """Return a weak reference to an object if possible: a handle that the user drops must close."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


# In the server


def _serve(requests: socket.socket, values: dict[int, Any], parent: int, *, ends_with_thread: bool) -> None:
    """Fork a worker for each request until the parent has gone. Never returns."""
    status = 1
    try:
        gc.disable()  # no inherited object may be finalized here
        _introduce(ends_with_thread=ends_with_thread)
        _inherited.update(values)
        handlers = _quiet_signals()
        _leave_pipes([requests.fileno(), *_descriptors(values.values())])
        _accept(requests, parent, handlers)
        status = 0
    finally:
        os._exit(status)  # no handler of the user's, and no traceback in the user's cell


def _accept(requests: socket.socket, parent: int, handlers: dict[int, Any]) -> None:
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_r, False)
    os.set_blocking(wake_w, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}  # of each living worker, the pipe for its exit status
    while os.getppid() == parent:
        ready = wait([requests.fileno(), wake_r], POLL_S)
        if wake_r in ready:
            os.read(wake_r, 4096)
            _reap(statuses)
        if requests.fileno() not in ready:
            continue
        message, fds, _, _ = socket.recv_fds(requests, 1, _MOST_FDS)
        if not message:
            return
        data, status, tracker, *rest = fds
        own_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for fd in (wake_r, wake_w, requests.detach(), status, *statuses.values()):
                os.close(fd)
            _work(data, tracker, rest, handlers, own_pid)
        for fd in (data, tracker, *rest):
            os.close(fd)
        statuses[pid] = status
        _tell(status, pid)


def _reap(statuses: dict[int, int]) -> None:
    """Report workers that have ended."""
    while statuses:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        fd = statuses.pop(pid, None)
        if fd is not None:
            _tell(fd, os.waitstatus_to_exitcode(ended))
            os.close(fd)


def _tell(fd: int, value: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent has closed its end
        write_signed(fd, value)


def _work(data: int, tracker: int, fds: list[int], handlers: dict[int, Any], server_pid: int) -> None:
    """In the worker: load the process object and run it. Never returns."""
    code = 1
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _received_fds[:] = fds
        resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
        sentinel = os.dup(data)
        current: Any = process.current_process()
        with os.fdopen(data, "rb") as file:
            current._inheriting = True
            try:
                try:
                    around = reduction.pickle.load(file)  # type: ignore[attr-defined]
                except EOFError:  # the parent has given up this worker
                    os._exit(code)
                current.name, current.authkey = around["name"], around["authkey"]
                os.environ.clear()
                os.environ.update(around["environ"])
                if around["folder"]:
                    os.chdir(around["folder"])
                warnings.resetwarnings()
                warnings.filters[:] = around["filters"]  # type: ignore[index]
                around["settings"].restore()
                made = reduction.pickle.load(file)  # type: ignore[attr-defined]
            finally:
                del current._inheriting
        if around["collects"]:
            gc.enable()
        # Torch's worker ends when its parent changes; where that ended before it looked first, it would live for ever.
        _end_with_parent()
        if os.getppid() != server_pid:
            os._exit(code)
        code = made._bootstrap(parent_sentinel=sentinel)
    except Exception:  # noqa: BLE001 - whatever the user's own objects raise when they are loaded
        import traceback

        traceback.print_exc()
        util._flush_std_streams()  # type: ignore[attr-defined]
    finally:
        os._exit(code)


def _end_with_parent() -> None:
    """Let Linux kill this process when the thread that forked it ends; elsewhere do nothing."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _introduce(*, ends_with_thread: bool) -> None:
    """Give the process a name of its own, and let Linux end it with its parent; elsewhere it looks each `POLL_S`."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        prctl(15, FORK_SERVER.encode())  # PR_SET_NAME
        if ends_with_thread:  # the signal comes when the forking thread ends: of no use for another one than the main
            _end_with_parent()


def _quiet_signals() -> dict[int, Any]:
    """Ignore the signals that the user's handlers are for, which are restored in workers; SIGTERM ends the server."""
    kept: dict[int, Any] = {}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler):
            kept[number] = handler
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    return kept


def _descriptors(values: Iterable[Any]) -> list[int]:
    """Return the descriptors of objects and of their attributes (those of a queue are its pipe's)."""
    found = []
    for value in values:
        for holder in (value, *getattr(value, "__dict__", {}).values()):
            with contextlib.suppress(Exception):  # whatever the user's objects raise, or a closed file
                fd = holder.fileno()
                found += [fd] if type(fd) is int else []
    return found


def _leave_pipes(kept: list[int]) -> None:
    """Close our copies of pipes' writing ends, so that readers get EOF, and of listening sockets.

    The user's objects keep their descriptors' numbers, which then lead nowhere: a closed number would be used again.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():  # noqa: PTH112, PTH208
        fd = int(name)
        if fd <= 2 or fd in kept or fd == nowhere:
            continue
        try:
            if writes_to_pipe(fd) or (stat.S_ISSOCK(os.fstat(fd).st_mode) and _listens(fd)):
                os.dup2(nowhere, fd, inheritable=False)
        except OSError:  # the descriptor of the listing itself
            continue
    os.close(nowhere)


def _listens(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as found:
        return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
