"""What a replicated entry takes on the disk of the target, beside the original on the disk of its cluster."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section, Table
from benchmarks.rows.geo.pair import wait
from pyreplog._native.log.attributes import decode_attributes
from pyreplog.cli.explaining import layout
from pyreplog.cluster import Cluster
from pyreplog.origins.attribute import TAG_ORIGIN, OriginAttribute
from pyreplog.tables.cluster.stored_log import StoredLog
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer

_CYCLES = 512
_MORE_BYTES = 64
_TOPIC = "orders"
_LENGTHS = struct.Struct("<I8xBBH")
_ATTRIBUTES = struct.Struct("<H")
_READ_BYTES = 1 << 30


class DiskEntry(NamedTuple):
    """An entry of a topic on a disk.

    Attributes:
        size: bytes of its record, with header, attributes and padding.
        value: the encoded messages.
        origin: its origin attribute; None: it was published in this cluster.
    """

    size: int
    value: bytes
    origin: OriginAttribute | None


def disk_entries(cluster: Path, topic: Topic) -> list[DiskEntry]:
    """Return all entries of a topic, from the segment files of the only bookie of its embedded cluster.

    Args:
        cluster: directory of the cluster.
        topic: the topic; no ledger of it may have been trimmed.
    """
    log = StoredLog.survey(cluster / "bookie-0" / "log")
    return [
        entry
        for ledger in topic.internal_stats().ledgers
        if ledger.entries
        for entry in _records(log.read(ledger.ledger, 0, ledger.entries, _READ_BYTES)[0])
    ]


def _records(data: bytes) -> Iterator[DiskEntry]:
    at = 0
    while at < len(data):
        length, _, form, key_length = _LENGTHS.unpack_from(data, at)
        begin, origin = at + layout.LONG_HEADER, None
        if form & layout.FORM_ATTRIBUTES:
            size = _ATTRIBUTES.unpack_from(data, begin)[0]
            begin += _ATTRIBUTES.size
            found = dict(decode_attributes(data[begin : begin + size]))
            origin = OriginAttribute.from_bytes(found[TAG_ORIGIN]) if TAG_ORIGIN in found else None
            begin += size
        yield DiskEntry(layout.stride(length), data[begin + key_length : at + length], origin)
        at += layout.stride(length)


class _Case(NamedTuple):
    """cycle: entries in turn: published "here" or "there", or here and "filtered": for no other cluster."""

    name: str
    cycle: tuple[str, ...]
    goal: Goal | None


_GOAL = Goal("at most", _MORE_BYTES, absolute=True)
_CASES = (
    _Case("one way", ("here",), _GOAL),
    _Case("both ways, in turn", ("here", "there"), _GOAL),
    _Case("one way, every other entry filtered", ("here", "filtered"), _GOAL),
    _Case("both ways in turn, every other entry here filtered", ("here", "there", "filtered", "there"), _GOAL),
)


class _Stored(NamedTuple):
    """Of a case. more: bytes of each replicated entry more than the original has; source: entries of the topic here."""

    originals: int
    more: list[int]
    gaps: int
    source: int


def stored_bytes(plan: Plan) -> Section:
    """Publish in one cluster, and in both in turn, with filters and without; compare the records on both disks."""
    cycles = plan.scaled(_CYCLES, 16) // 16
    section = Section("geo-stored", "Bytes on the target's disk of a replicated entry, beside the original")
    rows = []
    for case in _CASES:
        found = _stored(plan, case, 16 * cycles)
        count, more = len(found.more), sum(found.more)
        section.comparisons.append(
            Comparison(
                case.name,
                Figure("more at the target, of each entry", more / count, "B", "synced"),
                Figure("the original", found.originals / count, "B", "synced"),
                case.goal,
                f"{count:,} entries, equal but for this",
            )
        )
        rows.append(
            [
                case.name, f"{found.source:,}", f"{count:,}", f"{found.gaps:,}", f"{more / count:.1f}",
                f"{max(found.more)}", f"{more / found.source:.1f}",
            ]
        )  # fmt: skip
    section.tables.append(
        Table(
            "Bytes more at the target",
            [
                "", "entries of the topic here", "replicated", "gaps", "mean of a replicated one", "most",
                "for each entry of the topic here",
            ],
            rows,
        )
    )  # fmt: skip
    section.notes.append(
        "Bytes are those of whole records in the segment files of both clusters: header, attributes, messages, and "
        "zeros up to a multiple of 8. Sizes of messages are random, 1 to 200 B, 1 to 3 in an entry. The row fails "
        "unless the encoded messages of each entry are equal in both clusters."
    )
    return section


def _stored(plan: Plan, case: _Case, cycles: int) -> _Stored:
    with ExitStack() as stack:
        folders = [stack.enter_context(plan.folder()) for _ in range(2)]
        here, there = (stack.enter_context(Cluster.embedded(folder, bookies=1)) for folder in folders)
        servers = [stack.enter_context(TopicServer(cluster)) for cluster in (here, there)]
        topics = [_opened(cluster) for cluster in (here, there)]
        here.geo.add_cluster("there", f"pyreplog://{servers[1].address}")
        here.geo.set_policy(_TOPIC, targets=["there"])
        if "there" in case.cycle:
            there.geo.add_cluster("here", f"pyreplog://{servers[0].address}")
            there.geo.set_policy(_TOPIC, targets=["here"])
        _publish(topics[0], topics[1], case.cycle * cycles)
        return compare(*(disk_entries(folder, topic) for folder, topic in zip(folders, topics, strict=True)))


def _opened(cluster: Cluster) -> Topic:
    topic = cluster.topic(_TOPIC, ensemble=1, retention_bytes=None, retention_ms=None)
    assert isinstance(topic, Topic)
    return topic


def _publish(here: Topic, there: Topic, steps: Sequence[str]) -> None:
    """Publish an entry for each step; where the cluster changes, once both have all messages."""
    source = random.Random(len(steps))
    filtered, former = 0, steps[0]
    for step in steps:
        if (step == "there") != (former == "there"):
            wait(_has_all(here, there, filtered))
        values = [source.randbytes(source.randint(8, 200)) for _ in range(source.randint(1, 3))]
        if step == "filtered":
            here.publish_batch(values, replicate_to=())
            filtered += len(values)
        else:
            (there if step == "there" else here).publish_batch(values)
        former = step
    wait(_has_all(here, there, filtered))


def _has_all(here: Topic, there: Topic, filtered: int) -> Callable[[], bool]:
    return lambda: here.end == there.end + filtered


def compare(source: list[DiskEntry], target: list[DiskEntry]) -> _Stored:
    """Compare the entries that were published at the source with their copies.

    Raises ValueError if the target has an entry with a gap that stands for no entry of the source.
    """
    originals = {entry.value: entry for entry in source if entry.origin is None}
    copies = [entry for entry in target if entry.origin is not None]
    unsent = len(source) - len(copies)
    gaps = sum(len(entry.origin.gaps) for entry in copies if entry.origin is not None)
    if gaps > unsent or len(originals) + sum(entry.origin is not None for entry in source) != len(source):
        raise ValueError(f"{gaps} gaps, and {unsent} entries that the target does not have from here")
    more = [entry.size - originals[entry.value].size for entry in copies]
    return _Stored(sum(originals[entry.value].size for entry in copies), more, gaps, len(source))
