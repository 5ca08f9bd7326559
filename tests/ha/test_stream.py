"""A master's log is streamed over TCP into the logs of replicas."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog.errors import ClosedError, DisconnectedError, StreamError, TrimmedError
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.names import segment_bases
from pyreplog.net.connection import Connection
from pyreplog.net.dialer import ReconnectingConnection
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from pyreplog.stream.rate_limiter import RateLimiter
from pyreplog.stream.sender import StreamSender
from pyreplog.stream.tail_watcher import TailWatcher
from tests.ha.streams import PER_SEGMENT, SEGMENT_BYTES, assert_same_files, held, open_master, uncommitted, values
from tests.ha.tcp import MasterEnd, ReplicaEnd

TIMEOUT_S = 60.0


class Lab:
    """Masters and replicas on one reactor. All are closed at the end."""

    def __init__(self, folder: Path, reactor: Reactor, stack: ExitStack) -> None:
        self.folder, self.reactor, self._stack = folder, reactor, stack

    def master(self, name: str = "master", **settings: Any) -> CommitLog:
        return self._stack.enter_context(open_master(self.folder / name, **settings))

    def serve(self, end: MasterEnd, **settings: Any) -> Server:
        return self._stack.enter_context(Server(self.reactor, end, **settings))

    def growth(self, log: CommitLog) -> TailWatcher:
        growth = TailWatcher(log)
        self._stack.callback(growth.stop)
        return growth

    def replica(self, name: str, source: CommitLog, **settings: Any) -> ReplicaEnd:
        end = ReplicaEnd(self.folder / name, source, **settings)
        self._stack.callback(end.log.close)
        return end

    def link(self, server: Server | tuple[str, int], end: ReplicaEnd) -> ReconnectingConnection:
        address = server.address if isinstance(server, Server) else server
        return self._stack.enter_context(ReconnectingConnection(self.reactor, address, end, random=lambda: 0.0))

    def wait(self, done: Callable[[], bool]) -> None:
        assert self.reactor.drive(done, TIMEOUT_S), "it never came"

    def caught_up(self, source: CommitLog, *ends: ReplicaEnd) -> None:
        """Wait until the replicas have and show all records of the source."""
        self.wait(lambda: all((end.log.tail.end, end.log.end) == (source.tail.end, source.end) for end in ends))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Reactor() as reactor, ExitStack() as stack:
        reactor.start()
        yield Lab(tmp_path, reactor, stack)


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_replica_copies_what_is_there_and_what_comes(lab: Lab, durability: str) -> None:
    master = lab.master(durability=durability)
    master.append_batch(values(5 * PER_SEGMENT))
    growth = lab.growth(master)
    end = MasterEnd(lab.reactor, master, lambda c, p: StreamSender(lab.reactor, c, master, p, growth=growth))
    server = lab.serve(end)
    replica = lab.replica("replica", master, durability=durability, syncs=durability == "synced")
    lab.link(server, replica)
    lab.caught_up(master, replica)
    for first in range(5 * PER_SEGMENT, 8 * PER_SEGMENT, 9):
        master.append_batch(values(9, first))
    lab.caught_up(master, replica)
    assert_same_files(master, replica.log)
    assert held(replica.log) == held(master)
    where = (master.tail.end, master.end)
    lab.wait(lambda: any(progress[:2] == where for progress in list(end.progress.values())))
    if durability == "synced":
        lab.wait(lambda: any(progress == (*where, *where) for progress in list(end.progress.values())))


def test_the_caller_of_append_may_send(lab: Lab) -> None:
    """No thread watches the log: the caller of append sends, and the report arrives."""
    master = lab.master()
    end = MasterEnd(lab.reactor, master)
    replica = lab.replica("replica", master)
    lab.link(lab.serve(end), replica)
    lab.wait(lambda: bool(end.senders))
    for number in range(50):
        master.append(b"%d" % number)
        end.pump()
        lab.wait(lambda: any(progress[0] == master.tail.end for progress in list(end.progress.values())))
    assert held(replica.log) == held(master)


def test_many_replicas_and_recycled_segments(lab: Lab) -> None:
    keep = {"retention_bytes": 4 * SEGMENT_BYTES}
    master = lab.master(**keep)
    growth = lab.growth(master)
    server = lab.serve(
        MasterEnd(lab.reactor, master, lambda c, p: StreamSender(lab.reactor, c, master, p, growth=growth))
    )
    replicas = [lab.replica(f"replica-{i}", master, **keep) for i in range(3)]
    for replica in replicas:
        lab.link(server, replica)
    rng = Random(3)
    for _ in range(40):
        master.retention_floor = min(replica.log.received_end for replica in replicas)
        master.append_batch([rng.randbytes(rng.randint(0, 5000)) for _ in range(12)])
        lab.caught_up(master, *replicas)
        master.run_background_tasks()
        for replica in replicas:
            replica.log.run_background_tasks()
    assert master.start > 0
    for replica in replicas:
        assert_same_files(master, replica.log)


def test_a_lost_connection_goes_on_where_it_stopped(lab: Lab) -> None:
    """Each connection is cut after some bytes, often within a frame or a record."""
    master = lab.master()
    master.append_batch(values(6 * PER_SEGMENT))
    end = MasterEnd(lab.reactor, master, lambda c, p: StreamSender(lab.reactor, c, master, p, transfer_bytes=30_000))
    server = lab.serve(end)
    with Breaker(server.address, pieces=[1000, 33_333, 40_000, 70_001, 100_000]) as breaker:
        replica = lab.replica("replica", master)
        lab.link(breaker.address, replica)
        lab.caught_up(master, replica)
        assert len(replica.errors) >= 4
        assert all(isinstance(error, DisconnectedError) for error in replica.errors)
    assert_same_files(master, replica.log)


def test_a_stream_with_joined_and_cut_frames_is_received(lab: Lab) -> None:
    master = lab.master()
    master.append_batch(values(2 * PER_SEGMENT))
    end = MasterEnd(lab.reactor, master, lambda c, p: StreamSender(lab.reactor, c, master, p, transfer_bytes=700))
    server = lab.serve(end)
    with Breaker(server.address, pieces=[], chunks=(1, 5, 7, 12, 13, 699, 5000)) as breaker:
        replica = lab.replica("replica", master)
        lab.link(breaker.address, replica)
        lab.caught_up(master, replica)
    assert_same_files(master, replica.log)


def test_a_damaged_byte_on_the_way_ends_the_connection_and_is_sent_again(lab: Lab) -> None:
    master = lab.master()
    master.append_batch(values(2 * PER_SEGMENT))
    server = lab.serve(MasterEnd(lab.reactor, master))
    with Breaker(server.address, pieces=[], damage=50_000) as breaker:
        replica = lab.replica("replica", master)
        lab.link(breaker.address, replica)
        lab.caught_up(master, replica)
        assert [type(error) for error in replica.errors] == [StreamError]
    assert_same_files(master, replica.log)


def test_a_replica_follows_its_master_to_another_address(lab: Lab) -> None:
    master = lab.master()
    growth = lab.growth(master)
    ends = [
        MasterEnd(lab.reactor, master, lambda c, p: StreamSender(lab.reactor, c, master, p, growth=growth))
        for _ in range(2)
    ]
    old, new = (lab.serve(end) for end in ends)
    replica = lab.replica("replica", master)
    link = lab.link(old, replica)
    master.append_batch(values(10))
    lab.caught_up(master, replica)
    old.close()
    link.redirect(new.address)
    master.append_batch(values(10, 10))
    lab.caught_up(master, replica)
    assert ends[1].connections
    link.redirect(old.address)
    lab.wait(lambda: not link.connected and link.error is not None)
    link.redirect(new.address)
    master.append_batch(values(10, 20))
    lab.caught_up(master, replica)
    assert held(replica.log) == held(master)


def test_a_log_is_streamed_along_a_chain_of_replicas(lab: Lab) -> None:
    master = lab.master()
    growth = lab.growth(master)
    server = lab.serve(
        MasterEnd(lab.reactor, master, lambda c, p: StreamSender(lab.reactor, c, master, p, growth=growth))
    )
    first = lab.replica("first", master)
    lab.link(server, first)
    onward = lab.growth(first.log)
    middle = MasterEnd(lab.reactor, first.log, lambda c, p: StreamSender(lab.reactor, c, first.log, p, growth=onward))
    second = lab.replica("second", master)
    lab.link(lab.serve(middle), second)
    for number in range(0, 4 * PER_SEGMENT, 10):
        master.append_batch(values(10, number))
    lab.caught_up(master, first, second)
    assert_same_files(master, second.log)
    assert [record.value for record in second.log.follow(0, timeout=0)] == held(master)


def test_a_copy_that_is_cut_does_not_go_on_sending(lab: Lab) -> None:
    master = lab.master()
    server = lab.serve(end := MasterEnd(lab.reactor, master))
    replica = lab.replica("replica", master)
    link = lab.link(server, replica)
    master.append_batch(values(30))
    lab.wait(lambda: bool(end.senders))
    end.pump()
    lab.caught_up(master, replica)
    master.truncate(10)
    end.pump()
    lab.wait(lambda: bool(end.errors))
    assert "was cut" in str(end.errors[0])
    link.close()


def test_streaming_trimmed_records_fails_with_trimmed_error(lab: Lab) -> None:
    master = lab.master()
    server = lab.serve(end := MasterEnd(lab.reactor, master))
    replica = lab.replica("replica", master)
    master.append_batch(values(4 * PER_SEGMENT))
    master.trim(3 * PER_SEGMENT)
    link = lab.link(server, replica)
    lab.wait(lambda: bool(end.errors))
    assert isinstance(end.errors[0], TrimmedError)
    link.close()


def test_a_segment_on_its_way_is_not_recycled(lab: Lab) -> None:
    """The replica stops reading while the records that were handed to the socket are trimmed and their files are
    recycled."""
    master = lab.master(retention_bytes=0)
    server = lab.serve(end := MasterEnd(lab.reactor, master))
    replica = lab.replica("replica", master)
    link = lab.link(server, replica)
    lab.wait(lambda: bool(end.senders))
    assert replica._connection is not None
    replica._connection.pause()
    appended: list[bytes] = []
    while not end.connections[0].queued_bytes:
        appended += values(PER_SEGMENT, len(appended))
        master.append_batch(appended[-PER_SEGMENT:])
        end.pump()
    for number in range(6):
        master.append_batch(values(PER_SEGMENT, 1_000_000 * number))
        master.run_background_tasks()
    assert master.start > len(appended)
    replica._connection.resume()
    lab.wait(lambda: bool(end.errors))
    assert isinstance(end.errors[0], TrimmedError)
    link.close()
    records = uncommitted(replica.log)
    assert len(records) > PER_SEGMENT
    assert records == appended[: len(records)]


def test_close_reports_closed_error_to_the_handler(lab: Lab) -> None:
    master = lab.master()
    server = lab.serve(MasterEnd(lab.reactor, master))
    replica = lab.replica("replica", master)
    link = lab.link(server, replica)
    lab.wait(lambda: link.connected)
    link.close()
    assert [type(error) for error in replica.errors] == [ClosedError]
    assert not replica.send(b"too late")


# ---- throttle --------------------------------------------------------------------------------------------------


def test_the_throttle_counts_bodies() -> None:
    throttle = RateLimiter(1000, burst=500, now_us=0)
    assert throttle.allowed(0) == 500
    throttle.spend(800)
    assert throttle.allowed(0) == 0
    assert throttle.wait_us() == pytest.approx(301_000, abs=2)
    assert throttle.allowed(300_000) == 0
    assert throttle.allowed(301_500) == 1
    assert throttle.allowed(10_000_000) == 500


def test_a_throttled_stream_takes_its_time(lab: Lab) -> None:
    """By the reactor's clock, the bytes that were sent never exceed burst and rate by more than one frame."""
    master = lab.master()
    master.append_batch(values(4 * PER_SEGMENT))
    rate, burst, frame = 1_000_000, 40_000, 10_000
    began = lab.reactor.clock.monotonic_us()
    sends: list[tuple[int, int]] = []

    class Watched(RateLimiter):
        def spend(self, count: int) -> None:
            super().spend(count)
            sends.append((lab.reactor.clock.monotonic_us(), count))

    def make(connection: Connection, position: int) -> StreamSender:
        throttle = Watched(rate, burst, lab.reactor.clock.monotonic_us())
        return StreamSender(lab.reactor, connection, master, position, transfer_bytes=frame, throttle=throttle)

    end = MasterEnd(lab.reactor, master, make)
    replica = lab.replica("replica", master)
    lab.link(lab.serve(end), replica)
    lab.caught_up(master, replica)
    total = 0
    for at_us, count in sends:
        total += count
        assert total <= burst + frame + (at_us - began) * rate / 1e6
    assert total == end.senders[0].sent_bytes == replica.received_bytes
    segments = len(segment_bases(master.path))
    assert sum(count < frame for _, count in sends) <= 2 * segments, "whole frames but for headers and ends of segments"
    assert_same_files(master, replica.log)


# ---- a bad network ---------------------------------------------------------------------------------------------


class Breaker:
    """A proxy in front of a master.

    It passes the bytes for the replica on in pieces of `chunks` bytes. It breaks connection i after `pieces[i]` bytes,
    and changes byte
    number `damage` of the first connection.
    """

    def __init__(
        self, target: tuple[str, int], *, pieces: list[int], chunks: tuple[int, ...] = (65536,), damage: int = -1
    ) -> None:
        self._target, self._pieces, self._chunks, self._damage = target, pieces, chunks, damage
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._open += [client, server]
            limit = self._pieces[number] if number < len(self._pieces) else 1 << 62
            damage = self._damage if number == 0 else -1
            for arguments in ((client, server, 1 << 62, -1), (server, client, limit, damage)):
                thread = threading.Thread(target=self._pass, args=arguments, daemon=True)
                self._threads.append(thread)
                thread.start()
            number += 1

    def _pass(self, source: socket.socket, target: socket.socket, limit: int, damage: int) -> None:
        passed = turn = 0
        try:
            while limit > passed:
                data = bytearray(source.recv(min(self._chunks[turn % len(self._chunks)], limit - passed)))
                if not data:
                    break
                if passed <= damage < passed + len(data):
                    data[damage - passed] ^= 0x10
                target.sendall(data)
                passed, turn = passed + len(data), turn + 1
        except OSError:
            return
        finally:
            for end in (source, target):
                _shut(end)

    def __enter__(self) -> Breaker:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for end in self._open:
            _shut(end)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        for end in (self._listener, *self._open):
            end.close()


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
