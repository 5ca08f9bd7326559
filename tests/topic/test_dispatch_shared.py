"""Shared subscriptions, and what all types have in common: who gets what, and what comes again when."""

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
    one = rig(0)
    for consumer in (1, 2, 3):
        one.attach(consumer, 100)
    for _ in range(30):
        one.publish(1)
    assert [len(one.got(consumer)) for consumer in (1, 2, 3)] == [10, 10, 10]
    one.publish(30)
    assert [len(one.got(consumer)) for consumer in (1, 2, 3)] == [10, 10, 10]


def test_who_has_no_room_is_passed_over() -> None:
    one = rig(0)
    one.attach(1, 5)
    one.attach(2, 100)
    one.publish(40)
    assert (len(one.got(1)), len(one.got(2))) == (5, 35)


def test_priorities() -> None:
    one = rig(0)
    one.attach(1, 100, priority=1)
    one.attach(2, 10)
    one.attach(3, 10)
    one.publish(15)
    assert len(one.got(2)) + len(one.got(3)) == 15 and one.got(1) == []
    one.publish(15)
    assert len(one.got(2)) + len(one.got(3)) == 5 and len(one.got(1)) == 10


def test_what_a_consumer_leaves_goes_to_the_others() -> None:
    one = rig(20)
    one.attach(1, 20)
    one.attach(2, 100)
    one.ack(1, [3, 4])
    one.detach(1)
    assert one.got(2) == [0, 1, 2, *range(5, 20)]
    assert set(one.deliveries[-1].redelivered.values()) == {1}
    one.ack(2, [offset for offset in range(20) if offset not in (3, 4)])
    assert one.backlog == 0 and one.status.redelivered == 0


def test_an_ack_counts_whoever_has_the_message() -> None:
    one = rig(20)
    one.attach(1, 20)
    one.attach(2, 20)
    one.ack(2, list(range(20)))
    assert one.backlog == 0 and one.status.unacked == 0
    one.detach(1)
    assert one.got(2) == []
    one.ack(2, [5])
    assert one.backlog == 0


# ---- refused ---------------------------------------------------------------------------------------------------


def test_refused_messages_come_later_and_later() -> None:
    one = rig(10, nack_min_ms=1000, nack_max_ms=4000)
    one.attach(1, 1000)
    one.got(1)
    one.ack(1, [0, 1, 2, 4, 5, 6, 7, 8, 9])
    waits = []
    for count in range(1, 6):
        one.nack(1, [3])
        one.nack(1, [3])  # not its any more
        began = one.now
        while not (got := one.got(1)):
            one.sleep(0.05)
        waits.append((one.now - began) / SECOND)
        assert got == [3] and one.deliveries[-1].redelivered == {3: count}
    assert [round(wait) for wait in waits] == [1, 2, 4, 4, 4]
    assert all(wait >= round(wait) for wait in waits), "early"
    one.nack(1, [3], delay_us=0)
    assert one.got(1) == [3]
    one.nack(1, [3], delay_us=10 * SECOND)
    one.sleep(9.9)
    assert one.got(1) == [] and one.status.replay == 1
    one.sleep(1.5)
    assert one.got(1) == [3]


def test_only_the_holder_may_refuse() -> None:
    one = rig(10, nack_min_ms=0)
    one.attach(1, 10)
    one.attach(2, 10)
    one.nack(2, list(range(10)))
    one.nack(3, list(range(10)))
    assert one.got(2) == [] and one.status.replay == 0


def test_an_ack_of_what_waits_to_come_again() -> None:
    one = rig(10, is_prompt=False)
    one.attach(1, 1000)
    one.answer()
    one.got(1)
    one.nack(1, [2, 3, 4, 5])
    one.nack(1, [7, 8], delay_us=0)
    assert len(one.reads) == 1  # 7 and 8 are being read
    one.ack(1, [3, 7])
    one.answer()
    assert one.got(1) == [8]
    one.sleep(2)
    one.answer()
    assert one.got(1) == [2, 4, 5]


def test_a_redelivery_is_asked_for() -> None:
    one = rig(20)
    one.attach(1, 10)
    one.attach(2, 10)
    first = one.got(1)
    one.flow(1, 10)
    one.do(one.dispatcher.redeliver_unacked(1, one.now))
    assert one.got(1) == first
    one.do(one.dispatcher.redeliver_unacked(9, one.now))


def test_replays_of_neighbours_are_one_read() -> None:
    one = rig(2000, 10, is_prompt=False)
    one.attach(1, 10_000)
    one.answer()
    one.got(1)
    refused = [*range(0, 200, 3), 1000, 1001]
    one.nack(1, refused, delay_us=0)
    assert [(read.offset, read.end) for read in one.reads] == [(0, 199)]
    one.answer()
    assert [(read.offset, read.end) for read in one.reads] == [(1000, 1002)]
    one.answer()
    assert one.got(1) == refused


def test_a_failed_replay_is_read_again() -> None:
    one = rig(20, is_prompt=False)
    one.attach(1, 100)
    one.answer()
    one.got(1)
    one.nack(1, [5, 6], delay_us=0)
    one.fail()
    assert one.status.replay == 2 and not one.reads
    one.sleep(0.2)
    one.answer()
    assert one.got(1) == [5, 6]


# ---- times -----------------------------------------------------------------------------------------------------


def test_what_is_not_acknowledged_in_time_comes_again() -> None:
    one = rig(10, ack_timeout_ms=1000)
    one.attach(1, 100)
    one.sleep(0.5)
    one.publish(5)
    one.got(1)
    one.ack(1, list(range(8)))
    one.sleep(0.49)
    assert one.got(1) == []
    one.sleep(0.2)
    assert one.got(1) == [8, 9] and one.deliveries[-1].redelivered == {8: 1, 9: 1}
    one.sleep(0.5)
    assert one.got(1) == list(range(10, 15))
    one.ack(1, list(range(8, 15)))
    one.sleep(10)
    assert one.got(1) == [] and one.wake is None


def test_delayed_messages_wait_for_their_time_and_no_longer() -> None:
    one = rig(0)
    one.attach(1, 1000)
    due = [0, NOW + SECOND, 0, NOW + 60 * SECOND, NOW - 1]
    one.publish(5, deliver_at=due)
    assert one.got(1) == [0, 2, 4] and one.status.delayed == 2
    one.sleep(0.999)
    assert one.got(1) == []
    one.sleep(0.126)
    assert one.got(1) == [1] and one.deliveries[-1].redelivered == {}
    one.ack(1, [0, 1, 2, 4])
    assert one.cursor.mark.offset == 3
    one.sleep(58.8)
    assert one.got(1) == []
    one.sleep(0.6)
    assert one.got(1) == [3]


HOUR = 3600 * SECOND


def test_a_clock_that_is_set_forward_makes_delayed_messages_due() -> None:
    one = rig(0)
    one.attach(1, 1000)
    one.publish(2, deliver_at=[NOW + HOUR + 10 * SECOND, NOW + 10 * SECOND])
    assert one.got(1) == []
    one.set_clock(3600)
    one.sleep(9)
    assert one.got(1) == [1]
    one.sleep(2)
    assert one.got(1) == [0]


def test_a_clock_that_is_set_back_delays_messages_by_as_much() -> None:
    one = rig(0)
    one.attach(1, 1000)
    one.publish(1, deliver_at=[NOW + 10 * SECOND])
    one.set_clock(-60)
    one.sleep(60)
    assert one.got(1) == []
    one.sleep(10.5)
    assert one.got(1) == [0]


@pytest.mark.parametrize("hours", [1, -1])
def test_time_outs_do_not_look_at_a_clock_that_is_set(hours: int) -> None:
    one = rig(4, 1, ack_timeout_ms=60_000, nack_min_ms=10_000)
    one.attach(1, 1000)
    one.nack(1, [2, 3])
    assert one.got(1) == [0, 1, 2, 3]
    one.set_clock(hours * 3600)
    one.publish(1)
    assert one.got(1) == [4]
    one.sleep(9.9)
    assert one.got(1) == []
    one.sleep(2)
    assert one.got(1) == [2, 3]
    one.sleep(47)
    assert one.got(1) == []
    one.sleep(9)
    assert one.got(1) == [0, 1, 4]


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
def test_ordered_subscriptions_delay_nothing(kind: str) -> None:
    one = rig(0, type=kind)
    one.attach(1, 100)
    one.publish(3, deliver_at=[NOW + SECOND, 0, 0])
    assert one.got(1) == [0, 1, 2]


def test_with_too_many_delayed_nothing_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "TRACKED_MAX", 10)
    one = rig(0)
    one.attach(1, 1000)
    for i in range(30):
        one.publish(2, deliver_at=[NOW + SECOND + i * SECOND, 0])
    assert one.status.delayed == 10 and one.status.position == 20
    assert one.got(1) == list(range(1, 21, 2))
    one.sleep(40)
    assert sorted(one.got(1)) == [*range(0, 21, 2), *range(21, 60)]


def test_delays_are_known_again_after_the_last_consumer_left() -> None:
    one = rig(0)
    one.attach(1, 1000)
    one.publish(2, deliver_at=[NOW + 5 * SECOND, 0])
    one.detach(1)
    assert one.status.delayed == 0
    one.attach(2, 1000)
    assert one.got(2) == [1] and one.status.delayed == 1
    one.sleep(6)
    assert one.got(2) == [0]


# ---- limits ----------------------------------------------------------------------------------------------------


def test_blocked_at_a_consumers_limit_until_half_is_acknowledged() -> None:
    one = rig(100, max_unacked_consumer=20)
    one.attach(1, 1000)
    assert one.got(1) == list(range(20)) and one.status.consumers[0].is_blocked
    one.ack(1, list(range(9)))
    assert one.got(1) == []
    one.ack(1, [9])
    assert one.got(1) == list(range(20, 30))
    one.detach(1)
    one.attach(1, 5)
    assert one.got(1) == list(range(10, 15))


def test_blocked_at_the_subscriptions_limit_until_half_is_acknowledged() -> None:
    one = rig(100, max_unacked=20)
    one.attach(1, 1000)
    one.attach(2, 1000)
    assert one.status.unacked == 20 and "max_unacked: 20 messages are not acknowledged" in one.status.waits
    one.ack(1, list(range(9)))
    assert one.status.unacked == 11
    one.ack(1, [9])
    assert one.status.unacked == 20
    one.detach(1)
    one.detach(2)
    one.attach(3, 1000)
    assert one.status.unacked == 20


def test_refusing_unblocks() -> None:
    one = rig(100, max_unacked_consumer=10)
    one.attach(1, 1000)
    one.got(1)
    one.nack(1, list(range(5)))
    assert one.got(1) == list(range(10, 15))


# ---- dead letters ----------------------------------------------------------------------------------------------


def test_what_was_delivered_too_often_becomes_a_dead_letter() -> None:
    one = rig(10, nack_min_ms=0, max_redeliveries=2)
    one.attach(1, 1000)
    one.ack(1, [0, 1, 2, 3, 4, 5, 6])
    for _ in range(3):
        one.nack(1, [8])
    assert [letter.batch.values() for letter in one.dead] == [[b"8"]]
    assert one.dead[0].failures == {8: (2, "nack", None)}
    assert one.status.dead_letters == 1 and one.backlog == 3
    one.ack(1, [7, 9])
    one.detach(1)
    one.attach(1, 1000)
    assert len(one.dead) == 1
    one.ack(-1, [8])
    assert one.backlog == 0 and one.status.dead_letters == 0 and one.status.redelivered == 0


def test_dead_letters_that_cannot_be_published_stay() -> None:
    one = rig(10, nack_min_ms=0, nack_max_ms=2000, max_redeliveries=0)
    one.attach(1, 1000)
    one.got(1)
    one.nack(1, [4])
    one.do(one.dispatcher.dead_letters_failed(np.array([4, 5]), one.now))
    assert one.status.replay == 1
    one.sleep(2.3)
    assert [letter.failures for letter in one.dead] == [{4: (0, "nack", None)}] * 2
    assert one.got(1) == []


def test_dead_letters_that_find_no_room_become_some_later() -> None:
    one = Rig(Log(), type="shared", nack_min_ms=0, max_redeliveries=0, max_unacked=10)
    one.publish(6)
    one.attach(1, 6)
    one.nack(1, one.delivered.pop(1))
    one.is_prompt = False
    one.sleep(2)
    one.flow(1, 6)  # the six are read again; meanwhile
    one.publish(8)
    one.attach(2, 8)
    one.answer(1)
    assert sorted(one.delivered.pop(1) + one.delivered.pop(2)) == list(range(6, 14))
    one.answer(0)
    assert [letters.batch.offset.tolist() for letters in one.dead] == [[0, 1]], "ten in all are not acknowledged"
    one.is_prompt = True
    one.ack(2, list(range(6, 14)))
    one.flow(2, 50)
    for _ in range(3):
        one.sleep(5)
    assert sorted(offset for letters in one.dead for offset in letters.batch.offset.tolist()) == list(range(6))
    one.ack(99, list(range(6)))
    assert one.backlog == 0


def test_dead_letters_count_as_unacknowledged() -> None:
    one = rig(10, nack_min_ms=0, max_redeliveries=0, max_unacked=10)
    one.attach(1, 1000)
    one.nack(1, list(range(10)))
    one.publish(30)
    assert one.status.dead_letters == 10 and one.status.unacked == 0
    assert one.got(1) == list(range(10))
    one.ack(-1, list(range(10)))
    assert one.got(1) == list(range(10, 20))


def test_a_timer_is_set_once() -> None:
    """And not again with each message and each acknowledgement until it is due."""
    one = rig(0)
    one.attach(1, 10)
    one.publish(1, deliver_at=[NOW + 5 * SECOND])
    due = one.wake
    assert due is not None
    later = [one.dispatcher.flow(1, 1, one.now), one.dispatcher.grew(one.log.end.offset, one.now)]
    assert not [effect for effects in later for effect in effects if isinstance(effect, WakeAt)]
    one.publish(1, deliver_at=[NOW + 2 * SECOND])
    assert one.wake is not None and one.wake < due, "a message that is due earlier needs an earlier one"
