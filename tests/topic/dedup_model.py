"""A model of deduplication with plain sets, and entries of a topic in their stored form."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import MessageBatch, decode_messages
from pyreplog.topic.model.dedup import DedupVerdict
from tests.topic.entries import records_of

Push = tuple[bytes, list[int]]


@dataclass
class Model:
    """The expected state of producers.

    Attributes:
        stored: stored numbers, by producer.
        failed: numbers that are known not to be stored, by producer.
        flights: batches in flight, in order.
    """

    stored: dict[bytes, set[int]] = field(default_factory=dict)
    failed: dict[bytes, set[int]] = field(default_factory=dict)
    flights: deque[Push] = field(default_factory=deque)
    log: list[Push] = field(default_factory=list)
    pushed: dict[bytes, int] = field(default_factory=dict)  # the highest number since no batch was in flight

    def flying(self, name: bytes) -> set[int]:
        return {number for producer, numbers in self.flights if producer == name for number in numbers}

    def check_sequence(self, name: bytes, number: int) -> DedupVerdict:
        stored, flying = self.stored.get(name, set()), self.flying(name)
        if number in stored:
            return DedupVerdict.DUPLICATE
        if number in flying:
            return DedupVerdict.IN_DOUBT
        highest = max(stored, default=-1)
        if number in self.failed.get(name, ()) or number > max(highest, self.pushed.get(name, -1) if flying else -1):
            return DedupVerdict.NEW
        # The number was left out when a higher one was published.
        return DedupVerdict.DUPLICATE if number < highest else DedupVerdict.IN_DOUBT

    def push(self, name: bytes, numbers: list[int]) -> None:
        self.pushed[name] = max(self.pushed.get(name, -1) if self.flying(name) else -1, numbers[-1])
        self.flights.append((name, numbers))
        self.failed.setdefault(name, set()).difference_update(numbers)

    def store(self) -> Push:
        name, numbers = self.flights.popleft()
        self.stored.setdefault(name, set()).update(numbers)
        self.log.append((name, numbers))
        return name, numbers

    def fail(self) -> Push:
        name, numbers = self.flights.popleft()
        self.failed.setdefault(name, set()).update(numbers)
        return name, numbers

    def missing(self) -> dict[bytes, set[int]]:
        """Return the numbers that a snapshot names as not stored; they may be stored later."""
        known = {name: set(numbers) for name, numbers in self.failed.items()}
        passed = {name: max(numbers, default=-1) for name, numbers in self.stored.items()}
        for name, numbers in self.flights:
            before = passed.get(name, -1)
            known.setdefault(name, set()).update(number for number in numbers if number < before)
            passed[name] = max(before, numbers[-1])
        return known

    def crash(self, stored: int, missing: dict[bytes, set[int]]) -> None:
        """Crash: the first `stored` batches in flight were stored; of failed numbers, only `missing` is remembered."""
        for _ in range(min(stored, len(self.flights))):
            self.store()
        self.flights.clear()
        self.failed = {name: numbers - self.stored.get(name, set()) for name, numbers in missing.items()}


def entries_of(log: list[Push], first: int) -> MessageBatch:
    """Return the entries of a topic from one on."""
    counts = [len(numbers) for _, numbers in log]
    entries = [encode_messages([b"v"] * len(numbers), producer=name, sequences=numbers) for name, numbers in log]
    size, messages = sum(map(len, entries[:first])), sum(counts[:first])
    records = records_of(entries[first:], counts[first:], first=first, size=size, messages=messages)
    return decode_messages(records, offset=0, entries=0, size=0)
