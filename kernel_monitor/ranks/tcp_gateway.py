"""The process that listens on TCP for ranks of other machines, and passes their messages on to the kernel.

A process of its own, because whoever reaches the port may open connections, with or without a key. Here they spend
descriptors, memory and processor time of this process, all of which are bounded; the kernel has one connection, to
this process. It ends when its stdin ends, or when the kernel's process is gone.

A thread accepts connections, so many at once and so many a second, and passes their bytes on to ZeroMQ's socket in the
same process: ZeroMQ itself takes every connection that comes. The main thread admits who has the key (`listener`), and
passes the messages on.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from .listener import Listener
from .rank_frames import LARGEST, MOST_BYTES, unwrapped, wrapped
from .session_files import Keys

MOST = 512  # connections at once
EACH = 3  # descriptors of a connection: its own, and both ends of the way to ZeroMQ's socket
SPARE = 64  # descriptors for everything else
PAUSE_S = 0.01  # between two connections that are accepted: each may cost a handshake
_HANDSHAKE_MS = 2000  # a connection that has not shown its key by then is closed
BACKLOG = 128  # connections that wait to be accepted; they spend no descriptor
_WAITING = 4  # messages of a rank that wait here
_TO_KERNEL = 64  # messages that wait for the kernel; meanwhile the ranks keep theirs
_MOST_MEMORY = 512 << 20  # bytes; a process that needs more ends, and is started again
NICENESS = 5  # of a core that the training wants too, a quarter
LOOK_S = 1.0
BATCH = 100  # messages that are passed on between two looks at everything else
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))  # s, s, probes
"""A machine that is switched off says no goodbye: its connections are closed after a minute."""


class _Relay:
    """Accepts connections on a thread of its own, and passes their bytes on to a Unix socket and back.

    Attributes:
        open: connections that there are.
        most: connections that there may be; further ones wait.
    """

    def __init__(self, listening: socket.socket, inner: str, most: int) -> None:
        self.open = 0
        self.most = most
        self._listening = listening
        self._inner = inner
        self._serving: set[asyncio.Task[None]] = set()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._accept()), daemon=True)
        self.thread.start()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.open >= self.most:
                await asyncio.wait(self._serving, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                outer, _ = await loop.sock_accept(self._listening)
            except OSError:  # it has gone already, or the machine has no more descriptors
                await asyncio.sleep(LOOK_S)
                continue
            self.open += 1
            task = asyncio.create_task(self._serve(outer))
            self._serving.add(task)
            task.add_done_callback(self._done)
            await asyncio.sleep(PAUSE_S)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self.open -= 1

    async def _serve(self, outer: socket.socket) -> None:
        with suppress(OSError), outer, socket.socket(socket.AF_UNIX) as inner:
            outer.setblocking(False)
            inner.setblocking(False)
            outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            outer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    outer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            await asyncio.get_running_loop().sock_connect(inner, self._inner)
            ways = [asyncio.create_task(_pass(*way)) for way in ((outer, inner), (inner, outer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _pass(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await loop.sock_recv(source, 1 << 16):
            await loop.sock_sendall(target, data)


class _Gateway:
    """Passes messages on between the ranks and the kernel.

    Attributes:
        address: where it listens.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        keys = Keys(*(told["keys"][name].encode() for name in Keys._fields))
        self._parent = int(told["parent"])
        self._refused = 0  # messages
        self._held: bytes | None = None  # a message that the kernel's connection had no room for
        self._listener = Listener(keys, MOST_BYTES, _WAITING)
        self._listener.router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        inner = Path(told["socket"])
        self._listener.bind(f"ipc://{inner}")
        self.address = _resolved(told["address"])
        self._relay = _Relay(_listening(self.address), str(inner), _room())
        kernel = self._kernel = self._listener.context.socket(zmq.DEALER)
        kernel.setsockopt(zmq.ROUTING_ID, told["name"].encode())
        kernel.setsockopt(zmq.LINGER, 0)
        kernel.setsockopt(zmq.SNDHWM, _TO_KERNEL)
        kernel.setsockopt(zmq.RCVHWM, _TO_KERNEL)
        kernel.setsockopt(zmq.MAXMSGSIZE, LARGEST)
        kernel.setsockopt(zmq.IMMEDIATE, 1)
        kernel.curve_serverkey = keys.server
        kernel.curve_publickey, kernel.curve_secretkey = keys.client, keys.client_secret
        kernel.connect(told["kernel"])

    def run(self) -> None:
        """Until the kernel wants no more, or is gone. A RuntimeError if nothing is accepted any more."""
        admission, router, kernel, stdin = self._listener.admission, self._listener.router, self._kernel, 0
        poller = zmq.Poller()
        poller.register(admission, zmq.POLLIN)
        poller.register(stdin, zmq.POLLIN)
        looked = 0.0
        while True:
            # While the kernel takes nothing, nothing is taken from the ranks either.
            free = self._held is None and bool(kernel.poll(0, zmq.POLLOUT))
            poller.register(router, zmq.POLLIN if free else 0)
            poller.register(kernel, zmq.POLLIN if free else zmq.POLLIN | zmq.POLLOUT)
            ready = dict(poller.poll(int(1000 * LOOK_S)))
            if stdin in ready or os.getppid() != self._parent:
                return
            if admission in ready:
                self._listener.admit()
            self._to_ranks()
            now = time.monotonic()
            if now - looked >= LOOK_S and self._report():  # before the messages of ranks, which may fill the connection
                looked = now
            self._to_kernel()

    def _to_kernel(self) -> None:
        for _ in range(BATCH):
            try:
                if self._held is None:
                    who, *parts = self._listener.router.recv_multipart(zmq.NOBLOCK)
                    if len(parts) != 1:
                        self._refused += 1
                        continue
                    self._held = wrapped(who, parts[0])
                self._kernel.send(self._held, zmq.NOBLOCK)
                self._held = None
            except zmq.Again:
                return

    def _to_ranks(self) -> None:
        for _ in range(BATCH):
            try:
                who, message = unwrapped(self._kernel.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            with suppress(zmq.ZMQError):  # it has gone, or does not read
                self._listener.router.send_multipart([who, message], zmq.NOBLOCK)

    def _report(self) -> bool:
        """Tell the kernel what there is; returns whether there was room for it."""
        if not self._relay.thread.is_alive():
            raise RuntimeError("it accepts no connections any more")
        state = {"connections": self._relay.open, "most": self._relay.most, "refused": self._refused}
        try:
            self._kernel.send(wrapped(b"", json.dumps(state).encode()), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


def _resolved(address: str) -> str:
    """An address with numbers in place of names, stars and interfaces, as ZeroMQ reads them."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as probe:
        probe.bind(address)
        return str(probe.getsockopt_string(zmq.LAST_ENDPOINT))


def _listening(address: str) -> socket.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    found = socket.create_server((host.strip("[]"), int(port)), family=family, backlog=BACKLOG)
    found.setblocking(False)
    return found


def _room() -> int:
    """Return how many connections there may be; raises this process's own limit of descriptors for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST * EACH + SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, (wanted - SPARE) // EACH)


def main() -> int:
    os.nice(NICENESS)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    try:
        gateway = _Gateway(json.loads(sys.stdin.readline()))
        _say(bound=gateway.address)
        gateway.run()
    except Exception as error:  # noqa: BLE001 - the kernel shows it, and starts this process again
        _say(failed=f"{type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)  # the relay's thread ends with the process


def _say(**words: str) -> None:
    with suppress(OSError):
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
