"""The figures in runs of wandb, MLflow and TensorBoard, written by their own clients and read back from their files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".venv" / "experiment_logs"
"""Where `make setup` puts the clients: in the tests' environment other frameworks would log into them, too."""
OWN = "kernel_monitor/"
IMAGES, ENGINE = f"{OWN}loader/train/images", f"{OWN}loader/train/engine"
POINTS = {f"{OWN}cpu/busy", f"{OWN}memory/percent", IMAGES, *(f"{OWN}loader/train/{key}" for key in ("wait", "step"))}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> dict[str, Any]:
    """What the script found, which ran once."""
    folder = tmp_path_factory.mktemp("experiment")
    script = [sys.executable, "-m", "tests.frameworks.scripts.experiment_logs", str(photos), str(folder)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(CLIENTS), os.environ.get("PYTHONPATH")])),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    ran = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540)
    assert ran.returncode == 0, ran.stderr
    read: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return read


def test_a_log_waits_for_a_run_and_says_so(found: dict[str, Any]) -> None:
    assert [(log["client"], log["state"]) for log in found["before"][:2]] == [
        ("wandb", "waiting"),
        ("mlflow", "waiting"),
    ]
    assert [log["message"] for log in found["before"][:2]] == [
        "no run is active; wandb.init() begins one", "no run is active; mlflow.start_run() begins one",
    ]  # fmt: skip
    assert [log["state"] for log in found["during"]] == ["logging"] * 3
    for log, name in zip(found["during"], found["names"], strict=True):
        assert set(log["run"].replace("(", "").replace(")", "").split()) == set(
            name.replace("(", "").replace(")", "").split()
        )
    assert [log["state"] for log in found["after"]] == ["waiting", "waiting", "logging"]


def test_wandb_keeps_every_row_of_the_user_s_under_the_user_s_step(found: dict[str, Any]) -> None:
    rows = found["wandb"]
    assert [(row["_step"], row["own"]) for row in rows] == [(epoch, 10.0 * epoch) for epoch in range(found["epochs"])]
    measured = [row for row in rows if IMAGES in row]
    assert len(measured) > 3
    # A single row may lack the steps: between two epochs there is none.
    assert {key for row in measured for key in row} >= POINTS
    assert {row[f"{OWN}loader/train/switches"] for row in measured} == {0.0, 1.0}


def test_a_run_of_wandb_without_rows_gets_one_at_its_end(found: dict[str, Any]) -> None:
    (row,) = found["silent"]
    assert 0 < row[f"{OWN}cpu/busy"] <= 100


@pytest.mark.parametrize("client", ["mlflow", "tensorboard"])
def test_points_have_their_time_and_add_up_to_what_was_delivered(found: dict[str, Any], client: str) -> None:
    points = found[client]
    assert set(points) > POINTS
    switched = [value for *_, value in points[f"{OWN}loader/train/switches"]]
    assert set(switched) == {0.0, 1.0}
    assert switched == sorted(switched)
    times, steps, values = zip(*points[IMAGES], strict=True)
    unit = 1000 if client == "mlflow" else 1
    spans = [(end - start) / unit for start, end in pairwise(times)]
    assert sum(value * span for value, span in zip(values[1:], spans, strict=True)) == pytest.approx(
        found["samples"], rel=0.15
    )
    origin = times[0] / unit - steps[0]
    assert [time / unit - origin for time in times] == pytest.approx(steps, abs=1.1)  # step: s of the session


def test_the_engines_and_the_comparison_are_in_every_run(found: dict[str, Any]) -> None:
    assert found["sentence"].startswith("threads took over from torchvision")
    assert {"faster", "before/images", "after/images", "before/wait", "after/wait"} <= {
        key.removeprefix(f"{OWN}comparison/") for key in found["comparison"]
    }
    for texts in (found["wandb summary"], found["mlflow tags"]):
        assert texts[ENGINE] == "threads"
        assert texts[f"{OWN}comparison/sentence"].startswith("threads took over from torchvision")
    assert found["tensorboard texts"][f"{ENGINE}/text_summary"] == ["torchvision", "threads"]
    assert found["tensorboard texts"][f"{OWN}comparison/sentence/text_summary"][-1] == found["sentence"]
    for key, value in found["comparison"].items():
        assert found["tensorboard"][key][-1][2] == pytest.approx(value)
        for other in (found["wandb summary"][key], found["mlflow"][key][-1][2]):
            assert other == pytest.approx(value, rel=0.3), key  # as it was when that run ended
