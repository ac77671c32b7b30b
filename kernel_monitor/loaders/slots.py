"""The engines of one loader: made when first asked for, replaced when a knob turns, given back.

A turned knob makes a new engine beside the old one. What takes long to start is started on a background thread; then
the new one is put in the old one's place, the iteration finds it there at its next boundary, the old one delivers
what it has taken and is given back. If the new one does not start, the old one, which was kept, goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .engines.backends import SPECS, Backend, Given, Setting, availability, rest_in_workers, translated
from .engines.rest_engine import RestEngine
from .engines.torch_engine import NAME as TORCHVISION
from .engines.torch_engine import PREFETCH, WorkersEngine
from .expected import expected
from .knobs import NAMES, Knobs
from .memory import trim
from .segment import Slot
from .switch import Switchboard

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Entry:
    """An engine in its place.

    Attributes:
        slot: the engine with its holder.
        setting: what it was built for.
        proven: whether it has started for an iteration.
        previous: what it replaces, kept until it has.
    """

    slot: Slot
    setting: Setting
    proven: bool = False
    previous: _Entry | None = None


class Slots:
    """See the module's text. Every method may be called from any thread.

    Args:
        setting: what the engines are built for.
        board: names the backend that takes from the plan, and is told of every change of the knobs.
    """

    def __init__(self, setting: Setting, board: Switchboard) -> None:
        self._setting = setting
        self._in_force = setting  # differs from `_setting` while a change is being prepared
        self._backends = availability(setting)
        self._board = board
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._retired: list[Slot] = []  # replaced; may still deliver what they took
        self._preparing = False  # whether a thread starts new engines; never two at once
        self._releases = 0
        self._obstacle = setting.keyed.source.obstacle
        self._encoded: bool | None = None  # as DALI's engines were built for it; None while there are none
        self._expected_of: Setting | None = None
        self.expected: Mapping[str, Mapping[str, float]] = {}
        """What other engines would take, see `expected.expected`; replaced as a whole."""

    @property
    def setting(self) -> Setting:
        """What engines are built for from now on."""
        return self._setting

    @property
    def backends(self) -> dict[str, Backend]:
        """Every backend by name."""
        return self._backends

    @property
    def knobs(self) -> Knobs:
        """How many workers, batches in flight and threads there are to be."""
        setting = self._setting
        dali = any(backend.available for name, backend in self._backends.items() if "threads" in SPECS[name].uses)
        prefetch = setting.prefetch or setting.wrapped.prefetch_factor or PREFETCH
        return Knobs(setting.workers, prefetch, setting.threads if dali else None)

    @property
    def worker_pids(self) -> list[int]:
        """The process numbers of all workers; asked once a second, so without the lock that building engines holds."""
        entries = list(self._entries.values())
        slots = [one.slot for entry in entries for one in (entry, entry.previous) if one is not None]
        engines = [slot.engine for slot in [*slots, *list(self._retired)]]
        return sorted(
            {pid for engine in engines if isinstance(engine, WorkersEngine | RestEngine) for pid in engine.pids}
        )

    def __getitem__(self, name: str) -> Slot:
        """The engine of a backend, with its holder; made when first asked for, not started."""
        with self._lock:
            if name not in self._entries:
                self._entries[name] = _Entry(Slot(SPECS[name].build(self._in_force)), self._in_force)
            return self._entries[name].slot

    def turn(self, **knobs: int) -> None:
        """Change knobs (fields of `Setting`); returns at once. A change under way is given up for the newest one."""
        with self._lock:
            if all(getattr(self._setting, knob) == value for knob, value in knobs.items()):
                return
            after = _turned(self._setting, knobs, careful=True)
            self._setting = after
            if "workers" in knobs:
                self._backends = availability(after)  # DALI leaves them what it cannot do
            if self._preparing:
                return  # the thread looks again when it is through
            made, slow = self._make()
            if not slow:
                self._install(made)
            self._preparing = bool(slow)
        if slow:
            threading.Thread(target=self._prepare, args=(after, made, slow), name="knobs", daemon=True).start()
        else:
            self._board.turned(self.knobs)

    def expect(self) -> None:
        """Reckon `expected` where the work has changed; on the loop's thread, as it reads some files' headers."""
        now, known = self._setting, self._expected_of
        if known is None or (known.program, known.fused_decode) != (now.program, now.fused_decode):
            self._expected_of, self.expected = now, expected(now)

    def renew(self) -> None:
        """Build every engine anew where the wrapped DataLoader's settings were assigned; not where its workers are
        kept from epoch to epoch, which know the old ones only, as in torch."""
        with self._lock:
            old, now = self._setting.given, Given.of(self._setting.wrapped)
            stands = any(
                isinstance(entry.slot.engine, WorkersEngine) and entry.slot.engine.started
                for entry in self._entries.values()
            )
            if old.same(now) or (stands and self._setting.wrapped.persistent_workers):
                return
            changed: dict[str, Any] = {"given": now, "careful": stands or self._setting.careful}
            if old.num_workers != now.num_workers:
                changed["workers"] = now.num_workers
            if old.prefetch_factor != now.prefetch_factor:
                changed["prefetch"] = None
            self._setting = self._in_force = replace(self._setting, **changed)
            self._backends = availability(self._setting)
            dropped = list(self._entries.values())
            self._entries.clear()
        for entry in dropped:
            entry.slot.release()

    def refresh(self) -> None:
        """Look at the data set again, and give back DALI's engines where it has changed."""
        with self._lock:
            setting, source = translated(self._setting), self._setting.keyed.source
            obstacle = source.obstacle
            encoded = source.encoded if any("threads" in SPECS[name].uses for name in self._entries) else None
            same = setting.program == self._setting.program and setting.refusal == self._setting.refusal
            if same and obstacle == self._obstacle and (encoded == self._encoded or None in (encoded, self._encoded)):
                self._encoded = encoded
                return
            self._setting, self._obstacle, self._encoded = setting, obstacle, None
            self._in_force = replace(self._in_force, program=setting.program, refusal=setting.refusal)
            self._backends = availability(setting)
            dropped = [self._entries.pop(name) for name in list(self._entries) if name != TORCHVISION]
        for entry in dropped:
            entry.slot.release()

    def started(self, slot: Slot) -> None:
        """An engine started for an iteration: what it replaces is no longer kept for it."""
        with self._lock:
            for entry in self._entries.values():
                if entry.slot is slot:
                    previous, entry.previous, entry.proven = entry.previous, None, True
                    if previous is not None:
                        self._retired.append(previous.slot)

    def roll_back(self, slot: Slot, error: BaseException) -> bool:
        """Put back what an engine replaced that did not start; returns whether there was anything to put back."""
        with self._lock:
            name = next((name for name, entry in self._entries.items() if entry.slot is slot), None)
            previous = None if name is None else self._entries[name].previous
            if name is None or previous is None:
                return False
            self._entries[name] = previous
            self._retired.append(slot)
            knobs = {knob: getattr(previous.setting, knob) for knob in SPECS[name].uses & NAMES}
            self._setting = self._in_force = _turned(self._setting, knobs, careful=True)
            self._backends = availability(self._setting)
        self._board.turned(self.knobs, error)
        return True

    def reap(self) -> None:
        """Give back replaced engines that have nothing more to deliver; on a thread, as it can take a moment."""
        with self._lock:
            done = [slot for slot in self._retired if slot.idle]
            self._retired = [slot for slot in self._retired if slot not in done]
        if done:
            threading.Thread(target=_release, args=(done,), name="give back", daemon=True).start()

    def release(self) -> None:
        """Give back processes, threads and memory of every engine."""
        with self._lock:
            self._releases += 1
            kept = [entry.previous.slot for entry in self._entries.values() if entry.previous is not None]
            slots = [*self._retired, *kept, *(entry.slot for entry in self._entries.values())]
        _release(slots)

    def release_idle(self, but: Container[str | None]) -> None:
        """Give back every engine that has nothing to deliver, those of the backends `but` excepted."""
        with self._lock:
            slots = [entry.slot for name, entry in self._entries.items() if name not in but and entry.slot.idle]
        _release(slots)
        self.reap()

    def _is_slow(self, name: str, slot: Slot) -> bool:
        """Whether an engine that is to take over from one in use takes long to start."""
        if name == TORCHVISION:
            return isinstance(slot.engine, WorkersEngine) and not slot.engine.forks
        return name == self._board.taking

    def _make(self) -> tuple[dict[str, Slot], list[Slot]]:
        """New engines for the places whose knobs have changed, and those among them that take long to start."""
        wanted = self._setting
        stale = [name for name, entry in self._entries.items() if _differs(name, entry.setting, wanted)]
        made = {name: Slot(SPECS[name].build(wanted)) for name in stale}
        return made, [slot for name, slot in made.items() if self._is_slow(name, slot)]

    def _install(self, made: dict[str, Slot]) -> None:
        for name, slot in made.items():
            old = self._entries.get(name)
            kept = old if old is None or old.proven else old.previous
            if old is not None and kept is not old:
                self._retired.append(old.slot)
            if kept is not None and name != self._board.taking:
                self._retired.append(kept.slot)
                kept = None
            self._entries[name] = _Entry(slot, self._setting, previous=kept)
        self._in_force = self._setting
        self.reap()

    def _prepare(self, wanted: Setting, made: dict[str, Slot], slow: list[Slot]) -> None:
        """Start what takes long, then put all that was made in its place; again if something newer was asked for."""
        while True:
            releases = self._releases
            failure = _prepared(slow)
            with self._lock:
                again = self._setting is not wanted
                if not again and failure is None:
                    self._install(made)
                elif not again:
                    self._setting = self._in_force
                    self._backends = availability(self._setting)
                released = releases != self._releases  # meanwhile: nothing was to be left running
                self._preparing = again
            if again or failure is not None or released:
                _release(list(made.values()))
            if not again:
                self._board.turned(self.knobs, failure)
                return
            with self._lock:
                wanted = self._setting
                made, slow = self._make()


def _prepared(slow: list[Slot]) -> Exception | None:
    """Start engines; returns what went wrong."""
    for slot in slow:
        try:
            engine = slot.engine
            with slot.use():
                engine.prepare()
        except Exception as error:
            log.warning("%s cannot be started anew", slot.engine.name, exc_info=True)
            return error
    return None


def _turned(setting: Setting, knobs: dict[str, Any], *, careful: bool) -> Setting:
    return replace(setting, careful=careful, **knobs)


def _differs(name: str, built: Setting, wanted: Setting) -> bool:
    uses = SPECS[name].uses & NAMES
    if name == "dali-cpu" and (rest_in_workers(built) or rest_in_workers(wanted)):
        uses |= {"workers"}
    return any(getattr(built, knob) != getattr(wanted, knob) for knob in uses)


def _release(slots: list[Slot]) -> None:
    for slot in slots:
        slot.release()
    trim()
