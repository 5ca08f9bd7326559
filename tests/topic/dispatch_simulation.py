"""A subscription in random runs: consumers come, go, acknowledge and refuse, reads are answered in any order or fail,
and rules hold after each step."""

from __future__ import annotations

import random

import numpy as np

from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.topic.model.dispatch.effects import ActiveConsumerChanged, Deliver, Effect
from tests.topic.dispatching import SECOND, Log, Rig


class Simulation(Rig):
    """Checks each delivery.

    acts: which of `ACTS` happen. Keys are b"0" to b"9". With "delay", about every third message is delayed.
    """

    def __init__(self, seed: int, acts: tuple[str, ...], **settings: object) -> None:
        super().__init__(Log(), is_prompt=False, **settings)
        self.random = random.Random(seed)
        self.acts = acts
        self.keys: list[bytes | None] = []
        self.due: list[int] = []
        self.held: dict[int, tuple[int, int]] = {}  # by offset, consumer and time
        self.acked: set[int] = set()
        self.permits: dict[int, int] = {}
        self.seen: set[int] = set()
        self.dead_letters: set[int] = set()
        self.last = -1  # the last offset that was delivered
        self.consumers = 0
        self.start = 0  # the first offset that is kept
        # set when acknowledgements were lost, so that messages may be delivered again at any time
        self.has_forgotten = False

    @property
    def settings(self) -> SubscriptionConfig:
        return self.dispatcher.settings

    @property
    def is_ordered(self) -> bool:
        """Return whether none of the acts changes the order."""
        return not self.has_forgotten and not {"nack", "late", "dead"} & set(self.acts)

    def is_late(self, since_us: int) -> bool:
        """Return whether a message that was delivered then may have timed out."""
        timeout_ms = self.settings.ack_timeout_ms
        return timeout_ms is not None and self.now - since_us >= timeout_ms * 1000

    # ---- the rules -------------------------------------------------------------------------------------------

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ActiveConsumerChanged):
                self.drop_all()
            elif isinstance(effect, Deliver):
                self.check(effect)
        dead = len(self.dead)
        super().do(effects)
        for letters in self.dead[dead:]:
            for offset in letters.batch.offset.tolist():
                assert letters.failures[offset].redeliveries == self.settings.max_redeliveries
                assert offset not in self.dead_letters and offset not in self.acked
                assert offset not in self.held or self.is_late(self.held.pop(offset)[1])
                self.dead_letters.add(offset)
        held = sum(not self.is_late(since_us) for _, since_us in self.held.values())
        assert held + len(self.dead_letters) <= self.settings.max_unacked
        assert self.status.unacked == len(self.held) or self.settings.ack_timeout_ms is not None

    def check(self, delivery: Deliver) -> None:
        consumer, offsets = delivery.consumer, delivery.batch.offset.tolist()
        assert offsets and consumer in self.permits
        self.permits[consumer] -= len(offsets)
        assert self.permits[consumer] >= 0, "permits exceeded"
        assert delivery.batch.values() == [b"%d" % offset for offset in offsets]
        for offset in offsets:
            self.check_message(consumer, offset, is_again=offset in delivery.redelivered)
        mine = [holder for holder, since_us in self.held.values() if holder == consumer and not self.is_late(since_us)]
        assert len(mine) <= self.settings.max_unacked_consumer

    def check_message(self, consumer: int, offset: int, *, is_again: bool) -> None:
        assert offset not in self.acked and offset not in self.dead_letters
        if offset in self.held:
            assert self.is_late(self.held[offset][1]), "delivered twice"
        assert is_again == (offset in self.seen)
        kind = self.settings.type
        if kind in ("exclusive", "failover"):
            assert offset > self.last or not self.is_ordered
            self.last = offset
        else:
            assert self.due[offset] <= self.wall
        if kind == "key_shared":
            self.check_key(consumer, offset)
        self.seen.add(offset)
        self.held[offset] = consumer, self.now

    def check_key(self, consumer: int, offset: int) -> None:
        key = self.keys[offset]
        held = [
            (holder, self.keys[other]) for other, (holder, since_us) in self.held.items() if not self.is_late(since_us)
        ]
        assert {holder for holder, other in held if other == key} <= {consumer}, "a key with two consumers"
        if self.is_ordered and "delay" not in self.acts:
            before = [other for other in range(offset) if self.keys[other] == key and other not in self.acked]
            assert all(other in self.held for other in before), "a key out of order"

    # ---- what happens ----------------------------------------------------------------------------------------

    def step(self) -> None:
        getattr(self, f"act_{self.random.choice(self.acts)}")()

    def act_publish(self) -> None:
        count = self.random.choice([1, 1, 3, 10, 100])
        keys = [self.random.choice([b"%d" % i for i in range(10)] + [None]) for _ in range(count)]
        due = [0] * count
        if "delay" in self.acts:
            due = [self.wall + self.random.randrange(5 * SECOND) if self.random.random() < 0.3 else 0 for _ in due]
        self.keys += keys
        self.due += due
        self.publish(count, keys=keys, deliver_at=due)

    def act_attach(self) -> None:
        if len(self.permits) >= (1 if self.settings.type == "exclusive" else 5):
            return
        self.consumers += 1
        self.permits[self.consumers] = 0
        self.attach(self.consumers, name=f"n{self.random.randrange(5)}", priority=self.random.randrange(2))

    def act_detach(self) -> None:
        if self.permits:
            consumer = self.random.choice(list(self.permits))
            del self.permits[consumer]
            self.held = {offset: held for offset, held in self.held.items() if held[0] != consumer}
            if not self.permits:
                self.drop_all()
            self.detach(consumer)

    def drop_all(self) -> None:
        """Forget all deliveries, as each message may be delivered again."""
        self.held.clear()
        self.last = -1

    def act_flow(self) -> None:
        if self.permits:
            consumer = self.random.choice(list(self.permits))
            count = self.random.choice([1, 5, 50])
            self.permits[consumer] += count
            self.flow(consumer, count)

    def act_ack(self) -> None:
        if self.held:
            some = self.random.sample(sorted(self.held), self.random.randint(1, len(self.held)))
            self.ack_all(some)

    def ack_all(self, offsets: list[int]) -> None:
        self.acked.update(offsets)
        for offset in offsets:
            self.held.pop(offset, None)
            self.dead_letters.discard(offset)
        self.ack(self.random.choice([*self.permits, 99]), offsets)

    def act_foreign(self) -> None:
        """Acknowledge messages that no consumer has, of entries that may have been read or not."""
        if self.log.places:
            place = self.random.choice(self.log.places)
            start = self.random.randrange(place.first, place.end)
            self.gone(range(start, place.end))
            self.do(self.dispatcher.acknowledge_range(99, start, place.end, self.now))

    def act_skip(self) -> None:
        """Skip entries, as the owner or retention does."""
        if self.log.places:
            total = self.random.choice(self.log.places).before
            beyond = self.cursor.acks.acked(total.offset)
            self.gone(range(total.offset))
            self.do(self.dispatcher.advance(total, self.now))
            starts = [start for start in beyond[0].tolist() if not self.cursor.acks.is_acked(start)]
            for start, end in zip(*(column.tolist() for column in beyond), strict=True):
                self.acked.difference_update(range(start, end) if start in starts else ())
            self.has_forgotten = self.has_forgotten or bool(starts)
            if self.random.random() < 0.5:
                self.start = max(self.start, total.offset)
                self.do(self.dispatcher.trimmed(total.offset, self.now))

    def act_cumulative(self) -> None:
        if self.permits and self.settings.type in ("exclusive", "failover") and self.log.places:
            to = self.random.randint(self.cursor.mark.offset, self.log.end.offset)
            if to > self.cursor.mark.offset:
                self.gone(range(to))
                self.cumulative(next(iter(self.permits)), to)

    def act_seek(self) -> None:
        kept = [place.before for place in self.log.places if place.first >= self.start]
        total = self.random.choice([*kept, self.log.end])
        self.drop_all()
        self.has_forgotten = False
        self.acked = set(range(total.offset))
        self.seen.clear()
        self.do(self.dispatcher.seek(total, self.now))

    def gone(self, offsets: range) -> None:
        """Acknowledge messages, whichever consumer has them."""
        self.acked.update(offsets)
        for offset in offsets:
            self.held.pop(offset, None)
            self.dead_letters.discard(offset)

    def act_nack(self) -> None:
        if self.held:
            some = self.random.sample(sorted(self.held), self.random.randint(1, min(len(self.held), 20)))
            mine = {permit: [offset for offset in some if self.held[offset][0] == permit] for permit in self.permits}
            for consumer, offsets in mine.items():
                for offset in offsets:
                    del self.held[offset]
                self.nack(consumer, offsets, self.random.choice([None, None, 0]))

    def act_redeliver(self) -> None:
        if self.permits:
            consumer = self.random.choice(list(self.permits))
            self.held = {offset: held for offset, held in self.held.items() if held[0] != consumer}
            self.last = -1
            self.do(self.dispatcher.redeliver_unacked(consumer, self.now))

    def act_rewind(self) -> None:
        self.drop_all()
        self.do(self.dispatcher.rewind(self.now))

    def act_read(self) -> None:
        if self.reads:
            self.answer(self.random.randrange(len(self.reads)))

    def act_fail(self) -> None:
        if self.reads:
            self.fail(self.random.randrange(len(self.reads)))

    def act_time(self) -> None:
        self.sleep(self.random.choice([0.01, 0.1, 1.0]))

    act_late = act_time

    def act_delay(self) -> None:
        if self.random.random() < 0.3:
            self.set_clock(self.random.uniform(-20, 20))
        self.act_time()

    def act_dead(self) -> None:
        if self.dead_letters:
            some = self.random.sample(sorted(self.dead_letters), self.random.randint(1, len(self.dead_letters)))
            if self.random.random() < 0.5:
                self.ack_all(some)
            else:
                self.dead_letters.difference_update(some)
                self.do(self.dispatcher.dead_letters_failed(np.array(some, np.int64), self.now))

    # ---- the end ---------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let consumers acknowledge until each message was delivered; check that none is left."""
        if not self.permits:
            self.act_attach()
        for _ in range(2000):
            while self.reads:
                self.answer(self.random.randrange(len(self.reads)))
            if not self.backlog:
                break
            self.ack_all(sorted(self.held.keys() | self.dead_letters))
            for consumer in list(self.permits):
                if not self.permits[consumer]:
                    self.permits[consumer] += 40
                    self.flow(consumer, 40)
            if not self.reads and not self.held and not self.dead_letters:
                self.sleep(1.0)
        status = self.status
        assert not self.backlog, f"stuck: {status}"
        assert self.acked == set(range(self.log.end.offset))
        self.sleep(200.0)
        while self.reads:
            self.answer()
        status = self.status
        left = status.in_hand, status.replay, status.delayed, status.blocked, status.unacked, status.dead_letters
        assert left == (0, 0, 0, 0, 0, 0), status
        assert (status.reads, status.forgotten, status.redelivered) == (0, 0, 0), status
