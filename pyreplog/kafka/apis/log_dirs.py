"""DescribeLogDirs: the log directories of this broker (KIP-113, KIP-827)."""

from __future__ import annotations

from functools import partial

from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.wire.messages import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.store.log_directories import LogDirectory
from pyreplog.partition.topic_partition import TopicPartition, by_topic


def handle_describe_log_dirs(api: ApiContext, request: RequestContext, message: DescribeLogDirsRequest) -> Outcome:
    """Describe log directories. This reads directories, so it runs in the pool."""
    return api.run(partial(_describe, api, message))


def _describe(api: ApiContext, message: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    wanted = None
    if message.topics is not None:
        wanted = {TopicPartition(topic.topic, number) for topic in message.topics for number in topic.partitions}
    directories = api.broker.describe_directories(wanted)
    return DescribeLogDirsResponse(results=[_result(directory) for directory in directories])


def _result(directory: LogDirectory) -> DescribeLogDirsResult:
    topics = [
        DescribeLogDirsTopic(
            topic, [DescribeLogDirsPartition(number, replica.size, replica.offset_lag) for number, replica in replicas]
        )
        for topic, replicas in by_topic({replica.partition: replica for replica in directory.replicas})
    ]
    code = ErrorCode.KAFKA_STORAGE_ERROR if directory.error else ErrorCode.NONE
    path = str(directory.path.absolute())
    return DescribeLogDirsResult(code, path, topics, directory.total_bytes, directory.usable_bytes)
