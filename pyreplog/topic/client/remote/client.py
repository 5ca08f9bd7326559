"""Client: topics of other processes and machines, over TCP. `connect` makes one."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Unpack, overload

from pyreplog.arguments import check_bool, check_seconds, check_text
from pyreplog.errors import ConfigError, InvalidArgumentError, InvalidMessageError, TopicExistsError
from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.protocol.pending_adds import ENTRY_BYTES_MAX
from pyreplog.net.handshake import Secret
from pyreplog.net.limits import Limits, check_connecting
from pyreplog.topic.client.coroutines import in_thread
from pyreplog.topic.client.remote.connection_pool import ConnectionPool, parse_address, reads
from pyreplog.topic.client.remote.remote_topic import RemotePartitionedTopic, RemoteTopic
from pyreplog.topic.model.arguments import check_may_block
from pyreplog.topic.model.config import TopicConfig, TopicSettings
from pyreplog.topic.model.names import check_name
from pyreplog.topic.model.partitioned_metadata import check_partitions
from pyreplog.topic.model.wire.protocol import Call, CallResult, Open, Opened

TIMEOUT_S = 30.0
_URL = re.compile(r"pyreplog://(?P<servers>[^/\s]+)/?")
_BODY_BYTES_MIN = ENTRY_BYTES_MAX + (1 << 20)


def connect(
    url: str,
    *,
    secret: bytes | Secret | None = None,
    tls: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    timeout: float = TIMEOUT_S,
) -> Client:
    """A client of topic servers (`pyreplog serve`).

    url: "pyreplog://host:port", or several as "pyreplog://host:port,host:port": any of them finds whoever owns a topic.
    secret: what the servers were started with. tls: a client's context. limits: of each connection. timeout: seconds
    that a call waits for at most which does not say how long, but for those that receive; and for which publishing and
    consuming are tried again when a connection is lost.
    Nothing is connected before it is needed. Errors: WrongTypeError, InvalidArgumentError, ConfigError.
    """
    found = _URL.fullmatch(check_text("url", url))
    if found is None:
        raise InvalidArgumentError(f"url: expected pyreplog://host:port, found {url!r}")
    secret = Secret.of(secret)
    check_connecting(tls, limits)
    if not check_seconds("timeout", timeout) > 0:
        raise InvalidArgumentError(f"timeout: expected more than 0 seconds, found {timeout!r}")
    if limits is not None and limits.max_body_bytes < _BODY_BYTES_MIN:
        raise ConfigError(f"max_body_bytes: an entry takes up to {_BODY_BYTES_MIN}, found {limits.max_body_bytes}")
    try:
        servers = [parse_address(server) for server in found["servers"].split(",")]
    except InvalidMessageError as error:
        raise InvalidArgumentError(f"url: expected pyreplog://host:port, found {url!r}: {error}") from None
    return Client(url, ConnectionPool(servers, secret=secret, tls=tls, limits=limits, timeout=timeout))


class Client(Handle):
    """Made by `connect`. Any thread may call anything; calls wait for answers. Close it, or use `with`."""

    def __init__(self, url: str, pool: ConnectionPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()  # of the table
        self._opening = threading.Lock()  # one topic
        self._opening_several = threading.Lock()  # a partitioned one, which opens its partitions
        self._topics: dict[str, RemoteTopic | RemotePartitionedTopic] = {}
        super().__init__(f"client of {url}")

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
        """The topic of that name, at whichever server owns it, or does from now on; the same object until it is closed.
        A RemotePartitionedTopic, if it has partitions. Both are a `TopicLike`.

        partitions, create, settings: as of `Cluster.topic`. Errors: those of `Cluster.topic`; PeerError, no server
        answers; AuthenticationError and other HandshakeErrors.
        """
        self._check_open()
        check_may_block("topic")
        TopicConfig.of(settings)
        check_name(name)
        check_bool("create", create)
        if partitions is not None:
            wanted = {"topic": name, "partitions": check_partitions(name, partitions), "create": create}
            return self._several(name, self._ask("make_partitions", **wanted, settings=settings), settings)
        there = self._topics.get(name)
        count = None if isinstance(there, RemoteTopic) else self._ask("partitions", topic=name)
        if count is not None:
            return self._several(name, count, settings)
        if isinstance(there, RemotePartitionedTopic):
            there.close()  # it was deleted since
        return self.one(name, create=create, settings=settings)

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
        """As topic, for coroutines: a thread does it."""
        opened: RemoteTopic | RemotePartitionedTopic = await asyncio.to_thread(
            partial(self.topic, **settings), name, partitions=partitions, create=create
        )
        return opened

    def _several(self, name: str, partitions: int, settings: Mapping[str, Any]) -> RemotePartitionedTopic:
        with self._opening_several:
            there = self._topics.get(name)
            if isinstance(there, RemotePartitionedTopic):
                there.use(partitions, settings)
                return there
            if there is not None:
                there.close()  # it was deleted since
            made = RemotePartitionedTopic(self, name, partitions, self._pool.wait, self._pool.timeout)
            make_part_of(made, self)
            try:
                made.use(partitions, settings)
            except BaseException:
                made.close()
                raise
            with self._lock:
                self._topics[name] = made
            return made

    def one(self, name: str, *, create: bool, settings: Mapping[str, Any]) -> RemoteTopic:
        """A topic that has no partitions, or is one; see `topic`."""
        request = Open(0, create, name, "", self._pool.client, json.dumps(settings) if settings else "")
        with self._opening:
            there = self._topics.get(name)
            if isinstance(there, RemotePartitionedTopic):
                raise TopicExistsError(name, f"it has {there.partitions} partitions, and is no topic of one")
            if there is not None and not settings:
                return there
            opened: Opened = self._pool.wait(self._pool.ask_for(name, request, reads(Opened)))
            if there is None:
                there = RemoteTopic(self._pool, name, opened, self.forget, self.existing)
                make_part_of(there, self)
                with self._lock:
                    self._topics[name] = there
            else:
                there.config = TopicConfig.stored(json.loads(opened.config))
        return there

    def existing(self, name: str) -> RemoteTopic | RemotePartitionedTopic:
        """A topic that exists, with partitions or without; as `topic`. NoSuchTopicError: there is none."""
        return self.topic(name, create=False)

    def topics(self) -> list[str]:
        """Names of all topics there are; of partitioned ones, of their partitions. Errors: as topic."""
        check_may_block("topics")
        return list(self._ask("topics"))

    def partitioned_topics(self) -> list[str]:
        """Names of all partitioned topics there are. Errors: as topic."""
        check_may_block("partitioned_topics")
        return list(self._ask("partitioned_topics"))

    topics_async = in_thread(topics)
    partitioned_topics_async = in_thread(partitioned_topics)

    def remove_partitioned(self, name: str) -> None:
        """A topic's partitions were deleted; for itself."""
        self._ask("remove_partitioned", topic=check_name(name))

    def _ask(self, call: str, **arguments: Any) -> Any:
        """What any server can answer."""
        self._check_open()
        request = Call("", call, json.dumps(arguments))
        answer: CallResult = self._pool.wait(self._pool.ask_for("", request, reads(CallResult)))
        return json.loads(answer.result)

    def forget(self, topic: RemoteTopic | RemotePartitionedTopic) -> None:
        """It was closed."""
        with self._lock:
            if self._topics.get(topic.name) is topic:
                del self._topics[topic.name]

    def _let_go(self) -> None:
        with self._lock:
            topics = list(self._topics.values())
        self._pool.begin_to_close()
        with ExitStack() as rest:
            rest.callback(self._pool.close)
            for topic in topics:
                rest.callback(topic.close)

    def _close_forgotten(self) -> None:
        """A thread of its own does what waits for others; what was submitted is published before."""
        threading.Thread(target=self.close, name="pyreplog-close", daemon=True).start()
