"""Catching up with a backlog while more is published: how fast, and what publishers notice."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.entries import BATCH, make_values
from benchmarks.plan import Plan
from benchmarks.proc import job
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.geo.backlog_turns import BacklogTurns
from benchmarks.rows.geo.pair import WAIT_S, Pair, pair, pair_of_processes, publish_all, wait
from benchmarks.sampling import interleave
from benchmarks.topics import verify_topic
from pyreplog.future import AppendFuture
from pyreplog.topic.owner.topic import Topic

_SIZE = 1024
_FULL_BYTES = 5 << 30
_BYTES = 128 << 20
_PUBLISHED, _THROTTLED = 0.2, 0.5
"""Shares of the plain rate: published meanwhile; sent at most."""
_SAMPLES = 250
_LEAST = 8
_ROUNDS = 3
_WRITTEN_BYTES = 64 << 20
"""Size of a file that a program writes."""
_RATE, _TAIL = 0.8, 1.3


def catchup(plan: Plan) -> Section:
    """A backlog beside the plain replication of one; then the latency of publishers while it is sent, throttled."""
    size = _FULL_BYTES if plan.full else plan.scaled(_BYTES // _SIZE, 8 * BATCH) * _SIZE
    batches = size // _SIZE // BATCH
    section = Section(
        "geo-catchup",
        f"Catch up with {size / (1 << 20):,.0f} MiB in batches of {BATCH} of 1 KiB while {_PUBLISHED:.0%} of the rate "
        "is published, synced",
    )
    values = make_values(_SIZE)
    few = plan.once() if plan.full else dataclasses.replace(plan.shared(2), rounds=min(_ROUNDS, plan.rounds))
    with pair(plan) as clusters:
        plain, turns = BacklogTurns(clusters, values, batches * BATCH), _Turns(clusters, values)
        rates: list[float] = []

        def replicate() -> float:
            rates.append(plain.ours())
            return rates[-1]

        found = interleave(few, {"plain": replicate, "catchup": lambda: turns.catch_up(batches, rates[-1])})
        alone = Figure("the backlog alone", found["plain"], "/s", "synced", _SIZE)
        verified = f"{turns.verified + plain.verified:,} messages at the target"
        both = median(turns.stored_and_published)
        section.comparisons += [
            Comparison(
                f"unthrottled, {_PUBLISHED:.0%} published meanwhile",
                Figure("catch-up", found["catchup"], "/s", "synced", _SIZE),
                alone,
                Goal("at least", _RATE),
                verified,
            ),
            Comparison(
                "the same, with the messages published meanwhile",
                Figure("stored at the target, and published", both, "/s", "synced", _SIZE),
                alone,
                None,
                verified,
            ),
        ]
    with pair_of_processes(plan) as clusters, plan.folder() as folder:
        turns = _Turns(clusters, values)
        samples = max(_LEAST, min(_SAMPLES, int(_SAMPLES * plan.budget / 5.0)))
        tails = interleave(
            few,
            {
                "with": lambda: turns.tail(samples, found["plain"], replicates=True),
                "without": lambda: turns.tail(samples, found["plain"], replicates=False),
                "old": lambda: turns.tail_beside_writer(samples, found["plain"], folder / "old", "old"),
                "new": lambda: turns.tail_beside_writer(samples, found["plain"], folder / "new", "new"),
            },
        )
        without = Figure("without replication", tails["without"], "s", "synced")
        verified = f"{turns.verified:,} messages at the target"
        section.comparisons += [
            Comparison(
                f"publish of a batch, 99th percentile of {samples}",
                Figure(f"replication throttled to {_THROTTLED:.0%}", tails["with"], "s", "synced"),
                without,
                Goal("at most", _TAIL),
                verified,
            ),
            Comparison(
                "the same, and a program writes as many bytes over old ones",
                Figure("pwrite and fdatasync of a batch", tails["old"], "s", "synced"),
                without,
                None,
                verified,
            ),
            Comparison(
                "the same, and a program writes as many bytes to new files",
                Figure("fallocate of 64 MiB, pwrite and fdatasync of a batch", tails["new"], "s", "synced"),
                without,
                None,
                verified,
            ),
        ]
    section.notes.append(
        "In the first two rows both clusters and the publisher are in this process. A published message takes about as "
        "much of its processors and of the disk as a replicated one: "
        f"{1 - _PUBLISHED:.1f} in the first row, and 1 in the second one, mean that nothing is lost by doing both. In "
        "the others the target is in another process, with the same disk. "
        f"{_PUBLISHED:.0%} and {_THROTTLED:.0%} are of the rate of a backlog alone. A publisher that is late with a "
        "batch publishes it at once. Latencies are taken from when the rate is limited: what may be sent in the first "
        "second goes at once. At the end of a turn the target gets "
        f"the rest without a limit, and is read back. In {turns.caught_up} turns it had all before the last batch."
    )
    return section


class _Turns:
    """Each turn has topics of its own, which are deleted behind it."""

    def __init__(self, clusters: Pair, values: list[bytes]) -> None:
        self._clusters, self._values = clusters, values
        self._group = values * (BATCH // len(values))
        self._names = 0
        self.verified = 0
        self.stored_and_published: list[float] = []
        """Messages per second of each catch-up that the two clusters stored, together."""
        self.caught_up = 0
        """Turns in which the target had all before the last batch was published: that was late."""

    def _filled(self, batches: int) -> Topic:
        self._names += 1
        topic = self._clusters.topic(f"c{self._names}")
        self._clusters.target(topic.name)
        publish_all(topic, self._group, batches)
        return topic

    def catch_up(self, batches: int, rate: float) -> float:
        """Messages per second that the target gets, until it has the backlog and what was published meanwhile."""
        topic = self._filled(0)
        replicator = self._clusters.replicate(topic)
        replicator.pause()
        publish_all(topic, self._group, batches)
        over = threading.Event()
        publisher = threading.Thread(target=self._publish, args=(topic, BATCH / (_PUBLISHED * rate), over))
        replicator.resume()
        wait(lambda: replicator.status().state == "running")
        first, begin = topic.end, time.perf_counter()
        publisher.start()
        try:
            wait(lambda: (replicator.status().stored or 0) >= batches * BATCH)
            backlog_s, stored = time.perf_counter() - begin, replicator.status().stored or 0
            self.stored_and_published.append((stored + topic.end - first) / backlog_s)
        finally:
            over.set()
            publisher.join()
        wait(lambda: (replicator.status().stored or 0) >= topic.end)
        replicator.close()
        self._end(topic)
        return stored / backlog_s

    def _publish(self, topic: Topic, interval_s: float, over: threading.Event) -> None:
        """Publish a batch each interval until it is over."""
        sent: deque[AppendFuture[Any]] = deque()
        at = time.perf_counter()
        while not over.wait(max(at - time.perf_counter(), 0.0)):
            sent.append(topic.submit_batch(self._group))
            at += interval_s
        for future in sent:
            future.result(WAIT_S)

    def tail(self, samples: int, rate: float, *, replicates: bool) -> float:
        """99th percentile of the seconds that a publisher waits for a batch, at its share of the rate."""
        rate_bytes = int(_THROTTLED * rate * _SIZE)
        batches = 2 + int(samples * (_THROTTLED / _PUBLISHED) * 1.2) + 2 * rate_bytes // (BATCH * _SIZE)
        topic = self._filled(batches)
        replicator = self._clusters.replicate(topic, rate_bytes=rate_bytes)
        if replicates:
            wait(lambda: replicator.status().sent_bytes >= rate_bytes)
        else:
            replicator.pause()
            wait(lambda: replicator.status().state == "paused")
        taken: list[float] = []
        at = time.perf_counter()
        for _ in range(samples):
            time.sleep(max(at - time.perf_counter(), 0.0))
            begin = time.perf_counter()
            topic.publish_batch(self._group)
            taken.append(time.perf_counter() - begin)
            at += BATCH / (_PUBLISHED * rate)
        self.caught_up += not replicator.status().unsent_messages
        replicator.close()
        rest = self._clusters.replicate(topic)
        wait(lambda: (rest.status().stored or 0) >= topic.end)
        rest.close()
        self._end(topic)
        return quantiles(taken, n=100, method="inclusive")[98]

    def tail_beside_writer(self, samples: int, rate: float, path: Path, into: str) -> float:
        """As `tail` without replication, while another process writes to the disk what replication would send.

        Args:
            samples: number of published batches.
            rate: messages per second of a backlog alone.
            path: of the file that is written to.
            into: whether the file is written over ("old"), or made anew when it is full ("new").
        """
        rate_bytes, write_bytes = int(_THROTTLED * rate * _SIZE), BATCH * _SIZE
        with job("write_synced", str(path), rate_bytes, write_bytes, _WRITTEN_BYTES, into) as writer:
            writer.answer()
            return self.tail(samples, rate, replicates=False)

    def _end(self, topic: Topic) -> None:
        """Compare what the target has, and delete both."""
        target = self._clusters.target(topic.name)
        verify_topic(target, self._values, 0, topic.end)
        self.verified += topic.end
        target.delete()
        topic.delete()
