"""A bookie that runs says so in metadata: a key that vanishes with it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

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
    """What clients have to know of a bookie. address: "host:port". free_bytes: about; for placement."""

    address: str
    rack: str = ""
    read_only: bool = False
    free_bytes: int = 0

    def encode(self) -> bytes:
        """Free space is rounded down to four significant bits, so that it changes seldom."""
        spare = max(self.free_bytes.bit_length() - 4, 0)
        return json.dumps({**asdict(self), "free_bytes": self.free_bytes >> spare << spare}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Availability:
        """InvalidMetadataError; MetadataVersionError when it needs a newer reader. Unknown fields are ignored: nobody
        but the bookie writes this."""
        try:
            body = decode_object(data)
            check_reader("availability of a bookie", body, VERSION)
            address, free_bytes = field(body, "address", str), field(body, "free_bytes", int)
            if not address.isprintable() or not 0 <= free_bytes < 1 << 63:
                raise ValueError("expected an address, and how much is free")
            return cls(address, field(body, "rack", str), field(body, "read_only", bool), free_bytes)
        except ValueError as error:
            raise InvalidMetadataError(f"availability of a bookie: {data[:80]!r}: {error}") from error


def availability_key(bookie: str) -> str:
    """bookie: as ledgers name it."""
    return f"{AVAILABLE}/{bookie}"


class Registration(Handle):
    """Keeps the key of one bookie as it should be, from `refresh` to `close`.

    describe: what to say now; called with the lock held. ttl: seconds for which a dead bookie still counts as
    available. Any thread may call. When the lease is lost, another one is made at once, or else by the next `refresh`.
    """

    def __init__(self, store: MetadataStore, bookie: str, describe: Callable[[], Availability], ttl: float) -> None:
        self._store, self._key, self._describe, self._ttl = store, availability_key(bookie), describe, ttl
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._said: tuple[bytes, int] | None = None  # value, version
        super().__init__(f"registration of bookie {bookie}")

    def refresh(self) -> None:
        """Say what is to be said, if it was not, or is not any more. Errors: those of the store; nothing is lost."""
        with self._lock:
            self._check_open()
            lost = self._lease
            if lost is not None and lost.state is not LeaseState.LOST:
                lost = None
            if lost is not None or self._lease is None:
                self._said = None
                self._lease = self._store.lease(self._ttl, self._lost)
            self._say(self._lease)
        if lost is not None:
            lost.close()  # not under the lock: it waits for its thread, which may be in `_lost`

    def _say(self, lease: Lease) -> None:
        value = self._describe().encode()
        if self._said is None:
            self._said = value, self._create(lease, value)
        elif self._said[0] != value:
            self._said = value, self._replace(lease, value, self._said[1])

    def _create(self, lease: Lease, value: bytes) -> int:
        """A key that is there is of an earlier life of this bookie: nobody else has its incarnation."""
        try:
            return lease.create(self._key, value)
        except KeyExistsError:
            found = self._store.get(self._key)
            if found is not None:
                self._store.delete(self._key, found.version)
            return lease.create(self._key, value)

    def _replace(self, lease: Lease, value: bytes, version: int) -> int:
        try:
            return self._store.put(self._key, value, version)
        except (VersionConflictError, NoSuchKeyError):  # an outcome that was unknown, or somebody meddles
            return self._create(lease, value)

    def _lost(self) -> None:
        """In the lease's thread."""
        try:
            self.refresh()
        except ReplogError as error:
            logger.warning("%s: not registered again yet: %s", self._key, error)

    def _let_go(self) -> None:
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()
