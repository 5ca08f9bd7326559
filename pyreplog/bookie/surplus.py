"""SurplusFinder: finds copies of closed ledgers that no metadata assign to this bookie, because another one replaced
it.

An entry is removed here only when the metadata of its closed ledger name other bookies for it, and no worker can have a
proof with which this bookie would be named again. The steps, for each ledger:

1. The metadata are read twice, some rounds apart. Both times the ledger has surplus, and no copies of it were added in
   between. While a worker copies a ledger to this bookie, the copies are surplus until the metadata name it (BookKeeper
   #4668: copies were removed while they were made), which takes longer than any interval if the ledger is large enough.
2. The metadata are read again: the ledger is closed, and names no bookie that is lost or away. The metadata know this
   bookie, and list none of the ledger's entries as lost.
3. The entries are hidden: HOLDINGS does not count them any more, and an entry that is added again is stored again
   (`live_entries`).
4. The metadata are written unchanged, by compare-and-set. So every worker whose proof is older than step 3 fails, also
   one that slept, because its version of the metadata is outdated. If the metadata changed since step 2, the entries
   are restored.
5. From now on the entries are dead, and compaction drops them.

A worker makes its proof after it has read the metadata which it is going to change, and makes another one when they
have changed. After a crash all entries that this bookie still has count again, until they went through the same steps.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import Protocol

from pyreplog._native.ledger_log.entries import CONTROL
from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.dead_entries import DeadEntries, are_among, count_among
from pyreplog.bookie.entry_log import DiskLog
from pyreplog.bookie.ledger_list import ClosedLedgerHoldings
from pyreplog.bookie.ledger_map import LedgerExtent
from pyreplog.errors import CorruptionError

logger = logging.getLogger(__name__)

_LEDGERS_AT_ONCE = 64
MARKED_MAX = 256
"""Most ledgers whose surplus is marked as dead in one round; segments are collected between rounds."""


class ClosedLedgers(Protocol):
    """The closed ledgers according to the metadata. A call that fails leaves the answer unknown."""

    def closed(self, ledgers: Sequence[int]) -> list[ClosedLedgerHoldings | None]:
        """Return the entries of ledgers that this bookie has to hold; None: the ledger is not closed, or unknown."""
        ...

    def change_version(self, ledger: int, version: int) -> bool:
        """Write the metadata of a ledger unchanged, so that their version changes; return False if it has changed
        already."""
        ...

    def keeps_surplus(self, ledger: int, bookies: Collection[str]) -> bool:
        """Return whether surplus of a ledger must not be removed.

        That is so when entries of the ledger are listed as lost, when it names a bookie that is lost or away, and when
        the metadata do not know this bookie.
        """
        ...


class SurplusFinder:
    """Finds dead entries. A Collector makes all calls, on its thread.

    Args:
        log: log of the bookie.
        config: settings of the bookie.
        ledgers: the closed ledgers according to the metadata.
        with_bookie: runs a function with the bookie while no request is handled.

    Attributes:
        marked_ledgers: ledgers whose surplus was found dead.
        marked_bytes: bytes of these entries.
        conflicts: decisions that were dropped because the metadata changed.
    """

    def __init__(
        self,
        log: DiskLog,
        config: BookieConfig,
        ledgers: ClosedLedgers,
        with_bookie: Callable[[Callable[[Bookie], object]], object],
    ) -> None:
        self._log, self._ledgers, self._with_bookie = log, ledgers, with_bookie
        self._rounds_between = -(-config.surplus_interval_ms // config.collect_interval_ms)  # rounds; 0: never
        self._rounds_to_find = 0
        self._surplus_before: set[int] = set()  # ledgers that had surplus the last time
        self._to_mark: deque[int] = deque()
        self._dead: dict[int, DeadEntries] = {}
        self._live_bytes: dict[tuple[int, int], int] = {}  # by ledger and base of a sealed segment
        self.marked_ledgers = self.marked_bytes = self.conflicts = 0

    def __len__(self) -> int:
        """Number of ledgers that have dead entries on this bookie."""
        return len(self._dead)

    def dead(self, ledger: int) -> DeadEntries | None:
        """Return the dead entries of a ledger; None: it has none."""
        return self._dead.get(ledger)

    def live_bytes(self, ledger: int, share: LedgerExtent) -> int:
        """Return about how many bytes of a ledger's share in a sealed segment are live."""
        dead = self._dead.get(ledger)
        if dead is None:
            return share.bytes
        key = ledger, share.base
        if key not in self._live_bytes:
            try:
                live = share.entries - int(dead.mask(*self._log.log.share_entries(share, ledger)).sum())
            except CorruptionError as error:  # entries without an intact index count as live
                logger.warning("ledger %d, the segment at %d: %s", ledger, share.base, error)
                live = share.entries
            self._live_bytes[key] = live and max(share.bytes * live // share.entries, 1)
        return self._live_bytes[key]

    # ---- a round ----------------------------------------------------------------------------------------------

    def scan(self, deleted: Set[int]) -> Iterator[None]:
        """Find dead entries, in steps of a round of garbage collection. Raises errors of the metadata store."""
        self._drop(deleted)
        if not self._rounds_between:
            return
        if self._rounds_to_find <= 0 and not self._to_mark:
            yield from self._find_surplus(deleted)
            self._rounds_to_find = self._rounds_between
        self._rounds_to_find -= 1
        for _ in range(min(MARKED_MAX, len(self._to_mark))):
            ledger = self._to_mark.popleft()
            if ledger not in deleted:
                self._mark_dead(ledger)
                yield

    def _drop(self, deleted: Set[int]) -> None:
        """Drop the state of ledgers that were deleted, or whose dead entries are all removed."""
        for ledger, dead in list(self._dead.items()):
            if ledger in deleted or not any(share.base < dead.below for share in self._log.log.shares(ledger)):
                self._show(ledger)
                del self._dead[ledger]
        for key in [key for key in self._live_bytes if key[0] not in self._dead]:
            del self._live_bytes[key]

    def _find_surplus(self, deleted: Set[int]) -> Iterator[None]:
        """Find the ledgers with surplus.

        Those that had surplus the last time, and got no copies since, are marked next.
        """
        copied: set[int] = set()
        self._with_bookie(lambda bookie: copied.update(bookie.live.take_copied()))
        candidates = [ledger for ledger in self._log.log.ledgers() if ledger < CONTROL and ledger not in deleted]
        ledgers_with_surplus = set()
        for start in range(0, len(candidates), _LEDGERS_AT_ONCE):
            some = candidates[start : start + _LEDGERS_AT_ONCE]
            for ledger, closed in zip(some, self._ledgers.closed(some), strict=True):
                if closed is not None and self._has_surplus(ledger, self._sealed(ledger), closed):
                    ledgers_with_surplus.add(ledger)
            yield
        same = ledgers_with_surplus & self._surplus_before - copied
        self._to_mark.extend(sorted(same))
        self._surplus_before = ledgers_with_surplus - same

    def _has_surplus(self, ledger: int, shares: Sequence[LedgerExtent], closed: ClosedLedgerHoldings) -> bool:
        """Return whether sealed segments have entries that the bookie need not hold, and that are not dead yet.

        Unless some are dead, only numbers of entries are compared. Surplus is overlooked if as many entries are
        missing.
        """
        dead = self._dead.get(ledger)
        if dead is None:
            return any(share.entries > count_among(closed.holdings, share.first, share.last) for share in shares)
        if dead.kept == closed.holdings:
            shares = [share for share in shares if share.base + self._log.log.segment_bytes > dead.below]
        return any(self._count(ledger, share, closed.holdings, dead) for share in shares)

    def _count(self, ledger: int, share: LedgerExtent, kept: Sequence[range], dead: DeadEntries) -> int:
        """Count the entries of a share in a sealed segment that are neither to be kept nor dead.

        Raises CorruptionError when the index of the segment is damaged.
        """
        entries, positions = self._log.log.share_entries(share, ledger)
        return int((~are_among(entries, kept) & ~dead.mask(entries, positions)).sum())

    # ---- one ledger -------------------------------------------------------------------------------------------

    def _mark_dead(self, ledger: int) -> None:
        """Mark the surplus of a ledger as dead, if it is still surplus."""
        (closed,) = self._ledgers.closed([ledger])
        shares = self._sealed(ledger)
        try:
            if closed is None or not self._has_surplus(ledger, shares, closed):
                return
            if self._ledgers.keeps_surplus(ledger, closed.bookies):
                return
            before, dead = self._dead.get(ledger), self._hide(ledger, closed)
        except CorruptionError as error:  # the entries stay, for repair
            logger.error("surplus of ledger %d cannot be determined: %s", ledger, error)
            return
        try:
            is_settled = self._ledgers.change_version(ledger, closed.version)
        except BaseException:
            self._show(ledger, before)
            raise
        if not is_settled:
            self.conflicts += 1
            self._show(ledger, before)
            return
        self._settle(ledger)
        self._dead[ledger] = dead
        self._live_bytes = {key: live for key, live in self._live_bytes.items() if key[0] != ledger}
        size = sum(share.bytes - self.live_bytes(ledger, share) for share in shares)
        self.marked_ledgers += 1
        self.marked_bytes += size
        logger.info("ledger %d: about %d bytes of surplus are removed", ledger, size)

    def _sealed(self, ledger: int) -> list[LedgerExtent]:
        """Return the shares of a ledger in sealed segments; active segments cannot be removed yet."""
        log = self._log.log
        end = log.end_position
        return [share for share in log.shares(ledger) if share.base + log.segment_bytes <= end]

    def _hide(self, ledger: int, closed: ClosedLedgerHoldings) -> DeadEntries:
        """Hide the stored entries that the bookie need not hold; entries that are added later are not hidden."""
        hidden: list[DeadEntries] = []

        def hide(bookie: Bookie) -> None:
            dead = DeadEntries(closed.holdings, self._log.log.end_position)
            bookie.live.begin(ledger, self._log.without(dead))
            hidden.append(dead)

        self._with_bookie(hide)
        return hidden[0]

    def _settle(self, ledger: int) -> None:
        self._with_bookie(lambda bookie: bookie.live.settle(ledger))

    def _show(self, ledger: int, before: DeadEntries | None = None) -> None:
        """Restore hidden entries, except those that were dead before."""
        view = None if before is None else self._log.without(before)
        self._with_bookie(lambda bookie: bookie.live.restore(ledger, view))
