"""Load, memory, power and temperature of every GPU, or why there is none.

NVML is asked on a thread of its own: some of its calls block for tens of milliseconds, and on a GPU in trouble for
ever, and neither may hold up the rest. Frames carry the newest answers; NVML's own window for utilisation is 1/6 to
1 s, so that a value one frame old costs nothing.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

from .nvml import READINGS, SERIES, Device, NvmlError, ask, open_devices
from .probe import NAN

if TYPE_CHECKING:
    from collections.abc import Sequence

FASTEST_S = 0.1
"""NVML is asked no more often than this."""
SHARE = 0.2
"""At most this share of the time is spent in NVML: where a round takes long, rounds come less often."""
RETRY_S = 10.0
"""A question that NVML refused is asked again after this."""
SILENT_S = 3.0
"""After this long without an answer the values held are no longer shown."""
SLOWEST_START_S = 2.0
"""How long the first hello waits for NVML; without persistence mode a driver may take longer to start."""

_PLACE = {part: place for place, (part, _) in enumerate(SERIES)}


class _Gpu:
    """One GPU's newest values, and NVML's reasons for those that are missing. Written by the asking thread alone."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.values = [NAN] * len(SERIES)
        self.reasons: dict[str, str] = {}
        self._due = [0.0] * len(READINGS)

    def ask(self, now: float) -> list[str]:
        """Ask NVML what is due; returns what went missing or came back, in words."""
        changes: list[str] = []
        for which, reading in enumerate(READINGS):
            if now < self._due[which]:
                continue
            refused = False
            for part, answer in zip(reading.parts, ask(reading, self.device), strict=True):
                known = self.reasons.get(part)
                reason = answer if isinstance(answer, str) else None
                self.values[_PLACE[part]] = NAN if isinstance(answer, str) else answer
                refused = refused or reason is not None
                if reason != known:
                    reasons = {name: text for name, text in self.reasons.items() if name != part}
                    self.reasons = reasons if reason is None else {**reasons, part: reason}
                    changes.append(f"GPU {self.device.index} {part}: {reason or 'is back'}")
            # Of several parts one may be refused for good while the others are there: those are asked on.
            whole = refused and all(part in self.reasons for part in reading.parts)
            self._due[which] = now + (RETRY_S if whole else reading.period)
        return changes


class Gpus:
    """All GPUs: six values each, in the order of `nvml.SERIES`.

    The series may come after the start, once: where NVML takes long to answer. All methods are for one thread.

    Args:
        interval: seconds between frames.
    """

    period = 0.0

    def __init__(self, interval: float) -> None:
        self._interval = max(interval, FASTEST_S)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        # Written by the asking thread, taken over by refresh():
        self._found: list[_Gpu] = []
        self._failure: str | None = None
        self._answered = time.monotonic()
        self._ready = threading.Event()
        self._changes: deque[str] = deque()
        # As the frames and the hello show it:
        self._shown: list[_Gpu] = []
        self._reason: str | None = "NVML has not answered yet"
        self._silent = False

    @property
    def series(self) -> Sequence[tuple[str, str]]:
        return [(f"gpu/{gpu.device.index}/{part}", unit) for gpu in self._shown for part, unit in SERIES]

    def start(self) -> None:
        """Start asking; returns when NVML has answered, or after `SLOWEST_START_S`."""
        self._thread.start()
        self._ready.wait(SLOWEST_START_S)
        self.refresh(time.monotonic())

    def stop(self) -> None:
        """Stop asking. A call that hangs in the driver is left to end with the process."""
        self._stop.set()

    def refresh(self, now: float) -> list[str]:
        """Take over what changed, in words; if anything did, `hello` and perhaps `series` say something new."""
        changes: list[str] = []
        while self._changes:
            changes.append(self._changes.popleft())
        if self._ready.is_set():
            if self._failure != self._reason:
                if self._failure is not None:
                    changes.append(f"GPUs: {self._failure}")
                self._reason = self._failure
            if len(self._shown) != len(self._found):
                self._shown = self._found
                changes.append(f"NVML lists {len(self._shown)} GPU(s)")
        silent = bool(self._shown) and now - self._answered > max(SILENT_S, 3 * self._interval)
        if silent != self._silent:
            self._silent = silent
            changes.append("NVML does not answer: no GPU values" if silent else "NVML answers again")
        return changes

    def hello(self) -> dict[str, Any]:
        """`gpus` and `gpu_reason` of the sampler's hello."""
        silent = {part: f"NVML has not answered for {SILENT_S:g} s" for part, _ in SERIES} if self._silent else None
        return {
            "gpus": [
                {
                    "index": gpu.device.index,
                    "name": gpu.device.name,
                    "memory_total": gpu.device.memory_total,
                    "reasons": silent or gpu.reasons,
                }
                for gpu in self._shown
            ],
            "gpu_reason": self._reason,
        }

    def read(self, _now: float, /) -> Sequence[float]:
        if self._silent:
            return [NAN] * (len(SERIES) * len(self._shown))
        return [value for gpu in self._shown for value in gpu.values]

    def _run(self) -> None:
        """The asking thread."""
        try:
            gpus = [_Gpu(device) for device in open_devices()]
            while not self._stop.is_set():
                began = time.monotonic()
                changes = [text for gpu in gpus for text in gpu.ask(began)]
                self._answered = ended = time.monotonic()
                if self._ready.is_set():
                    self._changes.extend(changes)
                else:
                    self._found = gpus
                    self._ready.set()
                pause = max(self._interval, (ended - began) / SHARE) - (ended - began)
                self._stop.wait(pause)
        except NvmlError as error:
            self._failure = str(error)
        except Exception as error:  # noqa: BLE001 - whatever a broken driver installation raises, all else goes on
            traceback.print_exc()
            self._failure = f"{type(error).__name__}: {error}"
            self._found = []
        finally:
            self._ready.set()
