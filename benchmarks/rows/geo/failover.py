"""A subscription that is acknowledged out of order goes on in another cluster, when its cluster is killed, and when it
is handed over: what comes again there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.plan import Plan
from benchmarks.proc import Job, job
from benchmarks.result import Comparison, Figure, Goal, Section, Table
from benchmarks.rows.geo.pair import WAIT_S, wait
from benchmarks.rows.geo.region import SUBSCRIPTION, TOPIC, number_of, order_of, replicate_to
from pyreplog.cluster import Cluster
from pyreplog.future import AppendFuture
from pyreplog.geo.subscription_replication import SubscriptionReplication
from pyreplog.geo.target_link import TargetLink
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer

_ACKS = 100_096
_ROUNDS = 3
_RANGE_BYTES = 16


class _Run(NamedTuple):
    """One kill. unknown: acknowledgements that A could not know that B has. state_bytes: of messages about
    subscriptions, both ways; idle_bytes: of those while nothing changed. first_s, all_s: from the kill to a message."""

    acks: int
    messages: int
    ranges: int
    repeated: int
    unknown: int
    lost: int
    state_bytes: int
    idle_bytes: int
    first_s: float
    all_s: float


class _Handover(NamedTuple):
    """One planned handover. seconds: of the command; the other fields as in `_Run`."""

    acks: int
    messages: int
    repeated: int
    lost: int
    state_bytes: int
    idle_bytes: int
    seconds: float


def failover(plan: Plan) -> Section:
    """Kill A, and go on at B; then hand the subscription over from A to B, and go on there."""
    acks = plan.scaled(_ACKS, 512)
    section = Section(
        "geo-failover",
        f"{acks:,} individual acknowledgements out of order; A is killed, or hands over, and the consumer goes on at B",
    )
    rounds = _ROUNDS if plan.budget >= 5 else 1
    runs = [_kill(plan, acks, acks * 5 // 4, seed) for seed in range(rounds)]
    worst = max(runs, key=lambda run: run.repeated / max(run.unknown, 1))
    largest = max(runs, key=lambda run: run.state_bytes)
    planned = _hand_over(plan, acks, acks * 5 // 4, rounds)
    section.comparisons += [
        Comparison(
            "come again at B, of all acknowledgements",
            Figure("delivered at B", worst.repeated / acks, "share", "synced"),
            Figure("after the last delta that B persisted, as A knew", worst.unknown / acks, "share", "synced"),
            Goal("at most", 1.0),
            f"{sum(run.messages for run in runs):,} messages, none lost",
        ),
        Comparison(
            "state exchanged",
            Figure("of messages, both ways", largest.state_bytes, "B", "synced"),
            Figure(f"two numbers for each of {largest.ranges:,} ranges", _RANGE_BYTES * largest.ranges, "B", "synced"),
            None,
            f"{largest.acks:,} acknowledgements",
        ),
        Comparison(
            "state exchanged while nothing changes",
            Figure("of messages, both ways", max(run.idle_bytes for run in (*runs, planned)), "B", "synced"),
            Figure("while messages are acknowledged", largest.state_bytes, "B", "synced"),
            Goal("at most", 0, absolute=True),
            f"in {len(runs) + 1} runs",
        ),
        Comparison(
            "planned handover: come again at B",
            Figure("acknowledged messages", planned.repeated, "count", "synced"),
            Figure("when A is killed", worst.repeated, "count", "synced"),
            Goal("at most", 0, absolute=True),
            f"{planned.messages:,} messages, {planned.acks:,} acknowledged, none lost",
        ),
    ]
    section.tables.append(
        Table(
            "Each kill",
            [
                "acknowledged", "come again", "not known to A as persisted", "lost", "state, bytes", "idle, bytes",
                "first message at B after", "all after",
            ],
            [
                [
                    f"{run.acks:,}", f"{run.repeated:,}", f"{run.unknown:,}", f"{run.lost}", f"{run.state_bytes:,}",
                    f"{run.idle_bytes}", f"{run.first_s * 1000:.1f} ms", f"{run.all_s * 1000:.0f} ms",
                ]
                for run in runs
            ],
        )
    )  # fmt: skip
    section.tables.append(
        Table(
            "The planned handover",
            ["acknowledged", "come again", "lost", "state, bytes", "idle, bytes", "handed over in"],
            [
                [
                    f"{planned.acks:,}", f"{planned.repeated}", f"{planned.lost}", f"{planned.state_bytes:,}",
                    f"{planned.idle_bytes}", f"{planned.seconds:.2f} s",
                ]
            ],
        )
    )  # fmt: skip
    section.notes.append(
        "A is a process, which is killed with SIGKILL while it acknowledges as fast as it can; it says what it is "
        "going to acknowledge, and how much of it B has persisted. It waits once, in the middle, until B has all. "
        "Bytes are those of the messages about subscriptions, without the frames around them. The row fails if a "
        "message is lost, comes twice at B, comes again although A knew that B had its acknowledgement, or if anything "
        "is said while nothing changes. The handover is ordered at A directly after the last acknowledgement; the "
        "consumer there holds all other messages, and has no time to acknowledge them. The row fails if a message that "
        "was acknowledged before the order comes again at B."
    )
    return section


@contextmanager
def _two_clusters(plan: Plan, count: Count, acks: int, messages: int, seed: int) -> Iterator[tuple[Job, Topic, int]]:
    """A, a process that has everything ready to acknowledge; the topic at B; and bytes said while nothing changed."""
    with (
        plan.folder() as folder,
        Cluster.embedded(folder / "there", bookies=1) as there,
        TopicServer(there) as server,
        job("geo_region", str(folder / "here"), messages, acks, seed) as here,
    ):
        url = here.answer()
        here.ask(f"pyreplog://{server.address}")
        wait(lambda: TOPIC in there.topics.names())
        replicate_to(there, "here", url)
        here.answer()
        topic = there.topic(TOPIC, create=False)
        assert isinstance(topic, Topic)
        yield here, topic, _while_idle(plan, count)


def _kill(plan: Plan, acks: int, messages: int, seed: int) -> _Run:
    with counted() as count, _two_clusters(plan, count, acks, messages, seed) as (here, topic, idle_bytes):
        before = count.total
        here.ask("begin")
        known = _until_killed(here, acks)
        begin = time.perf_counter()
        numbers, first_s = _receive(topic, messages - 1, begin)
        all_s = time.perf_counter() - begin
        acknowledged = set(order_of(messages, acks, seed))
        found = set(numbers)
        run = _Run(
            acks, messages, _ranges(acknowledged), len(found & acknowledged), acks - known,
            len(set(range(messages)) - acknowledged - found), count.total - before, idle_bytes, first_s, all_s,
        )  # fmt: skip
        if run.lost or len(found) < len(numbers) or run.repeated > run.unknown or run.idle_bytes:
            raise ValueError(f"{run}, {len(numbers) - len(found)} messages came twice")
        return run


def _hand_over(plan: Plan, acks: int, messages: int, seed: int) -> _Handover:
    with counted() as count, _two_clusters(plan, count, acks, messages, seed) as (here, topic, idle_bytes):
        before = count.total
        here.ask("begin")
        while here.answer().get("acknowledged") != acks:
            pass
        here.ask("hand over")
        told = next(told for told in iter(here.answer, None) if "handed_over_s" in told)
        state_bytes = count.total - before
        numbers, _ = _receive(topic, messages - 1, time.perf_counter())
        acknowledged, found = set(order_of(messages, acks, seed)), set(numbers)
        lost = set(range(messages)) - acknowledged - found
        run = _Handover(
            acks, messages, len(found & acknowledged), len(lost), state_bytes, idle_bytes, told["handed_over_s"]
        )
        if run.lost or run.repeated or len(found) < len(numbers) or run.idle_bytes:
            raise ValueError(f"{run}, {len(numbers) - len(found)} messages came twice")
        return run


def _while_idle(plan: Plan, count: Count) -> int:
    """Bytes that are said in a while without acknowledgements."""
    quiet_s = max(0.5, min(plan.budget / 5, 2.0))
    at = time.monotonic()
    seen = count.total

    def settled() -> bool:
        nonlocal at, seen
        if count.total != seen:  # what was said in the beginning may be on its way
            at, seen = time.monotonic(), count.total
        return time.monotonic() - at > 2 * quiet_s

    wait(settled)
    before = count.total
    time.sleep(quiet_s)
    return count.total - before


def _until_killed(here: Job, acks: int) -> int:
    """Kill it when it has said its last burst; how many acknowledgements it knew to be persisted by the other one."""
    known = 0
    for told in iter(here.answer, None):
        known = max(known, told.get("known", 0))
        if told.get("acknowledged") == acks:
            break
    for line in here.kill():
        known = max(known, json.loads(line).get("known", 0))
    return known


def _receive(topic: Topic, last: int, begin: float) -> tuple[list[int], float]:
    """Numbers of all messages up to the last one, which nobody acknowledged; seconds to the first."""
    numbers: list[int] = []
    first_s = 0.0
    with topic.subscribe(SUBSCRIPTION, type="shared", queue=1 << 16) as consumer:
        while not numbers or numbers[-1] != last:
            batch = consumer.receive_batch(WAIT_S)
            assert batch is not None
            first_s = first_s or time.perf_counter() - begin
            numbers += map(number_of, batch.values())
            consumer.acknowledge(batch)
    return numbers, first_s


def _ranges(numbers: set[int]) -> int:
    return sum(number - 1 not in numbers for number in numbers)


class Count:
    """Bytes of messages about subscriptions that this process has sent or received."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, said: Any) -> None:
        """Count a request, or an answer that is no error."""
        self.total += sum(map(len, getattr(said, "messages", ())))


@contextmanager
def counted() -> Iterator[Count]:
    """Count what either side asks, and what it is answered."""
    count = Count()
    asks, asked = TargetLink.exchange, SubscriptionReplication.exchange

    def ask(self: TargetLink, request: Any, address: Any, on_exchanged: Any) -> None:
        count.add(request)

        def on_answer(server: Any, answer: Any) -> None:
            count.add(answer)
            on_exchanged(server, answer)

        asks(self, request, address, on_answer)

    def be_asked(self: SubscriptionReplication, request: Any) -> AppendFuture[Any]:
        count.add(request)
        answer = asked(self, request)
        answer.add_done_callback(lambda _: count.add(answer.result()) if answer.exception() is None else None)
        return answer

    TargetLink.exchange, SubscriptionReplication.exchange = ask, be_asked  # type: ignore[method-assign]
    try:
        yield count
    finally:
        TargetLink.exchange, SubscriptionReplication.exchange = asks, asked  # type: ignore[method-assign]
