"""Ledgers and bookies: drivers of state machines, readers that poll, a bookie's thread that syncs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog._native.machines.effects import Send, Settle
from pyreplog.bookie import local_bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import KeyExistsError, LeaseLostError, NoSuchKeyError
from pyreplog.future import AppendFuture, set_result
from pyreplog.ledger import driver, reader, writer_keys
from pyreplog.ledger.driver import Driver
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, metadata_key
from pyreplog.ledger.protocol.effects import Effect, Finished, Wake
from pyreplog.ledger.reader import LedgerReader
from pyreplog.ledger.writer_keys import WriterKeys, writer_key
from pyreplog.metadata import memory, watching
from pyreplog.metadata.lease import LeaseState
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.store import Versioned
from tests.bookie.memory_log import MemoryLog
from tests.interleaving import primitives
from tests.interleaving.harnesses.building import FakeRuntime, Timer, harness, in_time, run_all
from tests.interleaving.scheduler import World

LEDGER = 7
PAUSES = ("reader at sleep", "a at sleep", "b at sleep")
"""A reader of a ledger rests a moment between two questions that bring nothing new."""


class Counting:
    """A machine that sends `count` requests and ends when all are answered; `told` are settled as answers come."""

    def __init__(self, count: int, told: list[AppendFuture[int]]) -> None:
        self._count, self._told = count, told
        self.answers = self.inside = 0

    def _step(self, effects: list[Effect]) -> list[Effect]:
        assert not self.inside, "two steps at a time"
        self.inside += 1
        primitives.point("step")
        self.inside -= 1
        return effects

    def start(self) -> Iterable[Effect]:
        return self._step([Send(f"b{i}", Request(RequestKind.LAST, LEDGER, 0, 0, b""), i) for i in range(self._count)])

    def replied(self, send: Send, reply: Any) -> Iterable[Effect]:
        self.answers += 1
        effects: list[Effect] = [Settle([(self._told[self.answers - 1], None)]), Wake(1.0, None)]
        if self.answers == self._count:
            effects.append(Finished(self.answers))
        return self._step(effects)

    def failed(self, send: Send, error: Exception) -> Iterable[Effect]:
        return self.replied(send, None)

    def woken(self, about: Any) -> Iterable[Effect]:
        return self._step([])

    def step(self, number: int) -> tuple[int, list[Effect]]:
        return number, self._step([])


def driven(world: World) -> None:
    """Answers from several threads are all taken, one at a time, and what follows from each is done."""
    told = [AppendFuture(number) for number in range(3)]
    machine = Counting(3, told)
    runtime = FakeRuntime(world)
    driver = Driver(LEDGER, machine, runtime)  # type: ignore[arg-type]
    driver.post(machine.start)
    answers: list[Callable[[Any], None]] = [on_reply for _, _, on_reply in runtime.sent]
    reply = Reply(RequestKind.LAST, ReplyStatus.OK, LEDGER)

    run_all(
        world,
        a=lambda: answers[0](reply),
        b=lambda: (answers[1](reply), told[0].result()),
        c=lambda: answers[2](ValueError()),
        looker=lambda: driver.call(machine.step, 5),
        waiter=lambda: (driver.done.result(), told[2].result()),
    )
    in_time(world, but=("timer",))
    assert driver.done.result() == 3 and all(future.done() for future in told)


# ---- readers that poll ---------------------------------------------------------------------------------------------


def _metadata(**changes: Any) -> LedgerMetadata:
    return replace(
        LedgerMetadata(
            ledger=LEDGER, ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=(Fragment(0, ("b",)),),
            proof="0" * 64,
        ),
        **changes,
    )  # fmt: skip


def _reader(world: World) -> tuple[LedgerReader, MemoryStore, FakeRuntime, int]:
    store = MemoryStore()
    version = store.create(metadata_key(LEDGER), _metadata().encode())
    runtime = FakeRuntime(world, store)
    return LedgerReader(_metadata(), b"key", runtime), store, runtime, version  # type: ignore[arg-type]


def closed_while_polling(world: World) -> None:
    """A reader that waits for more is told that the ledger was closed, though its bookies say nothing."""
    reader, store, _, version = _reader(world)
    closed = _metadata(state=State.CLOSED, last_entry=-1)
    got: list[bool] = []
    run_all(
        world,
        reader=lambda: got.append(reader.wait_beyond(0)),
        closer=lambda: store.put(metadata_key(LEDGER), closed.encode(), version),
    )
    in_time(world, but=PAUSES)
    assert got == [False] and reader.is_closed
    reader.close()
    store.close()


def reader_closed(world: World) -> None:
    """Whoever waits in a reader is told that it was closed."""
    reader, store, _, _ = _reader(world)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            reader.wait_beyond(0)
        except Exception as error:
            errors.append(error)

    run_all(world, a=wait, b=wait, closer=lambda: reader.close())
    in_time(world, but=PAUSES)
    assert [type(error).__name__ for error in errors] == ["ClosedError"] * 2
    store.close()


# ---- a bookie ------------------------------------------------------------------------------------------------------


class _Log(MemoryLog):
    """With what a LocalBookie asks a DiskLog."""

    uuid, end_position, path = bytes(16), 0, Path("nowhere")

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.log = self.commit_log = self

    def set_damaged(self, damaged: object) -> None: ...

    def sync(self) -> None:
        before = len(self.stored)
        primitives.point("sync")
        self.synced = max(self.synced, before)

    def close(self) -> None: ...


def _bookie() -> LocalBookie:
    real, local_bookie.DiskLog = local_bookie.DiskLog, _Log  # type: ignore[misc,assignment]
    try:
        return LocalBookie(Path("nowhere"), BookieConfig())
    finally:
        local_bookie.DiskLog = real  # type: ignore[misc]


def _add(entry: int, lac: int) -> Request:
    entries = encode_entries([b"value"], ledger=LEDGER, first=entry, lac=lac, time=1, ledger_bytes=5 * entry)
    return Request(RequestKind.ADD, LEDGER, entry, entry, bytes(16), records=bytes(entries.view))


def bookie(world: World) -> None:
    """Adds are answered once they are synced, long polls as soon as the LAC has moved, and a close ends both."""
    bookie = _bookie()
    replies: dict[str, AppendFuture[Reply]] = {name: AppendFuture() for name in ("first", "second", "poll")}

    def ask(name: str, request: Request) -> None:
        def answered(reply: Reply) -> None:
            assert set_result(replies[name], reply), "answered twice"

        bookie.request(request, answered)
        reply = replies[name].result()
        assert reply.status == ReplyStatus.OK, reply

    def poll() -> None:
        replies["first"].result()
        ask("poll", Request(RequestKind.WAIT_LAC, LEDGER, 0, -1, bytes(16), limit=4000))

    def second() -> None:
        replies["first"].result()
        ask("second", _add(1, 0))

    run_all(world, first=lambda: ask("first", _add(0, -1)), second=second, poller=poll)
    in_time(world)
    assert replies["poll"].result().lac == 0
    bookie.close()
    in_time(world)


def bookie_committing(world: World) -> None:
    """As many threads as there are: who adds while another syncs is part of the next sync."""
    bookie = _bookie()
    done: list[int] = []

    def add(entry: int) -> None:
        future: AppendFuture[Reply] = AppendFuture()
        bookie.request(_add(entry, -1), partial(set_result, future))
        assert future.result().status == ReplyStatus.OK
        done.append(entry)
        log: Any = bookie.log
        assert entry in [stored.entry for stored in log.stored[: log.synced]], "answered before the sync"

    run_all(world, a=lambda: add(0), b=lambda: add(1), c=lambda: add(2))
    in_time(world)
    bookie.close()
    assert sorted(done) == [0, 1, 2]


class KeyStore:
    """A metadata store with one key at a time, as far as `WriterKeys` uses one, and its leases."""

    def __init__(self) -> None:
        self.keys: dict[str, KeyLease] = {}
        self.leases: list[KeyLease] = []

    def lease(self, ttl: float, on_loss: Callable[[], object]) -> KeyLease:
        self.leases.append(KeyLease(self, on_loss))
        return self.leases[-1]

    def get(self, key: str) -> Versioned | None:
        return Versioned(b"", 0) if key in self.keys else None

    def delete(self, key: str, version: int) -> None:
        if self.keys.pop(key, None) is None:
            raise NoSuchKeyError(key)


class KeyLease:
    def __init__(self, store: KeyStore, on_loss: Callable[[], object]) -> None:
        self.store, self.on_loss, self.state = store, on_loss, LeaseState.HELD

    def create(self, key: str, value: bytes) -> int:
        if self.state is LeaseState.LOST:
            raise LeaseLostError(key)
        if key in self.store.keys:
            raise KeyExistsError(key)
        self.store.keys[key] = self
        return 0

    def lose(self) -> None:
        self.state = LeaseState.LOST
        for key in [key for key, lease in self.store.keys.items() if lease is self]:
            del self.store.keys[key]
        self.on_loss()

    def close(self) -> None:
        return


class JoinedRuntime(FakeRuntime):
    """Waits for its timers and workers."""

    def __init__(self, world: World, metadata: Any) -> None:
        super().__init__(world, metadata)
        self._tasks: list[Any] = []

    def work(self, job: Callable[[], object]) -> None:
        self._tasks.append(self.world.go(job, "worker"))

    def wake_after(self, seconds: float, call: Callable[[], None]) -> Timer | None:
        def run() -> None:
            primitives.sleep(seconds)
            call()

        self._tasks.append(self.world.go(run, "timer"))
        return None

    def join(self) -> None:
        while self._tasks:
            self.world.join(self._tasks.pop())


def keys_of_writers(world: World) -> None:
    """A ledger is closed while the lease is lost: in the end the keys are those of the ledgers that are open."""
    store = KeyStore()
    runtime = JoinedRuntime(world, store)
    keys = WriterKeys(runtime, create_after_s=0.001)  # type: ignore[arg-type]
    keys.hold(1)
    keys.hold(2)
    runtime.join()
    run_all(world, a=lambda: keys.release(1), b=store.leases[0].lose)
    runtime.join()
    assert [*store.keys] == [writer_key(2)]
    assert {lease.state for lease in store.keys.values()} == {LeaseState.HELD}


def keys_of_more_writers(world: World) -> None:
    """Ledgers come while others go."""
    store = KeyStore()
    runtime = JoinedRuntime(world, store)
    keys = WriterKeys(runtime, create_after_s=0.001)  # type: ignore[arg-type]
    keys.hold(1)
    runtime.join()
    run_all(world, a=lambda: keys.hold(2), b=lambda: keys.hold(3), c=lambda: keys.release(1))
    runtime.join()
    assert sorted(store.keys) == [writer_key(2), writer_key(3)]


HARNESSES = [
    harness(driven, driver),
    harness(closed_while_polling, reader, watching),
    harness(reader_closed, reader, watching, memory),
    harness(bookie, local_bookie),
    harness(bookie_committing, local_bookie),
    harness(keys_of_writers, writer_keys),
    harness(keys_of_more_writers, writer_keys),
]
