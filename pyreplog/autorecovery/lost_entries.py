"""LostEntries: the list of entries of which no bookie that may still exist has a copy.

Entries are listed before the metadata stop naming the bookies that had them, so that every loss is recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyreplog.errors import InvalidMetadataError
from pyreplog.ledger.ledger_metadata import ID_DIGITS
from pyreplog.metadata.changes import change_key
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, field

LOST = "/lost"
RANGES_MAX = 16_384
"""Maximum number of ranges of one ledger, for a value of about 1 MB. Beyond it adjacent ranges are joined, and
`is_coarse` is set."""

_COUNTED_MAX = 1_000_000


@dataclass(frozen=True)
class LostRange:
    """A range of lost entries of one ledger.

    Attributes:
        start: first entry.
        stop: entry behind the last one.
        step: distance between two lost entries: only start, start + step, … of the range are lost.
        bookie: id of a bookie that had, or may have had, the last copies. If several bookies may have had them, there
            is a range for each.
        since_us: when the loss was found, microseconds since 1970-01-01 UTC.
    """

    start: int
    stop: int
    step: int
    bookie: str
    since_us: int

    @property
    def entries(self) -> range:
        """The lost entries of the range."""
        return range(self.start, self.stop, self.step)


@dataclass(frozen=True)
class LostEntries(MetadataValue):
    """The lost entries of one ledger.

    Attributes:
        ranges: the ranges, ascending by their first entry.
        is_coarse: whether ranges were joined, because there were too many, and contain entries that are not lost.
    """

    KIND: ClassVar[str] = "lost entries"

    ranges: tuple[LostRange, ...] = ()
    is_coarse: bool = False

    @property
    def count(self) -> int:
        """Number of lost entries.

        In very long lists, entries that several bookies may have had may count more than once.
        """
        ranges = {(item.start, item.stop, item.step) for item in self.ranges}
        total = sum(len(range(*bounds)) for bounds in ranges)
        return len({entry for bounds in ranges for entry in range(*bounds)}) if total <= _COUNTED_MAX else total

    def _encode_fields(self) -> dict[str, Any]:
        ranges = [[item.start, item.stop, item.step, item.bookie, item.since_us] for item in self.ranges]
        return {"ranges": ranges, "is_coarse": self.is_coarse}

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        ranges = tuple(_decode_range(item) for item in field(fields, "ranges", list))
        return {"ranges": ranges, "is_coarse": field(fields, "is_coarse", bool)}

    def with_ranges(self, ranges: Iterable[LostRange]) -> LostEntries:
        """Return the list with more ranges. Ranges that are already listed are not added again."""
        listed = {(item.start, item.stop, item.step, item.bookie) for item in self.ranges}
        added = [item for item in ranges if (item.start, item.stop, item.step, item.bookie) not in listed]
        merged = sorted([*self.ranges, *added], key=lambda item: (item.start, item.stop))
        is_coarse = self.is_coarse
        while len(merged) > RANGES_MAX:
            is_coarse = True
            pairs = zip(merged[::2], [*merged[1::2], None], strict=False)
            merged = [left if right is None else _joined(left, right) for left, right in pairs]
        return LostEntries(tuple(merged), is_coarse, kept=self.kept)


def _joined(left: LostRange, right: LostRange) -> LostRange:
    return LostRange(left.start, max(left.stop, right.stop), 1, left.bookie, min(left.since_us, right.since_us))


def _decode_range(item: Any) -> LostRange:
    if type(item) is not list or len(item) != 5 or type(item[3]) is not str:
        raise ValueError(f"range: {str(item)[:80]}")
    start, stop, step, bookie, since_us = item
    for number in (start, stop, step, since_us):
        if type(number) is not int or number < 0:
            raise ValueError(f"range: {str(item)[:80]}")
    if not start < stop or not step:
        raise ValueError(f"range: {str(item)[:80]}")
    return LostRange(start, stop, step, bookie, since_us)


def lost_key(ledger: int) -> str:
    """Return the key of the lost entries of a ledger."""
    return f"{LOST}/{ledger:0{ID_DIGITS}d}"


def ranges_of(entries: Iterable[int], bookie: str, since_us: int) -> list[LostRange]:
    """Return ascending entries as a minimal list of ranges with steps."""
    ranges: list[LostRange] = []
    for entry in entries:
        last = ranges[-1] if ranges else None
        if last is not None and last.start + 1 == last.stop:
            ranges[-1] = LostRange(last.start, entry + 1, entry - last.start, bookie, since_us)
        elif last is not None and entry == last.entries[-1] + last.step:
            ranges[-1] = LostRange(last.start, entry + 1, last.step, bookie, since_us)
        else:
            ranges.append(LostRange(entry, entry + 1, 1, bookie, since_us))
    return ranges


def note_lost(store: MetadataStore, ledger: int, ranges: Iterable[LostRange]) -> None:
    """Add ranges to the lost entries of a ledger. The change is durable when the call returns.

    Raises:
        MetadataVersionError: the list needs a newer reader.
        InvalidMetadataError: the list is malformed.
        ReplogError: errors of the store.
    """
    added = list(ranges)

    def change(value: bytes | None) -> bytes:
        listed = LostEntries() if value is None else LostEntries.decode(value)
        return listed.with_ranges(added).encode()

    change_key(store, lost_key(ledger), change)


def remove_lost(store: MetadataStore, ledger: int, entries: Collection[int]) -> None:
    """Remove entries from the list, because copies of them were found.

    Args:
        store: metadata store.
        ledger: id of the ledger.
        entries: numbers of the entries.

    Raises:
        InvalidMetadataError: the list is malformed.
        ReplogError: errors of the store.
    """

    def change(value: bytes | None) -> bytes | None:
        if value is None:
            return None
        listed = LostEntries.decode(value)
        left = [rest for item in listed.ranges for rest in _without(item, entries)]
        return LostEntries((), listed.is_coarse, kept=listed.kept).with_ranges(left).encode() if left else None

    change_key(store, lost_key(ledger), change)


def _without(lost: LostRange, entries: Collection[int]) -> list[LostRange]:
    """Return the rest of a range without some entries. The range may be longer than any ledger."""
    left: list[LostRange] = []
    start = lost.start
    for entry in sorted(entry for entry in entries if entry in lost.entries):
        if start < entry:
            left.append(replace(lost, start=start, stop=entry))
        start = entry + lost.step
    return [*left, replace(lost, start=start)] if start < lost.stop else left


def find_lost(store: MetadataStore, ledger: int) -> LostEntries:
    """Return the lost entries of one ledger.

    Raises:
        MetadataVersionError: the list needs a newer reader.
        InvalidMetadataError: the list is malformed.
        ReplogError: errors of the store.
    """
    stored = store.get(lost_key(ledger))
    return LostEntries() if stored is None else LostEntries.decode(stored.value)


def list_lost(store: MetadataStore) -> dict[int, LostEntries]:
    """Return the lost entries of all ledgers, ascending by ledger.

    A list that is malformed, or needs a newer reader, is returned as coarse and without ranges. Keys that are not ids
    of ledgers are ignored.

    Raises:
        ReplogError: errors of the store.
    """
    names = [name for name in store.list(LOST) if name.isascii() and name.isdecimal()]
    lost: dict[int, LostEntries] = {}
    for name, stored in zip(names, store.get_many([f"{LOST}/{name}" for name in names]), strict=True):
        if stored is None:
            continue
        try:
            lost[int(name)] = LostEntries.decode(stored.value)
        except InvalidMetadataError:
            lost[int(name)] = LostEntries((), is_coarse=True)
    return lost


def count_lost(store: MetadataStore) -> int:
    """Return the number of entries that are listed as lost. Raises errors of the store."""
    return sum(len(item.entries) for lost in list_lost(store).values() for item in lost.ranges)


def bookies_of_lost(store: MetadataStore) -> dict[int, set[str] | None]:
    """Return the bookies with the last copies of lost entries, by ledger; None: the list cannot be read.

    Raises errors of the store.
    """
    return {
        ledger: {item.bookie for item in lost.ranges} if lost.ranges else None
        for ledger, lost in list_lost(store).items()
    }


def had_last_copies(lost: dict[int, set[str] | None], bookie: str) -> list[int]:
    """Return the ledgers with lost entries of which a bookie had, or may have had, the last copies."""
    return sorted(ledger for ledger, bookies in lost.items() if bookies is None or bookie in bookies)
