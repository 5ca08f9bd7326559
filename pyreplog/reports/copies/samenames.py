"""What entries are called on both sides of a copy: the number that a producer gave them, or their offset.

Numbers follow each other; so what there is of them is kept as ranges, however many they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyreplog.reports.copies.intervals import Intervals, inside, union, without
from pyreplog.reports.records.slots import Column
from pyreplog.reports.records.streams import numbers

ORIGINAL_OFFSET = "original-offset"
"""Property of a message that has no producer's number: its offset where it was copied from, in decimal."""

OFFSET, PLAIN, SEQUENCE, ORIGINAL = "offset", "plain", "sequence", "original"
"""Kinds of numbers: offset of an entry that has a producer's number, too; offset of one that has none; a producer's
number; the offset that a property says."""

_PIECES = 64  # ranges of batches that wait before they are put together


class Name(NamedTuple):
    """What numbers are told apart by. producer: "" unless they are a producer's."""

    topic: str | None
    partition: int
    kind: str
    producer: str = ""

    def text(self) -> str:
        """As a key of JSON, different for each."""
        return json.dumps(self)


class Names:
    """Ranges of numbers, by what they are told apart by."""

    def __init__(self) -> None:
        self.found: dict[Name, list[Intervals]] = {}

    def add(self, topic: str | None, partition: int, more: Iterator[tuple[str, str, Column]]) -> None:
        """more: (kind, producer, numbers)."""
        for kind, producer, values in more:
            values = np.unique(values)
            self.put(Name(topic, partition, kind, producer), union(np.stack((values, values + 1), axis=1)))

    def put(self, name: Name, ranges: Intervals) -> None:
        """Ranges of a name are there as well."""
        there = self.found.setdefault(name, [])
        there.append(ranges)
        if len(there) > _PIECES:
            there[:] = [union(np.concatenate(there))]

    def ranges(self) -> dict[Name, Intervals]:
        """Of each name, ascending, without any overlap."""
        return {name: union(np.concatenate(pieces)) for name, pieces in self.found.items()}


# ---- of rows ---------------------------------------------------------------------------------------------------


def names_in(rows: pa.RecordBatch) -> Iterator[tuple[str, str, Column]]:
    """(kind, producer, numbers) of all rows of one stream."""
    numbered = _numbered(rows)
    offsets = numbers(rows["offset"])
    yield OFFSET, "", offsets[numbered]
    yield PLAIN, "", offsets[~numbered]
    yield ORIGINAL, "", _original_offsets(rows.filter(pa.array(~numbered)))
    for producer, at in _producers(rows, numbered):
        yield SEQUENCE, producer, numbers(rows["sequenceId"].take(pa.array(at)))


def missing_in(
    gaps: Mapping[str, list[list[int]]], topic: str | None, partition: int, rows: pa.RecordBatch
) -> pa.Array:
    """Which rows lie in gaps, as `gaps_between` makes them."""

    def lost(kind: str, producer: str, values: Column) -> NDArray[np.bool_]:
        texts = (Name(one, partition, kind, producer).text() for one in (topic, None))
        ranges = next((gaps[text] for text in texts if text in gaps), [])
        return inside(np.array(ranges, np.int64).reshape(-1, 2), values)

    numbered, offsets = _numbered(rows), numbers(rows["offset"])
    found = lost(OFFSET, "", offsets)
    found |= ~numbered & lost(PLAIN, "", offsets)
    for producer, at in _producers(rows, numbered):
        found[at] |= lost(SEQUENCE, producer, numbers(rows["sequenceId"].take(pa.array(at))))
    return pa.array(found)


def _numbered(rows: pa.RecordBatch) -> NDArray[np.bool_]:
    both = pc.and_(rows["producerName"].is_valid(), rows["sequenceId"].is_valid())
    found: NDArray[np.bool_] = both.to_numpy(zero_copy_only=False)
    return found


def _producers(rows: pa.RecordBatch, numbered: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Each producer, and which rows are its."""
    at = np.flatnonzero(numbered)
    encoded = rows["producerName"].take(pa.array(at)).dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    stops = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))
    for producer, start, stop in zip(encoded.dictionary.to_pylist(), [0, *stops], stops, strict=False):
        yield producer, at[order[start:stop]]


def _original_offsets(rows: pa.RecordBatch) -> Column:
    """Those that properties say; what is no number says nothing."""
    pairs = pc.list_flatten(rows["headers"])
    values = pairs.field("value").filter(pc.equal(pairs.field("key"), ORIGINAL_OFFSET))
    texts = values.filter(pc.match_substring_regex(values, r"^[0-9]{1,18}$"))
    return numbers(texts.cast(pa.string()).cast(pa.int64()))


# ---- of partials -----------------------------------------------------------------------------------------------


def as_rows(names: Names, schema: pa.Schema) -> pa.Table:
    """Ranges as rows of a table with the columns topic, partition, kind, producer, first and stop."""
    ranges = {name: found for name, found in names.ranges().items() if len(found)}
    counts = [len(found) for found in ranges.values()]
    which = np.repeat(np.arange(len(counts)), counts)
    together = np.concatenate([np.zeros((0, 2), np.int64), *ranges.values()])
    columns = {
        field: pa.array([getattr(name, field) for name in ranges], schema.field(field).type).take(pa.array(which))
        for field in Name._fields
    }
    columns |= {"first": pa.array(together[:, 0]), "stop": pa.array(together[:, 1])}
    blank = {field.name: pa.nulls(len(which), field.type) for field in schema}
    return pa.table({**blank, **columns}, schema=schema)


def as_names(table: pa.Table) -> dict[Name, Intervals]:
    """As `as_rows` made it."""
    found = Names()
    for name, group in _groups(table):
        found.put(name, np.stack((numbers(group["first"]), numbers(group["stop"])), axis=1))
    return found.ranges()


def _groups(table: pa.Table) -> Iterator[tuple[Name, pa.RecordBatch]]:
    keys = [*Name._fields]
    groups = table.group_by(keys).aggregate([("first", "list"), ("stop", "list")])
    for batch in groups.to_batches(max_chunksize=1):
        name = Name(*(batch[key][0].as_py() for key in keys))
        yield name, pa.record_batch({one: batch[f"{one}_list"].flatten() for one in ("first", "stop")})


def gaps_between(
    source: Mapping[Name, Intervals], target: Mapping[Name, Intervals], *, is_log: bool, is_alone: bool
) -> dict[str, list[list[int]]]:
    """What the source has and the target has not, by `Name.text`. is_log: offsets are what counts. is_alone: what the
    topic is called does not matter."""
    some, others = (_as_compared(side, is_log, is_alone) for side in (source, target))
    others = {
        name._replace(kind=PLAIN) if name.kind == ORIGINAL else name: found
        for name, found in others.items()
        if is_log or name.kind != PLAIN
    }
    gaps = {name: without(found, others.get(name, found[:0])) for name, found in some.items() if name.kind != ORIGINAL}
    return {name.text(): found.tolist() for name, found in gaps.items() if len(found)}


def _as_compared(names: Mapping[Name, Intervals], is_log: bool, is_alone: bool) -> dict[Name, Intervals]:
    """Of a log, all offsets, whatever else its entries are called; of topics, what else they are called."""
    made = Names()
    for name, found in names.items():
        if name.kind != OFFSET if not is_log else name.kind in (OFFSET, PLAIN):
            topic = None if is_alone else name.topic
            made.put(name._replace(topic=topic, kind=OFFSET if is_log else name.kind), found)
    return made.ranges()
