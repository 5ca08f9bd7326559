"""Idempotent producers: they send batches in order, again and again until each is acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyreplog._native.partition.producer_states_base import BATCHES_KEPT
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.producers import SEQUENCES, ProducerBatch

from .brokers import Broker

if TYPE_CHECKING:
    from .schedule import Schedule

TIMEOUT_S = 0.05


class Producer:
    """Has five batches on their way at most, from the oldest without an acknowledgement on. Its requests arrive in any order, and some long after it sent them again."""

    def __init__(self, schedule: Schedule, number: int, first_sequence: int) -> None:
        self._schedule, self._world = schedule, schedule.world
        self.number, self.epoch = number, 0
        self._sequence = first_sequence
        self._is_known = False  # whether a batch of this epoch is committed
        self._values = self.acknowledged = 0
        self._unclean = 0  # elections by which it may have lost batches, that it knows of
        self._is_void = False  # whether a leader acknowledged one that the leader of an unclean election had replaced
        self.waiting: list[tuple[int, str]] = []  # without an acknowledgement

    def run(self) -> None:
        oldest = self.waiting[0][0] if self.waiting else self._sequence
        if (self._sequence - oldest) % SEQUENCES < BATCHES_KEPT and not self._world.is_calm:
            self.publish()
        self._send()
        self._world.after(0.01 * (0.5 + self._world.random.random()), self.run)

    def publish(self) -> None:
        self._values += 1
        self.waiting.append((self._sequence, f"p{self.number}.{self._values}"))
        self._sequence = (self._sequence + 1) % SEQUENCES

    def _send(self) -> None:
        leaders = [broker for broker in self._schedule.brokers if broker.is_up and broker.leading is not None]
        if not leaders:
            return
        leader = self._world.random.choice(leaders)
        # A log that does not know the producer takes any batch for the first one.
        for sequence, value in self.waiting if self._is_known else self.waiting[:1]:
            batch = ProducerBatch(self.number, self.epoch, sequence, 1)
            self._schedule.network.send("client", leader.name, self._arrive, leader, value, batch)

    def _arrive(self, leader: Broker, value: str, batch: ProducerBatch) -> None:
        reply: Callable[[ErrorCode], None] = partial(self._replied, leader, batch)
        leader.run(leader.life, leader.produce, value, ACKS_ALL, batch, reply)

    def _replied(self, leader: Broker, batch: ProducerBatch, code: ErrorCode) -> None:
        unclean_epoch = self._schedule.invariants.unclean_epoch
        is_void = leader.leading is not None and leader.leading.epoch < unclean_epoch
        self._schedule.network.send(leader.name, "client", self._learn, batch, code, is_void)

    def _learn(self, batch: ProducerBatch, code: ErrorCode, is_void: bool) -> None:
        if batch.epoch != self.epoch or not any(sequence == batch.first_sequence for sequence, _ in self.waiting):
            return
        if code is ErrorCode.NONE:
            self.acknowledged += 1
            self._is_known = True
            self._is_void = self._is_void or is_void
            self.waiting = [item for item in self.waiting if item[0] != batch.first_sequence]
        elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and (
            self._is_void or self._schedule.invariants.unclean > self._unclean
        ):
            self._begin_again()

    def _begin_again(self) -> None:
        """What it had acknowledged is lost: a new epoch begins with what it has not (KIP-360)."""
        self._unclean = self._schedule.invariants.unclean
        self.epoch += 1
        self._is_known = self._is_void = False
        self.waiting = [(at, value) for at, (_, value) in enumerate(self.waiting)]
        self._sequence = len(self.waiting)
