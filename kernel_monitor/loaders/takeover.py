"""The engines of attached DataLoaders: a click makes a switchable loader, which continues the epoch under way.

Until an engine is ready, torch's own iterator delivers. Then that gets no more batches of indices from the sampler and
delivers those that its workers have; the engine delivers the rest of the epoch. From the next `iter()` on the
switchable loader makes the iterators, or torch while the engine is torchvision.

The user's DataLoader and an iteration under way keep the switchable loader alive; `Takeover` holds it weakly.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from ..errors import BackendUnavailable, MonitorError
from ..privacy import private
from ..steps import torch_iterators, watched_loader
from ..steps.attached_loader import AttachedLoader
from ..steps.watched_loader import Epoch
from ..text import cause, log_outside
from . import events
from .data.file_source import examined
from .data.fingerprint import Held
from .data.keyed_dataset import KeyedDataset
from .data.layouts import PROTOCOL, parts
from .engines import worker_start
from .engines.backends import SPECS, Backend, availability, availability_here, resolve
from .engines.engine import Knobs, checked, setting
from .engines.torch_engine import NAME as TORCHVISION
from .engines.torch_engine import PREFETCH
from .loader import SwitchableLoader, torch_records
from .plan import EPOCHS_KEPT, EpochRecord, own_batch
from .state import shown_backend
from .switchable import KEPT, switchable_of_attached, why_fixed
from .switchable import live as live_wrapped
from .switching.switch import Click, Switch

if TYPE_CHECKING:
    from ..protocol.states import EpochCounts, LoaderState

DIFFERENCE = (
    "From the click on, kernel_monitor seeds crops, flips and the like, so that they differ from those of a run "
    "without a click; the order stays the sampler's."
)
_UNTOUCHED = "torchvision, as in your code; other engines draw crops and flips anew"
_LEARNT = (
    "Whether it can serve this data set is found out at the click: some samples are computed both ways, while the "
    "loop waits for a second or two. If it is slower then, the page says so, and the way back is one click."
)

log = logging.getLogger(__name__)

torch_iterators.copy_of = Held


class Takeover:
    """The engines of one attached DataLoader.

    Any thread may call its methods, except `begin`, `hand_over` and `renew`, which are for the loop's thread.

    Args:
        attached: the entry of the DataLoader. It keeps this object, which refers to it weakly.
    """

    kind = "attached"

    def __init__(self, attached: AttachedLoader) -> None:
        self.id, self.name, self.meter = attached.id, attached.name, attached.meter
        self._made: weakref.ref[SwitchableLoader] | None = None
        self._past: deque[EpochRecord] = deque(maxlen=EPOCHS_KEPT)  # epochs that engines began
        self._attached = weakref.ref(attached)
        self._log = attached.log
        self._wanted: str | None = None  # the engine asked for, before there is a loader
        self._knobs_wanted: dict[str, int] = {}  # the knobs asked for, before there is a loader
        self._choice = TORCHVISION  # the engine chosen last; kept when the DataLoader is made anew for an epoch
        self._knobs_set: dict[str, int] = {}  # by the user; with any, the switchable loader serves torchvision, too
        self._problem = ""  # why the last request had no effect; else empty
        self._known_backends: tuple[Any, dict[str, Backend]] | None = None  # see `backends`
        self._last = attached.state()
        self._lock = threading.RLock()

    # -- what people and the monitor use --------------------------------------------------------------------------

    @property
    def loader(self) -> SwitchableLoader | None:
        """The switchable loader; None before the first click, and until a DataLoader made anew is iterated."""
        return None if self._made is None else self._made()

    @property
    def backend(self) -> str:
        """The backend in use: of the batch delivered last."""
        return TORCHVISION if self.loader is None else self.loader.backend

    @property
    def backends(self) -> dict[str, Backend]:
        """Every backend by name: whether it can run here, and why not. Before a click this calls no user's code."""
        made, attached, plain = self.loader, self._attached(), self._plain
        if made is not None:
            return made.backends
        if attached is None or plain is None:  # the DataLoader is gone, until it is made anew
            return {} if self._known_backends is None else self._known_backends[1]
        of = (weakref.ref(plain), torch.cuda.is_initialized())
        if self._known_backends is None or self._known_backends[0] != of:
            self._known_backends = of, _backends_before_click(plain, attached.of_torch)
        return self._known_backends[1]

    @property
    def knobs(self) -> Knobs:
        """The knobs that hold from the next batch on: those of the DataLoader until the user sets others."""
        made, plain = self.loader, self._plain
        if made is not None:
            return made.knobs
        if plain is None:
            return Knobs(self._last["knobs"]["workers"] or 0, self._last["knobs"]["prefetch"] or PREFETCH, None)
        return Knobs(plain.num_workers, plain.prefetch_factor or PREFETCH, None)

    @property
    def knobs_set(self) -> bool:
        """Whether the user has set knobs, which then hold instead of the DataLoader's own."""
        return bool(self._knobs_set or self._knobs_wanted)

    def switch(self, name: str) -> None:
        """Ask for an engine and return; see `SwitchableLoader.switch`.

        Raises:
            BackendUnavailable: it cannot run here; where only the loop's thread can find that out, the status says so.
        """
        try:
            self._switch(name)
        except MonitorError:
            raise
        except Exception as error:  # a request from the loop must not end it
            log.exception("a fault in kernel_monitor; the switch to %s does not take place", name)
            self._problem = private(f"A fault in kernel_monitor ({cause(error)}): no switch to {name}")

    def _switch(self, name: str) -> None:
        with self._lock:
            made = self.loader
            if made is not None:
                self._choice, self._problem = resolve(name, made.backends), ""
                if self._choice == TORCHVISION:
                    self._knobs_set = {}  # so that torch's own iterators deliver again
                made.switch(name)
                return
            backends = self.backends
            if backends and TORCHVISION not in backends:
                reason = next(one.reason for one in backends.values())
                raise BackendUnavailable(f"{name} cannot be used: {reason}")
            self._choice = resolve(name, backends)
            self._wanted = None if self._choice == TORCHVISION else self._choice
            self._problem = ""
            if self._wanted is not None and self._may_make:
                self._make(torch_iterators.kept(self._plain))
                if self._problem:
                    begins = f"{name} cannot be used"
                    problem = self._problem if self._problem.startswith(begins) else f"{begins}: {self._problem}"
                    raise BackendUnavailable(f"{problem}.")

    def set(self, *, workers: int | None = None, prefetch: int | None = None, threads: int | None = None) -> None:
        """Change knobs and return; see `SwitchableLoader.set`. They hold from the next batch boundary on.

        Raises:
            MonitorError: a value is not accepted; where only the loop's thread can find that out, the status says so.
        """
        knobs = checked(workers, prefetch, threads)
        with self._lock:
            if self.loader is not None:
                self.loader.set(**knobs)
                self._knobs_set |= knobs
                return
            fixed = next((one.reason for one in self.backends.values() if not one.available), None)
            if TORCHVISION not in self.backends:
                raise MonitorError(f"Nothing can be set here: {fixed or 'its DataLoader is gone.'}")
            self._knobs_wanted |= knobs
            if self._may_make:
                self._make(torch_iterators.kept(self._plain))

    def code(self, *, compare: bool = True) -> str:
        """Return a Python file that delivers its batches by DALI; see `SwitchableLoader.code`.

        Raises:
            MonitorError: no engine has taken the loop over yet, or something of the loader has no code form.
        """
        made = self.loader
        if made is None:
            raise MonitorError(
                "This loader is torch's own until the first switch, which examines its data set; switch it to dali-cpu "
                "first."
            )
        return made.code(compare=compare)

    def release(self) -> None:
        """Give back workers, threads and memory of the engines; see `SwitchableLoader.release`."""
        if self.loader is not None:
            self.loader.release()

    def calibrate(self) -> None:
        """Measure the processor time of the other engines, if there is a switchable loader."""
        if self.loader is not None:
            self.loader.calibrate()

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers that run now, torch's and those of the engines."""
        attached, made = self._attached(), self.loader
        return [*([] if attached is None else attached.worker_pids), *([] if made is None else made.worker_pids)]

    def records(self) -> list[EpochRecord]:
        """The last epochs, oldest first."""
        made = self.loader
        own = [] if made is None else made.records()
        found = {record.number: record for record in [*torch_records(self._log), *self._past, *own]}
        return [found[number] for number in sorted(found)][-EPOCHS_KEPT:]

    def epochs(self) -> list[EpochCounts]:
        """The counts of the last epochs, oldest first."""
        return [record.counts() for record in self.records()]

    @property
    def history(self) -> list[Switch]:
        """The switches that took place, oldest first."""
        return [] if self.loader is None else self.loader.history

    @property
    def clicks(self) -> list[Click]:
        """The outcome of every `switch` that had an engine to prepare (the last thousand), oldest first."""
        return [] if self.loader is None else self.loader.clicks

    @property
    def taken_over(self) -> bool:
        """Whether there is a switchable loader, which then counts the epochs."""
        return self.loader is not None

    def state(self) -> LoaderState:
        """Return the state of the loader with its engines."""
        wanted = self._wanted  # read before `loader`, which is made before this becomes None
        made, attached = self.loader, self._attached()
        if made is not None:
            state = made.state()
            if state["batches"] is None and attached is not None:  # the newest epoch is one of torch's iterators
                state["batches"] = attached.length
        elif attached is None:  # it ended a moment ago
            return self._last
        else:
            backends = self.backends
            # Between two DataLoaders of a function, what the engine of the one before had delivered stays.
            state = attached.state() if backends or not self._past else self._last.copy()
            if backends:
                state["backends"] = [shown_backend(name, one) for name, one in backends.items()]
            if TORCHVISION in backends:
                state["backend"], state["status"] = TORCHVISION, _UNTOUCHED
                knobs = self.knobs
                state["knobs"] = {"workers": knobs.workers, "prefetch": knobs.prefetch, "threads": None}
            planned = state["planned"]
            for counts in self.epochs()[-1:]:
                state = {**state, **counts, "batch": counts["batches"], "batches": state["batches"]}
                if planned is None and counts["epoch"] not in {record.number for record in self._past}:
                    state["planned"] = None  # torch's own iterators do not tell
        state["attached"] = True
        if wanted is not None and state["backends"]:
            state["wanted"], state["status"] = wanted, f"switching to {wanted}…"
        elif self._problem:
            state["status"] = f"{self._problem}; {state['backend']} goes on"
        self._last = state
        return state

    # -- what the loop's thread calls -------------------------------------------------------------------------------

    def begin(self) -> Callable[[], Any] | None:
        """Return a function that makes the iterator of an iteration that begins; None if torch is to make it.

        What that function raises, plain torch would raise, too.
        """
        with self._lock:
            kept = torch_iterators.kept(self._plain)
            if self.loader is None and (self._wanted is not None or self._knobs_wanted):
                self._make(kept)
            made, plain = self.loader, self._plain
            if made is None or plain is None:
                self._first_torch_epoch()
                return None
            made.adopt_settings(torch_iterators.settings(plain))
            made.note_torch_epochs(
                max((record.number for record in self.records() if record.batches), default=-1), kept is not None
            )
            state = made.switch_state
            waits = made.preparation.deferred is not None  # an engine waits for the next iteration, which prepares it
            # Workers that torch would make now, to keep them, hold the data set of all epochs: torch makes them.
            torchs = plain.persistent_workers and plain.num_workers > 0 and kept is None
            if state.active != TORCHVISION or waits or self._knobs_set:
                torchs = torchs or not made.changes.hold(torch_iterators.held(kept))
            if torchs or (state.active == TORCHVISION and not (self._knobs_set or waits)):
                state.delivered(TORCHVISION, self._first_torch_epoch(), 0)  # it will deliver
                return None
        return lambda: self._iterate(made)

    def hand_over(self, iterator: Any) -> Rest | None:
        """Return the rest of the epoch if an engine is to deliver it, else None; called between two batches."""
        if self.loader is None and self._wanted is None and not self._knobs_wanted:
            return None
        with self._lock:
            if self.loader is None:
                self._make(iterator)
            made = self.loader
            if made is None:
                return None
            made.preparation.prepare_deferred()
            if not self._is_wanted(made) or not self._has_same_settings(made, iterator):
                return None
            served = made.changes.hold(torch_iterators.held(iterator)) and self._is_wanted(made)
            return Rest(self, made, iterator._sampler_iter) if served else None

    def _is_wanted(self, made: SwitchableLoader) -> bool:
        """Return whether the switchable loader is to deliver, and not torch's iterator."""
        preparing = made.switch_state.preparing
        replays = preparing is not None and SPECS[preparing.target].replays
        return made.switch_state.active != TORCHVISION or replays or bool(self._knobs_set)

    def renew(self) -> None:
        """Note that the DataLoader was made anew; keep the chosen engine and the knobs."""
        with self._lock:
            former, self._made = self.loader, None
            if former is not None and not self._under_way:
                former.end()  # some frameworks keep all DataLoaders that they made
            self._wanted = None if self._choice == TORCHVISION else self._choice
            self._knobs_wanted = {**self._knobs_set, **self._knobs_wanted}

    def _first_torch_epoch(self) -> int:
        """Let epochs of torch's own iterators have numbers after those of the engines'; return the first one."""
        first = max((record.number for record in self._past), default=-1) + 1
        self._log.next_number = max(self._log.next_number, first)
        return first

    @property
    def _under_way(self) -> bool:
        attached = self._attached()
        return attached is not None and attached.under_way

    def _iterate(self, made: SwitchableLoader) -> Any:
        iterator = made.iterate()
        try:
            self.list_epoch(made)
        except Exception:
            log.exception("a fault in kernel_monitor; an epoch is not listed")
        return iterator

    def list_epoch(self, made: SwitchableLoader) -> None:
        """Keep the record of the epoch that began, as the switchable loader may be freed before the next one."""
        if made.newest is not None and all(record is not made.newest for record in self._past):
            self._past.append(made.newest)

    def _has_same_settings(self, made: SwitchableLoader, iterator: Any) -> bool:
        """Return whether an iterator has the data set, sampler and collate function of the switchable loader."""
        plain = self._plain
        return (
            plain is not None
            and iterator._dataset is plain.dataset
            and iterator._index_sampler is plain.batch_sampler
            and iterator._collate_fn is made.collate_fn
        )

    @property
    def _may_make(self) -> bool:
        """Whether the switchable loader may be made now and here, which calls the data set's own code.

        Only on the main thread, and while no loop over the data set is under way.
        """
        return self._plain is not None and self.meter.idle and threading.current_thread() is threading.main_thread()

    @property
    def _plain(self) -> Any:
        attached = self._attached()
        return None if attached is None else attached.loader

    def _make(self, iterator: Any) -> None:
        """Make the switchable loader, for the data set that an iterator's workers hold; `_problem`: why it fails."""
        wanted = self._wanted  # still shown as wanted while this runs, which may take seconds
        knobs, self._knobs_wanted = self._knobs_wanted, {}
        attached, plain = self._attached(), self._plain
        try:
            if attached is None or plain is None:
                raise MonitorError("its DataLoader is gone")
            reason = why_fixed(plain, attached=attached.of_torch)
            if reason is not None:
                raise BackendUnavailable(reason)
            made = switchable_of_attached(attached, plain, getattr(torch_iterators.held(iterator), "dataset", None))
            if not worker_start.dali_runs():
                made.preparation.without_workers()  # torch's own iterator forks its workers itself
            if knobs:
                made.set(**knobs)
                self._knobs_set |= knobs
            made.adopt_settings(torch_iterators.settings(plain))
            self._made, vars(plain)[KEPT] = weakref.ref(made), _Kept(made)
            known = None if wanted is None else made.backends.get(wanted)
            if known is not None and not known.available:  # the page lists what can be used
                self._fail(wanted, f"{wanted} cannot be used: {known.reason}")
            elif wanted is not None:
                made.switch(wanted)
        except MonitorError as error:
            self._fail(wanted, str(error))
        except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
            log_outside(log, "the loader cannot be examined; torch's own iterator goes on")
            self._fail(wanted, f"The loader cannot be examined ({cause(error)})")
        finally:
            self._wanted = None

    def _fail(self, wanted: str | None, reason: str) -> None:
        self._choice = TORCHVISION
        self._problem = private(reason.rstrip("."))
        if wanted is not None:
            events.emit("switch-failed", self.id, target=wanted, message=self._problem)


class _Kept:
    """An attribute of the user's DataLoader that keeps the switchable loader alive; copies and pickles have False."""

    def __init__(self, loader: SwitchableLoader) -> None:
        self._loader = loader

    def __reduce__(self) -> Any:
        return bool, ()


class Rest:
    """The rest of an epoch of torch's iterator; see `steps.attached_loader.Rest`.

    Args:
        takeover: the engines of the loader.
        made: the switchable loader that delivers the rest.
        batches: batches of indices that torch has not taken from the sampler.
    """

    def __init__(self, takeover: Takeover, made: SwitchableLoader, batches: Iterator[Any]) -> None:
        self._takeover = takeover
        self._made = made
        self._batches = batches
        self._drawn: deque[Any] = deque()

    def __iter__(self) -> Rest:
        return self

    def __next__(self) -> Any:
        """Take the next batch of indices from the sampler for the engine, and raise StopIteration for torch's iterator.

        Torch calls this when it would ask the sampler. So a sampler that draws random numbers, or that the training
        changes, is asked at the same moments as in plain torch.
        """
        self._drawn.append(own_batch(next(self._batches)))
        raise StopIteration

    def continue_epoch(self, epoch: Epoch, seed: int, asked: float) -> Iterator[Any]:
        """Return the iterator over the rest of an epoch; see `steps.attached_loader.Rest.continue_epoch`."""
        drawn = list(self._drawn)
        try:
            iterator = iter(self._made.continue_epoch(self.batches(), epoch, seed, time.monotonic() - asked))
        except Exception:
            self._drawn = deque(drawn)  # for torch's own iterator
            raise
        try:
            self._takeover.list_epoch(self._made)
        except Exception:
            log.exception("a fault in kernel_monitor; an epoch is not listed")
        return iterator

    def batches(self) -> Iterator[Any]:
        """Return the batches of indices that torch has not taken from the sampler."""
        drawn, self._drawn = self._drawn, deque()
        return chain(drawn, self._batches)  # no generator: its faults would pass for the sampler's


def takeover(attached: AttachedLoader) -> Takeover:
    """Return the engines of an attached loader."""
    if not isinstance(attached.takeover, Takeover):
        attached.takeover = Takeover(attached)
    return attached.takeover


AnyLoader = SwitchableLoader | Takeover
"""A loader that can be switched: wrapped, or attached."""


def live() -> list[AnyLoader]:
    """Every loader that can be switched and is still in use, wrapped or attached, oldest first."""
    attached = [takeover(source) for source in watched_loader.live() if isinstance(source, AttachedLoader)]
    return sorted([*live_wrapped(), *attached], key=lambda loader: int(loader.id.rpartition("-")[2]))


def _backends_before_click(plain: Any, of_torch: bool) -> dict[str, Backend]:
    """Return what is known of the backends before a click, without calling the data set's own code."""
    try:
        fixed = why_fixed(plain, attached=of_torch)
        if fixed is not None:
            return {name: Backend(False, fixed) for name in SPECS if name != TORCHVISION}
        known = all(layout not in (None, PROTOCOL) for _, layout in parts(plain.dataset))
        source, found = examined(plain.dataset, dry_run=False) if known else (None, None)
        if source is not None and found is not None and not source.parts_to_trace():
            device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")
            backends = availability(setting(KeyedDataset(source, "raise"), found, plain, device), starts_cuda=False)
            learnt = False
        else:
            backends, learnt = availability_here(), True
    except Exception:  # noqa: BLE001 - whatever the user's own classes raise: the click finds out
        log_outside(log, "the loader cannot be examined before a click", level=logging.INFO)
        backends, learnt = availability_here(), False
    for name, one in backends.items():
        if one.available and name != TORCHVISION:
            found_out = _LEARNT if learnt and "threads" in SPECS[name].uses else None
            backends[name] = one._replace(note=" ".join(note for note in (one.note, found_out, DIFFERENCE) if note))
    return backends
