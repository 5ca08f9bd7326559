"""Who serves which topic: keys under a lease, one lease per process. They say whom to ask, and keep two owners from
taking a topic from each other by turns; they give no safety. That is the topic's epoch and the fencing of its ledgers:
who still believes in a lost claim can do no harm."""

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
from pyreplog.topic.model.names import check_name, quote_name

logger = logging.getLogger(__name__)

LEASE_S = 10.0
VERSION = 1
_ROOT = "/topic-owners"


@dataclass(frozen=True, slots=True)
class TopicOwner:
    """Who serves a topic. address: "host:port", "" when it is reached from within its process only. incarnation: of its
    lease, no two have the same. since_us: when it claimed the topic."""

    address: str
    pid: int
    host: str
    incarnation: str
    since_us: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> TopicOwner:
        """InvalidMetadataError; MetadataVersionError when it needs a newer reader. Unknown fields are ignored: nobody
        but the owner writes this."""
        try:
            body = decode_object(data)
            check_reader("owner of a topic", body, VERSION)
            found = cls(*(body[item.name] for item in fields(cls)))
            texts, numbers = (found.address, found.host, found.incarnation), (found.pid, found.since_us)
            if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
                raise TypeError("a field is of another type")
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidMetadataError(f"owner of a topic: {data[:80]!r}: {error}") from error
        return found

    def __str__(self) -> str:
        where = f"at {self.address}" if self.address else "without an address"
        return f"process {self.pid} of {self.host}, {where}"


def owner_of(store: MetadataStore, topic: str) -> TopicOwner | None:
    """Who serves a topic now, or None. Errors: InvalidMetadataError; those of `owner_key` and of the
    store."""
    found = store.get(owner_key(topic))
    return None if found is None else TopicOwner.decode(found.value)


def owner_key(topic: str) -> str:
    """The key that says who serves a topic. Errors: as `names.check_name`."""
    return f"{_ROOT}/{quote_name(check_name(topic))}"


class _State(enum.Enum):
    TAKING = enum.auto()
    HELD = enum.auto()
    RELEASING = enum.auto()
    UNRELEASED = enum.auto()
    """Its key may be there yet: the store did not say."""
    OVER = enum.auto()


class _LeaseSession:
    """One lease, and what is claimed under it, by topic."""

    def __init__(self) -> None:
        self.incarnation = uuid.uuid4().hex
        self.lease: Lease | None = None
        self.claims: dict[str, Claim] = {}
        self.is_over = False

    def end(self) -> list[Claim]:
        """Nothing is claimed any more; returns what was held."""
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
    """A topic that this process serves, from `Ownership.claim` until it is released or lost. Any thread may call.
    Released by `with`, too."""

    def __init__(
        self, session: _LeaseSession, ownership: Ownership, topic: str, on_lost: Callable[[], object] | None
    ) -> None:
        self.topic = topic
        self._session, self._ownership, self._on_lost = session, ownership, on_lost
        self._state = _State.TAKING
        self._refused: set[threading.Event] = set()  # of those who wait, and were refused while this one tried

    @property
    def is_held(self) -> bool:
        """Whether others find this process; False also while the store has not been heard of for too long."""
        return self._state is _State.HELD and self._session.state is LeaseState.HELD

    @property
    def is_lost(self) -> bool:
        """Whether others may claim the topic, as `on_lost` was told; also when it was released."""
        return self._state is _State.OVER

    def release(self) -> None:
        """Let others claim it; `on_lost` is not called any more. Does nothing when it is released or lost.

        Errors: those of the store: the topic stays claimed until this is called again, or the Ownership is closed.
        """
        self._ownership._release(self)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Ownership(Handle):
    """The topics that this process serves. One lease for all of them: made by the first claim, and anew by the first
    one after it was lost. Any thread may call anything; an embedded cluster of one process uses it just the same.

    store: shared by all who may serve the topics; closed by the caller behind this. address: "host:port" at which this
    process answers for its topics, "" when it does not. lease_s: after about that long the topics of a process that
    died are free. When the lease is lost, every claim's `on_lost` is called once, from the lease's thread.
    """

    def __init__(self, store: MetadataStore, *, address: str = "", lease_s: float = LEASE_S) -> None:
        self._store, self._address, self._lease_s = store, address, lease_s
        self._clock = SystemClock()
        self._beginning = threading.Lock()  # while a lease is made
        self._lock = threading.Lock()  # of what follows, and of claims' states; never while the store is asked
        self._current: _LeaseSession | None = None
        # by incarnation; of others than the current one the lease is lost
        self._sessions: dict[str, _LeaseSession] = {}
        self._waiting: set[threading.Event] = set()
        super().__init__("ownership of topics")

    def claim(self, topic: str, *, wait: float = 0.0, on_lost: Callable[[], object] | None = None) -> Claim:
        """Serve a topic.

        topic: its name. wait: seconds to wait for another owner to go. on_lost: called once when the claim is lost,
        perhaps before this returns; it should be short.
        Errors: TopicOwnedError names the owner, which may be this process; LeaseLostError, try again; ClosedError;
        InvalidMetadataError; those of `names.check_name`; those of the store, of which OutcomeUnknownError may leave
        the topic claimed: claim again.
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
        """As the function of that name."""
        self._check_open()
        return owner_of(self._store, topic)

    # ---- taking and releasing -------------------------------------------------------------------------------

    def _take(self, topic: str, on_lost: Callable[[], object] | None, changed: threading.Event | None = None) -> Claim:
        """changed: set when it is worth while to try again; the store's watch sets it, too."""
        session = self._session()
        try:
            return self._take_under(session, topic, on_lost, changed)
        except LeaseLostError:  # while nobody looked: the lease's thread will hear of it
            with self._lock:
                self._current = None if self._current is session else self._current
        return self._take_under(self._session(), topic, on_lost, changed)

    def _take_under(
        self, session: _LeaseSession, topic: str, on_lost: Callable[[], object] | None, changed: threading.Event | None
    ) -> Claim:
        claim = Claim(session, self, topic, on_lost)
        owner = TopicOwner(self._address, os.getpid(), socket.gethostname(), session.incarnation, self._clock.now_us())
        with self._lock:
            other = session.claims.get(topic)
            if other is not None and other._state is not _State.UNRELEASED:
                if changed is not None and other._state is _State.TAKING:
                    other._refused.add(changed)
                raise TopicOwnedError(topic, f"this process ({owner}) serves it already")
            session.claims[topic] = claim  # from now on nobody else of this process tries
        try:
            self._create(session, topic, owner)
            with self._lock:
                if session.is_over:
                    raise LeaseLostError(f"topic {topic}: the lease was lost while it was claimed")
                claim._state = _State.HELD
        except BaseException:
            self._forget(claim)
            for refused in claim._refused:  # not all who wait: they, and this one, would try again and again
                refused.set()
            raise
        return claim

    def _create(self, session: _LeaseSession, topic: str, owner: TopicOwner) -> None:
        """Make the key, or find it made by a call of this process whose outcome was unknown."""
        assert session.lease is not None, "a session begins with its lease"
        while True:
            try:
                session.lease.create(owner_key(topic), owner.encode())
                return
            except (KeyExistsError, OutcomeUnknownError) as error:
                found = owner_of(self._store, topic)
                if found is None and isinstance(error, OutcomeUnknownError):
                    raise
            if found is not None and found.incarnation != session.incarnation:
                raise TopicOwnedError(topic, f"{found} serves it")
            if found is not None:
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
        """Not what others made there, if the lease was lost; the same version may be another life of the key, but then
        they only seem to be gone."""
        key = owner_key(claim.topic)
        found = self._store.get(key)
        if found is not None and TopicOwner.decode(found.value).incarnation == claim._session.incarnation:
            with suppress(NoSuchKeyError):
                self._store.delete(key, found.version)

    def _is_last(self, claim: Claim) -> bool:
        """Whether its topic was not claimed anew in this process."""
        return claim._session.claims.get(claim.topic) is claim

    def _forget(self, claim: Claim) -> None:
        with self._lock:
            claim._state = _State.OVER
            if self._is_last(claim):
                del claim._session.claims[claim.topic]

    def _wake(self) -> None:
        """Those who wait for a topic look again."""
        for changed in list(self._waiting):
            changed.set()

    # ---- leases ---------------------------------------------------------------------------------------------

    def _session(self) -> _LeaseSession:
        """The current one. Errors: ClosedError; those of the store."""
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
                make_part_of(session.lease, self)  # not of the store alone, which bookies of this process have, too
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
        """In the lease's thread."""
        with self._lock:
            session = self._sessions.pop(incarnation, None)
            claims = [] if session is None else session.end()
        if claims:
            logger.warning("the lease is lost under which %d topics were served", len(claims))
        for claim in claims:
            try:
                if claim._on_lost is not None:
                    claim._on_lost()
            except Exception:
                logger.exception("topic %s: the callback for a lost claim failed", claim.topic)
        if session is not None and session.lease is not None:
            session.lease.close()

    def _let_go(self) -> None:
        """The keys go with the leases; nobody is told of a loss."""
        self._wake()
        with self._beginning, self._lock:
            tenures = list(self._sessions.values())
            self._sessions.clear()
            for session in tenures:
                session.end()
        for session in tenures:
            if session.lease is not None:
                session.lease.close()
