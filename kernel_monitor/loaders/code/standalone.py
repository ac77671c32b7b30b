"""Puts the file together: what the data set gives, DALI's pipeline, the draws, and the loader that runs them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

from ..._version import __version__
from ...errors import MonitorError, TransformNotTranslatable
from ..attributes import attributes
from ..data.file_source import FileSource
from ..data.structure import Place
from ..engines.dali_graph import Translated
from ..engines.engine import Setting
from ..transforms.program import Program
from ..transforms.recorded import COLOUR, MOVED
from ..transforms.translate import Link, examine
from .draws import Draws, draws_of, masks_follow
from .expressions import Column, columns, path_expression, value_expression
from .graph import WIDTH, Text, WrittenGraph, laid_out, literal

_KNOWN = 32  # samples whose files and labels an expression must give
_REFUSED = "The loader cannot be written as code: "


@dataclass
class _Data:
    """What is written about a data set.

    Attributes:
        links: the transforms of its images.
        program: their program.
        files: the expressions of a sample's files: the image's, and the mask's if there is one.
        sample: the expression of a sample, of `image` and, if there is one, of `mask`.
        mask: what is done to a mask after it was moved; None without a mask.
    """

    links: list[Link]
    program: Program
    files: list[str]
    sample: str
    mask: list[str] | None = None


class Written(NamedTuple):
    """A file, in which `PARITY` stands for the sentence on how its pixels compare."""

    text: str
    unit: tuple[float, ...]  # the value of a floating-point image for each pixel value, per channel


def standalone(setting: Setting, device: str) -> Written:
    """Write the file; no code of the user's is called.

    Args:
        setting: of the loader.
        device: `cpu` or `gpu`, where DALI computes.

    Raises:
        MonitorError: something of the loader cannot be written; the message names it.
    """
    if setting.own is not None:
        raise MonitorError(f"{_REFUSED}it has a DALI pipeline of its own (dali=), which is code already.")
    if setting.obstacle is not None or setting.refusal is not None:
        raise MonitorError(f"{_REFUSED}{setting.obstacle or setting.refusal}")
    if setting.others:
        raise MonitorError(f"{_REFUSED}the parts of its ConcatDataset have different transforms; take one part.")
    if setting.wrapped.batch_size is None:
        raise MonitorError(f"{_REFUSED}it has no batch size, or a batch_sampler of its own; give it batch_size.")
    data = _joint(setting.keyed.source) if setting.forms is not None else _single(setting)
    if data.program.rest is not None:
        raise TransformNotTranslatable(f"{_REFUSED}DALI does not do all transforms. {data.program.reason}")
    return Written(_written(setting, data, device), tuple(map(abs, data.program.factor)))


# ---- What the data set gives.


def _place(dataset: Any) -> tuple[Any, str, str, Callable[[int], int]]:
    """Return the data set that lists the files, its expression, an index's there, and what computes that index."""
    if type(dataset) is Subset:
        found, indices = dataset.dataset, dataset.indices
        return found, "dataset.dataset", "dataset.indices[index]", lambda index: indices[index]
    return dataset, "dataset", "index", lambda index: index


def _single(setting: Setting) -> _Data:
    """Describe a data set with a file for each sample."""
    source, program = setting.keyed.source, setting.program
    found = examine(source.chains[0].transform, source.chains[0].kind)
    if program is None or found.links is None:
        raise MonitorError(f"{_REFUSED}the transforms are not known.")
    total = len(source)
    count = min(_KNOWN, total)
    asked = list(range(count)) if source.asks_user else [number * total // count for number in range(count)]
    known = source.first(count) if source.asks_user else [source.locate(index) for index in asked]
    pairs = [(index, file) for index, file in zip(asked, known, strict=False) if file.reason is None]
    if not pairs or any(file.data is not None for _, file in pairs):
        raise MonitorError(f"{_REFUSED}the data set gives no paths of its files.")
    describe = _Describer(source.dataset, [index for index, _ in pairs])
    paths = [describe.path([file.path for _, file in pairs], "image file")]
    if all(file.reading is not None for _, file in pairs):
        samples = [file.reading.sample for _, file in pairs]  # type: ignore[union-attr]
        places: dict[Place, str] = dict.fromkeys(map(tuple, pairs[0][1].reading.places), "image")  # type: ignore[union-attr]
        return _Data(found.links, program, paths, describe.sample(samples, places))
    targets = [file.target for _, file in pairs]
    change = getattr(describe.dataset, "target_transform", None)
    target = describe.value(targets, "label")
    if change is not None:
        target = f"{describe.name}.target_transform({target})"
    return _Data(found.links, program, paths, f"image, {target}")


def _joint(source: FileSource) -> _Data:
    """Describe a data set of images and masks, which one transform of torchvision's v2 changes together."""
    traces = [trace for trace in source.traces if isinstance(trace.key, int) and trace.held is not None]
    forms = [form.pixels for form in source.forms or ()]
    if not traces or sorted(forms) not in ([COLOUR], sorted([COLOUR, forms[-1]])) or forms[-1] not in (*MOVED, COLOUR):
        raise MonitorError(f"{_REFUSED}its samples are not an image, or an image and its mask.")
    describe = _Describer(source.dataset, [trace.key for trace in traces])
    transforms = [
        (name, value)
        for name, value in attributes(describe.dataset).items()
        if isinstance(value, v2.Transform) or type(value) is v2.Compose
    ]
    if len(transforms) != 1:
        raise MonitorError(
            f"{_REFUSED}{type(describe.dataset).__name__} computes its crops in code of its own, which has no other "
            "form; keep image and mask together by one transform of torchvision.transforms.v2."
        )
    image_end = next(end for end in traces[0].ends if end.output.pixels == COLOUR)
    first = traces[0].roots[image_end.output.file].children[0].operation
    kind = "image" if first is not None and first.kind[0] == "planes" else "pil"
    found = examine(_of_images(transforms[0][1]), kind)
    if found.program is None or found.links is None:
        raise TransformNotTranslatable(f"{_REFUSED}{found.refusal or found.failure}")
    order = [image_end.output.file, *(end.output.file for end in traces[0].ends if end is not image_end)]
    paths = [
        describe.path([str(_opened(trace, file)) for trace in traces], "mask" if number else "image file")
        for number, file in enumerate(order)
    ]
    held = {id(each.image) for each in traces[0].held or ()}
    places: dict[Place, str] = {}
    mask: list[str] | None = None
    for place, value in _leaves(traces[0].sample):
        if id(value) in held:
            colour = value.ndim == 3 and value.shape[0] == 3 and value.is_floating_point()
            places[place] = "image" if colour else "mask"
            if not colour:
                mask = _finish(value)
    return _Data(found.links, found.program, paths, describe.sample([trace.sample for trace in traces], places), mask)


def _opened(trace: Any, file: int) -> Any:
    opened = trace.roots[file].opened
    if opened is None or opened.path is None or opened.data is not None:
        raise MonitorError(f"{_REFUSED}the data set gives no paths of its files.")
    return opened.path


def _of_images(transform: Any) -> Any:
    """Return a transform of several kinds as it is for images."""
    if type(transform) is v2.Compose:
        return v2.Compose([_of_images(each) for each in transform.transforms])
    if type(transform) is v2.ToDtype and isinstance(transform.dtype, Mapping):
        of_image = transform.dtype.get(tv_tensors.Image, transform.dtype.get("others"))
        return v2.ToDtype(of_image, scale=transform.scale)
    return transform


def _finish(mask: Any) -> list[str]:
    """Return what makes a mask, uint8[1, height, width], what it is in a sample."""
    return [*([] if mask.ndim == 3 else ["    mask = mask[0]"]), f"    return mask.to({mask.dtype})"]


def _leaves(sample: Any, place: Place = ()) -> list[tuple[Place, Any]]:
    if type(sample) in (tuple, list):
        return [leaf for key, value in enumerate(sample) for leaf in _leaves(value, (*place, key))]
    if type(sample) is dict:
        return [leaf for key, value in sample.items() for leaf in _leaves(value, (*place, key))]
    return [(place, sample)]


class _Describer:
    """Finds the expressions of a data set's samples with these indices."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.name, self._index, inner = _place(dataset)
        self._inner = list(map(inner, indices))
        self._known: list[Column] = list(columns(self.dataset, self._inner, self.name, self._index))

    def path(self, paths: Sequence[str], what: str) -> str:
        found = path_expression(self._known, paths, self.dataset, self.name)
        if found is None:
            raise self._missing(what)
        return found

    def value(self, values: Sequence[Any], what: str) -> str:
        found = value_expression(self._known, values, self._inner, self.dataset, self.name, self._index)
        if found is None:
            raise self._missing(what)
        return found

    def _missing(self, what: str) -> MonitorError:
        return MonitorError(
            f"{_REFUSED}no attribute of {type(self.dataset).__name__} holds the {what} of each sample; keep a list of "
            "them."
        )

    def sample(self, samples: Sequence[Any], places: Mapping[Place, str]) -> str:
        """Return the expression of a sample, in which the names of `places` stand for images."""
        shown = self._part(samples, places, ())
        return shown[1:-1] if type(samples[0]) is tuple and len(samples[0]) > 1 else shown

    def _part(self, samples: Sequence[Any], places: Mapping[Place, str], place: Place) -> str:
        if place in places:
            return places[place]
        first = samples[0]
        if type(first) in (tuple, list):
            inner = [self._part([one[key] for one in samples], places, (*place, key)) for key in range(len(first))]
            return literal([Text(part) for part in inner] if type(first) is list else tuple(map(Text, inner)))
        if type(first) is dict:
            named = {key: self._part([one[key] for one in samples], places, (*place, key)) for key in first}
            return "{" + ", ".join(f"{literal(key)}: {part}" for key, part in named.items()) + "}"
        return self.value(samples, f"value {'.'.join(map(str, place))}" if place else "sample")


# ---- The file.


def _written(setting: Setting, data: _Data, device: str) -> str:
    fused = setting.fused(None if device == "cpu" else 0)
    work = Translated(data.program, fused=fused)
    draws_of(data.program, data.links, str)  # refuses what has no code form, before the operators are written
    names = _short(_graph(work, device, {}).inputs)
    graph = _graph(work, device, names)
    draws = draws_of(data.program, data.links, lambda name: names.get(name, name))
    masked = data.mask is not None
    if masked and not masks_follow(draws):
        reason = "a transform fills images, and masks may be filled with another value."
        raise TransformNotTranslatable(_REFUSED + reason)
    inputs = {name: dtype for name, dtype in graph.inputs.items() if name != "encoded"}
    types = {"INT32": "np.int32", "FLOAT": "np.float32"}
    table = laid_out("INPUTS = {", [f'"{name}": {types[dtype]}' for name, dtype in inputs.items()], "}", 0)
    pieces = [
        _header(setting, data, draws, device),
        _imports(setting, data, draws),
        "\n".join(["DEPTH = 2  # batches that DALI computes ahead", *table]),
        _function(*_FILES[masked], _returned(data.files)),
        _function(
            f"sample_of(dataset, index, image{', mask' if masked else ''})",
            "Return a sample as the data set gives it.",
            _sample_lines(data.sample),
        ),
        *([_CENTER_START] if draws.centers else []),
        _function(
            "draw(height, width)",
            "Draw a sample's random numbers and return what DALI is fed for it."
            if draws.random
            else "Return what DALI is fed for an image of this size.",
            ["    given = {}", *draws.lines, "    return given"],
        ),
    ]
    if masked:
        read = "    mask = tv_tensors.Mask(np.array(Image.open(path))[None])  # resized to the nearest"
        pieces.append(
            _function(
                "mask_of(path, given)",
                "Return the mask of a sample, moved as its image is.",
                [read, *draws.moves, *(data.mask or [])],
            )
        )
    pipeline = ["@pipeline_def(exec_dynamic=True, prefetch_queue_depth=1)", "def make_images():"]
    pipeline += ['    """Define what DALI does to the files of a batch."""', *graph.lines, "    return images"]
    pieces.append("\n".join(pipeline))
    loader = _LOADER.replace("DEVICE", "None" if device == "cpu" else "0")
    pieces.append(_with_masks(loader) if masked else loader)
    pieces.append(_make_loader(setting))
    return "\n\n".join(pieces[:3]) + "\n\n\n" + "\n\n\n".join(pieces[3:]) + "\n"


def _graph(work: Translated, device: str, names: Mapping[str, str]) -> WrittenGraph:
    graph = WrittenGraph(device, names)
    work.nodes(graph, encoded=True)
    return graph


def _short(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the names of inputs without their number, where that leaves them different."""
    bare = {name: re.sub(r"\d+$", "", name) for name in inputs}
    return {name: short for name, short in bare.items() if list(bare.values()).count(short) == 1}


def _function(signature: str, docstring: str, body: Sequence[str]) -> str:
    return "\n".join([f"def {signature}:", f'    """{docstring}"""', *body])


_FILES = {
    False: ("file_of(dataset, index)", "Return the path of a sample's image."),
    True: ("files_of(dataset, index)", "Return the paths of a sample's image and mask."),
}


def _returned(parts: Sequence[str]) -> list[str]:
    line = f"    return {', '.join(parts)}"
    return [line] if len(line) <= WIDTH else laid_out("return (", parts)


def _sample_lines(sample: str) -> list[str]:
    line = f"    return {sample}"
    if len(line) <= WIDTH:
        return [line]
    if sample.startswith("{"):
        return laid_out("return {", _top_level(sample[1:-1]), "}")
    if sample.startswith("["):
        return laid_out("return [", _top_level(sample[1:-1]), "]")
    return laid_out("return (", _top_level(sample))


def _top_level(text: str) -> list[str]:
    """Return the parts of an expression between its outer commas."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _imports(setting: Setting, data: _Data, draws: Draws) -> str:
    masked = data.mask is not None
    collate = setting.wrapped.collate_fn is default_collate
    of_v2 = ["v2"] if "v2" in draws.imports else []
    lines = ["from collections import deque", ""]
    lines += ["import numpy as np", "import torch", "from nvidia.dali import fn, pipeline_def, types"]
    lines += ["from PIL import Image"]
    lines += [f"from torch.utils.data import DataLoader{', default_collate' if collate else ''}"]
    lines += ["from torch.utils.dlpack import from_dlpack"]
    lines += ["from torchvision import tv_tensors"] if masked else []
    classes = sorted(draws.imports - {"v2"})
    if classes or of_v2:
        lines.append(f"from torchvision.transforms import {', '.join([*classes, *of_v2])}")
    if masked:
        lines.append("from torchvision.transforms.v2 import functional as F")
    return "\n".join(lines)


def _header(setting: Setting, data: _Data, draws: Draws, device: str) -> str:
    source = setting.keyed.source
    kind = type(source.dataset)
    made = f"{kind.__name__}(…)"
    lines = [f'"""Batches of {kind.__name__}, computed by NVIDIA DALI on the {device.upper()}.', ""]
    where = kind.__module__
    if where not in ("__main__", "builtins"):
        public = "torchvision.datasets" if where.startswith("torchvision.datasets") else where
        lines.append(f"    from {public} import {kind.__name__}")
    lines += [f"    loader = make_loader({made})  # the data set as your training makes it"]
    lines += ["    for batch in loader: …"]
    if setting.wrapped.collate_fn is not default_collate:
        name = getattr(setting.wrapped.collate_fn, "__name__", type(setting.wrapped.collate_fn).__name__)
        lines[-2] = f"    loader = make_loader({made}, collate_fn={name})  # as in your training"
    order = (
        "Each batch has the samples that torch's DataLoader gives with these settings, in its order after the same "
        "torch.manual_seed, put together by the same collate_fn."
    )
    if draws.random:
        random = (
            "Random crops and flips are drawn by torchvision's own functions, in the order of the transforms. So they "
            "are those of a DataLoader with num_workers=0 as long as nothing else draws from torch's generator "
            "meanwhile: two batches are drawn ahead. Workers would seed themselves; their draws have the same "
            "distributions."
        )
    else:
        random = "Nothing in the transforms is random."
    rest = (
        f"Transforms: {', '.join(data.program.names)}. Changes to the data set's own transforms are not followed. "
        "Files must be ones that Pillow opens as RGB or grey with 8 bits; a file that cannot be read ends the loop. "
        f"Needs nvidia-dali, torch, torchvision and Pillow. Written by kernel_monitor {__version__}."
    )
    for words in (order, random, PARITY, rest):
        lines += ["", *(textwrap.wrap(words, WIDTH) if words != PARITY else [words])]
    return "\n".join([*lines, '"""'])


PARITY = "{parity}"
"""In the file: the place of the sentence on how its pixels compare."""


def with_parity(text: str, sentence: str) -> str:
    """Return the file with that sentence."""
    return text.replace(PARITY, "\n".join(textwrap.wrap(sentence, WIDTH)), 1)


_CENTER_START = '''def center_start(length, crop):
    """Return where CenterCrop begins; a shorter image is filled up on both sides."""
    if crop > length:
        return -((crop - length) // 2)
    return round((length - crop) / 2)'''

_LOADER = '''class DaliLoader:
    """Iterates as the DataLoader does whose batches it computes."""

    def __init__(self, loader, batch_size, threads):
        self.loader, self.dataset = loader, loader.dataset
        self.pipeline = make_images(
            batch_size=batch_size, num_threads=threads, device_id=DEVICE
        )
        self.pipeline.build()

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        # The DataLoader draws a seed for its workers before its sampler draws.
        torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        ahead = deque()
        try:
            for indices in self.loader.batch_sampler:
                ahead.append(self.start(indices))
                if len(ahead) > DEPTH:
                    yield self.finish(*ahead.popleft())
            while ahead:
                yield self.finish(*ahead.popleft())
        finally:
            for _ in ahead:  # the loop was left early
                self.pipeline.outputs()

    def start(self, indices):
        """Let DALI begin a batch."""
        encoded, drawn = [], []
        for index in indices:
            path = file_of(self.dataset, index)
            with Image.open(path) as image:
                width, height = image.size
            encoded.append(np.fromfile(path, np.uint8))
            drawn.append(draw(height, width))
        self.pipeline.feed_input("encoded", encoded)
        for name, dtype in INPUTS.items():
            values = [np.array(given[name], dtype) for given in drawn]
            self.pipeline.feed_input(name, values)
        self.pipeline.schedule_run()
        return (indices,)

    def finish(self, indices):
        """Wait for a batch."""
        (output,) = self.pipeline.outputs()
        images = from_dlpack(output.as_tensor())
        parts = zip(indices, images)
        samples = [sample_of(self.dataset, *part) for part in parts]
        return self.loader.collate_fn(samples)'''


_WITH_MASKS = (
    ("path = file_of(", "path, mask = files_of("),
    ("encoded, drawn = [], []", "encoded, drawn, masks = [], [], []"),
    ("(draw(height, width))\n", "(draw(height, width))\n            masks.append(mask_of(mask, drawn[-1]))\n"),
    ("return (indices,)", "return indices, masks"),
    ("finish(self, indices)", "finish(self, indices, masks)"),
    ("zip(indices, images)", "zip(indices, images, masks)"),
)
"""Changes to the class for data sets with masks."""


def _with_masks(loader: str) -> str:
    for before, after in _WITH_MASKS:
        loader = loader.replace(before, after)
    return loader


def _make_loader(setting: Setting) -> str:
    wrapped: DataLoader[Any] = setting.wrapped
    sampler = wrapped.sampler
    shuffle = isinstance(sampler, RandomSampler) and not sampler.replacement and sampler._num_samples is None
    parameters = ["dataset", f"batch_size={wrapped.batch_size}", f"shuffle={shuffle}"]
    parameters += ["sampler=None", f"drop_last={wrapped.drop_last}"]
    own = wrapped.collate_fn is not default_collate
    if own:
        parameters.insert(1, "collate_fn")
    else:
        parameters.append("collate_fn=default_collate")
    parameters += ["generator=None", f"threads={setting.threads}"]
    if not shuffle and not isinstance(sampler, SequentialSampler):
        parameters.insert(1, "sampler")
        parameters.remove("sampler=None")
    lines = [line[4:] for line in laid_out("def make_loader(", parameters, "):")]
    lines[-1] = lines[-1].strip()
    doc = '    """Return a loader of batches of the data set; the arguments are torch\'s DataLoader\'s."""'
    call = ["dataset", "batch_size", "shuffle", "sampler=sampler", "drop_last=drop_last", "collate_fn=collate_fn"]
    body = laid_out("loader = DataLoader(", [*call, "generator=generator"])
    return "\n".join([*lines, doc, *body, "    return DaliLoader(loader, batch_size, threads)"])
