"""The engine threads: its decoders beside Pillow's, where it runs, what it leaves alone, and how it ends."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor.errors import BackendUnavailable, MonitorError, SampleError
from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.loaders.engines import backends, thread_pipeline
from kernel_monitor.loaders.engines.thread_pipeline import ThreadPipeline

from ..conftest import augmented, check_counts, deliver, make_folder, on_both, run_python, switch_to, wait_for, worst


def wrap(root: Path, transform: Any = None, **options: Any) -> SwitchableLoader:
    settings: dict[str, Any] = {"batch_size": 8, "num_workers": 0, **options}
    return switchable(DataLoader(ImageFolder(root, transform or augmented()), **settings), seed=5)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "few", 24)


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kernel-monitor-threads")]


# ---- Pixels.


def encoded(kind: str, **options: Any) -> bytes:
    """A file in this format of an image with gradients, edges and noise."""
    rng = np.random.default_rng(3)
    pixels = np.kron(rng.integers(0, 256, (9, 13, 3)), np.ones((8, 8, 1))) + rng.integers(-20, 21, (72, 104, 3))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).crop((0, 0, 101, 71))
    mode = options.pop("mode", "RGB")
    file = io.BytesIO()
    image.convert(mode).save(file, kind, **options)
    return file.getvalue()


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    return exif


FILES = {
    "JPEG 4:2:0": encoded("JPEG", quality=85, subsampling=2),
    "JPEG 4:4:4": encoded("JPEG", quality=95, subsampling=0),
    "JPEG 4:2:2": encoded("JPEG", quality=60, subsampling=1),
    "JPEG progressive": encoded("JPEG", progressive=True),
    "JPEG in grey": encoded("JPEG", mode="L"),
    "JPEG with restarts": encoded("JPEG", restart_marker_blocks=3),
    "JPEG that EXIF turns": encoded("JPEG", exif=turned()),
    "PNG": encoded("PNG"),
    "PNG with alpha": encoded("PNG", mode="RGBA"),
    "PNG with a palette": encoded("PNG", mode="P"),
    "WebP": encoded("WEBP", quality=80),
    "BMP": encoded("BMP"),
}


@pytest.mark.parametrize("without", [False, True], ids=["torchcodec", "torchvision"])
@pytest.mark.parametrize("name", FILES)
def test_files_are_decoded_as_pillow_decodes_them(name: str, without: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if without:
        monkeypatch.setitem(__import__("sys").modules, "torchcodec", None)
    thread_pipeline._decoder.cache_clear()
    expected = np.asarray(Image.open(io.BytesIO(FILES[name])).convert("RGB"))
    decoded = thread_pipeline._decode(np.frombuffer(FILES[name], dtype=np.uint8), output_type="RGB")
    thread_pipeline._decoder.cache_clear()
    assert np.array_equal(decoded.numpy(), expected)


def test_an_epoch_is_that_of_torchvision(few: Path) -> None:
    (expected, targets), (images, same) = on_both(loader := wrap(few), engine="threads")
    assert torch.equal(targets, same)
    assert loader.decoded() == {"threads": 24}
    assert worst(images, expected) < 0.5
    parity = loader.parity(8, "threads")
    assert parity.backends == ("torchvision", "threads")
    assert parity.parameters_equal
    assert parity.mean < 0.3


def test_batches_have_memory_of_their_own(few: Path) -> None:
    """A batch that the loop changes in place does not change a later one."""
    loader = switch_to(wrap(few), "threads")
    kept = []
    for images, _ in loader:
        kept.append((images, images.clone()))
        images.resize_(1)
    assert len({whole.untyped_storage().data_ptr() for whole, _ in kept}) == len(kept)


# ---- Where it runs.


def test_it_needs_no_dali(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_dali_missing", lambda: "DALI runs on Linux only (on Windows: in WSL).")
    loader = wrap(few)
    assert not loader.backends["dali-cpu"].available
    assert loader.backends["threads"].available
    assert loader.knobs.threads is not None
    deliver(switch_to(loader, "threads"))
    assert loader.decoded() == {"threads": 24}
    assert loader.parity(4).backends == ("torchvision", "threads")


def test_what_it_cannot_do_is_refused_with_the_reason(few: Path) -> None:
    loader = wrap(few, v1.Compose([v1.AugMix(), v1.RandomResizedCrop(24), v1.ToTensor()]), num_workers=2)
    refusal = loader.backends["threads"].reason
    assert refusal is not None
    assert refusal.startswith("It computes what DALI can compute. ")
    assert "AugMix" in refusal
    with pytest.raises(BackendUnavailable, match="threads cannot be used: It computes what DALI"):
        loader.switch("threads")
    own = switchable(DataLoader(ImageFolder(few, augmented()), batch_size=8), dali=lambda sample: sample.encoded)
    assert own.backends["threads"].reason == "The pipeline given as dali= is for DALI alone."
    with pytest.raises(MonitorError, match="parity"):
        wrap(few).parity(4, "torchvision")


def test_the_note_says_what_the_engine_does(few: Path) -> None:
    loader = wrap(few, v1.Compose([v1.RandomResizedCrop(24), v1.AugMix(), v1.ToTensor()]))
    assert loader.backends["threads"].note == (
        "The engine decodes and does RandomResizedCrop; AugMix and 1 more run on the thread of the training loop."
    )


# ---- What it leaves alone.


def test_torch_keeps_its_number_of_threads_everywhere_else(few: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        pipeline = ThreadPipeline(lambda graph: (torch.tensor([torch.get_num_threads(), graph.fed("x", 0)]),),
                                  threads=2, dense=True)  # fmt: skip
        pipeline.feed_input("x", np.arange(9))
        pipeline.schedule_run()
        (found,) = pipeline.outputs()
        assert found.as_tensor().tolist() == [[1, row] for row in range(9)]

        def elsewhere() -> int:
            found: list[int] = []
            thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            return found[0]

        wait_for(lambda: elsewhere() == 3, 10)  # its second thread may begin later
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_results_of_several_sizes_are_kept_apart() -> None:
    pipeline = ThreadPipeline(lambda graph: (torch.zeros(graph.fed("n", 0)),), threads=2, dense=True)
    pipeline.feed_input("n", np.array([3, 3, 4, 3]))
    pipeline.schedule_run()
    (found,) = pipeline.outputs()
    assert not found.is_dense_tensor()
    assert [len(one) for one in found] == [3, 3, 4, 3]


def test_its_threads_end_with_the_engine(few: Path) -> None:
    loader = switch_to(wrap(few), "threads")
    deliver(loader)
    assert own_threads()
    loader.release()
    wait_for(lambda: not own_threads(), 10)
    deliver(loader)
    check_counts(loader, 24)


# ---- Faults and ends.


def test_a_file_that_goes_away_is_met_as_on_torchvision(few: Path) -> None:
    loader = switch_to(wrap(few, batch_size=2), "threads")
    deliver(loader)
    gone = Path(loader.dataset.samples[21][0])
    batches = iter(loader)
    next(batches)
    gone.unlink()
    with pytest.raises((SampleError, FileNotFoundError), match=gone.name):
        list(batches)


def test_a_file_that_is_replaced_by_nonsense_does_not_stop_the_others(few: Path) -> None:
    loader = switch_to(wrap(few, batch_size=4), "threads")
    real = thread_pipeline._OPERATORS.decoders.image_slice
    seen = []

    def stumbling(data: Any, *others: Any, **named: Any) -> Any:
        seen.append(data)
        if len(seen) == 9:
            raise ValueError("stumbled")
        return real(data, *others, **named)

    thread_pipeline._OPERATORS.decoders.image_slice = stumbling
    try:
        _, targets = deliver(loader)
    finally:
        thread_pipeline._OPERATORS.decoders.image_slice = real
    assert len(targets) == 24
    check_counts(loader, 24)
    assert {one.reason for one in loader.fallbacks()} == {"The engine threads failed: stumbled"}
    assert loader.decoded()["threads"] >= 16


ENDING = """
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from kernel_monitor.loaders import switchable
from tests.loaders.conftest import augmented, switch_to
data = ImageFolder({root!r}, augmented())
loader = switch_to(switchable(DataLoader(data, batch_size=4, num_workers={workers})), "threads")
for number, batch in enumerate(loader):
    if number == 2:
        break
print("ends", loader.backend)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_that_ends_within_an_epoch_ends(few: Path, workers: int) -> None:
    done = run_python("-c", ENDING.format(root=str(few), workers=workers))
    assert done.returncode == 0, done.stderr
    assert "ends threads" in done.stdout
    assert done.stderr == ""
