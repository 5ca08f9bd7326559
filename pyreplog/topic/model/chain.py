"""The chain of ledgers of a topic, as stored in the metadata. Immutable; every change returns a new chain.

Offsets, entries and bytes are counted since the topic began, so the chain keeps the start of the first ledger and the
counts of every closed one. A change is idempotent: a caller that does not know whether it was stored may make it again.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from pyreplog.errors import InvalidMetadataError, NoSuchTopicError, TopicFullError
from pyreplog.metadata.keys import VALUE_MAX
from pyreplog.metadata.values import MetadataValue
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import ORIGIN, TopicPosition

RESERVE_BYTES = 4096
"""Bytes that a change which adds a ledger leaves free, so that closing and trimming always fit."""

ROW_BYTES = 256

RENEWALS_MAX = 64
"""Most renewals of a topic that still name messages."""

_INT_MAX = (1 << 63) - 1
ANY_US = _INT_MAX
"""`last_us` of a ledger whose last append time is not known."""


class ChainLedger(NamedTuple):
    """One ledger of a topic.

    Attributes:
        ledger: id of the ledger.
        start: position in the topic before its first entry.
        created_us: when it was created.
        closed_us: when it was closed; 0: it is open, and the counts and `last_us` are 0.
        entries: number of entries.
        messages: number of messages.
        size: bytes of values.
        last_us: highest append time of its entries. Append times never go back within a ledger; from one ledger to the
            next they do if a clock was set back.
    """

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
        """Position in the topic behind its last entry; of an open ledger its start."""
        return TopicPosition(
            self.start.offset + self.messages, self.start.entries + self.entries, self.start.size + self.size
        )


class LedgerTotals(NamedTuple):
    """The final counts of a ledger."""

    ledger: int
    entries: int
    messages: int
    size: int
    closed_us: int
    last_us: int


@dataclass(frozen=True, kw_only=True)
class LedgerChain(MetadataValue):
    """A topic in the metadata store.

    Attributes:
        topic: name of the topic.
        token: random, of its creation.
        renewals: (token, offset), ascending: from the offset on its messages have an identity with this token in other
            clusters, in place of the one before.
        epoch: raised by every owner that takes over.
        owner: the owner of this epoch.
        nonce: random, so that two owners never write the same value.
        created_us: when the topic was created.
        config: settings of the topic.
        properties: properties of the topic.
        start: start of the first ledger, behind the trimmed ones.
        ledgers: in order; only the last one may be open.
        pending_deletion: ledgers that were taken off the chain and are to be deleted.
        deleted: the topic was deleted; its ledgers are to be removed.
        unknown_settings: settings that a newer version stored; every change keeps them.
    """

    KIND: ClassVar[str] = "topic metadata"
    VERSION: ClassVar[int] = 3
    RENEWED_VERSION: ClassVar[int] = 3
    """Of a topic with renewals: a reader that ignored them would give messages the identity of others."""
    UNSTORED: ClassVar[frozenset[str]] = frozenset({"unknown_settings"})
    STORED_NAMES: ClassVar[Mapping[str, str]] = {"pending_deletion": "doomed"}

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
    pending_deletion: tuple[int, ...] = ()
    deleted: bool = False
    renewals: tuple[tuple[str, int], ...] = ()
    unknown_settings: Mapping[str, Any] = field(default_factory=dict)

    # ---- positions -----------------------------------------------------------------------------------

    @property
    def last(self) -> ChainLedger | None:
        return self.ledgers[-1] if self.ledgers else None

    @property
    def open_ledger(self) -> ChainLedger | None:
        """The last ledger, if it is open."""
        return self.ledgers[-1] if self.ledgers and not self.ledgers[-1].is_closed else None

    @property
    def end(self) -> TopicPosition:
        """Position behind the last entry of the closed ledgers."""
        return self.ledgers[-1].end if self.ledgers else self.start

    @cached_property
    def ids(self) -> frozenset[int]:
        return frozenset(item.ledger for item in self.ledgers)

    def index_of(self, offset: int) -> int:
        """Return the index in `ledgers` of the ledger that holds this offset, or will hold it; -1: there is none.

        Empty ledgers hold no offset.
        """
        at = len(self.ledgers) - 1
        if at >= 0 and offset < self.ledgers[at].start.offset:  # most offsets are in the last one
            at = bisect_right(self.ledgers, offset, key=lambda item: item.start.offset) - 1
        if at < 0 or (self.ledgers[at].is_closed and offset >= self.ledgers[at].end.offset):
            return -1
        return at

    # ---- changes --------------------------------------------------------------------------------------------

    def taken_over(self, owner: str, nonce: str) -> Self:
        """Return the chain with a new owner."""
        return dataclasses.replace(self, epoch=self.epoch + 1, owner=owner, nonce=nonce)

    def closed(self, counts: LedgerTotals) -> Self:
        """Return the chain with its last ledger closed, or removed if that is empty."""
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
        *others, last = self.ledgers
        return dataclasses.replace(self, ledgers=tuple(others), pending_deletion=(*self.pending_deletion, last.ledger))

    def added(self, ledger: int, created_us: int) -> Self:
        """Return the chain with another ledger at the end.

        Raises:
            TopicFullError: the chain would be too large for the metadata store.
            NoSuchTopicError: the topic was deleted.
            InvalidMetadataError: the last ledger is open.
        """
        if ledger in self.ids:
            return self
        if self.deleted:
            raise NoSuchTopicError(self.topic, "it was deleted")
        if self.open_ledger is not None:
            raise InvalidMetadataError(f"ledger {self.ledgers[-1].ledger} has no end yet: {ledger} cannot follow it")
        chain = dataclasses.replace(self, ledgers=(*self.ledgers, ChainLedger(ledger, self.end, max(created_us, 1))))
        chain.check_room(0)
        return chain

    def check_room(self, more: int = ROW_BYTES) -> None:
        """Raise TopicFullError if `more` bytes do not fit into the metadata.

        Another ledger, with the counts of the one before it, needs at most ROW_BYTES.
        """
        if len(self.encode()) + more > VALUE_MAX - RESERVE_BYTES:
            raise TopicFullError(
                self.topic, f"its metadata have room for {len(self.ledgers)} ledgers, and not for one more"
            )

    def trimmed(self, offset: int) -> Self:
        """Return the chain without the closed ledgers at its front that end at `offset` or before."""
        count = 0
        for item in self.ledgers:
            if not item.is_closed or item.end.offset > offset:
                break
            count += 1
        if not count:
            return self
        removed, kept = self.ledgers[:count], self.ledgers[count:]
        pending_deletion = (*self.pending_deletion, *(item.ledger for item in removed))
        return dataclasses.replace(self, start=removed[-1].end, ledgers=kept, pending_deletion=pending_deletion)

    def without_deleted(self, ledgers: Collection[int]) -> Self:
        """Return the chain without the ledgers pending deletion that were deleted meanwhile."""
        return dataclasses.replace(
            self, pending_deletion=tuple(ledger for ledger in self.pending_deletion if ledger not in ledgers)
        )

    def marked_deleted(self) -> Self:
        """Return the chain of a deleted topic, all of whose ledgers are to be deleted."""
        pending_deletion = (*self.pending_deletion, *(item.ledger for item in self.ledgers))
        return dataclasses.replace(self, ledgers=(), pending_deletion=pending_deletion, start=self.end, deleted=True)

    def renewed(self, token: str, offset: int) -> Self:
        """Return the chain with another identity for the messages from an offset on.

        Raises:
            TopicFullError: the topic has RENEWALS_MAX renewals.
        """
        if any(token == other for other, _ in self.renewals):
            return self
        kept = tuple(item for item in self.renewals if item[1] < offset)  # the dropped ones name no messages any more
        if len(kept) >= RENEWALS_MAX:
            raise TopicFullError(self.topic, f"its messages have {RENEWALS_MAX} identities already: create it again")
        return dataclasses.replace(self, renewals=(*kept, (token, offset)))

    # ---- bytes ----------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        return self.kept.encode(self._encode_fields(), self.RENEWED_VERSION if self.renewals else 2)

    def _encode_fields(self) -> dict[str, Any]:
        """Encode seven numbers for each ledger, whose start follows from the ledgers before it.

        Renewals are optional.
        """
        fields = super()._encode_fields()
        if not self.renewals:
            del fields["renewals"]
        return {
            **fields,
            "config": {**self.config.encoded(), **self.unknown_settings},
            "properties": dict(self.properties),
            "ledgers": [[item.ledger, *item[2:]] for item in self.ledgers],
        }

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        fields = {"renewals": [], **fields}
        _check_types(fields)
        config, start = fields["config"], TopicPosition(*_numbers(fields["start"], 3))
        unknown = {name: config.pop(name) for name in list(config) if name not in _SETTINGS}
        return {
            **fields,
            "unknown_settings": unknown,
            "config": TopicConfig.stored(config),
            "start": start,
            "ledgers": tuple(_chained(fields["ledgers"], start)),
            "doomed": tuple(_numbers(fields["doomed"], None)),
            "renewals": tuple(_renewals(fields["renewals"])),
        }


_TYPES: dict[str, type] = {
    "topic": str, "token": str, "epoch": int, "owner": str, "nonce": str, "created_us": int, "config": dict,
    "properties": dict, "start": list, "ledgers": list, "doomed": list, "deleted": bool,
    "renewals": list,
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


def _renewals(rows: Sequence[Any]) -> Iterable[tuple[str, int]]:
    """Yield tokens and offsets. Raises ValueError unless the offsets ascend."""
    at = -1
    for row in rows:
        if type(row) is not list or len(row) != 2 or type(row[0]) is not str or not 1 <= len(row[0]) <= 200:
            raise ValueError(f"renewals: expected a token and an offset, found {row!r}"[:200])
        (offset,) = _numbers(row[1:], 1)
        if offset <= at or len(rows) > RENEWALS_MAX:
            raise ValueError(f"renewals: expected at most {RENEWALS_MAX}, ascending, found {rows!r}"[:200])
        at = offset
        yield row[0], offset


def _numbers(values: Sequence[Any], count: int | None) -> list[int]:
    """Return `values` if they are `count` numbers, 0 or more; None: any number of them. Raises ValueError otherwise."""
    if type(values) is not list or (count is not None and len(values) != count):
        raise ValueError(f"expected {count} numbers, found {values!r}"[:200])
    if not all(type(number) is int and 0 <= number <= _INT_MAX for number in values):
        raise ValueError(f"expected numbers from 0 on, found {values!r}"[:200])
    return values


def _chained(rows: Sequence[Any], start: TopicPosition) -> Iterable[ChainLedger]:
    """Yield the ledgers of decoded rows. Raises ValueError if they contradict each other."""
    seen: set[int] = set()
    for at, row in enumerate(rows):
        row = _numbers(row, None)
        if len(row) == 6:  # a row of a version that noted no append times
            row = [*row, ANY_US if row[2] else 0]
        ledger, created_us, *ended = _numbers(row, 7)
        item = ChainLedger(ledger, start, created_us, *ended)
        if ledger in seen:
            raise ValueError(f"ledger {ledger} occurs twice")
        if not item.is_closed and (at + 1 < len(rows) or any(ended)):
            raise ValueError(f"ledger {ledger} has no end, and is not the last one or has counts")
        if item.messages < item.entries:
            raise ValueError(f"ledger {ledger} has {item.entries} entries, but {item.messages} messages")
        seen.add(ledger)
        start = item.end
        yield item
