"""StoredGroups: groups and their committed offsets, and where these were before, from the records of
`__consumer_offsets`. No I/O."""

from __future__ import annotations

import logging

from pyreplog.errors import InvalidRequestError
from pyreplog.kafka.groups.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    decode_group,
    decode_key,
    decode_offset,
)
from pyreplog.partition.topic_partition import TopicPartition

logger = logging.getLogger(__name__)


class CommitHistory:
    """Where a committed offset is, and was.

    Args:
        time_us: when it was committed first, as far as that is known, microseconds since 1970.
        offset: the offset.
    """

    __slots__ = ("_marks",)

    def __init__(self, time_us: int, offset: int) -> None:
        self._marks = [(time_us, offset)]

    def add(self, time_us: int, offset: int, keep_from_us: int) -> None:
        """Note a later commit. Where the offset was at `keep_from_us`, and since, stays known."""
        last_us, last = self._marks[-1]
        if offset == last:
            return
        self._marks.append((max(time_us, last_us), offset))  # the clocks of two brokers may differ
        passed = sum(time <= keep_from_us for time, _ in self._marks)
        if passed > 1:
            del self._marks[: passed - 1]

    @property
    def offset(self) -> int:
        """Where it is."""
        return self._marks[-1][1]

    @property
    def moved_us(self) -> int:
        """When it last moved, or was first committed."""
        return self._marks[-1][0]

    def at(self, time_us: int) -> int | None:
        """Return where it was at a time; None: not known."""
        return next((offset for time, offset in reversed(self._marks) if time <= time_us), None)


class StoredGroup:
    """A group as it is stored.

    Attributes:
        metadata: its newest generation; None: none is stored, as of consumers outside the group protocol.
        offsets: by partition.
    """

    __slots__ = ("metadata", "offsets")

    def __init__(self) -> None:
        self.metadata: GroupMetadataValue | None = None
        self.offsets: dict[TopicPartition, CommitHistory] = {}


class StoredGroups:
    """The groups of the records that were added. One thread at a time.

    Args:
        window_us: positions are known so far back, microseconds, as far as the records reach.

    Example:
        ```python
        stored = StoredGroups(window_us=300_000_000)
        for batch in client.topic("__consumer_offsets", isolation="last_stable")[3].read():
            for key, value in zip(batch.keys(), batch.values()):
                stored.add(key, value)
        print(stored.groups["billing"].offsets)
        ```
    """

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self.groups: dict[str, StoredGroup] = {}
        """The groups, by name."""

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Add a committed record; those of one partition come in their order. A record of a kind that is not known, or
        that is damaged, is left out."""
        try:
            decoded = None if key is None else decode_key(key)
            if isinstance(decoded, GroupMetadataKey):
                self._add_group(decoded, None if value is None else decode_group(value))
            elif isinstance(decoded, OffsetCommitKey):
                self._add_offset(decoded, value)
        except InvalidRequestError as error:
            logger.warning("a record of __consumer_offsets is left out: %s", error)

    def _add_group(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        if value is not None:
            self.groups.setdefault(key.group, StoredGroup()).metadata = value
        elif key.group in self.groups:
            self.groups[key.group].metadata = None
            self._forget_empty(key.group)

    def _add_offset(self, key: OffsetCommitKey, value: bytes | None) -> None:
        name = TopicPartition(key.topic, key.partition)
        if value is not None:
            committed = decode_offset(value)
            offsets = self.groups.setdefault(key.group, StoredGroup()).offsets
            time_us = committed.commit_timestamp * 1000
            if name in offsets:
                offsets[name].add(time_us, committed.offset, time_us - self._window_us)
            else:
                offsets[name] = CommitHistory(time_us, committed.offset)
        elif key.group in self.groups:
            self.groups[key.group].offsets.pop(name, None)
            self._forget_empty(key.group)

    def _forget_empty(self, name: str) -> None:
        group = self.groups[name]
        if group.metadata is None and not group.offsets:
            del self.groups[name]
