"""Which series each chart draws: the patterns of `store.charts` and the sources of `views` are one truth."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from bokeh.models import Plot, VSpan
from bokeh.models.renderers import GlyphRenderer

from kernel_monitor.node_sources import Node
from kernel_monitor.rank import Rank
from kernel_monitor.store import Schema
from kernel_monitor.store.charts import (
    CHART_IDS,
    CHARTS,
    DEFAULT_CHARTS,
    chart_ids,
    chart_series,
    chart_states,
    missing_reason,
    page_series,
)
from kernel_monitor.store.schema import Series, loader_series, nodes_series, ranks_series
from kernel_monitor.views import CHARTS as DRAWN
from kernel_monitor.views import layout
from tests.browser.scenes import GB, machine
from tests.unit.checks import loaded_by
from tests.unit.views.test_figures import tags

MIG = ("gpu/0/mig/1/memory", "gpu/0/mig/1/memory_used", "gpu/0/mig/1/sm_active")


def everything() -> Schema:
    """A machine that has every series, and one that no chart knows."""
    full = machine(cores=4, sockets=2, nodes=2, gpus=2, quota=2.0, memory_limit=8 * GB, loaders=("train", "val"))
    extra = tuple(Series(name, "%") for name in (*MIG, "cpu/0/user", "new/thing"))
    host = tuple(one for one in full.series if not one.name.startswith("loader/"))
    loaders = tuple(replace(one, phased=True) for one in full.loaders)
    nodes = (
        *(Node("node-1", "rack-a"), Node("node-2", "rack-b", (0, 1, 5)), Node("node-3", "rack-c", (0,), alive=False)),
        Node("node-4", "rack-d", (0, 1), gpus=("H100", "H100")),
        Node("node-5", "rack-e", (0, 1), gpus=("L4",), folded=True),
    )
    ranks = (
        *(Rank("1-0", 1, 0, 2), Rank("1-1", 1, 1, 2, "rack-d", node="node-4", gpu=1, clock=0.5)),
        Rank("2-0", 2, 0, steps=False, alive=False),
    )
    series = (*extra, *host, *loader_series(loaders), *nodes_series(nodes), *ranks_series(ranks))
    return replace(full, loaders=loaders, nodes=nodes, ranks=ranks, series=series)


def drawn(schema: Schema, chart: str) -> set[str]:
    """The series of the tags of a chart's sources."""
    tagged = tags(replace(schema, charts=(chart,))).values()
    return {name for tag in tagged for name in (*tag.get("rows", ()), *tag.get("columns", {}).values())}


def test_every_chart_is_listed_and_drawn_in_one_order() -> None:
    assert tuple(DRAWN) == CHART_IDS == tuple(chart.id for chart in CHARTS)
    assert DEFAULT_CHARTS == ("cpu", "gpu", "images", "wait")


@pytest.mark.parametrize("chart", CHART_IDS)
def test_a_chart_draws_exactly_the_series_of_its_patterns_and_the_line_of_a_switch_over_everything(chart: str) -> None:
    schema = everything()
    assert drawn(schema, chart) == set(chart_series(schema, chart))
    assert chart_series(schema, chart)
    schema = everything()
    sent = schema.restricted(set(page_series(schema, [chart])))
    assert drawn(sent, chart) == drawn(schema, chart)
    for plot in cast("list[Plot]", layout(replace(everything(), charts=(chart,))).select({"type": Plot})):
        drawn_last = [one for one in plot.renderers if isinstance(one, GlyphRenderer) and one.level == "glyph"][-2:]
        assert [type(one.glyph) for one in drawn_last] == [VSpan, VSpan]  # Bokeh cuts glyphs, and no annotations


@pytest.mark.parametrize("chart", [one for one in CHART_IDS if one not in DEFAULT_CHARTS])
def test_a_chart_without_its_series_draws_none_and_has_a_reason(chart: str) -> None:
    schema = everything()
    gone = set(chart_series(schema, chart))
    lacking = schema.restricted([name for name in schema.names if name not in gone])
    assert drawn(lacking, chart) == set()
    (entry,) = [one for one in chart_states(lacking) if one["id"] == chart]
    assert entry == {
        "id": chart,
        "title": entry["title"],
        "available": False,
        "default": False,
        "reason": missing_reason(lacking, chart),
    }
    reasons = {
        "phases": "no model is watched: monitor.watch(model, optimizer)",
        "nodes": "no other machine works for a loader",
        "ranks": "no rank has joined: start one from this notebook, or see %monitor join",
    }
    assert entry["reason"] == reasons.get(chart, "not measured by this sampler")


def test_what_a_page_is_always_sent() -> None:
    schema = everything()
    sent = page_series(schema, [])
    assert sent == tuple(name for name in schema.names if name in sent)
    assert {"sample/interval", "memory/used", "memory/available", "gpu/1/memory_used", "loader/loader-2/step"} <= set(
        sent
    )
    assert not {"cpu/0/busy", "gpu/0/power", "new/thing", *MIG} & set(sent)
    assert {"cpu/3/busy"} == set(page_series(schema, ["cpu"])) - set(page_series(schema, [])) - {
        f"cpu/{core}/busy" for core in range(3)
    }


def test_a_star_stands_for_one_part() -> None:
    schema = replace(everything(), series=(Series("gpu/0/mig/1/power", "%"), Series("xcpu/0/busy", "%")))
    assert chart_series(schema, "gpu") == ()
    assert chart_series(schema, "cpu") == ()


def test_ids_are_checked_ordered_and_not_repeated() -> None:
    assert chart_ids() == DEFAULT_CHARTS
    assert chart_ids(["wait", "cpu", "wait"]) == ("cpu", "wait")
    assert chart_ids(["default", "io"]) == (*DEFAULT_CHARTS, "io")
    assert chart_ids(["all"]) == CHART_IDS
    with pytest.raises(ValueError, match=r"there is no chart 'disk'; the charts are cpu, gpu, .*gpu-bus"):
        chart_ids(["cpu", "disk"])


def test_the_reasons_are_those_of_who_knows() -> None:
    host = machine(cores=2, gpus=0, without=("pressure/", "disk/", "network/"), loaders=())
    host = replace(host, host={**host.host, "reasons": {"pressure": "no /proc/pressure", "disk": "no /proc/diskstats"}})
    assert missing_reason(host, "pressure") == "no /proc/pressure"
    assert missing_reason(host, "io") == "no /proc/diskstats"
    assert missing_reason(host, "gpu-bus") == "NVML Shared Library Not Found"
    assert missing_reason(host, "images").startswith("no loader yet")
    assert [one["id"] for one in chart_states(host) if one["available"]] == ["cpu", "processes", "memory"]


def test_it_costs_the_kernel_no_bokeh() -> None:
    assert loaded_by("import kernel_monitor.store.charts", "bokeh") == []
