"""The scenario of `make older`, with the present tree in both regions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.older.__main__ import ROOT, Build, expect, run

PRESENT = Build("the present tree", Path(sys.executable), ROOT)


def test_a_subscription_goes_on_in_the_other_region_and_both_are_upgraded(tmp_path: Path) -> None:
    run(PRESENT, PRESENT, PRESENT, tmp_path)


@pytest.mark.parametrize(
    ("numbers", "error"),
    [([1, 2], "missing \\[3\\]"), ([1, 2, 3, 3], "too many \\[3\\]"), ([1, 2, 3, 4], "too many \\[4\\]")],
)
def test_missing_and_repeated_messages_are_named(numbers: list[int], error: str) -> None:
    with pytest.raises(SystemExit, match=error):
        expect(numbers, {1, 2, 3}, "then")


def test_exit_codes_that_are_not_accepted_end_the_program() -> None:
    not_ready = "import sys; print('[]'); sys.exit(10)"
    assert PRESENT.run("-c", not_ready, accepted=(0, 10)) == []
    with pytest.raises(SystemExit, match="exit 10"):
        PRESENT.run("-c", not_ready)
