"""Bytes of position pages: what is written is read, and bytes that make no sense or are of something else are refused."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import InvalidMetadataError, MetadataVersionError
from pyreplog.origins.origin import Origin
from pyreplog.origins.position_page import BODY_BYTES_MAX, PAGE_BYTES_MAX, Runs, SealedLedger, decode, encode

OWN = Origin(bytes(range(16)), "0123456789abcdef")
ORIGINS = [Origin(b"b" * 16, "tökén"), Origin(b"c" * 16, "c")]
HEADER_BYTES = 88


def runs_of(*rows: tuple[int, int, int]) -> Runs:
    firsts, offsets, counts = np.array(rows, np.int64).T
    return firsts, offsets, counts


LEDGER = SealedLedger(7, 100, 160, 20, 4096, 1_700_000_000_000_000)
RUNS = {ORIGINS[0]: runs_of((50, 100, 5), (55, 110, 300 % 7)), ORIGINS[1]: runs_of((1 << 40, 150, 10))}


def lists(runs: dict[Origin, Runs]) -> dict[Origin, list[list[int]]]:
    return {origin: [column.tolist() for column in columns] for origin, columns in runs.items()}


def page_of(runs: dict[Origin, Runs], ledger: SealedLedger = LEDGER) -> bytes:
    page = encode(OWN, ledger, runs)
    assert page is not None
    return page


def with_body(body: bytes, count: int = 1, size: int | None = None) -> bytes:
    """A page with another body, and the CRC of that."""
    page = bytearray(page_of({}))
    head = page[: HEADER_BYTES + len(OWN.token)] + zlib.compress(body)
    struct.pack_into("<I", head, 12, count)
    struct.pack_into("<I", head, 84, len(body) if size is None else size)
    struct.pack_into("<I", head, 8, crc32c(bytes(head[12:])))
    return bytes(head)


def body_of(*columns: list[int], origin: Origin = ORIGINS[1], width: int = 8, count: int | None = None) -> bytes:
    token = origin.token.encode()
    head = struct.pack(
        "<16sHBBBBHI", origin.cluster, len(token), width, width, width, 0, 0, len(columns[0]) if count is None else count
    )  # fmt: skip
    return head + token + b"".join(np.array(column, f"<u{width}").tobytes() for column in columns)


sizes = st.sampled_from([1, 200, 1 << 15, 1 << 31])


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 9), st.integers(1, 9), sizes), max_size=20),
    st.integers(0, 1 << 40),
)
def test_a_position_page_is_decoded_as_encoded(drawn: list[tuple[int, int, int, int, int]], first: int) -> None:
    """Whatever the sizes of the numbers; the topic's own messages lie between."""
    rows: dict[Origin, list[tuple[int, int, int]]] = {}
    ends, offset = dict.fromkeys(ORIGINS, 0), first
    for who, skipped, between, count, scale in drawn:
        offset += between * scale
        if who < len(ORIGINS):
            origin = ORIGINS[who]
            rows.setdefault(origin, []).append((ends[origin] + skipped * scale, offset, count * scale))
            ends[origin] += (skipped + count) * scale
        offset += count * scale
    runs = {origin: runs_of(*of) for origin, of in rows.items()}
    ledger = LEDGER._replace(first=first, end=offset)
    assert lists(decode(page_of(runs, ledger), OWN, ledger)) == lists(runs)


@given(st.data())
def test_a_damaged_page_is_refused(data: st.DataObject) -> None:
    page = page_of(RUNS)
    if data.draw(st.booleans()):
        damaged = bytearray(page)
        at = data.draw(st.integers(8, len(page) - 1))
        damaged[at] ^= data.draw(st.integers(1, 255))
    else:
        damaged = bytearray(page[: data.draw(st.integers(0, len(page) - 1))])
    with pytest.raises(InvalidMetadataError):
        decode(bytes(damaged), OWN, LEDGER)


@pytest.mark.parametrize(
    ("own", "ledger"),
    [
        (OWN._replace(token="another"), LEDGER),
        (OWN._replace(cluster=bytes(16)), LEDGER),
        *((OWN, LEDGER._replace(**{name: getattr(LEDGER, name) + 1})) for name in LEDGER._fields),
    ],
)
def test_a_page_of_something_else_is_refused(own: Origin, ledger: SealedLedger) -> None:
    assert decode(page_of(RUNS), OWN, LEDGER).keys() == RUNS.keys()
    with pytest.raises(InvalidMetadataError, match="position page: expected"):
        decode(page_of(RUNS), own, ledger)


@pytest.mark.parametrize(
    "page",
    [
        with_body(body_of([0], [55], [6])),  # beyond the ledger
        with_body(body_of([0], [0], [0])),  # without messages
        with_body(body_of([0, (1 << 64) - 1], [0, 0], [1, 1])),  # backwards
        with_body(body_of([1 << 62, 1 << 62], [0, 0], [1, 1])),  # beyond all offsets
        with_body(body_of([0], [0], [1], count=0)),
        with_body(body_of([0], [0], [1], count=1 << 30)),
        with_body(body_of([0], [0], [1], width=8)[:18] + b"\x03\x03\x03" + body_of([0], [0], [1])[21:]),
        with_body(body_of([0], [0], [1]), count=2),
        with_body(body_of([0], [0], [1]) * 2, count=2),  # one origin twice
        with_body(body_of([0], [0], [2]) + body_of([0], [1], [1], origin=ORIGINS[0]), count=2),  # of two origins
        with_body(body_of([0], [0], [1], origin=OWN)),
        with_body(body_of([0], [0], [1])[:-1]),
        with_body(body_of([0], [0], [1]) + bytes(3)),
        with_body(body_of([0], [0], [1]), size=10),
        with_body(bytes(BODY_BYTES_MAX + 1), count=0),
        with_body(bytes(64 << 20), count=0, size=100),
    ],
)
def test_a_page_that_makes_no_sense_is_refused(page: bytes) -> None:
    with pytest.raises(InvalidMetadataError, match="position page"):
        decode(page, OWN, LEDGER)


@given(st.binary(max_size=80), st.integers(0, 3))
def test_any_body_makes_sense_or_is_refused(body: bytes, count: int) -> None:
    try:
        runs = decode(with_body(body, count), OWN, LEDGER)
    except InvalidMetadataError:
        return
    for firsts, offsets, counts in runs.values():
        assert firsts[0] >= 0 and offsets[0] >= LEDGER.first and (offsets + counts)[-1] <= LEDGER.end


def test_a_position_page_of_a_later_version_is_refused() -> None:
    page = bytearray(page_of(RUNS))
    struct.pack_into("<HH", page, 4, 2, 1)
    assert lists(decode(bytes(page), OWN, LEDGER)) == lists(RUNS)
    struct.pack_into("<HH", page, 4, 2, 2)
    with pytest.raises(MetadataVersionError, match="version 2"):
        decode(bytes(page), OWN, LEDGER)


def test_a_page_is_small_or_there_is_none() -> None:
    """Regular runs take less than a byte each; those of chance a few."""
    count = 100_000
    starts = np.arange(count) * 200
    ledger = LEDGER._replace(first=0, end=200 * count)
    page = encode(OWN, ledger, {ORIGINS[0]: (starts // 2, starts, np.full(count, 100))})
    assert page is not None and len(page) < 10_000
    random = np.random.default_rng(7)
    for runs, has_page in ((12_000, True), (count, False)):
        counts, between = random.integers(1, 200, (2, runs))
        starts = np.cumsum(counts + between) - counts
        ledger = LEDGER._replace(first=0, end=int(starts[-1] + counts[-1]))
        page = encode(OWN, ledger, {ORIGINS[0]: (np.cumsum(counts) - counts, starts, counts)})
        assert (page is not None) == has_page
        assert page is None or len(page) <= PAGE_BYTES_MAX
