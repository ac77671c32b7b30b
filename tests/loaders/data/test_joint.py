"""Image and target together, and several views of an image: each engine gives what plain torch gives, draw by draw."""

from __future__ import annotations

import functools
import gc
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import transforms as v1
from torchvision import tv_tensors

from kernel_monitor import switchable
from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import SwitchableLoader

from ..conftest import MEAN, STD, switch_to
from . import array_joint, own_joint, torchvision_joint, views
from .datasets import as_written, equal
from .joint_comparison import Comparison, Reference
from .torchvision_joint import SAMPLES, STANDARD, JointCase

SEED, BATCH = 11, 3
CASES = (
    *torchvision_joint.CASES,
    *own_joint.CASES,
    *own_joint.DELICATE,
    *array_joint.CASES,
    *array_joint.DELICATE,
    *views.CASES,
)
RUNNABLE = [case for case in CASES if case.needs is None or importlib.util.find_spec(case.needs) is not None]
BY_DALI = [case for case in RUNNABLE if case.offered and case.odd < case.samples]
WITH_WORKERS = {
    *("VOCSegmentation", "Kitti", "EuroSAT", "train ids looked up", "SimCLR", "DINO", "closure"),
    *("Caltech256, some in grey", "instances of 16 bits", "albumentations, masks in files"),
    *("detection as in the tutorial, resized", "holes by hand", "albumentations, mask", "views in a list"),
}
RESUMED = {"VOCSegmentation", "Cityscapes, by hand", "EuroSAT", "detection of variable sizes", "DINO"}


@pytest.fixture(autouse=True)
def closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close files that are cut off here, where the warning is expected."""
    yield
    if "cut" in request.node.name or "fault" in request.node.name:
        gc.collect()


Folder = Callable[[JointCase], Path]
by_name = pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)

pytestmark = [as_written, pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")]


def batches_of(case: JointCase, samples: list[Any]) -> list[Any]:
    return [case.collate(samples[first : first + BATCH]) for first in range(0, len(samples), BATCH)]


@functools.cache
def plain(case: JointCase, root: Path, epoch: int = 0) -> list[Any]:
    dataset = case.make(root)
    return batches_of(case, Reference(dataset, [(case, dataset)], SEED).samples(epoch))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder of a case's files."""
    return functools.cache(lambda case: tmp_path_factory.mktemp("joint"))


def loader_of(case: JointCase, root: Path, workers: int = 0, batch_size: int = BATCH) -> SwitchableLoader:
    loader = DataLoader(case.make(root), batch_size=batch_size, num_workers=workers, collate_fn=case.collate)
    return switchable(loader, seed=SEED)


# ---- The comparison.


def same_batches(case: JointCase, found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    comparison = Comparison(case)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        try:
            comparison.check(one, other)
        except AssertionError as error:
            raise AssertionError(f"batch {number}: {error}") from error
    assert comparison.images >= case.samples


def single(case: JointCase, batch: Any) -> list[Any]:
    """The samples of a batch, each as a batch of one."""
    return [case.collate([sample]) for sample in (batch if case.collate is list else zip(*batch, strict=True))]


def counted(loader: SwitchableLoader, case: JointCase) -> None:
    state: Any = loader.state()
    assert (state["lost"], state["doubled"], state["samples"]) == (0, 0, case.samples)


# ---- The tests.


def test_the_cases_are_many() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    kinds = {case.name.partition(",")[0] for case in torchvision_joint.CASES}
    assert len(kinds) >= 20
    assert len(own_joint.CASES) + len(array_joint.CASES) >= 16
    assert len(views.CASES) >= 10


@pytest.mark.usefixtures("without_dali")
@pytest.mark.parametrize("half", [0, 1])  # of more objects than these have, generators are not looked for
def test_workers_give_what_plain_torch_gives(half: int, folder: Folder) -> None:
    """Many cases in one: what draws in one part has no effect on another."""
    cases = [case for case in RUNNABLE if case.name != "Caltech101, contour"]  # which a dry run alone makes known
    cases = cases[half::2]
    parts = [(case, case.make(folder(case))) for case in cases]
    dataset: Any = ConcatDataset([part for _, part in parts])
    expected = Reference(dataset, parts, SEED).samples()
    names = [case.name for case in cases for _ in range(case.samples)]
    whole: Any = ConcatDataset([case.make(folder(case)) for case in cases])
    wrapped = DataLoader(whole, batch_size=BATCH, num_workers=2, collate_fn=list)
    loader = switchable(wrapped, seed=SEED, dry_run=False)
    found = [sample for batch in loader for sample in batch]
    assert loader.history == []
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert equal(one, other), (number, names[number])


def delivered_by(loader: SwitchableLoader, case: JointCase, engine: str = "dali-cpu") -> None:
    """Assert that an engine decoded all but the odd samples of the newest epoch."""
    assert loader.backend == engine
    if case.offered is None:
        return
    fallbacks = loader.fallbacks()
    assert len(fallbacks) == case.odd, fallbacks
    decoded = {engine: case.samples - case.odd, "torchvision": case.odd}
    assert loader.decoded() == {name: count for name, count in decoded.items() if count}


@by_name
def test_each_engine_gives_what_plain_torch_gives(case: JointCase, folder: Folder) -> None:
    loader = loader_of(case, folder(case))
    backend = loader.backends["dali-cpu"]
    assert backend.available == loader.backends["threads"].available
    if case.offered is not None:
        assert backend.available == case.offered, backend.reason

    expected = plain(case, folder(case))
    found = list(loader)
    assert loader.history == []
    counted(loader, case)
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert equal(one, other), f"batch {number}"
    same_batches(case, found, expected)  # and the images are where the case says

    if not backend.available:
        return
    for engine, epoch in (("dali-cpu", 1), ("threads", 0)):  # each epoch with draws of its own
        switch_to(loader, engine).set_epoch(epoch)
        found = list(loader)
        delivered_by(loader, case, engine)
        counted(loader, case)
        same_batches(case, found, plain(case, folder(case), epoch))


@pytest.mark.parametrize("case", BY_DALI[::8], ids=lambda case: case.name)
def test_switches_within_the_epoch_change_no_sample(case: JointCase, folder: Folder) -> None:
    loader = loader_of(case, folder(case), batch_size=1)
    iterator, found = iter(loader), list[Any]()
    for engine, batches in (("dali-cpu", 4), ("torchvision", 3)):
        found.append(next(iterator))
        switch_to(loader, engine)
        found += [next(iterator) for _ in range(batches)]
    found += iterator
    assert [switch.target for switch in loader.history] == ["dali-cpu", "torchvision"]
    counted(loader, case)
    assert set(loader.decoded()) == {"dali-cpu", "torchvision"}
    expected = [sample for batch in plain(case, folder(case)) for sample in single(case, batch)]
    same_batches(case, found, expected)


@pytest.mark.parametrize("case", [case for case in RUNNABLE if case.name in WITH_WORKERS], ids=lambda case: case.name)
def test_engines_beside_workers_give_what_torchvision_gives(case: JointCase, folder: Folder) -> None:
    loader = loader_of(case, folder(case), workers=2)
    for engine in ("dali-cpu", "threads"):
        switch_to(loader, engine).set_epoch(0)
        found = list(loader)
        delivered_by(loader, case, engine)
        same_batches(case, found, plain(case, folder(case)))


@pytest.mark.parametrize("case", [case for case in RUNNABLE if case.name in RESUMED], ids=lambda case: case.name)
def test_a_resumed_epoch_goes_on_with_the_same_samples(case: JointCase, folder: Folder) -> None:
    first, second = (loader_of(case, folder(case)) for _ in range(2))
    switch_to(first, "dali-cpu")
    iterator = iter(first)
    found = [next(iterator) for _ in range(2)]
    second.load_state_dict(first.state_dict())
    switch_to(second, "dali-cpu")
    found += second
    assert second.decoded() == {"dali-cpu": case.samples}  # with those before
    same_batches(case, found, plain(case, folder(case)))


Raised = tuple[type[BaseException], str]


def raised_by(epoch: Callable[[], Any]) -> tuple[Exception, Raised]:
    with pytest.raises((OSError, ValueError, SampleError)) as caught:
        epoch()
    error = caught.value
    cause = error.__cause__ if isinstance(error, SampleError) and error.__cause__ is not None else error
    return error, (type(cause), str(cause).partition("\n")[0])


@pytest.mark.parametrize("fault", own_joint.FAULTY)
@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
def test_a_faulty_sample_raises_what_plain_torch_raises(backend: str, fault: str, folder: Folder) -> None:
    case = own_joint.FAULTY[fault]
    _, expected = raised_by(lambda: plain(case, folder(case)))
    loader = switch_to(loader_of(case, folder(case), batch_size=1), backend)
    found = list[Any]()
    iterator = iter(loader)
    error, cause = raised_by(lambda: found.extend(iterator))
    assert cause == expected
    assert len(found) == 4
    assert isinstance(error, SampleError) == (expected[0] is not ValueError)  # an error of the file, or of the code
    if isinstance(error, SampleError):
        kind = "images" if fault.startswith("image") else "masks"
        assert error.index == 4
        assert Path(str(error.path)).parent == folder(case) / kind


@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
def test_a_file_that_cannot_be_read_is_left_out(backend: str, folder: Folder) -> None:
    case = own_joint.FAULTY["mask cut off"]
    loader = DataLoader(case.make(folder(case)), batch_size=1, collate_fn=list)
    left = switch_to(switchable(loader, seed=SEED, on_error="skip"), backend)
    assert len(list(left)) == SAMPLES - 1
    assert [skipped.index for skipped in left.skipped()] == [4]


NOT_ALIKE = {
    "stacked": lambda: v1.Compose([v1.Resize((32, 32)), v1.ToTensor()]),
    "normalised": lambda: v1.Compose([v1.Resize((32, 32)), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
}


@pytest.mark.parametrize("transform", NOT_ALIKE)
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
def test_images_in_grey_raise_among_others_what_plain_torch_raises(
    backend: str, joined: bool, transform: str, tmp_path: Path
) -> None:
    dataset = torchvision_joint.as_stored({1: "L", 5: "L"}, transform=NOT_ALIKE[transform])(tmp_path)
    if joined:  # transforms of two kinds, each with a pipeline of its own
        other = torchvision_joint.as_stored({1: "L", 5: "L"}, transform=NOT_ALIKE["stacked"])(tmp_path)
        dataset = ConcatDataset([dataset, other])
    with pytest.raises(RuntimeError) as expected:
        list(DataLoader(dataset, batch_size=4))
    loader = switch_to(switchable(DataLoader(dataset, batch_size=4), seed=SEED), backend)
    with pytest.raises(RuntimeError) as found:
        list(loader)
    assert str(found.value) == str(expected.value)
    assert type(found.value) is type(expected.value)


def test_the_comparison_sees_what_differs() -> None:
    case = JointCase("any", lambda _: None, ((0,), (1, "small")))  # type: ignore[arg-type, return-value]
    image, mask = torch.rand(3, 9, 8), tv_tensors.Mask(torch.arange(72).reshape(9, 8))
    boxes = tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYXY", canvas_size=(9, 8))
    batch = [(image, {"small": image, "mask": mask, "boxes": boxes, "label": 1})]
    Comparison(case).check(batch, [(image + 1.4 / STANDARD, {**batch[0][1], "small": image - 1.4 / STANDARD})])
    others: list[Any] = [
        [(image + 1.6 / STANDARD, batch[0][1])],
        [(image.double(), batch[0][1])],
        [(tv_tensors.Image(image), batch[0][1])],
        [(image[:, :8], batch[0][1])],
        [(image, {**batch[0][1], "label": True})],
        [(image, {**batch[0][1], "mask": tv_tensors.Mask(mask + (mask == 70))})],
        [(image, {**batch[0][1], "mask": torch.arange(72).reshape(9, 8)})],
        [(image, {**batch[0][1], "boxes": tv_tensors.wrap(boxes, like=boxes, canvas_size=(8, 9))})],
        [(image, dict(reversed(batch[0][1].items())))],
        [[image, batch[0][1]]],
        batch * 2,
    ]
    for other in others:
        with pytest.raises(AssertionError):
            Comparison(case).check(batch, other)
