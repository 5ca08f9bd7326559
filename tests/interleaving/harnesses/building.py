"""What harnesses have in common."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from pyreplog.future import AppendFuture
from tests.interleaving import primitives
from tests.interleaving.scheduler import World
from tests.interleaving.search import Harness, Program


def harness(program: Program, *modules: ModuleType, hasty: bool = False) -> Harness:
    """Named as its function; the lines of these modules are points."""
    files = tuple(module.__file__ for module in modules if module.__file__ is not None)
    return Harness(program.__name__.replace("_", "-"), program, files, hasty)


def in_time(world: World, *, but: tuple[str, ...] = ()) -> None:
    """Nobody has waited until a time-out; but tasks whose names begin so, which do."""
    late = [text for text in world.timeouts if not text.startswith(but or ("\0",))]
    assert not late, f"waited for what had happened, until a time-out: {late}"


def run_all(world: World, **calls: Callable[[], object]) -> None:
    """Have each done by a task, named so, and wait for all."""
    world.join(*[world.go(call, name) for name, call in calls.items()])


class Timer:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeRuntime:
    """Of drivers: timers and workers are tasks, waiting is a thread's own. metadata: a store."""

    def __init__(self, world: World, metadata: Any = None) -> None:
        self.world, self.metadata = world, metadata
        self.closed = False
        self.sent: list[tuple[str, Any, Callable[[Any], None]]] = []

    def expect(self, done: AppendFuture[Any]) -> None:
        pass

    def wait(self, future: AppendFuture[Any], timeout: float | None = None) -> Any:
        return future.result(timeout)

    def wake_after(self, seconds: float, call: Callable[[], None]) -> Timer | None:
        if self.closed:
            return None
        timer = Timer()

        def run() -> None:
            if seconds > 0:
                primitives.sleep(seconds)
            if not timer.is_cancelled:
                call()

        self.world.go(run, "timer")
        return timer

    def work(self, job: Callable[[], object]) -> None:
        self.world.go(job, "worker")

    def send(self, bookie: str, request: Any, on_reply: Callable[[Any], None]) -> None:
        self.sent.append((bookie, request, on_reply))

    def report(self, ledger: int, bad: Any) -> None:
        pass

    def note_lacking(self, ledger: int, copies: Any) -> None:
        pass

    def note_waiting(self, change: int) -> None:
        pass
