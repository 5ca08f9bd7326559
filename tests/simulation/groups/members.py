"""Clients of groups."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any

from pyreplog.future import AppendFuture
from pyreplog.kafka.groups.group_coordinator import GroupCoordinator
from pyreplog.kafka.groups.group_requests import (
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    OffsetCommitRequest,
    OffsetCommitResult,
    OffsetFetchResult,
    OffsetToCommit,
    SyncGroupRequest,
    SyncGroupResult,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

from .log import marker

if TYPE_CHECKING:
    from .brokers import Broker
    from .schedule import Schedule

TOPIC = "orders"
_COUNT = Struct(">hi")
RETRY_S = 0.02
Code = ErrorCode
SUBSCRIPTION = _COUNT.pack(0, 1) + len(TOPIC).to_bytes(2, "big") + TOPIC.encode() + b"\0\0\0\0"


class Client:
    """Sends requests to whom it takes for the coordinator. What gets no answer is given up after a while."""

    def __init__(self, schedule: Schedule, name: str, group: str) -> None:
        self.schedule, self.world, self.name, self.group = schedule, schedule.world, name, group
        self.guess = ""
        self.is_up = True
        self.commits = 0

    def begin(self) -> None:
        raise NotImplementedError

    def send(
        self, what: str, call: Callable[[GroupCoordinator], AppendFuture[Any]], done: Callable[[Any, Broker], None],
        lost: Callable[[], None], patience_s: float, seen: Callable[[Any, Broker], None] | None = None,
    ) -> None:  # fmt: skip
        world, answered = self.world, [False]
        broker = self.schedule.find(self)

        def receive(result: Any) -> None:
            if not answered[0] and self.is_up:
                answered[0] = True
                done(result, broker)

        def answer(result: Any) -> None:
            if seen is not None:
                seen(result, broker)
            if not self.schedule.loses():
                world.after(self.schedule.lag(), receive, result)

        def give_up() -> None:
            if not answered[0] and self.is_up:
                answered[0] = True
                self.guess = ""
                lost()

        if not self.schedule.loses():
            world.after(self.schedule.lag(), broker.serve, f"{self.name} {what}", call, answer)
        world.after(patience_s, give_up)

    def later(self, call: Callable[[], None], seconds: float = RETRY_S) -> None:
        self.world.after(seconds, self._if_up, call)

    def _if_up(self, call: Callable[[], None]) -> None:
        if self.is_up:
            call()

    def next_offsets(
        self, partitions: list[TopicPartition], who: str, generation: int
    ) -> dict[TopicPartition, OffsetToCommit]:
        self.schedule.commits += 1
        offsets = {}
        for partition in partitions:
            self.commits += 1
            text = f"{who}:{generation}:{self.name}.{self.commits}"
            offsets[partition] = OffsetToCommit(self.schedule.commits, 0, text)
        return offsets

    def acknowledged(self, offsets: dict[TopicPartition, OffsetToCommit], result: OffsetCommitResult) -> None:
        for partition, offset in offsets.items():
            if result[partition] is Code.NONE:
                self.schedule.invariants.acknowledged((self.group, partition), offset.metadata)

    def fetch(self, partitions: list[TopicPartition]) -> None:
        """Look whether anything that was acknowledged is lost."""
        expected = self.schedule.invariants.expect(self.group)
        epoch = self.schedule.log.epoch

        def done(result: OffsetFetchResult, broker: Broker) -> None:
            log = self.schedule.log
            # A broker that was deposed, and does not know it, may tell what was true before.
            if result.code is Code.NONE and broker.name == log.leader and log.epoch == epoch:
                self.schedule.invariants.fetched_offsets(self.group, expected, result)
            elif result.code is not Code.NONE:
                self.guess = ""

        stable = self.world.chance(0.5)
        self.send(
            "fetch", lambda to: to.fetch_offsets(self.group, partitions, require_stable=stable), done, lambda: None, 0.2
        )


class Member(Client):
    """A member of the group protocol: it joins, syncs, commits, and begins again when it is told to."""

    def __init__(self, schedule: Schedule, name: str, group: str, instance: str | None) -> None:
        super().__init__(schedule, name, group)
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.state = "new"
        self.owned: list[int] = []
        self.attempt = 0

    @property
    def is_stable(self) -> bool:
        return self.state == "stable"

    def begin(self) -> None:
        self._join()

    def crash(self) -> None:
        self.is_up = False
        self.world.note(self.name, "crashes")

    def leave(self) -> None:
        self.world.note(self.name, "leaves")
        members = [LeavingMember(self.member_id, self.instance)]
        self.send("leave", lambda to: to.leave_group(self.group, members), lambda *_: None, lambda: None, 0.1)
        self.is_up = False

    def _join(self) -> None:
        self.state, self.owned = "joining", []
        self.attempt += 1
        plan = self.schedule.plan
        join = JoinGroupRequest(
            self.member_id, self.instance, self.name, "/127.0.0.1", plan.session_ms, plan.rebalance_ms, "consumer",
            (("range", SUBSCRIPTION),), requires_known_member_id=plan.requires_member_id,
            supports_skipping_assignment=plan.skips,
        )  # fmt: skip
        patience_s = (plan.rebalance_ms + plan.initial_delay_ms) / 1000 * 2 + 0.3
        self.send("join", lambda to: to.join_group(self.group, join), self._joined, self._join, patience_s)

    def _joined(self, result: JoinGroupResult, _: Broker) -> None:
        if result.code is Code.NONE:
            self.member_id, self.generation, self.state = result.member_id, result.generation, "syncing"
            self._sync(result)
        elif result.code is Code.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
            self._join()
        else:
            self._failed(result.code)

    def _failed(self, code: ErrorCode) -> None:
        """As clients do."""
        self.world.note(self.name, "gets", code.name)
        if code is Code.FENCED_INSTANCE_ID:
            self.is_up = False  # another one has its name
            return
        if code is Code.GROUP_MAX_SIZE_REACHED:
            self.is_up = False
            return
        if code in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION):
            self.member_id = "" if code is Code.UNKNOWN_MEMBER_ID else self.member_id
        elif code in (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE):
            self.guess = ""
        self.state = "failed"
        self.later(self._join, self.world.random.random() * RETRY_S * 2)

    def _sync(self, joined: JoinGroupResult) -> None:
        assignments = {}
        if joined.members and not joined.skip_assignment:
            partitions = self.schedule.plan.partitions
            names = sorted((member.instance_id or "", member.member_id) for member in joined.members)
            for at, (_, member_id) in enumerate(names):
                mine = [number for number in range(partitions) if number % len(names) == at]
                assignments[member_id] = bytes(mine)
        sync = SyncGroupRequest(self.member_id, self.generation, self.instance, "consumer", "range", assignments)
        if self.world.chance(0.05):
            self.later(lambda: self._send_sync(sync), 0.1)
        else:
            self._send_sync(sync)

    def _send_sync(self, sync: SyncGroupRequest) -> None:
        attempt = self.attempt

        def done(result: SyncGroupResult, _: Broker) -> None:
            if self.attempt == attempt:  # it has not begun again meanwhile
                self._synced(result)

        def lost() -> None:
            if self.attempt == attempt:
                self._join()

        def seen(result: SyncGroupResult, broker: Broker) -> None:
            if (
                result.code is Code.NONE
                and broker is self.schedule.leader()
                and broker.epoch == self.schedule.log.epoch
            ):
                for number in result.assignment:
                    owner = self.instance or sync.member_id
                    self.schedule.invariants.owns(self.group, sync.generation, number, owner)

        self.send("sync", lambda to: to.sync_group(self.group, sync), done, lost, 1.0, seen)

    def _synced(self, result: SyncGroupResult) -> None:
        if result.code is not Code.NONE:
            self._failed(result.code)
            return
        self.state, self.owned = "stable", list(result.assignment)
        self.world.note(self.name, self.member_id, "owns", self.owned, "in", self.generation)
        self.fetch([TopicPartition(TOPIC, number) for number in range(self.schedule.plan.partitions)])
        self._heartbeat(self.attempt)
        self._commit(self.attempt)

    def _heartbeat(self, attempt: int) -> None:
        if self.attempt != attempt or self.state != "stable":
            return

        def again() -> None:
            self.later(lambda: self._heartbeat(attempt), self.schedule.plan.session_ms / 3000)

        def done(code: ErrorCode, _: Broker) -> None:
            if self.attempt != attempt or self.state != "stable":
                return
            if code is Code.NONE:
                again()
            elif code in (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE):
                self.guess = ""
                again()
            else:
                self._failed(code)

        member_id, generation = self.member_id, self.generation
        self.send(
            "heartbeat", lambda to: to.heartbeat(self.group, member_id, generation, self.instance), done, again, 0.1
        )

    def _commit(self, attempt: int) -> None:
        if self.attempt != attempt or self.state != "stable":
            return

        def again() -> None:
            self.later(lambda: self._commit(attempt), self.schedule.plan.commit_s)

        owned = [TopicPartition(TOPIC, number) for number in self.owned]
        if not owned:
            again()
            return
        offsets = self.next_offsets(owned, self.instance or self.member_id, self.generation)
        commit = OffsetCommitRequest(self.member_id, self.generation, offsets, self.instance)

        def done(result: OffsetCommitResult, _: Broker) -> None:
            self.acknowledged(offsets, result)
            code = next(iter(result.values()))
            if code is not Code.NONE:
                self.schedule.invariants.refused += 1
                self.guess = ""
            if code in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION) and self.attempt == attempt:
                self._failed(code)
            else:
                again()

        # A commit may be on its way for long, and come to another generation: it is sent late, sometimes.
        if self.world.chance(0.1):
            self.later(
                lambda: self.send("commit", lambda to: to.commit_offsets(self.group, commit), done, again, 0.3), 0.2
            )
        else:
            self.send("commit", lambda to: to.commit_offsets(self.group, commit), done, again, 0.3)


class SimpleConsumer(Client):
    """It commits outside the group protocol, to a group without members."""

    def begin(self) -> None:
        if self.world.is_calm:
            return
        partitions = [TopicPartition(TOPIC, number) for number in range(self.schedule.plan.partitions)]
        offsets = self.next_offsets(self.world.random.sample(partitions, 1), "simple", -1)
        commit = OffsetCommitRequest("", -1, offsets)

        def done(result: OffsetCommitResult, _: Broker) -> None:
            self.acknowledged(offsets, result)
            if any(result.values()):
                self.guess = ""
            self.fetch(partitions)
            again()

        def again() -> None:
            self.later(self.begin, self.schedule.plan.commit_s)

        self.send("commit", lambda to: to.commit_offsets(self.group, commit), done, again, 0.3)


class TransactionalProducer(Client):
    """It commits offsets in transactions. Its coordinator appends the markers until they are committed."""

    def __init__(self, schedule: Schedule, name: str, group: str, producer_id: int) -> None:
        super().__init__(schedule, name, group)
        self.producer_id = producer_id

    def begin(self) -> None:
        if self.world.is_calm:
            return
        partitions = [TopicPartition(TOPIC, number) for number in range(self.schedule.plan.partitions)]
        offsets = self.next_offsets(self.world.random.sample(partitions, 2), "transaction", -1)
        for offset in offsets.values():
            self.schedule.invariants.transactional(offset.metadata)
        commit = OffsetCommitRequest("", -1, offsets)

        def done(result: OffsetCommitResult, _: Broker) -> None:
            if any(result.values()):
                self.guess = ""
            is_whole = not any(result.values())
            self.fetch(partitions)
            self.later(lambda: end(committed=is_whole and self.world.chance(0.7)), self.world.random.random() * 0.1)

        def end(*, committed: bool) -> None:
            texts = {(self.group, partition): offset.metadata for partition, offset in offsets.items()}
            self.schedule.invariants.decided(texts, committed=committed)
            self._end(texts, committed=committed)

        self.send(
            "transaction", lambda to: to.commit_transactional_offsets(self.group, commit, self.producer_id, 0, 1), done,
            lambda: self.later(lambda: end(committed=False), 0.5), 0.3,
        )  # fmt: skip

    def _end(self, texts: dict[Any, str], *, committed: bool) -> None:
        """The marker goes to the leader, until it is known to be committed there."""
        log, broker = self.schedule.log, self.schedule.leader()
        if broker is None or broker.epoch is None:
            self.later(lambda: self._end(texts, committed=committed))
            return
        epoch = broker.epoch

        def done(future: Any) -> None:
            if future.result().code:
                self.later(lambda: self._end(texts, committed=committed), 0.05)
                return
            self.schedule.invariants.ended(texts, committed=committed)
            if broker.coordinator is not None and broker.epoch == epoch:
                broker.coordinator.handle_txn_completion(self.schedule.partition, self.producer_id, committed=committed)
            self.later(self.begin, self.schedule.plan.commit_s)

        log.append(broker.name, epoch, marker(self.producer_id, committed=committed)).add_done_callback(done)
