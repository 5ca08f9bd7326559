"""Numbers that identify entries on both sides of a copy: sequence numbers of producers, or offsets.

Numbers follow each other, so that sets of them are kept as few ranges.
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
"""Property of a message without a sequence number: its offset in the source, in decimal."""

OFFSET, PLAIN, SEQUENCE, ORIGINAL = "offset", "plain", "sequence", "original"
"""Kinds of numbers.

OFFSET: offset of an entry. PLAIN: offset of an entry without a sequence number. SEQUENCE: sequence number of a
producer. ORIGINAL: offset in the property ORIGINAL_OFFSET.
"""

_PIECES = 64  # sets of ranges that are collected before they are united


class Name(NamedTuple):
    """A name space of numbers. producer: "" unless `kind` is SEQUENCE."""

    topic: str | None
    partition: int
    kind: str
    producer: str = ""

    def text(self) -> str:
        """Return a unique text, for keys of JSON."""
        return json.dumps(self)


class Names:
    """Sets of numbers, by name space."""

    def __init__(self) -> None:
        self._pieces: dict[Name, list[Intervals]] = {}

    def add(self, topic: str | None, partition: int, more: Iterator[tuple[str, str, Column]]) -> None:
        """Add numbers. more: (kind, producer, numbers)."""
        for kind, producer, values in more:
            values = np.unique(values)
            self.put(Name(topic, partition, kind, producer), union(np.stack((values, values + 1), axis=1)))

    def put(self, name: Name, ranges: Intervals) -> None:
        """Add ranges to a name space."""
        pieces = self._pieces.setdefault(name, [])
        pieces.append(ranges)
        if len(pieces) > _PIECES:
            pieces[:] = [union(np.concatenate(pieces))]

    def ranges(self) -> dict[Name, Intervals]:
        """Return the ranges of each name space, ascending, without overlap."""
        return {name: union(np.concatenate(pieces)) for name, pieces in self._pieces.items()}


# ---- rows ------------------------------------------------------------------------------------------------------


def names_in(rows: pa.RecordBatch) -> Iterator[tuple[str, str, Column]]:
    """Yield (kind, producer, numbers) for the rows of one stream."""
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
    """Return which rows lie in gaps that `gaps_between` returned."""

    def lost(kind: str, producer: str, values: Column) -> NDArray[np.bool_]:
        texts = (Name(called, partition, kind, producer).text() for called in (topic, None))
        ranges = next((gaps[text] for text in texts if text in gaps), [])
        return inside(np.array(ranges, np.int64).reshape(-1, 2), values)

    numbered, offsets = _numbered(rows), numbers(rows["offset"])
    is_missing = lost(OFFSET, "", offsets)
    is_missing |= ~numbered & lost(PLAIN, "", offsets)
    for producer, at in _producers(rows, numbered):
        is_missing[at] |= lost(SEQUENCE, producer, numbers(rows["sequenceId"].take(pa.array(at))))
    return pa.array(is_missing)


def _numbered(rows: pa.RecordBatch) -> NDArray[np.bool_]:
    both = pc.and_(rows["producerName"].is_valid(), rows["sequenceId"].is_valid())
    is_numbered: NDArray[np.bool_] = both.to_numpy(zero_copy_only=False)
    return is_numbered


def _producers(rows: pa.RecordBatch, numbered: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Yield each producer with the indices of its rows."""
    at = np.flatnonzero(numbered)
    encoded = rows["producerName"].take(pa.array(at)).dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    stops = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))
    for producer, start, stop in zip(encoded.dictionary.to_pylist(), [0, *stops], stops, strict=False):
        yield producer, at[order[start:stop]]


def _original_offsets(rows: pa.RecordBatch) -> Column:
    """Return the offsets in properties, without those that are no numbers."""
    pairs = pc.list_flatten(rows["headers"])
    values = pairs.field("value").filter(pc.equal(pairs.field("key"), ORIGINAL_OFFSET))
    texts = values.filter(pc.match_substring_regex(values, r"^[0-9]{1,18}$"))
    return numbers(texts.cast(pa.string()).cast(pa.int64()))


# ---- partial results -------------------------------------------------------------------------------------------


def as_rows(names: Names, schema: pa.Schema) -> pa.Table:
    """Return ranges as rows of a table with the columns topic, partition, kind, producer, first and stop."""
    ranges = {name: numbers for name, numbers in names.ranges().items() if len(numbers)}
    counts = [len(parts) for parts in ranges.values()]
    which = np.repeat(np.arange(len(counts)), counts)
    rows = np.concatenate([np.zeros((0, 2), np.int64), *ranges.values()])
    columns = {
        field: pa.array([getattr(name, field) for name in ranges], schema.field(field).type).take(pa.array(which))
        for field in Name._fields
    }
    columns |= {"first": pa.array(rows[:, 0]), "stop": pa.array(rows[:, 1])}
    blank = {field.name: pa.nulls(len(which), field.type) for field in schema}
    return pa.table({**blank, **columns}, schema=schema)


def as_names(table: pa.Table) -> dict[Name, Intervals]:
    """Return the ranges that `as_rows` made into a table."""
    names = Names()
    for name, group in _groups(table):
        names.put(name, np.stack((numbers(group["first"]), numbers(group["stop"])), axis=1))
    return names.ranges()


def _groups(table: pa.Table) -> Iterator[tuple[Name, pa.RecordBatch]]:
    keys = [*Name._fields]
    groups = table.group_by(keys).aggregate([("first", "list"), ("stop", "list")])
    for batch in groups.to_batches(max_chunksize=1):
        name = Name(*(batch[key][0].as_py() for key in keys))
        yield name, pa.record_batch({column: batch[f"{column}_list"].flatten() for column in ("first", "stop")})


def gaps_between(
    source: Mapping[Name, Intervals], target: Mapping[Name, Intervals], *, is_log: bool, is_alone: bool
) -> dict[str, list[list[int]]]:
    """Return the ranges that the source has and the target lacks, by `Name.text`.

    Args:
        is_log: compare offsets.
        is_alone: ignore the names of topics.
    """
    some, others = (_as_compared(side, is_log, is_alone) for side in (source, target))
    others = {
        name._replace(kind=PLAIN) if name.kind == ORIGINAL else name: ranges
        for name, ranges in others.items()
        if is_log or name.kind != PLAIN
    }
    gaps = {
        name: without(ranges, others.get(name, ranges[:0])) for name, ranges in some.items() if name.kind != ORIGINAL
    }
    return {name.text(): ranges.tolist() for name, ranges in gaps.items() if len(ranges)}


def _as_compared(names: Mapping[Name, Intervals], is_log: bool, is_alone: bool) -> dict[Name, Intervals]:
    """Return the ranges that are compared: all offsets of a log; of topics all numbers but offsets."""
    compared = Names()
    for name, ranges in names.items():
        if name.kind != OFFSET if not is_log else name.kind in (OFFSET, PLAIN):
            topic = None if is_alone else name.topic
            compared.put(name._replace(topic=topic, kind=OFFSET if is_log else name.kind), ranges)
    return compared.ranges()
