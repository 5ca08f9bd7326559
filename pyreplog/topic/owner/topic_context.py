"""TopicContext: what the parts of one topic that this process owns have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyreplog.clock import Clock
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime
from pyreplog.metadata.store import MetadataStore
from pyreplog.topic.owner.cursors.log import CursorLog
from pyreplog.topic.owner.managed.managedledger import ManagedLedger


class DeadLetterTopic(Protocol):
    """A topic that dead letters are published to, with partitions or without."""

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
    """Made by a topic for its parts, which know no more of it. Any thread.

    touch: have the topic looked at soon. check_open: ClosedError, it was closed. work: have something done that may
    wait for ledgers, by a thread for this. open_topic: another topic, by name; made with these settings if there is
    none.
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
        """Of the topic."""
        return self.managed.name
