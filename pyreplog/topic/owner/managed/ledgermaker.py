"""Making, recovering and discarding the ledgers of a topic: calls that block, for threads that may."""

from __future__ import annotations

import logging

from pyreplog.errors import NoSuchLedgerError, NotEnoughBookiesError
from pyreplog.future import AppendFuture
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata, ledger_key
from pyreplog.ledger.reader import LedgerReader
from pyreplog.topic.model.chain import LedgerTotals
from pyreplog.topic.model.topic_position import TopicPosition
from pyreplog.topic.owner.managed.chainstore import ChainStore

logger = logging.getLogger(__name__)

PASSWORD = b""
TOPIC, TOKEN, EPOCH = "topic", "topic-token", "topic-epoch"
"""What ledgers of topics say of themselves, so that those which no chain came to name can be found: see `orphans`."""


class LedgerMaker:
    """For one topic."""

    def __init__(self, cluster: LedgerCluster, store: ChainStore) -> None:
        self._cluster, self._store = cluster, store
        self.is_hopeless = False
        """The last ledger could not be made because the cluster has fewer bookies than it needs: waiting is in vain."""

    def make(self) -> Ledger:
        """A ledger that no chain names yet. Some of its bookies may be away, as long as every entry can be confirmed.

        Errors: TopicFullError; those of `create_ledger`.
        """
        chain = self._store.chain
        chain.check_room()
        config = chain.config
        self.is_hopeless = False
        try:
            return self._cluster.create_ledger(
                config.ensemble, config.copies, config.acks, durability=config.durability, password=PASSWORD,
                metadata={TOPIC: chain.topic, TOKEN: chain.token, EPOCH: str(chain.epoch)}, allow_degraded=True,
            )  # fmt: skip
        except NotEnoughBookiesError as error:
            has = self._cluster.bookie_count()
            self.is_hopeless = config.ensemble > has
            if not self.is_hopeless:
                raise
            raise NotEnoughBookiesError(
                f"topic {chain.topic}: its ensemble is {config.ensemble} bookies, and the cluster has {has}: add "
                f"bookies, or configure(ensemble={max(has, 1)})"
            ) from error

    def discard(self, ledger: int) -> None:
        """Delete one that was made, unless a chain names it. Errors: those of the store."""
        if not self._store.has(ledger):
            self.delete(ledger)

    def delete(self, ledger: int) -> None:
        """Delete one that the chain does not need. One that is gone is fine. Errors: those of the store."""
        try:
            self._cluster.delete_ledger(ledger)
        except NoSuchLedgerError:
            logger.debug("ledger %d is gone already", ledger)

    def begin_recovery(self, ledger: int) -> AppendFuture[LedgerMetadata]:
        """Find the end of a ledger, and fence its writer. Errors: NoSuchLedgerError; those of the store; the
        AppendFuture's are those of `open_ledger`."""
        metadata, version = load_ledger(self._cluster.metadata, ledger)
        return self._cluster.begin_recovery(metadata, version, ledger_key(PASSWORD))

    def reader(self, metadata: LedgerMetadata) -> LedgerReader:
        """To be closed by the caller."""
        return LedgerReader(metadata, ledger_key(PASSWORD), self._cluster.runtime)

    def open_reader(self, ledger: int) -> LedgerReader:
        """Of a closed ledger. Errors: NoSuchLedgerError; those of the store."""
        return self.reader(self._cluster.ledger_metadata(ledger))


def counts_of(metadata: LedgerMetadata, now_us: int, last_us: int) -> LedgerTotals:
    """What a closed ledger holds; last_us: none of it was appended later."""
    return LedgerTotals(metadata.ledger, metadata.last_entry + 1, metadata.messages, metadata.length, now_us, last_us)


def counts_between(ledger: int, start: TopicPosition, end: TopicPosition, now_us: int, last_us: int) -> LedgerTotals:
    """What a ledger holds that lies between these points of a topic; last_us: none of it was appended later."""
    return LedgerTotals(
        ledger, end.entries - start.entries, end.offset - start.offset, end.size - start.size, now_us, last_us
    )
