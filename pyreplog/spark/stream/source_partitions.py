"""The logs or partitions that a stream follows, each with one ascending offset; and the source that has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from pyreplog.spark.stream.offsets import Kind, Position
from pyreplog.tables.log_slices import Part
from pyreplog.tables.offsets import Partition
from pyreplog.tables.slices import Range

SourcePartitions = Mapping[Partition, "SourcePartition"]
"""By topic and partition; logs by uuid in hex, and -1."""


class SourcePartition(ABC):
    """A log or a partition of a topic at one moment: it has the offsets from `start` to before `end`.

    what: name for messages. token: of the topic's creation. name: of the log's directory. is_open: there may be more
    entries than are known.
    """

    what: str
    token: str = ""
    name: str = ""
    is_open: bool = False
    start: int
    end: int

    def at(self, offset: int) -> Position:
        """Return an offset as a position for the checkpoint."""
        return Position(offset, self.token, self.name)

    @abstractmethod
    def bytes_before(self, offset: int) -> int:
        """Return the approximate number of bytes before an existing offset; it ascends with the offset."""

    @abstractmethod
    def offset_at(self, place: int) -> int:
        """Return an offset with about so many bytes before it, and not more if an index tells exactly."""


class StreamSource(ABC):
    """The source of a stream. For one thread. kind: name of the kind in checkpoints."""

    kind: Kind

    @abstractmethod
    def list_partitions(self) -> SourcePartitions:
        """Return all logs or partitions as they are now."""

    @abstractmethod
    def begin(self, partitions: SourcePartitions) -> dict[Partition, int]:
        """Return the first offset of a new query in each, as its options say."""

    @abstractmethod
    def slices(self, wanted: Iterable[tuple[Partition, Range]]) -> list[Part]:
        """Return the slices of ranges of offsets, in this order. `list_partitions` has returned their partitions."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections."""
