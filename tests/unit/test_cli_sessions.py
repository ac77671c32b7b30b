"""`kernel-monitor report --json` and `compare` on recorded files: what is printed and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kernel_monitor.steps.measured_step import Step
from tests.record.recorded import feed, hello, recorder, waves
from tests.unit.commands import called, refusal, run
from tests.unit.sessions import state


def recorded(path: Path, step: float = 0.02, steps: int = 200, *, price: float | None = None, seed: int = 0) -> Path:
    """The file of a session whose steps took about so many seconds."""
    random = np.random.default_rng(seed)
    end, rows = 0.5, []
    for number in range(steps):
        whole = step * (1 + 0.05 * float(random.standard_normal()))
        end += whole
        rows.append(Step(end, 0, number, 32, whole / 4, whole))
    with recorder(path, session=f"{seed:016x}") as (one, _):
        one.hello(0.0, hello())
        one.command({"do": "facts", "facts": {"price": price, "currency": "€", "versions": {}, "interval": 0.1}})
        one.command({"do": "loaders", "loaders": [state()]})
        feed(one, *waves(round(10 * end) + 5))
        for at in range(0, steps, 100):
            one.command({"do": "steps", "loader": "loader-1", "rows": rows[at : at + 100], "dropped": 0})
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sessions")
    return {
        "a": recorded(folder / "a.kmsession", price=3.6),
        "same": recorded(folder / "b.kmsession", seed=1),
        "slow": recorded(folder / "c.kmsession", 0.024, seed=2),
        "short": recorded(folder / "d.kmsession", steps=10, seed=3),
        "none": recorded(folder / "e.kmsession", steps=0, seed=4),
    }


@pytest.mark.parametrize(
    ("other", "options", "code", "says"),
    [
        ("same", ["--max-slowdown", "5%"], 0, "no difference beyond the spread"),
        ("slow", ["--max-slowdown", "5%"], 1, "slower than the 5 % that are allowed"),
        ("slow", ["--max-slowdown", "50%"], 0, "within the 50 % that are allowed"),
        ("slow", [], 0, "train: an image takes"),
        ("short", ["--max-slowdown", "5%"], 3, "200 and 10 steps are too few to compare"),
        ("none", [], 3, "only in A"),
    ],
)
def test_the_exit_status_says_it(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], other: str, options: list[str], code: int, says: str
) -> None:
    status, out, err = called(capsys, "compare", files["a"], files[other], *options)
    assert (status, err) == (code, "")
    assert says in out


def test_the_table_has_counts_and_costs(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = called(capsys, "compare", files["a"], files["same"], "--price", "7.20 €")
    header, a, b = out.splitlines()[:3]
    assert header.split() == ["segment", "engine", "steps", "step", "p50", "p95", "waiting", "images/s", "per", "1,000"]
    assert a.split()[:4] == ["A", "train/1", "torchvision", "200"]
    assert b.split()[0] == "B"
    cost = float(a.split()[-2])
    assert cost == pytest.approx(1000 * 7.2 / 3600 * 0.02 / 32, rel=0.02)
    assert a.split()[-1] == "€"


def test_as_json(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = called(capsys, "compare", files["a"], files["slow"], "--max-slowdown", "5", "--json")
    said = json.loads(out)
    assert status == said["status"] == 1
    assert said["allowed"] == 0.05
    (loader,) = said["loaders"]
    assert (loader["outcome"], loader["slower"]) == ("slower", pytest.approx(0.2, abs=0.03))
    assert loader["low"] < loader["slower"] < loader["high"]
    assert loader["after"]["cost"] is None  # nobody said a price there


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["compare", "a"], "B"),
        (["compare", "a", "nowhere.kmsession"], "nowhere.kmsession"),
        (["compare", "a", "damaged"], "damaged.kmsession"),
        (["compare", "a", "same", "--loader", "valid"], "valid"),
        (["compare", "a", "same", "--stretch", "train/7"], "train/7"),
        (["compare", "a", "same", *["--segment", "train/1"] * 3], "--segment"),
        (["compare", "a", "same", "--max-slowdown", "much"], "much"),
        (["compare", "a", "same", "--max-slowdown=-5%"], "-5%"),
        (["compare", "a", "same", "--price", "a lot"], "a lot"),
        (["report", "a"], "--json"),
        (["report", "a", "--json", "--price", "-1"], "price"),
        (["report", "damaged", "--json"], "damaged.kmsession"),
    ],
)
def test_errors_are_one_sentence_and_status_2(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    damaged = tmp_path / "damaged.kmsession"
    damaged.write_bytes(files["a"].read_bytes()[:3000])
    known = {**files, "damaged": damaged}
    command, *rest = arguments
    status, out, err = called(capsys, command, *(known.get(one, one) for one in rest))
    assert (status, out) == (2, "")
    assert word in refusal(err)


def test_the_report_as_data(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = called(capsys, "report", files["a"], "--json")
    assert (status, err) == (0, "")
    said = json.loads(out)
    assert {"session", "started", "seconds", "facts", "segments", "verdict", "findings", "costs"} <= set(said)
    (segment,) = said["segments"]
    assert (segment["key"], segment["steps"]) == ("train/1", 200)
    assert said["costs"][0]["per_hour"] == 3.6
    assert str(files["a"].parent) not in out
    assert "NaN" not in out

    target = tmp_path / "run.json"
    status, out, _ = called(capsys, "report", files["a"], "--json", "-o", target, "--price", "0")
    assert (status, out) == (0, f"wrote {target}\n")
    told = json.loads(target.read_text())
    assert told["facts"]["price"] == 0
    assert [one["per_step"] for one in told["costs"]] == [0]


def test_a_price_reaches_the_page(files: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    done = run("report", files["same"], "-o", page, "--price", "$12.50")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wrote {page}\n", "")
    assert "12.5" in page.read_text("utf-8")
