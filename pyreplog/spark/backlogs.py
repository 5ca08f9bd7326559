"""Where subscriptions stand, as the metadata store and the cursor ledgers say; whoever writes those goes on."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyreplog._native.ackset import AckSet
from pyreplog.errors import (
    InvalidMessagesError,
    InvalidMetadataError,
    InvalidRecordsError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReplogError,
)
from pyreplog.ledger.lac import LedgerEnds
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State, ledger_key
from pyreplog.ledger.reader import LedgerReader
from pyreplog.ledger.stored import load_ledger
from pyreplog.spark.ledgerends import run
from pyreplog.spark.ledgers import each
from pyreplog.spark.origins import Survey
from pyreplog.topic.cursors.cursor import Cursor
from pyreplog.topic.cursors.pages import Chains
from pyreplog.topic.cursors.subscriptionmetadata import SubscriptionMetadata, load_subscription
from pyreplog.topic.managed.ledgermaker import PASSWORD

logger = logging.getLogger(__name__)


def positions(survey: Survey, topics: Sequence[str], subscription: str) -> list[AckSet]:
    """What a subscription has acknowledged of each topic, as far as that was stored.

    Errors: NoSuchSubscriptionError; InvalidMetadataError; UnreadableError; those of the metadata store.
    """
    store = survey.around.metadata
    known = each(survey, lambda topic: load_subscription(store, topic, subscription), topics)
    since: dict[int, int] = {}
    for metadata in known:
        if metadata.cursor_ledger >= 0:
            before = since.get(metadata.cursor_ledger, metadata.cursor_from)
            since[metadata.cursor_ledger] = min(before, metadata.cursor_from)
    chains = {ledger: _read(survey, ledger, first) for ledger, first in since.items()}
    return [_position(topic, subscription, metadata, chains) for topic, metadata in zip(topics, known, strict=True)]


def _position(topic: str, name: str, metadata: SubscriptionMetadata, chains: dict[int, Chains]) -> AckSet:
    records: list[bytes] = []
    if metadata.cursor_ledger >= 0:
        records = chains[metadata.cursor_ledger].records((topic, name), metadata.cursor_from)
    try:
        return Cursor.restore(name, records or [metadata.snapshot]).acks
    except InvalidRecordsError as error:
        raise InvalidMetadataError(
            f"where subscription {name} of topic {topic} stands cannot be told: {error}"
        ) from error


def _read(survey: Survey, ledger: int, first: int) -> Chains:
    """A cursor ledger, up to the last entry that a bookie knows of: what nobody was told to be stored yet is newer, and
    as true. What cannot be read gives what comes before, and then the snapshots in the metadata have to do."""
    chains, key = Chains(), ledger_key(PASSWORD)
    try:
        metadata = load_ledger(survey.around.metadata, ledger).metadata
        last = _last(survey, metadata, key)
        with LedgerReader(metadata, key, survey.around) as reader:
            batches = reader.read if reader.is_closed else reader.read_unconfirmed
            for batch in batches(first, last) if first <= last else ():
                for record in batch:
                    chains.add(record.value, ledger, record.entry)
    except NoSuchEntryError as error:
        logger.debug("cursor ledger %d ends: %s", ledger, error)
    except (NoSuchLedgerError, InvalidMessagesError) as error:
        _roll_back(ledger, error)
    return chains


def _last(survey: Survey, metadata: LedgerMetadata, key: bytes) -> int:
    if metadata.state is State.CLOSED:
        return metadata.last_entry
    last: int = survey.around.wait(run(survey.around, metadata, LedgerEnds(metadata, key)))[1]
    return last


def _roll_back(ledger: int, error: ReplogError) -> None:
    logger.warning("cursor ledger %d: subscriptions stand where they did before: %s", ledger, error)
