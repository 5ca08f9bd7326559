"""DescribeTransactions, ListTransactions, DescribeProducers: open transactions and their producers (KIP-664)."""

from __future__ import annotations

from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.leaders import code_without_replica
from pyreplog.kafka.wire.messages import (
    DescribeProducersPartitionResponse,
    DescribeProducersProducerState,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsTopicData,
    DescribeTransactionsTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsTransactionState,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition, by_topic
from pyreplog.partition.transactions.transaction_metadata import TransactionState

_NAMES = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
_STATES = {name: state for state, name in _NAMES.items()}


def handle_describe_transactions(
    api: ApiContext, _: RequestContext, message: DescribeTransactionsRequest
) -> Outcome:  # fmt: skip
    """Describe the transactional ids that this broker coordinates."""
    return DescribeTransactionsResponse(0, [_described(api, name) for name in message.transactional_ids])


def _described(api: ApiContext, transactional_id: str) -> DescribeTransactionsTransactionState:
    if not transactional_id:
        return DescribeTransactionsTransactionState(ErrorCode.INVALID_REQUEST)
    code, metadata = api.broker.transactions.describe(transactional_id)
    if metadata is None:
        return DescribeTransactionsTransactionState(code, transactional_id)
    topics = [
        DescribeTransactionsTopicData(topic, [number for number, _ in items])
        for topic, items in by_topic(dict.fromkeys(metadata.partitions))
    ]
    return DescribeTransactionsTransactionState(
        code, transactional_id, _NAMES[metadata.state], metadata.timeout_ms, metadata.started_ms, metadata.producer_id,
        metadata.producer_epoch, topics,
    )  # fmt: skip


def handle_list_transactions(api: ApiContext, _: RequestContext, message: ListTransactionsRequest) -> Outcome:
    """List the transactional ids that this broker coordinates."""
    unknown = [name for name in message.state_filters if name not in _STATES]
    states = [_STATES[name] for name in message.state_filters if name in _STATES]
    if unknown and not states:
        return ListTransactionsResponse(unknown_state_filters=unknown)
    code, listed = api.broker.transactions.list_transactions(states, message.producer_id_filters)
    if code is not ErrorCode.NONE:
        return ListTransactionsResponse(error_code=code)
    transactions = [
        ListTransactionsTransactionState(name, metadata.producer_id, _NAMES[metadata.state])
        for name, metadata in listed
    ]
    return ListTransactionsResponse(0, ErrorCode.NONE, unknown, transactions)


def handle_describe_producers(api: ApiContext, _: RequestContext, message: DescribeProducersRequest) -> Outcome:
    """Return the active producers of partitions that this broker leads, with the starts of their open transactions."""
    topics = []
    for topic in message.topics:
        partitions = [_producers(api, TopicPartition(topic.name, number)) for number in topic.partition_indexes]
        topics.append(DescribeProducersTopicResponse(topic.name, partitions))
    return DescribeProducersResponse(0, topics)


def _producers(api: ApiContext, name: TopicPartition) -> DescribeProducersPartitionResponse:
    replica = api.replicas.partition(name)
    if replica is None:
        return DescribeProducersPartitionResponse(name.partition, code_without_replica(api, name))
    code, producers = replica.active_producers()
    states = [DescribeProducersProducerState(*producer) for producer in producers]
    return DescribeProducersPartitionResponse(name.partition, code, None, states)
