"""The exported page: what was measured is said, text is text, the policy fits, nothing private is in it."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_monitor.report.page import render
from kernel_monitor.steps.measured_step import NO_GRADIENTS
from kernel_monitor.store import LoaderInfo, Snapshot, Store
from tests.unit.analysis.test_compare_segments import session, state
from tests.unit.checks import contains
from tests.unit.pages import Page
from tests.unit.sessions import Run, build, switch

HOSTILE = "</script><script>document.title='owned'</script><b title=\"x\" onmouseover='y'>&amp; $$x$$"


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(session(gpus=1)))


def hostile() -> Snapshot:
    snapshot = session(gpus=1)
    schema = replace(
        snapshot.schema,
        loaders=(LoaderInfo("loader-1", HOSTILE),),
        gpus=(replace(snapshot.schema.gpus[0], name=HOSTILE),),
        host={**snapshot.schema.host, "cpu_model": HOSTILE, "platform": HOSTILE + "\udcff\x00"},
    )
    failed = {"id": 9, "kind": "switch-failed", "time": 3.0, "loader": "loader-1", "message": f"{HOSTILE}.jpg"}
    return replace(
        snapshot,
        schema=schema,
        events=[{**event, "target": HOSTILE} if "target" in event else event for event in (*snapshot.events, failed)],
        loaders=[state(name=HOSTILE, decoded={HOSTILE: 3})],
        facts={"versions": {HOSTILE: HOSTILE}},
    )


def test_the_page_says_what_was_measured_where(page: Page) -> None:
    for words in (
        "Some CPU, 2 logical cores",
        "64.0 GB",
        "NVIDIA H200 (150.0 GB)",
        "python 3.11.4, kernel-monitor 0.1.0, torch 2.15.0",
        "train: torchvision → dali-cpu",
        "6,784 of 20,480",
        "64 by torchvision, 6,720 by dali-cpu",
        "2,000 ms",
    ):
        assert " ".join(words.split()) in page.text
    without = session()
    page = Page(render(replace(without, schema=replace(without.schema, gpu_reason="Driver Not Loaded"))))
    assert "none: Driver Not Loaded" in page.text


def test_the_percentiles_before_and_after_are_in_the_table(page: Page) -> None:
    assert "metric segment n min p50 p90 p95 p99 max" in page.text
    both = "train/1 · torchvision {} {} train/2 · dali-cpu {} {}"
    for label, before, after in (
        ("CPU busy, mean of the cores, %", 100, 61),
        ("GPU utilisation, mean of the GPUs, %", 31, 88),
        ("Data wait per step, ms", 60, 5),
    ):
        sides = [" ".join([str(value)] * 6) for value in (before, after)]
        assert f"{label} {both.format(199, sides[0], 197, sides[1])}" in page.text


def test_only_the_pages_own_two_scripts_may_run(page: Page) -> None:
    policy = dict(part.strip().split(" ", 1) for part in page.policy.split(";"))
    assert (policy["default-src"], policy["img-src"]) == ("'none'", "data:")
    assert "unsafe-inline" not in policy["script-src"]
    assert "unsafe-eval" not in policy["script-src"]
    running = [text for kind, text in page.scripts if kind != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
    assert policy["script-src"].split() == [f"'sha256-{one}'" for one in hashes]
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "action"} & set(attributes), tag
        assert tag not in ("link", "iframe", "object", "base")


def test_names_with_markup_are_text() -> None:
    page = Page(render(hostile()))
    clean = Page(render(session(gpus=1)))
    assert [kind for kind, _ in page.scripts] == [kind for kind, _ in clean.scripts]
    assert not [tag for tag, attributes in page.elements if "onmouseover" in attributes]
    assert page.text.count(HOSTILE) >= 7
    assert f"{HOSTILE}: torchvision → {HOSTILE}" in page.text
    data = next(text for kind, text in page.scripts if kind == "application/json")
    assert not set("<>&") & set(data)
    assert json.dumps(HOSTILE)[1:-1] in json.dumps(json.loads(data))


def test_no_path_user_or_environment_is_in_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_MONITOR_SECRET", "a-secret-of-the-environment")
    path = "/home/somebody/data/class one/cat.jpg"
    snapshot = replace(
        session(),
        events=[
            {"id": 1, "kind": "switch-failed", "time": 1.0, "loader": "loader-1", "message": f"cannot read {path}"}
        ],
        loaders=[state(status=f"dali-cpu failed: {path}; torchvision goes on")],
        facts={"environment": sys.prefix, "user": "somebody"},
    )
    html = render(snapshot)
    contains(html, "cannot read", "cat.jpg")
    for secret in ("somebody", "a-secret-of-the-environment", sys.prefix, str(Path.cwd())):
        assert secret not in html


def test_a_session_without_rows_switches_or_loaders_has_a_page() -> None:
    empty = Page(render(Store(origin=1.79e9).snapshot([], {})))
    assert "no sample" in empty.text
    plain = Page(render(session(switch=False)))
    assert "Nothing was changed in this session." in plain.text
    assert "What was changed" not in plain.text
    snapshot = session(switch=False)
    kept = [k for k, name in enumerate(snapshot.schema.names) if not name.startswith("loader/")]
    schema = replace(snapshot.schema, series=tuple(snapshot.schema.series[k] for k in kept), loaders=())
    text = Page(render(replace(snapshot, schema=schema, values=snapshot.values[:, kept], loaders=[]))).text
    assert "No loader delivered anything: all of the time." in text
    assert "CPU busy, mean of the cores, % 420 7 61 100 100 100 100" in text


def test_a_mark_in_a_session_with_an_evaluation_divides_its_training() -> None:
    runs = []
    for start in range(0, 80, 20):
        step = 0.1 if start < 40 else 0.2
        runs.append(Run(start, start + 14, step=step, loader="loader-2"))
        runs.append(Run(start + 14, start + 20, step=0.05, loader="loader-1", flags=NO_GRADIENTS))
    marked = [{"kind": "mark", "time": 40.0, "label": "augment x12"}]
    text = Page(render(build(80, runs=runs, loaders={"loader-1": "val", "loader-2": "fit"}, events=marked))).text
    assert "What was changed fit: “augment x12”" in text


def test_earlier_epochs_have_their_rows() -> None:
    counts = {"samples": 20381, "planned": 20480, "skipped": 3, "replaced": 96, "lost": 0, "doubled": 0}
    first = {"epoch": 0, **counts, "decoded": {"torchvision": 20381}}
    text = Page(render(replace(session(), loaders=[state(epochs=[first])]))).text
    assert "train 1 20,381 of 20,480 3 96 0 0 20,381 by torchvision train 2 6,784 of 20,480" in text


def test_the_parity_of_a_loader_is_asked_for_by_a_call_that_it_has() -> None:
    there = [{"name": "dali-cpu", "available": True, "reason": None, "confirm": None, "note": None}]
    gone = [{**there[0], "available": False, "reason": "The data set is iterable-style."}]
    for changes, shown in (
        ({"backends": there}, "not measured: loader.parity()"),
        ({"backends": there, "attached": True}, "not measured: switchable(loader).parity()"),
        ({"backends": gone, "attached": True}, None),
    ):
        text = Page(render(replace(session(), loaders=[state(**changes)]))).text
        assert (shown in text) if shown else ("not measured: " not in text), changes


def replayed(*, end: bool) -> Snapshot:
    """A session that goes on with replayed batches at 22 s, until 30 s or the last delivery."""
    snapshot = session(idle=5.0)
    events = [
        {**event, "target": "synthetic"} if event["kind"].startswith("switch") else event for event in snapshot.events
    ]
    if end:
        events.append({"id": 99, **switch(30.0, "synthetic", "dali-cpu", asked=29.9)})
    return replace(snapshot, events=events)


def test_the_page_says_which_figures_are_of_replayed_batches() -> None:
    text = Page(render(replayed(end=False))).text
    contains(text, "Careful: after: the batches were replayed", "hatched segments replayed batches")
    assert "hatched segments replayed batches" in Page(render(replayed(end=True))).text
    plain = Page(render(session())).text
    assert "replayed" not in plain


def test_skipped_samples_are_listed_as_text_without_folders() -> None:
    skip = {"index": 1612, "path": f"/home/somebody/data/{HOSTILE.replace('/', '|')}.jpg", "reason": HOSTILE}
    page = Page(render(replace(session(), loaders=[state(skipped=1, skips=[skip])])))
    contains(page.text, "Skipped samples", "1,612")
    assert page.text.count("$$x$$") == 2
    assert "somebody" not in page.text
    assert not [tag for tag, attributes in page.elements if "onmouseover" in attributes]
    assert "Skipped samples" not in Page(render(session())).text


def test_changed_knobs_and_cancelled_switches_are_in_the_list() -> None:
    knobs = {"kind": "knobs", "loader": "loader-1", "prefetch": 2, "threads": None}
    failed = {"workers": 2, "threads": 3, "message": "not enough memory"}
    events = [
        {"id": 7, "time": 3.0, **knobs, "workers": 4},
        {"id": 9, "time": 3.5, **knobs, **failed},
        {"id": 8, "kind": "switch-cancelled", "time": 4.0, "loader": "loader-1", "target": "dali-cpu"},
    ]
    text = Page(render(replace(session(switch=False), events=events))).text
    assert "train workers 4, prefetch 2 - - -" in text
    assert "train workers 2, prefetch 2, threads 3: not enough memory - - -" in text
    assert "train switch cancelled before it took effect" in text
