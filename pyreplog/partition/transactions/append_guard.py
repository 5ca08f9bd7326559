"""AppendGuard: a produce of a transaction is appended only to partitions that the transaction has (KIP-890)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from pyreplog._native.kafka.record_batch import peek_header
from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture, set_result
from pyreplog.partition.delayed_produce import ProduceResponses
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.requests import Messages, PartitionProduceResponse, Records
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_machine import AddPartitionsResult

_REFUSED = {
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
"""What a producer is told. All else passes with time: then the answer is one that producers of all versions repeat."""


class TransactionVerifier(Protocol):
    """Asks coordinators; a `TransactionCoordinator` is one, for the ids that it coordinates. Does not block."""

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition]
    ) -> AppendFuture[AddPartitionsResult]:  # fmt: skip
        """Tell whether partitions belong to the open transaction of a producer."""
        ...


class AppendGuard:
    """Appends batches of transactions. Any thread may use it; it does not block.

    The coordinator is asked only about the first batch of a transaction in a partition: the log knows that it is open
    then. A marker that comes while the coordinator is asked ends the verification, and the batch is refused.

    Args:
        replicas: the partitions of this broker.
        verifier: asks the coordinators.
    """

    def __init__(self, replicas: ReplicaManager, verifier: TransactionVerifier) -> None:
        self._replicas, self._verifier = replicas, verifier

    def append_records(
        self, transactional_id: str, acks: int, records: Mapping[TopicPartition, Records], *, timeout_ms: int = 30_000
    ) -> AppendFuture[ProduceResponses]:  # fmt: skip
        """Append the batches of one produce with a transactional id.

        Args:
            transactional_id: of the producer.
            acks: see `ReplicaManager.append_records`.
            records: one record batch for each partition.
            timeout_ms: how long acks=-1 waits, milliseconds.
        """
        future = AppendFuture[ProduceResponses]()
        tokens: dict[TopicPartition, int] = {}
        producers: set[tuple[int, int]] = set()
        for name, batch in records.items():
            head = None if isinstance(batch, Messages) else peek_header(batch)
            replica = self._replicas.partition(name)
            if head is not None and head.transactional and head.producer_id >= 0 and replica is not None:
                producers.add((head.producer_id, head.producer_epoch))
                tokens[name] = replica.begin_verification(head.producer_id)
        if len(producers) > 1:
            code = ErrorCode.INVALID_REQUEST
            responses = {name: PartitionProduceResponse(code, message="expected one producer") for name in records}
            set_result(future, responses)
            return future
        first = self._replicas.append_records(acks, records, timeout_ms=timeout_ms)
        first.add_done_callback(
            lambda done: self._appended(done.result(), future, transactional_id, producers, acks, records, tokens,
                                        timeout_ms)
        )  # fmt: skip
        return future

    def _appended(
        self, responses: ProduceResponses, future: AppendFuture[ProduceResponses], transactional_id: str,
        producers: set[tuple[int, int]], acks: int, records: Mapping[TopicPartition, Records],
        tokens: dict[TopicPartition, int], timeout_ms: int,
    ) -> None:  # fmt: skip
        """Of the log's refusals those remain of which the coordinator knows nothing either."""
        unknown = [
            name for name in tokens
            if responses[name].code is ErrorCode.INVALID_TXN_STATE and responses[name].base_offset < 0
        ]  # fmt: skip
        if not unknown:
            set_result(future, responses)
            return
        ((producer_id, epoch),) = producers

        def verified(done: AppendFuture[AddPartitionsResult]) -> None:
            error = done.exception()
            if isinstance(error, ReplogError):
                codes = dict.fromkeys(unknown, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                result = done.result()
                codes = {name: result.partitions.get(name, result.code) for name in unknown}
            confirmed = {name: records[name] for name in unknown if codes[name] is ErrorCode.NONE}
            for name in unknown:
                code = _REFUSED.get(codes[name], ErrorCode.NOT_ENOUGH_REPLICAS)
                responses[name] = PartitionProduceResponse(code, message=f"the coordinator said {codes[name].name}")
            if not confirmed:
                set_result(future, responses)
                return
            again = self._replicas.append_records(
                acks, confirmed, timeout_ms=timeout_ms, verifications={name: tokens[name] for name in confirmed}
            )
            again.add_done_callback(lambda appended: set_result(future, {**responses, **appended.result()}))

        self._verifier.verify_partitions(transactional_id, producer_id, epoch, unknown).add_done_callback(verified)
