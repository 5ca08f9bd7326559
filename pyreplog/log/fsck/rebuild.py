"""Rebuilding a segment's damaged header from the other files of the log.

The file's name gives the base, the other files give uuid and size, the neighbours give the first entry. The epoch is
found by trial: every record has a stamp that is computed from it. The header is accepted only if all records of the
segment verify with it.
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

_STAMP_AT = 8  # offset in a record's header


def rebuild_header(state: LogState, base: int, *, due: int | None) -> bytes | None:
    """Return the header that the segment at `base` must have had; None if it cannot be determined.

    The header is tried on a copy in memory: after a crash, recovery would take a guess on disk for valid.

    due: number of its first entry, according to the segments before it; None: unknown.
    """
    path = names.segment_path(state.directory, base)
    uuid, size = state.identity
    if path.stat().st_size != size:
        return None
    with path.open("rb") as file:
        stamp = os.pread(file.fileno(), 4, HEADER_BYTES + _STAMP_AT)
    epoch = _epoch_of(state, base, int.from_bytes(stamp, "little"))
    if epoch is None:
        return None
    version = _version_of(state, base)
    guess = copy(state.directory, base, size, header=encode_header(uuid, base, size, 0, epoch, version))
    first_entry = _first_entry(state, guess, due)
    return None if first_entry is None else encode_header(uuid, base, size, first_entry, epoch, version)


def _version_of(state: LogState, base: int) -> int:
    """Return the version of the segment at `base`: the higher one of its neighbours.

    Versions never decrease along a log. If the neighbours differ, the higher version can hold all records.
    """
    size = state.identity[1]
    beside = (state.headers.get(base + size), state.headers.get(base - size))
    return max((header.version for header in beside if isinstance(header, Header)), default=1)


def _epoch_of(state: LogState, base: int, stamp: int) -> int | None:
    """Return the epoch with which the segment at `base` has its stamp, or None. Epochs never decrease along a log."""
    headers = {at: header for at, header in state.headers.items() if isinstance(header, Header)}
    lowest = max((header.epoch for at, header in headers.items() if at < base), default=0)
    highest = max((header.epoch for header in headers.values()), default=lowest)
    if state.own_checkpoint is not None:
        highest = max(highest, state.own_checkpoint.epoch)
    uuid, size = state.identity
    return find_epoch(uuid, base, size, stamp, range(lowest, highest + 1))


def _first_entry(state: LogState, segment: Segment, due: int | None) -> int | None:
    """Return the number of the segment's first entry, as its neighbours give it; None: they differ, or do not give it.

    segment: a copy with a header with which its records verify.
    """
    index = SparseIndex(segment.size)
    _, status = segment.verify(index, HEADER_BYTES, segment.size)
    sealed, following = status == recovery.BLANK, state.headers.get(segment.base + segment.size)
    if not sealed or not isinstance(following, Header) or following.first_entry < UNNUMBERED:
        return due if index.entries and not isinstance(following, Header) else None
    if following.first_entry == UNNUMBERED:
        return UNNUMBERED
    first_entry = following.first_entry - index.entries
    return first_entry if first_entry >= 0 and due in (None, first_entry) else None
