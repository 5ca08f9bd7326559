"""From a producer to a topic's ledgers, and from its dispatcher to a consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pyreplog import event_queue
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.clock import ManualClock
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.errors import BacklogFullError, ClosedError, ReplogError, TopicFencedError, TopicOwnedError
from pyreplog.future import AppendFuture, set_result
from pyreplog.metadata.memory import MemoryStore
from pyreplog.topic.client import consumer
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.partitions import partitioned_consumer as partitionedconsumer
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer, PartitionedConsumer
from pyreplog.topic.client.publishing import publisher, sequencer, window
from pyreplog.topic.client.publishing.publish_batch import PublishBatch
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.client.publishing.window import Window
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.interfaces import DeliveredMessages
from pyreplog.topic.model.positions import ORIGIN, TopicPosition
from pyreplog.topic.owner import locator, ownership
from pyreplog.topic.owner import subscription as subscription_module
from pyreplog.topic.owner.ownership import Ownership
from pyreplog.topic.owner.subscription import Subscription
from tests.interleaving import primitives
from tests.interleaving.harnesses.building import FakeRuntime, harness, in_time, run_all
from tests.interleaving.scheduler import World
from tests.topic import dispatching

BATCHES: list[MessageBatch] = []


def batch(number: int) -> MessageBatch:
    """One message, whose value is its offset."""
    if not BATCHES:
        log = dispatching.Log()
        for _ in range(8):
            log.publish(1)
        BATCHES.extend(log.read(offset, offset + 1, 1) for offset in range(8))
    return BATCHES[number]


class Sink:
    """A topic's ledgers with room for so many entries on their way; `confirm` gives them their offsets."""

    def __init__(self, room: int = 1 << 20) -> None:
        self._most = room
        self._lock = primitives.Lock()
        self._held: deque[PublishBatch] = deque()
        self.on_room: Callable[[], object] = lambda: None
        self.end = 0

    def check_open(self) -> None: ...

    def pending(self) -> tuple[int, int]:
        return (1 << 40 if len(self._held) >= self._most else 0), len(self._held)

    def submit_all(self, batches: Sequence[PublishBatch]) -> None:
        for batch in batches:
            with self._lock:
                self._held.append(batch)

    @property
    def held(self) -> int:
        return len(self._held)

    def confirm(self) -> bool:
        """The oldest; False: there is none."""
        with self._lock:
            if not self._held:
                return False
            batch = self._held.popleft()
            first, self.end = self.end, self.end + batch.messages
        batch.offsets = range(first, first + batch.messages)
        batch.settle()
        self.on_room()
        return True


def gated(world: World) -> None:
    """A publisher that a quota holds goes on when the quota has room again or is lifted; a message that it refuses fails."""
    publisher = _publisher(world, Sink(), FakeRuntime(world))
    publisher.set_quota("held", "")
    refused = []

    def wait() -> None:
        while not publisher.has_room:
            publisher.room().result()

    def look_after() -> None:
        publisher.set_quota("open", "")
        publisher.set_quota("held", "")
        publisher.set_quota("refused", "")
        refused.append(publisher.submit(b"value").exception())
        publisher.lift_quota()
        publisher.set_quota("held", "")

    run_all(world, a=wait, b=wait, policy=look_after)
    in_time(world)
    assert not publisher.waiting and isinstance(refused[0], BacklogFullError)


def windowed(world: World) -> None:
    """Whoever waits for room goes on when there is some; what has left is not counted."""
    window = Window(10, 10)

    def enter() -> None:
        while not window.has_room():
            window.room().result()
        with window.lock:
            window.enter(10, 1)
        landing.append(1)

    landing: list[int] = []

    def land() -> None:
        for _ in range(3):
            world.wait(lambda: bool(landing), None, "lands")
            landing.pop()
            with window.lock:
                window.leave(10, 1)
            window.give_room()

    run_all(world, a=enter, b=enter, c=enter, lander=land)
    in_time(world)
    assert window.bytes == window.messages == 0 and not window.waiting


def ending_window(world: World) -> None:
    """Nobody waits for room when nothing is taken any more."""
    window = Window(10, 10)
    with window.lock:
        window.enter(10, 1)
    run_all(world, a=lambda: window.room().result(), b=lambda: window.room().result(), ender=lambda: window.end())
    in_time(world)


def _publisher(world: World, sink: Any, runtime: FakeRuntime, **settings: Any) -> Publisher:
    return Publisher(
        "news", sink, runtime, ManualClock(0), TopicConfig(**settings), entry_bytes_max=1 << 20, window_bytes=150
    )


def publishing(world: World) -> None:
    """All that is published has an outcome, each its own; publishers with a full window or ledger go on."""
    sink = Sink(room=1)
    publisher = _publisher(world, sink, FakeRuntime(world))
    offsets: dict[str, list[int]] = {"a": [], "b": []}

    def publish(name: str) -> None:
        for _ in range(2):
            offsets[name].append(publisher.publish(b"value of some length" * 3))

    def confirm() -> None:
        while sink.end < 4:
            world.wait(lambda: sink.held > 0, None, "held")
            sink.confirm()

    run_all(world, a=lambda: publish("a"), b=lambda: publish("b"), ledger=confirm)
    in_time(world)
    assert sorted(offsets["a"] + offsets["b"]) == [0, 1, 2, 3]
    assert all(offset == sorted(offset) for offset in offsets.values())
    assert publisher.pending_messages == publisher.pending_bytes == 0


def publishing_freely(world: World) -> None:
    """Entries of several submitters are on their way at once; outcomes that come while others are told are told, too."""
    sink = Sink()
    publisher = Publisher(
        "news", sink, FakeRuntime(world), ManualClock(0), TopicConfig(), entry_bytes_max=1 << 20, window_bytes=1 << 20
    )
    futures: list[AppendFuture[range]] = []

    def submit() -> None:
        futures.append(publisher.submit_batch([b"value"]))
        publisher.flush_async()

    def confirm() -> None:
        while not sink.confirm():
            world.wait(lambda: sink.held > 0, None, "held")

    run_all(world, a=submit, b=submit, ledger=confirm, other=confirm)
    assert sorted(future.result().start for future in futures) == [0, 1]
    in_time(world)
    assert publisher.pending_messages == 0


def gated_publishing(world: World) -> None:
    """As publishing, with a quota that is used up for a while; flush ends, and is told what went before."""
    sink = Sink()
    publisher = _publisher(world, sink, FakeRuntime(world))
    done: list[int] = []

    def publish() -> None:
        for _ in range(2):
            future = publisher.submit(b"value")
            future.add_done_callback(lambda future: done.append(future.result()))
        before = 2
        publisher.flush_async().result()
        assert len(done) >= before

    def confirm() -> None:
        while sink.end < 2:
            world.wait(lambda: sink.held > 0, None, "held")
            sink.confirm()

    run_all(
        world,
        a=publish,
        policy=lambda: (publisher.set_quota("held", ""), publisher.set_quota("open", "")),
        ledger=confirm,
    )
    in_time(world)
    assert sorted(done) == [0, 1]


def stopped_publishing(world: World) -> None:
    """When a publisher is stopped, nobody waits on."""
    sink = Sink()
    publisher = _publisher(world, sink, FakeRuntime(world), linger_ms=10)
    outcomes: list[object] = []

    def publish() -> None:
        try:
            outcomes.append(publisher.publish(b"value" * 40))
        except ReplogError as error:
            outcomes.append(error)

    def stop() -> None:
        publisher.stop(ClosedError("closed"))
        while sink.held:
            sink.confirm()

    def confirm() -> None:
        world.wait(lambda: sink.held > 0 or len(outcomes) == 2, None, "held")
        if sink.held:
            sink.confirm()

    run_all(world, a=publish, b=publish, stopper=stop, ledger=confirm)
    while sink.held:
        sink.confirm()
    in_time(world, but=("timer",))
    assert len(outcomes) == 2 and publisher.pending_messages == 0


# ---- consumers -----------------------------------------------------------------------------------------------------


class Source:
    """Of a consumer. flowed: for how many it has asked."""

    era = 0

    def __init__(self, world: World) -> None:
        self._runtime = FakeRuntime(world)
        self.flowed = 0
        self.wait = self._runtime.wait

    def flow(self, consumer: int, messages: int) -> None:
        self.flowed += messages

    def acknowledge_noted(self, consumer: int, take: Callable[[], object]) -> None:
        take()

    def detach(self, consumer: int) -> None: ...
    def abandon(self, consumer: int) -> None: ...


def _consumer(world: World) -> Consumer:
    consumer = Consumer("topic", "subscription", "name")
    consumer.attached(Source(world), 1)  # type: ignore[arg-type]
    return consumer


def receiving(world: World) -> None:
    """Each delivery goes to one who receives; those that came before an end are received, then all are told."""
    consumer = _consumer(world)
    got: list[int] = []
    ended: list[Exception] = []

    def receive() -> None:
        try:
            while True:
                messages = consumer.receive_batch()
                assert messages is not None
                got.append(int(messages.offset[0]))
        except TopicFencedError as error:
            ended.append(error)

    def deliver() -> None:
        for number in range(2):
            consumer.deliver(DeliveredMessages(batch(number), {}))
        consumer.failed(TopicFencedError("topic", "another owner"))

    run_all(world, a=receive, b=receive, subscription=deliver)
    in_time(world)
    assert sorted(got) == [0, 1] and len(ended) == 2
    consumer.close()


def receiving_for_a_time(world: World) -> None:
    """A delivery that comes when the time runs out is received, or waits for the next one."""
    consumer = _consumer(world)
    got: list[int] = []

    def receive() -> None:
        messages = consumer.receive_batch(timeout=1.0)
        if messages is not None:
            got.append(int(messages.offset[0]))

    run_all(world, a=receive, b=receive, subscription=lambda: consumer.deliver(DeliveredMessages(batch(0), {})))
    while (left := consumer.receive_batch(timeout=0)) is not None:
        got.append(int(left.offset[0]))
    assert got == [0]
    consumer.close()


def receiving_one_by_one(world: World) -> None:
    """Threads that share a consumer get each message once, and wait only while there is none."""
    consumer = _consumer(world)
    got: list[int] = []

    def receive() -> None:
        message = consumer.receive()
        assert message is not None
        got.append(message.offset)

    run_all(world, a=receive, b=receive, c=lambda: receive(),
            subscription=lambda: [consumer.deliver(DeliveredMessages(batch(number), {})) for number in range(3)])  # fmt: skip
    in_time(world)
    assert sorted(got) == [0, 1, 2]
    consumer.close()


def partitions_received(world: World) -> None:
    """A consumer of partitions gives out what came to any of them, to whoever waits."""
    partitioned_consumer = PartitionedConsumer("topic", "subscription", "name", wait=FakeRuntime(world).wait)
    parts = []
    for number in range(2):
        part = PartitionConsumer(
            number, "topic", "subscription", "name", queue=10, on_change=partitioned_consumer.changed
        )
        part.attached(Source(world), number)  # type: ignore[arg-type]
        partitioned_consumer.add(part)
        parts.append(part)
    got: list[int] = []

    def receive() -> None:
        for _ in range(2):
            message = partitioned_consumer.receive()
            assert message is not None
            got.append(message.offset)

    run_all(world, a=receive, b=receive,
            first=lambda: [parts[0].deliver(DeliveredMessages(batch(number), {})) for number in (0, 1)],
            second=lambda: [parts[1].deliver(DeliveredMessages(batch(number), {})) for number in (2, 3)])  # fmt: skip
    in_time(world)
    assert sorted(got) == [0, 1, 2, 3]
    partitioned_consumer.close()


# ---- subscriptions ----------------------------------------------------------------------------------------------------


class Managed:
    """A managed ledger whose reads another task answers."""

    name = "topic"
    start = ORIGIN

    def __init__(self) -> None:
        self._log = dispatching.Log()
        self.on_grow: list[Callable[[], object]] = []
        self.reads: deque[tuple[Any, AppendFuture[MessageBatch]]] = deque()

    @property
    def end(self) -> TopicPosition:
        return self._log.end

    def publish(self) -> None:
        self._log.publish(1)
        for call in list(self.on_grow):
            call()

    def read(self, offset: int, *, bytes_max: int, end: int) -> AppendFuture[MessageBatch]:
        future: AppendFuture[MessageBatch] = AppendFuture()
        self.reads.append(((offset, end, bytes_max), future))
        return future

    def answer(self) -> None:
        asked, future = self.reads.popleft()
        set_result(future, self._log.read(*asked))


class Receiver:
    """A DeliveryTarget that notes what it is given."""

    name = "a"

    def __init__(self) -> None:
        self.delivered: list[int] = []

    def deliver(self, delivery: DeliveredMessages) -> None:
        self.delivered += delivery.batch.offset.tolist()
        primitives.point("deliver")

    def set_active(self, active: bool) -> None: ...
    def discard(self, *, sought: bool = False) -> None: ...
    def forget_acks(self, era: int) -> None: ...
    def failed(self, error: Any) -> None: ...
    def close(self) -> None: ...


def dispatching_messages(world: World) -> None:
    """What is published while consumers come, ask for more and acknowledge is delivered, once and in order."""
    managed, receiver = Managed(), Receiver()
    changes: list[int] = []
    subscription = Subscription(
        "subscription", managed, Cursor("subscription", ORIGIN), SubscriptionConfig.of({"type": "exclusive"}),  # type: ignore[arg-type]
        FakeRuntime(world), ManualClock(dispatching.NOW),  # type: ignore[arg-type]
        publish_dead=lambda *_: AppendFuture(), on_change=lambda: changes.append(subscription.cursor.mark.offset),
        on_over=lambda _: None,
    )  # fmt: skip
    subscription.follow_topic()

    def consume() -> None:
        number = subscription.attach(receiver, None)
        subscription.flow(number, 10)
        world.wait(lambda: bool(receiver.delivered), None, "first")
        subscription.acknowledge_range(number, 0, 1)

    def read() -> None:
        while len(receiver.delivered) < 2:
            world.wait(lambda: bool(managed.reads) or len(receiver.delivered) == 2, None, "read")
            if managed.reads:
                managed.answer()

    run_all(world, publisher=lambda: [managed.publish() for _ in range(2)], consumer=consume, ledger=read)
    in_time(world)
    assert receiver.delivered == [0, 1] and changes == [1]


# ---- owners --------------------------------------------------------------------------------------------------------


def claiming(world: World) -> None:
    """Whoever waits for a topic has it as soon as its owner has let go; one has it at a time."""
    store = MemoryStore()
    first, other = Ownership(store, lease_s=600.0), Ownership(store, lease_s=600.0)
    owners: list[str] = []

    def claim(ownership: Ownership, name: str) -> None:
        with ownership.claim("topic", wait=60.0):
            owners.append(name)
            assert len(owners) == 1
            world.point("serves")
            owners.remove(name)

    run_all(world, a=lambda: claim(first, "a"), b=lambda: claim(other, "b"), c=lambda: claim(first, "c"))
    in_time(world)
    first.close()
    other.close()
    store.close()


def claiming_at_once(world: World) -> None:
    """Whoever was refused because another thread tried to claim the topic is told when that one gave up."""
    store = MemoryStore()
    first, other = Ownership(store, lease_s=600.0), Ownership(store, lease_s=600.0)
    held = other.claim("topic")
    refused: list[str] = []

    def claim(name: str, seconds: float) -> None:
        try:
            first.claim("topic", wait=seconds).release()
        except TopicOwnedError:
            refused.append(name)

    run_all(world, a=lambda: claim("a", 30.0), c=lambda: claim("c", 50.0), b=held.release)
    in_time(world)
    assert len(refused) <= len(world.hurried)
    first.close()
    other.close()
    store.close()


def ending_claim(world: World) -> None:
    """Whoever waits for a topic in this process is told that it serves no topics any more."""
    store = MemoryStore()
    first, other = Ownership(store, lease_s=600.0), Ownership(store, lease_s=600.0)
    held = other.claim("topic")
    ended: list[str] = []

    def claim() -> None:
        try:
            first.claim("topic", wait=60.0)
        except ReplogError as error:
            ended.append(type(error).__name__)

    run_all(world, a=claim, closer=lambda: first.close())
    in_time(world)
    assert ended == ["ClosedError"]
    held.release()
    other.close()
    store.close()


HARNESSES = [
    harness(gated, publisher, sequencer, window, event_queue),
    harness(windowed, window),
    harness(ending_window, window),
    harness(publishing, publisher, sequencer, window, event_queue),
    harness(publishing_freely, publisher, sequencer, window, event_queue),
    harness(gated_publishing, publisher, sequencer, window, event_queue),
    harness(stopped_publishing, publisher, sequencer, window, event_queue),
    harness(receiving, consumer),
    harness(receiving_for_a_time, consumer, hasty=True),
    harness(receiving_one_by_one, consumer),
    harness(partitions_received, partitionedconsumer),
    harness(dispatching_messages, subscription_module, event_queue, locator),
    harness(claiming, ownership),
    harness(claiming_at_once, ownership, hasty=True),
    harness(ending_claim, ownership),
]
