"""The chain of ledgers of a topic, as the metadata store keeps it. Immutable; every change makes another one.

Offsets, entries and bytes are counted since the topic began, so the chain keeps where the first ledger starts, and of
every closed ledger what it holds. A change that was made already changes nothing: who does not know whether it was
stored may make it again.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

from pyreplog.errors import ConfigError, InvalidMetadataError, NoSuchTopicError, TopicFullError
from pyreplog.metadata.keys import VALUE_MAX
from pyreplog.metadata.values import Kept, split_object
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import ORIGIN, TopicPosition

VERSION = 2
_NEW = Kept(VERSION, VERSION)
RESERVE_BYTES = 4096
"""Are left free by every change that adds a ledger: closing and trimming always fit."""

ROW_BYTES = 256

_INT_MAX = (1 << 63) - 1
ANY_US = _INT_MAX
"""When the last entry of a ledger was appended is not known."""


class ChainLedger(NamedTuple):
    """One ledger. start: of the topic, before its first entry. closed_us: when it got its end; 0: it has none yet, and
    entries, messages, size (value bytes) and last_us are 0. last_us: no entry was appended later, as they say; within a
    ledger append times never go back, from one to the next they do where a clock was set back."""

    ledger: int
    start: TopicPosition
    created_us: int
    closed_us: int = 0
    entries: int = 0
    messages: int = 0
    size: int = 0
    last_us: int = 0

    @property
    def is_closed(self) -> bool:
        return self.closed_us > 0

    @property
    def end(self) -> TopicPosition:
        """Of the topic, behind its last entry; of one that is not closed: its start."""
        return TopicPosition(
            self.start.offset + self.messages, self.start.entries + self.entries, self.start.size + self.size
        )


class LedgerTotals(NamedTuple):
    """What a ledger holds, once that is certain."""

    ledger: int
    entries: int
    messages: int
    size: int
    closed_us: int
    last_us: int


@dataclass(frozen=True, kw_only=True)
class LedgerChain:
    """A topic in the metadata store.

    topic: its name. token: random, of its creation. epoch: raised by every owner that takes over; owner, nonce: who
    that was, and something random, so that no two write the same. start: of the first ledger, behind what was trimmed.
    ledgers: in order; only the last one may lack an end. doomed: ledgers taken off the chain, yet to be deleted.
    deleted: the topic is gone, its remains are to be removed. unknown_settings, kept: settings, and fields, that a
    newer version stored, and this one does not know; every change keeps them.
    """

    topic: str
    token: str
    epoch: int
    owner: str
    nonce: str
    created_us: int
    config: TopicConfig
    properties: Mapping[str, str] = field(default_factory=dict)
    start: TopicPosition = ORIGIN
    ledgers: tuple[ChainLedger, ...] = ()
    doomed: tuple[int, ...] = ()
    deleted: bool = False
    unknown_settings: Mapping[str, Any] = field(default_factory=dict)
    kept: Kept = _NEW

    # ---- where things are -----------------------------------------------------------------------------------

    @property
    def last(self) -> ChainLedger | None:
        return self.ledgers[-1] if self.ledgers else None

    @property
    def open_ledger(self) -> ChainLedger | None:
        """The last one, if it has no end yet."""
        return self.ledgers[-1] if self.ledgers and not self.ledgers[-1].is_closed else None

    @property
    def end(self) -> TopicPosition:
        """Behind the last entry of the closed ledgers."""
        return self.ledgers[-1].end if self.ledgers else self.start

    @cached_property
    def ids(self) -> frozenset[int]:
        return frozenset(item.ledger for item in self.ledgers)

    def index_of(self, offset: int) -> int:
        """Place in `ledgers` of the one that holds this offset, or is to hold it; -1: none. Empty ones hold nothing."""
        at = len(self.ledgers) - 1
        if at >= 0 and offset < self.ledgers[at].start.offset:  # mostly it is in the last one
            at = bisect_right(self.ledgers, offset, key=lambda item: item.start.offset) - 1
        if at < 0 or (self.ledgers[at].is_closed and offset >= self.ledgers[at].end.offset):
            return -1
        return at

    # ---- changes --------------------------------------------------------------------------------------------

    def taken(self, owner: str, nonce: str) -> Self:
        """A new owner."""
        return dataclasses.replace(self, epoch=self.epoch + 1, owner=owner, nonce=nonce)

    def closed(self, counts: LedgerTotals) -> Self:
        """The last ledger has its end; when it is empty, it goes."""
        last = self.open_ledger
        if last is None or last.ledger != counts.ledger:
            return self
        if not counts.entries:
            return self._without_last()
        closed_us = max(counts.closed_us, last.created_us, 1)
        ended = last._replace(
            closed_us=closed_us, entries=counts.entries, messages=counts.messages, size=counts.size,
            last_us=counts.last_us,
        )  # fmt: skip
        return dataclasses.replace(self, ledgers=(*self.ledgers[:-1], ended))

    def _without_last(self) -> Self:
        *rest, last = self.ledgers
        return dataclasses.replace(self, ledgers=tuple(rest), doomed=(*self.doomed, last.ledger))

    def added(self, ledger: int, created_us: int) -> Self:
        """Another ledger follows. Errors: TopicFullError, the metadata store could not hold it; NoSuchTopicError."""
        if ledger in self.ids:
            return self
        if self.deleted:
            raise NoSuchTopicError(self.topic, "it was deleted")
        if self.open_ledger is not None:
            raise InvalidMetadataError(f"ledger {self.ledgers[-1].ledger} has no end yet: {ledger} cannot follow it")
        made = dataclasses.replace(self, ledgers=(*self.ledgers, ChainLedger(ledger, self.end, max(created_us, 1))))
        made.check_room(0)
        return made

    def check_room(self, more: int = ROW_BYTES) -> None:
        """TopicFullError: there are so many ledgers that `more` bytes do not fit; another one needs no more than
        ROW_BYTES, together with the counts of the one before."""
        if len(self.encode()) + more > VALUE_MAX - RESERVE_BYTES:
            raise TopicFullError(self.topic, f"{len(self.ledgers)} ledgers are all that its metadata can hold")

    def trimmed(self, offset: int) -> Self:
        """Without its first ledgers, those that are closed and end at `offset` or before."""
        count = 0
        for item in self.ledgers:
            if not item.is_closed or item.end.offset > offset:
                break
            count += 1
        if not count:
            return self
        gone, kept = self.ledgers[:count], self.ledgers[count:]
        doomed = (*self.doomed, *(item.ledger for item in gone))
        return dataclasses.replace(self, start=gone[-1].end, ledgers=kept, doomed=doomed)

    def without_deleted(self, ledgers: Collection[int]) -> Self:
        """These doomed ledgers have been deleted."""
        return dataclasses.replace(self, doomed=tuple(ledger for ledger in self.doomed if ledger not in ledgers))

    def condemned(self) -> Self:
        """The topic is to be deleted, with all that it has."""
        doomed = (*self.doomed, *(item.ledger for item in self.ledgers))
        return dataclasses.replace(self, ledgers=(), doomed=doomed, start=self.end, deleted=True)

    # ---- bytes ----------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Of a ledger, seven numbers; its start follows from those before it."""
        body = {name: getattr(self, name) for name in _TYPES}
        body["config"] = {**dataclasses.asdict(self.config), **self.unknown_settings}
        body["properties"] = dict(self.properties)
        body["start"] = list(self.start)
        body["ledgers"] = [[item.ledger, *item[2:]] for item in self.ledgers]
        return self.kept.encode(body)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """InvalidMetadataError when it is none, or contradicts itself; MetadataVersionError when it needs a newer
        reader."""
        try:
            body, kept = split_object("topic metadata", data, _TYPES, VERSION)
            _check_types(body)
            config = body["config"]
            unknown = {name: config.pop(name) for name in list(config) if name not in _SETTINGS}
            body["config"] = TopicConfig.stored(config)
            body["start"] = TopicPosition(*_numbers(body["start"], 3))
            body["ledgers"] = tuple(_chained(body["ledgers"], body["start"]))
            body["doomed"] = tuple(_numbers(body["doomed"], None))
            return cls(**body, unknown_settings=unknown, kept=kept)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigError) as error:
            raise InvalidMetadataError(f"topic metadata: {data[:80]!r}: {error}") from error


_TYPES: dict[str, type] = {
    "topic": str, "token": str, "epoch": int, "owner": str, "nonce": str, "created_us": int, "config": dict,
    "properties": dict, "start": list, "ledgers": list, "doomed": list, "deleted": bool,
}  # fmt: skip


_SETTINGS = frozenset(item.name for item in dataclasses.fields(TopicConfig))


def _check_types(body: dict[str, Any]) -> None:
    if body.keys() != _TYPES.keys():
        raise ValueError(f"expected {', '.join(_TYPES)}, found {', '.join(body)}")
    for name, expected in _TYPES.items():
        if type(body[name]) is not expected:
            raise TypeError(f"{name}: expected {expected.__name__}, found {body[name]!r}"[:200])
    if not all(isinstance(word, str) for word in body["properties"].values()):
        raise TypeError("properties: expected text for text")
    if body["epoch"] < 1:
        raise ValueError(f"epoch: expected 1 or more, found {body['epoch']}")


def _numbers(found: Sequence[Any], count: int | None) -> list[int]:
    """`found`, if it is so many (None: any) numbers from 0 on."""
    if type(found) is not list or (count is not None and len(found) != count):
        raise ValueError(f"expected {count} numbers, found {found!r}"[:200])
    if not all(type(number) is int and 0 <= number <= _INT_MAX for number in found):
        raise ValueError(f"expected numbers from 0 on, found {found!r}"[:200])
    return found


def _chained(rows: Sequence[Any], start: TopicPosition) -> Iterable[ChainLedger]:
    seen: set[int] = set()
    for at, row in enumerate(rows):
        row = _numbers(row, None)
        if len(row) == 6:  # as they were before append times were noted
            row = [*row, ANY_US if row[2] else 0]
        ledger, created_us, *ended = _numbers(row, 7)
        item = ChainLedger(ledger, start, created_us, *ended)
        if ledger in seen:
            raise ValueError(f"ledger {ledger} is there twice")
        if not item.is_closed and (at + 1 < len(rows) or any(ended)):
            raise ValueError(f"ledger {ledger} has no end, and is not the last one or has counts")
        if item.messages < item.entries:
            raise ValueError(f"ledger {ledger} has {item.entries} entries, but {item.messages} messages")
        seen.add(ledger)
        start = item.end
        yield item
