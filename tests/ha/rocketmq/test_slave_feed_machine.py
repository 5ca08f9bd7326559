"""The master's state machine: which reports of a slave are accepted. Sessions as bytes are in test_transcripts.py."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.errors import InvalidMessageError, PeerTimeoutError, TrimmedError
from pyreplog.rocketmq.effects import FRAME_BYTES, Close, Effect, SendFrame, SlaveAcked, Timeouts
from pyreplog.rocketmq.slave_feed_machine import SlaveFeedMachine

FILE = 1 << 20
LOTS = 1 << 40


def words(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}q", *numbers)


def feeding(first: int | None = None, end: int = 3 * FILE + 1000, start: int = 0) -> SlaveFeedMachine:
    slave_feed_machine = SlaveFeedMachine(0, FILE)
    if first is not None:
        slave_feed_machine.received(words(first), 0, start, end)
    return slave_feed_machine


def sends(machine: SlaveFeedMachine, end: int, start: int = 0) -> list[Effect]:
    effects: list[Effect] = []
    while (effect := machine.more(0, start, end)) is not None:
        effects.append(effect)
    return effects


def refused(machine: SlaveFeedMachine, data: bytes, end: int, start: int = 0) -> str:
    """Return the reason of the refusal; check that no effect follows."""
    *before, last = machine.received(data, 1, start, end)
    assert isinstance(last, Close)
    assert all(isinstance(effect, SlaveAcked) for effect in before)
    assert machine.more(1, start, end) is None
    assert machine.tick(LOTS, idle=True) == []
    assert machine.error is last.error
    return str(last.error)


def test_nothing_is_sent_before_the_first_report() -> None:
    machine = feeding()
    assert sends(machine, FILE) == []
    assert machine.tick(19_999_999, idle=True) == []


@pytest.mark.parametrize(
    ("end", "first"), [(0, 0), (1, 0), (FILE - 1, 0), (FILE, FILE), (3 * FILE + 5, 3 * FILE), (4 * FILE, 4 * FILE)]
)
def test_a_report_of_0_asks_for_the_last_file(end: int, first: int) -> None:
    machine = feeding(0, end)
    assert machine.next == first
    (frame, *_) = sends(machine, end + 10)
    assert isinstance(frame, SendFrame)
    assert frame.offset == first


def test_frames_never_cross_a_file_and_have_at_most_32_KiB() -> None:
    end = 3 * FILE + 1000
    frames = sends(feeding(FILE - 10_000, end), end)
    assert frames[0] == SendFrame(FILE - 10_000, 10_000)
    position = FILE - 10_000
    for frame in frames:
        assert isinstance(frame, SendFrame)
        assert frame.offset == position
        assert 0 < frame.size <= FRAME_BYTES == 32768
        assert frame.offset // FILE == (frame.offset + frame.size - 1) // FILE
        position += frame.size
    assert position == end


def test_a_heartbeat_after_5_s_without_a_frame() -> None:
    machine = feeding(FILE, FILE + 10)
    assert machine.tick(4_999_999, idle=True) == []
    assert machine.tick(5_000_000, idle=True) == [SendFrame(FILE, 0)]
    assert machine.more(6_000_000, 0, FILE + 10) == SendFrame(FILE, 10)
    assert machine.tick(10_999_999, idle=True) == []
    assert machine.tick(11_000_000, idle=False) == []
    assert machine.tick(11_000_001, idle=True) == [SendFrame(FILE + 10, 0)]


def test_a_silent_slave_is_left_after_20_s() -> None:
    machine = feeding(FILE, FILE)
    machine.received(b"\0", 3_000_000, 0, FILE)
    assert not any(isinstance(effect, Close) for effect in machine.tick(22_999_999, idle=True))
    (close,) = machine.tick(23_000_000, idle=True)
    assert isinstance(close, Close)
    assert isinstance(close.error, PeerTimeoutError)


def test_slave_that_never_reports_is_disconnected_after_the_timeout() -> None:
    (close,) = feeding().tick(20_000_000, idle=True)
    assert isinstance(close, Close)


# ---- a slave that is wrong cannot hurt -----------------------------------------------------------------------------


@pytest.mark.parametrize("first", [-1, -(2**63), 1001, 1 << 40, 2**63 - 1])
def test_hole_1_an_absurd_request(first: int) -> None:
    """RocketMQ sends heartbeats for ever, or bytes of another history once its log is long enough (hole 2, #3388)."""
    machine = feeding()
    assert f"found {first}" in refused(machine, words(first), 1000)
    assert (machine.acked, machine.next) == (0, None)


@pytest.mark.parametrize("absurd", [-1, -(2**63), 0, 999, 3001, 1 << 40, 2**63 - 1])
def test_hole_1_an_absurd_ack(absurd: int) -> None:
    """In RocketMQ, an ack of 2^40 releases every producer without a replica (#3015, #1155)."""
    machine = feeding(1000, 5000)
    sends(machine, 3000)
    assert machine.received(words(2000), 1, 0, 5000) == [SlaveAcked(2000)]
    assert f"found {absurd}" in refused(machine, words(absurd), 5000)
    assert machine.acked == 2000


def test_reports_after_an_absurd_ack_are_ignored() -> None:
    machine = feeding(1000, 5000)
    sends(machine, 3000)
    refused(machine, words(2000, 1 << 40, 3000), 5000)
    assert machine.acked == 2000
    assert machine.received(words(3000), 2, 0, 5000) == []


def test_an_ack_of_bytes_that_are_there_but_were_not_sent() -> None:
    machine = feeding(1000, 5000)
    assert "1000 to 1000" in refused(machine, words(3000), 5000)


def test_a_report_below_an_earlier_one_is_refused() -> None:
    machine = feeding(1000, 5000)
    sends(machine, 5000)
    machine.received(words(4000), 1, 0, 5000)
    assert "4000 to 5000" in refused(machine, words(3999), 5000)


def test_slave_may_report_0_only_until_its_first_ack() -> None:
    machine = feeding(0, FILE + 100)
    sends(machine, FILE + 100)
    assert machine.received(words(0, 0, FILE + 50, FILE + 50), 1, 0, FILE + 100) == [SlaveAcked(FILE + 50)]
    assert "found 0" in refused(machine, words(0), FILE + 100)


@pytest.mark.parametrize("ack", [1, FILE - 1])
def test_an_empty_slave_cannot_have_what_lies_before_its_file(ack: int) -> None:
    machine = feeding(0, FILE + 100)
    sends(machine, FILE + 100)
    assert f"found {ack}" in refused(machine, words(ack), FILE + 100)


@pytest.mark.parametrize("stray", range(1, 8))
def test_a_stream_of_reports_that_is_off_by_bytes(stray: int) -> None:
    """RocketMQ reads shifted numbers from then on, as long as the connection lasts."""
    machine = feeding(FILE, 3 * FILE)
    sends(machine, 3 * FILE)
    refused(machine, b"\1" * stray + words(FILE + 1000, FILE + 2000), 3 * FILE)
    assert machine.acked == FILE


@pytest.mark.parametrize("cut", range(17))
def test_every_report_is_read_however_they_are_cut(cut: int) -> None:
    """RocketMQ uses the last report of each read, and so may take an ack for the request."""
    machine, data = feeding(), words(1000, 1000)
    messages = machine.received(data[:cut], 0, 0, 5000) + machine.received(data[cut:], 0, 0, 5000)
    assert (messages, machine.reports, machine.next) == ([SlaveAcked(1000)], 2, 1000)


def test_a_slave_behind_what_is_left() -> None:
    machine = feeding()
    (close,) = machine.received(words(100), 0, FILE, 3 * FILE)
    assert isinstance(close, Close)
    assert isinstance(close.error, TrimmedError)


def test_a_slave_that_was_too_slow_for_retention() -> None:
    machine = feeding(100, 3 * FILE)
    close = machine.more(0, FILE, 3 * FILE)
    assert isinstance(close, Close)
    assert isinstance(close.error, TrimmedError)


@given(st.lists(st.one_of(st.binary(max_size=20), st.integers(0, 5000).map(words)), max_size=20), st.integers(0, 9))
def test_slave_feed_accepts_only_ascending_acks_within_sent_bytes(reads: list[bytes], growth: int) -> None:
    """Progress only ascends, and never exceeds what was sent; an error ends the session."""
    machine, end, acked = feeding(), 3000, 0
    for data in reads:
        for effect in machine.received(data, 0, 0, end):
            if isinstance(effect, SlaveAcked):
                assert machine.next is not None
                assert acked < effect.offset <= machine.next <= end
                acked = effect.offset
            else:
                assert isinstance(effect, Close)
                assert isinstance(effect.error, InvalidMessageError)
        if machine.error is not None:
            return
        end += growth * 100
        sends(machine, end)


def test_default_time_outs_are_those_of_rocketmq() -> None:
    assert Timeouts() == Timeouts(heartbeat_ms=5000, silence_ms=20_000, connect_ms=5000, retry_ms=5000)
