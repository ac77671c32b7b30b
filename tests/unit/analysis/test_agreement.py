"""Figures that agree: every place says the same of a switch, and none says what cannot be.

400 simulated sessions, whose steps are those of a simulated machine, and a real one; PRODUCTS=long: a thousand.
"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor.analysis import analyse, switch_strip
from kernel_monitor.analysis.changes import amount, changes, factor, figure, headline, percent
from kernel_monitor.analysis.gains import switch_pairs
from kernel_monitor.analysis.live_verdict import live_verdict
from kernel_monitor.analysis.loops import LoopTimes, secondary_loaders
from kernel_monitor.analysis.results import Analysis, Change, Segment
from kernel_monitor.analysis.segments import segments
from kernel_monitor.analysis.switch_comparison import comparison
from kernel_monitor.analysis.verdict import past
from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.report.page import render
from kernel_monitor.runtime import Monitor
from kernel_monitor.steps.measured_step import NO_GRADIENTS
from kernel_monitor.store import Snapshot
from tests.combinations import LONG
from tests.loaders.conftest import augmented, make_folder
from tests.unit.checks import not_none, wait_for
from tests.unit.loop_simulator import Loop, run
from tests.unit.sessions import Run, build, rows_of, switch
from tests.unit.training import in_threads

ENGINES = ("torchvision", "dali-cpu", "synthetic")
TRAIN, VAL = "loader-1", "loader-2"
RATES = re.compile(r"([\d.,]+) → ([\d.,]+) images/s")
SHARES = re.compile(r"([\d.]+) → ([\d.]+)\s% of (?:the|each) step")
STEPS = re.compile(r"step ([\d.,]+) → ([\d.,]+)\sms|of each step \(([\d.,]+) → ([\d.,]+) ms\)")
WAITS = re.compile(r"waiting for data ([\d.,]+) → ([\d.,]+)\sms")
FACTOR = re.compile(r"\d+\.\d\d × (?:faster|slower)|about as fast, \d\.\d\d ×")


def simulated(seed: int) -> Snapshot:
    """A training that is switched up to three times, some with an evaluation after each part, of real step times."""
    random = np.random.default_rng(seed)
    images = int(random.choice([8, 32, 33]))
    runs: list[Run] = []
    events: list[dict[str, Any]] = []
    evaluates, engine, at = bool(random.random() < 0.4), "torchvision", 0.0
    for part in range(int(random.integers(1, 5))):
        loop = Loop(
            load=float(random.uniform(0.01, 0.5)), workers=int(random.integers(0, 4)), ahead=2, copy=0.001,
            forward=float(random.uniform(0.005, 0.08)), backward=0.02, optimizer=0.002, other=0.002,
            jitter=float(random.choice([0.05, 0.4])),
        )  # fmt: skip
        made = run(loop, int(random.integers(5, 150)), random)
        if part:
            target = str(random.choice([one for one in ENGINES if one != engine]))
            asked = at - 1e-4
            at += float(random.uniform(0.0, 0.6))
            events.append(switch(at, engine, target, asked=asked))
            engine = target
        elif random.random() < 0.3:
            events.append({"kind": "mark", "time": 0.5 * float(made["end"][-1]), "label": "half"})
        runs.append(_run(made, at, TRAIN, images, 0, random))
        at = runs[-1].end
        if evaluates:
            took = run(loop, int(random.integers(5, 40)), random)
            runs.append(_run(took, at + 0.01, VAL, images, int(random.choice([0, NO_GRADIENTS])), random))
            at = runs[-1].end + 0.01
    gpus = int(random.integers(0, 2))
    return build(at + 1, 0.5, 2, gpus, runs=runs, events=events, states=[{"backend": engine}])


def _run(made: Any, at: float, loader: str, images: int, flags: int, random: np.random.Generator) -> Run:
    unknown = bool(random.random() < 0.1)  # of every other step the wait was not measured
    wait, step = made["wait"].tolist(), made["step"].tolist()
    end = at + sum(step) + 1e-6
    return Run(
        at, end, step=lambda k: step[min(k, len(step) - 1)], wait=lambda k: math.nan if unknown and k % 2 else wait[k],
        images=images, loader=loader, flags=flags, steps=len(step), warm_up=int(random.integers(0, 4)),
    )  # fmt: skip


def expected(before: Segment, after: Segment) -> dict[str, Any]:
    """The figures of two sides as a person must read them everywhere."""
    return {
        "rates": (figure(before.rate), figure(after.rate)),
        "shares": (percent(before.wait_share), percent(after.wait_share)),
        "steps": (figure(before.step), figure(after.step)),
        "factor": factor(after.rate / before.rate),
    }


def read(text: str) -> dict[str, Any]:
    """The same figures as a text says them."""
    rates, shares, steps, ratio = (pattern.search(text) for pattern in (RATES, SHARES, STEPS, FACTOR))
    assert rates is not None, text
    assert ratio is not None, text
    return {
        "rates": rates.groups(),
        "shares": ("–", "–") if shares is None else shares.groups(),
        "steps": ("–", "–") if steps is None else tuple(filter(None, steps.groups())),
        "factor": ratio.group(),
    }


def possible(segment: Segment) -> None:
    assert segment.contradictions() == []
    if segment.steps:
        assert segment.rate * segment.step / 1e3 == pytest.approx(segment.samples / segment.batches, rel=1e-3)
        assert math.isnan(segment.wait) or 0 <= segment.wait <= segment.step
        # A mark lies in a step, which counts as a whole.
        within = segment.quantile("step", "max") / 1e3 if segment.began_by == "mark" else 0.0
        assert segment.seconds <= segment.end - segment.start + within + 1e-3


def said_everywhere(snapshot: Snapshot, found: Analysis) -> Change | None:
    """Compare what each place says of the session's headline; returns it."""
    told = comparison(snapshot)
    shown = switch_strip(snapshot, snapshot.events, snapshot.loaders)
    live = switch_strip(rows_of(snapshot), snapshot.events, snapshot.loaders, snapshot.steps)
    assert live == shown
    if found.headline is None:
        assert math.isnan(told.faster)
        assert shown is None or shown["rows"] == []
        return None
    sides = {segment.key: segment for segment in found.segments}
    before, after = sides[found.headline.before], sides[found.headline.after]
    figures = expected(before, after)
    known = math.isfinite(before.wait) and math.isfinite(after.wait)
    assert read(told.sentence) == {**figures, **({} if known else {"shares": ("–", "–"), "steps": ("–", "–")})}
    assert told.faster == found.headline.faster
    assert amount(before.samples, before.seconds) in told.sentence
    assert amount(after.samples, after.seconds, "") in told.sentence
    assert shown is not None
    if shown["rows"]:  # else the newest switch is being measured still
        text = shown["text"].replace("\N{NO-BREAK SPACE}", " ")
        assert read(text) == {**figures, **({} if known else {"shares": ("–", "–")})}
        rows = {row["label"]: (figure(row["before"] or 0.0), figure(row["after"] or 0.0)) for row in shown["rows"]}
        assert (rows["images/s"], rows["whole step"]) == (figures["rates"], figures["steps"])
        if known:
            waits = not_none(WAITS.search(text))
            assert rows["data wait per step"] == waits.groups() == (figure(before.wait), figure(after.wait))
    return found.headline


@pytest.mark.parametrize("part", range(10 if LONG else 4))
def test_no_two_places_disagree_in_a_hundred_sessions(part: int) -> None:
    compared = 0
    for seed in range(100 * part, 100 * part + 100):
        snapshot = simulated(seed)
        # The rules, which take most of the time of `analyse`, change none of it.
        with np.errstate(all="ignore"):
            parts = segments(snapshot)
            made = changes(parts, snapshot.events)
        best = headline(parts, made, secondary_loaders(snapshot.steps))
        for segment in parts:
            possible(segment)
        found = analyse(snapshot) if seed % 10 == 0 else _brief(parts, made, best)
        assert _sides(found.headline) == _sides(best)
        for verdict in found.verdicts:
            assert sum(share for share in verdict.shares.values() if math.isfinite(share)) <= 1 + 1e-6
        compared += said_everywhere(snapshot, found) is not None
        for pair in switch_pairs(snapshot.steps, snapshot.events):
            saved = 1 - pair.after.step / pair.before.step
            assert any(one.saved == pytest.approx(saved, abs=1e-5) for one in made), (
                "an offer says what none other says"
            )
    assert compared > 30


def _sides(change: Change | None) -> Any:
    return None if change is None else (change.before, change.after, change.faster, change.saved)


def _brief(parts: tuple[Segment, ...], made: tuple[Change, ...], best: Change | None) -> Analysis:
    nothing = analyse(build(1))
    return Analysis(parts, (), nothing.verdict, (), made, (), (), None, headline=best)


@pytest.mark.parametrize("seed", [3, 14, 25])
def test_the_report_says_the_same(seed: int) -> None:
    snapshot = next(one for one in map(simulated, range(seed, 1000)) if analyse(one).headline is not None)
    found = analyse(snapshot)
    assert found.headline is not None
    sides = {segment.key: segment for segment in found.segments}
    before, after = sides[found.headline.before], sides[found.headline.after]
    text = re.sub(
        r"\s+", " ", re.sub(r"<[^>]+>", " ", render(snapshot, found).split("<body", 1)[1].split("<script")[0])
    )
    for value in (*expected(before, after)["rates"],):
        assert value in text


def test_the_verdict_on_a_loop_that_ended_is_that_of_the_session() -> None:
    for seed in range(0, 60, 3):
        snapshot = simulated(seed)
        loops = LoopTimes()
        loops.add(snapshot.steps)
        loops.add(snapshot.steps)  # those that are known already change nothing
        assert loops.secondary_ids() == secondary_loaders(snapshot.steps)
        loader = not_none(loops.main())
        last = [segment for segment in analyse(snapshot).segments if segment.loader == loader][-1]
        made = not_none(
            live_verdict(rows_of(snapshot), snapshot.steps, snapshot.events, snapshot.loaders, loader=loader, over=True)
        )
        assert made["over"]
        whole = next(one for one in analyse(snapshot).verdicts if one.segment == last.key)
        assert (made["steps"], made["shares"]) == (whole.steps, pytest.approx(whole.shares))
        assert " waits for " not in made["sentence"]


@pytest.mark.filterwarnings(*(mark.args[0] for mark in in_threads))
def test_a_real_session_counts_as_its_loop_does(tmp_path: Path) -> None:
    """Three epochs of a training and its evaluation: epochs, batches and samples are the loop's own, everywhere."""
    folder = ImageFolder(str(make_folder(tmp_path / "files", 240)), augmented())
    train = switchable(DataLoader(folder, batch_size=8, num_workers=2, shuffle=True), name="train")
    val = switchable(DataLoader(folder, batch_size=16), name="val")
    monitor, sent = Monitor(), []
    monitor.publisher.connect(lambda kind, content, _buffers=None: sent.append((kind, content)))
    monitor.start(record=False, interval=0.1)
    counts: dict[str, list[tuple[int, int]]] = {"train": [], "val": []}
    try:
        for epoch in range(3):
            for name, loader in (("train", train), ("val", val)):
                if epoch == 1 and name == "train" and "dali-cpu" in available(loader):
                    loader.switch("dali-cpu")
                batches = samples = 0
                for images, _labels in loader:
                    batches, samples = batches + 1, samples + len(images)
                    time.sleep(0.08 if name == "train" else 0.01)
                counts[name].append((batches, samples))
        # A page that opens after the end finds what all the steps say.
        monitor.publisher._hub.subscribe("page")
        wait_for(lambda: any(content.get("verdict") for _, content in list(sent)))
        wait_for(lambda: (known := monitor.publisher.current.verdict) is not None and known["over"])
        states = {state["name"]: state for state in monitor.loader_states()}
        snapshot = monitor.snapshot()
        found = analyse(snapshot)
        shown, told = monitor.publisher.strip, monitor.publisher.current.verdict
        assert monitor.publisher.current.main == train.id
    finally:
        monitor.stop()
        monitor.publisher.connect(None)
        for loader in (train, val):
            loader.release()
    for name, own in counts.items():
        state = states[name]
        assert (state["epoch"] + 1, (state["batch"], state["samples"])) == (len(own), own[-1])
        assert [(one.batches, one.samples) for one in found.epochs if one.name == name] == own
    for segment in found.segments:
        possible(segment)
    steps = snapshot.steps
    assert len(steps.of(train.id)) == sum(batches for batches, _ in counts["train"])
    assert told is not None
    assert told["loader"] == train.id
    last = [verdict for verdict in found.verdicts if (verdict.segment or "").startswith("train/")][-1]
    assert (told["steps"], told["sentence"]) == (last.steps, past(last.sentence))
    assert shown == switch_strip(snapshot, snapshot.events, snapshot.loaders)
    best = said_everywhere(snapshot, found)
    assert (best is not None) == ("dali-cpu" in available(train))


def available(loader: SwitchableLoader) -> list[str]:
    return [backend["name"] for backend in loader.state()["backends"] if backend["available"]]
