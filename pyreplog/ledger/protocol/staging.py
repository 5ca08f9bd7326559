"""Gathers single entries into batches: entries that are submitted while a batch is on its way form the next one.

So a lone caller never waits for others, and many callers share requests without a delay to tune. The entries wait in a
native `Staging`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog.future import AppendFuture, Outcome, set_expected
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Entry", "columns", "outcomes"]

_HEADER_BYTES = 128  # at least the bytes of an encoded entry without key and value
_PLAIN_KEY_BYTES = 65535
_PLAIN_TIME_US = 1 << 62


class Entry(NamedTuple):
    """An entry to be appended, and the future of its number."""

    value: bytes
    key: bytes | None
    event_time: Time | None
    future: AppendFuture[int]

    @classmethod
    def of(cls, value: ReadableBuffer, key: ReadableBuffer | None, event_time: Time | None, *, size_max: int) -> Self:
        """Make an entry, and check it, so that it cannot fail the other entries of its batch.

        Raises as `encode_entries`.
        """
        future: AppendFuture[int] = AppendFuture()
        if (
            type(value) is bytes
            and (key is None or (type(key) is bytes and len(key) <= _PLAIN_KEY_BYTES))
            and (event_time is None or (type(event_time) is int and abs(event_time) < _PLAIN_TIME_US))
            and len(value) + len(key or b"") + _HEADER_BYTES <= size_max
        ):
            return cls(value, key, event_time, future)
        times = None if event_time is None else [event_time]
        encode_entries([value], [key], times, ledger=0, first=0, lac=-1, time=0, size_max=size_max)
        return cls(bytes(value), None if key is None else bytes(key), event_time, future)


def columns(
    entries: Sequence[Entry],
) -> tuple[list[bytes], list[bytes | None] | None, list[Time | None] | None]:
    """Return values, keys and event times as columns; None for a column without values."""
    keyed = any(entry.key is not None for entry in entries)
    timed = any(entry.event_time is not None for entry in entries)
    return (
        [entry.value for entry in entries],
        [entry.key for entry in entries] if keyed else None,
        [entry.event_time for entry in entries] if timed else None,
    )


def outcomes(entries: Sequence[Entry], ids: AppendFuture[range]) -> list[Outcome]:
    """Return the outcome of each entry of a batch, from the outcome of the batch."""
    error = ids.exception()
    if error is None:
        for entry, number in zip(entries, ids.result(), strict=True):
            set_expected(entry.future, number)
    return [(entry.future, error) for entry in entries]
