"""Reading, one message at a time: one replica after the other, and how many must lack an entry."""

from __future__ import annotations

import pytest

from pyreplog._native.quorum.quorum import write_set
from pyreplog.bookie.protocol import Reply, ReplyStatus
from pyreplog.errors import NoSuchEntryError, UnauthorizedError, UnreadableError

from .lab import LEDGER, OK, Bench, Lab, value_of, written


def values(bench: Bench) -> list[bytes]:
    values: list[bytes] = bench.result.values()
    return values


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize(("first", "last"), [(0, 9), (0, 0), (9, 9), (3, 8), (4, 5)])
def test_entries_come_in_order_from_all_stripes(quorums: tuple[int, int, int], first: int, last: int) -> None:
    lab = Lab(*quorums)
    written(lab, 10)
    assert values(lab.reading(first, last + 1).run()) == [value_of(entry) for entry in range(first, last + 1)]


def test_the_first_replica_is_asked_alone() -> None:
    lab = Lab()
    written(lab, 3)
    reading = lab.reading(0, 3, rank={"b": 0, "a": 1, "c": 2})
    assert [send.bookie for send in reading.sends] == ["b"]


@pytest.mark.parametrize(
    "status", [ReplyStatus.UNKNOWN, ReplyStatus.OVERLOADED, ReplyStatus.REFUSED, ReplyStatus.FENCED]
)
def test_the_next_replica_is_asked_after_an_error(status: ReplyStatus) -> None:
    lab = Lab()
    written(lab, 3)
    reading = lab.reading(0, 3)
    reading.reply(reading.take("a"), Reply(status, LEDGER, 0, 2, body=b"no"))
    assert [send.bookie for send in reading.sends] == ["b"]
    assert len(values(reading.run())) == 3


def test_the_next_replica_is_asked_when_one_is_not_there() -> None:
    lab = Lab()
    written(lab, 3)
    lab.down = set("ab")
    assert len(values(lab.reading(0, 3).run())) == 3


def test_a_damaged_copy_is_reported_and_read_elsewhere() -> None:
    lab = Lab()
    written(lab, 3)
    reading = lab.reading(0, 3)
    send = reading.take("a")
    good = reading.arrive(send)
    body = bytearray(good.body)
    body[70] ^= 1
    reading.reply(send, good._replace(body=bytes(body)))
    assert [(bad.bookie, bad.entry) for bad in reading.bad] == [("a", 0)]
    assert len(values(reading.run())) == 3


def test_damage_behind_good_entries_is_reported() -> None:
    """36, TestBatchedRead, #4789: the entries before the damage are returned."""
    lab = Lab()
    written(lab, 3)
    reading = lab.reading(0, 3)
    send = reading.take("a")
    good = reading.arrive(send)
    body = bytearray(good.body)
    body[-1] ^= 1
    reading.reply(send, good._replace(body=bytes(body)))
    assert values(reading) == [value_of(0), value_of(1)]
    assert [(bad.bookie, bad.entry) for bad in reading.bad] == [("a", 2)]


def test_a_missing_copy_is_read_elsewhere() -> None:
    lab = Lab()
    written(lab, 2)
    del lab.logs["a"].held[LEDGER][0]
    assert len(values(lab.reading(0, 2).run())) == 2


def test_one_bookie_that_lacks_an_entry_does_not_prove_its_absence() -> None:
    """Qw - Qa + 1 bookies must lack it; here the others do not answer."""
    lab = Lab()
    written(lab, 2)
    lab.down = {"a"}
    assert isinstance(lab.reading(5, 6).run().error, NoSuchEntryError)
    lab.down = {"a", "b"}
    assert isinstance(lab.reading(5, 6).run().error, UnreadableError)


def test_an_entry_with_damaged_copies_is_unreadable() -> None:
    """#2908: the index has the entry, and the log cannot be read."""
    lab = Lab()
    written(lab, 1)
    for name in "abc":
        lab.logs[name].damaged.add((LEDGER, 0))
    assert isinstance(lab.reading(0, 1).run().error, UnreadableError)


def test_another_incarnation_is_not_asked() -> None:
    """#4812: an empty directory at the same address would answer that the entry does not exist."""
    lab = Lab()
    written(lab, 1)
    for name in "abc":
        lab.empty(name)
    assert isinstance(lab.reading(0, 1).run().error, UnreadableError)


def test_reply_without_the_requested_entry_does_not_count() -> None:
    lab = Lab()
    written(lab, 1)
    reading = lab.reading(0, 1)
    for bookie in "abc":
        reading.reply(reading.take(bookie), Reply(OK, LEDGER, 4, 9))
    assert isinstance(reading.error, UnreadableError)


def test_entries_that_were_not_asked_for_are_refused() -> None:
    lab = Lab()
    written(lab, 4)
    reading = lab.reading(0, 2)
    other = lab.ask("a", reading.sends[0].request._replace(first=2, last=3))
    reading.reply(reading.take("a"), other._replace(first=0, last=1))
    assert len(reading.bad) == 1
    assert values(reading.run()) == [value_of(0), value_of(1)]


def test_a_wrong_password_ends_a_read() -> None:
    lab = Lab()
    written(lab, 1)
    reading = lab.reading(0, 1)
    reading.reply(reading.take("a"), Reply(ReplyStatus.UNAUTHORIZED, LEDGER))
    assert isinstance(reading.error, UnauthorizedError)
    reading.deliver()
    assert len(reading.finished) == 1


def test_a_refused_password_ends_a_read_though_another_replica_answers() -> None:
    lab = Lab()
    written(lab, 1)
    reading = lab.reading(0, 1)
    reading.do(reading.machine.woken(reading.wakes[0].about))
    refused, late = reading.take("a"), reading.take("b")
    reading.reply(refused, Reply(ReplyStatus.UNAUTHORIZED, LEDGER))
    reading.reply(late)
    assert len(reading.finished) == 1 and isinstance(reading.error, UnauthorizedError)


# ---- speculative reads -----------------------------------------------------------------------------------------


def test_a_slow_replica_is_followed_by_the_next() -> None:
    """35, TestSpeculativeRead: the first good answer counts, and a late one is ignored."""
    lab = Lab()
    written(lab, 1)
    reading = lab.reading(0, 1, speculate_s=0.1)
    slow = reading.take("a")
    wake = reading.wakes.pop()
    assert wake.seconds == 0.1
    reading.do(reading.machine.woken(wake.about))
    assert [send.bookie for send in reading.sends] == ["b"]
    reading.deliver("b")
    assert values(reading) == [value_of(0)]
    reading.reply(slow)
    assert len(reading.finished) == 1


def test_the_slow_replica_may_still_be_the_one_that_answers() -> None:
    lab = Lab()
    written(lab, 1)
    reading = lab.reading(0, 1)
    slow = reading.take("a")
    reading.do(reading.machine.woken(reading.wakes.pop().about))
    reading.fail("b")
    reading.fail("c")
    assert reading.finished == []
    reading.reply(slow)
    assert values(reading) == [value_of(0)]


def test_nothing_is_speculated_on_after_an_answer() -> None:
    lab = Lab()
    written(lab, 1)
    reading = lab.reading(0, 1)
    reading.run()
    assert list(reading.machine.woken(reading.wakes.pop().about)) == []


def test_speculative_read_timer_of_a_replica_fires_once() -> None:
    lab = Lab()
    written(lab, 1)
    reading = lab.reading(0, 1)
    first = reading.wakes.pop()
    reading.do(reading.machine.woken(first.about))
    assert list(reading.machine.woken(first.about)) == []


# ---- sizes and fragments ---------------------------------------------------------------------------------------


def test_a_read_ends_with_its_fragment() -> None:
    lab = Lab()
    writer = written(lab, 2)
    writer.append(2)
    writer.fail("a")
    writer.run()
    assert {send.request.last for send in lab.reading(0, 4).sends} == {1}
    assert values(lab.reading(0, 4).run()) == [value_of(0), value_of(1)]
    assert values(lab.reading(2, 4).run()) == [value_of(2), value_of(3)]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (5, 3, 2)])
def test_a_limit_cuts_a_read_without_gaps(quorums: tuple[int, int, int]) -> None:
    lab = Lab(*quorums)
    written(lab, 12)
    first = 0
    while first < 12:
        actual_values = values(lab.reading(first, 12, bytes_max=200).run())
        assert actual_values and actual_values == [
            value_of(entry) for entry in range(first, first + len(actual_values))
        ]
        first += len(actual_values)


def test_read_fails_when_one_stripe_is_unavailable() -> None:
    """E > Qw: entry 1 is on b and c only."""
    lab = Lab(size=3, write_quorum=2, ack_quorum=2)
    written(lab, 6)
    lab.down = {"b", "c"}
    reading = lab.reading(0, 6).run()
    assert isinstance(reading.error, UnreadableError)
    assert "entry 1" in str(reading.error)


def test_range_requests_name_the_stripe_of_each_bookie() -> None:
    lab = Lab(size=3, write_quorum=2, ack_quorum=2)
    written(lab, 6)
    asked = [(send.bookie, send.request) for send in lab.reading(0, 6).sends]
    assert [(bookie, request.first, request.last, request.step, request.run) for bookie, request in asked] == [
        ("b", 0, 5, 3, 2),  # entries 0, 1, 3 and 4, which are all that b has
        ("c", 2, 5, 3, 1),
    ]


@pytest.mark.parametrize("quorums", [(4, 3, 2), (5, 3, 2), (7, 2, 1), (6, 3, 3), (5, 4, 2), (3, 1, 1)])
def test_read_requests_each_entry_once_from_a_bookie_that_has_it(quorums: tuple[int, int, int]) -> None:
    """Each entry is requested once, from a bookie that has it."""
    size, write_quorum, _ = quorums
    lab = Lab(*quorums)
    ensemble = lab.metadata.last_fragment.ensemble
    for first, last in ((0, 40), (3, 40), (5, 5), (6, 7), (2, 2 + size - 1)):
        requests = {send.bookie: send.request for send in lab.reading(first, last + 1).sends}
        assert len(requests) == -(-min(size, last - first + 1) // write_quorum)
        asked = [
            (entry, bookie)
            for bookie, request in requests.items()
            for entry in request.asked(last + 1).tolist()
            if entry <= last
        ]
        assert sorted(entry for entry, _ in asked) == list(range(first, last + 1))
        assert all(bookie in [ensemble[i] for i in write_set(entry, size, write_quorum)] for entry, bookie in asked)


def test_range_that_no_bookie_returns_whole_is_read_entry_by_entry() -> None:
    """Only b has entries 0 and 1, and returns one of them. The slow c is asked after those that were not asked yet."""
    lab = Lab(size=3, write_quorum=2, ack_quorum=1)
    written(lab, 6)
    del lab.logs["b"].held[LEDGER][0]
    reading = lab.reading(0, 6)
    reading.deliver("b")
    assert [(send.bookie, send.request.first, send.request.run) for send in reading.sends] == [
        ("c", 2, 1), ("a", 0, 1), ("c", 1, 1),
    ]  # fmt: skip
    reading.fail("a")
    assert reading.finished == []
    assert isinstance(reading.run().error, UnreadableError)
    lab.logs["b"].held[LEDGER].update(lab.logs["a"].held[LEDGER])
    assert values(lab.reading(0, 6).run()) == [value_of(entry) for entry in range(6)]


def test_a_bookie_that_is_slow_with_a_run_is_asked_again_behind_the_others() -> None:
    lab = Lab(size=3, write_quorum=2, ack_quorum=1)
    written(lab, 6)
    reading = lab.reading(0, 6)
    slow = reading.take("b")
    reading.do(reading.machine.woken(next(wake for wake in reading.wakes if wake.about == slow).about))
    assert {send.bookie for send in reading.sends} == {"a", "c"}
    reading.reply(slow)  # this answer is too late, as the other bookies were asked
    assert reading.finished == []
    assert values(reading.run()) == [value_of(entry) for entry in range(6)]


def test_an_entry_that_is_there_for_certain_is_unreadable_not_absent() -> None:
    """The ledger is closed after this entry. A bookie without it has lost it, and is noted for repair."""
    lab = Lab()
    written(lab, 3).close().run()
    for name in "ab":
        del lab.logs[name].held[LEDGER][1]
    lab.down.add("c")
    reading = lab.reading(1, 2).run()
    assert isinstance(reading.error, UnreadableError)
    assert {(bad.bookie, bad.entry) for bad in reading.bad} == {("a", 1), ("b", 1)}
    lab.down.clear()
    assert values(lab.reading(1, 2).run()) == [value_of(1)]
    assert isinstance(lab.reading(3, 4).run().error, NoSuchEntryError)
