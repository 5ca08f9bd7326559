"""TransactionTransport: the requests of transactions from broker to broker."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pyreplog.errors import PeerError
from pyreplog.future import AppendFuture, set_exception
from pyreplog.partition.requests import PartitionCodes, VerifyTransactionRequest, WriteMarkersRequest


@runtime_checkable
class TransactionTransport(Protocol):
    """Sends the requests of transactions to other brokers. Any thread may use it; it does not block.

    After a failed future the outcome is unknown. The requests of one broker to another one take effect in the order in
    which they were made, or not at all: a marker without an answer must not arrive after the same marker was written
    again, or it would end the next transaction of its producer (transaction version 1).
    """

    def write_markers(self, broker: str, request: WriteMarkersRequest) -> AppendFuture[PartitionCodes]:
        """Request that a broker writes markers to partitions that it leads; see `ReplicaManager.write_markers`."""
        ...

    def verify_transaction(self, broker: str, request: VerifyTransactionRequest) -> AppendFuture[PartitionCodes]:
        """Ask the coordinator of a transactional id for a verification; see
        `TransactionCoordinator.verify_partitions`."""
        ...


class NoTransport:
    """A transport that reaches no other broker."""

    def write_markers(self, broker: str, request: WriteMarkersRequest) -> AppendFuture[PartitionCodes]:
        """Fail; see `TransactionTransport`."""
        return _unreachable(broker)

    def verify_transaction(self, broker: str, request: VerifyTransactionRequest) -> AppendFuture[PartitionCodes]:
        """Fail; see `TransactionTransport`."""
        return _unreachable(broker)


def _unreachable(broker: str) -> AppendFuture[PartitionCodes]:
    future = AppendFuture[PartitionCodes]()
    set_exception(future, PeerError(f"broker {broker}: requests of transactions do not reach other brokers"))
    return future
