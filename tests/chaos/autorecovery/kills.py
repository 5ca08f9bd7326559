"""One run: processes of a cluster, and what happens to them, drawn by a seed."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from pyreplog.autorecovery.bookie_operations import BookieOperations
from pyreplog.autorecovery.config import change_config
from pyreplog.autorecovery.leased_keys import AUDITOR, CLAIMS
from pyreplog.autorecovery.lost_entries import list_lost
from pyreplog.autorecovery.orders import list_orders
from pyreplog.autorecovery.status import find_status
from pyreplog.bookie.bookie_state import BookiePhase, list_bookie_states
from pyreplog.clock import SystemClock
from pyreplog.errors import BookieStateError, NoSuchLedgerError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import State
from pyreplog.ledger.ledger_store import find_ledger
from pyreplog.ledger.repair_notes import repairs
from tests.chaos.autorecovery.checker import Checker, holds
from tests.chaos.victims import Victim
from tests.metadata.zookeeper import Server
from tests.waiting import until, until_none

BOOKIES = 7
"""Two may be unable to take entries at a time, for ledgers of five."""
RECOVERIES = 2
OPEN_LEDGERS = 4
SETTLE_S = 150.0
"""A ledger that could not be copied is tried again after 5 s, 10 s, 20 s."""
WORK_S = 10.0
"""For so long, a moment at which something is copied is waited for."""
SERVER_S = 8.0
"""The metadata store is away for no longer: writers may wait for it."""
SETTINGS = {"delay_ms": 1_000, "round_ms": 100, "settle_ms": 500, "rescan_ms": 1_000, "writer_silence_ms": 5_000}
BOOKIE_SETTINGS = ("collect_interval_ms=500", "surplus_interval_ms=1000")
SEGMENT_BYTES = 256 << 10
GONE = (BookiePhase.LOST, BookiePhase.RETIRED)


class Kills:
    """Runs it: `with Kills(...) as kills: kills.run()`. An AssertionError says what does not hold.

    Args:
        folder: for the files of all processes.
        url: metadata store, empty.
        seed: of what happens.
        rounds: so many times copies have to be made again.
        closed: ledgers that are closed before the first round.
        disturbances: in each round, so many at most.
        server: process of the metadata store; None: it has none.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        seed: int,
        *,
        rounds: int,
        closed: int,
        disturbances: int = 4,
        server: Server | None = None,
    ) -> None:
        self._folder, self._url, self._rounds, self._closed = folder, url, rounds, closed
        self._disturbances, self._server = disturbances, server
        self._random = random.Random(seed)
        self.checker = Checker()
        self._names = [f"bookie-{number}" for number in range(BOOKIES)]
        self._bookies = {name: self._bookie(name) for name in self._names}
        self._recoveries = [
            Victim(f"recovery-{number}", folder, ["pyreplog", "autorecovery", "run", url, "--json"], has_clock=False)
            for number in range(RECOVERIES)
        ]
        writing = ["tests.chaos.autorecovery.writing", url, str(OPEN_LEDGERS)]
        self._writers = Victim("writers", folder, writing, self.checker.add_line, has_clock=False)
        self._killed: list[Victim] = []
        self._deserters: list[Victim] = []  # writers that are killed
        self._began = time.monotonic()
        self.events: list[str] = []

    def _bookie(self, name: str) -> Victim:
        command = ["pyreplog", "bookie", str(self._folder / name), "--json", "--replace", "--yes"]
        command += ["--metadata", self._url]
        command += ["--segment-bytes", str(SEGMENT_BYTES), *(f"--set={setting}" for setting in BOOKIE_SETTINGS)]
        return Victim(name, self._folder, command, has_clock=False)

    def __enter__(self) -> Kills:
        victims = [*self._bookies.values(), *self._recoveries]
        try:
            for victim in victims:
                victim.spawn()
            for victim in victims:
                victim.serve()
            self._cluster = LedgerCluster.connect(self._url)
        except BaseException:
            self._end()
            raise
        self._store = self._cluster.metadata
        self._operations = BookieOperations(self._cluster.runtime, SystemClock())
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()
        self._end()

    def _end(self) -> None:
        for victim in (self._writers, *self._deserters, *self._recoveries, *self._bookies.values()):
            victim.end()

    def _note(self, text: str) -> None:
        self.events.append(f"{time.monotonic() - self._began:6.1f} s  {text}")

    # ---- the run --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Have copies made again through all faults; then check that every acknowledged entry is where it is to be."""
        settings = {"bytes_per_s": self._random.choice((100_000, 400_000, None))}
        change_config(self._store, {**SETTINGS, **settings, "copies_at_once": self._random.choice((1, 2, 8))})
        self._writers.start()
        self._fill(self._closed)
        for _ in range(self._rounds):
            self._desert()
            self._random.choice((self._lose, self._lose, self._away, self._drain))()
            self._settle()
            self._fill(2)
        self._writers.send_line("flush")
        until_none(lambda: [] if "flushed" in self.checker.output else ["a flush", *self._broken()], SETTLE_S)
        self._check("with open ledgers")
        self._writers.send_line("end")
        assert self._writers.wait() == 0, self._writers.errors
        self._killed.append(self._writers)
        self._check("with closed ledgers")
        until_none(self._unretired, SETTLE_S)

    def _fill(self, count: int) -> None:
        """Have ledgers filled and closed."""
        closed = self._count_closed() + count
        for _ in range(count):
            self._writers.send_line("fill")
        until_none(lambda: [] if self._count_closed() >= closed else ["closed ledgers", *self._broken()], SETTLE_S)

    def _desert(self) -> None:
        """Have writers killed; their ledgers stay open. None has a password: only an operator could recover it."""
        name = f"deserter-{len(self._deserters)}"
        writing = ["tests.chaos.autorecovery.writing", self._url, "1", "--no-password"]
        self._deserters.append(deserter := Victim(name, self._folder, writing, self.checker.add_line, has_clock=False))
        deserter.start()
        self._pass_entries(name, self._random.choice((1, 50, 200)))
        (ledger,) = self.checker.desert(name)
        victim = self._random.choice([*self._bookies.values(), None])
        self._note(f"kill -9 of {name}, the writer of ledger {ledger}")
        if victim is None or not self._is_member(victim, ledger):
            deserter.kill()
            return
        self._note(f"before it, SIGSTOP of {victim.output['bookie']}, which then lacks entries that were acknowledged")
        victim.stop()
        self._pass_entries(name, self.checker.acked_of(name) + 1)
        deserter.kill()
        victim.resume()
        self._kill(victim)
        self._start(victim)

    def _is_member(self, victim: Victim, ledger: int) -> bool:
        return victim.output["bookie"] in self._cluster.ledger_metadata(ledger).last_fragment.ensemble

    def _pass_entries(self, writer: str, count: int) -> None:
        until_none(lambda: [] if self.checker.acked_of(writer) >= count else ["entries", *self._broken()], SETTLE_S)

    def _count_closed(self) -> int:
        return sum(known.closed is not None for known in self.checker.ledgers().values())

    def _broken(self) -> list[str]:
        """Check what is always to hold. Raises AssertionError; returns nothing."""
        for victim in (*self._recoveries, *self._bookies.values(), self._writers):
            if victim not in self._killed:
                victim.check_alive()
        assert not self.checker.errors(), f"writers were ended: {self.checker.errors()}"
        lost = list_lost(self._store)
        assert not lost, f"entries are listed as lost: {lost}"
        return []

    # ---- what makes work ------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """The disk of a bookie is lost for good; its name comes back empty, at once or when its copies are made again."""
        name = self._random.choice(self._names)
        bookie = self._id(name)
        victim = self._bookies[name]
        self._kill(victim)
        shutil.rmtree(self._folder / name)
        is_declared = self._random.random() < 0.5
        self._note(f"{bookie} has lost its disk, and is {'declared lost' if is_declared else 'replaced at once'}")
        if is_declared:
            until(lambda: bookie not in self._registered(), pause_s=0.02)
            until(lambda: self._declare_lost(bookie))
        else:
            self._start(victim)
        self._disturb_copies(bookie)
        if is_declared:
            self._start(victim)

    def _declare_lost(self, bookie: str) -> bool:
        """Declare it lost as an operator does, who looks again if the auditor was at it, too."""
        try:
            self._operations.declare_lost(bookie)
        except BookieStateError:
            return False
        return True

    def _away(self) -> None:
        """A bookie is away for longer than the delay, and comes back, perhaps while its copies are made again."""
        name = self._random.choice(self._names)
        bookie = self._id(name)
        self._kill(self._bookies[name])
        self._note(f"{bookie} is away")
        self._disturb_copies(bookie)
        if self._random.random() < 0.5:
            until_none(lambda: self._naming([bookie]) or self._broken(), SETTLE_S)
        self._start(self._bookies[name])
        self._note(f"{bookie} is back")

    def _drain(self) -> None:
        """A bookie is drained; then it is retired, or an ordinary member again."""
        name = self._random.choice(self._names)
        bookie = self._id(name)
        self._operations.begin_drain(bookie)
        self._note(f"{bookie} is drained")
        self._disturb_copies(bookie)
        until_none(lambda: self._naming([bookie]) or self._broken(), SETTLE_S)
        if self._random.random() < 0.5:
            self._operations.end_drain(bookie)
            return
        self._operations.retire(bookie)
        self._kill(self._bookies[name])
        shutil.rmtree(self._folder / name)
        self._start(self._bookies[name])
        self._note(f"{bookie} is retired, and replaced by {self._id(name)}")

    def _disturb_copies(self, bookie: str) -> None:
        """Disturb those who make the copies of a bookie again."""
        until(lambda: bookie in list_orders(self._store) or not self._naming([bookie]), pause_s=0.02)
        disturbances: list[Callable[[], None]] = [
            self._kill_auditor, self._kill_worker, self._kill_both, self._kill_source, self._kill_target,
            self._stop_source, self._stop_worker, self._stop_auditor, self._delete,
        ]  # fmt: skip
        if self._server is not None:
            disturbances += [self._stop_server, self._restart_server]
        for disturb in self._random.choices(disturbances, k=self._random.randint(1, self._disturbances)):
            disturb()
            self._broken()

    # ---- disturbances ---------------------------------------------------------------------------------------

    def _kill_auditor(self) -> None:
        stored = self._store.get(AUDITOR)
        self._kill_recoveries([] if stored is None else self._recoveries_of([stored.value]), "the auditor")

    def _stop_auditor(self) -> None:
        stored = self._store.get(AUDITOR)
        for recovery in [] if stored is None else self._recoveries_of([stored.value]):
            self._stop(f"the auditor: {recovery.name}", recovery)

    def _stop_server(self) -> None:
        """Also for longer than its sessions last: they end when it goes on."""
        assert self._server is not None
        self._without_server("SIGSTOP", self._server.stop, self._server.resume)

    def _restart_server(self) -> None:
        assert self._server is not None
        self._without_server("kill -9", self._server.kill, self._server.start)

    def _without_server(self, text: str, end: Callable[[], None], begin: Callable[[], None]) -> None:
        """Have the metadata store away for a while; a process may be started meanwhile. Writers go on without it, but
        for changes of their ledgers."""
        running = [victim for victim in (*self._recoveries, *self._bookies.values()) if victim not in self._killed]
        victim = self._random.choice([None, self._random.choice(running)])
        self._note(f"{text} of the metadata store" + (f", and kill -9 of {victim.name}" if victim else ""))
        end()
        if victim is not None:
            self._kill(victim)
            victim.spawn()
        acked = self.checker.acked + self._random.choice((1, 300, 2400))
        deadline = time.monotonic() + SERVER_S
        until(lambda: self.checker.acked >= acked or time.monotonic() > deadline, pause_s=0.02)
        begin()
        if victim is not None:
            victim.serve()
            self._killed.remove(victim)
        self._store.get(AUDITOR)  # our own session goes on, or another one has begun

    def _kill_worker(self) -> None:
        self._kill_recoveries(self._recoveries_of(self._claims().values())[:1], "a worker")

    def _kill_both(self) -> None:
        self._claims()
        self._kill_recoveries(self._recoveries, "auditor and workers")

    def _kill_recoveries(self, recoveries: list[Victim], role: str) -> None:
        if not recoveries:
            return
        self._note(f"kill -9 of {role}: {', '.join(recovery.name for recovery in recoveries)}")
        for recovery in recoveries:
            self._kill(recovery)
        self._pass_time()
        for recovery in recoveries:
            self._start(recovery)

    def _kill_source(self) -> None:
        self._kill_bookie(*self._role("source"))

    def _kill_target(self) -> None:
        self._kill_bookie(*self._role("target"))

    def _kill_bookie(self, text: str, victim: Victim) -> None:
        self._note(f"kill -9 of {text}")
        self._kill(victim)
        self._pass_time()
        self._start(victim)

    def _stop_source(self) -> None:
        self._stop(*self._role("source"))

    def _stop_worker(self) -> None:
        """Longer than its lease, where the store ends leases by time alone."""
        for recovery in self._recoveries_of(self._claims().values())[:1]:
            self._stop(f"a worker: {recovery.name}", recovery)

    def _stop(self, text: str, victim: Victim) -> None:
        self._note(f"SIGSTOP of {text}")
        victim.stop()
        self._pass_time(self._random.choice((1, 8)))
        victim.resume()

    def _delete(self) -> None:
        """Delete a closed ledger, one of those that are being copied if there is any."""
        closed = [ledger for ledger, known in self.checker.ledgers().items() if known.closed is not None]
        ledger = self._random.choice([ledger for ledger in self._claims() if ledger in closed] or closed)
        self._note(f"ledger {ledger} is deleted")
        self.checker.forget(ledger)
        self._cluster.delete_ledger(ledger)

    def _pass_time(self, most: int = 1) -> None:
        """Wait until writers had a number of entries acknowledged."""
        acked = self.checker.acked + self._random.choice((1, 30, 300)) * most
        until_none(lambda: [] if self.checker.acked >= acked else ["entries", *self._broken()], SETTLE_S)

    def _kill(self, victim: Victim) -> None:
        self._killed.append(victim)
        victim.kill()

    def _start(self, victim: Victim) -> None:
        victim.start()
        self._killed.remove(victim)

    # ---- who does what --------------------------------------------------------------------------------------

    def _id(self, name: str) -> str:
        return str(self._bookies[name].output["bookie"])

    def _registered(self) -> set[str]:
        return {status.bookie for status in self._cluster.runtime.bookie_statuses()}

    def _claims(self) -> dict[int, bytes]:
        """Return the ledgers that are being copied, and by whom; waits for a while until there is any."""
        deadline = time.monotonic() + WORK_S

        def claims() -> tuple[dict[int, bytes]] | None:
            names = self._store.list(CLAIMS)
            stored = self._store.get_many([f"{CLAIMS}/{name}" for name in names])
            values_by_name = {
                int(name): value.value for name, value in zip(names, stored, strict=True) if value is not None
            }
            return (
                (values_by_name,)
                if values_by_name or not list_orders(self._store) or time.monotonic() > deadline
                else None
            )

        return until(claims, pause_s=0.005)[0]  # type: ignore[index]

    def _recoveries_of(self, owners: Iterable[bytes]) -> list[Victim]:
        """Return the processes that have these owners: host, process id, random digits."""
        pids = {int(owner.decode().split(":")[1]) for owner in owners}
        return [recovery for recovery in self._recoveries if recovery.pid in pids]

    def _role(self, role: str) -> tuple[str, Victim]:
        """Return a running bookie that is a source or a target of a copy; any if there is none."""
        running = {self._id(name): victim for name, victim in self._bookies.items() if victim not in self._killed}
        claimed = list(self._claims())
        for ledger in self._random.sample(claimed, len(claimed)):
            known = self.checker.ledgers().get(ledger)
            if known is None:
                continue
            metadata = self._cluster.ledger_metadata(ledger)
            chosen = sorted(metadata.bookies() & running.keys())
            if role == "target":
                others = sorted(running.keys() - metadata.bookies())
                chosen = [bookie for bookie in others if holds(self._cluster, bookie, ledger, known)]
            if chosen:
                bookie = self._random.choice(chosen)
                return f"{bookie}, a {role} of ledger {ledger}", running[bookie]
        bookie = self._random.choice(sorted(running))
        return f"{bookie}, while no {role} is known", running[bookie]

    # ---- what is to hold ------------------------------------------------------------------------------------

    def _naming(self, bookies: Collection[str]) -> list[str]:
        """Return which ledgers name some bookies."""
        missing = []
        for ledger in self._cluster.ledgers():
            try:
                metadata = self._cluster.ledger_metadata(ledger)
            except NoSuchLedgerError:
                continue  # the run deletes some
            named = sorted(metadata.bookies() & set(bookies))
            if named:
                missing.append(f"ledger {ledger}, {metadata.state}, names {named}")
        return missing

    def _unsettled(self) -> list[str]:
        """Return what is missing until every ledger is on ordinary bookies that run, and nothing is left to do."""
        self._broken()
        states, registered = list_bookie_states(self._store), self._registered()
        named = {
            bookie for ledger in self._cluster.ledgers() for bookie in self._cluster.ledger_metadata(ledger).bookies()
        }
        missing = self._naming(named - registered | named & states.keys())
        missing += [f"an order for {bookie}" for bookie in list_orders(self._store)]
        missing += [f"{bookie} is {state.phase}" for bookie, state in states.items() if state.phase not in GONE]
        missing += [f"{self._id(name)} is not registered" for name in self._names if self._id(name) not in registered]
        status = find_status(self._store)
        return missing + [f"ledger {ledger} is recovered" for ledger in (status.open_ledgers if status else ())]

    def _settle(self) -> None:
        """Wait until every entry has all its copies: then a disk may be lost."""
        until_none(self._unsettled, SETTLE_S)
        acked = self.checker.ledgers()
        until_none(lambda: self.checker.uncopied(acked) and [*self.checker.uncopied(acked), *self._broken()], SETTLE_S)
        until_none(self._unsettled, SETTLE_S)
        until_none(self._unrepaired, SETTLE_S)
        self._note(f"settled, {self.checker.acked} entries were acknowledged")

    def _unrepaired(self) -> list[str]:
        """Return the notes that the auditor has to settle. Those of a writer stay until its ledger is closed."""
        noted = repairs(self._store)[0]
        rows = [(note, find_ledger(self._store, note.ledger)) for note in noted]
        closed = [note for note, stored in rows if stored is None or stored.metadata.state is State.CLOSED]
        return [f"{note} is not repaired" for note in closed] + (self._broken() if closed else [])

    def _check(self, when: str) -> None:
        until_none(self._unsettled, SETTLE_S)
        until_none(self._unrepaired, SETTLE_S)
        wrong = self.checker.wrong(self._cluster)
        assert not wrong, f"{when}: {'; '.join(wrong[:20])}"
        self._broken()

    def _unretired(self) -> list[str]:
        """Return the bookies that are lost and not retired yet, and what names one that is retired."""
        states = list_bookie_states(self._store)
        lost = [f"{bookie} is not retired" for bookie, state in states.items() if state.phase is BookiePhase.LOST]
        return [
            *lost,
            *self._naming([bookie for bookie, state in states.items() if state.phase is BookiePhase.RETIRED]),
        ]
