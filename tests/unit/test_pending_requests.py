"""Requests that leave in one native step, and what is left to Python code; replies that are settled where they come in."""

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.net.add_replies import AddGroup, AddQueue, Answer, Replies
from pyreplog._native.net.frame import HEADER_SIZE, FrameBatch, FrameParser, encode, heartbeat
from pyreplog._native.net.pending_requests_base import PendingRequestsBase, send_alone
from pyreplog._native.net.send_queue import FrameSendQueue
from pyreplog._native.quorum.ack_tracker import AckTracker, Part
from pyreplog._native.system.mutex import Mutex
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind, encode_reply, encode_request
from pyreplog.errors import ClosedError, DisconnectedError, FrameError, InvalidArgumentError
from pyreplog.net.reactor import BROKEN, READ

LEDGER = 7
MOST = 3
CHECK_US = 50


class Wire:
    """A PendingRequestsBase whose requests leave on a socket, and the other end of that."""

    def __init__(self, size_max: int = 1 << 20) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.setblocking(False)
        self.grown: list[bool] = []
        self.outbox = FrameSendQueue(self.ours, lambda: self.grown.append(self.outbox.lock.locked()))
        self.requests = PendingRequestsBase(Mutex())
        self.requests.check_us = CHECK_US
        self.requests.begin(self.outbox, size_max)

    def arrived(self) -> bytes:
        actual = b""
        while True:
            try:
                actual += self.theirs.recv(1 << 20)
            except BlockingIOError:
                return actual

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


# ---- requests --------------------------------------------------------------------------------------------------


def test_a_request_leaves_and_is_noted(wire: Wire) -> None:
    assert wire.requests.number() == 1
    assert wire.requests.ask((b"he", b"ad"), 4, print, CHECK_US) == 2
    assert wire.requests.ask((b"x",), 1, repr, CHECK_US + 1) == 3
    assert wire.requests.waiting == {2: (print, CHECK_US), 3: (repr, CHECK_US + 1)}
    assert wire.requests.number() == 4
    assert wire.arrived() == encode(2, b"head") + encode(3, b"x")


def queue_something(wire: Wire) -> None:
    wire.outbox.put([b"queued"], 6)


def set_error(wire: Wire) -> None:
    wire.outbox.error = ClosedError("it was closed")


HINDRANCES: dict[str, Callable[[Wire], Any]] = {
    "no connection": lambda wire: wire.requests.end(),
    "the lock of the requests": lambda wire: wire.requests.lock.__enter__(),
    "the lock of the connection": lambda wire: wire.outbox.lock.__enter__(),
    "something is queued": queue_something,
    "an error": set_error,
    "corked": lambda wire: setattr(wire.outbox, "corked", True),
    "too large": lambda wire: wire.requests.begin(wire.outbox, 3),
    "deadlines are not looked at": lambda wire: setattr(wire.requests, "check_us", -1),
    "deadlines are looked at later": lambda wire: setattr(wire.requests, "check_us", CHECK_US + 1),
    "the peer has gone": lambda wire: wire.theirs.close(),
    "closed": lambda wire: wire.ours.close(),
}


@pytest.mark.parametrize("hinder", HINDRANCES.values(), ids=HINDRANCES)
def test_a_request_that_cannot_leave_has_left_nothing_behind(wire: Wire, hinder: Callable[[Wire], Any]) -> None:
    hinder(wire)
    locked = wire.requests.lock.locked(), wire.outbox.lock.locked()
    assert wire.requests.ask((b"body",), 4, print, CHECK_US) == -1
    assert (wire.requests.waiting, wire.requests.number(), wire.outbox.sent_bytes) == ({}, 1, 0)
    assert (wire.requests.lock.locked(), wire.outbox.lock.locked()) == locked


def test_request_over_a_stream_without_a_socket_is_left_to_python(wire: Wire) -> None:
    class Stream:
        fileno, sendmsg = wire.ours.fileno, wire.ours.sendmsg

    wire.requests.begin(FrameSendQueue(Stream(), print), 100)
    assert wire.requests.ask((b"body",), 4, print, CHECK_US) == -1 and not wire.requests.waiting


@given(st.integers(0, 1 << 32))
def test_frames_come_whole_and_in_order_however_much_the_socket_takes(seed: int) -> None:
    """Some leave at once, in whole or in part; others have to go the way of all, behind what is queued."""
    random, wire = Random(seed), Wire()
    try:
        wire.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        expected, actual = b"", b""
        for _ in range(40):
            body = random.randbytes(random.choice([1, 100, 5_000, 40_000]))
            cut = random.randrange(len(body) + 1)
            parts = body[:cut], body[cut:]
            number = wire.requests.ask(parts, len(body), print, CHECK_US)
            if number < 0:
                number = wire.requests.number()
                wire.outbox.send((encode(number, body),), HEADER_SIZE + len(body))
            expected += encode(number, body)
            assert wire.outbox.sent_bytes + wire.outbox.queued_bytes == len(expected)
            if random.random() < 0.6:
                actual += wire.arrived()
                wire.outbox.flush()
        while wire.outbox.queued_bytes:
            actual += wire.arrived()
            wire.outbox.flush()
        assert actual + wire.arrived() == expected
        assert wire.outbox.sent_bytes == len(expected) and all(wire.grown)
    finally:
        wire.close()


def test_a_request_of_more_parts_than_one_call_takes_leaves_whole(wire: Wire) -> None:
    parts = tuple(b"%d," % number for number in range(3000))
    assert wire.requests.ask(parts, sum(map(len, parts)), print, CHECK_US) == 1
    assert wire.outbox.queued_bytes and wire.grown == [True]
    while wire.outbox.queued_bytes:
        wire.outbox.flush()
    assert wire.arrived() == encode(1, b"".join(parts))


def test_a_request_that_is_interrupted_keeps_its_number(wire: Wire) -> None:
    """Some of it may have left: the next one is not taken for it, and who waits for it hears of it."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    wire.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    wire.requests.begin(FrameSendQueue(wire.ours, interrupted), 1 << 24)
    with pytest.raises(KeyboardInterrupt):
        wire.requests.ask((bytes(1 << 22),), 1 << 22, print, CHECK_US)
    assert wire.requests.waiting == {1: (print, CHECK_US)} and wire.requests.number() == 2
    assert not wire.requests.lock.locked()


# ---- ADDs to several -------------------------------------------------------------------------------------------


class FakeAddQueue(AddQueue):
    def __init__(self) -> None:
        self.proceeded = 0

    def proceed(self) -> None:
        self.proceeded += 1


def add(first: int = 0, last: int = 0, key: bytes = bytes(16), flags: int = 0) -> Request:
    return Request(RequestKind.ADD, LEDGER, first, last, key, flags, records=b"records")


def test_send_alone_sends_one_request_to_every_bookie() -> None:
    wires = {f"b{number}": Wire() for number in range(3)}
    lanes = {(name, LEDGER): FakeAddQueue() for name in wires}
    request = add(3, 5)
    try:
        adds = [(name, request, name) for name in wires]
        assert send_alone(adds, 0, lanes, wires, MOST, CHECK_US) == 3
        for name, wire in wires.items():
            ((number, (group, deadline_us)),) = wire.requests.waiting.items()
            assert wire.arrived() == encode(number, encode_request(request) + b"records") and deadline_us == CHECK_US
            assert type(group) is AddGroup and (group.ledger, group.first, group.last) == (LEDGER, 3, 5)
            assert group.adds == ((request, name),) and group.queue is lanes[name, LEDGER]
        assert [lane.unanswered for lane in lanes.values()] == [1, 1, 1]
    finally:
        for wire in wires.values():
            wire.close()


@given(st.integers(0, 1 << 61), st.integers(0, 1 << 61), st.binary(min_size=16, max_size=16), st.integers(0, 7))
def test_an_add_is_encoded_as_any_request(first: int, last: int, key: bytes, flags: int) -> None:
    wire, request = Wire(), add(first, last, key, flags)
    try:
        assert send_alone([("a", request, None)], 0, {("a", LEDGER): FakeAddQueue()}, {"a": wire}, MOST, CHECK_US) == 1
        assert wire.arrived() == encode(1, encode_request(request) + b"records")
    finally:
        wire.close()


def test_a_key_of_another_length_is_refused(wire: Wire) -> None:
    lane = FakeAddQueue()
    with pytest.raises(InvalidArgumentError, match="16 bytes"):
        send_alone([("a", add(key=b"short"), None)], 0, {("a", LEDGER): lane}, {"a": wire}, MOST, CHECK_US)
    assert lane.unanswered == 0 and not wire.requests.waiting


def test_adds_leave_up_to_one_that_may_not(wire: Wire) -> None:
    lane, channels = FakeAddQueue(), {"a": wire, "b": wire, "c": wire}
    lanes = {("a", LEDGER): lane, ("c", LEDGER): lane}

    def sent(*names: str, first: int = 0) -> int:
        return send_alone([(name, add(), None) for name in names], first, lanes, channels, MOST, CHECK_US)

    assert sent("a", "b", "c") == 1  # it has no lane yet
    assert sent("a", "b", "c", first=2) == 3
    assert sent() == 0 and sent("unknown") == 0
    assert sent("a", "a") == 1 and lane.unanswered == MOST
    lane.end()
    lane.waits = True
    assert sent("a") == 0 and lane.unanswered == MOST - 1
    lane.waits = False
    wire.requests.end()
    assert sent("a") == 0 and lane.unanswered == MOST - 1


# ---- replies ---------------------------------------------------------------------------------------------------


class CountingDriver:
    """A driver as an Answer sees it: it counts acknowledgements."""

    acks = 0

    def acked(self) -> None:
        self.acks += 1


class Connection:
    """What a Replies needs of one."""

    def __init__(self, wire: Wire) -> None:
        self.send_queue, self.parser = wire.outbox, FrameParser()
        self.waiting: dict[int, Any] = {}
        self.taken: list[Any] = []
        self.lost: list[OSError] = []

    def handle_events(self, events: int, taken: tuple[int, FrameBatch] | None = None) -> None:
        self.taken.append(taken and (taken[0], [(number, bytes(body)) for number, body in taken[1]]))

    def handle_error(self, error: OSError) -> None:
        self.lost.append(error)


@pytest.fixture
def scene(wire: Wire) -> SimpleNamespace:
    """A request number 5 of entries 0 to 9, that was sent to the first of two bookies."""
    tracker, lane, driver, behind = AckTracker(2, 2, 1), FakeAddQueue(), CountingDriver(), list[Any]()
    tracker.pushed(9)
    lane.begin(MOST)
    answer = Answer(driver, "send", LEDGER, Part(tracker, 0, 0, 9))
    waiting = {5: (AddGroup(lane, LEDGER, 0, 9, ((None, answer),)), 0)}
    connection = Connection(wire)
    connection.waiting = waiting
    replies = Replies(weakref.ref(connection), behind.extend)
    return SimpleNamespace(
        tracker=tracker,
        lane=lane,
        driver=driver,
        behind=behind,
        waiting=waiting,
        connection=connection,
        replies=replies,
    )


OK = encode(5, encode_reply(Reply(ReplyStatus.OK, LEDGER, 0, 9)))
FENCED = encode(5, encode_reply(Reply(ReplyStatus.FENCED, LEDGER, 0, 9)))


def test_a_plain_ok_is_settled(scene: SimpleNamespace, wire: Wire) -> None:
    for cut in (OK[:20], OK[20:]):
        assert not scene.behind
        wire.theirs.send(cut)
        scene.replies(READ)
    assert (scene.waiting, scene.lane.unanswered, scene.tracker.awaited(0)) == ({}, 0, 10)
    assert scene.driver.acks == 0 and len(scene.behind) == 1
    scene.behind[0]()
    assert scene.driver.acks == 1 and scene.connection.taken == [(20, [])]


@pytest.mark.parametrize(
    "data",
    [FENCED, OK + OK, encode(6, b"x"), heartbeat(0), encode(-1, b"control")],
    ids=["refused", "two", "unknown", "a heartbeat", "control"],
)
def test_frames_without_a_pending_request_are_passed_on(scene: SimpleNamespace, wire: Wire, data: bytes) -> None:
    wire.theirs.send(data)
    scene.replies(READ)
    assert scene.connection.taken == [(len(data), [(number, bytes(body)) for number, body in FrameParser().feed(data)])]
    assert (list(scene.waiting), scene.lane.unanswered, scene.behind) == ([5], 1, [])


def test_ctrl_c_before_frames_are_handled_ends_the_connection(scene: SimpleNamespace, wire: Wire) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    ends: list[Any] = []
    scene.connection.handle_events, scene.connection.close = interrupted, ends.append
    wire.theirs.send(FENCED)
    with pytest.raises(KeyboardInterrupt):
        scene.replies(READ)
    assert [type(error) for error in ends] == [DisconnectedError]


def test_a_parser_that_takes_nothing_more_ends_the_connection(scene: SimpleNamespace, wire: Wire) -> None:
    ends: list[Any] = []
    scene.connection.parser, scene.connection.close = FrameParser(max_body=1), ends.append
    scene.connection.parser.feed(encode(1, b"too large"))
    wire.theirs.send(OK)
    with pytest.raises(FrameError):
        scene.replies(READ)
    assert [type(error) for error in ends] == [DisconnectedError] and list(scene.waiting) == [5]


def test_an_ok_before_something_that_waits_is_not_settled_here(scene: SimpleNamespace, wire: Wire) -> None:
    scene.lane.waits = True
    wire.theirs.send(OK)
    scene.replies(READ)
    assert scene.connection.taken == [(len(OK), [(5, OK[HEADER_SIZE:])])] and list(scene.waiting) == [5]


def test_ends_and_other_events_are_the_connections(scene: SimpleNamespace, wire: Wire) -> None:
    scene.replies(READ)  # nothing has come
    assert not scene.connection.taken
    wire.theirs.send(OK)
    scene.replies(READ | BROKEN)
    wire.outbox.error = ClosedError("it was closed")
    scene.replies(READ)
    assert scene.connection.taken == [None, None] and list(scene.waiting) == [5]
    wire.outbox.error = None
    scene.replies(READ)
    assert not scene.waiting
    wire.theirs.close()
    scene.replies(READ)
    assert scene.connection.taken == [None, None, (0, [])] and not scene.connection.lost
    wire.ours.close()
    scene.replies(READ)
    assert [type(error) for error in scene.connection.lost] == [OSError]


def test_replies_of_a_garbage_collected_connection_are_dropped(scene: SimpleNamespace, wire: Wire) -> None:
    wire.theirs.send(OK)
    del scene.connection
    scene.replies(READ)
    assert list(scene.waiting) == [5]
