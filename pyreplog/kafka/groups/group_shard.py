"""GroupShard: the groups of one partition of `__consumer_offsets`, which are loaded from it and stored in it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Protocol, TypeVar

from pyreplog.clock import Clock
from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture, set_result
from pyreplog.kafka.groups.classic_group import ClassicGroup
from pyreplog.kafka.groups.consumer_group import ConsumerGroup
from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.kafka.groups.error_codes import UNKNOWN_OUTCOMES, code_of_append
from pyreplog.kafka.groups.group_effects import AppendRecords, GroupDissolved, GroupEffect, Moment, Respond
from pyreplog.kafka.groups.group_offsets import GroupOffsets
from pyreplog.kafka.groups.group_records import (
    ConsumerGroupKey,
    GroupMetadataKey,
    LoadedBatch,
    decode_group,
    decode_group_batch,
    decode_key,
    decode_offset,
    encode_group_batch,
)
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC, OffsetsLog
from pyreplog.kafka.groups.topic_catalog import NO_TOPIC_ID, TopicCatalog
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import PartitionProduceResponse
from pyreplog.partition.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

_RELOAD_US = 1_000_000  # delay of the next attempt after a failed load
_CHECK_WAIT_US = 2_000_000  # for which a loaded partition waits for the ids of its topics
_CHECK_AGAIN_US = 10_000_000  # delay of the next attempt after a failed check of topics
_SWEPT_AT_ONCE = 200  # groups per step
_REWRITTEN_AT_ONCE = 20
_RECORDS_AT_ONCE = 100
_REWRITE_APPENDS_MAX = 100  # appends in flight above which nothing is rewritten

T = TypeVar("T")
Group = ClassicGroup | ConsumerGroup


class Executor(Protocol):
    """Runs events one after the other, in the order in which they were posted."""

    def post(self, event: Callable[[], object], /) -> None:
        """Run an event, in this call or later."""
        ...


class _Status(Enum):
    """The status of a shard."""

    LOADING = "loading"
    ACTIVE = "active"
    OVER = "over"


@dataclass
class _Append:
    """An append in flight, or a transaction marker. They are applied in the order of the log."""

    group: Group | None
    token: object
    number: int = 0
    size: int = 0
    response: PartitionProduceResponse | None = None
    is_committed: bool = False
    marker: tuple[int, bool] | None = None


@dataclass
class _TopicCheck:
    """A check whether the topics of offsets still exist.

    Attributes:
        recorded: ids of the topics of offsets, by name, from before the look-up.
        ids: future of the ids that these names have.
    """

    recorded: Mapping[str, Collection[bytes]]
    ids: AppendFuture[Mapping[str, bytes]]


class GroupShard:
    """The groups of one partition of `__consumer_offsets`, while this broker leads it in one epoch.

    All work is done in events of one executor; no event blocks. Records are applied when they are committed, in the
    order of the log. An append with an unknown outcome may still be committed: then its records are applied, although
    its request got an error.

    Args:
        partition: number of the partition.
        epoch: number of the leader epoch.
        log: partitions of `__consumer_offsets`.
        clock: source of time.
        config: settings of the coordinator.
        new_member_id: returns a new, unique member id for a client id.
        executor: runs the events.
        topics: the topics of the cluster.
    """

    def __init__(
        self, partition: int, epoch: int, log: OffsetsLog, clock: Clock, config: ConsumerGroupConfig,
        new_member_id: Callable[[str], str], executor: Executor, topics: TopicCatalog,
    ) -> None:  # fmt: skip
        self.partition, self.epoch = partition, epoch
        self._log, self._clock, self._config, self._new_member_id = log, clock, config, new_member_id
        self._executor, self._topics = executor, topics
        self._status = _Status.LOADING
        self._groups: dict[str, Group] = {}
        self._open: dict[int, set[str]] = {}  # groups with offsets of open transactions, by producer id
        self._appends: deque[_Append] = deque()
        self._in_doubt = 0
        self._expiry_heap: list[tuple[int, str]] = []  # heap of (time of the next `expire`, group id)
        self._next_expiry: dict[str, int] = {}  # earliest entry of each group in the heap
        self._batches: Iterator[tuple[int, bytes]] | None = None  # batches left to load
        self._load_until: int | None = None
        self._load_again_us = 0
        self._markers: list[tuple[int, bool]] = []  # markers that arrived while loading
        self._deleted_topics: dict[str, set[bytes]] = {}  # ids of topics that were deleted while loading, by name
        self._check: _TopicCheck | None = None  # the check of topics that is under way
        self._check_sweep: list[str] = []  # groups whose topics are to be checked
        self._check_recorded: dict[str, set[bytes]] = {}  # topics of those before
        self._next_check_us = 0
        self._serve_by_us: int | None = None  # when a loaded partition is served without a check of its topics
        self._sweep: list[str] = []  # groups to check for expired offsets
        self._next_sweep_us = clock.monotonic_us() + config.retention_check_ms * 1000
        self._bytes = 0  # of the partition since the last rewrite
        self._live_bytes = 0
        self._rewrite_before: int | None = None
        self._rewrite_sweep: list[str] = []
        self._rewrite_left = False
        self._rewrite_from_bytes = 0
        self._rewritten_bytes = 0
        self._sent_before = 0  # number of the last append that may be before `_rewrite_before`
        self._sent = self._sent_bytes = 0

    def __repr__(self) -> str:
        return f"<GroupShard {OFFSETS_TOPIC}-{self.partition} epoch {self.epoch} {self._status.value}>"

    @property
    def is_loading(self) -> bool:
        """Whether requests are refused because the groups are not loaded yet."""
        return self._status is _Status.LOADING

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic_us(), self._clock.now_us() // 1000)

    # ---- requests -------------------------------------------------------------------------------------------

    def submit(
        self, failed: Callable[[ErrorCode], T], act: Callable[[AppendFuture[T], Moment], Iterable[GroupEffect]],
        group_id: str | None = None,
    ) -> AppendFuture[T]:  # fmt: skip
        """Run a request in an event.

        Args:
            failed: returns the result for an error code.
            act: returns the effects; its future is the request.
            group_id: name of the group that the request changes.
        """
        future = AppendFuture[T]()

        def serve() -> None:
            if self._status is not _Status.ACTIVE:
                is_loading = self._status is _Status.LOADING
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NOT_COORDINATOR
                set_result(future, failed(code))
                return
            try:
                self._perform(group_id, act(future, self._now()))
            except Exception:
                set_result(future, failed(ErrorCode.UNKNOWN_SERVER_ERROR))
                raise

        self._executor.post(serve)
        return future

    def group(self, group_id: str) -> Group | None:
        """Return a group; None: it does not exist. Only within an event."""
        return self._groups.get(group_id)

    def create_group(self, group_id: str) -> Group:
        """Return a group, and create one of the classic protocol if it does not exist. Only within an event."""
        return self._groups.get(group_id) or self.make_classic_group(group_id)

    def make_classic_group(self, group_id: str) -> ClassicGroup:
        """Create a group of the classic protocol, which takes over the offsets of an earlier group.

        Only within an event.

        The earlier group with this name must have no other records in the log.
        """
        group = ClassicGroup(group_id, self._config, self._new_member_id, self._offsets_of(group_id))
        self._groups[group_id] = group
        return group

    def make_consumer_group(self, group_id: str) -> ConsumerGroup:
        """Create a consumer group, which takes over the offsets of an earlier group. Only within an event."""
        offsets = self._offsets_of(group_id)
        group = ConsumerGroup(group_id, self._config, self._topics, self._new_member_id, offsets)
        self._groups[group_id] = group
        return group

    def _offsets_of(self, group_id: str) -> GroupOffsets | None:
        group = self._groups.get(group_id)
        return None if group is None else group.offsets

    def groups(self) -> list[Group]:
        """Return all groups. Only within an event."""
        return list(self._groups.values())

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        """Note that a transaction marker was committed. Any thread may call it."""

        def note() -> None:
            if self._status is _Status.LOADING:  # the batches being read may end before the marker
                self._markers.append((producer_id, committed))
            elif self._status is _Status.ACTIVE:
                self._appends.append(_Append(None, None, is_committed=True, marker=(producer_id, committed)))
                self._apply()

        self._executor.post(note)

    def topics_deleted(self, topics: Mapping[str, Collection[bytes]]) -> None:
        """Delete the offsets of topics that were deleted, in all groups. Any thread may call it.

        Args:
            topics: see `GroupCoordinator.topics_deleted`.
        """

        def delete() -> None:
            if self._status is _Status.LOADING:
                for name, ids in topics.items():
                    self._deleted_topics.setdefault(name, set()).update(ids)
            elif self._status is _Status.ACTIVE:
                self._delete_topics(topics)

        self._executor.post(delete)

    def _delete_topics(self, topics: Mapping[str, Collection[bytes]]) -> None:
        for group_id, group in list(self._groups.items()):
            self._perform(group_id, group.delete_topics(topics))

    # ---- checks of topics -----------------------------------------------------------------------------------

    def _check_topics(self, now: Moment) -> None:
        """Look for topics that are gone: this broker may have been down, or no coordinator, when they were deleted.

        After a partition was loaded, and then in the interval of expiry.
        """
        if self._check is not None:
            if self._check.ids.done():
                self._finish_check(now)
            return
        if not self._check_sweep:
            if now.us < self._next_check_us:
                return
            self._next_check_us = now.us + self._config.retention_check_ms * 1000
            self._check_sweep, self._check_recorded = list(self._groups), {}
        for _ in range(min(_SWEPT_AT_ONCE, len(self._check_sweep))):
            group = self._groups.get(self._check_sweep.pop())
            if group is not None:
                group.offsets.add_topics(self._check_recorded)
        if not self._check_sweep:
            self._begin_check(self._check_recorded)
            self._check_recorded = {}

    def _begin_check(self, recorded: Mapping[str, Collection[bytes]]) -> None:
        ids = self._topics.look_up(list(recorded)) if recorded else None
        if ids is not None:
            self._check = _TopicCheck(recorded, ids)
            ids.add_done_callback(lambda _: self.expire())

    def _finish_check(self, now: Moment) -> None:
        """Delete the offsets of topics that do not exist any more.

        An id that was recorded before the look-up, and that the name does not have now, never comes back. An offset
        that was committed meanwhile, to a topic that was created again, has another id.
        """
        check, self._check = self._check, None
        assert check is not None
        error = check.ids.exception()
        if error is not None:
            logger.warning(
                "%s-%d: the topics of committed offsets are not known, which is retried: %s", OFFSETS_TOPIC,
                self.partition, error,
            )  # fmt: skip
            self._next_check_us = now.us + _CHECK_AGAIN_US
            return
        gone: dict[str, Collection[bytes]] = {}
        present = check.ids.result()
        for name, recorded in check.recorded.items():
            kept = {present[name], NO_TOPIC_ID} if name in present else set()
            if not kept.issuperset(recorded):
                gone[name] = {*recorded} - kept
        if gone:
            logger.info(
                "%s-%d: topics are gone, and their committed offsets are deleted: %s", OFFSETS_TOPIC, self.partition,
                ", ".join(sorted(gone)),
            )  # fmt: skip
            self._delete_topics(gone)

    def stop(self) -> None:
        """Stop serving, because this broker no longer leads the partition. Any thread may call it."""
        self._executor.post(self._stop)

    def _stop(self) -> None:
        self._status = _Status.OVER
        self._batches = None
        for group in self._groups.values():
            self._respond(group.unload())
        now = self._now()
        for append in self._appends:
            if append.group is not None:
                self._respond(append.group.append_unknown(append.token, ErrorCode.NOT_COORDINATOR, now))
        self._appends.clear()
        self._groups.clear()

    # ---- effects --------------------------------------------------------------------------------------------

    def _respond(self, effects: Iterable[GroupEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Respond):
                set_result(effect.request, effect.result)

    def _perform(self, group_id: str | None, effects: Iterable[GroupEffect]) -> None:
        group = None if group_id is None else self._groups.get(group_id)
        for effect in effects:
            if isinstance(effect, Respond):
                set_result(effect.request, effect.result)
            elif isinstance(effect, AppendRecords):
                assert group is not None
                self._append(group, effect)
            elif group is not None and self._groups.get(group.group_id) is group:
                if isinstance(effect, GroupDissolved) and not group.offsets.is_empty:
                    self.make_classic_group(group.group_id)  # the classic protocol needs no record of the group
                else:
                    del self._groups[group.group_id]
        if group is not None:
            self._schedule(group)

    def _schedule(self, group: Group) -> None:
        next_expiry_us = group.next_expiry_us
        if next_expiry_us is not None and next_expiry_us < self._next_expiry.get(group.group_id, next_expiry_us + 1):
            self._next_expiry[group.group_id] = next_expiry_us
            heappush(self._expiry_heap, (next_expiry_us, group.group_id))

    # ---- appends --------------------------------------------------------------------------------------------

    def _append(self, group: Group, effect: AppendRecords) -> None:
        batch = encode_group_batch(effect.records, self._now().wall_ms, effect.producer)
        self._sent += 1
        self._sent_bytes += len(batch)
        append = _Append(group, effect.token, self._sent, len(batch))
        self._appends.append(append)
        if effect.producer is not None:
            self._open.setdefault(effect.producer[0], set()).add(group.group_id)
        future = self._log.append(self.partition, batch, self.epoch, effect.verification)
        future.add_done_callback(lambda done: self._executor.post(lambda: self._appended(append, done.result())))

    def _appended(self, append: _Append, response: PartitionProduceResponse) -> None:
        """Handle the outcome of an append."""
        group = append.group
        if self._status is not _Status.ACTIVE or group is None:
            return
        append.response = response
        if response.code is ErrorCode.NONE:
            append.is_committed = True
            self._bytes += append.size
        elif response.base_offset >= 0 and response.code in UNKNOWN_OUTCOMES:
            self._in_doubt += 1
            self._bytes += append.size
            self._perform_for(group, group.append_unknown(append.token, code_of_append(response.code), self._now()))
        else:
            self._appends.remove(append)
            self._perform_for(group, group.append_failed(append.token, code_of_append(response.code), self._now()))
        self._apply()

    def _perform_for(self, group: Group, effects: Iterable[GroupEffect]) -> None:
        if self._groups.get(group.group_id) is group:
            self._perform(group.group_id, effects)
        else:
            self._respond(effects)

    def _apply(self) -> None:
        """Apply committed appends in the order of the log. All appends before a committed one are committed as well."""
        if self._in_doubt:
            is_committed = False
            for append in reversed(self._appends):
                is_committed |= append.is_committed and append.marker is None
                append.is_committed |= is_committed and append.response is not None
        while self._appends and self._appends[0].is_committed:
            append = self._appends.popleft()
            if append.marker is not None:
                self._end_transaction(*append.marker)
                continue
            assert append.group is not None and append.response is not None
            if append.response.code is not ErrorCode.NONE:
                self._in_doubt -= 1
            effects = append.group.appended(append.token, append.response.base_offset, self._now())
            self._perform_for(append.group, effects)

    def _end_transaction(self, producer_id: int, committed: bool) -> None:
        for group_id in self._open.pop(producer_id, ()):
            group = self._groups.get(group_id)
            if group is not None:
                group.offsets.end_transaction(producer_id, committed=committed)

    def _resolve(self) -> None:
        """Check whether appends with unknown outcomes have been committed."""
        if not self._in_doubt:
            return
        committed = self._log.committed_range(self.partition, self.epoch)
        if committed is None:
            return
        for append in self._appends:
            response = append.response
            if response is not None and response.end_offset <= committed[1]:
                append.is_committed = True
        self._apply()

    # ---- time-outs ------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Handle time-outs, and load the partition. To be called regularly; any thread may call it."""
        self._executor.post(self._expire)

    def _expire(self) -> None:
        if self._status is _Status.LOADING:
            self._load()
        if self._status is not _Status.ACTIVE:
            return
        now = self._now()
        self._resolve()
        self._check_topics(now)
        while self._expiry_heap and self._expiry_heap[0][0] <= now.us:
            next_expiry_us, group_id = heappop(self._expiry_heap)
            if self._next_expiry.get(group_id) == next_expiry_us:
                del self._next_expiry[group_id]
            group = self._groups.get(group_id)
            if group is not None:
                self._perform(group_id, group.expire(now))
        self._expire_offsets(now)
        self._rewrite()

    def _expire_offsets(self, now: Moment) -> None:
        if not self._sweep and self._next_sweep_us <= now.us:
            self._next_sweep_us = now.us + self._config.retention_check_ms * 1000
            self._sweep = list(self._groups)
        for _ in range(min(_SWEPT_AT_ONCE, len(self._sweep))):
            group_id = self._sweep.pop()
            group = self._groups.get(group_id)
            if group is None:
                continue
            self._perform(group_id, group.expire_offsets(now))
            if group.is_forgettable and self._groups.get(group_id) is group:
                del self._groups[group_id]

    # ---- rewriting ------------------------------------------------------------------------------------------

    def _rewrite(self) -> None:
        """Limit the size of the partition: append live records again, then delete all records before them."""
        if self._rewrite_before is None:
            if self._bytes < max(self._config.rewrite_bytes, 2 * self._live_bytes):
                return
            committed = self._log.committed_range(self.partition, self.epoch)
            if committed is None:
                return
            self._rewrite_before, self._rewrite_from_bytes, self._rewritten_bytes = committed[1], self._bytes, 0
            self._rewrite_sweep, self._rewrite_left, self._sent_before = [], True, self._sent
        first = next((append.number for append in self._appends if append.marker is None), self._sent + 1)
        if first <= self._sent_before or len(self._appends) > _REWRITE_APPENDS_MAX:
            return  # wait: records in flight are not known as live yet
        for _ in range(min(_REWRITTEN_AT_ONCE, len(self._rewrite_sweep))):
            group_id = self._rewrite_sweep.pop()
            group = self._groups.get(group_id)
            if group is not None:
                effects, is_left = group.rewrite(self._rewrite_before, _RECORDS_AT_ONCE)
                self._rewrite_left |= is_left
                sent = self._sent_bytes
                self._perform(group_id, effects)
                self._rewritten_bytes += self._sent_bytes - sent
        if self._rewrite_sweep:
            return
        if self._rewrite_left:
            self._rewrite_sweep, self._rewrite_left = list(self._groups), False
            return
        self._log.delete_records(self.partition, self._rewrite_before)
        self._bytes -= self._rewrite_from_bytes
        self._live_bytes, self._rewrite_before = self._rewritten_bytes, None

    # ---- loading --------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Load the next batches, then look the topics of their offsets up.

        First all records that the log had when this broker became leader must be committed.
        """
        now = self._now()
        if now.us < self._load_again_us:
            return
        try:
            if self._batches is None:
                known = self._log.committed_range(self.partition, self.epoch)
                if known is None:
                    return
                start, high_watermark, end = known
                self._load_until = end if self._load_until is None else self._load_until
                if high_watermark < self._load_until:
                    return
                self._groups.clear()
                self._open.clear()
                self._bytes = 0
                self._batches = self._log.read(self.partition, start, high_watermark)
            size = 0
            for base_offset, data in self._batches:
                batch = decode_group_batch(base_offset, data)
                self._load_batch(batch)
                size += batch.size
                self._bytes += batch.size
                if size >= self._config.load_bytes:
                    return
        except (ReplogError, OSError) as error:
            logger.error("%s-%d was not loaded, and will be retried: %s", OFFSETS_TOPIC, self.partition, error)
            self._batches, self._load_again_us = None, now.us + _RELOAD_US
            return
        if self._serve_by_us is None:
            self._serve_by_us = now.us + _CHECK_WAIT_US
            recorded: dict[str, set[bytes]] = {}
            for group in self._groups.values():
                group.offsets.add_topics(recorded)
            self._next_check_us = now.us + self._config.retention_check_ms * 1000
            self._begin_check(recorded)
        if self._check is None or self._check.ids.done() or now.us >= self._serve_by_us:
            self._loaded(now)

    def _load_batch(self, batch: LoadedBatch) -> None:
        if batch.marker is not None:
            self._end_transaction(batch.producer_id, batch.marker)
            return
        for number, (key, value) in enumerate(batch.records):
            decoded = None if key is None else decode_key(key)
            if decoded is None:
                continue  # a newer kind of record
            at = batch.base_offset + number
            if isinstance(decoded, ConsumerGroupKey):
                self._load_consumer_record(decoded, value, at)
                continue
            if isinstance(decoded, GroupMetadataKey):
                self._load_classic_group(decoded.group, value, at)
                continue
            group = self.create_group(decoded.group)
            partition = TopicPartition(decoded.topic, decoded.partition)
            if value is None:
                group.offsets.apply_deletion(partition, at)
            elif batch.producer_id >= 0:
                group.offsets.apply_pending(batch.producer_id, partition, decode_offset(value), at)
                self._open.setdefault(batch.producer_id, set()).add(decoded.group)
            else:
                group.offsets.apply(partition, decode_offset(value), at)

    def _load_consumer_record(self, key: ConsumerGroupKey, value: bytes | None, at: int) -> None:
        """Apply a record.

        The log has a group of one protocol at a time: records of another protocol follow tombstones.
        """
        group = self._groups.get(key.group)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self.make_consumer_group(key.group)
        group.load_record(key, value, at)

    def _load_classic_group(self, group_id: str, value: bytes | None, at: int) -> None:
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            if value is None and group is not None:
                return
            group = self.make_classic_group(group_id)
        group.load_group(None if value is None else decode_group(value), value, at)

    def _loaded(self, now: Moment) -> None:
        self._batches = None
        for producer_id, committed in self._markers:
            self._end_transaction(producer_id, committed)
        self._markers.clear()
        for group_id, group in list(self._groups.items()):
            group.loaded(now)
            if group.is_forgettable:
                del self._groups[group_id]
            else:
                self._schedule(group)
        self._status = _Status.ACTIVE
        if self._deleted_topics:
            self._delete_topics(self._deleted_topics)
            self._deleted_topics = {}
        if self._check is not None and self._check.ids.done():
            self._finish_check(now)
        logger.info("%s-%d: loaded %d groups", OFFSETS_TOPIC, self.partition, len(self._groups))
