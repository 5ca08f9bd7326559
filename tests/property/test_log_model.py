"""A log against a list: hypothesis drives writer, reader and reopening, in every durability."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import pyreplog
from tests import twin

KEYS = st.none() | st.binary(max_size=12)
VALUES = st.binary(max_size=40) | st.integers(0, 9000).map(lambda n: b"v" * n)
TIMES = st.none() | st.integers(-(1 << 62), 1 << 62)


def packed(column: list[bytes]) -> tuple[Any, bytes]:
    """A column as offsets and data."""
    return numpy.cumsum([0, *map(len, column)]), b"".join(column)


class LogMachine(RuleBasedStateMachine):
    """rows[i] = (key, value, event time) of entry first + i."""

    durability = "appended"

    @initialize(recycling=st.booleans())
    def make(self, recycling: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pyreplog-model-"))
        self.path = self.folder / "log"
        self.log = pyreplog.open(self.path, segment_bytes=1 << 16, durability=self.durability, spare_segments=1)
        self.reader = pyreplog.open(self.path, mode="r")
        self.rows: list[tuple[bytes | None, bytes, int | None]] = []
        self.first = 0
        self.positions: list[int] = []

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.reader.close()
            self.log.close()
            self.check_twin()
            shutil.rmtree(self.folder)

    # ---- what a caller does ---------------------------------------------------------------------------------

    @rule(value=VALUES, key=KEYS, time=TIMES)
    def append(self, value: bytes, key: bytes | None, time: int | None) -> None:
        assert self.log.append(value, key, event_time=time) == self.end
        self.rows.append((key, value, time))

    @rule(rows=st.lists(st.tuples(KEYS, VALUES), max_size=60), control=st.none() | st.binary(max_size=10))
    def append_batch(self, rows: list[tuple[bytes | None, bytes]], control: bytes | None) -> None:
        expected = range(self.end, self.end + len(rows))
        assert self.log.append_batch([v for _, v in rows], [k for k, _ in rows], control=control) == expected
        self.rows += [(key, value, None) for key, value in rows]

    @rule(rows=st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=200)), max_size=60), keyed=st.booleans())
    def append_columns(self, rows: list[tuple[bytes, bytes]], keyed: bool) -> None:
        keys, values = [key for key, _ in rows], [value for _, value in rows]
        times = numpy.arange(len(rows))
        offsets = self.log.append_columns(packed(values), packed(keys) if keyed else None, times)
        assert offsets == range(self.end, self.end + len(rows))
        self.rows += [(key if keyed else None, value, i) for i, (key, value) in enumerate(rows)]

    @rule(values=st.lists(VALUES, min_size=1, max_size=10))
    def submit(self, values: list[bytes]) -> None:
        futures = [self.log.submit(value) for value in values]
        assert [future.result(30) for future in futures] == list(range(self.end, self.end + len(values)))
        self.rows += [(None, value, None) for value in values]

    @precondition(lambda self: self.rows)
    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        entry = self.first + round(where * len(self.rows))
        assert self.log.truncate(entry) == entry
        del self.rows[entry - self.first :]

    @rule(where=st.floats(0, 1))
    def trim(self, where: float) -> None:
        wanted = self.first + round(where * len(self.rows))
        start = self.log.trim(wanted)
        assert self.first <= start <= max(wanted, self.first)
        del self.rows[: start - self.first]
        self.first = start

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == self.end
        assert self.log.synced_end == self.end

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.check_twin()
        self.log = pyreplog.open(self.path, durability=self.durability, spare_segments=1)

    @rule()
    def reopen_reader(self) -> None:
        self.reader.close()
        self.reader = pyreplog.open(self.path, mode="r")

    # ---- what must hold -------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    @rule(where=st.floats(0, 1), span=st.integers(0, 100), batch_bytes=st.sampled_from([1, 500, 1 << 20]))
    def scan(self, where: float, span: int, batch_bytes: int) -> None:
        start = self.first + round(where * len(self.rows))
        expected = self.rows[start - self.first : start - self.first + span]
        for handle in (self.log, self.reader):
            rows = [
                (record.key, record.value, record.event_time)
                for batch in handle.read(start, start + span, batch_bytes=batch_bytes)
                for record in batch
            ]
            assert rows == expected

    @precondition(lambda self: self.rows)
    @rule(where=st.floats(0, 1))
    def read(self, where: float) -> None:
        entry = min(self.first + round(where * len(self.rows)), self.end - 1)
        key, value, time = self.rows[entry - self.first]
        for handle in (self.log, self.reader):
            record = handle.get(entry)
            assert (record.entry, record.key, record.value, record.event_time) == (entry, key, value, time)
            assert handle[entry] == value
            assert handle.position_of(entry) == record.position

    @rule()
    def columns(self) -> None:
        for handle in (self.log, self.reader):
            entries = [n for batch in handle.read() for n in batch.entry.tolist()]
            sizes = [n for batch in handle.read() for n in batch.size.tolist()]
            key_sizes = [n for batch in handle.read() for n in batch.key_size.tolist()]
            assert entries == list(range(self.first, self.end))
            assert sizes == [len(value) for _, value, _ in self.rows]
            assert key_sizes == [-1 if key is None else len(key) for key, _, _ in self.rows]

    @invariant()
    def ends_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.start, self.log.end, self.reader.end) == (self.first, self.end, self.end)
            for handle in (self.log, self.reader):
                with pytest.raises(pyreplog.OutOfRangeError):
                    handle.get(self.end)
            if self.first:
                with pytest.raises(pyreplog.TrimmedError):
                    self.log.get(self.first - 1)

    def check_twin(self) -> None:
        records = [r for r in twin.read_log(self.path) if r.kind == 1]
        assert [(r.entry, r.key, r.value) for r in records] == [
            (self.first + i, key, value) for i, (key, value, _) in enumerate(self.rows)
        ]


COMMON = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


class SyncedMachine(LogMachine):
    durability = "synced"


class IntervalMachine(LogMachine):
    durability = "interval"


TestAppended = LogMachine.TestCase
TestAppended.settings = COMMON
TestSynced = SyncedMachine.TestCase
TestSynced.settings = settings(COMMON, max_examples=15)
TestInterval = IntervalMachine.TestCase
TestInterval.settings = settings(COMMON, max_examples=10)
