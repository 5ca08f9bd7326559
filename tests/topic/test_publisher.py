"""Publishing to a topic: order, outcomes, room and lingering, from threads, coroutines and callbacks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pyarrow
import pytest

from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    RecordTooLargeError,
    SequenceError,
    TopicFencedError,
    TopicFullError,
    WindowFullError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture
from tests.topic.publishing import ENTRY_BYTES_MAX, WAIT_S, Bench

FENCED = TopicFencedError("news", "somebody else owns it")


def test_a_lone_message_goes_at_once() -> None:
    bench = Bench(holds=False)
    assert [bench.publisher.publish(b"%d" % n) for n in range(3)] == [0, 1, 2]
    assert bench.ledgers.submitted == [[1], [1], [1]]
    assert bench.ledgers.values() == [b"0", b"1", b"2"]
    assert bench.timers.set == []


def test_messages_submitted_while_an_entry_is_in_flight_share_the_next_entry() -> None:
    bench = Bench()
    futures = [bench.submit(b"%d" % n) for n in range(5)]
    assert bench.ledgers.submitted == [[1]]
    bench.ledgers.confirm()
    assert bench.ledgers.submitted == [[1], [4]]
    assert [future.done() for future in futures] == [True] + [False] * 4
    bench.ledgers.confirm()
    assert [future.result() for future in futures] == [0, 1, 2, 3, 4]
    assert bench.ledgers.values() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_message_keeps_what_belongs_to_it() -> None:
    bench = Bench(holds=False)
    bench.publisher.publish(
        b"v",
        b"k",
        properties={"a": "1"},
        event_time=5,
        deliver_at=2_000_000_000_000_006,
        sequence=7,
        producer="erzähler",
    )
    message = bench.ledgers.messages()[0]
    assert (message.value, message.key, message.properties) == (b"v", b"k", {"a": b"1"})
    assert (message.event_time, message.deliver_at, message.sequence) == (5, 2_000_000_000_000_006, 7)
    assert message.producer == "erzähler".encode()


def test_a_batch_follows_the_messages_before_it() -> None:
    bench = Bench(batch_messages=2)
    single = [bench.submit(b"%d" % n) for n in range(2)]
    batch = bench.submit_batch([b"2", b"3", b"4"])
    last = bench.submit(b"5")
    assert bench.ledgers.submitted == [[1], [1], [2, 1]]
    bench.ledgers.confirm(3)
    bench.ledgers.confirm()
    assert [future.result() for future in single] == [0, 1]
    assert batch.result() == range(2, 5)
    assert last.result() == 5
    assert bench.ledgers.values() == [b"%d" % n for n in range(6)]


COLUMNS: list[Any] = [
    [b"00", b"11", b"22"],
    (b"00", bytearray(b"11"), memoryview(b"22")),
    (numpy.array([0, 2, 4, 6]), b"001122"),
    numpy.array([b"00", b"11", b"22"]),
    numpy.frombuffer(b"001122", numpy.uint8).reshape(3, 2),
    pyarrow.array([b"00", b"11", b"22"]),
    iter([b"00", b"11", b"22"]),
]


@pytest.mark.parametrize("values", COLUMNS, ids=lambda values: type(values).__name__)
def test_batches_come_in_any_shape(values: Any) -> None:
    bench = Bench(holds=False)
    assert bench.publisher.publish_batch(values) == range(3)
    assert bench.ledgers.values() == [b"00", b"11", b"22"]


def test_a_batch_keeps_what_belongs_to_its_messages() -> None:
    bench = Bench(holds=False, batch_messages=2)
    keys, properties = [b"a", None, b"c"], [None, {"x": b"1"}, {}]
    assert bench.publisher.publish_batch(
        [b"0", b"1", b"2"], keys, properties=properties, event_times=[1, None, 3], deliver_at=[0, 2_000_000_000_000_006, 0],
        sequences=[4, 5, 9], producer="p",
    ) == range(3)  # fmt: skip
    messages = bench.ledgers.messages()
    assert [message.key for message in messages] == keys
    assert [message.properties for message in messages] == [{}, {"x": b"1"}, {}]
    assert [message.event_time for message in messages] == [1, None, 3]
    assert [message.deliver_at for message in messages] == [None, 2_000_000_000_000_006, None]
    assert [message.sequence for message in messages] == [4, 5, 9]
    assert bench.publisher.publish_batch([]) == range(0)


def test_large_batches_are_cut_by_bytes() -> None:
    bench = Bench(holds=False, batch_bytes=1000)
    bench.publisher.publish_batch([bytes(400)] * 5 + [bytes(5000)])
    assert bench.ledgers.submitted == [[2, 2, 1, 1]]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_publisher_compresses_entries(compression: str) -> None:
    bench = Bench(holds=False, compression=compression)
    bench.publisher.publish(b"same " * 1000)
    bench.publisher.publish_batch([b"same " * 1000] * 3)
    assert sum(map(len, bench.ledgers.entries)) < 1000
    assert bench.ledgers.values() == [b"same " * 1000] * 4


# ---- what goes wrong -----------------------------------------------------------------------------------------------


def test_a_failure_is_that_of_all_messages_in_the_batch_and_no_others() -> None:
    bench = Bench()
    futures = [bench.submit(b"%d" % n) for n in range(3)]
    bench.ledgers.fail(TopicFullError("news", "no more ledgers"))
    batch = bench.submit_batch([b"3"])
    bench.ledgers.confirm()
    bench.ledgers.fail(FENCED)
    assert isinstance(futures[0].exception(), TopicFullError)
    assert [future.result() for future in futures[1:]] == [0, 1]
    assert batch.exception() is FENCED
    counts = bench.publisher.counts
    assert (counts.messages, counts.entries, counts.errors, counts.duplicates) == (2, 1, 2, 0)
    assert counts.bytes == sum(map(len, bench.ledgers.entries))
    assert bench.publisher.flush_async().done()


def test_submit_fails_when_the_ledgers_refuse_the_entry() -> None:
    bench = Bench()
    bench.ledgers.raises = ClosedError("the topic was closed")
    for future in (bench.submit(b"0"), bench.submit_batch([b"1"])):
        with pytest.raises(ClosedError):
            future.result(0)
    bench.ledgers.raises = None
    bench.submit(b"2")
    assert bench.ledgers.held == 1, "what failed does not hold up the next"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"value": "text"}, WrongTypeError),
        ({"value": bytes(ENTRY_BYTES_MAX)}, RecordTooLargeError),
        ({"value": b"", "properties": {"a": bytes(ENTRY_BYTES_MAX)}}, RecordTooLargeError),
        ({"value": b"", "sequence": "1"}, WrongTypeError),
        ({"value": b"", "sequence": True}, WrongTypeError),
        ({"value": b"", "sequence": -1}, InvalidArgumentError),
        ({"value": b"", "sequence": 1 << 62}, InvalidArgumentError),
        ({"value": b"", "producer": b"bytes"}, WrongTypeError),
        ({"value": b"", "producer": ""}, InvalidArgumentError),
        ({"value": b"", "producer": "a" * 201}, InvalidArgumentError),
    ],
)
def test_messages_that_cannot_be_are_refused(fields: dict[str, Any], error: type[Exception]) -> None:
    bench = Bench()
    with pytest.raises(error):
        bench.submit(**fields)
    assert bench.ledgers.held == bench.publisher.pending_messages == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"values": 5}, WrongTypeError),
        ({"values": ["text"]}, WrongTypeError),
        ({"values": [b"", bytes(ENTRY_BYTES_MAX)]}, RecordTooLargeError),
        ({"values": [b""], "keys": []}, InvalidArgumentError),
        ({"values": [b""] * 2, "sequences": [1]}, InvalidArgumentError),
        ({"values": [b""] * 2, "sequences": [2, 1]}, SequenceError),
        ({"values": [b""] * 2, "sequences": [2, 2]}, SequenceError),
        ({"values": [b""] * 2, "sequences": [0.5, 1]}, WrongTypeError),
        ({"values": [b""] * 2, "sequences": [-1, 1]}, InvalidArgumentError),
        ({"values": [b""] * 2, "sequences": numpy.array([1, 1 << 63], numpy.uint64)}, InvalidArgumentError),
    ],
)
def test_batches_that_cannot_be_are_refused(fields: dict[str, Any], error: type[Exception]) -> None:
    bench = Bench()
    with pytest.raises(error):
        bench.submit_batch(**fields)
    assert bench.ledgers.held == bench.publisher.pending_messages == 0
    bench.submit_batch([b"good"])
    assert bench.ledgers.held == 1, "what was refused does not hold up the next"


# ---- lingering -----------------------------------------------------------------------------------------------------


def test_messages_linger_until_the_first_is_due() -> None:
    bench = Bench(linger_ms=5)
    futures = [bench.submit(b"0"), bench.submit(b"1")]
    assert [seconds for seconds, _ in bench.timers.set] == [0.005]
    bench.clock.advance(5000)
    bench.timers.fire()
    assert bench.ledgers.submitted == [[2]]
    bench.ledgers.confirm()
    assert [future.result() for future in futures] == [0, 1]
    assert bench.timers.set == [], "nothing lingers: no timer"


def test_a_timer_does_not_shorten_the_time_of_others() -> None:
    bench = Bench(linger_ms=5, batch_messages=2)
    bench.submit(b"0")
    bench.clock.advance(3000)
    bench.submit(b"1")
    assert bench.ledgers.submitted == [[2]], "full"
    bench.submit(b"2")
    bench.clock.advance(2000)
    bench.timers.fire()
    assert bench.ledgers.submitted == [[2]]
    assert [seconds for seconds, _ in bench.timers.set] == [0.003]
    bench.clock.advance(3000)
    bench.timers.fire()
    assert bench.ledgers.submitted == [[2], [1]]


def test_flush_waits_for_no_time() -> None:
    bench = Bench(linger_ms=5)
    bench.submit(b"0")
    flushed = bench.publisher.flush_async()
    assert bench.ledgers.submitted == [[1]] and not flushed.done()
    bench.ledgers.confirm()
    assert flushed.done()
    bench.timers.fire()


class Interrupted:
    """A lock. `call` runs when the lock is acquired next, as if another thread came first."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.call: Callable[[], object] | None = None

    def __enter__(self) -> bool:
        call, self.call = self.call, None
        if call is not None:
            call()
        return self._lock.__enter__()

    def __exit__(self, *ending: Any) -> None:
        self._lock.release()


def test_flush_waits_for_messages_submitted_while_an_earlier_flush_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    sequencer = bench.publisher._sequencer
    lock = Interrupted(sequencer._lock)
    monkeypatch.setattr(sequencer, "_lock", lock)
    bench.submit(b"0")
    first, later = bench.publisher.flush_async(), list[AppendFuture[None]]()

    def meanwhile() -> None:
        bench.submit(b"1")
        later.append(bench.publisher.flush_async())

    tell = sequencer._complete_flushes

    def tell_later() -> None:
        monkeypatch.setattr(sequencer, "_complete_flushes", tell)
        lock.call = meanwhile
        tell()

    monkeypatch.setattr(sequencer, "_complete_flushes", tell_later)
    bench.ledgers.confirm()
    assert not later[0].done(), "1 has no outcome yet"
    bench.ledgers.confirm()
    assert first.done() and later[0].done()


def test_stop_fails_messages_that_still_linger() -> None:
    bench = Bench(linger_ms=5)
    sent = bench.submit_batch([b"0"])
    future, flushed = bench.submit(b"1"), bench.publisher.flush_async()
    left = bench.submit(b"2")
    bench.publisher.stop(ClosedError("the topic was closed"))
    assert isinstance(left.exception(0), ClosedError)
    with pytest.raises(ClosedError):
        bench.submit(b"3")
    with pytest.raises(ClosedError):
        bench.submit_batch([b"3"])
    assert not flushed.done()
    bench.ledgers.confirm(2)
    assert (sent.result(0), future.result(0)) == (range(1), 1)
    assert flushed.done()


# ---- room ----------------------------------------------------------------------------------------------------------


def test_threads_wait_for_room() -> None:
    bench = Bench(window_bytes=1000)
    bench.submit_batch([bytes(1000)])
    thread = threading.Thread(target=bench.submit, args=(b"next",))
    thread.start()
    assert bench.timers.waits.acquire(timeout=WAIT_S)
    assert bench.publisher.pending_messages == 1
    bench.ledgers.confirm()
    thread.join(WAIT_S)
    assert bench.ledgers.submitted == [[1], [1]]


def test_closed_ledgers_have_no_room_and_a_stopped_publisher_keeps_nobody_waiting() -> None:
    bench = Bench(window_bytes=1000)
    bench.submit_batch([bytes(1000)])
    assert not bench.publisher.has_room
    bench.ledgers.closed_with = ClosedError("the ledgers were closed")
    with pytest.raises(ClosedError, match="the ledgers were closed"):
        _ = bench.publisher.has_room
    bench.publisher.stop(ClosedError("the topic was closed"))
    assert bench.publisher.has_room


def test_threads_wait_for_room_of_the_ledgers() -> None:
    bench = Bench()
    bench.ledgers.is_full = True
    thread = threading.Thread(target=bench.submit, args=(b"next",))
    thread.start()
    assert bench.timers.waits.acquire(timeout=WAIT_S)
    assert bench.ledgers.held == 0
    bench.ledgers.drain()
    thread.join(WAIT_S)
    assert bench.ledgers.held == 1


def test_coroutines_go_on_to_twice_the_window() -> None:
    bench = Bench(window_bytes=1000)

    async def go() -> None:
        bench.submit_batch([bytes(1000)])
        bench.submit_batch([bytes(999)])
        bench.submit(b"1")
        with pytest.raises(WindowFullError, match="room"):
            bench.submit(b"2")
        room = bench.publisher.room()
        assert not room.done()
        bench.ledgers.confirm(2)
        await room
        bench.submit(b"3")

    asyncio.run(go())
    assert bench.timers.waits.acquire(blocking=False) is False, "nobody has blocked"


def test_callbacks_publish_but_do_not_wait() -> None:
    bench = Bench()
    append_futures: list[AppendFuture[int]] = []

    def publish(_: AppendFuture[int]) -> None:
        append_futures.append(bench.submit(b"2"))
        with pytest.raises(InvalidArgumentError, match="callback"):  # it would wait for itself
            bench.publisher.publish(b"3")
        append_futures.append(bench.submit(b"4"))

    bench.submit(b"0").add_done_callback(publish)
    bench.ledgers.holds = False
    bench.submit_batch([b"1"])  # the first message is confirmed while the second one is submitted
    bench.ledgers.confirm()
    assert [future.result(0) for future in append_futures] == [2, 3]
    assert bench.ledgers.values() == [b"0", b"1", b"2", b"4"]


def test_threads_and_coroutines_share_a_publisher() -> None:
    bench = Bench(holds=False, batch_messages=7)
    offsets: dict[int, bytes] = {}

    def publish(who: int) -> None:
        for n in range(100):
            value = b"%d/%d" % (who, n)
            offsets[bench.publisher.publish(value)] = value

    async def submit(who: int) -> None:
        futures = {n: bench.submit(b"%d/%d" % (who, n)) for n in range(100)}
        for n, future in futures.items():
            offsets[await future] = b"%d/%d" % (who, n)

    threads = [threading.Thread(target=publish, args=(who,)) for who in range(3)]
    threads.append(threading.Thread(target=lambda: asyncio.run(submit(3))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    values = bench.ledgers.values()
    assert offsets == dict(enumerate(values))
    for who in range(4):
        assert [value for value in values if value.startswith(b"%d/" % who)] == [
            b"%d/%d" % (who, n) for n in range(100)
        ]
    assert bench.publisher.pending_messages == bench.publisher.pending_bytes == 0
