"""Exclusive and failover subscriptions: order, rewinds, seeks, trims, failed reads, and what is read when."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.errors import InvalidArgumentError, OutOfRangeError, SubscriptionBusyError
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.dispatch.effects import ReadEntries
from pyreplog.topic.model.dispatch.offsets import Offsets
from pyreplog.topic.model.dispatch.reading import BYTES_FIRST, BYTES_MAX
from tests.topic.dispatching import SECOND, Log, Rig


def rig(messages: int = 100, entry: int = 10, *, is_prompt: bool = True, **settings: object) -> Rig:
    log = Log()
    for _ in range(messages // entry):
        log.publish(entry)
    return Rig(log, is_prompt=is_prompt, **settings)


def test_in_order_and_never_more_than_asked_for() -> None:
    one = rig()
    one.attach(1, 7)
    assert one.got(1) == list(range(7))
    one.flow(1, 30)
    assert one.got(1) == list(range(7, 37))
    one.publish(5)
    assert one.got(1) == []
    one.flow(1, 1000)
    assert one.got(1) == list(range(37, 105))
    one.publish(3)
    assert one.got(1) == [105, 106, 107]
    assert one.status.consumers[0].permits == 1037 - 108


def test_what_was_read_and_not_placed_stays_in_hand() -> None:
    one = rig(1000, 100)
    one.attach(1, 1)
    for _ in range(500):
        one.flow(1, 1)
    assert one.got(1) == list(range(501))
    assert one.status.in_hand == 499


def test_a_second_consumer_is_refused() -> None:
    one = rig()
    one.attach(1, name="first")
    with pytest.raises(SubscriptionBusyError, match=r"flights: subscription sub \(exclusive\): .* found first"):
        one.attach(2)
    with pytest.raises(InvalidArgumentError):
        one.attach(1)
    one.detach(1)
    one.attach(2, 3)
    assert one.got(2) == [0, 1, 2]


def test_the_next_consumer_begins_at_the_mark() -> None:
    one = rig()
    one.attach(1, 50)
    one.ack(1, [0, 1, 2, 10])
    one.detach(1)
    one.detach(1)
    one.attach(2, 10)
    assert one.got(2) == [3, 4, 5, 6, 7, 8, 9, 11, 12, 13]
    assert one.deliveries[-1].redelivered == dict.fromkeys(one.deliveries[-1].batch.offset.tolist(), 1)


def test_a_rewind_is_not_overwritten_by_a_read_in_flight() -> None:
    one = rig(is_prompt=False)
    one.attach(1, 1000)
    one.answer()
    one.ack(1, [0, 1])
    one.publish(10)  # its read is in flight
    (late,) = one.reads
    one.got(1)
    one.do(one.dispatcher.rewind(one.now))
    assert [read.offset for read in one.reads] == [late.offset, 2]
    one.answer(0)
    assert one.got(1) == [] and one.status.position == 2
    one.answer(0)
    assert one.got(1) == list(range(2, 110))


def test_a_seek_is_not_overwritten_by_a_read_in_flight() -> None:
    one = rig(is_prompt=False)
    one.attach(1, 1000)
    one.do(one.dispatcher.seek(one.log.place(50).before, one.now))
    one.answer(0)
    assert one.got(1) == []
    one.answer(0)
    assert one.got(1) == list(range(50, 100))
    one.ack(1, list(range(50, 100)))
    one.do(one.dispatcher.seek(one.log.place(20).before, one.now))
    one.answer(0)
    assert one.got(1) == list(range(20, 100))
    assert one.deliveries[-1].redelivered == {}  # a seek begins anew
    assert one.backlog == 80


def test_acknowledged_messages_are_not_read_again() -> None:
    one = rig(is_prompt=False)
    one.attach(1, 1000)
    one.answer()
    one.got(1)
    one.ack(1, [*range(40), 55, *range(60, 80)])
    assert one.got(1) == []
    one.do(one.dispatcher.rewind(one.now))
    (read,) = one.reads
    assert read.offset == 40
    one.answer()
    assert one.got(1) == [*range(40, 55), *range(56, 60), *range(80, 100)]


def test_a_cumulative_ack_beyond_what_was_delivered_moves_the_reader() -> None:
    one = rig()
    one.attach(1, 15)
    one.cumulative(1, 42)
    one.flow(1, 5)
    assert one.got(1) == [*range(15), *range(42, 47)]
    with pytest.raises(InvalidArgumentError):
        one.cumulative(1, 41)
    with pytest.raises(OutOfRangeError):
        one.do(one.dispatcher.cumulative(1, one.log.places[-1], 101, one.now))
    one.cumulative(1, 42)
    assert one.backlog == 58 and one.status.unacked == 5


def test_shared_subscriptions_take_no_cumulative_ack() -> None:
    one = rig(type="shared")
    one.attach(1, 15)
    with pytest.raises(InvalidArgumentError, match="one by one"):
        one.cumulative(1, 10)
    assert one.backlog == 100


def test_trimmed_under_the_reader() -> None:
    one = rig(is_prompt=False)
    one.attach(1, 1000)
    (stuck,) = one.reads
    start = one.log.place(30).before
    one.do(one.dispatcher.advance(start, one.now))
    one.do(one.dispatcher.trimmed(30, one.now))
    one.fail()  # it is gone where the read began
    one.sleep(0.2)
    assert [read.offset for read in one.reads] == [30] and stuck.offset == 0
    one.answer()
    assert one.got(1) == list(range(30, 100))
    one.ack(1, list(range(50, 60)))
    one.do(one.dispatcher.advance(one.log.place(70).before, one.now))
    one.do(one.dispatcher.trimmed(70, one.now))
    assert one.backlog == 30 and one.status.unacked == 30


def test_acks_that_an_advance_forgets_are_of_messages_that_come_again() -> None:
    one = rig()
    one.attach(1, 1000)
    one.got(1)
    one.ack(1, list(range(10, 40)))
    one.do(one.dispatcher.advance(one.log.place(20).before, one.now))
    if one.cursor.mark.offset == 20:
        assert one.got(1) == list(range(20, 40))
    one.ack(1, [offset for offset in range(100) if not 10 <= offset < 40])
    one.ack(1, one.got(1))
    assert one.backlog == 0


def test_failed_reads_are_tried_again_later_and_later() -> None:
    one = rig(is_prompt=False)
    one.attach(1, 1000)
    waited = []
    for _ in range(10):
        one.fail()
        assert not one.reads and "a read failed: no bookie" in one.status.waits
        assert one.wake is not None
        waited.append(one.wake - one.now)
        one.sleep(waited[-1] / SECOND)
        assert len(one.reads) == 1
    assert waited[:3] == [100_000, 200_000, 400_000] and waited[-1] == 10 * SECOND
    one.answer()
    assert one.got(1) == list(range(100)) and one.status.read_failures == 0


def test_an_answer_without_anything_is_no_busy_loop() -> None:
    one = rig(is_prompt=False)
    one.attach(1, 1000)
    read = one.reads.pop()
    nothing = one.log.read(read.offset, read.end, read.bytes_max).slice(0, 0)
    empty = type("Nothing", (), {"end": 0, "__len__": lambda self: 0})()
    assert len(nothing) == 0
    effects = one.dispatcher.entries(read.id, empty, one.now)
    assert not [effect for effect in effects if isinstance(effect, ReadEntries)]
    one.do(effects)
    one.sleep(1)
    one.answer()
    assert one.got(1) == list(range(100))


def test_two_reads_at_a_time_whose_answers_come_in_any_order() -> None:
    log = Log()
    for _ in range(200):
        log.publish(100, padding=bytes(1000))
    one = Rig(log, is_prompt=False)
    one.attach(1, 20_000)
    one.answer()  # sizes are known now
    assert len(one.reads) == 2
    first, second = one.reads
    assert first.offset < second.offset == first.end
    before = len(one.got(1))
    one.answer(1)
    assert one.got(1) == []
    one.answer(0)
    assert one.got(1)[0] == before
    while one.reads:
        one.answer(len(one.reads) - 1)
    delivered = [offset for delivery in one.deliveries for offset in delivery.batch.offset.tolist()]
    assert delivered == list(range(20_000))


def test_a_short_answer_leaves_a_gap_that_is_read() -> None:
    log = Log()
    for _ in range(300):
        log.publish(10)
    one = Rig(log, is_prompt=False)
    one.attach(1, 3000)
    first = one.reads.pop()
    one.do(one.dispatcher.entries(first.id, log.read(0, 500, 1 << 20), one.now))
    second, third = one.reads if len(one.reads) == 2 else (*one.reads, None)
    assert second is not None
    one.do(one.dispatcher.entries(second.id, log.read(second.offset, second.offset + 20, 1 << 20), one.now))
    one.reads.remove(second)
    while one.reads:
        one.answer()
    assert one.got(1) == list(range(3000)) and third is None


def test_reads_grow_while_the_consumer_keeps_up_and_shrink_to_its_permits() -> None:
    log = Log()
    for _ in range(300):
        log.publish(100, padding=bytes(1000))
    one = Rig(log, is_prompt=False)
    one.attach(1, 10**7)
    sizes = []
    while one.reads:
        sizes.append(one.reads[0].bytes_max)
        one.answer()
    assert sizes[0] == BYTES_FIRST and max(sizes) == BYTES_MAX
    assert one.status.position == 30_000

    two = Rig(log, is_prompt=False)
    two.attach(1, 10)
    two.answer()
    assert not two.reads and two.got(1) == list(range(10))
    two.flow(1, two.status.in_hand)
    two.flow(1, 1)
    assert two.reads[0].bytes_max < 2000


def test_the_end_waits_for_more() -> None:
    one = rig(is_prompt=False)
    one.attach(1, 1000)
    one.answer()
    assert not one.reads and one.status.waits == ("all is read",)
    one.publish(3)
    assert [(read.offset, read.end) for read in one.reads] == [(100, 103)]
    one.do(one.dispatcher.grew(103, one.now))
    assert len(one.reads) == 1


# ---- failover --------------------------------------------------------------------------------------------------


def test_failover_goes_to_the_first_by_priority_then_name() -> None:
    one = rig(type="failover")
    one.attach(1, 20, name="m")
    assert one.became == [(1, True)] and one.got(1) == list(range(20))
    one.ack(1, list(range(5)))
    one.attach(2, 10, name="z")
    assert one.became == [(1, True)] and one.got(2) == []
    one.attach(3, 10, name="b")
    assert one.became == [(1, True)] and one.got(3) == [], "whoever is at work stays so"
    one.attach(4, 10, name="y", priority=-1)
    assert one.became[1:] == [(1, False), (4, True)] and one.got(4) == list(range(5, 15))
    one.attach(5, 10, name="a", priority=-1)
    assert one.got(5) == []
    one.detach(5)
    one.detach(4)
    assert one.became[3:] == [(3, True)] and one.got(3) == list(range(5, 15)), "the first of the others"
    one.ack(3, [6, 8])
    one.detach(3)
    assert one.became[4:] == [(1, True)] and one.got(1) == []
    one.flow(1, 3)
    assert one.got(1) == [5, 7, 9], "what was not acknowledged"
    assert [consumer.is_active for consumer in one.status.consumers] == [True, False]


def test_partitions_are_spread_over_the_consumers_of_the_first_priority(seed: int) -> None:
    """As sorting says it, whoever comes and goes; and each is told whether it is the one."""
    draw = random.Random(seed)
    for partition in (0, 1, 2, 5, 11):
        one = rig(type="failover", topic=f"flights-partition-{partition}")
        there: dict[int, tuple[int, str]] = {}
        for consumer in range(60):
            if there and draw.random() < 0.45:
                one.detach(gone := draw.choice(list(there)))
                del there[gone]
            else:
                there[consumer] = (draw.choice((0, 0, 0, 1)), draw.choice("abcdefgh"))
                one.attach(consumer, 5, name=there[consumer][1], priority=there[consumer][0])
            first = [each for each in there if there[each][0] == min(there.values())[0]]
            first.sort(key=lambda each: there[each][1])
            wanted = first[partition % len(first)] if first else None
            assert [each.id for each in one.status.consumers if each.is_active] == ([] if wanted is None else [wanted])
            told = dict(one.became)
            assert [each for each in there if told.get(each)] == ([] if wanted is None else [wanted])


def test_settings_change_without_consumers_only() -> None:
    one = rig()
    one.attach(1, 10)
    with pytest.raises(SubscriptionBusyError):
        one.dispatcher.configure(SubscriptionConfig(type="shared"))
    one.detach(1)
    one.dispatcher.configure(SubscriptionConfig(type="shared", max_unacked_consumer=3))
    one.attach(1, 100)
    one.attach(2, 2)
    assert (one.got(1), one.got(2)) == ([*range(10), 0, 1, 2], [3, 4])


def test_offsets_that_were_never_read_are_located() -> None:
    one = rig()
    one.do(one.dispatcher.acknowledge(-1, np.array([31, 30, 55]), one.now))
    assert [(effect.starts.tolist(), effect.ends.tolist()) for effect in one.located] == [([30, 55], [32, 56])]
    assert one.backlog == 97
    with pytest.raises(OutOfRangeError):
        one.ack(1, [100])
    one.attach(1, 1000)
    assert one.got(1) == [offset for offset in range(100) if offset not in (30, 31, 55)]


def test_new_messages_are_not_looked_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing of a read is acknowledged or comes again, one question tells that all of it can be delivered."""
    looked_up: list[int] = []
    mask = Cursor.mask

    def note(cursor: Cursor, offsets: Offsets) -> NDArray[np.bool_]:
        looked_up.append(len(offsets))
        return mask(cursor, offsets)

    monkeypatch.setattr(Cursor, "mask", note)
    one = rig(is_prompt=False)
    one.attach(1, 1000)
    one.answer()
    assert one.got(1) == list(range(100)) and not looked_up
    one.publish(10)
    one.ack(1, [105])
    one.answer()
    assert one.got(1) == [*range(100, 105), *range(106, 110)] and looked_up
