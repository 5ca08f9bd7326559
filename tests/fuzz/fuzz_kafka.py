"""Fuzz target of Kafka's wire: the stream of requests, requests and responses of any API and version, record batches as a
log takes them and as consumers read them, against a twin in plain Python.

    python tests/fuzz/fuzz_kafka.py -max_total_time=60 [corpus directory]

Needs atheris. The first two bytes choose the message, or the check of batches or of streams. tests/property/test_kafka_property.py puts the bytes that
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

from pyreplog._native.kafka.record_batch import HEADER_BYTES, encode_records, take_produced
from pyreplog._native.kafka.record_set import read_record_set
from pyreplog._native.kafka.request_parser import RequestParser
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import InvalidRecordBatchError, InvalidRequestError
from pyreplog.kafka.wire.codec import MessageCodec, request_codec, response_codec, served_versions
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.partition.protocol.record_batch import encode_batch, end_marker, stamped
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.record_batches.batches import build_batch, read_batch
from pyreplog.record_batches.compression import decompress
from tests.fuzz.seeds import seeded
from tests.kafka import twin

MESSAGES = [
    (key, version, kind) for key in ApiKey for version in served_versions(key) for kind in ("Request", "Response")
]
REQUEST_MAX = 4096
UNCOMPRESSED_MAX = 1 << 20
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
    """A log takes what the twin takes, and readers then read the same."""
    try:
        expected = twin.produced_rows(data)
    except twin.Bad:
        expected = None
    produced = take_produced(data, decompress=decompress, max_uncompressed=UNCOMPRESSED_MAX)
    if isinstance(produced, tuple):
        code, reason = produced
        assert (expected is None or "of CRC" in reason) and code in (2, 10, 32, 76, 87)
        return
    rows = rows_of(bytes(produced.data))
    times = [row[0] for row in rows]
    assert produced.header.max_timestamp == max(times) and produced.header.count == len(rows)
    assert expected == rows or (expected is None and produced.header.codec)


def rows_of(data: bytes) -> list[tuple[Any, ...]]:
    _, columns = read_batch(data, max_uncompressed=UNCOMPRESSED_MAX)
    rows = zip(columns.timestamp.tolist(), columns.keys(), columns.values(), strict=True)
    return [(*row, columns.headers(i)) for i, row in enumerate(rows)]


def check_sealed(data: bytes) -> None:
    check_records(sealed(data) if len(data) >= HEADER_BYTES else data)


def check_record_set(data: bytes) -> None:
    """Consumers read of several batches, each behind its length, what is read of each. Their checksums are right."""
    pieces, at = [], 0
    while at + 2 + HEADER_BYTES <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        pieces.append(sealed(data[at + 2 : at + 2 + max(size, HEADER_BYTES)]))
        at += 2 + max(size, HEADER_BYTES)
    expected = expected_rows(pieces)
    try:
        batch = read_record_set(pieces, decompress, start=-(1 << 63), max_uncompressed=UNCOMPRESSED_MAX)
    except InvalidRecordBatchError:
        assert expected is None
        return
    times = zip(batch.offsets.tolist(), batch.timestamps_ms.tolist(), strict=True)
    rows = zip(times, batch.keys(), batch.values(), strict=True)
    assert [(*row, batch.headers(i)) for i, row in enumerate(rows)] == expected
    aborted = [(producer, offset) for producer in range(3) for offset in (0, 5)]
    try:
        committed = read_record_set(pieces, decompress, aborted=aborted, committed_only=True)
    except InvalidRecordBatchError:  # the marker of a transaction
        return
    assert {*committed.offsets.tolist()} <= {*batch.offsets.tolist()}


def expected_rows(pieces: list[bytes]) -> list[tuple[Any, ...]] | None:
    """Return ((offset, timestamp), key, value, headers) of each record that is no marker; None: they are damaged."""
    rows, end = list[tuple[Any, ...]](), -(1 << 63)
    for piece in pieces:
        try:
            _, columns = read_batch(piece)
        except InvalidRecordBatchError:
            if not piece[22] & 0x20:  # a marker is not looked into, unless aborted transactions are left out
                return None
        base, delta = struct.unpack_from(">q", piece)[0], struct.unpack_from(">i", piece, 23)[0]
        if base < end or delta < 0 or base + delta >= (1 << 63) - 1:  # there is no offset behind the last one
            return None
        end = base + delta + 1
        if not piece[22] & 0x20:
            offsets = [base + number for number in columns.number.tolist()]
            times = zip(offsets, columns.timestamp.tolist(), strict=True)
            one = zip(times, columns.keys(), columns.values(), strict=True)
            rows += [(*row, columns.headers(i)) for i, row in enumerate(one)]
    return rows


def check_requests(data: bytes) -> None:
    """However a stream is cut, its requests are the same; the first size that lies ends it. The first byte says the cuts."""
    if not data:
        return
    step, stream, expected, at = data[0] + 1, data[1:], [], 0
    is_bad = False
    while at + 4 <= len(stream):
        size = struct.unpack_from(">i", stream, at)[0]
        is_bad = not 8 <= size <= REQUEST_MAX
        if is_bad or at + 4 + size > len(stream):
            break
        expected.append(stream[at + 4 : at + 4 + size])
        at += 4 + size
    parser, requests = RequestParser(max_request_bytes=REQUEST_MAX), list[memoryview]()
    for start in range(0, len(stream), step):
        wanted = parser.next_memory
        requests += parser.feed(stream[start : start + step])
        if parser.error is not None:
            break
        assert parser.memory <= max(wanted, parser.next_memory) <= max(2 * len(stream), 128 << 10)
    assert [bytes(request) for request in requests] == expected
    assert (parser.error is not None) == is_bad
    assert is_bad or parser.buffered == len(stream) - at


def check(data: bytes) -> None:
    if len(data) < 2:
        return
    number, rest = int.from_bytes(data[:2], "big"), data[2:]
    if number & 1 == 0:
        check_message((number >> 1) % len(MESSAGES), rest)
    else:
        (check_sealed, check_records, check_record_set, check_requests)[(number >> 1) & 3](rest)


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
    later = build_batch([b"x"] * 3, timestamps_ms=[7] * 3, base_offset=3)
    marker = end_marker(TransactionMarker(1, 0, 0, is_commit=False), 9)
    transaction = encode_batch(
        encode_records([b"t"], None, [8], None), 1, timestamp_ms=8, attributes=0x10, producer_id=1
    )
    pieces = [batch, later, bytes(stamped(transaction, 6, 1)), bytes(stamped(marker, 7, 1))]
    packed = [build_batch([b"v" * 99], timestamps_ms=[5], codec=codec) for codec in range(1, 5)]
    stream = b"\x20" + b"".join(
        len(data).to_bytes(4, "big") + data for data in found[:40] if 8 <= len(data) <= REQUEST_MAX
    )
    sets = b"".join(len(piece).to_bytes(2, "big") + piece for piece in pieces)
    produced = [b"\0\3" + data for data in (batch, *packed)]
    return [*found, b"\0\1" + batch, *produced, b"\0\5" + sets, b"\0\7" + stream]


def main() -> None:
    import atheris

    for function in (check_message, check_records, check_record_set, expected_rows, check_requests, check):
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
