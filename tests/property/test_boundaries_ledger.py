"""Lookups of ledgers and appliers beside brute force, at the values that occur and those one beside them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog.ha.relay.applier_machine import Allowance, Applied, ApplierMachine, StopBefore
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata
from pyreplog.ledger.protocol import pending_adds
from pyreplog.ledger.protocol.pending_adds import batches_of


@given(steps=st.lists(st.integers(1, 3), max_size=5))
def test_the_fragment_of_any_entry(steps: list[int]) -> None:
    firsts = [0]
    for step in steps:
        firsts.append(firsts[-1] + step)
    metadata = LedgerMetadata(
        ledger=5, ensemble_size=1, write_quorum=1, ack_quorum=1, proof="",
        fragments=tuple(Fragment(first, (f"bookie{first}",)) for first in firsts),
    )  # fmt: skip
    for entry in range(firsts[-1] + 3):
        assert metadata.fragment_of(entry).first == max(first for first in firsts if first <= entry)


@given(sizes=st.lists(st.sampled_from([0, 8, 100]), min_size=1, max_size=6), data=st.data())
def test_entries_are_sent_in_batches_of_so_many_bytes_or_of_one_entry(sizes: list[int], data: st.DataObject) -> None:
    entries = encode_entries([bytes(size) for size in sizes], ledger=5, first=7, lac=6, time=1)
    records = [stop - start for start, stop in zip(entries.offsets[:-1], entries.offsets[1:], strict=True)]
    sums = {sum(records[low:high]) for low in range(len(sizes)) for high in range(low + 1, len(sizes) + 1)}
    for most in sorted(size + step for size in sums for step in (-1, 0, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pending_adds, "BATCH_BYTES", most)
            rows = [
                (batch.first - 7, batch.last - 7, batch.nbytes)
                for batch in batches_of(7, entries.view, entries.offsets)
            ]
        expected, start = [], 0
        while start < len(records):
            stop = start + 1
            while stop < len(records) and sum(records[start : stop + 1]) <= most:
                stop += 1
            expected.append((start, stop - 1, sum(records[start:stop])))
            start = stop
        assert rows == expected


@given(
    steps=st.lists(st.integers(0, 2), min_size=1, max_size=8), until=st.integers(-1, 12), delay=st.integers(0, 4),
    now=st.integers(0, 14),
)  # fmt: skip
def test_records_are_applied_before_a_time_and_once_they_are_old_enough(
    steps: list[int], until: int, delay: int, now: int
) -> None:
    times = [sum(steps[: at + 1]) for at in range(len(steps))]
    applying = ApplierMachine(Applied(bytes(16), 0, 0), workers=1, batch_entries=9, delay_us=delay)
    applying.start(Applied(bytes(16), 0, 0), StopBefore(time_us=until))
    before = sum(time < until for time in times)
    old = sum(now - time >= delay for time in times) if delay else len(times)
    wait = 0 if not before or old else times[0] + delay - now
    assert applying.allow(times, now) == (Allowance(min(before, old)) if not wait else Allowance(0, wait))
    assert (applying.state.name == "FINISHED") == (before == 0)
