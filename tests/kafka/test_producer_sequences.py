"""Sequence numbers of idempotent producers of topics on ledgers."""

from __future__ import annotations

from typing import Any

import pytest

from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.kafka.ledgers.producer_sequences import RECENT, WRAP, ProducerSequences, SequencedBatch, SequenceVerdict

NEW, DUPLICATE, OUT_OF_ORDER = SequenceVerdict.NEW, SequenceVerdict.DUPLICATE, SequenceVerdict.OUT_OF_ORDER


def push(sequences: ProducerSequences, sequence: int, count: int) -> SequencedBatch:
    assert sequences.check(sequence, count) is NEW
    return sequences.push(sequence, count, AppendFuture[Any]())


def stored(batch: SequencedBatch) -> SequencedBatch:
    set_result(batch.outcome, range(batch.first, batch.end))
    return batch


def fail(sequences: ProducerSequences, batch: SequencedBatch) -> None:
    set_exception(batch.outcome, ValueError("refused"))
    sequences.failed(batch)


def test_batches_are_new_in_their_order_only() -> None:
    sequences = ProducerSequences(0, deduplicates=True)
    assert sequences.check(5, 1) is OUT_OF_ORDER
    push(sequences, 0, 5)
    push(sequences, 5, 5)
    assert sequences.check(20, 1) is OUT_OF_ORDER


@pytest.mark.parametrize("is_done", [False, True])
def test_a_batch_that_comes_again_has_the_outcome_of_the_first_one(is_done: bool) -> None:
    sequences = ProducerSequences(0, deduplicates=False)
    batch = push(sequences, 0, 5)
    if is_done:
        stored(batch)
    push(sequences, 5, 5)
    assert sequences.check(0, 5) is batch


def test_a_batch_that_is_no_longer_known_is_a_duplicate() -> None:
    sequences = ProducerSequences(0, deduplicates=True)
    for number in range(RECENT + 1):
        stored(push(sequences, number, 1))
    push(sequences, RECENT + 1, 1)
    assert sequences.check(0, 1) is DUPLICATE
    assert ProducerSequences(10, deduplicates=True).check(5, 5) is DUPLICATE


def test_the_topic_drops_the_stored_part_of_a_batch() -> None:
    assert ProducerSequences(3, deduplicates=True).check(0, 5) is NEW
    assert ProducerSequences(3, deduplicates=False).check(0, 5) is OUT_OF_ORDER


def test_nothing_is_expected_of_a_producer_that_is_unknown() -> None:
    sequences = ProducerSequences(None, deduplicates=False)
    push(sequences, 700, 10)
    assert sequences.check(710, 1) is NEW
    assert sequences.check(712, 1) is OUT_OF_ORDER


def test_a_batch_that_failed_comes_again_before_later_ones() -> None:
    sequences = ProducerSequences(0, deduplicates=True)
    first, second = push(sequences, 0, 10), push(sequences, 10, 10)
    fail(sequences, first)
    assert sequences.check(20, 10) is OUT_OF_ORDER
    stored(second)
    again = push(sequences, 0, 10)
    assert again is not first
    assert sequences.check(10, 10) is second
    push(sequences, 20, 10)


def test_two_batches_that_failed_come_again() -> None:
    sequences = ProducerSequences(0, deduplicates=True)
    first, second = push(sequences, 0, 10), push(sequences, 10, 10)
    fail(sequences, first)
    fail(sequences, second)
    push(sequences, 0, 10)
    push(sequences, 10, 10)


@pytest.mark.parametrize("turns", [1, 3])
def test_numbers_go_on_when_sequences_wrap(turns: int) -> None:
    sequences = ProducerSequences(turns * WRAP - 5, deduplicates=True)
    batch = push(sequences, WRAP - 5, 10)
    assert (batch.first, batch.end) == (turns * WRAP - 5, turns * WRAP + 5)
    assert push(sequences, 5, 1).first == turns * WRAP + 5
    assert sequences.check(WRAP - 5, 10) is batch


def test_a_producer_is_busy_until_its_batches_have_outcomes() -> None:
    sequences = ProducerSequences(0, deduplicates=True)
    assert not sequences.is_busy
    batch = push(sequences, 0, 1)
    assert sequences.is_busy
    stored(batch)
    assert not sequences.is_busy
