"""A new replica of a partition takes all of its leader's log."""

from __future__ import annotations

import itertools
import shutil
import time
from contextlib import ExitStack

from benchmarks.entries import SIZES
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.ha.stream import bare_stream, stream_entries
from benchmarks.rows.partitions.node import TOPIC, remote
from benchmarks.sampling import interleave
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.metadata.store import MetadataStore
from pyreplog.partition.metadata.partition_changes import reassign_partitions
from pyreplog.partition.metadata.topic_metadata import create_topic
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

_SIZE = 1024
_FULL_BYTES = 4 << 30
_BYTES = 1 << 30
_LIMIT = 0.55


def catch_up(plan: Plan) -> Section:
    """Bytes per second from the reassignment until the new replica knows that all it has is committed."""
    section = Section("partitions-catch-up", f"A new replica of a partition, records of {SIZES[_SIZE]}, TCP")
    entries = stream_entries(plan, _FULL_BYTES if plan.full else _BYTES)
    with plan.folder() as folder, ExitStack() as stack, bare_stream(plan) as bare:
        store = stack.enter_context(SQLiteStore(folder / "metadata"))
        url, checked, numbers = f"sqlite:{folder / 'metadata'}", list[str](), itertools.count(1)
        leader = remote(stack, folder / "a", "a", url, plan.segment_bytes)
        topic = create_topic(store, TOPIC, partitions=1, replication_factor=1, now_us=time.time_ns() // 1000)
        size = leader.call("fill", _SIZE, entries)

        def ours() -> float:
            name = f"b{next(numbers)}"
            with ExitStack() as life:
                follower = remote(life, folder / name, name, url, plan.segment_bytes)
                begin = time.monotonic()
                _reassign(store, ["a", name])
                seconds: float = follower.call("received", entries) - begin
                log = folder / name / f"{topic.topic_id}-0"
                checked.append(follower.call("verified", str(log), _SIZE, entries))
                _reassign(store, ["a"])
            shutil.rmtree(folder / name)
            return size / seconds

        found = interleave(plan, {"ours": ours, "bare": lambda: bare.rate(entries) * _SIZE})
        verified = f"{checked[-1]}, {len(checked)} times; {bare.verified()}"
    section.comparisons.append(
        Comparison(
            f"stream of {size / (1 << 20):,.0f} MiB",
            Figure("new replica", found["ours"], "B/s", "appended"),
            Figure("C client and bookie", found["bare"], "B/s", "appended"),
            Goal("at least", _LIMIT),
            verified,
        )
    )
    section.notes.append(
        "Bytes of records. Ours: the change of metadata, connecting, and new segment files count; each record's CRC is "
        "checked when it has arrived. Bare: as in `ha-stream`."
    )
    return section


def _reassign(store: MetadataStore, brokers: list[str]) -> None:
    (result,) = reassign_partitions(store, {TopicPartition(TOPIC, 0): brokers}).values()
    if result.code is not ErrorCode.NONE:
        raise RuntimeError(f"{result.code.name}: {result.message}")
