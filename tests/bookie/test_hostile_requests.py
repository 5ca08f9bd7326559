"""Requests with every field at its extremes: each is answered, or ends its connection, and the bookie serves others."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.bookie.protocol import ID_MAX, Flag, Reply, ReplyStatus, Request, RequestKind, encode_request
from pyreplog.metadata.memory import MemoryStore
from tests.bookie.asking import (
    ANY_SPACE,
    KEY,
    LEDGER,
    Facts,
    Node,
    add,
    entries_in,
    last,
    read,
    records_of,
    set_lac,
    wait_lac,
)
from tests.bookie.tcp import Client
from tests.net.peers import RawClient
from tests.waiting import PATIENCE_S, until

EXTREMES = [-1, 0, 1, 2, (1 << 31) - 1, (1 << 32) - 1, ID_MAX - 1, ID_MAX, ID_MAX + 1, ID_MAX + 2, (1 << 63) - 1]
COMMITS_MAX = 3
MINUTES_US = itertools.count(0, 60_000_000)
HEAD = struct.Struct(">BBBBIqqq16s")


@pytest.fixture(params=[True, False], ids=["synced", "appended"])
def node(request: pytest.FixtureRequest) -> Node:
    """With a ledger whose entries 0 to 3 are durable."""
    node = Node(staged=request.param)
    assert node.ask(add(0, 1, 2, 3)).status == ReplyStatus.OK
    return node


def settled(node: Node, request: Request) -> Reply:
    """What a request is answered within a few commits. Nothing else is appended meanwhile."""
    replies = node.send(request)
    for _ in range(COMMITS_MAX):
        if replies:
            break
        node.bookie.commit()
    node.bookie.expire(next(MINUTES_US))  # long polls
    assert len(replies) == 1, f"{request} waits for what nothing changes"
    node.bookie.commit()
    assert not node.bookie.waits
    return replies[0]


@pytest.mark.parametrize("kind", RequestKind)
def test_reads_of_extreme_ids_are_answered(kind: RequestKind, node: Node) -> None:
    for ledger, first, end in itertools.product((LEDGER, 8, *EXTREMES[1:]), EXTREMES[1:], EXTREMES):
        for flags in (0, Flag.RECOVERY, Flag.UNSYNCED, Flag.COPY):
            records = records_of(2) if kind == RequestKind.ADD else b""
            reply = settled(node, Request(kind, ledger, first, end, KEY, flags, 10, records=records))
            if max(ledger, first, end) > ID_MAX:
                assert reply.status == ReplyStatus.REFUSED
    assert node.ask(add(4)).status == ReplyStatus.OK and entries_in(node.ask(read(0, 9))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("steps", [(1, 1), (255, 1), (255, 255), (7, 3)])
@pytest.mark.parametrize("limbo", [False, True])
@pytest.mark.parametrize("kind", [RequestKind.READ, RequestKind.HOLDINGS])
def test_reads_of_any_range_are_answered(steps: tuple[int, int], limbo: bool, kind: RequestKind) -> None:
    node = Node(limbo=(LEDGER,) if limbo else ())
    assert node.ask(add(0, 1, 2, 3, flags=Flag.RECOVERY)).status == ReplyStatus.OK
    step, run = steps
    for first, end, limit, flags in itertools.product(EXTREMES[1:], EXTREMES, (0, 1, (1 << 32) - 1), (0, Flag.FENCE)):
        request = Request(kind, LEDGER, first, end, KEY, flags, limit, step, run)
        reply = settled(node, request)
        expected = {ReplyStatus.REFUSED, ReplyStatus.LIMBO} if limbo else {ReplyStatus.REFUSED}
        assert reply.status in expected if end < first or end > ID_MAX else reply.status in expected | {ReplyStatus.OK}


def test_an_add_that_claims_more_than_it_brings_does_not_wait(node: Node) -> None:
    """Its entries are here and durable: what it says of others is nothing to wait for."""
    claim = add(2)._replace(last=ID_MAX)
    assert settled(node, claim).status == ReplyStatus.OK
    assert settled(node, claim._replace(last=(1 << 63) - 1)).status == ReplyStatus.REFUSED


def test_entries_beyond_all_ids_are_not_taken(node: Node) -> None:
    """A bookie that had one would wait for ever to tell its last entry."""
    beyond = Request(RequestKind.ADD, LEDGER, 5, (1 << 63) - 1, KEY, records=records_of((1 << 62) + 5))
    assert settled(node, beyond).status == ReplyStatus.REFUSED
    assert settled(node, last()).last == 3


def test_a_read_behind_the_end_does_not_wait_for_what_others_append(node: Node) -> None:
    """Entries come without a pause: one that asks for what is not there would never be answered."""
    node.send(add(4))
    assert entries_in(node.send(read(7, 9))[0]) == []
    fenced = node.send(read(7, 9, flags=Flag.FENCE))
    assert fenced == []
    node.bookie.commit()
    assert entries_in(fenced[0]) == []


@pytest.mark.parametrize("lac", [4, 5, ID_MAX, ID_MAX + 1, (1 << 63) - 1])
def test_an_entry_cannot_confirm_itself_nor_what_follows(lac: int, node: Node) -> None:
    before = settled(node, last()).lac
    assert settled(node, add(4, lac=lac)).status == ReplyStatus.INVALID
    assert settled(node, last()).lac == before


# ---- long polls ------------------------------------------------------------------------------------------------------


def test_long_polls_of_a_closed_connection_end() -> None:
    node = Node(long_polls_max=2)
    gone: list[Reply] = []
    for _ in range(2):
        node.bookie.handle(wait_lac(5), gone.append, "a")
    node.bookie.leave("a")
    assert node.bookie.gauges().long_polls == 0 and node.bookie.next_deadline_us() is None
    assert node.send(wait_lac(5)) == [] and node.send(wait_lac(5)) == []
    assert gone == []


def test_one_client_does_not_take_the_long_polls_of_all() -> None:
    node = Node(long_polls_max=4)
    greedy: list[Reply] = []
    for _ in range(6):
        node.bookie.handle(wait_lac(5), greedy.append, "greedy")
    assert [reply.status for reply in greedy] == [ReplyStatus.OVERLOADED] * 2
    modest: list[Reply] = []
    for _ in range(2):
        node.bookie.handle(wait_lac(5), modest.append, "modest")
    assert modest == [] and [reply.status for reply in greedy[2:]] == [ReplyStatus.OK] * 2  # the oldest, too early
    for client, answers in (("greedy", greedy), ("modest", modest)):
        node.bookie.handle(wait_lac(5), answers.append, client)
        assert answers[-1].status == ReplyStatus.OVERLOADED
    assert node.bookie.gauges().long_polls == 4


# ---- over TCP --------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[BookieNode]:
    config = BookieConfig(segment_bytes=1 << 20, **ANY_SPACE)
    with MemoryStore() as store, BookieNode(tmp_path / "b", "b", store, config, ledgers=Facts()) as bookie_node:
        yield bookie_node


def mutated(rng: random.Random) -> bytes:
    """A request, as bytes, of which some fields are at their extremes, and some bytes of its records other ones."""
    kind = rng.choice(list(RequestKind))
    records = bytearray(records_of(*range(rng.randint(0, 6), 7)) if kind == RequestKind.ADD else b"")
    if records and rng.random() < 0.5:
        records[rng.randrange(len(records))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.2:
        records += bytes(rng.choice((1, 8, 64)))
    first, end = (rng.choice((*range(8), *EXTREMES)) for _ in range(2))
    fields = [
        int(kind),
        rng.choice((0, 0, 1, 2, 4, 7, 8, 15)),
        1,
        1,
        rng.choice((0, 1, 50, (1 << 32) - 1)),
        LEDGER,
        first,
        end,
    ]
    if kind in (RequestKind.READ, RequestKind.HOLDINGS):
        fields[3] = rng.choice((1, 2, 255))
    if rng.random() < 0.1:
        fields[rng.randrange(4)] = rng.choice((0, 1, 127, 128, 255))
    if rng.random() < 0.2:
        fields[5] = rng.choice(EXTREMES)
    return HEAD.pack(*fields, rng.choice((KEY, bytes(16)))) + bytes(records)


def test_a_mutated_session_is_answered_or_ended_and_others_are_served(served: BookieNode, seed: int) -> None:
    """Every request of a connection that lives is answered. An honest client appends all the while."""
    rng = random.Random(seed)
    with Client(served.address) as honest:
        assert honest.ask(add(0, 1, 2, 3)).status == ReplyStatus.OK
        for turn in range(20):
            with RawClient(served.server) as peer:
                asked = {}
                for number in range(40):
                    body = mutated(rng)
                    if body[0] == RequestKind.WAIT_LAC:
                        body = body[:4] + struct.pack(">I", 1) + body[8:]
                    asked[number] = body
                    try:
                        peer.send(number, body)
                    except OSError:
                        break
                try:
                    while asked:
                        del asked[peer.reply()[0]]
                except (EOFError, OSError):
                    pass  # bytes that make no request
                else:
                    assert not asked
            assert honest.ask(add(turn, ledger=9, key=KEY)).status == ReplyStatus.OK
        assert entries_in(honest.ask(read(0, 100, ledger=9))) == list(range(20))
    counts = served.bookie.counts
    until(lambda: not served.bookie.with_bookie(lambda bookie: bookie.waits))
    commits = counts.commit_entries.buckets()[-1]
    with Client(served.address) as honest:
        assert honest.ask(last(ledger=9)).last == 19
        assert counts.commit_entries.buckets()[-1] == commits  # nothing spins
    assert served.bookie.failure is None


def test_polls_end_with_their_connection(served: BookieNode) -> None:
    with RawClient(served.server) as peer:
        for number in range(10):
            peer.send(number, encode_request(wait_lac(5, limit=60_000)))
        until(lambda: served.bookie.gauges().long_polls == 10)
    until(lambda: served.bookie.gauges().long_polls == 0, patience_s=PATIENCE_S / 2)  # not when their time is up


def test_bytes_that_make_no_request_end_the_connection(served: BookieNode) -> None:
    """Other than a request of a kind that the bookie does not know, which is answered."""
    good = encode_request(read(0, 5))
    for value in (0, 2):
        with RawClient(served.server) as peer:
            peer.send(1, good[:2] + bytes((value,)) + good[3:])
            assert peer.ended(heartbeats=2)
    with RawClient(served.server) as peer:
        peer.send(1, encode_request(set_lac(5)) + b"more")
        assert peer.ended(heartbeats=2)
    with Client(served.address) as client:
        assert client.ask(last()).last == -1
