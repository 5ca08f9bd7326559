"""CleanerThread: compacts the partitions of a broker, the dirtiest one first."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pyreplog.errors import InvalidRecordBatchError, MissingExtraError, ReplogError
from pyreplog.partition.cleaned_segment_fetcher import CleanedSegmentFetcher, SegmentTransport

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyreplog.partition.partition import Partition

logger = logging.getLogger(__name__)


class CleanerThread:
    """Compacts the partitions that are due, the dirtiest one first, in its own thread.

    A partition that cannot be read is skipped until the broker restarts (Kafka: "uncleanable"). Followers copy the
    segments that their leaders have compacted.

    Args:
        partitions: the partitions of the broker, iterated over in each round.
        interval_s: seconds between two rounds.
        map_bytes: memory for the keys of one partition.
        transport: transport to leaders; None: followers keep their segments uncompacted.
    """

    def __init__(
        self, partitions: Iterable[Partition], interval_s: float, map_bytes: int,
        transport: SegmentTransport | None = None,
    ) -> None:  # fmt: skip
        self._partitions, self._interval_s, self._map_bytes = partitions, interval_s, map_bytes
        self._uncleanable: set[str] = set()
        self._stopping = threading.Event()
        self._fetcher = None if transport is None else CleanedSegmentFetcher(transport, self._stopping)
        self._thread = threading.Thread(target=self._run, name="pyreplog-cleaner", daemon=True)
        self.cleanings = 0
        """Number of compactions of partitions."""
        self.bytes_removed = 0
        """Bytes of records that compaction removed."""
        self.segments_copied = 0
        """Number of compacted segments that were copied from leaders."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the partition that is being compacted, and wait until it has ended."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def uncleanable(self) -> frozenset[str]:
        """The names of the partitions that could not be read."""
        return frozenset(self._uncleanable)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            done = set[str]()
            while not self._stopping.is_set() and (partition := self._dirtiest(done)) is not None:
                done.add(str(partition.name))
                self._clean(partition)
            if self._fetcher is not None:
                self._fetcher.begin_round()
            for partition in self._partitions:
                if self._stopping.is_set():
                    break
                self._mirror(partition)

    def _dirtiest(self, done: set[str]) -> Partition | None:
        """Return the dirtiest partition that is due and was not cleaned in this round."""
        best, most = None, -1.0
        for partition in self._partitions:
            if str(partition.name) in done or str(partition.name) in self._uncleanable:
                continue
            try:
                dirty = partition.dirty_segments()
            except (ReplogError, OSError) as error:
                self._note_failure(partition, error)
                continue
            if dirty is not None and dirty.is_due and dirty.ratio > most:
                best, most = partition, dirty.ratio
        return best

    def _clean(self, partition: Partition) -> None:
        try:
            result = partition.clean(self._map_bytes)
        except (ReplogError, OSError) as error:
            self._note_failure(partition, error)
            return
        if result is not None:
            self.cleanings += 1
            self.bytes_removed += result.bytes_before - result.bytes_after
            logger.info("%s: compacted up to offset %d: %s", partition.name, result.cleaned, result)

    def _mirror(self, partition: Partition) -> None:
        """List the compacted segments for followers; as a follower, copy those of the leader."""
        try:
            partition.refresh_cleaned_segments()
            if self._fetcher is not None and (copied := self._fetcher.fetch(partition)):
                self.segments_copied += copied
                logger.info("%s: copied %d compacted segments", partition.name, copied)
        except (ReplogError, OSError) as error:
            logger.info("%s: copying of compacted segments is retried: %s", partition.name, error)

    def _note_failure(self, partition: Partition, error: Exception) -> None:
        if isinstance(error, InvalidRecordBatchError | MissingExtraError):
            self._uncleanable.add(str(partition.name))
            logger.error("%s cannot be compacted before the broker restarts: %s", partition.name, error)
        else:
            logger.warning("%s: compaction is retried: %s", partition.name, error)
