"""LocalTransport: requests of brokers and of clients to brokers of the same process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyreplog.errors import NotConnectedError
from pyreplog.future import AppendFuture, set_exception, set_result, transform
from pyreplog.partition.client_requests import ClientRequests, ConsumeResponses, Descriptions, Offsets
from pyreplog.partition.client_wire import (
    ConsumeRequest,
    DescribePartitionsRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.requests import (
    CleanedSegments,
    CleanedSegmentsRequest,
    FetchResponses,
    PartitionCodes,
    ProduceResponses,
    ProducerSnapshotPiece,
    ProducerSnapshotRequest,
    ReplicaFetchRequest,
    SegmentPiece,
    SegmentReadRequest,
    VerifyTransactionRequest,
    WriteMarkersRequest,
)

T = TypeVar("T")
VerifyTransaction = Callable[[VerifyTransactionRequest], AppendFuture[PartitionCodes]]


class LocalTransport:
    """Requests to the brokers of one process, which register here. Any thread may use it."""

    def __init__(self) -> None:
        self._managers: dict[str, ReplicaManager] = {}  # replaced as a whole
        self._clients: dict[str, ClientRequests] = {}  # replaced as a whole
        self._verifiers: dict[str, VerifyTransaction] = {}  # replaced as a whole

    def register(self, broker: str, manager: ReplicaManager, verify: VerifyTransaction | None = None) -> None:
        """Register a broker, so that others reach it.

        Args:
            broker: name of the broker.
            manager: its partitions.
            verify: sends a verification to its transaction coordinator (`TransactionCoordinator.verify`); None: it has
                none.
        """
        self._managers = {**self._managers, broker: manager}
        self._clients = {**self._clients, broker: ClientRequests(manager)}
        if verify is not None:
            self._verifiers = {**self._verifiers, broker: verify}

    def unregister(self, broker: str) -> None:
        """Remove a broker. Later requests to it fail."""
        self._managers = {name: manager for name, manager in self._managers.items() if name != broker}
        self._clients = {name: requests for name, requests in self._clients.items() if name != broker}
        self._verifiers = {name: verify for name, verify in self._verifiers.items() if name != broker}

    def fetch(self, broker: str, request: ReplicaFetchRequest) -> AppendFuture[FetchResponses]:
        """Fetch from a broker; see `BrokerTransport`."""
        manager = self._managers.get(broker)
        if manager is not None:
            return manager.fetch_for_replicas(request)
        return _refused(AppendFuture[FetchResponses](), broker)

    def produce(self, broker: str, request: ProduceRequest, timeout_s: float) -> AppendFuture[ProduceResponses]:
        """Append at a broker; see `ClientTransport`."""
        requests = self._requests(broker)
        return _refused(AppendFuture[ProduceResponses](), broker) if requests is None else requests.produce(request)

    def consume(self, broker: str, request: ConsumeRequest, timeout_s: float) -> AppendFuture[ConsumeResponses]:
        """Fetch from a broker; see `ClientTransport`."""
        requests = self._requests(broker)
        if requests is None:
            return _refused(AppendFuture[ConsumeResponses](), broker)
        return transform(requests.consume(request), _copied)

    def list_offsets(self, broker: str, request: ListOffsetsRequest, timeout_s: float) -> AppendFuture[Offsets]:
        """Ask a broker for offsets; see `ClientTransport`."""
        requests, future = self._requests(broker), AppendFuture[Offsets]()
        if requests is None:
            return _refused(future, broker)
        set_result(future, requests.list_offsets(request))
        return future

    def describe_partitions(
        self, broker: str, request: DescribePartitionsRequest, timeout_s: float
    ) -> AppendFuture[Descriptions]:
        """Ask a broker about partitions; see `ClientTransport`."""
        requests, future = self._requests(broker), AppendFuture[Descriptions]()
        if requests is None:
            return _refused(future, broker)
        set_result(future, requests.describe_partitions(request))
        return future

    # ---- transactions ---------------------------------------------------------------------------------------

    def write_markers(self, broker: str, request: WriteMarkersRequest) -> AppendFuture[PartitionCodes]:
        """Ask a broker to write markers; see `TransactionTransport`."""
        manager = self._managers.get(broker)
        return _refused(AppendFuture[PartitionCodes](), broker) if manager is None else manager.write_markers(request)

    def verify_transaction(self, broker: str, request: VerifyTransactionRequest) -> AppendFuture[PartitionCodes]:
        """Ask the coordinator of a transactional id; see `TransactionTransport`."""
        verify = self._verifiers.get(broker)
        return _refused(AppendFuture[PartitionCodes](), broker) if verify is None else verify(request)

    # ---- compacted segments ---------------------------------------------------------------------------------

    def cleaned_segments(self, broker: str, request: CleanedSegmentsRequest) -> AppendFuture[CleanedSegments]:
        """Ask a broker which segments it has compacted; see `SegmentTransport`."""
        manager, future = self._managers.get(broker), AppendFuture[CleanedSegments]()
        if manager is None:
            return _refused(future, broker)
        set_result(future, manager.cleaned_segments(request))
        return future

    def read_segment(self, broker: str, request: SegmentReadRequest) -> AppendFuture[SegmentPiece]:
        """Read bytes of a compacted segment of a broker; see `SegmentTransport`."""
        manager, future = self._managers.get(broker), AppendFuture[SegmentPiece]()
        if manager is None:
            return _refused(future, broker)
        set_result(future, manager.read_segment(request))
        return future

    # ---- producer snapshots ---------------------------------------------------------------------------------

    def producer_snapshot(self, broker: str, request: ProducerSnapshotRequest) -> AppendFuture[ProducerSnapshotPiece]:
        """Read bytes of a producer snapshot of a broker; see `ProducerSnapshotTransport`."""
        manager, future = self._managers.get(broker), AppendFuture[ProducerSnapshotPiece]()
        if manager is None:
            return _refused(future, broker)
        set_result(future, manager.producer_snapshot(request))
        return future

    def _requests(self, broker: str) -> ClientRequests | None:
        return self._clients.get(broker)


def _copied(responses: ConsumeResponses) -> ConsumeResponses:
    """Copy the batches: views would pin segments of the broker's logs while a consumer keeps its records."""
    return {
        name: response._replace(batches=[b"".join(response.batches)] if response.batches else ())
        for name, response in responses.items()
    }


def _refused(future: AppendFuture[T], broker: str) -> AppendFuture[T]:
    set_exception(future, NotConnectedError(f"broker {broker} is not in this process"))
    return future
