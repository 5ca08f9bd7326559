"""A call of a client that waits for bookies ends when the client has left, and frees its thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyreplog.bookie.protocol import RequestKind
from pyreplog.errors import ReplogError
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.owner import partitioned_topic
from tests.ledger.fault_injection import RequestInterceptor
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster
from tests.waiting import until

CALLS: dict[str, Callable[[Any], object]] = {
    "seek": lambda topic: topic.seek("s", 0),
    "skip": lambda topic: topic.skip("s", 1),
    "skip_to": lambda topic: topic.skip_to("s", 2),
    "clear": lambda topic: topic.clear("s"),
    "stats": lambda topic: topic.stats(),
}


def running(served: ServedCluster) -> int:
    return served.server.service.calls[0]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_waits_for_bookies(name: str, served: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.net.fair_executor.POLL_S", 0.01)
    with served.cluster.topic("news", **PLAIN) as topic:
        topic.create_subscription("s", start="earliest", type="shared")
        topic.publish_batch([b"a", b"b", b"c"])
        topic.seek("s", 1)
        client: Client = served.client()
        remote = client.topic("news")
        with RequestInterceptor(served.cluster) as interceptor:
            for kind in (RequestKind.ADD, RequestKind.READ):
                interceptor.add_rule(interceptor.lose, kind=kind)
            asking = threading.Thread(target=_ask, args=(CALLS[name], remote))
            asking.start()
            until(lambda: running(served) == 1)
            client.close()
            until(lambda: running(served) == 0)
            asking.join(PATIENCE_S)
            assert not asking.is_alive()


def _ask(call: Callable[[Any], object], remote: Any) -> None:
    try:
        call(remote)
    except ReplogError:
        return


def test_partition_lookup_stops_when_its_client_disconnects(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic has 65536 partitions, each of which is looked up in the metadata store."""
    client, looks = served.client(), list[str]()
    find, may_go_on = partitioned_topic.find_chain, threading.Event()

    def finding(store: Any, name: str) -> Any:
        looks.append(name)
        if len(looks) == 10:
            assert may_go_on.wait(PATIENCE_S)
        return find(store, name)

    monkeypatch.setattr(partitioned_topic, "find_chain", finding)
    asking = threading.Thread(target=_ask, args=(lambda client: client.topic("many", partitions=65536), client))
    asking.start()
    until(lambda: len(looks) == 10)
    connection = next(iter(served.server.service.sessions))
    client.close()
    until(lambda: connection not in served.server.service.sessions)
    may_go_on.set()
    until(lambda: running(served) == 0)
    asking.join(PATIENCE_S)
    assert len(looks) == 10 and not asking.is_alive()
