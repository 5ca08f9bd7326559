"""The parts of a log's segments that a read needs: ranges of offsets, times and ledgers, looked up in the indexes.

An index may only exclude: the scan selects records exactly. Times are taken from records with a valid CRC; a damaged
record excludes nothing.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pyreplog._native.ledger_log.sealed import SealedIndex
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog.errors import ConfigError, CorruptionError, OutOfRangeError, ReplogError, TrimmedError
from pyreplog.log import indexes, names
from pyreplog.tables.locked_segment import map_locked
from pyreplog.tables.logs import LogSnapshot, SegmentToRead
from pyreplog.tables.offsets import LAST, Partition
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.slices import LogName, Range, RecordFilter, Slice

_NUMBER_MAX = (1 << 63) - 1


def segment_slices(
    log: LogSnapshot, options: ReadOptions, bookie: str | None = None, existing: tuple[Range, ...] | None = None
) -> list[tuple[Slice, int]]:
    """Return uncut slices of a log that a read needs, with their approximate sizes in bytes.

    bookie: owner of the log. existing: ranges of ledgers that are not deleted; None: unknown. Raises TrimmedError or
    OutOfRangeError (an offset does not exist, and failOnDataLoss is set), and ConfigError.
    """
    numbered = log.numbered and bookie is None  # a bookie's log may have no readable segment
    name = LogName(str(log.directory), log.name if numbered else None, log.uuid, bookie, log.partition)
    entries = _entries(log, name, options)
    times = times_of(options)
    ledgers = _ledgers(options)
    wanted = RecordFilter(entries, times, common(ledgers, existing), log.aborted)
    if numbered and options.ledgers is not None:
        raise ConfigError(f"ledgers: {log.directory} is a log by itself and holds no ledgers")
    segments = [segment for segment in log.segments if segment.until > HEADER_BYTES or segment.fault is not None]
    if numbered:
        segments = _in_entries(log, segments, entries)
        segments = _in_times(log, segments, times)
    elif ledgers is not None:
        segments = [part for segment in segments for part in _in_ledgers(log, segment, wanted)]
    return [(_slice(name, segment, wanted), segment.weight) for segment in segments]


def _slice(name: LogName, segment: SegmentToRead, wanted: RecordFilter) -> Slice:
    fault = segment.fault
    known_fault = (fault.position, fault.expected, fault.found) if isinstance(fault, CorruptionError) else None
    return Slice(
        name, segment.path, segment.base, segment.epoch, segment.start, segment.until, segment.stop, wanted, known_fault
    )  # fmt: skip


# ---- what the options select -----------------------------------------------------------------------------------


def partition_of(log: LogSnapshot) -> Partition:
    """Return the name of a log in startingOffsets and endingOffsets."""
    return log.name, log.partition


def check_offsets(logs: list[LogSnapshot], options: ReadOptions, beside: Sequence[Partition] = ()) -> None:
    """Raise ConfigError if offsets are given by partition, and not for exactly these logs and those `beside` them."""
    for name, offsets in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        for log in logs:
            if not log.numbered and offsets.everywhere is None:
                raise ConfigError(
                    f"{name}: {log.directory} is a bookie's log, whose entries are numbered by ledger: expected one "
                    "number for all; the option ledgers chooses among them"
                )
        offsets.check_names(name, [*(partition_of(log) for log in logs), *beside])


def _entries(log: LogSnapshot, name: LogName, options: ReadOptions) -> tuple[int, int] | None:
    """Return the range of offsets to read; None: all of them."""
    low, high = options.starting_offsets.of(partition_of(log)), options.ending_offsets.of(partition_of(log))
    if name.topic is None:
        wanted = max(low, 0), _NUMBER_MAX if high == LAST else high
        return None if wanted == (0, _NUMBER_MAX) else wanted
    first, end = log.first_entry, log.ends.end_entry
    wanted = bounded(name.directory, low, high, first, end, lenient=not options.fail_on_data_loss)
    return None if wanted == (first, end) else wanted


def bounded(what: str, low: int, high: int, first: int, end: int, *, lenient: bool) -> Range:
    """Return the range of offsets to read of a log with the offsets from `first` to before `end`.

    what: the log, for messages. low, high: as the options say. lenient: take only the offsets that exist. Otherwise
    raises TrimmedError or OutOfRangeError for an offset that does not exist.
    """
    if not lenient:
        _check_exists(what, low, high, first, end)
    if 0 <= high < low:
        raise OutOfRangeError(f"{what}: startingOffsets {low} lies behind endingOffsets {high}")
    return min(max(low, first), end), end if high == LAST else max(min(high, end), first)


def _check_exists(what: str, low: int, high: int, first: int, end: int) -> None:
    if 0 <= low < first:
        raise TrimmedError(
            f"{what}: offset {low} was removed, the log begins at {first}; "
            "set failOnDataLoss to false to read what is left"
        )
    for option, offset in (("startingOffsets", low), ("endingOffsets", high)):
        if offset > end:
            raise OutOfRangeError(f"{what}: {option} {offset}, but the log ends at {end}")


def times_of(options: ReadOptions) -> tuple[int, int] | None:
    """Return the half-open range of append times to read; None: all."""
    if options.starting_time is None and options.ending_time is None:
        return None
    low = -_NUMBER_MAX if options.starting_time is None else options.starting_time
    return low, _NUMBER_MAX if options.ending_time is None else options.ending_time


def _ledgers(options: ReadOptions) -> tuple[Range, ...] | None:
    return None if options.ledgers is None else tuple((low, high + 1) for low, high in options.ledgers)


def common(some: tuple[Range, ...] | None, others: tuple[Range, ...] | None) -> tuple[Range, ...] | None:
    """Return the intersection of two lists of ranges. None means everything."""
    if some is None or others is None:
        return some if others is None else others
    result, i, j = list[Range](), 0, 0
    while i < len(some) and j < len(others):
        low, stop = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if low < stop:
            result.append((low, stop))
        i, j = (i + 1, j) if some[i][1] < others[j][1] else (i, j + 1)
    return tuple(result)


def is_among(number: int, ranges: tuple[Range, ...]) -> bool:
    """Whether one of the ascending ranges holds a number."""
    at = bisect.bisect_right(ranges, number, key=lambda candidate: candidate[0]) - 1
    return at >= 0 and number < ranges[at][1]


# ---- by order: entries, and the times of a log by itself -------------------------------------------------------


def _in_entries(
    log: LogSnapshot, segments: list[SegmentToRead], entries: tuple[int, int] | None
) -> list[SegmentToRead]:
    if entries is None:
        return segments
    if entries[0] >= entries[1]:
        return []
    if any(segment.fault is not None for segment in segments):
        return segments  # the damaged segment may hold any of the entries
    low, high = entries
    return _between(
        log, segments, (low + 1, high), lambda segment: segment.first_entry, _entry_at
    )  # low + 1, because numbers are unique


def _in_times(log: LogSnapshot, segments: list[SegmentToRead], times: tuple[int, int] | None) -> list[SegmentToRead]:
    if times is None or not segments:
        return segments
    if times[0] >= times[1]:
        return []

    def first_time(segment: SegmentToRead) -> int:
        return _time_at(_hold(log, segment), HEADER_BYTES)

    try:
        return _between(log, segments, times, first_time, lambda segment, _, place: _time_at(segment, place))
    except ReplogError:  # damaged, or being trimmed: the scan reports it
        return segments


def _between(
    log: LogSnapshot, segments: list[SegmentToRead], wanted: tuple[int, int], first: Callable[[SegmentToRead], int],
    key: Callable[[Segment, int, int], int],
) -> list[SegmentToRead]:  # fmt: skip
    """Return the segments with keys in a range, of segments whose keys ascend; the outer two are cut down to the range.

    Records with the highest key below the range may remain. first: key of a segment's first record. key: key of a
    record that the index has, from (segment, number of entries before it, offset).
    """
    low, high = wanted
    start = max(bisect.bisect_left(segments, low, key=first) - 1, 0)
    stop = bisect.bisect_left(segments, high, lo=start, key=first)
    segments = segments[start:stop]
    if segments:
        segments[-1] = _cut(log, segments[-1], high, key, front=False)
        segments[0] = _cut(log, segments[0], low, key, front=True)
    return segments


def _cut(
    log: LogSnapshot, file: SegmentToRead, bound: int, key: Callable[[Segment, int, int], int], *, front: bool
) -> SegmentToRead:
    """Cut the records before a bound (front) or from it on, as exactly as the segment's index allows."""
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
    """Return the append time of a record. It is verified, because it may exclude other records."""
    if segment.check(place, segment.size) < 0:
        raise segment.fault(place, segment.check(place, segment.size))
    return segment.head_at(place)[3]


# ---- by ledger -------------------------------------------------------------------------------------------------


def _in_ledgers(log: LogSnapshot, file: SegmentToRead, wanted: RecordFilter) -> list[SegmentToRead]:
    """Cut a segment of a bookie's log down to the wanted ledgers. Without an index it stays whole."""
    if file.fault is not None:
        return [file]
    try:
        places = _places(log.directory, _hold(log, file), wanted)
    except (OSError, ReplogError):  # only an intact index may exclude anything
        return [file]
    if not places:
        return []
    start, last = min(low for low, _ in places), max(high for _, high in places)
    until = min(last + 8, file.until)  # the last record begins before it
    if start >= until:
        return []
    return [replace(file, start=start, until=until, weight=until - start)]


def _places(directory: Path, segment: Segment, wanted: RecordFilter) -> list[tuple[int, int]]:
    """Return the lowest and the highest offset of the records of each wanted ledger in a sealed segment."""
    order = indexes.load(directory, segment)
    if order is None:
        raise FileNotFoundError(names.index_path(directory, segment.base))
    index = SealedIndex.open(
        names.ledgers_path(directory, segment.base), uuid=segment.uuid, base=segment.base, stamp=segment.stamp,
        end=order.end,
    )  # fmt: skip
    low, high = wanted.entries if wanted.entries is not None else (0, _NUMBER_MAX)
    places = []
    for ledger in index.ledgers()["ledger"].tolist():
        if is_among(ledger, wanted.ledgers or ()):
            _, offsets = index.entries(ledger, low, high)
            if len(offsets):
                places.append((int(offsets.min()), int(offsets.max())))
    return places
