"""Exclusive and failover subscriptions: order, rewinds, seeks, trims, failed reads, and which reads are made when."""

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


def test_messages_are_delivered_in_order_and_never_beyond_the_permits() -> None:
    harness = rig()
    harness.attach(1, 7)
    assert harness.got(1) == list(range(7))
    harness.flow(1, 30)
    assert harness.got(1) == list(range(7, 37))
    harness.publish(5)
    assert harness.got(1) == []
    harness.flow(1, 1000)
    assert harness.got(1) == list(range(37, 105))
    harness.publish(3)
    assert harness.got(1) == [105, 106, 107]
    assert harness.status.consumers[0].permits == 1037 - 108


def test_messages_read_beyond_the_permits_stay_in_the_dispatcher() -> None:
    harness = rig(1000, 100)
    harness.attach(1, 1)
    for _ in range(500):
        harness.flow(1, 1)
    assert harness.got(1) == list(range(501))
    assert harness.status.in_hand == 499


def test_a_second_consumer_is_refused() -> None:
    harness = rig()
    harness.attach(1, name="first")
    with pytest.raises(SubscriptionBusyError, match=r"flights: subscription sub \(exclusive\): .* found first"):
        harness.attach(2)
    with pytest.raises(InvalidArgumentError):
        harness.attach(1)
    harness.detach(1)
    harness.attach(2, 3)
    assert harness.got(2) == [0, 1, 2]


def test_the_next_consumer_begins_at_the_mark() -> None:
    harness = rig()
    harness.attach(1, 50)
    harness.ack(1, [0, 1, 2, 10])
    harness.detach(1)
    harness.detach(1)
    harness.attach(2, 10)
    assert harness.got(2) == [3, 4, 5, 6, 7, 8, 9, 11, 12, 13]
    assert harness.deliveries[-1].redelivered == dict.fromkeys(harness.deliveries[-1].batch.offset.tolist(), 1)


def test_a_rewind_is_not_overwritten_by_a_read_in_flight() -> None:
    harness = rig(is_prompt=False)
    harness.attach(1, 1000)
    harness.answer()
    harness.ack(1, [0, 1])
    harness.publish(10)  # its read is in flight
    (late,) = harness.reads
    harness.got(1)
    harness.do(harness.dispatcher.rewind(harness.now))
    assert [read.offset for read in harness.reads] == [late.offset, 2]
    harness.answer(0)
    assert harness.got(1) == [] and harness.status.position == 2
    harness.answer(0)
    assert harness.got(1) == list(range(2, 110))


def test_a_seek_is_not_overwritten_by_a_read_in_flight() -> None:
    harness = rig(is_prompt=False)
    harness.attach(1, 1000)
    harness.do(harness.dispatcher.seek(harness.log.place(50).before, harness.now))
    harness.answer(0)
    assert harness.got(1) == []
    harness.answer(0)
    assert harness.got(1) == list(range(50, 100))
    harness.ack(1, list(range(50, 100)))
    harness.do(harness.dispatcher.seek(harness.log.place(20).before, harness.now))
    harness.answer(0)
    assert harness.got(1) == list(range(20, 100))
    assert harness.deliveries[-1].redelivered == {}  # delivery starts again after a seek
    assert harness.backlog == 80


def test_acknowledged_messages_are_not_read_again() -> None:
    harness = rig(is_prompt=False)
    harness.attach(1, 1000)
    harness.answer()
    harness.got(1)
    harness.ack(1, [*range(40), 55, *range(60, 80)])
    assert harness.got(1) == []
    harness.do(harness.dispatcher.rewind(harness.now))
    (read,) = harness.reads
    assert read.offset == 40
    harness.answer()
    assert harness.got(1) == [*range(40, 55), *range(56, 60), *range(80, 100)]


def test_a_cumulative_ack_beyond_what_was_delivered_moves_the_reader() -> None:
    harness = rig()
    harness.attach(1, 15)
    harness.cumulative(1, 42)
    harness.flow(1, 5)
    assert harness.got(1) == [*range(15), *range(42, 47)]
    with pytest.raises(InvalidArgumentError):
        harness.cumulative(1, 41)
    with pytest.raises(OutOfRangeError):
        harness.do(harness.dispatcher.cumulative(1, harness.log.places[-1], 101, harness.now))
    harness.cumulative(1, 42)
    assert harness.backlog == 58 and harness.status.unacked == 5


def test_shared_subscriptions_take_no_cumulative_ack() -> None:
    harness = rig(type="shared")
    harness.attach(1, 15)
    with pytest.raises(InvalidArgumentError, match="one by one"):
        harness.cumulative(1, 10)
    assert harness.backlog == 100


def test_a_reader_of_trimmed_messages_goes_on() -> None:
    harness = rig(is_prompt=False)
    harness.attach(1, 1000)
    (stuck,) = harness.reads
    start = harness.log.place(30).before
    harness.do(harness.dispatcher.advance(start, harness.now))
    harness.do(harness.dispatcher.trimmed(30, harness.now))
    harness.fail()  # the message is trimmed where the read began
    harness.sleep(0.2)
    assert [read.offset for read in harness.reads] == [30] and stuck.offset == 0
    harness.answer()
    assert harness.got(1) == list(range(30, 100))
    harness.ack(1, list(range(50, 60)))
    harness.do(harness.dispatcher.advance(harness.log.place(70).before, harness.now))
    harness.do(harness.dispatcher.trimmed(70, harness.now))
    assert harness.backlog == 30 and harness.status.unacked == 30


def test_acks_that_an_advance_forgets_are_of_messages_that_come_again() -> None:
    harness = rig()
    harness.attach(1, 1000)
    harness.got(1)
    harness.ack(1, list(range(10, 40)))
    harness.do(harness.dispatcher.advance(harness.log.place(20).before, harness.now))
    if harness.cursor.mark.offset == 20:
        assert harness.got(1) == list(range(20, 40))
    harness.ack(1, [offset for offset in range(100) if not 10 <= offset < 40])
    harness.ack(1, harness.got(1))
    assert harness.backlog == 0


def test_failed_reads_are_tried_again_later_and_later() -> None:
    harness = rig(is_prompt=False)
    harness.attach(1, 1000)
    waited = []
    for _ in range(10):
        harness.fail()
        assert not harness.reads and "a read failed: no bookie" in harness.status.waits
        assert harness.wake is not None
        waited.append(harness.wake - harness.now)
        harness.sleep(waited[-1] / SECOND)
        assert len(harness.reads) == 1
    assert waited[:3] == [100_000, 200_000, 400_000] and waited[-1] == 10 * SECOND
    harness.answer()
    assert harness.got(1) == list(range(100)) and harness.status.read_failures == 0


def test_an_answer_without_anything_is_no_busy_loop() -> None:
    harness = rig(is_prompt=False)
    harness.attach(1, 1000)
    read = harness.reads.pop()
    nothing = harness.log.read(read.offset, read.end, read.bytes_max).slice(0, 0)
    empty = type("Nothing", (), {"end": 0, "__len__": lambda self: 0})()
    assert len(nothing) == 0
    effects = harness.dispatcher.entries(read.id, empty, harness.now)
    assert not [effect for effect in effects if isinstance(effect, ReadEntries)]
    harness.do(effects)
    harness.sleep(1)
    harness.answer()
    assert harness.got(1) == list(range(100))


def test_two_reads_at_a_time_whose_answers_come_in_any_order() -> None:
    log = Log()
    for _ in range(200):
        log.publish(100, padding=bytes(1000))
    rig = Rig(log, is_prompt=False)
    rig.attach(1, 20_000)
    rig.answer()  # the sizes of messages are known now
    assert len(rig.reads) == 2
    first, second = rig.reads
    assert first.offset < second.offset == first.end
    before = len(rig.got(1))
    rig.answer(1)
    assert rig.got(1) == []
    rig.answer(0)
    assert rig.got(1)[0] == before
    while rig.reads:
        rig.answer(len(rig.reads) - 1)
    delivered = [offset for delivery in rig.deliveries for offset in delivery.batch.offset.tolist()]
    assert delivered == list(range(20_000))


def test_a_short_answer_leaves_a_gap_that_is_read() -> None:
    log = Log()
    for _ in range(300):
        log.publish(10)
    rig = Rig(log, is_prompt=False)
    rig.attach(1, 3000)
    first = rig.reads.pop()
    rig.do(rig.dispatcher.entries(first.id, log.read(0, 500, 1 << 20), rig.now))
    second, third = rig.reads if len(rig.reads) == 2 else (*rig.reads, None)
    assert second is not None
    rig.do(rig.dispatcher.entries(second.id, log.read(second.offset, second.offset + 20, 1 << 20), rig.now))
    rig.reads.remove(second)
    while rig.reads:
        rig.answer()
    assert rig.got(1) == list(range(3000)) and third is None


def test_reads_grow_while_the_consumer_keeps_up_and_shrink_to_its_permits() -> None:
    log = Log()
    for _ in range(300):
        log.publish(100, padding=bytes(1000))
    rig = Rig(log, is_prompt=False)
    rig.attach(1, 10**7)
    sizes = []
    while rig.reads:
        sizes.append(rig.reads[0].bytes_max)
        rig.answer()
    assert sizes[0] == BYTES_FIRST and max(sizes) == BYTES_MAX
    assert rig.status.position == 30_000

    two = Rig(log, is_prompt=False)
    two.attach(1, 10)
    two.answer()
    assert not two.reads and two.got(1) == list(range(10))
    two.flow(1, two.status.in_hand)
    two.flow(1, 1)
    assert two.reads[0].bytes_max < 2000


def test_the_end_waits_for_more() -> None:
    harness = rig(is_prompt=False)
    harness.attach(1, 1000)
    harness.answer()
    assert not harness.reads and harness.status.waits == ("all is read",)
    harness.publish(3)
    assert [(read.offset, read.end) for read in harness.reads] == [(100, 103)]
    harness.do(harness.dispatcher.grew(103, harness.now))
    assert len(harness.reads) == 1


# ---- failover --------------------------------------------------------------------------------------------------


def test_failover_goes_to_the_first_by_priority_then_name() -> None:
    harness = rig(type="failover")
    harness.attach(1, 20, name="m")
    assert harness.became == [(1, True)] and harness.got(1) == list(range(20))
    harness.ack(1, list(range(5)))
    harness.attach(2, 10, name="z")
    assert harness.became == [(1, True)] and harness.got(2) == []
    harness.attach(3, 10, name="b")
    assert harness.became == [(1, True)] and harness.got(3) == [], "whoever is at work stays so"
    harness.attach(4, 10, name="y", priority=-1)
    assert harness.became[1:] == [(1, False), (4, True)] and harness.got(4) == list(range(5, 15))
    harness.attach(5, 10, name="a", priority=-1)
    assert harness.got(5) == []
    harness.detach(5)
    harness.detach(4)
    assert harness.became[3:] == [(3, True)] and harness.got(3) == list(range(5, 15)), "the first of the others"
    harness.ack(3, [6, 8])
    harness.detach(3)
    assert harness.became[4:] == [(1, True)] and harness.got(1) == []
    harness.flow(1, 3)
    assert harness.got(1) == [5, 7, 9], "what was not acknowledged"
    assert [consumer.is_active for consumer in harness.status.consumers] == [True, False]


def test_partitions_are_spread_over_the_consumers_of_the_first_priority(seed: int) -> None:
    """The assignment is that of sorting, whichever consumers come and go, and each consumer is told whether it is
    active."""
    draw = random.Random(seed)
    for partition in (0, 1, 2, 5, 11):
        harness = rig(type="failover", topic=f"flights-partition-{partition}")
        pairs: dict[int, tuple[int, str]] = {}
        for consumer in range(60):
            if pairs and draw.random() < 0.45:
                harness.detach(gone := draw.choice(list(pairs)))
                del pairs[gone]
            else:
                pairs[consumer] = (draw.choice((0, 0, 0, 1)), draw.choice("abcdefgh"))
                harness.attach(consumer, 5, name=pairs[consumer][1], priority=pairs[consumer][0])
            first = [each for each in pairs if pairs[each][0] == min(pairs.values())[0]]
            first.sort(key=lambda each: pairs[each][1])
            wanted = first[partition % len(first)] if first else None
            assert [each.id for each in harness.status.consumers if each.is_active] == (
                [] if wanted is None else [wanted]
            )
            became = dict(harness.became)
            assert [each for each in pairs if became.get(each)] == ([] if wanted is None else [wanted])


def test_settings_change_without_consumers_only() -> None:
    harness = rig()
    harness.attach(1, 10)
    with pytest.raises(SubscriptionBusyError):
        harness.dispatcher.configure(SubscriptionConfig(type="shared"))
    harness.detach(1)
    harness.dispatcher.configure(SubscriptionConfig(type="shared", max_unacked_consumer=3))
    harness.attach(1, 100)
    harness.attach(2, 2)
    assert (harness.got(1), harness.got(2)) == ([*range(10), 0, 1, 2], [3, 4])


def test_offsets_that_were_never_read_are_located() -> None:
    harness = rig()
    harness.do(harness.dispatcher.acknowledge(-1, np.array([31, 30, 55]), harness.now))
    assert [(effect.starts.tolist(), effect.ends.tolist()) for effect in harness.located] == [([30, 55], [32, 56])]
    assert harness.backlog == 97
    with pytest.raises(OutOfRangeError):
        harness.ack(1, [100])
    harness.attach(1, 1000)
    assert harness.got(1) == [offset for offset in range(100) if offset not in (30, 31, 55)]


def test_new_messages_are_not_looked_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no message of a read is acknowledged or delivered again, one query of the cursor is enough."""
    looked_up: list[int] = []
    mask = Cursor.mask

    def note(cursor: Cursor, offsets: Offsets) -> NDArray[np.bool_]:
        looked_up.append(len(offsets))
        return mask(cursor, offsets)

    monkeypatch.setattr(Cursor, "mask", note)
    harness = rig(is_prompt=False)
    harness.attach(1, 1000)
    harness.answer()
    assert harness.got(1) == list(range(100)) and not looked_up
    harness.publish(10)
    harness.ack(1, [105])
    harness.answer()
    assert harness.got(1) == [*range(100, 105), *range(106, 110)] and looked_up
