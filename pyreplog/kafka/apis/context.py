"""ApiContext and RequestContext: state that the APIs of a listener share, and properties of one request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from pyreplog.errors import ClosedError, ReplogError
from pyreplog.future import AppendFuture, set_exception, set_result, transform
from pyreplog.kafka.auto_topic_creation import AutoTopicCreationManager
from pyreplog.kafka.config import KafkaConfig
from pyreplog.kafka.coordinators import Coordinators
from pyreplog.kafka.groups.group_coordinator import GroupCoordinator
from pyreplog.kafka.groups.topic_catalog import KnownTopic
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
from pyreplog.partition.topic_partition import INTERNAL_TOPICS

if TYPE_CHECKING:
    from pyreplog.kafka.ledgers.topics import LedgerTopics

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_OPERATIONS = -(1 << 31)
"""Value of authorized operations in a response without them: not requested, or unknown to the listener."""
_CHECK_S = 0.01
_KNOWN_MS = 5_000
"""Milliseconds for which the response to a change waits until this broker knows the change."""


class RequestContext(NamedTuple):
    """The properties of a request, without its message.

    Attributes:
        version: version of the API.
        client_id: client id that the client sent; None: none.
        peer: address of the client.
        session: state of the connection.
    """

    version: int
    client_id: str | None
    peer: str
    session: Any

    @property
    def user(self) -> str:
        """User of the client; `ANONYMOUS`: the listener has no users."""
        return self.session.user if isinstance(self.session, SaslSession) and self.session.user else ANONYMOUS


class Unanswered(NamedTuple):
    """A request to which the client expects no response, and whose outcome is known later.

    Attributes:
        done: a future whose error closes the connection, by which the client learns of it.
        is_held: whether further requests of the connection are handled behind it.
    """

    done: AppendFuture[None]
    is_held: bool


Outcome: TypeAlias = "tuple[Any, ...] | AppendFuture[Any] | Unanswered | None"
"""A response, or a future of one. None: the client expects no response."""


class LongCall(NamedTuple):
    """Work on a request that would keep the listener's thread from other clients for long. A thread of the pool does
    it; further requests of the connection are handled behind it.

    Attributes:
        run: does it. Raises as handlers of requests do.
    """

    run: Callable[[], Outcome]


class LivingBroker(NamedTuple):
    """A registered broker that Kafka clients can reach.

    Attributes:
        node_id: node id of the broker.
        host: host of its Kafka listener.
        port: port of its Kafka listener.
        rack: rack of the broker; None: unknown.
    """

    node_id: int
    host: str
    port: int
    rack: str | None


class FoundLedgerTopics(NamedTuple):
    """Topics on ledgers that were looked up.

    Attributes:
        topics: those that exist, by name.
        is_certain: whether there are no others; False: nobody could be asked, and these were known before.
    """

    topics: Mapping[str, KnownTopic]
    is_certain: bool


@dataclass(frozen=True)
class ApiContext:
    """The broker, settings and threads of a listener, for its APIs.

    Attributes:
        broker: the broker whose partitions are served.
        config: settings of the listener.
        reactor: reactor of the listener.
        pool: threads for blocking calls.
        cluster_id: cluster id for Kafka clients.
        coordinators: driver of the group coordinator.
        quotas: quotas of clients, and what the clients have used.
        auto_topic_creation: creates topics that clients ask for.
        ledger_topics: topics on ledgers that are served as well; None: there are none.
    """

    broker: Broker
    config: KafkaConfig
    reactor: Reactor
    pool: ThreadPoolExecutor
    cluster_id: str
    coordinators: Coordinators
    quotas: QuotaManager
    auto_topic_creation: AutoTopicCreationManager
    ledger_topics: LedgerTopics | None = None

    @property
    def replicas(self) -> ReplicaManager:
        """The replicas of this broker."""
        return self.broker.replicas

    @property
    def groups(self) -> GroupCoordinator:
        """The group coordinator of this broker."""
        return self.coordinators.groups

    @property
    def metadata(self) -> MetadataCache:
        """Topics and brokers, as known to this broker."""
        return self.broker.metadata

    @property
    def store(self) -> MetadataStore:
        """The metadata store, for threads of the pool only."""
        return self.broker.store

    @property
    def node_id(self) -> int:
        """Node id of this broker in Kafka's protocol."""
        return node_id_of(self.broker.name)

    def broker_names(self) -> dict[int, str]:
        """Return the names of all registered brokers, by node id."""
        return {node_id_of(name): name for name in self.metadata.brokers()}

    def living_broker(self, name: str) -> LivingBroker | None:
        """Return a broker with its Kafka address; None: it is not registered, or has no Kafka listener."""
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
        """Return a topic; None: it does not exist, or is being deleted."""
        topic = self.metadata.topic(name)
        return None if topic is None or topic.is_deleted else topic

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id of 16 bytes; None: it does not exist, or is being deleted."""
        name = self.metadata.topic_name(topic_id.hex())
        if name is None and self.ledger_topics is not None:
            name = self.ledger_topics.name_of(topic_id)
        return name

    def topics_of(self, name: str) -> LedgerTopics | None:
        """Return the topics on ledgers, if a topic of that name could be one of them; None: it can only have brokers.

        A topic of brokers hides a topic on ledgers of the same name.
        """
        is_of_brokers = name in INTERNAL_TOPICS or self.metadata.topic(name) is not None
        return None if is_of_brokers else self.ledger_topics

    def known_ledger_topic(self, name: str) -> KnownTopic | None:
        """Return a topic on ledgers, as it was looked up last; None: none is known by that name."""
        topics = self.topics_of(name)
        return None if topics is None else topics.known(name)

    def find_ledger_topics(self, names: Iterable[str] | None) -> AppendFuture[FoundLedgerTopics]:
        """Look topics on ledgers up.

        Args:
            names: names of topics; None: all topics on ledgers.

        Returns:
            A future of those that exist; it does not fail.
        """
        done, topics = AppendFuture[FoundLedgerTopics](), self.ledger_topics
        wanted = None if names is None else [name for name in dict.fromkeys(names) if self.topics_of(name) is not None]
        if topics is None or (wanted is not None and not wanted):
            set_result(done, FoundLedgerTopics({}, True))
            return done

        def answer(found: AppendFuture[dict[str, KnownTopic]]) -> None:
            error = found.exception()
            if error is None:
                set_result(done, FoundLedgerTopics(found.result(), True))
                return
            level = logging.DEBUG if isinstance(error, ClosedError) else logging.WARNING  # a listener that closes
            logger.log(level, "topics on ledgers cannot be looked up: %s", error)
            known = {name: topics.known(name) for name in (topics.known_names() if wanted is None else wanted)}
            last = {name: topic for name, topic in known.items() if topic is not None}
            set_result(done, FoundLedgerTopics(last, False))

        (topics.find_all() if wanted is None else topics.find(wanted)).add_done_callback(answer)
        return done

    # ---- calls that block or wait ---------------------------------------------------------------------------

    def run(self, call: Callable[[], T]) -> AppendFuture[T]:
        """Run a blocking call on a thread of the pool. Returns a future of its result."""
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
        """Poll a condition until it holds, or until a time-out.

        Args:
            condition: returns whether to stop; must not block.
            timeout_ms: time-out, milliseconds.

        Returns:
            A future that tells whether the condition held in time.
        """
        future = AppendFuture[bool]()
        deadline_us = self.reactor.clock.monotonic_us() + max(timeout_ms, 0) * 1000
        with suppress(ReplogError):  # the reactor was closed, and with it the connections that wait
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
        """Delay the response to a change until this broker knows the change, or for 5 s, which is no error.

        A client that then reads from the same broker sees its change.

        Args:
            response: the response.
            is_known: returns, without blocking, whether this broker knows the change.

        Returns:
            A future of the response.
        """
        return transform(self.wait_until(is_known, _KNOWN_MS), lambda _: response)
