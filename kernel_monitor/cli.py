"""The command line: `kernel-monitor COMMAND …`.

Exit status 0: done; 1: done, and what was checked is not as it should be; 2: a sentence on stderr says what to do.
Each command is one function that adds its parser, listed in COMMANDS, and imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ._version import __version__
from .errors import MonitorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        print(f"kernel-monitor: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kernel-monitor: interrupted", file=sys.stderr)
        return 130


def _demo_data(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo-data",
        help="make a folder of photograph-like JPEGs to train on",
        description="Makes JPEGs of about 500 x 375 pixels and 110 to 150 kB, in one folder per class, as "
        "torchvision's ImageFolder reads them. A set that is there is kept, an interrupted one finished.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="the folder; it is created if need be")
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
        metavar=("SESSION", "DEST"),
        help="copy a session (its file, its id or the beginning of that) to DEST, a file or folder (default: here)",
    )
    parser.set_defaults(run=_run_sessions)


def _run_sessions(options: argparse.Namespace) -> int:
    from .recorded import Opened, table

    if options.copy is not None:
        if len(options.copy) > 2:
            raise MonitorError("--copy takes one session and one destination (see kernel-monitor sessions --help)")
        from .record.reader import open_session

        session = open_session(options.copy[0])
        target = Path(options.copy[1] if len(options.copy) == 2 else ".").expanduser()
        if target.is_dir():
            target /= Path(session.path).name
        if target.exists():
            raise MonitorError(f"{target} exists already: name another file")
        print(session.copy(target))
        return 0
    found = Opened().listing()
    print(json.dumps(found, indent=1) if options.json else table(found))
    return 0


def _report(commands: Commands) -> None:
    parser = commands.add_parser(
        "report",
        help="write a recorded session as one HTML file",
        description="Writes a recorded session as one HTML file that opens offline.",
    )
    parser.add_argument("session", metavar="SESSION", help="its file, its id or the beginning of that")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the HTML file")
    parser.set_defaults(run=_run_report)


def _run_report(options: argparse.Namespace) -> int:
    from .recorded import Opened

    print(f"wrote {Opened().open(options.session).export(options.output)}")
    return 0


COMMANDS: tuple[Callable[[Commands], None], ...] = (_demo_data, _sessions, _report)


if __name__ == "__main__":
    sys.exit(main())
