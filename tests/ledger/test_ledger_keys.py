"""A client that can reach the bookies cannot set the key of a ledger that is not its own, and so cannot keep the
ledger's writer out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyreplog.bookie import key_verifier
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.bookie.protocol import Flag, ReplyStatus, Request, RequestKind
from pyreplog.errors import MetadataUnavailableError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import ledger_key
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.sqlite import SQLiteStore
from tests.bookie.asking import ANY_SPACE, add, last, read, set_lac
from tests.bookie.tcp import Client
from tests.waiting import PATIENCE_S, until

EVIL = b"E" * 16


class Facts(StoredLedgers):
    """Stored ledgers whose metadata store may be away, or may answer late."""

    def __init__(self, store: SQLiteStore) -> None:
        super().__init__(store)
        self.away = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = 0

    def admits(self, ledger: int, key: bytes) -> bool | None:
        self.asked += 1
        assert self.may_answer.wait(PATIENCE_S)
        if self.away:
            raise MetadataUnavailableError("the store is away")
        return super().admits(ledger, key)

    def admits_copy(self, ledger: int, proof: bytes) -> bool | None:
        self.asked += 1
        assert self.may_answer.wait(PATIENCE_S)
        if self.away:
            raise MetadataUnavailableError("the store is away")
        return super().admits_copy(ledger, proof)


class Bookies:
    """Four bookies, and the metadata that they read."""

    def __init__(self, path: Path) -> None:
        self.store = SQLiteStore(path / "metadata")
        self.facts = Facts(self.store)
        config = BookieConfig(segment_bytes=1 << 20, **ANY_SPACE)
        self.nodes = [BookieNode(path / name, name, self.store, config, ledgers=self.facts) for name in "abcd"]

    def each(self, ask: Callable[[Client], object]) -> None:
        for node in self.nodes:
            with Client(node.address) as client:
                ask(client)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.store.close()


@pytest.fixture
def bookies(tmp_path: Path) -> Iterator[Bookies]:
    bookies = Bookies(tmp_path)
    yield bookies
    bookies.close()


@pytest.fixture
def cluster(bookies: Bookies) -> Iterator[LedgerCluster]:
    with LedgerCluster.connect(f"sqlite:{bookies.store.path}", request_timeout_ms=30_000) as cluster:
        yield cluster


def claims(ledger: int) -> list[Request]:
    """Return requests of all kinds that set the key of a ledger."""
    return [
        last(ledger=ledger, fence=True, key=EVIL),
        read(0, 5, ledger=ledger, flags=Flag.FENCE, key=EVIL),
        set_lac(5, ledger=ledger, key=EVIL),
        add(0, ledger=ledger, key=EVIL),
        add(0, ledger=ledger, key=EVIL, flags=Flag.RECOVERY),
        add(0, ledger=ledger, key=EVIL, flags=Flag.UNSYNCED),
    ]


def test_ledgers_that_are_not_there_yet_get_no_key(bookies: Bookies, cluster: LedgerCluster) -> None:
    """Ids of ledgers ascend, so that a client can guess the next ones."""
    with cluster.create_ledger() as ledger:
        ledger.append(b"before")

    def claim_next_ids(client: Client) -> None:
        for coming in range(ledger.id + 1, ledger.id + 4):
            for claim in claims(coming):
                assert client.ask(claim).status == ReplyStatus.UNAUTHORIZED
            assert client.ask(last(ledger=coming)).last == -1

    bookies.each(claim_next_ids)
    for _ in range(3):
        with cluster.create_ledger(4, 4, 4) as ledger:
            ledger.append(b"fine")
        assert len(ledger.metadata.fragments) == 1  # no bookie was replaced
        with cluster.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 0


def test_a_ledger_that_is_there_takes_its_own_key_only(bookies: Bookies, cluster: LedgerCluster) -> None:
    """This holds as well at bookies without entries of the ledger. The key of a deleted ledger is not accepted either."""
    with cluster.create_ledger(1, 1, 1) as ledger:

        def claim(client: Client) -> None:
            assert {client.ask(claim).status for claim in claims(ledger.id)} == {ReplyStatus.UNAUTHORIZED}

        bookies.each(claim)
        assert ledger.append(b"fine") == 0
        bookies.each(claim)
    cluster.delete_ledger(ledger.id)
    free = next(node for node in bookies.nodes if node.identity.id not in ledger.metadata.bookies())
    with Client(free.address) as client:
        right = add(0, ledger=ledger.id, key=ledger_key(b""))
        assert client.ask(right).status == ReplyStatus.UNAUTHORIZED


def test_bookies_that_took_a_key_while_the_metadata_were_away_are_replaced(
    bookies: Bookies, cluster: LedgerCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the metadata a bookie accepts any key, so that open ledgers go on. The writer of the ledger replaces such
    a bookie, and the log names it."""
    monkeypatch.setattr(key_verifier, "AWAY_S", 0.1)
    with cluster.create_ledger() as ledger:
        ledger.append(b"before")
    bookies.facts.away = True
    misled = bookies.nodes[0]
    with Client(misled.address) as client:
        for coming in range(ledger.id + 1, ledger.id + 6):
            assert client.ask(last(ledger=coming, fence=True, key=EVIL)).status == ReplyStatus.OK
    bookies.facts.away = False
    until(lambda: not misled.service.is_store_away)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):  # each bookie becomes a candidate
            with cluster.create_ledger() as ledger:
                assert ledger.append(b"fine") == 0
            assert misled.identity.id not in ledger.metadata.last_fragment.ensemble
            with cluster.open_ledger(ledger.id) as reader:
                assert reader.last_add_confirmed == 0
    assert f"bookie {misled.identity.id} refuses its key" in caplog.text


def test_a_ledger_begins_while_the_metadata_are_away(
    bookies: Bookies, cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was created before. The test has metadata that raise an error, and metadata that do not answer."""
    monkeypatch.setattr(key_verifier, "PATIENCE_S", 0.05)
    monkeypatch.setattr(key_verifier, "AWAY_S", 0.1)
    with cluster.create_ledger() as ledger, cluster.create_ledger() as other:
        bookies.facts.away = True
        assert ledger.append(b"fine") == 0
        bookies.facts.away = False
        for node in bookies.nodes:
            until(lambda node=node: not node.service.is_store_away)
        bookies.facts.may_answer.clear()
        assert other.append(b"fine") == 0
        bookies.facts.may_answer.set()


def test_keys_that_one_connection_may_give_meanwhile_are_bounded(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_verifier, "UNPROVEN_MAX", 5)
    bookies.facts.away = True
    with Client(bookies.nodes[0].address) as greedy, Client(bookies.nodes[0].address) as other:
        statuses = [greedy.ask(add(0, ledger=ledger)).status for ledger in range(100, 108)]
        assert statuses == [ReplyStatus.OK] * 5 + [ReplyStatus.UNKNOWN] * 3
        assert greedy.ask(add(1, ledger=100)).status == ReplyStatus.OK
        assert other.ask(add(0, ledger=200)).status == ReplyStatus.OK


def test_key_of_pipelined_adds_is_looked_up_once_and_answers_keep_their_order(
    bookies: Bookies, cluster: LedgerCluster
) -> None:
    with cluster.create_ledger(4, 4, 4) as ledger, Client(bookies.nodes[0].address) as client:
        bookies.facts.may_answer.clear()
        key, before = ledger_key(b""), bookies.facts.asked
        answers = client.send(
            *(add(entry, ledger=ledger.id, key=key) for entry in range(5)), Request(RequestKind.STATUS)
        )
        client.wait(answers, 1)  # other requests are handled first
        bookies.facts.may_answer.set()
        client.wait(answers, 6)
        assert bookies.facts.asked == before + 1
        assert [reply.last for reply in answers[1:]] == [0, 1, 2, 3, 4]  # type: ignore[union-attr]


def test_claims_end_with_their_connection(bookies: Bookies) -> None:
    bookies.facts.may_answer.clear()
    service = bookies.nodes[0].service
    with Client(bookies.nodes[0].address) as client:
        client.send(*(add(0, ledger=ledger) for ledger in range(100, 120)))
        until(lambda: client.reactor.drive(lambda: service.waiting_claims == 20, 0.01))
    until(lambda: not service.waiting_claims)
    bookies.facts.may_answer.set()


# ---- copies ------------------------------------------------------------------------------------------------------


def copy(*entries: int, ledger: int, proof: bytes) -> Request:
    return add(*entries, ledger=ledger, key=proof, flags=Flag.COPY)


def test_copies_come_with_the_proof_that_the_metadata_have(bookies: Bookies, cluster: LedgerCluster) -> None:
    """This holds for a ledger with a password, too, whose key is not stored anywhere."""
    with cluster.create_ledger(1, 1, 1, password=b"secret") as ledger:
        ledger.append(b"fine")
        proof, key = ledger.metadata.proof_bytes, ledger_key(b"secret")
        free = next(node for node in bookies.nodes if node.identity.id not in ledger.metadata.bookies())
        with Client(free.address) as client:
            for wrong in (key, EVIL, bytes(16)):
                assert client.ask(copy(0, ledger=ledger.id, proof=wrong)).status == ReplyStatus.UNAUTHORIZED
            assert client.ask(copy(0, ledger=ledger.id + 1, proof=proof)).status == ReplyStatus.UNAUTHORIZED
            before = bookies.facts.asked
            for entry in range(3):
                assert client.ask(copy(entry, ledger=ledger.id, proof=proof)).status == ReplyStatus.OK
            assert bookies.facts.asked == before + 1
            assert client.ask(add(3, ledger=ledger.id, key=proof)).status == ReplyStatus.UNAUTHORIZED
            assert client.ask(last(ledger=ledger.id, fence=True, key=EVIL)).status == ReplyStatus.UNAUTHORIZED
            assert client.ask(add(3, ledger=ledger.id, key=key)).status == ReplyStatus.OK
    cluster.delete_ledger(ledger.id)
    other = next(node for node in bookies.nodes if node is not free)
    with Client(other.address) as client:
        assert client.ask(copy(0, ledger=ledger.id, proof=proof)).status == ReplyStatus.UNAUTHORIZED


def test_copies_wait_for_metadata_that_are_away(
    bookies: Bookies, cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer's key is accepted in that time. A client that copies entries has to repeat its request."""
    monkeypatch.setattr(key_verifier, "AWAY_S", 0.1)
    with cluster.create_ledger(1, 1, 1) as ledger, Client(bookies.nodes[0].address) as client:
        proof = ledger.metadata.proof_bytes
        bookies.facts.away = True
        for request in (copy(0, ledger=ledger.id, proof=proof), copy(0, ledger=ledger.id, proof=EVIL)):
            assert client.ask(request).status == ReplyStatus.UNKNOWN
        bookies.facts.away = False
        until(lambda: not bookies.nodes[0].service.is_store_away)
        assert client.ask(copy(0, ledger=ledger.id, proof=proof)).status == ReplyStatus.OK
        bookies.facts.away = True
        assert client.ask(copy(1, ledger=ledger.id, proof=proof)).status == ReplyStatus.OK, "it is known by now"


def test_a_key_and_a_proof_of_equal_bytes_are_asked_for_apart(bookies: Bookies, cluster: LedgerCluster) -> None:
    with cluster.create_ledger(4, 4, 4) as ledger, Client(bookies.nodes[0].address) as client:
        proof = ledger.metadata.proof_bytes
        bookies.facts.may_answer.clear()
        answers = client.send(add(5, ledger=ledger.id, key=proof), copy(5, ledger=ledger.id, proof=proof))
        until(lambda: client.reactor.drive(lambda: bookies.nodes[0].service.waiting_claims == 2, 0.01))
        bookies.facts.may_answer.set()
        client.wait(answers, 2)
        assert {reply.status for reply in answers} == {ReplyStatus.OK, ReplyStatus.UNAUTHORIZED}  # type: ignore[union-attr]
