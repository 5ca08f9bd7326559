"""Confidence intervals of a rate, estimated from observed events with weights.

The interval of Fay and Feuer (Statistics in Medicine 16, 1997) is exact for equal weights, where it is that of a
Poisson count; otherwise it is at least as wide as necessary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95
RULE_OF_THREE = 3.0
"""Bound without an observed event: with 95 % confidence the expected number is below -ln(0.05)."""


class Interval(NamedTuple):
    """An estimate, and the bounds of its 95 % interval."""

    estimate: float
    low: float
    high: float


def weighted_interval(weights: Sequence[float], heaviest: float) -> Interval:
    """Return an interval for the expected sum of the weights of independent rare events.

    Args:
        weights: weights of the observed events.
        heaviest: largest weight that an event can have. Without an observed event, the bound is three times that.
    """
    total = math.fsum(weights)
    if total <= 0:
        return Interval(0.0, 0.0, RULE_OF_THREE * heaviest)
    squares = math.fsum(weight * weight for weight in weights)
    heaviest = max(heaviest, *weights)
    tail = (1 - CONFIDENCE) / 2
    low = squares / total * gamma_quantile(total * total / squares, tail)
    raised, spread = total + heaviest, squares + heaviest * heaviest
    return Interval(total, low, spread / raised * gamma_quantile(raised * raised / spread, 1 - tail))


def gamma_quantile(shape: float, probability: float) -> float:
    """Return the quantile of the gamma distribution with scale 1."""
    low, high = 0.0, shape + 1.0
    while gamma_share(shape, high) < probability:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if gamma_share(shape, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def gamma_share(shape: float, value: float) -> float:
    """Return the probability that a gamma variable of scale 1 is below a value: the regularised lower gamma function.

    It uses a series below the mean, and Lentz's continued fraction above.
    """
    if value <= 0:
        return 0.0
    factor = math.exp(shape * math.log(value) - value - math.lgamma(shape))
    if value < shape + 1:
        term = total = 1 / shape
        number = shape
        while term > total * 1e-15:
            number += 1
            term *= value / number
            total += term
        return min(total * factor, 1.0)
    tiny = 1e-300
    b = value + 1 - shape
    c, d = 1 / tiny, 1 / b
    fraction = d
    for number in range(1, 10_000):
        a = -number * (number - shape)
        b += 2
        d = 1 / ((a * d + b) or tiny)
        c = (b + a / c) or tiny
        fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return max(1 - factor * fraction, 0.0)
