"""Entries between submission and outcome: whatever ledgers do, offsets are dense and in order, and each submission is
settled."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from pyreplog.errors import EntryRefusedError, NotEnoughBookiesError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.topic.client.publishing.publish_batch import STAGE_BYTES, PublishBatch
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import ORIGIN, TopicPosition
from pyreplog.topic.owner.managed.append_pipeline import (
    GROUP_BYTES,
    REFUSALS_MAX,
    AppendPipeline,
)
from tests.topic.batches import EntryBatch

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.lists(st.integers(1, 3), min_size=1, max_size=4)),
        st.tuples(st.just("send"), st.integers(1, 6)),
        st.tuples(st.just("confirm"), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 12)),
    ),
    max_size=40,
)


class Twin:
    """A model of a ledger, which records its entries and the messages of closed ledgers."""

    def __init__(self) -> None:
        self.pipeline = AppendPipeline(ORIGIN)
        self.kept: list[bytes] = []  # the message of each offset
        self.given: list[list[bytes]] = []  # entries in the open ledger
        self.acks: deque[AppendFuture[range]] = deque()
        self.confirmed = 0
        self.submitted: list[tuple[EntryBatch, list[bytes]]] = []
        self.given_all: list[tuple[int, int]] = []  # entries and bytes of each submission

    def submit(self, counts: list[int]) -> None:
        number = len(self.submitted)
        messages = [[b"%d.%d.%d" % (number, at, m) for m in range(count)] for at, count in enumerate(counts)]
        entry_batch = EntryBatch([b"|".join(some) for some in messages], counts)
        self.submitted.append((entry_batch, [message for some in messages for message in some]))
        self.given_all.append((len(entry_batch.entries), entry_batch.entry_bytes))
        self.pipeline.add([entry_batch])

    def send(self, most: int) -> None:
        if self.pipeline.is_queued:
            taken = self.pipeline.take(most)
            assert len(taken) == 1 or sum(len(item.entries) for item in taken) <= most
            self.given += [entry.split(b"|") for item in taken for entry in item.entries]
            self.acks.append(AppendFuture(range(len(self.given))))
            self.pipeline.sent(taken, self.acks[-1])

    def confirm(self, _: int = 0) -> None:
        if self.acks:
            future = self.acks.popleft()
            set_result(future)
            self.confirmed = len(future.result())
            settle(self.pipeline.take_confirmed()[0])

    def end(self, beyond: int) -> None:
        """Fail the ledger, which has kept its confirmed entries and `beyond` more."""
        for future in self.acks:
            set_exception(future, NotEnoughBookiesError("gone"))
        settle(self.pipeline.take_confirmed()[0])
        entries = min(self.confirmed + beyond, len(self.given))
        settle(self.pipeline.end_ledger(entries))
        self.kept += [message for entry in self.given[:entries] for message in entry]
        self.given, self.confirmed = [], 0
        self.acks.clear()
        self.pipeline.begin_ledger(0)
        assert self.pipeline.end.offset == len(self.kept)


def settle(batches: Sequence[PublishBatch]) -> None:
    for batch in batches:
        batch.settle()


@given(EVENTS)
@example([("submit", [1, 2]), ("submit", [3]), ("send", 6), ("end", 2)])
def test_a_pipeline_behaves_as_its_twin(events: list[tuple[str, object]]) -> None:
    twin = Twin()
    for event, how in events:
        getattr(twin, event)(how)
    twin.send(99)
    while twin.acks or twin.pipeline.is_queued:
        twin.confirm()
        twin.send(99)
    twin.end(0)
    offset = 0
    for item, messages in twin.submitted:
        assert item.future.result(0) == range(offset, offset + len(messages))
        assert twin.kept[offset : offset + len(messages)] == messages
        offset += len(messages)
    assert len(twin.kept) == offset
    entries, size = sum(count for count, _ in twin.given_all), sum(size for _, size in twin.given_all)
    assert twin.pipeline.end == TopicPosition(offset, entries, size) and twin.pipeline.pending == (0, 0)
    assert [
        (actual_item.cut_entries + len(actual_item.entries), actual_item.cut_bytes + actual_item.entry_bytes)
        for actual_item, _ in twin.submitted
    ] == twin.given_all


def test_entries_are_grouped_up_to_the_stage_and_group_sizes() -> None:
    pipeline = AppendPipeline(ORIGIN)
    pipeline.add([EntryBatch([b"a"], [1])])
    assert pipeline.is_due, "nobody waits for company"
    pipeline.sent(pipeline.take(9), AppendFuture())
    for size in (STAGE_BYTES - 1, 1):
        assert not pipeline.is_due
        pipeline.add([EntryBatch([bytes(size)], [1])])
    assert pipeline.is_due
    pipeline.add([EntryBatch([bytes(GROUP_BYTES)], [1])])
    assert [item.entry_bytes for item in pipeline.take(99)] == [STAGE_BYTES - 1, 1]
    assert [item.entry_bytes for item in pipeline.take(0)] == [GROUP_BYTES] and not pipeline.is_queued


def test_a_pipeline_tells_when_a_ledger_is_full() -> None:
    config = TopicConfig(roll_entries=10, roll_bytes=100, roll_ms=1000)
    for entries, size, age_us, full in (
        (0, 0, 10**9, False), (1, 1, 999_999, False), (1, 1, 1_000_000, True), (9, 9, 0, False), (10, 10, 0, True),
        (1, 99, 0, False), (1, 100, 0, True),
    ):  # fmt: skip
        pipeline = AppendPipeline(ORIGIN)
        pipeline.begin_ledger(500)
        if entries:
            pipeline.sent(
                [EntryBatch([bytes(size - entries + 1), *[b"x"] * (entries - 1)], [1] * entries)], AppendFuture()
            )
        assert pipeline.is_full(config, 500 + age_us) is full


def refused_together(pipeline: AppendPipeline, kept: int = 0) -> list[PublishBatch]:
    """Send the next entries to a ledger that refuses them; return the batches that are given up."""
    failed: AppendFuture[range] = AppendFuture()
    set_exception(failed, EntryRefusedError(1, "no"))
    pipeline.sent(pipeline.take(9), failed)
    assert isinstance(pipeline.take_confirmed()[1], EntryRefusedError)
    pipeline.end_ledger(kept)
    pipeline.begin_ledger(0)
    return pipeline.note_refusal()


def stored_alone(pipeline: AppendPipeline) -> list[PublishBatch]:
    landed: AppendFuture[range] = AppendFuture()
    set_result(landed)
    pipeline.sent(pipeline.take(9), landed)
    return pipeline.take_confirmed()[0]


def test_entry_is_dropped_after_the_maximum_number_of_refusals() -> None:
    pipeline = AppendPipeline(ORIGIN)
    bad, good = EntryBatch([b"bad"], [1]), EntryBatch([b"good"], [1])
    pipeline.add([bad])
    assert refused_together(pipeline) == []
    pipeline.add([good])
    for _ in range(REFUSALS_MAX - 2):
        assert refused_together(pipeline) == [], "alone, though another one is queued"
    assert pipeline.pending == (7, 2)
    assert refused_together(pipeline) == [bad] and pipeline.pending == (4, 1)
    assert pipeline.drop() == [good] and pipeline.note_refusal() == [] and pipeline.pending == (0, 0)


def test_only_the_refused_batch_of_a_group_is_dropped() -> None:
    pipeline = AppendPipeline(ORIGIN)
    batches = [EntryBatch([b"%d" % number], [1]) for number in range(5)]
    pipeline.add(batches[:4])
    assert refused_together(pipeline) == [], "any of them"
    pipeline.add(batches[4:])
    for number in (0, 1):
        assert pipeline.is_due and stored_alone(pipeline) == [batches[number]]
    for _ in range(REFUSALS_MAX - 1):
        assert refused_together(pipeline) == []
    assert refused_together(pipeline) == [batches[2]]
    assert stored_alone(pipeline) == [batches[3]]
    pipeline.add([EntryBatch([b"5"], [1])])
    assert len(stored_alone(pipeline)) == 2, "who came later was no suspect: together again"
    assert pipeline.pending == (0, 0) and pipeline.end == TopicPosition(5, 5, 5)


def test_a_suspect_is_not_sent_beside_others() -> None:
    pipeline = AppendPipeline(ORIGIN)
    pipeline.add([EntryBatch([bytes(STAGE_BYTES)], [1]), EntryBatch([bytes(STAGE_BYTES)], [1])])
    assert refused_together(pipeline) == []
    pipeline.sent(pipeline.take(9), AppendFuture())
    assert pipeline.is_queued and not pipeline.is_due


def test_batches_that_the_ledger_kept_are_no_suspects() -> None:
    pipeline = AppendPipeline(ORIGIN)
    pipeline.add([EntryBatch([b"%d" % number], [1]) for number in range(3)])
    for attempt in range(REFUSALS_MAX - 1):
        assert refused_together(pipeline, kept=0 if attempt else 2) == []
    (given_up,) = refused_together(pipeline)
    assert given_up.entries == [b"2"] and pipeline.pending == (0, 0)


def test_a_submission_over_two_ledgers_has_one_outcome() -> None:
    """The ledger failed after the first entries: the result covers both parts."""
    pipeline = AppendPipeline(ORIGIN)
    first, two = EntryBatch([b"a", b"bb", b"c"], [1, 2, 3]), EntryBatch([b"d"], [4])
    for submission in (first, two):
        pipeline.add([submission])
    pipeline.sent(pipeline.take(9), AppendFuture())
    assert pipeline.end_ledger(1) == [] and pipeline.end == TopicPosition(1, 1, 1) and pipeline.pending == (4, 3)
    pipeline.begin_ledger(0)
    pipeline.sent(pipeline.take(9), AppendFuture())
    assert pipeline.end_ledger(1) == [] and pipeline.end == TopicPosition(3, 2, 3)
    pipeline.begin_ledger(0)
    again = pipeline.take(9)
    assert [(item.entries, item.cut_bytes, item.cut_entries) for item in again] == [([b"c"], 3, 2), ([b"d"], 0, 0)]
    landed: AppendFuture[range] = AppendFuture()
    set_result(landed)
    pipeline.sent(again, landed)
    settle(pipeline.take_confirmed()[0])
    assert (first.future.result(0), two.future.result(0)) == (range(6), range(6, 10)) and pipeline.end == TopicPosition(
        10, 4, 5
    )
