"""The interface of the engine `ray` to the rest of the package: its entry in the registry, and its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from ..text import quoted
from . import cluster
from .cluster import NAME, Chosen, checked
from .nodes import sentence

if TYPE_CHECKING:
    from ..loaders.engines.engine import Engine, Setting, Spec

__all__ = ["NAME", "settings", "spec"]


def settings(address: Any, send_files: Any) -> Callable[[], None]:
    """Check settings for the loaders of this process, and return the function that puts them in force.

    Args:
        address: of the cluster: `auto` or `host:port`; an empty text for the one of RAY_ADDRESS, None for no change.
        send_files: whether nodes get the files' contents with each batch; `auto`: those that do not see the files.

    Raises:
        MonitorError: a value is not accepted.
    """
    if not isinstance(send_files, bool | str | None) or send_files not in (None, True, False, "auto"):
        raise MonitorError(f"send_files is True, False or auto, not {quoted(send_files)}.")
    joined = None if address is None or (isinstance(address, str) and not address) else checked(address)

    def put_in_force() -> None:
        if address is not None:
            Chosen.address = joined
        if send_files is not None:
            Chosen.send_files = None if send_files == "auto" else bool(send_files)

    return put_in_force


def spec() -> Spec:
    """Return the engine's entry in the registry of engines."""
    from ..loaders.engines.engine import Spec

    return Spec(
        NAME,
        _obstacle,
        _build,
        frozenset({"workers", "prefetch"}),
        cluster.question,
        turn=lambda engine, setting: engine.turn(setting.workers, setting.prefetch),
        note=sentence,
    )


def _build(setting: Setting) -> Engine:
    from .engine import RayEngine  # what it imports comes with the extra `ray`

    return RayEngine(setting.keyed, setting.wrapped, setting.workers, setting.prefetch)


def missing() -> str | None:
    """Return why the engine cannot run here, a sentence; None where it can."""
    return None if cluster.installed() else "Ray is not installed; pip install 'kernel-monitor[ray]'."


def _obstacle(setting: Setting) -> str | None:
    reason = missing()
    if reason is not None:
        return reason
    if not setting.keyed.source.seeded:
        return "The data set draws as in a plain DataLoader (seeded=False), whose workers are seeded on this machine."
    try:
        if cluster.address() == cluster.LOCAL:  # not looked at before it is wanted: pickling may take long
            return None
    except MonitorError as error:
        return str(error)
    from ..loaders.engines.worker_pickle import why_not_remote

    cause = why_not_remote((setting.keyed, setting.wrapped.collate_fn, setting.wrapped.worker_init_fn))
    return None if cause is None else f"The data set cannot be sent to other machines: {cause}."
