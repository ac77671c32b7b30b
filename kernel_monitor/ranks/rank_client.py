"""The rank's half: one thread that sends the steps of this process to the kernel whose session it joins.

Training is never at its mercy: sending never waits, what does not fit is dropped and counted, and every failure ends
the thread with a line in the log and nothing else.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from ..os_process import in_forked_children, is_alive
from ..rank import Row
from ..text import log_outside
from . import identity, session_files
from .identity import device_uuid
from .rank_frames import MOST_STEPS, Frame, Machine, packed
from .rank_loaders import RankLoaders
from .session_files import KEYS, VARIABLE, Join

if TYPE_CHECKING:
    import zmq

    from ..sample.node_sampler import NodeGpus, NodeSampler

log = logging.getLogger(__name__)

# ---- How far another machine's monotonic clock is from the kernel's, from messages there and back.

_KEPT_S = 60.0  # clocks drift: an older exchange says less than its bound promises


class ClockOffset:
    """Offsets seen by one side."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, float]] = deque()  # when (s), delay (s), offset (s)

    def add(self, asked: float, received: float, answered: float, got: float) -> None:
        """Add an exchange: `asked` and `got` are in s of our clock, `received` and `answered` of the other one."""
        delay = (got - asked) - (answered - received)
        if delay < 0 or got < asked:
            return
        while self._seen and got - self._seen[0][0] > _KEPT_S:
            self._seen.popleft()
        self._seen.append((got, delay, ((received - asked) + (answered - got)) / 2))

    @property
    def best(self) -> tuple[float, float] | None:
        """s to add to our time for the other's, and the most by which that is wrong (s); None before an exchange."""
        if not self._seen:
            return None
        _, delay, offset = min(self._seen, key=lambda seen: seen[1])
        return offset, delay / 2


# ---- The load of this rank's machine, read while the kernel wants it: one rank of each other host reads it.

READING_S = 0.9  # between two readings at least: with frames twice a second, one in each second


class HostSampler:
    """Reads the machine on the thread that calls `reading`; nothing is imported or opened before it is wanted."""

    def __init__(self) -> None:
        self.wanted = False  # whether the kernel has chosen this rank
        self._readers: tuple[NodeSampler, NodeGpus] | None = None
        self._last = 0.0
        self._failed = False

    def reading(self, now: float) -> Machine | None:
        """Return what was read since the last call.

        None where nothing is wanted, or due. `now`: s of the monotonic clock.
        """
        if not self.wanted:
            self._end()
            return None
        if self._failed or now - self._last < READING_S:
            return None
        try:
            if self._readers is None:
                self._readers = _readers()
            sampler, gpus = self._readers
            values = {name: round(max(0.0, value), 2) for name, value in (sampler.read() | gpus.read()).items()}
        except Exception:  # noqa: BLE001 - whatever it is: the rank's steps are sent without it
            self._failed = True
            log_outside(log, "the load of this machine is not sent to the kernel", level=logging.INFO)
            return None
        self._last = now
        return Machine(sampler.cores, gpus.names, gpus.uuids, values)

    def _end(self) -> None:
        readers, self._readers = self._readers, None
        if readers is not None:
            readers[1].stop()


def _readers() -> tuple[NodeSampler, NodeGpus]:
    from ..sample.node_sampler import NodeGpus, NodeSampler

    return NodeSampler(), NodeGpus()


# ---- The thread that sends the frames.

PERIOD_S = 0.5  # between two frames
QUEUE = 20  # frames that wait for a slow link: ten seconds
SILENT_S = 600.0  # a kernel on another machine of which nothing is heard for so long is gone
_METERS = 16  # loaders that are followed, the newest
CHECK_S = 2.0  # between two checks of whether the session is still there
_DEVICE_S = 5.0  # between two readings of which GPU is used
_GOODBYE_S = 0.3  # at the process's end, for the last frame


class Totals(Protocol):
    """The fields of `steps.step_meter.Totals` that are read here."""

    @property
    def images(self) -> int: ...


class Meter(Protocol):
    """The parts of `steps.step_meter.Meter` that are used here."""

    def totals(self) -> Totals: ...

    def steps_since(self, number: int) -> tuple[list[Any], int]: ...


class RankClient:
    """Sends what the meters measured. Ends by itself when the kernel's session has ended."""

    def __init__(self, folder: str, join: Join) -> None:
        self._folder = folder
        self._join = join
        self._meters: dict[int, tuple[Meter, int, int]] = {}  # by identity: steps and samples that were sent
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._clock = ClockOffset()
        self._loaders = RankLoaders()
        self._host = HostSampler()
        self._device, self._device_due = "", 0.0
        self._heard = time.monotonic()
        self._check_due = 0.0
        self._before = (time.monotonic(), time.process_time())
        self.dropped = 0
        self.left_out = 0
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-rank", daemon=True)
        self._thread.start()

    def add(self, meter: Meter) -> None:
        """Send the steps of this meter from now on."""
        with self._lock:
            if id(meter) not in self._meters:
                _, newest = meter.steps_since(1 << 62)
                self._meters[id(meter)] = meter, newest, meter.totals().images
                while len(self._meters) > _METERS:
                    del self._meters[next(iter(self._meters))]

    def stop(self) -> None:
        """Send the last frame."""
        self._ending.set()
        self._thread.join(_GOODBYE_S)

    def _run(self) -> None:
        import zmq

        try:
            context = zmq.Context()
            try:
                with context.socket(zmq.DEALER) as socket:
                    self._connect(socket)
                    socket.poll(int(1000 * PERIOD_S), zmq.POLLOUT)  # until it is connected
                    while not self._ending.is_set() and self._there():
                        self._send(socket, None)
                        self._listen(socket)
                    self._send(socket, "it has finished")
            finally:
                context.destroy(linger=int(1000 * _GOODBYE_S))
        except Exception:  # noqa: BLE001 - whatever it is, the training goes on without it
            log_outside(log, "the steps of this rank are no longer sent to the kernel", level=logging.INFO)

    def _connect(self, socket: zmq.Socket[bytes]) -> None:
        import zmq

        socket.setsockopt(zmq.LINGER, int(1000 * _GOODBYE_S))
        socket.setsockopt(zmq.SNDHWM, QUEUE)
        socket.setsockopt(zmq.RCVHWM, QUEUE)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # without a connection frames are dropped here, not queued for later
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5000)
        socket.curve_serverkey = self._join.server.encode()
        socket.curve_publickey = self._join.public.encode()
        socket.curve_secretkey = self._join.secret.encode()
        socket.connect(self._address())

    def _address(self) -> str:
        """Return where the server is for this machine: its Unix socket, else its TCP address."""
        here = self._join.host == identity.host_key()
        wanted = [address for address in self._join.addresses if here or address.startswith("tcp:")]
        # In a container of the same machine the folder may be mounted, and the socket with it.
        return (wanted or list(self._join.addresses))[0]

    def _there(self) -> bool:
        """Return whether the session may still be there.

        Looked at rarely, as each system call costs a busy loop the GIL.
        """
        now = time.monotonic()
        if now < self._check_due:
            return True
        self._check_due = now + CHECK_S
        if self._join.host == identity.host_key():
            return os.path.isdir(self._folder) and is_alive(self._join.pid, self._join.start)  # noqa: PTH112
        return time.monotonic() - self._heard < SILENT_S

    def _send(self, socket: zmq.Socket[bytes], bye: str | None) -> None:
        import zmq

        if not socket.poll(0, zmq.POLLOUT):
            self.dropped += 1  # its steps go with the next frame, as far as the meters keep them
            return
        try:
            socket.send(packed(self._frame(bye)), flags=zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1

    def _listen(self, socket: zmq.Socket[bytes]) -> None:
        """Take what comes until the next frame is due; one that has been obeyed is reported at once."""
        due = time.monotonic() + PERIOD_S
        while (left := due - time.monotonic()) > 0 and not self._ending.is_set():
            if not socket.poll(int(1000 * min(left, 0.25)) + 1):
                continue
            got = time.monotonic()
            answer = json.loads(socket.recv())
            self._heard = got
            if "sent" in answer:
                self._clock.add(answer["sent"], answer["received"], answer["answered"], got)
                self._loaders.acknowledge(answer["had"])
                self._host.wanted = bool(answer["sample"])
            if self._loaders.obey(answer["commands"]):
                return

    def _frame(self, bye: str | None) -> Frame:
        now, used = time.monotonic(), time.process_time()
        window = max(now - self._before[0], 1e-3)
        cpu, self._before = 100 * (used - self._before[1]) / window, (now, used)
        rows: list[Row] = []
        images = 0
        with self._lock:
            for key, (meter, number, had) in list(self._meters.items()):
                steps, newest = meter.steps_since(number)
                total = meter.totals().images
                images += total - had
                self._meters[key] = meter, newest, total
                self.left_out += max(0, newest - number - len(steps))
                rows += [tuple(step) for step in steps]
        rows.sort(key=lambda row: row[0])
        self.left_out += max(0, len(rows) - MOST_STEPS)
        states, chunks, indices = self._loaders.report()
        if now >= self._device_due:
            self._device, self._device_due = device_uuid(), now + _DEVICE_S
        here = self._join.host == identity.host_key()
        offset, bound = (0.0, 0.0) if here else self._clock.best or (None, None)
        return Frame(
            identity=identity.own(),
            sent=now,
            cpu=cpu,
            images=max(0, images) / window if self._meters else math.nan,
            dropped=self.dropped,
            left_out=self.left_out,
            offset=offset,
            bound=bound,
            bye=bye,
            steps=rows[-MOST_STEPS:],
            loaders=states,
            chunks=chunks,
            indices=indices,
            handled=dict(self._loaders.handled),
            device=self._device,
            machine=self._host.reading(now),
        )


class _Own:
    """This process's client, or the folder of the session that it offers itself."""

    client: RankClient | None = None
    tried: str | None = None  # the folder that was tried last
    offered: str | None = None
    forgotten: list[RankClient]  # of the parent of a fork: ZeroMQ's objects must not be freed in a child


_Own.forgotten = []
_lock = threading.Lock()


def offer(folder: str | None) -> None:
    """Hand a session of this process down to its children, which then join it; None: no more."""
    before, _Own.offered = _Own.offered, folder
    if folder is not None:
        os.environ[VARIABLE] = folder
    elif before is not None and os.environ.get(VARIABLE) == before:
        del os.environ[VARIABLE]


def follow(meter: Meter) -> None:
    """Send the steps of an iteration that begins, if this process is to join a session. Never raises, never waits."""
    folder = os.environ.get(VARIABLE)
    if folder is None or folder == _Own.offered:
        return
    if _Own.client is None and _Own.tried == folder:
        return
    with _lock:
        if folder != _Own.tried:
            _Own.tried = folder
            _Own.client = _joined(folder)
        client = _Own.client
    if client is not None:
        client.add(meter)


def _joined(folder: str) -> RankClient | None:
    try:
        import zmq  # noqa: F401

        client = RankClient(folder, session_files.read(folder, os.environ.get(KEYS)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the loop goes on
        log.info("the session of %s is not joined: %s", VARIABLE, error)
        return None
    atexit.register(client.stop)
    return client


@in_forked_children
def _in_child() -> None:
    global _lock  # noqa: PLW0603 - some other thread of the parent may have held it
    _lock = threading.Lock()
    if _Own.client is not None:
        atexit.unregister(_Own.client.stop)
        _Own.forgotten.append(_Own.client)
    _Own.client = _Own.tried = _Own.offered = None
