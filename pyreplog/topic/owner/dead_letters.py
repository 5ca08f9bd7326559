"""Dead letters: messages that were delivered too often, published to a topic of their own."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from pyreplog._native.topic.messages import Message
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.errors import InvalidArgumentError, RecordTooLargeError
from pyreplog.future import AppendFuture, set_exception, set_result, then
from pyreplog.topic.client.partitions.partitioned_producer import all_results
from pyreplog.topic.model.dead_letter import REASON, Properties, dead_letter_properties
from pyreplog.topic.model.dispatch.effects import DeadLetter
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.model.times import known_time
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic_context import DeadLetterTopic, TopicContext
from pyreplog.topic_names import check_name

INHERITED = ("ensemble", "write_quorum", "ack_quorum", "durability", "compression")
"""Settings that a new dead-letter topic inherits; the cluster may not have the bookies for the defaults."""


def dead_letter_topic(topic: str, subscription: str, name: str | None) -> str:
    """Return the name of a subscription's dead-letter topic: `name`, or the one that Pulsar would use."""
    return name or f"{topic}-{subscription}-DLQ"


def check_dead_letters(topic: str, subscription: str, settings: SubscriptionConfig) -> None:
    """Check that a subscription's dead letters can be published.

    Raises the errors of `check_name`, and InvalidArgumentError if they would go to the same topic.
    """
    if settings.max_redeliveries is None:
        return
    name = check_name(dead_letter_topic(topic, subscription, settings.dead_letter))
    part = partition_of(topic)
    if name == topic or (part is not None and name == part[0]):
        raise InvalidArgumentError(
            f"dead_letter: expected another topic than {name}: its dead letters would be delivered again for ever"
        )


def publish_dead(context: TopicContext, subscription: Subscription, dead: DeadLetter) -> AppendFuture[Any]:
    """Publish dead letters, with their origin and cause in their properties; create the topic if it does not exist.

    They are acknowledged in their own topic afterwards, so after a crash they may be published again.
    """
    done: AppendFuture[Any] = AppendFuture()
    name = dead_letter_topic(context.name, subscription.name, subscription.settings.dead_letter)

    def publish() -> None:
        inherited = {key: getattr(context.managed.config, key) for key in INHERITED}
        try:
            target = context.open_topic(name, inherited)
            then(_submit(target, context.name, subscription.name, dead), done, partial(set_result, done))
        except Exception as error:
            set_exception(done, error)

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
            event_times=[known_time(message.event_time) for message in batch],
        )
    except RecordTooLargeError:
        return all_results([_submit_one(target, *row) for row in zip(batch, properties, strict=True)])


def _submit_one(target: DeadLetterTopic, message: Message, properties: Properties) -> AppendFuture[Any]:
    """Publish one dead letter. If it is too large, its reason is left out, or all properties about its origin."""
    event_time = known_time(message.event_time)
    without_reason = {name: value for name, value in properties.items() if name != REASON}
    for kept in (properties, without_reason):
        with suppress(RecordTooLargeError):
            return target.submit(message.value, message.key, properties=kept, event_time=event_time)
    return target.submit(message.value, message.key, properties=message.properties, event_time=event_time)
