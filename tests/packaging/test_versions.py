"""One version, said in every place alike; a lock file that works on other machines."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import kernel_monitor

ROOT = Path(__file__).parents[2]


def read(path: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
    return value


VERSION = read("package.json")["version"]


def test_every_place_has_the_version_of_the_root() -> None:
    for path in ("widgets/package.json", "extension/package.json", "kernel_monitor/labextension/package.json"):
        assert read(path)["version"] == VERSION, path
    assert (kernel_monitor.__version__, metadata.version("kernel-monitor")) == (VERSION, VERSION)
    source = (ROOT / "widgets/src/stream/protocol.ts").read_text()
    assert re.findall(r"VERSION = '([^']+)'", source) == [VERSION]
    assert read("extension/package.json")["dependencies"]["@kernel-monitor/widgets"] == VERSION
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert VERSION in headings


def test_the_labextension_folder_is_named_as_its_package() -> None:
    """JupyterLab serves an extension's files from the folder of the package's name."""
    assert [entry["dest"] for entry in kernel_monitor._jupyter_labextension_paths()] == [
        read("extension/package.json")["name"]
    ]


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
