"""Writes tests/golden/kafka-messages-v1.json: a request and a response of Kafka of each API and version.

Run it once for a new version of the file, never again for an old one: it holds what clients send, whatever the table says.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

from pyreplog.kafka.wire.codec import request_codec, response_codec, served_versions
from pyreplog.kafka.wire.schema import ApiKey
from tests.kafka.foreign import kio_class, kio_encode, kio_value

VERSION = 1
VIEW = re.compile(r"<memory at 0x[0-9a-f]+>")
KINDS = {"Request": request_codec, "Response": response_codec}
MESSAGES = [(key, version, kind) for key in ApiKey for version in served_versions(key) for kind in KINDS]


def name_of(key: ApiKey, version: int, kind: str) -> str:
    return f"{key.name} {version} {kind}"


def sample(key: ApiKey, version: int, kind: str) -> bytes:
    """Return the first of kio's messages that has something in it and is short."""
    rng, data = Random(name_of(key, version, kind)), b""
    for _ in range(100):
        data = kio_encode(kio_value(kio_class(key, version, kind), rng))
        if 40 < len(data) < 160:
            break
    return data


def main() -> None:
    path = Path(__file__).with_name(f"kafka-messages-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    samples = {}
    for key, version, kind in MESSAGES:
        data = sample(key, version, kind)
        text = VIEW.sub("", repr(KINDS[kind](key, version).schema.decode(data)))
        samples[name_of(key, version, kind)] = [data.hex(), text]
    path.write_text(json.dumps(samples, indent=0) + "\n")


if __name__ == "__main__":
    main()
