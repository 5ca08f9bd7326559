"""Dead letters: messages that were delivered too often, published to a topic of their own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pyreplog._native.topic.messages import Message
from pyreplog.errors import InvalidArgumentError, RecordTooLargeError
from pyreplog.future import AppendFuture
from pyreplog.topic.client.partitions.partitioned_producer import gathered
from pyreplog.topic.model.config import SubscriptionConfig
from pyreplog.topic.model.dead_letter import REASON, Properties, dead_letter_properties
from pyreplog.topic.model.dispatch.effects import DeadLetter
from pyreplog.topic.model.names import check_name
from pyreplog.topic.model.positions import then
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.model.times import known_time
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic_context import DeadLetterTopic, TopicContext

INHERITED = ("ensemble", "write_quorum", "ack_quorum", "durability", "compression")
"""Settings that a dead-letter topic has from the topic it is made for: there may not be bookies for others."""


def dead_letter_topic(topic: str, subscription: str, name: str | None) -> str:
    """Where a subscription's dead letters go: Pulsar's name, unless it has another."""
    return name or f"{topic}-{subscription}-DLQ"


def check_dead_letters(topic: str, subscription: str, settings: SubscriptionConfig) -> None:
    """Whether its dead letters can go anywhere. Errors: as `check_name`; InvalidArgumentError, it would be this one."""
    if settings.max_redeliveries is None:
        return
    name = check_name(dead_letter_topic(topic, subscription, settings.dead_letter))
    part = partition_of(topic)
    if name == topic or (part is not None and name == part[0]):
        raise InvalidArgumentError(f"dead_letter: expected another topic than {name}: they would come again for ever")


def publish_dead(context: TopicContext, subscription: Subscription, dead: DeadLetter) -> AppendFuture[Any]:
    """Publish them, with where they come from, and why, in their properties. Where they were they are acknowledged
    afterwards: after a crash they may be published again. A dead-letter topic that does not exist is made."""
    done: AppendFuture[Any] = AppendFuture()
    name = dead_letter_topic(context.name, subscription.name, subscription.settings.dead_letter)

    def publish() -> None:
        inherited = {key: getattr(context.managed.config, key) for key in INHERITED}
        try:
            target = context.open_topic(name, inherited)
            then(_submit(target, context.name, subscription.name, dead), done, done.complete)
        except Exception as error:
            done.fail(error)

    context.work(publish)
    return done


def _submit(target: DeadLetterTopic, topic: str, subscription: str, dead: DeadLetter) -> AppendFuture[Any]:
    batch = dead.batch
    properties = [
        dead_letter_properties(message, topic, subscription, dead.failures[message.offset]) for message in batch
    ]
    try:
        return target.submit_batch(
            batch.values(),
            batch.keys(),
            properties=properties,
            event_times=[known_time(one.event_time) for one in batch],
        )
    except RecordTooLargeError:
        return gathered([_submit_one(target, *one) for one in zip(batch, properties, strict=True)])


def _submit_one(target: DeadLetterTopic, message: Message, properties: Properties) -> AppendFuture[Any]:
    """One that leaves no room for the reason goes without that, or without all that says where it comes from."""
    event_time = known_time(message.event_time)
    without_reason = {name: value for name, value in properties.items() if name != REASON}
    for kept in (properties, without_reason):
        with suppress(RecordTooLargeError):
            return target.submit(message.value, message.key, properties=kept, event_time=event_time)
    return target.submit(message.value, message.key, properties=message.properties, event_time=event_time)
