"""A log with record batches against a list: hypothesis drives the writer, a reader, truncation, trimming, reopening and
kill -9."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import pyreplog
from pyreplog.log.fsck import check
from tests import twin
from tests.ha.streams import kill
from tests.record_batches import Row, check_reads, open_log

COUNTS = st.integers(1, 5) | st.sampled_from([100, 70_000, (1 << 31) - 1])
VALUES = st.binary(max_size=40) | st.integers(0, 9000).map(lambda n: b"v" * n)


class RecordBatchMachine(RuleBasedStateMachine):
    """rows: what the log must hold. was_single: it held single entries alone before."""

    durability = "appended"

    @initialize(singles=st.integers(0, 100))
    def make(self, singles: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pyreplog-model-"))
        self.path = self.folder / "log"
        self.rows: list[Row] = []
        if singles:
            with open_log(self.path, record_batches=False) as log:
                self.append_singles(log, [b"s" * 900] * singles)
        self.log = open_log(self.path, durability=self.durability, spare_segments=1)
        self.reader = pyreplog.open(self.path, mode="r")

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.reader.close()
            self.log.close()
            records = [r for r in twin.read_log(self.path) if r.kind < 3]
            assert [Row(r.first, r.count, r.value) for r in records] == self.rows
            assert check.check(self.path).clean
            shutil.rmtree(self.folder)

    def append_singles(self, log: pyreplog.CommitLog, values: list[bytes]) -> None:
        first = log.append_batch(values).start
        self.rows += [Row(first + i, 1, value) for i, value in enumerate(values)]

    @rule(values=st.lists(VALUES, min_size=1, max_size=20))
    def append(self, values: list[bytes]) -> None:
        self.append_singles(self.log, values)

    @rule(rows=st.lists(st.tuples(COUNTS, VALUES), min_size=1, max_size=20), control=st.none() | st.binary(max_size=9))
    def append_record_batches(self, rows: list[tuple[int, bytes]], control: bytes | None) -> None:
        most, kept = (1 << 31) - 1, list[tuple[int, bytes]]()
        for count, value in rows:
            if count <= most:
                kept.append((count, value))
                most -= count
        end = self.log.end
        numbers = self.log.append_record_batches([v for _, v in kept], [n for n, _ in kept], control=control)
        assert numbers == range(end, end + sum(count for count, _ in kept))
        for count, value in kept:
            self.rows.append(Row(end, count, value))
            end += count

    @precondition(lambda self: self.rows)
    @rule(where=st.floats(0, 1), within=st.floats(0, 1))
    def truncate(self, where: float, within: float) -> None:
        at = min(int(where * len(self.rows)), len(self.rows) - 1)
        row = self.rows[at]
        assert self.log.truncate(row.first + int(within * (row.count - 1))) == row.first
        del self.rows[at:]

    @precondition(lambda self: self.rows)
    @rule(where=st.floats(0, 1))
    def trim(self, where: float) -> None:
        start = self.log.trim(self.rows[min(int(where * len(self.rows)), len(self.rows) - 1)].last)
        self.rows = [row for row in self.rows if row.first >= start]

    @rule(setting=st.booleans())
    def reopen(self, setting: bool) -> None:
        """With the setting or without: the log stays what its newest segment says."""
        was = self.log.record_batches
        self.log.close()
        newest = max(twin.read_header(path.read_bytes()).version for path in sorted(self.path.glob("*.log"))[-1:])
        self.log = open_log(self.path, record_batches=setting or newest == 1, durability=self.durability)
        assert was and self.log.record_batches

    @rule()
    def kill(self) -> None:
        """The page cache outlives the process: nothing is lost."""
        kill(self.log)
        self.log = open_log(self.path, durability=self.durability, spare_segments=1)

    @rule()
    def reopen_reader(self) -> None:
        self.reader.close()
        self.reader = pyreplog.open(self.path, mode="r")

    @rule(seed=st.integers(0, 1 << 30))
    def reads_agree(self, seed: int) -> None:
        for handle in (self.log, self.reader):
            check_reads(handle, self.rows, Random(seed))


COMMON = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


class SyncedMachine(RecordBatchMachine):
    durability = "synced"


TestAppended = RecordBatchMachine.TestCase
TestAppended.settings = COMMON
TestSynced = SyncedMachine.TestCase
TestSynced.settings = settings(COMMON, max_examples=6)
