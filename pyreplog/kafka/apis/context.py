"""ApiContext and RequestContext: what the APIs of a listener share, and what is known of a request's client."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pyreplog.errors import ClosedError, ReplogError
from pyreplog.future import AppendFuture, set_exception, set_result, transform
from pyreplog.kafka.auto_topic_creation import AutoTopicCreationManager
from pyreplog.kafka.config import KafkaConfig
from pyreplog.kafka.coordinators import Coordinators
from pyreplog.kafka.groups.group_coordinator import GroupCoordinator
from pyreplog.kafka.node_ids import node_id_of
from pyreplog.kafka.quotas.client_quotas import ANONYMOUS
from pyreplog.kafka.quotas.quota_manager import QuotaManager
from pyreplog.kafka.sasl import SaslSession
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import parse_address
from pyreplog.partition.broker import Broker
from pyreplog.partition.metadata.metadata_cache import MetadataCache
from pyreplog.partition.metadata.topic_metadata import TopicMetadata
from pyreplog.partition.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_OPERATIONS = -(1 << 31)
"""Authorized operations that an answer leaves out: the client did not ask for them, or the listener knows none."""
_CHECK_S = 0.01
_KNOWN_MS = 5_000
"""For how long the answer to a change waits until this broker knows of the change."""


class RequestContext(NamedTuple):
    """A request, but for its message.

    Attributes:
        version: of the API.
        client_id: the name that the client gives itself; None: none.
        peer: the client's address.
        session: of its connection.
    """

    version: int
    client_id: str | None
    peer: str
    session: Any

    @property
    def user(self) -> str:
        """The name of the client's user; `ANONYMOUS`: the listener has no users."""
        return self.session.user if isinstance(self.session, SaslSession) and self.session.user else ANONYMOUS


Outcome: TypeAlias = "tuple[Any, ...] | AppendFuture[Any] | None"
"""A response, or a future of it; None: the client wants none."""


class LivingBroker(NamedTuple):
    """A broker that Kafka clients can reach.

    Attributes:
        node_id: of the broker.
        host: of its Kafka listener.
        port: of its Kafka listener.
        rack: of the broker; None: none.
    """

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True)
class ApiContext:
    """The broker, settings and threads of a listener, for its APIs.

    Attributes:
        broker: whose partitions are served.
        config: settings of the listener.
        reactor: of the listener.
        pool: threads for calls that block.
        cluster_id: as Kafka's clients are told.
        coordinators: the coordinators of groups.
        quotas: of clients, and their use of them.
        auto_topic_creation: creates topics that clients ask for.
    """

    broker: Broker
    config: KafkaConfig
    reactor: Reactor
    pool: ThreadPoolExecutor
    cluster_id: str
    coordinators: Coordinators
    quotas: QuotaManager
    auto_topic_creation: AutoTopicCreationManager

    @property
    def replicas(self) -> ReplicaManager:
        """The partitions of this broker."""
        return self.broker.replicas

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator of groups of this broker."""
        return self.coordinators.groups

    @property
    def metadata(self) -> MetadataCache:
        """Topics and brokers, as this broker knows them."""
        return self.broker.metadata

    @property
    def store(self) -> MetadataStore:
        """The metadata store, for threads of the pool."""
        return self.broker.store

    @property
    def node_id(self) -> int:
        """The id of this broker in Kafka's protocol."""
        return node_id_of(self.broker.name)

    def broker_names(self) -> dict[int, str]:
        """Return the names of all registered brokers, by node id."""
        return {node_id_of(name): name for name in self.metadata.brokers()}

    def living_broker(self, name: str) -> LivingBroker | None:
        """Return a broker with its Kafka address; None: it does not live, or has no Kafka listener."""
        living = self.metadata.availability(name)
        if living is None or not living.kafka_address:
            return None
        lasting = self.metadata.broker(name)
        host, port = parse_address(living.kafka_address)
        return LivingBroker(node_id_of(name), host, port, (lasting.rack or None) if lasting else None)

    def living_brokers(self) -> dict[str, LivingBroker]:
        """Return the brokers that Kafka clients can reach, by name."""
        living = {name: self.living_broker(name) for name in sorted(self.metadata.brokers())}
        return {name: broker for name, broker in living.items() if broker is not None}

    def topic(self, name: str) -> TopicMetadata | None:
        """Return a topic; None: there is none, or it is being deleted."""
        topic = self.metadata.topic(name)
        return None if topic is None or topic.is_deleted else topic

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id of 16 bytes; None: there is none, or it is being deleted."""
        return self.metadata.topic_name(topic_id.hex())

    # ---- calls that take time -------------------------------------------------------------------------------

    def run(self, call: Callable[[], T]) -> AppendFuture[T]:
        """Run a call that blocks on a thread of the pool. Returns a future of its result."""
        future = AppendFuture[T]()

        def run() -> None:
            try:
                result = call()
            except Exception as error:
                set_exception(future, error)
            else:
                set_result(future, result)

        try:
            self.pool.submit(run)
        except RuntimeError:
            set_exception(future, ClosedError("the Kafka listener was closed"))
        return future

    def wait_until(self, condition: Callable[[], bool], timeout_ms: int) -> AppendFuture[bool]:
        """Check a condition again and again, until it holds or the time is over.

        Args:
            condition: must not block.
            timeout_ms: how long to wait, milliseconds.

        Returns:
            A future of whether the condition held in time.
        """
        future = AppendFuture[bool]()
        deadline_us = self.reactor.clock.monotonic_us() + max(timeout_ms, 0) * 1000
        with suppress(ReplogError):  # the reactor was closed: nobody waits any more
            self.reactor.call_soon(partial(self._check, condition, deadline_us, future))
        return future

    def _check(self, condition: Callable[[], bool], deadline_us: int, future: AppendFuture[bool]) -> None:
        try:
            holds = condition()
            if holds or self.reactor.clock.monotonic_us() >= deadline_us:
                set_result(future, holds)
            else:
                self.reactor.call_later(_CHECK_S, partial(self._check, condition, deadline_us, future))
        except Exception as error:
            set_exception(future, error)

    def answer_when_known(self, response: T, is_known: Callable[[], bool]) -> AppendFuture[T]:
        """Hold back the answer to a change until this broker knows of the change, or for 5 s, which is no error.

        A client that looks at once then sees what it has changed, if it asks the same broker.

        Args:
            response: the answer.
            is_known: tells, without blocking, whether this broker knows of the change.

        Returns:
            A future of the answer.
        """
        return transform(self.wait_until(is_known, _KNOWN_MS), lambda _: response)
