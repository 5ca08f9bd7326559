"""Who is elected: members of the ISR, then of the ELR, then whoever may lack something, where that is noted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyreplog.partition.protocol.election import cancel_reassignment, complete_reassignment, elect, reassign
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Brokers, Member, PartitionState

from .replicas import members, registered, state

FENCED = BrokerRegistration(1, is_fenced=True)
STOPPING = BrokerRegistration(1, is_stopping=True)
AGAIN = BrokerRegistration(2)
AGAIN_FENCED = BrokerRegistration(2, is_fenced=True)


def elected(
    before: PartitionState, brokers: Brokers, *, unclean: bool = False, requires_sync: bool = False
) -> PartitionState:
    after = elect(before, brokers, unclean=unclean, requires_sync=requires_sync)
    assert after is not None
    return after


def test_a_leader_that_serves_stays() -> None:
    assert elect(state("ab"), registered("a"), requires_sync=False) is None


def test_the_first_replica_of_the_isr_leads_next() -> None:
    after = elected(state("abc", min_isr=2), {**registered("b", "c"), "a": FENCED})
    assert (after.leader, after.epoch, after.isr) == ("b", LeaderEpoch(4, "b"), members("b", "c"))
    assert not after.is_unclean and not after.elr


def test_broker_outside_the_isr_is_not_elected() -> None:
    after = elected(state("a"), {**registered("b", "c"), "a": FENCED})
    assert (after.leader, after.isr, after.elr) == ("", (), members("a"))
    assert after.epoch == state("a").epoch
    assert elect(after, {**registered("b", "c"), "a": FENCED}, requires_sync=False) is None
    assert elected(after, registered("a")).leader == "a"


def test_a_member_of_the_elr_is_elected_when_the_isr_is_empty() -> None:
    after = elected(state("a", min_isr=2, elr="b"), {**registered("b", "c"), "a": FENCED})
    assert (after.leader, after.isr, after.elr) == ("b", members("b"), members("a"))
    assert not after.is_unclean


@pytest.mark.parametrize("isr", ["ab", "a"])
def test_a_later_incarnation_is_not_elected(isr: str) -> None:
    """It may have lost what was not synced (KIP-903); neither ISR nor ELR keep it."""
    elr = "" if isr == "ab" else "b"
    after = elected(state(isr, min_isr=2, elr=elr), {"a": FENCED, "b": AGAIN, "c": BrokerRegistration(1)})
    assert (after.leader, after.isr, after.elr) == ("", (), members("a"))


def test_a_later_incarnation_is_elected_where_only_what_is_synced_counts() -> None:
    after = elected(state("ab"), {"a": FENCED, "b": AGAIN}, requires_sync=True)
    assert (after.leader, after.isr) == ("b", (Member("b", 2),))
    assert not after.is_unclean


def test_a_leader_that_started_again_begins_a_new_epoch() -> None:
    after = elected(state("a"), {"a": AGAIN}, requires_sync=True)
    assert (after.leader, after.epoch.number, after.isr) == ("a", 4, (Member("a", 2),))


def test_an_old_registration_proves_no_loss() -> None:
    """It was read before the member joined in its new incarnation."""
    before = replace(state(""), isr=(Member("b", 2),), leader="")
    after = elected(before, registered("a", "b", "c"), unclean=False)
    assert (after.leader, after.elr) == ("", (Member("b", 2),))


def test_an_old_registration_is_not_elected_uncleanly() -> None:
    """The broker leads, in its new incarnation: what it acknowledged since would be lost for nothing."""
    before = replace(state(""), isr=(Member("a", 2),))
    assert elected(before, {"a": BrokerRegistration(1)}, unclean=True).leader == ""
    assert elect(before, {"a": AGAIN}, unclean=True, requires_sync=False) is None
    after = elected(before, registered("a", "b"), unclean=True)
    assert (after.leader, after.isr, after.is_unclean) == ("b", members("b"), True)


def test_the_last_leader_leads_uncleanly_when_all_that_had_everything_are_lost() -> None:
    after = elected(state("a"), {"a": AGAIN, **registered("b", "c")})
    assert (after.leader, after.isr, after.is_unclean) == ("a", (Member("a", 2),), True)


def test_the_last_leader_is_waited_for_while_it_is_away() -> None:
    lost = state("", leader="")
    assert elect(lost, {"a": AGAIN_FENCED, **registered("b", "c")}, requires_sync=False) is None


def test_first_election_of_a_partition_is_not_unclean() -> None:
    new = PartitionState(("a", "b"), members("a", "b"))
    after = elected(new, {"a": AGAIN_FENCED, "b": AGAIN})
    assert (after.leader, after.epoch.number, after.is_unclean) == ("b", 1, False)


def test_any_replica_leads_where_the_topic_allows_it() -> None:
    after = elected(state("a"), {**registered("c"), "a": FENCED}, unclean=True)
    assert (after.leader, after.isr, after.elr, after.is_unclean) == ("c", members("c"), (), True)


def test_a_clean_election_goes_before_an_unclean_one() -> None:
    after = elected(state("ac"), {**registered("b", "c"), "a": FENCED}, unclean=True)
    assert (after.leader, after.is_unclean) == ("c", False)


def test_a_leader_that_stops_hands_over_to_one_that_does_not() -> None:
    assert elected(state("abc"), {"a": STOPPING, "b": STOPPING, **registered("c")}).leader == "c"
    assert elect(state("ab"), {"a": STOPPING, "b": STOPPING}, requires_sync=False) is None


def test_a_process_that_starts_gives_up_what_the_one_before_led() -> None:
    resigned = state("ab").resigned()
    assert (resigned.leader, resigned.epoch, resigned.last_leader) == ("", state("ab").epoch, "a")
    assert elected(resigned, registered("a", "b")).epoch.number == 4


def test_a_reassignment_is_complete_when_the_new_replicas_are_in_sync() -> None:
    before = reassign(state("ab", min_isr=2), "dc")
    assert before.replicas == ("d", "c", "a", "b")
    assert complete_reassignment(before, registered(*"abcd")) is None
    joining = before.with_isr(members(*"abd"), {})
    assert complete_reassignment(joining, registered(*"abcd")) is None
    after = complete_reassignment(before.with_isr(members(*"abcd"), {}), registered(*"abcd"))
    assert after is not None
    assert (after.replicas, after.isr, after.leader) == (("d", "c"), members("c", "d"), "d")
    assert after.epoch.number == 4 and not after.target


def test_a_leader_that_stays_a_replica_leads_on() -> None:
    before = reassign(state("abc"), "a")
    after = complete_reassignment(before, registered(*"abc"))
    assert after is not None
    assert (after.leader, after.epoch, after.isr) == ("a", before.epoch, members("a"))


def test_the_elr_is_apart_from_the_isr_and_empty_when_that_is_large_enough() -> None:
    before = state("a", min_isr=3, elr="bc")
    assert before.with_isr(members("a", "b"), {}).elr == members("c")
    assert before.with_isr(members("a", "b", "c"), {}).elr == ()
    assert before.with_isr((*members("a"), Member("b", 2)), {}).elr == members("c"), "of a broker one incarnation"
    assert before.with_isr(members("a"), {"b": AGAIN}).elr == members("c")


def test_a_replica_that_stays_and_is_dead_is_not_waited_for() -> None:
    """What is new is waited for, and min ISR: what was acknowledged by two is on two."""
    before = reassign(state("ac", min_isr=2), "dbc")
    assert before.adding == ("d",) and before.removing == ("a",)
    joining = before.with_isr(members(*"acd"), {})
    after = complete_reassignment(joining, {**registered(*"acd"), "b": FENCED})
    assert after is not None
    assert (after.replicas, after.isr, after.leader) == (("d", "b", "c"), members("c", "d"), "d")
    alone = replace(before, replicas=("d", "b", "a", "c"), target=("d", "b"), original=("a", "b", "c"))
    assert complete_reassignment(alone.with_isr(members(*"ad"), {}), registered(*"abcd")) is None, "d alone"


def test_a_cancel_returns_to_the_replicas_and_their_order() -> None:
    before = state("abc", min_isr=2)
    moving = reassign(before, "edb").with_isr(members(*"abcd"), {})
    again = reassign(moving, "cfa")
    assert again.original == before.replicas and again.target == ("c", "f", "a")
    assert again.replicas == ("c", "f", "a", "d", "b"), "e was not in sync, and is given up at once"
    for each in (moving, again):
        after = cancel_reassignment(each, registered(*"abcdef"))
        assert after == before


def test_a_cancel_elects_a_replica_that_stays() -> None:
    moving = reassign(state("ab", min_isr=2), "dc").with_isr(members(*"bd"), {}).led_by("d")
    after = cancel_reassignment(moving, registered(*"bd"))
    assert after is not None
    assert (after.leader, after.isr, after.elr, after.target) == ("b", members("b"), (), ())
    assert after.epoch > moving.epoch


def test_a_cancelled_reassignment_elects_no_unclean_leader() -> None:
    """If all that was in sync is new, to go back would be an unclean election."""
    moving = reassign(state("a"), "dc").with_isr(members("d"), {}).led_by("d")
    assert cancel_reassignment(moving, registered(*"abcd")) is None
    both = reassign(state("a"), "dc").with_isr(members("a", "d"), {}).led_by("d")
    assert cancel_reassignment(both, {**registered("d"), "a": FENCED}) is None
