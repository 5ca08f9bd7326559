"""What stands between a cluster and its bookies, or its metadata store, and does to requests what a test says."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pyreplog.bookie.protocol import Reply, Request, RequestKind
from pyreplog.errors import DisconnectedError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.driver import Add
from pyreplog.metadata.store import MetadataStore

OnReply = Callable[[Reply | Exception], None]
Deed = Callable[[str, Request, OnReply], None]


class Meddler:
    """Requests that a rule concerns are not sent, but what the rule says is done with them. Used with `with`, it is gone
    behind that, whatever became of the test: the next one may have the same cluster."""

    def __init__(self, cluster: LedgerCluster) -> None:
        self._runtime: Any = cluster.runtime
        self._send = self._runtime.send
        self._rules: list[tuple[int | None, str | None, Deed]] = []
        self._held: deque[tuple[str, Request, OnReply]] = deque()
        self.seen: list[tuple[str, Request]] = []
        self.came = threading.Condition()
        self._runtime.send, self._runtime.add = self.send, self.add

    def __enter__(self) -> Meddler:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        del self._runtime.send, self._runtime.add

    def add(self, adds: Sequence[Add]) -> None:
        """One by one, by the longer way."""
        for one in adds:
            self.send(*one)

    def send(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        with self.came:
            deed = self._deed_for(bookie, request)
            if deed == self.hold:  # whoever has waited for it may release it
                self.hold(bookie, request, on_reply)
            self.seen.append((bookie, request))
            self.came.notify_all()
        if deed != self.hold:
            deed(bookie, request, on_reply)

    def _deed_for(self, bookie: str, request: Request) -> Deed:
        for kind, who, deed in self._rules:
            if kind in (None, request.kind) and who in (None, bookie):
                return deed
        pass_on: Deed = self._send
        return pass_on

    def rule(self, deed: Deed, *, kind: RequestKind | None = None, bookie: str | None = None) -> None:
        """From now on, for requests of this kind to this bookie; the first rule that fits counts."""
        self._rules.append((kind, bookie, deed))

    def clear(self) -> None:
        with self.came:
            self._rules.clear()

    def wait_for(self, kind: RequestKind, count: int = 1, bookie: str | None = None) -> None:
        """Until so many such requests have been made."""
        with self.came:
            assert self.came.wait_for(lambda: self.count(kind, bookie) >= count, timeout=30)

    def count(self, kind: RequestKind, bookie: str | None = None) -> int:
        return sum(request.kind == kind and bookie in (None, who) for who, request in self.seen)

    # ---- deeds ----------------------------------------------------------------------------------------------

    def pass_on(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        """As without a rule."""
        self._send(bookie, request, on_reply)

    def lose(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        """Never answered."""

    def fail(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        on_reply(DisconnectedError("the connection was lost"))

    def hold(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        """Until `release`."""
        self._held.append((bookie, request, on_reply))

    def release(self, *bookies: str) -> None:
        """What was held back (for these bookies; or all) goes on, in another order."""
        with self.came:
            held, self._held = self._held, deque()
        for one in reversed(held):
            if bookies and one[0] not in bookies:
                self._held.appendleft(one)
            else:
                self._send(*one)

    def end_held(self, deed: Deed) -> None:
        """What was held back meets a deed, in order."""
        while self._held:
            deed(*self._held.popleft())

    def answering(self, change: Callable[[Reply], Reply | Exception]) -> Deed:
        """The bookie's answer, changed."""

        def deed(bookie: str, request: Request, on_reply: OnReply) -> None:
            self._send(
                bookie, request, lambda reply: on_reply(reply if isinstance(reply, Exception) else change(reply))
            )

        return deed

    def saying(self, **fields: Any) -> Deed:
        """An answer of our own; the bookie is not asked."""

        def deed(bookie: str, request: Request, on_reply: OnReply) -> None:
            on_reply(Reply(**{"ledger": request.ledger, "first": request.first, "last": request.last, **fields}))

        return deed


class FailingStore:
    """In front of a metadata store: the next calls of a method raise, before or after they are done."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._faults: dict[str, deque[tuple[Exception | None, bool]]] = {}
        self.calls: list[str] = []

    @classmethod
    def before(cls, cluster: LedgerCluster) -> FailingStore:
        runtime: Any = cluster.runtime
        made = cls(runtime.metadata)
        runtime.metadata = made
        return made

    def fail(self, method: str, *errors: Exception | None, done: bool = False) -> None:
        """One for each call to come; None: nothing goes wrong. done: the store does as asked, all the same."""
        self._faults.setdefault(method, deque()).extend((error, done) for error in errors)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not callable(method):
            return method

        def call(*args: Any) -> Any:
            self.calls.append(name)
            faults = self._faults.get(name)
            error, done = faults.popleft() if faults else (None, False)
            result = method(*args) if error is None or done else None
            if error is not None:
                raise error
            return result

        return call
