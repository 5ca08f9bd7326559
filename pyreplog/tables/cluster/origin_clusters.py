"""The clusters that messages of topics were replicated from, by the stored snapshots of the topics' origins."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence

from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, load_subscription
from pyreplog.errors import (
    InvalidMetadataError,
    MetadataVersionError,
    NoSuchSubscriptionError,
    UnreadableError,
)
from pyreplog.origins import snapshot
from pyreplog.origins.origin import Origin
from pyreplog.tables.cluster.backlogs import stored_records
from pyreplog.tables.cluster.ledgers import each
from pyreplog.tables.cluster.origins import ClusterSnapshot
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.schema import default_columns
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord
from pyreplog.topic.owner.origins import ORIGINS

COLUMN = "originCluster"

logger = logging.getLogger(__name__)

_ROW = struct.Struct("<Q16s")


def origin_clusters(survey: ClusterSnapshot, topics: Sequence[str], options: ReadOptions) -> dict[str, bytes]:
    """Return the clusters of the origins of topics, for the column `originCluster`.

    Topics without origins are left out. An origin is stored before its first entry is: a look after the ends of the
    topics are known shows all of them.

    Args:
        survey: the cluster.
        topics: their names, with the number of a partition.
        options: of the read; nothing is looked up unless it has the column.

    Returns:
        For each topic 24 bytes for each origin, ascending by key: the key, little-endian, and the id of the cluster.

    Raises:
        InvalidMetadataError: what is stored is malformed, in mode "FAILFAST"; in others no origin is known then.
        MetadataVersionError: what is stored needs a newer version, in mode "FAILFAST".
        UnreadableError: bookies do not return what is stored, in mode "FAILFAST".
        ReplogError: as the metadata store.
    """
    if all(column.name != COLUMN for column in default_columns(options)):
        return {}
    try:
        return _stored(survey, topics)
    except (InvalidMetadataError, MetadataVersionError, UnreadableError) as error:
        if options.mode == "FAILFAST":
            raise
        logger.warning("the clusters of origins are not known: %s", error)
        return {}


def encoded(origins: Iterable[Origin]) -> bytes:
    """Encode the clusters of origins by their keys, as `origin_clusters` returns them."""
    return b"".join(_ROW.pack(key, cluster) for key, cluster in sorted((item.key, item.cluster) for item in origins))


def _stored(survey: ClusterSnapshot, topics: Sequence[str]) -> dict[str, bytes]:
    def load(topic: str) -> SubscriptionMetadata | None:
        try:
            return load_subscription(survey.runtime.metadata, topic, ORIGINS)
        except NoSuchSubscriptionError:
            return None

    loaded = zip(topics, each(survey, load, topics), strict=True)
    known = {topic: metadata for topic, metadata in loaded if metadata is not None}
    stored = stored_records(survey, [(topic, ORIGINS) for topic in known], [*known.values()])
    clusters = {}
    for topic, records in zip(known, stored, strict=True):
        state = SystemCursorRecord.from_bytes(ORIGINS, records[-1]).state
        clusters[topic] = encoded(gate.origin for gate in snapshot.decode(state))
    return clusters
