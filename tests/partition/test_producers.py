"""Idempotent producers: what is new, what is a duplicate, what is out of order."""

from __future__ import annotations

import pytest

from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.producers import SEQUENCES, BatchMetadata, ProducerBatch, ProducerStates

NEW = ErrorCode.NONE
DUPLICATE = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def batch(sequence: int, records: int = 1, epoch: int = 0) -> ProducerBatch:
    return ProducerBatch(7, epoch, sequence, records)


def states(*sequences: int, epoch: int = 0) -> ProducerStates:
    producers = ProducerStates()
    for sequence in sequences:
        producers.append(batch(sequence, 2, epoch), 100 + sequence, 0)
    return producers


def test_batches_of_a_producer_follow_each_other() -> None:
    producers = states(0, 2)
    assert producers.check(batch(4, 3)).code is NEW
    assert producers.check(batch(5, 3)).code is OUT_OF_ORDER
    assert producers.check(batch(3, 1)).code is OUT_OF_ORDER, "a part of a batch is none of those that were sent"


@pytest.mark.parametrize("restarted", [False, True])
def test_the_last_five_batches_are_known(restarted: bool) -> None:
    """After a restart, too: the snapshot has all of them."""
    producers = states(*range(0, 14, 2))
    if restarted:
        producers = ProducerStates(producers.snapshot())
    for sequence in range(4, 14, 2):
        checked = producers.check(batch(sequence, 2))
        assert (checked.code, checked.duplicate) == (
            DUPLICATE, BatchMetadata(sequence, sequence + 1, 100 + sequence, 101 + sequence)
        )  # fmt: skip
    assert producers.check(batch(2, 2)).code is OUT_OF_ORDER
    assert producers.check(batch(14, 2)).code is NEW


def test_sequence_numbers_begin_again_behind_the_last() -> None:
    producers = states(SEQUENCES - 4)
    assert producers.check(batch(SEQUENCES - 2, 5)).code is NEW
    producers.append(batch(SEQUENCES - 2, 5), 1, 0)
    assert producers.check(batch(3)).code is NEW
    assert producers.check(batch(SEQUENCES - 2, 5)).code is DUPLICATE
    producers = states(SEQUENCES - 2)
    assert producers.check(batch(0)).code is NEW


def test_a_new_epoch_begins_with_the_first_number() -> None:
    producers = states(0, 2)
    assert producers.check(batch(4, epoch=1)).code is OUT_OF_ORDER
    assert producers.check(batch(0, epoch=1)).code is NEW
    producers.append(batch(0, epoch=1), 200, 0)
    assert producers.check(batch(0, 2)).code is ErrorCode.INVALID_PRODUCER_EPOCH, "a duplicate of an earlier epoch"
    assert producers.check(batch(4)).code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producers.check(batch(0, epoch=1)).code is DUPLICATE
    assert producers.check(batch(2, epoch=1)).code is OUT_OF_ORDER


def test_a_producer_that_is_not_known_may_begin_anywhere() -> None:
    assert ProducerStates().check(batch(17, epoch=3)).code is NEW


def test_producers_are_forgotten_with_time() -> None:
    producers = ProducerStates()
    producers.append(batch(0), 1, 1000)
    producers.append(ProducerBatch(8, 0, 0, 1), 2, 2000)
    producers.expire(2000)
    assert len(producers) == 1
    assert producers.check(batch(9)).code is NEW
