"""Magics whose answer comes later, and the verdict in words."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from kernel_monitor import monitor
from kernel_monitor.analysis import analyse
from kernel_monitor.analysis.results import Advice, Analysis, Evidence, Finding, Gain, Verdict
from kernel_monitor.ipython.answers import analysis_text
from tests.unit.ipython.conftest import Magic
from tests.unit.sessions import Run, build


@pytest.fixture
def shell(shell: InteractiveShell) -> Iterator[InteractiveShell]:
    """One whose monitor runs."""
    gc.collect()  # loaders that other tests left
    monitor.start(record=False)
    yield shell
    monitor.configure(price="")


def test_a_price_is_set_and_taken_away(magic: Magic) -> None:
    assert magic("price 2.50€") == "price: 2.5 € an hour\n"
    assert monitor.settings["price"] == 2.5
    assert "price: 3 $ an hour" in magic("price $ 3")
    assert magic("price off") == "no price\n"
    assert monitor.settings["price"] is None


def test_a_mark_is_an_event_and_nothing_to_cancel_is_said(magic: Magic) -> None:
    assert magic("mark augment x12") == "marked: augment x12\n"
    assert [one["label"] for one in monitor.store.events() if one["kind"] == "mark"][-1] == "augment x12"
    assert magic("diagnose --cancel") == "There is no diagnosis to cancel.\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("price a lot", "price"),
        ("price", "required"),
        ("mark", "required"),
        ("mark don't", "Quote it"),
        ("diagnose", "no loader to switch"),
        ("diagnose --seconds soon", "invalid float"),
        ("profile many", "invalid int"),
        ("profile 1000", "1 to 200 steps"),
        ("profile --loader nobody", "'nobody'"),
    ],
)
def test_what_cannot_be_done_is_said(magic: Magic, line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        magic(line)


def test_a_profile_stands_under_the_cell_of_its_loop(cell: Magic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_monitor.profiler.plugin.READING_S", 60.0)  # the trace is read by a new process
    assert cell("%monitor profile 5").startswith("profiling the next 5 steps")
    cell("import torch\nfrom kernel_monitor import watch_loader\ndata = watch_loader([[0] * 4] * 40, name='t')")
    loop = "for _ in data:\n    torch.mm(torch.ones(32, 32), torch.ones(32, 32))"
    first = cell(loop)
    assert "t, loader: 5 steps in" in first, first
    assert "aten::mm" in first
    assert "steps in" not in cell("x = 1")  # once
    second = cell("%monitor profile 5\n" + loop).splitlines()
    (row,) = [line for line in second if line.startswith("aten::mm")]
    assert row.count("%") == 2, row  # beside those of the profile before
    cell("del data")


def test_the_verdict_in_words() -> None:
    verdict = Verdict(
        kind="input-bound",
        segment="train/1",
        sentence="Steps wait 40 ms of 100 ms for their batch (200 steps).",
        advised=(Advice("Try dali-cpu."),),
        missing=("phases: monitor.watch(model, optimizer)",),
        gains=(Gain("loader", 0.4, 0.4), Gain("dali-cpu", 0.1, 0.25, basis="Work is conserved.")),
    )
    findings = (
        Finding("CPUBottleneck", "CPU bottleneck", "fired", "warning", evidence=(Evidence("CPU over 90 %"),)),
        Finding("IOBottleneck", "I/O bottleneck", "quiet"),
        Finding("rank", "Odd", "fired", "note", segment="train/1", evidence=(Evidence("of this"),)),
        Finding("rank", "Odd", "fired", "note", segment="val/1", evidence=(Evidence("of another"),)),
    )
    analysis = Analysis((), (), verdict, (verdict,), (), findings, (), None, cannot=("No GPU was measured.",))
    assert analysis_text(analysis).splitlines() == [
        "train/1: input-bound",
        "  why     Steps wait 40 ms of 100 ms for their batch (200 steps).",
        "  next    Try dali-cpu.",
        "  gain    Without any wait for data: expected 1.67 × faster.",
        "  gain    dali-cpu: expected 1.11 to 1.33 × faster. Work is conserved.",
        "  rule    CPU bottleneck (warning): CPU over 90 %",
        "  rule    Odd (note): of this",
        "  rule    Odd (note, val/1): of another",
        "  needs   phases: monitor.watch(model, optimizer)",
        "  cannot  No GPU was measured.",
    ]


def test_the_verdict_of_a_session() -> None:
    snapshot = build(30, runs=[Run(0.5, 29, step=0.1, wait=0.06)])
    assert analysis_text(analyse(snapshot)).startswith("train/1: input-bound\n  why ")
    assert "undetermined" in analysis_text(analyse(build(5)))
