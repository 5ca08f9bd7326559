"""ClientRequests: carries out the requests of clients to a broker, over TCP or within the process."""

from __future__ import annotations

import logging
from typing import Protocol

from pyreplog._native.kafka.record_set import batches_of_frames
from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture, transform
from pyreplog.partition.client_wire import (
    ConsumeRequest,
    ConsumeResponse,
    DescribePartitionsRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.requests import (
    FetchPartitionData,
    FetchResponses,
    PartitionDescription,
    PartitionOffsets,
    ProduceResponses,
)
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.record_batches.batches import build_batch

logger = logging.getLogger(__name__)

_WAIT_MS_MAX = 60_000

ConsumeResponses = dict[TopicPartition, ConsumeResponse]
Offsets = dict[TopicPartition, PartitionOffsets]
Descriptions = dict[TopicPartition, PartitionDescription]


class ClientTransport(Protocol):
    """Sends requests of clients to brokers. A future fails with a PeerError if there is no answer."""

    def produce(self, broker: str, request: ProduceRequest, timeout_s: float) -> AppendFuture[ProduceResponses]:
        """Append record batches at a broker."""
        ...

    def consume(self, broker: str, request: ConsumeRequest, timeout_s: float) -> AppendFuture[ConsumeResponses]:
        """Fetch records from a broker."""
        ...

    def list_offsets(self, broker: str, request: ListOffsetsRequest, timeout_s: float) -> AppendFuture[Offsets]:
        """Ask a broker for offsets."""
        ...

    def describe_partitions(
        self, broker: str, request: DescribePartitionsRequest, timeout_s: float
    ) -> AppendFuture[Descriptions]:
        """Ask a broker for offsets, and for the progress of followers."""
        ...


class ClientRequests:
    """Requests of clients to one broker. Any thread may use it; calls block only for the disks of logs.

    Args:
        replicas: the partitions of the broker.
    """

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def produce(self, request: ProduceRequest) -> AppendFuture[ProduceResponses]:
        """Append record batches; return a future of the outcome of each partition."""
        return self._replicas.append_records(
            request.acks, request.records, timeout_ms=min(request.timeout_ms, _WAIT_MS_MAX), durable=request.durable
        )

    def consume(self, request: ConsumeRequest, max_bytes: int | None = None) -> AppendFuture[ConsumeResponses]:
        """Fetch record batches; return a future that waits for `min_bytes`.

        Args:
            request: the request.
            max_bytes: maximal size of the answer; None: that of the request.
        """
        params = request.params._replace(max_wait_ms=min(request.params.max_wait_ms, _WAIT_MS_MAX))
        if max_bytes is not None:
            params = params._replace(max_bytes=min(params.max_bytes, max_bytes))
        return transform(self._replicas.fetch_messages(params, request.fetches), _responses)

    def list_offsets(self, request: ListOffsetsRequest) -> Offsets:
        """Return the offsets of partitions that this broker leads."""
        offsets: Offsets = {}
        for name, time_us in request.times_us.items():
            partition = self._replicas.partition(name)
            if partition is None:
                offsets[name] = PartitionOffsets(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                offsets[name] = partition.offsets(time_us)
        return offsets

    def describe_partitions(self, request: DescribePartitionsRequest) -> Descriptions:
        """Return the offsets of partitions that this broker leads, and the progress of their followers."""
        descriptions: Descriptions = {}
        for name, query in request.queries.items():
            partition = self._replicas.partition(name)
            if partition is None:
                descriptions[name] = PartitionDescription(PartitionOffsets(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                descriptions[name] = partition.describe(query)
        return descriptions


def _responses(fetched: FetchResponses) -> ConsumeResponses:
    return {name: _response(name, data) for name, data in fetched.items()}


def _response(name: TopicPartition, data: FetchPartitionData) -> ConsumeResponse:
    records = data.records
    if data.code is not ErrorCode.NONE or records is None:
        return ConsumeResponse(data.code, data.high_watermark, data.last_stable, data.log_start, message=data.message)
    try:
        batches = batches_of_frames(records.frames, records.position.entry, _native_batch)
    except ReplogError as error:
        logger.error("%s: records of the log cannot be served: %s", name, error)
        return ConsumeResponse(ErrorCode.KAFKA_STORAGE_ERROR, message=str(error))
    return ConsumeResponse(
        data.code, data.high_watermark, data.last_stable, data.log_start, records.end.entry, batches, data.aborted
    )


def _native_batch(offset: int, values: list[bytes], keys: list[bytes | None], times_us: list[int]) -> bytes:
    """Return native messages as a record batch."""
    return build_batch(values, keys=keys, timestamps_ms=[time_us // 1000 for time_us in times_us], base_offset=offset)
