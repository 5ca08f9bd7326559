"""The machine of a group: joins, generations, static members, offsets, and what each error code is for."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pyreplog.kafka.groups.group_records import decode_group, encode_group_batch
from pyreplog.kafka.groups.group_requests import GroupState, OffsetCommitRequest, OffsetToCommit
from pyreplog.kafka.groups.topic_catalog import NO_TOPIC_ID
from pyreplog.partition.topic_partition import TopicPartition
from tests.kafka.group_driver import BILLS, ORDERS, Code, Driver, subscription

DAY_MS = 24 * 3_600_000


# ---- joining -------------------------------------------------------------------------------------------------------


def test_the_first_member_leads_a_generation() -> None:
    driver = Driver()
    joined = driver.join("a")
    assert joined is not None and joined.code is Code.NONE
    assert (joined.generation, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
    assert [member.member_id for member in joined.members] == [joined.member_id]
    synced = driver.sync("a", joined.member_id, 1, {joined.member_id: b"all"})
    assert (synced.code, synced.assignment, synced.protocol_type) == (Code.NONE, b"all", "consumer")
    assert driver.group.state is GroupState.STABLE
    described = driver.group.describe()
    assert described.members[0].assignment == b"all" and described.protocol == "range"


def test_a_second_member_begins_another_generation() -> None:
    driver = Driver()
    first, second = driver.stable("a", "b")
    assert driver.group.generation == 2 and driver.results["b"].assignment == b"b"
    assert {member.member_id for member in driver.group.describe().members} == {first, second}


def test_a_member_without_an_id_has_to_come_again() -> None:
    """KIP-394: an id whose owner never comes back does not hold the group up for long."""
    driver = Driver()
    invited = driver.join("a", requires_known_member_id=True)
    assert invited is not None and invited.code is Code.MEMBER_ID_REQUIRED and invited.member_id
    assert driver.group.size == 0
    again = driver.join("a", invited.member_id, requires_known_member_id=True)
    assert again is not None and again.code is Code.NONE and again.member_id == invited.member_id

    driver.sync("a", invited.member_id, 1, {invited.member_id: b"a"})
    other = driver.join("b", requires_known_member_id=True)
    assert other is not None
    assert driver.join("a", invited.member_id) is None  # the group waits for the one that was invited
    driver.advance(11_000)
    assert driver.results["a"].code is Code.NONE and driver.group.generation == 2
    late = driver.join("b", other.member_id)
    assert late is not None and late.code is Code.UNKNOWN_MEMBER_ID


def test_a_join_ends_when_a_member_does_not_come_back() -> None:
    """Nobody waits for longer than the rebalance time-out."""
    driver = Driver()
    first, second = driver.stable("a", "b")
    for _ in range(5):
        driver.advance(5_000)
        if driver.group.state is GroupState.STABLE:
            driver.heartbeat(first, 2)
            driver.heartbeat(second, 2)
    assert driver.join("a", first) is None
    for _ in range(6):
        assert driver.heartbeat(second, 2) is Code.REBALANCE_IN_PROGRESS
        driver.advance(5_000)
    assert driver.results["a"].code is Code.NONE and driver.group.generation == 3
    assert [member.member_id for member in driver.results["a"].members] == [first]
    assert driver.heartbeat(second, 2) is Code.UNKNOWN_MEMBER_ID


def test_rebalance_without_rejoins_ends_with_the_session_timeouts() -> None:
    driver = Driver()
    ids = driver.stable("a", "b", instances={"a": "i", "b": "j"})
    driver.join("c", instance_id="k")
    driver.leave(("", "k"))
    driver.advance(29_000)
    assert driver.group.state is GroupState.PREPARING_REBALANCE or driver.group.size < len(ids)
    driver.advance(60_000)
    assert driver.group.state is GroupState.EMPTY and driver.group.size == 0


def test_a_new_member_that_is_gone_is_not_waited_for_for_ever() -> None:
    driver = Driver(new_member_join_timeout_ms=4_000, initial_rebalance_delay_ms=3_000)
    driver.join("a", rebalance_timeout_ms=100_000)
    driver.join("b", rebalance_timeout_ms=100_000)
    driver.advance(5_000)
    assert driver.answers.count("a") == driver.answers.count("b") == 1
    assert driver.results["a"].code in (Code.NONE, Code.UNKNOWN_MEMBER_ID)


def test_an_empty_group_waits_for_more_members() -> None:
    driver = Driver(initial_rebalance_delay_ms=3_000)
    assert driver.join("a") is None
    driver.advance(2_000)
    assert driver.join("b") is None
    driver.advance(1_500)
    assert not driver.results, "one came meanwhile: it waits once more"
    driver.advance(3_000)
    assert driver.results["a"].generation == driver.results["b"].generation == 1
    assert len(driver.results["a"].members) == 2 and driver.results["b"].members == ()


def test_the_first_rebalance_does_not_wait_for_longer_than_its_time_out() -> None:
    driver = Driver(initial_rebalance_delay_ms=3_000)
    waited = 0
    for number in range(20):
        if driver.results:
            break
        driver.join(f"m{number}", rebalance_timeout_ms=9_000)
        driver.advance(1_000)
        waited += 1_000
    assert waited <= 9_500


def test_the_protocol_that_most_prefer_is_chosen_among_those_that_all_have() -> None:
    driver = Driver()
    both, one = (("sticky", b"1"), ("range", b"2")), (("range", b"3"), ("sticky", b"4"))
    first = driver.join("a", protocols=(*both, ("own", b"")))
    assert (first is not None and first.protocol_name == "own") or first
    driver.join("b", protocols=one)
    driver.join("c", protocols=one)
    driver.join("a", first.member_id, protocols=(*both, ("own", b"")))
    assert driver.results["a"].protocol_name == "range"
    assert {member.metadata for member in driver.results["a"].members} == {b"2", b"3"}
    refused = driver.join("d", protocols=(("other", b""),))
    assert refused is not None and refused.code is Code.INCONSISTENT_GROUP_PROTOCOL
    refused = driver.join("d", protocols=())
    assert refused is not None and refused.code is Code.INCONSISTENT_GROUP_PROTOCOL
    refused = driver.join("d", protocol_type="connect", protocols=one)
    assert refused is not None and refused.code is Code.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_has_a_greatest_size() -> None:
    driver = Driver(max_size=2)
    driver.stable("a", "b")
    refused = driver.join("c")
    assert refused is not None and refused.code is Code.GROUP_MAX_SIZE_REACHED
    driver = Driver(max_size=2)
    for name in "abc":
        driver.join(name, requires_known_member_id=True)
    assert driver.results["c"].code is Code.GROUP_MAX_SIZE_REACHED


def test_a_cooperative_member_joins_again_with_what_it_owns() -> None:
    """KIP-429: its metadata change, and that begins a rebalance; the same metadata again do not."""
    driver = Driver()
    first, second = driver.stable("a", "b")
    same = driver.join("b", second)
    assert same is not None and same.generation == 2 and driver.group.state is GroupState.STABLE
    assert driver.join("b", second, protocols=(("range", subscription("orders") + b"owned"),)) is None
    assert driver.heartbeat(first, 2) is Code.REBALANCE_IN_PROGRESS
    driver.join("a", first)
    assert driver.results["a"].generation == driver.results["b"].generation == 3


def test_the_leader_joins_again_and_begins_a_rebalance() -> None:
    driver = Driver()
    first, second = driver.stable("a", "b")
    assert driver.join("a", first) is None
    driver.join("b", second)
    assert driver.results["a"].generation == 3


# ---- syncing -------------------------------------------------------------------------------------------------------


def test_an_assignment_is_given_when_it_is_stored() -> None:
    driver = Driver()
    joined = driver.join("a")
    assert joined is not None
    driver.holds = True
    assert driver.sync("a", joined.member_id, 1, {joined.member_id: b"all"}) is None
    value = driver.held[0].records[0][1]
    assert value is not None
    assert decode_group(value).members[0].assignment == b"all"
    driver.commit_one()
    assert driver.results["a"].assignment == b"all"


@pytest.mark.parametrize("is_known", [True, False])
def test_assignment_that_was_not_stored_is_sent_to_no_member(is_known: bool) -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    first = driver.results["a"].member_id
    driver.join("a", first)
    second = driver.results["b"].member_id
    driver.holds = True
    driver.sync("b", second, 2)
    driver.sync("a", first, 2, {first: b"1", second: b"2"})
    code = Code.COORDINATOR_NOT_AVAILABLE
    append = driver.held[0]
    if is_known:
        driver.fail_one(code)
    else:
        driver.lose_one()
    assert driver.results["a"].code is driver.results["b"].code is code
    assert driver.heartbeat(first, 2) is Code.REBALANCE_IN_PROGRESS
    if not is_known:  # it comes to light that it was stored: the group has gone on
        driver.perform(driver.group.appended(append.token, 0, driver.now))
        assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_sync_refusals_have_error_codes() -> None:
    driver = Driver()
    first, second = driver.stable("a", "b")
    assert driver.sync("x", "nobody", 2).code is Code.UNKNOWN_MEMBER_ID
    assert driver.sync("x", first, 1).code is Code.ILLEGAL_GENERATION
    assert driver.sync("x", first, 2, protocol_type="connect").code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert driver.sync("x", first, 2, protocol_name="sticky").code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert driver.sync("x", first, 2).assignment == b"a"
    driver.join("a", first)
    assert driver.sync("x", second, 2).code is Code.REBALANCE_IN_PROGRESS


def test_members_that_do_not_sync_are_removed() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    first = driver.results["a"].member_id
    driver.join("a", first)
    driver.sync("a", first, 2, {first: b"1"})
    second = driver.results["b"].member_id
    for _ in range(4):
        driver.advance(8_000)
        driver.heartbeat(first, 2)
        driver.heartbeat(second, 2)
    assert driver.heartbeat(second, 2) is Code.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(first, 2) is Code.REBALANCE_IN_PROGRESS


def test_leader_that_sends_no_assignment_is_replaced_after_the_rebalance_timeout() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.join("a", driver.results["a"].member_id)
    second = driver.results["b"].member_id
    assert driver.sync("b", second, 2) is None
    driver.advance(11_000)
    assert driver.results["b"].code is Code.REBALANCE_IN_PROGRESS
    assert driver.join("b", second) is not None and driver.results["b"].leader == second


def test_a_rebalance_ends_syncs_that_wait() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.join("a", driver.results["a"].member_id)
    driver.sync("b", driver.results["b"].member_id, 2)
    driver.join("c")
    assert driver.results["b"].code is Code.REBALANCE_IN_PROGRESS


# ---- sessions ------------------------------------------------------------------------------------------------------


def test_a_member_without_heartbeats_is_removed() -> None:
    driver = Driver()
    first, second = driver.stable("a", "b")
    driver.advance(6_000)
    assert driver.heartbeat(first, 2) is Code.NONE
    driver.advance(6_000)
    assert driver.heartbeat(second, 2) is Code.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(first, 2) is Code.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(first, 1) is Code.ILLEGAL_GENERATION
    driver.join("a", first)
    assert driver.results["a"].generation == 3


def test_several_members_leave_in_one_request() -> None:
    driver = Driver()
    first, second = driver.stable("a", "b", instances={"b": "i"})
    result = driver.leave((first, None), ("", "i"), ("nobody", None), ("x", "i"))
    codes = [member.code for member in result.members]
    assert codes == [Code.NONE, Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID]
    assert driver.group.state is GroupState.EMPTY and driver.group.generation == 3
    assert driver.heartbeat(second, 2, "i") is Code.UNKNOWN_MEMBER_ID
    value = driver.log[-1][1]
    assert value is not None and decode_group(value).members == ()


def test_removed_member_with_a_pending_request_gets_unknown_member_id() -> None:
    driver = Driver()
    first, second = driver.stable("a", "b")
    driver.join("a", first)
    driver.leave((first, None))
    assert driver.results["a"].code is Code.UNKNOWN_MEMBER_ID
    driver.join("b", second)
    generation = driver.group.generation
    driver.join("c")
    driver.join("b", second)
    third = driver.results["c"].member_id
    assert driver.group.generation == generation + 1 and driver.sync("c", third, generation + 1) is None
    driver.leave((third, None))
    assert driver.results["c"].code is Code.UNKNOWN_MEMBER_ID


def test_all_that_waits_is_completed_when_the_group_goes_elsewhere() -> None:
    driver = Driver()
    first, _ = driver.stable("a", "b")
    driver.join("a", first)
    driver.perform(driver.group.unload())
    assert driver.results["a"].code is Code.NOT_COORDINATOR
    late = driver.join("b")
    assert late is not None and late.code is Code.COORDINATOR_NOT_AVAILABLE
    assert driver.heartbeat(first, 2) is Code.COORDINATOR_NOT_AVAILABLE
    assert driver.leave((first, None)).code is Code.COORDINATOR_NOT_AVAILABLE


# ---- static members ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skips", [True, False])
def test_a_static_member_comes_back_without_a_rebalance(skips: bool) -> None:
    driver = Driver()
    ids = driver.stable("a", "b", instances={"a": "i", "b": "j"})
    back = driver.join("a", instance_id="i", supports_skipping_assignment=skips)
    assert back is not None and back.code is Code.NONE and back.generation == 2
    assert back.member_id not in ids and driver.group.state is GroupState.STABLE
    assert back.skip_assignment is skips and (len(back.members) == 2) is skips
    assert (back.leader == back.member_id) is skips, "an old client must not take itself for the leader"
    assert driver.sync("a", back.member_id, 2, instance_id="i").assignment == b"a"
    reloaded = driver.reload()
    assert reloaded.heartbeat(back.member_id, 2, "i") is Code.NONE, "its new id was stored before it was given"


def test_a_static_member_is_fenced_when_another_one_has_its_name() -> None:
    driver = Driver()
    ids = driver.stable("a", "b", instances={"a": "i", "b": "j"})
    driver.join("a", instance_id="i")
    old = ids[0]
    assert driver.heartbeat(old, 2, "i") is Code.FENCED_INSTANCE_ID
    assert driver.sync("x", old, 2, instance_id="i").code is Code.FENCED_INSTANCE_ID
    fenced = driver.join("x", old, instance_id="i")
    assert fenced is not None and fenced.code is Code.FENCED_INSTANCE_ID
    assert driver.commit(old, 2, instance_id="i") is Code.FENCED_INSTANCE_ID
    assert driver.leave((old, "i")).members[0].code is Code.FENCED_INSTANCE_ID
    assert driver.heartbeat(ids[1], 2, "unknown") is Code.UNKNOWN_MEMBER_ID


def test_next_coordinator_knows_static_members() -> None:
    """One that rejoins there gets its assignment without a rebalance, and its former process is fenced."""
    driver = Driver()
    ids = driver.stable("a", "b", instances={"a": "i", "b": "j"})
    reloaded = driver.reload()
    back = reloaded.join("a", instance_id="i", supports_skipping_assignment=True)
    assert back is not None and (back.code, back.generation) == (Code.NONE, 2) and back.member_id not in ids
    assert reloaded.group.state is GroupState.STABLE
    assert reloaded.sync("a", back.member_id, 2, instance_id="i").assignment == b"a"
    assert reloaded.heartbeat(ids[0], 2, "i") is Code.FENCED_INSTANCE_ID
    assert reloaded.heartbeat(ids[1], 2, "j") is Code.NONE
    assert reloaded.leave(("", "j")).members[0].code is Code.NONE, "an operator may name the instance alone"
    assert reloaded.heartbeat(ids[1], 2, "j") is Code.UNKNOWN_MEMBER_ID


def test_a_static_member_that_waits_is_fenced() -> None:
    driver = Driver()
    ids = driver.stable("a", "b", instances={"a": "i", "b": "j"})
    driver.join("a", ids[0], instance_id="i", protocols=(("range", b"other"),))
    driver.join("again", instance_id="i")
    assert driver.results["a"].code is Code.FENCED_INSTANCE_ID


def test_a_static_member_with_other_protocols_begins_a_rebalance() -> None:
    driver = Driver()
    both = (("range", b"1"), ("sticky", b"2"))
    driver.join("a", instance_id="i", protocols=both)
    first = driver.results["a"].member_id
    driver.sync("a", first, 1, {first: b"x"}, instance_id="i")
    assert driver.join("a", instance_id="i", protocols=(("sticky", b"2"),)) is not None
    assert driver.results["a"].generation == 2 and driver.results["a"].protocol_name == "sticky"


def test_a_static_member_is_kept_over_a_rebalance_until_its_session_ends() -> None:
    driver = Driver()
    ids = driver.stable("a", "b", instances={"a": "i", "b": "j"})
    driver.join("c", session_timeout_ms=100_000, rebalance_timeout_ms=5_000)
    driver.join("b", ids[1], instance_id="j", session_timeout_ms=100_000, rebalance_timeout_ms=5_000)
    driver.advance(9_000)
    assert driver.heartbeat(ids[0], 2, "i") in (Code.NONE, Code.REBALANCE_IN_PROGRESS)
    driver.advance(50_000)
    assert driver.heartbeat(ids[0], 2, "i") is Code.UNKNOWN_MEMBER_ID


# ---- offsets -------------------------------------------------------------------------------------------------------


def test_an_offset_is_acknowledged_when_it_is_committed() -> None:
    driver = Driver()
    driver.holds = True
    assert driver.commit("", -1, 7, metadata="here") is None and driver.fetch() == -1
    driver.commit_one()
    assert driver.results["commit"][ORDERS] is Code.NONE and driver.fetch() == 7
    fetched = driver.group.fetch(None, require_stable=False).offsets[ORDERS]
    assert (fetched.leader_epoch, fetched.metadata) == (3, "here")


def test_an_offset_whose_outcome_is_unknown_may_come_to_light() -> None:
    driver = Driver()
    driver.commit("", -1, 5)
    driver.holds = True
    driver.commit("", -1, 7)
    append = driver.lose_one()
    assert driver.results["commit"][ORDERS] is Code.REQUEST_TIMED_OUT and driver.fetch() == 5
    driver.perform(driver.group.appended(append.token, 9, driver.now))
    assert driver.fetch() == 7
    driver.commit("", -1, 8)
    driver.fail_one(Code.NOT_COORDINATOR)
    assert driver.results["commit"][ORDERS] is Code.NOT_COORDINATOR and driver.fetch() == 7


def test_a_commit_of_an_old_generation_is_refused() -> None:
    driver = Driver()
    first, second = driver.stable("a", "b")
    assert driver.commit(first, 2, 5) is Code.NONE
    assert driver.commit(first, 1, 4) is Code.ILLEGAL_GENERATION
    assert driver.commit("nobody", 2, 4) is Code.UNKNOWN_MEMBER_ID
    assert driver.commit("", -1, 4) is Code.UNKNOWN_MEMBER_ID, "the group has members"
    driver.join("a", first)
    assert driver.commit(second, 2, 6) is Code.NONE, "before the generation ends"
    driver.join("b", second)
    assert driver.commit(second, 2, 3) is Code.ILLEGAL_GENERATION
    assert driver.commit(second, 3, 3) is Code.REBALANCE_IN_PROGRESS
    assert driver.fetch() == 6


def test_a_commit_without_generation_is_accepted_of_any_client_of_an_empty_group() -> None:
    """As in Kafka. librdkafka with `assign` sends its instance id, and a consumer that has left its former member id."""
    driver = Driver()
    assert driver.commit("", -1, 3, instance_id="i") is Code.NONE
    (member_id,) = driver.stable("a")
    assert driver.commit(member_id, -1, 4) is Code.ILLEGAL_GENERATION, "the group has members"
    assert driver.commit("", -1, 4, instance_id="i") is Code.UNKNOWN_MEMBER_ID
    driver.leave((member_id, None))
    assert driver.commit(member_id, -1, 5) is Code.NONE
    assert driver.commit(member_id, 1, 6) is Code.UNKNOWN_MEMBER_ID
    assert driver.fetch() == 5


def test_a_new_member_that_asks_again_waits_as_long_as_before() -> None:
    """Its connection was lost. It sends no heartbeats while it waits, so its session must not end."""
    driver = Driver()
    (slow,) = driver.stable("slow")
    driver.heartbeat(slow, 1)
    invited = driver.join("new", requires_known_member_id=True)
    assert invited is not None and invited.code is Code.MEMBER_ID_REQUIRED
    assert driver.join("new", invited.member_id, session_timeout_ms=6_000) is None
    driver.advance(1_000)
    assert driver.join("again", invited.member_id, session_timeout_ms=6_000) is None
    for _ in range(4):
        driver.advance(2_500)
        assert driver.heartbeat(slow, 1) is Code.REBALANCE_IN_PROGRESS
    assert "again" not in driver.results
    driver.join("slow", slow)
    assert driver.results["again"].code is Code.NONE and driver.group.size == 2


@pytest.mark.parametrize("is_deleted", [False, True], ids=["old", "of a deleted topic"])
def test_more_offsets_are_deleted_than_a_batch_has_room_for(is_deleted: bool) -> None:
    """Their tombstones would else be refused again and again, and the offsets would stay for ever."""
    driver, topic = Driver(offsets_retention_ms=1_000), "t" * 249
    offsets = {TopicPartition(topic, number): OffsetToCommit(1) for number in range(6_000)}
    driver.perform(driver.group.commit("commit", OffsetCommitRequest("", -1, offsets), driver.now))
    driver.advance(2_000)
    driver.holds = True
    sizes = []
    while driver.group.offsets.committed:
        driver.perform(
            driver.group.delete_topics({topic: [NO_TOPIC_ID]})
            if is_deleted
            else driver.group.expire_offsets(driver.now)
        )
        while driver.held:
            sizes.append(len(encode_group_batch(driver.held[0].records, 0)))
            driver.commit_one()
    assert 8 < len(sizes) < 20 and max(sizes) < 200_000


def test_offset_with_too_long_metadata_is_refused() -> None:
    driver = Driver(offset_metadata_max_bytes=4)
    assert driver.commit("", -1, 1, metadata="ää") is Code.NONE
    assert driver.commit("", -1, 2, metadata="äää") is Code.OFFSET_METADATA_TOO_LARGE
    assert driver.fetch() == 1


def test_offsets_of_a_transaction_count_when_it_is_committed() -> None:
    driver = Driver()
    driver.commit("", -1, 1)
    assert driver.commit("", -1, 5, producer=9) is Code.NONE
    assert driver.fetch() == 1 and driver.fetch(require_stable=True) is Code.UNSTABLE_OFFSET_COMMIT
    assert driver.fetch(BILLS, require_stable=True) == -1
    reloaded = driver.reload()
    assert reloaded.fetch() == 1 and reloaded.fetch(require_stable=True) is Code.UNSTABLE_OFFSET_COMMIT
    for each in (driver, reloaded):
        each.group.offsets.end_transaction(9, committed=True)
        assert each.fetch() == each.fetch(require_stable=True) == 5
    driver.commit("", -1, 6, producer=9)
    driver.group.offsets.end_transaction(9, committed=False)
    assert driver.fetch(require_stable=True) == 5


def test_a_commit_behind_that_of_a_transaction_stays() -> None:
    driver = Driver()
    driver.commit("", -1, 5, producer=9)
    driver.commit("", -1, 7)
    driver.group.offsets.end_transaction(9, committed=True)
    assert driver.fetch() == 7


def test_a_transaction_is_unstable_from_its_append_on() -> None:
    driver = Driver()
    driver.holds = True
    driver.commit("", -1, 5, producer=9)
    assert driver.fetch(require_stable=True) is Code.UNSTABLE_OFFSET_COMMIT
    driver.fail_one(Code.INVALID_TXN_STATE)
    assert driver.results["commit"][ORDERS] is Code.INVALID_TXN_STATE and driver.fetch(require_stable=True) == -1


def test_a_transaction_of_an_old_generation_is_refused() -> None:
    """KIP-447."""
    driver = Driver()
    first, _ = driver.stable("a", "b")
    assert driver.commit(first, 1, producer=9) is Code.ILLEGAL_GENERATION
    assert driver.commit("nobody", 2, producer=9) is Code.UNKNOWN_MEMBER_ID
    assert driver.commit("", -1, producer=9) is Code.NONE, "of a client before KIP-447"


def test_delete_offsets_refuses_subscribed_topics() -> None:
    driver = Driver()
    (member,) = driver.stable("a")
    driver.commit(member, 1, 4)
    driver.commit(member, 1, 4, partition=BILLS)
    driver.perform(driver.group.delete_offsets("delete", [ORDERS, BILLS]))
    assert driver.results["delete"] == {ORDERS: Code.GROUP_SUBSCRIBED_TO_TOPIC, BILLS: Code.NONE}
    assert (driver.fetch(), driver.fetch(BILLS), driver.reload().fetch(BILLS)) == (4, -1, -1)
    driver.leave((member, None))
    driver.perform(driver.group.delete_offsets("delete", [ORDERS]))
    assert driver.fetch() == -1
    other = Driver()
    other.join("x", protocol_type="connect", protocols=(("p", b""),))
    other.perform(other.group.delete_offsets("delete", [ORDERS]))
    assert other.results["delete"] == {ORDERS: Code.NON_EMPTY_GROUP}


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    driver = Driver()
    (member,) = driver.stable("a")
    driver.commit(member, 1, 4)
    driver.perform(driver.group.delete("delete"))
    assert driver.results["delete"] is Code.NON_EMPTY_GROUP
    driver.leave((member, None))
    driver.holds = True
    driver.perform(driver.group.delete("delete"))
    assert driver.group.state is GroupState.DEAD and driver.commit("", -1) is Code.COORDINATOR_NOT_AVAILABLE
    driver.perform(driver.group.delete("again"))
    assert driver.results["again"] is Code.GROUP_ID_NOT_FOUND
    driver.commit_one()
    assert driver.results["delete"] is Code.NONE and driver.is_deleted
    assert driver.reload().group.is_forgettable


def test_a_deletion_that_failed_leaves_the_group() -> None:
    driver = Driver()
    driver.commit("", -1, 4)
    driver.holds = True
    driver.perform(driver.group.delete("delete"))
    driver.fail_one(Code.COORDINATOR_NOT_AVAILABLE)
    assert driver.results["delete"] is Code.COORDINATOR_NOT_AVAILABLE and driver.fetch() == 4
    assert driver.group.state is GroupState.EMPTY


# ---- offsets that expire -------------------------------------------------------------------------------------------


def expire_offsets(driver: Driver, days: float) -> None:
    driver.now_ms += round(days * DAY_MS)
    driver.perform(driver.group.expire_offsets(driver.now))


def test_offsets_of_an_empty_group_expire() -> None:
    """KIP-211: a week after the last member has left, not after the commit."""
    driver = Driver()
    (member,) = driver.stable("a")
    driver.commit(member, 1, 4)
    driver.now_ms += 20 * DAY_MS
    driver.leave((member, None))
    expire_offsets(driver, 6.9)
    assert driver.fetch() == 4
    expire_offsets(driver, 0.2)
    assert driver.fetch() == -1 and driver.is_deleted and driver.reload().group.is_forgettable


def test_offsets_of_consumers_outside_the_protocol_expire_each_by_itself() -> None:
    driver = Driver()
    driver.commit("", -1, 4)
    driver.now_ms += 4 * DAY_MS
    driver.commit("", -1, 5, partition=BILLS)
    expire_offsets(driver, 4)
    assert (driver.fetch(), driver.fetch(BILLS)) == (-1, 5)


def test_offsets_of_unsubscribed_topics_expire() -> None:
    driver = Driver()
    (member,) = driver.stable("a")
    driver.commit(member, 1, 4)
    driver.commit(member, 1, 5, partition=BILLS)
    expire_offsets(driver, 8)
    assert (driver.fetch(), driver.fetch(BILLS)) == (4, -1)


def test_offsets_on_their_way_do_not_expire() -> None:
    driver = Driver()
    driver.commit("", -1, 4)
    driver.commit("", -1, 5, partition=BILLS, producer=9)
    driver.holds = True
    driver.commit("", -1, 6)
    expire_offsets(driver, 8)
    assert driver.fetch() == 4 and len(driver.held) == 1


# ---- loading -------------------------------------------------------------------------------------------------------


def test_a_group_goes_on_at_another_broker() -> None:
    driver = Driver()
    ids = driver.stable("a", "b", instances={"b": "j"})
    driver.commit(ids[0], 2, 42)
    reloaded = driver.reload()
    assert reloaded.group.state is GroupState.STABLE and reloaded.fetch() == 42
    assert reloaded.heartbeat(ids[0], 2) is reloaded.heartbeat(ids[1], 2, "j") is Code.NONE
    assert reloaded.sync("b", ids[1], 2, instance_id="j").assignment == b"b"
    assert reloaded.commit(ids[0], 1) is Code.ILLEGAL_GENERATION
    reloaded.advance(11_000)
    assert reloaded.group.size == 0 or reloaded.group.state is GroupState.PREPARING_REBALANCE


def test_rewrite_appends_live_records_again() -> None:
    driver = Driver()
    (member,) = driver.stable("a")
    driver.commit(member, 1, 4)
    driver.commit(member, 1, 5, partition=BILLS, producer=9)
    before = len(driver.log)
    driver.holds = True
    driver.commit(member, 1, 6)
    effects, is_left = driver.group.rewrite(before, 100)
    driver.perform(effects)
    assert is_left, "one is on its way, one belongs to an open transaction"
    while driver.held:
        driver.commit_one()
    _, is_left = driver.group.rewrite(before, 100)
    assert is_left, "the transaction is open"
    driver.holds = False
    driver.group.offsets.end_transaction(9, committed=True)
    for _ in range(3):
        effects, is_left = driver.group.rewrite(before, 100)
        driver.perform(effects)
    assert not is_left
    reloaded = driver.reload(since=before)
    assert (reloaded.fetch(), reloaded.fetch(BILLS)) == (6, 5)
    assert reloaded.heartbeat(member, 1) is Code.NONE


# ---- anything ------------------------------------------------------------------------------------------------------


def test_every_request_is_completed_whatever_happens(seed: int) -> None:
    """Members that join, sync, leave and go, in any order, with appends that fail."""
    rng = Random(seed)
    driver = Driver(initial_rebalance_delay_ms=rng.choice((0, 1_000)), new_member_join_timeout_ms=20_000)
    driver.holds = True
    requests, ids, generations = 0, [""], [0]
    for _ in range(400):
        requests += 1
        kind = rng.randrange(7)
        member_id, generation = rng.choice(ids), driver.group.generation - rng.choice((0, 0, 0, 1))
        instance = rng.choice((None, None, "i"))
        if kind <= 1:
            driver.join(
                f"{requests}", member_id, instance_id=instance, session_timeout_ms=6_000, rebalance_timeout_ms=5_000
            )
        elif kind == 2:
            driver.sync(f"{requests}", member_id, generation, dict.fromkeys(ids, b"x"), instance_id=instance)
        elif kind == 3:
            driver.commit(member_id, generation, name=f"{requests}", instance_id=instance)
        elif kind == 4:
            driver.advance(rng.choice((10, 1_000, 4_000)))
            requests -= 1
        elif kind == 5:
            driver.leave((member_id, instance))
            requests -= 1
        else:
            requests -= 1
            if driver.held:
                rng.choice((driver.commit_one, driver.commit_one, lambda: driver.fail_one(Code.NOT_COORDINATOR)))()
        for result in list(driver.results.values()):
            known: Any = getattr(result, "member_id", "")
            if known and known not in ids:
                ids.append(known)
        assert driver.group.generation >= generations[-1]
        generations.append(driver.group.generation)
    while driver.held:
        driver.commit_one()
    driver.advance(60_000)
    while driver.held:
        driver.commit_one()
    assert driver.group.size == 0 and driver.group.state is GroupState.EMPTY
    assert len({*driver.answers} - {"leave"}) == requests
