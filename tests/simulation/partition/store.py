"""The metadata store: the partition's key and the brokers' registrations; and the controllers, of which several may
think that it is their turn, and each may sleep between any two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyreplog.partition.protocol.election import cancel_reassignment, complete_reassignment, elect, reassign
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Brokers, PartitionState

if TYPE_CHECKING:
    from .schedule import Schedule

TIMEOUT_S = 0.03
LEASE_S = 0.04
ARRIVED_S = 0.5
"""After the faults: no request is later. One of an earlier process can move the leadership, as long as it is not known
that the broker has started again."""


class Store:
    """Requests of brokers and controllers are done, or lost, or done while the answer is lost, or done long after
    their sender gave up waiting."""

    def __init__(self, schedule: Schedule, state: PartitionState) -> None:
        self._schedule, self._world = schedule, schedule.world
        self.version, self.state = 1, state
        self.brokers: dict[str, BrokerRegistration] = {}
        self._heard: dict[str, float] = {}

    def request(
        self, sender: str, do: Callable[[], Any], answer: Callable[[Any], None], unknown: Callable[[], None]
    ) -> None:
        world, network = self._world, self._schedule.network
        if network.is_cut(sender, "") or (not world.is_calm and world.chance(self._schedule.plan.store_loss)):
            world.after(TIMEOUT_S, unknown)
            return
        delay = network.delay()
        is_answered = not network.is_cut("", sender)
        if not world.is_calm and world.chance(self._schedule.plan.store_loss):
            is_answered = False
            arrived_by = self._schedule.plan.busy_s + ARRIVED_S
            delay = min(delay * world.random.choice((1, 1, 30)), arrived_by - world.now)

        def arrive() -> None:
            result = do()
            if is_answered:
                world.after(network.delay(), answer, result)

        world.after(delay, arrive)
        if not is_answered:
            world.after(TIMEOUT_S, unknown)

    def compare_and_set(self, version: int, state: PartitionState, by: str) -> int:
        """The new version; 0: another one is there."""
        if version != self.version:
            self._world.note(by, "conflicts with version", self.version)
            return 0
        before, self.state = self.state, PartitionState.decode(state.encode())  # as it is stored
        self.version += 1
        self._world.note(by, "sets version", self.version, describe(state))
        self._schedule.invariants.state_changed(before, state, by)
        for broker in self._schedule.brokers:
            broker.watch_state(self.version, state)
        return self.version

    def heartbeat(self, broker: str, incarnation: int, *, is_stopping: bool) -> None:
        registered = self.brokers.get(broker)
        if registered is not None and registered.incarnation > incarnation:
            return
        self._heard[broker] = self._world.now
        self._register(broker, BrokerRegistration(incarnation, is_stopping=is_stopping))

    def expire(self) -> None:
        """Leases end, of brokers that were not heard of."""
        for broker, registration in list(self.brokers.items()):
            if not registration.is_fenced and self._heard[broker] + LEASE_S < self._world.now:
                self._register(broker, registration._replace(is_fenced=True))
        self._world.after(LEASE_S / 4, self.expire)

    def _register(self, broker: str, registration: BrokerRegistration) -> None:
        if self.brokers.get(broker) != registration:
            self.brokers[broker] = registration
            self._world.note("registered:", broker, registration)
            for other in self._schedule.brokers:
                other.watch_brokers(dict(self.brokers))


class Controller:
    """Looks, thinks, and sets what it then thinks right."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self._schedule, self._world, self.name = schedule, schedule.world, name
        self._target: tuple[str, ...] = ()
        self._cancels = False

    def reassign(self, target: tuple[str, ...]) -> None:
        """As soon as it looks again."""
        self._target = target

    def cancel(self) -> None:
        """Cancel the next reassignment that it sees."""
        self._cancels = True

    def run(self) -> None:
        """Again and again. It reads the registrations and the key, either first."""
        world, store = self._world, self._schedule.store
        if world.chance(0.5):
            brokers = dict(store.brokers)
            world.after(self._pause(), lambda: self._decide(brokers, store.version, store.state))
        else:
            version, state = store.version, store.state
            world.after(self._pause(), lambda: self._decide(dict(store.brokers), version, state))

    def _pause(self) -> float:
        random = self._world.random
        if self._world.is_calm:
            return random.random() * 0.002
        return random.random() * (0.002 if random.random() < 0.9 else 0.2)

    def _decide(self, brokers: Brokers, version: int, state: PartitionState) -> None:
        plan = self._schedule.plan
        after = elect(state, brokers, requires_sync=plan.requires_sync, unclean=plan.unclean)
        if after is not None:
            self._schedule.invariants.elects(after, brokers)
        else:
            after = complete_reassignment(state, brokers)
        if after is None and self._target:
            after, self._target = reassign(state, self._target), ()
        if after is None and self._cancels and state.target:
            self._cancels, after = False, cancel_reassignment(state, brokers)
        if after is not None:
            self._world.after(self._pause(), self._set, version, after)
        self._world.after(0.01 * (0.2 + self._world.random.random()), self.run)

    def _set(self, version: int, state: PartitionState) -> None:
        self._schedule.store.compare_and_set(version, state, self.name)


def describe(state: PartitionState) -> str:
    """For people."""
    isr, elr = " ".join(map(str, state.isr)), " ".join(map(str, state.elr))
    unclean = " unclean" if state.is_unclean else ""
    target = f" to {' '.join(state.target)}" if state.target else ""
    return f"leader {state.leader or 'none'} epoch {state.epoch}{unclean} isr [{isr}] elr [{elr}] of {state.replicas}{target}"
