"""What of a log goes over one connection next: frames whose bodies are views of the mapped segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.net.frame import encode_header
from pyreplog._native.net.frame_feed_base import FrameFeedBase
from pyreplog.errors import TruncatedError
from pyreplog.stream.mirrorlog import BLANK_BYTES, STREAM_HEADER_BYTES, canonical

if TYPE_CHECKING:
    from pyreplog.log.commitlog import CommitLog

TRANSFER_BYTES = 256 << 10

_BLANK = 5  # record kind


class FrameFeed(FrameFeedBase):
    """A log's bytes in the order of their positions, from `position` on: a place where a record or a segment begins.

    A segment's header is a frame of its own; of the rest of its header block, and of what lies behind a blank, nothing
    is sent: it is zero. A frame lies in one segment and has at most `transfer_bytes` of it. Views pin their segments:
    what is on its way is not recycled. Not for several threads at once.

    position: of the next byte to be sent.
    """

    def __init__(self, log: CommitLog, position: int, transfer_bytes: int = TRANSFER_BYTES) -> None:
        super().__init__(log, transfer_bytes)
        self._log, self._transfer_bytes = log, transfer_bytes
        self._size = log.segment_bytes
        self.position, _ = canonical((position, 0), self._size)
        self._truncations = log.truncation_count

    @property
    def mark_position(self) -> int:
        """`position` as a place between records: the one in front of a segment's first record is its beginning."""
        return canonical((self.position, 0), self._size)[0]

    @property
    def behind(self) -> int:
        """Bytes of the log that have not been given out."""
        return max(self._log.tail.end - self.position, 0)

    def take(self, limit: int) -> tuple[list[bytes | memoryview], int]:
        """Frames with bodies of about `limit` bytes in all, their buffers end to end; and the bytes of the bodies.

        Errors: TrimmedError, what comes next was removed; TruncatedError, the log was cut: what was sent may not be in
        it any more; CorruptionError, ClosedError.
        """
        if self._log.truncation_count != self._truncations:
            raise TruncatedError(f"the log was cut; it had been sent up to position {self.position}")
        frames: list[bytes | memoryview] = []
        total, end = 0, self._log.tail.end
        while total < limit and self.position < end:
            if self._held is None:
                self._held = self._log.hold_segment(self.position)
            segment = self._held[1]
            offset = self.position - segment.base
            if offset == 0:
                size = STREAM_HEADER_BYTES
            else:
                if not self._stop and end >= segment.base + self._size:
                    self._stop = self._sealed_stop(segment)
                size = min((self._stop or end - segment.base) - offset, self._transfer_bytes)
            if size > 0:
                frames += (encode_header(self.position, size), segment.view(offset, size))
                total += size
            self._pass(segment, offset + size)
        return frames, total

    def _pass(self, segment: Segment, offset: int) -> None:
        if offset == STREAM_HEADER_BYTES:
            offset = HEADER_BYTES
        if offset == self._stop:
            offset, self._held, self._stop = self._size, None, 0
        self.position = segment.base + offset

    def _sealed_stop(self, segment: Segment) -> int:
        """Offset behind the blank of a sealed segment; one mapped just now learns it from its index."""
        if segment.head_at(segment.end)[0] != _BLANK:
            self._log.load_index(segment)
        return segment.end + BLANK_BYTES
