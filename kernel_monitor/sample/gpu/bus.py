"""Traffic over PCIe and NVLink, from the GPU's view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..probe import NAN
from .nvml import Answer, Device, Question
from .state import field_value

if TYPE_CHECKING:
    from collections.abc import Sequence

PCIE_WINDOW_S = 0.02
"""NVML's own: `nvmlDeviceGetPcieThroughput` blocks while it counts bytes for 20 ms."""
ALL_LINKS = 0xFFFF_FFFF
"""The scope of a field value that is summed over all links."""


class Pcie(Question):
    """Throughput in both directions, each in 20 ms of its own."""

    group = "gpu-bus"

    def __init__(self, device: Device) -> None:
        super().__init__(device, (("pcie_received", "B/s"), ("pcie_sent", "B/s")))
        self.window = PCIE_WINDOW_S

    def ask(self, _now: float) -> Sequence[Answer]:
        nvml, handle = self.device.nvml, self.device.handle
        received = nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
        sent = nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
        return (received * 1000.0, sent * 1000.0)  # documented in KB/s


class NvLink(Question):
    """Growth of the counters of payload (KiB) of all links together, by the counters' own stamps."""

    group = "gpu-bus"

    def __init__(self, device: Device) -> None:
        super().__init__(device, (("nvlink_received", "B/s"), ("nvlink_sent", "B/s")))
        nvml: Any = device.nvml
        self._fields = [
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
        ]
        self._last: list[tuple[float, float]] = [(NAN, NAN), (NAN, NAN)]

    def ask(self, now: float) -> Sequence[Answer]:
        device = self.device
        entries = device.nvml.nvmlDeviceGetFieldValues(device.handle, self._fields)
        return [self._rate(which, entry, now) for which, entry in enumerate(entries)]

    def _rate(self, which: int, entry: Any, now: float) -> Answer:
        count = field_value(self.device, entry)
        if isinstance(count, str):
            self._last[which] = (NAN, NAN)
            return count
        stamp = entry.timestamp / 1e6 or now
        before, counted = self._last[which]
        self._last[which] = (stamp, count)
        elapsed = stamp - before
        if not elapsed > 0 or count < counted:
            return NAN  # the first count, or the counters began anew
        self.window = elapsed
        return (count - counted) * 1024.0 / elapsed


def questions(device: Device) -> list[Question]:
    """The first one tells the group's age and window."""
    return [Pcie(device), NvLink(device)]
