"""The client in C for plain ADDs, and the bare path that the experiment of two I/O threads is measured with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.bounds.io_threads import AnyKey, TimedReactor, connect
from benchmarks.entries import make_values
from benchmarks.limits import adds
from benchmarks.proc import job
from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.net.frame import encode
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import ADD, OK, UNSYNCED, Reply, ReplyStatus, Request, encode_reply, encode_request
from pyreplog.bookie.service import SERVICE, BookieService
from pyreplog.net.handshake import NodeIdentity
from pyreplog.net.server import Server

SIZE = 100
PACKED = make_values(SIZE)
KEY = bytes(range(16))
LOG_BYTES = 1 << 17
CONFIG = BookieConfig(
    durability="appended", segment_bytes=1 << 20, read_only_below_bytes=0, writable_from_bytes=0, reserve_bytes=0
)


class BareBookie:
    """The bare path in threads of this process: one for each group of connections."""

    def __init__(self, stack: ExitStack, groups: list[int], *, locked: str, call: Callable[[], object] | None) -> None:
        self.log = adds.Log(LOG_BYTES, locked=locked)
        self.ends: list[socket.socket] = []
        self.errors: list[OSError] = []
        self._threads = []
        for count in groups:
            pairs = [socket.socketpair() for _ in range(count)]
            for pair in pairs:
                for stream in pair:
                    stack.enter_context(stream)
            self.ends += [ours for ours, _ in pairs]
            thread = threading.Thread(target=self._serve, args=([theirs for _, theirs in pairs], call))
            self._threads.append(thread)
            thread.start()

    def _serve(self, streams: list[socket.socket], call: Callable[[], object] | None) -> None:
        try:
            self.log.serve([stream.fileno() for stream in streams], call)
        except OSError as error:
            self.errors.append(error)
            for stream in streams:
                stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in self.ends:
            end.close()
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads)


@pytest.fixture
def bare() -> Iterator[Callable[..., BareBookie]]:
    with ExitStack() as stack:

        def make(groups: list[int], *, locked: str = "copy", call: Callable[[], object] | None = None) -> BareBookie:
            bookie = BareBookie(stack, groups, locked=locked, call=call)
            stack.callback(bookie.close)
            return bookie

        yield make


def clients_of(bookie: BareBookie) -> list[adds.Client]:
    values = adds.Values(PACKED)
    return [adds.Client(end.fileno(), values, ledger=number, key=KEY) for number, end in enumerate(bookie.ends)]


def append_at_once(clients: list[adds.Client], count: int, window: int) -> None:
    threads = [threading.Thread(target=client.append, args=(count, window)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [client.entries for client in clients] == [count] * len(clients)


@pytest.mark.parametrize("locked", ["CRC", "copy", "place"])
@pytest.mark.parametrize("groups", [[2], [1, 1], [2, 1, 1]])
@pytest.mark.parametrize("window", [1, 16])
def test_each_entry_of_concurrent_writers_is_stored_once(
    groups: list[int], locked: str, window: int, bare: Callable[..., BareBookie]
) -> None:
    bookie, rounds = bare(groups, locked=locked), 5 * LOG_BYTES // 168 // sum(groups)  # the log goes round
    append_at_once(clients_of(bookie), rounds, window)
    bookie.close()
    assert bookie.errors == []
    assert bookie.log.records == rounds * sum(groups)
    assert 0 < bookie.log.check(adds.Values(PACKED)) <= LOG_BYTES // 168
    with pytest.raises(ValueError, match="not what was written"):
        bookie.log.check(adds.Values(PACKED[::-1]))


def test_the_lock_is_held_and_the_call_is_made_once_for_each_receive(bare: Callable[..., BareBookie]) -> None:
    calls: list[int] = []
    bookie = bare([1], call=lambda: calls.append(1))
    append_at_once(clients_of(bookie), 50, 1)
    bookie.close()
    assert len(calls) == bookie.log.takings == 50
    assert bookie.log.held_ns > 0


def request(entry: int, *, ledger: int = 7, key: bytes = KEY, damaged: bool = False) -> bytes:
    records = bytearray(encode_entries(PACKED[:1], ledger=ledger, first=entry, lac=entry - 1, time=1).view)
    records[-1] ^= damaged
    return encode(entry, encode_request(Request(ADD, ledger, entry, entry, key, UNSYNCED)) + records)


@pytest.mark.parametrize("locked", ["CRC", "copy", "place"])
@pytest.mark.parametrize(
    ("second", "code"),
    [
        (request(1, damaged=True), "EBADMSG"),
        (request(0), "EPROTO"),
        (request(1, key=bytes(16)), "EPROTO"),
        (encode(1, encode_request(Request(ADD, 7, 1, 1, KEY, UNSYNCED))), "EPROTO"),
    ],
    ids=["damaged", "in the ledger already", "another key", "no record"],
)
def test_the_bare_path_refuses_what_a_bookie_refuses(
    second: bytes, code: str, locked: str, bare: Callable[..., BareBookie]
) -> None:
    bookie = bare([1], locked=locked)
    bookie.ends[0].sendall(request(0))
    assert len(bookie.ends[0].recv(52, socket.MSG_WAITALL)) == 52
    bookie.ends[0].sendall(second)
    while bookie.ends[0].recv(1 << 16):
        pass
    bookie.close()
    (error,) = bookie.errors
    assert code in str(error)
    assert bookie.log.records == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(OK, 7, 0, 0, -1)._replace(status=ReplyStatus.FENCED),
        Reply(OK, 8, 0, 0, -1),
        Reply(OK, 7, 1, 1, 0),
        Reply(OK, 7, 0, 0, -1)._replace(body=b"a reason"),
    ],
)
def test_the_client_takes_no_other_reply_for_an_ok(reply: Reply) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = adds.Client(ours.fileno(), adds.Values(PACKED), ledger=7, key=KEY)
        theirs.sendall(encode(0, encode_reply(reply) + bytes(reply.body)))
        with pytest.raises(OSError, match="EPROTO"):
            client.append(1, 1)


def test_the_client_passes_over_heartbeats_and_takes_replies_cut_anywhere() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = adds.Client(ours.fileno(), adds.Values(PACKED), ledger=7, key=KEY)
        replies = b"".join(encode(n, encode_reply(Reply(OK, 7, n, n, n - 1))) + encode(n, b"") for n in range(3))
        writer = threading.Thread(target=client.append, args=(3, 3))
        writer.start()
        for at in range(len(replies)):
            theirs.sendall(replies[at : at + 1])
        writer.join(30)
        assert not writer.is_alive()
        assert client.entries == 3


def test_a_bookie_that_goes_ends_the_client() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        client = adds.Client(ours.fileno(), adds.Values(PACKED), ledger=7, key=KEY)
        theirs.close()
        with pytest.raises(OSError, match="bare path of an ADD"):
            client.append(1, 1)


def test_arguments_out_of_range_are_refused(bare: Callable[..., BareBookie]) -> None:
    with pytest.raises(ValueError, match="key of 16 bytes"):
        adds.Client(0, adds.Values(PACKED), ledger=7, key=b"short")
    with pytest.raises(ValueError, match="one size"):
        adds.Values([b"a", b"bc"])
    with pytest.raises(ValueError, match="sockets"):
        adds.Log(LOG_BYTES, locked="copy").serve([])
    with pytest.raises(ValueError, match="locked: expected one of CRC, copy, place, found all"):
        adds.Log(LOG_BYTES, locked="all")
    with pytest.raises(ValueError, match="more than 4096"):
        adds.Log(4096, locked="copy")


@pytest.mark.parametrize("shift", [0, 1])
def test_a_bookie_with_other_entries_than_its_client_added_is_noticed(shift: int, tmp_path: Path) -> None:
    """The job reads every entry back, and ends with an error if one is not the value that stands for its number."""
    values = make_values(1024)
    settings = {"durability": "appended", "segment_bytes": 1 << 20}
    floors = {"read_only_below_bytes": 0, "writable_from_bytes": 0, "reserve_bytes": 0}
    with job("io_threads_bookie", str(tmp_path / "bookie"), 1, settings | floors, False) as started:
        told = started.answer()
        with connect(told["ports"][0], greeted=True) as stream:
            rotated = adds.Values(values[shift:] + values[:shift])
            adds.Client(stream.fileno(), rotated, ledger=7, key=KEY).append(40, 1)
        started.ask("verify")
        if shift:
            with pytest.raises(RuntimeError, match="ended with status 1"):
                started.answer()
        else:
            assert started.answer() == {"records": 40}


def test_two_reactors_store_what_clients_in_c_add_to_one_bookie(tmp_path: Path) -> None:
    """What the experiment calls two threads with one GIL: two services of one LocalBookie."""
    with ExitStack() as stack:
        bookie = stack.enter_context(LocalBookie(tmp_path / "bookie", CONFIG))
        reactors = [TimedReactor(), TimedReactor()]
        clients = []
        for number, reactor in enumerate(reactors):
            service = BookieService(reactor, bookie, AnyKey())
            server = Server(reactor, service, identity=NodeIdentity(service=SERVICE))
            for close in (reactor.close, service.close, server.close):
                stack.callback(close)
            reactor.start()
            stream = stack.enter_context(connect(server.address[1], greeted=True))
            clients.append(adds.Client(stream.fileno(), adds.Values(PACKED), ledger=number, key=KEY))
        for client in clients:
            client.append(1, 1)
        threads = [threading.Thread(target=client.append, args=(200, 16)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [client.entries for client in clients] == [201, 201]
        assert all(reactor.held_ns > 0 for reactor in reactors)
        for ledger in range(2):
            records, after = bookie.log.read(ledger, 0, 201, 1 << 20)
            batch = parse_entries(records, ledger=ledger, first=0, last=200)
            assert after == 201 and list(batch.values()) == [PACKED[n % len(PACKED)] for n in range(201)]
