"""Frames of a stream on their way into a mirror log: those that lie end to end go in together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreplog.errors import StreamError
from pyreplog.log.mirrorlog import STREAM_HEADER_BYTES

if TYPE_CHECKING:
    from pyreplog.log.mirrorlog import MirrorLog


class Intake:
    """What arrives on one connection. Not for several threads at once. Errors of both calls: those of MirrorLog."""

    def __init__(self, log: MirrorLog) -> None:
        self._log = log
        self._segment_bytes = log._segment_bytes
        self._bodies: list[memoryview] = []
        self._start = self._stop = 0  # positions of what was collected

    def take(self, offset: int, body: memoryview) -> None:
        """One frame of the log's bytes."""
        if offset % self._segment_bytes == 0:
            self._begin(offset, body)
        elif self._bodies and offset == self._stop:
            self._bodies.append(body)
            self._stop += len(body)
        else:
            if self._bodies:
                self.flush()
            self._bodies.append(body)
            self._start, self._stop = offset, offset + len(body)

    def flush(self) -> None:
        """Have all that was taken land; it may then be let go of."""
        if self._bodies:
            bodies, self._bodies = self._bodies, []
            self._log.land(self._start, bodies)

    def _begin(self, offset: int, body: memoryview) -> None:
        self.flush()
        if len(body) != STREAM_HEADER_BYTES:
            raise StreamError(offset, f"the {STREAM_HEADER_BYTES} bytes of a header", f"{len(body)} bytes")
        self._log.begin(body)
