"""The high watermark outlives the process and the boot in one file of the broker; it never shows what another log has."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest

from pyreplog.errors import FormatVersionError
from pyreplog.log import names
from pyreplog.partition.store.high_watermarks import FILE_NAME, HighWatermarkFile, StoredHighWatermark
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import History, TermStart
from tests.crash.disk import PowerCutFiles
from tests.crash.operation import Operation, Report, cut_at_every_step, kill_at_every_step
from tests.golden.high_watermarks import STORED
from tests.ha.streams import SEGMENT_BYTES, held, kill, uncommitted

from .partition_logs import ALL, UUID, append, catch_up, epoch, follow_from, open_replica


def reboot(log: PartitionLog) -> PartitionLog:
    """Open a log again after a crash of the machine: no words of the tail page are of this boot."""
    path = log.path
    kill(log)
    (path / names.TAIL).unlink()
    return open_replica(path)


def test_readers_see_after_a_boot_what_was_committed_before(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    logs = {name: open_replica(tmp_path / name) for name in ("a", "b")}
    logs["a"].lead(epoch(1))
    for number in range(40):
        append(logs["a"], rng)
        if number % 9 == 0:
            logs["a"].lead(epoch(2 * number + 2))
        catch_up(logs["a"], logs["b"], rng)
        for log in logs.values():
            log.show_high_watermark(logs["a"].end_mark)
        HighWatermarkFile(tmp_path).store({name: log.stored_high_watermark for name, log in logs.items()})
        append(logs["a"], rng)
        values = held(logs["a"])
        marks = {name: log.high_watermark for name, log in logs.items()}
        logs = {name: reboot(log) for name, log in logs.items()}
        file = HighWatermarkFile(tmp_path)
        for name, log in logs.items():
            assert held(log) == []
            assert log.restore_high_watermark(file.get(name)) == marks[name] == log.high_watermark
            assert held(log) == values
            assert log.restore_high_watermark(None) == marks[name]
        logs["a"].lead(epoch(2 * number + 3))
    for log in logs.values():
        log.close()


def test_an_empty_log_has_nothing_to_store(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as log:
        assert log.stored_high_watermark is None
        log.lead(epoch(1))
        assert log.stored_high_watermark is None
        log.show_high_watermark(ALL)
        assert log.stored_high_watermark == StoredHighWatermark(UUID, TermStart(epoch(1), ORIGIN), log.end_mark)


@pytest.mark.parametrize("in_one_epoch", [False, True])
def test_a_log_that_was_cut_shows_only_what_it_shares_with_the_one_of_the_file(
    tmp_path: Path, in_one_epoch: bool, seed: int
) -> None:
    """An unclean leader took committed records away, and others stand in their place. Of an epoch that is gone the file
    says nothing."""
    rng = Random(seed)
    a, b = open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    with b:
        a.lead(epoch(1))
        for _ in range(10):
            append(a, rng)
        catch_up(a, b, rng)
        point = a.end_mark
        if not in_one_epoch:
            a.lead(epoch(2))
        for _ in range(10):
            append(a, rng)
        a.show_high_watermark(ALL)
        stored = a.stored_high_watermark
        b.lead(epoch(3, "b"))
        for _ in range(30):
            append(b, rng)
        a.stop_leading()
        follow_from(b, a)
        a = reboot(a)
        assert stored is not None and stored.high_watermark < a.end_mark
        assert a.restore_high_watermark(stored) == (point if in_one_epoch else a.start_mark)
        a.reset(LogPosition(SEGMENT_BYTES, 99), History((TermStart(epoch(4), LogPosition(SEGMENT_BYTES - 64, 90)),)))
        a.lead(epoch(5))
        append(a, rng)
        a = reboot(a)
        assert a.restore_high_watermark(stored) == a.start_mark
        a.close()


def test_a_log_that_lost_its_tail_shows_all_it_has(tmp_path: Path, seed: int) -> None:
    """The file was synced, what it speaks of was not."""
    rng, a, b = Random(seed), open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    with a:
        a.lead(epoch(1))
        append(a, rng)
        catch_up(a, b)
        append(a, rng)
        a.show_high_watermark(ALL)
        b = reboot(b)
        assert b.restore_high_watermark(a.stored_high_watermark) == b.end_mark
        assert held(b) == uncommitted(b) != uncommitted(a)
        b.close()


def test_the_high_watermark_of_another_log_is_ignored(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as a:
        a.lead(epoch(1))
        a.append_messages([b"x", b"y"])
        end = a.end_mark
        start = TermStart(epoch(1), ORIGIN)
        foreign = [
            StoredHighWatermark(bytes(16), start, end),
            StoredHighWatermark(UUID, TermStart(epoch(1, "b"), ORIGIN), end),
            StoredHighWatermark(UUID, TermStart(epoch(1), LogPosition(64, 0)), end),
            StoredHighWatermark(UUID, start, LogPosition(end.position - 8, 1)),
            StoredHighWatermark(UUID, start, LogPosition(a.mark_of(1).position, 0)),
        ]
        for stored in foreign:
            assert a.restore_high_watermark(stored) == a.start_mark and held(a) == []
        assert a.restore_high_watermark(StoredHighWatermark(UUID, start, a.mark_of(1))) == a.mark_of(1)
        assert held(a) == [b"x"]


def test_the_high_watermark_of_a_trimmed_log_is_restored(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    log = open_replica(tmp_path / "a")
    log.lead(epoch(1))
    append(log, rng)
    log.show_high_watermark(ALL)
    old = log.stored_high_watermark
    while log.end_mark.position < 3 * SEGMENT_BYTES:
        append(log, rng)
    log.show_high_watermark(ALL)
    new, end = log.stored_high_watermark, log.end_mark
    log.trim_to(LogPosition(2 * SEGMENT_BYTES, 0))
    log = reboot(log)
    assert log.restore_high_watermark(old) == log.start_mark == log.high_watermark
    assert log.restore_high_watermark(new) == end
    log.close()


@pytest.mark.parametrize("left", [None, b"", b"\0" * 100, b"RPHIGHW1"])
def test_a_damaged_file_counts_as_none(tmp_path: Path, left: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    HighWatermarkFile(tmp_path).store(STORED)
    path = tmp_path / FILE_NAME
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    with caplog.at_level(logging.WARNING):
        file = HighWatermarkFile(tmp_path)
    assert file.get("orders-0") is None
    assert (left is not None) == ("learned from the leaders" in caplog.text)
    file.store(STORED)
    assert HighWatermarkFile(tmp_path).get("orders-0") == STORED["orders-0"]


def test_a_file_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("pyreplog.stream.terms.VERSION", 2)
        HighWatermarkFile(tmp_path).store(STORED)
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(FormatVersionError):
        HighWatermarkFile(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    file = HighWatermarkFile(tmp_path)
    file.store({"orders-0": None})
    assert not (tmp_path / FILE_NAME).exists()
    file.store({**STORED, "orders-1": None})
    written = (tmp_path / FILE_NAME).stat().st_ino
    file.store(STORED)
    assert (tmp_path / FILE_NAME).stat().st_ino == written
    file.store({"orders-0": STORED["orders-0"]})
    assert HighWatermarkFile(tmp_path).get("größe-11") is None


class Storing(Operation):
    """Later and later high watermarks."""

    def prepare(self, home: Path) -> None: ...

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        file = HighWatermarkFile(home, files)
        stored = file.get("orders-0")
        first = 0 if stored is None else stored.high_watermark.position
        for position in range(first + 1, first + 4):
            high_watermark = LogPosition(position, 0)
            file.store({"orders-0": STORED["orders-0"]._replace(high_watermark=high_watermark)})
            report(f"{position}")

    def verify(self, left: Path, reports: list[str]) -> None:
        assert not any("damaged" in str(path) for path in left.iterdir())
        stored = HighWatermarkFile(left).get("orders-0")
        told = int(reports[-1]) if reports else 0
        assert (0 if stored is None else stored.high_watermark.position) in (told, told + 1)
        HighWatermarkFile(left).store(STORED)


def test_power_cut_at_every_step(ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(Storing(), ram_path, seed) > 20


def test_killed_before_the_power_cut(ram_path: Path, seed: int) -> None:
    assert kill_at_every_step(Storing(), ram_path, seed) > 8
