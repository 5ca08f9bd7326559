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
from tests.ledger.standins import Meddler
from tests.topic.handling import PATIENCE_S, stored, until
from tests.topic.remoting import Wire

Deed = Callable[..., None]
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
def meddler(cluster: Cluster, topic: Topic) -> Iterator[Meddler]:
    with Meddler(cluster) as meddler:
        yield meddler


@pytest.fixture(params=["here", "elsewhere"])
def publishes(request: pytest.FixtureRequest, wire: Wire, topic: Topic) -> Iterator[Any]:
    """The topic itself, or the topic of a client."""
    if request.param == "here":
        yield topic
        return
    with connect(f"pyreplog://{wire.address}") as client:
        yield client.topic("t")


def begin(topic: Topic, publishes: Any, meddler: Meddler) -> tuple[AppendFuture[range], Deed]:
    """Submit three messages, of which the ledger confirms the first; return the future, and a function that applies a
    deed to the others."""
    ledger = topic.managed._writer.ledger
    assert ledger is not None and ledger.last_add_confirmed == 0
    meddler.rule(meddler.hold, kind=RequestKind.ADD, bookie=ledger.metadata.last_fragment.ensemble[0])
    future = publishes.submit_batch([b"first", b"second", b"third"])
    until(lambda: ledger.last_add_confirmed == 1)

    def go_on(deed: Deed) -> None:
        meddler.clear()
        meddler.rule(deed, kind=RequestKind.ADD)
        while meddler._held:
            deed(*meddler._held.popleft())

    return future, go_on


def test_no_ledger_takes_the_rest(
    cluster: Cluster, topic: Topic, publishes: Any, meddler: Meddler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that were submitted later are not stored at all, and their error says so."""
    monkeypatch.setattr(chain_writer, "STUCK_S", 0.0)
    in_part, go_on = begin(topic, publishes, meddler)
    behind = publishes.submit_batch([b"none", b"of it"])
    go_on(meddler.fail)
    with pytest.raises(OutcomeUnknownError, match="topic t: a part of the messages is stored, the others are not: "):
        in_part.result(PATIENCE_S)
    with pytest.raises(NotEnoughBookiesError):
        behind.result(PATIENCE_S)
    assert stored(topic) == {0: b"before", 1: b"first"} and topic.end == 2
    monkeypatch.setattr(chain_writer, "STUCK_S", PATIENCE_S)
    meddler.clear()
    assert topic.publish_batch([b"second", b"third"]) == range(2, 4)
    assert stored(topic) == {0: b"before", 1: b"first", 2: b"second", 3: b"third"}


def test_bookies_refuse_the_rest(topic: Topic, publishes: Any, meddler: Meddler) -> None:
    """EntryRefusedError alone would say that no message was stored."""
    in_part, go_on = begin(topic, publishes, meddler)
    go_on(meddler.saying(status=ReplyStatus.INVALID))
    with pytest.raises(OutcomeUnknownError, match="topic t: a part of the messages is stored, the others are not: "):
        in_part.result(PATIENCE_S)
    assert stored(topic) == {0: b"before", 1: b"first"}
    with pytest.raises(EntryRefusedError):
        publishes.submit_batch([b"none", b"of it"]).result(PATIENCE_S)
    meddler.clear()
    assert topic.publish(b"more") == 2
    assert stored(topic) == {0: b"before", 1: b"first", 2: b"more"}


def test_the_link_is_lost_in_the_middle(wire: Wire, topic: Topic, meddler: Meddler) -> None:
    """The connection of the client is lost when a part is stored. The owner stores the rest."""
    with connect(f"pyreplog://{wire.address}") as client:
        in_part, go_on = begin(topic, client.topic("t"), meddler)
        wire.cut()
        with pytest.raises(OutcomeUnknownError):
            in_part.result(PATIENCE_S)
    assert topic.end == 1, "what was submitted together shows together"
    go_on(meddler._send)
    until(lambda: topic.end == 4)
    assert stored(topic) == {0: b"before", 1: b"first", 2: b"second", 3: b"third"}


@pytest.mark.parametrize("bad", range(4), ids=["first", "second", "third", "last"])
def test_only_what_bookies_refuse_fails(topic: Topic, meddler: Meddler, bad: int) -> None:
    """Messages that were queued together are one request. All except the refused one are stored, in order."""
    values = [b"bad" if number == bad else b"good %d" % number for number in range(4)]

    def judge(bookie: str, request: Any, on_reply: Any) -> None:
        deed = meddler.saying(status=ReplyStatus.INVALID) if b"bad" in bytes(request.records) else meddler.pass_on
        deed(bookie, request, on_reply)

    meddler.rule(meddler.hold, kind=RequestKind.ADD)
    futures = [topic.submit_batch([b"on its way"])]
    meddler.wait_for(RequestKind.ADD)
    futures += [topic.submit_batch([value]) for value in values]
    meddler.clear()
    meddler.rule(judge, kind=RequestKind.ADD)
    meddler.release()
    assert futures.pop(0).result(PATIENCE_S) == range(1, 2)
    with pytest.raises(EntryRefusedError):
        futures.pop(bad).result(PATIENCE_S)
    assert [future.result(PATIENCE_S) for future in futures] == [range(offset, offset + 1) for offset in (2, 3, 4)]
    meddler.clear()
    del values[bad]
    assert list(stored(topic).values()) == [b"before", b"on its way", *values]
