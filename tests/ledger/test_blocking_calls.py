"""Blocking calls of ledgers are refused in an event loop; the error names the awaitable form, which works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyreplog.errors import InvalidArgumentError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.reader import LedgerReader


@pytest.fixture
def ledger(shared: LedgerCluster) -> Iterator[Ledger]:
    with shared.create_ledger() as ledger:
        ledger.append_batch([b"a", b"b"])
        yield ledger


@pytest.fixture
def reader(shared: LedgerCluster, ledger: Ledger) -> Iterator[LedgerReader]:
    with shared.open_ledger(ledger.id, recover=False) as reader:
        yield reader


OF_CLUSTERS: dict[str, Callable[[LedgerCluster, int], Any]] = {
    "create_ledger": lambda cluster, _: cluster.create_ledger(),
    "open_ledger": lambda cluster, ledger: cluster.open_ledger(ledger),
    "delete_ledger": lambda cluster, ledger: cluster.delete_ledger(ledger),
    "delete_garbled": lambda cluster, _: cluster.delete_garbled("x"),
    "ledgers": lambda cluster, _: cluster.ledgers(),
    "ledger_metadata": lambda cluster, ledger: cluster.ledger_metadata(ledger),
    "status": lambda cluster, _: cluster.status(),
    "limbo": lambda cluster, _: cluster.limbo(),
    "bookie_count": lambda cluster, _: cluster.bookie_count(),
    "count_copies": lambda cluster, ledger: cluster.count_copies(ledger),
    "repair": lambda cluster, ledger: cluster.repair(ledger),
}
OF_LEDGERS: dict[str, tuple[Callable[[Ledger], Any], str]] = {
    "append": (lambda ledger: ledger.append(b"c"), "submit"),
    "append_batch": (lambda ledger: ledger.append_batch([b"c"]), "submit_batch"),
    "flush": (lambda ledger: ledger.flush(), "flush_async"),
}
OF_READERS: dict[str, Callable[[LedgerReader], Any]] = {
    "read": lambda reader: reader.read(),
    "read_unconfirmed": lambda reader: reader.read_unconfirmed(0, 1),
    "get": lambda reader: reader.get(0),
    "refresh": lambda reader: reader.refresh(),
    "wait_beyond": lambda reader: reader.wait_beyond(0, 0.01),
}


def refused(call: Callable[[], Any], name: str, instead: str) -> None:
    async def run() -> None:
        with pytest.raises(InvalidArgumentError, match=rf"^{name}\(\) would block .*: await {instead}\(\) instead"):
            call()

    asyncio.run(run())


@pytest.mark.parametrize("name", OF_CLUSTERS)
def test_blocking_calls_of_a_cluster_are_refused_in_an_event_loop(
    shared: LedgerCluster, ledger: Ledger, name: str
) -> None:
    before = shared.ledgers()
    refused(lambda: OF_CLUSTERS[name](shared, ledger.id), name, f"{name}_async")
    assert shared.ledgers() == before, "nothing was done"


def test_every_form_of_a_cluster_is_tried() -> None:
    forms = {name.removesuffix("_async") for name in dir(LedgerCluster) if name.endswith("_async")}
    assert forms - {"close"} == set(OF_CLUSTERS) | (forms & {"embedded", "connect"})


@pytest.mark.parametrize("name", OF_LEDGERS)
def test_blocking_calls_of_a_ledger_are_refused_in_an_event_loop(ledger: Ledger, name: str) -> None:
    call, instead = OF_LEDGERS[name]
    refused(lambda: call(ledger), name, instead)
    assert ledger.append(b"c") == 2, "nothing was appended"


@pytest.mark.parametrize("name", OF_READERS)
def test_blocking_calls_of_a_reader_are_refused_in_an_event_loop(reader: LedgerReader, name: str) -> None:
    refused(lambda: OF_READERS[name](reader), name, f"{name}_async")


def test_awaitable_forms_named_by_the_errors_work(reader: LedgerReader) -> None:
    async def read() -> None:
        assert await reader.refresh_async() == reader.last_add_confirmed
        assert await reader.wait_beyond_async(-1, 30.0)
        assert (await reader.get_async(0)).value == b"a"
        assert [value async for batch in reader.read_unconfirmed_async(0, 1) for value in batch.values()] == [b"a"]

    asyncio.run(read())
