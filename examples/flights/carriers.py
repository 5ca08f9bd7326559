"""Departures and mean departure delay per carrier, from a scan."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from pyreplog import LogReader

# Places of two columns in a row of flights.csv.
DELAY, CARRIER = 5, 9


@dataclass
class Carrier:
    """flights: rows. departed: those with a delay, which is in minutes and negative when early."""

    flights: int = 0
    departed: int = 0
    delay: float = 0.0

    @property
    def mean_delay(self) -> float:
        return self.delay / self.departed if self.departed else 0.0


def carriers(log: LogReader) -> dict[str, Carrier]:
    """Carriers by their code, those with most flights first."""
    return counted(value for batch in log.read() for value in batch.values())


def counted(rows: Iterable[bytes]) -> dict[str, Carrier]:
    """The same, of rows of flights.csv."""
    found: dict[str, Carrier] = defaultdict(Carrier)
    for row in rows:
        fields = row.split(b",", CARRIER + 1)
        carrier = found[fields[CARRIER].decode()]
        carrier.flights += 1
        if fields[DELAY] != b"NA":
            carrier.departed += 1
            carrier.delay += float(fields[DELAY])
    return dict(sorted(found.items(), key=lambda item: -item[1].flights))


HEADINGS = ("carrier", "flights", "departed", "mean delay (min)")


def print_table(found: dict[str, Carrier]) -> None:
    rows = [(code, f"{each.flights:,}", f"{each.departed:,}", f"{each.mean_delay:.1f}") for code, each in found.items()]
    total = Carrier(*(sum(getattr(each, name) for each in found.values()) for name in ("flights", "departed", "delay")))
    rows.append(("all", f"{total.flights:,}", f"{total.departed:,}", f"{total.mean_delay:.1f}"))
    if find_spec("rich") is None:
        for row in (HEADINGS, *rows):
            sys.stdout.write("  ".join(f"{cell:>16}" for cell in row) + "\n")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Departures from New York, 2013")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "carrier" else "right")
    for row in rows:
        table.add_row(*row, end_section=row is rows[-2])
    Console().print(table)
