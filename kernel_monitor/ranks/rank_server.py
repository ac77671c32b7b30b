"""The kernel's half: one thread that hears the ranks of this session and nobody else."""

from __future__ import annotations

import json
import logging
import platform
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..rank import Rank, Row
from ..text import line, log_failed
from . import rank_client, session_files, terminal_requests
from .gateway_client import GatewayClient
from .hosts import Hosts
from .identity import host_key
from .job_loaders import JobEpoch, JobLoaders, Key
from .jobs import Descendants, Jobs
from .rank_frames import LARGEST, unpacked, unwrapped, wrapped
from .session_files import Join, JoinError, Keys, SessionFiles

if TYPE_CHECKING:
    import zmq

    from ..protocol.states import LoaderState
    from .tcp_gateway import Listener

_WAKE_S = 0.25  # between two checks of whether to end
REFRESH_S = 1.0  # between two checks of who has ended
_FIND_S = 2.0  # between two searches of the kernel's descendants
QUEUE = 200  # messages of a connection that wait for this thread; a rank drops what does not fit
SHARE = 0.25  # of a core that this thread takes at most from the training, whatever ranks send
_BATCH_S = 0.02  # that it works at once
_RESTART_S = 0.5  # after a failure
LETTERS = 200  # of the reason of a failure
_Route = tuple[bytes, bytes | None]  # ZeroMQ's name of a connection, and of the rank's behind a gateway
log = logging.getLogger(__name__)


class RankServer:
    """Offers this process's session to its ranks, from its making until `stop`.

    Attributes:
        files: the folder with the keys and the addresses, what KERNEL_MONITOR_JOIN names, which is `folder`.
        hosts: the other hosts of its ranks.
        refused: messages that were none of a rank of ours: another version, damaged, or one rank too many.
        restarts: failures after which the thread went on, or was started again.
    """

    def __init__(
        self,
        address: str | None = None,
        files: SessionFiles | None = None,
        gpu_here: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """Listen; a JoinError where that cannot be.

        Args:
            address: of TCP, `tcp://HOST:PORT` (port 0: any), to listen on beside the folder's Unix socket.
            files: the folder of an earlier server that kept it: the ranks that joined that one come back.
            gpu_here: as of `Hosts`; called on the server's thread, once for each GPU.
        """
        try:
            import zmq
        except ImportError as error:
            raise JoinError(f"Ranks cannot join: pyzmq is missing ({error}); pip install pyzmq.") from None
        if not hasattr(socket, "AF_UNIX"):
            raise JoinError("Ranks cannot join: this Python has no Unix sockets; run ranks on Linux or macOS.")
        if not (zmq.has("curve") and zmq.has("ipc")):
            raise JoinError("Ranks cannot join: this pyzmq has no CURVE or no ipc; install pyzmq from PyPI.")
        session_files.remove_left()
        self.files = SessionFiles() if files is None else files  # before sockets are open: it may raise
        self.refused = self.restarts = 0
        self._refusal = self._failure = ""  # the last ones
        self.jobs = Jobs()
        self.loaders = JobLoaders()
        self._who: dict[str, _Route] = {}  # the ranks' connections, by their ids
        self._wake, self._woken = socket.socketpair()
        self.hosts = Hosts(gpu_here)
        self._descendants = Descendants()
        self._ending = threading.Event()
        self._lock = threading.Lock()  # of `jobs` and `loaders`; held for microseconds
        self._refreshed = self._found = 0.0
        self._gateway: GatewayClient | None = None
        self.folder = str(self.files.folder)
        self.files.keys = self.files.keys or Keys(*zmq.curve_keypair(), *zmq.curve_keypair())
        self._listener: Listener | None = None
        try:
            self._listener = self._listen()
            if address:
                self._gateway = GatewayClient(address, self.files.socket, self.files)
            self._write()
        except Exception as error:
            self._close()
            self._wake.close()
            self.files.remove()
            if isinstance(error, zmq.ZMQError):
                raise JoinError(f"Ranks cannot join: {self.files.socket} ({error}).") from None
            raise
        self._thread = self._started()
        rank_client.offer(self.folder)

    @property
    def remote_address(self) -> str | None:
        """The TCP address at which other machines reach it; None: it does not listen for them."""
        gateway = self._gateway
        return None if gateway is None else gateway.address.replace("//0.0.0.0:", f"//{platform.node()}:")

    def ranks(self) -> list[Rank]:
        with self._lock:
            return self.jobs.ranks()

    def values(self) -> dict[str, float]:
        """Return the newest values by the series' names."""
        with self._lock:
            return self.jobs.values()

    def loader_states(self) -> list[LoaderState]:
        """Return the states of the jobs' switchable loaders."""
        with self._lock:
            return self.loaders.states(self.jobs.ranks())

    def outcomes(self) -> tuple[list[tuple[Key, str]], list[JobEpoch]]:
        """Return the switches that all ranks have answered, and the epochs that all have finished, since the last
        call.
        """
        with self._lock:
            ranks = self.jobs.ranks()
            return self.loaders.settled(ranks), self.loaders.finished(ranks)

    def switch(self, loader: str, backend: str) -> None:
        """Have all ranks switch a job's loader (its id). Raises as `JobLoaders.switch`."""
        with self._lock:
            self.loaders.switch(loader, backend, self.jobs.ranks())
        self._wake.send(b"\0")

    def lead(self, name: str, backend: str) -> None:
        """Have the other ranks of this process's own job follow a switch of its loader, now and when they join."""
        with self._lock:
            self.loaders.lead(name, backend, self.jobs.ranks())
        self._wake.send(b"\0")

    def beside(self, loader: str) -> str | None:
        """Return what a job's loader (its id) is called in this process, if that is a rank of the job; else None."""
        with self._lock:
            return self.loaders.beside(loader)

    def set(self, loader: str, knobs: dict[str, int]) -> None:
        """Have all ranks set knobs of a job's loader (its id)."""
        with self._lock:
            self.loaders.set(loader, knobs, self.jobs.ranks())
        self._wake.send(b"\0")

    def recent(self) -> dict[Rank, list[Row]]:
        """Return `Jobs.recent`."""
        with self._lock:
            return self.jobs.recent()

    def has_steps(self, pid: int) -> bool:
        """Return `Jobs.has_steps`."""
        with self._lock:
            return self.jobs.has_steps(pid)

    def accuracy(self) -> tuple[float | None, tuple[int, int]]:
        """Return `Jobs.bound` and `Jobs.lost`."""
        with self._lock:
            return self.jobs.bound(), self.jobs.lost()

    def faults(self) -> list[str]:
        """Return sentences on what was refused, on failures, and on the gateway, for the status."""
        found = [] if self._gateway is None else self._gateway.words()
        if self.refused:
            found.append(f"{self.refused:,} messages to the ranks' server were refused, the last one: {self._refusal}")
        if self.restarts:
            times = f"{self.restarts} time{'s' * (self.restarts > 1)}"
            found.append(f"the thread that hears ranks failed {times} and went on, the last time: {self._failure}")
        return found

    def revive(self) -> None:
        """Start the thread again if it has ended."""
        if not (self._thread.is_alive() or self._ending.is_set()):
            self._failed("it ended")
            self._thread = self._started()

    def stop(self, *, keep: bool = False) -> None:
        """Hear nobody any more: nothing listens afterwards. The folder is removed too, unless it is to be kept."""
        rank_client.offer(None)
        self._ending.set()
        self._thread.join(5.0)
        self._wake.close()
        if keep:
            Path(self.files.socket.removeprefix("ipc://")).unlink(missing_ok=True)  # libzmq leaves the name
        else:
            self.files.remove()

    def forget_in_child(self) -> None:
        """Let a forked child keep no pipe of the gateway open."""
        if self._gateway is not None:
            self._gateway.forget_in_child()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="kernel-monitor-ranks", daemon=True)
        thread.start()
        return thread

    def _listen(self) -> Listener:
        from .tcp_gateway import Listener  # needs pyzmq, which `__init__` has checked

        if self.files.keys is None:
            raise JoinError("Ranks cannot join: there are no keys yet.")
        listener = Listener(self.files.keys, LARGEST, QUEUE)
        try:
            listener.bind(self.files.socket)
        except BaseException:
            listener.close()
            raise
        return listener

    def _write(self) -> None:
        keys, gateway = self.files.keys, self._gateway
        if keys is not None:
            pid, start = session_files.own_process()
            addresses = (self.files.socket, *([] if gateway is None else [gateway.address]))
            server, client, secret = (key.decode() for key in (keys.server, keys.client, keys.client_secret))
            self.files.write(Join(addresses, server, client, secret, host_key(), pid, start))

    def _close(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()
        if self._listener is not None:
            self._listener.close()
        self._woken.close()

    def _run(self) -> None:
        import zmq

        while not self._ending.is_set():
            try:
                self._serve()
            except Exception as error:  # noqa: BLE001 - whatever it is: the ranks are heard again, and the status says so
                if not self.restarts:
                    log_failed(log, "hearing the ranks failed, and goes on; this is logged once")
                self._failed(f"{type(error).__name__}: {error}")
                if isinstance(error, zmq.ZMQError) and self._listener is not None:
                    self._listener.close()
                    self._listener = None
                self._ending.wait(_RESTART_S)
        self._close()

    def _failed(self, reason: str) -> None:
        self.restarts += 1
        self._failure = line(reason, LETTERS)

    def _serve(self) -> None:
        """Wait for what comes next, and do it."""
        import zmq

        listener = self._listener = self._listener or self._listen()
        if listener.router.closed:  # which a poller does not notice
            raise zmq.ZMQError(zmq.ENOTSOCK)
        poller = zmq.Poller()
        for source in (listener.router, listener.admission, self._woken):
            poller.register(source, zmq.POLLIN)
        ready = dict(poller.poll(int(1000 * _WAKE_S)))
        began = time.thread_time()
        if listener.admission in ready:
            listener.admit()
        if listener.router in ready:
            self._receive(listener.router, began + _BATCH_S)
        if self._woken.fileno() in ready:
            self._woken.recv(4096)
            self._command(listener.router)
        now = time.monotonic()
        if now - self._refreshed >= REFRESH_S:
            self._refreshed = now
            self._refresh()
        if now - self._found >= _FIND_S:
            self._found = now
            self._find()
        self._ending.wait((time.thread_time() - began) * (1 / SHARE - 1))

    def _receive(self, router: zmq.Socket[bytes], until: float) -> None:
        """Take the messages that are there, at most to a time of this thread, and answer each."""
        import zmq

        while time.thread_time() < until:
            try:
                who, *parts = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._take(router, who, parts)
            except Exception as error:  # noqa: BLE001 - whatever a rank sends: the others are heard, and it is counted
                self._refuse(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")

    def _take(self, router: zmq.Socket[bytes], who: bytes, parts: list[bytes]) -> None:
        """Take a message, and answer it with the times of its arrival. A ValueError if it is no rank's."""
        received = time.monotonic()
        (message,) = parts if len(parts) == 1 else [b""]
        rank_at: bytes | None = None
        if self._gateway is not None and who == self._gateway.name:
            rank_at, message = unwrapped(message)
            if not rank_at:
                self._gateway.take(message)
                return
        elif terminal_requests.is_request(message):
            _send(router, (who, None), terminal_requests.answer(message))
            return
        frame = unpacked(message)
        frame = self.hosts.admitted(frame)
        sample, gpu = self.hosts.heard(frame), self.hosts.gpu(frame)
        with self._lock:
            rank = self.jobs.heard(frame, gpu)
            told = self.loaders.heard(rank, frame)
            self._who[rank.id] = who, rank_at
        times = {"sent": frame.sent, "received": received, "answered": time.monotonic()}
        _send(router, (who, rank_at), {**times, "sample": sample, **told})

    def _refuse(self, why: str) -> None:
        self.refused += 1
        self._refusal = line(why, LETTERS)
        log.debug("a message of a rank was refused: %s", why)

    def _command(self, router: zmq.Socket[bytes]) -> None:
        """Send the ranks what they have not answered; it is repeated with the answers to their frames."""
        with self._lock:
            pending = {route: self.loaders.pending(rank) for rank, route in self._who.items()}
        for route, commands in pending.items():
            if commands:
                _send(router, route, {"commands": commands})

    def _refresh(self) -> None:
        with self._lock:
            self.jobs.refresh()
            alive, ranks = self.jobs.hosts(), self.jobs.ranks()
            known = {rank.id for rank in ranks}
            self._who = {rank: route for rank, route in self._who.items() if rank in known}
            self.loaders.prune(ranks)
        self.hosts.refresh(alive)
        if self._gateway is not None:
            self._gateway.refresh()

    def _find(self) -> None:
        with self._lock:
            joined = self.jobs.pids()
        for identity, cpu in self._descendants.refresh(joined, helpers=1 + (self._gateway is not None)):
            with self._lock:
                self.jobs.found(identity, cpu)


def _send(router: zmq.Socket[bytes], to: _Route, message: dict[str, Any]) -> None:
    import zmq

    who, rank_at = to
    words = json.dumps(message).encode()
    try:
        router.send_multipart([who, words if rank_at is None else wrapped(rank_at, words)], zmq.NOBLOCK)
    except zmq.ZMQError as error:
        log.debug("a rank takes no answer: %s", error)  # it has gone, or does not read
