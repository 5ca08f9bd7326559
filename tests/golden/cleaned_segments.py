"""Writes tests/golden/cleaned-segments-v1.tar.gz: a partition's log, and its segments as two cleanings leave them.

Run it once for a new version of the format, never again for an old one: old files must stay readable, and replicas of one
partition must agree on them.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
from pathlib import Path

from pyreplog import ManualClock
from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.config import LogConfig
from pyreplog.log.files import RealFiles
from pyreplog.partition.config import CompactionConfig
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.record_batch import end_marker, stamped
from pyreplog.partition.protocol.transactions import EndedTransaction, TransactionMarker
from pyreplog.partition.store.log_cleaner import CleaningBounds, LogCleaner
from pyreplog.partition.store.partition_log import PartitionLog

ARCHIVE = Path(__file__).with_name("cleaned-segments-v1.tar.gz")
UUID = bytes(range(16))
CLOCK_US = 1_750_000_000_000_000
CONFIG = LogConfig(segment_bytes=1 << 16)
COMPACTION = CompactionConfig(min_dirty_ratio=0.0, delete_retention_ms=1000)
PRODUCERS = 3


class Writer:
    """Appends batches that are the same each time."""

    def __init__(self, path: Path) -> None:
        self._clock = ManualClock(CLOCK_US)
        self.log = PartitionLog.open_or_create(path, CONFIG, uuid=UUID, clock=self._clock)
        self.log.lead(LeaderEpoch(1, "a"))
        self.aborted: list[EndedTransaction] = []
        self.last_batches: dict[int, int] = {}

    def append(self, number: int, producer: int = -1, *, transactional: bool = False) -> None:
        first, count = self.log.end_mark.entry, 1 + number % 4
        keys = [b"key %d" % ((number * 5 + at) % 11) for at in range(count)]
        values = [
            None if (number + at) % 9 == 0 else b"value %d " % number + b"x" * (number * 7 % 600) for at in range(count)
        ]
        time_ms = CLOCK_US // 1000 + number
        batch = encode_batch(
            encode_records(values, keys, [time_ms] * count, None), count, base_timestamp=time_ms, max_timestamp=time_ms,
            producer_id=producer, producer_epoch=0 if producer >= 0 else -1,
            base_sequence=number if producer >= 0 else -1, transactional=transactional,
        )  # fmt: skip
        self._put(batch, count)
        if producer >= 0:
            self.last_batches[producer] = first + count - 1

    def transaction(self, number: int, *, is_commit: bool) -> None:
        start = self.log.end_mark
        self.append(number, 50 + number, transactional=True)
        self._put(end_marker(TransactionMarker(50 + number, 0, 1, is_commit), CLOCK_US // 1000), 1)
        if not is_commit:
            self.aborted.append(EndedTransaction(50 + number, start, self.log.end_mark, True))

    def _put(self, batch: bytes, count: int) -> None:
        self._clock.advance(1000)
        self.log.append_records([stamped(batch, self.log.end_mark.entry, 1)], [count])

    def write(self) -> None:
        """Two segments and a part of a third, in which two leaders began."""
        for number in range(160):
            if number % 20 == 7:
                self.transaction(number, is_commit=number % 40 == 7)
            else:
                self.append(number, number % 5 if number % 5 < PRODUCERS else -1)
            if number in (40, 90):
                self.log.stop_leading()
                self.log.lead(LeaderEpoch(number, "b"))
        self.log.show_high_watermark(self.log.end_mark)
        self.log.sync()
        self.log.run_background_tasks()

    def bounds(self) -> CleaningBounds:
        return CleaningBounds(self.log.end_mark, tuple(self.aborted), self.last_batches)


def clean(log: PartitionLog, bounds: CleaningBounds) -> LogCleaner:
    """Twice, so that delete horizons are there, and have passed."""
    cleaner = LogCleaner(log, RealFiles())
    for later_ms in (0, 0, 1001):
        cleaner.clean(bounds, COMPACTION, CLOCK_US + 10_000_000 + later_ms * 1000, 1 << 20)
        if later_ms == 0:
            shutil.copytree(log.path, log.path.with_name("held now"), dirs_exist_ok=True)
    return cleaner


def as_json(bounds: CleaningBounds) -> bytes:
    return json.dumps(
        [bounds.stable, [[at.producer_id, at.first, at.end] for at in bounds.aborted], bounds.last_batches]
    ).encode()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, tarfile.open(ARCHIVE, "w:gz") as archive:
        path = Path(folder) / "before"
        writer = Writer(path)
        writer.write()
        writer.log.close()
        for file in sorted(path.iterdir()):
            if file.name not in ("lock", "tail"):
                archive.add(file, f"before/{file.name}")
        with PartitionLog.open_or_create(path, CONFIG, uuid=UUID) as log:
            log.show_high_watermark(log.end_mark)
            clean(log, writer.bounds())
            for when, directory in (("held", path.with_name("held now")), ("after", path)):
                for file in sorted(directory.glob("*.log"))[:2]:
                    archive.add(file, f"{when}/{file.name}")
        info = tarfile.TarInfo("bounds.json")
        data = as_json(writer.bounds())
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    main()
