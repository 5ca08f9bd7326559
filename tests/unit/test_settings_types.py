"""Settings that are given as keywords: a type checker sees which there are, and of which types."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog import ha
from pyreplog.bookie.config import BookieConfig, BookieSettings
from pyreplog.config import LogConfig, LogSettings, Settings
from pyreplog.ha.config import NodeConfig, NodeSettings
from pyreplog.ha.relay.applier import Applier
from pyreplog.ha.relay.config import ApplierConfig, ApplierSettings
from pyreplog.ha.relay.relay import Relay
from pyreplog.ledger.cluster import LedgerCluster

ROOT = Path(pyreplog.__file__).parent.parent
KINDS = [
    (LogConfig, LogSettings), (BookieConfig, BookieSettings), (NodeConfig, NodeSettings),
    (ApplierConfig, ApplierSettings),
]  # fmt: skip
TAKERS: list[tuple[Callable[..., Any], type]] = [
    (pyreplog.open, LogSettings), (LedgerCluster.embedded, BookieSettings), (ha.open_master, NodeSettings),
    (ha.open_replica, NodeSettings), (Applier.__init__, ApplierSettings), (Relay.__init__, ApplierSettings),
]  # fmt: skip


@pytest.mark.parametrize(("config", "keywords"), KINDS)
def test_keywords_are_the_fields_of_the_configuration(config: type[Settings], keywords: Any) -> None:
    fields = dataclasses.fields(config)
    assert typing.get_type_hints(keywords) == {
        field.name: typing.get_type_hints(config)[field.name] for field in fields
    }
    needed = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    hints = typing.get_type_hints(keywords, include_extras=True)
    assert {name for name, hint in hints.items() if typing.get_origin(hint) is typing.Required} == needed


@pytest.mark.parametrize(("function", "keywords"), TAKERS)
def test_functions_name_their_settings(function: Callable[..., Any], keywords: type) -> None:
    assert function.__annotations__["settings"] == f"Unpack[{keywords.__name__}]"


PROGRAM = """\
import pyreplog
from pyreplog import Cluster, ha

log = pyreplog.open("log", durability="synced", segment_bytes=1 << 20)
pyreplog.open("log", segment_byte=1)  # wrong
pyreplog.open("log", segment_bytes="1")  # wrong
pyreplog.open("log", durability="sync")  # wrong
first: bytes = log[0]
key: bytes | None = log.get(0).key
times = [batch.timestamp.max() for batch in log.read(0, 10)]
Cluster.embedded("cluster", bookies=3, durability="appended")
Cluster.embedded("cluster", bookie=3)  # wrong
ha.open_master("copy", name="a", members=["a"], port=7001)
ha.open_master("copy", port=7001)  # wrong
ha.open_replica("copy", name="b", prot=7001)  # wrong


def newest(log: pyreplog.LogLike) -> bytes:
    return log[-1]


newest(log)
newest(pyreplog.open("log", "r"))
newest(Cluster.embedded("cluster").open_ledger(3))
newest(ha.open_replica("copy", name="b").log)
newest("text")  # wrong
pyreplog.open("log").scan()  # wrong
"""


def test_a_type_checker_finds_wrong_settings(tmp_path: Path) -> None:
    """In a program of a user, with the strictest checks."""
    mypy = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    out, err, _ = mypy.run([*config, "--strict", str(program)])
    found = sorted({int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line})
    wrong = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")]
    assert found == wrong, out + err
