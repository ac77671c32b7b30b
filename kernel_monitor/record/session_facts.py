"""Opens a session's file for reading, wherever it comes from, and reads what it says of itself."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import sqlite3
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kernel_monitor.errors import SessionError
from kernel_monitor.node_sources import Node
from kernel_monitor.rank import Rank

from . import validation
from .format import (
    APPLICATION_ID,
    BLOCK_COST,
    BLOCK_ROWS,
    BLOCKS,
    EPOCHS,
    EVENTS,
    EVENTS_SHOWN,
    FAMILY_COST,
    FORMAT,
    HOST,
    INSTRUCTIONS,
    LAYOUTS,
    MOST_LOADERS,
    NODES,
    RANKS,
    ROW_BYTES,
    SCHEMA_INSTRUCTIONS,
    SEGMENTS,
    SERIES,
    SESSION_S,
    STATEMENT_BYTES,
    TABLES,
    wal_of,
)
from .validation import Budget, parse

# ---- Reads what a session's file says of itself: facts, loaders' states, events, layouts, hellos, and the list of
# rows.

_CHANGES = ("switch", "knobs", "mark")
_CORE = re.compile(r"cpu/(\d{1,6})/busy")
_NO_HELLO: dict[str, Any] = {
    "interval": 0.1,
    "cpus": [],
    "gpus": [],
    "gpu_reason": "the sampler's hello cannot be read",
    "host": {},
}
"""Replaces the sampler's hello where it cannot be read."""


def read_meta(connection: sqlite3.Connection, damage: list[str]) -> dict[str, Any]:
    """Return the facts by name (`validation.META`), as far as they are there."""
    found: dict[str, Any] = {}
    for key, shape in validation.META.items():
        row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is not None:
            try:
                value = parse(row[0])
                found[key] = None if value is None else validation.fit(value, shape)
            except ValueError as error:
                damage.append(f"{key}: {error}")
    return {key: value for key, value in found.items() if value is not None}


def states(meta: dict[str, Any], damage: list[str]) -> list[dict[str, Any]]:
    """Return the loaders' last states, each with `epochs`, the counts of its earlier epochs, where there are some."""
    epochs = meta.get("epochs") or {}
    found: dict[str, dict[str, Any]] = {}
    left = EPOCHS
    for entry in (meta.get("loaders") or [])[-MOST_LOADERS:]:
        try:
            state = validation.fit(entry, validation.STATE)
            counts = epochs.get(state["id"], entry.get("epochs"))
            state.pop("epochs", None)
            found[state["id"]] = state
            if counts is not None:
                every = validation.fit(counts, [validation.COUNTS])
                state["epochs"] = every[max(0, len(every) - left) :]
                left -= len(state["epochs"])
                if len(state["epochs"]) < len(every):
                    damage.append(f"the counts of all but {EPOCHS:,} epochs")
        except validation.ShapeError as error:
            damage.append(f"the state of a loader: {error}")
    return list(found.values())


def nodes(meta: dict[str, Any], series: Iterable[str], damage: list[str]) -> tuple[Node, ...]:
    """Return the other machines that have `series`, in their last known state; none for sessions of older versions.

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
            node_state = validation.fit(entry, validation.NODE)
            known[node_state["id"]] = node_state
        except validation.ShapeError as error:
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
    """Return the names of so many GPUs."""
    return tuple(names[k] if k < len(names) else f"GPU {k}" for k in range(count))


def ranks(meta: dict[str, Any], series: Iterable[str], damage: list[str]) -> tuple[Rank, ...]:
    """Return the ranks that have `series`, as they were known last; of a session of an older version there are none."""
    parts: dict[str, set[str]] = {}
    for name in series:
        kind, _, rest = name.partition("/")
        rank, _, part = rest.partition("/")
        if kind == "rank":
            parts.setdefault(rank, set()).add(part)
    found = []
    for entry in (meta.get("ranks") or [])[-RANKS:]:
        try:
            known = validation.fit(entry, validation.RANK)
            if known["id"] in parts:
                found.append(Rank(**{**known, "steps": "step" in parts[known["id"]]}))
        except (validation.ShapeError, TypeError) as error:
            damage.append(f"the state of a rank: {error}")
    return tuple(found)


def read_events(connection: sqlite3.Connection, damage: list[str]) -> list[dict[str, Any]]:
    """Return the events, oldest first, each with its `id`."""
    found: list[dict[str, Any]] = []
    for number, value in _texts(connection, "event", "events", EVENTS, damage, validation.event):
        shown = value.get("id")
        found.append({**value, "id": shown if isinstance(shown, int) else number})
    found.reverse()
    return sorted(found, key=lambda event: float(event["time"]))


def shown_events(events: list[dict[str, Any]], loaders: set[str], damage: list[str]) -> list[dict[str, Any]]:
    """Return the newest of `events` (oldest first) that can be shown; `loaders` are the ids in states and steps."""
    kept: list[dict[str, Any]] = []
    kinds: Counter[str] = Counter()
    known = set(loaders)
    segments = 0
    for event in reversed(events):
        kind, loader = event["kind"], event.get("loader")
        if loader is not None and loader not in known and len(known) >= MOST_LOADERS:
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
    """Return number, kind and series of each layout, the host's first, until they have too many series together."""
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
    """Return the layout of the newest hello, and the hello without its series."""
    row = connection.execute("SELECT layout, hello FROM hellos ORDER BY id DESC LIMIT 1").fetchone()
    if row is None:
        return None, _NO_HELLO
    layout = row[0] if isinstance(row[0], int) else None
    try:
        return layout, validation.hello(parse(row[1]))
    except ValueError as error:
        damage.append(f"the sampler's hello: {error}")
        return layout, _NO_HELLO


def _texts(
    connection: sqlite3.Connection,
    column: str,
    table: str,
    most: int,
    damage: list[str],
    shape: Callable[[Any], Any],
    budget: Budget | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield the newest well-formed values of a column of JSON texts, and the numbers of their rows; the newest first.

    `table` may have a condition behind it; `budget` is shared with other texts.
    """
    budget = budget or Budget()
    left_out, why = 0, ""
    for number, text in read_rows(connection, table, f"id, {column}", f"ORDER BY id DESC LIMIT {most}", damage):
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


def read_rows(
    connection: sqlite3.Connection, table: str, columns: str, rest: str, damage: list[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table up to the first that cannot be read."""
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
        """Return the cost of decoding it, in values (limits: `format`).

        `width` series of its layout and `families` of them (`codec`) are unpacked; the result has the `wanted` ones.
        """
        return self.rows * (wanted + width // 4 + 4) + FAMILY_COST * families + BLOCK_COST


def stored(connection: sqlite3.Connection, damage: list[str]) -> list[Stored]:
    """Return all runs of a session's file, by their times; malformed ones are described in `damage` and left out."""
    found: list[Stored] = []
    for table in ("chunks", "tail"):
        left_out = 0
        for row in read_rows(
            connection, table, "id, layout, first, last, n", f"ORDER BY id LIMIT {BLOCKS + 1}", damage
        ):
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


def time_range(connection: sqlite3.Connection) -> tuple[float, float]:
    """Return the session times of the host's oldest and newest row; NaN where there is none."""
    hosts = {number for number, kind in connection.execute("SELECT id, kind FROM layouts LIMIT 100000") if kind == HOST}
    runs = [run for run in stored(connection, []) if run.layout in hosts]
    return (runs[0].first, max(run.last for run in runs)) if runs else (math.nan, math.nan)


# ---- Opens a session's file for reading, whatever became of its writer and wherever the file comes from.

_TABLES = {" ".join(statement.split()) for statement in TABLES.split(";") if statement.strip()}
_STRIDE = 1000  # instructions between two checks of their number
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: ROW_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: STATEMENT_BYTES,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_UNREACHABLE = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_IOERR")


class OtherFormat(SessionError):
    """The error for an intact session that another version of this package wrote and this version cannot read."""


class Access:
    """Read access to a session's file; a SessionError if it is missing, no session, empty or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = path
        self._is_copy = False
        with _as_session_error(path):
            if not path.is_file():
                if path.exists():
                    raise SessionError(f"{path} is not a recorded session: it is no file.")
                raise SessionError(f"There is no session at {path}.")
            try:
                self._open().close()
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith(_UNREACHABLE):
                    raise
                self._copy()
                self._open().close()

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a read transaction: all reads see the same state; failures are SessionErrors."""
        with _as_session_error(self.path), closing(self._open()) as connection:
            connection.execute("BEGIN")
            yield connection

    def _open(self) -> sqlite3.Connection:
        place = self._place.resolve()
        written = any(place.with_name(place.name + end).exists() for end in ("-wal", "-journal"))
        # A file without a log has no writer, and is opened without any file beside it.
        mode = "rw" if self._is_copy else "ro" if written else "ro&immutable=1"
        uri = f"{place.as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0, check_same_thread=False)
        try:
            limit_resources(connection, SCHEMA_INSTRUCTIONS)
            connection.execute("PRAGMA query_only = ON")
            _check_format(connection, self.path)
            limit_resources(connection)
        except BaseException:  # an interrupt, too, must leave no open connection
            connection.close()
            raise
        return connection

    def _copy(self) -> None:
        """Read a temporary copy, which goes with this object.

        On a read-only or full medium SQLite cannot make the files that reading a log needs.
        """
        folder = tempfile.mkdtemp(prefix="kernel_monitor-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        place, self._place, self._is_copy = self._place.resolve(), Path(folder, self.path.name), True
        shutil.copyfile(place, self._place)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(wal_of(place), wal_of(self._place))


def limit_resources(connection: sqlite3.Connection, instructions: int = INSTRUCTIONS) -> None:
    """Bound the time and memory that SQLite spends on the file that `connection` has open."""
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    left = instructions // _STRIDE

    def spent() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(spent, _STRIDE)
    connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Raise a SessionError if this is no session of this format, with its tables and nothing else."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application == 0:
        raise SessionError(f"{path} is not a recorded session, or nothing was recorded in it.")
    if application != APPLICATION_ID:
        raise SessionError(f"{path} is not a recorded session: it is a database of another program.")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT:
        raise OtherFormat(
            f"{path} has format {version}; this version of kernel_monitor reads format {FORMAT}. "
            "The newest version reads the newest format: pip install --upgrade kernel-monitor"
        )
    found = connection.execute("SELECT type, name, sql FROM sqlite_schema LIMIT ?", (len(_TABLES) + 1,)).fetchall()
    strange = [f"{kind} {name!r:.60}" for kind, name, sql in found if " ".join(str(sql).split()) not in _TABLES]
    if strange or len(found) != len(_TABLES):
        what = f"{strange[0]} is none of its own" if strange else "some are missing"
        raise SessionError(f"{path} is damaged: its tables are not those of a recorded session ({what}).")


@contextmanager
def _as_session_error(path: Path) -> Iterator[None]:
    """Turn SQLite's and the system's errors into a SessionError with the file, the cause and the remedy."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_NOTADB":
            raise SessionError(f"{path} is not a recorded session.") from error
        if name.startswith("SQLITE_CORRUPT"):
            raise SessionError(f"{path} is damaged: {error}. A copy of it may be intact.") from error
        if name.startswith(("SQLITE_INTERRUPT", "SQLITE_TOOBIG")):
            raise SessionError(f"{path} is damaged: it holds more than any recording ({error}).") from error
        raise SessionError(f"{path} cannot be read: {error}.") from error
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:  # SQLite's message quotes what is damaged
        raise SessionError(f"{path} is damaged: the names of its tables cannot be read.") from error
