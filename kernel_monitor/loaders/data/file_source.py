"""The files behind a data set: from a sample's index to a path (or encoded bytes) and a target."""

from __future__ import annotations

import copy
import logging
import operator
import os
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets.folder import pil_loader

from ...errors import TransformNotTranslatable
from ...text import cause
from ..attributes import attributes
from ..plan import shown_key
from ..random_streams import Streams
from ..transforms.chain import flatten
from .calls import IN_MEMORY, PIL, as_opened
from .fingerprint import snapshot
from .image_files import MODES, data_of, open_content, open_data, open_file, path_of
from .layouts import PROTOCOL, Layout, Opener, check, gives_batches, layout_of, part_of, parts, plain
from .own_dataset import PATIENCE_S, OwnDataset, Reading, spread, unexamined
from .sent_files import SentRow

_ASKED = 6  # first samples that the user's own code locates, to try DALI on them
_ASKED_OWN = 32  # the same for dry runs: as many as a calibration uses

log = logging.getLogger(__name__)


class Located(NamedTuple):
    """The file of a sample."""

    number: int  # number of the file among all files of the source, for `FileTable`; -1: it has none
    path: str  # the file's path; if the data set gives bytes, a name for messages
    target: Any  # the target before any target transform
    data: bytes | None  # the encoded file, if the data set gives bytes instead of a path
    given: Any  # argument of the data set's own opening function (the path as it keeps it), or of its `__getitem__`
    part: Any  # the data set that lists the file; differs from sample to sample in a ConcatDataset
    reading: Reading | None = None  # result of a dry run of the data set's own `__getitem__`
    reason: str | None = None  # why the dry run has no result


class Examined(NamedTuple):
    """The result of examining a data set: its transform, and why an engine cannot open its files by itself."""

    transform: Any = None  # of every image; None where there is none, or not one for all
    kind: str = PIL  # of the images that it is given: "pil" or "tensor"
    obstacle: str | None = None  # why only the data set's own function may open the files, a sentence; None: others may
    refusal: str | None = None  # why there is not one transform for all, a sentence; None where there is
    failure: str | None = None  # why the transform cannot be examined, from `text.cause`; None where it can


class FileSource:
    """The files behind a data set. They are always read from `dataset`, so that changes take effect at once.

    With workers, `dataset` is a copy of the user's, which is replaced when workers would see the user's changes.

    Args:
        dataset: the user's data set.
        dry_run: whether data sets with a `__getitem__` of their own may be called to find out what it does.
        seeded: whether the random numbers of their `__getitem__` come from the plan; False: as in a plain DataLoader.
        keys: some of the sampler's keys, if not all are indices; None if no key is known.

    Attributes:
        failure: why the data set cannot be examined, from `text.cause`; None if it can.

    Raises:
        NotSwitchable: it has an `image_file` and no transform.
    """

    def __init__(
        self, dataset: Any, *, dry_run: bool = True, seeded: bool = True, keys: Sequence[Any] | None = None
    ) -> None:
        check(dataset)
        self.dataset = self._users = dataset
        self.dry_run = dry_run
        self.seeded = seeded
        self.gives_batches = gives_batches(dataset)
        self._owns: list[OwnDataset] = []  # the parts with a `__getitem__` of their own
        self._keys = keys
        self._folder = os.getcwd()  # noqa: PTH109 - a string, joined once per sample
        self._offsets: dict[int, tuple[Any, list[int]]] = {}
        self.encoded = False  # whether it gives encoded bytes instead of paths: as its first sample did when asked
        self.failure: str | None = None
        self._first: list[Located] = []  # the first samples, if the user's own code locates them
        self.ask()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first": [], "_users": None}

    def show(self, dataset: Any) -> None:
        """Replace the data set by another state of it; to be called by the user's thread, see `ask`."""
        if dataset is not self.dataset:
            self._offsets = {}
        self.dataset = dataset
        self.ask()

    def glance(self) -> list[Any]:
        """Return the opening functions, the transforms in their order and the values of their attributes.

        The list holds the objects themselves: comparing two lists with `same` takes a few µs and finds most changes. It
        is empty if the data set cannot be examined.
        """
        try:
            return self._glanced()
        except Exception as error:  # noqa: BLE001 - the user's own classes may raise anything
            self._failed(error)
            return []

    def held(self) -> list[Any]:
        """Return the attributes of the data sets that DALI reads by their own code, to be compared like `glance`."""
        return [value for own in self._owns if own.learnt is not None for value in attributes(own.dataset).values()]

    def _glanced(self) -> list[Any]:
        seen: list[Any] = []
        known: set[int] = set()
        for part, layout in parts(self.dataset):
            transform, target = self._transforms(part, layout)
            seen += [layout.opener(part) if layout is not None else self.own(part), target]
            seen += self.own(part).glance() if layout is None else ()
            if id(transform) not in known:
                known.add(id(transform))
                for step in flatten(transform):
                    seen += [step, *getattr(step, "__dict__", {}).values()]
        return seen

    @property
    def files(self) -> int:
        """The number of files that the innermost data sets list."""
        return _files(self.dataset)

    @property
    def transform(self) -> Any:
        """The transform of every image; raises `TransformNotTranslatable` if a ConcatDataset's parts differ in it."""
        transforms = [transform for transform, _ in self.all_transforms]
        if any(transform is not transforms[0] for transform in transforms):
            raise TransformNotTranslatable(
                "The parts of the ConcatDataset have different transforms, and DALI runs one for all; "
                "give every part the same transform object."
            )
        return transforms[0]

    def examine(self) -> Examined:
        """Return what the data set is now, in one piece."""
        found = Examined()
        try:
            found = found._replace(transform=self.transform)
            found = found._replace(kind=self.kind)
        except TransformNotTranslatable as refusal:
            found = found._replace(refusal=str(refusal))
        except Exception as error:  # whatever the user's own classes raise
            log.info("the transform cannot be examined", exc_info=True)
            found = found._replace(failure=cause(error))
        return found._replace(obstacle=self.obstacle)

    @property
    def openers(self) -> list[Opener]:
        """The functions that open images, each once."""
        return list(dict.fromkeys(layout.opener(part) for part, layout in parts(self.dataset) if layout is not None))

    @property
    def opens_plainly(self) -> bool:
        """Whether torchvision's own function opens all files as RGB with Pillow."""
        return all(map(plain, self.openers))

    @property
    def obstacle(self) -> str | None:
        """A sentence on why only the data set's own function may open the files; None if others may."""
        found = self._described(self._obstacle)
        return f"{self._name} {unexamined(self.failure)}." if self.failure is not None else found

    def _obstacle(self) -> str | None:
        for opener in self.openers:
            if opener in MODES:
                return f"The data set opens its images {MODES[opener]}, and DALI would make all of them RGB."
            if not plain(opener):
                shown = getattr(opener, "__name__", type(opener).__name__)
                return f"The data set opens its files by {shown}, and DALI would decode them itself."
        for own in self._owns:
            if own.refusal == IN_MEMORY:
                return f"{type(own.dataset).__name__} {own.refusal}."
            if own.refusal is not None:
                return f"{type(own.dataset).__name__} {own.refusal}, and DALI is given one whole file for each sample."
        if self._owns and len({self.kind, *(own.kind for own in self._owns)}) > 1:
            return "The parts of the ConcatDataset open their images by different functions."
        return None

    @property
    def unsendable(self) -> str | None:
        """The reason why contents cannot replace the files, as the end of "The data set …"; None if they can."""
        found = self._described(self._unsendable)
        return unexamined(self.failure) if self.failure is not None else found

    def _unsendable(self) -> str | None:
        if self.gives_batches:
            return "has a __getitems__ of its own"
        for opener in self.openers:
            if not plain(opener) and opener not in MODES:
                return f"opens its files by {getattr(opener, '__name__', type(opener).__name__)}"
        return next((own.refusal for own in self._owns if own.refusal is not None), None)

    def _described(self, question: Callable[[], str | None]) -> str | None:
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - the user's own classes may raise anything
            self._failed(error)
            return None

    def _failed(self, error: Exception) -> None:
        """Record that examining the data set raised: other engines give the reason, `torchvision` delivers as torch."""
        if self.failure is None:
            log.info("%s cannot be examined", self._name, exc_info=error)
            self.failure = cause(error)

    @property
    def _name(self) -> str:
        return type(self.dataset).__name__

    @property
    def kind(self) -> str:
        """The kind of the transform's input images: "pil" or "tensor"."""
        kinds = [own.kind for own in self._owns]
        return kinds[0] if kinds and len(kinds) == len(list(parts(self.dataset))) else PIL

    def own(self, part: Any) -> OwnDataset:
        """Return the `OwnDataset` of a part with a `__getitem__` of its own."""
        for own in self._owns:
            if own.dataset is part:
                return own
        own = OwnDataset(part)  # a worker has a copy that was not examined
        self._owns.append(own)
        return own

    def rejoin(self) -> None:
        """Read the data set itself from now on, in a worker: `worker_init_fn` may have changed it."""
        for own in self._owns:
            own.search(apart=False)

    def renew(self) -> None:
        """Examine the parts again whose transform has changed; to be called by the user's thread, see `ask`."""
        if any(not own.current for own in self._owns):
            self.ask()

    def failing(self) -> str | None:
        """Return a sentence if dry runs are given up because too many samples could not be read; else None."""
        return self.obstacle if [own for own in self._owns if own.give_up()] else None

    def ask(self) -> None:
        """Call the user's own code for the first samples, if it locates the samples, and keep the results.

        To be called by the user's thread: engines warm up on another thread, where user code must not draw from the
        generators that the training draws from at the same time.
        """
        self._first, self.encoded, self.failure = [], False, None
        try:
            if self.asks_user:
                streams = Streams(self.dataset)
                with streams.apart():
                    self._learn()
                    self._read_first()
                self.failure = streams.failure
        except Exception as error:  # noqa: BLE001 - the user's own classes may raise anything
            self._failed(error)

    def _read_first(self) -> None:
        """Locate the first samples and keep their files.

        A copy of the data set is read: files that it opens at its first sample would otherwise be open in the process
        from which workers are forked later.
        """
        trial = copy.copy(self)
        trial.dataset, trial._offsets = snapshot(self.dataset), {}
        trial._owns = [own.over(part) for own, part in zip(self._owns, _unknown_parts(trial.dataset), strict=True)]
        keys = range(min(_ASKED_OWN if self._owns else _ASKED, len(self))) if self._keys is None else self._keys
        until = time.monotonic() + PATIENCE_S
        with _unraised():  # plain torch would not call it now; the loop raises an error when it gets there
            for number, key in enumerate(keys):
                if number < _ASKED or time.monotonic() < until:
                    located = trial.read(trial.locate(key))
                    self._first.append(located._replace(part=self.part(key)))
        self.encoded = any(located.data is not None for located in self._first)
        with _unraised():
            self.encoded |= any(
                layout is PROTOCOL and len(part) > 0 and data_of(part.image_file(0)[0]) is not None
                for part, layout in parts(trial.dataset)
            )
        for (made, _), (part, _) in zip(parts(trial.dataset), parts(self.dataset), strict=True):
            if made is not part:  # it may keep a method of its own, and would not release what it has opened
                attributes(made).clear()

    def _learn(self) -> None:
        """Find out what the data sets' own `__getitem__` do."""
        before, self._owns = self._owns, []
        asked = _keys_of_parts(self.dataset, self._keys)
        for part in _unknown_parts(self.dataset):
            earlier = before[len(self._owns)] if len(self._owns) < len(before) else None
            if earlier is not None and earlier.dataset is part and earlier.current:
                self._owns.append(earlier)
                continue
            if earlier is not None:
                earlier.search(apart=False)  # releases its copy
            own = OwnDataset(part, apart=self.dataset is not self._users)
            self._owns.append(own)
            if hasattr(part, "__getitems__"):
                own.refusal = "has a __getitems__ of its own"
            elif not self.seeded:
                own.refusal = "draws as in a plain DataLoader (seeded=False)"
            elif not self.dry_run:
                own.refusal = "is not to be called dry (dry_run=False)"
            else:
                own.learn(earlier, asked.get(id(part)))

    def first(self, count: int) -> list[Located]:
        """Return the files of the first samples, `count` at most; may be called from any thread."""
        return self._first[:count] if self.asks_user else [self.locate(k) for k in range(min(count, len(self)))]

    def spread(self, count: int) -> list[Located]:
        """Return files spread over the data set, `count` at most; may be called from any thread.

        If the user's own code locates the samples, they are the files of the first samples.
        """
        total = len(self)
        count = min(count, total)
        return self._first[:count] if self.asks_user else [self.locate(k * total // count) for k in range(count)]

    def known_paths(self, count: int) -> list[str]:
        """Return paths of files spread over the data set, `count` at most; files in memory have none."""
        found = [] if self.gives_batches else self.spread(count)
        paths = [one.path for one in found if one.data is None and one.reason is None]
        return paths or [own.path for own in self._owns if own.path is not None]

    def locate(self, key: Any) -> Located:
        """Return the file of a sample. Raises torch's exception for a missing index, or the user's own."""
        view, inner, first = self._bottom(key)
        return _located(view, layout_of(view), inner, first)

    def locate_all(self, keys: Iterable[Any]) -> list[Located]:
        """Return the files of a batch's samples as `locate` does; only if the user's own code locates none of them."""
        found: list[Located] = []
        layouts: dict[int, Layout | None] = {}  # by the id of the innermost data set: the batch's samples share it
        for key in keys:
            view, inner, first = self._bottom(key)
            if id(view) not in layouts:
                layouts[id(view)] = layout_of(view)
            found.append(_located(view, layouts[id(view)], inner, first))
        return found

    def part(self, key: Any) -> Any:
        """Return the innermost data set of a sample; none of its own code is run."""
        return self._bottom(key)[0]

    def _bottom(self, key: Any) -> tuple[Any, Any, int]:
        """Return the innermost data set of a sample, the sample's key there, and the number of its first file."""
        view, first = self.dataset, 0
        while True:
            getitem = getattr(type(view), "__getitem__", None)
            if getitem is Subset.__getitem__:
                key = view.indices[key]
                view = view.dataset
            elif getitem is ConcatDataset.__getitem__:
                number, key = part_of(view, key)
                first += self._starts(view)[number]
                view = view.datasets[number]
            else:
                return view, key, first

    def read(self, located: Located) -> Located:
        """Add the file by a dry run, if only the data set's own `__getitem__` knows it; return the result."""
        if layout_of(located.part) is not None:
            return located
        read = self.own(located.part).read_proven(located.given)
        if isinstance(read, str):
            return located._replace(reason=f"{located.path} {read}")
        opened = read.opened
        return located._replace(path=opened.path or located.path, data=opened.data, reading=read)

    def absolute(self, path: str) -> str:
        """Return the absolute path, relative to the folder in which the loader was wrapped."""
        return os.path.join(self._folder, path)  # noqa: PTH118 - once per sample

    def open(self, located: Located) -> Any:
        """Open a sample's image as its data set does; an `OSError` if it is no regular file, or no readable image."""
        if located.reading is not None:
            return as_opened(located.reading.opened)
        if located.data is not None:
            return open_data(located.data, located.path)
        layout = layout_of(located.part)
        if layout is None:
            raise OSError(f"{located.path} {located.reason}")
        opener = layout.opener(located.part)
        if not plain(opener) and opener not in MODES:
            return opener(located.given)
        return open_file(opener, self.absolute(located.path), located.path)

    def open_sent(self, part: Any, sent: SentRow, content: bytes) -> Any:
        """Open the content of a file as a part of the data set opens the file."""
        if isinstance(sent.piece, Reading):
            return as_opened(sent.piece.opened.with_content(content))
        if sent.path is None:
            return open_data(content, sent.name)
        layout = layout_of(part)
        return open_content(pil_loader if layout is None else layout.opener(part), content, sent.path)

    def transform_of(self, part: Any) -> Any:
        """Return the transform of a part's images; None for none."""
        return self._transforms(part, layout_of(part))[0]

    def transforms_of(self, located: Located) -> tuple[Any, Any]:
        """Return the transforms of a sample's image and of its target, each None for none: those of its part."""
        return self._transforms(located.part, layout_of(located.part))

    def _transforms(self, part: Any, layout: Layout | None) -> tuple[Any, Any]:
        return layout.transforms(part) if layout is not None else (self.own(part).transform, None)

    @property
    def asks_user(self) -> bool:
        """Whether the user's own code locates or opens the samples' files."""
        return any(layout is PROTOCOL or layout is None for _, layout in parts(self.dataset)) or not all(
            plain(opener) or opener in MODES for opener in self.openers
        )

    @property
    def all_transforms(self) -> list[tuple[Any, Any]]:
        """The transform and the target transform of each part, None for none."""
        return [self._transforms(part, layout) for part, layout in parts(self.dataset)]

    def _starts(self, view: Any) -> list[int]:
        """Return the number of the first file of each part of a ConcatDataset.

        The numbers are kept from the first call on: if a part grows, files may share numbers, and are checked twice.
        """
        known = self._offsets.get(id(view))
        if known is None or known[0] is not view or len(known[1]) != len(view.datasets):
            known = self._offsets[id(view)] = view, [0, *accumulate(map(_files, view.datasets[:-1]))]
        return known[1]


def _unknown_parts(dataset: Any) -> list[Any]:
    """Return the innermost data sets with a `__getitem__` of their own, each once."""
    return list({id(part): part for part, layout in parts(dataset) if layout is None}.values())


def _keys_of_parts(view: Any, keys: Sequence[Any] | None) -> dict[int, list[Any]]:
    """Return the keys of each innermost data set, by its id, if a Subset or the sampler lists them."""
    getitem = getattr(type(view), "__getitem__", None)
    if getitem is Subset.__getitem__:
        places = spread(range(len(view.indices)), _ASKED_OWN) if keys is None else keys
        return _keys_of_parts(view.dataset, [view.indices[place] for place in places])
    if getitem is not ConcatDataset.__getitem__:
        return {} if keys is None else {id(view): list(keys)}
    inner: list[list[Any]] = [[] for _ in view.datasets]
    for key in keys or ():
        number, place = part_of(view, key)
        inner[number].append(place)
    found: dict[int, list[Any]] = {}
    for part, asked in zip(view.datasets, inner, strict=True):
        for bottom, more in _keys_of_parts(part, asked or None).items():
            found.setdefault(bottom, []).extend(more)
    return found


def _located(view: Any, layout: Layout | None, key: Any, first: int) -> Located:
    """Return the file of a sample of an innermost data set, whose first file has number `first`."""
    if layout is None:
        return Located(_number(first, key, view), f"{type(view).__name__}[{shown_key(key)}]", None, None, key, view)
    given, target = layout.entry(view, key)
    number = _number(first, key, layout.entries(view))
    if type(given) is str:
        return Located(number, given, target, None, given, view)
    data = data_of(given)
    path = path_of(given) if data is None else f"{type(view).__name__}[{shown_key(key)}]"
    return Located(number, path, target, data, given, view)


def _number(first: int, key: Any, among: Any) -> int:
    """Return the number of the file with that key among some files, the first of which has number `first`."""
    try:
        index = operator.index(key)
        return first + (index if index >= 0 else index + len(among))
    except Exception:  # noqa: BLE001 - the key is no integer; a class of the user's may raise anything
        return -1


class _unraised:  # noqa: N801 - used as contextlib's own
    """A context that logs exceptions and goes on; it is no generator function, see `random_streams._Apart`."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if isinstance(error, Exception):
            log.debug("the first samples cannot be read", exc_info=error)
        return isinstance(error, Exception)


def examined(dataset: Any, **options: Any) -> tuple[FileSource, Examined]:
    """Return the files behind a data set, and what it is now; `options` are those of `FileSource`."""
    source = FileSource(dataset, **options)
    return source, source.examine()


def _files(view: Any) -> int:
    return sum(len(part if layout is None else layout.entries(part)) for part, layout in parts(view))


def same(a: list[Any], b: list[Any]) -> bool:
    """Return whether two lists hold the same objects."""
    return len(a) == len(b) and all(map(operator.is_, a, b))
