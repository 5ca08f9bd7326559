"""Buffers on their way into a socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pyreplog._native.frame import HEADER_SIZE, encode_header

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from pyreplog.net.sockets import SendFrame, Sendmsg

_VECTOR_MAX = 1024
"""Buffers in one sendmsg: the kernel takes no more (IOV_MAX)."""

_JOIN_MAX = 64 << 10
"""Up to so many bytes, copying many small buffers into one is cheaper than handing over each."""


class Outbox:
    """What was to be sent and is not yet in the kernel's buffer. Buffers are kept, not copied.

    Not for several threads at once: its connection has the lock.
    """

    __slots__ = ("_buffers", "_sendmsg", "queued_bytes", "sent_bytes")

    def __init__(self, sendmsg: Sendmsg) -> None:
        self._sendmsg = sendmsg
        self._buffers: deque[ReadableBuffer] = deque()
        self.queued_bytes = 0
        self.sent_bytes = 0

    def send(self, buffers: Sequence[ReadableBuffer], size: int) -> None:
        """Hand `buffers` (`size` bytes) to the kernel, as far as it takes them now; keep the rest. Errors: OSError."""
        if self.queued_bytes:
            self.put(buffers, size)
            return
        try:
            sent = self._sendmsg(buffers)
        except BlockingIOError:
            sent = 0
        self.sent_bytes += sent
        if sent < size:
            self._keep(buffers, size, sent)

    def _keep(self, buffers: Sequence[ReadableBuffer], size: int, sent: int) -> None:
        """What is left of the only ones there are."""
        self._buffers.extend(buffers)
        self.queued_bytes = size - sent
        self._drop(sent)

    def put(self, buffers: Sequence[ReadableBuffer], size: int) -> None:
        """Keep `buffers` for the next flush."""
        self._buffers.extend(buffers)
        self.queued_bytes += size

    def flush(self) -> None:
        """Hand over once what the kernel takes. Errors: OSError."""
        if not self.queued_bytes:
            return
        if self.queued_bytes <= _JOIN_MAX and len(self._buffers) > 2:
            joined = b"".join(self._buffers)
            self._buffers.clear()
            self._buffers.append(joined)
        try:
            sent = self._sendmsg(list(islice(self._buffers, _VECTOR_MAX)))
        except BlockingIOError:
            return
        self.sent_bytes += sent
        self.queued_bytes -= sent
        self._drop(sent)

    def clear(self) -> None:
        self._buffers.clear()
        self.queued_bytes = 0

    def _drop(self, count: int) -> None:
        """Forget the first `count` bytes."""
        buffers = self._buffers
        while buffers:
            first = memoryview(buffers[0])
            if first.nbytes > count:
                if count:
                    buffers[0] = first.cast("B")[count:]
                return
            count -= first.nbytes
            buffers.popleft()


class FrameOutbox(Outbox):
    """One that makes the headers of single frames itself."""

    __slots__ = ("_send_frame",)

    def __init__(self, sendmsg: Sendmsg, send_frame: SendFrame) -> None:
        super().__init__(sendmsg)
        self._send_frame = send_frame

    def send_frame(self, offset: int, body: tuple[ReadableBuffer, ...], size: int) -> None:
        """`send` of one frame, with a body of `size` bytes, when nothing is queued."""
        try:
            sent = self._send_frame(offset, body, size)
        except BlockingIOError:
            sent = 0
        self.sent_bytes += sent
        if sent < size + HEADER_SIZE:
            self._keep((encode_header(offset, size), *body), size + HEADER_SIZE, sent)
