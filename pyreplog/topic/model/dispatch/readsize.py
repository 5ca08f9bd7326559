"""How many bytes are read at once: more while consumers keep up, never much more than they have room for."""

from __future__ import annotations

from pyreplog._native.topic.messages import MessageBatch

BYTES_FIRST = 1 << 20
BYTES_MAX = 8 << 20
RECORD_BYTES = 72
"""What the record of an entry takes beside its value."""

_SLACK = 1.1
_WEIGHT = 8  # of what is known of sizes, against one answer


class ReadSize:
    """Knows about how large messages are."""

    def __init__(self) -> None:
        self._limit = BYTES_FIRST
        self._average = 0.0  # stored bytes of a message; 0: unknown

    def learn(self, batch: MessageBatch) -> None:
        """An answer came: whole entries."""
        if messages := len(batch):
            found = (batch.stored_bytes + RECORD_BYTES * batch.entries) / messages
            self._average += (found - self._average) / _WEIGHT if self._average else found

    def kept_up(self) -> None:
        """All of an answer was delivered at once."""
        self._limit = min(2 * self._limit, BYTES_MAX)

    def fell_behind(self) -> None:
        self._limit = max(self._limit // 2, BYTES_FIRST)

    def bytes_for(self, messages: int) -> int:
        """What to read for so many messages at most: a little more, rather than once more for the last few."""
        return min(self._limit, int(messages * self._average * _SLACK) + 1) if self._average else self._limit

    def messages_in(self, size: int) -> int | None:
        """About how many messages so many bytes hold; None: unknown."""
        return int(size / self._average) + 1 if self._average else None
