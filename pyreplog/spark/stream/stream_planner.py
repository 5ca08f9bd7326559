"""Plans the batches of a stream: from its position to the next one, by the ends of its logs or topics. Reads no
entries.

The position is only in Spark's checkpoint. A plan between two offsets has the same rows whenever it is made, unless
entries were removed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from zlib import crc32

from pyreplog.errors import CheckpointError, ConfigError, OutOfRangeError, ReplogError, TrimmedError, TruncatedError
from pyreplog.spark.stream.limits import cut, in_turn, shares
from pyreplog.spark.stream.offsets import TASKS_MAX, Position, StreamOffset
from pyreplog.spark.stream.options import StreamOptions
from pyreplog.spark.stream.source_partitions import SourcePartition, SourcePartitions, StreamSource
from pyreplog.tables.log_slices import Part
from pyreplog.tables.offsets import Partition
from pyreplog.tables.paths import cluster_of
from pyreplog.tables.planning import task_count
from pyreplog.tables.slices import Range

logger = logging.getLogger(__name__)

_NEW = "begin with a new checkpointLocation"
_LENIENT = "set failOnDataLoss to false to read what is left"


class StreamPlanner:
    """Plans one query, in the driver. For one thread; `close` closes files and connections."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._opened: StreamSource | None = None
        self._target: dict[Partition, int] | None = None
        self.latest: StreamOffset | None = None
        """The ends of all logs or partitions when they were looked at last."""

    # ---- offsets ------------------------------------------------------------------------------------------------

    def begin(self) -> StreamOffset:
        """Return the start of a new query. Raises the errors of `list_partitions` and `begin` of `StreamSource`."""
        partitions = self._list_partitions()
        offsets = self._source.begin(partitions)
        return self._offset({key: partition.at(offsets[key]) for key, partition in partitions.items()})

    def stop_at_current_end(self) -> None:
        """Let the query end where its source ends now. Raises the errors of `StreamSource.list_partitions`."""
        self._target = {key: partition.end for key, partition in self._list_partitions().items()}

    def next(self, start: StreamOffset, *, max_rows: int | None = None, max_bytes: int | None = None) -> StreamOffset:
        """Return the end of the batch that begins at `start`; `start` itself if there is nothing to read.

        A log or partition that is new begins with this batch, and is read from the next one on, so that every batch has
        a start and an end for it. Raises CheckpointError, TrimmedError and TruncatedError (failOnDataLoss), and the
        errors of `StreamSource.list_partitions`.
        """
        partitions = self._list_partitions()
        known = self._known(start, partitions)
        ahead: dict[Partition, Range] = {}
        for key, position in known.items():
            end = self._end(key, partitions)
            if key in start.positions and start.positions[key] == position and end > position.offset:
                ahead[key] = max(position.offset, partitions[key].start), end
        ends = _limited(partitions, ahead, max_rows, max_bytes)
        positions = {key: position._replace(offset=ends.get(key, position.offset)) for key, position in known.items()}
        if positions == start.positions:
            return start
        size = sum(
            partitions[key].bytes_before(end) - partitions[key].bytes_before(ahead[key][0]) for key, end in ends.items()
        )
        read = self._options.read
        return self._offset(positions, task_count(size, read.max_partition_bytes, read.min_partitions))

    def _end(self, key: Partition, partitions: SourcePartitions) -> int:
        """Return the offset up to which a partition may be read; 0: it may not be read."""
        if key not in partitions:
            return 0
        end = partitions[key].end
        return end if self._target is None else min(end, self._target.get(key, 0))

    def _offset(self, positions: Mapping[Partition, Position], tasks: int = 1) -> StreamOffset:
        return StreamOffset(self._source.kind, positions, min(tasks, TASKS_MAX))

    def _list_partitions(self) -> SourcePartitions:
        partitions = self._source.list_partitions()
        self.latest = self._offset({key: partition.at(partition.end) for key, partition in partitions.items()})
        return partitions

    # ---- batches ------------------------------------------------------------------------------------------------

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[tuple[Part, ...]]:
        """Return the slices of each task of a batch. The batch is cut by offsets, in the same way whenever it is
        planned.

        Raises the errors of `next`, and those of `StreamSource.slices`.
        """
        partitions = self._list_partitions()
        wanted: dict[Partition, Range] = {}
        known = self._known(end, partitions)
        for key, position in sorted(end.positions.items()):
            before = start.positions.get(key)
            if before is None or before.token != position.token or before.offset >= position.offset:
                continue  # the partition begins with this batch
            if known[key].token == position.token and key in partitions:
                wanted[key] = before.offset, position.offset
        existing = {key: self._existing(partitions[key], *bounds) for key, bounds in wanted.items()}
        tasks = []
        for pieces in cut(wanted, end.tasks):
            bounded_pieces = [
                (key, (max(low, existing[key][0]), min(high, existing[key][1]))) for key, (low, high) in pieces
            ]
            tasks.append(
                tuple(self._source.slices((key, bounds) for key, bounds in bounded_pieces if bounds[0] < bounds[1]))
            )
        return [task for task in tasks if task]

    def _existing(self, partition: SourcePartition, low: int, high: int) -> Range:
        """Return the part of a range of offsets that exists. Raises OutOfRangeError if it cannot be known."""
        if low < partition.start:
            self._lose(_trimmed(partition, low))
        if high > partition.end and partition.is_open:  # entries may exist of which no bookie tells now
            raise OutOfRangeError(
                f"{partition.what}: messages up to {high} were confirmed when the batch was planned, and the bookies "
                f"that answer now know only those up to {partition.end}: start the query again when the other bookies "
                "are back"
            )
        return max(low, partition.start), min(high, partition.end)

    # ---- comparing the checkpoint with the source ---------------------------------------------------------------

    def _known(self, offset: StreamOffset, partitions: SourcePartitions) -> dict[Partition, Position]:
        """Return the position in each log or partition: those of a checkpoint, and new ones at their start."""
        self._check_same(offset, partitions)
        positions: dict[Partition, Position] = {}
        for key, position in offset.positions.items():
            positions[key] = position
            if key not in partitions:
                place = f"log {position.name} ({key[0]})" if self._source.kind == "logs" else f"topic {key[0]}"
                self._lose(CheckpointError(f"{place} in the checkpoint does not exist; {_LENIENT}, or {_NEW}"))
            elif position.token != partitions[key].token:
                place = partitions[key].what
                self._lose(CheckpointError(f"{place} was deleted and created again; {_NEW}, or {_LENIENT}"))
                positions[key] = partitions[key].at(partitions[key].start)
            else:
                positions[key] = self._checked(position, partitions[key])
        for key, partition in partitions.items():
            if key not in positions and (self._target is None or key in self._target):
                positions[key] = partition.at(partition.start)
        return positions

    def _check_same(self, offset: StreamOffset, partitions: SourcePartitions) -> None:
        if offset.kind != self._source.kind:
            raise CheckpointError(
                f"the checkpoint belongs to a stream of {offset.kind}, and the query reads {self._source.kind}; {_NEW}"
            )
        if offset.positions and not any(key in partitions for key in offset.positions):
            names = ", ".join(sorted(position.name or key[0] for key, position in offset.positions.items())[:5])
            existing = ", ".join(sorted(partition.what for partition in partitions.values())[:5])
            raise CheckpointError(
                f"the checkpoint belongs to other {offset.kind} ({names}) than the query reads ({existing}), even if "
                f"their names are equal: {_NEW}, or use the former source for the query"
            )

    def _checked(self, position: Position, partition: SourcePartition) -> Position:
        """Return a position in an existing log or partition.

        A position after the end of a cut log is moved to that end.
        """
        if position.offset < partition.start:
            self._lose(_trimmed(partition, position.offset))
        if position.offset > partition.end and not partition.is_open:
            self._lose(
                TruncatedError(
                    f"{partition.what} was cut at {partition.end}, and the query has read up to {position.offset}; "
                    f"{_LENIENT}"
                )
            )
            return partition.at(partition.end)
        return position

    def _lose(self, error: ReplogError) -> None:
        if self._options.read.fail_on_data_loss:
            raise error
        logger.warning("%s; the query goes on without these entries", error)

    # ---- the source ---------------------------------------------------------------------------------------------

    @property
    def _source(self) -> StreamSource:
        if self._opened is None:
            self._opened = _open_source(self._options)
        return self._opened

    def close(self) -> None:
        """Close files and connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _trimmed(partition: SourcePartition, offset: int) -> TrimmedError:
    return TrimmedError(
        f"{partition.what}: offset {offset} was removed, the first one is {partition.start}; {_LENIENT}"
    )


def _open_source(options: StreamOptions) -> StreamSource:
    folder = cluster_of(options.read.paths)
    if folder is None and options.read.cluster is None:
        from pyreplog.spark.stream.logs import LogSource

        return LogSource(options)
    if not options.read.reads_topics:
        raise ConfigError(f"path: {folder} is a cluster: expected topics or topicsPattern, found neither")
    from pyreplog.spark.stream.topics import TopicSource

    return TopicSource(folder, options)


def _limited(
    partitions: SourcePartitions, ahead: Mapping[Partition, Range], max_rows: int | None, max_bytes: int | None
) -> dict[Partition, int]:
    """Return the end of a batch in each partition. ahead: offsets that the batch may have."""
    turn = crc32(b"%d" % sum(low for low, _ in ahead.values()))  # changes with each batch, by no fixed step
    if max_rows is not None:
        fit = shares(max_rows, {key: high - low for key, (low, high) in ahead.items()}, turn)
        return {key: low + fit[key] for key, (low, _) in ahead.items()}
    if max_bytes is None:
        return {key: high for key, (_, high) in ahead.items()}
    places = {
        key: (partitions[key].bytes_before(low), partitions[key].bytes_before(high))
        for key, (low, high) in ahead.items()
    }
    fit = shares(max_bytes, {key: high - low for key, (low, high) in places.items()})
    ends: dict[Partition, int] = {}
    for key, (low, high) in ahead.items():
        before, after = places[key]
        ends[key] = high if before + fit[key] >= after else max(partitions[key].offset_at(before + fit[key]), low)
    _serve_small_shares(partitions, ahead, ends, max_bytes, turn)
    return ends


def _serve_small_shares(
    partitions: SourcePartitions,
    ahead: Mapping[Partition, Range],
    ends: dict[Partition, int],
    max_bytes: int,
    turn: int,
) -> None:
    """Give one row to partitions whose share is less than one row, as many as fit in a batch, and at least one.

    Otherwise they would wait as long as other partitions have more.
    """
    bytes_left = max_bytes
    for key in in_turn([key for key, (low, high) in ahead.items() if ends[key] == low < high], turn):
        low = ahead[key][0]
        size = partitions[key].bytes_before(low + 1) - partitions[key].bytes_before(low)
        if size <= bytes_left or bytes_left == max_bytes:
            ends[key], bytes_left = low + 1, bytes_left - size
