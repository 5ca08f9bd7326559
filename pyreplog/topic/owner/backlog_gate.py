"""What stands between publishers and a topic's ledgers: shut while a backlog quota is used up."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pyreplog.errors import BacklogFullError
from pyreplog.future import AppendFuture, settle_all
from pyreplog.topic.client.publishing.publish_batch import PublishBatch
from pyreplog.topic.client.publishing.sequencer import Sink
from pyreplog.topic.model.backlog import Publishing
from pyreplog.topic.model.positions import done_ack


class BacklogGate:
    """A Sink in front of another. Any thread. Held: publishers wait for room; refused: they get BacklogFullError. What
    had entered before goes on."""

    def __init__(self, topic: str, sink: Sink) -> None:
        self.state: Publishing = "open"
        self.reason = ""
        self._topic, self._sink = topic, sink
        self._lock = threading.Lock()
        self._waiting: list[AppendFuture[None]] = []
        self._is_over = False

    def set(self, state: Publishing, reason: str) -> None:
        with self._lock:
            self.state, self.reason = state, reason
            waiting: list[AppendFuture[None]] = []
            if state != "held":
                waiting, self._waiting = self._waiting, []
        settle_all([(future, None) for future in waiting])

    def check(self) -> None:
        """Errors: BacklogFullError, nothing is taken now."""
        if self.state == "refused":
            raise BacklogFullError(self._topic, self.reason)

    def held(self) -> BacklogFullError | None:
        """For who does not wait until a quota has room again; None: none holds publishers."""
        return BacklogFullError(self._topic, self.reason) if self.state == "held" else None

    def submit_all(self, batches: Sequence[PublishBatch]) -> None:
        if self.state == "refused":
            raise BacklogFullError(self._topic, self.reason)
        self._sink.submit_all(batches)

    @property
    def has_room(self) -> bool:
        return self.state != "held" and (self._is_over or self._sink.has_room)

    def room(self) -> AppendFuture[None]:
        if self.state == "held":
            with self._lock:
                if self.state == "held":
                    future: AppendFuture[None] = AppendFuture()
                    self._waiting.append(future)
                    return future
        return done_ack() if self._is_over else self._sink.room()

    def end(self) -> None:
        """Nothing is taken any more, as the publisher says to who tries: nobody has to wait."""
        self._is_over = True
        self.set("open", "")
