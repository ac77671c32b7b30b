"""The engines of one loader: made when first asked for, replaced when a knob is turned, given back.

A turned knob makes a new engine beside the old one. If it takes long to start, it is started on a background thread.
Then it takes the old one's place in the pool, the iteration finds it there at its next boundary, and the old one
delivers what it has taken and is given back. If the new engine does not start, the old one goes on.
"""

from __future__ import annotations

import _thread
import ctypes
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from typing import Any

from ...errors import Refused
from ...node_sources import RayNode
from ...protocol.states import CalibrationState, RemoteLimits
from ...text import cause, log_failed, log_outside
from ..calibration import Calibration, calibrate
from ..engines.backends import RAY, SPECS, THREADS, Backend, availability
from ..engines.engine import Delivery, Engine, GivenSettings, Knobs, Patient, Setting, rest_in_workers, translated
from ..engines.fork_server import NoWorkers
from ..engines.rest_engine import RestEngine
from ..engines.torch_engine import NAME as TORCHVISION
from ..engines.torch_engine import PREFETCH, InlineEngine, WorkersEngine
from ..plan import Cursor, Slot
from .switch import SwitchState

# ---- One engine of the pool, with the thread that may call it, and the run of batches that it works for.


class PooledEngine:
    """An engine and the run that it works for, one at a time.

    Another iteration of the same loader takes the engine over by first letting the batches of the run arrive, which are
    kept for that run: no work is thrown away, and nothing is lost or doubled.
    """

    def __init__(self, engine: Engine, setting: Setting) -> None:
        self.engine = engine
        self.setting = setting  # what the engine was built for
        self.proven = False  # whether it has started for an iteration
        self.previous: PooledEngine | None = None  # the engine that it replaces, kept until this one has started
        self._run: weakref.ref[EngineRun] | None = None
        self._lock = threading.RLock()
        self._ownership = threading.Condition(self._lock)  # notify() raises in a thread without the lock
        self._process = os.getpid()

    def use(self) -> threading.RLock:
        """Check that this thread may call the engine; the returned lock, in a `with`, keeps other threads out.

        A bare lock: an interrupt between two instructions of a context manager written in Python would leave the
        engine locked.

        Raises:
            MonitorError: this thread is inside already (user code called by the engine came back to it), or the
                engine belongs to the process from which this one was forked.
        """
        if os.getpid() != self._process:
            raise Refused("this loader belongs to the parent process; wrap a DataLoader of this process's own")
        try:
            self._ownership.notify()
        except RuntimeError:
            return self._lock
        raise Refused("the loader is asked for a batch from within its own data set, sampler or collate")

    @property
    def run(self) -> EngineRun | None:
        """The living run that the engine works for."""
        return None if self._run is None else self._run()

    @property
    def idle(self) -> bool:
        """Whether no run waits for batches of the engine."""
        run = self.run
        return run is None or (run.closed and not run.in_flight)

    def prepare(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Prepare the engine; `tell` is given a sentence on what it waits for, if for long."""
        with self.use():
            if isinstance(self.engine, Patient):
                self.engine.tell = tell
            self.engine.prepare()

    def abandon(self) -> None:
        """Let a preparation that waits end: it has the lock. By any thread."""
        if isinstance(self.engine, Patient):
            self.engine.abandon()

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the engine; if it raises, the engine is broken."""
        with self.use():
            return self.call_inside(method, *args)

    def call_inside(self, method: Callable[..., Any], *args: Any) -> Any:
        """Do what `call` does, on a thread that has the lock."""
        try:
            return method(*args)
        except BaseException:  # an interrupt, too, leaves the engine in an unknown state
            self.engine.broken = True
            raise

    def start(self, run: EngineRun, *, gently: bool = False) -> None:
        """Make the engine work for `run`; `gently`: with one batch at first, see `EngineRun.take_another`."""
        with self.use():
            holder = self.run
            if holder is not None and holder is not run:
                holder.closed = True
                holder.collect()
            self._run = reference = weakref.ref(run)  # weak: the engine must not keep a dropped iteration alive

            def pull() -> Slot | None:
                alive = reference()
                return None if alive is None else alive.pull()

            self.call_inside(self.engine.start, pull)
            self.call_inside(self.engine.pump, 1 if gently else None)

    def revoke(self) -> None:
        """Let what is under way be computed again, by the engine as it then is."""
        if self._run is None:  # nor is a preparation to be waited for
            return
        with self.use():
            run = self.run
            if run is not None:
                run.closed = run.revoked = True
            self._run = None

    def release(self) -> None:
        """Give back what the engine has; the batches under way are taken again."""
        if os.getpid() != self._process:
            return
        self.abandon()
        with self.use():
            self._give_back()

    def try_release(self) -> bool:
        """Do what `release` does, unless a thread is inside the engine; return whether none was."""
        if os.getpid() != self._process:
            return True
        self.abandon()
        try:
            lock = self.use()
        except Refused:  # this thread is inside
            return False
        if not lock.acquire(blocking=False):
            return False
        try:
            self._give_back()
        finally:
            lock.release()
        return True

    def _give_back(self) -> None:
        run = self.run
        if run is not None:
            run.closed = run.revoked = True
        self._run = None
        self.engine.release()


class EngineRun:
    """The part of one epoch that one engine delivers: takes from the cursor until it is closed, then drains."""

    def __init__(self, pooled: PooledEngine, cursor: Cursor, is_active: Callable[[], bool]) -> None:
        self.pooled = pooled
        self.closed = False  # whether it takes no more
        self.revoked = False  # whether the engine was taken away before it had computed all of `in_flight`
        self.in_flight: deque[Slot] = deque()  # taken and not delivered, oldest first
        self._computed: deque[Delivery] = deque()  # kept while another iteration has the engine
        self._cursor = cursor
        self._is_active = is_active  # whether the engine is still the one that is to take batches

    def pull(self) -> Slot | None:
        """Return what the engine takes next; None where there is nothing for it."""
        # Asked here as well as at boundaries: an engine that waits for a batch while another becomes ready takes no
        # more, so the loop waits for nothing but what was in flight then.
        if self.closed or not self._is_active():
            self.closed = True
            return None
        slot = self._cursor.take()
        if slot is not None:
            self.in_flight.append(slot)
        return slot

    @property
    def stranded(self) -> bool:
        """Whether its batches will never arrive."""
        return self.revoked and bool(self.in_flight) and not self._computed

    @property
    def _has_engine(self) -> bool:
        return not self.closed and self.pooled.run is self

    def has_more(self) -> bool:
        """Return whether this run still has a batch to deliver; lets the engine take if nothing is in flight."""
        if not self.in_flight and self._has_engine:
            self.pooled.call(self.pooled.engine.pump)
        return bool(self.in_flight)

    def take_another(self) -> None:
        """Let the incoming engine take one batch more, while the outgoing engine's batches are still being delivered.

        If it took all at once, the loop would wait: for the taking, and for the outgoing engine's last batches, which
        would get less of the processor.
        """
        if self._has_engine and not self.pooled.engine.broken:
            self.pooled.call(self.pooled.engine.pump, 1)

    def receive(self) -> Delivery:
        """Wait for the oldest batch of the run; if the engine fails, `in_flight` is to be given back to the cursor."""
        if self._computed:
            self.in_flight.popleft()
            return self._computed.popleft()
        delivery: Delivery = self.pooled.call(self.pooled.engine.receive)
        self.in_flight.popleft()
        return delivery

    def collect(self) -> None:
        """Let everything in flight arrive and keep it, as another run wants the engine; called with the lock held."""
        engine = self.pooled.engine
        try:
            while len(self._computed) < len(self.in_flight) and not engine.broken:
                self._computed.append(self.pooled.call_inside(engine.receive))
        except Exception:  # noqa: BLE001 - the engine's, not of the iteration that wants it: it starts anew, as it is broken
            # This run's own iteration finds its batches missing, gives them back and takes them again.
            log_failed(log, "%s failed while it was handed to another iteration; starting it anew", engine.name)
        finally:  # after an interrupt too
            self.revoked = self.revoked or len(self._computed) < len(self.in_flight)

    def undelivered(self) -> list[Slot]:
        """Return what was taken and not delivered; forgets it."""
        slots = list(self.in_flight)
        self.in_flight.clear()
        self._computed.clear()
        return slots


DALI = "dali-cpu"  # the engine whose processor time can be measured in advance

log = logging.getLogger(__name__)


class EnginePool:
    """The engines by name. Any thread may call any method. `state` is notified of every change of the knobs."""

    def __init__(self, setting: Setting, state: SwitchState) -> None:
        self.setting = setting  # what engines are built for from now on
        self._backends = availability(setting)
        self._in_force = setting  # differs from `setting` while a change is being prepared
        self._state = state
        self._lock = threading.RLock()
        self._engines: dict[str, PooledEngine] = {}
        self._retired: list[PooledEngine] = []  # replaced; may still deliver what they took
        self._preparing = False  # a thread starts new engines; never two at once
        self._releases = 0
        self._without_workers = False  # whether `torchvision` has none because none can be started
        self._encoded: bool | None = None  # as DALI's engines were built for it; None while there are none
        self._calibrated: tuple[Setting, Calibration] | None = None

    @property
    def backends(self) -> dict[str, Backend]:
        """Every backend by name. What `ray` would ask and which nodes work for it changes by itself."""
        found = dict(self._backends)
        for name, spec in SPECS.items():
            if spec.note is not None and found[name].available:
                nodes = self.nodes
                confirm = None if nodes or spec.confirm is None else spec.confirm()
                found[name] = found[name]._replace(confirm=confirm, note=spec.note(nodes) if nodes else None)
        return found

    @property
    def nodes(self) -> list[RayNode]:
        """The nodes of the cluster that `ray` has joined; empty where it has joined none."""
        pooled = self._engines.get(RAY)
        return [] if pooled is None else list(getattr(pooled.engine, "nodes", ()))

    @property
    def remote_limits(self) -> RemoteLimits | None:
        """Images/s that can come from other machines at most; None where that is not known."""
        pooled = self._engines.get(RAY)
        return None if pooled is None else getattr(pooled.engine, "limits", None)

    def data_changed(self) -> None:
        """In the middle of an epoch, and to be seen at once: what engines have computed ahead is computed again."""
        for name, pooled in list(self._engines.items()):
            if name != TORCHVISION and not SPECS[name].replays:
                pooled.revoke()

    @property
    def knobs(self) -> Knobs:
        """The numbers of workers, batches in flight and threads that the engines have from now on."""
        setting = self.setting
        threaded = any(backend.available for name, backend in self.backends.items() if "threads" in SPECS[name].uses)
        prefetch = setting.prefetch or setting.wrapped.prefetch_factor or PREFETCH
        return Knobs(setting.workers, prefetch, setting.threads if threaded else None)

    @property
    def worker_pids(self) -> list[int]:
        """The process numbers of all workers; asked once a second, so without the lock that building engines holds."""
        engines = [pooled.engine for pooled in self._all()]
        return sorted(
            {pid for engine in engines if isinstance(engine, WorkersEngine | RestEngine) for pid in engine.pids}
        )

    def _all(self) -> list[PooledEngine]:
        """Every engine: in its place, kept for the case that its successor does not start, retired."""
        current = list(self._engines.values())
        previous = [pooled.previous for pooled in current if pooled.previous is not None]
        return [*list(self._retired), *previous, *current]

    def __getitem__(self, name: str) -> PooledEngine:
        """The engine of a backend; made when first asked for, not started."""
        with self._lock:
            if name not in self._engines:
                self._engines[name] = PooledEngine(SPECS[name].build(self._in_force), self._in_force)
            return self._engines[name]

    def turn(self, **knobs: Any) -> None:
        """Change knobs (fields of `Setting`); returns at once. A change under way is given up for the newest one."""
        with self._lock:
            if all(getattr(self.setting, knob) == value for knob, value in knobs.items()):
                return
            after = self.setting = replace(self.setting, **knobs)
            if "workers" in knobs:
                self._backends = _available(after)  # DALI leaves them what it cannot do
            if self._preparing:
                return  # the thread looks for newer settings when it is done
            made, slow = self._make()
            if not slow:
                self._install(made)
            self._preparing = bool(slow)
        if slow:
            threading.Thread(target=self._prepare, args=(after, made, slow), name="knobs", daemon=True).start()
        else:
            self._state.knobs_changed(self.knobs)

    def calibrate(self) -> None:
        """Measure in the background what `dali-cpu` takes of the processor, once for this data set and its chain."""
        if self.backends[DALI].available and not self.calibration:
            now = self.setting
            self._calibrated = now, calibrate(now)

    @property
    def calibration(self) -> dict[str, CalibrationState]:
        """By engine, what was measured for the chain as it is now."""
        if self._calibrated is None:
            return {}
        setting, found = self._calibrated
        now = self.setting
        stale = (setting.programs, setting.forms, setting.fused_decode) != (now.programs, now.forms, now.fused_decode)
        return {} if stale or found.stopped else {DALI: found.state}

    def renew(self) -> None:
        """Build every engine anew if the user has assigned other settings to the wrapped DataLoader.

        Not where its workers are kept from epoch to epoch: as in torch, they know the old settings only.
        """
        with self._lock:
            old, now = self.setting.given, GivenSettings.of(self.setting.wrapped)
            engines = [pooled.engine for pooled in self._engines.values()]
            started = any(isinstance(engine, WorkersEngine) and engine.started for engine in engines)
            if old.same(now) or (started and self.setting.wrapped.persistent_workers):
                return
            changed: dict[str, Any] = {"given": now}
            if old.num_workers != now.num_workers:
                changed["workers"] = now.num_workers
            if old.prefetch_factor != now.prefetch_factor:
                changed["prefetch"] = None
            self.setting = self._in_force = replace(self.setting, **changed)
            self._backends = _available(self.setting)
            dropped = list(self._engines.values())
            self._engines.clear()
        for pooled in dropped:
            pooled.release()

    def refresh(self) -> None:
        """Look at the data set again, and give back the engines of pipelines where it has changed."""
        with self._lock:
            source = self.setting.keyed.source
            setting = translated(self.setting, source.examine())
            encoded = source.encoded if any("threads" in SPECS[name].uses for name in self._engines) else None
            before = self.setting
            same = (setting.programs, setting.forms) == (before.programs, before.forms)
            same = same and setting.refusal == before.refusal
            same = same and setting.obstacle == before.obstacle
            if same and (encoded == self._encoded or None in (encoded, self._encoded)):
                self._encoded = encoded
                return
            self.setting, self._encoded = setting, None
            self._in_force = replace(
                self._in_force,
                program=setting.program,
                others=setting.others,
                forms=setting.forms,
                refusal=setting.refusal,
                obstacle=setting.obstacle,
            )
            self._backends = availability(setting)
            dropped = [self._engines.pop(name) for name in list(self._engines) if name not in (TORCHVISION, RAY)]
        for pooled in dropped:
            pooled.release()

    def started(self, pooled: PooledEngine) -> None:
        """An engine has started for an iteration: the one that it replaces is no longer kept."""
        with self._lock:
            if pooled in self._engines.values():
                previous, pooled.previous, pooled.proven = pooled.previous, None, True
                self._retired += [] if previous is None else [previous]

    def roll_back(self, pooled: PooledEngine, error: BaseException) -> bool:
        """Put back what an engine replaced that did not start; returns whether there was anything to put back."""
        with self._lock:
            previous = pooled.previous
            if previous is None or pooled not in self._engines.values():
                return False
            name = pooled.engine.name
            self._engines[name] = previous
            self._retired.append(pooled)
            knobs: dict[str, Any] = {knob: getattr(previous.setting, knob) for knob in SPECS[name].uses}
            self.setting = self._in_force = replace(self.setting, **knobs)
            self._turn_running()
            self._backends = _available(self.setting)
        self._state.knobs_changed(self.knobs, error)
        return True

    def without_workers(self, error: NoWorkers) -> None:
        """Let `torchvision` compute in this process until the next epoch, as no workers can be started."""
        with self._lock:
            failed = self._engines[TORCHVISION]
            inline = InlineEngine(self.setting.keyed, self.setting.wrapped)
            self._engines[TORCHVISION] = PooledEngine(inline, failed.setting)
            self._without_workers = True
        failed.release()
        log.warning("torchvision goes on without workers (%s)", cause(error))
        self._state.last(f"torchvision computes in the process of the training, without workers: {error}.")

    def try_workers(self) -> None:
        """At the start of an epoch: let `torchvision` try again to start workers where it has none."""
        with self._lock:
            if not self._without_workers:
                return
            self._without_workers = False
            inline = self._engines.pop(TORCHVISION)
        self._state.last("")
        inline.release()

    def reap(self) -> None:
        """Give back replaced engines that have nothing more to deliver; on a thread, as it can take a moment."""
        with self._lock:
            done = [pooled for pooled in self._retired if pooled.idle]
            self._retired = [pooled for pooled in self._retired if pooled not in done]
        if done:
            threading.Thread(target=_release, args=(done,), name="give back", daemon=True).start()

    def release(self) -> None:
        """Give back processes, threads and memory of every engine."""
        with self._lock:
            self._releases += 1
            engines = self._all()
        _release(engines)

    def end(self) -> None:
        """Release every engine and wait for none: those that are in use are released on a thread.

        A finalizer may run anywhere, also while its thread has the lock of an import for which the thread that builds
        an engine waits.
        """
        if not self._lock.acquire(blocking=False):
            _thread.start_new_thread(self.release, ())
            return
        try:
            self._releases += 1
            engines = self._all()
        finally:
            self._lock.release()
        used = [pooled for pooled in engines if not pooled.try_release()]
        if used:
            _thread.start_new_thread(_release, (used,))
        _trim()

    def release_idle(self, but: Container[str | None]) -> None:
        """Give back every engine that has nothing to deliver, those of the backends `but` excepted."""
        with self._lock:
            engines = [pooled for name, pooled in self._engines.items() if name not in but and pooled.idle]
        _release(engines)
        self.reap()

    def _is_slow(self, name: str, pooled: PooledEngine) -> bool:
        """Return whether an engine that is to take over from the engine in use takes long to start."""
        if name == TORCHVISION:
            return isinstance(pooled.engine, WorkersEngine) and not pooled.engine.forks
        return name == self._state.active

    def _make(self) -> tuple[dict[str, PooledEngine], list[PooledEngine]]:
        """New engines in place of those whose knobs have changed, and those among them that take long to start."""
        wanted = self.setting
        stale = [
            name
            for name, pooled in self._engines.items()
            if SPECS[name].turn is None and _differs(name, pooled.setting, wanted)
        ]
        made = {name: PooledEngine(SPECS[name].build(wanted), wanted) for name in stale}
        return made, [pooled for name, pooled in made.items() if self._is_slow(name, pooled)]

    def _install(self, made: dict[str, PooledEngine]) -> None:
        for name, pooled in made.items():
            old = self._engines.get(name)
            kept = old if old is None or old.proven else old.previous
            if old is not None and kept is not old:
                self._retired.append(old)
            if kept is not None and name != self._state.active:
                self._retired.append(kept)
                kept = None
            pooled.previous = kept
            self._engines[name] = pooled
        self._in_force = self.setting
        self._turn_running()
        self.reap()

    def _turn_running(self) -> None:
        """Hand the knobs in force to the engines that change them as they run."""
        for name, pooled in self._engines.items():
            turn = SPECS[name].turn
            if turn is not None and _differs(name, pooled.setting, self._in_force):
                pooled.setting = self._in_force
                turn(pooled.engine, self._in_force)

    def _prepare(self, wanted: Setting, made: dict[str, PooledEngine], slow: list[PooledEngine]) -> None:
        """Start the slow engines, then put all new ones in their places; again if newer settings came meanwhile."""
        while True:
            releases = self._releases
            failure = _prepared(slow)
            with self._lock:
                again = self.setting is not wanted
                if not again and failure is None:
                    self._install(made)
                elif not again:
                    self.setting = self._in_force
                    self._backends = _available(self.setting)
                released = releases != self._releases  # meanwhile: nothing may be left running
                self._preparing = again
            if again or failure is not None or released:
                _release(made.values())
            if not again:
                self._state.knobs_changed(self.knobs, failure)
                return
            with self._lock:
                wanted = self.setting
                made, slow = self._make()


def _available(setting: Setting) -> dict[str, Backend]:
    """Return every backend by name, for data sets whose files may meanwhile have been found not to be readable."""
    return availability(replace(setting, obstacle=setting.keyed.source.obstacle))


def _prepared(slow: list[PooledEngine]) -> Exception | None:
    """Start engines; returns the error of the first that fails."""
    for pooled in slow:
        try:
            pooled.prepare()
        except Exception as error:  # noqa: BLE001 - whatever the engine's packages or the user's data set raise: the old engines go on
            if threading.main_thread().is_alive():  # else the program ends, and nobody waits for an engine
                log_outside(log, "%s cannot be started anew; the old one goes on", pooled.engine.name)
            return error
    return None


def _differs(name: str, built: Setting, wanted: Setting) -> bool:
    uses = SPECS[name].uses
    if name in (DALI, THREADS) and (rest_in_workers(built) or rest_in_workers(wanted)):
        uses |= {"workers"}
    return any(getattr(built, knob) != getattr(wanted, knob) for knob in uses)


def _release(engines: Iterable[PooledEngine]) -> None:
    for pooled in engines:
        pooled.release()
    _trim()


def _trim() -> None:
    """Give the allocator's free pages back to the system, where it is glibc's.

    After an engine of DALI is dropped, 40 to 240 MB stay in the process otherwise. Takes a few ms.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
