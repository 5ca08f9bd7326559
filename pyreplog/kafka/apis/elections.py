"""ElectLeaders: elects preferred leaders, or unclean ones, which may lack records (KIP-460)."""

from __future__ import annotations

from pyreplog.errors import ReplogError
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.error_codes import error_code_of
from pyreplog.kafka.wire.messages import (
    ElectLeadersPartitionResult,
    ElectLeadersReplicaElectionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from pyreplog.partition.metadata.partition_changes import ElectionType, elect_leaders
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition, by_topic

_TYPES = {0: ElectionType.PREFERRED, 1: ElectionType.UNCLEAN}
_CODES_FROM = 1


def handle_elect_leaders(api: ApiContext, request: RequestContext, message: ElectLeadersRequest) -> Outcome:
    """Elect the leaders of some partitions, or of all."""

    def elect() -> ElectLeadersResponse:
        kind = _TYPES.get(message.election_type)
        chosen = None if message.topic_partitions is None else [
            TopicPartition(topic.topic, number) for topic in message.topic_partitions for number in topic.partitions
        ]  # fmt: skip
        code, results = ErrorCode.NONE, {}
        try:
            if kind is None:
                code = ErrorCode.INVALID_REQUEST
            else:
                results = elect_leaders(api.store, kind, chosen)
        except ReplogError as error:
            code = error_code_of(error)
        topics = []
        for topic, items in by_topic(results):
            partitions = [
                ElectLeadersPartitionResult(number, result.code, result.message or None) for number, result in items
            ]
            topics.append(ElectLeadersReplicaElectionResult(topic, partitions))
        return ElectLeadersResponse(
            error_code=code if request.version >= _CODES_FROM else 0, replica_election_results=topics
        )

    return api.run(elect)
