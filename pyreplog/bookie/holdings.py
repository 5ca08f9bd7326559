"""Holdings: which entries a bookie has, and a digest of them, so that two bookies are compared without their bytes.

FORMAT.md, "Bookie protocol", has the bytes and the formula of the digest.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from pyreplog._native.ledger_log.digest import holdings_digest
from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request
from pyreplog.errors import InvalidMessageError, InvalidRecordsError

RANGES_MAX = 256
"""Most ranges of one reply. A bookie with more of them answers about fewer entries."""
DIGEST_MODULUS = 1 << 64
"""Digests add up modulo this number."""

HEAD = struct.Struct(">QQI")
"""Of encoded holdings: count, digest, number of ranges."""
_RANGE = struct.Struct(">qq")
_ENTRY = slice(32, 40)
"""Offset of the entry's number in a record; see FORMAT.md, "Records"."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """The entries of a HOLDINGS request that a bookie has.

    Attributes:
        count: number of these entries.
        digest: see `holdings_digest`.
        ranges: ranges of entries. The bookie has every requested entry in them, and no other requested entry.
    """

    count: int = 0
    digest: int = 0
    ranges: tuple[range, ...] = ()

    def encode(self) -> bytes:
        """Encode as the body of a reply."""
        ranges = [_RANGE.pack(held.start, held.stop) for held in self.ranges]
        return b"".join((HEAD.pack(self.count, self.digest, len(ranges)), *ranges))

    @classmethod
    def decode(cls, request: Request, reply: Reply) -> Self:
        """Decode the body of an OK reply to a request, and check that the reply answers this request.

        Args:
            request: the HOLDINGS request.
            reply: the reply. It answers about the requested entries up to its `last`.

        Returns:
            The holdings among the requested entries in [request.first, reply.last].

        Raises:
            InvalidMessageError: the reply does not answer this request.
        """
        body = memoryview(reply.body)
        if reply.status != ReplyStatus.OK or len(body) < HEAD.size:
            raise InvalidMessageError(f"holdings: expected an OK of at least {HEAD.size} bytes, found {len(body)}")
        if (reply.ledger, reply.first) != (request.ledger, request.first) or not (
            request.first <= reply.last <= request.last
        ):
            raise InvalidMessageError(
                f"holdings: expected ledger {request.ledger}, entries {request.first} to {request.last} at most, found "
                f"ledger {reply.ledger}, entries {reply.first} to {reply.last}"
            )
        count, digest, number = HEAD.unpack_from(body)
        if number > RANGES_MAX or len(body) != HEAD.size + number * _RANGE.size:
            raise InvalidMessageError(
                f"holdings: expected up to {RANGES_MAX} ranges, found {number} in {len(body)} bytes"
            )
        holdings = cls(count, digest, tuple(range(*bounds) for bounds in _RANGE.iter_unpack(body[HEAD.size :])))
        holdings._check(request, reply.last)
        return holdings

    def _check(self, request: Request, last: int) -> None:
        """Raise InvalidMessageError unless these are ranges of a request's entries, ascending and apart."""
        end, count = request.first, 0
        for held in self.ranges:
            fits = end <= held.start < held.stop <= last + 1
            if not fits or not _is_asked(request, held.start) or not _is_asked(request, held.stop - 1):
                raise InvalidMessageError(f"holdings: expected ranges of entries asked for, up to {last}, found {held}")
            if count and _rank(request, end) == _rank(request, held.start):
                raise InvalidMessageError(f"holdings: expected ranges apart, found one at {held.start} behind another")
            count += _rank(request, held.stop) - _rank(request, held.start)
            end = held.stop
        if count != self.count:
            raise InvalidMessageError(f"holdings: expected {count} entries, as in the ranges, found {self.count}")

    def entries(self, request: Request) -> npt.NDArray[np.int64]:
        """Return the entries that the bookie has, ascending."""
        bounds = [(_rank(request, held.start), _rank(request, held.stop)) for held in self.ranges]
        ranks = np.concatenate([np.empty(0, np.int64), *(np.arange(*pair, dtype=np.int64) for pair in bounds)])
        entries: npt.NDArray[np.int64] = request.first + ranks // request.run * request.step + ranks % request.run
        return entries


def holdings_reply(request: Request, read: Reply) -> Reply:
    """Return the reply to a HOLDINGS request.

    Args:
        request: the request.
        read: the reply to a READ of the same entries.

    Returns:
        `read`, if it is not OK; else the holdings. They end before a damaged record, and when RANGES_MAX is reached; if
            the first record is damaged, the reply is UNKNOWN.
    """
    if read.status != ReplyStatus.OK or not len(read.body):
        return read if read.status != ReplyStatus.OK else read._replace(body=Holdings().encode())
    entries, strides, last = _verified(request, read)
    if last < request.first:
        return read._replace(status=ReplyStatus.UNKNOWN, last=request.last, body=b"entry %d is damaged" % request.first)
    ranks = _ranks(request, entries)
    begins = np.flatnonzero(np.diff(ranks, prepend=-2) != 1)
    if len(begins) > RANGES_MAX:
        cut = begins[RANGES_MAX]
        last = int(entries[cut]) - 1
        entries, begins = entries[:cut], begins[:RANGES_MAX]
    ends = np.append(begins[1:], len(entries))[: len(begins)]
    ranges = [range(int(entries[b]), int(entries[e - 1]) + 1) for b, e in zip(begins, ends, strict=True)]
    digest = holdings_digest(memoryview(read.body)[: int(strides[: len(entries)].sum())])
    return read._replace(last=last, body=Holdings(len(entries), digest, tuple(ranges)).encode())


def _verified(request: Request, read: Reply) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Return the intact entries up to the first damaged one, the sizes of their records, and the last entry about which
    the reply can answer."""
    try:
        batch = parse_entries(read.body, ledger=request.ledger, first=request.first, last=read.last)
    except InvalidRecordsError:
        entries = strides = np.empty(0, np.int64)
        at = 0
    else:
        entries, strides, at = batch.entry, batch.stride, batch.next_position
    if at == len(read.body):
        return entries, strides, read.last
    damaged = int.from_bytes(memoryview(read.body)[at:][_ENTRY], "little")
    intact = int(entries[-1]) if len(entries) else request.first - 1
    return entries, strides, damaged - 1 if intact < damaged <= read.last else intact


def _ranks(request: Request, entries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of requested entries before each of some requested entries."""
    behind = entries - request.first
    return behind // request.step * request.run + behind % request.step


def _rank(request: Request, entry: int) -> int:
    """Return the number of requested entries before an entry."""
    laps, behind = divmod(entry - request.first, request.step)
    return laps * request.run + min(behind, request.run)


def _is_asked(request: Request, entry: int) -> bool:
    return (entry - request.first) % request.step < request.run
