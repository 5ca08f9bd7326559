"""Each step of an EntrySender: the sender sends entries, repeats lost ones, and reports the outcome of each entry."""

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
from tests.topic.test_attachment import FakeConnectionPool

OPENED = [encode_reply(Opened(-1, 1 << 20, "{}"))]


def published(first: int, total: int, stored: int, kept: bytes = b"") -> list[bytes]:
    return [bytes((OK,)) + PUBLISHED.encode((first, total, stored)) + kept]


class Batch(PublishBatch):
    """A batch of one entry, which records its outcome."""

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
        """Return the offsets, the class of the error, or None without an outcome."""
        return None if not self.is_settled else type(self.error) if self.error is not None else [*self.offsets]


class Pool(FakeConnectionPool):
    """A connection pool whose requests the test answers, and whose timers it runs."""

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


class SenderLab:
    def __init__(self, producer: str = "") -> None:
        self.pool, self.opened = Pool(), list[Opened]()
        self.sender = EntrySender(cast("ConnectionPool", self.pool), "news", producer, self.opened.append)

    def submit(self, *batches: Batch) -> None:
        self.sender.submit_all(batches)

    def open(self) -> None:
        self.pool.answer(Open, OPENED)


# ---- producer sessions -----------------------------------------------------------------------------------------------------


def test_a_session_is_opened_with_the_first_batch_and_the_others_wait_for_it() -> None:
    lab, batches = SenderLab(), [Batch(count) for count in (1, 2, 3)]
    lab.submit(batches[0])
    lab.submit(*batches[1:])
    assert lab.pool.requests(Open) == [Open(1, False, "news", "", "client", "")] and len(lab.pool.kinds()) == 1
    lab.open()
    assert lab.opened == [Opened(-1, 1 << 20, "{}")]
    assert lab.pool.requests(Publish) == [Publish(1, batch.entries) for batch in batches]
    lab.pool.answer(Publish, published(7, 1, 1))
    lab.pool.answer(Publish, published(8, 2, 2))
    assert [batch.outcome for batch in batches] == [[7], [8, 9], None]
    lab.submit(late := Batch())
    assert lab.pool.kinds() == ["Publish", "Publish"]
    lab.pool.answer(Publish, InvalidEntryError("of a test"))
    lab.pool.answer(Publish, published(-1, 1, 0))
    assert (batches[2].outcome, late.outcome) == (InvalidEntryError, [-1])


def test_a_session_is_opened_before_there_is_anything_to_send() -> None:
    lab = SenderLab("p")
    opened = lab.sender.open()
    assert lab.pool.requests(Open) == [Open(1, False, "news", "p", "client", "")]
    assert not opened.done()
    lab.open()
    assert opened.result(0) == Opened(-1, 1 << 20, "{}") == lab.opened[0]
    lab.submit(Batch())
    assert lab.pool.kinds() == ["Publish"]


@pytest.mark.parametrize("error", [ClosedError("gone"), InvalidMessageError("not so"), NotConnectedError("no")])
def test_error_before_the_session_first_opens_fails_open_without_a_retry(error: ReplogError) -> None:
    lab = SenderLab()
    opened = lab.sender.open()
    lab.pool.answer(Open, error)
    assert opened.exception() is error
    assert lab.pool.kinds() == [] and lab.pool.timers == []
    again = lab.sender.open()
    lab.open()
    assert again.done() and again.exception() is None


def test_attributes_of_entries_are_sent() -> None:
    lab, batch = SenderLab(), Batch()
    batch.attributes = [b"attributes"]
    lab.submit(batch)
    lab.open()
    assert lab.pool.requests(PublishTo) == [PublishTo(1, [b"attributes"], batch.entries)]


@pytest.mark.parametrize(("was_sent", "expected"), [(False, UnsupportedRequestError), (True, OutcomeUnknownError)])
def test_an_older_server_gets_no_attributes(was_sent: bool, expected: type[ReplogError]) -> None:
    lab, batch = SenderLab("p"), Batch()
    batch.attributes = [b"attributes"]
    lab.submit(batch)
    lab.open()
    if was_sent:
        lab.pool.answer(PublishTo, StaleError("another owner"))
        lab.pool.ring()
        lab.open()
    lab.pool.answer(PublishTo, UnsupportedRequestError("older"))
    assert batch.outcome is expected


# ---- what is sent again ----------------------------------------------------------------------------------------


def test_openings_that_fail_are_tried_again_ever_later() -> None:
    lab, batch, pauses = SenderLab(), Batch(), list[float]()
    lab.submit(batch)
    for _ in range(8):
        lab.pool.answer(Open, TopicFencedError("news", "moves"))
        lab.submit(Batch())  # it opens no session by itself meanwhile
        assert lab.pool.kinds() == []
        pauses.append(lab.pool.ring())
        assert lab.pool.kinds() == ["Open"]
    assert pauses == [RETRY_S, 0.1, 0.2, 0.4, 0.8, RETRY_MOST_S, RETRY_MOST_S, RETRY_MOST_S]
    lab.open()
    lab.pool.answer(Publish, published(0, 1, 1))
    assert batch.outcome == [0]
    lab.pool.answer(Publish, StaleError("another owner"))
    assert lab.pool.ring() == RETRY_S, "it had gone well"


@pytest.mark.parametrize(
    ("error", "expected"),
    [(InvalidMessageError("not so"), InvalidMessageError), (NotConnectedError("tried for long"), NotConnectedError)],
)
def test_an_opening_that_cannot_succeed_fails_all_batches(error: ReplogError, expected: type[ReplogError]) -> None:
    lab, batches = SenderLab(), [Batch(), Batch()]
    lab.submit(*batches)
    lab.pool.answer(Open, error)
    assert [batch.outcome for batch in batches] == [expected] * 2 and lab.pool.timers == []
    lab.submit(later := Batch())
    lab.open()
    lab.pool.answer(Publish, published(3, 1, 1))
    assert later.outcome == [3], "the next one begins anew"


def test_each_opening_has_its_own_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(sender.time, "monotonic", lambda: now[0])
    lab, batch = SenderLab(), Batch()
    lab.submit(Batch())
    lab.pool.answer(Open, InvalidMessageError("not so"))
    lab.sender.open()
    lab.pool.answer(Open, StaleError("moves"))
    assert lab.pool.timers == [], "nothing waits for a session"
    now[0] += 100.0
    lab.submit(batch)
    lab.pool.answer(Open, StaleError("moves"))
    assert (batch.outcome, len(lab.pool.timers)) == (None, 1)


@pytest.mark.parametrize(("passed", "is_over"), [(30.0, False), (30.1, True)])
def test_openings_are_tried_until_the_timeout(passed: float, is_over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(sender.time, "monotonic", lambda: now[0])
    lab, batch = SenderLab(), Batch()
    opened = lab.sender.open()
    lab.pool.answer(Open, StaleError("moves"))
    assert opened.done()
    now[0] += 100.0  # no batch waited meanwhile
    lab.submit(batch)
    now[0] += passed / 2
    lab.pool.answer(Open, StaleError("moves"))
    lab.pool.ring()
    now[0] += passed / 2
    lab.pool.answer(Open, StaleError("moves"))
    assert (batch.outcome, len(lab.pool.timers)) == ((NotConnectedError, 0) if is_over else (None, 1))


def test_without_a_producer_a_batch_whose_outcome_is_unknown_is_not_sent_again() -> None:
    lab, batches = SenderLab(), [Batch(), Batch(), Batch()]
    lab.submit(*batches)
    lab.open()
    lab.pool.answer(Publish, PeerTimeoutError("no answer"))
    lab.pool.answer(Publish, StaleError("another owner"))
    assert [batch.outcome for batch in batches] == [PeerTimeoutError, None, None]
    assert not batches[1].was_sent, "the server did nothing with it"
    lab.pool.answer(Publish, NotConnectedError("it was never sent"))
    assert lab.pool.ring() == RETRY_S and lab.pool.kinds() == ["Open"]
    lab.open()
    assert lab.pool.requests(Publish) == [Publish(2, batch.entries) for batch in batches[1:]]


def test_after_a_connection_that_could_not_be_made_the_next_owner_is_asked_at_once() -> None:
    """The pool has tried for long, so that the sender does not wait as well."""
    lab, batch = SenderLab(), Batch()
    lab.submit(batch)
    lab.open()
    lab.pool.answer(Publish, NotConnectedError("it was never sent"))
    assert lab.pool.kinds() == ["Open"] and lab.pool.timers == []


def test_a_batch_that_the_session_before_refuses_late_goes_through_the_next_one() -> None:
    lab, batches = SenderLab(), [Batch(1), Batch(2)]
    lab.submit(*batches)
    lab.open()
    lab.pool.answer(Publish, StaleError("another owner"))
    lab.pool.ring()
    lab.open()
    lab.pool.answer(Publish, StaleError("another owner"))
    assert lab.pool.requests(Publish) == [Publish(2, batch.entries) for batch in batches]
    assert lab.pool.kinds() == ["Publish"] * 2 and lab.pool.timers == []


def test_batches_of_a_producer_are_sent_again_in_order() -> None:
    lab, batches = SenderLab("p"), [Batch(count) for count in (1, 2, 3)]
    lab.submit(*batches)
    lab.open()
    lab.pool.answer(Publish, published(0, 1, 1))
    lab.pool.answer(Publish, PeerTimeoutError("no answer"))
    assert lab.pool.kinds() == ["Publish"] and len(lab.pool.timers) == 1
    lab.pool.ring()
    assert lab.pool.kinds() == ["Publish", "Open"]
    lab.open()
    assert lab.pool.requests(Publish)[1:] == [Publish(2, batch.entries) for batch in batches[1:]]
    lab.pool.answer(Publish, published(99, 3, 3))  # an answer of the first session, which comes too late
    assert batches[2].outcome is None
    lab.pool.answer(Publish, published(-1, 2, 0))
    lab.pool.answer(Publish, published(3, 3, 1, b"\x40"))
    assert [batch.outcome for batch in batches] == [[0], [-1, -1], [-1, 3, -1]]
    assert all(batch.was_sent for batch in batches)


def test_sent_entry_that_cannot_be_repeated_fails_with_outcome_unknown_error() -> None:
    lab, sent, waiting = SenderLab("p"), Batch(), Batch()
    lab.submit(sent)
    lab.open()
    lab.pool.answer(Publish, ClosedError("lost"))
    lab.submit(waiting)
    lab.pool.ring()
    lab.pool.answer(Open, InvalidMessageError("not so"))
    assert (sent.outcome, waiting.outcome) == (OutcomeUnknownError, InvalidMessageError)
    assert sent.error is not None and isinstance(sent.error.__cause__, InvalidMessageError)


def test_an_error_of_another_kind_leaves_the_session() -> None:
    lab, batches = SenderLab(), [Batch(), Batch()]
    lab.submit(*batches)
    lab.open()
    lab.pool.answer(Publish, InvalidEntryError("not so"))
    lab.pool.answer(Publish, [bytes((OK,)) + b"no reply"])
    assert [batch.outcome for batch in batches] == [InvalidEntryError, InvalidMessageError]
    lab.submit(Batch())
    assert lab.pool.kinds() == ["Publish"]


# ---- the end ---------------------------------------------------------------------------------------------------


def test_closing_fails_what_has_no_outcome_and_gives_the_session_up() -> None:
    lab, sent, settled = SenderLab(), Batch(), Batch()
    lab.submit(settled, sent)
    lab.open()
    lab.pool.answer(Publish, published(0, 1, 1))
    lab.sender.close(ClosedError("closed"))
    assert (settled.outcome, sent.outcome) == ([0], OutcomeUnknownError)
    assert lab.pool.requests(CloseProducer) == [CloseProducer(1)]
    lab.pool.answer(Publish, published(1, 1, 1))
    assert sent.outcome is OutcomeUnknownError, "nobody waits for it any more"
    with pytest.raises(ClosedError, match="closed"):
        lab.submit(Batch())
    lab.sender.close(ClosedError("again"))
    assert len(lab.pool.requests(CloseProducer)) == 1


def test_closing_while_a_session_is_opened_gives_it_up_when_it_is() -> None:
    lab, batch = SenderLab(), Batch()
    lab.submit(batch)
    lab.sender.close(ClosedError("closed"))
    assert batch.outcome is ClosedError, "it was never sent"
    lab.open()
    assert lab.pool.kinds() == ["CloseProducer"]


def test_leaving_closes_the_session_behind_the_last_batch() -> None:
    lab, batches = SenderLab(), [Batch(), Batch()]
    lab.sender.leave()
    assert lab.pool.kinds() == [], "there was nothing"
    lab = SenderLab()
    lab.submit(*batches)
    lab.sender.leave()
    lab.open()
    assert lab.pool.kinds() == ["Publish", "Publish", "CloseProducer"]
    lab.pool.answer(Publish, BacklogFullError("news", "a quota holds publishers"))
    lab.pool.answer(Publish, published(0, 1, 1))
    assert [batch.outcome for batch in batches] == [BacklogFullError, [0]]
    assert lab.sender.refused is batches[0].error


def test_a_quota_without_a_leaving_producer_fails_the_batch_alone() -> None:
    lab, batch = SenderLab(), Batch()
    lab.submit(batch)
    lab.open()
    lab.pool.answer(Publish, BacklogFullError("news", "a quota holds publishers"))
    assert (batch.outcome, lab.sender.refused) == (BacklogFullError, None)


@pytest.mark.parametrize("error", [PeerError("older"), ClosedError("gone"), InvalidMessageError("not so")])
def test_a_session_that_is_not_closed_at_the_server_is_logged_if_that_is_strange(
    error: ReplogError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", sender.logger.name)
    lab = SenderLab()
    lab.sender.open()
    lab.open()
    lab.sender.close(ClosedError("closed"))
    lab.pool.answer(CloseProducer, error)
    assert ("a producer session was not closed" in caplog.text) is isinstance(error, InvalidMessageError)


# ---- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value"), [("BATCH_BYTES_MAX", 1000), ("RAW_BYTES_MAX", 500), ("ENTRIES_MAX", 3)]
)  # fmt: skip
def test_a_batch_at_a_limit_is_sent_and_one_beyond_is_not(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, limit, value)
    lab, fits, beyond = SenderLab(), Batch(), Batch()
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
    lab.submit(fits, beyond)
    lab.open()
    assert len(lab.pool.requests(Publish)) == 1 and fits.outcome is None
    assert beyond.outcome is RecordTooLargeError and "publish it in parts" in str(beyond.error)
    assert ENTRIES_MAX >= 1 << 10


def test_attributes_count_as_bytes_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, batch = SenderLab(), Batch()
    monkeypatch.setattr(sender, "BATCH_BYTES_MAX", batch.entry_bytes + 10)
    batch.attributes = [b"attributes"]  # including their lengths
    lab.submit(batch)
    assert batch.outcome is RecordTooLargeError


@pytest.mark.parametrize(
    "reply",
    [
        published(0, 2, 2),  # an entry of two messages
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
    lab, batch = SenderLab(), Batch(3)
    lab.submit(batch)
    lab.open()
    lab.pool.answer(Publish, reply)
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
