"""The list of charts and the series that each draws; how they look is `kernel_monitor.views`.

Kept apart from Bokeh: the kernel sends a page only the columns of the charts that the page shows.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from ..text import quoted
from .schema import PHASE_SERIES, LoaderInfo, loader_series

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..node_sources import Node
    from ..protocol.states import ChartState
    from ..rank import Rank
    from .schema import Schema


Kind = Literal["live", "recorded", "report"]
"""Where charts are shown: in a dashboard that is fed, in one of a recorded session, in a report's file."""


@dataclass(frozen=True)
class _ChartInfo:
    """A chart and the series that it draws."""

    id: str  # its name in settings and commands
    title: str  # as shown
    series: tuple[str, ...]  # patterns; `*` stands for one part of a series' name, so never for a `/`
    default: bool = False  # whether it is shown by default
    once: bool = False  # whether it is shown by default once something that it draws was measured
    group: tuple[str, ...] = ()  # the keys of `host["reasons"]` that say why its series are missing


CHARTS: tuple[_ChartInfo, ...] = (
    _ChartInfo("cpu", "CPU", ("cpu/*/busy",), default=True, group=("cpu",)),
    _ChartInfo(
        "gpu",
        "GPU",
        ("gpu/*/utilisation", "gpu/*/memory", "gpu/*/power", "gpu/*/mig/*/memory", "gpu/*/mig/*/sm_active"),
        default=True,
    ),
    _ChartInfo(
        "nodes",
        "CPU machines",
        (
            *("node/*/busy", "node/*/cpu/*/busy", "node/*/gpu", "node/*/gpu/*/utilisation"),
            *("node/*/batches", "node/*/network/received", "node/*/network/sent"),
        ),
        once=True,
    ),
    _ChartInfo(
        "ranks",
        "Ranks",
        ("rank/*/step", "rank/*/wait_percent", "rank/*/cpu", "rank/*/gpu", "job/*/slowest/*", "job/*/median/*"),
        once=True,
    ),
    _ChartInfo("images", "Images per second", ("loader/*/images",), default=True),
    _ChartInfo("wait", "Time per training step", ("loader/*/wait", "loader/*/step"), default=True),
    _ChartInfo("phases", "Phases of a step", tuple(f"loader/*/{part}" for part, _ in PHASE_SERIES), once=True),
    _ChartInfo("processes", "Processes", ("process/*/cpu", "process/*/memory"), group=("process",)),
    _ChartInfo(
        "memory",
        "Memory",
        ("memory/percent", "memory/used", "swap/used", "container/memory", "container/memory_percent", "node/*/memory"),
        group=("memory",),
    ),
    _ChartInfo(
        "io",
        "Disk and network",
        ("disk/busy", "disk/read", "disk/write", "network/received", "network/sent"),
        group=("disk", "network"),
    ),
    _ChartInfo("pressure", "Pressure", ("pressure/*", "container/throttled"), group=("pressure",)),
    _ChartInfo("gpu-engines", "GPU engines", ("gpu/*/encoder", "gpu/*/decoder", "gpu/*/jpeg", "gpu/*/ofa")),
    _ChartInfo(
        "gpu-counters",
        "GPU counters",
        ("gpu/*/sm_active", "gpu/*/sm_occupancy", "gpu/*/tensor_active", "gpu/*/dram_active"),
    ),
    _ChartInfo("gpu-clocks", "GPU clocks and temperature", ("gpu/*/clock_sm", "gpu/*/temperature", "gpu/*/throttled")),
    _ChartInfo(
        "gpu-bus",
        "PCIe and NVLink",
        ("gpu/*/pcie_received", "gpu/*/pcie_sent", "gpu/*/nvlink_received", "gpu/*/nvlink_sent"),
    ),
)
"""All charts, from top to bottom, wherever they are shown."""
CHART_IDS: tuple[str, ...] = tuple(chart.id for chart in CHARTS)
DEFAULT_CHARTS: tuple[str, ...] = tuple(chart.id for chart in CHARTS if chart.default)
ONCE_CHARTS: tuple[str, ...] = tuple(chart.id for chart in CHARTS if chart.once)
"""Those that are default ones, too, once something that they draw was measured."""
PROCESS_ROLES = (
    ("kernel", "kernel"),
    ("workers", "loader workers"),
    ("others", "other children"),
    ("sampler", "this monitor's sampler"),
)
"""`<role>` of `process/<role>/…`, and its name for people."""
MANY_ROWS = 512  # of a heatmap; beyond, each is one pixel high, and reports have the other machines folded
SLOTS = 60
"""The number of columns of a heatmap's tile, each an interval of the sampler."""
ALWAYS = ("sample/interval", "memory/*", "gpu/*/utilisation", "gpu/*/memory*", "loader/*/*", "job/*/*")
"""The series that every page gets: the strip, the gaps and the status bar need them."""
_BY_ID = {chart.id: chart for chart in CHARTS}


def chart_ids(wanted: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the ids meant by `wanted`, each once and in the order of `CHARTS`; None means the default ones.

    `all` and `default` among the words stand for those charts. A ValueError names a word that is no chart's id.
    """
    if wanted is None:
        return DEFAULT_CHARTS
    chosen: set[str] = set()
    for word in wanted:
        if word in _BY_ID:
            chosen.add(word)
        elif word in ("all", "default"):
            chosen.update(CHART_IDS if word == "all" else DEFAULT_CHARTS)
        else:
            raise ValueError(f"there is no chart {quoted(word)}; the charts are {', '.join(CHART_IDS)}")
    return tuple(chart for chart in CHART_IDS if chart in chosen)


def default_charts(measured: Collection[str] = ()) -> tuple[str, ...]:
    """Return the ids of the charts shown by default; `measured`: those of `ONCE_CHARTS` that have a measured series."""
    return tuple(chart.id for chart in CHARTS if chart.default or (chart.once and chart.id in measured))


def chart_series(schema: Schema, chart: str) -> tuple[str, ...]:
    """Return the series of the schema that this chart draws, in the schema's order; of a folded node its means."""
    return _unfolded(schema, _matching(schema, _BY_ID[chart].series))


def page_series(schema: Schema, ids: Iterable[str]) -> tuple[str, ...]:
    """Return the series that a page with these charts is sent: theirs and `ALWAYS`, in the schema's order."""
    patterns = (*ALWAYS, *(pattern for chart in ids for pattern in _BY_ID[chart].series))
    return _unfolded(schema, _matching(schema, patterns))


def chart_states(schema: Schema) -> list[ChartState]:
    """Return every chart, with the reason where the schema has no series of it."""
    found: list[ChartState] = []
    for chart in CHARTS:
        there = bool(chart_series(schema, chart.id))
        reason = None if there else missing_reason(schema, chart.id)
        found.append(
            {"id": chart.id, "title": chart.title, "available": there, "default": chart.default, "reason": reason}
        )
    return found


def missing_reason(schema: Schema, chart: str) -> str:
    """Return why the schema has no series for this chart, in words of NVML or the sampler where they gave any."""
    info = _BY_ID[chart]
    if chart in ("images", "wait"):
        return "no loader yet: iterate a DataLoader"
    if chart == "phases":
        return "no model is watched: monitor.watch(model, optimizer)"
    if chart == "nodes":
        return "no other machine works for a loader"
    if chart == "ranks":
        return "no rank has joined: start one from this notebook, or see %monitor join"
    if chart.startswith("gpu"):
        if not schema.gpus:
            return schema.gpu_reason or "not known yet"
        parts = {pattern.rpartition("/")[2] for pattern in info.series}
        # The same words for eight GPUs are shown once.
        words = {why: None for gpu in schema.gpus for part, why in gpu.reasons.items() if part in parts}
        return "; ".join(words) or "not measured by this sampler"
    reasons = schema.host.get("reasons") or {}
    keys = [*info.group, *info.series, *(pattern.rpartition("/")[0] for pattern in info.series)]
    return next((str(reasons[key]) for key in keys if key in reasons), "not measured by this sampler")


def _unfolded(schema: Schema, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without folded nodes' cores and GPUs, other nodes' means, and batches of ranks' hosts."""
    cut = {f"node/{node.id}/{part}" for node in schema.nodes if not node.folded for part in ("busy", "gpu")}
    cut |= {f"node/{node}/batches" for node in hosts_of(schema)}  # it works for no loader
    folded = tuple(f"node/{node.id}/{part}" for node in schema.nodes if node.folded for part in ("cpu/", "gpu/"))
    return tuple(name for name in names if name not in cut and not name.startswith(folded))


def hosts_of(schema: Schema) -> set[str]:
    """Return the ids of the nodes on which ranks run."""
    return {rank.node for rank in schema.ranks if rank.node}


def _matching(schema: Schema, patterns: tuple[str, ...]) -> tuple[str, ...]:
    wanted = _compiled(patterns)
    return tuple(name for name in schema.names if wanted.fullmatch(name))


@cache
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    each = ("[^/]*".join(re.escape(piece) for piece in pattern.split("*")) for pattern in patterns)
    return re.compile("|".join(f"(?:{pattern})" for pattern in each))


# ---- The part of a schema that its chart document depends on: the machine's shape and the choice of charts.

_HOST = ("topology", "limits", "reasons", "memory_total")  # the facts of the host that charts show
_PLACEHOLDER = re.compile(rb"km(loader|node|rank)(\d{1,4})(id|name|reason|host|display)(?:to(\d{1,4}))?kmend")
_SPARE = re.compile(r"(kmloader\d{1,4})namekmend")
_NAME = re.compile(r"(km(?:(?:loader|node)\d{1,4}name|rank\d{1,4}host))kmend")


def document_shape(schema: Schema) -> Schema:
    """Return the schema without the parts that differ from session to session; documents are made from it alone."""
    room = [loader.phased for loader in schema.loaders]
    room += [False] * (_room(len(room)) - len(room))
    loaders = tuple(
        LoaderInfo(id=f"kmloader{k}idkmend", name=f"kmloader{k}namekmend", phased=phased)
        for k, phased in enumerate(room)
    )
    drawn = _drawn(schema)
    nodes = tuple(
        replace(
            node,
            id=f"kmnode{k}idkmend",
            name=f"kmnode{k}namekmend",
            reason=None if node.reason is None else f"kmnode{k}reasonkmend",
        )
        for k, node in enumerate(drawn)
    )
    # Equal reasons have one placeholder: the chart names their ranks together.
    first = {rank.reason: k for k, rank in reversed(list(enumerate(schema.ranks)))}
    hosts = {node: f"host-{k}" for k, node in enumerate(dict.fromkeys(rank.node for rank in schema.ranks if rank.node))}
    hosts |= {node.id: ours.id for node, ours in zip(drawn, nodes, strict=True)}
    ranks = tuple(
        replace(
            rank,
            id=f"kmrank{k}idkmend",
            host=rank.host and f"kmrank{k}hostkmend",
            node=hosts.get(rank.node, ""),
            reason=None if rank.reason is None else f"kmrank{first[rank.reason]}reasonkmend",
        )
        for k, rank in enumerate(schema.ranks)
    )
    ids = {("loader", loader.id): ours.id for loader, ours in zip(schema.loaders, loaders, strict=False)}
    ids |= {("node", node.id): ours.id for node, ours in zip(drawn, nodes, strict=True)}
    ids |= {("rank", rank.id): ours.id for rank, ours in zip(schema.ranks, ranks, strict=True)}
    renamed = tuple(replace(series, name=_renamed(series.name, ids)) for series in schema.series)
    renamed += loader_series(loaders[len(schema.loaders) :])
    host = {key: schema.host[key] for key in _HOST if key in schema.host}
    gpus = tuple(replace(gpu, throttle=()) for gpu in schema.gpus)
    bare = replace(schema, version=0, interval=1.0, origin=0.0, capacity=1, host=host, gpus=gpus)
    return replace(bare, series=renamed, loaders=loaders, nodes=nodes, ranks=ranks)


def fill_document(document: bytes, schema: Schema) -> bytes:
    """Return the JSON document of `shape(schema)` with the loaders, nodes and ranks of the schema."""
    words: dict[bytes, list[LoaderInfo] | list[Node] | list[Rank]] = {
        b"loader": [*schema.loaders],
        b"node": _drawn(schema),
        b"rank": [*schema.ranks],
    }

    def word(found: re.Match[bytes]) -> bytes:
        kind, number, part, most = found.groups()
        known = words[kind]
        if part == b"display":
            return b"flex" if int(number) < len(known) else b"none"
        text = getattr(known[int(number)], part.decode(), None) if int(number) < len(known) else None
        if not isinstance(text, str):
            return found[0]  # what a recording calls some GPU
        return _escaped(text if most is None else _cut(text, int(most)))

    return _PLACEHOLDER.sub(word, document)


def entry_display(name: str) -> str:
    """Return the CSS `display` of a legend's entry: there is none for a loader that the document only has room for."""
    spare = _SPARE.fullmatch(name)
    return f"{spare[1]}displaykmend" if spare else "flex"


def _room(loaders: int) -> int:
    """Return for how many loaders a document has room: made anew for each, twenty would take a minute's work."""
    step = 1 << max(0, loaders.bit_length() - 2)  # so that at most a third is spare: 1, 2, 3, 4, 6, 8, 12, 16, 24…
    return -(-loaders // step) * step


def shortened(name: str, most: int) -> str:
    """Return a name cut in its middle to `most` letters (three or more); for a placeholder, that of the cut name."""
    placeholder = _NAME.fullmatch(name)
    return f"{placeholder[1]}to{most}kmend" if placeholder else _cut(name, most)


def _drawn(schema: Schema) -> list[Node]:
    """Return the nodes that have series in the schema: where no chart shows them, they come and go unnoticed."""
    known = {series.name.split("/", 2)[1] for series in schema.series if series.name.startswith("node/")}
    return [node for node in schema.nodes if node.id in known]


def _cut(text: str, most: int) -> str:
    """Return a host's name without its domain; if that is still too long, its beginning and end, where names differ."""
    if len(text) > most and not text.replace(".", "").isdecimal():  # no address
        text = text.partition(".")[0] or text
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def _renamed(series: str, ids: dict[tuple[str, str], str]) -> str:
    first, _, rest = series.partition("/")
    # The id of a loader may be anything; those of a node and a rank have no slash.
    known, _, part = rest.rpartition("/") if first == "loader" else rest.partition("/")
    return f"{first}/{ids[first, known]}/{part}" if (first, known) in ids else series


def _escaped(text: str) -> bytes:
    """Return the text as it stands inside a JSON string."""
    return json.dumps(text)[1:-1].encode()
