"""What a report says first: the figures of one comparison, in every kind of session; the picture; counts of rules."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from io import BytesIO

import numpy as np
import pytest
from bokeh.palettes import Viridis256
from PIL import Image

from kernel_monitor.analysis import analyse
from kernel_monitor.analysis.changes import factor, figure, percent
from kernel_monitor.analysis.results import Kind
from kernel_monitor.analysis.switch_comparison import change_rows
from kernel_monitor.report.findings import by_state, rules
from kernel_monitor.report.page import FIRST, render
from kernel_monitor.report.sections import Subject
from kernel_monitor.report.summary import IN_ANSWERS, Answer, Line, palette, picture, summary
from kernel_monitor.store import Snapshot
from tests.unit.analysis.test_compare_segments import session
from tests.unit.checks import contains, not_none
from tests.unit.pages import Page
from tests.unit.reports import ABSTAINED, QUIET, analysis, fired, nothing
from tests.unit.sessions import Run, build, switch


def subject_of(snapshot: Snapshot) -> Subject:
    return Subject(snapshot, analyse(snapshot), UTC)


def answers(snapshot: Snapshot) -> dict[str, Answer]:
    return {answer.question: answer for answer in summary(subject_of(snapshot))["answers"]}


def words(snapshot: Snapshot) -> str:
    html = render(snapshot)
    begin = html.index('<section id="summary"')
    return Page(html[begin : html.index("</section>", begin)]).text


def several(runs: Sequence[Run], *more: dict[str, object]) -> Snapshot:
    """A training that switches at 30.5 s, with other loaders beside it."""
    training = [Run(0, 30, step=0.09, wait=0.036), Run(31, 60, step=0.06, wait=0.006)]
    names = {"loader-1": "train", "loader-2": "val", "loader-3": "third"}
    events = [switch(30.5, "torchvision", "dali-cpu"), *more]
    return build(60, runs=[*training, *runs], loaders=names, events=events)


def test_the_three_answers_have_the_figures_of_the_comparison() -> None:
    snapshot = session(gpus=1)
    subject = subject_of(snapshot)
    change = not_none(subject.analysis.headline)
    before, after = subject.pair
    found = answers(snapshot)
    held, changed, brought = (
        found[name] for name in ("What held the training up", "What was changed", "What it brought")
    )
    assert held.text == f"{percent(before.wait_share)} % of each step was waiting for data"
    assert held.details == (
        f"{figure(before.wait)} of {figure(before.step)} ms, {before.steps} steps, train on torchvision",
    )
    assert changed.text == "train: torchvision → dali-cpu"
    assert changed.details[0].startswith("at batch 412 of epoch 1, ")
    text = factor(change.faster)
    assert brought.text == f"{text}: {figure(before.rate)} → {figure(after.rate)} images/s"
    said = words(snapshot)
    for row in change_rows(before, after):
        if row["label"] in IN_ANSWERS:
            continue
        assert f"{row['label']} {figure(row['before'] or 0.0)} → {figure(row['after'] or 0.0)}" in said
    for answer in found.values():
        assert f"{answer.question} {answer.text}" in said


def test_other_loaders_have_a_line_each_and_little_of_them_is_quiet() -> None:
    val = (Run(2, 12, step=0.05, loader="loader-2"), Run(40, 43, step=0.05, loader="loader-2"))
    third = (Run(0, 25, step=0.1, loader="loader-3"), Run(25.2, 26.4, step=0.1, loader="loader-3"))
    snapshot = several([*val, *third], switch(25.1, "torchvision", "dali-cpu", loader="loader-3"))
    context = summary(subject_of(snapshot))
    assert context["answers"][1].text == "train: torchvision → dali-cpu"
    lines: dict[str, Line] = {line.name: line for line in context["others"]}
    assert {name: line.quiet for name, line in lines.items()} == {"val": True, "third": True}
    assert "torchvision, not switched: 640 images/s, 40 % of each step waiting for data" in lines["val"].text
    assert "torchvision → dali-cpu; too little was measured after the switch to compare" in lines["third"].text


def test_without_a_switch_it_says_what_to_do_next() -> None:
    snapshot = session(switch=False)
    found = answers(snapshot)
    assert list(found) == ["What held the training up", "How fast it was", "What to do next"]
    advised = analyse(snapshot).verdict.advised
    assert found["What to do next"].text == advised[0].text
    assert "<svg width" not in render(snapshot).split('id="charts-part"')[0].split('id="verdict"')[0]


def test_what_cannot_be_said_of_the_training_is_said() -> None:
    snapshot = replace(build(20, gpus=1, busy=25.0, gpu=60.0), loaders=[])
    bare = replace(snapshot, schema=replace(snapshot.schema, loaders=()))
    assert "What the machine did The CPU cores were 25 % busy on average, the GPUs 60 % busy on average" in words(bare)
    assert "no loader was watched" in words(bare)
    told = render(session(switch=False), nothing("No step ended in this session."))
    assert "no batch was delivered" in Page(told).text
    assert "What it brought Not known: too little was measured after the switch to compare" in words(session(after=0.5))


def test_the_picture_has_rows_columns_and_the_colours_of_the_heatmaps() -> None:
    snapshot = build(60, 0.5, cpus=3, gpus=1, busy=lambda time: np.where(time <= 30, 100.0, 0.0), gap=(40.1, 42.1))
    found = not_none(picture(snapshot, 30.0))
    assert (found["before"], found["after"], found["line"]) == (15, 15, pytest.approx(50.0, abs=2.0))
    core, gpu = found["parts"]
    assert (core["name"], gpu["name"]) == ("3 CPU cores", "1 GPU")
    image = Image.open(BytesIO(base64.b64decode(core["image"].partition(",")[2]))).convert("RGBA")
    assert image.height == 3
    assert 55 <= image.width <= 65
    colors = [image.getpixel((x, 0)) for x in (2, image.width - 2)]
    assert colors == [(0xFD, 0xE7, 0x24, 255), (0x44, 0x01, 0x54, 255)]
    assert 2 <= int((np.asarray(image)[0, :, 3] == 0).sum()) <= 4
    assert picture(snapshot, 100.0) is None
    own = palette().astype(int)
    for place, color in enumerate(own):
        theirs = Viridis256[round(place / (len(own) - 1) * 255)]
        assert np.abs(color - [int(theirs[k : k + 2], 16) for k in (1, 3, 5)]).max() <= 6


def test_many_cores_are_drawn_as_means_of_neighbours() -> None:
    found = not_none(picture(build(40, 1.0, cpus=256), 20.0))
    assert found["parts"][0]["name"] == "256 CPU cores, means of 16"
    assert len(found["parts"][0]["image"]) < 10_000


def test_the_picture_ends_at_other_switches_of_the_loader() -> None:
    events = [switch(30.0, "torchvision", "dali-cpu"), switch(34.0, "dali-cpu", "torchvision")]
    snapshot = build(60, 0.5, runs=[Run(0, 60, step=0.1)], events=events)
    one, other = (not_none(picture(snapshot, 30.0, loader)) for loader in ("loader-1", "loader-2"))
    assert (one["before"], one["after"], other["before"], other["after"]) == (15, 4, 15, 15)


def test_a_recording_whose_first_screen_cannot_be_made_still_has_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_subject: Subject) -> None:
        raise ValueError("no such segment")

    monkeypatch.setitem(FIRST, "summary", ("Summary", fail))
    snapshot = session()
    recorded = replace(snapshot, facts={**snapshot.facts, "recorded": {}})
    assert "no such segment" in Page(render(recorded)).text
    with pytest.raises(ValueError, match="no such segment"):
        render(snapshot)


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("switched", [False, True])
def test_the_counts_of_rules_are_those_of_the_lists(gpus: int, switched: bool) -> None:
    snapshot = session(gpus=gpus, switch=switched)
    found = analyse(snapshot).findings
    kinds = by_state(found)
    names = [rule for kind in kinds for rule in kind]
    assert sorted(names) == sorted({each.rule for each in found})
    said = Page(render(snapshot)).text
    total, *counts = map(
        int, next(iter(re.findall(r"Of (\d+) rules? (\d+) fired; (\d+) found nothing; (\d+) lacked", said)))
    )
    assert total == sum(counts)
    assert counts == [len(kind) for kind in kinds]
    assert f"Found nothing ({counts[1]})" in said or counts[1] == 0
    assert f"Lacked a signal ({counts[2]})" in said or counts[2] == 0


def test_a_rule_that_looked_in_one_segment_and_could_not_in_another_is_counted_once_as_looked() -> None:
    lacking = replace(QUIET, state="abstained", segment="train/1", missing=("a GPU",))
    told = analysis(findings=(QUIET, lacking, fired(), replace(fired(), state="quiet", segment="train/2"), ABSTAINED))
    context = not_none(rules(Subject(session(), told, UTC)))
    assert context["note"] == "Of 3 rules 1 fired; 1 found nothing; 1 lacked a signal."
    said = Page(render(session(), told)).text
    contains(said, "Lacked a signal (1)", "train/1: a GPU")


@pytest.mark.parametrize("kind", ["input-bound", "copy-bound", "compute-bound", "residual-heavy"])
def test_what_a_step_was_bound_by_is_said_without_a_present_tense(kind: Kind) -> None:
    html = render(session(), analysis(verdict=replace(analysis().verdict, kind=kind)))
    said = Page(re.findall(r'<p class="kind .*?</b>', html)[0]).text
    assert not re.search(r"\b(is|are|waits)\b", said)


def test_the_sentence_of_a_verdict_is_in_the_past() -> None:
    (said,) = re.findall(r'<p class="sentence">(.*?)</p>', render(session(switch=False)))
    assert "of each step was waiting for data" in said
