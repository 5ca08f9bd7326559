"""The seventh step of the demo: a subscription moves to another region when its own is killed, and back again."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

from children import PATIENCE_S, Child
from failoverpage import fail_over_rows, write_page
from standby import wait
from verification import Mismatch

import pyreplog
from pyreplog import Consumer, RemoteTopic
from pyreplog._native.topic.messages import Message

TOPIC, GATES = "flights", "gates"
EAST, WEST = "east", "west"
BATCH = 100
RETENTION_MS = 3_600_000
BEFORE = 2_400
"""Flights that are published while both regions live, alternately in both."""

LAST_WORDS, MEANWHILE, AFTERWARDS = 200, 400, 200
"""Flights that are published in the east right before it is killed, in the west meanwhile, and in the east again."""

ALIVE = BEFORE + LAST_WORDS
RETURN = ALIVE + MEANWHILE
FLIGHTS = RETURN + AFTERWARDS
KNOWN, LATE = 1_200, 500
"""Of the first flights: acknowledged long before the east is killed, and right before."""

STEPS = 50
"""In so many steps the east publishes its last flights and acknowledges those."""

LEFT = 300
"""Flights that the west does not acknowledge, but leaves to the east."""


class Flights:
    """The first flights of the log, by their numbers there."""

    def __init__(self, log: Path) -> None:
        self.rows: list[tuple[bytes, bytes | None, int]] = []
        with pyreplog.open(log, "r") as source:
            for batch in source.read(0, FLIGHTS):
                self.rows += zip(batch.values(), batch.keys(), batch.event_time.tolist(), strict=True)
        self._numbers = {row: number for number, row in enumerate(self.rows)}
        if len(self._numbers) != FLIGHTS:
            raise Mismatch(f"expected {FLIGHTS:,} flights, each another row, found {len(self._numbers):,}")

    def number(self, value: bytes, key: bytes | None, event_time: int) -> int:
        """Mismatch: there is no such flight."""
        try:
            return self._numbers[value, key, event_time]
        except KeyError:
            raise Mismatch(f"a message is none of the flights: {value!r}") from None

    def numbers(self, messages: Iterable[Message]) -> list[int]:
        return [self.number(message.value, message.key, message.event_time) for message in messages]


class Region:
    """A cluster with one server, in a process of its own; its metadata store and its bookies are in its directory."""

    topic: RemoteTopic

    def __init__(self, directory: Path, name: str, flights: Flights, stack: ExitStack) -> None:
        self.name, self.directory = name, directory / name
        self._flights, self._stack = flights, stack
        self.start()

    def start(self) -> None:
        self._server = Child("-m", "pyreplog", "serve", str(self.directory), "--bookies", "3", "--json")
        self._stack.callback(self._server.close)

    def connect(self) -> None:
        """Once it serves. The topic keeps flights that are acknowledged, so that they can be counted in the end."""
        self._url = f"pyreplog://{self._server.wait_for('address')}"
        self._client = self._stack.enter_context(pyreplog.connect(self._url))
        self.topic = self._client.topic(TOPIC, retention_ms=RETENTION_MS)
        url = f"sqlite:{self.directory / 'metadata.sqlite'}"
        self._cluster = self._stack.enter_context(pyreplog.Cluster.connect(url))

    def kill(self) -> None:
        """kill -9, and nobody asks it any more."""
        self._server.kill()
        self._client.close()

    def know(self, other: Region) -> None:
        """Where the other region is now."""
        self._cluster.geo.add_cluster(other.name, other._url)

    def replicate(self, other: Region) -> None:
        self.know(other)
        self._cluster.geo.set_policy(TOPIC, targets=[other.name], replicated_subscriptions=True)

    def publish(self, start: int, end: int) -> None:
        """Returns when they are on the disks of this region."""
        for first in range(start, end, BATCH):
            values, keys, times = zip(*self._flights.rows[first : min(first + BATCH, end)], strict=True)
            self.topic.publish_batch(list(values), list(keys), event_times=list(times))

    def is_ready(self) -> bool:
        """Whether a fail-over to the other region would lose and repeat nothing: `pyreplog geo readiness`."""
        rows = self._cluster.geo.readiness(TOPIC, everywhere=True)
        return any(row.subscription == GATES and row.is_ready and not row.error for row in rows)

    def is_alone(self) -> bool:
        """Whether it has noticed that the other region is gone, and so has handled all that came from there."""
        rows = self._cluster.geo.readiness(TOPIC, everywhere=True)
        return any(row.subscription == GATES and row.error for row in rows)

    def subscribe(self) -> Consumer:
        return self.topic.subscribe(GATES, type="shared", start="earliest")

    def backlog(self) -> int:
        return sum(row.backlog_messages for row in self.topic.stats().subscriptions if row.name == GATES)

    def stored(self) -> list[int]:
        """The numbers of the flights that its topic has, in its order."""
        return [
            self._flights.number(*row)
            for batch in self.topic.read()
            for row in zip(batch.values(), batch.keys(), batch.event_time.tolist(), strict=True)
        ]


def lose_a_region(log: Path, directory: Path) -> Iterator[str]:
    """All of it; yields what there is to say. log: that of the first step. Mismatch: something is not as it must be."""
    draw, flights = random.Random(1), Flights(log)
    with ExitStack() as stack:
        east, west = (Region(directory, name, flights, stack) for name in (EAST, WEST))
        east.connect()
        west.connect()
        east.replicate(west)
        west.replicate(east)
        east.topic.create_subscription(GATES, start="earliest")
        for first in range(0, BEFORE, 2 * BATCH):
            east.publish(first, first + BATCH)
            west.publish(first + BATCH, first + 2 * BATCH)
        yield (
            f"Two regions run, each with its own metadata store and bookies. Both publish into one topic: {BEFORE:,} "
            "flights. A shared subscription takes them in the east, and acknowledges out of order."
        )
        acked = draw.sample(range(BEFORE), KNOWN + LATE)
        known, late = acked[:KNOWN], acked[KNOWN:]
        work_and_die(east, flights, known, late)
        yield (
            f"Killed the east (SIGKILL). The west knew of {KNOWN:,} acknowledgements (`pyreplog geo readiness`). "
            f"{LATE:,} more had just been stored in the east, and {LAST_WORDS:,} more flights."
        )
        wait(west.is_alone, "the west never noticed that the east is gone")
        west.publish(ALIVE, RETURN)
        with west.subscribe() as consumer:
            taken = take_until(consumer, flights, RETURN - 1)
            check_fail_over([*taken], known, late)
            repeated, arrived = len({*taken} & {*late}), sum(BEFORE <= each < ALIVE for each in taken)
            left = {*draw.sample(sorted({*taken} - {*late}), LEFT)}
            acknowledge(consumer, [message for number, message in taken.items() if number not in left])
        done = ({*taken} - left) | {*known} | {*late}
        yield (
            f"The subscription goes on in the west with {len(taken):,} flights, and none is lost. {repeated:,} came "
            f"again, all of them among the last {LATE:,} that were acknowledged. Of the last {LAST_WORDS:,} flights, "
            f"{arrived:,} had arrived."
        )
        east.start()
        east.connect()
        west.know(east)
        wait(lambda: caught_up(east, west, RETURN), "the east did not catch up")
        yield (
            f"The east runs again, and caught up: it has the {MEANWHILE:,} flights that the west published meanwhile, "
            "the west has all of the east, and each knows what was acknowledged in the other."
        )
        east.publish(RETURN, FLIGHTS)
        with east.subscribe() as consumer:
            again = take_until(consumer, flights, FLIGHTS - 1)
            if {*again} != {*range(FLIGHTS)} - done:
                twice, lost = len({*again} & done), len({*range(FLIGHTS)} - done - {*again})
                raise Mismatch(f"back in the east, {twice:,} acknowledged flights came again, {lost:,} others never")
            acknowledge(consumer, again.values())
        yield f"The subscription goes on in the east with {len(again):,} flights, none that was acknowledged anywhere."
        wait(lambda: caught_up(east, west, FLIGHTS), "the west did not catch up")
        wait(lambda: not east.backlog() and not west.backlog(), "a region still has a backlog")
        for region in (east, west):
            check_stored(region)
        yield f"Both have {FLIGHTS:,} flights, each once, in the order of its origin, all as in the log; no backlog."
        rows = fail_over_rows(FLIGHTS, known, late, [*taken], left, [*again])
        write_page(directory / "regions.html", east.directory, rows)
        yield (
            "The page of it: what was acknowledged, what came again, and what did not; and reports on the east.\n"
            f"    file://{(directory / 'regions.html').resolve()}"
        )


def work_and_die(east: Region, flights: Flights, known: Sequence[int], late: Sequence[int]) -> None:
    """Acknowledge some flights, of which the west knows; publish and acknowledge more, and be killed."""
    consumer = east.subscribe()
    messages: dict[int, Message] = {}
    while len(messages) < BEFORE:
        batch = receive(consumer)
        messages |= zip(flights.numbers(batch), batch, strict=True)
    acknowledge(consumer, [messages[number] for number in known])
    wait(east.is_ready, "the west never knew all acknowledgements")
    for step in range(STEPS):  # over several exchanges, of which the last one does not arrive
        east.publish(BEFORE + LAST_WORDS * step // STEPS, BEFORE + LAST_WORDS * (step + 1) // STEPS)
        chosen = late[LATE * step // STEPS : LATE * (step + 1) // STEPS]
        acknowledge(consumer, [messages[number] for number in chosen])
    east.kill()


def receive(consumer: Consumer) -> list[Message]:
    """Some messages."""
    messages = consumer.receive(timeout=PATIENCE_S, max_messages=100)
    if not messages:
        raise Mismatch(f"the subscription gave nothing within {PATIENCE_S:.0f} s")
    return messages


def take_until(consumer: Consumer, flights: Flights, last: int) -> dict[int, Message]:
    """The messages up to this flight, by their numbers. Mismatch: one came twice."""
    taken: dict[int, Message] = {}
    while last not in taken:
        messages = receive(consumer)
        numbers = flights.numbers(messages)
        if len({*taken, *numbers}) != len(taken) + len(numbers):
            raise Mismatch("a consumer was given a flight twice")
        taken |= zip(numbers, messages, strict=True)
    return taken


def acknowledge(consumer: Consumer, messages: Iterable[Message]) -> None:
    """Returns when that is on the disks of the region."""
    for message in messages:
        consumer.acknowledge(message)
    consumer.flush()


def check_fail_over(taken: Sequence[int], known: Sequence[int], late: Sequence[int]) -> None:
    """What the west has to be given is there; what may be is what was acknowledged last, and the newest flights."""
    lost = {*range(BEFORE), *range(ALIVE, RETURN)} - {*known} - {*late} - {*taken}
    repeated = {*taken} & {*known}
    if lost or repeated:
        raise Mismatch(f"{len(lost):,} flights were lost, {len(repeated):,} repeated that the west had known of")


def caught_up(east: Region, west: Region, count: int) -> bool:
    """Whether both have so many flights, and know all that the other one has acknowledged."""
    return len(east.topic) == len(west.topic) == count and east.is_ready() and west.is_ready()


def check_stored(region: Region) -> None:
    """Each flight is there once, and those of each origin are in its order."""
    numbers = region.stored()
    if sorted(numbers) != [*range(FLIGHTS)]:
        raise Mismatch(f"the {region.name} has {len(numbers):,} flights, {len({*numbers}):,} different ones")
    for origin in (EAST, WEST):
        if any(second < first for first, second in pairwise(each for each in numbers if origin_of(each) == origin)):
            raise Mismatch(f"the {region.name} has flights that the {origin} published in another order")


def origin_of(number: int) -> str:
    """The region where a flight was published."""
    if number < BEFORE:
        return (EAST, WEST)[number // BATCH % 2]
    return WEST if ALIVE <= number < RETURN else EAST


if __name__ == "__main__":  # alone: LOG DIRECTORY, of which the latter is new
    for news in lose_a_region(Path(sys.argv[1]), Path(sys.argv[2])):
        with suppress(BrokenPipeError):
            sys.stdout.write(f"{news}\n")
            sys.stdout.flush()
