"""What encoded records say of themselves: any bytes give an answer or an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.bookie.inspect_records import inspect_controls, inspect_entries
from pyreplog._native.ledger_log.entries import encode_control
from pyreplog.errors import InvalidRecordsError
from tests.bookie.asking import LEDGER, records_of


def test_entries_are_inspected_and_misplaced_ones_are_refused() -> None:
    assert inspect_entries(records_of(5, 3, 9, lac=2) + records_of(8, lac=7), ledger=LEDGER, first=3, last=9) == (
        4,
        9,
        7,
    )
    for lac in (3, 4, (1 << 62) - 1):  # nobody knows of an entry that it is confirmed before it is written
        with pytest.raises(InvalidRecordsError):
            inspect_entries(records_of(3, lac=lac), ledger=LEDGER, first=3, last=3)
    for first, end, ledger in ((4, 9, LEDGER), (3, 8, LEDGER), (3, 9, 8)):
        with pytest.raises(InvalidRecordsError):
            inspect_entries(records_of(3, 9), ledger=ledger, first=first, last=end)


def test_control_records_are_inspected_and_malformed_ones_are_refused() -> None:
    data = encode_control(5, 3, b"value", lac=-1, time=0) + encode_control(6, 0, b"", lac=9, time=0)
    assert inspect_controls(data) == [(5, 3, -1, b"value"), (6, 0, 9, b"")] and inspect_controls(b"") == []
    for bad in (data[:-8], data[:70] + b"\xff" + data[71:], records_of(1)):
        with pytest.raises(InvalidRecordsError):
            inspect_controls(bad)


@given(st.binary(max_size=300) | st.lists(st.sampled_from([0, 1, 0x11, 64, 255]), max_size=300).map(bytes))
def test_arbitrary_bytes_are_refused_as_records(data: bytes) -> None:
    for call in (
        lambda: inspect_entries(data, ledger=LEDGER, first=0, last=9),
        lambda: inspect_controls(data or b"x"),
    ):
        with pytest.raises(InvalidRecordsError):
            call()
