"""What a simulated process' cluster is built on: requests to bookies, timers, jobs, all of them events of the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog.bookie.protocol import Reply, Request
from pyreplog.errors import DisconnectedError, OutcomeUnknownError, PeerTimeoutError
from pyreplog.future import AppendFuture
from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.driver import Add
from pyreplog.ledger.metrics import ClientCounters
from pyreplog.ledger.placement import Candidate
from pyreplog.ledger.protocol.effects import Degraded

from ..bookies import Node
from .alarm import Alarm
from .metadata import Way

if TYPE_CHECKING:
    from .processes import Process

T = TypeVar("T")
TIMEOUT_S = 0.2
JOB_LAG_S = 0.002
FOREVER_S = 1e9


class Hands:
    """In place of `Workers`: jobs are events. One alone does them one after the other."""

    def __init__(self, process: Process, count: int) -> None:
        self._process, self._one_by_one = process, count == 1
        self._jobs: deque[Callable[[], object]] = deque()
        self._is_busy = False

    def submit(self, job: Callable[[], object]) -> None:
        if self._one_by_one:
            self._jobs.append(job)
            self._process.soon(JOB_LAG_S, self._next)
        else:
            self._process.soon(JOB_LAG_S, job)

    def _next(self) -> None:
        if self._is_busy:
            return  # whoever is at it goes on
        self._is_busy = True
        try:
            while self._jobs:
                self._jobs.popleft()()
        finally:
            self._is_busy = False

    def close(self, timeout: float | None = None) -> bool:
        return True


class HandsOfConnections:
    """In place of `FairExecutor`: jobs of connections are events."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def submit(self, connection: object, job: Callable[[], object]) -> None:
        self._process.soon(JOB_LAG_S, job)

    def leave(self, connection: object) -> None:
        return

    def close(self, timeout: float | None = None) -> None:
        return


class Road:
    """From a process to a bookie: in order while a connection lives, cut anywhere."""

    def __init__(self, process: Process, node: Node) -> None:
        self._process, self._node, self._world = process, node, process.world
        self._connection = 0
        self._out_at = self._in_at = 0.0
        self._pending: dict[int, Callable[[Any], object]] = {}
        self._sent = 0

    def _delay(self) -> float:
        random = self._world.random
        delay = random.random() * self._process.schedule.plan.lag_s
        return delay * 20 if random.random() < 0.02 and not self._world.is_calm else delay

    def send(self, request: Request, tell: Callable[[Any], object]) -> None:
        self._sent += 1
        self._pending[self._sent] = tell
        self._out_at = max(self._out_at, self._world.now + self._delay())
        self._world.at(self._out_at, self._arrive, self._connection, self._sent, request)
        self._world.after(TIMEOUT_S, self._fail, self._sent, PeerTimeoutError("no answer"))

    def _arrive(self, connection: int, number: int, request: Request) -> None:
        node, world = self._node, self._world
        if node.stopped_until > world.now:
            world.at(node.stopped_until, self._arrive, connection, number, request)
        elif not node.is_up:
            self.cut()
        elif connection == self._connection or world.chance(0.5):
            life = node.life
            node.handle(request, lambda reply: self._reply(connection, number, life, reply))

    def _reply(self, connection: int, number: int, life: int, reply: Reply) -> None:
        if life == self._node.life and connection == self._connection:
            self._in_at = max(self._in_at, self._world.now + self._delay())
            self._process.at(self._in_at, self._deliver, connection, number, reply)

    def _deliver(self, connection: int, number: int, reply: Reply) -> None:
        tell = self._pending.pop(number, None) if connection == self._connection else None
        if tell is not None:
            tell(reply)

    def cut(self) -> None:
        """What is on its way may or may not arrive; no answer does."""
        self._connection += 1
        self._out_at = self._in_at = self._world.now
        for number in list(self._pending):
            self._process.soon(self._delay(), self._fail, number, DisconnectedError("connection reset"))

    def _fail(self, number: int, error: Exception) -> None:
        if self._process.stopped_until > self._world.now or number not in self._pending:
            self._process.at(
                self._process.stopped_until, self._fail, number, error
            ) if number in self._pending else None
            return
        if not self._process.is_over:
            self._pending.pop(number)(error)


class FakeRuntime:
    """See `ledger.driver.Runtime`."""

    entry_bytes_max = 1 << 20

    def __init__(self, process: Process) -> None:
        self.process, self.world = process, process.world
        self.metadata = Way(process, process.schedule.host)
        self.counts = ClientCounters()
        self.roads = {node.name: Road(process, node) for node in process.schedule.nodes.places}

    def belong_to(self, cluster: Handle) -> None:
        make_part_of(self.metadata, cluster)

    def expect(self, done: AppendFuture[Any]) -> None:
        return

    def note_waiting(self, change: int) -> None:
        return

    def report(self, ledger: int, bad: Any) -> None:
        return

    def note_lacking(self, ledger: int, copies: Sequence[Any]) -> None:
        return

    def send(self, bookie: str, request: Request, on_reply: Callable[[Any], object]) -> None:
        if not self.process.is_over:
            self.roads[bookie].send(request, on_reply)

    def add(self, adds: Sequence[Add]) -> None:
        for bookie, request, answer in adds:
            self.send(bookie, request, answer)

    def wake_after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        alarm = Alarm()
        self.process.at(self.world.now + max(seconds, 0.0), lambda: alarm.cancel() and call())
        return alarm

    def work(self, job: Callable[[], object]) -> None:
        self.process.soon(JOB_LAG_S, job)

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        if not future.done():
            check_may_wait()
            self.process.wait_until(future.done, FOREVER_S if timeout is None else timeout)
        if not future.done():
            raise OutcomeUnknownError("the time ran out")
        return future.result(0)

    embedded_bookies = None

    def bookie_statuses(self) -> list[Any]:
        return []

    def absent_bookies(self) -> list[Any]:
        return []

    def leaving_bookies(self) -> list[str]:
        return []

    def draining(self) -> set[str]:
        return set()

    def suspect(self, bookie: str) -> None:
        return

    def note_degraded(self, ledger: int, degraded: Degraded | None) -> None:
        return

    def candidates(self, *, suspects: bool = False) -> list[Candidate]:
        """Those that are registered; a registration may be out of date."""
        nodes = [] if suspects else self.process.schedule.nodes.places
        return [Candidate(node.name) for node in nodes if node.is_up or self.world.chance(0.1)]

    def racks(self) -> dict[str, str]:
        return {}

    def end_calls_by(self, deadline: float) -> None:
        return

    def close(self, timeout: float | None = None) -> None:
        return
