"""`python driver.py PARENT`: joins a Ray cluster for one loader and passes slots and batches between it and the kernel.

A process of its own, because Ray ends the process that lost its cluster, starts threads that do not survive a fork,
prints, and takes seconds to import. It opens no batch: what it passes on are bytes. Neither torch nor the user's
modules are imported. It ends when its input is closed, and with the process that started it; the workers are part of
its job and end with it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .node_worker import Load, Place
    from .pool import Dispatch, Pool

LOOKS = 1.0  # s between two looks at the nodes
TELLS_AFTER = 5.0  # s without a worker, after which it is told what is waited for; where a core was free:
TELLS_OF_START_AFTER = 60.0  # as a busy machine takes that long to start one
ATTEMPTS = 3  # to join: on a busy machine Ray's processes are sometimes not up within the time that it gives them
_REACHED_WITHIN = 10.0  # s for the first answer of the cluster's head
ENDS_WITHIN = 5.0  # s for taking leave of the cluster


# ---- Messages over a pipe between the kernel and this process: a pickled tuple, then buffers as they are.

_HEAD = struct.Struct("<II")  # bytes of the pickled tuple, number of buffers
_SIZE = struct.Struct("<Q")  # bytes of a buffer
PIPE_BYTES = 1 << 20  # what Linux lets a process without privileges ask for
F_SETPIPE_SZ = 1031  # <linux/fcntl.h>


class Channel:
    """One end of the pipes between the kernel and the driver process. One thread receives; any thread sends."""

    def __init__(self, source: RawIOBase, sink: RawIOBase) -> None:
        self._source = source
        self._sink = sink
        self._sending = threading.Lock()
        _widen(sink)

    def send(self, message: tuple[Any, ...], buffers: Sequence[Any] = ()) -> None:
        """Send a tuple of plain values, and buffers of bytes.

        Raises:
            OSError: the other end is gone.
        """
        views = [memoryview(buffer) for buffer in buffers]
        text = pickle.dumps(message)
        head = _HEAD.pack(len(text), len(views)) + b"".join(_SIZE.pack(view.nbytes) for view in views)
        with self._sending:
            for part in (memoryview(head), memoryview(text), *views):
                self._write(part)

    def _write(self, part: memoryview) -> None:
        done = 0
        while done < part.nbytes:
            done += self._sink.write(part[done:]) or 0

    def receive(self) -> tuple[tuple[Any, ...], list[Any]]:
        """Wait for a message and its buffers, each uint8[bytes].

        Raises:
            EOFError: the other end is closed.
        """
        size, count = _HEAD.unpack(self._read(_HEAD.size))
        sizes = [_SIZE.unpack(self._read(_SIZE.size))[0] for _ in range(count)]
        message = pickle.loads(self._read(size))  # noqa: S301 - written by our own process
        return message, [self._read(each) for each in sizes]

    def _read(self, size: int) -> Any:
        found: Any = np.empty(size, dtype=np.uint8)
        view, done = memoryview(found), 0
        while done < size:
            read = self._source.readinto(view[done:])
            if not read:
                raise EOFError
            done += read
        return found

    def close(self) -> None:
        """Close the end that sends: the other side gets EOF. Waits for a message that is being sent."""
        with self._sending:
            self._sink.close()


def _widen(sink: RawIOBase) -> None:
    """Let the pipe hold more than 64 KB, so that a batch takes fewer turns of the two processes."""
    try:
        import fcntl

        fcntl.fcntl(sink.fileno(), F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, OSError):  # not Linux, or the user's pipes are used up: it works with less
        return


# ---- The load of the nodes that work, and whether the cluster is still there.

AGAIN = 30.0  # s, until a reader that ended is started again


class NodeWatch:
    """A reader on every node with workers, but the one that trains: that has its own rows."""

    def __init__(self, ray: Any, place: Place) -> None:
        from kernel_monitor.ray.node_worker import NodeReader

        self._ray = ray
        self._place = place
        self._actor = ray.remote(NodeReader)  # by value, as the workers: see `Pool`
        self._readers: dict[str, Any] = {}
        self._asked: dict[Any, str] = {}  # by the reference of a call under way: the node
        self._not_before: dict[str, float] = {}

    def look(self, pool: Pool) -> list[Load]:
        """Return what has been read since the last look; to be called every second or so, and never waits."""
        wanted = {worker.node for worker in pool.ready if not pool.nodes[worker.node].is_ours}
        for node in self._readers.keys() - wanted:
            self._end(node)
        for node in wanted - self._readers.keys():
            if time.monotonic() >= self._not_before.get(node, 0.0):
                self._start(node)
        found = self._read()
        for node in self._readers.keys() - set(self._asked.values()):
            self._asked[self._readers[node].read.remote()] = node
        return found

    def _read(self) -> list[Load]:
        from kernel_monitor.ray.node_worker import Load

        asked = list(self._asked)
        done, _ = self._ray.wait(asked, num_returns=len(asked), timeout=0) if asked else ([], [])
        found = []
        for reference in done:
            node = self._asked.pop(reference)
            try:
                found.append(Load(node, *self._ray.get(reference)))
            except Exception:  # noqa: BLE001 - Ray's: the reader or its node is gone, which `Pool` reports
                self._end(node)
                self._not_before[node] = time.monotonic() + AGAIN
        return found

    def _start(self, node: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        options = self._actor.options(num_cpus=0, max_restarts=0, scheduling_strategy=strategy)
        self._readers[node] = options.remote(self._place.paths)

    def _end(self, node: str) -> None:
        reader = self._readers.pop(node, None)
        if reader is not None:
            self._ray.kill(reader, no_restart=True)


_CHECKS = 0.4  # s between two checks
_ANSWERS_WITHIN = 0.8  # s, for a connection
MISSED = 3  # checks, one after the other, in which no batch came and one of the two could not be reached
HEAD = "the cluster's head"
HERE = "Ray on this machine"

_Address = tuple[str, int]


class ClusterWatch(threading.Thread):
    """A thread that notices that the cluster is gone while batches are awaited, and calls `gone` with the cause.

    `ray` is the module, joined to a cluster.
    """

    def __init__(self, ray: Any, dispatch: Dispatch, gone: Callable[[str], None]) -> None:
        super().__init__(name="cluster watch", daemon=True)
        self._dispatch = dispatch
        self._gone = gone
        self._addresses = _addresses(ray)

    def run(self) -> None:
        """Look, until the cluster is gone."""
        silent, missed, answered = "", 0, 0
        while missed < MISSED:
            time.sleep(_CHECKS)
            silent = next((who for who, address in self._addresses.items() if not self._reached(address, answered)), "")
            missed = missed + 1 if silent else 0
            answered = self._dispatch.answered
        self._gone(f"{silent} does not answer; switch to ray again once it does")

    def _reached(self, address: _Address, answered: int) -> bool:
        """Return whether something listens there.

        Not asked where no batch is awaited, or some came since the last look.
        """
        if not self._dispatch.awaited or self._dispatch.answered != answered:
            return True
        try:
            socket.create_connection(address, timeout=_ANSWERS_WITHIN).close()
        except OSError:
            return False
        return True


def _addresses(ray: Any) -> dict[str, _Address]:
    """The addresses of the head, and of the process that connects this machine with the cluster."""
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    ours = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
    here = [(HERE, (node["NodeManagerAddress"], int(node["NodeManagerPort"]))) for node in ours]
    return dict([(HEAD, (host, int(port))), *here])


# ---- The process.


def main() -> None:
    parent = int(sys.argv[1])
    source, sink = FileIO(os.dup(0)), FileIO(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    channel = Channel(source, sink)
    with suppress(EOFError, OSError):  # the kernel is gone, or has closed
        asyncio.run(serve(channel, parent))
    leave()


def leave() -> None:
    """End, with everything of ours in the cluster; a cluster that does not answer must not delay it."""
    threading.Timer(ENDS_WITHIN, os._exit, (0,)).start()
    ray = sys.modules.get("ray")
    if ray is not None:
        with suppress(Exception):
            ray.shutdown()
    os._exit(0)


def end(channel: Channel, why: str) -> None:
    """Tell the kernel that the cluster is gone, and end at once: there is nothing to take leave of."""
    with suppress(OSError):
        channel.send(("gone", why))
    os._exit(1)


async def serve(channel: Channel, parent: int) -> None:
    """Join, answer commands, look after the nodes; returns when the kernel closes."""
    from kernel_monitor.ray.node_worker import Work
    from kernel_monitor.ray.pool import Dispatch, Pool

    commands: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
    threading.Thread(target=_read, args=(channel, commands, asyncio.get_running_loop()), daemon=True).start()
    command = await commands.get()
    if command is None:
        return
    _, address, place, sending, workers, prefetch, blob = command
    dispatch = Dispatch(
        send=lambda run, number, node, answer: channel.send(("batch", run, number, (node, answer[0])), answer[1:]),
        fail=lambda run, number, why: channel.send(("failed", run, number, why)),
    )
    try:
        ray = join(address, place)
        pool = dispatch.pool = Pool(ray, place, sending, workers, prefetch, dispatch.match)
        pool.give(blob.tobytes())
    except Exception as error:  # noqa: BLE001 - whatever Ray raises: the kernel's loop goes on with another engine
        lines = [line for line in str(error).splitlines() if line.strip()]
        channel.send(("refused", lines[0] if lines else type(error).__name__))
        return

    async def work() -> None:
        why = await _first_worker(channel, ray, pool)
        if why is not None:
            channel.send(("refused", why))
            commands.put_nowait(None)
            return
        channel.send(("ready", pool.shown()))
        ClusterWatch(ray, dispatch, partial(end, channel)).start()
        await _watch(channel, pool, NodeWatch(ray, place), parent)

    watch = asyncio.create_task(work())
    while True:
        command = await commands.get()
        if command is None:
            break
        kind, *args = command
        if kind == "slot":
            run, number, slot, rows, paths = args
            dispatch.take(run, number, Work(slot, rows, paths))
        elif kind == "begin":
            dispatch.begin(*args)
        elif kind == "data":
            pool.give(args[0].tobytes())
        elif kind == "knobs":
            pool.wanted, pool.prefetch = args
            pool.arrange()
    watch.cancel()


def join(address: str, place: Place) -> Any:
    """Join the cluster at an address; for `local`, start one. Returns the module `ray`."""
    loopback = address == "local" or address.rpartition(":")[0] in ("127.0.0.1", "localhost")
    if loopback:  # else Ray turns it into the machine's address in the network, where it then listens
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if address == "local":
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    sys.path.extend(path for path in place.paths if path not in sys.path)
    import ray

    from kernel_monitor.os_process import usable_cores

    options: dict[str, Any] = {"_node_ip_address": "127.0.0.1"} if loopback else {}
    if address == "local":
        options.update(include_dashboard=False, num_cpus=usable_cores())
    else:
        _reach(address)
    for attempt in range(ATTEMPTS):
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
            break
        except Exception:
            if attempt == ATTEMPTS - 1:
                raise
            ray.shutdown()
            time.sleep(1)
    return ray


def _reach(address: str) -> None:
    """Check that something listens at an address: Ray itself would wait for minutes. ConnectionError if not."""
    host, _, port = address.rpartition(":")
    if not host:  # `auto`
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACHED_WITHIN).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers there ({error.strerror or error}).") from error


async def _first_worker(channel: Channel, ray: Any, pool: Pool) -> str | None:
    """Wait for the first worker, telling the kernel for what. Returns why there will be none; None once it is there."""
    began, looked, told, had_core = time.monotonic(), -LOOKS, None, False
    while not pool.ready:
        if time.monotonic() - looked >= LOOKS:
            looked = time.monotonic()
            with suppress(Exception):  # Ray's: the head does not answer now
                free = await asyncio.to_thread(ray.available_resources)
                had_core = had_core or free.get("CPU", 0.0) >= 1  # which a worker has taken since
            if await _looked(pool) and pool.hopeless is not None:
                return pool.hopeless
            waited = looked - began
            waits = _waits(pool, had_core) if waited > (TELLS_OF_START_AFTER if had_core else TELLS_AFTER) else None
            if waits not in (None, told):
                channel.send(("waits", told := waits))
        await asyncio.sleep(0.1)
    return None


def _waits(pool: Pool, had_core: bool) -> str:
    """What the first worker waits for; `had_core`: one was free."""
    if not pool.candidates():
        return "no node of the cluster has a core for Ray yet"
    if any(worker.begun for worker in pool.workers):
        return "the first worker is starting"
    if pool.last_failure is not None:
        return f"a worker did not start ({pool.last_failure}) and is tried again"
    return "Ray is starting a worker" if had_core else "waiting for a core, as all that Ray has are taken"


async def _looked(pool: Pool) -> bool:
    """Look at the nodes; return whether that was possible."""
    try:
        await pool.look()
    except Exception as error:  # noqa: BLE001 - Ray's: the head does not answer now; where it stays so, Ray ends us
        print(f"the nodes cannot be looked at: {error}", flush=True)  # noqa: T201 - into the log
        return False
    return True


async def _watch(channel: Channel, pool: Pool, loads: NodeWatch, parent: int) -> None:
    """Every second: the nodes, their load, the workers, and whether the kernel still lives."""
    told: Any = None
    while True:
        await asyncio.sleep(LOOKS)
        if os.getppid() != parent:
            leave()
        if not await _looked(pool):
            continue
        if pool.shown() != told:
            told = pool.shown()
            channel.send(("nodes", told))
        channel.send(("passed", time.process_time()))
        found = loads.look(pool)
        if found:
            channel.send(("loads", found))


def _read(channel: Channel, commands: asyncio.Queue[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Pass the kernel's commands to the loop; None at their end. The process then ends, whatever it waits for."""
    command: tuple[Any, ...] | None = ()
    while command is not None:
        try:
            message, buffers = channel.receive()
            command = None if message == ("close",) else (*message, *buffers)
        except (EOFError, OSError):
            command = None
        if command is None:
            end = threading.Timer(ENDS_WITHIN, os._exit, (0,))
            end.daemon = True
            end.start()
        loop.call_soon_threadsafe(commands.put_nowait, command)


if __name__ == "__main__":
    main()
