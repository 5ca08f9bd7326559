"""Transactions of one log: the last stable offset, aborted data, who may write."""

from __future__ import annotations

from random import Random

from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.transactions import VERIFICATIONS_MAX, LogTransactions, TransactionMarker

from .replicas import mark


def marker(producer: int = 1, *, is_commit: bool = True, epoch: int = 0, coordinator: int = 0) -> TransactionMarker:
    return TransactionMarker(producer, epoch, coordinator, is_commit)


def test_nothing_behind_an_open_transaction_is_stable() -> None:
    log = LogTransactions()
    assert log.last_stable(mark(5)) == mark(5)
    log.append(1, 0, mark(5))
    log.append(2, 0, mark(7))
    log.append(1, 0, mark(8))
    assert log.last_stable(mark(9)) == mark(5)
    log.end(marker(1), mark(10))
    assert log.last_stable(mark(10)) == mark(7)
    log.end(marker(2), mark(11))
    assert log.last_stable(mark(11)) == mark(11)


def test_a_marker_that_is_not_committed_ends_nothing_yet() -> None:
    """Otherwise what was read as committed could be aborted by the next leader."""
    log = LogTransactions()
    log.append(1, 0, mark(2))
    log.end(marker(), mark(6))
    assert log.last_stable(mark(5)) == mark(2)
    assert log.last_stable(mark(6)) == mark(6)


def test_aborted_transactions_of_a_part_are_listed() -> None:
    log = LogTransactions()
    log.append(1, 0, mark(2))
    log.append(2, 0, mark(3))
    log.end(marker(1, is_commit=False), mark(6))
    log.end(marker(2), mark(8))
    assert [aborted.producer_id for aborted in log.aborted_between(mark(4), mark(5))] == [1]
    assert log.aborted_between(mark(6), mark(8)) == log.aborted_between(mark(0), mark(2)) == []
    log.trimmed(mark(6))
    assert log.aborted_between(mark(0), mark(9)) == []


def test_a_batch_behind_the_marker_begins_no_transaction() -> None:
    """It was sent, and verified, before the coordinator aborted; nobody would end what it begins (KIP-890)."""
    log = LogTransactions()
    verification = log.begin_verification(1)
    assert log.check(1, 0, None) is ErrorCode.INVALID_TXN_STATE
    assert log.check(1, 0, verification) is ErrorCode.NONE
    log.end(marker(is_commit=False), mark(4))
    assert log.check(1, 0, verification) is ErrorCode.INVALID_TXN_STATE
    again = log.begin_verification(1)
    assert log.check(1, 0, verification) is ErrorCode.INVALID_TXN_STATE
    assert log.check(1, 0, again) is ErrorCode.NONE
    log.append(1, 0, mark(4))
    assert log.check(1, 0, None) is ErrorCode.NONE, "it is open"


def test_a_batch_does_not_overtake_one_that_waits_for_the_coordinator() -> None:
    """The log knows neither its producer nor the transaction, and would take any sequence number."""
    log = LogTransactions()
    verification = log.begin_verification(1, 0)
    assert log.begin_verification(1, 5) == verification
    assert log.check(1, 0, verification, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.check(1, 0, verification, 0) is ErrorCode.NONE
    log.append(1, 0, mark(0))
    assert log.check(1, 0, verification, 5) is ErrorCode.NONE


def test_a_batch_of_an_older_epoch_is_not_part_of_the_transaction_of_a_newer_one() -> None:
    """Batches without sequence numbers, which commit offsets, are fenced here alone."""
    log = LogTransactions()
    log.append(1, 3, mark(0))
    assert log.check(1, 2, None) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.check(1, 3, None) is ErrorCode.NONE
    log.end(marker(epoch=4), mark(3))
    verification = log.begin_verification(1)
    assert log.check(1, 3, verification) is ErrorCode.INVALID_PRODUCER_EPOCH, "the marker has fenced it"
    assert log.check(1, 4, verification) is ErrorCode.NONE


def test_older_coordinators_and_producers_end_nothing() -> None:
    log = LogTransactions()
    log.append(1, 3, mark(0))
    assert log.check_marker(marker(epoch=2), 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.check_marker(marker(epoch=4, coordinator=7), 2) is ErrorCode.NONE
    log.end(marker(epoch=4, coordinator=7), mark(3))
    assert log.check_marker(marker(epoch=5, coordinator=6), 2) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.check_marker(marker(epoch=3, coordinator=7), 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.check_marker(marker(epoch=4, coordinator=8), 2) is ErrorCode.NONE


def test_a_late_marker_does_not_end_the_next_transaction() -> None:
    """The coordinator sent it again, as it had heard nothing, and the first one was committed meanwhile (KIP-1228)."""
    log = LogTransactions()
    log.append(1, 3, mark(0))
    log.end(marker(epoch=4), mark(2))
    assert log.check_marker(marker(epoch=4), 2) is ErrorCode.NONE, "the same again, which ends nothing"
    log.append(1, 4, mark(2))
    assert log.check_marker(marker(epoch=4), 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.check_marker(marker(epoch=4), 1) is ErrorCode.NONE, "its own: version 1 has no other epochs"
    assert log.check_marker(marker(epoch=5), 2) is ErrorCode.NONE


def test_an_answer_of_the_coordinator_counts_for_the_log_that_asked() -> None:
    """The log was truncated meanwhile, and may hold a marker now that it did not hold then."""
    before, after = LogTransactions(), LogTransactions()
    verification = before.begin_verification(1)
    after.begin_verification(1)
    assert after.check(1, 0, verification) is ErrorCode.INVALID_TXN_STATE


def test_verifications_that_were_refused_are_not_kept_without_bound() -> None:
    """A client can send transactional batches with any producer id."""
    log = LogTransactions()
    tokens = {number: log.begin_verification(number) for number in range(VERIFICATIONS_MAX + 100)}
    codes = [log.check(number, 0, token) for number, token in tokens.items()]
    assert codes == [ErrorCode.INVALID_TXN_STATE] * 100 + [ErrorCode.NONE] * VERIFICATIONS_MAX


def test_the_last_stable_offset_is_not_before_the_start() -> None:
    """The leader knows that the marker is committed, and has removed the transaction; its follower was told the start only."""
    log = LogTransactions()
    log.append(1, 0, mark(2))
    log.end(marker(), mark(6))
    log.trimmed(mark(4))
    assert log.last_stable(mark(5)) == mark(4)
    assert log.last_stable(mark(6)) == mark(6)


def test_readers_of_committed_data_see_transactions_whole(seed: int) -> None:
    """Of any interleaving: what is stable holds no record of a transaction without a committed marker behind it."""
    random = Random(seed)
    for _ in range(200):
        log, high_watermark = LogTransactions(), 0
        records: list[tuple[int, bool | None]] = []  # producer; how it ended, for a marker
        for _ in range(random.randint(1, 40)):
            producer, at = random.randrange(3), len(records)
            is_marker = random.random() < 0.4
            if is_marker:
                records.append((producer, random.random() < 0.5))
                log.end(marker(producer, is_commit=bool(records[at][1])), mark(at + 1))
            else:
                records.append((producer, None))
                log.append(producer, 0, mark(at))
            high_watermark = random.randint(high_watermark, len(records))
            stable = log.last_stable(mark(high_watermark)).entry
            _check(log, records, high_watermark, stable)


def _check(log: LogTransactions, records: list[tuple[int, bool | None]], high_watermark: int, stable: int) -> None:
    ended = [
        next((end for other, end in records[at + 1 : high_watermark] if other == producer and end is not None), None)
        for at, (producer, _) in enumerate(records)
    ]
    open_records = [at for at, (_, end) in enumerate(records) if end is None and ended[at] is None]
    assert stable == min([high_watermark, *open_records])
    aborted = log.aborted_between(mark(0), mark(stable))
    for at in range(stable):
        producer, end = records[at]
        if end is None:
            skipped = any(it.producer_id == producer and it.first <= mark(at) < it.end for it in aborted)
            assert skipped == (ended[at] is False)
