"""The replicated subscriptions in the metadata store, for reports on topics whose owner does not answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyreplog.cursors.subscription_metadata import list_subscriptions
from pyreplog.errors import InvalidMetadataError, ReplogError
from pyreplog.geo.acks.subscription_position import SubscriptionPosition
from pyreplog.geo.policies import load_config, names_of
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.metadata.store import MetadataStore
from pyreplog.topic.model.backlog import is_system
from pyreplog.topic.model.chain import LedgerChain
from pyreplog.topic.owner.ownership import LEASE_MS, TopicOwner, owner_key
from pyreplog.topic_names import TOPICS, topic_key, unquote_name


class StoredSubscription(NamedTuple):
    """A replicated subscription in the metadata, and one of the clusters that its policy names.

    Attributes:
        topic: name of the topic.
        subscription: name of the subscription.
        target: name of the other cluster.
        owner: the owner of the topic; None: no process has it open.
    """

    topic: str
    subscription: str
    target: str
    owner: TopicOwner | None

    def unknown_readiness(self, silent: Mapping[str, ReplogError], *, is_open_here: bool) -> SubscriptionReadiness:
        """Return a row which says that nothing is known, with the reason and what to do.

        Args:
            silent: errors of the servers that did not answer, by address.
            is_open_here: whether this process owns the topic.
        """
        error = self._reason(silent, is_open_here=is_open_here)
        return SubscriptionReadiness.unknown(self.topic, self.subscription, self.target, error)

    def unknown_position(self, silent: Mapping[str, ReplogError], *, is_open_here: bool) -> SubscriptionPosition:
        """Return a position here of which nothing is known, with the reason and what to do.

        Args:
            silent: errors of the servers that did not answer, by address.
            is_open_here: whether this process owns the topic.
        """
        error = self._reason(silent, is_open_here=is_open_here)
        return SubscriptionPosition(
            self.topic, self.subscription, "", "", "", None, 0, None, is_known=False, error=error
        )  # fmt: skip

    def _reason(self, silent: Mapping[str, ReplogError], *, is_open_here: bool) -> str:
        if self.owner is None:
            return (
                "no process has the topic open, and only its owner knows: open it at a server, for example with "
                f"`pyreplog topic stats pyreplog://HOST:PORT {self.topic}`, and ask again"
            )
        error = silent.get(self.owner.address)
        if error is not None:
            return (
                f"{self.owner}, has the topic open, and does not answer: {error}. If it has ended, another server "
                f"opens the topic after {LEASE_MS // 1000} s: ask again. If it runs, check the network, and "
                "--secret-file and --tls-*"
            )
        if not self.owner.address and not is_open_here:
            return f"{self.owner}, has the topic open: only code in that process knows (`Cluster.geo.readiness`)"
        return (
            f"{self.owner}, has the topic open, and does not replicate the subscription yet: ask again in a few "
            "seconds; if that does not help, read its log"
        )


def stored_subscriptions(store: MetadataStore, topic: str | None) -> list[StoredSubscription]:
    """Return the replicated subscriptions in the metadata, for each cluster that their policy names.

    Args:
        store: metadata store of the cluster.
        topic: name of a topic; a partitioned topic stands for all partitions. None: all topics.

    Raises:
        InvalidMetadataError: a policy cannot be read, so that it is unknown whether the subscriptions of its topics are
            replicated; or the owner of a topic cannot be read.
        ReplogError: errors of the store.
    """
    config = load_config(store)
    targets = {}
    for name in map(unquote_name, store.list(TOPICS)):
        if (topic is None or topic in names_of(name)) and (named := config.subscription_targets_of(name)):
            targets[name] = named
    chains = store.get_many([topic_key(name) for name in targets])
    owners = store.get_many([owner_key(name) for name in targets])
    rows = []
    for name, chain, owner in zip(targets, chains, owners, strict=True):
        if chain is None or _is_deleted(chain.value):
            continue
        known_owner = None if owner is None else TopicOwner.decode(owner.value)
        for subscription in list_subscriptions(store, name):
            if not is_system(subscription):
                rows += [StoredSubscription(name, subscription, target, known_owner) for target in targets[name]]
    return rows


def _is_deleted(chain: bytes) -> bool:
    """Return whether a topic was deleted; False if its chain cannot be read."""
    try:
        return LedgerChain.decode(chain).deleted
    except InvalidMetadataError:
        return False
