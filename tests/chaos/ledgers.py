"""Four bookies, ledgers of three with two acknowledgements: one bookie at a time is disturbed."""

from __future__ import annotations

import threading
from pathlib import Path

from pyreplog.errors import ReplogError
from pyreplog.ledger.cluster import LedgerCluster
from tests.chaos.faults import Availability, Outcome, RandomFaults, Worker
from tests.chaos.victims import Victim
from tests.ports import free_ports

BOUND_S = 20.0
BATCH, BATCHES = 20, 200


class Writer(Worker):
    """Fills one ledger after the other; notes what was acknowledged."""

    def __init__(self, cluster: LedgerCluster, availability: Availability) -> None:
        self._cluster, self._availability = cluster, availability
        super().__init__()
        self.acknowledged: dict[int, int] = {}  # entries by ledger

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._fill()
            except ReplogError:
                self._over.wait(0.05)  # the next ledger; what this one lost is seen when it is read

    def _fill(self) -> None:
        with self._cluster.create_ledger(3, 3, 2) as ledger:
            self.acknowledged[ledger.id] = 0
            for number in range(BATCHES):
                if self._over.is_set():
                    return
                first = number * BATCH
                ledger.append_batch([value_of(ledger.id, entry) for entry in range(first, first + BATCH)])
                self.acknowledged[ledger.id] = first + BATCH
                self._availability.acknowledge(BATCH)


def value_of(ledger: int, entry: int) -> bytes:
    return b"%d/%d" % (ledger, entry) * (entry % 50 + 1)


def run(folder: Path, seconds: float, seed: int) -> Outcome:
    """Disturb bookies for so long; read everything back."""
    url = f"sqlite:{folder / 'metadata.sqlite'}"
    bookies = [
        Victim(
            f"bookie-{number}", folder,
            ["pyreplog", "bookie", str(folder / f"bookie-{number}"), "--json", "--segment-bytes", str(16 << 20), "--metadata", url, "--listen", f"127.0.0.1:{port}"],
        )
        for number, port in enumerate(free_ports(4))
    ]  # fmt: skip
    availability = Availability("ledgers", BOUND_S)
    try:
        for bookie in bookies:
            bookie.start()
        with LedgerCluster.connect(url) as cluster:
            writer, faults = Writer(cluster, availability), RandomFaults(bookies, seed)
            writer.start()
            faults.start()
            threading.Event().wait(seconds)
            faults.end()
            held = availability.report(faults)
            writer.end()
            return Outcome(availability.acknowledged, lost_entries(cluster, writer.acknowledged), held)
    finally:
        for bookie in bookies:
            bookie.end()


def lost_entries(cluster: LedgerCluster, acknowledged: dict[int, int]) -> int:
    """Read all ledgers back; return how many entries that were acknowledged are not what was written."""
    lost = 0
    for ledger, entries in acknowledged.items():
        with cluster.open_ledger(ledger) as reader:
            values = [bytes(record.value) for batch in reader.read() for record in batch] if len(reader) else []
        intact = sum(value == value_of(ledger, entry) for entry, value in enumerate(values))
        lost += max(entries, len(values)) - intact
    print(f"  {len(acknowledged)} ledgers read back, {lost} entries lost")
    return lost
