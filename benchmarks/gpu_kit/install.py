"""Check, join and install a kit of `benchmarks.gpu_kit`: started by `install`, with the standard library alone.

Everything is checked before anything is changed: the system, this Python, its torch, and the checksum of every part.
pip comes with the kit, and is told to look nowhere else. What this Python has already in a version that will do stays.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).parent
SUMS = "SHA256SUMS"
UNPACKED = "gpu-proof"  # the folder of tests and benchmarks, where no other is named
MARK = "gpu-kit.json"  # by which a folder is known to be one that a kit made: a clone is not
BEGUN = ".kit-"  # what a temporary folder is called
BLOCK = 1 << 20  # bytes read at once


class Refused(Exception):
    """The kit is not installed; the message has cause and remedy."""


class Joined(io.RawIOBase):
    """The parts as one stream that is read from front to back."""

    def __init__(self, parts: list[Path]) -> None:
        self._parts = list(parts)
        self._open: io.BufferedReader | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._open is None:
                if not self._parts:
                    return 0
                self._open = self._parts.pop(0).open("rb")
            if count := self._open.readinto(buffer):
                return count
            self._open.close()
            self._open = None

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        super().close()


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def check_files(kit: Path) -> list[Path]:
    """The parts, in order, after every file of the kit was found to be whole.

    Raises:
        Refused: files are missing or damaged; the message names all of them.
    """
    if not (kit / SUMS).is_file():
        raise Refused(f"{kit} has no {SUMS}: copy every file of the kit into one folder.")
    listed = [line.split(maxsplit=1) for line in (kit / SUMS).read_text("utf-8").splitlines()]
    missing = [name for _, name in listed if not (kit / name).is_file()]
    if missing:
        raise Refused(f"Not here: {', '.join(missing)}. Copy every file of the kit into {kit}.")
    damaged = [name for expected, name in listed if digest(kit / name) != expected]
    if damaged:
        raise Refused(f"Damaged: {', '.join(damaged)}. Copy {'it' if len(damaged) == 1 else 'them'} again.")
    return [kit / name for _, name in sorted(listed, key=lambda entry: entry[1]) if ".tar." in name]


def check_python(manifest: dict[str, Any]) -> None:
    """Whether the kit is for this Python, which has torch and torchvision.

    Raises:
        Refused: it is not, or they are missing or too old.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    machine = f"{sys.platform} {platform.machine()}"
    if machine != manifest["platform"]:
        raise Refused(f"This kit is for {manifest['platform']}; this machine is {machine}.")
    if here != manifest["python"]:
        raise Refused(
            f"This kit is for Python {manifest['python']}; {sys.executable} is Python {here}. Name another Python "
            f"(sh install /path/to/python), or pack a kit for this one: make gpu-kit KIT_PYTHON={here}"
        )
    for name, least in manifest["needs"].items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise Refused(
                f"{sys.executable} has no {name}, which the kit does not bring. Install torch and torchvision for this "
                "machine's CUDA, or name a Python that has them: sh install /path/to/python"
            ) from None
        if release(found) < release(least):
            raise Refused(f"{name} {found} is too old; {least} or newer is needed.")
    marker = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if sys.prefix == sys.base_prefix and marker.is_file():
        raise Refused(
            f"{sys.executable} belongs to the system, which lets pip install nothing. An environment that sees its "
            f"torch: {sys.executable} -m venv --system-site-packages gpu-env; then: sh install gpu-env/bin/python"
        )


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: (2, 11, 0) for `2.11.0+cu130`."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def unpack(parts: list[Path], folder: Path) -> None:
    """Join the parts and unpack what is in them into the folder."""
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with io.BufferedReader(Joined(parts), BLOCK) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        archive.extractall(folder, **options)  # noqa: S202 (the checksums of the parts were compared)


def install(wheels: Path, requirements: list[str]) -> None:
    """Install from the folder of wheels alone.

    Raises:
        Refused: pip failed; what it printed stands above.
    """
    (pip,) = wheels.glob("pip-*.whl")
    (own,) = wheels.glob("kernel_monitor-*.whl")
    options = ["--no-index", "--no-cache-dir", "--disable-pip-version-check", "--no-warn-script-location"]
    command = [sys.executable, str(pip / "pip"), "install", *options]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    # The package of an earlier kit may have the same version.
    for arguments in (["--find-links", str(wheels), *requirements], ["--force-reinstall", "--no-deps", str(own)]):
        # A file of settings, too, could name other places to look in.
        done = subprocess.run([*command, *arguments], env={**kept, "PIP_CONFIG_FILE": os.devnull}, check=False)
        if done.returncode:
            raise Refused("pip could not install the wheels of the kit; its reason stands above.")


def main(kit: Path, folder: Path) -> None:
    """Install the kit and unpack tests and benchmarks into the folder.

    Raises:
        Refused: the kit is not whole or not for this Python, or pip failed.
    """
    parts = check_files(kit)
    manifest = json.loads((kit / "manifest.json").read_text("utf-8"))
    check_python(manifest)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{BEGUN}*"):  # by one that was cut off
        shutil.rmtree(left)
    if any(folder.iterdir()) and not (folder / MARK).is_file():
        raise Refused(f"{folder} holds something else than tests and benchmarks of a kit; name another folder.")
    print(f"{len(parts)} parts are whole; installing into {sys.executable}", flush=True)
    # Beside the tests: temporary folders are in memory on some machines, and the wheels are large.
    with tempfile.TemporaryDirectory(dir=folder, prefix=BEGUN) as temporary:
        unpack(parts, Path(temporary))
        install(Path(temporary, "wheels"), manifest["requirements"])
        shutil.copy(kit / "manifest.json", folder / MARK)
        replace(Path(temporary, "proof"), folder)
    print(f"\nTests and benchmarks: {folder}\nNext: cd '{folder}' && {sys.executable} -m benchmarks.gpu")


def replace(source: Path, target: Path) -> None:
    """Move tests and benchmarks into a folder, in the place of those of an earlier kit; results stay."""
    for path in source.iterdir():
        place = target / path.name
        if place.is_dir():
            shutil.rmtree(place)
        path.replace(place)


def started() -> NoReturn:
    """Install the kit in whose folder this file lies."""
    try:
        main(HERE, Path(sys.argv[1] if len(sys.argv) > 1 else HERE / UNPACKED).resolve())
    except (Refused, OSError) as error:
        sys.exit(f"The kit is not installed. {error}")
    sys.exit(0)


if __name__ == "__main__":
    started()
