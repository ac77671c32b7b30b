"""`%monitor status`: a few lines for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..text import shown
from .recorder_state import words

if TYPE_CHECKING:
    from ..protocol.states import LoaderState, SettingsState
    from ..store import Store
    from .overhead import Cost
    from .session import Session


def status(session: Session, store: Store, settings: SettingsState, cost: Cost, loaders: Sequence[LoaderState]) -> str:
    """Text of `%monitor status`: state, cost, missed samples, recording, loaders and notices."""
    if session.id is None:
        return "kernel_monitor is not running. %monitor start starts it."
    schema, interval, history = store.schema, settings["interval"], settings["history"]
    state = "running" if session.running else "stopped"
    lines = [f"kernel_monitor is {state}: {store.last_seq:,} samples, one every {interval:g} s"]
    if cost["sampler"] is not None:
        lines.append(f"cost: sampler {cost['sampler']:.1f} % of a core, in the kernel {cost['kernel']:.1f} %")
    lines.append(words(session.recorder.to_json()))
    kept = schema.capacity * interval
    if kept < 0.99 * history:
        series = len(schema.series)
        lines.append(f"the charts keep {kept:.0f} s: {series:,} series fill the memory that the history may take")
    if session.missed:
        lines.append(f"{session.missed:,} samples were missed (gaps are drawn as gaps)")
    if session.restarts:
        lines.append(f"the sampler was restarted {session.restarts} times")
    if schema.gpu_reason:
        lines.append(f"no GPU rows: {schema.gpu_reason}")
    for loader in loaders:
        lines.append(f"{loader['name']}: {loader['status']}")
        lines += [f"  {engine['name']}: {engine['note']}" for engine in loader["backends"] if engine.get("note")]
    lines += step_notices()
    lines += session.notices
    return shown("\n".join(lines))


def step_notices() -> list[str]:
    """Messages about steps that cannot be measured."""
    # Only once the module is imported completely: another thread may be importing it.
    return list(getattr(sys.modules.get("kernel_monitor.steps.cuda_times"), "LOST", []))
