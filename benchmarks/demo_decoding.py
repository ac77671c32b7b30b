"""A comparison of a demo set's decoding times with those of photographs that installed packages ship.

    python -m benchmarks.demo_decoding DIR

A comparison of data loaders is meaningful only on files that cost as much as real files. JPEG decoding has a cost per
pixel (inverse transform, colour) and per bit (Huffman), so both are printed.
"""

from __future__ import annotations

import gc
import io
import random
import statistics
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from kernel_monitor.demo import scene
from kernel_monitor.demo.generate import read_recipe
from kernel_monitor.errors import MonitorError

if TYPE_CHECKING:
    from collections.abc import Sequence

TOLERANCE = 0.25
"""Largest accepted distance of the ratio of decode times from 1."""

# camera photographs, as their packages ship them: (distribution, package, files)
_SOURCES = (
    ("scikit-learn", "sklearn", ("datasets/images/china.jpg", "datasets/images/flower.jpg")),
    ("scikit-image", "skimage", ("data/rocket.jpg",)),
)


@dataclass(frozen=True)
class Measured:
    """A JPEG: its size in pixels and bytes, and its decode times in milliseconds per megapixel, one per round."""

    name: str
    width: int
    height: int
    size: int
    rounds: tuple[float, ...]

    @property
    def bits_per_pixel(self) -> float:
        """Bits of the file per pixel of the picture."""
        return self.size * 8 / (self.width * self.height)

    @property
    def milliseconds_per_megapixel(self) -> float:
        """Decode time: the median of the rounds."""
        return statistics.median(self.rounds)


@dataclass(frozen=True)
class Comparison:
    """A demo set compared with photographs. `demo` is an evenly spaced selection of the set's `images` files."""

    demo: tuple[Measured, ...]
    photographs: tuple[Measured, ...]
    images: int
    sizes: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """Decode time per megapixel, demo over photographs: each file's median, then the files' means."""
        return self._ratio(slice(None))

    @property
    def ratios(self) -> list[float]:
        """The ratio in each group of three rounds, the fewest whose median survives an interruption."""
        return [self._ratio(slice(k, k + 3)) for k in range(0, len(self.demo[0].rounds), 3)]

    def _ratio(self, rounds: slice) -> float:
        demo, photographs = (
            statistics.fmean(statistics.median(file.rounds[rounds]) for file in files)
            for files in (self.demo, self.photographs)
        )
        return demo / photographs

    def faults(self, tolerance: float = TOLERANCE) -> list[str]:
        """Return a sentence for each fault of the set."""
        found = []
        if abs(self.ratio - 1) > tolerance:
            found.append(f"its decode time is not within {tolerance:.0%} of the photographs'")
        outside = sum(not scene.SMALLEST <= size <= scene.LARGEST for size in self.sizes)
        if outside:
            found.append(f"{outside} files are not of {scene.SMALLEST / 1e3:.0f} to {scene.LARGEST / 1e3:.0f} kB")
        if len(self.sizes) != self.images:
            found.append(f"it has {len(self.sizes)} of {self.images} files")
        return found

    def __str__(self) -> str:
        lines = [f"{'':32} {'pixels':>11} {'size':>8} {'bits/pixel':>11} {'decode':>12}"]
        lines += [_line(photo.name, f"{photo.width} x {photo.height}", [photo]) for photo in self.photographs]
        lines.append(_line("photographs, mean", "", self.photographs))
        middle = "x".join(
            f" {statistics.median(sides):.0f} " for sides in zip(*((d.width, d.height) for d in self.demo), strict=True)
        )
        lines.append(_line(f"demo, mean of {len(self.demo)} of {len(self.sizes):,}", middle.strip(), self.demo))
        times = sorted(file.milliseconds_per_megapixel for file in self.demo)
        ratios = sorted(self.ratios)
        bits = _mean_bits(self.demo) / _mean_bits(self.photographs)
        lines.append(
            f"demo files: {min(self.sizes) / 1e3:.1f} to {max(self.sizes) / 1e3:.1f} kB, median "
            f"{statistics.median(self.sizes) / 1e3:.1f}; decode {_spread(times)} ms/megapixel (5 to 95 % of files)"
        )
        lines.append(
            f"demo / photographs: decode time per megapixel {self.ratio:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f} in "
            f"{len(ratios)} parts of the run); bits per pixel {bits:.3f}"
        )
        return "\n".join(lines)


def check(root: Path) -> int:
    """Print the comparison of the demo set in `root`, and its faults; return the exit status.

    Raises:
        MonitorError: as `compare`.
    """
    comparison = compare(root)
    print(comparison)
    faults = comparison.faults()
    for fault in faults:
        print(f"kernel-monitor: the demo set is not like photographs: {fault}", file=sys.stderr)
    if not faults:
        print(f"the demo set decodes like photographs (within {TOLERANCE:.0%}), and every file has the promised size")
    return 1 if faults else 0


def compare(root: Path, *, selection: int = 64, rounds: int = 21) -> Comparison:
    """Time Pillow's decoding of `selection` files of the demo set in `root` and of the photographs.

    One thread decodes files in memory: each round all files, in an order that changes, photographs as often as demo
    files, so that a change of the processor's clock affects both alike.

    Raises:
        MonitorError: if there is no demo set in `root`, or scikit-learn, whose photographs are used, is missing.
    """
    recipe = read_recipe(root)
    paths = sorted(root.glob("*/*.jpg"))
    if recipe is None or not paths:
        raise MonitorError(f"{root} holds no demo set: run kernel-monitor demo-data first")
    photographs = _photographs()
    chosen = paths[:: -(-len(paths) // selection)]
    files = [(path.name, path.read_bytes()) for path in chosen] + photographs
    turns = list(range(len(chosen))) + [
        len(chosen) + k for k in range(len(photographs)) for _ in range(-(-len(chosen) // len(photographs)))
    ]
    times = _time(files, turns, rounds)
    measured = []
    for (name, data), taken in zip(files, times, strict=True):
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
        per_megapixel = tuple(1e9 * seconds / (width * height) for seconds in taken)
        measured.append(Measured(name, width, height, len(data), per_megapixel))
    sizes = tuple(path.stat().st_size for path in paths)
    return Comparison(tuple(measured[: len(chosen)]), tuple(measured[len(chosen) :]), recipe.images, sizes)


def _photographs() -> list[tuple[str, bytes]]:
    """Name and bytes of the photographs; the packages are located, not imported."""
    found = []
    for distribution, package, files in _SOURCES:
        spec = find_spec(package)
        for base in (spec.submodule_search_locations or []) if spec else []:
            paths = [Path(base, file) for file in files]
            found += [(f"{path.name} ({distribution})", path.read_bytes()) for path in paths if path.is_file()]
    if not any("scikit-learn" in name for name, _ in found):
        raise MonitorError("the photographs to compare with come with scikit-learn: pip install scikit-learn")
    return found


def _time(files: Sequence[tuple[str, bytes]], turns: list[int], rounds: int) -> list[list[float]]:
    """Return the seconds per decode, for each file and each round: the median of its decodes in the round."""
    shuffle = random.Random(0)
    # The thread's own CPU time, so that other processes do not count; on Windows it has steps of 16 ms.
    clock = time.thread_time if time.get_clock_info("thread_time").resolution < 1e-6 else time.perf_counter
    times: list[list[float]] = [[] for _ in files]
    collecting = gc.isenabled()
    gc.disable()
    try:
        for k in range(rounds + 1):
            order = shuffle.sample(turns, len(turns))
            taken: list[list[float]] = [[] for _ in files]
            for number in order:
                data = io.BytesIO(bytearray(files[number][1]))  # a copy just made is in the cache, whichever file it is
                start = clock()
                Image.open(data).load()
                taken[number].append(clock() - start)
            if k:  # the first round warms up
                for all_rounds, this in zip(times, taken, strict=True):
                    all_rounds.append(statistics.median(this))
    finally:
        if collecting:
            gc.enable()
    return times


def _mean_bits(files: Sequence[Measured]) -> float:
    return statistics.fmean(file.bits_per_pixel for file in files)


def _line(name: str, pixels: str, files: Sequence[Measured]) -> str:
    size = statistics.fmean(file.size for file in files) / 1e3
    decode = statistics.fmean(file.milliseconds_per_megapixel for file in files)
    return f"{name:32} {pixels:>11} {size:5.0f} kB {_mean_bits(files):11.2f} {decode:6.2f} ms/MP"


def _spread(values: list[float]) -> str:
    """Return the 5th and 95th percentile of sorted values."""
    low, high = (values[round(share * (len(values) - 1))] for share in (0.05, 0.95))
    return f"{low:.2f} to {high:.2f}"


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[1])))
