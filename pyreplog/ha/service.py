"""Service: dispatches the messages that a node's server receives from replicas, candidates, operators and clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pyreplog._native.net.frame import CONTROL_OFFSET
from pyreplog.errors import InvalidMessageError, JoinRefusedError, ReplogError
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.client_messages import is_client_request
from pyreplog.ha.protocol.messages import (
    AskStatus,
    Command,
    Join,
    MembersStored,
    Message,
    Prepare,
    ProgressReport,
    RefusalCode,
    Refuse,
    UnknownKindError,
)
from pyreplog.net.server_connection import ServerConnection

if TYPE_CHECKING:
    from pyreplog._native.net.frame import FrameBatch
    from pyreplog.net.connection import Connection


class Streams(Protocol):
    """The part of a role that serves connected replicas."""

    def join(self, connection: Connection, join: Join) -> None: ...
    def progress(self, connection: Connection, progress: ProgressReport) -> None: ...
    def stored(self, connection: Connection, stored: MembersStored) -> None: ...
    def drained(self, connection: Connection) -> None: ...
    def disconnected(self, connection: Connection) -> None: ...


class Clients(Protocol):
    """The part of a node that serves clients which append and read."""

    def take(self, connection: ServerConnection, number: int, body: memoryview) -> None: ...
    def end_turn(self) -> None: ...
    def drained(self, connection: Connection) -> None: ...


class Answers(Protocol):
    """The part of a node that answers requests, by `connection.reply`."""

    @property
    def streams(self) -> Streams | None: ...
    def vote(self, prepare: Prepare) -> Message: ...
    def status(self) -> Message: ...
    def command(self, connection: ServerConnection, number: int, command: Command) -> None: ...
    @property
    def clients(self) -> Clients: ...
    def connection_lost(self, connection: Connection) -> None: ...


class Service:
    """A `net.connection.Handler`. All methods are called by the reactor's driver.

    A master gives the connections of its replicas a `FastPath` for their reports.
    """

    def __init__(self, node: Answers) -> None:
        self._node = node

    def opened(self, connection: Connection) -> None:
        """Do nothing: the peer sends the first message."""

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        """Handle frames. InvalidMessageError ends the connection; earlier frames of the batch have been handled."""
        assert isinstance(connection, ServerConnection)
        clients, has_client = self._node.clients, False
        try:
            for number, body in batch:
                if not body:
                    continue
                if number != CONTROL_OFFSET and is_client_request(body):
                    has_client = True
                    clients.take(connection, number, body)
                    continue
                try:
                    message = messages.decode(body)
                except UnknownKindError as error:
                    if number == CONTROL_OFFSET:  # a stream has no replies, and later messages may depend on this one
                        raise InvalidMessageError(str(error)) from None
                    refusal = Refuse(RefusalCode.VERSION, f"{error}: upgrade this node")
                    connection.reply(number, messages.encode(refusal))
                    continue
                if number == CONTROL_OFFSET:
                    self._on_stream_message(connection, message)
                else:
                    self._on_request(connection, number, message)
        finally:
            if has_client:
                clients.end_turn()

    def _on_stream_message(self, connection: ServerConnection, message: Message) -> None:
        streams = self._node.streams
        if streams is not None and isinstance(message, ProgressReport):
            streams.progress(connection, message)
        elif isinstance(message, Refuse):
            connection.close(JoinRefusedError(message.code, message.text))
        elif streams is None:
            connection.close(JoinRefusedError(messages.RefusalCode.NOT_MASTER, "this node is changing its role"))
        elif isinstance(message, Join):
            _check_name(connection, message.member)
            streams.join(connection, message)
        elif isinstance(message, MembersStored):
            streams.stored(connection, message)
        else:
            raise InvalidMessageError(f"expected a message of a replica, found {type(message).__name__}")

    def _on_request(self, connection: ServerConnection, number: int, message: Message) -> None:
        if isinstance(message, Prepare):
            _check_name(connection, message.term.master)
            connection.reply(number, messages.encode(self._node.vote(message)))
        elif isinstance(message, AskStatus):
            connection.reply(number, messages.encode(self._node.status()))
        elif isinstance(message, Command):
            self._node.command(connection, number, message)
        else:
            raise InvalidMessageError(f"expected a request of a node, found {type(message).__name__}")

    def drained(self, connection: Connection) -> None:
        self._node.clients.drained(connection)
        streams = self._node.streams
        if streams is not None:
            streams.drained(connection)

    def closed(self, connection: Connection, error: ReplogError) -> None:
        self._node.connection_lost(connection)
        streams = self._node.streams
        if streams is not None:
            streams.disconnected(connection)


def _check_name(connection: Connection, name: str) -> None:
    """Check that a peer uses the name of its hello: otherwise it would be counted in place of another member."""
    hello_name = connection.peer.identity.node
    if name != hello_name:
        raise InvalidMessageError(f"expected the name of its hello, {hello_name!r}, found {name!r}")
