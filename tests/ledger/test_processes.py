"""Real processes under load, which are killed with kill -9: bookies over TCP, and a writer, with metadata in SQLite or
ZooKeeper."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.errors import NotEnoughBookiesError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import WINDOW_BYTES
from pyreplog.ledger.ledger_metadata import State
from tests.ledger.processes import Process, ProcessGroup
from tests.ledger.writing import BATCH, value_of

NAMES = ("b0", "b1", "b2", "b3")
ENOUGH = 2000  # how many entries are written


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path, f"sqlite:{tmp_path / 'metadata.sqlite'}") as processes:
        processes.start_bookies(*NAMES)
        yield processes


@pytest.fixture
def cluster(processes: ProcessGroup) -> Iterator[LedgerCluster]:
    with LedgerCluster.connect(processes.url, request_timeout_ms=60_000) as cluster:
        yield cluster


def check(cluster: LedgerCluster, ledger: int, acked: int) -> int:
    """Check that all entries are as they were written, and all acknowledged ones are stored; return how many are
    stored."""
    with cluster.open_ledger(ledger) as reader:
        assert len(reader) >= acked
        values = [bytes(record.value) for batch in reader.read() for record in batch]
    assert values == [value_of(entry) for entry in range(len(reader))]
    return len(values)


def kill_one_under_load(processes: ProcessGroup, cluster: LedgerCluster) -> tuple[Process, str, int]:
    """Return the writer, the bookie that was killed, and the ledger; the writer goes on without the bookie."""
    writer = processes.writer(4 if len(processes.bookies) > 4 else 3, 3, 2)
    ledger = writer.wait_for("ledger")
    writer.wait_for("acked", ENOUGH)
    writer.wait_for("copied", BATCH)  # once all three have stored an entry, a failed bookie gets a fragment of its own
    killed = cluster.ledger_metadata(ledger).last_fragment.ensemble[0]
    processes.bookies[killed].kill()
    writer.wait_for("acked", writer.output["acked"] + ENOUGH)
    return writer, killed, ledger


def test_a_bookie_is_killed_under_load(processes: ProcessGroup, cluster: LedgerCluster) -> None:
    writer, killed, ledger = kill_one_under_load(processes, cluster)
    writer.send_line()
    last = writer.wait_for("last")
    metadata = cluster.ledger_metadata(ledger)
    assert (metadata.state, metadata.last_entry) == (State.CLOSED, last)
    assert len(metadata.fragments) == 2 and killed not in metadata.last_fragment.ensemble
    assert check(cluster, ledger, writer.output["acked"]) == last + 1

    # the same directory, with the incarnation and the copies of the bookie
    processes.start_bookies(killed.partition("@")[0])
    with LedgerCluster.connect(processes.url, request_timeout_ms=60_000) as again:
        assert {bookie.bookie for bookie in again.status().bookies} == set(processes.bookies)
        # the first fragment has its copies as well, except on the killed bookie
        for bookie in metadata.last_fragment.ensemble[:2]:
            processes.bookies[bookie].kill()
        assert check(again, ledger, last + 1) == last + 1


def test_bookies_and_writers_work_with_a_real_zookeeper(tmp_path: Path, zookeeper_url: str) -> None:
    with ProcessGroup(tmp_path, zookeeper_url) as processes:
        processes.start_bookies(*NAMES)
        with LedgerCluster.connect(processes.url, request_timeout_ms=60_000) as cluster:
            writer, killed, ledger = kill_one_under_load(processes, cluster)
            writer.kill()
            check(cluster, ledger, writer.output["acked"])
            assert killed not in cluster.ledger_metadata(ledger).last_fragment.ensemble


def test_a_ledger_of_a_killed_writer_is_recovered(processes: ProcessGroup, cluster: LedgerCluster) -> None:
    writer = processes.writer(4, 3, 2)
    ledger = writer.wait_for("ledger")
    writer.wait_for("acked", ENOUGH)
    assert cluster.ledger_metadata(ledger).state is State.OPEN
    writer.kill()
    assert check(cluster, ledger, writer.output["acked"]) == cluster.ledger_metadata(ledger).last_entry + 1
    assert cluster.ledger_metadata(ledger).state is State.CLOSED


def test_a_writer_that_was_asleep_is_fenced(processes: ProcessGroup, cluster: LedgerCluster) -> None:
    writer = processes.writer(4, 3, 2)
    ledger = writer.wait_for("ledger")
    writer.wait_for("acked", ENOUGH)
    writer.signal(signal.SIGSTOP)
    count = check(cluster, ledger, writer.output["acked"])
    writer.signal(signal.SIGCONT)
    # the bookie that answers first fences it
    assert writer.wait_for("error") in ("LedgerFencedError", "LedgerClosedError")
    assert writer.output["acked"] <= count, "nothing was acknowledged after the fence"
    assert check(cluster, ledger, count) == count


def test_an_emptied_directory_is_refused(processes: ProcessGroup, cluster: LedgerCluster, tmp_path: Path) -> None:
    with cluster.create_ledger(4, 3, 2) as ledger:
        ledger.append_batch([value_of(entry) for entry in range(500)])
    emptied = ledger.metadata.last_fragment.ensemble[2]
    processes.bookies[emptied].kill()
    name = emptied.partition("@")[0]
    shutil.rmtree(tmp_path / name)
    refused = processes.bookie(name)
    assert refused.wait() == 4
    assert f"bookie {name} is registered" in refused.error_text()
    assert check(cluster, ledger.id, 500) == 500
    with pytest.raises(NotEnoughBookiesError):
        cluster.create_ledger(5)


def test_memory_stays_within_the_window(processes: ProcessGroup, cluster: LedgerCluster) -> None:
    """One of three bookies is stopped. The ack quorum is reached without it, so that only the window holds the writer
    back."""
    writer = processes.writer(3, 3, 2)
    ledger = writer.wait_for("ledger")
    writer.wait_for("acked", ENOUGH)
    ensemble = cluster.ledger_metadata(ledger).last_fragment.ensemble
    watched = [writer, *(processes.bookies[bookie] for bookie in ensemble)]
    before = [process.private_bytes for process in watched]
    stopped = processes.bookies[ensemble[1]]
    stopped.signal(signal.SIGSTOP)
    most = [0] * len(watched)
    quiet = 0
    while quiet < 20:  # wait until the window is full, and a moment longer
        quiet += writer.output["pending"] >= WINDOW_BYTES
        most = [max(old, process.private_bytes) for old, process in zip(most, watched, strict=True)]
        threading.Event().wait(0.01)
    acked = writer.output["acked"]
    growth = [now - old for now, old in zip(most, before, strict=True)]
    assert max(growth) <= WINDOW_BYTES + (64 << 20), growth
    stopped.signal(signal.SIGCONT)
    writer.wait_for("acked", acked + ENOUGH)
    writer.send_line()
    last = writer.wait_for("last")
    assert check(cluster, ledger, writer.output["acked"]) == last + 1
    assert len(cluster.ledger_metadata(ledger).fragments) == 1, "it was slow, and not replaced"
