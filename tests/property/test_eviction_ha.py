"""What nodes keep, and for how long, beside lists that are searched from end to end; times and places are of few values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.ha.protocol.replica_progress import Progress
from pyreplog.ha.protocol.retention_hold import RetentionHold, floor_of_copy
from pyreplog.rocketmq import raw_log
from pyreplog.rocketmq.raw_log import RawLog
from pyreplog.stream import terms
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, Term, TermStart
from tests.ha.rocketmq.records import FILE_BYTES, fill

few = st.integers(0, 3)

# ---- retention -------------------------------------------------------------------------------------------------------

NAMES = "abc"
standing = st.tuples(
    st.sampled_from(NAMES), st.booleans(), st.booleans(), few, few
)  # connected, observer, synced, left


@given(
    known=st.lists(standing, max_size=3, unique_by=lambda item: item[0]), members=st.sets(st.sampled_from(NAMES)),
    hold=few, remember=few, start=few, began=few, later=few,
)  # fmt: skip
def test_the_log_is_kept_for_those_that_may_come_for_it(
    known: list[tuple[str, bool, bool, int, int]], members: set[str], hold: int, remember: int, start: int, began: int,
    later: int,
) -> None:  # fmt: skip
    end, now = 5, began + later
    standings = {}
    needed: list[int] = []
    for name, connected, observer, synced, left in known:
        progress = standings[name] = Progress(name, 0)
        progress.synced, progress.observer, progress.left_us = LogPosition(synced, synced), observer, left
        progress.connection = "here" if connected else None
        if connected or (name in members and not observer and now - left <= remember):
            needed.append(synced)
    if any(name not in standings for name in members) and later <= remember:
        needed.append(start)
    holding = RetentionHold(hold, remember)
    holding.floor({}, set(), LogPosition(0, 0), LogPosition(0, 0), began)
    expected = max(min(needed), end - hold) if needed else None
    assert holding.floor(standings, members, LogPosition(start, start), LogPosition(end, end), now) == expected


@given(log_start=st.none() | few, followers=st.lists(few, max_size=3), end=few, hold=few)
def test_a_copy_is_kept_for_those_that_follow_it(
    log_start: int | None, followers: list[int], end: int, hold: int
) -> None:
    wanted = [at for at in (log_start, *followers) if at is not None]
    expected = None if not wanted else max(min(wanted), end - hold)
    assert floor_of_copy(log_start, followers, end, hold) == expected


# ---- terms -----------------------------------------------------------------------------------------------------------

begun = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=10)  # how far behind the last start; or back


@given(most=st.integers(1, 3), steps=begun)
def test_a_history_forgets_the_oldest_terms(most: int, steps: list[tuple[int, int]]) -> None:
    """A term takes the place of those that begin where it does, or behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terms, "HISTORY_MAX", most)
        history = History()
        model: list[TermStart] = []
        place = 0
        for number, (forth, back) in enumerate(steps, 1):
            place = max(place + forth - back, 0)
            term, start = Term(number, "a"), LogPosition(place, place)
            history = history.begin(term, start)
            model = [*(item for item in model if item.start.position < place), TermStart(term, start)][-most:]
            assert list(history.starts) == model
            for looked in range(len(steps) + 2):
                wanted = Term(looked, "a")
                assert history.start_of(wanted) == next((s for t, s in model if t == wanted), None)
                assert history.start_of(Term(looked, "")) is None and history.start_of(Term(looked, "b")) is None
            for end in range(place + 2):
                kept = history.up_to(LogPosition(end, end)).starts
                assert list(kept) == [item for item in model if item.start.position < end]


# ---- files of a raw log ----------------------------------------------------------------------------------------------

FILES = 6


@pytest.fixture(scope="module")
def broker_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawLog]:
    path = tmp_path_factory.mktemp("raw") / "log"
    with RawLog(path, file_bytes=FILE_BYTES) as log:
        fill(log, 40 * FILES)
    with RawLog(path) as log:
        assert log.end > FILES * FILE_BYTES
        yield log


places = st.tuples(st.integers(0, FILES - 1), st.sampled_from([0, 1, FILE_BYTES - 1]))


@given(most=st.integers(1, 3), reads=st.lists(places, max_size=30))
def test_files_read_longest_ago_are_unmapped(broker_log: RawLog, most: int, reads: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_log, "_MAPPED_MAX", most)
        broker_log._mapped.clear()
        mapped: list[int] = []  # the last read at the end
        for number, beside in reads:
            position = number * FILE_BYTES + beside
            assert len(broker_log.view(position, 1)) == 1
            base = number * FILE_BYTES
            mapped = [*(mapping for mapping in mapped if mapping != base), base][-most:]
            assert list(broker_log._mapped) == mapped
