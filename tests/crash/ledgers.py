"""Lives of a log of many ledgers on the modelled disk: what was acknowledged is there after a cut, and nothing else than
what was sent."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.bookie.ledger_map import LedgerExtent
from pyreplog.errors import DiskError, PoisonedError
from pyreplog.log import commit_log, housekeeper
from tests.ledgers import SEGMENT_BYTES, open_log, read_all, record_of, without_stamp

from .disk import ORDERS, Disk, PowerCutFiles
from .history import Recorder
from .life import Life, events_of, pass_through

Pair = tuple[int, int]
"""(ledger, entry); every one is sent once."""


def record_for(ledger: int, entry: int) -> bytes:
    return record_of(ledger, entry, (ledger * 37 + entry * 11) % 9 * 300)


@dataclass
class LedgerHistory:
    """acked: of what was sent, what must be there. removing: what may be gone; removed: what must be."""

    sent: set[Pair] = field(default_factory=set)
    acked: set[Pair] = field(default_factory=set)
    removing: set[Pair] = field(default_factory=set)
    removed: set[Pair] = field(default_factory=set)
    made: int = 0

    def copy(self) -> LedgerHistory:
        return LedgerHistory(self.sent.copy(), self.acked.copy(), self.removing.copy(), self.removed.copy(), self.made)

    def send(self, pairs: list[Pair]) -> None:
        """About to be appended."""
        self.made = max([self.made, *(entry + 1 for _, entry in pairs)])
        self.sent.update(pairs)

    def refuse(self, pairs: list[Pair]) -> None:
        self.sent.difference_update(pairs)

    def ack(self, pairs: list[Pair]) -> None:
        """Reported to be on disk."""
        self.acked.update(pairs)

    def ack_all(self) -> None:
        self.acked |= self.sent

    def remove(self, pairs: list[Pair]) -> None:
        """About to be removed with their segments."""
        self.removing.update(pairs)

    def removal_done(self) -> None:
        self.removed |= self.removing

    def now_holds(self, pairs: list[Pair]) -> None:
        """The log was opened and holds these, all on disk."""
        self.sent, self.acked = set(pairs), set(pairs)
        self.removed |= self.removing - self.sent
        self.removing -= self.sent

    def check(self, log: LedgerLog) -> list[Pair]:
        """What the log holds."""
        records = {(ledger, entry): raw for ledger in log.ledgers() for entry, raw in read_all(log, ledger).items()}
        strange = [pair for pair in records if pair not in self.sent and pair not in self.removing]
        assert not strange, f"{strange!r:.200} were never sent, or were cut before"
        for pair, raw in records.items():
            assert raw == without_stamp(record_for(*pair)), f"{pair} is not what was sent"
        lost = self.acked - self.removing - records.keys()
        assert not lost, f"{len(lost)} of {len(self.acked)} acknowledged are lost: {sorted(lost)!r:.200}"
        back = self.removed & records.keys()
        assert not back, f"{sorted(back)!r:.200} were removed and came back"
        return sorted(records)


class LedgerWork:
    """Steps on one open log."""

    def __init__(self, log: LedgerLog, rng: Random, record: Recorder, history: LedgerHistory) -> None:
        self.log, self._rng, self._record, self._history = log, rng, record, history
        self._waits = log.commit_log.config.durability == "synced"

    def run(self, steps: int) -> None:
        actions: dict[Callable[[], None], int] = {
            self.append: 30, self.append_many: 6, self.submit: 6, self.sync: 4, self.trim: 2, self.punch_hole: 3,
            self.keep_house: 12,
        }  # fmt: skip
        for action in self._rng.choices(list(actions), list(actions.values()), k=steps):
            action()

    def put(self, count: int, call: Callable[[bytes], object]) -> None:
        pairs = [(self._rng.randrange(4), self._history.made + i) for i in range(count)]
        self._record("send", pairs)
        try:
            call(b"".join(record_for(*pair) for pair in pairs))
        except DiskError:
            self._record("refuse", pairs)
            return
        if self._waits:
            self._record("ack", pairs)

    def append(self) -> None:
        self.put(self._rng.randint(1, 10), self.log.append)

    def append_many(self) -> None:
        self.put(self._rng.randint(50, 200), self.log.append)

    def submit(self) -> None:
        self.put(self._rng.randint(1, 10), lambda records: self.log.submit(records).result(30.0))

    def sync(self) -> None:
        self.log.sync()
        self._record("ack_all")

    def trim(self) -> None:
        bases = [base for base, _ in self.log.segments()]
        if bases:
            gone = bases[: self._rng.randint(1, max(len(bases) // 2, 1))]
            self._remove(gone, lambda: self.log.trim(gone[-1] + SEGMENT_BYTES))

    def punch_hole(self) -> None:
        bases = [base for base, _ in self.log.segments()]
        if bases:
            base = self._rng.choice(bases)
            self._remove([base], lambda: self.log.punch_hole(base))

    def _remove(self, bases: list[int], call: Callable[[], object]) -> None:
        shares = dict(self.log.segments())
        pairs = [
            (ledger, entry)
            for base in bases
            for ledger, share in shares[base]
            for entry in self._entries_in(base, ledger, share)
        ]
        self._record("remove", pairs)
        try:
            call()
        except DiskError:
            return
        self._record("removal_done")

    def _entries_in(self, base: int, ledger: int, share: LedgerExtent) -> list[int]:
        entries, _ = self.log.commit_log.query_index(
            base, lambda index: index.entries(ledger, share.first, share.last + 1)
        )
        return entries.tolist()

    def keep_house(self) -> None:
        log = self.log.commit_log
        try:
            log.run_background_tasks()
        except OSError as error:
            raise log._poison("housekeeping", error) from error


Script = Callable[[LedgerWork], None]


def fill(work: LedgerWork) -> None:
    """A few segments, synced."""
    for _ in range(2):
        work.append_many()
    work.sync()


def punch_hole(work: LedgerWork) -> None:
    work.punch_hole()
    work.append()
    work.sync()


def punch_hole_and_trim(work: LedgerWork) -> None:
    work.punch_hole()
    work.trim()


@dataclass(frozen=True, kw_only=True)
class LedgerLife(Life[LedgerHistory]):
    """Of a log of many ledgers. script: what is done first; moments are counted from there on."""

    durability: str
    script: Script | None = None

    def _live(self, home: Path, target: Path, history: LedgerHistory) -> tuple[Disk, LedgerLog | None]:
        rng = Random(self.seed)
        commit_log.LAZY_SYNC_S = rng.choice((-1.0, 1e9))
        housekeeper.THREADS = False
        disk = Disk(home, target, rng, cut_at=self.cut_at)
        disk.failing_sync, disk.share, disk.order = self.failing_sync, self.share, self.order
        record = Recorder(history, events_of(target))
        log = None
        try:
            log = open_log(home / "log", self.durability, PowerCutFiles(disk))
            record("now_holds", history.check(log))
            work = LedgerWork(log, rng, record, history)
            if self.moments is not None:
                self.moments.watch(disk, events_of(target))
            if self.script is not None:
                self.script(work)
            work.run(self.steps)
            if self.closes:
                log.close()
                record("ack_all")
        except (PoisonedError, OSError):
            if not self.failing_sync:
                raise
        return disk, log


def run(seed: int, folder: Path) -> None:
    """All lives of one seed, in `folder`, which is removed when they went well. AssertionError otherwise."""
    rng = Random(f"ledgers {seed}")
    history, home = LedgerHistory(), folder / "0"
    home.mkdir(parents=True)
    for number in range(rng.choice((2, 3, 4))):
        life = LedgerLife(
            seed=f"{seed} {number}",
            durability=rng.choice(("appended", "interval", "synced")),
            steps=rng.choice((3, 10, 40, 80)),
            cut_at=rng.randint(1, 80) if rng.random() < 0.3 else int(10 ** rng.uniform(1.5, 3.3)),
            failing_sync=rng.randint(1, 40) if rng.random() < 0.1 else 0,
            closes=rng.random() < 0.3,
            order=Random(f"{seed} {number} order").choice(ORDERS),
        )
        target = folder / str(number + 1)
        try:
            pass_through(life, home, target, history)
        except AssertionError as error:
            raise AssertionError(f"life {number}, {life}\n{error}") from None
        shutil.rmtree(home)
        home = target
    pass_through(LedgerLife(seed=f"{seed} last", durability="appended", closes=True), home, folder / "last", history)
    shutil.rmtree(folder)
