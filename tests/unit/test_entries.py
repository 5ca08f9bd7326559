"""Entries as bytes: what is encoded is what a reader of FORMAT.md finds; what is not intact is refused with its offset."""

from __future__ import annotations

import mmap
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.ledger_log.entries import CONTROL, encode_control, encode_entries, merge_entries, parse_entries
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, RecordTooLargeError, WrongTypeError
from tests import twin
from tests.ledgers import control_of, record_of, records_of

SEGMENT = twin.TwinSegment(bytes(16), 0, 1 << 16, -1, 0)


def in_segment(records: bytes) -> list[twin.TwinRecord]:
    """The records as the twin reads them: encoded ones carry no stamp, which a log writes in."""
    actual_records, at = [], 0
    while at < len(records):
        stamped = records[:at] + records[at : at + 8] + SEGMENT.stamp.to_bytes(4, "little") + records[at + 12 :]
        assert records[at + 8 : at + 12] == bytes(4)
        record, stride = twin.read_record(stamped, at, SEGMENT)
        assert record is not None
        actual_records.append(record)
        at += stride
    return actual_records


def test_the_twin_reads_what_was_encoded() -> None:
    rng = random.Random(3)
    values = [rng.randbytes(rng.choice((0, 1, 7, 8, 9, 300))) for _ in range(50)]
    keys = [rng.choice((None, b"", rng.randbytes(9))) for _ in values]
    times = [rng.choice((None, rng.randrange(-(1 << 40), 1 << 60))) for _ in values]
    entries = encode_entries(
        values, keys, times, ledger=(1 << 62) - 1, first=77, lac=70, time=12345, ledger_bytes=1000, ledger_messages=77
    )
    actual_in_segment = in_segment(bytes(entries.view))
    assert [(r.kind, r.ledger, r.entry, r.synced, r.time, r.key, r.value) for r in actual_in_segment] == [
        (1, (1 << 62) - 1, 77 + i, 70, 12345, key, value)
        for i, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    total = 1000
    for i, (record, value, time) in enumerate(zip(actual_in_segment, values, times, strict=True)):
        total += len(value)
        assert (record.ledger_bytes, record.ledger_messages) == (total, 78 + i)
        assert record.attributes == (() if time is None else ((1, time.to_bytes(8, "little", signed=True)),))
    assert (entries.ledger, entries.first, entries.last, len(entries)) == ((1 << 62) - 1, 77, 126, 50)
    assert (entries.ledger_bytes, entries.ledger_messages, entries.nbytes) == (total, 127, len(entries.view))
    assert [*entries.offsets] == [record.position for record in actual_in_segment] + [entries.nbytes]


def test_attributes_of_entries_are_read_by_the_twin() -> None:
    attributes = [b"\x05\x03\x00abc", None, b"\x02\x00\x00\x05\x01\x00x", b""]
    made = encode_entries([b"value"] * 4, ledger=1, first=0, lac=-1, time=5, attributes=attributes)
    assert [(record.attributes, record.value) for record in in_segment(bytes(made.view))] == [
        (((5, b"abc"),), b"value"), ((), b"value"), (((2, b""), (5, b"x")), b"value"), ((), b"value")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("attributes", "error", "says"),
    [
        ([b"\x05\x00\x00"], InvalidArgumentError, "expected 2, one per value, found 1"),
        ([b"\x05\x01\x00", None], InvalidArgumentError, "ascending by tag"),
        ([b"\x05\x00", None], InvalidArgumentError, "ascending by tag"),
        ([b"\x05\x00\x00\x02\x00\x00", None], InvalidArgumentError, "ascending by tag"),
        ([bytearray(b"\x05\x00\x00"), None], WrongTypeError, "expected bytes, found bytearray"),
        ([b"\x05\xfd\xff" + bytes(0xFFFD), None], RecordTooLargeError, "at most 65535 bytes"),
    ],
)
def test_malformed_attributes_are_refused(attributes: list[bytes], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        encode_entries([b"a", b"b"], ledger=1, first=0, lac=-1, time=5, attributes=attributes)


def test_attributes_take_the_place_of_event_times() -> None:
    with pytest.raises(InvalidArgumentError, match="event times"):
        encode_entries([b"a"], None, [5], ledger=1, first=0, lac=-1, time=5, attributes=[None])


def test_large_jobs_are_the_same_bytes() -> None:
    values = [b"%d" % n * 5000 for n in range(40)]
    whole = encode_entries(values, ledger=1, first=0, lac=-1, time=9)
    single = [encode_entries([v], ledger=1, first=i, lac=-1, time=9, ledger_bytes=sum(map(len, values[:i])), ledger_messages=i)
              for i, v in enumerate(values)]  # fmt: skip
    assert bytes(whole.view) == b"".join(bytes(sample.view) for sample in single)


def test_control_records_are_encoded_beyond_all_entries() -> None:
    (record,) = in_segment(encode_control(5, 2, b"fence", lac=8, time=3))
    assert (record.kind, record.ledger, record.entry, record.synced, record.value) == (3, 5, 2, 8, b"fence")
    assert CONTROL == 1 << 62


def test_encoding_no_entries_gives_an_empty_batch() -> None:
    entries = encode_entries([], ledger=0, first=0, lac=-1, time=0, ledger_bytes=5)
    assert (len(entries), entries.nbytes, bytes(entries.view), entries.last, entries.ledger_bytes) == (0, 0, b"", -1, 5)
    assert len(parse_entries(b"", ledger=0, first=0, last=9)) == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"ledger": -1}, InvalidArgumentError),
        ({"ledger": 1 << 62}, InvalidArgumentError),
        ({"first": -1}, InvalidArgumentError),
        ({"first": (1 << 63) - 1}, InvalidArgumentError),
        ({"lac": -2}, InvalidArgumentError),
        ({"values": ["text"]}, WrongTypeError),
        ({"keys": [b"k", b"k"]}, InvalidArgumentError),
        ({"keys": [bytes(65536)]}, RecordTooLargeError),
        ({"size_max": 71}, RecordTooLargeError),
    ],
)
def test_encode_entries_refuses_invalid_arguments(arguments: dict, error: type[Exception]) -> None:
    good = {"values": [b"12345678"], "ledger": 0, "first": 0, "lac": -1, "time": 0, "size_max": 72}
    encode_entries(**good)
    with pytest.raises(error):
        encode_entries(**good | arguments)


@pytest.mark.parametrize(
    ("ledger", "code", "lac"), [(-1, 0, 0), (1 << 62, 0, 0), (0, -1, 0), (0, (1 << 63) - 1, 0), (0, 0, -2)]
)
def test_encode_control_refuses_invalid_arguments(ledger: int, code: int, lac: int) -> None:
    with pytest.raises(InvalidArgumentError):
        encode_control(ledger, code, b"", lac=lac, time=0)


def test_parsed_entries_have_columns() -> None:
    batch = parse_entries(records_of(4, 3, 4, 9), ledger=4, first=3, last=9)
    assert batch.entry.tolist() == [3, 4, 9]
    assert [record.raw for record in batch] == [record_of(4, n) for n in (3, 4, 9)]
    assert [record.ledger for record in batch] == [4, 4, 4]
    assert batch.next_position == len(records_of(4, 3, 4, 9))


@pytest.mark.parametrize(
    "second",
    [
        record_of(5, 4),  # another ledger's
        record_of(4, 3),  # twice
        record_of(4, 2),  # not ascending
        record_of(4, 10),  # beyond
        control_of(4, 4, b""),
        record_of(4, 4)[:-8],
        record_of(4, 4)[:40],
        b"\0" * 64,
    ],
)
def test_a_record_that_was_not_asked_for_ends_the_batch(second: bytes) -> None:
    first = record_of(4, 3)
    batch = parse_entries(first + second, ledger=4, first=3, last=9)
    assert (len(batch), batch.next_position) == (1, len(first))
    with pytest.raises(InvalidRecordsError) as caught:
        parse_entries(second, ledger=4, first=4, last=9)
    assert caught.value.offset == 0
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_every_flipped_bit_but_the_stamps_is_noticed() -> None:
    record = record_of(4, 3)
    for at in range(len(record)):
        for bit in range(8):
            flipped = bytearray(record)
            flipped[at] ^= 1 << bit
            if 8 <= at < 12:
                assert len(parse_entries(flipped, ledger=4, first=0, last=9)) == 1
            else:
                with pytest.raises(InvalidRecordsError):
                    parse_entries(flipped, ledger=4, first=0, last=9)


def test_entries_and_batches_refuse_pickling() -> None:
    entries = encode_entries([b"v"], ledger=1, first=0, lac=-1, time=9)
    with pytest.raises(TypeError):
        pickle.dumps(entries)
    with pytest.raises(TypeError):
        type(entries)()
    view = entries.view
    del entries
    assert len(parse_entries(view, ledger=1, first=0, last=0)) == 1


# ---- merging ---------------------------------------------------------------------------------------------------


def stripes_of(first: int, count: int, step: int) -> list[bytes]:
    """Entries, dealt out to `step` buffers in turn, as the stripes of a ledger are."""
    values = [b"%d" % entry * 3 for entry in range(first, first + count)]
    whole = encode_entries(values, ledger=7, first=first, lac=-1, time=1)
    raws = [bytes(record.raw) for record in parse_entries(whole.view, ledger=7, first=first, last=first + count)]
    return [b"".join(raws[start::step]) for start in range(step)]


@given(st.integers(0, 60), st.integers(1, 5), st.integers(-1, 70))
def test_stripes_are_merged_in_order(count: int, step: int, last: int) -> None:
    batch = merge_entries(list(stripes_of(3, count, step)), last=last)
    expected = [entry for entry in range(3, 3 + count) if entry <= last]
    assert batch.entry.tolist() == expected
    assert batch.values() == [b"%d" % entry * 3 for entry in expected]
    again = parse_entries(batch.buffer, ledger=7, first=0, last=1 << 40)
    assert again.entry.tolist() == expected


def test_an_entry_in_several_buffers_is_taken_once() -> None:
    first, second = stripes_of(0, 10, 1)[0], stripes_of(4, 10, 1)[0]
    assert merge_entries([first, second, first], last=100).entry.tolist() == list(range(14))
    assert merge_entries([], last=100).entry.tolist() == []
    assert merge_entries([b"", second], last=5).entry.tolist() == [4, 5]


def test_merging_does_not_read_behind_a_record_that_was_cut() -> None:
    whole = stripes_of(0, 3, 1)[0]
    for cut in range(0, len(whole), 8):
        assert merge_entries([whole[:cut]], last=100).entry.tolist() == list(range(cut // (len(whole) // 3)))


def test_a_merged_batch_outlives_its_parts_and_holds_them() -> None:
    parts = [bytearray(part) for part in stripes_of(0, 20, 4)]
    batch = merge_entries(list(parts), last=100)
    for part in parts:
        with pytest.raises(BufferError):
            part.clear()
    del parts
    assert batch[7].value == b"777"
    assert merge_entries([batch.buffer], last=3).buffer.nbytes == 4 * (batch.buffer.nbytes // 20)
    few = batch.select(np.array([2, 5, 6]))
    assert few.values() == [b"222", b"555", b"666"]
    assert parse_entries(few.buffer, ledger=7, first=0, last=99).entry.tolist() == [2, 5, 6]


def test_parts_that_lie_far_from_each_other_are_copied(tmp_path: Path) -> None:
    """Offsets have 32 bits."""
    first, second = stripes_of(0, 9, 2)
    with (tmp_path / "sparse").open("w+b") as file:
        file.truncate(5 << 30)
        with mmap.mmap(file.fileno(), 5 << 30) as space:
            space[: len(first)] = first
            space[-len(second) :] = second
            view = memoryview(space)
            batch = merge_entries([view[: len(first)], view[-len(second) :]], last=7)
            view.release()
    assert batch.values() == [b"%d" % entry * 3 for entry in range(8)]
    assert parse_entries(batch.buffer, ledger=7, first=0, last=9).entry.tolist() == list(range(8))
