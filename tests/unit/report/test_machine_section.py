"""The report of a machine and of a recorded session: limits, processes, GPUs, cost of watching, size of the file."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from datetime import UTC
from typing import Any

import numpy as np
import pytest

from kernel_monitor.report.embedded import TABLE_BYTES, binned, capacity, charts_with_data, embed
from kernel_monitor.report.formats import amount, ranges
from kernel_monitor.report.page import render, section
from kernel_monitor.report.sections import Subject
from kernel_monitor.store import Snapshot
from kernel_monitor.store.charts import CHART_IDS, DEFAULT_CHARTS, ONCE_CHARTS, chart_series
from tests.browser.scenes import GB, machine, run
from tests.unit.checks import contains
from tests.unit.pages import Page
from tests.unit.report.test_page import HOSTILE
from tests.unit.reports import nothing
from tests.wire.schema import validate


def embedded(page: Page) -> dict[str, Any]:
    return dict(json.loads(next(text for kind, text in page.scripts if kind == "application/json")))


def part(snapshot: Snapshot, key: str) -> str:
    """The HTML of one part of the page; empty where the session has none of it."""
    return section(Subject(snapshot, nothing("nothing"), UTC), key) or ""


def with_values(snapshot: Snapshot, **values: Any) -> Snapshot:
    """The snapshot with other values in the series called so (`/` written as `__`)."""
    table = snapshot.values.copy()
    for name, value in values.items():
        table[:, snapshot.schema.columns[name.replace("__", "/")]] = value
    return replace(snapshot, values=table)


@pytest.fixture(scope="module")
def limited() -> Snapshot:
    """Cores 8 to 15 of 64, 2.5 of them at a time, 8 GB, one GPU."""
    of = machine(
        cores=64, sockets=2, nodes=2, gpus=1, allowed=list(range(8, 16)), quota=2.5, memory_limit=8 * GB, interval=0.5
    )
    return run(of, seconds=60.0)


# -- sections ---------------------------------------------------------------------------------------------------------


def test_the_limits_say_what_of_what_and_how_much_was_used(limited: Snapshot) -> None:
    half = np.where(limited.time < 30.0, 0.0, 50.0)
    found = with_values(
        limited, container__cpu=half, container__throttled=half, container__memory_percent=np.where(half > 0, 80, 60)
    )
    text = Page(part(found, "limits")).text
    assert "Set from outside, by cgroup v2." in text
    assert "cores 8 of 64 (8–15) - -" in text
    assert "CPU quota 2.5 cores 25 % 50 %" in text
    assert "memory 8.0 GB of 1,024.0 GB 70 % 80 %" in text
    assert "CPU quota run out, % of its periods 25 % 50 %" in text
    assert part(run(machine(cores=4, gpus=0), seconds=5.0), "limits") == ""


def test_cpu_figures_are_of_the_cores_that_may_be_used(limited: Snapshot) -> None:
    names = {f"cpu__{core}__busy": 90.0 if core in range(8, 16) else 10.0 for core in range(64)}
    text = Page(render(with_values(limited, **names))).text
    assert "CPU busy, mean of the cores, % train/1 · torchvision " in text
    assert re.search(r"mean of the cores, % train/1 · torchvision \d+( 90){6} train/2 · dali-gpu \d+( 90){6} ", text)
    assert "CPU: the 8 cores that this process may use." in text


def test_processes_are_listed_by_role_and_the_monitors_own_cost_is_said(limited: Snapshot) -> None:
    found = with_values(
        limited,
        process__workers__count=8,
        process__workers__cpu=np.where(limited.time < 30.0, 700.0, 100.0),
        process__workers__memory=21e9,
        process__workers__read=1.5e6,
        process__workers__write=0.0,
        process__sampler__cpu=0.8,
        process__sampler__memory=24e6,
    )
    text = Page(part(found, "processes")).text
    assert "loader workers 8 400 % 700 % 21.0 GB 21.0 GB 1.50 MB/s 0 B/s" in text
    assert [role for role in ("kernel", "loader workers", "other children", "this monitor's sampler") if role in text]
    assert "Cost of watching sampler 0.8 % of one core, 24 MB" in Page(part(found, "machine")).text
    without = run(machine(cores=2, gpus=0, without=("process/",)), seconds=5.0)
    assert part(without, "processes") == ""
    assert "Cost of watching" not in part(without, "machine")


def test_every_metric_of_a_gpu_is_in_its_table(limited: Snapshot) -> None:
    found = with_values(limited, gpu__0__jpeg=np.where(limited.time < 45.0, 10.0, 30.0), gpu__0__memory_used=12.3e9)
    text = Page(part(found, "gpus")).text
    contains(text, "p50 p95 most", "JPEG engine 10 % 30 % 30 %", "memory in use 12.3 GB 12.3 GB 12.3 GB")
    rows = part(found, "gpus").count("<tr>") - 1
    assert rows == sum(name.startswith("gpu/0/") for name in found.schema.names)


def test_what_gpus_lack_is_said_once_with_nvmls_words() -> None:
    of = machine(cores=4, gpus=4, without=("gpu/1/jpeg", "gpu/2/jpeg", *(f"gpu/{k}/nvlink" for k in range(4))))
    bus = {"nvlink_received": "Not Supported", "nvlink_sent": "Not Supported"}
    reasons = [bus, {**bus, "jpeg": "GPU is lost"}, {**bus, "jpeg": "GPU is lost"}, bus]
    of = replace(of, gpus=tuple(replace(gpu, reasons=why) for gpu, why in zip(of.gpus, reasons, strict=True)))
    snapshot = with_values(run(of, seconds=10.0), gpu__0__throttled=25.0, gpu__3__ecc_corrected=2)
    snapshot.values[0, snapshot.schema.columns["gpu/0/throttled"]] = np.nan
    text = Page(part(snapshot, "gpus")).text
    assert "NVLink received, NVLink sent (every GPU): Not Supported" in text
    assert "JPEG engine (GPU 1–2): GPU is lost" in text
    assert "throttled 25 %" in text
    assert "ECC errors corrected 0 0 0 2" in text
    # A dash where a GPU lacks what another has; no row where none has it, and never a zero.
    row = next(part for part in part(snapshot, "gpus").split("<tr>") if "JPEG engine" in part)
    assert row.count(">-<") == 2
    assert "NVLink received</th>" not in part(snapshot, "gpus")
    assert part(run(machine(cores=2, gpus=0), seconds=5.0), "gpus") == ""


def test_words_of_drivers_are_text(limited: Snapshot) -> None:
    gpu = replace(limited.schema.gpus[0], reasons={HOSTILE: HOSTILE})
    page = Page(render(replace(limited, schema=replace(limited.schema, gpus=(gpu,)))))
    assert page.text.count(HOSTILE) >= 2
    assert not [tag for tag, attributes in page.elements if "onmouseover" in attributes]


# -- recorded sessions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            {"ended": None, "live": False, "bin_s": 0.6, "rows": 36000},
            "ended without goodbye: its kernel was killed or the machine stopped · values are means over bins of 0.6 s",
        ),
        (
            {"ended": {"reason": "stopped", "time": 9.0, "goodbye": True}, "live": False, "bin_s": None, "rows": 120},
            "120 samples, one every 500 ms · ended: stopped",
        ),
        (
            {"ended": None, "live": True, "bin_s": None, "rows": 120},
            "120 samples, one every 500 ms · still being recorded when this was made",
        ),
    ],
)
def test_a_recorded_session_is_called_that_and_says_how_it_ended(
    limited: Snapshot, told: dict[str, Any], words: str
) -> None:
    html = render(replace(limited, facts={**limited.facts, "recorded": told}))
    text = Page(html).text
    assert "<title>Recorded session of " in html
    assert "Recorded session of 21 September 2026" in text
    assert words in text
    assert "Training session" not in text


def test_a_live_session_is_not_called_recorded(limited: Snapshot) -> None:
    assert "Recorded session" not in Page(render(limited)).text


# -- charts and size --------------------------------------------------------------------------------------------------


def test_the_default_charts_and_those_with_data_are_shown(limited: Snapshot) -> None:
    assert charts_with_data(limited) == tuple(one for one in CHART_IDS if one not in ONCE_CHARTS)
    empty = replace(limited, values=np.full_like(limited.values, np.nan))
    assert charts_with_data(empty) == DEFAULT_CHARTS
    only = with_values(empty, disk__read=1.0)
    assert charts_with_data(only) == (*DEFAULT_CHARTS, "io")
    page = Page(render(only))
    assert '"gpu-bus' not in json.dumps(embedded(page))
    assert '"disk-lines"' in json.dumps(embedded(page))


def test_only_series_that_a_chart_draws_are_in_the_file(limited: Snapshot) -> None:
    session, _ = embed(limited)
    wanted = {name for one in CHART_IDS for name in chart_series(limited.schema, one)}
    assert {series["name"] for series in session["schema"]["series"]} == {*wanted, "sample/interval"}
    machine = [session["schema"]["host"], session["schema"]["cpus"], session["schema"]["gpus"]]
    assert machine == [{}, [], []], "the charts need none of it"
    validate(session, "EmbeddedSession")


def read(session: Any) -> tuple[Any, dict[str, Any]]:
    """Times and columns of an embedded table, as the page reads them (widgets/src/stream/report_source.ts)."""
    data = np.frombuffer(zlib.decompress(base64.b64decode(session["table"])), dtype=np.uint8)
    rows, place, columns = session["rows"], 0, {}

    def planes(width: int, dtype: str) -> Any:
        part = data[place : place + width * rows].reshape(width, rows)
        return np.ascontiguousarray(part.T).view(dtype)[:, 0]

    time = planes(8, "<f8")
    place = 8 * rows
    for series, whole in zip(session["schema"]["series"], session["percent"], strict=True):
        columns[series["name"]] = data[place : place + rows] if whole else planes(4, "<f4")
        place += rows * (1 if whole else 4)
    assert place == len(data)
    return time, columns


def test_the_table_has_lines_as_they_were_measured_and_heatmaps_in_whole_per_cent(limited: Snapshot) -> None:
    found = with_values(limited, cpu__3__busy=np.where(limited.time < 30.0, 49.5, 103.0))
    found.values[0, found.schema.columns["cpu/3/busy"]] = np.nan
    session, width = embed(found)
    assert width is None
    time, columns = read(session)
    assert np.array_equal(time, limited.time)
    for name, whole in zip(columns, session["percent"], strict=True):
        values = found.values[:, found.schema.columns[name]]
        if whole:
            assert name.startswith(("cpu/", "gpu/", "disk/busy"))
        else:
            assert np.array_equal(columns[name], values, equal_nan=True)
    assert [columns["cpu/3/busy"][k] for k in (0, 1, -1)] == [255, 50, 100]


def test_the_page_has_room_for_every_tile_of_a_session_with_gaps(limited: Snapshot) -> None:
    assert capacity(limited) == 180  # 60 s in tiles of 30 s, the last row in a third one
    late = limited.time + np.where(limited.time < 30.0, 0.0, 1e6).astype(np.float64)
    assert capacity(replace(limited, time=late)) == 240
    slow = with_values(limited, sample__interval=60.0)
    schema = replace(slow.schema, interval=0.5)
    count = len(slow.time)
    tiles = capacity(replace(slow, schema=schema, time=np.arange(60.0, 60.0 * count + 1.0, 60.0))) / 60
    assert 2 * count <= tiles <= 5 * count


def test_what_would_take_too_much_is_drawn_in_bins(limited: Snapshot) -> None:
    rng = np.random.default_rng(0)
    rows = 24_000
    noise = rng.random((rows, len(limited.schema.series)), dtype=np.float32) * 100
    noise[:, limited.schema.columns["sample/interval"]] = 0.5
    long = replace(limited, seq=np.arange(rows), time=np.arange(0.5, 0.5 * rows + 0.5, 0.5), values=noise)
    session, width = embed(long)
    assert width is not None
    assert width > 0.5
    assert session["schema"]["interval"] == width
    assert len(base64.b64decode(session["table"])) <= TABLE_BYTES
    time, _ = read(session)
    assert np.allclose(np.diff(time), width)


def test_bins_are_means_of_the_present_values_and_gaps_stay_gaps(limited: Snapshot) -> None:
    keep = (limited.time < 20.0) | (limited.time > 26.0)
    values = limited.values[keep].copy()
    cut = replace(limited, seq=limited.seq[keep], time=limited.time[keep], values=values)
    column = cut.schema.columns["cpu/0/busy"]
    values[0, column] = np.nan
    found, width = binned(cut, 4)
    assert width == 2.0
    assert (found.schema.interval, found.time[0]) == (2.0, 1.0)
    assert set(np.diff(found.time).tolist()) == {2.0, 8.0}
    assert found.values[0, column] == pytest.approx(values[1:4, column].mean(), rel=1e-5)
    assert found.values[1, column] == pytest.approx(values[4:8, column].mean(), rel=1e-5)
    assert set(found.values[:, cut.schema.columns["sample/interval"]].tolist()) == {2.0}
    nothing = replace(cut, values=np.full_like(values, np.nan))
    assert np.isnan(binned(nothing, 4)[0].values[:, column]).all()


def test_an_hour_of_64_cores_and_8_gpus_is_at_most_4_megabytes() -> None:
    of = machine(cores=64, sockets=2, nodes=2, gpus=8, interval=0.6, quota=30.0, memory_limit=512 * GB)
    snapshot = run(of, seconds=3600.0)
    assert len(snapshot.time) == 6000
    told = {"ended": None, "live": False, "bin_s": 0.6, "rows": 36000}
    html = render(replace(snapshot, facts={**snapshot.facts, "recorded": told}))
    assert 2_500_000 < len(html.encode()) <= 4_000_000
    assert "values are means over bins of 0.6 s" in Page(html).text


# -- words ------------------------------------------------------------------------------------------------------------


def test_amounts_and_ranges() -> None:
    assert [amount(value, "B") for value in (0, 999, 1500, 2.5e7, 1.2e10)] == [
        "0 B", "999 B", "1.50 kB", "25 MB", "12 GB",
    ]  # fmt: skip
    assert amount(1234.0, "MHz") == "1,234 MHz"
    assert amount(3.0, "1") == "3"
    assert amount(float("nan"), "B/s") == "-"
    assert ranges([0, 1, 2, 5, 8, 9]) == "0–2, 5, 8–9"
    assert ranges([]) == ""
