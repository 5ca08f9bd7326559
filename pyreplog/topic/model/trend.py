"""Trends: how fast a subscription works its backlog off, when it will be done, and whether it stands still. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WINDOW_S = 300.0
"""Rates are of the last so many seconds."""

STALLED_S = 60.0
"""A mark that has not moved for so long, with messages behind it, stands still."""


class Sample(NamedTuple):
    """A cursor at a moment, of a clock that nobody sets. end: offset behind the topic's last message; mark: all before
    it are acknowledged; backlog: messages behind it that are not. first: the first of these whose time has come; `end`,
    if there is none; None: the one at the mark."""

    at_us: int
    end: int
    mark: int
    backlog: int
    first: int | None = None


class Trend(NamedTuple):
    """rate_in, rate_out: messages published, and taken off the backlog, per second; None: there is too little to go by.
    drain_s: seconds until there is no backlog, 0.0: there is none, None: never at this rate, or not known. stalled_s:
    for how long the first message that is due has stayed the same. stalled: that is too long. Messages behind it may
    well be acknowledged (`rate_out`): then it is a single one that holds up the mark."""

    rate_in: float | None
    rate_out: float | None
    drain_s: float | None
    stalled_s: float
    stalled: bool


def trend(samples: Sequence[Sample], *, stalled_s: float = STALLED_S) -> Trend:
    """samples: in the order they were taken, the last one now; at least one."""
    now = samples[-1]
    first = _first_of_window(samples)
    seconds = (now.at_us - first.at_us) / 1e6
    waited = _stalled_us(samples) / 1e6
    rate_in = rate_out = drain = None
    if seconds > 0:
        rate_in = (now.end - first.end) / seconds
        rate_out = rate_in - (now.backlog - first.backlog) / seconds
        if rate_out > rate_in:
            drain = now.backlog / (rate_out - rate_in)
    if now.backlog == 0:
        drain = 0.0
    return Trend(rate_in, rate_out, drain, waited, waited >= stalled_s)


def _first_of_window(samples: Sequence[Sample]) -> Sample:
    """The oldest sample that says something of now: not from before the mark went back, by a seek, nor the clock."""
    first = samples[-1]
    for sample in reversed(samples):
        if sample.mark > first.mark or sample.at_us > first.at_us:
            break
        if samples[-1].at_us - sample.at_us > WINDOW_S * 1e6:
            break
        first = sample
    return first


def _stalled_us(samples: Sequence[Sample]) -> int:
    """Time since the first of the samples, up to the last one, between which the same message was the first that was
    due, and none of those before it was acknowledged."""
    now = first = samples[-1]
    for sample in reversed(samples):
        if _due(sample) != _due(now) or sample.mark != now.mark or sample.backlog == 0 or _due(sample) >= sample.end:
            break
        first = sample
    return max(now.at_us - first.at_us, 0)


def _due(sample: Sample) -> int:
    return sample.mark if sample.first is None else sample.first
