"""Metrics of geo-replication for Prometheus; docs/operations.md explains each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

from pyreplog._native.system.histogram import Histogram
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.metrics import Labels, Metric

Sample = tuple[Labels, float | Histogram]

_PREFIX = "pyreplog_geo_"


def geo_metrics(rows: Iterable[ReplicatorStatus], now_us: int) -> list[Metric]:
    """Return the metrics of the replications of this process.

    Args:
        rows: the status of each.
        now_us: the present time, microseconds since 1970.
    """
    rows = list(rows)
    states = Counter((row.target, row.state) for row in rows)
    skipped: list[Sample] = [
        ({**_labels(row), "cause": cause}, float(count)) for row in rows for cause, count in row.skipped
    ]

    def age_s(row: ReplicatorStatus) -> float:
        return 0.0 if row.oldest_unsent_us is None else max(now_us - row.oldest_unsent_us, 0) / 1e6

    return [
        Metric(
            f"{_PREFIX}replications", "gauge", "Replications of this process, by target and state.",
            [({"target": target, "state": state}, float(count)) for (target, state), count in sorted(states.items())],
        ),
        _each("unsent_messages", "gauge", "Messages that the target lacks.", rows, lambda row: row.unsent_messages),
        _each(
            "unsent_bytes", "gauge", "Estimated bytes of the messages that the target lacks.", rows,
            lambda row: row.unsent_bytes,
        ),
        _each(
            "oldest_unsent_seconds", "gauge", "Age of the oldest message that the target lacks; 0 if it lacks none.",
            rows, age_s,
        ),
        _each(
            "alarm", "gauge", "1 if the replication needs a decision or an action of an operator.", rows,
            lambda row: bool(row.alarm),
        ),
        _each("sent_messages", "counter", "Messages that the target has stored.", rows, lambda row: row.sent_messages),
        _each(
            "sent_bytes", "counter", "Bytes of the messages that the target has stored.", rows,
            lambda row: row.sent_bytes,
        ),
        _each(
            "reconnects", "counter", "Connections to the target after the first one.", rows,
            lambda row: row.reconnects,
        ),
        Metric(f"{_PREFIX}skipped_messages", "counter", "Messages that were not sent, by cause.", skipped),
    ]  # fmt: skip


def _labels(row: ReplicatorStatus) -> Labels:
    return {"topic": row.topic, "target": row.target}


def _each(
    name: str,
    kind: Literal["counter", "gauge"],
    text: str,
    rows: list[ReplicatorStatus],
    value: Callable[[ReplicatorStatus], float],
) -> Metric:
    return Metric(_PREFIX + name, kind, text, [(_labels(row), float(value(row))) for row in rows])
