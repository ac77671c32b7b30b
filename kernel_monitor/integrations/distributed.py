"""Safe access to the user's sampler, and sharing of its samples among ranks in the way of DistributedSampler."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from ..errors import MonitorError

# ---- Reading the user's sampler, and a proxy of it that no other DataLoader can iterate.

_ITERATORS = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader")  # modules of DataLoaders' iterators


def attribute(sampler: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of a sampler; `default` if it is missing, or if the sampler's class raises."""
    try:
        return getattr(sampler, name, default)
    except Exception:  # noqa: BLE001 - the user's own class; plain torch would not read this attribute
        return default


class SamplerProxy:
    """A proxy of the user's batch sampler, with the same class (to `isinstance`), attributes, length and batches."""

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
        # This raises at the first batch: torch's iterators cannot be cleaned up if `iter` itself raises.
        if _in_dataloader():
            raise MonitorError(
                f"Another DataLoader was made from the attributes of the switchable loader {self._name}: it would "
                "load on its own, out of sight of the monitor and out of reach of every switch. Use the loader itself, "
                "loader.skip(n) to begin after its first n batches, or make the other DataLoader a batch sampler of "
                "its own."
            )
        yield from self._sampler

    def __eq__(self, other: object) -> bool:
        return bool(self._sampler == (other._sampler if type(other) is SamplerProxy else other))

    def __hash__(self) -> int:
        return hash(self._sampler)

    def __repr__(self) -> str:
        return repr(self._sampler)

    def __reduce__(self) -> Any:
        return _unchanged, (self._sampler,)


def _unchanged(sampler: Any) -> Any:
    return sampler


def _in_dataloader() -> bool:
    """Return whether a DataLoader's iterator is among the callers, at any depth: samplers may wrap samplers."""
    frame: Any = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_ITERATORS):
            return True
        frame = frame.f_back
    return False


# ---- Sharing a loader's samples among the ranks of a process group, as torch's DistributedSampler does.

log = logging.getLogger(__name__)

_NONE = object()  # marks a missing attribute
# Attributes of samplers that take one rank's share: those of torch and timm, of accelerate, and of others.
_OF_RANKS = ("num_replicas", "num_processes", "num_shards", "world_size", "rank", "process_index")


class _RankSampler(DistributedSampler[int]):
    """A DistributedSampler whose epoch the loader sets, unless the user or a framework has set it."""

    epoch_is_set = False  # the user or a framework has set the next epoch's number

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, as `DistributedSampler.set_epoch` does."""
        super().set_epoch(epoch)
        self.epoch_is_set = True

    def __iter__(self) -> Iterator[int]:
        self.epoch_is_set = False
        return super().__iter__()


class Sharding:
    """A one-time change of a DataLoader, in place: once there are several ranks, it gets a sampler for its rank."""

    def __init__(self, loader: DataLoader[Any], *, wanted: bool) -> None:
        self._loader = loader
        self._settled = not wanted

    def settle(self) -> str | None:
        """Share the samples if there is a process group now; cheap, to be called before any use of the sampler.

        Returns a notice on what was done, or why nothing was done: once, when a group of several ranks is first found,
        and not if the loader's own sampler shares already. Rank 0 logs the notice as a warning.
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
    """Set the number of the next epoch of a `_RankSampler`, unless others have set it since the last epoch began.

    With `anew` it is set in any case, as after a state was loaded.
    """
    sampler = attribute(loader.batch_sampler, "sampler")
    if type(sampler) is _RankSampler and (anew or not sampler.epoch_is_set):
        sampler.set_epoch(epoch)
        sampler.epoch_is_set = False


def shares_out(loader: DataLoader[Any]) -> bool:
    """Return whether a loader's sampler, or a sampler inside it, takes one rank's share of the samples."""
    return any(_shares_out(sampler) for sampler in _inwards(loader.batch_sampler))


def _shard(loader: DataLoader[Any], rank: int, ranks: int) -> str:
    """Give a loader a sampler for this rank, if its own sampler is one of torch's basic ones; return a notice."""
    batches: Any = loader.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else None
    shuffled = type(sampler) is RandomSampler
    known = shuffled or type(sampler) is SequentialSampler
    # A RandomSampler may be set to draw with replacement, or another number of samples.
    if not known or getattr(sampler, "replacement", False) or len(sampler) != len(sampler.data_source):
        unknown = batches if sampler is None else sampler
        return (
            f"Each of the {ranks} ranks gets whatever its own {type(unknown).__name__} draws, for how to share that "
            "out is not known: if it does not take the rank into account, give the DataLoader a DistributedSampler; "
            "switchable(…, shard=False) if this is meant."
        )
    share = _RankSampler(sampler.data_source, ranks, rank, shuffle=shuffled, drop_last=batches.drop_last)
    # `vars` bypasses DataLoader's refusal of new samplers: this loader is our copy, of which nothing was drawn yet.
    if loader.sampler is sampler:
        vars(loader)["sampler"] = share
    vars(loader)["batch_sampler"] = BatchSampler(share, batches.batch_size, batches.drop_last)
    return (
        f"The samples are shared out among {ranks} ranks as by a DistributedSampler: rank {rank} gets {len(share):,} "
        f"of {len(sampler.data_source):,} per epoch{', shuffled by seed 0 and epoch' if shuffled else ''}; "
        "switchable(…, shard=False) gives each rank all of them."
    )


def _shares_out(sampler: Any) -> bool:
    """Return whether this sampler takes one rank's share of the samples."""
    return issubclass(type(sampler), DistributedSampler) or any(
        attribute(sampler, f"{prefix}{name}", _NONE) is not _NONE for name in _OF_RANKS for prefix in ("", "_")
    )


def _inwards(sampler: Any) -> Iterator[Any]:
    """Yield a batch sampler and the samplers that it wraps."""
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        yield sampler
        seen.add(id(sampler))
        inner = attribute(sampler, "sampler")
        sampler = attribute(sampler, "batch_sampler") if inner is None else inner
