"""Client: topics of other processes and machines, over TCP. `connect` makes one."""

from __future__ import annotations

import json
import re
import ssl
import threading
from contextlib import ExitStack
from typing import Any

from pyreplog.errors import ConfigError, InvalidArgumentError
from pyreplog.handles import Handle
from pyreplog.ledger.driver import check_may_wait
from pyreplog.ledger.push import ENTRY_BYTES_MAX
from pyreplog.net.limits import Limits
from pyreplog.topic.config import TopicConfig
from pyreplog.topic.names import check_name
from pyreplog.topic.remote.link import Link, parse_address, reads
from pyreplog.topic.remote.protocol import Answer, Call, Open, Opened
from pyreplog.topic.remote.remotetopic import RemoteTopic

TIMEOUT_S = 30.0
_URL = re.compile(r"pyreplog://(?P<servers>[^/\s]+)/?")
_BODY_BYTES_MIN = ENTRY_BYTES_MAX + (1 << 20)


def connect(
    url: str,
    *,
    secret: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    timeout: float = TIMEOUT_S,
) -> Client:
    """A client of topic servers (`pyreplog serve`).

    url: "pyreplog://host:port", or several as "pyreplog://host:port,host:port": any of them finds whoever owns a topic.
    secret: what the servers were started with. tls: a client's context. limits: of each connection. timeout: seconds
    that a request may take, and for which publishing and consuming are tried again when a connection is lost.
    Nothing is connected before it is needed. Errors: InvalidArgumentError, ConfigError.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise InvalidArgumentError(f"a client's URL is pyreplog://host:port, not {url!r}")
    if not timeout > 0:
        raise InvalidArgumentError(f"timeout: expected more than 0 seconds, found {timeout!r}")
    if limits is not None and limits.max_body_bytes < _BODY_BYTES_MIN:
        raise ConfigError(f"max_body_bytes: an entry takes up to {_BODY_BYTES_MIN}, found {limits.max_body_bytes}")
    servers = [parse_address(server) for server in found["servers"].split(",")]
    return Client(url, Link(servers, secret=secret, tls=tls, limits=limits, timeout=timeout))


class Client(Handle):
    """Made by `connect`. Any thread may call anything; calls wait for answers. Close it, or use `with`."""

    def __init__(self, url: str, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()  # of the table
        self._opening = threading.Lock()
        self._topics: dict[str, RemoteTopic] = {}
        super().__init__(f"client of {url}")

    def topic(self, name: str, *, create: bool = True, **settings: Any) -> RemoteTopic:
        """The topic of that name, at whichever server owns it, or does from now on; the same object until it is closed.

        create, settings: as of `Cluster.topic`. Errors: those of `Cluster.topic`; PeerError, no server answers;
        AuthenticationError and other HandshakeErrors.
        """
        self._check_open()
        check_may_wait()
        TopicConfig.of(settings)
        request = Open(0, create, check_name(name), "", self._link.client, json.dumps(settings) if settings else "")
        with self._opening:
            there = self._topics.get(name)
            if there is not None and not settings:
                return there
            opened: Opened = self._link.wait(self._link.ask_for(name, request, reads(Opened)))
            if there is None:
                there = RemoteTopic(self, self._link, name, opened)
                with self._lock:
                    self._topics[name] = there
            else:
                there.config = TopicConfig.of(json.loads(opened.config))
        return there

    def topics(self) -> list[str]:
        """Names of all topics there are. Errors: as topic."""
        self._check_open()
        answer: Answer = self._link.wait(self._link.ask_for("", Call("", "topics", "{}"), reads(Answer)))
        return list(json.loads(answer.result))

    def forget(self, topic: RemoteTopic) -> None:
        """It was closed."""
        with self._lock:
            if self._topics.get(topic.name) is topic:
                del self._topics[topic.name]

    def _let_go(self) -> None:
        with self._lock:
            topics = list(self._topics.values())
        with ExitStack() as rest:
            rest.callback(self._link.close)
            for topic in topics:
                rest.callback(topic.close)
