"""PositionPages: the positions of a topic's closed ledgers in the metadata store, a cache of what their entries say."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from pyreplog.errors import (
    ClosedError,
    InvalidMetadataError,
    KeyExistsError,
    MetadataVersionError,
    NoSuchKeyError,
    ReplogError,
    TopicFencedError,
    VersionConflictError,
)
from pyreplog.geo.topic_positions import TopicPositions
from pyreplog.origins.position_page import PAGE_BYTES_MAX, SealedLedger
from pyreplog.topic.model.chain import ChainLedger
from pyreplog.topic.owner.topic_context import TopicContext
from pyreplog.topic_names import topic_key

logger = logging.getLogger(__name__)

TOPIC_BYTES_MAX = 4 << 20
"""Most bytes of the pages of one topic; ledgers beyond that are read."""
_AT_ONCE = 16
"""Pages that are asked for at once."""


def pages_key(topic: str) -> str:
    """Return the key below which the pages of a topic are stored, by ledger."""
    return f"{topic_key(topic)}/positions"


class PositionPages:
    """The pages of one topic. FORMAT.md, "Position page", says when a page counts.

    `load` and `remove` wait for the metadata store; `add_to` and `seal` do not, and are called by one thread at a time.

    Args:
        context: the topic.
    """

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._key = pages_key(context.name)
        self._loaded: dict[int, bytes] = {}
        self._sealed = 0  # offset up to which `seal` has seen all ledgers
        self._is_warned = False
        self._trimmed = 0  # offset up to which it has seen that they were trimmed
        self._lock = threading.Lock()  # guards the following
        self._sizes: dict[int, int] = {}  # bytes of the pages that are stored, or are being stored
        self._changes: dict[int, bytes | None] = {}  # pages to be stored, or, None, to be deleted
        self._is_working = self._is_removed = False

    # ---- opening --------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the pages of the ledgers that the topic has, and have the others deleted. Raises errors of the store."""
        store, chain = self._context.metadata, self._context.managed.chain
        names = store.list(self._key)
        stored = {int(name) for name in names if name.isdecimal() and len(name) < 20}
        wanted = [item.ledger for item in chain.ledgers if item.is_closed and item.ledger in stored]
        total = 0
        for at in range(0, len(wanted), _AT_ONCE):
            ledgers = wanted[at : at + _AT_ONCE]
            values = store.get_many([self._key_of(ledger) for ledger in ledgers])
            for ledger, value in zip(ledgers, values, strict=True):
                if value is None or len(value.value) > PAGE_BYTES_MAX or total + len(value.value) > TOPIC_BYTES_MAX:
                    continue
                total += len(value.value)
                self._loaded[ledger] = value.value
                self._sizes[ledger] = len(value.value)
        self._change(dict.fromkeys(stored - chain.ids))

    def add_to(self, positions: TopicPositions) -> None:
        """Add the next ledgers to the positions, as long as they have pages."""
        chain = self._context.managed.chain
        while self._loaded and (at := chain.index_of(positions.end)) >= 0:
            item = chain.ledgers[at]
            page = self._loaded.pop(item.ledger, None)
            if page is None or item.start.offset != positions.end or not item.is_closed:
                return
            try:
                positions.add_page(_sealed(item), page)
            except (InvalidMetadataError, MetadataVersionError) as error:
                level = logging.DEBUG if self._is_warned else logging.WARNING  # none counts after `geo resync`, e.g.
                logger.log(
                    level, "topic %s: the entries of ledger %d are read: %s", self._context.name, item.ledger, error
                )
                self._is_warned = True
                with self._lock:
                    del self._sizes[item.ledger]
                return

    # ---- ledgers that end -------------------------------------------------------------------------------------

    def seal(self, positions: TopicPositions) -> None:
        """Have the pages of closed ledgers stored that the positions have wholly, and those of trimmed ones deleted."""
        chain = self._context.managed.chain
        changes: dict[int, bytes | None] = {}
        if chain.start.offset > self._trimmed:
            self._trimmed = chain.start.offset
            self._sealed = max(self._sealed, self._trimmed)
            with self._lock:
                changes.update(dict.fromkeys(self._sizes.keys() - chain.ids))
        while (at := chain.index_of(self._sealed)) >= 0:
            item = chain.ledgers[at]
            if not item.is_closed or item.end.offset > positions.end:
                break
            self._sealed = item.end.offset
            if item.ledger not in self._sizes and (page := positions.page(_sealed(item))) is not None:
                changes[item.ledger] = page
        self._change(changes)

    def _change(self, changes: dict[int, bytes | None]) -> None:
        """Store and delete pages, in a thread that may wait."""
        with self._lock:
            total = sum(self._sizes.values())
            for ledger, page in changes.items():
                if page is None:
                    total -= self._sizes.pop(ledger, 0)
                elif total + len(page) <= TOPIC_BYTES_MAX:
                    total += len(page)
                    self._sizes[ledger] = len(page)
                else:
                    continue
                self._changes[ledger] = page
            if not self._changes or self._is_working:
                return
            self._is_working = True
        self._context.work(self._work)

    def _work(self) -> None:
        """Make the changes. One that fails is made when the topic is opened next: nothing depends on it."""
        while True:
            with self._lock:
                changes, self._changes = self._changes, {}
                if not changes or self._is_removed:
                    self._is_working = False
                    return
            try:
                self._context.managed.verify()  # a former owner must not store below a topic that was deleted
                for ledger, page in changes.items():
                    self._put(ledger, page)
            except (ClosedError, TopicFencedError) as error:
                logger.debug("topic %s: its pages of positions stay as they are: %s", self._context.name, error)
            except ReplogError as error:
                logger.warning("topic %s: some pages of positions are not stored: %s", self._context.name, error)

    def _put(self, ledger: int, page: bytes | None) -> None:
        """Store or delete one page. Another owner that is at it stores the same bytes, or ones that do not count."""
        store, key = self._context.metadata, self._key_of(ledger)
        stored = store.get(key)
        with suppress(KeyExistsError, VersionConflictError, NoSuchKeyError):
            if page is None:
                if stored is not None:
                    store.delete(key, stored.version)
            elif stored is None:
                store.create(key, page)
            elif stored.value != page:
                store.put(key, page, stored.version)

    def _key_of(self, ledger: int) -> str:
        return f"{self._key}/{ledger}"

    def remove(self) -> None:
        """Delete all pages, and store none any more. Raises errors of the store."""
        with self._lock:
            self._is_removed = True
        store = self._context.metadata
        for name in store.list(self._key):
            stored = store.get(f"{self._key}/{name}")
            if stored is not None:
                with suppress(VersionConflictError, NoSuchKeyError):
                    store.delete(f"{self._key}/{name}", stored.version)


def _sealed(item: ChainLedger) -> SealedLedger:
    return SealedLedger(item.ledger, item.start.offset, item.end.offset, item.entries, item.size, item.closed_us)
