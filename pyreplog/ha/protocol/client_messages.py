"""Messages between clients and nodes of a replica group (FORMAT.md, "Clients of a replica group").

Requests and replies are structures in front of records, which are views of the body and never copied here. Decoding
checks the bounds of all fields, and raises InvalidMessageError for malformed bytes.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from pyreplog.errors import InvalidMessageError
from pyreplog.stream.fields import FieldReader, FieldWriter

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CLIENT_VERSION = 3
"""First version of the hello with which a node takes these requests."""

CLIENT_ID_BYTES = 16
BATCH_ENTRIES_MAX = 1 << 16
RUNS_MAX = 64
WAIT_MS_MAX = 60_000
NUMBER_MAX = (1 << 62) - 1
"""Highest entry or sequence number: sums of two fit into 64 bits."""

_APPEND = struct.Struct(">BBHI16sq")
_APPENDED = struct.Struct(">BBHI")
_RUN = struct.Struct(">qq")
_READ = struct.Struct(">BBHIIIqq")
_ENTRIES = struct.Struct(">BBHIqqqq")

APPEND_BYTES, ENTRIES_BYTES = _APPEND.size, _ENTRIES.size


class ClientKind(IntEnum):
    """First byte of a body; distinct from all of `messages.MessageKind`."""

    APPEND = 32
    APPENDED = 33
    READ = 34
    ENTRIES = 35
    REFUSED = 36


class ClientRefusal(IntEnum):
    """Why a request of a client is refused."""

    NOT_MASTER = 1
    CHANGING = 2  # the master hands over, or the role changes: a master is expected soon
    NOT_ENOUGH_REPLICAS = 3
    INVALID = 4  # the records are damaged or malformed
    TOO_LARGE = 5
    OUT_OF_ORDER = 6  # earlier batches of this client are missing
    UNKNOWN_CLIENT = 7  # nothing is known of earlier batches of this client
    TIMED_OUT = 8  # appended; whether enough replicas have it is unknown
    DEPOSED = 9  # appended, and another master took over
    FAILED = 10  # the log accepts no appends
    TRIMMED = 11
    OUT_OF_RANGE = 12
    CORRUPT = 13


class Append(NamedTuple):
    """Client -> master: append `entries` records. sequence: number of the first one; a client numbers its records from
    0 on, without gaps. records: a view of the body."""

    client: bytes
    sequence: int
    entries: int
    records: memoryview


class Run(NamedTuple):
    """Adjacent entries: number of the first one, and their count."""

    first: int
    entries: int


class Appended(NamedTuple):
    """Answer to Append: the entries are committed. runs: their numbers; several runs if a master failed meanwhile."""

    runs: tuple[Run, ...]


class Read(NamedTuple):
    """Client -> node: return committed entries from `first` to before `end`; -1: to the commit point. limit: bytes of
    records; 0: only the ends of the log. wait_ms: how long the answer may wait for the first entry."""

    first: int
    end: int
    limit: int
    wait_ms: int


class CommittedEntries(NamedTuple):
    """Answer to Read. start, end: of the committed log. first, position: of the first record; first is -1 if there are
    no records. records: bytes of the log, all from one segment."""

    start: int
    end: int
    first: int
    position: int
    unreplicated: bool
    records: memoryview


class Refused(NamedTuple):
    """Answer to Append or Read: a refusal. master: "host:port" of the master; "": unknown."""

    code: int
    text: str
    master: str


def is_client_request(body: memoryview) -> bool:
    """Return whether a body is an APPEND or a READ."""
    return bool(body) and body[0] in (ClientKind.APPEND, ClientKind.READ)


# ---- requests ---------------------------------------------------------------------------------------------------


def encode_append(client: bytes, sequence: int, count: int) -> bytes:
    """Return the header of an APPEND; the records follow it."""
    return _APPEND.pack(ClientKind.APPEND, 0, 0, count, client, sequence)


def encode_read(read: Read) -> bytes:
    return _READ.pack(ClientKind.READ, 0, 0, read.limit, read.wait_ms, 0, read.first, read.end)


def decode_request(body: memoryview) -> Append | Read:
    """Decode a request. Raises InvalidMessageError if it is malformed."""
    if body and body[0] == ClientKind.APPEND:
        return _decode_append(body)
    return _decode_read(body)


def _decode_append(body: memoryview) -> Append:
    _, flags, reserved, count, client, sequence = _unpack(_APPEND, body, "APPEND")
    _check(flags == reserved == 0, "APPEND", "flags 0", f"{flags}, {reserved}")
    _check(1 <= count <= BATCH_ENTRIES_MAX, "APPEND", f"1 to {BATCH_ENTRIES_MAX} records", f"{count}")
    _check(0 <= sequence <= NUMBER_MAX, "APPEND", "a sequence number from 0 on", f"{sequence}")
    return Append(client, sequence, count, body[APPEND_BYTES:])


def _decode_read(body: memoryview) -> Read:
    kind, flags, reserved, limit, wait_ms, zero, first, end = _unpack(_READ, body, "READ")
    _check(kind == ClientKind.READ, "request", "an APPEND or a READ", f"kind {kind}")
    _check(flags == reserved == zero == 0 and len(body) == _READ.size, "READ", "its end", f"{len(body)} bytes")
    _check(0 <= first <= NUMBER_MAX and -1 <= end <= NUMBER_MAX, "READ", "entry numbers", f"{first} to {end}")
    return Read(first, end, limit, min(wait_ms, WAIT_MS_MAX))


# ---- replies ----------------------------------------------------------------------------------------------------


def encode_appended(appended: Appended) -> bytes:
    runs = appended.runs
    return _APPENDED.pack(ClientKind.APPENDED, len(runs), 0, 0) + b"".join(_RUN.pack(*run) for run in runs)


def encode_entries(entries: CommittedEntries) -> bytes:
    """Return the header of an ENTRIES; the records follow it."""
    return _ENTRIES.pack(
        ClientKind.ENTRIES, entries.unreplicated, 0, 0, entries.start, entries.end, entries.first, entries.position
    )


def encode_refused(refused: Refused) -> bytes:
    fields = FieldWriter(">")
    fields.numbers("BB", ClientKind.REFUSED, refused.code)
    fields.text(refused.master)
    fields.text(refused.text)
    return fields.take()


def decode_reply(body: ReadableBuffer) -> Appended | CommittedEntries | Refused:
    """Decode a reply. Raises InvalidMessageError if it is malformed."""
    view = memoryview(body)
    kind = view[0] if view else 0
    if kind == ClientKind.APPENDED:
        return _decode_appended(view)
    if kind == ClientKind.ENTRIES:
        return _decode_entries(view)
    if kind == ClientKind.REFUSED:
        return _decode_refused(view)
    raise InvalidMessageError(f"reply: expected an answer to a client, found kind {kind} of {len(view)} bytes")


def _decode_appended(body: memoryview) -> Appended:
    _, count, reserved, zero = _unpack(_APPENDED, body, "APPENDED")
    size = _APPENDED.size + count * _RUN.size
    _check(reserved == zero == 0 and 1 <= count <= RUNS_MAX, "APPENDED", f"1 to {RUNS_MAX} runs", f"{count}")
    _check(len(body) == size, "APPENDED", f"{size} bytes", f"{len(body)}")
    runs = tuple(Run(*_RUN.unpack_from(body, at)) for at in range(_APPENDED.size, size, _RUN.size))
    for run in runs:
        _check(0 <= run.first <= NUMBER_MAX and 1 <= run.entries <= BATCH_ENTRIES_MAX, "APPENDED", "a run", f"{run}")
    return Appended(runs)


def _decode_entries(body: memoryview) -> CommittedEntries:
    _, unreplicated, reserved, zero, start, end, first, position = _unpack(_ENTRIES, body, "ENTRIES")
    records = body[ENTRIES_BYTES:]
    _check(unreplicated <= 1 and reserved == zero == 0, "ENTRIES", "flags 0 or 1", f"{unreplicated}")
    _check(0 <= start <= end <= NUMBER_MAX, "ENTRIES", "a range", f"{start} to {end}")
    _check((first >= start and position >= 0) if len(records) else first == -1, "ENTRIES", "an entry", f"{first}")
    return CommittedEntries(start, end, first, position, bool(unreplicated), records)


def _decode_refused(body: memoryview) -> Refused:
    fields = FieldReader(">", body, "REFUSED")
    _, code = fields.numbers("BB")
    refused = Refused(code, master=fields.text(), text=fields.text())
    fields.end()
    return refused


def _unpack(layout: struct.Struct, body: memoryview, what: str) -> tuple[Any, ...]:
    if len(body) < layout.size:
        raise InvalidMessageError(f"{what}: expected {layout.size} bytes or more, found {len(body)}")
    return layout.unpack_from(body)


def _check(is_right: bool, what: str, expected: str, found: str) -> None:
    if not is_right:
        raise InvalidMessageError(f"{what}: expected {expected}, found {found}")
