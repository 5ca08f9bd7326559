"""Every setting of every configuration: what no number may be is refused, by its name."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.config import LogConfig, Settings
from pyreplog.errors import ConfigError
from pyreplog.ha.config import NodeConfig
from pyreplog.ha.protocol.master_machine import GroupConfig
from pyreplog.ha.relay.config import ApplierConfig
from pyreplog.net.limits import Limits
from pyreplog.topic.model.config import SubscriptionConfig, TopicConfig

KINDS = (ApplierConfig, BookieConfig, GroupConfig, Limits, LogConfig, NodeConfig, SubscriptionConfig, TopicConfig)
NUMBER = re.compile(r"\b(int|float)\b")
NUMBERS = [
    pytest.param(kind, field.name, id=f"{kind.__name__}-{field.name}")
    for kind in KINDS
    for field in dataclasses.fields(kind)
    if NUMBER.search(str(field.type))
]


def test_numbers_are_found() -> None:
    assert len(NUMBERS) > 50 and len({param.values[0] for param in NUMBERS}) == len(KINDS)


@pytest.mark.parametrize("wrong", [-1, -(1 << 70), 1 << 70, True, "1", b"1", [1]], ids=str)
@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_what_no_number_may_be(kind: type[Settings], name: str, wrong: Any) -> None:
    needed = {"name": "a"} if kind is NodeConfig else {}
    with pytest.raises(ConfigError, match=name):
        kind.of({**needed, name: wrong})
