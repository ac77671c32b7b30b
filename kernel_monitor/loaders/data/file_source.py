"""The files behind a data set: from a sample's index to a path (or encoded bytes) and a target."""

from __future__ import annotations

import copy
import logging
import operator
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any, NamedTuple

from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets.folder import pil_loader

from ...own_files import working_folder
from ...text import cause, log_outside
from ..attributes import attributes
from ..plan import shown_key
from ..random_streams import Streams
from ..transforms.chain import COMPOSES, flatten
from ..transforms.recorded import Forms, joined
from ..transforms.translate import examine as translated
from .calls import NOT_FOUND, PIL, REMEDIES, as_opened, plainly
from .examination import NOT_THE_SAME, PATIENCE_S, spread, unexamined
from .file_check import UNKNOWN_MODE, mode_of
from .fingerprint import snapshot
from .hugging_face import MAPPED, is_hugging_face, is_mapped
from .image_files import MODES, data_of, open_content, open_data, open_file, path_of, read_file
from .layouts import (
    PROTOCOL,
    Layout,
    Opener,
    check,
    gives_batches,
    layout_of,
    open_as_stored,
    open_gray,
    part_of,
    parts,
    plain,
)
from .own_dataset import OwnDataset, Reading
from .own_traces import Trace
from .sent_files import SentRow
from .tar_shards import TarShards

OWN_BATCHES = "has a __getitems__ of its own"
_ASKED = 6  # first samples that the user's own code locates, to try DALI on them
_ASKED_STORED = 16  # files that are asked for their mode, where they are opened in it
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


class PartChain(NamedTuple):
    """The transform of a part's images."""

    transform: Any  # None for none
    kind: str  # of the images that it is given: `PIL`, `TENSOR` or `ARRAY`


class Examined(NamedTuple):
    """The result of examining a data set: its transforms, and why an engine cannot open its files by itself."""

    chains: tuple[PartChain, ...] = ()  # the parts' transforms; empty where they cannot be examined
    obstacle: str | None = None  # why only the data set's own function may open the files, a sentence; None: others may
    failure: str | None = None  # why the transforms cannot be examined, from `text.cause`; None where they can
    forms: Forms | None = None  # what the operations on its images have in common, where traces follow them


class FileSource:
    """The files behind a data set. They are always read from `dataset`, so that changes take effect at once.

    With workers, `dataset` is a copy of the user's, which is replaced when workers would see the user's changes.

    Args:
        dataset: the user's data set.
        dry_run: whether data sets with a `__getitem__` of their own may be called to find out what it does.
        seeded: whether the random numbers of their `__getitem__` come from the plan; False: as in a plain DataLoader.
        keys: some of the sampler's keys, if not all are indices; None if no key is known.
        held: the copy of it that workers have; None if there is none yet.

    Attributes:
        failure: why the data set cannot be examined, from `text.cause`; None if it can.

    Raises:
        NotSwitchable: it has an `image_file` and no transform.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        dry_run: bool = True,
        seeded: bool = True,
        keys: Sequence[Any] | None = None,
        held: Any = None,
    ) -> None:
        check(dataset)
        self.dataset, self._users = dataset if held is None else held, dataset
        self.dry_run = dry_run
        self.seeded = seeded
        self.gives_batches = gives_batches(self.dataset)
        self._owns: list[OwnDataset] = []  # the parts with a `__getitem__` of their own
        self._traced: list[OwnDataset] = []  # the parts of a known layout whose transform only traces follow
        self._keys = keys
        self._folder = working_folder()  # joined once per sample
        self._offsets: dict[int, tuple[Any, list[int]]] = {}
        self.encoded = (
            False  # whether it, or some of its parts, gives encoded bytes: as the first sample did when asked
        )
        self.failure: str | None = None
        self._first: list[Located] = []  # the first samples, if the user's own code locates them
        self._other_mode: str | None = None  # of most images that are opened as they are stored, if that is not RGB
        self.ask()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first": [], "_users": None, "_traced": []}

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
    def chains(self) -> list[PartChain]:
        """The transforms of the parts' images, each once, in the order of the parts; one if all parts share one."""
        return list(self._numbered()[0])

    def chain_numbers(self) -> dict[int, int]:
        """Return the number in `chains` of each innermost data set, by its id."""
        return self._numbered()[1]

    def _numbered(self) -> tuple[list[PartChain], dict[int, int]]:
        chains: list[PartChain] = []
        known: dict[tuple[int, str], int] = {}
        numbers: dict[int, int] = {}
        for part, layout in parts(self.dataset):
            chain = PartChain(self._transforms(part, layout)[0], PIL if layout is not None else self.own(part).kind)
            number = known.setdefault((id(chain.transform), chain.kind), len(chains))
            if number == len(chains):
                chains.append(chain)
            numbers[id(part)] = number
        return chains, numbers

    def examine(self) -> Examined:
        """Return what the data set is now, in one piece."""
        found = Examined()
        try:
            if self.forms is not None:
                return found._replace(forms=self.forms, obstacle=self.obstacle)
            found = found._replace(chains=tuple(self.chains))
        except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
            log_outside(log, "the transforms cannot be examined", level=logging.INFO)
            found = found._replace(failure=cause(error))
        return found._replace(obstacle=self.obstacle)

    @property
    def forms(self) -> Forms | None:
        """What the operations on the images have in common, where traces follow them in all parts; else None."""
        traced = [own for own in (*self._owns, *self._traced) if own.forms is not None]
        if not traced or len(traced) != len({id(part) for part, _ in parts(self.dataset)}):
            return None
        forms = traced[0].forms
        for own in traced[1:]:
            forms = None if forms is None or own.forms is None else joined(forms, own.forms)
        return forms

    def proven(self, sample: Any) -> bool:
        """Return whether samples of this structure were found to be the same without a second call of the code."""
        return any(own.proven(sample) for own in (*self._owns, *self._traced))

    @property
    def goes_on(self) -> bool:
        """Whether the first call of a trace goes on where pixels are needed."""
        return any(own.goes_on for own in (*self._owns, *self._traced))

    @property
    def traces(self) -> list[Trace]:
        """Traces of some samples, if there are `forms`."""
        return [trace for own in (*self._owns, *self._traced) for trace in own.traces]

    @property
    def openers(self) -> list[Opener]:
        """The functions that open images, each once."""
        return list(dict.fromkeys(layout.opener(part) for part, layout in parts(self.dataset) if layout is not None))

    @property
    def opens_plainly(self) -> bool:
        """Whether torchvision's own functions open all files with Pillow, as RGB or as they are stored."""
        return all(plain(opener) or opener is open_as_stored for opener in self.openers)

    @property
    def opens_as_stored(self) -> bool:
        """Whether some files are opened in a mode of their own, which may be RGB."""
        return open_as_stored in self.openers

    def as_stored(self, located: Located) -> bool:
        """Return whether a sample's image is opened in its file's own mode."""
        layout = layout_of(located.part)
        return layout is not None and layout.opener(located.part) is open_as_stored

    @property
    def obstacle(self) -> str | None:
        """A sentence on why only the data set's own function may open the files; None if others may."""
        found = self._described(self._obstacle)
        return f"{self._name} {unexamined(self.failure)}." if self.failure is not None else found

    def _obstacle(self) -> str | None:
        for opener in self.openers:
            if opener is open_as_stored:
                if self._other_mode is not None:
                    return (
                        f"The data set opens most of its images in the mode {self._other_mode}, and DALI would make "
                        "them RGB."
                    )
                continue
            if opener is open_gray:
                return "The data set opens its images in grey, and DALI would make all of them RGB."
            if not plain(opener):
                shown = getattr(opener, "__name__", type(opener).__name__)
                return f"The data set opens its files by {shown}, and DALI would decode them itself."
        if self.forms is not None:
            return None
        for own in self._owns:
            if own.forms is None and own.refusal is not None:
                reason = own.untraced or own.refusal
                if reason == NOT_THE_SAME and plainly(own.refusal) == NOT_FOUND:
                    reason = own.refusal  # samples of classes that cannot be compared
                remedy = REMEDIES.get(str(plainly(reason)))
                return f"{type(own.dataset).__name__} {reason}{f'; {remedy}' if remedy else ''}."
        if any(own.forms is not None for own in self._owns):
            return (
                "The parts of the ConcatDataset do not do the same kinds of operations on their images, as DALI would; "
                "use a loader for each kind."
            )
        return None

    @property
    def unsendable(self) -> str | None:
        """The reason why contents cannot replace the files, as the end of "The data set …"; None if they can."""
        found = self._described(self._unsendable)
        return unexamined(self.failure) if self.failure is not None else found

    def _unsendable(self) -> str | None:
        if self.gives_batches:
            return next((own.refusal for own in self._owns if own.refusal is not None), OWN_BATCHES)
        for opener in self.openers:
            if not plain(opener) and opener not in MODES:
                return f"opens its files by {getattr(opener, '__name__', type(opener).__name__)}"
        if any(is_mapped(own.dataset) for own in self._owns):
            return MAPPED
        if any(own.forms is not None for own in self._owns):
            return "opens several images for a sample, or transforms one more than once, and one file is sent for each"
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
            log_outside(log, "%s cannot be examined", self._name, level=logging.INFO)
            self.failure = cause(error)

    @property
    def _name(self) -> str:
        return type(self.dataset).__name__

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
        self._first, self.encoded, self.failure, self._other_mode = [], False, None, None
        try:
            self._learn_traces()
            if self.asks_user:
                streams = Streams(self.dataset)
                with streams.apart():
                    self._learn()
                    self._read_first()
                self.failure = streams.failure
            if self.opens_as_stored:
                self._other_mode = self._mode_of_most()
        except Exception as error:  # noqa: BLE001 - the user's own classes may raise anything
            self._failed(error)

    def _mode_of_most(self) -> str | None:
        """Return the mode of most of the images that are opened as they are stored; None if it is RGB or not known."""
        found: Counter[str] = Counter()
        for located in self.spread(_ASKED_STORED):
            if self.as_stored(located):
                found[mode_of(self.absolute(located.path))] += 1
        del found[UNKNOWN_MODE]
        others = Counter({mode: count for mode, count in found.items() if mode != "RGB"})
        return others.most_common(1)[0][0] if 2 * others.total() > found.total() else None

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
        self.encoded |= any(own.learnt is not None and own.learnt.encoded for own in self._owns)
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
        batches = gives_batches(self.dataset)
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
            if hasattr(part, "__getitems__") and not is_hugging_face(type(part)):
                own.refusal = OWN_BATCHES
            elif not self.seeded:
                own.refusal = "draws as in a plain DataLoader (seeded=False)"
            elif not self.dry_run:
                own.refusal = "is not to be called dry (dry_run=False)"
            else:
                own.learn(earlier, asked.get(id(part)), batches=batches)
        self.gives_batches = batches and not all(own.by_rows for own in self._owns)

    def _learn_traces(self) -> None:
        """Find out whether traces can follow the transforms of known layouts that cannot be translated."""
        self._traced = []
        if not (self.seeded and self.dry_run) or self.gives_batches:
            return
        for part in self.parts_to_trace():
            own = OwnDataset(part, apart=self.dataset is not self._users)
            with self._unraised_streams(part):
                own.learn_traces()
            self._traced.append(own)

    def parts_to_trace(self) -> list[Any]:
        """Return the parts of known layouts whose transform only traces may follow. None of their own code is run."""
        found = []
        for part in {id(part): part for part, layout in parts(self.dataset) if layout is not None}.values():
            transform, _ = self._transforms(part, layout_of(part))
            if transform is None or _of_torchvision(transform):
                continue
            program = translated(transform, PIL).program
            if program is not None and program.rest is not None and not program.steps:
                found.append(part)
        return found

    def _unraised_streams(self, part: Any) -> AbstractContextManager[None]:
        return Streams(part).apart()

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
        shards = [path for part, _ in parts(self.dataset) if issubclass(type(part), TarShards) for path in part.shards]
        if shards:
            return spread(shards, count)
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

    def read_ahead(self, keys: Iterable[Any]) -> None:
        """Have the system read the members of `TarShards` in the background: a batch's samples are located in turn."""
        if not any(issubclass(type(part), TarShards) for part, _ in parts(self.dataset)):
            return
        with _unraised():  # the sample raises it again
            for key in keys:
                part, inner, _ = self._bottom(key)
                if issubclass(type(part), TarShards):
                    part.read_ahead(inner)

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
        own = self.own(located.part)
        if own.forms is not None:
            return located._replace(path=own.path or located.path)
        read = own.read_proven(located.given)
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

    def content(self, located: Located) -> bytes:
        """Return the encoded file of a sample; an `OSError` if it is no regular file, or cannot be read."""
        return read_file(self.absolute(located.path)) if located.data is None else located.data

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


def _of_torchvision(transform: Any) -> bool:
    """Return whether a transform is one of torchvision's, or a chain of them: traces would follow no more of it."""
    if type(transform) in COMPOSES:
        return all(map(_of_torchvision, transform.transforms))
    kind = type(transform)
    return kind.__module__.startswith("torchvision.transforms.") and kind.__name__ != "Lambda"


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
