"""A log of many ledgers against a dict: any order, copies, reopening, kills, damaged index files, trims, hollow segments."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pyreplog._native.ledger_log.entries import CONTROL
from pyreplog.log.fsck.check import check
from pyreplog.log.fsck.damage import INDEX
from tests import twin
from tests.ledgers import SEGMENT_BYTES, control_of, open_log, record_of, split, without_stamp

LEDGERS = st.integers(0, 3)
ENTRIES = st.integers(0, 60) | st.sampled_from([500, 1 << 33, (1 << 62) + 5])
PAIRS = st.tuples(LEDGERS, ENTRIES)


def record_for(ledger: int, entry: int) -> bytes:
    return record_of(ledger, entry, (ledger * 37 + entry * 11) % 9 * 900)


class LedgerLogMachine(RuleBasedStateMachine):
    """copies[ledger, id]: (position, record) of each copy that was put down, the oldest first."""

    durability = "appended"

    @initialize()
    def make(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pyreplog-ledgers-"))
        self.generation = 0
        self.path = self.folder / "0"
        self.log = open_log(self.path, self.durability)
        self.copies: dict[tuple[int, int], list[tuple[int, bytes]]] = defaultdict(list)
        self.end = 4096
        self.controls = 0

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.check_all()
            self.log.close()
            assert [damage for damage in check(self.path).damages if damage.part != INDEX] == []
            self.check_twin()
            shutil.rmtree(self.folder)

    # ---- what is put down ---------------------------------------------------------------------------------------

    def _put(self, records: list[tuple[int, int, bytes]]) -> bytes:
        for ledger, entry, raw in records:
            if self.end % SEGMENT_BYTES + len(raw) > SEGMENT_BYTES - 32:
                self.end = self.end // SEGMENT_BYTES * SEGMENT_BYTES + SEGMENT_BYTES + 4096
            self.copies[ledger, entry].append((self.end, without_stamp(raw)))
            self.end += len(raw)
        return b"".join(raw for _, _, raw in records)

    @rule(pairs=st.lists(PAIRS, max_size=40))
    def append(self, pairs: list[tuple[int, int]]) -> None:
        records = self._put([(ledger, entry, record_for(ledger, entry)) for ledger, entry in pairs])
        assert self.log.append(records) == self.end

    @rule(ledger=LEDGERS, first=st.integers(0, 60), count=st.integers(1, 60))
    def append_run(self, ledger: int, first: int, count: int) -> None:
        self.append([(ledger, entry) for entry in range(first, first + count)])

    @rule(batches=st.lists(st.lists(PAIRS, min_size=1, max_size=5), max_size=5))
    def submit(self, batches: list[list[tuple[int, int]]]) -> None:
        futures = [self.log.submit(self._put([(n, e, record_for(n, e)) for n, e in batch])) for batch in batches]
        ends = [future.result(30) for future in futures]
        assert ends == sorted(ends) and self.log.end_position == self.end

    @rule(ledger=LEDGERS, code=st.integers(0, 3))
    def append_control(self, ledger: int, code: int) -> None:
        self.controls += 1
        raw = control_of(ledger, code, b"%d" % self.controls)
        assert self.log.append(self._put([(ledger + CONTROL, code, raw)])) == self.end

    # ---- what happens to the log --------------------------------------------------------------------------------

    @rule()
    def sync(self) -> None:
        self.log.sync()

    @rule(killed=st.booleans(), seed=st.integers(0, 999), damages=st.integers(0, 4))
    def reopen(self, killed: bool, seed: int, damages: int) -> None:
        self.generation += 1
        old, self.path = self.path, self.folder / f"{self.generation}"
        if killed:
            shutil.copytree(old, self.path, ignore=shutil.ignore_patterns("fresh-*", "spare-*", "*.new"))
            self.log.close()
            shutil.rmtree(old)
        else:
            self.log.close()
            old.rename(self.path)
        for _ in range(damages):
            self._damage(Random(seed))
        self.log = open_log(self.path, self.durability)
        assert self.log.cut_records == 0

    def _damage(self, rng: Random) -> None:
        """To an index file; all of it can be told from the segment."""
        files = [
            path for path in sorted(self.path.glob("*.*")) if path.suffix in (".led", ".idx") and path.stat().st_size
        ]
        if not files:
            return
        file = rng.choice(files)
        data = bytearray(file.read_bytes())
        match rng.randrange(4):
            case 0:
                file.unlink()
            case 1:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                file.write_bytes(data)
            case 2:
                file.write_bytes(data[: rng.randrange(len(data))])
            case _:
                other = rng.choice([path for path in files if path.suffix == file.suffix])
                file.write_bytes(other.read_bytes())

    @rule(where=st.floats(0, 1.1))
    def trim(self, where: float) -> None:
        position = int(self.end * where)
        start = min(position, self.end // SEGMENT_BYTES * SEGMENT_BYTES) // SEGMENT_BYTES * SEGMENT_BYTES
        start = max(start, self.log.start_position)
        assert self.log.trim(position) == start
        self._forget(range(start))

    @rule(choice=st.floats(0, 1))
    def punch_hole(self, choice: float) -> None:
        sealed = [base for base, _ in self.log.segments()]
        if sealed:
            base = sealed[round(choice * (len(sealed) - 1))]
            self.log.punch_hole(base)
            self._forget(range(base, base + SEGMENT_BYTES))

    def _forget(self, gone: range) -> None:
        for key, copies in list(self.copies.items()):
            self.copies[key] = [copy for copy in copies if copy[0] not in gone]
            if not self.copies[key]:
                del self.copies[key]

    # ---- what must hold -----------------------------------------------------------------------------------------

    @rule(
        ledger=LEDGERS, control=st.booleans(), first=ENTRIES, span=st.integers(0, 80), bytes_max=st.integers(1, 30_000)
    )
    def read(self, ledger: int, control: bool, first: int, span: int, bytes_max: int) -> None:
        self._check_read(ledger + CONTROL * control, first, first + span, bytes_max)

    def _check_read(self, ledger: int, first: int, last: int, bytes_max: int) -> int:
        """Every id of [first, next) that is not among the records is not in the log; returns next."""
        records, after = self.log.read(ledger, first, last + 1, bytes_max)
        assert first < after <= last + 1
        actual_records = split(records, ledger, first, after - 1)
        expected = {e: copies[-1][1] for (n, e), copies in self.copies.items() if n == ledger and first <= e < after}
        assert actual_records == expected
        assert len(records) <= bytes_max or len(actual_records) == 1
        return after

    @rule()
    def check_all(self) -> None:
        ledgers = {ledger for ledger, _ in self.copies}
        assert self.log.ledgers() == sorted(ledgers)
        for ledger in range(5):
            entries = [e for n, e in self.copies if n == ledger]
            assert self.log.last_entry(ledger) == max(entries, default=None)
            shares = self.log.shares(ledger)
            assert sum(share.bytes for share in shares) == sum(
                len(raw) for (n, _), copies in self.copies.items() if n == ledger for _, raw in copies
            )
            for start in (0, 1 << 33, 1 << 62):
                self._check_read(ledger, start, start + 600, 1 << 20)

    def check_twin(self) -> None:
        """Every byte of what is in the files, in the order it was put there."""
        stored = sorted((at, ledger, entry) for (ledger, entry), copies in self.copies.items() for at, _ in copies)
        told = [(r.position, r.ledger + CONTROL * (r.kind == 3), r.entry) for r in twin.read_log(self.path)]
        assert told == stored


class SyncedMachine(LedgerLogMachine):
    durability = "synced"


class IntervalMachine(LedgerLogMachine):
    durability = "interval"


COMMON = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)

TestAppended = LedgerLogMachine.TestCase
TestAppended.settings = COMMON
TestSynced = SyncedMachine.TestCase
TestSynced.settings = COMMON
TestInterval = IntervalMachine.TestCase
TestInterval.settings = COMMON
