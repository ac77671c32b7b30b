"""What tests/conftest.py promises: a test that does not run fails the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import run as test_run
from tests.run import Result, run_again, summary

CONFTEST = Path(__file__).parents[1] / "conftest.py"
PASSES = "def test_passes(): pass\n"
NO_PLUGINS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"  # Playwright's and others' have no part in it
HIDERS = {
    "skip": "import pytest\ndef test_it(): pytest.skip('no')\n",
    "skipif": "import pytest\n@pytest.mark.skipif(True, reason='no')\ndef test_it(): pass\n",
    "xfail": "import pytest\n@pytest.mark.xfail\ndef test_it(): assert 0\n",
    "importorskip": "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n",
    "empty": "x = 1\n",
}


def run(folder: Path, **files: str) -> tuple[int, dict[str, object]]:
    """Run pytest under our conftest on files of the folder ``unit`` or ``gpu``."""
    shutil.copy(CONFTEST, folder)
    for label, text in files.items():
        where, _, name = label.partition("_")
        (folder / where).mkdir(exist_ok=True)
        (folder / where / f"test_{name}.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--verdict", "counts.json", "."],
        cwd=folder,
        env={**os.environ, NO_PLUGINS: "1"},
        capture_output=True,
        text=True,
    )
    counts: dict[str, object] = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
    return done.returncode, counts


def test_a_clean_run_passes(tmp_path: Path) -> None:
    assert run(tmp_path, unit_good=PASSES) == (0, {"passed": 1, "failed": {}, "hidden": []})


@pytest.mark.parametrize("how", HIDERS)
def test_hiding_fails_the_run(tmp_path: Path, how: str) -> None:
    code, counts = run(tmp_path, unit_good=PASSES, unit_bad=HIDERS[how])
    assert code == 1
    assert counts["passed"] == 1
    assert counts["failed"] == {}
    assert len(counts["hidden"]) == 1  # type: ignore[arg-type]


def test_a_failure_is_counted(tmp_path: Path) -> None:
    code, counts = run(tmp_path, unit_good=PASSES, unit_bad="def test_it(): assert 0\n")
    assert (code, counts) == (1, {"passed": 1, "failed": {"unit/test_bad.py::test_it": "assert 0"}, "hidden": []})


def test_the_summary_counts_an_empty_folder_as_a_failure() -> None:
    text = summary([Result("unit", passed=3), Result("wire")])
    assert "FAILED wire: no test passed" in text
    assert text.endswith("3 passed, 1 failed")


def test_the_summary_of_a_good_run() -> None:
    assert summary([Result("unit", passed=3), Result("wire", passed=2)]).endswith("5 passed, 0 failed")


def test_what_fails_beside_others_is_run_again_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_some.py").write_text(PASSES + "def test_fails(): assert 0\n", encoding="utf-8")
    monkeypatch.setattr(test_run, "ROOT", tmp_path)
    monkeypatch.setenv(NO_PLUGINS, "1")
    result = Result("browser", passed=7, failed=["test_some.py::test_fails", "test_some.py::test_passes"])
    run_again(result, tmp_path)
    assert (result.passed, result.failed, result.again) == (
        8,
        ["test_some.py::test_fails"],
        ["test_some.py::test_passes"],
    )
    text = summary([result])
    assert "FAILED browser: test_some.py::test_fails\n    assert 0" in text
    assert "AGAIN browser: test_some.py::test_passes failed beside others and passed alone" in text
    assert text.endswith("8 passed, 1 failed")


@pytest.mark.parametrize(
    "failed",
    [
        ["pytest ended with exit code 3"],
        ["test_some.py::test_passes[gone]"],
        [f"test_some.py::test_passes[{number}]" for number in range(4)],
    ],
    ids=["no test", "a test that is not found", "many"],
)
def test_what_is_not_run_again_stays_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: list[str]
) -> None:
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_some.py").write_text(PASSES, encoding="utf-8")
    monkeypatch.setattr(test_run, "ROOT", tmp_path)
    monkeypatch.setenv(NO_PLUGINS, "1")
    result = Result("browser", passed=7, failed=list(failed))
    run_again(result, tmp_path)
    assert (result.passed, result.failed, result.again) == (7, failed, [])
