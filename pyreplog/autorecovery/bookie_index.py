"""BookieIndex: maps each bookie to the ledgers that name it. It is derived from metadata, and kept in memory only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

_OVERLAY_MIN = 4096


class BookieIndex:
    """Maps bookies to ledgers, with 12 bytes for each pair: 36 MB for 10^6 ledgers of three bookies.

    `update` and `remove` record changes of single ledgers in an overlay; it is merged into the arrays when it exceeds
    an eighth of their size. Not thread-safe.

    Example:
        >>> index = BookieIndex()
        >>> index.update(7, ["a@1", "b@1"])
        >>> index.ledgers_of("b@1").tolist()
        [7]
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._ledgers: NDArray[np.int64] = np.empty(0, np.int64)
        self._members: NDArray[np.int32] = np.empty(0, np.int32)
        self._changed: dict[int, tuple[int, ...]] = {}  # overlay: members of changed ledgers, by ledger

    def update(self, ledger: int, bookies: Iterable[str]) -> None:
        """Set the bookies that a ledger names. `bookies` may be in any order and contain duplicates."""
        self._changed[ledger] = tuple(sorted({self._number(bookie) for bookie in bookies}))
        if len(self._changed) > max(_OVERLAY_MIN, len(self._ledgers) // 8):
            self._fold()

    def remove(self, ledger: int) -> None:
        """Remove a deleted ledger."""
        self.update(ledger, ())

    def ledgers(self) -> NDArray[np.int64]:
        """Return the ids of all ledgers, ascending."""
        self._fold()
        return np.unique(self._ledgers)

    def ledgers_of(self, bookie: str) -> NDArray[np.int64]:
        """Return the ids of the ledgers that name a bookie, ascending."""
        number = self._numbers.get(bookie)
        if number is None:
            return np.empty(0, np.int64)
        kept = self._ledgers[self._members == number]
        if self._changed:
            kept = kept[~np.isin(kept, self._changed_ledgers())]
        added = np.fromiter((ledger for ledger, members in self._changed.items() if number in members), np.int64)
        return np.sort(np.concatenate([kept, added]))

    def counts(self) -> dict[str, int]:
        """Return the number of ledgers that name each bookie; unnamed bookies are left out."""
        self._fold()
        numbers, counts = np.unique(self._members, return_counts=True)
        return {self._names[number]: int(count) for number, count in zip(numbers, counts, strict=True)}

    def __iter__(self) -> Iterator[str]:
        """Iterate over the bookies that ledgers name."""
        return iter(self.counts())

    @property
    def nbytes(self) -> int:
        """Size of the arrays, bytes."""
        return self._ledgers.nbytes + self._members.nbytes

    def _number(self, bookie: str) -> int:
        number = self._numbers.get(bookie)
        if number is None:
            number = len(self._names)
            self._numbers[bookie] = number
            self._names.append(bookie)
        return number

    def _changed_ledgers(self) -> NDArray[np.int64]:
        return np.fromiter(self._changed, np.int64, len(self._changed))

    def _fold(self) -> None:
        """Merge the overlay into the arrays."""
        if not self._changed:
            return
        kept = ~np.isin(self._ledgers, self._changed_ledgers())
        pairs = [(ledger, member) for ledger, members in self._changed.items() for member in members]
        added = np.array(pairs, np.int64).reshape(-1, 2)
        self._ledgers = np.concatenate([self._ledgers[kept], added[:, 0]])
        self._members = np.concatenate([self._members[kept], added[:, 1].astype(np.int32)])
        self._changed.clear()
