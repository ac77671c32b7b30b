"""The rule on slow samples: at its thresholds, what it says, and where its sentence stands while the loop runs."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_monitor.runtime.current_verdict import LoopWarnings
from kernel_monitor.store import Store
from tests.unit.rules_asked import ask
from tests.unit.sessions import Run, build

RULE = "slow-samples"
FIGURES = {
    "samples": 2000, "median": 0.0031, "slow": 20, "times": 40.2, "steps": 120, "held": 40, "lost": 0.2,
    "names": ["photo_0815.tif", "photo_0007.tif", "photo_0021.tif"], "files": True,
    "cause": "RandomRotation", "cause_share": 0.93, "transform": "RandomRotation", "share": 0.61,
}  # fmt: skip
SENTENCE = (
    "1 % of the files take 40 × the median of 3.1 ms and hold up each 3rd batch: photo_0815.tif, photo_0007.tif, "
    "photo_0021.tif, …. Of their time 93 % is spent in RandomRotation; RandomRotation takes 61 % of the transforms' "
    "time"
)


def event(**changed: Any) -> dict[str, Any]:
    return {"kind": "sample-times", "time": 30.0, "loader": "loader-1", **FIGURES, **changed}


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({"lost": 0.03}, "quiet"),
        ({"lost": 0.031}, "fired"),
        ({"slow": 4}, "quiet"),
        ({"slow": 5}, "fired"),
    ],
)
def test_it_fires_where_the_loop_waits_for_a_few_samples(changed: dict[str, Any], state: str) -> None:
    assert ask(RULE, build(60, runs=[Run(0, 60)], events=[event(**changed)])).state == state


def test_what_it_says() -> None:
    found = ask(RULE, build(60, runs=[Run(0, 60)], events=[event(slow=1), event()]))
    assert [one.text for one in found.evidence] == [SENTENCE]
    assert "RandomRotation" in found.advice
    unnamed = event(names=[], files=False, cause=None, transform=None, held=110, slow=300)
    found = ask(RULE, build(60, runs=[Run(0, 60)], events=[unnamed]))
    assert [one.text for one in found.evidence] == [
        "15 % of the samples take 40 × the median of 3.1 ms and hold up each batch"
    ]
    assert "have in common" in found.advice
    assert ask(RULE, build(60, runs=[Run(0, 60)])).state == "abstained"


def test_it_stands_with_the_live_verdict_until_another_engine_delivers() -> None:
    store = Store()
    store.append(0.1, [])
    warnings = LoopWarnings(store, dict)
    assert warnings.of("loader-1", 31.0, []) == []
    store.add_event(**event())
    (sentence,) = warnings.of("loader-1", 31.0, [])
    assert sentence.startswith(SENTENCE)
    assert warnings.of("loader-2", 31.0, []) == []
    store.add_event("switch", 40.0, loader="loader-1", source="torchvision", target="threads", asked=39.0, first=40.0)
    assert not [one for one in warnings.of("loader-1", 41.0, []) if "median" in one]
