"""Makes a demo set on disk: ROOT/<class>/<number>.jpg, as torchvision's ImageFolder reads it.

Picture i is of class i modulo the number of classes and depends on the seed and i alone. So a missing picture can be
made at any time, by any process, and a set that was interrupted is finished by the same call.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from kernel_monitor.errors import MonitorError
from kernel_monitor.os_process import child_environment, usable_cores
from kernel_monitor.output import error_words, write
from kernel_monitor.own_files import expanded

from . import scene

MARKER = ".kernel-monitor-demo.json"  # the file at the root that records what the set is made of
_STALE = 60.0  # seconds after which a temporary file belongs to no living process


@dataclass(frozen=True)
class Recipe:
    """The parameters of a demo set: `images` files in `classes` folders from one `seed`."""

    images: int
    classes: int
    seed: int
    version: int = scene.VERSION

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= scene.MOST_CLASSES:
            raise MonitorError(f"a demo set has 1 to {scene.MOST_CLASSES} classes, not {self.classes}")
        if self.images < self.classes:
            raise MonitorError(f"{self.images} images do not fill {self.classes} classes: ask for at least one each")
        if self.seed < 0:
            raise MonitorError(f"the seed must not be negative, and {self.seed} is")

    def place(self, index: int) -> str:
        """Return where picture `index` lies below the root, e.g. `red-discs/00000.jpg`."""
        return f"{scene.class_name(index % self.classes)}/{index:05d}.jpg"

    def make(self, root: Path, index: int) -> None:
        """Write picture `index`: whole or not at all."""
        target = root / self.place(index)
        _make_folder(target.parent)
        # ImageFolder looks at suffixes, so a temporary file of an interrupted run is no sample
        write(target, scene.jpeg(self.seed, index, index % self.classes), durable=False)


def demo_data(
    directory: str | os.PathLike[str], *, images: int = 2048, classes: int = 10, seed: int = 0, progress: bool = True
) -> Path:
    """Make a demo set in `directory`, or its missing files, on all cores, and return its path.

    The files are JPEGs of about 500 x 375 pixels, landscape and portrait, 110 to 150 kB each. A complete set is
    left as it is; a set that was interrupted is finished; more `images` of the same seed and classes are added.

    Args:
        directory: the root; it is created if need be.
        images: number of files, dealt to the classes in turn.
        classes: number of folders, 1 to 60.
        seed: equal seeds give equal files.
        progress: whether to show a progress bar (tqdm's where that is installed).

    Raises:
        MonitorError: if the folder holds something else, the numbers make no set, or the disk is too small or
            fails; what was made by then is used by the next call.
    """
    recipe = Recipe(images, classes, seed)
    if not os.fspath(directory):
        raise MonitorError("A demo set needs a folder with a name, such as demo-data.")
    root = expanded(directory)
    _make_folder(root)
    try:
        _claim(root, recipe)
        missing = _missing(root, recipe)
    except OSError as error:
        raise MonitorError(f"The folder {root} cannot be used: {error.strerror}. Name another one.") from error
    if missing:
        needed, free = len(missing) * scene.LARGEST, shutil.disk_usage(root).free
        if free < needed:
            raise MonitorError(
                f"{root} has {free / 1e6:,.0f} MB free, and {len(missing):,} images need {needed / 1e6:,.0f} MB"
            )
        _fill(root, recipe, missing, progress)
        if missing := _missing(root, recipe):
            raise MonitorError(
                f"{len(missing)} of {images} images are still missing in {root}: another program may be deleting them"
            )
    _sweep(root)
    return root


def read_recipe(root: Path) -> Recipe | None:
    """Return the recipe of the set in `root`; None where there is no marker file; a MonitorError if that is damaged."""
    try:
        text = (root / MARKER).read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return Recipe(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise MonitorError(f"{root / MARKER} is damaged ({error}): delete the folder or name another one") from error


def _claim(root: Path, recipe: Recipe) -> None:
    """Write the marker into an empty folder; accept a folder whose set is this one or the beginning of it."""
    present = read_recipe(root)
    if present == recipe:
        return
    if present is None and any(root.iterdir()):
        raise MonitorError(f"{root} is not empty and holds no demo set: name a new folder")
    if present is not None and (present.images > recipe.images or replace(present, images=recipe.images) != recipe):
        raise MonitorError(
            f"{root} holds a demo set of {present.images} images, {present.classes} classes, seed {present.seed}, "
            f"format {present.version}: delete it or name another folder"
        )
    write(root / MARKER, json.dumps(asdict(recipe)) + "\n")


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents. Raises MonitorError with the cause."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MonitorError(f"Cannot make the folder {folder}: {error_words(error, folder)}.") from error


def _missing(root: Path, recipe: Recipe) -> list[int]:
    """Return the numbers of the pictures that are missing, or of a wrong size because a disk cache was lost."""
    whole = {
        f"{path.parent.name}/{path.name}"
        for path in root.glob("*/*.jpg")
        if scene.SMALLEST <= path.stat().st_size <= scene.LARGEST
    }
    return [index for index in range(recipe.images) if recipe.place(index) not in whole]


def _sweep(root: Path) -> None:
    """Remove temporary files that a killed run left."""
    for left in [*root.glob(".*.tmp"), *root.glob("*/.*.tmp")]:
        with suppress(FileNotFoundError):  # its own process may be quicker
            if time.time() - left.stat().st_mtime > _STALE:
                left.unlink()


def _fill(root: Path, recipe: Recipe, missing: list[int], progress: bool) -> None:
    workers = min(usable_cores(), 16, -(-len(missing) // 16))  # starting a worker costs as much as a few pictures
    made = _alone(root, recipe, missing) if workers < 2 else _together(root, recipe, missing, workers)
    try:
        # closed at once on an interrupt: a kept traceback must not keep the workers
        with closing(made), closing(_counted(made, len(missing)) if progress else made) as counted:
            for _ in counted:
                pass
    except (MonitorError, OSError, RuntimeError) as error:
        raise MonitorError(f"the demo set in {root} is incomplete: {error}") from error


def _alone(root: Path, recipe: Recipe, missing: Iterable[int]) -> Generator[int]:
    for index in missing:
        recipe.make(root, index)
        yield index


def _together(root: Path, recipe: Recipe, missing: list[int], workers: int) -> Generator[int]:
    """Make the pictures in `workers` processes and yield each number when its picture is on the disk.

    Not multiprocessing: this runs in notebooks, where forking a process with threads is unsafe, spawning one runs
    the user's script again, and its resource tracker would stay behind.
    """
    order = {"root": str(root), "recipe": asdict(recipe)}
    processes: list[subprocess.Popen[str]] = []
    reading, writing = os.pipe()  # one pipe for all: lines this short are written whole
    try:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            try:
                for part in range(workers):  # appended singly: if the third cannot start, two must be ended
                    processes.append(_start(order | {"indices": missing[part::workers]}, writing))  # noqa: PERF401
            finally:
                os.close(writing)
            errors = []
            for line in lines:
                if line.strip().isdigit():
                    yield int(line)
                else:
                    errors.append(line.strip())
        codes = [process.wait() for process in processes]
        if any(codes):
            cause = errors[-1] if errors else f"a worker ended with status {next(code for code in codes if code)}"
            raise RuntimeError(cause)
    finally:  # an error, an interrupt, or an abandoned iterator
        for process in processes:
            process.kill()
            process.wait()


def _start(order: dict[str, Any], writing: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        # -P: a notebook's folder may hold a random.py of its own
        [sys.executable, "-P", "-m", "kernel_monitor.demo.generate"],
        stdin=subprocess.PIPE,
        stdout=writing,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment(),
        start_new_session=True,  # an interrupt reaches this process, which ends its workers
    )
    try:
        with cast("IO[str]", process.stdin) as stdin:
            stdin.write(json.dumps(order))
    except BrokenPipeError:
        pass  # it ended at once: the reader reports its exit status and its last line
    return process


def _counted(made: Iterable[int], total: int) -> Generator[int]:
    """Yield the pictures' numbers as they come, and show tqdm's bar or, without tqdm, a line that is rewritten."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        for done, index in enumerate(made, 1):
            yield index
            if done * 100 // total > (done - 1) * 100 // total:
                end = "\n" if done == total else "\r"
                sys.stderr.write(f"demo images: {done:,} of {total:,}{end}")
                sys.stderr.flush()
    else:
        yield from tqdm(made, total=total, desc="demo images", unit="image", disable=None)  # no bar in a log file


# ---- A process that makes some pictures of a demo set: `python -m kernel_monitor.demo.generate`.


def main() -> int:
    """Make the pictures that stdin names; return the exit status, 0 if all were made."""
    order = json.load(sys.stdin)
    root, recipe = Path(order["root"]), Recipe(**order["recipe"])
    try:
        for index in order["indices"]:
            recipe.make(root, index)
            os.write(1, b"%d\n" % index)  # a line is one system call (print may make two): the pipe is shared
    except BrokenPipeError:
        return 1
    except (MonitorError, OSError) as error:
        os.write(1, f"{error}\n".encode(errors="replace"))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
