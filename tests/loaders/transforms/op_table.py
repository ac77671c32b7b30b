"""Writes docs/transforms.md: every transform that is known, how it is done, its measured parity.

`python -m tests.loaders.transforms.op_table` measures on generated photographs and writes the page.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader

from kernel_monitor.loaders.parity import ChainPrefix
from kernel_monitor.loaders.transforms import albumentations
from kernel_monitor.loaders.transforms.chain import flatten
from kernel_monitor.loaders.transforms.params import sample_keys
from kernel_monitor.loaders.transforms.translate import OPS, TIMM

from ..conftest import draw_photo
from .op_chains import DIRECT, HYBRID, OF_ARRAYS, OF_ARRAYS_HYBRID

PAGE = Path(__file__).parents[3] / "docs" / "transforms.md"
_EXIF_ORIENTATION = 274

_CHOSEN = "in DALI, for the samples that the plan picks; after DALI if a transform inside changes the size or the type."
CONTAINERS = {
    "Compose": "in DALI, transform by transform; nested ones, and `torch.nn.Sequential`, too.",
    "RandomApply": _CHOSEN,
    "RandomChoice": _CHOSEN,
    "RandomOrder": "after DALI, in the order that the plan draws.",
}

_NO_FILTER = "box, hamming; nearest on a PIL image; lanczos on a tensor; bicubic on floats; antialias=False on a tensor"
LIMITS = {
    "RandomResizedCrop": _NO_FILTER,
    "Resize": _NO_FILTER,
    "CenterCrop": "after Normalize",
    "RandomCrop": "padding_mode other than constant; after Normalize",
    "Pad": "padding_mode other than constant; after Normalize",
    "RandomRotation": "expand; interpolation other than nearest; a fill for each channel",
    "RandomAffine": "interpolation other than nearest; a fill for each channel",
    "Grayscale": "one output channel",
    "RandomInvert": "on floats",
    "ColorJitter": "hue; on floats",
    "RandomErasing": "value='random'",
    "ToDtype": "types other than float32 and uint8",
    "ConvertImageDtype": "types other than float32 and uint8",
    "RandomResizedCropAndInterpolation": "box, hamming, nearest",
}
"""When a transform is left to torchvision."""

_LINEAR = "interpolations other than linear; area_for_downscale; p below 1"
ARRAY_LIMITS = {
    "Resize": _LINEAR,
    "SmallestMaxSize": f"{_LINEAR}; several sizes",
    "LongestMaxSize": f"{_LINEAR}; several sizes",
    "RandomResizedCrop": _LINEAR,
    "CenterCrop": "pad_if_needed; p below 1",
    "RandomCrop": "pad_if_needed; p below 1",
    "RandomBrightnessContrast": "brightness_by_max=False; ensure_safe_range; after Normalize",
    "Normalize": "normalization other than standard",
}
"""The same for albumentations."""


def mixed_photos(root: Path, images: int = 36, seed: int = 4) -> Path:
    """JPEGs of mixed sizes in one class; every third with an EXIF orientation, every fourth gray."""
    rng = np.random.default_rng(seed)
    folder = root / "class"
    folder.mkdir(parents=True)
    for number in range(images):
        path = folder / f"{number:02d}.jpg"
        draw_photo(path, rng, int(rng.integers(60, 150)), int(rng.integers(60, 150)))
        with Image.open(path) as opened:
            image = opened.convert("L" if number % 4 == 1 else "RGB")
        exif = Image.Exif()
        if number % 3 == 2:
            exif[_EXIF_ORIENTATION] = 2 + number % 7
        image.save(path, quality=90, exif=exif)
    return root


@dataclass(frozen=True)
class Row:
    """What one chain gave: the mean and the worst image's mean difference, pixel values 0 to 255."""

    name: str
    rest: int | None
    mean: float
    worst: float


def measured(folder: Path, name: str, chain: Any, kind: str = "pil") -> Row:
    """Compare DALI on the CPU with torchvision on every image of a folder."""
    stage = ChainPrefix(list(flatten(chain)), kind, None, encoded=False, fused=True)
    means = []
    for index, (path, _) in enumerate(ImageFolder(folder).samples):
        image = default_loader(path)
        keys = sample_keys(1, 0, [index], [0])
        given = np.array(image) if kind == "array" else image
        difference, equal = stage.difference(given, path.encode(), keys, (image.height, image.width))
        if not equal:
            raise AssertionError(f"{name}: the engines drew different parameters")
        means.append(float(difference.mean()))
    return Row(name, stage.program.rest, float(np.mean(means)), max(means))


JOINT = """\
## Image and target together, and several views

What a data set of one's own does to several images of a sample, or several times to one, is followed in its own code
([Masks, boxes and views](howto/own-data.md#masks-boxes-and-several-views)), which also draws all random numbers. So
what counts is not which transform it is, but which operations it does, of Pillow, torchvision or torch. From the first
one on that DALI cannot do, the user's own code does the rest on DALI's pixels. Masks, in grey of 8 or 16 bits or
with a palette of 8, are decoded by DALI and moved by index, equal bit for bit.

| DALI's part of the image | joint transform of torchvision (v2, `references`) |
|---|---|
| all: bilinear, bicubic, lanczos with antialias | `Resize`, `RandomShortestSize`, `ScaleJitter`, `RandomResize` |
| all | `RandomCrop`, `CenterCrop`, `RandomIoUCrop`, `FiveCrop` |
| all | `RandomResizedCrop` |
| all, with a constant value | `Pad`, `RandomZoomOut`, `RandomCrop` with padding |
| all | `RandomHorizontalFlip`, `RandomVerticalFlip` |
| all | `ToImage`, `ToTensor`, `PILToTensor`, `ToDtype`, `ToPureTensor` |
| all | `Normalize` |
| none is needed: the user's own code | `SanitizeBoundingBoxes`, `ClampBoundingBoxes`, `ConvertBoundingBoxFormat` |
| what comes before | `RandomPhotometricDistort`, `ColorJitter`, `GaussianBlur`, `RandomGrayscale`, `RandomSolarize` |
| what comes before | `RandomRotation`, `RandomAffine`, `RandomPerspective`, `ElasticTransform` |
"""


def page(rows: dict[str, Row], arrays: dict[str, Row]) -> str:
    """The text of the page."""
    lines = [
        "# Transforms",
        "",
        "Written by `python -m tests.loaders.transforms.op_table`; do not edit.",
        "",
        "A data set's `transform` is read once, transform by transform, by exact class, in torchvision's first and",
        "second version alike. What DALI can do as torchvision does it is done in DALI. From the first transform on",
        "that DALI cannot do, the user's own transforms run on DALI's images (*after DALI*), with the same random",
        "numbers. Where that transform computes on floating-point pixels, the hand-over comes before `ToTensor`.",
        "Nothing is left out, and nothing is approximated beyond the figures below.",
        "",
        "On `dali-cpu` what comes after DALI runs in workers of the loader's own kind and number, which are given",
        "DALI's images; with `num_workers=0`, and on `dali-gpu`, on the thread of the training loop. DALI then saves",
        "little beside what handing images on costs, so `dali-cpu` cannot be chosen where it could only be slower:",
        "where DALI would only decode, or where new processes cannot be given the data set. Where it has no cores",
        "beside the workers', its tooltip says that it may be slower, and *Tune* measures it.",
        "",
        "Any other callable is called as it is, with torch's, Python's and numpy's default generators, and those that",
        "it holds itself, seeded for the sample: what it draws is the same on every engine, in any order, with any",
        "number of workers.",
        "",
        "An object whose `__call__` (or, of a module without hooks, `forward`) does nothing but `return self.x(image)`",
        "merely holds a chain, as torchvision's reference presets do, and is opened like `Compose`. It is known by its",
        "compiled code; a method that does anything else makes it a callable like any other.",
        "",
        "Refused are transforms that mix samples: `MixUp` and `CutMix` (apply them in `collate_fn`). Joint transforms",
        "of image and target are followed in another way, [see below](#image-and-target-together-and-several-views).",
        "",
        "## Each transform",
        "",
        "Parity: mean absolute difference, of 255: the largest among the chains below that are named after it.",
        "",
        "| transform in DALI | after DALI instead | parity |",
        "|---|---|---|",
    ]
    for name in (*(name for name in OPS if name != "ToPILImage"), *TIMM):
        means = [rows[chain].mean for chain in _chains_of(name)]
        lines.append(f"| `{name}`{' (timm)' if name in TIMM else ''} | {LIMITS.get(name, '')} | {max(means):.2f} |")
    lines += ["", "Transforms of transforms:", ""]
    lines += [f"- `{name}`: {how}" for name, how in CONTAINERS.items()]
    lines += [
        "",
        "## Each chain that is measured",
        "",
        f"{_PHOTOS} Most add `Resize((64, 72))`, `ToTensor` and `Normalize`; see `{_CHAINS}`.",
        "",
        "| chain | how | mean | worst image |",
        "|---|---|---|---|",
    ]
    for name in (*DIRECT, *HYBRID):
        row = rows[name]
        how = "DALI" if row.rest is None else f"after DALI from transform {row.rest + 1}"
        lines.append(f"| {name} | {how} | {row.mean:.2f} | {row.worst:.2f} |")
    lines += [
        "",
        "## NumPy arrays and albumentations",
        "",
        "Where a data set of one's own gives its transform an array (of OpenCV, or `np.array(image)`), the chain is",
        'one of [albumentations](https://albumentations.ai) 2 (`transform(image=image)["image"]`), or begins with',
        "`ToPILImage`, `ToTensor` or `ToImage`. A `Compose` that is always applied, without boxes, keypoints and",
        "additional targets, is read transform by transform. All others, and what people write themselves, run after",
        "DALI, with their own generators seeded for the sample. Measured on the same images.",
        "",
        "| transform in DALI | after DALI instead | parity |",
        "|---|---|---|",
    ]
    for name in ("ToPILImage", *albumentations.OPS):
        means = [arrays[chain].mean for chain in OF_ARRAYS if chain.replace(",", " ").split()[0] == name]
        lines.append(f"| `{name}` | {ARRAY_LIMITS.get(name, '')} | {max(means):.2f} |")
    lines += ["", "| chain | how | mean | worst image |", "|---|---|---|---|"]
    for name in (*OF_ARRAYS, *OF_ARRAYS_HYBRID):
        row = arrays[name]
        how = "DALI" if row.rest is None else f"after DALI from transform {row.rest + 1}"
        lines.append(f"| {name} | {how} | {row.mean:.2f} | {row.worst:.2f} |")
    return "\n".join(lines) + "\n\n" + JOINT + "\n" + _TOGETHER


_TOGETHER = """### With albumentations and OpenCV

A transform of albumentations 2 that is given more than the image (`mask`, `masks`, `bboxes`, `keypoints`, additional
targets) runs as it is, with its own draws: boxes, keypoints and labels are computed by albumentations, so they are
equal bit by bit. What it does to the pixels is recorded, computed by DALI and compared when the transform runs a second
time; a sample in which anything differs is delivered by your own code. Masks are moved to the pixel: they are equal bit
by bit, too.

Recorded are, on images in RGB or BGR and masks in grey (of 8 or 16 bits) or with a palette:

- resizes (`Resize`, `RandomScale`, `LongestMaxSize`, `SmallestMaxSize`, `RandomResizedCrop`, `RandomSizedCrop`,
  `RandomSizedBBoxSafeCrop`): linear for images, with a parity of 0.13 and one grey level at most; nearest neighbour
  for masks, exact;
- crops (`RandomCrop`, `CenterCrop`, `Crop`, `RandomCropFromBorders`, `BBoxSafeRandomCrop`, `AtLeastOneBBoxRandomCrop`,
  `RandomCropNearBBox`), exact;
- paddings with a constant (`Pad`, `PadIfNeeded`, `pad_if_needed`), exact;
- flips (`HorizontalFlip`, `VerticalFlip`), `Normalize`, `ToTensorV2` and `NoOp`.

From the first other transform on, yours run on DALI's images. Several masks (`masks`, a list or an array made by
`np.stack`) are followed one by one, where each is in a file of its own and all samples have as many; masks that your
code computes of another one (`mask == k`) are its own. The same holds for OpenCV alone: `imread` and `imdecode` (in
colour, or as they are for files in grey), `cvtColor` between RGB and BGR, `resize` (linear or nearest), `flip` and
`copyMakeBorder` with a constant; and for NumPy's slices, `flip`, `fliplr`, `flipud`, `copy`, `stack` of masks,
`ascontiguousarray` and `transpose(2, 0, 1)`, `Image.fromarray` and `torch.from_numpy`. A part of an array that is
changed in place ends DALI's work before that part was taken.
"""
_CHAINS = "tests/loaders/transforms/op_chains.py"
_PHOTOS = "36 generated JPEGs of 60 to 150 pixels a side, a third with an EXIF orientation, a quarter gray."


def _chains_of(name: str) -> list[str]:
    return [chain for chain in DIRECT if chain.replace(",", " ").split()[0] == name]


def main() -> None:
    """Measure every chain and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        root = mixed_photos(Path(folder))
        chains = {**DIRECT, **{name: chain for name, (chain, _) in HYBRID.items()}}
        rows = {name: measured(root, name, chain) for name, chain in chains.items()}
        chains = {**OF_ARRAYS, **{name: chain for name, (chain, _) in OF_ARRAYS_HYBRID.items()}}
        arrays = {name: measured(root, name, chain, "array") for name, chain in chains.items()}
    PAGE.write_text(page(rows, arrays), encoding="utf-8")


if __name__ == "__main__":
    main()
