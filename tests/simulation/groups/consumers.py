"""Members of consumer groups (KIP-848), and the topic whose partitions they are assigned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyreplog.future import AppendFuture, set_result
from pyreplog.kafka.groups.assignors import Partitions, TopicIdPartition
from pyreplog.kafka.groups.group_coordinator import GroupCoordinator
from pyreplog.kafka.groups.group_requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    OffsetCommitRequest,
    OffsetCommitResult,
    OffsetFetchResult,
)
from pyreplog.kafka.groups.topic_catalog import KnownTopic
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

from .members import RETRY_S, TOPIC, Client

if TYPE_CHECKING:
    from .brokers import Broker
    from .schedule import Schedule

TOPIC_ID = TOPIC.encode().ljust(16, b".")
Code = ErrorCode
_ELSEWHERE = {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOAD_IN_PROGRESS}


class Catalog:
    """One topic, which may grow."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions

    def topic(self, name: str) -> KnownTopic | None:
        return KnownTopic(TOPIC_ID, self.partitions) if name == TOPIC else None

    def names(self) -> Iterable[str]:
        return (TOPIC,)

    def look_up(self, names: Collection[str]) -> AppendFuture[Mapping[str, bytes]]:
        found = AppendFuture[Mapping[str, bytes]]({name: TOPIC_ID for name in names if name == TOPIC})
        set_result(found)
        return found


class Consumer(Client):
    """It sends heartbeats, uses what it is given, and takes its time to give something up.

    Its requests go over one connection, in their order; when it gives up waiting, that connection is closed.
    """

    def __init__(self, schedule: Schedule, name: str, group: str, instance: str | None) -> None:
        super().__init__(schedule, name, group)
        self.instance = instance
        self.member_id = schedule.new_member_id(name)
        self.epoch = 0
        self.used: frozenset[int] = frozenset()
        self.given: frozenset[int] = frozenset()
        self._told: frozenset[int] | None = None  # what the coordinator knows that it uses
        self._connection = 0
        self._arrival = 0.0
        self._is_joining = True

    @property
    def owner(self) -> str:
        return self.instance or self.member_id

    def begin(self) -> None:
        self._beat()
        self._commit()

    def crash(self) -> None:
        self.is_up = False
        self.world.note(self.name, "crashes")

    def leave(self) -> None:
        epoch = -2 if self.instance is not None and self.world.chance(0.7) else -1
        self.world.note(self.name, "leaves", epoch)
        self._send("leave", ConsumerHeartbeat(self.member_id, epoch, instance_id=self.instance), lambda *_: None)
        self.is_up = False
        self.used = frozenset()

    # ---- heartbeats -----------------------------------------------------------------------------------------

    def _beat(self) -> None:
        is_full = self._told is None or self._is_joining
        says = self.used if is_full or self.used != self._told else None
        beat = ConsumerHeartbeat(
            self.member_id, 0 if self._is_joining else self.epoch, self.name, "/127.0.0.1", self.instance,
            rebalance_timeout_ms=self.schedule.plan.rebalance_ms if is_full else -1,
            topics=frozenset({TOPIC}) if is_full else None,
            owned=None if says is None else _partitions(says), chooses_id=True,
        )  # fmt: skip

        def done(result: ConsumerHeartbeatResult, _: Broker) -> None:
            if result.code is Code.NONE and says is not None:
                self._told = says
            self._answered(result)

        self._send("heartbeat", beat, done)

    def _send(self, what: str, beat: ConsumerHeartbeat, done: Callable[[Any, Broker], None]) -> None:
        connection = self._connection

        def call(to: GroupCoordinator) -> AppendFuture[Any]:
            if connection != self._connection:  # it was closed while this was on its way
                lost: AppendFuture[Any] = AppendFuture()
                set_result(lost, ConsumerHeartbeatResult(Code.NOT_COORDINATOR))
                return lost
            return to.consumer_heartbeat(self.group, beat)

        def seen(result: ConsumerHeartbeatResult, broker: Broker) -> None:
            is_leader = broker is self.schedule.leader() and broker.epoch == self.schedule.log.epoch
            if is_leader and result.code is Code.NONE and result.assignment is not None:
                for each in result.assignment:
                    self.schedule.invariants.owns(self.group, result.member_epoch, each.partition, self.owner)

        def lost() -> None:
            self._connection += 1
            self._told = None
            self._beat()

        self.send(what, call, done, lost, 0.1, seen)

    def _answered(self, result: ConsumerHeartbeatResult) -> None:
        if result.code is not Code.NONE:
            self._failed(result.code)
            return
        self.epoch, self._is_joining = result.member_epoch, False
        if result.assignment is not None:
            self.given = frozenset(each.partition for each in result.assignment)
            self.world.note(self.name, self.member_id, "is given", sorted(self.given), "in", self.epoch)
            if self.used - self.given and self.world.chance(0.5):
                given = self.given
                self.later(lambda: self._use(given), self.world.random.random() * 0.15)
            else:
                self._use(self.given)
        self.later(self._beat, self.schedule.config.consumer_heartbeat_interval_ms / 1000)

    def _use(self, given: frozenset[int]) -> None:
        """It gives up what it is not to have; then it begins with what is new."""
        if given != self.given or self._is_joining:
            return
        is_new = bool(given - self.used)
        self.used = given
        if is_new:
            self._look_at_offsets()

    def _look_at_offsets(self) -> None:
        names = [TopicPartition(TOPIC, number) for number in sorted(self.used)]
        expected = {name: text for name, text in self.schedule.invariants.expect(self.group).items() if name in names}
        log_epoch, epoch = self.schedule.log.epoch, self.epoch

        def done(result: OffsetFetchResult, broker: Broker) -> None:
            log = self.schedule.log
            if result.code is Code.NONE and broker.name == log.leader and log.epoch == log_epoch:
                self.schedule.invariants.fetched_offsets(self.group, expected, result)

        self.send(
            "fetch",
            lambda to: to.fetch_offsets(
                self.group, names, require_stable=False, member_id=self.member_id, member_epoch=epoch
            ),
            done, lambda: None, 0.2,
        )  # fmt: skip

    def _failed(self, code: ErrorCode) -> None:
        self.world.note(self.name, "gets", code.name)
        self._told = None
        if code in _ELSEWHERE:
            self.guess = ""
        elif code in (Code.FENCED_INSTANCE_ID, Code.GROUP_MAX_SIZE_REACHED) or (
            code is Code.UNRELEASED_INSTANCE_ID and self._has_twin()
        ):
            self.is_up = False
            self.used = frozenset()
            return
        elif code in (Code.FENCED_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID, Code.GROUP_ID_NOT_FOUND):
            self.used = self.given = frozenset()
            self.epoch, self._is_joining = 0, True
        self.later(self._beat, self.world.random.random() * RETRY_S * 2)

    def _has_twin(self) -> bool:
        """Whether another one lives with its name."""
        others = (other for other in self.schedule.consumers if other is not self and other.is_up)
        return any(other.instance == self.instance for other in others)

    # ---- commits --------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        names = [TopicPartition(TOPIC, number) for number in sorted(self.used)]
        if not names or self._is_joining:
            self.later(self._commit, self.schedule.plan.commit_s)
            return
        offsets = self.next_offsets(names, self.member_id, self.epoch)
        commit = OffsetCommitRequest(self.member_id, self.epoch, offsets, self.instance, knows_member_epochs=True)

        def done(result: OffsetCommitResult, _: Broker) -> None:
            self.acknowledged(offsets, result)
            if any(result.values()):
                self.schedule.invariants.refused += 1

        # A commit may be on its way for long, and come when its partitions are another one's.
        late_s = 0.2 if self.world.chance(0.1) else 0.0
        self.later(
            lambda: self.send("commit", lambda to: to.commit_offsets(self.group, commit), done, lambda: None, 0.3),
            late_s,
        )
        self.later(self._commit, self.schedule.plan.commit_s)


def _partitions(numbers: Iterable[int]) -> Partitions:
    return frozenset(TopicIdPartition(TOPIC_ID, number) for number in numbers)
