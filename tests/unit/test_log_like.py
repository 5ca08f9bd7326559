"""LogLike and AppenderLike: all that reads a log, or appends to it, has their methods, with their parameters."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import pyreplog
from pyreplog import ha
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.stream.mirror_log import MirrorLog

APPENDERS = [pyreplog.CommitLog, pyreplog.Ledger, ha.GroupClient, pyreplog.Producer]
APPENDING = [
    name for name, value in vars(pyreplog.AppenderLike).items() if inspect.isfunction(value) and name[0] != "_"
]
KINDS = [pyreplog.CommitLog, pyreplog.LogReader, pyreplog.LedgerReader, MirrorLog, ha.GroupClient]
SUBSCRIPT = "__getitem__"
METHODS = [name for name, value in vars(pyreplog.LogLike).items() if inspect.isfunction(value) and name != "__init__"]
METHODS = [name for name in METHODS if not name.startswith("_") or name in ("__len__", SUBSCRIPT)]


def parameters(kind: type, name: str) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(kind, name)).parameters.values())


def shown(parameter: inspect.Parameter) -> tuple[str, Any, Any]:
    return parameter.name, parameter.kind, parameter.default


def test_the_protocol_has_the_verbs() -> None:
    assert {*METHODS} == {"__len__", SUBSCRIPT, "get", "read", "follow", "follow_batches", "close"}
    for name in METHODS:
        assert inspect.getdoc(getattr(pyreplog.LogLike, name)), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in METHODS if name != SUBSCRIPT])
def test_all_logs_have_the_parameters_of_log_like(kind: type, name: str) -> None:
    """More of them are keywords that may be left out."""
    expected = [shown(parameter) for parameter in parameters(pyreplog.LogLike, name)]
    actual_parameters = parameters(kind, name)
    assert [shown(parameter) for parameter in actual_parameters[: len(expected)]] == expected
    for parameter in actual_parameters[len(expected) :]:
        assert parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty, parameter


def read_all(log: pyreplog.LogLike) -> dict[str, Any]:
    """The same calls, the same answers."""
    return {
        "len": len(log), "one": log[1], "last": log[-1], "some": log[1:3], "record": (log.get(2).entry, log.get(2).value),
        "batches": [value for batch in log.read(1, 3) for value in batch.values()],
        "all": [value for batch in log.read() for value in batch.values()],
        "records": [record.entry for record in log.follow(1, timeout=0)],
        "followed": [entry for batch in log.follow_batches(0, timeout=0) for entry in batch.entry.tolist()],
        "new": [*log.follow(timeout=0), *log.follow_batches(timeout=0)],
    }  # fmt: skip


def test_the_same_calls_mean_the_same(tmp_path: Path) -> None:
    values = [b"a", b"b", b"c", b"d"]
    with pyreplog.open(tmp_path / "log") as log:
        log.append_batch(values)
        expected = read_all(log)
        with pyreplog.open(tmp_path / "log", "r") as reader:
            assert read_all(reader) == expected
    with LedgerCluster.embedded(tmp_path / "cluster", bookies=1, durability="appended") as cluster:
        with cluster.create_ledger(1, 1, 1) as ledger:
            ledger.append_batch(values)
        with cluster.open_ledger(ledger.id) as closed:
            assert read_all(closed) == expected
    with ha.open_master(tmp_path / "node", name="a") as node, ha.connect([node.address]) as client:
        client.append_batch(values)
        assert read_all(client) == expected
    assert expected["batches"] == [b"b", b"c"] and expected["records"] == [1, 2, 3] and expected["new"] == []


def test_a_stand_in_has_the_methods_and_no_others() -> None:
    log = Mock(spec=pyreplog.LogLike)
    log.read(1, 2)
    with pytest.raises(AttributeError):
        log.scan  # noqa: B018


def test_the_protocol_of_appenders_has_the_verbs() -> None:
    assert {*APPENDING} == {"submit", "submit_batch", "room", "flush", "flush_async", "close", "close_async"}
    for name in APPENDING:
        assert inspect.getdoc(getattr(pyreplog.AppenderLike, name)), name


@pytest.mark.parametrize("kind", APPENDERS)
@pytest.mark.parametrize("name", APPENDING)
def test_all_appenders_have_the_parameters_of_appender_like(kind: type, name: str) -> None:
    """A keyword of the protocol may have a place as well. More parameters may be left out."""
    parameters_by_name = {parameter.name: parameter for parameter in parameters(kind, name)}
    places = [
        parameter.name for parameter in parameters_by_name.values() if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    expected = parameters(pyreplog.AppenderLike, name)
    placed = [parameter.name for parameter in expected if parameter.kind is not parameter.KEYWORD_ONLY]
    assert places[: len(placed)] == placed
    for parameter in expected:
        assert parameters_by_name[parameter.name].default == parameter.default, parameter
    for more in parameters_by_name.keys() - {parameter.name for parameter in expected} - {"self"}:
        assert parameters_by_name[more].default is not inspect.Parameter.empty, more
    assert inspect.iscoroutinefunction(getattr(kind, name)) == (name == "close_async")


def append_all(log: pyreplog.AppenderLike) -> list[int]:
    """In a thread, and then in an event loop."""

    async def append_in_loop() -> list[int]:
        await log.room()
        future = log.submit(b"f", event_time=datetime(2026, 1, 2, tzinfo=UTC))
        with pytest.raises(pyreplog.InvalidArgumentError):
            log.flush()
        await log.flush_async()
        assert future.done()
        return [await future]

    single = log.submit(b"a", b"key", event_time=datetime(2026, 1, 1, tzinfo=UTC))
    batch = log.submit_batch([b"b", b"c"], [b"key", None], event_times=[datetime(2026, 1, 1, tzinfo=UTC), None])
    log.flush(timeout=30.0)
    assert single.done() and batch.done() and log.room().done()
    with pytest.raises(pyreplog.InvalidArgumentError, match="time zone"):
        log.submit(b"d", event_time=datetime(2026, 1, 1))
    return [single.result(), *batch.result(), *asyncio.run(append_in_loop())]


def test_the_same_appends_mean_the_same(tmp_path: Path) -> None:
    for durability in ("synced", "appended"):
        with pyreplog.open(tmp_path / durability, durability=durability) as log:
            assert append_all(log) == [0, 1, 2, 3]
            first = datetime(2026, 1, 1, tzinfo=UTC)
            assert [
                record.entry for batch in log.read_event_times(first, first + timedelta(days=1)) for record in batch
            ] == [0, 1]
            assert [record.event_time for batch in log.read(3) for record in batch] == [1_767_312_000_000_000]
    with pyreplog.Cluster.embedded(tmp_path / "cluster", bookies=1, durability="appended") as cluster:
        with cluster.create_ledger(1, 1, 1) as ledger:
            assert append_all(ledger) == [0, 1, 2, 3]
        with cluster.topic("news", ensemble=1, write_quorum=1, ack_quorum=1) as topic, topic.producer("p") as producer:
            assert append_all(producer) == [0, 1, 2, 3]
    with ha.open_master(tmp_path / "node", name="a") as node, ha.connect([node.address]) as client:
        assert append_all(client) == [0, 1, 2, 3]
