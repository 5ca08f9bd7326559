"""The arguments of an append: the length of the longest value, and the parts that point to them."""

from __future__ import annotations

from typing import Any

import pytest

from pyreplog._native.log.append_arguments import BatchParts, ColumnParts, SequenceParts, longest_of
from pyreplog.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("values", "longest"),
    [
        ([], 0),
        ([b""], 0),
        ([b"x", b"longest", b"yy"], 7),
        ([b"x", bytearray(9), b"yy"], 9),
        ([b"longest", memoryview(b"xyz")], 7),
        ((b"x", b"yy"), 2),
        (iter([b"longest", b"x"]), 7),
    ],
)
def test_the_longest_of_some_values(values: Any, longest: int) -> None:
    assert longest_of(values) == longest


@pytest.mark.parametrize(
    ("kind", "arguments", "others"),
    [
        (SequenceParts, ([bytearray(b"value")], None, None, None), ([bytearray(9)], None, None, None)),
        (BatchParts, ([bytearray(b"value")], [1], None, None), ([bytearray(9)], [1], None, None)),
        (ColumnParts, (([0, 5], b"value"), None, None), (([0, 9], bytes(9)), None, None)),
    ],
)
def test_the_parts_of_an_append_are_made_once(kind: Any, arguments: Any, others: Any) -> None:
    """They point to the arguments of the first call, for which their room was made."""
    parts = kind(*arguments)
    with pytest.raises(InvalidArgumentError, match="made before"):
        parts.__init__(*others)
    assert (parts.count, parts.value_bytes) == (1, 5)
