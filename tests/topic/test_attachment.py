"""The subscription of a client's consumer has moved to another server, and the last replies of the first server arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyreplog._native.topic.wire_fields import WireReader
from pyreplog.errors import ClosedError, ReplogError
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.remote.connection_pool import ConnectionPool, OnOutcome, outcome_of
from pyreplog.topic.client.remote.remote_subscription import FETCHES, RemoteSubscribeOptions, RemoteSubscription
from pyreplog.topic.model.wire.batches import Delivered, encode_delivered
from pyreplog.topic.model.wire.protocol import Done, Fetch, Moved, Request, Seek, Subscribe, encode_reply
from tests.topic.publishing import Bench

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class FakeConnectionPool:
    """A connection pool that collects requests, which the test answers."""

    timeout = close_timeout = 30.0

    def __init__(self) -> None:
        self._asked: list[tuple[Request, OnOutcome]] = []
        self._handles = 0

    def version(self, address: Any) -> int:
        return 1

    def next_handle(self) -> int:
        self._handles += 1
        return self._handles

    def ask(self, topic: str, request: Request, came: OnOutcome) -> None:
        self._asked.append((request, came))

    def send(self, address: Any, request: Request, came: OnOutcome, timeout: float | None = None) -> None:
        self._asked.append((request, came))

    def wake_after(self, seconds: float, call: Callable[[], None]) -> None:
        raise AssertionError

    def wait(self, future: Any, timeout: float | None = None) -> Any:
        return future.result(0)

    def answer(self, kind: type[Any], reply: Sequence[ReadableBuffer] | ReplogError) -> None:
        """Answer the first open request of a kind."""
        at = next(at for at, (request, _) in enumerate(self._asked) if isinstance(request, kind))
        _, came = self._asked.pop(at)
        outcome: WireReader | ReplogError = (
            reply if isinstance(reply, ReplogError) else outcome_of(memoryview(b"".join(reply)))[0]
        )
        came(("a server", 7400), outcome)


def test_a_reply_of_the_owner_before_does_not_count_for_the_next() -> None:
    bench, pool = Bench(holds=False), FakeConnectionPool()
    bench.submit_batch([b"one", b"two"])
    with Consumer("news", "s", "c") as consumer:
        attachment = RemoteSubscription(
            cast("ConnectionPool", pool),
            RemoteSubscribeOptions("news", "s", "earliest", True, 0, ""),
            consumer,
            lambda _: None,
        )
        attached = attachment.attach()
        pool.answer(Subscribe, [encode_reply(Done())])
        assert attached.done()
        consumer.attached(attachment, 1)
        sought = attachment.seek("earliest")
        pool.answer(Fetch, ClosedError("its topic was closed at this server"))
        pool.answer(Subscribe, [encode_reply(Done())])
        pool.answer(Seek, [encode_reply(Moved(0, 3))])
        assert sought.result(0) == 0
        for _ in range(FETCHES - 1):
            pool.answer(Fetch, ClosedError("late"))  # the other fetches of the first handle
        pool.answer(Fetch, encode_delivered(Delivered(0, True, bench.ledgers.stored(), {})))
        batch = consumer.receive_batch(timeout=0)
        assert batch is not None and batch.values() == [b"one", b"two"]
