"""Shared subscriptions, and rules of all types: which consumer gets a message, and when messages are delivered again."""

from __future__ import annotations

import numpy as np
import pytest

from pyreplog.topic.model.dispatch import dispatcher
from pyreplog.topic.model.dispatch.effects import WakeAt
from tests.topic.dispatching import NOW, SECOND, Log, Rig


def rig(messages: int = 100, entry: int = 10, *, is_prompt: bool = True, **settings: object) -> Rig:
    log = Log()
    for _ in range(messages // entry):
        log.publish(entry)
    return Rig(log, is_prompt=is_prompt, **{"type": "shared", **settings})


def test_messages_are_spread_in_turn() -> None:
    harness = rig(0)
    for consumer in (1, 2, 3):
        harness.attach(consumer, 100)
    for _ in range(30):
        harness.publish(1)
    assert [len(harness.got(consumer)) for consumer in (1, 2, 3)] == [10, 10, 10]
    harness.publish(30)
    assert [len(harness.got(consumer)) for consumer in (1, 2, 3)] == [10, 10, 10]


def test_a_consumer_without_room_is_passed_over() -> None:
    harness = rig(0)
    harness.attach(1, 5)
    harness.attach(2, 100)
    harness.publish(40)
    assert (len(harness.got(1)), len(harness.got(2))) == (5, 35)


def test_consumers_of_higher_priority_get_messages_first() -> None:
    harness = rig(0)
    harness.attach(1, 100, priority=1)
    harness.attach(2, 10)
    harness.attach(3, 10)
    harness.publish(15)
    assert len(harness.got(2)) + len(harness.got(3)) == 15 and harness.got(1) == []
    harness.publish(15)
    assert len(harness.got(2)) + len(harness.got(3)) == 5 and len(harness.got(1)) == 10


def test_unacknowledged_messages_of_a_detached_consumer_go_to_the_others() -> None:
    harness = rig(20)
    harness.attach(1, 20)
    harness.attach(2, 100)
    harness.ack(1, [3, 4])
    harness.detach(1)
    assert harness.got(2) == [0, 1, 2, *range(5, 20)]
    assert set(harness.deliveries[-1].redelivered.values()) == {1}
    harness.ack(2, [offset for offset in range(20) if offset not in (3, 4)])
    assert harness.backlog == 0 and harness.status.redelivered == 0


def test_an_ack_counts_whichever_consumer_has_the_message() -> None:
    harness = rig(20)
    harness.attach(1, 20)
    harness.attach(2, 20)
    harness.ack(2, list(range(20)))
    assert harness.backlog == 0 and harness.status.unacked == 0
    harness.detach(1)
    assert harness.got(2) == []
    harness.ack(2, [5])
    assert harness.backlog == 0


# ---- refused ---------------------------------------------------------------------------------------------------


def test_refused_messages_come_later_and_later() -> None:
    harness = rig(10, nack_min_ms=1000, nack_max_ms=4000)
    harness.attach(1, 1000)
    harness.got(1)
    harness.ack(1, [0, 1, 2, 4, 5, 6, 7, 8, 9])
    waits = []
    for count in range(1, 6):
        harness.nack(1, [3])
        harness.nack(1, [3])  # the consumer does not have this message any more
        began = harness.now
        while not (got := harness.got(1)):
            harness.sleep(0.05)
        waits.append((harness.now - began) / SECOND)
        assert got == [3] and harness.deliveries[-1].redelivered == {3: count}
    assert [round(wait) for wait in waits] == [1, 2, 4, 4, 4]
    assert all(wait >= round(wait) for wait in waits), "early"
    harness.nack(1, [3], delay_us=0)
    assert harness.got(1) == [3]
    harness.nack(1, [3], delay_us=10 * SECOND)
    harness.sleep(9.9)
    assert harness.got(1) == [] and harness.status.replay == 1
    harness.sleep(1.5)
    assert harness.got(1) == [3]


def test_only_the_holder_may_refuse() -> None:
    harness = rig(10, nack_min_ms=0)
    harness.attach(1, 10)
    harness.attach(2, 10)
    harness.nack(2, list(range(10)))
    harness.nack(3, list(range(10)))
    assert harness.got(2) == [] and harness.status.replay == 0


def test_an_ack_of_what_waits_to_come_again() -> None:
    harness = rig(10, is_prompt=False)
    harness.attach(1, 1000)
    harness.answer()
    harness.got(1)
    harness.nack(1, [2, 3, 4, 5])
    harness.nack(1, [7, 8], delay_us=0)
    assert len(harness.reads) == 1  # a read of 7 and 8 is in flight
    harness.ack(1, [3, 7])
    harness.answer()
    assert harness.got(1) == [8]
    harness.sleep(2)
    harness.answer()
    assert harness.got(1) == [2, 4, 5]


def test_a_redelivery_is_asked_for() -> None:
    harness = rig(20)
    harness.attach(1, 10)
    harness.attach(2, 10)
    first = harness.got(1)
    harness.flow(1, 10)
    harness.do(harness.dispatcher.redeliver_unacked(1, harness.now))
    assert harness.got(1) == first
    harness.do(harness.dispatcher.redeliver_unacked(9, harness.now))


def test_replays_of_neighbours_are_one_read() -> None:
    harness = rig(2000, 10, is_prompt=False)
    harness.attach(1, 10_000)
    harness.answer()
    harness.got(1)
    refused = [*range(0, 200, 3), 1000, 1001]
    harness.nack(1, refused, delay_us=0)
    assert [(read.offset, read.end) for read in harness.reads] == [(0, 199)]
    harness.answer()
    assert [(read.offset, read.end) for read in harness.reads] == [(1000, 1002)]
    harness.answer()
    assert harness.got(1) == refused


def test_a_failed_replay_is_read_again() -> None:
    harness = rig(20, is_prompt=False)
    harness.attach(1, 100)
    harness.answer()
    harness.got(1)
    harness.nack(1, [5, 6], delay_us=0)
    harness.fail()
    assert harness.status.replay == 2 and not harness.reads
    harness.sleep(0.2)
    harness.answer()
    assert harness.got(1) == [5, 6]


# ---- times -----------------------------------------------------------------------------------------------------


def test_messages_are_redelivered_after_the_ack_timeout() -> None:
    harness = rig(10, ack_timeout_ms=1000)
    harness.attach(1, 100)
    harness.sleep(0.5)
    harness.publish(5)
    harness.got(1)
    harness.ack(1, list(range(8)))
    harness.sleep(0.49)
    assert harness.got(1) == []
    harness.sleep(0.2)
    assert harness.got(1) == [8, 9] and harness.deliveries[-1].redelivered == {8: 1, 9: 1}
    harness.sleep(0.5)
    assert harness.got(1) == list(range(10, 15))
    harness.ack(1, list(range(8, 15)))
    harness.sleep(10)
    assert harness.got(1) == [] and harness.wake is None


def test_delayed_messages_wait_for_their_time_and_no_longer() -> None:
    harness = rig(0)
    harness.attach(1, 1000)
    due = [0, NOW + SECOND, 0, NOW + 60 * SECOND, NOW - 1]
    harness.publish(5, deliver_at=due)
    assert harness.got(1) == [0, 2, 4] and harness.status.delayed == 2
    harness.sleep(0.999)
    assert harness.got(1) == []
    harness.sleep(0.126)
    assert harness.got(1) == [1] and harness.deliveries[-1].redelivered == {}
    harness.ack(1, [0, 1, 2, 4])
    assert harness.cursor.mark.offset == 3
    harness.sleep(58.8)
    assert harness.got(1) == []
    harness.sleep(0.6)
    assert harness.got(1) == [3]


def test_a_message_is_delivered_at_its_time_and_not_after_it() -> None:
    harness = rig(0)
    harness.attach(1, 1000)
    harness.publish(1, deliver_at=[NOW])
    assert harness.status.delayed == 0 and harness.got(1) == [0]


HOUR = 3600 * SECOND


def test_a_clock_that_is_set_forward_makes_delayed_messages_due() -> None:
    harness = rig(0)
    harness.attach(1, 1000)
    harness.publish(2, deliver_at=[NOW + HOUR + 10 * SECOND, NOW + 10 * SECOND])
    assert harness.got(1) == []
    harness.set_clock(3600)
    harness.sleep(9)
    assert harness.got(1) == [1]
    harness.sleep(2)
    assert harness.got(1) == [0]


def test_a_clock_that_is_set_back_delays_messages_by_as_much() -> None:
    harness = rig(0)
    harness.attach(1, 1000)
    harness.publish(1, deliver_at=[NOW + 10 * SECOND])
    harness.set_clock(-60)
    harness.sleep(60)
    assert harness.got(1) == []
    harness.sleep(10.5)
    assert harness.got(1) == [0]


@pytest.mark.parametrize("hours", [1, -1])
def test_time_outs_do_not_look_at_a_clock_that_is_set(hours: int) -> None:
    harness = rig(4, 1, ack_timeout_ms=60_000, nack_min_ms=10_000)
    harness.attach(1, 1000)
    harness.nack(1, [2, 3])
    assert harness.got(1) == [0, 1, 2, 3]
    harness.set_clock(hours * 3600)
    harness.publish(1)
    assert harness.got(1) == [4]
    harness.sleep(9.9)
    assert harness.got(1) == []
    harness.sleep(2)
    assert harness.got(1) == [2, 3]
    harness.sleep(47)
    assert harness.got(1) == []
    harness.sleep(9)
    assert harness.got(1) == [0, 1, 4]


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
def test_ordered_subscriptions_delay_nothing(kind: str) -> None:
    harness = rig(0, type=kind)
    harness.attach(1, 100)
    harness.publish(3, deliver_at=[NOW + SECOND, 0, 0])
    assert harness.got(1) == [0, 1, 2]


def test_with_too_many_delayed_nothing_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "TRACKED_MAX", 10)
    harness = rig(0)
    harness.attach(1, 1000)
    for i in range(30):
        harness.publish(2, deliver_at=[NOW + SECOND + i * SECOND, 0])
    assert harness.status.delayed == 10 and harness.status.position == 20
    assert harness.got(1) == list(range(1, 21, 2))
    harness.sleep(40)
    assert sorted(harness.got(1)) == [*range(0, 21, 2), *range(21, 60)]


def test_delays_are_known_again_after_the_last_consumer_left() -> None:
    harness = rig(0)
    harness.attach(1, 1000)
    harness.publish(2, deliver_at=[NOW + 5 * SECOND, 0])
    harness.detach(1)
    assert harness.status.delayed == 0
    harness.attach(2, 1000)
    assert harness.got(2) == [1] and harness.status.delayed == 1
    harness.sleep(6)
    assert harness.got(2) == [0]


# ---- limits ----------------------------------------------------------------------------------------------------


def test_blocked_at_a_consumers_limit_until_half_is_acknowledged() -> None:
    harness = rig(100, max_unacked_consumer=20)
    harness.attach(1, 1000)
    assert harness.got(1) == list(range(20)) and harness.status.consumers[0].is_blocked
    harness.ack(1, list(range(9)))
    assert harness.got(1) == []
    harness.ack(1, [9])
    assert harness.got(1) == list(range(20, 30))
    harness.detach(1)
    harness.attach(1, 5)
    assert harness.got(1) == list(range(10, 15))


def test_blocked_at_the_subscriptions_limit_until_half_is_acknowledged() -> None:
    harness = rig(100, max_unacked=20)
    harness.attach(1, 1000)
    harness.attach(2, 1000)
    assert harness.status.unacked == 20 and "max_unacked: 20 messages are not acknowledged" in harness.status.waits
    harness.ack(1, list(range(9)))
    assert harness.status.unacked == 11
    harness.ack(1, [9])
    assert harness.status.unacked == 20
    harness.detach(1)
    harness.detach(2)
    harness.attach(3, 1000)
    assert harness.status.unacked == 20


def test_negative_acknowledgements_unblock_a_consumer() -> None:
    harness = rig(100, max_unacked_consumer=10)
    harness.attach(1, 1000)
    harness.got(1)
    harness.nack(1, list(range(5)))
    assert harness.got(1) == list(range(10, 15))


# ---- dead letters ----------------------------------------------------------------------------------------------


def test_message_beyond_max_redeliveries_becomes_a_dead_letter() -> None:
    harness = rig(10, nack_min_ms=0, max_redeliveries=2)
    harness.attach(1, 1000)
    harness.ack(1, [0, 1, 2, 3, 4, 5, 6])
    for _ in range(3):
        harness.nack(1, [8])
    assert [letter.batch.values() for letter in harness.dead] == [[b"8"]]
    assert harness.dead[0].failures == {8: (2, "nack", None)}
    assert harness.status.dead_letters == 1 and harness.backlog == 3
    harness.ack(1, [7, 9])
    harness.detach(1)
    harness.attach(1, 1000)
    assert len(harness.dead) == 1
    harness.ack(-1, [8])
    assert harness.backlog == 0 and harness.status.dead_letters == 0 and harness.status.redelivered == 0


def test_dead_letters_that_cannot_be_published_stay() -> None:
    harness = rig(10, nack_min_ms=0, nack_max_ms=2000, max_redeliveries=0)
    harness.attach(1, 1000)
    harness.got(1)
    harness.nack(1, [4])
    harness.do(harness.dispatcher.dead_letters_failed(np.array([4, 5]), harness.now))
    assert harness.status.replay == 1
    harness.sleep(2.3)
    assert [letter.failures for letter in harness.dead] == [{4: (0, "nack", None)}] * 2
    assert harness.got(1) == []


def test_dead_letters_that_find_no_room_become_some_later() -> None:
    rig = Rig(Log(), type="shared", nack_min_ms=0, max_redeliveries=0, max_unacked=10)
    rig.publish(6)
    rig.attach(1, 6)
    rig.nack(1, rig.delivered.pop(1))
    rig.is_prompt = False
    rig.sleep(2)
    rig.flow(1, 6)  # these six are read again, and meanwhile:
    rig.publish(8)
    rig.attach(2, 8)
    rig.answer(1)
    assert sorted(rig.delivered.pop(1) + rig.delivered.pop(2)) == list(range(6, 14))
    rig.answer(0)
    assert [letters.batch.offset.tolist() for letters in rig.dead] == [[0, 1]], "ten in all are not acknowledged"
    rig.is_prompt = True
    rig.ack(2, list(range(6, 14)))
    rig.flow(2, 50)
    for _ in range(3):
        rig.sleep(5)
    assert sorted(offset for letters in rig.dead for offset in letters.batch.offset.tolist()) == list(range(6))
    rig.ack(99, list(range(6)))
    assert rig.backlog == 0


def test_dead_letters_count_as_unacknowledged() -> None:
    harness = rig(10, nack_min_ms=0, max_redeliveries=0, max_unacked=10)
    harness.attach(1, 1000)
    harness.nack(1, list(range(10)))
    harness.publish(30)
    assert harness.status.dead_letters == 10 and harness.status.unacked == 0
    assert harness.got(1) == list(range(10))
    harness.ack(-1, list(range(10)))
    assert harness.got(1) == list(range(10, 20))


def test_a_timer_is_set_once() -> None:
    """It is not set again for each message and each acknowledgement until it is due."""
    harness = rig(0)
    harness.attach(1, 10)
    harness.publish(1, deliver_at=[NOW + 5 * SECOND])
    due = harness.wake
    assert due is not None
    later = [harness.dispatcher.flow(1, 1, harness.now), harness.dispatcher.grew(harness.log.end.offset, harness.now)]
    assert not [effect for effects in later for effect in effects if isinstance(effect, WakeAt)]
    harness.publish(1, deliver_at=[NOW + 2 * SECOND])
    assert harness.wake is not None and harness.wake < due, "a message that is due earlier needs an earlier one"
