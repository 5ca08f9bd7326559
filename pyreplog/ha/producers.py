"""Which batches of which clients a replica group's log holds: what makes a repeated APPEND harmless.

A master writes a control record in front of each batch of a client: whose it is, and its sequence numbers. The records
of the batch follow, up to the next control record. A snapshot of all clients comes every SNAPSHOT_BYTES of log. So the
log itself says what is in it, in the part of it that a replica has: a new master reads the last SCAN_BYTES.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from pyreplog._native.log.batch import RecordBatch
from pyreplog.ha.protocol.client_messages import CLIENT_ID_BYTES, Run
from pyreplog.log.commit_log import CommitLog

MAGIC = b"RPCLNT"
"""What the control records begin with."""

VERSION = 1
BATCH, SNAPSHOT = 1, 2

SNAPSHOT_BYTES = 16 << 20
SCAN_BYTES = 4 * SNAPSHOT_BYTES
CLIENTS_MAX = 1024
_BATCH_KIND = 2
"""Kind of records above which they have no entry numbers."""

RUNS_KEPT = 16
"""Of each client: a client has fewer batches on their way, and a batch is cut by a failure of its master only."""

_HEAD = struct.Struct("<6sBB")
_BATCH = struct.Struct("<6sBB16sqII")
_SNAPSHOT = struct.Struct("<6sBBII")
_CLIENT = struct.Struct("<16sqII")
_RUN = struct.Struct("<qqq")
_CLIENT_BYTES_MAX = _CLIENT.size + RUNS_KEPT * _RUN.size


class StoredRun(NamedTuple):
    """Entries of a client that lie side by side. sequence: of the first one; first: its number in the log."""

    sequence: int
    first: int
    entries: int


@dataclass
class ProducerStateEntry:
    """One client. next: the sequence number that comes next. runs: its newest entries. position: where they end."""

    next: int = 0
    position: int = 0
    runs: deque[StoredRun] = field(default_factory=lambda: deque(maxlen=RUNS_KEPT))

    def numbers(self, sequence: int, count: int) -> tuple[Run, ...] | None:
        """Numbers of the entries of these sequence numbers; None: they are too old to be known."""
        runs: list[Run] = []
        for run in self.runs:
            low, high = max(sequence, run.sequence), min(sequence + count, run.sequence + run.entries)
            if low < high:
                runs.append(Run(run.first + low - run.sequence, high - low))
        return tuple(runs) if sum(run.entries for run in runs) == count else None

    def add(self, sequence: int, first: int, count: int, position: int) -> None:
        self.runs.append(StoredRun(sequence, first, count))
        self.next, self.position = sequence + count, position


class ProducerStateManager:
    """Clients by id, the one that was used longest ago first. One thread at a time.

    clients_max: beyond, the oldest is forgotten.
    """

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._by_id: dict[bytes, ProducerStateEntry] = {}

    @classmethod
    def of(cls, log: CommitLog) -> ProducerStateManager:
        """Those of which a log holds batches, committed or not. A log that holds any gets a snapshot at its end: what
        comes behind belongs to no batch. Blocks while the end of the log is read."""
        producers = cls(min(CLIENTS_MAX, log.segment_bytes // 4 // _CLIENT_BYTES_MAX))
        producers._scan(log)
        return producers

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, client: bytes) -> ProducerStateEntry | None:
        return self._by_id.get(client)

    def use(self, client: bytes) -> ProducerStateEntry:
        """The client's, made if it is new; now it is the one that was used last."""
        producer = self._by_id.pop(client, None) or ProducerStateEntry()
        self._by_id[client] = producer
        while len(self._by_id) > self._clients_max:
            del self._by_id[next(iter(self._by_id))]
        return producer

    # ---- as control records ---------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The control record of all clients."""
        parts = [_SNAPSHOT.pack(MAGIC, SNAPSHOT, VERSION, len(self._by_id), 0)]
        for client, producer in self._by_id.items():
            parts.append(_CLIENT.pack(client, producer.next, len(producer.runs), 0))
            parts.extend(_RUN.pack(*run) for run in producer.runs)
        return b"".join(parts)

    def _load(self, control: bytes, position: int) -> None:
        """In place of all that was known. What it refers to lies before `position`."""
        *_, count, _ = _SNAPSHOT.unpack_from(control)
        self._by_id.clear()
        at = _SNAPSHOT.size
        for _ in range(count):
            client, following, runs, _ = _CLIENT.unpack_from(control, at)
            at += _CLIENT.size
            producer = self.use(client)
            producer.next, producer.position = following, position
            for _ in range(runs):
                producer.runs.append(StoredRun(*_RUN.unpack_from(control, at)))
                at += _RUN.size

    # ---- from the log ---------------------------------------------------------------------------------------

    def _scan(self, log: CommitLog) -> None:
        batch: tuple[bytes, int, int] | None = None  # client, sequence, count: of the last control record
        for control, first, count, position in _cut_at_controls(log):
            if control is not None:
                batch = None
                kind = control[len(MAGIC)] if control.startswith(MAGIC) and len(control) >= _HEAD.size else 0
                try:
                    if kind == SNAPSHOT:
                        self._load(control, position)
                    elif kind == BATCH:
                        batch = _BATCH.unpack_from(control)[3:6]
                except struct.error:  # of a later version: it says so little that it says nothing
                    batch = None
            if batch is not None and count:
                client, sequence, left = batch
                taken = min(count, left)
                self.use(client).add(sequence, first, taken, position)
                batch = (client, sequence + taken, left - taken) if left > taken else None


def batch_control(client: bytes, sequence: int, count: int) -> bytes:
    """The control record in front of a batch."""
    assert len(client) == CLIENT_ID_BYTES
    return _BATCH.pack(MAGIC, BATCH, VERSION, client, sequence, count, 0)


def _cut_at_controls(log: CommitLog) -> Iterator[tuple[bytes | None, int, int, int]]:
    """Yield the end of a log, cut at its control records.

    Each part is (the control record in front of it; None: it continues the part before; number of its first entry; how
    many entries it has; the position where they end).
    """
    for batch in log.read_positions(_scan_start(log), all_kinds=True, committed=False):
        # Not by columns: they need numpy, which a node does not load, and not while it takes over.
        controls = [at for at, record in enumerate(batch) if record.kind > _BATCH_KIND]
        cuts = [*controls, len(batch)]
        if cuts[0]:
            yield None, batch.first, cuts[0], _end_of(batch, cuts[0])
        for at, until in pairwise(cuts):
            record = batch[at]
            yield record.value, record.entry, until - at - 1, _end_of(batch, until)


def _end_of(batch: RecordBatch, until: int) -> int:
    last = batch[until - 1]
    return last.position + last.raw.nbytes


def _scan_start(log: CommitLog) -> int:
    """Position of a record, about SCAN_BYTES before the end."""
    low, high, wanted = log.start, log.end, log.end_position - SCAN_BYTES
    if wanted <= log.start_position or low >= high:
        return log.start_position
    while low < high:
        middle = (low + high) // 2
        if log.position_of(middle) < wanted:
            low = middle + 1
        else:
            high = middle
    return log.position_of(low)
