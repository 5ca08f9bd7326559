"""SASL authentication with PLAIN (RFC 4616) or SCRAM (RFC 5802, 7677), as state machines without I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from pyreplog.errors import AuthenticationError, InvalidArgumentError

PLAIN, SCRAM_SHA_256, SCRAM_SHA_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)
ITERATIONS = 4096
_HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
_SALT_BYTES = 16
_MESSAGE_MAX = 4096


class ScramCredential(NamedTuple):
    """The data that a server stores in place of a password, for one algorithm (RFC 5802).

    Attributes:
        salt: random bytes, hashed with the password.
        stored_key: hash of the key that the client has to prove.
        server_key: key with which the server proves that it has this credential.
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, algorithm: str, salt: bytes) -> ScramCredential:
        """Return the credential of a password.

        Args:
            password: password of the user.
            algorithm: "sha256" or "sha512".
            salt: random bytes.
        """
        salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", algorithm)
        return cls(salt, hashlib.new(algorithm, client_key).digest(), hmac.digest(salted, b"Server Key", algorithm))


class SaslUsers:
    """The users of a listener, with the allowed mechanisms. Immutable.

    Args:
        passwords: password of each user.
        mechanisms: some of `MECHANISMS`. PLAIN sends the password itself: use it only with TLS.
        random: returns `count` random bytes.

    Raises:
        InvalidArgumentError: a mechanism is unknown, none is given, or a user name is empty or contains NUL.

    Example:
        ```python
        users = SaslUsers({"billing": "a long secret"}, mechanisms=("SCRAM-SHA-256",))
        server = pyreplog.kafka.Server(broker, users=users)
        ```
    """

    def __init__(
        self, passwords: Mapping[str, str], mechanisms: tuple[str, ...] = (SCRAM_SHA_256, SCRAM_SHA_512), *,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:  # fmt: skip
        unknown = [name for name in mechanisms if name not in MECHANISMS]
        if unknown or not mechanisms:
            raise InvalidArgumentError(f"mechanisms: expected some of {', '.join(MECHANISMS)}, found {mechanisms!r}")
        if any(not user or "\0" in user for user in passwords):
            raise InvalidArgumentError("passwords: expected names of users, found an empty one, or one with NUL")
        self.mechanisms = mechanisms
        self.random = random
        self._secret = random(_SALT_BYTES)
        self._passwords = (
            {user: password.encode() for user, password in passwords.items()} if PLAIN in mechanisms else {}
        )
        self._credentials = {
            (name, user): ScramCredential.of(password, _HASHES[name], random(_SALT_BYTES))
            for name in mechanisms
            if name in _HASHES
            for user, password in passwords.items()
        }

    def has_password(self, user: str, password: bytes) -> bool:
        """Return whether a password is that of a user, in a time that does not depend on whether the user exists.

        Args:
            user: name of the user.
            password: password that the client sent.
        """
        known = self._passwords.get(user)
        return hmac.compare_digest(known if known is not None else self._secret, password) and known is not None

    def credential(self, mechanism: str, user: str) -> tuple[ScramCredential, bool]:
        """Return the credential of a user, and whether the user exists.

        For an unknown user the credential is one that no password matches. It is always the same for a name, so that
        the first response of an exchange does not reveal which users exist.

        Args:
            mechanism: a SCRAM mechanism, such as `SCRAM-SHA-256`.
            user: name of the user.
        """
        known = self._credentials.get((mechanism, user))
        if known is not None:
            return known, True
        salt = hmac.digest(self._secret, user.encode(), "sha256")[:_SALT_BYTES]
        return ScramCredential(salt, self._secret, self._secret), False


class _Exchange(Protocol):
    """The server's side of one exchange. `user` is authenticated once `is_done`."""

    user: str
    is_done: bool

    def receive(self, message: bytes) -> bytes: ...


class _PlainExchange:
    """The exchange of PLAIN: one message, with user and password."""

    def __init__(self, users: SaslUsers) -> None:
        self._users, self.user, self.is_done = users, "", False

    def receive(self, message: bytes) -> bytes:
        parts = message.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationError("PLAIN: expected three fields")
        authorized, user, password = parts
        name = _decode_user(user)
        if not self._users.has_password(name, password) or authorized not in (b"", user):
            raise AuthenticationError("the user or the password is wrong")
        self.user, self.is_done = name, True
        return b""


class _ScramExchange:
    """The exchange of SCRAM: a first and a final message of the client, each with a response."""

    def __init__(self, users: SaslUsers, mechanism: str) -> None:
        self._users, self._mechanism, self._algorithm = users, mechanism, _HASHES[mechanism]
        self.user, self.is_done = "", False
        self._first_messages = b""  # the client's first message and the response, once it was received
        self._nonce = b""
        self._header = b""

    def receive(self, message: bytes) -> bytes:
        return self._begin(message) if not self._first_messages else self._finish(message)

    def _begin(self, message: bytes) -> bytes:
        binding, _, rest = message.partition(b",")
        authorized, _, bare = rest.partition(b",")
        fields = bare.split(b",")
        if (
            binding not in (b"n", b"y")
            or len(fields) < 2
            or not fields[0].startswith(b"n=")
            or not fields[1].startswith(b"r=")
        ):
            raise AuthenticationError("SCRAM: expected a first message without channel binding")
        self.user = _decode_user(fields[0][2:]).replace("=2C", ",").replace("=3D", "=")
        if authorized not in (b"", b"a=" + fields[0][2:]):
            raise AuthenticationError("SCRAM: expected no other authorization id")
        self._header = binding + b"," + authorized + b","
        self._nonce = fields[1][2:] + base64.b64encode(self._users.random(18))
        credential, _ = self._users.credential(self._mechanism, self.user)
        answer = b"r=%s,s=%s,i=%d" % (self._nonce, base64.b64encode(credential.salt), ITERATIONS)
        self._first_messages = bare + b"," + answer
        return answer

    def _finish(self, message: bytes) -> bytes:
        without_proof, _, proof_field = message.rpartition(b",p=")
        fields = without_proof.split(b",")
        if fields[:1] != [b"c=" + base64.b64encode(self._header)] or fields[1:2] != [b"r=" + self._nonce]:
            raise AuthenticationError("SCRAM: expected the final message of this exchange")
        try:
            proof = base64.b64decode(proof_field, validate=True)
        except binascii.Error as error:
            raise AuthenticationError("SCRAM: expected a proof in base64") from error
        credential, is_known = self._users.credential(self._mechanism, self.user)
        signed = self._first_messages + b"," + without_proof
        signature = hmac.digest(credential.stored_key, signed, self._algorithm)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        is_right = hmac.compare_digest(hashlib.new(self._algorithm, client_key).digest(), credential.stored_key)
        if not is_right or not is_known or len(proof) != len(signature):
            raise AuthenticationError("the user or the password is wrong")
        self.is_done = True
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, self._algorithm))


class SaslSession:
    """The authentication state of one connection. Not thread-safe.

    Args:
        users: users of the listener.

    Attributes:
        user: name of the authenticated user; "": not authenticated.
    """

    def __init__(self, users: SaslUsers) -> None:
        self._users = users
        self._exchange: _Exchange | None = None
        self._has_failed = False
        self.user = ""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms of the listener."""
        return self._users.mechanisms

    @property
    def is_exchanging(self) -> bool:
        """Whether an exchange was begun and has not ended."""
        return self._exchange is not None

    def choose(self, mechanism: str) -> bool:
        """Begin an exchange; return whether it was begun.

        It is not begun if the listener does not allow the mechanism, or if an earlier exchange of the connection has
        ended: a client has one attempt.

        Args:
            mechanism: name that the client sent.
        """
        if mechanism not in self._users.mechanisms or self._has_failed or self.user:
            return False
        self._exchange = _PlainExchange(self._users) if mechanism == PLAIN else _ScramExchange(self._users, mechanism)
        return True

    def receive(self, message: bytes) -> bytes:
        """Handle a message of the client, and return the response.

        Args:
            message: message of the current exchange.

        Raises:
            AuthenticationError: the message is malformed, no exchange was begun, or the user or the password is wrong.
                Later messages are refused as well.
        """
        exchange = self._exchange
        try:
            if exchange is None or len(message) > _MESSAGE_MAX:
                raise AuthenticationError("expected a message of an exchange that was begun")
            answer = exchange.receive(message)
        except AuthenticationError:
            self._has_failed, self._exchange = True, None
            raise
        if exchange.is_done:
            self.user, self._exchange = exchange.user, None
        return answer


def _decode_user(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationError("expected the name of a user in UTF-8") from error
