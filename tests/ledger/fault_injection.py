"""Fault injection between a cluster and its bookies, or its metadata store: a test says what happens to requests."""

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
Action = Callable[[str, Request, OnReply], None]


class RequestInterceptor:
    """Intercepts requests to bookies: a rule says what happens to requests in place of sending them.

    Used in a `with` block, it is removed at the end, whatever the outcome of the test, as the next test may use the
    same cluster.
    """

    def __init__(self, cluster: LedgerCluster) -> None:
        self._runtime: Any = cluster.runtime
        self._send = self._runtime.send
        self._rules: list[tuple[int | None, str | None, Action]] = []
        self._held: deque[tuple[str, Request, OnReply]] = deque()
        self.requests: list[tuple[str, Request]] = []
        self._arrived = threading.Condition()
        self._runtime.send, self._runtime.add = self.send, self.add

    def __enter__(self) -> RequestInterceptor:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        del self._runtime.send, self._runtime.add

    def add(self, adds: Sequence[Add]) -> None:
        """Send each add alone, in place of the fast path."""
        for add in adds:
            self.send(*add)

    def send(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        with self._arrived:
            action = self._action_for(bookie, request)
            if action == self.hold:  # a thread that waits for this request may release it at once
                self.hold(bookie, request, on_reply)
            self.requests.append((bookie, request))
            self._arrived.notify_all()
        if action != self.hold:
            action(bookie, request, on_reply)

    def _action_for(self, bookie: str, request: Request) -> Action:
        for kind, to, action in self._rules:
            if kind in (None, request.kind) and to in (None, bookie):
                return action
        pass_on: Action = self._send
        return pass_on

    def add_rule(self, action: Action, *, kind: RequestKind | None = None, bookie: str | None = None) -> None:
        """Apply an action to requests of this kind to this bookie from now on. The first matching rule counts."""
        self._rules.append((kind, bookie, action))

    def clear(self) -> None:
        with self._arrived:
            self._rules.clear()

    def wait_for(self, kind: RequestKind, count: int = 1, bookie: str | None = None) -> None:
        """Wait until so many such requests were made."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.count(kind, bookie) >= count, timeout=30)

    def count(self, kind: RequestKind, bookie: str | None = None) -> int:
        return sum(request.kind == kind and bookie in (None, to) for to, request in self.requests)

    # ---- actions ----------------------------------------------------------------------------------------------

    def pass_on(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        """Send the request, as without a rule."""
        self._send(bookie, request, on_reply)

    def lose(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        """Never answer."""

    def fail(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        on_reply(DisconnectedError("the connection was lost"))

    def hold(self, bookie: str, request: Request, on_reply: OnReply) -> None:
        """Hold the request back until `release`."""
        self._held.append((bookie, request, on_reply))

    def release(self, *bookies: str) -> None:
        """Send the requests that were held back for these bookies, or for all, in reverse order."""
        with self._arrived:
            held, self._held = self._held, deque()
        for holder in reversed(held):
            if bookies and holder[0] not in bookies:
                self._held.appendleft(holder)
            else:
                self._send(*holder)

    def apply_to_held(self, action: Action) -> None:
        """Apply an action to the requests that were held back, in their order."""
        while self._held:
            action(*self._held.popleft())

    def changing_reply(self, change: Callable[[Reply], Reply | Exception]) -> Action:
        """Return an action that changes the answer of the bookie."""

        def action(bookie: str, request: Request, on_reply: OnReply) -> None:
            self._send(
                bookie, request, lambda reply: on_reply(reply if isinstance(reply, Exception) else change(reply))
            )

        return action

    def replying(self, **fields: Any) -> Action:
        """Return an action that answers without asking the bookie."""

        def action(bookie: str, request: Request, on_reply: OnReply) -> None:
            on_reply(Reply(**{"ledger": request.ledger, "first": request.first, "last": request.last, **fields}))

        return action


class FailingStore:
    """Wraps a metadata store. The next calls of a method raise errors, before or after the store has done them."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._faults: dict[str, deque[tuple[Exception | None, bool]]] = {}
        self.calls: list[str] = []

    @classmethod
    def before(cls, cluster: LedgerCluster) -> FailingStore:
        runtime: Any = cluster.runtime
        store = cls(runtime.metadata)
        runtime.metadata = store
        return store

    def fail(self, method: str, *errors: Exception | None, done: bool = False) -> None:
        """Set an error for each of the next calls, or None for a call without one. done: the store carries out the call
        all the same."""
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
