"""A data set with a hand-written `__getitem__`, whose files are found by dry runs of it.

`learn` computes some samples twice, by a normal call and by a dry run, and compares the results. If they are equal,
`read` finds the file of a sample, and the rest of the sample, by a dry run; `compute` runs the user's own code. Both
give the transform the same random numbers. Where dry runs are not possible, `learn` tries traces (`own_traces`).
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...text import cause, log_outside
from ..attributes import attributes
from ..plan import shown_key
from ..random_streams import Streams
from ..transforms import recorded
from ..transforms.inject import Injected
from ..transforms.params import sample_keys
from ..transforms.translate import examine
from . import calls, own_traces, trace_calls
from .calls import (
    AFTERWARDS,
    CACHED,
    DIFFERENT,
    IN_MEMORY,
    JOINT,
    KEEPS,
    NEW_TRANSFORM,
    NO_IMAGE,
    NOT_FOUND,
    NOT_RGB,
    ON_DISK,
    OPENED_TWICE,
    PIXELS,
    TWICE,
    TWO_IMAGES,
    TWO_TRANSFORMS,
    Deviation,
    Opened,
    RealCall,
    TransformPoint,
    as_opened,
    plainly,
)
from .dry_call import DryCall, DryImage, become, check_colours, first_image, opened_of
from .examination import (
    AGAIN,
    DEVIATING,
    DIFFERS,
    LEAST_READ,
    NOT_THE_SAME,
    PATIENCE_S,
    PROVEN,
    SEED,
    seed_of,
    spread,
    unexamined,
)
from .fingerprint import copied
from .hugging_face import BATCHES, batches_are_rows
from .own_traces import Trace, Traces
from .structure import Place, equal, form, places, put, values
from .trace import following
from .view import View
from .watch import ChangeDetector, caches, keeps_images

_FORMS = 32  # the most structures of samples that are compared
_NO_COPY = "cannot be tried on a copy of it, because of its __del__ or __slots__"

_OPAQUE = (PIXELS, NEW_TRANSFORM, TWICE, TWO_TRANSFORMS, AFTERWARDS, NOT_FOUND)
"""Reasons against dry runs that may be lifted by replacing the user's functions, too, as if they were transforms."""

_TRACEABLE = (*_OPAQUE, JOINT, TWO_IMAGES, OPENED_TWICE, NOT_RGB, DIFFERENT, DIFFERS)
"""Reasons against dry runs that traces may lift."""

_CACHES = (CACHED, ON_DISK)
_FINAL = (KEEPS, NOT_THE_SAME, DIFFERS)  # reasons for which one sample is enough

log = logging.getLogger(__name__)


class Reading(NamedTuple):
    """The result of a dry run of a sample."""

    opened: Opened  # the image's file
    sample: Any  # the sample with a `Placed` in the image's place
    places: list[Place]  # the places of the image in it
    point: TransformPoint | None  # the transform that got the image; None: no transform

    def filled(self, image: Any) -> Any:
        """Return the sample with the image in its place; to be called once."""
        sample = self.sample
        for place in self.places:
            sample = put(sample, place, image)
        return sample


@dataclass(frozen=True)
class _Learnt:
    """The facts learnt about a data set; can be sent to workers.

    Attributes:
        kind: the kind of the transform's input images: `PIL`, `TENSOR` or `ARRAY`.
        place: index of the transform among those that were found in the data set; None without a transform.
        functions: whether functions counted as transforms.
        encoded: whether its images are opened from bytes, as the first one was, instead of a path.
    """

    kind: str
    place: int | None
    functions: bool
    encoded: bool


class OwnDataset:
    """A data set with a hand-written `__getitem__`; see the module's docstring.

    Args:
        dataset: the user's data set.
        functions: whether the user's functions count as transforms, too.
        apart: see `search`.

    Attributes:
        learnt: the facts about it; None if its samples cannot be read by dry runs.
        refusal: why they cannot be, as the end of "The data set …"; None if they can be, or can be traced.
        untraced: why they cannot be traced either, as the end of "The data set …"; None if no reason is known.
        path: the file that the user's own code opened last; None if that is not known.
        by_rows: whether its batches are equal to their rows, so that it may be asked for single ones.
        forms: the forms of the images that DALI computes, where its samples are traced; else None.
        traces: traces of some samples, if there are `forms`.
        goes_on: whether the first call of a trace goes on where pixels are needed; see `trace_calls.TraceCall`.
    """

    by_rows = False

    def __init__(self, dataset: Any, *, functions: bool = False, apart: bool = False) -> None:
        trace_calls.install()
        self.dataset = dataset
        self.learnt: _Learnt | None = None
        self.refusal: str | None = "was not called yet"
        self.path: str | None = None
        self.forms: recorded.Forms | None = None
        self.untraced: str | None = None
        self.traces: list[Trace] = []
        self.goes_on = False
        self._functions = functions
        self.search(apart=apart)
        self._forms: set[Any] = set()  # structures of the samples that were the same both ways
        self._opened_any = False  # whether the sample computed last opened an image
        self._read = self._unread = 0  # samples that could, and could not, be read since `learn`

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None, "traces": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        trace_calls.install()
        self.search(apart=False)

    def search(self, *, apart: bool) -> None:
        """Search the data set for transforms; with `apart`, a copy of it, so that the user's object opens no files."""
        self._apart = apart
        self._view = View(copied(self.dataset) if apart else self.dataset, functions=self._functions)

    @property
    def current(self) -> bool:
        """Whether the data set still keeps the transforms that were found in it."""
        return self._view.current

    @property
    def kind(self) -> str:
        """The kind of the transform's input images: `PIL`, `TENSOR` or `ARRAY`."""
        return calls.PIL if self.learnt is None else self.learnt.kind

    @property
    def point(self) -> TransformPoint | None:
        """The stand-in for the images' transform; None if no transform is known."""
        points, place = self._view.points, None if self.learnt is None else self.learnt.place
        return points[place] if place is not None and place < len(points) else None

    @property
    def transform(self) -> Any:
        """The user's transform of the images; None if no transform is known."""
        return None if self.point is None else self.point.transform

    def glance(self) -> list[Any]:
        """Return the present objects at the places where transforms were found."""
        return self._view.found

    def compute(self, key: Any, transform: Callable[[Any], Any] | None) -> Any:
        """Compute a sample by the user's own code.

        Args:
            key: the sample's key.
            transform: the function to apply to the image in place of the user's transform; None: the user's.

        Raises:
            Exception: any exception of the user's code.
        """
        if following():
            return self._view.dataset[key]
        call = RealCall(self.point, transform)
        dataset = self.dataset if self.learnt is None else self._view.dataset
        with call:
            try:
                return dataset[key]
            finally:
                self.path, self._opened_any = call.path, call.opened_any

    def read_proven(self, key: Any) -> Reading | str:
        """Read a sample as `read` does, but compute a sample of a new structure both ways first.

        An exception of the user's code is a reason here; the engine that computes the sample raises it again.
        """
        if self.learnt is None:
            return str(self.refusal)
        self._read += 1
        try:
            found = self.read(key)
            if not isinstance(found, str) and form(found.sample) not in self._forms:
                found = self._extended(key, found)
        except Exception as error:  # see above
            log.debug("a sample cannot be read", exc_info=True)
            found = f"raises {type(error).__name__}"
        self._unread += isinstance(found, str)
        return found

    def over(self, dataset: Any) -> OwnDataset:
        """Return an `OwnDataset` of a copy of the data set with the same facts."""
        other = OwnDataset(dataset, functions=self._functions)
        other.learnt, other.refusal, other.path, other._forms = self.learnt, self.refusal, self.path, self._forms
        other.forms, other.untraced, other.goes_on = self.forms, self.untraced, self.goes_on
        other.by_rows = self.by_rows
        return other

    def proven(self, sample: Any) -> bool:
        """Return whether samples of this structure were the same both ways."""
        return form(sample) in self._forms

    def give_up(self) -> bool:
        """Return whether dry runs are to be given up because too many samples could not be read."""
        if self.refusal is None and self._read >= LEAST_READ and self._unread > DEVIATING * self._read:
            self.refusal = f"cannot be read without its own code in {self._unread} of {self._read} samples"
            return True
        return False

    def _extended(self, key: Any, found: Reading) -> Reading | str:
        """Return the reading of a sample with a new structure if it is the same both ways, else the reason."""
        if len(self._forms) >= _FORMS:
            return "gives samples of ever new structures"
        reason = self._compared(key, None)
        return reason or found  # it is not read again: it would draw other numbers than the plan's

    def read(self, key: Any) -> Reading | str:
        """Read a sample by a dry run; return the reason, without a full stop, if that is not possible.

        Raises:
            Exception: any exception of the user's code.
        """
        call = DryCall()
        with call:
            try:
                sample = self._view.dataset[key]
            except Deviation:
                return call.reason or AFTERWARDS
            except Exception:
                if call.reason is None and not (call.gave_array and call.point is None):
                    raise
                log.debug("a dry run ended early", exc_info=True)
                return call.reason or PIXELS  # a function refused the lazy array
            if call.reason is not None or call.image is None:
                return call.reason or NO_IMAGE
            image, point = call.image, call.point
            if call.placed is not None:
                found = list(places(sample, call.placed))
            else:  # without a transform the image itself is in the sample
                image, found = first_image(sample)
                if image is not None:
                    check_colours(image, call)
                    _check_class(image, call)
        reason: str | None = call.reason
        if reason is not None or image is None or not found:
            return reason or NOT_FOUND
        if self.learnt is not None and not same(point, self.point):
            return DIFFERENT
        opened, kept = opened_of(image), weakref.ref(image)
        call.image = call.placed = image = None
        if point is not None and kept() is not None and not list(places(sample, kept())):
            return KEEPS
        return Reading(opened, sample, found, point)

    def learn(
        self, earlier: OwnDataset | None = None, keys: Sequence[Any] | None = None, *, batches: bool = False
    ) -> None:
        """Find out whether the samples can be read by dry runs.

        This uses a copy, so that changes that the data set makes to itself have no effect.

        Args:
            earlier: an earlier state of the data set that was examined: then a few samples are enough.
            keys: the sampler's keys; None: any index.
            batches: whether the DataLoader asks it for whole batches, by `__getitems__`.
        """
        try:
            self._learn(earlier, keys)
            if batches and (self.learnt is not None or self.forms is not None):
                asked = spread(range(len(self.dataset)) if keys is None else keys, PROVEN // 2)
                self.by_rows = batches_are_rows(copied(self.dataset), asked)
                if not self.by_rows:
                    self.learnt, self.forms, self.refusal = None, None, BATCHES
        except Exception as error:  # noqa: BLE001 - the user's own classes may do anything; the loop meets it again
            log_outside(log, "%s cannot be examined", type(self.dataset).__name__, level=logging.INFO)
            self.learnt, self.refusal = None, unexamined(cause(error))

    def _learn(self, earlier: OwnDataset | None, keys: Sequence[Any] | None) -> None:
        if earlier is not None and type(earlier.dataset) is type(self.dataset):
            self._forms = earlier._forms
            if earlier.refusal is not None:
                self.refusal, self.untraced, self.path = earlier.refusal, earlier.untraced, earlier.path
                return
            if earlier.forms is not None:
                self.learn_traces(keys, AGAIN, [form.result for form in earlier.forms])
                if self.forms is not None:  # of fewer samples than the earlier ones
                    self.forms = recorded.joined(earlier.forms, self.forms) or self.forms
                    return
            self._try(AGAIN, keys, functions=earlier._functions)
        if self.learnt is None:
            self._try(PROVEN, keys, functions=False)
        if self._leaves_all():
            self.learn_traces(keys)
        if self.forms is not None:
            return
        if plainly(self.refusal) in _OPAQUE:
            first = self.refusal
            self._try(PROVEN, keys, functions=True)
            self.refusal = first if self.learnt is None else None
        self._functions = self.learnt is not None and self.learnt.functions
        self.search(apart=self._apart)

    def _leaves_all(self) -> bool:
        """Return whether DALI would do no transform by dry runs, so that traces are tried."""
        if self.learnt is None:
            return plainly(self.refusal) in _TRACEABLE
        program = examine(self.transform, self.kind).program
        return program is not None and program.rest is not None and not program.steps

    def learn_traces(
        self, keys: Sequence[Any] | None = None, samples: int = PROVEN, results: Sequence[str] = ()
    ) -> None:
        """Find out whether the samples can be traced: then there are `forms`, else perhaps a reason in `untraced`.

        `results` are those of more samples, which were examined earlier.
        """
        found = own_traces.learn(self.dataset, keys, samples, results)
        if isinstance(found, Traces):
            self.forms, self.traces, self.goes_on = found.forms, found.traces, found.goes_on
            self._forms = self._forms | found.structures
            self.learnt, self.refusal, self.untraced, self.path = None, None, None, found.traces[0].path
        else:
            self.untraced = found

    def _try(self, samples: int, keys: Sequence[Any] | None, *, functions: bool) -> None:
        """Compare so many samples of a copy of the data set both ways; set `learnt` or `refusal`.

        `functions`: whether the user's functions count as transforms, too.
        """
        copy = copied(self.dataset)
        if copy is self.dataset:
            self.refusal = _NO_COPY
            return
        trial = OwnDataset(copy, functions=functions)
        if trial._view.failure is not None:
            self.refusal = unexamined(trial._view.failure)
            return
        # Attributes of objects that the copy shares with the user's data set are restored, so that no file stays open.
        user_set, view = attributes(self.dataset), trial._view
        helpers = [
            kept for name, kept in attributes(copy).items() if user_set.get(name) is kept and view.is_users(kept)
        ]
        with ChangeDetector(view.dataset, [*view.shared, *map(attributes, helpers)]) as changes:
            refusal = trial._refusal(changes, spread(range(len(copy)) if keys is None else keys, samples))
        self.refusal = refusal if refusal in _CACHES else changes.reason or refusal
        if refusal in (CACHED, NO_IMAGE):
            self.refusal = self._of_cache(self.refusal, opened=changes.opened)
        # The copy may keep a method of its own, and would not release the files that it has opened.
        attributes(copy).clear()
        self.learnt = None if self.refusal is not None else trial.learnt
        self.path = trial.path
        self._forms = self._forms | trial._forms

    def _of_cache(self, refusal: str | None, *, opened: bool) -> str | None:
        """Return a more exact refusal where the data set keeps images, else the same; `opened`: it opened a file."""
        total, kept = len(self.dataset), caches(self.dataset, self._view.is_from_user)
        if refusal == CACHED:
            small = [cache.most for cache in kept if cache.most is not None and cache.most < total]
            if small and len(small) == len(kept):
                return f"keeps only the last {min(small)} of its {total} images in an lru_cache"
            return refusal
        if refusal != NO_IMAGE or opened:
            return refusal
        return IN_MEMORY if keeps_images(self.dataset) or any(2 * one.kept >= total for one in kept) else refusal

    def _kept(self, keys: Sequence[Any], changes: ChangeDetector) -> str:
        """Return the reason for a data set that opens no image where it is asked for a sample again: what it keeps."""
        for key in keys:
            self.compute(key, None)
        opened, changes.opened = False, False
        for key in keys:
            self.compute(key, None)
            opened |= self._opened_any
        return KEEPS if opened else ON_DISK if changes.opened else CACHED

    def _refusal(self, changes: ChangeDetector, keys: Sequence[Any]) -> str | None:
        """Compare the samples of these keys both ways; return why they cannot be read, or None if most can."""
        reasons: Counter[str] = Counter()
        until = time.monotonic() + PATIENCE_S
        for number, key in enumerate(keys):
            if number >= AGAIN and time.monotonic() > until:
                keys = keys[:number]
                break
            try:
                reason = self._compared(key, changes)
            except Deviation:
                reason = KEEPS
            except Exception as error:  # the loop meets it again, if it gets there
                log.debug("a sample cannot be examined", exc_info=True)
                reason = f"raises {type(error).__name__} where it is asked for {shown_key(key)}"
            if reason in (CACHED, KEEPS):
                reason = self._kept(keys[: 2 * AGAIN], changes)
                if reason in _CACHES:
                    return reason
            if changes.reason is not None or reason in _FINAL:
                return changes.reason or reason
            if reason is not None:
                reasons[reason] += 1
        if sum(reasons.values()) > DEVIATING * len(keys) or self.learnt is None:
            return reasons.most_common(1)[0][0] if reasons else "has no samples"
        return None

    def _compared(self, key: Any, changes: ChangeDetector | None) -> str | None:
        """Compute a sample both ways; return why it cannot be read, or None if it can.

        The user's own code runs first, so that files and attributes that it writes are complete.
        """
        seed = seed_of(key)
        injected = None if self.learnt is None else Injected(self.transform)
        real = self._seeded(seed, injected, key)
        trace_calls.install()  # for the modules that the data set has imported by now
        if changes is not None:
            changes.compare()
        streams = Streams(self.dataset)
        streams.seed(seed)
        reading = self.read(key)
        if changes is not None:
            changes.compare()
        if isinstance(reading, str):
            return CACHED if reading == NO_IMAGE and self._opened_any else reading
        if self.learnt is None:
            place = next((k for k, point in enumerate(self._view.points) if point is reading.point), None)
            if place is None and reading.point is not None:
                return NEW_TRANSFORM
            self.learnt = _Learnt(reading.opened.kind, place, self._functions, reading.opened.data is not None)
        if reading.opened.kind != self.learnt.kind:
            return "opens some images by another function"
        if injected is None:
            injected = Injected(self.transform)
            real = self._seeded(seed, injected, key)
        seen = form(reading.sample)
        injected.begin(sample_keys(seed, 0, [seed - SEED], [0]))
        dry = reading.filled(injected.run(as_opened(reading.opened), 0))
        for left in values(dry):  # an image that the sample keeps beside the transformed one
            if type(left) is DryImage:
                become(left)
        if not equal(dry, real):
            repeated = self._seeded(seed, injected, key)
            return DIFFERS if equal(repeated, real) else NOT_THE_SAME
        self._forms.add(seen)
        return None

    def _seeded(self, seed: int, injected: Injected | None, key: Any) -> Any:
        """Compute a sample by the user's own code, with these random numbers."""
        streams = Streams(self.dataset)
        streams.seed(seed)
        if injected is None:
            return self.compute(key, None)
        injected.begin(sample_keys(seed, 0, [seed - SEED], [0]))

        def transform(image: Any) -> Any:
            with streams.apart():
                return injected.run(image, 0)

        return self.compute(key, transform)


def _check_class(image: Any, call: DryCall) -> None:
    """Fail the dry run if the sample has its image in a file's class, such as `JpegImageFile`, which DALI cannot make.

    It is for data sets without a transform.
    """
    if call.reason is None and type(image) is DryImage and image.format is not None:
        call.fail(NOT_RGB, "it is returned as PIL.Image.open gives it")


def same(a: TransformPoint | None, b: TransformPoint | None) -> bool:
    """Return whether two points stand for the same transform, or both for none."""
    return a is b if a is None or b is None else a.same(b)
