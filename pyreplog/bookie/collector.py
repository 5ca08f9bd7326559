"""Garbage collection: the space of deleted ledgers comes back.

A ledger is deleted only when two looks at metadata say so, a listing that began after it was seen here and a direct
get, and metadata still knows this bookie: a store that was emptied, or is another one, proves nothing (#4607: one wrong
proof deleted live data). Of each sealed segment, the emptiest first:

1. live entries, if few enough to be worth it, and what control records say of live ledgers, are appended once more
2. the log is synced                    crash before: two copies of some entries, equal bytes; nothing else happened
3. the segment is trimmed or hollowed   crash during: it is whole or gone; nothing in it was needed any more
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, Protocol, TypeVar

from pyreplog._native.ledgerlog.entries import CONTROL, parse_entries
from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.entrylog import DiskLog
from pyreplog.bookie.ledgermap import LedgerExtent
from pyreplog.errors import CorruptionError, DiskError, InvalidMetadataError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOKS = 64


class Ledgers(Protocol):
    """What metadata says of ledgers. Any error: nothing is known."""

    def knows_us(self) -> bool:
        """Whether it is the metadata of our cluster, and knows this bookie."""
        ...

    def listed(self) -> set[int]:
        """All ledgers there are, by a listing that begins now."""
        ...

    def exists(self, ledger: int) -> bool:
        """By asking for this one."""
        ...

    def holdings(self, ledger: int) -> list[range] | None:
        """Entries of a closed ledger that should be here; None: it is not closed. InvalidMetadataError."""
        ...


class SegmentUsage(NamedTuple):
    """A sealed one. live, controls: (ledger, share) of ledgers that were not deleted. live_bytes: of their entries."""

    live_bytes: int
    base: int
    total_bytes: int
    live: list[tuple[int, LedgerExtent]]
    controls: list[int]


class Collector:
    """Collects in steps, each of which copies at most `collect_step_bytes` and may be made while the bookie serves.

    alone: runs a function over the bookie while nothing else is handled (LocalBookie.with_bookie). on_look: called when
    a round has looked at the metadata (LocalBookie.when_collected).
    One thread at a time.
    """

    def __init__(
        self,
        log: DiskLog,
        config: BookieConfig,
        ledgers: Ledgers,
        alone: Callable[[Callable[[Bookie], object]], object],
        *,
        on_look: Callable[[], None] | None = None,
    ) -> None:
        self._log, self._config, self._ledgers, self._alone = log, config, ledgers, alone
        self._on_look = on_look
        self._round: Iterator[None] | None = None
        self._looked = False  # for ledgers in limbo
        self.copied_bytes = self.hollowed = self.trimmed = 0  # bytes of entries; segments

    def step(self) -> bool:
        """Go on with this round, or begin one; False: it is over.

        Errors: those of the metadata store and of the log, after which the next step begins a new round.
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
        """A whole round."""
        while self.step():
            continue

    # ---- which ledgers --------------------------------------------------------------------------------------

    def _collect(self) -> Iterator[None]:
        deleted = self._find_deleted()
        self._note()
        for ledger in sorted(deleted):
            self._forget(ledger)
        yield
        yield from self._end_limbo(deleted)
        for segment in sorted(self._survey(deleted)):
            if self._is_worth_it(segment):
                try:
                    yield from self._empty(segment)
                except CorruptionError as error:  # stays as it is, for repair; the others are collected (#4544)
                    logger.error("the segment at %d cannot be collected: %s", segment.base, error)
                except DiskError as error:  # later ones need as much space
                    logger.warning("garbage collection stops: %s", error)
                    return

    def _find_deleted(self) -> set[int]:
        """Order matters: what is here, then the listing, then each one."""
        here = {ledger if ledger < CONTROL else ledger - CONTROL for ledger in self._log.log.ledgers()}
        missing = here - self._ledgers.listed()
        if not missing or not self._ledgers.knows_us():
            return set()
        return {ledger for ledger in missing if not self._ledgers.exists(ledger)}

    def _note(self) -> None:
        try:
            if self._on_look is not None:
                self._on_look()
        except OSError as error:
            logger.warning("what the metadata said was not noted: %s", error)

    def _forget(self, ledger: int) -> None:
        self._alone(lambda bookie: bookie.forget(ledger))

    # ---- limbo ----------------------------------------------------------------------------------------------

    def _end_limbo(self, deleted: set[int]) -> Iterator[None]:
        """A ledger that is closed, and whose copies are all here again, is not in limbo any more (BP-46)."""
        yield from self._find_limbo()
        found: list[int] = []
        self._alone(lambda bookie: found.extend(bookie.limbo.ledgers))
        for ledger in found:
            try:
                if ledger not in deleted and (yield from self._is_whole(ledger)):
                    self._leave_limbo(ledger)
            except (InvalidMetadataError, CorruptionError, DiskError) as error:  # space is to come back all the same
                logger.warning("ledger %d stays in limbo: %s", ledger, error)

    def _find_limbo(self) -> Iterator[None]:
        """Once after the start: those of earlier lives."""
        here = [] if self._looked else [ledger - CONTROL for ledger in self._log.log.ledgers() if ledger >= CONTROL]
        for at in range(0, len(here), _LOOKS):
            self._look_for_limbo(here[at : at + _LOOKS])
            yield
        self._looked = True

    def _look_for_limbo(self, ledgers: list[int]) -> None:
        self._alone(lambda bookie: bookie.limbo.look(ledgers))

    def _leave_limbo(self, ledger: int) -> None:
        self._alone(lambda bookie: bookie.limbo.leave(ledger))
        logger.info("ledger %d is closed and all its copies are here: not in limbo any more", ledger)

    def _is_whole(self, ledger: int) -> Generator[None, None, bool]:
        """Whether the ledger is closed, and all that it should have here is, and intact."""
        holdings = self._ledgers.holdings(ledger)
        for stripe in holdings or ():
            at = stripe.start
            while at <= stripe[-1]:
                records, after = self._log.read(ledger, at, stripe[-1] + 1, self._config.collect_step_bytes)
                found = (
                    parse_entries(records, ledger=ledger, first=at, last=after - 1).entry.tolist() if records else []
                )
                if not set(found).issuperset(entry for entry in range(at, after) if entry in stripe):
                    return False
                at = after
                yield
        return holdings is not None

    # ---- which segments -------------------------------------------------------------------------------------

    def _survey(self, deleted: set[int]) -> Iterator[SegmentUsage]:
        for base, shares in self._log.log.segments():
            entries = [(ledger, share) for ledger, share in shares if ledger < CONTROL]
            live = [(ledger, share) for ledger, share in entries if ledger not in deleted]
            controls = [
                ledger - CONTROL for ledger, _ in shares if ledger >= CONTROL and ledger - CONTROL not in deleted
            ]
            total = sum(share.bytes for _, share in shares)
            yield SegmentUsage(sum(share.bytes for _, share in live), base, total, live, controls)

    def _is_worth_it(self, segment: SegmentUsage) -> bool:
        """A segment without anything is hollow already; it goes when all before it has gone."""
        if not segment.total_bytes:
            return segment.base == self._log.log.start_position
        return segment.live_bytes * 100 < segment.total_bytes * self._config.compact_below_percent or not segment.live

    # ---- one segment ----------------------------------------------------------------------------------------

    def _empty(self, segment: SegmentUsage) -> Iterator[None]:
        for ledger, share in segment.live:
            at = share.first
            while at <= share.last:
                records, at = self._log.log.read_share(share, ledger, at, self._config.collect_step_bytes)
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

    def _append_controls(self, ledger: int) -> None:
        self._alone(lambda bookie: bookie.append_controls(ledger))

    def _remove(self, base: int) -> None:
        log = self._log.log
        start = log.start_position
        if base != start:
            log.punch_hole(base)
            self.hollowed += 1
            return
        end = log.end_position  # first: what is sealed from now on ends behind it
        needed = (at for at, shares in log.segments() if at != base and shares)
        self.trimmed += (log.trim(next(needed, end)) - start) // log.segment_bytes
