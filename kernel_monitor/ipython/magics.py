"""`%monitor`: its usage, its arguments, and thin actions: each is a method of `kernel_monitor.runtime.Monitor`."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display

from .. import output
from ..analysis import analyse
from ..diagnosis.loop_guard import KNOBS
from ..errors import MonitorError
from ..plugins import Command, Later, contributions, missing_command
from ..recorded import table
from ..runtime.recorder import words as recording_words
from ..stream.jupyter import page_of_cell
from ..text import cause, printable
from .answers import Answers, Cells, analysis_text, diagnosis_text, html_table, offer_lines, summary_rows, text_table

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ..runtime import Monitor
    from ..widgets import Dashboard

_MAGICS: dict[str, Command] = {magic.name: magic for magic in contributions("MAGICS")}
"""The commands that optional packages add, by name."""

_USAGE = """%monitor                        show the dashboard (starts the monitor if needed)
%monitor sidebar                open JupyterLab's sidebar, which shows the same (starts the monitor if needed)
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
%monitor verdict                where the time of a step goes, why, what to do and what to expect of it
%monitor diagnose [--loader LOADER] [--seconds S] [--yes] [--cancel]
                                try every engine in the running loop, S seconds each (default 8), and come back;
                                --yes: synthetic too, which replays batches; the result stands under the cell
%monitor tune [--loader LOADER] [--seconds S] [--cancel] [--undo]
                                find the fastest engine, workers, threads and prefetch in the running loop, within
                                S seconds (default 60), and go on with them; --undo: back to what there was before
%monitor mark WORDS             begin a new segment here, by this name
%monitor price 2.50€|off        what an hour of this machine costs; 2.50€+0.30: and of each CPU machine
%monitor export PATH            write everything as one HTML file
%monitor code [FILE] [--loader LOADER]
                                the loader as Python code for DALI, which does not need this package
%monitor scaling [JOB] [--alone SESSION]
                                images/s of a job over its ranks times those of one rank alone
%monitor record on|off          go on with the recording, or leave it
%monitor sessions               the recorded sessions
%monitor open [SESSION]         the dashboard of a recorded session: a path, an id or its beginning; or the newest
{optional}
%%monitor [LABEL]               as a cell's first line: what the machine did meanwhile, under it when it ends"""
_USAGE = _USAGE.replace("{optional}\n", "".join(f"{magic.help}\n" for magic in _MAGICS.values()))

COMMANDS = ["help", *dict.fromkeys(re.findall(r"^%monitor ([a-z]+)", _USAGE, re.MULTILINE))]

NEAR = 0.65  # of difflib's similarity, from 0 to 1: how close a word must be to one that there is, to be meant by it

_SIDEBAR_S = 2.0  # how long `%monitor sidebar` waits for the page, which usually answers within 20 ms
_SIDEBAR_OPEN = "The sidebar at the right, Kernel monitor, shows this kernel."
_SIDEBAR_ASKED = (
    "No sidebar has answered yet: it opens once JupyterLab's kernel-monitor extension is connected to this kernel. "
    "In a front end without it (VS Code, Colab), %monitor shows the same in the cell."
)
_NO_SIDEBAR = "There is no page here that has a sidebar: %monitor shows what is measured."


@magics_class
class MonitorMagics(Magics):
    """The `%monitor` magic, and what it prints under cells."""

    def __init__(self, shell: InteractiveShell, monitor: Monitor) -> None:
        super().__init__(shell)
        self._monitor = monitor
        self._parser = _parser()
        self.cells = Cells(monitor)
        self._answers = Answers()
        self._shown: list[tuple[Any, dict[str, Any]]] = []

    @line_cell_magic("monitor")  # type: ignore[arg-type]  # IPython types its decorator as taking nothing
    def monitor(self, line: str, cell: str | None = None) -> None:
        """Show or control the monitor."""
        if cell is not None:  # only for a call of the magic: `cells` handles cells that begin with it
            self.shell.run_cell(f"%%monitor {line}\n{cell}").raise_error()  # type: ignore[union-attr]
            return
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%monitor: {error} in {line!r}. Quote it as in a shell.") from None
        if words in (["--help"], ["help"]):
            _say(_USAGE)
            return
        args = self._parser.parse_args(words)
        try:
            self._run(args)
        except MonitorError as exc:  # without a traceback: the message has cause and remedy
            raise UsageError(printable(f"{type(exc).__name__}: {exc}")) from exc
        except Exception as error:
            if args.command not in (None, "start", "sidebar"):
                raise
            _say(f"Nothing can be shown here: {cause(error)}. The next cells run as ever; %monitor status has more.")

    def _run(self, args: argparse.Namespace) -> None:
        monitor = self._monitor
        match args.command:
            case None:
                self._show()
            case "start":
                monitor.start(interval=args.interval, history=args.history, charts=args.charts, record=args.record)
                self._say_news()
            case "sidebar":
                self._sidebar()
            case "scaling":
                _say(str(monitor.scaling(args.job, alone=args.alone)))
            case "stop":
                monitor.stop()
                self._update_summaries()
            case "status":
                _say(monitor.status())
            case "show":
                _say(f"charts: {', '.join(monitor.configure(charts=args.charts)['charts'])}")
            case "switch":
                self._switch(args.backend, args.loader, confirmed=args.yes)
            case "set":
                state = monitor.set(loader=args.loader, **dict(args.knobs))
                now = ", ".join(f"{name} {value}" for name, value in state["knobs"].items() if value is not None)
                _say(f"{state['name']}: {now}")
            case "verdict":
                _say("\n".join([analysis_text(analyse(monitor.snapshot())), *offer_lines(monitor)]))
            case "diagnose" if args.cancel:
                _say("cancelled" if monitor.cancel_diagnosis() else "There is no diagnosis to cancel.")
            case "diagnose":
                monitor.diagnose(args.loader, seconds=args.seconds, confirmed=args.yes, wait=False)
                name = "the loader" if (diagnosis := monitor.diagnosing) is None else diagnosis["name"]
                later = Later(f"diagnosing {name}", lambda: diagnosis_text(monitor.diagnosing))
                _say(self._answers.expect("diagnose", later))
            case "tune" if args.cancel:
                _say("cancelled" if monitor.cancel_diagnosis() else "There is no tune to cancel.")
            case "tune" if args.undo:
                monitor.undo_tune()
                _say("" if (tuned := monitor.diagnosing) is None else tuned["message"])
            case "tune":
                monitor.tune(args.loader, seconds=args.seconds, wait=False)
                name = "the loader" if (tuned := monitor.diagnosing) is None else tuned["name"]
                _say(self._answers.expect("tune", Later(f"tuning {name}", lambda: diagnosis_text(monitor.diagnosing))))
            case "mark":
                _say(f"marked: {monitor.mark(' '.join(args.words))['label']}")
            case "price":
                self._price(" ".join(args.price))
            case "export":
                _say(f"wrote {monitor.export(args.path)}")
            case "code":
                self._code(args.path, args.loader)
            case "record":
                self._record(on=args.record == "on")
            case "sessions":
                _say(table(monitor.opened.listing()))
            case "open":
                self._open(args.session)
            case command:
                answer = _MAGICS[command].run(monitor, args)
                _say(self._answers.expect(command, answer) if isinstance(answer, Later) else answer)

    def after_cell(self) -> None:
        """Called after each cell: show results that are ready, and what the machine did."""
        self._monitor.profiler.end_here()
        for words in self._answers.ready():
            _say(words)
        lines = self.cells.end()
        if lines is not None and self._in_kernel:
            display(_tables("%%monitor", "This cell", lines), raw=True)
        elif lines is not None:
            _say(text_table("%%monitor", lines))
        # Not once a page has asked for live charts: an update would redraw the output of the cell.
        if not self._monitor.hub.ever_subscribed:
            self._update_summaries()

    @property
    def _in_kernel(self) -> bool:
        return getattr(self.shell, "kernel", None) is not None

    def _sidebar(self) -> None:
        self._monitor.start()
        self._say_news()
        page = page_of_cell(self.shell)
        if page is None:
            _say(_NO_SIDEBAR)
            return
        self._monitor.sidebar.ask(page)
        self._monitor.publisher.notify("sidebar", page=page)
        _say(_SIDEBAR_OPEN if self._monitor.sidebar.wait(_SIDEBAR_S) else _SIDEBAR_ASKED)

    def _say_news(self) -> None:
        news = self._monitor.news()
        if news is not None:
            _say(news)

    def _record(self, *, on: bool) -> None:
        self._monitor.configure(record=on)
        if on and not self._monitor.running:
            _say("The session will be recorded once the monitor runs: %monitor start.")
        else:
            _say(recording_words(self._monitor.recording))

    def _open(self, session: str | None) -> None:
        recorded = self._monitor.opened.open(session)
        text = recorded.words()
        if self._in_kernel:
            display(self._picture(recorded.dashboard(), text, f"<p>{escape(text)}</p>"), raw=True)
        else:
            _say(text)

    def _show(self) -> None:
        self._monitor.start()
        self._say_news()
        if not self._in_kernel:
            _say(text_table("kernel_monitor", summary_rows(self._monitor)))
            return
        data = self._picture(self._monitor.dashboard(), "", "")
        handle = display(self._with_summary(data), raw=True, display_id=True)
        self._shown = [*self._shown[-3:], (handle, data)]

    def _picture(self, dashboard: Dashboard, text: str, html: str) -> dict[str, Any]:
        """Return a widget's output, with text and HTML for front ends without widgets."""
        bundle = dashboard._repr_mimebundle_()
        if bundle is None:
            raise MonitorError("This front end gives widgets no display: use %monitor status and %monitor export.")
        return {**bundle[0], "text/plain": text, "text/html": html}

    def _switch(self, backend: str, loader: str | None, *, confirmed: bool) -> None:
        question = None if confirmed else self._monitor.question(backend, loader=loader)
        if question is not None:
            which = "" if loader is None else f" --loader {shlex.quote(loader)}"
            _say(f"Warning: {question}\nNothing was switched. If you mean it: %monitor switch {backend}{which} --yes")
            return
        state = self._monitor.switch(backend, loader=loader, confirmed=True)
        _say(f"{state['name']}: {state['status']}")

    def _code(self, path: str | None, loader: str | None) -> None:
        written = self._monitor.code(loader)
        _say(written if path is None else f"wrote {output.write(path, written)}")

    def _price(self, words: str) -> None:
        settings = self._monitor.configure(price="" if words == "off" else words)
        price, node, currency = settings["price"], settings.get("node_price"), settings["currency"]
        beside = "" if node is None else f", and {node:g} {currency} of each CPU machine"
        _say("no price" if price is None else f"price: {price:g} {currency} an hour{beside}".replace("  ", " "))

    def _update_summaries(self) -> None:
        """Update the static summaries, which headless runs and reopened notebooks show."""
        for handle, data in self._shown:
            handle.update(self._with_summary(data), raw=True)

    def _with_summary(self, data: dict[str, Any]) -> dict[str, Any]:
        return {**data, **_tables("kernel_monitor", "kernel_monitor", summary_rows(self._monitor))}


def _tables(title: str, caption: str, rows: list[tuple[str, str]]) -> dict[str, str]:
    return {"text/plain": text_table(title, rows), "text/html": html_table(caption, rows)}


def _say(text: str) -> None:
    """Print text that may contain names of files and loaders, made safe."""
    print(printable(text))


class _Parser(argparse.ArgumentParser):
    """Its errors are one line: the nearest word that there is, or the usage of the command that was called."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Options that no command takes are named with the one that was meant."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = "" if found.command is None else f" {found.command}"
            said = next((word for word in unknown if word.startswith("-")), unknown[0])
            meant = _nearest(said.partition("=")[0], re.findall(r"--[a-z-]+", _usage(found.command)))
            if meant is None:
                takes = _usage(found.command).strip()
                raise UsageError(f"%monitor{command}: there is no {said!r} here. It is called as {takes}")
            raise UsageError(f"%monitor{command}: there is no {said!r}: did you mean {meant}?")
        return found

    def error(self, message: str) -> NoReturn:
        _, _, command = self.prog.partition(" ")
        if not command and (wrong := re.search(r"invalid choice: '(.*?)'", message)) is not None:
            if (absent := missing_command(wrong[1])) is not None:
                raise UsageError(str(absent))
            meant = _nearest(wrong[1], COMMANDS)
            if meant is None:
                raise UsageError(f"There is no %monitor {wrong[1]}. %monitor help names all commands.")
            raise UsageError(f"There is no %monitor {wrong[1]}: did you mean %monitor {meant}?")
        stop = "" if message.endswith("?") else "."
        raise UsageError(f"%monitor {command}: {message}{stop} It is called as {_usage(command or None)}")


def _nearest(word: str, words: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word.lower(), words, 1, NEAR)), None)


def _usage(command: str | None) -> str:
    """Return how a command is called: its first lines in the help, without what they say of it."""
    wanted = "%monitor" if command is None else f"%monitor {command}"
    return next(
        found[1].rstrip()
        for one in _USAGE.splitlines()
        if (found := re.match(rf"({re.escape(wanted)}(?: .*?)??)(?:  |$)", one)) is not None
    )


def _knob(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if name not in KNOBS:
        meant = _nearest(name, KNOBS)
        better = "" if meant is None else f": did you mean {meant}={value}?"
        raise argparse.ArgumentTypeError(f"{text!r} is none of workers=N, prefetch=N, threads=N{better}")
    try:
        return name, int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name} is a whole number, not {value!r}") from None


def _parser() -> _Parser:
    made = _Parser(prog="%monitor", add_help=False)
    commands = made.add_subparsers(dest="command")

    def add(name: str, *, loader: bool = False) -> argparse.ArgumentParser:
        command = commands.add_parser(name, add_help=False)
        if loader:
            command.add_argument("--loader", default=None)
        return command

    start = add("start")
    start.add_argument("--interval", type=float, default=None)
    start.add_argument("--history", type=float, default=None)
    start.add_argument("--charts", type=lambda text: [chart.strip() for chart in text.split(",")], default=None)
    start.add_argument("--no-record", dest="record", action="store_false", default=None)
    for name in ("sidebar", "stop", "status", "verdict", "sessions"):
        add(name)
    switch = add("switch", loader=True)
    switch.add_argument("backend")
    switch.add_argument("--yes", action="store_true")
    knobs = add("set", loader=True)
    knobs.add_argument("knobs", nargs="+", type=_knob, metavar="workers=N|prefetch=N|threads=N")
    diagnose = add("diagnose", loader=True)
    diagnose.add_argument("--seconds", type=float, default=8.0)
    diagnose.add_argument("--yes", action="store_true")
    diagnose.add_argument("--cancel", action="store_true")
    tune = add("tune", loader=True)
    tune.add_argument("--seconds", type=float, default=60.0)
    tune.add_argument("--cancel", action="store_true")
    tune.add_argument("--undo", action="store_true")
    scaling = add("scaling")
    scaling.add_argument("job", nargs="?", type=int, default=None)
    scaling.add_argument("--alone", default=None)
    add("mark").add_argument("words", nargs="+", metavar="WORDS")
    add("price").add_argument("price", nargs="+", metavar="2.50€|off")
    add("export").add_argument("path")
    add("code", loader=True).add_argument("path", nargs="?", default=None, metavar="FILE")
    add("show").add_argument("charts", nargs="+", metavar="CHART")
    add("record").add_argument("record", choices=("on", "off"))
    add("open").add_argument("session", nargs="?", default=None)
    for magic in _MAGICS.values():
        magic.add_arguments(add(magic.name))
    return made
