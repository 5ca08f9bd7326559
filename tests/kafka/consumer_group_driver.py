"""A consumer group under a test's hand: what it appends is committed when the test says so, or at once; and members
that do what they are told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyreplog.future import AppendFuture
from pyreplog.kafka.groups.assignors import Partitions, TopicIdPartition
from pyreplog.kafka.groups.consumer_group import ConsumerGroup, Effects, check_heartbeat
from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.kafka.groups.group_effects import AppendRecords, GroupDeleted, GroupDissolved, Moment, Respond
from pyreplog.kafka.groups.group_records import ConsumerGroupKey, OffsetCommitKey, decode_key, decode_offset
from pyreplog.kafka.groups.group_requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    OffsetCommitRequest,
    OffsetToCommit,
)
from pyreplog.kafka.groups.topic_catalog import KnownTopic
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

WALL_MS = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)
Code = ErrorCode


def topic_id(name: str, life: int = 0) -> bytes:
    return f"{name}-{life}".encode().ljust(16, b".")


def partitions(name: str, numbers: Iterable[int], life: int = 0) -> Partitions:
    return frozenset(TopicIdPartition(topic_id(name, life), number) for number in numbers)


class Topics:
    """A catalog that a test changes. lookups: questions to the store that wait for an answer; None: it has no store."""

    def __init__(self, **topics: int) -> None:
        self.topics = {name: KnownTopic(topic_id(name), count) for name, count in topics.items()}
        self.lookups: list[AppendFuture[Mapping[str, bytes]]] | None = None

    def topic(self, name: str) -> KnownTopic | None:
        return self.topics.get(name)

    def names(self) -> Iterable[str]:
        return self.topics

    def look_up(self, names: Collection[str]) -> AppendFuture[Mapping[str, bytes]] | None:
        if self.lookups is None:
            return None
        self.lookups.append(AppendFuture())
        return self.lookups[-1]


class GroupDriver:
    """It drives the machine. `holds`: appends wait for `commit_one`, `fail_one` and `lose_one`."""

    def __init__(self, topics: Topics | None = None, **settings: Any) -> None:
        self.config = ConsumerGroupConfig(**settings)
        self.topics = Topics(orders=4) if topics is None else topics
        self.ids = 0
        self.group = ConsumerGroup("g", self.config, self.topics, self._new_id)
        self.now_ms = 0
        self.results: dict[Any, Any] = {}
        self.holds = False
        self.held: list[AppendRecords] = []
        self.log: list[tuple[bytes, bytes | None]] = []
        self.ends: list[object] = []

    def _new_id(self, client_id: str) -> str:
        self.ids += 1
        return f"{client_id}-{self.ids}"

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms * 1000, WALL_MS + self.now_ms)

    def perform(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Respond):
                self.results[effect.request] = effect.result
            elif isinstance(effect, AppendRecords):
                self.held.append(effect)
                if not self.holds:
                    self.commit_one()
            else:
                assert isinstance(effect, GroupDeleted | GroupDissolved)
                self.ends.append(effect)

    def commit_one(self) -> None:
        append = self.held.pop(0)
        at = len(self.log)
        self.log += append.records
        self.perform(self.group.appended(append.token, at, self.now))

    def fail_one(self, code: ErrorCode = Code.NOT_COORDINATOR) -> None:
        self.perform(self.group.append_failed(self.held.pop(0).token, code, self.now))

    def lose_one(self, code: ErrorCode = Code.REQUEST_TIMED_OUT) -> AppendRecords:
        append = self.held[0]
        self.perform(self.group.append_unknown(append.token, code, self.now))
        return append

    def advance(self, ms: int) -> None:
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms = min(self.now_ms + 100, until)
            self.perform(self.group.expire(self.now))

    def beat(self, beat: ConsumerHeartbeat, name: object = "beat") -> ConsumerHeartbeatResult | None:
        """None: it waits; `results` has the result later."""
        self.results.pop(name, None)
        refused = check_heartbeat(beat, self.config)
        if refused is not None:
            return refused
        self.perform(self.group.heartbeat(name, beat, self.now))
        result: ConsumerHeartbeatResult | None = self.results.get(name)
        return result

    def commit(self, member_id: str, epoch: int, offset: int = 1, **settings: Any) -> Any:
        producer = settings.pop("producer", None)
        request = OffsetCommitRequest(
            member_id, epoch, {ORDERS: OffsetToCommit(offset)}, **{"knows_member_epochs": True, **settings}
        )
        self.results.pop("commit", None)
        self.perform(self.group.commit("commit", request, self.now, producer))
        result = self.results.get("commit")
        return None if result is None else result[ORDERS]

    def fetch(self, **settings: Any) -> Any:
        fetched = self.group.fetch([ORDERS], require_stable=False, **settings).offsets[ORDERS]
        return fetched.code if fetched.code else fetched.offset

    def reload(self, since: int = 0) -> GroupDriver:
        """Another broker, which reads what is in the log from an offset on."""
        other = GroupDriver(
            self.topics, **{name: getattr(self.config, name) for name in self.config.__dataclass_fields__}
        )
        other.ids, other.now_ms, other.log = self.ids, self.now_ms, list(self.log)
        for at, (key, value) in enumerate(self.log):
            decoded = decode_key(key)
            if at < since:
                continue
            if isinstance(decoded, ConsumerGroupKey):
                other.group.load_record(decoded, value, at)
                continue
            assert isinstance(decoded, OffsetCommitKey)
            partition = TopicPartition(decoded.topic, decoded.partition)
            if value is None:
                other.group.offsets.apply_deletion(partition, at)
            else:
                other.group.offsets.apply(partition, decode_offset(value), at)
        other.group.loaded(other.now)
        return other


class TestMember:
    """A member that says what it has, and takes what it is given."""

    __test__ = False

    def __init__(self, driver: GroupDriver, name: str, *topics: str, **settings: Any) -> None:
        self.driver, self.name = driver, name
        self.topics = frozenset(topics or ("orders",))
        self.settings = settings
        self.member_id = name
        self.epoch = 0
        self.owned: Partitions = frozenset()
        self.code = Code.NONE

    def join(self, **settings: Any) -> ConsumerHeartbeatResult | None:
        self.epoch, self.owned = 0, frozenset()
        return self.beat(**settings)

    def request(self, **settings: Any) -> ConsumerHeartbeat:
        values: dict[str, Any] = {"owned": self.owned, "topics": self.topics, "rebalance_timeout_ms": 30_000}
        return ConsumerHeartbeat(
            self.member_id, self.epoch, self.name, "/127.0.0.1", **{**values, **self.settings, **settings}
        )

    def beat(self, **settings: Any) -> ConsumerHeartbeatResult | None:
        result = self.driver.beat(self.request(**settings), self.name)
        if result is not None:
            self.take(result)
        return result

    def take(self, result: ConsumerHeartbeatResult) -> None:
        self.code = result.code
        if result.code is Code.NONE:
            assert result.member_id is not None
            self.member_id, self.epoch = result.member_id, result.member_epoch
            if result.assignment is not None:
                self.owned = result.assignment

    def leave(self, epoch: int = -1) -> ConsumerHeartbeatResult | None:
        beat = ConsumerHeartbeat(self.member_id, epoch, instance_id=self.settings.get("instance_id"))
        return self.driver.beat(beat, self.name)

    @property
    def numbers(self) -> list[int]:
        return sorted(each.partition for each in self.owned)


def settle(*members: TestMember) -> None:
    """All send heartbeats until nothing changes any more."""
    for _ in range(10):
        before = [(member.epoch, member.owned) for member in members]
        for member in members:
            member.beat()
        if before == [(member.epoch, member.owned) for member in members]:
            return
    raise AssertionError("they do not come to rest")
