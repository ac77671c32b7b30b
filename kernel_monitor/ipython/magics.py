"""``%monitor``: thin, every action is a method of :class:`kernel_monitor.live.Monitor`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display

from ..errors import MonitorError
from ..live.recording import words as recording_words
from ..recorded import table
from ..stream.control import KNOBS
from .summary import summary_html, summary_text

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ..live import Monitor
    from ..widgets import Dashboard

USAGE = """%monitor                        show the dashboard (starts the monitor if needed)
%monitor start [--interval S] [--history S] [--charts ID,ID] [--no-record]
                                sample every S seconds (default 0.1) and keep S seconds (default 600);
                                the same again while it runs changes the settings
%monitor stop                   stop sampling; what was measured stays
%monitor status                 what runs, what it costs, what was missed, where it is recorded
%monitor show CHART …           choose the charts: ids, or all, or default
%monitor switch NAME [--loader LOADER] [--yes]
                                go on with another loader backend from the next batch;
                                --yes: without the question that synthetic asks
%monitor set [workers=N] [prefetch=N] [threads=N] [--loader LOADER]
                                change the loader's knobs from the next batch on
%monitor export PATH            write everything as one HTML file
%monitor record on|off          go on with the recording, or leave it
%monitor sessions               the recorded sessions
%monitor open [SESSION]         the dashboard of a recorded session: a path, an id or its beginning; or the newest"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%monitor: {message}\n{USAGE}")


def _knob(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if name not in KNOBS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of workers=N, prefetch=N, threads=N")
    try:
        return name, int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name} is a whole number, not {value!r}") from None


def _parser() -> _Parser:
    parser = _Parser(prog="%monitor", add_help=False)
    commands = parser.add_subparsers(dest="command")
    start = commands.add_parser("start", add_help=False)
    start.add_argument("--interval", type=float, default=None)
    start.add_argument("--history", type=float, default=None)
    start.add_argument("--charts", type=lambda text: [one.strip() for one in text.split(",")], default=None)
    start.add_argument("--no-record", dest="record", action="store_false", default=None)
    commands.add_parser("stop", add_help=False)
    commands.add_parser("status", add_help=False)
    switch = commands.add_parser("switch", add_help=False)
    switch.add_argument("backend")
    switch.add_argument("--loader", default=None)
    switch.add_argument("--yes", action="store_true")
    knobs = commands.add_parser("set", add_help=False)
    knobs.add_argument("knobs", nargs="+", type=_knob, metavar="workers=N|prefetch=N|threads=N")
    knobs.add_argument("--loader", default=None)
    export = commands.add_parser("export", add_help=False)
    export.add_argument("path")
    show = commands.add_parser("show", add_help=False)
    show.add_argument("charts", nargs="+", metavar="CHART")
    record = commands.add_parser("record", add_help=False)
    record.add_argument("record", choices=("on", "off"))
    commands.add_parser("sessions", add_help=False)
    opened = commands.add_parser("open", add_help=False)
    opened.add_argument("session", nargs="?", default=None)
    return parser


@magics_class
class MonitorMagics(Magics):
    """The ``%monitor`` line magic."""

    def __init__(self, shell: InteractiveShell, monitor: Monitor) -> None:
        super().__init__(shell)
        self._monitor = monitor
        self._parser = _parser()
        self._shown: list[tuple[Any, dict[str, Any]]] = []

    @line_magic("monitor")  # type: ignore[arg-type]  # IPython types its decorator as taking nothing
    def monitor(self, line: str) -> None:
        """Show or steer the monitor."""
        words = shlex.split(line)
        if words in (["--help"], ["help"]):
            print(USAGE)
            return
        args = self._parser.parse_args(words)
        actions: dict[str | None, Callable[[argparse.Namespace], None]] = {
            None: lambda _args: self._show(),
            "start": self._start,
            "stop": lambda _args: self._stop(),
            "status": lambda _args: print(self._monitor.status()),
            "switch": lambda args: self._switch(args.backend, args.loader, confirmed=args.yes),
            "set": lambda args: self._set(args.loader, dict(args.knobs)),
            "export": lambda args: print(f"wrote {self._monitor.export(args.path)}"),
            "show": lambda args: self._charts(args.charts),
            "record": lambda args: self._record(on=args.record == "on"),
            "sessions": lambda _args: print(table(self._monitor.opened.listing())),
            "open": lambda args: self._open(args.session),
        }
        try:
            actions[args.command](args)
        except MonitorError as exc:  # one sentence with cause and remedy: a traceback would bury it
            raise UsageError(f"{type(exc).__name__}: {exc}") from exc

    def refresh_summaries(self) -> None:
        """Bring the static summaries up to date: what a headless run or a notebook reopened later shows.

        Only while no page has ever asked for the live charts: an update redraws the output of the cell.
        """
        if not self._monitor.hub.ever_subscribed:
            self._update_summaries()

    def _start(self, args: argparse.Namespace) -> None:
        self._monitor.start(interval=args.interval, history=args.history, charts=args.charts, record=args.record)
        self._say_news()

    def _say_news(self) -> None:
        news = self._monitor.news()
        if news is not None:
            print(news)

    def _charts(self, charts: list[str]) -> None:
        print(f"charts: {', '.join(self._monitor.configure(charts=charts)['charts'])}")

    def _record(self, *, on: bool) -> None:
        self._monitor.configure(record=on)
        recording = self._monitor.recording
        if on and not self._monitor.running:
            print("The session will be recorded once the monitor runs: %monitor start.")
        else:
            print(recording_words(recording))

    def _open(self, session: str | None) -> None:
        recorded = self._monitor.opened.open(session)
        text = recorded.words()
        if getattr(self.shell, "kernel", None) is None:
            print(text)
            return
        display(self._picture(recorded.dashboard(), text, f"<p>{escape(text)}</p>"), raw=True)

    def _show(self) -> None:
        self._monitor.start()
        self._say_news()
        if getattr(self.shell, "kernel", None) is None:
            print(summary_text(self._monitor))
            return
        data = self._picture(self._monitor.dashboard(), "", "")
        handle = display(self._with_summary(data), raw=True, display_id=True)
        self._shown = [*self._shown[-3:], (handle, data)]

    def _picture(self, dashboard: Dashboard, text: str, html: str) -> dict[str, Any]:
        """A widget's output, and what stands for it where there are no widgets."""
        bundle = dashboard._repr_mimebundle_()
        if bundle is None:
            raise MonitorError("This front end gives widgets no display: use %monitor status and %monitor export.")
        return {**bundle[0], "text/plain": text, "text/html": html}

    def _stop(self) -> None:
        self._monitor.stop()
        self._update_summaries()

    def _switch(self, backend: str, loader: str | None, *, confirmed: bool) -> None:
        question = None if confirmed else self._monitor.question(backend, loader=loader)
        if question is not None:
            which = "" if loader is None else f" --loader {shlex.quote(loader)}"
            print(f"Warning: {question}\nNothing was switched. If you mean it: %monitor switch {backend}{which} --yes")
            return
        state = self._monitor.switch(backend, loader=loader, confirmed=True)
        print(f"{state['name']}: {state['status']}")

    def _set(self, loader: str | None, knobs: dict[str, int]) -> None:
        state = self._monitor.set(loader=loader, **knobs)
        now = ", ".join(f"{name} {value}" for name, value in state["knobs"].items() if value is not None)
        print(f"{state['name']}: {now}")

    def _update_summaries(self) -> None:
        for handle, data in self._shown:
            handle.update(self._with_summary(data), raw=True)

    def _with_summary(self, data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "text/plain": summary_text(self._monitor), "text/html": summary_html(self._monitor)}
