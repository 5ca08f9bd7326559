"""The auditor has bad copies written again, compares replicas, and takes entries off the list when a disk returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.autorecovery.config import change_config
from pyreplog.autorecovery.hold import begin_hold, end_hold
from pyreplog.autorecovery.lost_entries import LostRange, list_lost, note_lost, remove_lost
from pyreplog.autorecovery.replicas_check import REPLICAS_CHECK, CheckProgress, find_progress
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.bookie.holdings import Holdings
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind
from pyreplog.clock import ManualClock
from pyreplog.errors import DisconnectedError, InvalidMetadataError, MetadataVersionError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import State, metadata_key
from pyreplog.ledger.repair_notes import note_repair, repairs
from pyreplog.ledger.runtime import EmbeddedRuntime
from pyreplog.metadata.store import MetadataStore
from tests.bookie.test_scrub import flip
from tests.ledger.fault_injection import RequestInterceptor
from tests.waiting import until

ENTRIES = 200
SEGMENT_BYTES = 64 << 10


class RecoveryBench:
    """An embedded cluster of five bookies whose auto-recovery takes a step when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(1_700_000_000_000_000)
        self.cluster = LedgerCluster.embedded(folder, bookies=5, segment_bytes=SEGMENT_BYTES, durability="appended")
        self.recovery = AutoRecovery(self.cluster, self.clock)
        self.store = self.cluster.metadata

    @property
    def bookies(self) -> dict[str, LocalBookie]:
        runtime: Any = self.cluster.runtime
        assert isinstance(runtime, EmbeddedRuntime)
        return runtime.bookies

    def ledger(self, ensemble: int = 4, write_quorum: int = 3, *, password: bytes = b"") -> int:
        """A closed ledger in sealed segments."""
        with self.cluster.create_ledger(ensemble, write_quorum, 2, password=password) as ledger:
            ledger.append_batch([b"%d of %d:" % (entry, ledger.id) + b"." * 500 for entry in range(ENTRIES)])
        self.seal()
        return int(ledger.id)

    def seal(self) -> None:
        for bookie in self.bookies.values():
            log = bookie.log.log.commit_log
            log.sync()
            log.run_background_tasks()

    def step(self, seconds: float = 0.0) -> None:
        """Time passes, and a round is made with all that follows from it."""
        self.clock.advance(int(seconds * 1e6))
        self.recovery.round()
        until(lambda: not self.recovery.is_copying and not self.recovery.is_repairing)

    def copies(self, ledger: int, password: bytes = b"") -> set[int]:
        return set(np.unique(self.cluster.count_copies(ledger, password=password)).tolist())

    def damage(self, bookie: str, ledger: int, entry: int) -> None:
        log = self.bookies[bookie].log.log.commit_log
        (part,) = log.locations(ledger, entry, entry + 1)
        flip(log.path / f"{part.base:020d}.log", int(part.offset[0]) + 100)

    def alarms(self) -> dict[str, str]:
        return {alarm.code: alarm.text for alarm in self.recovery.status().alarms}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RecoveryBench]:
    bench = RecoveryBench(tmp_path)
    yield bench
    bench.recovery.close()
    bench.cluster.close()


def without(interceptor: RequestInterceptor, bookie: str, *hidden: int) -> Callable[..., None]:
    """Makes a bookie deny that it has some entries until they are added again."""
    gone = set(hidden)

    def action(_: str, request: Request, on_reply: Callable[[Any], None]) -> None:
        if request.kind == RequestKind.ADD:
            gone.difference_update(range(request.first, request.last + 1))
        asked = gone.intersection(range(request.first, request.last + 1, request.step))
        if request.kind in (RequestKind.HOLDINGS, RequestKind.READ) and asked:
            if min(asked) > request.first:  # the answer ends before it
                interceptor.pass_on(bookie, request._replace(last=min(asked) - request.step), on_reply)
            else:
                body = Holdings().encode() if request.kind == RequestKind.HOLDINGS else b""
                on_reply(Reply(ReplyStatus.OK, request.ledger, request.first, request.first, body=body))
            return
        interceptor.pass_on(bookie, request, on_reply)

    return action


# ---- notes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", [b"", b"secret"])
def test_a_damaged_copy_is_written_again_without_the_password(bench: RecoveryBench, password: bytes) -> None:
    ledger = bench.ledger(password=password)
    bookie = next(iter(bench.cluster.ledger_metadata(ledger).bookies()))
    stripe = bench.cluster.ledger_metadata(ledger).holdings(bookie)[0]
    bad = [int(entry) for entry in stripe[3:6]]
    for entry in bad:
        bench.damage(bookie, ledger, entry)
    for local in bench.bookies.values():
        local.scrubber.run()
    assert repairs(bench.store)[0]
    bench.step()
    assert repairs(bench.store)[0] == []
    assert bench.recovery.repairs.counters.entries == len(bad)
    bench.bookies[bookie].scrubber.run()
    assert bench.bookies[bookie].scrubber.progress().last_bad_records == 0
    assert bench.copies(ledger, password) == {3}
    assert not list_lost(bench.store)


def test_a_bookie_that_does_not_run_keeps_its_notes(bench: RecoveryBench) -> None:
    ledger = bench.ledger()
    bookie = next(iter(bench.cluster.ledger_metadata(ledger).bookies()))
    note_repair(bench.store, ledger, bookie, bench.cluster.ledger_metadata(ledger).holdings(bookie)[0][0])
    bench.bookies.pop(bookie).close()
    bench.step()
    assert repairs(bench.store)[0]
    assert "does not run" in bench.recovery.repairs.failures[ledger]


def test_a_bookie_that_is_gone_and_named_no_more_leaves_no_notes(bench: RecoveryBench) -> None:
    ledger = bench.ledger()
    note_repair(bench.store, ledger, "bookie-9@gone", 0)
    bench.step()
    assert repairs(bench.store)[0] == []


def test_notes_of_ledgers_that_were_deleted_and_of_other_members_go(bench: RecoveryBench) -> None:
    ledger = bench.ledger()
    (other,) = bench.bookies.keys() - bench.cluster.ledger_metadata(ledger).bookies()
    note_repair(bench.store, ledger, other, 0)
    note_repair(bench.store, 999, other, 0)
    bench.step()
    assert repairs(bench.store)[0] == []
    assert bench.recovery.repairs.counters.entries == 0


def test_a_note_of_a_writer_waits_until_its_ledger_is_closed(bench: RecoveryBench) -> None:
    ledger = bench.cluster.create_ledger(4, 3, 2)
    ledger.append_batch([b"x"] * 20)
    bookie = sorted(ledger.metadata.bookies())[0]
    note_repair(bench.store, ledger.id, bookie, 0, lacking_since_us=1)
    bench.step()
    assert repairs(bench.store)[0]
    ledger.close()
    bench.step()
    assert repairs(bench.store)[0] == []


def test_a_copy_of_an_open_ledger_is_repaired_up_to_the_note(bench: RecoveryBench) -> None:
    ledger = bench.cluster.create_ledger(4, 3, 2)
    ledger.append_batch([b"%d:" % entry + b"." * 900 for entry in range(300)])
    bench.seal()
    bookie = sorted(ledger.metadata.bookies())[0]
    entry = bench.bookies[bookie].log.log.held_entries(ledger.id, 0, 50).tolist()[7]
    bench.damage(bookie, ledger.id, entry)
    note_repair(bench.store, ledger.id, bookie, entry)
    before = bench.cluster.ledger_metadata(ledger.id)
    bench.step()
    assert repairs(bench.store)[0] == []
    assert bench.recovery.repairs.counters.entries == 1
    assert bench.cluster.ledger_metadata(ledger.id) == before and before.state is State.OPEN
    ledger.append(b"the writer was not fenced")
    ledger.close()


def test_failed_repair_is_retried_with_growing_delays(bench: RecoveryBench) -> None:
    ledger = bench.ledger()
    metadata = bench.cluster.ledger_metadata(ledger)
    bookie = sorted(metadata.bookies())[0]
    note_repair(bench.store, ledger, bookie, 0)
    asked = []

    def fail(_: str, request: Request, on_reply: Callable[[Any], None]) -> None:
        asked.append(request)
        on_reply(DisconnectedError("it is not there"))

    with RequestInterceptor(bench.cluster) as interceptor:
        interceptor.add_rule(fail, kind=RequestKind.HOLDINGS, bookie=bookie)
        for _ in range(20):
            bench.step()
        once = len(asked)
        assert "it is not there" in bench.recovery.status().failed[ledger]
        bench.step(6)
        assert len(asked) > once
        twice = len(asked)
        bench.step(6)
        assert len(asked) == twice
    bench.step(60)
    assert repairs(bench.store)[0] == [] and not bench.recovery.repairs.failures


def test_entry_is_not_listed_as_lost_while_the_metadata_of_its_ledger_change(bench: RecoveryBench) -> None:
    """All members deny an entry. One of them may have given its place to another, and removed its copies since."""
    ledger, entry = bench.ledger(), 42
    metadata = bench.cluster.ledger_metadata(ledger)
    members = [bookie for bookie in sorted(metadata.bookies()) if metadata.asks_for(bookie, entry)]
    note_repair(bench.store, ledger, members[0], entry)
    with RequestInterceptor(bench.cluster) as interceptor:
        denied = {bookie: without(interceptor, bookie, entry) for bookie in members}

        def change_version(bookie: str, request: Request, on_reply: Callable[[Any], None]) -> None:
            if not changed:
                stored = bench.store.get(metadata_key(ledger))
                assert stored is not None
                changed.append(bench.store.put(metadata_key(ledger), stored.value, stored.version))
            denied[bookie](bookie, request, on_reply)

        changed: list[int] = []
        for bookie in members:
            interceptor.add_rule(change_version, bookie=bookie)
        bench.step()
        assert not list_lost(bench.store) and repairs(bench.store)[0]
        assert "were changed while" in bench.recovery.repairs.failures[ledger]
        bench.step(10)
    assert [item.entries for item in list_lost(bench.store)[ledger].ranges] == [range(entry, entry + 1)]
    assert repairs(bench.store)[0] == []


def test_nothing_is_repaired_on_hold(bench: RecoveryBench) -> None:
    ledger = bench.ledger()
    note_repair(bench.store, ledger, sorted(bench.cluster.ledger_metadata(ledger).bookies())[0], 0)
    begin_hold(bench.store, TimedReason(bench.clock.now_us(), "upgrade"))
    bench.step()
    assert repairs(bench.store)[0]
    end_hold(bench.store)
    bench.step()
    assert repairs(bench.store)[0] == []


# ---- disks that return -------------------------------------------------------------------------------------------


def move_copies(bench: RecoveryBench, ledger: int, entry: int) -> str:
    """One bookie outside the ensemble has an entry that no member has any more; the entry is listed as lost."""
    metadata = bench.cluster.ledger_metadata(ledger)
    (returned,) = bench.bookies.keys() - metadata.bookies()
    note_lost(bench.store, ledger, [LostRange(entry, entry + 1, 1, returned, 0)])
    return str(returned)


def test_a_disk_that_returns_takes_its_entries_off_the_list(bench: RecoveryBench) -> None:
    ledger, entry = bench.ledger(), 42
    returned = move_copies(bench, ledger, entry)
    metadata = bench.cluster.ledger_metadata(ledger)
    members = [bookie for bookie in metadata.bookies() if metadata.asks_for(bookie, entry)]
    with bench.cluster.open_ledger(ledger) as reader:
        (record,) = reader.read(entry, entry + 1)
    adds = Request(
        RequestKind.ADD, ledger, entry, entry, metadata.proof_bytes, 8, records=bytes(record[0].raw)
    )  # fmt: skip
    replies: list[Any] = []
    bench.cluster.runtime.send(returned, adds, replies.append)
    until(lambda: replies)
    assert replies[0].status == ReplyStatus.OK
    with RequestInterceptor(bench.cluster) as interceptor:
        for bookie in members:
            interceptor.add_rule(without(interceptor, bookie, entry), bookie=bookie)
        bench.step()
    assert not list_lost(bench.store)
    assert bench.recovery.repairs.counters.found == 1
    assert bench.copies(ledger) == {3}


def test_entries_that_the_returned_disk_does_not_have_stay_on_the_list(bench: RecoveryBench) -> None:
    ledger, entry = bench.ledger(), 42
    move_copies(bench, ledger, entry)
    metadata = bench.cluster.ledger_metadata(ledger)
    members = [bookie for bookie in metadata.bookies() if metadata.asks_for(bookie, entry)]
    with RequestInterceptor(bench.cluster) as interceptor:
        for bookie in members:
            interceptor.add_rule(without(interceptor, bookie, entry), bookie=bookie)
        bench.step()
    assert list_lost(bench.store)


def test_while_a_member_is_away_the_list_stays(bench: RecoveryBench) -> None:
    """Once the entries are off the list, the returned bookie may remove its copies as surplus."""
    ledger, entry = bench.ledger(), 42
    move_copies(bench, ledger, entry)
    metadata = bench.cluster.ledger_metadata(ledger)
    away = next(bookie for bookie in metadata.bookies() if metadata.asks_for(bookie, entry))
    bench.bookies.pop(away).close()
    bench.step()
    assert list_lost(bench.store)
    assert ledger in bench.recovery.repairs.failures


def test_entries_that_all_members_have_leave_the_list(bench: RecoveryBench) -> None:
    """A worker listed them as another process found them. The bookie that is listed with them never returns."""
    ledger = bench.ledger()
    note_lost(bench.store, ledger, [LostRange(3, 9, 2, "gone@0", 0)])
    bench.step()
    assert not list_lost(bench.store)


def test_the_version_changes_before_entries_leave_the_list(
    bench: RecoveryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that holds them for lost compares the version as it names a bookie that lacks them."""
    ledger = bench.ledger()
    note_lost(bench.store, ledger, [LostRange(3, 9, 2, "gone@0", 0)])
    before = bench.store.get(metadata_key(ledger))
    assert before is not None
    changes: list[int] = []

    def remove(store: MetadataStore, which: int, entries: Collection[int]) -> None:
        after = store.get(metadata_key(which))
        assert after is not None and after.value == before.value
        changes.append(after.version - before.version)
        remove_lost(store, which, entries)

    monkeypatch.setattr("pyreplog.autorecovery.copy_repairs.remove_lost", remove)
    bench.step()
    assert changes[0] > 0 and not list_lost(bench.store)


def test_entries_stay_on_the_list_when_the_metadata_were_changed_meanwhile(bench: RecoveryBench) -> None:
    ledger = bench.ledger()
    note_lost(bench.store, ledger, [LostRange(3, 9, 2, "gone@0", 0)])
    with RequestInterceptor(bench.cluster) as interceptor:

        def change_version(bookie: str, request: Request, on_reply: Callable[[Any], None]) -> None:
            if not changed:
                stored = bench.store.get(metadata_key(ledger))
                assert stored is not None
                changed.append(bench.store.put(metadata_key(ledger), stored.value, stored.version))
            interceptor.pass_on(bookie, request, on_reply)

        changed: list[int] = []
        interceptor.add_rule(change_version, kind=RequestKind.HOLDINGS)
        bench.step()
        assert changed and list_lost(bench.store)
        assert "were changed while" in bench.recovery.repairs.failures[ledger]
        bench.step(10)
    assert not list_lost(bench.store)


def test_lost_entries_of_an_open_ledger_are_found(bench: RecoveryBench) -> None:
    """Its recovery reads the last entry before its last fragment, and could never close it without that one."""
    with bench.cluster.create_ledger(3, 2, 2) as writer:
        writer.append_batch([b"before"] * 6)
        leaving = writer.metadata.last_fragment.ensemble[0]
        bench.bookies.pop(leaving).close()
        writer.append_batch([b"behind"] * 6)
        metadata = bench.cluster.ledger_metadata(writer.id)
        assert metadata.last_fragment.first == 6 and metadata.state is State.OPEN
        entry = next(entry for entry in range(6) if not metadata.asks_for(leaving, entry))
        note_lost(bench.store, writer.id, [LostRange(entry, entry + 1, 1, "gone@0", 0)])
        bench.step()
        assert not list_lost(bench.store)


def test_deleted_ledgers_leave_the_list(bench: RecoveryBench) -> None:
    note_lost(bench.store, 999, [LostRange(3, 4, 1, "gone@0", 0)])
    bench.step()
    assert not list_lost(bench.store)


def test_a_list_that_names_more_than_the_ledger_has_is_bounded_by_the_ledger(bench: RecoveryBench) -> None:
    ledger = bench.ledger()
    (other,) = bench.bookies.keys() - bench.cluster.ledger_metadata(ledger).bookies()
    note_lost(bench.store, ledger, [LostRange(ENTRIES - 2, 1 << 62, 1, other, 0)])
    bench.step()
    assert bench.recovery.repairs.counters.found == 2


# ---- comparing replicas ------------------------------------------------------------------------------------------


def test_every_closed_ledger_is_checked_within_the_time(bench: RecoveryBench) -> None:
    ledgers = [bench.ledger() for _ in range(6)]
    change_config(bench.store, {"check_ms": 600_000})
    seen = []
    bench.step()
    for _ in range(9):
        bench.step(60)
        progress = find_progress(bench.store)
        assert progress is not None
        seen.append(progress.checked)
    assert seen == sorted(seen) and seen[-1] == len(ledgers)
    assert seen[2] <= 3, "the work is spread over the time"
    bench.step(60)
    progress = find_progress(bench.store)
    assert progress is not None and (progress.checked, progress.next_ledger) == (0, 0), "the next pass begins"


def test_copies_that_are_gone_without_a_trace_are_found_and_written_again(bench: RecoveryBench) -> None:
    ledger = bench.ledger()
    metadata = bench.cluster.ledger_metadata(ledger)
    bookie = sorted(metadata.bookies())[1]
    entry = metadata.holdings(bookie)[0][5]
    with RequestInterceptor(bench.cluster) as interceptor:
        interceptor.add_rule(without(interceptor, bookie, entry), bookie=bookie)
        bench.step()
        bench.step(8 * 86_400)
        bench.step()
    assert bench.recovery.repairs.counters.entries == 1
    assert repairs(bench.store)[0] == []


def test_a_member_whose_records_differ_is_replaced(bench: RecoveryBench) -> None:
    """A checksum that is right says nothing about it: the record is another one (digest unread: BookKeeper)."""
    ledger = bench.ledger()
    odd = sorted(bench.cluster.ledger_metadata(ledger).bookies())[1]
    with RequestInterceptor(bench.cluster) as interceptor:
        interceptor.add_rule(other_digest(interceptor, odd), kind=RequestKind.HOLDINGS, bookie=odd)
        bench.step()
        bench.step(8 * 86_400)
    assert odd not in bench.cluster.ledger_metadata(ledger).bookies()
    assert bench.copies(ledger) == {3}
    assert "copies-differ" not in bench.alarms()


def test_two_copies_that_differ_are_a_case_for_an_operator(bench: RecoveryBench) -> None:
    ledger = bench.ledger(4, 2)
    before = bench.cluster.ledger_metadata(ledger)
    odd = sorted(before.bookies())[1]
    with RequestInterceptor(bench.cluster) as interceptor:
        interceptor.add_rule(other_digest(interceptor, odd), kind=RequestKind.HOLDINGS, bookie=odd)
        bench.step()
        bench.step(8 * 86_400)
    assert bench.cluster.ledger_metadata(ledger) == before
    assert f"ledger {ledger}" in bench.alarms()["copies-differ"] and odd in bench.alarms()["copies-differ"]
    bench.step(8 * 86_400)  # the next pass begins
    bench.step(8 * 86_400)
    assert "copies-differ" not in bench.alarms(), "they are equal again"


def test_the_check_can_be_turned_off(bench: RecoveryBench) -> None:
    bench.ledger()
    change_config(bench.store, {"check_ms": 0})
    bench.step()
    bench.step(30 * 86_400)
    assert bench.store.get(REPLICAS_CHECK) is None


def other_digest(interceptor: RequestInterceptor, bookie: str) -> Callable[..., None]:
    """Makes a bookie tell another digest than that of its records."""

    def action(_: str, request: Request, on_reply: Callable[[Any], None]) -> None:
        def change(reply: Any) -> None:
            body = bytearray(reply.body)
            body[15] ^= 1
            on_reply(reply._replace(body=bytes(body)))

        interceptor.pass_on(bookie, request, change)

    return action


# ---- the value ---------------------------------------------------------------------------------------------------


def test_progress_goes_through_its_value() -> None:
    progress = CheckProgress(7, 8, 9, {3: "they differ"})
    assert CheckProgress.decode(progress.encode()) == progress


def test_fields_of_a_newer_version_are_kept() -> None:
    data = CheckProgress(7).encode().replace(b'"version":1', b'"version":2,"more":[1]')
    assert b'"more":[1]' in CheckProgress.decode(data).encode()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"began_us":-1,"next_ledger":0,"checked":0,"differing":{}}',
             b'{"began_us":1,"next_ledger":0,"checked":0,"differing":{"x":"y"}}']
)  # fmt: skip
def test_malformed_check_progress_raises_invalid_metadata_error_with_advice(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError, match="delete the key"):
        CheckProgress.decode(data)


def test_a_value_for_newer_readers_is_refused() -> None:
    with pytest.raises(MetadataVersionError):
        CheckProgress.decode(CheckProgress(7).encode().replace(b'"min_reader":1', b'"min_reader":2'))
