"""From publishing a message in one cluster to having it in another one, also through links that take their time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from statistics import quantiles

from benchmarks.delayed_link import delayed
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.geo.pair import WAIT_S, Pair, pair, wait
from benchmarks.sampling import handed_over, interleave
from benchmarks.topics import verify_topic
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.remote.remote_topic import RemoteTopic
from pyreplog.topic.owner.topic import Topic

_HOPS = 1024
_DELAYS_S = (0.0, 0.02, 0.1)
_SHARE = 0.3
"""Of the budget, for the hops of one delay."""
_LEAST = 4
_OVER_LOCAL, _OVER_LINK = 1.5, 1.1


def hop(plan: Plan) -> Section:
    """One message outstanding: published here, received there."""
    section = Section("geo-hop", "Publish here, receive in the other cluster over TCP, synced, one message outstanding")
    count = plan.scaled(_HOPS)
    with pair(plan) as clusters:
        for delay_s in _DELAYS_S:
            hops = beside = count
            if delay_s:
                least = count if plan.full else _LEAST
                hops, beside = max(least, min(count, int(plan.budget * _SHARE / delay_s))), min(count, 256)
            _compare(plan.shared(len(_DELAYS_S)), section, clusters, delay_s, hops, beside)
    section.notes.append(
        "The other side: a message that is published and received in one cluster, plus the same through its server "
        f"over TCP, plus the delay of the link one way. The goal through a link is that and {_OVER_LINK - 1:.0%}. A "
        "link is a proxy in a process of its own, which passes on bytes so long after they came. From before the call "
        "that publishes to when another thread has the message."
    )
    return section


def _compare(plan: Plan, section: Section, clusters: Pair, delay_s: float, hops: int, count: int) -> None:
    """Hops with one delay, beside the other side in turns."""
    name = f"{delay_s * 1000:.0f}ms"
    far, local = clusters.topic(f"far-{name}"), clusters.topic(f"local-{name}")
    target, served = clusters.target(far.name), clusters.target(f"served-{name}")
    with ExitStack() as stack:
        link = clusters.link
        if delay_s:
            link = clusters.link_to(stack.enter_context(delayed(clusters.address, delay_s)))
        replicator = clusters.replicate(far, link)
        stack.callback(replicator.close)
        remote = stack.enter_context(clusters.client.topic(served.name, create=False))
        there, here, through = (stack.enter_context(one.subscribe("bench")) for one in (target, local, remote))
        tails: dict[str, list[float]] = {"hop": [], "local": [], "served": []}

        def turn(side: str, topic: Topic | RemoteTopic, consumer: Consumer, times: int) -> float:
            median, tail = _turn(times, topic, lambda: consumer.receive(timeout=WAIT_S))
            tails[side].append(tail)
            return median

        rounds = plan if not delay_s else plan.once()
        medians = interleave(
            rounds,
            {
                "hop": lambda: turn("hop", far, there, hops),
                "local": lambda: turn("local", local, here, count),
                "served": lambda: turn("served", remote, through, count),
            },
        )
        wait(lambda: (replicator.status().stored or 0) >= far.end)
    checked = verify_topic(target, [bytes(100)], 0, far.end)
    counted = {side: sorted(found[plan.uncounted :]) for side, found in tails.items()}
    worst = {side: found[len(found) // 2] for side, found in counted.items()}
    for what, times in (("median", medians), (f"99th percentile of {hops}", worst)):
        section.comparisons.append(
            Comparison(
                f"100 B, link of {delay_s * 1000:.0f} ms, {what}",
                Figure("publish here, receive there", times["hop"], "s", "synced"),
                Figure("in one cluster + served + link", times["local"] + times["served"] + delay_s, "s", "synced"),
                Goal("at most", _OVER_LINK if delay_s else _OVER_LOCAL),
                checked,
            )
        )


def _turn(count: int, topic: Topic | RemoteTopic, receive: Callable[[], object]) -> tuple[float, float]:
    """Median and 99th percentile of seconds from before the call that publishes to when the other thread has it."""

    def take() -> None:
        assert receive() is not None

    parts = quantiles(handed_over(count, lambda: topic.publish(bytes(100)), take, WAIT_S), n=100, method="inclusive")
    return parts[49], parts[98]
