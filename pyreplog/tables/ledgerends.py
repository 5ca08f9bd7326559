"""How far ledgers go that nobody has closed: up to what is confirmed. Their writers go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyreplog._native.batch import RecordBatch
from pyreplog.ack import Ack
from pyreplog.ledger.driver import Driver, StartingMachine, Surroundings
from pyreplog.ledger.lac import LacQuery
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State
from pyreplog.ledger.reading import LedgerReading


class Amount(NamedTuple):
    """What a ledger holds. size: bytes of its values."""

    entries: int
    messages: int
    size: int


NOTHING = Amount(0, 0, 0)


def amounts(around: Surroundings, ledgers: Sequence[LedgerMetadata], key: bytes) -> dict[int, Amount]:
    """What each ledger holds, by its id. Those that are not closed are asked for all at once.

    Errors: UnreadableError, UnauthorizedError.
    """
    found = {
        meta.ledger: Amount(meta.last_entry + 1, meta.messages, meta.length)
        for meta in ledgers
        if meta.state is State.CLOSED
    }
    asked = [(meta, run(around, meta, LacQuery(meta, key))) for meta in ledgers if meta.state is not State.CLOSED]
    lasts = [(meta, around.wait(coming)) for meta, coming in asked]
    reads = [(meta, run(around, meta, LedgerReading(meta, key, lac, lac))) for meta, lac in lasts if lac >= 0]
    found |= {meta.ledger: NOTHING for meta, lac in lasts if lac < 0}
    for meta, read in reads:
        batch: RecordBatch = around.wait(read)
        last = batch[0]
        found[meta.ledger] = Amount(last.entry + 1, last.ledger_messages, last.ledger_bytes)
    return found


def run(around: Surroundings, metadata: LedgerMetadata, machine: StartingMachine) -> Ack[Any]:
    """What a machine comes to."""
    driver = Driver(metadata.ledger, machine, around)
    driver.post(machine.start)
    return driver.done
