"""One click for all ranks of a job: each at its own batch boundary, nothing lost or doubled over all of them."""

from __future__ import annotations

import bisect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.kernels import Page
from tests.loaders.conftest import make_folder

from ..waiting import until
from .conftest import ROOT
from .peers import outside
from .test_joining import TORCHRUN, ranks, wait_for

IMAGES = 203  # an odd number: one rank's share is padded by one sample
LOADER = "job-1/train"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"), IMAGES)


def words(photos: Path, out: Path, port: int) -> list[str]:
    return [sys.executable, *TORCHRUN.split(), str(port), "-m", "tests.ranks.switching", str(photos), str(out)]


def start(page: Page, photos: Path, out: Path, port: int, **environment: str) -> None:
    """Begin the training in a kernel; it waits for its `go`."""
    out.mkdir()
    page.run(
        "import os, subprocess\nfrom kernel_monitor import monitor\n"
        f"job = subprocess.Popen({words(photos, out, port)!r}, env={{**os.environ, **{environment!r}}})"
    )
    wait_for(page, "len(ranks) == 2", 40)
    (out / "go").touch()
    until_state(page, "len(state) > 0", 40)


def until_state(page: Page, condition: str, seconds: float = 30) -> dict[str, Any]:
    """Until an expression over the job's loaders' `state` is true; the first one."""
    until(
        lambda: page.value(f"(lambda state: bool({condition}))(monitor.job_states())"),
        seconds,
        lambda: page.value("(monitor.job_states(), monitor.status())"),
    )
    found: list[dict[str, Any]] = page.value("monitor.job_states()")
    return found[0] if found else {}


def results(page: Page, out: Path) -> list[dict[str, Any]]:
    (out / "enough").touch()
    page.run("status = job.wait(90)", timeout=120)
    assert page.value("status") == 0
    found: list[dict[str, Any]] = [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]
    return found


def events(page: Page, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.value(f"[e for e in monitor.store.events() if e['kind'] == {kind!r}]")
    return found


def test_one_click_switches_both_ranks(page: Page, photos: Path, tmp_path: Path, port: int) -> None:
    out = tmp_path / "out"
    start(page, photos, out, port, EPOCHS="40", STEP="0.04")
    state = until_state(page, "state[0]['ranks'] == 2 and state[0]['batch'] > 2")
    assert (state["id"], state["name"], state["status"]) == (LOADER, "train · job 1", "torchvision on 2 ranks")
    clicked = []
    for engine in ("dali-cpu", "torchvision", "dali-cpu"):
        clicked.append(time.monotonic())
        page.run(f"state = monitor.switch({engine!r})")
        assert page.value("state['wanted']") == engine
        state = until_state(page, f"state[0]['status'] == '{engine} on 2 ranks'")
        assert (state["backend"], state["wanted"]) == (engine, None)
        time.sleep(0.3)
    until_state(page, "state[0]['epoch'] >= 1", 60)
    found = results(page, out)
    for rank in found:
        assert [switch["target"] for switch in rank["history"]] == ["dali-cpu", "torchvision", "dali-cpu"]
        # The engines are ready at the second and third click: within three steps of their arrival.
        for asked, switch in list(zip(clicked, rank["history"], strict=True))[1:]:
            assert 0 <= switch["asked"] - asked < 0.5
            steps = bisect.bisect(rank["ends"], switch["first"]) - bisect.bisect(rank["ends"], switch["asked"])
            assert steps <= 3, (switch, rank["ends"])
    # Exactly once over both, and one sample again because two ranks share an odd number.
    epochs = events(page, "job-epoch")
    assert len(epochs) >= 1
    for epoch in epochs:
        counts = [epoch[name] for name in ("once", "length", "padded", "doubled", "lost")]
        assert counts == [IMAGES, IMAGES, 1, 0, 0], epoch
    assert all(count["lost"] == count["doubled"] == 0 for rank in found for count in rank["counts"])
    assert [event["label"] for event in events(page, "job-switch")] == [
        "dali-cpu on 2 ranks",
        "torchvision on 2 ranks",
        "dali-cpu on 2 ranks",
    ]
    # The same training without a switch, and without a kernel.
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "go").touch()
    variables = outside(EPOCHS=str(len(found[0]["counts"])), PYTHONPATH=str(ROOT))
    subprocess.run(words(photos, alone, port + 1), env=variables, check=True, timeout=90)
    for number in (0, 1):
        expected = json.loads((alone / f"{number}.json").read_text())
        assert found[number]["losses"] == pytest.approx(expected["losses"], abs=0.005)
        assert expected["history"] == []


def test_a_rank_that_cannot_says_why_and_the_other_switches(
    page: Page, photos: Path, tmp_path: Path, port: int
) -> None:
    out = tmp_path / "out"
    start(page, photos, out, port, EPOCHS="40", STEP="0.02", WITHOUT_DALI="1", BATCHES_DROPPED="1")
    state = until_state(page, "state[0]['ranks'] == 2")
    dali = next(engine for engine in state["backends"] if engine["name"] == "dali-cpu")
    assert dali["available"]
    assert dali["note"].startswith("not on rank 1: ")
    page.run("monitor.switch('dali-cpu')")
    state = until_state(page, "state[0]['wanted'] is None and '1 of 2' in state[0]['status']")
    assert state["status"].startswith("dali-cpu on 1 of 2 ranks; rank 1 stays on torchvision: ")
    with pytest.raises(AssertionError, match="dali-gpu cannot be used on any rank"):
        page.run("monitor.switch('dali-gpu')")
    page.run("monitor.set(prefetch=3)")
    until_state(page, "state[0]['epoch'] >= 1", 60)
    found = results(page, out)
    assert [len(rank["history"]) for rank in found] == [1, 0]
    # A last batch that is dropped on each rank is no loss: 12 batches of 8 on each of two ranks.
    epoch = events(page, "job-epoch")[0]
    assert [epoch[name] for name in ("once", "length", "padded", "doubled", "lost")] == [192, IMAGES, 0, 0, 0]


def test_a_rank_killed_between_click_and_take_over_is_not_waited_for(
    page: Page, photos: Path, tmp_path: Path, port: int
) -> None:
    out = tmp_path / "out"
    start(page, photos, out, port, EPOCHS="40", STEP="0.04")
    until_state(page, "state[0]['ranks'] == 2 and state[0]['batch'] > 2")
    processes = "monitor.live_session.ranks.server.jobs._processes"
    pids = page.value(f"[p.identity.pid for p in sorted({processes}, key=lambda p: p.identity.rank)]")
    os.kill(pids[1], signal.SIGSTOP)  # the other one waits for it in its next collective
    page.run("monitor.switch('dali-cpu')")
    state = until_state(page, "state[0]['wanted'] == 'dali-cpu'")
    assert state["status"] in ("dali-cpu on 0 of 2 ranks", "dali-cpu on 1 of 2 ranks")
    os.kill(pids[1], signal.SIGKILL)
    page.run("status = job.wait(60)", timeout=90)
    assert page.value("status") != 0
    until_state(page, "state == []")
    wait_for(page, "not any(r.alive for r in ranks)")
    assert {reason for *_, reason in ranks(page)} <= {"its process has ended", "it has finished"}
    assert events(page, "job-switch") == []
    with pytest.raises(AssertionError, match="no loader to switch"):
        page.run("monitor.switch('dali-cpu')")


def test_nothing_is_claimed_where_each_rank_delivers_everything(
    page: Page, photos: Path, tmp_path: Path, port: int
) -> None:
    out = tmp_path / "out"
    start(page, photos, out, port, EPOCHS="40", STEP="0.01", SHARED="0")
    state = until_state(page, "state[0]['ranks'] == 2 and state[0]['batch'] > 2")
    assert not state["once"]
    page.run("monitor.switch('dali-cpu')")
    until_state(page, "state[0]['status'] == 'dali-cpu on 2 ranks'")
    found = results(page, out)
    for rank in found:
        assert [switch["target"] for switch in rank["history"]] == ["dali-cpu"]
        assert all((count["lost"], count["doubled"]) == (0, 0) for count in rank["counts"])
        assert len(rank["losses"]) == len(rank["counts"]) * -(-IMAGES // 8)
    assert events(page, "job-epoch") == []
