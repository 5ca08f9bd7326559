"""Requests of newer versions: a client sends them only to bookies whose hello says that they know them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.bookie import node as bookie_node
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.holdings import Holdings
from pyreplog.bookie.node import BookieNode
from pyreplog.bookie.protocol import FEATURES, Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import NotConnectedError
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, key_proof, ledger_key, metadata_key
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.ledger.remote_runtime import RemoteRuntime
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.sqlite import SQLiteStore
from tests.bookie.asking import ANY_SPACE, add
from tests.waiting import PATIENCE_S, until

PROOF = bytes.fromhex(key_proof(ledger_key(b"")))
COPY = add(0, 1, key=PROOF, flags=Flag.COPY)
HOLDINGS = Request(RequestKind.HOLDINGS, COPY.ledger, 0, 9)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "metadata") as sqlite_store:
        yield sqlite_store


@pytest.fixture(params=[FEATURES, frozenset({"holdings"}), frozenset()], ids=["new", "between", "old"])
def node(
    request: pytest.FixtureRequest, tmp_path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BookieNode]:
    monkeypatch.setattr(bookie_node, "FEATURES", request.param)
    config = BookieConfig(segment_bytes=1 << 20, **ANY_SPACE)
    with BookieNode(tmp_path / "b", "b", store, config, ledgers=StoredLedgers(store)) as node:
        metadata = LedgerMetadata(
            ledger=COPY.ledger,
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            fragments=(Fragment(0, (node.identity.id,)),),
            proof=PROOF.hex(),
        )
        store.create(metadata_key(COPY.ledger), metadata.encode())
        yield node


def runtime(store: SQLiteStore) -> RemoteRuntime:
    return RemoteRuntime(
        store,
        cluster_id(store),
        secret=None,
        tls=None,
        limits=None,
        request_timeout_ms=round(PATIENCE_S * 1000),
        busy_poll_us=0,
    )


def ask(client: RemoteRuntime, bookie: str, *requests: Request) -> list[Reply | Exception]:
    """Send requests together; return their answers in the same order."""
    answers: dict[int, Reply | Exception] = {}
    for number, request in enumerate(requests):
        client.send(bookie, request, lambda answer, number=number: answers.update({number: answer}))
    assert client.reactor.drive(lambda: len(answers) == len(requests), PATIENCE_S), "no answer"
    return [answers[number] for number in range(len(requests))]


def test_requests_of_newer_versions_are_sent_only_to_bookies_that_know_them(
    store: SQLiteStore, node: BookieNode
) -> None:
    """The request may be sent before there is a connection, and later."""
    knows = node.server.identity.features
    client = runtime(store)
    try:
        for _ in range(2):
            copied, held = ask(client, node.identity.id, COPY, HOLDINGS)
            assert isinstance(copied, Reply) and isinstance(held, Reply)
            for reply, feature in ((copied, "copy"), (held, "holdings")):
                assert reply.status == (ReplyStatus.OK if feature in knows else ReplyStatus.UNSUPPORTED), feature
                if feature not in knows:
                    assert f"{node.identity.id} does not know '{feature}': upgrade it" in bytes(reply.body).decode()
            (again,) = ask(client, node.identity.id, HOLDINGS)
            assert isinstance(again, Reply)
            if "holdings" in knows:
                assert Holdings.decode(HOLDINGS, again).count == (2 if "copy" in knows else 0)
        counts = node.bookie.counts.requests
        assert bool(counts[RequestKind.ADD]) == ("copy" in knows)
        assert bool(counts[RequestKind.HOLDINGS]) == ("holdings" in knows)
    finally:
        client.close()


def test_a_bookie_that_is_not_there(store: SQLiteStore, node: BookieNode) -> None:
    client = runtime(store)
    try:
        for _ in range(2):
            answers = ask(client, "nobody@" + "00" * 16, COPY, HOLDINGS)
            assert [type(answer) for answer in answers] == [NotConnectedError, NotConnectedError]
        ask(client, node.identity.id, HOLDINGS)
        node.close()
        until(  # the client may notice the lost connection a moment later
            lambda: all(isinstance(answer, Exception) for answer in ask(client, node.identity.id, COPY, HOLDINGS))
        )
    finally:
        client.close()
