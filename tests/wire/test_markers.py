"""What crosses the charts, against the cases that vitest reads with the page's feed (widgets/tests/markers.test.ts)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from bokeh.models import ColumnDataSource

from kernel_monitor.report.fill import markers
from kernel_monitor.store import LoaderInfo, Schema, Snapshot
from kernel_monitor.views import layout
from tests.browser.scenes import machine

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "markers.json").read_text("utf-8"))
ORIGIN = 1_790_000_000.0


def tag() -> dict[str, Any]:
    """The tag of the source that every document has for them."""
    source = cast("ColumnDataSource", layout(machine(cores=1, gpus=0)).select_one({"name": "markers"}))
    return cast("dict[str, Any]", source.tags[0])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_markers(case: dict[str, Any]) -> None:
    loaders = tuple(LoaderInfo(**one) for one in case["loaders"])
    snapshot = Snapshot(
        schema=Schema(version=1, interval=0.1, origin=ORIGIN, capacity=600, loaders=loaders),
        seq=np.arange(0),
        time=np.empty(0),
        values=np.empty((0, 0), dtype=np.float32),
        events=case["events"],
        loaders=[],
        facts={},
    )
    data = markers(tag(), snapshot)
    times = (data["time"] / 1000 - ORIGIN).round(3)
    assert [list(one) for one in zip(times, data["label"], strict=True)] == case["markers"]
