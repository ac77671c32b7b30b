"""The table of docs/howto/frameworks.md: which frameworks work unmodified, and when a click takes effect.

`python -m tests.frameworks.table` writes it between its markers. Each row is asserted by the tests that look it up with
`row`; the versions are those of tests/constraints.txt, which the tests run with.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "frameworks.md"
CONSTRAINTS = ROOT / "tests" / "constraints.txt"
BEGIN = "<!-- Written by `python -m tests.frameworks.table` -->"
END = "<!-- End of the table -->"


class Click(StrEnum):
    """When a click on a loader takes effect."""

    MID_EPOCH = "in mid-epoch"
    NEXT_EPOCH = "from the next epoch on"
    NEVER = "–"


class Row(NamedTuple):
    """A row of the table: one use of a framework. Its loaders are measured in any case."""

    use: str
    package: str
    click: Click
    note: str = ""  # a sentence; if a click is refused, the reason and what to do


_ENDLESS = (
    "{} takes all its epochs from one iterator that never ends, so that there is no boundary between epochs at which "
    "an engine could begin."
)
_ITERABLE = (
    "The data set is iterable-style: its samples have no index, so that no other engine can take over between two of "
    "them."
)
ROWS: tuple[Row, ...] = (
    Row("Lightning `Trainer.fit`", "lightning", Click.MID_EPOCH),
    Row(
        "Lightning `CombinedLoader`",
        "lightning",
        Click.MID_EPOCH,
        "Its loaders are listed and switched one by one.",
    ),
    Row("Lightning `Trainer.fit`, two processes", "lightning", Click.MID_EPOCH),
    Row("Lightning Fabric `setup_dataloaders`", "lightning", Click.MID_EPOCH),
    Row("accelerate `prepare`, `gather_for_metrics`", "accelerate", Click.MID_EPOCH),
    Row(
        "accelerate `skip_first_batches`",
        "accelerate",
        Click.MID_EPOCH,
        "It makes another DataLoader for the rest of the epoch, which keeps the chosen engine.",
    ),
    Row("Transformers `Trainer`", "transformers", Click.MID_EPOCH),
    Row(
        "Transformers `Trainer.evaluate`",
        "transformers",
        Click.MID_EPOCH,
        "It makes a DataLoader for each evaluation, which keeps the chosen engine.",
    ),
    Row("timm `create_loader`", "timm", Click.MID_EPOCH),
    Row(
        "timm RandAugment, AutoAugment, RandomErasing, Mixup",
        "timm",
        Click.MID_EPOCH,
        "DALI decodes, crops and flips; the rest runs after it.",
    ),
    Row("timm `num_aug_repeats`", "timm", Click.MID_EPOCH),
    Row(
        "timm `use_multi_epochs_loader`",
        "timm",
        Click.NEVER,
        f"{_ENDLESS.format('MultiEpochsDataLoader')} create_loader(…, use_multi_epochs_loader=False) makes a "
        "DataLoader that can be switched; with persistent_workers=True it keeps its workers, too.",
    ),
    Row(
        "MONAI `Dataset` and `DataLoader`",
        "monai",
        Click.NEVER,
        "Dataset calls Image.ndim on whole images, and all that DALI would do is decode; resize or crop them first.",
    ),
    Row(
        "MONAI `CacheDataset` and `DataLoader`",
        "monai",
        Click.NEVER,
        "CacheDataset takes its samples decoded from memory: nothing is decoded in an epoch, and a switch would make "
        "it slower.",
    ),
    Row(
        "fastai `Learner.fit`",
        "fastai",
        Click.NEVER,
        "fastai's DataLoader lets each worker choose, compute and collate the samples, so that there is no order of "
        "samples to follow. A Learner also takes torch's own DataLoaders, which can be switched: "
        "DataLoaders(train_loader, valid_loader).",
    ),
    Row("fastai `Learner.fit` over torch's DataLoaders", "fastai", Click.MID_EPOCH),
    Row(
        "Ultralytics `YOLO.train`",
        "ultralytics",
        Click.NEVER,
        f"{_ENDLESS.format('InfiniteDataLoader')} What train() offers for a faster loader is workers=… for more "
        "processes, and cache='ram', which decodes each image once.",
    ),
    Row(
        "webdataset `WebLoader`",
        "webdataset",
        Click.NEVER,
        "The data set is iterable-style: its samples have no index, so that no other engine can take over between two "
        "of them. kernel_monitor.TarShards(…) has the same samples with an index, and can be switched.",
    ),
    Row(
        "torchdata `StatefulDataLoader`",
        "torchdata",
        Click.NEVER,
        "The state_dict() of StatefulDataLoader tells how far its own iterator has come, and would miss what another "
        "engine delivers. A plain DataLoader can be switched; of switchable(DataLoader(…)), state_dict() and "
        "load_state_dict() have the same use.",
    ),
    Row("Hugging Face `Dataset.with_transform`, `set_transform`", "datasets", Click.MID_EPOCH),
    Row(
        "Hugging Face `IterableDataset`, streaming",
        "datasets",
        Click.NEVER,
        f"{_ITERABLE} A map-style data set, with __getitem__ and __len__, can be switched.",
    ),
    Row("torchvision's references/classification", "torchvision", Click.MID_EPOCH),
    Row(
        "torchvision's references/segmentation",
        "torchvision",
        Click.MID_EPOCH,
        "Image and mask are transformed together; the masks are the same to the bit.",
    ),
)


def row(use: str) -> Row:
    """Return the row of a use; the tests assert its values."""
    (found,) = [one for one in ROWS if one.use == use]
    return found


def version(package: str) -> str:
    """Return the version of a package that the tests run with."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    (found,) = [line for line in lines if line.startswith(f"{package}==")]
    return found.split(";")[0].strip().partition("==")[2]


def table() -> str:
    """Return the table and its notes as Markdown."""
    lines = ["| framework and use | version | measured | switched by a click |", "|---|---|---|---|"]
    lines += [f"| {one.use} | {version(one.package)} | yes | {one.click} |" for one in ROWS]
    notes = [f"- {one.use}: {one.note}" for one in ROWS if one.note]
    return "\n".join(
        [*lines, "", "Notes, and the reasons for which a click is refused, as the page shows them:", "", *notes]
    )


def page(text: str) -> str:
    """Return the page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> None:
    """Write the table into the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
