"""A model of what a loader promises, played against a loader by schedules of what people and machines do to it.

A schedule is a configuration and a list of steps. After each step, what was delivered must be what plain torch would
have delivered from the same generators, less the files that were skipped, whatever was toggled, turned, interrupted,
saved or released when. Two stages play them: in-process engines (`fakes`), and real workers with DALI (`reals`).
"""

from __future__ import annotations

import copy
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from kernel_monitor.errors import MonitorError, SampleError
from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.loaders.engines.synthetic import NAME as SYNTHETIC
from kernel_monitor.loaders.switching.epoch import EpochIterator

from .schedule import PATIENCE, Batches, Config, PlannedFailure, Run, Saved, Stage, Step, Totals
from .traced import SEED


class Machine:
    """Plays one schedule."""

    def __init__(self, config: Config, stage: Stage, totals: Totals) -> None:
        self.config = config
        self.stage = stage
        self.totals = totals
        self.runs: list[Run] = []
        self.newest: Run | None = None
        self.saved: Saved | None = None
        self.loaded: Saved | None = None
        self.loaders: list[SwitchableLoader] = []
        self.restart()

    def play(self, steps: list[Step]) -> None:
        """Play the steps, then bring everything to its end, and see that a whole epoch follows."""
        try:
            for step in steps:
                getattr(self, step.what)(*step.args)
                self.check()
            for run in list(self.runs):
                if run in self.runs:
                    self.finish_run(run)
            self.stage.clear()
            self.settle()
            self.begin()
            self.finish_run(self.runs[-1])
            self.check()
            self.totals.switches += sum(len(loader.history) for loader in self.loaders)
        finally:
            self.stage.clear()
            self.runs.clear()
            for loader in self.loaders:
                loader.release()
        self.totals.schedules += 1

    # Steps

    def restart(self) -> None:
        """As in a new process: another loader of the same kind, and other generators."""
        self.stage.clear()
        self.runs.clear()
        torch.manual_seed(1000 + len(self.loaders))
        random.seed(len(self.loaders))
        self.generator = torch.Generator().manual_seed(77)
        self.epoch = 0
        self.newest, self.loaded = None, None
        config = self.config
        data = Subset(self.stage.dataset, range(config.size))
        self.sampler = self._sampler(config, self.generator)
        options: dict[str, Any] = {"num_workers": config.workers, "generator": self._explicit(self.generator)}
        options["collate_fn"] = self.stage.collate
        if config.sampler == "batches":
            batches = BatchSampler(self.sampler, config.batch_size, config.drop_last)
            wrapped: DataLoader[Any] = DataLoader(data, batch_sampler=batches, **options)
        else:
            options |= {"batch_size": config.batch_size, "drop_last": config.drop_last}
            wrapped = DataLoader(data, sampler=self.sampler, **options)
        self.loader = switchable(wrapped, seed=SEED, on_error="skip" if config.skip else "raise")
        self.loaders.append(self.loader)

    def begin(self) -> None:
        """`iter(loader)`. An iteration that has drawn nothing yet can then not be foretold any more."""
        self.unforetold()
        loaded, self.loaded = self.loaded, None
        at = raised = 0
        rough = False
        if loaded is None:
            expected: Batches | None = self.foretell(torch.get_rng_state(), self.generator.get_state())
        else:
            self.totals.resumed += 1
            at, raised, rough = loaded.at, loaded.raised, loaded.rough
            expected = loaded.expected
            if not loaded.begun:
                expected = self.foretell(loaded.torch_state, loaded.own_state)
        epoch = loaded.epoch if loaded is not None and loaded.begun else self.epoch
        try:
            with self.stage.asking(beginning=True):
                iterator = iter(self.loader)
        except (PlannedFailure, KeyboardInterrupt):  # an iteration that did not begin never was
            self.totals.errors += 1
            self.loaded = loaded
            return
        except MonitorError:  # what was drawn between two other iterations' draws cannot be drawn again
            assert loaded is not None
            assert loaded.expected is None
            assert loaded.begun
            self.loader.load_state_dict({})
            return
        record = self.loader.newest
        assert record is not None
        assert record.number == epoch
        assert isinstance(iterator, EpochIterator)
        self.newest = Run(iterator, record, expected, expected, at, raised, rough=rough)
        self.epoch = epoch + 1
        self.runs.append(self.newest)
        del self.runs[:-2]

    def next(self, which: int, count: int) -> None:
        if self.runs:
            run = self.runs[which % len(self.runs)]
            for _ in range(count):
                if not self.ask(run):
                    break

    def finish(self, which: int) -> None:
        if self.runs:
            self.finish_run(self.runs[which % len(self.runs)])

    def drop(self, which: int) -> None:
        """`break`, or an error in the loop's body: the iteration is dropped where it is."""
        if self.runs:
            del self.runs[which % len(self.runs)]

    def switch(self, target: str) -> None:
        if self.stage.offers(self.loader, target):
            self.loader.switch(target)

    def settle(self) -> None:
        """Until no engine is being prepared. Not for `synthetic`, which waits for batches, nor for one that was asked
        for before the first iteration, which prepares it.
        """
        deadline = time.monotonic() + PATIENCE
        while (wish := self.loader.switch_state.preparing) is not None:
            if wish.target == SYNTHETIC or wish is self.loader.preparation.deferred:
                return
            assert time.monotonic() < deadline, "an engine is being prepared for ever"
            time.sleep(0.0005)

    def turn(self, knob: str, value: int) -> None:
        if self.stage.offers(self.loader, f"{knob}={value}"):
            self.loader.set(**{knob: value})
        self.totals.knobs += 1

    def plant(self, after: int, what: str) -> None:
        self.stage.plant(after, what, self.loader)

    def burst(self, after: int, what: str, gap: int, then: str) -> None:
        """Two things, one soon after the other: what goes wrong while something else is put right."""
        self.plant(after, what)
        self.plant(after + gap, then)

    def release(self) -> None:
        self.loader.release()

    def set_epoch(self, epoch: int) -> None:
        self.unforetold()
        self.loader.set_epoch(epoch)
        self.epoch = epoch

    def save(self) -> None:
        state, newest = self.loader.state_dict(), self.newest
        own = self.generator.get_state()
        if self.loaded is not None:
            self.saved = copy.copy(self.loaded)
        elif newest is None or newest.record.finished:
            self.saved = Saved(state, self.epoch, None, 0, False, 0, False, torch.get_rng_state(), own)
        else:
            # Where nothing has been drawn yet, the generators of the beginning count.
            expected = newest.foretold if newest.undrawn else newest.expected
            number = newest.record.number
            known = (newest.at, True, newest.raised, newest.rough)
            self.saved = Saved(state, number, expected, *known, torch.get_rng_state(), own)
        self.saved.state = state

    def load(self) -> None:
        if self.saved is not None:
            self.unforetold()  # the samplers are told their epoch
            self.loader.load_state_dict(self.saved.state)
            self.loaded = self.saved
            self.epoch = self.saved.epoch

    def resume(self) -> None:
        """Load what was saved last and go on from it."""
        self.load()
        self.begin()

    def unforetold(self) -> None:
        """Iterations that have drawn nothing yet may now draw something else than was foretold, as with torch."""
        for run in self.runs:
            if run.undrawn:
                run.expected = None

    # What must hold

    def check(self) -> None:
        """After each step: the plan is torch's, what was answered is as far as the model, nothing lost or doubled."""
        for run in self.runs:
            record = run.record
            assert (record.lost, record.doubled) == (0, 0)
            assert record.answered == run.at
            if run.expected is not None:
                drawn = [record.batch(number).tolist() for number in range(len(record.ends))]
                assert drawn == run.expected[: len(drawn)]
        for counts in self.loader.epochs():
            assert (counts["lost"], counts["doubled"]) == (0, 0)
        self.loader.state()

    def ask(self, run: Run) -> bool:
        """One `next()`. Returns whether more may come."""
        for other in self.runs:
            if other is not run and other.undrawn:  # RandomSampler draws once more at its very end
                other.expected = None
        record, replaced = run.record, run.record.replaced
        batch: Any = None
        error: Exception | None = None
        try:
            with self.stage.asking():
                batch = next(run.iterator)
        except StopIteration:
            self.ended(run)
            return False
        except (SampleError, PlannedFailure) as raised:
            error = raised
        except KeyboardInterrupt:
            # It may have come after the batch was handed out and before the loop had it.
            self.totals.interrupts += 1
            if self.stage.anywhere:  # as with any iterator, only a new one can be relied on
                self.runs.remove(run)
                run.at, run.rough = record.answered, True
                return False
            while run.at < record.answered:
                planned = self.answer(run)
                if not self.config.skip and record.replaced == replaced and not self.config.bad.isdisjoint(planned):
                    run.raised += len(planned)
            return True
        assert not run.ended
        if isinstance(error, PlannedFailure):
            self.totals.errors += 1
            self.skip_to(run, record.answered)
            return True
        self.skip_to(run, record.answered - 1)
        before = Counter(index for number in range(run.at) for index in record.batch(number).tolist())
        planned = self.answer(run)
        unreadable = [index for index in planned if index in self.config.bad]
        if isinstance(error, SampleError):
            self.totals.errors += 1
            assert not self.config.skip
            assert error.index == unreadable[0]
            run.raised += len(planned)
        elif record.replaced > replaced:
            assert record.replaced - replaced == len(planned)
            self.totals.replaced += len(planned)
        else:
            assert self.config.skip or not unreadable
            assert self.stage.labels(batch) == [index for index in planned if index not in unreadable]
            drawn = [(index, before[index] + planned[:place].count(index)) for place, index in enumerate(planned)]
            good = [each for each in drawn if each[0] not in unreadable]
            self.stage.compare(batch, record.number, good)
            self.totals.skipped += len(unreadable)
            self.totals.batches += 1
        return True

    def answer(self, run: Run) -> list[int]:
        planned = run.record.batch(run.at).tolist()
        if run.expected is not None:
            assert planned == run.expected[run.at]
        run.at += 1
        return planned

    def skip_to(self, run: Run, number: int) -> None:
        """Batches that did not come: every sample in them was skipped."""
        assert number >= run.at
        while run.at < number:
            assert self.config.skip
            planned = self.answer(run)
            assert planned
            assert set(planned) <= self.config.bad

    def ended(self, run: Run) -> None:
        record = run.record
        assert record.finished
        self.skip_to(run, len(record.ends))
        if run.expected is not None:
            assert run.at == len(run.expected)
        assert (record.lost, record.doubled) == (0, 0)
        counted = record.samples + record.skipped + record.replaced + run.raised
        assert run.rough or counted == len(record.indices)
        if record.samples_planned is not None:
            assert record.planned == len(record.indices)
        assert run.rough or sum(record.decoded.values()) == record.samples
        if not run.ended:
            self.totals.epochs += 1
            for name, count in record.decoded.items():
                self.totals.decoders[name] = self.totals.decoders.get(name, 0) + count
        run.ended = True

    def finish_run(self, run: Run) -> None:
        for _ in range(1000):
            if not self.ask(run):
                assert run not in self.runs or not self.ask(run), "a batch comes after the end"
                return
        raise AssertionError("the iteration does not end")

    # What plain torch does

    def foretell(self, torch_state: torch.Tensor, own_state: torch.Tensor) -> Batches:
        """What a plain DataLoader delivers from generators in these states; leaves the process's as they are."""
        config, own, before = self.config, torch.Generator(), torch.get_rng_state()
        own.set_state(own_state)
        sampler = self._sampler(config, own)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(self.sampler.epoch)
        options: dict[str, Any] = {"generator": self._explicit(own), "collate_fn": list}
        plain: DataLoader[Any] = DataLoader(
            range(config.size),  # type: ignore[arg-type]
            batch_sampler=BatchSampler(sampler, config.batch_size, config.drop_last),
            **options,
        )
        torch.set_rng_state(torch_state)
        try:
            return list(plain)
        finally:
            torch.set_rng_state(before)

    def _explicit(self, generator: torch.Generator) -> torch.Generator | None:
        return generator if self.config.sampler == "generator" else None

    @staticmethod
    def _sampler(config: Config, generator: torch.Generator) -> Any:
        data: Any = range(config.size)
        if config.size == 0 or config.sampler == "sequential":
            return SequentialSampler(data)
        made: dict[str, Callable[[], Any]] = {
            "shuffle": lambda: RandomSampler(data),
            "batches": lambda: RandomSampler(data),
            "generator": lambda: RandomSampler(data, generator=generator),
            "replacement": lambda: RandomSampler(data, True, config.size + 3),
            "weighted": lambda: WeightedRandomSampler([1.0 + index for index in data], config.size),
            "subset": lambda: SubsetRandomSampler(data[::2], generator),
            "distributed": lambda: DistributedSampler(data, 2, 1, seed=4),
        }
        return made[config.sampler]()
