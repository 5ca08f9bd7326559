"""Numpy arrays over bytes may begin at any address. Native code takes them as any other, which UBSan checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.partitioning import gather
from pyreplog._native.topic.range_set import RangeSet
from tests.record_batches import open_log
from tests.topic.entries import decoded


def unaligned(numbers: list[int]) -> NDArray[Any]:
    array = np.frombuffer(b"\0" + np.array(numbers, np.int64).tobytes(), np.uint8)[1:].view(np.int64)
    assert not array.flags.aligned
    return array


def test_columns_at_any_address_are_appended_and_selected(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", record_batches=False) as log:
        offsets, times = unaligned([0, 1, 3]), unaligned([5, 7])
        log.append_columns((offsets, b"abc"), event_times=times)
        (batch,) = log.read()
        assert batch.select(unaligned([1])).values() == [b"bc"]
        assert batch.event_time.tolist() == [5, 7]


def test_messages_are_selected_by_indices_at_any_address() -> None:
    batch = decoded([encode_messages([b"a", b"b", b"c"])], [3])
    assert batch.select(unaligned([0, 2])).values() == [b"a", b"c"]


def test_rows_are_gathered_by_numbers_at_any_address() -> None:
    offsets, data = gather((unaligned([0, 1, 3]), b"abc"), unaligned([1, 0]))
    assert (offsets.tolist(), data.tobytes()) == ([0, 2, 3], b"bca")


def test_offsets_at_any_address_are_added_to_a_set() -> None:
    offsets = RangeSet()
    assert offsets.add_offsets(unaligned([1, 2, 5])) == 3
    assert offsets.mask(unaligned([0, 1, 5])).tolist() == [False, True, True]
