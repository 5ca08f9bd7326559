"""Becoming the owner of a topic: first nobody else can change its chain, then its last ledger gets an end.

Whoever fails in between leaves what the next one completes.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from pyreplog.clock import Clock
from pyreplog.errors import NoSuchLedgerError, ReplogError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.net.fair_executor import wait_wanted
from pyreplog.topic.model.chain import ANY_US, LedgerTotals
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.owner.managed.chainstore import ChainStore
from pyreplog.topic.owner.managed.ledgers import LedgerMaker, counts_of

logger = logging.getLogger(__name__)


class TakeoverResult(NamedTuple):
    """Of a topic whose ledgers all have their ends."""

    store: ChainStore
    maker: LedgerMaker


def take_over(
    cluster: LedgerCluster, name: str, config: TopicConfig | None, owner: str, clock: Clock, *, create: bool
) -> TakeoverResult:
    """See `ManagedLedger.open`. Blocks."""
    while True:
        store = ChainStore(cluster.metadata, name, owner)
        maker = LedgerMaker(cluster, store)
        if not store.take(config, clock.now_us(), create=create).deleted:
            _finish_last(cluster, store, maker, clock)
            return TakeoverResult(store, maker)
        remove(store, maker)


def _finish_last(cluster: LedgerCluster, store: ChainStore, maker: LedgerMaker, clock: Clock) -> None:
    """The owner before left its last ledger open: find its end."""
    last = store.chain.open_ledger
    if last is None:
        return
    try:
        found = wait_wanted(cluster.runtime.wait, maker.begin_recovery(last.ledger))
        counts = counts_of(found, clock.now_us(), _last_append_us(maker, found))
    except NoSuchLedgerError:
        logger.error("topic %s: its last ledger, %d, is not there any more", store.chain.topic, last.ledger)
        counts = LedgerTotals(last.ledger, 0, 0, 0, clock.now_us(), 0)
    store.update(lambda chain: chain.closed(counts))


def _last_append_us(maker: LedgerMaker, metadata: LedgerMetadata) -> int:
    """Of a closed ledger's last entry, as that says; 0: it has none."""
    if metadata.last_entry < 0:
        return 0
    try:
        with maker.reader(metadata) as reader:
            return int(next(reader.read(metadata.last_entry)).timestamp[0])
    except ReplogError as error:
        logger.warning("ledger %d: its last entry: %s", metadata.ledger, error)
        return ANY_US


def remove(store: ChainStore, maker: LedgerMaker) -> None:
    """What is left of a topic that was condemned. Errors: TopicFencedError; those of the metadata store."""
    for ledger in store.chain.doomed:
        maker.delete(ledger)
    store.remove()
