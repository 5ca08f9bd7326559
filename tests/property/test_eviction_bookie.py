"""Tables of a bookie that let something go, beside lists that are searched from end to end: who goes, and who stays. Keys,
times and limits are of few values, so that equal ones meet."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyreplog._native.bookie.ledger_state_base import NOTHING
from pyreplog.bookie import key_verifier, ledger_state_cache
from pyreplog.bookie.controls import Controls
from pyreplog.bookie.key_verifier import KeyVerdict, KeyVerifier
from pyreplog.bookie.ledger_state import LedgerState
from pyreplog.bookie.ledger_state_cache import LedgerStateCache
from pyreplog.bookie.long_polls import LongPoll, LongPolls
from pyreplog.bookie.protocol import Request, RequestKind
from pyreplog.clock import ManualClock
from tests.bookie.asking import Facts

# ---- states of ledgers ----------------------------------------------------------------------------------------------

LEDGERS = range(7)
LOOKS = 3
asked = st.tuples(st.sampled_from(["get", "get", "get", "touch", "sync", "await", "forget"]), st.sampled_from(LEDGERS))


@settings(max_examples=300)
@example(limit=1, steps=[("get", 0), ("touch", 0), ("await", 2), ("get", 2), ("get", 1)])
@given(limit=st.integers(1, 4), steps=st.lists(asked, min_size=5, max_size=40))
def test_states_asked_for_longest_ago_go_first(limit: int, steps: list[tuple[str, int]]) -> None:
    """Those that are not durable, or waited for, count as asked for when they are looked at."""
    awaited: set[int] = set()
    kept: list[int] = []  # asked for last at the end
    fresh: set[int] = set()
    loaded: list[int] = []

    def load(_: object, ledger: int) -> LedgerState:
        loaded.append(ledger)
        return LedgerState(ledger, Controls(), -1, -1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_state_cache, "load_state", load)
        patch.setattr(ledger_state_cache, "_EVICTION_TRIES", LOOKS)
        log: Any = None
        states = LedgerStateCache(log, limit, awaited.__contains__)
        for step, ledger in steps:
            if step == "get":
                loaded.clear()
                states.get(ledger)
                assert loaded == ([] if ledger in kept else [ledger])
                if ledger in kept:
                    kept.remove(ledger)
                else:
                    for oldest in kept[:LOOKS]:
                        if len(kept) < limit:
                            break
                        kept.remove(oldest)
                        if oldest in fresh or oldest in awaited:
                            kept.append(oldest)
                kept.append(ledger)
            elif step == "touch" and ledger in kept:
                states.states[ledger].fresh = ledger  # an entry id, 0 among them
                fresh.add(ledger)
            elif step == "sync" and ledger in kept:
                states.states[ledger].fresh = NOTHING
                fresh.discard(ledger)
            elif step == "await":
                awaited ^= {ledger}
            elif step == "forget":
                states.forget(ledger)
                kept = [item for item in kept if item != ledger]
                fresh.discard(ledger)
            assert list(states.states) == kept
            assert states.crowded == (len(kept) > limit)


@example(most=2, ledgers=[2, 0, 2, 1])
@given(most=st.integers(1, 3), ledgers=st.lists(st.sampled_from(LEDGERS), max_size=20))
def test_the_newest_deletions_are_remembered(most: int, ledgers: list[int]) -> None:
    """A ledger that is deleted again, because copies of it came late, is among the newest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_state_cache, "_DELETED_MAX", most)
        log: Any = None
        states = LedgerStateCache(log, 1, lambda _: False)
        newest: list[int] = []
        for ledger in ledgers:
            states.forget(ledger)
            newest = [*(item for item in newest if item != ledger), ledger][-most:]
            assert [each_ledger for each_ledger in LEDGERS if states.is_deleted(each_ledger)] == sorted(newest)


# ---- long polls ------------------------------------------------------------------------------------------------------

numbers = st.integers(0, 3)
polled = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("abc"), numbers, numbers, numbers),  # client, ledger, above, deadline
    st.tuples(st.sampled_from(["leave"]), st.sampled_from("abc")),
    st.tuples(st.just("reached"), numbers, numbers),
    st.tuples(st.sampled_from(["wake", "expired"]), numbers),
)


@given(limit=st.integers(1, 4), steps=st.lists(polled, max_size=40))
def test_oldest_long_poll_of_the_connection_with_most_is_evicted(limit: int, steps: list[tuple[Any, ...]]) -> None:
    polls = LongPolls(limit)
    waiting: list[LongPoll] = []  # the oldest first
    for number, (step, *actual_step) in enumerate(steps):
        ended: list[LongPoll] = []
        expected: list[LongPoll] = []
        if step == "add":
            client, ledger, above, deadline = actual_step
            assert polls.has_room == (len(waiting) < limit)
            if not polls.has_room:
                counts = {name: sum(poll.client == name for poll in waiting) for name in "abc"}
                gone = polls.make_room(client)
                if gone is None:
                    assert counts[client] == max(counts.values())
                    continue
                assert counts[gone.client] == max(counts.values()) > counts[client]
                assert gone == next(poll for poll in waiting if poll.client == gone.client)
                waiting.remove(gone)
            polls.add(ledger, above, deadline, len, client)
            waiting.append(LongPoll(deadline, polls._number, ledger, above, len, client))
        elif step == "leave":
            polls.leave(actual_step[0])
            expected = ended = [poll for poll in waiting if poll.client == actual_step[0]]
        elif step == "reached":
            ended = polls.reached(*actual_step)
            expected = [poll for poll in waiting if poll.ledger == actual_step[0] and poll.above < actual_step[1]]
        elif step == "wake":
            ended = polls.wake(actual_step[0])
            expected = [poll for poll in waiting if poll.ledger == actual_step[0]]
        else:
            ended = polls.expired(actual_step[0])
            expected = [poll for poll in waiting if poll.deadline_us <= actual_step[0]]
        assert sorted(ended) == sorted(expected), number
        waiting = [poll for poll in waiting if poll not in expected]
        assert polls.count == len(waiting)
        assert polls.next_deadline_us() == min((poll.deadline_us for poll in waiting), default=None)
        assert [polls.awaits(ledger) for ledger in range(4)] == [
            any(poll.ledger == ledger for poll in waiting) for ledger in range(4)
        ]
        assert len(polls._deadlines) <= 2 * polls.count + 16


# ---- keys that nobody could prove ------------------------------------------------------------------------------------


class _Reactor:
    """A clock that stands still, and calls that are made at once."""

    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.soon: list[Any] = []

    def call_soon(self, call: Any) -> None:
        self.soon.append(call)


@given(most=st.integers(0, 3), steps=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=20))
def test_a_connection_gives_keys_to_so_many_ledgers_unproven(most: int, steps: list[tuple[str, bool]]) -> None:
    """And to none more, until it has left."""
    reactor: Any = _Reactor()
    told: list[tuple[Any, KeyVerdict]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_verifier, "UNPROVEN_MAX", most)
        checks = KeyVerifier(reactor, Facts(), lambda connection, _, verdict: told.append((connection, verdict)))
        checks._away_until_us = 1  # the store did not answer a moment ago
        counts = dict.fromkeys("abc", 0)
        try:
            for number, (who, leaves) in enumerate(steps):
                connection: Any = who
                if leaves:
                    checks.leave(connection)
                    counts[who] = 0
                    continue
                checks.ask(connection, number, Request(RequestKind.ADD, number, 0, 0, bytes(16), records=b""))
                reactor.soon.pop()()
                counts[who] += 1
                expected = KeyVerdict.UNKNOWN if counts[who] <= most else KeyVerdict.SURPLUS
                assert told.pop() == (who, expected)
        finally:
            checks.close()
