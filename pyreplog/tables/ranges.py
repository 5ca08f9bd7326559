"""Which stretches of a log's segments a read needs: ranges of offsets, times and ledgers, looked up in the indexes.

What an index does not rule out is kept; the exact choice is the scan's. Times are those of records whose CRC is right:
where one is not, nothing is ruled out by it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pyreplog._native.ledgerlog.sealed import SealedIndex
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog.errors import ConfigError, CorruptionError, OutOfRangeError, ReplogError, TrimmedError
from pyreplog.log import indexes, names
from pyreplog.tables.locked_segment import map_locked
from pyreplog.tables.logs import LogSnapshot, SegmentToRead
from pyreplog.tables.offsets import LAST, Partition
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.slices import NO_PARTITION, LogName, Range, RecordFilter, Slice

_NUMBER_MAX = (1 << 63) - 1


def stretches(
    log: LogSnapshot, options: ReadOptions, bookie: str | None = None, there: tuple[Range, ...] | None = None
) -> list[tuple[Slice, int]]:
    """Slices, uncut, of all that is wanted of a log, and about how many bytes each is.

    bookie: whose log it is. there: ranges of ledgers that are not deleted; None: nobody knows.

    Errors: TrimmedError, OutOfRangeError: an offset is not there, and that matters; ConfigError.
    """
    numbered = log.numbered and bookie is None  # a bookie's log without a segment that can be read says nothing
    name = LogName(str(log.directory), log.name if numbered else None, log.uuid, bookie)
    entries = _entries(log, name, options)
    times = times_of(options)
    ledgers = _ledgers(options)
    wanted = RecordFilter(entries, times, common(ledgers, there))
    if numbered and options.ledgers is not None:
        raise ConfigError(f"ledgers: {log.directory} is a log by itself and holds no ledgers")
    found = [segment for segment in log.segments if segment.until > HEADER_BYTES or segment.fault is not None]
    if numbered:
        found = _in_entries(log, found, entries)
        found = _in_times(log, found, times)
    elif ledgers is not None:
        found = [part for segment in found for part in _in_ledgers(log, segment, wanted)]
    return [(_slice(name, segment, wanted), segment.weight) for segment in found]


def _slice(name: LogName, segment: SegmentToRead, wanted: RecordFilter) -> Slice:
    fault = segment.fault
    told = (fault.position, fault.expected, fault.found) if isinstance(fault, CorruptionError) else None
    return Slice(
        name, segment.path, segment.base, segment.epoch, segment.start, segment.until, segment.stop, wanted, told
    )  # fmt: skip


# ---- what was asked for ----------------------------------------------------------------------------------------


def partition_of(log: LogSnapshot) -> Partition:
    """As the log is named in startingOffsets and endingOffsets."""
    return log.name, NO_PARTITION


def check_offsets(logs: list[LogSnapshot], options: ReadOptions, beside: Sequence[Partition] = ()) -> None:
    """ConfigError: offsets were given by partition, and not those of the logs and of what is read beside them."""
    for name, offsets in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        for log in logs:
            if not log.numbered and offsets.everywhere is None:
                raise ConfigError(
                    f"{name}: {log.directory} is a bookie's log, whose entries are numbered by ledger: expected one "
                    "number for all; the option ledgers chooses among them"
                )
        offsets.check_names(name, [*(partition_of(log) for log in logs), *beside])


def _entries(log: LogSnapshot, name: LogName, options: ReadOptions) -> tuple[int, int] | None:
    """The offsets wanted; None: all there are."""
    low, high = options.starting_offsets.of(partition_of(log)), options.ending_offsets.of(partition_of(log))
    if name.topic is None:
        wanted = max(low, 0), _NUMBER_MAX if high == LAST else high
        return None if wanted == (0, _NUMBER_MAX) else wanted
    first, end = log.first_entry, log.ends.end_entry
    wanted = bounded(name.directory, low, high, first, end, lenient=not options.fail_on_data_loss)
    return None if wanted == (first, end) else wanted


def bounded(what: str, low: int, high: int, first: int, end: int, *, lenient: bool) -> Range:
    """The offsets that are wanted of those there are, from `first` to before `end`. low, high: as asked for.

    Errors: TrimmedError, OutOfRangeError: an offset is not there; lenient: then as much is wanted as there is.
    """
    if not lenient:
        _check_there(what, low, high, first, end)
    if 0 <= high < low:
        raise OutOfRangeError(f"{what}: startingOffsets {low} lies behind endingOffsets {high}")
    return min(max(low, first), end), end if high == LAST else max(min(high, end), first)


def _check_there(what: str, low: int, high: int, first: int, end: int) -> None:
    if 0 <= low < first:
        raise TrimmedError(
            f"{what}: offset {low} was removed, the log begins at {first}; "
            "set failOnDataLoss to false to read what there is"
        )
    for option, offset in (("startingOffsets", low), ("endingOffsets", high)):
        if offset > end:
            raise OutOfRangeError(f"{what}: {option} {offset}, but the log ends at {end}")


def times_of(options: ReadOptions) -> tuple[int, int] | None:
    """The append times that are wanted, half open; None: all."""
    if options.starting_time is None and options.ending_time is None:
        return None
    low = -_NUMBER_MAX if options.starting_time is None else options.starting_time
    return low, _NUMBER_MAX if options.ending_time is None else options.ending_time


def _ledgers(options: ReadOptions) -> tuple[Range, ...] | None:
    return None if options.ledgers is None else tuple((low, high + 1) for low, high in options.ledgers)


def common(some: tuple[Range, ...] | None, others: tuple[Range, ...] | None) -> tuple[Range, ...] | None:
    """What lies in both; None: everything."""
    if some is None or others is None:
        return some if others is None else others
    found, i, j = list[Range](), 0, 0
    while i < len(some) and j < len(others):
        low, stop = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if low < stop:
            found.append((low, stop))
        i, j = (i + 1, j) if some[i][1] < others[j][1] else (i, j + 1)
    return tuple(found)


def is_among(number: int, ranges: tuple[Range, ...]) -> bool:
    """Whether one of them holds it."""
    at = bisect.bisect_right(ranges, number, key=lambda one: one[0]) - 1
    return at >= 0 and number < ranges[at][1]


# ---- by order: entries, and the times of a log by itself -------------------------------------------------------


def _in_entries(log: LogSnapshot, found: list[SegmentToRead], entries: tuple[int, int] | None) -> list[SegmentToRead]:
    if entries is None:
        return found
    if entries[0] >= entries[1]:
        return []
    if any(segment.fault is not None for segment in found):
        return found  # who knows what numbers it holds
    low, high = entries
    return _between(
        log, found, (low + 1, high), lambda segment: segment.first_entry, _entry_at
    )  # no number comes twice


def _in_times(log: LogSnapshot, found: list[SegmentToRead], times: tuple[int, int] | None) -> list[SegmentToRead]:
    if times is None or not found:
        return found
    if times[0] >= times[1]:
        return []

    def first_time(segment: SegmentToRead) -> int:
        return _time_at(_hold(log, segment), HEADER_BYTES)

    try:
        return _between(log, found, times, first_time, lambda segment, _, place: _time_at(segment, place))
    except ReplogError:  # damaged, or on its way out: the scan will tell
        return found


def _between(
    log: LogSnapshot, found: list[SegmentToRead], wanted: tuple[int, int], first: Callable[[SegmentToRead], int],
    key: Callable[[Segment, int, int], int],
) -> list[SegmentToRead]:  # fmt: skip
    """Of segments in which keys ascend, those with keys in the range; the outer two cut down to it. Some with the key
    that is one below its lowest may be among them.

    first: the key of a segment's first record. key: of an indexed one, from (segment, entries before it, offset).
    """
    low, high = wanted
    start = max(bisect.bisect_left(found, low, key=first) - 1, 0)
    stop = bisect.bisect_left(found, high, lo=start, key=first)
    found = found[start:stop]
    if found:
        found[-1] = _cut(log, found[-1], high, key, front=False)
        found[0] = _cut(log, found[0], low, key, front=True)
    return found


def _cut(
    log: LogSnapshot, file: SegmentToRead, bound: int, key: Callable[[Segment, int, int], int], *, front: bool
) -> SegmentToRead:
    """A segment without the records before (front) or from the bound on, as exactly as its index tells."""
    segment = _hold(log, file)
    index = indexes.load(log.directory, segment)
    if index is None:
        return file
    count = len(index)

    def of_block(i: int) -> int:
        entries, place = index.block(i)
        return key(segment, entries, place)

    at = bisect.bisect_left(range(count), bound, key=of_block)
    if front:
        offset = max(index.block(at - 1)[1] if at else HEADER_BYTES, file.start)
        return replace(file, start=offset, weight=max(file.until - offset, 1))
    offset = min(index.block(at)[1] if at < count else file.until, file.until)
    return replace(file, until=offset, weight=max(offset - file.start, 1))


def _hold(log: LogSnapshot, file: SegmentToRead) -> Segment:
    return map_locked(file.path, log.uuid, file.base, file.epoch)


def _entry_at(segment: Segment, entries: int, _: int) -> int:
    return segment.first_entry + entries


def _time_at(segment: Segment, place: int) -> int:
    """Append time of a record; verified, since what follows from it may be that others are not read."""
    if segment.check(place, segment.size) < 0:
        raise segment.fault(place, segment.check(place, segment.size))
    return segment.head_at(place)[3]


# ---- by ledger -------------------------------------------------------------------------------------------------


def _in_ledgers(log: LogSnapshot, file: SegmentToRead, wanted: RecordFilter) -> list[SegmentToRead]:
    """A segment of a bookie's log, cut down to the wanted ledgers; whole where there is no index (yet)."""
    if file.fault is not None:
        return [file]
    try:
        places = _places(log.directory, _hold(log, file), wanted)
    except (OSError, ReplogError):  # no index, or a damaged one: only an intact one may rule out
        return [file]
    if not places:
        return []
    start, last = min(low for low, _ in places), max(high for _, high in places)
    until = min(last + 8, file.until)  # the last of them begins before it
    if start >= until:
        return []
    return [replace(file, start=start, until=until, weight=until - start)]


def _places(directory: Path, segment: Segment, wanted: RecordFilter) -> list[tuple[int, int]]:
    """Lowest and highest offset of each wanted ledger's records in a sealed segment."""
    order = indexes.load(directory, segment)
    if order is None:
        raise FileNotFoundError(names.index_path(directory, segment.base))
    index = SealedIndex.open(
        names.ledgers_path(directory, segment.base), uuid=segment.uuid, base=segment.base, stamp=segment.stamp,
        end=order.end,
    )  # fmt: skip
    low, high = wanted.entries if wanted.entries is not None else (0, _NUMBER_MAX)
    found = []
    for ledger in index.ledgers()["ledger"].tolist():
        if is_among(ledger, wanted.ledgers or ()):
            _, offsets = index.entries(ledger, low, high)
            if len(offsets):
                found.append((int(offsets.min()), int(offsets.max())))
    return found
