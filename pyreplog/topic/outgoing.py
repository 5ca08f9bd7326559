"""Messages of one call, as they were given: sequences of objects, or columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pyreplog._native.messageencoder import encode_slices
from pyreplog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog._native.parts import _Column
    from pyreplog.topic.dedup import Sequences

    Values = Iterable[ReadableBuffer] | _Column
    Keys = Iterable[ReadableBuffer | None] | _Column
    Times = Iterable[int | None] | ArrayLike

Properties = Sequence[Mapping[str, str | bytes] | None]


class Outgoing(NamedTuple):
    """One column each; None: nothing is in it. Rows: what `encode_slices` takes, but for generators."""

    values: Any
    keys: Any = None
    properties: Any = None
    event_times: Any = None
    deliver_at: Any = None

    @classmethod
    def of(
        cls,
        values: Values,
        keys: Keys | None = None,
        properties: Properties | None = None,
        event_times: Times | None = None,
        deliver_at: Times | None = None,
    ) -> Self:
        """What is wrong with them `encode` will say."""
        return cls(*(_rows(column) for column in (values, keys, properties, event_times, deliver_at)))

    @property
    def messages(self) -> int:
        """How many. InvalidArgumentError: the values are no column."""
        if _is_packed(self.values):
            return max(len(self.values[0]) - 1, 0)
        try:
            return len(self.values)
        except TypeError:
            raise InvalidArgumentError(f"values: expected several, found {type(self.values).__name__}") from None

    @property
    def size(self) -> int:
        """Bytes of the values, about; more is not known before they are encoded."""
        if _is_packed(self.values):
            return memoryview(self.values[1]).nbytes
        size = getattr(self.values, "nbytes", None)
        return sum(len(value) for value in self.values if hasattr(value, "__len__")) if size is None else int(size)

    def cut(self, start: int, stop: int) -> Self:
        """Messages [start, stop)."""
        packed = _is_packed(self.values)
        keys = _cut(self.keys, start, stop, packed and isinstance(self.keys, tuple))
        rest = (_cut(column, start, stop) for column in self[2:])
        return type(self)(_cut(self.values, start, stop, packed), keys, *rest)

    def encode(
        self, producer: bytes, sequences: Sequences | None, *, messages_max: int, bytes_max: int
    ) -> tuple[list[bytes], list[int]]:
        """Entries, and how many messages each has. Errors: as `encode_slices`."""
        first = sequences.start if isinstance(sequences, range) else -1
        return encode_slices(
            self.values,
            self.keys,
            properties=self.properties,
            event_times=self.event_times,
            deliver_at=self.deliver_at,
            sequences=None if isinstance(sequences, range) else sequences,
            producer=producer,
            first_sequence=first,
            messages_max=messages_max,
            bytes_max=bytes_max,
        )


def _is_packed(column: Any) -> bool:
    """(offsets, data)."""
    return type(column) is tuple and len(column) == 2 and not isinstance(column[0], bytes | bytearray | memoryview)


def _rows(column: Any) -> Any:
    """What can be asked for its length, and cut, more than once."""
    if column is None or isinstance(column, list | tuple | str | bytes) or hasattr(column, "__getitem__"):
        return column
    return list(column) if hasattr(column, "__iter__") else column


def _cut(column: Any, start: int, stop: int, packed: bool = False) -> Any:
    if column is None:
        return None
    return (column[0][start : stop + 1], column[1]) if packed else column[start:stop]
