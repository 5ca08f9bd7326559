"""The bookie over TCP, in this process: turns, commits, long polls, bad requests, limits, draining."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.net.frame import FrameBatch
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.bookie.registration import Availability, availability_key
from pyreplog.bookie.service import BookieService
from pyreplog.errors import (
    AuthenticationError,
    IncarnationError,
    LockedError,
    PoisonedError,
    ReplogError,
    WrongClusterError,
)
from pyreplog.metadata.memory import MemoryStore
from pyreplog.net.connection import Connection
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from tests.bookie.asking import ANY_SPACE, Facts, add, entries_in, last, read, records_of, set_lac, wait_lac
from tests.bookie.tcp import Client

Start = Callable[..., BookieNode]


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as memory_store:
        yield memory_store


@pytest.fixture
def start(tmp_path: Path, store: MemoryStore) -> Iterator[Start]:
    nodes: list[BookieNode] = []

    def started(
        name: str = "b1", durability: str = "synced", collect_interval_ms: int = 60_000, **settings: Any
    ) -> BookieNode:
        config = BookieConfig.of(
            {
                "durability": durability,
                "segment_bytes": 1 << 20,
                "collect_interval_ms": collect_interval_ms,
                **ANY_SPACE,
            }
        )
        node = BookieNode(
            tmp_path / name,
            name,
            store,
            config,
            **{"ledgers": Facts(), **settings},
        )
        nodes.append(node)
        return node

    yield started
    for node in nodes:
        node.close()


def statuses(answers: list[Reply | ReplogError]) -> list[int | str]:
    return [answer.status if isinstance(answer, Reply) else type(answer).__name__ for answer in answers]


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_requests_of_all_kinds_over_tcp(durability: str, start: Start) -> None:
    with Client(start(durability=durability).address) as client:
        assert client.ask(add(0, 1, 2)) == Reply(ReplyStatus.OK, 7, 0, 2, 1)
        assert client.ask(add(3, flags=Flag.UNSYNCED)).status == ReplyStatus.OK
        assert entries_in(client.ask(read(0, 9))) == [0, 1, 2, 3]
        assert entries_in(client.ask(read(1, 9, step=2))) == [1, 3]
        assert client.ask(set_lac(3)).lac == 3 and client.ask(wait_lac(2)).lac == 3
        assert client.ask(wait_lac(3, limit=20)).lac == 3
        assert client.ask(last(fence=True)).last == 3
        assert client.ask(add(4)).status == ReplyStatus.FENCED
        assert client.ask(Request(RequestKind.STATUS)).status == ReplyStatus.OK


def test_pipelined_adds_share_syncs(start: Start) -> None:
    node = start()
    syncs: list[object] = []
    sent = threading.Event()
    real = node.bookie.log.sync

    def sync() -> None:
        assert sent.wait(60)
        syncs.append(real())

    node.bookie.log.sync = sync  # type: ignore[method-assign]
    with Client(node.address) as client:
        client.ask(last())
        answers = client.send(*(add(entry) for entry in range(200)))
        sent.set()
        assert statuses(client.wait(answers, 200)) == [ReplyStatus.OK] * 200
        assert 1 <= len(syncs) < 100
        assert client.ask(last()).last == 199


def test_fast_add_counts_as_in_flight_until_it_is_synced(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    node = start()
    real, genuine = node.bookie.log.sync, BookieService.frames
    inflight: list[list[int]] = []
    slow: list[int] = []

    def sync() -> None:
        inflight.append([connection.inflight for connection in node.server.connections])
        real()

    def note(service: BookieService, connection: Connection, batch: FrameBatch) -> None:
        slow.append(len(batch))
        genuine(service, connection, batch)

    with Client(node.address) as client:
        client.ask(last())
        monkeypatch.setattr(BookieService, "frames", note)
        node.bookie.log.sync = sync  # type: ignore[method-assign]
        for entry in range(3):
            assert client.ask(add(entry)) == Reply(ReplyStatus.OK, 7, entry, entry, entry - 1)
        assert inflight == [[1], [1], [1]] and slow == [1], "only the first ADD brings a key"
        assert entries_in(client.ask(read(0, 9))) == [0, 1, 2]


def test_each_of_many_clients_gets_its_own_replies(start: Start) -> None:
    node = start()
    wrong: list[object] = []

    def work(ledger: int) -> None:
        with Client(node.address) as client:
            for first in range(0, 100, 20):
                answers = client.send(*(add(entry, ledger=ledger) for entry in range(first, first + 20)))
                if statuses(client.wait(answers, 20)) != [ReplyStatus.OK] * 20:
                    wrong.append(answers)
            if entries_in(client.ask(read(0, 200, ledger=ledger))) != list(range(100)):
                wrong.append(ledger)

    threads = [threading.Thread(target=work, args=(ledger,)) for ledger in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_long_poll_of_one_client_ends_by_another(start: Start) -> None:
    node = start()
    with Client(node.address) as waiting, Client(node.address) as writing:
        writing.ask(add(0))
        answers = waiting.send(wait_lac(0, limit=60_000))
        waiting.ask(last())
        assert answers == []
        writing.ask(add(2))
        (answer,) = waiting.wait(answers, 1)
        assert isinstance(answer, Reply) and answer.lac == 1


@pytest.mark.parametrize(
    "body",
    [b"x", b"\x02\x00\x00\x01" + bytes(44) + b"records", b"\x02\x00\x01\x01" + b"\xff" * 44, b"\x63" + bytes(46)],
)
def test_requests_that_make_no_sense_end_their_connection_and_no_other(body: bytes, start: Start) -> None:
    node = start()
    with Client(node.address) as bad, Client(node.address) as good:
        good.ask(add(0))
        answers: list[Any] = []
        bad.channel.request(body, on_reply=answers.append, timeout=60)
        assert bad.reactor.drive(lambda: bool(answers), 60) and isinstance(answers[0], ReplogError)
        assert good.ask(last()).last == 0
        assert bad.ask(last()).last == 0, "it connects again"


def test_replies_fit_into_what_the_client_takes(start: Start) -> None:
    with Client(start().address, limits=Limits(max_body_bytes=2000)) as client:
        client.ask(add(*range(100)))
        some = client.ask(read(0, 99))
        assert 0 < len(entries_in(some)) < 99 and some.last < 99
        large = records_of(100, mark=b"." * 3000)
        with pytest.raises(ReplogError):
            client.ask(Request(RequestKind.ADD, 7, 100, 100, b"k" * 16, records=large * 2000))


def test_reads_wait_for_the_replies_before_them(start: Start) -> None:
    """A client that asks for much more than it takes: the bookie does not read it all for it, nor lose any of it."""
    node = start(limits=Limits(queued_bytes=1 << 20))
    with Client(node.address) as client, Client(node.address) as other:
        client.ask(add(*range(100), mark=b"." * 3000))
        answers = client.send(*[read(0, 99)] * 300)
        for _ in range(5):
            assert entries_in(other.ask(read(0, 0))) == [0]
            assert max(connection.queued_bytes for connection in node.server.connections) <= (1 << 20) + 400_000
        assert all(entries_in(answer) == list(range(100)) for answer in client.wait(answers, 300))
        assert node.service.waiting_readers == 0
        client.send(*[read(0, 99)] * 300)
        assert entries_in(other.ask(read(0, 0))) == [0]
    node.close()
    assert node.service.waiting_readers == 0


def test_an_entry_too_large_for_a_client_is_unknown_to_it(start: Start) -> None:
    node = start()
    with Client(node.address) as writer, Client(node.address, limits=Limits(max_body_bytes=1000)) as reader:
        assert writer.ask(add(0, mark=b"." * 3000)).status == ReplyStatus.OK
        assert reader.ask(read(0, 0)).status == ReplyStatus.UNKNOWN
        assert entries_in(writer.ask(read(0, 0))) == [0]


def test_identity_and_secret_are_checked_on_every_connection(start: Start) -> None:
    node = start(secret=Secret(b"s" * 16))
    mine = {
        "node": "b1",
        "incarnation": node.identity.incarnation,
        "cluster": node.identity.cluster.hex(),
        "service": "bookie",
    }
    with Client(node.address, secret=Secret(b"s" * 16), expected=NodeIdentity(**mine)) as client:
        assert client.ask(last()).status == ReplyStatus.OK
    for wrong, error in (({"incarnation": b"x" * 16}, IncarnationError), ({"cluster": "00"}, WrongClusterError)):
        with Client(node.address, secret=Secret(b"s" * 16), expected=NodeIdentity(**{**mine, **wrong})) as client:
            with pytest.raises(ReplogError):
                client.ask(last())
            assert isinstance(client.channel.error, error)
    with Client(node.address, secret=Secret(b"t" * 16)) as client:
        with pytest.raises(ReplogError):
            client.ask(last())
        assert isinstance(client.channel.error, AuthenticationError)


def test_bookie_is_registered_while_it_runs(start: Start, store: MemoryStore) -> None:
    node = start(rack="r7")
    stored = store.get(availability_key(node.identity.id))
    assert stored is not None
    availability = Availability.decode(stored.value)
    assert (availability.address, availability.rack, availability.read_only) == (
        node.address,
        "r7",
        False,
    ) and availability.free_bytes > 0
    node.maintain()
    assert node.drain(60)
    assert store.get(availability_key(node.identity.id)) is None


def test_draining_answers_what_was_asked_for(start: Start) -> None:
    node = start()
    with Client(node.address) as client:
        client.ask(add(0))
        poll = client.send(wait_lac(50, limit=60_000))
        client.ask(last())
        assert node.drain(60)
        (answer,) = client.wait(poll, 1)
        assert isinstance(answer, Reply) and answer.status == ReplyStatus.OK
    again = start()
    assert again.identity.id == node.identity.id
    with Client(again.address) as client:
        assert client.ask(last()).last == 0


def test_a_second_one_on_the_same_directory(start: Start) -> None:
    node = start()
    with pytest.raises(LockedError):
        start()
    with Client(node.address) as client:
        assert client.ask(add(0)).status == ReplyStatus.OK


def test_a_failed_disk_ends_a_bookie(start: Start) -> None:
    node = start()

    def fail() -> None:
        raise PoisonedError("sync failed")

    node.bookie.log.sync = fail  # type: ignore[method-assign]
    with Client(node.address) as client:
        assert client.ask(add(0)).status == client.ask(last()).status == ReplyStatus.UNKNOWN
        with pytest.raises(PoisonedError):
            node.maintain()


def test_bookie_collects_garbage_while_it_serves(start: Start, store: MemoryStore) -> None:
    facts = Facts()
    facts.store = store
    node = start(durability="appended", collect_interval_ms=1, ledgers=facts)
    store.create("/ledgers/1", b"")
    with Client(node.address) as client:
        for entry in range(8):
            client.ask(add(entry, ledger=1, mark=b"." * 100))
            client.ask(add(entry, ledger=2, mark=b"." * 400_000))
        assert node.bookie.log.log.start_position == 0
        while node.bookie.log.log.start_position == 0:
            node.maintain()
        assert entries_in(client.ask(read(0, 9, ledger=1))) == list(range(8))
        assert client.ask(last(ledger=2)).status == ReplyStatus.REFUSED
