"""`python driver.py PARENT`: joins a Ray cluster for one loader and passes slots and batches between it and the kernel.

A process of its own, because Ray ends the process that lost its cluster, starts threads that do not survive a fork,
prints, and takes seconds to import. It opens no batch: what it passes on are bytes. Neither torch nor the user's
modules are imported. It ends when its input is closed, and with the process that started it; the workers are part of
its job and end with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .channel import Channel
    from .node_watch import NodeWatch
    from .node_worker import Place
    from .pool import Pool

LOOKS = 1.0  # s between two looks at the nodes
_TELLS = 1.0  # s between two reports on the nodes
_REACHED_WITHIN = 10.0  # s for the first answer of the cluster's head
ENDS_WITHIN = 5.0  # s for taking leave of the cluster


def without_torch() -> None:
    """Let modules of `kernel_monitor.loaders` be imported without running its `__init__`, which imports torch."""
    folder = Path(__file__).resolve().parents[1]
    sys.path.append(str(folder.parents[1]))
    package = ModuleType("kernel_monitor.loaders")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package


def main() -> None:
    parent = int(sys.argv[1])
    source, sink = FileIO(os.dup(0)), FileIO(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints
    without_torch()
    from kernel_monitor.loaders.remote.channel import Channel

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
    from kernel_monitor.loaders.remote.node_watch import ClusterWatch, NodeWatch
    from kernel_monitor.loaders.remote.node_worker import Work
    from kernel_monitor.loaders.remote.pool import Dispatch, Pool

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
        await _first_worker(pool)
    except Exception as error:  # noqa: BLE001 - whatever Ray raises: the kernel's loop goes on with another engine
        lines = [line for line in str(error).splitlines() if line.strip()]
        channel.send(("refused", lines[0] if lines else type(error).__name__))
        return
    channel.send(("ready", pool.shown()))
    ClusterWatch(ray, dispatch, partial(end, channel)).start()
    watch = asyncio.create_task(_watch(channel, pool, NodeWatch(ray, place), parent))
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
    for attempt in (1, 2):
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
            return ray
        except Exception:
            # On a busy machine Ray's agents are sometimes not up within the 15 s that it gives them.
            if attempt == 2 or address != "local":
                raise
            ray.shutdown()
            time.sleep(1)
    raise AssertionError


def _reach(address: str) -> None:
    """See that something listens at an address: Ray itself would wait for minutes. ConnectionError if not."""
    host, _, port = address.rpartition(":")
    if not host:  # `auto`
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACHED_WITHIN).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers there ({error.strerror or error}).") from error


async def _first_worker(pool: Pool) -> None:
    while not pool.ready:
        await pool.look()
        if pool.hopeless is not None:
            raise RuntimeError(pool.hopeless)
        await asyncio.sleep(0.1)


async def _watch(channel: Channel, pool: Pool, loads: NodeWatch, parent: int) -> None:
    """Every second: the nodes, their load, the workers, and whether the kernel still lives."""
    told: Any = None
    while True:
        await asyncio.sleep(LOOKS)
        if os.getppid() != parent:
            leave()
        try:
            await pool.look()
        except Exception as error:  # noqa: BLE001 - Ray's: the head does not answer now; where it stays so, Ray ends us
            print(f"the nodes cannot be looked at: {error}", flush=True)  # noqa: T201 - into the log
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
