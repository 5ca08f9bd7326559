"""Requests of transactions: each version that is announced, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC
from pyreplog.kafka.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeProducersTopicRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from pyreplog.kafka.wire.schema import ANNOUNCED, ApiKey
from pyreplog.partition.protocol.error_codes import ErrorCode
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient, produce
from tests.waiting import until

KEYS = (
    ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)  # fmt: skip
PASSING = (14, 15, 16, 19, 51)
"""Codes that a client answers by asking again."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBrokers]:
    path: Path = tmp_path_factory.mktemp("brokers")
    broker_settings = {"transaction_state_partitions": 1}
    with KafkaBrokers(path, broker_settings=broker_settings, rebalance_delay_ms=0, offsets_partitions=1) as cluster:
        cluster.start("1")
        cluster.create(partitions=2)
        yield cluster


class Client:
    """A producer with a transactional id, and a version of each request: the highest one up to `version`."""

    def __init__(self, brokers: KafkaBrokers, transactional_id: str, version: int = 99) -> None:
        self.raw = RawClient(brokers.servers["1"])
        self.transactional_id, self.version = transactional_id, version
        self.group = f"group of {transactional_id}"
        self.producer_id = self.epoch = -1
        self._sequence = 0

    def ask(self, key: ApiKey, message: Any) -> Any:
        return self.raw.ask(key, min(ANNOUNCED[key][1], self.version), message)

    def init(self) -> int:
        def attempt() -> Any:
            answer = self.ask(
                ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(self.transactional_id, 60_000)
            )  # fmt: skip
            return None if answer.error_code in PASSING else answer

        answer = until(attempt)
        if answer.error_code == 0:
            self.producer_id, self.epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0
        return int(answer.error_code)

    def add(self, *topics: AddPartitionsToTxnTopic) -> dict[tuple[str, int], int]:
        request = AddPartitionsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, topics)

        def attempt() -> dict[tuple[str, int], int] | None:
            answer = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, request)
            codes = {
                (topic.name, each.partition_index): each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            return None if {*codes.values()} & {*PASSING} else codes

        return until(attempt)

    def add_offsets(self) -> int:
        request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, self.group)
        return self.code_of(ApiKey.ADD_OFFSETS_TO_TXN, request)

    def code_of(self, key: ApiKey, request: Any) -> int:
        def attempt() -> tuple[int] | None:
            code = self.ask(key, request).error_code
            return None if code in PASSING else (code,)

        return until(attempt)[0]

    def produce(self, *, acks: int = -1, partition: int = 0) -> int:
        data = encode_batch(
            encode_records([b"value"], [None], [1], None), 1, base_timestamp=1, max_timestamp=1,
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self._sequence, transactional=True,
        )  # fmt: skip
        request = produce(data, acks=acks, partition=partition)._replace(transactional_id=self.transactional_id)

        def attempt() -> tuple[int] | None:
            code = self.ask(ApiKey.PRODUCE, request).responses[0].partition_responses[0].error_code
            return None if code in PASSING else (code,)

        (code,) = until(attempt)
        self._sequence += code == 0
        return code

    def commit_offset(self, offset: int, topic: str = "events") -> int:
        partition = TxnOffsetCommitRequestPartition(0, offset)
        request = TxnOffsetCommitRequest(
            self.transactional_id, self.group, self.producer_id, self.epoch,
            topics=(TxnOffsetCommitRequestTopic(topic, (partition,)),),
        )  # fmt: skip

        def attempt() -> tuple[int] | None:
            code = self.ask(ApiKey.TXN_OFFSET_COMMIT, request).topics[0].partitions[0].error_code
            return None if code in PASSING else (code,)

        return until(attempt)[0]

    def end(self, *, is_commit: bool) -> int:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, is_commit)
        return self.code_of(ApiKey.END_TXN, request)

    def offset(self, *, is_stable: bool = False) -> tuple[int, int]:
        """Offset and code that OffsetFetch gives."""
        request = OffsetFetchRequest(
            self.group, (OffsetFetchRequestTopic("events", (0,)),), require_stable=is_stable
        )  # fmt: skip
        answer = self.raw.ask(ApiKey.OFFSET_FETCH, 7, request)
        partition = answer.topics[0].partitions[0]
        return partition.committed_offset, partition.error_code


@pytest.fixture
def client(brokers: KafkaBrokers, request: pytest.FixtureRequest) -> Iterator[Client]:
    client = Client(brokers, request.node.name)
    with client.raw:
        find_coordinators(client)
        yield client


def find_coordinators(client: Client) -> None:
    """Makes the internal topics, as each client does first."""
    for kind, key in ((0, client.group), (1, client.transactional_id)):
        request = FindCoordinatorRequest(key=key, key_type=kind)
        until(lambda request=request: client.raw.ask(ApiKey.FIND_COORDINATOR, 1, request).error_code == 0)


EVENTS = AddPartitionsToTxnTopic("events", (0, 1))


@pytest.mark.parametrize("version", range(max(ANNOUNCED[key][1] for key in KEYS) + 1))
@pytest.mark.parametrize("is_commit", [True, False])
def test_each_version_of_a_transaction(brokers: KafkaBrokers, version: int, is_commit: bool) -> None:
    client = Client(brokers, f"version {version} {is_commit}", version)
    with client.raw:
        find_coordinators(client)
        assert client.init() == 0
        assert client.add(EVENTS) == {("events", 0): 0, ("events", 1): 0}
        if version >= 3:  # of Produce
            assert client.produce() == 0
        assert client.add_offsets() == 0
        assert client.commit_offset(5) == 0
        assert client.offset() == (-1, 0) and client.offset(is_stable=True) == (-1, 88)
        assert client.end(is_commit=is_commit) == 0
        wanted = (5, 0) if is_commit else (-1, 0)
        until(lambda: client.offset(is_stable=True) == wanted)
        assert client.end(is_commit=is_commit) == 0, "the answer was lost, for all that is known"
        assert client.end(is_commit=not is_commit) == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_a_producer_that_was_fenced(client: Client, brokers: KafkaBrokers, version: int) -> None:
    """Older versions have no code for it (KIP-588)."""
    old = Client(brokers, client.transactional_id, version)
    with old.raw:
        assert old.init() == 0 and client.init() == 0
        assert (client.producer_id, client.epoch) == (old.producer_id, old.epoch + 1)
        wanted = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert {*old.add(EVENTS).values()} == {wanted}
        assert old.add_offsets() == wanted and old.end(is_commit=True) == wanted
        assert old.commit_offset(3) == ErrorCode.INVALID_PRODUCER_EPOCH
        goes_on = InitProducerIdRequest(old.transactional_id, 60_000, old.producer_id, 99)
        if version >= 3:
            wanted = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
            assert old.ask(ApiKey.INIT_PRODUCER_ID, goes_on).error_code == wanted


def test_offsets_outside_of_the_transaction_are_refused(client: Client) -> None:
    """The partition of the group was not added: its marker would never come."""
    assert client.init() == 0
    assert client.commit_offset(5) == ErrorCode.TRANSACTION_ABORTABLE
    assert client.add(EVENTS) == {("events", 0): 0, ("events", 1): 0}
    assert client.commit_offset(5) == ErrorCode.TRANSACTION_ABORTABLE
    client.version = 3
    assert client.commit_offset(5) == ErrorCode.INVALID_TXN_STATE
    assert client.add_offsets() == 0
    assert client.commit_offset(5, "no-such-topic") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.commit_offset(5) == 0
    assert client.end(is_commit=True) == 0
    until(lambda: client.offset(is_stable=True) == (5, 0))


def test_records_outside_of_the_transaction_are_refused(client: Client) -> None:
    assert client.init() == 0
    assert client.produce() == ErrorCode.TRANSACTION_ABORTABLE
    assert {*client.add(AddPartitionsToTxnTopic("events", (1,))).values()} == {0}
    assert client.produce() == ErrorCode.TRANSACTION_ABORTABLE
    assert client.produce(partition=1) == 0
    assert client.end(is_commit=False) == 0


def test_partitions_are_added_all_or_none(client: Client) -> None:
    assert client.init() == 0
    other = AddPartitionsToTxnTopic("no-such-topic", (7,))
    codes = client.add(EVENTS, other, AddPartitionsToTxnTopic("events-2", (0,)))
    assert codes == {("events", 0): 55, ("events", 1): 55, ("no-such-topic", 7): 3, ("events-2", 0): 3}
    assert client.produce() == ErrorCode.TRANSACTION_ABORTABLE


def test_a_transaction_needs_all_acks(client: Client) -> None:
    assert client.init() == 0
    assert {*client.add(EVENTS).values()} == {0}
    assert client.produce(acks=1) == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.produce() == 0
    assert client.end(is_commit=True) == 0


def test_malformed_transaction_requests_are_refused(client: Client) -> None:
    for request, code in (
        (InitProducerIdRequest("", 60_000), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest("x" * 9_000, 60_000), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest("x", 0), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("x", 1 << 30), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("x", 60_000, 5, -1), ErrorCode.INVALID_REQUEST),
    ):
        assert client.ask(ApiKey.INIT_PRODUCER_ID, request).error_code == code
    for message in (
        AddOffsetsToTxnRequest("nobody", 5, 0, "g"), EndTxnRequest("nobody", 5, 0, True)
    ):  # fmt: skip
        key = ApiKey.END_TXN if isinstance(message, EndTxnRequest) else ApiKey.ADD_OFFSETS_TO_TXN
        assert client.code_of(key, message) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert client.ask(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest("nobody", 5, 0, "")).error_code == 24
    kind = FindCoordinatorRequest(coordinator_keys=("x",), key_type=2)
    (found,) = client.raw.ask(ApiKey.FIND_COORDINATOR, 4, kind).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST


def test_transactions_are_described_and_listed(client: Client) -> None:
    assert client.init() == 0

    def described() -> Any:
        request = DescribeTransactionsRequest((client.transactional_id, "nobody", ""))
        found, nobody, nameless = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, request).transaction_states
        assert (nobody.error_code, nobody.transactional_id) == (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "nobody")
        assert nameless.error_code == ErrorCode.INVALID_REQUEST
        assert (found.producer_id, found.producer_epoch) == (client.producer_id, client.epoch)
        return found

    def listed(*states: str, producer: int = -1) -> tuple[set[tuple[str, str]], tuple[str, ...]]:
        request = ListTransactionsRequest(states, (client.producer_id if producer < 0 else producer,))
        answer = client.ask(ApiKey.LIST_TRANSACTIONS, request)
        assert answer.error_code == 0
        names = {(each.transactional_id, each.transaction_state) for each in answer.transaction_states}
        return names, tuple(answer.unknown_state_filters)

    def producers(number: int = 0, topic: str = "events") -> Any:
        request = DescribeProducersRequest((DescribeProducersTopicRequest(topic, (number,)),))
        (partition,) = client.ask(ApiKey.DESCRIBE_PRODUCERS, request).topics[0].partitions
        known = {each.producer_id: each for each in partition.active_producers}
        return partition.error_code, known.get(client.producer_id)

    name = client.transactional_id
    assert described().transaction_state == "Empty" and producers() == (0, None)
    assert {*client.add(EVENTS).values()} == {0} and client.produce() == 0 and client.produce() == 0
    found = described()
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert [(each.topic, [*each.partitions]) for each in found.topics] == [("events", [0, 1])]
    assert found.transaction_start_time_ms > 0
    assert listed("Ongoing", "Waiting") == ({(name, "Ongoing")}, ("Waiting",))
    assert listed("Waiting") == (set(), ("Waiting",)) and listed("Empty") == (set(), ())
    assert listed() == ({(name, "Ongoing")}, ()) and listed(producer=1 << 40) == (set(), ())
    code, producer = producers()
    assert code == 0 and (producer.producer_epoch, producer.last_sequence) == (client.epoch, 1)
    assert producer.current_txn_start_offset >= 0 and producer.last_timestamp > 0
    assert client.end(is_commit=True) == 0
    until(lambda: described().transaction_state == "CompleteCommit")
    code, producer = producers()
    assert producer.current_txn_start_offset == -1 and producer.coordinator_epoch > 0
    assert producers(9)[0] == producers(0, "nowhere")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_idempotent_producers_need_no_coordinator(client: Client) -> None:
    ids = {
        client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(None, 0)).producer_id for _ in range(3)
    }  # fmt: skip
    assert len(ids) == 3 and min(ids) >= 0


def test_the_topic_of_groups_is_made_by_the_first_transaction(tmp_path: Path) -> None:
    """No member of the group has asked for it yet."""
    broker_settings = {"transaction_state_partitions": 1}
    with KafkaBrokers(tmp_path, broker_settings=broker_settings, rebalance_delay_ms=0, offsets_partitions=1) as cluster:
        cluster.start("1")
        client = Client(cluster, "first")
        with client.raw:
            assert client.init() == 0
            assert client.add_offsets() == 0
            assert cluster.leader(OFFSETS_TOPIC) == "1"


@pytest.mark.parametrize("is_commit", [True, False])
def test_pending_offsets_outlive_their_coordinators(tmp_path: Path, is_commit: bool) -> None:
    """Both read their logs again: the transaction is open, and its offsets are pending."""
    settings = {"transaction_state_partitions": 1}
    with KafkaBrokers(tmp_path, broker_settings=settings, rebalance_delay_ms=0, offsets_partitions=1) as cluster:
        cluster.start("1")
        cluster.create()
        client = Client(cluster, "outlives")
        with client.raw:
            find_coordinators(client)
            assert client.init() == 0 and client.add_offsets() == 0 and client.commit_offset(7) == 0
        cluster.stop("1")
        cluster.start("1")
        client.raw = RawClient(cluster.servers["1"])
        with client.raw:
            find_coordinators(client)
            until(lambda: client.offset(is_stable=True) == (-1, 88))
            assert client.end(is_commit=is_commit) == 0
            wanted = (7, 0) if is_commit else (-1, 0)
            until(lambda: client.offset(is_stable=True) == wanted)
