"""Backlog quotas: decide what happens when a topic's slowest subscription falls too far behind. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import TopicPosition

SYSTEM_PREFIX = "pyreplog."
"""Prefix of pyreplog's own cursors, for which nothing is ever skipped or expired."""

RESUME_PERCENT = 90
"""Share of a quota at which publishers go on, and down to which eviction frees."""

Kind = Literal["bytes", "age"]
Publishing = Literal["open", "held", "refused"]


def is_system(cursor: str) -> bool:
    """Return whether a cursor belongs to this package."""
    return cursor.startswith(SYSTEM_PREFIX)


@dataclass(frozen=True, slots=True)
class CursorBacklog:
    """One cursor, as quotas and expiry see it.

    Attributes:
        name: name of the cursor.
        durable: it keeps messages from being trimmed.
        mark: all messages before it are acknowledged.
        oldest_us: append time of the first message that is not acknowledged; None: no such message, or unknown.
    """

    name: str
    durable: bool
    mark: TopicPosition
    oldest_us: int | None = None


@dataclass(frozen=True, slots=True)
class Eviction:
    """Messages that are to be acknowledged for a cursor.

    Attributes:
        cursor: name of the cursor.
        to_size: acknowledge whole entries up to this many bytes of the topic (`TopicPosition.size`), including the
            entry in which the limit lies; None: no limit by bytes.
        before_us: acknowledge messages that were appended before this time; None: no limit by age.
    """

    cursor: str
    to_size: int | None = None
    before_us: int | None = None


@dataclass(frozen=True, slots=True)
class QuotaDecision:
    """The decision about a topic's quotas.

    Attributes:
        publishing: "open": publishers go on; "held": publishers wait; "refused": publishers get BacklogFullError.
        reason: why publishing is not open; "" if it is.
        exceeded: the quotas that are exceeded.
        evictions: messages to be acknowledged now.
        catch_up: system cursors whose owners have to advance them now.
    """

    publishing: Publishing = "open"
    reason: str = ""
    exceeded: tuple[Kind, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    catch_up: tuple[str, ...] = ()


class Quota:
    """The quotas of one topic, checked from time to time.

    A quota that stops publishers does so until the backlog is down to 90 % of it; otherwise publishers would be
    admitted and stopped again entry by entry. Only durable cursors count: others keep no message from being trimmed.
    The bytes of a cursor are those from its mark to the end, including messages acknowledged between them, because all
    of them stay on disk. An unknown age does not count.

    A system cursor is never evicted. Its owner is asked to catch up from 90 % on, before publishers have to wait. If it
    does not catch up, the policies "hold" and "error" stop publishers as for any other cursor. "evict" stops them for
    the bytes only, which fill the disk and cannot be freed otherwise.
    """

    def __init__(self) -> None:
        self._stopping: set[Kind] = set()

    def decide(
        self, config: TopicConfig, end: TopicPosition, cursors: Iterable[CursorBacklog], now_us: int
    ) -> QuotaDecision:
        """Decide for this moment.

        Args:
            config: settings of the topic.
            end: end of the topic.
            cursors: all cursors of the topic.
            now_us: the time.
        """
        durable = [cursor for cursor in cursors if cursor.durable]
        sizes = {cursor.name: end.size - cursor.mark.size for cursor in durable}
        ages = {cursor.name: now_us - cursor.oldest_us for cursor in durable if cursor.oldest_us is not None}
        checks: dict[Kind, _QuotaCheck] = {}
        if config.quota_bytes is not None:
            checks["bytes"] = _QuotaCheck(sizes, config.quota_bytes)
        if config.quota_ms is not None:
            checks["age"] = _QuotaCheck(ages, config.quota_ms * 1000)
        reasons = {kind: self._stop(kind, check, config.quota_policy) for kind, check in checks.items()}
        self._stopping = {kind for kind, reason in reasons.items() if reason}
        stop: Publishing = "refused" if config.quota_policy == "error" else "held"
        return QuotaDecision(
            publishing=stop if self._stopping else "open",
            reason="; ".join(reason for reason in reasons.values() if reason),
            exceeded=tuple(kind for kind, check in checks.items() if check.over or kind in self._stopping),
            evictions=tuple(_evictions(checks, end, now_us)) if config.quota_policy == "evict" else (),
            catch_up=tuple(sorted({name for check in checks.values() for name in check.late if is_system(name)})),
        )

    def _stop(self, kind: Kind, check: _QuotaCheck, policy: str) -> str:
        """Return the reason why publishers may not go on, or ""."""
        names = check.late if kind in self._stopping else check.over
        if policy == "evict":
            names = [name for name in names if is_system(name) and kind == "bytes"]
        if not names:
            return ""
        slowest = max(names, key=lambda name: (check.levels[name], name))
        level, limit = _amount(kind, check.levels[slowest]), _amount(kind, check.limit)
        return f"subscription {slowest} has {level} to acknowledge, the quota is {limit}"


class _QuotaCheck:
    """A comparison of the cursors with one quota.

    Attributes:
        over: cursors beyond the quota.
        late: cursors beyond the level at which publishing resumes.
    """

    def __init__(self, levels: Mapping[str, int], limit: int) -> None:
        self.levels, self.limit, self.resume = levels, limit, limit * RESUME_PERCENT // 100
        self.over = [name for name, level in levels.items() if level > limit]
        self.late = [name for name, level in levels.items() if level > self.resume]


def _evictions(checks: Mapping[Kind, _QuotaCheck], end: TopicPosition, now_us: int) -> Iterator[Eviction]:
    """Yield the evictions of the cursors that are over a quota; other cursors lose no messages."""
    size, age = checks.get("bytes"), checks.get("age")
    names = {name for check in checks.values() for name in check.over if not is_system(name)}
    for name in sorted(names):
        yield Eviction(
            name,
            end.size - size.resume if size is not None and name in size.over else None,
            now_us - age.resume if age is not None and name in age.over else None,
        )


def _amount(kind: Kind, level: int) -> str:
    return f"{level} bytes" if kind == "bytes" else f"{level / 1e6:.1f} s"
