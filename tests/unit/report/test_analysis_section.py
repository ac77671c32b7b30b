"""What the report shows of an analysis: every figure with its counts, nothing shown that was not said."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from kernel_monitor.analysis.results import Advice, Cost, EpochCount
from kernel_monitor.report.formats import money
from kernel_monitor.report.page import SECTIONS, render
from kernel_monitor.report.sections import QUANTILES, outline, stack
from tests.unit.analysis.test_compare_segments import session
from tests.unit.checks import contains
from tests.unit.pages import Page
from tests.unit.reports import ABSTAINED, GAIN, METRICS, QUIET, analysis, bump, fired, nothing, profile, segment

HOSTILE = "</script><b onmouseover='y'>x</b>"


@pytest.fixture(scope="module")
def html() -> str:
    return render(session(gpus=1), analysis())


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def text_of(**fields: object) -> str:
    return Page(render(session(gpus=1), analysis(**fields))).text


def part(html: str, key: str) -> str:
    """The words of one part of the page."""
    begin = html.index(f'<section id="{key}"') if f'<section id="{key}"' in html else html.index(f'id="{key}"')
    return Page(html[begin : html.index("</section>", begin)]).text


def says(html: str, key: str, *sentences: str) -> None:
    """That one part of the page says all of this."""
    words = part(html, key)
    for sentence in sentences:
        assert sentence in words


def test_summary_and_verdict_come_before_anything_else(html: str) -> None:
    order = [
        html.index(f'id="{key}"') for key in ("summary", "verdict", "charts-part", "histograms", "rules", "method")
    ]
    assert order == sorted(order)
    assert order[-1] < html.index('id="session"')  # words and pictures before the scripts
    says(
        html,
        "verdict",
        "Compute-bound: busy computing train/2 · dali-cpu, 590 steps",
        "Next: Switch to dali-cpu.",
        "Without any wait for data: expected 1.05 × faster (What is left of the wait)",
    )
    says(
        html,
        "summary",
        "3.00 × faster: 320 → 960 images/s",
        "whole step 100 → 33 ms",
        "Predicted before the change (dali-cpu): 2.2 to 3.6 × faster (From CPU",
        "Measured: 3.0 × faster, within it.",
    )


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        ({"measured": 0.4}, "Measured: 1.67 × faster, outside of it"),
        ({"low": math.nan, "measured": -0.125}, "cores that are shared). Measured: 1.12 × slower."),
    ],
)
def test_a_prediction_that_failed_is_called_so(gain: dict[str, Any], words: str) -> None:
    assert words in text_of(changes=(replace(analysis().changes[0], predicted=replace(GAIN, **gain)),))


def test_a_change_that_is_no_switch_has_its_figures_too() -> None:
    second = segment(2, "torchvision", began_by="mark", label="augment x12")
    told = analysis(segments=(segment(1, "torchvision"), second))
    html = render(session(gpus=1, switch=False), told)
    says(
        html,
        "summary",
        "What was changed train: “augment x12”",
        "3.00 × faster: 320 → 960 images/s",
        "6,400 images in 20 s, then 19,200 in 20 s",
        "GPU p50 31 → 88 %",
    )


def test_where_nothing_changed_the_rate_stands_with_its_counts() -> None:
    told = analysis(segments=(segment(1, "torchvision"),), changes=(), verdict=analysis().verdicts[0])
    words = Page(render(session(gpus=1, switch=False), told)).text
    assert "320 images/s 6,400 images in 20 s, train on torchvision Nothing was changed in this session." in words


def test_every_percentile_of_both_sides_is_in_the_table(html: str) -> None:
    words = part(html, "percentiles")
    assert "metric segment n min p50 p90 p95 p99 max" in words
    assert (
        "GPU utilisation, % train/1 · torchvision 200 15.5 31 34.1 37.2 40.3 43.4 train/2 · dali-cpu 200 44 88" in words
    )
    assert "Network received train/1 · torchvision 200 156 kB/s 312 kB/s" in words
    first = analysis().segments[0]
    for one, (_, label, *_rest) in zip(first.statistics, METRICS, strict=True):
        assert label in words
        assert len([getattr(one.values, name) for name in QUANTILES]) == 6


def test_other_segments_are_folded_and_labelled_with_their_mark() -> None:
    third = segment(2, "dali-cpu", key="train/3", began_by="mark", label="augment x12", start=50.0, end=60.0)
    html = render(session(gpus=1), analysis(segments=(*analysis().segments, third)))
    folded = html[html.index('<section id="percentiles"') :]
    folded = folded[folded.index("<details>") : folded.index("</details>")]
    assert "train/3 · dali-cpu “augment x12”, 590 steps" in folded


def test_phases_are_shown_as_shares_and_as_times(html: str) -> None:
    says(
        html,
        "phases",
        "data wait 60 % → 15 %",
        "forward 12 % → 27 %",
        "train/1 · torchvision 197 60 ms 3 ms 12 ms 20 ms 4 ms 1 ms 100 ms",
        "times of the GPU",
    )
    assert 'id="phases"' not in render(session(), analysis(segments=(segment(1, "torchvision", phases={}),)))


def test_the_histograms_lie_over_each_other_with_a_table_beside_them(html: str, page: Page) -> None:
    says(html, "histograms", "The two drawn are 0.94 apart", "train/1 · torchvision 200 0.0 % 4.1 %")
    (label,) = [
        str(found["aria-label"]) for tag, found in page.elements if tag == "svg" and found.get("class") == "histogram"
    ]
    contains(label, "train/1 · torchvision mostly 30 to 40 %", "train/2 · dali-cpu mostly 80 to 90 %")


def test_a_histogram_is_drawn_to_its_highest_bin(html: str) -> None:
    path = outline((0.0,) * 49 + (0.5,), 0.5)
    heights = [float(found) for found in re.findall(r"V([\d.]+)H", path)]
    assert len(heights) == 50
    assert heights[-1] == 14.0
    assert set(heights[:-1]) == {168.0}
    assert path.endswith("H636.0")
    top = 100 * max(max(one.gpu_histogram) for one in analysis().segments)
    says(html, "histograms", f"{top:.0f} % 0 % 20 % 40 %")


def test_a_bar_is_as_wide_as_its_shares(html: str) -> None:
    pieces = stack({"wait": 0.6, "copy": 0.03, "compute": 0.35, "other": 0.02})
    assert [(piece["start"], piece["width"]) for piece in pieces] == [
        (0, 60), (60, 3), (63, 35), (98, pytest.approx(2)),
    ]  # fmt: skip
    assert [piece["text"] for piece in pieces if piece["has_room"]] == ["data wait 60 %", "compute 35 %"]
    shares = [
        (round(float(x)), round(float(width))) for x, width in re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', html)
    ]
    assert (0, 60) in shares
    assert "data wait 60 %</text>" in html


def test_fired_rules_come_first_with_evidence_and_what_to_do(html: str) -> None:
    words = part(html, "rules")
    assert "Of 3 rules 1 fired; 1 found nothing; 1 lacked a signal." in words
    assert "critical The CPU is full and the GPU waits train/1 · torchvision, 164 times, of 200 values" in words
    assert "CPU above 90 % and GPU below 40 % (82 % of the samples, " in words
    assert "What to do: Switch to dali-cpu, or raise the workers." in words
    assert words.index("The CPU is full") < words.index("Found nothing (1)") < words.index("Lacked a signal (1)")
    assert "The ranks differ the session a session of another rank" in words


def test_many_pieces_of_evidence_are_counted_not_listed_and_the_worst_rule_comes_first() -> None:
    many = fired(evidence=fired().evidence * 40)
    words = text_of(findings=(fired(rule="b", title="Milder", severity="warning"), many, QUIET, ABSTAINED))
    assert "and 36 more like these" in words
    assert words.index("The CPU is full") < words.index("Milder")


def test_an_epoch_that_delivered_too_little_is_flagged_and_has_no_rate(html: str) -> None:
    says(
        html,
        "epochs",
        "Careful: 1 epoch may not be compared by time (train 2)",
        "train 1 640 20,480 20,480 52 s 393 whole",
        "train 2 0 0 20,480 0.4 s - ⚠ delivered 0 of 20,480 samples",
    )


def test_of_very_many_epochs_those_with_a_problem_are_all_there() -> None:
    bad = analysis().epochs[1]
    good = EpochCount("loader-1", "train", 1, 640, 20480, 20480, 52.1, True, None)
    words = text_of(epochs=(bad, *(replace(good, epoch=k) for k in range(1, 1000))))
    contains(words, "1,000 epochs, the newest 200 of them here.", "⚠ delivered 0 of 20,480 samples")


def test_operators_stand_side_by_side(html: str) -> None:
    says(
        html,
        "operators",
        "CPU operators, torchvision → dali-cpu",
        "aten::convolution 40.0 % 120 ms 40 60.0 % 120 ms 40",
        "sm90_gemm<bf16> - - - 70.0 % 88 ms 420",
        "no GPU kernels: CUPTI is not there",
        "trace trace.json.gz, to be opened in ui.perfetto.dev",
    )


def test_a_profile_that_failed_is_left_out() -> None:
    failed = {"kind": "profile", "time": 1.0, "result": None, "message": "no step came"}
    assert "Operators" not in Page(render(session(), analysis(profiles=(failed,)))).text.replace("GPU operators", "")
    assert "aten::convolution 40.0 % 120 ms 40" in text_of(profiles=(failed, profile("torchvision", 0.4)))


def test_costs_say_what_they_are_reckoned_from(html: str) -> None:
    says(
        html,
        "cost",
        "train/1 · torchvision $37.69 $0.00201 $1.29 $0.0327 - 197 steps, 6,400 images",
        "train/2 · dali-cpu $37.69 $0.000349 $0.430 $0.0109 67 % less 590 steps, 19,200 images",
        "Cores to feed this loop 5.70",
    )


def test_a_price_of_zero_and_no_price_are_both_said() -> None:
    free = tuple(replace(one, per_hour=0.0, per_step=0.0, per_epoch=0.0, per_thousand=0.0) for one in analysis().costs)
    words = text_of(costs=free)
    contains(words, "At a price of zero everything is free", "$0.00 $0.00 $0.00 $0.00 -")
    assert "No price is set" in text_of(costs=())


@pytest.mark.parametrize(
    ("value", "currency", "shown"),
    [
        (0.00201, "$", "$0.00201"), (2.5, "€", "2.50 €"), (0.0, "CHF", "0.00 CHF"), (math.nan, "$", "-"),
        (1234.5, "£", "£1,234.50"), (2.9e-7, "", "0.000000290"), (45.032, "USD", "45.03 USD"),
        (0.00099996, "€", "0.00100 €"), (0.9996, "€", "1.00 €"),
    ],
)  # fmt: skip
def test_money(value: float, currency: str, shown: str) -> None:
    assert money(value, currency) == shown


def test_a_diagnosis_has_its_runs_with_spread_and_counts(html: str) -> None:
    says(
        html,
        "diagnoses",
        "torchvision 320 310 to 331 31 % 60 ms 100 ms 99 % 31 % 80 steps, 2,560 images in 8.0 s -",
        "dali-cpu 960 930 to 985 - 5 ms 33.3 ms 66 % - 240 steps, 7,680 images in 8.0 s too few steps",
        "Predicted: dali-cpu 2.2 to 3.6 × faster.",
        "Measured: dali-cpu 3.0 × faster.",
        "dali-gpu: no usable GPU",
    )


def test_the_contents_lead_to_what_is_there(page: Page) -> None:
    targets = [str(found["href"]) for tag, found in page.elements if tag == "a"]
    ids = [str(found["id"]) for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    assert {target[1:] for target in targets} <= set(ids)
    assert targets[:2] == ["#verdict", "#charts-part"]
    assert set(targets) >= {f"#{key}" for key in SECTIONS if key not in ("limits", "nodes", "processes", "ranks")}


def test_an_analysis_of_nothing_says_so_and_no_more() -> None:
    html = render(session(switch=False), nothing("No step ended in this session."))
    page = Page(html)
    assert "Undetermined no segment to judge No step was measured." in page.text
    assert "What this session cannot say No step ended in this session." in page.text
    assert "No loader delivered anything: all of the time." in page.text
    for key in ("phases", "histograms", "segments", "rules", "operators", "cost", "epochs"):
        assert f'id="{key}"' not in html


def test_words_of_others_are_text_everywhere() -> None:
    told = analysis(
        segments=(
            segment(1, HOSTILE, label=HOSTILE, began_by="mark", name=HOSTILE),
            segment(2, HOSTILE, gpu_histogram=bump(50.0)),
        ),
        findings=(fired(title=HOSTILE, advised=(Advice(HOSTILE),)),),
        epochs=(EpochCount("loader-1", HOSTILE, 0, 1, 1, 2, 1.0, False, HOSTILE),),
        cannot=(HOSTILE,),
        profiles=({"kind": "profile", "result": {**profile(HOSTILE, 0.4)["result"], "trace": HOSTILE}},),
        costs=(Cost("train/1", 1.0, HOSTILE, 1.0, 1.0, 1.0),),
    )
    page = Page(render(session(gpus=1), told))
    assert not [tag for tag, found in page.elements if "onmouseover" in found]
    assert page.text.count(HOSTILE) >= 12
