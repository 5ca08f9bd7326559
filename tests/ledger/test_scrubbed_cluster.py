"""Scrub of a cluster's bookies: a flipped byte is found, noted and repaired from another bookie, and the damage is
removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import metadata_key
from pyreplog.ledger.ledger_store import StoredLedgers, load_ledger
from pyreplog.ledger.repair_notes import RepairNote, repairs
from pyreplog.ledger.runtime import EmbeddedRuntime
from tests.bookie.test_scrub import flip
from tests.ledger.conftest import SEGMENT_BYTES
from tests.waiting import until

VALUES = [b"%d:" % entry + b"." * 900 for entry in range(400)]


@pytest.fixture
def cluster(folder: Path) -> Iterator[LedgerCluster]:
    with LedgerCluster.embedded(
        folder, bookies=4, segment_bytes=SEGMENT_BYTES, durability="appended"
    ) as ledger_cluster:
        yield ledger_cluster


def runtime_of(cluster: LedgerCluster) -> EmbeddedRuntime:
    runtime: Any = cluster.runtime
    assert isinstance(runtime, EmbeddedRuntime)
    return runtime


def written(cluster: LedgerCluster, *, close: bool = True) -> Any:
    """Write a ledger with E=4 and Qw=2, in sealed segments of each bookie."""
    ledger = cluster.create_ledger(4, 2, 2)
    ledger.append_batch(VALUES)
    if close:
        ledger.close()
    settle(cluster)
    return ledger


def settle(cluster: LedgerCluster) -> None:
    for bookie in runtime_of(cluster).bookies.values():
        log = bookie.log.log.commit_log
        log.sync()
        log.run_background_tasks()


def damage(bookie: LocalBookie, ledger: int, entry: int) -> None:
    log = bookie.log.log.commit_log
    (part,) = log.locations(ledger, entry, entry + 1)
    flip(log.path / f"{part.base:020d}.log", int(part.offset[0]) + 100)


def held(bookie: LocalBookie, ledger: int, below: int = 200) -> list[int]:
    return bookie.log.log.held_entries(ledger, 0, below).tolist()


def test_a_flipped_byte_is_found_and_mended_by_another_copy(cluster: LedgerCluster) -> None:
    ledger = written(cluster).id
    name, bookie = next(iter(runtime_of(cluster).bookies.items()))
    bad = held(bookie, ledger)[10:13]
    before = {base for base, shares in bookie.log.log.segments() if shares}
    for entry in bad:
        damage(bookie, ledger, entry)
    for local in runtime_of(cluster).bookies.values():
        local.scrubber.run()
    assert repairs(cluster.metadata)[0] == [RepairNote(ledger, bad[0], name)], (
        "its repair checks all of a closed ledger"
    )
    assert {note.entry for note in cluster.repair()[0]} >= set(bad)
    settle(cluster)
    bookie.scrubber.run()
    assert (bookie.scrubber.progress().last_bad_records, repairs(cluster.metadata)[0]) == (0, [])
    runtime_of(cluster).collect()
    assert before - {base for base, shares in bookie.log.log.segments() if shares}
    bookie.scrubber.run()
    assert bookie.scrubber.progress().damaged_segments == 0
    with cluster.open_ledger(ledger) as reader:
        assert reader[:] == VALUES


def test_bad_copies_of_an_open_ledger_are_noted_each(cluster: LedgerCluster) -> None:
    ledger = written(cluster, close=False)
    name, bookie = next(iter(runtime_of(cluster).bookies.items()))
    bad = held(bookie, ledger.id)[10:13]
    for entry in bad:
        damage(bookie, ledger.id, entry)
    bookie.scrubber.run()
    assert repairs(cluster.metadata)[0] == [RepairNote(ledger.id, entry, name) for entry in bad]
    cluster.repair()
    settle(cluster)
    bookie.scrubber.run()
    assert (bookie.scrubber.progress().last_bad_records, repairs(cluster.metadata)[0]) == (0, [])
    ledger.close()


def test_copies_that_no_metadata_name_are_not_noted(cluster: LedgerCluster) -> None:
    written_one = written(cluster).id
    stored = StoredLedgers(cluster.metadata)
    name = next(iter(runtime_of(cluster).bookies))
    metadata = load_ledger(cluster.metadata, written_one).metadata
    wanted = {entry for stripe in metadata.holdings(name) for entry in stripe}
    for entry in range(9):
        assert metadata.asks_for(name, entry) is (entry in wanted)
    stored.note_bad_copies(name, written_one, sorted(set(range(9)) - wanted))
    stored.note_bad_copies("another@00", written_one, [0, 1, 2])
    stored.note_bad_copies(name, written_one + 100, [0])
    stored.note_bad_copies(name, written_one, [10_000])
    assert repairs(cluster.metadata)[0] == []
    stored_value = cluster.metadata.get(metadata_key(written_one))
    assert stored_value is not None
    cluster.metadata.put(metadata_key(written_one), b"{garbled", stored_value.version)
    stored.note_bad_copies(name, written_one, sorted(wanted)[:1])
    assert repairs(cluster.metadata)[0] == []


def test_at_most_64_copies_of_an_open_ledger_are_noted_at_a_time(cluster: LedgerCluster) -> None:
    ledger = written(cluster, close=False)
    name, bookie = next(iter(runtime_of(cluster).bookies.items()))
    StoredLedgers(cluster.metadata).note_bad_copies(name, ledger.id, held(bookie, ledger.id))
    assert len(repairs(cluster.metadata)[0]) == 64
    ledger.close()


def test_an_operator_asks_for_a_pass_and_sees_it_end(cluster: LedgerCluster) -> None:
    written(cluster)
    runtime = runtime_of(cluster)
    runtime.scrub_now()
    until(lambda: all(progress.since_complete_s is not None for progress in runtime.scrub_progress().values()))
    assert not any(progress.asked for progress in runtime.scrub_progress().values())
    assert all(bookie.scrubber.verified_bytes > SEGMENT_BYTES for bookie in runtime.bookies.values())
