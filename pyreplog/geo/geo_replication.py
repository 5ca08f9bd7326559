"""GeoReplication: the other clusters, the policies and the state of replication; user code has it as `Cluster.geo`."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple, Unpack

from pyreplog.arguments import check_bool, check_text
from pyreplog.clock import Clock
from pyreplog.coroutines import check_may_block, in_thread
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, subscription_key
from pyreplog.errors import (
    ClusterInUseError,
    InvalidArgumentError,
    InvalidMessageError,
    InvalidMetadataError,
    NoSuchClusterError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    ReplogError,
)
from pyreplog.geo.acks.where import SubscriptionPosition
from pyreplog.geo.clusters import (
    RemoteCluster,
    absolute_path,
    add_cluster,
    load_clusters,
    no_such_cluster,
    probe,
    remove_cluster,
)
from pyreplog.geo.keeper import CURSOR_PREFIX, Keeper, MakeReplicator, TopicsLike
from pyreplog.geo.metrics import geo_metrics
from pyreplog.geo.policies import (
    change_controls,
    change_policy,
    delete_policy,
    load_config,
    names_of,
)
from pyreplog.geo.policy import ReplicationPolicy, ReplicationSettings
from pyreplog.geo.replicator_like import ReplicatorState, ReplicatorStatus
from pyreplog.geo.server_registration import list_servers
from pyreplog.geo.subscription_replication import SubscriptionReadiness
from pyreplog.geo.target_links import TargetLinks
from pyreplog.handles import Handle, make_part_of
from pyreplog.metadata.store import MetadataStore
from pyreplog.metrics import Metric
from pyreplog.net.handshake import Secret
from pyreplog.topic.client.remote.client import Client, connect
from pyreplog.topic.model.chain import LedgerChain
from pyreplog.topic.model.partitioned_metadata import find_partitioned
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.routing import partition_name
from pyreplog.topic.model.system_cursor_record import stored_mark
from pyreplog.topic.owner.ownership import owner_of
from pyreplog.topic_names import TOPICS, topic_key, unquote_name

ASK_S = 10.0
"""Seconds within which a server has to tell the state of its replications."""

_STATUS_FIELDS = [item.name for item in fields(ReplicatorStatus)]
_READINESS_FIELDS = [item.name for item in fields(SubscriptionReadiness)]
_POSITION_FIELDS = [item.name for item in fields(SubscriptionPosition)]


class NamedPolicy(NamedTuple):
    """A policy, and what it was set for.

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
    owns a topic sends it. A topic of a policy that nobody owns is opened by one of the servers, so that it is
    replicated without clients, and also after its owner was killed.

    Any thread may use it; calls block, and each has a coroutine form.

    Example:
        ```python
        cluster.geo.add_cluster("b", "pyreplog://b1:7400,b2:7400", secret_file="/etc/pyreplog/b.secret")
        cluster.geo.set_policy("orders", targets=["b"])
        ```

    See docs/geo.md.
    """

    def __init__(self, store: MetadataStore, clock: Clock, make: MakeReplicator | None = None) -> None:
        self._store, self._clock = store, clock
        self._links = TargetLinks()
        self._make: MakeReplicator = self._links if make is None else make
        self._keeper: Keeper | None = None
        super().__init__("geo-replication")

    def keep(self, topics: TopicsLike, may_open: Callable[[], bool]) -> None:
        """Start to replicate the topics of this process; for `Cluster`.

        Args:
            topics: the topics. Close this object before them.
            may_open: whether this process opens topics that nobody owns.

        Raises:
            ClosedError: the cluster was closed.
        """
        self._check_open()
        self._keeper = Keeper(topics, self._clock, self._make, may_open)
        make_part_of(self._keeper, self)
        self._keeper.start()

    @property
    def keeper(self) -> Keeper | None:
        """The part that starts and stops replicators, if this process has topics; for tests and operators."""
        return self._keeper

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
        """Add another cluster, or change the URL and the files of one that was added.

        One of its servers is asked who it is, unless `uuid` says so. Files are read by each server of this cluster on
        its own machine; the metadata store has their names, and never a secret.

        Args:
            name: name of the cluster in policies.
            url: its topic servers: "pyreplog://host:port,host:port".
            secret_file: file with the secret of its servers.
            tls_ca: file with the certificates that have signed those of its servers; None: no TLS.
            tls_cert: file with a certificate for clients, if its servers require one.
            tls_key: file with its private key, if that is not in `tls_cert`.
            uuid: the 32 hexadecimal digits that identify it; None: ask it.

        Returns:
            The cluster, as it was stored.

        Raises:
            ClusterUnreachableError: no server answers.
            ClusterCredentialsError: a file cannot be used, or the servers refuse the secret in it.
            ClusterExistsError: another cluster has the name, the cluster has another name, or it is this one.
            InvalidArgumentError: the name, the URL or `uuid` is malformed.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("add_cluster")
        cluster = RemoteCluster(
            uuid=_checked_uuid(uuid), url=check_text("url", url), secret_file=absolute_path(secret_file),
            tls_ca=absolute_path(tls_ca), tls_cert=absolute_path(tls_cert), tls_key=absolute_path(tls_key),
        )  # fmt: skip
        cluster.connect(name, ASK_S).close()  # raises if the URL or a file is no good
        if uuid is None:
            cluster = replace(cluster, uuid=probe(name, cluster))
        add_cluster(self._store, name, cluster)
        return cluster

    def remove_cluster(self, name: str, *, force: bool = False) -> None:
        """Remove another cluster: nothing is sent to it any more, and no message is kept for it.

        Messages and topics stay as they are, here and there.

        Args:
            name: name of the cluster.
            force: also if policies name it. They are left as they are, and the target is an alarm in `status`.

        Raises:
            NoSuchClusterError: no cluster of that name was added.
            ClusterInUseError: policies name it.
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
                    name, f"{len(users)} policies name it, of {', '.join(users[:3])}: take it off their targets first "
                    "(`geo set`), or use force",
                )  # fmt: skip
        remove_cluster(self._store, name)

    def clusters(self) -> dict[str, RemoteCluster]:
        """Return the other clusters by name.

        Raises:
            InvalidMetadataError: one cannot be read.
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
        """Set the policy of a topic, or of all topics whose names have a prefix. It holds within a second or so.

        A topic's own policy counts before those of prefixes, and the longest prefix before shorter ones. The policy of
        a topic with partitions is that of its partitions. No change of a policy deletes a topic.

        Args:
            name: the topic, which need not exist yet, or the prefix; "" is the prefix of all topics.
            prefix: whether `name` is a prefix.
            settings: fields of ReplicationPolicy. Those that are not given keep their values.

        Returns:
            The policy.

        Raises:
            NoSuchClusterError: a target was not added.
            ConfigError: a setting is unknown or invalid.
            InvalidArgumentError: the name is invalid.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("set_policy")
        check_bool("prefix", prefix)
        ReplicationPolicy.of(settings)
        known = load_clusters(self._store)

        def change(policy: ReplicationPolicy) -> ReplicationPolicy:
            changed = policy.changed(settings)
            for target in changed.targets:
                if target not in known:
                    raise no_such_cluster(target, list(known))
            return changed

        return change_policy(self._store, name, change, prefix=prefix)

    def remove_policy(self, name: str, *, prefix: bool = False) -> bool:
        """Remove the policy of a topic or a prefix. The topic has that of the next prefix then, or none.

        A topic that is not replicated any more keeps no messages for its former targets. It is not deleted anywhere.

        Args:
            name: the topic, or the prefix.
            prefix: whether `name` is a prefix.

        Returns:
            Whether there was such a policy.

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
            InvalidMetadataError: one cannot be read.
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
        """Send nothing more of a topic until `resume`, also after restarts. Its messages are kept meanwhile.

        Args:
            topic: the topic; of one with partitions, all of them.
            target: the target; None: each of the policy.

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
            topic: as it was given to `pause`.
            target: the target; None: each of the policy.

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

        What this cluster does not have any more is noted at the target as lost. Find out first why the histories
        differ: see docs/geo.md.

        Args:
            topic: the topic; of one with partitions, all of them.
            target: the target.

        Raises:
            NoSuchTopicError: no policy has the topic sent anywhere.
            NoSuchClusterError: its policy does not name the target.
            ReplogError: errors of the metadata store.
        """
        self._targets("resync", topic, check_text("target", target))
        partitioned = find_partitioned(self._store, topic)
        count = 0 if partitioned is None else partitioned.partitions
        for name in [partition_name(topic, at) for at in range(count)] or [topic]:
            change_controls(
                self._store, name,
                lambda controls: replace(controls, resync=tuple(sorted({*controls.resync, target}))),
            )  # fmt: skip

    def _targets(self, call: str, topic: str, target: str | None) -> tuple[str, ...]:
        self._check_open()
        check_may_block(call)
        policy = load_config(self._store).policy_of(check_text("topic", topic))
        if policy is None or not policy.targets:
            raise NoSuchTopicError(topic, "no policy has it replicated: set one with `geo set`")
        if target is None:
            return policy.targets
        if target not in policy.targets:
            raise NoSuchClusterError(target, f"the policy of topic {topic} does not name it, but {policy.targets}")
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
            topic: name of a topic; of one with partitions, all of them. None: all topics.
            everywhere: ask the other servers of this cluster, too, and list topics that nobody owns. False: only the
                replications of this process.
            secret: secret of this cluster's servers, for `everywhere`.
            tls: TLS context of a client of these servers.

        Raises:
            InvalidMetadataError: a policy cannot be read.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("status")
        rows = [] if self._keeper is None else self._keeper.statuses()
        if check_bool("everywhere", everywhere):
            rows += self._others(secret, tls)
            known = {(row.topic, row.target) for row in rows}
            rows += [row for row in self._unowned() if (row.topic, row.target) not in known]
        if topic is not None:
            rows = [row for row in rows if topic in names_of(row.topic)]
        return sorted(rows, key=lambda row: (row.topic, row.target))

    def _others(self, secret: bytes | Secret | None, tls: ssl.SSLContext | None) -> Iterator[ReplicatorStatus]:
        """Ask the other servers of this cluster. What a silent one has shows as not known."""
        for rows in self._tell(lambda client: client.geo_status(), secret, tls):
            for row in rows:
                yield decode_status(row)

    def _tell(
        self,
        ask: Callable[[Client], list[dict[str, Any]]],
        secret: bytes | Secret | None,
        tls: ssl.SSLContext | None,
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield what each other server of this cluster answers; silent ones are left out."""
        own = None if self._keeper is None else self._keeper.server
        for name, server in list_servers(self._store).items():
            if name == own or not server.address:
                continue
            with connect(f"pyreplog://{server.address}", secret=secret, tls=tls, timeout=ASK_S) as client:
                try:
                    rows = ask(client)
                except ReplogError:
                    continue
            yield rows

    def _unowned(self) -> Iterator[ReplicatorStatus]:
        """Return what the metadata tell of topics that are to be replicated, and of which no server has told."""
        config = load_config(self._store)
        for quoted in self._store.list(TOPICS):
            name = unquote_name(quoted)
            policy = config.policy_of(name)
            if policy is not None and policy.direction == "send":
                for target in policy.targets:
                    row = self._stored_status(name, target)
                    if row is not None:
                        yield row

    def _stored_status(self, topic: str, target: str) -> ReplicatorStatus | None:
        chain_value, cursor = self._store.get_many([topic_key(topic), subscription_key(topic, CURSOR_PREFIX + target)])
        if chain_value is None:
            return None
        chain = LedgerChain.decode(chain_value.value)
        mark: TopicPosition | None = None
        if cursor is not None:
            mark = stored_mark("", [SubscriptionMetadata.decode(cursor.value).snapshot]).mark
        start = max(mark or chain.start, chain.start)
        owner = owner_of(self._store, topic)
        state: ReplicatorState = "unowned" if owner is None else "unknown"
        error = "no process has the topic open" if owner is None else f"{owner} has it open, and was not asked"
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
        rows = [] if self._keeper is None else self._keeper.statuses()
        return geo_metrics(rows, self._clock.now_us())

    def readiness(
        self,
        topic: str | None = None,
        *,
        everywhere: bool = False,
        secret: bytes | Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> list[SubscriptionReadiness]:
        """Return what a fail-over of each replicated subscription to each other cluster would lose or repeat now.

        Args:
            topic: name of a topic; of one with partitions, all of them. None: all topics.
            everywhere: ask the other servers of this cluster, too. False: only topics that this process owns.
            secret: secret of this cluster's servers, for `everywhere`.
            tls: TLS context of a client of these servers.

        Returns:
            The rows, by topic, subscription and target. None for topics without replicated subscriptions, and for those
            whose owner was not asked.

        Raises:
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("readiness")
        rows = [] if self._keeper is None else self._keeper.readiness()
        if check_bool("everywhere", everywhere):
            for told in self._tell(lambda client: client.geo_readiness(), secret, tls):
                rows += [decode_readiness(row) for row in told]
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
        """Return where a replicated subscription is, in terms of the clusters where its messages were published.

        Offsets at the origin mean the same in all clusters, and those of the topic in each cluster do not.

        Args:
            topic: name of its topic; of one with partitions, all of them.
            subscription: name of the subscription.
            everywhere: ask the other servers of this cluster, too. False: only topics that this process owns.
            secret: secret of this cluster's servers, for `everywhere`.
            tls: TLS context of a client of these servers.

        Returns:
            The positions here, by origin; then what the other clusters said of theirs.

        Raises:
            NoSuchSubscriptionError: the processes that were asked own no topic with such a replicated subscription.
            ReplogError: errors of the metadata store.
        """
        self._check_open()
        check_may_block("where")
        check_text("topic", topic)
        check_text("subscription", subscription)
        rows = [] if self._keeper is None else self._keeper.where(topic, subscription)
        if check_bool("everywhere", everywhere):
            for told in self._tell(lambda client: client.geo_where(topic, subscription), secret, tls):
                rows += [decode_position(row) for row in told]
        if not rows:
            raise no_such_position(topic, subscription)
        return sorted(rows, key=lambda row: (row.topic, row.at != "", row.at, row.origin != "", row.origin, row.token))

    def where_rows(self, topic: str, subscription: str) -> list[dict[str, Any]]:
        """Return `where` of this process as dicts, for clients that ask a server; none if it is not replicated.

        Args:
            topic: name of the topic.
            subscription: name of the subscription.
        """
        return [] if self._keeper is None else [asdict(row) for row in self._keeper.where(topic, subscription)]

    def readiness_rows(self) -> list[dict[str, Any]]:
        """Return the readiness of this process's topics as dicts, for clients that ask a server."""
        return [] if self._keeper is None else [asdict(row) for row in self._keeper.readiness()]

    def status_rows(self) -> list[dict[str, Any]]:
        """Return the replications of this process as dicts, for clients that ask a server."""
        return [] if self._keeper is None else [asdict(row) for row in self._keeper.statuses()]

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
    status_async = in_thread(status)
    readiness_async = in_thread(readiness)
    where_async = in_thread(where)

    def _let_go(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._links.close)
            if self._keeper is not None:
                stack.callback(self._keeper.close)


def _checked_uuid(uuid: str | None) -> str:
    try:
        if uuid is None or len(bytes.fromhex(check_text("uuid", uuid))) == 16:
            return "00" * 16 if uuid is None else uuid.lower()
    except ValueError:
        pass
    raise InvalidArgumentError(f"uuid: expected 32 hexadecimal digits, found {uuid!r}")


def decode_status(row: Any) -> ReplicatorStatus:
    """Return the state of a replication as a server told it; fields of newer servers are left out.

    Raises:
        InvalidMessageError: it is malformed.
    """
    try:
        known = {name: row[name] for name in _STATUS_FIELDS if name in row}
        skipped = tuple((str(cause), int(count)) for cause, count in known.pop("skipped", ()))
        return ReplicatorStatus(**known, skipped=skipped)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidMessageError(f"state of a replication: {str(row)[:80]}: {error}") from error


def decode_readiness(row: Any) -> SubscriptionReadiness:
    """Return the readiness of a subscription as a server told it; fields of newer servers are left out.

    Raises:
        InvalidMessageError: it is malformed.
    """
    try:
        return SubscriptionReadiness(**{name: row[name] for name in _READINESS_FIELDS if name in row})
    except (TypeError, KeyError) as error:
        raise InvalidMessageError(f"readiness of a subscription: {str(row)[:80]}: {error}") from error


def decode_position(row: Any) -> SubscriptionPosition:
    """Return a position of a subscription as a server told it; fields of newer servers are left out.

    Raises:
        InvalidMessageError: it is malformed.
    """
    try:
        return SubscriptionPosition(**{name: row[name] for name in _POSITION_FIELDS if name in row})
    except (TypeError, KeyError) as error:
        raise InvalidMessageError(f"position of a subscription: {str(row)[:80]}: {error}") from error


def no_such_position(topic: str, subscription: str) -> NoSuchSubscriptionError:
    """Return the error that nobody who was asked replicates a subscription."""
    return NoSuchSubscriptionError(
        topic, f"no process that was asked replicates a subscription {subscription}: `geo readiness` lists all"
    )
