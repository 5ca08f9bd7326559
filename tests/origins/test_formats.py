"""Bytes of origins: what is written is read, and bytes that make no sense are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.log.attributes import decode_attributes
from pyreplog.errors import InvalidEntryError, InvalidMetadataError, MetadataVersionError, ReplogError
from pyreplog.origins.attribute import TAG_ORIGIN, OriginAttribute, decode_gaps
from pyreplog.origins.gate import GateState
from pyreplog.origins.origin import GAPS_MAX, Gap, GapCause, LastEntry, Origin
from pyreplog.origins.snapshot import decode, encode

ORIGIN = Origin(bytes(range(16)), "0123456789abcdef")
ATTRIBUTE = OriginAttribute(0xF00D, 1000, 1_700_000_000_000_000, (Gap(990, 1000, GapCause.FILTERED),))
STATES = [
    GateState(ORIGIN, 3, 120, LastEntry(90, 100, 0xDEADBEEF, 5), (Gap(100, 120, GapCause.FOREIGN),)),
    GateState(ORIGIN._replace(token="tökén"), 0, 0, None, ()),
]

causes = st.sampled_from(GapCause)


@st.composite
def gap_lists(draw: st.DrawFn) -> list[Gap]:
    at, gaps = 0, []
    for skipped, size, cause in draw(
        st.lists(st.tuples(st.integers(0, 9), st.integers(1, 1 << 40), causes), max_size=9)
    ):
        gaps.append(Gap(at + skipped, at + skipped + size, cause))
        at = gaps[-1].end
    return gaps


@given(st.integers(0, (1 << 64) - 1), gap_lists(), st.integers(0, 1 << 50), st.integers(-(1 << 63), (1 << 63) - 1))
def test_an_origin_attribute_is_decoded_as_encoded(key: int, gaps: list[Gap], behind: int, time_us: int) -> None:
    first = (gaps[-1].end if gaps else 0) + behind
    attribute = OriginAttribute(key, first, time_us, tuple(gaps))
    ((tag, value),) = decode_attributes(attribute.to_bytes())
    assert tag == TAG_ORIGIN and OriginAttribute.from_bytes(value) == attribute


@pytest.mark.parametrize("count", [0, 1, 2, GAPS_MAX])
def test_an_attribute_takes_27_bytes_and_17_for_each_gap(count: int) -> None:
    gaps = tuple(Gap(at, at + 1, GapCause.FILTERED if at % 2 else GapCause.FOREIGN) for at in range(count))
    assert len(OriginAttribute(1, count, 3, gaps).to_bytes()) == 27 + 17 * count


@given(st.binary(max_size=120))
def test_any_bytes_are_an_attribute_or_refused(data: bytes) -> None:
    try:
        attribute = OriginAttribute.from_bytes(data)
    except InvalidEntryError:
        return
    assert attribute.first >= 0 and all(gap.start < gap.end <= attribute.first for gap in attribute.gaps)


def test_gaps_are_bounded_and_unknown_causes_are_kept_as_lost() -> None:
    packed = [struct.pack("<qqB", at, at + 1, 1) for at in range(GAPS_MAX + 1)]
    assert len(decode_gaps(b"".join(packed[:-1]))) == GAPS_MAX
    with pytest.raises(InvalidEntryError, match="at most"):
        decode_gaps(b"".join(packed))
    assert decode_gaps(struct.pack("<qqB", 3, 9, 200)) == [Gap(3, 9, GapCause.LOST)]


def test_a_key_is_of_cluster_and_token() -> None:
    """The keys are on disks: they may not change."""
    assert ORIGIN.key == 0x32B93E108222F5AE
    assert len({ORIGIN.key, ORIGIN._replace(token="x").key, ORIGIN._replace(cluster=bytes(16)).key}) == 3


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=16, max_size=16), st.text(max_size=20), st.integers(0, 1 << 62), gap_lists(),
            st.booleans(),
        ),
        max_size=5, unique_by=lambda item: item[:2],
    )
)  # fmt: skip
def test_a_snapshot_of_origins_is_decoded_as_encoded(drawn: list[tuple[bytes, str, int, list[Gap], bool]]) -> None:
    states = []
    for cluster, token, session, gaps, has_last in drawn:
        stored = (gaps[-1].end if gaps else 0) + 10
        last = LastEntry(stored - 5, stored - 1, 7, -3) if has_last else None
        states.append(GateState(Origin(cluster, token), session, stored, last, tuple(gaps)))
    assert decode(encode(states)) == states


@given(st.data())
def test_a_damaged_snapshot_is_refused_or_makes_sense(data: st.DataObject) -> None:
    damaged = bytearray(encode(STATES))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    try:
        for state in decode(bytes(damaged[:cut])):
            assert state.stored >= 0 and (state.last is None or state.last.end <= state.stored)
    except ReplogError as error:
        assert isinstance(error, InvalidMetadataError)


def test_a_later_version_may_have_more_fields() -> None:
    data = encode(STATES[:1])
    size = struct.unpack_from("<H", data, 8 + 16)[0]
    longer = struct.pack("<HHI", 2, 1, 1) + data[8:24] + struct.pack("<H", size + 8) + data[26 : 8 + size]
    assert decode(longer + b"newfield" + data[8 + size :]) == STATES[:1]
    with pytest.raises(MetadataVersionError, match="version 2"):
        decode(struct.pack("<HHI", 2, 2, 0))
