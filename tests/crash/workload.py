"""A seeded mix of everything a caller does to a log, with each step told to a Recorder before and after."""

from __future__ import annotations

from array import array
from itertools import accumulate
from random import Random

from pyreplog.ack import Ack
from pyreplog.errors import PoisonedError
from pyreplog.log.commitlog import CommitLog

from .history import CONTROL, History, Item, Recorder

DATA = 1


class Workload:
    """Steps on one open log. Items carry their index in the history, so that no two are equal."""

    def __init__(self, log: CommitLog, rng: Random, record: Recorder) -> None:
        self._log, self._rng, self._record = log, rng, record
        self._acks: list[tuple[Ack[int], int]] = []
        self._waits = log.config.durability == "synced"

    @property
    def _history(self) -> History:
        return self._record.history

    def run(self, steps: int) -> None:
        actions = {
            self.append: 30, self.append_batch: 12, self.append_columns: 4, self.append_big: 2, self.submit: 10,
            self.await_acks: 4, self.sync: 3, self.ask: 6, self.truncate: 2, self.trim: 3,
        }  # fmt: skip
        for action in self._rng.choices(list(actions), list(actions.values()), k=steps):
            action()

    # ---- what is put into the log --------------------------------------------------------------------------------

    def _item(self, ahead: int = 0, *, kind: int = DATA, size: int | None = None, keyed: bool = True) -> Item:
        rng = self._rng
        head = b"%d," % (len(self._history.items) + ahead)
        body = rng.choice((0, 10, 100, 100, 1000, 3000, 9000)) if size is None else size
        if body > 500 and rng.random() < 0.2 and self._log.end > self._log.start:
            old = self._log.read(rng.randrange(self._log.start, self._log.end)).raw
            head += b" " * (-(len(head) + 32) % 8) + bytes(old[:body])  # looks like a record, at a place for one
        value = head + rng.randbytes(rng.randint(0, body) if size is None else max(body - len(head), 0))
        return kind, (rng.randbytes(rng.randint(0, 40)) if keyed and rng.random() < 0.3 else None), value

    def append(self) -> None:
        item = self._item()
        self._record("append", [item])
        self._log.append(item[2], item[1])
        self._synced_if_waited()

    def append_big(self) -> None:
        """About as long as a segment takes, or half of it."""
        room = self._log.stats().segment_bytes - 4096 - 64
        item = self._item(size=self._rng.choice((room // 2, room - 40, room)), keyed=False)
        self._record("append", [item])
        self._log.append(item[2])
        self._synced_if_waited()

    def append_batch(self) -> None:
        control = self._item(kind=CONTROL, size=self._rng.randint(0, 300), keyed=False) if self._rng.random() < 0.4 else None
        shift = control is not None
        items = [self._item(i + shift) for i in range(self._rng.randint(1 - shift, 30))]
        self._record("append", ([control] if control else []) + items)
        self._log.append_batch(
            [value for _, _, value in items], [key for _, key, _ in items], control=control[2] if control else None
        )
        self._synced_if_waited()

    def append_columns(self) -> None:
        items = [self._item(i, size=40, keyed=False) for i in range(self._rng.randint(1, 200))]
        offsets = array("q", [0, *accumulate(len(value) for _, _, value in items)])
        self._record("append", items)
        self._log.append_columns((offsets, b"".join(value for _, _, value in items)))
        self._synced_if_waited()

    def submit(self) -> None:
        item = self._item()
        self._record("append", [item])
        self._acks.append((self._log.submit(item[2], item[1]), len(self._history.items)))

    # ---- what is said to be on disk ------------------------------------------------------------------------------

    def _synced_if_waited(self) -> None:
        if self._waits:
            self._record("reported_synced", len(self._history.items))

    def await_acks(self) -> None:
        for ack, count in self._acks:
            ack.result(30.0)
            if self._waits:
                self._record("reported_synced", count)
        self._acks.clear()

    def sync(self) -> None:
        count = len(self._history.items)
        self._log.sync()
        self._record("reported_synced", count)

    def ask(self) -> None:
        """What the log says of itself must be true as well; acks that are done must be, too."""
        self._record("reported_synced_entry", self._log.synced_end)
        for ack, count in self._acks:
            if self._waits and ack.done() and ack.exception() is None:
                self._record("reported_synced", count)

    # ---- what is taken away --------------------------------------------------------------------------------------

    def truncate(self) -> None:
        self.await_acks()
        log, history = self._log, self._history
        numbers = len(history.numbered)
        entry = max(log.start, numbers - self._rng.choice((0, 1, 3, 30, 1000)))
        count = history.numbered[entry] if entry < numbers else len(history.items)
        self._record("truncate", count)
        log.truncate(entry)
        self._record("truncated")

    def trim(self) -> None:
        if self._rng.random() < 0.5:
            self.await_acks()
        entry = self._rng.randint(self._log.start, self._log.end)
        self._record("trim", entry)
        self._record("trimmed", self._log.trim(entry))


def run_until_poisoned(log: CommitLog, rng: Random, record: Recorder, steps: int) -> bool:
    """Run a workload; False when a failed sync ended it, after which nothing may be reported as synced."""
    try:
        Workload(log, rng, record).run(steps)
    except PoisonedError:
        record("reported_synced_entry", log.synced_end)
        return False
    return True
