"""StoredGroups: groups and the history of their offsets, from records of `__consumer_offsets`. No I/O."""

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
    """The history of a committed offset.

    Args:
        time_us: time of the first commit, as far as it is known, microseconds since 1970.
        offset: the committed offset.
    """

    __slots__ = ("_marks",)

    def __init__(self, time_us: int, offset: int) -> None:
        self._marks = [(time_us, offset)]

    def add(self, time_us: int, offset: int, keep_from_us: int) -> None:
        """Add a later commit. The history from `keep_from_us` on is kept."""
        last_us, last = self._marks[-1]
        if offset == last:
            return
        self._marks.append((max(time_us, last_us), offset))  # clocks of brokers may differ
        passed = sum(time <= keep_from_us for time, _ in self._marks)
        if passed > 1:
            del self._marks[: passed - 1]

    @property
    def offset(self) -> int:
        """The committed offset."""
        return self._marks[-1][1]

    @property
    def moved_us(self) -> int:
        """When the offset last changed, or was first committed, microseconds since 1970."""
        return self._marks[-1][0]

    def at(self, time_us: int) -> int | None:
        """Return the committed offset at a time; None: unknown."""
        return next((offset for time, offset in reversed(self._marks) if time <= time_us), None)


class StoredGroup:
    """A stored group.

    Attributes:
        metadata: newest stored generation; None: none is stored, as for consumers outside the group protocol.
        offsets: history of the committed offset of each partition.
    """

    __slots__ = ("metadata", "offsets")

    def __init__(self) -> None:
        self.metadata: GroupMetadataValue | None = None
        self.offsets: dict[TopicPartition, CommitHistory] = {}


class StoredGroups:
    """The groups in a sequence of records. One thread at a time calls it.

    Args:
        window_us: length of the history that is kept, microseconds.

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
        """The groups by name."""

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Add a committed record. Records of one partition must be added in order.

        A record of an unknown kind, or a malformed one, is ignored.
        """
        try:
            decoded = None if key is None else decode_key(key)
            if isinstance(decoded, GroupMetadataKey):
                self._add_group(decoded, None if value is None else decode_group(value))
            elif isinstance(decoded, OffsetCommitKey):
                self._add_offset(decoded, value)
        except InvalidRequestError as error:
            logger.warning("ignored a record of __consumer_offsets: %s", error)

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
