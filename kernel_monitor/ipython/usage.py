"""The commands of `%monitor`: usage text and argument parser."""

from __future__ import annotations

import argparse
from typing import NoReturn

from IPython.core.error import UsageError

from ..requests.arguments import KNOBS

USAGE = """%monitor                        show the dashboard (starts the monitor if needed)
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
%monitor profile [N] [--loader LOADER]
                                torch.profiler over the next N steps (default 10); the result stands under the cell
%monitor mark WORDS             begin a new segment here, by this name
%monitor price 2.50€|off        what an hour of this machine costs
%monitor export PATH            write everything as one HTML file
%monitor record on|off          go on with the recording, or leave it
%monitor sessions               the recorded sessions
%monitor open [SESSION]         the dashboard of a recorded session: a path, an id or its beginning; or the newest
%%monitor [LABEL]               as a cell's first line: what the machine did meanwhile, under it when it ends"""


class Parser(argparse.ArgumentParser):
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


def parser() -> Parser:
    made = Parser(prog="%monitor", add_help=False)
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
    add("profile", loader=True).add_argument("steps", nargs="?", type=int, default=10, metavar="N")
    add("mark").add_argument("words", nargs="+", metavar="WORDS")
    add("price").add_argument("price", nargs="+", metavar="2.50€|off")
    add("export").add_argument("path")
    add("show").add_argument("charts", nargs="+", metavar="CHART")
    add("record").add_argument("record", choices=("on", "off"))
    add("open").add_argument("session", nargs="?", default=None)
    return made
