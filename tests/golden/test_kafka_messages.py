"""Messages of Kafka of each API and version, as kio wrote them, are read as ever, and written again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.golden.kafka_messages import KINDS, MESSAGES, VERSION, VIEW, name_of

GOLDEN = json.loads((Path(__file__).parent / f"kafka-messages-v{VERSION}.json").read_text())


def test_all_that_was_served_is_served() -> None:
    assert GOLDEN.keys() <= {name_of(*message) for message in MESSAGES}


@pytest.mark.parametrize(("key", "version", "kind"), [m for m in MESSAGES if name_of(*m) in GOLDEN])
def test_golden_messages_of_kafka_are_decoded_and_encoded(key: int, version: int, kind: str) -> None:
    """A later release may add fields, at the end of a class."""
    data, text = GOLDEN[name_of(key, version, kind)]
    schema = KINDS[kind](key, version).schema
    message = schema.decode(bytes.fromhex(data))
    assert schema.encode(message).hex() == data
    for field in re.findall(r"\w+=[^()=]+(?=[,)])", text):
        assert field in VIEW.sub("", repr(message))
