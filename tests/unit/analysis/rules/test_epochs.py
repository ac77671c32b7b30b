"""The rule on epochs that ended and delivered nothing, or far too little: real iterators, and counts as told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms.functional import pil_to_tensor

from kernel_monitor import switchable, watch_loader
from kernel_monitor.analysis.results import Finding
from kernel_monitor.analysis.session_analysis import analyse
from kernel_monitor.ipython.answers import analysis_text
from kernel_monitor.runtime.loader_tracker import LoaderTracker
from kernel_monitor.store import Snapshot, Store
from tests.unit.rules_asked import ask
from tests.unit.sessions import Run, build

RULE = "empty-epoch"


class Session:
    """A tracker that follows this process's loaders, as a session has one."""

    def __init__(self) -> None:
        self.store = Store()
        self.tracker = LoaderTracker(self.store, lambda _: 1.0, lambda *_args, **_fields: None)

    def refresh(self) -> None:
        self.tracker.refresh()

    def snapshot(self, loader: str) -> Snapshot:
        """The session as a report has it, of the one loader with that name."""
        return self.store.snapshot([one for one in self.tracker.reported() if one["name"] == loader], {})

    def told(self, loader: str) -> Finding:
        return ask(RULE, self.snapshot(loader))


@pytest.fixture
def session() -> Session:
    return Session()


def batches(count: int = 5) -> Iterator[torch.Tensor]:
    for _ in range(count):
        yield torch.zeros(4, 3)


def test_an_exhausted_generator_is_flagged_in_every_epoch_after_the_first(session: Session) -> None:
    watched = watch_loader(batches(), name="generated")
    for _ in range(10):
        for _ in watched:
            session.refresh()
    found = session.told("generated")
    assert (found.state, found.times, found.severity) == ("fired", 9, "warning")
    assert found.evidence[0].text == (
        "generated: 9 epochs (2 to 10) delivered nothing; epoch 1 delivered 20 samples in 5 batches. The iterator was "
        "at its end and was not reset: an average over epochs counts them as whole"
    )
    assert "iterator.reset()" in found.advice


def test_the_published_trap_is_in_verdict_text_and_json(session: Session) -> None:
    watched = watch_loader(batches(), name="published")
    for _ in range(2):
        for _ in watched:
            pass
    analysis = analyse(session.snapshot("published"))
    assert [(one.samples, one.problem) for one in analysis.epochs] == [
        (20, None),
        (0, "delivered 0 samples; epoch 1 delivered 20"),
    ]
    (warning,) = analysis.verdict.warnings
    assert warning.startswith(
        "published: epoch 2 delivered nothing; epoch 1 delivered 20 samples in 5 batches. The iterator was"
    )
    assert "an average over epochs counts it as whole. Make the iterator anew for each epoch" in warning
    assert f"careful {warning}" in " ".join(analysis_text(analysis).split())
    told = analysis.to_json()
    assert told["verdict"]["warnings"] == [warning]
    assert next(one for one in told["findings"] if one["rule"] == RULE)["state"] == "fired"


def test_epochs_that_pass_before_the_loader_ends_are_counted(session: Session) -> None:
    """As in a function that trains and returns: a tenth of a second lies between two looks."""
    watched = watch_loader(batches(), name="local")
    for _ in watched:
        session.refresh()
    assert [len(list(watched)) for _ in range(2)] == [0, 0]
    del watched
    found = session.told("local")
    assert found.evidence[0].text.startswith("local: epochs 2 and 3 delivered nothing; epoch 1 delivered 20 samples")
    (told,) = [one for one in session.tracker.states() if one["name"] == "local"]
    assert (told["ended"], told["epoch"], told["status"]) == (True, 2, "watched, batch 0")


def test_an_iterator_that_was_made_once_is_flagged_and_one_made_anew_is_not(session: Session) -> None:
    loader = watch_loader([torch.zeros(4, 3)] * 5, name="listed")
    for _ in range(3):
        assert len(list(loader)) == 5
    assert session.told("listed").state == "quiet"
    once = iter(loader)
    assert [len(list(once)) for _ in range(2)] == [5, 0]
    found = session.told("listed")
    assert found.evidence[0].text.startswith("listed: epoch 5 delivered nothing")


def test_a_loop_that_is_left_or_fails_is_not_flagged(session: Session) -> None:
    class Broken:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return self

        def __next__(self) -> torch.Tensor:
            raise ValueError("no file")

    loader = watch_loader([torch.zeros(4, 3)] * 20, name="left")
    for stop in (20, 1, 2, 20):
        for number, _ in enumerate(loader, 1):
            if number == stop:
                break
    assert list(loader)
    assert session.told("left").state == "quiet"
    fails = watch_loader(Broken(), name="fails")
    with pytest.raises(ValueError, match="no file"):
        list(fails)
    assert session.told("fails").state == "abstained"


@pytest.mark.parametrize(("second", "state"), [(49, "fired"), (50, "quiet"), (51, "quiet")])
def test_less_than_half_of_the_epochs_before_is_far_too_little(session: Session, second: int, state: str) -> None:
    lengths = iter([100, second])

    class Anew:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return batches(next(lengths))

    loader = watch_loader(Anew(), name=f"anew{second}")
    list(loader)
    list(loader)
    found = session.told(f"anew{second}")
    assert found.state == state
    if state == "fired":
        assert found.evidence[0].text == (
            "anew49: epoch 2 came to its end after 196 samples, 49 % of the 400 that those before it delivered: an "
            "average over epochs counts it as whole"
        )


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"samples": 300}, "fired"),
        ({"samples": 300, "finished": False}, "abstained"),
        ({"samples": 300, "replaced": 600}, "quiet"),
        ({"samples": 300, "skipped": 600}, "quiet"),
        ({"samples": 0, "batch": 0, "planned": 0}, "fired"),
        ({"samples": 0, "batch": 0, "planned": 0, "finished": False}, "abstained"),
    ],
)
def test_what_a_loaders_own_length_promises_counts(fields: dict[str, Any], state: str) -> None:
    told = {"planned": 1000, "batch": 10, "finished": True, **fields}
    found = ask(RULE, build(10, states=[told]))
    assert found.state == state
    if told["samples"] and state == "fired":
        assert "after 300 samples, 30 % of the 1,000 that its loader's length promises" in found.evidence[0].text


def test_recordings_of_before_say_nothing_of_how_their_epochs_ended() -> None:
    (missing,) = ask(RULE, build(60, runs=[Run(0, 60)])).missing
    assert missing == "an epoch that came to its end"
    assert ask(RULE, Store().snapshot([], {})).state == "abstained"


class OnePicture(Dataset[Any]):
    """The same picture again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.transform = pil_to_tensor

    def image_file(self, index: int) -> tuple[str, int]:
        return str(self.path), index

    def __getitem__(self, index: int) -> Any:
        return pil_to_tensor(Image.open(self.path)), index

    def __len__(self) -> int:
        return 8


class DrawnOnce(Sampler[int]):
    """A sampler that keeps one iterator, which ends with the first epoch."""

    def __init__(self) -> None:
        self.order = iter(range(8))

    def __iter__(self) -> Iterator[int]:
        return self.order

    def __len__(self) -> int:
        return 8


def test_a_switchable_loader_whose_sampler_is_used_up_is_flagged(session: Session, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "one.jpg")
    loader = switchable(
        DataLoader(OnePicture(tmp_path / "one.jpg"), batch_size=4, sampler=DrawnOnce()), name="drawn", seed=1
    )
    try:
        assert len(list(loader)) == 2
        assert session.told("drawn").state == "quiet"
        assert list(loader) == []
        found = session.told("drawn")
        assert found.evidence[0].text.startswith(
            "drawn: epoch 2 delivered nothing; epoch 1 delivered 8 samples in 2 batches"
        )
    finally:
        loader.release()


def dali_iterator(folder: Path) -> Any:
    """A reader over twelve files, four in a batch, that is not reset at its end."""
    pytest.importorskip("nvidia.dali")
    from nvidia.dali import Pipeline, fn
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    for number in range(12):
        pixels = np.full((16, 16, 3), 20 * number, dtype=np.uint8)
        (folder / "all").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / "all" / f"{number}.jpg")

    pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None)
    with pipeline:
        files, labels = fn.readers.file(file_root=str(folder), name="reader")
        pipeline.set_outputs(fn.decoders.image(files, device="cpu"), labels)
    pipeline.build()
    return DALIGenericIterator([pipeline], ["images", "labels"], reader_name="reader", auto_reset=False)


def pulled(iterator: Any) -> int:
    """A loop that asks for the next batch, as the published script's iterator was asked."""
    count = 0
    while True:
        try:
            next(iterator)
        except StopIteration:
            return count
        count += 1


def test_dalis_own_iterator_that_is_never_reset_is_flagged_and_a_reset_one_is_not(
    session: Session, tmp_path: Path
) -> None:
    watched = watch_loader(dali_iterator(tmp_path), name="dali")
    assert pulled(watched) == 3
    watched.reset()
    assert pulled(watched) == 3
    assert session.told("dali").state == "quiet"
    assert pulled(watched) == 0
    found = session.told("dali")
    assert found.evidence[0].text.startswith(
        "dali: epoch 3 delivered nothing; epoch 1 delivered 12 samples in 3 batches"
    )
    # DALI 2 resets in iter(), which a `for` calls.
    assert [len(list(watched)), len(list(watched))] == [3, 3]
    assert session.told("dali").times == 1
