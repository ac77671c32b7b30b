"""The control-channel half of the monitor: validate, record, reply within a millisecond; long work on a thread.

Why the control channel: ordinary widget messages wait for the running cell; control messages are answered while it
runs. The control thread also serves interrupts and the debugger, so nothing here may block it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from . import wire
from .hub import GLANCE, LEASE_S
from .render import run_module

if TYPE_CHECKING:
    from ..live import Monitor
    from ..recorded import RecordedSession

Reply = tuple[dict[str, Any], list[bytes]]
SETTINGS = ("interval", "history", "charts", "record")
KNOBS = ("workers", "prefetch", "threads")


class BadRequest(MonitorError):
    """A control message that is not of the protocol's form."""


class Control:
    """Answers requests for one :class:`~kernel_monitor.live.Monitor`. Knows no Jupyter."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._documents: dict[int, bytes] = {}
        self._quick: dict[str, Callable[[dict[str, Any]], Reply]] = {
            "hello": self._hello,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "switch": self._switch,
            "set": self._set,
            "history": self._history,
            "glance": self._glance,
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
        }
        # Of a recorded session these read a file.
        self._recorded: dict[str, Callable[[RecordedSession], Reply]] = {
            "subscribe": self._recorded_subscribe,
            "history": self._recorded_history,
            "document": self._recorded_document,
            "export": self._recorded_export,
        }

    def handle(self, content: Any, reply: Callable[[dict[str, Any], list[bytes]], None]) -> None:
        """Answer one request by calling ``reply`` exactly once: now, or from a worker thread for slow commands."""
        try:
            command, args = _parse(content)
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
        except BadRequest as exc:
            reply(wire.error(exc), [])
            return
        _answer(lambda: quick(args), reply)

    def _hello(self, _args: dict[str, Any]) -> Reply:
        return wire.ok(**self._monitor.hello()), []

    def _start(self, args: dict[str, Any]) -> Reply:
        self._monitor.start(**_settings("start", args))
        return self._hello(args)

    def _configure(self, args: dict[str, Any]) -> Reply:
        return wire.ok(settings=self._monitor.configure(**_settings("configure", args))), []

    def _stop(self, args: dict[str, Any]) -> Reply:
        self._monitor.stop()
        return self._hello(args)

    def _subscribe(self, args: dict[str, Any]) -> Reply:
        monitor = self._monitor
        monitor.hub.subscribe(_text(args, "client"), touch=bool(args.get("touch", False)))
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
            **monitor.state(),
        ), []

    def _unsubscribe(self, args: dict[str, Any]) -> Reply:
        client = _text(args, "client")
        self._monitor.hub.unsubscribe(client)
        self._monitor.hub.unsubscribe(client, kind=GLANCE)
        return wire.ok(), []

    def _glance(self, args: dict[str, Any]) -> Reply:
        monitor = self._monitor
        monitor.hub.subscribe(_text(args, "client"), touch=bool(args.get("touch", False)), kind=GLANCE)
        return wire.ok(
            lease=LEASE_S,
            session=monitor.session,
            running=monitor.running,
            paused=monitor.hub.paused,
            glance=monitor.glance(),
        ), []

    def _switch(self, args: dict[str, Any]) -> Reply:
        confirmed = args.get("confirmed", False)
        if not isinstance(confirmed, bool):
            raise BadRequest("switch: confirmed is true or false.")
        state = self._monitor.switch(_text(args, "backend"), loader=_text(args, "loader"), confirmed=confirmed)
        return wire.ok(loader=state), []

    def _set(self, args: dict[str, Any]) -> Reply:
        loader = _text(args, "loader")
        knobs = {name: value for name, value in args.items() if name != "loader"}
        for name, value in knobs.items():
            if name not in KNOBS:
                raise BadRequest(f"set: there is no {name!r}. What can be set is: {', '.join(KNOBS)}.")
            if isinstance(value, bool) or not isinstance(value, int):
                raise BadRequest(f"set: {name} is a whole number.")
        return wire.ok(loader=self._monitor.set(loader=loader, **knobs)), []

    def _history(self, args: dict[str, Any]) -> Reply:
        since = args.get("since", 0)
        if isinstance(since, bool) or not isinstance(since, int):
            raise BadRequest("history: since is a sequence number.")
        monitor = self._monitor
        content, buffers = wire.encode_history(monitor.store.page_rows(since))
        return wire.ok(**content, events=monitor.store.events(), charts=monitor.state()["charts"]), buffers

    def _document(self, _args: dict[str, Any]) -> Reply:
        schema = self._monitor.store.page_schema
        document = self._documents.get(schema.version)
        if document is None:
            document = run_module("kernel_monitor.views", json.dumps(schema.to_json()).encode())
            self._documents = {schema.version: document}
        return wire.ok(schema=schema.version, bokeh=bokeh_version()), [document]

    def _bokehjs(self, _args: dict[str, Any]) -> Reply:
        return wire.ok(version=bokeh_version()), [_bokehjs_path().read_bytes()]

    def _export(self, _args: dict[str, Any]) -> Reply:
        return wire.ok(filename=self._monitor.export_name()), [self._monitor.render().encode()]

    def _sessions(self, _args: dict[str, Any]) -> Reply:
        return wire.ok(sessions=self._monitor.opened.listing()), []

    def _open(self, args: dict[str, Any]) -> Reply:
        path = args.get("path")
        opened = self._monitor.opened.open(None if path is None else _text(args, "path"))
        return wire.ok(recorded=opened.id, **opened.label(), facts=dict(opened.snapshot.facts)), []

    def _of_recorded(self, command: str, args: dict[str, Any]) -> Callable[[dict[str, Any]], Reply]:
        answer = self._recorded.get(command)
        if answer is None:
            raise BadRequest(f"{command}: of a recorded session there are {', '.join(sorted(self._recorded))}.")
        recorded = _text(args, "recorded")
        return lambda _args: answer(self._monitor.opened.get(recorded))

    def _recorded_subscribe(self, session: RecordedSession) -> Reply:
        rows = session.page_rows
        return wire.ok(
            lease=LEASE_S,
            session=session.id,
            running=False,
            recorded=session.label(),
            seq=int(rows.seq[-1]) if len(rows) else 0,
            schema=rows.schema.to_json(),
            loaders=session.snapshot.loaders,
            events=session.snapshot.events,
            strip=session.strip,
            paused=False,
            **self._monitor.state(),
        ), []

    def _recorded_history(self, session: RecordedSession) -> Reply:
        content, buffers = wire.encode_history(session.page_rows)
        return wire.ok(**content, events=session.snapshot.events, charts=self._monitor.state()["charts"]), buffers

    def _recorded_document(self, session: RecordedSession) -> Reply:
        return wire.ok(schema=session.page_rows.schema.version, bokeh=bokeh_version()), [session.document]

    def _recorded_export(self, session: RecordedSession) -> Reply:
        return wire.ok(filename=session.export_name()), [session.render().encode()]


def _parse(content: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(content, dict):
        raise BadRequest("The request's content is not an object.")
    protocol = content.get("protocol")
    # A page of another version must at least learn which version and environment it speaks to.
    if protocol != wire.PROTOCOL and content.get("command") != "hello":
        raise BadRequest(
            f"This kernel's kernel_monitor speaks protocol {wire.PROTOCOL}, the page {protocol!r}: "
            "bring both environments to the same version with pip install -U kernel-monitor."
        )
    command, args = content.get("command"), content.get("args", {})
    if not isinstance(command, str) or not isinstance(args, dict):
        raise BadRequest("A request needs a command (text) and args (an object).")
    return command, args


def _settings(command: str, args: dict[str, Any]) -> dict[str, Any]:
    unknown = set(args) - set(SETTINGS)
    if unknown:
        raise BadRequest(f"{command}: there is no {min(unknown)!r} to set; there are {', '.join(SETTINGS)}.")
    return args


def _text(args: dict[str, Any], key: str) -> str:
    value = args.get(key)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"The request needs {key!r} (text).")
    return value


def _answer(work: Callable[[], Reply], reply: Callable[[dict[str, Any], list[bytes]], None]) -> None:
    """Every request is answered: an exception becomes an error reply, or the page would wait for ever."""
    try:
        content, buffers = work()
    except Exception as exc:  # noqa: BLE001 - becomes the error reply
        content, buffers = wire.error(exc), []
    reply(content, buffers)


@lru_cache(maxsize=1)
def bokeh_version() -> str:
    """The version of this environment's Bokeh, without importing it."""
    return metadata.version("bokeh")


def _bokehjs_path() -> Path:
    spec = util.find_spec("bokeh")
    if spec is None or spec.origin is None:
        raise MonitorError("bokeh is not installed in the kernel's environment: pip install bokeh.")
    return Path(spec.origin).parent / "server" / "static" / "js" / "bokeh.min.js"
