"""Keys of stored values: other builds read them, so that a field whose name in the class changes keeps its key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import pyreplog
from pyreplog.autorecovery.config import AutoRecoveryConfig
from pyreplog.autorecovery.lost_entries import LostEntries
from pyreplog.autorecovery.rebalance_moves import RebalanceMoves
from pyreplog.autorecovery.replicas_check import CheckProgress
from pyreplog.autorecovery.status import AutoRecoveryStatus
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.autorecovery.worker_status import WorkerStatus
from pyreplog.bookie.bookie_state import BookieState
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata
from pyreplog.geo.clusters import RemoteCluster
from pyreplog.geo.policies import StoredPolicy, TopicControls
from pyreplog.geo.server_registration import GeoServer
from pyreplog.kafka.quotas.client_quotas import ClientQuota
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.metadata.values import MetadataValue, field_names
from pyreplog.partition.metadata.broker_registration import BrokerAvailability, BrokerMetadata
from pyreplog.partition.metadata.producer_ids import ProducerIdBlock
from pyreplog.partition.metadata.topic_metadata import TopicMetadata
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.topic.model.chain import LedgerChain
from pyreplog.topic.model.partitioned_metadata import PartitionedMetadata

STORED: dict[type[MetadataValue], str] = {
    AutoRecoveryConfig: "delay_ms bytes_per_s copies_at_once round_ms settle_ms rescan_ms check_ms writer_silence_ms "
    "hold_alarm_ms",
    AutoRecoveryStatus: "auditor at_us ledgers_left alarms failed open_ledgers progress",
    BookieState: "phase since_us reason",
    BrokerAvailability: "incarnation address is_stopping kafka_address",
    BrokerMetadata: "directory incarnation rack",
    CheckProgress: "began_us next_ledger checked differing",
    ClientQuota: "user client_id quotas",
    GeoServer: "address host pid",
    LedgerChain: "topic token epoch owner nonce created_us config properties start ledgers doomed deleted renewals",
    LedgerMetadata: "ledger ensemble_size write_quorum ack_quorum fragments proof durability state last_entry length "
    "messages created_us token custom",
    LostEntries: "ranges is_coarse",
    PartitionState: "replicas isr min_isr elr leader epoch target is_unclean original replaced",
    PartitionedMetadata: "partitions created_us token",
    ProducerIdBlock: "next_id",
    RebalanceMoves: "since_us moves failed",
    RemoteCluster: "uuid url secret_file tls_ca tls_cert tls_key",
    StoredPolicy: "settings",
    SubscriptionMetadata: "token created_us type durable properties owner snapshot cursor_ledger cursor_from moved_us",
    TimedReason: "since_us reason",
    TopicControls: "paused resync",
    TopicMetadata: "topic_id partitions replication_factor min_isr requires_sync unclean_election assignment created_us "
    "is_deleted settings",
    WorkerStatus: "since_us copied_ledgers copied_entries copied_bytes lost_entries failures bytes_per_s ledgers_left "
    "bytes_left one_copy_left",
}
"""The keys of each value. A key that is added here is written by this build; none is ever renamed."""

TOPIC = json.loads((Path(__file__).parents[1] / "golden" / "metadata-v2.json").read_text())["topic"]


@pytest.mark.parametrize("value_type", STORED, ids=lambda value_type: value_type.__name__)
def test_no_stored_key_is_renamed(value_type: type[MetadataValue]) -> None:
    assert field_names(value_type) == tuple(STORED[value_type].split())


def test_every_stored_value_is_listed() -> None:
    package = Path(pyreplog.__file__).parent
    sources = [path.read_text() for path in package.rglob("*.py")]
    names = {name for text in sources for name in re.findall(r"^class (\w+)\(.*\bMetadataValue\):", text, re.MULTILINE)}
    assert {value_type.__name__ for value_type in STORED} == names


@pytest.mark.parametrize("doomed", [[], [7], [7, 9]], ids=str)
def test_ledgers_pending_deletion_are_stored_as_doomed(doomed: list[int]) -> None:
    """The key that earlier builds read and write; the class has another name for it."""
    chain = LedgerChain.decode(json.dumps({**TOPIC, "doomed": doomed}).encode())
    assert list(chain.pending_deletion) == doomed
    stored = json.loads(chain.encode())
    assert stored["doomed"] == doomed and "pending_deletion" not in stored


def test_the_name_in_the_class_is_no_key() -> None:
    """A newer build may store something of that name: it is kept as unknown, and is no list of ledgers."""
    body = json.dumps({**TOPIC, "doomed": [7], "pending_deletion": "later"}).encode()
    chain = LedgerChain.decode(body)
    assert list(chain.pending_deletion) == [7]
    assert json.loads(chain.encode())["pending_deletion"] == "later"
