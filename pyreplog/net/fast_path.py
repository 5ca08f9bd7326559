"""The fast path: a single frame that its handler answers directly, without the steps between socket and `frames`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pyreplog._native.net.fast_path_receiver import FastPathReceiver
from pyreplog.net.connection import Connection, Handler
from pyreplog.net.handshake import Peer
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import Stream

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from pyreplog._native.net.frame import FrameBatch


class FastPath(Protocol):
    """Optional part of a Handler, or of what a connection is given later: answers a frame on the fast path.

    Every frame may as well take the other way, `frames`: a handler whose `fast_path` is None takes it for all. So tests
    drive the same frames through both.
    """

    def fast_path(self, connection: Any, batch: FrameBatch) -> bytes | None:
        """Answer a batch of one frame.

        Returns:
            The frame of the answer. An empty one: there is nothing more to do now, because the request is among the
                `pending_requests`, and is answered before more is read. None: nothing was done, and `frames` is to be
                called.
        """


class FastPathConnection(Connection):
    """A connection that tries the fast path of its handler first. fast_path: that of the handler; None: it has none."""

    def __init__(self, reactor: Reactor, stream: Stream, handler: Handler, limits: Limits, peer: Peer) -> None:
        super().__init__(reactor, stream, handler, limits, peer)
        self.fast_path: Callable[[Any, FrameBatch], bytes | None] | None = getattr(handler, "fast_path", None)

    def _event_callback(self) -> Callable[[int], object]:
        if self.fast_path is None or not self.send_queue.plain:
            return super()._event_callback()
        return FastPathReceiver(weakref.ref(self))

    def use_fast_path(self, fast_path: Callable[[Any, FrameBatch], bytes | None] | None) -> None:
        """Try this fast path first from now on; None: none. Called by the driver."""
        self.fast_path = fast_path
        self._reactor.replace(self._stream.fileno(), self._event_callback())

    def send_frame(self, offset: int, body: tuple[ReadableBuffer, ...], size: int) -> bool:
        """Send a frame as `Connection` does, without the queue if that is empty."""
        return self.send_queue.leaves(offset, body, size) or super().send_frame(offset, body, size)
