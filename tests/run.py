"""Run every test, a process for each folder, and add up: ``python -m tests.run [FOLDER …]``.

Folders are kept apart because they leave traces in a process: DALI must not be forked, kernels patch signals. Several
run at once, because most of them wait more than they compute. Tests that are marked ``alone``, which measure times or
the machine itself, run after them, one at a time. TEST_LANES=1 runs one folder after the other.

A test of `AGAIN` that failed beside others is run once more with nothing beside it. When it passes then, it counts as
passed, and the summary names it: it asks too much of a busy machine, or it has found a race.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .conftest import FREE, has_gpu

HERE = Path(__file__).parent
ROOT = HERE.parent
# A folder that is missing is a failure: its tests would be gone and nobody would notice.
FOLDERS = (
    "unit",
    "truth",
    "record",
    "wire",
    "loaders",
    "scripts",
    "frameworks",
    "ranks",
    "remote",
    "sweep",
    "packaging",
    "kernel",
    "notebooks",
    "browser",
)
PAGE = "widgets (vitest)"
LIMIT_S = 3600.0
ALONE = "alone"
LONGEST_FIRST = (
    "browser",
    "loaders",
    "unit",
    "remote",
    "scripts",
    "kernel",
    "ranks",
    "frameworks",
    "notebooks",
    "sweep",
    "packaging",
    "record",
)
"""So that no lane is left with a long folder when the others have finished.

Those that wait for other processes (remote, notebooks) begin earlier than those of their length that compute, which
fill the cores to the end.
"""
LANES = int(os.environ.get("TEST_LANES", "4"))
PRINTING = threading.Lock()
AGAIN = ("unit", "record", "ranks", "remote", "sweep", "kernel", "notebooks", "browser")
"""Folders whose tests wait for other processes. Not those of loaders: what these deliver depends on no load."""
FEW = 16  # of failures: more are no accident, even where one cause (a node that died) fails several
RUNNING: set[int] = set()
"""Process groups, to be ended with an interrupted run."""


@dataclass
class Result:
    """The counts of one folder."""

    name: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)  # those that failed first and then passed alone
    messages: dict[str, str] = field(default_factory=dict)  # first line of each failure, also of those in again
    seconds: float = 0.0
    cpu: float = 0.0  # s of one core, of pytest and what it waited for: without processes that outlived it

    def add(self, other: Result, seconds: float) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.hidden += other.hidden
        self.messages |= other.messages
        self.seconds += seconds
        self.cpu += other.cpu

    @property
    def good(self) -> bool:
        return self.passed > 0 and not self.failed and not self.hidden


def run(command: list[str], title: str, *, good: tuple[int, ...] = (0,)) -> tuple[str | None, float]:
    """Run a command in a process group of its own and print its output when it has ended.

    Returns what is wrong with how it ended, None when its exit code is one of the `good` ones; and its CPU time, in s.
    """
    with PRINTING:
        print(f"started: {title}", flush=True)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=output, stderr=subprocess.STDOUT)
        RUNNING.add(process.pid)
        late = threading.Event()

        def end() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(LIMIT_S, end)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
            RUNNING.discard(process.pid)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        problem = None if code in good else f"ended with exit code {code}"
        if late.is_set():
            problem = f"did not end within {LIMIT_S:.0f} s"
        output.seek(0)
        with PRINTING:
            print(f"\n--- {title}", output.read().decode(errors="replace"), sep="\n", flush=True)
    return problem, usage.ru_utime + usage.ru_stime


def marked_alone(folder: str) -> list[str]:
    """The files of a folder that hold tests of this kind."""
    files = sorted((HERE / folder).rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if f"mark.{ALONE}" in file.read_text(encoding="utf-8")]


def run_pytest(folder: str, out: Path, *, alone: bool) -> Result:
    """Run a folder's tests: those that are marked as `alone`, or the others."""
    result = Result(folder)
    kind = ALONE if alone else f"not {ALONE}"
    counts = out / f"{folder}-{kind}.json"
    if not (HERE / folder).is_dir():
        result.failed.append(f"tests/{folder} does not exist")
        return result
    options = ["--quiet", "--durations=15", "--durations-min=3", "-m", kind, "--verdict", str(counts)]
    files = marked_alone(folder) if alone else [f"tests/{folder}"]
    title = f"{folder}, alone" if alone else folder
    # A folder without a test that passed is a failure by itself; here there may be only tests of the other kind.
    good = (0, int(pytest.ExitCode.NO_TESTS_COLLECTED))
    problem, result.cpu = run([sys.executable, "-m", "pytest", *files, *options], title, good=good)
    if counts.exists():
        read = json.loads(counts.read_text(encoding="utf-8"))
        result.passed, result.failed, result.hidden = read["passed"], list(read["failed"]), read["hidden"]
        result.messages = read["failed"]
    if problem and not result.failed and not result.hidden:
        result.failed.append(f"pytest {problem}")
    return result


def run_again(result: Result, out: Path) -> None:
    """Run the few tests that failed beside others once more, with nothing beside them."""
    tests = list(result.failed)
    if not 0 < len(tests) <= FEW or any("::" not in test for test in tests):
        return
    counts = out / f"{result.name}-again.json"
    begun = time.monotonic()
    run([sys.executable, "-m", "pytest", *tests, "--quiet", "--verdict", str(counts)], f"{result.name}, again")
    result.seconds += time.monotonic() - begun
    if counts.exists():
        read = json.loads(counts.read_text(encoding="utf-8"))
        if read["passed"] + len(read["failed"]) == len(tests):  # each was run
            result.failed = list(read["failed"])
            result.messages |= read["failed"]
            result.again = [test for test in tests if test not in result.failed]
            result.passed += len(result.again)


def run_vitest(out: Path) -> Result:
    result = Result(PAGE)
    counts = out / "vitest.json"
    report = ["--reporter=default", "--reporter=json", f"--outputFile.json={counts}"]
    problem, result.cpu = run(["npm", "run", "--silent", "test", "--workspace=widgets", "--", *report], PAGE)
    if counts.exists():
        for file in json.loads(counts.read_text(encoding="utf-8"))["testResults"]:
            for test in file["assertionResults"]:
                if test["status"] == "passed":
                    result.passed += 1
                else:
                    kind = result.failed if test["status"] == "failed" else result.hidden
                    kind.append(f"{Path(file['name']).name}: {test['fullName']}: {test['status']}")
    if problem and not result.failed:
        result.failed.append(f"vitest {problem}")
    return result


def summary(results: list[Result]) -> str:
    """One line a folder, what went wrong, and the closing line."""
    lines = [""]
    for result in results:
        mark = "" if result.good else "  <-- see below"
        lines.append(
            f"{result.name:18} {result.passed:5} passed {len(result.failed):4} failed {result.seconds:6.0f} s "
            f"({result.cpu:5.0f} CPU){mark}"
        )
    for result in results:
        for mark, tests in ((" failed beside others and passed alone", result.again), ("", result.failed)):
            for test in tests:
                lines.append(f"{'AGAIN' if mark else 'FAILED'} {result.name}: {test}{mark}")
                if message := result.messages.get(test):
                    lines.append(f"    {message}")
        lines += [f"HIDDEN {result.name}: {line}" for line in result.hidden]
        if result.passed == 0 and not result.failed:
            lines.append(f"FAILED {result.name}: no test passed")
    passed = sum(result.passed for result in results)
    failed = sum(max(len(result.failed) + len(result.hidden), not result.good) for result in results)
    return "\n".join([*lines, f"{passed} passed, {failed} failed"])


def main(names: list[str]) -> int:
    page = PAGE.split(maxsplit=1)[0]
    found = {path.relative_to(HERE).parts[0] for path in HERE.rglob("test_*.py")} - {*FOLDERS, FREE}
    known = [page, *FOLDERS, *sorted(found)]
    if unknown := set(names) - {*known, FREE}:
        print(f"no folder {', '.join(sorted(unknown))}; there are {', '.join([*known, FREE])}", file=sys.stderr)
        return 2
    started = time.monotonic()
    gpu = has_gpu()
    chosen = names or [*known, *([FREE] if gpu else [])]
    results = {name: Result(PAGE if name == page else name) for name in chosen}

    def run_one(name: str, *, alone: bool) -> None:
        begun = time.monotonic()
        found = run_vitest(Path(folder)) if name == page else run_pytest(name, Path(folder), alone=alone)
        results[name].add(found, time.monotonic() - begun)

    with tempfile.TemporaryDirectory() as folder:
        first = [name for name in LONGEST_FIRST if name in chosen]
        rest = [name for name in chosen if name not in first]
        with ThreadPoolExecutor(max_workers=LANES) as lanes:
            try:
                list(lanes.map(lambda name: run_one(name, alone=False), [*first, *rest]))
            except KeyboardInterrupt:
                lanes.shutdown(wait=False, cancel_futures=True)
                for group in list(RUNNING):
                    os.killpg(group, signal.SIGKILL)
                raise
        # Before those that are marked `alone`: what fails with nothing beside it has failed.
        for name in chosen:
            if name in AGAIN:
                run_again(results[name], Path(folder))
        for name in chosen:
            if name != page and marked_alone(name):
                run_one(name, alone=True)
    if not gpu:
        print("\ntests/gpu was not run: NVML finds no GPU on this machine.")
    print(summary(list(results.values())), f"in {time.monotonic() - started:,.0f} s", flush=True)
    return 0 if all(result.good for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
