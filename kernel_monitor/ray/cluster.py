"""The Ray cluster that the engine `ray` joins, found without importing Ray.

The one that this process has joined itself; else the one of `monitor.configure(ray=…)` or of RAY_ADDRESS; else one of
our own on this machine, which a person is asked for first.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from ..errors import MonitorError
from ..text import quoted

NAME = "ray"  # of the engine
VARIABLE = "RAY_ADDRESS"
LOCAL = "local"  # in place of an address: start a Ray on this machine
CLIENT = (
    "Connections of the kind ray:// are not used, as all batches would pass through one process of the cluster's head; "
    "join this machine to the cluster (ray start --address=HOST:PORT) and give that address."
)
ASK = (
    "Start a Ray on this machine to try it out? Its workers take the processor from the training, and nothing gets "
    "faster: for that, join a cluster with CPU machines first."
)


class Chosen:
    """The settings of Ray that `monitor.configure` was given for this process; None: none.

    Attributes:
        address: `ray=…`.
        send_files: whether nodes get the contents of the data set's files with each batch; None: those that do not see
            the files.
    """

    address: str | None = None
    send_files: bool | None = None


def checked(address: Any) -> str:
    """An address as it may be configured: `auto` or `host:port`; MonitorError if it is none."""
    if isinstance(address, str) and len(address) <= 300:  # a host's name has 253 letters at most
        text = address.strip()
        host, separator, port = text.rpartition(":")
        if text.startswith("ray://"):
            raise MonitorError(CLIENT)
        if text == "auto" or (separator and host and port.isdigit()):
            return text
    raise MonitorError(
        f"ray={quoted(address)}: give auto, or host:port of the cluster's head, or an empty text for none."
    )


def installed() -> bool:
    """Return whether Ray can be imported."""
    return importlib.util.find_spec("ray") is not None and importlib.util.find_spec("cloudpickle") is not None


def joined() -> Any:
    """The module `ray` if this process has joined a cluster itself, else None."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and getattr(ray, "is_initialized", bool)() else None


def address() -> str:
    """`auto`, `host:port`, or `LOCAL` where no cluster is known.

    Raises:
        MonitorError: the cluster that is known is one that cannot be used; with the remedy.
    """
    ray = joined()
    if ray is not None:
        if ray.util.client.ray.is_connected():
            raise MonitorError(CLIENT)
        return str(ray.get_runtime_context().gcs_address)
    known = Chosen.address or os.environ.get(VARIABLE) or LOCAL
    return known if known == LOCAL else checked(known)


def question() -> str | None:
    """Return what to ask a person before the engine is used; None where a cluster is known."""
    try:
        return ASK if address() == LOCAL else None
    except MonitorError:
        return None
