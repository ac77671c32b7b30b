from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from .cases import Case, Setting
from .files import make_files
from .kinds import FRAMEWORKS as SLOW_KINDS
from .running import FRAMEWORKS, PRELOADED, Ended, Forking, start
from .seed import AGAIN
from .text import plain, script

LANES = 2


class Scripts:
    """Runs the scripts of the tests that were chosen, `LANES` at a time; each plain variant once."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self._folder = folder
        self._forking = {slow: Forking(FRAMEWORKS if slow else PRELOADED) for slow in (False, True)}
        self._lanes = ThreadPoolExecutor(LANES)
        self._lock = threading.Lock()
        self._plain: dict[Setting, Future[Ended]] = {}
        self._ours: dict[Case, Future[Ended]] = {}

    def ours(self, case: Case) -> Future[Ended]:
        """How a script ends; it begins as soon as there is a lane."""
        with self._lock:
            if case not in self._ours:
                text = script(case, self.root)
                self._ours[case] = self._lanes.submit(self._run, str(case), text, case.setting, direct=case.direct)
            return self._ours[case]

    def plain(self, setting: Setting) -> Future[Ended]:
        """How the script's variant on the plain DataLoader ends."""
        with self._lock:
            if setting not in self._plain:
                text = plain(setting, self.root)
                self._plain[setting] = self._lanes.submit(self._run, f"{setting}-plain", text, setting, direct=False)
            return self._plain[setting]

    def _run(self, name: str, text: str, setting: Setting, *, direct: bool) -> Ended:
        folder = self._folder / (f"{name}-direct" if direct else name)
        folder.mkdir()
        (folder / "script.py").write_text(text)
        return start(folder) if direct else self._forking[setting.kind in SLOW_KINDS].run(folder)

    def close(self) -> None:
        self._lanes.shutdown(cancel_futures=True)
        for forking in self._forking.values():
            forking.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def scripts(files: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Scripts]:
    """The scripts of all tests that were chosen begin here, so that several run at a time."""
    scripts = Scripts(files, tmp_path_factory.mktemp("scripts"))
    for item in request.session.items:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
        if isinstance(case, Case):
            scripts.plain(case.setting)
            if "cells" not in item.name:
                scripts.ours(case)
    yield scripts
    scripts.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"to play these scripts again: {AGAIN}")
