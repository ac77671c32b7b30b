"""What became of the last epochs of a loader: which samples were planned, delivered, skipped, and what decoded them."""

from __future__ import annotations

from ..errors import MonitorError
from ..protocol.states import EpochCounts
from .plan import EpochRecord, Fallback, Skipped

EPOCHS_KEPT = 4


class EpochRecords:
    """The records of a loader's last four epochs, as questions that any thread may ask between batches."""

    def __init__(self) -> None:
        self.newest: EpochRecord | None = None  # of the epoch that began last; None before the first
        self._by_number: dict[int, EpochRecord] = {}

    def enter(self, record: EpochRecord) -> None:
        """Keep the record of an epoch that begins."""
        self._by_number.pop(record.number, None)
        self._by_number[record.number] = self.newest = record
        while len(self._by_number) > EPOCHS_KEPT:
            del self._by_number[next(iter(self._by_number))]

    def drop(self, record: EpochRecord) -> None:
        """Forget the newest epoch, which delivered nothing."""
        if self._by_number.get(record.number) is record:
            del self._by_number[record.number]
            self.newest = next(reversed(self._by_number.values()), None)

    def plan(self, epoch: int | None = None) -> list[int]:
        """Return the indices drawn so far in an epoch, in order; the newest epoch by default.

        Raises:
            MonitorError: the epoch has not begun, or is not among the last four.
        """
        return self._epoch(epoch).indices.tolist()

    def decoded(self, epoch: int | None = None) -> dict[str, int]:
        """Return how many delivered samples of an epoch each decoder decoded."""
        return dict(self._epoch(epoch).decoded)

    def decoders(self, epoch: int | None = None) -> list[str]:
        """Return what decoded each delivered sample of an epoch, in the order of delivery."""
        record = self._epoch(epoch)
        return [name for name, run in zip(record.decoders, record.runs, strict=True) for _ in range(run)]

    def fallbacks(self, epoch: int | None = None) -> list[Fallback]:
        """Return the samples of an epoch (the first thousand) that DALI handed to the torchvision path, and why."""
        return list(self._epoch(epoch).fallbacks)

    def skipped(self, epoch: int | None = None) -> list[Skipped]:
        """Return the samples of an epoch (the first thousand) left out as unreadable, and why (on_error="skip")."""
        return list(self._epoch(epoch).skips)

    def epochs(self) -> list[EpochCounts]:
        """Return the counts of the last epochs, oldest first; may be called from any thread."""
        return [record.counts() for record in list(self._by_number.values())]

    def _epoch(self, epoch: int | None) -> EpochRecord:
        record = self.newest if epoch is None else self._by_number.get(epoch)
        if record is None:
            kept = ", ".join(map(str, self._by_number)) or "none"
            raise MonitorError(f"epoch {epoch if epoch is not None else 0} is not recorded; epochs recorded: {kept}")
        return record
