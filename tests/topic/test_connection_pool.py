"""ConnectionPool: which server is asked for a topic, which requests are repeated, and the meaning of outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from pyreplog._native.topic.wire_fields import WireReader, checksum
from pyreplog.errors import (
    ClosedError,
    DisconnectedError,
    HandshakeError,
    InvalidArgumentError,
    InvalidMessageError,
    NoSuchTopicError,
    NotConnectedError,
    OutcomeUnknownError,
    PeerError,
    PeerTimeoutError,
    ReplogError,
    TooManyConnectionsError,
    TopicFencedError,
    TopicOwnedError,
    UnsupportedRequestError,
)
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, completed_future
from pyreplog.net.limits import Limits
from pyreplog.topic.client.remote import connection_pool
from pyreplog.topic.client.remote.connection_pool import (
    LIMITS,
    ConnectionPool,
    StaleError,
    is_transient,
    outcome_of,
    parse_address,
    publishes,
    reads,
)
from pyreplog.topic.model.wire.protocol import (
    OK,
    REPLICATE_TO,
    STALE,
    Call,
    CloseProducer,
    Done,
    Fetch,
    Flush,
    Open,
    Publish,
    PublishTo,
    Request,
    decode_request,
    encode_fault,
    encode_reply,
)
from tests.waiting import until

A, B, C = (("a", 1), ("b", 2), ("c", 3))
OPEN, ASK, CHANGE = Open(1, False, "news", "", "", ""), Call("news", "stats", "{}"), Call("news", "trim", "{}")
DONE = memoryview(encode_reply(Done()))


class Channels:
    """A channel whose requests the test answers. `all` has all channels."""

    all: ClassVar[list[Channels]] = []
    met: ClassVar[bool] = True
    version: ClassVar[int] = 1
    features: ClassVar[frozenset[str]] = frozenset({REPLICATE_TO})

    def __init__(self, reactor: Any, address: tuple[str, int], *, limits: Limits, **settings: Any) -> None:
        self.address, self.limits = address, limits
        self.asked: list[tuple[Request, Callable[[Any], object], float]] = []
        self.is_closed = False
        self.watched: list[Callable[[ReplogError], object]] = []
        Channels.all.append(self)

    @property
    def peer(self) -> Any:
        return SimpleNamespace(version=self.version, features=self.features) if self.met else None

    def request(self, *buffers: Any, on_reply: Callable[[Any], object], timeout: float) -> None:
        request = decode_request(memoryview(b"".join(bytes(buffer) for buffer in buffers)))
        self.asked.append((request, on_reply, timeout))

    def watch(self, on_lost: Callable[[ReplogError], object]) -> None:
        self.watched.append(on_lost)

    def close(self) -> None:
        self.is_closed = True


def answer(reply: Any, kind: type[Any] | None = None) -> tuple[str, int]:
    """Answer the only open request; return the address of the server."""
    ((channel, (request, on_reply, _)),) = [(channel, each) for channel in Channels.all for each in channel.asked]
    channel.asked.clear()
    assert kind is None or isinstance(request, kind)
    on_reply(reply)
    return channel.address


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectionPool]:
    monkeypatch.setattr(connection_pool, "Channel", Channels)
    monkeypatch.setattr(Channels, "all", [])
    monkeypatch.setattr(Channels, "met", True)
    with closing(ConnectionPool([A, B, C], secret=None, tls=None, limits=None, timeout=30.0)) as pool:
        yield pool


class Outcomes:
    """Records the outcome of a request, with the address of the server."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[tuple[str, int], Any]] = []

    def __call__(self, address: tuple[str, int], outcome: Any) -> None:
        self.outcomes.append((address, outcome))

    def take(self) -> tuple[tuple[str, int], Any]:
        (outcome,) = self.outcomes
        self.outcomes.clear()
        return outcome


def fault(error: ReplogError, address: str = "") -> memoryview:
    return memoryview(encode_fault(error, address))


# ---- the owner of a topic --------------------------------------------------------------------------------------


def test_servers_are_asked_in_turn_until_one_can_be_reached(pool: ConnectionPool) -> None:
    outcomes = Outcomes()
    pool.ask("news", OPEN, outcomes)
    assert [answer(NotConnectedError("no")) for _ in range(2)] == [A, B]
    assert answer(DONE, Open) == C
    address, outcome = outcomes.take()
    assert address == C and isinstance(outcome, WireReader) and pool.was_reached
    assert [*pool.candidates("news")] == [C, A, B]
    assert [*pool.candidates("other")] == [A, B, C]


def test_if_no_server_was_ever_reached_all_are_asked_once(pool: ConnectionPool) -> None:
    """The addresses may be wrong, so that the client does not go on for ever."""
    outcomes = Outcomes()
    pool.ask("news", OPEN, outcomes)
    error = NotConnectedError("no")
    assert [answer(error) for _ in range(3)] == [A, B, C]
    assert outcomes.take() == (C, error) and not pool.was_reached


def test_the_owner_that_a_server_names_is_asked_once(pool: ConnectionPool) -> None:
    outcomes = Outcomes()
    pool.ask("news", OPEN, outcomes)
    owned = TopicOwnedError("news", "another process owns it")
    assert answer(fault(owned, "owner:7")) == A
    assert answer(fault(owned, "again:8")) == ("owner", 7)
    address, outcome = outcomes.take()
    assert address == ("owner", 7) and isinstance(outcome, TopicOwnedError)
    assert [*pool.candidates("news")] == [A, B, C], "it is none"
    pool.ask("news", OPEN, outcomes)
    assert answer(fault(owned, "owner:7")) == A
    assert answer(DONE) == ("owner", 7)
    outcomes.take()
    pool.ask("news", ASK, outcomes)
    assert answer(DONE) == ("owner", 7)
    pool.ask("", ASK._replace(topic=""), outcomes)
    assert answer(DONE) == A, "of no topic"


def test_a_server_that_knows_no_owner_is_not_remembered(pool: ConnectionPool) -> None:
    outcomes = Outcomes()
    for error in (TopicOwnedError("news", "nobody knows"), PeerError("strange")):
        pool.ask("news", OPEN, outcomes)
        assert answer(fault(error)) == A
        assert type(outcomes.take()[1]) is type(error)
        assert [*pool.candidates("news")] == [A, B, C]
    pool.ask("news", OPEN, outcomes)
    answer(NotConnectedError("no"))
    assert answer(fault(NoSuchTopicError("news", "none"))) == B
    assert isinstance(outcomes.take()[1], NoSuchTopicError)
    assert [*pool.candidates("news")] == [B, A, C], "it has judged the request"


@pytest.mark.parametrize(("request_", "is_repeated"), [(OPEN, True), (ASK, True), (CHANGE, False)])
def test_only_idempotent_requests_are_repeated_after_a_disconnect(
    request_: Request, is_repeated: bool, pool: ConnectionPool
) -> None:
    outcomes, lost = Outcomes(), DisconnectedError("lost")
    pool.ask("news", request_, outcomes)
    assert answer(lost) == A
    if is_repeated:
        assert answer(DONE) == B
        assert outcomes.take()[0] == B
    else:
        assert outcomes.take() == (A, lost)


def test_once_a_server_was_reached_all_are_asked_again_after_a_while(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes, error = Outcomes(), NotConnectedError("no")
    pool.ask("news", ASK, outcomes)
    answer(DONE)
    outcomes.take()
    pool.ask("other", ASK, outcomes)
    assert [answer(error) for _ in range(3)] == [A, B, C]
    assert not any(channel.asked for channel in Channels.all), "not at once"
    until(lambda: any(channel.asked for channel in Channels.all))
    assert outcomes.outcomes == []
    assert answer(DONE) == A
    outcomes.take()


def test_request_is_not_repeated_when_the_backoff_exceeds_the_timeout(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes, error = Outcomes(), NotConnectedError("no")
    pool.ask("news", ASK, outcomes)
    answer(DONE)
    outcomes.take()
    monkeypatch.setattr(connection_pool, "BACKOFF_FIRST_S", 31.0)
    pool.ask("other", ASK, outcomes)
    assert [answer(error) for _ in range(3)] == [A, B, C]
    assert outcomes.take() == (C, error)
    pool.timeout = 0.0
    pool.ask("other", ASK, outcomes)
    assert isinstance(outcomes.take()[1], NotConnectedError), "nor is anybody asked at all when it is over"


def test_a_future_gives_what_is_read_from_the_reply(pool: ConnectionPool) -> None:
    done = pool.ask_for("news", ASK, reads(Done))
    assert not done.done()
    answer(DONE)
    assert done.result(0) == Done()
    failed = pool.ask_for("news", ASK, reads(Done))
    answer(fault(NoSuchTopicError("news", "none")))
    assert isinstance(failed.exception(), NoSuchTopicError)
    spoiled = pool.ask_for("news", ASK, reads(Done))
    answer(memoryview(bytes((OK,)) + b"more"))
    assert isinstance(spoiled.exception(), InvalidMessageError)


def test_a_request_that_waits_to_be_asked_again_fails_when_the_client_is_closed(pool: ConnectionPool) -> None:
    outcomes, error = Outcomes(), NotConnectedError("no")
    pool.ask("news", ASK, outcomes)
    answer(DONE)
    outcomes.take()
    pool.timeout = 10_000.0
    pool.ask("other", ASK, outcomes)
    for _ in range(2):
        answer(error)
    answer(error)
    pool.close()
    assert isinstance(outcomes.take()[1], ClosedError)
    assert all(channel.is_closed for channel in Channels.all)
    pool.ask("news", ASK, outcomes)
    assert isinstance(outcomes.take()[1], ClosedError)
    errors: list[ReplogError] = []
    pool.watch(A, errors.append, publishes=False)
    assert [type(error) for error in errors] == [ClosedError], "who watches hears that it is lost"


# ---- connections -----------------------------------------------------------------------------------------------


def test_publishing_has_a_connection_of_its_own(pool: ConnectionPool) -> None:
    outcomes = Outcomes()
    for request in (Publish(1, [b"entry"]), CloseProducer(1), OPEN, OPEN._replace(session=0), Fetch(1), ASK):
        pool.send(A, request, outcomes)
    publishing, other = Channels.all
    assert [type(request) for request, _, _ in publishing.asked] == [Publish, CloseProducer, Open]
    assert [type(request) for request, _, _ in other.asked] == [Open, Fetch, Call]
    assert [publishes(request) for request, _, _ in publishing.asked + other.asked] == [True] * 3 + [False] * 3
    assert (pool.version(A), pool.version(A, True), pool.version(B)) == (1, 1, 0)
    pool.watch(A, outcomes, publishes=True)  # type: ignore[arg-type]
    assert (len(publishing.watched), len(other.watched)) == (1, 0)
    assert publishing.limits.handshake_ms == min(LIMITS.handshake_ms, 10_000), "each of three servers has its share"


def test_a_feature_is_asked_for_before_what_needs_it(pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes, request = Outcomes(), PublishTo(1, [None], [b"entry"])
    pool.send(A, request, outcomes)
    answer(memoryview(bytes((STALE,))), PublishTo)
    assert isinstance(outcomes.take()[1], StaleError)
    monkeypatch.setattr(Channels, "met", False)
    pool.send(A, request, outcomes)
    (channel,) = Channels.all
    ((first, on_reply, _),) = channel.asked
    channel.asked.clear()
    assert first == CloseProducer(0), "which does nothing, and whose answer says who the server is"
    monkeypatch.setattr(Channels, "met", True)
    on_reply(memoryview(bytes((STALE,))))
    answer(DONE, PublishTo)
    assert isinstance(outcomes.take()[1], WireReader)
    monkeypatch.setattr(Channels, "met", False)
    pool.send(A, request, outcomes)
    lost = NotConnectedError("no")
    answer(lost, CloseProducer)
    assert outcomes.take()[1] is lost
    monkeypatch.setattr(Channels, "met", True)
    monkeypatch.setattr(Channels, "features", frozenset())
    pool.send(A, request, outcomes)
    error = outcomes.take()[1]
    assert isinstance(error, UnsupportedRequestError) and "a:1 does not know" in str(error)
    assert "they were not sent" in str(error)


@pytest.mark.parametrize(("version", "is_checked"), [(1, False), (2, True), (3, True)])
def test_replies_have_checksums_from_version_2_on(
    version: int, is_checked: bool, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Channels, "version", version)
    for ask in (lambda outcomes: pool.send(A, ASK, outcomes), lambda outcomes: pool.ask("news", ASK, outcomes)):
        ask(Outcomes())  # this request makes the connection, whose version was unknown
        answer(DONE)
        for reply, is_right in ((DONE, not is_checked), (memoryview(bytes(DONE) + checksum(DONE)), is_checked)):
            ask(outcomes := Outcomes())
            answer(reply)
            outcome = outcomes.take()[1]
            if is_right:
                assert reads(Done)(outcome) == Done()
            else:
                with pytest.raises(InvalidMessageError):
                    reads(Done)(outcome)


def test_no_step_of_a_topic_waits_for_a_reply(pool: ConnectionPool) -> None:
    raised: list[str] = []

    def step() -> None:
        assert pool.wait(completed_future()) is None  # type: ignore[func-returns-value]
        try:
            pool.wait(AppendFuture(), timeout=0.0)
        except InvalidArgumentError as error:
            raised.append(str(error))

    EventQueue().post(step)
    assert len(raised) == 1


def test_handles_are_never_used_twice(pool: ConnectionPool) -> None:
    assert [pool.next_handle() for _ in range(3)] == [1, 2, 3]


def test_all_handles_that_are_closed_together_have_one_timeout(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(connection_pool.time, "monotonic", lambda: now[0])
    assert pool.close_timeout == 30.0
    pool.begin_to_close()
    now[0] += 20.0
    assert pool.close_timeout == 10.0
    now[0] += 20.0
    assert pool.close_timeout == 0.0


# ---- outcomes --------------------------------------------------------------------------------------------------


def test_a_reply_is_a_result_or_an_error() -> None:
    outcome, address = outcome_of(DONE)
    assert isinstance(outcome, WireReader) and address == "" and reads(Done)(outcome) == Done()
    error, address = outcome_of(fault(TopicFencedError("news", "moves"), "b:2"))
    assert isinstance(error, TopicFencedError) and address == "b:2"
    lost = DisconnectedError("lost")
    assert outcome_of(lost) == (lost, "")
    assert isinstance(outcome_of(memoryview(bytes((STALE,))))[0], StaleError)
    for body in (
        b"",
        bytes((STALE, 0)),
        bytes((3,)),
        bytes((255,)),
        bytes(fault(lost))[:-1],
        bytes(fault(lost)) + b"x",
    ):
        outcome, address = outcome_of(memoryview(body))
        assert isinstance(outcome, InvalidMessageError) and address == "", body
    outcome, _ = outcome_of(memoryview(bytes((OK,)) + b"more"))
    assert isinstance(outcome, WireReader)
    with pytest.raises(InvalidMessageError):
        reads(Done)(outcome)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TooManyConnectionsError("busy"), True),
        (HandshakeError("no"), False),
        (DisconnectedError("lost"), True),
        (PeerTimeoutError("no answer"), True),
        (NotConnectedError("no"), True),
        (ClosedError("closed"), True),
        (StaleError("stale"), True),
        (TopicFencedError("news", "moves"), True),
        (TopicOwnedError("news", "moves"), True),
        (OutcomeUnknownError("unknown"), True),
        (InvalidMessageError("not so"), False),
        (ValueError("a mistake"), False),
    ],
)
def test_is_transient_classifies_errors(error: BaseException, expected: bool) -> None:
    assert is_transient(error) is expected


@pytest.mark.parametrize(
    ("text", "address"),
    [("host:1", ("host", 1)), ("[::1]:65535", ("::1", 65535)), ("h:00001", ("h", 1)), ("h:0", ("h", 0))],
)
def test_addresses_of_servers_are_parsed(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:65536", "host:000001", "host:-1", "host:x", "host:¹"]
)
def test_malformed_address_raises_invalid_message_error(text: str) -> None:
    with pytest.raises(InvalidMessageError, match="expected HOST:PORT"):
        parse_address(text)


def test_a_flush_needs_no_feature(pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channels, "met", False)
    pool.send(A, Flush(1), Outcomes())
    assert [type(request) for channel in Channels.all for request, _, _ in channel.asked] == [Flush]
