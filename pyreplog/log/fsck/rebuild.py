"""A segment's damaged header made again, from what the rest of the log says about it.

Its place tells the base, the other files uuid and size, the neighbours the first entry. Only the epoch has to be tried:
every record carries a stamp made from it. The header stands only if all of the segment's records verify with it.
"""

from __future__ import annotations

import os

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import encode_header
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.log import names, recovery
from pyreplog.log.fsck.locked_segment import copy
from pyreplog.log.fsck.survey import Header, LogState
from pyreplog.log.headers import find_epoch
from pyreplog.log.segments import UNNUMBERED

_STAMP_AT = 8  # in a record's header


def rebuild_header(seen: LogState, base: int, *, due: int | None) -> bytes | None:
    """The header that the segment at `base` must have had; None when that cannot be told. Nothing is written: it is
    tried on a copy in memory, for a guess on disk would be believed after a crash.

    due: number its first entry must have by what lies before it; None when that is unknown.
    """
    path = names.segment_path(seen.directory, base)
    uuid, size = seen.identity
    if path.stat().st_size != size:
        return None
    with path.open("rb") as file:
        stamp = os.pread(file.fileno(), 4, HEADER_BYTES + _STAMP_AT)
    epoch = _epoch_of(seen, base, int.from_bytes(stamp, "little"))
    if epoch is None:
        return None
    version = _version_of(seen, base)
    guess = copy(seen.directory, base, size, header=encode_header(uuid, base, size, 0, epoch, version))
    first_entry = _first_entry(seen, guess, due)
    return None if first_entry is None else encode_header(uuid, base, size, first_entry, epoch, version)


def _version_of(seen: LogState, base: int) -> int:
    """The version of the segment at `base`: that of one beside it. Versions never descend along a log; where it was
    raised is not known, and the higher one can hold all records."""
    size = seen.identity[1]
    beside = (seen.headers.get(base + size), seen.headers.get(base - size))
    return max((header.version for header in beside if isinstance(header, Header)), default=1)


def _epoch_of(seen: LogState, base: int, stamp: int) -> int | None:
    """The epoch that gives the segment at `base` its stamp. Epochs never descend along a log."""
    headers = {at: header for at, header in seen.headers.items() if isinstance(header, Header)}
    lowest = max((header.epoch for at, header in headers.items() if at < base), default=0)
    highest = max((header.epoch for header in headers.values()), default=lowest)
    if seen.own_checkpoint is not None:
        highest = max(highest, seen.own_checkpoint.epoch)
    uuid, size = seen.identity
    return find_epoch(uuid, base, size, stamp, range(lowest, highest + 1))


def _first_entry(seen: LogState, segment: Segment, due: int | None) -> int | None:
    """Number of the segment's first entry, told by its neighbours; None when they do not agree or do not tell.

    It has a header good enough to verify its records.
    """
    index = SparseIndex(segment.size)
    _, status = segment.verify(index, HEADER_BYTES, segment.size)
    sealed, following = status == recovery.BLANK, seen.headers.get(segment.base + segment.size)
    if not sealed or not isinstance(following, Header) or following.first_entry < UNNUMBERED:
        return due if index.entries and not isinstance(following, Header) else None
    if following.first_entry == UNNUMBERED:
        return UNNUMBERED
    told = following.first_entry - index.entries
    return told if told >= 0 and due in (None, told) else None
