"""Coroutine forms of the blocking calls of ledgers, logs and replica groups: same parameters, same results."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import pyreplog
from pyreplog import ha
from pyreplog.coroutines import opening_function
from pyreplog.errors import NoSuchLedgerError, OutOfRangeError
from pyreplog.handles import Closeable
from pyreplog.ledger.cluster import LedgerCluster
from tests.waiting import until

LEDGERS = ["create_ledger", "open_ledger", "delete_ledger", "delete_garbled", "ledgers", "ledger_metadata", "status", "limbo",
           "bookie_count", "count_copies", "repair", "close"]  # fmt: skip
FORMS = {
    LedgerCluster: LEDGERS,
    pyreplog.LedgerReader: ["get", "read", "close"],
    pyreplog.CommitLog: ["sync", "flush"],
    pyreplog.LogCursor: ["advance", "seek", "delete", "close"],
    ha.GroupClient: ["get", "read", "start", "end", "status", "flush", "close"],
    ha.Node: ["promote", "follow", "close"],
}


def parameters(call: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(call).parameters.values())


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in FORMS.items() for name in names])
def test_a_call_that_waits_has_a_form_for_coroutines(kind: type, name: str) -> None:
    form = getattr(kind, f"{name}_async")
    assert form.__name__ == f"{name}_async" and inspect.getdoc(form)
    if name not in ("flush", "close"):  # these take no time-out there: asyncio.timeout has it
        assert parameters(form) == parameters(getattr(kind, name))
        assert inspect.iscoroutinefunction(form) or inspect.isasyncgenfunction(form)


def test_ledgers_are_used_in_coroutines(tmp_path: Path) -> None:
    async def use() -> None:
        async with LedgerCluster.embedded(tmp_path / "cluster", bookies=1, durability="appended") as cluster:
            async with await cluster.create_ledger_async(1, 1, 1) as ledger:
                assert await ledger.submit_batch([b"a", b"b"]) == range(2)
            async with await cluster.open_ledger_async(ledger.id) as reader:
                assert (await reader.get_async(1)).value == b"b"
                assert [value async for batch in reader.read_async(1) for value in batch.values()] == [b"b"]
            assert await cluster.ledgers_async() == [ledger.id]
            assert (await cluster.ledger_metadata_async(ledger.id)).last_entry == 1
            assert list(await cluster.count_copies_async(ledger.id)) == [1, 1]
            assert await cluster.repair_async(ledger.id) == ([], {})
            assert len((await cluster.status_async()).bookies) == await cluster.bookie_count_async() == 1
            assert await cluster.limbo_async() == []
            await cluster.delete_ledger_async(ledger.id)
            with pytest.raises(NoSuchLedgerError):
                await cluster.open_ledger_async(ledger.id)

    asyncio.run(use())


def test_replica_groups_in_coroutines(tmp_path: Path) -> None:
    async def use() -> None:
        async with await ha.open_master_async(tmp_path / "a", name="a") as node:
            async with ha.connect([node.address]) as client:
                assert await client.submit_batch([b"a", b"b"]) == range(2)
                assert (await client.get_async(1)).value == b"b"
                assert [value async for batch in client.read_async(0, 1) for value in batch.values()] == [b"a"]
                assert (await client.start_async(), await client.end_async()) == (0, 2)
                assert (await client.status_async())["role"] == "master"
                with pytest.raises(OutOfRangeError):
                    await client.get_async(7)
            async with await ha.open_replica_async(tmp_path / "b", name="b", master=node.address) as replica:
                assert replica.role == "replica"

    asyncio.run(use())


def test_cursors_are_used_in_coroutines(tmp_path: Path) -> None:
    async def use() -> None:
        async with pyreplog.open(tmp_path / "log") as log, log.cursor("a") as cursor:
            log.append_batch([b"a", b"b"])
            await cursor.advance_async(2)
            assert cursor.entry == 2
            await cursor.seek_async(1)
            assert cursor.entry == 1 and log.cursors() == {"a": 1}
            await cursor.delete_async()
            assert log.cursors() == {} and await log.sync_async() == 2

    asyncio.run(use())


class Handle(Closeable):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_handle_opened_for_a_cancelled_task_is_closed() -> None:
    handle, may_open = Handle(), threading.Event()

    def open_handle() -> Handle:
        assert may_open.wait(60.0)
        return handle

    async def use() -> None:
        task = asyncio.create_task(opening_function(open_handle)())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_open.set()

    asyncio.run(use())
    until(lambda: handle.closed)
