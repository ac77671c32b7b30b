"""Traces of a hand-written data set's samples: one sample's, and what those of a data set have in common.

`learn` computes some samples with and without a trace, and compares the results. If they are equal, and the operations
on the samples' images alike, DALI can compute these for all samples.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from ..attributes import attributes
from ..plan import shown_key
from ..random_streams import Streams
from ..transforms import recorded
from . import trace_calls, traced_array
from .calls import NO_IMAGE
from .examination import AGAIN, DEVIATING, DIFFERS, NOT_THE_SAME, SEED, seed_of, spread
from .fingerprint import copied
from .structure import equal, form, only_images_differ
from .trace import Ended, Mismatch, Node
from .trace_calls import Held, ReplayCall, TraceCall
from .view import View
from .watch import ChangeDetector

log = logging.getLogger(__name__)

_PATIENCE_S = 1.0  # seconds for all traces; DALI's pipeline grows where operations are met later
_TURNS = 4  # traces of each sample, with other random numbers: as some crops are filled up and some are not, say
_ROUNDS = 8  # attempts to find what traces have in common
_DERIVED = "computes more than images from an image's pixels, which DALI decodes a little differently"
_BY_PIXELS = "decides by the pixels of an image what it does next, which DALI would have to know before it decodes"
_VARIED = (
    "does not do the same kinds of operations on its images in all samples, as DALI would; use a loader for each kind"
)
_UNCUT = "neither resizes nor crops its images, and all that DALI would do is decode"
_WHOLE = "calls {} on whole images, and all that DALI would do is decode; resize or crop them first"
_UNDECODED = "opens its images in the mode {}, and DALI would make them RGB"


class Trace:
    """The operations on the images of a sample, recorded by a first call of the code that computes it.

    Attributes:
        roots: the files that were opened.
        ends: the images that DALI computes.
        sample: the sample, in which some images have no pixels; None if the call ended early.
        held: these images; None if they are not known, so that only a second call of the code gives the sample.
        needed: whether pixels were needed in the call.
        unfollowed: why some images were not followed, as the end of "The data set …"; None if all were.
        key: the key of a sample that `learn` traced; else None.
    """

    needed = False
    unfollowed: str | None = None
    key: Any = None

    def __init__(self, roots: list[Node], sample: Any, held: list[Held] | None, results: Sequence[str]) -> None:
        self.roots = roots
        self.sample = sample
        self.held = held
        self.limit(results)

    @property
    def geometry(self) -> list[recorded.End]:
        """The colour images that DALI resizes or cuts."""
        return [end for end in self.ends if recorded.moved(end.output, self.roots[end.output.file].size)]

    def limit(self, results: Sequence[str]) -> None:
        """Find the `ends` again, each of which goes no further than one of these results; see `recorded.ends`."""
        self.ends = recorded.ends(self.roots, results)

    @property
    def forms(self) -> recorded.Forms:
        """The forms of DALI's images."""
        return recorded.forms_of(self.ends, self.roots)

    @classmethod
    def of(cls, compute: Callable[[], Any], results: Sequence[str] = (), *, goes_on: bool) -> Trace:
        """Call the code that computes a sample, and return the trace.

        An exception of the code ends the call; the second call raises it again.

        Args:
            compute: the code.
            results: see `limit`.
            goes_on: see `trace_calls.TraceCall`.
        """
        call = TraceCall(goes_on=goes_on)
        sample, held = None, None
        try:
            with call:
                sample = compute()
            held = call.held(sample)
        except (Ended, Exception):
            log.debug("a trace ended early", exc_info=True)
        found = cls(call.roots, sample, held, results)
        found.needed, found.unfollowed = call.needed, call.reason
        return found

    def filled(self, pixels: dict[Node, Any]) -> Any:
        """Fill the images in `held`, and return the sample; to be called once. `pixels`: the images of the `ends`.

        Operations after an end are computed here, by the functions that the code called.
        """
        for held in self.held or ():
            held.fill(held.node.real(pixels))
        return traced_array.without_lazy(self.sample)

    def replayed(self, compute: Callable[[], Any], pixels: dict[Node, Any]) -> Any:
        """Call the code a second time, and return the sample. `pixels`: the images of the `ends`.

        Raises:
            Mismatch: the code did something else than in the first call.
        """
        call = ReplayCall(self.roots, pixels)
        with call:
            sample = compute()
        call.finish(sample)
        return traced_array.without_lazy(sample) if call.gave_array else sample

    def again(self) -> Trace:
        """Return the trace, after a second call, so that it can be compared with one more."""
        for root in self.roots:
            root.begin_again()
        return self

    @property
    def path(self) -> str | None:
        """The path of the first file; None if it has none."""
        return next((root.opened.path for root in self.roots if root.opened is not None), None)


class Traces(NamedTuple):
    """Traces of a data set's samples, and what they have in common.

    Attributes:
        forms: the forms of the images that DALI computes.
        traces: traces of the first samples.
        structures: structures of samples that were right when the images of the first call's sample were filled.
        goes_on: whether more is traced if the first call goes on where pixels are needed.
    """

    forms: recorded.Forms
    traces: list[Trace]
    structures: set[Any]
    goes_on: bool


def learn(dataset: Any, keys: Sequence[Any] | None, samples: int, results: Sequence[str] = ()) -> Traces | str | None:
    """Find out whether the samples can be traced.

    This calls a copy of the data set, so that changes that it makes to itself have no effect.

    Args:
        dataset: the user's data set.
        keys: the sampler's keys; None: any index.
        samples: how many samples are computed both ways.
        results: those of more samples, which were examined earlier.

    Returns:
        The traces, or why there are none, as the end of "The data set …"; None if no reason is known.
    """
    copy = copied(dataset)
    if copy is dataset:
        return None
    view = View(copy, functions=False)
    if view.failure is not None:
        return None
    until = time.monotonic() + _PATIENCE_S
    failed: Counter[str] = Counter()
    traces: list[Trace] = []
    with ChangeDetector(view.dataset, view.shared) as changes:
        tried = spread(range(len(copy)) if keys is None else keys, samples)
        trial = _Trial(copy, view.dataset, changes)
        trial.goes_on = any(map(trial.gains_by_going_on, tried[:AGAIN]))
        for number, key in enumerate(tried):
            if number >= AGAIN and time.monotonic() > until:
                break
            found = trial.traced_both_ways(key)
            if isinstance(found, str):
                failed[found] += 1
                continue
            traces.append(found)
        turns = [(key, turn) for turn in range(1, _TURNS) for key in tried]
        others = [trial.traced(key, turn) for key, turn in turns if time.monotonic() < until]
    attributes(copy).clear()
    forms, kept = _alike(traces, results)
    if forms is not None:
        results = [form.result for form in forms]
        for other in others:
            other.limit(results)
            forms = recorded.joined(forms, other.forms) or forms
    log.debug("%s: %d of %d traces, %s", type(dataset).__name__, len(kept), len(traces), dict(failed))
    failures = sum(failed.values())
    deviating = failures + len(traces) - len(kept)
    if changes.reason is not None:
        return changes.reason
    if failures > DEVIATING * (len(traces) + failures):
        reason = failed.most_common(1)[0][0]
        return None if reason == NO_IMAGE else reason
    if forms is None or deviating > DEVIATING * (len(traces) + failures):
        return _VARIED if traces else None
    if not recorded.gains(forms):
        return _only_decoded([*traces, *others])
    return Traces(recorded.widened(forms), kept, trial.structures, trial.goes_on)


class _Trial:
    """Computes samples of a copy of a data set with and without traces.

    Args:
        dataset: the copy.
        view: the view of it that is called.
        changes: notices changes of the data set.

    Attributes:
        goes_on: see `trace_calls.TraceCall`.
        structures: see `Traces`.
    """

    def __init__(self, dataset: Any, view: Any, changes: ChangeDetector) -> None:
        self.goes_on = False
        self.structures: set[Any] = set()
        self._dataset = dataset
        self._view = view
        self._changes = changes

    def gains_by_going_on(self, key: Any) -> bool:
        """Return whether DALI computes more of a sample if the first call goes on where pixels are needed."""
        self.goes_on = True
        try:
            longer = self.traced(key, 0)
            if not longer.needed:
                return False
            self.goes_on = False
            return len(longer.geometry) > len(self.traced(key, 0).geometry)
        finally:
            self.goes_on = False

    def traced(self, key: Any, turn: int) -> Trace:
        """Return the trace of a sample; each turn has other random numbers."""
        seed = seed_of(key) + (turn << 32)
        found = Trace.of(partial(self._drawn, Streams(self._dataset), seed, key), goes_on=self.goes_on)
        found.key = key
        return found

    def _drawn(self, streams: Streams, seed: int, key: Any) -> Any:
        """Compute a sample with the random numbers of a seed."""
        streams.seed(seed)
        return self._view[key]

    def traced_both_ways(self, key: Any) -> Trace | str:
        """Compute a sample with and without a trace; return the trace, or why it cannot be used."""
        real: Any = None
        seed = seed_of(key)
        try:
            compute = partial(self._drawn, Streams(self._dataset), seed, key)
            real = compute()
            trace_calls.install()  # for the modules that the data set has imported by now
            self._changes.compare()
            found = Trace.of(compute, goes_on=self.goes_on)
            found.key = key
            if not found.ends:
                mode = recorded.undecoded(found.roots)
                return _UNDECODED.format(mode) if mode is not None else _VARIED if found.roots else NO_IMAGE
            pixels = {end.node: end.node.given(end.node.real()) for end in found.ends}
            if not all(end.output.moves(found.roots[end.output.file].real(), pixels[end.node]) for end in found.ends):
                return DIFFERS
            replayed = found.replayed(compute, pixels)
            self._changes.compare()
            shape = None if found.held is None else form(found.sample)
            if found.held is not None and equal(found.filled(pixels), real):
                self.structures.add(shape)
        except Mismatch:
            return self._repeated(key, seed, real) or _BY_PIXELS
        except Exception as error:  # the loop meets it again, if it gets there
            log.debug("a sample cannot be traced", exc_info=True)
            return f"raises {type(error).__name__} where it is asked for {shown_key(key)}"
        if not equal(replayed, real):
            return self._repeated(key, seed, real) or DIFFERS
        return found if found.held is not None or self._gives_images(found, compute, pixels) else _DERIVED

    def _gives_images(self, found: Trace, compute: Callable[[], Any], pixels: dict[Node, Any]) -> bool:
        """Return whether the sample differs in nothing but images if DALI's are a little different, as they will be."""
        noisy = {end.node: _noisy(end.output, pixels[end.node]) for end in found.ends}
        try:
            once, other = (found.again().replayed(compute, each) for each in (pixels, noisy))
        except Mismatch:
            return False
        return only_images_differ(once, other)

    def _repeated(self, key: Any, seed: int, real: Any) -> str | None:
        """Return the reason if the data set's code gives another sample when it is called again without a trace."""
        Streams(self._dataset).seed(seed)
        return None if equal(self._view[key], real) else NOT_THE_SAME


def _only_decoded(traces: Sequence[Trace]) -> str:
    """Return why DALI would do nothing but decode, as the end of "The data set …"."""
    unfollowed = next((each.unfollowed for each in traces if each.unfollowed is not None), None)
    if unfollowed is not None:
        return unfollowed
    left = Counter(name for each in traces if (name := recorded.first_left(each.roots)) is not None)
    if left:
        return _WHOLE.format(left.most_common(1)[0][0])
    return _VARIED if any(recorded.cuts(each.roots) for each in traces) else _UNCUT


def _noisy(output: recorded.Output, image: Any) -> Any:
    """Return an image in colour as another decoder might give it, off by at most one of 255; others as they are."""
    if output.pixels != recorded.COLOUR:
        return image
    random = np.random.default_rng(SEED)
    if isinstance(image, Image.Image):
        values = np.asarray(image).astype(np.int16)
        picture = Image.fromarray((values + random.integers(-1, 2, values.shape)).clip(0, 255).astype(np.uint8))
        picture.info, picture.format = dict(image.info), image.format
        return picture
    is_tensor = isinstance(image, torch.Tensor)
    values = image.numpy() if is_tensor else np.asarray(image)
    made: Any
    if values.dtype == np.uint8:
        made = (values.astype(np.int16) + random.integers(-1, 2, values.shape)).clip(0, 255).astype(np.uint8)
    else:
        made = (values + random.uniform(-1, 1, values.shape) * min(map(abs, output.factor))).astype(values.dtype)
    if not is_tensor:
        return made
    return torch.empty_strided(image.shape, image.stride(), dtype=image.dtype).copy_(torch.from_numpy(made))


def _alike(traces: Sequence[Trace], results: Sequence[str]) -> tuple[recorded.Forms | None, list[Trace]]:
    """Return the forms that most of the traces share, up to these results at the latest, and those traces.

    Where too few are alike, DALI's images end earlier, before they become tensors or floats; see `recorded.lowered`.
    """
    for _ in range(_ROUNDS):
        for found in traces:
            found.limit(results)
        common = Counter(recorded.outline(found.forms) for found in traces)
        ordered = sorted(traces, key=lambda found: -common[recorded.outline(found.forms)])
        forms: recorded.Forms | None = None
        kept: list[Trace] = []
        lower: Sequence[str] | None = None
        for found in ordered:
            both = found.forms if forms is None else recorded.joined(forms, found.forms)
            if both is not None:
                forms, kept = both, [*kept, found]
            elif forms is not None and lower is None:
                lower = recorded.lowered(forms, found.forms)
        few = len(traces) - len(kept) <= DEVIATING * len(traces)
        if few or lower is None or lower == results:
            return forms, kept
        results = lower
    return None, []
