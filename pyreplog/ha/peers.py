"""Peers: sends requests of a node to other members of its group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import Lock

from pyreplog.arguments import check_mapping
from pyreplog.errors import InvalidArgumentError, InvalidMessageError, NotConnectedError, ReplogError
from pyreplog.ha.node_context import SERVICE, NodeContext
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.messages import Message
from pyreplog.net.channel import Channel
from pyreplog.net.handshake import NodeIdentity
from pyreplog.net.sockets import parse_address
from pyreplog.stream.fields import NAME_BYTES_MAX, is_name

logger = logging.getLogger(__name__)

ADDRESSES_MAX = 1024
"""Most members whose addresses a node keeps, former members included: any peer may add addresses."""

OnAnswer = Callable[[Message | ReplogError], object]
Asks = Callable[[str, Message, OnAnswer], object]
"""Sends a request to a member: (member, request, callback for the answer)."""


class Peers:
    """The channels to other members, each of which opens at the first request. Thread-safe.

    Args:
        context: what the parts of the node share.
        addresses: "host:port" by name of member.

    Raises:
        InvalidArgumentError: as `learn`.
    """

    def __init__(self, context: NodeContext, addresses: Mapping[str, str]) -> None:
        self._context = context
        self._lock = Lock()
        self._addresses: dict[str, str] = {}
        self._channels: dict[str, Channel] = {}
        self._closed = False
        self.learn(addresses)

    @property
    def addresses(self) -> dict[str, str]:
        """The known addresses by name of member."""
        with self._lock:
            return dict(self._addresses)

    def learn(self, addresses: Mapping[str, str]) -> None:
        """Add addresses, or replace known ones. After an error nothing has changed.

        Raises:
            WrongTypeError: `addresses` is no mapping.
            InvalidArgumentError: an address or a name is malformed, or there are too many.
        """
        check_mapping("addresses", addresses)
        for name in addresses:
            if not is_name(name):
                raise InvalidArgumentError(
                    f"expected addresses by name, of 1 to {NAME_BYTES_MAX} bytes, found {name!r}"
                )
        parsed = {name: parse_address(address) for name, address in addresses.items()}
        with self._lock:
            count = len(self._addresses.keys() | parsed.keys())
            if count > ADDRESSES_MAX:
                raise InvalidArgumentError(f"expected addresses of at most {ADDRESSES_MAX} members, found {count}")
            channels = self._channels
            changed = [
                name for name, address in parsed.items() if name in channels and channels[name].address != address
            ]
            former = [channels.pop(name) for name in changed]
            self._addresses.update(addresses)
        for channel in former:
            channel.close()

    def ask(self, member: str, request: Message, on_answer: OnAnswer) -> None:
        """Send a request. `on_answer` is called once, by the reactor's driver or before this returns."""
        try:
            channel = self._channel(member)
            timeout = self._context.config.election_timeout_ms / 1000
            channel.request(messages.encode(request), on_reply=lambda body: on_answer(_decoded(body)), timeout=timeout)
        except ReplogError as error:
            on_answer(error)

    def is_unreachable(self, member: str) -> bool:
        """Return whether the last request to a member could not be sent, because its address is unknown or connecting
        failed. A connection that was just lost does not count: it is opened again."""
        with self._lock:
            channel = self._channels.get(member)
        return channel is None or channel.error is not None

    def _channel(self, member: str) -> Channel:
        """Return the channel to a member.

        A channel that pauses between attempts to connect is replaced by a new one, because the caller does not wait.
        """
        with self._lock:
            address, known = self._addresses.get(member), self._channels.get(member)
            if known is not None and known.error is None:
                return known
            if address is None or self._closed:
                raise NotConnectedError(
                    f"no address of member {member} is known, or this node is being closed; give it with "
                    "peers, or learn_peers"
                )
            channel = self._channels[member] = self._connect(member, address)
        if known is not None:
            known.close()
        return channel

    def _connect(self, member: str, address: str) -> Channel:
        context = self._context
        return Channel(
            context.reactor, parse_address(address), expected=NodeIdentity(node=member, service=SERVICE),
            identity=context.identity, secret=context.secret, tls=context.tls[1], limits=context.limits,
        )  # fmt: skip

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()


def _decoded(body: memoryview | ReplogError) -> Message | ReplogError:
    if isinstance(body, ReplogError):
        return body
    try:
        return messages.decode(body)
    except InvalidMessageError as error:
        return error
