"""GeoReplication: the other clusters, the policies and the state of replication; user code has it as `Cluster.geo`."""

from __future__ import annotations

import os
import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple, TypeVar, Unpack

from pyreplog.arguments import check_bool, check_seconds, check_text
from pyreplog.clock import Clock
from pyreplog.coroutines import check_may_block, in_thread
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, subscription_key
from pyreplog.errors import (
    ClusterInUseError,
    ConfigError,
    HandoverError,
    HandoverUnconfirmedError,
    InvalidArgumentError,
    InvalidMessageError,
    InvalidMetadataError,
    NoSuchClusterError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    OutcomeUnknownError,
    ReplogError,
    TopicOwnedError,
)
from pyreplog.geo.acks.subscription_position import SubscriptionPosition
from pyreplog.geo.clusters import (
    RemoteCluster,
    absolute_path,
    add_cluster,
    load_clusters,
    no_such_cluster,
    probe,
    remove_cluster,
)
from pyreplog.geo.geo_cursor import cursor_name, stored_position
from pyreplog.geo.metrics import geo_metrics
from pyreplog.geo.planned_handover import HandoverStatus
from pyreplog.geo.policies import (
    change_controls,
    change_policy,
    delete_policy,
    load_config,
    names_of,
)
from pyreplog.geo.policy import ReplicationPolicy, ReplicationSettings
from pyreplog.geo.replicator_manager import ReplicatorFactory, ReplicatorManager, TopicsLike
from pyreplog.geo.replicator_status import ReplicatorState, ReplicatorStatus
from pyreplog.geo.server_registration import list_servers
from pyreplog.geo.stored_subscriptions import stored_subscriptions
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.geo.target_links import TargetLinks
from pyreplog.handles import Handle, make_part_of
from pyreplog.metadata.store import MetadataStore
from pyreplog.metrics import Metric
from pyreplog.net.handshake import Secret
from pyreplog.partition.metadata.topic_metadata import find_topic
from pyreplog.topic.client.remote.client import Client, connect
from pyreplog.topic.client.remote.connection_pool import is_transient
from pyreplog.topic.model.chain import LedgerChain
from pyreplog.topic.model.partitioned_metadata import find_partitioned
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.routing import partition_name
from pyreplog.topic.owner.ownership import TopicOwner, owner_of
from pyreplog.topic_names import TOPICS, topic_key, unquote_name

ASK_S = 10.0
"""Seconds within which a server has to answer."""
HANDOVER_POLL_S = 0.1
"""Seconds between two polls of a handover. Its owner may be another process, whose answers do not wait for events."""

T = TypeVar("T", SubscriptionReadiness, SubscriptionPosition, HandoverStatus)


class _Answer(NamedTuple):
    """The answer of another server of this cluster.

    Attributes:
        address: its "host:port".
        rows: the rows; none if it did not answer.
        error: why it did not answer; None: it did.
    """

    address: str
    rows: list[dict[str, Any]]
    error: ReplogError | None = None


class NamedPolicy(NamedTuple):
    """A policy, and the name or prefix of its topics.

    Attributes:
        name: name of the topic, or the prefix.
        is_prefix: whether it holds for all topics whose names begin with `name`.
        policy: the policy.
    """

    name: str
    is_prefix: bool
    policy: ReplicationPolicy


class GeoReplication(Handle):
    """The replication of a cluster's topics to other clusters; made by `Cluster.geo`.

    Clusters and policies are kept in the metadata store, and hold for all processes of the cluster. The process that
    owns a topic sends it. If a topic with a policy has no owner, one of the servers opens it: topics are replicated
    without clients, and also after their owner was killed.

    Any thread may use it; calls block, and each has a coroutine form.

    Example:
        ```python
        cluster.geo.add_cluster("b", "pyreplog://b1:7400,b2:7400", secret_file="/etc/pyreplog/b.secret")
        cluster.geo.set_policy("orders", targets=["b"])
        ```

    See docs/geo.md.
    """

    def __init__(self, store: MetadataStore, clock: Clock, factory: ReplicatorFactory | None = None) -> None:
        self._store, self._clock = store, clock
        self._links = TargetLinks()
        self._factory: ReplicatorFactory = self._links if factory is None else factory
        self._manager: ReplicatorManager | None = None
        super().__init__("geo-replication")

    def start(self, topics: TopicsLike, may_open: Callable[[], bool]) -> None:
        """Start to replicate the topics of this process; for `Cluster`.

        Args:
            topics: the topics. Close this object before them.
            may_open: returns whether this process opens topics without an owner.

        Raises:
            ClosedError: the cluster was closed.
        """
        self._check_open()
        self._manager = ReplicatorManager(topics, self._clock, self._factory, may_open)
        make_part_of(self._manager, self)
        self._manager.start()

    @property
    def replicator_manager(self) -> ReplicatorManager | None:
        """The part that starts and stops replicators, if this process has topics; for tests and operators."""
        return self._manager

    # ---- clusters -------------------------------------------------------------------------------------------

    def add_cluster(
        self,
        name: str,
        url: str,
        *,
        secret_file: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        uuid: str | None = None,
    ) -> RemoteCluster:
        """Add another cluster, or change the URL and the files of a known one.

        Without `uuid`, the call asks one of its servers for it. Each server of this cluster reads the files on its own
        machine; the metadata store has their paths, and never a secret.

        Args:
            name: name of the cluster in policies.
            url: its topic servers: "pyreplog://host:port,host:port".
            secret_file: file with the secret of its servers.
            tls_ca: file with the CA certificates for its servers; None: no TLS.
            tls_cert: file with a client certificate, if its servers require one.
            tls_key: file with the private key of `tls_cert`, unless that contains it.
            uuid: the 32 hexadecimal digits that identify the cluster; None: a server of it is asked.

        Returns:
            The stored description of the cluster.

        Raises:
            ClusterUnreachableError: no server answers.
            ClusterCredentialsError: a file cannot be used, or the servers refuse the secret in it.
            ClusterExistsError: another cluster has the name, the cluster has another name, or it is this cluster.
            InvalidArgumentError: the name, the URL or `uuid` is malformed.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("add_cluster")
        cluster = RemoteCluster(
            uuid=_checked_uuid(uuid), url=check_text("url", url), secret_file=absolute_path(secret_file),
            tls_ca=absolute_path(tls_ca), tls_cert=absolute_path(tls_cert), tls_key=absolute_path(tls_key),
        )  # fmt: skip
        cluster.connect(name, ASK_S).close()  # raises if the URL or a file cannot be used
        if uuid is None:
            cluster = replace(cluster, uuid=probe(name, cluster))
        add_cluster(self._store, name, cluster)
        return cluster

    def remove_cluster(self, name: str, *, force: bool = False) -> None:
        """Remove another cluster: replication to it ends, and no messages are kept for it.

        No topic and no message is deleted, in either cluster.

        Args:
            name: name of the cluster.
            force: remove the cluster also if policies name it. The policies do not change, and the target is an alarm
                in `status`.

        Raises:
            NoSuchClusterError: no cluster of that name was added.
            ClusterInUseError: policies name the cluster.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("remove_cluster")
        known = load_clusters(self._store)
        if name not in known:
            raise no_such_cluster(name, list(known))
        if not check_bool("force", force):
            users = [
                policy.name + "*" * policy.is_prefix for policy in self.policies() if name in policy.policy.targets
            ]
            if users:
                raise ClusterInUseError(
                    name, f"{len(users)} policies name it ({', '.join(users[:3])}): remove it from their targets first "
                    "(`geo set`), or use force",
                )  # fmt: skip
        remove_cluster(self._store, name)

    def clusters(self) -> dict[str, RemoteCluster]:
        """Return the other clusters by name.

        Raises:
            InvalidMetadataError: a description cannot be read.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("clusters")
        clusters = {}
        for name, cluster in load_clusters(self._store).items():
            if isinstance(cluster, InvalidMetadataError):
                raise cluster
            clusters[name] = cluster
        return clusters

    # ---- policies -------------------------------------------------------------------------------------------

    def set_policy(
        self, name: str, *, prefix: bool = False, **settings: Unpack[ReplicationSettings]
    ) -> ReplicationPolicy:
        """Set the policy of a topic, or of all topics whose names have a prefix. It takes effect within about a second.

        A topic's own policy has precedence over those of prefixes, and a longer prefix over a shorter one. Partitions
        have the policy of their topic. No change of a policy deletes a topic.

        Args:
            name: the topic, which need not exist yet, or the prefix; "" is the prefix of all topics.
            prefix: whether `name` is a prefix.
            settings: fields of ReplicationPolicy. Other fields keep their values.

        Returns:
            The policy.

        Raises:
            NoSuchClusterError: a target was not added.
            ConfigError: a setting is unknown or invalid, or the topic is one of a broker's partitions, which are not
                replicated between clusters.
            InvalidArgumentError: the name is invalid.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("set_policy")
        check_bool("prefix", prefix)
        ReplicationPolicy.of(settings)
        known = load_clusters(self._store)
        if not prefix:
            self._check_kind(name)

        def change(policy: ReplicationPolicy) -> ReplicationPolicy:
            changed = policy.changed(settings)
            for target in changed.targets:
                if target not in known:
                    raise no_such_cluster(target, list(known))
            return changed

        return change_policy(self._store, name, change, prefix=prefix)

    def _check_kind(self, name: str) -> None:
        """Refuse a policy for a topic of partitions, unless a topic of ledgers has the same name."""
        topic = find_topic(self._store, name)
        if topic is None or topic.is_deleted:
            return
        if self._store.get(topic_key(name)) is None and find_partitioned(self._store, name) is None:
            raise ConfigError(
                f"topic {name}: it is a topic of partitions (`pyreplog partitions`), and these are not replicated "
                "between clusters yet: mirror it with a Kafka client, or use a topic of ledgers (`pyreplog topic`)"
            )

    def remove_policy(self, name: str, *, prefix: bool = False) -> bool:
        """Remove the policy of a topic or a prefix. The policy of the next shorter prefix holds then, if there is one.

        A topic without a policy keeps no messages for its former targets. No cluster deletes the topic.

        Args:
            name: the topic, or the prefix.
            prefix: whether `name` is a prefix.

        Returns:
            Whether the policy existed.

        Raises:
            InvalidArgumentError: the name is invalid.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("remove_policy")
        return delete_policy(self._store, name, prefix=check_bool("prefix", prefix))

    def policy(self, topic: str) -> ReplicationPolicy | None:
        """Return the policy that holds for a topic or a partition; None: it is not replicated.

        Args:
            topic: name of the topic, which need not exist.

        Raises:
            InvalidMetadataError: the policy cannot be read.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("policy")
        return load_config(self._store).policy_of(check_text("topic", topic))

    def policies(self) -> list[NamedPolicy]:
        """Return all policies: those of topics, then those of prefixes, by name.

        Raises:
            InvalidMetadataError: a policy cannot be read.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("policies")
        config = load_config(self._store)
        rows = []
        for is_prefix, table in ((False, config.topics), (True, config.prefixes)):
            for name, policy in sorted(table.items()):
                if isinstance(policy, InvalidMetadataError):
                    raise policy
                rows.append(NamedPolicy(name, is_prefix, policy))
        return rows

    # ---- orders ---------------------------------------------------------------------------------------------

    def pause(self, topic: str, target: str | None = None) -> None:
        """Stop sending a topic until `resume`, also after restarts. Its messages are kept meanwhile.

        Args:
            topic: the topic; a partitioned topic stands for all partitions.
            target: the target; None: all targets of the policy.

        Raises:
            NoSuchTopicError: no policy has the topic sent anywhere.
            NoSuchClusterError: its policy does not name the target.
            ReplogError: errors of the metadata store.
        """
        targets = self._targets("pause", topic, target)
        change_controls(
            self._store, topic,
            lambda controls: replace(controls, paused=tuple(sorted({*controls.paused, *targets}))),
        )  # fmt: skip

    def resume(self, topic: str, target: str | None = None) -> None:
        """Send again, after `pause`.

        Args:
            topic: the topic, as for `pause`.
            target: the target; None: all targets of the policy.

        Raises:
            NoSuchTopicError: no policy has the topic sent anywhere.
            NoSuchClusterError: its policy does not name the target.
            ReplogError: errors of the metadata store.
        """
        targets = {*self._targets("resume", topic, target)}
        change_controls(
            self._store, topic,
            lambda controls: replace(controls, paused=tuple(name for name in controls.paused if name not in targets)),
        )  # fmt: skip

    def resync(self, topic: str, target: str) -> None:
        """Begin to send again after an alarm: the histories diverged, or the target was detached.

        Messages that the target lacks and this cluster no longer stores are noted at the target as lost. Find out first
        why the histories differ: see docs/geo.md.

        Args:
            topic: the topic; a partitioned topic stands for all partitions.
            target: the target.

        Raises:
            NoSuchTopicError: no policy has the topic sent anywhere.
            NoSuchClusterError: its policy does not name the target.
            ReplogError: errors of the metadata store.
        """
        self._targets("resync", topic, check_text("target", target))
        for name in self._partitions(topic):
            change_controls(
                self._store, name,
                lambda controls: replace(controls, resync=tuple(sorted({*controls.resync, target}))),
            )  # fmt: skip

    # ---- handovers ------------------------------------------------------------------------------------------

    def handover(
        self,
        topic: str,
        subscription: str,
        target: str,
        *,
        timeout: float = 60.0,
        grace: float = 10.0,
        secret: bytes | Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> list[HandoverStatus]:
        """Hand a replicated subscription over to the consumers of another cluster, without a repeated message.

        Delivery stops here. Once consumers hold no messages, and the other cluster has each acknowledgement durably,
        the other cluster delivers the subscription, and this one does not, until it is handed back or taken over.
        Consumers here stay attached, and wait. If this process or the owner of the topic ends during the call, either
        this cluster or the other one delivers; call it again.

        Args:
            topic: name of its topic; a partitioned topic stands for all partitions.
            subscription: name of the subscription.
            target: name of the other cluster, a target of the topic's policy.
            timeout: seconds after which the handover is cancelled, and delivery goes on here, if the home of the
                subscription has not moved.
            grace: seconds for consumers to acknowledge the messages that they hold. Then these messages are taken from
                them, and the other cluster delivers those without an acknowledgement. Later acknowledgements count,
                too.
            secret: secret of this cluster's servers, if another process owns the topic.
            tls: TLS context of a client of these servers.

        Returns:
            The state of each topic or partition: all are `done`.

        Raises:
            HandoverError: the handover was cancelled, or cannot begin: consumers here go on. Of several partitions some
                may be handed over.
            HandoverUnconfirmedError: the home has moved to the other cluster, which has not confirmed it.
            NoSuchTopicError: the topic does not exist, or no policy has it replicated.
            NoSuchClusterError: its policy does not name the target.
            NoSuchSubscriptionError: the topic has no replicated subscription of this name.
            ConfigError: its policy does not have its subscriptions replicated.
            TopicOwnedError: a process without a server owns the topic: call it there.
            ReplogError: errors of the metadata store, and of the owner's server.
        """
        self._targets("handover", topic, check_text("target", target))
        check_text("subscription", subscription)
        until = time.monotonic() + check_seconds("timeout", timeout)
        order, grace = secrets.token_hex(8), check_seconds("grace", grace)

        def ask(name: str, client: Client | None) -> dict[str, Any] | None:
            left = max(until - time.monotonic(), 0.0)
            if client is not None:
                return client.geo_handover(name, subscription, target, order=order, timeout=left, grace=grace)
            assert self._manager is not None
            return self._manager.hand_over(name, subscription, target, order=order, timeout=left, grace=grace)

        rows = self._poll_owners(topic, until, ask, secret, tls)
        for row in rows:
            where = f"topic {row.topic}, subscription {row.subscription}"
            if row.phase in ("refused", "cancelled"):
                raise HandoverError(target, f"{where} was not handed over: {row.error}")
            if row.phase == "opening":
                raise HandoverError(target, f"{where} was not handed over: {row.error or 'its owner is not ready'}")
        for row in rows:
            if row.phase != "done":
                raise HandoverUnconfirmedError(
                    target, f"topic {row.topic}, subscription {row.subscription}: that cluster has not confirmed the "
                    f"handover: {row.error}. Order it again to wait for that, or take the subscription over "
                    "here (`geo take-over`) if that cluster is lost",
                )  # fmt: skip
        return rows

    def take_over(
        self,
        topic: str,
        subscription: str,
        *,
        any_cluster: bool = False,
        timeout: float = 30.0,
        secret: bytes | Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> list[HandoverStatus]:
        """Take a replicated subscription over from the cluster that delivers it so far, without its consent.

        Use it if that cluster is lost; otherwise hand the subscription over there. Acknowledgements in that cluster
        that have not arrived here are lost: their messages are delivered again. Until that cluster learns of the call,
        both deliver: see docs/geo.md.

        Args:
            topic: name of its topic; a partitioned topic stands for all partitions.
            subscription: name of the subscription.
            any_cluster: let all clusters deliver the subscription, as before the first handover.
            timeout: seconds to wait for the owner of the topic.
            secret: secret of this cluster's servers, if another process owns the topic.
            tls: TLS context of a client of these servers.

        Returns:
            The state of each topic or partition, in the phase `done`. The change is durable.

        Raises:
            OutcomeUnknownError: the owner of the topic was not ready in time.
            NoSuchTopicError: the topic does not exist, or no policy has it replicated.
            NoSuchSubscriptionError: the topic has no replicated subscription of this name.
            ConfigError: its policy does not have its subscriptions replicated.
            TopicOwnedError: a process without a server owns the topic: call it there.
            ReplogError: errors of the metadata store, and of the owner's server.
        """
        self._targets("take_over", topic, None)
        check_text("subscription", subscription)
        check_bool("any_cluster", any_cluster)
        until = time.monotonic() + check_seconds("timeout", timeout)

        def ask(name: str, client: Client | None) -> dict[str, Any] | None:
            if client is not None:
                return client.geo_take_over(name, subscription, any_cluster=any_cluster)
            assert self._manager is not None
            return self._manager.take_over(name, subscription, any_cluster=any_cluster)

        rows = self._poll_owners(topic, until, ask, secret, tls)
        for row in rows:
            if row.phase != "done":
                raise OutcomeUnknownError(
                    f"topic {row.topic}, subscription {subscription}: its owner was not ready within {timeout} s to "
                    "take it over: call it again"
                )
        return rows

    def _poll_owners(
        self,
        topic: str,
        until: float,
        ask: Callable[[str, Client | None], dict[str, Any] | None],
        secret: bytes | Secret | None,
        tls: ssl.SSLContext | None,
    ) -> list[HandoverStatus]:
        """Poll the owner of the topic, or of each partition, until all orders have ended, or the time is over.

        `ask` returns None as long as the owner has not applied the policy of the topic. Partitions that are added
        meanwhile are part of the order.
        """
        self._check_subscriptions(topic)
        names = self._partitions(topic)
        rows: dict[str, HandoverStatus] = {}
        with ExitStack() as stack:
            clients: list[Client] = []
            while True:
                for name in names:
                    if name not in rows or not rows[name].is_over:
                        client = None if self._has_open(name) else self._client(name, clients, stack, secret, tls)
                        try:
                            answer = ask(name, client)
                        except ReplogError as error:
                            if not is_transient(error) or (time.monotonic() > until and name not in rows):
                                raise
                            if name in rows:  # its next owner may answer
                                rows[name] = replace(rows[name], error=f"its owner does not answer: {error}")
                            continue
                        if answer is None and (name not in rows or rows[name].phase != "moving"):
                            self._check_subscriptions(topic)  # the policy may have changed during the call
                        if answer is not None or name not in rows:
                            rows[name] = (
                                decode_handover(answer)
                                if answer is not None
                                else HandoverStatus(name, "", "", "opening")
                            )
                if len(rows) == len(names):
                    if all(row.is_over for row in rows.values()) and len(grown := self._partitions(topic)) > len(names):
                        names = grown  # partitions that were added meanwhile may have the former home
                        continue
                    if all(row.is_over for row in rows.values()) or time.monotonic() > until + ASK_S:
                        return [rows[name] for name in names]
                    if time.monotonic() > until and all(row.phase == "opening" or row.is_over for row in rows.values()):
                        return [rows[name] for name in names]
                time.sleep(HANDOVER_POLL_S)

    def _check_subscriptions(self, topic: str) -> None:
        policy = load_config(self._store).policy_of(topic)
        if policy is None or not policy.replicated_subscriptions:
            raise ConfigError(
                f"topic {topic}: replicated_subscriptions: expected true in its policy, found false: set it with "
                "`geo set`"
            )

    def _partitions(self, topic: str) -> list[str]:
        """Return the names of the partitions of a topic, or its own name if it has none."""
        partitioned = find_partitioned(self._store, topic)
        count = 0 if partitioned is None else partitioned.partitions
        return [partition_name(topic, at) for at in range(count)] or [topic]

    def _has_open(self, name: str) -> bool:
        """Return whether this process owns a topic. If no server runs, it opens a topic without an owner."""
        manager = self._manager
        if manager is None:
            return False
        if manager.has_open(name):
            return True
        if owner_of(self._store, name) is None and not any(row.address for row in list_servers(self._store).values()):
            manager.open(name)
            return True
        return False

    def _client(
        self,
        name: str,
        clients: list[Client],
        stack: ExitStack,
        secret: bytes | Secret | None,
        tls: ssl.SSLContext | None,
    ) -> Client:
        """Return the client of this cluster's servers, which the first call makes."""
        if not clients:
            addresses = [row.address for row in list_servers(self._store).values() if row.address]
            if not addresses:
                raise TopicOwnedError(
                    name, "no server of this cluster is known: call it in the process that owns the topic, or start "
                    "`pyreplog serve`",
                )  # fmt: skip
            url = "pyreplog://" + ",".join(addresses)
            clients.append(stack.enter_context(connect(url, secret=secret, tls=tls, timeout=ASK_S)))
        return clients[0]

    def _targets(self, call: str, topic: str, target: str | None) -> tuple[str, ...]:
        self._check_open()
        check_may_block(call)
        policy = load_config(self._store).policy_of(check_text("topic", topic))
        if policy is None or not policy.targets:
            raise NoSuchTopicError(topic, "no policy has it replicated: set one with `geo set`")
        if target is None:
            return policy.targets
        if target not in policy.targets:
            names = ", ".join(policy.targets)
            raise NoSuchClusterError(target, f"the policy of topic {topic} does not name it; its targets are: {names}")
        return (target,)

    # ---- state ----------------------------------------------------------------------------------------------

    def status(
        self,
        topic: str | None = None,
        *,
        everywhere: bool = False,
        secret: bytes | Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> list[ReplicatorStatus]:
        """Return the state of each replication, by topic and target.

        Args:
            topic: name of a topic; a partitioned topic stands for all partitions. None: all topics.
            everywhere: ask the other servers of this cluster, too, and list topics without an owner. False: only the
                replications of this process.
            secret: secret of this cluster's servers, for `everywhere`.
            tls: TLS context of a client of these servers.

        Raises:
            InvalidMetadataError: a policy cannot be read.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("status")
        rows = [] if self._manager is None else self._manager.statuses()
        if check_bool("everywhere", everywhere):
            silent: dict[str, ReplogError] = {}
            for answer in self._ask_servers(lambda client: client.geo_status(), secret, tls):
                rows += [decode_status(row) for row in answer.rows]
                if answer.error is not None:
                    silent[answer.address] = answer.error
            known = {(row.topic, row.target) for row in rows}
            rows += [row for row in self._stored_statuses(silent) if (row.topic, row.target) not in known]
        if topic is not None:
            rows = [row for row in rows if topic in names_of(row.topic)]
        return sorted(rows, key=lambda row: (row.topic, row.target))

    def _ask_servers(
        self,
        ask: Callable[[Client], list[dict[str, Any]]],
        secret: bytes | Secret | None,
        tls: ssl.SSLContext | None,
    ) -> Iterator[_Answer]:
        """Yield the answers of the other servers of this cluster."""
        own = None if self._manager is None else self._manager.server
        for name, server in list_servers(self._store).items():
            if name == own or not server.address:
                continue
            with connect(f"pyreplog://{server.address}", secret=secret, tls=tls, timeout=ASK_S) as client:
                try:
                    answer = _Answer(server.address, ask(client))
                except ReplogError as error:
                    answer = _Answer(server.address, [], error)
            yield answer

    def _stored_statuses(self, silent: Mapping[str, ReplogError]) -> Iterator[ReplicatorStatus]:
        """Yield the state of each topic with a policy for each target, as the metadata tell it.

        Args:
            silent: errors of the servers that did not answer, by address.
        """
        config = load_config(self._store)
        ids = config.cluster_ids
        for quoted in self._store.list(TOPICS):
            name = unquote_name(quoted)
            for target in config.targets_of(name):
                row = self._stored_status(name, target, ids.get(target, ""), silent)
                if row is not None:
                    yield row

    def _stored_status(
        self, topic: str, target: str, cluster: str, silent: Mapping[str, ReplogError]
    ) -> ReplicatorStatus | None:  # fmt: skip
        chain_value, cursor = self._store.get_many([topic_key(topic), subscription_key(topic, cursor_name(target))])
        if chain_value is None:
            return None
        chain = LedgerChain.decode(chain_value.value)
        mark: TopicPosition | None = None
        if cursor is not None:
            snapshot = SubscriptionMetadata.decode(cursor.value).snapshot
            mark = stored_position(cursor_name(target), snapshot, cluster)
        start = max(mark or chain.start, chain.start)
        owner = owner_of(self._store, topic)
        state: ReplicatorState = "unowned" if owner is None else "unknown"
        error = _why_unknown(owner, silent)
        if owner is not None or chain.open_ledger is not None:
            error += "; the newest messages are not counted"
        unsent = chain.end.offset - start.offset
        return ReplicatorStatus(
            topic, target, state, None, chain.end.offset, max(unsent, int(chain.open_ledger is not None)),
            chain.end.size - start.size, error=error,
        )  # fmt: skip

    def metrics(self) -> list[Metric]:
        """Return the metrics of the replications of this process, for `pyreplog.metrics`.

        Raises:
            ClosedError: the cluster was closed.
        """
        self._check_open()
        rows = [] if self._manager is None else self._manager.statuses()
        return geo_metrics(rows, self._clock.now_us())

    def readiness(
        self,
        topic: str | None = None,
        *,
        everywhere: bool = False,
        secret: bytes | Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> list[SubscriptionReadiness]:
        """Return how many messages a fail-over of each subscription to each cluster would lose or repeat now.

        Args:
            topic: name of a topic; a partitioned topic stands for all partitions. None: all topics.
            everywhere: ask the other servers of this cluster, too, and list the subscriptions of topics whose owner did
                not answer, or that have no owner, as unknown. False: only topics that this process owns.
            secret: secret of this cluster's servers, for `everywhere`.
            tls: TLS context of a client of these servers.

        Returns:
            The rows, by topic, subscription and target. Topics without replicated subscriptions have no rows. An
            unknown row is not ready, and its `error` has the reason and what to do.

        Raises:
            InvalidMetadataError: with `everywhere`, the policy of one of the topics cannot be read.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("readiness")
        rows = [] if self._manager is None else self._manager.readiness()
        if check_bool("everywhere", everywhere):
            stored = stored_subscriptions(self._store, topic)  # before: a lease may end while its server is asked
            silent: dict[str, ReplogError] = {}
            for answer in self._ask_servers(lambda client: client.geo_readiness(), secret, tls):
                rows += [decode_readiness(row) for row in answer.rows]
                if answer.error is not None:
                    silent[answer.address] = answer.error
            told = {(row.topic, row.subscription, row.target) for row in rows}
            rows += [
                each.unknown_readiness(silent, is_open_here=self._owns(each.topic))
                for each in stored
                if (each.topic, each.subscription, each.target) not in told
            ]
        if topic is not None:
            rows = [row for row in rows if topic in names_of(row.topic)]
        return sorted(rows, key=lambda row: (row.topic, row.subscription, row.target))

    def where(
        self,
        topic: str,
        subscription: str,
        *,
        everywhere: bool = False,
        secret: bytes | Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> list[SubscriptionPosition]:
        """Return the positions of a replicated subscription, as offsets in the clusters that published its messages.

        An offset at the origin names the same message in all clusters; an offset in the topic does not.

        Args:
            topic: name of its topic; a partitioned topic stands for all partitions.
            subscription: name of the subscription.
            everywhere: ask the other servers of this cluster, too, and list topics whose owner did not answer, or that
                have no owner, as unknown. False: only topics that this process owns.
            secret: secret of this cluster's servers, for `everywhere`.
            tls: TLS context of a client of these servers.

        Returns:
            The positions here, by origin; then the positions that the other clusters reported. The row of an unknown
            topic has no offsets and no token, and its `error` has the reason and what to do.

        Raises:
            NoSuchSubscriptionError: there is no such replicated subscription among the topics that were asked for.
            InvalidMetadataError: with `everywhere`, the policy of one of the topics cannot be read.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("where")
        check_text("topic", topic)
        check_text("subscription", subscription)
        rows = [] if self._manager is None else self._manager.where(topic, subscription)
        if check_bool("everywhere", everywhere):
            stored = stored_subscriptions(self._store, topic)  # before: a lease may end while its server is asked
            silent: dict[str, ReplogError] = {}
            for answer in self._ask_servers(lambda client: client.geo_where(topic, subscription), secret, tls):
                rows += [decode_position(row) for row in answer.rows]
                if answer.error is not None:
                    silent[answer.address] = answer.error
            missing = {each.topic: each for each in stored if each.subscription == subscription}
            for name in missing.keys() - {row.topic for row in rows}:
                rows.append(missing[name].unknown_position(silent, is_open_here=self._owns(name)))
        if not rows:
            raise no_such_position(topic, subscription)
        return sorted(rows, key=lambda row: (row.topic, row.at != "", row.at, row.origin != "", row.origin, row.token))

    def _owns(self, topic: str) -> bool:
        """Return whether this process owns a topic."""
        return self._manager is not None and self._manager.has_open(topic)

    def where_rows(self, topic: str, subscription: str) -> list[dict[str, Any]]:
        """Return `where` of this process as dicts, for clients of its server.

        The list is empty if the subscription is not replicated.

        Args:
            topic: name of the topic.
            subscription: name of the subscription.
        """
        return [] if self._manager is None else [asdict(row) for row in self._manager.where(topic, subscription)]

    def readiness_rows(self) -> list[dict[str, Any]]:
        """Return the readiness of this process's topics as dicts, for clients of its server."""
        return [] if self._manager is None else [asdict(row) for row in self._manager.readiness()]

    def status_rows(self) -> list[dict[str, Any]]:
        """Return the replications of this process as dicts, for clients of its server."""
        return [] if self._manager is None else [asdict(row) for row in self._manager.statuses()]

    add_cluster_async = in_thread(add_cluster)
    remove_cluster_async = in_thread(remove_cluster)
    clusters_async = in_thread(clusters)
    set_policy_async = in_thread(set_policy)
    remove_policy_async = in_thread(remove_policy)
    policy_async = in_thread(policy)
    policies_async = in_thread(policies)
    pause_async = in_thread(pause)
    resume_async = in_thread(resume)
    resync_async = in_thread(resync)
    handover_async = in_thread(handover)
    take_over_async = in_thread(take_over)
    status_async = in_thread(status)
    readiness_async = in_thread(readiness)
    where_async = in_thread(where)

    def _do_close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._links.close)
            if self._manager is not None:
                stack.callback(self._manager.close)


def _why_unknown(owner: TopicOwner | None, silent: Mapping[str, ReplogError]) -> str:
    """Return why no process has reported the replications of a topic.

    Args:
        owner: the owner of the topic; None: no process has it open.
        silent: errors of the servers that did not answer, by address.
    """
    if owner is None:
        return "no process has the topic open"
    if (error := silent.get(owner.address)) is not None:
        return f"{owner}, has the topic open, and does not answer: {error}"
    if owner.address:
        return f"{owner}, has the topic open, and does not replicate it yet"
    return f"{owner}, has the topic open: only code in that process knows (`Cluster.geo.status`)"


def _checked_uuid(uuid: str | None) -> str:
    try:
        if uuid is None or len(bytes.fromhex(check_text("uuid", uuid))) == 16:
            return "00" * 16 if uuid is None else uuid.lower()
    except ValueError:
        pass
    raise InvalidArgumentError(f"uuid: expected 32 hexadecimal digits, found {uuid!r}")


def decode_status(row: Any) -> ReplicatorStatus:
    """Decode the state of a replication from a server's answer; unknown fields are left out.

    Raises:
        InvalidMessageError: the answer is malformed.
    """
    try:
        known = {item.name: row[item.name] for item in fields(ReplicatorStatus) if item.name in row}
        skipped = tuple((str(cause), int(count)) for cause, count in known.pop("skipped", ()))
        return ReplicatorStatus(**known, skipped=skipped)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidMessageError(f"state of a replication: {str(row)[:80]}: {error}") from error


def decode_readiness(row: Any) -> SubscriptionReadiness:
    """Decode the readiness of a subscription from a server's answer; unknown fields are left out.

    Raises:
        InvalidMessageError: the answer is malformed.
    """
    return _decode(SubscriptionReadiness, row, "readiness of a subscription")


def decode_handover(row: Any) -> HandoverStatus:
    """Decode the state of a handover from a server's answer; unknown fields are left out.

    Raises:
        InvalidMessageError: the answer is malformed.
    """
    return _decode(HandoverStatus, row, "state of a handover")


def decode_position(row: Any) -> SubscriptionPosition:
    """Decode a position of a subscription from a server's answer; unknown fields are left out.

    Raises:
        InvalidMessageError: the answer is malformed.
    """
    return _decode(SubscriptionPosition, row, "position of a subscription")


def _decode(kind: type[T], row: Any, noun: str) -> T:
    try:
        return kind(**{item.name: row[item.name] for item in fields(kind) if item.name in row})
    except (TypeError, KeyError) as error:
        raise InvalidMessageError(f"{noun}: {str(row)[:80]}: {error}") from error


def no_such_position(topic: str, subscription: str) -> NoSuchSubscriptionError:
    """Return the error for a subscription that none of the asked processes replicates."""
    return NoSuchSubscriptionError(
        topic, f"none of the asked processes replicates a subscription {subscription}: `geo readiness` lists all"
    )
