"""EntrySender, step by step: what is sent when, what is sent again, and which outcomes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.errors import (
    BacklogFullError,
    ClosedError,
    InvalidEntryError,
    InvalidMessageError,
    NotConnectedError,
    OutcomeUnknownError,
    PeerError,
    PeerTimeoutError,
    RecordTooLargeError,
    ReplogError,
    TopicFencedError,
    UnsupportedRequestError,
)
from pyreplog.future import Outcome
from pyreplog.topic.client.publishing.publish_batch import Encoder, PublishBatch, Share
from pyreplog.topic.client.remote import sender
from pyreplog.topic.client.remote.connection_pool import ConnectionPool, StaleError
from pyreplog.topic.client.remote.sender import RETRY_MOST_S, RETRY_S, EntrySender, SequenceAllocator
from pyreplog.topic.model.dedup import DedupVerdict
from pyreplog.topic.model.wire.fields import ENTRIES_MAX
from pyreplog.topic.model.wire.protocol import (
    OK,
    PUBLISHED,
    CloseProducer,
    Open,
    Opened,
    Publish,
    PublishTo,
    encode_reply,
)
from tests.topic.test_attachment import Hand

OPENED = [encode_reply(Opened(-1, 1 << 20, "{}"))]


def published(first: int, total: int, stored: int, kept: bytes = b"") -> list[bytes]:
    return [bytes((OK,)) + PUBLISHED.encode((first, total, stored)) + kept]


class Batch(PublishBatch):
    """A batch of one entry that notes its outcome."""

    def __init__(self, messages: int = 1, *, entry: bytes | None = None) -> None:
        self.messages = self.messages_submitted = messages
        self.entries = [encode_messages([b"%d" % at for at in range(messages)]) if entry is None else entry]
        self.entry_bytes = self.size = sum(map(len, self.entries))
        self.on_settled = lambda _: None

    def encode(self, encoder: Encoder) -> None:
        raise AssertionError("it is encoded")

    def shares(self) -> Iterator[Share]:
        return iter(())

    def outcomes(self) -> list[Outcome]:
        return []

    @property
    def outcome(self) -> Any:
        """Offsets, or the class of the error; None: it has no outcome."""
        return None if not self.is_settled else type(self.error) if self.error is not None else [*self.offsets]


class Pool(Hand):
    """The connections, in the hand of the test."""

    client = "client"

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.is_closed = False

    def wake_after(self, seconds: float, call: Callable[[], None]) -> Any:
        if self.is_closed:
            return None
        self.timers.append((seconds, call))
        return call

    def ring(self) -> float:
        """Run the timer, which must be the only one; return its seconds."""
        ((seconds, call),) = self.timers
        self.timers.clear()
        call()
        return seconds

    def kinds(self) -> list[str]:
        return [type(request).__name__ for request, _ in self._asked]

    def requests(self, kind: type[Any]) -> list[Any]:
        return [request for request, _ in self._asked if isinstance(request, kind)]


class Stand:
    def __init__(self, producer: str = "") -> None:
        self.pool, self.opened = Pool(), list[Opened]()
        self.sender = EntrySender(cast("ConnectionPool", self.pool), "news", producer, self.opened.append)

    def submit(self, *batches: Batch) -> None:
        self.sender.submit_all(batches)

    def open(self) -> None:
        self.pool.answer(Open, OPENED)


# ---- producer sessions -----------------------------------------------------------------------------------------------------


def test_a_session_is_opened_with_the_first_batch_and_the_others_wait_for_it() -> None:
    stand, batches = Stand(), [Batch(count) for count in (1, 2, 3)]
    stand.submit(batches[0])
    stand.submit(*batches[1:])
    assert stand.pool.requests(Open) == [Open(1, False, "news", "", "client", "")] and len(stand.pool.kinds()) == 1
    stand.open()
    assert stand.opened == [Opened(-1, 1 << 20, "{}")]
    assert stand.pool.requests(Publish) == [Publish(1, batch.entries) for batch in batches]
    stand.pool.answer(Publish, published(7, 1, 1))
    stand.pool.answer(Publish, published(8, 2, 2))
    assert [batch.outcome for batch in batches] == [[7], [8, 9], None]
    stand.submit(late := Batch())
    assert stand.pool.kinds() == ["Publish", "Publish"]
    stand.pool.answer(Publish, InvalidEntryError("of a test"))
    stand.pool.answer(Publish, published(-1, 1, 0))
    assert (batches[2].outcome, late.outcome) == (InvalidEntryError, [-1])


def test_a_session_is_opened_before_there_is_anything_to_send() -> None:
    stand = Stand("p")
    opened = stand.sender.open()
    assert stand.pool.requests(Open) == [Open(1, False, "news", "p", "client", "")]
    assert not opened.done()
    stand.open()
    assert opened.result(0) == Opened(-1, 1 << 20, "{}") == stand.opened[0]
    stand.submit(Batch())
    assert stand.pool.kinds() == ["Publish"]


@pytest.mark.parametrize("error", [ClosedError("gone"), InvalidMessageError("not so"), NotConnectedError("no")])
def test_the_first_error_of_an_opening_is_told_and_nothing_is_tried_again(error: ReplogError) -> None:
    stand = Stand()
    opened = stand.sender.open()
    stand.pool.answer(Open, error)
    assert opened.exception() is error
    assert stand.pool.kinds() == [] and stand.pool.timers == []
    again = stand.sender.open()
    stand.open()
    assert again.done() and again.exception() is None


def test_attributes_go_along() -> None:
    stand, batch = Stand(), Batch()
    batch.attributes = [b"attributes"]
    stand.submit(batch)
    stand.open()
    assert stand.pool.requests(PublishTo) == [PublishTo(1, [b"attributes"], batch.entries)]


@pytest.mark.parametrize(("was_sent", "expected"), [(False, UnsupportedRequestError), (True, OutcomeUnknownError)])
def test_an_older_server_gets_no_attributes(was_sent: bool, expected: type[ReplogError]) -> None:
    stand, batch = Stand("p"), Batch()
    batch.attributes = [b"attributes"]
    stand.submit(batch)
    stand.open()
    if was_sent:
        stand.pool.answer(PublishTo, StaleError("another owner"))
        stand.pool.ring()
        stand.open()
    stand.pool.answer(PublishTo, UnsupportedRequestError("older"))
    assert batch.outcome is expected


# ---- what is sent again ----------------------------------------------------------------------------------------


def test_openings_that_fail_are_tried_again_ever_later() -> None:
    stand, batch, pauses = Stand(), Batch(), list[float]()
    stand.submit(batch)
    for _ in range(8):
        stand.pool.answer(Open, TopicFencedError("news", "moves"))
        stand.submit(Batch())  # opens nothing by itself meanwhile
        assert stand.pool.kinds() == []
        pauses.append(stand.pool.ring())
        assert stand.pool.kinds() == ["Open"]
    assert pauses == [RETRY_S, 0.1, 0.2, 0.4, 0.8, RETRY_MOST_S, RETRY_MOST_S, RETRY_MOST_S]
    stand.open()
    stand.pool.answer(Publish, published(0, 1, 1))
    assert batch.outcome == [0]
    stand.pool.answer(Publish, StaleError("another owner"))
    assert stand.pool.ring() == RETRY_S, "it had gone well"


@pytest.mark.parametrize(
    ("error", "expected"),
    [(InvalidMessageError("not so"), InvalidMessageError), (NotConnectedError("tried for long"), NotConnectedError)],
)
def test_an_opening_that_cannot_succeed_fails_all_batches(error: ReplogError, expected: type[ReplogError]) -> None:
    stand, batches = Stand(), [Batch(), Batch()]
    stand.submit(*batches)
    stand.pool.answer(Open, error)
    assert [batch.outcome for batch in batches] == [expected] * 2 and stand.pool.timers == []
    stand.submit(later := Batch())
    stand.open()
    stand.pool.answer(Publish, published(3, 1, 1))
    assert later.outcome == [3], "the next one begins anew"


def test_what_has_failed_takes_no_time_from_what_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(sender.time, "monotonic", lambda: now[0])
    stand, batch = Stand(), Batch()
    stand.submit(Batch())
    stand.pool.answer(Open, InvalidMessageError("not so"))
    stand.sender.open()
    stand.pool.answer(Open, StaleError("moves"))
    assert stand.pool.timers == [], "nothing waits for a session"
    now[0] += 100.0
    stand.submit(batch)
    stand.pool.answer(Open, StaleError("moves"))
    assert (batch.outcome, len(stand.pool.timers)) == (None, 1)


@pytest.mark.parametrize(("passed", "is_over"), [(30.0, False), (30.1, True)])
def test_openings_are_tried_until_the_timeout(passed: float, is_over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(sender.time, "monotonic", lambda: now[0])
    stand, batch = Stand(), Batch()
    opened = stand.sender.open()
    stand.pool.answer(Open, StaleError("moves"))
    assert opened.done()
    now[0] += 100.0  # nothing waited meanwhile
    stand.submit(batch)
    now[0] += passed / 2
    stand.pool.answer(Open, StaleError("moves"))
    stand.pool.ring()
    now[0] += passed / 2
    stand.pool.answer(Open, StaleError("moves"))
    assert (batch.outcome, len(stand.pool.timers)) == ((NotConnectedError, 0) if is_over else (None, 1))


def test_without_a_producer_a_batch_whose_outcome_is_unknown_is_not_sent_again() -> None:
    stand, batches = Stand(), [Batch(), Batch(), Batch()]
    stand.submit(*batches)
    stand.open()
    stand.pool.answer(Publish, PeerTimeoutError("no answer"))
    stand.pool.answer(Publish, StaleError("another owner"))
    assert [batch.outcome for batch in batches] == [PeerTimeoutError, None, None]
    assert not batches[1].was_sent, "the server did nothing with it"
    stand.pool.answer(Publish, NotConnectedError("it was never sent"))
    assert stand.pool.ring() == RETRY_S and stand.pool.kinds() == ["Open"]
    stand.open()
    assert stand.pool.requests(Publish) == [Publish(2, batch.entries) for batch in batches[1:]]


def test_after_a_connection_that_could_not_be_made_the_next_owner_is_asked_at_once() -> None:
    """The pool has tried for long."""
    stand, batch = Stand(), Batch()
    stand.submit(batch)
    stand.open()
    stand.pool.answer(Publish, NotConnectedError("it was never sent"))
    assert stand.pool.kinds() == ["Open"] and stand.pool.timers == []


def test_a_batch_that_the_session_before_refuses_late_goes_through_the_next_one() -> None:
    stand, batches = Stand(), [Batch(1), Batch(2)]
    stand.submit(*batches)
    stand.open()
    stand.pool.answer(Publish, StaleError("another owner"))
    stand.pool.ring()
    stand.open()
    stand.pool.answer(Publish, StaleError("another owner"))
    assert stand.pool.requests(Publish) == [Publish(2, batch.entries) for batch in batches]
    assert stand.pool.kinds() == ["Publish"] * 2 and stand.pool.timers == []


def test_batches_of_a_producer_are_sent_again_in_order() -> None:
    stand, batches = Stand("p"), [Batch(count) for count in (1, 2, 3)]
    stand.submit(*batches)
    stand.open()
    stand.pool.answer(Publish, published(0, 1, 1))
    stand.pool.answer(Publish, PeerTimeoutError("no answer"))
    assert stand.pool.kinds() == ["Publish"] and len(stand.pool.timers) == 1
    stand.pool.ring()
    assert stand.pool.kinds() == ["Publish", "Open"]
    stand.open()
    assert stand.pool.requests(Publish)[1:] == [Publish(2, batch.entries) for batch in batches[1:]]
    stand.pool.answer(Publish, published(99, 3, 3))  # of the first session: it comes too late
    assert batches[2].outcome is None
    stand.pool.answer(Publish, published(-1, 2, 0))
    stand.pool.answer(Publish, published(3, 3, 1, b"\x40"))
    assert [batch.outcome for batch in batches] == [[0], [-1, -1], [-1, 3, -1]]
    assert all(batch.was_sent for batch in batches)


def test_what_was_sent_and_cannot_be_sent_again_is_unknown() -> None:
    stand, sent, waiting = Stand("p"), Batch(), Batch()
    stand.submit(sent)
    stand.open()
    stand.pool.answer(Publish, ClosedError("lost"))
    stand.submit(waiting)
    stand.pool.ring()
    stand.pool.answer(Open, InvalidMessageError("not so"))
    assert (sent.outcome, waiting.outcome) == (OutcomeUnknownError, InvalidMessageError)
    assert sent.error is not None and isinstance(sent.error.__cause__, InvalidMessageError)


def test_an_error_of_another_kind_leaves_the_session() -> None:
    stand, batches = Stand(), [Batch(), Batch()]
    stand.submit(*batches)
    stand.open()
    stand.pool.answer(Publish, InvalidEntryError("not so"))
    stand.pool.answer(Publish, [bytes((OK,)) + b"no reply"])
    assert [batch.outcome for batch in batches] == [InvalidEntryError, InvalidMessageError]
    stand.submit(Batch())
    assert stand.pool.kinds() == ["Publish"]


# ---- the end ---------------------------------------------------------------------------------------------------


def test_closing_fails_what_has_no_outcome_and_gives_the_session_up() -> None:
    stand, sent, settled = Stand(), Batch(), Batch()
    stand.submit(settled, sent)
    stand.open()
    stand.pool.answer(Publish, published(0, 1, 1))
    stand.sender.close(ClosedError("closed"))
    assert (settled.outcome, sent.outcome) == ([0], OutcomeUnknownError)
    assert stand.pool.requests(CloseProducer) == [CloseProducer(1)]
    stand.pool.answer(Publish, published(1, 1, 1))
    assert sent.outcome is OutcomeUnknownError, "nobody waits for it any more"
    with pytest.raises(ClosedError, match="closed"):
        stand.submit(Batch())
    stand.sender.close(ClosedError("again"))
    assert len(stand.pool.requests(CloseProducer)) == 1


def test_closing_while_a_session_is_opened_gives_it_up_when_it_is() -> None:
    stand, batch = Stand(), Batch()
    stand.submit(batch)
    stand.sender.close(ClosedError("closed"))
    assert batch.outcome is ClosedError, "it was never sent"
    stand.open()
    assert stand.pool.kinds() == ["CloseProducer"]


def test_who_leaves_closes_the_session_behind_the_last_batch() -> None:
    stand, batches = Stand(), [Batch(), Batch()]
    stand.sender.leave()
    assert stand.pool.kinds() == [], "there was nothing"
    stand = Stand()
    stand.submit(*batches)
    stand.sender.leave()
    stand.open()
    assert stand.pool.kinds() == ["Publish", "Publish", "CloseProducer"]
    stand.pool.answer(Publish, BacklogFullError("news", "a quota holds publishers"))
    stand.pool.answer(Publish, published(0, 1, 1))
    assert [batch.outcome for batch in batches] == [BacklogFullError, [0]]
    assert stand.sender.refused is batches[0].error


def test_a_quota_while_nobody_leaves_is_told_to_the_batch_alone() -> None:
    stand, batch = Stand(), Batch()
    stand.submit(batch)
    stand.open()
    stand.pool.answer(Publish, BacklogFullError("news", "a quota holds publishers"))
    assert (batch.outcome, stand.sender.refused) == (BacklogFullError, None)


@pytest.mark.parametrize("error", [PeerError("older"), ClosedError("gone"), InvalidMessageError("not so")])
def test_a_session_that_is_not_closed_at_the_server_is_logged_if_that_is_strange(
    error: ReplogError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", sender.logger.name)
    stand = Stand()
    stand.sender.open()
    stand.open()
    stand.sender.close(ClosedError("closed"))
    stand.pool.answer(CloseProducer, error)
    assert ("a producer session was not closed" in caplog.text) is isinstance(error, InvalidMessageError)


# ---- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value"), [("BATCH_BYTES_MAX", 1000), ("RAW_BYTES_MAX", 500), ("ENTRIES_MAX", 3)]
)  # fmt: skip
def test_a_batch_at_a_limit_is_sent_and_one_beyond_is_not(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, limit, value)
    stand, fits, beyond = Stand(), Batch(), Batch()
    for batch, more in ((fits, 0), (beyond, 1)):
        entry = batch.entries[0]
        if limit == "BATCH_BYTES_MAX":
            batch.entry_bytes = value + more
        elif limit == "RAW_BYTES_MAX":
            raw = int.from_bytes(entry[12:16], "little")
            head = entry[:12] + (value + more).to_bytes(4, "little") + entry[16:]
            assert raw and len(head) == len(entry)
            batch.entries = [head]
        else:
            batch.entries = [entry] * (value + more)
    stand.submit(fits, beyond)
    stand.open()
    assert len(stand.pool.requests(Publish)) == 1 and fits.outcome is None
    assert beyond.outcome is RecordTooLargeError and "publish it in parts" in str(beyond.error)
    assert ENTRIES_MAX >= 1 << 10


def test_attributes_count_as_bytes_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    stand, batch = Stand(), Batch()
    monkeypatch.setattr(sender, "BATCH_BYTES_MAX", batch.entry_bytes + 10)
    batch.attributes = [b"attributes"]  # and their lengths
    stand.submit(batch)
    assert batch.outcome is RecordTooLargeError


@pytest.mark.parametrize(
    "reply",
    [
        published(0, 2, 2),  # of two messages
        published(0, 3, 4),
        published(-1, 3, 1, b"\x80"),
        published(0, 3, 0),
        published(0, 3, 3, b"\x00"),
        published(-1, 3, 0, b"\x00"),
        published(0, 3, 2, b"\x80"),
        published(0, 3, 2, b""),
        published(0, 3, 2, b"\xc0\x00"),
    ],
)
def test_a_reply_that_cannot_be_is_an_error(reply: list[bytes]) -> None:
    stand, batch = Stand(), Batch(3)
    stand.submit(batch)
    stand.open()
    stand.pool.answer(Publish, reply)
    assert batch.outcome is InvalidMessageError


# ---- numbers ---------------------------------------------------------------------------------------------------


def test_no_number_is_assigned_twice() -> None:
    numbers = SequenceAllocator()
    assert (numbers.next_sequence(b"p"), numbers.last_sequence(b"p")) == (0, -1)
    numbers.seed(6)
    numbers.seed(4)
    assert (numbers.next_sequence(b"p"), numbers.last_sequence(b"p")) == (7, 6)
    numbers.push(b"p", np.array([7, 9]))
    assert (numbers.next_sequence(b"p"), numbers.last_sequence(b"p")) == (10, 9)
    numbers.failed(b"p", np.array([7, 9]))
    assert (numbers.next_sequence(b"p"), numbers.has_new_failures) == (10, False)
    assert numbers.check_sequence(b"p", 3) is DedupVerdict.NEW, "the owner remembers what it has"
    new = numbers.find_new(b"p", np.array([3, 11]))
    assert new is not None and new.tolist() == [True, True]
