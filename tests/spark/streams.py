"""Streams without Spark: planned and read in this process, as Spark calls it; and the logs that they follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyreplog
from pyreplog.spark.stream.offsets import StreamOffset
from pyreplog.spark.stream.options import StreamOptions
from pyreplog.spark.stream.stream_planner import StreamPlanner
from tests import samples
from tests.spark.reading import read_slices

Rows = list[dict[str, Any]]


def value_of(n: int) -> bytes:
    return b"%06d" % n * (n % 13 + 1)


def append(log: pyreplog.CommitLog, count: int) -> None:
    """The next entries, whose values tell their numbers."""
    for _ in range(0, count, 50):
        log.append_batch([value_of(log.end + i) for i in range(50)])


def open_log(path: Path) -> pyreplog.CommitLog:
    return pyreplog.open(path, segment_bytes=samples.SEGMENT_BYTES)


class Query:
    """A streaming query: `offset` is its checkpoint, and passes through text as that of Spark does."""

    def __init__(self, path: Path | str | None, offset: str | None = None, **options: object) -> None:
        given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
        if path is not None:
            given["path"] = str(path)
        given.setdefault("columns", "topic,partition,offset,value")
        self.options = StreamOptions.of(given)
        self.planner = StreamPlanner(self.options)
        try:
            self.offset = json.dumps(self.planner.begin().encode()) if offset is None else offset
        except BaseException:
            self.planner.close()
            raise

    def next(self) -> str:
        """The offset at the end of the next batch."""
        limits = {"max_rows": self.options.max_rows, "max_bytes": self.options.max_bytes}
        return json.dumps(self.planner.next(decoded(self.offset), **limits).encode())

    def rows(self, start: str, end: str) -> Rows:
        """Of the batch between two offsets."""
        tasks = self.planner.tasks(decoded(start), decoded(end))
        return list(read_slices(self.options.read, tasks).to_pylist())

    def tasks(self, start: str, end: str) -> list[list[int]]:
        """The offsets that each task of a batch gives."""
        tasks = self.planner.tasks(decoded(start), decoded(end))
        return [offsets(read_slices(self.options.read, [task]).to_pylist()) for task in tasks]

    def batches(self) -> Iterator[Rows]:
        """Until there is nothing new."""
        while (end := self.next()) != self.offset:
            yield self.rows(self.offset, end)
            self.offset = end

    def read(self) -> Rows:
        """Of all batches, until there is nothing new."""
        return [row for batch in self.batches() for row in batch]

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.planner.close()


def decoded(offset: str) -> StreamOffset:
    return StreamOffset.decode(json.loads(offset))


def offsets(rows: Rows) -> list[int]:
    return [row["offset"] for row in rows]


def position(query: Query) -> int:
    """Of a query with one partition."""
    (values,) = decoded(query.offset).positions.values()
    return values.offset
