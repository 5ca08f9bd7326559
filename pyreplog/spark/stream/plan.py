"""A stream's plans: from where it stands to what comes next, by what its logs or topics say. Nothing is read.

Where it stands is in Spark's checkpoint and nowhere else: a plan of two offsets has the same rows whenever it is made,
as long as nothing of them is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from zlib import crc32

from pyreplog.errors import CheckpointError, ConfigError, OutOfRangeError, ReplogError, TrimmedError, TruncatedError
from pyreplog.spark.stream.limits import cut, in_turn, shares
from pyreplog.spark.stream.offsets import TASKS_MAX, Position, StreamOffset
from pyreplog.spark.stream.options import StreamOptions
from pyreplog.spark.stream.tracks import Track, Tracks, TrackSource
from pyreplog.tables.logslices import Part
from pyreplog.tables.offsets import Partition
from pyreplog.tables.paths import cluster_of
from pyreplog.tables.planning import task_count
from pyreplog.tables.slices import Range

logger = logging.getLogger(__name__)

_NEW = "begin with a new checkpointLocation"
_LENIENT = "set failOnDataLoss to false to read what there is"


class StreamPlanner:
    """Plans one query, in the driver. For one thread; `close` lets go of files and connections."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._made: TrackSource | None = None
        self._target: dict[Partition, int] | None = None
        self.latest: StreamOffset | None = None
        """The end of everything, as it was seen last."""

    # ---- offsets ------------------------------------------------------------------------------------------------

    def begin(self) -> StreamOffset:
        """Where a new query begins. Errors: those of `TrackSource.look` and `TrackSource.begin`."""
        tracks = self._look()
        offsets = self._feed.begin(tracks)
        return self._offset({key: track.at(offsets[key]) for key, track in tracks.items()})

    def stop_at_what_is_there(self) -> None:
        """What comes later is not read by this query. Errors: those of `TrackSource.look`."""
        self._target = {key: track.end for key, track in self._look().items()}

    def next(self, start: StreamOffset, *, max_rows: int | None = None, max_bytes: int | None = None) -> StreamOffset:
        """The end of the batch that begins at `start`; `start` itself: there is nothing to do.

        What was not there at the start begins with this batch, and is read from the next one on: so that each batch
        says from where to where it goes.

        Errors: CheckpointError; TrimmedError, TruncatedError (failOnDataLoss); those of `TrackSource.look`.
        """
        tracks = self._look()
        known = self._known(start, tracks)
        ahead: dict[Partition, Range] = {}
        for key, position in known.items():
            end = self._end(key, tracks)
            if key in start.positions and start.positions[key] == position and end > position.offset:
                ahead[key] = max(position.offset, tracks[key].start), end
        ends = _limited(tracks, ahead, max_rows, max_bytes)
        found = {key: position._replace(offset=ends.get(key, position.offset)) for key, position in known.items()}
        if found == start.positions:
            return start
        size = sum(tracks[key].bytes_before(end) - tracks[key].bytes_before(ahead[key][0]) for key, end in ends.items())
        read = self._options.read
        return self._offset(found, task_count(size, read.max_partition_bytes, read.min_partitions))

    def _end(self, key: Partition, tracks: Tracks) -> int:
        """Up to where a track may be read; 0: not at all."""
        if key not in tracks:
            return 0
        end = tracks[key].end
        return end if self._target is None else min(end, self._target.get(key, 0))

    def _offset(self, positions: Mapping[Partition, Position], tasks: int = 1) -> StreamOffset:
        return StreamOffset(self._feed.kind, positions, min(tasks, TASKS_MAX))

    def _look(self) -> Tracks:
        tracks = self._feed.look()
        self.latest = self._offset({key: track.at(track.end) for key, track in tracks.items()})
        return tracks

    # ---- batches ------------------------------------------------------------------------------------------------

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[tuple[Part, ...]]:
        """The slices of each task of a batch: it is cut by offsets, the same way whenever it is planned. Errors: as
        `next`; those of `TrackSource.slices`."""
        tracks = self._look()
        wanted: dict[Partition, Range] = {}
        known = self._known(end, tracks)
        for key, position in sorted(end.positions.items()):
            before = start.positions.get(key)
            if before is None or before.token != position.token or before.offset >= position.offset:
                continue  # it begins with this batch
            if known[key].token == position.token and key in tracks:
                wanted[key] = before.offset, position.offset
        there = {key: self._there(tracks[key], *bounds) for key, bounds in wanted.items()}
        tasks = []
        for pieces in cut(wanted, end.tasks):
            left = [(key, (max(low, there[key][0]), min(high, there[key][1]))) for key, (low, high) in pieces]
            tasks.append(tuple(self._feed.slices((key, bounds) for key, bounds in left if bounds[0] < bounds[1])))
        return [task for task in tasks if task]

    def _there(self, track: Track, low: int, high: int) -> Range:
        if low < track.start:
            self._lose(_trimmed(track, low))
        if high > track.end and track.is_open:  # unknown is not no
            raise OutOfRangeError(
                f"{track.what}: messages up to {high} were confirmed when the batch was planned, and the bookies that "
                f"answer now tell of those up to {track.end}: start the query again when the others are back"
            )
        return max(low, track.start), min(high, track.end)

    # ---- what the checkpoint says, and what is there ------------------------------------------------------------

    def _known(self, given: StreamOffset, tracks: Tracks) -> dict[Partition, Position]:
        """Where each track stands: those of an offset, and those that came since, at their beginning."""
        self._check_same(given, tracks)
        found: dict[Partition, Position] = {}
        for key, position in given.positions.items():
            found[key] = position
            if key not in tracks:
                what = f"log {position.name} ({key[0]})" if self._feed.kind == "logs" else f"topic {key[0]}"
                self._lose(CheckpointError(f"{what} of the checkpoint is not there; {_LENIENT}, or {_NEW}"))
            elif position.token != tracks[key].token:
                what = tracks[key].what
                self._lose(CheckpointError(f"{what} was deleted and made anew; {_NEW}, or {_LENIENT}"))
                found[key] = tracks[key].at(tracks[key].start)
            else:
                found[key] = self._checked(position, tracks[key])
        for key, track in tracks.items():
            if key not in found and (self._target is None or key in self._target):
                found[key] = track.at(track.start)
        return found

    def _check_same(self, given: StreamOffset, tracks: Tracks) -> None:
        if given.kind != self._feed.kind:
            raise CheckpointError(f"the checkpoint is of {given.kind}, and {self._feed.kind} are read; {_NEW}")
        if given.positions and not any(key in tracks for key in given.positions):
            names = ", ".join(sorted(position.name or key[0] for key, position in given.positions.items())[:5])
            there = ", ".join(sorted(track.what for track in tracks.values())[:5])
            raise CheckpointError(
                f"the checkpoint is of other {given.kind} ({names}) than those that are read ({there}), be they called "
                f"the same: {_NEW}, or give the query the source that it had"
            )

    def _checked(self, position: Position, track: Track) -> Position:
        """A position of a track that is there; where it can only go back, moved to its end."""
        if position.offset < track.start:
            self._lose(_trimmed(track, position.offset))
        if position.offset > track.end and not track.is_open:
            self._lose(
                TruncatedError(
                    f"{track.what} ends at {track.end}, and what was read up to {position.offset} was cut; {_LENIENT}"
                )
            )
            return track.at(track.end)
        return position

    def _lose(self, error: ReplogError) -> None:
        if self._options.read.fail_on_data_loss:
            raise error
        logger.warning("%s; the query goes on without", error)

    # ---- where tracks come from ---------------------------------------------------------------------------------

    @property
    def _feed(self) -> TrackSource:
        if self._made is None:
            self._made = _feed(self._options)
        return self._made

    def close(self) -> None:
        """Let go of files and connections."""
        if self._made is not None:
            self._made.close()
            self._made = None


def _trimmed(track: Track, offset: int) -> TrimmedError:
    return TrimmedError(f"{track.what}: offset {offset} was removed, it begins at {track.start}; {_LENIENT}")


def _feed(options: StreamOptions) -> TrackSource:
    folder = cluster_of(options.read.paths)
    if folder is None and options.read.cluster is None:
        from pyreplog.spark.stream.logs import LogTrackSource

        return LogTrackSource(options)
    if not options.read.reads_topics:
        raise ConfigError(f"path: {folder} is a cluster: expected topics or topicsPattern, found neither")
    from pyreplog.spark.stream.topics import TopicTrackSource

    return TopicTrackSource(folder, options)


def _limited(
    tracks: Tracks, ahead: Mapping[Partition, Range], max_rows: int | None, max_bytes: int | None
) -> dict[Partition, int]:
    """Where a batch ends in each track, of the offsets that are ahead of it."""
    turn = crc32(b"%d" % sum(low for low, _ in ahead.values()))  # moves on with each batch, and by no fixed step
    if max_rows is not None:
        fit = shares(max_rows, {key: high - low for key, (low, high) in ahead.items()}, turn)
        return {key: low + fit[key] for key, (low, _) in ahead.items()}
    if max_bytes is None:
        return {key: high for key, (_, high) in ahead.items()}
    places = {
        key: (tracks[key].bytes_before(low), tracks[key].bytes_before(high)) for key, (low, high) in ahead.items()
    }
    fit = shares(max_bytes, {key: high - low for key, (low, high) in places.items()})
    ends: dict[Partition, int] = {}
    for key, (low, high) in ahead.items():
        before, behind = places[key]
        ends[key] = high if before + fit[key] >= behind else max(tracks[key].offset_at(before + fit[key]), low)
    _feed_the_others(tracks, ahead, ends, max_bytes, turn)
    return ends


def _feed_the_others(
    tracks: Tracks, ahead: Mapping[Partition, Range], ends: dict[Partition, int], max_bytes: int, turn: int
) -> None:
    """One row to each track whose share is less than a row, which would wait for as long as others have more: as many
    of them as fit in a batch, and the first whatever its size."""
    left = max_bytes
    for key in in_turn([key for key, (low, high) in ahead.items() if ends[key] == low < high], turn):
        low = ahead[key][0]
        size = tracks[key].bytes_before(low + 1) - tracks[key].bytes_before(low)
        if size <= left or left == max_bytes:
            ends[key], left = low + 1, left - size
