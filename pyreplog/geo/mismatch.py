"""Mismatches between a topic and its copy at a target, which an operator has to end: settings and clocks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pyreplog.topic.model.config import TopicConfig

CLOCKS_APART_US = 300_000_000
"""Microseconds by which two clocks may differ without an alarm."""


def mismatch(target: str, here: TopicConfig, there: Mapping[str, Any], asked_us: int, answered_us: int) -> str:
    """Return the differences, and what to do about them; "": there are none.

    Args:
        target: name of the target cluster.
        here: settings of the topic here.
        there: settings of the topic there, and `clock_us`, which an older server leaves out.
        asked_us: time of the wall clock here before the target was asked, microseconds since 1970.
        answered_us: time when its answer came.
    """
    problems = [_clocks(target, there.get("clock_us"), asked_us, answered_us)]
    is_global = there.get("global_producers", False)  # left out unless it is set
    if is_global is not here.global_producers:
        problems.append(
            f"global_producers is {str(here.global_producers).lower()} here and {str(is_global).lower()} in {target}: "
            "messages of a producer that moves between the clusters may be stored twice. Set the same value in both"
        )
    return "; ".join(filter(None, problems))


def _clocks(target: str, clock_us: Any, asked_us: int, answered_us: int) -> str:
    """Return the text about clocks that are apart however long the answer was on its way."""
    if type(clock_us) is not int:
        return ""
    ahead_us = clock_us - answered_us if clock_us > answered_us else min(clock_us - asked_us, 0)
    if abs(ahead_us) <= CLOCKS_APART_US:
        return ""
    apart = timedelta(seconds=abs(ahead_us) // 1_000_000)
    return (
        f"the clock of {target} is {apart} {'ahead of' if ahead_us > 0 else 'behind'} the one here: messages expire, "
        "and are delivered, too early or too late by that, and ages are wrong. Set the clocks of both clusters"
    )
