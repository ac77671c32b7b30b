"""Images per second per core of JPEG decoders: each alone on one thread, and each in a DataLoader.

    python -m benchmarks.decoders [--rounds 7] [--images 256] [--workers N] [--json FILE]

*Alone* is the CPU time that a decoder takes for an image already in memory, on one thread. *In the loop* is what a
DataLoader delivers whose data set decodes with it, crops and resizes to 224 pixels (as Pillow's image where it gives
one, else as a tensor) and normalises; for the engines `dali-cpu` and `threads` it is what a switchable loader delivers.
The loop does nothing. All take turns within each round, forward and back, so that changes of the machine's speed affect
all alike. *Pixels* is the largest difference from Pillow's, of 255. Decoders that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms as v1

from kernel_monitor.loaders import switchable

from .common import MEAN, SIZE, STD, dataloader, images, machine, report, spread, switch_and_settle, versions

Decode = Callable[[bytes], Any]  # the image of a JPEG: Pillow's, or uint8[3, height, width]
BATCH = 32
ENGINES = ("dali-cpu", "threads")


def of_pillow(data: bytes) -> Any:
    return Image.open(io.BytesIO(data)).convert("RGB")


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def of_torchvision(data: bytes) -> Any:
    from torchvision.io import ImageReadMode, decode_jpeg

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its decoders move to torchcodec
        return decode_jpeg(_tensor(data), ImageReadMode.RGB)


def of_torchcodec(data: bytes) -> Any:
    from torchcodec.decoders import decode_jpeg

    return decode_jpeg(_tensor(data))


def of_opencv(data: bytes) -> Any:
    import cv2

    cv2.setNumThreads(1)
    image = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    return torch.from_numpy(image).permute(2, 0, 1)


def of_simplejpeg(data: bytes) -> Any:
    import simplejpeg

    return torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)


def of_spdl(data: bytes) -> Any:
    import spdl.io

    packets = spdl.io.demux_image(data)
    frames = spdl.io.decode_packets(packets, filter_desc="format=pix_fmts=rgb24")
    return spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(2, 0, 1)


PACKAGES: dict[str, tuple[str, Decode]] = {
    "Pillow": ("PIL", of_pillow),
    "torchvision": ("torchvision", of_torchvision),
    "torchcodec": ("torchcodec", of_torchcodec),
    "OpenCV": ("cv2", of_opencv),
    "simplejpeg": ("simplejpeg", of_simplejpeg),
    "SPDL": ("spdl", of_spdl),
}
"""The package to import, and the decoder."""


class Files(Dataset[Any]):
    """JPEGs that a decoder decodes, with a crop that is resized, as people train classification."""

    def __init__(self, paths: list[Path], decode: Decode) -> None:
        self._paths, self._decode = paths, decode
        ends = [v1.Normalize(list(MEAN), list(STD))]
        tensor = v1.ConvertImageDtype(torch.float32)
        self._crop = v1.Compose([v1.RandomResizedCrop(SIZE, antialias=True), v1.RandomHorizontalFlip()])
        self._of_image, self._of_tensor = v1.Compose([v1.ToTensor(), *ends]), v1.Compose([tensor, *ends])

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        image = self._crop(self._decode(self._paths[index].read_bytes()))
        return (self._of_tensor if isinstance(image, torch.Tensor) else self._of_image)(image), index


def dali_alone(files: list[bytes]) -> Callable[[], Any]:
    """Return what decodes all files once by DALI on one thread, and gives the images [height, width, 3]."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=len(files), num_threads=1, device_id=None, prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        data = fn.external_source(name="files", dtype=types.UINT8, ndim=1)
        return fn.decoders.image(data, output_type=types.RGB, adjust_orientation=False)

    made = pipeline()
    made.build()

    def run() -> Any:
        made.feed_input("files", [np.frombuffer(data, dtype=np.uint8) for data in files])
        (output,) = made.run()
        return [output[row] for row in range(len(files))]

    return run


def alone(files: list[bytes], decoders: dict[str, Decode]) -> dict[str, Callable[[], Any]]:
    """Return, by decoder, what decodes all files once."""

    def each(decode: Decode) -> Callable[[], Any]:
        return lambda: [decode(data) for data in files]

    found: dict[str, Callable[[], Any]] = {name: each(decode) for name, decode in decoders.items()}
    if importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None:
        found["DALI"] = dali_alone(files)
    return found


def usable(file: bytes) -> dict[str, Decode]:
    """Return the decoders that are installed and decode this file; print why one that is installed does not."""
    found = {}
    for name, (package, decode) in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            continue
        try:
            decode(file)
        except Exception as error:  # noqa: BLE001 - SPDL's without FFmpeg's libraries
            print(f"{name} is left out: {(str(error).splitlines() or [''])[0][:110]}")
        else:
            found[name] = decode
    return found


def loops(
    root: Path, samples: int, workers: int, decoders: dict[str, Decode]
) -> Iterator[tuple[str, Any, Callable[[], None]]]:
    """Yield each loader's name, itself, and what is called before its epoch."""
    paths = sorted(root.glob("*/*.jpg"))
    for name, decode in decoders.items():
        data = Files(paths, decode)
        sampler = RandomSampler(data, num_samples=samples)
        yield name, DataLoader(data, BATCH, sampler=sampler, num_workers=workers, persistent_workers=True), lambda: None
    for engine in ENGINES:
        loader = switchable(dataloader(root, samples=samples, batch=BATCH, workers=workers), name=engine)
        if loader.backends[engine].available:
            yield f"engine {engine}", loader, partial(switch_and_settle, loader, engine)


def rate(loader: Any) -> float:
    """Return the images/s of an epoch, from its third batch for each worker on."""
    lead, count, began = 3 * max(1, loader.num_workers), 0, time.perf_counter()
    for number, (batch, _) in enumerate(loader, 1):
        count += len(batch)
        if number == lead:
            count, began = 0, time.perf_counter()
    return count / (time.perf_counter() - began)


def pixels(files: list[bytes], decoded: list[Any]) -> int:
    """Return the largest difference of these images from Pillow's pixels."""

    def array(image: Any) -> Any:
        return np.asarray(image.permute(1, 2, 0) if isinstance(image, torch.Tensor) else image).astype(int)

    pairs = zip(map(of_pillow, files), decoded, strict=True)
    return max(int(np.abs(array(image) - array(ours)).max()) for image, ours in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoders", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--samples", type=int, default=1024, help="an epoch of a loader")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--data", type=Path, help="a folder for the images, which then stay")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}\n{versions()}\n")
    with images(options.images, options.data) as root:
        files = [path.read_bytes() for path in sorted(root.glob("*/*.jpg"))[:BATCH]]
        decoders = usable(files[0])
        looping = list(loops(root, options.samples, options.workers, decoders))
        for _, loader, _ in looping:
            next(iter(loader))  # all workers are forked before DALI's threads run
        decoding = alone(files, decoders)
        cpu: dict[str, list[float]] = {name: [] for name in decoding}
        rates: dict[str, list[float]] = {name: [] for name, _, _ in looping}
        for number in range(options.rounds + 1):  # the first warms up
            for name in list(decoding)[:: -1 if number % 2 else 1]:
                began = time.process_time()
                decoding[name]()
                cpu[name].append(1e3 * (time.process_time() - began) / len(files))
            for name, loader, before in looping[:: -1 if number % 2 else 1]:
                before()
                rates[name].append(rate(loader))
        differences = {name: pixels(files, decode()) for name, decode in decoding.items()}
    print(f"{'alone, one thread':24}{'ms CPU':>9}{'quartiles':>16}{'images/s per core':>20}{'pixels':>9}")
    for name, values in cpu.items():
        median, lower, upper = spread(values[1:])
        print(f"{name:24}{median:9.2f}{f'{lower:.2f} to {upper:.2f}':>16}{1e3 / median:20.0f}{differences[name]:9}")
    print(f"\n{f'in the loop, workers: {options.workers}':24}{'images/s':>9}{'quartiles':>16}{'of Pillow':>20}")
    for name, values in rates.items():
        median, lower, upper = spread(values[1:])
        ratio = spread([a / b for a, b in zip(values[1:], rates["Pillow"][1:], strict=True)])[0]
        print(f"{name:24}{median:9.0f}{f'{lower:.0f} to {upper:.0f}':>16}{ratio:20.2f}")
    figures = {"cpu_ms": cpu, "rates": rates, "pixels": differences, "machine": machine(), "versions": versions()}
    return report([], figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
