"""ProducerStateManager: the batches of clients in the log of a replica group, so that a repeated APPEND has no effect.

A master writes a control record in front of each batch of a client, with the client's id and the sequence numbers. The
records of the batch follow, up to the next control record. A snapshot of all clients is written for each SNAPSHOT_BYTES
of log. So each replica has the state of its own part of the log, and a new master reads the last SCAN_BYTES.
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
"""Prefix of the control records."""

VERSION = 1
BATCH, SNAPSHOT = 1, 2

SNAPSHOT_BYTES = 16 << 20
SCAN_BYTES = 4 * SNAPSHOT_BYTES
CLIENTS_MAX = 1024
_BATCH_KIND = 2
"""Records of higher kinds have no entry numbers."""

RUNS_KEPT = 16
"""Runs kept of each client. A client has fewer batches in flight, and only the failure of a master splits a batch."""

_HEAD = struct.Struct("<6sBB")
_BATCH = struct.Struct("<6sBB16sqII")
_SNAPSHOT = struct.Struct("<6sBBII")
_CLIENT = struct.Struct("<16sqII")
_RUN = struct.Struct("<qqq")
_CLIENT_BYTES_MAX = _CLIENT.size + RUNS_KEPT * _RUN.size


class StoredRun(NamedTuple):
    """Adjacent entries of a client. sequence: of the first one; first: its number in the log."""

    sequence: int
    first: int
    entries: int


@dataclass
class ProducerStateEntry:
    """One client. next: its next sequence number. runs: its newest entries. position: the end of these."""

    next: int = 0
    position: int = 0
    runs: deque[StoredRun] = field(default_factory=lambda: deque(maxlen=RUNS_KEPT))

    def numbers(self, sequence: int, count: int) -> tuple[Run, ...] | None:
        """Return the numbers of entries, given their sequence numbers; None: they are too old to be known."""
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
    """The clients by id, least recently used first. Not thread-safe.

    Args:
        clients_max: most clients; beyond that the least recently used one is removed.
    """

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._by_id: dict[bytes, ProducerStateEntry] = {}

    @classmethod
    def of(cls, log: CommitLog) -> ProducerStateManager:
        """Return the clients with batches in a log, committed or not. Blocks while the end of the log is read.

        If there are any, the caller appends a snapshot, because later entries belong to none of these batches.
        """
        producers = cls(min(CLIENTS_MAX, log.segment_bytes // 4 // _CLIENT_BYTES_MAX))
        producers._scan(log)
        return producers

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, client: bytes) -> ProducerStateEntry | None:
        return self._by_id.get(client)

    def use(self, client: bytes) -> ProducerStateEntry:
        """Return a client, which is added if it is new, as the most recently used one."""
        producer = self._by_id.pop(client, None) or ProducerStateEntry()
        self._by_id[client] = producer
        while len(self._by_id) > self._clients_max:
            del self._by_id[next(iter(self._by_id))]
        return producer

    # ---- as control records ---------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the control record with all clients."""
        parts = [_SNAPSHOT.pack(MAGIC, SNAPSHOT, VERSION, len(self._by_id), 0)]
        for client, producer in self._by_id.items():
            parts.append(_CLIENT.pack(client, producer.next, len(producer.runs), 0))
            parts.extend(_RUN.pack(*run) for run in producer.runs)
        return b"".join(parts)

    def _load(self, control: bytes, position: int) -> None:
        """Replace all clients by those of a snapshot. `position`: end of the entries that it describes."""
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
        batch: tuple[bytes, int, int] | None = None  # client, sequence, count of the last control record
        for control, first, count, position in _split_at_controls(log):
            if control is not None:
                batch = None
                kind = control[len(MAGIC)] if control.startswith(MAGIC) and len(control) >= _HEAD.size else 0
                try:
                    if kind == SNAPSHOT:
                        self._load(control, position)
                    elif kind == BATCH:
                        batch = _BATCH.unpack_from(control)[3:6]
                except struct.error:  # a later version wrote a shorter record: its contents are unknown
                    batch = None
            if batch is not None and count:
                client, sequence, left = batch
                taken = min(count, left)
                self.use(client).add(sequence, first, taken, position)
                batch = (client, sequence + taken, left - taken) if left > taken else None


def batch_control(client: bytes, sequence: int, count: int) -> bytes:
    """Return the control record in front of a batch."""
    assert len(client) == CLIENT_ID_BYTES
    return _BATCH.pack(MAGIC, BATCH, VERSION, client, sequence, count, 0)


def _split_at_controls(log: CommitLog) -> Iterator[tuple[bytes | None, int, int, int]]:
    """Yield the end of a log, split at its control records.

    Each part is (its control record, or None: it continues the last part; number of its first entry; number of entries;
    position of its end).
    """
    for batch in log.read_positions(_scan_start(log), all_kinds=True, committed=False):
        # Record by record: columns need numpy, and importing that would delay a failover.
        controls = [at for at, record in enumerate(batch) if record.kind > _BATCH_KIND]
        splits = [*controls, len(batch)]
        if splits[0]:
            yield None, batch.first, splits[0], _end_of(batch, splits[0])
        for at, until in pairwise(splits):
            record = batch[at]
            yield record.value, record.entry, until - at - 1, _end_of(batch, until)


def _end_of(batch: RecordBatch, until: int) -> int:
    last = batch[until - 1]
    return last.position + last.raw.nbytes


def _scan_start(log: CommitLog) -> int:
    """Return the position of a record about SCAN_BYTES before the end."""
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
