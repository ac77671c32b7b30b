"""The command line: `kernel-monitor COMMAND …`.

Exit status 0: done; 1: done, and a check failed; 2: an error, with a message on stderr; 3: nothing can be checked.
What a command needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ._version import __version__
from .errors import MonitorError, SessionError
from .plugins import contributions, missing_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .recorded import RecordedSession


class _Parser(argparse.ArgumentParser):
    """argparse without the usage text before an error; an argument of the type `name` may not be empty."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("type", "name", _name)

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)$", message)
        if wrong is not None:
            if (absent := missing_command(wrong[1])) is not None:
                self.exit(2, f"{self.prog}: {absent}\n")
            names = re.findall(r"[a-z-]+", wrong[2])
            near = difflib.get_close_matches(wrong[1], names, 1)
            better = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            message = f"there is no command {wrong[1]!r}: {better}"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` are without the program's name, by default those of the process."""
    try:
        options = _parser().parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except (MonitorError, OSError) as error:
        print(f"kernel-monitor: {_sentence(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kernel-monitor: interrupted", file=sys.stderr)
        return 130


def _sentence(error: MonitorError | OSError) -> str:
    """Return an error as a sentence; an OSError without its number."""
    if isinstance(error, MonitorError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"


def _parser() -> _Parser:
    parser = _Parser(prog="kernel-monitor", description="Tools around kernel_monitor, the live monitor for notebooks.")
    parser.add_argument("--version", action="version", version=f"kernel-monitor {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(run: Callable[[argparse.Namespace], int], name: str, summary: str, description: str) -> _Parser:
        command = commands.add_parser(name, help=summary, description=description)
        command.set_defaults(run=run)
        return command

    demo = add(
        _demo_data,
        "demo-data",
        "make a folder of photograph-like JPEG images to train on",
        "Makes JPEGs of about 500 x 375 pixels and 110 to 150 kB, in one folder per class, as torchvision's "
        "ImageFolder reads them. A set that is there is kept, an interrupted one finished.",
    )
    demo.add_argument("directory", metavar="DIR", type="name", help="the folder; it is created if need be")
    demo.add_argument("--images", metavar="N", type=int, default=2048, help="number of files (default: 2048)")
    demo.add_argument("--classes", metavar="K", type=int, default=10, help="number of classes (default: 10)")
    demo.add_argument("--seed", metavar="S", type=int, default=0, help="equal seeds give equal files (default: 0)")

    sessions = add(
        _sessions,
        "sessions",
        "list the recorded sessions, or copy one",
        "Lists the recorded sessions, newest first. A copy of one that is being recorded is whole up to the moment of "
        "copying.",
    )
    sessions.add_argument("--json", action="store_true", help="as JSON, for other programs")
    copied = "copy a session (its file, its id or the beginning of that) to DEST, a file or folder (default: here)"
    sessions.add_argument("--copy", nargs="+", type="name", metavar=("SESSION", "DEST"), help=copied)

    report = add(
        _report,
        "report",
        "write the report of a recorded session as one HTML file, or as JSON",
        "Writes the report of a recorded session as one HTML file that opens offline; with --json the same as data, to "
        "stdout or to FILE.",
    )
    report.add_argument("session", metavar="SESSION", type="name", help="its file, its id or the beginning of that")
    report.add_argument("-o", "--output", metavar="FILE", type="name", help="the file, or - for stdout; HTML needs it")
    report.add_argument("--json", action="store_true", help="what held the training up, what it costs … as JSON")

    compare = add(
        _compare,
        "compare",
        "compare the speed of two recorded sessions",
        "Compares the time per image (without images: per step) of the loaders that two recorded sessions have in "
        "common, and says how exact that is. Exit status 0: not slower than allowed; 1: slower; 2: an error; 3: "
        "nothing can be compared.",
    )
    before = "the session before: its file, its id or the beginning of that"
    compare.add_argument("a", metavar="A", type="name", help=before)
    compare.add_argument("b", metavar="B", type="name", help="the session after; may be the same")
    compare.add_argument("--max-slowdown", metavar="5%", type=_share, help="how much longer an image may take")
    compare.add_argument("--loader", metavar="NAME", type="name", help="only this loader")
    parts = "only this part of a loader's run, such as train/2: the name in the report; given twice, of A and of B"
    compare.add_argument("--segment", metavar="KEY", type="name", action="append", default=[], help=parts)
    # The former name, which scripts may use.
    compare.add_argument("--stretch", dest="segment", type="name", action="append", help=argparse.SUPPRESS)
    compare.add_argument("--json", action="store_true", help="as JSON, for other programs")
    for priced in (report, compare):
        price = "of an hour, such as 2.50€ (or 2.50€+0.30 with that of each CPU machine), instead of the recorded one"
        priced.add_argument("--price", metavar="P", type=_price, help=price)

    for command in contributions("COMMANDS"):
        command.add_arguments(add(command.run, command.name, command.help, command.description))

    add(
        _warm,
        "warm",
        "prepare the charts, so that the first notebook does not wait for them",
        "Draws the empty charts that notebooks on this machine need and keeps them in the user's cache folder (or "
        "in that of KERNEL_MONITOR_CACHE). %load_ext does so, too, in the background.",
    )
    return parser


def _name(text: str) -> str:
    """Check a name, as argparse's type `name`: an empty one is most often a shell variable that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty, and must name something")
    return text


def _price(text: str) -> tuple[float | None, float | None, str]:
    """Return the price of an hour, that of a node and the currency; MonitorError if it is not a price."""
    from .runtime.settings import Settings

    settings = Settings().changed(price=_name(text))
    return settings.price, settings.node_price, settings.currency


def _share(text: str) -> float:
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 5%")
    return share


def _demo_data(options: argparse.Namespace) -> int:
    from .demo import demo_data

    root = demo_data(options.directory, images=options.images, classes=options.classes, seed=options.seed)
    print(f"{options.images:,} images in {options.classes} classes: {root}")
    return 0


def _sessions(options: argparse.Namespace) -> int:
    from .recorded import Opened, table

    if options.copy is not None:
        if len(options.copy) > 2:
            raise MonitorError("--copy takes one session and one destination (see kernel-monitor sessions --help)")
        from .output import check, error_words
        from .own_files import expanded
        from .record.reader import open_session

        session = open_session(options.copy[0])
        target = expanded(options.copy[1] if len(options.copy) == 2 else ".")
        if target.is_dir():
            target /= Path(session.path).name
        if target.exists() or target.is_symlink():
            raise MonitorError(f"{target} exists already: name another file")
        check(target)
        try:
            print(session.copy(target))
        except SessionError as error:
            if isinstance(error.__cause__, OSError):
                raise MonitorError(f"Cannot write {target}: {error_words(error.__cause__, target)}.") from error
            raise
        return 0
    found = Opened().listing()
    print(json.dumps(found, indent=1) if options.json else table(found))
    return 0


def _report(options: argparse.Namespace) -> int:
    from .output import check, descriptor, write

    if options.output is None and not options.json:
        raise MonitorError("report needs -o FILE, or --json (see kernel-monitor report --help)")
    to_stdout = options.output in (None, "-")
    if not to_stdout:
        check(options.output)
    if options.json:
        text = _as_json(options)
    else:
        from .stream.render_process import render_report

        # The session is read while the rendering process starts and imports Bokeh.
        text = render_report(lambda: _read(options.session, options.price).snapshot)
    if to_stdout:
        sys.stdout.buffer.write(text.encode())
    else:
        written = write(options.output, text)
        # Not into the output itself.
        print(f"wrote {written}", file=sys.stderr if descriptor(written) == 1 else sys.stdout)
    return 0


def _as_json(options: argparse.Namespace) -> str:
    from .analysis.results import plain
    from .analysis.session_analysis import analyse
    from .report.privacy import clean

    session = _read(options.session, options.price)
    snapshot = clean(session.snapshot)
    label = {key: value for key, value in session.label().items() if key != "path"}
    content = {"session": session.id, **label, "facts": snapshot.facts, **analyse(snapshot).to_json()}
    return json.dumps(plain(content), indent=1) + "\n"


def _read(name: str, price: tuple[float | None, float | None, str] | None) -> RecordedSession:
    """Return the session of that name, with the price of the command line if there is one."""
    from .recorded import Opened

    session = Opened().open(name)
    if price is not None:
        facts = {**session.snapshot.facts, "price": price[0], "node_price": price[1], "currency": price[2]}
        session.snapshot = replace(session.snapshot, facts=facts)
    return session


def _compare(options: argparse.Namespace) -> int:
    from .analysis.job_figures import job_comparisons, job_figures
    from .analysis.job_figures import plain as plain_jobs
    from .analysis.results import plain
    from .analysis.session_comparison import compare, status, table
    from .recorded import interpreted

    if len(options.segment) > 2:
        raise MonitorError("--segment is given once, or twice: of A and of B (see kernel-monitor compare --help)")
    snapshots = [_read(name, options.price).snapshot for name in (options.a, options.b)]
    hours = [snapshot.facts.get("price") for snapshot in snapshots]
    currencies = {str(snapshot.facts.get("currency") or "") for snapshot in snapshots}
    if None not in hours and len(currencies) > 1:
        raise MonitorError(f"The prices are in {' and '.join(sorted(currencies))}: say one with --price.")
    with interpreted(f"{options.a} and {options.b}", "a comparison"):
        found = compare(
            *snapshots,
            loader=options.loader,
            keys=options.segment,
            allowed=options.max_slowdown,
            prices=hours,
        )
        jobs = [plain_jobs(job_figures(snapshot)) for snapshot in snapshots]
        said = job_comparisons(*snapshots)
    if options.json:
        of_jobs = {"jobs": dict(zip("ab", jobs, strict=True))} if any(jobs) else {}
        whole = {"status": status(found), "allowed": options.max_slowdown, "loaders": plain(found), **of_jobs}
        print(json.dumps(whole, indent=1))
    else:
        print("\n".join([table(found, max(currencies)), *said]))
    return status(found)


def _warm(_options: argparse.Namespace) -> int:
    from .stream.chart_documents import cache_folder
    from .warm import warm

    made = warm(cache_folder())
    print("the charts of this machine are ready" + (f" ({made} made now)" if made else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
