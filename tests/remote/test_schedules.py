"""Whatever is done to a loader that works on a cluster, and to the cluster, at whatever moment: the plan is delivered.

By default 50 schedules, always the same; with SCHEDULES=long 1,000, others each time, whose seed is printed. In each a
worker may be killed. Then workers are killed one after the other, 3 or 1,000 (or KILLS). The last part lets a node
vanish and another one join between the switches of a longer loop.
"""

from __future__ import annotations

import os
import random
import re
import time
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from kernel_monitor.loaders import SwitchableLoader

from ..loaders.conftest import violent
from ..loaders.switching.machine import Machine
from ..loaders.switching.reals import RealStage
from ..loaders.switching.schedule import Config, Step, Totals
from ..loaders.switching.test_state_machine import Kinds, configs, covers, effort, plants, play, samples, steps, turns
from ..loaders.switching.traced import TRACED
from .conftest import Make, RunningCluster, until

__all__ = ["samples"]  # a fixture

BACKENDS = ("torchvision", "ray", "synthetic")
MOMENTS = ("interrupt", "interrupt", "kill", "ray", "torchvision", "ray", "ray", "synthetic", "workers=1", "workers=3")


class RemoteStage(RealStage):
    """One schedule's, with a cluster. `kills`: at most so many workers, as a new one takes seconds to start."""

    def __init__(self, cluster: RunningCluster, kills: int, *args: Any) -> None:
        super().__init__(*args)
        self.cluster = cluster
        self.kills = kills

    def _happen(self, what: str, loader: SwitchableLoader) -> None:
        if what != "kill":
            super()._happen(what, loader)
        elif self.kills:
            self.kills -= 1
            self.cluster.kill_worker()


@violent
@pytest.mark.timeout(1800)
def test_schedules(
    quick: RunningCluster,
    samples: Kinds,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    schedules = st.tuples(
        configs(("photos", *TRACED)), steps(BACKENDS, plants(12, MOMENTS), turns({"workers": (1, 2, 4)}))
    )
    killed: list[int] = []
    most = None if effort().long else 4

    def one(config: Config, todo: list[Step], totals: Totals) -> None:
        allowed = 2 if most is None else int(sum(killed) < most)
        stage = RemoteStage(quick, allowed, config, samples[config.kind])
        try:
            Machine(config, stage, totals).play(todo)
        finally:
            stage.close()
            killed.append(allowed - stage.kills)

    with capsys.disabled():
        totals = play(50, 1_000, "on a cluster", schedules, one)
        print(f"{sum(killed)} workers killed")
    if most is None:
        covers(totals, ("torchvision", "ray"), 1)
    assert sum(killed) >= (4 if most else 100)
    assert min(totals.switches, totals.interrupts, totals.knobs, *totals.decoders.values()) > 0


def test_kills(quick: RunningCluster, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker is killed as soon as there are two, at any moment of a batch; every epoch is delivered once, as planned.

    A batch whose workers were killed three times is left to `torchvision`: then the loop is sent back to `ray`.
    """
    wanted = effort()
    seed, kills = wanted.seed or 3, int(os.environ.get("KILLS") or (1_000 if wanted.long else 3))
    rng, killed, epochs, given_up, delivered = random.Random(seed), 0, 0, 0, 0
    loader = make()
    expected = list(loader)
    loader.switch("ray")
    while killed < kills:
        epochs += 1
        loader.set_epoch(0)
        for batch, other in zip(loader, expected, strict=True):
            assert torch.equal(batch[0], other[0])
            time.sleep(rng.uniform(0, 0.1))
            workers = quick.workers()
            if killed < kills and len(workers) > 1 and loader.backend == "ray":
                workers[rng.randrange(len(workers))].kill()
                killed += 1
        state = loader.state()
        assert (state["lost"], state["doubled"], state["samples"]) == (0, 0, 120), state["status"]
        delivered += loader.decoded().get("ray", 0)
        if loader.backend != "ray" and state["wanted"] is None:
            assert "workers ended while they computed" in state["status"]
            given_up += 1
            loader.switch("ray")
    with capsys.disabled():
        print(f"seed {seed}: {killed} workers killed in {epochs} epochs, of which {given_up} ended on torchvision")
    assert delivered > 60
    assert given_up < epochs / 10 + 1


def test_switches_while_nodes_come_and_go(quick: RunningCluster, make: Make) -> None:
    """As many rounds as are usual, or 20 in the long run."""
    wanted = effort()
    seed = wanted.seed or 3
    rng, rounds = random.Random(seed), 20 if wanted.long else 1
    print(f"seed {seed}")
    for number in range(rounds):
        torch.manual_seed(number)
        expected = list(make(shuffle=True))
        torch.manual_seed(number)
        loader = make(shuffle=True)
        loader.switch("ray")
        batches, gone = [], ""
        for place, batch in enumerate(loader):
            batches.append(batch)
            if place == 5:
                until(lambda: any(node.workers for node in loader.nodes), loader)  # noqa: B023
                gone = next(node.id for node in loader.nodes if node.workers)
                quick.remove(gone)
            if place % 8 == 7:
                loader.switch(rng.choice(("ray", "torchvision")))
            if place % 8 == 2:
                loader.set(workers=rng.randint(1, 3))
                assert loader.decoded()["ray"] > 0
        until(lambda: not next(node for node in loader.nodes if node.id == gone).alive)  # noqa: B023
        assert re.search(r"nodes? (is|are) gone", loader.backends["ray"].note or "")
        quick.add()
        state = loader.state()
        assert (state["lost"], state["doubled"], state["samples"]) == (0, 0, 120), state["status"]
        assert all(torch.equal(one[0], other[0]) for one, other in zip(batches, expected, strict=True))
        until(lambda: sum(node.alive for node in loader.nodes) == 3)  # noqa: B023
        loader.release()
