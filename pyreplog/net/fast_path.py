"""What comes alone and is dealt with at once: from the socket to its handler, without the steps in between."""

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
    """What a Handler may have besides: an answer without the steps in between."""

    def fast_path(self, connection: Any, batch: FrameBatch) -> bytes | None:
        """The frame that answers a batch of one; an empty one, there is nothing more to be done now (a request is among
        the `pending_requests`, and will be answered before more is read). None: nothing was done, `frames` is to be
        called."""


class FastPathConnection(Connection):
    """A connection that asks its handler first, where that is a FastPath."""

    def __init__(self, reactor: Reactor, stream: Stream, handler: Handler, limits: Limits, peer: Peer) -> None:
        super().__init__(reactor, stream, handler, limits, peer)
        self._fast_path: Callable[[Any, FrameBatch], bytes | None] | None = getattr(handler, "fast_path", None)

    def _on_events(self) -> Callable[[int], object]:
        if self._fast_path is None or not self._send_queue.plain:
            return super()._on_events()
        return FastPathReceiver(weakref.ref(self))

    def send_frame(self, offset: int, body: tuple[ReadableBuffer, ...], size: int) -> bool:
        """As Connection; where nothing speaks against it, it leaves without the steps in between."""
        return self._send_queue.leaves(offset, body, size) or super().send_frame(offset, body, size)
