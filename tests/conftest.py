"""Nothing is hidden: outside tests/gpu a skip, an xfail or a file without tests fails the run.

Also writes the counts of a run where ``python -m tests.run`` adds them up.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Threads of torch's operators that wait for each other sleep. They would spin, on cores that other tests have filled:
# the same operators then take ten times the processor time. Before torch is loaded, and for every process of the tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it would ask the package index for its newest version
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # datasets and transformers would ask their hub
FREE = "gpu"  # the one folder where a test may be skipped, and which is not collected without a GPU


def has_gpu() -> bool:
    """Whether NVML sees a GPU; a machine without the driver has none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    try:
        return int(pynvml.nvmlDeviceGetCount()) > 0
    finally:
        pynvml.nvmlShutdown()


@dataclass
class Verdict:
    """What became of the tests of one run."""

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Of each test that failed, the first line of its message."""
    hidden: list[str] = field(default_factory=list)

    def collected(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = _message(report)
        elif report.skipped:
            self.hide(report.nodeid, "skipped as a whole")
        elif report.nodeid.endswith(".py") and not report.result:
            self.hide(report.nodeid, "holds no test")

    def ran(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, _message(report))
        elif report.skipped:
            self.hide(report.nodeid, "xfail" if hasattr(report, "wasxfail") else f"skipped: {_reason(report)}")
        elif report.when == "call":
            self.passed += 1

    def hide(self, nodeid: str, why: str) -> None:
        if FREE not in Path(nodeid.split("::", 1)[0]).parts:
            self.hidden.append(f"{nodeid}: {why}")


def _message(report: pytest.CollectReport | pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else str(crash.message)
    return next(iter(text.splitlines()), "")[:300]


def _reason(report: pytest.TestReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


VERDICT = pytest.StashKey[Verdict]()


class Recorder:
    """The hooks that need the run's verdict."""

    def __init__(self, verdict: Verdict, file: str | None) -> None:
        self.verdict = verdict
        self.file = file

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.verdict.collected(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.verdict.ran(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.verdict.hidden and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.file is not None:
            counts = {
                "passed": self.verdict.passed,
                "failed": dict(sorted(self.verdict.failed.items())),
                "hidden": self.verdict.hidden,
            }
            Path(self.file).write_text(json.dumps(counts), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.verdict.hidden:
            terminalreporter.section("hidden tests fail the run", red=True)
            for line in self.verdict.hidden:
                terminalreporter.line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--verdict", metavar="FILE", help="write the counts of this run to FILE as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[VERDICT] = Verdict()
    config.pluginmanager.register(Recorder(config.stash[VERDICT], config.getoption("--verdict")))


def pytest_collection_finish() -> None:
    """What has been imported by now stays: no collection of garbage needs to look through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def heap_frozen() -> None:
    """For modules that collect garbage after each test: what other modules left is not looked through each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or libraries complain of what they find at the end


@pytest.fixture(scope="session", autouse=True)
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the tests' monitors record goes into a folder of its own, not among the person's sessions."""
    folder = tmp_path_factory.mktemp("recordings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_MONITOR_SESSIONS", str(folder))
        patch.setenv("KERNEL_MONITOR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield folder


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave tests/gpu alone where there is no GPU; everything else as pytest decides."""
    if collection_path == HERE / FREE and not has_gpu():
        return True
    return None
