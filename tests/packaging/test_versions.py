"""One version, said in every place alike; a lock file that works on other machines."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import benchmarks.common
import kernel_monitor
from kernel_monitor import monitor
from kernel_monitor._version import DALI_PACKAGES
from kernel_monitor.loaders.engines import backends
from kernel_monitor.runtime import session
from kernel_monitor.sweeps.sweep_file import machine_facts

ROOT = Path(__file__).parents[2]


def read(path: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
    return value


VERSION = read("package.json")["version"]
"""As npm writes it: 1.0.0-rc.1."""
PYTHON_VERSION = str(Version(VERSION))
"""As Python packages write it: 1.0.0rc1."""


def test_every_place_has_the_version_of_the_root() -> None:
    for path in ("widgets/package.json", "extension/package.json", "kernel_monitor/labextension/package.json"):
        assert read(path)["version"] == VERSION, path
    assert (kernel_monitor.__version__, metadata.version("kernel-monitor")) == (PYTHON_VERSION, PYTHON_VERSION)
    source = (ROOT / "widgets/src/stream/protocol.ts").read_text()
    assert re.findall(r"VERSION = '([^']+)'", source) == [PYTHON_VERSION]
    assert read("extension/package.json")["dependencies"]["@kernel-monitor/widgets"] == VERSION
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == PYTHON_VERSION


def test_the_labextension_folder_is_named_as_its_package() -> None:
    """JupyterLab serves an extension's files from the folder of the package's name."""
    assert [entry["dest"] for entry in kernel_monitor._jupyter_labextension_paths()] == [
        read("extension/package.json")["name"]
    ]


def pretend(name: str, version: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the metadata of an installed package in front of all others."""
    installed = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("name", DALI_PACKAGES)
def test_a_dali_that_is_too_old_is_refused_with_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    (bound,) = (found for found in map(Requirement, [*extras["dali"], *extras["dali-cuda13"]]) if found.name == name)
    oldest = ".".join(map(str, backends.OLDEST_DALI))
    assert str(bound.specifier) == f">={oldest}"
    backends._dali_too_old.cache_clear()
    try:
        assert backends._dali_too_old() is None
        pretend(name, "2.1.0", tmp_path, monkeypatch)
        backends._dali_too_old.cache_clear()
        assert backends._dali_too_old() == f"DALI 2.1.0 is too old; pip install --upgrade '{name}>={oldest}'."
    finally:
        backends._dali_too_old.cache_clear()


@pytest.mark.parametrize("name", DALI_PACKAGES)
def test_whichever_package_brings_dali_is_reported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In recordings and reports, in sweeps, and in the first lines of benchmarks."""
    pretend(name, "9.9", tmp_path, monkeypatch)
    session.version.cache_clear()
    try:
        facts = monitor.live_session.facts()
        assert facts["versions"][name] == "9.9"
    finally:
        session.version.cache_clear()
    assert machine_facts()["versions"][name] == "9.9"
    assert f"{name} 9.9" in benchmarks.common.versions()


LOCK = read("package-lock.json")["packages"]


def test_the_lock_file_names_no_registry() -> None:
    assert {entry["resolved"] for entry in LOCK.values() if "resolved" in entry} == {"widgets", "extension"}


def _resolves(package: str, dependency: str) -> bool:
    """As Node does: from the package's own node_modules upwards."""
    parts = package.split("/node_modules/") if package else []
    return any("/node_modules/".join([*parts[:k], dependency]) in LOCK for k in range(1, len(parts) + 1)) or (
        f"node_modules/{dependency}" in LOCK
    )


def test_the_lock_file_serves_every_platform() -> None:
    """npm drops the platforms that its registry, or the machine that wrote the file, did not have."""
    optional = [
        (package, dependency) for package, entry in LOCK.items() for dependency in entry.get("optionalDependencies", {})
    ]
    assert {f"node_modules/{name}" for name in ("@rspack/binding", "esbuild")} <= {package for package, _ in optional}
    assert [pair for pair in optional if not _resolves(*pair)] == []


def test_the_constraints_name_no_registry() -> None:
    text = (ROOT / "tests/constraints.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert {line for line in text.splitlines() if "==" not in line} == set()
