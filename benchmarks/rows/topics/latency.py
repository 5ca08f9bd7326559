"""From publishing a message to having it, beside handing it to another thread."""

from __future__ import annotations

import queue
from collections.abc import Callable
from statistics import median

from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section
from benchmarks.sampling import handed_over, interleave
from benchmarks.topics import topic, verify_topic

_MESSAGES = 2048
_WAIT_S = 30.0


def latency(plan: Plan) -> Section:
    """One message outstanding, published by one thread and received by another."""
    section = Section("topics-latency", "Publish to receive, embedded, E=3 Qw=3 Qa=2, one message outstanding")
    count = plan.scaled(_MESSAGES, 256)
    value = [bytes(100)]
    with topic(plan) as ours, ours.subscribe("bench") as consumer:

        def receive() -> None:
            message = consumer.receive(timeout=_WAIT_S)
            assert message is not None
            consumer.acknowledge(message)

        handed: queue.Queue[bytes] = queue.Queue()
        found = interleave(
            plan,
            {
                "ours": lambda: _turn(count, lambda: ours.publish(value[0]), receive),
                "queue": lambda: _turn(count, lambda: handed.put(value[0]), lambda: handed.get(timeout=_WAIT_S)),
            },
        )
        consumer.flush()
        checked = verify_topic(ours, value, 0, ours.end)
    section.comparisons.append(
        Comparison(
            "100 B, median",
            Figure("publish, receive", found["ours"], "s", "appended"),
            Figure("queue.Queue", found["queue"], "s", "appended"),
            None,
            checked,
        )
    )
    section.notes.append("From before the call that publishes to when the other thread has the message.")
    return section


def _turn(count: int, give: Callable[[], object], take: Callable[[], object]) -> float:
    """Median seconds from one thread's `give` to the end of another's `take`."""
    return median(handed_over(count, give, take, _WAIT_S))
