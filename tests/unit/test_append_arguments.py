"""What is looked at before an append: the length of the longest value."""

from __future__ import annotations

from typing import Any

import pytest

from pyreplog._native.log.append_arguments import longest_of


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
