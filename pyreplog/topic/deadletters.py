"""Dead letters: messages that were delivered too often, published to a topic of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyreplog.ack import Ack
from pyreplog.topic.dispatch.effects import DeadLetter
from pyreplog.topic.positions import then
from pyreplog.topic.subscription import Subscription

if TYPE_CHECKING:
    from pyreplog.topic.topic import Topic

ORIGIN_TOPIC = "pyreplog.topic"
ORIGIN_OFFSET = "pyreplog.offset"
REDELIVERIES = "pyreplog.redeliveries"


def dead_letter_topic(topic: str, subscription: str, name: str | None) -> str:
    """Where a subscription's dead letters go: Pulsar's name, unless it has another."""
    return name or f"{topic}-{subscription}-DLQ"


def publish_dead(topic: Topic, subscription: Subscription, dead: DeadLetter) -> Ack[Any]:
    """Publish them, with where they come from in their properties. Where they were they are acknowledged afterwards:
    after a crash they may be published again."""
    done: Ack[Any] = Ack()
    name = dead_letter_topic(topic.name, subscription.name, subscription.settings.dead_letter)
    batch = dead.batch

    def publish() -> None:
        try:
            target = topic.topics.open(name)
            properties: list[Mapping[str, str | bytes] | None] = [
                {
                    **message.properties,
                    ORIGIN_TOPIC: topic.name,
                    ORIGIN_OFFSET: str(message.offset),
                    REDELIVERIES: str(dead.counts.get(message.offset, 0)),
                }
                for message in batch
            ]
            sent = target.submit_batch(
                batch.values(), batch.keys(), properties=properties, event_times=[one.event_time for one in batch]
            )
            then(sent, done, done.complete)
        except Exception as error:
            done.fail(error)

    topic.topics.work(publish)
    return done
