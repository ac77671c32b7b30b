"""The words after ``%monitor``, and what they mean."""

from __future__ import annotations

import argparse
from typing import NoReturn

from IPython.core.error import UsageError

from ..stream.requests import KNOBS

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
%monitor mark WORDS             begin a new stretch here, by this name
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
    start = commands.add_parser("start", add_help=False)
    start.add_argument("--interval", type=float, default=None)
    start.add_argument("--history", type=float, default=None)
    start.add_argument("--charts", type=lambda text: [one.strip() for one in text.split(",")], default=None)
    start.add_argument("--no-record", dest="record", action="store_false", default=None)
    commands.add_parser("sidebar", add_help=False)
    commands.add_parser("stop", add_help=False)
    commands.add_parser("status", add_help=False)
    switch = commands.add_parser("switch", add_help=False)
    switch.add_argument("backend")
    switch.add_argument("--loader", default=None)
    switch.add_argument("--yes", action="store_true")
    knobs = commands.add_parser("set", add_help=False)
    knobs.add_argument("knobs", nargs="+", type=_knob, metavar="workers=N|prefetch=N|threads=N")
    knobs.add_argument("--loader", default=None)
    commands.add_parser("verdict", add_help=False)
    diagnose = commands.add_parser("diagnose", add_help=False)
    diagnose.add_argument("--loader", default=None)
    diagnose.add_argument("--seconds", type=float, default=8.0)
    diagnose.add_argument("--yes", action="store_true")
    diagnose.add_argument("--cancel", action="store_true")
    profile = commands.add_parser("profile", add_help=False)
    profile.add_argument("steps", nargs="?", type=int, default=10, metavar="N")
    profile.add_argument("--loader", default=None)
    mark = commands.add_parser("mark", add_help=False)
    mark.add_argument("words", nargs="+", metavar="WORDS")
    price = commands.add_parser("price", add_help=False)
    price.add_argument("price", nargs="+", metavar="2.50€|off")
    export = commands.add_parser("export", add_help=False)
    export.add_argument("path")
    show = commands.add_parser("show", add_help=False)
    show.add_argument("charts", nargs="+", metavar="CHART")
    record = commands.add_parser("record", add_help=False)
    record.add_argument("record", choices=("on", "off"))
    commands.add_parser("sessions", add_help=False)
    opened = commands.add_parser("open", add_help=False)
    opened.add_argument("session", nargs="?", default=None)
    return made
