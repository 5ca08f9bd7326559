"""Trends: how fast a subscription works off its backlog, when that will be empty, and whether it is stalled. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

WINDOW_S = 300.0
"""Seconds over which rates are computed."""

STALLED_S = 60.0
"""A subscription is stalled if the mark has not moved for so many seconds, with messages behind it."""


class Sample(NamedTuple):
    """The state of a cursor at a moment.

    Attributes:
        at_us: the moment, on the monotonic clock.
        end: offset behind the topic's last message.
        mark: all messages before it are acknowledged.
        backlog: unacknowledged messages from the mark on.
        first: the first of these that is due; `end`: none is due; None: the one at the mark.
    """

    at_us: int
    end: int
    mark: int
    backlog: int
    first: int | None = None


class Outlook(NamedTuple):
    """The future of a backlog at present rates.

    Attributes:
        drain_s: seconds until it is empty; 0.0: it is empty; None: never at these rates, or not known.
        status: "done": it is empty; "stalled": no message is consumed; "growing": messages arrive at least as fast as
            they are consumed; "draining": it shrinks; None: not known.
    """

    drain_s: float | None
    status: Literal["done", "stalled", "growing", "draining"] | None


def outlook(backlog: int, rate_in: float | None, rate_out: float | None) -> Outlook:
    """Return the outlook of a backlog.

    Args:
        backlog: messages.
        rate_in: messages published per second; None: not known.
        rate_out: messages consumed per second; None: not known.
    """
    if backlog == 0:
        return Outlook(0.0, "done")
    if rate_in is None or rate_out is None:
        return Outlook(None, None)
    if rate_out == 0:
        return Outlook(None, "stalled")
    if rate_out <= rate_in:
        return Outlook(None, "growing")
    return Outlook(backlog / (rate_out - rate_in), "draining")


def slowest_drain(drains: Iterable[float | None]) -> float | None:
    """Return the seconds until all of several backlogs are empty; None: one never is, or it is not known."""
    known = list(drains)
    return None if None in known else max((drain for drain in known if drain is not None), default=None)


class Trend(NamedTuple):
    """The trend of a subscription.

    Attributes:
        rate_in: messages published per second; None: there are too few samples.
        rate_out: messages taken off the backlog per second; None: there are too few samples.
        drain_s: seconds until the backlog is empty; 0.0: it is empty; None: never at this rate, or not known.
        stalled_s: seconds for which the first message that is due has stayed the same.
        stalled: `stalled_s` is too long. Messages behind it may well be acknowledged (`rate_out`): then a single
            message holds up the mark.
    """

    rate_in: float | None
    rate_out: float | None
    drain_s: float | None
    stalled_s: float
    stalled: bool


def trend(samples: Sequence[Sample], *, stalled_s: float = STALLED_S) -> Trend:
    """Return the trend of samples, at least one, in the order in which they were taken; the last one is the present."""
    now = samples[-1]
    first = _first_of_window(samples)
    seconds = (now.at_us - first.at_us) / 1e6
    waited = _stalled_us(samples) / 1e6
    rate_in = rate_out = None
    if seconds > 0:
        rate_in = (now.end - first.end) / seconds
        rate_out = rate_in - (now.backlog - first.backlog) / seconds
    drain = outlook(now.backlog, rate_in, rate_out).drain_s
    return Trend(rate_in, rate_out, drain, waited, waited >= stalled_s)


def _first_of_window(samples: Sequence[Sample]) -> Sample:
    """Return the oldest sample of the window after the last seek or step back of the clock."""
    first = samples[-1]
    for sample in reversed(samples):
        if sample.mark > first.mark or sample.at_us > first.at_us:
            break
        if samples[-1].at_us - sample.at_us > WINDOW_S * 1e6:
            break
        first = sample
    return first


def _stalled_us(samples: Sequence[Sample]) -> int:
    """Return how long the first due message has been the same, without acknowledgements before it."""
    now = first = samples[-1]
    for sample in reversed(samples):
        if _due(sample) != _due(now) or sample.mark != now.mark or sample.backlog == 0 or _due(sample) >= sample.end:
            break
        first = sample
    return max(now.at_us - first.at_us, 0)


def _due(sample: Sample) -> int:
    return sample.mark if sample.first is None else sample.first
