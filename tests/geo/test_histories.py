"""Neighbours compare their histories of third clusters' topics: how a history is proved, and what is sent afterwards."""

from __future__ import annotations

import pytest

from pyreplog.geo.acks.effects import Acknowledge, CompareEntry, HistoryDiffers
from pyreplog.geo.acks.exchange import LATE_FLUSHES, LATER_FLUSHES
from pyreplog.geo.acks.messages import AcksItem, Connected, Delta, History, Summary, decode, encode
from pyreplog.geo.acks.origin_ranges import OriginRanges, ranges_of
from pyreplog.geo.acks.readiness import readiness
from pyreplog.geo.acks.subscription_state import NO_CLUSTER, Generation
from pyreplog.origins.origin import LastEntry, OriginState

from .exchanging import Clusters, bases, cluster_id, origin, span

A = origin("a")


def entry(first: int, crc: int = 7) -> LastEntry:
    return LastEntry(first, first + 10, crc, 1_000)


def chain(at_b: OriginState, at_c: OriginState, *, connects: bool = True) -> Clusters:
    """Return the chain a - b - c with the subscription s, where b and c have stored these ranges of a's topic."""
    clusters = Clusters("abc", ("ab", "bc"), stored=False)
    for letter, state in (("b", at_b), ("c", at_c)):
        clusters[letter].positions[A] = state
        clusters[letter].do(clusters[letter].exchange.arrive(A, state.stored))
    clusters.connect("ab", thirds=False)
    clusters["a"].do(clusters["a"].exchange.create("s", "t1", OriginRanges()))
    if connects:
        clusters.connect("bc", thirds=False)
    clusters.settle()
    return clusters


def comparison(clusters: Clusters, letter: str) -> CompareEntry:
    """Return the entry that a cluster asks to compare."""
    (effect,) = (effect for effect in clusters[letter].taken() if isinstance(effect, CompareEntry))
    return effect


def compare(clusters: Clusters, letter: str, here: LastEntry | None) -> None:
    side = clusters[letter]
    side.do(side.exchange.compared(comparison(clusters, letter), here))
    clusters.settle()


def is_known(clusters: Clusters, letter: str, target: str) -> bool:
    """Return whether a cluster that acknowledged a message of a knows what another one has acknowledged."""
    return readiness(clusters[letter].exchange, "s", cluster_id(target), bases(a=1000), {A: 1000}).is_known


def sent(clusters: Clusters, kind: type) -> list[str]:
    """Return the clusters that have messages of a kind in flight."""
    return [
        side.letter for side in clusters.sides.values() for send in side.outbox if isinstance(decode(send.data), kind)
    ]


# ---- what proves a history -------------------------------------------------------------------------------------------


def test_equal_last_entries_prove_a_history_without_reading() -> None:
    clusters = chain(OriginState(1000, entry(990)), OriginState(1000, entry(990)))
    clusters["a"].acknowledge("s", "a", 5, 7)
    clusters.settle()
    assert clusters["c"].acked("s", "a") == [5, 7]
    clusters["c"].acknowledge("s", "a", 2)
    clusters.settle()
    assert clusters["a"].acked("s", "a") == [2, 5, 7]
    assert not [
        effect for side in clusters.sides.values() for effect in side.taken() if isinstance(effect, CompareEntry)
    ]


def test_the_cluster_with_more_messages_compares_the_last_entry_of_the_other_one() -> None:
    clusters = chain(OriginState(1000, entry(990)), OriginState(500, entry(490)))
    clusters["a"].acknowledge("s", "a", 5)
    clusters.settle()
    assert clusters["c"].acked("s", "a") == [] and not is_known(clusters, "b", "c")
    compare(clusters, "b", entry(490))
    assert clusters["c"].acked("s", "a") == [5] and is_known(clusters, "b", "c")


def test_a_cluster_without_messages_of_the_origin_gets_no_acknowledgements_of_it() -> None:
    """These messages may never arrive there. Once the first ones have, it gets acknowledgements of later ones, too,
    before those arrive."""
    clusters = chain(OriginState(1000, entry(990)), OriginState(0, None))
    clusters["a"].acknowledge("s", "a", 5, 995)
    clusters.settle()
    assert clusters["c"].acked("s", "a") == []
    clusters["c"].positions[A] = OriginState(10, entry(0))
    clusters["c"].do(clusters["c"].exchange.arrive(A, 10))
    clusters.settle()
    compare(clusters, "b", entry(0))
    assert clusters["c"].acked("s", "a") == [5, 995]
    effects = clusters["c"].exchange.arrive(A, 1000)
    assert [effect.ranges[0].tolist() for effect in effects if isinstance(effect, Acknowledge)] == [[995]]


def test_an_entry_that_was_trimmed_proves_nothing_until_the_other_cluster_has_caught_up() -> None:
    """The comparison has no result yet: no acknowledgement is taken, and there is no alarm."""
    clusters = chain(OriginState(1200, entry(1190)), OriginState(500, entry(490)))
    clusters["a"].acknowledge("s", "a", 5)
    clusters.settle()
    compare(clusters, "b", None)
    assert clusters["c"].acked("s", "a") == [] and not is_known(clusters, "b", "c")
    assert not [effect for effect in clusters["b"].taken() if isinstance(effect, HistoryDiffers)]
    clusters["c"].taken()
    clusters["c"].do(clusters["c"].exchange.arrive(A, 1199))
    assert not clusters["c"].taken()
    clusters["c"].do(clusters["c"].exchange.arrive(A, 1200))
    compare(clusters, "c", entry(1190))
    assert clusters["c"].acked("s", "a") == [5] and is_known(clusters, "b", "c")


@pytest.mark.parametrize("here", [entry(490, crc=8), LastEntry(485, 495, 7, 1_000)])
def test_different_last_entries_raise_history_differs_in_both_clusters(here: LastEntry) -> None:
    """The alarm names the origin. Acknowledgements of that origin are neither taken nor sent; those of other origins
    are."""
    clusters = chain(OriginState(1000, entry(990)), OriginState(500, entry(490)))
    for letter, number in (("b", 5), ("c", 6)):
        clusters[letter].acknowledge("s", "a", number)
        clusters[letter].acknowledge("s", "c", number)
    clusters.settle()
    compare(clusters, "b", here)
    for side, other in (("b", "c"), ("c", "b")):
        (alarm,) = (effect for effect in clusters[side].taken() if isinstance(effect, HistoryDiffers))
        assert (alarm.peer, alarm.origin) == (cluster_id(other), A)
        assert not is_known(clusters, side, other)
        assert clusters[side].acked("s", "c") == [5, 6]
    assert (clusters["b"].acked("s", "a"), clusters["c"].acked("s", "a")) == ([5], [6])
    clusters["c"].do(clusters["c"].exchange.arrive(A, 1100))
    later = next((effect for effect in clusters["c"].taken() if isinstance(effect, CompareEntry)), None)
    assert later is not None
    clusters["c"].do(
        clusters["c"].exchange.compared(later, later.last)
    )  # a difference is final: another entry that is equal does not prove the history
    clusters.settle()
    assert (clusters["b"].acked("s", "a"), clusters["c"].acked("s", "a")) == ([5], [6])


def test_a_proof_ends_with_the_session() -> None:
    clusters = chain(OriginState(1000, entry(990)), OriginState(1000, entry(990)))
    clusters.cut("bc")
    clusters["c"].positions[A] = OriginState(500, entry(490))  # the topic was restored
    clusters["a"].acknowledge("s", "a", 5)
    clusters.settle()
    clusters.connect("bc", thirds=False)
    clusters.settle()
    assert clusters["c"].acked("s", "a") == []
    item = AcksItem("s", "t1", Generation(0, NO_CLUSTER), A, ranges_of(*span(9)))
    delta = encode(Delta(clusters.session, 1, (item,)))
    clusters["c"].do(clusters["c"].exchange.receive(cluster_id("b"), delta))
    assert clusters["c"].acked("s", "a") == []


def test_comparison_of_an_ended_session_is_ignored() -> None:
    clusters = chain(OriginState(1000, entry(990)), OriginState(500, entry(490)))
    effect = comparison(clusters, "b")
    clusters.cut("bc")
    clusters.connect("bc", thirds=False)
    clusters.carry()
    assert not clusters["b"].exchange.compared(effect, entry(490))
    assert not clusters["b"].exchange.compared(effect, entry(490, crc=8))


def test_the_first_messages_of_an_origin_are_compared_when_they_arrive() -> None:
    clusters = Clusters("abc", ("ab", "bc"), stored=False)
    clusters.connect("ab", thirds=False)
    clusters.connect("bc", thirds=False)
    clusters["a"].do(clusters["a"].exchange.create("s", "t1", OriginRanges()))
    clusters.settle()
    assert not sent(clusters, History)
    for side in (clusters["b"], clusters["c"]):
        side.do(side.exchange.arrive(A, 10))
        assert not sent(clusters, History) and not side.exchange.is_idle
    for side in (clusters["b"], clusters["c"]):
        side.positions[A] = OriginState(10, entry(0))  # the state is stored a moment after the message
    clusters["a"].acknowledge("s", "a", 3)
    clusters.settle()
    assert clusters["c"].acked("s", "a") == [3]


def test_histories_of_the_two_clusters_themselves_are_not_compared() -> None:
    """A topic of one of the two has other checks; under a former identity nothing is exchanged with the cluster that
    published it."""
    clusters = Clusters("ab")
    for side in clusters.sides.values():
        for letter in "ab":
            side.positions[origin(letter, 9)] = OriginState(10, entry(0))
    clusters.connect("ab", proved=False)
    clusters.settle()
    report = encode(History(clusters.session, origin("a", 9), OriginState(10, entry(0)), is_same=True))
    assert not clusters["b"].exchange.receive(cluster_id("a"), report)
    assert not clusters["b"].exchange.peer(cluster_id("a")).proved


def test_an_older_version_gets_no_reports() -> None:
    """A peer of that version ends the connection on a message of an unknown kind."""
    clusters = chain(OriginState(1000, entry(990)), OriginState(1000, entry(990)), connects=False)
    side, session = clusters["b"], 77
    side.do(side.exchange.connect(cluster_id("c"), session))
    summary = encode(Summary(session, (), True, knows_histories=False))
    side.do(side.exchange.receive(cluster_id("c"), summary))
    side.do(side.exchange.arrive(A, 1100))
    assert {type(decode(send.data)) for send in side.outbox if send.peer == cluster_id("c")} <= {Summary, Delta}


# ---- what travels ----------------------------------------------------------------------------------------------------


def mesh(letters: str = "abc", links: tuple[str, ...] | None = None) -> Clusters:
    clusters = Clusters(letters, links)
    for side in clusters.sides.values():
        for letter in letters:
            if letter != side.letter:
                side.positions[origin(letter)] = OriginState(1000, entry(990))
    for pair in clusters.pairs:
        clusters.connect(pair, thirds=False)
    clusters["a"].do(clusters["a"].exchange.create("s", "t1", OriginRanges()))
    clusters.settle()
    return clusters


STAR = ("ma", "mb", "mc")
RING = ("ab", "bc", "cd", "ad")


@pytest.mark.parametrize(
    "letters, links", [("abcm", STAR), ("abcd", RING), ("abcd", ("ab", "bc", "cd")), ("abc", None)]
)
def test_acknowledgements_of_all_origins_reach_all_clusters(letters: str, links: tuple[str, ...] | None) -> None:
    clusters = mesh(letters, links)
    for at, letter in enumerate(letters):
        for place, other in enumerate(letters):
            clusters[letter].acknowledge("s", other, 10 * at + place)
    clusters.settle()
    for side in clusters.sides.values():
        for place, other in enumerate(letters):
            assert side.acked("s", other) == [10 * at + place for at in range(len(letters))]
            assert side.exchange.is_idle
    clusters.settle()
    assert not any(side.exchange.flush() for side in clusters.sides.values())


def deltas(clusters: Clusters) -> list[tuple[str, str]]:
    """Return the sender and the receiver of each delta that is in flight."""
    names = {side.id: side.letter for side in clusters.sides.values()}
    return sorted(
        (side.letter, names[send.peer])
        for side in clusters.sides.values()
        for send in side.outbox
        if isinstance(decode(send.data), Delta)
    )


def rounds(clusters: Clusters, count: int) -> list[tuple[str, str]]:
    """Flush and deliver `count` times; return the sender and the receiver of each delta."""
    ways = []
    for _ in range(count):
        for side in clusters.sides.values():
            side.do(side.exchange.flush())
        ways += deltas(clusters)
        clusters.carry()
    return ways


def test_nothing_is_sent_back_to_its_source() -> None:
    clusters = mesh("abc", ("ab", "bc"))
    clusters["a"].acknowledge("s", "c", 5)
    assert rounds(clusters, 3 * LATER_FLUSHES) == [("a", "b"), ("b", "c")]


def test_in_a_mesh_each_acknowledgement_takes_each_link_once() -> None:
    """The source sends it at once. The other two send it late and in one direction, after which each knows what the
    other has."""
    clusters = mesh()
    clusters["a"].acknowledge("s", "c", 5)
    assert rounds(clusters, LATE_FLUSHES) == [("a", "b"), ("a", "c")]
    assert clusters["b"].acked("s", "c") == clusters["c"].acked("s", "c") == [5]
    assert clusters["b"].exchange.unconfirmed(cluster_id("c"), "s").total == 1
    for number in range(6, 40):
        clusters["a"].acknowledge("s", "c", number)
        ways = rounds(clusters, 1)
        assert ("c", "b") not in ways
    assert rounds(clusters, 3 * LATER_FLUSHES) == [("b", "c")]
    for one, other in ("ab", "bc", "cb", "ca"):
        assert not clusters[one].exchange.unconfirmed(cluster_id(other), "s")


def test_late_acknowledgements_leave_at_once_if_their_source_loses_a_connection() -> None:
    """The source may have sent them over only one of its two links."""
    clusters = mesh()
    clusters["a"].acknowledge("s", "c", 5)
    clusters["a"].do(clusters["a"].exchange.flush())
    clusters["a"].outbox = [send for send in clusters["a"].outbox if send.peer == cluster_id("b")]
    clusters.carry()
    assert clusters["b"].acked("s", "c") == [5] and not deltas(clusters)
    clusters.cut("ac")
    assert sent(clusters, Connected) == ["a", "c"]
    clusters.carry()
    assert clusters["c"].acked("s", "c") == [5]


def test_late_acknowledgements_leave_at_once_if_their_source_is_lost() -> None:
    clusters = mesh()
    clusters["a"].acknowledge("s", "b", 5)
    clusters["a"].do(clusters["a"].exchange.flush())
    clusters["a"].outbox = [send for send in clusters["a"].outbox if send.peer == cluster_id("b")]
    clusters.carry()
    clusters.cut("ab")
    clusters.cut("ac")
    clusters["a"].outbox.clear()
    assert rounds(clusters, 3) == [("b", "c")]
    assert clusters["c"].acked("s", "b") == [5]


def test_acknowledgements_of_one_origin_do_not_put_off_those_of_another() -> None:
    """The neighbour passes on acknowledgements of c again and again. Those of b do not arrive from their source, and
    are sent in time."""
    clusters = mesh()
    a, b, c = (clusters[letter] for letter in "abc")
    c.exchange.peer(a.id).refuse(origin("b"))
    for number in range(3 * LATER_FLUSHES):
        c.acknowledge("s", "c", number)
        if not number:
            c.acknowledge("s", "b", 5)
        rounds(clusters, 1)
    assert b.acked("s", "b") == [5] and a.acked("s", "b") == [5]
