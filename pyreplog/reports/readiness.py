"""Readiness of replicated subscriptions for a fail-over, as the owners of their topics tell."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from pyreplog.errors import InvalidMetadataError, ReplogError
from pyreplog.geo.geo_replication import decode_readiness
from pyreplog.geo.policies import ReplicationConfig
from pyreplog.geo.server_registration import list_servers
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.credentials import Credentials
from pyreplog.reports.snapshot import ReadinessSnapshot, SubscriptionSnapshot, TopicSnapshot
from pyreplog.topic.client.remote.client import connect

TIMEOUT_S = 5.0
"""A server that does not answer in this time is unknown."""

logger = logging.getLogger(__name__)


def readiness_snapshots(
    store: MetadataStore,
    config: ReplicationConfig,
    credentials: Credentials,
    topics: Sequence[TopicSnapshot],
    subscriptions: Sequence[SubscriptionSnapshot],
) -> tuple[tuple[ReadinessSnapshot, ...], tuple[str, ...]]:
    """Ask the servers of a cluster for the readiness of replicated subscriptions, if policies have any replicated.

    The metadata do not tell it: only the owner of a topic knows what each target has confirmed.

    Args:
        store: metadata store of the cluster.
        config: clusters, policies and orders.
        credentials: credentials for the servers.
        topics: the topics.
        subscriptions: subscriptions of the topics.

    Returns:
        The rows, one for each subscription and target; and a note for each server that did not answer.

    Raises:
        ConfigError: a file with credentials cannot be read.
        ReplogError: errors of the store.
    """
    expected = list(_expected(config, topics, subscriptions))
    if not expected:
        return (), ()
    answers, notes = _ask(store, credentials)
    rows = {key: answers.get((key[0].name, *key[1:])) for key in expected}
    return tuple(
        ReadinessSnapshot(topic.topic, topic.partition, subscription, target, answer)
        for (topic, subscription, target), answer in rows.items()
    ), notes


def _expected(
    config: ReplicationConfig, topics: Sequence[TopicSnapshot], subscriptions: Sequence[SubscriptionSnapshot]
) -> Iterator[tuple[TopicSnapshot, str, str]]:
    """Yield topic, subscription and target, as policies order."""
    for topic in topics:
        try:
            targets = config.subscription_targets_of(topic.name)
        except InvalidMetadataError as error:  # `replication_snapshots` reports it
            logger.info("topic %s: %s", topic.name, error)
            continue
        for subscription in subscriptions if targets else ():
            if subscription.on == topic.name and not subscription.is_system:
                for target in targets:
                    yield topic, subscription.name, target


def _ask(
    store: MetadataStore, credentials: Credentials
) -> tuple[dict[tuple[str, str, str], SubscriptionReadiness], tuple[str, ...]]:
    """Return the answers of all servers, by topic, subscription and target; and what servers did not answer."""
    answers, notes = dict[tuple[str, str, str], SubscriptionReadiness](), list[str]()
    secret, tls = credentials.read_secret(), credentials.context()
    for server in list_servers(store).values():
        if not server.address:
            notes.append(f"could not ask: process {server.pid} on {server.host}, which has no server")
            continue
        try:
            with connect(f"pyreplog://{server.address}", secret=secret, tls=tls, timeout=TIMEOUT_S) as client:
                rows = [decode_readiness(row) for row in client.geo_readiness()]
        except ReplogError as error:
            notes.append(f"could not ask: server {server.address}: {error}")
            continue
        answers |= {(row.topic, row.subscription, row.target): row for row in rows}
    return answers, tuple(notes)
