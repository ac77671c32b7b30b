"""What is asked in every round: utilisation, memory and power."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..probe import NAN
from .nvml import RATES_WINDOW_S, RETRY_S, Answer, Device, Question

if TYPE_CHECKING:
    from collections.abc import Sequence

RATES_PERIOD_S = 1 / 6
"""The shortest period over which NVML takes its rates: asked more often, it repeats itself."""
STALE_S = 2.0
"""When the driver has put no new sample of the utilisation into its buffer for this long, its rates are asked."""
LONGEST_STEP_S = 0.5
"""However far apart samples come, they are asked for this often."""
ANOTHER_CLOCK_S = 60.0
"""A sample that is further from the wall clock than this has a stamp of another clock."""
POWER_PERIOD_S = 0.2
"""NVML documents the power of Ampere and later GPUs as the mean of 1 s."""


class Activity(Question):
    """Utilisation and memory activity.

    Utilisation is the mean of the samples in the driver's buffer that are newer than those of the asking before
    (`nvmlDeviceGetSamples`), with the samples' own stamps; where a driver keeps none, it is NVML's rate, whose window
    is not told: 1/6 s to 1 s. Memory activity is always that rate.
    """

    group = "gpu"
    period = 0.0

    def __init__(self, device: Device) -> None:
        super().__init__(device, (("utilisation", "%"), ("memory_activity", "%")))
        self._seen = 0
        self._sampled: Answer = NAN
        self._sampled_at = NAN
        self._samples_due = 0.0
        self._have_samples = False
        self._rates: Any = None
        self._refused = ""
        self._rates_due = 0.0

    def ask(self, now: float) -> Sequence[Answer]:
        if now >= self._samples_due:
            self._ask_samples(now)
        fresh = self._have_samples and now - self._sampled_at < STALE_S
        if now >= self._rates_due:
            self._ask_rates(now)
        rates = self._rates
        if rates is None:
            return (self._sampled if fresh else self._refused, self._refused)
        if fresh:
            self.at = self._sampled_at
            return (self._sampled, float(rates.memory))
        self.window = RATES_WINDOW_S
        return (float(rates.gpu), float(rates.memory))

    def _ask_samples(self, now: float) -> None:
        nvml = self.device.nvml
        try:
            _, samples = nvml.nvmlDeviceGetSamples(self.device.handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, self._seen)
        except nvml.NVMLError_NotFound:
            return  # none since the last asking
        except nvml.NVMLError as error:
            self.device.words(error)
            self._have_samples = False
            self._samples_due = now + RETRY_S
            return
        read = [(sample.timeStamp, sample.sampleValue.uiVal) for sample in samples]
        new = sorted((stamp, value) for stamp, value in read if stamp > self._seen and value <= 100)
        if not new:
            return
        newest = new[-1][0]
        if not self._seen:
            # The whole buffer, seconds of it: only its last sample is of now.
            self._seen = new[-2][0] if len(new) > 1 else newest - round(RATES_WINDOW_S * 1e6)
            new = new[-1:]
        self.window = (newest - self._seen) / 1e6
        self._seen = newest
        self._sampled = sum(value for _, value in new) / len(new)
        age = time.time() - newest / 1e6
        self._sampled_at = now - max(0.0, age) if abs(age) < ANOTHER_CLOCK_S else now
        self._have_samples = True
        # The next one is not there before it is due by the distance of these.
        self._samples_due = self._sampled_at + min(self.window / len(new), LONGEST_STEP_S)

    def _ask_rates(self, now: float) -> None:
        nvml = self.device.nvml
        try:
            self._rates = nvml.nvmlDeviceGetUtilizationRates(self.device.handle)
            self._rates_due = now + RATES_PERIOD_S
        except nvml.NVMLError as error:
            self._rates = None
            self._refused = self.device.words(error) + (" (MIG is on)" if self.device.mig else "")
            self._rates_due = now + RETRY_S


class Memory(Question):
    """Memory in use, of all there is."""

    group = "gpu"
    period = 0.0

    def __init__(self, device: Device) -> None:
        super().__init__(device, (("memory", "%"), ("memory_used", "B")))

    def ask(self, _now: float) -> Sequence[Answer]:
        return memory_of(self.device, self.device.handle)


def memory_of(device: Device, handle: Any) -> tuple[float, float]:
    """(% of all, bytes) in use by a GPU or a MIG instance."""
    memory = device.nvml.nvmlDeviceGetMemoryInfo(handle)
    return 100.0 * memory.used / memory.total, float(memory.used)


class Power(Question):
    """Draw, and its share of the limit."""

    group = "gpu"
    period = POWER_PERIOD_S

    def __init__(self, device: Device) -> None:
        super().__init__(device, (("power", "%"), ("power_draw", "W")))

    def ask(self, _now: float) -> Sequence[Answer]:
        device = self.device
        draw = device.nvml.nvmlDeviceGetPowerUsage(device.handle) / 1000.0
        limit = power_limit(device) if device.limit is None else device.limit
        if isinstance(limit, str):
            return (f"power limit: {limit}", draw)
        return (100.0 * draw / limit if limit > 0 else "power limit: 0 W", draw)


def power_limit(device: Device) -> Answer:
    """The enforced limit in W, kept in `device.limit`, too."""
    try:
        device.limit = device.nvml.nvmlDeviceGetEnforcedPowerLimit(device.handle) / 1000.0
    except device.nvml.NVMLError as error:
        device.limit = device.words(error)
    return device.limit


def questions(device: Device) -> list[Question]:
    """The first one tells the group's age and window."""
    return [Activity(device), Memory(device), Power(device)]
