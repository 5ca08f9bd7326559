"""The state machine of a recovery, one message at a time.

Numbers in docstrings are those of BookKeeper's issues and of the scenarios that its tests cover.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

import pytest

from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import (
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedError,
    UnreadableError,
)
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, key_proof, ledger_key
from pyreplog.ledger.protocol import recovery as recovery_module
from pyreplog.ledger.protocol.effects import BadCopy

from .lab import KEY, LEDGER, OK, Bench, Lab, acked, value_of, written


def read_all(lab: Lab) -> list[bytes]:
    """Return the values of all entries of the closed ledger."""
    values: list[bytes] = []
    while len(values) <= lab.end:
        values += lab.reading(len(values), lab.end + 1).run().result.values()
    return values


def fenced(bench: Bench, bookies: str) -> None:
    """Let the recovery mark the ledger as in recovery, and fence these bookies."""
    bench.store()
    bench.deliver(bookies)


# ---- whole runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("batch", [1, 3, 13, 256])
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 3), (3, 3, 1), (1, 1, 1)])
def test_a_ledger_is_closed_at_its_last_entry(count: int, batch: int, quorums: tuple[int, int, int]) -> None:
    """9, LedgerRecoveryTest.testBatchRecoverySize3/13, testEmptyLedgerRecovery: batches that reach beyond the end."""
    lab = Lab(*quorums)
    written(lab, count)
    recovery = lab.recovery(batch=batch).run()
    assert recovery.result == lab.metadata
    assert (lab.end, lab.metadata.messages) == (count - 1, count)
    assert lab.metadata.length == sum(len(value_of(entry)) for entry in range(count))
    assert read_all(lab) == [value_of(entry) for entry in range(count)]


def test_a_closed_ledger_is_left_as_it_is() -> None:
    lab = Lab()
    written(lab, 2).close().run()
    recovery = lab.recovery()
    assert recovery.result.last_entry == 1 and recovery.sends == []


def test_entries_below_the_ack_quorum_get_all_their_copies() -> None:
    """The entries are written back before the ledger is closed."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver("b")
    recovery = lab.recovery(batch=1)
    fenced(recovery, "abc")
    recovery.deliver("b")
    assert [send.bookie for send in recovery.to("abc", RequestKind.ADD)] == ["a", "b", "c"]
    for bookie in "abc":
        while recovery.to(bookie, RequestKind.READ):
            recovery.reply(recovery.take(bookie, RequestKind.READ))
    for bookie in "abc":
        assert recovery.stores == []
        recovery.reply(recovery.take(bookie, RequestKind.ADD))
    recovery.run()
    assert (lab.end, lab.holders(0)) == (0, "abc")


def test_the_length_is_known_though_nothing_lay_behind_the_lac() -> None:
    """The entry at the LAC has the running length. One replica cannot return it, and the next one can."""
    lab = Lab()
    writer = written(lab, 3)
    writer.do(writer.machine.send_lac())
    writer.deliver()
    lab.logs["c"].damaged.add((LEDGER, 2))
    recovery = lab.recovery().run()
    assert recovery.result.messages == 3
    assert recovery.result.length == sum(len(value_of(entry)) for entry in range(3))


@pytest.mark.parametrize(("count", "lost", "messages"), [(3, 1, 2), (3, 2, 1), (1, 1, 0)])
def test_a_ledger_whose_last_entry_is_lost_is_closed_only_by_force(count: int, lost: int, messages: int) -> None:
    """The entry is before the last fragment. The ledger gets the length up to the last entry that can be read. If it
    could not be closed, no copy of its entries could ever be moved."""
    lab = Lab(spares=1)
    written(lab, count)
    fragments = (*lab.metadata.fragments, Fragment(count, ("a", "b", "d")))
    lab.change(dataclasses.replace(lab.metadata, fragments=fragments))
    for log in lab.logs.values():
        for entry in range(count - lost, count):
            log.held.get(LEDGER, {}).pop(entry, None)
    recovery = lab.recovery().run()
    assert isinstance(recovery.error, UnreadableError)
    assert f"its last entry, {count - 1}, cannot be read" in str(recovery.error)
    closed = lab.recovery(force=True).run().result
    assert (closed.last_entry, closed.messages) == (count - 1, messages)
    assert closed.length == sum(len(value_of(entry)) for entry in range(messages))


# ---- fencing ---------------------------------------------------------------------------------------------------


def test_the_writer_cannot_commit_behind_a_negative_answer() -> None:
    """1, #2614: LedgerRecovery2Test.testFirstWriterCannotCommitWriteAfter2ndWriterCloses.

    Qa = 2, and entry 0 is on a. The fence for c is lost. b and c answer that they lack the entry, so that the ledger
    ends
    before it. Then the writer's add reaches c, which was fenced by the read, and is refused.
    """
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.deliver("a")
    to_b, to_c = writer.take("b"), writer.take("c")
    recovery = lab.recovery()
    recovery.store()
    recovery.take("c", RequestKind.LAST)
    recovery.deliver("ab")
    recovery.to("a", RequestKind.READ)
    recovery.sends.remove(recovery.to("a", RequestKind.READ)[0])
    recovery.deliver("bc")
    recovery.run()
    assert lab.end == -1
    writer.reply(to_c)
    writer.reply(to_b)
    assert isinstance(future.exception(), LedgerFencedError)


def test_recovery_never_goes_below_the_last_fragment() -> None:
    """2, #2615: .testRecoveryWhenSecondEnsembleReturnsLacMinusOne. The new bookies know no LAC yet."""
    lab = Lab(size=2, write_quorum=2, ack_quorum=2, spares=3)
    writer = lab.writer()
    for _ in range(2):
        writer.append()
    for bookie in "ab":
        writer.reply(writer.take(bookie))
    writer.fail("ab")
    while writer.stores:
        writer.store()
    assert lab.fragments == {0: "ab", 1: "cd"}
    writer.deliver()
    lab.down = {"a"}
    recovery = lab.recovery()
    recovery.run()
    assert (lab.end, lab.fragments) == (1, {0: "ab", 1: "cd"})


def test_nothing_is_closed_while_all_are_down() -> None:
    """3, .testCantRecoverAllDown; BOOKKEEPER-150."""
    lab = Lab()
    written(lab, 1)
    lab.down = set("abc")
    recovery = lab.recovery().run()
    assert isinstance(recovery.error, UnreadableError)
    assert lab.metadata.state is State.IN_RECOVERY
    lab.down.clear()
    assert lab.recovery().run().result.last_entry == 0


def test_a_recovery_waits_until_enough_bookies_are_fenced() -> None:
    """BOOKKEEPER-150: two of three bookies do not answer, and Qa = 2: an entry may be on these two."""
    lab = Lab()
    written(lab, 2)
    recovery = lab.recovery()
    fenced(recovery, "c")
    assert recovery.to("abc", RequestKind.READ) == []
    recovery.fail("ab")
    assert isinstance(recovery.error, UnreadableError) and recovery.sends == []
    assert lab.metadata.state is State.IN_RECOVERY


def test_recovery_with_a_failed_bookie() -> None:
    """BOOKKEEPER-152: one of three bookies fails, and a spare one takes its place."""
    lab = Lab()
    written(lab, 2)
    lab.down = {"b"}
    lab.recovery().run()
    assert (lab.end, lab.fragments) == (1, {0: "adc"})
    assert lab.holders(1) == "abcd"


def test_a_ledger_unknown_to_one_and_a_failure_of_another() -> None:
    """13, ReadLastConfirmedOpTest: "no such ledger" is an answer, and a failure is not."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver("a")
    recovery = lab.recovery()
    fenced(recovery, "b")
    assert recovery.to("abc", RequestKind.READ) == []
    recovery.fail("c")
    assert recovery.to("abc", RequestKind.READ) == []
    recovery.deliver("a")
    assert len(recovery.to("abc", RequestKind.READ)) == 3


def test_a_hung_bookie_does_not_hold_recovery_up() -> None:
    """#1067, PR #1077; 32, TestFencing.testFencingWithHungBookie: bookie a never answers."""
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    writer = lab.writer()
    recovery = lab.recovery()
    recovery.store()
    recovery.deliver("bc")
    recovery.deliver("bc")
    recovery.store()
    assert lab.end == -1 and recovery.finished
    assert writer.machine.last_add_confirmed == -1


def test_a_bookie_that_answers_unknown_does_not_count_as_fenced() -> None:
    """A bookie in limbo or with a failing disk answers UNKNOWN, which does not count as fenced."""
    lab = Lab()
    written(lab, 1)
    recovery = lab.recovery()
    recovery.store()
    for bookie in "ab":
        recovery.reply(recovery.take(bookie), Reply(ReplyStatus.UNKNOWN, LEDGER))
    recovery.deliver("c")
    assert isinstance(recovery.error, UnreadableError)


def test_a_recovery_with_the_wrong_password_fences_no_bookie() -> None:
    """9, .testRecoveryWithWrongPassword; 34, TestFencing.testFencingBadPassword: no bookie is fenced by it."""
    lab = Lab()
    writer = written(lab, 1)
    recovery = lab.recovery(key=ledger_key(b"guess"))
    recovery.run()
    assert isinstance(recovery.error, UnauthorizedError)
    assert len(recovery.finished) == 1
    future = writer.append()
    writer.deliver()
    assert acked(future) and future.exception() is None


# ---- reading on ------------------------------------------------------------------------------------------------


def test_an_entry_is_missing_as_soon_as_enough_say_so() -> None:
    """36, TestParallelRead.testFailParallelRecoveryReadMissingEntryImmediately: Qw - Qa + 1 of them."""
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    recovery = lab.recovery()
    fenced(recovery, "abc")
    recovery.deliver("a")
    assert recovery.stores == []
    recovery.deliver("b")
    assert len(recovery.stores) == 1


def test_one_copy_is_enough_for_an_entry_to_exist() -> None:
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver("c")
    recovery = lab.recovery(batch=1)
    fenced(recovery, "abc")
    recovery.deliver("a")
    recovery.deliver("c")
    recovery.run()
    assert lab.end == 0


def test_a_failure_to_read_is_no_missing_entry() -> None:
    """#2908, #2612: two bookies cannot tell, and one lacks the entry: the result is unknown, and the ledger is not
    closed."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver("ab")
    for name in "ab":
        lab.logs[name].damaged.add((LEDGER, 0))
    recovery = lab.recovery().run()
    assert isinstance(recovery.error, UnreadableError)
    assert lab.metadata.state is State.IN_RECOVERY
    for name in "ab":
        lab.logs[name].damaged.clear()
    assert lab.recovery().run().result.last_entry == 0


def test_an_emptied_bookie_is_not_asked() -> None:
    """#2612, #4812: another incarnation at the same address would answer that it has no entries."""
    lab = Lab(size=2, write_quorum=2, ack_quorum=2)
    written(lab, 1)
    lab.empty("a")
    lab.down = {"b"}
    recovery = lab.recovery().run()
    assert isinstance(recovery.error, UnreadableError)
    assert lab.metadata.state is State.IN_RECOVERY
    lab.down.clear()
    assert lab.recovery().run().result.last_entry == 0


def test_damaged_reply_does_not_count_for_entries_after_the_damage() -> None:
    """The damaged copy is reported, and the other bookies decide."""
    lab = Lab()
    written(lab, 2)
    recovery = lab.recovery()
    fenced(recovery, "abc")
    send = recovery.take("a")
    good = recovery.arrive(send)
    body = bytearray(good.body)
    body[-1] ^= 1
    recovery.reply(send, good._replace(body=bytes(body)))
    assert [(bad.bookie, bad.entry) for bad in recovery.bad] == [("a", 1)]
    recovery.run()
    assert lab.end == 1


def test_an_answer_that_ends_early_is_asked_on() -> None:
    lab = Lab()
    written(lab, 3)
    recovery = lab.recovery()
    fenced(recovery, "abc")
    send = recovery.take("a")
    assert send.request.first == 0
    part = lab.ask("a", send.request._replace(last=0))
    recovery.reply(send, part)
    assert [again.request.first for again in recovery.to("a", RequestKind.READ)] == [1]
    recovery.run()
    assert lab.end == 2


def test_entries_behind_a_gap_are_cut() -> None:
    """11, ParallelLedgerRecoveryTest.testRecoveryOnEntryGap: entries 0 to 2 and 4 exist."""
    lab = Lab()
    writer = lab.writer()
    for _ in range(5):
        writer.append()
    for bookie in "abc":
        for entry in range(5):
            send = writer.take(bookie)
            if entry != 3:
                writer.arrive(send)
    recovery = lab.recovery().run()
    assert lab.end == 2 and len(recovery.finished) == 1


def test_a_later_fragment_may_lack_what_confirmed_entries_need_not() -> None:
    """Guaranteed write quorum: entry 0 is acked through a and b, then c is replaced from entry 0 on. A recovery that
    starts now asks d, which was not sent the entry yet."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.deliver("ab")
    writer.fail("c")
    writer.store()
    assert acked(future) and lab.fragments == {0: "abd"}
    lab.down = {"a"}
    recovery = lab.recovery().run()
    assert recovery.result.last_entry == 0
    assert read_all(lab) == [value_of(0)]


# ---- writing back ----------------------------------------------------------------------------------------------


def test_no_bookie_can_take_the_place_of_one_that_fails() -> None:
    """4, .testCanReadLacButCantWrite: too few bookies are left for an ack quorum."""
    lab = Lab(spares=0, ack_quorum=3)
    written(lab, 1)
    recovery = lab.recovery()
    fenced(recovery, "abc")
    recovery.deliver("abc")
    recovery.fail("b")
    recovery.run()
    assert isinstance(recovery.error, NotEnoughBookiesError)
    assert lab.metadata.state is State.IN_RECOVERY


@pytest.mark.parametrize(
    ("failing", "expected"),
    [("a", {0: "dbc"}), ("ab", {0: "dec"})],
    ids=["one", "two on the same entry"],
)
def test_a_bookie_that_fails_is_replaced_at_the_close(failing: str, expected: dict[int, str]) -> None:
    """7, .testRecoveryOneBookieFailsDuring, .testRecoveryTwoBookiesFailOnSameEntry: the first fragment is overwritten."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver("c")
    recovery = lab.recovery(batch=1)
    fenced(recovery, "abc")
    recovery.deliver("c")
    recovery.fail(failing, RequestKind.ADD)
    assert lab.fragments == {0: "abc"}
    recovery.run()
    assert (lab.end, lab.fragments) == (0, expected)
    assert set(lab.holders(0)) >= set(expected[0])


def test_a_bookie_that_fails_later_begins_another_fragment() -> None:
    """7, .testRecoveryOneBookieFailsAtStart and later: fragments are appended."""
    lab = Lab()
    writer = lab.writer()
    for _ in range(2):
        writer.append()
    writer.deliver("c")
    recovery = lab.recovery(batch=1)
    fenced(recovery, "abc")
    recovery.deliver("c")  # entry 0 is found
    for bookie in "abc":
        recovery.reply(recovery.take(bookie, RequestKind.ADD))
    recovery.deliver("c")  # entry 1 is found
    recovery.fail("a", RequestKind.ADD)
    recovery.run()
    assert (lab.end, lab.fragments) == (1, {0: "abc", 1: "dbc"})


def test_the_same_place_fails_twice() -> None:
    lab = Lab(spares=3)
    written(lab, 1)
    recovery = lab.recovery()
    fenced(recovery, "abc")
    recovery.deliver("abc")
    recovery.fail("a")
    recovery.fail("d")
    recovery.run()
    assert lab.fragments == {0: "ebc"} and "e" in lab.holders(0)


def test_a_second_replacement_is_chosen_beside_the_first() -> None:
    """The stored metadata lack the first replacement, which counts for the choice of racks all the same."""
    lab = Lab(spares=3)
    written(lab, 1)
    ensembles: list[tuple[str, ...]] = []
    choose = lab.choose

    def choose_and_note(
        metadata: LedgerMetadata, places: Sequence[int], taken: Set[str], last_resort: bool
    ) -> dict[int, str]:
        ensembles.append(metadata.last_fragment.ensemble)
        return choose(metadata, places, taken, last_resort)

    lab.choose = choose_and_note
    recovery = lab.recovery()
    fenced(recovery, "abc")
    recovery.deliver("abc")
    recovery.fail("a")
    recovery.fail("b")
    recovery.run()
    assert ensembles == [tuple("abc"), tuple("dbc")] and lab.fragments == {0: "dec"}


def test_no_bookie_gets_two_places() -> None:
    """d takes the place of a and fails, and may not take the place of b."""
    lab = Lab(spares=3)
    written(lab, 1)
    recovery = lab.recovery()
    fenced(recovery, "abc")
    recovery.deliver("abc")
    for bookie in "adb":
        recovery.fail(bookie)
    recovery.run()
    assert lab.fragments == {0: "efc"}


def test_a_recovery_that_dies_leaves_nothing_that_misleads_the_next() -> None:
    """8, BOOKKEEPER-355, LedgerRecoveryTest.testLedgerRecoveryWithRollingRestart: if the metadata named d already, the
    next recovery would ask d for entry 1, get two negative answers, and cut an acked entry."""
    lab = Lab(ack_quorum=2)
    writer = lab.writer()
    acks = [writer.append(), writer.append()]
    writer.deliver("ab")
    assert acked(acks[1])
    first = lab.recovery(batch=1)
    fenced(first, "abc")
    first.deliver("abc")
    first.fail("b")
    assert first.to("d") != []
    assert lab.fragments == {0: "abc"} and lab.version == 2
    lab.down = {"a"}
    second = lab.recovery().run()
    assert second.result.last_entry == 1


def test_reads_never_follow_the_bookies_of_the_write_back() -> None:
    """BOOKKEEPER-581: b fails while entry 0 is written back. Entries are still read from the bookies to which they were
    written."""
    lab = Lab()
    writer = lab.writer()
    acks = [writer.append() for _ in range(3)]
    writer.deliver()
    assert acked(acks[2])
    recovery = lab.recovery(batch=1)
    fenced(recovery, "abc")
    recovery.deliver("c")  # entry 0 is found
    recovery.fail("b", RequestKind.ADD)
    assert [send.request.first for send in recovery.to("d", RequestKind.ADD)] == [0]
    recovery.reply(recovery.take("c", RequestKind.READ))  # entry 1 is found
    assert {send.bookie for send in recovery.to("abcde", RequestKind.READ) if send.request.first == 2} == {
        "a",
        "b",
        "c",
    }
    recovery.run()
    assert lab.end == 2


def test_a_recovery_ends_while_bookies_restart_in_turn() -> None:
    """8: a bookie is restarted between any two steps of the recovery."""
    lab = Lab()
    written(lab, 3)
    recovery = lab.recovery(batch=1)
    turn = 0
    while recovery.sends or recovery.stores:
        lab.restart("abc"[turn % 3])
        turn += 1
        if recovery.stores:
            recovery.store()
        else:
            recovery.reply(recovery.sends.pop(0))
    assert recovery.result.last_entry == 2


def test_a_fence_survives_a_restart() -> None:
    """BOOKKEEPER-500, -815; 33, TestFencing.testFencingAndRestartBookies."""
    lab = Lab()
    writer = written(lab, 1)
    fenced(lab.recovery(), "abc")
    for name in "abc":
        lab.restart(name)
    future = writer.append()
    writer.deliver()
    assert isinstance(future.exception(), LedgerFencedError)


def test_no_add_is_taken_between_a_fence_and_its_sync() -> None:
    """The fence is durable before it is answered, also if the answer says that the bookie has no entries."""
    lab = Lab()
    replies: list[Reply] = []
    bookie = lab.bookies["a"]
    bookie.handle(Request(RequestKind.READ, LEDGER, 0, 9, KEY, Flag.FENCE), replies.append)
    assert replies == []
    bookie.commit()
    assert replies[0].status == OK
    lab.restart("a")
    writer = lab.writer()
    writer.append()
    assert lab.ask("a", writer.take("a").request).status == ReplyStatus.FENCED


# ---- others at the same ledger -----------------------------------------------------------------------------------


def test_a_recovery_takes_the_end_that_another_client_stored() -> None:
    """5, .testMetadataClosedDuringRecovery: the stored end is taken, although more entries were found."""
    lab = Lab()
    written(lab, 1)
    recovery = lab.recovery()
    recovery.store()
    lab.change(lab.metadata.closed(-1, 0, 0))
    recovery.run()
    assert recovery.result.last_entry == -1 and recovery.result.length == 0


def test_a_foreign_fragment_appears_meanwhile() -> None:
    """6, .testNewEnsembleAddedDuringRecovery: the recovery fails, and does not merge."""
    lab = Lab()
    written(lab, 2)
    recovery = lab.recovery()
    recovery.store()
    lab.change(lab.metadata.replace_bookies({0: ("e", 1)}))
    recovery.run()
    assert isinstance(recovery.error, UnreadableError)
    assert lab.metadata.state is State.IN_RECOVERY


def test_an_older_fragment_is_edited_meanwhile() -> None:
    lab = Lab(spares=4)
    writer = written(lab, 1)
    writer.append()
    writer.fail("a")
    writer.run()
    recovery = lab.recovery()
    recovery.store()
    edited = lab.metadata.fragments[0]._replace(ensemble=("g", "b", "c"))
    lab.change(type(lab.metadata)(**{**vars(lab.metadata), "fragments": (edited, *lab.metadata.fragments[1:])}))
    recovery.run()
    assert (lab.end, lab.fragments) == (1, {0: "gbc", 1: "dbc"})


def test_two_concurrent_recoveries_agree_on_the_end() -> None:
    """10, ParallelLedgerRecoveryTest.testConcurrentRecovery1-4, testRecoverBeforeWriteMetadata: both agree on one end."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver("a")
    first, other = lab.recovery(), lab.recovery()
    fenced(first, "bc")
    first.deliver("bc")  # this recovery takes entry 0 for missing
    fenced(other, "abc")
    other.deliver("a")  # this recovery has found entry 0
    first.store()
    other.run()
    first.run()
    assert first.result == other.result == lab.metadata
    assert lab.end == -1


def test_many_concurrent_recoveries_agree_on_the_end() -> None:
    """14, 31, TestFencing.testManyOpenParallel."""
    lab = Lab()
    writer = lab.writer()
    for _ in range(4):
        writer.append()
    writer.deliver("a")
    benches = [lab.recovery(batch=1 + number % 3) for number in range(12)]
    while any(bench.sends or bench.stores for bench in benches):
        for bench in benches:
            if bench.stores:
                bench.store()
            elif bench.sends:
                bench.reply(bench.sends.pop(0))
    assert {(bench.result.last_entry, bench.result.length) for bench in benches} == {(lab.end, lab.metadata.length)}


def test_a_recovery_takes_the_end_that_the_writer_stored() -> None:
    """12, .testRecoveryWhenClosingLedgerHandle."""
    lab = Lab()
    writer = written(lab, 2)
    recovery = lab.recovery()
    writer.close().run()
    assert writer.result.last_entry == 1
    assert recovery.run().result.last_entry == 1


def test_the_writer_changes_its_ensemble_meanwhile() -> None:
    """9, .testEnsembleChangeDuringRecovery: the first change of the metadata counts."""
    lab = Lab()
    writer = written(lab, 1)
    future = writer.append()
    writer.fail("a")
    writer.deliver("bc")
    recovery = lab.recovery()
    writer.store()
    recovery.store()  # conflicts, and marks the new metadata
    assert (lab.version, lab.fragments) == (2, {0: "abc", 1: "dbc"})
    recovery.run()
    writer.run()
    assert lab.end == 1 and lab.fragments[1] == "dbc"
    assert acked(future)


def test_the_writer_cannot_change_its_ensemble_afterwards() -> None:
    lab = Lab()
    writer = written(lab, 1)
    future = writer.append()
    writer.fail("a")
    recovery = lab.recovery()
    recovery.store()
    writer.store()
    assert isinstance(future.exception(), LedgerFencedError)
    assert recovery.run().result.last_entry == 0


def test_acks_that_come_after_the_mark_are_found() -> None:
    """After a fence no entry is acked that recovery does not find: here b and c ack before they are fenced."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    recovery = lab.recovery()
    fenced(recovery, "a")
    writer.deliver("bc")
    assert acked(future)
    assert recovery.run().result.last_entry == 0


@pytest.mark.parametrize("stored", [True, False])
def test_the_answer_about_the_mark_is_lost(stored: bool) -> None:
    lab = Lab()
    written(lab, 1)
    recovery = lab.recovery()
    recovery.lose_answer(stored=stored)
    assert recovery.run().result.last_entry == 0


@pytest.mark.parametrize("stored", [True, False])
def test_the_answer_about_the_close_is_lost(stored: bool) -> None:
    lab = Lab()
    written(lab, 1)
    recovery = lab.recovery()
    recovery.store()
    while not recovery.stores:
        recovery.deliver()
    recovery.lose_answer(stored=stored)
    assert recovery.run().result.last_entry == 0 and lab.version == 3


def test_a_closed_ledger_is_never_closed_again() -> None:
    """BOOKKEEPER-584: the answer was lost, and another client closed the ledger at another end."""
    lab = Lab()
    written(lab, 1)
    recovery = lab.recovery()
    recovery.store()
    while not recovery.stores:
        recovery.deliver()
    lab.change(lab.metadata.closed(-1, 0, 0))
    recovery.run()
    assert (lab.end, lab.version) == (-1, 3)
    assert recovery.result.last_entry == -1


def test_a_recovery_of_a_deleted_ledger_fails() -> None:
    lab = Lab()
    recovery = lab.recovery()
    recovery.do(recovery.machine.deleted())
    assert isinstance(recovery.error, NoSuchLedgerError)
    recovery.deliver()
    assert len(recovery.finished) == 1


def test_a_bookie_with_another_key_does_not_stop_a_recovery() -> None:
    """It counts as a bookie that does not answer; the others determine the end."""
    lab = Lab()
    lab.ask("a", Request(RequestKind.LAST, LEDGER, key=b"s" * 16, flags=Flag.FENCE))
    writer = lab.writer()
    future = writer.append()
    writer.deliver("bc")
    recovery = lab.recovery()
    recovery.run()
    assert future.done() and recovery.error is None and lab.metadata.last_entry == 0


def test_recovery_fails_once_when_a_reply_fails_while_its_close_is_stored() -> None:
    """A late answer ends the recovery, and the outcome of its close is ignored."""
    lab = Lab()
    written(lab, 1)
    recovery = lab.recovery(batch=1)
    recovery.store()
    late = recovery.take("c")
    while not recovery.stores:
        recovery.deliver()
    recovery.machine.metadata = dataclasses.replace(recovery.machine.metadata, proof=key_proof(b"another"))
    recovery.reply(late, Reply(ReplyStatus.UNAUTHORIZED, LEDGER))
    recovery.run()
    assert isinstance(recovery.error, UnauthorizedError)
    assert len(recovery.finished) == 1


def test_finished_recovery_ignores_late_replies() -> None:
    lab = Lab()
    writer = written(lab, 1)
    recovery = lab.recovery()
    recovery.store()
    late = recovery.take("a")
    recovery.run()
    recovery.reply(late)
    assert len(recovery.finished) == 1
    with pytest.raises(LedgerClosedError):
        writer.close().run()
        writer.append()


# ---- limbo -----------------------------------------------------------------------------------------------------


def cut_power(lab: Lab, bookies: str, kept: int) -> None:
    """Remove all entries from `kept` on from these bookies, as a power cut does; the bookies know that entries may be
    lost."""
    for name in bookies:
        log = lab.logs[name]
        log.held[LEDGER] = {entry: raw for entry, raw in log.held[LEDGER].items() if entry < kept}
        lab.bookies[name] = Bookie(log, BookieConfig(), limbo=[LEDGER])


def test_bookies_in_limbo_do_not_close_a_ledger() -> None:
    """Two of three bookies have lost the end, and do not answer that it never existed."""
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    written(lab, 5)
    cut_power(lab, "ab", 2)
    recovery = lab.recovery().run()
    assert isinstance(recovery.error, UnreadableError) and "LIMBO" in str(recovery.error)
    assert lab.metadata.state is State.IN_RECOVERY
    cut_power(lab, "b", 2)
    lab.restart("a")
    assert isinstance(lab.recovery().run().error, UnreadableError), "limbo stays"


def test_recovery_restores_entries_of_a_bookie_in_limbo() -> None:
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    written(lab, 5)
    cut_power(lab, "a", 2)
    assert lab.recovery().run().result.last_entry == 4
    assert lab.holders(4) == "abc"


def test_a_forced_recovery_closes_the_ledger_with_what_is_left() -> None:
    """All bookies have lost entries: the ledger becomes the longest readable prefix, even below a known LAC."""
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    written(lab, 6)
    cut_power(lab, "ab", 1)
    cut_power(lab, "c", 3)
    assert isinstance(lab.recovery().run().error, UnreadableError)
    assert lab.recovery(force=True).run().result.last_entry == 2
    assert [lab.holders(entry) for entry in range(4)] == ["abc", "abc", "abc", ""]
    assert lab.ask("a", Request(RequestKind.ADD, LEDGER, 3, 3, KEY)).status == ReplyStatus.FENCED


def test_forced_recovery_does_not_lose_a_confirmed_entry_of_a_silent_bookie() -> None:
    """c does not answer, and may have an entry that b knows to be confirmed."""
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    writer = written(lab, 6)
    writer.do(writer.machine.send_lac())
    writer.deliver()
    cut_power(lab, "ab", 2)
    lab.down.add("c")
    recovery = lab.recovery(force=True).run()
    assert isinstance(recovery.error, UnreadableError) and "entry 2" in str(recovery.error)
    lab.down.clear()
    assert lab.recovery(force=True).run().result.last_entry == 5


def test_forced_recovery_of_a_ledger_without_limbo_gives_the_same_result() -> None:
    lab = Lab(size=4, write_quorum=3, ack_quorum=2)
    written(lab, 9)
    assert lab.recovery(force=True).run().result.last_entry == 8
    assert lab.recovery(force=True).result.last_entry == 8


# ---- copies of what was confirmed ------------------------------------------------------------------------------


def test_confirmed_entries_of_a_dead_writer_get_all_their_copies() -> None:
    """c lags. Entries up to the LAC have their ack quorum, and would never get more copies (#1390)."""
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    writer = lab.writer()
    for entry in range(6):
        writer.append()
        writer.deliver("abc" if entry < 2 else "ab")
    assert writer.machine.last_add_confirmed == 5 and lab.holders(2) == "ab"
    assert lab.recovery().run().result.last_entry == 5
    assert [lab.holders(entry) for entry in range(6)] == ["abc"] * 6


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2), (5, 3, 2)])
def test_recovery_reads_only_entries_after_the_last_confirmed_one(quorums: tuple[int, int, int]) -> None:
    """The cost of recovery depends on the tail of the ledger, not on its length."""
    lab = Lab(*quorums)
    writer = written(lab, 200)
    writer.do(writer.machine.send_lac())
    writer.deliver()
    recovery = lab.recovery()
    recovery.store()
    while recovery.to("abcde", RequestKind.LAST):
        recovery.deliver("abcde")
    assert {send.request.first for send in recovery.to("abcde", RequestKind.READ)} <= {200}
    assert recovery.run().result.last_entry == 199


def test_a_confirmed_entry_that_cannot_be_read_now_stays_in_the_ledger() -> None:
    """c lags, b has lost the entry, and a does not answer any more. The recovery neither ends before the entry nor
    fails."""
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    writer = lab.writer()
    for entry in range(6):
        writer.append()
        writer.deliver("abc" if entry < 2 else "ab")
    del lab.logs["b"].held[LEDGER][3]
    lab.down.add("a")
    assert lab.recovery().run().result.last_entry == 5
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    writer = lab.writer()
    for _ in range(6):
        writer.append()
        writer.deliver()
    for name in "abc":
        for lost in (3, 4) if name != "c" else (3, 4, 5):
            del lab.logs[name].held[LEDGER][lost]
        lab.restart(name)
    assert lab.recovery().run().result.last_entry == 5, "also when all have lost it"


# ---- memory ----------------------------------------------------------------------------------------------------


def test_recovery_bounds_bytes_that_were_read_and_not_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies hold few of these large entries, and entries that were found wait for the bookies to which they are
    written."""
    monkeypatch.setattr(recovery_module, "FOUND_BYTES_MAX", 1000)
    monkeypatch.setattr(recovery_module, "READ_BYTES_MAX", 400)
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    writer = lab.writer()
    for _ in range(60):
        writer.append()
    writer.deliver("ab")  # they do not know the LAC
    recovery = lab.recovery()
    recovery.store()
    recovery.deliver()
    most = 0
    while reads := recovery.to("abc", RequestKind.READ):
        recovery.sends = [send for send in recovery.sends if send not in reads]
        for send in reads:
            recovery.answer(send)
            most = max(most, recovery.machine._entry_range.nbytes + recovery.machine._push.pending_bytes)
    assert 1000 <= most <= 3000, "no more is read while nothing is written back"
    recovery.run()
    assert lab.end == 59 and [lab.holders(entry) for entry in range(60)] == ["abc"] * 60


def test_a_bookie_that_did_not_answer_is_noted_for_repair() -> None:
    """b is in the ensemble of confirmed entries and may lack them. It counts as complete until repair has looked."""
    lab = Lab(size=4, write_quorum=3, ack_quorum=2)
    writer = written(lab, 10)
    writer.do(writer.machine.send_lac())
    writer.deliver()
    lab.down.add("b")
    recovery = lab.recovery().run()
    assert recovery.result.last_entry == 9
    assert recovery.noted == [BadCopy("b", 9)]
    assert lab.recovery().run().noted == []


def test_a_bookie_that_lacks_entries_of_an_earlier_fragment_is_noted_for_repair() -> None:
    """d takes c's place from entry 0 on, and e that of a from entry 4 on. The writer dies before d has any entry. The
    copies of entries 0 to 3 on d are before the last fragment, where recovery does not write."""
    lab = Lab()
    writer = lab.writer()
    for _ in range(4):
        writer.append()
    writer.deliver("ab")
    writer.fail("c")
    writer.store()
    writer.append()
    writer.deliver("b")
    writer.fail("a")
    writer.store()
    assert lab.fragments == {0: "abd", 4: "ebd"}
    recovery = lab.recovery().run()
    assert recovery.result.last_entry == 4
    assert recovery.noted == [BadCopy("d", 3)]


def test_a_writer_that_gives_up_notes_bookies_without_confirmed_entries() -> None:
    """The ledger is closed, and c has none of its entries."""
    lab = Lab()
    writer = lab.writer()
    for _ in range(4):
        writer.append()
    writer.deliver("ab")
    writer.do(writer.machine.give_up(NotEnoughBookiesError("it takes too long")))
    writer.store()
    assert lab.metadata.last_entry == 3
    assert writer.noted == [BadCopy("c", 0)]


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
def test_a_writer_that_gives_up_during_a_change_notes_bookies_without_confirmed_entries(is_stored: bool) -> None:
    """The metadata name d in place of c from entry 0 on, and d is never sent an entry; or they name c, which failed."""
    lab = Lab()
    writer = lab.writer()
    for _ in range(4):
        writer.append()
    writer.deliver("ab")
    writer.fail("c")
    writer.do(writer.machine.give_up(NotEnoughBookiesError("it takes too long")))
    if not is_stored:  # another client changes the metadata meanwhile
        lab.change(dataclasses.replace(lab.metadata, custom={"who": "somebody"}))
    writer.run()
    assert lab.end == 3 and lab.fragments == ({0: "abd"} if is_stored else {0: "abc"})
    assert writer.noted == [BadCopy("d" if is_stored else "c", 0)]


@pytest.mark.parametrize("stored", [False, True])
def test_bookies_without_entries_are_noted_again_when_the_answer_about_the_close_is_lost(stored: bool) -> None:
    """Whether the note was stored is unknown as well."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver("ab")
    writer.do(writer.machine.give_up(NotEnoughBookiesError("it takes too long")))
    writer.lose_answer(stored=stored)
    writer.run()
    assert lab.end == 0 and writer.noted == [BadCopy("c", 0)]


@pytest.mark.parametrize("stored", [False, True])
def test_recovery_notes_again_when_the_answer_about_the_close_is_lost(stored: bool) -> None:
    lab = Lab()
    writer = written(lab, 3)
    writer.do(writer.machine.send_lac())
    writer.deliver()
    lab.down.add("c")
    recovery = lab.recovery()
    recovery.store()
    while recovery.sends:
        recovery.deliver()
    recovery.lose_answer(stored=stored)
    recovery.run()
    assert lab.end == 2 and recovery.noted == [BadCopy("c", 2)]


def test_a_writer_that_closes_on_top_of_a_recovery_notes_bookies_without_entries() -> None:
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver("ab")
    writer.do(writer.machine.give_up(NotEnoughBookiesError("it takes too long")))
    lab.change(lab.metadata.in_recovery())
    writer.store()
    writer.noted.clear()
    writer.store()
    assert lab.end == 0 and writer.noted == [BadCopy("c", 0)]


def test_only_entries_of_its_own_are_noted_of_a_bookie() -> None:
    """E > Qw: c has no entries and lacks entry 1. Entry 0 does not belong on c, so that it does not lack that."""
    lab = Lab(size=3, write_quorum=2, ack_quorum=1)
    writer = lab.writer()
    writer.append()
    writer.deliver("ab")
    writer.append()
    writer.deliver("b")
    writer.do(writer.machine.give_up(NotEnoughBookiesError("it takes too long")))
    writer.run()
    assert lab.end == 1 and writer.noted == [BadCopy("c", 1)]


@pytest.mark.parametrize("late", range(3))
def test_a_bookie_that_lags_and_answers_late(late: int) -> None:
    """Recovery has begun without the bookie, and has entries of its own in flight."""
    lab = Lab(size=3, write_quorum=3, ack_quorum=2)
    writer = lab.writer()
    for entry in range(8):
        writer.append()
        writer.deliver("abc" if entry < 2 else "ab")
    recovery = lab.recovery()
    recovery.store()
    recovery.deliver("ab")
    for _ in range(late):
        recovery.deliver("ab")
    recovery.run()
    assert recovery.result.last_entry == 7
    assert [lab.holders(entry) for entry in range(8)] == ["abc"] * 8
    assert lab.fragments == {0: "abc"}


@pytest.mark.parametrize("answers", [True, False])
def test_a_silent_bookie_is_waited_for_a_little_and_no_longer(answers: bool) -> None:
    """The bookie may only lag, so that its answer matters; it may also hang, as in #1067."""
    lab = Lab(size=4, write_quorum=3, ack_quorum=2)
    writer = written(lab, 10)
    writer.do(writer.machine.send_lac())
    writer.deliver()
    recovery = lab.recovery()
    recovery.store()
    silent = recovery.take("d", RequestKind.LAST)
    for _ in range(3):
        recovery.deliver("abcd")
    assert recovery.stores == [] and [wake.about for wake in recovery.wakes] == ["silent"]
    if answers:
        recovery.reply(silent)
    else:
        recovery.do(recovery.machine.woken("silent"))
    recovery.run()
    assert recovery.result.last_entry == 9
    assert recovery.noted == ([] if answers else [BadCopy("d", 9)])
