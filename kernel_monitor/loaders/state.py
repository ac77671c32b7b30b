"""The state of a loader for a monitor, as plain data."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..privacy import last_part, private
from ..protocol.states import EngineState, KnobsState, LoaderState, Skip
from .data.layouts import layout_of
from .plan import shown_key

if TYPE_CHECKING:
    from .data.file_source import FileSource
    from .engines.backends import Backend
    from .plan import EpochRecord, Skipped
    from .switching.engine_pool import EnginePool
    from .switching.switch import SwitchState


_KNOWN_FILES = 100
_SKIPS_SHOWN = 5
_NO_INDEX = -1  # of a sample whose key is none


def some_paths(source: FileSource) -> list[str]:
    """Paths from the root of files that are spread over a data set."""
    step = max(1, len(source) // _KNOWN_FILES)
    found: list[str] = []
    for index in range(0, len(source), step):
        with suppress(Exception):  # the user's own code; another error is being reported
            located = source.locate(index)
            has_path = located.data is None and layout_of(located.part) is not None
            found += [source.absolute(located.path)] if has_path else []
    return found


def loader_state(
    loader: str, name: str, switch_state: SwitchState, pool: EnginePool, record: EpochRecord
) -> LoaderState:
    """The state of a loader with this id and name, whose newest epoch has this record."""
    knobs, source = pool.knobs, pool.setting.keyed.source
    decoders = [name for name, backend in pool.backends.items() if backend.available and name != "synthetic"]
    state = LoaderState(
        id=loader,
        name=name,
        backend=switch_state.backend,
        wanted=switch_state.wanted,
        status=switch_state.sentence,
        backends=[shown_backend(name, backend) for name, backend in pool.backends.items()],
        epoch=record.number,
        batch=record.batches,
        batches=record.batches_planned,
        samples=record.samples,
        planned=record.planned,
        lost=record.lost,
        doubled=record.doubled,
        skipped=record.skipped,
        replaced=record.replaced,
        skips=[_shown_skip(skip, source.absolute(skip.path)) for skip in record.skips[-_SKIPS_SHOWN:]],
        knobs=KnobsState(workers=knobs.workers, prefetch=knobs.prefetch, threads=knobs.threads),
        decoded={**dict.fromkeys(decoders, 0), **record.decoded},
        calibration=pool.calibration,
        finished=record.finished,
    )
    working = sum(node.workers > 0 and not node.is_ours for node in pool.nodes)
    if working:
        state["nodes"] = working
        limits = pool.remote_limits
        if limits is not None:
            state["remote"] = limits
    return state


def shown_backend(name: str, backend: Backend) -> EngineState:
    """A backend for the state: without folders in its texts, as states are recorded and sent to others."""
    reason = None if backend.reason is None else _private(backend.reason)
    note = None if backend.note is None else _private(backend.note)
    return EngineState(name=name, available=backend.available, reason=reason, confirm=backend.confirm, note=note)


def _shown_skip(skipped: Skipped, absolute: str) -> Skip:
    """A sample left out, for the state: of its file the last part of the path only, in the reason as well."""
    reason = _private(skipped.reason, skipped.path, absolute)
    path, key = last_part(skipped.path), skipped.index
    if isinstance(key, int | np.integer):
        return {"index": int(key), "path": path, "reason": reason}
    return {"index": _NO_INDEX, "path": f"{_private(shown_key(key))}: {path}", "reason": reason}


_private = lru_cache(maxsize=512)(private)  # a state is asked for ten times a second
