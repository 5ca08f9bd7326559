"""A writer goes on without a bookie that cannot be replaced: what it confirms and notes, and how the bookie comes back."""

from __future__ import annotations

import pytest

from pyreplog.bookie.protocol import RequestKind
from pyreplog.errors import LedgerFencedError, NotEnoughBookiesError
from pyreplog.ledger.protocol.effects import BadCopy
from tests.ledger.lab import Bench, Lab, acked

MINUTE_S = 60.0


def degraded(lab: Lab, *, before: int = 1) -> Bench:
    """Return a writer that goes on without bookie a, which has the entries that were appended before."""
    writer = lab.writer()
    for _ in range(before):
        writer.append()
    writer.deliver()
    lab.down.add("a")
    future = writer.append()
    writer.run()
    assert acked(future)
    return writer


def look_again(writer: Bench) -> None:
    """Fire the timers of the writer, of which only the last one counts, so that it looks for bookies again."""
    wakes, writer.wakes = writer.wakes, []
    for wake in wakes:
        writer.do(writer.machine.woken(wake.about))
    assert len(writer.wakes) <= 1


def test_degraded_writer_continues_while_every_write_set_has_its_ack_quorum() -> None:
    """In BookKeeper the ledger ends. Of three bookies with Qa = 2, two remain."""
    lab = Lab(spares=0)
    writer = degraded(lab)
    for _ in range(10):
        future = writer.append()
        assert writer.to("a") == []
        writer.run()
        assert acked(future)
    assert writer.machine.degraded == ("a",) and writer.suspects == ["a"]
    assert [report.bookies for report in writer.degraded_reports] == [
        ("a",)
    ] and "a: nobody answers there" in writer.degraded_reports[0].why
    assert lab.fragments == {0: "abc"}
    assert writer.close().run().result.last_entry == 11 == lab.end


def test_a_new_version_of_the_same_metadata_does_not_prove_that_the_note_is_stored() -> None:
    """Other clients store the metadata unchanged before they delete notes that the metadata do not name."""
    lab = Lab(spares=0)
    writer = lab.writer()
    lab.down.add("a")
    future = writer.append()
    while not writer.stores:
        writer.answer(writer.sends.pop(0))
    lab.change(lab.metadata)
    writer.lose_answer(stored=False)
    assert writer.machine.degraded == () and writer.noted == []
    writer.run()
    assert acked(future) and [copy.bookie for copy in writer.noted] == ["a"]


def test_a_writer_below_its_ack_quorum_ends() -> None:
    lab = Lab(spares=0)
    writer = degraded(lab)
    future = writer.append()
    lab.down.add("b")
    writer.run()
    assert isinstance(future.exception(), NotEnoughBookiesError) and isinstance(writer.error, NotEnoughBookiesError)
    assert lab.end == 1 and {copy.bookie for copy in writer.noted} >= {"a"}


@pytest.mark.parametrize(
    ("size", "copies", "acks", "down"), [(4, 2, 1, "ac"), (6, 3, 2, "ad"), (5, 4, 2, "ab"), (4, 4, 2, "ab")]
)
def test_degraded_writer_confirms_entries_whose_write_set_reaches_the_ack_quorum(
    size: int, copies: int, acks: int, down: str
) -> None:
    lab = Lab(size, copies, acks, spares=0)
    writer = lab.writer()
    writer.append(8)
    writer.run()
    lab.down = set(down)
    acks_of_all = [writer.append() for _ in range(12)]
    writer.run()
    assert all(acked(future) for future in acks_of_all)
    assert writer.machine.degraded == tuple(down) and writer.machine.pending_bytes == 0
    assert all(len(lab.holders(entry)) >= acks for entry in range(20))


def test_copies_are_noted_before_anything_is_let_go_of() -> None:
    """If the writer died, no other process would know which copies are missing."""
    lab = Lab(spares=0)
    writer = lab.writer()
    writer.append()
    writer.deliver()
    future = writer.append()
    writer.fail("a")
    writer.deliver()
    assert acked(future), "confirmed by two, the note is on its way"
    assert writer.machine.pending_entries == 1 and writer.noted == []
    writer.store()
    assert writer.noted == [BadCopy("a", 1)] and writer.machine.pending_entries == 0


def test_the_answer_about_the_note_is_lost() -> None:
    """It may not be stored: the writer notes it again, although the metadata have the expected content."""
    lab = Lab(spares=0)
    writer = lab.writer()
    writer.append()
    writer.fail("a")
    writer.deliver()
    writer.lose_answer(stored=False)
    assert len(writer.stores) == 1 and writer.machine.pending_entries == 1
    writer.store()
    assert writer.noted == [BadCopy("a", 0)] and writer.machine.pending_entries == 0


def test_metadata_conflict_while_a_degraded_bookie_is_noted_is_resolved() -> None:
    lab = Lab(spares=0)
    writer = lab.writer()
    writer.append()
    writer.fail("a")
    writer.deliver()
    writer.stores.pop(0)  # the request did not reach the store
    lab.change(lab.metadata)
    writer.do(writer.machine.conflicted(lab.metadata, lab.version))
    assert writer.machine.pending_entries == 1
    writer.run()
    assert writer.noted == [BadCopy("a", 0)] and writer.machine.pending_entries == 0


def test_the_note_meets_a_recovery() -> None:
    lab = Lab(spares=0)
    writer = lab.writer()
    future = writer.append()
    lab.change(lab.metadata.in_recovery())
    writer.fail("a")
    writer.store()
    assert isinstance(future.exception(), LedgerFencedError)


def test_another_bookie_takes_the_place_as_soon_as_there_is_one() -> None:
    """The bookie takes the place from the first entry that the writer still has. Earlier entries lack a copy, and are
    noted."""
    lab = Lab(spares=1)
    lab.down.add("d")
    writer = degraded(lab)
    writer.append()
    writer.run()
    waiting = writer.append()
    lab.down.remove("d")
    look_again(writer)
    writer.run()
    assert acked(waiting) and lab.fragments in ({0: "abc", 3: "dbc"}, {0: "abc", 4: "dbc"})
    assert writer.machine.degraded == () and [report.bookies for report in writer.degraded_reports] == [("a",), ()]
    writer.append()
    assert writer.close().run().result.last_entry == 4
    assert lab.holders(1) == lab.holders(2) == "bc" and lab.holders(4) == "bcd"
    assert writer.noted == [BadCopy("a", 1)]


def test_registrations_make_a_degraded_writer_look_for_bookies_at_once() -> None:
    lab = Lab(spares=1)
    lab.down.add("d")
    writer = degraded(lab)
    writer.do(writer.machine.reconsider())
    assert writer.machine.degraded == ("a",) and len(writer.wakes) == 2
    writer.do(writer.machine.woken(writer.wakes.pop(0).about))
    assert len(writer.wakes) == 1, "of two Wakes one counts"
    lab.down.remove("d")
    writer.do(writer.machine.reconsider())
    writer.run()
    assert writer.machine.degraded == () and lab.fragments == {0: "abc", 2: "dbc"}


def test_the_bookie_itself_takes_up_its_place_again() -> None:
    """The bookie answers again, and has a gap, which is noted. The metadata are not changed."""
    lab = Lab(spares=0)
    writer = degraded(lab)
    writer.append()
    writer.run()
    lab.down.clear()
    look_again(writer)
    assert [send.request.kind for send in writer.to("a")] == [RequestKind.LAST]
    missed = writer.append()
    writer.deliver()
    assert acked(missed) and writer.machine.degraded == () and writer.degraded_reports[-1].bookies == ()
    writer.append()
    assert writer.close().run().result.last_entry == 4 == lab.end
    assert lab.fragments == {0: "abc"} and writer.noted == [BadCopy("a", 1)]
    assert [lab.holders(entry) for entry in range(5)] == ["abc", "bc", "bc", "bc", "abc"] or lab.holders(3) == "abc"


def test_late_outcomes_of_a_degraded_bookie_are_ignored() -> None:
    """Neither a late answer nor a late failure counts, as the writer has dropped these entries."""
    lab = Lab(spares=0)
    writer = lab.writer()
    writer.append()
    writer.append()
    late, lost = writer.take("a"), writer.take("a")
    writer.do(writer.machine.failed(lost, TimeoutError("no answer")))
    writer.run()
    look_again(writer)
    writer.run()
    assert writer.machine.degraded == ()
    writer.reply(late)
    writer.do(writer.machine.failed(late, TimeoutError("no answer")))
    assert writer.machine.degraded == () and writer.stores == []
    future = writer.append()
    writer.run()
    assert acked(future) and lab.holders(2) == "abc"


def test_degraded_writer_looks_for_bookies_with_growing_delays() -> None:
    """When the bookie has stored an entry and fails again, the writer looks as often as at first."""
    lab = Lab(spares=0)
    writer = degraded(lab)
    waits = []
    for _ in range(10):
        waits.append(writer.wakes[0].seconds)
        look_again(writer)
        writer.run()
    assert waits == sorted(waits) and waits[0] < 1 and 10 < waits[-1] <= MINUTE_S
    assert lab.version == 2, "each look writes nothing"
    lab.down.clear()
    look_again(writer)
    writer.run()
    writer.append()
    writer.run()
    lab.down.add("a")
    writer.append()
    writer.run()
    assert writer.machine.degraded == ("a",) and writer.wakes[-1].seconds < 1


def test_bookie_that_fails_again_is_noted_once() -> None:
    """Repair compares all entries that a bookie should have, so that one note is enough."""
    lab = Lab(spares=0)
    writer = degraded(lab)
    for _ in range(3):
        lab.down.clear()
        look_again(writer)
        writer.run()
        assert writer.machine.degraded == ()
        lab.down.add("a")
        writer.append()
        writer.run()
        assert writer.machine.degraded == ("a",) and writer.machine.pending_bytes == 0
    assert writer.noted == [BadCopy("a", 1)]


def test_bookie_that_takes_another_place_in_the_ensemble_is_noted_again() -> None:
    """Repair deletes the note of the bookie's former place, which says nothing about its new place."""
    lab = Lab(spares=1)
    lab.down.add("d")
    writer = degraded(lab, before=0)
    lab.down = {"a"}
    look_again(writer)
    writer.append()
    writer.run()
    assert lab.fragments in ({0: "dbc"}, {0: "abc", 1: "dbc"})
    lab.down = set()
    writer.append()
    writer.deliver("dc")
    writer.fail("b")
    writer.run()
    assert lab.metadata.last_fragment.ensemble == ("d", "a", "c") or lab.metadata.last_fragment.ensemble == (
        "d",
        "b",
        "c",
    )
    lab.down = {"a", "b"}
    future = writer.append()
    writer.run()
    assert acked(future) and writer.machine.degraded == ("a",)
    last = [copy.entry for copy in writer.noted if copy.bookie == "a"]
    assert len(last) == 2 and any(lab.metadata.has("a", entry) for entry in last)


def test_degraded_writer_frees_its_window() -> None:
    lab = Lab(spares=0)
    writer = degraded(lab)
    for _ in range(5):
        writer.append(100)
        writer.run()
    assert writer.machine.pending_entries == writer.machine.pending_bytes == 0
    assert writer.machine.has_room(1, 1)


def test_change_ensemble_now_ends_a_delayed_change() -> None:
    lab = Lab(spares=0)
    writer = lab.writer(delay_ensemble_change=True)
    writer.append()
    writer.fail("a")
    writer.deliver()
    assert writer.stores == [] and writer.machine.pending_entries == 1
    writer.do(writer.machine.change_ensemble_now())
    writer.run()
    assert writer.machine.degraded == ("a",) and writer.machine.pending_entries == 0


def test_a_recovery_closes_what_it_finds_without_a_bookie_that_is_away() -> None:
    """A recovery, too, needs only two of three bookies, and notes the missing copies."""
    lab = Lab(spares=0)
    writer = lab.writer()
    for _ in range(3):
        writer.append()
    writer.deliver("bc")
    lab.down.add("a")
    recovery = lab.recovery().run()
    assert recovery.result.last_entry == 2 == lab.end
    assert {copy.bookie for copy in recovery.noted} == {"a"}
    assert [lab.holders(entry) for entry in range(3)] == ["bc"] * 3


def test_a_bookie_that_fails_while_a_recovery_writes_back_is_noted() -> None:
    """The bookie answered when it was fenced, so that it is not among those that did not answer."""
    lab = Lab(spares=0)
    writer = lab.writer()
    writer.append()
    writer.deliver("b")
    recovery = lab.recovery()
    recovery.store()
    recovery.deliver("abc")  # the fences
    recovery.deliver("abc")  # the reads
    assert [send.request.kind for send in recovery.sends] == [RequestKind.ADD] * 3
    lab.down.add("a")
    recovery.run()
    assert recovery.result.last_entry == 0 == lab.end
    assert recovery.noted == [BadCopy("a", 0)] and lab.holders(0) == "bc"


def test_a_recovery_finds_what_a_degraded_writer_confirmed() -> None:
    """The bookie is back with a gap: it answers that it lacks entries which were confirmed without it."""
    lab = Lab(spares=0)
    writer = degraded(lab)
    for _ in range(5):
        writer.append()
        writer.run()
    lab.down.clear()
    look_again(writer)
    writer.run()
    acks = [writer.append() for _ in range(3)]
    writer.deliver("ab")
    assert all(acked(future) for future in acks)
    lab.down.add("c")
    recovery = lab.recovery().run()
    assert recovery.result.last_entry == 9 == lab.end
