"""`tests/gpu`, with what became of each test as JSON: `python -m benchmarks.gpu.suite [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

FOLDER = "tests/gpu"


class Outcomes:
    """A plugin of pytest that keeps how each test ended: `passed`, `failed` or `skipped`, by its id."""

    def __init__(self) -> None:
        self.tests: dict[str, str] = {}
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: object) -> None:
        name, outcome, when = (getattr(report, field) for field in ("nodeid", "outcome", "when"))
        if when == "call" or outcome != "passed":
            if self.tests.get(name) != "failed":
                self.tests[name] = outcome
            if outcome == "skipped":
                self.reasons[name] = str(getattr(report, "longrepr", ""))


def main() -> int:
    """Run the tests; 0 if all passed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.suite", description=__doc__)
    parser.add_argument("--json", type=Path, help="a file for the outcomes")
    options = parser.parse_args()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins that happen to be installed have no part in it
    import pytest

    outcomes = Outcomes()
    arguments = [FOLDER, "--verbose", "-s", "--durations=10", "-p", "no:cacheprovider"]
    status = int(pytest.main(arguments, plugins=[outcomes]))
    counts = Counter(outcomes.tests.values())
    if options.json is not None and outcomes.tests:  # without a test there is no result
        figures = {
            "tests": outcomes.tests,
            "skipped": outcomes.reasons,
            "counts": {f"tests {outcome}": count for outcome, count in sorted(counts.items())},
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
