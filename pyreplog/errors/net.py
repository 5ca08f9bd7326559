"""Errors of connections."""

from __future__ import annotations

from pyreplog.errors.base import InvalidMessageError, OutcomeUnknownError, ReplogError


class FrameError(ReplogError):
    """A peer sent bytes that are no frame; the connection cannot go on.

    `offset` is the byte offset in the stream where the bad frame begins.
    """

    def __init__(self, offset: int, expected: str, found: str) -> None:
        self.offset, self.expected, self.found = offset, expected, found
        super().__init__(f"bad frame at stream byte {offset}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[FrameError], tuple[int, str, str]]:
        return type(self), (self.offset, self.expected, self.found)


class PeerError(ReplogError):
    """The process at the other end of a connection could not be reached, does not fit, or does not answer. Whether
    something was done the subclasses say; of this class itself, it is unknown."""

    exit_code = 7


class NotConnectedError(PeerError):
    """There is no connection, and none can be made now. Nothing was sent."""

    retriable = True


class DisconnectedError(PeerError, OutcomeUnknownError):
    """The connection was lost. What was asked and not answered may or may not be done."""


class PeerTimeoutError(PeerError, OutcomeUnknownError):
    """The peer was silent for too long, or did not answer in time. What was asked may or may not be done."""


class DamagedMessageError(PeerError, OutcomeUnknownError, InvalidMessageError):
    """What a peer said was damaged on its way: its checksum is another one. What was asked may or may not be done."""


class SlowPeerError(PeerError):
    """The peer did not take what was sent to it: its queue stayed over the limit for too long."""


class HandshakeError(PeerError):
    """The two sides of a connection do not fit, or what arrived is no hello. Nothing else was sent."""


class ProtocolVersionError(HandshakeError):
    """No version of the protocol is spoken by both sides."""


class WrongServiceError(HandshakeError):
    """The server at this address offers another service."""


class WrongClusterError(HandshakeError):
    """The two sides belong to different clusters."""


class IncarnationError(HandshakeError):
    """Another node, or the same one with other data, answers at this address."""


class AuthenticationError(HandshakeError):
    """A side could not prove that it may talk to the other one."""


class TooManyConnectionsError(HandshakeError):
    """The server has as many connections as it is allowed to have."""

    retriable = True


class TlsMismatchError(HandshakeError):
    """One side of a connection speaks TLS and the other does not."""
