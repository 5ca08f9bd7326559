"""Bookies that are lost, draining or retired get no new entries, writers replace them, and `cluster status` shows their
phases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyreplog.bookie.bookie_state import BOOKIE_STATES, BookiePhase
from pyreplog.cli.app import main
from pyreplog.errors import MetadataUnavailableError, NotEnoughBookiesError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import LEDGERS, LedgerMetadata
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.registrations import BookieStates
from pyreplog.ledger.replacement_pacing import AT_ONCE, MemberReplacement
from pyreplog.metadata.memory import MemoryStore
from tests.ledger.conftest import SEGMENT_BYTES
from tests.ledger.fault_injection import FailingStore
from tests.ledger.phases import set_phase, set_phases
from tests.waiting import until

LEAVING = [BookiePhase.LOST, BookiePhase.DRAINING, BookiePhase.RETIRED]


@pytest.fixture
def names(cluster: LedgerCluster) -> list[str]:
    """Return the ids of the four bookies."""
    return sorted(bookie.bookie for bookie in cluster.status().bookies)


def members(cluster: LedgerCluster, *quorums: int) -> set[str]:
    """Create a few ledgers; return the members of their ensembles."""
    ensembles: set[str] = set()
    for _ in range(6):
        with cluster.create_ledger(*quorums) as ledger:
            ensembles.update(ledger.metadata.last_fragment.ensemble)
    return ensembles


@pytest.mark.parametrize("phase", LEAVING)
def test_leaving_bookie_is_not_chosen_for_a_new_ensemble(
    cluster: LedgerCluster, names: list[str], phase: BookiePhase
) -> None:
    set_phases(cluster, {names[0]: phase})
    assert members(cluster, 3, 2, 2) == set(names[1:])
    set_phases(cluster, {names[0]: None})
    until(lambda: members(cluster, 3, 2, 2) == set(names))


def test_bookie_with_state_away_that_runs_is_chosen(cluster: LedgerCluster, names: list[str]) -> None:
    """The bookie has registered again, and the auditor has not noticed yet."""
    set_phases(cluster, {names[0]: BookiePhase.AWAY})
    assert members(cluster, 4, 2, 2) == set(names)


@pytest.mark.parametrize("phase", LEAVING)
def test_leaving_bookie_is_not_chosen_in_place_of_suspected_ones(
    cluster: LedgerCluster, names: list[str], phase: BookiePhase
) -> None:
    """It is not chosen in place of bookies that failed lately, nor for a ledger that may be degraded."""
    set_phases(cluster, {names[0]: phase})
    for name in names[1:]:
        cluster.runtime.suspect(name)
    assert members(cluster, 3, 2, 2) == set(names[1:])
    with pytest.raises(
        NotEnoughBookiesError,
        match="expected 4 bookies for the ensemble, found 3 that take entries, and the cluster has 3",
    ):
        cluster.create_ledger(4, 3, 2, allow_degraded=True)


def test_states_are_known_from_the_start(folder: Path) -> None:
    with LedgerCluster.embedded(folder, bookies=4, segment_bytes=SEGMENT_BYTES) as cluster:
        leaving = cluster.status().bookies[0].bookie
        set_phase(cluster.metadata, leaving, BookiePhase.DRAINING)
    with LedgerCluster.embedded(folder, segment_bytes=SEGMENT_BYTES) as cluster:
        assert leaving not in members(cluster, 3, 2, 2)
    with LedgerCluster.connect(f"sqlite:{folder / 'metadata.sqlite'}") as cluster:
        assert cluster.runtime.leaving_bookies() == [leaving]


def test_lost_bookies_are_replaced_first(cluster: LedgerCluster, names: list[str]) -> None:
    """Of the leaving bookies, lost ones come first, as their copies are gone."""
    phases = [BookiePhase.DRAINING, BookiePhase.RETIRED, BookiePhase.LOST, BookiePhase.AWAY]
    set_phases(cluster, dict(zip(names, phases, strict=True)))
    assert cluster.runtime.leaving_bookies() == [names[2], names[1], names[0]]


def test_a_state_that_cannot_be_read_counts_as_none(
    cluster: LedgerCluster, names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.metadata.create(f"{BOOKIE_STATES}/{names[0]}", b'{"version":9,"min_reader":9}')
    until(lambda: "is ignored, it cannot be read" in caplog.text)
    assert members(cluster, 4, 2, 2) == set(names)


def test_the_status_of_a_cluster_has_phases_of_bookies(
    cluster: LedgerCluster, names: list[str], folder: Path, capsys
) -> None:
    set_phases(cluster, {names[1]: BookiePhase.DRAINING, "gone@00": BookiePhase.LOST})
    status = cluster.status()
    phases = {bookie.bookie: bookie.phase for bookie in status.bookies}
    assert phases == {**dict.fromkeys(names), names[1]: BookiePhase.DRAINING}
    assert [(bookie.bookie, bookie.phase) for bookie in status.absent] == [("gone@00", BookiePhase.LOST)]
    cluster.close()
    assert main(["cluster", "--embedded", str(folder), "status"]) == 0
    shown = capsys.readouterr().out
    assert (
        f"  {names[1]}  " in shown
        and "free  draining  no complete scrub yet\n" in shown
        and "  gone@00  not running  lost\n" in shown
    )
    assert main(["cluster", "--embedded", str(folder), "--json", "status"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [bookie["phase"] for bookie in body["bookies"]] == [None, "draining", None, None]
    assert [bookie["phase"] for bookie in body["absent"]] == ["lost"]


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    with MemoryStore() as memory:
        yield memory


def test_states_that_cannot_be_read_at_first_are_read_later(memory: MemoryStore) -> None:
    store: Any = FailingStore(memory)
    store.fail("list", MetadataUnavailableError("away"))
    set_phase(memory, "b@1", BookiePhase.DRAINING)
    again: list[Callable[[], None]] = []
    states = BookieStates(store, lambda names: None, again.append)
    until(lambda: again)
    assert states.leaving() == [] and not states.wait(0)
    again.pop()()
    assert states.leaving() == ["b@1"] and states.wait(0)
    states.close()


def test_phase_written_again_with_the_same_value_is_reported_again(memory: MemoryStore) -> None:
    """An operator who writes the same value again makes writers look for bookies again."""
    changed: list[object] = []
    set_phase(memory, "b@1", BookiePhase.LOST)
    states = BookieStates(memory, changed.append, lambda read: None)
    until(lambda: frozenset() in changed)  # the first read is complete
    assert [names for names in changed if names] == [{"b@1"}]
    set_phase(memory, "b@1", BookiePhase.LOST)
    until(lambda: [names for names in changed if names] == [{"b@1"}] * 2)
    states.close()


# ---- ledgers that are open -------------------------------------------------------------------------------------


def ensemble(ledger: Ledger) -> tuple[str, ...]:
    return ledger.metadata.last_fragment.ensemble


@pytest.mark.parametrize("phase", LEAVING)
def test_an_idle_ledger_replaces_a_member(cluster: LedgerCluster, phase: BookiePhase) -> None:
    """The writer replaces it unasked, with or without entries. The bookie keeps its place in the former fragment."""
    with cluster.create_ledger(3, 2, 2) as empty, cluster.create_ledger(3, 2, 2) as ledger:
        ledger.append_batch([b"%d" % entry for entry in range(5)])
        before = ledger.metadata.fragments
        leaving = next(name for name in ensemble(ledger) if name in ensemble(empty))
        set_phase(cluster.metadata, leaving, phase)
        until(lambda: leaving not in {*ensemble(ledger), *ensemble(empty)})
        assert [fragment.first for fragment in empty.metadata.fragments] == [0]
        assert ledger.metadata.fragments[:1] == before and ledger.metadata.last_fragment.first == 5
        assert cluster.ledger_metadata(ledger.id) == ledger.metadata
        ledger.append(b"5")
    assert [len(fragments) for fragments in (ledger.metadata.fragments, empty.metadata.fragments)] == [2, 1]
    assert cluster.count_copies(ledger.id).tolist() == [2] * 6


def test_a_state_has_one_change(cluster: LedgerCluster) -> None:
    """The bookie is replaced once, however often its state is reported and whatever it becomes."""
    with cluster.create_ledger(3, 2, 2) as ledger:
        leaving = ensemble(ledger)[1]
        set_phases(cluster, {leaving: BookiePhase.DRAINING})
        until(lambda: leaving not in ensemble(ledger))
        version = load_ledger(cluster.metadata, ledger.id).version
        for phase in (BookiePhase.LOST, BookiePhase.LOST, BookiePhase.RETIRED):
            set_phases(cluster, {leaving: phase})
            ledger.append(b"value")
        assert load_ledger(cluster.metadata, ledger.id).version == version and not ledger.is_storing


def test_many_ledgers_replace_a_bookie_in_turns(cluster: LedgerCluster) -> None:
    with ExitStack() as opened:
        ledgers = [opened.enter_context(cluster.create_ledger(3, 2, 2)) for _ in range(3 * AT_ONCE)]
        leaving = ensemble(ledgers[0])[0]
        set_phase(cluster.metadata, leaving, BookiePhase.DRAINING)
        until(lambda: not any(leaving in ensemble(ledger) for ledger in ledgers))
        for ledger in ledgers:
            ledger.append(b"goes on")


def test_bookie_that_starts_leaving_while_a_ledger_is_created_is_replaced(cluster: LedgerCluster) -> None:
    """The members were chosen before the state was set, and the writers were told before this ledger was among them."""
    leaving: list[str] = []
    create = cluster.metadata.create
    store: Any = FailingStore.before(cluster)

    def create_then(key: str, value: bytes) -> int:
        version: int = create(key, value)
        if key.startswith(LEDGERS) and not leaving:
            leaving.append(LedgerMetadata.decode(value).last_fragment.ensemble[0])
            set_phases(cluster, {leaving[0]: BookiePhase.DRAINING})
        return version

    store.create = create_then
    with cluster.create_ledger(3, 2, 2) as ledger:
        assert leaving
        until(lambda: leaving[0] not in ensemble(ledger))


class Entrant:
    """Takes the place of a ledger: records its calls, and stores a change when the test says so."""

    def __init__(self, *members: str) -> None:
        self.requests: list[list[str]] = []
        self.change(*members)

    def change(self, *members: str) -> None:
        """Finish a change of the members."""
        self.metadata = SimpleNamespace(last_fragment=SimpleNamespace(ensemble=members))
        self.is_storing = False

    def replace_members(self, bookies: list[str]) -> None:
        self.is_storing = True
        self.requests.append(bookies)


class Timers:
    """Takes the place of a runtime: timers fire when the test says so."""

    def __init__(self, *leaving: str) -> None:
        self.leaving, self.timers = list(leaving), []

    def leaving_bookies(self) -> list[str]:
        return self.leaving

    def wake_after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append(call)


def test_only_so_many_change_at_a_time() -> None:
    """The other ledgers wait for a single timer, which is not set while no ledger waits."""
    ledgers, timers = [Entrant("a", "b") for _ in range(AT_ONCE + 3)], Timers("b")
    bystander = Entrant("a", "c")
    replacement: Any = MemberReplacement([*ledgers, bystander], timers)  # type: ignore[list-item, arg-type]
    for _ in range(2):
        replacement.begin()
    assert sum(len(ledger.requests) for ledger in ledgers) == AT_ONCE and len(timers.timers) == 1
    timers.timers.pop()()
    assert sum(len(ledger.requests) for ledger in ledgers) == AT_ONCE and len(timers.timers) == 1
    for ledger in ledgers[:3]:
        ledger.change("a", "d")
    timers.timers.pop()()
    assert [len(ledger.requests) for ledger in ledgers] == [1] * len(ledgers)
    for ledger in ledgers:
        ledger.change("a", "d")
    timers.timers.pop()()
    assert [len(ledger.requests) for ledger in ledgers] == [1] * len(ledgers)
    assert timers.timers == [] and bystander.requests == []


def test_waiting_writers_are_not_asked_to_replace_a_bookie_whose_drain_was_cancelled() -> None:
    """The operator cancelled the drain meanwhile."""
    ledgers, timers = [Entrant("b") for _ in range(AT_ONCE + 1)], Timers("b")
    replacement: Any = MemberReplacement(ledgers, timers)  # type: ignore[arg-type]
    replacement.begin()
    timers.leaving = []
    replacement.begin()
    for ledger in ledgers:
        ledger.is_storing = False
    timers.timers.pop()()
    assert sum(len(ledger.requests) for ledger in ledgers) == AT_ONCE and timers.timers == []
