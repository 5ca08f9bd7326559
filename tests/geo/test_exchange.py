"""The exchange of subscription state between clusters: when it is sent, when it counts, and what survives a crash."""

from __future__ import annotations

import pytest

from pyreplog.errors import InvalidArgumentError
from pyreplog.geo.acks import exchange, messages
from pyreplog.geo.acks.effects import (
    Acknowledge,
    Diverged,
    Drop,
    HistoryDiffers,
    HomeChanged,
    Persist,
    Rebuild,
    SeekLost,
    Send,
)
from pyreplog.geo.acks.handover import Handover, HandoverPhase
from pyreplog.geo.acks.messages import AcksItem, Delta, StateItem, Stored, TombstoneItem, decode, encode
from pyreplog.geo.acks.origin_ranges import OriginRanges, ranges_of
from pyreplog.geo.acks.readiness import readiness
from pyreplog.geo.acks.subscription_state import FIRST_HOME, NO_CLUSTER, Generation, Home
from pyreplog.origins.origin import LastEntry, OriginState

from .exchanging import Clusters, Side, bases, cluster_id, origin, span, whole


def linked(letters: str = "ab", links: tuple[str, ...] | None = None, base: OriginRanges | None = None) -> Clusters:
    """Return linked clusters with the subscription s, which a created."""
    clusters = Clusters(letters, links)
    clusters.connect_all()
    clusters["a"].do(clusters["a"].exchange.create("s", "t1", base or OriginRanges()))
    clusters.settle()
    return clusters


# ---- acknowledgements ------------------------------------------------------------------------------------------------


def test_individual_acknowledgements_reach_the_other_cluster() -> None:
    clusters = linked()
    clusters["a"].acknowledge("s", "a", 5, 1, 3)
    clusters["a"].acknowledge("s", "b", 0)
    clusters.settle()
    assert (clusters["b"].acked("s", "a"), clusters["b"].acked("s", "b")) == ([1, 3, 5], [0])
    applied = [effect for effect in clusters["b"].effects if isinstance(effect, Acknowledge)]
    assert {(effect.origin, effect.ranges[0].size) for effect in applied} == {(origin("a"), 3), (origin("b"), 1)}


def test_nothing_is_sent_before_it_is_durable() -> None:
    clusters = linked()
    side = clusters["a"]
    side.is_fast = False
    side.acknowledge("s", "a", 1)
    side.do(side.exchange.flush())
    assert not side.outbox
    clusters.cut("ab")
    clusters.connect("ab")
    for _ in range(5):
        clusters.carry()
        side.do(side.exchange.flush())
    assert clusters["b"].acked("s", "a") == []
    side.do(side.exchange.persisted(side.journal[-1].sequence))
    clusters.settle()
    assert clusters["b"].acked("s", "a") == [1]


def test_received_acknowledgements_are_confirmed_once_they_are_durable() -> None:
    clusters = linked()
    other = clusters["b"]
    other.is_fast = False
    clusters["a"].acknowledge("s", "a", 1)
    clusters["a"].do(clusters["a"].exchange.flush())
    clusters.carry()
    assert not other.outbox and other.acked("s", "a") == [1]
    assert clusters["a"].exchange.unconfirmed(other.id, "s").total == 1
    other.do(other.exchange.persisted(other.journal[-1].sequence))
    assert [type(decode(send.data)) for send in other.outbox] == [Stored]
    clusters.carry()
    assert not clusters["a"].exchange.unconfirmed(other.id, "s")


def test_a_delta_that_brings_nothing_new_is_confirmed_behind_what_is_not_durable_yet() -> None:
    """The same acknowledgement arrived over another link before, and its record is not durable yet."""
    clusters = linked("abc")
    side = clusters["c"]
    side.is_fast = False
    for letter in "ab":
        clusters[letter].acknowledge("s", "a", 1)
        clusters[letter].do(clusters[letter].exchange.flush())
    clusters.carry()
    assert not side.outbox
    side.do(side.exchange.persisted(side.journal[-1].sequence))
    assert {send.peer for send in side.outbox if isinstance(decode(send.data), Stored)} == {*map(cluster_id, "ab")}


def test_acknowledgements_of_an_origin_count_once_its_history_is_proved_in_the_session() -> None:
    clusters = Clusters()
    clusters.connect("ab", proved=False)
    clusters["a"].do(clusters["a"].exchange.create("s", "t1", OriginRanges()))
    clusters["a"].acknowledge("s", "a", 1)
    clusters["a"].acknowledge("s", "b", 2)
    clusters.settle()
    other = clusters["b"]
    assert (other.acked("s", "a"), other.acked("s", "b")) == ([], [])
    other.do(other.exchange.prove(cluster_id("a"), origin("a")))
    clusters.settle()
    assert (other.acked("s", "a"), other.acked("s", "b")) == ([1], [])
    clusters.cut("ab")
    clusters["a"].acknowledge("s", "a", 7)
    clusters.connect("ab", proved=False)
    clusters.settle()
    assert other.acked("s", "a") == [1]


def test_acknowledgements_of_an_unproved_history_are_not_taken() -> None:
    """An acknowledgement of an origin whose history was not proved in this session is ignored."""
    clusters = linked()
    clusters.cut("ab")
    clusters.connect("ab", proved=False)
    clusters.carry()
    item = AcksItem("s", "t1", Generation(0, NO_CLUSTER), origin("a"), ranges_of(*span(9)))
    clusters["b"].do(clusters["b"].exchange.receive(cluster_id("a"), encode(Delta(clusters.session, 1, (item,)))))
    assert clusters["b"].acked("s", "a") == []


def test_acknowledgements_come_by_way_of_a_third_cluster() -> None:
    clusters = linked("abc", ("ab", "bc"))
    clusters["a"].acknowledge("s", "a", 4)
    clusters.settle()
    assert clusters["c"].acked("s", "a") == [4]


def test_messages_of_this_cluster_that_it_does_not_have_were_never_acknowledged() -> None:
    """The cluster was rolled back. The messages that it publishes at these offsets are other ones, and are delivered."""
    clusters = linked()
    clusters["b"].acknowledge("s", "a", 999, 1000, 1001)
    clusters.settle()
    assert [effect for effect in clusters["a"].effects if isinstance(effect, Diverged)]
    assert clusters["a"].acked("s", "a") == []
    peer = clusters["b"].exchange.peer(cluster_id("a"))
    assert origin("a") not in peer.compared, "readiness of the other cluster must not count them as stored"
    (alarm,) = (effect for effect in clusters["b"].effects if isinstance(effect, HistoryDiffers))
    assert (alarm.origin, alarm.first) == (origin("a"), 1000)
    clusters["b"].acknowledge("s", "a", 3)
    clusters.settle()
    assert clusters["a"].acked("s", "a") == []


def test_messages_of_this_cluster_may_be_acknowledged_before_it_has_read_them() -> None:
    """They are confirmed here, and another cluster was faster: they count as acknowledged before they are delivered."""
    clusters = linked()
    clusters["a"].end = 1002
    clusters["b"].acknowledge("s", "a", 999, 1000, 1001)
    clusters.settle()
    taken = clusters["a"].taken()
    assert not [effect for effect in taken if isinstance(effect, Diverged)]
    assert clusters["a"].acked("s", "a") == [999, 1000, 1001]
    clusters["a"].do(clusters["a"].exchange.arrive(origin("a"), 1002))
    (early,) = (effect for effect in clusters["a"].taken() if isinstance(effect, Acknowledge))
    assert early.ranges[0].tolist() == [1000] and early.ranges[1].tolist() == [1002]


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_what_is_too_large_leaves_no_gap_in_the_journal(monkeypatch: pytest.MonkeyPatch, is_snapshot: bool) -> None:
    """The base of a subscription has too many ranges. The others go on, and the journal can be read."""
    clusters = linked()
    a = clusters["a"]
    monkeypatch.setattr(messages, "BASE_BYTES_MAX", 64)
    wide = OriginRanges()
    wide.add(origin("a"), *span(*range(0, 600, 3)))
    with pytest.raises(InvalidArgumentError, match="bytes of bases"):
        a.exchange.create("wide", "t9", wide)
    if is_snapshot:
        monkeypatch.setattr(exchange, "SNAPSHOT_BYTES", -1)
    a.acknowledge("s", "a", 4)
    clusters.settle()
    assert clusters["b"].acked("s", "a") == a.acked("s", "a")
    assert a.exchange.lacks_header(cluster_id("b"), "wide"), "readiness must not count it as known there"
    a.boot()
    assert 4 in a.acked("s", "a") and a.exchange.state("wide") is None


def test_early_acknowledgements_count_before_the_message_is_delivered() -> None:
    clusters = linked()
    clusters["a"].acknowledge("s", "a", 1500)
    clusters.settle()
    side = clusters["b"]
    assert not [effect for effect in side.taken() if isinstance(effect, Acknowledge)]
    assert side.exchange.early_acks.stored(origin("a")) == 1000
    side.boot()
    assert side.acked("s", "a") == [1500]
    effects = side.exchange.arrive(origin("a"), 1501)
    (effect,) = effects
    assert isinstance(effect, Acknowledge) and effect.ranges[0].tolist() == [1500]
    assert not side.exchange.arrive(origin("a"), 1600)


def test_acknowledgements_of_older_generations_change_nothing() -> None:
    clusters = linked()
    clusters["a"].acknowledge("s", "a", 1)
    clusters.settle()
    clusters["a"].do(clusters["a"].exchange.seek("s", bases(a=1)))
    clusters["b"].acknowledge("s", "a", 2)
    clusters.settle()
    for side in clusters.sides.values():
        assert side.acked("s", "a") == []
        side.acknowledge("s", "a", 3, generation=Generation(0, NO_CLUSTER))
        assert side.acked("s", "a") == []
    assert [effect for effect in clusters["b"].effects if isinstance(effect, Rebuild)]


def test_acknowledgements_in_flight_are_ignored_in_the_next_generation() -> None:
    clusters = linked()
    side = clusters["a"]
    side.acknowledge("s", "a", 1)
    side.do(side.exchange.flush())
    assert side.outbox
    clusters.cut("ab")
    side.acknowledge("s", "a", 2)
    side.do(side.exchange.seek("s", OriginRanges()))
    clusters.connect("ab")
    clusters.settle()
    assert clusters["b"].acked("s", "a") == []
    side.boot()
    assert side.acked("s", "a") == []


def test_the_base_is_no_acknowledgement() -> None:
    """The cursor does not distinguish the base from acknowledgements; messages in the base may have to be delivered
    when another birth of the subscription is joined."""
    clusters = linked(base=bases(a=10))
    clusters["a"].acknowledge("s", "a", 3, 12)
    assert clusters["a"].acked("s", "a") == [12]


def test_expiry_is_not_replicated_and_revives_messages_elsewhere() -> None:
    clusters = linked()
    clusters["a"].do(clusters["a"].exchange.expire("s", origin("a"), *whole(0, 5)))
    clusters.settle()
    assert clusters["b"].acked("s", "a") == clusters["a"].acked("s", "a") == []
    report = readiness(clusters["a"].exchange, "s", cluster_id("b"), bases(a=10), {origin("a"): 10})
    assert report.is_ready and report.revived.total == 5


def test_idle_clusters_write_and_send_nothing() -> None:
    clusters = linked("abc")
    clusters["a"].acknowledge("s", "a", 1, 2, 3)
    clusters.settle()
    records = [len(side.journal) for side in clusters.sides.values()]
    for side in clusters.sides.values():
        assert side.exchange.is_idle
        assert side.exchange.flush() == []
    assert [len(side.journal) for side in clusters.sides.values()] == records


def test_after_a_reconnect_only_differences_are_sent() -> None:
    clusters = linked()
    side = clusters["a"]
    side.do(side.exchange.acknowledge("s", "t1", Generation(0, NO_CLUSTER), origin("b"), *span(*range(0, 900, 2))))
    clusters.settle()
    clusters.cut("ab")
    side.acknowledge("s", "a", 1)
    for other in clusters.sides.values():
        other.boot()
    clusters.connect("ab")
    carried: list[Delta] = []
    for _ in range(6):
        for other in clusters.sides.values():
            other.do(other.exchange.flush())
            deltas = [decode(send.data) for send in other.outbox]
            carried += [message for message in deltas if isinstance(message, Delta)]
        clusters.carry()
    assert sum(len(item.ranges) for delta in carried for item in delta.items if isinstance(item, AcksItem)) <= 1
    assert clusters["b"].acked("s", "b") == [*range(0, 900, 2)]


# ---- lives of subscriptions --------------------------------------------------------------------------------------------


def test_a_subscription_is_created_elsewhere_with_the_base_of_its_creator() -> None:
    """The new subscription does not begin at the latest or the earliest message, as in apache/pulsar#20767."""
    clusters = linked(base=bases(a=10, b=3))
    state = clusters["b"].exchange.state("s")
    assert state is not None and state.bases == bases(a=10, b=3)
    assert [type(effect) for effect in clusters["b"].effects] == [Rebuild]


def test_births_that_did_not_know_of_each_other_lose_nothing() -> None:
    clusters = Clusters()
    clusters["a"].do(clusters["a"].exchange.create("s", "t1", bases(a=10, b=10)))
    clusters["b"].do(clusters["b"].exchange.create("s", "t2", bases(a=4)))
    clusters["b"].acknowledge("s", "b", 7)
    clusters.connect_all()
    for side in clusters.sides.values():
        state = side.exchange.state("s")
        assert state is not None and state.tokens == {"t1", "t2"} and state.bases == bases(a=4)
        assert side.acked("s", "b") == [7]


def test_a_name_is_taken_once() -> None:
    clusters = linked()
    with pytest.raises(InvalidArgumentError, match="expected a new name"):
        clusters["b"].exchange.create("s", "t2", OriginRanges())
    for act in (clusters["a"].exchange.delete, lambda name: clusters["a"].exchange.seek(name, OriginRanges())):
        with pytest.raises(InvalidArgumentError, match="expected one that exists"):
            act("nobody")


def test_deletion_is_final_and_its_tombstones_end() -> None:
    clusters = linked("abc")
    clusters.cut("bc")
    clusters.cut("ac")
    clusters["c"].acknowledge("s", "a", 1)
    clusters["a"].do(clusters["a"].exchange.delete("s"))
    clusters.settle()
    assert clusters["b"].exchange.state("s") is None
    assert clusters["b"].exchange.tombstones("s") == {"t1"}, "c has not confirmed"
    clusters.connect_all()
    for side in clusters.sides.values():
        assert side.exchange.state("s") is None and not side.exchange.tombstones("s")
        assert side.exchange.names() == []
    assert [effect for effect in clusters["c"].effects if isinstance(effect, Drop)]


def test_a_deleted_subscription_does_not_come_back() -> None:
    """Neither a cluster that was away (apache/pulsar#6464) nor the cluster's own journal brings it back."""
    clusters = linked("abc")
    clusters.cut("bc")
    clusters["a"].do(clusters["a"].exchange.delete("s"))
    clusters.cut("ac")
    clusters.settle()
    clusters["b"].boot()
    clusters.connect("bc")
    clusters.settle()
    assert clusters["c"].exchange.state("s") is None
    assert not [effect for effect in clusters["b"].effects if isinstance(effect, Rebuild)], "not for a moment"
    clusters["c"].boot()
    assert clusters["c"].exchange.names() == []


def test_a_subscription_created_again_inherits_nothing() -> None:
    clusters = linked()
    clusters["a"].acknowledge("s", "a", 1, 2)
    clusters.settle()
    clusters.cut("ab")
    clusters["b"].acknowledge("s", "a", 3)
    clusters["a"].do(clusters["a"].exchange.delete("s"))
    clusters["a"].do(clusters["a"].exchange.create("s", "t2", OriginRanges()))
    clusters.connect_all()
    for side in clusters.sides.values():
        state = side.exchange.state("s")
        assert state is not None and state.tokens == {"t2"}
        assert side.acked("s", "a") == []


def test_a_birth_that_was_joined_with_a_dead_one_ends_with_it() -> None:
    """Two births were joined in some clusters, and one of them is deleted. A cluster that learns of the deletion first
    keeps the other birth without acknowledgements of the dead one, until it learns that they were joined."""
    clusters = Clusters("abcd", ("ab", "bc", "cd", "ad"))
    clusters["a"].do(clusters["a"].exchange.create("s", "t2", OriginRanges()))
    clusters["b"].do(clusters["b"].exchange.create("s", "t1", OriginRanges()))
    for pair in ("ad", "bc"):
        clusters.connect(pair)
    clusters.settle()
    clusters["c"].acknowledge("s", "a", 1)
    clusters.settle()
    for pair in ("ad", "bc"):
        clusters.cut(pair)
    clusters.connect("ab")
    clusters.settle()
    joined = clusters["b"].exchange.state("s")
    assert joined is not None and joined.tokens == {"t1", "t2"} and clusters["b"].acked("s", "a") == [1]
    clusters["c"].do(clusters["c"].exchange.delete("s"))
    clusters.connect("cd")
    clusters.settle()
    born = clusters["c"].exchange.state("s")
    assert born is not None and born.tokens == {"t2"} and clusters["c"].acked("s", "a") == []
    clusters.connect_all()
    for side in clusters.sides.values():
        assert side.exchange.state("s") is None and not side.exchange.tombstones("s")


def test_a_removed_cluster_counts_as_having_confirmed() -> None:
    clusters = linked("abc")
    for pair in ("ac", "bc"):
        clusters.cut(pair)
    clusters["a"].do(clusters["a"].exchange.delete("s"))
    clusters.settle()
    assert clusters["a"].exchange.tombstones("s") == {"t1"}
    for letter, other in ("ab", "ba"):
        side = clusters[letter]
        side.do(side.exchange.configure([side.id, cluster_id(other)], [cluster_id(other)]))
    clusters.settle()
    assert not clusters["a"].exchange.tombstones("s") and not clusters["b"].exchange.tombstones("s")
    with pytest.raises(InvalidArgumentError, match="expected a cluster with which"):
        clusters["a"].exchange.peer(cluster_id("c"))


def test_losing_one_of_two_concurrent_seeks_emits_seek_lost() -> None:
    clusters = linked()
    clusters.cut("ab")
    for letter, end in (("a", 5), ("b", 7)):
        clusters[letter].do(clusters[letter].exchange.seek("s", bases(a=end)))
        clusters[letter].taken()
    clusters.connect_all()
    for side in clusters.sides.values():
        state = side.exchange.state("s")
        assert state is not None and state.generation == Generation(1, cluster_id("b")) and state.bases == bases(a=7)
    lost = [effect for effect in clusters["a"].effects if isinstance(effect, SeekLost)]
    assert lost == [SeekLost("s", Generation(1, cluster_id("a")), Generation(1, cluster_id("b")))]
    assert not [effect for effect in clusters["b"].effects if isinstance(effect, SeekLost)]


def test_a_seek_is_not_sent_before_it_is_durable() -> None:
    """Otherwise the process could crash, and make another seek with the same number."""
    clusters = linked()
    side = clusters["a"]
    side.is_fast = False
    side.do(side.exchange.seek("s", bases(a=5)))
    clusters.cut("ab")
    clusters.connect("ab")
    for _ in range(4):
        clusters.carry()
        side.do(side.exchange.flush())
    state = clusters["b"].exchange.state("s")
    assert state is not None and state.generation.counter == 0


def test_exchange_state_is_recovered_from_the_journal_after_a_crash() -> None:
    clusters = linked("abc", base=bases(b=4))
    clusters["a"].acknowledge("s", "a", *range(0, 400, 2))
    clusters.settle()
    clusters["b"].do(clusters["b"].exchange.seek("s", bases(a=1)))
    clusters.settle()
    for number in range(3000):
        clusters["c"].acknowledge("s", "a", number % 1000)
        clusters["c"].do(clusters["c"].exchange.flush())
    clusters.settle()
    snapshots = [persist for persist in clusters["c"].journal if persist.is_snapshot]
    for side in clusters.sides.values():
        before = side.exchange.state("s")
        side.boot()
        assert side.exchange.state("s") == before and before is not None
    assert snapshots


# ---- handover and readiness ----------------------------------------------------------------------------------------


def test_a_handover_waits_until_the_other_cluster_has_all() -> None:
    clusters = linked("abc")
    side, target = clusters["a"], clusters["b"]
    target.is_fast = False
    side.acknowledge("s", "a", 1)
    handover = Handover(side.exchange, "s", target.id)
    assert not handover.delivers
    side.do(handover.stopped())
    side.do(side.exchange.flush())
    clusters.carry()
    side.do(handover.advance())
    assert handover.phase is HandoverPhase.DRAINING
    target.do(target.exchange.persisted(target.journal[-1].sequence))
    clusters.carry()
    side.do(handover.advance())
    assert handover.phase is HandoverPhase.MOVING and not handover.cancel()
    target.is_fast = True
    clusters.settle()
    side.do(handover.advance())
    assert handover.phase is HandoverPhase.DONE
    for other in clusters.sides.values():
        state = other.exchange.state("s")
        assert state is not None and state.home.admits(target.id) and not state.home.admits(side.id)
    assert [effect for effect in target.effects if isinstance(effect, HomeChanged)]
    with pytest.raises(InvalidArgumentError, match="delivered here"):
        Handover(side.exchange, "s", cluster_id("c"))


def test_a_handover_that_moved_is_confirmed_to_the_next_owner() -> None:
    """The process that began the handover ended. The next owner knows what the other cluster has once that has reported
    it in a new session."""
    clusters = linked()
    side, target = clusters["a"], clusters["b"]
    handover = Handover(side.exchange, "s", target.id)
    side.do(handover.stopped())
    assert handover.phase is HandoverPhase.MOVING
    clusters.cut("ab")
    side.boot()
    state = side.exchange.state("s")
    assert state is not None and not state.home.admits(side.id)
    handover = Handover(side.exchange, "s", target.id)
    assert handover.phase is HandoverPhase.MOVING and not handover.delivers and not handover.cancel()
    side.do(handover.advance())
    assert handover.phase is HandoverPhase.MOVING
    clusters.connect_all()
    side.do(handover.advance())
    assert handover.phase is HandoverPhase.DONE and handover.is_over


def test_handover_waits_until_the_target_has_reported_in_this_session() -> None:
    """Nothing was acknowledged, so the target can lack nothing, but it may not have the subscription at all."""
    clusters = linked()
    side = clusters["a"]
    clusters.cut("ab")
    side.boot()
    handover = Handover(side.exchange, "s", cluster_id("b"))
    side.do(handover.stopped())
    assert handover.phase is HandoverPhase.DRAINING
    clusters.connect_all()
    side.do(handover.advance())
    assert handover.phase is HandoverPhase.MOVING


def test_a_handover_ends_when_another_cluster_takes_the_subscription_over() -> None:
    clusters = linked()
    side, other = clusters["a"], clusters["b"]
    handover = Handover(side.exchange, "s", other.id)
    other.do(other.exchange.move("s", other.id))
    clusters.settle()
    side.do(handover.stopped())
    assert handover.phase is HandoverPhase.CANCELLED and handover.is_over


def test_handover_waits_until_the_target_has_reported_its_state() -> None:
    clusters = Clusters()
    side = clusters["a"]
    side.do(side.exchange.create("s", "t1", OriginRanges()))
    side.acknowledge("s", "a", 1)
    side.do(side.exchange.flush())
    handover = Handover(side.exchange, "s", cluster_id("b"))
    side.do(handover.stopped())
    assert handover.phase is HandoverPhase.DRAINING
    assert handover.cancel() and handover.delivers
    side.do(handover.advance())
    assert handover.phase is HandoverPhase.CANCELLED


def test_readiness_reports_lost_and_repeated_messages() -> None:
    clusters = linked()
    side, target = clusters["a"], cluster_id("b")
    clusters.cut("ab")
    side.acknowledge("s", "a", 1, 8)
    report = readiness(side.exchange, "s", target, bases(a=10), {origin("a"): 5})
    assert [[*ends] for ends in report.lost.between(origin("a"))] == [[5, 9], [8, 10]]
    assert [[*ends] for ends in report.repeated.between(origin("a"))] == [[1], [2]]
    assert report.is_known and report.is_current and not report.is_ready
    clusters.connect_all()
    assert readiness(side.exchange, "s", target, bases(a=10), {origin("a"): 10}).is_ready
    side.do(side.exchange.seek("s", OriginRanges()))
    assert not readiness(side.exchange, "s", target, bases(a=10), {origin("a"): 10}).is_current


def test_a_message_on_its_way_may_arrive_without_its_acknowledgement() -> None:
    clusters = linked()
    side, target, held, stored = clusters["a"], cluster_id("b"), bases(a=10), {origin("a"): 5}
    side.acknowledge("s", "a", *range(5, 10))
    report = readiness(side.exchange, "s", target, held, stored, sent=lambda of: 8 if of == origin("a") else 0)
    assert [[*ends] for ends in report.repeated.between(origin("a"))] == [[5], [8]]
    assert not report.lost and not report.is_ready
    clusters.settle()
    assert readiness(side.exchange, "s", target, held, stored, sent=lambda _: 10).is_ready


def test_readiness_after_a_restart_is_unknown_until_the_other_cluster_reports() -> None:
    clusters = linked()
    side = clusters["a"]
    side.acknowledge("s", "a", 1)
    clusters.settle()
    clusters.cut("ab")
    side.boot()
    assert not readiness(side.exchange, "s", cluster_id("b"), bases(a=10), {origin("a"): 10}).is_known
    clusters.connect_all()
    assert readiness(side.exchange, "s", cluster_id("b"), bases(a=10), {origin("a"): 10}).is_ready


def test_effects_of_messages_of_former_sessions() -> None:
    clusters = linked()
    side = clusters["a"]
    side.acknowledge("s", "a", 1)
    side.do(side.exchange.flush())
    (late,) = side.outbox
    assert isinstance(late, Send)
    clusters.cut("ab")
    clusters.connect("ab")
    records = len(clusters["b"].journal)
    clusters["b"].do(clusters["b"].exchange.receive(side.id, late.data))
    assert len(clusters["b"].journal) == records and clusters["b"].acked("s", "a") == []
    assert all(isinstance(persist, Persist) for persist in side.journal)


def test_readiness_of_a_recreated_topic_is_unknown() -> None:
    clusters = linked()
    side = clusters["a"]
    side.acknowledge("s", "a", 1)
    clusters.settle()
    clusters.cut("ab")
    other = clusters["b"]
    other.journal.clear()
    other.origin = origin("b", 2)
    other.boot()
    clusters.connect("ab", proved=False)
    report = readiness(side.exchange, "s", other.id, bases(a=10), {origin("a"): 10})
    assert not report.is_known


def test_a_cluster_whose_policy_replicates_subscriptions_again_has_confirmed_nothing() -> None:
    """Its topic is the same, but its journal begins anew. Readiness is unknown until both have compared what they have,
    and a handover waits for that."""
    clusters = linked()
    side, other = clusters["a"], clusters["b"]
    side.acknowledge("s", "a", 1)
    clusters.settle()
    clusters.cut("ab")
    told = readiness(side.exchange, "s", other.id, bases(a=10), {origin("a"): 10})
    assert told.is_known and not told.repeated, "what it has confirmed counts while it is away"
    other.journal.clear()
    other.boot()
    other.do(other.exchange.create("s", "t9", bases()))
    clusters.connect("ab", proved=False)
    clusters.settle()
    assert not readiness(side.exchange, "s", other.id, bases(a=10), {origin("a"): 10}).is_known
    handover = Handover(side.exchange, "s", other.id)
    side.do(handover.stopped())
    assert handover.phase is HandoverPhase.DRAINING
    clusters.connect_all()
    assert readiness(side.exchange, "s", other.id, bases(a=10), {origin("a"): 10}).is_ready
    assert other.acked("s", "a") == [1]


def test_a_neighbour_that_was_restored_has_not_confirmed_what_it_lacks() -> None:
    """It confirmed acknowledgements that its backup does not have: until it has told what it has, nothing is known."""
    clusters = linked()
    side, other = clusters["a"], clusters["b"]
    backup = [*other.journal]
    side.acknowledge("s", "a", 1)
    clusters.settle()
    assert readiness(side.exchange, "s", other.id, OriginRanges(), {}).is_ready
    clusters.cut("ab")
    other.journal = backup
    other.boot()
    clusters.connect("ab", proved=False)
    clusters.carry()
    handover = Handover(side.exchange, "s", other.id)
    side.do(handover.stopped())
    assert not readiness(side.exchange, "s", other.id, OriginRanges(), {}).is_known
    assert handover.phase is HandoverPhase.DRAINING
    for one, two in ((side, other), (other, side)):
        one.do(one.exchange.prove(two.id, origin("a")))
    clusters.settle()
    side.do(handover.advance())
    assert handover.phase is HandoverPhase.MOVING and other.acked("s", "a") == [1]


def test_a_position_that_a_restored_neighbour_had_is_forgotten() -> None:
    clusters = Clusters("abc")
    clusters["b"].positions[origin("c")] = OriginState(7, LastEntry(6, 7, 1, 1))
    clusters.connect_all()
    peer = clusters["a"].exchange.peer(cluster_id("b"))
    assert peer.positions == {origin("c"): 7}
    clusters.cut("ab")
    clusters["b"].positions.clear()
    assert peer.positions == {origin("c"): 7}
    clusters.connect("ab")
    clusters.settle()
    assert not peer.positions


def test_recreated_topic_gets_its_last_acknowledgements_back() -> None:
    """The acknowledgement was not durable at the neighbour yet when the new topic reported that it has none."""
    clusters = linked()
    side, other = clusters["a"], clusters["b"]
    side.is_fast = False
    other.acknowledge("s", "a", 3)
    other.do(other.exchange.flush())
    clusters.carry()
    clusters.cut("ab")
    other.journal.clear()
    other.origin = origin("b", 2)
    other.boot()
    clusters.connect("ab")
    clusters.carry()
    side.is_fast = True
    for persist in side.journal:
        side.do(side.exchange.persisted(persist.sequence))
    clusters.settle()
    assert side.acked("s", "a") == other.acked("s", "a") == [3]


def test_neighbour_that_knows_fewer_confirmations_of_a_deletion_is_sent_the_others() -> None:
    """The neighbour's topic was created again, and it learned of the deletion from a third cluster. Unless it is sent
    the other confirmations, it waits for them for ever."""
    clusters = Clusters("abc", ("ab",))
    clusters.connect_all()
    a, b = clusters["a"], clusters["b"]
    a.do(a.exchange.create("s", "t1", OriginRanges()))
    clusters.settle()
    a.do(a.exchange.delete("s"))
    clusters.settle()
    clusters.cut("ab")
    clusters.connect("ab")
    clusters.settle()
    for sequence, confirmed in ((1, {a.id, b.id}), (2, {b.id})):
        known = TombstoneItem("s", "t1", frozenset(confirmed))
        a.do(a.exchange.receive(b.id, encode(Delta(clusters.session, sequence, (known,)))))
        a.do(a.exchange.flush())
        sent = [message for send in a.outbox if isinstance(message := decode(send.data), Delta)]
        expected = [] if sequence == 1 else [TombstoneItem("s", "t1", frozenset({a.id, b.id}))]
        assert [item for delta in sent for item in delta.items] == expected


# ---- homes at birth --------------------------------------------------------------------------------------------------


def home_of(side: Side) -> Home:
    state = side.exchange.state("s")
    assert state is not None
    return state.home


@pytest.mark.parametrize("is_connected", [False, True])
def test_births_with_different_homes_agree_on_the_higher_number(is_connected: bool) -> None:
    """Clusters subscribe to a new partition at the same moment, and know different homes of partition 0."""
    clusters = Clusters("abc")
    if is_connected:
        clusters.connect_all()
    homes = {"a": Home(4, cluster_id("a")), "b": Home(5, cluster_id("b")), "c": FIRST_HOME}
    for letter, home in homes.items():
        side = clusters[letter]
        side.do(side.exchange.create("s", f"t{letter}", OriginRanges(), home))
        assert home_of(side) == home
    if not is_connected:
        clusters.connect_all()
    clusters.settle()
    states = [clusters[letter].exchange.state("s") for letter in "abc"]
    assert [home_of(clusters[letter]) for letter in "abc"] == [homes["b"]] * 3
    assert len({state.header_digest() for state in states if state is not None}) == 1
    for letter in "ac":
        changes = [effect for effect in clusters[letter].effects if isinstance(effect, HomeChanged)]
        assert changes[-1] == HomeChanged("s", homes["b"])


def test_home_at_birth_survives_a_crash_and_an_order_wins_over_it() -> None:
    clusters = Clusters()
    clusters.connect_all()
    side, other = clusters["a"], clusters["b"]
    side.do(side.exchange.create("s", "t1", OriginRanges(), Home(7, side.id)))
    side.boot()
    clusters.connect_all()
    assert home_of(other) == Home(7, side.id)
    other.do(other.exchange.move("s", other.id))
    clusters.settle()
    assert home_of(side) == Home(8, other.id)


def test_home_at_birth_is_merged_into_a_state_that_came_from_another_cluster() -> None:
    clusters = linked()
    side, other = clusters["a"], clusters["b"]
    home = Home(3, side.id)
    other.do(other.exchange.inherit("s", home))
    assert HomeChanged("s", home) in other.effects
    clusters.settle()
    assert home_of(side) == home
    records = len(other.journal)
    for lower in (home, Home(2, other.id), FIRST_HOME):  # an older one changes nothing
        assert other.exchange.inherit("s", lower) == []
    assert other.exchange.inherit("none", home) == []
    assert len(other.journal) == records
    other.boot()
    assert home_of(other) == home


def test_home_at_birth_is_sent_in_the_form_that_earlier_versions_take() -> None:
    """A cluster that knows no homes at birth takes it like that of a handover, and holds its consumers back."""
    clusters = Clusters()
    clusters.connect_all()
    side, home = clusters["a"], Home(2, cluster_id("a"))
    side.do(side.exchange.create("s", "t1", OriginRanges(), home))
    deltas = [message for send in side.outbox if isinstance(message := decode(send.data), Delta)]
    items = [item for delta in deltas for item in delta.items if isinstance(item, StateItem)]
    assert [(item.name, item.home) for item in items] == [("s", home)]
    clusters.settle()
    assert HomeChanged("s", home) in clusters["b"].effects
