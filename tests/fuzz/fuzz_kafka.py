"""Fuzz target of Kafka's wire: requests and responses of any API and version, and record batches, against a twin in plain
Python.

    python tests/fuzz/fuzz_kafka.py -max_total_time=60 [corpus directory]

Needs atheris. The first two bytes choose the message, or the batch. tests/property/test_kafka_property.py puts the bytes that
hypothesis makes to the same check.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import InvalidRecordBatchError, InvalidRequestError
from pyreplog.kafka.wire.codec import MessageCodec, request_codec, response_codec, served_versions
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.record_batches.batches import build_batch, check_produced, read_batch
from tests.fuzz.seeds import seeded
from tests.kafka import twin

MESSAGES = [
    (key, version, kind) for key in ApiKey for version in served_versions(key) for kind in ("Request", "Response")
]
CODECS = {"Request": request_codec, "Response": response_codec}


def codec_of(number: int) -> MessageCodec:
    key, version, kind = MESSAGES[number]
    return CODECS[kind](key, version)


def check_message(number: int, data: bytes) -> None:
    """Both read the same, or refuse it; what was read is encoded to what is read again."""
    try:
        expected = twin.decode(*MESSAGES[number], data)
    except twin.Bad:
        expected = None
    schema = codec_of(number).schema
    try:
        message = schema.decode(data)
    except InvalidRequestError as error:
        assert 0 <= error.offset <= len(data) and error.path and error.expected and error.found
        message = None
    assert message == expected
    if message is not None:
        again = schema.encode(message)
        assert schema.decode(again) == message
        assert b"".join(schema.encode_frame(message, b"head"))[8:] == again


def sealed(data: bytes) -> bytes:
    """Give a batch its length, magic and checksum, and no codec, so that the fuzzer gets behind these."""
    batch = bytearray(data)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[16] = 2
    batch[22] &= 0xF8
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def check_records(data: bytes) -> None:
    try:
        expected = twin.produced_rows(data)
    except twin.Bad:
        expected = None
    try:
        produced = check_produced(data)
    except InvalidRecordBatchError as error:
        checksum = error.expected.startswith("checksum")  # the twin does not look at it
        assert (expected is None or checksum) and error.error_code in (2, 32, 76, 87)
        return
    assert expected is not None
    _, columns = read_batch(data)
    rows = zip(columns.timestamp.tolist(), columns.keys(), columns.values(), strict=True)
    assert [(*row, columns.headers(i)) for i, row in enumerate(rows)] == expected
    times = [row[0] for row in expected]
    assert produced[1:] == ((max(times), times.index(max(times))) if max(times) >= 0 else (-1, -1))


def check(data: bytes) -> None:
    if len(data) < 2:
        return
    number, rest = int.from_bytes(data[:2], "big"), data[2:]
    if number & 1 == 0:
        check_message((number >> 1) % len(MESSAGES), rest)
    elif len(rest) < 61 or number & 2:
        check_records(rest)
    else:
        check_records(sealed(rest))


def drawn(schema: Any, line: twin.Line, version: int, rng: Random) -> Any:
    """Draw a value of a field of the table."""
    kind = line.kind.removeprefix("[]")
    if version in line.nullable and rng.random() < 0.2:
        return None
    if line.kind.startswith("[]"):
        return tuple(
            drawn(schema, line._replace(kind=kind, nullable=range(0)), version, rng) for _ in range(rng.randint(0, 3))
        )
    if kind[0].isupper():
        return message_of(kind, line.below, version, rng)
    if kind in twin.NUMBERS:
        return rng.random() < 0.5 if kind == "bool" else rng.randint(-100, 100)
    return {"string": "text", "uuid": bytes(range(16)), "bytes": b"bytes", "records": b"records"}[kind]


def message_of(name: str, lines: list[twin.Line], version: int, rng: Random) -> Any:
    values = {line.name: drawn(None, line, version, rng) for line in lines if version in line.versions}
    return twin.CLASSES[name](**values)


def seeds() -> list[bytes]:
    """A message of each API and version, and batches."""
    rng, found = Random(1), []
    for number, (key, version, kind) in enumerate(MESSAGES):
        name, _, lines = twin.TABLE[key, kind]
        data = codec_of(number).schema.encode(message_of(name, lines, version, rng))
        found.append((2 * number).to_bytes(2, "big") + data)
    batch = build_batch(
        [b"v", None, b"w" * 99],
        keys=[None, b"", b"key"],
        timestamps_ms=[5, -1, 9],
        headers=[[], [(b"a", None)], [(b"", b"x")] * 3],
    )
    return [*found, b"\0\1" + batch, b"\0\3" + batch]


def main() -> None:
    import atheris

    for function in (check_message, check_records, check):
        globals()[function.__name__] = atheris.instrument_func(function)
    for cls in (twin.Reader, twin.MessageReader):
        for name, function in list(vars(cls).items()):
            if isinstance(function, FunctionType):
                setattr(cls, name, atheris.instrument_func(function))  # its branches show the way
    twin.produced_rows = atheris.instrument_func(twin.produced_rows)
    atheris.Setup(seeded(sys.argv, seeds()), check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
