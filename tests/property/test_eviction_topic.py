"""Tables of topics that have a bound, beside lists that are searched from end to end: names, times and sizes are of few
values, so that equal ones meet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyreplog.cursors import cursor_log
from pyreplog.cursors.cursor_log import CursorLedgerReader
from pyreplog.errors import NotEnoughBookiesError
from pyreplog.future import AppendFuture, set_result
from pyreplog.topic.model import dedup
from pyreplog.topic.model.dedup import DedupVerdict, Producers
from pyreplog.topic.owner.managed import chain_reader, closed_ledger_readers
from pyreplog.topic.owner.managed.chain_reader import ChainReader
from pyreplog.topic.owner.managed.closed_ledger_readers import ClosedLedgerReaders

# ---- producers -------------------------------------------------------------------------------------------------------

NAMES = [bytes([letter]) for letter in b"abcde"]
published = st.one_of(
    st.tuples(st.sampled_from(["publish", "publish", "push", "stored", "failed"]), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(["publish", "publish", "push", "stored"]), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(["purge", "later", "later", "restart"]), st.integers(0, 2)),
)


@settings(max_examples=300)
@example(
    most=1, steps=[*(("push", name) for name in NAMES[:2]), *(("stored", n) for n in NAMES[:2]), ("push", NAMES[2])]
)
@given(most=st.integers(1, 3), steps=st.lists(published, min_size=8, max_size=40))
def test_producers_that_published_longest_ago_are_forgotten_first(most: int, steps: list[tuple[str, Any]]) -> None:
    """Never those that have something on its way; as soon as one may go that is too many, it does."""
    producers = Producers(producers_max=most)
    known: list[bytes] = []  # who published last is last
    stored: dict[bytes, int] = {}
    active: dict[bytes, int] = {}
    flying: dict[bytes, list[int]] = {name: [] for name in NAMES}
    now = 0
    split = [
        (each_step, own_step)
        for step, own_step in steps
        for each_step in (("push", "stored") if step == "publish" else (step,))
    ]
    for step, actual_step in split:
        if step == "push":
            sequence = producers.next_sequence(actual_step)
            if actual_step not in known:
                while len(known) >= most and (idle := [name for name in known if not flying[name]]):
                    known.remove(idle[0])
                    stored.pop(idle[0], None)
                known.append(actual_step)
                active[actual_step] = 0
            producers.push(actual_step, (sequence,))
            flying[actual_step].append(sequence)
        elif step in ("stored", "failed") and flying.get(actual_step):
            sequence = flying[actual_step].pop(0)
            if step == "stored":
                producers.persisted(actual_step, (sequence,), now)
                known.remove(actual_step)
                known.append(actual_step)
                stored[actual_step], active[actual_step] = max(sequence, stored.get(actual_step, -1)), now
            else:
                producers.failed(actual_step, (sequence,))
                if stored.get(actual_step, -1) < sequence and not flying[actual_step]:
                    assert producers.next_sequence(actual_step) == stored.get(actual_step, -1) + 1
        elif step == "later":
            now += actual_step
        elif step == "purge":
            before = now - 1 + actual_step
            idle = [name for name in known if not flying[name] and active[name] < before]
            assert producers.purge(before) == len(idle)
            known = [name for name in known if name not in idle]
        elif step == "restart" and not any(flying.values()):
            snapshot = producers.snapshot()
            kept = [name for name in known if name in stored or _has_failed(producers, name)]
            most = actual_step + 1
            known = kept[-most:]
            producers = Producers(producers_max=most)
            producers.restore(snapshot)
        stored = {name: number for name, number in stored.items() if name in known}
        assert list(producers._producers) == known
        assert [producers.last_sequence(name) for name in NAMES] == [stored.get(name, -1) for name in NAMES]


def _has_failed(producers: Producers, name: bytes) -> bool:
    return bool(producers._producers[name].failed)


@given(most=st.integers(1, 3), failing=st.lists(st.integers(0, 11), max_size=8, unique=True))
def test_the_lowest_failures_are_forgotten_first(most: int, failing: list[int]) -> None:
    """Ranges, not numbers: neighbours are one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup, "FAILED_RANGES_MAX", most)
        producers = Producers()
        for number in range(12):
            producers.push(b"p", (number,))
        producers.push(b"p", (50,))
        failed: set[int] = set()
        for number in failing:
            producers.failed(b"p", (number,))
            failed.add(number)
            while len([failure for failure in failed if failure - 1 not in failed]) > most:
                lowest = min(failed)
                while lowest in failed:
                    failed.remove(lowest)
                    lowest += 1
        producers.persisted(b"p", (50,), 0)
        numbers = {number for number in range(12) if producers.check_sequence(b"p", number) is DedupVerdict.NEW}
        assert numbers == failed


# ---- readers of ledgers ----------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, ledger: int, opened: list[_Reader]) -> None:
        self.id = ledger
        self._opened = opened
        opened.append(self)

    def read_range(self, start: int, end: int, *, bytes_max: int) -> AppendFuture[Any]:
        done: AppendFuture[Any] = AppendFuture()
        set_result(done, self.id)
        return done

    def close(self) -> None:
        self._opened.remove(self)


ledger_steps = st.lists(st.tuples(st.sampled_from(["read", "read", "ended", "forget"]), st.integers(0, 4)), max_size=30)


@given(most=st.integers(1, 3), steps=ledger_steps)
def test_readers_used_longest_ago_are_closed(most: int, steps: list[tuple[str, int]]) -> None:
    opened: list[_Reader] = []
    maker: Any = SimpleNamespace(
        open_reader=lambda ledger: _Reader(ledger, opened), reader=lambda metadata: _Reader(metadata, opened)
    )
    runtime: Any = SimpleNamespace(expect=lambda _: None, work=lambda job: job())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closed_ledger_readers, "READERS_MAX", most)
        reader = ClosedLedgerReaders(maker, runtime)
        kept: list[int] = []  # used last at the end
        for step, ledger in steps:
            if step == "read":
                assert reader.read(ledger, 0, 1, 1).result() == ledger
            elif step == "ended":
                metadata: Any = ledger
                reader.ended(metadata)
            else:
                reader.forget(ledger)
            kept = [item for item in kept if item != ledger]
            if step != "forget":
                kept = [*kept, ledger][-most:]
            assert sorted(handle.id for handle in opened) == sorted(kept)
            assert list(reader._readers) == kept and len(reader) == len(kept)
        reader.close()
        assert not opened


@example(most=2, ends=[0, 1, 0, 2])
@given(most=st.integers(1, 4), ends=st.lists(st.integers(0, 5), max_size=30))
def test_the_places_where_reads_ended_last_are_kept(most: int, ends: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_reader, "HINTS_MAX", most)
        nothing: Any = None
        reader = ChainReader("t", nothing, nothing, nothing)
        kept: list[int] = []
        for number, end in enumerate(ends):
            batch: Any = SimpleNamespace(end=end, ledger=7, last_entry=number)
            reader._keep_hint(batch)
            kept = [*(item for item in kept if item != end), end][-most:]
            assert list(reader._hints) == kept and reader._hints[end] == (7, number + 1)


# ---- what is known of cursor ledgers ---------------------------------------------------------------------------------

KEY: Any = (1, 2)
seen = st.lists(
    st.tuples(st.sampled_from(["read", "read", "fails", "later", "look"]), st.integers(0, 3), st.integers(0, 2)),
    max_size=30,
)  # what, ledger or time, since


@settings(max_examples=300)
@example(
    cache_bytes=2,
    cache_s=1,
    sizes=[1, 2, 0, 0],
    steps=[
        ("read", 1, 0),
        ("later", 1, 0),
        ("read", 0, 0),
        ("read", 1, 0),
        ("later", 1, 0),
        ("look", 0, 0),
    ],
)
@given(
    cache_bytes=st.integers(0, 4), cache_s=st.integers(0, 2), sizes=st.lists(st.integers(0, 3), min_size=4), steps=seen
)
def test_cursor_ledgers_that_are_too_old_go_and_then_those_used_longest_ago(
    cache_bytes: int, cache_s: int, sizes: list[int], steps: list[tuple[str, int, int]]
) -> None:
    now = [0.0]
    asked: list[int] = []
    fails: set[int] = set()

    def read_closed(self: CursorLedgerReader, ledger: int, since: int, force: bool) -> Any:
        asked.append(ledger)
        if ledger in fails:
            raise NotEnoughBookiesError("for this test")
        return SimpleNamespace(nbytes=sizes[ledger], records=lambda key, since: [since])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor_log, "time", SimpleNamespace(monotonic=lambda: now[0]))
        patch.setattr(CursorLedgerReader, "_read_closed", read_closed)
        cluster: Any = None
        known = CursorLedgerReader(cluster, cache_bytes=cache_bytes, cache_s=cache_s)
        kept: list[tuple[int, int, float]] = []  # ledger, since, when it was read; used last at the end
        for step, actual_step, since in steps:
            if step == "later":
                now[0] += actual_step
                continue
            if step in ("read", "fails"):
                before = next((item for item in kept if item[0] == actual_step), None)
                is_known = before is not None and since >= before[1]
                fails.clear()
                if step == "fails":
                    fails.add(actual_step)
                asked.clear()
                if step == "fails" and not is_known:
                    with pytest.raises(NotEnoughBookiesError):
                        known.read(actual_step, KEY, since)
                else:
                    assert known.read(actual_step, KEY, since) == [since]
                assert asked == ([] if is_known else [actual_step])
                kept = [item for item in kept if item is not before]
                if is_known and before is not None:
                    kept.append(before)
                elif step == "read":
                    kept.append((actual_step, since, now[0]))
                elif before is not None:
                    kept.append(before)  # what is known of it is of use still
                if step == "fails" and not is_known:
                    assert list(known._cache) == [ledger for ledger, _, _ in kept]
                    continue
            else:
                has_some = known.forget_old()
            kept = [item for item in kept if now[0] - item[2] <= cache_s]
            while sum(sizes[ledger] for ledger, _, _ in kept) > cache_bytes:
                kept.pop(0)
            assert list(known._cache) == [ledger for ledger, _, _ in kept]
            if step == "look":
                assert has_some == bool(kept)
