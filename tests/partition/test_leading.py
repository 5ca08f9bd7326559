"""A partition's leader: what counts for the high watermark, who is in the ISR, what is acknowledged."""

from __future__ import annotations

import pytest

from pyreplog.partition.protocol.effects import AlterIsr, LeadershipLost, LoadState, ReadRecords, SendFetchResponse
from pyreplog.partition.protocol.epochs import NO_EPOCH, LeaderEpoch
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.messages import DivergingEpoch, Fetch, FetchRefused
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Member

from .replicas import LAG_US, VERSION, Leader, mark, members, registered, state

FORMER = LeaderEpoch(1, "b")


def refusal(effects: object) -> ErrorCode:
    assert isinstance(effects, list)
    (answer,) = effects
    assert isinstance(answer, SendFetchResponse) and isinstance(answer.response, FetchRefused)
    return answer.response.code


# ---- reads from followers (KIP-392) ----------------------------------------------------------------------------


def test_consumers_may_read_from_in_sync_followers_that_have_the_offset() -> None:
    leader = Leader("abc", replicas="abcd")
    leader.append(4)
    assert leader.machine.in_sync_with(0) == [], "they have told nothing in this epoch"
    leader.fetch("b", 3)
    leader.fetch("c", 5)
    leader.fetch("d", 5)
    assert leader.machine.in_sync_with(3) == ["c", "b"], "the longest log first; d is not in the ISR"
    assert leader.machine.in_sync_with(4) == ["c"]
    assert leader.machine.in_sync_with(6) == []


def test_consumers_may_not_read_from_followers_that_are_not_alive_or_follow_another_epoch() -> None:
    leader = Leader("abc", before=4, high_watermark=2)
    leader.fetch("b", 4, last_epoch=FORMER)
    leader.fetch("c", 5)
    assert leader.machine.in_sync_with(1) == ["c"]
    brokers = {**registered(*"ab"), "c": BrokerRegistration(1, is_stopping=True)}
    leader.machine.brokers_changed(brokers, 0)
    assert leader.machine.in_sync_with(1) == []


def test_consumers_may_not_read_from_followers_whose_log_begins_later() -> None:
    leader = Leader("ab", replicas="ab")
    leader.append(4)
    fetch = Fetch(1, Member("b", 1), leader.epoch, mark(5), leader.epoch, mark(5), mark(0), log_start=3)
    leader.machine.fetched(fetch, 0)
    assert leader.machine.in_sync_with(2) == [] and leader.machine.in_sync_with(3) == ["b"]


# ---- high watermark --------------------------------------------------------------------------------------------


def test_the_high_watermark_is_what_all_in_sync_replicas_have() -> None:
    leader = Leader("abc")
    leader.append(4)
    leader.fetch("b", 5)
    assert leader.high_watermark == 0
    leader.fetch("c", 3)
    assert leader.high_watermark == 3
    leader.fetch("c", 5)
    assert leader.high_watermark == 5


def test_a_fetch_that_arrives_late_takes_nothing_back() -> None:
    leader = Leader("ab")
    leader.append(4)
    leader.fetch("b", 4)
    leader.append(1)
    leader.fetch("b", 2)
    leader.append(1)
    leader.fetch("b", 6)
    assert leader.high_watermark == 6


def test_high_watermark_counts_synced_records_with_requires_sync() -> None:
    leader = Leader("ab", requires_sync=True)
    leader.append(4)
    leader.fetch("b", 5, synced=2)
    assert leader.high_watermark == 2
    leader.effects += leader.machine.appended(mark(9), mark(5), 0)
    leader.fetch("b", 9)
    assert leader.high_watermark == 5


def test_a_follower_counts_once_its_log_has_the_record_of_the_epoch() -> None:
    """Before, it may still follow another leader when it starts again, and be cut to that one's log (KIP-320)."""
    leader = Leader("ab", before=4, high_watermark=2)
    leader.fetch("b", 4, last_epoch=FORMER)
    assert leader.high_watermark == 2
    leader.fetch("b", 5)
    assert leader.high_watermark == 5


def test_nothing_is_committed_under_min_isr() -> None:
    """Members of the ELR can be elected: they have to have all that is committed (KIP-966)."""
    leader = Leader("a", min_isr=2, elr="b")
    leader.append(3)
    assert leader.high_watermark == 0
    assert leader.machine.admit(ACKS_ALL) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.machine.admit(1) is ErrorCode.NONE
    leader.fetch("b", 4)
    assert leader.proposed == ["a@1", "b@1"] and leader.high_watermark == 0, "not before it has joined"
    leader.alter()
    assert leader.high_watermark == 4


def test_a_follower_that_is_close_behind_is_waited_for_before_it_has_joined() -> None:
    leader = Leader("a")
    leader.append(4)
    leader.fetch("b", 4)
    leader.append(1)
    leader.fetch("b", 5, 1)
    leader.append(1, 1)
    assert leader.high_watermark == 6 and not leader.proposed
    leader.fetch("b", 6, 2)
    assert leader.proposed == ["a@1", "b@1"]


def test_a_fenced_follower_does_not_hold_the_high_watermark() -> None:
    """KAFKA-15021."""
    leader = Leader("a")
    leader.machine.brokers_changed({**registered(*"ac"), "b": BrokerRegistration(1, is_fenced=True)}, 0)
    leader.append(4)
    leader.fetch("b", 4)
    leader.append(1)
    leader.fetch("b", 5, 1)
    leader.append(1, 1)
    assert leader.high_watermark == 7 and not leader.proposed


def test_latest_offset_is_unknown_until_it_covers_the_end_of_earlier_leaders() -> None:
    """KIP-207."""
    leader = Leader("ab", before=4, high_watermark=2)
    assert leader.machine.latest is None
    leader.fetch("b", 5)
    assert leader.machine.latest == mark(5)


# ---- ISR -------------------------------------------------------------------------------------------------------


def test_a_follower_joins_with_all_that_is_committed() -> None:
    leader = Leader("a")
    leader.append(4)
    leader.fetch("b", 3)
    assert leader.proposed == []
    leader.fetch("b", 5)
    assert leader.proposed == ["a@1", "b@1"]


def test_a_follower_joins_in_this_epoch_only() -> None:
    """Its log reaches the high watermark that the leader knows, which is less than was committed (KAFKA-7128)."""
    leader = Leader("ac", before=4, high_watermark=2)
    leader.fetch("b", 4, last_epoch=FORMER)
    leader.fetch("b", 4, last_epoch=FORMER)
    assert leader.proposed == []
    leader.fetch("b", 5)
    assert leader.proposed == ["a@1", "b@1", "c@1"]


def test_broker_about_to_join_the_isr_counts_at_once() -> None:
    """It may be in the ISR already, and be elected."""
    leader = Leader("a")
    leader.append(4)
    leader.fetch("b", 5)
    leader.append(3, LAG_US * 9)
    assert leader.high_watermark == 5
    leader.fetch("b", 8, LAG_US * 9)
    assert leader.high_watermark == 8


def test_broker_about_to_leave_the_isr_counts_until_it_has_left() -> None:
    """It may be in the ISR still, and be elected (KIP-497)."""
    leader = Leader("ab")
    leader.append(4)
    leader.effects += leader.machine.check_isr(LAG_US + 1)
    leader.append(1, LAG_US + 1)
    assert leader.proposed == ["a@1"] and leader.high_watermark == 0
    leader.alter(now_us=LAG_US + 1)
    assert leader.high_watermark == 6


def test_a_member_joins_in_the_incarnation_that_fetched() -> None:
    """The broker started again, and may have lost what the earlier incarnation had (KAFKA-15221)."""
    leader = Leader("a")
    leader.machine.brokers_changed({**registered("a", "c"), "b": BrokerRegistration(2)}, 0)
    assert refusal(leader.fetch("b", 1)) is ErrorCode.STALE_BROKER_EPOCH
    assert leader.proposed == []
    leader.fetch("b", 1, incarnation=2)
    assert leader.proposed == ["a@1", "b@2"]


def test_late_fetch_of_an_earlier_incarnation_commits_nothing() -> None:
    """The broker started again, and has lost what that fetch says it has (KIP-903)."""
    leader = Leader("ab")
    leader.append(4)
    leader.machine.brokers_changed({**registered("a"), "b": BrokerRegistration(2)}, 0)
    assert refusal(leader.fetch("b", 6)) is ErrorCode.STALE_BROKER_EPOCH
    assert leader.high_watermark == 0


def test_a_broker_that_starts_again_while_it_waits_to_join_has_to_fetch_again() -> None:
    leader = Leader("a")
    leader.fetch("c", 1)
    leader.fetch("b", 1)
    leader.machine.brokers_changed({**registered("a", "c"), "b": BrokerRegistration(2)}, 0)
    leader.alter()
    assert leader.proposed == ["a@1", "c@1"]
    leader.fetch("b", 0, incarnation=2, last_epoch=NO_EPOCH)
    assert leader.proposed == ["a@1", "c@1"]
    leader.fetch("b", 1, incarnation=2)
    assert leader.proposed == ["a@1", "b@2", "c@1"]


def test_an_incarnation_that_is_not_registered_does_not_join() -> None:
    leader = Leader("a")
    effects = leader.fetch("b", 1, incarnation=2)
    assert [type(effect) for effect in effects] == [ReadRecords], "it is served, and does not join"


@pytest.mark.parametrize(
    "registration", [BrokerRegistration(1, is_fenced=True), BrokerRegistration(1, is_stopping=True)]
)
def test_fenced_or_stopping_broker_does_not_join_the_isr(registration: BrokerRegistration) -> None:
    """KIP-841."""
    leader = Leader("a")
    leader.machine.brokers_changed({**registered("a", "c"), "b": registration}, 0)
    leader.fetch("b", 1)
    assert leader.proposed == []


@pytest.mark.parametrize(
    "registration", [BrokerRegistration(1, is_fenced=True), BrokerRegistration(1, is_stopping=True)], ids=str
)
def test_a_member_whose_broker_is_dead_or_stops_leaves_at_once(registration: BrokerRegistration) -> None:
    """Appends with acks=-1 would wait for it until it lags (Kafka's controller removes fenced brokers from the ISR)."""
    leader = Leader("abc")
    leader.effects += leader.machine.brokers_changed({**registered("a", "c"), "b": registration}, 0)
    assert leader.proposed == ["a@1", "c@1"]
    leader.alter()
    leader.append(2)
    leader.fetch("c", 3)
    assert leader.high_watermark == 3


def test_older_registration_does_not_shrink_the_isr() -> None:
    leader = Leader("abc")
    older = BrokerRegistration(0, is_fenced=True)
    leader.effects += leader.machine.brokers_changed({**registered("a", "c"), "b": older}, 0)
    assert leader.proposed == []


def test_a_new_incarnation_takes_the_place_of_the_lost_one() -> None:
    leader = Leader("ab", min_isr=2)
    leader.effects += leader.machine.brokers_changed({**registered("a", "c"), "b": BrokerRegistration(2)}, 0)
    assert leader.proposed == ["a@1"]
    leader.alter()
    leader.append(2)
    leader.fetch("b", 3, incarnation=2)
    assert leader.proposed == ["a@1", "b@2"] and leader.high_watermark == 0


def test_leader_proposes_one_isr_change_at_a_time() -> None:
    leader = Leader("a")
    leader.fetch("b", 1)
    leader.fetch("c", 1)
    assert leader.proposed == ["a@1", "b@1"]
    leader.alter()
    assert leader.proposed == ["a@1", "b@1", "c@1"]


def test_a_conflict_is_not_retried() -> None:
    """KAFKA-2729: the version is another one for ever."""
    leader = Leader("a")
    leader.fetch("b", 1)
    assert leader.machine.conflicted() == [LoadState()]
    leader.effects += leader.machine.state_changed(VERSION + 4, state("a"), 0)
    leader.fetch("b", 1)
    assert leader.effects[-2] == AlterIsr(VERSION + 4, state("ab"))


def test_an_unknown_outcome_is_asked_for_again_and_counts_both_ways() -> None:
    leader = Leader("ab")
    leader.append(4)
    leader.effects += leader.machine.check_isr(LAG_US + 1)
    again = leader.machine.alter_unknown()
    assert again == [AlterIsr(VERSION, state("a"))]
    leader.append(1, LAG_US + 1)
    assert leader.high_watermark == 0
    assert leader.machine.check_isr(LAG_US * 9) == []


def test_broker_that_left_the_isr_below_min_isr_joins_the_elr() -> None:
    leader = Leader("ab", min_isr=2)
    effects = leader.machine.check_isr(LAG_US + 1)
    assert effects == [AlterIsr(VERSION, state("a", min_isr=2, elr="b"))]


def test_broker_that_left_the_isr_above_min_isr_does_not_join_the_elr() -> None:
    leader = Leader("abc", min_isr=2)
    leader.fetch("b", 1, LAG_US + 1)
    assert leader.machine.check_isr(LAG_US + 1) == [AlterIsr(VERSION, state("ab", min_isr=2))]


def test_a_follower_that_is_always_a_little_behind_stays() -> None:
    """It was caught up at its previous fetch."""
    leader = Leader("ab")
    for turn in range(1, 10):
        leader.append(1)
        leader.fetch("b", turn, turn * LAG_US // 2)
    assert leader.machine.check_isr(9 * LAG_US // 2) == []


def test_a_follower_that_stands_still_leaves_when_its_time_is_over() -> None:
    """It was caught up when it fetched what it has, not when it asks for the same again."""
    leader = Leader("ab")
    leader.fetch("b", 1, 0)
    leader.append(1)
    for turn in range(1, 5):
        leader.fetch("b", 1, turn * LAG_US // 4)
    assert leader.machine.check_isr(LAG_US + 1) == [AlterIsr(VERSION, state("a"))]


def test_a_follower_that_has_everything_stays_however_long_it_was_silent() -> None:
    leader = Leader("ab")
    leader.fetch("b", 1)
    assert leader.machine.check_isr(LAG_US * 100) == []


# ---- fetches ---------------------------------------------------------------------------------------------------


def test_fetches_of_other_epochs_count_for_nothing() -> None:
    leader = Leader("ab")
    leader.append(4)
    assert refusal(leader.fetch("b", 5, epoch=LeaderEpoch(2, "c"))) is ErrorCode.FENCED_LEADER_EPOCH
    assert refusal(leader.fetch("b", 5, epoch=LeaderEpoch(4, "c"))) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert leader.high_watermark == 0


def test_a_broker_that_is_no_replica_is_refused() -> None:
    assert refusal(Leader("a").fetch("d", 1)) is ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize(
    ("last_epoch", "records"),
    [(LeaderEpoch(2, "c"), 3), (FORMER, 5), (LeaderEpoch(3, "c"), 5), (LeaderEpoch(9, "c"), 1)],
)
def test_a_log_that_is_not_the_beginning_of_the_leaders_counts_for_nothing(
    last_epoch: LeaderEpoch, records: int
) -> None:
    leader = Leader("ab", before=4)
    (answer,) = leader.fetch("b", records, last_epoch=last_epoch)
    assert isinstance(answer, SendFetchResponse) and isinstance(answer.response, DivergingEpoch)
    assert leader.high_watermark == 0


def test_new_high_watermark_is_news_for_a_follower() -> None:
    leader = Leader("ab")
    (read,) = (effect for effect in leader.fetch("b", 1) if isinstance(effect, ReadRecords))
    assert leader.machine.has_news(read.fetch)
    assert not leader.machine.has_news(read.fetch._replace(high_watermark=mark(1)))
    assert leader.machine.response(read.fetch, mark(1), []).high_watermark == mark(1)


# ---- acknowledgements, and the end -----------------------------------------------------------------------------


def test_a_produce_is_complete_when_it_is_committed() -> None:
    leader = Leader("ab", min_isr=2)
    leader.append(1)
    assert leader.machine.check_enough_replicas_reach_offset(mark(2)) is None
    leader.fetch("b", 2)
    assert leader.machine.check_enough_replicas_reach_offset(mark(2)) is ErrorCode.NONE


def test_a_produce_that_is_committed_while_the_isr_is_too_small_is_unknown() -> None:
    leader = Leader("ab", min_isr=2)
    leader.append(1)
    leader.fetch("b", 2)
    leader.machine.brokers_changed(registered("a", "c"), 0)
    leader.machine.state_changed(VERSION + 1, state("a", min_isr=2, elr="b"), 0)
    assert leader.machine.check_enough_replicas_reach_offset(mark(2)) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_deposed_leader_does_nothing_any_more() -> None:
    leader = Leader("ab")
    leader.append(1)
    newer = state("bc", leader="b", epoch=4)
    assert leader.machine.state_changed(VERSION + 1, newer, 0) == [LeadershipLost(VERSION + 1, newer)]
    assert leader.machine.admit(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.machine.check_enough_replicas_reach_offset(mark(2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refusal(leader.fetch("b", 2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.machine.check_isr(LAG_US * 9) == leader.machine.appended(mark(9), mark(9), 0) == []


def test_an_older_version_is_ignored() -> None:
    leader = Leader("ab")
    assert leader.machine.state_changed(VERSION - 1, state("bc", leader="b", epoch=2), 0) == []
    assert not leader.machine.is_deposed
    assert leader.machine.isr.committed.isr == members("a", "b")
    assert Member("b", 1) in leader.machine.isr.maximal
