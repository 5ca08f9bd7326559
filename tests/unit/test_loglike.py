"""LogLike: all that reads and follows a log has its methods, with its parameters."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import pyreplog
from pyreplog import ha
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.stream.mirrorlog import MirrorLog

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
def test_all_have_its_parameters(kind: type, name: str) -> None:
    """More of them are keywords that may be left out."""
    expected = [shown(parameter) for parameter in parameters(pyreplog.LogLike, name)]
    found = parameters(kind, name)
    assert [shown(parameter) for parameter in found[: len(expected)]] == expected
    for parameter in found[len(expected) :]:
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
