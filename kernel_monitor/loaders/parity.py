"""A comparison of the engines' pixels after each transform, on the same samples with the same parameters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.dlpack import from_dlpack
from torchvision import transforms as v1

from ..errors import MonitorError
from .data.file_check import FileTable, check_bytes, mode_of
from .data.structure import equal, form, values
from .data.trace import Node
from .engines import dali_graph, dali_trace, torch_engine, worker_start
from .engines.backends import maker
from .engines.engine import Setting, gpu
from .engines.pipeline_engine import PipelineEngine
from .plan import Slot
from .transforms.chain import flatten, name_of, operations
from .transforms.inject import Injected, as_kind
from .transforms.params import Floats, UInt64s, sample_keys
from .transforms.program import Program, arrays, drawn
from .transforms.recorded import FLOATS, Forms
from .transforms.translate import scaling, translate


@dataclass(frozen=True)
class StepParity:
    """The difference of the images after a transform of the chain."""

    name: str  # the transform's name
    how: str  # `direct` if DALI does it, `after DALI` if torchvision does it on DALI's images
    mean: float  # mean, greatest: absolute difference of the images at that point, in pixel values 0 to 255
    greatest: float


@dataclass(frozen=True)
class Parity:
    """The result of a comparison of pixels."""

    backends: tuple[str, str]  # names of the two engines
    samples: int  # number of samples compared
    skipped: int  # number of samples not compared, because DALI does not decode their files
    mean: float  # mean, greatest: absolute difference after the whole chain, in pixel values 0 to 255
    greatest: float
    parameters_equal: bool  # whether every crop, flip, angle, factor and box fed to DALI equals torchvision's
    steps: tuple[StepParity, ...]  # differences after each transform
    reason: str | None = None  # a sentence on why some transforms run after DALI; None if none does
    # Whether all but the images (masks, boxes, labels) is equal, bit for bit; compared where traces follow the images.
    others_equal: bool = True

    def __str__(self) -> str:
        """Return the result in sentences, and a line for each transform."""
        of, by = self.backends
        if not self.samples:
            text = f"{by} and {of}: no sample could be compared."
        else:
            text = (
                f"{by} and {of} on {self.samples:,} sample{'s' if self.samples > 1 else ''}: images differ by "
                f"{self.mean:.2f} of 255 on average and by {self.greatest:.0f} at most."
            )
            if self.steps:
                text += f" Crops, flips and the like are {'equal' if self.parameters_equal else 'NOT equal'}."
            elif not self.parameters_equal:
                text += " Images do NOT all have the same size and type."
            else:
                text += f" All else is {'' if self.others_equal else 'NOT '}equal, bit for bit."
        if self.skipped:
            text += f" {self.skipped:,} more not compared: {by} leaves them to the data set's own code."
        width = max((len(step.name) for step in self.steps), default=0)
        lines = [
            f"  {step.name:{width}}  {step.how:10}  {step.mean:.2f} on average, {step.greatest:.0f} at most"
            for step in self.steps
        ]
        return "\n".join([text, *lines, *([] if self.reason is None else [self.reason])])

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Print it as text, as IPython's displayhook and notebooks do."""
        printer.text(str(self))


class ChainPrefix:
    """The first transforms of a chain in both engines, for one image at a time, apart from any engine in use.

    Args:
        transforms: the flat list of transforms.
        kind: the kind of images that the data set opens.
        device: a CUDA device's number, None for the CPU.
        encoded: whether DALI gets the files' bytes, else their paths.
        fused: whether DALI decodes only the part of an image that a crop at the beginning needs.
        make: makes the pipeline; see `dali_graph.build`.
    """

    def __init__(
        self,
        transforms: list[Any],
        kind: str,
        device: int | None,
        *,
        encoded: bool,
        fused: bool,
        make: dali_graph.Make = dali_graph.build,
    ) -> None:
        chain = v1.Compose(transforms)
        self.program: Program = translate(chain, kind)
        self._unit = np.abs(np.array(scaling(transforms, kind)))[:, None, None]
        self._encoded = encoded
        work = dali_graph.Translated(self.program, fused=fused, make=make)
        self._pipeline = work.build(batch_size=1, threads=1, device=device, encoded=encoded)
        self._injected = Injected(chain)
        self._directly = sum(operations(transform) for transform in transforms[: self.program.rest])

    def difference(self, image: Any, file: bytes, keys: UInt64s, size: tuple[int, int]) -> tuple[Floats, bool]:
        """Return the absolute difference, float64[channels, h, w] in pixel values, and whether parameters were equal.

        Args:
            image: the image as the data set opens it.
            file: its file for DALI, as path or bytes.
            keys: uint64[1], the key of its random numbers.
            size: height and width of the file's image in pixels.
        """
        program, injected = self.program, self._injected
        heights, widths = np.array([size[0]]), np.array([size[1]])
        injected.begin(keys)
        expected = _array(injected.run(image, 0))
        used = {k: value for k, value in injected.drawn().items() if k < self._directly}
        dali_graph.feed(self._pipeline, [file], arrays(program, keys, heights, widths), encoded=self._encoded)
        self._pipeline.schedule_run()
        (out,) = self._pipeline.outputs()
        made = from_dlpack(out.as_tensor())[0].cpu()
        if program.rest is not None:
            made = injected.run(as_kind(program.rest_kind, made), 0, start=program.rest)
        actual = _array(made)
        if expected.shape != actual.shape:
            raise MonitorError(f"The engines' images have different shapes: {expected.shape} and {actual.shape}.")
        (fed,) = drawn(program, keys, heights, widths)
        unit = self._unit if np.issubdtype(expected.dtype, np.floating) else 1.0
        return np.abs(expected.astype(np.float64) - actual) / unit, used == fed


def compare(setting: Setting, backend: str, n: int, seed: int) -> Parity:
    """Compare n samples, spread evenly over the data set, of the torchvision path and of an engine of `PIPELINES`.

    Raises:
        MonitorError: the loader has the user's own DALI pipeline, or its transform returns no images.
    """
    if setting.own is not None:
        raise MonitorError("parity() compares translated transforms; this loader has a pipeline of its own (dali=).")
    worker_start.before_dali()
    worker_start.note_dali()
    source = setting.keyed.source
    if setting.forms is not None:
        return _compare_samples(setting, setting.forms, backend, _spread(len(source), n), seed)
    device = gpu(setting) if backend == "dali-gpu" else None
    options: dict[str, Any] = {"encoded": source.encoded, "fused": setting.fused(device), "make": maker(backend)}
    chains = [_Compared(list(flatten(chain.transform)), chain.kind, device, options) for chain in source.chains]
    numbers = source.chain_numbers()
    table = FileTable(source.files)
    indices = _spread(len(source), n)
    compared, parameters_equal = 0, True
    with setting.keyed.apart():
        for index in indices:
            located = source.read(source.locate(index))
            if located.reason is not None:
                continue
            path, data = source.absolute(located.path), source.content(located) if source.encoded else located.data
            facts = table.check(located.number, path) if data is None else check_bytes(data)
            turned = facts.turned and located.reading is not None and located.reading.opened.turned
            if facts.reason is not None or turned:
                continue
            if source.as_stored(located) and mode_of(path if data is None else data) != "RGB":
                continue
            file = os.fsencode(path) if data is None else data
            keys = sample_keys(seed, 0, [index], [0])
            compared += 1
            chain = chains[numbers[id(source.part(index))]]
            for row, prefix in enumerate(chain.prefixes):
                found, equal = prefix.difference(source.open(located), file, keys, (facts.height, facts.width))
                chain.add(row, found)
                parameters_equal = parameters_equal and equal
    steps = tuple(step for chain in chains for step in chain.steps())
    last = np.array([chain.last() for chain in chains])
    count = last[:, 1].sum()
    mean, worst = (float(last[:, 0].sum() / count) if count else np.nan, float(last[:, 2].max()))
    if not steps:
        mean, worst = 0.0, 0.0
    skipped = len(indices) - compared
    reason = next((chain.program.reason for chain in chains if chain.program.reason is not None), None)
    return Parity((torch_engine.NAME, backend), compared, skipped, mean, worst, parameters_equal, steps, reason)


def _spread(total: int, n: int) -> list[int]:
    return np.unique(np.linspace(0, total - 1, num=min(n, total)).round().astype(int)).tolist()  # type: ignore[no-any-return]


def _compare_samples(setting: Setting, forms: Forms, backend: str, indices: list[int], seed: int) -> Parity:
    """Compare whole samples, computed by the user's own code with Pillow's or torchvision's images, and with DALI's.

    Images are what has three channels. The differences of floating-point images are those before `normalize`, and
    otherwise of values that are taken to lie between 0 and 1.
    """
    keyed = setting.keyed
    slots = [Slot(number, 0, seed, [index], [0]) for number, index in enumerate(indices)]
    wrapped: DataLoader[Any] = DataLoader(keyed.source.dataset, batch_size=1, collate_fn=list)
    device = gpu(setting) if backend == "dali-gpu" else None
    work = dali_trace.Recorded(
        forms, encoded=dali_trace.first_encoded(keyed.source.traces), fused=setting.fused(device), make=maker(backend)
    )
    batches = dali_trace.TracedBatches(backend, keyed, wrapped, work, device)
    engine = PipelineEngine(batches, batch_size=1, threads=1, depth=1)
    factors = [form.factor for form in forms if form.result == FLOATS]
    deviations = [std for trace in keyed.source.traces for std in _deviations(trace.roots)]
    unit = np.abs(np.array(factors[0])) if factors else 1 / (255 * np.array([*deviations, (1.0,) * 3][0]))
    differences = Differences(unit)
    engine.prepare()
    try:
        taken = iter(slots)
        engine.start(lambda: next(taken, None))
        engine.pump()
        skipped = 0
        for slot in slots:
            delivery = engine.receive()
            with keyed.apart():
                fetched = keyed.fetch(slot, [0])
            if fetched.failure is not None:
                raise fetched.raised()
            if delivery.error is not None:
                raise delivery.error
            if delivery.fallbacks or delivery.skipped or fetched.bad:
                skipped += 1
                continue
            differences.add(fetched.content[0], delivery.batch[0])
    finally:
        engine.release()
    d = differences
    mean = d.sum / d.count if d.count else 0.0
    compared = len(slots) - skipped
    names = (torch_engine.NAME, backend)
    return Parity(names, compared, skipped, mean, d.greatest, d.alike, (), others_equal=d.others_equal)


def _deviations(nodes: Sequence[Node]) -> Iterator[tuple[float, ...]]:
    """Yield the standard deviations by which images are divided after they were made floating-point numbers."""
    for node in nodes:
        if node.operation is not None and node.operation.kind == ("normalize",):
            yield node.operation.values[3:]
        yield from _deviations(node.children)


class Differences:
    """The sum of the differences of samples' images, and whether all else is equal.

    Args:
        unit: float64[3], the value of a floating-point image for each pixel value.
    """

    def __init__(self, unit: Floats) -> None:
        self._unit = unit
        self.sum = self.greatest = 0.0
        self.count = 0
        self.alike = self.others_equal = True  # whether images have the same sizes and types; whether all else is equal

    def add(self, one: Any, other: Any) -> None:
        """Compare two samples."""
        if form(one) != form(other):
            self.alike = False
            return
        for value, made in zip(values(one), values(other), strict=True):
            pixels = _pixels(value)
            if pixels is None:
                self.others_equal = self.others_equal and equal(value, made)
                continue
            found = _pixels(made)
            if found is None or found.shape != pixels.shape or found.dtype != pixels.dtype:
                self.alike = False
                continue
            unit: Any = self._unit if pixels.dtype.kind == "f" else 1.0
            difference = np.abs(pixels.astype(np.float64) - found) / unit
            self.sum += float(difference.sum())
            self.count += difference.size
            self.greatest = max(self.greatest, float(difference.max()))


def _pixels(value: Any) -> npt.NDArray[Any] | None:
    """Return an image in colour as an array [..., height, width, 3]; None for any other value."""
    if isinstance(value, Image.Image):
        return np.asarray(value) if value.mode == "RGB" else None
    array = value.numpy() if isinstance(value, torch.Tensor) else value
    if not isinstance(array, np.ndarray) or array.ndim < 3 or not (array.dtype.kind == "f" or array.dtype == np.uint8):
        return None
    if array.shape[-1] == 3:
        return array
    return np.moveaxis(array, -3, -1) if array.shape[-3] == 3 else None


class _Compared:
    """The comparison of one chain of transforms: sums, counts and the greatest of the differences after each."""

    def __init__(self, chain: list[Any], kind: str, device: int | None, options: dict[str, Any]) -> None:
        self._chain = chain
        self._positions = _positions(chain)
        self.prefixes = [ChainPrefix(chain[: k + 1], kind, device, **options) for k in self._positions]
        self.program = translate(v1.Compose(chain), kind)
        self._sums, self._counts, self._greatest = np.zeros((3, len(self.prefixes)))

    def add(self, row: int, found: Floats) -> None:
        """Add the differences of one image after a transform."""
        self._sums[row] += found.sum()
        self._counts[row] += found.size
        self._greatest[row] = max(self._greatest[row], found.max())

    def steps(self) -> list[StepParity]:
        means = self._sums / np.where(self._counts, self._counts, np.nan)
        directly = len(self._chain[: self.program.rest])
        return [
            StepParity(name_of(self._chain[position]), "direct" if position < directly else "after DALI", mean, worst)
            for position, mean, worst in zip(self._positions, means.tolist(), self._greatest.tolist(), strict=True)
        ]

    def last(self) -> tuple[float, float, float]:
        """Return sum, count and greatest of the differences after the whole chain."""
        return (self._sums[-1], self._counts[-1], self._greatest[-1]) if self.prefixes else (0.0, 0.0, 0.0)


def _positions(chain: list[Any]) -> list[int]:
    """Return the positions after which to compare: all but those that DALI merely fuses into its scaling; the last."""
    fused = ("ToTensor", "PILToTensor", "ToImage", "ToPureTensor", "ToDtype", "ConvertImageDtype", "Identity")
    last = len(chain) - 1
    return [k for k, transform in enumerate(chain) if k == last or type(transform).__name__ not in fused]


def _array(image: Any) -> npt.NDArray[Any]:
    """Return an image as an array [channels, height, width]."""
    if isinstance(image, torch.Tensor) and image.ndim == 3:
        return image.numpy()
    if isinstance(image, Image.Image):
        array = np.asarray(image)
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    raise MonitorError(f"parity() compares images; the transform gives {type(image).__name__}.")
