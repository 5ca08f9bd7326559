"""Record batches: those of kafka-python and librdkafka are read, and ours by them; what lies is refused."""

from __future__ import annotations

import gzip
import socket
import struct
import tracemalloc
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from time import process_time
from typing import Any, NamedTuple

import lz4.frame
import pytest
import zstandard
from confluent_kafka import Consumer, Producer, TopicPartition

from pyreplog._native.kafka.record_batch import (
    HEADER_BYTES,
    ProducedBatch,
    check_batch,
    encode_batch,
    encode_records,
    stamp_batch,
    take_produced,
)
from pyreplog._native.kafka.record_set import read_record_set
from pyreplog._native.kafka.request_parser import RequestParser
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import InvalidArgumentError, InvalidRecordBatchError, MissingExtraError
from pyreplog.kafka.wire.codec import request_codec, response_codec
from pyreplog.kafka.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartitionProduceData,
    ProduceRequest,
    ProduceTopicProduceData,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.record_batches.batches import build_batch, read_batch
from pyreplog.record_batches.compression import CODECS, compress, decompress

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

Row = tuple[bytes | None, bytes | None, int, list[tuple[bytes, bytes | None]]]

TIME = 1_700_000_000_000
INT64_MAX = (1 << 63) - 1
RECORD_FROM = HEADER_BYTES


def draw(rng: Random, count: int) -> list[Row]:
    """Draw records with nulls, empty values and repeated names of headers."""
    texts = [None, b"", b"k", b"x" * 100, b"compressible " * 500]
    pairs: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"a", None), (b"", b""), ("grün".encode(), b"v" * 70)]
    return [
        (rng.choice(texts), rng.choice(texts), TIME + rng.randint(-5000, 5000), rng.sample(pairs, rng.randint(0, 4)))
        for _ in range(count)
    ]


def built(rows: list[Row], codec: int = 0, **settings: Any) -> bytes:
    keys, values, times, headers = zip(*rows, strict=True)
    return build_batch(values, keys=keys, timestamps_ms=times, headers=headers, codec=codec, **settings)


def taken(data: bytes, **settings: Any) -> ProducedBatch:
    settings = {"decompress": decompress, "max_uncompressed": 128 << 20, **settings}
    outcome = take_produced(data, **settings)
    assert isinstance(outcome, ProducedBatch), outcome
    return outcome


def rows_of(data: bytes) -> list[Row]:
    _, columns = read_batch(data)
    headers = [columns.headers(i) for i in range(len(columns))]
    assert columns.header_count.tolist() == [len(pairs) for pairs in headers]
    return list(zip(columns.keys(), columns.values(), columns.timestamp.tolist(), headers, strict=True))


# ---- kafka-python ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, CODECS["gzip"], CODECS["lz4"], CODECS["zstd"]])
def test_record_batches_of_kafka_python_are_read(codec: int, seed: int) -> None:
    rng = Random(f"{seed} {codec}")
    for count in (1, 2, 7, 300):
        rows = draw(rng, count)
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=codec, is_transactional=True, producer_id=1 << 40, producer_epoch=3,
            base_sequence=77, batch_size=1 << 30,
        )  # fmt: skip
        for number, (key, value, time, headers) in enumerate(rows):
            builder.append(number, time, key, value, [(name.decode(), content) for name, content in headers])
        data = bytes(builder.build())
        header = taken(data).header
        assert rows_of(data) == rows
        assert (header.codec, header.count, header.size) == (codec if header.codec else 0, count, len(data))
        assert header.transactional and not header.control and not header.log_append_time
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 40, 3, 77)
        times = [row[2] for row in rows]
        assert (header.base_timestamp, header.max_timestamp) == (times[0], max(times))


@pytest.mark.parametrize("codec", [0, CODECS["gzip"], CODECS["lz4"], CODECS["zstd"]])
def test_kafka_python_reads_our_record_batches(codec: int, seed: int) -> None:
    rng = Random(f"{seed} {codec}")
    for count in (1, 2, 7, 300):
        rows = draw(rng, count)
        batch = DefaultRecordBatch(built(rows, codec, base_offset=500, leader_epoch=9))
        assert batch.validate_crc() and (batch.base_offset, batch.leader_epoch, batch.last_offset) == (
            500,
            9,
            499 + count,
        )
        records = list(batch)
        assert [record.offset for record in records] == list(range(500, 500 + count))
        theirs = [
            (record.key, record.value, record.timestamp, [(name.encode(), value) for name, value in record.headers])
            for record in records
        ]
        assert theirs == rows


# ---- librdkafka ------------------------------------------------------------------------------------------------


@contextmanager
def mock_broker() -> Iterator[tuple[tuple[str, int], str]]:
    """A broker that librdkafka keeps in memory, within this process."""
    producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 200, "enable.idempotence": False, "log_level": 0})
    (broker,) = producer.list_topics(timeout=30).brokers.values()
    yield (broker.host, broker.port), f"{broker.host}:{broker.port}"
    producer.flush(30)


def ask(address: tuple[str, int], key: int, version: int, message: Any) -> Any:
    """Send one request over TCP; the decoded response."""
    body = request_codec(key, version).schema.encode(message)
    request = (
        struct.pack(">hhih", key, version, 1, 2)
        + b"me"
        + (b"\0" if request_codec(key, version).flexible else b"")
        + body
    )
    parser = RequestParser()
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        while not (responses := parser.feed(connection.recv(1 << 16))):
            pass
    codec = response_codec(key, version)
    return codec.schema.decode(bytes(responses[0]), start=5 if codec.flexible else 4)


@pytest.mark.parametrize("codec", CODECS)
def test_record_batches_of_librdkafka_are_read_and_ours_by_it(codec: str, seed: int) -> None:
    """Its producer sends them, and we fetch them; we produce ours, and its consumer reads them."""
    rows = draw(Random(f"{seed} {codec}"), 50)
    with mock_broker() as (address, servers):
        sender = Producer({"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 300, "log_level": 0})
        for key, value, time, headers in rows:
            pairs = [(name.decode(), content) for name, content in headers]
            sender.produce("theirs", value, key, partition=0, timestamp=time, headers=pairs)
        assert sender.flush(60) == 0
        got, codecs = [], set()
        while len(got) < len(rows):  # the sender may send several batches, and the broker gives some of them
            wanted = FetchPartition(fetch_offset=len(got), partition_max_bytes=1 << 20)
            request = FetchRequest(max_wait_ms=0, topics=[FetchTopic("theirs", partitions=[wanted])])
            data = bytes(ask(address, ApiKey.FETCH, 11, request).responses[0].partitions[0].records)
            assert data
            while data:
                header = check_batch(data)
                codecs.add(header.codec)
                got += rows_of(data[: header.size])
                data = data[header.size :]
        assert got == rows and CODECS[codec] in codecs <= {0, CODECS[codec]}

        partition = ProducePartitionProduceData(0, built(rows, CODECS[codec]))
        produce = ProduceRequest(acks=-1, timeout_ms=9000, topic_data=[ProduceTopicProduceData("theirs", [partition])])
        answer = ask(address, ApiKey.PRODUCE, 7, produce).responses[0].partition_responses[0]
        assert answer.error_code == 0
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "log_level": 0, "check.crcs": True})
        try:
            consumer.assign([TopicPartition("theirs", 0, len(rows))])
            messages = [message for message in (consumer.poll(30) for _ in rows) if message is not None]
        finally:
            consumer.close()
        theirs = [
            (
                message.key(),
                message.value(),
                message.timestamp()[1],
                [(n.encode(), v) for n, v in message.headers() or []],
            )
            for message in messages
        ]
        assert theirs == rows


# ---- what lies -------------------------------------------------------------------------------------------------


def sealed(data: bytes, at: int = 0, value: bytes = b"") -> bytes:
    """Put bytes into a batch, and give it its length and checksum."""
    changed = bytearray(data[:at] + value + data[at + len(value) :])
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


class Refusal(NamedTuple):
    """Code of an error and the reason."""

    code: int
    reason: str


def refused(data: bytes, **settings: Any) -> Refusal:
    settings = {"decompress": decompress, "max_uncompressed": 1 << 20, **settings}
    outcome = take_produced(data, **settings)
    assert isinstance(outcome, tuple), "the batch was taken"
    return Refusal(*outcome)


ONE = build_batch([b"value"], keys=[b"key"], timestamps_ms=[TIME], headers=[[(b"name", b"x")]])
TWO = build_batch([b"v", b"w"], timestamps_ms=[TIME, TIME + 5])


@pytest.mark.parametrize(
    ("at", "value", "code", "expected"),
    [
        (16, b"\0", 87, "magic 2"),
        (16, b"\1", 87, "magic 2"),
        (16, b"\3", 87, "magic 2"),
        (0, struct.pack(">q", 1), 87, "base offset"),
        (21, b"\0\x20", 87, "a control batch"),
        (21, b"\0\x40", 87, "the attributes of a producer"),
        (21, b"\0\x80", 87, "the attributes of a producer"),
        (21, b"\1\0", 87, "the attributes of a producer"),
        (21, b"\0\x08", 87, "the producer's time"),
        (21, b"\0\x10", 87, "a producer id"),
        (21, b"\0\5", 76, "a codec of 0 to 4"),
        (21, b"\0\7", 76, "a codec of 0 to 4"),
        (23, struct.pack(">i", 0), 87, "as many records as offsets"),
        (23, struct.pack(">i", 2), 87, "as many records as offsets"),
        (23, struct.pack(">i", -1), 87, "1 record or more"),
        (27, struct.pack(">q", -2), 32, "a timestamp of 64 bits that is not negative, or -1"),
        (27, struct.pack(">q", (1 << 63) - 1), 32, "fits into microseconds"),
        (43, struct.pack(">q", -2), 87, "a producer id"),
        (43, struct.pack(">qhi", 5, -1, 0), 87, "a sequence number and an epoch"),
        (43, struct.pack(">qhi", 5, 0, -1), 87, "a sequence number and an epoch"),
        (57, struct.pack(">i", 1), 87, "as many records as offsets"),
        (57, struct.pack(">i", -1), 87, "1 record or more"),
    ],
)  # fmt: skip
def test_a_record_batch_with_a_false_header_is_refused(at: int, value: bytes, code: int, expected: str) -> None:
    refusal = refused(sealed(TWO, at, value))
    assert refusal.code == code and expected in refusal.reason


def test_a_record_batch_with_a_false_count_is_refused() -> None:
    for count in (0, 3, 1 << 20, (1 << 31) - 1):
        assert refused(sealed(sealed(TWO, 57, struct.pack(">i", count)), 23, struct.pack(">i", count - 1))).code == 87
    refusal = refused(sealed(sealed(TWO, 57, struct.pack(">i", 1)), 23, struct.pack(">i", 0)))
    assert refusal.code == 87 and "count: the end of the batch behind its last record" in refusal.reason


def test_several_batches_are_refused() -> None:
    assert refused(ONE + ONE) == (87, f"expected one batch, found {len(ONE)} bytes behind it")
    assert refused(ONE + b"\0").code == 87


def test_every_prefix_and_every_bit() -> None:
    """What the checksum covers cannot change; magic and length are looked at; offset and epoch are the log's."""
    for size in range(len(ONE)):
        assert refused(ONE[:size]).code in (2, 87)
    for at in range(len(ONE)):
        for bit in range(8):
            changed = bytearray(ONE)
            changed[at] ^= 1 << bit
            if 12 <= at < 16:
                assert taken(bytes(changed)).header.leader_epoch != -1
            else:
                refused(bytes(changed))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"", "length"),
        (b"\x80", "length"),
        (b"\x0a" + bytes(6), "length"),
        (b"\x0e" + bytes(6), "length"),
        (b"\x01" + bytes(6), "length"),
        (b"\xff\xff\xff\xff\x0f" + bytes(6), "length"),
        (b"\xfe\xff\xff\xff\x0f" + bytes(6), "length"),
        (b"\x0c\0" + b"\x80" * 5, "timestamp"),
        (b"\x0c\0\0\2\1\1\0", "offset delta"),
        (b"\x0c\0\0\1\1\1\0", "offset delta"),
        (b"\x0c\0\0\0\3\1\0", "key"),
        (b"\x0c\0\0\0\6\1\0", "key"),
        (b"\x0c\0\0\0\1\3\0", "value"),
        (b"\x0c\0\0\0\1\4\0", "value"),
        (b"\x0c\0\0\0\1\1\1", "headers"),
        (b"\x0c\0\0\0\1\1\2", "headers"),
        (b"\x10\0\0\0\1\1\2\1\0", "headers"),
        (b"\x10\0\0\0\1\1\2\0\2", "headers"),
        (b"\x0e\0\0\0\1\1\0\0", "length: the end of the record"),
        (b"\x0c\0\0\0\1\1\0" + b"\0", "count"),
    ],
)  # fmt: skip
def test_a_record_batch_with_malformed_records_is_refused(record: bytes, expected: str) -> None:
    whole = encode_batch(b"\x0c\0\0\0\1\1\0", 1, base_timestamp=TIME, max_timestamp=TIME)
    assert taken(whole).header.count == 1
    for codec in (0, CODECS["gzip"]):
        data = encode_batch(compress(codec, record), 1, base_timestamp=TIME, max_timestamp=TIME, codec=codec)
        refusal = refused(data)
        assert refusal.code == (32 if expected == "timestamp" else 87)
        assert f"expected {expected}" in refusal.reason or (len(record) < 7 and "records in" in refusal.reason)


@pytest.mark.parametrize(
    ("record", "expected"),
    [(b"\x0c\0\0\0\6\1\0", "key"), (b"\x0c\0\0\0\1\4\0", "value"), (b"\x10\0\0\0\1\1\2\0\2", "headers")],
)
def test_a_record_takes_nothing_of_the_next_one(record: bytes, expected: str) -> None:
    behind = b"\x20\0\0\2\1\1\0" + bytes(20)
    refusal = refused(encode_batch(record + behind, 2, base_timestamp=TIME, max_timestamp=TIME))
    assert refusal.code == 87 and "record 0" in refusal.reason and f"expected {expected}" in refusal.reason


def test_headers_of_a_record_are_read_once_when_it_is_encoded() -> None:
    """A header may be any iterable of a name and a value, which may say something else the next time."""

    class Header:
        turn = 0

        def __iter__(self) -> Iterator[bytes]:
            self.turn += 1
            return iter((b"name", b"value %d" % self.turn))

    body = encode_records([b"v"], None, [TIME], [[Header()]])  # type: ignore[list-item]
    _, columns = read_batch(encode_batch(body, 1, base_timestamp=TIME, max_timestamp=TIME))
    assert columns.headers(0) == [(b"name", b"value 1")]


@pytest.mark.parametrize("first", [-2, -1, 0, 1])
def test_timestamps_too_far_apart_for_a_batch_are_refused(first: int) -> None:
    """A record has the distance from the first one, a number of 64 bits."""
    lowest, highest = max(first - INT64_MAX - 1, -INT64_MAX - 1), min(first + INT64_MAX, INT64_MAX)
    assert encode_records([b"v"] * 3, None, [first, lowest, highest], None)
    too_far = lowest - 1 if first > 0 else highest + 1
    if -INT64_MAX - 1 <= too_far <= INT64_MAX:
        with pytest.raises(InvalidArgumentError, match="between two of a batch"):
            encode_records([b"v"] * 2, None, [first, too_far], None)


def test_a_batch_that_ends_at_the_last_offset_is_refused() -> None:
    """There is no offset behind it, from which a consumer could go on."""
    batch = bytearray(build_batch([b"v"] * 2, timestamps_ms=[TIME] * 2))
    for last, is_valid in ((INT64_MAX - 1, True), (INT64_MAX, False)):
        struct.pack_into(">q", batch, 0, last - 1)  # outside of the checksum
        if is_valid:
            assert read_record_set([bytes(batch)], decompress).end == last + 1
            continue
        with pytest.raises(InvalidRecordBatchError, match="offsets"):
            read_record_set([bytes(batch)], decompress)


def test_lies_at_every_byte_of_the_records(seed: int) -> None:
    """With a right checksum. They are refused, or walked; columns stay within the body."""
    rng = Random(seed)
    for _ in range(20):
        data = built(draw(rng, rng.randint(1, 4)))
        for at in range(23, min(len(data), 400)):
            lie = rng.choice(
                [b"\xff", b"\x7f", b"\x80", b"\0", b"\xff\xff\xff\xff\x0f", b"\x80" * 10, rng.randbytes(2)]
            )
            changed = sealed(data[:at] + lie + data[at + len(lie) :])
            produced = take_produced(changed, decompress=decompress, max_uncompressed=1 << 20)
            if isinstance(produced, tuple):
                assert produced[0] in (2, 10, 32, 76, 87)
                continue
            header, columns = read_batch(bytes(produced.data))
            assert header.count == produced.header.count == len(columns)
            assert (
                len(columns.values()) == len(columns.keys()) == len([columns.headers(i) for i in range(len(columns))])
            )
            ends = columns.value_start + columns.value_size.clip(0)
            assert columns.value_start.min() >= 0 and ends.max() <= len(columns.body)


def test_timestamps_outside_of_the_limits() -> None:
    rows: list[Row] = [(None, b"v", time, []) for time in (TIME, TIME + 100, -1, TIME - 100)]
    data = built(rows)
    assert taken(data, oldest=TIME - 100, newest=TIME + 100).header.max_timestamp == TIME + 100
    inside = sealed(data, 27, struct.pack(">qq", TIME, TIME))  # the header alone does not tell
    code, reason = refused(inside, oldest=TIME - 99)
    assert code == 32 and "record 3" in reason
    code, reason = refused(inside, newest=TIME + 99)
    assert code == 32 and "record 1" in reason
    none = built([(None, b"v", -1, [])])
    assert taken(none, oldest=TIME, newest=TIME).header.max_timestamp == -1


@pytest.mark.parametrize("codec", [0, CODECS["gzip"]])
def test_the_greatest_timestamp_is_corrected(codec: int) -> None:
    """Offsets are looked up by it, and the client may say another one. Kafka corrects it as well."""
    data = build_batch([b"v", b"w"], timestamps_ms=[TIME, TIME + 5], codec=codec)
    produced = taken(sealed(data, 35, struct.pack(">q", 1)))
    assert produced.header.max_timestamp == TIME + 5
    assert bytes(produced.data) == data


def test_a_compacted_topic_needs_keys() -> None:
    body = encode_records([b"1", b"2", b"3"], [b"a", None, b""], [TIME] * 3, None)
    for codec in (0, CODECS["gzip"]):
        data = encode_batch(compress(codec, body), 3, base_timestamp=TIME, max_timestamp=TIME, codec=codec)
        assert taken(data).header.count == 3
        code, reason = refused(data, keys_required=True)
        assert code == 87 and "record 1 of the batch has no key" in reason
    data = build_batch([b"1", b"2"], keys=[b"", b"k"], timestamps_ms=[TIME] * 2)
    assert taken(data, keys_required=True).header.count == 2


def test_a_codec_that_is_not_installed_is_stored_unseen() -> None:
    """But a compacted topic refuses such a batch: it needs keys."""

    def missing(codec: int, data: memoryview, max_bytes: int) -> bytes:
        raise MissingExtraError("zstandard is not installed")

    data = build_batch([b"v"], keys=[b"k"], timestamps_ms=[TIME], codec=CODECS["zstd"])
    assert bytes(taken(data, decompress=missing).data) == data
    assert refused(data, decompress=missing, keys_required=True).code == 76


# ---- codecs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_compress_any_data_within_limits(codec: str, seed: int) -> None:
    rng = Random(seed)
    for data in (b"", b"x", bytes(1 << 20), rng.randbytes(100_000), b"abc" * 50_000):
        packed = compress(CODECS[codec], data)
        assert bytes(decompress(CODECS[codec], memoryview(packed), len(data))) == data
        if data:
            with pytest.raises(InvalidRecordBatchError, match=r"at most \d+ bytes"):
                decompress(CODECS[codec], packed, len(data) - 1)


def test_consecutive_compressed_streams_are_read_as_one() -> None:
    """gzip, lz4, zstd and snappy-java read them as one; a raw block of snappy has no head."""
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        number = CODECS[codec]
        assert (
            decompress(number, compress(number, b"a" * 50_000) + compress(number, b"b"), 50_001) == b"a" * 50_000 + b"b"
        )
        with pytest.raises(InvalidRecordBatchError):
            decompress(number, compress(number, b"a" * 50_000) + compress(number, b"b"), 50_000)
    raw = compress(CODECS["snappy"], b"abc")[20:]
    assert decompress(CODECS["snappy"], raw, 3) == b"abc"


BOMB = 256 << 20


def bombs() -> dict[str, bytes]:
    """Many zeros in little; a block that says it has a gibibyte."""
    gz, piece = zlib.compressobj(9, wbits=31), bytes(1 << 20)
    packed = b"".join(gz.compress(piece) for _ in range(BOMB >> 20)) + gz.flush()
    z = zstandard.ZstdCompressor().compressobj()
    lz = lz4.frame.LZ4FrameCompressor()
    return {
        "gzip": packed,
        "zstd": b"".join(z.compress(piece) for _ in range(BOMB >> 20)) + z.flush(),
        "lz4": lz.begin() + b"".join(lz.compress(piece) for _ in range(64)) + lz.flush(),
        "snappy": b"\x80\x80\x80\x80\x04" + bytes(100),
    }


def test_a_decompression_bomb_is_refused_in_bounded_memory() -> None:
    """Memory stays within the limit, and a step of the library."""
    for codec, data in bombs().items():
        batch = encode_batch(data, 1, base_timestamp=0, max_timestamp=0, codec=CODECS[codec])
        tracemalloc.start()
        refusal = refused(batch, max_uncompressed=8 << 20)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert refusal.code == 10 and peak < (24 << 20) + 2 * len(batch), codec


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_record_batch_with_damaged_compression_is_refused(codec: str, seed: int) -> None:
    rng = Random(f"{seed} {codec}")
    packed = compress(CODECS[codec], encode_records([b"v" * 1000], None, [TIME], None))
    for _ in range(200):
        changed = bytearray(packed)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        data = encode_batch(bytes(changed), 1, base_timestamp=TIME, max_timestamp=TIME, codec=CODECS[codec])
        outcome = take_produced(data, decompress=decompress, max_uncompressed=10_000)
        assert isinstance(outcome, ProducedBatch) or outcome[0] in (10, 32, 87)
    for size in range(len(packed)):
        data = encode_batch(packed[:size], 1, base_timestamp=TIME, max_timestamp=TIME, codec=CODECS[codec])
        assert refused(data).code == 87


@pytest.mark.parametrize("codec", ["gzip", "lz4"])
def test_streams_of_little_are_decompressed_in_linear_time(codec: str) -> None:
    """Eight times as many take about eight times as long, not 64 times."""
    number, one = CODECS[codec], compress(CODECS[codec], b"a")

    def seconds(count: int) -> float:
        data, took = one * count, []
        for _ in range(2):
            began = process_time()
            assert decompress(number, data, count) == b"a" * count
            took.append(process_time() - began)
        return min(took)

    assert seconds(64_000) < 16 * seconds(8_000) + 0.05


def test_gzip_of_the_standard_library() -> None:
    body = encode_records([b"v"], None, [TIME], None)
    data = encode_batch(gzip.compress(body), 1, base_timestamp=TIME, max_timestamp=TIME, codec=1)
    assert rows_of(data) == [(None, b"v", TIME, [])]


# ---- what a log sets -------------------------------------------------------------------------------------------


def test_offset_and_epoch_are_outside_of_the_checksum() -> None:
    data = bytearray(TWO)
    stamp_batch(data, 1 << 40, 12)
    header = check_batch(data)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 12)
    assert data[16:] == TWO[16:]


def test_a_stamped_batch_has_the_log_append_time() -> None:
    data = bytearray(TWO)
    stamp_batch(memoryview(data), 7, 1, log_append_time=TIME + 999)
    header, columns = read_batch(data)
    assert header.log_append_time and columns.timestamp.tolist() == [TIME + 999] * 2
    assert [record.timestamp for record in DefaultRecordBatch(bytes(data))] == [TIME + 999] * 2
    for short in (bytearray(60), bytearray(TWO[:-1])):
        with pytest.raises(InvalidArgumentError, match="data: expected a batch"):
            stamp_batch(short, 1, 1)
    with pytest.raises(BufferError):
        stamp_batch(TWO, 1, 1)


# ---- arguments -------------------------------------------------------------------------------------------------


def test_build_and_check_batch_refuse_invalid_arguments() -> None:
    with pytest.raises(InvalidArgumentError, match="expected records"):
        build_batch([], timestamps_ms=[])
    with pytest.raises(InvalidArgumentError, match="found 1, 1, 2 and 1"):
        build_batch([b"v"], timestamps_ms=[1, 2])
    for row in (
        [(None, "text", 1, [])],
        [(5, None, 1, [])],
        [(None, None, 1, [(b"a", "text")])],
        [(None, None, 1, [(None, b"")])],
    ):
        with pytest.raises(InvalidArgumentError):
            built(row)  # type: ignore[arg-type]
    with pytest.raises(InvalidRecordBatchError, match="a codec of 0 to 4, found 5"):
        build_batch([b"v"], timestamps_ms=[1], codec=5)
    with pytest.raises(InvalidArgumentError, match="start: expected 0 to"):
        check_batch(ONE, start=len(ONE) + 1)
    _, columns = read_batch(b"in front" + ONE + b"behind", start=8)
    assert columns.values() == [b"value"] and columns.headers(0) == [(b"name", b"x")]
    for i in (-1, 1):
        with pytest.raises(InvalidArgumentError, match="record: expected 0 to 0"):
            columns.headers(i)
