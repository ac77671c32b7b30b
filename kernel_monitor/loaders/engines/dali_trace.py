"""DALI for data sets whose operations on images are followed by traces: several files and images for each sample."""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.dlpack import from_dlpack

from ..data.file_check import PNG, Facts, FileTable, check_bytes
from ..data.keyed_dataset import KeyedDataset, collate_seed
from ..data.own_traces import Trace
from ..data.trace import ARRAYS, Mismatch
from ..data.traced_image import with_palette
from ..plan import Fallback, Slot
from ..transforms import recorded
from ..transforms.operation import Graph
from ..transforms.recorded import CLASSES_16, MOVED, Forms, OutputForm
from . import torch_engine
from .dali_batch import Batches, Issued
from .dali_graph import Make, build, feed_files, files
from .engine import Delivery

log = logging.getLogger(__name__)

_GROWN = 4  # times that a pipeline is built anew for samples unlike those before
_DIFFERENT = "other operations on its images than in the samples that DALI's pipeline was built for"
_DEVIATED = "its own code did something else, or raised, when it ran again with DALI's images"


def first_encoded(traces: Sequence[Trace]) -> frozenset[int]:
    """Return the numbers of the files whose content the data set gives, instead of a path."""
    return frozenset(
        number
        for trace in traces
        for number, root in enumerate(trace.roots)
        if root.opened is not None and root.opened.data is not None
    )


class Recorded:
    """DALI's work for operations of these forms.

    `make` makes the pipeline; see `dali_graph.build`.

    Args:
        forms: the forms of the outputs.
        encoded: the numbers of the files whose content is fed, instead of their path.
        fused: whether a part that is taken of an image first is decoded alone.
    """

    rest: int | None = None
    rest_kind = "pil"

    def __init__(self, forms: Forms, *, encoded: frozenset[int], fused: bool, make: Make = build) -> None:
        self.forms = forms
        self._given, self._fused, self._make = encoded, fused, make
        self.files = sorted({form.file for form in forms})
        self.classes = {form.file: form.pixels for form in forms if form.pixels in MOVED}
        self.encoded = encoded | self.classes.keys()
        counts = [form.file for form in forms]
        self._parts = frozenset(
            number
            for number, form in enumerate(forms)
            if fused and form.pixels not in MOVED and counts.count(form.file) == 1 and recorded.decodes_part(form)
        )

    def of(self, forms: Forms) -> Recorded:
        """Return the work for other forms."""
        return Recorded(forms, encoded=self._given, fused=self._fused, make=self._make)

    def build(self, *, batch_size: int, threads: int, device: int | None, encoded: bool) -> Any:
        """Build a pipeline with one output for each of the forms."""
        del encoded  # it is known for each file
        return self._make(self.nodes, batch_size=batch_size, threads=threads, device=device, dense=False)

    def nodes(self, graph: Graph) -> Sequence[Any]:
        """Write what is done to the files; return the nodes of the outputs."""
        given = {number: files(graph, number in self.encoded, number) for number in self.files}
        whole: dict[tuple[int, bool], Any] = {}
        outputs = []
        for number, form in enumerate(self.forms):
            part = number in self._parts
            if part:
                image = self._decoded(graph, form, given[form.file], part=f"{number}_0")
            else:
                which = form.file, form.bgr
                if which not in whole:
                    whole[which] = self._decoded(graph, form, given[form.file])
                image = whole[which]
            outputs.append(recorded.build(graph, form, number, image, decoded_part=part))
        return outputs

    def _decoded(self, graph: Graph, form: OutputForm, data: Any, part: str | None = None) -> Any:
        colours = graph.types.BGR if form.bgr else graph.types.RGB
        decode: dict[str, Any] = {"device": "cpu", "output_type": colours, "adjust_orientation": False}
        if form.pixels in MOVED:
            dtype = graph.types.UINT16 if form.pixels == CLASSES_16 else graph.types.UINT8
            return graph.fn.decoders.image(data, **(decode | {"output_type": graph.types.GRAY, "dtype": dtype}))
        if graph.device == "gpu":
            decode |= {"device": "mixed", "jpeg_fancy_upsampling": True}
        if part is None:
            return graph.fn.decoders.image(data, **decode)
        decode |= {"axis_names": "HW", "normalized_anchor": False, "normalized_shape": False}
        start, extent = graph.fed(f"part{part}", 1), graph.fed(f"extent{part}", 1)
        return graph.fn.decoders.image_slice(data, start, extent, **decode)

    def arrays(self, traces: Sequence[Trace]) -> Mapping[str, npt.NDArray[Any]]:
        """Return the parameters of some samples, by the name of the pipeline's input."""
        fed: dict[str, npt.NDArray[Any]] = {}
        for number, form in enumerate(self.forms):
            outputs = [trace.ends[number].output for trace in traces]
            sizes = [trace.roots[form.file].size for trace in traces]
            fed |= recorded.arrays(form, number, outputs, sizes)
        return fed


@dataclass
class IssuedTraces(Issued):
    """A batch under way, with the traces of its samples.

    Attributes:
        traces: those of all rows.
        contents: by the number of a file, the contents or paths of the good rows' files.
    """

    traces: list[Trace] = field(default_factory=list)
    contents: dict[int, list[bytes]] = field(default_factory=dict)


class TracedBatches(Batches):
    """Feeds traces to DALI, and calls the data set's code a second time with what DALI computed.

    Its methods take the batches that its own `look` and `trial` return.
    """

    work: Recorded  # type: ignore[assignment]

    def __init__(
        self, name: str, keyed: KeyedDataset, wrapped: DataLoader[Any], work: Recorded, device: int | None
    ) -> None:
        super().__init__(name, keyed, wrapped, work, device)  # type: ignore[arg-type]
        self._grown = 0  # how often the work was made to fit more samples
        self._tables = {number: FileTable(0) for number in work.files}

    def close(self) -> None:
        super().close()
        for table in self._tables.values():
            table.close()

    def trials(self, most: int) -> Iterator[Any]:
        return (trace for trace in self.keyed.source.traces[:most] if self.trial([trace]).good)

    def trial(self, some: list[Any]) -> IssuedTraces:
        slot = Slot(0, 0, 0, [-1] * len(some), [0] * len(some))
        return self._issued(slot, some)

    def look(self, slot: Slot, _located: Any = None) -> IssuedTraces:
        """Trace a batch's samples, and examine their files."""
        begun: dict[int, Any] = {}
        with self.keyed.apart():
            traces = [self.keyed.traced(slot, row, begun) for row in range(len(slot.indices))]
        return self._issued(slot, traces)

    def outgrown(self, issued: IssuedTraces) -> bool:  # type: ignore[override]
        return (
            self._grown < _GROWN
            and any(reason == _DIFFERENT for reason in issued.reasons.values())
            and (self._joined(issued) != self.work.forms)
        )

    def grow(self, issued: IssuedTraces) -> IssuedTraces:  # type: ignore[override]
        self._grown += 1
        self.work = self.work.of(self._joined(issued))
        return self._issued(issued.slot, issued.traces)

    def _joined(self, issued: IssuedTraces) -> Forms:
        """Return the forms of the samples so far and of those of a batch that can be joined to them."""
        forms = self.work.forms
        for trace in issued.traces:
            forms = recorded.joined(forms, trace.forms) or forms
        return forms

    def _issued(self, slot: Slot, traces: Sequence[Trace]) -> IssuedTraces:
        facts: list[Facts] = []
        contents: list[dict[int, bytes]] = []
        for index, trace in zip(slot.indices, traces, strict=True):
            reason, found = self._files_of(index, trace)
            facts.append(Facts(0, 0, reason))
            contents.append(found)
        good = [row for row, fact in enumerate(facts) if fact.reason is None]
        paths = [trace.path or "" for trace in traces]
        by_file = {number: [contents[row][number] for row in good] for number in self.work.files}
        return IssuedTraces(slot, [], paths, facts, good, traces=list(traces), contents=by_file)

    def _files_of(self, index: int, trace: Trace) -> tuple[str | None, dict[int, bytes]]:
        """Return why DALI is not given a sample, and else the contents or paths of its files by their number."""
        if not recorded.takes(self.work.forms, trace.ends, trace.roots):
            return _DIFFERENT, {}
        found: dict[int, bytes] = {}
        for number in self.work.files:
            opened = trace.roots[number].opened
            if opened is None or (opened.data is None) == (number in self.work.encoded - self.work.classes.keys()):
                return "the data set gives some files as paths and some as bytes", {}
            if number not in self.work.encoded:
                path = self.keyed.source.absolute(str(opened.path))
                fact = self._tables[number].check(index, path)
                found[number] = os.fsencode(path)
            else:
                data = opened.data
                if data is None:
                    try:
                        data = Path(self.keyed.source.absolute(str(opened.path))).read_bytes()
                    except OSError as error:
                        return f"cannot be read: {error.strerror}", {}
                deep = self.work.classes.get(number) == CLASSES_16
                fact = check_bytes(data, deep=deep)
                if number in self.work.classes and fact.reason is None:
                    grey = as_grey(data, deep=deep)
                    if grey is None:
                        return f"its classes are no PNG in grey{' of 16 bits' if deep else ' or with a palette'}", {}
                    data = grey
                found[number] = data
            if fact.reason is not None:
                return fact.reason, {}
            if opened.turned and fact.turned:
                return "turned as its EXIF orientation says where the data set opens it", {}
        return None, found

    def feed(self, pipeline: Any, issued: IssuedTraces) -> None:  # type: ignore[override]
        for number, contents in issued.contents.items():
            feed_files(pipeline, contents, encoded=number in self.work.encoded, number=number)
        traces = [issued.traces[row] for row in issued.good]
        for name, each in self.work.arrays(traces).items():
            pipeline.feed_input(name, each)
        pipeline.schedule_run()
        issued.scheduled = True

    def unpack(self, outputs: Sequence[Any]) -> Any:
        """Return the outputs, each as a list of tensors of the rows that were fed."""
        found = []
        for form, output in zip(self.work.forms, outputs, strict=True):
            kept = output
            if self.device is not None and form.pixels not in MOVED and form.result == recorded.PILLOW:
                kept = output.as_cpu()
            found.append([from_dlpack(kept[row]) for row in range(len(kept))])
        return found

    def assemble(self, issued: IssuedTraces, images: Any, reasons: dict[int, str]) -> Delivery:  # type: ignore[override]
        """Put a batch together of the samples that the data set's code makes of DALI's images."""
        slot = issued.slot
        planned = np.asarray(slot.indices, dtype=np.int64)
        reasons = dict(reasons)
        made: dict[int, Any] = {}
        begun: dict[int, Any] = {}  # not those of the first calls: other batches were begun since
        try:
            with self.keyed.apart(self._collate.collate):
                for place, row in enumerate(issued.good):
                    if row not in reasons:
                        sample = self._sample(issued, row, begun, [output[place] for output in images])
                        if sample is None:
                            reasons[row] = _DEVIATED
                        else:
                            made[row] = sample[0]
                fetched = self.keyed.fetch(slot, sorted(reasons)) if reasons else None
                if fetched is not None and fetched.failure is not None:
                    return Delivery(slot.number, planned, None, error=fetched.raised())
                bad = {} if fetched is None else fetched.bad
                skipped = {row: one.skipped() for row, one in bad.items()}
                computed = [row for row in sorted(reasons) if row not in skipped]
                if fetched is not None:
                    made |= dict(zip(computed, fetched.content, strict=True))
                kept = [row for row in range(len(planned)) if row not in skipped]
                samples = [made[row] for row in kept]
                batch = self._collate.batch(samples, collate_seed(slot)) if kept or not len(planned) else None
        except Exception as error:  # noqa: BLE001 - the user's transform or collate: raised in the user's loop
            return Delivery(slot.number, planned, None, error=error)
        decoders = [torch_engine.NAME if row in reasons else self.name for row in kept]
        fallbacks = [Fallback(slot.key(row), issued.paths[row], reasons[row]) for row in computed]
        return Delivery(slot.number, planned[kept], self._finally(batch), None, decoders, fallbacks, skipped)

    def _sample(self, issued: IssuedTraces, row: int, begun: dict[int, Any], images: list[Any]) -> tuple[Any] | None:
        """Return the sample that the data set's code makes of DALI's images; None if it did something else."""
        trace = issued.traces[row]
        given = zip(trace.ends, self.work.forms, images, strict=True)
        pixels = {end.node: self._given(end, form, image, trace) for end, form, image in given}
        try:
            if trace.held is not None and self.keyed.proven(trace):
                return (trace.filled(pixels),)
            return (self.keyed.replayed(issued.slot, row, begun, trace, pixels),)
        except Mismatch:
            return None
        except Exception:  # the user's code: the torchvision path meets it again, if it is theirs
            log.debug("a sample of DALI's images cannot be made", exc_info=True)
            return None

    def _given(self, end: recorded.End, form: OutputForm, image: Any, trace: Trace) -> Any:
        """Return an image of DALI's as the data set's code would have it from its own operations."""
        node, output = end
        opened = trace.roots[output.file].opened
        header = opened.header  # type: ignore[union-attr]
        if output.bgr != form.bgr:
            image = image.flip(-1 if form.interleaved else 0)
        if output.pixels in MOVED:
            array = image.numpy()[..., 0]
            whole = output.indices is None or node.parent is None
            array = array if whole else output.taken(array)
            if output.result == recorded.PLANES:
                return node.given(torch.from_numpy(array))
            if node.form in ARRAYS:
                return np.array(array)
            made = _with_palette(array, header) if node.form == "P" else Image.fromarray(array)
        elif node.form in ARRAYS:
            return (image if form.interleaved else image.permute(1, 2, 0)).cpu().numpy().copy()
        elif output.result == recorded.PILLOW:
            made = Image.fromarray(image.numpy())
        else:
            return node.given(image.permute(2, 0, 1) if form.interleaved else image)
        made.info = dict(header.info)
        if node.parent is None:
            made.format = header.format
        return made


def _with_palette(array: npt.NDArray[np.uint8], header: Any) -> Image.Image:
    made = Image.frombytes("P", array.shape[::-1], np.ascontiguousarray(array).tobytes())
    made.info = dict(header.info)
    return with_palette(made, header.palette)


def as_grey(data: bytes, *, deep: bool = False) -> bytes | None:
    """Return a PNG whose values are a palette's entries as a PNG in grey; None if the file is neither.

    DALI would give the palette's colours. In grey, the same bytes are the values themselves (of 8 bits). `deep`: of 16
    bits, in grey only.
    """
    if not data.startswith(PNG):
        return None
    depth, colours = data[24], data[25]
    if colours == 0 and depth == (16 if deep else 8):
        return data
    if colours != 3 or depth != 8 or deep:
        return None
    header = data[12:25] + b"\0" + data[26:29]
    found = [data[:12], header, struct.pack(">I", zlib.crc32(header))]
    at = 33
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] not in (b"PLTE", b"tRNS"):
            found.append(data[at:end])
        at = end
    return b"".join(found)
