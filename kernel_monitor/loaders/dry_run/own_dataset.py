"""What is known of a data set whose `__getitem__` is somebody's own: learnt by calling it, believed when proven.

`learn` calls it for some samples, once as it is and once dry, and compares. Where every sample is the same both ways,
`read` gives the file of a sample, and everything else of it, by a dry run; `compute` gives a sample by the user's own
code. Both give the transform the same random numbers.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..data.dataset_copy import snapshot
from ..random_streams import Streams
from ..transforms.draws import sample_keys
from ..transforms.inject import Injected
from . import openers
from .calls import (
    AFTERWARDS,
    DIFFERENT,
    KEEPS,
    NEW_TRANSFORM,
    NO_IMAGE,
    NOT_FOUND,
    PIXELS,
    TWO_TRANSFORMS,
    Deviation,
    DryCall,
    RealCall,
)
from .lazy_image import LazyImage, Opened, opened_of
from .point import TransformPoint
from .structure import Place, equal, form, places, put, values
from .view import View
from .watch import Watch

PROVEN = 16  # samples that are computed both ways, spread over the data set
AGAIN = 2  # samples, where the data set looks as it did when it was proven
FORMS = 32  # kinds of samples, by their structure, that are proven while the loader runs
NOT_THE_SAME = "is not the same twice"
DIFFERS = "gives another sample when its image is opened and transformed for it"
OPAQUE = (PIXELS, NEW_TRANSFORM, TWO_TRANSFORMS, AFTERWARDS, NOT_FOUND)  # a function of the user's may be the transform
FINAL = (KEEPS, NOT_THE_SAME, DIFFERS)  # one such sample is enough
DEVIATING = 0.1  # share of the samples above which a data set is not read by dry runs


class Reading(NamedTuple):
    """What a dry run of one sample gave."""

    opened: Opened  # the image
    sample: Any  # with a `Placed` in the image's place
    places: list[Place]  # of the image
    point: TransformPoint | None  # that it was given to; None: to none

    def filled(self, image: Any) -> Any:
        """The sample with the image in its place; to be called once."""
        sample = self.sample
        for place in self.places:
            sample = put(sample, place, image)
        return sample


@dataclass(frozen=True)
class Learnt:
    """What was learnt of a data set; can be sent to workers.

    Attributes:
        kind: of the images that the transform is given, see `openers`.
        place: of the transform among those that were found in the data set; None where there is none.
        functions: whether functions counted as transforms then.
    """

    kind: str
    place: int | None
    functions: bool


class OwnDataset:
    """See the module's text.

    Args:
        dataset: the user's.
        learnt: what another process has learnt of it, or an earlier look at it.
    """

    def __init__(self, dataset: Any, learnt: Learnt | None = None, *, functions: bool = False) -> None:
        openers.install()
        self.dataset = dataset
        self.learnt = learnt
        self.refusal: str | None = None
        self._functions = functions if learnt is None else learnt.functions
        self._view = View(dataset, functions=self._functions)
        self._forms: set[Any] = set()
        self._opened_any = False  # whether the sample computed last opened an image

    @property
    def current(self) -> bool:
        """Whether the data set still keeps the transforms that were found in it."""
        return self._view.current

    @property
    def point(self) -> TransformPoint | None:
        """The transform of its images; None where none is known."""
        points, learnt = self._view.points, self.learnt
        place = None if learnt is None else learnt.place
        return points[place] if place is not None and place < len(points) else None

    @property
    def transform(self) -> Any:
        """The user's transform of the images; None where none is known."""
        return None if self.point is None else self.point.transform

    def compute(self, index: int, transform: Callable[[Any], Any] | None) -> tuple[Any, str | None]:
        """A sample by the user's own code, and the path of its file, if it is known.

        Args:
            index: of the sample.
            transform: applied to the image in place of the user's; None: the user's.

        Raises:
            Exception: whatever the user's code raises; it has the path as its attribute `kernel_monitor_path`.
        """
        call = RealCall(self.point, transform)
        with call:
            try:
                sample = self._view.dataset[index]
                self._opened_any = call.opened_any
                return sample, call.path
            except Exception as error:
                error.kernel_monitor_path = call.path  # type: ignore[attr-defined]
                raise

    def read(self, index: int) -> Reading | str:
        """A sample by a dry run, or why that is not possible, without a full stop.

        Raises:
            Exception: whatever the user's code raises.
        """
        call = DryCall()
        with call:
            try:
                sample = self._view.dataset[index]
            except Deviation:
                return call.reason or AFTERWARDS
            except Exception:
                if call.reason is not None:
                    return call.reason
                raise
            if call.reason is not None or call.image is None:
                return call.reason or NO_IMAGE
            image: LazyImage | None = call.image
            point = call.point
            if call.placed is not None:
                found = list(places(sample, call.placed))
            else:  # no transform: the image itself is in the sample
                image, found = first_image(sample)
                if image is not None:
                    image.check_colours(call)
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

    def proven(self, reading: Reading) -> bool:
        """Whether samples of this form were the same both ways."""
        return form(reading.sample) in self._forms

    def learn(self) -> None:
        """Find out whether its samples can be read by dry runs; `refusal` says why not.

        Works on a copy: what the data set changes of its own while it is read is not seen by anybody.
        """
        self._try(functions=False)
        if self.refusal in OPAQUE:
            first = self.refusal
            self._try(functions=True)
            self.refusal = first if self.learnt is None else None
        self._functions = self.learnt is not None and self.learnt.functions
        self._view = View(self.dataset, functions=self._functions)

    def _try(self, *, functions: bool) -> None:
        trial = OwnDataset(snapshot(self.dataset), functions=functions)
        with Watch(trial._view.dataset, trial._view.shared) as watch:
            refusal = trial._refusal(watch)
        self.refusal = watch.reason or refusal
        self.learnt = None if self.refusal is not None else trial.learnt
        self._forms = trial._forms

    def _refusal(self, watch: Watch) -> str | None:
        total = len(self.dataset)
        indices = sorted({k * total // PROVEN for k in range(PROVEN)}) if total else []
        reasons: Counter[str] = Counter()
        for index in indices:
            try:
                reason = self._compared(index, watch)
            except Deviation:
                reason = KEEPS
            except Exception as error:  # noqa: BLE001 - the loop meets it again, if it gets there
                reason = f"raises {type(error).__name__} where a sample is read"
            if watch.reason is not None or reason in FINAL:
                return watch.reason or reason
            if reason is not None:
                reasons[reason] += 1
        if sum(reasons.values()) > DEVIATING * len(indices) or self.learnt is None:
            return reasons.most_common(1)[0][0] if reasons else "has no samples"
        return None

    def _compared(self, index: int, watch: Watch) -> str | None:
        """Compute a sample both ways; returns why it cannot be read, None where it can.

        Each call is made by the user's own code first: what it writes or keeps, it has then written and kept whole.
        """
        seed = 0x5EED + index
        injected = None if self.learnt is None else Injected(self.transform)
        theirs = self._seeded(seed, injected)(index)
        watch.look()
        self._streams.seed(seed)
        reading = self.read(index)
        watch.look()
        if isinstance(reading, str):
            return KEEPS if reading == NO_IMAGE and self._opened_any else reading
        if self.learnt is None:
            place = next((k for k, point in enumerate(self._view.points) if point is reading.point), None)
            if place is None and reading.point is not None:
                return NEW_TRANSFORM
            self.learnt = Learnt(reading.opened.kind, place, self._functions)
        if reading.opened.kind != self.learnt.kind:
            return "opens some images by another function"
        if injected is None:
            injected = Injected(self.transform)
            theirs = self._seeded(seed, injected)(index)
        seen = form(reading.sample)
        injected.begin(sample_keys(seed, 0, [index], [0]))
        ours = reading.filled(injected.run(as_opened(reading.opened), 0))
        if not equal(ours, theirs):
            again = self._seeded(seed, injected)(index)
            return DIFFERS if equal(again, theirs) else NOT_THE_SAME
        self._forms.add(seen)
        return None

    @property
    def _streams(self) -> Streams:
        return Streams(self.dataset)

    def _seeded(self, seed: int, injected: Injected | None) -> Callable[[int], Any]:
        """The user's own samples, with these random numbers."""

        def computed(index: int) -> Any:
            self._streams.seed(seed)
            if injected is not None:
                injected.begin(sample_keys(seed, 0, [index], [0]))
            return self.compute(index, None if injected is None else lambda image: injected.run(image, 0))[0]

        return computed


def same(a: TransformPoint | None, b: TransformPoint | None) -> bool:
    """Whether two points stand for the same transform, or both for none."""
    return a is b if a is None or b is None else a.same(b)


def first_image(sample: Any) -> tuple[LazyImage | None, list[Place]]:
    """An image in a sample that was not decoded, and its places."""
    image = next((value for value in values(sample) if type(value) is LazyImage), None)
    return image, [] if image is None else list(places(sample, image))


def as_opened(opened: Opened) -> Any:
    """The image that the transform is given, decoded."""
    if opened.kind == openers.TENSOR:
        return opened.real()
    with opened.real() as image:
        return image.convert("RGB")
