"""TCPTransport: requests to other brokers over TCP, at the addresses that the metadata store has."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from pyreplog.errors import NotConnectedError, ReplogError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.handles import Handle
from pyreplog.net.client import Channel
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import parse_address
from pyreplog.partition.delayed_fetch import FetchResponses
from pyreplog.partition.requests import FetchParams, PartitionFetch
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.wire import SERVICE, VERSION, decode_responses, encode_fetch

logger = logging.getLogger(__name__)


class TCPTransport(Handle):
    """Channels to other brokers, made when they are needed. Any thread may use it.

    Args:
        reactor: drives the connections; it is started.
        broker: name of this broker.
        cluster: id of the cluster.
        find_address: returns where a broker is, "host:port"; "": it is not known.
        timeout_s: seconds that an answer may take, besides what a fetch waits for records.
        secret: brokers of the cluster know it.
        tls: a context for clients.
        limits: of connections.
    """

    def __init__(
        self, reactor: Reactor, broker: str, cluster: str, find_address: Callable[[str], str], *,
        timeout_s: float = 10.0, secret: Secret | None = None, tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self._reactor, self._find_address, self._timeout_s = reactor, find_address, timeout_s
        self._identity = NodeIdentity(node=broker, cluster=cluster, service=SERVICE, version=VERSION)
        self._cluster, self._secret, self._tls, self._limits = cluster, secret, tls, limits
        self._lock = threading.Lock()
        self._channels: dict[str, tuple[str, Channel]] = {}  # broker -> its address, and the channel to it
        super().__init__(f"transport of broker {broker}")

    def fetch(
        self, broker: str, params: FetchParams, fetches: Mapping[TopicPartition, PartitionFetch]
    ) -> AppendFuture[FetchResponses]:  # fmt: skip
        """Fetch from a broker; see `BrokerTransport`."""
        future = AppendFuture[FetchResponses]()
        channel = self._channel(broker)
        if channel is None:
            set_exception(future, NotConnectedError(f"broker {broker}: its address is not known"))
            return future
        timeout_s = self._timeout_s + params.max_wait_ms / 1000
        channel.request(encode_fetch(params, fetches), on_reply=partial(_take_reply, future), timeout=timeout_s)
        return future

    def _channel(self, broker: str) -> Channel | None:
        """Return the channel to a broker. One to a former address is closed."""
        address = self._find_address(broker)
        former: Channel | None = None
        with self._lock:
            self._check_open()
            known = self._channels.get(broker)
            if known is not None and known[0] == address:
                return known[1]
            if known is not None:
                former = known[1]
                del self._channels[broker]
            channel: Channel | None = None
            if address:
                channel = Channel(
                    self._reactor, parse_address(address), identity=self._identity, secret=self._secret, tls=self._tls,
                    expected=NodeIdentity(node=broker, cluster=self._cluster, service=SERVICE), limits=self._limits,
                )  # fmt: skip
                self._channels[broker] = address, channel
        if former is not None:
            former.close()
        return channel

    def _let_go(self) -> None:
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        with ExitStack() as stack:
            for _, channel in channels:
                stack.callback(channel.close)


def _take_reply(future: AppendFuture[FetchResponses], reply: memoryview | ReplogError) -> None:
    """Complete a fetch. The body is copied: its view would pin a receive buffer until the records are in the log."""
    if isinstance(reply, ReplogError):
        set_exception(future, reply)
        return
    try:
        responses = decode_responses(bytes(reply))
    except ReplogError as error:
        set_exception(future, error)
        return
    set_result(future, responses)
