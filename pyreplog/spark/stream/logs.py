"""Streams of logs: each is followed by a LogReader, whose tail page tells of every append without a search."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pyreplog.errors import ConfigError, CorruptionError, TrimmedError
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log.reader import LogReader
from pyreplog.spark.stream.offsets import Kind
from pyreplog.spark.stream.options import StreamOptions
from pyreplog.spark.stream.starts import search_around_damage
from pyreplog.spark.stream.tracks import Track, Tracks, TrackSource
from pyreplog.tables.logs import look
from pyreplog.tables.logslices import Part, slices_of
from pyreplog.tables.offsets import FIRST, LAST, Offsets, Partition
from pyreplog.tables.paths import bookie_of, log_directories, offloaded_urls
from pyreplog.tables.ranges import bounded
from pyreplog.tables.slices import NO_PARTITION, Range

logger = logging.getLogger(__name__)


class LogTrack(Track):
    """A log by itself. reader: open while the track is in use."""

    def __init__(self, directory: Path, reader: LogReader) -> None:
        self.what, self.name, self.reader = f"log {directory}", directory.name, reader
        self.directory = directory
        self.start, self.end = reader.start, reader.end

    def position_of(self, offset: int) -> int:
        """Position of the entry's record, or of the first one there is. Errors: CorruptionError: records in front of it
        are damaged; TrimmedError."""
        return self.reader.position_of(min(max(offset, self.reader.start), self.end))

    def bytes_before(self, offset: int) -> int:
        """Position of the entry's record, or of the first one there is; of one behind damage, where that begins: what
        the mode says of it is for the tasks that read it."""
        try:
            return self.position_of(offset)
        except (CorruptionError, TrimmedError) as error:
            low, high = self.reader.start_position, self.reader.end_position
            return min(max(error.position, low), high) if isinstance(error, CorruptionError) else low

    def offset_at(self, place: int) -> int:
        """The last entry whose record begins there or before."""
        low = self.reader.start
        entries = range(low, self.end + 1)
        return max(low + bisect.bisect_right(entries, place, key=self.bytes_before) - 1, low)


class LogTrackSource(TrackSource):
    """Logs that paths and globs lead to."""

    kind: Kind = "logs"

    def __init__(self, options: StreamOptions) -> None:
        if options.read.reads_topics:
            raise ConfigError(f"topics: {options.read.paths[0]} is no cluster; expected path of one, or cluster")
        for url in offloaded_urls(options.read.paths):
            raise ConfigError(f"path: {url} is an offloaded log, which only `read` reads; expected one that is written")
        self._options = options
        self._readers: dict[Path, tuple[bytes, LogReader]] = {}
        self._tracks: dict[Partition, LogTrack] = {}

    def look(self) -> Tracks:
        """Errors: NotALogError; ConfigError, a log of ledgers, or the same log twice; those of opening logs."""
        found: dict[Partition, LogTrack] = {}
        for directory in log_directories(self._options.read.paths):
            uuid, reader = self._reader(directory)
            track, key = LogTrack(directory, reader), (uuid.hex(), NO_PARTITION)
            if key in found:
                raise ConfigError(
                    f"path: {found[key].directory} and {directory} are the same log (replicas, or copies): expected one"
                )
            found[key] = track
        self._tracks = found
        return found

    def _reader(self, directory: Path) -> tuple[bytes, LogReader]:
        """One that is open, unless another log lies there now."""
        uuid = _uuid(directory)
        known = self._readers.get(directory)
        if known is not None:
            if known[0] == uuid:
                return known
            logger.info("%s holds another log than before", directory)
            known[1].close()
        if bookie_of(directory) is not None:
            raise ConfigError(
                f"path: {directory} is a bookie's log, whose entries are those of ledgers; read it with read"
            )
        self._readers[directory] = made = (uuid, LogReader(directory))
        return made

    def begin(self, tracks: Tracks) -> dict[Partition, int]:
        """Errors: ConfigError, TrimmedError, OutOfRangeError: an offset that was asked for is not there;
        CorruptionError: what a time is looked up in is damaged (mode FAILFAST)."""
        options, logs = self._options, self._tracks
        if options.subscription is not None:
            raise ConfigError("subscription: expected with topics or topicsPattern, found a log")
        options.starting_offsets.check_names("startingOffsets", [(log.name, NO_PARTITION) for log in logs.values()])
        if options.starting_time is not None:
            return {key: self._since(key, log, options.starting_time) for key, log in logs.items()}
        return {key: self._first(log) for key, log in logs.items()}

    def _since(self, key: Partition, log: LogTrack, time_us: int) -> int:
        """The first entry appended then or later. Errors: CorruptionError (mode FAILFAST)."""
        try:
            return log.reader.entry_at_time(time_us)
        except CorruptionError as error:
            if self._options.read.mode == "FAILFAST":
                raise
            logger.info("%s: its beginning is looked for around damage: %s", log.what, error)
            return search_around_damage(self, key, (log.start, log.end), time_us, self._options.read)

    def _first(self, log: LogTrack) -> int:
        wanted = self._options.starting_offsets.of((log.name, NO_PARTITION))
        if wanted in (FIRST, LAST):
            return log.start if wanted == FIRST else log.end
        lenient = not self._options.read.fail_on_data_loss
        return bounded(log.what, wanted, LAST, log.start, log.end, lenient=lenient)[0]

    def slices(self, wanted: Iterable[tuple[Partition, Range]]) -> list[Part]:
        """Errors: those of `planning.plan` of logs."""
        found: list[Part] = []
        for key, (low, high) in wanted:
            log = self._tracks[key]
            snapshot = look(log.directory, _within(log, low, high))
            offsets = replace(self._options.read, starting_offsets=Offsets(low), ending_offsets=Offsets(high))
            found += [part for part, _ in slices_of([(snapshot, None)], offsets)]
        return found

    def close(self) -> None:
        """Let go of the readers."""
        for _, reader in self._readers.values():
            reader.close()
        self._readers.clear()


def _within(log: LogTrack, low: int, high: int) -> Range | None:
    """Where the entries lie; None: anywhere, since records there are damaged."""
    try:
        return log.position_of(low), log.position_of(high)
    except (CorruptionError, TrimmedError) as error:
        logger.info("%s: all of it is looked at for entries %d to %d: %s", log.what, low, high, error)
        return None


def _uuid(directory: Path) -> bytes:
    checkpoint = checkpoints.load(directory)
    return look(directory).uuid if checkpoint is None else checkpoint.uuid
