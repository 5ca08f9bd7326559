"""What clients and bookies say to each other: requests, replies, and their bytes (FORMAT.md, "Bookie protocol").

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
"""Of ledgers and entries."""
READ_BYTES_MAX = 4 << 20
"""A bookie gives at most so many bytes of records in a reply, whatever it is asked for, unless one record is larger."""
WAIT_MS_MAX = 60_000
"""A bookie keeps nobody waiting longer for a LAC: who asked may be gone."""

_REQUEST = struct.Struct(">BBBBIqqq16s")
_REPLY = struct.Struct(">BBHIqqqq")
REPLY_BYTES = _REPLY.size
"""Of a reply's head."""


class RequestKind(IntEnum):
    """What a request asks for."""

    ADD = 1  # store these records: entries of [first, last]
    READ = 2  # the records of `run` entries from `first` on, of as many from first + step on, ... <= last
    LAST = 3  # the highest entry and the LAC there is of a ledger
    SET_LAC = 4  # `last` is confirmed (explicit LAC)
    WAIT_LAC = 5  # answer when the LAC passes `last`, or after `limit` milliseconds
    STATUS = 6  # how the bookie is
    HOLDINGS = 7  # which of the entries of a READ are here, verified and on disk, and a digest of them
    SCRUB = 8  # how far the scrub is; with `first` 1: verify all segments now, `limit` bytes a second (0: as set)


class Flag(IntEnum):
    """How."""

    NONE = 0
    RECOVERY = 1  # an ADD by who recovers the ledger: fenced or not
    FENCE = 2  # READ, LAST: refuse the ledger's writer from now on, durably, before any reply
    UNSYNCED = 4  # ADD: the ledger's entries need not be on disk when they are acknowledged
    COPY = 8  # ADD by auto-recovery, of entries written before; its key is the proof of the ledger's key


class ReplyStatus(IntEnum):
    """How a request went. Only OK ever proves that something is not here."""

    OK = 0
    FENCED = 1
    UNAUTHORIZED = 2
    READ_ONLY = 3  # no new entries: the disk is nearly full, or the operator said so
    UNKNOWN = 4  # cannot be told: damage, data lost in a crash, a disk that fails
    REFUSED = 5  # the request makes no sense; the body says why
    OVERLOADED = 6
    LIMBO = 7  # READ, LAST, HOLDINGS: done as far as can be (fences hold), and entries may have been lost in a crash
    INVALID = 8  # ADD: its records are damaged, or too large for this bookie; nothing was stored
    UNSUPPORTED = 9  # the bookie does not know this kind of request, or a flag of it; nothing was done


ADD, READ, WAIT_LAC, HOLDINGS, SCRUB = map(
    int, (RequestKind.ADD, RequestKind.READ, RequestKind.WAIT_LAC, RequestKind.HOLDINGS, RequestKind.SCRUB)
)
OK = int(ReplyStatus.OK)
RECOVERY, UNSYNCED, COPY = map(int, (Flag.RECOVERY, Flag.UNSYNCED, Flag.COPY))
"""What every message is compared with: to find a member in its enum takes longer than to compare it."""
HOLDINGS_FEATURE, COPY_FEATURE, SCRUB_FEATURE = "holdings", "copy", "scrub"
FEATURES = frozenset({HOLDINGS_FEATURE, COPY_FEATURE, SCRUB_FEATURE})
"""Features that some bookies of this protocol version lack. The hello tells which of them a bookie knows."""
_KIND_MAX, _STATUS_MAX, _FLAGS_MAX = int(max(RequestKind)), int(max(ReplyStatus)), sum(Flag)


class Request(NamedTuple):
    """kind: a RequestKind. key: who may write and fence, see `ledger_key`; with COPY the proof of it. limit: bytes of
    a READ or HOLDINGS, milliseconds of a WAIT_LAC, bytes a second of a SCRUB. step, run: of a READ or HOLDINGS.
    records: encoded entries of an ADD, end to end."""

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
        """Whether it adds copies, and its key is a proof."""
        return self.kind == ADD and bool(self.flags & COPY)

    @property
    def feature(self) -> str | None:
        """The feature that a bookie needs to know for this request; None: every bookie knows it."""
        if self.kind == HOLDINGS:
            return HOLDINGS_FEATURE
        if self.kind == SCRUB:
            return SCRUB_FEATURE
        return COPY_FEATURE if self.is_copy else None

    def asked(self, count: int) -> npt.NDArray[np.int64]:
        """The first `count` entries that a READ or HOLDINGS asks for, were there no last one."""
        runs = np.arange(-(-count // self.run), dtype=np.int64) * self.step
        return (self.first + runs[:, None] + np.arange(self.run)).ravel()[:count]


class Reply(NamedTuple):
    """status: a ReplyStatus. lac: highest that the bookie knows of the ledger.

    ADD: entries of [first, last] are stored. READ: `body` holds records; what is not among them of the entries asked
    for in [first, last] is definitely not here. HOLDINGS: as READ, but `body` holds `Holdings`. LAST: `last` is the
    highest entry id here, -1 none.
    Not OK: `body` says why, in UTF-8.
    """

    status: int
    ledger: int = 0
    first: int = 0
    last: int = -1
    lac: int = -1
    body: bytes | memoryview = b""


def encode_request(request: Request) -> bytes:
    """The head of a request; its records follow in the same frame."""
    return _REQUEST.pack(
        request.kind, request.flags, request.run, request.step, request.limit, request.ledger, request.first,
        request.last, request.key,
    )  # fmt: skip


def decode_request(body: memoryview) -> Request:
    """InvalidMessageError: it is none. UnsupportedRequestError: of a kind, or with a flag, that is not known here; what
    else it says is not looked at. Records are not looked at."""
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
    """The head of a reply; its body follows in the same frame."""
    return _REPLY.pack(reply.status, 0, 0, 0, reply.ledger, reply.first, reply.last, reply.lac)


def decode_reply(body: memoryview) -> Reply:
    """InvalidMessageError: it is none."""
    if len(body) < _REPLY.size:
        raise InvalidMessageError(f"reply: expected at least {_REPLY.size} bytes, found {len(body)}")
    status, _, _, _, ledger, first, last, lac = _REPLY.unpack_from(body)
    if not OK <= status <= _STATUS_MAX or ledger < 0 or first < 0 or last < -1 or lac < -1:
        raise InvalidMessageError(f"reply: expected a known status and ids, found status {status}, ledger {ledger}")
    return Reply(status, ledger, first, last, lac, body[_REPLY.size :])
