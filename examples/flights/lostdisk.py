"""The third step of the demo: the disk of a bookie is lost while a writer appends, and its copies come back."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import chain, pairwise
from pathlib import Path

from children import PATIENCE_S
from ledgers import Bookies, child
from verification import Mismatch, same

import pyreplog
from pyreplog.autorecovery.config import change_config
from pyreplog.autorecovery.health import Colour
from pyreplog.autorecovery.overview import RecoveryOverview, RecoveryWatch
from pyreplog.clock import SystemClock
from pyreplog.metadata.url import open_store
from pyreplog.reports import gathering, local_engine, suite
from pyreplog.reports.atomic_files import replacing
from pyreplog.reports.page.page import About, page
from pyreplog.tables.options import ReadOptions

NAMES = tuple(f"disk-{number}" for number in range(1, 5))
ENSEMBLE, WRITE_QUORUM, ACK_QUORUM = 3, 2, 2
LEDGERS, EACH = 48, 500
FLIGHTS = LEDGERS * EACH
BEFORE = 300
SETTINGS = {"round_ms": 200, "settle_ms": 0, "bytes_per_s": 200_000}
"""Of auto-recovery: looks more often, and copies more slowly than it would, so that there is something to see."""

REPORTS = (
    "cluster_health", "recovery_state", "recovery_orders", "recovery_progress", "bookie_disks", "replica_holes",
    "under_replicated",
)  # fmt: skip


def lose_a_disk(log: Path, directory: Path, url: str) -> Iterator[str]:
    """All of it; yields what there is to say. log: that of the first step. Mismatch: something is not as it must be."""
    directory.mkdir()
    with open_store(url) as store:
        change_config(store, SETTINGS)
    with ExitStack() as stack:
        bookies = Bookies(directory, url, "--autorecovery")
        stack.callback(bookies.close)
        bookies.start(*NAMES)
        cluster = stack.enter_context(pyreplog.Cluster.connect(url))
        with pyreplog.open(log, "r") as source:
            ledgers = fill(cluster, source)
            yield f"{len(NAMES)} bookie processes run, with auto-recovery. {LEDGERS} ledgers hold {FLIGHTS:,} flights."
            with child("loadwriter.py", url) as writer:
                written = writer.wait_for("ledger")
                writer.wait_for("acked", BEFORE)
                lost = cluster.ledger_metadata(written).last_fragment.ensemble[0]
                named = sum(lost in cluster.ledger_metadata(ledger).bookies() for ledger in ledgers)
                acked = lose(bookies, directory, lost, writer.said)
                yield (
                    f"Killed {name_of(lost)} (SIGKILL) while a writer had {acked:,} acknowledged entries, deleted its "
                    f"directory, and started it again empty: {named} ledgers lack its copies."
                )
                yield from watch(cluster, lost)
                writer.wait_for("acked", acked + BEFORE)
                writer.go_on()
                writer.wait_for("closed")
                check(cluster, [*ledgers, written], lost)
                yield verified(cluster, ledgers, source, written, writer.said)
        yield f"The page of reports shows the copies coming back.\n    file://{report(directory, url).resolve()}"


def name_of(bookie: str) -> str:
    return bookie.partition("@")[0]


def fill(cluster: pyreplog.Cluster, source: pyreplog.LogReader) -> list[int]:
    """The first flights, over many closed ledgers; returns these."""
    ledgers = []
    for first in range(0, FLIGHTS, EACH):
        with cluster.create_ledger(ENSEMBLE, WRITE_QUORUM, ACK_QUORUM) as ledger:
            for batch in source.read(first, first + EACH):
                ledger.append_batch(batch.values(), batch.keys(), batch.event_time.tolist())
        ledgers.append(ledger.id)
    return ledgers


def lose(bookies: Bookies, directory: Path, lost: str, said: Mapping[str, int]) -> int:
    """The machine is dead, its disk is thrown away, and another one takes its name. Returns what was acknowledged."""
    bookies.kill(lost)
    acked = said["acked"]
    shutil.rmtree(directory / name_of(lost))
    bookies.replace(name_of(lost))
    return acked


def watch(cluster: pyreplog.Cluster, lost: str) -> Iterator[str]:
    """Until no ledger names the lost incarnation. Yields how many are left, as `pyreplog top` shows it."""
    recovery, deadline, told = RecoveryWatch(cluster.runtime, SystemClock()), time.monotonic() + PATIENCE_S, 1 << 60
    while True:
        overview = recovery.take_overview()
        left = sum(order.ledgers_left for order in overview.orders if order.bookie == lost)
        if overview.lost_entries:
            raise Mismatch(f"{overview.lost_entries:,} entries are listed as lost")
        if is_done(overview, lost):
            yield f"    all copies are there again, and the cluster is {overview.health.colour}"
            return
        if time.monotonic() > deadline:
            raise Mismatch(f"copies did not come back: {overview.orders}, {overview.health.findings}")
        if left and left <= told - LEDGERS // 6:
            (order,) = (order for order in overview.orders if order.bookie == lost)
            end = "" if order.eta_s is None else f", about {order.eta_s:.1f} s"
            size, rate = order.bytes_left / 1000, order.bytes_per_s / 1000
            yield f"    {left:>3} ledgers left, {size:>6,.0f} kB, {rate:>4,.0f} kB/s{end}"
            told = left
        time.sleep(0.1)


def is_done(overview: RecoveryOverview, lost: str) -> bool:
    is_gone = lost not in {order.bookie for order in overview.orders} | {bookie.bookie for bookie in overview.bookies}
    return is_gone and overview.health.colour is Colour.GREEN


def check(cluster: pyreplog.Cluster, ledgers: list[int], lost: str) -> None:
    """Every entry is on every bookie that the metadata name for it, and the lost incarnation is none of them."""
    for ledger in ledgers:
        metadata, copies = cluster.ledger_metadata(ledger), cluster.count_copies(ledger)
        if lost in metadata.bookies() or len(copies) != metadata.last_entry + 1 or copies.min() < WRITE_QUORUM:
            raise Mismatch(f"ledger {ledger}: {copies.min()} copies of an entry, on {metadata.bookies()}")


def verified(
    cluster: pyreplog.Cluster, ledgers: list[int], source: pyreplog.LogReader, written: int, said: Mapping[str, int]
) -> str:
    """Compares all entries with what was written; returns what there is to say of it."""
    with ExitStack() as stack:
        readers = [stack.enter_context(cluster.open_ledger(ledger)) for ledger in ledgers]
        if same(chain.from_iterable(reader.read() for reader in readers), source.read(0, FLIGHTS)) != FLIGHTS:
            raise Mismatch("the flights in the ledgers are not those of the log")
        with cluster.open_ledger(written) as reader:
            numbers = [int(value) for batch in reader.read() for value in batch.values()]
        if len(numbers) < said["acked"] or any(other != one + 1 for one, other in pairwise(numbers)):
            raise Mismatch(f"{said['acked']:,} entries were acknowledged, {len(numbers):,} are there")
    return (
        f"Nothing is lost: {FLIGHTS:,} flights as in the log, and {len(numbers):,} entries of the writer, each on the "
        f"{WRITE_QUORUM} bookies that are named for it. The writer was not fenced; it waited "
        f"{said['p99_us'] / 1000:.1f} ms for an entry (99th percentile), {said['most_us'] / 1000:,.0f} ms at most."
    )


def report(directory: Path, url: str) -> Path:
    """A page of reports on what happened. Mismatch: it does not tell."""
    given, names = {"cluster": url}, suite.chosen(REPORTS)
    snapshot = gathering.gather(ReadOptions.of(given), time.time_ns() // 1000)
    outcomes = list(suite.outcomes(names, given, snapshot, local_engine.run))
    failed = {each.report.name: each.error for each in outcomes if each.error}
    curve = [] if snapshot.recovery is None else [left for _, left in snapshot.recovery.progress]
    if failed or not curve or max(curve) < 2 or curve[-1]:
        raise Mismatch(f"the page fails, or shows no curve: {failed}, {curve}")
    about = About(
        "A bookie lost its disk",
        [("as of", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())), ("source", url)],
        "Made by the demo. The disk of a bookie was deleted while a writer appended.",
    )
    path = directory / "recovery.html"
    with replacing(path) as draft:
        draft.write_text(page(about, outcomes), encoding="utf-8")
    return path


if __name__ == "__main__":  # alone: LOG DIRECTORY, of which the latter is new
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True)
    for news in lose_a_disk(Path(sys.argv[1]), folder / "recovery", f"sqlite:{folder / 'metadata'}"):
        with suppress(BrokenPipeError):
            sys.stdout.write(f"{news}\n")
            sys.stdout.flush()
