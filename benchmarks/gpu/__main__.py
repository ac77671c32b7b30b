"""All that only a machine with an NVIDIA GPU can show: `python -m benchmarks.gpu [--parts NAME…] [--out FOLDER]`.

No network is needed. Each part runs in a process of its own, at most 8 minutes. A run that is cut off goes on where it
was: a part that ran to its end, and of which neither command, machine, versions nor sources have changed, is not run
again. Results go to docs/results/<GPU>-<date>; the README there has the machine, the parts, and which promises of the
documents were confirmed or refuted.

Exit status: 0, or 1 where a part or a promise failed, 3 where there is no GPU, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import processes, promises
from .parts import PARTS, ROOT, Part, fingerprint, unmet
from .results import FAILED, MET, MISSED, NOT_RUN, OUTDATED, STOPPED, Record, Results, lines, page

NO_GPU = 3
INTERRUPTED = 130
CHECKS_LIMIT_S = 180.0
SAID = 200  # characters of the last words of a part that failed
NEEDED = ("GPU", "CUDA")  # without one of these there is no GPU here


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and print what came."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, help="folder of the results, also of a run that is to go on")
    parser.add_argument("--again", action="store_true", help="run what is done, too")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever cuts a run off: what is done is kept

    checks = check()
    for name, value in checks["found"].items():
        print(f"{name:15} {value}")
    for name, sentence in checks["lacking"].items():
        print(f"{name:15} MISSING  {sentence}")
    absent = [checks["lacking"][name] for name in NEEDED if name in checks["lacking"]]
    date = time.strftime("%Y-%m-%d", time.gmtime())
    now = {part.name: fingerprint(part, checks) for part in PARTS}
    results = Results((options.out or folder(checks, date)).resolve(), now)
    results.folder.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in PARTS if part.name in options.parts]
    interrupted = False
    try:
        for part in chosen:
            run(part, checks, results, again=options.again)
    except KeyboardInterrupt:
        interrupted = True
        print("\nstopped; what is done is kept, and the same command goes on from here")
    (results.folder / "README.md").write_text(page(results, checks, date), "utf-8")
    status = show(results, chosen)
    if interrupted:
        return INTERRUPTED
    if absent:
        print(f"no GPU here: {absent[0]}")
        return NO_GPU
    return status


def check() -> dict[str, Any]:
    """What this machine has, found by a process of its own.

    Raises:
        SystemExit: that process did not come through.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-monitor-checks-") as temporary:
        file, output = Path(temporary, "checks.json"), Path(temporary, "output.txt")
        ended = processes.run(["-m", "benchmarks.gpu.checks", str(file)], output, CHECKS_LIMIT_S)
        if ended.status != 0:
            how = f"ended with {ended.status}" if ended.status is not None else f"did not end in {CHECKS_LIMIT_S:g} s"
            raise SystemExit(f"{output.read_text('utf-8', 'replace')}\nThe checks of this machine {how}.")
        found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def folder(checks: dict[str, Any], date: str) -> Path:
    """Where results go: by GPU and day; without a GPU, where nothing is kept for long."""
    if any(name in checks["lacking"] for name in NEEDED):
        return ROOT / "build" / f"no-gpu-{date}"
    short = checks["found"]["GPU"].removeprefix("1 × ").replace("NVIDIA ", "").replace(" × ", "x ")
    return ROOT / "docs/results" / f"{re.sub(r'[^A-Za-z0-9.]+', '-', short).strip('-')}-{date}"


def run(part: Part, checks: dict[str, Any], results: Results, *, again: bool) -> None:
    """Run a part, unless it is done or cannot run here, and keep what became of it."""
    reason = unmet(part, checks)
    if reason is not None:
        print(f"\n{part.name}: not run: {reason}", flush=True)
        if not results.record(part).detail.startswith(OUTDATED):  # a GPU that is lost may come back, and its results
            results.keep(part, Record(NOT_RUN, reason))
        return
    if not again and results.done(part):
        print(f"\n{part.name}: done already ({results.records[part.name].result})", flush=True)
        return
    output, file = results.output(part), results.json(part)
    print(f"\n{part.name}: {part.title}; at most {part.limit_s / 60:g} min; output in {output}", flush=True)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    results.keep(part, Record(STOPPED, "it was cut off", at=at))
    file.unlink(missing_ok=True)  # of a run before
    ended = processes.run([*part.command, "--json", str(file)], output, part.limit_s)
    if ended.status is None:
        record = Record(STOPPED, f"it did not end within {part.limit_s / 60:g} min")
    elif ended.status in (0, 1) and file.exists():
        record = Record(MISSED if ended.status else MET)
    else:
        said = output.read_text("utf-8", "replace").strip().splitlines()
        record = Record(FAILED, f"it ended with {ended.status}: {said[-1][:SAID] if said else 'without a word'}")
    record.seconds, record.fingerprint, record.at = ended.seconds, results.fingerprints[part.name], at
    results.keep(part, record)
    print(f"{part.name}: {record.result} in {ended.seconds:.0f} s {record.detail}", flush=True)


def show(results: Results, chosen: Sequence[Part]) -> int:
    """Print what was and was not run and what the figures say of the promises; 0 if all is well."""
    print(f"\n{'part':12}{'result':10}{'time':>8}")
    for part in PARTS:
        record = results.record(part)
        seconds = f"{record.seconds:.0f} s" if record.seconds else ""
        print(f"{part.name:12}{record.result:10}{seconds:>8}  {record.detail}".rstrip())
    figures = results.figures()
    print()
    for line in lines(figures):
        print(line)
    print(f"\nresults: {results.folder}")
    well = all(results.record(part).result == MET for part in chosen)
    refuted = any(decision is not None and not decision[0] for _, decision in promises.judge(figures))
    return 0 if well and not refuted else 1


if __name__ == "__main__":
    sys.exit(main())
