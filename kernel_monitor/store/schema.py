"""What the columns of the store are: names and units, and the machine and loaders that they describe.

The JSON form is the one in `docs/architecture.md`; it travels to pages, snapshots and recorded sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

LOADER_SERIES = (("images", "images/s"), ("wait", "ms"), ("step", "ms"))
"""What every loader contributes: the last part of the series' name, and its unit."""
PHASE_SERIES = tuple((part, "ms") for part in ("copy", "forward", "backward", "optimizer", "other"))
"""What a loader contributes besides, once phases of its steps were measured."""


@dataclass(frozen=True)
class Series:
    """One column: `name` such as `cpu/0/busy`, `unit` such as `%`."""

    name: str
    unit: str


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML names it.

    Attributes:
        index: NVML's index, the `<i>` of `gpu/<i>/…`.
        name: the product's name.
        memory_total: bytes, or None where NVML does not tell.
        reasons: for each metric that this GPU does not give now, NVML's own words, for example
            `{"power": "Not Supported"}`; keys are the last parts of the series' names.
        mig: its MIG instances, each `{"index", "name", "memory_total"}`; none where MIG is off.
        throttle: why it is slowed down now, in words. They come and go every second and are no part of equality: a
            page is not made to load everything again for them.
    """

    index: int
    name: str
    memory_total: int | None
    reasons: Mapping[str, str] = field(default_factory=dict)
    mig: tuple[Mapping[str, Any], ...] = ()
    throttle: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class LoaderInfo:
    """A loader that has columns.

    Attributes:
        id: the `<id>` of `loader/<id>/…`.
        name: what people see.
        phased: whether phases of its steps were measured, so that it has `PHASE_SERIES`, too.
    """

    id: str
    name: str
    phased: bool = False


@dataclass(frozen=True)
class Schema:
    """The meaning of a table's columns at one moment; immutable, a change makes a new one.

    Attributes:
        version: grows with every change.
        interval: seconds between two rows, as the sampler was told.
        origin: wall clock (Unix seconds) at `time == 0`.
        capacity: the most rows that the store keeps.
        series: the columns in order, the host's first.
        cpus: logical cores, in the order of their numbers.
        gpus: the GPUs that NVML lists.
        gpu_reason: why there is none, in NVML's words; None when there are some.
        loaders: the loaders that have columns.
        host: facts about the machine: `cpu_model`, `logical_cpus`, `memory_total` (bytes), `platform`, and where the
            sampler gives them `topology`, `limits` and `reasons` (docs/architecture.md).
        charts: ids of the charts to draw (`store.charts`); the default ones if empty.
    """

    version: int
    interval: float
    origin: float
    capacity: int
    series: tuple[Series, ...] = ()
    cpus: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu_reason: str | None = None
    loaders: tuple[LoaderInfo, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    charts: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names in order."""
        return tuple(series.name for series in self.series)

    @cached_property
    def columns(self) -> Mapping[str, int]:
        """Name of a series to its column."""
        return {series.name: column for column, series in enumerate(self.series)}

    def restricted(self, names: Collection[str]) -> Schema:
        """The same schema, of the same version, with only the series of these names, in the order that they have."""
        return replace(self, series=tuple(series for series in self.series if series.name in names))

    def to_json(self) -> dict[str, Any]:
        """The schema as plain lists, dicts, strings and numbers, ready for `json.dumps`."""
        return {
            "version": self.version,
            "interval": self.interval,
            "origin": self.origin,
            "capacity": self.capacity,
            "series": [{"name": series.name, "unit": series.unit} for series in self.series],
            "cpus": list(self.cpus),
            "gpus": [
                {
                    "index": gpu.index,
                    "name": gpu.name,
                    "memory_total": gpu.memory_total,
                    "reasons": dict(gpu.reasons),
                    "mig": [dict(instance) for instance in gpu.mig],
                    "throttle": list(gpu.throttle),
                }
                for gpu in self.gpus
            ],
            "gpu_reason": self.gpu_reason,
            "loaders": [{"id": loader.id, "name": loader.name, "phased": loader.phased} for loader in self.loaders],
            "host": dict(self.host),
            "charts": list(self.charts),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """The inverse of `to_json`; recorded sessions may be of before `charts`, `mig` and `throttle`.

        Raises:
            KeyError: another field is missing.
        """
        return cls(
            version=int(data["version"]),
            interval=float(data["interval"]),
            origin=float(data["origin"]),
            capacity=int(data["capacity"]),
            series=series_from_json(data["series"]),
            cpus=tuple(int(number) for number in data["cpus"]),
            gpus=gpus_from_json(data["gpus"]),
            gpu_reason=data["gpu_reason"],
            loaders=loaders_from_json(data["loaders"]),
            host=dict(data["host"]),
            charts=tuple(data.get("charts", ())),
        )


def series_from_json(entries: list[Mapping[str, str]]) -> tuple[Series, ...]:
    """`[{"name", "unit"}, …]` as series."""
    return tuple(Series(name=entry["name"], unit=entry["unit"]) for entry in entries)


def gpus_from_json(entries: list[Mapping[str, Any]]) -> tuple[Gpu, ...]:
    """`[{"index", "name", "memory_total", "reasons"?, "mig"?, "throttle"?}, …]` as GPUs."""
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
    """`[{"id", "name", "phased"?}, …]` as loaders."""
    return tuple(
        LoaderInfo(id=entry["id"], name=entry["name"], phased=bool(entry.get("phased", False))) for entry in entries
    )


def loader_series(loaders: tuple[LoaderInfo, ...]) -> tuple[Series, ...]:
    """The columns of these loaders, in order."""
    return tuple(
        Series(name=f"loader/{loader.id}/{part}", unit=unit)
        for loader in loaders
        for part, unit in (*LOADER_SERIES, *(PHASE_SERIES if loader.phased else ()))
    )
