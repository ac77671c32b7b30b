"""GPM, the performance counters of Hopper and later GPUs: what the multiprocessors really do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..probe import NAN
from .nvml import Answer, Device, Query

MIB = float(1 << 20)

METRICS: tuple[tuple[str, str, str, float], ...] = (
    ("sm_active", "%", "NVML_GPM_METRIC_SM_UTIL", 1.0),
    ("sm_occupancy", "%", "NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    ("tensor_active", "%", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    ("dram_active", "%", "NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
    ("fp16_active", "%", "NVML_GPM_METRIC_FP16_UTIL", 1.0),
    ("fp32_active", "%", "NVML_GPM_METRIC_FP32_UTIL", 1.0),
    ("fp64_active", "%", "NVML_GPM_METRIC_FP64_UTIL", 1.0),
    ("gpm_pcie_received", "B/s", "NVML_GPM_METRIC_PCIE_RX_PER_SEC", MIB),
    ("gpm_pcie_sent", "B/s", "NVML_GPM_METRIC_PCIE_TX_PER_SEC", MIB),
)
"""(last part of the series' name, unit, pynvml's name of the metric, what its value is multiplied by)."""

SM_ACTIVE = METRICS[:1]


class Gpm(Query):
    """Each answer covers the time between two samples of the counters: the last query's and this one's."""

    def __init__(
        self,
        device: Device,
        metrics: Sequence[tuple[str, str, str, float]] = METRICS,
        prefix: str = "",  # of the series' names
        instance: int | None = None,  # number of the GPU instance whose counters are meant; None for the whole GPU
    ) -> None:
        group = "gpm" if instance is None else "mig"
        super().__init__(device, group, [(prefix + name, unit) for name, unit, _, _ in metrics])
        self._metrics = metrics
        self._instance = instance
        self._request: Any = None
        self._samples: list[Any] = []
        self._taken_at = NAN

    def ask(self, now: float) -> Sequence[Answer]:
        nvml: Any = self.device.nvml
        if self._request is None:
            self._prepare(nvml)
        spare, last = self._samples
        if self._instance is None:
            nvml.nvmlGpmSampleGet(self.device.handle, spare)
        else:
            nvml.nvmlGpmMigSampleGet(self.device.handle, self._instance, spare)
        self._samples = [last, spare]
        before, self._taken_at = self._taken_at, now
        if not now > before:
            return (NAN,) * len(self._metrics)  # the first sample
        self.window = now - before
        request = self._request
        request.sample1, request.sample2 = last, spare
        nvml.nvmlGpmMetricsGet(request)
        return [self._answer(nvml, which, row[3]) for which, row in enumerate(self._metrics)]

    def _answer(self, nvml: Any, which: int, factor: float) -> Answer:
        entry = self._request.metrics[which]
        if entry.nvmlReturn != nvml.NVML_SUCCESS:
            return self.device.refused(nvml.NVMLError(entry.nvmlReturn))
        return float(entry.value) * factor

    def _prepare(self, nvml: Any) -> None:
        if not nvml.nvmlGpmQueryDeviceSupport(self.device.handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        while len(self._samples) < 2:  # a call may fail: the next query goes on
            self._samples.append(nvml.nvmlGpmSampleAlloc())
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._metrics)
        for which, (_, _, constant, _) in enumerate(self._metrics):
            request.metrics[which].metricId = getattr(nvml, constant)
        self._request = request

    def close(self) -> None:
        nvml: Any = self.device.nvml
        samples, self._samples, self._request = self._samples, [], None
        for sample in samples:
            nvml.nvmlGpmSampleFree(sample)
