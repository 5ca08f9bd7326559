"""Segments that were compacted are read, and are the same today: replicas of brokers of several versions must agree."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from pyreplog._native.kafka.record_batch import peek_header
from pyreplog.log.fsck.check import check
from pyreplog.partition.protocol.transactions import EndedTransaction
from pyreplog.partition.store.log_cleaner import CleaningBounds
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.record_batches.batches import read_batch
from pyreplog.stream.log_position import LogPosition
from tests.golden.cleaned_segments import ARCHIVE, CONFIG, UUID, clean


def test_compaction_leaves_the_same_bytes(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    stable, aborted, last = json.loads((tmp_path / "bounds.json").read_text())
    ended = tuple(EndedTransaction(number, LogPosition(*at), LogPosition(*end), True) for number, at, end in aborted)
    bounds = CleaningBounds(LogPosition(*stable), ended, {int(number): offset for number, offset in last.items()})
    path = tmp_path / "before"
    with PartitionLog.open_or_create(path, CONFIG, uuid=UUID) as log:
        log.show_high_watermark(log.end_mark)
        clean(log, bounds)
    for when, directory in (("held", tmp_path / "held now"), ("after", path)):
        wanted = sorted((tmp_path / when).glob("*.log"))
        assert len(wanted) == 2
        for file in wanted:
            assert (directory / file.name).read_bytes() == file.read_bytes()


def test_compacted_segments_are_read(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "before"
    for file in (tmp_path / "after").glob("*.log"):
        (path / file.name).write_bytes(file.read_bytes())
        (path / file.name).with_suffix(".idx").unlink(missing_ok=True)
    assert check(path).damages == ()
    with PartitionLog.open_or_create(path, CONFIG, uuid=UUID) as log:
        log.show_high_watermark(log.end_mark)
        assert [epoch.number for epoch, _ in log.history.starts] == [1, 40, 90]
        keys, offsets = list[bytes | None](), list[int]()
        for batch in log.read_positions(0):
            for record in batch:
                head = peek_header(record.value)
                assert head is not None
                offsets.append(record.entry)
                if record.position < 2 << 16 and not head.control:
                    keys += read_batch(record.value)[1].keys()
    assert offsets == sorted({*offsets})
    assert 0 < len(keys) <= 11
