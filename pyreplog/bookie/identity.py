"""The identity of a bookie: a random incarnation, kept with its data and in the metadata, and compared at each start.

A bookie with an emptied or exchanged directory would answer "not here" for entries that it should have (BookKeeper:
cookies; #4812: bookies were replaced by empty ones at the same address). So ledgers name bookies "name@incarnation",
and a directory with another identity is refused. A bookie is made in these steps:

1. Write the identity file, not registered. After a crash the next start continues here, with this incarnation.
2. Make the log (done by the caller).
3. Create /bookies/<name> in the metadata. After a crash the next start finds the key with its own incarnation.
4. Write the identity file, registered. From now on the results of 1 to 3 must exist and agree.

The log may be exchanged or restored from an older copy, alone or with its directory. So the identity also holds the
uuid of the log, its end when it was opened or closed last, and the number of openings, which is in the metadata as
well.

The metadata may be restored from an older copy. Then newer ledgers would count as deleted, and their numbers would be
used again. So the identity keeps two numbers from the metadata, the number of openings and that of the next ledger.
Metadata with lower numbers are refused.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyreplog._native.system.checksum import crc32c
from pyreplog.bookie.bookie_state import BookiePhase, BookieState, bookie_state_key
from pyreplog.errors import (
    CorruptionError,
    EmptyDirectoryError,
    ForeignDirectoryError,
    FormatVersionError,
    InvalidArgumentError,
    InvalidMetadataError,
    LockedError,
    MissingIdentityError,
    RetiredBookieError,
    StaleDirectoryError,
    StaleMetadataError,
    UnknownBookieError,
    WrongIncarnationError,
    WrongLogError,
)
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.lock import WriterLock
from pyreplog.metadata.layout import CLUSTER, cluster_id
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.metadata.values import check_reader, decode_object, field
from pyreplog.regular_files import read_regular

IDENTITY = "identity"
LOG = "log"
"""Names in a bookie's directory: the identity file, and the folder of the log."""

BOOKIES = "/bookies"

METADATA_VERSION = 1
"""Version of the values of the keys below BOOKIES."""

FILE_MAX = 4096  # bytes
MAGIC = b"RPBOOK01"
VERSION = 3
_HEAD = struct.Struct("<8sIHH16s16sHH16sqqq")
_HEAD_2 = struct.Struct("<8sIHH16s16sHH16sqq")
_CONFIRMED, _UNCONFIRMED = 1, 2  # registered; the metadata have the number of openings, or may have one less
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


@dataclass(frozen=True)
class BookieIdentity:
    """The identity of one bookie.

    Attributes:
        name: name of the bookie.
        incarnation: 16 random bytes.
        cluster: id of its cluster, 16 random bytes.
        registered: whether the metadata know the bookie.
        log: uuid of its log.
        end: a position up to which the log was durable.
        opens: number of openings.
        confirmed: whether the metadata have that number.
        next_ledger: number of the next ledger, as the metadata had it last.
    """

    name: str
    incarnation: bytes
    cluster: bytes
    registered: bool = False
    log: bytes = bytes(16)
    end: int = 0
    opens: int = 0
    confirmed: bool = False
    next_ledger: int = 0

    @property
    def id(self) -> str:
        """The id by which ledgers name the bookie: "name@incarnation"."""
        return f"{self.name}@{self.incarnation.hex()}"

    @property
    def key(self) -> str:
        """The key of the bookie in the metadata."""
        return f"{BOOKIES}/{self.name}"

    def encode(self) -> bytes:
        """Encode as the content of the identity file."""
        name = self.name.encode()
        registered = (_CONFIRMED if self.confirmed else _UNCONFIRMED) if self.registered else 0
        owner = (self.incarnation, self.cluster, registered, len(name))
        fields = (VERSION, VERSION, *owner, self.log, self.end, self.opens, self.next_ledger)
        body = _HEAD.pack(MAGIC, 0, *fields) + name
        return _HEAD.pack(MAGIC, crc32c(body[12:]), *fields) + name

    @classmethod
    def decode(cls, path: Path, data: bytes) -> BookieIdentity:
        """Decode the identity file.

        Raises CorruptionError when it is damaged, FormatVersionError when it is too new.
        """
        if len(data) < _HEAD_2.size:
            raise CorruptionError(path, 0, f"at least {_HEAD_2.size} bytes", f"{len(data)} bytes")
        head = _HEAD_2 if data[12:14] == b"\2\0" or len(data) < _HEAD.size else _HEAD
        magic, crc, version, min_reader, incarnation, cluster, registered, length, *log = head.unpack_from(data)
        name = data[head.size :]
        if magic != MAGIC or crc != crc32c(data[12:]) or length != len(name):
            raise CorruptionError(path, 0, "an intact identity", f"{data[:12].hex()}, {len(name)} bytes of name")
        if min_reader > VERSION:
            raise FormatVersionError(path, min_reader, VERSION)
        confirmed = (
            registered == _CONFIRMED and version > 2
        )  # version 2 did not record whether the metadata had the number
        log_uuid, end, opens, next_ledger = (*log, 0)[:4]
        return cls(name.decode(), incarnation, cluster, bool(registered), log_uuid, end, opens, confirmed, next_ledger)


def known_bookies(store: MetadataStore) -> list[str]:
    """Return the ids of all bookies of the cluster, running or not, sorted by name, each with its last incarnation.

    Bookies whose metadata cannot be read are left out. Raises errors of the store.
    """
    ids: list[str] = []
    for name in store.list(BOOKIES):
        stored = store.get(f"{BOOKIES}/{name}")
        with suppress(ValueError):
            if stored is not None:
                ids.append(field(decode_object(stored.value), "id", str))
    return ids


def count_bookies(store: MetadataStore) -> int:
    """Count the bookies of the cluster, running or not. Raises errors of the store."""
    return len(store.list(BOOKIES))


def replaced_bookie(path: Path, name: str, store: MetadataStore) -> str | None:
    """Return the id of the registered bookie whose name a start with `make_new` gives to a new incarnation.

    Args:
        path: directory of the bookie.
        name: name of the bookie in the metadata.
        store: metadata store.

    Returns:
        The id; None: the name is free, or the directory belongs to a bookie that was registered.

    Raises:
        CorruptionError: the identity file is damaged.
        FormatVersionError: the identity file is of a newer version.
        InvalidMetadataError: the metadata of the bookie are damaged.
        ReplogError: as the metadata store.
    """
    key, kept = f"{BOOKIES}/{name}", _load(path)
    known = store.get(key)
    if known is None:
        return None
    incarnation = _bytes(key, known, "incarnation")
    if kept is not None and (kept.registered or kept.incarnation == incarnation):
        return None
    return f"{name}@{incarnation.hex()}"


def claim(
    path: Path, name: str, store: MetadataStore, *, next_ledger: int = 0, make_new: bool = False,
    older_metadata: bool = False, files: Files | None = None,
) -> BookieIdentity:  # fmt: skip
    """Check the identity of a bookie's directory, before its log is opened; make a new one in an empty directory.

    Args:
        path: directory of the bookie.
        name: name of the bookie in the metadata.
        store: metadata store.
        next_ledger: number of the next ledger, as the metadata have it.
        make_new: let an empty directory become the next incarnation of a registered bookie; the entries of the earlier
            one count as lost.
        older_metadata: accept metadata that are older than the directory.
        files: access to the disk; None: the real one.

    Returns:
        The identity; a new one is not registered.

    Raises:
        LockedError: another process opens the bookie.
        CorruptionError: the identity file is damaged.
        FormatVersionError: the identity file is of a newer version.
        EmptyDirectoryError: the bookie is registered, and the directory is empty.
        MissingIdentityError: the directory has data and no identity file.
        UnknownBookieError: the metadata do not know the bookie.
        ForeignDirectoryError: the directory is of another cluster.
        WrongIncarnationError: the directory is of another bookie.
        RetiredBookieError: the bookie was retired.
        StaleDirectoryError: the directory is an older copy.
        StaleMetadataError: the metadata are an older copy.
        InvalidArgumentError: the name is malformed.
        InvalidMetadataError: the metadata of the bookie are damaged.
        ReplogError: as the metadata store.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"name: expected 1 to 100 letters, digits, '.', '_' and '-', found {name!r}")
    files = files if files is not None else RealFiles()
    files.make_directory(path)
    try:
        lock = WriterLock(path)
    except LockedError as error:
        raise LockedError(path, error.pid, "a bookie runs in one process at a time") from error
    try:
        kept = _load(path)
        cluster = cluster_id(store) if kept is None else _cluster_of(path, kept, store)
        known = store.get(f"{BOOKIES}/{name}")
        if kept is None:
            _check_empty(path, name, known, make_new=make_new)
            kept = BookieIdentity(name, uuid.uuid4().bytes, cluster)
            files.replace_small(path / IDENTITY, kept.encode())
            files.sync_directory(path.parent)
        else:
            _check_kept(path, name, kept, known, make_new=make_new)
            _check_state(path, store, kept)
            if not older_metadata:
                _check_metadata(path, kept, known, next_ledger)
        return kept
    finally:
        lock.release()


def check_log(path: Path, identity: BookieIdentity, uuid: bytes, end: int) -> None:
    """Check that a log with this uuid, durable up to position `end`, is the one of the identity.

    Raises:
        WrongLogError: it is another log, or an older copy. Another log is accepted before the bookie is registered.
    """
    log = path / LOG
    if identity.registered and uuid != identity.log:
        raise WrongLogError(f"{log} is log {uuid.hex()}; that of bookie {identity.id} is {identity.log.hex()}")
    if end < identity.end:
        raise WrongLogError(
            f"{log} ends at {end}, that of bookie {identity.id} was durable up to {identity.end}: it is an older copy"
        )


def register(
    path: Path, identity: BookieIdentity, store: MetadataStore, uuid: bytes, end: int, *, next_ledger: int = 0,
    files: Files | None = None,
) -> BookieIdentity:  # fmt: skip
    """Register a claimed identity, whose log has this uuid and is durable up to `end`; count one more opening.

    The number is written to the file, then to the metadata, and then the file notes that the metadata have it. After a
    crash in between the metadata have the lower number. next_ledger: as the metadata have it. Raises errors of the
    store.
    """
    files = files if files is not None else RealFiles()
    opened = replace(identity, log=uuid, end=max(end, identity.end), opens=identity.opens + 1)
    opened = replace(opened, confirmed=False, next_ledger=next_ledger)
    if identity.registered:
        files.replace_small(path / IDENTITY, opened.encode())
    body = {"id": opened.id, "incarnation": opened.incarnation.hex(), "log": uuid.hex(), "opens": opened.opens}
    known = store.get(identity.key)
    value = json.dumps({**_unknown_fields(identity.key, known, body), **body}).encode()
    if known is None:
        store.create(identity.key, value)
    elif known.value != value:
        store.put(identity.key, value, known.version)
    opened = replace(opened, registered=True, confirmed=True)
    files.replace_small(path / IDENTITY, opened.encode())
    return opened


def _unknown_fields(key: str, known: Versioned | None, body: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a registration that a newer version stored, to be kept.

    Raises InvalidMetadataError if the registration is malformed.
    """
    if known is None:
        return {}
    value = _object(key, known)
    return {name: value[name] for name in value if name not in body}


def _object(key: str, stored: Versioned) -> dict[str, Any]:
    """Decode the value of a key. Raises InvalidMetadataError if it is malformed."""
    try:
        value = decode_object(stored.value)
        check_reader(key, value, METADATA_VERSION)
    except ValueError as error:
        raise InvalidMetadataError(f"{key}: {error}") from error
    return value


def note(path: Path, identity: BookieIdentity, *, files: Files) -> None:
    """Write the identity file anew, with a new end of the log or number of the next ledger.

    Raises OSError when the disk fails.
    """
    files.replace_small(path / IDENTITY, identity.encode())


def is_registered(store: MetadataStore, identity: BookieIdentity) -> bool:
    """Return whether the metadata belong to the bookie's cluster, and know the bookie with this incarnation."""
    known = store.get(identity.key)
    return (
        known is not None
        and _bytes(identity.key, known, "incarnation") == identity.incarnation
        and _cluster(store) == identity.cluster
    )


def _cluster(store: MetadataStore) -> bytes | None:
    """Return the id of the cluster as `cluster_id` does, but never create one."""
    return None if store.get(CLUSTER) is None else cluster_id(store)


def _load(path: Path) -> BookieIdentity | None:
    try:
        data = read_regular(path / IDENTITY, FILE_MAX)
    except FileNotFoundError:
        return None
    return BookieIdentity.decode(path / IDENTITY, data)


def _check_empty(path: Path, name: str, known: Versioned | None, *, make_new: bool) -> None:
    """Check that a new bookie may be made in a directory without an identity."""
    log = path / LOG
    if log.exists() and any(log.iterdir()):
        raise MissingIdentityError(
            f"{path} holds the data of a bookie, and no file {IDENTITY!r} that says of which one: restore it"
        )
    if known is not None and not make_new:
        raise EmptyDirectoryError(
            f"bookie {name} is registered, and {path} is empty: is its disk mounted? To give up what it held, and let "
            "another incarnation take its name, start it with --replace"
        )


def _cluster_of(path: Path, kept: BookieIdentity, store: MetadataStore) -> bytes:
    """Return the cluster of a directory with an identity, if the metadata are those of that cluster.

    A store that holds no cluster is not made one: it may be the wrong one, or was emptied and will be restored.
    """
    cluster = _cluster(store)
    if cluster != kept.cluster:
        other_cluster = "no cluster" if cluster is None else f"cluster {cluster.hex()}"
        raise ForeignDirectoryError(
            f"{path}: bookie {kept.id} is of cluster {kept.cluster.hex()}, and the {store.what} holds {other_cluster}: "
            "one root is for one cluster. Start the bookie with the metadata of its cluster, or, for a new bookie of "
            "the other cluster, with an empty directory. If the metadata were emptied, restore them. Nothing was "
            "changed"
        )
    return kept.cluster


def _check_kept(path: Path, name: str, kept: BookieIdentity, known: Versioned | None, *, make_new: bool) -> None:
    """Check that the identity in a directory is that of the bookie to be opened."""
    if kept.name != name:
        raise WrongIncarnationError(f"{path} is of bookie {kept.id}, not of {name}")
    if known is None:
        if kept.registered:
            raise UnknownBookieError(f"{path} is of bookie {kept.id}, which the metadata do not know")
        return
    incarnation = _bytes(kept.key, known, "incarnation")
    if incarnation != kept.incarnation and (kept.registered or not make_new):
        raise WrongIncarnationError(f"{path} is of bookie {kept.id}; registered is {name}@{incarnation.hex()}")
    if incarnation == kept.incarnation and (opens := _opens(kept.key, known)) > kept.opens and kept.registered:
        raise StaleDirectoryError(
            f"{path} is an older copy of bookie {kept.id}: it was opened {kept.opens} times, that bookie {opens} times"
        )


def _check_state(path: Path, store: MetadataStore, kept: BookieIdentity) -> None:
    """Check that the bookie was not retired.

    A bookie that counts as lost may come back, because it brings its copies.
    """
    stored = store.get(bookie_state_key(kept.id))
    if stored is not None and BookieState.decode(stored.value).phase is BookiePhase.RETIRED:
        raise RetiredBookieError(
            f"{path} is of bookie {kept.id}, which was retired: no ledger names it. Move the directory away, and start "
            "an empty one with --replace: it becomes a new incarnation of the name"
        )


def _check_metadata(path: Path, kept: BookieIdentity, known: Versioned | None, next_ledger: int) -> None:
    older = _why_older(kept, known, next_ledger)
    if older is not None:
        raise StaleMetadataError(
            f"{path}: the metadata are an older copy: {older}. Put the newest copy back; or go on with this one, and "
            "lose the ledgers that were made since, with --older-metadata or older_metadata=True (docs/operations.md, "
            "Metadata from a backup)"
        )


def are_older(store: MetadataStore, identity: BookieIdentity, next_ledger: int) -> bool:
    """Return whether the metadata are older than those that this bookie has read before. Raises errors of the store."""
    return _why_older(identity, store.get(identity.key), next_ledger) is not None


def _why_older(kept: BookieIdentity, known: Versioned | None, next_ledger: int) -> str | None:
    if not kept.registered or known is None:
        return None
    opens = _opens(kept.key, known)
    if kept.confirmed and opens < kept.opens:
        return f"they know of {opens} openings of bookie {kept.id}, which was opened {kept.opens} times"
    if next_ledger < kept.next_ledger:
        return f"the next ledger gets number {next_ledger}, and bookie {kept.id} has seen {kept.next_ledger} before"
    return None


def _opens(key: str, known: Versioned) -> int:
    """Return the number of openings in the metadata."""
    try:
        return field(_object(key, known), "opens", int)
    except ValueError as error:
        raise InvalidMetadataError(f"{key}: {error}") from error


def _bytes(key: str, stored: Versioned | None, name: str) -> bytes:
    """Decode a field of 16 bytes in the value of a key."""
    try:
        value = bytes.fromhex(field(_object(key, stored), name, str)) if stored is not None else b""
    except ValueError as error:
        raise InvalidMetadataError(f"{key}: {error}") from error
    if len(value) != 16:
        raise InvalidMetadataError(f"{key}: expected 16 bytes as {name}, found {len(value)}")
    return value
