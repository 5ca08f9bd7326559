"""A ledger fails with the first entries of a submission: the outcome is unknown, as some messages are stored and others
are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.bookie.protocol import ReplyStatus, RequestKind
from pyreplog.cluster import Cluster
from pyreplog.errors import EntryRefusedError, NotEnoughBookiesError, OutcomeUnknownError
from pyreplog.future import AppendFuture
from pyreplog.topic.client.remote.client import connect
from pyreplog.topic.owner.managed import chain_writer
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer
from tests.ledger.fault_injection import RequestInterceptor
from tests.topic.handling import PATIENCE_S, stored, until
from tests.topic.remoting import Wire

Action = Callable[..., None]
STRIPED: dict[str, Any] = {
    "ensemble": 2, "write_quorum": 1, "ack_quorum": 1, "durability": "appended", "batch_messages": 1,
    "retention_bytes": None,
}  # fmt: skip
"""One message to an entry; entries alternate between the two bookies."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster in which a failed ledger is replaced at once, however young it was."""
    monkeypatch.setattr(chain_writer, "YOUNG_S", 0.0)
    with Cluster.embedded(tmp_path, bookies=2, segment_bytes=1 << 20) as cluster:
        yield cluster


@pytest.fixture
def wire(cluster: Cluster) -> Iterator[Wire]:
    """A wire to a server of the cluster's topics."""
    with TopicServer(cluster) as server, Wire(server.address) as wire:
        yield wire


@pytest.fixture
def topic(cluster: Cluster, wire: Wire) -> Topic:
    topic = cluster.topic("t", **STRIPED)
    assert topic.publish(b"before") == 0
    return topic


@pytest.fixture
def interceptor(cluster: Cluster, topic: Topic) -> Iterator[RequestInterceptor]:
    with RequestInterceptor(cluster) as interceptor:
        yield interceptor


@pytest.fixture(params=["here", "elsewhere"])
def publishes(request: pytest.FixtureRequest, wire: Wire, topic: Topic) -> Iterator[Any]:
    """The topic itself, or the topic of a client."""
    if request.param == "here":
        yield topic
        return
    with connect(f"pyreplog://{wire.address}") as client:
        yield client.topic("t")


def begin(topic: Topic, publishes: Any, interceptor: RequestInterceptor) -> tuple[AppendFuture[range], Action]:
    """Submit three messages, of which the ledger confirms the first; return the future, and a function that applies a
    action to the others."""
    ledger = topic.managed._writer.ledger
    assert ledger is not None and ledger.last_add_confirmed == 0
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD, bookie=ledger.metadata.last_fragment.ensemble[0])
    future = publishes.submit_batch([b"first", b"second", b"third"])
    until(lambda: ledger.last_add_confirmed == 1)

    def proceed(action: Action) -> None:
        interceptor.clear()
        interceptor.add_rule(action, kind=RequestKind.ADD)
        while interceptor._held:
            action(*interceptor._held.popleft())

    return future, proceed


def test_no_ledger_takes_the_rest(
    cluster: Cluster, topic: Topic, publishes: Any, interceptor: RequestInterceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that were submitted later are not stored at all, and their error says so."""
    monkeypatch.setattr(chain_writer, "STUCK_S", 0.0)
    in_part, proceed = begin(topic, publishes, interceptor)
    behind = publishes.submit_batch([b"none", b"of it"])
    proceed(interceptor.fail)
    with pytest.raises(OutcomeUnknownError, match="topic t: a part of the messages is stored, the others are not: "):
        in_part.result(PATIENCE_S)
    with pytest.raises(NotEnoughBookiesError):
        behind.result(PATIENCE_S)
    assert stored(topic) == {0: b"before", 1: b"first"} and topic.end == 2
    monkeypatch.setattr(chain_writer, "STUCK_S", PATIENCE_S)
    interceptor.clear()
    assert topic.publish_batch([b"second", b"third"]) == range(2, 4)
    assert stored(topic) == {0: b"before", 1: b"first", 2: b"second", 3: b"third"}


def test_a_submission_stored_in_part_has_an_unknown_outcome(
    topic: Topic, publishes: Any, interceptor: RequestInterceptor
) -> None:
    """EntryRefusedError alone would say that no message was stored."""
    in_part, proceed = begin(topic, publishes, interceptor)
    proceed(interceptor.replying(status=ReplyStatus.INVALID))
    with pytest.raises(OutcomeUnknownError, match="topic t: a part of the messages is stored, the others are not: "):
        in_part.result(PATIENCE_S)
    assert stored(topic) == {0: b"before", 1: b"first"}
    with pytest.raises(EntryRefusedError):
        publishes.submit_batch([b"none", b"of it"]).result(PATIENCE_S)
    interceptor.clear()
    assert topic.publish(b"more") == 2
    assert stored(topic) == {0: b"before", 1: b"first", 2: b"more"}


def test_the_link_is_lost_in_the_middle(wire: Wire, topic: Topic, interceptor: RequestInterceptor) -> None:
    """The connection of the client is lost when a part is stored. The owner stores the rest."""
    with connect(f"pyreplog://{wire.address}") as client:
        in_part, proceed = begin(topic, client.topic("t"), interceptor)
        wire.cut()
        with pytest.raises(OutcomeUnknownError):
            in_part.result(PATIENCE_S)
    assert topic.end == 1, "what was submitted together shows together"
    proceed(interceptor._send)
    until(lambda: topic.end == 4)
    assert stored(topic) == {0: b"before", 1: b"first", 2: b"second", 3: b"third"}


@pytest.mark.parametrize("bad", range(4), ids=["first", "second", "third", "last"])
def test_only_what_bookies_refuse_fails(topic: Topic, interceptor: RequestInterceptor, bad: int) -> None:
    """Messages that were queued together are one request. All except the refused one are stored, in order."""
    values = [b"bad" if number == bad else b"good %d" % number for number in range(4)]

    def judge(bookie: str, request: Any, on_reply: Any) -> None:
        action = (
            interceptor.replying(status=ReplyStatus.INVALID)
            if b"bad" in bytes(request.records)
            else interceptor.pass_on
        )
        action(bookie, request, on_reply)

    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
    futures = [topic.submit_batch([b"on its way"])]
    interceptor.wait_for(RequestKind.ADD)
    futures += [topic.submit_batch([value]) for value in values]
    interceptor.clear()
    interceptor.add_rule(judge, kind=RequestKind.ADD)
    interceptor.release()
    assert futures.pop(0).result(PATIENCE_S) == range(1, 2)
    with pytest.raises(EntryRefusedError):
        futures.pop(bad).result(PATIENCE_S)
    assert [future.result(PATIENCE_S) for future in futures] == [range(offset, offset + 1) for offset in (2, 3, 4)]
    interceptor.clear()
    del values[bad]
    assert list(stored(topic).values()) == [b"before", b"on its way", *values]
