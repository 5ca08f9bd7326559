"""RemoteNode: asks a node in another process for its state, or sends it a command."""

from __future__ import annotations

import json
import ssl
from typing import Any

from pyreplog import errors
from pyreplog.errors import CommandRefusedError, InvalidMessageError, ReplogError, UnsupportedRequestError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.ha.node_context import SERVICE
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.messages import Command, Refuse, StatusReply
from pyreplog.handles import Closeable
from pyreplog.net.channel import Channel
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import parse_address

ANSWER_S = 60.0
"""Seconds until an answer; an election must fit in."""


class RemoteNode(Closeable):
    """The node at "host:port", over one connection. Not thread-safe. Close it, or use `with`.

    Args:
        address: "host:port" of the node.
        secret: secret of the group; None: no authentication.
        tls: TLS context of a client; None: no TLS.
    """

    def __init__(
        self, address: str, *, secret: bytes | Secret | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address, host_and_port = address, parse_address(address)
        known = Secret.of(secret)
        self._reactor = Reactor()
        self._channel = Channel(
            self._reactor, host_and_port, expected=NodeIdentity(service=SERVICE),
            identity=NodeIdentity(service=SERVICE), secret=known, tls=tls,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """Return the state of the node, as `Node.stats`. Raises the errors of `ask`."""
        return self.ask("status")

    def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        """Send a command (see `ha.commands`), and return its answer.

        Raises:
            CommandRefusedError: the node refused the command; the message says why.
            NotConnectedError: the node cannot be reached.
            PeerTimeoutError, DisconnectedError: no answer arrived; whether the command was executed is unknown.
            InvalidMessageError: the answer is malformed.
        """
        body = messages.encode(Command(json.dumps({"command": command, **arguments}).encode()))
        answer: AppendFuture[bytes] = AppendFuture()

        def on_reply(reply: memoryview | ReplogError) -> None:
            if isinstance(reply, ReplogError):
                set_exception(answer, reply)
            else:
                set_result(answer, bytes(reply))

        self._channel.request(body, on_reply=on_reply, timeout=ANSWER_S)
        self._reactor.drive(answer.done)
        return _decode_status(self.address, answer.result())

    def close(self) -> None:
        self._channel.close()
        self._reactor.close()


def _decode_status(address: str, body: bytes) -> dict[str, Any]:
    message = messages.decode(body)
    if isinstance(message, Refuse):
        raise UnsupportedRequestError(f"{address}: {message.text}")
    status = _parse_json(message.json) if isinstance(message, StatusReply) else None
    if not isinstance(status, dict):
        raise InvalidMessageError(f"{address}: expected a status, found {type(message).__name__} {body[:80]!r}")
    if "error" in status:
        kind = getattr(errors, str(status["error"]), None)
        code = kind.exit_code if isinstance(kind, type) and issubclass(kind, ReplogError) else ReplogError.exit_code
        raise CommandRefusedError(f"{address}: {status.get('message')}", str(status["error"]), code)
    return status


def _parse_json(data: bytes) -> object:
    try:
        document: object = json.loads(data)
    except ValueError:
        return None
    return document
