"""An ADD that nothing speaks against takes fewer steps; all it does is what `handle` would."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.bookie.fast_add import LATER, CommitEnd, FastAdd, as_fast_add, parse_fast_add
from pyreplog._native.net.frame import FrameParser, encode
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, decode_reply, encode_request
from pyreplog.errors import ClosedError, ForkedError, WrongTypeError
from pyreplog.ledger.cluster import LedgerCluster
from tests.bookie.asking import (
    ANY_SPACE,
    KEY,
    LEDGER,
    OTHER_KEY,
    Node,
    add,
    entries_in,
    into,
    last,
    read,
    records_of,
    set_lac,
    wait_lac,
)

_NUMBER = 77


def plain_of(request: Request, number: int = _NUMBER) -> FastAdd | None:
    body = encode_request(request) + bytes(request.records)
    return parse_fast_add(FrameParser().feed(encode(number, body)), {})


def _plain(*entries: int, **more: object) -> FastAdd:
    fast_reply = plain_of(add(*entries, flags=Flag.UNSYNCED, **more))  # type: ignore[arg-type]
    assert fast_reply is not None
    return fast_reply


def _begun(*, staged: bool = False) -> Node:
    """A ledger with entries 0 and 1."""
    node = Node(staged=staged)
    node.ask(add(0, 1, flags=Flag.UNSYNCED))
    return node


def test_fast_add_is_stored_counted_and_answered_as_any_other_add() -> None:
    quick, slow = _begun(), _begun()
    added = _plain(2, 3)
    lac = quick.bookie.add_fast(added)
    reply = slow.ask(add(2, 3, flags=Flag.UNSYNCED))
    assert lac is not None
    ((number, body),) = FrameParser().feed(added.ok(lac))
    assert (number, decode_reply(body)) == (_NUMBER, reply)
    assert entries_in(quick.ask(read(0, 9))) == [0, 1, 2, 3]
    slow.ask(read(0, 9))
    assert quick.ask(last()) == slow.ask(last())
    assert quick.bookie.counts.replies == slow.bookie.counts.replies
    assert quick.bookie.counts.requests == slow.bookie.counts.requests
    assert quick.bookie.counts.added_entries == slow.bookie.counts.added_entries == 4
    assert quick.bookie.counts.added_bytes == slow.bookie.counts.added_bytes


def test_fast_add_takes_entries_of_any_size(tmp_path: Path) -> None:
    """Of a real log, which takes so many bytes with the GIL released."""
    large = bytes(1 << 20)
    with LocalBookie(tmp_path / "bookie", BookieConfig(durability="appended", **ANY_SPACE)) as bookie:
        replies: list[Reply] = []
        bookie.request(add(0, flags=Flag.UNSYNCED), replies.append)
        assert bookie.add_fast(_plain(1, lac=-1, mark=large)) == replies[0].lac == -1
        bookie.request(read(0, 1, limit=4 << 20), replies.append)
        assert entries_in(replies[1]) == [0, 1] and bytes(replies[1].body).endswith(
            records_of(1, lac=-1, mark=large)[64:]
        )


def test_fast_add_answers_long_polls_of_the_lac() -> None:
    node = _begun()
    waiting = node.send(wait_lac(0))
    node.bookie.add_fast(_plain(2, lac=1))
    (reply,) = waiting
    assert (reply.status, reply.lac) == (ReplyStatus.OK, 1)


def test_local_bookie_answers_long_polls_after_a_fast_add_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the bookie has something else to do."""
    monkeypatch.setattr("pyreplog.bookie.local_bookie._CHECK_SPACE_S", 3600.0)
    monkeypatch.setattr("pyreplog.bookie.bookie.WAIT_MS_MAX", 1 << 40)
    came = threading.Event()
    with LocalBookie(tmp_path / "bookie", BookieConfig(durability="appended", **ANY_SPACE)) as bookie:
        bookie.request(add(0, 1, flags=Flag.UNSYNCED), into([]))
        bookie.request(wait_lac(0, limit=3_600_000), lambda reply: came.set())
        assert bookie.add_fast(_plain(2, lac=1)) == 1
        assert came.wait(60.0)


def test_an_add_that_fails_gives_the_lock_back(tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("told nobody")

    bookie = LocalBookie(tmp_path / "bookie", BookieConfig(durability="appended", **ANY_SPACE))
    bookie.request(add(0, 1, flags=Flag.UNSYNCED), into([]))
    bookie.with_bookie(lambda machine: machine.handle(wait_lac(0, limit=60_000), fail))
    with pytest.raises(RuntimeError, match="told nobody"):
        bookie.add_fast(_plain(2, lac=1))
    thread = threading.Thread(target=bookie.gauges, daemon=True)
    thread.start()
    thread.join(20.0)
    if thread.is_alive():
        bookie.refuse_calls(ClosedError("its lock is taken"))  # `close` would wait for ever
    assert not thread.is_alive()
    bookie.close()


def _fence(node: Node) -> None:
    node.ask(last(fence=True))


def _delete(node: Node) -> None:
    node.bookie.forget(LEDGER)


def _lose(node: Node) -> None:
    node.bookie.limbo.enter([LEDGER])


def _become_read_only(node: Node) -> None:
    node.log.free = 0
    node.bookie.expire(0)


def _fill(node: Node) -> None:
    node.log.full = True


def _poison(node: Node) -> None:
    node.log.poisoned = True


def _nothing(node: Node) -> None:
    assert node.bookie.failure is None


_OBSTACLES: dict[str, tuple[Callable[[Node], None], Request]] = {
    "the ledger is fenced": (_fence, add(2, flags=Flag.UNSYNCED)),
    "the ledger was deleted": (_delete, add(2, flags=Flag.UNSYNCED)),
    "the ledger is in limbo": (_lose, add(2, flags=Flag.UNSYNCED)),
    "space is short": (_become_read_only, add(2, flags=Flag.UNSYNCED)),
    "the disk is full": (_fill, add(2, flags=Flag.UNSYNCED)),
    "the log has failed": (_poison, add(2, flags=Flag.UNSYNCED)),
    "another's key": (_nothing, add(2, flags=Flag.UNSYNCED, key=OTHER_KEY)),
    "a ledger never seen": (_nothing, add(2, ledger=8, flags=Flag.UNSYNCED)),
    "an entry that is there": (_nothing, add(1, flags=Flag.UNSYNCED)),
    "damaged": (
        _nothing,
        add(2, flags=Flag.UNSYNCED)._replace(records=records_of(2)[:-1] + bytes((records_of(2)[-1] ^ 1,))),
    ),
}


@pytest.mark.parametrize("name", _OBSTACLES)
def test_add_with_an_obstacle_is_left_to_handle(name: str) -> None:
    meet, request = _OBSTACLES[name]
    node, other = _begun(), _begun()
    meet(node)
    meet(other)
    fast_reply = plain_of(request)
    assert fast_reply is not None and node.bookie.add_fast(fast_reply) is None
    assert node.ask(request) == other.ask(request)
    assert node.bookie.counts.replies == other.bookie.counts.replies


_WAITING = [(True, Flag.NONE), (True, Flag.UNSYNCED), (False, Flag.NONE)]
"""Whether the log is staged, and the flags of the ledger's ADDs: together they have to wait for a sync."""


@pytest.mark.parametrize(("staged", "flags"), _WAITING)
def test_add_that_waits_for_a_sync_without_a_callback_is_left_to_handle(staged: bool, flags: Flag) -> None:
    node = _begun(staged=staged)
    fast_reply = plain_of(add(2, flags=flags))
    assert fast_reply is not None and node.bookie.add_fast(fast_reply) is None
    assert not node.bookie.waits and node.ask(last()).last == 1


@pytest.mark.parametrize(("staged", "flags"), _WAITING)
def test_add_that_waits_for_a_sync_is_answered_after_it(staged: bool, flags: Flag) -> None:
    node = _begun(staged=staged)
    replies: list[Reply] = []
    fast_reply = plain_of(add(2, flags=flags))
    assert fast_reply is not None and node.bookie.add_fast(fast_reply, into(replies)) == LATER
    reads = node.send(read(2, 2))
    assert node.bookie.waits and not replies and not reads, "it is not durable yet"
    node.bookie.commit()
    assert replies == [Reply(ReplyStatus.OK, LEDGER, 2, 2, 1)]
    assert [entries_in(reply) for reply in reads] == [[2]]


def test_a_sync_that_fails_leaves_its_fate_unknown() -> None:
    node = _begun()
    replies: list[Reply] = []
    fast_reply = plain_of(add(2))
    assert fast_reply is not None and node.bookie.add_fast(fast_reply, into(replies)) == LATER
    node.log.poisoned = True
    node.bookie.commit()
    assert [reply.status for reply in replies] == [ReplyStatus.UNKNOWN]


def _shortly(node: Node, request: Request) -> list[Reply]:
    """As the service does."""
    replies: list[Reply] = []
    fast_reply = plain_of(request)
    lac = None if fast_reply is None else node.bookie.add_fast(fast_reply, into(replies))
    if lac is None:
        return node.send(request)
    if lac != LATER:
        replies.append(Reply(ReplyStatus.OK, request.ledger, request.first, request.last, lac))
    return replies


@given(st.integers(0, 1 << 32))
@pytest.mark.parametrize("staged", [True, False])
def test_the_short_way_and_the_long_one_come_to_the_same(staged: bool, seed: int) -> None:
    """Adds in any order and again, reads, fences and explicit LACs of two ledgers, with commits in between."""
    random = Random(seed)
    short, long = Node(staged=staged), Node(staged=staged)
    answers: list[tuple[list[Reply], list[Reply]]] = []
    for _ in range(random.randint(1, 40)):
        ledger, entry = random.choice((LEDGER, LEDGER + 1)), random.randrange(12)
        entries = range(entry, entry + random.randint(1, 3))
        key = OTHER_KEY if random.random() < 0.05 else KEY
        flags = random.choice((Flag.NONE, Flag.UNSYNCED, Flag.RECOVERY))
        request = random.choices(
            [
                add(*entries, ledger=ledger, flags=flags, key=key),
                read(entry, entry + 3, ledger=ledger),
                last(ledger=ledger, fence=random.random() < 0.2),
                set_lac(entry, ledger=ledger),
            ],
            [8, 3, 1, 1],
        )[0]
        answers.append((_shortly(short, request), long.send(request)))
        if random.random() < 0.3:
            short.bookie.commit()
            long.bookie.commit()
        assert all(answer == expected for answer, expected in answers)
    assert short.log.stored == long.log.stored and short.log.syncs == long.log.syncs
    assert short.bookie.counts.replies == long.bookie.counts.replies
    assert short.bookie.counts.requests == long.bookie.counts.requests


@pytest.mark.parametrize(
    "request_",
    [
        add(2, flags=Flag.RECOVERY),
        add(2, flags=Flag.UNSYNCED | Flag.RECOVERY),
        read(0, 1),
        add(2, flags=Flag.UNSYNCED)._replace(records=b""),
        add(2, flags=Flag.UNSYNCED)._replace(records=records_of(2)[:-8]),
        add(2, flags=Flag.UNSYNCED)._replace(ledger=LEDGER + 1),
        add(2, flags=Flag.UNSYNCED)._replace(first=3, last=3),
        add(2, flags=Flag.UNSYNCED)._replace(run=2, step=2),
        add(2, flags=Flag.UNSYNCED)._replace(records=records_of(*range(2000))),
    ],
)
def test_requests_that_are_no_plain_adds_take_the_general_path(request_: Request) -> None:
    assert plain_of(request_) is None


def test_a_request_whose_number_is_taken_is_none() -> None:
    body = encode_request(add(2)) + records_of(2)
    batch = FrameParser().feed(encode(_NUMBER, body))
    assert parse_fast_add(batch, {_NUMBER: 0}) is None and parse_fast_add(batch, {_NUMBER + 1: 0}) is not None


def test_bodies_that_are_no_request_are_none() -> None:
    assert plain_of(add(2, flags=Flag.UNSYNCED), number=-1) is None
    good = encode_request(add(2, flags=Flag.UNSYNCED))
    assert all(parse_fast_add(FrameParser().feed(encode(1, good[:size])), {}) is None for size in range(len(good) + 1))
    two = encode(1, b"x") + encode(2, b"y")
    assert parse_fast_add(FrameParser().feed(two), {}) is None and parse_fast_add(FrameParser().feed(b""), {}) is None


@pytest.mark.parametrize("flags", [0, Flag.UNSYNCED])
def test_a_request_in_this_process_is_looked_at_in_the_same_way(flags: int) -> None:
    request = add(2, 3, flags=flags)
    fast_add, framed = as_fast_add(request), plain_of(request)
    assert fast_add is not None and framed is not None
    for name in ("ledger", "first", "last", "key", "flags", "count", "highest", "lac", "nbytes"):
        assert getattr(fast_add, name) == getattr(framed, name)
    assert fast_add.records == framed.records == request.records
    assert as_fast_add(add(2, flags=flags | Flag.COPY)) is None and as_fast_add(read(0, 1)) is None
    assert as_fast_add(request._replace(ledger=8)) is None
    with pytest.raises(WrongTypeError):
        as_fast_add(request._replace(records="text"))


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_cluster_in_one_process_appends_by_this_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    taken: list[int | None] = []

    def note(bookie: LocalBookie, plain: FastAdd, *args: Any, **kwargs: Any) -> int | None:
        taken.append(genuine(bookie, plain, *args, **kwargs))
        return taken[-1]

    genuine = LocalBookie.request_fast
    monkeypatch.setattr(LocalBookie, "request_fast", note)
    with LedgerCluster.embedded(tmp_path, bookies=3, durability=durability) as cluster:
        with cluster.create_ledger(3, 3, 2, durability=durability) as ledger:
            assert [ledger.append(b"%d" % n) for n in range(3)] == [0, 1, 2]
        with cluster.open_ledger(ledger.id) as reader:
            assert [value for batch in reader.read() for value in batch.values()] == [b"0", b"1", b"2"]
    assert taken[:3] == [None] * 3, "the ledger's key comes first"
    assert taken[3:] == ([0] * 3 + [1] * 3 if durability == "appended" else [LATER] * 6)


@pytest.mark.parametrize("call", ["add_fast", "request_fast", "commit"])
def test_a_child_process_is_refused(tmp_path: Path, call: str) -> None:
    with LocalBookie(tmp_path / "bookie", BookieConfig(durability="appended", **ANY_SPACE)) as bookie:
        arguments = (CommitEnd(),) if call == "commit" else (_plain(0), print)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                getattr(bookie, call)(*arguments)
            except ForkedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
