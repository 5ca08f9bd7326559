"""Another bookie took over the fragment of a noted missing copy: the repair goes on with the next copy that the noted
bookie should hold."""

from __future__ import annotations

from typing import Any

import pytest

from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, key_proof, ledger_key, metadata_key
from pyreplog.ledger.repair import LedgerRepair
from pyreplog.ledger.repair_notes import note_repair, repairs
from pyreplog.metadata.memory import MemoryStore

KEY = ledger_key(b"")


def ledger(*fragments: tuple[int, str]) -> LedgerMetadata:
    """Return a closed ledger of ten entries, with bookies named by one letter."""
    return LedgerMetadata(
        ledger=7, ensemble_size=3, write_quorum=2, ack_quorum=2, proof=key_proof(KEY), state=State.CLOSED,
        last_entry=9, length=10, messages=10,
        fragments=tuple(Fragment(first, tuple(members)) for first, members in fragments),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fragments", "noted", "written"),
    [
        ([(0, "abc")], 0, [0]),
        ([(0, "dbc"), (4, "abc")], 0, [5]),  # entry 4 is on b and c
        ([(0, "dbc"), (4, "abc")], 6, [6]),
        ([(0, "dbc")], 0, []),
    ],
)
def test_the_next_copy_that_the_bookie_has_to_hold_is_written(
    fragments: list[tuple[int, str]], noted: int, written: list[int]
) -> None:
    """A writer that goes on without a bookie notes the first entry that the bookie lacks. Auto-recovery then moved that
    fragment."""
    repaired: list[int] = []

    def run(number: int, machine: Any) -> Any:
        if type(machine).__name__ == "EntryRepair":
            repaired.extend(effect.request.first for effect in machine.start() if hasattr(effect, "request"))
        return []  # for a MissingCopiesCheck: no more copies are missing

    with MemoryStore() as store:
        store.create(metadata_key(7), ledger(*fragments).encode())
        note_repair(store, 7, "a", noted, lacking_since_us=5)
        repair = LedgerRepair(store, KEY, run)
        repair.repair_noted()
        assert repaired == written
        assert not repair.left
        assert not repairs(store)[0], "the note is done with"
