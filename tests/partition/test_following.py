"""A partition's follower: where its log is cut, whom it follows."""

from __future__ import annotations

import pytest

from pyreplog.partition.protocol.effects import (
    AppendRecords,
    FollowingEffect,
    ResetLog,
    SendFetch,
    ShowHighWatermark,
    TrimLog,
    TruncateLog,
)
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.following import FetchState, FollowingReplica
from pyreplog.partition.protocol.messages import DivergingEpoch, Fetch, FetchedRecords, FetchRefused
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.protocol.replica_log import ReplicaLog
from pyreplog.stream.terms import History, TermStart

from .replicas import mark

EPOCH = LeaderEpoch(5, "a")


def history(*starts: tuple[int, str, int]) -> History:
    return History(tuple(TermStart(LeaderEpoch(number, leader), mark(start)) for number, leader, start in starts))


def follower(epochs: History, end: int, *, start: int = 0, high_watermark: int = 0) -> FollowingReplica:
    log = ReplicaLog(epochs, mark(start), mark(end), mark(end))
    return FollowingReplica(Member("b", 1), log, mark(high_watermark))


def fetch_of(effects: list[FollowingEffect]) -> Fetch:
    (sent,) = (effect for effect in effects if isinstance(effect, SendFetch))
    return sent.fetch


def diverged(replica: FollowingReplica, leader: History, end: int, *, start: int = 0) -> list[FollowingEffect]:
    fetch = fetch_of(replica.follow("a", EPOCH))
    return replica.answered(DivergingEpoch(fetch.number, EPOCH, leader, mark(start), mark(end)))


def test_new_follower_sends_its_last_epoch_before_it_truncates() -> None:
    """Cutting to the high watermark would lose what is committed and not known to be (KIP-101)."""
    effects = follower(history((1, "a", 0), (3, "c", 4)), 9, high_watermark=2).follow("a", EPOCH)
    fetch = fetch_of(effects)
    assert len(effects) == 1
    assert (fetch.position, fetch.last_epoch, fetch.epoch) == (mark(9), LeaderEpoch(3, "c"), EPOCH)


def test_records_are_appended_and_the_high_watermark_is_shown_behind_them() -> None:
    replica = follower(history((1, "a", 0)), 3, high_watermark=3)
    fetch = fetch_of(replica.follow("a", EPOCH))
    records = FetchedRecords(
        fetch.number, EPOCH, mark(3), mark(6), history((5, "a", 4)).starts, mark(5), mark(2), ["..."]
    )
    assert replica.answered(records) == [AppendRecords(records)]
    effects = replica.appended(mark(6), mark(3))
    assert effects[:2] == [ShowHighWatermark(mark(5)), TrimLog(mark(2))]
    assert fetch_of(effects).last_epoch == EPOCH
    assert replica.log.history == history((1, "a", 0), (5, "a", 4))


@pytest.mark.parametrize(
    ("own", "end", "leader", "leader_end", "expected"),
    [
        (history((1, "a", 0), (2, "b", 5)), 9, history((1, "a", 0), (3, "c", 7), (5, "a", 8)), 9, 5),
        (history((1, "a", 0), (2, "b", 7)), 9, history((1, "a", 0), (3, "c", 5), (5, "a", 8)), 9, 5),
        (history((1, "a", 0), (2, "b", 5), (4, "d", 6)), 9, history((1, "a", 0), (3, "c", 7), (5, "a", 8)), 9, 5),
        (history((1, "a", 0), (3, "c", 5)), 9, history((1, "a", 0), (3, "c", 5), (5, "a", 7)), 8, 7),
    ],
    ids=["own epoch is shorter", "leader's is shorter", "two epochs that the leader lacks", "the same last epoch"],
)
def test_a_log_is_cut_to_the_end_of_the_newest_common_epoch(
    own: History, end: int, leader: History, leader_end: int, expected: int
) -> None:
    """In whichever log that ends first (KIP-279)."""
    replica = follower(own, end)
    assert diverged(replica, leader, leader_end) == [TruncateLog(mark(expected))]
    fetch = fetch_of(replica.truncated(mark(0), mark(expected), mark(expected)))
    assert fetch.position == mark(expected)
    assert fetch.last_epoch == own.up_to(mark(expected)).last


def test_logs_without_anything_in_common_begin_again_where_the_leaders_begins() -> None:
    replica = follower(history((1, "b", 0)), 4)
    leader = history((2, "c", 0), (5, "a", 8))
    assert diverged(replica, leader, 9, start=3) == [ResetLog(mark(3), history((2, "c", 0)))]
    fetch = fetch_of(replica.truncated(mark(3), mark(3), mark(3)))
    assert (fetch.position, fetch.last_epoch) == (mark(3), LeaderEpoch(2, "c"))
    assert replica.high_watermark == mark(3)


def test_a_log_that_ends_before_the_leaders_begins_is_begun_again() -> None:
    replica = follower(history((1, "a", 0)), 4)
    assert diverged(replica, history((1, "a", 0), (5, "a", 8)), 9, start=6) == [ResetLog(mark(6), history((1, "a", 0)))]


def test_a_leader_of_an_earlier_epoch_than_the_logs_is_not_followed() -> None:
    """What is read after a restart may be old; the log says whom it has followed."""
    replica = follower(history((1, "a", 0), (6, "c", 3)), 4)
    assert replica.follow("a", EPOCH) == []
    assert fetch_of(replica.follow("c", LeaderEpoch(6, "c"))).position == mark(4)
    assert replica.follow("a", EPOCH) == []


def test_answers_of_earlier_fetches_and_other_epochs_are_ignored() -> None:
    replica = follower(history((1, "a", 0)), 4)
    first = fetch_of(replica.follow("c", LeaderEpoch(3, "c")))
    second = fetch_of(replica.follow("a", EPOCH))
    late = DivergingEpoch(first.number, LeaderEpoch(3, "c"), history((1, "a", 0), (3, "c", 2)), mark(0), mark(3))
    assert replica.answered(late) == []
    assert replica.answered(late._replace(number=second.number)) == []
    assert replica.state is FetchState.FETCHING


def test_a_refusal_is_waited_out() -> None:
    replica = follower(history(), 0)
    fetch = fetch_of(replica.follow("a", EPOCH))
    assert replica.answered(FetchRefused(fetch.number, ErrorCode.UNKNOWN_LEADER_EPOCH)) == []
    assert fetch_of(replica.timed_out(fetch.number)).number > fetch.number
    assert replica.timed_out(fetch.number) == []


def test_a_new_leader_is_followed_when_the_cut_is_done() -> None:
    replica = follower(history((1, "a", 0), (2, "b", 5)), 9)
    diverged(replica, history((1, "a", 0), (5, "a", 8)), 9)
    assert replica.follow("c", LeaderEpoch(6, "c")) == []
    effects = replica.truncated(mark(0), mark(5), mark(5))
    assert [(effect.leader, effect.fetch.epoch.number) for effect in effects if isinstance(effect, SendFetch)] == [
        ("c", 6)
    ]
    replica.stop()
    assert replica.state is FetchState.IDLE


def test_a_broker_that_is_a_replica_again_follows_the_same_leader() -> None:
    replica = follower(history((1, "a", 0)), 4)
    first = fetch_of(replica.follow("a", EPOCH))
    assert replica.follow("a", EPOCH) == [], "it follows it already"
    replica.stop()
    assert fetch_of(replica.follow("a", EPOCH)).number > first.number


def test_an_answer_to_an_earlier_machine_counts_for_nothing() -> None:
    """A broker that led meanwhile, or whose append was refused, follows with a new one."""
    before = follower(history((1, "a", 0)), 4)
    late = fetch_of(before.follow("a", EPOCH))
    replica = FollowingReplica(before.member, before.log, mark(0), before.fetch_number)
    assert fetch_of(replica.follow("a", EPOCH)).number > late.number
    assert replica.answered(DivergingEpoch(late.number, EPOCH, history((1, "a", 0)), mark(0), mark(2))) == []
