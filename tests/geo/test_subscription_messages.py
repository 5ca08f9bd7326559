"""Messages and journal records of replicated subscriptions: encoding, decoding, hostile bytes and damaged ones."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, MetadataVersionError, ReplogError
from pyreplog.geo.acks.digests import block_bits, differences, digest_line
from pyreplog.geo.acks.journal import encode_record, replay, snapshot_items
from pyreplog.geo.acks.messages import (
    MESSAGE_BYTES_MAX,
    TOKENS_MAX,
    AcksItem,
    Delta,
    StateItem,
    Summary,
    decode,
    encode,
    split_ranges,
)
from pyreplog.geo.acks.origin_ranges import OriginRanges, ranges_of
from pyreplog.geo.acks.subscription_state import FIRST_GENERATION, FIRST_HOME
from tests.golden.subscriptions import items, messages

from .exchanging import origin, span, whole

OFFSETS = st.sets(st.integers(0, 300_000), max_size=40)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_reason(data: bytes) -> None:
    for read in (decode, lambda data: replay([data])):
        try:
            read(data)
        except ReplogError as error:
            assert isinstance(error, InvalidRecordsError | MetadataVersionError)


@pytest.mark.parametrize("name", messages())
def test_damaged_messages_are_refused_or_understood(name: str, seed: int) -> None:
    """Each byte is changed, and the message is cut at each length: only the documented error is raised, and little
    memory is used."""
    good, chance = encode(messages()[name]), random.Random(seed)
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, damaged[at] ^ (1 << chance.randrange(8))])
        for data in (bytes(damaged), good[:at], good[:at] + bytes(8) + good[at:]):
            try:
                decode(data)
            except ReplogError:
                continue
    with pytest.raises(InvalidRecordsError, match="the end of the message"):
        decode(good + b"\0")


def test_damaged_records_are_refused_or_understood(seed: int) -> None:
    good, chance = encode_record(1, items()), random.Random(seed)
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1 << chance.randrange(8)
        for data in (bytes(damaged), good[:at]):
            try:
                replay([data])
            except ReplogError:
                continue
    with pytest.raises(InvalidRecordsError, match="the end of the record"):
        replay([good + b"\0"])


def test_messages_beyond_their_bounds_are_refused() -> None:
    with pytest.raises(InvalidRecordsError, match="at most"):
        decode(bytes(MESSAGE_BYTES_MAX + 1))
    with pytest.raises(InvalidArgumentError, match="name of a subscription"):
        encode(Summary(1, (("x" * 256, bytes(8)),), True))
    many = StateItem(
        "s", tuple(f"t{number}" for number in range(TOKENS_MAX + 1)), FIRST_GENERATION, FIRST_HOME, OriginRanges()
    )
    with pytest.raises(InvalidArgumentError, match="births"):
        encode(Delta(1, 1, (many,)))
    data = bytearray(encode(Summary(1, (("s", bytes(8)),), True)))
    data[0] = 2
    with pytest.raises(MetadataVersionError):
        decode(bytes(data))
    data[:5] = bytes([1, 9, 0, 0, 0])
    with pytest.raises(InvalidRecordsError, match="kind"):
        decode(bytes(data))


def test_a_journal_has_no_gaps() -> None:
    first, second, third = (encode_record(number, items()) for number in (1, 2, 3))
    snapshot = encode_record(3, items(), is_snapshot=True)
    assert replay([]).sequence == 0
    assert replay([first, second, third]).sequence == replay([first, snapshot]).sequence == 3
    for records in ([first, third], [second, third], [snapshot, third]):
        with pytest.raises(InvalidRecordsError, match=r"record \d"):
            replay(records)


def test_replaying_journal_records_twice_changes_nothing() -> None:
    once = replay([encode_record(1, items())])
    twice = replay([encode_record(1, items()), encode_record(2, items())])
    assert once.lifecycles["s"].state == twice.lifecycles["s"].state
    whole_again = encode_record(5, snapshot_items(once.lifecycles, once.unknown), is_snapshot=True)
    restored = replay([whole_again])
    assert restored.lifecycles["s"].state == once.lifecycles["s"].state
    assert restored.unknown == once.unknown


@given(OFFSETS, OFFSETS)
def test_differences_are_all_that_the_other_side_lacks(mine: set[int], theirs: set[int]) -> None:
    ours, others = (ranges_of(*span(*sorted(offsets))) for offsets in (mine, theirs))
    lacking = differences(ours, digest_line("s", bytes(8), others))
    assert all(number in lacking for number in mine - theirs)
    assert all(number in ours for starts, ends in lacking.chunks() for number in [*starts, *(ends - 1)])
    assert not differences(ours, digest_line("s", bytes(8), ours))
    assert differences(ours, None).dump() == ours.dump()


def test_a_digest_line_stays_small() -> None:
    """A line of the state is short, however far apart the acknowledged ranges are."""
    starts = np.arange(20_000) * 10_000_000
    ranges = ranges_of(starts, starts + 1)
    line = digest_line("s", bytes(8), ranges)
    assert len(line.blocks) <= 4096 and line.bits == block_bits(ranges, 1) > 16
    assert not differences(ranges, line)
    ranges.add(5_000_001, 5_000_002)
    assert 5_000_001 in differences(ranges, line)
    contiguous = ranges_of(*whole(0, 10**12))
    assert not digest_line("s", bytes(8), contiguous).blocks


def test_large_acknowledgement_items_are_split() -> None:
    ranges = ranges_of(*span(*range(0, 100, 2)))
    parts = split_ranges(ranges, 7)
    assert [len(part) for part in parts] == [7] * 7 + [1]
    joined = RangeSet()
    for part in parts:
        joined.add_ranges(*part.intersect())
    assert joined.dump() == ranges.dump()
    item = AcksItem("s", "t", FIRST_GENERATION, origin("a"), ranges)
    decoded = decode(encode(Delta(1, 1, (item,))))
    assert isinstance(decoded, Delta) and isinstance(decoded.items[0], AcksItem)
    assert decoded.items[0].ranges.dump() == ranges.dump()
