"""What subscriptions have acknowledged, from the metadata store and cursor ledgers; their owners may go on writing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pyreplog._native.topic.ack_set import AckSet
from pyreplog.cursors.cursor_pages import Chains, Key
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, load_subscription
from pyreplog.errors import (
    InvalidEntryError,
    InvalidMetadataError,
    InvalidRecordsError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchSubscriptionError,
    ReplogError,
    UnreadableError,
)
from pyreplog.ledger.driver import run_machine
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State, ledger_key
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.protocol.lac import LacQuery, LedgerEnds
from pyreplog.ledger.reader import LedgerReader
from pyreplog.tables.cluster.ledgers import each
from pyreplog.tables.cluster.origins import ClusterSnapshot
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.owner.managed.ledgers import PASSWORD

logger = logging.getLogger(__name__)

OnEntry = Callable[[bytes, int, int], object]
"""Called with (value, entry number, append time) of each entry of a cursor ledger that is read."""


def positions(
    survey: ClusterSnapshot, topics: Sequence[str], subscription: str, *, lenient: bool = False
) -> dict[str, AckSet]:
    """Return what a subscription has acknowledged of each topic, as far as that is stored.

    lenient: leave out topics without the subscription. Raises NoSuchSubscriptionError, InvalidMetadataError,
    UnreadableError, and the errors of the metadata store.
    """
    store = survey.runtime.metadata

    def load(topic: str) -> SubscriptionMetadata | None:
        try:
            return load_subscription(store, topic, subscription)
        except NoSuchSubscriptionError as error:
            if not lenient:
                raise
            logger.warning("the topic is skipped: %s", error)
            return None

    loaded = zip(topics, each(survey, load, topics), strict=True)
    known = {topic: metadata for topic, metadata in loaded if metadata is not None}
    keys = [(topic, subscription) for topic in known]
    stored = stored_records(survey, keys, [*known.values()])
    return {key[0]: cursor_of(key, records).acks for key, records in zip(keys, stored, strict=True)}


def stored_records(
    survey: ClusterSnapshot, keys: Sequence[Key], known: Sequence[SubscriptionMetadata],
    on_ledger: Callable[[int], OnEntry] | None = None, unread: dict[int, UnreadableError] | None = None,
) -> list[list[bytes]]:  # fmt: skip
    """Return the stored records of cursors, each from the cursor's last snapshot on.

    known: metadata of each cursor. on_ledger: called with the id of each cursor ledger that is read. unread: receives
    the error of each ledger that cannot be read; the records of its cursors are then meaningless. Raises
    UnreadableError (without `unread`) and the errors of the metadata store.
    """
    since: dict[int, int] = {}
    for metadata in known:
        if metadata.cursor_ledger >= 0:
            before = since.get(metadata.cursor_ledger, metadata.cursor_from)
            since[metadata.cursor_ledger] = min(before, metadata.cursor_from)
    chains = {}
    for ledger, first in since.items():
        try:
            chains[ledger] = _read(survey, ledger, first, None if on_ledger is None else on_ledger(ledger))
        except UnreadableError as error:
            if unread is None:
                raise
            unread[ledger], chains[ledger] = error, Chains()
    return [
        (chains[metadata.cursor_ledger].records(key, metadata.cursor_from) if metadata.cursor_ledger >= 0 else [])
        or [metadata.snapshot]
        for key, metadata in zip(keys, known, strict=True)
    ]


def cursor_of(key: Key, records: Sequence[bytes]) -> Cursor:
    """Return the cursor of a subscription. Raises InvalidMetadataError if the records cannot be decoded."""
    try:
        return Cursor.restore(key[1], records)
    except InvalidRecordsError as error:
        raise InvalidMetadataError(
            f"the stored cursor of subscription {key[1]} of topic {key[0]} cannot be decoded: {error}"
        ) from error


def _read(survey: ClusterSnapshot, ledger: int, first: int, on_entry: OnEntry | None) -> Chains:
    """Read a cursor ledger up to the last entry that a bookie has, even if that entry is not confirmed yet.

    An entry that cannot be decoded ends the read. Cursors without records then stand at the snapshot in their metadata.
    Raises UnreadableError if too few bookies answer to find the end.
    """
    chains, key = Chains(), ledger_key(PASSWORD)
    try:
        metadata = load_ledger(survey.runtime.metadata, ledger).metadata
        end = _end(survey, metadata, key)
        with LedgerReader(metadata, key, survey.runtime) as reader:
            batches = reader.read if reader.is_closed else reader.read_unconfirmed
            for batch in batches(first, end) if first < end else ():
                for record in batch:
                    chains.add(record.value, ledger, record.entry)
                    if on_entry is not None:
                        on_entry(record.value, record.entry, record.timestamp)
    except NoSuchEntryError as error:
        logger.debug("cursor ledger %d ends: %s", ledger, error)
    except (NoSuchLedgerError, InvalidEntryError) as error:
        _roll_back(ledger, error)
    return chains


def _end(survey: ClusterSnapshot, metadata: LedgerMetadata, key: bytes) -> int:
    if metadata.state is State.CLOSED:
        return metadata.last_entry + 1
    lac = run_machine(metadata.ledger, LacQuery(metadata, key), survey.runtime)
    survey.runtime.wait(lac)  # fails if too few bookies answer
    last: int = survey.runtime.wait(run_machine(metadata.ledger, LedgerEnds(metadata, key), survey.runtime))[1]
    return last + 1


def _roll_back(ledger: int, error: ReplogError) -> None:
    logger.warning("cursor ledger %d: cursors go back to their last readable position: %s", ledger, error)
