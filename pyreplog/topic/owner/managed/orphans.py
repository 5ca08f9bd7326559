"""Ledgers that were made for a topic, and that no chain came to name: their owner died in between."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from pyreplog.errors import InvalidMetadataError, NoSuchLedgerError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.topic.model.chain import LedgerChain
from pyreplog.topic.owner.managed.chainstore import find_chain
from pyreplog.topic.owner.managed.ledgermaker import EPOCH, TOKEN, TOPIC

logger = logging.getLogger(__name__)


def orphan_ledgers(cluster: LedgerCluster) -> list[int]:
    """Those that nobody will ever need. Reads the metadata of all ledgers. Blocks. Errors: those of the store."""
    return [ledger for ledger in cluster.ledgers() if _nobody_needs(cluster, ledger)]


def delete_orphans(cluster: LedgerCluster, *, goes_on: Callable[[], bool] = lambda: True) -> list[int]:
    """Delete them; which. goes_on: asked before each ledger. Blocks. Errors: as `orphan_ledgers`."""
    deleted: list[int] = []
    for ledger in cluster.ledgers():
        if not goes_on():
            break
        if _nobody_needs(cluster, ledger):
            with suppress(NoSuchLedgerError):
                cluster.delete_ledger(ledger)
                deleted.append(ledger)
    return deleted


def _nobody_needs(cluster: LedgerCluster, ledger: int) -> bool:
    """Whether its topic is gone, or has another owner since, and the chain does not name it. What its present owner
    made may be about to be named. (The ledger is read before the chain.)"""
    try:
        metadata = cluster.ledger_metadata(ledger)
        return TOPIC in metadata.custom and _is_orphan(metadata, _chain(cluster, metadata.custom[TOPIC]))
    except NoSuchLedgerError:
        return False
    except InvalidMetadataError as error:
        logger.warning("ledger %d is left alone: %s", ledger, error)
        return False


def _chain(cluster: LedgerCluster, topic: str) -> LedgerChain | None:
    found = find_chain(cluster.metadata, topic)
    return None if found is None else found.chain


def _is_orphan(metadata: LedgerMetadata, chain: LedgerChain | None) -> bool:
    custom = metadata.custom
    if chain is None or chain.token != custom.get(TOKEN):
        return True
    epoch = custom.get(EPOCH, "")
    named = metadata.ledger in chain.ids or metadata.ledger in chain.doomed
    return epoch.isdecimal() and int(epoch) < chain.epoch and not named
