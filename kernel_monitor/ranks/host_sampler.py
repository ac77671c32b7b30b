"""The load of this rank's machine, read in the rank while the kernel wants that: one rank of each other host does."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .rank_frames import Machine

if TYPE_CHECKING:
    from kernel_monitor.sample.node_sampler import NodeGpus, NodeSampler

PERIOD_S = 0.9  # between two readings at least: with frames twice a second, one in each second
log = logging.getLogger(__name__)


class HostSampler:
    """Reads the machine on the thread that calls `reading`; nothing is imported or opened before it is wanted."""

    def __init__(self) -> None:
        self.wanted = False  # whether the kernel has chosen this rank
        self._readers: tuple[NodeSampler, NodeGpus] | None = None
        self._last = 0.0
        self._failed = False

    def reading(self, now: float) -> Machine | None:
        """Return what was read since the last call.

        None where nothing is wanted, or due. `now`: s of the monotonic clock.
        """
        if not self.wanted:
            self._end()
            return None
        if self._failed or now - self._last < PERIOD_S:
            return None
        try:
            if self._readers is None:
                self._readers = _readers()
            sampler, gpus = self._readers
            values = {name: round(max(0.0, value), 2) for name, value in (sampler.read() | gpus.read()).items()}
        except Exception:  # whatever it is: the rank's steps are sent without it
            self._failed = True
            log.info("the load of this machine is not sent to the kernel", exc_info=True)
            return None
        self._last = now
        return Machine(sampler.cores, gpus.names, gpus.uuids, values)

    def _end(self) -> None:
        readers, self._readers = self._readers, None
        if readers is not None:
            readers[1].stop()


def _readers() -> tuple[NodeSampler, NodeGpus]:
    from kernel_monitor.sample.node_sampler import NodeGpus, NodeSampler

    return NodeSampler(), NodeGpus()
