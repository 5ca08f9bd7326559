"""The machine of a consumer group (KIP-848): epochs, reconciliation, static members, offsets, and what each error is for."""

from __future__ import annotations

from random import Random

import pytest

from pyreplog.kafka.groups.group_effects import GroupDeleted, GroupDissolved
from pyreplog.kafka.groups.group_requests import ConsumerHeartbeat, GroupState
from pyreplog.kafka.groups.topic_catalog import KnownTopic
from tests.kafka.consumer_group_driver import (
    ORDERS,
    Code,
    GroupDriver,
    TestMember,
    Topics,
    partitions,
    settle,
    topic_id,
)

# ---- epochs and reconciliation -------------------------------------------------------------------------------------


def test_the_first_member_gets_everything_at_once() -> None:
    driver = GroupDriver()
    member = TestMember(driver, "a")
    result = member.join()
    assert result is not None and result.code is Code.NONE
    assert (result.member_epoch, result.assignment) == (1, partitions("orders", range(4)))
    assert result.heartbeat_interval_ms == driver.config.consumer_heartbeat_interval_ms
    assert driver.group.state is GroupState.STABLE
    quiet = driver.beat(ConsumerHeartbeat("a", 1, "a", "/127.0.0.1"))
    assert quiet is not None and (quiet.code, quiet.assignment, quiet.member_epoch) == (Code.NONE, None, 1)


def test_a_member_gets_what_another_one_has_given_up() -> None:
    """No partition has two owners at any time: the first gives up, says so, and then the second one gets it."""
    driver = GroupDriver()
    first, second = TestMember(driver, "a"), TestMember(driver, "b")
    first.join()
    joined = second.join()
    assert joined is not None and (joined.assignment, joined.member_epoch) == (frozenset(), 2)
    assert driver.group.state is GroupState.RECONCILING
    had = first.owned
    told = first.beat()
    assert told is not None and told.assignment is not None
    assert (told.member_epoch, len(told.assignment)) == (1, 2), "it stays in its epoch until it has given up"
    assert second.beat() is not None and second.owned == frozenset(), "the first one has not said so yet"
    done = first.beat()
    assert done is not None and done.member_epoch == 2
    second.beat()
    assert second.owned == had - first.owned and len(second.owned) == 2
    assert driver.group.state is GroupState.STABLE
    described = driver.group.describe_consumers()
    assert (described.group_epoch, described.assignment_epoch, described.assignor) == (2, 2, "uniform")
    assert [member.assignment == member.target for member in described.members] == [True, True]


def test_heartbeat_without_owned_partitions_revokes_nothing() -> None:
    driver = GroupDriver()
    first, second = TestMember(driver, "a"), TestMember(driver, "b")
    first.join(), second.join(), first.beat()
    first.beat(owned=None)
    second.beat()
    assert first.epoch == 1 and second.owned == frozenset()


def test_heartbeat_without_partitions_crossing_an_assignment_keeps_the_assignment() -> None:
    """What a member says in the heartbeat that brings it the news is older than them."""
    driver = GroupDriver()
    first, second = TestMember(driver, "a"), TestMember(driver, "b")
    first.join(), second.join()
    told = first.beat(owned=frozenset())
    assert told is not None and told.member_epoch == 1
    second.beat()
    assert second.owned == frozenset()


def test_member_that_revokes_nothing_is_removed_at_the_rebalance_timeout() -> None:
    driver = GroupDriver(consumer_session_timeout_ms=45_000)
    first, second = TestMember(driver, "a", rebalance_timeout_ms=10_000), TestMember(driver, "b")
    first.join(), second.join(), first.beat()
    keeps = partitions("orders", range(4))
    for _ in range(9):
        driver.advance(1_000)
        assert first.beat(owned=keeps) and second.beat() and second.code is Code.NONE
        assert first.code is Code.NONE
    driver.advance(1_500)
    first.beat(owned=keeps)
    assert first.code is Code.UNKNOWN_MEMBER_ID
    settle(second)
    assert second.numbers == [0, 1, 2, 3]


def test_a_session_that_ends_frees_what_the_member_had() -> None:
    driver = GroupDriver(consumer_session_timeout_ms=10_000, consumer_heartbeat_interval_ms=1_000)
    first, second = TestMember(driver, "a"), TestMember(driver, "b")
    first.join(), second.join()
    settle(first, second)
    for _ in range(9):
        driver.advance(1_000)
        second.beat()
    assert len(second.owned) == 2
    driver.advance(1_100)
    settle(second)
    assert second.numbers == [0, 1, 2, 3] and driver.group.size == 1
    first.beat()
    assert first.code is Code.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_frees_what_it_had() -> None:
    driver = GroupDriver()
    first, second = TestMember(driver, "a"), TestMember(driver, "b")
    first.join(), second.join()
    settle(first, second)
    left = first.leave()
    assert left is not None and (left.code, left.member_id, left.member_epoch) == (Code.NONE, "a", -1)
    assert driver.group.state is GroupState.ASSIGNING
    settle(second)
    assert second.numbers == [0, 1, 2, 3]
    again = first.leave()
    assert again is not None and again.code is Code.UNKNOWN_MEMBER_ID
    second.leave()
    assert driver.group.state is GroupState.EMPTY


# ---- epochs of members ---------------------------------------------------------------------------------------------


def test_members_with_other_epochs_are_fenced() -> None:
    driver = GroupDriver()
    member = TestMember(driver, "a")
    member.join()
    for epoch in (2, 5):
        member.epoch = epoch
        member.beat()
        assert member.code is Code.FENCED_MEMBER_EPOCH
    other = TestMember(driver, "b")
    other.join()
    member.epoch = 1
    settle(member, other)
    member.epoch = 0
    member.beat(owned=frozenset())
    assert member.code is Code.FENCED_MEMBER_EPOCH, "a join that comes late takes nothing away"
    unknown = driver.beat(ConsumerHeartbeat("x", 3))
    assert unknown is not None and unknown.code is Code.UNKNOWN_MEMBER_ID


def test_an_answer_that_was_lost_is_given_again() -> None:
    driver = GroupDriver()
    member = TestMember(driver, "a")
    driver.beat(member.request())  # the answer is lost
    again = member.join()
    assert again is not None and (again.code, again.member_epoch) == (Code.NONE, 1)
    assert again.assignment == partitions("orders", range(4)) and driver.group.size == 1
    driver.topics.topics["orders"] = KnownTopic(topic_id("orders"), 6)
    driver.advance(200)
    driver.beat(member.request())  # lost: epoch 2, six partitions
    again = member.beat()
    assert again is not None and (again.code, again.member_epoch) == (Code.NONE, 2)
    assert again.assignment == partitions("orders", range(6))
    member.epoch = 1
    member.beat(owned=None)
    assert member.code is Code.FENCED_MEMBER_EPOCH, "it does not say what it has"


def test_an_old_epoch_gives_nothing_up() -> None:
    """A late heartbeat was sent before its member was told what to give up: it gives nothing up."""
    driver = GroupDriver(Topics(orders=6))
    first, second, third = (TestMember(driver, name) for name in "abc")
    first.join(), second.join(), first.beat()
    late = first.request(owned=frozenset())
    third.join()
    answer = driver.beat(
        first.request(), "a"
    )  # it has given three up, is to give up one more, and does not learn of it
    assert answer is not None and (answer.member_epoch, len(answer.assignment or ())) == (2, 2)
    result = driver.beat(late, "late")
    assert result is not None and result.member_epoch == 2
    for _ in range(3):
        second.beat(), third.beat()
    assert len(first.owned) == 3 and not first.owned & (second.owned | third.owned)
    settle(first, second, third)
    assert sorted(map(len, (first.owned, second.owned, third.owned))) == [2, 2, 2]


# ---- subscriptions -------------------------------------------------------------------------------------------------


def test_topics_come_grow_and_go() -> None:
    driver = GroupDriver(Topics(orders=2))
    member = TestMember(driver, "a", "orders", "bills")
    member.join()
    assert member.owned == partitions("orders", range(2))
    driver.topics.topics["bills"] = KnownTopic(topic_id("bills"), 1)
    driver.advance(200)
    settle(member)
    assert member.owned == partitions("orders", range(2)) | partitions("bills", [0])
    driver.topics.topics["orders"] = KnownTopic(topic_id("orders"), 3)
    driver.advance(200)
    settle(member)
    assert len(member.owned) == 4
    driver.topics.topics["orders"] = KnownTopic(topic_id("orders", 1), 1)  # it was deleted and made again
    driver.advance(200)
    settle(member)
    assert member.owned == partitions("orders", [0], 1) | partitions("bills", [0])
    del driver.topics.topics["bills"]
    driver.advance(200)
    settle(member)
    assert member.owned == partitions("orders", [0], 1)


def test_a_changed_subscription_moves_partitions() -> None:
    driver = GroupDriver(Topics(orders=2, bills=2))
    first, second = TestMember(driver, "a"), TestMember(driver, "b", "bills")
    first.join(), second.join()
    settle(first, second)
    assert first.owned == partitions("orders", range(2)) and second.owned == partitions("bills", range(2))
    first.topics = frozenset({"bills"})
    settle(first, second)
    assert first.owned | second.owned == partitions("bills", range(2)) and len(first.owned) == 1


def test_members_choose_an_assignor() -> None:
    driver = GroupDriver(Topics(orders=3, bills=3), consumer_assignors="range,uniform")
    assert driver.group.describe_consumers().assignor == "range"
    first = TestMember(driver, "a", "orders", "bills", server_assignor="uniform")
    second = TestMember(driver, "b", "orders", "bills")
    first.join(), second.join()
    assert driver.group.describe_consumers().assignor == "uniform"
    settle(first, second)
    assert (len(first.owned), len(second.owned)) == (3, 3)
    assert first.join(server_assignor="sticky").code is Code.UNSUPPORTED_ASSIGNOR  # type: ignore[union-attr]
    only = GroupDriver(consumer_assignors="range")
    assert TestMember(only, "a", server_assignor="uniform").join().code is Code.UNSUPPORTED_ASSIGNOR  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("beat", "code"),
    [
        (ConsumerHeartbeat("", 1), Code.INVALID_REQUEST),
        (ConsumerHeartbeat("", -1), Code.INVALID_REQUEST),
        (ConsumerHeartbeat("a", -3), Code.INVALID_REQUEST),
        (ConsumerHeartbeat("a", -2), Code.INVALID_REQUEST),
        (ConsumerHeartbeat("a", 1, instance_id=""), Code.INVALID_REQUEST),
        (ConsumerHeartbeat("a", 1, rack_id=""), Code.INVALID_REQUEST),
        (ConsumerHeartbeat("a", 0, topics=frozenset({"t"}), owned=frozenset()), Code.INVALID_REQUEST),
        (ConsumerHeartbeat("a", 0, rebalance_timeout_ms=1, topics=frozenset({"t"})), Code.INVALID_REQUEST),
        (ConsumerHeartbeat("a", 0, rebalance_timeout_ms=1, owned=frozenset()), Code.INVALID_REQUEST),
        (
            ConsumerHeartbeat("", 0, rebalance_timeout_ms=1, owned=frozenset(), topics=frozenset("t"), chooses_id=True),
            Code.INVALID_REQUEST,
        ),
        (ConsumerHeartbeat("a", 1, server_assignor="x"), Code.UNSUPPORTED_ASSIGNOR),
        (ConsumerHeartbeat("a", 1, regex="t.**"), Code.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_invalid_heartbeat_is_refused(beat: ConsumerHeartbeat, code: Code) -> None:
    result = GroupDriver().beat(beat)
    assert result is not None and result.code is code and result.text


def test_a_member_subscribes_by_a_regular_expression() -> None:
    """To the topics that there are, and to those that come, beside those that it names."""
    driver = GroupDriver(Topics(orders=2, bills=1, **{"orders-eu": 1}))
    first, second = TestMember(driver, "a", topics=None, regex="orders.*"), TestMember(driver, "b", "bills")
    first.join(), second.join()
    settle(first, second)
    assert first.owned == partitions("orders", range(2)) | partitions("orders-eu", range(1))
    assert second.owned == partitions("bills", range(1))
    driver.topics.topics |= {
        "orders-us": KnownTopic(topic_id("orders-us"), 1),
        "other": KnownTopic(topic_id("other"), 1),
    }
    driver.advance(200)
    settle(first, second)
    assert first.owned >= partitions("orders-us", range(1)) and len(first.owned) == 4

    other = driver.reload()
    assert other.group.describe_consumers() == driver.group.describe_consumers()
    first.driver = second.driver = other
    second.beat(regex="orders")
    settle(first, second)
    assert second.owned >= partitions("bills", range(1)) and len(second.owned) == 2
    assert len(first.owned) == 3, "orders is shared"
    first.settings = {"topics": frozenset({"other"}), "regex": ""}
    settle(first, second)
    assert first.owned == partitions("other", range(1))
    assert second.owned == partitions("bills", range(1)) | partitions("orders", range(2))


def test_offsets_of_topics_that_an_expression_matches_stay() -> None:
    driver = GroupDriver()
    member = TestMember(driver, "a", topics=frozenset(), regex="ord.*")
    member.join()
    assert driver.commit("a", member.epoch, 5) is Code.NONE
    driver.perform(driver.group.delete_offsets("delete", [ORDERS]))
    assert driver.results["delete"][ORDERS] is Code.GROUP_SUBSCRIBED_TO_TOPIC
    driver.now_ms += 100 * driver.config.offsets_retention_ms
    driver.perform(driver.group.expire_offsets(driver.now))
    assert driver.fetch() == 5


def test_full_group_refuses_a_new_member() -> None:
    driver = GroupDriver(consumer_max_size=2)
    first, second, third = (TestMember(driver, name) for name in "abc")
    first.join(), second.join()
    third.join()
    assert third.code is Code.GROUP_MAX_SIZE_REACHED
    settle(first, second)
    second.leave()
    third.join()
    assert third.code is Code.NONE


def test_a_coordinator_chooses_ids_for_old_clients() -> None:
    driver = GroupDriver()
    member = TestMember(driver, "a")
    member.member_id = ""
    member.join()
    assert member.member_id == "a-1" and len(member.owned) == 4


# ---- static members ------------------------------------------------------------------------------------------------


def test_a_static_member_comes_back_to_what_it_had() -> None:
    driver = GroupDriver()
    first, second = TestMember(driver, "a", instance_id="i"), TestMember(driver, "b")
    first.join(), second.join()
    settle(first, second)
    had, epoch = first.owned, driver.group.group_epoch
    again = TestMember(driver, "a2", instance_id="i")
    again.join()
    assert again.code is Code.UNRELEASED_INSTANCE_ID
    left = first.leave(-2)
    assert left is not None and (left.code, left.member_epoch) == (Code.NONE, -2)
    settle(second)
    assert len(second.owned) == 2, "what it has stays its own"
    again.join()
    assert (again.code, again.owned, driver.group.group_epoch) == (Code.NONE, had, epoch)
    first.beat()
    assert first.code is Code.FENCED_INSTANCE_ID
    assert driver.group.size == 2 and driver.reload().group.describe_consumers() == driver.group.describe_consumers()


def test_next_coordinator_knows_which_static_member_has_left() -> None:
    driver = GroupDriver()
    first, second = TestMember(driver, "a", instance_id="i"), TestMember(driver, "b")
    first.join(), second.join()
    settle(first, second)
    had, epoch = first.owned, driver.group.group_epoch
    first.leave(-2)
    other = driver.reload()
    again, third = TestMember(other, "a2", instance_id="i"), TestMember(other, "a3", instance_id="i")
    again.join(), third.join()
    assert (again.code, again.owned, other.group.group_epoch) == (Code.NONE, had, epoch)
    assert third.code is Code.UNRELEASED_INSTANCE_ID and other.group.size == 2


def test_a_static_member_comes_back_with_its_id() -> None:
    driver = GroupDriver()
    member = TestMember(driver, "a", instance_id="i")
    member.join()
    member.leave(-2)
    member.beat()
    assert member.code is Code.FENCED_MEMBER_EPOCH
    member.join()
    assert member.code is Code.NONE and len(member.owned) == 4 and driver.group.size == 1


def test_a_static_member_that_does_not_come_back_is_removed() -> None:
    driver = GroupDriver()
    first, second = TestMember(driver, "a", instance_id="i"), TestMember(driver, "b")
    first.join(), second.join()
    settle(first, second)
    first.leave(-2)
    for _ in range(46):
        driver.advance(1_000)
        second.beat()
    settle(second)
    assert second.numbers == [0, 1, 2, 3]
    unknown = driver.beat(ConsumerHeartbeat("a", 2, instance_id="j"))
    assert unknown is not None and unknown.code is Code.UNKNOWN_MEMBER_ID


# ---- appends -------------------------------------------------------------------------------------------------------


def test_heartbeat_is_answered_once_its_records_are_committed() -> None:
    driver = GroupDriver()
    driver.holds = True
    first, second = TestMember(driver, "a"), TestMember(driver, "b")
    assert first.join() is None and second.join() is None and len(driver.held) == 1
    driver.commit_one()
    assert driver.results["a"].member_epoch == 1 and "b" not in driver.results and len(driver.held) == 1
    driver.commit_one()
    assert driver.results["b"].member_epoch == 2 and not driver.held


def test_changes_made_while_an_append_is_in_flight_share_the_next_append() -> None:
    driver = GroupDriver(Topics(orders=20))
    driver.holds = True
    members = [TestMember(driver, f"m{number}") for number in range(10)]
    for member in members:
        member.join()
    driver.commit_one()
    driver.commit_one()
    assert not driver.held and all(driver.results[member.name].code is Code.NONE for member in members)
    assert driver.group.size == 10


def test_a_group_whose_append_fails_is_what_it_was() -> None:
    driver = GroupDriver()
    first, second = TestMember(driver, "a"), TestMember(driver, "b")
    first.join()
    before = driver.group.describe_consumers()
    driver.holds = True
    second.join()
    quiet = first.request()
    driver.beat(quiet, "quiet")
    driver.fail_one(Code.NOT_COORDINATOR)
    assert driver.results["b"].code is Code.NOT_COORDINATOR and driver.results["quiet"].code is Code.NONE
    assert driver.group.describe_consumers() == before and not driver.held
    second.join()
    driver.commit_one()
    assert driver.results["b"].code is Code.NONE and driver.group.size == 2


def test_while_an_outcome_is_unknown_nothing_is_served() -> None:
    driver = GroupDriver(consumer_session_timeout_ms=10_000)
    first, second = TestMember(driver, "a"), TestMember(driver, "b")
    first.join()
    driver.holds = True
    second.join()
    driver.beat(first.request(), "waits")
    driver.lose_one()
    assert driver.results["b"].code is driver.results["waits"].code is Code.COORDINATOR_NOT_AVAILABLE
    for _ in range(20):
        driver.advance(1_000)
        assert driver.beat(first.request(), "a").code is Code.COORDINATOR_NOT_AVAILABLE  # type: ignore[union-attr]
    driver.holds = False
    driver.commit_one()
    second.join()
    assert second.code is Code.NONE and driver.group.size == 2
    first.beat()
    assert first.code is Code.NONE, "its heartbeats were heard"


def test_a_group_that_moves_completes_what_waits() -> None:
    driver = GroupDriver()
    driver.holds = True
    TestMember(driver, "a").join()
    TestMember(driver, "b").join()
    driver.perform(driver.group.unload())
    assert driver.results["b"].code is Code.NOT_COORDINATOR
    driver.lose_one(Code.NOT_COORDINATOR)
    assert driver.results["a"].code is Code.NOT_COORDINATOR


def test_another_coordinator_goes_on_from_the_records(seed: int) -> None:
    """At any moment: what a broker reads from the log is what the one before had."""
    random = Random(seed)
    driver = GroupDriver(Topics(orders=7, bills=3))
    members = [
        TestMember(driver, f"m{number}", *random.sample(["orders", "bills"], random.randint(1, 2)), instance_id=name)
        for number, name in enumerate([None, None, None, "i", "j"])
    ]
    for _ in range(60):
        member = random.choice(members)
        if member.code is not Code.NONE or member.epoch == 0:
            member.join()
        elif random.random() < 0.1:
            member.leave()
            member.epoch = 0
        else:
            member.beat()
        driver.advance(random.choice((100, 1_000)))
        if random.random() < 0.2:
            other = driver.reload()
            assert other.group.describe_consumers() == driver.group.describe_consumers()
            driver = other
            for each in members:
                each.driver = driver
    for member in members:
        if member.code is not Code.NONE or member.epoch == 0:
            member.join()
    settle(*members)
    owned = [each for member in members for each in member.owned]
    assert sorted(owned) == sorted(partitions("orders", range(7)) | partitions("bills", range(3)))


def test_live_records_are_appended_again() -> None:
    driver = GroupDriver()
    first, second = TestMember(driver, "a"), TestMember(driver, "b")
    first.join(), second.join()
    settle(first, second)
    driver.commit("a", first.epoch, 5)
    before, is_left = len(driver.log), True
    while is_left:
        effects, is_left = driver.group.rewrite(before, 3)
        assert len(driver.held) == 0
        driver.perform(effects)
    other = driver.reload(since=before)
    assert other.group.describe_consumers() == driver.group.describe_consumers() and other.fetch() == 5


# ---- offsets -------------------------------------------------------------------------------------------------------


def test_members_commit_with_their_epochs() -> None:
    driver = GroupDriver()
    member, other = TestMember(driver, "a"), TestMember(driver, "b")
    member.join()
    assert driver.commit("a", 1, 3) is Code.NONE and driver.fetch() == 3
    other.join()
    settle(member, other)
    assert driver.commit("a", 1, 4) is Code.STALE_MEMBER_EPOCH and driver.fetch() == 3
    assert driver.commit("a", 2, 4) is Code.NONE and driver.fetch() == 4
    assert driver.commit("x", 2, 5) is Code.UNKNOWN_MEMBER_ID
    assert driver.commit("", -1, 5) is Code.UNKNOWN_MEMBER_ID, "an administrator, of a group at work"
    assert driver.commit("a", 2, 5, knows_member_epochs=False) is Code.UNSUPPORTED_VERSION
    assert driver.commit("a", 1, 5, producer=(7, 0)) is Code.ILLEGAL_GENERATION
    assert driver.commit("", -1, 5, producer=(7, 0)) is Code.NONE
    assert driver.fetch() == 4
    member.leave(), other.leave()
    assert driver.commit("", -1, 6) is Code.NONE and driver.fetch() == 6


def test_members_fetch_with_their_epochs() -> None:
    driver = GroupDriver()
    member = TestMember(driver, "a")
    member.join()
    driver.commit("a", 1, 3)
    assert driver.fetch(member_id="a", member_epoch=1) == 3
    assert driver.fetch(member_id="a", member_epoch=2) is Code.STALE_MEMBER_EPOCH
    assert driver.fetch(member_id="b", member_epoch=1) is Code.UNKNOWN_MEMBER_ID


def test_a_member_that_is_being_removed_commits_nothing() -> None:
    """Its partitions may be another one's in the same moment: what it commits would come behind that."""
    driver = GroupDriver()
    first, second = TestMember(driver, "a"), TestMember(driver, "b")
    first.join(), second.join()
    settle(first, second)
    driver.holds = True
    first.leave()
    assert driver.commit("a", first.epoch, 9) is Code.UNKNOWN_MEMBER_ID


def test_delete_offsets_refuses_only_subscribed_topics() -> None:
    driver = GroupDriver()
    member = TestMember(driver, "a")
    member.join()
    driver.commit("a", 1, 3)
    driver.perform(driver.group.delete_offsets("delete", [ORDERS]))
    assert driver.results["delete"][ORDERS] is Code.GROUP_SUBSCRIBED_TO_TOPIC and driver.fetch() == 3
    member.leave()
    driver.perform(driver.group.delete_offsets("delete", [ORDERS]))
    assert driver.results["delete"][ORDERS] is Code.NONE and driver.fetch() == -1


def test_offsets_expire_and_then_the_group() -> None:
    driver = GroupDriver(offsets_retention_ms=100_000)
    member = TestMember(driver, "a")
    member.join()
    driver.commit("a", 1, 3)
    for _ in range(5):
        driver.advance(40_000)
        member.beat()
        driver.perform(driver.group.expire_offsets(driver.now))
    assert driver.fetch() == 3, "it is subscribed to"
    member.leave()
    driver.perform(driver.group.expire_offsets(driver.now))
    assert driver.fetch() == -1
    driver.perform(driver.group.expire_offsets(driver.now))
    assert isinstance(driver.ends[0], GroupDeleted)
    assert driver.reload().group.is_forgettable


# ---- the whole group -----------------------------------------------------------------------------------------------


def test_a_group_without_members_is_deleted() -> None:
    driver = GroupDriver()
    member = TestMember(driver, "a")
    member.join()
    driver.commit("a", 1, 3)
    driver.perform(driver.group.delete("delete"))
    assert driver.results["delete"] is Code.NON_EMPTY_GROUP
    member.leave()
    driver.perform(driver.group.delete("delete"))
    assert driver.results["delete"] is Code.NONE and isinstance(driver.ends[0], GroupDeleted)
    assert driver.reload().group.is_forgettable


def test_a_group_makes_room_for_another_protocol_and_keeps_its_offsets() -> None:
    driver = GroupDriver()
    member = TestMember(driver, "a")
    member.join()
    driver.commit("a", 1, 3)
    driver.perform(driver.group.dissolve("early", "done", lambda code: code))
    assert driver.results["early"] is Code.COORDINATOR_LOAD_IN_PROGRESS
    member.leave()
    driver.holds = True
    driver.perform(driver.group.dissolve("late", "done", lambda code: code))
    assert driver.group.state is GroupState.DEAD
    driver.fail_one()
    assert driver.results["late"] is Code.NOT_COORDINATOR and driver.group.state is GroupState.EMPTY
    driver.perform(driver.group.dissolve("late", "done", lambda code: code))
    driver.beat(member.request(), "waits")
    driver.commit_one()
    assert driver.results["late"] == "done" and isinstance(driver.ends[0], GroupDissolved)
    assert driver.results["waits"].code is Code.COORDINATOR_LOAD_IN_PROGRESS
    other = driver.reload()
    assert other.fetch() == 3 and not other.group.is_recorded
