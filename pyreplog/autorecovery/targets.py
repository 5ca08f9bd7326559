"""TargetChooser: chooses the bookies that replace others in fragments that are already written."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pyreplog.autorecovery.protocol.rack_windows import keeps_racks
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata
from pyreplog.ledger.placement import choose
from pyreplog.ledger.runtime import RuntimeBase


class TargetChooser:
    """Chooses by the rules of `ledger.placement` among the bookies that take entries. Any thread may use it."""

    def __init__(self, runtime: RuntimeBase) -> None:
        self._runtime = runtime

    def choose(self, metadata: LedgerMetadata, fragment: Fragment, index: int, refused: Collection[str]) -> str | None:
        """Choose a bookie for a place of a fragment.

        Bookies that failed recently are chosen last. Placement counts the racks of the members that stay and of the
        chosen one.

        Args:
            metadata: metadata of the ledger.
            fragment: the fragment.
            index: place in the ensemble.
            refused: ids of bookies that must not be chosen.

        Returns:
            The id of the bookie; None if every bookie is a member, refuses entries, or must not be chosen.
        """
        taken = {*fragment.ensemble, *refused}
        for suspects in (False, True):
            chosen = choose(
                metadata.ledger, fragment.ensemble, [index], self._runtime.candidates(suspects=suspects),
                write_quorum=metadata.write_quorum, racks=self._runtime.racks(), taken=taken, turn=fragment.first,
            )  # fmt: skip
            if chosen:
                return chosen[index]
        return None

    def only(self, target: str) -> Callable[[LedgerMetadata, Fragment, int, Collection[str]], str | None]:
        """Return a function like `choose` that chooses this bookie, if it takes entries and no write set loses a rack.

        Args:
            target: id of the bookie.
        """

        def choose(metadata: LedgerMetadata, fragment: Fragment, index: int, refused: Collection[str]) -> str | None:
            takes = any(
                target == candidate.bookie
                for suspects in (False, True)
                for candidate in self._runtime.candidates(suspects=suspects)
            )
            if not takes or target in fragment.ensemble or target in refused:
                return None
            racks = self._runtime.racks()
            return target if keeps_racks(fragment.ensemble, index, target, metadata.write_quorum, racks) else None

        return choose
