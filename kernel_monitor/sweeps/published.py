"""The published figures that a preset is measured beside, with the machines that they are of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One published table: `cells` has by row and column what it says, `words` what can and cannot be compared."""

    title: str
    machine: str
    unit: str
    columns: tuple[str, ...]
    cells: dict[str, tuple[float, ...]]
    words: tuple[str, ...]
    images: str = ""


SAGEMAKER = Published(
    title="DALI on SageMaker, as published",
    machine="8 vCPU and one V100; imagenette2 in full size, batch 32",
    unit="s per epoch",
    columns=("Trial A, torchvision", "Trial B, DALI"),
    cells={
        "resnet18 · load 1": (41.67, 21.3),
        "resnet18 · load 4": (49.95, 21.37),
        "resnet18 · load 8": (61.92, 21.08),
        "resnet18 · load 12": (77.82, 21.33),
        "resnet50 · load 1": (72.64, 46.94),
        "resnet50 · load 4": (75.21, 45.02),
        "resnet50 · load 8": (81.22, 46.29),
        "resnet50 · load 12": (88.89, 46.43),
        "resnet152 · load 1": (166.96, 119.96),
        "resnet152 · load 4": (169.68, 115.23),
        "resnet152 · load 8": (169.03, 117.73),
        "resnet152 · load 12": (173.18, 114.38),
    },
    words=(
        (
            "Comparable: how a column changes with the load. It grows where the loop waits for the processor, and "
            "stays level with an engine that is fast enough."
        ),
        "Not comparable: the seconds themselves. They are of another machine, other images and another size of epoch.",
        (
            "Not comparable: Trial B with Trial A. The published script never reset DALI's iterator and took the mean "
            "of two epochs, of which the second very probably delivered nothing. Doubled, ResNet152 with DALI is "
            "slower than with torchvision."
        ),
        (
            "Not comparable either: the work. Its DALI pipeline always flipped and rotated by exactly 5 degrees on a "
            "growing canvas, shuffled where torchvision did not, and cropped 256 and then 224. Here both engines "
            "compute the same crops, flips and angles of the same samples in the same order."
        ),
    ),
    images="imagenette2 (9,469 images in its training part)",
)
CASE_STUDY = Published(
    title="ResNet50 with DALI, a case study, as published",
    machine="MXNet; DGX-2: 16 GPUs × 256, AWS P3: 8 × 192, TITAN RTX: 1 × 128",
    unit="images/s",
    columns=("native", "synthetic", "DALI", "DALI, fused decode"),
    cells={
        "DGX-2": (12586, 22656, 21034, 21592),
        "AWS P3": (5740, 10738, 10138, 10418),
        "TITAN RTX": (553, 585, 575, 578),
    },
    words=(
        (
            "Comparable: the share of the synthetic ceiling that a loader reaches. The published DALI reaches 95.3 % "
            "(DGX-2), 97.0 % (P3) and 98.8 % (TITAN RTX) of it with fused decode."
        ),
        "Not comparable: images/s. They are of other GPUs, another framework and mixed precision.",
    ),
)
PUBLISHED = {"sagemaker-dali": SAGEMAKER, "resnet50-case-study": CASE_STUDY}
