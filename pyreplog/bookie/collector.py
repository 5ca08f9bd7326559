"""Garbage collection of a bookie: frees the space of deleted ledgers.

A ledger counts as deleted only after two reads of the metadata: a listing that began after the bookie listed its own
ledgers does not name it, and a direct get does not find it. The metadata must also know this bookie: a store that was
emptied, or is another one, proves nothing (BookKeeper #4607: one wrong proof deleted live data). Entries that no
metadata assign to this bookie are dead, too; `surplus` finds them. Sealed segments are collected, the emptiest first:

1. Live entries, if they are few enough, and control records of live ledgers are appended once more.
2. The log is synced. After a crash before that, some entries have two equal copies.
3. The segment is trimmed, or a hole is punched. After a crash during this step, the segment exists as a whole or not at
   all; it is not needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from pyreplog._native.ledger_log.entries import CONTROL, parse_entries
from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.entry_log import DiskLog
from pyreplog.bookie.ledger_map import BadRange, LedgerExtent
from pyreplog.bookie.surplus import ClosedLedgers, SurplusFinder
from pyreplog.errors import CorruptionError, DiskError, InvalidMetadataError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LEDGERS_AT_ONCE = 64


class Ledgers(ClosedLedgers, Protocol):
    """The ledgers according to the metadata. A call that fails leaves the answer unknown."""

    def knows_this_bookie(self) -> bool:
        """Return whether the metadata belong to this cluster and know this bookie."""
        ...

    def listed(self) -> set[int]:
        """List all ledgers; the listing begins now."""
        ...

    def exists(self, ledger: int) -> bool:
        """Return whether a ledger exists, by a direct get from the metadata store."""
        ...

    def holdings(self, ledger: int) -> list[range] | None:
        """Return the entries of a closed ledger that this bookie has to hold; None: the ledger is not closed.

        Raises InvalidMetadataError when the metadata are malformed.
        """
        ...


class SegmentUsage(NamedTuple):
    """The use of a sealed segment.

    Attributes:
        live_bytes: bytes of live entries.
        base: position of the segment.
        total_bytes: bytes of all records.
        live: (ledger, share) of ledgers with live entries.
        controls: ledgers that were not deleted and have control records in the segment.
    """

    live_bytes: int
    base: int
    total_bytes: int
    live: list[tuple[int, LedgerExtent]]
    controls: list[int]


class Collector:
    """Collects garbage in steps of at most `collect_step_bytes`, while the bookie serves. One thread at a time.

    Args:
        log: log of the bookie.
        config: settings of the bookie.
        ledgers: the ledgers according to the metadata.
        with_bookie: runs a function with the bookie while no request is handled (LocalBookie.with_bookie).
        on_metadata_read: called when a round has read the metadata (LocalBookie.on_metadata_read).
        damaged: returns the segments that have damage, with their damaged records (Scrubber.damaged).
    """

    def __init__(
        self,
        log: DiskLog,
        config: BookieConfig,
        ledgers: Ledgers,
        with_bookie: Callable[[Callable[[Bookie], object]], object],
        *,
        on_metadata_read: Callable[[], None] | None = None,
        damaged: Callable[[], Mapping[int, Sequence[BadRange]]] | None = None,
    ) -> None:
        self._log, self._config, self._ledgers, self._with_bookie = log, config, ledgers, with_bookie
        self._on_metadata_read, self._find_damaged = on_metadata_read, damaged
        self._damaged: Mapping[int, Sequence[BadRange]] = {}
        self._round: Iterator[None] | None = None
        self._limbo_found = False  # whether `_find_limbo` has run
        self.surplus = SurplusFinder(log, config, ledgers, with_bookie)
        self.copied_bytes = self.hollowed = self.trimmed = 0  # bytes of entries; segments

    def step(self) -> bool:
        """Run the next step of this round, or begin a round; return False if the round is over.

        Raises errors of the metadata store and of the log; after an error the next step begins a new round.
        """
        if self._round is None:
            self._round = self._collect()
        try:
            next(self._round)
        except StopIteration:
            self._round = None
        except BaseException:
            self._round = None
            raise
        return self._round is not None

    def collect(self) -> None:
        """Run a whole round."""
        while self.step():
            continue

    # ---- which ledgers --------------------------------------------------------------------------------------

    def _collect(self) -> Iterator[None]:
        deleted = self._find_deleted()
        self._notify_metadata_read()
        for ledger in sorted(deleted):
            self._forget(ledger)
        yield
        yield from self._end_limbo(deleted)
        yield from self.surplus.scan(deleted)
        self._damaged = self._find_damaged() if self._find_damaged is not None else {}
        for segment in sorted(self._segment_usages(deleted)):
            try:
                if self._is_worth_collecting(segment, deleted):
                    yield from self._empty_segment(segment)
            except (CorruptionError, InvalidMetadataError) as error:
                # the segment stays for repair; collect the others (BookKeeper #4544)
                logger.error("the segment at %d cannot be collected: %s", segment.base, error)
            except DiskError as error:  # moving live entries of other segments needs space as well
                logger.warning("garbage collection stops: %s", error)
                return

    def _find_deleted(self) -> set[int]:
        """Find the deleted ledgers. The ledgers in the metadata are listed after those in the log, never before."""
        stored = {ledger if ledger < CONTROL else ledger - CONTROL for ledger in self._log.log.ledgers()}
        unlisted = stored - self._ledgers.listed()
        if not unlisted or not self._ledgers.knows_this_bookie():
            return set()
        return {ledger for ledger in unlisted if not self._ledgers.exists(ledger)}

    def _notify_metadata_read(self) -> None:
        try:
            if self._on_metadata_read is not None:
                self._on_metadata_read()
        except OSError as error:
            logger.warning("the number of the next ledger was not noted: %s", error)

    def _forget(self, ledger: int) -> None:
        self._with_bookie(lambda bookie: bookie.forget(ledger))

    # ---- limbo ----------------------------------------------------------------------------------------------

    def _end_limbo(self, deleted: set[int]) -> Iterator[None]:
        """End the limbo of ledgers that are closed, and of which this bookie has all its copies again (BookKeeper
        BP-46)."""
        yield from self._find_limbo()
        ledgers: list[int] = []
        self._with_bookie(lambda bookie: ledgers.extend(bookie.limbo.ledgers))
        for ledger in ledgers:
            try:
                if ledger not in deleted and (yield from self._is_whole(ledger)):
                    self._leave_limbo(ledger)
            except (InvalidMetadataError, CorruptionError, DiskError) as error:  # check the other ledgers
                logger.warning("ledger %d stays in limbo: %s", ledger, error)

    def _find_limbo(self) -> Iterator[None]:
        """Find, once after the start, the ledgers that earlier processes put into limbo."""
        ledgers = (
            [] if self._limbo_found else [ledger - CONTROL for ledger in self._log.log.ledgers() if ledger >= CONTROL]
        )
        for start in range(0, len(ledgers), _LEDGERS_AT_ONCE):
            self._load_limbo(ledgers[start : start + _LEDGERS_AT_ONCE])
            yield
        self._limbo_found = True

    def _load_limbo(self, ledgers: list[int]) -> None:
        self._with_bookie(lambda bookie: bookie.limbo.load(ledgers))

    def _leave_limbo(self, ledger: int) -> None:
        self._with_bookie(lambda bookie: bookie.limbo.leave(ledger))
        logger.info("ledger %d left limbo: it is closed, and this bookie has all its copies", ledger)

    def _is_whole(self, ledger: int) -> Generator[None, None, bool]:
        """Return whether a ledger is closed, and this bookie has intact copies of all the entries that it has to
        hold."""
        holdings = self._ledgers.holdings(ledger)
        for stripe in holdings or ():
            start = stripe.start
            while start <= stripe[-1]:
                records, stop = self._log.read(ledger, start, stripe[-1] + 1, self._config.collect_step_bytes)
                intact = (
                    parse_entries(records, ledger=ledger, first=start, last=stop - 1).entry.tolist() if records else []
                )
                if not set(intact).issuperset(entry for entry in range(start, stop) if entry in stripe):
                    return False
                start = stop
                yield
        return holdings is not None

    # ---- which segments -------------------------------------------------------------------------------------

    def _segment_usages(self, deleted: set[int]) -> Iterator[SegmentUsage]:
        for base, shares in self._log.log.segments():
            entries = [(ledger, share) for ledger, share in shares if ledger < CONTROL]
            sizes = [0 if ledger in deleted else self.surplus.live_bytes(ledger, share) for ledger, share in entries]
            live = [entry for entry, size in zip(entries, sizes, strict=True) if size]
            controls = [
                ledger - CONTROL for ledger, _ in shares if ledger >= CONTROL and ledger - CONTROL not in deleted
            ]
            total = sum(share.bytes for _, share in shares)
            yield SegmentUsage(sum(sizes), base, total, live, controls)

    def _is_worth_collecting(self, segment: SegmentUsage, deleted: set[int]) -> bool:
        """Return whether to collect a segment: few of its bytes are live, or it is empty and at the front of the log.

        A segment with damaged records is collected only if none of these records is needed any more.
        """
        if not segment.total_bytes:
            return segment.base == self._log.log.start_position
        if segment.base in self._damaged:
            return not any(
                self._is_needed(segment.base, bad) for bad in self._damaged[segment.base] if bad.ledger not in deleted
            )
        return segment.live_bytes * 100 < segment.total_bytes * self._config.compact_below_percent or not segment.live

    def _is_needed(self, base: int, bad: BadRange) -> bool:
        """Return whether any of these damaged records is the newest one of an entry that this bookie has to hold.

        Damaged control records are never needed: the bookie appends the known state of their ledgers once more.
        """
        if bad.ledger >= CONTROL:
            return False
        newest = self._log.log.newest_in(base, bad.ledger, bad.first, bad.last + 1).tolist()
        if not newest:
            return False
        stripes = self._ledgers.holdings(bad.ledger)
        return stripes is None or any(entry in stripe for entry in newest for stripe in stripes)

    # ---- one segment ----------------------------------------------------------------------------------------

    def _empty_segment(self, segment: SegmentUsage) -> Iterator[None]:
        for ledger, share in segment.live:
            dead = self.surplus.dead(ledger)
            for first, last in self._intact(segment.base, ledger, share):
                entry = first
                while entry <= last:
                    records, entry = self._log.log.read_share(
                        share._replace(last=last), ledger, entry, self._config.collect_step_bytes, dead
                    )
                    self._log.append(records)
                    self.copied_bytes += len(records)
                    yield
        for ledger in segment.controls:
            self._append_controls(ledger)
        if segment.live or segment.controls:
            self._log.sync()
        self._remove(segment.base)
        logger.info("segment at %d: %d of %d bytes were live", segment.base, segment.live_bytes, segment.total_bytes)
        yield

    def _intact(self, base: int, ledger: int, share: LedgerExtent) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of the parts of a share between its damaged records, which must not be read."""
        first = share.first
        for bad in sorted(bad for bad in self._damaged.get(base, ()) if bad.ledger == ledger):
            if first < bad.first:
                yield first, bad.first - 1
            first = max(first, bad.last + 1)
        if first <= share.last:
            yield first, share.last

    def _append_controls(self, ledger: int) -> None:
        self._with_bookie(lambda bookie: bookie.append_controls(ledger))

    def _remove(self, base: int) -> None:
        log = self._log.log
        start = log.start_position
        if base != start:
            log.punch_hole(base)
            self.hollowed += 1
            return
        end = log.end_position  # read before `segments`: segments that are sealed later end behind it
        needed = (other for other, shares in log.segments() if other != base and shares)
        self.trimmed += (log.trim(next(needed, end)) - start) // log.segment_bytes
