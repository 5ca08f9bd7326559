"""The process that applies is killed again and again, in the middle of its transactions."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog import RecordBatch
from pyreplog.ha.relay import Advance, Applier, ApplierState, PositionFile, discard, refetch_from
from pyreplog.log.commit_log import CommitLog
from pyreplog.stream.mirror_log import MirrorLog
from tests.crash.process import in_background
from tests.ha.streams import SEGMENT_BYTES, config, open_master, stream, take_in

from .lab import Table, fill, paced_pipe, relay_log

ENTRIES, BATCH, KILLS = 3000, 20, 8


class Life:
    """A process that applies a relay log until it is killed, or has applied all. It writes a byte to `pipe` before and
    after each commit."""

    def __init__(
        self, directory: Path, pipe: int, *, exactly_once: bool, workers: int, begins_anew: bool = False
    ) -> None:
        self._directory, self._pipe, self._begins_anew = directory, pipe, begins_anew
        self._exactly_once, self._workers = exactly_once, workers
        self._table = Table(directory / "table")

    def apply(self, batch: RecordBatch, advance: Advance) -> None:
        for _ in self.apply_in_two(batch, advance):
            continue

    def apply_in_two(self, batch: RecordBatch, advance: Advance) -> Generator[None, None, None]:
        database = self._table.connect()
        try:
            if self._workers > 1:
                yield  # SQLite has one writer
            with database:
                self._table.insert(database, batch)
                if self._exactly_once:
                    self._table.positions.store(database.cursor(), advance)
                os.write(self._pipe, b"?")
            os.write(self._pipe, b"!")
            if self._workers == 1:
                yield
        finally:
            database.close()

    @property
    def store(self) -> Any:
        return self._table.positions if self._exactly_once else PositionFile(self._directory / "position")

    def run(self) -> None:
        with relay_log(self._directory / "relay") as relay:
            self._apply_all(relay)

    def receive_and_run(self) -> None:
        """Apply while the master's stream is received, sometimes into a new relay log."""
        path = self._directory / "relay"
        with open_master(self._directory / "master") as master:
            if self._begins_anew:
                discard(path)
            if path.exists():
                relay = MirrorLog(path, config())
            else:
                at = refetch_from(self.store.load(), SEGMENT_BYTES)
                first = next(iter(master.read_positions(at)))[0].entry
                relay = MirrorLog.create(
                    path, config(), uuid=master.uuid, segment_bytes=SEGMENT_BYTES, start=(at, first)
                )
            receiver = threading.Thread(target=self._receive, args=(master, relay))
            receiver.start()
            with relay:
                self._apply_all(relay)
                receiver.join()

    def _receive(self, master: CommitLog, relay: MirrorLog) -> None:
        while relay.received_mark[1] < ENTRIES:
            take_in(relay, stream(master, relay.resume()[0], 8000, 3000))
            relay.show(*relay.received_mark)

    def _apply_all(self, relay: CommitLog) -> None:
        apply = self.apply if self._workers == 1 else self.apply_in_two
        with Applier(relay, apply, self.store, workers=self._workers, batch_entries=BATCH) as applier:
            applier.start(until_entry=ENTRIES)
            assert applier.wait_ended(60) is ApplierState.FINISHED, applier.error


def kill_again_and_again(
    directory: Path, seed: int, *, exactly_once: bool, workers: int, receiving: bool = False
) -> list[int]:
    """Return the rows of the table at the end."""
    rng = Random(f"{seed} {exactly_once} {workers}")
    with relay_log(directory / ("master" if receiving else "relay")) as log:
        fill(log, ENTRIES, keys=ENTRIES, size=200)
    Table(directory / "table")
    for number in range(KILLS):
        reader, writer = paced_pipe()
        life = Life(directory, writer, exactly_once=exactly_once, workers=workers, begins_anew=number % 2 == 1)
        work = life.receive_and_run if receiving else life.run
        with in_background(work, directory / "report") as pid, open(reader, "rb", buffering=0) as pipe:
            os.close(writer)
            for _ in range(rng.randrange(1, 2 * ENTRIES // BATCH // KILLS)):
                assert pipe.read(1), f"life {number} was over too soon"
            os.kill(pid, signal.SIGKILL)
    with open(os.devnull, "wb") as null:
        life = Life(directory, null.fileno(), exactly_once=exactly_once, workers=workers)
        (life.receive_and_run if receiving else life.run)()
    return Table(directory / "table").numbers()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_killed_applier_with_transactions_applies_each_entry_once(tmp_path: Path, seed: int, workers: int) -> None:
    assert kill_again_and_again(tmp_path, seed, exactly_once=True, workers=workers) == list(range(ENTRIES))


def test_a_killed_receiver_and_applier_apply_each_entry_once(tmp_path: Path, seed: int) -> None:
    """The process that receives is killed too, and the relay log is sometimes discarded."""
    report = kill_again_and_again(tmp_path, seed, exactly_once=True, workers=1, receiving=True)
    assert report == list(range(ENTRIES))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_killed_applier_repeats_at_most_its_last_batch(tmp_path: Path, seed: int, workers: int) -> None:
    """No entry is missing, and each kill repeats at most its last batch."""
    report = kill_again_and_again(tmp_path, seed, exactly_once=False, workers=workers)
    expected = repeated = 0
    for number in report:
        assert number <= expected
        repeated += number < expected
        assert expected - number <= BATCH, "more than the last batch was repeated"
        expected = max(expected, number + 1)
    assert expected == ENTRIES
    assert repeated <= KILLS * BATCH
