"""What the metadata store keeps of partitions, as every released version wrote it, is read; this version writes the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pyreplog.partition.metadata.broker_registration import BrokerIdentity
from tests.golden.partition_metadata import EARLIER, IDENTITY, VALUES, VERSION

FIRST = json.loads((Path(__file__).parent / "partition-metadata-v1.json").read_text())
GOLDEN = json.loads((Path(__file__).parent / f"partition-metadata-v{VERSION}.json").read_text())


@pytest.mark.parametrize("name", VALUES)
def test_values_are_read_and_written(name: str) -> None:
    value, stored = VALUES[name], GOLDEN[name]
    assert type(value).decode(json.dumps(stored).encode()) == value
    assert json.loads(value.encode()) == stored


@pytest.mark.parametrize("name", VALUES)
def test_values_of_version_1_are_read(name: str) -> None:
    """What they do not say has its default; they are written as values of this version."""
    value = type(VALUES[name]).decode(json.dumps(FIRST[name]).encode())
    assert value == replace(VALUES[name], **EARLIER.get(name, {}))  # type: ignore[arg-type]
    assert type(value).decode(value.encode()) == value


@pytest.mark.parametrize("name", VALUES)
def test_fields_of_later_builds_are_kept(name: str) -> None:
    stored = {**GOLDEN[name], "version": 7, "later": [1, {"a": 2}]}
    decoded = type(VALUES[name]).decode(json.dumps(stored).encode())
    assert json.loads(decoded.encode()) == stored


def test_the_identity_of_a_broker() -> None:
    data = GOLDEN["identity"].encode()
    assert BrokerIdentity.decode(Path("broker"), data) == IDENTITY
    assert IDENTITY.encode() == data
