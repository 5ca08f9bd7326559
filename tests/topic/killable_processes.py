"""Processes that own topics, which die, are paused, or lose their lease without noticing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyreplog.clock import SystemClock
from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, MetadataUnavailableError, OutcomeUnknownError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.waiting_threads import waiting_threads
from tests.topic.counting import Faults
from tests.topic.handling import PATIENCE_S, hasten
from tests.topic.owners import FaultyWrites


class KillableRuntime:
    """The runtime of one process' cluster handle. Once it is dead, none of its calls has an effect."""

    def __init__(self, runtime: Any, faults: Faults) -> None:
        self._runtime, self.faults = runtime, faults
        self.metadata = FaultyWrites(runtime.metadata, faults)
        self._held: list[Callable[[], object]] | None = None
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    # ---- what it asks for ------------------------------------------------------------------------------------

    def add(self, *args: Any) -> None:
        self._send(lambda: self._runtime.add(*args))

    def send(self, *args: Any) -> None:
        self._send(lambda: self._runtime.send(*args))

    def _send(self, call: Callable[[], object]) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(call)
                return
        if not self.faults.is_dead:
            call()

    def work(self, job: Callable[[], object]) -> None:
        self._runtime.work(lambda: self.faults.is_dead or job())

    def wake_after(self, seconds: float, call: Callable[[], None]) -> Any:
        return self._runtime.wake_after(seconds, lambda: None if self.faults.is_dead else call())

    def wait(self, future: AppendFuture[Any], timeout: float | None = None) -> Any:
        """Wait for a result; the process may die meanwhile. Bookies commit in threads of their own, so that this thread
        does not do it."""
        waiting_threads.discard(threading.get_ident())
        for bookie in self._runtime.bookies.values():
            if bookie.has_work():
                bookie.wake()
        came = threading.Event()
        future.add_done_callback(lambda _: came.set())
        with self.faults._lock:
            self.faults._waiters.append(came.set)
        if self.faults.is_dead:
            came.set()
        came.wait(PATIENCE_S if timeout is None else timeout)
        if future.done():
            return future.result()
        raise MetadataUnavailableError("it died") if self.faults.is_dead else OutcomeUnknownError("the time ran out")

    def end_calls_by(self, deadline: float) -> None:
        return

    def close(self, timeout: float | None = None) -> None:
        """Do nothing: the runtime belongs to another handle."""

    # ---- what happens to it ----------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hold back all requests to bookies."""
        self._held = []

    def resume(self) -> None:
        with self._lock:
            held, self._held = self._held or [], None
        for call in held:
            call()


@contextmanager
def killable_process(cluster: Cluster, faults: Faults | None = None) -> Iterator[Cluster]:
    """Return another process' handle of a cluster. If the process dies, it leaves everything as it is."""
    runtime: Any = KillableRuntime(cluster.runtime, faults or Faults())
    runtime.faults.pause()
    new_cluster = Cluster("a process", runtime, SystemClock())
    hasten(new_cluster)
    runtime.faults.resume()
    try:
        yield new_cluster
    finally:
        if runtime.faults.is_dead:
            runtime.faults.settle()
            release_killed(new_cluster)
        else:
            try:
                new_cluster.close()
            except ReplogError:
                if not runtime.faults.is_dead:  # otherwise it died by a write of its close, which went on to the end
                    raise


def runtime_of(cluster: Cluster) -> KillableRuntime:
    runtime: Any = cluster.runtime
    return runtime  # type: ignore[no-any-return]


def lose_lease(cluster: Cluster) -> None:
    """Let other processes take its topics, without its knowledge."""
    for session in list(cluster.topics.ownership._sessions.values()):
        if session.lease is not None:
            session.lease.close()


def kill(cluster: Cluster) -> None:
    """Stop all effects of a process, and end its lease."""
    runtime_of(cluster).faults.is_dead = True
    runtime_of(cluster).faults._wake_waiters()
    runtime_of(cluster).faults.settle()
    lose_lease(cluster)


def release_killed(cluster: Cluster) -> None:
    """Close what Python still has of a dead process, without any request."""
    lose_lease(cluster)
    topics, dead = cluster.topics, ClosedError("its process died")
    for topic in topics.opened():
        for subscription in topic.all_subscriptions():
            for consumer in subscription.attached():
                consumer.refuse_calls(dead)  # type: ignore[attr-defined]
        topic.refuse_calls(dead)
        topic.managed.refuse_calls(dead)
        topic.managed._release()
    for handle in (topics.cursors, topics.ownership, topics):
        handle.refuse_calls(dead)
    topics.cursors.flusher._thread.close()
    for ledger in cluster.open_ledgers:
        ledger.refuse_calls(dead)
        ledger.abandon()
    cluster.refuse_calls(dead)
