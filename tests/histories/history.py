"""What clients of partitions did, and what they were told."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

Log = dict[int, dict[int, str]]
"""Value by offset, by partition."""


class Outcome(Enum):
    """What a client knows of its transaction. An append without a transaction is one of its own."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Append:
    """A value that was sent to a partition. offset: None: the client was not told."""

    partition: int
    value: str
    offset: int | None = None


@dataclass(frozen=True)
class Read:
    """The records of a partition from offset `start` to before `end`, of which some may be a transaction's markers.

    is_latest: at some moment of this read no transaction of the partition was open, its leader was the newest one, and
    the high watermark was not beyond `end`. `tests.histories.reading` finds that out. Other reads may end earlier, as
    those of a former leader may in Kafka.
    """

    partition: int
    start: int
    end: int
    records: tuple[tuple[int, str], ...]
    is_latest: bool = False


@dataclass(frozen=True)
class Transaction:
    """What one client did as one step. began, ended: seconds of a monotonic clock around all of it.

    reads: in the order in which they were done, all before the commit. producer: the transactional id; "": appends and
    reads without a transaction of Kafka.
    """

    began: float
    ended: float
    outcome: Outcome
    appends: tuple[Append, ...] = ()
    reads: tuple[Read, ...] = ()
    producer: str = ""


@dataclass
class History:
    """Transactions of several clients; any thread may add to it.

    final: what the partitions hold after all brokers work again and all clients have ended, committed records only.
    """

    transactions: list[Transaction] = field(default_factory=list)
    final: Log = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self, began: float, outcome: Outcome, appends: Sequence[Append] = (), reads: Sequence[Read] = (),
        producer: str = "",
    ) -> Transaction:  # fmt: skip
        """Add a transaction that ends now. began: `time.monotonic()` before its first step."""
        added = Transaction(began, time.monotonic(), outcome, tuple(appends), tuple(reads), producer)
        with self._lock:
            self.transactions.append(added)
        return added
