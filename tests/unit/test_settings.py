"""Every setting of every configuration: what no number may be is refused, by its name."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog import ha, rocketmq
from pyreplog.bookie.config import BookieConfig
from pyreplog.config import LogConfig, Settings
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.errors import ConfigError
from pyreplog.ha.config import NodeConfig
from pyreplog.ha.protocol.master_machine import GroupConfig
from pyreplog.ha.relay.config import ApplierConfig
from pyreplog.net.limits import Limits
from pyreplog.partition.config import BrokerConfig
from pyreplog.topic.model.config import TopicConfig

KINDS = (ApplierConfig, BookieConfig, GroupConfig, Limits, LogConfig, NodeConfig, SubscriptionConfig, TopicConfig)
NUMBER = re.compile(r"\b(int|float)\b")
NUMBERS = [
    pytest.param(kind, field.name, id=f"{kind.__name__}-{field.name}")
    for kind in KINDS
    for field in dataclasses.fields(kind)
    if NUMBER.search(str(field.type))
]


def test_numeric_settings_of_every_configuration_are_found() -> None:
    assert len(NUMBERS) > 50 and len({param.values[0] for param in NUMBERS}) == len(KINDS)


@pytest.mark.parametrize("wrong", [-1, -(1 << 70), 1 << 70, True, "1", b"1", [1]], ids=str)
@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_invalid_number_raises_config_error_that_names_the_setting(kind: type[Settings], name: str, wrong: Any) -> None:
    needed = {"name": "a"} if kind is NodeConfig else {}
    with pytest.raises(ConfigError, match=name):
        kind.of({**needed, name: wrong})


@pytest.mark.parametrize("kind", [LogConfig, BookieConfig, BrokerConfig])
def test_the_size_of_segments_has_one_default(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogConfig, "default_segment_bytes", 1 << 20)
    before = kind()
    assert (before.segment_bytes, kind.of({}).segment_bytes, kind(segment_bytes=2 << 20).segment_bytes) == (
        1 << 20, 1 << 20, 2 << 20,
    )  # fmt: skip
    monkeypatch.setattr(LogConfig, "default_segment_bytes", 3 << 20)
    assert (before.segment_bytes, kind().segment_bytes) == (1 << 20, 3 << 20)
    monkeypatch.setattr(LogConfig, "default_segment_bytes", 4097)
    with pytest.raises(ConfigError, match="segment_bytes: expected"):
        kind()


def test_a_log_of_any_size_is_opened_with_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyreplog.open(tmp_path / "log", segment_bytes=1 << 16).close()
    monkeypatch.setattr(LogConfig, "default_segment_bytes", 1 << 20)
    with pyreplog.open(tmp_path / "log") as log:
        assert log.segment_bytes == 1 << 16


PUBLIC = [
    getattr(package, name)
    for package in (pyreplog, ha, rocketmq)
    for name in package.__all__
    if callable(getattr(package, name)) and not name.endswith("Error")
]
OTHER_UNIT = re.compile(r"(?<!bytes_per)_(s|seconds|minutes|hours|days)$")


def parameters_of(thing: Any) -> Iterator[str]:
    calls = {"": thing}
    if inspect.isclass(thing):
        calls |= {name: value for name, value in inspect.getmembers(thing, callable) if not name.startswith("_")}
    for name, call in calls.items():
        try:
            yield from (f"{name}({parameter})" for parameter in inspect.signature(call).parameters)
        except (TypeError, ValueError):  # a compiled class
            continue


def test_durations_of_settings_are_milliseconds() -> None:
    """`timeout=` is in seconds; nothing else that a caller passes is."""
    fields = [f"({field.name})" for kind in KINDS for field in dataclasses.fields(kind)]
    names = {*fields, *(name for thing in PUBLIC for name in parameters_of(thing))}
    assert len(names) > 300
    assert not {name for name in names if OTHER_UNIT.search(name.rstrip(")"))}
