"""Bookies' directories: entries of many ledgers in one log."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyreplog
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.errors import ConfigError, NotALogError
from pyreplog.tables.planning import plan
from tests import ledgers
from tests.spark.reading import bytes_planned, column, options_of, read_slices, read_table

LEDGERS, ENTRIES = 5, 400


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Ledgers 0 to 3 in turns, with controls between them; then ledger 4 alone."""
    with ledgers.open_log(tmp_path / "log") as log:
        for entry in range(ENTRIES):
            for ledger in range(LEDGERS - 1):
                log.append(ledgers.records_of(ledger, entry))
            log.append(ledgers.control_of(1, 2, b""))
        for entry in range(ENTRIES):
            log.append(ledgers.records_of(4, entry))
    return tmp_path / "log"


def test_each_entry_of_a_bookie_log_is_read_once(log: Path) -> None:
    rows = read_table(log, columns="ledgerId,entryId,offset,value,topic,partition", minPartitions=4).to_pylist()
    wanted = {(ledger, entry) for ledger in range(LEDGERS) for entry in range(ENTRIES)}
    assert {(row["ledgerId"], row["entryId"]) for row in rows} == wanted
    assert len(rows) == len(wanted)
    for row in rows:
        assert row["value"] == ledgers.value_of(row["ledgerId"], row["entryId"])
        assert (row["offset"], row["topic"], row["partition"]) == (row["entryId"], None, -1)


@pytest.mark.parametrize("wanted", ["4", "0,2-3", "7", "1-100"])
def test_chosen_ledgers_of_a_bookie_log_are_read(log: Path, wanted: str) -> None:
    chosen = {"4": [4], "0,2-3": [0, 2, 3], "7": [], "1-100": [1, 2, 3, 4]}[wanted]
    rows = read_table(log, columns="ledgerId,entryId", ledgers=wanted).to_pylist()
    assert {(row["ledgerId"], row["entryId"]) for row in rows} == {
        (ledger, n) for ledger in chosen for n in range(ENTRIES)
    }
    assert len(rows) == len(chosen) * ENTRIES


def test_a_ledger_takes_its_part_of_the_log(log: Path) -> None:
    everything = bytes_planned(plan(options_of(log)))
    assert bytes_planned(plan(options_of(log, ledgers="4"))) < everything / 2
    few = options_of(log, ledgers="0", startingOffsets=10, endingOffsets=13, columns="entryId")
    assert bytes_planned(plan(few)) < everything / 2
    assert column(log, "entryId", ledgers="0", startingOffsets=10, endingOffsets=13) == [10, 11, 12]


def test_a_bookie_log_without_index_files_is_read(log: Path) -> None:
    for index in log.glob("*.led"):
        index.unlink()
    assert column(log, "entryId", ledgers="4") == list(range(ENTRIES))


def test_a_hole_punched_segment_of_a_bookie_log_gives_no_rows(log: Path) -> None:
    with ledgers.open_log(log) as open_log:
        options = options_of(log, columns="ledgerId,entryId", minPartitions=4)
        before = read_table(log, columns="ledgerId,entryId,segment").to_pylist()
        base = sorted(int(row["segment"][:20]) for row in before)[0]
        tasks = plan(options)
        open_log.punch_hole(base)
        rest = [row for row in before if int(row["segment"][:20]) != base]
        assert 0 < len(rest) < len(before)
        assert read_table(log, columns="ledgerId,entryId,segment").to_pylist() == rest
        assert len(read_slices(options, tasks)) == len(rest)  # hollowed between planning and reading


def test_times_are_looked_at_row_by_row(log: Path) -> None:
    """Clocks of many writers: no order can be relied on. Entry n was appended at second 1 + n microseconds."""
    entry_ids = column(
        log, "entryId", startingTimestamp="1970-01-01T00:00:01.000005", endingTimestamp="1970-01-01T00:00:01.000007"
    )
    assert sorted(entry_ids) == sorted([5, 6] * LEDGERS)


def test_offsets_by_partition_make_no_sense(log: Path) -> None:
    with pytest.raises(ConfigError, match="is a bookie's log, whose entries are numbered by ledger"):
        plan(options_of(log, startingOffsets='{"log": {"-1": 3}}'))


def test_bookie_logs_of_an_embedded_cluster_are_read(tmp_path: Path) -> None:
    with pyreplog.Cluster.embedded(tmp_path / "data", bookies=3) as cluster:
        with cluster.create_ledger(3, 3, 2) as ledger:
            ledger.append_batch([b"value %d" % n for n in range(100)])
        for name in ("bookie-0", "bookie-1/log"):
            rows = read_table(tmp_path / "data" / name, columns="ledgerId,entryId,value").to_pylist()
            assert rows == [{"ledgerId": ledger.id, "entryId": n, "value": b"value %d" % n} for n in range(100)]
        assert len(column(tmp_path / "data" / "bookie-*", "value")) == 300
        names = {name.partition("@")[0] for name in column(tmp_path / "data" / "bookie-*", "bookie")}
        assert names == {"bookie-0", "bookie-1", "bookie-2"}
        with pytest.raises(NotALogError, match=r"data is an embedded cluster: expected it alone"):
            plan(options_of(None, paths=f'["{tmp_path}/data", "{tmp_path}/data/bookie-0"]'))


def test_an_empty_bookie_log_has_no_rows(tmp_path: Path) -> None:
    with ledgers.open_log(tmp_path / "log") as log:
        assert isinstance(log, LedgerLog)
    assert column(tmp_path / "log", "value") == []
