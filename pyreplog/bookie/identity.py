"""Who a bookie is: a random incarnation, kept with its data and in metadata, and compared whenever it starts.

An emptied or swapped directory would answer "not here" for entries that others believe it to hold (BookKeeper's
cookies; #4812: bookies replaced by empty ones at the same address). So ledgers name "name@incarnation", and a directory
that is not that one is refused. Making a bookie, and what a crash between the steps leaves:

1. identity file, not registered     crash after: the next start goes on from here, with the same incarnation
2. log                               (the caller's)
3. /bookies/<name> in metadata       crash after: the next start sees that it is its own
4. identity file, registered         from now on 1 to 3 must be there and agree

The log may be swapped, too, or put back from an older copy, alone or with its directory. So the identity pins the log's
uuid, where it ended when it was opened or closed last, and how often it was opened; and metadata that last number, too.

The metadata may be put back from an older copy just as well. They would know nothing of newer ledgers, whose bytes
would count as deleted, their numbers be given again. So the identity keeps what metadata have said: how often the
bookie was opened, as soon as they had it, and which number the next ledger gets. Metadata that say less are refused.
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
from pyreplog.errors import (
    CorruptionError,
    EmptyDirectoryError,
    ForeignDirectoryError,
    FormatVersionError,
    InvalidArgumentError,
    InvalidMetadataError,
    KeyExistsError,
    LockedError,
    MissingIdentityError,
    StaleDirectoryError,
    StaleMetadataError,
    UnknownBookieError,
    WrongIncarnationError,
    WrongLogError,
)
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.lock import WriterLock
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.metadata.values import check_reader, decode_object, field
from pyreplog.regular_files import read_regular

IDENTITY = "identity"
LOG = "log"
"""Names in a bookie's directory: the file, and the folder of the log."""

CLUSTER = "/cluster"
BOOKIES = "/bookies"

METADATA_VERSION = 1
"""Of the values of CLUSTER and of the keys below BOOKIES."""

FILE_MAX = 4096  # bytes
MAGIC = b"RPBOOK01"
VERSION = 3
_HEAD = struct.Struct("<8sIHH16s16sHH16sqqq")
_HEAD_2 = struct.Struct("<8sIHH16s16sHH16sqq")
_TOLD, _UNTOLD = 1, 2  # registered: metadata have the number of openings; they may have one less
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


@dataclass(frozen=True)
class BookieIdentity:
    """Of one bookie. cluster, incarnation: 16 random bytes each. registered: metadata knows it.

    log: the uuid of its log; end: a position that the log's end was durably at; opens: how often it was opened; told:
    metadata had that number. next_ledger: the number that the next ledger was to get, as metadata said last.
    """

    name: str
    incarnation: bytes
    cluster: bytes
    registered: bool = False
    log: bytes = bytes(16)
    end: int = 0
    opens: int = 0
    told: bool = False
    next_ledger: int = 0

    @property
    def id(self) -> str:
        """As ledgers name it."""
        return f"{self.name}@{self.incarnation.hex()}"

    @property
    def key(self) -> str:
        """Where metadata keeps it."""
        return f"{BOOKIES}/{self.name}"

    def encode(self) -> bytes:
        """The identity file."""
        name = self.name.encode()
        registered = (_TOLD if self.told else _UNTOLD) if self.registered else 0
        owner = (self.incarnation, self.cluster, registered, len(name))
        fields = (VERSION, VERSION, *owner, self.log, self.end, self.opens, self.next_ledger)
        body = _HEAD.pack(MAGIC, 0, *fields) + name
        return _HEAD.pack(MAGIC, crc32c(body[12:]), *fields) + name

    @classmethod
    def decode(cls, path: Path, data: bytes) -> BookieIdentity:
        """CorruptionError; FormatVersionError."""
        if len(data) < _HEAD_2.size:
            raise CorruptionError(path, 0, f"at least {_HEAD_2.size} bytes", f"{len(data)} bytes")
        head = _HEAD_2 if data[12:14] == b"\2\0" or len(data) < _HEAD.size else _HEAD
        magic, crc, version, min_reader, incarnation, cluster, registered, length, *log = head.unpack_from(data)
        name = data[head.size :]
        if magic != MAGIC or crc != crc32c(data[12:]) or length != len(name):
            raise CorruptionError(path, 0, "an intact identity", f"{data[:12].hex()}, {len(name)} bytes of name")
        if min_reader > VERSION:
            raise FormatVersionError(path, min_reader, VERSION)
        told = registered == _TOLD and version > 2  # which did not know when metadata had the number
        log_uuid, end, opens, next_ledger = (*log, 0)[:4]
        return cls(name.decode(), incarnation, cluster, bool(registered), log_uuid, end, opens, told, next_ledger)


def cluster_id(store: MetadataStore) -> bytes:
    """The 16 random bytes that tell this cluster from others; made by who asks first."""
    found = store.get(CLUSTER)
    if found is None:
        try:
            store.create(CLUSTER, json.dumps({"id": uuid.uuid4().hex}).encode())
        except KeyExistsError:  # somebody else was quicker
            return cluster_id(store)
        found = store.get(CLUSTER)
    return _bytes(CLUSTER, found, "id")


def known_bookies(store: MetadataStore) -> list[str]:
    """Ids of the bookies that the cluster has, whether they run or not, sorted by name; of each its last incarnation.

    Errors: those of the store. One whose metadata make no sense is left out.
    """
    found: list[str] = []
    for name in store.list(BOOKIES):
        known = store.get(f"{BOOKIES}/{name}")
        with suppress(ValueError):
            if known is not None:
                found.append(field(decode_object(known.value), "id", str))
    return found


def count_bookies(store: MetadataStore) -> int:
    """How many bookies the cluster has, whether they run or not. Errors: those of the store."""
    return len(store.list(BOOKIES))


def claim(
    path: Path, name: str, store: MetadataStore, *, next_ledger: int = 0, make_new: bool = False,
    older_metadata: bool = False, files: Files | None = None,
) -> BookieIdentity:  # fmt: skip
    """The identity of the bookie in this directory, before its log is opened; a new one, not registered, is made.

    name: what metadata calls it. make_new: a bookie of this name may have been registered; an empty directory becomes
    its next incarnation, and what the earlier one held counts as lost. next_ledger: the number that the next ledger
    gets, as metadata say. older_metadata: metadata that say less than they did are taken for good.
    Errors: LockedError, another process does this now; CorruptionError, FormatVersionError, the file;
    EmptyDirectoryError; MissingIdentityError; UnknownBookieError; ForeignDirectoryError; WrongIncarnationError;
    StaleDirectoryError; StaleMetadataError; InvalidArgumentError, the name; InvalidMetadataError; those of the store.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"a bookie's name is 1 to 100 of letters, digits, '.', '_' and '-', not {name!r}")
    files = files if files is not None else RealFiles()
    files.make_directory(path)
    try:
        lock = WriterLock(path)
    except LockedError as error:
        raise LockedError(path, error.pid, "a bookie runs in one process at a time") from error
    try:
        cluster = cluster_id(store)
        known = store.get(f"{BOOKIES}/{name}")
        kept = _load(path)
        if kept is None:
            _check_empty(path, name, known, make_new=make_new)
            kept = BookieIdentity(name, uuid.uuid4().bytes, cluster)
            files.replace_small(path / IDENTITY, kept.encode())
            files.sync_directory(path.parent)
        else:
            _check_kept(path, name, cluster, kept, known, make_new=make_new)
            if not older_metadata:
                _check_metadata(path, kept, known, next_ledger)
        return kept
    finally:
        lock.release()


def check_log(path: Path, identity: BookieIdentity, uuid: bytes, end: int) -> None:
    """Whether this log, of that uuid and durable up to `end`, is the one that the identity is of.

    WrongLogError: it is another one, or an older copy; never of an identity that was not registered yet.
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
    """Make a claimed identity known, whose log is there: of this uuid, durable up to `end`. Counts one more opening, in
    the file first: a crash before metadata knows leaves the lower number there; and once more when they have it.
    next_ledger: as metadata say. Errors: those of the store."""
    files = files if files is not None else RealFiles()
    opened = replace(identity, log=uuid, end=max(end, identity.end), opens=identity.opens + 1)
    opened = replace(opened, told=False, next_ledger=next_ledger)
    if identity.registered:
        files.replace_small(path / IDENTITY, opened.encode())
    body = {"id": opened.id, "incarnation": opened.incarnation.hex(), "log": uuid.hex(), "opens": opened.opens}
    known = store.get(identity.key)
    value = json.dumps({**_unknown_fields(identity.key, known, body), **body}).encode()
    if known is None:
        store.create(identity.key, value)
    elif known.value != value:
        store.put(identity.key, value, known.version)
    opened = replace(opened, registered=True, told=True)
    files.replace_small(path / IDENTITY, opened.encode())
    return opened


def _unknown_fields(key: str, known: Versioned | None, body: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a registration that a newer version stored, to be kept. Raises InvalidMetadataError."""
    if known is None:
        return {}
    value = _object(key, known)
    return {name: value[name] for name in value if name not in body}


def _object(key: str, found: Versioned) -> dict[str, Any]:
    """Decode the value of a key. Raises InvalidMetadataError."""
    try:
        value = decode_object(found.value)
        check_reader(key, value, METADATA_VERSION)
    except ValueError as error:
        raise InvalidMetadataError(f"{key}: {error}") from error
    return value


def note(path: Path, identity: BookieIdentity, *, files: Files | None = None) -> None:
    """Keep what is known by now: where the log was durable up to, which ledgers metadata gave. Errors: OSError."""
    (files if files is not None else RealFiles()).replace_small(path / IDENTITY, identity.encode())


def is_registered(store: MetadataStore, identity: BookieIdentity) -> bool:
    """Whether this is the metadata of the bookie's cluster, and knows the bookie by this incarnation."""
    known = store.get(identity.key)
    return (
        known is not None
        and _bytes(identity.key, known, "incarnation") == identity.incarnation
        and _bytes(CLUSTER, store.get(CLUSTER), "id") == identity.cluster
    )


def _load(path: Path) -> BookieIdentity | None:
    try:
        data = read_regular(path / IDENTITY, FILE_MAX)
    except FileNotFoundError:
        return None
    return BookieIdentity.decode(path / IDENTITY, data)


def _check_empty(path: Path, name: str, known: Versioned | None, *, make_new: bool) -> None:
    """A directory without an identity is that of a new bookie, or something is wrong."""
    log = path / LOG
    if log.exists() and any(log.iterdir()):
        raise MissingIdentityError(f"{path} holds a bookie's data and no file {IDENTITY!r} that says whose")
    if known is not None and not make_new:
        raise EmptyDirectoryError(
            f"bookie {name} is registered, and {path} is empty: is its disk mounted? To give up what it held, and let "
            "another incarnation take its name, start it with --replace"
        )


def _check_kept(
    path: Path, name: str, cluster: bytes, kept: BookieIdentity, known: Versioned | None, *, make_new: bool
) -> None:
    """A directory with an identity is that of the bookie which is to run."""
    if kept.cluster != cluster:
        raise ForeignDirectoryError(f"{path} is of cluster {kept.cluster.hex()}, the metadata of {cluster.hex()}")
    if kept.name != name:
        raise WrongIncarnationError(f"{path} is of bookie {kept.id}, not of {name}")
    if known is None:
        if kept.registered:
            raise UnknownBookieError(f"{path} is of bookie {kept.id}, of which the metadata knows nothing")
        return
    incarnation = _bytes(kept.key, known, "incarnation")
    if incarnation != kept.incarnation and (kept.registered or not make_new):
        raise WrongIncarnationError(f"{path} is of bookie {kept.id}; registered is {name}@{incarnation.hex()}")
    if incarnation == kept.incarnation and (opens := _opens(kept.key, known)) > kept.opens and kept.registered:
        raise StaleDirectoryError(
            f"{path} is an older copy of bookie {kept.id}: it was opened {kept.opens} times, that bookie {opens} times"
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
    """Whether metadata say less than they have said to this bookie. Errors: InvalidMetadataError, the store's."""
    return _why_older(identity, store.get(identity.key), next_ledger) is not None


def _why_older(kept: BookieIdentity, known: Versioned | None, next_ledger: int) -> str | None:
    if not kept.registered or known is None:
        return None
    opens = _opens(kept.key, known)
    if kept.told and opens < kept.opens:
        return f"they know of {opens} openings of bookie {kept.id}, which was opened {kept.opens} times"
    if next_ledger < kept.next_ledger:
        return f"the next ledger gets number {next_ledger}, and had bookie {kept.id} know of {kept.next_ledger} before"
    return None


def _opens(key: str, known: Versioned) -> int:
    """How often metadata says that a bookie was opened."""
    try:
        return field(_object(key, known), "opens", int)
    except ValueError as error:
        raise InvalidMetadataError(f"{key}: {error}") from error


def _bytes(key: str, found: Versioned | None, name: str) -> bytes:
    """16 bytes, of a key's value."""
    try:
        value = bytes.fromhex(field(_object(key, found), name, str)) if found is not None else b""
    except ValueError as error:
        raise InvalidMetadataError(f"{key}: {error}") from error
    if len(value) != 16:
        raise InvalidMetadataError(f"{key}: expected 16 bytes as {name}, found {len(value)}")
    return value
