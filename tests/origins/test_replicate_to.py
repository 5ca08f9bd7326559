"""Lists of clusters that messages may be replicated to: what is written is read, and nonsense is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.log.attributes import decode_attributes
from pyreplog.errors import InvalidArgumentError, InvalidEntryError, WrongTypeError
from pyreplog.origins.replicate_to import (
    NAMES_MAX,
    TAG_REPLICATE_TO,
    attribute_of,
    check_replicate_to,
    decode_names,
    encode_names,
)

names = st.frozensets(st.text("abcü/", min_size=1, max_size=20), max_size=NAMES_MAX)


@given(names)
def test_a_list_of_target_clusters_is_decoded_as_encoded(clusters: frozenset[str]) -> None:
    ((tag, value),) = decode_attributes(attribute_of(list(clusters)) or b"")
    assert tag == TAG_REPLICATE_TO and decode_names(value) == clusters
    assert encode_names(clusters) == value


@given(st.binary(max_size=40))
def test_any_bytes_are_a_list_or_refused(data: bytes) -> None:
    try:
        clusters = decode_names(data)
    except InvalidEntryError:
        return
    assert check_replicate_to(clusters) == clusters


@pytest.mark.parametrize(
    "data", [b"\x05west", b"\x00", b"\x02\xff\xff", b"\x01\n", b"\x01a" * (NAMES_MAX + 1), b"\x04"]
)
def test_a_malformed_list_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidEntryError):
        decode_names(data)


def test_the_order_and_repetitions_of_names_make_no_difference() -> None:
    assert attribute_of(["west", "south", "west"]) == attribute_of(("south", "west"))
    assert attribute_of(None) is None and attribute_of(()) == bytes((TAG_REPLICATE_TO, 0, 0))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("west", WrongTypeError), (b"west", WrongTypeError), ([b"west"], WrongTypeError), (7, WrongTypeError),
        ([""], InvalidArgumentError), (["x" * 201], InvalidArgumentError), (["a\n"], InvalidArgumentError),
        ([str(number) for number in range(NAMES_MAX + 1)], InvalidArgumentError),
    ],
)  # fmt: skip
def test_invalid_list_of_target_clusters_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_replicate_to(wrong)
