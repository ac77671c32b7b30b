"""The kernel's half: one thread that hears the ranks of this session and nobody else."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import rank_client, session_files
from .descendants import Descendants
from .hosts import Hosts
from .identity import host_key
from .jobs import Jobs
from .rank import Rank
from .rank_frames import MOST_BYTES, unpacked
from .session_files import Join, JoinError, SessionFiles

if TYPE_CHECKING:
    import zmq
    from zmq.auth import Authenticator

WAKE_S = 0.25  # between two looks at whether to end
LOOK_S = 1.0  # between two looks at who has ended
FIND_S = 2.0  # between two looks at the kernel's descendants
QUEUE = 1000  # frames that wait for this thread; a rank drops what does not fit
STARTED_S = 3.0
log = logging.getLogger(__name__)


class RankServer:
    """Offers this process's session to its ranks, from its making until `stop`.

    Attributes:
        folder: with the keys and the address, what KERNEL_MONITOR_JOIN names.
        hosts: the other hosts of its ranks.
        refused: messages of ranks that were none of ours: another version, or damaged.
    """

    def __init__(self, address: str | None = None, gpu_here: Callable[[str], int | None] = lambda _: None) -> None:
        """`address`: of TCP, `tcp://HOST:PORT` (port 0: any), to listen on too. Raises JoinError: it cannot be.

        `gpu_here`: as of `Hosts`; called on the server's thread, once for each GPU.
        """
        try:
            import zmq
        except ImportError as error:
            raise JoinError(f"Ranks cannot join: pyzmq is missing ({error}); pip install pyzmq.") from None
        if not (zmq.has("curve") and zmq.has("ipc")):
            raise JoinError("Ranks cannot join: this pyzmq has no CURVE or no ipc; install pyzmq from PyPI.")
        session_files.remove_left()
        self.refused = 0
        self.jobs = Jobs()
        self.hosts = Hosts(gpu_here)
        self._descendants = Descendants()
        self._ending = threading.Event()
        self._lock = threading.Lock()  # of `jobs`; held for microseconds
        self._files = SessionFiles()
        self.folder = str(self._files.folder)
        try:
            self._context = zmq.Context()
            self._bind(self._context, address)
        except Exception as error:
            self._context.destroy(linger=0)
            self._files.remove()
            if isinstance(error, zmq.ZMQError):
                raise JoinError(f"Ranks cannot join: {address or self._files.socket} ({error}).") from None
            raise
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-ranks", daemon=True)
        self._thread.start()
        rank_client.offer(self.folder)

    def ranks(self) -> list[Rank]:
        with self._lock:
            return self.jobs.ranks()

    def values(self) -> dict[str, float]:
        """The newest values by the series' names."""
        with self._lock:
            return self.jobs.values()

    def accuracy(self) -> tuple[float | None, tuple[int, int]]:
        """`Jobs.bound` and `Jobs.lost`."""
        with self._lock:
            return self.jobs.bound(), self.jobs.lost()

    def stop(self) -> None:
        """Hear nobody any more; the folder and its sockets are gone afterwards."""
        rank_client.offer(None)
        self._ending.set()
        self._thread.join(5.0)
        self._files.remove()

    def _bind(self, context: zmq.Context[zmq.Socket[bytes]], address: str | None) -> None:
        import zmq
        from zmq.auth import Authenticator

        public, secret = zmq.curve_keypair()
        theirs, their_secret = zmq.curve_keypair()
        self._auth = Authenticator(context, log=log)
        self._auth.start()
        self._auth.configure_curve_callback("*", credentials_provider=_Only(theirs))
        socket = self._socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        socket.curve_server = True
        socket.curve_secretkey = secret
        socket.curve_publickey = public
        addresses = []
        for wanted in (self._files.socket, *([address] if address else [])):
            socket.bind(wanted)
            addresses.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        pid, start = session_files.own_process()
        self.addresses = tuple(addresses)
        self._files.write(
            Join(self.addresses, public.decode(), theirs.decode(), their_secret.decode(), host_key(), pid, start)
        )

    def _run(self) -> None:
        import zmq

        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._auth.zap_socket, zmq.POLLIN)
        looked = found = 0.0
        try:
            while not self._ending.is_set():
                ready = dict(poller.poll(int(1000 * WAKE_S)))
                if self._auth.zap_socket in ready:
                    _answer(self._auth)
                if self._socket in ready:
                    self._receive(self._socket)
                now = time.monotonic()
                if now - looked >= LOOK_S:
                    looked = now
                    with self._lock:
                        self.jobs.look()
                        alive = self.jobs.hosts()
                    self.hosts.look(alive)
                if now - found >= FIND_S:
                    found = now
                    self._find()
        except Exception:  # the sampling and the training go on without it
            log.exception("the ranks of this session are no longer heard")
        finally:
            self._auth.stop()
            self._context.destroy(linger=0)

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        """Take the frames that are there, and answer each with the times of its arrival."""
        import zmq

        for _ in range(QUEUE):
            try:
                who, *parts = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            received = time.monotonic()
            try:
                frame = unpacked(b"".join(parts))
            except ValueError as error:
                self.refused += 1
                log.debug("a message of a rank was refused: %s", error)
                continue
            sample, gpu = self.hosts.heard(frame), self.hosts.gpu(frame)
            with self._lock:
                self.jobs.heard(frame, gpu)
            answer = {"sent": frame.sent, "received": received, "answered": time.monotonic(), "sample": sample}
            try:
                socket.send_multipart([who, json.dumps(answer).encode()], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                log.debug("a rank takes no answer: %s", error)  # it has gone, or does not read

    def _find(self) -> None:
        with self._lock:
            joined = self.jobs.pids()
        for identity, cpu in self._descendants.look(joined):
            with self._lock:
                self.jobs.found(identity, cpu)


class _Only:
    """Admits one public key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, _domain: str, key: bytes) -> bool:
        return key == self._key


def _answer(auth: Authenticator) -> Any:
    """Answer a question of ZeroMQ's whether to admit a client (RFC 27/ZAP)."""
    message = auth.zap_socket.recv_multipart()
    return asyncio.run(auth.handle_zap_message(message))
