"""Steps as they are recorded: with their phases, and what is left of damaged ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_monitor.record.format import FORMAT
from kernel_monitor.record.reader import Session, open_session
from kernel_monitor.record.row_table import read_steps
from kernel_monitor.record.session_file import STEPS_PACKED, OtherFile, SessionFile
from kernel_monitor.steps.measured_step import ON_DEVICE, WARM_UP, Step
from kernel_monitor.store import Snapshot

from .recorded import feed, recorder, sql, waves


def made(count: int, start: float = 0.1, seed: int = 0) -> list[Step]:
    """Steps with phases; every third has none, as before a model was watched."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        wait, *phases = random.uniform(0.001, 0.02, 5).tolist()
        if number % 3 == 0:
            phases = [math.nan] * 4
        flags = WARM_UP if number < 3 else ON_DEVICE if number % 3 else 0
        found.append(Step(start + number / 10, 0, number, 32, wait, 0.1, *phases)._replace(flags=flags))
    return found


def recorded(path: Path, of: dict[str, list[Step]], dropped: int = 0, rows: int = 30) -> Session:
    """A session in which these loaders made these steps."""
    with recorder(path, rows=rows) as (one, told):
        for loader, steps in of.items():
            for at in range(0, len(steps), 100):
                one.command({"do": "steps", "loader": loader, "rows": steps[at : at + 100], "dropped": dropped})
    assert told.warnings == []
    return open_session(path)


def same(found: Any, steps: list[Step]) -> None:
    """Every field as it was, to a float32 where it is a duration; NaN where it was not measured."""
    for place, name in enumerate(Step._fields):
        wanted = np.array([step[place] for step in steps], dtype=found[name].dtype)
        assert np.array_equal(found[name], wanted, equal_nan=wanted.dtype.kind == "f"), name


def test_steps_come_back_with_their_phases_and_flags(path: Path) -> None:
    steps, others = made(STEPS_PACKED + 100), made(1, start=7.0, seed=1)  # packed, and one that is not worth it
    found = recorded(path, {"loader-1": steps, "loader-2": others}, dropped=2)
    table = found.snapshot().steps
    assert table.loaders == ("loader-1", "loader-2")
    same(table.of("loader-1"), steps)
    same(table.of("loader-2"), others)
    assert table.dropped == 2 * (len(steps) // 100 + 1)
    assert (np.diff(table.rows["end"]) >= 0).all()
    arrays = found.steps()
    assert set(arrays) == {"loader", *Step._fields}
    mine = arrays["loader"] == "loader-1"
    same({name: arrays[name][mine] for name in Step._fields}, steps)
    assert found.check() == []
    again = Snapshot.from_bytes(found.snapshot().to_bytes()).steps
    assert (again.loaders, again.dropped) == (table.loaders, table.dropped)
    assert again.rows.tobytes() == table.rows.tobytes()


def test_what_an_older_kernel_tells_and_what_json_calls_null_is_taken(path: Path) -> None:
    with recorder(path, rows=10) as (one, told):
        one.command({"do": "steps", "loader": "x", "rows": [[0.5, 1, 2, 3, 0.25, 0.5]]})
        one.command({"do": "steps", "loader": "x", "rows": [[0.75, 1, 3, 3, None, 0.5, None, 0.125, None, None, 4]]})
    table = open_session(path).steps()
    assert told.states == ["recording", "off"]
    assert table["step"].tolist() == [0.5, 0.5]
    assert table["forward"][1] == 0.125
    assert table["flags"].tolist() == [0, 4]
    assert np.isnan([table["forward"][0], table["wait"][1], table["copy"][1]]).all()


@pytest.mark.parametrize(
    "row",
    [
        [math.nan, 0, 0, 1, 0.1, 0.1],
        [math.inf, 0, 0, 1, 0.1, 0.1],
        [1.0, -1, 0, 1, 0.1, 0.1],
        [1.0, 0, 0, 1, 1e60, 0.1],
        [1.0, 0, 0, 1, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0, 256],
        [1.0, 0, 0],
        "step",
    ],
)
def test_a_step_that_is_none_is_told_and_the_recording_goes_on(path: Path, row: Any) -> None:
    with recorder(path, rows=0) as (one, told):
        one.command({"do": "steps", "loader": "x", "rows": [row]})
        one.command({"do": "steps", "loader": "x", "rows": [[1.0, 0, 0, 1, 0.1, 0.1]]})
        feed(one, *waves(10))
    assert told.warnings == ["Not recorded: 'steps' from the kernel "]
    found = open_session(path)
    assert found.steps()["end"].tolist() == [1.0]
    assert len(found.rows()) == 10


def test_of_very_many_steps_a_report_is_given_some_evenly(path: Path) -> None:
    steps = made(1000)
    found = recorded(path, {"a": steps[::2], "b": steps[1::2]}, dropped=1)
    damage: list[str] = []
    with found._table() as table:
        some = read_steps(table.connection, damage, most=100)
    assert damage == []
    assert len(some) == 100
    assert some.dropped == 10 + 900
    assert np.diff(some.rows["batch"].astype(int)).tolist() == [10] * 99


# -- older files ------------------------------------------------------------------------------------------------------


def test_a_file_of_another_format_is_never_continued(tmp_path: Path) -> None:
    path = tmp_path / "other.kmsession"
    session = recorded(path, {"loader-1": made(3)}).id
    sql(path, f"PRAGMA user_version = {FORMAT - 1}")
    before = path.read_bytes()
    with pytest.raises(OtherFile, match="no session of this version"):  # the recorder then makes a file beside it
        SessionFile(path, session=session, origin=1790000000.0, max_bytes=1 << 20)
    assert path.read_bytes() == before


# -- damaged ones -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["flipped", "short", "empty", "text"])
def test_damaged_steps_are_named_and_the_rest_is_read(path: Path, harm: str) -> None:
    steps, others = made(400), made(300, seed=1)
    recorded(path, {"loader-1": steps, "loader-2": others})
    ((data,),) = sql(path, "SELECT data FROM steps WHERE loader = 'loader-1'")
    middle = len(data) // 2
    broken: object = {
        "flipped": data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
        "short": data[:-20],
        "empty": b"",
        "text": "no bytes",
    }[harm]
    sql(path, "UPDATE steps SET data = ? WHERE loader = 'loader-1'", values=(broken,))
    found = open_session(path)
    (problem,) = found.check()
    assert problem.startswith("400 steps of loader-1 (batch ")
    with pytest.warns(UserWarning, match="400 steps of loader-1"):
        table = found.steps()
    assert set(table["loader"]) == {"loader-2"}
    snapshot = found.snapshot()
    same(snapshot.steps.of("loader-2"), others)
    assert len(snapshot.time) == 30
    (damaged,) = snapshot.facts["recorded"]["damaged"]
    assert damaged.startswith("400 steps of loader-1")


def test_a_page_of_steps_overwritten_leaves_the_rest(path: Path) -> None:
    recorded(path, {"loader-1": made(6000), "loader-2": made(6000, seed=1)})
    ((root,),) = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'steps'")
    whole = bytearray(path.read_bytes())
    whole[(root - 1) * 4096 : root * 4096] = bytes([0xA5]) * 4096
    path.write_bytes(whole)
    found = open_session(path)
    assert any("steps" in problem for problem in found.check())
    assert len(found.rows()) == 30
    snapshot = found.snapshot()
    assert len(snapshot.time) == 30
    assert len(snapshot.steps) == 0
    assert "the list of steps" in snapshot.facts["recorded"]["damaged"][0]


# -- their size -------------------------------------------------------------------------------------------------------


def test_a_minute_at_200_steps_a_second_takes_little_room(path: Path) -> None:
    """The bar is 25 bytes a step, or 18 MB an hour; three times that here. The phases' low bits are noise."""
    random = np.random.default_rng(0)
    steps = [
        Step(n / 200, 0, n, 32, *random.uniform(1e-4, 4e-3, 6).tolist())._replace(flags=ON_DEVICE)
        for n in range(1, 12_001)
    ]
    recorded(path, {"loader-1": steps})
    ((stored, count),) = sql(path, "SELECT sum(length(data)), sum(n) FROM steps")
    print(f"{stored / count:.1f} bytes per step")
    assert count == len(steps)
    assert stored / count < 75
