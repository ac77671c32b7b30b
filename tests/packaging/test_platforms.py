"""Linux, macOS and Windows: the wheel's dependencies exist for each, and the workflow tests them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernel_monitor._version import DALI_PACKAGES
from kernel_monitor.loaders.engines.backends import OLDEST_DALI

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "test.yml"


@pytest.mark.parametrize("system", ["linux", "macos", "windows"])
def test_the_dependencies_can_be_resolved(system: str) -> None:
    """By the package index, which the installation of the tests has used, too."""
    done = subprocess.run(
        [
            sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--extra", "all",
            "--only-binary", ":all:", "--python-version", "3.11", "--python-platform", system, "pyproject.toml",
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, f"nothing to install on {system}, or no package index is reached: {done.stderr}"
    names = set(re.findall(r"^([\w-]+)==", done.stdout, re.MULTILINE))
    assert {"anywidget", "psutil", "torch", "torchvision"} <= names
    assert {name for name in names if name.startswith("nvidia-dali")} == (
        {"nvidia-dali-cuda120"} if system == "linux" else set()
    )


@pytest.mark.parametrize(("extra", "name"), [("dali", DALI_PACKAGES[0]), ("dali-cuda13", DALI_PACKAGES[1])])
def test_the_oldest_dali_that_is_allowed_can_be_had(extra: str, name: str) -> None:
    """A bound below every release of the index is a promise that nobody can have tested."""
    done = subprocess.run(
        [
            sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--extra", extra,
            "--only-binary", ":all:", "--resolution", "lowest-direct", "--python-version", "3.11",
            "--python-platform", "linux", "pyproject.toml",
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^(nvidia-dali-\w+)==(\d+\.\d+)", done.stdout, re.MULTILINE))
    assert found == {name: ".".join(map(str, OLDEST_DALI))}


def test_the_workflow_tests_each_system_and_python_with_what_is_here() -> None:
    jobs: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]
    matrices = {name: job["strategy"]["matrix"] for name, job in jobs.items()}
    assert matrices["portable"]["os"] == ["macos-latest", "windows-latest"]
    assert all(matrix["python"] == ["3.11", "3.12", "3.13", "3.14"] for matrix in matrices.values())
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands["linux"] == ["make test"]
    tests = commands["portable"][-1].split()[3:]
    assert tests
    assert [path for path in tests if not path.startswith("tests/") or not (ROOT / path).exists()] == []
    # Every matrix value that an expression names is there, as is every action's version.
    for name, job in jobs.items():
        assert set(re.findall(r"matrix\.(\w+)", str(job))) <= set(matrices[name])
        assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)
