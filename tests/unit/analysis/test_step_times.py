"""Percentiles are numpy's; histograms count every sample once; their distance is what is documented."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernel_monitor.analysis.step_times import BINS, distance, histogram, quantiles


@pytest.mark.parametrize("count", [1, 2, 3, 50, 999])
def test_percentiles_are_numpys(count: int) -> None:
    values = np.random.default_rng(count).gamma(2.0, 20.0, count)
    found = quantiles(values)
    expected = np.percentile(values, (50, 90, 95, 99))
    np.testing.assert_allclose((found.p50, found.p90, found.p95, found.p99), expected, rtol=1e-12)
    assert (found.count, found.min, found.max) == (count, values.min(), values.max())


def test_what_is_no_number_does_not_count() -> None:
    found = quantiles([1.0, math.nan, 3.0, math.inf])
    assert (found.count, found.min, found.p50, found.max) == (2, 1.0, 2.0, 3.0)
    empty = quantiles([math.nan])
    assert empty.count == 0
    assert all(math.isnan(value) for value in (empty.min, empty.p50, empty.p90, empty.p95, empty.p99, empty.max))


def test_a_histogram_has_every_sample_in_one_bin_of_two_per_cent() -> None:
    values = np.random.default_rng(3).uniform(0, 100, 1000)
    expected, _ = np.histogram(values, bins=BINS, range=(0, 100))
    np.testing.assert_allclose(histogram(values), expected / 1000)
    assert histogram([]) == histogram([math.nan]) == ()


@pytest.mark.parametrize(("value", "place"), [(0, 0), (1.99, 0), (2, 1), (97.9, 48), (98, 49), (100, 49), (101, 49)])
def test_bins_hold_their_lower_edge_and_the_last_one_holds_100(value: float, place: int) -> None:
    assert histogram([value]).index(1.0) == place


def test_the_distance_is_half_the_sum_of_the_absolute_differences_and_a_metric() -> None:
    a, b = histogram([10, 10, 10, 90]), histogram([10, 90, 90, 90])
    assert distance(a, b) == pytest.approx(0.5)  # half of the samples would have to move
    assert distance(a, a) == 0
    assert distance(histogram([5]), histogram([55])) == 1
    assert distance(a, b) == distance(b, a)
    rng = np.random.default_rng(5)
    a, b, c = (histogram(rng.normal(mean, 20, 400).clip(0, 100)) for mean in (30, 50, 70))
    assert 0 < distance(a, b) < distance(a, c) <= distance(a, b) + distance(b, c) <= 2
    assert math.isnan(distance((), histogram([1])))
    with pytest.raises(ValueError, match="shapes"):
        distance(histogram([1]), (0.5, 0.5))
