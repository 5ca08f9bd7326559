"""Keeps a table of departures per carrier in SQLite, exactly once, from a log of flights.

    departures.py LOG DATABASE

Kill it and run it again as often as you like: the table and how far it is are one transaction. The log may be a relay
log that a receiver fills meanwhile; here it is one that is complete.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from carriers import Carrier, counted, print_table

import pyreplog
from pyreplog import RecordBatch
from pyreplog.ha.relay import Advance, Applier, ApplierState, SqlPosition

TABLE = "CREATE TABLE IF NOT EXISTS departures (carrier TEXT PRIMARY KEY, flights INT, departed INT, delay REAL)"
ADD = """INSERT INTO departures VALUES (?, ?, ?, ?) ON CONFLICT (carrier) DO UPDATE SET
    flights = flights + excluded.flights, departed = departed + excluded.departed, delay = delay + excluded.delay"""


class Departures:
    """The table, and what applies rows of flights.csv to it. One applier at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = self._connect()
        with self._database:
            self._database.execute(TABLE)
        self.positions = SqlPosition(self._connect, "departures")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, check_same_thread=False)  # the applier's thread is another one

    def apply(self, batch: RecordBatch, advance: Advance) -> None:
        """The callback: counts, and how far they reach, in one transaction."""
        found = counted(batch.values())
        with self._database:
            rows = [(code, each.flights, each.departed, each.delay) for code, each in found.items()]
            self._database.executemany(ADD, rows)
            self.positions.store(self._database.cursor(), advance)

    def carriers(self) -> dict[str, Carrier]:
        """The table now: carriers by their code, those with most flights first."""
        rows = self._database.execute("SELECT * FROM departures ORDER BY flights DESC")
        return {code: Carrier(flights, departed, delay) for code, flights, departed, delay in rows}

    def close(self) -> None:
        self._database.close()


def main(log_path: str, database: str) -> int:
    departures = Departures(Path(database))
    with pyreplog.open(log_path) as log, Applier(log, departures.apply, departures.positions, purge=False) as applier:
        applier.start(until_entry=log.end)
        if applier.wait_ended() is not ApplierState.FINISHED:
            sys.stderr.write(f"{applier.error}\n")
            return 1
        print_table(departures.carriers())
    departures.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
