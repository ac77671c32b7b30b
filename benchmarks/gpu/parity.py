"""How close DALI's pixels are to torchvision's, on generated photographs, with the decode of a crop fused and not.

    python -m benchmarks.gpu.parity --backend dali-gpu [--samples 64] [--json FILE]

The chains are those that people train and evaluate with, and the two ends of a published comparison (flips and a
rotation, once and twelve times over, before resize, crop and normalise). Figures are of 255. The bar is what DALI's own
tests allow between the decoders of CPU and GPU; on the CPU the decoders are equal, and it is what the project measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import switchable
from kernel_monitor.loaders.parity import compare

from ..common import MEAN, SIZE, STD, Bar, images, machine, report, versions

BARS = {"dali-gpu": 1.0, "dali-cpu": 0.4}
"""Largest mean difference: of decoders with fancy upsampling, and of a resize beside Pillow, in DALI's own tests."""
END = (v1.ToTensor(), v1.Normalize(list(MEAN), list(STD)))


def load(times: int) -> tuple[Any, ...]:
    """A published comparison's load: the same flips and rotation over and over, then resize and crop."""
    once = (v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(), v1.RandomRotation(5))
    return (*once * times, v1.Resize(256), v1.CenterCrop(SIZE))


CHAINS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "train": (64, (v1.RandomResizedCrop(SIZE), v1.RandomHorizontalFlip())),
    "evaluation": (64, (v1.Resize(256), v1.CenterCrop(SIZE))),
    "colours": (32, (v1.RandomResizedCrop(SIZE), v1.ColorJitter(0.4, 0.4, 0.4), v1.RandomGrayscale(0.2))),
    "RandAugment": (32, (v1.RandomResizedCrop(SIZE), v1.RandomHorizontalFlip(), v1.RandAugment())),
    "load 1": (32, load(1)),
    "load 12": (8, load(12)),
}
"""The most samples of each: after every transform the whole chain is computed again."""


WITHOUT_BAR = ("RandAugment",)
"""Equalize and Posterize make much of a difference of one level, so that a decoder's differences are not bounded."""


def main() -> int:
    """Compare and print; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.parity", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=BARS, default="dali-gpu")
    parser.add_argument("--samples", type=int, default=64, help="the most of each chain")
    parser.add_argument("--data", type=Path, help="a folder for the images, which then stay")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    print(f"{machine()}\n{versions()}\n\n{'of 255':24}{'samples':>8}{'mean':>8}{'greatest':>10}  parameters")
    figures: dict[str, Any] = {"equal": True, "means": {}}
    bars = []
    compared = 0
    with images(max(64, options.samples), options.data) as root:
        for name, (most, transforms) in CHAINS.items():
            data = ImageFolder(str(root), v1.Compose([*transforms, *END]))
            loader = switchable(DataLoader(data, batch_size=8), seed=3)
            availability = loader.backends[options.backend]
            if not availability.available and availability.reason:
                print(f"{options.backend} cannot be chosen for {name}: {availability.reason}")
            # Only a crop that comes first can be decoded alone.
            for fused in (True, False) if isinstance(transforms[0], v1.RandomResizedCrop) else (True,):
                loader.fused_decode = fused
                found = compare(loader.pool.setting, options.backend, min(most, options.samples), 3)
                case = f"{name}, {'fused' if fused else 'whole'}"
                same = "equal" if found.parameters_equal else "DIFFERENT"
                print(f"{case:24}{found.samples:8}{found.mean:8.3f}{found.greatest:10.0f}  {same}", flush=True)
                if found.samples == 0:
                    raise SystemExit(f"{case}: no sample was compared; {found.skipped} were skipped")
                figures["equal"] = figures["equal"] and found.parameters_equal
                figures["means"][case] = found.mean
                compared += found.samples
                if name not in WITHOUT_BAR:
                    bar = Bar(f"{case}, mean difference", found.mean, BARS[options.backend], " of 255", at_most=True)
                    bars.append(bar)
            loader.release()
    figures["counts"] = {"images compared": compared}
    print()
    missed = report(bars, figures, options.json)
    if not figures["equal"]:
        print("MISSED  crops, flips, angles and factors differ between the engines")
    return missed or int(not figures["equal"])


if __name__ == "__main__":
    sys.exit(main())
