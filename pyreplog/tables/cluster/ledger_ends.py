"""Ends of ledgers that are still open: the last confirmed entry. Their writers may go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyreplog._native.log.batch import RecordBatch
from pyreplog.errors import UnauthorizedError, UnreadableError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime, run_machine
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State
from pyreplog.ledger.protocol.lac import LacQuery
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp


class LedgerContents(NamedTuple):
    """What a ledger holds. size: bytes of the values."""

    entries: int
    messages: int
    size: int


NOTHING = LedgerContents(0, 0, 0)

Unasked = UnreadableError | UnauthorizedError
"""The reason why the end of a ledger is unknown."""


def amounts(runtime: Runtime, ledgers: Sequence[LedgerMetadata], key: bytes) -> dict[int, LedgerContents]:
    """Return what each ledger holds, by its id. The bookies of all open ledgers are asked at once.

    Raises UnreadableError and UnauthorizedError.
    """
    known, unasked = amounts_known(runtime, ledgers, key)
    for error in unasked.values():
        raise error
    return known


def amounts_known(
    runtime: Runtime, ledgers: Sequence[LedgerMetadata], key: bytes
) -> tuple[dict[int, LedgerContents], dict[int, Unasked]]:
    """Return what ledgers hold, as `amounts` does; and the errors of those for which the bookies do not tell."""
    known = {
        meta.ledger: LedgerContents(meta.last_entry + 1, meta.messages, meta.length)
        for meta in ledgers
        if meta.state is State.CLOSED
    }
    unasked: dict[int, Unasked] = {}
    asked = [
        (meta, run_machine(meta.ledger, LacQuery(meta, key), runtime))
        for meta in ledgers
        if meta.state is not State.CLOSED
    ]
    lasts: list[tuple[LedgerMetadata, int]] = _outcomes(runtime, asked, unasked)
    reads = [
        (meta, run_machine(meta.ledger, LedgerReadOp(meta, key, lac, lac + 1), runtime))
        for meta, lac in lasts
        if lac >= 0
    ]
    known |= {meta.ledger: NOTHING for meta, lac in lasts if lac < 0}
    batches: list[tuple[LedgerMetadata, RecordBatch]] = _outcomes(runtime, reads, unasked)
    for meta, batch in batches:
        last = batch[0]
        known[meta.ledger] = LedgerContents(last.entry + 1, last.ledger_messages, last.ledger_bytes)
    return known, unasked


def _outcomes(
    runtime: Runtime, coming: list[tuple[LedgerMetadata, AppendFuture[Any]]], unasked: dict[int, Unasked]
) -> list[tuple[LedgerMetadata, Any]]:
    outcomes = []
    for meta, future in coming:
        try:
            outcomes.append((meta, runtime.wait(future)))
        except (UnreadableError, UnauthorizedError) as error:
            unasked[meta.ledger] = error
    return outcomes
