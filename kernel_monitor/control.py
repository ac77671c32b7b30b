"""Answers the requests of pages on the control channel: quick ones at once, slow ones on a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from .diagnosis.loop_command import SECONDS, TUNE_S
from .diagnosis.loop_guard import KNOBS
from .errors import MonitorError
from .field_checks import MOST_OF_A_KNOB, Check, fields, flag, maybe, number, only, verbatim, whole
from .plugins import Request, contributions, missing_command
from .protocol import message_types as types
from .protocol.message_types import PROTOCOL
from .protocol.states import Event, LoaderState, MonitorState
from .recorded import RecordedSession
from .runtime import Monitor
from .stream import chart_documents
from .stream import hub as wire
from .stream.chart_documents import Documents
from .stream.hub import GLANCE, LEASE_S
from .stream.jupyter import Send
from .text import quoted

# ---- What each field of a request may be: one table of types, ranges and lengths.

CODE_FILE = "dali_loader.py"
_NAME = verbatim(200)  # of a page, a loader, an engine
_TEXT = verbatim(4096)  # a path, the words of a mark
_FLAG = (flag, False)
_LOADER = (maybe(_NAME), None)  # of several the only one that is in use
_ANYTHING = (lambda value: value, None)
_SETTINGS = dict.fromkeys(("interval", "history", "charts", "record", "price", "unfolded"), _ANYTHING)
_RECORDED = only({"recorded": _TEXT}, client=_ANYTHING, touch=_ANYTHING, bundled=_ANYTHING, since=_ANYTHING)
"""What is asked of a recorded session, where the others have no meaning."""

FIELDS: dict[str, Check] = {
    "hello": fields({}),  # answered for any protocol: a later one may have arguments
    "subscribe": only({"client": _NAME}, touch=_FLAG, bundled=_FLAG),
    "unsubscribe": only({"client": _NAME}),
    "glance": only({"client": _NAME}, touch=_FLAG),
    "sidebar": only({"page": _NAME}),
    "history": only(since=(whole(), 0)),
    "switch": only({"loader": _NAME, "backend": _NAME}, confirmed=_FLAG),
    "decline": only({"loader": _NAME}),
    "set": only({"loader": _NAME}, **dict.fromkeys(KNOBS, (whole(0, MOST_OF_A_KNOB), None))),
    "diagnose": only(loader=_LOADER, seconds=(number(*SECONDS), 8.0), confirmed=_FLAG, cancel=_FLAG),
    "tune": only(loader=_LOADER, seconds=(number(*TUNE_S), 60.0), cancel=_FLAG, undo=_FLAG),
    "mark": only({"label": _TEXT}),
    **dict.fromkeys(("start", "configure"), only(**_SETTINGS)),  # whose ranges `runtime.settings` has
    "open": only(path=(maybe(_TEXT), None)),
    "code": only(loader=_LOADER),
    **dict.fromkeys(("stop", "document", "bokehjs", "export", "sessions", "verdict"), only()),
}
"""The commands, each a method of `Control`, with their arguments. Optional packages add others."""

SLOW = ("start", "stop", "document", "bokehjs", "export", "configure", "sessions", "open", "verdict", "code")
"""Those that are answered on a thread."""

Args = Mapping[str, Any]  # the arguments of a request, checked


class _BadRequest(MonitorError):
    """A request that does not follow the protocol."""


def _parse(content: Any) -> tuple[str, Args]:
    """Return the command and its arguments; _BadRequest if the content is malformed or of another protocol."""
    if not isinstance(content, dict):
        raise _BadRequest("The request's content is not an object.")
    protocol = content.get("protocol")
    # `hello` is answered for any protocol, so that the page can show both versions.
    if protocol != PROTOCOL and content.get("command") != "hello":
        raise _BadRequest(
            f"This kernel's kernel_monitor speaks protocol {PROTOCOL}, the page {quoted(protocol)}: "
            "bring both environments to the same version with pip install -U kernel-monitor."
        )
    command, args = content.get("command"), content.get("args", {})
    if not isinstance(command, str) or not isinstance(args, dict):
        raise _BadRequest("A request needs a command (text) and args (an object).")
    return command, args


def _checked(command: str, check: Check, args: Args) -> Args:
    """Return the arguments as the table has them; _BadRequest if they do not fit it."""
    try:
        checked: Args = check(args)
    except ValueError as error:
        raise _BadRequest(f"{command}: {error}.") from None
    return checked


# ---- Answers requests of pages on the control channel: quick ones within a millisecond, slow ones on a thread.

Answer = tuple[Mapping[str, object], list[bytes]]  # content and buffers of a reply
Commands = dict[str, Callable[[Args], Answer]]


class Control:
    """Answers requests for one :class:`~kernel_monitor.runtime.Monitor`. Knows no Jupyter."""

    def __init__(self, monitor: Monitor, documents: Documents | None = None) -> None:
        self._monitor = monitor
        self.documents = Documents() if documents is None else documents
        self._fields = dict(FIELDS)
        self._quick: Commands = {name: getattr(self, f"_{name}") for name in FIELDS if name not in SLOW}
        self._slow: Commands = {name: getattr(self, f"_{name}") for name in SLOW}
        for request in contributions("REQUESTS"):
            (self._slow if request.slow else self._quick)[request.name] = partial(_answer_optional, request, monitor)
            self._fields[request.name] = request.fields

    def handle(self, content: Any, reply: Send) -> None:
        """Answer one request by calling `reply` exactly once: now, or from a worker thread for slow commands.

        An invalid request and a failed command get an error reply.
        """
        _answer(lambda: self._work(content, reply), reply)

    def _work(self, content: Any, reply: Send) -> Answer | None:
        """Return the answer to a request; None if a thread will give it."""
        command, args = _parse(content)
        if args.get("recorded") is not None:
            work, args = self._of_recorded(command), _checked(command, _RECORDED, args)
        elif command not in self._fields:
            known = ", ".join(sorted(self._fields))
            unknown = _BadRequest(f"Unknown command {quoted(command, 40)}. The commands are: {known}.")
            raise missing_command(command) or unknown
        else:
            args = _checked(command, self._fields[command], args)
            if command in self._quick:
                return self._quick[command](args)
            work = self._slow[command]
        threading.Thread(
            target=_answer, args=(partial(work, args), reply), name=f"kernel-monitor-{command}", daemon=True
        ).start()
        return None

    def _hello(self, _args: Args) -> Answer:
        return types.HelloReply(status="ok", **self._monitor.publisher.hello()), []

    def _start(self, args: Args) -> Answer:
        self._monitor.configure(**args)
        self._monitor.start()
        return self._hello(args)

    def _configure(self, args: Args) -> Answer:
        return types.ConfigureReply(status="ok", settings=self._monitor.configure(**args)), []

    def _stop(self, args: Args) -> Answer:
        self._monitor.stop()
        return self._hello(args)

    def _subscribe(self, args: Args) -> Answer:
        monitor = self._monitor
        monitor.hub.subscribe(args["client"], touch=args["touch"], bundled=args["bundled"])
        content = types.SubscribeReply(
            status="ok",
            lease=LEASE_S,
            session=monitor.session,
            running=monitor.running,
            seq=monitor.store.last_seq,
            schema=monitor.store.page_schema.to_json(),
            loaders=[*monitor.loader_states(), *monitor.job_states()],
            events=monitor.publisher.events(),
            strip=monitor.publisher.strip,
            paused=monitor.hub.paused,
            recorded=None,
            **monitor.publisher.findings(),
            **monitor.publisher.state(),
        )
        return content, []

    def _unsubscribe(self, args: Args) -> Answer:
        self._monitor.hub.unsubscribe(args["client"])
        return {"status": "ok"}, []

    def _glance(self, args: Args) -> Answer:
        monitor = self._monitor
        monitor.hub.subscribe(args["client"], touch=args["touch"], kind=GLANCE)
        content = types.GlanceReply(
            status="ok",
            lease=LEASE_S,
            session=monitor.session,
            running=monitor.running,
            paused=monitor.hub.paused,
            glance=monitor.publisher.glance(),
            sidebar=monitor.sidebar.page,
        )
        return content, []

    def _sidebar(self, args: Args) -> Answer:
        self._monitor.sidebar.answer(args["page"])
        return {"status": "ok"}, []

    def _switch(self, args: Args) -> Answer:
        state = self._monitor.switch(**args)
        return types.LoaderReply(status="ok", loader=state), []

    def _decline(self, args: Args) -> Answer:
        self._monitor.decline(args["loader"])
        return types.FindingsReply(status="ok", offers=self._monitor.offers), []

    def _set(self, args: Args) -> Answer:
        return types.LoaderReply(status="ok", loader=self._monitor.set(**args)), []

    def _diagnose(self, args: Args) -> Answer:
        if args["cancel"]:
            self._monitor.cancel_diagnosis()
        else:
            seconds, confirmed = args["seconds"], args["confirmed"]
            self._monitor.diagnose(args["loader"], seconds=seconds, confirmed=confirmed, wait=False)
        return types.FindingsReply(status="ok", diagnosing=self._monitor.diagnosing), []

    def _tune(self, args: Args) -> Answer:
        if args["cancel"]:
            self._monitor.cancel_diagnosis()
        elif args["undo"]:
            self._monitor.undo_tune()
        else:
            self._monitor.tune(args["loader"], seconds=args["seconds"], wait=False)
        return types.FindingsReply(status="ok", diagnosing=self._monitor.diagnosing), []

    def _mark(self, args: Args) -> Answer:
        self._monitor.mark(args["label"])
        return {"status": "ok"}, []

    def _verdict(self, _args: Args) -> Answer:
        return types.FindingsReply(status="ok", verdict=self._monitor.verdict), []

    def _history(self, args: Args) -> Answer:
        monitor = self._monitor
        rows = monitor.store.page_rows(args["since"])
        return wire.history(rows, monitor.publisher.events(), monitor.publisher.state()["charts"])

    def _document(self, _args: Args) -> Answer:
        schema, document = self.documents.newest(lambda: self._monitor.store.page_schema)
        content = types.DocumentReply(status="ok", schema=schema.version, bokeh=chart_documents.version())
        return content, [document]

    def _bokehjs(self, _args: Args) -> Answer:
        return types.BokehReply(status="ok", version=chart_documents.version()), [chart_documents.path().read_bytes()]

    def _export(self, _args: Args) -> Answer:
        name = time.strftime("kernel-monitor-%Y-%m-%d-%H%M%S.html")
        return types.ExportReply(status="ok", filename=name), [self._monitor.exporter.render().encode()]

    def _code(self, args: Args) -> Answer:
        # Not compared: that draws random numbers, and a cell may be training.
        written = self._monitor.code(args["loader"], compare=False)
        return types.CodeReply(status="ok", filename=CODE_FILE, code=written), []

    def _sessions(self, _args: Args) -> Answer:
        return types.SessionsReply(status="ok", sessions=self._monitor.opened.listing()), []

    def _open(self, args: Args) -> Answer:
        opened = self._monitor.opened.open(args["path"])
        facts = dict(opened.snapshot.facts)
        return types.OpenReply(status="ok", recorded=opened.id, facts=facts, **opened.label()), []

    def _of_recorded(self, command: str) -> Callable[[Args], Answer]:
        if command not in OF_RECORDED:
            raise _BadRequest(f"{command}: of a recorded session there are {', '.join(sorted(OF_RECORDED))}.")
        monitor = self._monitor
        return lambda args: OF_RECORDED[command](monitor.opened.get(args["recorded"]), monitor.publisher.state())


def answer_widgets(monitor: Monitor) -> None:
    """Let widgets of this process ask the monitor, unless an IPython extension answers them already."""
    if not monitor.widget_pages.answers:
        monitor.widget_pages.answer(lambda: Control(monitor).handle)


def _answer_optional(request: Request, monitor: Monitor, args: Args) -> Answer:
    """Answer a request of an optional package."""
    return request.answer(monitor, args), []


def _answer(work: Callable[[], Answer | None], reply: Send) -> None:
    """Reply with the result or with the error: without a reply the page would wait for ever."""
    try:
        answer = work()
        if answer is None:  # a thread gives it
            return
        content, buffers = wire.sendable(answer[0]), answer[1]
    except BaseException as exc:
        reply(wire.error(exc), [])
        if isinstance(exc, KeyboardInterrupt):
            raise
        return
    reply(content, buffers)


def _events(session: RecordedSession) -> list[Event]:
    return cast("list[Event]", session.snapshot.events)


def _recorded_subscribe(session: RecordedSession, state: MonitorState) -> Answer:
    rows = session.page_rows
    content = types.SubscribeReply(
        status="ok",
        lease=LEASE_S,
        session=session.id,
        running=False,
        recorded=session.label(),
        seq=int(rows.seq[-1]) if len(rows) else 0,
        schema=rows.schema.to_json(),
        loaders=[complete(loader) for loader in session.snapshot.loaders],
        events=_events(session),
        strip=session.strip,
        paused=False,
        verdict=session.verdict,
        offers=[],
        diagnosing=None,
        profiling=None,
        ranks=[],
        notices=[],
        main=None if session.verdict is None else session.verdict["loader"],
        **state,
    )
    return content, []


def _recorded_document(session: RecordedSession, _state: MonitorState) -> Answer:
    schema = session.page_rows.schema
    content = types.DocumentReply(status="ok", schema=schema.version, bokeh=chart_documents.version())
    return content, [session.document]


OF_RECORDED: dict[str, Callable[[RecordedSession, MonitorState], Answer]] = {
    "subscribe": _recorded_subscribe,
    "history": lambda session, state: wire.history(session.page_rows, _events(session), state["charts"]),
    "document": _recorded_document,
    "export": lambda session, _state: (
        types.ExportReply(status="ok", filename=session.export_name()),
        [session.render().encode()],
    ),
}
"""Answers about recorded sessions; the state is this process's monitor's, which such pages show, too."""


def complete(state: Mapping[str, Any]) -> LoaderState:
    """Return a recorded state with every field: the reader leaves out those that are damaged or not recorded."""
    unknown: dict[str, Any] = {
        **dict.fromkeys(("id", "name", "backend", "status"), ""),
        **dict.fromkeys(("epoch", "batch", "samples", "lost", "doubled", "skipped", "replaced"), 0),
        **dict.fromkeys(("wanted", "batches", "planned")),
        "backends": [],
        "skips": [],
        "knobs": dict.fromkeys(KNOBS),
        "decoded": {},
        "calibration": {},
    }
    engine = {"available": False, "reason": None, "confirm": None, "note": None}
    known = {key: value for key, value in state.items() if key != "epochs" and value is not None}
    known["backends"] = [{**engine, **entry} for entry in known.get("backends", ())]
    known["knobs"] = {**unknown["knobs"], **known.get("knobs", {})}
    return cast("LoaderState", {**unknown, **known})
