"""The state machine of a client that appends to a replica group: the order of batches, and their outcomes.

Entries of a client have sequence numbers. A batch without an answer is sent again with the same numbers, and the master
appends only entries that its log lacks. A batch that may be in the log, but whose outcome no master can report any
more, ends with OutcomeUnknownError: it is never sent with other numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyreplog.errors import (
    InvalidMessageError,
    NotConnectedError,
    NotEnoughReplicasError,
    OutcomeUnknownError,
    RecordTooLargeError,
    ReplicationError,
    ReplogError,
)
from pyreplog.future import AppendFuture
from pyreplog.ha.protocol.client_messages import ClientRefusal, Refused, Run

BATCHES_MAX = 8
"""Most batches in flight: fewer than the runs that a master remembers for each client."""

GATHERING_FROM = 2
"""With so many batches in flight, single entries are gathered to larger batches."""

MOVES = frozenset({ClientRefusal.NOT_MASTER, ClientRefusal.CHANGING, ClientRefusal.TIMED_OUT, ClientRefusal.DEPOSED})
"""Refusals after which a batch is sent again, to the master of that time."""

_LOST_PLACE = frozenset({ClientRefusal.OUT_OF_ORDER, ClientRefusal.UNKNOWN_CLIENT})

Settled = tuple[AppendFuture[Any], Any, BaseException | None]
"""A future, its result, its error or None."""


class Batch:
    """Records that are sent together.

    Attributes:
        items: (future, number of entries, whether its result is the sequence of their numbers).
        sequence: sequence number of the first record; -1: not assigned.
        is_doubtful: whether it was sent, and the outcome is unknown.
    """

    __slots__ = ("count", "deadline_us", "is_doubtful", "is_over", "items", "records", "sequence", "size")

    def __init__(self, deadline_us: int) -> None:
        self.records: list[bytes] = []
        self.items: list[tuple[AppendFuture[Any], int, bool]] = []
        self.size = self.count = 0
        self.sequence, self.deadline_us = -1, deadline_us
        self.is_doubtful = self.is_over = False

    def add(self, data: bytes, count: int, future: AppendFuture[Any], is_batch: bool) -> None:
        self.records.append(data)
        self.items.append((future, count, is_batch))
        self.size += len(data)
        self.count += count

    def results(self, runs: Sequence[Run]) -> Iterator[Settled]:
        at = 0
        numbers: Sequence[int] = range(runs[0].first, runs[0].first + runs[0].entries)
        if len(runs) > 1:
            numbers = tuple(number for run in runs for number in range(run.first, run.first + run.entries))
        for future, count, is_batch in self.items:
            yield future, numbers[at : at + count] if is_batch else numbers[at], None
            at += count

    def failures(self, error: BaseException) -> list[Settled]:
        return [(future, None, error) for future, _, _ in self.items]


class AppendSession:
    """The batches of one client, in order.

    One thread at a time may call it. The caller settles the returned futures outside its locks.

    Args:
        new_id: returns 16 random bytes.
        batch_bytes: about how many bytes a gathered batch has.
        batch_entries: most entries of a gathered batch.
    """

    def __init__(self, new_id: Callable[[], bytes], *, batch_bytes: int, batch_entries: int) -> None:
        self.bytes = self.entries = 0
        """Bytes and entries without an outcome."""
        self._new_id = new_id
        self.client = new_id()
        self._batch_bytes, self._batch_entries = batch_bytes, batch_entries
        self._next = 0
        self._gathering: Batch | None = None  # last batch of the queue, which takes more entries
        self._queue: deque[Batch] = deque()
        self._sent: deque[Batch] = deque()
        self._rejected: deque[Batch] = deque()  # sent, and certainly not appended: they get new sequence numbers
        self._is_renewing = False

    @property
    def is_idle(self) -> bool:
        """Whether every batch has an outcome."""
        return not self._queue and not self._sent and not self._rejected

    # ---- adding ---------------------------------------------------------------------------------------------

    def add(self, data: bytes, future: AppendFuture[int], deadline_us: int) -> None:
        """Add one record, to a gathered batch."""
        batch = self._gathering
        is_full = batch is None or batch.size + len(data) > self._batch_bytes or batch.count >= self._batch_entries
        if batch is None or is_full:
            batch = self._gathering = Batch(deadline_us)
            self._queue.append(batch)
        self._enter(batch, data, 1, future, False)

    def add_batch(self, data: bytes, count: int, future: AppendFuture[Any], deadline_us: int) -> None:
        """Add records of one call, as a batch of their own."""
        self._gathering = None
        batch = Batch(deadline_us)
        self._queue.append(batch)
        self._enter(batch, data, count, future, True)

    def _enter(self, batch: Batch, data: bytes, count: int, future: AppendFuture[Any], is_batch: bool) -> None:
        batch.add(data, count, future, is_batch)
        self.bytes += len(data)
        self.entries += count

    # ---- sending --------------------------------------------------------------------------------------------

    def take(self) -> Batch | None:
        """Return the next batch to send to the connected master; None: no batch is due."""
        if self._is_renewing or not self._queue or len(self._sent) >= BATCHES_MAX:
            return None
        batch = self._queue[0]
        if batch is self._gathering:
            if len(self._sent) >= GATHERING_FROM:
                return None
            self._gathering = None
        self._queue.popleft()
        if batch.sequence < 0:
            batch.sequence = self._next
            self._next += batch.count
        self._sent.append(batch)
        return batch

    # ---- outcomes -------------------------------------------------------------------------------------------

    def appended(self, batch: Batch, runs: Sequence[Run]) -> list[Settled]:
        """Report the acknowledgement of a batch. Raises InvalidMessageError: the number of entries differs."""
        if batch.is_over:
            return []
        if sum(run.entries for run in runs) != batch.count:
            raise InvalidMessageError(f"APPENDED: expected numbers of {batch.count} entries, found {runs}")
        self._end(batch)
        return list(batch.results(runs))

    def refused(self, batch: Batch, refused: Refused) -> list[Settled]:
        """Report a refusal whose code is not in MOVES."""
        if batch.is_over:
            return []
        self._is_renewing = True  # later sequence numbers cannot be used
        settled: list[Settled] = []
        if batch.is_doubtful:
            settled = self._fail(batch, _unknown(f"it was sent before, and then refused: {refused.text}"))
        elif refused.code in _LOST_PLACE:
            self._sent.remove(batch)
            self._rejected.append(batch)
        else:
            settled = self._fail(batch, _error_of(refused))
        return [*settled, *self._renew()]

    def moved(self, batch: Batch, refused: Refused) -> None:
        """Report a refusal whose code is in MOVES. The caller calls `lost` afterwards."""
        if refused.code in (ClientRefusal.TIMED_OUT, ClientRefusal.DEPOSED):
            batch.is_doubtful = True
        elif not batch.is_over and batch in self._sent:
            self._sent.remove(batch)
            self._insert(batch)

    def _insert(self, batch: Batch) -> None:
        """Put a batch back into the queue, in the order of the sequence numbers."""
        at = 0
        while at < len(self._queue) and 0 <= self._queue[at].sequence < batch.sequence:
            at += 1
        self._queue.insert(at, batch)

    def lost(self) -> list[Settled]:
        """Report the end of the connection: batches without an answer are sent again over the next one."""
        for batch in self._sent:
            batch.is_doubtful = True
        sent, self._sent = self._sent, deque()
        if not self._is_renewing:
            for batch in sent:
                self._insert(batch)
            return []
        settled = [
            outcome for batch in list(sent) for outcome in self._fail(batch, _unknown("the connection was lost"))
        ]
        return [*settled, *self._renew()]

    def _renew(self) -> list[Settled]:
        """Begin a new client id with new sequence numbers, once no batch of the present id is in flight."""
        if not self._is_renewing or self._sent:
            return []
        self._is_renewing = False
        self.client, self._next = self._new_id(), 0
        settled: list[Settled] = []
        for batch in [batch for batch in self._queue if batch.is_doubtful]:
            settled.extend(self._fail(batch, _unknown("it was sent before, under numbers that hold no more")))
        self._queue.extendleft(reversed(self._rejected))
        self._rejected.clear()
        for batch in self._queue:
            batch.sequence = -1
        return settled

    # ---- expiry and close -----------------------------------------------------------------------------------

    def expire(self, now_us: int, why: str) -> list[Settled]:
        """Fail the batches whose deadline is over. `why` is part of their errors."""
        late = [
            batch for batches in (self._sent, self._rejected, self._queue) for batch in batches
            if batch.deadline_us <= now_us
        ]  # fmt: skip
        settled = [outcome for batch in late for outcome in self._fail(batch, self._late(batch, why))]
        return [*settled, *self._renew()]

    def _late(self, batch: Batch, why: str) -> ReplogError:
        if batch.is_doubtful or batch in self._sent:
            return _unknown(f"no answer in time: {why}")
        return NotConnectedError(f"no master took it in time, nothing was appended: {why}")

    def end(self, error: ReplogError) -> list[Settled]:
        """Fail all batches: the client is closed."""
        settled: list[Settled] = []
        for batch in [*self._sent, *self._rejected, *self._queue]:
            is_unknown = batch.is_doubtful or batch in self._sent
            settled.extend(self._fail(batch, _unknown(str(error)) if is_unknown else error))
        return settled

    def _fail(self, batch: Batch, error: BaseException) -> list[Settled]:
        self._end(batch)
        return batch.failures(error)

    def _end(self, batch: Batch) -> None:
        batch.is_over = True
        self.bytes -= batch.size
        self.entries -= batch.count
        if batch is self._gathering:
            self._gathering = None
        for batches in (self._sent, self._queue, self._rejected):
            if batch in batches:
                batches.remove(batch)


def _unknown(why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"whether the entries were appended is unknown: {why}")


def _error_of(refused: Refused) -> ReplogError:
    """Return the error of a batch that was not appended."""
    if refused.code == ClientRefusal.NOT_ENOUGH_REPLICAS:
        return NotEnoughReplicasError(refused.text)
    if refused.code == ClientRefusal.TOO_LARGE:
        return RecordTooLargeError(refused.text)
    return ReplicationError(f"the master refused the batch: {refused.text}")
