"""Entries of a cursor ledger: each holds records of several cursors, or parts of them. FORMAT.md has the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyreplog.errors import InvalidEntryError

PAGE_BYTES = 256 << 10
RECORD_BYTES_MAX = 64 << 20
MAGIC = b"RPCU"
VERSION = 1

_HEADER = struct.Struct("<4sHHI")  # magic, version, min_reader, number of parts
_PART = struct.Struct("<HHIB3x")  # bytes of the topic, the subscription and the record; flags
_FIRST, _LAST, _WHOLE = 1, 2, 4

Key = tuple[str, str]
"""Topic and subscription."""


class RecordPart(NamedTuple):
    """A part of a record.

    Attributes:
        key: topic and subscription.
        data: the next bytes of the record.
        is_first: the record begins with this part.
        is_last: the record ends with this part.
        whole: the record is a snapshot.
    """

    key: Key
    data: bytes
    is_first: bool
    is_last: bool
    whole: bool


class Pages:
    """Builds the entries of one flush."""

    def __init__(self) -> None:
        self._done: list[bytes] = []
        self._parts: list[bytes] = []
        self._count = 0
        self._filled = _HEADER.size
        self.size = 0
        """Bytes of all records so far."""

    def add(self, key: Key, record: bytes, *, whole: bool) -> int:
        """Add a record; return the index, from 0, of the entry in which it begins."""
        topic, name = key[0].encode(), key[1].encode()
        overhead = _PART.size + len(topic) + len(name)
        if self._count and self._filled + overhead + len(record) > PAGE_BYTES:
            self._next_page()
        first, at = len(self._done), 0
        self.size += len(record)
        while True:
            data = record[at : at + PAGE_BYTES - self._filled - overhead]
            flags = (_FIRST if at == 0 else 0) | (_WHOLE if whole else 0)
            at += len(data)
            flags |= _LAST if at == len(record) else 0
            self._parts += (_PART.pack(len(topic), len(name), len(data), flags), topic, name, data)
            self._count += 1
            self._filled += overhead + len(data)
            if at == len(record):
                return first
            self._next_page()

    def _next_page(self) -> None:
        self._done.append(_HEADER.pack(MAGIC, VERSION, VERSION, self._count) + b"".join(self._parts))
        self._parts, self._count, self._filled = [], 0, _HEADER.size

    def finish(self) -> list[bytes]:
        """Return all entries; nothing can be added afterwards."""
        if self._count:
            self._next_page()
        return self._done


def parse_page(page: bytes, ledger: int, entry: int) -> Iterator[RecordPart]:
    """Yield the parts that an entry holds. Raises InvalidEntryError, which says where the entry is malformed."""

    def demand(fine: bool, at: int, expected: str, found: object) -> None:
        if not fine:
            where = f"ledger {ledger}, entry {entry}, byte {at}"
            raise InvalidEntryError(f"cursor records: {where}: expected {expected}, found {found}")

    demand(len(page) >= _HEADER.size, 0, f"a header of {_HEADER.size} bytes", len(page))
    magic, version, min_reader, count = _HEADER.unpack_from(page)
    demand(magic == MAGIC, 0, repr(MAGIC), magic)
    demand(min_reader <= VERSION <= version, 4, f"a version that {VERSION} can read", (version, min_reader))
    at = _HEADER.size
    for _ in range(count):
        demand(len(page) - at >= _PART.size, at, f"a record's {_PART.size} bytes", len(page) - at)
        topic_size, name_size, size, flags = _PART.unpack_from(page, at)
        begin = at + _PART.size
        end = begin + topic_size + name_size + size
        demand(end <= len(page), at, f"{end - begin} bytes of names and record", len(page) - begin)
        behind = begin + topic_size + name_size
        try:
            key = page[begin : begin + topic_size].decode(), page[begin + topic_size : behind].decode()
        except UnicodeDecodeError as error:
            demand(False, begin, "names in UTF-8", error)
        yield RecordPart(key, page[behind:end], bool(flags & _FIRST), bool(flags & _LAST), bool(flags & _WHOLE))
        at = end
    demand(at == len(page), at, "the end of the entry", f"{len(page) - at} bytes more")


class _Chain:
    """The records of one cursor since its last snapshot, and the parts of a record that has not ended."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []  # (entry in which it begins, record)
        self.parts: list[bytes] = []
        self.begun = -1
        self.size = 0


class Chains:
    """Collects the records of a cursor ledger by cursor; entries are added in their order."""

    def __init__(self) -> None:
        self._chains: dict[Key, _Chain] = {}
        self.nbytes = 0

    def add(self, page: bytes, ledger: int, entry: int) -> None:
        """Add an entry. Raises InvalidEntryError as `parse_page` does; earlier entries stay."""
        for part in list(parse_page(page, ledger, entry)):
            chain = self._chains.setdefault(part.key, _Chain())
            if part.is_first:
                chain.parts, chain.begun, chain.size = [], entry, 0
            elif not chain.parts:
                continue  # its beginning was not read
            chain.size += len(part.data)
            if chain.size > RECORD_BYTES_MAX:
                raise InvalidEntryError(
                    f"cursor records: ledger {ledger}, entry {entry}: expected at most {RECORD_BYTES_MAX} bytes of "
                    f"one, found {chain.size}"
                )
            chain.parts.append(part.data)
            if part.is_last:
                self._end(chain, part.whole)

    def _end(self, chain: _Chain, whole: bool) -> None:
        if whole:
            self.nbytes -= sum(len(record) for _, record in chain.records)
            chain.records.clear()
        record = b"".join(chain.parts)
        chain.records.append((chain.begun, record))
        chain.parts = []
        self.nbytes += len(record)

    def records(self, key: Key, since: int) -> list[bytes]:
        """Return the records of one cursor since its last snapshot that begin in entry `since` or later."""
        chain = self._chains.get(key)
        return [] if chain is None else [record for entry, record in chain.records if entry >= since]
