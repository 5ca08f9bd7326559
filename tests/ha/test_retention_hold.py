"""Which part of its log a node keeps for replicas that lag, and how it knows their progress."""

from __future__ import annotations

import pytest

from pyreplog._native.ha.commit_point import RATE_US
from pyreplog.ha.protocol.async_fallback import AsyncFallback
from pyreplog.ha.protocol.replica_progress import InSyncLimits, Progress
from pyreplog.ha.protocol.retention_hold import RetentionHold, floor_of_copy
from pyreplog.stream.log_position import ORIGIN, LogPosition

from .groups import mark

START, END = mark(5), mark(100)
REMEMBER_US = 1000
BEGAN_US = 50_000


def replica(name: str, synced: int, *, left_us: int | None = None, observer: bool = False) -> Progress:
    """A replica that has received 10 entries more than it has synced. left_us: when its connection ended."""
    progress = Progress(name, BEGAN_US)
    progress.joined("a connection", observer, mark(synced + 10), mark(synced), END, BEGAN_US)
    if left_us is not None:
        progress.disconnected(left_us)
    return progress


def floor(hold: RetentionHold, *replicas: Progress, members: str = "", now_us: int = BEGAN_US) -> int | None:
    progress_by_name = {progress.name: progress for progress in replicas}
    return hold.floor(progress_by_name, frozenset(members), START, END, now_us)


# ---- what is kept ----------------------------------------------------------------------------------------------


def test_all_is_kept_that_a_connected_replica_has_not_synced() -> None:
    hold = RetentionHold(1 << 40, REMEMBER_US)
    assert floor(hold) is None
    assert floor(hold, replica("a", 40), replica("o", 30, observer=True), members="a") == mark(30).position


@pytest.mark.parametrize(("after_us", "expected"), [(REMEMBER_US, mark(40).position), (REMEMBER_US + 1, None)])
def test_a_member_that_has_gone_is_remembered_for_a_while(after_us: int, expected: int | None) -> None:
    hold = RetentionHold(1 << 40, REMEMBER_US)
    gone = replica("a", 40, left_us=BEGAN_US)
    assert floor(hold, gone, members="a", now_us=BEGAN_US + after_us) == expected
    assert floor(hold, gone, members="", now_us=BEGAN_US) is None, "it is no member any more"
    observer = replica("a", 40, left_us=BEGAN_US, observer=True)
    assert floor(hold, observer, members="a", now_us=BEGAN_US) is None


@pytest.mark.parametrize(("after_us", "expected"), [(REMEMBER_US, START.position), (REMEMBER_US + 1, None)])
def test_members_that_never_came_may_need_anything_for_a_while(after_us: int, expected: int | None) -> None:
    hold = RetentionHold(1 << 40, REMEMBER_US)
    assert floor(hold, members="b", now_us=BEGAN_US) == START.position
    assert floor(hold, members="b", now_us=BEGAN_US + after_us) == expected
    assert floor(hold, replica("a", 40), members="ab", now_us=BEGAN_US + after_us) == (expected or mark(40).position)


def test_bytes_kept_for_replicas_are_bounded() -> None:
    limit = END.position - mark(40).position
    for hold_bytes, expected in (
        (limit + 1, 40 * 100),
        (limit, 40 * 100),
        (limit - 1, 40 * 100 + 1),
        (0, END.position),
    ):
        assert floor(RetentionHold(hold_bytes, REMEMBER_US), replica("a", 40), members="a") == expected


@pytest.mark.parametrize(
    ("log_start", "followers", "hold_bytes", "expected"),
    [
        (None, [], 1000, None),
        (None, [70, 60], 1000, 60),
        (50, [], 1000, 50),
        (50, [70, 40], 1000, 40),
        (50, [70], 1000, 50),
        (50, [70], 50, 50),
        (50, [70], 49, 51),
    ],
)
def test_floor_of_a_copy_follows_its_followers_and_the_hold_limit(
    log_start: int | None, followers: list[int], hold_bytes: int, expected: int | None
) -> None:
    assert floor_of_copy(log_start, iter(followers), 100, hold_bytes) == expected


# ---- how far a replica is --------------------------------------------------------------------------------------


def test_progress_of_a_replica_is_reset_when_it_joins() -> None:
    progress = replica("a", 40)
    progress.counts = progress.reported = True
    progress.counted = mark(40)
    progress.joined("another connection", True, mark(60), mark(55), END, BEGAN_US + 7)
    assert (progress.connection, progress.observer) == ("another connection", True)
    assert (progress.reported, progress.counts, progress.counted) == (False, False, ORIGIN)
    assert (progress.received, progress.synced) == (mark(60), mark(55))
    progress.disconnected(BEGAN_US + 9)
    assert (progress.connection, progress.left_us, progress.synced) == (None, BEGAN_US + 9, mark(55))


def test_a_replica_is_in_sync_within_its_limits() -> None:
    limits = InSyncLimits(1000, 500)
    progress = replica("a", 40)
    near, far = LogPosition(END.position - 1000, 90), LogPosition(END.position - 1001, 89)
    assert not progress.is_in_sync(near, END, BEGAN_US, limits), "it has reported nothing"
    progress.counts = True
    assert progress.is_in_sync(near, END, BEGAN_US, limits)
    assert not progress.is_in_sync(far, END, BEGAN_US, limits)
    assert progress.is_in_sync(near, END, BEGAN_US + 500, limits)
    assert not progress.is_in_sync(near, END, BEGAN_US + 501, limits)
    assert progress.is_in_sync(END, END, BEGAN_US + 10_000, limits), "it is level"
    assert (progress.lag_us(near, END, BEGAN_US + 501), progress.lag_us(END, END, BEGAN_US + 501)) == (501, 0)
    progress.disconnected(BEGAN_US)
    assert not progress.is_in_sync(END, END, BEGAN_US, limits)
    progress.counts = False
    assert progress.lag_us(END, END, BEGAN_US + 3) == 3


def test_replica_stats_show_state_and_lag() -> None:
    limits, progress = InSyncLimits(1 << 40, 500), replica("a", 40)
    stats = progress.stats(mark(50), END, BEGAN_US + 4, limits)
    assert (stats.name, stats.state, stats.observer, stats.in_sync) == ("a", "joining", False, False)
    assert (stats.received, stats.synced, stats.lag_bytes, stats.lag_us) == (mark(50), mark(40), 5000, 4)
    progress.counts = True
    assert progress.stats(mark(50), END, BEGAN_US + 4, limits)[1:4] == ("streaming", False, True)
    progress.disconnected(BEGAN_US)
    assert progress.stats(mark(50), mark(20), BEGAN_US, limits)[1:4] == ("gone", False, False)
    assert progress.stats(mark(50), mark(20), BEGAN_US, limits).lag_bytes == 0


def test_the_rate_is_that_of_lately() -> None:
    progress = replica("a", 0)
    progress.received = mark(110)
    assert progress.rate(BEGAN_US + RATE_US - 1) == 0, "nothing is known yet"
    assert progress.rate(BEGAN_US + RATE_US) == 10_000 * 1_000_000 // RATE_US
    assert progress.rate(BEGAN_US + 2 * RATE_US) == 10_000 * 1_000_000 // (2 * RATE_US)
    progress.disconnected(BEGAN_US)
    assert progress.rate(BEGAN_US + RATE_US) == 0


# ---- a master that goes on alone -------------------------------------------------------------------------------


def test_a_master_waits_so_long_for_each_mark() -> None:
    fallback = AsyncFallback(100, None)
    assert not fallback.is_due(1 << 40), "it waits for nothing"
    fallback.wait(mark(5), mark(5), 10)
    assert not fallback.is_due(1 << 40)
    fallback.wait(mark(6), mark(5), 20)
    fallback.wait(mark(9), mark(5), 90)  # the first mark is still not reached
    assert (fallback.is_due(119), fallback.is_due(120)) == (False, True)
    fallback.wait(mark(9), mark(6), 95)
    assert (fallback.is_due(194), fallback.is_due(195)) == (False, True)
    fallback.wait(mark(9), mark(9), 100)
    assert not fallback.is_due(1 << 40)
    never = AsyncFallback(None, None)
    never.wait(mark(6), mark(5), 0)
    assert not never.is_due(1 << 40)


def test_records_committed_without_replicas_are_owed_until_replicas_have_them() -> None:
    fallback = AsyncFallback(0, None)
    assert not fallback.settles(END), "nothing is owed"
    fallback.wait(mark(6), mark(5), 0)
    assert fallback.is_due(0)
    fallback.begin(mark(6), 7)
    assert (fallback.is_alone, fallback.since_us, fallback.count, fallback.owed) == (True, 7, 1, mark(6))
    assert not fallback.is_due(1 << 40) and not fallback.settles(END), "while it is alone"
    fallback.shows(mark(8))
    fallback.shows(mark(7))
    assert fallback.owed == mark(8)
    fallback.end()
    assert not fallback.is_alone and not fallback.is_due(1 << 40)
    assert not fallback.settles(None) and not fallback.settles(mark(7))
    assert fallback.settles(mark(8)) and fallback.owed is None
    assert not fallback.settles(mark(8)), "once"
    assert AsyncFallback(0, mark(3)).settles(mark(3))
