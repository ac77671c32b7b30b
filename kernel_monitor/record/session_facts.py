"""Reads what a session's file says of itself: facts, loaders' states, events, layouts, hellos, and the list of rows.

Malformed parts are left out: each function appends a description of each to the list `damage`.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from kernel_monitor.node_sources import Node
from kernel_monitor.ranks.rank import Rank

from . import validation
from .file_limits import (
    BLOCK_COST,
    BLOCK_ROWS,
    BLOCKS,
    EPOCHS,
    EVENTS,
    EVENTS_SHOWN,
    FAMILY_COST,
    LAYOUTS,
    LOADERS,
    NODES,
    RANKS,
    SEGMENTS,
    SERIES,
    SESSION_S,
)
from .format import HOST
from .validation import Budget, parse

_CHANGES = ("switch", "knobs", "mark")
_CORE = re.compile(r"cpu/(\d{1,6})/busy")
NO_HELLO: dict[str, Any] = {
    "interval": 0.1,
    "cpus": [],
    "gpus": [],
    "gpu_reason": "the sampler's hello cannot be read",
    "host": {},
}
"""Replaces the sampler's hello where it cannot be read."""


def read_meta(connection: sqlite3.Connection, damage: list[str]) -> dict[str, Any]:
    """The facts by name (`validation.META`), as far as they are there."""
    found: dict[str, Any] = {}
    for key, shape in validation.META.items():
        row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is not None:
            try:
                value = parse(row[0])
                found[key] = None if value is None else validation.fitted(value, shape)
            except ValueError as error:
                damage.append(f"{key}: {error}")
    return {key: value for key, value in found.items() if value is not None}


def states(meta: dict[str, Any], damage: list[str]) -> list[dict[str, Any]]:
    """The loaders' last states, each with `epochs`, the counts of its earlier epochs, where there are some."""
    epochs = meta.get("epochs") or {}
    found: dict[str, dict[str, Any]] = {}
    left = EPOCHS
    for entry in (meta.get("loaders") or [])[-LOADERS:]:
        try:
            state = validation.fitted(entry, validation.STATE)
            counts = epochs.get(state["id"], entry.get("epochs"))
            state.pop("epochs", None)
            found[state["id"]] = state
            if counts is not None:
                every = validation.fitted(counts, [validation.COUNTS])
                state["epochs"] = every[max(0, len(every) - left) :]
                left -= len(state["epochs"])
                if len(state["epochs"]) < len(every):
                    damage.append(f"the counts of all but {EPOCHS:,} epochs")
        except validation.Misfit as error:
            damage.append(f"the state of a loader: {error}")
    return list(found.values())


def nodes(meta: dict[str, Any], series: Iterable[str], damage: list[str]) -> tuple[Node, ...]:
    """The other machines that have `series`, as they were known last; of a session of an older version there are none.

    The cores are those of which there are series.
    """
    cores: dict[str, list[int]] = {}
    gpus: dict[str, int] = {}
    for name in series:
        first, _, rest = name.partition("/")
        node, _, part = rest.partition("/")
        if first == "node":
            found = _CORE.fullmatch(part)
            cores.setdefault(node, []).extend([int(found[1])] if found else [])
            if part.startswith("gpu/") and part.endswith("/utilisation"):
                gpus[node] = gpus.get(node, 0) + 1
    known: dict[str, dict[str, Any]] = {}
    for entry in (meta.get("nodes") or [])[-NODES:]:
        try:
            node_state = validation.fitted(entry, validation.NODE)
            known[node_state["id"]] = node_state
        except validation.Misfit as error:
            damage.append(f"the state of a node: {error}")
    order = [*(node for node in known if node in cores), *(node for node in cores if node not in known)][-NODES:]
    return tuple(
        Node(
            id=node,
            name=known.get(node, {}).get("name") or node,
            cores=tuple(sorted(cores[node])),
            alive=known.get(node, {}).get("alive", True),
            reason=known.get(node, {}).get("reason"),
            gpus=_gpus(gpus.get(node, 0), known.get(node, {}).get("gpus", [])),
        )
        for node in order
    )


def _gpus(count: int, names: list[str]) -> tuple[str, ...]:
    """The names of so many GPUs."""
    return tuple(names[k] if k < len(names) else f"GPU {k}" for k in range(count))


def ranks(meta: dict[str, Any], series: Iterable[str], damage: list[str]) -> tuple[Rank, ...]:
    """The ranks that have `series`, as they were known last; of a session of an older version there are none."""
    parts: dict[str, set[str]] = {}
    for name in series:
        kind, _, rest = name.partition("/")
        rank, _, part = rest.partition("/")
        if kind == "rank":
            parts.setdefault(rank, set()).add(part)
    found = []
    for entry in (meta.get("ranks") or [])[-RANKS:]:
        try:
            known = validation.fitted(entry, validation.RANK)
            if known["id"] in parts:
                found.append(Rank(**{**known, "steps": "step" in parts[known["id"]]}))
        except (validation.Misfit, TypeError) as error:
            damage.append(f"the state of a rank: {error}")
    return tuple(found)


def read_events(connection: sqlite3.Connection, damage: list[str]) -> list[dict[str, Any]]:
    """The events, oldest first, each with its `id`."""
    found: list[dict[str, Any]] = []
    for number, value in _texts(connection, "event", "events", EVENTS, damage, validation.event):
        shown = value.get("id")
        found.append({**value, "id": shown if isinstance(shown, int) else number})
    found.reverse()
    return sorted(found, key=lambda event: float(event["time"]))


def shown_events(events: list[dict[str, Any]], loaders: set[str], damage: list[str]) -> list[dict[str, Any]]:
    """The newest of `events` (oldest first), as many as can be shown; `loaders` are the ids in states and steps."""
    kept: list[dict[str, Any]] = []
    kinds: Counter[str] = Counter()
    known = set(loaders)
    segments = 0
    for event in reversed(events):
        kind, loader = event["kind"], event.get("loader")
        if loader is not None and loader not in known and len(known) >= LOADERS:
            continue
        if kind in _CHANGES:
            segments += max(1, len(known)) if kind == "mark" else 1
        kinds[kind] += 1
        if kinds[kind] > EVENTS_SHOWN or (kind in _CHANGES and segments > SEGMENTS):
            continue
        kept.append(event)
        known |= set() if loader is None else {loader}
    if len(kept) < len(events):
        damage.append(f"the oldest {len(events) - len(kept):,} of {len(events):,} events: more than can be shown")
    return kept[::-1]


def read_layouts(connection: sqlite3.Connection, damage: list[str]) -> list[tuple[int, str, list[tuple[str, str]]]]:
    """Number, kind and series of each layout, as far as they have not too many series together: the host's first."""
    kinds = dict(connection.execute("SELECT id, kind FROM layouts ORDER BY id DESC LIMIT ?", (LAYOUTS,)))
    found: list[tuple[int, str, list[tuple[str, str]]]] = []
    known: set[str] = set()
    budget = Budget()
    # The machines of a cluster may have more series than can be read; without the host's there is nothing to show.
    for table in (f"layouts WHERE kind = '{HOST}'", f"layouts WHERE kind <> '{HOST}'"):
        for number, series in _texts(connection, "series", table, LAYOUTS, damage, validation.layout, budget):
            new = {name for name, _ in series} - known
            if len(known) + len(new) > SERIES:
                damage.append(f"a layout that makes more than {SERIES:,} series")
                continue
            known |= new
            found.append((number, str(kinds.get(number)), series))
    return sorted(found, key=lambda entry: entry[0])


def read_hello(connection: sqlite3.Connection, damage: list[str]) -> tuple[int | None, dict[str, Any]]:
    """The layout of the newest hello, and the hello without its series."""
    row = connection.execute("SELECT layout, hello FROM hellos ORDER BY id DESC LIMIT 1").fetchone()
    if row is None:
        return None, NO_HELLO
    layout = row[0] if isinstance(row[0], int) else None
    try:
        return layout, validation.hello(parse(row[1]))
    except ValueError as error:
        damage.append(f"the sampler's hello: {error}")
        return layout, NO_HELLO


def _texts(
    connection: sqlite3.Connection,
    column: str,
    table: str,
    most: int,
    damage: list[str],
    shape: Callable[[Any], Any],
    budget: Budget | None = None,
) -> Iterator[tuple[int, Any]]:
    """The newest well-formed values of a column of JSON texts, and the numbers of their rows; the newest first.

    `table` may have a condition behind it; `budget` is shared with other texts.
    """
    budget = budget or Budget()
    left_out, why = 0, ""
    for number, text in listed(connection, table, f"id, {column}", f"ORDER BY id DESC LIMIT {most}", damage):
        try:
            value = shape(parse(text, budget))
        except ValueError as error:
            left_out, why = left_out + 1, why or str(error)
            if budget.spent:
                why = f"the older rows: {error}"
                break
        else:
            yield number, value
    if left_out:
        damage.append(f"{left_out} of the {table.partition(' ')[0]} ({why})")


def listed(
    connection: sqlite3.Connection, table: str, columns: str, rest: str, damage: list[str]
) -> Iterator[tuple[Any, ...]]:
    """The rows of a table up to the first that cannot be read."""
    try:
        yield from connection.execute(f"SELECT {columns} FROM {table} {rest}")  # noqa: S608
    except sqlite3.DatabaseError as error:
        damage.append(f"the list of {table.partition(' ')[0]}: {error}")


class Stored(NamedTuple):
    """A run of rows in the file: a row of its `table` (`chunks` or `tail`), from session time `first` to `last`."""

    table: str
    id: int
    layout: int
    first: float
    last: float
    rows: int

    def cost(self, width: int, families: int, wanted: int) -> int:
        """The cost of decoding it, in values (`file_limits`).

        `width` series of its layout and `families` of them (`codec`) are unpacked; the result has the `wanted` ones.
        """
        return self.rows * (wanted + width // 4 + 4) + FAMILY_COST * families + BLOCK_COST


def stored(connection: sqlite3.Connection, damage: list[str]) -> list[Stored]:
    """All runs of a session's file, by their times; malformed ones are described in `damage` and left out."""
    found: list[Stored] = []
    for table in ("chunks", "tail"):
        left_out = 0
        for row in listed(connection, table, "id, layout, first, last, n", f"ORDER BY id LIMIT {BLOCKS + 1}", damage):
            number, layout, first, last, rows = row
            counted = all(isinstance(value, int) for value in (number, layout, rows)) and 0 < rows <= BLOCK_ROWS
            timed = isinstance(first, int | float) and isinstance(last, int | float)
            if counted and timed and -SESSION_S <= first <= last <= SESSION_S:
                found.append(Stored(table, number, layout, float(first), float(last), rows))
            else:
                left_out += 1
        if left_out:
            damage.append(f"{left_out} {table} whose times or counts are impossible")
    if len(found) > BLOCKS:
        damage.append(f"the blocks after the first {BLOCKS:,}")
        del found[BLOCKS:]
    return sorted(found, key=lambda run: (run.first, run.id))


def ends(connection: sqlite3.Connection) -> tuple[float, float]:
    """Session times of the oldest and the newest of the host's rows; NaN where there is none."""
    hosts = {number for number, kind in connection.execute("SELECT id, kind FROM layouts LIMIT 100000") if kind == HOST}
    runs = [run for run in stored(connection, []) if run.layout in hosts]
    return (runs[0].first, max(run.last for run in runs)) if runs else (math.nan, math.nan)
