"""Properties of dead letters, and of messages that were sent back from a dead-letter topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyreplog._native.topic.messages import Message
from pyreplog.topic.model.dispatch.redelivery import Failure


@dataclass(frozen=True)
class RedriveReport:
    """The outcome of `redrive`, or its progress.

    Attributes:
        sent: dead letters that were published to their topics again, and acknowledged; of a dry run, those that would
            be.
        repeated: those of `sent` that an earlier, interrupted run had published already; the topic dropped them as
            duplicates.
        skipped: dead letters that `where` excluded. They stay in the dead-letter topic.
        stranded: dead letters that do not name their topic, or whose topic does not exist. They stay, too.
        topics: the number of `sent` for each topic.
    """

    sent: int = 0
    repeated: int = 0
    skipped: int = 0
    stranded: int = 0
    topics: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: RedriveReport) -> RedriveReport:
        topics = dict(self.topics)
        for topic, count in other.topics.items():
            topics[topic] = topics.get(topic, 0) + count
        return RedriveReport(
            self.sent + other.sent,
            self.repeated + other.repeated,
            self.skipped + other.skipped,
            self.stranded + other.stranded,
            topics,
        )


TOPIC = "pyreplog.topic"
SUBSCRIPTION = "pyreplog.subscription"
OFFSET = "pyreplog.offset"
PUBLISH_TIME = "pyreplog.publish_time"
REDELIVERIES = "pyreplog.redeliveries"
CAUSE = "pyreplog.cause"
REASON = "pyreplog.reason"
REDRIVES = "pyreplog.redrives"

_OF_DEAD_LETTERS = frozenset((TOPIC, OFFSET, PUBLISH_TIME, REDELIVERIES, CAUSE, REASON))
"""Properties of a dead letter that the redriven message does not have."""

Properties = dict[str, str | bytes]


def dead_letter_properties(message: Message, topic: str, subscription: str, failure: Failure) -> Properties:
    """Return the properties of a message's dead letter: those of the message, its origin, and the cause."""
    properties: Properties = {
        **message.properties,
        TOPIC: topic,
        SUBSCRIPTION: subscription,
        OFFSET: str(message.offset),
        PUBLISH_TIME: str(message.publish_time),
        REDELIVERIES: str(failure.redeliveries),
        CAUSE: failure.cause.value,
    }
    if failure.reason is not None:
        properties[REASON] = failure.reason
    return properties


def redriven_properties(properties: Mapping[str, str | bytes]) -> Properties:
    """Return the properties of a redriven message: its own, the subscription, and the number of redrives."""
    return {**own_properties(properties), REDRIVES: str(redrives(properties) + 1)}


def own_properties(properties: Mapping[str, str | bytes]) -> Properties:
    """Return the properties of the message that became a dead letter, and the subscription that failed."""
    return {name: value for name, value in properties.items() if name not in _OF_DEAD_LETTERS}


def redrives(properties: Mapping[str, str | bytes]) -> int:
    """Return how often a message was sent back from a dead-letter topic."""
    text = _text(properties.get(REDRIVES))
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0


def origin(properties: Mapping[str, str | bytes]) -> str | None:
    """Return the topic, or partition of one, that a dead letter comes from; None: the dead letter does not name it."""
    return _text(properties.get(TOPIC)) or None


def _text(value: str | bytes | None) -> str | None:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return None
