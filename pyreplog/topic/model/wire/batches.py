"""Batches of messages on the wire: the records as stored in the ledger, and the selected messages in them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.machines.named_tuples import make_named
from pyreplog._native.topic.messages import MessageBatch, decode_messages
from pyreplog._native.topic.wire_fields import Layout, WireReader
from pyreplog.errors import DamagedMessageError, InvalidMessageError, InvalidRecordsError, ReplogError
from pyreplog.topic.model.compression import RAW_BYTES_MAX, decompress
from pyreplog.topic.model.wire.fields import FLAG_NUMBER, OFFSET, U32
from pyreplog.topic.model.wire.protocol import OK

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BATCH_BYTES = 1 << 20
"""Approximate bytes of records in a delivery, which has at least one record."""

_STATE = Layout(U32, FLAG_NUMBER, FLAG_NUMBER)
_HEAD = struct.Struct(">qqqqqqII")
_COUNTED = np.dtype([("offset", ">i8"), ("count", ">u4")])
_ITEMS_MAX = 1 << 24
_ALL = np.empty((0, 2), np.int64)
"""An empty table of runs: all messages are meant."""


class Delivered(NamedTuple):
    """The reply to a FETCH or READ.

    Attributes:
        generation: generation of the consumer; it has lost the messages of older ones.
        active: whether the consumer is the active one of its subscription.
        batch: the messages; None: there are none now.
        redelivered: how often messages were delivered again, by offset.
        era: see `protocol.Resume`; None: the consumer was not resumed.
    """

    generation: int
    active: bool
    batch: MessageBatch | None
    redelivered: Mapping[int, int]
    era: int | None = None


def size_of(batch: MessageBatch) -> int:
    """Return the stored bytes of the entries that contain the messages of a batch."""
    return batch.stored_bytes if batch.is_whole else int(_sizes(batch).sum())


def _sizes(batch: MessageBatch) -> NDArray[np.int64]:
    """Return the size of each entry; 0 if it contains no message of the batch."""
    used = np.zeros(len(batch.entry_id), np.bool_)
    used[batch.entry_index] = True
    return np.where(used, batch.entry_size, 0)


def cut(batch: MessageBatch, bytes_max: int) -> tuple[MessageBatch, MessageBatch | None]:
    """Split off the first messages of a batch: those of entries with at most `bytes_max` bytes together, or of one
    entry.
    """
    sums = np.cumsum(_sizes(batch))
    first_entry = int(batch.entry_index[0])
    stop_entry = max(int(np.searchsorted(sums, bytes_max, "right")), first_entry + 1)
    stop = int(np.searchsorted(batch.entry_index, stop_entry))
    return batch.slice(0, stop), batch.slice(stop, len(batch)) if stop < len(batch) else None


def encode_delivered(delivered: Delivered) -> list[ReadableBuffer]:
    """Return the buffers of a reply, which keep the batch alive."""
    generation, active, batch, redelivered, era = delivered
    encoded_era = b"" if era is None else OFFSET.encode(era)
    if batch is None or not len(batch):
        return [bytes((OK,)) + _STATE.encode((generation, active, False)) + encoded_era]
    records, runs, first, last = batch.records(), _ALL, batch.first_entry, batch.last_entry
    if not batch.is_whole:
        entries, runs = _used(batch)
        first, last = batch.entry_id[[entries[0], entries[-1]]].tolist()
        records = [records[entry] for entry in entries]
    counts = [(at, redelivered[at]) for at in batch.offset.tolist() if at in redelivered] if redelivered else []
    description = _HEAD.pack(batch.ledger, first, last, *batch.ledger_start, len(runs), len(counts))
    if len(runs):
        description += runs.astype(">u4").tobytes()
    if counts:
        description += np.array(counts, _COUNTED).tobytes()
    head = bytes((OK,)) + _STATE.encode((generation, active, True)) + encoded_era
    return [head + description, *records]


def decode_delivered(reader: WireReader, *, has_era: bool = False) -> Delivered:
    """Decode the bytes behind the status. has_era: the consumer was resumed.

    Raises InvalidMessageError when they are malformed; MissingExtraError if the codec of the messages is not installed.
    """
    generation, active, has_messages = _STATE.decode(reader)
    era = OFFSET.decode(reader) if has_era else None
    if not has_messages:
        reader.end()
        return Delivered(generation, bool(active), None, {}, era)
    ledger, first, last, offset, entries, size, run_count, count = reader.unpack(_HEAD)
    if not (0 <= first <= last and min(offset, entries, size) >= 0 and max(run_count, count) <= _ITEMS_MAX):
        raise reader.refusal("entries of a ledger", f"{first} to {last}, {run_count} runs, {count} counts")
    runs = np.frombuffer(reader.take(8 * run_count), ">u4").reshape(-1, 2).astype(np.int64) if run_count else _ALL
    redelivered = {}
    if count:
        counted = np.frombuffer(reader.take(_COUNTED.itemsize * count), _COUNTED)
        redelivered = dict(zip(counted["offset"].tolist(), counted["count"].tolist(), strict=True))
    reader.check()
    data = bytes(reader.rest())
    try:
        records = parse_entries(data, ledger=ledger, first=first, last=last)
        if records.next_position != len(data):
            raise DamagedMessageError(
                f"messages: expected intact records, found a bad one at byte {records.next_position} of {len(data)}"
            )
        batch = decode_messages(
            records, offset=offset, entries=entries, size=size, decompress=decompress, raw_max=RAW_BYTES_MAX
        )
        if len(batch.entry_id) < len(records):  # the owner reads no more at a time
            raise InvalidMessageError(
                f"messages: expected entries of at most {RAW_BYTES_MAX} bytes together after decompression, found more "
                f"from entry {records[len(batch.entry_id)].entry} on"
            )
    except (InvalidMessageError, ImportError):
        raise
    except InvalidRecordsError as error:  # the owner checked the records before it sent them
        raise DamagedMessageError(f"messages: damaged on their way: {error}") from error
    except (ReplogError, ValueError, OverflowError) as error:
        raise InvalidMessageError(f"messages: {error}") from error
    selected = _selected(batch, runs, reader) if run_count else batch
    return make_named(Delivered, generation, bool(active), selected, redelivered, era)


def _used(batch: MessageBatch) -> tuple[Sequence[int], NDArray[np.int64]]:
    """Return the entries that contain messages of a batch, and the runs (first, count) of these; no runs: all."""
    index = batch.entry_index.astype(np.int64)
    entries = np.unique(index)
    counts = batch.entry_count[entries]
    if len(batch) == int(counts.sum()):
        return entries.tolist(), _ALL
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    numbers = starts[np.searchsorted(entries, index)] + batch.offset - batch.entry_first[index]
    heads = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
    lengths = np.diff(np.append(heads, len(numbers)))
    return entries.tolist(), np.stack((numbers[heads], lengths), axis=1)


def _selected(batch: MessageBatch, runs: NDArray[np.int64], reader: WireReader) -> MessageBatch:
    starts, lengths = runs[:, 0], runs[:, 1]
    ends = starts + lengths
    if (lengths < 1).any() or (starts[1:] < ends[:-1]).any() or ends[-1] > len(batch):
        raise reader.refusal(f"runs that ascend within {len(batch)} messages", str(runs[:10].tolist()))
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return batch.select(np.repeat(starts, lengths) + within)
