"""TransactionMachine: one transactional id of a coordinator. Events in, effects out; no clock, disk or network.

A change takes effect when its record is committed in the coordinator's log; the request is answered only then. While a
change is under way, and while markers are written, other requests are answered with CONCURRENT_TRANSACTIONS, and
clients retry them.

An append with an unknown outcome may be committed later. The same record is appended again until one of them is
committed: then all earlier ones are committed, too, and the state equals that of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_metadata import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)

_COMPLETE = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


class InitProducerIdResult(NamedTuple):
    """The answer to InitProducerId.

    Attributes:
        code: NONE, or the error.
        producer_id: id of the producer; -1: an error.
        producer_epoch: epoch of the producer; -1: an error.
    """

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class AddPartitionsResult(NamedTuple):
    """The answer to AddPartitionsToTxn.

    Attributes:
        code: NONE, or the error of all partitions.
        partitions: the code of each partition.
    """

    code: ErrorCode
    partitions: Mapping[TopicPartition, ErrorCode]


class EndTransactionResult(NamedTuple):
    """The answer to EndTxn.

    Attributes:
        code: NONE: the decision is stored; or the error.
        producer_id: id for the next transaction (version 2); -1: an error.
        producer_epoch: epoch for the next transaction (version 2); -1: an error.
    """

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


TransactionResult: TypeAlias = InitProducerIdResult | AddPartitionsResult | EndTransactionResult


class Reply(NamedTuple):
    """Answer a request.

    Attributes:
        call: the request, as passed to the machine.
        result: the answer.
    """

    call: object
    result: TransactionResult


class AppendState(NamedTuple):
    """Append a state to the log; then call `appended`, `append_refused` or `append_unknown`.

    Attributes:
        metadata: the state; None: the id is removed.
        is_again: whether it is a retry after an unknown outcome, which waits for a back-off.
    """

    metadata: TransactionMetadata | None
    is_again: bool = False


class AllocateProducerId(NamedTuple):
    """Allocate an unused producer id; then call `producer_id_allocated` or `producer_id_refused`."""


class WriteMarkers(NamedTuple):
    """Write a marker to partitions, with retries until each succeeds; call `marker_written` for each.

    Attributes:
        number: number of the transaction, for `marker_written`.
        marker: the marker.
        partitions: the partitions of the transaction.
        transaction_version: see `TransactionMetadata`.
    """

    number: int
    marker: TransactionMarker
    partitions: frozenset[TopicPartition]
    transaction_version: int


class Forget(NamedTuple):
    """Drop this machine: the id does not exist any more."""


TransactionEffect: TypeAlias = Reply | AppendState | AllocateProducerId | WriteMarkers | Forget
Effects: TypeAlias = list[TransactionEffect]


@dataclass(slots=True)
class _Pending:
    """A state that is being appended."""

    after: TransactionMetadata | None
    call: object = None
    success: TransactionResult | None = None
    failure: Callable[[ErrorCode], TransactionResult] | None = None
    is_fence: bool = False
    is_refresh: bool = False
    has_unknown: bool = False  # an earlier attempt may be in the log


class TransactionMachine:
    """One transactional id. Not for several threads at once.

    Times are milliseconds since 1970-01-01 UTC, but for the time by which a transaction times out, which is monotonic:
    a clock that is set neither aborts it early nor keeps it open.

    Args:
        coordinator_epoch: leader epoch of the coordinator's partition.
        metadata: its state in the log; None: the id is new.
    """

    def __init__(self, coordinator_epoch: int, metadata: TransactionMetadata | None = None) -> None:
        self.coordinator_epoch, self.metadata = coordinator_epoch, metadata
        self.is_dead = False
        """Whether the id does not exist any more."""
        self._pending: _Pending | None = None
        self._allocation: tuple[object, Callable[[int], Effects], Callable[[ErrorCode], TransactionResult]] | None
        self._allocation = None
        self._number = 0
        self._deadline_ms: int | None = None  # of the open transaction, monotonic; None: no check has seen it yet
        self._unwritten: set[TopicPartition] = set()
        self._queued: list[Callable[[], Effects]] = []  # requests that wait until a refresh is appended

    @property
    def state(self) -> TransactionState:
        if self.is_dead:
            return TransactionState.DEAD
        if self._pending is not None and self._pending.is_fence:
            return TransactionState.PREPARE_EPOCH_FENCE
        return TransactionState.EMPTY if self.metadata is None else self.metadata.state

    @property
    def is_busy(self) -> bool:
        """Whether a change is under way."""
        return self._pending is not None or self._allocation is not None or self.is_dead

    @property
    def _is_refreshing(self) -> bool:
        return self._pending is not None and self._pending.is_refresh

    def begin(self) -> Effects:
        """Resume from the state of the log: write the markers of a decided transaction."""
        metadata = self.metadata
        return self._write_markers() if metadata is not None and metadata.state.is_prepared else []

    # ---- InitProducerId -------------------------------------------------------------------------------------

    def init_producer_id(
        self, call: object, timeout_ms: int, now_ms: int, expected: tuple[int, int] | None = None,
        transaction_version: int = 1,
    ) -> Effects:  # fmt: skip
        """Initialise a producer: return its id and an epoch that fences all earlier producers.

        Args:
            call: the request, for `Reply`.
            timeout_ms: time-out of its transactions, milliseconds.
            now_ms: wall time, milliseconds since 1970-01-01 UTC.
            expected: id and epoch of a producer that requests its next epoch (KIP-360); None: a new producer.
            transaction_version: see `TransactionMetadata`.
        """
        if self._is_refreshing:
            self._queued.append(partial(self.init_producer_id, call, timeout_ms, now_ms, expected, transaction_version))
            return []
        current = self.metadata
        if self.is_busy or (current is not None and current.state.is_prepared):
            return [Reply(call, InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS))]
        first = TransactionMetadata(
            NO_PRODUCER_ID, 0, timeout_ms, TransactionState.EMPTY, updated_ms=now_ms,
            transaction_version=transaction_version,
        )  # fmt: skip
        if current is None:
            return self._rotate(call, first)
        if expected is not None and not self._is_expected(current, expected):
            return [Reply(call, InitProducerIdResult(ErrorCode.PRODUCER_FENCED))]
        if current.state is TransactionState.ONGOING:
            if expected is not None and expected != (current.producer_id, current.producer_epoch):
                return [Reply(call, InitProducerIdResult(ErrorCode.PRODUCER_FENCED))]
            after = self._prepared(current, now_ms, is_commit=False, is_fence=True)
            last = NO_EPOCH if expected is None else expected[1]
            concurrent = InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._append(
                _Pending(
                    replace(after, last_producer_epoch=last), call, concurrent, InitProducerIdResult, is_fence=True
                )
            )
        is_retry = expected is not None and expected != (current.producer_id, current.producer_epoch)
        # a retry after its first attempt fenced the last epoch finds the reserved one, which no producer may have
        if current.is_exhausted and (not is_retry or current.producer_epoch >= EPOCH_MAX):
            last = NO_EPOCH if expected is None else expected[1]
            return self._rotate(
                call, replace(first, previous_producer_id=current.producer_id, last_producer_epoch=last)
            )
        after = replace(
            current, timeout_ms=timeout_ms, state=TransactionState.EMPTY, partitions=frozenset(), started_ms=-1,
            updated_ms=now_ms, transaction_version=transaction_version,
        )  # fmt: skip
        if not is_retry:
            last = NO_EPOCH if expected is None else current.producer_epoch
            after = replace(after, producer_epoch=current.producer_epoch + 1, last_producer_epoch=last)
        return self._initialise(call, after)

    @staticmethod
    def _is_expected(current: TransactionMetadata, expected: tuple[int, int]) -> bool:
        """Return whether it is the newest producer, or one that retries because it did not get the answer."""
        producer_id, epoch = expected
        if producer_id == current.producer_id:
            return epoch in (current.producer_epoch, current.last_producer_epoch)
        return producer_id == current.previous_producer_id and EPOCH_EXHAUSTED <= epoch == current.last_producer_epoch

    def _rotate(self, call: object, after: TransactionMetadata) -> Effects:
        def allocated(producer_id: int) -> Effects:
            return self._initialise(call, replace(after, producer_id=producer_id))

        self._allocation = call, allocated, InitProducerIdResult
        return [AllocateProducerId()]

    def _initialise(self, call: object, after: TransactionMetadata) -> Effects:
        result = InitProducerIdResult(ErrorCode.NONE, after.producer_id, after.producer_epoch)
        return self._append(_Pending(after, call, result, InitProducerIdResult))

    def producer_id_allocated(self, producer_id: int) -> Effects:
        """Continue with a new producer id."""
        assert self._allocation is not None
        (_, go_on, _), self._allocation = self._allocation, None
        return go_on(producer_id)

    def producer_id_refused(self) -> Effects:
        """Fail the request, without a change: no producer id is available for now."""
        assert self._allocation is not None
        (call, _, failure), self._allocation = self._allocation, None
        effects: Effects = [Reply(call, failure(ErrorCode.COORDINATOR_NOT_AVAILABLE))]
        return effects + self._forget_if_unstored()

    # ---- AddPartitionsToTxn ---------------------------------------------------------------------------------

    def add_partitions(
        self, call: object, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition], now_ms: int
    ) -> Effects:  # fmt: skip
        """Add partitions to the transaction, which begins with the first ones.

        Args:
            call: the request, for `Reply`.
            producer_id: id of the producer.
            producer_epoch: epoch of the producer.
            partitions: partitions that will get records.
            now_ms: wall time, milliseconds since 1970-01-01 UTC.
        """
        added = frozenset(partitions)
        if self._is_refreshing:
            self._queued.append(partial(self.add_partitions, call, producer_id, producer_epoch, added, now_ms))
            return []
        failure = partial(_added, added)
        code = self._check_producer(producer_id, producer_epoch)
        if code is ErrorCode.NONE and self.is_busy:
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        current = self.metadata
        if code is not ErrorCode.NONE or current is None:
            return [Reply(call, failure(code))]
        is_open = current.state is TransactionState.ONGOING
        if is_open and added <= current.partitions:
            return [Reply(call, failure(ErrorCode.NONE))]
        after = replace(
            current, state=TransactionState.ONGOING, partitions=(current.partitions | added if is_open else added),
            updated_ms=now_ms, started_ms=current.started_ms if is_open else now_ms, last_producer_epoch=NO_EPOCH,
        )  # fmt: skip
        return self._append(_Pending(after, call, failure(ErrorCode.NONE), failure))

    def verify_partitions(
        self, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> AddPartitionsResult:  # fmt: skip
        """Return whether partitions belong to the open transaction of a producer, without a change (KIP-890)."""
        wanted = frozenset(partitions)
        code = self._check_producer(producer_id, producer_epoch)
        after = None if self._pending is None else self._pending.after
        if code is ErrorCode.NONE and after is not None and after.state.is_prepared:
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        if code is not ErrorCode.NONE or self.metadata is None:
            return _added(wanted, code)
        present = self.metadata.partitions if self.metadata.state is TransactionState.ONGOING else frozenset()
        codes = {each: ErrorCode.NONE if each in present else ErrorCode.TRANSACTION_ABORTABLE for each in wanted}
        return AddPartitionsResult(ErrorCode.NONE, codes)

    def _check_producer(self, producer_id: int, producer_epoch: int) -> ErrorCode:
        current = self.metadata
        if current is None or self.is_dead:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if current.state.is_prepared and producer_id == current.next_producer_id != NO_PRODUCER_ID:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if producer_id != current.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer_epoch != current.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        if current.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.PRODUCER_FENCED if producer_epoch >= EPOCH_MAX else ErrorCode.NONE

    # ---- EndTxn ---------------------------------------------------------------------------------------------

    def end_transaction(
        self, call: object, producer_id: int, producer_epoch: int, now_ms: int, *, is_commit: bool,
        transaction_version: int = 1,
    ) -> Effects:  # fmt: skip
        """Commit or abort the transaction. The request is answered when the decision is stored; markers are written
        afterwards.

        Args:
            call: the request, for `Reply`.
            producer_id: id of the producer.
            producer_epoch: epoch of the producer.
            now_ms: wall time, milliseconds since 1970-01-01 UTC.
            is_commit: whether to commit.
            transaction_version: 2: the producer continues with the epoch in the answer; 1: with its present one.
        """
        if self._is_refreshing:
            again = partial(
                self.end_transaction, call, producer_id, producer_epoch, now_ms, is_commit=is_commit,
                transaction_version=transaction_version,
            )  # fmt: skip
            self._queued.append(again)
            return []
        current = self.metadata
        is_retry = transaction_version > 1 and current is not None and _is_ended(current, producer_id, producer_epoch)
        code = self._check_end(current, producer_id, producer_epoch, is_retry=is_retry)
        if code is not ErrorCode.NONE or current is None:
            return [Reply(call, EndTransactionResult(code))]
        if current.state is TransactionState.ONGOING:
            return self._end(call, current, now_ms, is_commit=is_commit, version=transaction_version)
        same = current.state in (
            (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
            if is_commit
            else (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
        )
        if transaction_version > 1 and not is_retry:
            if not is_commit and not current.state.is_prepared:  # only requests in flight can be aborted
                return self._end(call, current, now_ms, is_commit=False, version=transaction_version)
            same = False
        if not same:
            return [Reply(call, EndTransactionResult(ErrorCode.INVALID_TXN_STATE))]
        if current.state.is_prepared:
            return [Reply(call, EndTransactionResult(ErrorCode.CONCURRENT_TRANSACTIONS))]
        if current.producer_epoch >= EPOCH_MAX:
            return self._end_with_new_id(call, current)
        return [Reply(call, EndTransactionResult(ErrorCode.NONE, current.producer_id, current.producer_epoch))]

    def _end_with_new_id(self, call: object, current: TransactionMetadata) -> Effects:
        """Answer the end of a transaction that was aborted by fencing the last epoch of its producer."""

        def allocated(producer_id: int) -> Effects:
            after = replace(
                current, producer_id=producer_id, producer_epoch=0, previous_producer_id=current.producer_id
            )
            result = EndTransactionResult(ErrorCode.NONE, producer_id, 0)
            return self._append(_Pending(after, call, result, EndTransactionResult))

        self._allocation = call, allocated, EndTransactionResult
        return [AllocateProducerId()]

    def _check_end(
        self, current: TransactionMetadata | None, producer_id: int, producer_epoch: int, *, is_retry: bool
    ) -> ErrorCode:  # fmt: skip
        if current is None or (producer_id != current.producer_id and not is_retry):
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if (producer_epoch != current.producer_epoch and not is_retry) or producer_epoch >= EPOCH_MAX:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.is_busy else ErrorCode.NONE

    def _end(
        self, call: object, current: TransactionMetadata, now_ms: int, *, is_commit: bool, version: int
    ) -> Effects:  # fmt: skip
        current = replace(current, transaction_version=version)

        def decide(next_producer_id: int = NO_PRODUCER_ID) -> Effects:
            after = self._prepared(current, now_ms, is_commit=is_commit, is_fence=False)
            after = replace(after, next_producer_id=next_producer_id)
            result = EndTransactionResult(ErrorCode.NONE, after.producer_id, after.producer_epoch)
            if next_producer_id != NO_PRODUCER_ID:
                result = EndTransactionResult(ErrorCode.NONE, next_producer_id, 0)
            return self._append(_Pending(after, call, result, EndTransactionResult))

        if version < 2 or not current.is_exhausted:
            return decide()
        self._allocation = call, decide, EndTransactionResult
        return [AllocateProducerId()]

    @staticmethod
    def _prepared(
        current: TransactionMetadata, now_ms: int, *, is_commit: bool, is_fence: bool
    ) -> TransactionMetadata:  # fmt: skip
        state = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
        epoch = current.producer_epoch + (is_fence or current.transaction_version > 1)
        return replace(current, state=state, producer_epoch=epoch, updated_ms=now_ms, last_producer_epoch=NO_EPOCH)

    # ---- time -----------------------------------------------------------------------------------------------

    def expire(self, now_ms: int, expiration_ms: int, monotonic_ms: int) -> Effects:
        """Abort a transaction that has timed out, and remove an id that has expired.

        The first call after a transaction has begun, or a coordinator was loaded, takes the time that has passed from
        the wall clock, but at most the time-out; from then on the monotonic time counts.

        Args:
            now_ms: wall time, milliseconds since 1970-01-01 UTC.
            expiration_ms: `transactional.id.expiration.ms`.
            monotonic_ms: monotonic time, milliseconds.
        """
        current = self.metadata
        if current is None or self.is_busy:
            return []
        if current.state is TransactionState.ONGOING:
            if self._deadline_ms is None:
                left_ms = current.started_ms + current.timeout_ms - now_ms
                self._deadline_ms = monotonic_ms + min(max(left_ms, 0), current.timeout_ms)
            if monotonic_ms < self._deadline_ms:
                return []
            after = self._prepared(current, now_ms, is_commit=False, is_fence=True)
            return self._append(_Pending(after, is_fence=True))
        if current.state.is_prepared or now_ms < current.updated_ms + expiration_ms:
            return []
        return self._append(_Pending(None))

    def refresh(self) -> Effects:
        """Append the state again, so that earlier records of the log can be removed. Requests wait meanwhile."""
        if self.metadata is None or self.is_busy:
            return []
        return self._append(_Pending(self.metadata, is_refresh=True))

    # ---- appends --------------------------------------------------------------------------------------------

    def _append(self, pending: _Pending) -> Effects:
        self._pending = pending
        return [AppendState(pending.after)]

    def appended(self, now_ms: int) -> Effects:
        """Adopt the appended state, which is committed, and answer its request."""
        pending, self._pending = self._pending, None
        assert pending is not None
        if pending.after is None:
            self.is_dead = True
            return [Forget()]
        self.metadata = pending.after
        if self.metadata.state is not TransactionState.ONGOING:
            self._deadline_ms = None
        if pending.is_refresh:
            return self._run_queued()
        effects: Effects = []
        if pending.success is not None:
            effects.append(Reply(pending.call, pending.success))
        if self.metadata.state.is_prepared:
            effects += self._write_markers(now_ms)
        return effects

    def append_refused(self, code: ErrorCode) -> Effects:
        """Note that the append was refused. The change is dropped, unless an earlier attempt may be in the log.

        Args:
            code: code for the client.
        """
        pending = self._pending
        assert pending is not None
        if pending.has_unknown or (pending.after is not None and pending.after.state in _COMPLETE.values()):
            return self.append_unknown(code)
        self._pending = None
        if pending.is_refresh:
            return self._run_queued()
        return self._fail(pending, code) + self._forget_if_unstored()

    def append_unknown(self, code: ErrorCode) -> Effects:
        """Append the state again, until it is committed: the outcome of the append is unknown.

        Args:
            code: code for the client, which has to retry.
        """
        pending = self._pending
        assert pending is not None
        if pending.is_refresh:  # the state is the same in either case
            self._pending = None
            return self._run_queued()
        pending.has_unknown = True
        effects = self._fail(pending, code)
        pending.success = pending.failure = None
        effects.append(AppendState(pending.after, is_again=True))
        return effects

    @staticmethod
    def _fail(pending: _Pending, code: ErrorCode) -> Effects:
        return [] if pending.failure is None else [Reply(pending.call, pending.failure(code))]

    def _run_queued(self) -> Effects:
        queued, self._queued = self._queued, []
        effects: Effects = []
        for call in queued:
            effects += call()
        return effects

    def _forget_if_unstored(self) -> Effects:
        """Remove the id if it was never stored."""
        if self.metadata is not None or self.is_busy:
            return []
        self.is_dead = True
        return [Forget()]

    # ---- markers --------------------------------------------------------------------------------------------

    def _write_markers(self, now_ms: int | None = None) -> Effects:
        current = self.metadata
        assert current is not None
        self._number += 1
        self._unwritten = set(current.partitions)
        if not current.partitions:
            return self._complete(current.updated_ms if now_ms is None else now_ms)
        marker = TransactionMarker(
            current.producer_id, current.producer_epoch, self.coordinator_epoch,
            current.state is TransactionState.PREPARE_COMMIT,
        )  # fmt: skip
        return [WriteMarkers(self._number, marker, current.partitions, current.transaction_version)]

    def marker_written(self, number: int, partition: TopicPartition, now_ms: int) -> Effects:
        """Note that a marker is committed in a partition, or that the partition was deleted.

        Args:
            number: number of the transaction in `WriteMarkers`.
            partition: the partition.
            now_ms: wall time, milliseconds since 1970-01-01 UTC.
        """
        if number != self._number or partition not in self._unwritten:
            return []
        self._unwritten.discard(partition)
        return [] if self._unwritten else self._complete_when_free(now_ms)

    def _complete_when_free(self, now_ms: int) -> Effects:
        if self._is_refreshing:
            self._queued.append(partial(self._complete, now_ms))
            return []
        return self._complete(now_ms)

    def _complete(self, now_ms: int) -> Effects:
        current = self.metadata
        assert current is not None
        after = replace(
            current, state=_COMPLETE[current.state], partitions=frozenset(), updated_ms=now_ms, started_ms=-1
        )  # fmt: skip
        if current.next_producer_id != NO_PRODUCER_ID:
            after = replace(
                after, producer_id=current.next_producer_id, producer_epoch=0, next_producer_id=NO_PRODUCER_ID,
                previous_producer_id=current.producer_id,
            )  # fmt: skip
        return self._append(_Pending(after))


def _added(partitions: frozenset[TopicPartition], code: ErrorCode) -> AddPartitionsResult:
    return AddPartitionsResult(code, dict.fromkeys(partitions, code))


def _is_ended(current: TransactionMetadata, producer_id: int, producer_epoch: int) -> bool:
    """Return whether a transaction of this epoch has ended with the next epoch: then the client retries after a lost
    answer."""
    if not current.state.is_prepared and current.state not in _COMPLETE.values():
        return False
    if (producer_id, producer_epoch + 1) == (current.producer_id, current.producer_epoch):
        return True
    was_last = producer_id == current.previous_producer_id and producer_epoch >= EPOCH_EXHAUSTED
    return was_last and current.producer_epoch == 0
