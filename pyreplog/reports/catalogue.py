"""All reports, by name. The module of a report is imported when the report is first used."""

from __future__ import annotations

import dataclasses
import importlib
import json
from typing import TYPE_CHECKING, Any

from pyreplog.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from pyreplog.reports.report import Report

REPORTS: dict[str, tuple[str, str]] = {
    "rate_by_minute": ("records.rates", "RateByMinute"),
    "origins": ("records.origins", "OriginsByMinute"),
    "size_histogram": ("records.sizes", "SizeHistogram"),
    "key_skew": ("records.keys", "KeySkew"),
    "partition_skew": ("records.partitions", "PartitionSkew"),
    "duplicates": ("records.duplicates", "Duplicates"),
    "sequence_gaps": ("records.gaps", "SequenceGaps"),
    "log_gaps": ("records.gaps", "LogGaps"),
    "order_violations": ("records.order", "OrderViolations"),
    "backlog_by_subscription": ("subscriptions.backlog_report", "BacklogBySubscription"),
    "backlog_age_histogram": ("subscriptions.ages", "BacklogAgeHistogram"),
    "drain_estimate": ("subscriptions.drain", "DrainEstimate"),
    "retention_forecast": ("subscriptions.retention_report", "RetentionForecast"),
    "dead_subscriptions": ("subscriptions.retention_report", "DeadSubscriptions"),
    "replica_holes": ("copies.holes", "ReplicaHoles"),
    "under_replicated": ("copies.under_replicated", "UnderReplicated"),
    "crc_audit": ("copies.audit", "CrcAudit"),
    "replica_divergence": ("copies.divergence", "ReplicaDivergence"),
    "cluster_health": ("copies.recovery", "ClusterHealthReport"),
    "recovery_state": ("copies.recovery", "RecoveryState"),
    "recovery_orders": ("copies.recovery", "RecoveryOrders"),
    "recovery_progress": ("copies.recovery", "RecoveryProgress"),
    "bookie_disks": ("copies.recovery", "BookieDisks"),
    "geo_replication": ("subscriptions.geo_report", "GeoReplicationReport"),
    "geo_readiness": ("subscriptions.geo_report", "GeoReadinessReport"),
    "partition_state": ("partitions.state_report", "PartitionStates"),
    "replica_lag": ("partitions.state_report", "ReplicaLag"),
    "leader_skew": ("partitions.state_report", "LeaderSkew"),
    "group_lag": ("partitions.group_report", "GroupLag"),
    "replication_lag": ("copies.replication_lag", "ReplicationLag"),
}
"""Reports by name: (module of this package, class)."""


def report_class(name: str) -> type[Report]:
    """Return the class of a report. Raises ConfigError for an unknown name, and MissingExtraError without pyarrow."""
    if name not in REPORTS:
        raise ConfigError(f"unknown report {name!r}; there are {', '.join(sorted(REPORTS))}")
    module, class_name = REPORTS[name]
    require_pyarrow()
    report: type[Report] = getattr(importlib.import_module(f"pyreplog.reports.{module}"), class_name)
    return report


def report_of(name: str, **parameters: Any) -> Report:
    """Return a report with parameters.

    Raises the errors of `report_class`, and ConfigError for an unknown parameter.
    """
    report = report_class(name)
    known: list[str] = [field.name for field in dataclasses.fields(report)] if dataclasses.is_dataclass(report) else []
    unknown = sorted(parameters.keys() - set(known))
    if unknown:
        raise ConfigError(
            f"unknown parameter {unknown[0]!r} of report {name}; there are {', '.join(known) if known else 'none'}"
        )
    return report(**parameters)


def report_of_view(name: str, parameters: str) -> Report:
    """Return the report that the options `view` and `viewOptions` of the Spark source name, as `report_of` does."""
    try:
        fields = json.loads(parameters)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ConfigError(f"viewOptions: expected a JSON object, found {parameters!r}")
    return report_of(name, **fields)


def require_pyarrow() -> None:
    """Raise MissingExtraError if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"reports need pyarrow: pip install 'pyreplog[spark]' ({error})") from error
