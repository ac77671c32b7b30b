"""`python -m tests.remote.cluster NODES CORES HEAD STORE`: a Ray cluster on loopback alone, in a process of its own.

The head, which stands for the machine that trains, with HEAD cores, and nodes with CORES each; object
stores of STORE MB. Answers lines on its input:
`add`, `remove NODE` (without warning), `hide FOLDER` (from nodes that are added afterwards), `died` (the nodes of which
a process has ended by itself), `stop`. Ends the nodes when its input ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
TRIES = 5
"""On a busy machine a head or a node is sometimes not up within the time that Ray gives it (30 and 15 s)."""
PATIENT = {
    "health_check_timeout_ms": 60_000,
    "health_check_initial_delay_ms": 60_000,
    "agent_register_timeout_ms": 120_000,
}
"""So that the head does not declare a node dead, and a node does not end itself, because the machine is busy."""
CLONE_NEWNS, MS_PRIVATE, MS_REC = 0x20000, 1 << 18, 1 << 14  # <linux/sched.h>, <linux/mount.h>


def main() -> None:
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray listens on the machine's address
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    count, cores, ours, store = map(int, sys.argv[1:])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from ray.cluster_utils import Cluster

    options: dict[str, Any] = {"node_ip_address": LOOPBACK, "object_store_memory": store << 20}
    cluster = Cluster()
    nodes: dict[str, Any] = {}

    def add(many: int, **more: Any) -> str:
        for attempt in range(1, TRIES + 1):
            try:
                node = cluster.add_node(num_cpus=many, **options, **more)
                nodes[node.node_id] = node
                return str(node.node_id)
            except Exception:
                if attempt == TRIES:
                    raise
        raise AssertionError

    def tell(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        head = add(ours, include_dashboard=False, _system_config=PATIENT)
        tell({"address": cluster.address, "head": head, "nodes": [add(cores) for _ in range(count)]})
        for line in sys.stdin:
            what, *args = line.split()
            if what == "stop":
                break
            if what == "add":
                tell(add(cores))
            elif what == "hide":
                hide(args[0])
                tell("hidden")
            elif what == "died":
                tell([known for known, node in nodes.items() if node.dead_processes()])
            elif what == "remove":
                cluster.remove_node(nodes.pop(args[0]), allow_graceful=False)
                tell("removed")
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def hide(folder: str) -> None:
    """Let processes that are started from now on see an empty folder in its place; where that needs rights, none."""
    if not _mounted_over(folder):
        os.environ["HIDDEN_FOLDER"] = folder
        paths = (str(Path(__file__).parent / "hidden"), os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def _mounted_over(folder: str) -> bool:
    libc = ctypes.CDLL(None)
    return bool(
        libc.unshare(CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
        and libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, None) == 0
    )


if __name__ == "__main__":
    main()
