"""A master and a slave of RocketMQ's protocol over real TCP."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog._native.net.frame import FrameParser, encode, heartbeat
from pyreplog.errors import (
    ClosedError,
    DisconnectedError,
    DiskFullError,
    InvalidArgumentError,
    InvalidMessageError,
    InvalidRecordsError,
    OutcomeUnknownError,
    PeerTimeoutError,
    PoisonedError,
    TooManyConnectionsError,
    TrimmedError,
)
from pyreplog.log.files import RealFiles
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.rocketmq import RawLog, RocketMQMaster, RocketMQSlave, SlaveState, Timeouts

from .conftest import TIMEOUT_S, MakeLog, Until
from .records import FILE_BYTES, contents, data_of, fill, message

QUICK = Timeouts(heartbeat_ms=40, retry_ms=50)

Serve = Callable[..., RocketMQMaster]
Copy = Callable[..., RocketMQSlave]


@pytest.fixture
def serve(reactor: Reactor, opened: ExitStack) -> Serve:
    def serve(log: RawLog, **settings: object) -> RocketMQMaster:
        return opened.enter_context(RocketMQMaster(reactor, log, **{"times": QUICK, **settings}))  # type: ignore[arg-type]

    return serve


@pytest.fixture
def copy(reactor: Reactor, opened: ExitStack) -> Copy:
    def copy(log: RawLog, to: tuple[str, int], **settings: object) -> RocketMQSlave:
        return opened.enter_context(RocketMQSlave(reactor, log, to, **{"times": QUICK, **settings}))  # type: ignore[arg-type]

    return copy


class StockSlave:
    """A slave that a test drives by hand."""

    def __init__(self, master: RocketMQMaster, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection(master.address, TIMEOUT_S, source_address=(host, 0))
        self._parser = FrameParser()
        self.frames: list[tuple[int, bytes]] = []

    def report(self, *offsets: int) -> None:
        self._socket.sendall(struct.pack(f">{len(offsets)}q", *offsets))

    def receive(self) -> bool:
        """Receive once; return False if the master has closed the connection."""
        data = self._socket.recv(1 << 16)
        self.frames += [(offset, bytes(body)) for offset, body in self._parser.feed(data)]
        return bool(data)

    @property
    def end(self) -> int:
        return max((offset + len(body) for offset, body in self.frames), default=0)

    def until(self, end: int) -> None:
        while self.end < end:
            assert self.receive()

    def closed(self) -> bool:
        try:
            while self.receive():
                continue
        except ConnectionResetError:
            return True
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def slave_of(opened: ExitStack) -> Callable[..., StockSlave]:
    def slave_of(master: RocketMQMaster, host: str = "127.0.0.1") -> StockSlave:
        slave = StockSlave(master, host)
        opened.callback(slave.close)
        return slave

    return slave_of


def test_slaves_have_the_files_of_their_master(
    make_log: MakeLog, serve: Serve, copy: Copy, until: Until, tmp_path: Path
) -> None:
    log, all_of_it, last_file = make_log("master"), make_log("all"), make_log("last")
    fill(log, 200)
    master = serve(log)
    slaves = [copy(all_of_it, master.address, start=0), copy(last_file, master.address)]
    until(lambda: all(slave.log.end == log.end for slave in slaves))
    for number in range(200, 300):
        master.put(message(number))
    until(lambda: all(slave.log.end == log.end for slave in slaves))
    files = contents(tmp_path / "master")
    assert contents(tmp_path / "all") == files
    copied = contents(tmp_path / "last")
    assert 3 < len(copied) < len(files)
    assert copied.items() <= files.items()
    assert [slave.connects for slave in slaves] == [1, 1]


def test_heartbeats_keep_an_idle_pair(make_log: MakeLog, serve: Serve, copy: Copy, until: Until) -> None:
    """RocketMQ issues 1082 and 1118: an idle pair was disconnected every 20 s."""
    log = make_log("master")
    fill(log, 1)
    master = serve(log)
    slave = copy(make_log("copy"), master.address)
    until(lambda: slave.frames > 8)
    assert (slave.connects, slave.state, master.refused) == (1, SlaveState.STREAMING, 0)
    until(lambda: [(fed.acked, fed.lag_bytes) for fed in master.slaves()] == [(log.end, 0)])


def test_a_slave_serves_a_slave_of_its_own(
    make_log: MakeLog, serve: Serve, copy: Copy, until: Until, tmp_path: Path
) -> None:
    """A slave serves a slave of its own."""
    log, middle, last = make_log("master"), make_log("middle"), make_log("last")
    fill(log, 50)
    first, second = serve(log), serve(middle)
    copy(middle, first.address, start=0, landed=second.wake)
    copy(last, second.address, start=0)
    for number in range(50, 150):
        first.put(message(number))
    until(lambda: last.end == log.end)
    assert contents(tmp_path / "master") == contents(tmp_path / "middle") == contents(tmp_path / "last")


def test_a_slave_goes_on_with_another_master(
    make_log: MakeLog, serve: Serve, copy: Copy, until: Until, tmp_path: Path
) -> None:
    log, other = make_log("master"), make_log("other")
    for each in (log, other):
        fill(each, 100)
    first, second = serve(log), serve(other)
    slave = copy(make_log("copy"), first.address, start=0)
    until(lambda: slave.log.end == log.end)
    fill(other, 10, first=100)
    slave.follow(second.address)
    until(lambda: slave.log.end == other.end)
    assert contents(tmp_path / "copy") == contents(tmp_path / "other")
    with pytest.raises(InvalidArgumentError):
        slave.follow(("no such host.invalid", 1))


def test_a_master_that_comes_back(
    make_log: MakeLog, reactor: Reactor, serve: Serve, copy: Copy, until: Until, tmp_path: Path
) -> None:
    log = make_log("master")
    fill(log, 100)
    host = "127.0.77.2"  # no other process takes the port of this address
    first = RocketMQMaster(reactor, log, host=host, times=QUICK)
    slave = copy(make_log("copy"), first.address, start=0)
    until(lambda: slave.log.end == log.end)
    first.close()
    fill(log, 10, first=100)
    until(lambda: slave.state is not SlaveState.STREAMING)
    serve(log, host=host, port=first.address[1])
    until(lambda: slave.log.end == log.end)
    assert slave.connects >= 2
    assert contents(tmp_path / "copy") == contents(tmp_path / "master")


# ---- synchronous ----------------------------------------------------------------------------------------------------


def test_an_append_waits_for_a_slave(make_log: MakeLog, serve: Serve, copy: Copy) -> None:
    log, master = make_log("master"), None
    master = serve(log)
    copy(make_log("copy"), master.address)
    future = master.submit(message(0), timeout=TIMEOUT_S)
    assert future.result(TIMEOUT_S) == log.end == master.replicated


def test_without_a_slave_the_outcome_is_unknown(make_log: MakeLog, serve: Serve) -> None:
    log = make_log("master")
    master = serve(log)
    with pytest.raises(OutcomeUnknownError):
        master.submit(message(0), timeout=0.05).result(TIMEOUT_S)
    assert log.end > 0  # the message stays in the log
    assert master.replicated == 0
    future = master.submit(message(1), timeout=TIMEOUT_S)
    master.close()
    with pytest.raises(ClosedError):
        future.result(TIMEOUT_S)


@pytest.mark.parametrize("size", [50, 170_000, 900_000])
def test_messages_of_many_frames_are_acknowledged(
    size: int, opened: ExitStack, tmp_path: Path, serve: Serve, copy: Copy
) -> None:
    """A message has one report for each 32 KiB, and RocketMQ gave up after five reports (#1535), or after as many of
    other messages (#1244)."""
    log, other = (opened.enter_context(RawLog(tmp_path / name, file_bytes=1 << 20)) for name in ("master", "copy"))
    master = serve(log)
    copy(other, master.address)
    futures = [master.submit(message(number, each), timeout=TIMEOUT_S) for number, each in enumerate([50, size] * 20)]
    assert [future.result(TIMEOUT_S) for future in futures] == sorted(future.result() for future in futures)
    assert master.replicated == log.end


def test_commit_needs_the_second_of_two_slaves(
    make_log: MakeLog, serve: Serve, slave_of: Callable[..., StockSlave], until: Until
) -> None:
    log = make_log("master")
    end = fill(log, 10)
    master = serve(log, slaves=2)
    first, two = slave_of(master, "127.0.0.2"), slave_of(master, "127.0.0.3")
    for slave in (first, two):
        slave.report(0)
        slave.until(end)
    first.report(end)
    two.report(end - 5)
    until(lambda: master.replicated == end - 5)
    two.report(end)
    until(lambda: master.replicated == end)
    assert sorted(fed.address[0] for fed in master.slaves()) == ["127.0.0.2", "127.0.0.3"]


def test_hole_4_two_connections_of_one_host_are_one_copy(
    make_log: MakeLog, serve: Serve, slave_of: Callable[..., StockSlave], until: Until
) -> None:
    """RocketMQ counts connections, not hosts."""
    log = make_log("master")
    end = fill(log, 10)
    master = serve(log, slaves=2)
    slaves = [slave_of(master, "127.0.0.2") for _ in range(2)]
    for slave in slaves:
        slave.report(0)
        slave.until(end)
        slave.report(end)
    until(lambda: [fed.acked for fed in master.slaves()] == [end, end])
    assert master.replicated == 0


def test_replicated_position_stays_after_the_slave_disconnects(
    make_log: MakeLog, serve: Serve, slave_of: Callable[..., StockSlave], until: Until
) -> None:
    log = make_log("master")
    end = fill(log, 10)
    master = serve(log)
    slave = slave_of(master)
    slave.report(0)
    slave.until(end)
    slave.report(end)
    until(lambda: master.replicated == end)
    slave.close()
    until(lambda: not master.slaves())
    assert master.replicated == end


# ---- peers that are wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absurd", [1 << 40, -1, 2**63 - 1])
@pytest.mark.parametrize("asked", [True, False])
def test_hole_1_absurd_ack_of_one_slave_completes_no_submit(
    absurd: int, asked: bool, make_log: MakeLog, serve: Serve, slave_of: Callable[..., StockSlave], until: Until
) -> None:
    log = make_log("master")
    end = fill(log, 10)
    master = serve(log)
    future = master.submit(message(10), timeout=TIMEOUT_S)
    rogue, honest = slave_of(master), slave_of(master)
    if asked:
        rogue.report(0)
        rogue.until(end)
    rogue.report(absurd)
    assert rogue.closed()
    until(lambda: len(master.slaves()) == 1 and master.refused == 1 and master.last_refusal is not None)
    assert isinstance(master.last_refusal, InvalidMessageError)
    assert (master.refused, master.replicated, future.done()) == (1, 0, False)
    honest.report(0)
    honest.until(log.end)
    honest.report(log.end)
    assert future.result(TIMEOUT_S) == log.end


def test_a_silent_slave_is_left(
    make_log: MakeLog, serve: Serve, slave_of: Callable[..., StockSlave], until: Until
) -> None:
    log = make_log("master")
    fill(log, 1)
    master = serve(log, times=Timeouts(heartbeat_ms=20, silence_ms=100, retry_ms=100))
    slave = slave_of(master)
    slave.report(0)
    assert slave.closed()
    until(lambda: master.refused == 1 and master.last_refusal is not None)
    assert isinstance(master.last_refusal, PeerTimeoutError)


def test_slave_that_does_not_read_does_not_delay_other_slaves(
    opened: ExitStack, tmp_path: Path, serve: Serve, copy: Copy, slave_of: Callable[..., StockSlave], until: Until
) -> None:
    log, other = (opened.enter_context(RawLog(tmp_path / name, file_bytes=1 << 20)) for name in ("master", "copy"))
    fill(log, 300, size=40_000)
    master = serve(log, times=Timeouts(heartbeat_ms=50, silence_ms=60_000))
    slave_of(master).report(1)
    good = copy(other, master.address, start=0)
    until(lambda: len(master.slaves()) == 2)
    until(lambda: max(fed.acked for fed in master.slaves()) == good.log.end == log.end)
    until(lambda: all(fed.sent is not None for fed in master.slaves()))
    stuck = min(master.slaves(), key=lambda fed: fed.acked)
    assert stuck.sent is not None
    assert stuck.sent < log.end


@pytest.mark.parametrize("rate", [30_000, 300_000])
def test_hole_3_the_throttle_counts_bodies(
    rate: int, make_log: MakeLog, serve: Serve, slave_of: Callable[..., StockSlave], reactor: Reactor
) -> None:
    """RocketMQ sends 312 MB/s at a limit of 1 MiB/s, and 225,460 empty frames in 3 s at 3,000 B/s.

    The test checks that the stream takes at least as long as the limit says; it may take longer on a busy machine.
    """
    log = make_log("master")
    end = min(fill(log, 400), FILE_BYTES + rate // 4)
    slave = slave_of(serve(log, max_bytes_per_s=rate, times=Timeouts()))
    begin = reactor.clock.monotonic_us()
    slave.report(1)
    slave.until(end)
    seconds = (reactor.clock.monotonic_us() - begin) / 1e6
    received = sum(len(body) for _, body in slave.frames)
    assert seconds >= (received - FILE_BYTES - rate / 10) / rate
    assert len([body for _, body in slave.frames if body]) <= -(-received // FILE_BYTES) + 1
    assert len([body for _, body in slave.frames if not body]) <= seconds / (Timeouts().heartbeat_ms / 1000)


@pytest.mark.parametrize("settings", [{"slaves": 0}, {"max_bytes_per_s": 0}])
def test_a_rocketmq_master_refuses_bad_settings(make_log: MakeLog, reactor: Reactor, settings: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError):
        RocketMQMaster(reactor, make_log("master"), **settings)  # type: ignore[arg-type]


class StockMaster:
    """A master that accepts one slave after the other."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT_S)
        self.address = self._listener.getsockname()

    def accept(self) -> tuple[socket.socket, int]:
        """Accept a connection; return it and the position that its slave asks for."""
        sock, _ = self._listener.accept()
        sock.settimeout(TIMEOUT_S)
        return sock, int.from_bytes(sock.recv(8), "big", signed=True)

    def __enter__(self) -> StockMaster:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def test_hole_2_another_master_is_noticed(make_log: MakeLog, copy: Copy, until: Until) -> None:
    """The master was truncated and has grown again: RocketMQ's slave would append its bytes."""
    log, other = make_log("log"), make_log("other")
    end = fill(log, 5)
    fill(other, 20, size=333)
    bad = encode(end, other.view(end, 1000))
    with StockMaster() as master:
        slave = copy(log, master.address)
        for _ in range(2):
            sock, asked = master.accept()
            with sock:
                assert asked == end
                sock.sendall(heartbeat(end) + bad)
                while sock.recv(100):
                    continue
        until(lambda: slave.state is SlaveState.STOPPED)
    assert isinstance(slave.error, InvalidRecordsError)
    assert log.end == end


@pytest.mark.parametrize("cut", [5, 11, 12, 13, 100, 400])
def test_a_slave_reconnects_after_a_cut_frame(
    cut: int, make_log: MakeLog, copy: Copy, until: Until, tmp_path: Path
) -> None:
    source, log = make_log("source"), make_log("log")
    fill(source, 3)
    data = data_of(source)
    with StockMaster() as master:
        slave = copy(log, master.address)
        sock, asked = master.accept()
        with sock:
            sock.sendall(encode(asked, data)[:cut])
        sock, asked = master.accept()
        with sock:
            assert asked == 0
            sock.sendall(encode(0, data))
            until(lambda: slave.log.end == source.end)
    assert contents(tmp_path / "log") == contents(tmp_path / "source")


def test_slave_reads_a_stream_of_single_bytes(make_log: MakeLog, copy: Copy, until: Until) -> None:
    source, log = make_log("source"), make_log("log")
    fill(source, 3)
    with StockMaster() as master:
        slave = copy(log, master.address)
        sock, _ = master.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock:
            for byte in encode(0, data_of(source)):
                sock.sendall(bytes((byte,)))
            until(lambda: slave.log.end == source.end and slave.frames > 0)
    assert slave.frames == 1


class FailingFiles(RealFiles):
    """A disk that is full or broken until it is repaired."""

    full = broken = False

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        if self.full:
            raise DiskFullError(28, "full")
        return super().create(path, size, zeroed=zeroed)

    def sync(self, fd: int) -> None:
        if self.broken:
            raise OSError(5, "broken")
        super().sync(fd)


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
def failing(opened: ExitStack, tmp_path: Path, files: FailingFiles) -> RawLog:
    log = RawLog(tmp_path / "failing", file_bytes=FILE_BYTES, files=files)
    opened.callback(log.close)
    return log


def test_a_slave_whose_disk_is_full(
    make_log: MakeLog, serve: Serve, copy: Copy, until: Until, files: FailingFiles, failing: RawLog, tmp_path: Path
) -> None:
    """It goes on when the disk has room again."""
    log = make_log("master")
    fill(log, 100)
    files.full = True
    slave = copy(failing, serve(log).address, start=0)
    until(lambda: slave.connects > 2)
    assert isinstance(slave.error, DiskFullError)
    assert failing.end == 0
    files.full = False
    until(lambda: failing.end == log.end)
    assert contents(tmp_path / "failing") == contents(tmp_path / "master")


def test_a_slave_whose_syncs_fail(
    make_log: MakeLog, serve: Serve, copy: Copy, until: Until, files: FailingFiles, failing: RawLog
) -> None:
    """It stops, because the state of its disk is unknown. RocketMQ counts the records as written (#2706, #9713)."""
    log = make_log("master")
    master = serve(log)
    fill(log, 5)
    slave = copy(failing, master.address, start=0)
    until(lambda: failing.end == log.end == master.replicated)
    files.broken = True
    acked = log.end
    fill(log, 60, first=5)  # beyond the end of the file, which is synced first
    master.wake()
    until(lambda: slave.state is SlaveState.STOPPED)
    assert isinstance(slave.error, PoisonedError)
    assert acked <= master.replicated <= FILE_BYTES


def test_a_slave_ahead_of_its_master(make_log: MakeLog, serve: Serve, copy: Copy, until: Until, tmp_path: Path) -> None:
    """RocketMQ's master sends heartbeats to it (#3388). This one closes with a reason, and the slave's log stays
    unchanged."""
    log, other = make_log("master"), make_log("ahead")
    fill(log, 5)
    end = fill(other, 6)
    master = serve(log)
    slave = copy(other, master.address)
    until(lambda: master.refused > 2)
    assert f"expected a start of 0 to {log.end}" in str(master.last_refusal)
    assert isinstance(slave.error, DisconnectedError)
    assert (slave.state is SlaveState.STOPPED, other.end) == (False, end)


def test_a_slave_behind_retention_is_refused(make_log: MakeLog, serve: Serve, copy: Copy, until: Until) -> None:
    log, other = make_log("master"), make_log("copy")
    fill(log, 100)
    fill(other, 5)
    log.trim(FILE_BYTES)
    master = serve(log)
    copy(other, master.address)
    until(lambda: master.last_refusal is not None)
    assert isinstance(master.last_refusal, TrimmedError)


def test_a_master_that_is_not_there(make_log: MakeLog, copy: Copy, until: Until) -> None:
    address = ("127.0.0.1", 1)
    slave = copy(make_log("log"), address)
    until(lambda: slave.error is not None)
    assert slave.state in (SlaveState.WAITING, SlaveState.CONNECTING)
    slave.close()
    with pytest.raises(ClosedError):
        slave.follow(address)


def test_a_slave_with_files_of_another_size_stops(
    make_log: MakeLog, opened: ExitStack, serve: Serve, copy: Copy, until: Until, tmp_path: Path
) -> None:
    """The protocol has no field for the size: it shows at the first frame or record that does not fit."""
    log = opened.enter_context(RawLog(tmp_path / "master", file_bytes=2 * FILE_BYTES))
    fill(log, 100)
    slave = copy(make_log("copy"), serve(log).address, start=0)
    until(lambda: slave.state is SlaveState.STOPPED)
    assert slave.log.end <= FILE_BYTES


def test_connections_beyond_the_limit_are_refused(make_log: MakeLog, serve: Serve, until: Until) -> None:
    """Without a limit, any process that reached the port could use up all descriptors."""
    master = serve(make_log("master"), limits=Limits(connections=2))
    slaves = [socket.create_connection(master.address, TIMEOUT_S) for _ in range(2)]
    until(lambda: len(master.slaves()) == 2)
    with socket.create_connection(master.address, TIMEOUT_S) as surplus:
        assert surplus.recv(1) == b""
    until(lambda: master.refused == 1)
    assert isinstance(master.last_refusal, TooManyConnectionsError) and len(master.slaves()) == 2
    slaves.pop().close()
    until(lambda: len(master.slaves()) == 1)
    with socket.create_connection(master.address, TIMEOUT_S):
        until(lambda: len(master.slaves()) == 2)
    slaves.pop().close()
