"""The control-channel half of the monitor: validate, record, reply within a millisecond; long work on a thread.

Why the control channel: ordinary widget messages wait for the running cell; control messages are answered while it
runs. The control thread also serves interrupts and the debugger, so nothing here may block it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from . import wire
from .hub import LEASE_S
from .render import run_module

if TYPE_CHECKING:
    from ..live import Monitor

Reply = tuple[dict[str, Any], list[bytes]]
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
        }
        self._slow: dict[str, Callable[[dict[str, Any]], Reply]] = {
            "start": self._start,
            "stop": self._stop,
            "document": self._document,
            "bokehjs": self._bokehjs,
            "export": self._export,
        }

    def handle(self, content: Any, reply: Callable[[dict[str, Any], list[bytes]], None]) -> None:
        """Answer one request by calling ``reply`` exactly once: now, or from a worker thread for slow commands."""
        try:
            command, args = _parse(content)
            if command in self._slow:
                work = self._slow[command]
                threading.Thread(
                    target=_answer, args=(lambda: work(args), reply), name=f"kernel-monitor-{command}", daemon=True
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
        interval = args.get("interval")
        if interval is not None and (isinstance(interval, bool) or not isinstance(interval, int | float)):
            raise BadRequest("start: interval is a number of seconds.")
        self._monitor.start(interval=None if interval is None else float(interval))
        return self._hello(args)

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
            schema=monitor.store.schema.to_json(),
            loaders=monitor.loader_states(),
            events=monitor.store.events(),
            strip=monitor.strip,
            paused=monitor.hub.paused,
        ), []

    def _unsubscribe(self, args: dict[str, Any]) -> Reply:
        self._monitor.hub.unsubscribe(_text(args, "client"))
        return wire.ok(), []

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
        content, buffers = wire.encode_history(self._monitor.store.rows(since))
        return wire.ok(**content, events=self._monitor.store.events()), buffers

    def _document(self, _args: dict[str, Any]) -> Reply:
        schema = self._monitor.store.schema
        document = self._documents.get(schema.version)
        if document is None:
            document = run_module("kernel_monitor.views", json.dumps(schema.to_json()).encode())
            self._documents = {schema.version: document}
        return wire.ok(schema=schema.version, bokeh=bokeh_version()), [document]

    def _bokehjs(self, _args: dict[str, Any]) -> Reply:
        return wire.ok(version=bokeh_version()), [_bokehjs_path().read_bytes()]

    def _export(self, _args: dict[str, Any]) -> Reply:
        return wire.ok(filename=self._monitor.export_name()), [self._monitor.render().encode()]


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
