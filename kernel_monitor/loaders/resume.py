"""Save an epoch in its middle and go on from there, by the convention of torchdata's StatefulDataLoader.

A state does not hold the order but what it was drawn from. To resume, the order is drawn again from the generators'
states of then, no sample is computed, and a digest shows whether it came out as before. The process's own generators
stay as the training has left them. So what a data set draws for its samples is repeated where the plan seeds it, and
with `switchable(seeded=False)` it is not.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..errors import MonitorError, Refused
from ..integrations.distributed import attribute
from ..text import log_outside
from . import random_streams
from .plan import Cursor, EpochRecord, mark_plain
from .random_streams import Apart, Defaults, pack, unpack

VERSION = 1
_COUNTS = ("answered", "batches", "samples", "skipped", "replaced", "lost", "doubled")
log = logging.getLogger(__name__)

_NEEDED = {"version", "origin", "digest", "passed", "seed_given", *_COUNTS}


@dataclass(frozen=True)
class Origin:
    """The random generators of an epoch's order, as they were before the first draw."""

    defaults: Defaults  # states of the process's generators
    own: dict[str, str]  # states of the loader's own generators, packed, by place
    samplers: dict[str, Any]  # what the samplers' own `state_dict()` gave, by place
    epochs: dict[str, int]  # of the samplers, from `set_epoch`, by place
    seeded: bool  # whether the workers' base seed is drawn first, as torch does where it makes workers
    twice: bool  # whether the sampler's `__iter__` is called twice, as torch does where it has workers

    @classmethod
    def now(cls, loader: DataLoader[Any], *, kept: bool) -> Origin:
        """Return the generators as they are now. `kept`: no new workers are made next, so torch seeds none."""
        places = dict(random_streams.samplers(loader))
        return cls(
            Defaults.now(),
            {place: pack(generator.get_state()) for place, generator in random_streams.own(loader).items()},
            {place: state for place, sampler in places.items() if (state := _state_of(sampler)) is not None},
            _epochs(loader),
            seeded=not kept,
            twice=loader.num_workers > 0,
        )

    def plain(self) -> dict[str, Any]:
        """Return the same as texts and numbers, with the samplers' own states."""
        return {**copy.deepcopy(vars(self)), "defaults": self.defaults.plain()}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Origin:
        """Return the origin that `plain` gave."""
        return cls(**{**copy.deepcopy(plain), "defaults": Defaults.of(plain["defaults"])})

    def set_epochs(self, loader: DataLoader[Any]) -> None:
        for place, sampler in random_streams.samplers(loader):
            if place in self.epochs and hasattr(sampler, "set_epoch"):  # it may come with the process group
                sampler.set_epoch(self.epochs[place])

    def rewind(self, loader: DataLoader[Any]) -> None:
        """Put the loader's own generators and its samplers into these states; not the process's, and not epochs."""
        for place, generator in random_streams.own(loader).items():
            if place in self.own:
                generator.set_state(unpack(self.own[place]))
        for place, sampler in random_streams.samplers(loader):
            if place in self.samplers:
                sampler.load_state_dict(copy.deepcopy(self.samplers[place]))

    def same(self, other: Origin) -> bool:
        """Return whether both would draw the same numbers."""
        return self.own == other.own and self.defaults.same(other.defaults)


@dataclass(frozen=True)
class Order:
    """The beginning of an iteration: its batches, drawn as torch draws them."""

    batches: Iterator[Any]  # lists of indices, or of other keys
    origin: Origin  # what they are drawn from
    # a generator in the state from which torch would seed new workers; None where it would make none
    seeding: torch.Generator | None
    base_seed: int | None  # the number that torch draws to seed them, 63 bits; None where it draws none


class Resumption:
    """A loaded state, until the next iteration has gone on from it.

    Raises:
        MonitorError: it is not a state, or it is of a loader that delivers something else.
    """

    def __init__(self, state: Any, loader: DataLoader[Any]) -> None:
        if not isinstance(state, dict) or not state.keys() >= _NEEDED:
            raise MonitorError(
                "This is not the state of a switchable loader; give load_state_dict() what state_dict() returned."
            )
        if state["version"] != VERSION:
            raise MonitorError(
                f"The state has format {state['version']}, and this version of kernel-monitor reads {VERSION}; "
                "load it with the version that wrote it, or begin the epoch anew."
            )
        for what, mine in _shape(loader).items():
            if state[what] != mine:
                raise MonitorError(
                    f"The state was taken with {what.replace('_', ' ')} {state[what]}, and this loader has {mine}; "
                    "make the loader as it was, or begin the epoch anew."
                )
        self.origin = Origin.of(state["origin"])
        if set(self.origin.own) != set(random_streams.own(loader)):
            raise MonitorError(
                f"The state was taken with generators at {_places(self.origin.own)}, and this loader has them at "
                f"{_places(random_streams.own(loader))}; make the loader as it was, or begin the epoch anew."
            )
        self.state = copy.deepcopy(state)
        self.begun = bool(state["begun"])  # whether it is of an epoch under way; else the epoch is yet to begin
        self.epoch = int(state["epoch"])
        self.seed = int(state["seed"])
        self.seed_given = bool(state["seed_given"])  # whether that is of all epochs, not drawn for each iteration

    def begin(self, loader: DataLoader[Any]) -> Order:
        """Begin the order of then again."""
        # An epoch set since the state was loaded is meant for an epoch that is yet to begin.
        origin = self.origin if self.begun else replace(self.origin, epochs=_epochs(loader))
        origin.set_epochs(loader)
        origin.rewind(loader)
        if origin.defaults.same(Defaults.now()):
            return draw(loader, origin, again=True)
        apart = Apart(origin.defaults)
        with apart:
            order = draw(loader, origin, again=True)
        return replace(order, batches=apart.over(order.batches))

    def replay(self, cursor: Cursor) -> None:
        """Bring a new cursor to where the state was taken: drawn as far, and delivered as far.

        Raises:
            MonitorError: the sampler draws another order than it did.
        """
        cursor.replay(self.state["drawn"], self.state["answered"])
        record = cursor.record
        record.begin_after(self.state["passed"])
        if digest(record) != self.state["digest"]:
            raise Refused(
                f"Epoch {record.number} cannot be resumed: the sampler does not draw again what it drew before the "
                "state was taken. Let it draw from a torch.Generator that it keeps as an attribute, or give it "
                "state_dict() and load_state_dict(); or begin the epoch anew with load_state_dict({})."
            ) from cursor.failure
        for name in _COUNTS:
            setattr(record, name, self.state[name])
        for name, run in self.state["decoders"]:
            record.decoders.append(name)
            record.runs.append(run)
            record.decoded[name] = record.decoded.get(name, 0) + run


def save(
    loader: DataLoader[Any], record: EpochRecord, origin: Origin, seed: int, *, seed_given: bool, begun: bool
) -> dict[str, Any]:
    """Return the state of an epoch: where it has come to, and what its order is drawn from; see `Resumption`."""
    return {
        "version": VERSION,
        "epoch": record.number,
        "begun": begun,
        **{name: getattr(record, name) for name in _COUNTS},
        "passed": record.passed,
        "drawn": len(record.ends),
        "digest": digest(record),
        "decoders": [[name, run] for name, run in zip(record.decoders, record.runs, strict=True)],
        "seed": seed,
        "seed_given": seed_given,
        **_shape(loader),
        "origin": origin.plain(),
    }


def digest(record: EpochRecord) -> str:
    """128 bits of the batches drawn so far, as hexadecimal digits."""
    content = hashlib.blake2b(record.ends.tobytes(), digest_size=16)
    content.update(record.indices[: record.ends[-1] if record.ends else 0].tobytes())
    for key in record.keys:
        content.update(repr(_plain(key)).encode("utf-8", "backslashreplace"))
    return content.hexdigest()


def _plain(key: Any) -> Any:
    """A key as plain values, which are the same in another process; of other objects their type only."""
    if isinstance(key, str | bytes | int | float | None):
        return key
    if isinstance(key, list | tuple):
        return [_plain(inner) for inner in key]
    if isinstance(key, np.ndarray | np.generic | torch.Tensor):
        return key.tolist()
    return type(key).__qualname__


def draw(loader: DataLoader[Any], origin: Origin, *, again: bool = False) -> Order:
    """Begin an order: draws from torch's generators exactly what DataLoader.__iter__ draws, in its order."""
    sampler: Any = loader.batch_sampler
    try:
        batches = iter(sampler)
    except Exception as error:
        mark_plain(error)
        raise
    seeding = base_seed = None
    if origin.seeded:
        source = torch.default_generator if loader.generator is None else loader.generator
        seeding = torch.Generator(source.device)
        seeding.set_state(source.get_state())
        base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator))
        if origin.twice:
            batches = iter(sampler)
    return Order(_whole(batches, sampler) if again and origin.samplers else batches, origin, seeding, base_seed)


def _whole(rest: Iterator[Any], sampler: Any) -> Iterator[Any]:
    """An epoch from a sampler that was given its own state: where the state is of the end of the epoch before (as
    torchdata's StatefulDistributedSampler has it until its next epoch begins), nothing is left and the next one comes.
    """
    nothing = True
    for batch in rest:
        nothing = False
        yield batch
    if nothing:
        yield from sampler


def _shape(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return what must be the same for a state to make sense."""
    return {
        "length": len(loader.dataset),  # type: ignore[arg-type]
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
    }


def _state_of(sampler: Any) -> Any:
    """Return what a sampler keeps by its own `state_dict`; None where it has none, or its own code fails.

    Then the order is drawn again without it, and the digest shows whether it is the same.
    """
    if not (callable(attribute(sampler, "state_dict")) and callable(attribute(sampler, "load_state_dict"))):
        return None
    try:
        return copy.deepcopy(sampler.state_dict())
    except Exception:  # noqa: BLE001 - plain torch would not have called it
        log_outside(log, "%s cannot be saved", type(sampler).__name__, level=logging.INFO)
        return None


def _epochs(loader: DataLoader[Any]) -> dict[str, int]:
    """The epochs of the samplers that have `set_epoch`."""
    return {
        place: epoch
        for place, sampler in random_streams.samplers(loader)
        if callable(attribute(sampler, "set_epoch")) and type(epoch := attribute(sampler, "epoch")) is int
    }


def _places(found: dict[str, Any]) -> str:
    return ", ".join(sorted(found)) or "none"
