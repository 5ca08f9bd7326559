"""Sweep: deletes cursor ledgers that no subscription refers to, and none ever will.

Every cursor ledger has a key below /cursor-ledgers, whose value is the incarnation of its writer, from before its first
record on. Metadata of a subscription are changed to name a ledger by its writer alone, as the subscription's owner, and
after it has stored a record of it there. So a closed ledger is named by none any more when, after it was closed,
every subscription was looked at, and none named it or belonged to its writer: whoever became its owner later found the
ledger closed, and stored nothing there. Ledgers of this process are in question only when their writer says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Set
from contextlib import suppress

from pyreplog.errors import (
    InvalidMetadataError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchSubscriptionError,
    VersionConflictError,
)
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledgermetadata import ID_DIGITS, State
from pyreplog.metadata.store import MetadataStore
from pyreplog.topic.model.names import TOPICS, unquote_name
from pyreplog.topic.model.subscription_metadata import list_subscriptions, load_subscription

logger = logging.getLogger(__name__)

CURSOR_LEDGERS = "/cursor-ledgers"


def registry_key(ledger: int) -> str:
    """Who writes a cursor ledger."""
    return f"{CURSOR_LEDGERS}/{ledger:0{ID_DIGITS}d}"


def incarnation_of(owner: str) -> str:
    """The process that an owner of subscriptions belongs to."""
    return owner.partition("/")[0]


def delete_cursor_ledger(cluster: LedgerCluster, ledger: int) -> None:
    """The ledger first, then its key: a crash in between leaves something that a sweep finds. Errors: the store's."""
    with suppress(NoSuchLedgerError):
        cluster.delete_ledger(ledger)
    store, key = cluster.metadata, registry_key(ledger)
    item = store.get(key)
    if item is not None:
        try:
            store.delete(key, item.version)
        except (NoSuchKeyError, VersionConflictError):  # somebody else sweeps too
            return


class Sweep:
    """One look at all of it, in steps that are short. mine: the incarnation of this process. given_up: ledgers of its
    own that it will not name any more, all of them closed."""

    def __init__(self, cluster: LedgerCluster, mine: str, given_up: Set[int]) -> None:
        self._cluster, self._mine, self._given_up = cluster, mine, given_up
        self._store: MetadataStore = cluster.metadata
        self._named: set[int] = set()
        self._owners: set[str] = set()
        self._steps = self._run()
        self.deleted: set[int] = set()
        self.left: set[int] = set()
        """Which ledgers were in question and are still there."""

    def step(self) -> bool:
        """Do a little; False: that was all. Errors: those of the store, and of `open_ledger`."""
        return next(self._steps, None) is not None

    def _run(self) -> Iterator[bool]:
        candidates = self._candidates()
        if not candidates:
            return
        self.left = set(candidates)
        closed = {ledger for ledger in candidates if self._is_closed(ledger)}
        yield from self._look()
        unused = self._unused(candidates)
        yield from self._delete(unused & closed)
        if unused - closed:
            yield from self._close(unused - closed)
            yield from self._look()
            yield from self._delete(self._unused(candidates) & unused - closed)

    def _candidates(self) -> dict[int, str]:
        """Cursor ledgers, and who writes them."""
        writers = {}
        for name in self._store.list(CURSOR_LEDGERS):
            item = self._store.get(f"{CURSOR_LEDGERS}/{name}") if name.isdecimal() else None
            if item is not None:
                writers[int(name)] = item.value.decode(errors="replace")
        return {ledger: who for ledger, who in writers.items() if who != self._mine or ledger in self._given_up}

    def _is_closed(self, ledger: int) -> bool:
        try:
            return self._cluster.ledger_metadata(ledger).state is State.CLOSED
        except NoSuchLedgerError:
            return True
        except InvalidMetadataError:
            return False

    def _look(self) -> Iterator[bool]:
        """At every subscription. What cannot be read may refer to anything: nothing is deleted then."""
        self._named, self._owners = set(), set()
        for topic in self._store.list(TOPICS):
            for name in list_subscriptions(self._store, unquote_name(topic)):
                try:
                    metadata = load_subscription(self._store, unquote_name(topic), name)
                except NoSuchSubscriptionError:
                    continue
                self._named.add(metadata.cursor_ledger)
                self._owners.add(incarnation_of(metadata.owner))
            yield True

    def _unused(self, candidates: dict[int, str]) -> set[int]:
        owners = self._owners - {self._mine}
        return {ledger for ledger, who in candidates.items() if ledger not in self._named and who not in owners}

    def _close(self, ledgers: Set[int]) -> Iterator[bool]:
        """A dead owner's; should it be alive, without a subscription, it opens another."""
        for ledger in sorted(ledgers):
            try:
                self._cluster.open_ledger(ledger).close()
            except NoSuchLedgerError:
                logger.debug("cursor ledger %d was deleted meanwhile", ledger)
            yield True

    def _delete(self, ledgers: Set[int]) -> Iterator[bool]:
        for ledger in sorted(ledgers):
            delete_cursor_ledger(self._cluster, ledger)
            self.deleted.add(ledger)
            self.left.discard(ledger)
            logger.info("cursor ledger %d was deleted: nobody refers to it", ledger)
            yield True
