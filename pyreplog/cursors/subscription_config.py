"""Settings of subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypedDict

from pyreplog.config import YEARS_MS, Settings, check_choice
from pyreplog.errors import ConfigError

SubscriptionType = Literal["exclusive", "failover", "shared", "key_shared"]

SUBSCRIPTION_TYPES: tuple[SubscriptionType, ...] = ("exclusive", "failover", "shared", "key_shared")


@dataclass(frozen=True, kw_only=True)
class SubscriptionConfig(Settings):
    """Settings of a subscription, stored with it if it is durable.

    They are set when the subscription is created. Settings that are passed later, while it has no consumers, replace
    them (`changed`); the others stay.

    Attributes:
        type: "exclusive": one consumer; "failover": one of several at a time; "shared": messages are distributed;
            "key_shared": messages of one key go to one consumer at a time, in order.
        ack_timeout_ms: a message that is not acknowledged for so long is delivered again; None: never.
        nack_min_ms: delay of the redelivery of a refused message; it doubles each time up to `nack_max_ms`.
        nack_max_ms: see `nack_min_ms`.
        max_redeliveries: a message that was delivered again so often goes to the dead-letter topic; None: never.
        dead_letter: name of that topic; None: "<topic>-<subscription>-DLQ".
        max_unacked: most messages that the consumers of the subscription have without an acknowledgement; at the limit
            delivery stops until half of them are acknowledged.
        max_unacked_consumer: the same for each consumer.
    """

    type: SubscriptionType = "exclusive"
    ack_timeout_ms: int | None = None
    nack_min_ms: int = 1000
    nack_max_ms: int = 60_000
    max_redeliveries: int | None = None
    dead_letter: str | None = None
    max_unacked: int = 1 << 20
    max_unacked_consumer: int = 1 << 18

    def __post_init__(self) -> None:
        check_choice("type", self.type, SUBSCRIPTION_TYPES)
        self._check_int("ack_timeout_ms", 1, YEARS_MS, optional=True)
        self._check_int("nack_min_ms", 0, YEARS_MS)
        self._check_int("nack_max_ms", self.nack_min_ms, YEARS_MS)
        self._check_int("max_redeliveries", 0, 1 << 20, optional=True)
        if self.dead_letter is not None and not isinstance(self.dead_letter, str):
            raise ConfigError(f"dead_letter: expected the name of a topic, found {self.dead_letter!r}")
        self._check_int("max_unacked", 1, 1 << 40)
        self._check_int("max_unacked_consumer", 1, 1 << 40)

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return these settings with others in their place. Raises ConfigError, which names the first unknown key."""
        return self.of({**vars(self), **settings})


class SubscriptionSettings(TypedDict, total=False):
    """The fields of SubscriptionConfig, as keywords of `subscribe` and `create_subscription`."""

    type: SubscriptionType
    ack_timeout_ms: int | None
    nack_min_ms: int
    nack_max_ms: int
    max_redeliveries: int | None
    dead_letter: str | None
    max_unacked: int
    max_unacked_consumer: int
