"""Dead letters are published again to the topic from which they came, then acknowledged; by the cluster and by clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyreplog._native.topic.messages import Message
from pyreplog.errors import (
    InvalidArgumentError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    RecordTooLargeError,
    SubscriptionBusyError,
    WrongTypeError,
)
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.model.dead_letter import RedriveReport
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, serve_cluster
from tests.waiting import until

AT_ONCE: dict[str, Any] = {"type": "shared", "nack_min_ms": 0, "max_redeliveries": 0}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with serve_cluster(tmp_path_factory.mktemp("redrive")) as served:
        yield served


@pytest.fixture(params=["local", "remote"])
def place(served: ServedCluster, request: pytest.FixtureRequest) -> Any:
    """A cluster, or a client of its server."""
    return served.cluster if request.param == "local" else served.client()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of topics for this test only."""
    return request.node.name.replace("[", "-").replace("]", "")


def letters_of(origin: str, numbers: range, **properties: str) -> dict[str, Any]:
    """Return arguments of publish_batch for dead letters of that topic."""
    all_properties = {"pyreplog.topic": origin, "pyreplog.subscription": "s", "pyreplog.cause": "nack", **properties}
    return {"values": [b"%d" % number for number in numbers], "properties": [all_properties] * len(numbers)}


def fail(topic: Any, count: int) -> None:
    """Refuse the next messages of subscription `s` until they are dead letters."""
    before = dead_lettered(topic)
    with topic.subscribe("s") as consumer:
        left = count
        while left:
            messages = consumer.receive(max_messages=left, timeout=PATIENCE_S)
            assert messages
            consumer.nack(messages, reason="bad")
            left -= len(messages)
        until(lambda: dead_lettered(topic) == before + count)


def dead_lettered(topic: Any) -> int:
    return sum(part.dead_lettered_messages for part in subscriptions(topic))


def backlog(topic: Any, subscription: str) -> int:
    return sum(part.backlog_messages for part in subscriptions(topic) if part.name == subscription)


def subscriptions(topic: Any) -> Any:
    stats = topic.stats()
    return getattr(stats, "total", stats).subscriptions


def stored(topic: Any) -> list[Message]:
    if not hasattr(topic, "partitions"):
        return [message for batch in topic.read() for message in batch]
    return [message for at in range(topic.partitions) for batch in topic.read(at) for message in batch]


def values(topic: Any) -> list[bytes]:
    return [message.value for message in stored(topic)]


def topic_and_dead_letters(
    place: Any, name: str, *, origin: dict[str, Any] | None = None, **settings: Any
) -> tuple[Any, Any]:
    """Return a topic and one for dead letters, which has a subscription `people`."""
    topic = place.topic(name, **PLAIN, **(origin or {}))
    dead = place.topic(f"{name}-dead", **PLAIN)
    dead.create_subscription("people", start="earliest", **settings)
    return topic, dead


# ---- what comes back ---------------------------------------------------------------------------------------------


def test_messages_come_back_as_they_were(place: Any, name: str) -> None:
    topic, dead = topic_and_dead_letters(place, name)
    topic.create_subscription("s", start="earliest", **AT_ONCE, dead_letter=dead.name)
    topic.publish(b"bad", b"key", properties={"mine": "kept"}, event_time=1_700_000_000_000_000)
    for redrives in (1, 2):
        fail(topic, 1)
        (*_, letter) = stored(dead)
        assert letter.properties.get("pyreplog.redrives", b"0") == b"%d" % (redrives - 1)
        assert letter.properties["pyreplog.reason"] == b"bad"
        assert dead.redrive("people") == RedriveReport(1, topics={name: 1})
        (*_, message) = stored(topic)
        assert (message.value, message.key, message.event_time) == (b"bad", b"key", 1_700_000_000_000_000)
        assert message.properties == {
            "mine": b"kept", "pyreplog.subscription": b"s", "pyreplog.redrives": b"%d" % redrives,
        }  # fmt: skip
        assert backlog(dead, "people") == 0
    assert len(topic) == 3 and dead.redrive("people") == RedriveReport()


@pytest.mark.parametrize("dead_partitions", [None, 2])
def test_each_goes_to_its_partition(place: Any, name: str, dead_partitions: int | None) -> None:
    jobs = place.topic(name, partitions=3, **PLAIN)
    dead = place.topic(f"{name}-dead", partitions=dead_partitions, **PLAIN)
    dead.create_subscription("people", start="earliest")
    jobs.create_subscription("s", start="earliest", **AT_ONCE, dead_letter=dead.name)
    jobs.publish_batch([b"%d" % number for number in range(30)], [b"k%d" % (number % 7) for number in range(30)])
    jobs.publish(b"no key")
    before = [[(message.key, message.value) for message in part(jobs, at)] for at in range(3)]
    fail(jobs, 31)
    assert dead.redrive("people", limit=20).sent == 20
    reports: list[RedriveReport] = []
    report = dead.redrive("people", on_progress=reports.append)
    assert report.sent == 11 and reports[-1] == report
    for at in range(3):
        again = [(message.key, message.value) for message in part(jobs, at)][len(before[at]) :]
        assert sorted(again, key=str) == sorted(before[at], key=str)
    assert backlog(dead, "people") == 0


def part(topic: Any, partition: int) -> list[Message]:
    return [message for batch in topic.read(partition) for message in batch]


def test_redrive_honours_dry_run_limit_where_and_to(place: Any, name: str) -> None:
    topic, dead = topic_and_dead_letters(place, name)
    other = place.topic(f"{name}-other", **PLAIN)
    dead.publish_batch(**letters_of(name, range(10)))
    dead.publish_batch(**letters_of("gone", range(10, 12)))
    dead.publish(b"whence")
    would = dead.redrive("people", dry_run=True)
    assert would == RedriveReport(10, stranded=3, topics={name: 10}) and not values(topic)
    assert dead.redrive("people", limit=2) == RedriveReport(2, topics={name: 2})
    odd = dead.redrive("people", where=lambda letter: int(letter.value[-1:] or b"0") % 2 == 1 if letter.key else True)
    assert odd.sent == 8 and odd.stranded == 3
    assert values(topic) == [b"%d" % number for number in range(10)]
    assert dead.redrive("people", to=other.name) == RedriveReport(3, topics={other.name: 3})
    assert values(other) == [b"10", b"11", b"whence"]
    assert backlog(dead, "people") == 0


def test_redrive_leaves_messages_that_where_excludes(place: Any, name: str) -> None:
    topic, dead = topic_and_dead_letters(place, name, origin={"deduplicate": True})
    dead.publish_batch(**letters_of(name, range(10)))
    report = dead.redrive("people", where=lambda letter: letter.offset % 2 == 1)
    assert report == RedriveReport(5, skipped=5, topics={name: 5}) and backlog(dead, "people") == 5
    dead.publish_batch(**letters_of(name, range(10, 12)))
    assert dead.redrive("people").sent == 7
    assert sorted(map(int, values(topic))) == list(range(12)), "those that were left are not taken for duplicates"


def test_redrive_leaves_dead_letters_published_meanwhile_to_the_next_run(place: Any, name: str) -> None:
    topic, dead = topic_and_dead_letters(place, name)
    dead.publish_batch(**letters_of(name, range(3)))

    def failed(letter: Message) -> bool:
        return letter.offset >= 3 or len(dead.publish_batch(**letters_of(name, range(3, 5)))) == 2

    assert dead.redrive("people", where=failed).sent == 3
    assert len(topic) == 3 and backlog(dead, "people") == 6


def test_dead_letters_are_redriven_to_a_topic_with_partitions(place: Any, name: str) -> None:
    _, dead = topic_and_dead_letters(place, name)
    several = place.topic(f"{name}-several", partitions=2, **PLAIN, deduplicate=True)
    dead.publish_batch(**letters_of(name, range(10)))
    assert dead.redrive("people", to=several.name).topics == {several.name: 10}
    assert sorted(map(int, values(several))) == list(range(10))


# ---- what is interrupted -----------------------------------------------------------------------------------------


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that redrives `people` and is interrupted between the copies and the acknowledgements."""

    def run(dead: Any, **arguments: Any) -> None:
        def acknowledge(consumer: Consumer, value: object) -> None:
            raise Interrupted

        with monkeypatch.context() as patch:
            patch.setattr(Consumer, "acknowledge", acknowledge)
            with pytest.raises(Interrupted):
                dead.redrive("people", **arguments)

    return run


def test_redriven_message_without_room_for_its_count_omits_it(
    place: Any, name: str, interrupted: Callable[..., None]
) -> None:
    topic, dead = topic_and_dead_letters(place, name, origin={"deduplicate": True})
    low, high = 3 << 20, 5 << 20
    while high - low > 1:
        middle = (low + high) // 2
        try:
            topic.publish(bytes(middle), properties={"mine": "kept"})
        except RecordTooLargeError:
            high = middle
        else:
            low = middle
    begins = topic.offsets().stop
    dead.publish_batch([b"small"], properties=[{"mine": "kept"}])
    dead.publish(bytes(low), properties={"mine": "kept"})
    interrupted(dead, to=name)
    assert dead.redrive("people", to=name).sent == 2
    rows = [(len(message.value), sorted(message.properties)) for message in stored(topic)[begins:]]
    assert rows == [(5, ["mine", "pyreplog.redrives"]), (low, ["mine"])]


@pytest.mark.parametrize("deduplicate", [True, False])
def test_redrive_repeats_nothing_after_a_failure_before_the_acknowledgement(
    place: Any, name: str, deduplicate: bool, interrupted: Callable[..., None]
) -> None:
    topic, dead = topic_and_dead_letters(place, name, origin={"deduplicate": deduplicate})
    dead.publish_batch(**letters_of(name, range(10)))
    interrupted(dead)
    copies = values(topic)
    assert len(copies) == 10 and backlog(dead, "people") == 10
    dead.publish_batch(**letters_of(name, range(10, 13)))
    report = dead.redrive("people")
    assert report == RedriveReport(13, 10 if deduplicate else 0, topics={name: 13})
    assert len(values(topic)) == (13 if deduplicate else 23)
    assert {*map(int, values(topic))} == {*range(13)} and backlog(dead, "people") == 0


def test_a_seek_has_all_sent_again(place: Any, name: str) -> None:
    topic, dead = topic_and_dead_letters(place, name, origin={"deduplicate": True})
    dead.publish_batch(**letters_of(name, range(10)))
    for begin in (0, 3, 0):
        dead.seek("people", begin)
        assert dead.redrive("people") == RedriveReport(10 - begin, topics={name: 10 - begin})
    assert len(topic) == 27


def test_a_topic_made_anew_has_all_sent(place: Any, name: str) -> None:
    """The offsets of the new topic begin at 0 again."""
    topic, dead = topic_and_dead_letters(place, name, origin={"deduplicate": True})
    dead.publish_batch(**letters_of(name, range(10)))
    assert dead.redrive("people").sent == 10
    dead.delete()
    dead = place.topic(f"{name}-dead", **PLAIN)
    dead.create_subscription("people", start="earliest")
    dead.publish_batch(**letters_of(name, range(10, 15)))
    assert dead.redrive("people") == RedriveReport(5, topics={name: 5})
    assert len(topic) == 15


def test_dead_letters_held_by_another_consumer_are_redriven_after_it_closed(place: Any, name: str) -> None:
    """In a shared subscription they are delivered after later messages."""
    topic, dead = topic_and_dead_letters(
        place, name, origin={"deduplicate": True}, type="shared", max_unacked_consumer=5
    )
    dead.publish_batch(**letters_of(name, range(5)))
    with dead.subscribe("people") as other:
        assert other.receive(max_messages=5, timeout=PATIENCE_S)
        until(lambda: subscriptions(dead)[0].unacked == 5)
        dead.publish_batch(**letters_of(name, range(5, 8)))
        assert dead.redrive("people").sent == 3
    assert dead.redrive("people").sent == 5
    assert sorted(map(int, values(topic))) == list(range(8))


def test_a_seek_during_a_redrive_ends_it(place: Any, name: str) -> None:
    topic, dead = topic_and_dead_letters(place, name, origin={"deduplicate": True})
    for first in range(0, 3000, 500):
        dead.publish_batch(**letters_of(name, range(first, first + 500)))
    with pytest.raises(SubscriptionBusyError, match="a seek moved it"):
        dead.redrive("people", on_progress=lambda report: dead.seek("people", 2000))
    dead.seek("people", 0)
    sent = len(topic)
    assert sent < 3000 and dead.redrive("people").sent == 3000
    assert len(topic) == sent + 3000


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_redrive_refuses_unknown_and_busy_subscriptions(place: Any, name: str) -> None:
    _, dead = topic_and_dead_letters(place, name)
    dead.publish_batch(**letters_of(name, range(2)))
    with pytest.raises(NoSuchSubscriptionError):
        dead.redrive("nobody")
    assert dead.subscriptions() == ["people"]
    with pytest.raises(NoSuchTopicError):
        dead.redrive("people", to="nowhere")
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"to": dead.name}, InvalidArgumentError),
        ({"to": 3}, WrongTypeError),
        ({"limit": 0}, InvalidArgumentError),
        ({"limit": "3"}, WrongTypeError),
        ({"where": "3"}, WrongTypeError),
        ({"dry_run": 1}, WrongTypeError),
        ({"timeout": "1"}, WrongTypeError),
    ]
    for arguments, error in wrong:
        with pytest.raises(error):
            dead.redrive("people", **arguments)
    with dead.subscribe("people"), pytest.raises(SubscriptionBusyError):
        dead.redrive("people")
    assert backlog(dead, "people") == 2


def test_redrive_that_gets_no_more_messages_raises_subscription_busy_error(place: Any, name: str) -> None:
    """Letters that `where` left out are not acknowledged, and the limit of unacknowledged messages is reached."""
    topic, dead = topic_and_dead_letters(place, name, max_unacked=4)
    dead.publish_batch(**letters_of(name, range(10)))
    with pytest.raises(SubscriptionBusyError, match="6 dead letters were not delivered"):
        dead.redrive("people", where=lambda letter: False, timeout=0.1)
    assert dead.redrive("people").sent == 10 and len(topic) == 10


def test_dead_letters_of_a_dead_letter_topic(served: ServedCluster, name: str) -> None:
    """A dead letter of a dead-letter topic is sent back to that topic."""
    _, dead = topic_and_dead_letters(served.cluster, name)
    deader = served.cluster.topic(f"{name}-deader", **PLAIN)
    deader.create_subscription("people", start="earliest")
    deader.publish_batch(**letters_of(dead.name, range(3)))
    assert deader.redrive("people").topics == {dead.name: 3}
