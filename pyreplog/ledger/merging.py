"""Adds to one bookie of one ledger, merged: while two are unanswered, those that come wait, and leave as one request.

A request costs both sides the same whether it carries ten entries or ten thousand; and a lone add still leaves at once.
What one request carries is stored, or refused, as a whole: everybody in it gets the answer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyreplog.bookie.protocol import Reply, Request

UNANSWERED_MAX = 2
"""One is handled while the next is on its way."""

MERGED_BYTES_MAX = 1 << 20

OnReply = Callable[[Reply | Exception], None]
Ask = Callable[[Sequence[Request], OnReply], None]


class Add(NamedTuple):
    """A request that waits, and whom to tell."""

    request: Request
    nbytes: int
    on_reply: OnReply


class Adds:
    """ask: sends requests as one, whose entries follow each other, and calls back once. Any thread; nothing blocks."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._waiting: deque[Add] = deque()
        self._unanswered = 0

    def send(self, request: Request, on_reply: OnReply) -> None:
        """Have it sent, now or with others. The answer is for its own entries."""
        add = Add(request, memoryview(request.records).nbytes, on_reply)
        with self._lock:
            if self._unanswered >= UNANSWERED_MAX or self._waiting:
                self._waiting.append(add)
                return
            self._unanswered += 1
        self._send((add,))

    @property
    def is_idle(self) -> bool:
        return not self._unanswered

    def _send(self, group: Sequence[Add]) -> None:
        self._ask([add.request for add in group], lambda answer: self._answered(group, answer))

    def _answered(self, group: Sequence[Add], answer: Reply | Exception) -> None:
        """First the next request, that the bookie is not kept waiting; then whoever waited for this one.

        What waits behind a request without an answer has none either: it was not sent, and need not be.
        """
        failed: list[Add] = []
        with self._lock:
            if isinstance(answer, Exception):
                failed.extend(self._waiting)
                self._waiting.clear()
            following = self._next_group()
            if not following:
                self._unanswered -= 1
        if following:
            self._send(following)
        asked = group[0].request.first, group[-1].request.last
        for add in (*group, *failed):
            if isinstance(answer, Reply) and (answer.first, answer.last) == asked:
                add.on_reply(answer._replace(first=add.request.first, last=add.request.last))
            else:  # of other entries: that is for whoever asked to judge
                add.on_reply(answer)

    def _next_group(self) -> list[Add]:
        """What waits, as far as it fits into one request. Under the lock."""
        group: list[Add] = []
        size = 0
        while self._waiting:
            add = self._waiting[0]
            if group and (size + add.nbytes > MERGED_BYTES_MAX or not _follows(group[-1].request, add.request)):
                break
            size += add.nbytes
            group.append(self._waiting.popleft())
        return group


def _follows(before: Request, after: Request) -> bool:
    """Whether two requests may be one: of one writer, and in ascending order, as what is sent again is not."""
    return after.first > before.last and after.key == before.key and after.flags == before.flags
