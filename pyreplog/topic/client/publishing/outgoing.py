"""The messages of one call, as the caller passes them: sequences of objects, or columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pyreplog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from pyreplog._native.log.append_arguments import _Column
    from pyreplog.topic.model.times import Times

    Values = Iterable[ReadableBuffer] | _Column
    Keys = Iterable[ReadableBuffer | None] | _Column

Properties = Sequence[Mapping[str, str | bytes] | None]


class MessageColumns(NamedTuple):
    """The columns of a batch; None: the column is empty. Rows: what `encode_slices` takes, except generators."""

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
        """Create columns without checking them; encoding does that."""
        return cls(*(_rows(column) for column in (values, keys, properties, event_times, deliver_at)))

    @property
    def messages(self) -> int:
        """Number of messages. Raises InvalidArgumentError if the values are no column."""
        if _is_packed(self.values):
            return max(len(self.values[0]) - 1, 0)
        try:
            return len(self.values)
        except TypeError:
            raise InvalidArgumentError(f"values: expected several, found {type(self.values).__name__}") from None


def _is_packed(column: Any) -> bool:
    """Return whether a column has the form (offsets, data)."""
    return type(column) is tuple and len(column) == 2 and not isinstance(column[0], bytes | bytearray | memoryview)


def _rows(column: Any) -> Any:
    """Return a column that has a length and can be sliced, and can be read more than once."""
    return list(column) if hasattr(column, "__iter__") and not hasattr(column, "__getitem__") else column
