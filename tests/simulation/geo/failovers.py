"""What fail-overs lose and repeat with PIP-33 and with the shipped machines: stories, and random schedules.

`python -m tests.simulation.geo.failovers --seeds 100` prints the table of docs/geo.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from .pip33 import Pip33
from .scenarios import LOSSES, REPEATS, Clusters, FailOver, Shipped, compare, fail_over

PUBLISH_EVERY_S = 0.02
ACKNOWLEDGED_S = 0.25
"""A message is acknowledged in a so long after it was published, or later; it has arrived there by then."""

SNAPSHOT_S = 1.0
"""The default of Pulsar, replicatedSubscriptionsSnapshotFrequencyMillis."""

PROMISE_S = 0.2 + 0.03
"""What was acknowledged in so many seconds before a fail-over may be repeated: an exchange and a round trip."""


@dataclass(frozen=True)
class Traffic:
    """What is drawn in a schedule. Both clusters publish, and a consumer in a acknowledges.

    Attributes:
        text: a description.
        spread_s: an acknowledgement is up to so much later than it can be.
        only_b: share of the messages published in b that are not replicated.
        stuck: share of the messages that are not acknowledged before the fail-over.
    """

    text: str
    spread_s: float
    only_b: float = 0.0
    stuck: float = 0.0


TRAFFIC = (
    Traffic("in order", 0.0),
    Traffic("out of order, up to 0.2 s later", 0.2),
    Traffic("out of order, up to 2 s later", 2.0),
    Traffic("out of order, up to 0.2 s later, and 1% not at all", 0.2, stuck=0.01),
    Traffic("in order; 10% of the messages of b are for b alone", 0.0, only_b=0.1),
)


class Event(NamedTuple):
    """Something that both are told. kind: "publish", "acknowledge" or "snapshot"."""

    time: float
    kind: str
    label: str = ""
    cluster: str = "a"
    only_to: str = ""


class Counts(NamedTuple):
    """A row of the table. promised: the most that the shipped machines may repeat."""

    acknowledged: int = 0
    lost: int = 0
    shipped_lost: int = 0
    repeated: int = 0
    shipped_repeated: int = 0
    promised: int = 0


def draw(traffic: Traffic, seed: int) -> tuple[list[Event], float]:
    """Return the events up to a fail-over, and the moment of that."""
    random = Random(f"{traffic.text} {seed}")
    end = random.uniform(3.0, 8.0)
    events = [Event(random.random() + SNAPSHOT_S * number, "snapshot") for number in range(int(end / SNAPSHOT_S) + 1)]
    for number in range(int(end / PUBLISH_EVERY_S)):
        time, label, cluster = number * PUBLISH_EVERY_S, str(number), random.choice("ab")
        only_to = "b" if cluster == "b" and random.random() < traffic.only_b else ""
        events.append(Event(time, "publish", label, cluster, only_to))
        late_s = traffic.spread_s * random.random()
        if not only_to and random.random() >= traffic.stuck:
            events.append(Event(time + ACKNOWLEDGED_S + late_s, "acknowledge", label))
    return sorted(event for event in events if event.time < end), end


def run(clusters: Clusters, events: Sequence[Event], end: float) -> FailOver:
    clusters.subscribe("s")
    now = 0.0
    for event in events:
        clusters.advance(event.time - now)
        now = event.time
        if event.kind == "publish":
            clusters.publish(event.cluster, event.label, event.only_to)
        elif event.kind == "acknowledge":
            clusters.acknowledge("a", "s", event.label)
        else:
            clusters.snapshot("a")
    clusters.advance(end - now)
    return fail_over(clusters)


def count(traffic: Traffic, seeds: int) -> tuple[Counts, list[str]]:
    """Return the sums over the seeds; and what the shipped machines repeated or lost against their promise."""
    total, broken = Counts(), list[str]()
    for seed in range(seeds):
        events, end = draw(traffic, seed)
        reference, shipped = run(Pip33(["ab"]), events, end), run(Shipped(["ab"]), events, end)
        recent = {event.label for event in events if event.kind == "acknowledge" and event.time >= end - PROMISE_S}
        if shipped.lost or not {*shipped.repeated} <= recent:
            broken.append(f"{traffic.text}, seed {seed}: lost {shipped.lost}, repeated {shipped.repeated}")
        counts = _counts(reference, shipped, len(recent))
        total = Counts(*map(sum, zip(total, counts, strict=True)))
    return total, broken


def stories() -> Iterator[tuple[str, Counts]]:
    """Yield the rows of stories. All acknowledgements were exchanged long before the fail-over."""
    for story in (*LOSSES, *REPEATS):
        reference, shipped = compare(story)
        told = (story.__doc__ or "").rstrip(".")
        text = f"{story.__name__.replace('_', ' ')}: {told[:1].lower()}{told[1:]}"
        yield text, _counts(reference, shipped, 0)


def _counts(reference: FailOver, shipped: FailOver, promised: int) -> Counts:
    lost, repeated = (reference.lost, shipped.lost), (reference.repeated, shipped.repeated)
    assert reference.acknowledged == shipped.acknowledged, "both are told the same"
    return Counts(shipped.acknowledged, *map(len, (*lost, *repeated)), promised)


def row(text: str, counts: Counts) -> str:
    return f"| {text} | {' | '.join(f'{number:,}' for number in counts)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="random schedules of each kind")
    seeds: int = parser.parse_args(arguments).seeds
    print(
        "| story, or random schedules | acknowledged | lost: PIP-33 | lost: pyreplog | repeated: PIP-33 "
        "| repeated: pyreplog | promised: at most |"
    )
    print("|---|---|---|---|---|---|---|")
    broken = list[str]()
    for text, counts in stories():
        print(row(text, counts))
        broken += [text] if counts.shipped_lost or counts.shipped_repeated else []
    for traffic in TRAFFIC if seeds else ():
        counts, against = count(traffic, seeds)
        print(row(f"{seeds:,} random schedules, acknowledged {traffic.text}", counts), flush=True)
        broken += against
    for text in broken:
        print(f"pyreplog breaks its promise: {text}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
