"""Single entries are gathered into batches."""

from __future__ import annotations

import numpy
import pytest

from pyreplog._native.ledger.staging import STAGE_BYTES, Staging
from pyreplog.errors import InvalidArgumentError, RecordTooLargeError, WrongTypeError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.ledger.protocol.staging import Entry, columns, outcomes

SIZE_MAX = 1 << 16


def entry(value: bytes = b"value", key: bytes | None = None, event_time: int | None = None) -> Entry:
    return Entry.of(value, key, event_time, size_max=SIZE_MAX)


def test_a_lone_entry_does_not_wait() -> None:
    staging = Staging()
    assert staging.add(entry())
    assert len(staging.take()) == 1


def test_company_of_a_batch_on_its_way_goes_together() -> None:
    staging = Staging()
    staging.add(entry(b"0"))
    staging.take()
    assert [staging.add(entry(b"%d" % n)) for n in range(1, 4)] == [False] * 3
    assert staging.landed()
    assert [item.value for item in staging.take()] == [b"1", b"2", b"3"]
    assert not staging.landed()


def test_a_lone_entry_holds_up_others_until_it_has_landed() -> None:
    staging = Staging()
    assert staging.leave()
    assert not staging.leave() and not staging.add(entry())
    assert staging.landed()
    assert not staging.leave(), "another waits: it is first"
    assert len(staging.take()) == 1


def test_a_batch_that_lands_has_those_that_wait_sent() -> None:
    sent: list[int] = []
    staging = Staging(lambda: sent.append(len(staging.take())))
    ids: AppendFuture[range] = AppendFuture(range(1))
    assert staging.leave()
    ids.add_done_callback(staging)
    assert not staging.add(entry()) and not staging.add(entry())
    set_result(ids)
    assert sent == [2]
    staging(ids)  # that batch has landed, so that no entry waits for it
    assert sent == [2] and staging.leave()


def test_taking_nothing_is_no_batch() -> None:
    staging = Staging()
    assert staging.take() == []
    assert staging.add(entry()), "nothing is on its way: it does not wait"


def test_many_bytes_do_not_wait() -> None:
    staging = Staging()
    staging.add(entry())
    staging.take()
    size = 1 << 14
    waited = [staging.add(entry(bytes(size))) for _ in range(STAGE_BYTES // size)]
    assert waited == [False] * (len(waited) - 1) + [True]


@pytest.mark.parametrize(
    ("value", "key", "event_time", "error"),
    [
        ("text", None, None, WrongTypeError),
        (None, None, None, WrongTypeError),
        (b"", "text", None, WrongTypeError),
        (b"", None, 1.5, WrongTypeError),
        (b"", None, 1 << 80, InvalidArgumentError),
        (memoryview(b"abcdef")[::2], None, None, WrongTypeError),
        (bytes(SIZE_MAX), None, None, RecordTooLargeError),
        (b"", bytes(65536), None, RecordTooLargeError),
        (bytes(SIZE_MAX - 1000), bytes(1000), None, RecordTooLargeError),
    ],
)
def test_entry_that_cannot_be_encoded_is_refused_at_once(
    value: object, key: object, event_time: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Entry.of(value, key, event_time, size_max=SIZE_MAX)  # type: ignore[arg-type]


def test_entry_copies_mutable_arguments() -> None:
    value = bytearray(b"before")
    entry = Entry.of(value, memoryview(value), 5, size_max=SIZE_MAX)
    value[:] = b"after!"
    assert entry[:3] == (b"before", b"before", 5)
    assert Entry.of(numpy.arange(3, dtype="<i4"), None, None, size_max=SIZE_MAX).value == b"\0\0\0\0\1\0\0\0\2\0\0\0"
    largest = SIZE_MAX - 128  # the encoder counts the bytes from this size on
    assert len(Entry.of(bytes(largest + 8), None, None, size_max=SIZE_MAX).value) == largest + 8


def test_unused_columns_are_left_out() -> None:
    assert columns([entry(b"a"), entry(b"b")]) == ([b"a", b"b"], None, None)
    assert columns([entry(b"a", b"k"), entry(b"b", None, 3)]) == ([b"a", b"b"], [b"k", None], [None, 3])


def test_outcomes_of_a_batch_are_those_of_its_entries() -> None:
    entries = [entry(), entry()]
    ids = AppendFuture(range(5, 7))
    set_result(ids)
    for future, error in outcomes(entries, ids):
        assert error is None
        set_result(future)
    assert [entry.future.result(0) for entry in entries] == [5, 6]
    failed: AppendFuture[range] = AppendFuture()
    set_exception(failed, error := ValueError("no"))
    assert outcomes(entries, failed) == [(entry.future, error) for entry in entries]
