"""GPUs of AMD, Intel and Apple, which are read where NVML lists none: from files of Linux' drivers, or from `ioreg`.

The files are those that the kernel documents: Documentation/gpu/amdgpu/thermal.rst (`gpu_busy_percent`, hwmon,
`pp_dpm_*`) and driver-misc.rst (`mem_info_*`), Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon and
sysfs-driver-intel-xe-hwmon, Documentation/ABI/testing/sysfs-devices-power (`runtime_status`). On no such card has this
run yet.
"""

from __future__ import annotations

import plistlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.parsers.expat import ExpatError

from ..probe import LINUX, NAN, SYS, read
from .nvml import Answer, Device, GpuSession, Part, Query, QueryTable, QueryThread

LOAD: tuple[Part, ...] = (
    ("utilisation", "%"),
    ("memory_activity", "%"),
    ("memory", "%"),
    ("memory_used", "B"),
    ("power", "%"),
    ("power_draw", "W"),
)
STATE: tuple[Part, ...] = (
    ("temperature", "°C"),
    ("temperature_memory", "°C"),
    ("clock_sm", "MHz"),
    ("clock_memory", "MHz"),
    ("power_limit", "W"),
)
LOAD_PERIOD_S = 0.2  # each reading of `gpu_busy_percent` asks the card's power controller
STATE_PERIOD_S = 1.0
_VENDORS = {"0x1002": "AMD", "0x8086": "Intel"}
_NO_FILE = "Intel's drivers have no file for it; xpu-smi and intel_gpu_top show it"
_SLEEPS = "the card is suspended, and a reading would wake it"
_IOREG = ("/usr/sbin/ioreg", "-r", "-d", "1", "-c", "IOAccelerator", "-a")
_IOREG_S = 5.0  # the longest that it may take
_IOREG_KEYS = {"utilisation": "Device Utilization %", "memory_used": "In use system memory"}


# ---- The three kinds of cards. Each has a name, the size of its memory, and the answers to `LOAD` and `STATE`.


class Card:
    """A GPU; `load` and `state` return an answer for each part of `LOAD` and `STATE`: a value, or why there is none."""

    name: str
    memory_total: int | None = None  # bytes

    def load(self, _now: float) -> Sequence[Answer]:
        """Answer at a time (`time.monotonic()`)."""
        raise NotImplementedError

    def state(self, _now: float) -> Sequence[Answer]:
        """Answer likewise."""
        raise NotImplementedError


class _DrmCard(Card):
    """A card of Linux' graphics drivers: the folder `/sys/class/drm/card<i>/device`."""

    def __init__(self, folder: Path, vendor: str) -> None:
        self._folder = folder
        # Numbers of hwmon folders change from boot to boot.
        self._hwmon = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "hwmon")
        product = self._text("product_name") or f"GPU {self._text('device')}".strip()
        self.name = product if product.startswith(vendor) else f"{vendor} {product}"

    def load(self, now: float) -> Sequence[Answer]:
        # An active card that is asked stays active for some seconds; a suspended one would be started.
        if self._text("power/runtime_status") == "suspended":
            return (_SLEEPS,) * len(LOAD)
        return self._load(now)

    def state(self, now: float) -> Sequence[Answer]:
        if self._text("power/runtime_status") == "suspended":
            return (_SLEEPS,) * len(STATE)
        return self._state(now)

    def _load(self, _now: float) -> Sequence[Answer]:
        raise NotImplementedError

    def _state(self, _now: float) -> Sequence[Answer]:
        raise NotImplementedError

    def _text(self, file: str) -> str:
        try:
            return read(str(self._folder / file)).decode(errors="replace").strip()
        except OSError:
            return ""

    def _number(self, path: Path, factor: float = 1.0) -> Answer:
        """Return the number that a file holds, times a factor; or why it has none."""
        try:
            return int(read(str(path))) * factor
        except OSError as error:
            return f"{path.name} cannot be read: {error.strerror}"
        except ValueError:
            return f"{path.name} holds no number"

    def _watts(self) -> Answer:
        """Return hwmon's power, which is in µW."""
        average = self._number(self._hwmon / "power1_average", 1e-6)
        return self._number(self._hwmon / "power1_input", 1e-6) if isinstance(average, str) else average

    def _degrees(self, label: str) -> Answer:
        """Return the temperature whose label is this one (hwmon has it in m°C), else the first one."""
        for path in sorted(self._hwmon.glob("temp*_label")):
            if self._text(str(path.relative_to(self._folder))) == label:
                return self._number(path.with_name(path.name.replace("_label", "_input")), 1e-3)
        return self._number(self._hwmon / "temp1_input", 1e-3)


class AmdCard(_DrmCard):
    """A card of the driver amdgpu."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "AMD")
        total = self._number(folder / "mem_info_vram_total")
        self.memory_total = None if isinstance(total, str) else int(total)

    def _load(self, _now: float) -> Sequence[Answer]:
        used, draw = self._number(self._folder / "mem_info_vram_used"), self._watts()
        limit = self._number(self._hwmon / "power1_cap", 1e-6)
        return (
            self._number(self._folder / "gpu_busy_percent"),
            self._number(self._folder / "mem_busy_percent"),
            _share(used, self.memory_total or "mem_info_vram_total cannot be read"),
            used,
            _share(draw, limit),
            draw,
        )

    def _state(self, _now: float) -> Sequence[Answer]:
        return (
            self._degrees("edge"),
            self._degrees("mem") if self._has_memory_sensor() else "the card has no sensor for it",
            self._clock("pp_dpm_sclk"),
            self._clock("pp_dpm_mclk"),
            self._number(self._hwmon / "power1_cap", 1e-6),
        )

    def _has_memory_sensor(self) -> bool:
        labels = self._hwmon.glob("temp*_label")
        return any(self._text(str(path.relative_to(self._folder))) == "mem" for path in labels)

    def _clock(self, file: str) -> Answer:
        """Return the marked line of the list of a clock's levels: `1: 1500Mhz *`."""
        try:
            text = read(str(self._folder / file)).decode(errors="replace")
        except OSError as error:
            return f"{file} cannot be read: {error.strerror}"
        found = re.search(r"(\d+)\s*mhz\s*\*", text, re.IGNORECASE)
        return float(found[1]) if found else f"{file} marks no clock"


class IntelCard(_DrmCard):
    """A card of the drivers i915 or xe with memory of its own: only those have hwmon files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "Intel")
        self._energy = NAN, NAN  # s, J

    def _load(self, now: float) -> Sequence[Answer]:
        draw = self._watts()
        if isinstance(draw, str):
            draw = self._mean_power(now)
        limit = self._number(self._hwmon / "power1_max", 1e-6)
        return (_NO_FILE, _NO_FILE, _NO_FILE, _NO_FILE, _share(draw, limit), draw)

    def _state(self, _now: float) -> Sequence[Answer]:
        xe, i915 = self._folder / "tile0/gt0/freq0/act_freq", self._folder.parent / "gt/gt0/rps_act_freq_mhz"
        clock = self._number(xe if xe.exists() else i915)
        limit = self._number(self._hwmon / "power1_max", 1e-6)
        return (self._degrees("pkg"), _NO_FILE, clock, _NO_FILE, limit)

    def _mean_power(self, now: float) -> Answer:
        """Return the growth of the energy counter (µJ) since the last reading, in W."""
        joules = self._number(self._hwmon / "energy1_input", 1e-6)
        if isinstance(joules, str):
            return joules
        (at, before), self._energy = self._energy, (now, joules)
        return (joules - before) / (now - at) if now > at and joules >= before else NAN


class AppleGpu(Card):
    """The GPU of an Apple computer, as `ioreg` describes it, which needs no root."""

    def __init__(self, describe: Callable[[], bytes]) -> None:
        self.name = "Apple GPU"
        self._describe = describe

    def load(self, _now: float) -> Sequence[Answer]:
        found = self._statistics()
        return [
            found if isinstance(found, str) else self._value(found, part) for part, _ in LOAD
        ]  # the memory is the computer's, and has no share of its own

    def state(self, _now: float) -> Sequence[Answer]:
        return ("ioreg does not give it without root",) * len(STATE)

    def _value(self, statistics: dict[str, object], part: str) -> Answer:
        key = _IOREG_KEYS.get(part)
        value = statistics.get(key) if key is not None else None
        if isinstance(value, int | float):
            return float(value)
        return "ioreg does not give it" if key is None else f"ioreg has no `{key}`"

    def _statistics(self) -> dict[str, object] | str:
        try:
            listed = plistlib.loads(self._describe())
        except (OSError, subprocess.SubprocessError, plistlib.InvalidFileException, ExpatError, ValueError) as error:
            return f"ioreg: {error}"
        if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
            return "ioreg lists no GPU"
        model, statistics = listed[0].get("model"), listed[0].get("PerformanceStatistics")
        if isinstance(model, str):
            self.name = model
        return statistics if isinstance(statistics, dict) else "ioreg has no `PerformanceStatistics`"


def _share(value: Answer, whole: Answer) -> Answer:
    """Return a share in %, or why there is none."""
    if isinstance(value, str) or isinstance(whole, str):
        return value if isinstance(value, str) else str(whole)
    return 100.0 * value / whole if whole > 0 else "its limit is 0"


def find_cards(root: Path = SYS) -> list[Card]:
    """Return the GPUs of this machine that are not NVIDIA's, in the order of the driver's numbers."""
    if sys.platform == "darwin":
        gpu = AppleGpu(_run_ioreg)
        return [gpu] if not isinstance(gpu.load(0.0)[0], str) else []
    return list(_drm_cards(root)) if LINUX else []


def _drm_cards(root: Path) -> Iterator[Card]:
    folders = [path for path in (root / "class/drm").glob("card*") if path.name[4:].isdigit()]
    for folder in sorted(folders, key=lambda path: int(path.name[4:])):
        device = folder / "device"
        try:
            vendor = _VENDORS.get(read(str(device / "vendor")).decode(errors="replace").strip())
        except OSError:
            continue
        if vendor == "AMD" and (device / "mem_info_vram_total").exists():
            yield AmdCard(device)
        elif vendor == "Intel" and any(device.glob("hwmon/hwmon*")):  # none where it shares the processor's memory
            yield IntelCard(device)


def _run_ioreg() -> bytes:
    return subprocess.run(_IOREG, capture_output=True, check=True, timeout=_IOREG_S).stdout


# ---- Their queries, in the tables and threads that NVML's are in.


class _CardQuery(Query):
    """A query of a card; what it cannot give has a reason and is asked for again at the same period."""

    def __init__(
        self,
        device: Device,
        group: str,
        parts: Sequence[Part],
        period: float,
        ask: Callable[[float], Sequence[Answer]],
    ) -> None:
        super().__init__(device, group, parts)
        self.period = self.retry = period
        self._answer = ask

    def answers(self, now: float) -> Sequence[Answer]:
        self.at = now
        return self._answer(now)


class CardSession(GpuSession):
    """The query threads of cards."""

    def __init__(self, cards: Sequence[Card], interval: float) -> None:
        # Each reading of `ioreg` starts a process.
        period = STATE_PERIOD_S if any(isinstance(card, AppleGpu) for card in cards) else LOAD_PERIOD_S
        devices = [Device(index, card.name, card.memory_total) for index, card in enumerate(cards)]
        pairs = list(zip(devices, cards, strict=True))
        load = [QueryTable(device, [_CardQuery(device, "gpu", LOAD, period, card.load)]) for device, card in pairs]
        state = [
            QueryTable(device, [_CardQuery(device, "gpu-slow", STATE, STATE_PERIOD_S, card.state)])
            for device, card in pairs
        ]
        fast = QueryThread("gpu-cards", "load, memory and power", load, interval)
        slow = QueryThread("gpu-cards-slow", "temperatures and clocks", state, STATE_PERIOD_S)
        tables = [((fast, load[place]), (slow, state[place])) for place in range(len(cards))]
        super().__init__("The driver", devices, (fast, slow), tables)
