"""Each error code: a request that makes a listener answer with it, a test that does so elsewhere, or why none can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.kafka.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    CreateTopicsCreatableReplicaAssignment,
    CreateTopicsCreatableTopic,
    CreateTopicsCreatableTopicConfig,
    CreateTopicsRequest,
    DescribeAclsRequest,
    ElectLeadersRequest,
    ElectLeadersTopicPartitions,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    FindCoordinatorRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.record_batches.batches import build_batch
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient, fetch, produce

ROOT = Path(__file__).parents[2]
NOW_MS = 1_700_000_000_000
BATCH = build_batch([b"x"], timestamps_ms=[NOW_MS])
Ask = Callable[[RawClient], int]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    with KafkaBrokers(tmp_path_factory.mktemp("brokers")) as brokers:
        brokers.start("1", "2")
        brokers.create("events", replication_factor=2, assignment={0: ("1", "2")})
        settings = {"max.message.bytes": 200, "message.timestamp.after.max.ms": 1000}
        brokers.create("strict", assignment={0: ("1",)}, settings=settings)
        brokers.create("elsewhere", assignment={0: ("2",)})
        with RawClient(brokers.servers["1"]) as raw:
            yield raw


def of_producer(sequence: int, epoch: int = 0) -> bytes:
    records = encode_records([b"x"], [None], [NOW_MS], [[]])
    return encode_batch(
        records, 1, base_timestamp=NOW_MS, max_timestamp=NOW_MS, producer_id=7, producer_epoch=epoch,
        base_sequence=sequence,
    )  # fmt: skip


def produced(batch: bytes, **settings: Any) -> Ask:
    def ask(client: RawClient) -> int:
        response = client.ask(ApiKey.PRODUCE, 9, produce(batch, **settings))
        return int(response.responses[0].partition_responses[0].error_code)

    return ask


def after(*batches: bytes, then: bytes) -> Ask:
    def ask(client: RawClient) -> int:
        for batch in batches:
            assert produced(batch)(client) == 0
        return produced(then)(client)

    return ask


def fetched(request: FetchRequest, version: int = 12) -> Ask:
    def ask(client: RawClient) -> int:
        response = client.ask(ApiKey.FETCH, version, request)
        return int(response.error_code or response.responses[0].partitions[0].error_code)

    return ask


def listed(topic: str, epoch: int = -1) -> Ask:
    def ask(client: RawClient) -> int:
        request = ListOffsetsRequest(-1, 0, (ListOffsetsTopic(topic, (ListOffsetsPartition(0, epoch, -1),)),))
        return int(client.ask(ApiKey.LIST_OFFSETS, 7, request).topics[0].partitions[0].error_code)

    return ask


def created(name: str = "made", partitions: int = 1, replicas: int = 1, **settings: Any) -> Ask:
    def ask(client: RawClient) -> int:
        topic = CreateTopicsCreatableTopic(name, partitions, replicas, **settings)
        return int(client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,))).topics[0].error_code)

    return ask


def elected(kind: int) -> Ask:
    def ask(client: RawClient) -> int:
        request = ElectLeadersRequest(kind, (ElectLeadersTopicPartitions("events", (0,)),), 1000)
        results = client.ask(ApiKey.ELECT_LEADERS, 2, request).replica_election_results
        return int(results[0].partition_result[0].error_code)

    return ask


def added(client: RawClient) -> int:
    topics = (AddPartitionsToTxnTopic("events", (0,)), AddPartitionsToTxnTopic("none", (0,)))
    response = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, AddPartitionsToTxnRequest("t", 1, 0, topics))
    return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


def found(client: RawClient) -> int:
    return int(client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest("x", 9)).error_code)


def described_acls(client: RawClient) -> int:
    return int(client.ask(ApiKey.DESCRIBE_ACLS, 3, DescribeAclsRequest()).error_code)


BROKEN = BATCH[:-1] + bytes([BATCH[-1] ^ 1])
UNKNOWN_ID = FetchRequest(topics=(FetchTopic("", b"\1" * 16, (FetchPartition(0),)),))
ASSIGNMENT = (CreateTopicsCreatableReplicaAssignment(3, (1,)),)
ASKED: dict[str, Ask] = {
    "OFFSET_OUT_OF_RANGE": fetched(fetch(1 << 40)),
    "CORRUPT_MESSAGE": produced(BROKEN),
    "UNKNOWN_TOPIC_OR_PARTITION": listed("none"),
    "NOT_LEADER_OR_FOLLOWER": produced(BATCH, topic="elsewhere"),
    "MESSAGE_TOO_LARGE": produced(build_batch([b"x" * 300], timestamps_ms=[1]), topic="strict"),
    "INVALID_TOPIC_EXCEPTION": created("no name"),
    "INVALID_REQUIRED_ACKS": produced(BATCH, acks=3),
    "INVALID_TIMESTAMP": produced(build_batch([b"x"], timestamps_ms=[1 << 42]), topic="strict"),
    "TOPIC_ALREADY_EXISTS": created("events"),
    "INVALID_PARTITIONS": created(partitions=0),
    "INVALID_REPLICATION_FACTOR": created(replicas=3),
    "INVALID_REPLICA_ASSIGNMENT": created(partitions=-1, replicas=-1, assignments=ASSIGNMENT),
    "INVALID_CONFIG": created(configs=(CreateTopicsCreatableTopicConfig("none", "1"),)),
    "INVALID_REQUEST": found,
    "OUT_OF_ORDER_SEQUENCE_NUMBER": after(of_producer(0), then=of_producer(5)),
    "INVALID_PRODUCER_EPOCH": after(of_producer(0, 1), then=of_producer(1, 0)),
    "OPERATION_NOT_ATTEMPTED": added,
    "FENCED_LEADER_EPOCH": listed("events", 0),
    "UNKNOWN_LEADER_EPOCH": listed("events", 99),
    "UNSUPPORTED_COMPRESSION_TYPE": produced(BATCH[:22] + b"\7" + BATCH[23:]),
    "ELECTION_NOT_NEEDED": elected(0),
    "INVALID_RECORD": produced(b""),
    "UNKNOWN_TOPIC_ID": fetched(UNKNOWN_ID, 13),
    "SECURITY_DISABLED": described_acls,
}
"""Codes with a request that is answered with them."""

KAFKA, PARTITION = "tests/kafka/test_", "tests/partition/test_"
GROUP, COORDINATOR = f"{KAFKA}group_machine.py::test_", f"{KAFKA}group_coordinator.py::test_"
TRANSACTIONS, MANAGER = f"{KAFKA}kafka_transactions.py::test_", f"{PARTITION}replica_manager.py::test_"
CHANGES, MEMBERS = f"{PARTITION}partition_changes.py::test_", f"{KAFKA}consumer_group.py::test_"
ELSEWHERE = {
    "UNKNOWN_SERVER_ERROR": f"{MANAGER}each_partition_has_its_own_outcome",
    "LEADER_NOT_AVAILABLE": f"{KAFKA}loading_coordinator.py::test_topic_without_enough_brokers_answers_leader_not_available",
    "REQUEST_TIMED_OUT": f"{COORDINATOR}an_outcome_that_is_unknown_is_not_guessed",
    "OFFSET_METADATA_TOO_LARGE": f"{COORDINATOR}the_errors_that_a_coordinator_gives",
    "COORDINATOR_LOAD_IN_PROGRESS": (
        f"{KAFKA}loading_coordinator.py::test_clients_wait_for_a_coordinator_that_does_not_know_yet_that_it_leads"
    ),
    "COORDINATOR_NOT_AVAILABLE": (
        f"{KAFKA}loading_coordinator.py::test_a_coordinator_of_transactions_that_ends_is_not_waited_for"
    ),
    "NOT_COORDINATOR": (
        f"{KAFKA}loading_coordinator.py::test_clients_wait_for_a_coordinator_that_does_not_know_yet_that_it_leads"
    ),
    "RECORD_LIST_TOO_LARGE": f"{MANAGER}a_batch_that_no_segment_holds_is_refused",
    "NOT_ENOUGH_REPLICAS": f"{MANAGER}min_isr_is_checked_before_the_append",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": f"{MANAGER}min_isr_is_checked_after_the_append",
    "ILLEGAL_GENERATION": f"{COORDINATOR}the_errors_that_a_coordinator_gives",
    "INCONSISTENT_GROUP_PROTOCOL": f"{GROUP}sync_refusals_have_error_codes",
    "INVALID_GROUP_ID": f"{COORDINATOR}the_errors_that_a_coordinator_gives",
    "UNKNOWN_MEMBER_ID": f"{COORDINATOR}the_errors_that_a_coordinator_gives",
    "INVALID_SESSION_TIMEOUT": f"{COORDINATOR}the_errors_that_a_coordinator_gives",
    "REBALANCE_IN_PROGRESS": f"{COORDINATOR}a_join_ends_in_time",
    "INVALID_COMMIT_OFFSET_SIZE": f"{COORDINATOR}commit_larger_than_a_batch_is_refused",
    "UNSUPPORTED_SASL_MECHANISM": f"{KAFKA}security.py::test_requests_before_the_authentication_end_the_connection",
    "ILLEGAL_SASL_STATE": f"{KAFKA}security.py::test_requests_before_the_authentication_end_the_connection",
    "UNSUPPORTED_VERSION": f"{KAFKA}client_quotas.py::test_filters_that_mean_nothing_are_refused",
    "INVALID_TXN_STATE": f"{TRANSACTIONS}each_version_of_a_transaction",
    "INVALID_PRODUCER_ID_MAPPING": f"{TRANSACTIONS}malformed_transaction_requests_are_refused",
    "INVALID_TRANSACTION_TIMEOUT": f"{TRANSACTIONS}malformed_transaction_requests_are_refused",
    "CONCURRENT_TRANSACTIONS": f"{PARTITION}transaction_machine.py::test_ends_are_answered_the_same_when_they_are_repeated",
    "KAFKA_STORAGE_ERROR": f"{KAFKA}log_dirs.py::test_describe_log_dirs_reports_a_failed_disk",
    "SASL_AUTHENTICATION_FAILED": f"{KAFKA}security.py::test_requests_before_the_authentication_end_the_connection",
    "NON_EMPTY_GROUP": f"{COORDINATOR}groups_are_listed_and_deleted",
    "GROUP_ID_NOT_FOUND": f"{COORDINATOR}the_errors_that_a_coordinator_gives",
    "FETCH_SESSION_ID_NOT_FOUND": f"{KAFKA}kafka_server.py::test_a_listener_declines_fetch_sessions",
    "OFFSET_NOT_AVAILABLE": f"{MANAGER}latest_offset_is_available_once_the_leader_knows_it",
    "MEMBER_ID_REQUIRED": f"{GROUP}a_member_without_an_id_has_to_come_again",
    "PREFERRED_LEADER_NOT_AVAILABLE": f"{CHANGES}a_preferred_leader_that_cannot_lead",
    "GROUP_MAX_SIZE_REACHED": f"{GROUP}a_group_has_a_greatest_size",
    "FENCED_INSTANCE_ID": f"{GROUP}a_static_member_is_fenced_when_another_one_has_its_name",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": f"{CHANGES}an_unclean_election_of_a_partition_whose_brokers_are_dead",
    "GROUP_SUBSCRIBED_TO_TOPIC": f"{GROUP}delete_offsets_refuses_subscribed_topics",
    "NO_REASSIGNMENT_IN_PROGRESS": f"{KAFKA}reassignments.py::test_reassignment_that_cannot_end_is_listed_and_cancelled",
    "UNSTABLE_OFFSET_COMMIT": f"{COORDINATOR}offsets_of_a_transaction_count_when_it_is_committed",
    "THROTTLING_QUOTA_EXCEEDED": f"{MANAGER}append_that_would_block_an_event_loop_is_throttled",
    "PRODUCER_FENCED": f"{TRANSACTIONS}a_producer_that_was_fenced",
    "TRANSACTIONAL_ID_NOT_FOUND": f"{TRANSACTIONS}transactions_are_described_and_listed",
    "TRANSACTION_ABORTABLE": f"{TRANSACTIONS}offsets_outside_of_the_transaction_are_refused",
    "FENCED_MEMBER_EPOCH": f"{MEMBERS}members_with_other_epochs_are_fenced",
    "UNRELEASED_INSTANCE_ID": f"{MEMBERS}a_static_member_comes_back_to_what_it_had",
    "UNSUPPORTED_ASSIGNOR": f"{MEMBERS}members_choose_an_assignor",
    "STALE_MEMBER_EPOCH": f"{MEMBERS}members_commit_with_their_epochs",
    "INVALID_REGULAR_EXPRESSION": f"{MEMBERS}invalid_heartbeat_is_refused",
}
"""Codes that need more than one request, with a test that makes them arise: `error_code_recorder` looks."""

NEVER = {
    "NONE": "no error",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "of transactions on topics of ledgers, which a listener does not serve",
    "POLICY_VIOLATION": "there are no policies of topics",
    "DUPLICATE_SEQUENCE_NUMBER": "a batch that is in the log already is answered with its offset, as with Kafka",
    "TRANSACTION_COORDINATOR_FENCED": "of markers, which brokers send to each other in frames of their own",
    "STALE_BROKER_EPOCH": "of fetches of followers, likewise",
}
"""Codes that no Kafka client is told, and why."""


def test_each_code_is_in_one_table() -> None:
    tables = [{*ASKED}, {*ELSEWHERE}, {*NEVER}]
    assert {*ErrorCode.__members__} == set[str]().union(*tables)
    assert sum(map(len, tables)) == len(ErrorCode.__members__), "a code is in two tables"


def codes_met(tests: Collection[str], folder: Path) -> dict[str, set[str]]:
    """Run tests in a process of their own; return the codes that each of them has met, by its name."""
    codes, file = defaultdict[str, set[str]](set), folder / "codes"
    command = [
        sys.executable, "-m", "pytest", "-vv", "-n0", "-p", "no:cacheprovider", "-p", "tests.kafka.error_code_recorder",
        "--error-codes", str(file), "--basetemp", str(folder / "tests"), "-o", "enable_assertion_pass_hook=true",
        *sorted(tests),
    ]  # fmt: skip
    # Modules are compiled anew, with the hook.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for line in map(json.loads, file.read_text().splitlines()):
        codes[line["test"]].update(line["codes"])
    return codes


def test_tests_of_other_codes_meet_them(tmp_path: Path) -> None:
    codes = codes_met({*ELSEWHERE.values()}, tmp_path)
    assert {code: test for code, test in ELSEWHERE.items() if code not in codes[test]} == {}


def test_a_test_that_only_names_a_code_does_not_meet_it(tmp_path: Path) -> None:
    """As the one above would take it for a proof."""
    file = tmp_path / "test_sample.py"
    file.write_text(
        "from pyreplog.partition.protocol.error_codes import ErrorCode\n\n"
        "def test_sample():\n"
        "    code = ErrorCode.MESSAGE_TOO_LARGE\n"
        "    assert code != ErrorCode.INVALID_RECORD\n"
        "    assert {code: 1}[code] == 1\n"
        "    assert (ErrorCode(7), 5) == (ErrorCode.REQUEST_TIMED_OUT, 5)\n"
        "    assert ErrorCode(3) == 3\n"
    )
    (codes,) = codes_met({str(file)}, tmp_path).values()
    assert codes == {"REQUEST_TIMED_OUT", "UNKNOWN_TOPIC_OR_PARTITION"}


@pytest.mark.parametrize(
    "ask",
    [produced(BATCH, topic="elsewhere"), fetched(fetch(0, topic="elsewhere")), listed("elsewhere")],
    ids=["produce", "fetch", "list offsets"],
)
def test_a_partition_without_a_replica_here_has_its_leader_elsewhere(client: RawClient, ask: Ask) -> None:
    assert ask(client) == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("code", ASKED)
def test_a_request_is_answered_with_the_code(client: RawClient, code: str) -> None:
    assert ErrorCode(ASKED[code](client)).name == code
