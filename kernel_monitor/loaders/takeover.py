"""A click on a DataLoader that was never wrapped: a switchable loader goes on where torch's own iterator is.

Until an engine is ready, torch's own iterator delivers. Then it is given no more of the order, delivers what its
workers have, and the engine goes on with the rest. From the next `iter()` on the switchable loader iterates; while it
has torchvision, torch's own iterator does.

The user's DataLoader, and what goes on with an iteration, keep the switchable loader alive; here it is held weakly.
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
from ..steps import watched_loader
from ..steps.attached_loader import AttachedLoader
from ..steps.watched_loader import Epoch
from ..text import cause
from . import events
from .data.file_source import examined
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
from .switchable import KEPT, why_fixed, wrapped_by
from .switchable import live as live_wrapped
from .switching.switch import Click, Switch

if TYPE_CHECKING:
    from ..protocol.states import EpochCounts, LoaderState

DIFFERENCE = (
    "The order stays the sampler's. From the click on kernel_monitor seeds the random crops, flips and the like: other "
    "ones than in a run without a click."
)
_UNTOUCHED = "torchvision, as torch iterates it. A click keeps the order, and draws crops and flips anew"
_LEARNT = "Whether DALI can serve this data set is found out at the click: its own __getitem__ is then called."

_CONTEXT = "_DataLoader__multiprocessing_context"
_OF_WORKERS = ("collate_fn", "num_workers", "prefetch_factor")  # what torch's iterator has of its DataLoader

log = logging.getLogger(__name__)


class Takeover:
    """The engines of one attached DataLoader. Any thread may call it, but for what the loop's thread alone calls.

    Args:
        attached: the loader, which holds this; it is held weakly.

    """

    kind = "attached"

    def __init__(self, attached: AttachedLoader) -> None:
        self.id, self.name, self.meter = attached.id, attached.name, attached.meter
        self._made: weakref.ref[SwitchableLoader] | None = None
        self._past: deque[EpochRecord] = deque(maxlen=EPOCHS_KEPT)  # epochs that engines began
        self._attached = weakref.ref(attached)
        self._log = attached.log
        self._wanted: str | None = None  # the engine asked for, before there is a loader
        self._knobs: dict[str, int] = {}  # the same of knobs
        self._choice = TORCHVISION  # stays, also where the DataLoader is made anew for each epoch
        self._set: dict[str, int] = {}  # knobs that were set: torchvision, too, is then the switchable loader's
        self._problem = ""  # why the last request had no effect
        self._expected: tuple[Any, dict[str, Backend]] | None = None  # see `backends`
        self._last = attached.state()
        self._lock = threading.RLock()

    # -- what people and the monitor use --------------------------------------------------------------------------

    @property
    def loader(self) -> SwitchableLoader | None:
        """What goes on in torch's place; None before the first click, and while its DataLoader is made anew."""
        return None if self._made is None else self._made()

    @property
    def backend(self) -> str:
        """The backend in use: of the batch delivered last."""
        return TORCHVISION if self.loader is None else self.loader.backend

    @property
    def backends(self) -> dict[str, Backend]:
        """Every backend by name: whether it can run here, and why not. Before a click no user's code is run for it."""
        made, attached, plain = self.loader, self._attached(), self._plain
        if made is not None:
            return made.backends
        if attached is None or plain is None:  # until it is made anew
            return {} if self._expected is None else self._expected[1]
        of = (weakref.ref(plain), torch.cuda.is_initialized())
        if self._expected is None or self._expected[0] != of:
            self._expected = of, _expected(plain, attached.of_torch)
        return self._expected[1]

    @property
    def knobs(self) -> Knobs:
        """The knobs that hold from the next batch on: the DataLoader's own until they are set."""
        made, plain = self.loader, self._plain
        if made is not None:
            return made.knobs
        if plain is None:
            return Knobs(self._last["knobs"]["workers"] or 0, self._last["knobs"]["prefetch"] or PREFETCH, None)
        return Knobs(plain.num_workers, plain.prefetch_factor or PREFETCH, None)

    def switch(self, name: str) -> None:
        """Ask for an engine and return; see `SwitchableLoader.switch`.

        Raises:
            BackendUnavailable: it cannot run here; where only the loop's thread can find that out, the status says so.
        """
        try:
            self._switch(name)
        except MonitorError:
            raise
        except Exception as error:  # a click must not end the loop in which it is asked for
            log.exception("a fault in kernel_monitor; the switch to %s does not take place", name)
            self._problem = private(f"A fault in kernel_monitor ({cause(error)}): no switch to {name}")

    def _switch(self, name: str) -> None:
        with self._lock:
            made = self.loader
            if made is not None:
                self._choice, self._problem = resolve(name, made.backends), ""
                if self._choice == TORCHVISION:
                    self._set = {}  # back to torch's own iterators
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
                self._make()
                if self.loader is None:
                    raise BackendUnavailable(f"{name} cannot be used: {self._problem}")

    def set(self, *, workers: int | None = None, prefetch: int | None = None, threads: int | None = None) -> None:
        """Change knobs and return; see `SwitchableLoader.set`. They hold from the next batch boundary on.

        Raises:
            MonitorError: a value is not accepted; where only the loop's thread can find that out, the status says so.
        """
        knobs = checked(workers, prefetch, threads)
        with self._lock:
            if self.loader is not None:
                self.loader.set(**knobs)
                self._set |= knobs
                return
            fixed = next((one.reason for one in self.backends.values() if not one.available), None)
            if TORCHVISION not in self.backends:
                raise MonitorError(f"Nothing can be set here: {fixed or 'its DataLoader is gone.'}")
            self._knobs |= knobs
            if self._may_make:
                self._make()

    def release(self) -> None:
        """Give back workers, threads and memory of the engines; see `SwitchableLoader.release`."""
        if self.loader is not None:
            self.loader.release()

    def calibrate(self) -> None:
        """Measure what another engine takes of the processor, once there is a loader of the plan's."""
        if self.loader is not None:
            self.loader.calibrate()

    @property
    def worker_pids(self) -> list[int]:
        """The process numbers of the workers that run now, torch's and ours."""
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
        """Whether a loader of the plan's was made: it counts the epochs from then on."""
        return self.loader is not None

    def state(self) -> LoaderState:
        """Return the state of the loader with its engines."""
        wanted = self._wanted  # read first: it is None once `loader` has taken it over
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
        """An iteration begins: return what makes the iterator in torch's place; None where torch's own is to iterate.

        What that raises, plain torch would raise, too.
        """
        with self._lock:
            if self.loader is None and (self._wanted is not None or self._knobs):
                self._make()
            made, plain = self.loader, self._plain
            if made is None or plain is None:
                return None
            made.follow(_settings(plain))
            kept = getattr(plain, "_iterator", None) is not None
            made.begins_after(max((record.number for record in self.records() if record.batches), default=-1), kept)
            waits = made.preparation.deferred is not None  # for the iteration, which prepares it first
            # Torch would draw a seed for the workers that it makes, for which plain torch has drawn one long ago.
            late = plain.persistent_workers and not kept and made.newest is not None
            if made.switch_state.active == TORCHVISION and not (self._set or waits or late):
                of_engine = max((record.number for record in self._past), default=-1)
                self._log.next_number = max(self._log.next_number, of_engine + 1)
                made.switch_state.delivered(TORCHVISION, of_engine + 1, 0)  # as torch's own iterator will
                return None
        return lambda: self._iterate(made)

    def hand_over(self, iterator: Any) -> Rest | None:
        """Between two batches of torch's: return the rest for an engine; None while torch's iterator is to go on."""
        if self.loader is None and self._wanted is None and not self._knobs:
            return None
        with self._lock:
            if self.loader is None:
                self._make()
            made = self.loader
            if made is None:
                return None
            made.preparation.at_boundary()
            preparing = made.switch_state.preparing
            replays = preparing is not None and SPECS[preparing.target].replays
            if made.switch_state.active == TORCHVISION and not (replays or self._set):
                return None
            return Rest(self, made, iterator._sampler_iter) if self._iterates(made, iterator) else None

    def renew(self) -> None:
        """The DataLoader was made anew: the choice stays."""
        with self._lock:
            self._made = None
            self._wanted = None if self._choice == TORCHVISION else self._choice
            self._knobs = {**self._set, **self._knobs}

    def _iterate(self, made: SwitchableLoader) -> Any:
        iterator = made.iterate()
        try:
            self.list_epoch(made)
        except Exception:
            log.exception("a fault in kernel_monitor; an epoch is not listed")
        return iterator

    def list_epoch(self, made: SwitchableLoader) -> None:
        """Keep the record of an epoch that began: the switchable loader may go before the next one."""
        if made.newest is not None and all(record is not made.newest for record in self._past):
            self._past.append(made.newest)

    def _iterates(self, made: SwitchableLoader, iterator: Any) -> bool:
        """Return whether this iterator is one of the DataLoader with the settings that the switchable loader has."""
        plain = self._plain
        return (
            plain is not None
            and iterator._dataset is plain.dataset
            and iterator._index_sampler is plain.batch_sampler
            and iterator._collate_fn is made.collate_fn
        )

    @property
    def _may_make(self) -> bool:
        """Whether this thread may run the data set's own code: no loop over it is under way that it would disturb."""
        return self._plain is not None and self.meter.idle and threading.current_thread() is threading.main_thread()

    @property
    def _plain(self) -> Any:
        attached = self._attached()
        return None if attached is None else attached.loader

    def _make(self) -> None:
        """Make the switchable loader and ask it for what is wanted; where that fails, `_problem` is the reason."""
        wanted = self._wanted  # kept until it is known what has come of it, as this may take seconds
        knobs, self._knobs = self._knobs, {}
        attached, plain = self._attached(), self._plain
        try:
            if attached is None or plain is None:
                raise MonitorError("its DataLoader is gone")
            reason = why_fixed(plain, attached=attached.of_torch)
            if reason is not None:
                raise BackendUnavailable(reason)
            made = wrapped_by(attached, plain)
            if not worker_start.dali_runs():
                made.preparation.without_workers()  # torch's own iterator has forked its, or will
            if knobs:
                made.set(**knobs)
                self._set |= knobs
            made.follow(_settings(plain))
            self._made, vars(plain)[KEPT] = weakref.ref(made), _Kept(made)
            if wanted is not None:
                made.switch(wanted)
        except MonitorError as error:
            self._fail(wanted, str(error))
        except Exception as error:  # whatever the user's own classes raise
            log.warning("the loader cannot be examined; torch's own iterator goes on", exc_info=True)
            self._fail(wanted, f"The loader cannot be examined ({cause(error)})")
        finally:
            self._wanted = None

    def _fail(self, wanted: str | None, reason: str) -> None:
        self._choice = TORCHVISION
        self._problem = private(reason.rstrip("."))
        if wanted is not None:
            events.emit("switch-failed", self.id, target=wanted, message=self._problem)


class _Kept:
    """Keeps the switchable loader of a DataLoader, whose attribute it is; in a copy or a pickle it is False."""

    def __init__(self, loader: SwitchableLoader) -> None:
        self._loader = loader

    def __reduce__(self) -> Any:
        return bool, ()


class Rest:
    """The rest of an epoch of torch's iterator; see `steps.attached_loader.Rest`.

    Args:
        takeover: the loader's.
        made: the engine's loader.
        batches: what the sampler has still to give, and torch has not taken.
    """

    def __init__(self, takeover: Takeover, made: SwitchableLoader, batches: Iterator[Any]) -> None:
        self._takeover = takeover
        self._made = made
        self._batches = batches
        self._drawn: deque[Any] = deque()

    def __iter__(self) -> Rest:
        return self

    def __next__(self) -> Any:
        """Draw what torch would draw now, keep it, and raise StopIteration.

        So a sampler that draws random numbers, or that the training changes, is asked when plain torch would ask it.
        """
        self._drawn.append(own_batch(next(self._batches)))
        raise StopIteration

    def go_on(self, epoch: Epoch, seed: int, asked: float) -> Iterator[Any]:
        """Return the iterator over the rest of an epoch; see `steps.attached_loader.Rest.go_on`."""
        drawn = list(self._drawn)
        try:
            iterator = iter(self._made.go_on(self.batches(), epoch, seed, time.monotonic() - asked))
        except Exception:
            self._drawn = deque(drawn)  # for torch's own iterator
            raise
        try:
            self._takeover.list_epoch(self._made)
        except Exception:
            log.exception("a fault in kernel_monitor; an epoch is not listed")
        return iterator

    def batches(self) -> Iterator[Any]:
        """Return what the sampler has still to give."""
        drawn, self._drawn = self._drawn, deque()
        return chain(drawn, self._batches)  # no generator: a fault in it would be taken for one of the sampler


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


def _settings(plain: Any) -> dict[str, Any]:
    """Return the attributes of a DataLoader that people may assign; workers that are kept know the old ones."""
    found = {name: value for name, value in vars(plain).items() if not name.startswith("_") or name == _CONTEXT}
    kept = getattr(plain, "_iterator", None)
    if kept is not None:
        found |= {name: value for name in _OF_WORKERS if (value := getattr(kept, f"_{name}", None)) is not None}
    return found


def _expected(plain: Any, of_torch: bool) -> dict[str, Backend]:
    """Return what is known of the backends without running the user's code; empty where that raises."""
    try:
        fixed = why_fixed(plain, attached=of_torch)
        if fixed is not None:
            return {name: Backend(False, fixed) for name in SPECS if name != TORCHVISION}
        if all(layout not in (None, PROTOCOL) for _, layout in parts(plain.dataset)):
            source, found = examined(plain.dataset, dry_run=False)
            device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")
            backends = availability(setting(KeyedDataset(source, "raise"), found, plain, device), starts_cuda=False)
            note = DIFFERENCE
        else:
            backends = availability_here()
            note = f"{_LEARNT} {DIFFERENCE}"
    except Exception:  # whatever the user's own classes raise: the click finds out
        log.info("the loader cannot be examined before a click", exc_info=True)
        backends = availability_here()
        note = DIFFERENCE
    for name, one in backends.items():
        if one.available and name != TORCHVISION:
            backends[name] = one._replace(note=note if one.note is None else f"{one.note} {note}")
    return backends
