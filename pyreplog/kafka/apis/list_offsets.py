"""ListOffsets and OffsetForLeaderEpoch: offsets by time, and the bounds of logs and leader epochs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyreplog._native.log.record import Record
from pyreplog.errors import InvalidRecordBatchError, ReplogError
from pyreplog.future import AppendFuture, all_done, set_result, transform
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.leaders import code_without_replica, exists
from pyreplog.kafka.ledgers.requests import LedgerOffset
from pyreplog.kafka.wire.messages import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochEpochEndOffset,
    OffsetForLeaderEpochOffsetForLeaderTopicResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from pyreplog.partition.partition import EVENT_TIME_MAX_US, Partition
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import FetchIsolation
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.record_batches.batches import read_batch

if TYPE_CHECKING:
    from pyreplog.kafka.ledgers.topics import LedgerTopics

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_WITHOUT_SEARCH = (LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED)
_READ_COMMITTED = 1
_EPOCHS_FROM = 4
_NATIVE_KIND = 1  # kind of log records with one message

_Response = ListOffsetsPartitionResponse


def handle_list_offsets(api: ApiContext, request: RequestContext, message: ListOffsetsRequest) -> Outcome:
    """Return offsets by time. A search by time reads the disk, so it runs in the pool."""
    on_ledgers = {
        TopicPartition(topic.name, wanted.partition_index): _find_on_ledgers(topics, topic.name, wanted)
        for topic in message.topics
        if (topics := api.topics_of(topic.name)) is not None
        for wanted in topic.partitions
    }
    answer = partial(_respond, api, request.version, message, on_ledgers)
    of_brokers = [topic for topic in message.topics if api.topics_of(topic.name) is None]
    is_quick = all(wanted.timestamp in _WITHOUT_SEARCH for topic in of_brokers for wanted in topic.partitions)
    if not on_ledgers:
        return answer() if is_quick else api.run(answer)
    return transform(all_done(list(on_ledgers.values())), lambda _: answer() if is_quick else api.run(answer))


def _find_on_ledgers(
    topics: LedgerTopics, topic: str, wanted: ListOffsetsPartition
) -> AppendFuture[ListOffsetsPartitionResponse]:  # fmt: skip
    """Search a topic on ledgers, whose messages have no leader epochs."""
    name, number, timestamp = TopicPartition(topic, wanted.partition_index), wanted.partition_index, wanted.timestamp
    if timestamp == LATEST:
        found = topics.end_offset(name)
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        found = topics.start_offset(name)
    elif timestamp >= 0:
        found = topics.offset_at(name, timestamp)
    elif timestamp == MAX_TIMESTAMP:
        found = topics.offset_of_max_time(name)
    else:
        code = ErrorCode.NONE if timestamp == LATEST_TIERED else ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        found = AppendFuture()
        set_result(found, LedgerOffset(code))
    return transform(found, lambda place: _Response(number, place.code, place.time_ms, place.offset, -1))


def _respond(
    api: ApiContext, version: int, message: ListOffsetsRequest,
    on_ledgers: Mapping[TopicPartition, AppendFuture[ListOffsetsPartitionResponse]],
) -> ListOffsetsResponse:  # fmt: skip
    is_committed = message.isolation_level == _READ_COMMITTED
    isolation = FetchIsolation.TXN_COMMITTED if is_committed else FetchIsolation.HIGH_WATERMARK
    topics = []
    for topic in message.topics:
        found = [
            _find_offset(api, topic.name, wanted, isolation) if searched is None else searched.result()
            for wanted in topic.partitions
            for searched in [on_ledgers.get(TopicPartition(topic.name, wanted.partition_index))]
        ]
        if version < _EPOCHS_FROM:
            found = [each._replace(leader_epoch=-1) for each in found]
        topics.append(ListOffsetsTopicResponse(topic.name, found))
    return ListOffsetsResponse(topics=topics)


def _find_offset(api: ApiContext, topic: str, wanted: ListOffsetsPartition, isolation: FetchIsolation) -> _Response:
    number, timestamp = wanted.partition_index, wanted.timestamp
    replica = api.replicas.partition(TopicPartition(topic, number))
    if replica is None:
        return _Response(number, code_without_replica(api, TopicPartition(topic, number)))
    if (code := replica.check_leader(wanted.current_leader_epoch)) is not ErrorCode.NONE:
        return _Response(number, code)
    epoch = replica.leader_epoch
    if epoch is None:  # the replica has just stepped down
        return _Response(number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if timestamp == LATEST_TIERED:
        return _Response(number, ErrorCode.NONE, leader_epoch=epoch)
    code, latest = replica.latest_offset(isolation)
    if code is not ErrorCode.NONE:
        return _Response(number, code)
    if timestamp == LATEST:
        return _Response(number, ErrorCode.NONE, -1, latest, epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _Response(number, ErrorCode.NONE, -1, replica.log_start, epoch)
    try:
        place = (
            _latest_time(replica, latest)
            if timestamp == MAX_TIMESTAMP
            else _first_from_time(replica, timestamp, latest)
        )
    except ReplogError:
        return _Response(number, ErrorCode.KAFKA_STORAGE_ERROR)
    if place is None:
        return _Response(number, ErrorCode.NONE, leader_epoch=epoch)
    return _Response(number, ErrorCode.NONE, place[1], place[0], epoch)


def _first_from_time(replica: Partition, timestamp_ms: int, end: int) -> tuple[int, int] | None:
    """Return offset and time (ms) of the first message that is not older than a time; None: there is none."""
    if timestamp_ms * 1000 > EVENT_TIME_MAX_US:
        return None
    for record in replica.records_from_time(max(timestamp_ms, 0) * 1000):
        for offset, time_ms in _times_of(record):
            if offset >= end:
                return None
            if time_ms >= timestamp_ms:
                return offset, time_ms
    return None


def _times_of(record: Record) -> list[tuple[int, int]]:
    """Return offset and time (ms) of each message in a record of the log."""
    if record.kind == _NATIVE_KIND:
        return [(record.entry, (record.event_time or 0) // 1000)]
    first = record.entry - record.entry_count + 1
    try:
        header, columns = read_batch(record.value)
    except InvalidRecordBatchError:  # brokers do not validate batches: use the time in the header
        return [(first, (record.event_time or 0) // 1000)]
    if header.log_append_time:
        return [(first, header.max_timestamp)]
    return [(first + number, time_ms) for number, time_ms in enumerate(columns.timestamp.tolist())]


def _latest_time(replica: Partition, end: int) -> tuple[int, int] | None:
    """Return offset and time (ms) of the first message with the maximum time (KIP-734).

    This is a binary search over times, since the index finds the first record from a time on quickly.
    """
    low, best = 0, _first_from_time(replica, 0, end)
    high = EVENT_TIME_MAX_US // 1000
    while best is not None and low < high:
        low = max(low, best[1])
        middle = (low + high + 1) // 2
        later = _first_from_time(replica, middle, end)
        if later is None:
            high = middle - 1
        else:
            low, best = middle, later
    return None if best is None else _first_from_time(replica, best[1], end)


def handle_offset_for_leader_epoch(
    api: ApiContext, _: RequestContext, message: OffsetForLeaderEpochRequest
) -> Outcome:  # fmt: skip
    """Return the ends of leader epochs, with which consumers detect that a log was truncated (KIP-320)."""
    topics = []
    for topic in message.topics:
        ends = []
        for wanted in topic.partitions:
            number = wanted.partition
            name = TopicPartition(topic.topic, number)
            if api.topics_of(topic.topic) is not None and exists(api, name):  # its messages have no leader epochs
                ends.append(OffsetForLeaderEpochEpochEndOffset(ErrorCode.NONE, number))
                continue
            replica = api.replicas.partition(name)
            code = (
                code_without_replica(api, name)
                if replica is None
                else replica.check_leader(wanted.current_leader_epoch)
            )
            if replica is None or code is not ErrorCode.NONE:
                ends.append(OffsetForLeaderEpochEpochEndOffset(code, number))
            else:
                ends.append(OffsetForLeaderEpochEpochEndOffset(code, number, *replica.epoch_end(wanted.leader_epoch)))
        topics.append(OffsetForLeaderEpochOffsetForLeaderTopicResult(topic.topic, ends))
    return OffsetForLeaderEpochResponse(topics=topics)
