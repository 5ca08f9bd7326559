"""All reports, by name. Each is imported when it is asked for."""

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
    "size_histogram": ("records.sizes", "SizeHistogram"),
    "key_skew": ("records.keys", "KeySkew"),
    "partition_skew": ("records.partitions", "PartitionSkew"),
    "duplicates": ("records.duplicates", "Duplicates"),
    "sequence_gaps": ("records.gaps", "SequenceGaps"),
    "log_gaps": ("records.gaps", "LogGaps"),
    "order_violations": ("records.order", "OrderViolations"),
    "backlog_by_subscription": ("subscriptions.backlog", "BacklogBySubscription"),
    "backlog_age_histogram": ("subscriptions.ages", "BacklogAgeHistogram"),
    "drain_estimate": ("subscriptions.drain", "DrainEstimate"),
    "retention_forecast": ("subscriptions.retention", "RetentionForecast"),
    "dead_subscriptions": ("subscriptions.retention", "DeadSubscriptions"),
    "replica_holes": ("copies.holes", "ReplicaHoles"),
    "under_replicated": ("copies.underreplicated", "UnderReplicated"),
    "crc_audit": ("copies.audit", "CrcAudit"),
    "replica_divergence": ("copies.divergence", "ReplicaDivergence"),
    "replication_lag": ("copies.replicationlag", "ReplicationLag"),
}
"""Name: (module of this package, class)."""


def report_class(name: str) -> type[Report]:
    """The class of a report. Errors: ConfigError, there is none of that name; MissingExtraError, without pyarrow."""
    if name not in REPORTS:
        raise ConfigError(f"unknown report {name!r}; there are {', '.join(sorted(REPORTS))}")
    module, found = REPORTS[name]
    require_pyarrow()
    made: type[Report] = getattr(importlib.import_module(f"pyreplog.reports.{module}"), found)
    return made


def report_of(name: str, **parameters: Any) -> Report:
    """A report with these parameters. Errors: as of `report_class`; ConfigError, it has no such parameter."""
    found = report_class(name)
    known: list[str] = [field.name for field in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else []
    unknown = sorted(parameters.keys() - set(known))
    if unknown:
        raise ConfigError(
            f"unknown parameter {unknown[0]!r} of report {name}; there are {', '.join(known) if known else 'none'}"
        )
    return found(**parameters)


def report_of_view(name: str, parameters: str) -> Report:
    """The report that the options `view` and `viewOptions` of the Spark source name. Errors: as of `report_of`."""
    try:
        given = json.loads(parameters)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ConfigError(f"viewOptions: expected a JSON object, found {parameters!r}")
    return report_of(name, **given)


def require_pyarrow() -> None:
    """MissingExtraError: pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"reports need pyarrow: pip install 'pyreplog[spark]' ({error})") from error
