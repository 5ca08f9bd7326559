"""Where a client's entries come into a topic: in the order in which they were sent, as the topic has room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture
from pyreplog.topic.client.publishing.forwarded import Forwarded
from pyreplog.topic.model.event_queue import EventQueue
from pyreplog.topic.model.wire.error_codec import encode_fault
from pyreplog.topic.model.wire.protocol import OK, PUBLISHED, STALE
from pyreplog.topic.owner.topic import Topic

SendReply = Callable[..., object]


class ProducerSession:
    """Any thread; steps take turns, and none waits. producer, client: as of `protocol.Open`."""

    def __init__(self, topic: Topic, producer: str, client: str, reply: SendReply) -> None:
        self.topic, self.producer, self.client = topic, producer, client
        self._publisher = topic.publisher
        self._reply = reply
        self._events = EventQueue()
        self._waiting: deque[tuple[int, Forwarded]] = deque()  # for room
        self._asks = False  # has asked for room
        self._over: bytes | None = None  # what is answered to all that comes
        self._left: Callable[[], object] | None = None  # nothing more comes

    def publish(self, request: int, entries: Sequence[bytes]) -> None:
        """Its answer comes when the entries have an outcome. Errors: those of Forwarded; nothing was published."""
        forwarded = Forwarded(self.topic.name, entries)

        def publish() -> None:
            self._waiting.append((request, forwarded))
            self._go_on()

        self._events.post(publish)

    def end(self, answer: bytes = bytes((STALE,))) -> AppendFuture[None]:
        """Nothing is published through it any more, once the AppendFuture is done; what waits is answered so."""
        done: AppendFuture[None] = AppendFuture()

        def end() -> None:
            self._over = self._over or answer
            self._go_on()
            done.complete(None)

        self._events.post(end)
        return done

    def leave(self, left: Callable[[], object]) -> None:
        """The client sends nothing more. What waits is published as there is room, or refused as soon as a quota holds
        publishers; left: called when nothing does any more."""

        def leave() -> None:
            self._left = left
            self._go_on()

        self._events.post(leave)

    def _go_on(self) -> None:
        while self._waiting:
            if self._left is not None and self._over is None and (held := self._publisher.held()) is not None:
                self._over = encode_fault(held)  # of what comes behind it none may be stored
            if self._over is not None:
                self._reply(self._waiting.popleft()[0], self._over)
                continue
            if self._asks:
                return
            try:
                if not self._publisher.has_room:
                    self._asks = True
                    self._publisher.room().add_done_callback(lambda _: self._events.post(self._has_room))
                    return
                self._forward(*self._waiting.popleft())
            except ReplogError as error:  # the topic was closed, or taken over: what comes later must not be stored
                self._over = encode_fault(error)
        if self._left is not None:
            left, self._left = self._left, None
            left()

    def _has_room(self) -> None:
        self._asks = False
        self._go_on()

    def _forward(self, request: int, forwarded: Forwarded) -> None:
        try:
            offsets = self._publisher.forward(forwarded)
        except ReplogError as error:
            self._reply(request, encode_fault(error))
            raise
        offsets.add_done_callback(partial(self._settled, request, forwarded))

    def _settled(self, request: int, forwarded: Forwarded, offsets: AppendFuture[range]) -> None:
        error = offsets.exception()
        self._reply(
            request, encode_fault(error) if error is not None else encode_published(forwarded, offsets.result())
        )


def encode_published(forwarded: Forwarded, offsets: range) -> bytes:
    """The reply to a PUBLISH: the offset of the first message that is stored, and which ones are, unless all."""
    total, kept = forwarded.messages_given, forwarded.kept
    head = bytes((OK,)) + PUBLISHED.encode((offsets[0] if offsets else -1, total, len(offsets)))
    return head if kept is None or not offsets else head + np.packbits(kept).tobytes()
