"""Transactions: their coordinator, and producers that begin them, commit and abort."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.producers import BATCHES_KEPT, ProducerBatch
from pyreplog.partition.protocol.transactions import TransactionMarker

from .brokers import Broker

if TYPE_CHECKING:
    from .schedule import Schedule

FIRST_ID = 100
"""Of transactional producers."""
TIMEOUT_S = 0.1
TICK_S = 0.007


@dataclass(frozen=True)
class TransactionState:
    """The newest transaction of a producer, as its coordinator has stored it. epoch: of the producer, and of its next
    transaction once the marker is written. marker: None: none is to be written."""

    number: int = 0
    epoch: int = 0
    is_ongoing: bool = False
    marker: TransactionMarker | None = None
    began: float = 0.0

    @property
    def is_over(self) -> bool:
        return not self.is_ongoing and self.marker is None


class TransactionCoordinator:
    """What it decides is stored before anybody hears of it. A new one, under a higher epoch, goes on with what is stored;
    markers of the one before may arrive long after.

    Version 2 (KIP-890): each transaction ends with a higher epoch of its producer. Version 1: with the epoch that it has,
    unless it timed out or is aborted; so a coordinator must not complete a transaction while a marker of its own is on its
    way: it closes the connection before it sends one again."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._world = schedule, schedule.world
        self.version = schedule.plan.transaction_version
        self.epoch = self.fenced = 0
        self.decisions: dict[tuple[int, int], bool] = {}
        """Whether it is committed, by producer and number."""
        self._states: dict[int, TransactionState] = {}
        self._completed: dict[tuple[int, int], int] = {}  # by which coordinator

    @property
    def is_idle(self) -> bool:
        return all(state.is_over for state in self._states.values())

    def state(self, producer_id: int) -> TransactionState:
        return self._states.get(producer_id, TransactionState())

    def begin(self, producer_id: int, epoch: int) -> TransactionState:
        """Begin the next one, if the producer has this epoch and none is under way."""
        state = self.state(producer_id)
        if state.is_over and state.epoch == epoch:
            state = TransactionState(state.number + 1, epoch, is_ongoing=True, began=self._world.now)
            self._states[producer_id] = state
        return state

    def end(self, producer_id: int, number: int, is_commit: bool) -> TransactionState:
        """Commit or abort this one, if it is under way."""
        state = self.state(producer_id)
        if state.is_ongoing and state.number == number:
            self._decide(producer_id, state, is_commit, is_fencing=self.version > 1)
        return self.state(producer_id)

    def _decide(self, producer_id: int, state: TransactionState, is_commit: bool, *, is_fencing: bool) -> None:
        self.decisions[producer_id, state.number] = is_commit
        marker = TransactionMarker(producer_id, state.epoch + is_fencing, self.epoch, is_commit)
        epoch = state.epoch + (is_fencing or not is_commit)
        self._states[producer_id] = replace(state, is_ongoing=False, epoch=epoch, marker=marker)
        self._world.note("coordinator decides", producer_id, "transaction", state.number, marker)

    def verify(self, broker: Broker, batch: ProducerBatch, answer: partial[None]) -> None:
        """A leader asks whether a transaction is under way, over the network."""
        network = self._schedule.network

        def arrive() -> None:
            state = self.state(batch.producer_id)
            is_ongoing = state.is_ongoing and state.epoch == batch.epoch
            network.send("coordinator", broker.name, broker.run, broker.life, answer, is_ongoing)

        network.send(broker.name, "coordinator", arrive)

    def fail_over(self) -> None:
        self.epoch += 1

    def run(self) -> None:
        """Time-outs, and markers, again and again until one is acknowledged."""
        for producer_id, state in list(self._states.items()):
            if state.is_ongoing and state.began + TIMEOUT_S < self._world.now:
                self._decide(producer_id, state, False, is_fencing=True)
            elif state.marker is not None:
                self._write(state, state.marker._replace(coordinator_epoch=self.epoch))
        self._world.after(TICK_S * (0.5 + self._world.random.random()), self.run)

    def _write(self, state: TransactionState, marker: TransactionMarker) -> None:
        leaders = [broker for broker in self._schedule.brokers if broker.is_up and broker.leading is not None]
        if leaders:
            leader = self._world.random.choice(leaders)
            self._schedule.network.send("coordinator", leader.name, self._arrive, leader, marker, state.number)

    def _arrive(self, leader: Broker, marker: TransactionMarker, number: int) -> None:
        completed_by = self._completed.get((marker.producer_id, number))
        if self.version == 1 and completed_by == marker.coordinator_epoch:
            return
        leader.run(
            leader.life, leader.write_marker, marker, number, partial(self._replied, leader.name, marker, number)
        )

    def _replied(self, leader: str, marker: TransactionMarker, number: int, code: ErrorCode) -> None:
        self.fenced += code in (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        if code is ErrorCode.NONE:
            self._schedule.network.send(leader, "coordinator", self._written, marker, number)

    def _written(self, marker: TransactionMarker, number: int) -> None:
        state = self.state(marker.producer_id)
        if state.number == number and state.marker is not None and marker.coordinator_epoch == self.epoch:
            self._completed[marker.producer_id, number] = self.epoch
            self._states[marker.producer_id] = replace(state, marker=None)


class TransactionalProducer:
    """Its batches are on their way five at a time, and are late or come twice; it may abort before they have arrived."""

    def __init__(self, schedule: Schedule, number: int) -> None:
        self._schedule, self._world = schedule, schedule.world
        self.producer_id = FIRST_ID + number
        self.committed = self.aborted = 0
        self._state = TransactionState()
        self._sequence = self._left = 0
        self._is_known = self._is_ending = self._is_commit = False
        self._waiting: list[tuple[int, str]] = []
        self.is_wanted = False  # another transaction, though all is calm

    def run(self) -> None:
        coordinator, state = self._schedule.coordinator, self._state
        if state.is_over:
            if not self._world.is_calm or self.is_wanted:
                self._ask(coordinator.begin, self.producer_id, state.epoch)
        elif self._is_ending:
            self._ask(coordinator.end, self.producer_id, state.number, self._is_commit)
        else:
            self._produce()
        self._world.after(TICK_S * (0.5 + self._world.random.random()), self.run)

    def _produce(self) -> None:
        random = self._world.random
        while self._left and len(self._waiting) < BATCHES_KEPT and random.random() < 0.6:
            self._left -= 1
            self._waiting.append((self._sequence, f"t{self.producer_id}.{self._state.number}.{self._sequence}"))
            self._sequence += 1
        if not self._left and not self._waiting:
            self._end(is_commit=random.random() < 0.8)
        elif not self.is_wanted and random.random() < 0.05:
            self._end(is_commit=False)
        else:
            self._send()

    def _end(self, *, is_commit: bool) -> None:
        self._is_ending, self._is_commit = True, is_commit

    def _ask(self, request: object, *arguments: object) -> None:
        network = self._schedule.network

        def arrive() -> None:
            network.send("coordinator", "client", self._learn, request(*arguments))  # type: ignore[operator]

        network.send("client", "coordinator", arrive)

    def _learn(self, state: TransactionState) -> None:
        before = self._state
        if state.number < before.number or state.epoch < before.epoch or (before.is_over and state == before):
            return
        if state.is_over:
            self._completed(state)
        elif state.is_ongoing and state.number > before.number:
            self._state, self._left = state, self._world.random.choice((1, 2, 3, 6))

    def _completed(self, state: TransactionState) -> None:
        is_committed = self._schedule.coordinator.decisions.get((self.producer_id, state.number), False)
        if state.number:
            self.committed, self.aborted = self.committed + is_committed, self.aborted + (not is_committed)
            self.is_wanted = self.is_wanted and not is_committed
        if state.epoch > self._state.epoch:
            self._sequence, self._is_known = 0, False
        self._state, self._waiting, self._left, self._is_ending = state, [], 0, False

    def _send(self) -> None:
        leaders = [broker for broker in self._schedule.brokers if broker.is_up and broker.leading is not None]
        if not leaders:
            return
        leader = self._world.random.choice(leaders)
        # A log that does not know the producer takes any batch for the first one.
        for sequence, value in self._waiting if self._is_known else self._waiting[:1]:
            batch = ProducerBatch(self.producer_id, self._state.epoch, sequence, 1)
            self._schedule.network.send(
                "client", leader.name, self._arrive, leader, value, batch, self._state.number
            )  # fmt: skip

    def _arrive(self, leader: Broker, value: str, batch: ProducerBatch, number: int) -> None:
        reply = partial(self._replied, leader.name, batch)
        leader.run(leader.life, leader.produce, value, ACKS_ALL, batch, reply, number)

    def _replied(self, leader: str, batch: ProducerBatch, code: ErrorCode) -> None:
        self._schedule.network.send(leader, "client", self._learn_code, batch, code)

    def _learn_code(self, batch: ProducerBatch, code: ErrorCode) -> None:
        if batch.epoch != self._state.epoch or not any(at == batch.first_sequence for at, _ in self._waiting):
            return
        if code is ErrorCode.NONE:
            self._is_known = True
            self._waiting = [item for item in self._waiting if item[0] != batch.first_sequence]
        elif code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH):
            self._end(is_commit=False)  # or it learns that it is aborted
