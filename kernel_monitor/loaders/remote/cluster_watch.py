"""Notices that the cluster is gone while batches are awaited. A thread in the driver process.

Ray itself waits up to 60 s for its head. The test is about the cluster and never about the time that a batch takes:
whoever computes one for minutes in a cluster that is there may do so. While batches come, nobody is asked.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .dispatch import Dispatch

LOOKS = 0.4  # s between two looks
ANSWERS_WITHIN = 0.8  # s, for a connection
MISSED = 3  # looks, one after the other, in which no batch came and one of the two could not be reached
HEAD = "the cluster's head"
HERE = "Ray on this machine"

Address = tuple[str, int]


class ClusterWatch(threading.Thread):
    """`gone` is called, on this thread, with the cause. `ray` is the module, joined to a cluster."""

    def __init__(self, ray: Any, dispatch: Dispatch, gone: Callable[[str], None]) -> None:
        super().__init__(name="cluster watch", daemon=True)
        self._dispatch = dispatch
        self._gone = gone
        self._addresses = _addresses(ray)

    def run(self) -> None:
        """Look, until the cluster is gone."""
        silent, missed, answered = "", 0, 0
        while missed < MISSED:
            time.sleep(LOOKS)
            silent = next((who for who, address in self._addresses.items() if not self._reached(address, answered)), "")
            missed = missed + 1 if silent else 0
            answered = self._dispatch.answered
        self._gone(f"{silent} does not answer; switch to ray again once it does")

    def _reached(self, address: Address, answered: int) -> bool:
        """Whether something listens there; not asked where no batch is awaited, or some came since the last look."""
        if not self._dispatch.awaited or self._dispatch.answered != answered:
            return True
        try:
            socket.create_connection(address, timeout=ANSWERS_WITHIN).close()
        except OSError:
            return False
        return True


def _addresses(ray: Any) -> dict[str, Address]:
    """Of the head, and of the process that connects this machine with the cluster."""
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    ours = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    return {HEAD: (host, int(port)), HERE: (ours["NodeManagerAddress"], int(ours["NodeManagerPort"]))}
