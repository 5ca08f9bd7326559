"""The registration of a broker in the metadata store, and the identity file of its directory.

A broker has two keys. The lasting one has its incarnation, which rises with each start that may have lost records:
after a power failure, unless the broker was stopped cleanly before. A kill of the process loses no records, since the
pages of its logs stay in the system's cache. The other key belongs to a lease: it exists while the broker is alive, and
has its address. A broker without it is fenced. FORMAT.md, "Partitions in the metadata store".
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pyreplog.checksummed_json import dump_checksummed, load_checksummed
from pyreplog.errors import (
    ClosedError,
    CorruptionError,
    ForeignDirectoryError,
    InvalidArgumentError,
    KeyExistsError,
    LeaseLostError,
    MissingIdentityError,
    NoSuchKeyError,
    OutcomeUnknownError,
    ReplogError,
    StaleDirectoryError,
    UnknownBrokerError,
    VersionConflictError,
    WrongIncarnationError,
)
from pyreplog.handles import Handle
from pyreplog.log.files import Files
from pyreplog.log.unclean_shutdown_marker import UncleanShutdownMarker
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.lease import Lease, LeaseState
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, field, number
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Member, is_broker_name
from pyreplog.regular_files import read_regular

logger = logging.getLogger(__name__)

BROKERS = "/partitions/brokers"
AVAILABLE = "/partitions/available"
CONTROLLER = "/partitions/controller"
"""The key of the controller, the broker that carries out elections; it belongs to a lease. It is advisory: each change
is a compare-and-set."""
IDENTITY = "broker"
_FORMAT, _VERSION = "pyreplog broker", 1
_FILE_MAX = 1 << 16
_ATTEMPTS_MAX = 64
_ID = re.compile(r"[0-9a-f]{32}")


def broker_key(broker: str) -> str:
    """Return the lasting key of a broker."""
    return f"{BROKERS}/{broker}"


def available_key(broker: str) -> str:
    """Return the key that exists while a broker is alive."""
    return f"{AVAILABLE}/{broker}"


@dataclass(frozen=True, kw_only=True)
class BrokerMetadata(MetadataValue):
    """The value of a broker's lasting key.

    Attributes:
        directory: random id of the directory with which the broker was created, 32 hexadecimal digits.
        incarnation: rises with each start that may have lost records; the first one is 1.
        rack: rack for the placement of replicas; "": none.
    """

    KIND: ClassVar[str] = "broker"

    directory: str
    incarnation: int
    rack: str = ""

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        directory, incarnation = field(fields, "directory", str), number(fields, "incarnation")
        if not _ID.fullmatch(directory) or incarnation < 1:
            raise ValueError(f"expected a directory and an incarnation, found {directory!r}, {incarnation}")
        return {"directory": directory, "incarnation": incarnation, "rack": field(fields, "rack", str)}


@dataclass(frozen=True, kw_only=True)
class BrokerAvailability(MetadataValue):
    """The value of the key that exists while a broker is alive.

    Attributes:
        incarnation: incarnation of the broker.
        address: "host:port" of its service for other brokers; "": it can be reached within its process only.
        is_stopping: whether it hands its leaderships over.
        kafka_address: "host:port" of its Kafka listener; "": it has none.
    """

    KIND: ClassVar[str] = "availability of a broker"

    incarnation: int
    address: str = ""
    is_stopping: bool = False
    kafka_address: str = ""

    def _encode_fields(self) -> dict[str, Any]:
        fields = super()._encode_fields()
        return fields if self.kafka_address else {name: fields[name] for name in fields if name != "kafka_address"}

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        fields = {"kafka_address": "", **fields}
        addresses = {name: field(fields, name, str) for name in ("address", "kafka_address")}
        for name, address in addresses.items():
            if not address.isprintable() or len(address) > 300:
                raise ValueError(f"{name}: expected host:port, found {address[:80]!r}")
        return {
            "incarnation": number(fields, "incarnation"),
            "is_stopping": field(fields, "is_stopping", bool),
            **addresses,
        }


def registrations_of(
    brokers: Mapping[str, BrokerMetadata], available: Mapping[str, BrokerAvailability]
) -> dict[str, BrokerRegistration]:
    """Return the registrations of brokers for the state machines.

    Args:
        brokers: broker -> its lasting key.
        available: broker -> its key of a lease, for live brokers.
    """
    registrations = {}
    for broker, metadata in brokers.items():
        living = available.get(broker)
        is_fenced = living is None or living.incarnation != metadata.incarnation
        is_stopping = living is not None and living.is_stopping
        registrations[broker] = BrokerRegistration(metadata.incarnation, is_fenced, is_stopping)
    return registrations


# ---- the directory --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BrokerIdentity:
    """The identity of a broker's directory: the content of its file `broker`.

    Attributes:
        name: name of the broker.
        directory: 32 hexadecimal digits, random.
        cluster: 32 hexadecimal digits: id of the cluster.
        incarnation: incarnation of the last start; it is written here before it is stored in the metadata store.
        is_stored: whether the metadata store has it.
    """

    name: str
    directory: str
    cluster: str
    incarnation: int = 0
    is_stored: bool = False

    def encode(self) -> bytes:
        """Return the content of the file."""
        return dump_checksummed(_FORMAT, _VERSION, vars(self))

    @classmethod
    def decode(cls, path: Path, data: bytes) -> BrokerIdentity:
        """Decode the content of the file. Raises CorruptionError and FormatVersionError."""
        try:
            fields = load_checksummed(data, _FORMAT, _VERSION, path)
            name, directory, cluster = (field(fields, key, str) for key in ("name", "directory", "cluster"))
            if not is_broker_name(name) or not _ID.fullmatch(directory) or not _ID.fullmatch(cluster):
                raise ValueError(f"{name!r}, {directory!r}, {cluster!r}")
            return cls(name, directory, cluster, number(fields, "incarnation"), field(fields, "is_stored", bool))
        except ValueError as error:
            raise CorruptionError(path, 0, "the identity of a broker", str(error)) from error


def find_identity(directory: Path) -> BrokerIdentity | None:
    """Return the identity of a directory; None: it has no identity file. Raises CorruptionError and
    FormatVersionError."""
    path = directory / IDENTITY
    try:
        return BrokerIdentity.decode(path, read_regular(path, _FILE_MAX))
    except FileNotFoundError:
        return None


def register_broker(
    directory: Path, name: str, store: MetadataStore, files: Files, *, rack: str = "", replaces: bool = False
) -> Member:
    """Register a starting broker, in a new incarnation if it may have lost records; mark its start as unclean.

    The directory gets the new incarnation before the metadata store. A crash in between counts as another unclean
    start. The caller holds the lock of the directory, and removes the marker when all records are synced.

    Args:
        directory: directory of the broker; empty, or the one with which it was created.
        name: name of the broker.
        store: metadata store.
        files: access to the disk.
        rack: rack for the placement of replicas; "": none.
        replaces: whether an empty directory may replace the one with which the broker was created, whose records are
            lost then.

    Returns:
        The broker with its incarnation.

    Raises:
        InvalidArgumentError: the name is invalid.
        MissingIdentityError: the directory is not empty, and has no identity file.
        WrongIncarnationError: the directory belongs to another broker, or was replaced by another directory.
        StaleDirectoryError: the directory is an older copy.
        ForeignDirectoryError: the directory belongs to another cluster.
        UnknownBrokerError: the metadata store does not know this broker.
        CorruptionError, FormatVersionError: the identity file cannot be read.
        ReplogError: errors of the store.
    """
    if not is_broker_name(name):
        raise InvalidArgumentError(f"name: expected 1 to 100 letters, digits, '.', '_' and '-', found {name!r}")
    cluster = cluster_id(store).hex()
    identity = find_identity(directory)
    if identity is None:
        _check_empty(directory)
        identity = BrokerIdentity(name, uuid.uuid4().hex, cluster)
    elif identity.name != name:
        raise WrongIncarnationError(f"{directory} is of broker {identity.name}, not of {name}")
    elif identity.cluster != cluster:
        raise ForeignDirectoryError(
            f"{directory}: broker {name} is of cluster {identity.cluster}, and the {store.what} holds cluster {cluster}"
        )
    marker = UncleanShutdownMarker(directory, files)
    is_lost = not identity.is_stored or marker.last_shutdown_was_unclean()
    key = broker_key(name)
    for _ in range(_ATTEMPTS_MAX):
        stored = store.get(key)
        known = None if stored is None else BrokerMetadata.decode(stored.value)
        _check_known(directory, identity, known, store.what, replaces=replaces)
        newest = max(identity.incarnation, 0 if known is None else known.incarnation)
        identity = replace(identity, incarnation=newest + is_lost, is_stored=not is_lost)
        if is_lost:
            files.replace_small(directory / IDENTITY, identity.encode())
        marker.put()
        fields = BrokerMetadata(directory=identity.directory, incarnation=identity.incarnation, rack=rack)
        value = (fields if known is None else replace(fields, kept=known.kept)).encode()
        try:
            if stored is None:
                store.create(key, value)
            elif stored.value != value:
                store.put(key, value, stored.version)
        except (KeyExistsError, VersionConflictError, NoSuchKeyError, OutcomeUnknownError):
            continue
        if is_lost:
            files.replace_small(directory / IDENTITY, replace(identity, is_stored=True).encode())
        return Member(name, identity.incarnation)
    raise VersionConflictError(f"{key} was changed by others {_ATTEMPTS_MAX} times in a row; try again later")


def _check_empty(directory: Path) -> None:
    """Check that the directory has no folders."""
    content = sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    if content:
        raise MissingIdentityError(
            f"{directory} has no file {IDENTITY!r} that says of which broker it is, and holds {', '.join(content[:3])}"
        )


def _check_known(
    directory: Path, identity: BrokerIdentity, known: BrokerMetadata | None, store: str, *, replaces: bool
) -> None:
    """Check the identity of a directory against the broker's key. Raises the errors of `register_broker`."""
    if known is None or known.incarnation < identity.incarnation:
        if identity.is_stored:
            knows = "it" if known is None else f"incarnation {identity.incarnation} of it"
            raise UnknownBrokerError(
                f"{directory} is of broker {identity.name}, and the {store} does not know {knows}: it is another "
                "store, an older copy, or has lost its content. Nothing was changed"
            )
    elif known.directory == identity.directory and known.incarnation > identity.incarnation:
        raise StaleDirectoryError(
            f"{directory} is an older copy: broker {identity.name} was in incarnation {identity.incarnation} there, "
            f"and is in {known.incarnation} by now"
        )
    if known is not None and known.directory != identity.directory and (identity.is_stored or not replaces):
        raise WrongIncarnationError(
            f"broker {identity.name} was made with another directory than {directory}. If that one is lost, start "
            "the broker with --replace and an empty directory: its replicas are copied from others"
        )


# ---- the lease -------------------------------------------------------------------------------------------------


class BrokerLease(Handle):
    """Keeps the availability of a broker in the metadata store, from the first `refresh` to `close`. Any thread may use
    it.

    If the lease is lost, a new one is taken at once, or by the next `refresh`.

    Args:
        store: metadata store. Close this object first.
        member: the broker with its incarnation.
        ttl: seconds for which a dead broker counts as alive.
    """

    def __init__(self, store: MetadataStore, member: Member, ttl: float) -> None:
        self._store, self._member, self._ttl = store, member, ttl
        self._lock = threading.Lock()  # held during a refresh
        self._lease: Lease | None = None
        self._stored: tuple[bytes, int] | None = None  # value and version of the key, in this lease
        self._availability = BrokerAvailability(incarnation=member.incarnation)
        super().__init__(f"registration of broker {member}")

    def refresh(
        self, *, address: str | None = None, is_stopping: bool | None = None, kafka_address: str | None = None
    ) -> None:  # fmt: skip
        """Store the key if it is missing, or its value has changed.

        Args:
            address: the new address; None: unchanged.
            is_stopping: whether the broker is stopping; None: unchanged.
            kafka_address: the new address of the Kafka listener; None: unchanged.

        Raises:
            ReplogError: errors of the store; call it again then.
        """
        lost: list[Lease] = []
        try:
            with self._lock:
                self._check_open()
                if address is not None:
                    self._availability = replace(self._availability, address=address)
                if is_stopping is not None:
                    self._availability = replace(self._availability, is_stopping=is_stopping)
                if kafka_address is not None:
                    self._availability = replace(self._availability, kafka_address=kafka_address)
                for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
                    try:
                        self._store_value(self._usable_lease(lost))
                        return
                    except LeaseLostError:  # possible on a slow machine with a short lease
                        if not attempts_left:
                            raise
                        if self._lease is not None:
                            lost.append(self._lease)
                        self._lease = None
        finally:
            for lease in lost:
                lease.close()  # without the lock: `close` waits for the lease's thread, which may be in `_on_loss`

    @property
    def is_held(self) -> bool:
        """Whether the lease is held, so that the key exists."""
        lease = self._lease
        try:
            return lease is not None and self._stored is not None and lease.state is LeaseState.HELD
        except ClosedError:  # another thread has just found that it is lost
            return False

    def take_controller(self) -> bool:
        """Become the controller if there is none; return whether this broker is the controller. Raises errors of the
        store."""
        with self._lock:
            self._check_open()
            lease, value = self._lease, str(self._member).encode()
            if lease is None or lease.state is not LeaseState.HELD:
                return False
            stored = self._store.get(CONTROLLER)
            if stored is not None:
                return stored.value == value
            try:
                lease.create(CONTROLLER, value)
            except (KeyExistsError, LeaseLostError):
                return False
            return True

    def _usable_lease(self, lost: list[Lease]) -> Lease:
        """Return the lease, or a new one if it is lost; the lost one is appended to `lost`."""
        lease = self._lease
        if lease is not None and lease.state is LeaseState.LOST:
            lost.append(lease)
            lease = self._lease = None  # also if there is no new one: the caller closes the lost one
        if lease is None:
            self._stored = None
            lease = self._lease = self._store.lease(self._ttl, self._on_loss)
        return lease

    def _store_value(self, lease: Lease) -> None:
        value = self._availability.encode()
        if self._stored is None:
            self._stored = value, self._create(lease, value)
        elif self._stored[0] != value:
            try:
                self._stored = value, self._store.put(available_key(self._member.broker), value, self._stored[1])
            except (VersionConflictError, NoSuchKeyError):  # by another client, or an earlier put
                self._stored = value, self._create(lease, value)

    def _create(self, lease: Lease, value: bytes) -> int:
        """Create the key. An existing key belongs to an earlier process, since only one can hold the lock of the
        directory."""
        key = available_key(self._member.broker)
        try:
            return lease.create(key, value)
        except KeyExistsError:
            stored = self._store.get(key)
            if stored is not None:
                self._store.delete(key, stored.version)
            return lease.create(key, value)

    def _on_loss(self) -> None:
        """Register again. Runs in the thread of the lease."""
        try:
            self.refresh()
        except ReplogError as error:
            logger.warning("%s: not registered again yet: %s", self._label, error)

    def _do_close(self) -> None:
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()
