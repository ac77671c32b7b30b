"""The charts of machines that are not at hand: labels of 1 to 256 cores, limits, missing metrics, chosen charts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from bokeh.models import ColumnDataSource, HoverTool, Plot

from kernel_monitor.store.charts import CHART_IDS
from kernel_monitor.store.schema import Gpu
from kernel_monitor.views import document, layout
from kernel_monitor.views.hardware_charts import grouped
from tests.browser.scenes import GB, machine
from tests.unit.views.test_figures import every, grids, models, plots, tags, words

# -- sockets, limits, and rows of metrics that are not there ----------------------------------------------------------

LABELS = {
    (1, 1, 1): [["core 0"]],
    (2, 1, 1): [["core 0", "core 1"]],
    # A virtual machine with a socket for each core: nothing to group.
    (8, 8, 1): [[f"core {core}" for core in range(8)]],
    (8, 2, 2): [["0", "1", "4", "5", "2", "3", "6", "7"], ["socket 0", "socket 1"]],
    (64, 2, 2): [
        ["0", "4", "8", "12", "32", "36", "40", "44", "16", "20", "24", "28", "48", "52", "56", "60"],
        ["socket 0", "socket 1"],
    ],
    (64, 1, 4): [
        ["0", "4", "32", "36", "8", "12", "40", "44", "16", "20", "48", "52", "24", "28", "56", "60"],
        ["NUMA 0", "NUMA 1", "NUMA 2", "NUMA 3"],
    ],
    (256, 4, 4): [
        ["0", "16", "128", "144", "32", "48", "160", "176", "64", "80", "192", "208", "96", "112", "224", "240"],
        [f"socket {k}" for k in range(4)],
    ],
    (256, 4, 8): [
        ["0", "128", "16", "144", "32", "160", "48", "176", "64", "192", "80", "208", "96", "224", "112", "240"],
        [f"NUMA {k}" for k in range(8)],
        [f"socket {k}" for k in range(4)],
    ],
    # Nodes too low for their words have their numbers.
    (256, 4, 16): [
        ["0", "8", "16", "24", "32", "40", "48", "56", "64", "72", "80", "88", "96", "104", "112", "120"],
        [str(k) for k in range(16)],
        [f"socket {k}" for k in range(4)],
    ],
}


@pytest.mark.parametrize(("cores", "sockets", "nodes"), LABELS)
def test_the_labels_name_groups_of_cores_and_thin_out(cores: int, sockets: int, nodes: int) -> None:
    of = machine(cores=cores, sockets=sockets, nodes=nodes, gpus=0)
    (cpu,) = [one for one in plots(of) if one.name == "cpu"]
    shown = [[axis.major_label_overrides[tick].text for tick in axis.ticker.ticks] for axis in cpu.left]
    assert shown == LABELS[cores, sockets, nodes]
    lines = grids(cpu, "separators")
    groups = len(shown[1]) if len(shown) > 1 else 1
    assert lines == ([[float(k * cores // groups) for k in range(1, groups)]] if groups > 1 else [])


def test_the_hover_says_where_a_core_is() -> None:
    of = machine(nodes=8, allowed=[0, 1])
    labels = dict(zip(tags(of)["cpu-tiles"]["rows"], tags(of)["cpu-tiles"]["labels"], strict=True))
    assert labels["cpu/0/busy"] == "core 0 · socket 0 · NUMA 0"
    assert labels["cpu/240/busy"] == "core 240 · socket 3 · NUMA 7 · not for this process"


def test_a_topology_that_is_missing_or_partial_still_gives_every_core_a_row() -> None:
    for topology in ({}, None, {"sockets": [[0, 1], [2, 3]], "numa": [[0, 1, 2, 3]]}):
        of = machine(cores=6, gpus=0)
        of = replace(of, host={**of.host, "topology": topology})
        cores, levels = grouped(of)
        assert sorted(cores) == list(range(6))
        named = [[group.label for group in level] for level in levels]
        assert named == ([["NUMA 0", "other"], ["socket 0", "socket 1", "other"]] if topology else [])


@pytest.mark.parametrize(
    ("allowed", "quota", "note", "bands"),
    [
        (None, None, None, None),
        (list(range(8, 16)), 2.5, "this process may use 8 of 64 cores, quota 2.5", [0.0, 0.0, 8.0, 16.0, 64.0]),
        ([0, 1, 62, 63], None, "this process may use 4 of 64 cores", [0.0, 2.0, 62.0]),
        (None, 6.0, "quota 6 of 64 cores", None),
    ],
)
def test_cores_that_may_not_be_used_are_hatched_and_the_title_says_of_what(
    allowed: list[int] | None, quota: float | None, note: str | None, bands: list[float] | None
) -> None:
    charts = layout(machine(cores=64, sockets=1, nodes=1, allowed=allowed, quota=quota))
    assert words(charts, "cpu-title") == ["CPU busy, % per core", *([f" · {note}"] if note else [])]
    cpu: Any = charts.select_one({"name": "cpu"})
    # Bokeh fills every second segment between ticks, the first one being left free.
    assert grids(cpu, "hatched") == ([] if bands is None else [bands])


def test_several_gpus_are_grouped_by_metric_and_one_is_not() -> None:
    rows = tags(machine())["gpu-tiles"]["rows"]
    top_down = [f"gpu/{gpu}/{part}" for part in ("utilisation", "memory", "power") for gpu in range(8)]
    assert rows == top_down[::-1]
    (gpu,) = [one for one in plots(machine()) if one.name == "gpu"]
    assert [one.text for one in gpu.left[1].major_label_overrides.values()] == ["power", "memory", "busy"]
    (one,) = [one for one in plots(machine(gpus=1)) if one.name == "gpu"]
    assert [label.text for label in one.left[0].major_label_overrides.values()] == ["power", "memory", "GPU 0"]
    (two,) = [one for one in plots(machine(gpus=2)) if one.name == "gpu"]
    assert [label.text for label in two.left[0].major_label_overrides.values()] == [
        "power 1", "power 0", "memory 1", "memory 0", "busy 1", "busy 0",
    ]  # fmt: skip


def test_a_metric_that_a_gpu_lacks_is_hatched_and_says_why() -> None:
    of = machine(gpus=2, without=("gpu/1/power",))
    gpus = (of.gpus[0], Gpu(1, of.gpus[1].name, None, {"power": "Not Supported"}))
    charts = layout(replace(of, gpus=gpus))
    (source,) = [one for one in every(charts, ColumnDataSource) if one.name == "gpu-tiles"]
    assert source.tags[0]["labels"][:2] == ["GPU 1 power: Not Supported", "GPU 0 power"]
    gpu: Any = charts.select_one({"name": "gpu"})
    assert grids(gpu, "hatched") == [[0.0, 0.0, 1.0]]


def test_mig_instances_have_rows_by_their_names() -> None:
    of = machine(gpus=1)
    mig = ({"index": 3, "name": "1g.10gb", "memory_total": 10 * GB},)
    names = ("gpu/0/mig/3/memory", "gpu/0/mig/3/memory_used", "gpu/0/mig/3/sm_active")
    series = (*of.series, *(replace(of.series[0], name=name) for name in names))
    found = tags(replace(of, series=series, gpus=(replace(of.gpus[0], mig=mig),)))["gpu-tiles"]
    assert found["rows"][:2] == ["gpu/0/mig/3/memory", "gpu/0/mig/3/sm_active"]
    assert found["labels"][:2] == ["GPU 0 MIG 3 (1g.10gb) memory", "GPU 0 MIG 3 (1g.10gb) SM active"]


# -- the charts that somebody chose -----------------------------------------------------------------------------------


def test_the_schemas_charts_are_drawn_in_their_order_and_no_others() -> None:
    of = machine(cores=8, gpus=2, charts=("memory", "gpu-clocks"))
    assert [one.name for one in plots(of)] == ["memory", "memory-amount", "gpu-clocks", "gpu-heat", "gpu-throttled"]
    assert layout(of).children[0].name == "color-scale"
    lines_only = layout(machine(cores=8, gpus=2, charts=("memory",)))
    assert "color-scale" not in [one.name for one in lines_only.children]
    everything = layout(machine(quota=2.0, memory_limit=GB, charts=CHART_IDS))
    figures = every(everything, Plot)
    assert len({one.name for one in figures}) == len(figures)
    assert {one.x_range.name for one in figures} == {"time"}
    # The last one tells the time for all; on paper, where they may stand on several sheets, the last of each chart.
    assert [one.name for one in figures if one.below[0].visible] == [plots(everything)[-1].name]
    paged = layout(machine(quota=2.0, memory_limit=GB, charts=CHART_IDS), "report")
    timeless = {one.name for one in every(paged, Plot) if not one.below[0].visible}
    assert timeless == {
        "processes", "memory", "disk-busy", "disk", "gpu-clocks", "gpu-heat", "gpu-pcie",
    }  # fmt: skip


def test_what_a_machine_lacks_is_one_line_with_the_reason_and_no_figure() -> None:
    reasons = {"pressure": "this kernel has no /proc/pressure", "process": "may not be read"}
    of = machine(
        cores=4, gpus=0, charts=CHART_IDS, without=("pressure/", "process/", "disk/", "network/"), reasons=reasons
    )
    charts = layout(of)
    assert [one.name for one in plots(charts)] == ["cpu", "images", "wait", "memory", "memory-amount"]
    assert words(charts, "pressure-title")[1] == " · this kernel has no /proc/pressure"
    assert words(charts, "processes-title")[1] == " · may not be read"
    assert words(charts, "io-title")[1] == " · not measured by this sampler"
    for name in ("gpu-engines", "gpu-counters", "gpu-clocks", "gpu-bus"):
        assert words(charts, f"{name}-title")[1] == " · NVML Shared Library Not Found"
    of = machine(cores=4, charts=("gpu-counters",), without=tuple(f"gpu/{k}/" for k in range(8)))
    gpus = tuple(replace(gpu, reasons={"sm_active": "Not Supported", "power": "No Permission"}) for gpu in of.gpus)
    charts = layout(replace(of, gpus=gpus))
    assert words(charts, "gpu-counters-title") == ["GPU counters (GPM), %", " · Not Supported"]


def test_the_hover_of_a_share_of_memory_tells_the_bytes_as_well() -> None:
    charts = layout(machine(cores=4, gpus=0, memory_limit=GB, charts=("memory",)))
    (tool,) = [one for one in every(charts, HoverTool) if len(one.tags[0]["values"]) == 2]
    assert tool.tags[0]["values"] == [["host", "y0", "%", "z0", "B"], ["container", "y1", "%", "z1", "B"]]
    assert tags(machine(cores=4, gpus=0, memory_limit=GB, charts=("memory",)))["memory-lines"]["columns"] == {
        "y0": "memory/percent",
        "y1": "container/memory_percent",
        "z0": "memory/used",
        "z1": "container/memory",
    }


def test_partial_data_draws_what_there_is() -> None:
    without = ("process/workers", "process/others", "swap/", "network/", "pressure/io")
    of = machine(cores=4, gpus=1, charts=CHART_IDS, without=(*without, "gpu/0/clock_sm", "gpu/0/nvlink", "gpu/0/ofa"))
    found = tags(of)
    assert list(found["processes-lines"]["columns"].values()) == ["process/kernel/cpu", "process/sampler/cpu"]
    assert list(found["memory-amount-lines"]["columns"].values()) == ["memory/used"]
    assert list(found["pressure-lines"]["columns"].values()) == [
        "pressure/cpu", "pressure/memory", "pressure/memory_full",
    ]  # fmt: skip
    assert found["gpu-engines-tiles"]["rows"] == ["gpu/0/jpeg", "gpu/0/decoder", "gpu/0/encoder"]
    assert not {"network-lines", "gpu-nvlink-lines", "gpu-clocks-lines"} & set(found)
    assert {"disk-lines", "gpu-pcie-lines", "gpu-heat-lines"} <= set(found)


def test_a_document_of_256_cores_and_8_gpus_stays_small() -> None:
    item = document(machine())
    assert len(json.dumps(item)) < 70_000
    for kind, most in (("Grid", 14), ("HoverTool", 4), ("DatetimeTicker", 1), ("DatetimeTickFormatter", 1)):
        assert len(models(item, kind)) <= most, kind
