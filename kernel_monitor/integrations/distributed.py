"""The user's sampler asked and shown, and its samples shared out among ranks as DistributedSampler does."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from ..errors import MonitorError

# ---- Asking the user's sampler, and showing it: the user's own, but not for another DataLoader to iterate.

_ITERATORS = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader")  # modules of iterators of DataLoaders


def attribute(sampler: Any, name: str, default: Any = None) -> Any:
    """An attribute of a sampler; `default` where it has none, or its class raises when it is asked."""
    try:
        return getattr(sampler, name, default)
    except Exception:  # noqa: BLE001 - the user's own class; plain torch would not ask
        return default


class ShownSampler:
    """Stands for the user's batch sampler: of the same class to `isinstance`, same attributes, length and batches."""

    __slots__ = ("_name", "_sampler")

    def __init__(self, sampler: Any, name: str) -> None:
        object.__setattr__(self, "_sampler", sampler)
        object.__setattr__(self, "_name", name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._sampler, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._sampler, name)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getitem__(self, place: Any) -> Any:
        return self._sampler[place]

    def __iter__(self) -> Iterator[Any]:
        # At the first batch, not before: torch's iterators cannot be taken apart when `iter` itself fails.
        if _in_dataloader():
            raise MonitorError(
                f"Another DataLoader was made from the attributes of the switchable loader {self._name}: it would "
                "load on its own, out of sight of the monitor and out of reach of every switch. Use the loader itself, "
                "loader.skip(n) to begin after its first n batches, or make the other DataLoader a batch sampler of "
                "its own."
            )
        yield from self._sampler

    def __eq__(self, other: object) -> bool:
        return bool(self._sampler == (other._sampler if type(other) is ShownSampler else other))

    def __hash__(self) -> int:
        return hash(self._sampler)

    def __repr__(self) -> str:
        return repr(self._sampler)

    def __reduce__(self) -> Any:
        return _same, (self._sampler,)


def _same(sampler: Any) -> Any:
    return sampler


def _in_dataloader() -> bool:
    """Return whether an iterator of a DataLoader has called, at whatever depth: samplers are wrapped in samplers."""
    frame: Any = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_ITERATORS):
            return True
        frame = frame.f_back
    return False


# ---- Sharing a loader's samples out among the ranks of a process group, as torch's DistributedSampler does.

log = logging.getLogger(__name__)

_NONE = object()  # stands for an attribute that is not there
# What samplers that take a part of the samples call their part: torch's and timm's, accelerate's, and others'.
_OF_RANKS = ("num_replicas", "num_processes", "num_shards", "world_size", "rank", "process_index")


class _RankSampler(DistributedSampler[int]):
    """A DistributedSampler whose epoch the loader sets, unless the user or a framework has set it."""

    epoch_is_set = False  # by others, for the epoch that begins next

    def set_epoch(self, epoch: int) -> None:
        """As of DistributedSampler; holds for the epoch that begins next."""
        super().set_epoch(epoch)
        self.epoch_is_set = True

    def __iter__(self) -> Iterator[int]:
        self.epoch_is_set = False
        return super().__iter__()


class Sharding:
    """Shares the samples of one DataLoader out, in place, as soon as there is a process group of several ranks."""

    def __init__(self, loader: DataLoader[Any], *, wanted: bool) -> None:
        self._loader = loader
        self._settled = not wanted

    def settle(self) -> str | None:
        """Look for a process group; cheap, to be called before the sampler is used in any way.

        Returns in a sentence what was done, or why it was not: once, when a group of several ranks is first seen, and
        not where the loader's own sampler shares out already. The first rank's process logs it as a warning.
        """
        if self._settled or not (dist.is_available() and dist.is_initialized()):
            return None
        rank, ranks = dist.get_rank(), dist.get_world_size()
        if ranks == 1:
            return None
        self._settled = True
        if shares_out(self._loader):
            return None
        notice = _shard(self._loader, rank, ranks)
        log.log(logging.INFO if rank else logging.WARNING, "%s", notice)
        return notice


def set_sampler_epoch(loader: DataLoader[Any], epoch: int, *, anew: bool = False) -> None:
    """Set the epoch that begins next of a `_RankSampler`, unless others have set it since the last epoch began.

    With `anew` it is set in any case, as where a state has been loaded.
    """
    sampler = attribute(loader.batch_sampler, "sampler")
    if type(sampler) is _RankSampler and (anew or not sampler.epoch_is_set):
        sampler.set_epoch(epoch)
        sampler.epoch_is_set = False


def shares_out(loader: DataLoader[Any]) -> bool:
    """Return whether a loader's sampler takes the part of one rank."""
    return any(_shares_out(sampler) for sampler in _inwards(loader.batch_sampler))


def _shard(loader: DataLoader[Any], rank: int, ranks: int) -> str:
    """Put a sampler for this rank into a loader, if it is known what its own sampler draws; returns a notice."""
    batches: Any = loader.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else None
    shuffled = type(sampler) is RandomSampler
    known = shuffled or type(sampler) is SequentialSampler
    # A RandomSampler may draw something else than each sample once.
    if not known or getattr(sampler, "replacement", False) or len(sampler) != len(sampler.data_source):
        unknown = batches if sampler is None else sampler
        return (
            f"Each of the {ranks} ranks gets whatever its own {type(unknown).__name__} draws, for how to share that "
            "out is not known: if it does not take the rank into account, give the DataLoader a DistributedSampler; "
            "switchable(…, shard=False) if this is meant."
        )
    share = _RankSampler(sampler.data_source, ranks, rank, shuffle=shuffled, drop_last=batches.drop_last)
    # Past DataLoader's own refusal of new samplers: nothing of this loader, which is our copy, has been drawn yet.
    if loader.sampler is sampler:
        vars(loader)["sampler"] = share
    vars(loader)["batch_sampler"] = BatchSampler(share, batches.batch_size, batches.drop_last)
    return (
        f"The samples are shared out among {ranks} ranks as by a DistributedSampler: rank {rank} gets {len(share):,} "
        f"of {len(sampler.data_source):,} per epoch{', shuffled by seed 0 and epoch' if shuffled else ''}; "
        "switchable(…, shard=False) gives each rank all of them."
    )


def _shares_out(sampler: Any) -> bool:
    """Return whether a sampler takes the part of one rank by itself."""
    return issubclass(type(sampler), DistributedSampler) or any(
        attribute(sampler, f"{prefix}{name}", _NONE) is not _NONE for name in _OF_RANKS for prefix in ("", "_")
    )


def _inwards(sampler: Any) -> Iterator[Any]:
    """A batch sampler and the samplers that it wraps."""
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        yield sampler
        seen.add(id(sampler))
        inner = attribute(sampler, "sampler")
        sampler = attribute(sampler, "batch_sampler") if inner is None else inner
