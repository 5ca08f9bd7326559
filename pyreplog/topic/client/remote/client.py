"""Client: topics of other processes and machines, over TCP; made by `connect`."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Unpack, overload

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog.arguments import check_bool, check_seconds, check_text
from pyreplog.coroutines import check_may_block, in_thread
from pyreplog.errors import (
    ConfigError,
    InvalidArgumentError,
    InvalidMessageError,
    PeerTimeoutError,
    TopicExistsError,
)
from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.protocol.pending_adds import ENTRY_BYTES_MAX
from pyreplog.net.handshake import Secret
from pyreplog.net.limits import Limits, check_connecting
from pyreplog.topic.client.remote.connection_pool import ConnectionPool, parse_address, reads
from pyreplog.topic.client.remote.remote_topic import RemotePartitionedTopic, RemoteTopic
from pyreplog.topic.model.config import TopicConfig, TopicSettings
from pyreplog.topic.model.partitioned_metadata import check_partitions
from pyreplog.topic.model.topic_identity import TopicIdentity
from pyreplog.topic.model.wire.protocol import Call, CallResult, Open, Opened
from pyreplog.topic_names import check_name

TIMEOUT_S = 30.0
_URL = re.compile(r"pyreplog://(?P<servers>[^/\s]+)/?")
_BODY_BYTES_MIN = ENTRY_BYTES_MAX + (1 << 20)
_NAMES_MAX = 1000
"""Names of topics in one call: its arguments take at most 1 MiB, and JSON takes six bytes for some characters."""


def connect(
    url: str,
    *,
    secret: bytes | Secret | None = None,
    tls: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    timeout: float = TIMEOUT_S,
    cluster: bytes | None = None,
) -> Client:
    """Make a client of topic servers (`pyreplog serve`). It connects when a connection is first needed.

    Args:
        url: "pyreplog://host:port", or several servers: "pyreplog://host:port,host:port". Any of them finds the owner
            of a topic.
        secret: secret that the servers were started with; None: no authentication.
        tls: TLS context of a client; None: no TLS.
        limits: limits of each connection; None: the defaults.
        timeout: seconds that calls wait by default, except those that receive; publishing and consuming are retried for
            so long when a connection is lost.
        cluster: the 16 bytes that identify the cluster of the servers, see `Client.cluster_id`; others are refused with
            WrongClusterError. None: any cluster.

    Returns:
        The client.

    Raises:
        WrongTypeError: an argument has the wrong type.
        InvalidArgumentError: the URL is malformed, or the timeout is out of range.
        ConfigError: the limits are too small for an entry.
    """
    match = _URL.fullmatch(check_text("url", url))
    if match is None:
        raise InvalidArgumentError(f"url: expected pyreplog://host:port, found {url!r}")
    secret = Secret.of(secret)
    check_connecting(tls, limits)
    if not check_seconds("timeout", timeout) > 0:
        raise InvalidArgumentError(f"timeout: expected more than 0 seconds, found {timeout!r}")
    if limits is not None and limits.max_body_bytes < _BODY_BYTES_MIN:
        raise ConfigError(f"max_body_bytes: an entry takes up to {_BODY_BYTES_MIN}, found {limits.max_body_bytes}")
    try:
        servers = [parse_address(server) for server in match["servers"].split(",")]
    except InvalidMessageError as error:
        raise InvalidArgumentError(f"url: expected pyreplog://host:port, found {url!r}: {error}") from None
    return Client(url, ConnectionPool(servers, secret=secret, tls=tls, limits=limits, timeout=timeout, cluster=cluster))


class Client(Handle):
    """A client of topic servers; made by `connect`. Any thread may use it; calls block. Close it, or use `with`.

    See docs/topics.md.
    """

    def __init__(self, url: str, pool: ConnectionPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()  # guards the table
        self._forgotten = threading.Condition(self._lock)  # notified when a topic leaves it
        self._opening = threading.Lock()  # held while a topic is opened
        self._opening_partitioned = threading.Lock()  # held while a partitioned topic is opened, which opens topics
        self._topics: dict[str, RemoteTopic | RemotePartitionedTopic] = {}
        super().__init__(f"client of {url}")

    @property
    def pool(self) -> ConnectionPool:
        """The connections, for geo-replication and operators."""
        return self._pool

    @overload
    def topic(
        self, name: str, *, partitions: int, create: bool = True, **settings: Unpack[TopicSettings]
    ) -> RemotePartitionedTopic: ...
    @overload
    def topic(
        self, name: str, *, partitions: None = None, create: bool = True, **settings: Unpack[TopicSettings]
    ) -> RemoteTopic | RemotePartitionedTopic: ...
    def topic(
        self, name: str, *, partitions: int | None = None, create: bool = True, **settings: Unpack[TopicSettings]
    ) -> RemoteTopic | RemotePartitionedTopic:
        """Open a topic at its owner; the same object is returned until it is closed.

        A topic with partitions is a RemotePartitionedTopic, any other one a RemoteTopic; both are a `TopicLike`. If no
        server owns the topic, the one that is asked becomes its owner.

        Args:
            name: any text of up to 200 bytes, without control characters.
            partitions: number of partitions, 1 to 65536: the topic is created with so many if it does not exist, and
                grows if it has fewer. None: those that it has, or a topic without partitions.
            create: create the topic if it does not exist.
            settings: fields of TopicConfig, for a new topic; those of an existing topic are changed.

        Raises:
            NoSuchTopicError: it does not exist, and `create` is False.
            TopicExistsError: a topic without partitions cannot get any.
            InvalidArgumentError: the name is invalid, or a topic cannot get fewer partitions.
            ConfigError: a setting is unknown or invalid.
            PeerError: no server answers.
            AuthenticationError: the secret is wrong; other HandshakeErrors say why a server refuses this client.
        """
        self._check_open()
        check_may_block("topic")
        TopicConfig.of(settings)
        check_name(name)
        check_bool("create", create)
        if partitions is not None:
            arguments = {"topic": name, "partitions": check_partitions(name, partitions), "create": create}
            return self._open_partitioned(name, self._ask("make_partitions", **arguments, settings=settings), settings)
        known = self._opened(name)
        count = None if isinstance(known, RemoteTopic) else self._ask("partitions", topic=name)
        if count is not None:
            return self._open_partitioned(name, count, settings)
        if isinstance(known, RemotePartitionedTopic):
            known.close()  # it was deleted meanwhile
        return self.open_unpartitioned(name, create=create, settings=settings)

    @overload
    async def topic_async(
        self, name: str, *, partitions: int, create: bool = True, **settings: Unpack[TopicSettings]
    ) -> RemotePartitionedTopic: ...
    @overload
    async def topic_async(
        self, name: str, *, partitions: None = None, create: bool = True, **settings: Unpack[TopicSettings]
    ) -> RemoteTopic | RemotePartitionedTopic: ...
    async def topic_async(
        self, name: str, *, partitions: int | None = None, create: bool = True, **settings: Unpack[TopicSettings]
    ) -> RemoteTopic | RemotePartitionedTopic:
        """Do what `topic` does, in a coroutine; a thread does the work.

        The arguments are those of `topic`.

        Raises:
            ReplogError: as `topic`.
        """
        opened: RemoteTopic | RemotePartitionedTopic = await asyncio.to_thread(
            partial(self.topic, **settings), name, partitions=partitions, create=create
        )
        return opened

    def _open_partitioned(self, name: str, partitions: int, settings: Mapping[str, Any]) -> RemotePartitionedTopic:
        with self._opening_partitioned:
            topic = self._opened(name)
            if isinstance(topic, RemotePartitionedTopic):
                topic.use(partitions, settings)
                return topic
            if topic is not None:
                topic.close()  # it was deleted meanwhile
            created = RemotePartitionedTopic(self, name, partitions, self._pool.wait, self._pool.timeout)
            make_part_of(created, self)
            try:
                created.use(partitions, settings)
            except BaseException:
                created.close()
                raise
            with self._lock:
                self._topics[name] = created
            return created

    def open_unpartitioned(self, name: str, *, create: bool, settings: Mapping[str, Any]) -> RemoteTopic:
        """Open a topic without partitions, or one partition; see `topic`.

        Args:
            name: name of the topic.
            create: create the topic if it does not exist.
            settings: fields of TopicConfig.

        Raises:
            TopicExistsError: it is a topic with partitions.
            ReplogError: as `topic`.
        """
        request = Open(0, create, name, "", self._pool.client, json.dumps(settings) if settings else "")
        with self._opening:
            topic = self._opened(name)
            if isinstance(topic, RemotePartitionedTopic):
                raise TopicExistsError(name, f"it is a topic with {topic.partitions} partitions")
            if topic is not None and not settings:
                return topic
            opened: Opened = self._pool.wait(self._pool.ask_for(name, request, reads(Opened)))
            if topic is None:
                topic = RemoteTopic(self._pool, name, opened, self.forget, self.existing)
                make_part_of(topic, self)
                with self._lock:
                    self._topics[name] = topic
            else:
                topic.config = TopicConfig.stored(json.loads(opened.config))
        return topic

    def _opened(self, name: str) -> RemoteTopic | RemotePartitionedTopic | None:
        """Return the topic if it is open. Wait for one that another thread closes, so that its messages come first."""
        topic = self._topics.get(name)
        if topic is None or not topic.is_closing:
            return topic
        if not self._await_closed([topic], self._pool.timeout):
            raise PeerTimeoutError(
                f"topic {name}: this client has been closing it for {self._pool.timeout:g} s. Whether all messages "
                "that were submitted to it are published is unknown; open it again later"
            )
        topic = self._topics.get(name)
        return None if topic is None or topic.is_closing else topic

    def _await_closed(self, topics: Sequence[RemoteTopic | RemotePartitionedTopic], timeout: float) -> bool:
        """Wait until topics that were closed, perhaps by other threads, have published what was submitted; return
        whether they have."""
        with self._forgotten:
            if any(self._topics.get(topic.name) is topic for topic in topics):
                check_may_wait()
            return self._forgotten.wait_for(
                lambda: not any(self._topics.get(topic.name) is topic for topic in topics), timeout
            )

    def existing(self, name: str) -> RemoteTopic | RemotePartitionedTopic:
        """Open a topic that exists, with or without partitions; see `topic`.

        Args:
            name: name of the topic.

        Raises:
            NoSuchTopicError: it does not exist.
        """
        return self.topic(name, create=False)

    def topics(self) -> list[str]:
        """List the names of all topics; for partitioned ones, those of their partitions.

        Raises:
            ReplogError: as `topic`.
        """
        check_may_block("topics")
        return list(self._ask("topics"))

    def cluster_id(self) -> bytes:
        """Return the 16 random bytes that tell the cluster of the servers from others.

        Raises:
            PeerError: no server answers.
            InvalidMessageError: the server has an older version, which does not know this call.
            AuthenticationError: the secret is wrong; other HandshakeErrors say why a server refuses this client.
        """
        check_may_block("cluster_id")
        return bytes.fromhex(self._ask("cluster"))

    def geo_status(self) -> list[dict[str, Any]]:
        """Return the state of each replication to another cluster that one of the servers runs.

        Returns:
            A dict with the fields of `ReplicatorStatus` for each topic and target.

        Raises:
            ReplogError: as `cluster_id`.
        """
        check_may_block("geo_status")
        return list(self._ask("geo_status"))

    def geo_readiness(self) -> list[dict[str, Any]]:
        """Return what a fail-over of each replicated subscription of one of the servers would do now.

        Returns:
            A dict with the fields of `SubscriptionReadiness` for each subscription and other cluster.

        Raises:
            ReplogError: as `cluster_id`.
        """
        check_may_block("geo_readiness")
        return list(self._ask("geo_readiness"))

    def geo_where(self, topic: str, subscription: str) -> list[dict[str, Any]]:
        """Return where a replicated subscription of one of the servers is, by cluster and origin.

        Args:
            topic: name of its topic; of one with partitions, all of them.
            subscription: name of the subscription.

        Returns:
            A dict with the fields of `SubscriptionPosition` for each cluster and origin.

        Raises:
            ReplogError: as `cluster_id`.
        """
        check_may_block("geo_where")
        return list(self._ask("geo_where", topic=topic, subscription=subscription))

    def geo_handover(
        self, topic: str, subscription: str, target: str, *, order: str, timeout: float, grace: float
    ) -> dict[str, Any] | None:
        """Begin to hand a replicated subscription over to another cluster, or return the status of the handover.

        `GeoReplication.handover` polls it with one order.

        Args:
            topic: name of its topic, or partition. Its owner is asked; without one, a server opens it.
            subscription: name of the subscription.
            target: name of the cluster that is to deliver the subscription.
            order: id of the order.
            timeout: seconds after which the handover is cancelled, if the home has not moved.
            grace: seconds after which messages that consumers hold are taken from them.

        Returns:
            A dict with the fields of `HandoverStatus`; None: the owner has not applied the policy of the topic yet.

        Raises:
            NoSuchSubscriptionError: the topic has no replicated subscription of this name.
            ReplogError: as `cluster_id`.
        """
        check_may_block("geo_handover")
        status: dict[str, Any] | None = self._ask_owner(
            topic, "geo_handover", subscription=subscription, target=target, order=order, timeout=timeout, grace=grace
        )
        return status

    def geo_take_over(self, topic: str, subscription: str, *, any_cluster: bool) -> dict[str, Any] | None:
        """Take a replicated subscription over from the cluster that delivers it so far.

        Args:
            topic: name of its topic, or partition. Its owner is asked; without one, a server opens it.
            subscription: name of the subscription.
            any_cluster: let all clusters deliver the subscription.

        Returns:
            A dict with the fields of `HandoverStatus`; None: the owner has not applied the policy of the topic yet.

        Raises:
            NoSuchSubscriptionError: the topic has no replicated subscription of this name.
            ReplogError: as `cluster_id`.
        """
        check_may_block("geo_take_over")
        status: dict[str, Any] | None = self._ask_owner(
            topic, "geo_take_over", subscription=subscription, any_cluster=any_cluster
        )
        return status

    def partitioned_topics(self) -> list[str]:
        """List the names of all partitioned topics.

        Raises:
            ReplogError: as `topic`.
        """
        check_may_block("partitioned_topics")
        return list(self._ask("partitioned_topics"))

    def identity_of(self, name: str) -> TopicIdentity | None:
        """Return the identity of a topic without opening it; None: it does not exist.

        Args:
            name: name of the topic; that of a topic with partitions, or of one without.

        Raises:
            InvalidArgumentError: the name is invalid.
            InvalidMessageError: the server has an older version, which does not know this call.
            ReplogError: as `topic`.
        """
        check_may_block("identity_of")
        found = self._ask("identity", topic=check_name(name))
        return None if found is None else TopicIdentity(*found)

    def closed_offsets(self, names: Sequence[str]) -> dict[str, range | None]:
        """Return the offsets of the messages that topics keep which no server has open. None of them is opened.

        Args:
            names: names of topics without partitions, or of partitions.

        Returns:
            The offsets by name; None: they are not known before the topic is opened, since its last owner did not close
            its ledger. Topics that a server has open, and names of no topic, are left out.

        Raises:
            InvalidArgumentError: a name is invalid.
            InvalidMessageError: the server has an older version, which does not know this call.
            ReplogError: as `topic`.
        """
        check_may_block("closed_offsets")
        for name in names:
            check_name(name)
        found: dict[str, range | None] = {}
        for first in range(0, len(names), _NAMES_MAX):
            kept = self._ask("closed_offsets", names=list(names[first : first + _NAMES_MAX]))
            found |= {name: None if offsets is None else range(*offsets) for name, offsets in kept.items()}
        return found

    identity_of_async = in_thread(identity_of)
    closed_offsets_async = in_thread(closed_offsets)
    topics_async = in_thread(topics)
    partitioned_topics_async = in_thread(partitioned_topics)

    def remove_partitioned(self, name: str) -> None:
        """Remove the metadata of a topic whose partitions were deleted; for RemotePartitionedTopic.

        Args:
            name: name of the topic.
        """
        self._ask("remove_partitioned", topic=check_name(name))

    def _ask(self, call: str, **arguments: Any) -> Any:
        """Call any server; return the result."""
        return self._ask_owner("", call, **arguments)

    def _ask_owner(self, name: str, call: str, /, **arguments: Any) -> Any:
        """Call the owner of a topic, or any server if the name is ""; return the result."""
        self._check_open()
        request = Call(name, call, json.dumps(arguments))
        answer: CallResult = self._pool.wait(self._pool.ask_for(name, request, reads(CallResult)))
        return json.loads(answer.result)

    def forget(self, topic: RemoteTopic | RemotePartitionedTopic) -> None:
        """Forget a topic that was closed.

        Args:
            topic: the topic.
        """
        with self._lock:
            if self._topics.get(topic.name) is topic:
                del self._topics[topic.name]
                self._forgotten.notify_all()

    def _do_close(self) -> None:
        with self._lock:
            topics = list(self._topics.values())
        self._pool.begin_to_close()
        with ExitStack() as stack:
            stack.callback(self._pool.close)
            stack.callback(lambda: self._await_closed(topics, self._pool.close_timeout))
            for topic in topics:
                stack.callback(topic.close)

    def _close_forgotten(self) -> None:
        """Close the client in a thread, because closing blocks; submitted messages are published before."""
        threading.Thread(target=self.close, name="pyreplog-close", daemon=True).start()
