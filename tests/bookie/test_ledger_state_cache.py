"""Ledgers leave the bookie's memory, and come back as they were."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from pyreplog.bookie import ledger_state_cache
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.ledger_state import LedgerState
from pyreplog.bookie.ledger_state_cache import LedgerStateCache
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import ID_MAX, Flag, Reply, ReplyStatus, Request, RequestKind
from tests.bookie.asking import ANY_SPACE, KEY, OTHER_KEY, Node, add, entries_in, last, read, set_lac, wait_lac
from tests.bookie.memory_log import MemoryLog

LIMIT = 4
ALL = range(100, 140)


def states_in_memory() -> int:
    """However they are held."""
    gc.collect()
    return sum(isinstance(thing, LedgerState) for thing in gc.get_objects())


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_memory_does_not_grow_with_the_number_of_ledgers(durability: str, tmp_path: Path) -> None:
    """Fenced, written, with an explicit LAC: three of each four ledgers, asked for again in the end."""
    config = BookieConfig.of({"durability": durability, "segment_bytes": 1 << 20, "ledger_states_max": 16, **ANY_SPACE})
    with LocalBookie(tmp_path / "b", config) as bookie:

        def ask(request: Request) -> Reply:
            replies: list[Reply] = []
            bookie.with_bookie(lambda machine: machine.handle(request, replies.append))
            bookie.with_bookie(lambda machine: machine.commit() if machine.waits else None)
            (reply,) = replies
            return reply

        before = states_in_memory()
        for ledger in range(600):
            assert ask(add(0, 1, 2, ledger=ledger, flags=Flag.UNSYNCED)).status == ReplyStatus.OK
            if ledger % 4 == 1:
                ask(last(ledger=ledger, fence=True))
            elif ledger % 4 == 2:
                assert ask(set_lac(2, ledger=ledger)).lac == 2
        for ledger in range(5000, 5300):  # no entries, only a key and a LAC
            assert ask(set_lac(9, ledger=ledger)).lac == 9
        assert states_in_memory() - before <= 16 + 8
        for ledger in range(600):
            status = ReplyStatus.FENCED if ledger % 4 == 1 else ReplyStatus.OK
            assert ask(set_lac(-1, ledger=ledger)).status == status
            assert ask(set_lac(-1, ledger=ledger, key=OTHER_KEY)).status == ReplyStatus.UNAUTHORIZED
            actual_reply = ask(last(ledger=ledger))
            assert (actual_reply.last, actual_reply.lac) == (2, 2 if ledger % 4 == 2 else 1)
        assert ask(last(ledger=5000)).lac == 9
        assert bookie.gauges().ledger_states <= 16


def crowd(node: Node) -> None:
    """Others come and go."""
    for ledger in ALL:
        assert node.ask(add(0, ledger=ledger)).status == ReplyStatus.OK


@pytest.mark.parametrize("staged", [False, True])
def test_ledger_state_that_is_not_durable_stays_in_memory(staged: bool) -> None:
    """A fence, entries and a LAC that wait for a sync, while others are asked for."""
    node = Node(staged=staged, ledger_states_max=LIMIT)
    crowd(node)
    fence, entries, told = node.send(last(fence=True, ledger=1)), node.send(add(0, 1, ledger=2)), node.send(set_lac(5))
    for ledger in ALL:
        assert node.send(read(0, 0, ledger=ledger))[0].status == ReplyStatus.OK
    assert not fence and not entries and told[0].lac == 5
    assert node.send(add(0, ledger=1))[0].status == ReplyStatus.FENCED
    assert not node.send(read(0, 1, ledger=2)), "it waits for the sync"
    assert node.send(wait_lac(4))[0].lac == 5
    node.bookie.commit()
    crowd(node)
    assert node.send(add(0, ledger=1))[0].status == ReplyStatus.FENCED
    assert entries_in(node.ask(read(0, 1, ledger=2))) == [0, 1]
    assert node.ask(last()).lac == 5
    assert node.bookie.gauges().ledger_states == LIMIT


def test_lacs_alone_lead_to_a_sync_when_there_are_too_many() -> None:
    """They wait for nobody's sync otherwise."""
    node = Node(ledger_states_max=LIMIT)
    for ledger in ALL:
        node.send(set_lac(3, ledger=ledger))
        if node.bookie.waits:
            node.bookie.commit()
    assert node.bookie.gauges().ledger_states <= LIMIT + 1
    assert 0 < node.log.syncs < len(ALL)
    assert [node.ask(last(ledger=ledger)).lac for ledger in ALL] == [3] * len(ALL)


def test_long_poll_of_an_evicted_ledger_is_answered_with_the_new_lac() -> None:
    node = Node(ledger_states_max=LIMIT)
    node.ask(add(0, 1))
    (waiting, expired) = node.send(wait_lac(0)), node.send(wait_lac(0, limit=1))
    crowd(node)
    node.bookie.expire(2000)
    assert [reply.lac for reply in expired] == [0], "as it is, not unknown"
    node.ask(add(2))
    assert [reply.lac for reply in waiting] == [1]


@pytest.mark.parametrize("staged", [False, True])
def test_limbo_of_an_evicted_ledger_stays_until_it_ends(staged: bool) -> None:
    node = Node(staged=staged, ledger_states_max=LIMIT, limbo=(7,))
    crowd(node)
    assert node.ask(read(0, 0)).status == ReplyStatus.LIMBO and node.bookie.gauges().limbo == 1
    node.bookie.limbo.leave(7)
    for ledger in ALL:
        node.send(read(0, 0, ledger=ledger))
    assert node.ask(read(0, 0)).status == ReplyStatus.OK and node.bookie.gauges().limbo == 0
    crowd(node)
    assert node.ask(read(0, 0)).status == ReplyStatus.OK


def test_deleted_ledgers_are_forgotten() -> None:
    node = Node(ledger_states_max=LIMIT, limbo=(7,))
    node.ask(read(0, 0))
    node.bookie.forget(7)
    crowd(node)
    assert node.ask(read(0, 0)).status == ReplyStatus.REFUSED and node.bookie.gauges().limbo == 0


@pytest.mark.parametrize(
    "kind", [RequestKind.ADD, RequestKind.READ, RequestKind.LAST, RequestKind.SET_LAC, RequestKind.WAIT_LAC]
)
@pytest.mark.parametrize("ids", [(ID_MAX + 1, 0), ((1 << 63) - 1, 0), (7, ID_MAX + 1), (7, (1 << 63) - 1)])
def test_ids_beyond_all_bounds_are_refused(kind: RequestKind, ids: tuple[int, int], tmp_path: Path) -> None:
    """Control records lie there; and the bookie goes on."""
    with LocalBookie(tmp_path / "b", BookieConfig(segment_bytes=1 << 20)) as bookie:
        replies: list[Reply] = []
        ledger, first = ids
        request = Request(kind, ledger, first, (1 << 63) - 1, KEY, limit=10, records=b"")
        bookie.request(request, replies.append)
        assert [reply.status for reply in replies] == [ReplyStatus.REFUSED] and bookie.failure is None
        top = Request(RequestKind.READ, ID_MAX, ID_MAX, ID_MAX, KEY)
        bookie.request(top, replies.append)
        assert replies[1].status == ReplyStatus.OK


def test_the_newest_of_many_deleted_ledgers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten first: a late add for a ledger that was deleted just now must not bring it back."""
    monkeypatch.setattr(ledger_state_cache, "_DELETED_MAX", 3)
    states = LedgerStateCache(MemoryLog(), 10, lambda ledger: False)
    for ledger in range(6):
        states.forget(ledger)
        assert [older for older in range(6) if states.is_deleted(older)] == list(range(max(ledger - 2, 0), ledger + 1))
