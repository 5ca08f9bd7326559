"""Moving the copies of bookies in one ledger to others: copies, proof, compare-and-set, one message at a time."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Iterable
from typing import Any

import pytest
from ledger.lab import LEDGER, Bench, Lab, written

from pyreplog.autorecovery.protocol.effects import NoteLost
from pyreplog.autorecovery.protocol.ledger_replicator import LedgerReplicated, LedgerReplicator
from pyreplog.bookie.holdings import Holdings
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, RequestKind
from pyreplog.errors import InvalidMetadataError, NotEnoughBookiesError, UnreadableError
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State

COUNT = 40


class ReplicatorBench(Bench):
    """A replicator, and what it asked for that has not happened yet."""

    def __init__(self, lab: Lab, machine: LedgerReplicator) -> None:
        super().__init__(lab, machine)
        self.lost: list[NoteLost] = []  # on their way
        self.listed: list[int] = []

    def do(self, effects: Iterable[Any]) -> None:
        rest = []
        for effect in effects:
            if isinstance(effect, NoteLost):
                self.lost.append(effect)
            else:
                rest.append(effect)
        super().do(rest)

    def note(self) -> None:
        """The oldest list of lost entries is stored."""
        self.listed += self.lost.pop(0).entries
        self.do(self.machine.noted())

    def load(self) -> None:
        """The metadata are read."""
        self.loads -= 1
        self.do(self.machine.loaded(self.lab.metadata, self.lab.version))

    def step(self) -> bool:
        """The next thing happens. Returns whether there was one."""
        if self.lost:
            self.note()
        elif self.loads:
            self.load()
        elif self.stores:
            self.store()
        elif self.sends:
            self.answer(self.sends.pop(0))
        else:
            return False
        return True

    def run(self) -> ReplicatorBench:
        while self.step():
            continue
        return self


def closed_lab(size: int = 5, quorum: int = 3, count: int = COUNT) -> Lab:
    """Bookies a, b, … hold a closed ledger; spare ones follow."""
    lab = Lab(size, quorum, quorum // 2 + 1, spares=2)
    written(lab, count).close().run()
    return lab


def replicator(
    lab: Lab, sources: str = "a", *, lost: str = "", away: str = "", spares: str | None = None, **options: Any
) -> ReplicatorBench:
    """A replicator that has begun. Targets are chosen in the order of their names."""

    def choose(metadata: LedgerMetadata, fragment: Fragment, index: int, refused: Collection[str]) -> str | None:
        names = sorted(lab.bookies) if spares is None else list(spares)
        return next((name for name in names if name not in fragment.ensemble and name not in refused), None)

    lab.down |= set(lost) | set(away)
    machine = LedgerReplicator(
        lab.metadata, lab.version, set(sources), lost=set(lost), away=set(away), choose=choose, **options
    )
    bench = ReplicatorBench(lab, machine)
    bench.do(machine.start())
    return bench


def readable(lab: Lab, entry: int) -> bool:
    """Whether a bookie that the metadata name for an entry has it."""
    fragment = lab.metadata.fragment_of(entry)
    return any(
        entry in stripe and lab.logs[bookie].holds(LEDGER, entry)
        for bookie in set(fragment.ensemble) - lab.down
        for stripe in lab.metadata.holdings(bookie)
    )


def copies(lab: Lab, entry: int) -> int:
    return sum(
        any(entry in stripe for stripe in lab.metadata.holdings(bookie)) and lab.logs[bookie].holds(LEDGER, entry)
        for bookie in lab.metadata.fragment_of(entry).ensemble
    )


@pytest.mark.parametrize(("size", "quorum"), [(3, 3), (5, 3), (4, 2), (2, 2), (6, 5)])
def test_the_target_takes_the_place_with_all_entries_of_the_source(size: int, quorum: int) -> None:
    for index in range(size):
        lab = closed_lab(size, quorum)
        source = "abcdef"[index]
        result: LedgerReplicated = replicator(lab, source, lost=source).run().result
        assert source not in lab.metadata.bookies()
        assert all(copies(lab, entry) == quorum for entry in range(COUNT))
        assert result.metadata == lab.metadata
        assert (result.version, result.entries, result.lost) == (lab.version, len(held_by(lab, index)), 0)


def held_by(lab: Lab, index: int) -> list[int]:
    return sorted(entry for stripe in lab.metadata.stripes(index, 0, COUNT) for entry in stripe)


def test_two_sources_are_replaced_in_one_go() -> None:
    lab = closed_lab()
    result = replicator(lab, "ac", lost="ac").run().result
    assert lab.metadata.bookies() == set("bdefg")
    assert all(copies(lab, entry) == 3 for entry in range(COUNT))
    assert result.entries == len(held_by(lab, 0)) + len(held_by(lab, 2))


def test_every_fragment_that_names_the_source_is_copied_and_equal_neighbours_merge() -> None:
    lab = closed_lab()
    lab.metadata = dataclasses.replace(
        lab.metadata,
        fragments=(Fragment(0, ("a", "b", "c", "d", "e")), Fragment(20, ("f", "b", "c", "d", "e"))),
    )
    for entry in range(20, COUNT):  # what a writer would have given to f
        if entry in held_by(lab, 0):
            lab.logs["f"].held.setdefault(LEDGER, {})[entry] = (
                lab.logs["b"].held[LEDGER].get(entry)
                or lab.logs["d"].held[LEDGER].get(entry)
                or lab.logs["e"].held[LEDGER][entry]
            )
    replicator(lab, "a", lost="a", spares="f").run()
    assert lab.fragments == {0: "fbcde"}


def test_nothing_is_stored_before_the_target_has_proved_that_it_holds_the_copies() -> None:
    lab = closed_lab()
    bench = replicator(lab, lost="a")
    while not bench.to("f", RequestKind.HOLDINGS):
        assert not bench.stores
        bench.step()
    proofs = bench.to("f", RequestKind.HOLDINGS)
    for number, send in enumerate(proofs):
        assert not bench.stores, f"after {number} proofs of {len(proofs)}"
        bench.sends.remove(send)
        bench.reply(send)
    assert len(bench.stores) == 1


@pytest.mark.parametrize("how", ["gone", "other", "silent", "unknown", "garbled"])
def test_without_proof_nothing_is_stored(how: str) -> None:
    lab = closed_lab()
    before = lab.metadata
    bench = replicator(lab, lost="a", spares="f")
    while not bench.to("f", RequestKind.HOLDINGS):
        bench.step()
    if how == "gone":
        lab.logs["f"].held[LEDGER].popitem()
        bench.run()
    else:
        send = bench.take("f", RequestKind.HOLDINGS)
        honest = bench.arrive(send)
        if how == "silent":
            bench.do(bench.machine.failed(send, UnreadableError(LEDGER, "time is over")))
        elif how == "unknown":
            bench.reply(send, honest._replace(status=ReplyStatus.UNKNOWN))
        elif how == "garbled":
            bench.reply(send, honest._replace(body=b"?"))
        else:
            told = Holdings.decode(send.request, honest)
            bench.reply(send, honest._replace(body=dataclasses.replace(told, digest=told.digest ^ 1).encode()))
        bench.run()
    assert isinstance(bench.error, UnreadableError)
    assert lab.metadata == before


def test_a_conflict_asks_for_the_proof_again() -> None:
    """A collector changes the version before it removes copies that nobody names. A proof made before is void."""
    lab = closed_lab()
    bench = replicator(lab, lost="a", spares="f")
    while not bench.stores:
        bench.step()
    lab.change(lab.metadata)  # f is about to remove its copies, which no metadata ask for
    lab.logs["f"].held[LEDGER].clear()
    bench.run()
    assert isinstance(bench.error, UnreadableError)
    assert "a" in lab.metadata.bookies()


def test_a_conflict_with_an_unrelated_change_keeps_both() -> None:
    lab = closed_lab()
    bench = replicator(lab, lost="a")
    while not bench.stores:
        bench.step()
    lab.change(dataclasses.replace(lab.metadata, custom={"somebody": "else"}))
    bench.run()
    assert lab.metadata.custom == {"somebody": "else"}
    assert "a" not in lab.metadata.bookies()


def test_a_replicator_ends_when_another_worker_was_quicker() -> None:
    lab = closed_lab()
    slow, quick = replicator(lab, lost="a"), replicator(lab, lost="a", spares="g")
    while not slow.stores:
        slow.step()
    quick.run()
    assert slow.run().error is None
    assert lab.fragments == {0: "gbcde"}


@pytest.mark.parametrize("stored", [False, True])
def test_a_lost_answer_is_looked_up(stored: bool) -> None:
    lab = closed_lab()
    bench = replicator(lab, lost="a")
    while not bench.stores:
        bench.step()
    bench.lose_answer(stored=stored)
    assert bench.run().error is None
    assert lab.fragments == {0: "fbcde"}


def test_a_deleted_ledger_is_no_error() -> None:
    """BookKeeper #3316."""
    lab = closed_lab()
    bench = replicator(lab, lost="a")
    while not bench.stores:
        bench.step()
    bench.stores.clear()
    bench.do(bench.machine.deleted())
    assert bench.result.is_deleted


def test_metadata_damaged_meanwhile_end_a_replicator() -> None:
    lab = closed_lab()
    bench = replicator(lab, lost="a")
    while not bench.stores:
        bench.step()
    bench.do(bench.machine.garbled(InvalidMetadataError("?")))
    assert isinstance(bench.error, InvalidMetadataError)


def test_the_last_fragment_of_an_open_ledger_is_left_to_its_writer() -> None:
    lab = Lab(5, 3, 2, spares=2)
    bench = written(lab, COUNT)
    before = lab.metadata
    result = replicator(lab, lost="a").run().result
    assert result.is_open
    assert (result.entries, lab.metadata) == (0, before)
    assert bench.machine.last_add_confirmed == COUNT - 1


def test_an_empty_ledger_is_changed_without_copies() -> None:
    """BookKeeper #3220, #3692."""
    lab = closed_lab(count=0)
    bench = replicator(lab, lost="a")
    assert not bench.sends
    assert bench.run().error is None
    assert lab.fragments == {0: "fbcde"}


@pytest.mark.parametrize("count", [1, 2])
def test_a_member_without_entries_is_replaced(count: int) -> None:
    """A fragment of one entry lies on three of five members: the others have nothing to copy, and nothing to prove."""
    for source in "abcde":
        lab = closed_lab(count=count)
        result = replicator(lab, source, lost=source).run().result
        assert result.entries == len([entry for entry in held_by(lab, "abcde".index(source)) if entry < count])
        assert source not in lab.metadata.bookies()


def test_a_replicator_without_a_spare_bookie_ends_at_once() -> None:
    """BookKeeper #3905."""
    lab = closed_lab()
    bench = replicator(lab, lost="a", spares="")
    assert not bench.sends
    assert isinstance(bench.error, NotEnoughBookiesError)
    assert "add a bookie" in str(bench.error)


@pytest.mark.parametrize("how", ["other", "gone"])
def test_another_target_is_chosen_when_one_holds_other_records(how: str) -> None:
    lab = closed_lab()
    bench = replicator(lab, lost="a", spares="fg")
    while not bench.to("f", RequestKind.HOLDINGS):
        bench.step()
    if how == "gone":
        lab.logs["f"].held[LEDGER].popitem()
    else:
        send = bench.take("f", RequestKind.HOLDINGS)
        honest = bench.arrive(send)
        told = Holdings.decode(send.request, honest)
        bench.reply(send, honest._replace(body=dataclasses.replace(told, digest=told.digest ^ 1).encode()))
    assert bench.run().error is None
    assert lab.fragments == {0: "gbcde"}
    assert all(copies(lab, entry) == 3 for entry in range(COUNT))


@pytest.mark.parametrize(("ensemble", "is_disproved"), [("abcde", True), ("abgde", False)])
def test_a_fragment_without_a_target_names_its_own_target_alone(ensemble: str, is_disproved: bool) -> None:
    """Target f of the first fragment holds other records; the second one has no bookie that could take its place."""
    lab = closed_lab()
    second = Fragment(COUNT // 2, tuple(ensemble))
    spares = "f" if is_disproved else "fg"
    if not is_disproved:
        lab.metadata = dataclasses.replace(lab.metadata, fragments=(*lab.metadata.fragments, second))
    bench = replicator(lab, lost="a", spares=spares)
    while not bench.to("f", RequestKind.HOLDINGS):
        bench.step()
    lab.logs["f"].held[LEDGER].popitem()
    error = bench.run().error
    assert type(error) is (UnreadableError if is_disproved else NotEnoughBookiesError)
    assert ("f was sent" in str(error)) == is_disproved
    assert lab.fragments[0] == ("abcde" if is_disproved else "gbcde")


@pytest.mark.parametrize("status", [ReplyStatus.READ_ONLY, ReplyStatus.UNSUPPORTED, ReplyStatus.UNAUTHORIZED])
def test_another_target_is_chosen_when_one_refuses(status: ReplyStatus) -> None:
    lab = closed_lab()
    bench = replicator(lab, lost="a", spares="fg")
    while not bench.to("f", RequestKind.ADD):
        bench.step()
    send = bench.take("f", RequestKind.ADD)
    bench.reply(send, Reply(status, LEDGER, send.request.first, send.request.last, body=b"no"))
    assert bench.run().error is None
    assert lab.fragments == {0: "gbcde"}


def test_no_source_is_a_target() -> None:
    """The drain of a source may have ended, so that it takes entries: copies would go to and fro."""
    lab = closed_lab()
    lab.metadata = dataclasses.replace(
        lab.metadata,
        fragments=(Fragment(0, ("a", "b", "c", "d", "e")), Fragment(20, ("f", "b", "c", "d", "e"))),
    )
    for entry in (entry for stripe in lab.metadata.stripes(0, 20, COUNT) for entry in stripe):
        lab.logs["f"].held.setdefault(LEDGER, {})[entry] = lab.logs["a"].held[LEDGER][entry]
    bench = replicator(lab, "af", spares="afg")
    while bench.step():
        assert lab.version < 20
    assert bench.error is None
    assert lab.metadata.bookies() == set("bcdeg")


def test_an_overloaded_target_is_given_time() -> None:
    lab = closed_lab()
    bench = replicator(lab, lost="a", spares="f")
    while not bench.to("f", RequestKind.ADD):
        bench.step()
    send = bench.take("f", RequestKind.ADD)
    bench.reply(send, Reply(ReplyStatus.OVERLOADED, LEDGER, body=b"later"))
    (wake,) = bench.wakes
    assert wake.seconds > 0
    bench.do(bench.machine.woken(wake.about))
    assert bench.run().error is None
    assert lab.fragments == {0: "fbcde"}


# ---- losses ----------------------------------------------------------------------------------------------------


def without(lab: Lab, entries: Iterable[int]) -> None:
    """Nobody but `a` has these entries."""
    for bookie in "bcdefg":
        for entry in entries:
            lab.logs[bookie].held.get(LEDGER, {}).pop(entry, None)


def test_bookies_that_are_no_members_are_asked_before_entries_are_listed_as_lost() -> None:
    """The member that took the place of g has lost its disk before the copies on g were surplus."""
    lab = closed_lab()
    kept = held_by(lab, 0)[3:5]
    for entry in kept:
        lab.logs["g"].held.setdefault(LEDGER, {})[entry] = lab.logs["a"].held[LEDGER][entry]
    for bookie in "bcdef":
        for entry in kept:
            lab.logs[bookie].held.get(LEDGER, {}).pop(entry, None)
    bench = replicator(lab, lost="a", spares="f", others=set("bcdefg")).run()
    assert (bench.listed, bench.result.lost, bench.result.entries) == ([], 0, len(held_by(lab, 0)))
    assert lab.fragments == {0: "fbcde"}
    assert all(readable(lab, entry) for entry in range(COUNT))


def test_losses_are_listed_before_the_metadata_stop_naming_the_source() -> None:
    lab = closed_lab()
    gone = held_by(lab, 0)[3:5]
    without(lab, gone)
    bench = replicator(lab, lost="a")
    while not bench.lost:
        bench.step()
    assert not bench.stores
    assert not bench.to("f", RequestKind.HOLDINGS)
    assert bench.lost[0].entries == tuple(gone)
    result = bench.run().result
    assert (bench.listed, result.lost) == (gone, len(gone))
    assert "a" not in lab.metadata.bookies()
    assert [entry for entry in range(COUNT) if not readable(lab, entry)] == gone


def test_an_entry_that_was_moved_meanwhile_is_not_listed_as_lost() -> None:
    """A member denies an entry, because another bookie took its place and it removed its copies as surplus since. Such
    a bookie changes the version of the metadata before it removes them."""
    lab = closed_lab()
    (entry, *_) = held_by(lab, 0)[3:]
    holders = [bookie for bookie in "bcde" if lab.logs[bookie].holds(LEDGER, entry)]
    for bookie in holders[1:]:
        del lab.logs[bookie].held[LEDGER][entry]
    bench = replicator(lab, lost="a", spares="f")
    stale = lab.metadata
    moved = replicator(lab, holders[0], spares="g").run().result  # another worker moves the last copy
    assert lab.logs["g"].holds(LEDGER, entry) and moved.metadata != stale
    del lab.logs[holders[0]].held[LEDGER][entry]
    bench.run()
    assert not bench.listed
    assert bench.result.lost == 0
    assert readable(lab, entry) and lab.metadata.bookies() == {*"bcdefg"} - {holders[0]}


def test_all_lost_bookies_that_may_have_had_an_entry_are_listed_with_it() -> None:
    """The source's place is given away; another member, which counts as lost as well, may have the copy and return."""
    lab = closed_lab()
    gone = [entry for entry in held_by(lab, 0) if entry in held_by(lab, 1)]
    for entry in gone:
        for bookie in "cde":
            lab.logs[bookie].held[LEDGER].pop(entry, None)
    bench = replicator(lab, lost="ab")
    while not bench.lost:
        bench.step()
    (listed,) = bench.lost
    assert listed.by_bookie == (("a", tuple(gone)), ("b", tuple(gone)))


def test_a_reply_to_the_question_for_the_version_may_be_lost() -> None:
    lab = closed_lab()
    gone = held_by(lab, 0)[3:5]
    without(lab, gone)
    bench = replicator(lab, lost="a")
    while not bench.loads:
        bench.step()
    bench.loads -= 1
    bench.do(bench.machine.store_unknown())
    assert not bench.lost and not bench.loads
    bench.do(bench.machine.woken(bench.wakes.pop().about))
    assert bench.loads and not bench.lost
    assert bench.run().result.lost == len(gone) == len(bench.listed)


def given_back(lab: Lab, copies_of: dict[str, dict[int, Any]]) -> None:
    """A disk returned: members were given what nobody had, and the version was changed."""
    for bookie, records in copies_of.items():
        lab.logs[bookie].held[LEDGER].update(records)
    lab.change(lab.metadata)


def taken(lab: Lab, gone: list[int]) -> dict[str, dict[int, Any]]:
    """Take entries from all members but `a`; what they had."""
    held = {bookie: lab.logs[bookie].held[LEDGER] for bookie in "bcde"}
    copies_of = {
        bookie: {entry: records[entry] for entry in gone if entry in records} for bookie, records in held.items()
    }
    without(lab, gone)
    return copies_of


def test_a_member_that_was_given_listed_entries_meanwhile_is_copied_from() -> None:
    """Without a second look the target would be named without them, and nobody would have listed them any more."""
    lab = closed_lab()
    gone = held_by(lab, 0)[3:5]
    copies_of = taken(lab, gone)
    bench = replicator(lab, lost="a")
    while not bench.stores:
        bench.step()
    given_back(lab, copies_of)
    bench.run()
    assert "a" not in lab.metadata.bookies()
    assert [copies(lab, entry) for entry in gone] == [3, 3]


def test_entries_that_only_the_target_has_from_an_earlier_attempt_are_not_lost() -> None:
    """A worker copied entries, and ended before it named the target; the member that had them lost its disk since. They
    counted as lost, and the target, which has more than it was given, was never proved."""
    lab = closed_lab()
    gone = held_by(lab, 0)[3:5]
    copies_of = taken(lab, gone)
    target = lab.logs["f"].held.setdefault(LEDGER, {})
    for records in copies_of.values():
        target.update(records)
    bench = replicator(lab, lost="a").run()
    assert (bench.listed, bench.result.lost) == ([], 0)
    assert "f" in lab.metadata.bookies() and [copies(lab, entry) for entry in gone] == [1, 1]


def test_a_list_without_outcome_is_not_repeated_when_the_metadata_have_changed() -> None:
    lab = closed_lab()
    gone = held_by(lab, 0)[3:5]
    copies_of = taken(lab, gone)
    bench = replicator(lab, lost="a")
    while not bench.lost:
        bench.step()
    bench.lost.clear()
    bench.do(bench.machine.store_unknown())
    given_back(lab, copies_of)
    bench.do(bench.machine.woken(bench.wakes.pop().about))
    bench.run()
    assert not bench.listed and [copies(lab, entry) for entry in gone] == [3, 3]


def test_losses_that_cannot_be_listed_now_are_listed_later() -> None:
    lab = closed_lab()
    gone = held_by(lab, 0)[3:5]
    without(lab, gone)
    bench = replicator(lab, lost="a")
    while not bench.lost:
        bench.step()
    bench.lost.clear()
    bench.do(bench.machine.store_unknown())
    assert not bench.stores
    bench.do(bench.machine.woken(bench.wakes.pop().about))
    assert bench.run().error is None
    assert bench.listed == gone


def test_absent_bookie_keeps_entries_without_other_copies() -> None:
    lab = closed_lab()
    kept = held_by(lab, 0)[3:5]
    without(lab, kept)
    bench = replicator(lab, away="a")
    result = bench.run().result
    assert (bench.listed, result.kept) == ([], len(kept))
    lab.down.clear()  # it comes back
    assert all(readable(lab, entry) for entry in range(COUNT))
    assert all(copies(lab, entry) == 3 for entry in range(COUNT) if entry not in kept)
    assert len(lab.metadata.fragments) <= 3


def test_second_pass_over_kept_entries_changes_nothing() -> None:
    """A second pass changes nothing: no fragment more, no compare-and-set, no endless retry (BookKeeper #3887)."""
    lab = closed_lab()
    without(lab, held_by(lab, 0)[3:5])
    replicator(lab, away="a").run()
    before, version = lab.metadata, lab.version
    result = replicator(lab, away="a").run().result
    assert (lab.metadata, lab.version) == (before, version)
    assert (result.entries, result.kept) == (0, 2)


def test_too_many_kept_entries_make_no_fragments() -> None:
    count = 600
    lab = closed_lab(count=count)
    stripe = sorted(entry for part in lab.metadata.stripes(0, 0, count) for entry in part)
    without(lab, stripe[::2])
    replicator(lab, away="a").run()
    assert lab.fragments == {0: "abcde"}, "the stripe waits as a whole"


def test_copies_whose_state_is_unknown_are_not_missing() -> None:
    lab = closed_lab()
    without(lab, held_by(lab, 0)[3:5])
    lab.down.add("c")  # which may have them
    bench = replicator(lab, lost="a")
    bench.run()
    assert isinstance(bench.error, UnreadableError)
    assert not bench.listed
    assert "a" in lab.metadata.bookies()


def test_draining_bookie_is_read_for_entries_without_other_copies() -> None:
    lab = closed_lab()
    without(lab, held_by(lab, 0)[3:5])
    result = replicator(lab, "a").run().result
    assert (result.lost, result.kept) == (0, 0)
    assert all(copies(lab, entry) == 3 for entry in held_by(lab, 0)[5:])
    lab.down.add("a")
    assert all(readable(lab, entry) for entry in held_by(lab, 0))


def test_two_lost_bookies_are_not_asked() -> None:
    lab = closed_lab()
    bench = replicator(lab, "a", lost="ab")
    asked = {send.bookie for send in bench.sends}
    while bench.step():
        asked |= {send.bookie for send in bench.sends}
    assert not asked & {"a", "b"}
    assert bench.error is None


# ---- after a crash ---------------------------------------------------------------------------------------------


def test_entries_copied_by_an_earlier_worker_are_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.autorecovery.protocol.stripe_copy.RESUME_BYTES", -1)
    monkeypatch.setattr("pyreplog.autorecovery.protocol.stripe_copy.SEGMENT_ENTRIES", 4)
    lab = closed_lab()
    killed = replicator(lab, lost="a")
    while len(lab.logs["f"].held.get(LEDGER, {})) < 12:
        killed.step()
    before = len(lab.logs["f"].held[LEDGER])
    result = replicator(lab, lost="a").run().result
    assert result.entries <= len(held_by(lab, 0)) - before + 4
    assert lab.fragments == {0: "fbcde"}
    assert all(copies(lab, entry) == 3 for entry in range(COUNT))


@pytest.mark.parametrize("seed", range(60))
def test_any_order_any_loss_any_other_process(seed: int) -> None:
    """Whatever happens in between: no entry is lost that somebody has, copies never fall, and nothing is named without
    its copies."""
    draw = random.Random(seed)
    size, quorum = draw.choice([(3, 3), (5, 3), (4, 2), (5, 2)])
    lab = closed_lab(size, quorum)
    source = draw.choice("abcde"[:size])
    benches = [replicator(lab, source, lost=source) for _ in range(draw.randint(1, 2))]
    for _ in range(400):
        live = [bench for bench in benches if not bench.finished]
        if not live:
            break
        bench = draw.choice(live)
        happens = draw.random()
        if bench.lost:
            bench.note()
        elif bench.stores and happens < 0.2:
            bench.lose_answer(stored=draw.random() < 0.5 and bench.stores[0].version == lab.version)
        elif bench.stores:
            bench.store()
        elif bench.sends:
            send = bench.sends.pop(draw.randrange(len(bench.sends)))
            if happens < 0.03:
                bench.do(bench.machine.failed(send, UnreadableError(LEDGER, "lost")))
            else:
                bench.answer(send)
        assert all(readable(lab, entry) for entry in range(COUNT))
        for bookie in set(lab.metadata.bookies()) - {source}:
            for stripe in lab.metadata.holdings(bookie):
                assert all(lab.logs[bookie].holds(LEDGER, entry) for entry in stripe)
    assert all(bench.finished for bench in benches)
    assert lab.metadata.state is State.CLOSED


def test_adds_carry_the_proof_of_the_ledger_not_its_key() -> None:
    lab = closed_lab()
    bench = replicator(lab, lost="a")
    while not bench.to("f", RequestKind.ADD):
        bench.step()
    request = bench.to("f", RequestKind.ADD)[0].request
    assert request.flags == Flag.COPY
    assert request.key == bytes.fromhex(lab.metadata.proof)
