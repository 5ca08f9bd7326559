"""Ledgers that were made for a topic, and that no chain came to name: their owner died in between."""

from __future__ import annotations

import logging

from pyreplog.errors import InvalidMetadataError, NoSuchLedgerError
from pyreplog.ledger.cluster import Cluster
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.topic.managed.chain import Chain
from pyreplog.topic.managed.chainstore import find_chain
from pyreplog.topic.managed.ledgermaker import EPOCH, TOKEN, TOPIC

logger = logging.getLogger(__name__)


def stray_ledgers(cluster: Cluster) -> list[int]:
    """Those that nobody will ever need. Reads the metadata of all ledgers. Blocks. Errors: those of the store.

    A ledger is one when its topic is gone, or has another owner since, and the chain does not name it. What its present
    owner made may be about to be named. (The ledger is read before the chain.)
    """
    found: list[int] = []
    for ledger in cluster.ledgers():
        try:
            metadata = cluster.ledger_metadata(ledger)
            if TOPIC in metadata.custom and _is_stray(metadata, _chain(cluster, metadata.custom[TOPIC])):
                found.append(ledger)
        except NoSuchLedgerError:
            continue
        except InvalidMetadataError as error:
            logger.warning("ledger %d is left alone: %s", ledger, error)
    return found


def delete_strays(cluster: Cluster) -> list[int]:
    """Delete them; which. Blocks. Errors: as `stray_ledgers`."""
    strays = stray_ledgers(cluster)
    for ledger in strays:
        try:
            cluster.delete_ledger(ledger)
        except NoSuchLedgerError:
            continue
    return strays


def _chain(cluster: Cluster, topic: str) -> Chain | None:
    found = find_chain(cluster.metadata, topic)
    return None if found is None else found.chain


def _is_stray(metadata: LedgerMetadata, chain: Chain | None) -> bool:
    custom = metadata.custom
    if chain is None or chain.token != custom.get(TOKEN):
        return True
    epoch = custom.get(EPOCH, "")
    named = metadata.ledger in chain.ids or metadata.ledger in chain.doomed
    return epoch.isdecimal() and int(epoch) < chain.epoch and not named
