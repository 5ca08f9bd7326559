"""Copies that no metadata ask for: they go, nothing else goes, and nobody can name this bookie for what has gone."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.quorum.quorum import write_set
from pyreplog.bookie import surplus
from pyreplog.bookie.bookie_state import BookiePhase, BookieState, bookie_state_key
from pyreplog.bookie.collector import Collector
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.dead_entries import DeadEntries, are_among, count_among
from pyreplog.bookie.holdings import Holdings
from pyreplog.bookie.ledger_list import LOST, LedgerList
from pyreplog.bookie.opening import open_bookie
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import MetadataUnavailableError, VersionConflictError
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, key_proof, ledger_key, metadata_key
from pyreplog.ledger.ledger_store import StoredLedgers, load_ledger
from pyreplog.log.files import Files
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.store import MetadataStore
from tests.bookie.asking import ANY_SPACE, add, entries_in, read

SEGMENT = 64 << 10
PADDING = b"." * 3000
"""About 20 entries fill a segment."""
KEY = ledger_key(b"")
PROOF = bytes.fromhex(key_proof(KEY))
CONFIG = BookieConfig.of(
    {
        "durability": "synced",
        "segment_bytes": SEGMENT,
        "collect_step_bytes": 8 << 10,
        "collect_interval_ms": 1000,
        "surplus_interval_ms": 1000,  # each round looks
        "compact_below_percent": 100,
        **ANY_SPACE,
    }
)
US, FILLER = "us", 99


class Metadata(StoredLedgers):
    """Calls `before_touch` when a bookie is about to write metadata as they are."""

    before_touch: Callable[[int], object] | None = None

    def change_version(self, ledger: int, version: int) -> bool:
        if self.before_touch is not None:
            self.before_touch(ledger)
        return super().change_version(ledger, version)


class Node:
    """A bookie with its collector, and metadata in which its id is written "us"."""

    def __init__(
        self, path: Path, store: MetadataStore, config: BookieConfig = CONFIG, *, files: Files | None = None
    ) -> None:
        self.path, self.store, self.config, self._files = path, store, config, files
        self.ledgers = Metadata(store)
        self._filled = 0
        self._open()
        if store.get(metadata_key(FILLER)) is None:
            store.create(metadata_key(FILLER), open_ledger(self.identity.id).encode())

    def _open(self) -> None:
        self.identity, self.bookie = open_bookie(
            self.path, "us", self.store, self.config, ledgers=self.ledgers, files=self._files
        )
        listed = LedgerList(self.store, self.ledgers, self.identity)
        self.collector = Collector(self.bookie.log, self.config, listed, self.bookie.with_bookie)

    def close(self) -> None:
        self.bookie.close()

    def restart(self) -> None:
        """Go on as a process that starts later."""
        self.close()
        self._open()

    # ---- requests -----------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> Reply:
        replies: list[Reply] = []
        self.bookie.with_bookie(lambda bookie: bookie.handle(request, replies.append))
        self.bookie.with_bookie(lambda bookie: bookie.commit())
        (reply,) = replies
        return reply

    def copy(self, *entries: int, ledger: int = 1) -> None:
        """As a worker of auto-recovery does."""
        for entry in entries:
            request = add(entry, ledger=ledger, mark=PADDING, key=PROOF, flags=Flag.COPY)
            assert self.ask(request).status == ReplyStatus.OK

    def write(self, *entries: int, ledger: int = 1) -> None:
        for entry in entries:
            request = add(entry, ledger=ledger, mark=PADDING, key=KEY, flags=Flag.RECOVERY)
            assert self.ask(request).status == ReplyStatus.OK

    def roll(self) -> None:
        """Fill the active segment, with entries of an open ledger, so that it can be collected."""
        log = self.bookie.log.log
        base = log.end_position // SEGMENT
        while log.end_position // SEGMENT == base:
            self.write(self._filled, ledger=FILLER)
            self._filled += 1
        self.write(self._filled, ledger=FILLER)
        self._filled += 1

    def here(self, ledger: int = 1) -> list[int]:
        """What readers find."""
        actual, at = [], 0
        while at <= 300:
            reply = self.ask(read(at, 300, ledger=ledger))
            actual += entries_in(reply)
            at = reply.last + 1
        return actual

    def proof(self, ledger: int = 1) -> list[int] | None:
        """What HOLDINGS proves; None: unknown."""
        actual, at = [], 0
        while at <= 300:
            request = Request(RequestKind.HOLDINGS, ledger, at, 300)
            reply = self.ask(request)
            if reply.status != ReplyStatus.OK:
                return None
            actual += Holdings.decode(request, reply).entries(request).tolist()
            at = reply.last + 1
        return actual

    # ---- metadata -----------------------------------------------------------------------------------------------

    def _named(self, who: str) -> tuple[str, ...]:
        return tuple(self.identity.id if name == US else name for name in who.split())

    def make(self, *fragments: tuple[int, str], ledger: int = 1, last: int = 59, quorum: int | None = None) -> None:
        """A closed ledger."""
        size = len(fragments[0][1].split())
        quorum = quorum or size
        metadata = LedgerMetadata(
            ledger=ledger,
            ensemble_size=size,
            write_quorum=quorum,
            ack_quorum=1,
            fragments=tuple(Fragment(first, self._named(who)) for first, who in fragments),
            proof=PROOF.hex(),
            state=State.CLOSED,
            last_entry=last,
            length=1,
        )
        self.store.create(metadata_key(ledger), metadata.encode())

    def load(self, ledger: int = 1) -> tuple[LedgerMetadata, int]:
        return load_ledger(self.store, ledger)

    def put(self, metadata: LedgerMetadata, version: int) -> None:
        """Raises VersionConflictError."""
        self.store.put(metadata_key(metadata.ledger), metadata.encode(), version)

    def replace(self, old: str, new: str, *, ledger: int = 1, at: int | None = None) -> None:
        """Another bookie takes a place, in one fragment or in all."""
        metadata, version = self.load(ledger)
        self.put(replaced(metadata, *self._named(f"{old} {new}"), at), version)

    # ---- garbage collection -----------------------------------------------------------------------------------

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.collector.collect()


def open_ledger(bookie: str) -> LedgerMetadata:
    return LedgerMetadata(
        ledger=FILLER,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, (bookie,)),),
        proof=PROOF.hex(),
    )


def replaced(metadata: LedgerMetadata, old: str, new: str, at: int | None = None) -> LedgerMetadata:
    fragments = tuple(
        Fragment(first, tuple(new if name == old and at in (None, first) else name for name in ensemble))
        for first, ensemble in metadata.fragments
    )
    return dataclasses.replace(metadata, fragments=fragments)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as memory_store:
        yield memory_store


@pytest.fixture
def node(tmp_path: Path, store: MemoryStore) -> Iterator[Node]:
    node = Node(tmp_path / "us", store)
    yield node
    node.close()


def surplus_node(node: Node) -> Node:
    """With 60 entries of ledger 1, for which others are named now."""
    node.make((0, "us x"))
    node.write(*range(60))
    node.roll()
    node.replace(US, "y")
    return node


# ---- what goes ---------------------------------------------------------------------------------------------------


def test_a_ledger_that_names_others_goes_after_two_looks(node: Node) -> None:
    surplus_node(node)
    before, version = node.load()
    used = node.bookie.log.log.start_position
    node.rounds(1)
    assert node.here() == list(range(60)) and node.load() == (before, version)
    node.rounds(1)
    assert node.load()[0] == before and node.load()[1] != version, "nothing but its version changed"
    assert node.proof() == []
    node.rounds(1)
    assert node.here() == [] and node.bookie.log.log.start_position > used
    surplus = node.collector.surplus
    assert (surplus.marked_ledgers, surplus.conflicts, len(surplus)) == (1, 0, 0)
    assert 60 * 3000 < surplus.marked_bytes < 60 * 3200
    version = node.load()[1]
    node.rounds(5)
    assert node.load()[1] == version, "once"
    node.restart()
    assert node.here() == []


def test_copies_that_are_still_being_made_stay(node: Node) -> None:
    """However long a worker takes for a large ledger: they are no surplus before it is done, or has given up."""
    node.make((0, "x y"), last=99)
    for first in range(0, 100, 20):
        node.copy(*range(first, first + 20))
        node.roll()
        node.rounds(1)
    version = node.load()[1]
    assert node.proof() == node.here() == list(range(100)), "it can be named now"
    node.rounds(3)
    assert node.here() == [] and node.load()[1] != version


def test_entries_of_the_own_fragments_are_kept(node: Node) -> None:
    """Of a fragment in which this bookie is; of others in the same segments, nothing."""
    node.make((0, "us x"), (20, "us x"), (40, "us x"))
    node.write(*range(60))
    node.roll()
    node.replace(US, "y", at=20)
    node.rounds(4)
    expected = [*range(20), *range(40, 60)]
    assert node.here() == node.proof() == expected
    assert len(node.collector.surplus) <= 1
    node.restart()
    assert node.here() == node.proof() == expected
    node.rounds(3)
    assert node.here() == node.proof() == expected


@pytest.mark.parametrize(("size", "quorum"), [(3, 2), (5, 3)])
def test_copies_outside_the_stripes_of_a_bookie_are_removed(node: Node, size: int, quorum: int) -> None:
    """It had another place in the ensemble, and all entries for some other reason."""
    others = " ".join(f"x{n}" for n in range(size - 1))
    node.make((0, f"us {others}"), last=89, quorum=quorum)
    node.write(*range(90))
    node.roll()
    node.rounds(5)
    expected = [entry for entry in range(90) if 0 in write_set(entry, size, quorum)]
    assert node.here() == node.proof() == expected and node.collector.surplus.marked_ledgers == 1


def test_entries_behind_the_end_of_a_closed_ledger_go(node: Node) -> None:
    """They were never confirmed: the ledger was closed before them."""
    node.make((0, "us x"), last=19)
    node.write(*range(80))
    node.roll()
    node.rounds(4)
    assert node.proof() == list(range(20)) and node.here() == list(range(20))


def test_a_part_of_a_segment_moves_when_little_of_it_lives(node: Node) -> None:
    node.make((0, "us x"), (5, "y x"))
    node.write(*range(40))
    node.roll()
    node.rounds(3)
    assert node.collector.copied_bytes > 5 * 3000
    assert node.here() == node.proof() == list(range(5))
    node.restart()
    assert node.here() == node.proof() == list(range(5))


def test_surplus_in_the_active_segment_waits(node: Node) -> None:
    node.make((0, "y x"))
    node.write(0, 1)
    version = node.load()[1]
    node.rounds(4)
    assert node.here() == [0, 1] and node.load()[1] == version
    node.roll()
    node.rounds(3)
    assert node.here() == []


def test_new_surplus_of_a_ledger_that_had_some(node: Node) -> None:
    """It is named again, gets the copies, and is replaced again."""
    surplus_node(node)
    node.rounds(4)
    for _ in range(3):
        node.copy(*range(60))
        assert node.proof() == list(range(60))
        node.replace("y", US)
        node.roll()
        node.rounds(4)
        assert node.here() == list(range(60))
        node.replace(US, "y")
        node.rounds(4)
        assert node.here() == []
    assert node.collector.surplus.marked_ledgers == 4


# ---- what stays --------------------------------------------------------------------------------------------------


def _nothing(node: Node) -> None:
    """Surplus without a reason to keep it."""


def _reopened(node: Node) -> None:
    """It is not closed: its writer, or its recovery, may replace bookies, too."""
    metadata, version = node.load()
    node.put(dataclasses.replace(metadata, state=State.IN_RECOVERY, last_entry=-1, length=0), version)


def _garbled(node: Node) -> None:
    node.store.put(metadata_key(1), b"{", node.load()[1])


def _newer(node: Node) -> None:
    metadata, version = node.load()
    value = metadata.encode().replace(b'"min_reader":2', b'"min_reader":99')
    assert value != metadata.encode()
    node.store.put(metadata_key(1), value, version)


def _unknown(node: Node) -> None:
    """The metadata do not know this bookie: they are another cluster's, or were emptied."""
    key = node.identity.key
    stored = node.store.get(key)
    assert stored is not None
    node.store.delete(key, stored.version)


def _lost(node: Node) -> None:
    """Nobody had these entries when this bookie was given up; if it is back, it has the only copies."""
    node.store.create(f"{LOST}/{1:019d}", b"{}")


def _lost_strange(node: Node) -> None:
    """A name that makes no sense may be of any ledger."""
    node.store.create(f"{LOST}/x1", b"{}")


def _declared_lost(node: Node) -> None:
    node.store.create(bookie_state_key(node.identity.id), BookieState(BookiePhase.LOST, 0).encode())


def _member_is_lost(node: Node) -> None:
    """A worker may have copied entries here that only that member had, and have ended before it named this bookie."""
    node.store.create(bookie_state_key("y"), BookieState(BookiePhase.LOST, 0).encode())


def _member_is_away(node: Node) -> None:
    """Its disk may be gone for good, which nobody knows yet."""
    node.store.create(bookie_state_key("x"), BookieState(BookiePhase.AWAY, 0).encode())


def _member_drains(node: Node) -> None:
    node.store.create(bookie_state_key("y"), BookieState(BookiePhase.DRAINING, 0).encode())


def _away(node: Node) -> None:
    node.store.create(bookie_state_key(node.identity.id), BookieState(BookiePhase.AWAY, 0).encode())


def _lost_other(node: Node) -> None:
    node.store.create(f"{LOST}/{11:019d}", b"{}")


@pytest.mark.parametrize(
    "reason",
    [_reopened, _garbled, _newer, _unknown, _lost, _lost_strange, _declared_lost, _member_is_lost, _member_is_away],
    ids=lambda call: call.__name__,
)
@pytest.mark.parametrize("rounds", [0, 1])
def test_copies_of_a_ledger_whose_metadata_are_uncertain_stay(
    node: Node, reason: Callable[[Node], None], rounds: int
) -> None:
    """From the beginning, or since one look found it."""
    surplus_node(node)
    node.rounds(rounds)
    reason(node)
    stored = node.store.get(metadata_key(1))
    node.rounds(5)
    assert node.here() == node.proof() == list(range(60))
    assert node.store.get(metadata_key(1)) == stored and node.collector.surplus.marked_ledgers == 0


@pytest.mark.parametrize("reason", [_nothing, _away, _lost_other, _member_drains], ids=lambda call: call.__name__)
def test_states_of_other_members_do_not_delay_deletion_of_surplus_entries(
    node: Node, reason: Callable[[Node], None]
) -> None:
    surplus_node(node)
    reason(node)
    node.rounds(3)
    assert node.here() == []


def test_losses_are_looked_at_after_the_metadata(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker lists what nobody has, and names the other bookie then. Who looks the other way round misses it."""
    node.make((0, "us x"))
    node.write(*range(60))
    node.roll()
    closed = node.ledgers.closed

    def closed_and_given_up(ledgers: list[int], bookie: str) -> object:
        if US not in str(node.load()[0].fragments):
            return closed(ledgers, bookie)
        if node.store.get(f"{LOST}/1") is None:
            _lost(node)
            node.replace(US, "y")
        return closed(ledgers, bookie)

    monkeypatch.setattr(node.ledgers, "closed", closed_and_given_up)
    node.rounds(4)
    assert node.here() == list(range(60))


def test_an_interval_of_zero_removes_no_surplus_copies(tmp_path: Path, store: MemoryStore) -> None:
    node = Node(tmp_path / "us", store, dataclasses.replace(CONFIG, surplus_interval_ms=0))
    surplus_node(node)
    node.rounds(4)
    assert node.here() == list(range(60))
    node.close()


def test_looks_are_some_rounds_apart(tmp_path: Path, store: MemoryStore) -> None:
    """A worker has all this time to name the bookie to which it copies (BookKeeper #4668)."""
    node = Node(tmp_path / "us", store, dataclasses.replace(CONFIG, surplus_interval_ms=4500))
    surplus_node(node)
    node.rounds(5)
    assert node.here() == list(range(60)), "the first look"
    node.replace("y", US)
    node.rounds(5)
    node.replace(US, "y")
    node.rounds(5)
    assert node.here() == list(range(60)), "it was named at the second look, so that this is a first one"
    node.rounds(6)
    assert node.here() == []
    node.close()


def test_a_round_judges_so_many_ledgers_and_collects_segments_between(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surplus, "MARKED_MAX", 2)
    node = Node(tmp_path / "us", store, dataclasses.replace(CONFIG, compact_below_percent=0))
    for ledger in range(1, 8):
        node.make((0, "y x"), ledger=ledger, last=0)
        node.write(0, ledger=ledger)
    node.roll()
    for expected in (0, 2, 4, 6, 7, 7):
        node.rounds(1)
        assert node.collector.surplus.marked_ledgers == expected
    node.close()


# ---- whoever names this bookie meanwhile --------------------------------------------------------------------------


def test_a_worker_that_slept_cannot_name_a_bookie_whose_copies_are_gone(node: Node) -> None:
    """It copied, and had its proof; then its claim ran out, and somebody else copied to z."""
    node.make((0, "gone x"))
    metadata, version = node.load()
    node.copy(*range(60))
    assert node.proof() == list(range(60))
    node.roll()
    node.rounds(2)
    with pytest.raises(VersionConflictError):
        node.put(replaced(metadata, "gone", node.identity.id), version)
    node.rounds(2)
    assert node.here() == [] and node.load()[0] == metadata


def test_a_worker_whose_proof_came_first_keeps_the_copies(node: Node) -> None:
    """It names the bookie just before the metadata are written: the entries are shown again."""
    node.make((0, "gone x"))
    node.copy(*range(60))
    assert node.proof() == list(range(60))
    node.roll()

    def named(ledger: int) -> None:
        assert node.proof() is None, "it is being decided"
        node.replace("gone", US)

    node.rounds(1)
    node.ledgers.before_touch = named
    node.rounds(1)
    assert node.collector.surplus.conflicts == 1
    node.rounds(4)
    assert node.here() == node.proof() == list(range(60)) and node.collector.surplus.marked_ledgers == 0


def test_a_worker_that_begins_after_the_decision_copies_again(node: Node) -> None:
    """What is dead proves nothing, and is no reason not to store a copy: it is removed later, the copy is not."""
    surplus_node(node)
    node.rounds(1)
    while node.proof() != []:
        assert node.collector.step()
    assert node.here() == list(range(60)) and node.proof() == []
    metadata, version = node.load()
    node.copy(*range(30))
    assert node.proof() == list(range(30))
    node.copy(*range(60))
    assert node.proof() == list(range(60))
    node.put(replaced(metadata, "y", node.identity.id), version)
    node.roll()
    node.rounds(3)
    assert node.here() == node.proof() == list(range(60)) and node.bookie.log.log.start_position > 0
    node.restart()
    assert node.here() == list(range(60))


def test_while_it_is_decided_holdings_are_unknown_and_copies_are_stored(node: Node) -> None:
    """A "no" would be wrong if the decision is not made; who looks for losses must not see any."""
    surplus_node(node)
    looked: list[object] = []

    def meanwhile(ledger: int) -> None:
        looked.append(node.proof())
        looked.append(node.here() == list(range(60)))
        size = node.bookie.log.log.end_position
        node.copy(0)
        looked.append(node.bookie.log.log.end_position > size)
        raise MetadataUnavailableError("away")

    node.rounds(1)
    node.ledgers.before_touch = meanwhile
    with pytest.raises(MetadataUnavailableError):
        node.rounds(1)
    assert looked == [None, True, True]
    assert node.proof() == node.here() == list(range(60)), "nothing was decided"
    node.ledgers.before_touch = None
    node.rounds(4)
    assert node.here() == []


def test_a_repair_of_what_is_dead_is_stored_again(node: Node) -> None:
    surplus_node(node)
    node.rounds(2)
    node.write(5)
    assert node.proof() == [5]


def test_a_deleted_ledger_is_forgotten(node: Node) -> None:
    surplus_node(node)
    node.write(200, ledger=FILLER)
    node.rounds(2)
    node.store.delete(metadata_key(1), node.load()[1])
    node.rounds(2)
    assert node.ask(read(0, 9, ledger=1)).status == ReplyStatus.REFUSED and len(node.collector.surplus) == 0


# ---- anything in any order ------------------------------------------------------------------------------------------


class Worker:
    """Copies ledger 1 to this bookie in place of who is named, a step at a time; it may sleep between any two."""

    def __init__(self, node: Node, rng: random.Random) -> None:
        self.node, self._rng = node, rng
        self._steps = self._run()

    def step(self) -> None:
        next(self._steps)

    def _run(self) -> Iterator[None]:
        while True:
            metadata, version = self.node.load()
            (first, ensemble), *_ = metadata.fragments
            if self.node.identity.id in ensemble:
                yield
                continue
            yield
            index = self._rng.randrange(len(ensemble))
            wanted = sorted(entry for part in metadata.stripes(index, 0, metadata.last_entry + 1) for entry in part)
            for at in range(0, len(wanted), 7):
                self.node.copy(*wanted[at : at + 7])
                yield
            proved = self.node.proof()
            yield
            if proved is not None and {*wanted} <= {*proved}:
                members = (*ensemble[:index], self.node.identity.id, *ensemble[index + 1 :])
                changed = dataclasses.replace(metadata, fragments=(Fragment(first, members),))
                with suppress(VersionConflictError):
                    self.node.put(changed, version)
            yield


def move_away(node: Node, number: int) -> None:
    """Another worker names another bookie in this one's place, or in any place, when it has the copies."""
    metadata, version = node.load()
    (first, ensemble), *_ = metadata.fragments
    index = ensemble.index(node.identity.id) if node.identity.id in ensemble else number % len(ensemble)
    members = (*ensemble[:index], f"z{number}", *ensemble[index + 1 :])
    node.put(dataclasses.replace(metadata, fragments=(Fragment(first, members),)), version)


def check(node: Node) -> None:
    """What the metadata name this bookie for is here."""
    metadata, _ = node.load()
    wanted = sorted(entry for part in metadata.holdings(node.identity.id) for entry in part)
    assert {*wanted} <= {*node.here()}
    held = node.proof()
    assert held is None or {*wanted} <= {*held}


@pytest.mark.parametrize("seed", range(25))
def test_a_bookie_that_is_named_has_its_copies(seed: int, ram_path: Path, store: MemoryStore) -> None:
    """Two workers, the collector, moves and restarts in any order, at any moment."""
    rng = random.Random(seed)
    config = dataclasses.replace(CONFIG, durability=rng.choice(["synced", "appended"]))
    node = Node(ram_path / "us", store, config)
    size = rng.choice([2, 3])
    node.make((0, " ".join("xyz"[:size])), last=29, quorum=rng.randint(1, size))
    workers = [Worker(node, rng) for _ in range(2)]
    hurry = rng.choice([1, 3])
    for number in range(150):
        action = rng.choice(["work", "work", "work", "rest", *["collect"] * hurry, "roll", "move", "restart"])
        if action == "work":
            workers[0].step()
        elif action == "rest":
            workers[1].step()
        elif action == "collect":
            for _ in range(rng.randint(1, 30)):
                node.collector.step()
        elif action == "roll":
            node.roll()
        elif action == "move" and rng.random() < 0.4:
            move_away(node, number)
        elif action == "restart" and rng.random() < 0.2:
            node.restart()
        check(node)
    move_away(node, 999)
    for _ in range(5):
        node.roll()
        node.rounds(1)
    (_, ensemble), *_ = node.load()[0].fragments
    assert node.identity.id in ensemble or node.proof() == []
    node.close()


# ---- dead entries ------------------------------------------------------------------------------------------------


@given(
    entries=st.sets(st.integers(0, 80), max_size=40),
    ranges=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 30), st.integers(1, 5)), max_size=4),
    below=st.integers(0, 900),
)
def test_dead_entries_are_those_outside_the_kept_ranges(
    entries: set[int], ranges: list[tuple[int, int, int]], below: int
) -> None:
    kept = tuple(range(start, start + length, step) for start, length, step in ranges)
    rows = np.array(sorted(entries), np.int64)
    positions = 10 * rows
    among = [any(entry in part for part in kept) for entry in sorted(entries)]
    assert are_among(rows, kept).tolist() == among
    dead = DeadEntries(kept, below).mask(rows, positions)
    assert dead.tolist() == [10 * e < below and not named for e, named in zip(sorted(entries), among, strict=True)]


@given(
    start=st.integers(0, 50), length=st.integers(0, 50), step=st.integers(1, 6),
    first=st.integers(0, 120), count=st.integers(0, 50),
)  # fmt: skip
def test_entries_of_a_range_are_counted(start: int, length: int, step: int, first: int, count: int) -> None:
    part = range(start, start + length, step)
    expected = sum(1 for entry in range(first, first + count) if entry in part)
    assert count_among([part, range(200, 300)], first, first + count - 1) == expected
