"""Requests of clients to bookies, replies, and their bytes (FORMAT.md, "Bookie protocol").

State machines exchange these objects; only the TCP driver encodes them. The offset of a frame pairs a reply with its
request.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pyreplog._native.ledger_log.entries import CONTROL
from pyreplog.errors import InvalidMessageError, UnsupportedRequestError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

KEY_BYTES = 16
ID_MAX = CONTROL - 1
"""The highest number of a ledger or an entry."""
READ_BYTES_MAX = 4 << 20
"""Most bytes of records in a reply, whatever limit the request has, unless one record is larger."""
WAIT_MS_MAX = 60_000
"""Longest time for which a bookie holds a WAIT_LAC, milliseconds: its client may have disconnected meanwhile."""

_REQUEST = struct.Struct(">BBBBIqqq16s")
_REPLY = struct.Struct(">BBHIqqqq")
REPLY_BYTES = _REPLY.size
"""Size of a reply's head."""


class RequestKind(IntEnum):
    """The kind of a request."""

    ADD = 1  # store the records of entries [first, last]
    READ = 2  # the records of `run` entries from each of first, first + step, ..., up to entry `last`
    LAST = 3  # the highest entry and the LAC of a ledger
    SET_LAC = 4  # note that entry `last` is confirmed (explicit LAC)
    WAIT_LAC = 5  # wait until the LAC is above `last`, for at most `limit` milliseconds
    STATUS = 6  # the status of the bookie
    HOLDINGS = 7  # the entries of a READ that are verified and on disk, and a digest of them
    SCRUB = 8  # the progress of the scrub; with `first` 1 begin a pass, at `limit` bytes/s (0: the configured rate)


class Flag(IntEnum):
    """Flags of requests."""

    NONE = 0
    RECOVERY = 1  # ADD by a recovery of the ledger, accepted also if the ledger is fenced
    FENCE = 2  # READ, LAST: fence the ledger, durably, before any reply
    UNSYNCED = 4  # ADD of a ledger whose entries are acknowledged before they are on disk
    COPY = 8  # ADD by auto-recovery, of copies of existing entries; the key is the proof of the ledger's key


class ReplyStatus(IntEnum):
    """The outcome of a request. Only OK proves that entries are not on the bookie."""

    OK = 0
    FENCED = 1
    UNAUTHORIZED = 2
    READ_ONLY = 3  # the bookie takes no new entries: its disk is nearly full, or an operator ordered it
    UNKNOWN = 4  # the bookie cannot tell: damage, entries lost in a crash, a failing disk
    REFUSED = 5  # the request is invalid; the body has the reason
    OVERLOADED = 6
    LIMBO = 7  # READ, LAST, HOLDINGS: a fence took effect, but entries may have been lost in a crash
    INVALID = 8  # ADD: its records are damaged, or too large for this bookie; nothing was stored
    UNSUPPORTED = 9  # the bookie does not know this kind of request or one of its flags; nothing was done


ADD, READ, WAIT_LAC, HOLDINGS, SCRUB = map(
    int, (RequestKind.ADD, RequestKind.READ, RequestKind.WAIT_LAC, RequestKind.HOLDINGS, RequestKind.SCRUB)
)
OK = int(ReplyStatus.OK)
RECOVERY, UNSYNCED, COPY = map(int, (Flag.RECOVERY, Flag.UNSYNCED, Flag.COPY))
"""The members as plain integers, because finding a member of an enum takes longer than comparing integers."""
HOLDINGS_FEATURE, COPY_FEATURE, SCRUB_FEATURE = "holdings", "copy", "scrub"
FEATURES = frozenset({HOLDINGS_FEATURE, COPY_FEATURE, SCRUB_FEATURE})
"""Features that some bookies of this protocol version lack. The hello tells which of them a bookie knows."""
_KIND_MAX, _STATUS_MAX, _FLAGS_MAX = int(max(RequestKind)), int(max(ReplyStatus)), sum(Flag)


class Request(NamedTuple):
    """A request.

    Attributes:
        kind: a RequestKind.
        ledger: number of the ledger.
        first: first entry.
        last: last entry.
        key: key that permits to write to the ledger and to fence it, see `ledger_key`; with COPY the proof of the key.
        flags: sum of Flags.
        limit: bytes of a READ or HOLDINGS, milliseconds of a WAIT_LAC, bytes per second of a SCRUB.
        step: distance between the first entries of two runs, of a READ or HOLDINGS.
        run: number of consecutive entries of a run.
        records: encoded entries of an ADD, end to end.
    """

    kind: int
    ledger: int = 0
    first: int = 0
    last: int = 0
    key: bytes = bytes(KEY_BYTES)
    flags: int = 0
    limit: int = 0
    step: int = 1
    run: int = 1
    records: ReadableBuffer = b""

    @property
    def is_copy(self) -> bool:
        """Whether the request adds copies, so that its key is a proof."""
        return self.kind == ADD and bool(self.flags & COPY)

    @property
    def feature(self) -> str | None:
        """The feature that a bookie needs for this request; None: every bookie can handle it."""
        if self.kind == HOLDINGS:
            return HOLDINGS_FEATURE
        if self.kind == SCRUB:
            return SCRUB_FEATURE
        return COPY_FEATURE if self.is_copy else None

    def asked(self, count: int) -> npt.NDArray[np.int64]:
        """Return the first `count` entries that a READ or HOLDINGS asks for, without regard to its last entry."""
        runs = np.arange(-(-count // self.run), dtype=np.int64) * self.step
        return (self.first + runs[:, None] + np.arange(self.run)).ravel()[:count]


class Reply(NamedTuple):
    """A reply.

    - ADD: entries [first, last] are stored.
    - READ: `body` holds records. Requested entries in [first, last] without a record are definitely not on the bookie.
    - HOLDINGS: the same, but `body` holds `Holdings`.
    - LAST: `last` is the highest entry on the bookie; -1: none.
    - A status other than OK: `body` holds the reason as UTF-8.

    Attributes:
        status: a ReplyStatus.
        ledger: number of the ledger.
        first: first entry.
        last: last entry.
        lac: highest LAC of the ledger that the bookie knows.
        body: see above.
    """

    status: int
    ledger: int = 0
    first: int = 0
    last: int = -1
    lac: int = -1
    body: bytes | memoryview = b""


def encode_request(request: Request) -> bytes:
    """Encode the head of a request; its records follow in the same frame."""
    return _REQUEST.pack(
        request.kind, request.flags, request.run, request.step, request.limit, request.ledger, request.first,
        request.last, request.key,
    )  # fmt: skip


def decode_request(body: memoryview) -> Request:
    """Decode a request, without checking its records.

    Raises:
        InvalidMessageError: the bytes are not a request.
        UnsupportedRequestError: this build does not know the kind or a flag of the request; the other fields are not
            checked then.
    """
    if len(body) < _REQUEST.size:
        raise InvalidMessageError(f"request: expected at least {_REQUEST.size} bytes, found {len(body)}")
    kind, flags, run, step, limit, ledger, first, last, key = _REQUEST.unpack_from(body)
    if not ADD <= kind <= _KIND_MAX or flags > _FLAGS_MAX:
        raise UnsupportedRequestError(
            f"expected kinds 1 to {_KIND_MAX} and flags up to {_FLAGS_MAX}, found kind {kind}, flags {flags}: "
            "upgrade the bookie"
        )
    if not 1 <= run <= step:
        raise InvalidMessageError(f"request: expected runs of entries, found {run} of {step}")
    if ledger < 0 or first < 0 or last < -1:
        raise InvalidMessageError(f"request: expected ids from 0 on, found ledger {ledger}, entries {first} to {last}")
    return Request._make((kind, ledger, first, last, key, flags, limit, step, run, body[_REQUEST.size :]))


def encode_reply(reply: Reply) -> bytes:
    """Encode the head of a reply; its body follows in the same frame."""
    return _REPLY.pack(reply.status, 0, 0, 0, reply.ledger, reply.first, reply.last, reply.lac)


def decode_reply(body: memoryview) -> Reply:
    """Decode a reply. Raises InvalidMessageError when the bytes are not a reply."""
    if len(body) < _REPLY.size:
        raise InvalidMessageError(f"reply: expected at least {_REPLY.size} bytes, found {len(body)}")
    status, _, _, _, ledger, first, last, lac = _REPLY.unpack_from(body)
    if not OK <= status <= _STATUS_MAX or ledger < 0 or first < 0 or last < -1 or lac < -1:
        raise InvalidMessageError(f"reply: expected a known status and ids, found status {status}, ledger {ledger}")
    return Reply(status, ledger, first, last, lac, body[_REPLY.size :])
