"""One run: a partition's life, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pyreplog.partition.protocol.error_codes import ACKS_ALL
from pyreplog.partition.protocol.leading import ReplicaConfig
from pyreplog.partition.protocol.partition_state import Member, PartitionState
from pyreplog.partition.protocol.producers import SEQUENCES

from ..invariants import demand
from ..world import World
from .brokers import Broker
from .clients import Producer
from .clocks import Clocks
from .faults import Faults
from .invariants import Invariants
from .network import Network
from .store import ARRIVED_S, Controller, Store
from .transactions import TransactionalProducer, TransactionCoordinator

NAMES = "abcde"
SETTLE_S = 3.0


@dataclass(frozen=True)
class Plan:
    """What is drawn before a run begins."""

    brokers: int
    replicas: int
    min_isr: int
    requires_sync: bool
    unclean: bool
    is_frugal: bool  # fewer than min_isr unclean stops in all
    controllers: int
    pause_s: float
    lag_s: float
    late: float  # of messages
    loss: float
    store_loss: float
    sync_s: float
    lag_limit_s: float
    busy_s: float
    faults: int
    crashes_between: float  # any two effects
    power_cuts: bool
    trims: bool
    reassigns: bool
    acks_all: float
    producers: int
    first_sequence: int
    transactional: int  # producers
    transaction_version: int

    @classmethod
    def draw(cls, random: Random) -> Plan:
        brokers = random.choice((3, 3, 3, 4, 5))
        replicas = random.choice((1, 2, 3, 3, 3, 3, brokers))
        min_isr = random.choice((1, 2, 2, 2, 3))
        is_frugal = random.random() < 0.3 and 1 < min_isr <= replicas
        requires_sync = random.random() < 0.4
        trims = random.random() < 0.2
        return cls(
            brokers=brokers,
            replicas=replicas,
            min_isr=min_isr,
            requires_sync=requires_sync,
            unclean=not is_frugal and random.random() < 0.15,
            is_frugal=is_frugal,
            controllers=random.choice((1, 2, 3)),
            pause_s=random.choice((0.003, 0.01, 0.03)),
            lag_s=random.choice((0.0005, 0.003, 0.01)),
            late=random.choice((0.0, 0.05, 0.1)),
            loss=random.choice((0.0, 0.02, 0.1)),
            store_loss=random.choice((0.0, 0.1, 0.3)),
            sync_s=random.choice((0.002, 0.005) if requires_sync else (0.004, 0.02, 0.1)),
            lag_limit_s=random.choice((0.02, 0.05)),
            busy_s=0.5,
            faults=random.choice((0, 3, 6, 10, 16, 25)),
            crashes_between=0.0 if is_frugal else random.choice((0.0, 0.0, 0.002, 0.01)),
            power_cuts=random.random() < 0.8,
            trims=trims,
            reassigns=not is_frugal and random.random() < 0.25,
            acks_all=random.choice((1.0, 0.8, 0.5)),
            producers=random.choice((0, 1, 1, 2)),
            first_sequence=random.choice((0, 0, SEQUENCES - 3, SEQUENCES - 8)),
            transactional=random.choice((0, 0, 1, 2)),
            # A log that is replayed from where it begins has forgotten epochs of coordinators.
            transaction_version=2 if trims else random.choice((1, 2, 2)),
        )


class Schedule:
    """Runs it. Whatever breaks raises BrokenInvariantError, or what the shipped code raised. plan: None: drawn."""

    def __init__(self, seed: int, *, tracing: bool = False, plan: Plan | None = None) -> None:
        self.world = World(seed, tracing=tracing)
        self.plan = plan = plan or Plan.draw(self.world.random)
        self.world.note(plan)
        self.config = ReplicaConfig(requires_sync=plan.requires_sync, lag_us=round(plan.lag_limit_s * 1_000_000))
        names = tuple(NAMES[: plan.brokers])
        replicas = names[: plan.replicas]
        self.first_state = PartitionState(replicas, tuple(Member(name, 1) for name in replicas), plan.min_isr)
        self.seed, self.clocks, self.network = seed, Clocks(self.world, seed), Network(self)
        self.invariants = Invariants(self)
        self.store = Store(self, self.first_state)
        self.brokers = [Broker(self, name) for name in names]
        self.by_name = {broker.name: broker for broker in self.brokers}
        self.controllers = [Controller(self, f"controller {at}") for at in range(plan.controllers)]
        self.producers = [Producer(self, at, plan.first_sequence) for at in range(plan.producers)]
        self.coordinator = TransactionCoordinator(self)
        self.transactional = [TransactionalProducer(self, at) for at in range(plan.transactional)]
        self._values = 0

    def run(self) -> None:
        world, plan = self.world, self.plan
        for broker in self.brokers:
            broker.start()
        self.store.expire()
        for controller in self.controllers:
            controller.run()
        Faults(self).plan()
        self.clocks.plan(plan.busy_s)
        world.after(0.02, self._produce)
        for producer in self.producers:
            world.after(0.02, producer.run)
        if plan.transactional:
            self.coordinator.run()
        for transactional in self.transactional:
            world.after(0.02, transactional.run)
        world.run(until=plan.busy_s)
        self._settle()

    def _produce(self) -> None:
        """A client sends to each that it takes for the leader."""
        for broker in self.brokers:
            if broker.is_up and broker.leading is not None:
                self.send(broker)
        if not self.world.is_calm:
            self.world.after(self.world.random.expovariate(1 / self.plan.pause_s), self._produce)

    def send(self, broker: Broker) -> None:
        for _ in range(self.world.random.choice((1, 1, 1, 3))):
            if not broker.is_up or broker.stopped_until > self.world.now:
                return  # the one before may have crashed it
            self._values += 1
            broker.produce(f"{broker.name}{self._values}", ACKS_ALL if self.world.chance(self.plan.acks_all) else 1)

    def _settle(self) -> None:
        """Faults stop: a leader is elected, all replicas catch up and join, all is committed."""
        world = self.world
        world.note("faults end")
        world.is_calm = True
        for broker in self.brokers:
            broker.stopped_until = 0.0
            broker.start()
        world.run(until=world.now + ARRIVED_S + 0.1)  # what is still on its way arrives
        until = world.now + SETTLE_S
        while world.now < until and not self._is_settled():
            world.run(until=world.now + 0.05)
        demand(self._is_settled(), "Liveness", f"{self.store.state}")
        leader = self.by_name[self.store.state.leader]
        for transactional in self.transactional:
            transactional.is_wanted = not transactional.is_gone
        for _ in range(3 if self.transactional else 2):
            self.send(leader)
            for producer in self.producers:
                producer.publish()
            world.run(until=world.now + 0.2)
        self._check(leader)

    def _is_settled(self) -> bool:
        state = self.store.state
        names = tuple(member.broker for member in state.isr)
        if not state.leader or sorted(names) != sorted(state.replicas) or state.target:
            return False
        leading = self.by_name[state.leader].leading
        return leading is not None and leading.epoch == state.epoch and leading.isr.version == self.store.version

    def _check(self, leader: Broker) -> None:
        leading = leader.leading
        demand(leading is not None, "Liveness", f"{leader} was deposed")
        assert leading is not None
        demand(leading.high_watermark == leader.disk.end, "Progress", f"{leading.high_watermark} of {leader.disk.end}")
        for name in self.store.state.replicas:
            broker = self.by_name[name]
            demand(broker.disk.records == leader.disk.records, "Converged", f"{name} differs from {leader}")
            demand(broker.high_watermark == leader.high_watermark, "HighWatermarkIsTold", f"{name} does not know it")
        for producer in self.producers:
            demand(not producer.waiting, "Progress", f"producer {producer.number} waits for {producer.waiting}")
        for transactional in self.transactional:
            demand(
                self.invariants.unclean > 0 or not transactional.is_wanted,
                "Progress",
                f"{transactional.producer_id} commits nothing",
            )
        self.invariants.all_stable(leader)
        for at, value in self.invariants.acknowledged.items():
            demand(leader.disk.records[at].value == value, "AcknowledgedStays (13)", f"{value} at {at}")
