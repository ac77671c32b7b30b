"""The engines of a DataLoader that was never wrapped: what a click and the knobs do, what is refused, what stays."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules import module as module_hooks
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor.errors import BackendUnavailable, MonitorError
from kernel_monitor.loaders import takeover
from kernel_monitor.runtime import Monitor
from kernel_monitor.steps import attached
from kernel_monitor.steps.watched_loader import ATTACHED

from .attached_loops import attaching, click, click_from_page, engines_of, wait_until_ready
from .conftest import make_folder, wait_for
from .photos import Located, Photos

SAMPLES = 16
UNTOUCHED = "torchvision, as in your code; other engines draw crops and flips anew"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(make_folder(tmp_path_factory.mktemp("takeover"), SAMPLES).glob("*/*.jpg"))


@pytest.fixture(autouse=True)
def attached_to() -> Iterator[None]:
    gc.collect()  # loaders of other tests
    with attaching():
        yield


pytestmark = pytest.mark.usefixtures("without_dali")


def photos(files: list[Path], **options: Any) -> DataLoader[Any]:
    return DataLoader(Located(files), **{"batch_size": 2, "shuffle": True, **options})


def epoch(loader: Any, at: int = -1, backend: str = "dali-cpu", clicking: Any = click) -> list[int]:
    """Return the samples of an epoch, sorted; click after batch `at`, and wait after the next one for the engine."""
    seen = []
    for number, (_, targets) in enumerate(loader):
        seen += targets.tolist()
        if number == at:
            clicking(loader, backend)
        elif number == at + 1 > 0:
            wait_until_ready(loader)
    return sorted(seen)


class Opaque(Photos):
    """A data set that counts the calls of its `__getitem__`."""

    calls = 0

    def __getitem__(self, index: int) -> Any:
        Opaque.calls += 1
        return super().__getitem__(index)


def test_before_a_click_none_of_the_user_s_code_is_called(files: list[Path]) -> None:
    loader = DataLoader(Opaque(files), 2)
    next(batches := iter(loader))
    calls = Opaque.calls
    engines = engines_of(loader)
    state = engines.state()
    assert (state["attached"], state["backend"], state["wanted"], state["status"]) == (
        True, "torchvision", None, UNTOUCHED
    )  # fmt: skip
    assert state["knobs"] == {"workers": 0, "prefetch": 2, "threads": None}
    assert {one["name"]: one["available"] for one in state["backends"]}["dali-cpu"]
    note = engines.backends["dali-cpu"].note
    assert note is not None
    assert "found out at the click" in note
    assert takeover.DIFFERENCE in note
    assert (engines.taken_over, engines.clicks, engines.kind) == (False, [], "attached")
    assert Opaque.calls == calls
    assert len(list(batches)) == SAMPLES // 2 - 1


class TwoViews:
    """A transform that makes two views of an image, and counts its calls."""

    calls = 0
    view = v2.Compose([v2.RandomResizedCrop(16), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __call__(self, image: Any) -> list[Any]:
        TwoViews.calls += 1
        return [self.view(image), self.view(image)]


def test_a_transform_that_only_traces_may_follow_is_tried_at_the_click(files: list[Path]) -> None:
    loader = DataLoader(ImageFolder(files[0].parent.parent, TwoViews()), 2, num_workers=1)
    next(iter(loader))
    calls = TwoViews.calls
    engines = engines_of(loader)
    known = engines.backends["dali-cpu"]
    assert (known.available, known.reason, TwoViews.calls) == (True, None, calls)
    assert "found out at the click" in (known.note or "")
    for number, _ in enumerate(loader):
        if number == 0:
            click(loader)
    wait_until_ready(loader)
    note = engines.backends["dali-cpu"].note or ""
    assert "resizes and cuts 2 images" in note


def test_epochs_go_on_counting_from_torch_s_to_the_engine_s_and_back(files: list[Path]) -> None:
    loader = photos(files)
    assert epoch(loader) == list(range(SAMPLES))
    assert epoch(loader, at=2) == list(range(SAMPLES))
    engines = engines_of(loader)
    assert engines.backend == "dali-cpu"
    assert epoch(loader, at=1, backend="torchvision") == list(range(SAMPLES))
    assert engines.backend == "torchvision"
    assert type(iter(loader)).__name__ == "_SingleProcessDataLoaderIter"
    assert epoch(loader) == list(range(SAMPLES))
    counts = engines.epochs()
    assert [(one["epoch"], one["samples"], one["lost"], one["doubled"]) for one in counts] == [
        (number, SAMPLES, 0, 0) for number in range(4)
    ]
    assert [one["decoded"].get("dali-cpu", 0) > 0 for one in counts] == [False, True, True, False]
    assert [one.target for one in engines.clicks] == ["dali-cpu", "torchvision"]
    state = engines.state()
    assert (state["attached"], state["epoch"], state["samples"], state["wanted"]) == (True, 3, SAMPLES, None)
    steps = engines.meter.steps_since(0)[0]
    assert len(steps) == 4 * SAMPLES // 2
    assert sum(one.images for one in steps) == 4 * SAMPLES


@pytest.mark.parametrize("workers", [0, 1])
def test_a_click_from_the_page_waits_for_the_loop_s_thread(files: list[Path], workers: int) -> None:
    loader = photos(files, num_workers=workers)
    assert epoch(loader) == list(range(SAMPLES))
    click_from_page(loader, "dali-cpu")
    engines = engines_of(loader)
    state = engines.state()
    assert (engines.taken_over, state["wanted"], state["status"]) == (False, "dali-cpu", "switching to dali-cpu…")
    assert epoch(loader, at=0, clicking=click_from_page) == list(range(SAMPLES))
    wait_until_ready(loader)
    assert epoch(loader) == list(range(SAMPLES))
    assert engines.epochs()[-1]["decoded"]["dali-cpu"] > 0
    click_from_page(loader, "torchvision")
    wait_until_ready(loader)
    assert epoch(loader) == list(range(SAMPLES))
    assert engines.backend == "torchvision"


def test_a_click_back_before_it_took_place_leaves_torch_s_iterator(files: list[Path]) -> None:
    loader = photos(files)
    epoch(loader)
    click_from_page(loader, "dali-cpu")
    click_from_page(loader, "torchvision")
    engines = engines_of(loader)
    assert engines.state()["status"] == UNTOUCHED
    assert epoch(loader) == list(range(SAMPLES))
    assert not engines.taken_over


def test_the_search_for_the_model_that_is_trained_refuses_no_engine(files: list[Path]) -> None:
    """The search hooks all modules from an optimizer's first step to its next one; transforms are modules, too."""
    resized = v2.Compose([v2.Resize((24, 24)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    loader = DataLoader(ImageFolder(str(files[0].parents[1]), resized), 2, num_workers=1)
    optimizer = torch.optim.SGD([torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)], 0.1)
    batches = iter(loader)
    next(batches)
    optimizer.step()
    next(batches)
    assert module_hooks._global_forward_pre_hooks
    engine = engines_of(loader).backends["dali-cpu"]
    assert engine.available, engine.reason


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


@pytest.mark.parametrize(
    ("loader", "sentence"),
    [(lambda: DataLoader(Numbers(), 2), "iterable-style"), (lambda: DataLoader(range(8), None), "single samples")],  # type: ignore[arg-type]
)
def test_what_no_engine_can_take_over_says_so_before_a_click(loader: Any, sentence: str) -> None:
    one = loader()
    batches = iter(one)
    seen = [next(batches)]
    engines = engines_of(one)
    assert {found.available for found in engines.backends.values()} == {False}
    with pytest.raises(BackendUnavailable, match=sentence):
        engines.switch("dali-cpu")
    with pytest.raises(MonitorError, match=sentence):
        engines.set(workers=2)
    assert engines.state()["status"].startswith("watched")
    assert len([*seen, *batches]) == len(list(one))


class Unreadable(Dataset[Any]):
    """A data set whose length cannot be read once `broken` is set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broken = False

    def __len__(self) -> int:
        if self.broken:
            raise OSError(2, "No such file or directory", str(self.folder / "photos" / "list.txt"))
        return 6

    def __getitem__(self, index: int) -> int:
        return index


def test_a_refusal_on_the_loop_s_thread_is_in_the_status_without_folders(tmp_path: Path) -> None:
    dataset = Unreadable(tmp_path)
    loader: Any = DataLoader(dataset, sampler=[0, 1, 2, 3, 4, 5])
    batches = iter(loader)
    seen = [int(next(batches))]
    engines = engines_of(loader)
    assert engines.backends["synthetic"].available
    dataset.broken = True
    click_from_page(loader, "synthetic")
    seen += [int(batch) for batch in batches]
    assert seen == list(range(6))
    status = engines.state()["status"]
    assert status.endswith("; torchvision goes on")
    assert str(tmp_path) not in status
    assert "list.txt" in status
    assert not engines.taken_over
    dataset.broken = False
    assert [int(batch) for batch in loader] == list(range(6))
    click(loader, "torchvision")
    assert engines.state()["status"] == UNTOUCHED


class Cached(Photos):
    """A data set that keeps the images that it has decoded."""

    def __init__(self, files: list[Path]) -> None:
        super().__init__(files)
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]


def test_a_data_set_that_dali_cannot_serve_is_refused_with_its_reason_once(files: list[Path]) -> None:
    loader = DataLoader(Cached(files), 2)
    assert len(list(loader)) == SAMPLES // 2
    engines = engines_of(loader)
    with pytest.raises(BackendUnavailable, match=r"^dali-cpu cannot be used: Cached takes .+\.$") as raised:
        engines.switch("dali-cpu")
    assert str(raised.value).count("cannot be used") == 1
    reason = (engines.backends["dali-cpu"].reason or "").rstrip(".")
    assert engines.state()["status"] == f"dali-cpu cannot be used: {reason}; torchvision goes on"


def test_an_unknown_engine_is_refused_at_once(files: list[Path]) -> None:
    loader = photos(files)
    epoch(loader)
    with pytest.raises(BackendUnavailable, match="nothing"):
        engines_of(loader).switch("nothing")
    with pytest.raises(MonitorError):
        engines_of(loader).set(workers=-1)


def test_knobs_that_are_set_hold_and_are_torch_s_own_again_after_a_click_back(files: list[Path]) -> None:
    loader = photos(files)
    engines = None
    seen = []
    for number, (_, targets) in enumerate(loader):
        seen += targets.tolist()
        if number == 1:
            engines = engines_of(loader)
            engines.set(prefetch=3, threads=1)
    assert engines is not None
    assert sorted(seen) == list(range(SAMPLES))
    assert (engines.knobs.prefetch, engines.knobs.threads, engines.taken_over) == (3, 1, True)
    assert engines.state()["knobs"] == {"workers": 0, "prefetch": 3, "threads": 1}
    assert epoch(loader) == list(range(SAMPLES))
    assert is_an_engine_s(iter(loader))
    engines.set(workers=1)
    assert epoch(loader) == list(range(SAMPLES))
    wait_for(lambda: engines.knobs.workers == 1)
    engines.switch("torchvision")
    assert not is_an_engine_s(iter(loader))
    assert epoch(loader) == list(range(SAMPLES))


def is_an_engine_s(iterator: Any) -> bool:
    """Return whether an engine delivers the batches of an iterator, which is of torch's own class in any case."""
    assert type(iterator).__name__ == "_SingleProcessDataLoaderIter"
    steps = vars(iterator)[ATTACHED]
    return hasattr(steps, "handed_over") and steps.handed_over(iterator)


def test_choice_and_knobs_stay_for_a_loader_that_is_made_anew(files: list[Path]) -> None:
    dataset = Located(files)
    for number in range(3):
        loader: Any = DataLoader(dataset, 2, shuffle=True)
        assert epoch(loader, at=0 if number == 0 else -1) == list(range(SAMPLES))
        engines = engines_of(loader)
        if number == 0:
            engines.set(prefetch=3)
        wait_until_ready(loader)
        assert "dali-cpu" in (engines.state()["wanted"], engines.backend)
        assert engines.knobs.prefetch == 3
        assert engines.epochs()[-1]["epoch"] == number
        assert engines.epochs()[-1]["samples"] == SAMPLES
        assert [one.id for one in takeover.live()].count(engines.id) == 1


class Trainer:
    """A trainer with a loader whose collate function is the trainer's method: a cycle of references."""

    def __init__(self, files: list[Path]) -> None:
        self.loader: Any = DataLoader(Located(files), 2, collate_fn=self.collate)

    def collate(self, samples: list[Any]) -> Any:
        return default_collate(samples)


def test_engines_go_with_the_loader_also_where_it_is_in_a_cycle(files: list[Path]) -> None:
    loader = photos(files)
    assert epoch(loader, at=1) == list(range(SAMPLES))
    made = weakref.ref(engines_of(loader).loader)
    kept = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert (kept(), made()) == (None, None)
    finally:
        gc.enable()
    trainer = Trainer(files)
    assert epoch(trainer.loader, at=1) == list(range(SAMPLES))
    made, kept = weakref.ref(engines_of(trainer.loader).loader), weakref.ref(trainer.loader)
    assert made() is not None
    del trainer
    gc.collect()
    assert (kept(), made()) == (None, None)


def test_two_threads_get_every_sample_once_each(files: list[Path]) -> None:
    loader = photos(files)
    seen: dict[int, list[int]] = {0: [], 1: []}

    def iterate(number: int) -> None:
        for _ in range(3):
            for _images, targets in loader:
                seen[number] += targets.tolist()

    threads = [threading.Thread(target=iterate, args=(number,)) for number in seen]
    for thread in threads:
        thread.start()
    wait_for(lambda: attached.attached(loader) is not None)
    click_from_page(loader)
    for thread in threads:
        thread.join(60)
    assert [sorted(found) for found in seen.values()] == [sorted(list(range(SAMPLES)) * 3)] * 2


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_that_an_engine_has_is_delivered_after_the_monitor_s_end(files: list[Path], workers: int) -> None:
    loader = photos(files, num_workers=workers)
    seen = []
    for number, (_, targets) in enumerate(loader):
        seen += targets.tolist()
        if number == 0:
            click(loader)
        elif number == 1:
            wait_until_ready(loader)
        elif number == 6:
            attached.detach()
            assert not hasattr(DataLoader.__iter__, "__wrapped__")
    assert sorted(seen) == list(range(SAMPLES))
    assert not hasattr(_BaseDataLoaderIter.__next__, "__wrapped__")
    assert epoch(loader) == list(range(SAMPLES))


def test_the_monitor_lists_attached_and_wrapped_loaders(files: list[Path]) -> None:
    from kernel_monitor.loaders import switchable

    attached.detach()
    monitor = Monitor()
    monitor.start(record=False)
    try:
        train_loader = photos(files)
        wrapped = switchable(photos(files), name="wrapped")
        epoch(train_loader)
        found = {one.name: one for one in monitor.loaders if one.name in ("loader", "wrapped")}
        assert [(name, one.kind, one.backend) for name, one in sorted(found.items())] == [
            ("loader", "attached", "torchvision"), ("wrapped", "wrapped", "torchvision")
        ]  # fmt: skip
        one = found["loader"]
        assert one.backends["dali-cpu"].available
        assert repr(one) == f"<loader: attached, {UNTOUCHED}>"
        one.switch("dali-cpu")
        wait_until_ready(train_loader)
        assert epoch(train_loader) == list(range(SAMPLES))
        assert (one.backend, one.state()["samples"]) == ("dali-cpu", SAMPLES)
        one.set(prefetch=3)
        assert monitor.switch("torchvision", loader="loader")["attached"] is True
        (state,) = [one for one in monitor.loader_states() if one["name"] == "loader"]
        assert (state["attached"], state["ended"]) == (True, False)
        del train_loader
        wait_for(lambda: gc.collect() >= 0 and repr(one) == "<loader: attached, ended>")  # once no page reads it
        with pytest.raises(MonitorError, match="loader is gone"):
            one.switch("dali-cpu")
        assert [one.kind for one in monitor.loaders if one.name in ("loader", "wrapped")] == ["wrapped"]
        wrapped.release()
    finally:
        monitor.stop()


def test_a_click_keeps_the_generators_of_the_training(files: list[Path]) -> None:
    """The click examines the data set, whose own code may draw."""
    loader = DataLoader(Opaque(files, lambda image: torch.rand(3)), 2)
    epoch(loader)
    before = torch.get_rng_state()
    with pytest.raises(BackendUnavailable, match="Opaque changes its own attributes"):
        click(loader)
    assert torch.equal(torch.get_rng_state(), before)
