"""How many workers on other machines end the wait, and when more of them no longer help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.results import Analysis
from kernel_monitor.analysis.session_analysis import analyse
from kernel_monitor.store import Series
from tests.unit.sessions import Run, build


def analysed(limits: dict[str, Any] | None, *, nodes: int = 2, wait: float = 0.06) -> Analysis:
    """A loop of steps of 0.1 s with 32 images, for which 4 workers on other machines work; it waits for `wait` s."""
    state: dict[str, Any] = {"backend": "ray", "knobs": {"workers": 4, "prefetch": 2, "threads": None}}
    snapshot = build(40, runs=[Run(0, 40, step=0.1, wait=wait)], states=[state | {"remote": limits}])
    names = [f"node/node-{k}/batches" for k in range(nodes)]
    series = (*snapshot.schema.series, *(Series(name, "batches/s") for name in names))
    values = np.full((len(snapshot.time), nodes), 4.0, dtype=np.float32)
    wider = np.concatenate([snapshot.values, values], axis=1)
    return analyse(replace(snapshot, schema=replace(snapshot.schema, series=series), values=wider))


def advice(analysis: Analysis) -> str:
    return " ".join(verdict.advice for verdict in analysis.verdicts)


def test_as_many_as_the_loop_takes() -> None:
    text = advice(analysed(None))
    assert "Raise the workers from 4 to 10, with a core of a CPU machine for each" in text
    assert "the loop could take 800 images/s, and 4 deliver 320. More than that would only wait for the GPU." in text


def test_no_limit_where_enough_comes_through() -> None:
    assert "from 4 to 10" in advice(analysed({"driver": 5000.0, "link": None}))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"driver": 560.0, "link": None}, "the process that passes the batches on to this kernel"),
        ({"driver": 5000.0, "link": 560.0}, "the network link of this machine"),
    ],
)
def test_as_many_as_reach_this_machine(limits: dict[str, Any], words: str) -> None:
    text = advice(analysed(limits))
    assert "Raise the workers from 4 to 7," in text
    assert f"More than that would wait for {words}, which takes 560 images/s at most." in text


def test_none_where_no_more_reach_it() -> None:
    text = advice(analysed({"driver": 330.0, "link": None}))
    assert "More workers would not help: they wait for the process that passes" in text
    assert "Raise" not in text


def test_nothing_of_it_without_other_machines_or_without_a_wait() -> None:
    assert "CPU machine for each" not in advice(analysed(None, nodes=0))
    assert "CPU machine for each" not in advice(analysed(None, wait=0.001))


def test_the_rules_on_this_machines_cores_leave_them_out() -> None:
    analysis = analysed(None)
    (finding,) = [one for one in analysis.findings if one.rule == "dataloader"]
    assert finding.state == "abstained"
    assert finding.missing == ("workers on this machine: they are on others",)
