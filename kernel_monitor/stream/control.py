"""The control-channel half of the monitor: validate, record, reply within a millisecond; long work on a thread.

Why the control channel: ordinary widget messages wait for the running cell; control messages are answered while it
runs. The control thread also serves interrupts and the debugger, so nothing here may block it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from . import wire
from .documents import Documents
from .hub import GLANCE, LEASE_S
from .replay import Replay, Reply, bokeh_version
from .requests import BadRequest, flag, knobs, only, parse, settings, text

if TYPE_CHECKING:
    from ..live import Monitor


class Control:
    """Answers requests for one :class:`~kernel_monitor.live.Monitor`. Knows no Jupyter.

    Args:
        monitor: who is asked.
        documents: where chart documents come from; the user's own where none are given.
    """

    def __init__(self, monitor: Monitor, documents: Documents | None = None) -> None:
        self._monitor = monitor
        self.documents = Documents() if documents is None else documents
        self._quick: dict[str, Callable[[dict[str, Any]], Reply]] = {
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
        self._slow: dict[str, Callable[[dict[str, Any]], Reply]] = {
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
        self._replay = Replay(monitor.state)

    def handle(self, content: Any, reply: Callable[[dict[str, Any], list[bytes]], None]) -> None:
        """Answer one request by calling ``reply`` exactly once: now, or from a worker thread for slow commands.

        Whatever is wrong with the request or with the work on it, there is a reply.
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

    def _hello(self, _args: dict[str, Any]) -> Reply:
        return wire.ok(**self._monitor.hello()), []

    def _start(self, args: dict[str, Any]) -> Reply:
        self._monitor.start(**settings("start", args))
        return self._hello(args)

    def _configure(self, args: dict[str, Any]) -> Reply:
        return wire.ok(settings=self._monitor.configure(**settings("configure", args))), []

    def _stop(self, args: dict[str, Any]) -> Reply:
        self._monitor.stop()
        return self._hello(args)

    def _subscribe(self, args: dict[str, Any]) -> Reply:
        monitor = self._monitor
        monitor.hub.subscribe(text(args, "client"), touch=bool(args.get("touch", False)))
        return wire.ok(
            lease=LEASE_S,
            session=monitor.session,
            running=monitor.running,
            seq=monitor.store.last_seq,
            schema=monitor.store.page_schema.to_json(),
            loaders=monitor.loader_states(),
            events=monitor.store.events(),
            strip=monitor.strip,
            paused=monitor.hub.paused,
            **monitor.findings(),
            **monitor.state(),
        ), []

    def _unsubscribe(self, args: dict[str, Any]) -> Reply:
        client = text(args, "client")
        self._monitor.hub.unsubscribe(client)
        self._monitor.hub.unsubscribe(client, kind=GLANCE)
        return wire.ok(), []

    def _glance(self, args: dict[str, Any]) -> Reply:
        monitor = self._monitor
        monitor.hub.subscribe(text(args, "client"), touch=bool(args.get("touch", False)), kind=GLANCE)
        return wire.ok(
            lease=LEASE_S,
            session=monitor.session,
            running=monitor.running,
            paused=monitor.hub.paused,
            glance=monitor.glance(),
            sidebar=monitor.sidebar.page,
        ), []

    def _sidebar(self, args: dict[str, Any]) -> Reply:
        only("sidebar", args, "page")
        self._monitor.sidebar.answer(text(args, "page"))
        return wire.ok(), []

    def _switch(self, args: dict[str, Any]) -> Reply:
        confirmed = flag("switch", args, "confirmed")
        state = self._monitor.switch(text(args, "backend"), loader=text(args, "loader"), confirmed=confirmed)
        return wire.ok(loader=state), []

    def _decline(self, args: dict[str, Any]) -> Reply:
        only("decline", args, "loader")
        self._monitor.decline(text(args, "loader"))
        return wire.ok(offers=self._monitor.offers), []

    def _set(self, args: dict[str, Any]) -> Reply:
        loader = text(args, "loader")
        return wire.ok(loader=self._monitor.set(loader=loader, **knobs(args))), []

    def _diagnose(self, args: dict[str, Any]) -> Reply:
        only("diagnose", args, "loader", "confirmed", "seconds", "cancel")
        confirmed, cancel = flag("diagnose", args, "confirmed"), flag("diagnose", args, "cancel")
        if cancel:
            self._monitor.cancel_diagnosis()
        else:
            loader = None if args.get("loader") is None else text(args, "loader")
            self._monitor.diagnose(loader, seconds=args.get("seconds", 8.0), confirmed=confirmed, wait=False)
        return wire.ok(diagnosing=self._monitor.diagnosing), []

    def _profile(self, args: dict[str, Any]) -> Reply:
        only("profile", args, "loader", "steps")
        loader = None if args.get("loader") is None else text(args, "loader")
        self._monitor.profile(args.get("steps", 10), loader=loader, wait=False)
        return wire.ok(profiling=self._monitor.profiling), []

    def _mark(self, args: dict[str, Any]) -> Reply:
        only("mark", args, "label")
        self._monitor.mark(text(args, "label"))
        return wire.ok(), []

    def _verdict(self, args: dict[str, Any]) -> Reply:
        only("verdict", args)
        return wire.ok(verdict=self._monitor.verdict), []

    def _history(self, args: dict[str, Any]) -> Reply:
        since = args.get("since", 0)
        if isinstance(since, bool) or not isinstance(since, int):
            raise BadRequest("history: since is a sequence number.")
        monitor = self._monitor
        content, buffers = wire.encode_history(monitor.store.page_rows(since))
        return wire.ok(**content, events=monitor.store.events(), charts=monitor.state()["charts"]), buffers

    def _document(self, _args: dict[str, Any]) -> Reply:
        schema = self._monitor.store.page_schema
        return wire.ok(schema=schema.version, bokeh=bokeh_version()), [self.documents.get(schema)]

    def _bokehjs(self, _args: dict[str, Any]) -> Reply:
        return wire.ok(version=bokeh_version()), [_bokehjs_path().read_bytes()]

    def _export(self, _args: dict[str, Any]) -> Reply:
        return wire.ok(filename=self._monitor.export_name()), [self._monitor.render().encode()]

    def _sessions(self, _args: dict[str, Any]) -> Reply:
        return wire.ok(sessions=self._monitor.opened.listing()), []

    def _open(self, args: dict[str, Any]) -> Reply:
        path = args.get("path")
        opened = self._monitor.opened.open(None if path is None else text(args, "path"))
        return wire.ok(recorded=opened.id, **opened.label(), facts=dict(opened.snapshot.facts)), []

    def _of_recorded(self, command: str, args: dict[str, Any]) -> Callable[[dict[str, Any]], Reply]:
        answer = self._replay.answers.get(command)
        if answer is None:
            raise BadRequest(f"{command}: of a recorded session there are {', '.join(sorted(self._replay.answers))}.")
        recorded = text(args, "recorded")
        return lambda _args: answer(self._monitor.opened.get(recorded))


def _answer(work: Callable[[], Reply], reply: Callable[[dict[str, Any], list[bytes]], None]) -> None:
    """Every request is answered: an exception becomes an error reply, or the page would wait for ever."""
    try:
        content, buffers = work()
        content = wire.sendable(content)
    except BaseException as exc:
        reply(wire.error(exc), [])
        if isinstance(exc, KeyboardInterrupt):
            raise
        return
    reply(content, buffers)


def _bokehjs_path() -> Path:
    spec = util.find_spec("bokeh")
    if spec is None or spec.origin is None:
        raise MonitorError("bokeh is not installed in the kernel's environment: pip install bokeh.")
    return Path(spec.origin).parent / "server" / "static" / "js" / "bokeh.min.js"
