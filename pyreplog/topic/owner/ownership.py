"""Which process serves which topic: keys under a lease, one lease per process.

The keys tell clients which server to ask, and keep two owners from taking a topic from each other in turns. They give
no safety: that comes from the topic's epoch and the fencing of its ledgers. A process that still believes in a lost
claim can do no harm.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import partial

from pyreplog.clock import SystemClock
from pyreplog.errors import (
    ClosedError,
    InvalidMetadataError,
    KeyExistsError,
    LeaseLostError,
    NoSuchKeyError,
    OutcomeUnknownError,
    TopicOwnedError,
)
from pyreplog.handles import Handle, make_part_of
from pyreplog.metadata.lease import Lease, LeaseState
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import check_reader, decode_object
from pyreplog.net.sockets import weak_callback
from pyreplog.topic_names import check_name, quote_name

logger = logging.getLogger(__name__)

LEASE_MS = 10_000
VERSION = 1
OWNERS = "/topic-owners"
"""Key below which each topic with an owner has one."""


@dataclass(frozen=True, slots=True)
class TopicOwner:
    """The owner of a topic.

    Attributes:
        address: "host:port"; "": only code in its process can reach it.
        pid: id of its process.
        host: name of its host.
        incarnation: id of its lease, unique.
        since_us: when it claimed the topic.
    """

    address: str
    pid: int
    host: str
    incarnation: str
    since_us: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> TopicOwner:
        """Decode an owner; unknown fields are ignored, because only the owner writes this.

        Raises InvalidMetadataError if malformed, MetadataVersionError if a newer reader is needed.
        """
        try:
            body = decode_object(data)
            check_reader("owner of a topic", body, VERSION)
            owner = cls(*(body[item.name] for item in fields(cls)))
            texts, numbers = (owner.address, owner.host, owner.incarnation), (owner.pid, owner.since_us)
            if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
                raise TypeError("a field has the wrong type")
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidMetadataError(f"owner of a topic: {data[:80]!r}: {error}") from error
        return owner

    def __str__(self) -> str:
        where = f"at {self.address}" if self.address else "without an address"
        return f"process {self.pid} of {self.host}, {where}"


def owner_of(store: MetadataStore, topic: str) -> TopicOwner | None:
    """Return the owner of a topic, or None.

    Raises InvalidMetadataError, and the errors of `owner_key` and of the store.
    """
    stored = store.get(owner_key(topic))
    return None if stored is None else TopicOwner.decode(stored.value)


def owner_key(topic: str) -> str:
    """Return the key of a topic's owner. Raises the errors of `names.check_name`."""
    return f"{OWNERS}/{quote_name(check_name(topic))}"


class _State(enum.Enum):
    TAKING = enum.auto()
    HELD = enum.auto()
    RELEASING = enum.auto()
    UNRELEASED = enum.auto()
    """The key may still exist: the outcome of its deletion is unknown."""
    OVER = enum.auto()


class _LeaseSession:
    """One lease, and the claims under it by topic."""

    def __init__(self) -> None:
        self.incarnation = uuid.uuid4().hex
        self.lease: Lease | None = None
        self.claims: dict[str, Claim] = {}
        self.is_over = False

    def end(self) -> list[Claim]:
        """End all claims; return those that were held."""
        self.is_over = True
        held = [claim for claim in self.claims.values() if claim._state is _State.HELD]
        for claim in self.claims.values():
            claim._state = _State.OVER
        self.claims.clear()
        return held

    @property
    def state(self) -> LeaseState:
        try:
            return LeaseState.LOST if self.is_over or self.lease is None else self.lease.state
        except ClosedError:
            return LeaseState.LOST


class Claim:
    """A topic that this process serves, from `Ownership.claim` until the claim is released or lost.

    Any thread may use it. `with` releases it, too.
    """

    def __init__(
        self, session: _LeaseSession, ownership: Ownership, topic: str, on_lost: Callable[[], object] | None
    ) -> None:
        self.topic = topic
        self._session, self._ownership, self._on_lost = session, ownership, on_lost
        self._state = _State.TAKING
        self._refused: set[threading.Event] = set()  # of waiting callers that were refused during this attempt

    @property
    def is_held(self) -> bool:
        """Whether clients find this process; False also while the store was not reached for too long."""
        return self._state is _State.HELD and self._session.state is LeaseState.HELD

    @property
    def is_lost(self) -> bool:
        """Whether others may claim the topic, after `on_lost` was called, or after a release."""
        return self._state is _State.OVER

    def release(self) -> None:
        """Let others claim the topic; `on_lost` is not called any more. No effect if the claim was released or lost.

        Raises errors of the store: the topic stays claimed until this is called again, or the Ownership is closed.
        """
        self._ownership._release(self)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Ownership(Handle):
    """The topics that this process serves, under one lease.

    The first claim creates the lease, and again after it was lost. Any thread may use it. An embedded cluster of one
    process uses it in the same way. When the lease is lost, `on_lost` of each claim is called once, in the lease's
    thread.

    Args:
        store: shared by all processes that may serve the topics; the caller closes it after this.
        address: "host:port" at which this process serves its topics; "": it does not serve them.
        lease_s: seconds after which the topics of a dead process are free.
    """

    def __init__(self, store: MetadataStore, *, address: str = "", lease_s: float = LEASE_MS / 1000) -> None:
        self._store, self._address, self._lease_s = store, address, lease_s
        self._clock = SystemClock()
        self._beginning = threading.Lock()  # held while a lease is created
        self._lock = threading.Lock()  # guards what follows, and states of claims; never held during calls of the store
        self._current: _LeaseSession | None = None
        # by incarnation; all but the current one have lost their leases
        self._sessions: dict[str, _LeaseSession] = {}
        self._waiting: set[threading.Event] = set()
        super().__init__("ownership of topics")

    def claim(self, topic: str, *, wait: float = 0.0, on_lost: Callable[[], object] | None = None) -> Claim:
        """Claim a topic for this process.

        Raises TopicOwnedError, which names the owner, perhaps this process; LeaseLostError: try again; ClosedError;
        InvalidMetadataError; the errors of `names.check_name`; errors of the store. After an OutcomeUnknownError the
        topic may be claimed: claim it again.

        Args:
            topic: name of the topic.
            wait: seconds to wait for another owner to go.
            on_lost: called once when the claim is lost, perhaps before this returns; should be short.
        """
        self._check_open()
        deadline = self._clock.monotonic_us() + round(min(wait, threading.TIMEOUT_MAX) * 1e6)
        try:
            return self._take(topic, on_lost)
        except TopicOwnedError:
            if wait <= 0:
                raise
        changed = threading.Event()
        self._waiting.add(changed)
        try:
            with self._store.watch(owner_key(topic), lambda _: changed.set()):
                return self._take_when_free(topic, on_lost, changed, deadline)
        finally:
            self._waiting.discard(changed)

    def _take_when_free(
        self, topic: str, on_lost: Callable[[], object] | None, changed: threading.Event, deadline: int
    ) -> Claim:
        while True:
            left = deadline - self._clock.monotonic_us()
            changed.wait(max(left, 0) / 1e6)
            changed.clear()
            self._check_open()
            try:
                return self._take(topic, on_lost, changed)
            except TopicOwnedError:
                if left <= 0:
                    raise

    def owner_of(self, topic: str) -> TopicOwner | None:
        """Return the owner of a topic, see the function of this name."""
        self._check_open()
        return owner_of(self._store, topic)

    # ---- taking and releasing -------------------------------------------------------------------------------

    def _take(self, topic: str, on_lost: Callable[[], object] | None, changed: threading.Event | None = None) -> Claim:
        """Try to claim a topic. changed: set when another attempt may succeed; the store's watch sets it, too."""
        session = self._session()
        try:
            return self._take_under(session, topic, on_lost, changed)
        except LeaseLostError:  # the thread of the lease notices the loss as well
            with self._lock:
                self._current = None if self._current is session else self._current
        return self._take_under(self._session(), topic, on_lost, changed)

    def _take_under(
        self, session: _LeaseSession, topic: str, on_lost: Callable[[], object] | None, changed: threading.Event | None
    ) -> Claim:
        claim = Claim(session, self, topic, on_lost)
        owner = TopicOwner(self._address, os.getpid(), socket.gethostname(), session.incarnation, self._clock.now_us())
        with self._lock:
            former = session.claims.get(topic)
            if former is not None and former._state is not _State.UNRELEASED:
                if changed is not None and former._state is _State.TAKING:
                    former._refused.add(changed)
                raise TopicOwnedError(topic, f"this process ({owner}) serves it already")
            session.claims[topic] = claim  # from now on no other call in this process tries
        try:
            self._create(session, topic, owner)
            with self._lock:
                if session.is_over:
                    raise LeaseLostError(f"topic {topic}: the lease was lost while it was claimed")
                claim._state = _State.HELD
        except BaseException:
            self._forget(claim)
            for refused in claim._refused:  # not all waiting callers: they would go on trying in turns
                refused.set()
            raise
        return claim

    def _create(self, session: _LeaseSession, topic: str, owner: TopicOwner) -> None:
        """Create the key, or accept a key that an earlier call of this process created with an unknown outcome."""
        assert session.lease is not None, "a session begins with its lease"
        while True:
            try:
                session.lease.create(owner_key(topic), owner.encode())
                return
            except (KeyExistsError, OutcomeUnknownError) as error:
                current = owner_of(self._store, topic)
                if current is None and isinstance(error, OutcomeUnknownError):
                    raise
            if current is not None and current.incarnation != session.incarnation:
                raise TopicOwnedError(topic, f"{current} serves it")
            if current is not None:
                return

    def _release(self, claim: Claim) -> None:
        with self._lock:
            if claim._state not in (_State.HELD, _State.UNRELEASED) or not self._is_last(claim):
                return
            claim._state = _State.RELEASING
        try:
            self._delete(claim)
        except BaseException:
            with self._lock:
                if claim._state is _State.RELEASING:
                    claim._state = _State.UNRELEASED
            raise
        self._forget(claim)
        self._wake()

    def _delete(self, claim: Claim) -> None:
        """Delete the key, unless another process created it after the lease was lost.

        The version may match another life of the key; then the topic only seems to have no owner.
        """
        key = owner_key(claim.topic)
        stored = self._store.get(key)
        if stored is not None and TopicOwner.decode(stored.value).incarnation == claim._session.incarnation:
            with suppress(NoSuchKeyError):
                self._store.delete(key, stored.version)

    def _is_last(self, claim: Claim) -> bool:
        """Return whether the topic was not claimed again in this process."""
        return claim._session.claims.get(claim.topic) is claim

    def _forget(self, claim: Claim) -> None:
        with self._lock:
            claim._state = _State.OVER
            if self._is_last(claim):
                del claim._session.claims[claim.topic]

    def _wake(self) -> None:
        """Have waiting callers try again."""
        for changed in list(self._waiting):
            changed.set()

    # ---- leases ---------------------------------------------------------------------------------------------

    def _session(self) -> _LeaseSession:
        """Return the current session. Raises ClosedError, and errors of the store."""
        with self._beginning:
            self._check_open()
            current = self._current
            if current is not None and current.state is not LeaseState.LOST:
                return current
            session = _LeaseSession()
            with self._lock:
                self._sessions[session.incarnation] = session
            try:
                session.lease = self._store.lease(
                    self._lease_s, partial(weak_callback(self._lost), session.incarnation)
                )
                make_part_of(session.lease, self)  # not only of the store, which bookies of this process use, too
            except BaseException:
                with self._lock:
                    self._sessions.pop(session.incarnation, None)
                raise
            with self._lock:
                if not session.is_over:
                    self._current = session
                    return session
        session.lease.close()
        raise LeaseLostError("the lease for topics was lost as soon as it was made")

    def _lost(self, incarnation: str) -> None:
        """End the claims of a lost lease; called in the lease's thread."""
        with self._lock:
            session = self._sessions.pop(incarnation, None)
            claims = [] if session is None else session.end()
        if claims:
            logger.warning("the lease of %d topics that this process serves was lost", len(claims))
        for claim in claims:
            try:
                if claim._on_lost is not None:
                    claim._on_lost()
            except Exception:
                logger.exception("topic %s: the callback for a lost claim failed", claim.topic)
        if session is not None and session.lease is not None:
            session.lease.close()

    def _do_close(self) -> None:
        """End the leases, and with them the keys; `on_lost` is not called."""
        self._wake()
        with self._beginning, self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
            for session in sessions:
                session.end()
        for session in sessions:
            if session.lease is not None:
                session.lease.close()
