"""The slave's state machine: which bytes of a master are accepted, and when it connects again. Sessions as bytes are in
test_transcripts.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.net.frame import encode, heartbeat
from pyreplog.errors import (
    DisconnectedError,
    DiskFullError,
    FrameError,
    InvalidArgumentError,
    InvalidMessageError,
    InvalidRecordsError,
    PeerTimeoutError,
)
from pyreplog.rocketmq.effects import AppendToLog, Close, Connect, Effect, ReportToMaster
from pyreplog.rocketmq.slave_machine import SlaveMachine, SlaveState

FILE = 4096
LOST = DisconnectedError("lost")


def pulling(end: int = 0, start: int | None = None, *, connected: bool = True) -> SlaveMachine:
    slave_machine = SlaveMachine(0, end, FILE, start=start, random=lambda: 1.0)
    if connected:
        assert slave_machine.tick(0) == [Connect()]
        slave_machine.connected(0)
    return slave_machine


def receive(machine: SlaveMachine, data: bytes, now_us: int = 0) -> list[Effect]:
    """Return the effects of received bytes, with copies of the bodies."""
    effects: list[Effect] = []
    while data and machine.state is SlaveState.STREAMING:
        window = machine.buffer()
        count = min(len(data), len(window))
        window[:count] = data[:count]
        data = data[count:]
        effects += machine.received(count, now_us)
    return [
        AppendToLog(effect.offset, bytes(effect.body)) if isinstance(effect, AppendToLog) else effect
        for effect in effects
    ]


def reconnected(machine: SlaveMachine, now_us: int) -> int:
    """Let time pass until it is connected again; return that time."""
    while machine.tick(now_us) != [Connect()]:
        now_us += 10_000
    machine.connected(now_us)
    return now_us


@pytest.mark.parametrize(
    ("end", "start", "asked"), [(0, None, 0), (777, None, 777), (777, 0, 777), (0, FILE, FILE), (0, 0, 1)]
)
def test_first_report_asks_for_the_end_of_the_log_or_the_given_start(end: int, start: int | None, asked: int) -> None:
    machine = pulling(end, start, connected=False)
    machine.tick(0)
    assert machine.connected(0) == [ReportToMaster(asked)]


@pytest.mark.parametrize("start", [-FILE, 1, FILE - 1])
def test_a_start_is_the_beginning_of_a_file(start: int) -> None:
    with pytest.raises(InvalidArgumentError):
        pulling(0, start, connected=False)


def test_an_empty_slave_asks_for_the_whole_log() -> None:
    """RocketMQ sends only its last file to an empty slave that asks from 0; from position 1 it sends the whole log."""
    machine = pulling(0, 0)
    assert receive(machine, heartbeat(1)) == []
    assert receive(machine, encode(1, b"abc") + encode(4, b"d")) == [
        AppendToLog(0, b"\0"), AppendToLog(1, b"abc"), ReportToMaster(4), AppendToLog(4, b"d"), ReportToMaster(5),
    ]  # fmt: skip
    reconnected(machine, 0)
    assert machine.end == 5


def test_an_empty_slave_takes_the_beginning_of_any_file() -> None:
    for offset in (0, FILE, 7 * FILE):
        assert receive(pulling(), encode(offset, b"abc")) == [AppendToLog(offset, b"abc"), ReportToMaster(offset + 3)]


@pytest.mark.parametrize("offset", [1, FILE - 1, FILE + 1])
@pytest.mark.parametrize("body", [b"", b"abc"])
def test_an_empty_slave_takes_nothing_else(offset: int, body: bytes) -> None:
    """RocketMQ appends it at the wrong position, and closes at the next frame."""
    *before, last = receive(pulling(), encode(offset, body))
    assert before == []
    assert isinstance(last, Close)
    assert isinstance(last.error, InvalidMessageError)


def test_control_frames_are_none_of_rocketmqs() -> None:
    (close,) = receive(pulling(), encode(-1, b"abc"))
    assert isinstance(close, Close)


@pytest.mark.parametrize("size", [FILE + 1, 4 * 1024 * 1024 - 12])
def test_a_frame_across_files_does_not_land(size: int) -> None:
    """RocketMQ ignores that its file refused the frame, and closes at the next one."""
    (close,) = receive(pulling(), encode(0, bytes(size)))
    assert isinstance(close, Close)
    assert "crosses the end" in str(close.error)


def test_the_largest_frame_of_rocketmq() -> None:
    """RocketMQ's slave waits for ever on a frame that is one byte larger: the transcript `oversize`."""
    machine = SlaveMachine(0, 0, 8 << 20, random=lambda: 1.0)
    machine.tick(0)
    machine.connected(0)
    body = bytes(range(256)) * (1 << 14)
    body = body[: 4 * 1024 * 1024 - 12]
    assert receive(machine, encode(0, body)) == [AppendToLog(0, body), ReportToMaster(4_194_292)]


def test_an_idle_slave_reports_its_offset() -> None:
    machine = pulling(10)
    assert machine.tick(4_999_999) == []
    assert machine.tick(5_000_000) == [ReportToMaster(10)]
    receive(machine, encode(10, b"a"), 6_000_000)
    assert machine.tick(10_999_999) == []
    assert machine.tick(11_000_000) == [ReportToMaster(11)]


def test_heartbeats_are_not_answered() -> None:
    assert receive(pulling(10), heartbeat(10)) == []


def test_a_silent_master_is_left_after_20_s() -> None:
    machine = pulling(10)
    receive(machine, heartbeat(10)[:1], 3_000_000)
    assert not any(isinstance(effect, Close) for effect in machine.tick(22_999_999))
    (close,) = machine.tick(23_000_000)
    assert isinstance(close, Close)
    assert isinstance(close.error, PeerTimeoutError)
    assert machine.state is SlaveState.WAITING


def test_connecting_takes_5_s_at_most() -> None:
    machine = pulling(connected=False)
    machine.tick(0)
    assert machine.tick(4_999_999) == []
    (close,) = machine.tick(5_000_000)
    assert isinstance(close, Close)


def test_delays_between_attempts_double_up_to_5_s() -> None:
    machine, now_us, delays = pulling(connected=False), 0, []
    machine.tick(0)
    for _ in range(10):
        machine.lost(now_us, LOST)
        before = now_us
        while machine.tick(now_us) != [Connect()]:
            now_us += 1000
        delays.append((now_us - before) // 1000)
    assert delays == [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]


def test_delays_begin_anew_when_something_has_landed() -> None:
    machine, now_us = pulling(), 0
    for _ in range(5):
        machine.lost(now_us, LOST)
        now_us = reconnected(machine, now_us)
    receive(machine, encode(0, b"abc"), now_us)
    machine.landed(3)
    machine.lost(now_us, LOST)
    assert machine.tick(now_us + 50_000) == [Connect()]


def test_partial_frame_is_dropped_with_its_connection() -> None:
    machine = pulling()
    receive(machine, encode(0, b"abc") + encode(3, b"defgh")[:15])
    assert (machine.buffered, machine.end) == (15, 3)
    machine.lost(0, LOST)
    now_us = reconnected(machine, 0)
    assert receive(machine, encode(3, b"defgh"), now_us) == [AppendToLog(3, b"defgh"), ReportToMaster(8)]


# ---- RocketMQ repeats an unrepaired mismatch for ever ---------------------------------------------------------------


def test_a_mismatch_is_tried_once_more_and_not_for_ever() -> None:
    machine = pulling(10)
    (close,) = receive(machine, encode(11, b"abc"))
    assert isinstance(close, Close)
    assert isinstance(close.error, FrameError)
    assert machine.state is SlaveState.WAITING
    now_us = reconnected(machine, 0)
    receive(machine, encode(11, b"abc"), now_us)
    assert machine.state is SlaveState.STOPPED
    assert machine.error is not None
    assert machine.tick(now_us + 10**9) == []
    machine.lost(now_us, LOST)
    machine.retry(now_us)
    assert machine.state is SlaveState.STOPPED


def test_two_mismatches_with_progress_in_between() -> None:
    machine, now_us = pulling(10), 0
    for end in (10, 13):
        receive(machine, encode(end + 1, b"abc"), now_us)
        now_us = reconnected(machine, now_us)
        receive(machine, encode(end, b"abc"), now_us)
        machine.landed(end + 3)
    assert machine.state is SlaveState.STREAMING


def test_records_that_the_log_does_not_take() -> None:
    """Hole 2: this is not the master from which the log came. The slave asks it for no more."""
    machine, bad = pulling(10), InvalidRecordsError(10, "the magic of a record", "0x00000000")
    assert machine.refused(0, 10, bad) == Close(bad)
    reconnected(machine, 0)
    assert machine.refused(1, 10, bad) == Close(bad)
    assert machine.state is SlaveState.STOPPED
    assert machine.error is bad


def test_a_full_disk_is_tried_for_ever() -> None:
    machine, now_us = pulling(10), 0
    for _ in range(5):
        machine.refused(now_us, 10, DiskFullError(28, "full"))
        now_us = reconnected(machine, now_us)
    assert machine.state is SlaveState.STREAMING


def test_another_address_is_tried_at_once() -> None:
    machine = pulling()
    for _ in range(8):
        machine.lost(0, LOST)
    machine.retry(1)
    assert machine.tick(1) == [Connect()]


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(encode, st.integers(-2, 100), st.binary(max_size=30)),
            st.builds(lambda size: encode(0, bytes(size)), st.integers(0, 5000)),
        ),
        max_size=10,
    ),
    st.sampled_from([(0, None), (0, 0), (0, FILE), (7, None)]),
)
def test_slave_appends_contiguous_bytes_whatever_the_master_sends(
    reads: list[bytes], begun: tuple[int, int | None]
) -> None:
    """The appended bytes are contiguous, each frame lies within one file, and reports match them."""
    end, start = begun
    machine = pulling(end, start)
    at: int | None = end or None
    for effect in (effect for data in reads for effect in receive(machine, data)):
        if isinstance(effect, AppendToLog):
            assert effect.offset % FILE + len(effect.body) <= FILE
            assert effect.offset == at if at is not None else effect.offset % FILE == 0
            at = effect.offset + len(effect.body)
        elif isinstance(effect, ReportToMaster):
            assert effect.offset == at
        else:
            assert isinstance(effect, Close)
            assert machine.state is SlaveState.WAITING
