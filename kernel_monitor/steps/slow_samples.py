"""What the times of a loader's samples say: which samples take far longer, what of it the loop waits for, and where.

The rings that `sample_times` writes go in; the figures of the event `sample-times` come out. Internal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..privacy import last_part
from . import loader_kinds, sample_times
from .sample_times import LEAST_SLOW, LOOKS, LOOKS_AT, LOST, NAME, NAMES_AT, RING, SAMPLES, SAMPLES_AT, Ring, WorkerInit

log = logging.getLogger(__name__)

TIMES = 8.0  # a slow sample takes more than so many times the median,
LONGER_S = 0.025  # and so much longer: less may be anything else on the machine
LEAST = 200  # samples from which on anything is said
WINDOW_S = 120.0  # of the past that is looked at
_MOST = 20_000  # samples of it
_NAMED = 3  # samples that are named
_WAITED = 0.25  # of what a batch took longer: the loop waited for so much of it, where it held up the loop
_LEAST_LOOKS = 5  # looks at slow samples from which on a transform is made responsible
_LEAST_SHARE = 100  # looks at transforms from which on the share of one is said
_READY_S = 0.002  # by so much a batch may be ready before the end of the step that waits for it is noted

_SAMPLE = np.dtype([("index", "<i8"), ("batch", "<i8"), ("end", "<f8"), ("seconds", "<f4"), ("number", "<u4")])
_LOOK = np.dtype([("number", "<u4"), ("name", "<i4")])
Records = npt.NDArray[Any]

# ---- The rings of the processes of an iterator.

RINGS = "_kernel_monitor_samples"
"""The attribute of torch's iterators that has the rings of their samples."""


class _Reader:
    """Reads a ring; `key` tells the samples of this ring from others'."""

    def __init__(self, buffer: Any, start: int, key: int) -> None:
        part = memoryview(buffer)[start : start + RING]
        self._counts = np.frombuffer(part, "<i8", 2)
        self._rows: tuple[Records, ...] = (
            np.frombuffer(part, _SAMPLE, SAMPLES, SAMPLES_AT),
            np.frombuffer(part, _LOOK, LOOKS, LOOKS_AT),
        )
        self._names = part[NAMES_AT:]
        self._key = key
        self._known = [0, 0]

    def read(self) -> tuple[Records, Records, Records, list[str | None]]:
        """Return new samples and the keys of all of them; keys of new looks, and the names of their transforms."""
        samples, looks = self._new(0), self._new(1)
        names = [self._name(int(number)) for number in looks["name"]]
        return samples, self._keys(samples), self._keys(looks), names

    def _new(self, part: int) -> Records:
        rows, written = self._rows[part], int(self._counts[part])
        first, self._known[part] = max(self._known[part], written - len(rows)), written
        found: Records = rows[np.arange(first, written) % len(rows)]
        return found

    def _keys(self, rows: Records) -> Records:
        """Return int64[n]: one for each sample of any ring."""
        keys: Records = (self._key << 32) | rows["number"].astype(np.int64)
        return keys

    def _name(self, number: int) -> str | None:
        at = number * NAME
        return None if number < 0 else bytes(self._names[at : at + NAME]).rstrip(b"\0").decode(errors="replace")


class Rings:
    """The rings of an iterator's workers, or of the one process in which it computes its batches."""

    def __init__(self, buffer: Any, many: int) -> None:
        self._buffer = buffer  # an Arena ends with the last reference to it
        self._many = many

    def readers(self, first: int) -> list[_Reader]:
        """Return a reader of each ring; their keys begin with `first`."""
        memory = getattr(self._buffer, "buffer", self._buffer)
        return [_Reader(memory, place * RING, first + place) for place in range(self._many)]


@contextlib.contextmanager
def timed_workers(loader: Any) -> Iterator[Rings | None]:
    """Have the workers that an iterator of a DataLoader starts in this context time their samples.

    They are told so by the function with which they begin, `worker_init_fn`; the loader has its own again afterwards.
    """
    rings = init = None
    settings = getattr(loader, "__dict__", {})
    try:
        if _is_timed(loader) and loader.num_workers and "worker_init_fn" in settings:
            from multiprocessing.heap import Arena  # as torch has it, not to be imported by what only reads

            arena = Arena(RING * loader.num_workers)
            rings, init = Rings(arena, loader.num_workers), settings["worker_init_fn"]
            init = init.init if isinstance(init, WorkerInit) else init  # another thread starts workers, too
            settings["worker_init_fn"] = WorkerInit(init, arena)
    except Exception:
        log.exception("a fault in kernel_monitor: the samples of workers are not timed")
        rings = None
    try:
        yield rings
    finally:
        if rings is not None:
            settings["worker_init_fn"] = init


def timed_here(iterator: Any, loader: Any) -> Rings | None:
    """Time the samples of an iterator without workers; None if it cannot be done."""
    if not _is_timed(loader):
        return None
    buffer = bytearray(RING)
    recorder = sample_times.time_fetcher(getattr(iterator, "_dataset_fetcher", None), Ring(buffer))
    return None if recorder is None else Rings(buffer, 1)


def _is_timed(loader: Any) -> bool:
    """Return whether the samples of a DataLoader can be timed: it asks a map-style data set for them one by one.

    Not where its workers come from our fork server, which has its own way to send them what they need.
    """
    if loader_kinds.of_fastai(loader) is not None or loader_kinds.is_iterable(loader):
        return False
    context = getattr(loader, "multiprocessing_context", None)
    ours = type(context).__module__.startswith(__name__.partition(".")[0])
    return sys.platform != "win32" and not ours and sample_times.gives_single_samples(loader.dataset)


# ---- The samples of a loader.


class SampleTimes:
    """The newest samples of a loader, read from its iterators' rings; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: list[tuple[weakref.ref[Any], Rings, list[_Reader]]] = []
        self._keys = 1  # the key of the next ring
        self._samples: Records = np.empty(0, _SAMPLE)
        self._sample_keys: Records = np.empty(0, np.int64)
        self._look_keys: Records = np.empty(0, np.int64)
        self._names: list[str | None] = []

    def add(self, iterator: Any) -> None:
        """Read the rings of an iterator, too, until it is gone."""
        rings = vars(iterator).get(RINGS)
        with self._lock:
            if rings is not None and all(known is not rings for _, known, _ in self._sources):
                readers = rings.readers(self._keys)
                self._keys += len(readers)
                self._sources.append((weakref.ref(iterator), rings, readers))

    def read(self) -> None:
        """Read what was written since the last call."""
        with self._lock:
            parts = [reader.read() for _, _, readers in self._sources for reader in readers]
            self._sources = [source for source in self._sources if source[0]() is not None]
            if not any(len(part[0]) or part[3] for part in parts):
                return
            samples, keys, looks, names = zip(*parts, strict=True)
            self._samples = np.concatenate([self._samples, *samples])[-_MOST:]
            self._sample_keys = np.concatenate([self._sample_keys, *keys])[-_MOST:]
            self._look_keys = np.concatenate([self._look_keys, *looks])[-_MOST:]
            self._names = [*self._names, *(name for part in names for name in part)][-_MOST:]

    def fresh(self, since: float) -> bool:
        """Return whether a sample was ready after `since` (`time.monotonic`)."""
        with self._lock:
            return len(self._samples) > 0 and bool(self._samples["end"].max() > since)

    def figures(self, steps: Records, now: float, offset: float, dataset: Any) -> dict[str, Any] | None:
        """Return the fields of an event `sample-times` but its loader; None if there are too few samples.

        Args:
            steps: of the loader's loop, `store.snapshot.STEP`[n], with ends in session s.
            now, offset: the time, `time.monotonic`; what to add to it for session s.
            dataset: the loader's, which may know the files of its samples.
        """
        with self._lock:
            recent = self._samples["end"] > now - WINDOW_S
            samples, keys = self._samples[recent], self._sample_keys[recent]
            names = np.array(["" if name is None else name for name in self._names], dtype=object)
            shown = np.isin(self._look_keys, keys)
            looked, names = self._look_keys[shown], names[shown]
        if len(samples) < LEAST:
            return None
        seconds = samples["seconds"].astype(np.float64)
        median = float(np.median(seconds))
        slow = seconds > max(TIMES * median, median + LONGER_S)
        steps = steps[steps["end"] > float(samples["end"].min()) + offset]
        held, lost = _held_up(samples, keys, slow, seconds - median, steps, offset)
        own = [name_of(dataset, int(index)) for index in _slowest(samples[slow])]
        transform, share = _most([name for name in names if name], _LEAST_SHARE)
        cause, cause_share = _most(list(names[np.isin(looked, keys[slow])]), _LEAST_LOOKS)
        return {
            "samples": len(samples),
            "median": median,
            "slow": int(slow.sum()),
            "times": float(np.median(seconds[slow])) / max(median, 1e-9) if slow.any() else 0.0,
            "steps": len(steps),
            "held": held,
            "lost": lost,
            "names": list(dict.fromkeys(name if is_file else f"sample {name}" for name, is_file in own)),
            "files": bool(own) and all(is_file for _, is_file in own),
            "cause": cause,
            "cause_share": cause_share,
            "transform": transform,
            "share": share,
        }


def _slowest(slow: Records) -> list[int]:
    """Return the indices of the slowest samples, the slowest first; those that are no numbers are left out."""
    order = np.argsort(-slow["seconds"], kind="stable")
    return [int(index) for index in dict.fromkeys(slow["index"][order].tolist()) if index >= 0][:_NAMED]


def _most(names: list[str], least: int) -> tuple[str | None, float]:
    """Return the name seen most often, and its share; None where there are fewer than `least`."""
    if len(names) < least:
        return None, 0.0
    name, count = Counter(names).most_common(1)[0]
    return name, count / len(names)


def _held_up(
    samples: Records, keys: Records, slow: Records, longer: Records, steps: Records, offset: float
) -> tuple[int, float]:
    """Return how many steps had to wait for a batch with a slow sample, and the share of all steps' time that it took.

    A batch is ready when its last sample is. The loop was held up if it waited at that moment, and for a good part of
    what the slow samples took `longer` than the median (s).
    """
    if not slow.any() or not len(steps):
        return 0, 0.0
    batches = np.stack([keys >> 32, samples["batch"]], axis=1)
    _, of = np.unique(batches, axis=0, return_inverse=True)
    of = of.reshape(-1)
    ready, late = np.full(of.max() + 1, -np.inf), np.zeros(of.max() + 1)
    np.maximum.at(ready, of, samples["end"] + offset)
    np.add.at(late, of[slow], longer[slow])
    ready, late = ready[late > 0], late[late > 0]
    wait = np.nan_to_num(steps["wait"].astype(np.float64))
    began = steps["end"] - steps["step"]
    place = np.searchsorted(began + wait, ready - _READY_S)
    known = place < len(steps)
    place, ready, late = place[known], ready[known], late[known]
    waited = (began[place] <= ready) & (wait[place] >= _WAITED * late)
    held = np.unique(place[waited])
    lost = np.maximum(0.0, wait[held] - float(np.median(wait))).sum()
    return len(held), float(lost / max(1e-9, float(steps["step"].sum())))


# ---- The name of a sample: of its file, where the data set keeps a list of files.

_LISTS = ("samples", "imgs", "files", "paths", "filenames", "image_files", "img_files", "images", "image_paths")


def name_of(dataset: Any, index: int) -> tuple[str, bool]:
    """Return the name of a sample, and whether it is that of its file, without folders; else it is the index.

    Only attributes are read, and none of the data set's code is called.
    """
    modules = sys.modules.get("torch.utils.data.dataset")
    subset: Any = getattr(modules, "Subset", None)
    joined: Any = getattr(modules, "ConcatDataset", None)
    own = index
    try:
        while type(dataset) in (subset, joined):
            if type(dataset) is subset:
                own, dataset = int(dataset.indices[own]), dataset.dataset
            else:
                part = bisect_right(dataset.cumulative_sizes, own)
                own -= dataset.cumulative_sizes[part - 1] if part else 0
                dataset = dataset.datasets[part]
        for name in _LISTS:
            listed = vars(dataset).get(name)
            entry = listed[own] if type(listed) in (list, tuple) and own < len(listed) else None
            entry = entry[0] if type(entry) is tuple and entry else entry
            if isinstance(entry, str | os.PathLike):
                path = os.fspath(entry)
                return (last_part(path), True) if isinstance(path, str) else (str(index), False)
    except Exception:  # the data set's objects may raise anything
        log.debug("the file of sample %s is not known", index, exc_info=True)
    return str(index), False


def holds_up(figures: dict[str, Any]) -> bool:
    """Return whether slow samples took a part of the loop's time that is worth a sentence."""
    return figures["slow"] >= LEAST_SLOW and bool(figures["lost"] > LOST)
