"""What the kernel says of its analysis against `golden/analysis.json`, which vitest reads with the page's half.

    python -m tests.wire.test_analysis

writes the file anew, from the kernel's own code where that needs no loop.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kernel_monitor.analysis.advice import Offer
from kernel_monitor.analysis.results import Advice, Gain, Point, Verdict, plain
from kernel_monitor.analysis.slow_rank import SlowRank
from kernel_monitor.diagnosis.diagnosis_run import DiagnosisRun
from kernel_monitor.diagnosis.trials import Trial, diagnosis, runs_of
from kernel_monitor.errors import MonitorError
from kernel_monitor.protocol.message_types import FRAME
from kernel_monitor.rank import Rank
from kernel_monitor.runtime import Monitor

from ..waiting import until
from .test_wire import ask, golden, images, request, shape

FILE = Path(__file__).parent / "golden" / "analysis.json"
LOADER = "loader-1"


def verdict() -> dict[str, Any]:
    """As a frame has it."""
    made = Verdict(
        kind="input-bound",
        segment="train <b>/1",
        sentence="62 % of each step is waiting for data (48 of 78 ms, 1,204 steps).",
        advised=(
            Advice(
                "Switch to dali-cpu: it is expected to run 1.5 to 2.2 × faster than torchvision.",
                (Point("engine", "dali-cpu", "for"),),
                "train <b>/1",
            ),
        ),
        shares={"wait": 0.62, "copy": 0.03, "compute": 0.30, "other": 0.05},
        steps=1204,
        missing=("phases: monitor.watch(model, optimizer)",),
        gains=(
            Gain("dali-cpu", 0.35, 0.55, basis="CPU seconds of loading and training over 2 shared cores"),
            Gain("loader", 0.6, 0.62, measured=0.61, basis="without the wait"),
        ),
        warnings=("val <b>: epoch 2 delivered nothing. Reset the iterator.",),
    )
    return {**plain(made), "loader": LOADER, "over": False}


def offer() -> dict[str, Any]:
    """A switch that is offered, as a frame has it."""
    gain = plain(Gain("dali-cpu", 0.35, 0.55, basis="CPU seconds of loading and training over 2 shared cores"))
    sentence = "dali-cpu is ready: it is expected to run 1.5 to 2.2 × faster than torchvision."
    return {"loader": LOADER, "source": "torchvision", "engine": "dali-cpu", "sentence": sentence, "gain": gain}


def found() -> dict[str, Any]:
    """What *Diagnose* found, with an engine that could not be measured."""
    trials = [
        Trial("torchvision", 10.0, 18.2, 8.2, 106, 106, 3392, 412.5, 380.0, 440.0, 77.6, 48.1, 99.5, 100.0, work=29.5),
        Trial("dali-cpu", 22.1, 30.3, 8.2, 205, 205, 6560, 800.0, 782.25, 815.0, 40.0, 9.5, 62.0, 88.0, work=30.5),
        Trial("dali-gpu", problem="NVML Shared Library Not Found"),
    ]
    made = diagnosis(
        LOADER,
        "train <b>",
        trials,
        first="torchvision",
        back_to="torchvision",
        predicted=[plain(Gain("dali-cpu", 0.35, 0.55, basis="CPU seconds over 2 shared cores"))],
        message="torchvision goes on.",
        cannot=["synthetic was not allowed."],
    )
    return dict(made)


def tuned() -> dict[str, Any]:
    """What *Tune* found, as `kernel_monitor/diagnosis/tune_run.py` has it."""
    trials = [
        Trial(
            "torchvision",
            40.0,
            42.1,
            2.1,
            40,
            40,
            1280,
            610.0,
            590.0,
            640.0,
            52.4,
            22.0,
            label="torchvision, 6 workers",
        ),
        Trial(
            "torchvision",
            33.0,
            37.0,
            4.0,
            52,
            52,
            1664,
            412.5,
            380.0,
            440.0,
            77.6,
            48.1,
            label="torchvision, 2 workers",
        ),
        Trial("threads", problem="no such operator", label="threads"),
    ]
    return {
        "kind": "tune",
        "loader": LOADER,
        "name": "train <b>",
        "began": 33.0,
        "ended": 42.1,
        "back_to": "torchvision",
        "synthetic": False,
        "message": "torchvision, 6 workers goes on.",
        "runs": runs_of(trials),
        "predicted": [],
        "measured": [],
        "best": "torchvision",
        "sentence": "torchvision, 6 workers is the best of 2 settings.",
        "advised": [],
        "cannot": ["threads: no such operator."],
        "line": "DataLoader(…, num_workers=6, prefetch_factor=2, persistent_workers=True)",
        "undo": "torchvision, 2 workers",
    }


def profile(backend: str, began: float, heaviest: str) -> dict[str, Any]:
    """What profiling found, as `kernel_monitor/profiler/plugin.py` has it."""
    return {
        "loader": LOADER,
        "name": "train <b>",
        "backend": backend,
        "began": began,
        "ended": began + 0.8,
        "steps": 10,
        "cpu": [
            {"name": heaviest, "share": 0.41, "self_ms": 212.5, "count": 20},
            {"name": "aten::addmm", "share": 0.12, "self_ms": 62.0, "count": 10},
        ],
        "gpu": [{"name": "void cutlass::<i>kernel</i>", "share": 0.5, "ms": 31.25, "launches": 40}],
        "gpu_reason": None,
        "wall_ms": 776.0,
        "cpu_ms": 518.25,
        "gpu_ms": 62.5,
        "trace": "2026-09-21-142640-0f1e2d3c-profile-1.json.gz",
    }


def slow() -> SlowRank:
    return SlowRank(Rank("1-1", 1, 1, 2), "data", 48.2, 71.0, 2)


def content() -> dict[str, Any]:
    """The part of a frame that tells of the analysis."""
    profiles = [profile("torchvision", 31.0, "aten::convolution"), profile("dali-cpu", 44.5, "aten::copy_")]
    return {
        "verdict": verdict(),
        "offers": [offer()],
        "ranks": [slow().sentence],
        "diagnosing": {
            "kind": "diagnose",
            "state": "running",
            "loader": LOADER,
            "name": "train <b>",
            "backend": "dali-cpu",
            "done": 1,
            "total": 3,
            "seconds_left": 21,
            "message": "measuring dali-cpu",
            "result": None,
        },
        "tuned": tuned(),
        "profiling": {
            "state": "done",
            "loader": LOADER,
            "name": "train <b>",
            "done": 10,
            "total": 10,
            "message": "The trace is beside the recording. What runs in the loader's worker processes is not in it.",
            "result": profiles[1],
        },
        "events": [
            {"id": 7, "kind": "diagnosis", "time": 30.5, "loader": LOADER, "state": "done", "result": found()},
            *(
                {"id": 8 + k, "kind": "profile", "time": one["began"], "loader": LOADER, "result": one}
                for k, one in enumerate(profiles)
            ),
        ],
    }


REQUESTS: dict[str, dict[str, Any]] = {
    "diagnose": {"loader": LOADER},
    "diagnose-confirmed": {"loader": LOADER, "confirmed": True},
    "diagnose-cancel": {"cancel": True},
    "tune": {"loader": LOADER},
    "tune-undo": {"undo": True},
    "decline": {"loader": LOADER},
    "profile": {"loader": LOADER, "steps": 10},
    "mark": {"label": "augment x12"},
    "configure": {"price": "2.50 €"},
}


def asks() -> dict[str, Any]:
    """What a page sends about it, by name."""
    return {name: request(name.partition("-")[0], **args) for name, args in REQUESTS.items()}


def test_the_golden_message_is_what_this_code_makes() -> None:
    kind, made, buffers = golden("analysis")
    assert (kind, buffers) == (FRAME, [])
    assert made["asks"] == asks()
    assert {key: one for key, one in made.items() if key != "asks"} == json.loads(json.dumps(content()))


def test_a_page_finds_the_names_of_the_model() -> None:
    """What analysis.ts reads is what `plain` gives."""
    _, made, _ = golden("analysis")
    kind = Verdict("undetermined", None, "", gains=(Gain("loader", 0.0, 0.0),))
    assert {*plain(kind), "loader", "over"} == made["verdict"].keys()
    assert plain(kind)["gains"][0].keys() == made["verdict"]["gains"][0].keys()
    assert plain(kind)["gains"][0]["measured"] is None


def test_how_far_a_diagnosis_is_has_the_golden_form(tmp_path: Path) -> None:
    loader = images(tmp_path, 4)
    state = DiagnosisRun(loader, Monitor().diagnosis.context, seconds=8.0, confirmed=False).state  # never started
    _, made, _ = golden("analysis")
    assert shape(state) == shape(made["diagnosing"])
    json.dumps(state, allow_nan=False)


def test_a_diagnosis_is_asked_for_and_cancelled(tmp_path: Path) -> None:
    loader = images(tmp_path, 4)
    monitor = Monitor()
    try:
        _, made, _ = golden("analysis")
        wish = made["asks"]["diagnose"]
        reply, _ = ask(monitor, {**wish, "args": {**wish["args"], "loader": loader.id}})
        assert (reply["status"], reply["diagnosing"]["state"]) == ("ok", "running")
        assert reply["diagnosing"].keys() == made["diagnosing"].keys()
        reply, _ = ask(monitor, made["asks"]["diagnose-cancel"])
        until(
            lambda: monitor.diagnosing is not None and monitor.diagnosing["state"] == "cancelled",
            say=lambda: monitor.diagnosing,
        )
        assert loader.backend == "torchvision"
    finally:
        monitor.stop()


def test_what_is_offered_has_the_golden_form_and_is_declined(tmp_path: Path) -> None:
    loader = images(tmp_path, 4)
    monitor = Monitor()
    monitor.start(record=False)
    try:
        _, made, _ = golden("analysis")
        gain = plain(Gain("dali-cpu", 0.35, 0.55))
        may = plain(Offer("dali-cpu", (Advice("dali-cpu is ready."),), Gain("dali-cpu", 0.35, 0.55)))
        said = {"kind": "input-bound", "segment": "train", "gains": [gain], "loader": loader.id, "offer": may}
        for moment in range(0, 20, 2):
            monitor.publisher.current.offers.judge(moment, said, monitor.loader_states(), busy=False)
        reply, _ = ask(monitor, {"protocol": 2, "command": "subscribe", "args": {"client": "one"}})
        assert shape(reply["offers"]) == shape(made["offers"])
        assert reply["offers"] == monitor.offers
        wish = made["asks"]["decline"]
        assert ask(monitor, {**wish, "args": {"loader": loader.id}})[0]["offers"] == []
        assert ask(monitor, {**wish, "args": {"loader": "loader-999"}})[0]["status"] == "error"
        assert monitor.decline(loader.id) is False
    finally:
        monitor.stop()


def test_a_mark_and_a_price_are_taken() -> None:
    monitor = Monitor()
    monitor.start()
    try:
        _, made, _ = golden("analysis")
        assert ask(monitor, made["asks"]["mark"])[0]["status"] == "ok"
        mark = next(event for event in monitor.store.events() if event["kind"] == "mark")
        assert mark["label"] == "augment x12"
        reply, _ = ask(monitor, made["asks"]["configure"])
        assert (reply["settings"]["price"], reply["settings"]["currency"]) == (2.5, "€")
    finally:
        monitor.stop()


def test_a_profile_of_a_real_loop_has_the_golden_form() -> None:
    import torch

    from kernel_monitor import watch_loader

    batches = watch_loader([torch.ones(8, 16)] * 2000, name="profiled")
    over = threading.Event()

    def loop() -> None:
        for batch in itertools.chain.from_iterable(itertools.repeat(batches)):
            (batch @ batch.T).relu().sum()
            time.sleep(0.005)
            if over.is_set():
                return

    monitor = Monitor()
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        monitor.start()
        found = monitor.profile(4, loader="profiled")
        assert found is not None
        _, made, _ = golden("analysis")
        expected = made["profiling"]["result"]
        assert found.keys() == expected.keys()
        assert found["cpu"][0].keys() == expected["cpu"][0].keys()
        assert monitor.profiling is not None
        assert monitor.profiling.keys() == made["profiling"].keys()
        json.dumps(monitor.profiling, allow_nan=False)
        event = next(event for event in monitor.store.events() if event["kind"] == "profile")
        assert event["result"] == dict(found)
    finally:
        over.set()
        thread.join()
        monitor.stop()


def test_what_cannot_be_profiled_is_refused_by_name() -> None:
    with pytest.raises(MonitorError, match="nothing-like-it"):
        Monitor().profile(4, loader="nothing-like-it")


if __name__ == "__main__":
    message = {"msg_type": FRAME, "content": {**content(), "asks": asks()}, "buffers": []}
    FILE.write_text(json.dumps(message, indent=1, ensure_ascii=False) + "\n", "utf-8")
