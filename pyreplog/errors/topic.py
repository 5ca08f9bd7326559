"""Errors of topics."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class TopicError(ReplogError):
    """Base of the errors of a topic.

    Attributes:
        topic: name of the topic.
    """

    def __init__(self, topic: str, message: str) -> None:
        self.topic, self.message = topic, message
        super().__init__(f"topic {topic}: {message}")

    def __reduce__(self) -> tuple[type[TopicError], tuple[str, str]]:
        return type(self), (self.topic, self.message)


class NoSuchTopicError(TopicError):
    """There is no topic of that name, or it was deleted."""

    exit_code = 2


class TopicExistsError(TopicError):
    """There is a topic of that name already."""

    exit_code = 2


class TopicFencedError(TopicError):
    """Another process owns the topic now. This owner cannot continue.

    The outcome of a publish that fails with it is unknown: the new owner keeps every message that it finds.
    """


class TopicOwnedError(TopicError):
    """Another process owns the topic; the message names it.

    Connect to that process (`pyreplog.connect`), or wait until it has ended.
    """

    retriable = True
    exit_code = 3


class TopicFullError(TopicError):
    """The topic has as many ledgers as its metadata can hold; nothing was published. Trim it, or have it roll later."""

    exit_code = 6


class BacklogFullError(TopicError):
    """The topic's backlog quota is used up; nothing was published."""

    retriable = True


class UnsentMessagesError(TopicError):
    """Another cluster lacks messages of the topic that was to be deleted; the message says which, and how many.

    Nothing was done.
    """

    retriable = True
    exit_code = 3


class SubscriptionError(TopicError):
    """Base of the errors of a subscription; the message names the subscription."""


class NoSuchSubscriptionError(SubscriptionError):
    """The topic has no subscription of that name."""

    exit_code = 2


class SubscriptionBusyError(SubscriptionError):
    """The subscription has consumers that exclude this one, or that must leave before the call can be carried out."""

    retriable = True


class SequenceError(TopicError):
    """A producer's sequence ids must ascend within a batch."""


class OriginSessionError(TopicError):
    """A newer session replicates into the topic from the same origin: this one is fenced. Nothing was stored.

    Open a session with a higher number; the outcome of entries that this session sent before is in its `stored`.
    """


class OriginGapError(TopicError):
    """Replicated entries begin behind the next offset that is expected of their origin. Nothing was stored.

    Open the origin again, and send from `stored` on.
    """

    retriable = True


class OriginHistoryError(TopicError):
    """Replicated entries contradict the stored entries of the same origin. Nothing was stored.

    The origin or the target was rolled back, for instance restored from a backup. An operator has to decide which side
    is right.
    """

    exit_code = 4


class InvalidEntryError(ReplogError):
    """An entry that should hold messages is malformed.

    The message says where, what was expected, and what was found.
    """

    exit_code = 4
