"""The machine of one transactional id: what it answers, what it stores before it answers, and what it never guesses."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_machine import (
    AddPartitionsResult,
    AllocateProducerId,
    AppendState,
    Effects,
    EndTransactionResult,
    Forget,
    InitProducerIdResult,
    Reply,
    TransactionMachine,
    TransactionResult,
    WriteMarkers,
)
from pyreplog.partition.transactions.transaction_metadata import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    TransactionMetadata,
    TransactionState,
)

A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
TIMEOUT_MS, EXPIRATION_MS, COORDINATOR = 60_000, 1_000_000, 7
NONE, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS


class Driver:
    """A coordinator whose log a test commits by hand."""

    def __init__(self, metadata: TransactionMetadata | None = None, epoch: int = COORDINATOR) -> None:
        self.machine = TransactionMachine(epoch, metadata)
        self.now_ms, self.next_id = 1_000, 500
        self.replies: list[TransactionResult] = []
        self.appends: list[AppendState] = []
        self.markers: list[WriteMarkers] = []
        self.is_forgotten = False
        self.take(self.machine.begin())

    def take(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Reply(_, result):
                    self.replies.append(result)
                case AppendState():
                    self.appends.append(effect)
                case AllocateProducerId():
                    self.next_id += 1
                    self.take(self.machine.producer_id_allocated(self.next_id))
                case WriteMarkers():
                    self.markers.append(effect)
                case Forget():
                    self.is_forgotten = True

    def commit(self) -> None:
        self.appends.pop(0)
        self.take(self.machine.appended(self.now_ms))

    def write_all(self) -> None:
        """All markers, and the record that says so."""
        effect = self.markers.pop()
        for partition in effect.partitions:
            self.take(self.machine.marker_written(effect.number, partition, self.now_ms))

    def settle(self) -> None:
        while self.appends or self.markers:
            if self.appends:
                self.commit()
            else:
                self.write_all()

    def answer(self) -> TransactionResult:
        (result,) = self.replies
        self.replies = []
        return result

    def init(self, expected: tuple[int, int] | None = None, version: int = 1) -> InitProducerIdResult:
        self.take(self.machine.init_producer_id(0, TIMEOUT_MS, self.now_ms, expected, version))
        self.settle()
        result = self.answer()
        assert isinstance(result, InitProducerIdResult)
        return result

    def add(self, producer: tuple[int, int], *partitions: TopicPartition) -> ErrorCode:
        self.take(self.machine.add_partitions(0, *producer, partitions, self.now_ms))
        self.settle()
        result = self.answer()
        assert isinstance(result, AddPartitionsResult)
        return result.code

    def end(self, producer: tuple[int, int], *, is_commit: bool = True, version: int = 1) -> None:
        self.take(
            self.machine.end_transaction(0, *producer, self.now_ms, is_commit=is_commit, transaction_version=version)
        )

    def ended(self, producer: tuple[int, int], *, is_commit: bool = True, version: int = 1) -> EndTransactionResult:
        self.end(producer, is_commit=is_commit, version=version)
        self.settle()
        result = self.answer()
        assert isinstance(result, EndTransactionResult)
        return result

    @property
    def metadata(self) -> TransactionMetadata:
        assert self.machine.metadata is not None
        return self.machine.metadata


def begun(version: int = 1) -> tuple[Driver, tuple[int, int]]:
    """A producer with an open transaction in A and B."""
    driver = Driver()
    _, producer_id, epoch = driver.init(version=version)
    assert driver.add((producer_id, epoch), A, B) is NONE
    return driver, (producer_id, epoch)


def test_requests_are_answered_once_their_state_is_stored() -> None:
    """Every request that changes something is answered after its record is committed, and not before."""
    driver = Driver()
    steps: list[Callable[[], Effects]] = [
        lambda: driver.machine.init_producer_id(0, TIMEOUT_MS, 1),
        lambda: driver.machine.add_partitions(0, 501, 0, [A], 2),
        lambda: driver.machine.end_transaction(0, 501, 0, 3, is_commit=True),
    ]
    for step in steps:
        driver.take(step())
        assert len(driver.appends) == 1 and not driver.replies and not driver.markers
        driver.commit()
        assert driver.answer().code is NONE
    assert driver.markers[0].marker == (501, 0, COORDINATOR, True)
    driver.settle()
    assert driver.metadata.state is TransactionState.COMPLETE_COMMIT and not driver.metadata.partitions


def test_markers_wait_for_the_decision_to_be_stored() -> None:
    driver, producer = begun()
    driver.end(producer)
    assert not driver.markers and not driver.replies
    driver.commit()
    assert driver.markers and driver.answer().code is NONE


@pytest.mark.parametrize("is_commit", [True, False])
def test_ends_are_answered_the_same_when_they_are_repeated(is_commit: bool) -> None:
    driver, producer = begun()
    driver.end(producer, is_commit=is_commit)
    driver.end(producer, is_commit=is_commit)
    assert driver.answer().code is CONCURRENT
    driver.commit()
    assert driver.answer().code is NONE
    driver.end(producer, is_commit=is_commit)
    assert driver.answer().code is CONCURRENT, "markers are written"
    driver.end(producer, is_commit=not is_commit)
    assert driver.answer().code in (ErrorCode.INVALID_TXN_STATE, CONCURRENT)
    driver.settle()
    assert driver.ended(producer, is_commit=is_commit).code is NONE
    assert driver.ended(producer, is_commit=not is_commit).code is ErrorCode.INVALID_TXN_STATE


def test_requests_during_the_end_of_a_transaction_get_concurrent_transactions() -> None:
    driver, producer = begun()
    driver.end(producer)
    driver.commit()
    driver.replies.clear()
    driver.take(driver.machine.add_partitions(0, *producer, [A], 5))
    assert driver.answer().code is CONCURRENT
    driver.take(driver.machine.init_producer_id(0, TIMEOUT_MS, 5))
    assert driver.answer().code is CONCURRENT
    assert driver.machine.verify_partitions(*producer, [A]).code is CONCURRENT


def test_a_new_producer_fences_the_one_before_it() -> None:
    """Its transaction is aborted with a higher epoch; nothing of it counts any more."""
    driver, (producer_id, epoch) = begun()
    driver.take(driver.machine.init_producer_id(0, TIMEOUT_MS, 9))
    assert driver.machine.state is TransactionState.PREPARE_EPOCH_FENCE
    driver.commit()
    assert driver.answer().code is CONCURRENT
    assert driver.markers[0].marker == (producer_id, epoch + 1, COORDINATOR, False)
    driver.settle()
    assert driver.init() == (NONE, producer_id, epoch + 2)
    assert driver.add((producer_id, epoch), A) is ErrorCode.PRODUCER_FENCED
    assert driver.ended((producer_id, epoch)).code is ErrorCode.PRODUCER_FENCED
    assert driver.machine.verify_partitions(producer_id, epoch, [A]).code is ErrorCode.PRODUCER_FENCED
    assert driver.add((producer_id + 9, epoch + 2), A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_asks_for_its_next_epoch() -> None:
    """KIP-360: also if it asks again because the answer was lost. An older one is fenced."""
    driver = Driver()
    _, producer_id, epoch = driver.init()
    assert driver.init((producer_id, epoch)) == (NONE, producer_id, epoch + 1)
    assert driver.init((producer_id, epoch)) == (NONE, producer_id, epoch + 1), "the answer was lost"
    assert driver.init((producer_id, epoch + 1)) == (NONE, producer_id, epoch + 2)
    assert driver.init((producer_id, epoch)).code is ErrorCode.PRODUCER_FENCED
    assert driver.add((producer_id, epoch + 2), A) is NONE
    assert driver.init((producer_id, epoch + 1)).code is ErrorCode.PRODUCER_FENCED, "it may be late"
    assert driver.metadata.state is TransactionState.ONGOING


def test_an_exhausted_producer_epoch_gives_a_new_producer_id() -> None:
    driver = Driver(TransactionMetadata(5, EPOCH_EXHAUSTED, TIMEOUT_MS, TransactionState.EMPTY))
    assert driver.init((5, EPOCH_EXHAUSTED)) == (NONE, 501, 0)
    assert driver.init((5, EPOCH_EXHAUSTED)) == (NONE, 501, 0), "the answer was lost"
    assert driver.metadata.previous_producer_id == 5
    assert driver.add((5, EPOCH_EXHAUSTED), A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [1, 2])
def test_a_producer_whose_last_epoch_is_fenced_gets_a_new_producer_id(version: int) -> None:
    """KIP-360: its request aborts its transaction, which takes the epoch that no producer may have; it asks again."""
    exhausted = 5, EPOCH_EXHAUSTED
    driver = Driver(TransactionMetadata(*exhausted, TIMEOUT_MS, TransactionState.EMPTY, transaction_version=version))
    assert driver.add(exhausted, A) is NONE
    assert driver.init(exhausted, version).code is CONCURRENT
    assert driver.metadata.producer_epoch == EPOCH_MAX and driver.metadata.state is TransactionState.COMPLETE_ABORT
    assert driver.init(exhausted, version) == (NONE, 501, 0)
    assert driver.init(exhausted, version) == (NONE, 501, 0), "the answer was lost"
    assert driver.metadata.previous_producer_id == 5
    assert driver.add((501, 0), A) is NONE
    assert driver.init(exhausted, version).code is ErrorCode.PRODUCER_FENCED, "it is late"


def test_a_producer_whose_last_epoch_timed_out_ends_with_a_new_producer_id() -> None:
    """Version 2: it learns that its transaction is aborted when it aborts it, and can go on."""
    exhausted = 5, EPOCH_EXHAUSTED
    driver = Driver(TransactionMetadata(*exhausted, TIMEOUT_MS, TransactionState.EMPTY, transaction_version=2))
    assert driver.add(exhausted, A) is NONE
    for monotonic_ms in (0, TIMEOUT_MS):
        driver.take(driver.machine.expire(driver.now_ms, EXPIRATION_MS, monotonic_ms))
        driver.settle()
    assert driver.ended(exhausted, version=2).code is ErrorCode.INVALID_TXN_STATE
    for _ in ("answered", "the answer was lost"):
        assert driver.ended(exhausted, is_commit=False, version=2) == (NONE, 501, 0)
    assert driver.add((501, 0), A) is NONE


@pytest.mark.parametrize("version", [1, 2])
def test_the_epoch_that_is_reserved_for_fencing_ends_no_transaction(version: int) -> None:
    reserved = 5, EPOCH_MAX
    driver = Driver(TransactionMetadata(*reserved, TIMEOUT_MS, TransactionState.COMPLETE_ABORT, transaction_version=2))
    assert driver.ended(reserved, is_commit=False, version=version).code is ErrorCode.PRODUCER_FENCED
    assert driver.init() == (NONE, 501, 0)


def test_epochs_are_used_up_by_ends_of_transactions() -> None:
    driver = Driver(TransactionMetadata(5, EPOCH_EXHAUSTED, TIMEOUT_MS, TransactionState.EMPTY, transaction_version=2))
    assert driver.add((5, EPOCH_EXHAUSTED), A) is NONE
    driver.end((5, EPOCH_EXHAUSTED), version=2)
    driver.commit()
    assert driver.answer() == EndTransactionResult(NONE, 501, 0)
    assert driver.markers[0].marker == (5, EPOCH_EXHAUSTED + 1, COORDINATOR, True)
    driver.take(driver.machine.add_partitions(0, 501, 0, [A], 5))
    assert driver.answer().code is CONCURRENT, "its markers are written"
    again = Driver(driver.metadata, COORDINATOR + 1)
    again.settle()
    for each in (driver, again):
        each.settle()
        assert (each.metadata.producer_id, each.metadata.producer_epoch) == (501, 0)
        assert each.ended((5, EPOCH_EXHAUSTED), version=2) == (NONE, 501, 0), "the answer was lost"
        assert each.add((501, 0), A) is NONE


def test_each_transaction_has_its_own_epoch() -> None:
    """Version 2: the marker's epoch is the next transaction's, so that a late one is told from it."""
    driver, (producer_id, epoch) = begun(version=2)
    driver.end((producer_id, epoch), version=2)
    driver.commit()
    assert driver.answer() == EndTransactionResult(NONE, producer_id, epoch + 1)
    assert driver.markers[0].marker.producer_epoch == epoch + 1 and driver.markers[0].transaction_version == 2
    driver.end((producer_id, epoch), version=2)
    assert driver.answer().code is CONCURRENT
    driver.settle()
    assert driver.ended((producer_id, epoch), version=2) == (NONE, producer_id, epoch + 1)
    assert driver.ended((producer_id, epoch), is_commit=False, version=2).code is ErrorCode.INVALID_TXN_STATE
    assert driver.ended((producer_id, epoch + 1), version=2).code is ErrorCode.INVALID_TXN_STATE
    aborted = driver.ended((producer_id, epoch + 1), is_commit=False, version=2)
    assert aborted == (NONE, producer_id, epoch + 2), "what may be on its way is fenced"
    assert driver.add((producer_id, epoch), A) is ErrorCode.PRODUCER_FENCED


def test_time_outs_abort_and_fence() -> None:
    driver, (producer_id, epoch) = begun()
    driver.take(driver.machine.expire(driver.now_ms + TIMEOUT_MS - 1, EXPIRATION_MS, TIMEOUT_MS - 1))
    assert not driver.appends
    driver.take(driver.machine.expire(driver.now_ms + TIMEOUT_MS, EXPIRATION_MS, TIMEOUT_MS))
    driver.commit()
    assert driver.markers[0].marker == (producer_id, epoch + 1, COORDINATOR, False)
    driver.settle()
    assert driver.ended((producer_id, epoch)).code is ErrorCode.PRODUCER_FENCED
    assert driver.metadata.state is TransactionState.COMPLETE_ABORT


DAY_MS = 86_400_000


@pytest.mark.parametrize("step_ms", [-DAY_MS, DAY_MS])
def test_a_clock_that_is_set_changes_no_time_out(step_ms: int) -> None:
    driver, (producer_id, epoch) = begun()
    now_ms = driver.now_ms + step_ms
    driver.take(driver.machine.expire(driver.now_ms, EXPIRATION_MS, 5))
    driver.take(driver.machine.expire(now_ms, EXPIRATION_MS, 5 + TIMEOUT_MS - 1))
    assert not driver.appends
    driver.take(driver.machine.expire(now_ms, EXPIRATION_MS, 5 + TIMEOUT_MS))
    driver.commit()
    assert driver.markers[0].marker == (producer_id, epoch + 1, COORDINATOR, False)


def test_a_coordinator_whose_clock_is_behind_lets_a_transaction_time_out() -> None:
    """Another broker's clock has the time at which it began."""
    driver, _ = begun()
    driver = Driver(driver.metadata, COORDINATOR + 1)
    driver.take(driver.machine.expire(driver.metadata.started_ms - DAY_MS, EXPIRATION_MS, 5))
    assert not driver.appends
    driver.take(driver.machine.expire(driver.metadata.started_ms - DAY_MS, EXPIRATION_MS, 5 + TIMEOUT_MS))
    driver.commit()
    assert driver.metadata.state is TransactionState.PREPARE_ABORT


def test_the_time_out_of_a_transaction_is_not_that_of_the_one_before() -> None:
    driver, producer = begun()
    driver.take(driver.machine.expire(driver.now_ms, EXPIRATION_MS, 0))
    driver.ended(producer)
    assert driver.add(producer, A) is NONE
    driver.take(driver.machine.expire(driver.now_ms, EXPIRATION_MS, TIMEOUT_MS))
    assert not driver.appends


def test_unused_transactional_ids_expire() -> None:
    driver, producer = begun()
    driver.ended(producer)
    driver.take(driver.machine.expire(driver.now_ms + EXPIRATION_MS - 1, EXPIRATION_MS, 0))
    assert not driver.appends
    driver.take(driver.machine.expire(driver.now_ms + EXPIRATION_MS, EXPIRATION_MS, 0))
    assert driver.appends == [AppendState(None)] and not driver.is_forgotten
    driver.commit()
    assert driver.is_forgotten and driver.machine.state is TransactionState.DEAD


def test_an_open_transaction_does_not_expire() -> None:
    driver, _ = begun()
    driver.take(driver.machine.end_transaction(0, 501, 0, driver.now_ms, is_commit=True))
    driver.commit()
    driver.take(driver.machine.expire(driver.now_ms + 2 * EXPIRATION_MS, EXPIRATION_MS, 0))
    assert not driver.appends, "markers are written, however long that takes"


def test_a_refused_append_leaves_the_transaction_undecided() -> None:
    driver, producer = begun()
    driver.end(producer)
    driver.take(driver.machine.append_refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert driver.answer().code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.appends.clear()
    assert driver.metadata.state is TransactionState.ONGOING
    assert driver.ended(producer, is_commit=False).code is NONE, "nothing was decided"


def test_a_new_id_that_is_refused_is_forgotten() -> None:
    driver = Driver()
    driver.take(driver.machine.init_producer_id(0, TIMEOUT_MS, 1))
    driver.take(driver.machine.append_refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert driver.is_forgotten and driver.answer().code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_an_unknown_outcome_is_no_failure() -> None:
    """The commit may be in the log: the transaction must not be aborted, whatever later attempts come to."""
    driver, producer = begun()
    driver.end(producer)
    append = driver.appends.pop()
    driver.take(driver.machine.append_unknown(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert driver.answer().code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    for refuse in (driver.machine.append_refused, driver.machine.append_unknown):
        driver.end(producer, is_commit=False)
        assert driver.answer().code is CONCURRENT
        assert driver.appends.pop() == AppendState(append.metadata, is_again=True)
        driver.take(refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        assert not driver.replies
    driver.settle()
    assert driver.metadata.state is TransactionState.COMPLETE_COMMIT
    assert driver.ended(producer).code is NONE


def test_decided_transaction_is_completed_after_a_refused_append() -> None:
    driver, producer = begun()
    driver.end(producer)
    driver.commit()
    driver.write_all()
    driver.appends.clear()
    driver.take(driver.machine.append_refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert driver.appends[0].is_again
    driver.settle()
    assert driver.metadata.state is TransactionState.COMPLETE_COMMIT


def test_a_new_coordinator_goes_on() -> None:
    """Markers are written again, in its own epoch, to all partitions: nobody knows which ones have them."""
    driver, producer = begun()
    driver.end(producer)
    driver.commit()
    effect = driver.markers[0]
    driver.take(driver.machine.marker_written(effect.number, A, 5))
    after = Driver(driver.metadata, COORDINATOR + 1)
    assert after.markers[0].partitions == {A, B}
    assert after.markers[0].marker == effect.marker._replace(coordinator_epoch=COORDINATOR + 1)
    after.settle()
    assert after.ended(producer).code is NONE


def test_reports_of_an_earlier_transaction_complete_no_later_one() -> None:
    driver, producer = begun()
    driver.end(producer)
    driver.commit()
    early = driver.markers[0]
    driver.settle()
    driver.replies.clear()
    assert driver.add(producer, A, B) is NONE
    driver.end(producer)
    driver.commit()
    assert driver.markers[0].number != early.number
    for partition in early.partitions:
        driver.take(driver.machine.marker_written(early.number, partition, 5))
    assert not driver.appends and driver.metadata.state is TransactionState.PREPARE_COMMIT


def test_only_partitions_of_the_transaction_are_verified() -> None:
    driver, producer = begun()
    result = driver.machine.verify_partitions(*producer, [A, TopicPartition("other", 0)])
    assert result.partitions == {A: NONE, TopicPartition("other", 0): ErrorCode.TRANSACTION_ABORTABLE}
    driver.take(driver.machine.add_partitions(0, *producer, [TopicPartition("other", 0)], 5))
    result = driver.machine.verify_partitions(*producer, [A, TopicPartition("other", 0)])
    assert result.partitions[A] is NONE
    assert result.partitions[TopicPartition("other", 0)] is ErrorCode.TRANSACTION_ABORTABLE, "not stored yet"
    driver.settle()
    driver.replies.clear()
    assert driver.ended(producer).code is NONE
    assert driver.machine.verify_partitions(*producer, [A]).partitions == {A: ErrorCode.TRANSACTION_ABORTABLE}


def test_requests_wait_for_a_refresh() -> None:
    """The state is appended again, so that the log can be shortened: nobody notices."""
    driver, producer = begun()
    before = driver.metadata
    driver.take(driver.machine.refresh())
    driver.end(producer)
    assert driver.appends == [AppendState(before)] and not driver.replies
    driver.commit()
    driver.settle()
    assert driver.answer().code is NONE and driver.metadata.state is TransactionState.COMPLETE_COMMIT


def test_told_decisions_stand_in_random_runs(seed: int) -> None:
    """A log that loses answers and coordinators that are replaced: a decision that was told stands, and markers agree
    with it."""
    rng = Random(seed)
    for _ in range(40):
        driver = Driver()
        driver.init(version=rng.choice((1, 2)))
        told: dict[tuple[int, int], bool] = {}
        stored: TransactionMetadata | None = driver.metadata
        for _ in range(200):
            current = driver.machine.metadata
            assert current is not None
            producer = (current.producer_id, current.producer_epoch)
            match rng.randrange(7):
                case 0:
                    driver.take(driver.machine.add_partitions(0, *producer, [rng.choice((A, B))], driver.now_ms))
                case 1:
                    driver.end(producer, is_commit=rng.random() < 0.5, version=current.transaction_version)
                case 2 if driver.appends:
                    stored = driver.appends[0].metadata
                    driver.commit()
                case 3 if driver.appends:
                    if rng.random() < 0.5:
                        stored = driver.appends[0].metadata  # it is in the log, and nobody knows
                    driver.appends.pop(0)
                    driver.take(driver.machine.append_unknown(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                case 4 if driver.markers:
                    effect = driver.markers[-1]
                    if stored is not None and stored.state.is_prepared:
                        assert effect.marker.is_commit == (stored.state is TransactionState.PREPARE_COMMIT)
                    key = (effect.marker.producer_id, effect.number)
                    assert told.setdefault(key, effect.marker.is_commit) == effect.marker.is_commit
                    driver.write_all()
                case 5 if rng.random() < 0.2:
                    now_ms, driver_before = driver.now_ms + 1, driver
                    driver = Driver(stored, driver_before.machine.coordinator_epoch + 1)
                    driver.now_ms, told = now_ms, {}
                    assert driver.metadata == stored
                case 6:
                    after_ms = rng.choice((0, TIMEOUT_MS))
                    driver.take(driver.machine.expire(driver.now_ms + after_ms, EXPIRATION_MS, after_ms))
            driver.replies.clear()
            assert len(driver.appends) <= 1, "one change at a time"
