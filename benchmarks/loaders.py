"""A comparison of a switchable loader's speed with the DataLoader that it wraps, and with a hand-written DALI pipeline.

    python -m benchmarks.loaders [--rounds 15] [--images 512] [--samples 2048] [--workers N] [--threads N]
                                [--hold-ms 10]

All loaders run in this process, one epoch of each in every round, in forward and reverse order by turns: changes of the
machine's speed affect all alike, and ratios are formed within a round. A rate counts from the moment when a loader's
own queue has been emptied once to its last sample, so that batches made before the clock started do not count. The
training loop does nothing, and the files are in the page cache: the rate is the most that a loader can deliver.

The workers of every loader are started first, because no process may be forked once DALI's threads run. That first
epoch, which for `dali-cpu` includes loading DALI and checking every file, is printed as `cold`.

With `--hold-ms` the engines run beside a training loop that holds the GIL: each epoch is run a second time with that
much pure Python work after every batch. On full cores that work costs every engine something; what it costs `threads`
more than `torchvision`, whose workers are processes with a GIL of their own, is contention for the GIL.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1

from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.loaders.transforms.params import sample_keys
from kernel_monitor.loaders.transforms.program import arrays
from kernel_monitor.loaders.transforms.translate import translate

from .chains import LEAST, chains
from .chains import names as pair_names
from .common import MEAN, SIZE, STD, Bar, dataloader, images, machine, report, spread, switch_and_settle, versions
from .gpu.parity import END, load

PLAIN, SWITCHABLE, THREADS = "DataLoader", "switchable: torchvision", "switchable: threads"
HELD = (PLAIN, SWITCHABLE, THREADS, "switchable: dali-cpu")
HOLDS = ", busy loop"
BY_HAND = {"cpu": 0.95, "gpu": 0.45}
"""The least share of the images/s of hand-written DALI, whose defaults upsample chroma coarsely on a GPU; 0.50 on an
H200."""
PARAMETERS_US = 5.0
PARAMETERS_BATCH, PARAMETERS_BATCHES = 32, 200
"""The batch size of the bar for drawing parameters, as samples share the cost of a batch; batches in each run."""
LOOP_CHAINS: dict[str, tuple[Any, ...]] = {
    "crop and flip": (v1.RandomResizedCrop(8), v1.RandomHorizontalFlip()),
    "36 random transforms": (v1.CenterCrop(8), *load(12)[:-2]),
}
"""The chains for which the loop's thread is timed. Their images are small: only the work for each sample counts."""
LOOP_BATCHES = (32, 128)
LOOP_SAMPLES = 512


class Epoch(NamedTuple):
    """An epoch of a loader.

    Attributes:
        samples: number of samples delivered.
        seconds: duration from the call of `iter` to the end.
        rate: samples/s after its queue has been emptied once.
    """

    samples: int
    seconds: float
    rate: float


class Contestant(NamedTuple):
    """A loader that is timed.

    Attributes:
        prepare: is called before an epoch, outside of its time.
        batches: starts an epoch.
        samples: returns the number of samples in a batch.
        held: iterations of `hold` after each batch.
    """

    prepare: Callable[[], None]
    batches: Callable[[], Iterable[Any]]
    samples: Callable[[Any], int]
    held: int = 0


def main() -> int:
    """Measure and print."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loaders", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="epochs of each; medians are printed")
    parser.add_argument("--images", type=int, default=512, help="files")
    parser.add_argument("--samples", type=int, default=2048, help="an epoch: every file that many times over")
    parser.add_argument("--batch", type=int, default=32, help="samples in a batch")
    parser.add_argument("--workers", type=int, default=min(cores, 16), help="of each DataLoader")
    parser.add_argument(
        "--threads", type=int, help="of DALI; where not given, as many as workers, at most one per core"
    )
    parser.add_argument("--hold-ms", type=float, default=0.0, help="pure Python work of the loop after each batch")
    parser.add_argument("--data", type=Path, help="a folder for the images, which then stay")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    threads = options.threads or max(1, min(cores, options.workers or 4))  # as switchable() takes them by itself
    lead = 2 * options.workers + 4  # batches: more than any of them keeps in flight
    if options.samples < 2 * lead * options.batch:
        parser.error(f"--samples must be {2 * lead * options.batch} at least, for {options.workers} workers")

    print(f"{machine()}\n{versions()}")
    print(
        f"{options.rounds} round(s); in each, one epoch of every loader: {options.samples:,} samples of "
        f"{options.images} JPEGs of 500 x 375 to {SIZE} x {SIZE}, batch {options.batch}; {options.workers} workers, "
        f"{threads} DALI threads"
    )
    with images(options.images, options.data) as root:
        field, close = contestants(root, options, threads)
        if options.hold_ms:
            field = beside_python(field, options.hold_ms)
        try:
            cold = {name: epoch(one, lead, options.samples) for name, one in field.items()}
            warm: dict[str, list[Epoch]] = {name: [] for name in field}
            for number in range(1, options.rounds + 1):
                order = list(field) if number % 2 else list(field)[::-1]
                for name in order:
                    warm[name].append(epoch(field[name], lead, options.samples))
                rates = "  ".join(f"{name} {warm[name][-1].rate:,.0f}" for name in field)
                print(f"round {number}/{options.rounds}  {rates}", flush=True)
        finally:
            close()
        if options.hold_ms:
            return show_held(warm, options.hold_ms, options.json)
        drawing = parameters_us(root, PARAMETERS_BATCH, min(PARAMETERS_BATCHES, options.samples))
        looped = min(LOOP_SAMPLES, options.samples)
        looping = {
            f"{name}, batch {batch}": loop_us(root, name, batch, looped)
            for name in LOOP_CHAINS
            for batch in LOOP_BATCHES
        }
    return show(cold, warm, drawing, looping, options.json)


def show(
    cold: dict[str, Epoch],
    warm: dict[str, list[Epoch]],
    drawing: float,
    looping: dict[str, tuple[float, float, float]],
    file: Path | None,
) -> int:
    """Print the tables and the bars."""
    print(f"\n{'images/s':34}{'median':>9}{'quartiles':>18}{'epochs':>8}{'samples':>10}{'cold, s':>9}{'warm, s':>9}")
    figures: dict[str, Any] = {"parameters_us": drawing, "loop_thread_us": looping}
    for name, epochs in warm.items():
        median, lower, upper = spread([one.rate for one in epochs])
        seconds = spread([one.seconds for one in epochs])[0]
        print(
            f"{name:34}{median:9,.0f}{f'{lower:,.0f} to {upper:,.0f}':>18}{len(epochs):8}"
            f"{sum(one.samples for one in epochs):10,}{cold[name].seconds:9.2f}{seconds:9.2f}"
        )
        figures[name] = {"rate": median, "quartiles": [lower, upper], "cold_s": cold[name].seconds, "warm_s": seconds}
    figures["counts"] = {
        "epochs": sum(len(epochs) for epochs in warm.values()),
        "samples delivered": sum(one.samples for epochs in warm.values() for one in epochs),
    }
    print(f"\n{'loop thread, µs per sample':34}{'median':>9}{'quartiles':>18}")
    for name, (median, lower, upper) in looping.items():
        print(f"{name:34}{median:9.1f}{f'{lower:.1f} to {upper:.1f}':>18}")
    print()
    bars = []
    for ours, other, limit in pairs(warm):
        ratios = [a.rate / b.rate for a, b in zip(warm[ours], warm[other], strict=True)]
        median, lower, upper = spread(ratios)
        bars.append(Bar(f"{ours} / {other}, quartiles {lower:.3f} to {upper:.3f}", median, limit))
    bars.append(Bar("augmentation parameters", drawing, PARAMETERS_US, " µs per sample", at_most=True))
    return report(bars, figures, file)


def hold(iterations: int) -> int:
    """Compute in pure Python, which holds the GIL."""
    total = 0
    for number in range(iterations):
        total += number & 3
    return total


def beside_python(field: dict[str, Contestant], milliseconds: float) -> dict[str, Contestant]:
    """Return the plain loader and the engines, each also with a loop that holds the GIL so long after each batch.

    The work is the same in all: as many iterations as take that long, at best, while nothing else runs here.
    """
    least = min(_cpu_s(100_000) for _ in range(20)) / 100_000
    engines = {name: one for name, one in field.items() if name in HELD}
    return engines | {
        f"{name}{HOLDS}": one._replace(held=round(milliseconds / 1e3 / least)) for name, one in engines.items()
    }


def _cpu_s(iterations: int) -> float:
    began = time.thread_time()
    hold(iterations)
    return time.thread_time() - began


def show_held(warm: dict[str, list[Epoch]], milliseconds: float, file: Path | None) -> int:
    """Print each engine's images/s with an idle loop and with one that holds the GIL, and their ratio by round."""
    title = f"Python work of {milliseconds:g} ms a step"
    print(f"\n{title:34}{'idle':>9}{'busy':>9}{'busy / idle':>14}{'quartiles':>18}")
    figures: dict[str, Any] = {"hold_ms": milliseconds, "machine": machine(), "versions": versions()}
    for name in [name for name in warm if not name.endswith(HOLDS)]:
        idle, busy = ([one.rate for one in warm[key]] for key in (name, name + HOLDS))
        ratio, lower, upper = spread([b / a for a, b in zip(idle, busy, strict=True)])
        rates = f"{spread(idle)[0]:9,.0f}{spread(busy)[0]:9,.0f}{ratio:14.3f}"
        print(f"{name:34}{rates}{f'{lower:.3f} to {upper:.3f}':>18}")
        figures[name] = {"idle": idle, "busy": busy, "ratio": [ratio, lower, upper]}
    return report([], figures, file)


def pairs(names: Iterable[str]) -> list[tuple[str, str, float]]:
    """Return the ratios that have a bar: our contestant, the other, the least ratio."""
    known = set(names)
    wanted = [(SWITCHABLE, PLAIN, 0.99)]
    for device in ("cpu", "gpu"):
        ours = f"switchable: dali-{device}"
        wanted += [(ours, by_hand_name(device), BY_HAND[device]), (ours, PLAIN, 1.0)]
    wanted += [(THREADS, PLAIN, 1.3), (THREADS, "switchable: dali-cpu", 0.95)]
    wanted += [
        (f"{name.removesuffix(': torchvision')}: dali-cpu", name, LEAST) for name in sorted(known - {SWITCHABLE})
    ]
    return [pair for pair in wanted if set(pair[:2]) <= known]


def epoch(one: Contestant, lead: int, samples: int) -> Epoch:
    """Run one epoch of a loader.

    Args:
        one: the loader.
        lead: number of batches after which the rate counts.
        samples: number of samples that it must deliver.

    Raises:
        SystemExit: it delivered another number, and cannot be compared.
    """
    one.prepare()
    began = time.perf_counter()
    delivered = before = 0
    settled = began
    for number, batch in enumerate(one.batches(), 1):
        delivered += one.samples(batch)
        hold(one.held)
        if number == lead:
            synchronise()
            settled, before = time.perf_counter(), delivered
    synchronise()
    ended = time.perf_counter()
    if delivered != samples:
        raise SystemExit(f"{delivered:,} samples came where {samples:,} were planned")
    return Epoch(delivered, ended - began, (delivered - before) / (ended - settled))


def synchronise() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


# -- the loaders ------------------------------------------------------------------------------------------------------


def contestants(
    root: Path, options: argparse.Namespace, threads: int
) -> tuple[dict[str, Contestant], Callable[[], None]]:
    """Return every loader that can run here, in an order that keeps pairs together, and what ends them."""
    shape = {"samples": options.samples, "batch": options.batch, "workers": options.workers}
    plain = dataloader(root, **shape)
    loader = switchable(dataloader(root, **shape), name="benchmark", seed=0)
    if options.threads is not None:
        loader.set(threads=threads)
    field = {
        PLAIN: Contestant(lambda: None, lambda: plain, lambda batch: len(batch[1])),
        SWITCHABLE: contestant(loader, "torchvision"),
    }
    made = [loader]
    others = {}
    for chain, transform in () if options.hold_ms else chains():
        one = switchable(dataloader(root, transform=transform, **shape), name=chain, seed=0)
        before, after = pair_names(chain)
        availability = one.backends["dali-cpu"]
        if not availability.available:
            print(f"{after} is grey: {availability.reason}")
            one.release()
            continue
        if availability.note is not None:
            print(f"{after}: {availability.note}")
        field[before] = contestant(one, "torchvision")
        others[after] = contestant(one, "dali-cpu")
        made.append(one)
    field |= others  # after all that have workers to fork
    field[THREADS] = contestant(loader, "threads")
    for device in ("cpu", "gpu"):
        backend = f"dali-{device}"
        availability = loader.backends[backend]
        if not availability.available:
            print(f"{backend} does not take part: {availability.reason}")
            continue
        field[f"switchable: {backend}"] = contestant(loader, backend)
        if not options.hold_ms:
            field[by_hand_name(device)] = ByHand(root, options, threads, device).contestant()

    def close() -> None:
        for one in made:
            one.release()
        iterator = plain._iterator
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]

    return field, close


def contestant(loader: SwitchableLoader, backend: str) -> Contestant:
    return Contestant(using(loader, backend), lambda: loader, lambda batch: len(batch[1]))


def using(loader: SwitchableLoader, backend: str) -> Callable[[], None]:
    return lambda: switch_and_settle(loader, backend)


def by_hand_name(device: str) -> str:
    return f"DALI by hand ({device})"


class ByHand:
    """A pipeline for the same work as in DALI's documentation, with its defaults; it orders and draws by itself.

    It is built when its first epoch begins, after the other loaders' workers were started.
    """

    def __init__(self, root: Path, options: argparse.Namespace, threads: int, device: str) -> None:
        self._root = root
        self._options = options
        self._threads = threads
        self._device = device
        self._iterator: Any = None

    def contestant(self) -> Contestant:
        return Contestant(lambda: None, self._epoch, lambda batch: len(batch[0]["labels"]))

    def _epoch(self) -> Any:
        if self._iterator is None:
            self._iterator = self._build()
        return self._iterator

    def _build(self) -> Any:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        decoder = "cpu" if self._device == "cpu" else "mixed"
        found = sorted((path for path in self._root.glob("*/*.jpg")), key=str)
        classes = {name: number for number, name in enumerate(sorted({path.parent.name for path in found}))}
        files = [found[number % len(found)] for number in range(self._options.samples)]

        @pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=self._options.batch,
            num_threads=self._threads,
            device_id=None if self._device == "cpu" else torch.cuda.current_device(),
        )
        def pipeline() -> Any:
            encoded, labels = fn.readers.file(
                files=[str(path) for path in files],
                labels=[classes[path.parent.name] for path in files],
                random_shuffle=True,
                name="reader",
            )
            decoded = fn.decoders.image_random_crop(
                encoded, device=decoder, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
            )
            resized = fn.resize(decoded, size=[SIZE, SIZE])
            normalised = fn.crop_mirror_normalize(
                resized,
                dtype=types.FLOAT,
                output_layout="CHW",
                mean=[255 * value for value in MEAN],
                std=[255 * value for value in STD],
                mirror=fn.random.coin_flip(),
            )
            return normalised, labels

        return DALIGenericIterator(
            pipeline(),
            ["images", "labels"],
            reader_name="reader",
            last_batch_policy=LastBatchPolicy.PARTIAL,
            auto_reset=True,
        )


def parameters_us(root: Path, batch: int, batches: int) -> float:
    """Return the time, µs, to compute a sample's crop and flip at this batch size: median of 9 runs."""
    program = translate(dataloader(root, samples=batch, batch=batch, workers=0).dataset.transform)  # type: ignore[attr-defined]
    indices, occurrences = list(range(batch)), [0] * batch
    heights, widths = np.full(batch, 375, dtype=np.int64), np.full(batch, 500, dtype=np.int64)
    runs = []
    for run in range(10):
        began = time.perf_counter()
        for number in range(batches):
            arrays(program, sample_keys(0, batches * run + number, indices, occurrences), heights, widths)
        runs.append(1e6 * (time.perf_counter() - began) / (batches * batch))
    return spread(runs[1:])[0]


def thumbnails(root: Path, folder: Path) -> Path:
    """Write small copies of the images into `folder`, and return it: decoding is not what is timed on them."""
    for file in root.glob("*/*.jpg"):
        copy = folder / file.parent.name / file.name
        copy.parent.mkdir(exist_ok=True)
        with Image.open(file) as image:
            image.resize((64, 48)).save(copy)
    return folder


def loop_us(root: Path, chain: str, batch: int, samples: int) -> tuple[float, float, float]:
    """Return the CPU time, µs, that a sample of `dali-cpu` takes the loop's thread: median and quartiles of 3 epochs.

    DALI's own threads do not count. On `dali-gpu` the GPU waits for this thread if it is slower than the decoders.
    """
    transform = v1.Compose([*LOOP_CHAINS[chain], *END])
    loader = switchable(dataloader(root, samples=samples, batch=batch, workers=0, transform=transform), seed=0)
    switch_and_settle(loader, "dali-cpu")
    runs = []
    for _ in range(4):
        began = time.thread_time()
        for _batch in loader:
            pass
        runs.append(1e6 * (time.thread_time() - began) / samples)
    loader.release()
    return spread(runs[1:])


if __name__ == "__main__":
    sys.exit(main())
