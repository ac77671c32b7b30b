"""Run every test, a process for each folder, and add up: ``python -m tests.run [FOLDER …]``.

Folders are kept apart because they leave traces in a process: DALI must not be forked, kernels patch signals.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from .conftest import FREE, has_gpu

HERE = Path(__file__).parent
ROOT = HERE.parent
# A folder that is missing is a failure: its tests would be gone and nobody would notice.
FOLDERS = ("unit", "truth", "record", "wire", "loaders", "packaging", "kernel", "notebooks", "browser")
PAGE = "widgets (vitest)"
LIMIT_S = 1800.0


@dataclass
class Result:
    """The counts of one folder."""

    name: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.passed > 0 and not self.failed and not self.hidden


def run(command: list[str]) -> str | None:
    """Run a command in a group of its own; returns what is wrong with how it ended, None when it passed."""
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"did not end within {LIMIT_S:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None if code == 0 else f"ended with exit code {code}"


def run_pytest(folder: str, out: Path) -> Result:
    result = Result(folder)
    counts = out / f"{folder}.json"
    if not (HERE / folder).is_dir():
        result.failed.append(f"tests/{folder} does not exist")
        return result
    slowest = ["--durations=10", "--durations-min=5"]
    problem = run([sys.executable, "-m", "pytest", f"tests/{folder}", "--quiet", *slowest, "--verdict", str(counts)])
    if counts.exists():
        read = json.loads(counts.read_text(encoding="utf-8"))
        result.passed, result.failed, result.hidden = read["passed"], read["failed"], read["hidden"]
    if problem and not result.failed and not result.hidden:
        result.failed.append(f"pytest {problem}")
    return result


def run_vitest(out: Path) -> Result:
    result = Result(PAGE)
    counts = out / "vitest.json"
    report = ["--reporter=default", "--reporter=json", f"--outputFile.json={counts}"]
    problem = run(["npm", "run", "--silent", "test", "--workspace=widgets", "--", *report])
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
            f"{result.name:18} {result.passed:5} passed {len(result.failed):4} failed {result.seconds:6.0f} s{mark}"
        )
    for result in results:
        lines += [f"FAILED {result.name}: {line}" for line in result.failed]
        lines += [f"HIDDEN {result.name}: {line}" for line in result.hidden]
        if result.passed == 0 and not result.failed:
            lines.append(f"FAILED {result.name}: no test passed")
    passed = sum(result.passed for result in results)
    failed = sum(max(len(result.failed) + len(result.hidden), not result.good) for result in results)
    return "\n".join([*lines, f"{passed} passed, {failed} failed"])


def main(names: list[str]) -> int:
    page = PAGE.split(maxsplit=1)[0]
    found = {path.parent.name for path in HERE.glob("*/test_*.py")} - {*FOLDERS, FREE}
    known = [page, *FOLDERS, *sorted(found)]
    if unknown := set(names) - {*known, FREE}:
        print(f"no folder {', '.join(sorted(unknown))}; there are {', '.join([*known, FREE])}", file=sys.stderr)
        return 2
    gpu = has_gpu()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names or [*known, *([FREE] if gpu else [])]:
            print(f"\n--- {name}", flush=True)
            begun = time.monotonic()
            result = run_vitest(Path(folder)) if name == page else run_pytest(name, Path(folder))
            result.seconds = time.monotonic() - begun
            results.append(result)
    if not gpu:
        print("\ntests/gpu was not run: NVML finds no GPU on this machine.")
    print(summary(results), flush=True)
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
