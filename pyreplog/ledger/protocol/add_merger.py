"""Merges the ADDs of one ledger to one bookie: while three are unanswered, new ones wait, and leave as one request.

A request costs both sides about the same for ten entries as for ten thousand, and a lone ADD still leaves at once. A
bookie stores or refuses a request as a whole, so every ADD in it gets the same answer.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence

from pyreplog._native.net.add_replies import AddGroup, AddQueue
from pyreplog.bookie.protocol import Reply, Request, decode_reply
from pyreplog.errors import InvalidMessageError

UNANSWERED_MAX = 3
"""The bookie handles one request while the next one has arrived and a third is on its way."""

MERGED_BYTES_MAX = 512 << 10
"""A socket seldom takes more in one call, and a bookie waits for the last byte of a request."""

OnReply = Callable[[Reply | Exception], object]
Ask = Callable[[Sequence[Request], AddGroup], object]
Add = tuple[Request, OnReply]
"""A request and the receiver of its answer."""


class AddMerger(AddQueue):
    """Merges ADDs of consecutive entries. Any thread; no method blocks.

    Args:
        ask: sends several requests as one. It calls the AddGroup once, with the body of the reply or an error, or
            settles it (`answers.settle`).
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = allocate_lock()  # guards the order in which requests leave
        self._waiting: deque[Add] = deque()

    def send(self, request: Request, on_reply: OnReply) -> None:
        """Send an ADD, now or merged with others. Its receiver gets an answer about its own entries only."""
        with self._lock:
            leaves = not self._waiting and self.begin(UNANSWERED_MAX)
            if not leaves:
                self._waiting.append((request, on_reply))
                self.waits = True
        if leaves:
            self._ask((request,), AddGroup(self, request.ledger, request.first, request.last, ((request, on_reply),)))
        elif self.unanswered < UNANSWERED_MAX:  # an answer came just before `waits` was set
            self.proceed()

    @property
    def is_idle(self) -> bool:
        return not self.unanswered

    def proceed(self) -> None:
        """Send the waiting ADDs while fewer than UNANSWERED_MAX requests are unanswered."""
        while self.waits:
            with self._lock:
                adds = self._next_group() if self._waiting and self.begin(UNANSWERED_MAX) else ()
                self.waits = bool(self._waiting)
            if not adds:
                return
            first, last = adds[0][0], adds[-1][0]
            self._ask([add[0] for add in adds], AddGroup(self, first.ledger, first.first, last.last, adds))

    def answered(self, group: AddGroup, answer: memoryview | Reply | Exception) -> None:
        """Send the next request, so that the bookie stays busy; then pass the answer to the ADDs of this one.

        When a request fails, the ADDs that wait behind it fail as well, without being sent.
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
        matches = isinstance(answer, Reply) and (answer.first, answer.last) == (group.first, group.last)
        for request, on_reply in (*group.adds, *failed):
            if matches:
                assert isinstance(answer, Reply)
                on_reply(answer._replace(first=request.first, last=request.last))
            else:  # a reply about other entries: the receiver checks it
                on_reply(answer)

    def _next_group(self) -> tuple[Add, ...]:
        """Take the waiting ADDs that fit into one request. Called with the lock held."""
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


def _follows(previous: Request, request: Request) -> bool:
    """Return whether two requests can be merged: same key and flags, and ascending entries.

    Entries that are sent again are lower than those before them, and are not merged with them.
    """
    return request.first > previous.last and request.key == previous.key and request.flags == previous.flags
