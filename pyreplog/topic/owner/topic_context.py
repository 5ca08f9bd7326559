"""TopicContext: the objects that the parts of one topic share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyreplog.clock import Clock
from pyreplog.cursors.cursor_log import CursorLog
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime
from pyreplog.metadata.store import MetadataStore
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger


class DeadLetterTopic(Protocol):
    """A topic, with or without partitions, to which dead letters are published."""

    def submit(
        self,
        value: bytes,
        key: bytes | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: int | None = None,
    ) -> AppendFuture[Any]: ...

    def submit_batch(
        self,
        values: Iterable[bytes],
        keys: Iterable[bytes | None] | None = None,
        *,
        properties: Any = None,
        event_times: Any = None,
    ) -> AppendFuture[Any]: ...


@dataclass(frozen=True, eq=False)
class TopicContext:
    """Created by a topic for its parts. Any thread.

    Attributes:
        managed: the messages.
        clock: source of time.
        runtime: waits, timers and threads of the cluster.
        metadata: the metadata store.
        cursors: the cursor log of the process.
        touch: has the topic maintained soon.
        check_open: raises ClosedError if the topic was closed.
        work: runs a job that may wait for ledgers in a thread for such jobs.
        open_topic: opens another topic by name; creates it with these settings if it does not exist.
    """

    managed: ManagedLedger
    clock: Clock
    runtime: Runtime
    metadata: MetadataStore
    cursors: CursorLog
    touch: Callable[[], None]
    check_open: Callable[[], None]
    work: Callable[[Callable[[], object]], None]
    open_topic: Callable[[str, Mapping[str, Any]], DeadLetterTopic]

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self.managed.name
