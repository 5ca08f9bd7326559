"""A seeded mix of everything a caller does to a log, with each step told to a Recorder before and after."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import accumulate
from random import Random

from pyreplog.errors import DiskError, PoisonedError, TrimmedError
from pyreplog.future import AppendFuture
from pyreplog.log.commit_log import CommitLog

from .history import BATCH, CONTROL, History, Item, Recorder, count_of

DATA = 1


class Workload:
    """Steps on one open log. threads: the log's own threads run; else nothing happens but what a step does, and
    housekeeping is one of the steps, so that the seed alone decides the run."""

    def __init__(self, log: CommitLog, rng: Random, record: Recorder, *, threads: bool) -> None:
        self._log, self._rng, self._record, self._threads = log, rng, record, threads
        self._acks: list[tuple[AppendFuture[int], int]] = []
        self._waits = log.config.durability == "synced"

    @property
    def _history(self) -> History:
        return self._record.history

    def run(self, steps: int) -> None:
        actions: dict[Callable[[], None], int] = {
            self.append: 30, self.append_batch: 12, self.append_columns: 4, self.append_big: 2, self.submit: 10,
            self.await_acks: 4, self.sync: 3, self.ask: 6, self.truncate: 2, self.trim: 3,
            self.keep_house: 0 if self._threads else 15,
            self.append_record_batches: 15 if self._log.record_batches else 0,
        }  # fmt: skip
        for action in self._rng.choices(list(actions), list(actions.values()), k=steps):
            action()

    # ---- what is put into the log --------------------------------------------------------------------------------

    def _item(self, ahead: int = 0, *, kind: int = DATA, size: int | None = None, keyed: bool = True) -> Item:
        rng = self._rng
        head = b"%d," % (self._history.made + ahead)
        body = rng.choice((0, 10, 100, 100, 1000, 3000, 9000)) if size is None else size
        if size is None:
            head += self._lookalike(head, body)
            body = rng.randint(0, body) + len(head)
        return kind, (rng.randbytes(rng.randint(0, 40)) if keyed and rng.random() < 0.3 else None), (
            head + rng.randbytes(max(body - len(head), 0))
        )  # fmt: skip

    def _lookalike(self, head: bytes, room: int) -> bytes:
        """Sometimes the bytes of an earlier record, at a place where a record could begin."""
        log, rng = self._log, self._rng
        start, end = log.start, log.end  # once: retention may come between
        if room < 1000 or rng.random() < 0.7 or start >= end:
            return b""
        try:
            old = log.get(rng.randrange(start, end))
        except TrimmedError:  # retention was quicker
            return b""
        return b" " * (-(len(head) + 32) % 8) + old.raw[:room]

    def _put(self, items: list[Item], call: Callable[[], object]) -> None:
        """An append in one of its forms: it puts down all items, or says that it did none."""
        self._record("append", items)
        try:
            call()
        except DiskError:
            self._record("refused_append", len(items))
        else:
            self._synced_if_waited()

    def append(self) -> None:
        item = self._item()
        self._put([item], lambda: self._log.append(item[2], item[1]))

    def append_big(self) -> None:
        """As long as a segment takes, or half of it."""
        room = self._log.stats().segment_bytes - 4096 - 64
        item = self._item(size=self._rng.choice((room // 2, room - 40, room)), keyed=False)
        self._put([item], lambda: self._log.append(item[2]))

    def append_batch(self) -> None:
        control = self._rng.random() < 0.4
        first = [self._item(kind=CONTROL, size=self._rng.randint(0, 300), keyed=False)] if control else []
        items = [self._item(i + control) for i in range(self._rng.randint(1 - control, 30))]
        values, keys = [value for _, _, value in items], [key for _, key, _ in items]
        self._put(first + items, lambda: self._log.append_batch(values, keys, control=first[0][2] if control else None))

    def append_columns(self) -> None:
        items = [self._item(i, size=40, keyed=False) for i in range(self._rng.randint(1, 200))]
        offsets = array("q", [0, *accumulate(len(value) for _, _, value in items)])
        packed = b"".join(value for _, _, value in items)
        self._put(items, lambda: self._log.append_columns((offsets, packed)))

    def append_record_batches(self) -> None:
        """Several records, each of which takes several entry numbers."""
        control = self._rng.random() < 0.3
        first = [self._item(kind=CONTROL, size=self._rng.randint(0, 300), keyed=False)] if control else []
        items = [self._record_batch(i + control) for i in range(self._rng.randint(1, 8))]
        values, counts = [value for _, _, value in items], [count_of(item) for item in items]
        front = first[0][2] if control else None
        self._put(first + items, lambda: self._log.append_record_batches(values, counts, control=front))

    def _record_batch(self, ahead: int) -> Item:
        _, _, value = self._item(ahead, keyed=False)
        return BATCH, None, b"%d#" % self._rng.choice((1, 2, 3, 10, 50, 300)) + value

    def submit(self) -> None:
        item = self._item()
        self._record("append", [item])
        try:
            future = self._log.submit(item[2], item[1])
        except DiskError:
            self._record("refused_append", 1)
            return
        self._acks.append((future, len(self._history.items)))
        if not self._threads:
            self.await_acks()

    # ---- what is said to be on disk ------------------------------------------------------------------------------

    def _synced_if_waited(self) -> None:
        if self._waits:
            self._record("reported_synced", len(self._history.items))

    def await_acks(self) -> None:
        for future, count in self._acks:
            future.result(30.0)
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
        for future, count in self._acks:
            if self._waits and future.done() and future.exception() is None:
                self._record("reported_synced", count)

    def keep_house(self) -> None:
        """What the housekeeper's thread does when it wakes up."""
        try:
            self._log.run_background_tasks()
        except OSError as error:
            raise self._log._poison("housekeeping", error) from error

    # ---- what is taken away --------------------------------------------------------------------------------------

    def truncate(self) -> None:
        self.await_acks()
        log, history = self._log, self._history
        numbers = len(history.numbered)
        entry = max(log.start, numbers - self._rng.choice((0, 1, 3, 30, 1000)))
        self._record("truncate", history.numbered[entry] if entry < numbers else len(history.items))
        try:
            log.truncate(entry)
        except TrimmedError:  # retention was quicker
            self._record("refused")
        else:
            self._record("truncated")

    def trim(self) -> None:
        entry = self._rng.randint(self._log.start, self._log.end)
        self._record("trim", entry)
        self._record("trimmed", self._log.trim(entry))


def run_until_poisoned(log: CommitLog, rng: Random, record: Recorder, steps: int, *, threads: bool) -> bool:
    """Run a workload; False when the disk ended it. What the log then still says is on disk must be."""
    try:
        Workload(log, rng, record, threads=threads).run(steps)
    except PoisonedError:
        record("reported_synced_entry", log.synced_end)
        return False
    return True
