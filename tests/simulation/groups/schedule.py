"""One run: a broker's groups, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.kafka.groups.group_requests import GroupState
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

from ..invariants import demand
from ..world import World
from .brokers import PARTITION, Broker
from .consumers import Catalog, Consumer
from .invariants import Invariants
from .log import Log
from .members import TOPIC, Client, Member, SimpleConsumer, TransactionalProducer

NAMES = "abc"
CONSUMERS = "consumers"
SETTLE_S = 20.0


@dataclass(frozen=True)
class Plan:
    """What is drawn before a run begins."""

    members: int
    static: int
    groups: int
    simple: int
    transactional: int
    partitions: int
    session_ms: int
    rebalance_ms: int
    initial_delay_ms: int
    append_timeout_s: float
    commit_s: float
    lag_s: float
    loss: float
    late: float
    busy_s: float
    faults: int
    rewrite_bytes: int
    load_bytes: int
    requires_member_id: bool
    skips: bool
    max_size: int
    consumers: int
    static_consumers: int
    assignors: str
    grows: bool

    @classmethod
    def draw(cls, random: Random) -> Plan:
        members = random.choice((1, 2, 3, 4))
        return cls(
            members=members,
            static=random.choice((0, 0, 1, 2)),
            groups=random.choice((1, 1, 2)),
            simple=random.choice((0, 0, 1)),
            transactional=random.choice((0, 0, 1, 2)),
            partitions=random.choice((2, 3, 5)),
            session_ms=random.choice((150, 300)),
            rebalance_ms=random.choice((200, 500)),
            initial_delay_ms=random.choice((0, 0, 50)),
            append_timeout_s=random.choice((0.05, 0.2)),
            commit_s=random.choice((0.02, 0.05)),
            lag_s=random.choice((0.001, 0.005)),
            loss=random.choice((0.0, 0.02, 0.1)),
            late=random.choice((0.0, 0.05, 0.1)),
            busy_s=random.choice((0.7, 1.5)),
            faults=random.choice((0, 2, 5, 10)),
            rewrite_bytes=random.choice((1_500, 5_000, 1 << 30)),
            load_bytes=random.choice((2_000, 1 << 20)),
            requires_member_id=random.random() < 0.7,
            skips=random.random() < 0.5,
            max_size=random.choice((members + 3, 100)),
            consumers=random.choice((0, 0, 0, 1, 2, 4)),
            static_consumers=random.choice((0, 0, 0, 0, 1, 2)),
            assignors=random.choice(("uniform", "range,uniform")),
            grows=random.random() < 0.3,
        )


class Schedule:
    """Runs it. Whatever breaks raises BrokenInvariantError, or what the shipped code raised."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = World(seed, tracing=tracing)
        self.plan = plan = Plan.draw(self.world.random)
        self.world.note(plan)
        self.config = ConsumerGroupConfig(
            offsets_partitions=1, min_session_timeout_ms=1, initial_rebalance_delay_ms=plan.initial_delay_ms,
            new_member_join_timeout_ms=1_000, load_bytes=plan.load_bytes, rewrite_bytes=plan.rewrite_bytes,
            retention_check_ms=200, offsets_retention_ms=3_600_000, max_size=plan.max_size,
            consumer_session_timeout_ms=plan.session_ms, consumer_heartbeat_interval_ms=plan.session_ms // 6,
            consumer_assignors=plan.assignors,
        )  # fmt: skip
        self.catalog = Catalog(plan.partitions - plan.grows)
        self.invariants = Invariants(self)
        self.log = Log(self)
        self.partition: TopicPartition = PARTITION
        self.brokers = {name: Broker(self, name) for name in NAMES}
        self.members: list[Member] = []
        self.consumers: list[Consumer] = []
        self.others: list[Client] = []
        self.commits = 0
        self._ids = 0

    # ---- the network ----------------------------------------------------------------------------------------

    def lag(self) -> float:
        lag = self.world.random.expovariate(1 / self.plan.lag_s)
        if not self.world.is_calm and self.world.chance(self.plan.late):
            lag += self.world.random.random() * 0.3
        return lag

    def loses(self) -> bool:
        return not self.world.is_calm and self.world.chance(self.plan.loss)

    def find(self, client: Client) -> Broker:
        """Whom a client takes for the coordinator; sometimes it is wrong."""
        if client.guess not in self.brokers:
            is_wrong = not self.world.is_calm and self.world.chance(0.1)
            client.guess = self.world.random.choice(NAMES) if is_wrong else self.log.leader
        return self.brokers[client.guess]

    def leader(self) -> Broker | None:
        broker = self.brokers[self.log.leader]
        return None if broker.coordinator is None else broker

    def new_member_id(self, client_id: str) -> str:
        self._ids += 1
        return f"{client_id}-{self._ids}"

    # ---- the run --------------------------------------------------------------------------------------------

    def run(self) -> None:
        world, plan = self.world, self.plan
        for broker in self.brokers.values():
            broker.start()
        self._elect(NAMES[0])
        for number in range(plan.members):
            self._start(f"m{number}", f"group{number % plan.groups}", None)
        for number in range(plan.static):
            self._start(f"s{number}", f"group{number % plan.groups}", f"static{number}")
        for number in range(plan.consumers + plan.static_consumers):
            instance = f"static{number}" if number >= plan.consumers else None
            self._start_consumer(f"k{number}", instance)
        if plan.grows:
            world.at(plan.busy_s * world.random.random(), self._grow)
        for number in range(plan.simple):
            self.others.append(SimpleConsumer(self, f"c{number}", "simple"))
        for number in range(plan.transactional):
            self.others.append(TransactionalProducer(self, f"t{number}", "transactions", number))
        for client in self.others:
            world.after(world.random.random() * 0.2, client.begin)
        for _ in range(plan.faults):
            world.at(plan.busy_s * world.random.random(), self._fault)
        world.run(until=plan.busy_s)
        self._settle()

    def _start(self, name: str, group: str, instance: str | None) -> None:
        member = Member(self, name, group, instance)
        self.members.append(member)
        self.world.after(self.world.random.random() * 0.3, member.begin)

    def _start_consumer(self, name: str, instance: str | None) -> None:
        consumer = Consumer(self, name, CONSUMERS, instance)
        self.consumers.append(consumer)
        self.world.after(self.world.random.random() * 0.3, consumer.begin)

    def is_consumer_group(self, group: str) -> bool:
        return group == CONSUMERS

    def _grow(self) -> None:
        self.catalog.partitions = self.plan.partitions

    def _elect(self, name: str) -> None:
        self.log.elect(name)
        for broker in self.brokers.values():
            late = 0.0 if self.world.is_calm else self.world.random.random() * 0.1
            self.world.after(late, broker.learn, self.log.epoch, name, broker.life)

    def _fault(self) -> None:
        world = self.world
        up = [name for name, broker in self.brokers.items() if broker.coordinator is not None]
        kind = world.random.randrange(6)
        if kind == 0 and len(up) > 1:
            name = world.random.choice(up)
            self.brokers[name].crash()
            if name == self.log.leader:
                self._elect(world.random.choice([other for other in up if other != name]))
            world.after(world.random.random() * 0.3, self._restart, name)
        elif kind == 1:
            self._elect(world.random.choice(up))  # it may be the same one
        elif kind == 2:
            self.log.is_stalled = True
            world.after(world.random.random() * 0.5, self._resume)
        else:
            self._disturb(kind)

    def _disturb(self, kind: int) -> None:
        """Something happens to a member: a crash, a farewell, or another one that has its static name."""
        up: list[Member | Consumer] = [member for member in (*self.members, *self.consumers) if member.is_up]
        if not up:
            return
        member = self.world.random.choice(up)
        if kind == 3:
            member.crash()
        elif kind == 4:
            member.leave()
        if kind != 5 or member.instance is not None:
            number = len(self.members) + len(self.consumers)
            again = member.instance if self.world.chance(0.8) else None
            if isinstance(member, Consumer):
                self._start_consumer(f"k{number}", again)
                return
            self._start(f"m{number}" if again is None else f"s{number}", member.group, again)

    def _restart(self, name: str) -> None:
        self.brokers[name].start()

    def _resume(self) -> None:
        self.log.is_stalled = False

    # ---- the end --------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Faults stop: the members of each group own all partitions, one each, in one generation."""
        world = self.world
        world.note("faults end")
        world.is_calm = True
        self._resume()
        for broker in self.brokers.values():
            broker.start()
        world.run(until=world.now + 0.5)
        self._elect(self.log.leader)
        world.run(until=world.now + 0.1)
        until = world.now + SETTLE_S
        while world.now < until and not self._is_loaded():
            world.run(until=world.now + 0.2)
        while world.now < until and not (
            all(self._is_settled(group) for group in self._groups()) and self._are_consumers_settled()
        ):
            world.run(until=world.now + 0.2)
        demand(self._are_consumers_settled(), "NoGroupIsStuck", f"{CONSUMERS}: {self._describe_consumers()}")
        for group in self._groups():
            demand(self._is_settled(group), "NoGroupIsStuck", f"{group}: {self._describe(group)}")
        world.run(until=world.now + 0.5)
        self._check()

    def _groups(self) -> list[str]:
        return sorted({member.group for member in self.members})

    def _live(self, group: str) -> list[Member]:
        """Static members whose name another one has come with are not told before their next request."""
        return [member for member in self.members if member.group == group and member.is_up]

    def _is_settled(self, group: str) -> bool:
        live = self._live(group)
        if not all(member.is_stable for member in live) or len({member.generation for member in live}) > 1:
            return False
        owned = sorted(number for member in live for number in member.owned)
        return not live or owned == list(range(self.plan.partitions))

    def _is_loaded(self) -> bool:
        """Clients that are content do not tell."""
        coordinator = self.brokers[self.log.leader].coordinator
        return coordinator is not None and coordinator.list_groups().result(0).code is ErrorCode.NONE

    def _are_consumers_settled(self) -> bool:
        """All partitions are used by the members, each by one, and all members have one epoch."""
        live = [consumer for consumer in self.consumers if consumer.is_up]
        used = sorted(number for consumer in live for number in consumer.used)
        return not live or (
            len({consumer.epoch for consumer in live}) == 1 and used == list(range(self.plan.partitions))
        )

    def _describe_consumers(self) -> str:
        return ", ".join(
            f"{consumer.name} {consumer.member_id} {consumer.epoch} {sorted(consumer.used)}"
            for consumer in self.consumers if consumer.is_up
        )  # fmt: skip

    def _describe(self, group: str) -> str:
        return ", ".join(
            f"{member.name} {member.member_id} {member.state} {member.generation} {member.owned}"
            for member in self._live(group)
        )

    def _check(self) -> None:
        broker = self.brokers[self.log.leader]
        assert broker.coordinator is not None
        for group in [*self._groups(), CONSUMERS, "simple", "transactions"]:
            expected = self.invariants.expect(group)
            partitions = [TopicPartition(TOPIC, number) for number in range(self.plan.partitions)]
            fetched = broker.coordinator.fetch_offsets(group, partitions, require_stable=False).result(0)
            demand(fetched.code is ErrorCode.NONE, "Progress", f"{group}: {fetched.code.name}")
            self.invariants.fetched_offsets(group, expected, fetched)
        for member in self.members:
            if member.is_up and member.owned:
                described = broker.coordinator.describe_group(member.group).result(0)
                demand(described.state is GroupState.STABLE, "NoGroupIsStuck", f"{member.group}: {described}")
        if any(consumer.is_up for consumer in self.consumers):
            modern = broker.coordinator.describe_consumer_group(CONSUMERS).result(0)
            demand(modern.state is GroupState.STABLE, "NoGroupIsStuck", f"{CONSUMERS}: {modern}")
        for broker in self.brokers.values():
            for since, what, future in broker.requests:
                demand(future.done() or since > self.world.now - 1.5, "NoRequestIsForgotten", f"{what} since {since}")
