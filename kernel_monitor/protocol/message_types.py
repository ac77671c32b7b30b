"""Messages between kernel and page (docs/messages.md)."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from .analysis_states import Findings, Kind
from .states import (
    ChartState,
    Event,
    Identity,
    LoaderState,
    MonitorState,
    RecordingState,
    SchemaState,
    SettingsState,
    Strip,
)

PROTOCOL = 2  # incremented when an older page or kernel could misread a message

TARGET = "kernel_monitor"  # target name of the comm that announces that a kernel answers requests
REQUEST = "kernel_monitor_request"
REPLY = "kernel_monitor_reply"
FRAME = "kernel_monitor_frame"
NOTICE = "kernel_monitor_notice"
GLANCE = "kernel_monitor_glance"


class MachineFigures(TypedDict):
    """Figures of a status bar: CPU and GPU in %, memory in bytes, images/s (wall clock) of the loop that trains."""

    cpu: float | None
    gpu: float | None
    memory_used: float | None
    memory_total: float | None
    gpu_memory_used: float | None
    gpu_memory_total: float | None
    images: float | None


class Figures(MachineFigures):
    """Figures of a status bar, with the kind of the current verdict and the state of the recording."""

    kind: Kind | None
    recording: RecordingState


class Glance(Figures):
    """`kernel_monitor_glance`: sent once a second to pages without charts."""

    protocol: int
    session: str | None


class Frame(Findings):
    """`kernel_monitor_frame`: a new row; its buffer has one float32 per series, NaN if missing.

    `before`: seq and time of rows that were not sent on their own; the buffer has them first. Without `loaders` their
    counts are sent with a later one.
    """

    protocol: int
    session: str | None
    schema: int
    seq: int
    time: float
    sampled: float
    sent: float
    missed: int
    before: NotRequired[list[list[float]]]
    loaders: NotRequired[list[LoaderState]]
    events: list[Event]
    strip: Strip | None
    recording: NotRequired[RecordingState]


class Notice(Identity):
    """`kernel_monitor_notice`: something changed; further fields depend on `kind` (docs/messages.md)."""

    kind: str


class RecordedLabel(TypedDict):
    """A recorded session: `ended` is None while it is recorded; `bin_s`: s per row, None for every row."""

    started: float
    ended: float | None
    live: bool
    goodbye: bool
    reason: str | None
    seconds: float
    bin_s: float | None
    path: str


class SessionEntry(TypedDict):
    """An entry of the list of recorded sessions; `problem`: why it cannot be read."""

    path: str
    id: str
    started: float
    seconds: float
    bytes: int
    live: bool
    goodbye: bool
    host: str
    told: bool
    problem: str | None
    damaged: bool


class Reply(TypedDict):
    """Reply to a command without a result."""

    status: Literal["ok"]


class ErrorReply(TypedDict):
    """A failed request: the exception's class name and its message."""

    status: Literal["error"]
    error: str
    message: str


class HelloReply(Reply, Identity):
    """Reply to `hello`, `start` and `stop`."""


class SubscribeReply(Reply, MonitorState, Findings):
    """Reply to `subscribe`: everything that a page shows, except rows and the chart document.

    `recorded` is None for the running session.
    """

    lease: float
    session: str | None
    running: bool
    paused: bool
    seq: int
    schema: SchemaState
    loaders: list[LoaderState]
    events: list[Event]
    strip: Strip | None
    recorded: RecordedLabel | None


class HistoryReply(Reply):
    """Reply to `history`; buffers: seq and time (float64), values (float32, row-major)."""

    schema: SchemaState
    rows: int
    events: list[Event]
    charts: list[ChartState]


class GlanceReply(Reply):
    """Reply to `glance`; `sidebar`: the page that is asked to open its sidebar."""

    lease: float
    session: str | None
    running: bool
    paused: bool
    glance: Figures
    sidebar: str | None


class LoaderReply(Reply):
    """Reply to `switch` and `set`."""

    loader: LoaderState


class ConfigureReply(Reply):
    """Reply to `configure`."""

    settings: SettingsState


class FindingsReply(Reply, Findings):
    """Reply to `decline`, `diagnose`, `profile` and `verdict`: that part of the findings."""


class DocumentReply(Reply):
    """Reply to `document`; its buffer is the chart document (JSON) for this version of the schema and of Bokeh."""

    schema: int
    bokeh: str


class BokehReply(Reply):
    """Reply to `bokehjs`; its buffer is BokehJS."""

    version: str


class ExportReply(Reply):
    """Reply to `export`; its buffer is the HTML file."""

    filename: str


class CodeReply(Reply):
    """Reply to `code`: the text of a Python file that delivers a loader's batches."""

    filename: str
    code: str


class SessionsReply(Reply):
    """Reply to `sessions`."""

    sessions: list[SessionEntry]


class OpenReply(Reply, RecordedLabel):
    """Reply to `open`; `recorded` is the id to name in later requests."""

    recorded: str
    facts: dict[str, Any]


class EmbeddedSession(TypedDict):
    """A session in a report's file, which the page reads as if a kernel had sent it; rows are means over bins.

    `bokeh`: version of BokehJS; `item`: the chart document; `percent`: for each series whether its values are bytes of
    whole per cent; `zone_ms`: offset of the shown times from UTC; `table`: the values, deflated, in base64.
    """

    bokeh: str
    item: Any
    schema: SchemaState
    events: list[Event]
    rows: int
    percent: list[bool]
    zone_ms: float
    table: str


class Request(TypedDict):
    """`kernel_monitor_request`: a command with its arguments."""

    protocol: int
    command: str
    args: dict[str, Any]
