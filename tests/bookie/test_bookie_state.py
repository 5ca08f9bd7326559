"""States of bookies in the metadata store."""

from __future__ import annotations

import json

import pytest

from pyreplog.bookie.bookie_state import BookiePhase, BookieState, bookie_state_key
from pyreplog.errors import InvalidMetadataError, MetadataVersionError

GOLDEN = b'{"version":1,"min_reader":1,"phase":"away","since_us":1700000000000000,"reason":""}'


def test_a_bookie_state_has_its_golden_bytes() -> None:
    state = BookieState(BookiePhase.AWAY, 1_700_000_000_000_000)
    assert state.encode() == GOLDEN
    assert BookieState.decode(GOLDEN) == state
    assert bookie_state_key("b0@ab") == "/bookie-states/b0@ab"


def test_fields_of_other_versions_are_kept() -> None:
    newer = json.dumps({**json.loads(GOLDEN), "version": 7, "min_reader": 1, "until_us": 5}).encode()
    body = json.loads(BookieState.decode(newer).encode())
    assert (body["version"], body["min_reader"], body["until_us"]) == (7, 1, 5)


@pytest.mark.parametrize("version", [{"version": 2, "min_reader": 2}, {"min_reader": 9}])
def test_a_value_that_needs_a_newer_reader(version: dict[str, int]) -> None:
    with pytest.raises(MetadataVersionError, match="state of a bookie"):
        BookieState.decode(json.dumps({**json.loads(GOLDEN), **version}).encode())


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("min_reader", "1", "expected a version from 1"),
        ("version", None, "expected a version from 1"),
        ("since_us", -1, "since_us: expected 0 to "),
        ("since_us", 1 << 63, "since_us: expected 0 to "),
        ("since_us", 1.5, "since_us: expected int, found '1.5'"),
        ("phase", "asleep", "'asleep' is not a valid BookiePhase"),
        ("reason", 3, "reason: expected str, found '3'"),
    ],
)
def test_a_bookie_state_with_a_bad_field_is_refused(field: str, value: object, told: str) -> None:
    with pytest.raises(InvalidMetadataError, match="state of a bookie: ") as caught:
        BookieState.decode(json.dumps({**json.loads(GOLDEN), field: value}).encode())
    assert told in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"1"])
def test_bytes_that_are_no_bookie_state_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError):
        BookieState.decode(data)
