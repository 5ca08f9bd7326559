"""The second step of the demo: the flights in a ledger, over bookies that are killed."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from children import PATIENCE_S, Child
from ledgerwriter import ENSEMBLE
from verification import Mismatch, same

import pyreplog

HERE = Path(__file__).parent
SEGMENT_BYTES = 4 << 20
WRITING_S = 2.5


class Bookies:
    """Bookie processes, by their ids. All end with it."""

    def __init__(self, directory: Path, url: str, *options: str) -> None:
        self._directory, self._url, self._options = directory, url, options
        self._running: dict[str, Child] = {}
        self._killed: list[str] = []

    def start(self, *names: str) -> None:
        started = [self._child(name) for name in names]
        for child in started:
            self._running[child.wait_for("bookie")] = child

    def restart(self, cluster: pyreplog.Cluster) -> None:
        """Those that were killed, from their directories; returns when the cluster knows where they are now."""
        self.start(*(bookie.partition("@")[0] for bookie in self._killed))
        addresses = {(bookie, self._running[bookie].wait_for("address")) for bookie in self._killed}
        while not addresses <= {(bookie.bookie, bookie.address) for bookie in cluster.status().bookies}:
            time.sleep(0.02)

    def replace(self, name: str) -> None:
        """An empty one takes the name of one whose directory is gone."""
        child = self._child(name, "--replace")
        self._running[child.wait_for("bookie")] = child

    def _child(self, name: str, *options: str) -> Child:
        directory = str(self._directory / name)
        settings = "--metadata", self._url, "--segment-bytes", str(SEGMENT_BYTES), *self._options
        return Child("-m", "pyreplog", "bookie", directory, "--json", *settings, *options)

    def kill(self, bookie: str) -> None:
        self._running.pop(bookie).close()
        self._killed.append(bookie)

    def close(self) -> None:
        for bookie in list(self._running):
            self.kill(bookie)


def replicate(log: Path, directory: Path, url: str) -> Iterator[str]:
    """All of it; yields what there is to say. log: that of the first step. Mismatch: something is not as it must be."""
    with ExitStack() as stack:
        bookies = Bookies(directory, url)
        stack.callback(bookies.close)
        bookies.start(*(f"bookie-{number}" for number in range(1, ENSEMBLE + 1)))
        cluster = stack.enter_context(pyreplog.Cluster.connect(url))
        yield f"{ENSEMBLE} bookie processes run, their metadata in {url.partition(':')[0]}."
        with pyreplog.open(log, "r") as reader:
            rows = reader.end
        ledger, acked = yield from write_and_kill(log, url, rows, bookies, cluster)
        with cluster.open_ledger(ledger) as reader:
            if len(reader) < acked:
                raise Mismatch(f"{acked:,} flights were acknowledged, {len(reader):,} are in the ledger")
            yield (
                f"Killed the writer (SIGKILL) after {acked:,} acknowledged flights; opening the ledger recovered it: "
                f"fenced, closed, {len(reader):,} flights."
            )
            rest = write_rest(log, url, len(reader))
            yield f"Another writer has put the rest into ledger {rest}."
            with cluster.open_ledger(rest) as more, pyreplog.open(log, "r") as source:
                found = same(chain(reader.read(), more.read()), source.read())
                if found != rows:
                    raise Mismatch(f"{rows:,} flights are in the log, {found:,} in the two ledgers")
        yield f"{rows:,} flights read back from both ledgers, all as in the log."
        yield table(cluster, ledger, "while the killed bookie is away")
        bookies.restart(cluster)
        yield table(cluster, ledger, "when it is back")


def write_and_kill(
    log: Path, url: str, rows: int, bookies: Bookies, cluster: pyreplog.Cluster
) -> Generator[str, None, tuple[int, int]]:
    """Returns (the ledger, how many flights were acknowledged when the writer died)."""
    with child("ledgerwriter.py", url, str(log), "0", str(WRITING_S)) as writer:
        ledger = writer.wait_for("ledger")
        bookies.start(f"bookie-{ENSEMBLE + 1}")  # it has none of the ledger yet
        writer.wait_for("acked", rows // 3)
        killed = cluster.ledger_metadata(ledger).last_fragment.ensemble[0]
        at = writer.said["acked"]
        bookies.kill(killed)
        writer.go_on()
        yield f"A fifth has come. Killed {killed.partition('@')[0]} (SIGKILL) after {at:,} acknowledged flights."
        writer.wait_for("acked", min(at + rows // 6, rows - 1))
        deadline = time.monotonic() + PATIENCE_S
        while killed in (last := cluster.ledger_metadata(ledger).last_fragment).ensemble:
            if time.monotonic() > deadline:
                raise Mismatch(f"the ensemble did not change: {last}")
            time.sleep(0.02)
        yield f"The writer goes on without it, from entry {last.first:,} on."
        writer.wait_for("acked", rows // 3 * 2)
        writer.kill()
        return ledger, writer.said["acked"]


def write_rest(log: Path, url: str, start: int) -> int:
    with child("ledgerwriter.py", url, str(log), str(start)) as writer:
        writer.wait_for("closed")
        return int(writer.said["ledger"])


@contextmanager
def child(script: str, *arguments: str) -> Iterator[Child]:
    started = Child(str(HERE / script), *arguments)
    try:
        yield started
    finally:
        started.close()


# ---- the table -------------------------------------------------------------------------------------------------


def table(cluster: pyreplog.Cluster, ledger: int, when: str) -> str:
    """Fragments of a ledger, its LAC, and how many copies its entries have, counted on the bookies."""
    metadata, copies = cluster.ledger_metadata(ledger), cluster.count_copies(ledger)
    if copies.min() < metadata.ack_quorum:
        raise Mismatch(f"an entry has {copies.min()} copies, fewer than the {metadata.ack_quorum} that acknowledge it")
    rows = []
    for fragment in metadata.fragments:
        end = metadata.fragment_end(fragment) or metadata.last_entry + 1
        if fragment.first < end:
            mine = copies[fragment.first : end]
            bookies = " ".join(bookie.partition("@")[0].removeprefix("bookie-") for bookie in fragment.ensemble)
            counts = " to ".join(str(count) for count in sorted({int(mine.min()), int(mine.max())}))
            rows.append((f"{fragment.first:,} to {end - 1:,}", bookies, counts))
    title = f"Ledger {ledger} {when}: {metadata.state}, last confirmed entry (LAC) {metadata.last_entry:,}"
    return printed(title, ("entries", "bookies", "copies of each"), rows)


def printed(title: str, headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if find_spec("rich") is None:
        lines = [title, *("  ".join(f"{cell:>20}" for cell in row) for row in (headings, *rows))]
        return "\n".join(lines)
    from rich.console import Console
    from rich.table import Table

    made = Table()
    for heading in headings:
        made.add_column(heading, justify="right")
    for row in rows:
        made.add_row(*row)
    console = Console(width=100) if not sys.stdout.isatty() else Console()
    with console.capture() as capture:
        console.print(made)
    return f"{title}\n{capture.get()}".rstrip("\n")
