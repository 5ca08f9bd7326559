"""AppendGuard: lets a transactional produce append only to the partitions of its transaction (KIP-890)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from threading import Lock
from typing import Protocol

from pyreplog._native.kafka.record_batch import peek_header
from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture, set_result
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.requests import Messages, PartitionProduceResponse, ProduceResponses, Records
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_machine import AddPartitionsResult

_REFUSED = {
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
"""The error for the producer, by the coordinator's. Other errors are temporary: their answer is one after which
producers of all versions retry."""


class TransactionVerifier(Protocol):
    """Verifies partitions of transactions; a `TransactionCoordinator` does so for its own ids. Does not block."""

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition]
    ) -> AppendFuture[AddPartitionsResult]:  # fmt: skip
        """Return whether partitions belong to the open transaction of a producer."""
        ...


class AppendGuard:
    """Appends batches of transactions. Any thread may use it; it does not block.

    The coordinator is asked only about the first batch of a transaction in a partition; afterwards the log shows that
    it is open. A marker that is appended meanwhile invalidates the verification, and the batch is refused.

    Args:
        replicas: the partitions of this broker.
        verifier: sends the verifications to the coordinators.
    """

    def __init__(self, replicas: ReplicaManager, verifier: TransactionVerifier) -> None:
        self._replicas, self._verifier = replicas, verifier

    def append_records(
        self, transactional_id: str, acks: int, records: Mapping[TopicPartition, Records], *, timeout_ms: int = 30_000,
        supports_abortable: bool = False,
    ) -> AppendFuture[ProduceResponses]:  # fmt: skip
        """Append the batches of one produce with a transactional id.

        Args:
            transactional_id: transactional id of the producer.
            acks: see `ReplicaManager.append_records`.
            records: one record batch for each partition.
            timeout_ms: how long acks=-1 waits for replicas, milliseconds.
            supports_abortable: whether the producer understands TRANSACTION_ABORTABLE; others get INVALID_TXN_STATE.
        """
        tokens: dict[TopicPartition, int] = {}
        producers: set[tuple[int, int]] = set()
        for name, batch in records.items():
            head = None if isinstance(batch, Messages) else peek_header(batch)
            replica = self._replicas.partition(name)
            if head is not None and head.transactional and head.producer_id >= 0 and replica is not None:
                producers.add((head.producer_id, head.producer_epoch))
                token = replica.begin_verification(head.producer_id, head.base_sequence)
                if token is not None:
                    tokens[name] = token
        if len(producers) > 1:
            future = AppendFuture[ProduceResponses]()
            code = ErrorCode.INVALID_REQUEST
            responses = {name: PartitionProduceResponse(code, message="expected one producer") for name in records}
            set_result(future, responses)
            return future
        if not tokens:
            return self._replicas.append_records(acks, records, timeout_ms=timeout_ms)
        ((producer_id, epoch),) = producers
        produce = _Produce(
            self._replicas, acks, timeout_ms, {name: records[name] for name in tokens}, tokens, supports_abortable
        )
        known = {name: batch for name, batch in records.items() if name not in tokens}
        if known:
            produce.add(self._replicas.append_records(acks, known, timeout_ms=timeout_ms))
        verified = self._verifier.verify_partitions(transactional_id, producer_id, epoch, [*tokens])
        verified.add_done_callback(produce.verified)
        return produce.future


class _Produce:
    """A produce with batches that wait for the coordinator, and others that wait for their replicas.

    Args:
        replicas: the partitions of this broker.
        acks: acks of the produce.
        timeout_ms: time-out of the produce.
        records: the batches that wait for the coordinator.
        tokens: tokens of the verifications.
        supports_abortable: see `AppendGuard.append_records`.
    """

    def __init__(
        self, replicas: ReplicaManager, acks: int, timeout_ms: int, records: Mapping[TopicPartition, Records],
        tokens: Mapping[TopicPartition, int], supports_abortable: bool,
    ) -> None:  # fmt: skip
        self.future = AppendFuture[ProduceResponses]()
        self._replicas, self._acks, self._timeout_ms = replicas, acks, timeout_ms
        self._records, self._tokens, self._supports_abortable = records, tokens, supports_abortable
        self._lock = Lock()
        self._responses: ProduceResponses = {}
        self._missing = 1  # the answer of the coordinator

    def add(self, appended: AppendFuture[ProduceResponses]) -> None:
        """Wait for an append as well."""
        with self._lock:
            self._missing += 1
        appended.add_done_callback(lambda done: self._done(done.result()))

    def _done(self, responses: ProduceResponses) -> None:
        with self._lock:
            self._responses.update(responses)
            self._missing -= 1
            is_last = not self._missing
        if is_last:
            set_result(self.future, self._responses)

    def verified(self, answer: AppendFuture[AddPartitionsResult]) -> None:
        """Append the batches that the coordinator confirms; refuse the others."""
        if isinstance(answer.exception(), ReplogError):
            codes = dict.fromkeys(self._records, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            result = answer.result()
            codes = {name: result.partitions.get(name, result.code) for name in self._records}
        confirmed = {name: batch for name, batch in self._records.items() if codes[name] is ErrorCode.NONE}
        if confirmed:
            tokens = {name: self._tokens[name] for name in confirmed}
            self.add(
                self._replicas.append_records(self._acks, confirmed, timeout_ms=self._timeout_ms, verifications=tokens)
            )
        self._done({
            name: PartitionProduceResponse(self._refusal(code), message=f"the coordinator said {code.name}")
            for name, code in codes.items() if name not in confirmed
        })  # fmt: skip

    def _refusal(self, code: ErrorCode) -> ErrorCode:
        if code is ErrorCode.TRANSACTION_ABORTABLE and self._supports_abortable:
            return code
        return _REFUSED.get(code, ErrorCode.NOT_ENOUGH_REPLICAS)
