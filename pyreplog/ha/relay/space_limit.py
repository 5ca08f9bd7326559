"""SpaceLimit: pauses the receiver before a relay log takes too much space."""

from __future__ import annotations

import threading
from typing import Protocol

from pyreplog._native.log.segment import HEADER_BYTES

FRAME_BYTES = 256 << 10
"""Most bytes of the stream that are written between two checks of the limit."""


def incoming_bytes(segment_bytes: int) -> int:
    """Return the most bytes that a receiver may add to the log between two checks of the limit.

    These are a frame, the headers of the segments that it fills (two at least, if every record fits into a frame), and
    the free space at the ends of these segments, which is less than the record that did not fit. The last record may be
    incomplete. A record larger than a frame may leave more space free, see `reach`.
    """
    segments = 2 * FRAME_BYTES // (segment_bytes - HEADER_BYTES) + 2
    return 3 * FRAME_BYTES + segments * HEADER_BYTES


def reach(end: int, segment_bytes: int) -> int:
    """Return the highest position at which a log that ends at `end` may end at the next check.

    The last record may have any size. So it may leave a whole segment free, and its received part may lie behind the
    header of the next segment.
    """
    full = end + incoming_bytes(segment_bytes) - FRAME_BYTES
    return -(-full // segment_bytes) * segment_bytes + HEADER_BYTES + FRAME_BYTES


class PausableReceiver(Protocol):
    """A receiver that fills a relay log, and that the applier pauses.

    Its methods must neither block nor call the applier.
    """

    def pause(self) -> None:
        """Stop reading from the master. Data that was read before may still be written."""
        ...

    def resume(self) -> None:
        """Resume reading from the master."""
        ...


class SpaceLimit:
    """Pauses the receiver before the log takes more than `limit_bytes`, and resumes it when segments were removed.

    The receiver reports at most a frame at a time with `note_received`; then the limit holds. It is exceeded only when
    all committed entries are applied and the others wait for their commit point, which arrives behind them in the
    stream. (MySQL's relay_log_space_limit is also ignored when the applier needs more.) Thread-safe.
    """

    def __init__(self, limit_bytes: int | None, segment_bytes: int, receiver: PausableReceiver | None) -> None:
        self._limit, self._segment_bytes, self._receiver = limit_bytes, segment_bytes, receiver
        self._start = self._end = self._visible = self._applied = 0
        self._lock = threading.Lock()  # held while the receiver is called, so that pause and resume keep their order
        self.paused = False
        self.pauses = 0

    def note_received(self, end: int, visible: int) -> None:
        """Report the end of the log, a position, and the first entry that may not be applied yet."""
        with self._lock:
            self._end, self._visible = end, visible
            self._update()

    def applied(self, start: int, entry: int, visible: int) -> None:
        """Report the start of the log, a position, and the first entries not applied, and not to be applied yet."""
        with self._lock:
            self._start, self._applied, self._visible = max(self._start, start), max(self._applied, entry), visible
            self._update()

    def _update(self) -> None:
        is_full = self._limit is not None and reach(self._end, self._segment_bytes) - self._start > self._limit
        pause = is_full and self._applied < self._visible
        if pause == self.paused:
            return
        self.paused = pause
        self.pauses += pause
        if self._receiver is not None:
            (self._receiver.pause if pause else self._receiver.resume)()
