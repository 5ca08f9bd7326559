"""The entries of ledgers that a read needs: each entry once, or the copies on bookies over TCP.

Sizes are from metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyreplog.errors import ConfigError, InvalidMetadataError, UnauthorizedError
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, ledger_key
from pyreplog.ledger.ledger_store import find_ledger, list_ledgers
from pyreplog.metadata.store import MetadataStore
from pyreplog.tables.cluster.entry_slices import HEADER_BYTES, EntrySlice, slim
from pyreplog.tables.cluster.ledger_ends import LedgerContents, amounts
from pyreplog.tables.cluster.origins import ClusterSnapshot, RemoteCluster, chosen
from pyreplog.tables.offsets import LAST
from pyreplog.tables.options import ALL, ANY, ReadOptions, merged
from pyreplog.tables.ranges import is_among, times_of
from pyreplog.tables.slices import Range, RecordFilter

logger = logging.getLogger(__name__)

LOOKUPS = 16
"""Concurrent lookups in a metadata store on the network."""

T = TypeVar("T")
R = TypeVar("R")


def each(survey: ClusterSnapshot, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return `call(item)` for each item, in order; several at a time if each call uses the network."""
    if not isinstance(survey.origin, RemoteCluster):
        return [call(item) for item in items]
    with ThreadPoolExecutor(LOOKUPS) as pool:
        return list(pool.map(call, items))


def existing_ledgers(store: MetadataStore) -> tuple[Range, ...]:
    """Return the ranges of all ledgers that are not deleted."""
    return tuple((low, high + 1) for low, high in merged((ledger, ledger) for ledger in list_ledgers(store)))


def ledger_slices(survey: ClusterSnapshot, options: ReadOptions) -> list[tuple[EntrySlice, int]]:
    """Return uncut slices of a cluster's ledgers that a read needs, with their approximate sizes in bytes.

    Raises ConfigError, InvalidMetadataError, UnauthorizedError, UnreadableError (the bookies of an open ledger do not
    tell its end), and the errors of the metadata store.
    """
    check_offsets(options)
    key = ledger_key(options.password)
    ledgers = _load(survey, options)
    _check_password(ledgers, key)
    known = amounts(survey.runtime, ledgers, key)
    names: dict[str, str] = {}
    bookies = _bookies(ledgers, options.replica)
    low, high = max(options.starting_offsets.of(("", 0)), 0), options.ending_offsets.of(("", 0))
    wanted = RecordFilter(times=times_of(options))
    slices: list[tuple[EntrySlice, int]] = []
    for metadata in ledgers:
        amount = known[metadata.ledger]
        stop = amount.entries if high == LAST else min(high, amount.entries)
        if low >= stop or (wanted.times is not None and metadata.created_us >= wanted.times[1]):
            continue
        for bookie, first, last, share in _copies(metadata, bookies, low, stop):
            weight = _weight(amount, last - first, share)
            part = EntrySlice(
                survey.origin, metadata.ledger, first, last, weight, wanted, survey.segments(metadata.ledger),
                slim(metadata, names), key, bookie=bookie,
            )  # fmt: skip
            slices.append((part, weight))
    return slices


def check_offsets(options: ReadOptions) -> None:
    """Raise ConfigError if offsets are given by partition, which ledgers do not have."""
    for name, offsets in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        if offsets.everywhere is None:
            raise ConfigError(
                f"{name}: entries are numbered by ledger: expected one number for all; the options ledgers and topics "
                "choose among them"
            )


def _load(survey: ClusterSnapshot, options: ReadOptions) -> list[LedgerMetadata]:
    store = survey.runtime.metadata
    ids = list_ledgers(store)
    if options.ledgers is not None:
        ranges = tuple((low, high + 1) for low, high in options.ledgers)
        ids = [ledger for ledger in ids if is_among(ledger, ranges)]

    def load(ledger: int) -> LedgerMetadata | None:
        try:
            versioned = find_ledger(store, ledger)
        except InvalidMetadataError as error:
            if options.mode == "FAILFAST":
                raise
            logger.warning("ledger %d is skipped: %s", ledger, error)
            return None
        return None if versioned is None else versioned.metadata

    return [metadata for metadata in each(survey, load, ids) if metadata is not None]


def _check_password(ledgers: list[LedgerMetadata], key: bytes) -> None:
    for metadata in ledgers:
        if not metadata.admits(key):
            raise UnauthorizedError(
                metadata.ledger,
                "the option password is not the password of this ledger; the option ledgers can leave it out",
            )


def _weight(amount: LedgerContents, entries: int, share: float) -> int:
    mean = amount.size / amount.entries + HEADER_BYTES
    return max(int(mean * entries * share), 1)


# ---- copies ----------------------------------------------------------------------------------------------------


def _bookies(ledgers: list[LedgerMetadata], replica: str) -> set[str] | None:
    """Return the bookies whose copies are read; None: any. Raises ConfigError if no bookie has the name."""
    if replica == ANY:
        return None
    known = sorted({bookie for metadata in ledgers for bookie in metadata.bookies()})
    bookies = known if replica == ALL else chosen(known, replica)
    if known and not bookies:
        raise ConfigError(f"replica: expected any, all or one of {', '.join(known)}, found {replica!r}")
    return set(bookies)


def _copies(
    metadata: LedgerMetadata, bookies: set[str] | None, low: int, stop: int
) -> Iterator[tuple[str | None, int, int, float]]:
    """Yield (bookie, first entry, entry after the last, share of them that the bookie should have)."""
    if bookies is None:
        yield None, low, stop, 1.0
        return
    share = metadata.write_quorum / metadata.ensemble_size
    for fragment in metadata.fragments:
        first, last = max(low, fragment.first), min(stop, _end(metadata, fragment, stop))
        if first < last:
            yield from ((bookie, first, last, share) for bookie in fragment.ensemble if bookie in bookies)


def _end(metadata: LedgerMetadata, fragment: Fragment, stop: int) -> int:
    end = metadata.fragment_end(fragment)
    return stop if end is None else end
