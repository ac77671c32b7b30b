"""Answers requests of pages on the control channel: quick ones within a millisecond, slow ones on a thread.

Ordinary widget messages wait for the running cell to end; control messages are answered while it runs. The control
thread also serves interrupts and the debugger, so nothing here may block it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..stream import bokehjs
from ..stream import page_messages as wire
from ..stream.chart_documents import Documents
from ..stream.hub import GLANCE, LEASE_S
from .arguments import Args, BadRequest, flag, knobs, only, parse, settings, text
from .recorded_requests import Answer, RecordedRequests

if TYPE_CHECKING:
    from ..protocol import message_types as types
    from ..protocol.states import LoaderState
    from ..runtime import Monitor
    from ..stream.jupyter import Send


class Control:
    """Answers requests for one :class:`~kernel_monitor.runtime.Monitor`. Knows no Jupyter.

    Args:
        monitor: the monitor.
        documents: chart documents; by default those in the user's cache folder.
    """

    def __init__(self, monitor: Monitor, documents: Documents | None = None) -> None:
        self._monitor = monitor
        self.documents = Documents() if documents is None else documents
        self._quick: dict[str, Callable[[Args], Answer]] = {
            "hello": self._hello,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "switch": self._switch,
            "decline": self._decline,
            "set": self._set,
            "history": self._history,
            "glance": self._glance,
            "sidebar": self._sidebar,
            "diagnose": self._diagnose,
            "profile": self._profile,
            "mark": self._mark,
        }
        self._slow: dict[str, Callable[[Args], Answer]] = {
            "start": self._start,
            "stop": self._stop,
            "document": self._document,
            "bokehjs": self._bokehjs,
            "export": self._export,
            "configure": self._configure,
            "sessions": self._sessions,
            "open": self._open,
            "verdict": self._verdict,
        }
        self._recorded = RecordedRequests(monitor.publisher.state)

    def handle(self, content: Any, reply: Send) -> None:
        """Answer one request by calling `reply` exactly once: now, or from a worker thread for slow commands.

        An invalid request and a failed command get an error reply.
        """
        try:
            command, args = parse(content)
            work = self._slow.get(command)
            if args.get("recorded") is not None:
                work = self._of_recorded(command, args)
            if work is not None:
                threading.Thread(
                    target=_answer, args=(partial(work, args), reply), name=f"kernel-monitor-{command}", daemon=True
                ).start()
                return
            if command not in self._quick:
                known = ", ".join(sorted([*self._quick, *self._slow]))
                raise BadRequest(f"Unknown command {command!r}. The commands are: {known}.")
            quick = self._quick[command]
        except BaseException as exc:
            reply(wire.error(exc), [])
            if isinstance(exc, KeyboardInterrupt):
                raise
            return
        _answer(lambda: quick(args), reply)

    def _hello(self, _args: Args) -> Answer:
        content: types.HelloReply = {"status": "ok", **self._monitor.publisher.hello()}
        return content, []

    def _start(self, args: Args) -> Answer:
        self._monitor.start(**settings("start", args))
        return self._hello(args)

    def _configure(self, args: Args) -> Answer:
        content: types.ConfigureReply = {
            "status": "ok",
            "settings": self._monitor.configure(**settings("configure", args)),
        }
        return content, []

    def _stop(self, args: Args) -> Answer:
        self._monitor.stop()
        return self._hello(args)

    def _subscribe(self, args: Args) -> Answer:
        monitor = self._monitor
        monitor.hub.subscribe(text(args, "client"), touch=bool(args.get("touch", False)))
        content: types.SubscribeReply = {
            "status": "ok",
            "lease": LEASE_S,
            "session": monitor.session,
            "running": monitor.running,
            "seq": monitor.store.last_seq,
            "schema": monitor.store.page_schema.to_json(),
            "loaders": monitor.loader_states(),
            "events": monitor.publisher.events(),
            "strip": monitor.strip,
            "paused": monitor.hub.paused,
            "recorded": None,
            **monitor.publisher.findings(),
            **monitor.publisher.state(),
        }
        return content, []

    def _unsubscribe(self, args: Args) -> Answer:
        client = text(args, "client")
        self._monitor.hub.unsubscribe(client)
        self._monitor.hub.unsubscribe(client, kind=GLANCE)
        return {"status": "ok"}, []

    def _glance(self, args: Args) -> Answer:
        monitor = self._monitor
        monitor.hub.subscribe(text(args, "client"), touch=bool(args.get("touch", False)), kind=GLANCE)
        content: types.GlanceReply = {
            "status": "ok",
            "lease": LEASE_S,
            "session": monitor.session,
            "running": monitor.running,
            "paused": monitor.hub.paused,
            "glance": monitor.publisher.glance(),
            "sidebar": monitor.sidebar.page,
        }
        return content, []

    def _sidebar(self, args: Args) -> Answer:
        only("sidebar", args, "page")
        self._monitor.sidebar.answer(text(args, "page"))
        return {"status": "ok"}, []

    def _switch(self, args: Args) -> Answer:
        confirmed = flag("switch", args, "confirmed")
        state = self._monitor.switch(text(args, "backend"), loader=text(args, "loader"), confirmed=confirmed)
        return _loader_reply(state)

    def _decline(self, args: Args) -> Answer:
        only("decline", args, "loader")
        self._monitor.decline(text(args, "loader"))
        content: types.OffersReply = {"status": "ok", "offers": self._monitor.offers}
        return content, []

    def _set(self, args: Args) -> Answer:
        loader = text(args, "loader")
        return _loader_reply(self._monitor.set(loader=loader, **knobs(args)))

    def _diagnose(self, args: Args) -> Answer:
        only("diagnose", args, "loader", "confirmed", "seconds", "cancel")
        confirmed, cancel = flag("diagnose", args, "confirmed"), flag("diagnose", args, "cancel")
        if cancel:
            self._monitor.cancel_diagnosis()
        else:
            loader = None if args.get("loader") is None else text(args, "loader")
            seconds: Any = args.get("seconds", 8.0)  # `diagnose` checks it
            self._monitor.diagnose(loader, seconds=seconds, confirmed=confirmed, wait=False)
        content: types.DiagnoseReply = {"status": "ok", "diagnosing": self._monitor.diagnosing}
        return content, []

    def _profile(self, args: Args) -> Answer:
        only("profile", args, "loader", "steps")
        loader = None if args.get("loader") is None else text(args, "loader")
        steps: Any = args.get("steps", 10)  # `profile` checks it
        self._monitor.profile(steps, loader=loader, wait=False)
        content: types.ProfileReply = {"status": "ok", "profiling": self._monitor.profiling}
        return content, []

    def _mark(self, args: Args) -> Answer:
        only("mark", args, "label")
        self._monitor.mark(text(args, "label"))
        return {"status": "ok"}, []

    def _verdict(self, args: Args) -> Answer:
        only("verdict", args)
        content: types.VerdictReply = {"status": "ok", "verdict": self._monitor.verdict}
        return content, []

    def _history(self, args: Args) -> Answer:
        since = args.get("since", 0)
        if isinstance(since, bool) or not isinstance(since, int):
            raise BadRequest("history: since is a sequence number.")
        monitor = self._monitor
        rows = monitor.store.page_rows(since)
        return wire.history(rows, monitor.publisher.events(), monitor.publisher.state()["charts"])

    def _document(self, _args: Args) -> Answer:
        schema = self._monitor.store.page_schema
        content: types.DocumentReply = {"status": "ok", "schema": schema.version, "bokeh": bokehjs.version()}
        return content, [self.documents.get(schema)]

    def _bokehjs(self, _args: Args) -> Answer:
        content: types.BokehReply = {"status": "ok", "version": bokehjs.version()}
        return content, [bokehjs.path().read_bytes()]

    def _export(self, _args: Args) -> Answer:
        exporter = self._monitor.exporter
        content: types.ExportReply = {"status": "ok", "filename": exporter.file_name()}
        return content, [exporter.render().encode()]

    def _sessions(self, _args: Args) -> Answer:
        content: types.SessionsReply = {"status": "ok", "sessions": self._monitor.opened.listing()}
        return content, []

    def _open(self, args: Args) -> Answer:
        path = args.get("path")
        opened = self._monitor.opened.open(None if path is None else text(args, "path"))
        facts = dict(opened.snapshot.facts)
        content: types.OpenReply = {"status": "ok", "recorded": opened.id, **opened.label(), "facts": facts}
        return content, []

    def _of_recorded(self, command: str, args: Args) -> Callable[[Args], Answer]:
        answer = self._recorded.answers.get(command)
        if answer is None:
            raise BadRequest(f"{command}: of a recorded session there are {', '.join(sorted(self._recorded.answers))}.")
        recorded = text(args, "recorded")
        return lambda _args: answer(self._monitor.opened.get(recorded))


def _loader_reply(state: LoaderState) -> Answer:
    content: types.LoaderReply = {"status": "ok", "loader": state}
    return content, []


def _answer(work: Callable[[], Answer], reply: Send) -> None:
    """Reply with the result or with the error: without a reply the page would wait for ever."""
    try:
        content, buffers = work()
        content = wire.sendable(content)
    except BaseException as exc:
        reply(wire.error(exc), [])
        if isinstance(exc, KeyboardInterrupt):
            raise
        return
    reply(content, buffers)
