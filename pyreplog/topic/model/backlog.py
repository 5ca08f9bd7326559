"""Backlog quotas: what is to be done when a topic's slowest subscription falls too far behind. Pure: decisions only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import TopicPosition

SYSTEM_PREFIX = "pyreplog."
"""Cursors whose names begin like this are pyreplog's own: nothing is ever skipped or expired for them."""

RESUME_PERCENT = 90
"""Of a quota: what was too much is fine again at it, and eviction frees down to it."""

Kind = Literal["bytes", "age"]
Publishing = Literal["open", "held", "refused"]


def is_system(cursor: str) -> bool:
    """Whether a cursor belongs to this package."""
    return cursor.startswith(SYSTEM_PREFIX)


@dataclass(frozen=True, slots=True)
class CursorBacklog:
    """One cursor, as quotas and expiry see it. mark: everything before it is acknowledged. oldest_us: append time of
    the first message that is not; None: there is none, or it is not known."""

    name: str
    durable: bool
    mark: TopicPosition
    oldest_us: int | None = None


@dataclass(frozen=True, slots=True)
class Eviction:
    """What is to be acknowledged for a cursor that did not: whole entries up to `to_size` bytes of the topic
    (`TopicPosition.size`; the entry that it lies in goes too) and those appended before `before_us`; None: not by
    that."""

    cursor: str
    to_size: int | None = None
    before_us: int | None = None


@dataclass(frozen=True, slots=True)
class QuotaDecision:
    """publishing: "held", publishers wait; "refused", they get BacklogFullError. reason: why, "" when open. exceeded:
    the quotas that are. evictions: carry out now. catch_up: system cursors whose owners are to move them on, now."""

    publishing: Publishing = "open"
    reason: str = ""
    exceeded: tuple[Kind, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    catch_up: tuple[str, ...] = ()


class Quota:
    """The quotas of one topic, looked at now and then. Remembers which stop publishers: one that does goes on until the
    backlog is down to 90 % of it, so that publishers are not let in and shut out entry by entry.

    Only durable cursors count: others keep nothing from being trimmed. A cursor's bytes are those from its mark to the
    end, acknowledged holes included: what it keeps on disk. An age that is not known counts as none.

    A system cursor is never evicted. Its owner is asked to catch up from 90 % on, so before anybody has to wait. If it
    does not, it stops publishers as any other cursor by "hold" and "error". By "evict" it stops them for the bytes
    only: those fill the disk, and nothing else can be done about them.
    """

    def __init__(self) -> None:
        self._stopping: set[Kind] = set()

    def decide(
        self, config: TopicConfig, end: TopicPosition, cursors: Iterable[CursorBacklog], now_us: int
    ) -> QuotaDecision:
        """What to do now. end: of the topic. cursors: all of them."""
        durable = [cursor for cursor in cursors if cursor.durable]
        sizes = {cursor.name: end.size - cursor.mark.size for cursor in durable}
        ages = {cursor.name: now_us - cursor.oldest_us for cursor in durable if cursor.oldest_us is not None}
        looks: dict[Kind, _Look] = {}
        if config.quota_bytes is not None:
            looks["bytes"] = _Look(sizes, config.quota_bytes)
        if config.quota_ms is not None:
            looks["age"] = _Look(ages, config.quota_ms * 1000)
        reasons = {kind: self._stop(kind, look, config.quota_policy) for kind, look in looks.items()}
        self._stopping = {kind for kind, reason in reasons.items() if reason}
        stop: Publishing = "refused" if config.quota_policy == "error" else "held"
        return QuotaDecision(
            publishing=stop if self._stopping else "open",
            reason="; ".join(reason for reason in reasons.values() if reason),
            exceeded=tuple(kind for kind, look in looks.items() if look.over or kind in self._stopping),
            evictions=tuple(_evictions(looks, end, now_us)) if config.quota_policy == "evict" else (),
            catch_up=tuple(sorted({name for look in looks.values() for name in look.late if is_system(name)})),
        )

    def _stop(self, kind: Kind, look: _Look, policy: str) -> str:
        """Why publishers may not go on, or ""."""
        names = look.late if kind in self._stopping else look.over
        if policy == "evict":
            names = [name for name in names if is_system(name) and kind == "bytes"]
        if not names:
            return ""
        slowest = max(names, key=lambda name: (look.levels[name], name))
        level, limit = _amount(kind, look.levels[slowest]), _amount(kind, look.limit)
        return f"subscription {slowest} has {level} to acknowledge, the quota is {limit}"


class _Look:
    """How cursors stand to one quota. over: those beyond it; late: those beyond what it is fine again at."""

    def __init__(self, levels: Mapping[str, int], limit: int) -> None:
        self.levels, self.limit, self.resume = levels, limit, limit * RESUME_PERCENT // 100
        self.over = [name for name, level in levels.items() if level > limit]
        self.late = [name for name, level in levels.items() if level > self.resume]


def _evictions(looks: Mapping[Kind, _Look], end: TopicPosition, now_us: int) -> Iterator[Eviction]:
    """Of the cursors that are over a quota; who is not over it loses nothing."""
    size, age = looks.get("bytes"), looks.get("age")
    names = {name for look in looks.values() for name in look.over if not is_system(name)}
    for name in sorted(names):
        yield Eviction(
            name,
            end.size - size.resume if size is not None and name in size.over else None,
            now_us - age.resume if age is not None and name in age.over else None,
        )


def _amount(kind: Kind, level: int) -> str:
    return f"{level} bytes" if kind == "bytes" else f"{level / 1e6:.1f} s"
