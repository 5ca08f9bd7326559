"""A group under a test's hand: what it appends is committed when the test says so, or at once."""

from __future__ import annotations

from typing import Any

from pyreplog.kafka.groups.classic_group import ClassicGroup, Effects
from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.kafka.groups.group_effects import AppendRecords, GroupDeleted, Moment, Respond
from pyreplog.kafka.groups.group_records import (
    GroupMetadataKey,
    decode_group,
    decode_key,
    decode_offset,
)
from pyreplog.kafka.groups.group_requests import (
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    OffsetCommitRequest,
    OffsetToCommit,
    SyncGroupRequest,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

WALL_MS = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 1)
Code = ErrorCode


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic.encode()).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def join_request(member_id: str = "", **settings: Any) -> JoinGroupRequest:
    values: dict[str, Any] = {
        "instance_id": None, "client_id": "c", "client_host": "/127.0.0.1", "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 30_000, "protocol_type": "consumer", "protocols": (("range", subscription("orders")),),
    }  # fmt: skip
    return JoinGroupRequest(member_id, **{**values, **settings})


class Driver:
    """It drives the machine. `holds`: appends wait for `commit_one`, `fail_one` and `lose_one`."""

    def __init__(self, group: ClassicGroup | None = None, **settings: Any) -> None:
        self.config = ConsumerGroupConfig(**{"initial_rebalance_delay_ms": 0, **settings})
        self.ids = 0
        self.group = ClassicGroup("g", self.config, self._new_id) if group is None else group
        self.now_ms = 0
        self.results: dict[Any, Any] = {}
        self.answers: list[Any] = []  # requests that were completed, in their order
        self.holds = False
        self.held: list[AppendRecords] = []
        self.log: list[tuple[bytes, bytes | None]] = []
        self.transactional: list[int | None] = []
        self.is_deleted = False

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
                self.answers.append(effect.request)
            elif isinstance(effect, AppendRecords):
                self.held.append(effect)
                if not self.holds:
                    self.commit_one()
            else:
                assert isinstance(effect, GroupDeleted)
                self.is_deleted = True

    def commit_one(self) -> None:
        append = self.held.pop(0)
        at = len(self.log)
        self.log += append.records
        self.transactional += [None if append.producer is None else append.producer[0]] * len(append.records)
        self.perform(self.group.appended(append.token, at, self.now))

    def fail_one(self, code: ErrorCode) -> None:
        self.perform(self.group.append_failed(self.held.pop(0).token, code, self.now))

    def lose_one(self, code: ErrorCode = Code.REQUEST_TIMED_OUT) -> AppendRecords:
        append = self.held.pop(0)
        self.perform(self.group.append_unknown(append.token, code, self.now))
        return append

    def advance(self, ms: int) -> None:
        """In steps, as a broker's clock does."""
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms = min(self.now_ms + 100, until)
            self.perform(self.group.expire(self.now))

    # ---- requests -------------------------------------------------------------------------------------------

    def join(self, name: str, member_id: str = "", **settings: Any) -> JoinGroupResult | None:
        """None: it waits; `results` has the result later."""
        self.results.pop(name, None)
        self.perform(self.group.join(name, join_request(member_id, **settings), self.now))
        result: JoinGroupResult | None = self.results.get(name)
        return result

    def sync(self, name: str, member_id: str, generation: int, assignments: Any = None, **settings: Any) -> Any:
        self.results.pop(name, None)
        request = SyncGroupRequest(member_id, generation, assignments=assignments or {}, **settings)
        self.perform(self.group.sync(name, request, self.now))
        return self.results.get(name)

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> Any:
        self.perform(self.group.heartbeat("heartbeat", member_id, instance_id, generation, self.now))
        return self.results.pop("heartbeat")

    def leave(self, *members: tuple[str, str | None]) -> Any:
        self.perform(self.group.leave("leave", [LeavingMember(*each) for each in members], self.now))
        return self.results.pop("leave")

    def commit(
        self, member_id: str, generation: int, offset: int = 1, name: str = "commit", *, producer: int | None = None,
        partition: TopicPartition = ORDERS, metadata: str = "", instance_id: str | None = None,
    ) -> Any:  # fmt: skip
        self.results.pop(name, None)
        request = OffsetCommitRequest(
            member_id, generation, {partition: OffsetToCommit(offset, 3, metadata)}, instance_id
        )
        self.perform(self.group.commit(name, request, self.now, None if producer is None else (producer, 0)))
        result = self.results.get(name)
        return None if result is None else result[partition]

    def fetch(self, partition: TopicPartition = ORDERS, *, require_stable: bool = False) -> Any:
        fetched = self.group.fetch([partition], require_stable=require_stable).offsets[partition]
        return fetched.code if fetched.code else fetched.offset

    # ---- what tests need often ------------------------------------------------------------------------------

    def stable(self, *names: str, **settings: Any) -> list[str]:
        """Members join and get assignments: each its own name. Returns their ids, the leader's first."""
        ids: list[str] = []
        for name in names:
            instance = settings.get("instances", {}).get(name)
            self.join(name, instance_id=instance)
            for number, member_id in enumerate(ids):
                if names[number] not in self.results:  # it waits already
                    continue
                self.join(names[number], member_id, instance_id=settings.get("instances", {}).get(names[number]))
            ids.append(self.results[name].member_id)
        generation = self.group.generation
        assignments = {member_id: name.encode() for member_id, name in zip(ids, names, strict=True)}
        for name, member_id in zip(names, ids, strict=True):
            instance = settings.get("instances", {}).get(name)
            self.sync(name, member_id, generation, assignments, instance_id=instance)
            assert self.results[name].assignment == name.encode(), self.results[name]
        return ids

    def reload(self, since: int = 0) -> Driver:
        """Another broker, which reads what is in the log from an offset on."""
        other = Driver(**{name: getattr(self.config, name) for name in self.config.__dataclass_fields__})
        other.ids, other.now_ms = self.ids, self.now_ms
        other.log, other.transactional = list(self.log), list(self.transactional)
        for at, ((key, value), producer) in enumerate(zip(self.log, self.transactional, strict=True)):
            decoded = decode_key(key)
            if at < since:
                continue
            if isinstance(decoded, GroupMetadataKey):
                other.group.load_group(None if value is None else decode_group(value), value, at)
                continue
            assert decoded is not None
            partition = TopicPartition(decoded.topic, decoded.partition)
            if value is None:
                other.group.offsets.apply_deletion(partition, at)
            elif producer is None:
                other.group.offsets.apply(partition, decode_offset(value), at)
            else:
                other.group.offsets.apply_pending(producer, partition, decode_offset(value), at)
        other.group.loaded(other.now)
        return other
