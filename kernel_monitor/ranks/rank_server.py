"""The kernel's half: one thread that hears the ranks of this session and nobody else."""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import rank_client, session_files
from .descendants import Descendants
from .hosts import Hosts
from .identity import host_key
from .job_loaders import JobEpoch, JobLoaders, Key
from .jobs import Jobs
from .rank import Rank
from .rank_frames import MOST_BYTES, Row, unpacked
from .session_files import Join, JoinError, Keys, SessionFiles

if TYPE_CHECKING:
    import zmq
    from zmq.auth import Authenticator

    from ..protocol.states import LoaderState

WAKE_S = 0.25  # between two looks at whether to end
LOOK_S = 1.0  # between two looks at who has ended
FIND_S = 2.0  # between two looks at the kernel's descendants
QUEUE = 1000  # frames that wait for this thread; a rank drops what does not fit
STARTED_S = 3.0
log = logging.getLogger(__name__)


class RankServer:
    """Offers this process's session to its ranks, from its making until `stop`.

    Attributes:
        files: the folder with the keys and the addresses, what KERNEL_MONITOR_JOIN names, which is `folder`.
        hosts: the other hosts of its ranks.
        refused: messages of ranks that were none of ours: another version, or damaged.
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
        if not (zmq.has("curve") and zmq.has("ipc")):
            raise JoinError("Ranks cannot join: this pyzmq has no CURVE or no ipc; install pyzmq from PyPI.")
        session_files.remove_left()
        self.refused = 0
        self.jobs = Jobs()
        self.loaders = JobLoaders()
        self._who: dict[str, bytes] = {}  # ZeroMQ's names of the ranks, by their ids
        self._wake, self._woken = socket.socketpair()
        self.hosts = Hosts(gpu_here)
        self._descendants = Descendants()
        self._ending = threading.Event()
        self._lock = threading.Lock()  # of `jobs` and `loaders`; held for microseconds
        self.files = SessionFiles() if files is None else files
        self.folder = str(self.files.folder)
        try:
            self._context = zmq.Context()
            self._bind(self._context, address)
        except Exception as error:
            self._context.destroy(linger=0)
            self._wake.close()
            self._woken.close()
            self.files.remove()
            if isinstance(error, zmq.ZMQError):
                raise JoinError(f"Ranks cannot join: {address or self.files.socket} ({error}).") from None
            raise
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-ranks", daemon=True)
        self._thread.start()
        rank_client.offer(self.folder)

    @property
    def remote_address(self) -> str | None:
        """Of TCP, as another machine reaches it; None: it does not listen for other machines."""
        bound = next((address for address in self.addresses if address.startswith("tcp:")), None)
        return None if bound is None else bound.replace("//0.0.0.0:", f"//{platform.node()}:")

    def ranks(self) -> list[Rank]:
        with self._lock:
            return self.jobs.ranks()

    def values(self) -> dict[str, float]:
        """The newest values by the series' names."""
        with self._lock:
            return self.jobs.values()

    def loader_states(self) -> list[LoaderState]:
        """Of the jobs' switchable loaders."""
        with self._lock:
            return self.loaders.states(self.jobs.ranks())

    def outcomes(self) -> tuple[list[tuple[Key, str]], list[JobEpoch]]:
        """The switches that all ranks have answered, and the epochs that all have finished, since the last call."""
        with self._lock:
            ranks = self.jobs.ranks()
            return self.loaders.settled(ranks), self.loaders.finished(ranks)

    def switch(self, loader: str, backend: str) -> None:
        """Have all ranks switch a job's loader (its id). Raises as `JobLoaders.switch`."""
        with self._lock:
            self.loaders.switch(loader, backend, self.jobs.ranks())
        self._wake.send(b"\0")

    def set(self, loader: str, knobs: dict[str, int]) -> None:
        """Have all ranks turn knobs of a job's loader (its id)."""
        with self._lock:
            self.loaders.set(loader, knobs, self.jobs.ranks())
        self._wake.send(b"\0")

    def recent(self) -> dict[Rank, list[Row]]:
        """`Jobs.recent`."""
        with self._lock:
            return self.jobs.recent()

    def leads(self) -> dict[int, int]:
        """`Jobs.leads`."""
        with self._lock:
            return self.jobs.leads()

    def has_steps(self, pid: int) -> bool:
        """`Jobs.has_steps`."""
        with self._lock:
            return self.jobs.has_steps(pid)

    def accuracy(self) -> tuple[float | None, tuple[int, int]]:
        """`Jobs.bound` and `Jobs.lost`."""
        with self._lock:
            return self.jobs.bound(), self.jobs.lost()

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

    def _bind(self, context: zmq.Context[zmq.Socket[bytes]], address: str | None) -> None:
        import zmq
        from zmq.auth import Authenticator

        files = self.files
        keys = files.keys = files.keys or Keys(*zmq.curve_keypair(), *zmq.curve_keypair())
        self._auth = Authenticator(context, log=log)
        self._auth.start()
        self._auth.configure_curve_callback("*", credentials_provider=_Only(keys.client))
        router = self._socket = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.RCVHWM, QUEUE)
        router.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        router.curve_server = True
        router.curve_secretkey = keys.server_secret
        router.curve_publickey = keys.server
        addresses = []
        for wanted in (files.socket, *([address] if address else [])):
            try:
                router.bind(files.bound.get(wanted, wanted))
            except zmq.ZMQError:
                if files.bound.pop(wanted, wanted) == wanted:
                    raise
                router.bind(wanted)  # another program has the port that it had: any other will do
            addresses.append(router.getsockopt_string(zmq.LAST_ENDPOINT))
            files.bound[wanted] = addresses[-1]
        pid, start = session_files.own_process()
        self.addresses = tuple(addresses)
        server, client, secret = (key.decode() for key in (keys.server, keys.client, keys.client_secret))
        files.write(Join(self.addresses, server, client, secret, host_key(), pid, start))

    def _run(self) -> None:
        import zmq

        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._auth.zap_socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        looked = found = 0.0
        try:
            while not self._ending.is_set():
                ready = dict(poller.poll(int(1000 * WAKE_S)))
                if self._auth.zap_socket in ready:
                    _answer(self._auth)
                if self._socket in ready:
                    self._receive(self._socket)
                if self._woken.fileno() in ready:
                    self._woken.recv(4096)
                    self._command(self._socket)
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
            self._woken.close()

    def _receive(self, router: zmq.Socket[bytes]) -> None:
        """Take the frames that are there, and answer each with the times of its arrival."""
        import zmq

        for _ in range(QUEUE):
            try:
                who, *parts = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            received = time.monotonic()
            try:
                frame = unpacked(b"".join(parts))
            except ValueError as error:
                self.refused += 1
                log.debug("a message of a rank was refused: %s", error)
                continue
            told: dict[str, Any] = {"had": {}, "commands": []}
            sample, gpu = self.hosts.heard(frame), self.hosts.gpu(frame)
            with self._lock:
                rank = self.jobs.heard(frame, gpu)
                if rank is not None:
                    self._who[rank.id] = who
                    told = self.loaders.heard(rank, frame)
            times = {"sent": frame.sent, "received": received, "answered": time.monotonic()}
            _send(router, who, {**times, "sample": sample, **told})

    def _command(self, router: zmq.Socket[bytes]) -> None:
        """Send the ranks what they have not answered; it is repeated with the answers to their frames."""
        with self._lock:
            pending = {who: self.loaders.pending(rank) for rank, who in self._who.items()}
        for who, commands in pending.items():
            if commands:
                _send(router, who, {"commands": commands})

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


def _send(router: zmq.Socket[bytes], who: bytes, message: dict[str, Any]) -> None:
    import zmq

    try:
        router.send_multipart([who, json.dumps(message).encode()], zmq.NOBLOCK)
    except zmq.ZMQError as error:
        log.debug("a rank takes no answer: %s", error)  # it has gone, or does not read


def _answer(auth: Authenticator) -> Any:
    """Answer a question of ZeroMQ's whether to admit a client (RFC 27/ZAP)."""
    message = auth.zap_socket.recv_multipart()
    return asyncio.run(auth.handle_zap_message(message))
