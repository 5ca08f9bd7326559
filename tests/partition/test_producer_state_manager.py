"""Producers and transactions of a log, from snapshots and the log behind them: as if all of it was replayed."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from pyreplog._native.kafka.record_batch import peek_header
from pyreplog.errors import DiskFullError, FormatVersionError, InvalidMessageError
from pyreplog.log.files import RealFiles
from pyreplog.partition.protocol.producers import ProducerBatch, ProducerStates
from pyreplog.partition.protocol.record_batch import TRANSACTIONAL, encode_batch, end_marker
from pyreplog.partition.protocol.transactions import EndedTransaction, LogTransactions, TransactionMarker
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.partition.store.producer_snapshot import decode_snapshot, snapshot_bases, snapshot_path
from pyreplog.partition.store.producer_state_manager import ProducerStateManager
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import History, TermStart
from tests.crash.disk import PowerCutFiles
from tests.crash.operation import Operation, Report, Way, cut_at_every_step, kill_at_every_step
from tests.ha.streams import SEGMENT_BYTES, config, kill

from .partition_logs import ALL, UUID, catch_up, epoch, follow_from, open_replica

PADDING = 3000
PRODUCERS = 5


class Change(NamedTuple):
    """The change that a record batch makes."""

    batch: ProducerBatch | None = None
    is_transactional: bool = False
    marker: TransactionMarker | None = None


def encode(change: Change, padding: int = 0) -> bytes:
    """A batch that makes a change. A marker has no padding."""
    if change.marker is not None:
        return end_marker(change.marker, 0)
    assert change.batch is not None
    number, producer_epoch, first, records = change.batch
    return encode_batch(
        b"r" * (padding + 20), records, attributes=TRANSACTIONAL if change.is_transactional else 0,
        producer_id=number, producer_epoch=producer_epoch, base_sequence=first, timestamp_ms=0,
    )  # fmt: skip


class Appended(NamedTuple):
    """A batch that the log held at some time."""

    first: LogPosition
    end: LogPosition
    change: Change


class Writer:
    """Appends batches of a few producers, and knows all that the log should hold, removed segments included."""

    def __init__(self, log: PartitionLog, rng: Random) -> None:
        self.log, self._rng = log, rng
        self.appended: list[Appended] = []
        self._sequences = dict.fromkeys(range(PRODUCERS), 0)

    def append(self, count: int, manager: ProducerStateManager | None = None) -> None:
        """manager: is told of each batch, as that of a leader."""
        for _ in range(count):
            number, records = self._rng.randrange(PRODUCERS), self._rng.randint(1, 20)
            draw = self._rng.random()
            if draw < 0.15:
                change = Change(marker=TransactionMarker(number, 0, self._rng.randint(0, 3), draw < 0.07))
                records = 1
            else:
                batch = ProducerBatch(number, 0, self._sequences[number], records)
                self._sequences[number] += records
                change = Change(batch, draw < 0.7)
            value = encode(change, self._rng.randint(0, PADDING))
            first = self.log.end_mark
            appended = self.log.append_records([value], [records])
            if manager is not None:
                manager.appended(peek_header(value), change.marker, first, appended.end, 0)
            self.appended.append(Appended(self.log.mark_of(first.entry), appended.end, change))
            if draw > 0.9:
                self.log.append_messages([b"of no producer" * 40])

    def cut(self, end: LogPosition) -> None:
        self.appended = [at for at in self.appended if at.end.position <= end.position]

    def states(self) -> tuple[ProducerStates, LogTransactions]:
        producers, transactions = ProducerStates(), LogTransactions()
        for at in self.appended:
            _note(producers, transactions, at)
        return producers, transactions

    def assert_state(self, manager: ProducerStateManager) -> None:
        assert manager.is_complete
        start, end = self.log.start_mark, self.log.end_mark
        producers, transactions = self.states()
        transactions.trimmed(start)
        assert dict(_without_times(manager.producers)) == dict(_without_times(producers))
        state, expected = manager.transactions.snapshot(), transactions.snapshot()
        assert sorted(state.producers) == sorted(expected.producers)
        assert manager.transactions.aborted_since(start) == transactions.aborted_since(start)
        assert manager.transactions.aborted_between(start, end) == transactions.aborted_between(start, end)
        for high_watermark in (start, end):
            assert manager.transactions.last_stable(high_watermark) == transactions.last_stable(high_watermark)


def _note(producers: ProducerStates, transactions: LogTransactions, at: Appended) -> None:
    batch, is_transactional, marker = at.change
    if batch is not None:
        producers.append(batch, at.first.entry, 0)
        if is_transactional:
            transactions.append(batch.producer_id, batch.epoch, at.first)
    if marker is not None:
        transactions.end(marker, at.end)


def _without_times(producers: ProducerStates) -> list[tuple[int, object]]:
    return [(number, (entry.epoch, entry.batches)) for number, entry in producers.snapshot()]


def test_the_state_is_that_of_a_whole_replay(ram_path: Path, seed: int) -> None:
    """Whatever of the log was cut, removed, or read in a life before."""
    rng, path = Random(seed), ram_path / "a"
    log = open_replica(path)
    writer, manager = Writer(log, rng), ProducerStateManager(log)
    number = 0
    for turn in range(60):
        number += 1
        if log.leading_epoch is None:
            log.lead(epoch(number))
        writer.append(rng.randint(0, 30), rng.choice((None, manager)))
        if rng.random() < 0.8:
            manager.replay()
            writer.assert_state(manager)
        kind = rng.choice(("go on", "lead", "cut", "open", "kill", "trim"))
        if kind == "lead":
            log.lead(epoch(number := number + 1))
        elif kind == "cut":
            log.stop_leading()
            ends = [at.end for at in writer.appended[-40:] if at.end > max(log.high_watermark, log.start_mark)]
            if ends:
                log.truncate_to(rng.choice(ends))
                writer.cut(log.end_mark)
            manager.truncated()
        elif kind in ("open", "kill"):
            (kill if kind == "kill" else PartitionLog.close)(log)
            writer.log = log = open_replica(path)
            manager = ProducerStateManager(log)
        elif kind == "trim" and turn > 10:
            manager.replay()
            log.show_high_watermark(log.end_mark)
            start = manager.trim_to(LogPosition(max(log.end_mark.position - 3 * SEGMENT_BYTES, 0), 0))
            assert start == log.start_mark
            assert all(base >= start.position for base in snapshot_bases(path))
        manager.replay()
        writer.assert_state(manager)
    assert log.start > 0
    log.close()


@pytest.mark.parametrize("damage", ["deleted", "truncated", "flipped", "older", "of another log"])
def test_damaged_snapshots_are_made_again(tmp_path: Path, damage: str, seed: int) -> None:
    rng, path = Random(seed), tmp_path / "a"
    log = open_replica(path)
    log.lead(epoch(1))
    writer, manager = Writer(log, rng), ProducerStateManager(log)
    writer.append(200)
    manager.replay()
    bases = snapshot_bases(path)
    assert bases == list(range(SEGMENT_BYTES, log.end_mark.position, SEGMENT_BYTES)) and len(bases) > 3
    before = {base: snapshot_path(path, base).read_bytes() for base in bases}
    if damage == "older":  # those of a log whose end was cut, and written by another leader
        log.stop_leading()
        log.truncate_to(log.mark_of(writer.appended[30].first.entry))
        writer.cut(log.end_mark)
        manager.truncated()
        log.lead(epoch(2))
        writer.append(170)
        manager.replay()
        bases = snapshot_bases(path)
    log.close()
    for base in rng.sample(bases, rng.randint(1, len(bases))):
        file = snapshot_path(path, base)
        data = bytearray(file.read_bytes())
        if damage == "deleted":
            file.unlink()
        elif damage == "truncated":
            file.write_bytes(data[: rng.randrange(len(data))])
        elif damage == "flipped":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            file.write_bytes(data)
        elif damage == "of another log":
            file.write_bytes(_of_another_log(tmp_path, base))
        elif base in before:
            file.write_bytes(before[base])
    writer.log = log = open_replica(path)
    with log:
        manager = ProducerStateManager(log)
        writer.assert_state(manager)
        assert snapshot_bases(path) == bases
        if damage != "older":
            assert {base: snapshot_path(path, base).read_bytes() for base in bases} == before


def _of_another_log(folder: Path, base: int) -> bytes:
    path = folder / f"other-{base}"
    with PartitionLog.open_or_create(path, config(), uuid=bytes(16)) as log:
        log.lead(epoch(1))
        while log.end_mark.position < base + 5000:
            log.append_records([bytes(4000)], [1])
        ProducerStateManager(log)
        return snapshot_path(path, base).read_bytes()


def test_a_snapshot_in_another_place_is_passed_over(tmp_path: Path, seed: int) -> None:
    log = open_replica(tmp_path / "a")
    with log:
        log.lead(epoch(1))
        writer = Writer(log, Random(seed))
        writer.append(150)
        ProducerStateManager(log)
        first, second, *_ = (snapshot_path(log.path, base) for base in snapshot_bases(log.path))
        second.write_bytes(first.read_bytes())
        writer.assert_state(ProducerStateManager(log))


def test_a_snapshot_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1))
        log.append_records([bytes(4000)] * 40, [1] * 40)
        with monkeypatch.context() as later:
            later.setattr("pyreplog.stream.terms.VERSION", 2)
            ProducerStateManager(log)
        with pytest.raises(FormatVersionError):
            ProducerStateManager(log)


def test_followers_have_the_state_of_their_leader(tmp_path: Path, seed: int) -> None:
    rng, a, b = Random(seed), open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    with a, b:
        a.lead(epoch(1))
        writer, manager = Writer(a, rng), ProducerStateManager(b)
        for _ in range(10):
            writer.append(25)
            catch_up(a, b, rng)
            manager.replay()
            writer.assert_state(manager)
        ProducerStateManager(a)
        assert len(snapshot_bases(b.path)) > 3
        for base in snapshot_bases(
            b.path
        ):  # equal, but for transactions of which only one knows that they are committed
            ours, theirs = (snapshot_path(log.path, base) for log in (a, b))
            mine, other = (decode_snapshot(path, path.read_bytes()) for path in (ours, theirs))
            unreplicated = other.transactions.unreplicated
            assert mine._replace(transactions=mine.transactions._replace(unreplicated=unreplicated)) == other


def test_state_of_trimmed_records_is_adopted_from_a_peer(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica that begins in the middle of its leader's log; one that lost the snapshot at its start."""
    rng, a, b = Random(seed), open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    with a:
        a.lead(epoch(1))
        writer, leader = Writer(a, rng), ProducerStateManager(a)
        writer.append(150)
        a.lead(epoch(2))
        writer.append(50)
        leader.replay()
        assert leader.snapshot_at_start() is None
        a.show_high_watermark(ALL)
        start = leader.trim_to(LogPosition(3 * SEGMENT_BYTES, 0))
        assert start.position == 3 * SEGMENT_BYTES
        data = leader.snapshot_at_start()
        assert data is not None

        follower = ProducerStateManager(b)
        assert follower.is_complete
        follow_from(a, b)
        follower.truncated()
        assert not follower.is_complete and follower.snapshot_at_start() is None
        for wrong in (data[:-1], data[:50] + b"?" + data[51:]):
            with pytest.raises(InvalidMessageError):
                follower.adopt(wrong)
        follower.adopt(data)
        writer.assert_state(follower)
        assert follower.snapshot_at_start() == data
        b.close()
        with open_replica(tmp_path / "b") as b:
            writer.assert_state(ProducerStateManager(b))

        later = snapshot_path(a.path, 4 * SEGMENT_BYTES).read_bytes()
        snapshot_path(a.path, start.position).unlink()
        writer.assert_state(ProducerStateManager(a))  # the later ones have its producers
        for adopted in (data, later):
            for base in snapshot_bases(a.path):
                snapshot_path(a.path, base).unlink()
            leader = ProducerStateManager(a)
            assert not leader.is_complete and leader.find_snapshot(0, a.end_mark.position) is None
            leader.adopt(adopted)
            writer.assert_state(leader)
            writer.assert_state(ProducerStateManager(a))


def test_records_replayed_one_by_one_make_the_snapshots_of_a_whole_replay(tmp_path: Path, seed: int) -> None:
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1))
        writer, manager = Writer(log, Random(seed)), ProducerStateManager(log)
        manager.replay()
        for number in range(1, 151):
            writer.append(1)
            if number % 30 == 0:  # replay the last record of a segment, and then the first one of the next
                log.roll()
                log.lead(epoch(number))
            manager.replay()
            assert manager.replayed == log.end_mark
        writer.assert_state(manager)

        def snapshots() -> dict[int, bytes]:
            return {base: snapshot_path(log.path, base).read_bytes() for base in snapshot_bases(log.path)}

        one_by_one = snapshots()
        for base in one_by_one:
            snapshot_path(log.path, base).unlink()
        writer.assert_state(ProducerStateManager(log))
        assert len(one_by_one) >= 5 and snapshots() == one_by_one


def test_first_snapshot_in_a_range_is_found(tmp_path: Path, seed: int) -> None:
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1))
        writer, manager = Writer(log, Random(seed)), ProducerStateManager(log)
        writer.append(150)
        manager.replay(write=False)
        assert manager.has_unwritten
        found = manager.find_snapshot(SEGMENT_BYTES + 1, log.end_mark.position)
        assert found is not None and found[0] == 2 * SEGMENT_BYTES
        data = manager.read_snapshot(2 * SEGMENT_BYTES)
        assert data == snapshot_path(log.path, 2 * SEGMENT_BYTES).read_bytes() and len(data) == found[1]
        assert manager.find_snapshot(SEGMENT_BYTES + 1, 2 * SEGMENT_BYTES - 1) is None


def test_accept_loss_gives_up_state_that_no_peer_has(tmp_path: Path, seed: int) -> None:
    """Until then no segment is removed. Batches of producers that are in the log are known."""
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1))
        writer, manager = Writer(log, Random(seed)), ProducerStateManager(log)
        writer.append(250)
        manager.replay()
        log.show_high_watermark(ALL)
        start = manager.trim_to(LogPosition(2 * SEGMENT_BYTES, 0))
        for base in snapshot_bases(log.path):
            snapshot_path(log.path, base).unlink()
        manager = ProducerStateManager(log)
        assert not manager.is_complete and not snapshot_bases(log.path)
        assert manager.trim_to(log.end_mark) == start
        manager.accept_loss(0)
        assert manager.is_complete and snapshot_bases(log.path)[0] == start.position
        writer.appended = [at for at in writer.appended if at.first >= start]
        for kept in (manager, ProducerStateManager(log)):
            assert dict(_without_times(kept.producers)) == dict(_without_times(writer.states()[0]))
        assert manager.trim_to(log.end_mark) > start


def test_accepted_loss_survives_a_restart_when_an_epoch_begins_with_the_log(tmp_path: Path) -> None:
    """No record says in which epoch the one before the log's start lay."""
    start = LogPosition(SEGMENT_BYTES, 7)
    with open_replica(tmp_path / "a") as log:
        log.reset(start, History((TermStart(epoch(1), ORIGIN),)))
        log.lead(epoch(2))
        log.append_records([encode(Change(ProducerBatch(1, 0, 5, 3)))], [3])
        manager = ProducerStateManager(log)
        assert not manager.is_complete
        manager.accept_loss(0)
        log.stop_leading()
        manager.truncated()
        assert manager.is_complete
    with open_replica(tmp_path / "a") as log:
        assert log.history.starts == (TermStart(epoch(2), start),)
        manager = ProducerStateManager(log)
        assert manager.is_complete and len(manager.producers) == 1
        log.reset(start, History((TermStart(epoch(3), ORIGIN),)))
        manager.truncated()
        assert not manager.is_complete


def test_segments_without_a_snapshot_are_not_removed(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    class Full(RealFiles):
        is_full = True

        def replace_small(self, path: Path, data: bytes) -> None:
            if self.is_full:
                raise DiskFullError(28, f"{path}: no room")
            super().replace_small(path, data)

    files = Full()
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1))
        writer, manager = Writer(log, Random(seed)), ProducerStateManager(log, files)
        with caplog.at_level(logging.WARNING):
            writer.append(100)
            manager.replay()
        assert "no room" in caplog.text
        writer.assert_state(manager)
        log.show_high_watermark(ALL)
        assert manager.trim_to(log.end_mark) == ORIGIN
        files.is_full = False
        writer.append(60)
        manager.replay()
        log.show_high_watermark(ALL)
        assert manager.trim_to(log.end_mark).position > 0
        writer.assert_state(manager)
        files.is_full = True
    writer.log = open_replica(tmp_path / "a")
    with writer.log as log:
        writer.assert_state(ProducerStateManager(log))


def test_an_aborted_transaction_over_several_segments_is_listed(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1))
        batches = [encode(Change(ProducerBatch(1, 0, number, 1), True), 4000) for number in range(50)]
        log.append_records(batches, [1] * 50)
        log.append_records([encode(Change(marker=TransactionMarker(1, 0, 0, False)))], [1])
        end = log.end_mark
        log.append_records([encode(Change(ProducerBatch(2, 0, 0, 1)), 4000)] * 50, [1] * 50)
        ProducerStateManager(log)
        manager = ProducerStateManager(log)
        log.show_high_watermark(ALL)
        manager.trim_to(LogPosition(2 * SEGMENT_BYTES, 0))
        manager = ProducerStateManager(log)
        expected = EndedTransaction(1, LogPosition(4096 + 72, 0), end, True)
        (aborted,) = manager.transactions.aborted_between(log.start_mark, log.end_mark)
        assert (aborted.producer_id, aborted.first.entry, aborted.end) == (1, expected.first.entry, end)


# ---- crashes ---------------------------------------------------------------------------------------------------


class Producing(Operation):
    """A log grows over segments, is trimmed, cut, and grows again."""

    def prepare(self, home: Path) -> None: ...

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        log = PartitionLog.open_or_create(home / "log", config(), uuid=UUID, files=files)
        try:
            manager = ProducerStateManager(log, files)
            self._grow(log, manager, 45)
            log.stop_leading()
            cut = max(log.high_watermark, log.mark_of(max(log.end_mark.entry - 20, log.start)))
            log.truncate_to(cut)
            manager.truncated()
            self._grow(log, manager, 20)
            log.close()
        except BaseException:
            kill(log)
            raise

    def _grow(self, log: PartitionLog, manager: ProducerStateManager, count: int) -> None:
        """Batches of producers that take turns; a value says which producer, and its offset is the sequence number."""
        log.lead(epoch(log.history.last.number + 1))
        for _ in range(count):
            offset = log.end_mark.entry
            change = Change(ProducerBatch(offset % 3, 0, offset, 1), True)
            if offset % 7 == 6:
                change = Change(marker=TransactionMarker(offset % 3, 0, 0, offset % 2 == 0))
            log.append_records([encode(change, 4000)], [1])
            if offset % 5 == 0:
                manager.replay()
        manager.replay()
        log.sync()
        log.show_high_watermark(log.mark_of(log.end_mark.entry - 12))
        manager.trim_to(log.high_watermark)

    def verify(self, left: Path, reports: list[str]) -> None:
        if not (left / "log" / "checkpoint").exists():
            return
        with open_replica(left / "log") as log:
            manager = ProducerStateManager(log)
            assert manager.is_complete
            producers, transactions = ProducerStates(), LogTransactions()
            for offset in range(log.end_mark.entry):
                number, first = offset % 3, LogPosition(0, offset)
                if offset % 7 == 6:
                    marker = TransactionMarker(number, 0, 0, offset % 2 == 0)
                    transactions.end(marker, LogPosition(0, offset + 1))
                else:
                    producers.append(ProducerBatch(number, 0, offset, 1), offset, 0)
                    transactions.append(number, 0, first)
            assert dict(_without_times(manager.producers)) == dict(_without_times(producers))
            opened = [(at.producer_id, at.first and at.first.entry) for at in manager.transactions.snapshot().producers]
            expected = [(at.producer_id, at.first and at.first.entry) for at in transactions.snapshot().producers]
            assert sorted(opened) == sorted(expected)
            aborted = [at.end.entry for at in manager.transactions.aborted_since(log.start_mark)]
            assert aborted == [at.end.entry for at in transactions.aborted_since(ORIGIN) if at.end.entry > log.start]


WAYS = (Way(0.0, "first", 2), Way(None, "any", 2))


def test_power_cut_at_every_step(ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(Producing(), ram_path, seed, WAYS) > 20


def test_killed_before_the_power_cut(ram_path: Path, seed: int) -> None:
    assert kill_at_every_step(Producing(), ram_path, seed, 6) > 20


class BeginningAnew(Operation):
    """A replica that was empty takes its leader's log from the middle on, with the producers of what came before."""

    def prepare(self, home: Path) -> None:
        leader = open_replica(home / "leader")
        leader.lead(epoch(1))
        Writer(leader, Random(1)).append(120)
        manager = ProducerStateManager(leader)
        leader.sync()
        leader.show_high_watermark(ALL)
        manager.trim_to(LogPosition(2 * SEGMENT_BYTES, 0))
        leader.close()

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        log = PartitionLog.open_or_create(home / "log", config(), uuid=UUID, files=files)
        with open_replica(home / "leader") as leader:
            data = ProducerStateManager(leader).snapshot_at_start()
            assert data is not None
            manager = ProducerStateManager(log, files)
            manager.keep_for_reset(leader.start_mark, data)
            log.reset(leader.start_mark, leader.history)
            report("begun")
            manager.truncated()
            assert manager.is_complete
            catch_up(leader, log)
            log.sync()
            report("copied")
        log.close()

    def verify(self, left: Path, reports: list[str]) -> None:
        if not (left / "log" / "checkpoint").exists():
            assert "begun" not in reports
            return
        with open_replica(left / "log") as log, open_replica(left / "leader") as leader:
            assert "begun" not in reports or log.start == leader.start
            if log.start:  # the records say of which log it is
                catch_up(leader, log)
            manager = ProducerStateManager(log)
            assert manager.is_complete
            if "copied" in reports:
                expected = ProducerStateManager(leader).producers
                assert dict(_without_times(manager.producers)) == dict(_without_times(expected))


def test_power_cut_at_every_step_of_a_log_that_is_begun_anew(ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(BeginningAnew(), ram_path, seed, WAYS) > 10
