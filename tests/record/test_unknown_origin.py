# ruff: noqa: S608 - the statements are the tests' own
"""Whatever a recording of unknown origin holds, it is a session or a `SessionError`, in bounded time and memory.

`RECORDING_CASES` says how many are tried, `RECORDING_SEED` with which seed; 150, and always the same ones, if they are
not set; `make test-long` tries 5,000. Each kind of file that once did harm has a test of its own.
"""

from __future__ import annotations

import json
import os
import queue
import random
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_monitor.cli import main
from kernel_monitor.errors import SessionError
from kernel_monitor.record.format import TABLES
from kernel_monitor.record.reader import open_session

from . import hostile
from .recorded import session, sql, sql_many

CASES = int(os.environ.get("RECORDING_CASES", "150"))
SEED = int(os.environ.get("RECORDING_SEED", "1"))
WORKERS = 2
LONGEST_S = 5.0
LONGEST_WALL_S = 3 * LONGEST_S  # beside other tests
MOST_MB = 500
PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """A process that exercises recordings, one after the other; started anew when one ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **what: Any) -> dict[str, Any]:
        """Exercise one recording; a process that ends or goes on for a minute is an outcome, too."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.record.exercise"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()
        watch = threading.Timer(PATIENCE_S, process.kill)
        watch.start()
        line = process.stdout.readline()
        watch.cancel()
        if not line:
            self.close()
            return {"outcome": f"the process ended: {process.returncode}", "what": "", "seconds": PATIENCE_S,
                    "cpu_s": PATIENCE_S, "peak_mb": 0}  # fmt: skip
        return dict(json.loads(line))

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


def faults(answer: dict[str, Any]) -> list[str]:
    """What is wrong with an outcome, or nothing."""
    found = []
    if not answer["outcome"].startswith(("session", "refused: ")):
        found.append(answer["outcome"])
    if answer["cpu_s"] > LONGEST_S or answer["seconds"] > LONGEST_WALL_S:
        found.append(f"{answer['seconds']:.1f} s, {answer['cpu_s']:.1f} s of them computing")
    if answer["peak_mb"] > MOST_MB:
        found.append(f"{answer['peak_mb']:.0f} MB")
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base") / "base.kmsession"
    hostile.base(path)
    return path


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session whose rows are all in the table of the newest ones."""
    path = tmp_path_factory.mktemp("base") / "short.kmsession"
    hostile.base(path, rows=40)
    return path


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    found = Worker()
    yield found
    found.close()


def test_any_changed_recording_is_a_session_or_a_session_error(tmp_path: Path, base: Path, short: Path) -> None:
    print(f"RECORDING_SEED={SEED}")
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(CASES):
        numbers.put(number)
    answers: dict[int, dict[str, Any]] = {}

    def work(place: int) -> None:
        one = Worker()
        path = tmp_path / f"case-{place}.kmsession"
        while True:
            try:
                number = numbers.get_nowait()
            except queue.Empty:
                break
            case = {"bases": [str(base), str(short)], "seed": SEED, "number": number}
            # All is tried with some of each kind; the kinds take turns by threes.
            depth = 2 if number % 13 == 0 else 1 if number % 4 == 0 else 0
            answers[number] = one.ask(path=str(path), depth=depth, **case)
        one.close()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong = {number: (one["what"], faults(one)) for number, one in sorted(answers.items()) if faults(one)}
    assert wrong == {}
    assert len(answers) == CASES
    opened = sum(one["outcome"].startswith("session") for one in answers.values())
    refused = sum(one["outcome"].startswith("refused: ") for one in answers.values())
    print(f"{opened} sessions, {refused} refused")
    assert opened > CASES / 4 or CASES < 50
    assert refused > CASES / 10 or CASES < 50


# -- those that did harm ----------------------------------------------------------------------------------------------


def changed(*statements: str) -> Callable[[Path], object]:
    return lambda path: sql(path, *statements)


def endless(table: str) -> Callable[[Path], object]:
    view = f"CREATE VIEW {table} AS {hostile.ENDLESS} SELECT {hostile.COLUMNS_OF[table]} FROM c"
    return changed(f"DROP TABLE {table}", view)


def expanding(path: Path) -> None:
    """9.8 MB that unpack to ten gigabytes."""
    packer = zlib.compressobj(9, wbits=-15)
    megabyte = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)  # which may stand any number of times
    data = b"\x78\xda" + megabyte * (9_500_000 // len(megabyte)) + packer.flush() + bytes(4)
    sql(path, "UPDATE chunks SET data = ?", values=(data,))


def claiming(path: Path) -> None:
    """Blocks of two billion rows, of which there is nothing."""
    sql(path, *(f"UPDATE {table} SET n = 2147483647" for table in ("chunks", "tail", "steps")))


def repeating(path: Path) -> None:
    """Thousands of blocks of ten thousand equal rows, each of which unpacks to 300 kB."""
    head = {"rows": 10_000, "patterns": 1, "families": [{"columns": list(range(7)), "pattern": 0, "table": 1}]}
    text = json.dumps(head).encode()
    times = struct.pack("<10000d", *(1 + n / 10_000 for n in range(10_000)))
    planes = b"".join(times[place::8] for place in range(8))
    body = planes + bytes(40_000) + b"\1" + bytes(9_999) + bytes(4) + bytes(7)
    data = zlib.compress(struct.pack("<I", len(text)) + text + body, 9)
    sql(path, "DELETE FROM chunks")
    sql_many(path, "INSERT INTO chunks (layout, first, last, n, data) VALUES (1, 1, 2, 10000, ?)", [(data,)] * 3000)


def circular(path: Path) -> None:
    """A table of which every branch leads to every other: a few pages, and rows without end."""
    events = [(n, '{"kind":"mark"}' + " " * 60) for n in range(70_000)]
    sql_many(path, "INSERT INTO events (time, event) VALUES (?, ?)", events)
    ((root,),) = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'events'")
    ((size,),) = sql(path, "PRAGMA page_size")
    data = bytearray(path.read_bytes())

    def children(page: int) -> list[int]:
        begin = (page - 1) * size
        if data[begin] != 5:
            return []
        (count,) = struct.unpack(">H", data[begin + 3 : begin + 5])
        cells = struct.unpack(f">{count}H", data[begin + 12 : begin + 12 + 2 * count])
        return [begin + cell for cell in cells]

    for pointer in children(root):
        below = children(struct.unpack(">I", data[pointer : pointer + 4])[0])
        for inner in below:  # all leaves are the first one
            data[inner : inner + 4] = data[below[0] : below[0] + 4]
        first = children(root)[0]
        data[pointer : pointer + 4] = data[first : first + 4]
    path.write_bytes(data)


def large(path: Path) -> None:
    """100 MB of steps, packed as the recorder packs them, a thousandfold."""
    data = zlib.compress(bytes(45 * 200_000), 9)
    statement = "INSERT INTO steps (loader, last, n, dropped, packed, data) VALUES ('x', 1, 200000, 0, 1, ?)"
    sql_many(path, statement, [(data,)] * int(100e6 / (len(data) + 100)))


def busy(path: Path) -> None:
    """So many events, loaders and marks that what compares each with each would not end."""
    made = [
        {"kind": kind, "time": n / 100, "loader": f"l{n % 5000}", "source": "a", "target": "b", "label": "x"}
        for n, kind in enumerate(("switch", "mark", "knobs") * 20_000)
    ]
    sql_many(path, "INSERT INTO events (time, event) VALUES (0, ?)", [(json.dumps(one),) for one in made])
    steps = [(f"l{n}", struct.pack("<dIII6fB", n / 100, 0, n, 1, *[0.1] * 6, 0)) for n in range(20_000)]
    sql_many(path, "INSERT INTO steps (loader, last, n, dropped, packed, data) VALUES (?, 1, 1, 0, 0, ?)", steps)


def wide(path: Path) -> None:
    """More series than any machine has."""
    series = json.dumps([[f"cpu/{n}/busy", "%"] for n in range(200_000)])
    sql(path, f"UPDATE layouts SET series = '{series}'")


def scattered(path: Path) -> None:
    """Blocks in which each of 8,000 series is packed by itself."""
    names = [[f"s{n}", ""] for n in range(8_000)]
    head = {"rows": 1, "patterns": 0, "families": [{"columns": [n], "pattern": -1, "table": 0} for n in range(8_000)]}
    text = json.dumps(head).encode()
    moment = struct.pack("<d", 1.0)
    data = zlib.compress(struct.pack("<I", len(text)) + text + moment + bytes(4 + 32_000), 9)
    sql(path, "DELETE FROM chunks")
    sql(path, "UPDATE layouts SET series = ? WHERE id = 1", values=(json.dumps(names),))
    sql_many(path, "INSERT INTO chunks (layout, first, last, n, data) VALUES (1, 1, 1, 1, ?)", [(data,)] * 900)


def changing(path: Path) -> None:
    """Thousands of layouts, each of which names what the others do not."""
    rows = [("host", json.dumps([[f"a{n}/{k}", ""] for k in range(20)])) for n in range(4_000)]
    sql_many(path, "INSERT INTO layouts (kind, series) VALUES (?, ?)", rows)
    statement = "INSERT INTO tail (layout, first, last, n, data) SELECT id, 1, 1, 1, ? FROM layouts WHERE id > 2"
    sql(path, statement, values=(struct.pack("<d", 1.0) + bytes(4 + 80),))


def far(path: Path) -> None:
    """Rows that are years apart and say that each covers a year."""
    sql(path, "DELETE FROM chunks")
    values = bytes(40) + struct.pack("<f", 3e7) * (10 * len(hostile.SERIES))
    rows = [
        (1e6 * n, 1e6 * (n + 1), struct.pack("<10d", *(1e6 * (n + k / 10) for k in range(10))) + values)
        for n in range(300)
    ]
    sql_many(path, "INSERT INTO tail (layout, first, last, n, data) VALUES (1, ?, ?, 10, ?)", rows)


def tables(path: Path) -> None:
    """A schema of a hundred thousand tables."""
    sql(
        path,
        "PRAGMA writable_schema = ON",
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 300000) INSERT INTO sqlite_schema "
        "SELECT 'table', 't' || n, 't' || n, 2, 'CREATE TABLE t' || n || '(x)' FROM c",
    )


HARMFUL: dict[str, tuple[Callable[[Path], object], bool]] = {
    "9.8 MB that unpack to 10 GB": (expanding, True),
    "counts of two billion": (claiming, False),
    "events as an endless view": (endless("events"), False),
    "meta as an endless view": (endless("meta"), False),
    "chunks as an endless view": (endless("chunks"), False),
    "a fact that is no JSON": (changed("UPDATE meta SET value = '{' WHERE key = 'loaders'"), True),
    "an event that is no JSON": (changed("UPDATE events SET event = 'x'"), True),
    "a hello that is no JSON": (changed("UPDATE hellos SET hello = ''"), True),
    "a list too deep": (changed(f"UPDATE meta SET value = '{'[' * 200_000}' WHERE key = 'facts'"), True),
    "a number too long": (changed(f"UPDATE meta SET value = '{'9' * 10_000}' WHERE key = 'told'"), True),
    "an origin without end": (changed("UPDATE meta SET value = '1e999' WHERE key = 'origin'"), False),
    "times without end": (changed("UPDATE chunks SET last = 9e999", "UPDATE events SET time = 9e999"), False),
    "bytes that are no text": (changed("UPDATE events SET event = CAST(x'ff00fe' AS TEXT)"), True),
    "blobs for texts": (changed("UPDATE meta SET value = x'00' WHERE key <> 'session' AND key <> 'origin'"), True),
    "a trigger": (changed("CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM events; END"), False),
    "a column more": (changed("ALTER TABLE events ADD COLUMN more"), False),
    "blocks that repeat": (repeating, True),
    "a table that leads into itself": (circular, True),
    "100 MB of packed steps": (large, True),
    "events without number": (busy, True),
    "series without number": (wide, True),
    "series packed one by one": (scattered, True),
    "layouts without number": (changing, True),
    "rows years apart": (far, True),
    "tables without number": (tables, False),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_file_that_did_harm_does_none(path: Path, base: Path, worker: Worker, name: str) -> None:
    path.write_bytes(base.read_bytes())
    harm, opens = HARMFUL[name]
    harm(path)
    assert path.stat().st_size < 110e6
    answer = worker.ask(path=str(path))
    print(answer)
    assert faults(answer) == []
    assert answer["outcome"].startswith("session" if opens else "refused: ")


# -- what is bounded, and how to have more ----------------------------------------------------------------------------


def test_the_tables_are_the_recorders_letter_by_letter(path: Path) -> None:
    session(path)
    found = sql(path, "SELECT sql FROM sqlite_schema")
    assert [" ".join(one.split()) for (one,) in found] == [
        " ".join(one.split()) for one in TABLES.split(";") if one.strip()
    ]


def test_what_is_more_than_memory_should_take_is_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = session(path, 3000)
    with pytest.raises(SessionError, match=r"values to unpack, more than 1,000: name series or a range of time"):
        found.rows(most=1000)
    with pytest.raises(SessionError, match="values to unpack"):
        found.to_pandas(most=1000)
    assert len(found.rows(most=None)) == 3000
    assert len(found.rows(most=20_000, start=10.0, end=11.0)) == 10
    assert len(found.steps(most=0)["end"]) == 0


def test_of_a_very_long_session_evenly_chosen_blocks_are_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = session(path, 6000).snapshot(max_rows=500)
    monkeypatch.setattr("kernel_monitor.record.reader.SHOWN_VALUES", 40_000)
    thin = open_session(path).snapshot(max_rows=500)
    told = thin.facts["recorded"]
    assert whole.facts["recorded"]["one_in"] == 1
    assert told["one_in"] > 1
    assert told["rows"] == 6000
    assert len(thin.time) > 1
    assert thin.time[-1] - thin.time[0] > 300
    assert (abs(thin.time[1:] - thin.time[:-1]) < 1.5 * told["bin_s"]).all()  # no gap is drawn that is none


def test_the_command_line_says_a_sentence(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session(path)
    sql(path, "UPDATE hellos SET hello = '{}'", "UPDATE meta SET value = '[{}]' WHERE key = 'ended'")
    assert main(["report", str(path), "--json"]) == 0
    capsys.readouterr()
    endless("events")(path)
    for command in (["report", str(path), "--json"], ["compare", str(path), str(path)]):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert "its tables are not those of a recorded session (view 'events' is none of its own)" in told
        assert "Traceback" not in told


def test_the_seed_makes_the_case(tmp_path: Path, base: Path, short: Path) -> None:
    number = random.Random(SEED).randrange(CASES)
    for name in "ab":
        hostile.make(tmp_path / name, [base, short], SEED, number - number % 3)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
