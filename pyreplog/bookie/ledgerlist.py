"""Which ledgers there are, by the metadata store."""

from __future__ import annotations

from collections.abc import Callable

from pyreplog.bookie.identity import Identity, is_registered
from pyreplog.errors import InvalidMetadataError
from pyreplog.metadata.store import MetadataStore


class LedgerList:
    """What a Collector asks. key_of: the key of a ledger, whose last name is its id in decimal digits.

    identity: of the bookie that asks; None: of a bookie whose metadata is its own (in one process). Errors of every
    call: those of the store; InvalidMetadataError.
    """

    def __init__(self, store: MetadataStore, key_of: Callable[[int], str], identity: Identity | None = None) -> None:
        self._store, self._key_of, self._identity = store, key_of, identity

    def knows_us(self) -> bool:
        return self._identity is None or is_registered(self._store, self._identity)

    def listed(self) -> set[int]:
        folder = self._key_of(0).rpartition("/")[0]
        names = self._store.list(folder)
        try:
            return {int(name) for name in names}
        except ValueError as error:
            raise InvalidMetadataError(f"{folder}: expected ledger ids, found {error}") from error

    def exists(self, ledger: int) -> bool:
        return self._store.get(self._key_of(ledger)) is not None
