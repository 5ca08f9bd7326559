"""The demo of examples/flights, on a small file of the same columns."""

from __future__ import annotations

import html
import random
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROWS = 40_000
COLUMNS = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour"
)
DEMO = Path(__file__).parents[2] / "examples" / "flights" / "demo.py"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(1)
    path = tmp_path_factory.mktemp("table") / "flights.csv"
    lines = [COLUMNS]
    for i in range(ROWS):
        time = datetime(2013, 1, 1, 5, tzinfo=UTC) + timedelta(minutes=i // 2)
        delay = draw.choice(["NA", "-3", "11", "120"])
        lines.append(
            f"2013,{time.month},{time.day},1,1,{delay},1,1,1,{draw.choice(['UA', 'B6'])},{i},N{i % 400},EWR,IAH,1,1400,"
            f"{time.hour},{time.minute},{time:%Y-%m-%dT%H:00:00Z}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_demo_of_flights_finds_every_acknowledged_flight(table: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(DEMO), "--csv", str(table), "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Killed it (SIGKILL) when the follower had seen half of them" in done.stdout
    assert "The follower has seen every byte" in done.stdout
    assert f"{ROWS:,} entries, all as in the file" in done.stdout
    assert f"│ all     │  {ROWS:,} │" in done.stdout
    assert re.search(r"Killed bookie-\d \(SIGKILL\) after [\d,]+ acknowledged flights", done.stdout)
    assert "opening the ledger recovered it: fenced, closed" in done.stdout
    assert f"{ROWS:,} flights read back from both ledgers, all as in the log" in done.stdout
    tables = done.stdout.split("while the killed bookie is away")[1].split("3. A disk")[0]
    away, back = tables.split("when it is back")
    copies = [
        [cells[3].strip() for line in part.splitlines() if len(cells := line.split("│")) > 3] for part in (away, back)
    ]
    assert copies == [["2 to 3", "3"], ["3", "3"]], "entries of the first fragment were on the killed one"
    lost = done.stdout.split("3. A disk")[1].split("4. A master")[0]
    killed = re.search(r"Killed (disk-\d) \(SIGKILL\) while .* had ([\d,]+) .*: (\d+) ledgers lack its copies", lost)
    assert killed is not None and int(killed[3]) > 0
    assert re.search(r" ledgers left, +[\d,]+ kB, .*\n    all copies are there again, and the cluster is green", lost)
    kept = re.search(
        r"Nothing is lost: 24,000 flights as in the log, and ([\d,]+) entries of the writer, each on", lost
    )
    assert kept is not None and int(kept[1].replace(",", "")) > int(killed[2].replace(",", ""))
    assert re.search(r"The writer was not fenced; it waited [\d.]+ ms for an entry \(99th percentile\)", lost)
    recovered = Path(re.search(r"file://(\S+recovery\.html)", lost)[1]).read_text()  # type: ignore[index]
    assert re.search(r"The last copies of \d+ ledgers were made again within", recovered)
    assert 'aria-label="Copies left over time"' in recovered and "The cluster is green" in recovered
    assert re.search(r"killed the master \(SIGKILL\) with [\d,]+ flights acknowledged, [1-9][\d,]* not", done.stdout)
    assert re.search(rf"It cut [1-9][\d,]* bytes .* both hold {ROWS:,} flights", done.stdout)
    assert f"table has 2 carriers, {ROWS:,} flights, each once, as in the file" in done.stdout
    confirmed = re.search(
        r"Killed it \(SIGKILL\) with ([\d,]+) flights confirmed. Opened again: ([\d,]+) are", done.stdout
    )
    assert confirmed is not None
    least, counts = (int(count.replace(",", "")) for count in confirmed.groups())
    assert ROWS // 2 <= least <= counts < ROWS
    duplicates = re.search(
        rf"and ([\d,]+) that were there, which were dropped: {ROWS:,} flights, all as in", done.stdout
    )
    assert duplicates is not None
    assert int(duplicates[1].replace(",", "")) == counts - least + 100, (
        "what is sent again is dropped, and nothing else"
    )
    assert re.search(r"│ +board │ +0 │ +- │ +- │", done.stdout)
    assert re.search(r"│ +archive │ +[1-9][\d,]* │ +[1-9][\d.]* s │", done.stdout)
    page = Path(re.search(r"file://(\S+report\.html)", done.stdout)[1]).read_text()  # type: ignore[index]
    assert "“archive” of flights lags by" in page
    assert "Without a backlog: “board” of flights." in page
    assert re.search(r"Bookie bookie-2@\w+ lacks [\d,]+ copies", page)
    assert re.search(r"Key “N\d+” of flights has [\d.]+ % of the records", page), "hot tail numbers"
    assert "Departures by the hour of the day" in page
    assert (tmp_path / "flights" / "topic" / "bookie-2").is_dir(), "what was moved aside is back"
    regions = done.stdout.split("7. Two regions")[1]
    assert re.search(r"Killed the east \(SIGKILL\). The west knew of 1,200 acknowledgements", regions)
    moved = re.search(r"in the west with ([\d,]+) flights, and none is lost. ([\d,]+) came again, all of them", regions)
    assert moved is not None
    taken, repeated = (int(count.replace(",", "")) for count in moved.groups())
    arrived = re.search(r"Of the last 200 flights, (\d+) had arrived", regions)
    assert arrived is not None and repeated <= 500
    assert taken == 2_400 - 1_200 - 500 + repeated + int(arrived[1]) + 400
    back = re.search(r"in the east with ([\d,]+) flights, none that was acknowledged anywhere", regions)
    assert back is not None and int(back[1]) == 300 + (200 - int(arrived[1])) + 200, "those left, late, and new ones"
    assert "Both have 3,200 flights, each once, in the order of its origin, all as in the log" in regions
    page = Path(re.search(r"file://(\S+regions\.html)", regions)[1]).read_text()  # type: ignore[index]
    told = rows_of(page, "region_fail_over")
    assert [(where.split(",")[0], count) for where, _, count, _ in told] == [
        ("east", "1,700"), ("east", "1,200"), ("west", f"{1_700 - repeated:,}"), ("west", f"{taken:,}"),
        ("west", f"{repeated:,}"), ("west", f"{repeated:,}"), ("west", f"{taken - 300:,}"), ("east", back[1]),
        ("east", "0"), ("anywhere", "0"),
    ]  # fmt: skip
    assert "Nothing would be lost or repeated: 1 fail-over of a subscription." in page
    brokers = done.stdout.split("8. Three brokers")[1]
    killed = re.search(r"Killed broker ([123]) \(SIGKILL\), which led [1-6] of the partitions, with [\d,]+ fl", brokers)
    led = re.search(
        r"were led by ([123]|[123] and [123]) after \d+\.\d\d s, and took flights again after \d+\.\d\d s", brokers
    )
    assert killed is not None and led is not None and killed[1] not in led[1]
    assert "12,000 flights were acknowledged, and all are there: each once, where it was acknowledged" in brokers


def rows_of(page: str, report: str) -> list[list[str]]:
    """The rows of a table of a page."""
    rows = page.split(f'id="{report}"')[1].split("<tbody>")[1].split("</tbody>")[0].split("<tr>")[1:]
    return [
        [html.unescape(cell.strip()) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)] for row in rows
    ]


def test_verification_of_the_demo_notices_differences(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DEMO.parent))
    from verification import Mismatch, rows, verify

    import pyreplog

    expected = list(rows(table))[:100]
    small = tmp_path / "small.csv"
    small.write_bytes(b"\n".join(table.read_bytes().split(b"\n")[:101]) + b"\n")

    def entries(name: str, items: list[tuple[bytes, bytes, int]]) -> pyreplog.LogReader:
        with pyreplog.open(tmp_path / name, segment_bytes=64 << 10) as log:
            log.append_batch(*(list(column) for column in zip(*items, strict=True)))
        return pyreplog.open(tmp_path / name, "r")

    value, key, time = expected[50]
    wrong = {
        "bytes": [*expected[:50], (value + b" ", key, time), *expected[51:]],
        "key": [*expected[:50], (value, b"N0", time), *expected[51:]],
        "event time": [*expected[:50], (value, key, time + 1), *expected[51:]],
        "order": [*expected[:50], expected[51], expected[50], *expected[52:]],
        "twice": [*expected, expected[-1]],
        "missing": expected[:-1],
    }
    with entries("right", expected) as log:
        assert verify(log, small) == 100
    for name, problem in wrong.items():
        with entries(name, problem) as log, pytest.raises(Mismatch):
            verify(log, small)


def test_a_fail_over_that_loses_or_repeats_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEMO.parent))
    from regions import ALIVE, BEFORE, RETURN, check_fail_over
    from verification import Mismatch

    known, late = range(100), range(100, 150)
    needed = [*range(150, BEFORE), *range(ALIVE, RETURN)]
    for more in ([], [120], [BEFORE], [100, ALIVE - 1]):
        check_fail_over([*needed, *more], known, late)
    for wrong in (needed[1:], needed[:-1], [*needed, 99]):
        with pytest.raises(Mismatch):
            check_fail_over(wrong, known, late)


def test_the_table_of_a_fail_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 flights 4 were acknowledged in the east, of which the west knew 3; it left one of those that it got."""
    monkeypatch.syspath_prepend(str(DEMO.parent))
    from failoverpage import fail_over_rows
    from verification import Mismatch

    rows = fail_over_rows(10, [0, 1], [3, 2], [2, 4, 5, 6], {6}, [6, 7, 8, 9])
    assert [count for _, _, count, _ in rows] == [4, 2, 3, 4, 1, 1, 3, 4, 0, 0]
    for west, again in (
        ([3, 4, 5, 6], [6, 7, 8, 9]),  # repeated, and not the newest
        ([0, 2, 3, 4, 5, 6], [6, 7, 8, 9]),  # repeated, and known
        ([2, 4, 5, 6], [4, 6, 7, 8, 9]),  # repeated in the east
        ([2, 4, 6], [6, 7, 8, 9]),  # lost
    ):
        with pytest.raises(Mismatch, match="did not keep its promise"):
            fail_over_rows(10, [0, 1], [3, 2], west, {6}, again)


def test_a_broker_that_loses_or_repeats_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEMO.parent))
    from partitions import Acknowledged, check
    from verification import Mismatch

    from pyreplog.partition.client.partition_producer import RecordPosition

    class Partition(SimpleNamespace):
        """Has these flights at the offsets from 0 on."""

        number, name = 0, "flights-0"

        def read(self) -> list[SimpleNamespace]:
            offsets, keys, values = range(len(self.flights)), *zip(*self.flights, strict=True)
            column = SimpleNamespace(tolist=lambda: [*offsets])
            return [SimpleNamespace(offsets=column, keys=lambda: keys, values=lambda: values)]

    flights = [(b"N%d" % (number % 2), b"flight %d" % number) for number in range(6)]
    acknowledged = Acknowledged()
    acknowledged.positions = {number: RecordPosition(0, number) for number in range(6)}

    def stored(*numbers: int) -> None:
        partition: Any = Partition(flights=[flights[number] for number in numbers])
        check(flights, [partition], acknowledged)

    stored(0, 1, 2, 3, 4, 5)
    for wrong in ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 5), (0, 1, 1, 2, 3, 4, 5), (1, 0, 2, 3, 4, 5)):
        with pytest.raises(Mismatch):
            stored(*wrong)
    acknowledged.positions[0], acknowledged.positions[2] = RecordPosition(0, 2), RecordPosition(0, 0)
    with pytest.raises(Mismatch, match="before an earlier one"):
        stored(2, 1, 0, 3, 4, 5)
