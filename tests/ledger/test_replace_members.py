"""Bookies of the ensemble are to leave: the writer replaces them, while it appends and while it is idle."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from pyreplog._native.quorum.quorum import write_set
from pyreplog.bookie.protocol import RequestKind
from pyreplog.errors import LedgerFencedError
from pyreplog.ledger.ledger_metadata import Fragment, State
from tests.ledger.lab import Bench, Lab, acked, value_of, written


def leave(writer: Bench, bookies: str) -> Bench:
    """Tell the writer which bookies are to leave, one letter each."""
    writer.do(writer.machine.replace_members(list(bookies)))
    return writer


def striped() -> Lab:
    """E = 4, Qw = 3, Qa = 2, with the spare bookies e and f."""
    return Lab(4, 3, 2)


# ---- writers that append nothing -------------------------------------------------------------------------------


def test_before_the_first_entry_its_fragment_is_overwritten() -> None:
    lab = striped()
    writer = leave(lab.writer(), "b").run()
    assert (lab.fragments, lab.version) == ({0: "aecd"}, 2)
    writer.append(4)
    writer.run()
    assert [lab.holders(entry) for entry in range(4)] == ["ace", "cde", "acd", "ade"]


def test_replacement_begins_a_fragment_after_the_written_entries() -> None:
    """The leaving bookie keeps its entries and serves them until they are moved to others."""
    lab = striped()
    writer = leave(written(lab, 6), "c").run()
    assert lab.fragments == {0: "abcd", 6: "abed"}
    assert [lab.holders(entry) for entry in range(6)] == ["abc", "bcd", "acd", "abd", "abc", "bcd"]
    writer.append(4)
    writer.run()
    assert "c" not in "".join(lab.holders(entry) for entry in range(6, 10))
    assert lab.reading(0, 6).run().result.values() == [value_of(entry) for entry in range(6)]


def test_a_fragment_without_entries_is_overwritten_again() -> None:
    lab = striped()
    writer = leave(written(lab, 2), "c").run()
    leave(writer, "ca").run()
    assert lab.fragments == {0: "abcd", 2: "fbed"}
    assert lab.version == 3


def test_repeated_request_makes_one_member_change() -> None:
    """The request is repeated whenever a registration changes."""
    lab = striped()
    writer = leave(written(lab, 2), "c")
    for _ in range(3):
        leave(writer, "c")
    assert len(writer.stores) == 1
    writer.run()
    leave(writer, "c").run()
    assert (lab.version, writer.stores, writer.wakes) == (2, [], [])


def test_a_writer_replaces_all_members_that_leave() -> None:
    lab = Lab(3, 2, 2, spares=3)
    writer = leave(written(lab, 3), "abc").run()
    assert (lab.version, lab.fragments[3]) == (2, "def")
    future = writer.append(3)
    writer.run()
    assert acked(future) and writer.close().run().result.last_entry == 5


# ---- without a bookie that could take the place ----------------------------------------------------------------


def test_a_member_without_a_replacement_goes_on() -> None:
    """No change is stored and no timer is set. The next request tries again."""
    lab = Lab(4, 3, 2, spares=1)
    lab.down = {"e"}
    writer = leave(written(lab, 1), "b")
    assert (writer.stores, writer.sends, writer.wakes, writer.degraded_reports) == ([], [], [], [])
    future = writer.append(4)
    assert writer.to("b")
    writer.run()
    assert acked(future) and writer.machine.pending_entries == 0 and lab.version == 1
    lab.down.clear()
    writer.append()
    writer.run()
    assert lab.version == 1
    leave(writer, "b").run()
    assert lab.fragments == {0: "abcd", 6: "aecd"}


def test_the_first_named_is_replaced_if_there_are_too_few() -> None:
    """Bookies whose copies are lost are named first."""
    lab = Lab(4, 3, 2, spares=1)
    leave(written(lab, 1), "db").run()
    assert lab.fragments == {0: "abcd", 1: "abce"}


def test_bookie_whose_drain_was_cancelled_is_not_replaced() -> None:
    """The operator cancelled the drain, so that a later change does not replace it."""
    lab = striped()
    lab.down = {"e", "f"}
    writer = leave(written(lab, 1), "b")
    lab.down = {"c"}
    writer.append(4)
    writer.run()
    assert lab.fragments == {0: "abcd", 1: "abed"}


# ---- writers at work -------------------------------------------------------------------------------------------


def test_entries_without_their_quorum_are_sent_again() -> None:
    lab = striped()
    writer = written(lab, 2)
    futures = [writer.append() for _ in range(4)]
    leave(writer, "c")
    writer.deliver("abcd")
    assert not any(acked(future) for future in futures), "their acks are about to be withdrawn"
    writer.store()
    assert {send.request.first for send in writer.to("e")} == {2, 4, 5}
    writer.run()
    assert all(acked(future) for future in futures) and lab.fragments == {0: "abcd", 2: "abed"}
    assert [lab.holders(entry).replace("c", "") for entry in range(2, 6)] == ["ade", "abd", "abe", "bde"]


def test_writer_appends_while_a_member_change_is_stored() -> None:
    lab = striped()
    writer = leave(written(lab, 2), "c")
    futures = [writer.append() for _ in range(4)]
    writer.deliver()
    writer.run()
    assert all(acked(future) for future in futures) and writer.machine.pending_entries == 0
    assert lab.fragments == {0: "abcd", 2: "abed"}


def test_late_answers_of_the_member_do_not_count() -> None:
    """Neither an ack nor a failure counts, as the bookie has no place any more."""
    lab = striped()
    writer = written(lab, 4)
    future = writer.append()  # entry 4 is on a, b and c
    ack = writer.take("c")
    leave(writer, "c")
    writer.store()
    writer.reply(ack)
    writer.deliver("b")
    assert not acked(future)
    writer.deliver("e")
    assert acked(future) and writer.suspects == []
    assert lab.version == 2


def test_a_member_that_lags_is_replaced_from_what_it_lacks() -> None:
    """No entry stays below its write quorum."""
    lab = Lab()
    writer = lab.writer()
    for _ in range(4):
        writer.append()
    writer.reply(writer.take("c"))
    writer.deliver("ab")
    assert writer.machine.last_add_confirmed == 3
    leave(writer, "c").run()
    assert lab.fragments == {0: "abc", 1: "abd"}
    assert lab.holders(0) == "abc"
    assert all(set("abd") <= set(lab.holders(entry)) for entry in range(1, 4))


def test_a_delayed_writer_does_not_delay_a_replacement() -> None:
    lab = striped()
    writer = lab.writer(delay_ensemble_change=True)
    writer.append(4)
    writer.deliver()
    leave(writer, "a").run()
    assert lab.fragments == {0: "abcd", 4: "ebcd"}


def test_member_change_waits_for_another_ensemble_change() -> None:
    lab = striped()
    writer = written(lab, 2)
    future = writer.append(4)
    writer.fail("a")
    leave(writer, "b")
    assert len(writer.stores) == 1
    writer.run()
    assert acked(future) and (lab.fragments, lab.version) == ({0: "abcd", 2: "efcd"}, 3)


def test_leaving_member_that_fails_is_replaced_once() -> None:
    lab = striped()
    writer = written(lab, 2)
    future = writer.append(4)
    leave(writer, "c")
    writer.fail("c")
    writer.run()
    assert acked(future) and (lab.fragments, lab.version) == ({0: "abcd", 2: "abed"}, 2)
    assert writer.suspects == ["c"] and writer.machine.degraded == ()


def test_failed_member_is_replaced_before_a_leaving_one() -> None:
    """A degraded ledger has too few bookies to replace both."""
    lab = Lab(4, 3, 2, spares=1)
    lab.down = {"a", "e"}
    writer = lab.writer()
    writer.append(4)
    writer.run()
    assert writer.machine.degraded == ("a",)
    assert leave(writer, "b").stores == []
    lab.down = {"a"}
    writer.do(writer.machine.reconsider())
    leave(writer, "b").run()
    assert lab.fragments == {0: "abcd", 4: "ebcd"} and writer.machine.degraded == ()


def test_a_pause_of_ensemble_changes_holds_for_a_replacement() -> None:
    lab = Lab(3, 3, 3, spares=2)
    lab.choose = lambda metadata, places, taken, last_resort: dict(  # type: ignore[method-assign]
        zip(places, [name for name in lab.bookies if name not in taken], strict=False)
    )
    writer = lab.writer()
    writer.append()
    lab.down = {"a", "d", "e"}
    writer.run()
    assert leave(writer, "b").stores == []
    lab.down.clear()
    writer.do(writer.machine.woken(writer.wakes.pop().about))
    writer.run()
    assert "b" not in lab.fragments[0] and writer.machine.pending_entries == 0


# ---- others change the metadata --------------------------------------------------------------------------------


def test_an_older_fragment_is_moved_meanwhile() -> None:
    """This happens when a bookie is drained: its copies are moved, and writers leave it, at the same time."""
    lab = striped()
    writer = leave(written(lab, 2), "c").run()
    writer.append(4)
    writer.deliver()
    leave(writer, "d")
    older = Fragment(0, tuple("abfd"))
    lab.change(dataclasses.replace(lab.metadata, fragments=(older, *lab.metadata.fragments[1:])))
    writer.run()
    assert lab.fragments == {0: "abfd", 2: "abed", 6: "abef"}


def test_an_idle_writer_learns_that_its_ledger_is_recovered() -> None:
    """The writer does not close the ledger, as the recovery does."""
    lab = striped()
    writer = written(lab, 2)
    recovery = lab.recovery()
    recovery.store()
    leave(writer, "c").run()
    assert isinstance(writer.error, LedgerFencedError)
    assert lab.metadata.state is State.IN_RECOVERY and lab.fragments == {0: "abcd"}
    assert recovery.run().result.last_entry == 1


@pytest.mark.parametrize("stored", [True, False])
def test_the_answer_of_the_store_is_lost(stored: bool) -> None:
    lab = striped()
    writer = leave(written(lab, 2), "c")
    writer.lose_answer(stored=stored)
    writer.run()
    assert (lab.fragments, lab.version) == ({0: "abcd", 2: "abed"}, 2)


# ---- closing ---------------------------------------------------------------------------------------------------


def test_a_ledger_that_is_being_closed_keeps_its_members() -> None:
    lab = striped()
    writer = lab.writer()
    writer.append(4)
    writer.close()
    assert leave(writer, "c").stores == []
    assert writer.run().result.last_entry == 3 and lab.fragments == {0: "abcd"}


def test_closing_waits_for_the_change() -> None:
    lab = striped()
    writer = leave(written(lab, 2), "c").close()
    assert len(writer.stores) == 1
    assert writer.run().result.last_entry == 1
    assert lab.fragments == {0: "abcd"}, "the fragment without entries goes"


def test_closed_writer_replaces_no_members() -> None:
    writer = written(striped(), 1).close().run()
    assert writer.machine.replace_members(["a"]) == []


# ---- any of it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(60))
def test_entries_reach_their_write_quorum_while_ensemble_members_are_replaced(number: int, seed: int) -> None:
    """Any quorums and bookies, at any moment, while entries are in flight."""
    random = Random(seed + number)
    size = random.randint(2, 6)
    copies = random.randint(1, size)
    lab = Lab(size, copies, random.randint(1, copies), spares=random.randint(0, 3))
    writer = lab.writer()
    futures = []
    for _ in range(12):
        futures += [writer.append(random.randint(1, 3)) for _ in range(random.randint(0, 3))]
        for send in random.sample(writer.sends, random.randint(0, len(writer.sends))):
            writer.sends.remove(send)
            writer.reply(send)
        if random.random() < 0.5:
            leave(writer, "".join(random.sample(list(lab.bookies), random.randint(1, 2))))
        while writer.stores and random.random() < 0.6:
            writer.store()
    writer.run()
    assert all(acked(future) for future in futures) and writer.machine.pending_entries == 0
    for entry in range(writer.machine.last_add_confirmed + 1):
        ensemble = lab.metadata.fragment_of(entry).ensemble
        named = {ensemble[place] for place in write_set(entry, size, copies)}
        assert named <= set(lab.holders(entry)), entry
    last = writer.machine.last_add_confirmed
    assert lab.recovery().run().result.last_entry == last


def test_replaced_member_gets_no_more_requests() -> None:
    lab = striped()
    writer = leave(written(lab, 2), "c").run()
    writer.append(4)
    writer.do(writer.machine.send_lac())
    assert not writer.to("c") and writer.to("e", RequestKind.ADD)
