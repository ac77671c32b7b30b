"""States of the machine's table, of loaders and of the monitor, as sent to pages and recorded."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class Series(TypedDict):
    """One column of the table: a name such as `cpu/0/busy`, a unit such as `%`."""

    name: str
    unit: str


class Limits(TypedDict, total=False):
    """The limits of a container or an affinity mask: cores, cores' worth of time, bytes; `source`: what limits them."""

    cpus: list[int]
    cpu_quota: float | None
    memory: int | None
    source: str | None


class Topology(TypedDict, total=False):
    """The cores of each socket and of each NUMA node."""

    sockets: list[list[int]]
    numa: list[list[int]]


class Host(TypedDict, total=False):
    """The machine; `memory_total` in bytes; `reasons`: why a metric is missing, by its name."""

    cpu_model: str | None
    logical_cpus: int
    memory_total: int
    platform: str | None
    limits: Limits
    topology: Topology
    reasons: dict[str, str]


class MigInstance(TypedDict):
    """A MIG instance of a GPU."""

    index: int
    name: str
    memory_total: int | None


class Gpu(TypedDict):
    """One GPU; `reasons`: the driver's message for each metric that it lacks."""

    index: int
    name: str
    memory_total: int | None
    reasons: dict[str, str]
    mig: list[MigInstance]
    throttle: list[str]


class SchemaLoader(TypedDict):
    """A loader that has columns; `phased`: among them those of phases."""

    id: str
    name: str
    phased: bool


class SchemaNode(TypedDict):
    """Another machine that has columns; `cores`: its logical ones; `reason`: why it is not alive.

    `gpus`: the products' names of its GPUs; `folded`: shown in one row, the mean of its cores.
    """

    id: str
    name: str
    cores: list[int]
    alive: bool
    reason: str | None
    gpus: list[str]
    folded: bool


class SchemaRank(TypedDict):
    """A rank that has columns; `host`: another machine's name, empty for this one; `reason`: why it is not alive.

    `node`: the id of its host among the nodes, empty for this machine; `gpu`: the index of its GPU there;
    `clock`: ms by which its host's clock is known.
    """

    id: str
    job: int
    number: int
    world: int | None
    host: str
    steps: bool
    alive: bool
    reason: str | None
    node: str
    gpu: int | None
    clock: float | None


class SchemaState(TypedDict):
    """The meaning of the table's columns; `version` grows with every change."""

    version: int
    interval: float
    origin: float
    capacity: int
    series: list[Series]
    cpus: list[int]
    gpus: list[Gpu]
    gpu_reason: str | None
    loaders: list[SchemaLoader]
    nodes: NotRequired[list[SchemaNode]]
    ranks: NotRequired[list[SchemaRank]]
    host: Host
    charts: list[str]


class ChartState(TypedDict):
    """A chart that can be chosen; `reason`: why it is not available."""

    id: str
    title: str
    available: bool
    default: bool
    reason: str | None


class EngineState(TypedDict):
    """An engine of a loader.

    `reason`: why it is not available; `confirm`: the question to ask before switching to it; `note`: which part of the
    transforms another engine performs for it.
    """

    name: str
    available: bool
    reason: str | None
    confirm: str | None
    note: str | None


class Skip(TypedDict):
    """A sample left out because its file cannot be read; `path` is the file's name only.

    `index` is -1 where the sampler gave a key that is no index: that stands before the name.
    """

    index: int
    path: str
    reason: str


class KnobsState(TypedDict):
    """The current knobs; None for those that the loader lacks."""

    workers: int | None
    prefetch: int | None
    threads: int | None


class EpochCounts(TypedDict):
    """Counts of one epoch: batches and samples delivered; samples planned, skipped, replaced, lost and doubled.

    `finished`: its iterator said that it was at its end; missing in older recordings of switchable loaders.
    """

    epoch: int
    batches: int
    samples: int
    planned: int | None
    lost: int
    doubled: int
    skipped: int
    replaced: int
    decoded: dict[str, int]
    finished: NotRequired[bool]


class CalibrationState(TypedDict):
    """The measurement of an engine on some of the loader's files.

    `files`: how many; `seconds`: CPU time per image, all threads together; `error`: half of the 95 % interval of that
    mean, s; `reason`: why there is none, a sentence without its full stop.
    """

    state: Literal["running", "done", "failed"]
    files: int
    seconds: float | None
    error: float | None
    reason: str | None


class RemoteLimits(TypedDict):
    """Images/s that can reach the kernel from other machines at most: through the driver process, over the link."""

    driver: float
    link: float | None


class LoaderState(TypedDict):
    """A loader; counts are of its newest epoch.

    `wanted`: the engine requested and not yet in use; `skips`: the last skipped samples; `decoded`: samples by engine;
    `nodes`: other machines that work for it now; `remote`: what limits them; `ended`: the loader is gone, and this is
    its last state. Of a loader that all ranks of a job have: how many `ranks`; `padded`, samples that the samplers plan
    again so that each rank has as many; `once`: whether `lost` and `doubled` are counted over all ranks. `attached`: a
    DataLoader that was not wrapped.
    """

    id: str
    name: str
    backend: str
    wanted: str | None
    status: str
    backends: list[EngineState]
    epoch: int
    batch: int
    batches: int | None
    samples: int
    planned: int | None
    lost: int
    doubled: int
    skipped: int
    replaced: int
    skips: list[Skip]
    knobs: KnobsState
    decoded: dict[str, int]
    calibration: dict[str, CalibrationState]
    finished: NotRequired[bool]
    nodes: NotRequired[int]
    remote: NotRequired[RemoteLimits | None]
    ended: NotRequired[bool]
    ranks: NotRequired[int]
    padded: NotRequired[int]
    once: NotRequired[bool]
    attached: NotRequired[bool]


class ReportedState(LoaderState):
    """A loader in a report or a recording, with the counts of its earlier epochs."""

    epochs: list[EpochCounts]


class Event(TypedDict):
    """Something that happened at a session time; further fields depend on `kind` (docs/messages.md)."""

    id: int
    kind: str
    time: float


class StripRow(TypedDict):
    """One figure before and after a switch."""

    label: str
    unit: str
    before: float | None
    after: float | None


class Strip(TypedDict):
    """Figures before and after the last switch; `back`: the engine to return to, if the switch lost speed."""

    loader: str
    source: str
    target: str
    text: str
    rows: list[StripRow]
    back: str | None


class SettingsState(TypedDict):
    """The monitor's settings; see `runtime.settings.Settings`."""

    interval: float
    history: float
    charts: list[str]
    record: bool
    record_to: str | None
    price: float | None
    node_price: NotRequired[float | None]
    currency: str
    node_names: NotRequired[bool]
    unfolded: NotRequired[list[str]]


RecorderState = Literal["recording", "moved", "stopped", "off"]


class RecordingState(TypedDict):
    """The recording of the session; `moved`: recorded in another folder than requested; `message` is for people."""

    state: RecorderState
    path: str | None
    message: str


class MonitorState(TypedDict):
    """Settings, charts and recording, in several messages."""

    settings: SettingsState
    charts: list[ChartState]
    recording: RecordingState


class Identity(MonitorState):
    """The identity of the kernel's half: protocol, package and environment, versions, and state."""

    protocol: int
    version: str
    environment: str
    ipykernel: str | None
    bokeh: str | None
    running: bool
    session: str | None
