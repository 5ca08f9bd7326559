"""Key_shared subscriptions: assignment of keys, which move only when they have no unacknowledged messages, and slow
consumers."""

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


def keys_of(harness: Rig, consumer: int) -> set[bytes | None]:
    mine = [delivery.batch for delivery in harness.deliveries if delivery.consumer == consumer]
    harness.deliveries = [delivery for delivery in harness.deliveries if delivery.consumer != consumer]
    return {message.key for batch in mine for message in batch}


# ---- the ring --------------------------------------------------------------------------------------------------


def test_slots_are_those_of_the_murmur_hash() -> None:
    log = Log()
    log.publish(3, keys=[b"N14228", None, b""])
    hashes = [mmh3.hash(key, 0, signed=False) for key in (b"N14228", b"NONE_KEY", b"")]
    assert slots_of(log.read(0, 3, 1000)).tolist() == [(each_hash & 0x7FFFFFFF) % SLOTS + 1 for each_hash in hashes]


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
    first, other = HashRing(), HashRing()
    for holder, name in ((2, "a"), (3, "b"), (4, "b")):
        first.add(holder, name)
    for holder, name in ((7, "b"), (6, "a"), (5, "b")):
        other.add(holder, name)
    renumbered = {6: 2, 7: 3, 5: 4}
    assert first.owners(slots).tolist() == [renumbered[holder] for holder in other.owners(slots).tolist()]


# ---- delivery --------------------------------------------------------------------------------------------------


def test_a_key_goes_to_one_consumer() -> None:
    harness = rig()
    for consumer in (1, 2, 3):
        harness.attach(consumer, 1000)
    for _ in range(5):
        harness.publish(50, keys=KEYS)
    keys = [keys_of(harness, consumer) for consumer in (1, 2, 3)]
    assert set.union(*keys) == set(KEYS) and sum(map(len, keys)) == 50 and all(keys)


def test_messages_without_a_key_go_to_one_consumer() -> None:
    harness = rig()
    harness.attach(1, 1000)
    harness.attach(2, 1000)
    for _ in range(5):
        harness.publish(10)
    assert sorted([len(harness.got(1)), len(harness.got(2))]) == [0, 50]


def test_a_key_moves_once_it_is_drained() -> None:
    harness = rig()
    harness.attach(1, 1000)
    harness.publish(50, keys=KEYS)
    assert len(harness.got(1)) == 50
    harness.attach(2, 1000)
    harness.publish(50, keys=KEYS)
    stayed = harness.got(1)
    assert harness.got(2) == [] and harness.status.blocked == 50 - len(stayed) > 10
    waiting = sorted(set(range(50, 100)) - set(stayed))
    first = waiting[0]
    harness.ack(1, [first - 50])
    assert harness.got(2) == [first]
    harness.ack(1, list(range(50)))
    assert harness.got(2) == waiting[1:] and harness.status.blocked == 0
    assert harness.got(1) == []


def test_a_key_that_moved_on_and_back_stays_where_its_messages_are() -> None:
    harness = rig()
    harness.attach(1, 1000)
    harness.publish(50, keys=KEYS)
    harness.got(1)
    harness.attach(2, 1000)
    harness.publish(50, keys=KEYS)
    assert harness.got(2) == []
    harness.detach(2)
    assert sorted(harness.got(1)) == list(range(50, 100))


def test_unacknowledged_messages_of_a_detached_consumer_precede_new_ones_of_their_key() -> None:
    harness = rig()
    harness.attach(1, 3)
    harness.publish(3, keys=[b"k"] * 3)
    harness.attach(2, 1000)
    harness.attach(3, 1000)
    harness.publish(2, keys=[b"k"] * 2)
    assert (harness.got(2), harness.got(3)) == ([], [])
    harness.ack(1, [0])
    harness.detach(1)
    assert sorted([harness.got(2), harness.got(3)]) == [[], [1, 2, 3, 4]]


def test_a_slow_consumer_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_shared_selector, "BLOCKED_PER_CONSUMER", 100)
    harness = rig()
    harness.attach(1)
    harness.attach(2, 10_000)
    for _ in range(5):
        harness.publish(50, keys=KEYS)
    quick = harness.got(2)
    assert harness.got(1) == [] and len(quick) > 50 and harness.status.blocked == 250 - len(quick)
    for _ in range(20):
        harness.publish(50, keys=KEYS)
    assert harness.status.blocked == 200, "beyond the look-ahead"
    assert any(reason.startswith("look-ahead: 200 messages") for reason in harness.status.waits)
    more = harness.got(2)
    harness.flow(1, 10_000)
    slow = harness.got(1)
    assert sorted([*quick, *more, *slow, *harness.got(2)]) == list(range(1250))
    assert slow == sorted(slow) and harness.status.blocked == 0


def test_with_one_consumer_nothing_is_put_aside() -> None:
    harness = rig(is_prompt=False)
    harness.attach(1, 1)
    harness.publish(1000, keys=KEYS * 20)
    harness.answer()
    for _ in range(300):
        harness.flow(1, 1)
    assert harness.got(1) == list(range(301)) and not harness.reads
    assert harness.status.blocked == 0 and harness.status.in_hand == 699


def test_a_refused_message_goes_to_the_consumer_of_its_key() -> None:
    harness = rig(nack_min_ms=100)
    harness.attach(1, 1000)
    harness.publish(50, keys=KEYS)
    harness.got(1)
    harness.nack(1, list(range(20)))
    harness.publish(50, keys=KEYS)
    assert len(harness.got(1)) == 50
    harness.attach(2, 1000)
    harness.sleep(1)
    again = harness.got(1)
    assert 0 < len(again) < 20 and harness.got(2) == []  # other keys have moved, and consumer 1 has messages of them
    harness.ack(1, list(range(20, 100)))
    assert sorted([*again, *harness.got(2)]) == list(range(20))


def test_a_blocked_message_may_be_acknowledged_by_any_consumer() -> None:
    harness = rig()
    harness.attach(1)
    harness.attach(2, 1000)
    harness.publish(50, keys=KEYS)
    quick = set(harness.got(2))
    left = [offset for offset in range(50) if offset not in quick]
    harness.ack(2, left[:-1])
    harness.flow(1, 100)
    assert harness.got(1) == left[-1:]


def test_room_is_kept_for_what_waits() -> None:
    """New messages do not take the room of older ones with other keys of the same consumer, in whichever order they are
    read."""
    harness = rig(is_prompt=False)
    harness.attach(1)
    harness.attach(2, 1000)
    harness.publish(50, keys=KEYS)
    harness.answer()
    slow = sorted(set(range(50)) - set(harness.got(2)))
    harness.publish(50, keys=KEYS)  # its read is in progress
    harness.flow(1, 5)
    harness.answer(0)
    assert harness.got(1) == []
    harness.answer(0)
    assert harness.got(1) == slow[:5]


def test_the_last_place_below_the_limit_is_not_held_by_a_slow_consumer() -> None:
    """One more message may be unacknowledged. The next message in order belongs to a consumer without room, and a later
    one is delivered."""
    before = rig()
    before.attach(1)
    before.attach(2, 1000)
    before.publish(50, keys=KEYS)
    quick = keys_of(before, 2)
    slow_key, quick_key = next(key for key in KEYS if key not in quick), next(key for key in KEYS if key in quick)
    harness = rig(max_unacked=2)
    harness.attach(1)
    harness.attach(2, 1000)
    harness.publish(1, keys=[quick_key])
    harness.publish(3, keys=[slow_key] * 3)
    harness.publish(1, keys=[quick_key])
    assert (harness.got(1), harness.got(2)) == ([], [0, 4])
