"""The durable records of the replicated subscriptions of one topic: FORMAT.md, "Replicated subscriptions".

Records follow each other without a gap; a snapshot replaces all records before it. Replaying a record twice has the
same result as once: items are merged, like the items of other clusters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, MetadataVersionError
from pyreplog.geo.acks.lifecycle import SubscriptionLifecycle
from pyreplog.geo.acks.messages import (
    AcksItem,
    Cursor,
    ForgottenItem,
    Item,
    StateItem,
    TombstoneItem,
    UnknownItem,
    decode_items,
    encode_items,
    split_ranges,
)
from pyreplog.geo.acks.origin_ranges import copy_ranges
from pyreplog.origins.origin import Origin

VERSION: Final = 1
RECORD_BYTES_MAX: Final = 60 << 20
SNAPSHOT = 1
ITEM_RANGES = 65_536
"""Most ranges of one item."""

_HEAD = struct.Struct("<BBHIQ")  # version, min_reader, flags, count, sequence


@dataclass
class JournalState:
    """The result of replaying a journal.

    Attributes:
        sequence: sequence of the last record; 0: the journal is empty.
        lifecycles: lifecycle of each name.
        unknown: items of a later version; they are kept.
    """

    sequence: int = 0
    lifecycles: dict[str, SubscriptionLifecycle] = field(default_factory=dict)
    unknown: list[UnknownItem] = field(default_factory=list)

    def end_of(self, origin: Origin) -> int:
        """Return the offset behind the last message of an origin that a subscription has passed; 0: none has."""
        states = [lifecycle.state for lifecycle in self.lifecycles.values() if lifecycle.state is not None]
        return max([max(state.acks.last(origin), state.bases.last(origin)) + 1 for state in states], default=0)

    def apply(self, item: Item) -> None:
        """Apply one item."""
        if isinstance(item, UnknownItem):
            self.unknown.append(item)
            return
        lifecycle = self.lifecycles.setdefault(item.name, SubscriptionLifecycle())
        match item:
            case StateItem():
                lifecycle.merge(item.state())
            case AcksItem():
                if lifecycle.counts(item.token, item.generation) and lifecycle.state is not None:
                    lifecycle.state.acks.add(item.origin, *item.ranges.intersect())
            case TombstoneItem():
                lifecycle.add_tombstone(item.token, item.confirmed)
            case ForgottenItem():
                lifecycle.forget(item.token)
        if lifecycle.is_empty:
            del self.lifecycles[item.name]


def encode_record(sequence: int, items: Iterable[Item], *, is_snapshot: bool = False) -> bytes:
    """Encode a record.

    Args:
        sequence: one more than the sequence of the record before.
        items: the items, in their order.
        is_snapshot: whether the items are the whole state.

    Raises:
        InvalidArgumentError: the record has more than `RECORD_BYTES_MAX` bytes.
    """
    encoded = [*encode_items(items)]
    data = _HEAD.pack(VERSION, 0, SNAPSHOT if is_snapshot else 0, len(encoded), sequence) + b"".join(encoded)
    if len(data) > RECORD_BYTES_MAX:
        raise InvalidArgumentError(
            f"record of replicated subscriptions: expected at most {RECORD_BYTES_MAX} bytes, found {len(data)}: "
            "too many acknowledgements out of order"
        )
    return data


def _decode_head(data: bytes) -> tuple[int, bool, int]:
    version, min_reader, flags, count, sequence = Cursor(data).fields(_HEAD)
    assert isinstance(version, int) and isinstance(min_reader, int) and isinstance(flags, int)
    assert isinstance(count, int) and isinstance(sequence, int)
    if (min_reader or version) > VERSION:
        raise MetadataVersionError("record of replicated subscriptions", min_reader or version, VERSION)
    if version < 1 or count > len(data) // 8:
        raise InvalidRecordsError(0, f"a version from 1 on, and items in {len(data)} bytes", f"{version}, {count}")
    return sequence, bool(flags & SNAPSHOT), count


def replay(records: Sequence[bytes]) -> JournalState:
    """Return the state after these consecutive records; records before the last snapshot are skipped.

    Raises:
        InvalidRecordsError: a record is malformed or missing.
        MetadataVersionError: a newer version wrote a record that this one must not read.
    """
    heads = [_decode_head(data) for data in records]
    first = max((number for number, (_, is_snapshot, _) in enumerate(heads) if is_snapshot), default=0)
    state = JournalState()
    for data, (sequence, is_snapshot, count) in zip(records[first:], heads[first:], strict=True):
        if state.sequence and sequence != state.sequence + 1:
            raise InvalidRecordsError(8, f"record {state.sequence + 1}", str(sequence))
        if not state.sequence and not is_snapshot and sequence != 1:
            raise InvalidRecordsError(8, "record 1, or a snapshot", str(sequence))
        cursor = Cursor(data, _HEAD.size)
        for item in decode_items(cursor, count):
            state.apply(item)
        if cursor.at != len(data):
            raise InvalidRecordsError(cursor.at, "the end of the record", f"{len(data) - cursor.at} bytes more")
        state.sequence = sequence
    return state


def snapshot_items(
    lifecycles: Mapping[str, SubscriptionLifecycle], unknown: Iterable[UnknownItem] = ()
) -> Iterator[Item]:
    """Yield the items of a snapshot: the whole state."""
    for name, lifecycle in lifecycles.items():
        for token, confirmed in lifecycle.tombstones.items():
            yield TombstoneItem(name, token, frozenset(confirmed))
        state = lifecycle.state
        if state is None:
            continue
        yield StateItem.of(name, state)
        for origin in state.acks:
            for part in split_ranges(state.acks.of(origin), ITEM_RANGES):
                yield AcksItem(name, min(state.tokens), state.generation, origin, copy_ranges(part))
    yield from unknown
