"""Real workers, real DALI, real files and real signals: what is planted comes some milliseconds later."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kernel_monitor.loaders import SwitchableLoader

from .fakes import click
from .schedule import PATIENCE, Config
from .traced import KINDS, Samples

UNIT = 0.002  # s
LOSES_LOCKS = sys.version_info[:2] == (3, 14)  # where an interrupt comes with a `with`: python/cpython#148874


class RealStage:
    """One schedule's. To be used on the main thread, as signals arrive there.

    Args:
        config: of the schedule.
        samples: of the kind of the schedule's data set.
    """

    anywhere = True

    def __init__(self, config: Config, samples: Samples) -> None:
        self.samples = samples
        self.dataset = samples.dataset(config.bad)
        self.collate = samples.kind.case.collate
        self._timers: list[threading.Timer] = []
        self._errors: list[BaseException] = []
        self._asked = threading.Event()  # the loop is waiting for a batch
        self._open = False  # to an interrupt: the handler must not wait for the event's lock, which its thread may hold
        self._closing = threading.Event()
        self._before = signal.signal(signal.SIGINT, self._interrupted)

    def close(self) -> None:
        signal.signal(signal.SIGINT, self._before)

    def labels(self, batch: Any) -> list[int]:
        return list(self.samples.kind.indices(batch))

    def compare(self, batch: Any, epoch: int, drawn: list[tuple[int, int]]) -> None:
        self.samples.compare(batch, epoch, drawn)

    def offers(self, loader: SwitchableLoader, what: str) -> bool:
        if self.samples.kind is KINDS["photos"] or what.startswith(("workers=", "prefetch=")):
            return True
        return loader.backends["dali-cpu" if what.startswith("threads=") else what].available

    def plant(self, after: int, what: str, loader: SwitchableLoader) -> None:
        timer = threading.Timer(after * UNIT, self._happen, (what, loader))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    @contextmanager
    def asking(self, *, beginning: bool = False) -> Iterator[None]:
        if not beginning:
            self._asked.set()
            self._open = True
        try:
            yield
        finally:
            self._open = False
            self._asked.clear()

    def clear(self) -> None:
        self._closing.set()
        for timer in self._timers:
            timer.cancel()
        for timer in self._timers:
            timer.join(PATIENCE)
            assert not timer.is_alive(), "switch() or set() does not return"
        self._timers.clear()
        self._closing.clear()
        if self._errors:
            raise self._errors.pop()

    def _happen(self, what: str, loader: SwitchableLoader) -> None:
        try:
            if what == "interrupt":
                while not self._asked.wait(0.02):
                    if self._closing.is_set():
                        return
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            elif self.offers(loader, what):
                click(what, loader)
        except BaseException as error:  # noqa: BLE001 - raised by `clear`
            self._errors.append(error)

    def _interrupted(self, _signal: int, _frame: FrameType | None) -> None:
        if self._open and not LOSES_LOCKS:
            self._open = False  # one at a time: a second one would hit what handles the first
            raise KeyboardInterrupt
