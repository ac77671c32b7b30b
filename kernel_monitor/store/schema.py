"""The meaning of the store's columns: names and units, and the machine and loaders that they describe.

The JSON form is the one in `docs/messages.md`; it travels to pages, snapshots and recorded sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..node_sources import Node, node_series
from ..rank import Rank, job_series, jobs_of, rank_series

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ..protocol.states import SchemaState

_LOADER_SERIES = (("images", "images/s"), ("wait", "ms"), ("step", "ms"))
"""The series of every loader: the last part of the name, and the unit."""
PHASE_SERIES = tuple((part, "ms") for part in ("copy", "forward", "backward", "optimizer", "other"))
"""The further series of a loader whose steps' phases were measured."""


@dataclass(frozen=True)
class Series:
    """A column: `name` such as `cpu/0/busy`, `unit` such as `%`."""

    name: str
    unit: str


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML, or the driver of another vendor, names it."""

    index: int  # NVML's index; the `<i>` of `gpu/<i>/…`
    name: str  # the product's name
    memory_total: int | None  # bytes, or None where that is not known
    # For each metric that it does not give now, NVML's own words, by the last part of the series' name.
    reasons: Mapping[str, str] = field(default_factory=dict)
    mig: tuple[Mapping[str, Any], ...] = ()  # its MIG instances: `{"index", "name", "memory_total"}`; none if it is off
    # Why it is slowed down now, in words. These may change every second and are no part of equality, so that pages need
    # not load everything again for them.
    throttle: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class LoaderInfo:
    """A loader that has columns."""

    id: str  # the `<id>` of `loader/<id>/…`
    name: str  # as shown
    phased: bool = False  # whether phases of its steps were measured, so that it has `PHASE_SERIES`, too


@dataclass(frozen=True)
class Schema:
    """The meaning of a table's columns at one moment; immutable, a change makes a new one."""

    version: int  # grows with every change
    interval: float  # seconds between two rows, nominally
    origin: float  # wall clock (Unix seconds) at `time == 0`
    capacity: int  # the most rows that the store keeps
    series: tuple[Series, ...] = ()  # the columns in order, the host's first
    cpus: tuple[int, ...] = ()  # logical cores, in the order of their numbers
    gpus: tuple[Gpu, ...] = ()  # the GPUs that NVML lists
    gpu_reason: str | None = None  # why there is none, in NVML's words; None when there are some
    loaders: tuple[LoaderInfo, ...] = ()  # the loaders that have columns
    nodes: tuple[Node, ...] = ()  # the other machines that have columns
    ranks: tuple[Rank, ...] = ()  # the ranks that have columns
    host: Mapping[str, Any] = field(default_factory=dict)  # facts about the machine (docs/messages.md)
    charts: tuple[str, ...] = ()  # ids of the charts to draw (`store.charts`); the default ones if empty

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(series.name for series in self.series)

    @cached_property
    def columns(self) -> Mapping[str, int]:
        """Name of a series to its column."""
        return {series.name: column for column, series in enumerate(self.series)}

    def restricted(self, names: Collection[str]) -> Schema:
        """Return the schema, in the same version, with only the series of these names, in the order that they have."""
        return replace(self, series=tuple(series for series in self.series if series.name in names))

    def to_json(self) -> SchemaState:
        """Return the schema as plain lists, dicts, strings and numbers, ready for `json.dumps`."""
        found: SchemaState = _plain(self)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """Return the inverse of `to_json`; a KeyError if a field is missing."""
        return cls(
            version=int(data["version"]),
            origin=float(data["origin"]),
            capacity=int(data["capacity"]),
            series=series_from_json(data["series"]),
            loaders=loaders_from_json(data["loaders"]),
            nodes=_nodes_from_json(data.get("nodes", ())),  # snapshots of older versions have none
            ranks=_ranks_from_json(data.get("ranks", ())),
            charts=tuple(data["charts"]),
            **machine_from_json(data),
        )


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return dict(value) if isinstance(value, Mapping) else value


def machine_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a hello and a schema share, for `Schema`."""
    return {
        "interval": float(data["interval"]),
        "cpus": tuple(int(number) for number in data["cpus"]),
        "gpus": gpus_from_json(data["gpus"]),
        "gpu_reason": data["gpu_reason"],
        "host": dict(data["host"]),
    }


def series_from_json(entries: list[Mapping[str, str]]) -> tuple[Series, ...]:
    """Return series from `[{"name", "unit"}, …]`."""
    return tuple(Series(name=entry["name"], unit=entry["unit"]) for entry in entries)


def gpus_from_json(entries: list[Mapping[str, Any]]) -> tuple[Gpu, ...]:
    """Return GPUs from `[{"index", "name", "memory_total", "reasons"?, "mig"?, "throttle"?}, …]`."""
    return tuple(
        Gpu(
            index=int(entry["index"]),
            name=entry["name"],
            memory_total=entry["memory_total"],
            reasons=dict(entry.get("reasons", {})),
            mig=tuple(dict(instance) for instance in entry.get("mig", ())),
            throttle=tuple(entry.get("throttle", ())),
        )
        for entry in entries
    )


def loaders_from_json(entries: Sequence[Mapping[str, Any]]) -> tuple[LoaderInfo, ...]:
    """Return loaders from `[{"id", "name", "phased"?}, …]`."""
    return tuple(
        LoaderInfo(id=entry["id"], name=entry["name"], phased=bool(entry.get("phased", False))) for entry in entries
    )


def _nodes_from_json(entries: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
    """Return nodes from `[{"id", "name", "cores", "alive"?, "reason"?, "gpus"?, "folded"?}, …]`."""
    return tuple(
        Node(
            id=entry["id"],
            name=entry["name"],
            cores=tuple(int(core) for core in entry["cores"]),
            alive=bool(entry.get("alive", True)),
            reason=entry.get("reason"),
            gpus=tuple(entry.get("gpus", ())),
            folded=bool(entry.get("folded", False)),
        )
        for entry in entries
    )


def _ranks_from_json(entries: Sequence[Mapping[str, Any]]) -> tuple[Rank, ...]:
    """Return ranks from dicts of the fields of `Rank`; all but `id`, `job` and `number` may be missing."""
    return tuple(Rank(**entry) for entry in entries)


def loader_series(loaders: tuple[LoaderInfo, ...]) -> tuple[Series, ...]:
    """Return the columns of these loaders, in order."""
    return tuple(
        Series(name=f"loader/{loader.id}/{part}", unit=unit)
        for loader in loaders
        for part, unit in (*_LOADER_SERIES, *(PHASE_SERIES if loader.phased else ()))
    )


def nodes_series(nodes: tuple[Node, ...]) -> tuple[Series, ...]:
    """Return the columns of these nodes, in order."""
    return tuple(Series(*pair) for node in nodes for pair in node_series(node.id, node.cores, len(node.gpus)))


def ranks_series(ranks: tuple[Rank, ...]) -> tuple[Series, ...]:
    """Return the columns of these ranks and of their jobs, in order."""
    own = [pair for rank in ranks for pair in rank_series(rank.id, steps=rank.steps, gpu=rank.gpu is not None)]
    return tuple(Series(*pair) for pair in (*own, *(pair for job in jobs_of(ranks) for pair in job_series(job))))
