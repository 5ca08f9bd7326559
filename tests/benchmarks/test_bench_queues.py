"""The queues that topics are compared with give back what they were given, and a benchmark notices when one does not."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.entries import make_values
from benchmarks.peers.queues import QUEUES, QueuePeer, QueueTopic
from benchmarks.rows.topics.peers import Turns

VALUES = make_values(100)
MOMENT_S = 0.001


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueTopic, "settings", QueueTopic.settings | {"segment_bytes": 1 << 20})


@pytest.fixture(params=QUEUES)
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueuePeer]:
    with closing(QUEUES[request.param](tmp_path, "appended")) as peer:
        assert peer.version()
        yield peer


def take(peer: QueuePeer, count: int) -> list[bytes]:
    contents: list[bytes] = []
    while len(contents) < count:
        contents += peer.take()
    peer.settle()
    return contents


def test_a_queue_gives_back_what_it_was_given_and_forgets_what_is_acknowledged(peer: QueuePeer) -> None:
    for _ in range(2):
        peer.start()
        peer.publish(VALUES[0])
        peer.publish_batch(VALUES[1:])
        peer.flush()
        assert peer.backlog() == len(VALUES)
        assert take(peer, len(VALUES)) == VALUES
        assert peer.backlog() == 0
        peer.publish(VALUES[0])  # is left when the next turn starts


def test_a_consumer_waits_for_messages_and_acknowledges_them(peer: QueuePeer) -> None:
    peer.start()
    if not peer.waits:
        with pytest.raises(NotImplementedError, match="nobody can wait"):
            peer.arrivals()
        return
    for value in VALUES[:3]:
        peer.publish(value)
    with closing(peer.arrivals()) as arrivals:
        assert [next(arrivals), next(arrivals)] == VALUES[:2]
    assert peer.backlog() == 1


class Memory(QueuePeer):
    """A queue that loses, or swaps, what it is told to."""

    title = "memory"

    def __init__(self, spoil: Callable[[list[bytes]], list[bytes]]) -> None:
        self._spoil = spoil
        self._messages: list[bytes] = []

    @staticmethod
    def version() -> str:
        return ""

    def start(self) -> None:
        self._messages = []

    def publish(self, value: bytes) -> None:
        self._messages.append(value)

    def publish_batch(self, values: list[bytes]) -> None:
        self._messages += self._spoil(values)

    def take(self) -> list[bytes]:
        taken, self._messages = self._messages, []
        return taken

    def backlog(self) -> int:
        return len(self._messages)

    def arrivals(self) -> Generator[bytes, None, None]:
        while True:
            if self._messages:
                yield self._spoil([self._messages.pop(), VALUES[-1]])[0]

    def close(self) -> None: ...


def test_correct_queue_passes_verification() -> None:
    turns = Turns(Memory(lambda values: values), MOMENT_S)
    assert turns.publish() > 0
    assert turns.latency() > 0
    (rate,) = turns.consumed
    assert rate > 0
    assert turns.verified > 256


@pytest.mark.parametrize(
    "spoil",
    [lambda values: values[:-1], lambda values: values[::-1], lambda values: [*values, values[0], values[0]]],
    ids=["one lost", "order", "one twice"],
)
def test_messages_that_are_not_those_published_are_noticed(spoil: Callable[[list[bytes]], list[bytes]]) -> None:
    with pytest.raises(ValueError, match="memory"):
        Turns(Memory(spoil), MOMENT_S).publish()


def test_a_message_that_arrives_as_another_is_noticed() -> None:
    with pytest.raises(ValueError, match="not as they were published"):
        Turns(Memory(lambda values: values[::-1]), MOMENT_S).latency()
