"""How far ledgers go that nobody has closed: up to what is confirmed. Their writers go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyreplog._native.log.batch import RecordBatch
from pyreplog.errors import UnauthorizedError, UnreadableError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Driver, Runtime, StartingMachine
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State
from pyreplog.ledger.protocol.lac import LacQuery
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp


class Amount(NamedTuple):
    """What a ledger holds. size: bytes of its values."""

    entries: int
    messages: int
    size: int


NOTHING = Amount(0, 0, 0)

Unasked = UnreadableError | UnauthorizedError
"""Why nobody could be asked how far a ledger goes."""


def amounts(runtime: Runtime, ledgers: Sequence[LedgerMetadata], key: bytes) -> dict[int, Amount]:
    """What each ledger holds, by its id. Those that are not closed are asked for all at once.

    Errors: UnreadableError, UnauthorizedError.
    """
    found, unasked = amounts_known(runtime, ledgers, key)
    for error in unasked.values():
        raise error
    return found


def amounts_known(
    runtime: Runtime, ledgers: Sequence[LedgerMetadata], key: bytes
) -> tuple[dict[int, Amount], dict[int, Unasked]]:
    """As `amounts`, of those ledgers of which somebody can tell; and why of the others nobody can."""
    found = {
        meta.ledger: Amount(meta.last_entry + 1, meta.messages, meta.length)
        for meta in ledgers
        if meta.state is State.CLOSED
    }
    unasked: dict[int, Unasked] = {}
    asked = [(meta, run(runtime, meta, LacQuery(meta, key))) for meta in ledgers if meta.state is not State.CLOSED]
    lasts: list[tuple[LedgerMetadata, int]] = _outcomes(runtime, asked, unasked)
    reads = [(meta, run(runtime, meta, LedgerReadOp(meta, key, lac, lac + 1))) for meta, lac in lasts if lac >= 0]
    found |= {meta.ledger: NOTHING for meta, lac in lasts if lac < 0}
    batches: list[tuple[LedgerMetadata, RecordBatch]] = _outcomes(runtime, reads, unasked)
    for meta, batch in batches:
        last = batch[0]
        found[meta.ledger] = Amount(last.entry + 1, last.ledger_messages, last.ledger_bytes)
    return found, unasked


def _outcomes(
    runtime: Runtime, coming: list[tuple[LedgerMetadata, AppendFuture[Any]]], unasked: dict[int, Unasked]
) -> list[tuple[LedgerMetadata, Any]]:
    found = []
    for meta, future in coming:
        try:
            found.append((meta, runtime.wait(future)))
        except (UnreadableError, UnauthorizedError) as error:
            unasked[meta.ledger] = error
    return found


def run(runtime: Runtime, metadata: LedgerMetadata, machine: StartingMachine) -> AppendFuture[Any]:
    """What a machine comes to."""
    driver = Driver(metadata.ledger, machine, runtime)
    driver.post(machine.start)
    return driver.done
