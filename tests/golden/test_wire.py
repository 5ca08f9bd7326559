"""Requests to topic servers, as clients of every version of that wire send them, are understood and sent the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyreplog.topic.model.wire import protocol
from pyreplog.topic.model.wire.protocol import decode_request
from tests.golden.wire import ORIGINS, REPLICATE_TO, REQUESTS, SUBSCRIPTIONS, body_of

ADDED = {
    Path(__file__).with_name("topics-wire-origins.txt"): ORIGINS,
    Path(__file__).with_name("topics-wire-subscriptions.txt"): SUBSCRIPTIONS,
    Path(__file__).with_name("topics-wire-replicate-to.txt"): REPLICATE_TO,
}
GOLDEN = sorted(Path(__file__).parent.glob("topics-wire-v*.txt"))


def plain(request: Any) -> list[Any]:
    values = (tuple(value) if isinstance(value, list) else value for value in request)
    return [type(request), *(value.tolist() if isinstance(value, np.ndarray) else value for value in values)]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_golden_requests_of_each_version_are_decoded_and_encoded(path: Path) -> None:
    lines = [line.split() for line in path.read_text().splitlines()]
    assert len(lines) <= len(REQUESTS)
    for (name, digits), request in zip(lines, REQUESTS, strict=False):
        body = bytes.fromhex(digits)
        assert (name, body) == (type(request).__name__, body_of(request))
        assert plain(decode_request(memoryview(body))) == plain(request)


@pytest.mark.parametrize("path", ADDED, ids=lambda path: path.name)
def test_golden_requests_of_later_features_are_decoded_and_encoded(path: Path) -> None:
    lines = [line.split() for line in path.read_text().splitlines()]
    for (name, digits), request in zip(lines, ADDED[path], strict=True):
        body = bytes.fromhex(digits)
        assert (name, body) == (type(request).__name__, body_of(request))
        assert plain(decode_request(memoryview(body))) == plain(request)


def test_the_present_version_has_one_of_each_kind() -> None:
    lines = Path(__file__).with_name(f"topics-wire-v{protocol.VERSION}.txt").read_text().splitlines()
    lines += [line for path in ADDED for line in path.read_text().splitlines()]
    assert {line.split()[0] for line in lines} == {kind.__name__ for kind in protocol.Request.__args__}
