"""Requests of Kafka clients decoded, beside kio and kafka-python: produce, fetch, metadata; and batches checked."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer

from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave, timed
from pyreplog._native.kafka.record_batch import take_produced
from pyreplog.kafka.wire.codec import request_codec
from pyreplog.kafka.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
    MetadataRequestTopic,
    ProducePartitionProduceData,
    ProduceRequest,
    ProduceTopicProduceData,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.record_batches.batches import build_batch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its files with importlib.resources.read_text
    from kafka.protocol.consumer import FetchRequest as TheirFetch
    from kafka.protocol.metadata import MetadataRequest as TheirMetadata
    from kafka.protocol.producer import ProduceRequest as TheirProduce
    from kafka.record.default_records import DefaultRecordBatch

_GOALS = {"kio": 1.0, "kafka-python": 3.0}  # kio decodes in Rust
_RECORDS = 100
_TIME = 1_700_000_000_000


def _batch() -> bytes:
    values = [b"v" * 100] * _RECORDS
    return build_batch(values, timestamps_ms=range(_TIME, _TIME + _RECORDS))


def _requests() -> dict[str, tuple[ApiKey, int, Any, Any]]:
    """Return API, version, message and kafka-python's class by name."""
    partitions = [ProducePartitionProduceData(i, _batch()) for i in range(3)]
    asked = [FetchPartition(i, fetch_offset=1 << 20, partition_max_bytes=1 << 20) for i in range(20)]
    names = [MetadataRequestTopic(name=f"topic-{i}") for i in range(20)]
    fetch = FetchRequest(topics=[FetchTopic("topic-1", partitions=asked)])
    produce = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[ProduceTopicProduceData("topic-1", partitions)])
    return {
        "Produce v9, 3 partitions": (ApiKey.PRODUCE, 9, produce, TheirProduce),
        "Fetch v12, 20 partitions": (ApiKey.FETCH, 12, fetch, TheirFetch),
        "Metadata v9, 20 topics": (ApiKey.METADATA, 9, MetadataRequest(names), TheirMetadata),
    }  # fmt: skip


def _repeat(decode: Callable[[], object], count: int) -> Callable[[], float]:
    def run() -> float:
        return timed(lambda: [decode() for _ in range(count)], count)

    return run


def _encoded(value: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(value))(buffer, value)
    return buffer.getvalue()


def decoding(plan: Plan) -> Section:
    """`kafka-wire`."""
    section, count = Section("kafka-wire", "Kafka's requests and record batches, decoded"), plan.scaled(4096)
    for name, (key, version, message, theirs) in _requests().items():
        schema = request_codec(key, version).schema
        data, read = schema.encode(message), entity_reader(load_request_schema(int(key), version))
        if not data == schema.encode(schema.decode(data)) == _encoded(read(data, 0)[0]):
            raise ValueError(f"{name}: other bytes")
        ways = {
            "pyreplog": _repeat(partial(schema.decode, data), count),
            "kio": _repeat(partial(read, data, 0), count),
            "kafka-python": _repeat(partial(theirs.decode, data, version=version), count),
        }
        _compare(
            section,
            f"decode {name}",
            interleave(plan.shared(4), ways),
            len(data),
            f"encoded again: the same {len(data)} bytes",
        )
    _check_batches(plan, section)
    return section


def _compare(section: Section, work: str, found: dict[str, float], size: int, verified: str) -> None:
    figures = {name: Figure(name, 1 / seconds, "/s", "reading", size) for name, seconds in found.items()}
    ours = figures.pop("pyreplog")
    section.comparisons += [
        Comparison(work, ours, other, Goal("at least", _GOALS[other.name]), verified) for other in figures.values()
    ]


def _check_batches(plan: Plan, section: Section) -> None:
    """Check the checksum of a batch, and walk its records."""
    data = _batch()

    def theirs() -> int:
        batch = DefaultRecordBatch(data)
        return sum(1 for _ in batch) if batch.validate_crc() else 0

    taken = take_produced(data)
    if isinstance(taken, tuple) or not taken.header.count == theirs() == _RECORDS:
        raise ValueError("other records")
    count = max(plan.scaled(4096) // 16, 16)
    ways = {"pyreplog": _repeat(partial(take_produced, data), count), "kafka-python": _repeat(theirs, count)}
    work = f"check a batch of {_RECORDS} records, 100 B"
    _compare(section, work, interleave(plan.shared(4), ways), len(data), f"{_RECORDS} records")
