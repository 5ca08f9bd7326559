"""Errors of connections."""

from __future__ import annotations

from pyreplog.errors.base import InvalidMessageError, OutcomeUnknownError, ReplogError


class FrameError(ReplogError):
    """A peer sent bytes that are not a frame. The connection is closed.

    Attributes:
        offset: byte offset of the bad frame in the stream.
        expected: what the protocol demands there.
        found: what arrived.
    """

    def __init__(self, offset: int, expected: str, found: str) -> None:
        self.offset, self.expected, self.found = offset, expected, found
        super().__init__(f"bad frame at stream byte {offset}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[FrameError], tuple[int, str, str]]:
        return type(self), (self.offset, self.expected, self.found)


class PeerError(ReplogError):
    """The process at the other end of a connection cannot be reached, does not match, or does not answer.

    The subclasses tell whether the request was carried out; with this class itself, that is unknown.
    """

    exit_code = 7


class NotConnectedError(PeerError):
    """There is no connection, and none can be made now. Nothing was sent."""

    retriable = True


class DisconnectedError(PeerError, OutcomeUnknownError):
    """The connection was lost. A request without an answer may have been carried out, or not."""


class PeerTimeoutError(PeerError, OutcomeUnknownError):
    """The peer did not answer in time. The request may have been carried out, or not."""


class DamagedMessageError(PeerError, OutcomeUnknownError, InvalidMessageError):
    """A message was damaged on its way: its checksum is wrong. The request may have been carried out, or not."""


class SlowPeerError(PeerError):
    """The peer did not read its connection: the queue of unsent bytes was over the limit for too long."""


class HandshakeError(PeerError):
    """The two sides of a connection do not match, or the first bytes are not a hello. Nothing else was sent."""


class ProtocolVersionError(HandshakeError):
    """The two sides have no version of the protocol in common."""


class WrongServiceError(HandshakeError):
    """The server at this address offers another service."""


class WrongClusterError(HandshakeError):
    """The two sides belong to different clusters."""


class IncarnationError(HandshakeError):
    """Another node, or the same node with other data, answers at this address."""


class AuthenticationError(HandshakeError):
    """One side could not prove that it knows the secret of the other side."""


class TooManyConnectionsError(HandshakeError):
    """The server has as many connections as its limit allows."""

    retriable = True


class TlsMismatchError(HandshakeError):
    """One side of a connection speaks TLS, and the other side does not."""


class UnsupportedRequestError(PeerError):
    """The other side does not know this kind of request, or a flag of it: it is an older version. Nothing was done."""
