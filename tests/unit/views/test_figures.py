"""The charts: named sources with tags, no data, no `eval`, and other people's words as plain text."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from bokeh.model import Model
from bokeh.models import (
    ColumnDataSource,
    Grid,
    HoverTool,
    Image,
    LayoutDOM,
    LinearAxis,
    LinearColorMapper,
    Plot,
    Range1d,
    Scatter,
    VSpan,
    VStrip,
)
from bokeh.models.annotations import Legend, Title
from bokeh.models.text import PlainText

from kernel_monitor.store import LoaderInfo, Schema
from kernel_monitor.views import document, layout
from kernel_monitor.views.__main__ import main
from kernel_monitor.views.heatmap import row_height, tall_row
from tests.unit.analysis.test_compare_segments import session

HOSTILE = "</script><img src=x onerror=alert(1)> $$x^2$$ \\[y\\] @{y0}"


def schema(**changes: Any) -> Schema:
    cores, gpus = changes.pop("cores", 2), changes.pop("gpus", 0)
    return replace(session(cores=cores, gpus=gpus, before=3.0, after=3.0).schema, **changes)


def tags(of: Schema) -> dict[str, dict[str, Any]]:
    return {source.name: source.tags[0] for source in every(layout(of), ColumnDataSource)}


def every(layout: LayoutDOM, kind: type[Model]) -> list[Any]:
    """The models of that type in a layout, in no order."""
    return list(layout.select({"type": kind}))


def words(layout: LayoutDOM, name: str) -> list[str]:
    """Every text of a heading or legend, from left to right."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        for one in getattr(value, "elements", None) or getattr(value, "children", None) or ():
            walk(one)

    walk(layout.select_one({"name": name}))
    return found


def grids(figure: Any, name: str) -> list[list[float]]:
    """The ticks of a figure's grids of that name."""
    found: list[Any] = [one for one in figure.center if isinstance(one, Grid) and one.name == name]
    return [one.ticker.ticks for one in found]


def plots(of: Schema | LayoutDOM) -> list[Any]:
    """The charts from top to bottom."""
    charts: Any = of if isinstance(of, LayoutDOM) else layout(of)
    return [one for one in charts.children if isinstance(one, Plot)]


def models(item: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Every model of that type in a document's JSON."""
    found: list[dict[str, Any]] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("type") == "object" and value.get("name") == kind:
                found.append(value)
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    walk(item)
    return found


def test_the_sources_are_the_documented_ones() -> None:
    found = tags(schema(gpus=1))
    assert found["cpu-tiles"] == {
        "kind": "tiles",
        "rows": ["cpu/0/busy", "cpu/1/busy"],
        "labels": ["core 0", "core 1"],
        "unit": "%",
        "slots": 60,
    }
    # The lowest row first: utilisation stands on top.
    assert found["gpu-tiles"]["rows"] == ["gpu/0/power", "gpu/0/memory", "gpu/0/utilisation"]
    assert found["gpu-tiles"]["labels"] == ["GPU 0 power", "GPU 0 memory", "GPU 0 busy"]
    assert found["images-means"] == {"kind": "means", "columns": {"y0": "loader/loader-1/images"}, "seconds": 2.0}
    steps = {"y0": "loader/loader-1/wait", "y1": "loader/loader-1/step"}
    assert found["wait-lines"] == {"kind": "lines", "columns": steps}
    assert found["markers"] == {"kind": "markers", "events": ["switch", "mark", "job-switch"]}
    assert found["bands"] == {"kind": "bands", "backend": "synthetic"}


def test_no_source_holds_data_and_all_charts_share_one_range() -> None:
    charts = layout(schema(gpus=8, loaders=(LoaderInfo("loader-1", "a"), LoaderInfo("loader-2", "b"))))
    for source in every(charts, ColumnDataSource):
        assert {len(column) for column in source.data.values()} == {0}
    figures = every(charts, Plot)
    assert sorted(one.name for one in figures) == ["cpu", "gpu", "images", "wait"]
    (time,) = {one.x_range for one in figures}
    assert isinstance(time, Range1d)
    assert time.name == "time"
    assert len(list(charts.select({"name": "marker-labels"}))) == 1
    for figure in figures:
        spans = [one for one in figure.renderers if isinstance(one.glyph, VSpan)]
        assert len(spans) == 2
        assert [one.name for one in figure.renderers if isinstance(one.glyph, VStrip)] == ["band-strips"]
    named = [one.name for one in figures if any(renderer.name == "band-labels" for renderer in one.renderers)]
    assert sorted(named) == ["images", "wait"]


def test_several_loaders_have_one_legend_of_text_that_can_wrap_and_the_strokes_theirs() -> None:
    several = layout(schema(loaders=(LoaderInfo("loader-1", HOSTILE), LoaderInfo("loader-2", "b"))))
    assert not every(several, Legend)
    places = [one.name for one in several.children]
    assert places.index("images-title") < places.index("legend") < places.index("images")
    assert places.index("wait-title") < places.index("wait-legend") < places.index("wait")
    assert words(several, "wait-legend") == ["waiting for data", "whole step"]
    key: Any = several.select_one({"name": "legend"})
    (line,) = key.elements
    assert [entry.children[1].children for entry in line.children] == [
        [HOSTILE],
        ["b"],
    ]
    assert line.style["flex-wrap"] == "wrap"
    alone = layout(schema())
    assert not every(alone, Legend)
    assert "legend" not in [one.name for one in alone.children]
    assert words(alone, "wait-legend") == ["waiting for data", "whole step"]


def test_only_the_curves_scale_a_chart() -> None:
    for name in ("images", "wait"):
        (figure,) = [one for one in plots(schema()) if one.name == name]
        sources = {one.data_source.name for one in figure.y_range.renderers}
        assert sources == {"wait-lines", "wait-means"} if name == "wait" else {"images-means"}
        # A row holds whole batches: of a rate, its own values would be dots on two lines.
        assert bool(every(figure, Scatter)) == (name == "wait")


def test_missing_is_transparent_and_the_scale_is_0_to_100() -> None:
    mapper = every(layout(schema()), Image)[0].color_mapper
    assert isinstance(mapper, LinearColorMapper)
    assert (mapper.low, mapper.high, mapper.high_color) == (0, 100, "rgba(0, 0, 0, 0)")
    assert (mapper.palette[0], mapper.palette[-1]) == ("#440154", "#FDE724")


@pytest.mark.parametrize(
    ("reason", "said"),
    [("Driver Not Loaded", "Driver Not Loaded"), ("NVML Shared Library Not Found", "NVML not found")],
)
def test_without_a_gpu_one_line_says_why_and_the_cores_have_its_room(reason: str, said: str) -> None:
    without = schema(gpu_reason=reason)
    assert "".join(words(layout(without), "gpu-title")) == f"No NVIDIA GPU: {said}"
    assert [one.name for one in plots(without)] == ["cpu", "images", "wait"]
    with_gpu, alone = (plots(of)[0].height for of in (schema(gpus=1), without))
    assert alone >= with_gpu + 20
    nothing = schema(cpus=(), gpu_reason=None, loaders=())
    assert plots(nothing) == []
    assert [one.name for one in plots(schema(loaders=()))] == ["cpu"]


def test_nothing_needs_eval() -> None:
    text = json.dumps(document(schema(gpus=2)))
    assert "CustomJS" not in text
    for one in ("FuncTickFormatter", "CustomLabelingPolicy", "Template"):
        assert one not in text


def test_words_of_others_are_plain_text() -> None:
    hostile = schema(gpus=1, loaders=(LoaderInfo("loader-1", HOSTILE), LoaderInfo("loader-2", "b")))
    named = replace(hostile, gpus=(replace(hostile.gpus[0], name=HOSTILE),))
    charts = layout(named)
    # The titles are DOM, where text is text.
    assert not [one for one in charts.references() if isinstance(one, Title) and one.text]
    assert HOSTILE in "".join(words(charts, "gpu-title"))
    for axis in every(charts, LinearAxis):
        assert all(isinstance(one, PlainText) for one in axis.major_label_overrides.values())
    # Tooltips: the name is the label, never the part in which Bokeh looks for fields.
    tools = every(charts, HoverTool)
    labels = [label for tool in tools for label, _ in tool.tooltips]
    labels += [value[0] for tool in tools for value in tool.tags[0].get("values", ())]
    assert f"{HOSTILE}: waiting for data" in labels
    assert not [value for tool in tools for _, value in tool.tooltips if HOSTILE in value]


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16, 32, 64, 128, 256])
def test_the_rows_are_readable_and_the_chart_fits_a_screen(cores: int) -> None:
    height = cores * tall_row(cores)
    assert height <= 520
    assert tall_row(cores) >= row_height(cores) >= 2
    ticks = plots(schema(cores=cores))[0].left[0].ticker.ticks
    assert ticks[0] == 0.5
    assert len(ticks) == cores or height / len(ticks) >= 20
    assert tall_row(cores) <= 36
    assert cores * (tall_row(cores) - row_height(cores)) <= 64


def run(stdin: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernel_monitor.views"], input=stdin, capture_output=True, text=True, check=False
    )


def test_the_module_turns_a_schema_into_a_document() -> None:
    wanted = schema(gpus=1)
    done = run(json.dumps({"schema": wanted.to_json(), "kind": "live"}))
    assert (done.returncode, done.stderr) == (0, "")
    item = json.loads(done.stdout)
    assert set(item) >= {"doc", "root_id", "version"}
    assert len(models(item, "ColumnDataSource")) == len(tags(wanted))
    assert [one["attributes"]["name"] for one in models(item, "Figure")] == ["cpu", "gpu", "images", "wait"]


@pytest.mark.parametrize("stdin", ["not JSON", "", "{}", "[]"])
def test_what_is_no_schema_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stdin: str
) -> None:
    if stdin == "not JSON":
        done = run(stdin)
        status, out, error = done.returncode, done.stdout, done.stderr
    else:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        status, (out, error) = main(), capsys.readouterr()
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("stdin is not a schema (")
