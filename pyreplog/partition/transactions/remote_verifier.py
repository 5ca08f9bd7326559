"""RemoteVerifier: sends verifications to the coordinator of a transactional id, on any broker."""

from __future__ import annotations

from collections.abc import Collection

from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture, set_result
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import PartitionCodes, VerifyTransactionRequest
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_coordinator import TransactionCoordinator
from pyreplog.partition.transactions.transaction_machine import AddPartitionsResult
from pyreplog.partition.transactions.transaction_transport import TransactionTransport


class RemoteVerifier:
    """A `TransactionVerifier` for all transactional ids of the cluster. Any thread may use it; it does not block.

    Without an answer the result is COORDINATOR_NOT_AVAILABLE, after which the producer retries.

    Args:
        broker: name of this broker.
        coordinator: coordinator of this broker.
        transport: transport to the other brokers.
    """

    def __init__(self, broker: str, coordinator: TransactionCoordinator, transport: TransactionTransport) -> None:
        self._broker, self._coordinator, self._transport = broker, coordinator, transport

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition]
    ) -> AppendFuture[AddPartitionsResult]:  # fmt: skip
        """Ask the coordinator whether partitions belong to the open transaction of a producer."""
        code, leader = self._coordinator.find_coordinator(transactional_id)
        if code is ErrorCode.NONE and leader == self._broker:
            return self._coordinator.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)
        future = AppendFuture[AddPartitionsResult]()
        unknown = AddPartitionsResult(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        )

        def answered(done: AppendFuture[PartitionCodes]) -> None:
            is_known = done.exception() is None
            set_result(future, AddPartitionsResult(ErrorCode.NONE, done.result()) if is_known else unknown)

        if code is not ErrorCode.NONE:
            set_result(future, unknown)
            return future
        request = VerifyTransactionRequest(transactional_id, producer_id, producer_epoch, tuple(partitions))
        try:
            asked = self._transport.verify_transaction(leader, request)
        except ReplogError:  # this broker is closing, or the other one's address is malformed
            set_result(future, unknown)
        else:
            asked.add_done_callback(answered)
        return future
