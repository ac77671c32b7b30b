"""Utilisation and memory activity of a GPU, from the driver's samples where it keeps any, else from its rates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..probe import NAN
from .nvml import RATES_WINDOW_S, RETRY_S, Answer, Device, Query

RATES_PERIOD_S = 1 / 6  # the shortest period over which NVML takes its rates: read more often, they repeat
STALE_S = 2.0  # without a new sample in the driver's buffer for this long, the rates are shown
LONGEST_STEP_S = 0.5  # samples are read at least this often, however far apart they come
ANOTHER_CLOCK_S = 60.0  # a sample further from the wall clock has a stamp of another clock


class Utilisation(Query):
    """Utilisation and memory activity.

    Utilisation is the mean of the samples in the driver's buffer that are newer than those of the last query
    (`nvmlDeviceGetSamples`), with the samples' own stamps; where a driver keeps none, it is NVML's rate, whose window
    is unknown: 1/6 s to 1 s. Memory activity is always that rate.
    """

    period = 0.0

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu", (("utilisation", "%"), ("memory_activity", "%")))
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
            self._read_samples(now)
        fresh = self._have_samples and now - self._sampled_at < STALE_S
        if now >= self._rates_due:
            self._read_rates(now)
        rates = self._rates
        if rates is None:
            return (self._sampled if fresh else self._refused, self._refused)
        if fresh:
            self.at = self._sampled_at
            return (self._sampled, float(rates.memory))
        self.window = RATES_WINDOW_S
        return (float(rates.gpu), float(rates.memory))

    def _read_samples(self, now: float) -> None:
        nvml = self.device.nvml
        try:
            _, samples = nvml.nvmlDeviceGetSamples(self.device.handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, self._seen)
        except nvml.NVMLError_NotFound:
            return  # none since the last query
        except nvml.NVMLError as error:
            self.device.refused(error)
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
        # The next sample comes no sooner than these were apart.
        self._samples_due = self._sampled_at + min(self.window / len(new), LONGEST_STEP_S)

    def _read_rates(self, now: float) -> None:
        nvml = self.device.nvml
        try:
            self._rates = nvml.nvmlDeviceGetUtilizationRates(self.device.handle)
            self._rates_due = now + RATES_PERIOD_S
        except nvml.NVMLError as error:
            self._rates = None
            self._refused = self.device.refused(error) + (" (MIG is on)" if self.device.mig else "")
            self._rates_due = now + RETRY_S
