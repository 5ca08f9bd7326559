"""Giving a member the copies that it lacks, one message at a time."""

from __future__ import annotations

from typing import Any

import pytest
from ledger.lab import LEDGER, Bench, Lab, written

from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.protocol.member_repair import MemberRepair, MemberRepaired
from pyreplog.bookie.protocol import Reply, ReplyStatus, RequestKind
from pyreplog.errors import UnreadableError

COUNT = 60


def lab_of(size: int = 5, quorum: int = 3) -> Lab:
    lab = Lab(size, quorum, 2, spares=2)
    written(lab, COUNT)
    return lab


def stripe(lab: Lab, bookie: str) -> list[int]:
    sizes, index = (lab.metadata.ensemble_size, lab.metadata.write_quorum), "abcdefgh".index(bookie)
    return [entry for entry in range(COUNT) if index in write_set(entry, *sizes)]


def held(lab: Lab, bookie: str) -> list[int]:
    return [entry for entry in range(200) if lab.logs[bookie].holds(LEDGER, entry)]


def drop(lab: Lab, bookie: str, *entries: int) -> None:
    """A bookie's copies are gone without a trace."""
    for entry in entries:
        del lab.logs[bookie].held[LEDGER][entry]


def repairing(lab: Lab, bookie: str, **options: Any) -> Bench:
    options.setdefault("stop", COUNT)
    bench = Bench(lab, MemberRepair(lab.metadata, bookie, **options))
    bench.do(bench.machine.start())
    return bench


def finish(bench: Bench) -> MemberRepaired:
    while bench.sends:
        bench.deliver()
    (finished,) = bench.finished
    assert finished.error is None, finished.error
    result: MemberRepaired = finished.result
    return result


def failure(bench: Bench) -> str:
    while bench.sends:
        bench.deliver()
    (finished,) = bench.finished
    assert isinstance(finished.error, UnreadableError)
    return str(finished.error)


@pytest.mark.parametrize(("size", "quorum"), [(3, 3), (5, 3), (4, 2)])
def test_a_member_gets_what_it_lacks_and_no_more(size: int, quorum: int) -> None:
    for bookie in "abcde"[:size]:
        lab = lab_of(size, quorum)
        wanted = stripe(lab, bookie)
        gone = [*wanted[:2], *wanted[5:9], wanted[-1]]
        drop(lab, bookie, *gone)
        repaired = finish(repairing(lab, bookie))
        assert held(lab, bookie) == wanted
        assert (repaired.entries, repaired.missing) == (len(gone), ())
        assert repaired.bytes == sum(len(lab.logs[bookie].held[LEDGER][entry]) for entry in gone)


def test_nothing_is_read_for_a_member_that_is_whole() -> None:
    lab = lab_of()
    bench = repairing(lab, "b")
    kinds = set()
    while bench.sends:
        kinds |= {send.request.kind for send in bench.sends}
        bench.deliver()
    assert kinds == {RequestKind.HOLDINGS}
    assert finish(bench) == MemberRepaired()


def test_the_metadata_are_not_changed() -> None:
    lab = lab_of()
    drop(lab, "a", stripe(lab, "a")[3])
    bench = repairing(lab, "a")
    finish(bench)
    assert not bench.stores and not bench.loads


@pytest.mark.parametrize("status", [ReplyStatus.UNKNOWN, ReplyStatus.LIMBO])
def test_entries_that_a_member_cannot_report_are_copied(status: ReplyStatus) -> None:
    """A damaged record, or a ledger in limbo: the first answers cover nothing. The number of questions stays small."""
    lab = lab_of()
    wanted = stripe(lab, "a")
    bench = repairing(lab, "a")
    asked = 0
    while bench.sends:
        send = bench.sends.pop(0)
        if send.request.kind == RequestKind.HOLDINGS:
            asked += 1
            first, last = send.request.first, send.request.last
            bench.reply(send, Reply(status, LEDGER, first, last, body=b"it cannot tell"))
        else:
            bench.reply(send, bench.arrive(send))
    repaired = finish(bench)
    assert repaired.entries == len(wanted)
    assert asked <= 3 * 6, "of each of three write sets: 1, 2, 4, ... entries"


def test_entry_without_any_copy_is_reported_as_missing() -> None:
    lab = lab_of()
    entry = stripe(lab, "a")[4]
    for bookie in "abcde":
        if lab.logs[bookie].holds(LEDGER, entry):
            drop(lab, bookie, entry)
    assert finish(repairing(lab, "a")).missing == (entry,)


def test_an_entry_that_cannot_be_read_is_not_reported_missing() -> None:
    """The member itself cannot tell, and nobody else has the entry: it is not lost for certain."""
    lab = lab_of(3, 3)
    entry = stripe(lab, "a")[0]
    for bookie in "bc":
        drop(lab, bookie, entry)
    bench = repairing(lab, "a")
    (send,) = bench.sends
    bench.sends.remove(send)
    bench.reply(send, Reply(ReplyStatus.UNKNOWN, LEDGER, send.request.first, send.request.last, body=b"damaged"))
    assert f"no copy of entry {entry} can be read" in failure(bench)


def test_a_member_that_does_not_answer_is_not_proof() -> None:
    lab = lab_of()
    entry = stripe(lab, "a")[4]
    holders = [bookie for bookie in "bcde" if lab.logs[bookie].holds(LEDGER, entry)]
    drop(lab, "a", entry)
    lab.down.update(holders)
    assert f"no copy of entry {entry} can be read" in failure(repairing(lab, "a"))


def test_a_disk_that_returned_is_asked_as_well() -> None:
    lab = lab_of()
    entry = stripe(lab, "a")[4]
    holders = [bookie for bookie in "abcde" if lab.logs[bookie].holds(LEDGER, entry)]
    lab.logs["g"].held.setdefault(LEDGER, {})[entry] = lab.logs["a"].held[LEDGER][entry]
    for bookie in holders:
        drop(lab, bookie, entry)
    assert finish(repairing(lab, "a", others=["g"])) == MemberRepaired(1, len(lab.logs["g"].held[LEDGER][entry]))
    assert lab.logs["a"].holds(LEDGER, entry)


def test_only_some_fragments_are_looked_at() -> None:
    lab = lab_of()
    drop(lab, "a", stripe(lab, "a")[0])
    assert finish(repairing(lab, "a", firsts={COUNT})) == MemberRepaired()
    assert finish(repairing(lab, "a", firsts={0})).entries == 1


def test_a_wake_up_of_a_copy_that_has_ended_is_too_late() -> None:
    lab = lab_of()
    bench = repairing(lab, "a", throttle=lambda count: 0.1)
    (wake,) = bench.wakes
    bench.do(bench.machine.woken(wake.about))
    assert finish(bench) == MemberRepaired()
    bench.do(bench.machine.woken(wake.about))
    assert len(bench.finished) == 1 and not bench.sends


def test_the_open_end_of_a_ledger_is_left_alone() -> None:
    lab = lab_of()
    drop(lab, "a", *stripe(lab, "a"))
    assert finish(repairing(lab, "a", stop=None)) == MemberRepaired()
    assert not held(lab, "a")
    assert finish(repairing(lab, "a", stop=10)).entries == len([entry for entry in stripe(lab, "a") if entry < 10])
