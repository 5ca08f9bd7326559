"""Storage nodes: the shipped Bookie over a log in memory. They crash, stop, fill up, or come back empty."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial

from pyreplog._native.bookie.fast_add import LATER, FastAdd, parse_fast_add
from pyreplog._native.net.frame import FrameParser, encode
from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.long_polls import Respond
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, encode_request
from pyreplog.errors import DiskFullError, PoisonedError
from pyreplog.ledger.ledger_metadata import LedgerMetadata, ledger_key
from pyreplog.ledger.placement import Candidate, choose

from .disk import PLENTY, MemoryLog
from .world import World

CONFIG = BookieConfig(read_only_below_bytes=1 << 20, writable_from_bytes=2 << 20, reserve_bytes=1 << 10)
SYNC_S = 0.0008
LEDGER = 7
KEY = ledger_key(b"secret")


class Node:
    """One incarnation of a bookie: its name, its data, and the process that may be running over it."""

    def __init__(self, world: World, name: str, *, synced: bool) -> None:
        self.world, self.name = world, name
        self.log = MemoryLog(staged=synced)
        self.life = 0  # which process it is
        self.stopped_until = 0.0
        self.is_up = self.is_gone = self.is_dead = False
        self.has_lost = False  # copies that it acknowledged may be gone, or damaged
        self._syncing = False
        self.start()

    def start(self) -> None:
        if self.is_up or self.is_gone or self.is_dead:
            return
        limbo = [LEDGER] if self.has_lost and not self.log.staged else []
        try:
            self.bookie = Bookie(self.log, CONFIG, limbo)
        except (DiskFullError, PoisonedError) as error:
            self.world.note(self.name, "does not start:", error)
            self.world.after(0.1, self.start)
            return
        self.is_up, self._syncing = True, False
        self.world.note(self.name, "starts")

    def crash(self) -> None:
        self.log.fails = False
        if not self.is_up:
            return
        self.is_up = False
        self.life += 1
        self.log.crash(self.world.random)
        self.world.note(self.name, "crashes")

    def die(self) -> None:
        """It crashes, and does not come back in this run; what it holds counts as lost."""
        self.crash()
        self.is_dead = self.has_lost = True

    def lose_all(self) -> None:
        """Its directory was emptied. What starts there is another one."""
        self.crash()
        self.is_gone = self.has_lost = True
        self.log.held.clear()

    def stop(self, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT later."""
        self.stopped_until = max(self.stopped_until, self.world.now + seconds)
        self.world.note(self.name, f"is stopped for {seconds * 1000:.1f} ms")

    def damage(self) -> None:
        """Some of its copies cannot be read any more."""
        self.has_lost = True
        of_ledger = self.log.held[LEDGER]
        self.log.damaged.update((LEDGER, entry) for entry in of_ledger if self.world.chance(0.3))
        self.world.note(self.name, "has damaged copies:", sorted(entry for _, entry in self.log.damaged))

    def fill(self, free: int) -> None:
        self.log.free = free
        if self.is_up:
            self.bookie.expire(int(self.world.now * 1e6))
        self.world.note(self.name, "has", "space" if free == PLENTY else f"{free} bytes", "left")

    def handle(self, request: Request, respond: Respond) -> None:
        """As the service does: an ADD that nothing speaks against takes the short way."""
        plain = parse_fast_add(FrameParser().feed(encode(0, encode_request(request) + bytes(request.records))), {})
        lac = None if plain is None else self.bookie.add_fast(plain, partial(_tell, respond))
        if lac is None:
            self.bookie.handle(request, respond)
        elif lac != LATER:
            respond(Reply(ReplyStatus.OK, request.ledger, request.first, request.last, lac))
        if self.bookie.waits and not self._syncing:
            self._syncing = True
            self.world.after(self.world.random.random() * SYNC_S, self._begin_sync, self.life)

    def _begin_sync(self, life: int) -> None:
        if life == self.life:
            group = self.bookie.begin_commit()
            self.world.after(self.world.random.random() * SYNC_S, self._end_sync, life, group)

    def _end_sync(self, life: int, group: list) -> None:
        if life != self.life:
            return
        self._syncing = False
        self.bookie.end_commit(group, self.bookie.sync())
        if self.bookie.waits:
            self._syncing = True
            self._begin_sync(life)


def _tell(respond: Respond, reply: Reply | FastAdd) -> None:
    """An ADD that took the short way stands for its OK."""
    if isinstance(reply, FastAdd):
        reply = Reply(ReplyStatus.OK, reply.ledger, reply.first, reply.last, reply.confirmed)
    respond(reply)


class Nodes:
    """All of them, by name. A place has one incarnation after the other."""

    def __init__(self, world: World, places: int, *, synced: bool) -> None:
        self._world, self._synced = world, synced
        self.places = [Node(world, f"bookie{place}", synced=synced) for place in range(places)]
        self.by_name = {node.name: node for node in self.places}
        self._turn = 0
        self.leaving: set[str] = set()  # they drain, or are declared lost: they get no places
        self.had_to_leave: set[str] = set()  # at any time

    def replace_by_empty(self, place: int) -> None:
        """Its data is lost; another incarnation answers at its address."""
        old = self.places[place]
        old.lose_all()
        new = Node(self._world, f"{old.name}'", synced=self._synced)
        self.places[place] = self.by_name[new.name] = new
        self._world.note(old.name, "has lost everything and is", new.name, "now")

    def choose(
        self, metadata: LedgerMetadata, places: Sequence[int], taken: Set[str], last_resort: bool
    ) -> dict[int, str]:
        """As clients do: those that are registered. A registration may be out of date."""
        world = self._world
        candidates = [
            Candidate(node.name)
            for node in self.places
            if (node.is_up and not node.bookie.read_only) or world.random.random() < 0.1
        ]
        self._turn += 1
        ensemble = metadata.last_fragment.ensemble
        chosen = choose(
            metadata.ledger, ensemble, places, [candidate for candidate in candidates if candidate.bookie not in self.leaving],
            write_quorum=metadata.write_quorum, taken=taken, turn=self._turn,
        )  # fmt: skip
        own = {place: ensemble[place] for place in places[len(chosen) :]}
        serving = {candidate.bookie for candidate in candidates} - taken
        return {**chosen, **{place: bookie for place, bookie in own.items() if bookie in serving}}
