"""FrameFeed: cuts a log into frames for one connection; their bodies are views of the mapped segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.net.frame import encode_header
from pyreplog._native.net.frame_feed_base import FrameFeedBase
from pyreplog.errors import TruncatedError
from pyreplog.stream.mirror_log import BLANK_BYTES, STREAM_HEADER_BYTES, canonical

if TYPE_CHECKING:
    from pyreplog.log.commit_log import CommitLog

TRANSFER_BYTES = 256 << 10

_BLANK = 5  # record kind


class FrameFeed(FrameFeedBase):
    """The frames of a log, in the order of their positions, from `position` on.

    The header of a segment is a frame of its own. The rest of the header block, and the bytes behind a blank, are zero
    and are not sent. A frame lies within one segment and has a body of at most `transfer_bytes`. Views pin their
    segments: a segment that is being sent is not recycled. Not thread-safe.

    Attributes:
        position: position of the next byte to be sent, where a record or a segment begins.
    """

    def __init__(self, log: CommitLog, position: int, transfer_bytes: int = TRANSFER_BYTES) -> None:
        super().__init__(log, transfer_bytes)
        self._log, self._transfer_bytes = log, transfer_bytes
        self._size = log.segment_bytes
        self.position, _ = canonical((position, 0), self._size)
        self._truncations = log.truncation_count

    def take(self, limit: int) -> tuple[list[bytes | memoryview], int]:
        """Return the next frames, and the bytes of their bodies: about `limit` in all.

        Returns:
            The buffers of the frames, end to end, and the sum of the sizes of the bodies.

        Raises:
            TrimmedError: the next bytes were removed.
            TruncatedError: the log was truncated; it may no longer hold the bytes that were sent.
            CorruptionError: a segment is damaged.
            ClosedError: the log was closed.
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
        """Return the offset behind the blank of a sealed segment.

        A segment that was just mapped reads it from its index.
        """
        if segment.head_at(segment.end)[0] != _BLANK:
            self._log.load_index(segment)
        return segment.end + BLANK_BYTES
