"""Messages of entries: what was encoded is what a batch shows, in every shape, and what a twin in plain Python reads."""

from __future__ import annotations

import contextlib
import gc
import pickle
import random
import sys
import threading
import weakref
import zlib
from itertools import pairwise

import mmh3
import numpy as np
import pytest

from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.log.record import NO_EVENT_TIME
from pyreplog._native.topic.message_encoder import Messages, compress_entry, encode_messages
from pyreplog._native.topic.messages import Message, MessageBatch, decode_messages
from pyreplog._native.topic.partitioning import key_hash
from pyreplog.errors import InvalidArgumentError, WrongTypeError
from tests.topic import twin
from tests.topic.entries import LEDGER, TIME, as_twin, decoded, encoded, records_of, some_messages
from tests.topic.twin import TwinMessage


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_the_twin_agrees_on_every_byte(count: int) -> None:
    rng = random.Random(count)
    for turn in range(40):
        messages = some_messages(rng, count, plain=turn == 0)
        producer = rng.choice((b"", b"p", b"producer", "erzähler".encode()))
        entry = encoded(messages, producer)
        assert entry == twin.encode(messages, producer)
        assert twin.decode(entry) == (producer, messages)
        batch = decoded([entry], [count])
        assert [as_twin(message) for message in batch] == messages
        assert batch.entry_producer == [producer]
        assert {message.producer for message in batch} == {producer}


def test_columns_are_what_the_messages_say() -> None:
    rng = random.Random(7)
    entries = [some_messages(rng, rng.randrange(1, 30)) for _ in range(20)]
    encodings = [encoded(messages, b"p%d" % i) for i, messages in enumerate(entries)]
    counts = [len(messages) for messages in entries]
    records = records_of(encodings, counts, first=5, size=1000, messages=33)
    batch = decode_messages(records, offset=10_000, entries=70, size=1 << 40)
    flat = [message for messages in entries for message in messages]
    assert len(batch) == len(flat) == sum(counts)
    assert batch.offset.tolist() == list(range(10_033, 10_033 + len(flat)))
    assert (batch.first, batch.end, batch.ledger) == (10_033, 10_033 + len(flat), LEDGER)
    assert batch.publish_time.tolist() == [TIME] * len(flat)
    assert batch.event_time.tolist() == [NO_EVENT_TIME if m.event_time is None else m.event_time for m in flat]
    assert batch.deliver_at.tolist() == [m.deliver_at for m in flat]
    assert batch.sequence.tolist() == [m.sequence for m in flat]
    assert batch.size.tolist() == [len(m.value) for m in flat]
    assert batch.key_size.tolist() == [-1 if m.key is None else len(m.key) for m in flat]
    assert batch.entry_index.tolist() == [i for i, count in enumerate(counts) for _ in range(count)]
    assert batch.entry_index.dtype == np.int32
    assert batch.values() == [m.value for m in flat] == [bytes(view) for view in batch.views()]
    assert batch.keys() == [m.key for m in flat]
    assert [batch.properties(i) for i in range(len(flat))] == [
        {name.decode(): value for name, value in m.properties} for m in flat
    ]
    assert batch.key_hash().tolist() == [mmh3.hash(m.key or b"", 0, signed=False) for m in flat]
    sizes = [len(entry) for entry in encodings]
    assert batch.entry_id.tolist() == list(range(5, 25))
    assert batch.entry_first.tolist() == [10_033 + sum(counts[:i]) for i in range(20)]
    assert batch.entry_count.tolist() == counts
    assert batch.entry_size.tolist() == sizes
    assert batch.entry_sequence.tolist() == [messages[-1].sequence for messages in entries]
    assert batch.entry_producer == [b"p%d" % i for i in range(20)]
    assert batch.entries_before.tolist() == list(range(75, 95))
    assert batch.bytes_before.tolist() == [(1 << 40) + 1000 + sum(sizes[:i]) for i in range(20)]
    assert (batch.entries, batch.first_entry, batch.last_entry, batch.stored_bytes) == (20, 5, 24, sum(sizes))
    assert not batch.offset.flags.writeable
    assert batch.offset is batch.offset


@pytest.mark.parametrize("chosen", [slice(None), slice(3, 40), slice(0, 0), slice(2, None, 3)])
def test_packed_columns_have_the_selected_messages(chosen: slice) -> None:
    rng = random.Random(8)
    messages = some_messages(rng, 60)
    batch = decoded([encoded(messages[:35]), encoded(messages[35:])], [35, 25]).select(np.arange(60)[chosen])
    for keys, wanted in ((False, [m.value for m in messages[chosen]]), (True, [m.key for m in messages[chosen]])):
        offsets, data = batch.packed(keys=keys)
        assert offsets.dtype == np.int64
        assert [bytes(data[a:b]) for a, b in pairwise(offsets)] == [v or b"" for v in wanted]
        assert len(data) == offsets[-1]


def test_a_message_knows_its_entry() -> None:
    first, second = encode_messages([b"a", b"bc"]), encode_messages([b"d", b"", b"ef"], first_sequence=7)
    batch = decoded([first, second], [2, 3])
    message = batch[3]
    assert (message.offset, message.ledger, message.entry, message.index) == (3, LEDGER, 1, 1)
    assert (message.entry_first, message.entry_count, message.entry_size) == (2, 3, len(second))
    assert (message.value, message.size, bytes(message.value_view), message.publish_time) == (b"", 0, b"", TIME)
    assert (message.sequence, message.key, message.event_time, message.deliver_at) == (8, None, None, None)
    assert (message.properties, message.producer, message.redelivered) == ({}, b"", 0)
    assert (batch[-1].value, batch[0].sequence) == (b"ef", None)
    message.redelivered = 3
    assert (message.redelivered, batch[3].redelivered) == (3, 0)
    assert bool(message)  # though its value is empty
    assert repr(message) == "Message(offset=3, key=None, size=0)"
    assert repr(batch) == "MessageBatch(5 messages of 2 entries, up to offset 5)"


def test_an_iterator_gives_kept_messages_and_reuses_the_others() -> None:
    batch = decoded([encode_messages([b"%d" % i for i in range(10)])], [10])
    kept = list(batch)
    assert [message.offset for message in kept] == list(range(10))
    seen = []
    for message in batch:
        assert message.redelivered == 0
        message.redelivered = 1
        seen.append((message.offset, message.value))
    assert seen == [(i, b"%d" % i) for i in range(10)]
    assert len({id(message) for message in batch}) == 2


def test_other_entries_are_one_message_each() -> None:
    entries = encode_entries(
        [b"one", b"", b"three"], [None, b"", b"key"], [None, -5, TIME], ledger=LEDGER, first=0, lac=-1, time=TIME
    )
    data = bytes(entries.view)
    batch_entry = encode_messages([b"x", b"y"], first_sequence=1)
    entries = encode_entries(
        [batch_entry], ledger=LEDGER, first=3, lac=-1, time=TIME + 1, ledger_bytes=entries.ledger_bytes,
        ledger_messages=entries.ledger_messages, messages=[2],
    )  # fmt: skip
    records = parse_entries(data + bytes(entries.view), ledger=LEDGER, first=0, last=9)
    batch = decode_messages(records, offset=100, entries=0, size=0)
    assert batch.offset.tolist() == [100, 101, 102, 103, 104]
    assert batch.values() == [b"one", b"", b"three", b"x", b"y"]
    assert batch.keys() == [None, b"", b"key", None, None]
    assert [message.event_time for message in batch] == [None, -5, TIME, None, None]
    assert [message.sequence for message in batch] == [None, None, None, 1, 2]
    assert batch.entry_count.tolist() == [1, 1, 1, 2]
    assert batch.entry_size.tolist() == [3, 0, 5, len(batch_entry)]
    assert batch.bytes_before.tolist() == [0, 3, 3, 8]
    assert (batch.properties(1), batch[1].producer, batch.entry_producer) == ({}, b"", [b""] * 4)
    assert batch.packed()[1].tobytes() == b"onethreexy"


def test_select_and_slice_share_the_memory() -> None:
    rng = random.Random(9)
    messages = some_messages(rng, 40)
    batch = decoded([encoded(messages[:15]), encoded(messages[15:])], [15, 25])
    some = batch.select(np.array([0, 3, 14, 15, 39]))
    assert [as_twin(m) for m in some] == [messages[i] for i in (0, 3, 14, 15, 39)]
    assert some.offset.tolist() == [0, 3, 14, 15, 39]
    assert some.entry_index.tolist() == [0, 0, 0, 1, 1]
    assert (some.first, some.end, some.entry_count.tolist()) == (0, 40, [15, 25])
    assert (some.entries, some.last_entry, some.stored_bytes) == (2, batch.last_entry, batch.stored_bytes)
    assert [each_batch.is_whole for each_batch in (batch, batch.slice(0, 40), batch.slice(0, 39), some)] == [
        True,
        True,
        False,
        False,
    ]
    part = some.slice(1, 4)
    assert (part.values(), part.first, part.end) == ([messages[i].value for i in (3, 14, 15)], 3, 40)
    assert part.select([2]).offset.tolist() == [15]
    empty = batch.select([])
    assert (len(empty), empty.first, empty.end, empty.values(), list(empty)) == (0, -1, 40, [], [])
    assert (empty.packed()[0].tolist(), empty.offset.tolist(), empty.key_hash().tolist()) == ([0], [], [])
    address = [np.frombuffer(view, np.uint8).ctypes.data for view in (batch[14].value_view, part[1].value_view)]
    assert address[0] == address[1]
    for bad in ([40], [-1]):
        with pytest.raises(IndexError, match="out of range"):
            batch.select(bad)
    for start, stop in ((-1, 2), (3, 2), (0, 41)):
        with pytest.raises(IndexError, match="out of range"):
            batch.slice(start, stop)
    for unordered in ([1, 1], [5, 4]):
        with pytest.raises(InvalidArgumentError, match="must ascend"):
            batch.select(unordered)
    for wrong in ([0.5], [[1]], [True]):
        with pytest.raises(WrongTypeError, match="indices"):
            batch.select(np.array(wrong))
    with pytest.raises(IndexError, match="message 40 out of range"):
        batch[40]
    with pytest.raises(IndexError):
        batch.properties(-41)


def test_a_batch_without_selected_entries_is_empty() -> None:
    records = records_of([b"x"], None).select(np.array([], np.int64))
    batch = decode_messages(records, offset=77, entries=1, size=2)
    assert (len(batch), batch.first, batch.end, batch.ledger, batch.entry_id.tolist()) == (0, -1, 77, -1, [])
    assert (batch.entries, batch.first_entry, batch.last_entry, batch.stored_bytes) == (0, -1, -1, 0)


def test_whether_any_entry_has_numbers_of_a_producer() -> None:
    named = encode_messages([b"a"], producer=b"p")
    unnamed = encode_messages([b"a"], sequences=[7])
    numbered = encode_messages([b"a"], sequences=[7], producer=b"p")
    first = encode_messages([b"a"], sequences=[0], producer=b"p")
    batches = [decoded(entries, [1] * len(entries)) for entries in ([named, unnamed], [named, numbered], [first])]
    assert [batch.is_numbered for batch in batches] == [False, True, True]


def test_messages_keep_their_bytes_alive() -> None:
    class Data(bytearray):
        """May be referred to weakly."""

    entries = encode_entries([encode_messages([b"value" * 100])], ledger=1, first=0, lac=-1, time=1, messages=[1])
    data = Data(entries.view)
    gone = weakref.ref(data)
    batch = decode_messages(parse_entries(data, ledger=1, first=0, last=0), offset=0, entries=0, size=0)
    view, message = batch[0].value_view, batch[0]
    del data, batch
    gc.collect()
    assert (bytes(view), message.value) == (b"value" * 100, b"value" * 100)
    del message
    assert gone() is not None
    view.release()
    del view
    gc.collect()
    assert gone() is None


def test_compressed_bodies_decode_to_the_messages() -> None:
    rng = random.Random(4)
    messages = [*some_messages(rng, 30), TwinMessage(b"again " * 500, sequence=1 << 41)]
    if messages[0].sequence < 0:
        messages[-1] = messages[-1]._replace(sequence=-1)
    plain = encoded(messages, b"somebody")
    packed = compress_entry(plain, 2, zlib.compress)
    assert len(packed) < len(plain)
    asked = []

    def decompress(codec: int, body: memoryview, size: int) -> bytearray:
        asked.append((codec, size))
        return bytearray(zlib.decompress(body))

    batch = decoded([plain, packed, packed], [31] * 3, decompress=decompress)
    assert [as_twin(message) for message in batch] == messages * 3
    assert batch.entry_size.tolist() == [len(plain), len(packed), len(packed)]
    assert batch.entry_producer == [b"somebody"] * 3
    assert asked == [(2, len(plain) - 40)] * 2
    assert twin.decode(packed, lambda _, body, __: zlib.decompress(body)) == (b"somebody", messages)
    last = list(batch)[-1]
    del batch
    gc.collect()
    assert last.value == messages[-1].value


def test_compress_entry_returns_an_incompressible_entry_unchanged() -> None:
    plain = encode_messages([random.Random(1).randbytes(100)])
    assert compress_entry(plain, 1, lambda body: bytes(body)) is plain
    assert compress_entry(plain, 1, zlib.compress) is plain
    for codec in (0, 3):
        with pytest.raises(InvalidArgumentError, match="codec: expected 1 to 2"):
            compress_entry(plain, codec, zlib.compress)
    packed = compress_entry(encode_messages([b"a" * 999]), 1, zlib.compress)
    for wrong in (packed, plain[:-1], plain[:31], b"", b"\2" + plain[1:]):
        with pytest.raises(InvalidArgumentError, match="expected a result of encode_messages"):
            compress_entry(wrong, 1, zlib.compress)


def test_key_hash_is_murmur3() -> None:
    rng = random.Random(2)
    for size in [*range(40), 1000]:
        key = rng.randbytes(size)
        assert key_hash(key) == key_hash(bytearray(key)) == mmh3.hash(key, 0, signed=False)
    with pytest.raises(WrongTypeError, match="key"):
        key_hash("text")  # type: ignore[arg-type]


def test_large_batches_release_the_gil_and_are_the_same() -> None:
    values = [b"%d" % i for i in range(70_000)]
    entry = encode_messages(values, values)
    batch = decoded([entry], [70_000])
    contents: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: contents.append(decoded([entry], [70_000]).values())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents == [values, values]
    assert batch.size.tolist() == [len(value) for value in values]
    assert batch.packed()[1].tobytes() == batch.packed(keys=True)[1].tobytes() == b"".join(values)


def test_messages_and_batches_cannot_be_constructed_or_pickled() -> None:
    batch = decoded([encode_messages([b"x"])], [1])
    for thing in (Message, MessageBatch):
        with pytest.raises(TypeError, match="made by"):
            thing()
    for each_batch in (batch, batch[0]):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(each_batch)
    for bad in ({"offset": -1}, {"entries": -1}, {"size": -1}):
        with pytest.raises(InvalidArgumentError, match="expected 0 or more"):
            decode_messages(records_of([b"x"], None), **{"offset": 0, "entries": 0, "size": 0, **bad})


def test_iteration_and_slices_leak_no_references() -> None:
    batch = decoded([encode_messages([b"x" * 10] * 10, [b"k"] * 10)], [10])
    before = sys.getrefcount(batch)
    for _ in range(100):
        list(batch)
        batch.slice(0, 5).values()
    assert sys.getrefcount(batch) == before


def test_messages_are_taken_once() -> None:
    """The columns of the first call have as many rows as its values."""
    messages = Messages([b"value"], properties=[{"a": "b"}])
    entry = messages.entries(messages_max=10, bytes_max=1000)
    with contextlib.suppress(TypeError):
        messages.__init__([b"other"] * 1000)  # type: ignore[misc]
    assert messages.count == 1
    assert messages.entries(messages_max=10, bytes_max=1000) == entry
