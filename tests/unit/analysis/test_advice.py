"""All advice on a loader comes from one decision: random sessions in which nothing is advised for and against."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_monitor.analysis import switch_strip
from kernel_monitor.analysis.results import Analysis, Feeding, Finding, Verdict
from kernel_monitor.analysis.session_analysis import analyse
from kernel_monitor.ipython.answers import analysis_text
from kernel_monitor.steps.measured_step import ON_DEVICE
from kernel_monitor.store import Snapshot
from tests.unit.checks import not_none
from tests.unit.sessions import Run, Value, build, calibrated, diagnosed, live, switch

REAL = ("torchvision", "dali-cpu", "dali-gpu")
OPPOSITE = {"more": "fewer", "fewer": "more"}
ADVISES = {
    r"Switch to ((?:dali-)\w+|torchvision)": ("engine", "for"),
    r"Keep \S+: (?:Diagnose measured )?((?:dali-)\w+|torchvision)": ("engine", "against"),
    r"((?:dali-)\w+|torchvision) is (?:the fastest here(?! already)|\S+ × faster than)": ("engine", "for"),
    r"Another (engine) would read": ("engine", "against"),
    r"(?i:raise) the (workers|threads) from \d+ to": ("more", "for"),
    r"(?i:lower) the (workers|threads)": ("fewer", "for"),
    r"More (workers|threads) .*?would not (?:help|speed this loop up)": ("more", "against"),
    r"(?i:larger) (batch)": ("batch", "for"),
    r"(Load on more|with more CPU|machine with more|more) cores(?! would| are| than)": ("cores", "for"),
    r"More (cores) would not speed this loop up": ("cores", "against"),
    r"(Loading) is fast enough\. ": ("loading", "against"),
}
"""How sentences advise, and which point each must have: about what (workers and threads: which way), and its stance."""


LOADING = 0.171
"""CPU s that loading a batch takes in `starved`, here and in `test_offer`."""


# -- the case that was seen -------------------------------------------------------------------------------------------


def starved(*events: dict[str, Any], **more: Any) -> Snapshot:
    """A chain that is dearer with DALI, on two cores that are busy, as `example_notebooks/verdict.ipynb` has it."""
    given_: dict[str, Any] = {
        "cpus": 2, "busy": 99.0, "kernel": 12.0, "workers": 171.0,
        "runs": [Run(0, 60, step=0.097, wait=0.08, phases={"forward": 0.006, "backward": 0.006})],
        "states": [calibrated(1.75 * LOADING)],
    }  # fmt: skip
    return build(60, events=events, **{**given_, **more})


def test_an_engine_that_is_predicted_to_be_slower_is_not_advised() -> None:
    found = analyse(starved())
    gain = next(one for one in found.verdict.gains if one.action == "dali-cpu")
    assert gain.low < gain.high < -0.4
    text = " ".join(analysis_text(found).split())
    assert "Keep torchvision: dali-cpu is expected to run" in text
    assert "Switch to dali-cpu" not in text
    assert found.feeding is not None
    assert "cores" in found.feeding.advice


def test_a_switch_that_made_it_slower_counts_more_than_the_prediction() -> None:
    """Predicted to be faster, and slower when it was in use: not advised again, nor by the page's verdict."""
    runs = [Run(0, 20, step=0.1, wait=0.08), Run(20, 40, step=0.16, wait=0.14), Run(40, 60, step=0.1, wait=0.08)]
    events = [switch(20.2, "torchvision", "dali-cpu", asked=20.0), switch(40.2, "dali-cpu", "torchvision", asked=40.0)]
    states = [calibrated(0.4 * LOADING)]
    snapshot = starved(*events, runs=runs, states=states)
    found = analyse(snapshot)
    assert found.verdict.segment == "train/3"
    for advice in (found.verdict.advice, not_none(live(snapshot, loader="loader-1"))["advice"]):
        assert advice.startswith("Keep torchvision: dali-cpu ran 1.60 × slower than torchvision in this loop.")
    assert found.feeding is not None
    assert "Switch to" not in found.feeding.advice
    assert [one.advice for one in found.verdicts[:2]] == [
        "The advice is for what is in use now: train/3 (torchvision, 194 steps)."
    ] * 2
    back = analyse(starved(events[0], runs=runs[:2], states=[{**states[0], "backend": "dali-cpu"}]))
    assert back.verdict.advice.startswith("Switch to torchvision: it ran 1.60 × faster than dali-cpu in this loop.")


@pytest.mark.parametrize("last", [[], [Run(28, 29, step=0.1, wait=0.08)]], ids=["no step", "few steps"])
def test_what_diagnose_measured_is_said_though_the_last_segment_has_hardly_begun(last: list[Run]) -> None:
    runs = [Run(0, 20, step=0.1, wait=0.08), Run(20, 28, step=0.16, wait=0.14), *last]
    events = [
        switch(20.2, "torchvision", "dali-cpu", asked=20.0),
        switch(28.2, "dali-cpu", "torchvision", asked=28.0),
        diagnosed({"torchvision": 320.0, "dali-cpu": 200.0}, began=12.0, at=28.5),
    ]
    found = analyse(starved(*events, runs=runs, states=[calibrated(0.4 * LOADING)]))
    assert found.verdict.segment == "train/1"
    assert found.verdict.advice.startswith(
        "Keep torchvision: Diagnose measured dali-cpu 1.60 × slower than torchvision."
    )
    assert "what is in use now: train/1" in found.verdicts[1].advice


def test_an_engine_that_has_just_been_switched_to_is_not_advised() -> None:
    event = switch(30.2, "torchvision", "dali-cpu", asked=30.0)
    snapshot = starved(event, runs=[Run(0, 30, step=0.1, wait=0.08)], states=[calibrated(0.3 * LOADING)])
    found = analyse(snapshot)
    assert found.verdict.advice == "dali-cpu has only just taken over: let it run on."
    assert found.feeding is not None
    assert found.feeding.advice == ""


# -- random sessions --------------------------------------------------------------------------------------------------


@st.composite
def loops(
    draw: st.DrawFn, loader: str, usable: Sequence[str], *, starves: bool
) -> tuple[list[Run], list[dict[str, Any]], dict[str, Any]]:
    """A loader's steps, its events and its state: some parts of 2 to 14 s, each begun by a switch, a knob or a mark."""
    engine, at = usable[0] if starves else draw(st.sampled_from(usable)), 0.0
    knobs = {"workers": draw(PROCESSES), "prefetch": 2, "threads": draw(PROCESSES)}
    runs, events = [], []
    turned = False
    flags = draw(st.sampled_from([0, ON_DEVICE]))
    phases = draw(st.sampled_from([{}, {"copy": 0.02, "forward": 0.3, "backward": 0.6, "optimizer": 0.05}]))
    wait = draw(st.sampled_from([0.6, 0.8] if starves else [0.6, 0.0, 0.02, 0.15, 0.3, 0.9]))
    for number in range(draw(st.integers(1, 4))):
        if number:
            change = draw(st.sampled_from(["switch", "switch", "switch", "knobs", "mark", "diagnosis"]))
            target = draw(st.sampled_from(usable))
            if change == "switch" and target != engine:
                events.append(switch(at + 0.2, engine, target, asked=at, loader=loader))
                engine = target
            elif change == "knobs":
                knobs = {**knobs, "workers": draw(PROCESSES), "threads": draw(PROCESSES)}
                turned = True
                events.append({"kind": "knobs", "time": at, "loader": loader, **knobs, "message": None})
            elif change == "mark":
                events.append({"kind": "mark", "time": at, "label": "other data"})
            elif engine in REAL:
                rates, spreads = ({name: draw(of) for name in usable} for of in (RATES, SPREADS))
                found = diagnosed(rates, engine, spreads=spreads, began=at - 2.0, at=at - 0.1, loader=loader)
                events.append(found)
            wait = draw(st.sampled_from([wait] if starves else [wait, 0.0, 0.15, 0.6, 0.9]))
        seconds = draw(st.sampled_from([2.0, 8.0, 14.0]))
        step = draw(st.sampled_from([0.05, 0.1, 0.16]))
        own = {name: share * step * (1 - wait) for name, share in phases.items()}
        runs.append(
            Run(at, at + seconds, step=step, wait=wait * step, phases=own, flags=flags, loader=loader, epoch=number)
        )
        at += seconds
    backends = [{"name": name, "available": name in usable or name == "synthetic"} for name in (*REAL, "synthetic")]
    ratio = draw(st.sampled_from([0.3, 0.7, 0.95, 1.2, 1.8, None]))
    state: dict[str, Any] = {"backend": engine, "knobs": knobs, "backends": backends, "pin_memory": draw(st.booleans())}
    if ratio is not None:
        state |= calibrated(ratio * LOADING, error=draw(st.sampled_from([0.0, 0.02])))
    if engine == "loader" and not turned:
        state |= {"knobs": {"workers": None, "prefetch": None, "threads": None}, "backends": []}
    return runs, events, state


RATES, SPREADS = st.sampled_from([100.0, 101.0, 120.0, 180.0, 300.0]), st.sampled_from([0.02, 0.1, 0.3])
KERNEL, WORKERS = st.sampled_from([30.0, 90.0, None]), st.sampled_from([170.0, 390.0, 20.0, None])
ENGINES = st.sampled_from([["torchvision"], list(REAL[:2]), list(REAL), [*REAL[:2], "synthetic"], ["loader"]])
PROCESSES = st.sampled_from([1, 2, 3, 0, 8, 40])


@st.composite
def sessions(draw: st.DrawFn) -> dict[str, Any]:
    """Cores idle or busy, with and without a GPU, a quota, workers' times, single steps; one loader or two.

    Returns:
        Arguments of `build`.
    """
    starves = draw(st.booleans())  # on two cores: what predictions are made of
    usable = list(REAL[:2]) if starves else draw(ENGINES)
    ids = [f"loader-{number + 1}" for number in range(draw(st.sampled_from([1, 1, 1, 2])))]
    made = [draw(loops(one, usable, starves=starves)) for one in ids]
    cpus, busy = draw(st.sampled_from([1, 2, 4, 16])), draw(st.sampled_from([15.0, 55.0, 79.0, 85.0, 92.0, 99.0]))
    series: dict[str, Value] = {}
    limits = None
    if draw(st.booleans()):
        limits = {"cpus": list(range(cpus)), "cpu_quota": draw(st.sampled_from([None, 0.5, 1.5, 3.0])), "memory": None}
        series["container/cpu"] = draw(st.sampled_from([20.0, 99.0]))
    if draw(st.booleans()):
        series["process/workers/count"] = float(draw(st.integers(0, 40)))
    if cpus > 1 and draw(st.booleans()):
        series["cpu/0/busy"] = 100.0
    runs = [run for loop in made for run in loop[0]]
    if starves:
        cpus, busy, limits = 2, draw(st.sampled_from([99.0, 85.0, 30.0])), None
    kernel, workers = (12.0, 170.0) if starves else (draw(KERNEL), draw(WORKERS))
    return {
        "seconds": max(run.end for run in runs) + draw(st.sampled_from([0.0, 2.0])), "cpus": cpus, "busy": busy,
        "gpus": draw(st.integers(0, 2)), "iowait": draw(st.sampled_from([0.0, 30.0, 90.0])), "series": series,
        "gpu": draw(st.sampled_from([3.0, 40.0, 65.0, 97.0])), "gpu_memory": draw(st.sampled_from([30.0, 95.0])),
        "kernel": kernel, "workers": workers, "limits": limits, "runs": runs,
        "states": [loop[2] for loop in made],
        "events": sorted((event for loop in made for event in loop[1]), key=lambda event: event["time"]),
        "loaders": dict(zip(ids, ("train", "second"), strict=False)), "steps": draw(st.integers(0, 3)) > 0,
    }  # fmt: skip


def collected(snapshot: Snapshot, found: Analysis) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every piece of advice of every surface, as JSON, with the id of the loader that it is on ("" for the session)."""
    told = found.to_json()
    loader_of = {one.key: one.loader for one in found.segments}
    feeding = [] if told["feeding"] is None else [told["feeding"]]
    for part in (told["verdict"], *told["verdicts"], *told["findings"], *feeding):
        assert part["advice"] == " ".join(one["text"] for one in part["advised"])
        for one in part["advised"]:
            yield loader_of.get(one["segment"], ""), one
    last = {one.loader: one for one in found.segments}
    for loader, segment in last.items():
        if segment.steps >= 20 and not segment.synthetic:
            told_live = live(snapshot, loader=loader)  # nothing is advised where the loop pauses
            yield from ((loader, one) for one in (told_live or {"advised": []})["advised"])
    for event in told["diagnoses"]:
        later = [one for one in snapshot.events if one["time"] > event["time"] and one["kind"] in CHANGES]
        if not later:  # what it says is of its time
            for one in event["result"]["advised"]:
                yield event["loader"], one


CHANGES = ("switch", "knobs", "mark", "diagnosis")


def contradictions(advised: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """What is advised for and against of one loader, more and fewer of one thing, or more than one engine."""
    texts: dict[tuple[str, str, str, str], str] = {}
    for loader, one in advised:
        for point in one["points"]:
            texts[loader, point["about"], point["target"], point["stance"]] = one["text"]
    found = []
    engines: dict[str, set[str]] = defaultdict(set)
    for (loader, about, target, stance), text in texts.items():
        others = [(loader, about, target, "against")]
        if target in OPPOSITE:
            others.append((loader, about, OPPOSITE[target], "for"))
        found += [f"{text} | {texts[one]}" for one in others if stance == "for" and one in texts]
        if about == "engine" and stance == "for":
            engines[loader].add(target)
    both = [f"two engines: {sorted(names)}: {texts}" for names in engines.values() if len(names) > 1]
    return found + both


def unfounded(one: Mapping[str, Any]) -> list[str]:
    """What a sentence says and has no point for."""
    stances = {
        *((point["about"], point["target"], point["stance"]) for point in one["points"]),
        *((point["about"], "", point["stance"]) for point in one["points"]),
    }
    found = []
    for pattern, (about, stance) in ADVISES.items():
        for match in re.finditer(pattern, one["text"]):
            name = match[1]
            wanted = {
                "engine": ("engine", "" if name == "engine" else name, stance),
                "more": (name, "more", stance),
                "fewer": (name, "fewer", stance),
            }.get(about, (about, "", stance))
            if wanted not in stances:
                found.append(f"{match[0]!r} in {one['text']!r} is no point of it")
    return found


def strings(value: Any) -> Iterator[str]:
    """Every text of JSON but what is made from advice."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        made = {one["text"] for one in value.get("advised") or ()}
        for key, part in value.items():
            if key not in ("advised", "advice") and not (isinstance(part, str) and part in made):
                yield from strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from strings(part)


def problems(snapshot: Snapshot) -> list[str]:
    """Contradictions; sentences whose points are not what they say; prose that advises and is made from no `Advice`."""
    found = analyse(snapshot)
    advised = list(collected(snapshot, found))
    brief = switch_strip(snapshot, snapshot.events, snapshot.loaders)
    said = [analysis_text(found), *strings(found.to_json()), "" if brief is None else brief["text"]]
    rest = [" ".join(words.split()) for words in said]
    for _, one in advised:  # a warning holds sentences of advice, as the text does
        rest = [words.replace(" ".join(one["text"].split()), "") for words in rest]
    loose = [f"{pattern} in {words!r}" for words in rest for pattern in ADVISES if re.search(pattern, words)]
    return contradictions(advised) + [problem for _, one in advised for problem in unfounded(one)] + loose


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(sessions())
def test_nothing_is_advised_for_and_against(session: dict[str, Any]) -> None:
    assert problems(build(**session)) == []


@pytest.mark.parametrize("kind", [Verdict, Finding, Feeding])
def test_prose_that_advises_is_only_made_from_advice(kind: Any) -> None:
    assert isinstance(kind.advice, property)
    assert "advice" not in kind.__dataclass_fields__
