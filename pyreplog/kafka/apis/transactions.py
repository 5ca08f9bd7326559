"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit: transactions (KIP-98).

Only version 1 of transactions is supported: a producer keeps its epoch from one transaction to the next. Clients that
support version 2 use version 1 as well, because ApiVersions announces no features.
"""

from __future__ import annotations

from typing import Any

from pyreplog.future import transform
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.find_coordinator import create_internal_topic
from pyreplog.kafka.apis.leaders import exists
from pyreplog.kafka.apis.offsets import offsets_to_commit
from pyreplog.kafka.groups import group_requests
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC
from pyreplog.kafka.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_machine import (
    AddPartitionsResult,
    EndTransactionResult,
    InitProducerIdResult,
)

_FENCED_FROM_INIT, _FENCED_FROM = 4, 2
"""First versions in which clients understand PRODUCER_FENCED (KIP-588)."""
_ABORTABLE_FROM = 4
"""First version of TxnOffsetCommit in which clients understand TRANSACTION_ABORTABLE (KIP-890)."""
_UNVERIFIED = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.TRANSACTION_ABORTABLE,
}
"""Codes for TxnOffsetCommit, by the code of the transaction coordinator's refusal. Other codes lead to a retry."""


def _code(code: ErrorCode, version: int, fenced_from: int) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def handle_init_producer_id(api: ApiContext, request: RequestContext, message: InitProducerIdRequest) -> Outcome:
    """Return the id and epoch of a producer. A new producer with a transactional id fences the earlier ones."""
    initialised = api.broker.transactions.init_producer_id(
        message.transactional_id, message.transaction_timeout_ms, message.producer_id, message.producer_epoch
    )

    def answer(result: InitProducerIdResult) -> InitProducerIdResponse:
        code = _code(result.code, request.version, _FENCED_FROM_INIT)
        return InitProducerIdResponse(0, code, result.producer_id, result.producer_epoch)

    return transform(initialised, answer)


def handle_add_partitions_to_txn(
    api: ApiContext, request: RequestContext, message: AddPartitionsToTxnRequest
) -> Outcome:  # fmt: skip
    """Add partitions to a transaction, all or none.

    The response is sent when the transaction coordinator has stored them.
    """
    wanted = [
        TopicPartition(topic.name, number) for topic in message.v3_and_below_topics for number in topic.partitions
    ]
    unknown = [name for name in wanted if not exists(api, name)]

    def answer(codes: dict[TopicPartition, int]) -> AddPartitionsToTxnResponse:
        topics = []
        for topic in message.v3_and_below_topics:
            results = [
                AddPartitionsToTxnPartitionResult(number, codes[TopicPartition(topic.name, number)])
                for number in topic.partitions
            ]
            topics.append(AddPartitionsToTxnTopicResult(topic.name, results))
        return AddPartitionsToTxnResponse(0, topics)

    on_ledgers = [name for name in wanted if api.known_ledger_topic(name.topic) is not None]  # have no transactions
    if unknown or on_ledgers or not wanted:
        codes: dict[TopicPartition, int] = dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED)
        codes |= dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return answer(codes | dict.fromkeys(on_ledgers, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT))

    def added(result: AddPartitionsResult) -> AddPartitionsToTxnResponse:
        return answer({name: _code(code, request.version, _FENCED_FROM) for name, code in result.partitions.items()})

    return transform(
        api.broker.transactions.add_partitions(
            message.v3_and_below_transactional_id, message.v3_and_below_producer_id,
            message.v3_and_below_producer_epoch, wanted,
        ),
        added,
    )  # fmt: skip


def handle_add_offsets_to_txn(api: ApiContext, request: RequestContext, message: AddOffsetsToTxnRequest) -> Outcome:
    """Add the partition of `__consumer_offsets` of a group to a transaction."""
    if not message.group_id:
        return AddOffsetsToTxnResponse(0, ErrorCode.INVALID_GROUP_ID)
    offsets = TopicPartition(OFFSETS_TOPIC, api.groups.partition_of(message.group_id))

    def add(_: object) -> Any:
        if not exists(api, offsets):
            return AddPartitionsResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, {})
        return api.broker.transactions.add_partitions(
            message.transactional_id, message.producer_id, message.producer_epoch, [offsets]
        )

    def answer(result: AddPartitionsResult) -> AddOffsetsToTxnResponse:
        code = result.partitions.get(offsets, result.code)
        return AddOffsetsToTxnResponse(0, _code(code, request.version, _FENCED_FROM))

    return transform(transform(create_internal_topic(api, OFFSETS_TOPIC), add), answer)


def handle_end_txn(api: ApiContext, request: RequestContext, message: EndTxnRequest) -> Outcome:
    """Commit or abort a transaction. The response is sent when the decision is stored; markers are written later."""
    ended = api.broker.transactions.end_transaction(
        message.transactional_id, message.producer_id, message.producer_epoch, is_commit=message.committed
    )

    def answer(result: EndTransactionResult) -> EndTxnResponse:
        return EndTxnResponse(0, _code(result.code, request.version, _FENCED_FROM))

    return transform(ended, answer)


def handle_txn_offset_commit(api: ApiContext, request: RequestContext, message: TxnOffsetCommitRequest) -> Outcome:
    """Commit offsets as part of a transaction: they apply when it commits.

    The response is sent when the offsets are committed to `__consumer_offsets`. The transaction coordinator is asked
    first: the group's partition must belong to the transaction (KIP-890).
    """
    offsets, unknown = offsets_to_commit(api, message)

    def answer(codes: dict[TopicPartition, int]) -> TxnOffsetCommitResponse:
        codes = {**codes, **unknown}
        topics = []
        for topic in message.topics:
            numbers = [each.partition_index for each in topic.partitions]
            results = [TxnOffsetCommitResponsePartition(n, codes[TopicPartition(topic.name, n)]) for n in numbers]
            topics.append(TxnOffsetCommitResponseTopic(topic.name, results))
        return TxnOffsetCommitResponse(topics=topics)

    if not offsets:
        return answer({})
    group_id, producer_id, producer_epoch = message.group_id, message.producer_id, message.producer_epoch
    commit = group_requests.OffsetCommitRequest(
        message.member_id, message.generation_id, offsets, message.group_instance_id
    )
    partition = TopicPartition(OFFSETS_TOPIC, api.groups.partition_of(group_id))
    token = api.groups.begin_verification(group_id, producer_id)

    def verified(result: AddPartitionsResult) -> Any:
        code = result.partitions.get(partition, result.code)
        if code is not ErrorCode.NONE:
            return answer(dict.fromkeys(offsets, _code_unverified(code, request.version)))
        committed = api.groups.commit_transactional_offsets(group_id, commit, producer_id, producer_epoch, token)
        return transform(committed, lambda codes: answer({**codes}))

    asked = api.broker.verifier.verify_partitions(message.transactional_id, producer_id, producer_epoch, [partition])
    return transform(asked, verified)


def _code_unverified(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    return _UNVERIFIED.get(code, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
