"""GroupsWatch: reads the consumer groups of a cluster from `__consumer_offsets`, and computes their lag."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pyreplog.errors import NoSuchTopicError, ReplogError
from pyreplog.kafka.groups.group_requests import GroupState
from pyreplog.kafka.groups.group_status import GroupPartitionStatus, GroupStatus
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC
from pyreplog.kafka.groups.stored_groups import CommitHistory, StoredGroup, StoredGroups
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_handle import PartitionHandle
from pyreplog.partition.client.partitions_overview import PartitionsOverview
from pyreplog.partition.requests import PartitionDescription, PartitionQuery
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.plurals import counted


class GroupsOverview(NamedTuple):
    """Partitions, brokers and consumer groups at one moment.

    Attributes:
        overview: the partitions and brokers.
        groups: the groups, by name.
        notes: which data are unknown, and why, one line each.
    """

    overview: PartitionsOverview
    groups: tuple[GroupStatus, ...] = ()
    notes: tuple[str, ...] = ()


class GroupsWatch:
    """Takes overviews of a cluster's partitions and groups. One thread at a time calls it.

    Each look reads the offsets that groups committed since the previous look. Rates are those of the last `window_s`
    seconds; since committed offsets are stored with their times, the first look has rates as well.

    Args:
        client: client of the brokers.
        window_s: seconds over which rates are computed.

    Example:
        ```python
        with PartitionClient.connect("zk://zk1:2181/kafka") as client:
            watch = GroupsWatch(client, 300.0)
            for group in watch.sample(time.time_ns() // 1000).groups:
                print(group.group, group.lag, group.lag_s, group.drain_s)
        ```
    """

    def __init__(self, client: PartitionClient, window_s: float) -> None:
        self._client, self._window_us = client, round(window_s * 1e6)
        self._stored = StoredGroups(self._window_us)
        self._read_to: dict[int, int] = {}
        self._topic_id = ""

    def sample(self, now_us: int, topics: Collection[str] | None = None) -> GroupsOverview:
        """Return the partitions, brokers and groups. If a broker does not answer, a note says so instead of an error.

        Args:
            now_us: current time, microseconds since 1970.
            topics: names of topics; None: all. Only groups with an offset in one of them are returned.

        Raises:
            PartitionUnavailableError: the metadata store could not be read in time.
            ClosedError: the client was closed.
        """
        notes = self._read_new_records()
        chosen = {
            name: {at: history for at, history in group.offsets.items() if topics is None or at.topic in topics}
            for name, group in sorted(self._stored.groups.items())
        }
        offsets: dict[TopicPartition, set[int]] = {}
        for histories in chosen.values():
            for at, history in histories.items():
                offsets.setdefault(at, set()).add(history.offset)
        since_us = now_us - self._window_us
        queries = {at: PartitionQuery(since_us, tuple(sorted(wanted))) for at, wanted in offsets.items()}
        overview = self._client.overview(None if topics is None else list(topics), queries=queries)
        rows = []
        for name, histories in chosen.items():
            if topics is None or histories:
                described = [
                    self._row(at, history, queries[at], overview.descriptions.get(at), now_us)
                    for at, history in sorted(histories.items())
                ]
                rows.append(_group(name, self._stored.groups[name], tuple(described)))
        return GroupsOverview(overview, tuple(rows), (*overview.notes, *notes))

    def _row(
        self, at: TopicPartition, history: CommitHistory, query: PartitionQuery,
        description: PartitionDescription | None, now_us: int,
    ) -> GroupPartitionStatus:  # fmt: skip
        seconds, before = self._window_us / 1e6, history.at(now_us - self._window_us)
        rate_out = None if before is None else max(history.offset - before, 0) / seconds
        if description is None or description.offsets.high_watermark < 0:
            return GroupPartitionStatus.of(
                *at, history.offset, now_us=now_us, moved_us=history.moved_us, rate_out=rate_out
            )
        offsets = description.offsets
        times = dict(zip(query.offsets, description.times_us, strict=False))
        rate_in = None if offsets.at_time < 0 else max(offsets.high_watermark - offsets.at_time, 0) / seconds
        oldest_us = times.get(history.offset, -1)
        return GroupPartitionStatus.of(
            *at, history.offset, now_us=now_us, start=offsets.start, end=offsets.high_watermark,
            oldest_us=None if oldest_us < 0 else oldest_us, moved_us=history.moved_us, rate_in=rate_in,
            rate_out=rate_out,
        )  # fmt: skip

    # ---- reading committed offsets --------------------------------------------------------------------------

    def _read_new_records(self) -> list[str]:
        """Read new records of `__consumer_offsets`; return notes about partitions that could not be read."""
        try:
            topic = self._client.topic(OFFSETS_TOPIC, isolation="last_stable")
        except NoSuchTopicError:
            self._reset("")
            return []
        if topic.topic_id != self._topic_id:
            self._reset(topic.topic_id)
        notes, unanswered = list[str](), list[int]()
        for status in self._client.overview([OFFSETS_TOPIC]).partitions:
            if status.last_stable is None or status.start is None:
                unanswered.append(status.partition)
                continue
            start = max(self._read_to.get(status.partition, 0), status.start)
            if start < status.last_stable:
                notes += self._read_partition(topic[status.partition], start, status.last_stable)
        if unanswered:
            unknown = f"{counted(len(unanswered), 'partition')} of {OFFSETS_TOPIC}"
            notes.append(f"no leader of {unknown} answered: changes of their groups are not known")
        return notes

    def _reset(self, topic_id: str) -> None:
        self._topic_id, self._stored = topic_id, StoredGroups(self._window_us)
        self._read_to.clear()

    def _read_partition(self, partition: PartitionHandle, start: int, end: int) -> list[str]:
        try:
            for batch in partition.read(start, end):
                for key, value in zip(batch.keys(), batch.values(), strict=True):
                    self._stored.add(key, value)
                self._read_to[partition.number] = batch.end
        except ReplogError as error:
            return [f"{OFFSETS_TOPIC}-{partition.number}: {error}"]
        self._read_to[partition.number] = max(self._read_to.get(partition.number, 0), end)
        return []


def _group(name: str, stored: StoredGroup, partitions: tuple[GroupPartitionStatus, ...]) -> GroupStatus:
    metadata = stored.metadata
    if metadata is None:
        return GroupStatus(group=name, partitions=partitions)
    state = GroupState.STABLE if metadata.members else GroupState.EMPTY
    return GroupStatus(group=name, state=state.value, members=len(metadata.members), partitions=partitions)
