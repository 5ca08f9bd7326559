"""Key_shared subscriptions: whose key it is, that it moves only once it is drained, and what slow consumers hold up."""

from __future__ import annotations

import mmh3
import numpy as np
import pytest

from pyreplog.topic.model.dispatch import key_shared_selector
from pyreplog.topic.model.dispatch.key_shared_selector import SLOTS, HashRing, slots_of
from tests.topic.dispatching import Log, Rig

KEYS = [b"%d" % i for i in range(50)]


def rig(*, is_prompt: bool = True, **settings: object) -> Rig:
    return Rig(Log(), is_prompt=is_prompt, **{"type": "key_shared", **settings})


def keys_of(one: Rig, consumer: int) -> set[bytes | None]:
    mine = [delivery.batch for delivery in one.deliveries if delivery.consumer == consumer]
    one.deliveries = [delivery for delivery in one.deliveries if delivery.consumer != consumer]
    return {message.key for batch in mine for message in batch}


# ---- the ring --------------------------------------------------------------------------------------------------


def test_slots_are_those_of_the_murmur_hash() -> None:
    log = Log()
    log.publish(3, keys=[b"N14228", None, b""])
    hashes = [mmh3.hash(key, 0, signed=False) for key in (b"N14228", b"NONE_KEY", b"")]
    assert slots_of(log.read(0, 3, 1000)).tolist() == [(found & 0x7FFFFFFF) % SLOTS + 1 for found in hashes]


def test_a_change_of_consumers_moves_few_keys() -> None:
    ring, slots = HashRing(), np.arange(1, SLOTS + 1).astype(np.uint16)
    assert set(ring.owners(slots).tolist()) == {0}
    for holder in range(2, 12):
        ring.add(holder, f"consumer-{holder}")
    before = ring.owners(slots)
    shares = np.bincount(before, minlength=12)[2:]
    assert shares.min() > SLOTS / 10 / 2 and shares.max() < SLOTS / 10 * 2
    ring.add(12, "another")
    after = ring.owners(slots)
    moved = before != after
    assert set(after[moved].tolist()) == {12} and 0.03 < moved.mean() < 0.2
    ring.remove(12)
    assert (ring.owners(slots) == before).all()


def test_keys_come_back_to_a_name_whatever_its_number_and_the_order() -> None:
    slots = np.arange(1, SLOTS + 1).astype(np.uint16)
    one, other = HashRing(), HashRing()
    for holder, name in ((2, "a"), (3, "b"), (4, "b")):
        one.add(holder, name)
    for holder, name in ((7, "b"), (6, "a"), (5, "b")):
        other.add(holder, name)
    renumbered = {6: 2, 7: 3, 5: 4}
    assert one.owners(slots).tolist() == [renumbered[holder] for holder in other.owners(slots).tolist()]


# ---- delivery --------------------------------------------------------------------------------------------------


def test_a_key_goes_to_one_consumer() -> None:
    one = rig()
    for consumer in (1, 2, 3):
        one.attach(consumer, 1000)
    for _ in range(5):
        one.publish(50, keys=KEYS)
    found = [keys_of(one, consumer) for consumer in (1, 2, 3)]
    assert set.union(*found) == set(KEYS) and sum(map(len, found)) == 50 and all(found)


def test_messages_without_a_key_go_to_one_consumer() -> None:
    one = rig()
    one.attach(1, 1000)
    one.attach(2, 1000)
    for _ in range(5):
        one.publish(10)
    assert sorted([len(one.got(1)), len(one.got(2))]) == [0, 50]


def test_a_key_moves_once_it_is_drained() -> None:
    one = rig()
    one.attach(1, 1000)
    one.publish(50, keys=KEYS)
    assert len(one.got(1)) == 50
    one.attach(2, 1000)
    one.publish(50, keys=KEYS)
    stayed = one.got(1)
    assert one.got(2) == [] and one.status.aside == 50 - len(stayed) > 10
    waiting = sorted(set(range(50, 100)) - set(stayed))
    first = waiting[0]
    one.ack(1, [first - 50])
    assert one.got(2) == [first]
    one.ack(1, list(range(50)))
    assert one.got(2) == waiting[1:] and one.status.aside == 0
    assert one.got(1) == []


def test_a_key_that_moved_on_and_back_stays_where_its_messages_are() -> None:
    one = rig()
    one.attach(1, 1000)
    one.publish(50, keys=KEYS)
    one.got(1)
    one.attach(2, 1000)
    one.publish(50, keys=KEYS)
    assert one.got(2) == []
    one.detach(2)
    assert sorted(one.got(1)) == list(range(50, 100))


def test_what_a_consumer_leaves_comes_before_what_is_new() -> None:
    one = rig()
    one.attach(1, 3)
    one.publish(3, keys=[b"k"] * 3)
    one.attach(2, 1000)
    one.attach(3, 1000)
    one.publish(2, keys=[b"k"] * 2)
    assert (one.got(2), one.got(3)) == ([], [])
    one.ack(1, [0])
    one.detach(1)
    assert sorted([one.got(2), one.got(3)]) == [[], [1, 2, 3, 4]]


def test_a_slow_consumer_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_shared_selector, "ASIDE_PER_CONSUMER", 100)
    one = rig()
    one.attach(1)
    one.attach(2, 10_000)
    for _ in range(5):
        one.publish(50, keys=KEYS)
    quick = one.got(2)
    assert one.got(1) == [] and len(quick) > 50 and one.status.aside == 250 - len(quick)
    for _ in range(20):
        one.publish(50, keys=KEYS)
    assert one.status.aside == 200, "beyond the look-ahead"
    assert any(reason.startswith("look-ahead: 200 messages") for reason in one.status.waits)
    more = one.got(2)
    one.flow(1, 10_000)
    slow = one.got(1)
    assert sorted([*quick, *more, *slow, *one.got(2)]) == list(range(1250))
    assert slow == sorted(slow) and one.status.aside == 0


def test_with_one_consumer_nothing_is_put_aside() -> None:
    one = rig(is_prompt=False)
    one.attach(1, 1)
    one.publish(1000, keys=KEYS * 20)
    one.answer()
    for _ in range(300):
        one.flow(1, 1)
    assert one.got(1) == list(range(301)) and not one.reads
    assert one.status.aside == 0 and one.status.in_hand == 699


def test_a_refused_message_goes_to_who_has_its_key() -> None:
    one = rig(nack_min_ms=100)
    one.attach(1, 1000)
    one.publish(50, keys=KEYS)
    one.got(1)
    one.nack(1, list(range(20)))
    one.publish(50, keys=KEYS)
    assert len(one.got(1)) == 50
    one.attach(2, 1000)
    one.sleep(1)
    again = one.got(1)
    assert 0 < len(again) < 20 and one.got(2) == []  # the keys of the others moved, and 1 has messages of them
    one.ack(1, list(range(20, 100)))
    assert sorted([*again, *one.got(2)]) == list(range(20))


def test_what_was_put_aside_may_be_acknowledged_by_anybody() -> None:
    one = rig()
    one.attach(1)
    one.attach(2, 1000)
    one.publish(50, keys=KEYS)
    quick = set(one.got(2))
    left = [offset for offset in range(50) if offset not in quick]
    one.ack(2, left[:-1])
    one.flow(1, 100)
    assert one.got(1) == left[-1:]


def test_room_is_kept_for_what_waits() -> None:
    """New messages do not take the room of older ones of other keys of the same consumer, however they come."""
    one = rig(is_prompt=False)
    one.attach(1)
    one.attach(2, 1000)
    one.publish(50, keys=KEYS)
    one.answer()
    slow = sorted(set(range(50)) - set(one.got(2)))
    one.publish(50, keys=KEYS)  # its read is under way
    one.flow(1, 5)
    one.answer(0)
    assert one.got(1) == []
    one.answer(0)
    assert one.got(1) == slow[:5]


def test_the_last_place_below_the_limit_is_not_held_by_a_slow_consumer() -> None:
    """One more message may be unacknowledged: it is one behind those whose consumer has no room."""
    before = rig()
    before.attach(1)
    before.attach(2, 1000)
    before.publish(50, keys=KEYS)
    quick = keys_of(before, 2)
    slow_key, quick_key = next(key for key in KEYS if key not in quick), next(key for key in KEYS if key in quick)
    one = rig(max_unacked=2)
    one.attach(1)
    one.attach(2, 1000)
    one.publish(1, keys=[quick_key])
    one.publish(3, keys=[slow_key] * 3)
    one.publish(1, keys=[quick_key])
    assert (one.got(1), one.got(2)) == ([], [0, 4])
