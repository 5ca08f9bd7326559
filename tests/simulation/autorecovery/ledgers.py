"""The life of one ledger: its metadata, its writer, and what must hold of it while its copies are moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.protocol.effects import NoteLost
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, key_proof

from ..bookies import KEY
from ..clients import Client, Recoverer, Writer
from ..invariants import Invariants, demand
from ..schedule import Plan
from ..store import TIMEOUT_S, MetadataHost

if TYPE_CHECKING:
    from .schedule import Schedule


KEY_AFTER_S = 0.05


class LedgerHost(MetadataHost):
    """The metadata of one ledger, which may be deleted, and the list of its lost entries."""

    def __init__(self, life: LedgerLife, metadata: LedgerMetadata) -> None:
        super().__init__(life.world, metadata, life.changed)
        self._life = life
        self.is_deleted = False
        self.lost: set[int] = set()
        self.had_last: dict[str, set[int]] = {}  # bookie -> lost entries of which it had the last copies

    def _set(self, effect: Any, answer: Callable[..., None]) -> None:
        if self.is_deleted:
            answer("deleted")
        else:
            super()._set(effect, answer)

    def _get(self, answer: Callable[..., None]) -> None:
        if self.is_deleted:
            answer("deleted")
        else:
            super()._get(answer)

    def is_noted(self, metadata: LedgerMetadata, bookie: str) -> bool:
        """All that a bookie with an order should hold is copied to others, whether it has it or not: a worker reads from
        every member. So a note about a fragment that was moved already is needed no more."""
        named = (fragment for fragment in metadata.fragments if bookie in fragment.ensemble)
        last = max((fragment.first for fragment in named), default=-1)
        is_noted = any(entry <= last or metadata.has(bookie, entry) for entry in self.noted.get(bookie, ()))
        return is_noted or bookie in self._life.schedule.orders

    def forget(self, bookie: str, entries: set[int]) -> None:
        """Notes of a bookie are settled; another process may have forgotten them before."""
        left = self.noted.pop(bookie, set()) - entries
        if left:
            self.noted[bookie] = left

    def found(self, entries: set[int]) -> None:
        """Members have lost entries again: they leave the list."""
        self.lost -= entries
        left = {name: theirs - entries for name, theirs in self.had_last.items()}
        self.had_last = {name: theirs for name, theirs in left.items() if theirs}
        self._life.found += len(entries)

    def note_lost(self, client: Client, machine: Any, effect: NoteLost) -> None:
        """List entries as lost; the request, or its answer, may be lost."""
        fate = self.world.random.random()
        if fate < self.loss:
            if fate < self.loss / 2:
                self.world.after(self._delay(), self._life.list_lost, effect)
            self.world.after(TIMEOUT_S, client.deliver, machine, "store_unknown")
            return

        def do() -> None:
            self._life.list_lost(effect)
            self.world.after(self._delay(), client.deliver, machine, "noted")

        self.world.after(self._delay(), do)


class LedgerLife:
    """What a client of one ledger sees of a schedule: the same attributes as `simulation.schedule.Schedule`."""

    key = KEY

    def __init__(self, schedule: Schedule, ledger: int, plan: Plan) -> None:
        self.schedule, self.world, self.nodes, self.plan = schedule, schedule.world, schedule.nodes, plan
        self.ledger = ledger
        self.invariants = LedgerInvariants(self)
        ensemble = self.world.random.sample([node.name for node in self.nodes.places], plan.ensemble_size)
        metadata = LedgerMetadata(
            ledger=ledger,
            ensemble_size=plan.ensemble_size,
            write_quorum=plan.write_quorum,
            ack_quorum=plan.ack_quorum,
            fragments=(Fragment(0, tuple(ensemble)),),
            proof=key_proof(KEY),
        )
        self.store = LedgerHost(self, metadata)
        self.store.loss = plan.loss
        self.mover: str | None = None  # a replicator whose change is being made
        self.losses_while_open = 0  # disks that were lost before the ledger was closed
        self.moves = 0  # changes that replicators made
        self.repairs = 0  # members whose notes were settled
        self.rescues = 0  # recoveries that a watcher began
        self.ever_lost: set[int] = set()
        self.found = 0  # lost entries that a disk which returned had
        self.key_lapses: tuple[float, float] | None = None  # from when on, and until when, the writer's key is gone
        self.writer = Writer(self)  # type: ignore[arg-type]
        self.clients: list[Client] = [self.writer]

    def begin(self) -> None:
        self.writer.run()
        for number in range(self.plan.recoverers):
            self.recover(f"recoverer{number} of {self.ledger}", self.world.random.random() * 1.5 * self.plan.busy_s, 3)
        if self.plan.ending == "vanish":
            self.world.after(self.world.random.random() * self.plan.busy_s, self.writer.end)

    def has_writer(self) -> bool:
        """Whether a writer has the ledger open."""
        writer = self.writer
        return writer.is_alive and not writer.has_ended and writer.machine.error is None

    def has_key(self) -> bool:
        """Whether the key of the writer exists: from a moment after the creation on, but for a lapse of its lease."""
        now, lapse = self.world.now, self.key_lapses
        is_gone = lapse is not None and lapse[0] <= now < lapse[1]
        return self.has_writer() and now >= KEY_AFTER_S and not is_gone

    def recover(self, name: str, after: float, tries: int) -> None:
        recoverer = Recoverer(self, name, tries)  # type: ignore[arg-type]
        self.clients.append(recoverer)
        self.world.after(after, recoverer.run)

    def changed(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        self.invariants.metadata_changed(before, after)

    def list_lost(self, effect: NoteLost) -> None:
        """What is listed as lost is lost: no disk that may come back has a copy, of those that metadata ever named."""
        for entry in effect.entries:
            if self.is_held_by_declared_lost(entry):  # it may have returned, and given others its copy a moment before
                continue
            has_it = [
                node.name
                for node in self.nodes.by_name.values()
                if not node.is_gone
                and self.is_named(node.name, entry)
                and node.log.holds(self.ledger, entry)
                and entry not in self.ever_lost  # a finder may have found it a moment before
            ]
            demand(not has_it, "LossesAreListedExactly", f"entry {entry} of ledger {self.ledger} is on {has_it}")
        self.store.lost.update(effect.entries)
        self.ever_lost.update(effect.entries)
        for bookie, entries in effect.by_bookie:
            self.store.had_last.setdefault(bookie, set()).update(entries)
        self.world.note("ledger", self.ledger, "has lost", effect.entries)

    def is_named(self, bookie: str, entry: int) -> bool:
        """Whether metadata name a bookie for an entry."""
        metadata = self.store.metadata
        ensemble = metadata.fragment_of(entry).ensemble
        places = write_set(entry, metadata.ensemble_size, metadata.write_quorum)
        return bookie in {ensemble[place] for place in places}

    def copies(self, entry: int) -> int:
        """Intact copies of an entry on bookies that metadata name for it and whose disks exist."""
        metadata = self.store.metadata
        ensemble = metadata.fragment_of(entry).ensemble
        places = write_set(entry, metadata.ensemble_size, metadata.write_quorum)
        return sum(self.nodes.by_name[ensemble[place]].log.holds(self.ledger, entry) for place in places)

    def is_held_by_declared_lost(self, entry: int) -> bool:
        """Whether the disk of a bookie that was declared lost has an entry all the same."""
        nodes = self.nodes.by_name
        return any(nodes[bookie].log.holds(self.ledger, entry) for bookie in self.schedule.declared_lost)

    def bears_loss(self, node: Any) -> bool:
        """Whether the ledger survives the loss of a disk: an acknowledged entry has another copy, and fewer disks
        are lost while it is not closed than the ack quorum."""
        metadata, name = self.store.metadata, node.name
        if metadata.state is not State.CLOSED:  # a change that names the bookie may be on its way
            return self.losses_while_open < metadata.ack_quorum - 1
        last = metadata.last_entry
        return all(
            self.copies(entry) - (self.is_named(name, entry) and node.log.holds(self.ledger, entry)) >= 1
            for entry in range(last + 1)
            if entry not in self.store.lost
        )


class LedgerInvariants(Invariants):
    """Those of a ledger; and of who moves copies."""

    def __init__(self, life: LedgerLife) -> None:
        super().__init__(life)  # type: ignore[arg-type]
        self._life = life

    def _is_excused(self, entry: int) -> bool:
        """Entries that are listed as lost, while a bookie that an operator declared lost has them; and those that only a
        bookie has which is no member any more, because the one that took its place lost its disk: workers ask it."""
        life = self._life
        if entry in life.store.lost and life.is_held_by_declared_lost(entry):
            return True
        members = [life.nodes.by_name[name] for name in life.store.metadata.fragment_of(entry).ensemble]
        if not any(node.has_lost for node in members) or any(node.log.holds(life.ledger, entry) for node in members):
            return False
        return any(node.log.holds(life.ledger, entry) for node in life.nodes.by_name.values())

    def metadata_changed(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        super().metadata_changed(before, after)
        mover, self._life.mover = self._life.mover, None
        if mover is not None:
            self._life.moves += 1
            self._moved(before, after)

    def _moved(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """A worker's change: the end and the state stay, the open last fragment is untouched, who is named has its copies."""
        life = self._life
        demand(before.state is after.state, "AWorkerChangesMembersAlone", f"{before.state} became {after.state}")
        if before.state is not State.CLOSED:
            demand(before.last_fragment == after.last_fragment, "TheOpenFragmentIsUntouched", f"{after.fragments}")
        stop = after.last_entry + 1 if after.state is State.CLOSED else after.last_fragment.first
        for entry in range(stop):
            was, now = before.fragment_of(entry).ensemble, after.fragment_of(entry).ensemble
            for place in write_set(entry, after.ensemble_size, after.write_quorum):
                if was[place] == now[place]:
                    continue
                node = life.nodes.by_name[now[place]]
                has_it = node.log.holds(life.ledger, entry) or node.has_lost or entry in life.store.lost
                demand(
                    has_it, "NamedMembersHaveProof", f"entry {entry} is not on {now[place]}, which took {was[place]}"
                )
