# ruff: noqa: S608 - the statements are the tests' own
"""Recordings of unknown origin: real ones with bytes, JSON values or SQL objects changed, by a number and a seed."""

from __future__ import annotations

import json
import math
import random
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from kernel_monitor.record import codec
from kernel_monitor.record.format import STEP

from .recorded import feed, hello, recorder, waves

GPUS = [
    {"index": 0, "name": "NVIDIA H200", "memory_total": 150_000_000_000, "reasons": {"encoder": "Not Supported"}},
]
SERIES = [
    ("sample/interval", "s"), ("cpu/0/busy", "%"), ("cpu/1/busy", "%"), ("memory/used", "B"),
    ("gpu/0/utilisation", "%"), ("gpu/0/memory", "%"), ("process/kernel/cpu", "%"),
]  # fmt: skip
STATE = {
    "id": "loader-1", "name": "train", "backend": "dali-cpu", "wanted": None, "status": "dali-cpu since batch 12",
    "backends": [{"name": "dali-cpu", "available": True, "reason": None, "confirm": None}],
    "epoch": 1, "batch": 12, "batches": 64, "samples": 384, "planned": 2048, "lost": 0, "doubled": 0, "skipped": 1,
    "replaced": 0, "skips": [{"index": 7, "path": "/data/7.jpg", "reason": "no JPEG"}],
    "knobs": {"workers": 2, "prefetch": 2, "threads": 2}, "decoded": {"torchvision": 200, "dali-cpu": 184},
    "calibration": {"dali-cpu": {"state": "done", "files": 32, "seconds": 0.0081, "error": 0.0004, "reason": None}},
}  # fmt: skip
COUNTS = {"epoch": 0, "batches": 64, "samples": 2048, "planned": 2048, "lost": 0, "doubled": 0, "skipped": 0,
          "replaced": 0, "decoded": {"torchvision": 2048}}  # fmt: skip
RUN = {"backend": "torchvision", "start": 10.0, "end": 18.2, "seconds": 8.2, "steps": 106, "batches": 106,
       "samples": 3392, "rate": 412.5, "rate_low": 380.0, "rate_high": 440.0, "step": 77.6, "wait": 48.1,
       "cpu_p50": 99.5, "cpu_p95": 100.0, "gpu_p50": None, "of_ceiling": 0.38, "problem": None}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"kind": "mark", "time": 3.0, "label": "augment x12"},
    {"kind": "price", "time": 4.0, "per_hour": 2.5, "currency": "€"},
    {"kind": "prediction", "time": 20.0, "loader": "loader-1", "source": "torchvision", "target": "dali-cpu",
     "gains": [{"action": "dali-cpu", "low": 0.1, "high": 0.3, "basis": "processor time"}]},
    {"kind": "switch-asked", "time": 20.0, "loader": "loader-1", "source": "torchvision", "target": "dali-cpu"},
    {"kind": "switch", "time": 21.0, "loader": "loader-1", "source": "torchvision", "target": "dali-cpu", "epoch": 0,
     "batch": 30, "asked": 20.0, "first": 21.0, "waited": 1, "in_flight": 2},
    {"kind": "knobs", "time": 40.0, "loader": "loader-1", "workers": 4, "prefetch": 2, "threads": 2},
    {"kind": "diagnosis", "time": 50.0, "loader": "loader-1", "state": "done",
     "result": {"loader": "loader-1", "name": "train", "began": 41.0, "runs": [RUN, {**RUN, "backend": "dali-cpu"}],
                "cannot": ["x"], "predicted": [], "measured": [{"action": "dali-cpu", "measured": 0.2}]}},
    {"kind": "profile", "time": 52.0, "loader": "loader-1",
     "result": {"loader": "loader-1", "name": "train", "backend": "dali-cpu", "began": 51.0, "steps": 10,
                "cpu": [{"name": "aten::add", "share": 0.4, "self_ms": 2.5, "count": 20}],
                "gpu": [{"name": "kernel<i>", "share": 0.5, "ms": 3.5, "launches": 40}], "wall_ms": 776.0}},
    {"kind": "sample-times", "time": 55.0, "loader": "loader-1", "samples": 2000, "median": 0.0031, "slow": 20,
     "times": 40.2, "steps": 120, "held": 40, "lost": 0.2, "names": ["photo_0815.tif"], "files": True,
     "cause": "RandomRotation", "cause_share": 0.9, "transform": None, "share": 0.0},
    {"kind": "cell", "time": 60.0, "label": "for x in y", "began": 1.0, "ended": 60.0},
]  # fmt: skip


def base(path: Path, rows: int = 700) -> None:
    """A recording that has something of everything."""
    times, values = waves(rows)
    columns = [values[:, place % values.shape[1]] for place in range(len(SERIES))]
    import numpy as np

    with recorder(path) as (one, _):
        one.hello(0.0, hello(SERIES, gpus=GPUS, gpu_reason=None))
        feed(one, times, np.stack(columns, axis=1))
        delivered = {"loader/loader-1/images": 400.0, "loader/loader-1/wait": 10.0, "loader/loader-1/step": 80.0}
        one.command({"do": "values", "rows": [[t, delivered] for t in times[::2].tolist()]})
        for event in EVENTS:
            one.command({"do": "event", "event": event})
        one.command({"do": "facts", "facts": {"versions": {"torch": "2.6"}, "python": "3.12", "price": 2.5}})
        one.command({"do": "loaders", "loaders": [STATE]})
        one.command({"do": "epochs", "epochs": {"loader-1": [COUNTS]}})
        steps = [[n / 10, n // 300, n % 300, 32, 0.01, 0.08, 0.0, 0.02, 0.03, 0.01, 0] for n in range(1, 700)]
        one.command({"do": "steps", "loader": "loader-1", "rows": steps, "dropped": 0})


# -- bytes ------------------------------------------------------------------------------------------------------------


def changed_bytes(path: Path, draw: random.Random, other: bytes) -> None:
    """Bytes flipped, cut, moved and taken from another recording."""
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 5))):
        place, length = draw.randrange(len(data)), draw.choice((1, 4, 64, 4096))
        kind = draw.randrange(8)
        if kind == 0:
            data[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            for _ in range(draw.choice((3, 30, 300))):
                data[draw.randrange(len(data))] = draw.randrange(256)
        elif kind == 2:
            del data[max(120, place) :]
        elif kind == 3:
            begin = draw.randrange(len(other))
            data[place : place + length] = other[begin : begin + length]
        elif kind == 4:  # a page over another
            one, two = (4096 * draw.randrange(max(1, len(data) // 4096)) for _ in range(2))
            data[one : one + 4096] = data[two : two + 4096]
        elif kind == 5:  # the head of a page: kind, cells, where they are
            begin = 4096 * draw.randrange(max(1, len(data) // 4096))
            begin += 100 if begin == 0 else 0
            data[begin + draw.randrange(12)] = draw.choice((0, 1, 2, 5, 10, 13, 255))
        elif kind == 6:  # a number of a page, anywhere
            data[place : place + 4] = struct.pack(">I", draw.randrange(1, 20))
        else:  # the file's head
            data[draw.randrange(16, 100)] = draw.randrange(256)
    path.write_bytes(data)


# -- JSON -------------------------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 7, 1 << 31, -(1 << 63), 10**30, 0.5, 1e-300, 1e308, -1e308, math.nan, math.inf, -math.inf, "",
    "x", "x" * 5000, "\ud800", "\u202e\x00<b>", "../../x", [], {}, [None], [[]], {"": None}, [1e308] * 50,
    list(range(3000)), {"name": 7}, {"id": {}}, ["a"] * 10,
)  # fmt: skip
TEXTS = (
    "", "{", "[" * 100_000, "[" * 200 + "]" * 200, '{"a":' * 5000 + "1" + "}" * 5000, "9" * 5000, "1e999", "NaN", "\0",
    '{"id":1,"id":2}', '"\\ud800"', "[1,]", "nul", '{"kind":"mark","kind":7}', "[" + "{}," * 300_000 + "{}]",
    "[" + '"x",' * 500_000 + "1]", '"' + "y" * 1_000_000 + '"',
)  # fmt: skip
COLUMNS = (("meta", "value", "key"), ("layouts", "series", "id"), ("hellos", "hello", "id"), ("events", "event", "id"))


def changed_json(path: Path, draw: random.Random, _other: bytes) -> None:
    """Values inside the JSON texts replaced, removed, moved; or the whole text."""
    with closing(sqlite3.connect(path)) as connection:
        for _ in range(draw.choice((1, 1, 2, 4))):
            table, column, key = draw.choice((*COLUMNS, COLUMNS[0], COLUMNS[3]))
            found = connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall()
            which, text = draw.choice(found)
            new = draw.choice(TEXTS)
            if draw.random() < 0.85 and text not in TEXTS:
                new = json.dumps(_mutated(json.loads(text), draw))
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (new, which))
        connection.commit()


def _mutated(value: Any, draw: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []

    def walk(one: Any) -> None:
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, inner in list(items):
            places.append((one, key))
            walk(inner)

    walk(value)
    if not places or draw.random() < 0.1:
        return draw.choice(VALUES)
    for _ in range(draw.choice((1, 1, 3))):
        holder, key = draw.choice(places)
        try:
            if draw.random() < 0.3:
                del holder[key]
            elif draw.random() < 0.2:
                other, name = draw.choice(places)
                holder[key] = json.loads(json.dumps(other[name]))
            else:
                holder[key] = draw.choice(VALUES)
        except (KeyError, IndexError, ValueError, RecursionError):
            continue
    return value


# -- SQL --------------------------------------------------------------------------------------------------------------

ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
COLUMNS_OF = {
    "meta": "'k' || n AS key, '1' AS value",
    "events": 'n AS id, n * 1.0 AS time, \'{"kind": "mark"}\' AS event',
    "layouts": "n AS id, 'host' AS kind, '[]' AS series",
    "hellos": "n AS id, 0.0 AS time, 1 AS layout, '{}' AS hello",
    "tail": "n AS id, 1 AS layout, 0.0 AS first, 1.0 AS last, 1 AS n, x'00' AS data",
    "chunks": "n AS id, 1 AS layout, 0.0 AS first, 1.0 AS last, 1 AS n, zeroblob(1000000) AS data",
    "steps": "n AS id, 'a' AS loader, 0.0 AS last, 1 AS n, 0 AS dropped, 1 AS packed, x'00' AS data",
}
TABLES = tuple(COLUMNS_OF)
NUMBERS = ("-1", "0", "1", "2147483648", "9223372036854775807", "1e308", "-1e308", "9e999", "-9e999", "NULL", "'x'",
           "x'00ff'", "''", "zeroblob(3000000)", "10001", "700")  # fmt: skip


def view(connection: sqlite3.Connection, draw: random.Random) -> None:
    """A table's name for a view that never ends."""
    table = draw.choice(TABLES)
    connection.execute(f"DROP TABLE {table}")
    connection.execute(f"CREATE VIEW {table} AS {ENDLESS} SELECT {COLUMNS_OF[table]} FROM c")


def beside(connection: sqlite3.Connection, draw: random.Random) -> None:
    """An object beside the tables."""
    table = draw.choice(TABLES)
    connection.execute(
        draw.choice(
            (
                f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM meta; END",
                f"CREATE INDEX i ON {table} (1)",
                f"CREATE VIEW v AS SELECT * FROM {table}",
                "CREATE VIRTUAL TABLE f USING fts5(x)",
                "CREATE TABLE more (x)",
                "CREATE TABLE sqlitex_stat1 (a, b, c)",
                f"CREATE UNIQUE INDEX u ON {table} (2)" if table == "meta" else "ANALYZE",
            )
        )
    )


def remade(connection: sqlite3.Connection, draw: random.Random) -> None:
    """A table of other columns, types or kind."""
    table = draw.choice(TABLES)
    (statement,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    new = draw.choice(
        (
            statement.replace("NOT NULL", "", 1),
            statement.replace(" TEXT", " BLOB").replace(" REAL", " TEXT"),
            statement.replace(")", ", more INTEGER DEFAULT 7)", 1),
            statement.rpartition(")")[0] + ", g AS (zeroblob(1000000)))",
            statement.rpartition(")")[0] + ", CHECK (1))",
            statement.replace("INTEGER PRIMARY KEY", "INTEGER PRIMARY KEY AUTOINCREMENT"),
            statement.rpartition(")")[0] + ") WITHOUT ROWID"
            if table != "meta"
            else statement.replace("WITHOUT ROWID", ""),
            statement.replace(" NOT NULL", " NOT NULL DEFAULT 1", 1),
            f"CREATE TABLE {table} (x)",
        )
    )
    rows = connection.execute(f"SELECT * FROM {table}").fetchall()
    connection.execute(f"DROP TABLE {table}")
    connection.execute(new)
    width = len(connection.execute(f"PRAGMA table_info({table})").fetchall())
    for row in rows if len(rows) and len(rows[0]) == width else ():
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * width)})", row)


def written(connection: sqlite3.Connection, draw: random.Random) -> None:
    """The schema itself written over: statements and roots."""
    connection.execute("PRAGMA writable_schema = ON")
    table, other = draw.choice(TABLES), draw.choice(TABLES)
    connection.execute(
        draw.choice(
            (
                f"UPDATE sqlite_schema SET rootpage = {draw.randrange(1, 12)} WHERE name = '{table}'",
                f"UPDATE sqlite_schema SET sql = sql || ' ' WHERE name = '{table}'",
                f"UPDATE sqlite_schema SET type = 'index' WHERE name = '{table}'",
                f"UPDATE sqlite_schema SET name = '{other}x' WHERE name = '{table}'",
                f"UPDATE sqlite_schema SET sql = printf('%.*c', 3000000, 'x') WHERE name = '{table}'",
                f"DELETE FROM sqlite_schema WHERE name = '{table}'",
                f"INSERT INTO sqlite_schema SELECT * FROM sqlite_schema WHERE name = '{table}'",
            )
        )
    )


def odd_values(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Columns that hold what they never do, in one row or in all."""
    for _ in range(draw.choice((1, 2, 5))):
        table = draw.choice(TABLES)
        column = draw.choice([row[1] for row in connection.execute(f"PRAGMA table_info({table})")])
        some = "" if draw.random() < 0.3 else f" WHERE rowid % {draw.randrange(1, 4)} = 0" if table != "meta" else ""
        try:
            connection.execute(f"UPDATE {table} SET {column} = {draw.choice(NUMBERS)}{some}")
        except sqlite3.IntegrityError:
            continue


def bomb(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Chunks or steps that unpack to much more than they are, or claim to."""
    rows = draw.choice((1, 700, 10_000, 10_001, 1 << 31))
    size = draw.choice((1_000_000, 20_000_000))
    if draw.random() < 0.5:
        head = {"rows": rows, "patterns": draw.choice((0, 1, 10**6)), "families": draw.choice((
            [{"columns": list(range(7)), "pattern": -1, "table": 0}],
            [{"columns": [0] * 200_000, "pattern": -1, "table": 0}],
            [{"columns": [10**9], "pattern": -1, "table": 10**9}],
            [{"columns": [0, 1, 2, 3, 4, 5, 6], "pattern": 0, "table": 1}],
            [{"columns": [], "pattern": -1, "table": 4096}] * 5000,
        ))}  # fmt: skip
        text = json.dumps(head).encode()
        data = zlib.compress(struct.pack("<I", draw.choice((len(text), 1 << 31))) + text + bytes(size), 1)
        connection.execute("UPDATE chunks SET n = ?, data = ?", (rows, data))
    else:
        data = zlib.compress(bytes(draw.choice((size, STEP.size * rows if rows < 1 << 20 else 0))), 1)
        connection.execute("UPDATE steps SET n = ?, data = ?, packed = 1", (rows, data))


def many(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Many rows, columns, objects."""
    kind = draw.randrange(7)
    counted = f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT {draw.choice((500, 5_000))})"
    if kind == 0:
        event = draw.choice((EVENTS[4], EVENTS[0], {**EVENTS[5], "loader": "x"}))
        connection.execute(
            f"INSERT INTO events (time, event) {counted} SELECT n / 100.0, ? FROM c", (json.dumps(event),)
        )
    elif kind == 1:
        connection.execute(
            f"INSERT INTO events (time, event) {counted} SELECT n / 9.0, "
            '\'{"kind":"switch","time":\' || n || \',"loader":"l\' || n || \'","source":"a","target":"b"}\' FROM c'
        )
    elif kind == 2:
        connection.execute(
            f"INSERT INTO steps (loader, last, n, dropped, packed, data) {counted} "
            "SELECT 'l' || n, 1, 1, 0, 0, zeroblob(45) FROM c"
        )
    elif kind == 3:
        connection.execute(
            f"INSERT INTO tail (layout, first, last, n, data) {counted} "
            "SELECT layout, first, last, one.n, data FROM c, (SELECT * FROM chunks LIMIT 1) AS one"
        )
    elif kind == 4:
        series = [[f"cpu/{n}/busy", "%"] for n in range(draw.choice((5_000, 30_000)))]
        connection.execute("UPDATE layouts SET series = ?", (json.dumps(series),))
    elif kind == 5:
        connection.execute(
            f"INSERT INTO layouts (kind, series) {counted} SELECT 'host', '[[\"s' || n || '\",\"\"]]' FROM c"
        )
    else:
        for number in range(300):
            connection.execute(f"CREATE TABLE t{number} (x)")


def odd_blocks(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Rows and steps whose times and values are no measurements, well packed."""
    rows, width = draw.choice((1, 50, 700)), 7
    odd = (math.nan, math.inf, -math.inf, 1e308, -1e308, 3.2e8, 1e-300, 0.0)
    scale = draw.choice((0.1, 1e6, 1e300))
    times = [draw.choice(odd) if draw.random() < 0.05 else draw.random() * scale for _ in range(rows)]
    if draw.random() < 0.7:
        times.sort()
    cells = [
        draw.choice((math.nan, math.inf, -math.inf, 3e38, -3e38, 1e20, 60.0, 0.0, 1e-40)) for _ in range(rows * width)
    ]
    one = codec.encode(
        [name for name, _ in SERIES],
        struct.pack(f"<{rows}d", *times),
        bytes(4 * rows),
        struct.pack(f"<{rows * width}f", *cells),
    )
    data = b""
    while not data:
        try:
            next(one)
        except StopIteration as end:
            data = end.value
    finite = [time for time in times if math.isfinite(time)] or [0.0]
    connection.execute(
        "UPDATE chunks SET n = ?, data = ?, first = ?, last = ? WHERE layout = 1",
        (rows, data, min(finite), max(finite)),
    )
    steps = b"".join(
        STEP.pack(
            draw.choice((*odd, 5.0)),
            draw.choice((0, 1 << 31)),
            0,
            (1 << 32) - 1,
            *(cells[k % len(cells)] for k in range(6)),
            7,
        )
        for _ in range(200)
    )
    connection.execute("UPDATE steps SET n = 200, packed = 0, data = ?", (steps,))


OBJECTS: tuple[Callable[[sqlite3.Connection, random.Random], None], ...] = (
    view, beside, remade, written, odd_values, odd_values, bomb, many, odd_blocks,
)  # fmt: skip


def changed_objects(path: Path, draw: random.Random, _other: bytes) -> None:
    """The database itself: objects, types, counts."""
    for _ in range(5):
        with closing(sqlite3.connect(path)) as connection:
            try:
                draw.choice(OBJECTS)(connection, draw)
                connection.commit()
            except sqlite3.Error:
                continue  # SQLite makes no such thing: another one
            return


KINDS: tuple[Callable[[Path, random.Random, bytes], None], ...] = (changed_bytes, changed_json, changed_objects)


def make(path: Path, bases: list[Path], seed: int, number: int) -> str:
    """Write case `number` of `seed` to `path`; returns what it is, in words."""
    draw = random.Random(f"{seed}/{number}")
    kind = KINDS[number % len(KINDS)]
    chosen = int(draw.random() < 0.25)
    shutil.copyfile(bases[chosen], path)
    other = bases[1 - chosen].read_bytes()
    kind(path, draw, other)
    return f"{kind.__name__} of {bases[chosen].name}"
