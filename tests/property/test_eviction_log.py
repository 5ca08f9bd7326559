"""Which mapped segments of a log are let go, beside lists that are searched from end to end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.errors import ClosedError
from pyreplog.log import commit_log, retention
from pyreplog.log.commit_log import CommitLog
from pyreplog.tables.cluster import stored_log
from pyreplog.tables.cluster.stored_log import StoredLog

rows = st.lists(st.sampled_from(["mapped", "mapped", "unmapped", "pinned", "being sealed"]), min_size=1, max_size=8)


@given(most=st.integers(0, 4), kinds=rows)
def test_surplus_mapped_segments_are_unmapped_oldest_first_unless_pinned(most: int, kinds: list[str]) -> None:
    """As many as there are too many; never the last."""
    segments: list[Any] = [
        None
        if kind == "unmapped"
        else SimpleNamespace(pinned=int(kind == "pinned"), fileno=lambda kind=kind: 3 if kind == "being sealed" else -1)
        for kind in kinds
    ]
    unmapped: list[int] = []
    log: Any = SimpleNamespace(
        _segment_table=lambda: [(row, row, segment) for row, segment in enumerate(segments)], _unmap=unmapped.append
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_log, "MAPPED_MAX", most)
        CommitLog._unmap_surplus(log)
    surplus = max(sum(kind != "unmapped" for kind in kinds) - most, 0)
    assert unmapped == [row for row, kind in enumerate(kinds[:-1]) if kind == "mapped"][:surplus]


@given(most=st.integers(1, 3), bases=st.lists(st.integers(0, 4), max_size=30), gone=st.integers(-1, 4))
def test_segments_of_a_stored_log_used_longest_ago_are_let_go(most: int, bases: list[int], gone: int) -> None:
    opened: list[int] = []

    def open_segment(_: Path, __: bytes, base: int) -> Any:
        if base == gone:
            raise ClosedError("for this test")
        opened.append(base)
        return SimpleNamespace(base=base)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_log, "SEGMENTS_MAX", most)
        patch.setattr(stored_log, "_open", open_segment)
        log, held = StoredLog(Path(), bytes(16), {}), list[int]()
        for base in bases:
            opened.clear()
            if base == gone:
                with pytest.raises(ClosedError):
                    log._hold(base)
            else:
                log._hold(base)
                assert opened == ([] if base in held else [base])
                held = [*(holder for holder in held if holder != base), base][-most:]
            assert list(log._held) == held


few = st.integers(0, 4)


@given(
    size=st.none() | st.sampled_from((0, 2)), age=st.none() | st.sampled_from((0, 2)), base=few, end=few, segment_end=few, floor=few, last=few,
    now=few,
)  # fmt: skip
def test_a_segment_goes_when_it_is_larger_or_older_than_allowed(
    size: int | None, age: int | None, base: int, end: int, segment_end: int, floor: int, last: int, now: int
) -> None:
    """Not when it is just as large, or as old; and not if anything of it is needed. An age of 0 keeps nothing."""
    config: Any = SimpleNamespace(retention_bytes=size, retention_ms=age)
    goes = retention.may_remove(config, base, segment_end, last * 1000, end, now * 1000, floor)
    too_much = (size is not None and end - base > size) or (age is not None and (age == 0 or now - last > age))
    assert goes == (too_much and segment_end <= floor)
