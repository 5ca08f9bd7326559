"""Transactions: their coordinator, and producers that begin them, commit and abort."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from pyreplog._native.partition.producer_states_base import BATCHES_KEPT
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.producers import ProducerBatch
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_machine import (
    AppendState,
    Effects,
    TransactionMachine,
    WriteMarkers,
)
from pyreplog.partition.transactions.transaction_metadata import TransactionMetadata
from pyreplog.partition.transactions.transaction_metadata import TransactionState as ProducerState

from ..invariants import demand
from .brokers import Broker
from .clocks import MachineClock

if TYPE_CHECKING:
    from .schedule import Schedule

FIRST_ID = 100
"""Of transactional producers."""
TIMEOUT_S = 0.1
TICK_S = 0.007


APPEND_S = 0.003
BACKOFF_S = 0.01
PARTITION = TopicPartition("simulated", 0)


class TransactionState(NamedTuple):
    """The newest transaction of a producer, as its coordinator has stored it. epoch: of the producer, and of its next
    transaction once this one is over. is_over: neither under way nor waiting for its marker."""

    number: int = 0
    epoch: int = 0
    is_ongoing: bool = False
    is_over: bool = True


class TransactionCoordinator:
    """The shipped machines of transactional ids over a log that is late, refuses, and loses answers. A new coordinator, under
    a higher epoch, goes on with what is stored; markers of the one before may arrive long after, its appends do not.

    Version 2 (KIP-890): each transaction ends with a higher epoch of its producer. Version 1: with the epoch that it has,
    unless it timed out; a producer that aborts asks for a higher one. A coordinator must not complete such a transaction
    while a marker of its own is on its way: it closes the connection before it sends one again."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._world = schedule, schedule.world
        self.version = schedule.plan.transaction_version
        self.epoch = self.fenced = self.timed_out = 0
        self._clocks = [schedule.clocks.clock(f"coordinator {at}") for at in range(2)]  # of machines that take turns
        self.decisions: dict[tuple[int, int], bool] = {}
        """Whether it is committed, by producer and number."""
        self._stored: dict[int, TransactionMetadata] = {}
        self._numbers: dict[int, int] = {}  # of the newest transaction that is stored
        self._machines: dict[int, TransactionMachine] = {}
        self._markers: dict[int, WriteMarkers] = {}
        self._completed: dict[tuple[int, int], int] = {}  # by which coordinator

    @property
    def _clock(self) -> MachineClock:
        return self._clocks[self.epoch % len(self._clocks)]

    @property
    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    @property
    def is_idle(self) -> bool:
        return all(self.state(producer_id).is_over for producer_id in self._stored)

    def state(self, producer_id: int) -> TransactionState:
        metadata = self._metadata(producer_id)
        complete = [ProducerState.EMPTY, ProducerState.COMPLETE_COMMIT]
        if self.version > 1:
            complete.append(ProducerState.COMPLETE_ABORT)  # otherwise a higher epoch comes first
        return TransactionState(
            self._numbers.get(producer_id, 0), metadata.producer_epoch, metadata.state is ProducerState.ONGOING,
            metadata.state in complete,
        )  # fmt: skip

    def _metadata(self, producer_id: int) -> TransactionMetadata:
        first = TransactionMetadata(
            producer_id, 0, round(TIMEOUT_S * 1000), ProducerState.EMPTY, transaction_version=self.version
        )
        return self._stored.setdefault(producer_id, first)

    def _machine(self, producer_id: int) -> TransactionMachine:
        machine = self._machines.get(producer_id)
        if machine is None:
            metadata = self._metadata(producer_id)
            machine = self._machines[producer_id] = TransactionMachine(self.epoch, metadata)
            self._perform(producer_id, machine, machine.begin())
        return machine

    def begin(self, producer_id: int, epoch: int) -> TransactionState:
        """Begin the next one, if the producer has this epoch and none is under way."""
        if self.state(producer_id).is_over:
            machine = self._machine(producer_id)
            effects = machine.add_partitions(None, producer_id, epoch, [PARTITION], self._now_ms)
            self._perform(producer_id, machine, effects)
        return self.state(producer_id)

    def end(self, producer_id: int, number: int, is_commit: bool) -> TransactionState:
        """Commit or abort this one, if it is under way."""
        state = self.state(producer_id)
        if state.is_ongoing and state.number == number:
            machine = self._machine(producer_id)
            effects = machine.end_transaction(
                None, producer_id, state.epoch, self._now_ms, is_commit=is_commit, transaction_version=self.version
            )
            self._perform(producer_id, machine, effects)
        return self.state(producer_id)

    def verify(self, broker: Broker, batch: ProducerBatch, answer: partial[None]) -> None:
        """A leader asks whether a transaction is under way, over the network."""
        network = self._schedule.network

        def arrive() -> None:
            machine = self._machine(batch.producer_id)
            result = machine.verify_partitions(batch.producer_id, batch.epoch, [PARTITION])
            is_ongoing = result.partitions[PARTITION] is ErrorCode.NONE
            network.send("coordinator", broker.name, broker.run, broker.life, answer, is_ongoing)

        network.send(broker.name, "coordinator", arrive)

    def confuse_clocks(self, random: Random) -> None:
        """Often set the wall time back, or go on as another coordinator whose wall time is behind."""
        now_us, chance = self._clock.now_us(), random.random()
        if chance > 0.8:
            return
        if chance < 0.5:
            self.fail_over()
        for clock in self._clocks if random.random() < 0.8 else [self._clock]:  # or the next fail-over ends it
            clock.set_behind(now_us)

    def fail_over(self) -> None:
        """What is on its way to the log does not get there: it has another leader."""
        self.epoch += 1
        self._machines, self._markers = {}, {}

    # ---- the log --------------------------------------------------------------------------------------------

    def _perform(self, producer_id: int, machine: TransactionMachine, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, AppendState):
                delay = self._world.random.random() * APPEND_S + (BACKOFF_S if effect.is_again else 0.0)
                assert effect.metadata is not None, "no id expires here"
                self._world.after(delay, self._arrived, producer_id, machine, effect.metadata)
            elif isinstance(effect, WriteMarkers):
                self._markers[producer_id] = effect

    def _arrived(self, producer_id: int, machine: TransactionMachine, metadata: TransactionMetadata) -> None:
        """It is stored, or refused; or only the answer is lost."""
        if self._machines.get(producer_id) is not machine:
            return
        chance = 1.0 if self._world.is_calm else self._world.random.random()
        if chance < 0.05:
            effects = machine.append_refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            if chance > 0.1:
                self._store(producer_id, metadata)
            if chance < 0.2:
                effects = machine.append_unknown(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                effects = machine.appended(self._now_ms)
        self._perform(producer_id, machine, effects)

    def _store(self, producer_id: int, metadata: TransactionMetadata) -> None:
        before = self._stored[producer_id]
        if metadata == before:
            return
        self._stored[producer_id] = metadata
        if metadata.state is ProducerState.ONGOING and before.state is not ProducerState.ONGOING:
            self._numbers[producer_id] = self._numbers.get(producer_id, 0) + 1
        number = self._numbers.get(producer_id, 0)
        self._world.note("coordinator stores", producer_id, "transaction", number, metadata)
        if metadata.state.is_prepared:
            is_commit = metadata.state is ProducerState.PREPARE_COMMIT
            demand(
                self.decisions.setdefault((producer_id, number), is_commit) is is_commit,
                "DecisionsStand (23)", f"{producer_id}: transaction {number} is decided twice",
            )  # fmt: skip

    def run(self) -> None:
        """Time-outs, and markers, again and again until one is acknowledged."""
        for producer_id in list(self._stored):
            machine = self._machine(producer_id)
            effects = machine.expire(self._now_ms, 1 << 50, self._clock.monotonic_us() // 1000)
            self.timed_out += bool(effects)
            metadata = self._stored[producer_id]
            if self.version == 1 and metadata.state is ProducerState.COMPLETE_ABORT and not machine.is_busy:
                expected = producer_id, metadata.producer_epoch
                effects = machine.init_producer_id(None, round(TIMEOUT_S * 1000), self._now_ms, expected)
            self._perform(producer_id, machine, effects)
            if producer_id in self._markers:
                self._write(self._markers[producer_id])
        self._world.after(TICK_S * (0.5 + self._world.random.random()), self.run)

    # ---- markers --------------------------------------------------------------------------------------------

    def _write(self, effect: WriteMarkers) -> None:
        leaders = [broker for broker in self._schedule.brokers if broker.is_up and broker.leading is not None]
        if leaders:
            leader = self._world.random.choice(leaders)
            number = self._numbers[effect.marker.producer_id]
            self._schedule.network.send("coordinator", leader.name, self._arrive, leader, effect, number)

    def _arrive(self, leader: Broker, effect: WriteMarkers, number: int) -> None:
        marker = effect.marker
        completed_by = self._completed.get((marker.producer_id, number))
        if self.version == 1 and completed_by == marker.coordinator_epoch:
            return
        leader.run(
            leader.life, leader.write_marker, marker, number, partial(self._replied, leader.name, effect, number)
        )

    def _replied(self, leader: str, effect: WriteMarkers, number: int, code: ErrorCode) -> None:
        self.fenced += code in (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        if code is ErrorCode.NONE:
            self._schedule.network.send(leader, "coordinator", self._written, effect, number)

    def _written(self, effect: WriteMarkers, number: int) -> None:
        producer_id = effect.marker.producer_id
        if effect.marker.coordinator_epoch == self.epoch and self._markers.get(producer_id) is effect:
            del self._markers[producer_id]
            self._completed[producer_id, number] = self.epoch
            machine = self._machines[producer_id]
            self._perform(producer_id, machine, machine.marker_written(effect.number, PARTITION, self._now_ms))


class TransactionalProducer:
    """Its batches are on their way five at a time, and are late or come twice; it may abort before they have arrived. Some
    end for good, most of them in the middle of a transaction: then the time-out alone ends it, while the wall time of its
    coordinator is often set back, or another coordinator goes on whose wall time is behind."""

    def __init__(self, schedule: Schedule, number: int) -> None:
        self._schedule, self._world = schedule, schedule.world
        self.producer_id = FIRST_ID + number
        self.committed = self.aborted = 0
        self._state = TransactionState()
        self._sequence = self._left = 0
        self._is_known = self._is_ending = self._is_commit = False
        self._waiting: list[tuple[int, str]] = []
        self.is_wanted = False  # another transaction, though all is calm
        self.is_gone = False
        self._is_leaving = False  # it ends for good within its next transaction
        self._ending = ending = Random(f"end of producer {number}, {schedule.seed}")
        if ending.random() < 0.5:
            end = self._end_for_good if ending.random() < 0.2 else self._leave
            self._world.at(0.05 + ending.random() * schedule.plan.busy_s, end)

    def _leave(self) -> None:
        self._is_leaving = True

    def _end_for_good(self) -> None:
        self.is_gone = True
        self._world.note(self.producer_id, "ends for good")

    def run(self) -> None:
        coordinator, state = self._schedule.coordinator, self._state
        if self._is_leaving and state.is_ongoing and not self._world.is_calm:
            self._end_for_good()
            coordinator.confuse_clocks(self._ending)
        if self.is_gone:
            return
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
        if self.is_gone:
            return
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
