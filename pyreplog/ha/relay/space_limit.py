"""The space that a relay log may take, and telling the receiver when to pause."""

from __future__ import annotations

import threading
from typing import Protocol

from pyreplog._native.log.segment import HEADER_BYTES

FRAME_BYTES = 256 << 10
"""Of the stream that land between two looks at the limit, at most."""


def incoming_bytes(segment_bytes: int) -> int:
    """What a receiver may put into the log between two looks at the limit: a frame, the headers of the segments that it
    fills, two at least with every record that fits into one, and what they leave free at their ends: less than the
    record that did not fit. The last one may be on its way; one larger than a frame may leave more free, see `reach`.
    """
    segments = 2 * FRAME_BYTES // (segment_bytes - HEADER_BYTES) + 2
    return 3 * FRAME_BYTES + segments * HEADER_BYTES


def reach(end: int, segment_bytes: int) -> int:
    """Where a log that ends at `end` may end at the next look: the last record may be of any size, so that it may leave
    all of a segment free, and what has come of it lies behind the next one's header."""
    full = end + incoming_bytes(segment_bytes) - FRAME_BYTES
    return -(-full // segment_bytes) * segment_bytes + HEADER_BYTES + FRAME_BYTES


class PausableReceiver(Protocol):
    """A receiver that fills a relay log, and that the applier pauses. Neither call may block, or call the applier."""

    def pause(self) -> None:
        """Stop reading from the master. What was read already may still be written."""
        ...

    def resume(self) -> None:
        """Resume reading from the master."""
        ...


class SpaceLimit:
    """Pauses the receiver before the log takes more than `limit_bytes`; lets it go on when segments have gone.

    The receiver says what it has written by `note_received`, at most a frame at a time: then the limit holds. It is
    overrun only when all that may be applied is, and what is there waits for its commit, which comes behind it in the
    stream (MySQL's relay_log_space_limit is ignored, too, when the applier needs more). Any thread.

    start, end: positions of the log's ends. visible, applied: entries.
    """

    def __init__(self, limit_bytes: int | None, segment_bytes: int, receiver: PausableReceiver | None) -> None:
        self._limit, self._segment_bytes, self._receiver = limit_bytes, segment_bytes, receiver
        self._start = self._end = self._visible = self._applied = 0
        self._lock = threading.Lock()  # held while the receiver is told, so that pause and resume do not overtake
        self.paused = False
        self.pauses = 0

    def note_received(self, end: int, visible: int) -> None:
        """The log now ends at this position; entries before `visible` may be applied."""
        with self._lock:
            self._end, self._visible = end, visible
            self._judge()

    def applied(self, start: int, entry: int, visible: int) -> None:
        """The log now begins at this position; all before `entry` is applied, all before `visible` may be."""
        with self._lock:
            self._start, self._applied, self._visible = max(self._start, start), max(self._applied, entry), visible
            self._judge()

    def _judge(self) -> None:
        is_full = self._limit is not None and reach(self._end, self._segment_bytes) - self._start > self._limit
        pause = is_full and self._applied < self._visible
        if pause == self.paused:
            return
        self.paused = pause
        self.pauses += pause
        if self._receiver is not None:
            (self._receiver.pause if pause else self._receiver.resume)()
