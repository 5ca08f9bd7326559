"""The topic of one partition, in this process or another one, as a partitioned topic uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.cursors.subscription_config import SubscriptionSettings
from pyreplog.future import AppendFuture
from pyreplog.topic.client.publishing.producer import Producer
from pyreplog.topic.model.config import TopicConfig, TopicSettings
from pyreplog.topic.model.dead_letter import RedriveReport
from pyreplog.topic.model.positions import Start
from pyreplog.topic.model.stats import InternalStats, TopicStats

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.times import Time
    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.model.times import Times


class PartitionSink(Protocol):
    """Publishes messages to one partition: its topic, or a producer of that. See `Producer`."""

    def publish(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        delay: float | None = None,
        sequence: int | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> int: ...

    def submit(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        delay: float | None = None,
        sequence: int | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[int]: ...

    def submit_batch(
        self,
        values: Values,
        keys: Keys | None = None,
        *,
        properties: Properties | None = None,
        event_times: Times | None = None,
        deliver_at: Times | None = None,
        delay: float | None = None,
        sequences: ArrayLike | None = None,
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[range]: ...

    def room(self) -> AppendFuture[None]: ...


class PartitionTopic(PartitionSink, Protocol):
    """The topic of one partition, in this process or another one. See `Topic`."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> TopicConfig: ...

    def producer(self, name: str) -> Producer: ...
    def flush_async(self) -> AppendFuture[None]: ...
    def offsets(self) -> range: ...
    def read(self, start: Start = "earliest", end: int | None = None) -> Iterator[MessageBatch]: ...
    def stats(self) -> TopicStats: ...
    def internal_stats(self) -> InternalStats: ...

    def create_subscription(
        self,
        subscription: str,
        *,
        start: Start = "latest",
        properties: Mapping[str, str] | None = None,
        **settings: Unpack[SubscriptionSettings],
    ) -> None: ...

    def delete_subscription(self, subscription: str, *, force: bool = False) -> None: ...
    def subscriptions(self) -> list[str]: ...
    def seek(self, subscription: str, start: Start) -> int: ...
    def clear(self, subscription: str) -> None: ...

    def redrive(
        self,
        subscription: str,
        *,
        to: str | None = None,
        limit: int | None = None,
        where: Callable[[Message], bool] | None = None,
        dry_run: bool = False,
        timeout: float = 30.0,
        on_progress: Callable[[RedriveReport], object] | None = None,
    ) -> RedriveReport: ...

    def configure(self, **settings: Unpack[TopicSettings]) -> None: ...
    def trim(self) -> int: ...
    def check_deletion(self) -> None: ...
    def delete(self, *, force: bool = False) -> None: ...
