"""Pack what a machine with a GPU but no network lacks: `python -m benchmarks.gpu_kit [--python 3.12] [--out FOLDER]`.

The machine has torch and torchvision; the kit brings DALI and its libraries, what else this package, `tests/gpu` and
the benchmarks import, this package, the tests and the benchmarks. The versions are those of `tests/constraints.txt`.
What the package needs besides torch is read from `pyproject.toml`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from .archive import NAME, pack, write_sums
from .install import SUMS, UNPACKED

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PART_MB = 60.0
OF_A_KIT = (f"{NAME}.*", "install", "install.py", "manifest.json", SUMS)
PLATFORM = "linux x86_64"
GLIBC_MINOR = 28  # wheels for glibc 2.28 and older: RHEL 8, Debian 10, Ubuntu 20.04
PRESENT = ("torch", "torchvision")
BESIDE = ("hypothesis", "ipykernel", "pytest", "pytest-timeout")
"""What tests and benchmarks need besides the package and its extras. pip, which installs the rest, comes along, too."""
PROOF = ("benchmarks", "tests", "Makefile", "package.json", "pyproject.toml")
"""What is unpacked there: enough for `python -m benchmarks.gpu` and pytest's settings."""


def main() -> int:
    """Pack, and print the sizes of the parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_kit", description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="version of the Python on the machine with the GPU")
    parser.add_argument("--out", type=Path, default=ROOT / "dist/gpu-kit", help="folder of the kit")
    parser.add_argument("--part-mb", type=float, default=PART_MB, help="largest part, 10^6 bytes")
    options = parser.parse_args()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = settings["project"]
    tests = ["pip", *(text for text in settings["dependency-groups"]["test"] if named(text) in BESIDE)]
    if not (ROOT / "kernel_monitor/static/widget.js").is_file():
        raise SystemExit("The front end is not built, and the wheel would lack it: make setup")
    fresh(options.out)
    with tempfile.TemporaryDirectory(prefix="kernel-monitor-kit-") as temporary:
        wheels = Path(temporary, "wheels")
        own = build(wheels)
        pins = resolve([*needed(project), *tests], options.python)
        print(f"{len(pins)} packages for Python {options.python}, {PLATFORM}", flush=True)
        download(pins, options.python, wheels)
        members = {f"wheels/{path.name}": path for path in wheels.iterdir()} | proof()
        parts = pack(members, options.out, round(options.part_mb * 1e6))
        largest = sorted(wheels.iterdir(), key=lambda path: -path.stat().st_size)[:5]
        for path in largest:
            print(f"  {path.stat().st_size / 1e6:7.1f} MB  {path.name}")
    for name in ("install", "install.py"):
        shutil.copy(HERE / name, options.out)
    manifest = {
        "kernel_monitor": own.name.split("-")[1],
        "python": options.python,
        "platform": PLATFORM,
        "needs": {name: least(project, name) for name in PRESENT},
        "requirements": [
            f"{own.name.split('-')[0]}[dali]=={own.name.split('-')[1]}",
            *(text for text in [*tests, *torch_extra(project)] if named(text) not in (*PRESENT, "pip")),
        ],
        "packages": pins,
    }
    (options.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    write_sums(options.out, [*parts, *(options.out / name for name in ("install", "install.py", "manifest.json"))])
    sizes = [path.stat().st_size / 1e6 for path in parts]
    for path, size in zip(parts, sizes, strict=True):
        print(f"{size:9.1f} MB  {path.relative_to(options.out)}")
    print(f"{sum(sizes):9.1f} MB  in {len(parts)} parts: {options.out}")
    print("Copy the folder to the machine with the GPU, then there: sh gpu-kit/install [/path/to/python]")
    return 0


def fresh(out: Path) -> None:
    """A folder without the files of an earlier kit; what was unpacked there, with its results, stays.

    Raises:
        SystemExit: it holds something else.
    """
    out.mkdir(parents=True, exist_ok=True)
    kit = {path for pattern in OF_A_KIT for path in out.glob(pattern)}
    if others := [path.name for path in out.iterdir() if path not in kit and path.name != UNPACKED]:
        raise SystemExit(f"{out} holds {others[0]}, which is of no kit; name another folder with --out")
    for path in kit:
        path.unlink()


def named(requirement: str) -> str:
    """The name of a requirement."""
    for position, character in enumerate(requirement):
        if not (character.isalnum() or character in "-_."):
            return requirement[:position]
    return requirement


def torch_extra(project: dict[str, Any]) -> list[str]:
    extra: list[str] = project["optional-dependencies"]["torch"]
    return extra


def needed(project: dict[str, Any]) -> list[str]:
    """The package's requirements and those of its extras, but for torch and torchvision."""
    extras = [*torch_extra(project), *project["optional-dependencies"]["dali"]]
    return [*project["dependencies"], *(text for text in extras if named(text) not in PRESENT)]


def least(project: dict[str, Any], name: str) -> str:
    """The oldest version of a package that will do."""
    (found,) = (text for text in torch_extra(project) if named(text) == name)
    return found.split(">=")[1]


def run(*command: str, **env: str) -> str:
    """Run a program from the root; returns its output.

    Raises:
        SystemExit: it failed; its errors were printed.
    """
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}failed: {' '.join(command[:5])} …")
    return done.stdout


def build(wheels: Path) -> Path:
    """This package's wheel, with the front end that is built here."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(wheels), "."]
    run(*command, HATCH_JUPYTER_BUILDER_SKIP_NPM="1")
    (wheel,) = wheels.glob("kernel_monitor-*.whl")
    return wheel


def resolve(requirements: list[str], python: str) -> list[str]:
    """Every package, `name==version`, that the requirements bring on that Python, in the versions of the tests."""
    with tempfile.NamedTemporaryFile("w", suffix=".in") as file:
        file.write("\n".join(requirements))
        file.flush()
        printed = run(
            sys.executable, "-m", "uv", "pip", "compile", file.name, "--quiet", "--no-header", "--no-annotate",
            "--constraints", "tests/constraints.txt", "--only-binary", ":all:", "--python-version", python,
            "--python-platform", f"x86_64-manylinux_2_{GLIBC_MINOR}",
        )  # fmt: skip
    return printed.split()


def download(pins: list[str], python: str, wheels: Path) -> None:
    """Fetch their wheels. pip wants every platform by name that will do; they are tried from the newest."""
    older = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC_MINOR, 4, -1)]
    names = [*older, *(f"manylinux{year}_x86_64" for year in (2014, 2010, 1)), "linux_x86_64"]
    platforms = [f"--platform={name}" for name in names]
    run(
        sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms, "--dest", str(wheels),
        *pins,
    )  # fmt: skip


def proof() -> dict[str, Path]:
    """Tests and benchmarks, by their names in the archive."""
    found = []
    for name in PROOF:
        path = ROOT / name
        found += [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return {f"proof/{path.relative_to(ROOT)}": path for path in found if "__pycache__" not in path.parts}


if __name__ == "__main__":
    sys.exit(main())
