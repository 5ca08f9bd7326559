"""Adds to one bookie of one ledger, merged: while three are unanswered, those that come wait, and leave as one request.

A request costs both sides the same whether it carries ten entries or ten thousand; and a lone add still leaves at once.
What one request carries is stored, or refused, as a whole: everybody in it gets the answer.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence

from pyreplog._native.net.answers import AddGroup, AddQueue
from pyreplog.bookie.protocol import Reply, Request, decode_reply
from pyreplog.errors import InvalidMessageError

UNANSWERED_MAX = 3
"""One is handled while the next has arrived and another is on its way."""

MERGED_BYTES_MAX = 512 << 10
"""More than this a socket seldom takes in one go, and a bookie waits for the last byte of a request."""

OnReply = Callable[[Reply | Exception], object]
Ask = Callable[[Sequence[Request], AddGroup], object]
Add = tuple[Request, OnReply]
"""A request, and whom to tell."""


class AddMerger(AddQueue):
    """ask: sends requests as one, whose entries follow each other, and has the AddGroup called once, with the reply's
    body or an error; or settled (`answers.settle`). Any thread; nothing blocks.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = allocate_lock()  # of the order in which requests leave
        self._waiting: deque[Add] = deque()

    def send(self, request: Request, on_reply: OnReply) -> None:
        """Have it sent, now or with others. The answer is for its own entries."""
        with self._lock:
            leaves = not self._waiting and self.begin(UNANSWERED_MAX)
            if not leaves:
                self._waiting.append((request, on_reply))
                self.waits = True
        if leaves:
            self._ask((request,), AddGroup(self, request.ledger, request.first, request.last, ((request, on_reply),)))
        elif self.unanswered < UNANSWERED_MAX:  # an answer came before it was known that something waits
            self.proceed()

    @property
    def is_idle(self) -> bool:
        return not self.unanswered

    def proceed(self) -> None:
        """Send what waits, as far as it may go."""
        while self.waits:
            with self._lock:
                adds = self._next_group() if self._waiting and self.begin(UNANSWERED_MAX) else ()
                self.waits = bool(self._waiting)
            if not adds:
                return
            first, last = adds[0][0], adds[-1][0]
            self._ask([add[0] for add in adds], AddGroup(self, first.ledger, first.first, last.last, adds))

    def answered(self, group: AddGroup, answer: memoryview | Reply | Exception) -> None:
        """First the next request, that the bookie is not kept waiting; then whoever waited for this one.

        What waits behind a request without an answer has none either: it was not sent, and need not be.
        """
        if isinstance(answer, memoryview):
            try:
                answer = decode_reply(answer)
            except InvalidMessageError as error:
                answer = error
        failed: list[Add] = []
        with self._lock:
            if isinstance(answer, Exception):
                failed.extend(self._waiting)
                self._waiting.clear()
                self.waits = False
        self.end()
        self.proceed()
        whole = isinstance(answer, Reply) and (answer.first, answer.last) == (group.first, group.last)
        for request, on_reply in (*group.adds, *failed):
            if whole:
                assert isinstance(answer, Reply)
                on_reply(answer._replace(first=request.first, last=request.last))
            else:  # of other entries: that is for whoever asked to judge
                on_reply(answer)

    def _next_group(self) -> tuple[Add, ...]:
        """What waits, as far as it fits into one request. Under the lock."""
        group: list[Add] = []
        size = 0
        while self._waiting:
            request, _ = self._waiting[0]
            nbytes = memoryview(request.records).nbytes
            if group and (size + nbytes > MERGED_BYTES_MAX or not _follows(group[-1][0], request)):
                break
            size += nbytes
            group.append(self._waiting.popleft())
        return tuple(group)


def _follows(before: Request, after: Request) -> bool:
    """Whether two requests may be one: of one writer, and in ascending order, as what is sent again is not."""
    return after.first > before.last and after.key == before.key and after.flags == before.flags
