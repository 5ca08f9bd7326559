"""An audit of a cluster: what lacks copies, what is to be copied, and which copies differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.cluster_audit import CopyEstimate, audit_cluster
from pyreplog.autorecovery.config import change_config
from pyreplog.autorecovery.copy_audit import audit_copies
from pyreplog.autorecovery.health import Colour
from pyreplog.autorecovery.ledger_survey import LedgerSurvey, Membership
from pyreplog.autorecovery.lost_entries import LostRange, note_lost
from pyreplog.autorecovery.orders import place_order
from pyreplog.autorecovery.protocol.copy_check import MemberVerdict
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.clock import SystemClock
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, metadata_key
from pyreplog.ledger.ledger_store import VersionedMetadata, load_ledger
from pyreplog.ledger.repair_notes import repairs
from pyreplog.metadata.store import MetadataStore
from tests.bookie.asking import records_of

ENTRIES = 40
SETTINGS: dict[str, Any] = {"segment_bytes": 1 << 20, "durability": "appended"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LedgerCluster]:
    with LedgerCluster.embedded(tmp_path, bookies=5, **SETTINGS) as ledger_cluster:
        yield ledger_cluster


def filled(cluster: LedgerCluster, ensemble: int, write_quorum: int) -> int:
    with cluster.create_ledger(ensemble, write_quorum) as ledger:
        ledger.append_batch([b"entry %d" % entry for entry in range(ENTRIES)])
    return ledger.id


def stop(cluster: LedgerCluster, bookie: str) -> None:
    cluster.runtime.bookies.pop(bookie).close()  # type: ignore[attr-defined]


def whole_store(store: MetadataStore, key: str = "/") -> dict[str, bytes]:
    """All keys and values."""
    values: dict[str, bytes] = {}
    for name in store.list(key):
        child = f"{key.rstrip('/')}/{name}"
        stored = store.get(child)
        assert stored is not None
        values[child] = stored.value
        values.update(whole_store(store, child))
    return values


def codes(audit: Any) -> set[str]:
    return {finding.code for finding in audit.health.findings}


# ---- metadata ----------------------------------------------------------------------------------------------------


def test_an_audit_of_a_whole_cluster_is_green(cluster: LedgerCluster) -> None:
    filled(cluster, 4, 2)
    with cluster.create_ledger(5, 3):
        audit = audit_cluster(cluster.runtime)
        assert audit.health.colour is Colour.GREEN
        assert (audit.survey.ledgers, audit.survey.open, audit.survey.entries) == (2, 1, ENTRIES)
        assert audit.to_copy.eta_s == 0.0
        assert audit.copies is None


def test_cluster_audit_counts_copies_entry_by_entry(cluster: LedgerCluster) -> None:
    """E = 4, Qw = 2: without two neighbours, one write set has no copy, and two have one."""
    ledger, alone = filled(cluster, 4, 2), filled(cluster, 3, 1)
    ensemble = cluster.ledger_metadata(ledger).last_fragment.ensemble
    for bookie in ensemble[1:3]:
        stop(cluster, bookie)
    place_order(cluster.metadata, ensemble[1], TimedReason(0, "test"))
    before = whole_store(cluster.metadata)
    audit = audit_cluster(cluster.runtime)
    assert whole_store(cluster.metadata) == before, "an audit changes nothing"
    survey = audit.survey
    sets = [set(write_set(entry, 4, 2)) for entry in range(ENTRIES)]
    assert survey.no_copy[ledger] == sum(places == {1, 2} for places in sets)
    assert survey.one_copy == {ledger: sum(len(places & {1, 2}) == 1 for places in sets)}, "Qw = 1 is left out"
    assert survey.missing >= sum(len(places & {1, 2}) for places in sets)
    assert ledger in survey.lacking
    assert audit.orders == {ensemble[1]: "test"}
    named = [each for each in (ledger, alone) if ensemble[1] in cluster.ledger_metadata(each).bookies()]
    assert survey.leaving == {ensemble[1]: len(named)}
    length = cluster.ledger_metadata(ledger).length
    assert survey.bytes_to_copy >= length // 2 - 1
    assert survey.bytes_away >= length // 2 - 1
    assert {"no-copy", "one-copy", "orders", "copies-missing"} <= codes(audit)
    assert audit.health.colour is Colour.AMBER


def test_lost_entries_and_copies_on_lost_bookies_make_the_cluster_red(cluster: LedgerCluster) -> None:
    note_lost(cluster.metadata, 7, [LostRange(3, 9, 2, "b@1", 0)])
    audit = audit_cluster(cluster.runtime)
    assert (audit.health.colour, audit.lost) == (Colour.RED, {7: 3})


def test_the_time_left_is_that_of_the_configured_rate(cluster: LedgerCluster) -> None:
    ledger = filled(cluster, 4, 2)
    bookie = cluster.ledger_metadata(ledger).last_fragment.ensemble[0]
    place_order(cluster.metadata, bookie, TimedReason(0, "test"))
    assert audit_cluster(cluster.runtime).to_copy.eta_s is None
    change_config(cluster.metadata, {"bytes_per_s": 10})
    left = audit_cluster(cluster.runtime).to_copy
    assert left == CopyEstimate(left.bytes, 1, 10)
    assert left.eta_s == left.bytes / 10 > 0


def metadata(*fragments: tuple[str, ...], state: State = State.CLOSED, write_quorum: int = 2) -> LedgerMetadata:
    """Fragments of ten entries each."""
    new_fragments = tuple(Fragment(10 * number, ensemble) for number, ensemble in enumerate(fragments))
    return LedgerMetadata(
        ledger=1, ensemble_size=len(fragments[0]), write_quorum=write_quorum, ack_quorum=1, fragments=new_fragments,
        proof="", state=state, last_entry=10 * len(new_fragments) - 1 if state is State.CLOSED else -1,
        length=1000 * len(new_fragments) if state is State.CLOSED else 0,
    )  # fmt: skip


RACKS = {"a0": "a", "a1": "a", "b0": "b", "b1": "b", "x": ""}


@pytest.mark.parametrize(
    ("ensembles", "write_quorum", "violations"),
    [
        ([("a0", "b0", "a1", "b1")], 2, 0),
        ([("a0", "a1", "b0", "b1")], 2, 2),
        ([("a0", "a1", "b0", "b1")], 3, 0),
        ([("a0", "a1", "b0", "b1"), ("a0", "b0", "a1", "b1"), ("a0", "b0", "b1", "a1")], 2, 4),
        ([("a0", "a1", "b0", "x")], 2, 1),  # what is unknown is no violation
        ([("a0", "a1", "b0", "b1")], 1, 0),  # one copy cannot be in two racks
    ],
)
def test_write_sets_in_one_rack_are_violations(
    ensembles: list[tuple[str, ...]], write_quorum: int, violations: int
) -> None:
    survey = LedgerSurvey(Membership(RACKS.keys(), frozenset(), {}, racks=RACKS))
    survey.take(1, VersionedMetadata(metadata(*ensembles, write_quorum=write_quorum), 0))
    assert survey.rack_violations == ({1: violations} if violations else {})


def test_a_cluster_of_one_rack_has_no_violations() -> None:
    survey = LedgerSurvey(Membership(RACKS.keys(), frozenset(), {}, racks=dict.fromkeys(RACKS, "a")))
    survey.take(1, VersionedMetadata(metadata(("a0", "a1", "b0", "b1")), 0))
    assert not survey.rack_violations


def test_fragments_before_the_last_one_of_an_open_ledger_are_counted() -> None:
    survey = LedgerSurvey(Membership({"a0", "b0", "b1"}, frozenset(), {}))
    stored = metadata(("a0", "a1", "b0", "b1"), ("a0", "a1", "b0", "b1"), state=State.OPEN)
    survey.take(1, VersionedMetadata(stored, 0))
    assert (survey.open, survey.entries, survey.lacking) == (1, 10, [1])
    assert survey.one_copy == {1: sum(1 in write_set(entry, 4, 2) for entry in range(10))}
    assert survey.missing == survey.one_copy[1]


# ---- copies ------------------------------------------------------------------------------------------------------


def all_of(cluster: LedgerCluster) -> list[LedgerMetadata]:
    return [cluster.ledger_metadata(ledger) for ledger in cluster.ledgers()]


def overwrite(cluster: LedgerCluster, ledger: int, bookie: str, entry: int) -> None:
    """The log of a bookie has another record, which is intact, in the place of its own."""
    local = cluster.runtime.bookies[bookie]  # type: ignore[attr-defined]
    local.with_bookie(lambda _: local.log.append(records_of(entry, ledger=ledger, mark=b"other")))
    local.log.sync()


def test_copies_that_are_equal_are_complete(cluster: LedgerCluster) -> None:
    for ensemble, write_quorum in ((4, 2), (5, 3), (3, 3)):
        filled(cluster, ensemble, write_quorum)
    with cluster.create_ledger(3, 2):
        seen: list[int] = []
        audit = audit_copies(
            cluster.runtime, SystemClock(), all_of(cluster), on_ledger=lambda audit: seen.append(audit.checked)
        )
    assert (audit.checked, audit.skipped, audit.by_verdict) == (3, 1, {MemberVerdict.COMPLETE: 3})
    assert not audit.reports and seen[-1] == 3


def test_a_record_that_differs_is_named(cluster: LedgerCluster) -> None:
    """Its checksum is right: no reader and no scrub finds it."""
    ledgers = [filled(cluster, 5, 3) for _ in range(2)]
    ensemble = cluster.ledger_metadata(ledgers[1]).last_fragment.ensemble
    overwrite(cluster, ledgers[1], ensemble[1], 5 * 4 + 1)
    audit = audit_cluster(
        cluster.runtime, check_copies=lambda: audit_copies(cluster.runtime, SystemClock(), all_of(cluster))
    )
    assert audit.copies is not None
    assert audit.copies.by_verdict == {MemberVerdict.COMPLETE: 1, MemberVerdict.DIFFERS: 1}
    members = audit.copies.reports[ledgers[1]].members
    assert {bookie for bookie, member in members.items() if member.differs} == {ensemble[1]}
    assert members[ensemble[1]].differs == [range(21, 22, 5)]
    assert codes(audit) == {"copies-differ"}
    assert audit.health.colour is Colour.AMBER
    assert repairs(cluster.metadata) == ([], []), "an audit changes nothing"


def test_bookies_that_do_not_run_are_unknown_and_not_asked(cluster: LedgerCluster) -> None:
    ledger = filled(cluster, 4, 2)
    bookie = cluster.ledger_metadata(ledger).last_fragment.ensemble[0]
    stop(cluster, bookie)
    audit = audit_cluster(
        cluster.runtime, check_copies=lambda: audit_copies(cluster.runtime, SystemClock(), all_of(cluster))
    )
    assert audit.copies is not None
    assert audit.copies.reports[ledger].members[bookie].why == "the bookie does not run, and is not asked"
    assert "copies-unknown" in codes(audit) and audit.health.colour is Colour.AMBER


def swapped(cluster: LedgerCluster, ledger: int) -> tuple[LedgerMetadata, LedgerMetadata]:
    """Metadata that name a bookie without copies, and those that are right."""
    right = cluster.ledger_metadata(ledger)
    spare = next(name for name in cluster.runtime.bookies if name not in right.bookies())  # type: ignore[attr-defined]
    return replace(right, fragments=(Fragment(0, (spare, *right.last_fragment.ensemble[1:])),)), right


def test_a_ledger_whose_members_changed_meanwhile_is_asked_for_again(cluster: LedgerCluster) -> None:
    """Else a bookie whose surplus is gone would count as one that lost copies."""
    older, _ = swapped(cluster, filled(cluster, 4, 2))
    audit = audit_copies(cluster.runtime, SystemClock(), [older])
    assert audit.by_verdict == {MemberVerdict.COMPLETE: 1}


def test_a_ledger_that_was_deleted_meanwhile_is_skipped(cluster: LedgerCluster) -> None:
    ledger = filled(cluster, 4, 2)
    older, _ = swapped(cluster, ledger)
    cluster.delete_ledger(ledger)
    audit = audit_copies(cluster.runtime, SystemClock(), [older])
    assert (audit.checked, audit.skipped) == (0, 1)


def test_a_bookie_that_lacks_copies_is_named(cluster: LedgerCluster) -> None:
    ledger = filled(cluster, 4, 2)
    wrong, _ = swapped(cluster, ledger)
    stored = load_ledger(cluster.metadata, ledger)
    cluster.metadata.put(metadata_key(ledger), wrong.encode(), stored.version)
    audit = audit_cluster(
        cluster.runtime, check_copies=lambda: audit_copies(cluster.runtime, SystemClock(), all_of(cluster))
    )
    assert audit.copies is not None
    assert audit.copies.ledgers(MemberVerdict.MISSING) == [ledger]
    assert "copies-lacking" in codes(audit)


def test_entries_that_no_member_has_make_the_cluster_red(cluster: LedgerCluster) -> None:
    ledger = filled(cluster, 2, 1)
    wrong, _ = swapped(cluster, ledger)
    cluster.metadata.put(metadata_key(ledger), wrong.encode(), load_ledger(cluster.metadata, ledger).version)

    def look() -> Any:
        return audit_cluster(
            cluster.runtime, check_copies=lambda: audit_copies(cluster.runtime, SystemClock(), all_of(cluster))
        )

    assert "entries-nowhere" in codes(look()) and look().health.colour is Colour.RED
    note_lost(cluster.metadata, ledger, [LostRange(0, ENTRIES, 2, "b@1", 0)])
    assert "entries-nowhere" not in codes(look()), "it is listed already"


def test_the_rate_of_a_comparison_is_limited(cluster: LedgerCluster) -> None:
    ledgers = [filled(cluster, 4, 2) for _ in range(12)]
    pauses: list[float] = []
    size = sum(2 * cluster.ledger_metadata(ledger).length for ledger in ledgers)
    audit_copies(cluster.runtime, SystemClock(), all_of(cluster), bytes_per_s=1, pause=pauses.append)
    assert max(pauses) > size - 4096 - 60 > 0, "a burst of 4 KiB is free"
