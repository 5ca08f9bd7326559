"""Messages that expired between acknowledged ones leave holes in the acknowledgements that clusters exchange.

Too many holes are closed, but only those of messages that no cluster can deliver any more.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pyreplog.geo.acks import exchange as exchanges
from pyreplog.geo.acks.messages import StartOffsets, Summary, decode, encode
from pyreplog.geo.acks.origin_ranges import OriginRanges, ranges_of
from pyreplog.geo.acks.readiness import readiness
from pyreplog.topic.owner import subscription as subscriptions
from tests.waiting import until

from .exchanging import Clusters, Side, cluster_id, origin, span, whole
from .replicated import Side as Cluster
from .replicated import rest, take, two
from .test_replicated_subscriptions import has, trim, trims_soon

MOST = 8
ODD = [*range(1, 101, 2)]


@pytest.fixture(autouse=True)
def _few_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "HOLES_MAX", MOST)
    monkeypatch.setattr(subscriptions, "EXPIRED_RANGES_MAX", MOST)


def linked(letters: str = "ab", links: tuple[str, ...] | None = None) -> Clusters:
    """Return clusters with the subscription s, of which a acknowledged each second one of its first 100 messages."""
    clusters = Clusters(letters, links)
    clusters.connect_all()
    clusters["a"].do(clusters["a"].exchange.create("s", "t1", OriginRanges()))
    clusters["a"].acknowledge("s", "a", *ODD)
    clusters["a"].do(clusters["a"].exchange.expire("s", origin("a"), *whole(0, 100)))
    clusters.settle()
    return clusters


def remove(side: Side, below: int, at: str = "a") -> None:
    side.do(side.exchange.remove({origin(at): below}))


def is_exact(side: Side) -> bool:
    """Return whether the acknowledgements are those of the consumers alone."""
    return side.acked("s", "a") == ODD


def test_holes_of_messages_that_no_cluster_stores_are_closed_in_all() -> None:
    clusters = linked()
    remove(clusters["a"], 100)
    clusters.settle()
    assert is_exact(clusters["a"]) and is_exact(clusters["b"])
    remove(clusters["b"], 100)
    clusters.settle()
    for side in clusters.sides.values():
        assert side.acked("s", "a") == [*range(100)]
        assert not side.exchange.excess_holes
        side.boot()
        assert side.acked("s", "a") == [*range(100)], "the journal has it"


def test_holes_of_messages_that_another_cluster_stores_stay_and_are_reported() -> None:
    clusters = linked()
    remove(clusters["a"], 100)
    remove(clusters["b"], 60)
    clusters.settle()
    for side in clusters.sides.values():
        assert side.acked("s", "a") == [*range(60), *range(61, 101, 2)]
    assert clusters["a"].exchange.excess_holes == {"s": 21}
    assert not clusters["b"].exchange.excess_holes, "its own messages from 60 on wait for consumers"
    remove(clusters["b"], 90)
    clusters.settle()
    assert clusters["a"].acked("s", "a") == [*range(90), *range(91, 101, 2)]
    assert not clusters["a"].exchange.excess_holes


def test_few_holes_of_expired_messages_are_exchanged_exactly() -> None:
    clusters = linked()
    for side in clusters.sides.values():
        remove(side, 2 * MOST)
    clusters.settle()
    assert is_exact(clusters["a"]) and is_exact(clusters["b"])


def test_no_hole_is_closed_while_a_cluster_is_away() -> None:
    """What it told before does not count: it may be restored from a backup."""
    clusters = linked()
    remove(clusters["b"], 100)
    clusters.settle()
    clusters.cut("ab")
    remove(clusters["a"], 100)
    clusters.settle()
    assert is_exact(clusters["a"]) and clusters["a"].exchange.excess_holes == {"s": 50}
    clusters.connect("ab")
    clusters.settle()
    assert clusters["a"].acked("s", "a") == clusters["b"].acked("s", "a") == [*range(100)]


def test_no_hole_is_closed_while_histories_are_not_proved_the_same() -> None:
    clusters = linked()
    clusters.cut("ab")
    clusters.connect("ab", proved=False)
    for side in clusters.sides.values():
        remove(side, 100)
    clusters.settle()
    assert is_exact(clusters["a"]) and is_exact(clusters["b"])


def test_no_hole_is_closed_while_a_cluster_without_a_link_may_store_messages() -> None:
    clusters = linked()
    for side in clusters.sides.values():
        side.do(side.exchange.configure([*map(cluster_id, "abc")], [*map(cluster_id, side.links)]))
        remove(side, 100)
    clusters.settle()
    assert is_exact(clusters["a"]) and is_exact(clusters["b"])


def test_the_centre_of_a_star_closes_holes_for_the_leaves() -> None:
    """A leaf does not know what the other leaf stores."""
    clusters = linked("abc", ("ab", "bc"))
    for letter, others in (("a", "ab"), ("b", "abc"), ("c", "bc")):
        side = clusters[letter]
        side.do(side.exchange.configure([*map(cluster_id, others)], [*map(cluster_id, side.links)]))
    for letter in "ab":
        remove(clusters[letter], 100)
    clusters.settle()
    assert all(is_exact(side) for side in clusters.sides.values())
    remove(clusters["c"], 100)
    clusters.settle()
    assert all(side.acked("s", "a") == [*range(100)] for side in clusters.sides.values())


def test_a_seek_takes_closed_holes_into_its_base() -> None:
    clusters = linked()
    for side in clusters.sides.values():
        remove(side, 2 * MOST)
    clusters.settle()
    state = clusters["b"].exchange.state("s")
    assert state is not None
    clusters["b"].do(clusters["b"].exchange.seek("s", state.acks))
    clusters.settle()
    state = clusters["a"].exchange.state("s")
    assert state is not None
    assert state.bases.of(origin("a")).intersect(0, 20)[1].tolist()[0] == 2 * MOST


def test_an_older_version_gets_no_start_offsets_and_no_hole_is_closed() -> None:
    """A peer of that version ends the connection on a message of an unknown kind."""
    clusters = linked()
    a, session = clusters["a"], 77
    a.do(a.exchange.connect(cluster_id("b"), session))
    a.do(a.exchange.receive(cluster_id("b"), encode(Summary(session, (), True, knows_starts=False))))
    remove(a, 100)
    a.do(a.exchange.flush())
    assert not [send for send in a.outbox if isinstance(decode(send.data), StartOffsets)]
    assert is_exact(a)


def test_start_offsets_are_sent_when_they_change() -> None:
    clusters = linked()
    side = clusters["a"]
    remove(side, 50)
    remove(side, 50)
    remove(side, 40)
    (sent,) = (decode(send.data) for send in side.outbox)
    assert sent == StartOffsets(clusters.session, frozenset(), ((origin("a"), 50),))
    clusters.settle()
    assert side.exchange.is_idle and side.exchange.flush() == []


def test_messages_that_expired_take_one_range_once_they_are_removed() -> None:
    clusters = Clusters()
    a = clusters["a"]
    a.do(a.exchange.create("s", "t1", OriginRanges()))
    for number in range(0, 100, 2):
        a.do(a.exchange.expire("s", origin("a"), *span(number)))
    remove(a, 80)
    assert a.exchange.expired_here("s").ranges == 10


def test_readiness_counts_no_message_that_the_target_has_removed() -> None:
    """Neither those that expired here, nor those whose holes were just closed."""
    clusters = linked()
    a, held = clusters["a"], OriginRanges()

    def report() -> tuple[int, int]:
        effect = readiness(a.exchange, "s", cluster_id("b"), held, {origin("a"): 1000})
        return effect.repeated.total, effect.revived.total

    remove(a, 100)
    clusters.settle()
    assert report() == (0, 50)
    remove(clusters["b"], 60)
    clusters.carry()
    assert report() == (0, 20)
    clusters.settle()
    a.acknowledge("s", "a", 60, 62)
    assert report() == (2, 18)


@pytest.mark.parametrize("links", [("ab",), ("ab", "ac", "bc"), ("ab", "bc"), ("ab", "bc", "cd")])
def test_no_message_that_a_cluster_stores_is_passed_over_unless_it_was_acknowledged(
    links: tuple[str, ...], seed: int
) -> None:
    """Clusters acknowledge and remove messages, lose connections and begin again, at random. In the end all remove
    them: holes are bounded where a cluster is connected to all others."""
    chance = Random(seed)
    letters = "".join(sorted({*"".join(links)}))
    clusters = Clusters(letters, links)
    for side in clusters.sides.values():
        near = [*map(cluster_id, side.links)]
        side.do(side.exchange.configure([side.id, *near], near))
    clusters.connect_all()
    clusters["a"].do(clusters["a"].exchange.create("s", "t1", OriginRanges()))
    clusters.settle()
    acked, starts = set[int](), dict.fromkeys(letters, 0)

    def check() -> None:
        for letter, side in clusters.sides.items():
            passed = {offset for offset in side.acked("s", "a") if offset >= starts[letter]}
            assert passed <= acked, f"{letter} passes over {sorted(passed - acked)[:5]}"

    for _ in range(150):
        side = clusters[chance.choice(letters)]
        match chance.randrange(8):
            case 0 | 1 | 2:
                stored = [offset for offset in range(starts[side.letter], 300) if offset not in acked]
                chosen = chance.sample(stored, min(len(stored), 10))
                acked.update(chosen)
                side.acknowledge("s", "a", *sorted(chosen))
            case 3 | 4:
                starts[side.letter] = min(starts[side.letter] + chance.randrange(30), 300)
                remove(side, starts[side.letter])
            case 5:
                clusters.cut(chance.choice(links))
            case 6:
                clusters.connect(chance.choice(links))
            case 7:
                for pair in links:
                    if side.letter in pair:
                        clusters.cut(pair)
                side.boot()
                near = [*map(cluster_id, side.links)]
                side.do(side.exchange.configure([side.id, *near], near))
                remove(side, starts[side.letter])
        for _ in range(chance.randrange(3)):
            side.do(side.exchange.flush())
            clusters.carry()
        check()
    for letter in letters:
        starts[letter] = 300
        remove(clusters[letter], 300)
    clusters.connect_all()
    check()
    if len(letters) < 4:
        for side in clusters.sides.values():
            state = side.exchange.state("s")
            assert state is not None and state.acks.ranges <= MOST and not side.exchange.excess_holes


def test_holes_of_expired_messages_are_bounded_in_both_clusters(tmp_path: Path) -> None:
    """The first cluster removes the messages before the other one, which delivers them until they expire there, too."""
    with two(tmp_path) as (a, b):
        trims_soon(a, b)
        trims_soon(b, a)
        with a.subscribe() as consumer:
            a.publish(0, 40, per_entry=1)
            messages = take(consumer, 40)
            for number in range(1, 40, 2):
                consumer.acknowledge(messages[number])
            has(b, [*range(1, 40, 2)])
        a.topic.subscription("s").skip_to(40, expires=True).result(20.0)
        trim(a, 36)
        a.publish(40, 42, per_entry=1)
        until(lambda: any("were removed here" in row.alarm for row in a.rows()))
        assert ack_ranges(a) >= 20
        with b.subscribe() as consumer:
            assert {*rest(consumer, 41)} == {*range(0, 40, 2), 40, 41}
        b.topic.subscription("s").skip_to(40, expires=True).result(20.0)
        trim(b, 36)
        a.publish(42, 44, per_entry=1)  # positions of removed messages are forgotten when others come
        until(lambda: ack_ranges(a) <= MOST and ack_ranges(b) <= MOST)
        until(lambda: not any(row.alarm for row in (*a.rows(), *b.rows())))
        assert all(len(side.topic.subscription("s").acked_ranges().expired) <= MOST for side in (a, b))
        with b.subscribe() as consumer:
            assert rest(consumer, 43) == [40, 41, 42, 43]


def ack_ranges(side: Cluster) -> int:
    assert side.subscriptions is not None
    return side.subscriptions.ack_ranges


def test_readiness_counts_messages_as_lost_that_the_target_removed_before_a_seek_went_back_to_them() -> None:
    clusters = Clusters()
    clusters.connect_all()
    a, b = clusters["a"], clusters["b"]
    a.do(a.exchange.create("s", "t1", OriginRanges()))
    a.acknowledge("s", "a", *range(80))
    clusters.settle()
    remove(b, 60)
    clusters.settle()

    def lost() -> list[int]:
        effect = readiness(
            a.exchange, "s", cluster_id("b"), OriginRanges(), {origin("a"): 1000},
            kept=lambda _, ranges: ranges_of(*ranges).intersect(10),
        )  # fmt: skip
        assert effect.is_known and effect.is_current
        return [
            number for start, end in zip(*effect.lost.between(origin("a")), strict=True) for number in range(start, end)
        ]

    assert lost() == []
    base = OriginRanges()
    base.add(origin("a"), *whole(0, 20))
    a.do(a.exchange.seek("s", base))
    clusters.settle()
    assert lost() == [*range(20, 60)]
    a.acknowledge("s", "a", *range(25, 1000))
    clusters.settle()
    assert lost() == [*range(20, 25)]
