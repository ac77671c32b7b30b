"""What only a machine with an NVIDIA GPU can show: NVML's rows, and DALI decoding on the GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor import switchable
from kernel_monitor.demo import demo_data
from kernel_monitor.loaders import DaliSample, SwitchableLoader
from kernel_monitor.sample.sampler_client import SamplerClient

IMAGES = 256
# DALI's own tests allow a mean of 1 of 255 between the CPU and the mixed JPEG decoder with fancy upsampling.
DECODER_BOUND = 1.0
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

TRAIN = v2.Compose(
    [
        v2.RandomResizedCrop(224, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
)
EVALUATION = v1.Compose([v1.Resize(256), v1.CenterCrop(224), v1.ToTensor(), v1.Normalize(MEAN, STD)])
HYBRID = v1.Compose([v1.RandomResizedCrop(224), v1.RandAugment(), v1.ToTensor(), v1.Normalize(MEAN, STD)])

Wrap = Callable[..., SwitchableLoader]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_data(tmp_path_factory.mktemp("demo"), images=IMAGES, progress=False)


@pytest.fixture
def wrap(demo: Path) -> Iterator[Wrap]:
    made: list[SwitchableLoader] = []

    def wrap(transform: Any = TRAIN, *, device: Any = None, dali: Any = None, **options: Any) -> SwitchableLoader:
        settings: dict[str, Any] = {"batch_size": 32, "num_workers": 2, "persistent_workers": True, **options}
        loader = DataLoader(ImageFolder(str(demo), transform), **settings)
        made.append(switchable(loader, device=device, dali=dali, seed=3))
        return made[-1]

    yield wrap
    for loader in made:
        loader.release()


def on_gpu(loader: SwitchableLoader) -> SwitchableLoader:
    """Switch, and iterate until DALI delivers: workers must have been forked before it is built."""
    loader.switch("dali-gpu")
    deadline = time.monotonic() + 120
    while loader.backend != "dali-gpu":
        assert time.monotonic() < deadline, loader.state()["status"]
        assert "failed" not in loader.state()["status"], loader.state()["status"]
        for _ in loader:
            pass
    return loader


def deliver(loader: SwitchableLoader) -> tuple[torch.Tensor, torch.Tensor]:
    loader.set_epoch(9)
    images, targets = zip(*((images.cpu(), targets) for images, targets in loader), strict=True)
    return torch.cat(images), torch.cat(targets)


def test_every_gpu_has_its_rows() -> None:
    hellos: list[dict[str, Any]] = []
    frames: list[list[float]] = []
    client = SamplerClient(
        0.1, hellos.append, lambda _stamp, _missed, values: frames.append(list(values)), print, print
    )
    client.start()
    try:
        until = time.monotonic() + 30
        while len(frames) < 30 and time.monotonic() < until:
            torch.ones(2048, 2048, device="cuda") @ torch.ones(2048, 2048, device="cuda")
            torch.cuda.synchronize()
    finally:
        client.stop()
    hello = hellos[-1]
    assert hello["gpu_reason"] is None
    names = [series["name"] for series in hello["series"]]
    for gpu in hello["gpus"]:
        used = frames[-1][names.index(f"gpu/{gpu['index']}/memory_used")]
        assert math.isfinite(used)
        assert 0 < used <= gpu["memory_total"]


def test_batches_come_on_the_gpu_each_sample_once(wrap: Wrap) -> None:
    loader = on_gpu(wrap(shuffle=True))
    for images, labels in loader:
        assert images.device == torch.device("cuda", torch.cuda.current_device())
        assert images.dtype == torch.float32
        assert images.shape == (len(labels), 3, 224, 224)
    for counts in loader.epochs():
        assert counts["samples"] == IMAGES
        assert counts["lost"] == counts["doubled"] == 0
    assert loader.decoded() == {"dali-gpu": IMAGES}


@pytest.mark.parametrize("chain", [TRAIN, EVALUATION, HYBRID], ids=["train", "evaluation", "hybrid"])
def test_the_pixels_are_those_of_torchvision(wrap: Wrap, chain: Any) -> None:
    loader = wrap(chain, num_workers=0, persistent_workers=False)
    expected, targets = deliver(loader)
    images, same = deliver(on_gpu(loader))
    assert loader.decoded() == {"dali-gpu": IMAGES}
    assert torch.equal(targets, same)
    unit = 255 * torch.tensor(STD)[:, None, None]
    each = ((images - expected).abs() * unit).mean(dim=(1, 2, 3))
    print(f"mean difference {each.mean():.3f} of 255, of the worst image {each.max():.3f}")
    assert (each.median() if chain is HYBRID else each.mean()) <= DECODER_BOUND


def test_parity_is_what_the_page_shows(wrap: Wrap) -> None:
    parity = wrap().parity(64)
    print(parity)
    assert parity.backends == ("torchvision", "dali-gpu")
    assert parity.parameters_equal
    assert parity.mean <= DECODER_BOUND


def test_a_fused_decode_gives_the_same_pixels(wrap: Wrap) -> None:
    loader = wrap(num_workers=0, persistent_workers=False)
    loader.fused_decode = True
    fused = deliver(on_gpu(loader))[0]
    engine = loader.pool["dali-gpu"].engine
    loader.fused_decode = False
    deadline = time.monotonic() + 60
    while loader.pool["dali-gpu"].engine is engine:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    whole = deliver(loader)[0]
    difference = (fused - whole).abs().mean() * 255 * 0.226
    print(f"fused against whole decode: mean difference {difference:.3f} of 255")
    assert difference <= DECODER_BOUND


def test_work_on_a_side_stream_sees_the_batch(wrap: Wrap) -> None:
    loader = on_gpu(wrap(num_workers=0, persistent_workers=False))
    expected = deliver(loader)[0]
    side = torch.cuda.Stream()
    sums, copies = [], []
    loader.set_epoch(9)
    with torch.cuda.stream(side):
        iterator = iter(loader)
        while True:
            torch.cuda._sleep(
                20_000_000
            )  # the stream lags behind: a batch handed out too early would be seen unfinished
            batch = next(iterator, None)
            if batch is None:
                break
            sums.append(batch[0].double().sum(dim=(1, 2, 3)))
            copies.append(batch[0].clone())
            del batch  # its memory may be used again only after the clone, which the stream has not come to yet
    side.synchronize()
    assert torch.equal(torch.cat(copies).cpu(), expected)
    assert torch.allclose(torch.cat(sums).cpu(), expected.double().sum(dim=(1, 2, 3)))


def test_a_stream_per_batch_sees_the_batch(wrap: Wrap) -> None:
    loader = on_gpu(wrap(num_workers=0, persistent_workers=False))
    expected = deliver(loader)[0]
    loader.set_epoch(9)
    iterator = iter(loader)
    found, ends = [], []
    for number in range(len(loader)):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            images = next(iterator)[0]
            torch.cuda._sleep(5_000_000 * (number % 3))
            found.append(images.clone())
            ends.append(stream)
    for stream in ends:
        stream.synchronize()
    assert torch.equal(torch.cat(found).cpu(), expected)


def test_the_users_batch_may_be_changed_in_place(wrap: Wrap) -> None:
    loader = on_gpu(wrap(num_workers=0, persistent_workers=False))
    expected = deliver(loader)[0]
    loader.set_epoch(9)
    kept = []
    for images, _ in loader:
        kept.append(images.clone())
        images.zero_()
    assert torch.equal(torch.cat(kept).cpu(), expected)


@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
def test_batches_in_host_memory_are_pinned(wrap: Wrap, backend: str) -> None:
    loader = wrap(pin_memory=True, num_workers=0, persistent_workers=False)
    loader.switch(backend)
    deadline = time.monotonic() + 60
    while loader.state()["wanted"] is not None and loader.switch_state.preparing is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for images, labels in loader:
        assert images.device.type == "cpu"
        assert images.is_pinned()
        assert labels.is_pinned()
    assert loader.backend == backend


def test_the_rest_of_a_chain_ends_on_the_gpu(wrap: Wrap) -> None:
    images, _ = next(iter(on_gpu(wrap(HYBRID, num_workers=0, persistent_workers=False))))
    assert images.device.type == "cuda"


def test_a_pipeline_of_ones_own(wrap: Wrap) -> None:
    def pipeline(sample: DaliSample) -> Any:
        from nvidia.dali import fn, types

        assert sample.device == "mixed"
        image = fn.decoders.image(sample.encoded, device=sample.device, output_type=types.RGB)
        image = fn.crop(image, crop=[200, 200], crop_pos_x=sample.uniform(2)[0], crop_pos_y=sample.uniform(2)[1])
        return fn.crop_mirror_normalize(image, output_layout="CHW", std=[255.0] * 3)

    loader = on_gpu(wrap(dali=pipeline, num_workers=0, persistent_workers=False))
    first, second = deliver(loader)[0], deliver(loader)[0]
    assert first.shape == (IMAGES, 3, 200, 200)
    assert torch.equal(first, second)
    assert next(iter(loader))[0].device.type == "cuda"


def test_files_that_dali_is_not_given_end_on_the_gpu_too(wrap: Wrap, demo: Path) -> None:
    loader = wrap(num_workers=0, persistent_workers=False)
    path = Path(loader.dataset.samples[5][0])
    content = path.read_bytes()
    try:
        with Image.open(path) as picture:
            picture.convert("RGB").save(path, "GIF")
        assert next(iter(on_gpu(loader)))[0].device.type == "cuda"
        assert loader.decoders()[5] == "torchvision"
    finally:
        path.write_bytes(content)


def test_the_device_decides_where_batches_are(wrap: Wrap) -> None:
    count = torch.cuda.device_count()
    absent = wrap(device=f"cuda:{count}").backends["dali-gpu"]
    assert not absent.available
    assert f"There is no cuda:{count}" in str(absent.reason)
    assert "device is cpu" in str(wrap(device="cpu").backends["dali-gpu"].reason)
    if count < 2:
        pytest.skip(f"needs two CUDA devices to choose between; here is one, {torch.cuda.get_device_name(0)}")
    loader = wrap(device="cuda:1", num_workers=0, persistent_workers=False)
    assert {images.device for images, _ in on_gpu(loader)} == {torch.device("cuda", 1)}
    assert torch.cuda.current_device() == 0


def test_throughput_of_every_engine(wrap: Wrap) -> None:
    """Prints a table; only that every engine delivers everything is asserted."""
    rows = []
    for name, fused in (("torchvision", True), ("dali-cpu", True), ("dali-gpu", True), ("dali-gpu", False)):
        loader = wrap(num_workers=8, pin_memory=True)
        loader.fused_decode = fused
        loader.switch(name)
        rates = []
        for _ in range(6):
            torch.cuda.synchronize()
            started, seen = time.monotonic(), 0
            for images, _labels in loader:
                images.to("cuda", non_blocking=True).mean()
                seen += len(images)
            torch.cuda.synchronize()
            assert seen == IMAGES
            if set(loader.decoded()) == {name}:
                rates.append(seen / (time.monotonic() - started))
        assert rates, f"no whole epoch from {name}: {loader.state()['status']}"
        rows.append((name, "fused" if fused else "whole", len(rates), sorted(rates)[len(rates) // 2]))
        loader.release()
    print(f"{torch.cuda.get_device_name(0)}, {IMAGES} images of the demo set, batch 32, 8 workers or threads")
    for name, decode, epochs, rate in rows:
        print(f"{name:12} {decode:6} {epochs} epochs, median {rate:8,.0f} images/s")
