"""Simulated ranks of a training on other hosts, which send frames at the real rate to a real session.

    python -m benchmarks.rank_replay FOLDER [--hosts 8] [--ranks 8] [--cores 64] [--gpus 0] [--step-ms 20]

FOLDER is the value of KERNEL_MONITOR_JOIN. Each rank has a connection of its own and sends its steps twice a second, as
`kernel_monitor.ranks.rank_client` does, and the load of its host if the kernel requests it. One rank waits longer for
its data than the others, which wait for it in their collective. The process ends with its stdin.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import zmq

from kernel_monitor.rank import Row
from kernel_monitor.ranks import session_files
from kernel_monitor.ranks.rank_client import PERIOD_S
from kernel_monitor.ranks.rank_frames import Frame, Identity, Machine, packed
from kernel_monitor.ranks.session_files import Join

SLOW = 5  # the rank that waits for its data
LATE_S = 0.004  # seconds that it waits longer


@dataclass
class Rank:
    """A rank: its socket, and its progress."""

    socket: zmq.Socket[bytes]
    identity: Identity
    device: str
    due: float  # s, when its next frame is
    until: float  # the end of its last step (s)
    batch: int = 0
    sample: bool = False
    read: float = 0.0
    images: int = 32
    last: dict[str, Any] = field(default_factory=dict)


def ranks(context: zmq.Context[zmq.Socket[bytes]], join: Join, hosts: int, each: int) -> list[Rank]:
    """Return all ranks, their frames spread over the period."""
    now, found = time.monotonic(), []
    for number in range(hosts * each):
        host, local = divmod(number, each)
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.curve_serverkey = join.server.encode()
        socket.curve_publickey = join.public.encode()
        socket.curve_secretkey = join.secret.encode()
        socket.connect(join.addresses[0])
        name = f"gpu-node-{host + 1:02}"
        identity = Identity(f"replayed {host}", name, 1000 + local, 1.0, 1, number, hosts * each, "replayed")
        due = now + PERIOD_S * (1 + number / (hosts * each))
        found.append(Rank(socket, identity, f"GPU-{host}-{local}", due, now))
    return found


def steps(rank: Rank, now: float, step_s: float) -> list[Row]:
    """Return the steps that ended since the last frame. The late rank's collective, in `backward`, is the shortest."""
    rows: list[Row] = []
    while rank.until + step_s < now:
        rank.until += step_s
        late = LATE_S if rank.identity.rank == SLOW else 0.0
        wait = 0.002 + late + abs(random.gauss(0, 0.0003))
        copy, forward, optimizer = 0.0008, 0.0055 + abs(random.gauss(0, 0.0002)), 0.0015
        backward = step_s - 0.001 - wait - copy - forward - optimizer
        rows.append((rank.until, 0, rank.batch, rank.images, wait, step_s, copy, forward, backward, optimizer, 0))
        rank.batch += 1
    return rows


def machine(rank: Rank, cores: int, gpus: int) -> Machine:
    """Return a reading of its host; cores are busier the lower their number."""
    values = {f"cpu/{core}/busy": round(min(100.0, max(0.0, random.gauss(90 - core, 8))), 2) for core in range(cores)}
    values |= {"memory": 2e11, "network/received": round(random.gauss(9e8, 5e7), 2), "network/sent": 8e8}
    for k in range(gpus):
        values |= {f"gpu/{k}/utilisation": round(random.uniform(70, 99), 2), f"gpu/{k}/clock": 1980.0}
        values[f"gpu/{k}/memory_used"] = 4e10
    host = rank.identity.host.split()[1]
    return Machine(
        list(range(cores)), ["NVIDIA H100 80GB HBM3"] * gpus, [f"GPU-{host}-{k}" for k in range(gpus)], values
    )


def send(rank: Rank, step_s: float, cores: int, gpus: int) -> None:
    """Read the answers that have come, then send a frame."""
    while rank.socket.poll(0):
        rank.sample = bool(json.loads(rank.socket.recv())["sample"])
    now = time.monotonic()
    rows, reading = steps(rank, now, step_s), None
    if rank.sample and now - rank.read >= 0.9:
        rank.read, reading = now, machine(rank, cores, gpus)
    frame = Frame(
        identity=rank.identity,
        sent=now,
        cpu=random.gauss(104, 2),
        images=rank.images / step_s,
        dropped=0,
        left_out=0,
        offset=0.0,
        bound=0.0004,
        bye=None,
        steps=rows,
        device=rank.device if gpus else "",
        machine=reading,
    )
    rank.socket.send(packed(frame))


def main() -> None:
    """Send until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rank_replay", description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8, help="of each host")
    parser.add_argument("--cores", type=int, default=64, help="of each host")
    parser.add_argument("--gpus", type=int, default=0, help="of each host")
    parser.add_argument("--step-ms", type=float, default=20.0)
    options = parser.parse_args()
    random.seed(1)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        all_ranks = ranks(context, session_files.read(options.folder), options.hosts, options.ranks)
        while True:
            rank = min(all_ranks, key=lambda one: one.due)
            if select.select([sys.stdin], [], [], max(0.0, rank.due - time.monotonic()))[0]:
                return
            send(rank, options.step_ms / 1000, options.cores, options.gpus)
            rank.due += PERIOD_S
    finally:
        context.destroy(linger=0)


if __name__ == "__main__":
    main()
