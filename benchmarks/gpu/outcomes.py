"""A plugin of pytest that writes how each test ended: `python -m pytest -p benchmarks.gpu.outcomes --json FILE …`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

NAME = "kernel-monitor-outcomes"


class Outcomes:
    """How each test ended, by its id: `passed`, `failed` or `skipped`."""

    def __init__(self, file: Path) -> None:
        self.tests: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        if self.tests.get(report.nodeid) != "failed":  # what fails again at its end stays one failure
            self.tests[report.nodeid] = report.outcome
        if report.outcome == "skipped":
            self.reasons[report.nodeid] = str(report.longrepr)

    def pytest_sessionfinish(self) -> None:
        if not self.tests:
            return  # nothing was run: no result
        counts = Counter(self.tests.values())
        figures = {
            "tests": self.tests,
            "skipped": self.reasons,
            "counts": {f"tests {outcome}": count for outcome, count in sorted(counts.items())},
        }
        self._file.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--json", type=Path, help="a file for how each test ended")


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption("--json")) is not None:
        config.pluginmanager.register(Outcomes(file), NAME)
