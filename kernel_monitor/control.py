"""Answers the requests of pages on the control channel: quick ones at once, slow ones on a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from .errors import MonitorError
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
from .text import check

# ---- Validation of requests from pages.

_SETTINGS = ("interval", "history", "charts", "record", "price", "unfolded")
KNOBS = ("workers", "prefetch", "threads")
CODE_FILE = "dali_loader.py"
_LONGEST_TEXT = 4096  # characters of a text in a request: a path's

Args = Mapping[str, object]  # the arguments of a request, as the page sent them


class _BadRequest(MonitorError):
    """A request that does not follow the protocol."""


def parse(content: Any) -> tuple[str, Args]:
    """Return the command and its arguments; _BadRequest if the content is malformed or of another protocol."""
    if not isinstance(content, dict):
        raise _BadRequest("The request's content is not an object.")
    protocol = content.get("protocol")
    # `hello` is answered for any protocol, so that the page can show both versions.
    if protocol != PROTOCOL and content.get("command") != "hello":
        raise _BadRequest(
            f"This kernel's kernel_monitor speaks protocol {PROTOCOL}, the page {protocol!r}: "
            "bring both environments to the same version with pip install -U kernel-monitor."
        )
    command, args = content.get("command"), content.get("args", {})
    if not isinstance(command, str) or not isinstance(args, dict):
        raise _BadRequest("A request needs a command (text) and args (an object).")
    return command, args


def text(args: Args, key: str) -> str:
    """Return a required text argument."""
    value = args.get(key)
    if not isinstance(value, str) or not value:
        raise _BadRequest(f"The request needs {key!r} (text).")
    if len(value) > _LONGEST_TEXT:
        raise _BadRequest(f"The request's {key!r} has more than {_LONGEST_TEXT:,} characters.")
    check(value, f"The request's {key!r}")
    return value


def optional(args: Args, key: str) -> str | None:
    """Return an optional text argument."""
    return None if args.get(key) is None else text(args, key)


def flag(command: str, args: Args, key: str) -> bool:
    """Return an optional boolean argument, false by default."""
    value = args.get(key, False)
    if not isinstance(value, bool):
        raise _BadRequest(f"{command}: {key} is true or false.")
    return value


def number(command: str, args: Args, key: str) -> int:
    """Return a required whole number."""
    value = args.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _BadRequest(f"{command}: {key} is a whole number.")
    return value


def knobs(args: Args) -> dict[str, int]:
    """Return the knobs of the command `set`."""
    only("set", args, "loader", *KNOBS)
    found: dict[str, int] = {}
    for name, value in args.items():
        if name == "loader":
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise _BadRequest(f"set: {name} is a whole number.")
        found[name] = value
    return found


def only(command: str, args: Args, *known: str) -> None:
    """Refuse unknown arguments, such as misspelt ones."""
    unknown = set(args) - set(known)
    if unknown:
        raise _BadRequest(f"{command}: there is no {min(unknown)!r}; there are {', '.join(known)}.")


# ---- Answers requests of pages on the control channel: quick ones within a millisecond, slow ones on a thread.

Answer = tuple[Mapping[str, object], list[bytes]]  # content and buffers of a reply
Commands = dict[str, Callable[[Args], Answer]]
_ABOUT_PAGES = ("hello", "subscribe", "unsubscribe", "history", "glance", "sidebar")
_ABOUT_LOOPS = ("switch", "decline", "set", "diagnose", "tune", "mark")
SLOW = ("start", "stop", "document", "bokehjs", "export", "configure", "sessions", "open", "verdict", "code")
"""The commands, the last ones answered on a thread; each is a method of `Control`. Optional packages add others."""


class Control:
    """Answers requests for one :class:`~kernel_monitor.runtime.Monitor`. Knows no Jupyter."""

    def __init__(self, monitor: Monitor, documents: Documents | None = None) -> None:
        self._monitor = monitor
        self.documents = Documents() if documents is None else documents
        self._quick: Commands = {name: getattr(self, f"_{name}") for name in _ABOUT_PAGES + _ABOUT_LOOPS}
        self._slow: Commands = {name: getattr(self, f"_{name}") for name in SLOW}
        for request in contributions("REQUESTS"):
            (self._slow if request.slow else self._quick)[request.name] = partial(_answer_optional, request, monitor)

    def handle(self, content: Any, reply: Send) -> None:
        """Answer one request by calling `reply` exactly once: now, or from a worker thread for slow commands.

        An invalid request and a failed command get an error reply.
        """
        _answer(lambda: self._work(content, reply), reply)

    def _work(self, content: Any, reply: Send) -> Answer | None:
        """Return the answer to a request; None if a thread will give it."""
        command, args = parse(content)
        work = self._slow.get(command)
        if args.get("recorded") is not None:
            work = self._of_recorded(command, args)
        if work is not None:
            threading.Thread(
                target=_answer, args=(partial(work, args), reply), name=f"kernel-monitor-{command}", daemon=True
            ).start()
            return None
        if command not in self._quick:
            absent = missing_command(command)
            if absent is not None:
                raise absent
            known = ", ".join(sorted([*self._quick, *self._slow]))
            raise _BadRequest(f"Unknown command {command!r}. The commands are: {known}.")
        return self._quick[command](args)

    def _hello(self, _args: Args) -> Answer:
        return types.HelloReply(status="ok", **self._monitor.publisher.hello()), []

    def _start(self, args: Args) -> Answer:
        only("start", args, *_SETTINGS)
        changed: dict[str, Any] = dict(args)
        self._monitor.start(**changed)
        return self._hello(args)

    def _configure(self, args: Args) -> Answer:
        only("configure", args, *_SETTINGS)
        changed: dict[str, Any] = dict(args)
        return types.ConfigureReply(status="ok", settings=self._monitor.configure(**changed)), []

    def _stop(self, args: Args) -> Answer:
        self._monitor.stop()
        return self._hello(args)

    def _subscribe(self, args: Args) -> Answer:
        monitor = self._monitor
        bundled = flag("subscribe", args, "bundled")
        monitor.hub.subscribe(text(args, "client"), touch=bool(args.get("touch", False)), bundled=bundled)
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
        self._monitor.hub.unsubscribe(text(args, "client"))
        return {"status": "ok"}, []

    def _glance(self, args: Args) -> Answer:
        monitor = self._monitor
        monitor.hub.subscribe(text(args, "client"), touch=bool(args.get("touch", False)), kind=GLANCE)
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
        only("sidebar", args, "page")
        self._monitor.sidebar.answer(text(args, "page"))
        return {"status": "ok"}, []

    def _switch(self, args: Args) -> Answer:
        confirmed = flag("switch", args, "confirmed")
        state = self._monitor.switch(text(args, "backend"), loader=text(args, "loader"), confirmed=confirmed)
        return types.LoaderReply(status="ok", loader=state), []

    def _decline(self, args: Args) -> Answer:
        only("decline", args, "loader")
        self._monitor.decline(text(args, "loader"))
        return types.FindingsReply(status="ok", offers=self._monitor.offers), []

    def _set(self, args: Args) -> Answer:
        state = self._monitor.set(loader=text(args, "loader"), **knobs(args))
        return types.LoaderReply(status="ok", loader=state), []

    def _diagnose(self, args: Args) -> Answer:
        only("diagnose", args, "loader", "confirmed", "seconds", "cancel")
        confirmed, cancel = flag("diagnose", args, "confirmed"), flag("diagnose", args, "cancel")
        if cancel:
            self._monitor.cancel_diagnosis()
        else:
            seconds: Any = args.get("seconds", 8.0)  # `diagnose` checks it
            self._monitor.diagnose(optional(args, "loader"), seconds=seconds, confirmed=confirmed, wait=False)
        return types.FindingsReply(status="ok", diagnosing=self._monitor.diagnosing), []

    def _tune(self, args: Args) -> Answer:
        only("tune", args, "loader", "seconds", "cancel", "undo")
        if flag("tune", args, "cancel"):
            self._monitor.cancel_diagnosis()
        elif flag("tune", args, "undo"):
            self._monitor.undo_tune()
        else:
            seconds: Any = args.get("seconds", 60.0)  # `tune` checks it
            self._monitor.tune(optional(args, "loader"), seconds=seconds, wait=False)
        return types.FindingsReply(status="ok", diagnosing=self._monitor.diagnosing), []

    def _mark(self, args: Args) -> Answer:
        only("mark", args, "label")
        self._monitor.mark(text(args, "label"))
        return {"status": "ok"}, []

    def _verdict(self, args: Args) -> Answer:
        only("verdict", args)
        return types.FindingsReply(status="ok", verdict=self._monitor.verdict), []

    def _history(self, args: Args) -> Answer:
        since = args.get("since", 0)
        if isinstance(since, bool) or not isinstance(since, int):
            raise _BadRequest("history: since is a sequence number.")
        monitor = self._monitor
        rows = monitor.store.page_rows(since)
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
        only("code", args, "loader")
        # Not compared: that draws random numbers, and a cell may be training.
        written = self._monitor.code(optional(args, "loader"), compare=False)
        return types.CodeReply(status="ok", filename=CODE_FILE, code=written), []

    def _sessions(self, _args: Args) -> Answer:
        return types.SessionsReply(status="ok", sessions=self._monitor.opened.listing()), []

    def _open(self, args: Args) -> Answer:
        opened = self._monitor.opened.open(optional(args, "path"))
        facts = dict(opened.snapshot.facts)
        return types.OpenReply(status="ok", recorded=opened.id, facts=facts, **opened.label()), []

    def _of_recorded(self, command: str, args: Args) -> Callable[[Args], Answer]:
        if command not in OF_RECORDED:
            raise _BadRequest(f"{command}: of a recorded session there are {', '.join(sorted(OF_RECORDED))}.")
        recorded, monitor = text(args, "recorded"), self._monitor
        return lambda _args: OF_RECORDED[command](monitor.opened.get(recorded), monitor.publisher.state())


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
        alone=None,
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
