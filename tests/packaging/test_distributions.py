"""The sdist builds the wheel that the tree builds, and the wheel brings everything without Node."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARE = "share/jupyter/labextensions/kernel-monitor"


def run(*command: str, cwd: Path = ROOT, **env: str) -> str:
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def payload(wheel: Path) -> dict[str, str]:
    """The digest of every file of a wheel, by name."""
    with zipfile.ZipFile(wheel) as file:
        return {name: hashlib.sha256(file.read(name)).hexdigest() for name in file.namelist()}


@pytest.fixture(scope="session")
def no_node(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which there is no Node and nothing else either."""
    return str(tmp_path_factory.mktemp("empty-path"))


@pytest.fixture(scope="session")
def tree_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sdist and wheel made from the tree, with the front end that is built there."""
    out = tmp_path_factory.mktemp("tree")
    run(
        sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", str(out), ".",
        HATCH_JUPYTER_BUILDER_SKIP_NPM="1",
    )  # fmt: skip
    return out


@pytest.fixture(scope="session")
def wheel(tree_build: Path) -> Path:
    (found,) = tree_build.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def unpacked(tree_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist's files; the folder's name has a space."""
    (sdist,) = tree_build.glob("*.tar.gz")
    out = tmp_path_factory.mktemp("from sdist")
    with tarfile.open(sdist) as file:
        file.extractall(out, filter="data")
    (folder,) = out.iterdir()
    return folder


def test_the_sdist_builds_the_same_wheel_without_node(
    wheel: Path, unpacked: Path, tmp_path: Path, no_node: str
) -> None:
    run(
        sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), ".",
        cwd=unpacked, PATH=no_node,
    )  # fmt: skip
    (rebuilt,) = tmp_path.glob("*.whl")
    assert payload(rebuilt) == payload(wheel)


def linked(source: str, target: str) -> None:
    """Stands for a copy where both are on one disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def test_the_front_end_builds_anew_from_the_sdist(wheel: Path, unpacked: Path) -> None:
    """Its sources are all there, and they give the very bytes that the wheel has.

    With the packages of the tree, which `npm ci` installed from the same manifests.
    """
    for name in ("package.json", "package-lock.json", ".npmrc", "widgets/package.json", "extension/package.json"):
        assert (unpacked / name).read_bytes() == (ROOT / name).read_bytes(), name
    shipped = {
        name: digest
        for name, digest in payload(wheel).items()
        if name.startswith(("kernel_monitor/labextension/", "kernel_monitor/static/"))
    }
    for name in shipped:
        (unpacked / name).unlink()
    modules = (ROOT / "node_modules").resolve()
    shutil.copytree(modules, unpacked / "node_modules", symlinks=True, copy_function=linked)
    run("npm", "run", "build:prod", cwd=unpacked)
    built = {
        str(path.relative_to(unpacked)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in ("labextension", "static")
        for path in (unpacked / "kernel_monitor" / folder).rglob("*")
        if path.is_file()
    }
    assert built == shipped


def test_the_wheel_holds_what_it_should_and_no_more(wheel: Path) -> None:
    names = set(payload(wheel))
    root = f"{wheel.name.removesuffix('-py3-none-any.whl')}.data/data"
    data = f"{root}/{SHARE}"
    for needed in (
        f"{root}/etc/jupyter/jupyter_server_config.d/kernel_monitor.json",
        "kernel_monitor/__init__.py",
        "kernel_monitor/static/widget.js",
        "kernel_monitor/static/widget.css",
        "kernel_monitor/static/report.js",
        "kernel_monitor/static/report.css",
        "kernel_monitor/report/templates/base.html",
        "kernel_monitor/report/templates/page.html",
        "kernel_monitor/labextension/package.json",
        f"{data}/package.json",
        f"{data}/install.json",
    ):
        assert needed in names
    assert any(name.startswith(f"{data}/static/remoteEntry.") for name in names)
    tops = {name.split("/")[0] for name in names}
    assert len(tops) == 3, tops  # the package, its data, its metadata
    assert [name for name in names if "node_modules" in name or name.endswith((".ts", ".map", ".pyc", ".ipynb"))] == []


def test_the_wheel_has_the_licences_of_all_that_is_bundled(wheel: Path, tmp_path: Path) -> None:
    """The widget's scripts are our own; those of others in the extension stand in its list, each with its text."""
    with zipfile.ZipFile(wheel) as file:
        lists = [name for name in file.namelist() if name.endswith("/static/third-party-licenses.json")]
        assert len(lists) == 2  # in the package, and where JupyterLab looks for it
        listed = [json.loads(file.read(name))["packages"] for name in lists]
        scripts = b"".join(
            file.read(name) for name in file.namelist() if re.search(r"labextension/static/.*\.js$", name)
        )
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in file.namelist())
    assert listed[0] == listed[1]
    others = {package["name"]: package for package in listed[0] if not package["name"].startswith("@kernel-monitor/")}
    assert others.keys() == {"css-loader", "style-loader"}
    for package in others.values():
        assert package["licenseId"] == "MIT"
        assert "Permission is hereby granted" in package["extractedText"]
    assert b"node_modules" not in scripts  # the name that a bundled module of another package would have
    meta = tmp_path / "meta.json"
    run(
        "npm", "run", "--silent", "bundle", "-w", "widgets", "--",
        f"--outdir={tmp_path / 'static'}", f"--metafile={meta}",
    )  # fmt: skip
    inputs = json.loads(meta.read_text(encoding="utf-8"))["inputs"]
    assert [name for name in inputs if not name.startswith(("src/", "style/"))] == []


def test_installed_where_there_is_no_node(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own: the labextension is there and enabled, the widget's files are found."""
    environment = tmp_path / "clean environment"
    constraints = str(ROOT / "tests" / "constraints.txt")
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(environment))
    python = environment / "bin" / "python"
    run(
        sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python),
        "--constraints", constraints, str(wheel), "jupyterlab",
    )  # fmt: skip
    path = {"PATH": str(environment / "bin"), "JUPYTER_CONFIG_DIR": str(tmp_path / "config"), "HOME": str(tmp_path)}
    listing = run(str(python), "-m", "jupyterlab.labextensions", "list", cwd=tmp_path, **path)
    assert "kernel-monitor v" in listing
    assert "enabled" in next(line for line in listing.splitlines() if "kernel-monitor v" in line)
    assert (environment / SHARE / "install.json").is_file()
    found = run(
        str(python), "-c",
        "import kernel_monitor, pathlib; from kernel_monitor.widgets import Dashboard; "
        "print(kernel_monitor.__version__); print(len(str(Dashboard._esm)), len(str(Dashboard._css)))",
        cwd=tmp_path, **path,
    )  # fmt: skip
    version, sizes = found.splitlines()[:2]
    assert version == wheel.name.split("-")[1]
    assert min(int(size) for size in sizes.split()) > 100
    assert version in run(str(environment / "bin" / "kernel-monitor"), "--version", cwd=tmp_path, **path)
