"""Reports on records in plain Python, record by record, by their definitions."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyreplog._native.system.checksum import crc32c
from tests.spark.reports.both import Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_US = 60_000_000


class Record(NamedTuple):
    """What is known of one. time: microseconds since 1970. ledger: None unless ledgers are read by themselves."""

    offset: int
    time: int = 0
    value: bytes = b""
    key: bytes | None = None
    producer: str | None = None
    sequence: int | None = None
    topic: str | None = "t"
    partition: int = -1
    ledger: int | None = None
    segment: str | None = None


Records = Sequence[Record]


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def grouped(records: Iterable[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    items: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        items[tuple(getattr(record, name) for name in names)].append(record)
    return items


def sizes(records: Records) -> list[int]:
    return [len(record.value) for record in records]


def rate_by_minute(records: Records) -> list[Row]:
    rows: list[Row] = []
    for (topic, partition), of_one in grouped(records, "topic", "partition").items():
        minutes: dict[int, list[Record]] = defaultdict(list)
        for record in of_one:
            minutes[record.time // MINUTE_US].append(record)
        for minute, each_minute in minutes.items():
            rows.append({
                "topic": topic, "partition": partition, "minute": moment(minute * MINUTE_US), "entries": len(each_minute),
                "bytes": sum(sizes(each_minute)), "avg_size": sum(sizes(each_minute)) / len(each_minute), "max_size": max(sizes(each_minute)),
                "producers": len({record.producer for record in each_minute} - {None}),
            })  # fmt: skip
    return rows


def size_histogram(records: Records) -> list[Row]:
    """Percentiles are those of sizes cut to eleven bits."""
    rows: list[Row] = []
    for (topic, partition), group in grouped(records, "topic", "partition").items():
        ordered = sorted(sizes(group))
        shown = {}
        for percent in (50, 90, 99):
            size = next(size for n, size in enumerate(ordered, 1) if 100 * n >= percent * len(ordered))
            cut = max(size.bit_length() - 11, 0)
            shown[f"p{percent}"] = size >> cut << cut
        for bits, some in Counter(size.bit_length() for size in ordered).items():
            inside = [size for size in ordered if size.bit_length() == bits]
            rows.append({
                "topic": topic, "partition": partition, "lo": 0 if bits == 0 else 2 ** (bits - 1), "hi": 2**bits,
                "entries": some, "bytes": sum(inside), **shown, "max": ordered[-1],
            })  # fmt: skip
    return rows


def key_skew(records: Records, top: int = 20) -> list[Row]:
    rows: list[Row] = []
    for (topic, partition), group in grouped(records, "topic", "partition").items():
        by_key = {key: (len(some), sum(sizes(some))) for (key,), some in grouped(group, "key").items()}
        without = by_key.pop(None, (0, 0))
        ranked = sorted(by_key.items(), key=lambda item: (-item[1][0], -item[1][1], item[0]))
        counts = [count for _, (count, _) in ranked]
        differences = sum(abs(count - other) for count in counts for other in counts)
        head = {
            "top1_share": counts[0] / len(group) if counts else None, "distinct_keys": len(counts),
            "gini": differences / (2 * len(counts) * sum(counts)) if counts else None,
        }  # fmt: skip
        shown = [(rank, key[:64].hex(), *some) for rank, (key, some) in enumerate(ranked[:top], 1)]
        for rank, key, entries, size in [*shown, (None, None, *without)]:
            rows.append({
                "topic": topic, "partition": partition, "rank": rank, "key": key, "entries": entries, "bytes": size,
                "share": entries / len(group), **head,
            })  # fmt: skip
    return rows


def partition_skew(records: Records, known: Iterable[tuple[str, int]] = ()) -> list[Row]:
    """known: partitions that there are, some of them empty."""
    groups = grouped(records, "topic", "partition")
    for topic, partition in known:
        if any(topic == other for other, _ in groups):
            groups.setdefault((topic, partition), [])
    rows: list[Row] = []
    for (topic, partition), some in groups.items():
        counts = [len(others) for (other, _), others in groups.items() if other == topic]
        rows.append({
            "topic": topic, "partition": partition, "entries": len(some), "bytes": sum(sizes(some)),
            "ratio_to_mean": len(some) / (sum(counts) / len(counts)),
        })  # fmt: skip
    return rows


def duplicates(records: Records) -> list[Row]:
    numbered = [record for record in records if record.producer is not None and record.sequence is not None]
    rows: list[Row] = []
    for (topic, partition, producer, sequence), group in grouped(
        numbered, "topic", "partition", "producer", "sequence"
    ).items():
        if len(group) > 1:
            offsets = [record.offset for record in group]
            rows.append({
                "topic": topic, "partition": partition, "producer_name": producer, "sequence_id": sequence,
                "copies": len(group), "first_offset": min(offsets), "last_offset": max(offsets),
                "same_payload": len({crc32c(record.value) for record in group}) == 1,
            })  # fmt: skip
    return rows


def _holes(numbers: Iterable[int]) -> list[tuple[int, int]]:
    ordered = sorted(set(numbers))
    return [(first, other) for first, other in itertools.pairwise(ordered) if other != first + 1]


def sequence_gaps(records: Records) -> list[Row]:
    numbered = [record for record in records if record.producer is not None and record.sequence is not None]
    return [
        {
            "topic": topic, "partition": partition, "producer_name": producer, "after_seq": after, "before_seq": before,
            "missing": before - after - 1,
        }
        for (topic, partition, producer), group in grouped(numbered, "topic", "partition", "producer").items()
        for after, before in _holes(record.sequence for record in group if record.sequence is not None)
    ]  # fmt: skip


def log_gaps(records: Records) -> list[Row]:
    return [
        {
            "topic": topic, "partition": partition, "ledger": ledger, "after_offset": after, "before_offset": before,
            "missing": before - after - 1,
            "segment": next(record.segment for record in group if record.offset == before),
        }
        for (topic, partition, ledger), group in grouped(records, "topic", "partition", "ledger").items()
        for after, before in _holes(record.offset for record in group)
    ]  # fmt: skip


def order_violations(records: Records) -> list[Row]:
    rows: list[Row] = []
    for (topic, partition, ledger), group in grouped(records, "topic", "partition", "ledger").items():
        group = sorted(group)
        steps = [(first.time - other.time, other) for first, other in itertools.pairwise(group)]
        back = [(step, record) for step, record in steps if step > 0]
        rows.append({
            "topic": topic, "partition": partition, "ledger": ledger, "violations": len(back),
            "first_offset": back[0][1].offset if back else None,
            "max_backstep_ms": max((step for step, _ in back), default=0) / 1000,
        })  # fmt: skip
    return rows


ORACLES: dict[str, Callable[[Records], list[Row]]] = {
    function.__name__: function
    for function in (
        rate_by_minute, size_histogram, key_skew, partition_skew, duplicates, sequence_gaps, log_gaps, order_violations,
    )
}  # fmt: skip
"""By the name of the report."""
