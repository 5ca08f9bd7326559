"""The registration of a running bookie: a key in the metadata store that is deleted when the bookie dies."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

from pyreplog.bookie.scrub_report import LastScrub, decode_last
from pyreplog.errors import InvalidMetadataError, KeyExistsError, NoSuchKeyError, ReplogError, VersionConflictError
from pyreplog.handles import Handle
from pyreplog.metadata.lease import Lease, LeaseState
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import check_reader, decode_object, field

logger = logging.getLogger(__name__)

AVAILABLE = "/available"
VERSION = 1


@dataclass(frozen=True)
class Availability:
    """The registration of a bookie, for its clients.

    Attributes:
        address: "host:port".
        rack: rack of the bookie, for placement; "": none.
        read_only: whether it refuses new entries.
        free_bytes: free space, rounded; for placement.
        verified_since_us: every segment was verified on the disk, or began, after this time, microseconds since
            1970-01-01 UTC; 0: unknown, or there is no segment.
        scrub: its last complete scrub; None: there was none, or the bookie is of an older version.
    """

    address: str
    rack: str = ""
    read_only: bool = False
    free_bytes: int = 0
    scrub: LastScrub | None = None
    verified_since_us: int = 0

    def encode(self) -> bytes:
        """Encode as JSON. Free space is rounded down to four significant bits, so that the value changes seldom."""
        spare = max(self.free_bytes.bit_length() - 4, 0)
        body = {**asdict(self), "free_bytes": self.free_bytes >> spare << spare}
        for name in ("scrub", "verified_since_us"):  # absent like in the values of older builds
            if not body[name]:
                del body[name]
        return json.dumps(body).encode()

    @classmethod
    def decode(cls, data: bytes) -> Availability:
        """Decode a registration, and skip fields that this build does not know: only the bookie writes the value.

        Raises InvalidMetadataError when it is malformed, MetadataVersionError when it needs a newer reader.
        """
        try:
            body = decode_object(data)
            check_reader("availability of a bookie", body, VERSION)
            address, free_bytes = field(body, "address", str), field(body, "free_bytes", int)
            if not address.isprintable() or not 0 <= free_bytes < 1 << 63:
                raise ValueError("expected an address, and how much is free")
            since_us = body.get("verified_since_us", 0)  # earlier builds do not write the field
            if type(since_us) is not int or not 0 <= since_us < 1 << 62:
                raise ValueError(f"verified_since_us: expected a time, found {str(since_us)[:80]!r}")
            scrub = None if body.get("scrub") is None else decode_last(body["scrub"])
            rack, read_only = field(body, "rack", str), field(body, "read_only", bool)
            return cls(address, rack, read_only, free_bytes, verified_since_us=since_us, scrub=scrub)
        except ValueError as error:
            raise InvalidMetadataError(f"availability of a bookie: {data[:80]!r}: {error}") from error


def availability_key(bookie: str) -> str:
    """Return the key of the registration of a bookie, given by its id."""
    return f"{AVAILABLE}/{bookie}"


class Registration(Handle):
    """Keeps the registration of one bookie up to date, from the first `refresh` to `close`. Any thread.

    If the lease is lost, a new one is made at once, or by the next `refresh`.

    Args:
        store: metadata store.
        bookie: id of the bookie.
        describe: returns the current registration; called with the lock held.
        ttl: seconds for which a dead bookie counts as available.
    """

    def __init__(self, store: MetadataStore, bookie: str, describe: Callable[[], Availability], ttl: float) -> None:
        self._store, self._key, self._describe, self._ttl = store, availability_key(bookie), describe, ttl
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._registered: tuple[bytes, int] | None = None  # value, version
        super().__init__(f"registration of bookie {bookie}")

    def refresh(self) -> None:
        """Store the registration if it is missing or has changed.

        Raises errors of the store; then call it again later.
        """
        with self._lock:
            self._check_open()
            lost_lease = self._lease
            if lost_lease is not None and lost_lease.state is not LeaseState.LOST:
                lost_lease = None
            if lost_lease is not None or self._lease is None:
                self._registered = None
                self._lease = self._store.lease(self._ttl, self._lost)
            self._say(self._lease)
        if lost_lease is not None:
            lost_lease.close()  # not under the lock: it waits for the thread of the lease, which may be in `_lost`

    def _say(self, lease: Lease) -> None:
        value = self._describe().encode()
        if self._registered is None:
            self._registered = value, self._create(lease, value)
        elif self._registered[0] != value:
            self._registered = value, self._replace(lease, value, self._registered[1])

    def _create(self, lease: Lease, value: bytes) -> int:
        """Create the key.

        A key that exists was created by an earlier process of this bookie, which has the same incarnation.
        """
        try:
            return lease.create(self._key, value)
        except KeyExistsError:
            stored = self._store.get(self._key)
            if stored is not None:
                self._store.delete(self._key, stored.version)
            return lease.create(self._key, value)

    def _replace(self, lease: Lease, value: bytes, version: int) -> int:
        try:
            return self._store.put(self._key, value, version)
        except (VersionConflictError, NoSuchKeyError):  # an unknown outcome, or another client changed the key
            return self._create(lease, value)

    def _lost(self) -> None:
        """Register again. Runs on the thread of the lease."""
        try:
            self.refresh()
        except ReplogError as error:
            logger.warning("%s: not registered again yet: %s", self._key, error)

    def _do_close(self) -> None:
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()
