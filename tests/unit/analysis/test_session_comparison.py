"""Two loops compared: what is called slower, what is within the spread, and what cannot be said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernel_monitor.analysis.session_comparison import FEWEST_STEPS, Comparison, Side, compare, interval, status, table
from kernel_monitor.errors import MonitorError
from kernel_monitor.store import Snapshot
from tests.unit.checks import contains, not_none
from tests.unit.sessions import Run, build, switch


def session(step: float = 0.1, *, noise: float = 0.02, steps: int = 300, seed: int = 0, images: int = 32) -> Snapshot:
    """Steps of `step` s with so much noise (share of it), every tenth half as long again."""
    random = np.random.default_rng(seed)
    scale = 1 + noise * random.standard_normal(steps + 50)
    scale[::10] *= 1.5
    run = Run(0.5, 0.5 + 2 * step * (steps + 50), step=lambda k: step * float(scale[k % len(scale)]), images=images)
    return build(2 * step * (steps + 50) + 1, 0.5, runs=[Run(**{**run.__dict__, "steps": steps})])


def sides(found: Comparison) -> tuple[Side, Side]:
    return not_none(found.before), not_none(found.after)


def test_the_same_loop_is_the_same() -> None:
    (found,) = compare(session(seed=1), session(seed=2), allowed=0.05)
    assert found.outcome == "within"
    assert abs(found.slower) < 0.02
    assert found.low < 0 < found.high
    contains(found.sentence, "no difference beyond the spread", "300 and 300 steps")
    assert status([found]) == 0


@pytest.mark.parametrize(
    ("slower", "allowed", "outcome", "says"),
    [
        (1.20, 0.05, "slower", "slower than the 5 % that are allowed"),
        (1.20, 0.30, "within", "slower, and within the 30 % that are allowed"),
        (1.20, None, "within", ": slower."),
        (0.80, 0.05, "faster", "faster"),
    ],
)
def test_a_clear_difference(slower: float, allowed: float | None, outcome: str, says: str) -> None:
    (found,) = compare(session(seed=3), session(0.1 * slower, seed=4), allowed=allowed)
    assert found.outcome == outcome, found.sentence
    assert says in found.sentence
    assert found.slower == pytest.approx(slower - 1, abs=0.03)
    assert found.low < slower - 1 < found.high
    assert status([found]) == (1 if outcome == "slower" else 0)


def test_a_difference_within_the_spread_is_not_called_slower() -> None:
    (found,) = compare(
        session(noise=0.2, steps=30, seed=11), session(0.112, noise=0.2, steps=30, seed=12), allowed=0.01
    )
    assert found.slower > 0.01
    assert found.outcome == "within", found.sentence
    assert status([found]) == 0


def test_false_alarms_are_rare_and_real_ones_found() -> None:
    alarms = found = 0
    for seed in range(40):
        same = compare(session(seed=seed, steps=120), session(seed=1000 + seed, steps=120), allowed=0.0)
        alarms += same[0].outcome == "slower"
        worse = compare(session(seed=seed, steps=120), session(0.115, seed=2000 + seed, steps=120), allowed=0.05)
        found += worse[0].outcome == "slower"
    assert alarms <= 2
    assert found >= 35


def test_it_is_the_time_per_image() -> None:
    (found,) = compare(session(images=32), session(0.2, images=64), allowed=0.05)
    assert found.slower == pytest.approx(0, abs=1e-6)
    assert "an image takes" in found.sentence
    (found,) = compare(session(images=0), session(0.2, images=0), allowed=0.05)
    assert found.slower == pytest.approx(1, abs=1e-6)
    assert "a step takes 100.0 % longer" in found.sentence
    assert found.after is not None
    assert math.isnan(found.after.rate)


def test_too_few_steps_say_nothing() -> None:
    (found,) = compare(session(steps=FEWEST_STEPS - 1), session(0.5), allowed=0.05)
    assert found.outcome == "unknown"
    assert "too few to compare" in found.sentence
    assert status([found]) == 3
    assert compare(build(5), build(5)) == ()
    assert status([]) == 3
    assert "nothing to compare" in table([])


def test_loaders_are_matched_by_name() -> None:
    def two(first: str, second: str) -> Snapshot:
        runs = [Run(0, 20, loader="loader-1"), Run(20, 60, step=0.2, loader="loader-2")]
        return build(60, runs=runs, loaders={"loader-1": first, "loader-2": second})

    before, after = two("train", "valid"), two("valid", "train")
    found = {one.loader: one.slower for one in compare(before, after)}
    assert found == pytest.approx({"train": 1.0, "valid": -0.5}, abs=1e-6)
    (only,) = compare(before, after, loader="valid")
    assert only.loader == "valid"
    with pytest.raises(MonitorError, match=r"A has no loader 'test'. Its loaders are: train, valid"):
        compare(before, after, loader="test")
    train, valid, other = compare(before, two("train", "other"))
    assert train.outcome != "unknown"
    assert "valid: only in A" in valid.sentence
    assert "other: only in B" in other.sentence
    assert status([train, valid, other]) == 0


def test_two_segments_of_one_session() -> None:
    runs = [Run(0, 30, step=0.1), Run(30.2, 60, step=0.05)]
    snapshot = build(60, runs=runs, events=[switch(30.3, "torchvision", "dali-cpu", asked=30.05)])
    (found,) = compare(snapshot, snapshot, keys=["train/1", "train/2"], allowed=0.05)
    assert found.outcome == "faster"
    assert found.slower == pytest.approx(-0.5, abs=0.01)
    assert [one.backend for one in sides(found)] == ["torchvision", "dali-cpu"]
    (same,) = compare(snapshot, snapshot, keys=["train/2"])
    assert same.slower == 0
    with pytest.raises(MonitorError, match=r"B has no segment 'train/9'\. Its segments are: train/1 \(torchvision, "):
        compare(snapshot, snapshot, keys=["train/1", "train/9"])


def test_replayed_batches_are_the_last_choice_and_told_of() -> None:
    runs = [Run(0, 10), Run(10.2, 60, step=0.05)]
    both = build(60, runs=runs, events=[switch(10.3, "torchvision", "synthetic", asked=10.05)])
    (found,) = compare(both, session(), allowed=0.05)
    assert found.before is not None
    assert found.before.backend == "torchvision"
    (told,) = compare(both, session(), keys=["train/2", "train/1"])
    assert told.caveats == ("A: its batches were replayed (synthetic)",)


def test_an_epoch_that_delivered_too_little_is_told_of() -> None:
    lacking = {"epoch": 1, "batches": 0, "planned": 3200, "samples": 0, "lost": 3200, "epochs": [], "ended": True}
    snapshot = build(60, runs=[Run(0, 40, epoch=0)], states=[lacking])
    (found,) = compare(snapshot, session())
    assert any("epoch" in caveat and caveat.startswith("A: ") for caveat in found.caveats), found.caveats


def test_prices() -> None:
    (found,) = compare(session(), session(0.05), prices=(3.6, 7.2))
    before, after = sides(found)
    assert after.cost == pytest.approx(before.cost, rel=0.02)
    assert before.cost == pytest.approx(1000 * 3.6 / 3600 * before.step / 1e3 / 32)
    assert "€" in table([found], "€")
    (free,) = compare(session(), session(), prices=(0.0, None))
    assert sides(free)[0].cost == 0
    assert "per 1,000" not in table(compare(session(), session()))


def test_the_interval_is_the_same_every_time_and_narrows_with_more_steps() -> None:
    random = np.random.default_rng(8)

    def steps(count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.stack([random.gamma(20, 0.005, count), np.full(count, 32.0)], axis=1)

    few, many = (steps(50), steps(50)), (steps(5000), steps(5000))
    assert interval(*few) == interval(*few)
    widths = [high - low for _, low, high in (interval(*few), interval(*many))]
    assert widths[1] < widths[0] / 5
