"""Clusters that exchange the state of subscriptions without a clock: their messages are delivered when a test says so."""

from __future__ import annotations

import numpy as np

from pyreplog.geo.acks.effects import Effect, Persist, Send
from pyreplog.geo.acks.exchange import LATER_FLUSHES, SubscriptionExchange
from pyreplog.geo.acks.journal import replay
from pyreplog.geo.acks.origin_ranges import OriginRanges, Ranges
from pyreplog.geo.acks.subscription_state import FIRST_GENERATION, Generation
from pyreplog.origins.origin import Origin, OriginState


def cluster_id(letter: str) -> bytes:
    return letter.encode() * 16


def origin(letter: str, number: int = 1) -> Origin:
    return Origin(cluster_id(letter), f"{letter}{number}")


def span(*offsets: int) -> Ranges:
    """Return ranges of one offset each."""
    starts = np.array(offsets, np.int64)
    return starts, starts + 1


def whole(start: int, end: int) -> Ranges:
    return np.array([start]), np.array([end])


def bases(**ends: int) -> OriginRanges:
    """Return the ranges below an offset, for the origin of each cluster."""
    ranges = OriginRanges()
    for letter, end in ends.items():
        ranges.add(origin(letter), *whole(0, end))
    return ranges


class Side:
    """One cluster. Its records become durable at once, or when the test says so (`is_fast`)."""

    def __init__(self, letter: str, others: str, *, links: str | None = None, stores: bool = True) -> None:
        self.letter, self.id, self.origin = letter, cluster_id(letter), origin(letter)
        self.others, self.links = others, others if links is None else links
        self.journal: list[Persist] = []
        self.outbox: list[Send] = []
        self.effects: list[Effect] = []  # all other effects
        self.positions: dict[Origin, OriginState] = {}  # of the topics of other clusters, as they are stored here
        self.stores = stores  # whether it stores the first 1000 messages of each cluster
        self.end: int | None = None  # of its topic; None: the exchange knows all messages
        self.is_fast = True  # records are durable at once
        self.boot()

    def boot(self) -> None:
        """Start from the records of the journal, as a process does after a crash."""
        records = [persist.data for persist in self.journal]
        self.exchange = SubscriptionExchange(
            self.origin,
            participants=[self.id, *map(cluster_id, self.others)],
            neighbours=[*map(cluster_id, self.links)],
            replayed=replay(records),
            positions=lambda: self.positions,
            end=lambda: self.exchange.early_acks.stored(self.origin) if self.end is None else self.end,
        )
        self.outbox.clear()
        self.effects.clear()
        for letter in self.letter + self.others if self.stores else self.letter:
            self.do(self.exchange.arrive(origin(letter), 1000))

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist(sequence=sequence):
                    self.journal.append(effect)
                    if self.is_fast:
                        self.do(self.exchange.persisted(sequence))
                case Send():
                    self.outbox.append(effect)
                case _:
                    self.effects.append(effect)

    def acknowledge(self, name: str, at: str, *offsets: int, generation: Generation | None = None) -> None:
        state = self.exchange.state(name)
        token = min(state.tokens) if state is not None else "none"
        if generation is None:
            generation = state.generation if state is not None else FIRST_GENERATION
        self.do(self.exchange.acknowledge(name, token, generation, origin(at), *span(*offsets)))

    def acked(self, name: str, at: str) -> list[int]:
        state = self.exchange.state(name)
        assert state is not None
        return [
            number
            for start, end in zip(*state.acks.between(origin(at)), strict=True)
            for number in range(int(start), int(end))
        ]

    def taken(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects


class Clusters:
    """Several clusters. Each is linked with each other one, unless `links` names pairs."""

    def __init__(self, letters: str = "ab", links: tuple[str, ...] | None = None, *, stored: bool = True) -> None:
        self.session = 0
        pairs = links or tuple(one + two for place, one in enumerate(letters) for two in letters[place + 1 :])
        self.pairs = list(pairs)
        self.sides = {}
        for letter in letters:
            linked = "".join(sorted({*"".join(pair for pair in pairs if letter in pair)} - {letter}))
            self.sides[letter] = Side(letter, letters.replace(letter, ""), links=linked, stores=stored)

    def __getitem__(self, letter: str) -> Side:
        return self.sides[letter]

    def connect(self, pair: str, *, proved: bool = True, thirds: bool = True) -> None:
        """Begin a session between two clusters.

        Their histories count as proved: those of all origins, or without `thirds` those of the two clusters alone.
        Without `proved` none is.
        """
        self.session += 1
        one, two = (self.sides[letter] for letter in pair)
        for side, other in ((one, two), (two, one)):
            side.outbox = [send for send in side.outbox if send.peer != other.id]
            side.do(side.exchange.connect(other.id, self.session))
        if proved:
            for side, other in ((one, two), (two, one)):
                for letter in self.sides if thirds else pair:
                    side.do(side.exchange.prove(other.id, origin(letter)))

    def connect_all(self) -> None:
        for pair in self.pairs:
            self.connect(pair)
        self.settle()

    def cut(self, pair: str) -> None:
        one, two = (self.sides[letter] for letter in pair)
        for side, other in ((one, two), (two, one)):
            side.outbox = [send for send in side.outbox if send.peer != other.id]
            side.do(side.exchange.disconnect(other.id))

    def carry(self) -> int:
        """Deliver all messages that are in flight; return how many messages that were."""
        carried = 0
        for side in self.sides.values():
            sends, side.outbox = side.outbox, []
            for send in sends:
                receiver = next(other for other in self.sides.values() if other.id == send.peer)
                receiver.do(receiver.exchange.receive(side.id, send.data))
                carried += 1
        return carried

    def settle(self) -> None:
        """Flush and deliver until nothing is in flight, for longer than any delta may be delayed."""
        quiet = 0
        for _ in range(100):
            for side in self.sides.values():
                side.do(side.exchange.flush())
            quiet = quiet + 1 if not self.carry() and not any(side.outbox for side in self.sides.values()) else 0
            if quiet > LATER_FLUSHES:
                return
        raise AssertionError("clusters do not come to an end")
