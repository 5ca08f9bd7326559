"""Compaction of a partition's log: what stays, where it lies, and what a crash between any two writes leaves."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest

import pyreplog
from pyreplog._native.kafka.logged_batches import NUMBERS, LoggedRows, read_rows
from pyreplog._native.kafka.record_batch import RecordBatchHeader, encode_batch, encode_records, peek_header
from pyreplog._native.kafka.record_set import read_record_set
from pyreplog.checksummed_json import dump_checksummed
from pyreplog.log import names
from pyreplog.log.files import RealFiles
from pyreplog.log.fsck.check import check
from pyreplog.log.reader import LogReader
from pyreplog.partition.config import CompactionConfig
from pyreplog.partition.protocol.record_batch import end_marker, stamped
from pyreplog.partition.protocol.transactions import EndedTransaction, LogTransactions, TransactionMarker
from pyreplog.partition.store.log_cleaner import FORMAT, INCARNATION_FORMAT, VERSION, CleaningBounds, LogCleaner
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.record_batches.batches import read_batch
from pyreplog.record_batches.compression import compress, decompress
from pyreplog.stream.log_position import LogPosition
from tests.crash.disk import Disk, PowerCutFiles
from tests.crash.process import in_process
from tests.ha.streams import SEGMENT_BYTES, config

from .partition_logs import UUID, catch_up, epoch, open_replica

_CONFIG = CompactionConfig(min_dirty_ratio=0.0, delete_retention_ms=1000)
_MAP_BYTES = 1 << 20
_T0 = 1 << 60
Rows = dict[int, tuple[bytes | None, bytes | None]]


class _Topic:
    """A log with batches of some keys, and what readers must see of it. latest: offset and value by key."""

    def __init__(self, path: Path, rng: Random, keys: int = 20) -> None:
        self.path, self.rng = path, rng
        self.log = PartitionLog.open_or_create(path, config(), uuid=UUID)
        self.log.lead(epoch(1))
        self.keys = [b"key %d" % number for number in range(keys)]
        self.rows: Rows = {}
        self.aborted: list[EndedTransaction] = []
        self.last_batches: dict[int, int] = {}

    def append(self, *, producer: int = -1, transactional: bool = False) -> None:
        rng, first = self.rng, self.log.end_mark.entry
        count = rng.choice((1, 1, 2, 5, 20))
        values = [None if rng.random() < 0.1 else rng.randbytes(rng.choice((0, 30, 400))) for _ in range(count)]
        keys = [rng.choice(self.keys) for _ in range(count)]
        codec = rng.choice((0, 0, 1, 4))
        batch = encode_batch(
            compress(codec, encode_records(values, keys, [1000] * count, None)), count, base_timestamp=1000,
            max_timestamp=1000, codec=codec, producer_id=producer, producer_epoch=0 if producer >= 0 else -1,
            base_sequence=0 if producer >= 0 else -1, transactional=transactional,
        )  # fmt: skip
        self.log.append_records([stamped(batch, first, 1)], [count])
        self.rows.update((first + number, (keys[number], values[number])) for number in range(count))
        if producer >= 0:
            self.last_batches[producer] = first + count - 1

    def transaction(self, producer: int, *, is_commit: bool, others: bool = True) -> None:
        """others: among its batches are some of no transaction."""
        start = self.log.end_mark
        for _ in range(self.rng.randint(1, 3)):
            self.append(producer=producer, transactional=True)
            if others:
                self.append()
        offset = self.log.end_mark.entry
        marker = end_marker(TransactionMarker(producer, 0, 1, is_commit), 1000)
        self.log.append_records([stamped(marker, offset, 1)], [1])
        if not is_commit:
            self.aborted.append(EndedTransaction(producer, start, self.log.end_mark, True))

    def fill(self, segments: int) -> None:
        """Append until so many segments are full."""
        while self.log.end_mark.position < segments * SEGMENT_BYTES:
            kind = self.rng.random()
            if kind < 0.1:
                self.transaction(self.rng.choice((5, 6)), is_commit=self.rng.random() < 0.5)
            else:
                self.append(producer=self.rng.choice((-1, 1, 2)))
        self.log.show_high_watermark(self.log.end_mark)
        self.log.sync()
        self.log.run_background_tasks()

    def bounds(self) -> CleaningBounds:
        return CleaningBounds(self.log.end_mark, tuple(self.aborted), self.last_batches)


def _read(log: PartitionLog | LogReader, aborted: list[EndedTransaction]) -> Rows:
    """All that readers of committed data see; every offset is there once, in the log's order."""
    rows: Rows = {}
    expected = log.start
    for batch in log.read_positions(log.start_position):
        for record in batch:
            assert record.entry - record.entry_count + 1 == expected
            expected = record.entry + 1
            value = record.value
            head = peek_header(value)
            assert head is not None
            assert (head.base_offset, head.last_offset_delta + 1) == (
                record.entry - record.entry_count + 1,
                record.entry_count,
            )
            header, columns = read_batch(value)
            is_aborted = head.transactional and any(
                ended.first.entry <= head.base_offset < ended.end.entry and ended.producer_id == head.producer_id
                for ended in aborted
            )
            if head.control or is_aborted:
                continue
            numbers = columns.number.tolist()
            rows.update(
                (header.base_offset + numbers[at], (key, value))
                for at, (key, value) in enumerate(zip(columns.keys(), columns.values(), strict=True))
            )
    assert expected == log.end
    return rows


def _latest(rows: Rows) -> Rows:
    """The last record of each key."""
    last = {key: offset for offset, (key, _) in sorted(rows.items())}
    return {offset: rows[offset] for offset in sorted(last.values())}


def test_the_last_record_of_each_key_stays(tmp_path: Path, seed: int) -> None:
    topic = _Topic(tmp_path / "log", Random(seed))
    with topic.log as log:
        topic.fill(5)
        before, end = _read(log, topic.aborted), log.end_mark
        cleaner = LogCleaner(log, RealFiles())
        assert cleaner.dirty(topic.bounds(), _CONFIG, _T0).is_due
        result = cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES)
        after = _read(log, topic.aborted)
        cleaned = {offset: row for offset, row in before.items() if offset < result.cleaned}
        wanted = {**_latest(cleaned), **{offset: row for offset, row in before.items() if offset >= result.cleaned}}
        assert after == wanted
        assert (log.end_mark, log.start, log.high_watermark) == (end, 0, end)
        assert result.bytes_after < result.bytes_before / 2
        assert result.segments >= 4
        assert _latest(after) == _latest(before)
        cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES)  # markers of what is gone get their horizons
        again = cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES)
        assert again.segments == 0, "a clean log is not written again"
        assert not cleaner.dirty(topic.bounds(), _CONFIG, _T0).is_due
        assert _read(log, topic.aborted) == after
    assert check(tmp_path / "log").damages == ()
    with PartitionLog.open_or_create(tmp_path / "log", config(), uuid=UUID) as log:
        log.show_high_watermark(log.end_mark)
        assert _read(log, topic.aborted) == after
        assert LogCleaner(log, RealFiles()).cleaned == result.cleaned


def test_tombstones_and_markers_go_when_their_time_has_passed(tmp_path: Path, seed: int) -> None:
    topic = _Topic(tmp_path / "log", Random(seed))
    with topic.log as log:
        topic.fill(4)
        cleaner = LogCleaner(log, RealFiles())
        cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES)
        rows, cleaned = _read(log, topic.aborted), cleaner.cleaned
        cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES)
        cleaner.clean(topic.bounds(), _CONFIG, _T0 + 999_000, _MAP_BYTES)
        assert _read(log, topic.aborted) == rows
        kept, controls = set(topic.last_batches.values()), _controls(log)
        held = topic.bounds()._replace(replicated=0)  # another replica may have what they delete
        cleaner.clean(held, _CONFIG, _T0 + 1_001_000, _MAP_BYTES)
        assert _controls(log) == controls
        assert _read(log, topic.aborted) == rows
        cleaner.clean(topic.bounds(), _CONFIG, _T0 + 1_001_000, _MAP_BYTES)
        wanted = {offset: row for offset, row in rows.items() if row[1] is not None or offset >= cleaned}
        assert _read(log, topic.aborted) == wanted
        producers = [
            (head.producer_id, head.base_offset + head.last_offset_delta) for head in _heads(log) if head.control
        ]
        for producer, offset in producers:
            if offset < cleaned:  # its transaction has a record, or the last batch of the producer
                assert any(
                    head.producer_id == producer and not head.control and head.base_offset < offset
                    for head in _heads(log)
                )
        offsets = {head.base_offset + head.last_offset_delta for head in _heads(log) if head.producer_id >= 0}
        assert kept <= offsets, "the last batch of a producer stays, though it be empty"


def _heads(log: PartitionLog) -> list[RecordBatchHeader]:
    heads = [peek_header(record.value) for batch in log.read_positions(log.start_position) for record in batch]
    return [head for head in heads if head is not None]


def _controls(log: PartitionLog) -> list[tuple[int, int]]:
    """Offset and record count of the batches of markers."""
    return [(head.base_offset, head.count) for head in _heads(log) if head.control]


def test_a_record_of_an_aborted_transaction_supersedes_none(tmp_path: Path, seed: int) -> None:
    topic = _Topic(tmp_path / "log", Random(seed), keys=1)
    with topic.log as log:
        topic.append()
        offset = log.end_mark.entry - 1
        topic.transaction(5, is_commit=False, others=False)
        marker = log.end_mark.entry - 1
        topic.keys = [b"another"]
        topic.fill(2)
        result = LogCleaner(log, RealFiles()).clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES)
        assert result.cleaned > marker
        assert _read(log, topic.aborted)[offset] == topic.rows[offset]
        assert [head.count for head in _heads(log) if offset < head.base_offset < marker and head.count] == []


def test_consumers_see_the_offsets_of_a_cleaned_batch(tmp_path: Path, seed: int) -> None:
    topic = _Topic(tmp_path / "log", Random(seed))
    with topic.log as log:
        topic.fill(2)
        LogCleaner(log, RealFiles()).clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES)
        rows = _read(log, topic.aborted)
        values = [record.value for batch in log.read_positions(0) for record in batch]
        aborted = [(ended.producer_id, ended.first.entry) for ended in topic.aborted]
        seen = read_record_set(values, decompress, aborted=aborted, committed_only=True)
        assert dict(zip(seen.offsets.tolist(), zip(seen.keys(), seen.values(), strict=True), strict=True)) == rows
        offsets = set[int]()
        for batch in log.read_positions(0):
            logged, start = None, 0
            while start < len(batch):
                logged = read_rows(batch, start, decompress, verified=True, max_bytes=1 << 30, max_batch_bytes=1 << 30)
                assert logged.error is None and logged.stop > start
                offsets.update(_numbers(logged, "offset"))
                start = logged.stop
        assert {*rows} <= offsets


def _numbers(rows: LoggedRows, name: str) -> list[int]:
    _, _, data = rows.number_column(NUMBERS[name], 0, len(rows))
    numbers: list[int] = np.frombuffer(data, np.int64)[: len(rows)].tolist()
    return numbers


def test_aborted_transactions_are_matched_by_offset_not_by_position() -> None:
    """A record that was moved to the front of its segment lies before an aborted transaction that it follows."""
    transactions = LogTransactions()
    transactions.append(5, 0, LogPosition(1000, 10))
    transactions.end(TransactionMarker(5, 0, 1, False), LogPosition(2000, 20))
    moved, end = LogPosition(500, 20), LogPosition(3000, 40)
    assert transactions.aborted_between(moved, end) == []
    assert len(transactions.aborted_between(LogPosition(500, 19), end)) == 1


def test_nothing_behind_the_last_stable_offset_is_touched(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    topic = _Topic(tmp_path / "log", rng)
    with topic.log as log:
        topic.fill(4)
        stable = log.mark_of(rng.randrange(log.end_mark.entry))
        before = [bytes(record.raw) for batch in log.read_positions(stable.position) for record in batch]
        bounds = topic.bounds()._replace(stable=stable)
        result = LogCleaner(log, RealFiles()).clean(bounds, _CONFIG, _T0, _MAP_BYTES)
        assert result.cleaned <= stable.entry
        assert [bytes(record.raw) for batch in log.read_positions(stable.position) for record in batch] == before


def test_a_reader_of_a_segment_goes_on_in_it(tmp_path: Path, seed: int) -> None:
    topic = _Topic(tmp_path / "log", Random(seed))
    with topic.log as log, pyreplog.open(tmp_path / "log", "r") as other:
        topic.fill(3)
        readers = [log.read_positions(0, batch_bytes=3000), other.read_positions(0, batch_bytes=3000)]
        seen = [[next(reader)] for reader in readers]
        raw = [
            bytes(record.raw) for batch in log.read_positions(0) for record in batch if record.position < SEGMENT_BYTES
        ]
        cleaner = LogCleaner(log, RealFiles())
        cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES)
        for reader, batches in zip(readers, seen, strict=True):
            batches += reader
            found = [bytes(record.raw) for batch in batches for record in batch if record.position < SEGMENT_BYTES]
            assert found == raw
        del seen, readers, batches, reader
        assert log.release_replaced(0)
        with pyreplog.open(tmp_path / "log", "r") as fresh:
            assert _read(log, topic.aborted) == _read(fresh, topic.aborted)


def test_keys_that_do_not_fit_into_the_map_are_cleaned_later(tmp_path: Path, seed: int) -> None:
    topic = _Topic(tmp_path / "log", Random(seed), keys=200)
    with topic.log as log:
        topic.fill(6)
        rows, cleaner = _read(log, topic.aborted), LogCleaner(log, RealFiles())
        ends = [cleaner.clean(topic.bounds(), _CONFIG, _T0, 3000).cleaned for _ in range(40)]
        assert sorted(ends) == ends
        assert ends[0] < ends[-1]
        assert _latest(_read(log, topic.aborted)) == _latest(rows)


def test_a_power_cut_at_every_step_loses_no_latest_value(ram_path: Path, seed: int) -> None:
    """Whatever a cut leaves: all offsets are there, each record that is there is one of before, the latest ones are."""
    rng = Random(seed)
    topic = _Topic(ram_path / "log", rng, keys=4)
    with topic.log as log:
        topic.fill(2)
        rows = _read(log, topic.aborted)
    bounds = topic.bounds()

    def work() -> None:
        disk = Disk(ram_path / "log", ram_path / "unused", rng)
        files, count = PowerCutFiles(disk), itertools.count()
        with PartitionLog.open_or_create(ram_path / "log", config(), uuid=UUID, files=files) as log:
            log.show_high_watermark(log.end_mark)
            disk.at_tick = lambda: disk.leave(ram_path / f"image {next(count)}", rng)
            LogCleaner(log, files).clean(bounds, _CONFIG, _T0, _MAP_BYTES)
            disk.at_tick = None

    assert not in_process(work, ram_path / "report")
    images = sorted(ram_path.glob("image *"))
    assert len(images) > 20
    for image in images:
        with PartitionLog.open_or_create(image, config(), uuid=UUID) as log:
            log.show_high_watermark(log.end_mark)
            left = _read(log, topic.aborted)
            assert set(left.items()) <= set(rows.items())
            assert _latest(left) == _latest(rows)
        assert list(image.glob("fresh-*")) == []
        assert check(image).damages == ()
        shutil.rmtree(image)


def test_damaged_file_of_the_clean_offset_claims_nothing(tmp_path: Path, seed: int) -> None:
    """Deleted, cut anywhere, any bit flipped: then all counts as dirty, which costs time, and brings no record back."""
    topic = _Topic(tmp_path / "log", Random(seed))
    with topic.log as log:
        topic.fill(3)
        cleaned = LogCleaner(log, RealFiles()).clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES).cleaned
        path = log.path / names.CLEANED
        whole = path.read_bytes()
        assert cleaned > 0
        for size in range(len(whole) - 1):
            path.write_bytes(whole[:size])
            assert LogCleaner(log, RealFiles()).cleaned in (0, cleaned)
        for bit in range(8 * len(whole)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            assert LogCleaner(log, RealFiles()).cleaned in (0, cleaned), f"bit {bit}"
        path.unlink()
        assert LogCleaner(log, RealFiles()).cleaned == 0


@pytest.mark.parametrize("damage", ["deleted", "cut", "flipped", "of another log"])
def test_damaged_file_of_the_incarnation_makes_all_dirty(tmp_path: Path, seed: int, damage: str) -> None:
    topic = _Topic(tmp_path / "log", Random(seed))
    with topic.log as log:
        topic.fill(3)
        cleaner = LogCleaner(log, RealFiles())
        cleaned = cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES).cleaned
        assert LogCleaner(log, RealFiles()).cleaned == cleaned > 0
        path = log.path / names.INCARNATION
        whole = path.read_bytes()
        if damage == "deleted":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(whole[: len(whole) // 2])
        elif damage == "flipped":
            path.write_bytes(whole.replace(b'"incarnation": "', b'"incarnation": "0'))
        else:
            content = {"incarnation": "0" * 32}
            path.write_bytes(dump_checksummed(INCARNATION_FORMAT, VERSION, content))
        cleaner = LogCleaner(log, RealFiles())
        assert cleaner.cleaned == 0
        assert cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES).cleaned == cleaned
        assert LogCleaner(log, RealFiles()).cleaned == cleaned
        assert path.read_bytes() != whole


def test_older_file_of_the_clean_offset_claims_nothing_about_records_of_later_epochs(tmp_path: Path, seed: int) -> None:
    """A copy from before a truncation: the records that were appended since were never cleaned."""
    topic = _Topic(tmp_path / "log", Random(seed))
    with topic.log as log:
        topic.fill(4)
        cleaner = LogCleaner(log, RealFiles())
        cleaned = cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES).cleaned
        older = _files_of(log)
        log.stop_leading()
        cut = log.segment_start(2 * SEGMENT_BYTES)
        cleaner.forget_from(cut.entry)
        log.truncate_to(cut)
        log.lead(epoch(2))
        topic.fill(5)
        assert log.end_mark.entry > cleaned > cut.entry
        for name, data in older.items():
            (log.path / name).write_bytes(data)
        cleaner = LogCleaner(log, RealFiles())
        assert cleaner.cleaned == cut.entry, "as far as the epoch reaches, although both files are older"
        newer = cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES).cleaned
        assert LogCleaner(log, RealFiles()).cleaned == newer > cleaned
    with PartitionLog.open_or_create(tmp_path / "other", config(), uuid=UUID) as log:
        log.lead(epoch(3))
        log.append_messages([b"x"] * newer)
        for name, data in older.items():
            (log.path / name).write_bytes(data)
        assert LogCleaner(log, RealFiles()).cleaned == 0, "its epoch is not in the log"


def _files_of(log: PartitionLog) -> dict[str, bytes]:
    """The files of a log that say how far it is compacted."""
    paths = (log.path / name for name in (names.CLEANED, names.INCARNATION))
    return {path.name: path.read_bytes() for path in paths if path.exists()}


def test_older_file_of_the_clean_offset_claims_nothing_about_records_that_came_again(tmp_path: Path, seed: int) -> None:
    """A follower is cut, and fetches the same records of the same epoch again, which its leader has not compacted. Either file
    may be from any earlier moment, and `cleaned` may be lost in between."""
    rng = Random(seed)
    topic = _Topic(tmp_path / "leader", rng, keys=200)
    with topic.log as leader, open_replica(tmp_path / "follower") as log:
        topic.fill(5)
        cleaner, claimed = LogCleaner(log, RealFiles()), 0
        moments = list[dict[str, bytes]]()
        for _ in range(12):
            catch_up(leader, log)
            log.show_high_watermark(log.end_mark)
            log.sync()
            log.run_background_tasks()
            if rng.random() < 0.7:
                cleaner.clean(topic.bounds(), _CONFIG, _T0, rng.choice((1024, _MAP_BYTES)))
            moments.append(_files_of(log))
            if rng.random() < 0.7:
                if rng.random() < 0.3:  # without a cut behind it, an older file would be right
                    (log.path / names.CLEANED).unlink(missing_ok=True)
                    cleaner = LogCleaner(log, RealFiles())
                    assert cleaner.cleaned == 0
                cut = log.segment_start(rng.randrange(1, 5) * SEGMENT_BYTES)
                cleaner.forget_from(cut.entry)
                log.truncate_to(cut)
                moments.append(_files_of(log))
        catch_up(leader, log)
        present = _files_of(log)
        for moment in moments:
            for older in moment.items():
                for name, data in dict([*present.items(), older]).items():
                    (log.path / name).write_bytes(data)
                claims = LogCleaner(log, RealFiles()).cleaned
                claimed += claims > 0
                assert claims <= cleaner.cleaned
        assert claimed or not cleaner.cleaned


def test_older_file_of_the_clean_offset_claims_nothing_after_the_newer_one_was_lost(tmp_path: Path, seed: int) -> None:
    topic = _Topic(tmp_path / "leader", Random(seed))
    with topic.log as leader, open_replica(tmp_path / "follower") as log:
        topic.fill(5)
        catch_up(leader, log)
        log.show_high_watermark(log.end_mark)
        log.sync()
        log.run_background_tasks()
        LogCleaner(log, RealFiles()).clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES)
        older = (log.path / names.CLEANED).read_bytes()
        (log.path / names.CLEANED).unlink()
        cleaner = LogCleaner(log, RealFiles())
        cut = log.segment_start(2 * SEGMENT_BYTES)
        cleaner.forget_from(cut.entry)
        log.truncate_to(cut)
        catch_up(leader, log)
        (log.path / names.CLEANED).write_bytes(older)
        assert LogCleaner(log, RealFiles()).cleaned == 0


def test_files_of_compaction_are_not_strange_to_fsck(tmp_path: Path, seed: int) -> None:
    topic = _Topic(tmp_path / "log", Random(seed))
    with topic.log as log:
        topic.fill(2)
        LogCleaner(log, RealFiles()).clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES)
    assert [*_files_of(log)] == [names.CLEANED, names.INCARNATION]
    report = check(tmp_path / "log")
    assert report.damages == () and not any("not a file of this log" in line for line in report.notes)


def test_file_of_the_clean_offset_of_an_earlier_build_makes_all_dirty(tmp_path: Path, seed: int) -> None:
    """It may be from any earlier moment."""
    topic = _Topic(tmp_path / "log", Random(seed))
    with topic.log as log:
        topic.fill(2)
        content = {"offset": 7, "uuid": log.uuid.hex(), "epoch": [1, "a"]}
        (log.path / names.CLEANED).write_bytes(dump_checksummed(FORMAT, VERSION, content))
        cleaner = LogCleaner(log, RealFiles())
        assert cleaner.cleaned == 0
        cleaned = cleaner.clean(topic.bounds(), _CONFIG, _T0, _MAP_BYTES).cleaned
        assert LogCleaner(log, RealFiles()).cleaned == cleaned > 7
