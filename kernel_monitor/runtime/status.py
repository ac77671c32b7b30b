"""What `%monitor status` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..store import Store
from .overhead import Cost
from .recorder import words
from .session import Session

if TYPE_CHECKING:
    from ..protocol.states import LoaderState, SettingsState


def loader_words(loader: LoaderState) -> str:
    """The state of a loader of this process: in the past tense where it has ended."""
    if loader.get("ended"):
        return f"has ended, was on {loader['backend']}"
    return loader["status"]


def lines(session: Session, store: Store, settings: SettingsState, cost: Cost) -> list[str]:
    """What runs, what it costs, what was missed, where it is recorded; the states of loaders, machines and ranks."""
    schema, interval, history = store.schema, settings["interval"], settings["history"]
    state = "running" if session.running else "stopped"
    found = [f"kernel_monitor is {state}: {store.last_seq:,} samples, one every {interval:g} s"]
    if cost["sampler"] is not None:
        found.append(f"cost: sampler {cost['sampler']:.1f} % of a core, in the kernel {cost['kernel']:.1f} %")
    found.append(words(session.recorder.to_json()))
    kept = schema.capacity * interval
    if kept < 0.99 * history:
        series = len(schema.series)
        found.append(f"the charts keep {kept:.0f} s: {series:,} series fill the memory that the history may take")
    if session.missed:
        found.append(f"{session.missed:,} samples were missed (gaps are drawn as gaps)")
    if session.restarts:
        found.append(f"the sampler was restarted {session.restarts} times")
    if schema.gpu_reason:
        found.append(f"no GPU rows: {schema.gpu_reason}")
    for loader in session.tracker.states():
        found.append(f"{loader['name']}: {loader_words(loader)}")
        if loader.get("ended"):
            continue
        found += [f"  {engine['name']}: {engine['note']}" for engine in loader["backends"] if engine.get("note")]
    found += [f"{loader['name']}: {loader['status']}" for loader in session.ranks.loader_states()]
    for node in session.nodes.nodes:
        found.append(f"machine {node.name}: {f'{len(node.cores)} cores' if node.alive else f'gone: {node.reason}'}")
    return [*found, *session.ranks.lines()]
