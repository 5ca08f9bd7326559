"""Requests that reach a bookie together: plain ADDs among them are handled natively, and nobody can tell."""

from __future__ import annotations

import select
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog._native.net.frame import FrameBatch, FrameParser, encode
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.entry_log import DiskLog
from pyreplog.bookie.key_verifier import KeyVerdict
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind, decode_reply, encode_request
from pyreplog.bookie.service import BookieService
from pyreplog.clock import ManualClock
from pyreplog.net.handshake import NodeIdentity, Peer
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server_connection import Budget, ServerConnection
from tests.bookie.asking import ANY_SPACE, KEY, OTHER_KEY, Facts, add, entries_in, last, read, records_of, set_lac
from tests.thorough import one_in
from tests.waiting import PATIENCE_S, until

PLENTY, SHORT, NONE = 1 << 40, 300 << 20, 0
"""Free space: for all, for a recovery only, for nobody."""
LEDGERS = (7, 8, 9, 10)
WAYS = ("synced", "appended")
PATIENT = Limits(heartbeat_ms=600_000, silence_ms=1_800_000)
_PIECE_BYTES = 24 << 10


def _config(durability: str, **settings: Any) -> BookieConfig:
    return BookieConfig.of({"durability": durability, "segment_bytes": 1 << 16, **settings})


class KeysAtOnce:
    """In place of a KeyVerifier: every key is right, and the verdict comes behind the other requests of the turn."""

    def __init__(self, reactor: Reactor, proceed: Callable[..., object]) -> None:
        self._reactor, self._proceed = reactor, proceed

    def ask(self, connection: ServerConnection, number: int, request: Request) -> None:
        waiting = [(number, request._replace(records=bytes(request.records)))]
        self._reactor.call_behind([partial(self._proceed, connection, waiting, KeyVerdict.RIGHT)])

    def leave(self, connection: ServerConnection) -> None: ...
    def close(self) -> None: ...


class Service(BookieService):
    """One that asks no metadata."""

    def __init__(self, reactor: Reactor, bookie: LocalBookie) -> None:
        super().__init__(reactor, bookie, Facts())
        self._keys.close()
        self._keys = KeysAtOnce(reactor, self._checked)  # type: ignore[assignment]


class EachByItself(Service):
    """A service that takes no request on the fast path."""

    fast_path = None  # type: ignore[assignment]

    def _handle(self, bookie: Any, connection: Any, batch: FrameBatch, /) -> None:
        try:
            for number, body in batch:
                self._handle_other(bookie, connection, number, body)
        finally:
            if bookie.waits:
                self._commit_soon()


class Served:
    """A bookie behind one connection, and the other end of it."""

    def __init__(
        self, path: Path, durability: str, kind: type[Service] = Service, buffer: int = 0, **settings: Any
    ) -> None:
        self.bookie = LocalBookie(path, _config(durability, **settings), clock=ManualClock(1_700_000_000_000_000))
        self.reactor = Reactor()
        self.service = kind(self.reactor, self.bookie)
        self.connections: list[ServerConnection] = []
        self.reactor.start()
        self.sock = self.connect(buffer)
        self._parser, self.number = FrameParser(), 0

    def connect(self, buffer: int = 0) -> socket.socket:
        near, far = socket.socketpair()
        far.settimeout(PATIENCE_S)
        if buffer:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        near.setblocking(False)
        peer = Peer(NodeIdentity(), 1, 1 << 22, 1800.0, None)
        connection = ServerConnection(
            self.reactor, near, self.service, PATIENT, peer, Budget(1 << 28, lambda: None), lambda _: None
        )
        self.connections.append(connection)
        self.reactor.call_soon(connection.open)
        return far

    def connect_again(self) -> None:
        self.sock.close()
        self.sock = self.connect()

    def send(self, *requests: Request | bytes) -> list[int]:
        """Send requests with one call; return their numbers."""
        numbers = range(self.number, self.number + len(requests))
        bodies = [
            request if isinstance(request, bytes) else encode_request(request) + bytes(request.records)
            for request in requests
        ]
        self.number = numbers.stop
        self.sock.sendall(b"".join(map(encode, numbers, bodies)))
        return [*numbers]

    def replies(self, count: int) -> list[tuple[int, Reply]]:
        """The next `count` replies, as they come; fewer at the end of the connection."""
        replies: list[tuple[int, Reply]] = []
        while len(replies) < count:
            data = self.sock.recv(1 << 16)
            if not data:
                break
            for number, body in self._parser.feed(data):
                reply = decode_reply(body)
                replies.append((number, reply._replace(body=bytes(reply.body))))
        return replies

    def ask(self, *requests: Request | bytes) -> list[tuple[int, Reply]]:
        """Requests that arrive together, and the replies in the order in which they come."""
        return self.replies(len(self.send(*requests)))

    def with_bookie(self, call: Callable[..., Any]) -> Any:
        return self.bookie.with_bookie(call)

    def settle(self) -> None:
        """Wait until the turn of the last reply is over, and what it has left to be done behind it."""
        for _ in range(2):
            over = threading.Event()
            self.reactor.call_soon(over.set)
            assert over.wait(PATIENCE_S)

    def close(self) -> None:
        self.sock.close()
        for connection in self.connections:
            connection.close()
        self.reactor.close()
        self.service.close()
        self.bookie.close()


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    opened: list[Served] = []

    def served(name: str, durability: str, *args: Any, **settings: Any) -> Served:
        opened.append(Served(tmp_path / name, durability, *args, **settings))
        return opened[-1]

    yield served
    for one in opened:
        one.close()


def statuses(replies: list[tuple[int, Reply]]) -> list[int]:
    return [reply.status for _, reply in replies]


# ---- both ways -----------------------------------------------------------------------------------------------------


def _request(random: Random, turn: int) -> Request | bytes:
    ledger, entry = random.choice(LEDGERS), 2 * turn + random.randrange(8)
    entries = range(entry, entry + random.choice((1, 1, 1, 2, 5)))
    flags = random.choices((Flag.NONE, Flag.UNSYNCED, Flag.RECOVERY), (8, 8, 1))[0]
    key = OTHER_KEY if random.random() < 0.02 else KEY
    plain = add(*entries, ledger=ledger, flags=flags, key=key, mark=b"." * random.choice((0, 100, 2000, 4000)))
    damaged = bytearray(plain.records)
    damaged[-1] ^= 1
    return random.choices(
        [
            plain,
            add(entry, ledger=ledger, flags=flags, lac=-1),
            plain._replace(records=bytes(damaged)),
            plain._replace(last=plain.last + 1, records=bytes(plain.records)[:-8]),
            read(entry, entry + 3, ledger=ledger),
            last(ledger=ledger, fence=random.random() < 0.1),
            set_lac(entry, ledger=ledger),
            b"\x63" + bytes(47),
        ],
        [30, 6, 1, 1, 4, 2, 2, 1],
    )[0]


def _together(requests: Iterable[Request | bytes]) -> list[Request | bytes]:
    """As many of them as a socket takes in one piece, so that they are received together; at least one."""
    taken, size = [], 0
    for request in requests:
        size += 64 + (0 if isinstance(request, bytes) else len(bytes(request.records)))
        if taken and size > _PIECE_BYTES:
            break
        taken.append(request)
    return taken


def _happen(random: Random) -> Callable[[Any], object] | None:
    """Something that happens to a bookie between its requests."""
    ledger = random.choice(LEDGERS)
    events: list[Callable[[Any], object] | None] = [
        None,
        lambda bookie: bookie.forget(ledger),
        lambda bookie: bookie.limbo.enter([ledger]),
        lambda bookie: bookie.limbo.leave(ledger),
    ]
    return random.choices(events, [40, 1, 1, 1])[0]


@pytest.mark.parametrize("durability", WAYS)
@pytest.mark.parametrize("seed", range(0, 24, one_in(4)))
def test_both_ways_give_the_same_replies_and_the_same_bytes(
    seed: int, durability: str, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random requests in random batches; fewer states in memory than ledgers, and segments that are full soon."""
    random, free = Random(seed), [PLENTY]
    monkeypatch.setattr(DiskLog, "free_bytes", lambda _: free[0])
    settings = {"ledger_states_max": 2}
    LocalBookie(tmp_path / "short", _config(durability, **settings)).close()  # then records have one stamp in both logs
    shutil.copytree(tmp_path / "short", tmp_path / "long")
    short, long = serve("short", durability, **settings), serve("long", durability, EachByItself, **settings)
    both = (short, long)
    for ledger in LEDGERS:
        assert [statuses(one.ask(add(0, ledger=ledger))) for one in both] == [[ReplyStatus.OK]] * 2
    for turn in range(60):
        requests = _together(_request(random, turn) for _ in range(random.choice((1, 1, 2, 3, 8))))
        event, free[0] = _happen(random), random.choices((PLENTY, SHORT, NONE), (20, 1, 1))[0]
        for one in both:
            one.with_bookie(lambda bookie: bookie.expire(0))
            if event is not None:
                one.with_bookie(event)
        assert short.ask(*requests) == long.ask(*requests), "others, or in another order"
        for one in both:
            one.settle()
        assert short.bookie.gauges() == long.bookie.gauges()
    ends = [last(ledger=ledger) for ledger in LEDGERS] + [set_lac(0, ledger=ledger) for ledger in LEDGERS]
    assert short.ask(*ends) == long.ask(*ends)
    free[0] = PLENTY
    for one in both:  # whatever has happened to the others: one more ledger fills two segments
        one.with_bookie(lambda bookie: bookie.expire(0))
    for first in range(0, 35, 5):
        requests = [add(n, ledger=11, flags=Flag.UNSYNCED, mark=b"." * 4000) for n in range(first, first + 5)]
        assert short.ask(*requests) == long.ask(*requests)
    assert short.bookie.counts.replies == long.bookie.counts.replies
    assert short.bookie.counts.requests == long.bookie.counts.requests
    assert short.bookie.counts.added_bytes == long.bookie.counts.added_bytes
    for one in both:
        one.close()
    segments = sorted((tmp_path / "short" / "log").glob("*.log"))
    assert len(segments) > 2
    for segment in segments:
        assert segment.read_bytes() == (tmp_path / "long" / "log" / segment.name).read_bytes()


# ---- one batch -----------------------------------------------------------------------------------------------------


def test_a_fence_in_the_middle_of_a_batch_keeps_out_what_comes_behind_it(serve: Serve) -> None:
    for durability in WAYS:
        served = serve(durability, durability, **ANY_SPACE)
        served.ask(add(0))
        replies = served.ask(*(add(n, flags=Flag.UNSYNCED) for n in (1, 2)), last(fence=True), add(3, flags=4), add(4))
        by_number = dict(replies)
        assert [by_number[number].status for number in range(1, 6)] == [ReplyStatus.OK] * 3 + [ReplyStatus.FENCED] * 2
        assert by_number[3].last == 2
        assert entries_in(served.ask(read(0, 9))[0][1]) == [0, 1, 2]


def test_oks_do_not_wait_for_those_behind_them_nor_overtake_those_before_them(serve: Serve) -> None:
    served = serve("b", "appended", **ANY_SPACE)
    served.ask(add(0))
    unsynced = [add(n, flags=Flag.UNSYNCED) for n in range(1, 5)]
    replies = served.ask(*unsynced[:2], last(), unsynced[2], read(0, 9), unsynced[3])
    assert [number for number, _ in replies] == [1, 2, 3, 4, 5, 6]
    assert replies[2][1].last == 2 and entries_in(replies[4][1]) == [0, 1, 2, 3]


@pytest.mark.parametrize("durability", WAYS)
@pytest.mark.parametrize("count", [1, 5])
def test_no_reply_leaves_before_its_sync(count: int, durability: str, serve: Serve) -> None:
    served = serve("b", durability, **ANY_SPACE)
    served.ask(add(0))
    early: list[bool] = []
    real = served.bookie.log.sync

    def sync() -> None:
        readable, _, _ = select.select([served.sock], [], [], 0)
        early.append(bool(readable))
        real()

    served.bookie.log.sync = sync  # type: ignore[method-assign]
    assert statuses(served.ask(*(add(n) for n in range(1, count + 1)))) == [ReplyStatus.OK] * count
    served.bookie.log.sync = real  # type: ignore[method-assign]
    assert early == [False], "one sync for all, and every reply behind it"


def test_requests_before_an_invalid_one_are_answered(serve: Serve) -> None:
    for durability in WAYS:
        served = serve(durability, durability, **ANY_SPACE)
        served.ask(add(0))
        served.send(add(1, flags=Flag.UNSYNCED), add(2, flags=Flag.UNSYNCED), b"x", add(3, flags=Flag.UNSYNCED))
        replies = served.replies(3)
        if durability == "appended":
            assert statuses(replies) == [ReplyStatus.OK] * 2
        served.connect_again()
        assert entries_in(served.ask(read(0, 9))[0][1]) == [0, 1, 2]


def test_a_connection_that_ends_during_the_sync_of_its_entries(serve: Serve) -> None:
    served = serve("b", "synced", **ANY_SPACE)
    served.ask(add(0))
    real, synced = served.bookie.log.sync, threading.Event()

    def sync() -> None:
        served.sock.close()
        served.bookie.log.sync = real  # type: ignore[method-assign]
        real()
        synced.set()

    served.bookie.log.sync = sync  # type: ignore[method-assign]
    served.send(*(add(n) for n in range(1, 6)))
    assert synced.wait(PATIENCE_S)
    until(lambda: served.connections[0].error is not None)
    assert not served.connections[0].inflight
    served.connect_again()
    assert entries_in(served.ask(read(0, 9))[0][1]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("durability", WAYS)
def test_replies_that_find_the_socket_full_wait_for_their_turn(durability: str, serve: Serve) -> None:
    """None is lost, doubled, or sent before an earlier one."""
    served = serve("b", durability, Service, 4096, **ANY_SPACE)
    served.ask(add(0))
    number, total = served.number, 3000
    requests = [add(n, flags=Flag.UNSYNCED) for n in range(1, total + 1)]

    def send() -> None:
        for start in range(0, total, 50):
            served.send(*requests[start : start + 50])

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: served.connections[0].queued_bytes > 0)
    replies = served.replies(total)
    thread.join()
    assert [n for n, _ in replies] == [*range(number, number + total)]
    assert [reply.last for _, reply in replies] == [*range(1, total + 1)]
    assert {reply.status for _, reply in replies} == {ReplyStatus.OK}
    until(lambda: not served.connections[0].inflight_bytes)


def test_a_reply_that_finds_the_socket_full_alone_waits_for_its_turn(serve: Serve) -> None:
    served = serve("b", "appended", Service, 4096, **ANY_SPACE)
    served.ask(add(0))
    (connection,), count = served.connections, 0
    while not connection.queued_bytes:
        count += 1
        assert count < 2000, "nothing waits, and nobody reads"
        before = connection.received_bytes
        served.send(add(count, flags=Flag.UNSYNCED))
        until(lambda: connection.received_bytes > before)  # noqa: B023
        served.with_bookie(lambda bookie: None)  # it has been handled
    replies = served.replies(count)
    assert [n for n, _ in replies] == [*range(1, count + 1)] and set(statuses(replies)) == {ReplyStatus.OK}


def test_a_ledger_that_has_left_the_memory_is_looked_up_again(serve: Serve) -> None:
    """Between two ADDs to one ledger its state is dropped, loaded, and fenced."""
    served = serve("b", "appended", ledger_states_max=1, **ANY_SPACE)
    for ledger in LEDGERS:
        served.ask(add(0, ledger=ledger))
    for together in (False, True):
        ledger = LEDGERS[together]
        requests = [
            *(add(n, ledger=ledger, flags=Flag.UNSYNCED) for n in (1, 2)),  # the first one loads the state
            *(read(0, 0, ledger=other) for other in LEDGERS[2:]),
            last(ledger=ledger, fence=True),
            add(3, ledger=ledger, flags=Flag.UNSYNCED),
        ]
        replies = served.ask(*requests) if together else [reply for one in requests for reply in served.ask(one)]
        assert dict(enumerate(statuses(sorted(replies)))) == {**dict.fromkeys(range(5), 0), 5: ReplyStatus.FENCED}


def test_a_deleted_ledger_takes_nothing(serve: Serve) -> None:
    for durability in WAYS:
        served = serve(durability, durability, **ANY_SPACE)
        served.ask(add(0))
        served.ask(add(1))
        served.with_bookie(lambda bookie: bookie.forget(7))
        requests = [add(n, flags=Flag.UNSYNCED) for n in (2, 3)]
        assert statuses(served.ask(requests[0])) == [ReplyStatus.UNAUTHORIZED]
        assert statuses(served.ask(*requests)) == [ReplyStatus.UNAUTHORIZED] * 2
        assert served.bookie.counts.added_entries == 2


def test_a_batch_takes_no_number_that_is_in_flight(serve: Serve) -> None:
    """The peer of a connection that uses a number twice is not served any more."""
    served = serve("b", "appended", **ANY_SPACE)
    served.ask(add(0))
    served.send(Request(RequestKind.WAIT_LAC, 7, 0, 50, limit=60_000))
    body = encode_request(add(1)) + records_of(1)
    served.sock.sendall(encode(1, body) + encode(2, body))
    assert served.sock.recv(1 << 16) == b""
    served.connect_again()
    assert entries_in(served.ask(read(0, 9))[0][1]) == [0]
