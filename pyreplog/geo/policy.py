"""Settings of the replication of topics to other clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypedDict

from pyreplog.config import YEARS_MS, Settings, check_choice
from pyreplog.errors import ConfigError, InvalidArgumentError, WrongTypeError
from pyreplog.topic_names import check_name

Direction = Literal["send", "receive"]
ReplicationStart = Literal["earliest", "latest"]
Forward = Literal["own", "all"]
GeoBacklogPolicy = Literal["hold", "error", "detach"]

DIRECTIONS: tuple[Direction, ...] = ("send", "receive")
STARTS: tuple[ReplicationStart, ...] = ("earliest", "latest")
FORWARDS: tuple[Forward, ...] = ("own", "all")
BACKLOG_POLICIES: tuple[GeoBacklogPolicy, ...] = ("hold", "error", "detach")

TARGETS_MAX = 64
"""Most clusters that a policy names."""


@dataclass(frozen=True, kw_only=True)
class ReplicationPolicy(Settings):
    """Settings of the replication of a topic, or of all topics whose names have a prefix.

    A policy controls the messages that this cluster sends. To replicate in both directions, give each of the two
    clusters a policy that names the other. A change never deletes a topic or its messages, here or at a target.

    Attributes:
        targets: names of the clusters that get the messages, as given to `GeoReplication.add_cluster`. With an empty
            tuple no message is sent; it exempts a topic from the policy of a prefix.
        direction: "send": messages go to the targets; "receive": no message is sent, as for a standby until it takes
            over.
        start: the first message for a target that has none of the topic yet. "earliest": the oldest stored message;
            "latest": the next published message.
        forward: "own": only messages published in this cluster; for meshes, in which each cluster sends to each other.
            "all": messages that came from other clusters, too; for rings and stars.
        replicated_from: with `forward="all"`, names of the clusters whose messages are forwarded; None: all clusters.
        ttl_ms: greatest age of a message that is sent, milliseconds; older messages are skipped. None: no limit.
        rate_bytes: most bytes per second to each target; None: no limit.
        window_bytes: most bytes in flight to a target.
        backlog_bytes: most bytes that wait for a target; None: no limit.
        backlog_policy: the action when the backlog exceeds `backlog_bytes`. "hold": publishers wait; "error": they get
            BacklogFullError; "detach": replication to this target ends with an alarm, and no longer keeps messages from
            being trimmed, until `GeoReplication.resync`.
        replicated_subscriptions: whether durable subscriptions can go on in the targets at their position here, with
            each acknowledgement, and the other way round. The targets need such a policy, too, which names this
            cluster; its direction does not matter.
    """

    targets: tuple[str, ...] = ()
    direction: Direction = "send"
    start: ReplicationStart = "earliest"
    forward: Forward = "own"
    replicated_from: tuple[str, ...] | None = None
    ttl_ms: int | None = None
    rate_bytes: int | None = None
    window_bytes: int = 8 << 20
    backlog_bytes: int | None = None
    backlog_policy: GeoBacklogPolicy = "hold"
    replicated_subscriptions: bool = False

    def __post_init__(self) -> None:
        self._check_clusters("targets")
        check_choice("direction", self.direction, DIRECTIONS)
        check_choice("start", self.start, STARTS)
        check_choice("forward", self.forward, FORWARDS)
        if self.replicated_from is not None:
            self._check_clusters("replicated_from")
            if self.forward != "all":
                raise ConfigError('replicated_from: has an effect only with forward="all"')
        self._check_int("ttl_ms", 1, YEARS_MS, optional=True)
        self._check_int("rate_bytes", 1, 1 << 40, optional=True)
        self._check_int("window_bytes", 64 << 10, 1 << 30)
        self._check_int("backlog_bytes", 1, 1 << 62, optional=True)
        check_choice("backlog_policy", self.backlog_policy, BACKLOG_POLICIES)
        if not isinstance(self.replicated_subscriptions, bool):
            raise ConfigError(
                f"replicated_subscriptions: expected True or False, found {self.replicated_subscriptions!r}"
            )

    def _check_clusters(self, name: str) -> None:
        """Check names of clusters, and keep them as a sorted tuple without duplicates."""
        clusters = getattr(self, name)
        if isinstance(clusters, str) or not isinstance(clusters, tuple | list | set | frozenset):
            raise ConfigError(f"{name}: expected a tuple of names of clusters, found {clusters!r}")
        try:
            names = tuple(sorted({check_name(cluster, name) for cluster in clusters}))
        except (InvalidArgumentError, WrongTypeError) as error:
            raise ConfigError(f"{name}: {error}") from None
        if len(names) > TARGETS_MAX:
            raise ConfigError(f"{name}: expected at most {TARGETS_MAX} clusters, found {len(names)}")
        object.__setattr__(self, name, names)

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return a copy of this policy with other values for some settings.

        Args:
            settings: the new values by name of the setting.

        Raises:
            ConfigError: a setting is unknown, or its value is outside its bounds.
        """
        return self.of({**vars(self), **settings})


class ReplicationSettings(TypedDict, total=False):
    """The fields of ReplicationPolicy, as keywords of `GeoReplication.set_policy`."""

    targets: tuple[str, ...]
    direction: Direction
    start: ReplicationStart
    forward: Forward
    replicated_from: tuple[str, ...] | None
    ttl_ms: int | None
    rate_bytes: int | None
    window_bytes: int
    backlog_bytes: int | None
    backlog_policy: GeoBacklogPolicy
    replicated_subscriptions: bool
