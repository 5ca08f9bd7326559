"""Comparing what the members of a closed ledger hold, one message at a time."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from ledger.lab import LEDGER, Bench, Lab, written

from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.protocol import copy_check
from pyreplog.autorecovery.protocol.copy_check import CopyCheck, CopyReport, MemberVerdict
from pyreplog.bookie.holdings import Holdings
from pyreplog.bookie.protocol import Reply, ReplyStatus, RequestKind
from pyreplog.errors import InvalidArgumentError
from pyreplog.ledger.ledger_metadata import Fragment
from tests.bookie.asking import records_of

COUNT = 40


def lab_of(size: int = 5, quorum: int = 3, count: int = COUNT) -> Lab:
    lab = Lab(size, quorum, quorum // 2 + 1, spares=2)
    written(lab, count)
    lab.metadata = lab.metadata.closed(count - 1, 100, count)
    return lab


def checking(lab: Lab, **options: Any) -> Bench:
    bench = Bench(lab, CopyCheck(lab.metadata, **options))
    bench.do(bench.machine.start())
    return bench


def report_of(bench: Bench) -> CopyReport:
    while bench.sends:
        bench.deliver()
    (finished,) = bench.finished
    assert finished.error is None
    report: CopyReport = finished.result
    return report


def stripe(lab: Lab, bookie: str) -> list[int]:
    index = lab.metadata.fragments[0].ensemble.index(bookie)
    sizes = lab.metadata.ensemble_size, lab.metadata.write_quorum
    return [entry for entry in range(lab.metadata.last_entry + 1) if index in write_set(entry, *sizes)]


def entries(ranges: list[range]) -> list[int]:
    return sorted(entry for numbers in ranges for entry in numbers)


def lose(lab: Lab, bookie: str, *lost: int) -> None:
    for entry in lost:
        del lab.logs[bookie].held[LEDGER][entry]


def exchange(lab: Lab, bookie: str, *others: int) -> None:
    """Other records, intact, in the place of the ledger's."""
    for entry in others:
        assert entry in lab.logs[bookie].held[LEDGER]
        lab.logs[bookie].held[LEDGER][entry] = records_of(entry, ledger=LEDGER, mark=b"another")


@pytest.mark.parametrize(("size", "quorum"), [(3, 3), (5, 3), (4, 2), (2, 2), (6, 5), (1, 1)])
@pytest.mark.parametrize("piece", [1, 3, 4096])
def test_members_that_hold_all_are_complete(
    size: int, quorum: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_check, "PIECE_ENTRIES", piece)
    lab = lab_of(size, quorum)
    report = report_of(checking(lab))
    assert report.is_complete
    assert report.nowhere == []
    for bookie, member in report.members.items():
        assert (member.held, member.missing, member.differs, member.unknown) == (len(stripe(lab, bookie)), [], [], [])


def test_nothing_but_holdings_of_their_stripes_is_asked_for() -> None:
    lab = lab_of()
    bench = checking(lab)
    asked: set[tuple[str, int]] = set()
    while bench.sends:
        for send in bench.sends:
            request = send.request
            assert request.kind == RequestKind.HOLDINGS
            asked |= {(send.bookie, entry) for entry in range(request.first, request.last + 1, request.step)}
        bench.deliver()
    assert asked == {(bookie, entry) for bookie in "abcde" for entry in stripe(lab, bookie)}


def test_copy_check_names_entries_that_a_member_lacks() -> None:
    lab = lab_of()
    gone = [entry for entry in (0, 5, 10, 17, 39) if entry in stripe(lab, "a")]
    lose(lab, "a", *gone)
    report = report_of(checking(lab))
    assert entries(report.members["a"].missing) == gone
    assert report.members["a"].verdict is MemberVerdict.MISSING
    assert report.members["a"].held == len(stripe(lab, "a")) - len(gone)
    assert all(report.members[bookie].verdict is MemberVerdict.COMPLETE for bookie in "bcde")
    assert report.nowhere == []
    assert not report.is_complete


def test_entry_that_every_member_lacks_is_reported_as_nowhere() -> None:
    lab = lab_of()
    for place in write_set(12, 5, 3):
        lose(lab, "abcde"[place], 12)
    assert entries(report_of(checking(lab)).nowhere) == [12]


def test_a_record_that_differs_is_found_by_the_majority() -> None:
    lab = lab_of()
    odd = [entry for entry in (5, 16, 27) if entry in stripe(lab, "b")]
    exchange(lab, "b", *odd)
    report = report_of(checking(lab))
    assert entries(report.members["b"].differs) == odd
    assert report.members["b"].verdict is MemberVerdict.DIFFERS
    assert all(report.members[bookie].verdict is MemberVerdict.COMPLETE for bookie in "acde")


def test_two_members_that_differ_are_both_named() -> None:
    lab = lab_of(2, 2)
    exchange(lab, "a", 7)
    report = report_of(checking(lab))
    assert [entries(report.members[bookie].differs) for bookie in "ab"] == [[7], [7]]


def test_records_that_differ_are_found_beside_entries_that_are_missing() -> None:
    lab = lab_of(3, 3)
    lose(lab, "a", 3, 4)
    lose(lab, "b", 20)
    exchange(lab, "c", 30)
    report = report_of(checking(lab))
    assert entries(report.members["a"].missing) == [3, 4]
    assert entries(report.members["b"].missing) == [20]
    assert entries(report.members["c"].differs) == []
    lose(lab, "c", 3, 4, 20)
    lose(lab, "a", 20)
    lose(lab, "b", 3, 4)
    report = report_of(checking(lab))
    assert [entries(report.members[bookie].differs) for bookie in "abc"] == [[], [], [30]]


@pytest.mark.parametrize("how", ["down", "absent", "read-only", "lies"])
def test_a_member_that_does_not_answer_is_unknown_and_ends_nothing(how: str) -> None:
    lab = lab_of()
    lose(lab, "b", *stripe(lab, "b")[3:5])
    bench = checking(lab, absent={"c"} if how == "absent" else ())
    if how == "down":
        lab.down.add("c")
    while bench.sends:
        send = bench.take(bench.sends[0].bookie)
        if send.bookie == "c" and how == "read-only":
            bench.reply(send, Reply(ReplyStatus.UNSUPPORTED, body=b"no such kind"))
        elif send.bookie == "c" and how == "lies":
            bench.reply(send, bench.arrive(send)._replace(body=Holdings(99, 0, (range(5),)).encode()))
        elif send.bookie == "c" and how == "down":
            bench.do(bench.machine.failed(send, ConnectionError("lost")))
        else:
            bench.reply(send)
    report = report_of(bench)
    assert entries(report.members["c"].unknown) == stripe(lab, "c")
    assert report.members["c"].verdict is MemberVerdict.UNKNOWN
    assert report.members["c"].why
    assert entries(report.members["b"].missing) == stripe(lab, "b")[3:5]
    assert report.nowhere == [], "unknown is not missing"


def test_a_damaged_record_is_unknown_and_what_lies_behind_it_is_compared() -> None:
    lab = lab_of(3, 3)
    lab.logs["a"].damaged.add((LEDGER, 12))
    lose(lab, "a", 30)
    report = report_of(checking(lab))
    assert entries(report.members["a"].unknown) == [12]
    assert entries(report.members["a"].missing) == [30]
    assert report.members["b"].held == COUNT


def test_missing_entries_of_a_ledger_in_limbo_are_unknown() -> None:
    lab = lab_of(3, 3)
    lose(lab, "a", 12, 13)
    lab.bookies["a"].limbo.enter([LEDGER])
    report = report_of(checking(lab))
    assert (entries(report.members["a"].unknown), report.members["a"].missing) == ([12, 13], [])


def test_a_member_that_cannot_say_is_asked_for_a_few_entries_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_check, "UNKNOWN_MAX", 4)
    lab = lab_of(3, 3)
    for entry in range(10, COUNT):
        lab.logs["a"].damaged.add((LEDGER, entry))
    bench = checking(lab)
    asked = 0
    while bench.sends:
        asked += sum(send.bookie == "a" for send in bench.sends)
        bench.deliver()
    report = report_of(bench)
    assert asked < 12
    assert entries(report.members["a"].unknown) == [*range(10, COUNT)]
    assert report.members["b"].verdict is MemberVerdict.COMPLETE


def test_members_that_answer_about_fewer_entries_are_compared_about_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bookie cuts its answer where it likes: digests of other entries are not compared."""
    lab = lab_of(3, 3)
    exchange(lab, "b", 7, 30)
    rng = random.Random(1)
    bench = checking(lab)
    while bench.sends:
        send = bench.take(bench.sends[0].bookie)
        whole = send.request
        last = rng.randint(whole.first, whole.last)
        bench.reply(send, lab.ask(send.bookie, whole._replace(last=last)))
    report = report_of(bench)
    assert entries(report.members["b"].differs) == [7, 30]
    assert [report.members[bookie].verdict for bookie in "ac"] == [MemberVerdict.COMPLETE] * 2


def test_fragments_have_members_of_their_own() -> None:
    lab = lab_of(3, 3)
    for entry in range(25, COUNT):
        lab.logs["d"].held[LEDGER][entry] = lab.logs["a"].held[LEDGER].pop(entry)
    moved = (Fragment(0, ("a", "b", "c")), Fragment(25, ("d", "b", "c")))
    lab.metadata = dataclasses.replace(lab.metadata, fragments=moved)
    report = report_of(checking(lab))
    assert report.is_complete
    assert {bookie: member.held for bookie, member in report.members.items()} == {"a": 25, "b": 40, "c": 40, "d": 15}


def test_the_window_bounds_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_check, "PIECE_ENTRIES", 2)
    lab = lab_of()
    bench = checking(lab, window=2)
    while bench.sends:
        assert len(bench.sends) <= 2 * 3
        bench.deliver(bench.sends[0].bookie)
    assert report_of(bench).is_complete


def test_entries_of_absent_members_are_unknown_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_check, "PIECE_ENTRIES", 1)
    lab = lab_of(3, 3)
    lab.metadata = lab.metadata.closed(4999, 100, 5000)
    report = report_of(checking(lab, absent="abc"))
    assert {member.verdict for member in report.members.values()} == {MemberVerdict.UNKNOWN}
    assert entries(report.members["a"].unknown) == [*range(5000)]


def test_a_report_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_check, "RANGES_MAX", 3)
    lab = lab_of(3, 3)
    lose(lab, "a", *range(0, COUNT, 2))
    member = report_of(checking(lab)).members["a"]
    assert (len(member.missing), member.is_cut, member.held) == (3, True, COUNT // 2)


@pytest.mark.parametrize("last", [-1, COUNT - 1])
def test_empty_ledgers_and_late_answers(last: int) -> None:
    lab = lab_of(3, 3)
    lab.metadata = lab.metadata.closed(last, 0, last + 1)
    bench = checking(lab)
    sends = list(bench.sends)
    report = report_of(bench)
    assert (report.is_complete, report.members["a"].held) == (True, last + 1)
    for send in sends:
        assert bench.machine.replied(send, Reply(ReplyStatus.UNKNOWN, LEDGER)) == []
        assert bench.machine.failed(send, ConnectionError("late")) == []
    assert bench.machine.woken(None) == []


def test_a_copy_check_refuses_an_empty_window_and_an_open_ledger() -> None:
    lab = lab_of(3, 3)
    with pytest.raises(InvalidArgumentError, match="window"):
        CopyCheck(lab.metadata, window=0)
    with pytest.raises(InvalidArgumentError, match="closed"):
        CopyCheck(Lab().metadata)


@pytest.mark.parametrize("seed", range(200))
def test_any_loss_and_any_order(seed: int) -> None:
    """What the report says is so: missing is missing, unknown members were silent, and what differs was exchanged."""
    rng = random.Random(seed)
    size = rng.randint(2, 5)
    quorum = rng.randint(2, size)
    lab = lab_of(size, quorum)
    lost: dict[str, set[int]] = {}
    silent = rng.choice([None, None, "a"])
    for bookie in "abcde"[:size]:
        own = stripe(lab, bookie)
        lost[bookie] = {*rng.sample(own, min(len(own), rng.choice([0, 0, 1, 6])))}
        lose(lab, bookie, *lost[bookie])
    bookie = rng.choice("abcde"[:size])
    left = [entry for entry in stripe(lab, bookie) if entry not in lost[bookie]]
    odd = {*rng.sample(left, rng.choice([0, 1, 3]))}
    exchange(lab, bookie, *odd)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_check, "PIECE_ENTRIES", rng.choice([1, 3, 7, 100]))
        bench = checking(lab, window=rng.randint(1, 4))
    while bench.sends:
        send = bench.take(rng.choice(bench.sends).bookie)
        if send.bookie == silent:
            bench.do(bench.machine.failed(send, ConnectionError("lost")))
        else:
            last = rng.randint(send.request.first, send.request.last)
            bench.reply(send, lab.ask(send.bookie, send.request._replace(last=last)))
    report = report_of(bench)
    for entry in entries(report.nowhere):
        members = [name for name in report.members if entry in stripe(lab, name)]
        assert silent not in members
        assert all(entry in lost[name] for name in members)
    for name, member in report.members.items():
        own = stripe(lab, name)
        if name == silent:
            assert entries(member.unknown) == own
            continue
        assert entries(member.missing) == sorted(lost[name])
        assert (member.held, member.unknown) == (len(own) - len(lost[name]), [])
        assert all({*difference} & odd for difference in member.differs), "nothing is suspected without reason"
