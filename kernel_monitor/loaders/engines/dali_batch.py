"""A batch before and after DALI's run: its files are checked, its samples are put together.

Samples that are not known to be good for DALI are computed by the torchvision path, in the same place of the same
batch, and are recorded with the reason. If a program leaves the rest of the transforms to torchvision and there are no
workers for it (see `rest_engine`), the rest runs here: on the thread of the training loop, since it draws from the
process's default generators.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.dlpack import from_dlpack
from torchvision import tv_tensors

from ...errors import MonitorError
from ..data.calls import ARRAY, TENSOR
from ..data.file_check import Facts, FileTable, check_bytes, mode_of
from ..data.file_source import Located
from ..data.keyed_dataset import BadSample, KeyedCollate, KeyedDataset, collate_seed
from ..data.structure import Place, put
from ..plan import Fallback, Skipped, Slot
from ..transforms.inject import as_kind
from . import torch_engine
from .dali_graph import OwnPipeline, Parts, Rows, Translated, refused
from .engine import Delivery, EngineFailed

_OTHER_MODE = "it is opened in its own mode, {}, and DALI would make it RGB"
_MIXED = Facts(0, 0, "the data set gives some files as paths and some as bytes")

Work = Translated | OwnPipeline | Parts  # what DALI computes
Images = torch.Tensor | list[torch.Tensor]  # [n, ...], or n images [height, width, 3] in host memory


@dataclass
class Issued:
    """A batch under way: its files, which of its rows DALI computes, and why the others are not."""

    slot: Slot
    located: list[Located]
    paths: list[str]  # from the root; none where the data set gives encoded files
    facts: list[Facts]
    good: list[int]
    chains: list[int] = field(default_factory=list)  # of `good`, the numbers of the transforms, if there are several
    scheduled: bool = False

    @property
    def reasons(self) -> dict[int, str]:
        """The reasons why rows are not given to DALI."""
        return {row: fact.reason for row, fact in enumerate(self.facts) if fact.reason is not None}


class Batches:
    """Feeds a pipeline, turns what it gives into deliveries; `device` is a CUDA device's number, None for the CPU."""

    def __init__(
        self, name: str, keyed: KeyedDataset, wrapped: DataLoader[Any], work: Work, device: int | None
    ) -> None:
        self.name = name
        self.maker = "DALI" if name.startswith("dali-") else f"The engine {name}"  # for people
        self.keyed = keyed
        self.work = work
        self.device = device
        self._own = type(work) is OwnPipeline
        self._collate = KeyedCollate(wrapped.collate_fn)
        self._pin = device is None and wrapped.pin_memory and torch.cuda.is_available()
        # Where the DataLoader has no workers, the loop may resize what it is given: DALI's images are then copied.
        # A worker's batch lies in shared memory, which cannot be resized either.
        self._own_memory = self.maker == "DALI" and device is None and wrapped.num_workers == 0
        self._files = FileTable(keyed.source.files)
        self._form: tuple[torch.Size, torch.dtype] | None = None  # of one image that DALI gave
        self._examples: dict[int, torch.Tensor | None] = {}  # by number of the transform, see `_example`
        self._examples_of: tuple[int, torch.dtype] | None = None  # epoch and default dtype in which they were made

    def look(self, slot: Slot, located: list[Located] | None = None) -> Issued:
        """Find a batch's files, unless they are given, and examine them."""
        source = self.keyed.source
        if located is None and self.keyed.asks_user:
            source.read_ahead(map(slot.key, range(len(slot.indices))))
            with self.keyed.apart():
                located = [self.keyed.locate(slot, row) for row in range(len(slot.indices))]
        elif located is None:
            located = source.locate_all(map(slot.key, range(len(slot.indices))))
        failing = source.failing()
        if failing is not None:
            raise EngineFailed(failing)
        encoded = source.encoded
        located = list(map(self._with_content, located)) if encoded else located
        paths = [] if encoded else [source.absolute(file.path) for file in located]
        if not (source.opens_plainly or self._own):
            facts = [Facts(0, 0, "the data set opens its files by a function of its own")] * len(located)
        elif encoded:
            facts = [check_bytes(file.data or b"") for file in located]
        else:
            numbers = [file.number for file in located]
            seen = self._files.check_all(list(zip(numbers, paths, strict=True)))
            facts = [fact if file.data is None else _MIXED for file, fact in zip(located, seen, strict=True)]
        if source.opens_as_stored and not self._own:
            facts = [self._as_stored(*each) for each in zip(located, facts, strict=True)]
        for row, file in enumerate(located):
            if file.reason is not None:
                facts[row] = Facts(0, 0, file.reason)
            elif facts[row].turned and file.reading is not None and file.reading.opened.turned:
                facts[row] = Facts(0, 0, "turned as its EXIF orientation says where the data set opens it")
        good = [row for row, fact in enumerate(facts) if fact.reason is None]
        return Issued(slot, located, paths, facts, good)

    def _as_stored(self, file: Located, facts: Facts) -> Facts:
        """Return the facts of a file, with a reason if its image is opened in its own mode, and that is not RGB."""
        if facts.reason is not None or not self.keyed.source.as_stored(file):
            return facts
        path = self.keyed.source.absolute(file.path)
        mode = self._files.mode(file.number, path) if file.data is None else mode_of(file.data)
        return facts if mode == "RGB" else facts._replace(reason=_OTHER_MODE.format(mode))

    def trials(self, most: int) -> Iterator[Any]:
        """Yield samples to try DALI with, out of the first `most`: those of which it is given the files."""
        return (one for one in enumerate(self.keyed.source.first(most)) if self.trial([one]).good)

    def trial(self, some: list[Any]) -> Issued:
        """Return a batch of some `trials`."""
        indices = [index for index, _ in some]
        return self.look(Slot(0, 0, 0, indices, [0] * len(some)), [located for _, located in some])

    def outgrown(self, _issued: Issued) -> bool:
        """Return whether the pipeline is to be built anew for a batch, for more than it was made for."""
        return False

    def grow(self, issued: Issued) -> Issued:
        """Make the work fit a batch that has outgrown it; return that batch, looked at again."""
        return issued

    def build(self, *, batch_size: int, threads: int) -> Any:
        """Build a pipeline; see `Translated.build`."""
        encoded = self.keyed.source.encoded
        return self.work.build(batch_size=batch_size, threads=threads, device=self.device, encoded=encoded)

    def _with_content(self, file: Located) -> Located:
        """A sample with its file's content, where other parts of the data set give bytes."""
        if file.data is not None or file.reason is not None:
            return file
        try:
            return file._replace(data=self.keyed.source.content(file))
        except OSError as error:
            return file._replace(reason=f"cannot be read ({type(error).__name__})")

    def feed(self, pipeline: Any, issued: Issued) -> None:
        """Feed the good rows of a batch, and let DALI run."""
        good, slot, encoded = issued.good, issued.slot, not issued.paths
        facts = [issued.facts[row] for row in good]
        rows = Rows(
            self.keyed.keys(slot)[good],
            np.array([slot.indices[row] for row in good], dtype=np.int64),
            np.array([fact.height for fact in facts], dtype=np.int64),
            np.array([fact.width for fact in facts], dtype=np.int64),
            np.array(issued.chains, dtype=np.int64),
        )
        contents = [issued.located[row].data or b"" if encoded else os.fsencode(issued.paths[row]) for row in good]
        self.work.feed(pipeline, contents, rows, encoded=encoded)
        pipeline.schedule_run()
        issued.scheduled = True

    def unpack(self, outputs: Sequence[Any]) -> Any:
        """A run's images as tensors, without a copy: the dynamic executor never writes to them again.

        Images for the rest of the transforms are copied to the host, once for the batch, if they are not there.

        Raises:
            EngineFailed: images that must have one size have several; the message has the remedy.
        """
        (output,) = outputs
        images = unpacked(output, self.work.rest, self.device)
        if isinstance(images, torch.Tensor):
            self._form = images.shape[1:], images.dtype
        return images

    def assemble(self, issued: Issued, images: Images | None, reasons: dict[int, str]) -> Delivery:
        """Put a batch together from DALI's images and, at the rows in `reasons`, the torchvision path's."""
        slot = issued.slot
        planned = np.asarray(slot.indices, dtype=np.int64)
        samples: dict[int, Any] = {}  # of the torchvision path, by row
        skipped: dict[int, Skipped] = {}
        try:
            with self.keyed.apart(self._collate.collate):
                if reasons:
                    fetched = self.keyed.fetch(slot, reasons)
                    if isinstance(fetched.failure, BadSample):
                        return Delivery(slot.number, planned, None, error=fetched.failure.error())
                    skipped = {row: bad.skipped() for row, bad in fetched.bad.items()}
                    samples = dict(zip((row for row in reasons if row not in skipped), fetched.content, strict=True))
                kept = [row for row in range(len(planned)) if row not in skipped]
                batch = self._batch(issued, images, samples, kept) if kept or not len(planned) else None
        except Exception as error:  # noqa: BLE001 - the user's transform or collate: raised in the user's loop
            return Delivery(slot.number, planned, None, error=error)
        decoders = [torch_engine.NAME if row in samples else self.name for row in kept]
        fallbacks = [Fallback(slot.key(row), issued.located[row].path, reasons[row]) for row in samples]
        return Delivery(slot.number, planned[kept], batch, None, decoders, fallbacks, skipped)

    def close(self) -> None:
        """End the threads that look at files, if there are any; what is known of the files stays."""
        self._files.close()

    def _batch(self, issued: Issued, images: Images | None, samples: dict[int, Any], kept: list[int]) -> Any:
        """Return what the user's loop receives, of the rows in `kept`; `samples` are those of the torchvision path."""
        default = self._collate.collate is default_collate
        pieces = self.keyed.pieces(issued.slot, {row: issued.located[row] for row in kept if row not in samples})
        like = self._like(issued) if isinstance(images, torch.Tensor) else None
        places = _common_places(pieces, samples) if default else None
        if isinstance(images, torch.Tensor) and places is not None:
            dtype = images.dtype if like is None else like.dtype
            images = images.to(dtype, copy=self._own_memory and not samples)
            merged = self._merged(images, issued, samples, kept, places[0]) if samples else images
            # In the images' place a text, which takes the collate function the least time.
            rest = [pieces[row].filled("") if row in pieces else _filled(samples[row], places, "") for row in kept]
            return self._finally(_filled(default_collate(rest), places, merged))
        made = {} if images is None else self._made(images, issued)
        if images is None and self._own:
            self._stacked(issued, samples, list(samples), places[0] if places else (0,))
        whole = [pieces[row].filled(made[row]) if row in pieces else samples[row] for row in kept]
        if self.device is not None:
            whole = self._moved(whole, pieces)
        return self._finally(self._collate.batch(whole, collate_seed(issued.slot)))

    def _made(self, images: Images, issued: Issued) -> dict[int, Any]:
        """Return DALI's images one by one, by row, as the collate function is given them."""
        if isinstance(images, torch.Tensor):
            like = self._like(issued)
            return {row: formed(image, like) for row, image in zip(issued.good, images, strict=True)}
        return self._finished(images, issued)

    def _finally(self, batch: Any) -> Any:
        return pin_memory(batch, "cuda") if self._pin else batch

    def _moved(self, samples: list[Any], pieces: dict[int, Any]) -> list[Any]:
        """Samples with their images on the engine's device, if they are tensors of one form."""
        places = next(iter(pieces.values())).places if pieces else [(0,)]
        images = [image_at(sample, places[0]) for sample in samples]
        forms = {_form(image) for image in images}
        if len(forms) != 1 or None in forms:
            return samples
        device = f"cuda:{self.device}"
        return [_filled(sample, places, image.to(device)) for sample, image in zip(samples, images, strict=True)]

    def _like(self, issued: Issued) -> torch.Tensor | None:
        return None if self._own or not issued.good else self._example(issued, issued.good[0])

    def _example(self, issued: Issued, row: int, chain: int = 0) -> torch.Tensor | None:
        """An image of the torchvision path, whose type, dtype and layout DALI's are given; None where none is known.

        It is not derived from the transforms' names: the user's own are run on a blank image, once an epoch, as they
        may be edited. `row` is that of a file, `chain` the number of its transform in `FileSource.chains`.
        """
        now = issued.slot.epoch, torch.get_default_dtype()
        if self._examples_of != now:
            self._examples_of, self._examples = now, {}
        if chain not in self._examples:
            injected, kind = self.keyed.injected(issued.slot, chain), self.keyed.source.chains[chain].kind
            fact = issued.facts[row]
            blank: Any = Image.new("RGB", (fact.width, fact.height))
            if kind == TENSOR:
                blank = torch.zeros(3, fact.height, fact.width, dtype=torch.uint8)
            elif kind == ARRAY:
                blank = np.zeros((fact.height, fact.width, 3), dtype=np.uint8)
            made = None if injected is None else injected.run(blank, row)
            self._examples[chain] = made if isinstance(made, torch.Tensor) else None
        return self._examples[chain]

    def _finished(self, images: list[torch.Tensor], issued: Issued) -> dict[int, Any]:
        injected, rest = self.keyed.injected(issued.slot), self.work.rest
        made = {row: as_kind(self.work.rest_kind, image) for row, image in zip(issued.good, images, strict=True)}
        if injected is None or rest is None:
            return made
        return {row: injected.run(image, row, start=rest) for row, image in made.items()}

    def _merged(
        self, images: torch.Tensor, issued: Issued, samples: dict[int, Any], kept: list[int], place: Place
    ) -> torch.Tensor:
        """One tensor of DALI's images and the torchvision path's."""
        others = {row: image_at(sample, place) for row, sample in samples.items()}
        if not self._own and any(_form(image) != (images.shape[1:], images.dtype) for image in others.values()):
            single = {**dict(zip(issued.good, images, strict=True)), **others}
            # It raises where their sizes differ, as in a plain DataLoader.
            return default_collate([single[row].to(images.device) for row in kept])  # type: ignore[no-any-return]
        position = {row: number for number, row in enumerate(kept)}
        whole = images.new_empty((len(kept), *images.shape[1:]))
        rows = list(samples)
        whole[[position[row] for row in issued.good]] = images
        whole[[position[row] for row in rows]] = self._stacked(issued, samples, rows, place).to(images.device)
        return whole

    def _stacked(self, issued: Issued, samples: dict[int, Any], rows: list[int], place: Place) -> torch.Tensor:
        """The torchvision path's images in one tensor, which must be of the form of DALI's."""
        images = [image_at(samples[row], place) for row in rows]
        for row, image in zip(rows, images, strict=True):
            form = _form(image)
            if self._form is not None and form != self._form:
                raise MonitorError(
                    f"{issued.located[row].path} is computed by the data set's own transform, as it is not given to "
                    f"DALI. That makes {_described(form)} of it, the pipeline given as dali= {_described(self._form)}; "
                    "make them alike."
                )
        return torch.stack(images)


def unpacked(output: Any, rest: int | None, device: int | None) -> Images:
    """A pipeline's images as tensors, as `Batches.unpack` returns them; `rest` is of its program."""
    if rest is not None:
        if device is not None:
            output = output.as_cpu()
        return [from_dlpack(output[row]) for row in range(len(output))]
    if not output.is_dense_tensor():
        shapes = sorted({"x".join(map(str, shape)) for shape in output.shape()})
        reason = f"its results have different sizes ({', '.join(shapes[:3])}); end it with a resize or a crop"
        raise EngineFailed(str(refused(reason)))
    whole = output.as_tensor()
    images: torch.Tensor = whole if isinstance(whole, torch.Tensor) else from_dlpack(whole)
    return images


def _common_places(pieces: dict[int, Any], samples: dict[int, Any]) -> list[Place] | None:
    """Return where the image stands in all samples of a batch; None where that is not one place, or holds no tensor."""
    found = [piece.places for piece in pieces.values()]
    if not found or found.count(found[0]) < len(found):
        return None if pieces or not samples else [(0,)]
    for sample in samples.values():
        if any(_form(image_at(sample, place)) is None for place in found[0]):
            return None
    return found[0]  # type: ignore[no-any-return]


def image_at(sample: Any, place: Place) -> Any:
    """Return what stands at a place of a sample; None where there is no such place."""
    try:
        for key in place:
            sample = getattr(sample, key) if dataclasses.is_dataclass(sample) else sample[key]
    except (LookupError, TypeError, AttributeError):
        return None
    return sample


def _filled(sample: Any, places: list[Place], value: Any) -> Any:
    """A sample, or a batch, with a value at these places."""
    for place in places:
        sample = put(sample, place, value)
    return sample


def formed(image: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
    """One image as a collate function is given it: in memory of its own, as many other rows follow."""
    if like is None or like.shape != image.shape:
        return image.clone()
    made = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=image.device)
    made.copy_(image)
    if made.device.type == "cpu" and not like.untyped_storage().resizable():
        made = torch.from_numpy(made.numpy())  # as torchvision makes a tensor of a PIL image
    return tv_tensors.wrap(made, like=like) if isinstance(like, tv_tensors.TVTensor) else made


def _form(image: Any) -> tuple[torch.Size, torch.dtype] | None:
    return (image.shape, image.dtype) if isinstance(image, torch.Tensor) else None


def _described(form: tuple[torch.Size, torch.dtype] | None) -> str:
    if form is None:
        return "no tensor"
    return f"{str(form[1]).removeprefix('torch.')}[{', '.join(map(str, form[0]))}]"
