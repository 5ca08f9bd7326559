"""The bounds of integer settings: what is refused names them, and both ends are allowed."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import pyreplog
from pyreplog.autorecovery.config import AutoRecoveryConfig
from pyreplog.autorecovery.durability_model import PlanInputs
from pyreplog.bookie.config import BookieConfig
from pyreplog.config import LogConfig, Settings
from pyreplog.cursors.cursor_ledgers import CursorLogConfig
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.errors import ConfigError
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.ha.config import NodeConfig
from pyreplog.ha.group_client import GroupClientConfig
from pyreplog.ha.protocol.master_machine import GroupConfig
from pyreplog.ha.relay.config import ApplierConfig
from pyreplog.kafka.config import KafkaConfig
from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.net.limits import Limits
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.metadata.topic_settings import TopicSettings
from pyreplog.topic.model.config import TopicConfig

HOUR_MS, DAY_MS, YEARS_MS, INT_MAX = 3_600_000, 86_400_000, 1 << 42, (1 << 31) - 1
BOUNDS: dict[type[Settings], dict[str, tuple[int, int]]] = {
    AutoRecoveryConfig: {
        "delay_ms": (0, 1 << 40), "bytes_per_s": (1, 1 << 50), "copies_at_once": (1, 256), "round_ms": (10, HOUR_MS),
        "settle_ms": (0, HOUR_MS), "rescan_ms": (1_000, 1 << 40), "check_ms": (0, 1 << 40),
        "writer_silence_ms": (1_000, 1 << 40), "hold_alarm_ms": (0, 1 << 40),
    },
    PlanInputs: {
        "ensemble": (1, 64), "write_quorum": (1, 16), "ack_quorum": (1, 16), "bookies": (1, 100_000),
        "racks": (1, 100_000), "disks": (1, 100), "ledgers": (1, 10_000_000_000),
        "disk_failures_per_year": (0, 10_000), "node_failures_per_year": (0, 10_000),
        "rack_failures_per_year": (0, 10_000), "outages_per_year": (0, 100_000), "reads_per_year": (0, 100_000),
    },
    BookieConfig: {
        "segment_bytes": (1 << 16, 1 << 30), "spare_segments": (1, 64), "read_only_below_bytes": (0, 1 << 62),
        "writable_from_bytes": (0, 1 << 62), "reserve_bytes": (0, 1 << 62), "space_check_bytes": (1, 1 << 62),
        "long_polls_max": (1, 1 << 24), "ledger_states_max": (1, 1 << 24), "compact_below_percent": (0, 100),
        "collect_interval_ms": (1, 1 << 40), "surplus_interval_ms": (0, 1 << 40), "collect_step_bytes": (1, 1 << 30),
        "scrub_interval_ms": (0, 1 << 40), "scrub_bytes_per_s": (1, 1 << 40),
    },
    BrokerConfig: {
        "lease_ms": (100, DAY_MS), "segment_bytes": (1 << 16, 1 << 30), "lag_ms": (100, DAY_MS),
        "fetch_wait_ms": (0, 60_000), "fetch_bytes_max": (1, 1 << 30), "backoff_ms": (1, 60_000),
        "catch_up_bytes_per_s": (1, 1 << 50),
        "sync_ms": (1, 60_000), "checkpoint_ms": (1, HOUR_MS), "balance_ms": (1, 1 << 40), "stop_ms": (0, HOUR_MS),
        "retention_check_ms": (1, 1 << 40), "cleaner_check_ms": (1, 1 << 40), "cleaner_map_bytes": (1024, 1 << 36),
        "replace_after_ms": (0, 1 << 40),
        "producer_expiration_ms": (1, 1 << 40),
        "producer_expiration_check_ms": (1, 1 << 40),
        "readmit_ms": (10, 86_400_000),
        "stray_grace_ms": (0, 1 << 40),
        "transaction_state_partitions": (1, 65_536),
        "transaction_state_replication_factor": (1, 32),
        "transaction_state_min_isr": (1, 32),
        "transaction_max_timeout_ms": (1, (1 << 31) - 1),
        "transactional_id_expiration_ms": (1, 1 << 40),
    },
    LogConfig: {
        "segment_bytes": (1 << 16, 1 << 30), "spare_segments": (1, 64), "sync_interval_ms": (1, HOUR_MS),
        "retention_bytes": (0, 1 << 62), "retention_ms": (0, 1 << 52), "cursor_hold_bytes": (0, 1 << 62),
    },
    CursorLogConfig: {
        "flush_ms": (0, HOUR_MS), "roll_entries": (1, 1 << 40), "roll_bytes": (1, 1 << 40), "roll_ms": (1, YEARS_MS),
        "retry_ms": (1, HOUR_MS), "retry_max_ms": (200, HOUR_MS), "cache_bytes": (0, 1 << 40),
        "cache_ms": (0, HOUR_MS), "sweep_ms": (1, YEARS_MS),
    },
    SubscriptionConfig: {
        "ack_timeout_ms": (1, YEARS_MS), "nack_min_ms": (0, YEARS_MS), "nack_max_ms": (1_000, YEARS_MS),
        "max_redeliveries": (0, 1 << 20), "max_unacked": (1, 1 << 40), "max_unacked_consumer": (1, 1 << 40),
    },
    ReplicationPolicy: {
        "ttl_ms": (1, YEARS_MS), "rate_bytes": (1, 1 << 40), "window_bytes": (1 << 16, 1 << 30),
        "backlog_bytes": (1, 1 << 62),
    },
    NodeConfig: {
        "port": (0, 65_535), "transfer_bytes": (4_096, 4_194_292), "throttle_bytes_per_s": (1, 1 << 50),
        "ack_timeout_ms": (1, 1 << 40), "election_timeout_ms": (1, 1 << 40),
    },
    GroupClientConfig: {
        "timeout_ms": (1, 1 << 40), "window_bytes": (1, 1 << 40), "window_entries": (1, 1 << 40),
        "batch_bytes": (1, 4_194_260), "batch_entries": (1, 1 << 16), "read_bytes": (1, 4_194_260),
    },
    GroupConfig: {
        "min_in_sync": (0, 255), "in_sync_bytes": (0, 1 << 62), "in_sync_ms": (0, 1 << 62),
        "fallback_after_ms": (0, 1 << 40), "retention_hold_bytes": (0, 1 << 62), "retention_hold_ms": (0, 1 << 62),
    },
    ApplierConfig: {
        "batch_entries": (1, 1 << 32), "batch_bytes": (1, 1 << 32), "workers": (1, 256), "delay_ms": (0, YEARS_MS),
        "space_limit_bytes": (1, 1 << 62),
    },
    KafkaConfig: {
        "max_request_bytes": (1024, (1 << 31) - 1), "max_request_items": (1, 1 << 24), "connections": (1, 1 << 20),
        "idle_ms": (1, DAY_MS), "request_ms": (1, DAY_MS), "stall_ms": (1, DAY_MS), "queued_bytes": (1, 1 << 40),
        "incomplete_request_bytes": (1 << 16, 1 << 40),
        "inflight_requests": (1, 1 << 20), "fetch_bytes": (1, 1 << 30), "fetch_wait_ms": (0, DAY_MS),
        "partitions": (1, 65_536), "replication_factor": (1, 64), "min_isr": (1, 64),
        "offsets_partitions": (1, 10_000), "offsets_replication_factor": (1, 64), "rebalance_delay_ms": (0, DAY_MS),
        "consumer_session_timeout_ms": (2, INT_MAX), "consumer_heartbeat_interval_ms": (1, 44_999),
        "consumer_max_size": (1, INT_MAX), "admin_threads": (1, 64),
    },
    ConsumerGroupConfig: {
        "offsets_partitions": (1, 10_000), "min_session_timeout_ms": (1, INT_MAX),
        "max_session_timeout_ms": (6_000, INT_MAX), "initial_rebalance_delay_ms": (0, DAY_MS),
        "new_member_join_timeout_ms": (1, INT_MAX), "max_size": (1, INT_MAX),
        "consumer_session_timeout_ms": (2, INT_MAX), "consumer_heartbeat_interval_ms": (1, 44_999),
        "consumer_max_size": (1, INT_MAX),
        "offset_metadata_max_bytes": (0, 32_767), "offsets_retention_ms": (1, YEARS_MS),
        "retention_check_ms": (1, YEARS_MS), "append_timeout_ms": (1, INT_MAX), "load_bytes": (1, 1 << 30),
        "rewrite_bytes": (1, 1 << 40),
    },
    Limits: {
        "max_body_bytes": (1, 2_147_483_647), "connections": (1, 1 << 20), "pending_connections": (1, 1 << 20),
        "pending_per_address": (1, 1 << 20), "queued_bytes": (1, 1 << 40), "connection_inflight_bytes": (1, 1 << 40),
        "inflight_bytes": (1, 1 << 50), "heartbeat_ms": (1, DAY_MS), "silence_ms": (1, DAY_MS),
        "stall_ms": (1, DAY_MS), "handshake_ms": (1, DAY_MS),
    },
    TopicConfig: {
        "ensemble": (1, 64), "write_quorum": (1, 3), "ack_quorum": (1, 3), "roll_entries": (1, 1 << 40),
        "roll_bytes": (1, 1 << 50), "roll_ms": (1, YEARS_MS), "retention_bytes": (0, 1 << 62),
        "retention_ms": (0, YEARS_MS), "ttl_ms": (0, YEARS_MS), "quota_bytes": (1, 1 << 62),
        "quota_ms": (0, YEARS_MS), "subscription_expiry_ms": (0, YEARS_MS), "linger_ms": (0, 60_000),
        "batch_messages": (1, 1 << 20), "batch_bytes": (1, 1 << 24),
    },
}  # fmt: skip
ELSEWHERE = {"ensemble", "write_quorum", "ack_quorum"}
"""Settings that a ledger checks."""
BY_KAFKAS_NAMES = {TopicSettings}
"""Their bounds are under Kafka's names, of which tests/partition/test_topic_settings.py looks at each."""
CASES = [pytest.param(kind, name, id=f"{kind.__name__}-{name}") for kind, bounds in BOUNDS.items() for name in bounds]


def refusal(kind: type[Settings], name: str, value: int) -> str:
    """Why a value is refused by itself; "": it is not."""
    settings: dict[str, Any] = {"name": "a"} if kind is NodeConfig else {}
    try:
        kind.of({**settings, name: value})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_setting_is_refused_outside_its_bounds(kind: type[Settings], name: str) -> None:
    low, high = BOUNDS[kind][name]
    for value in (low - 1, high + 1):
        assert refusal(kind, name, value) == f"{name}: expected {low} to {high}, found {value}"
    for value in (low, high):  # it may contradict another setting
        assert not refusal(kind, name, value).startswith(f"{name}: expected {low} to")


def all_kinds(kind: type[Settings]) -> Iterator[type[Settings]]:
    for below in kind.__subclasses__():
        yield below
        yield from all_kinds(below)


def test_each_integer_setting_is_looked_at() -> None:
    for module in pkgutil.walk_packages(pyreplog.__path__, "pyreplog."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for kind in all_kinds(Settings):
        if kind.__module__.startswith("pyreplog.") and kind not in BY_KAFKAS_NAMES:
            integers = {field.name for field in dataclasses.fields(kind) if str(field.type) in ("int", "int | None")}
            assert integers <= BOUNDS.get(kind, {}).keys() | ELSEWHERE, kind
