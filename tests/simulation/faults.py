"""What goes wrong, and when. All of it ends; bookies that lost their data stay fewer than the ack quorum."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyreplog._native.quorum.stripe import members
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata

from .bookies import LEDGER, Node
from .disk import PLENTY

if TYPE_CHECKING:
    from .schedule import Schedule


class Faults:
    """Each is drawn, with its time, from the schedule's seed."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._world = schedule, schedule.world
        self._lossy = schedule.plan.ack_quorum - 1
        self._kinds: list[Callable[[], None]] = [
            self._crash, self._crash, self._stop_node, self._stop_writer, self._cut, self._cut, self._partition,
            self._fill, self._lose, self._damage, self._disk_fails, self._stall_store, self._move_copies,
        ]  # fmt: skip

    def plan(self, moments: list[float]) -> None:
        """Some any time, others while somebody recovers the ledger, from one of `moments` on."""
        random = self._world.random
        for _ in range(self._schedule.plan.dead):
            self._world.at(random.random() * self._schedule.plan.busy_s, self._die)
        for _ in range(self._schedule.plan.naps):
            self._world.at(random.random() * self._schedule.plan.busy_s, self._nap)
        for _ in range(self._schedule.plan.leaving):
            self._world.at(self._world.leaving.random() * 1.2 * self._schedule.plan.busy_s, self._leave)
        for _ in range(self._schedule.plan.faults):
            if moments and random.random() < 0.5:
                time = random.choice(moments) + random.random() * 0.02
            else:
                time = random.random() * self._schedule.plan.busy_s
            self._world.at(time, random.choice(self._kinds))

    def _moment(self) -> float:
        random = self._world.random
        return random.random() ** 2 * (0.12 if random.random() < 0.8 else 0.6)

    def _crash(self) -> None:
        """Of a ledger that does not wait for syncs, a crash loses copies."""
        node = self._world.random.choice(self._schedule.nodes.places)
        if node.log.staged or self._may_lose(node):
            node.crash()
            self._world.after(self._moment(), self._come_back, node.start)

    def _come_back(self, begin: Callable[[], None]) -> None:
        """A bookie registers, and the writer hears of it."""
        begin()
        writer = self._schedule.writer
        self._world.after(self._world.random.random() * 0.01, writer.deliver, writer.machine, "reconsider")
        if self._schedule.nodes.leaving:
            self._tell_who_leaves()

    def _leave(self) -> None:
        """A bookie, mostly a member, is to leave; it works as before. Some may stay after all, or leave twice."""
        random, nodes = self._world.leaving, self._schedule.nodes
        members = self._schedule.store.metadata.last_fragment.ensemble
        name = random.choice(members if random.random() < 0.8 else sorted(nodes.by_name))
        nodes.leaving.add(name)
        nodes.had_to_leave.add(name)
        self._world.note(name, "is to leave")
        if random.random() < 0.2:
            self._world.after(random.random() * 0.02, nodes.leaving.discard, name)
        for _ in range(random.choice((1, 1, 2))):
            self._tell_who_leaves()

    def _tell_who_leaves(self) -> None:
        self._world.after(self._world.leaving.random() * 0.01, self._hear_who_leaves)

    def _hear_who_leaves(self) -> None:
        writer, leaving = self._schedule.writer, sorted(self._schedule.nodes.leaving)
        writer.deliver(writer.machine, "replace_members", leaving)

    def _disk_fails(self) -> None:
        node = self._world.random.choice(self._schedule.nodes.places)
        if node.log.staged or self._may_lose(node):
            node.log.fails = True
            self._world.note("the disk of", node.name, "fails")
            self._world.after(self._moment(), node.crash)
            self._world.after(0.6, self._come_back, node.start)

    def _nap(self) -> None:
        """One of a few bookies crashes, and comes back soon."""
        plan = self._schedule.plan
        nappers = self._schedule.nodes.places[: plan.write_quorum - plan.ack_quorum]
        if nappers:
            node = self._world.random.choice(nappers)
            node.crash()
            self._world.after(self._world.random.random() * 0.03, self._come_back, node.start)

    def _die(self) -> None:
        """A bookie is away for good: first of all one that has a place."""
        ensemble = self._schedule.store.metadata.last_fragment.ensemble
        alive = [node for node in self._schedule.nodes.places if not node.has_lost]
        here = [node for node in alive if node.name in ensemble] or alive
        node = self._world.random.choice(here) if here else None
        if node is not None and self._may_lose(node):
            node.die()

    def _may_lose(self, node: Node) -> bool:
        """Only as many bookies lose copies as the ledger can bear."""
        if not node.has_lost and self._lossy <= 0:
            return False
        self._lossy -= not node.has_lost
        node.has_lost = True
        return True

    def _lose(self) -> None:
        """The directory of a bookie is emptied."""
        place = self._world.random.randrange(len(self._schedule.nodes.places))
        if self._may_lose(self._schedule.nodes.places[place]):
            self._schedule.nodes.replace_by_empty(place)

    def _damage(self) -> None:
        node = self._world.random.choice(self._schedule.nodes.places)
        if self._may_lose(node):
            node.damage()

    def _move_copies(self) -> None:
        """Somebody else, as auto-recovery does, copies what a bookie has of an older fragment, and puts the copy's
        bookie in its place."""
        schedule, random = self._schedule, self._world.random
        metadata = schedule.store.metadata
        at = random.randrange(len(metadata.fragments))
        if metadata.fragments[at] == metadata.last_fragment:
            return
        first, ensemble = metadata.fragments[at]
        stop = metadata.fragments[at + 1].first
        index = random.randrange(metadata.ensemble_size)
        target = random.choice(schedule.nodes.places)
        entries = members(index, first, stop, metadata.ensemble_size, metadata.write_quorum).tolist()
        copies = {entry: copy for entry in entries if (copy := self._copy(ensemble, entry)) is not None}
        if target.name in ensemble or target.has_lost or len(copies) < len(entries):
            return
        request = Request(
            RequestKind.ADD, LEDGER, first, stop - 1, metadata.proof_bytes, Flag.COPY, records=b"".join(copies.values())
        )
        if not copies or not target.is_up or target.stopped_until > self._world.now:
            return
        target.handle(request, lambda reply: self._moved(reply, metadata, at, index, target.name))

    def _moved(self, reply: Reply, metadata: LedgerMetadata, at: int, index: int, target: str) -> None:
        schedule = self._schedule
        if reply.status != ReplyStatus.OK or schedule.store.metadata != metadata:
            return
        first, ensemble = metadata.fragments[at]
        moved = (*ensemble[:index], target, *ensemble[index + 1 :])
        fragments = (*metadata.fragments[:at], Fragment(first, moved), *metadata.fragments[at + 1 :])
        schedule.store.replace(dataclasses.replace(metadata, fragments=fragments))

    def _copy(self, ensemble: tuple[str, ...], entry: int) -> bytes | None:
        nodes = [self._schedule.nodes.by_name[bookie] for bookie in ensemble]
        copies = [node.log.held[LEDGER].get(entry) for node in nodes if not node.has_lost]
        return next((copy for copy in copies if copy is not None), None)

    def _stop_node(self) -> None:
        self._world.random.choice(self._schedule.nodes.places).stop(self._moment())

    def _stop_writer(self) -> None:
        self._schedule.writer.stop(self._moment())

    def _fill(self) -> None:
        node = self._world.random.choice(self._schedule.nodes.places)
        node.fill(self._world.random.choice((0, 1 << 12)))
        self._world.after(self._moment(), self._come_back, partial(node.fill, PLENTY))

    def _cut(self) -> None:
        links = [link for client in self._schedule.clients for link in client.links()]
        if links:
            self._world.random.choice(links).cut()

    def _partition(self) -> None:
        """Some connections hold back what they carry for a while."""
        until = self._world.now + self._moment()
        for client in self._schedule.clients:
            for link in client.links():
                if self._world.chance(0.3):
                    link.blocked_until = until
                    self._world.note(client.name, "and", link.node.name, "are apart until", f"{until * 1000:.1f} ms")

    def _stall_store(self) -> None:
        store = self._schedule.store
        store.stalled_until = self._world.now + self._moment()
        self._world.note("the metadata store stalls until", f"{store.stalled_until * 1000:.1f} ms")

    def end(self) -> None:
        """Everything works again; a bookie in limbo was replaced by an empty one."""
        for place, node in enumerate(list(self._schedule.nodes.places)):
            if node.has_lost and not node.log.staged and not node.is_dead:
                self._schedule.nodes.replace_by_empty(place)
        for node in self._schedule.nodes.places:
            node.log.free = PLENTY
            if node.log.fails or (node.is_up and node.bookie.failure):
                node.crash()
            node.start()
            node.stopped_until = 0.0
            if node.is_up:
                node.fill(PLENTY)
        self._schedule.nodes.leaving.clear()  # else too few may be left to recover the ledger
        self._schedule.store.loss = 0.0
        self._world.is_calm = True
