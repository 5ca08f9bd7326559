"""The append session of a client, without I/O: the order, what is sent again, and with which sequence numbers."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

from pyreplog.errors import InvalidMessageError, NotConnectedError, NotEnoughReplicasError, OutcomeUnknownError
from pyreplog.future import AppendFuture
from pyreplog.ha.protocol.append_session import BATCHES_MAX, AppendSession, Batch, Settled
from pyreplog.ha.protocol.client_messages import ClientRefusal, Refused, Run

LATER = 1 << 40


class Session(AppendSession):
    """A session whose values are bytes of their number, and whose client ids are 1, 2, …"""

    def __init__(self, **settings: Any) -> None:
        ids = count(1)
        super().__init__(lambda: next(ids).to_bytes(16, "big"), **{"batch_bytes": 100, "batch_entries": 10, **settings})

    @property
    def number(self) -> int:
        return int.from_bytes(self.client, "big")

    def put(self, value: bytes = b"x", deadline_us: int = LATER) -> AppendFuture[int]:
        future: AppendFuture[int] = AppendFuture()
        self.add(value, future, deadline_us)
        return future

    def batch(self, entries: int = 1, deadline_us: int = LATER) -> AppendFuture[Any]:
        future: AppendFuture[Any] = AppendFuture()
        self.add_batch(b"x" * entries, entries, future, deadline_us)
        return future

    def send(self) -> list[Batch]:
        taken = []
        while (batch := self.take()) is not None:
            taken.append(batch)
        return taken


def errors(settled: list[Settled]) -> list[type[BaseException] | None]:
    return [None if error is None else type(error) for _, _, error in settled]


def refusal(code: ClientRefusal) -> Refused:
    return Refused(code, "no", "")


def test_single_entries_are_gathered_while_others_are_on_their_way() -> None:
    session = Session(batch_entries=3)
    for _ in range(2):
        session.put()
        assert [batch.count for batch in session.send()] == [1]
    for _ in range(8):
        session.put()
    assert [batch.count for batch in session.send()] == [3, 3]  # the last two may still be gathered with later ones
    assert session.entries == 10 and session.bytes == 10


def test_sequence_numbers_are_consecutive() -> None:
    session = Session()
    for entries in (3, 1, 2):
        session.batch(entries)
    assert [(batch.sequence, batch.count) for batch in session.send()] == [(0, 3), (3, 1), (4, 2)]


def test_batches_in_flight_are_bounded() -> None:
    session = Session()
    for _ in range(BATCHES_MAX + 3):
        session.batch()
    sent = session.send()
    assert len(sent) == BATCHES_MAX
    session.appended(sent[0], [Run(0, 1)])
    assert len(session.send()) == 1


def test_entry_numbers_are_assigned_to_their_futures() -> None:
    session = Session()
    session_put = session.put()
    two = session.put()
    (batch,) = session.send()
    assert [(future, number) for future, number, _ in session.appended(batch, [Run(7, 2)])] == [
        (session_put, 7),
        (two, 8),
    ]
    whole = session.batch(5)
    (batch,) = session.send()
    assert session.appended(batch, [Run(9, 5)]) == [(whole, range(9, 14), None)]
    session.batch(5)
    (batch,) = session.send()
    ((_, numbers, _),) = session.appended(batch, [Run(20, 2), Run(30, 3)])
    assert numbers == (20, 21, 30, 31, 32)
    assert session.is_idle and session.entries == session.bytes == 0


def test_an_answer_for_another_number_of_entries() -> None:
    session = Session()
    session.batch(2)
    (batch,) = session.send()
    with pytest.raises(InvalidMessageError):
        session.appended(batch, [Run(0, 3)])


def test_unanswered_batches_are_sent_again_with_their_sequence_numbers() -> None:
    session = Session()
    for _ in range(3):
        session.batch(2)
    first = session.send()
    session.appended(first[0], [Run(0, 2)])
    session.batch(2)
    assert session.lost() == []
    again = session.send()
    assert [batch.sequence for batch in again] == [2, 4, 6]
    assert [batch.is_doubtful for batch in again] == [True, True, False] and session.number == 1


def test_a_node_that_is_no_master_has_appended_nothing() -> None:
    session = Session()
    for _ in range(2):
        session.batch()
    first = session.send()
    session.moved(first[0], refusal(ClientRefusal.NOT_MASTER))
    session.lost()
    assert [(batch.sequence, batch.is_doubtful) for batch in session.send()] == [(0, False), (1, True)]
    session.moved(first[0], refusal(ClientRefusal.TIMED_OUT))
    assert first[0].is_doubtful


def test_a_refused_batch_leaves_no_gap() -> None:
    """The batches behind it are refused for the gap, and sent again with new sequence numbers of another client id."""
    session = Session()
    futures = [session.batch() for _ in range(3)]
    first = session.send()
    settled = session.refused(first[0], refusal(ClientRefusal.NOT_ENOUGH_REPLICAS))
    assert [(settled[0][0], errors(settled))] == [(futures[0], [NotEnoughReplicasError])]
    session.batch()
    assert session.send() == []  # not before the other batches have their answers
    for batch in first[1:]:
        assert session.refused(batch, refusal(ClientRefusal.OUT_OF_ORDER)) == []
    assert session.number == 2
    again = session.send()
    assert again[:2] == first[1:] and [batch.sequence for batch in again] == [0, 1, 2]


def test_a_batch_that_may_be_there_is_never_sent_under_other_numbers() -> None:
    session = Session()
    futures = [session.batch() for _ in range(2)]
    session.send()
    session.lost()
    session.batch()
    again = session.send()
    settled = session.refused(again[0], refusal(ClientRefusal.UNKNOWN_CLIENT))
    settled += session.refused(again[1], refusal(ClientRefusal.OUT_OF_ORDER))
    assert [future for future, _, _ in settled] == futures and set(errors(settled)) == {OutcomeUnknownError}
    assert session.refused(again[2], refusal(ClientRefusal.OUT_OF_ORDER)) == []
    assert [batch.sequence for batch in session.send()] == [0] and session.number == 2


def test_a_connection_that_ends_while_numbers_change() -> None:
    """The outcome of a batch that was sent and not answered is unknown; a batch that was rejected is sent anew."""
    session = Session()
    for _ in range(3):
        session.batch()
    first = session.send()
    session.refused(first[0], refusal(ClientRefusal.FAILED))
    session.refused(first[1], refusal(ClientRefusal.OUT_OF_ORDER))
    assert errors(session.lost()) == [OutcomeUnknownError]
    assert session.send() == [first[1]] and first[1].sequence == 0 and session.number == 2


def test_batches_past_their_deadline_fail_by_whether_they_were_sent() -> None:
    session = Session()
    session.batch(deadline_us=10)
    sent = session.send()
    session.batch(deadline_us=20)
    session.lost()
    session.send()
    assert errors(session.expire(9, "")) == []
    assert errors(session.expire(10, "")) == [OutcomeUnknownError]
    assert session.appended(sent[0], [Run(0, 1)]) == []  # this answer comes too late
    queued = Session()
    queued.batch(deadline_us=10)
    assert errors(queued.expire(10, "")) == [NotConnectedError]


class Master:
    """A master that follows the rules of deduplication: a log of (client, sequence), which may lose its end."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.next: dict[bytes, int] = {}
        self.places: dict[tuple[bytes, int], int] = {}

    def append(self, client: bytes, sequence: int, values: list[bytes]) -> list[Run] | Refused:
        expected = self.next.get(client)
        if expected is None and sequence:
            return refusal(ClientRefusal.UNKNOWN_CLIENT)
        if sequence > (expected or 0):
            return refusal(ClientRefusal.OUT_OF_ORDER)
        for number, value in enumerate(values, sequence):
            if number >= (expected or 0):
                self.places[client, number] = len(self.log)
                self.log.append(value)
                self.next[client] = number + 1
        return [Run(self.places[client, number], 1) for number in range(sequence, sequence + len(values))]

    def lose(self, end: int) -> None:
        """Replace the master by one whose log ends there."""
        del self.log[end:]
        self.places = {key: place for key, place in self.places.items() if place < end}
        self.next = {}
        for client, number in self.places:
            self.next[client] = max(self.next.get(client, 0), number + 1)


@pytest.mark.parametrize("seed", range(300))
def test_acknowledged_entries_are_in_the_log_once_in_random_runs(seed: int) -> None:
    """Acknowledged entries are in the log once and in order, refused ones are not, and unknown ones are at most once."""
    chance = random.Random(seed)
    session, master = Session(batch_entries=3), Master()
    values: dict[AppendFuture[Any], list[bytes]] = {}
    outcomes: dict[AppendFuture[Any], Any] = {}
    on_wire: list[tuple[Batch, bytes, int, list[bytes]]] = []
    answers: list[tuple[Batch, list[Run] | Refused]] = []
    acknowledged, numbers = 0, count()

    def settle(settled: list[Settled]) -> None:
        nonlocal acknowledged
        for future, result, error in settled:
            assert future not in outcomes
            outcomes[future] = error or result
            if error is None:
                last = result if isinstance(result, int) else max(result)
                acknowledged = max(acknowledged, last + 1)

    for now in range(200):
        event = chance.random()
        if event < 0.4:
            future: AppendFuture[Any] = AppendFuture()
            deadline = now + chance.choice((5, 1000))
            batch_values = [b"%06d" % next(numbers) for _ in range(chance.choice((1, 1, 2, 4)))]
            values[future] = batch_values
            if len(batch_values) == 1:
                session.add(batch_values[0], future, deadline)
            else:
                session.add_batch(b"".join(batch_values), len(batch_values), future, deadline)
        elif event < 0.6:
            for batch in session.send():
                data = b"".join(batch.records)
                on_wire.append(
                    (batch, session.client, batch.sequence, [data[i : i + 6] for i in range(0, len(data), 6)])
                )
        elif event < 0.75 and on_wire:
            batch, client, sequence, sent = on_wire.pop(0)
            if chance.random() < 0.1:
                answers.append((batch, refusal(ClientRefusal.NOT_ENOUGH_REPLICAS)))
            else:
                answers.append((batch, master.append(client, sequence, sent)))
        elif event < 0.9 and answers:
            batch, answer = answers.pop(0)
            settle(session.refused(batch, answer) if isinstance(answer, Refused) else session.appended(batch, answer))
        elif event < 0.96:  # the connection is lost, and only a part of what was in flight arrives
            for _, client, sequence, sent in on_wire[: chance.randrange(len(on_wire) + 1)]:
                master.append(client, sequence, sent)
            on_wire, answers = [], []
            if chance.random() < 0.5:
                master.lose(chance.randint(min(acknowledged, len(master.log)), len(master.log)))
            settle(session.lost())
        else:
            settle(session.expire(now, "late"))
    stored = master.log
    assert len(set(stored)) == len(stored)
    confirmed: list[int] = []
    for future, outcome in outcomes.items():
        if isinstance(outcome, OutcomeUnknownError):
            continue
        if isinstance(outcome, BaseException):
            assert not set(values[future]) & set(stored), outcome
            continue
        places = [outcome] if isinstance(outcome, int) else list(outcome)
        assert [stored[place] for place in places] == values[future]
        assert places == sorted(places)
    for future in values:
        outcome = outcomes.get(future)
        if outcome is not None and not isinstance(outcome, BaseException):
            confirmed.append(outcome if isinstance(outcome, int) else outcome[0])
    assert confirmed == sorted(confirmed)
