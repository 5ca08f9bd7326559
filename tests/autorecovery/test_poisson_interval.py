"""Intervals of rates, beside values of statistical tables."""

from __future__ import annotations

import pytest

from pyreplog.autorecovery.poisson_interval import gamma_quantile, gamma_share, weighted_interval


@pytest.mark.parametrize(
    ("count", "low", "high"), [(1, 0.02532, 5.5716), (10, 4.7954, 18.3904), (100, 81.3639, 121.6274)]
)
def test_equal_weights_are_a_count(count: int, low: float, high: float) -> None:
    """Exact 95 % intervals of a Poisson count, as in Garwood's table."""
    interval = weighted_interval([0.5] * count, 0.5)
    assert interval == pytest.approx((count / 2, low / 2, high / 2), rel=1e-4)


def test_interval_without_events_has_an_upper_bound() -> None:
    assert weighted_interval([], 0.1) == (0.0, 0.0, pytest.approx(0.3))


def test_a_heavy_event_that_might_come_widens_the_interval() -> None:
    light = weighted_interval([0.01] * 20, 0.01)
    heavy = weighted_interval([0.01] * 20, 1.0)
    assert heavy.estimate == light.estimate and heavy.low == light.low and heavy.high > 10 * light.high


@pytest.mark.parametrize(
    ("shape", "value", "share"),
    [(1.0, 1.0, 0.632121), (0.5, 0.5, 0.682689), (50.0, 30.0, 0.000519), (3.0, 10.0, 0.997231)],
)
def test_shares_and_quantiles_of_the_gamma_distribution_are_those_of_tables(
    shape: float, value: float, share: float
) -> None:
    assert gamma_share(shape, value) == pytest.approx(share, abs=2e-6)
    assert gamma_quantile(shape, gamma_share(shape, value)) == pytest.approx(value, rel=1e-6)
    assert gamma_share(shape, 0.0) == 0.0
