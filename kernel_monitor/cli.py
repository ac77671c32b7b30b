"""The command line: `kernel-monitor COMMAND …`.

Exit status 0: done; 1: done, and what was checked is not as it should be; 2: a sentence on stderr says what to do;
3: what was to be checked cannot be.
Each command is one function that adds its parser, listed in COMMANDS, and imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ._version import __version__
from .errors import MonitorError, SessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .recorded import RecordedSession

    Commands = argparse._SubParsersAction["_Parser"]


class _Parser(argparse.ArgumentParser):
    """argparse without the usage block before an error: one sentence, and where to read more."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command (`arguments` without the program's name; those of the process by default)."""
    parser = _Parser(prog="kernel-monitor", description="Tools around kernel_monitor, the live monitor for notebooks.")
    parser.add_argument("--version", action="version", version=f"kernel-monitor {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for add in COMMANDS:
        add(commands)
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (MonitorError, OSError) as error:
        print(f"kernel-monitor: {_sentence(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kernel-monitor: interrupted", file=sys.stderr)
        return 130


def _sentence(error: MonitorError | OSError) -> str:
    """An error in words; of one that the system gave, without its number."""
    if isinstance(error, MonitorError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"


def _name(text: str) -> str:
    """An argument that names something, as argparse's `type`: an empty one is most often a variable that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty, and must name something")
    return text


def _demo_data(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo-data",
        help="make a folder of photograph-like JPEGs to train on",
        description="Makes JPEGs of about 500 x 375 pixels and 110 to 150 kB, in one folder per class, as "
        "torchvision's ImageFolder reads them. A set that is there is kept, an interrupted one finished.",
    )
    parser.add_argument("directory", metavar="DIR", type=_name, help="the folder; it is created if need be")
    parser.add_argument("--images", metavar="N", type=int, default=2048, help="number of files (default: 2048)")
    parser.add_argument("--classes", metavar="K", type=int, default=10, help="number of classes (default: 10)")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="equal seeds give equal files (default: 0)")
    parser.add_argument(
        "--check", action="store_true", help="then time decoding them against photographs; status 1 if they differ"
    )
    parser.set_defaults(run=_run_demo_data)


def _run_demo_data(options: argparse.Namespace) -> int:
    from .demo import demo_data

    root = demo_data(options.directory, images=options.images, classes=options.classes, seed=options.seed)
    print(f"{options.images:,} images in {options.classes} classes: {root}")
    if not options.check:
        return 0
    from .demo.check import compare

    comparison = compare(root)
    print(comparison)
    faults = comparison.faults()
    for fault in faults:
        print(f"kernel-monitor: the demo set is not like photographs: {fault}", file=sys.stderr)
    if not faults:
        print("the demo set decodes like photographs (within 25 %), and every file has the promised size")
    return 1 if faults else 0


def _sessions(commands: Commands) -> None:
    parser = commands.add_parser(
        "sessions",
        help="list the recorded sessions, or copy one",
        description="Lists the recorded sessions, newest first. A copy of one that is being recorded is whole up to "
        "the moment of copying.",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, for other programs")
    parser.add_argument(
        "--copy",
        nargs="+",
        type=_name,
        metavar=("SESSION", "DEST"),
        help="copy a session (its file, its id or the beginning of that) to DEST, a file or folder (default: here)",
    )
    parser.set_defaults(run=_run_sessions)


def _run_sessions(options: argparse.Namespace) -> int:
    from .recorded import Opened, table

    if options.copy is not None:
        if len(options.copy) > 2:
            raise MonitorError("--copy takes one session and one destination (see kernel-monitor sessions --help)")
        from .output import check, why
        from .record.reader import open_session

        session = open_session(options.copy[0])
        target = Path(options.copy[1] if len(options.copy) == 2 else ".").expanduser()
        if target.is_dir():
            target /= Path(session.path).name
        if target.exists() or target.is_symlink():
            raise MonitorError(f"{target} exists already: name another file")
        check(target)
        try:
            print(session.copy(target))
        except SessionError as error:
            if isinstance(error.__cause__, OSError):
                raise MonitorError(f"Cannot write {target}: {why(error.__cause__, target)}.") from error
            raise
        return 0
    found = Opened().listing()
    print(json.dumps(found, indent=1) if options.json else table(found))
    return 0


def _report(commands: Commands) -> None:
    parser = commands.add_parser(
        "report",
        help="write a recorded session as one HTML file, or what can be said of it as JSON",
        description="Writes a recorded session as one HTML file that opens offline; with --json the same as data, to "
        "stdout or to FILE.",
    )
    parser.add_argument("session", metavar="SESSION", type=_name, help="its file, its id or the beginning of that")
    parser.add_argument("-o", "--output", metavar="FILE", type=_name, help="the file, or - for stdout; needed for HTML")
    parser.add_argument("--json", action="store_true", help="verdict, stretches, rules, costs … as JSON")
    _add_price(parser)
    parser.set_defaults(run=_run_report)


def _add_price(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--price", metavar="P", type=_name, help="of an hour, such as 2.50€, instead of the recorded one"
    )


def _run_report(options: argparse.Namespace) -> int:
    from .output import check, descriptor, write

    if options.output is None and not options.json:
        raise MonitorError("report needs -o FILE, or --json (see kernel-monitor report --help)")
    to_stdout = options.output in (None, "-")
    if not to_stdout:
        check(options.output)
    text = _as_json(options) if options.json else _as_html(options)
    if to_stdout:
        sys.stdout.buffer.write(text.encode())
    else:
        written = write(options.output, text)
        # Not into what was asked for.
        print(f"wrote {written}", file=sys.stderr if descriptor(written) == 1 else sys.stdout)
    return 0


def _as_html(options: argparse.Namespace) -> str:
    from .report.client import render_in_process

    # The session is read while the process that renders it starts and imports Bokeh.
    return render_in_process(lambda: _read(options).snapshot)


def _as_json(options: argparse.Namespace) -> str:
    from .diagnose.analysis import analyse
    from .diagnose.model import plain
    from .report.privacy import clean

    session = _read(options)
    snapshot = clean(session.snapshot)
    label = {key: value for key, value in session.label().items() if key != "path"}
    said = {"session": session.id, **label, "facts": snapshot.facts, **analyse(snapshot).to_json()}
    return json.dumps(plain(said), indent=1) + "\n"


def _read(options: argparse.Namespace) -> RecordedSession:
    """The session that is meant, at the price that is meant."""
    from dataclasses import replace

    from .recorded import Opened

    price = None if options.price is None else _price(options.price)
    session = Opened().open(options.session)
    if price is not None:
        facts = {**session.snapshot.facts, "price": price[0], "currency": price[1]}
        session.snapshot = replace(session.snapshot, facts=facts)
    return session


def _price(words: str) -> tuple[float | None, str]:
    """The price of an hour and its currency. Raises MonitorError where it is none."""
    from .live.settings import Settings

    settings = Settings().changed(price=words)
    return settings.price, settings.currency


def _compare(commands: Commands) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare the loops of two recorded sessions",
        description="Compares the time per image (without images: per step) of the loaders that two recorded sessions "
        "have in common, with the spread of their steps. Exit status 0: good; 1: surely slower than allowed; 2: an "
        "error; 3: nothing can be compared.",
    )
    parser.add_argument(
        "a", metavar="A", type=_name, help="the session before: its file, its id or the beginning of that"
    )
    parser.add_argument("b", metavar="B", type=_name, help="the session after; may be the same")
    parser.add_argument("--max-slowdown", metavar="5%", type=_share, help="how much longer an image may take")
    parser.add_argument("--loader", metavar="NAME", type=_name, help="only this loader")
    parser.add_argument(
        "--stretch",
        metavar="KEY",
        type=_name,
        action="append",
        default=[],
        help="a stretch by its key (train/2) in both; given twice, of A and of B",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, for other programs")
    _add_price(parser)
    parser.set_defaults(run=_run_compare)


def _share(text: str) -> float:
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 5%")
    return share


def _run_compare(options: argparse.Namespace) -> int:
    from .diagnose.compare import Prices, compare, status, table
    from .diagnose.model import plain
    from .recorded import Opened, interpreted

    if len(options.stretch) > 2:
        raise MonitorError("--stretch is given once, or twice: of A and of B (see kernel-monitor compare --help)")
    price = None if options.price is None else _price(options.price)
    opened = Opened()
    snapshots = [opened.open(one).snapshot for one in (options.a, options.b)]
    hours = [price[0] if price is not None else one.facts.get("price") for one in snapshots]
    currencies = {price[1]} if price is not None else {str(one.facts.get("currency") or "") for one in snapshots}
    if None not in hours and len(currencies) > 1:
        raise MonitorError(f"The prices are in {' and '.join(sorted(currencies))}: say one with --price.")
    with interpreted(f"{options.a} and {options.b}", "a comparison"):
        found = compare(
            *snapshots,
            loader=options.loader,
            keys=options.stretch,
            allowed=options.max_slowdown,
            prices=Prices(hours[0], hours[1]),
        )
    if options.json:
        print(json.dumps({"status": status(found), "allowed": options.max_slowdown, "loaders": plain(found)}, indent=1))
    else:
        print(table(found, max(currencies)))
    return status(found)


def _warm(commands: Commands) -> None:
    parser = commands.add_parser(
        "warm",
        help="make this machine's charts ready, so that the first notebook does not wait for them",
        description="Makes the chart documents that notebooks on this machine need and keeps them in the user's cache "
        "folder (or in that of KERNEL_MONITOR_CACHE). %load_ext does so, too, in the background.",
    )
    parser.set_defaults(run=_run_warm)


def _run_warm(_options: argparse.Namespace) -> int:
    from .stream.documents import cache_folder
    from .warm import warm

    made = warm(cache_folder())
    print(f"{made} chart documents made" if made else "the charts of this machine are ready")
    return 0


COMMANDS: tuple[Callable[[Commands], None], ...] = (_demo_data, _sessions, _report, _compare, _warm)


if __name__ == "__main__":
    sys.exit(main())
