"""Writers in a process of their own: `python -m tests.chaos.autorecovery.writing URL OPEN [--no-password]`.

So many ledgers stay open, and are appended to all the time. A line on the standard input is a command: `fill` fills a
ledger and closes it; `flush` has the appends pause and waits until every entry has all its copies; `resume` has them go
on; `end` closes all ledgers and ends the process. Each line of the output is a JSON object: what was acknowledged of a
ledger, how many of its entries have all their copies, with which last entry it was closed, or its error.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from queue import SimpleQueue

from pyreplog.errors import NotEnoughBookiesError, ReplogError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from tests.waiting import until

QUORUMS = ((5, 3, 2), (4, 3, 2))
PASSWORD = b"secret"
PAUSE_S = 0.02
APPEND_S = 120.0
AT_ONCE = 4
"""So many batches of a ledger are on their way."""
BATCHES = (5, 25)
BATCH = 40

_output = threading.Lock()


def value_of(ledger: int, entry: int) -> bytes:
    """Return the value of an entry: most are short, some are not."""
    times = 300 if entry % 97 == 0 else 1 + (31 * entry + 7 * ledger) % 40
    return b"%d/%d." % (ledger, entry) * times


def say(**fields: object) -> None:
    with _output:
        print(json.dumps(fields), flush=True)


class Writers:
    """The ledgers of the process."""

    def __init__(self, cluster: LedgerCluster, count: int, *, has_passwords: bool) -> None:
        self._cluster, self._count, self._has_passwords = cluster, count, has_passwords
        self._random = random.Random(count)
        self._made = 0
        self._lock = threading.Lock()
        self._goes_on, self._over = threading.Event(), threading.Event()
        self._goes_on.set()
        self._idle = threading.Semaphore(0)
        self._fills: SimpleQueue[bool] = SimpleQueue()
        self._open: list[Ledger] = []
        self._threads = [threading.Thread(target=self._append_always) for _ in range(count)]
        self._filler = threading.Thread(target=self._fill_always)

    def run(self) -> None:
        """Obey commands until `end`."""
        for thread in (*self._threads, self._filler):
            thread.start()
        say(writers=self._count)
        for line in sys.stdin:
            command = line.strip()
            if command == "fill":
                self._fills.put(True)
            elif command == "flush":
                self._flush()
            elif command == "resume":
                self._goes_on.set()
            elif command == "end":
                break
        self._over.set()
        self._goes_on.set()
        self._fills.put(False)
        for thread in (*self._threads, self._filler):
            thread.join()
        for ledger in self._open:
            close(ledger)
        say(ended=True)

    def _create(self) -> Ledger:
        """Create a ledger as soon as enough bookies take entries."""
        with self._lock:
            number, self._made = self._made, self._made + 1
        password = PASSWORD if self._has_passwords and number % 3 == 0 else b""

        def create() -> Ledger | None:
            try:
                return self._cluster.create_ledger(*QUORUMS[number % len(QUORUMS)], password=password)
            except NotEnoughBookiesError:
                return None

        ledger = until(create, pause_s=0.1)
        assert ledger is not None
        say(ledger=ledger.id, acked=0, copied=0, password=password.decode())
        return ledger

    def _append_always(self) -> None:
        ledger = self._create()
        with self._lock:
            self._open.append(ledger)
        batch = 1
        while not self._over.wait(PAUSE_S):
            if not self._goes_on.is_set():
                self._idle.release()
                self._goes_on.wait()
                continue
            if not append(ledger, batch):
                return
            batch = batch % 7 + 1

    def _fill_always(self) -> None:
        while self._fills.get():
            ledger = self._create()
            for _ in range(self._random.randint(*BATCHES)):
                if not append(ledger, BATCH):
                    break
            else:
                close(ledger)

    def _flush(self) -> None:
        self._goes_on.clear()
        for _ in self._threads:
            self._idle.acquire()
        for ledger in self._open:
            until(lambda ledger=ledger: not ledger.pending_entries, 120.0, 0.01)
            say(ledger=ledger.id, copied=ledger.last_add_pushed + 1)
        say(flushed=True)


def append(ledger: Ledger, count: int) -> bool:
    """Append so many entries. Return whether they were acknowledged."""
    first = ledger.last_add_pushed + 1
    values = [value_of(ledger.id, entry) for entry in range(first, first + count)]
    size = -(-count // AT_ONCE)
    try:
        futures = [ledger.submit_batch(values[start : start + size]) for start in range(0, count, size)]
        end = [future.result(APPEND_S).stop for future in futures][-1]
    except ReplogError as error:
        say(ledger=ledger.id, error=f"{type(error).__name__}: {error}")
        return False
    say(ledger=ledger.id, acked=end, copied=ledger.last_add_pushed + 1 - ledger.pending_entries)
    return True


def close(ledger: Ledger) -> None:
    try:
        ledger.close(120.0)
    except ReplogError as error:
        say(ledger=ledger.id, error=f"{type(error).__name__}: {error}")
    else:
        say(ledger=ledger.id, closed=ledger.metadata.last_entry)


def main(url: str, count: int, *, has_passwords: bool) -> None:
    with LedgerCluster.connect(url) as cluster:
        Writers(cluster, count, has_passwords=has_passwords).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), has_passwords="--no-password" not in sys.argv)
