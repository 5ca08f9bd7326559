"""The state machine of a writer, one message at a time.

Numbers in docstrings are those of BookKeeper's issues and of the scenarios that its tests cover.
"""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import (
    DisconnectedError,
    EntryRefusedError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerRefusedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State

from .lab import KEY, LEDGER, OK, Lab, acked, value_of

HOW_FAR = Request(RequestKind.LAST, LEDGER, key=KEY)


# ---- acks ------------------------------------------------------------------------------------------------------


def test_an_entry_is_acked_at_the_ack_quorum() -> None:
    writer = Lab().writer()
    future = writer.append()
    writer.deliver("b")
    assert not acked(future)
    writer.deliver("a")
    assert future.result() == range(1)
    assert writer.machine.last_add_confirmed == 0


def test_acks_come_in_order() -> None:
    lab = Lab()
    writer = lab.writer()
    first, second = writer.append(), writer.append(3)
    late = [writer.take(bookie) for bookie in "abc"]
    writer.deliver()
    assert not acked(second)
    for send in late[:2]:
        writer.reply(send)
    assert first.result() == range(1) and second.result() == range(1, 4)


def test_entries_carry_the_lac() -> None:
    lab = Lab()
    writer = lab.writer()
    for _ in range(3):
        writer.append()
        writer.deliver()
    assert [lab.ask("a", HOW_FAR).lac, writer.machine.last_add_confirmed] == [1, 2]


def test_send_lac_sends_the_confirmed_entry_once() -> None:
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver()
    writer.do(writer.machine.send_lac())
    assert {send.request.kind for send in writer.sends} == {RequestKind.SET_LAC}
    writer.deliver()
    assert lab.ask("c", HOW_FAR).lac == 0
    assert writer.machine.send_lac() == []


def test_writer_without_a_confirmed_entry_sends_no_lac() -> None:
    """Otherwise each ledger that is merely open would send requests to its bookies again and again."""
    writer = Lab().writer()
    assert writer.machine.send_lac() == []
    writer.append()
    assert writer.machine.send_lac() == []


def test_append_times_never_go_back() -> None:
    lab = Lab()
    writer = lab.writer()
    for time_us in (1000, 400, 1001):
        writer.do(writer.machine.append([b"x"], None, None, time_us=time_us)[1])
    writer.deliver()
    assert lab.reading(0, 3).run().result.timestamp.tolist() == [1000, 1000, 1001]


def test_a_slow_bookie_is_back_pressure_though_the_ack_quorum_is_met() -> None:
    """26, SlowBookieTest: pending bytes are counted until all copies are there, and the caller holds appends back by
    them."""
    writer = Lab().writer()
    for _ in range(10):
        assert writer.append(2) is not None
        writer.deliver("ab")
    assert (writer.machine.last_add_confirmed, writer.machine.pending_entries) == (19, 20)
    assert writer.machine.pending_bytes > 0
    writer.deliver("c")
    assert (writer.machine.pending_bytes, writer.machine.pending_entries) == (0, 0)


# ---- ensemble changes ------------------------------------------------------------------------------------------


def test_five_failing_adds_change_the_metadata_once() -> None:
    """15, HandleFailuresTest.testChangeTriggeredOneTimeForOneFailure."""
    lab = Lab()
    lab.down = {"a"}
    writer = lab.writer()
    futures = [writer.append() for _ in range(5)]
    writer.run()
    assert [future.result().start for future in futures] == [0, 1, 2, 3, 4]
    assert (lab.version, lab.fragments) == (2, {0: "dbc"})


def test_a_second_failure_while_the_first_is_stored() -> None:
    """16, .testSecondFailureOccursWhileFirstBeingHandled: two writes, one fragment."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.fail("a")
    writer.fail("b")
    assert len(writer.stores) == 1
    writer.store()
    assert len(writer.stores) == 1
    writer.run()
    assert (lab.version, lab.fragments) == (3, {0: "dec"})
    assert acked(future)


def test_a_bookie_fails_after_the_first_entry() -> None:
    """17, .testHandlingFailureOneBookieFailsAfterOneEntry."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver()
    writer.append()
    writer.fail("a")
    writer.run()
    assert lab.fragments == {0: "abc", 1: "dbc"}
    assert (lab.holders(0), lab.holders(1)) == ("abc", "bcd")


def test_several_fail_and_too_few_can_take_their_places() -> None:
    """18, .testHandlingFailureMultipleBookieFail...NotEnoughoReplace: the ledger is closed at the LAC with its former
    ensemble."""
    lab = Lab(spares=0)
    writer = lab.writer()
    writer.append()
    writer.deliver()
    future = writer.append()
    writer.fail("ab")
    writer.run()
    assert isinstance(future.exception(), NotEnoughBookiesError)
    assert (lab.end, lab.fragments) == (0, {0: "abc"})
    assert isinstance(writer.error, NotEnoughBookiesError)
    with pytest.raises(
        NotEnoughBookiesError, match=r"of its 3 bookies failed .*a: connection lost.*, 0 replacements were found"
    ):
        writer.append()


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (
            Reply(ReplyStatus.READ_ONLY, LEDGER, 0, 0, -1, b"only 7 bytes are free"),
            "b: READ_ONLY, only 7 bytes are free",
        ),
        (Reply(ReplyStatus.OVERLOADED, LEDGER, 0, 0), "b: OVERLOADED"),
        (Reply(ReplyStatus.OK, LEDGER, 7, 9), "b: its reply is about other entries"),
    ],
)
def test_writer_error_names_the_reason_of_bookie_failures(reply: Reply, why: str) -> None:
    lab = Lab(spares=0, ack_quorum=3)
    writer = lab.writer()
    writer.append()
    writer.reply(writer.take("b"), reply)
    writer.run()
    assert isinstance(writer.error, NotEnoughBookiesError)
    assert f"1 of its 3 bookies failed ({why}), 0 replacements were found" in str(writer.error)


@pytest.mark.parametrize(
    ("state", "error"), [(State.CLOSED, LedgerClosedError), (State.IN_RECOVERY, LedgerFencedError)]
)
def test_another_client_takes_the_ledger_during_a_change(state: State, error: type[Exception]) -> None:
    """19, .testMetadataSetToClosedDuringFailureHandler, ...ToInRecovery..."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.fail("a")
    lab.change(lab.metadata.closed(-1, 0, 0) if state is State.CLOSED else lab.metadata.in_recovery())
    writer.run()
    assert isinstance(future.exception(), error)
    assert (lab.metadata.state, lab.version, lab.fragments) == (state, 2, {0: "abc"})


def test_closing_a_writer_waits_for_an_ensemble_change() -> None:
    """19, .testClientClosesWhileFailureHandlerInProgress: here closing waits for the change, and for all copies."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.fail("a")
    writer.close()
    assert writer.finished == []
    writer.run()
    assert acked(future) and writer.result.last_entry == lab.end == 0
    assert lab.holders(0) == "bcd"


def test_an_older_fragment_is_edited_during_a_change() -> None:
    """20, .testOldEnsembleChangedDuringFailureHandler: both changes are kept."""
    lab = Lab(spares=4)
    writer = lab.writer()
    writer.append()
    writer.deliver()
    writer.append()
    writer.fail("a")
    writer.run()
    writer.append()
    writer.fail("b")
    lab.change(moved(lab, "abc", "abg"))
    writer.run()
    assert lab.fragments == {0: "abg", 1: "dbc", 2: "dec"}
    assert writer.machine.last_add_confirmed == 2


def moved(lab: Lab, before: str, after: str) -> LedgerMetadata:
    """Return metadata in which one fragment has another ensemble."""
    fragments = tuple(
        fragment._replace(ensemble=tuple(after)) if fragment.ensemble == tuple(before) else fragment
        for fragment in lab.metadata.fragments
    )
    return dataclasses.replace(lab.metadata, fragments=fragments)


def test_nothing_is_acked_during_a_change() -> None:
    """21, .testNoAddsAreCompletedWhileFailureHandlingInProgress."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.fail("a")
    writer.deliver()
    assert not acked(future)
    writer.store()
    assert acked(future)


def test_an_entry_that_does_not_touch_the_failed_place() -> None:
    """22, .testHandleFailureBookieNotInWriteSet, E > Qw."""
    lab = Lab(size=3, write_quorum=2, ack_quorum=2)
    writer = lab.writer()
    writer.append()
    writer.deliver()
    future = writer.append(1)  # sent to b and c
    writer.append(1)  # sent to c and a
    writer.deliver("bc")
    assert acked(future)
    writer.fail("a")
    writer.run()
    assert writer.machine.last_add_confirmed == 2
    assert lab.fragments == {0: "abc", 2: "dbc"}


def test_copies_above_the_ack_quorum_are_written_after_a_late_failure() -> None:
    """#1390, 25, BookWriteLedgerTest.testDelayedWriteEnsembleChange: BookKeeper leaves the entry with two copies."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.deliver("ab")
    assert acked(future)
    writer.fail("c")
    writer.run()
    assert (lab.fragments, lab.holders(0)) == ({0: "abd"}, "abd")
    assert writer.machine.pending_entries == 0


def test_each_replaced_place_begins_at_what_it_did_not_store() -> None:
    """Guaranteed write quorum with two lagging bookies: each replacement is sent only the entries that the bookie
    before it lacks."""
    lab = Lab(size=4, write_quorum=4, ack_quorum=2)
    writer = lab.writer()
    for _ in range(4):
        writer.append()
    writer.deliver("ab")
    for _ in range(2):
        writer.reply(writer.take("c"))
    writer.reply(writer.take("d"))
    writer.fail("c")
    writer.fail("d")
    writer.run()
    assert lab.fragments == {0: "abcd", 1: "abcf", 2: "abef"}
    assert [lab.holders(entry) for entry in range(4)] == ["abcd", "abcf", "abef", "abef"]


def test_a_change_begins_at_most_behind_the_lac() -> None:
    """Recovery takes all entries before the last fragment as confirmed. A bookie that is ahead of the LAC is replaced
    from the LAC on."""
    lab = Lab()
    writer = lab.writer()
    for _ in range(3):
        writer.append()
    for _ in range(2):
        writer.reply(writer.take("a"))
    writer.fail("a")
    writer.run()
    assert lab.fragments == {0: "dbc"}
    assert [lab.holders(entry) for entry in range(3)] == ["abcd", "abcd", "bcd"]


def test_batches_are_kept_while_a_change_is_stored() -> None:
    """The bookie had stored entry 0 and is replaced from entry 0 on: the new one must be sent that entry."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.append()
    writer.reply(writer.take("a"))
    writer.fail("a")
    writer.deliver("bc")
    writer.store()
    assert [send.request.first for send in writer.to("d")] == [0, 1]
    writer.run()
    assert acked(future) and lab.holders(0) == "abcd"


def test_a_bookie_of_a_later_fragment_takes_no_second_place_in_it() -> None:
    """c has entries from 0 on, and d those from 2 on. The bookie that replaces the slow b from entry 1 on must be
    neither."""
    lab = Lab(size=3, write_quorum=3, ack_quorum=1, spares=2)
    lab.choose = lambda metadata, places, taken, last_resort: dict(
        zip(places, [n for n in "cde" if n not in taken], strict=False)
    )
    writer = lab.writer()
    for _ in range(4):
        writer.append()
    for _ in range(2):
        writer.reply(writer.take("c"))
    writer.reply(writer.take("b"))
    writer.deliver("a")
    writer.fail("c")
    writer.store()
    assert lab.fragments == {0: "abc", 2: "abd"}
    writer.fail("b")
    writer.run()
    assert lab.fragments == {0: "abc", 1: "aec", 2: "aed"}
    assert [lab.holders(entry) for entry in range(4)] == ["abc", "ace", "ade", "ade"]


def test_metadata_first_then_the_new_bookies() -> None:
    """#1591: the ensemble was changed before the metadata, which were then never written: readers could not find acked
    entries."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.deliver("b")
    writer.fail("a")
    assert writer.to("d") == []
    writer.deliver("c")
    assert not acked(future)
    assert lab.recovery().run().result.last_entry == 0  # before the change is stored
    writer.store()
    assert isinstance(future.exception(), LedgerClosedError)


def test_no_entry_is_acked_before_the_acks_of_replaced_bookies_are_withdrawn() -> None:
    """#4097, #4651, PR #4194, E > Qw: entry 2 is not on the replaced a, and completes while the change is stored.
    Acking it also acked entry 3, which had its quorum through a, and was never sent to e."""
    lab = Lab(size=4, write_quorum=2, ack_quorum=2)
    writer = lab.writer()
    futures = [writer.append() for _ in range(5)]  # on ab bc cd da ab
    held_back = [writer.take("c"), writer.take("c")]  # entries 1 and 2
    writer.deliver("bd")
    for _ in range(2):
        writer.reply(writer.take("a"))  # entries 0 and 3
    writer.reply(held_back[0])
    writer.fail("a")
    writer.reply(held_back[1])
    assert [acked(future) for future in futures] == [True, True, False, False, False]
    writer.store()
    assert lab.fragments == {0: "abcd", 2: "ebcd"}
    assert [acked(future) for future in futures] == [True, True, True, False, False]
    writer.run()
    assert acked(futures[4]) and lab.holders(3) == "ade"


def test_late_errors_of_a_replaced_bookie_are_ignored() -> None:
    """#4459, #4261: the error began a change without effect, and the writer hung."""
    lab = Lab()
    writer = lab.writer()
    futures = [writer.append() for _ in range(3)]
    late = [writer.take("a") for _ in range(2)]
    writer.fail("a")
    writer.store()
    for send in late:
        writer.do(writer.machine.failed(send, DisconnectedError("connection lost")))
    assert writer.stores == []
    writer.run()
    assert all(acked(future) for future in futures)
    assert lab.version == 2


def test_late_acks_of_a_replaced_bookie_are_ignored() -> None:
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    late = writer.take("a")
    writer.sends.append(late)
    writer.fail("a")
    writer.store()
    writer.reply(late, Reply(OK, LEDGER, 0, 0))
    writer.deliver("b")
    assert not acked(future)
    writer.deliver("d")
    assert acked(future)


def test_the_new_bookie_fails_too() -> None:
    """#1886, #1887: the same place fails twice."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.fail("a")
    writer.store()
    writer.fail("d")
    writer.fail("b")
    writer.run()
    assert acked(future)
    assert (list(lab.fragments), lab.version) == ([0], 4)
    assert set(lab.fragments[0]) == set(lab.holders(0))


def test_a_place_fails_again_while_its_change_is_stored() -> None:
    """#1886: more adds to the failed bookie fail while the metadata are written; all of them need only one change."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.fail("a")
    writer.append()
    writer.fail("a")
    assert len(writer.stores) == 1
    writer.run()
    assert (lab.fragments, lab.version) == ({0: "dbc"}, 2)
    assert writer.machine.last_add_confirmed == 1


def test_bookies_that_store_nothing_take_a_place_only_so_often_without_a_pause() -> None:
    lab = Lab(spares=2, ack_quorum=3)
    lab.choose = lambda metadata, places, taken, last_resort: dict(
        zip(places, [n for n in lab.bookies if n not in taken], strict=False)
    )
    writer = lab.writer()
    writer.append()
    lab.down = {"a", "d", "e"}
    writer.run()
    assert lab.version == 4 and len(writer.wakes) == 1
    lab.down.clear()
    writer.do(writer.machine.woken(writer.wakes.pop().about))
    writer.run()
    assert writer.machine.pending_entries == 0


@pytest.mark.parametrize(
    "reply",
    [
        Reply(OK, LEDGER, 0, 5),
        Reply(OK, LEDGER, 1, 1),
        Reply(OK, LEDGER + 1, 0, 0),
        Reply(ReplyStatus.UNKNOWN, LEDGER, 0, 0),
    ],
    ids=["more", "another entry", "another ledger", "unknown"],
)
def test_a_bookie_that_answers_what_it_was_not_asked_is_replaced(reply: Reply) -> None:
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.reply(writer.take("a"), reply)
    assert not acked(future)
    writer.run()
    assert acked(future) and lab.fragments == {0: "dbc"}


def test_several_fail_in_the_last_fragment() -> None:
    """25, BookieWriteLedgerTest.testWithMultipleBookieFailuresInLastEnsemble."""
    lab = Lab(size=5, write_quorum=4, ack_quorum=2, spares=3)
    writer = lab.writer()
    for _ in range(5):
        writer.append(2)
    writer.run()
    lab.down = {"a", "c"}
    futures = [writer.append(2) for _ in range(5)]
    writer.run()
    assert all(acked(future) for future in futures)
    assert writer.close().run().result.last_entry == 19
    assert list(lab.fragments) == [0, 10]
    values = [value for first in (0, 10) for value in lab.reading(first, 20).run().result.values()]
    assert values == [value_of(entry) for entry in range(20)]


# ---- delayed changes -------------------------------------------------------------------------------------------


def test_a_delayed_change_waits_while_the_ack_quorum_can_be_reached() -> None:
    """23, TestDelayEnsembleChange.testNotChangeEnsembleIfNotBrokenAckQuorum, .testChangeEnsembleIfBrokenAckQuorum."""
    lab = Lab(size=5, write_quorum=5, ack_quorum=3, spares=3)
    writer = lab.writer(delay_ensemble_change=True)
    futures = [writer.append() for _ in range(3)]
    writer.fail("a")
    writer.fail("b")
    assert writer.stores == []
    writer.deliver("cde")
    assert all(acked(future) for future in futures)
    writer.append()
    writer.fail("c")
    writer.run()
    assert (lab.version, lab.fragments) == (2, {0: "fgcde", 3: "fghde"})


@pytest.mark.parametrize("seed", range(40))
def test_while_a_change_is_delayed_every_entry_reaches_its_ack_quorum(seed: int) -> None:
    """With ensembles larger than the write quorum: whichever bookies fail, the entries that the others have stored are
    acknowledged, by these alone or with replacements."""
    random = Random(seed)
    size = random.randint(3, 7)
    write_quorum = random.randint(2, size)
    ack_quorum = random.randint(1, write_quorum)
    lab = Lab(size, write_quorum, ack_quorum, spares=size)
    writer = lab.writer(delay_ensemble_change=True)
    failed = random.sample("abcdefg"[:size], random.randint(1, size))
    for name in failed:
        futures = [writer.append(random.randint(1, 3)) for _ in range(size)]
        lab.down.add(name)
        writer.fail(name)
        writer.run()
        assert all(acked(future) for future in futures), (
            f"{size}/{write_quorum}/{ack_quorum}, of {failed} {name} has failed"
        )


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 1)])
def test_a_failed_bookie_is_sent_nothing_more(quorums: tuple[int, int, int]) -> None:
    """It would store entries after those that it missed. If the writer died before another bookie took the place,
    recovery would take it that the bookie has all entries up to its last one."""
    lab = Lab(*quorums)
    writer = lab.writer(delay_ensemble_change=True)
    writer.append(3)
    writer.fail("a")
    writer.append(3)
    assert not writer.to("a") and not writer.stores
    writer.deliver()
    writer.do(writer.machine.send_lac())
    writer.deliver()
    assert lab.recovery().run().result.last_entry == 5
    copies = [len(lab.holders(entry)) for entry in range(6)]
    assert copies == [lab.metadata.write_quorum] * 6


def test_a_delayed_change_does_not_wait_for_a_read_only_bookie() -> None:
    """23, .testEnsembleChangeWhenReadOnly..."""
    lab = Lab()
    writer = lab.writer(delay_ensemble_change=True)
    writer.append()
    writer.reply(writer.take("a"), Reply(ReplyStatus.READ_ONLY, LEDGER, 0, 0))
    writer.run()
    assert lab.fragments == {0: "dbc"}


def test_a_delayed_change_does_not_wait_while_a_caller_waits_for_room() -> None:
    lab = Lab()
    writer = lab.writer(delay_ensemble_change=True)
    writer.append()
    writer.do(writer.machine.change_ensemble_now())
    writer.fail("a")
    writer.deliver()
    assert writer.stores == [] and writer.machine.pending_bytes > 0
    writer.do(writer.machine.change_ensemble_now())
    writer.run()
    assert writer.machine.pending_bytes == 0


def test_a_delayed_change_and_too_few_spares() -> None:
    """23, .testChangeEnsembleIfBookieReadOnly, with too few spare bookies."""
    lab = Lab(spares=0)
    writer = lab.writer(delay_ensemble_change=True)
    future = writer.append()
    writer.fail("ab")
    writer.run()
    assert isinstance(future.exception(), NotEnoughBookiesError)
    assert lab.end == -1


def test_closing_does_not_delay_the_change() -> None:
    lab = Lab()
    writer = lab.writer(delay_ensemble_change=True)
    writer.append()
    writer.fail("a")
    writer.deliver()
    writer.close().run()
    assert (lab.end, lab.holders(0)) == (0, "bcd")


# ---- the end ---------------------------------------------------------------------------------------------------


def test_a_fenced_writer_ends_at_once() -> None:
    lab = Lab()
    writer = lab.writer()
    futures = [writer.append() for _ in range(2)]
    lab.recovery().run()
    writer.deliver("a")
    assert [type(future.exception()) for future in futures] == [LedgerFencedError] * 2
    assert isinstance(writer.error, LedgerFencedError)
    assert writer.stores == []
    with pytest.raises(LedgerFencedError):
        writer.append()


@pytest.mark.parametrize(
    ("status", "error"), [(ReplyStatus.UNAUTHORIZED, UnauthorizedError), (ReplyStatus.REFUSED, LedgerRefusedError)]
)
def test_permanent_refusal_fails_the_writer_without_closing_the_ledger(
    status: ReplyStatus, error: type[Exception]
) -> None:
    """Another writer may own the ledger, so this one does not close it."""
    lab = Lab()
    writer = lab.writer(key=b"g" * 16)
    future = writer.append()
    writer.reply(writer.take("a"), Reply(status, LEDGER, 0, 0, body=b"another record is stored"))
    assert isinstance(future.exception(), error)
    assert lab.metadata.state is State.OPEN and writer.stores == []


def test_a_bookie_that_was_given_another_key_is_replaced() -> None:
    """The writer has the key of the metadata, so that the bookie with another key is wrong."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    lab.ask("a", Request(RequestKind.LAST, LEDGER, key=b"s" * 16, flags=Flag.FENCE))
    writer.run()
    assert acked(future) and writer.machine.error is None
    assert "a" not in lab.metadata.last_fragment.ensemble and lab.metadata.state is State.OPEN


def test_damaged_entries_end_the_writer_and_its_ledger_is_closed_without_them() -> None:
    """The ledger is not fenced: no other writer has it, and the error says so."""
    lab = Lab()
    writer = lab.writer()
    first, second = writer.append(), writer.append()
    writer.deliver("bc")
    writer.reply(writer.take("a"))
    damaged = writer.take("a")
    writer.reply(damaged, lab.ask("a", damaged.request._replace(records=b"\xff" * 64)))
    assert acked(first) and acked(second)
    assert isinstance(writer.machine.error, EntryRefusedError)
    with pytest.raises(EntryRefusedError):
        writer.append()
    writer.run()
    assert lab.metadata.state is State.CLOSED and lab.end == 1


def test_two_writers_of_one_ledger() -> None:
    """A bookie refuses a different entry with the same number. The writer that is refused ends, and leaves the metadata
    as they are."""
    lab = Lab()
    new_first, other = lab.writer(), lab.writer()
    first = new_first.append()
    second, effects = other.machine.append([b"another value"], None, None, time_us=1)
    other.do(effects)
    new_first.deliver("ab")
    other.deliver()
    assert acked(first) and isinstance(second.exception(), LedgerRefusedError)
    new_first.deliver("c")  # c has the other writer's entry already
    assert isinstance(new_first.error, LedgerRefusedError) and isinstance(other.error, LedgerRefusedError)
    assert (lab.version, lab.metadata.state) == (1, State.OPEN)
    assert lab.reading(0, 1).run().result.values() == [value_of(0)]


def test_giving_up_closes_at_the_lac() -> None:
    """24, TestAddEntryQuorumTimeout: pending adds fail, the ledger is closed."""
    lab = Lab()
    writer = lab.writer()
    done = writer.append()
    writer.deliver()
    pending = writer.append(2)
    writer.do(writer.machine.give_up(NotEnoughBookiesError("no answer in time")))
    writer.run()
    assert acked(done) and isinstance(pending.exception(), NotEnoughBookiesError)
    assert (lab.end, lab.metadata.messages, lab.metadata.length) == (0, 1, len(value_of(0)))


def test_giving_up_in_the_middle_of_a_batch() -> None:
    """28, LedgerCloseTest.testLedgerCloseWithConsistentLength: E > Qw, and the LAC is in the middle of a batch."""
    lab = Lab(size=3, write_quorum=2, ack_quorum=2)
    writer = lab.writer()
    future = writer.append(3)
    writer.deliver("ab")  # entry 0
    assert writer.machine.last_add_confirmed == 0
    writer.do(writer.machine.give_up(NotEnoughBookiesError("enough")))
    writer.run()
    assert future.exception() is not None
    assert (lab.end, lab.metadata.messages, lab.metadata.length) == (0, 1, len(value_of(0)))


def test_giving_up_during_a_change() -> None:
    """28, .testLedgerCloseDuringUnrecoverableErrors: the outcome of the change comes first, then the close."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.fail("a")
    writer.do(writer.machine.give_up(NotEnoughBookiesError("enough")))
    assert len(writer.stores) == 1
    writer.run()
    assert future.exception() is not None
    assert lab.end == -1
    assert len(writer.finished) == 1


def test_closing_a_failed_writer_waits_for_its_stores() -> None:
    lab = Lab()
    writer = lab.writer()
    writer.do(writer.machine.give_up(NotEnoughBookiesError("enough")))
    writer.close()
    assert len(writer.stores) == 1 and not writer.finished and lab.metadata.state is State.OPEN
    writer.run()
    assert lab.end == -1 and [type(item.error) for item in writer.finished] == [NotEnoughBookiesError]
    assert isinstance(writer.close().error, NotEnoughBookiesError)


def test_all_acks_are_settled_when_the_writer_ends() -> None:
    """28, .testAllWritesAreCompletedOnClosedLedger."""
    lab = Lab()
    writer = lab.writer()
    futures = [writer.append() for _ in range(100)]
    writer.deliver("a")
    lab.recovery().run()
    writer.deliver("bc")
    assert all(future.done() for future in futures)


def test_a_closed_writer_refuses_appends() -> None:
    """29, LedgerClose2Test: the refused append uses up no entry number."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver()
    writer.close()
    with pytest.raises(LedgerClosedError):
        writer.append()
    writer.run()
    with pytest.raises(LedgerClosedError):
        writer.append()
    assert (lab.end, writer.machine.last_add_pushed) == (0, 0)


def test_a_second_close_of_a_writer_is_refused_after_the_end() -> None:
    lab = Lab()
    writer = lab.writer()
    writer.close()
    writer.close().run()
    assert lab.end == -1 and len(writer.finished) == 1
    writer.close()
    assert isinstance(writer.error, LedgerClosedError)


def test_closing_meets_the_same_end() -> None:
    """29, .testMetadataCloseWithEqual..."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver()
    writer.close()
    lab.change(lab.metadata.closed(0, len(value_of(0)), 1))
    writer.run()
    assert writer.result.last_entry == 0


def test_closing_never_overwrites_another_end() -> None:
    """BOOKKEEPER-584; 29: the ledger was closed with another end meanwhile."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver()
    writer.close()
    lab.change(lab.metadata.closed(-1, 0, 0))
    writer.run()
    assert isinstance(writer.error, LedgerClosedError)
    assert lab.end == -1


def test_a_writer_closes_while_a_recovery_runs() -> None:
    """29, .testMetadataCloseMarkedInRecoveryWhileClosing: all entries are confirmed, so that recovery closes at the
    same end."""
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver()
    writer.close()
    recovery = lab.recovery()
    recovery.store()
    writer.run()
    assert lab.end == 0 and writer.error is None
    assert recovery.run().result.last_entry == 0


def test_closing_never_takes_the_ledger_from_another_writer() -> None:
    lab = Lab()
    writer, other = lab.writer(), lab.writer()
    other.append()
    other.fail("a")
    other.run()
    assert lab.fragments == {0: "dbc"}
    writer.close().run()
    assert isinstance(writer.error, LedgerFencedError)
    assert lab.metadata.state is State.OPEN


# ---- metadata answers that get lost -----------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
def test_the_answer_about_a_change_is_lost(stored: bool) -> None:
    """30: BookKeeper has a token for creations. Here each change is compared with the stored metadata: it was stored,
    or is stored again."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.fail("a")
    writer.lose_answer(stored=stored)
    writer.run()
    assert acked(future)
    assert (lab.version, lab.fragments) == (2, {0: "dbc"})


@pytest.mark.parametrize("stored", [True, False])
def test_the_answer_about_the_close_is_lost(stored: bool) -> None:
    lab = Lab()
    writer = lab.writer()
    writer.append()
    writer.deliver()
    writer.close()
    writer.lose_answer(stored=stored)
    writer.run()
    assert (writer.result.last_entry, lab.version) == (0, 2)


def test_a_lost_change_is_stored_after_it_was_tried_again() -> None:
    """The first request arrives late, and the second one conflicts with it: the writer recognizes its own change."""
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.fail("a")
    late = writer.stores[0]
    writer.lose_answer(stored=False)
    assert writer.compare_and_set(late)
    writer.run()
    assert acked(future) and lab.version == 2


def test_a_writer_of_a_deleted_ledger_fails() -> None:
    lab = Lab()
    writer = lab.writer()
    future = writer.append()
    writer.fail("a")
    writer.do(writer.machine.deleted())
    assert isinstance(future.exception(), NoSuchLedgerError)
    assert isinstance(writer.error, NoSuchLedgerError)
    assert writer.machine.deleted() == []
