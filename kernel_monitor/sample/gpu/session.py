"""NVML from one start of the library to its end: its GPUs and the threads that ask about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import bus as nvml_bus
from . import load as nvml_load
from . import nvml
from . import processes as nvml_processes
from . import state as nvml_state
from .asker import Asker
from .desk import Desk
from .gpm import Gpm
from .mig import MigDesk
from .xid import XidWatch

if TYPE_CHECKING:
    from collections.abc import Callable

SLOW_S = 1.0
"""How often everything but load, memory and power is asked."""
SHARE = 0.2
"""At most this share of the time is spent in NVML: where a round takes long, rounds come less often."""
JOIN_S = 3.0
"""How long the threads have to come back from NVML at the end."""


class Session:
    """The threads, of which the fast one is the caller's own.

    Args:
        devices: from `nvml.open_devices`.
        interval: seconds between two rounds of the fast questions.
        pids: the processes of the kernel's tree, if they are known.
        tell: called on a thread of its own with the notice for an Xid event.
    """

    def __init__(
        self,
        devices: list[nvml.Device],
        interval: float,
        pids: frozenset[int] | None,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self.devices = devices
        self.set_processes(pids)
        self.migs = [MigDesk(device) for device in devices]
        fast = [Desk(device, nvml_load.questions(device)) for device in devices]
        slow = [
            Desk(device, [*nvml_state.questions(device), *nvml_processes.questions(device), Gpm(device)])
            for device in devices
        ]
        bus = [Desk(device, nvml_bus.questions(device)) for device in devices]
        self.fast = Asker("nvml", "load, memory and power", fast, interval, SHARE)
        self.slow = Asker("nvml-slow", "temperatures, clocks and counters", [*self.migs, *slow], SLOW_S, SHARE)
        self.bus = Asker("nvml-bus", "PCIe and NVLink", bus, SLOW_S, SHARE)
        self.askers = (self.fast, self.slow, self.bus)
        self.xid = XidWatch(devices, tell)
        self.desks = [
            (device, ((self.fast, fast[which]), (self.slow, slow[which]), (self.bus, bus[which]), (self.slow, mig)))
            for which, (device, mig) in enumerate(zip(devices, self.migs, strict=True))
        ]

    def set_processes(self, pids: frozenset[int] | None) -> None:
        for device in self.devices:
            device.pids = pids

    def start(self) -> None:
        """Start all threads but the fast one, which is for the caller: `fast.rounds`."""
        self.slow.start()
        self.bus.start()
        self.xid.start()

    def stop(self) -> None:
        """Ask no more."""
        for asker in self.askers:
            asker.stop()
        self.xid.stop()

    def gone(self) -> bool:
        """Whether a GPU answers again only when NVML is started anew."""
        for device, desks in self.desks:
            load = desks[0][1]
            if device.gone and len(load.reasons) < len(load.table.parts):
                device.gone = False  # it answers
        return any(device.gone for device in self.devices)

    def close(self) -> None:
        """Stop, and shut NVML down unless a thread does not come back from it."""
        self.stop()
        threads = [self.slow.thread, self.bus.thread, self.xid.thread]
        for thread in threads:
            if thread.ident is not None:
                thread.join(JOIN_S)
        if any(thread.is_alive() for thread in threads):
            return
        for _, desks in self.desks:
            for _, desk in desks:
                desk.close()
        nvml.close(self.devices[0].nvml)
