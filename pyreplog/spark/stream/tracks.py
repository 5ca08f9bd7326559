"""What a stream follows: logs, or partitions of topics, each with one ascending offset; and where they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from pyreplog.spark.stream.offsets import Kind, Position
from pyreplog.tables.logslices import Part
from pyreplog.tables.offsets import Partition
from pyreplog.tables.slices import Range

Tracks = Mapping[Partition, "Track"]
"""By topic and partition; of logs, by uuid in hex, and -1."""


class Track(ABC):
    """One of them, as it was found: offsets `start` to before `end` are there.

    what: for messages. token: of a topic's creation. name: of a log's directory. is_open: more may be there than is
    known.
    """

    what: str
    token: str = ""
    name: str = ""
    is_open: bool = False
    start: int
    end: int

    def at(self, offset: int) -> Position:
        """An offset of it, as the checkpoint keeps it."""
        return Position(offset, self.token, self.name)

    @abstractmethod
    def bytes_before(self, offset: int) -> int:
        """About how many bytes lie before an offset that is there; ascends with it."""

    @abstractmethod
    def offset_at(self, place: int) -> int:
        """An offset with about so many bytes before it, and no more where its index tells."""


class TrackSource(ABC):
    """Where the tracks of a stream are looked at. For one thread. kind: as checkpoints call it."""

    kind: Kind

    @abstractmethod
    def look(self) -> Tracks:
        """All there are now."""

    @abstractmethod
    def begin(self, tracks: Tracks) -> dict[Partition, int]:
        """The first offset of a new query in each, as its options say."""

    @abstractmethod
    def slices(self, wanted: Iterable[tuple[Partition, Range]]) -> list[Part]:
        """Slices of offsets of the tracks that were looked at last, in this order."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections."""
