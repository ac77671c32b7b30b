"""Sharing a loader's samples out among the ranks of a process group, as torch's DistributedSampler does.

A DataLoader over a plain sampler gives every rank all samples, in the same order where the ranks are seeded alike.
Lightning and accelerate replace the sampler of every DataLoader for that reason, and cannot for a switchable loader;
so it is done here, as they do it, and said.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

log = logging.getLogger(__name__)

# What samplers that take a part of the samples call their part: torch's and timm's, accelerate's, and others'.
_OF_RANKS = ("num_replicas", "num_processes", "num_shards", "world_size", "rank", "process_index")


class RankSampler(DistributedSampler[int]):
    """A DistributedSampler that is told its epoch by the loader, unless somebody else has told it one."""

    told = False  # by somebody else, for the epoch that begins next

    def set_epoch(self, epoch: int) -> None:
        """As of DistributedSampler; holds for the epoch that begins next."""
        super().set_epoch(epoch)
        self.told = True

    def __iter__(self) -> Iterator[int]:
        self.told = False
        return super().__iter__()


class Sharding:
    """Shares the samples of one DataLoader out as soon as there is a process group of several ranks.

    Args:
        loader: whose sampler is replaced, in place.
        wanted: whether that is wanted; if not, nothing is ever done or said.
    """

    def __init__(self, loader: DataLoader[Any], *, wanted: bool) -> None:
        self._loader = loader
        self._settled = not wanted

    def settle(self) -> str | None:
        """Look for a process group; cheap, to be called before the sampler is used in any way.

        Returns:
            What was done, or why it was not, as a sentence: once, when a group of several ranks is first seen, and
            not where the loader's own sampler shares out already. The first rank's process logs it as a warning.
        """
        if self._settled or not (dist.is_available() and dist.is_initialized()):
            return None
        rank, ranks = dist.get_rank(), dist.get_world_size()
        if ranks == 1:
            return None
        self._settled = True
        if any(_shares_out(sampler) for sampler in _inwards(self._loader.batch_sampler)):
            return None
        said = _shard(self._loader, rank, ranks)
        log.log(logging.INFO if rank else logging.WARNING, "%s", said)
        return said


def tell_epoch(loader: DataLoader[Any], epoch: int, *, anew: bool = False) -> None:
    """Tell a sampler of ours its epoch, unless it was told one since the last epoch began.

    Args:
        loader: that may have one.
        epoch: that begins next.
        anew: whether what it was told before counts for nothing, as where a state has been loaded.
    """
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if type(sampler) is RankSampler and (anew or not sampler.told):
        sampler.set_epoch(epoch)
        sampler.told = False


def _shard(loader: DataLoader[Any], rank: int, ranks: int) -> str:
    """Put a sampler for this rank into a loader, if it is known what its own one draws. Returns what to say."""
    batches: Any = loader.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else None
    shuffled = type(sampler) is RandomSampler
    if sampler is None or not (shuffled or type(sampler) is SequentialSampler) or _draws_otherwise(sampler):
        unknown = batches if sampler is None else sampler
        return (
            f"Each of the {ranks} ranks gets whatever its own {type(unknown).__name__} draws, for how to share that "
            "out is not known: if it does not take the rank into account, give the DataLoader a DistributedSampler; "
            "switchable(…, shard=False) says that this is meant."
        )
    share = RankSampler(sampler.data_source, ranks, rank, shuffle=shuffled, drop_last=batches.drop_last)
    # Past DataLoader's own refusal of new samplers: nothing of this loader, which is our copy, has been drawn yet.
    if loader.sampler is sampler:
        vars(loader)["sampler"] = share
    vars(loader)["batch_sampler"] = BatchSampler(share, batches.batch_size, batches.drop_last)
    return (
        f"The samples are shared out among {ranks} ranks as by a DistributedSampler: rank {rank} gets {len(share):,} "
        f"of {len(sampler.data_source):,} per epoch{', shuffled by seed 0 and epoch' if shuffled else ''}; "
        "switchable(…, shard=False) gives each rank all of them."
    )


def _draws_otherwise(sampler: Any) -> bool:
    """Whether a RandomSampler draws something else than each sample once."""
    return bool(getattr(sampler, "replacement", False)) or len(sampler) != len(sampler.data_source)


def _shares_out(sampler: Any) -> bool:
    """Whether a sampler takes the part of one rank by itself."""
    return isinstance(sampler, DistributedSampler) or any(
        hasattr(sampler, name) or hasattr(sampler, f"_{name}") for name in _OF_RANKS
    )


def _inwards(sampler: Any) -> Iterator[Any]:
    """A batch sampler and the samplers that it wraps."""
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        yield sampler
        seen.add(id(sampler))
        inner = getattr(sampler, "sampler", None)
        sampler = getattr(sampler, "batch_sampler", None) if inner is None else inner
