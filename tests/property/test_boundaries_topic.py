"""Lookups of topics by offset, size and time beside brute force, at the values that occur and those one beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.errors import OutOfRangeError
from pyreplog.future import AppendFuture, set_result
from pyreplog.topic.model.backlog import CursorBacklog, Quota, is_system
from pyreplog.topic.model.chain import ChainLedger, LedgerChain
from pyreplog.topic.model.config import QUOTA_POLICIES, TopicConfig
from pyreplog.topic.model.positions import ORIGIN, TopicPosition
from pyreplog.topic.model.retention import Usage, expired, next_expiry, next_unused, unused
from pyreplog.topic.model.wire import batches
from pyreplog.topic.owner.managed.chain_reader import ChainReader, ChainView
from tests.topic.entries import decoded

# ---- a chain of ledgers ----------------------------------------------------------------------------------------------

Entry = tuple[int, int]  # messages, and append time since that of the entry before
ledgers_of = st.lists(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=4), max_size=3)
T0 = 1_000_000


class Chained:
    """Ledgers in memory, and what a topic's chain says of them. before: at each entry, and at the end."""

    def __init__(self, ledgers: list[list[Entry]], is_open: bool) -> None:
        self.before: list[TopicPosition] = []
        self.times: list[int] = []
        self._records: dict[int, Callable[[int, int], RecordBatch]] = {}
        at, time, items = ORIGIN, T0, list[ChainLedger]()
        for ledger, entries in enumerate(ledgers):
            start, new_messages = at, [encode_messages([b"v" * count] * count) for count, _ in entries]
            for data, (count, step) in zip(new_messages, entries, strict=True):
                time += step
                self.before.append(at)
                self.times.append(time)
                at = TopicPosition(at.offset + count, at.entries + 1, at.size + len(data))
            counts = [count for count, _ in entries]
            self._records[ledger] = self._reader(ledger, new_messages, counts, self.times[-len(new_messages) :])
            item = ChainLedger(ledger, start, T0)
            if not is_open or ledger < len(ledgers) - 1:
                messages, size = at.offset - start.offset, at.size - start.size
                item = ChainLedger(ledger, start, T0, 1, len(new_messages), messages, size, time)
            items.append(item)
        self.before.append(at)
        self.end = at
        chain = LedgerChain(
            topic="t",
            token="a",
            epoch=1,
            owner="me",
            nonce="b",
            created_us=T0,
            config=TopicConfig(),
            ledgers=tuple(items),
        )
        entries_reader: Any = SimpleNamespace(read=self._read)
        self.reader = ChainReader("t", entries_reader, lambda: ChainView(chain, self.end), lambda: None)

    @staticmethod
    def _reader(
        ledger: int, contents: list[bytes], counts: list[int], times: list[int]
    ) -> Callable[[int, int], RecordBatch]:
        sizes, sums = [0, *accumulate(map(len, contents))], [0, *accumulate(counts)]

        def read(start: int, end: int) -> RecordBatch:
            parts = [
                bytes(
                    encode_entries(
                        [contents[n]], ledger=ledger, first=n, lac=n - 1, time=times[n], ledger_bytes=sizes[n],
                        ledger_messages=sums[n], messages=[counts[n]],
                    ).view
                )
                for n in range(start, end)
            ]  # fmt: skip
            return parse_entries(b"".join(parts), ledger=ledger, first=start, last=end - 1)

        return read

    def _read(self, ledger: int, start: int, end: int, bytes_max: int) -> AppendFuture[RecordBatch]:
        done: AppendFuture[RecordBatch] = AppendFuture()
        set_result(done, self._records[ledger](start, start + 1 if bytes_max == 1 else end))
        return done


@settings(max_examples=60)
@given(ledgers=ledgers_of, is_open=st.booleans())
def test_places_in_a_chain_are_found_by_offset_and_size(ledgers: list[list[Entry]], is_open: bool) -> None:
    chained = Chained(ledgers, is_open)
    reader, before, end = chained.reader, chained.before, chained.end
    for size in sorted({0, *(at.size + step for at in before for step in (-1, 0, 1))}):
        wanted = next((at.offset for at in before if at.size >= size), end.offset)
        assert reader.offset_at_size(size).result() == wanted
    for time in sorted({T0 - 1, *(at + step for at in chained.times for step in (-1, 0, 1))}):
        places = zip(before, chained.times, strict=False)
        assert reader.offset_at_time(time).result() == next((at.offset for at, us in places if us >= time), end.offset)
    for offset in range(end.offset + 2):
        if offset >= end.offset:
            with pytest.raises(OutOfRangeError):
                reader.locate(offset).result()
        else:
            at = reader.locate(offset).result()
            assert at.before == max(
                (earlier for earlier in before if earlier.offset <= offset), key=lambda item: item.offset
            )
            assert at.first <= offset < at.end


@settings(max_examples=60)
@given(ledgers=ledgers_of, is_open=st.booleans())
def test_reads_end_before_the_entry_at_the_given_end(ledgers: list[list[Entry]], is_open: bool) -> None:
    chained = Chained(ledgers, is_open)
    starts = [at.offset for at in chained.before[:-1]]
    of_ledger = [number for number, entries in enumerate(ledgers) for _ in entries]
    for offset in range(chained.end.offset + 1):
        for end in [None, *range(chained.end.offset + 2)]:
            batch = chained.reader.read(offset, 1 << 20, end).result()
            limit = chained.end.offset if end is None else min(end, chained.end.offset)
            if offset >= limit:
                assert len(batch) == 0
                continue
            first = max(number for number, start in enumerate(starts) if start <= offset)
            wanted = [
                start for number, start in enumerate(starts)
                if number >= first and of_ledger[number] == of_ledger[first] and start < limit
            ]  # fmt: skip
            assert batch.entry_first.tolist() == wanted


# ---- quotas and expiry -----------------------------------------------------------------------------------------------

few = st.integers(0, 20)
names = st.sampled_from(["a", "b", "pyreplog.dedup"])
rounds_of = st.lists(st.dictionaries(names, st.tuples(few, st.none() | few, st.booleans())), min_size=1, max_size=5)
END, NOW_MS = 20, 20


@settings(max_examples=300)
@given(
    rounds=rounds_of, policy=st.sampled_from(QUOTA_POLICIES), size=st.none() | st.just(10), age=st.none() | st.just(10)
)
def test_a_quota_is_exceeded_beyond_it_and_fine_again_at_nine_tenths(
    rounds: list[dict[str, tuple[int, int | None, bool]]], policy: Any, size: int | None, age: int | None
) -> None:
    quota, stopping = Quota(), dict.fromkeys(("bytes", "age"), False)
    config = dataclasses.replace(TopicConfig(), quota_bytes=size, quota_ms=age, quota_policy=policy)
    for round_ in rounds:
        cursors = [
            CursorBacklog(name, durable, TopicPosition(mark, mark, mark), None if oldest is None else oldest * 1000)
            for name, (mark, oldest, durable) in round_.items()
        ]
        decision = quota.decide(config, TopicPosition(END, END, END), cursors, NOW_MS * 1000)
        levels = {
            "bytes": {name: END - mark for name, (mark, _, durable) in round_.items() if durable and size},
            "age": {
                name: NOW_MS - at for name, (_, at, durable) in round_.items() if durable and age and at is not None
            },
        }
        over, late = (
            {kind: {name for name, level in of.items() if level > bound} for kind, of in levels.items()}
            for bound in (10, 9)
        )
        for kind in stopping:
            counted = late[kind] if stopping[kind] else over[kind]
            if policy == "evict":
                counted = {name for name in counted if is_system(name) and kind == "bytes"}
            stopping[kind] = bool(counted)
        assert (decision.publishing != "open") == any(stopping.values())
        assert set(decision.exceeded) == {kind for kind in stopping if over[kind] or stopping[kind]}
        evicted = {eviction.cursor: (eviction.to_size, eviction.before_us) for eviction in decision.evictions}
        assert evicted == {
            name: (END - 9 if name in over["bytes"] else None, (NOW_MS - 9) * 1000 if name in over["age"] else None)
            for name in over["bytes"] | over["age"]
            if policy == "evict" and not is_system(name)
        }
        assert set(decision.catch_up) == {name for name in late["bytes"] | late["age"] if is_system(name)}


@given(
    cursors=st.dictionaries(names, st.none() | st.integers(0, 4)), ttl=st.none() | st.integers(0, 3), now=st.integers(0, 5),
    usages=st.lists(st.tuples(names, st.booleans(), st.integers(0, 1), st.integers(0, 4)), max_size=4), since=st.integers(0, 4),
)  # fmt: skip
def test_messages_and_subscriptions_expire_exactly_at_their_age_limit(
    cursors: dict[str, int | None], ttl: int | None, now: int, usages: list[tuple[str, bool, int, int]], since: int
) -> None:
    """And the next time at which something does is told to the microsecond."""
    known = [CursorBacklog(name, True, ORIGIN, None if at is None else at * 1000) for name, at in cursors.items()]

    def old_at(now_us: int) -> list[str]:
        return [
            name for name, at in cursors.items()
            if ttl is not None and at is not None and now_us - at * 1000 > ttl * 1000 and not is_system(name)
        ]  # fmt: skip

    assert [item.cursor for item in expired(known, ttl, now * 1000)] == old_at(now * 1000)
    when = next_expiry(known, ttl)
    if when is not None:
        assert old_at(when) and not old_at(when - 1)

    subscriptions = [Usage(name, durable, consumers, last * 1000) for name, durable, consumers, last in usages]

    def unused_at(now_us: int) -> list[str]:
        return [
            name for name, durable, consumers, last in usages
            if ttl is not None and durable and not consumers and not is_system(name)
            and now_us - max(last, since) * 1000 > ttl * 1000
        ]  # fmt: skip

    assert unused(subscriptions, ttl, since * 1000, now * 1000) == unused_at(now * 1000)
    when = next_unused(subscriptions, ttl, since * 1000)
    if when is not None:
        assert unused_at(when) and not unused_at(when - 1)


# ---- deliveries ------------------------------------------------------------------------------------------------------


@given(counts=st.lists(st.integers(1, 3), min_size=1, max_size=5), data=st.data())
def test_a_delivery_is_cut_at_an_entry(counts: list[int], data: st.DataObject) -> None:
    """The messages of as many entries as have so many bytes, or of one."""
    batch = decoded([encode_messages([b"v" * count] * count) for count in counts], counts)
    chosen = data.draw(st.sets(st.integers(0, len(batch) - 1), min_size=1))
    some = batch.select(sorted(chosen))
    of_entry = [entry for entry, count in enumerate(counts) for _ in range(count)]
    used = sorted({of_entry[at] for at in chosen})
    sums = list(accumulate(int(batch.entry_size[entry]) for entry in used))
    for bytes_max in sorted({1, *(size + step for size in sums for step in (-1, 0, 1))}):
        first, rest = batches.cut(some, bytes_max)
        fit = set(used[: max(sum(size <= bytes_max for size in sums), 1)])
        assert first.offset.tolist() == [at for at in sorted(chosen) if of_entry[at] in fit]
        left = [at for at in sorted(chosen) if of_entry[at] not in fit]
        assert ([] if rest is None else rest.offset.tolist()) == left
