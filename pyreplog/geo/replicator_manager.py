"""ReplicatorManager: starts and stops replicators as the policies demand, and opens listed topics without an owner."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet, ref

from pyreplog.clock import Clock
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, subscription_key
from pyreplog.errors import (
    ClosedError,
    InvalidMetadataError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    ReplogError,
    TopicFencedError,
    TopicOwnedError,
    UnsentMessagesError,
)
from pyreplog.geo.acks.subscription_position import SubscriptionPosition
from pyreplog.geo.clusters import RemoteCluster
from pyreplog.geo.geo_cursor import GEO_PREFIX, cursor_name, stored_position
from pyreplog.geo.neighbours import Neighbour
from pyreplog.geo.policies import ReplicationConfig, TopicControls, change_controls, load_config, names_of
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.protocol.effects import TargetPosition
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.geo.revision import REVISION
from pyreplog.geo.server_registration import SERVERS, ServerRegistration, choose_server
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.geo.subscription_replication import SubscriptionReplication
from pyreplog.geo.target_link import ExchangeLink
from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.driver import Runtime, TimerLike
from pyreplog.ledger.thread_pool import ThreadPool
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.watching import Watch
from pyreplog.net.sockets import weak_callback
from pyreplog.origins.origin import Origin
from pyreplog.topic.model.chain import LedgerChain
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.owner.ownership import OWNERS
from pyreplog.topic.owner.subscriptions import JOURNAL
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic_names import TOPICS, topic_key, unquote_name

logger = logging.getLogger(__name__)

ROUND_S = 15.0
"""Seconds between two rounds without a change."""
SETTLE_S = 0.5
"""Seconds between a change and its round, which also takes the changes of that time."""
REREAD_S = 600.0
"""Seconds after which all keys are read again, also if the revision is the same."""
JOIN_S = 2.0
"""Seconds between the registration of a server and the round in which it opens topics."""
RETRY_AFTER_S = 2.0
"""Seconds between a round that left work undone and the next one."""
NEW_S = 5.0
"""Seconds within which a server process begins to serve topics."""
RETRY_S, RETRY_MOST_S = 1.0, 60.0
"""Seconds between attempts to open a topic: at first, and at most."""
UNKNOWN_CLUSTER = bytes(16)
"""Stands for the id of a cluster that cannot be read: it never confirms a deletion."""
_MISSING = "no cluster of this name was added: add it (`geo cluster add`), or change the policy"
OPENERS = 4
"""Most topics that are opened at a time, so that a server which takes over thousands does not overload the bookies."""


class ReplicatorLike(Protocol):
    """The replicator of one topic and one target. Its methods do not wait; any thread may call them."""

    @property
    def target_position(self) -> TargetPosition | None:
        """The position in the topic that the target reported last; None: it reported none yet."""
        ...

    def forwarded(self, origin: Origin) -> int | None:
        """Return its position in another origin, whose messages are forwarded to it; None: they are not."""
        ...

    def sent(self, origin: Origin) -> int:
        """Return the offset at an origin below which messages were sent that the target may store."""
        ...

    def start(self) -> None:
        """Begin to replicate, from the target's `stored` on."""
        ...

    def configure(self, policy: ReplicationPolicy) -> None:
        """Use another policy, and keep the connection if possible."""
        ...

    def pause(self) -> None:
        """Stop sending until `resume`; trimming still waits for the target."""
        ...

    def resume(self) -> None:
        """Send again."""
        ...

    def resync(self) -> None:
        """Go on after `diverged` or `detached` with the messages that are stored here, and note the others as lost."""
        ...

    def remove(self) -> None:
        """Close, and delete the durable cursor: trimming no longer waits for the target."""
        ...

    def close(self) -> None:
        """End. The durable cursor stays."""
        ...

    def status(self) -> ReplicatorStatus:
        """Return the present state."""
        ...


class ReplicatorFactory(Protocol):
    """Makes replicators, and the links to targets that they use."""

    def make(
        self, topic: Topic, target: str, cluster: RemoteCluster, policy: ReplicationPolicy, partitions: int | None
    ) -> ReplicatorLike:
        """Return a replicator of a topic and a target; the caller starts it.

        Args:
            topic: the topic, or partition, that this process owns.
            target: name of the target.
            cluster: the target.
            policy: the policy of the topic.
            partitions: if `topic` is a partition, the number of partitions of its topic; otherwise None.

        Raises:
            ReplogError: the replicator cannot be made now; `ReplicatorManager` tries again later.
        """
        ...

    def link(self, target: str, cluster: RemoteCluster) -> ExchangeLink:
        """Return the link to a target. Raises the same errors as `make`."""
        ...

    def retain(self, clusters: Mapping[str, RemoteCluster]) -> None:
        """Close the links to clusters that are not in `clusters`, which has all known clusters."""
        ...

    def renew(self) -> None:
        """Read changed credential files again."""
        ...


class TopicsLike(Protocol):
    """The interface of the topics of this process that `ReplicatorManager` uses."""

    on_opened: list[Callable[[Topic], object]]

    @property
    def runtime(self) -> Runtime: ...
    @property
    def metadata(self) -> MetadataStore: ...
    @property
    def address(self) -> str: ...

    def opened(self) -> list[Topic]:
        """Return the topics that this process owns."""
        ...

    def open(self, name: str, *, create: bool = True) -> Topic:
        """Open a topic, see `Cluster.topic`."""
        ...

    def work(self, job: Callable[[], object]) -> None:
        """Run a job in a thread that may wait for ledgers."""
        ...

    def partitions_of(self, name: str) -> int | None:
        """Return the number of partitions of a topic; None: it is not partitioned, or does not exist."""
        ...


class _Replication:
    """A replicator, with its target cluster, its policy and whether it is paused."""

    def __init__(self, replicator: ReplicatorLike, cluster: RemoteCluster, policy: ReplicationPolicy) -> None:
        self.replicator, self.cluster, self.policy = replicator, cluster, policy
        self.is_paused = False


class _ReplicatedTopic:
    """A topic of this process, and its replications by target."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.replications: dict[str, _Replication] = {}
        self.subscriptions: SubscriptionReplication | None = None
        self.origin = topic.origin
        """Identity of the topic when `subscriptions` began."""
        self.is_settled = False
        """Whether the cursors of targets that the policy does not name were deleted."""
        self.missing: dict[str, str] = {}
        """Targets of the policy that get no messages, with the reasons."""


class ReplicatorManager(Handle):
    """Starts and stops the replicators of one process. Any thread may use it.

    It watches a constant number of keys for changes, and reads policies in batches. Idle topics have no thread and no
    timer; topics without unsent messages stay closed.

    Args:
        topics: the topics of this process. Close the manager before them.
        clock: source of time.
        factory: makes replicators.
        may_open: returns whether this process opens listed topics without an owner: it serves topics, or is the only
            process of the cluster.
    """

    def __init__(
        self, topics: TopicsLike, clock: Clock, factory: ReplicatorFactory, may_open: Callable[[], bool]
    ) -> None:
        self._topics, self._store, self._clock = topics, topics.metadata, clock
        self._factory, self._may_open = factory, may_open
        self._registration = ServerRegistration(self._store)
        self._round_lock = threading.Lock()  # held by a round
        self._lock = threading.Lock()  # guards the tables; never held while anything waits
        self._replicated: dict[str, _ReplicatedTopic] = {}
        self._dirty: set[str] = set()  # names of topics for the next round
        self._opening: set[str] = set()
        self._failures: dict[str, tuple[float, int]] = {}  # by topic: pause in seconds, and when it may be opened
        self._idle: set[str] = set()  # topics without an owner and without unsent messages
        self._listed: dict[str, tuple[str, ...]] = {}  # targets by topic, of this configuration
        self._config = ReplicationConfig()
        self._revision: bytes | None = None
        self._reread_us = 0
        self._began_us = clock.monotonic_us()
        self._clean: WeakSet[Topic] = WeakSet()  # topics that are not replicated, and have no cursors of targets
        self._due_us: int | None = None  # when the next round begins
        self._timer: TimerLike | None = None
        self._pool: ThreadPool | None = None
        self._watches: list[Watch] = []
        self.failure: ReplogError | None = None
        """The error that ended the last round; None: it was complete."""
        super().__init__("manager of replicators")
        make_part_of(self._registration, self)

    # ---- rounds ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. In a cluster without geo-replication this costs one watch."""
        self._check_open()
        self._topics.on_opened.append(weak_callback(self._opened))
        self._watches.append(self._store.watch(REVISION, weak_callback(self._changed)))

    @property
    def server(self) -> str:
        """The name under which this process is registered as a server."""
        return self._registration.name

    @property
    def complete(self) -> frozenset[str]:
        """The topics without an owner and without unsent messages, of those that this process would open."""
        return frozenset(self._idle)

    @property
    def config(self) -> ReplicationConfig:
        """The clusters, policies and controls of the last round."""
        return self._config

    def _changed(self, _: str) -> None:
        """Wake the manager after a change of the metadata; the first call does not wait for other changes."""
        self.wake(SETTLE_S if self._revision is not None else 0.0)

    def _opened(self, topic: Topic) -> None:
        if topic.config.durability == "synced":  # otherwise it is not replicated
            topic.maintenance.trim_guards.append(partial(_lacks_cursor, ref(self), topic.name))
        topic.delete_guards.append(partial(weak_callback(self.check_deletion), topic))
        self._apply_soon(topic)

    def _apply_soon(self, topic: Topic) -> None:
        """Apply the policy of a topic in a round that begins now."""
        with self._lock:
            self._dirty.add(topic.name)
            self._idle.discard(topic.name)
        if self._revision is not None:
            self.wake()

    def lacks_cursor(self, name: str, cursors: Collection[str]) -> bool:
        """Return whether the cursor of a target of a topic will be created, so that messages must not be trimmed yet.

        Until a round has read the last change of the policies that is unknown, which counts as yes.

        Args:
            name: name of the topic or partition.
            cursors: names of its system cursors.

        Raises:
            ReplogError: errors of the metadata store.
        """
        if self._error is not None:
            return False
        revision = self._store.get(REVISION)
        with self._lock:
            config, is_read = self._config, revision is None or revision.value == self._revision
        if not is_read:
            return True
        try:
            targets = config.targets_of(name)
        except InvalidMetadataError:
            return False  # replications do not change
        return any(
            isinstance(config.clusters.get(target), RemoteCluster) and cursor_name(target) not in cursors
            for target in targets
        )

    def check_deletion(self, topic: Topic) -> None:
        """Raise an error if a target of a topic lacks messages, so that the topic is not deleted.

        Detached targets do not count.

        Args:
            topic: a topic of this process.

        Raises:
            UnsentMessagesError: a target lacks messages, or is not known to have them.
            InvalidMetadataError: the policy of the topic cannot be read.
            ReplogError: errors of the metadata store.
        """
        revision = None if self._error is not None else self._store.get(REVISION)
        if revision is None:
            return
        with self._lock:
            config, is_read = self._config, revision.value == self._revision
        if not is_read:
            config = load_config(self._store)
        policy = config.policy_of(topic.name)
        if policy is None or policy.direction != "send":
            return
        lacking = {
            target: count for target in policy.targets
            if target in config.clusters and (count := self._unsent(topic, target, policy))
        }  # fmt: skip
        if lacking:
            targets = ", ".join(f"{target} lacks {count:,}" for target, count in lacking.items())
            raise UnsentMessagesError(
                topic.name, f"of its messages {targets}: wait until `geo status` shows none as unsent, take these "
                "clusters off its targets (`geo set`), or delete it with force, which loses the messages",
            )  # fmt: skip

    def _unsent(self, topic: Topic, target: str, policy: ReplicationPolicy) -> int:
        """Return how many messages of a topic a target is not known to have."""
        with self._lock:
            replicated = self._replicated.get(topic.name)
        replication = None if replicated is None else replicated.replications.get(target)
        status = None if replication is None else replication.replicator.status()
        if status is not None and status.state == "detached":
            return 0
        if status is not None and status.stored is not None:
            return status.unsent_messages
        marks = {cursor.name: cursor.mark.offset for cursor in topic.system_cursors.all()}
        start, end = topic.managed.start.offset, topic.managed.end.offset
        mark = marks.get(cursor_name(target), start if policy.start == "earliest" else end)
        return end - max(mark, start)

    def wake(self, seconds: float = 0.0) -> None:
        """Begin a round after `seconds`, or earlier if one is due.

        Args:
            seconds: most seconds until the round.
        """
        due_us = self._clock.monotonic_us() + int(seconds * 1e6)
        with self._lock:
            if self._error is not None or (self._due_us is not None and self._due_us <= due_us):
                return
            if self._timer is not None:
                self._timer.cancel()
            self._due_us = due_us
            self._timer = self._topics.runtime.wake_after(seconds, weak_callback(self._begin_round))

    def _begin_round(self) -> None:
        self._topics.work(weak_callback(self._timed_round))

    def _timed_round(self) -> None:
        with self._lock:
            self._due_us = self._timer = None
        try:
            is_active = self.round()
            self.failure = None
        except ClosedError:
            return
        except ReplogError as error:
            if self.failure is None or type(self.failure) is not type(error):
                logger.warning("geo-replication waits, and tries again: %s", error)
            self.failure, is_active = error, True
        if is_active:  # a watch brings the next round forward
            self.wake(self._pause_s())

    def _pause_s(self) -> float:
        """Return the seconds until the next round."""
        is_new = self._clock.monotonic_us() < self._began_us + NEW_S * 1e6
        if self.failure is not None or self._dirty or (is_new and not self._may_open()):
            return RETRY_AFTER_S
        return ROUND_S * random.uniform(0.8, 1.2)

    def round(self) -> bool:
        """Apply all changes once. Calls wait for each other.

        Returns:
            Whether this cluster uses geo-replication.

        Raises:
            ReplogError: errors of the metadata store. A key that could not be read does not count as deleted.
        """
        with self._round_lock:
            self._check_open()
            revision, now_us = self._store.get(REVISION), self._clock.monotonic_us()
            if revision is None:
                return False
            is_read = revision.value != self._revision or now_us >= self._reread_us
            if is_read:
                config = load_config(self._store)
                with self._lock:
                    self._config, self._revision = config, revision.value
                    self._listed, self._idle, self._reread_us = {}, set(), now_us + int(REREAD_S * 1e6)
            self._apply_policies(all_topics=is_read)
            if is_read and not any(isinstance(known, InvalidMetadataError) for known in self._config.clusters.values()):
                self._factory.retain({
                    name: known for name, known in self._config.clusters.items() if isinstance(known, RemoteCluster)
                })  # fmt: skip
            self._factory.renew()
            if self._may_open():
                self._open_unowned()
            return True

    # ---- topics of this process -----------------------------------------------------------------------------

    def _apply_policies(self, *, all_topics: bool) -> None:
        opened = {topic.name: topic for topic in self._topics.opened()}
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            gone = [name for name, replicated in self._replicated.items() if opened.get(name) is not replicated.topic]
        for name in gone:
            self._drop(name)
        for name in opened if all_topics else dirty & opened.keys():
            try:
                self._apply(opened[name])
            except (ClosedError, TopicFencedError):
                self._drop(name)
            except ReplogError as error:
                logger.warning("topic %s: its policy is applied again later: %s", name, error)
                with self._lock:
                    self._dirty.add(name)

    def _apply(self, topic: Topic) -> None:
        """Start, stop and change the replications of a topic as its policy demands."""
        config, name = self._config, topic.name
        with self._lock:
            replicated = self._replicated.get(name)
        if replicated is None and not self._targets(name) and not self._replicates_subscriptions(name):
            if topic in self._clean:
                return
            if not _cursors(topic) and not topic.has_homes:
                self._clean.add(topic)
                return
        try:
            policy, controls = config.policy_of(name), config.controls_of(name)
        except InvalidMetadataError as error:  # unknown is not no: replications do not change
            logger.warning("topic %s: its replication stays as it is: %s", name, error)
            if replicated is None and JOURNAL in _cursors(topic):  # consumers wait for the records of the journal
                replicated = self._add_topic(topic)
                replicated.subscriptions = SubscriptionReplication(topic)
                replicated.subscriptions.configure({}, [UNKNOWN_CLUSTER])
                replicated.subscriptions.start()
            return
        if replicated is None:
            replicated = self._add_topic(topic)
        wanted = config.targets_of(name)
        replicated.missing = {target: _MISSING for target in wanted if target not in config.clusters}
        unreadable = {target for target, known in config.clusters.items() if isinstance(known, InvalidMetadataError)}
        targets = {
            target: known for target in wanted
            if isinstance(known := config.clusters.get(target), RemoteCluster)
        }  # fmt: skip
        for target in replicated.replications.keys() - targets.keys() - (unreadable & {*wanted}):
            logger.info("topic %s: it is no longer replicated to %s", name, target)
            replicated.replications.pop(target).replicator.remove()
        for target, cluster in targets.items():
            assert policy is not None
            try:
                self._replicate(replicated, target, cluster, policy, controls)
            except (ClosedError, TopicFencedError):
                raise
            except ReplogError as error:  # the other targets go on
                logger.warning("topic %s: it is not replicated to %s, another attempt follows: %s", name, target, error)
                replicated.missing[target] = str(error)
                with self._lock:
                    self._dirty.add(name)
        self._replicate_subscriptions(replicated, policy)
        if not replicated.is_settled:
            self._delete_cursors(topic, {*targets, *(unreadable & {*wanted})})
            replicated.is_settled = True
        if topic.gone.done():
            self._drop(name)

    def _replicate(
        self,
        replicated: _ReplicatedTopic,
        target: str,
        cluster: RemoteCluster,
        policy: ReplicationPolicy,
        controls: TopicControls,
    ) -> None:
        """Start to replicate a topic to a target, or apply a changed policy and changed controls."""
        topic, replication = replicated.topic, replicated.replications.get(target)
        if replication is not None and replication.cluster != cluster:
            replicated.replications.pop(target).replicator.close()
            replication = None
        if replication is None:
            partitions = self._partitions(topic.name)
            replication = _Replication(self._factory.make(topic, target, cluster, policy, partitions), cluster, policy)
            replicated.replications[target] = replication
            if target in controls.paused:
                replication.is_paused = True
                replication.replicator.pause()
            replication.replicator.start()
        elif replication.policy != policy:
            replication.policy = policy
            replication.replicator.configure(policy)
        if replication.is_paused != (target in controls.paused):
            replication.is_paused = not replication.is_paused
            (replication.replicator.pause if replication.is_paused else replication.replicator.resume)()
        if target in controls.resync:
            replication.replicator.resync()
            self._delete_resync_order(topic.name, target)

    def _partitions(self, name: str) -> int | None:
        """Return the number of partitions that a target has to create for a partition; None: the topic is none.

        A growing topic counts a partition only after it was opened.
        """
        partition = partition_of(name)
        count = None if partition is None else self._topics.partitions_of(partition[0])
        return None if partition is None or count is None else max(count, partition[1] + 1)

    def _add_topic(self, topic: Topic) -> _ReplicatedTopic:
        replicated = _ReplicatedTopic(topic)
        with self._lock:
            self._replicated[topic.name] = replicated
        topic.gone.add_done_callback(partial(weak_callback(self._topic_closed), topic))
        topic.on_origin_renewed.append(partial(weak_callback(self._apply_soon), topic))
        return replicated

    def _replicates_subscriptions(self, name: str) -> bool:
        """Return whether the policy demands replicated subscriptions; False if it cannot be read."""
        try:
            policy = self._config.policy_of(name)
        except InvalidMetadataError:
            return False
        return policy is not None and policy.replicated_subscriptions and bool(policy.targets)

    def _replicate_subscriptions(self, replicated: _ReplicatedTopic, policy: ReplicationPolicy | None) -> None:
        """Start or stop to replicate the subscriptions of a topic as the policy demands."""
        topic = replicated.topic
        if policy is None or not policy.replicated_subscriptions or not policy.targets:
            if (subscriptions := replicated.subscriptions) is not None:
                replicated.subscriptions = None  # first: they are not shown any more once the journal is deleted
                subscriptions.remove()
            elif not replicated.is_settled and (topic.has_homes or JOURNAL in _cursors(topic)):
                topic.forget_homes()
                if JOURNAL in _cursors(topic):
                    topic.delete_subscription(JOURNAL)
                topic.watch_subscriptions(None)  # deliveries were held back until the policy was known
            return
        neighbours, unreachable = {}, []
        for target in policy.targets:
            cluster = self._config.clusters.get(target)
            if isinstance(cluster, InvalidMetadataError):
                unreachable.append(UNKNOWN_CLUSTER)
            elif cluster is not None:
                try:
                    link = self._factory.link(target, cluster)
                except (ClosedError, TopicFencedError):
                    raise
                except ReplogError as error:
                    replicated.missing[target] = str(error)
                    unreachable.append(cluster.id)
                    with self._lock:
                        self._dirty.add(topic.name)
                else:
                    neighbours[target] = Neighbour(
                        target, cluster.id, link, partial(_target_position_of, replicated, target),
                        partial(_forwarded_to, replicated, target), partial(_sent_to, replicated, target),
                    )  # fmt: skip
        if replicated.subscriptions is not None and UNKNOWN_CLUSTER in unreachable:
            return  # unknown is not gone
        if replicated.subscriptions is not None and replicated.origin != topic.origin:
            replicated.subscriptions.close()
            replicated.subscriptions = None
        replicated.origin = topic.origin
        is_new = replicated.subscriptions is None
        if replicated.subscriptions is None:
            replicated.subscriptions = SubscriptionReplication(topic)
        replicated.subscriptions.configure(neighbours, unreachable)
        if is_new:
            replicated.subscriptions.start()

    def _delete_resync_order(self, topic: str, target: str) -> None:
        """Delete the order. If this fails, the order is carried out once more, without an effect."""

        change_controls(
            self._store, topic,
            lambda controls: replace(controls, resync=tuple(name for name in controls.resync if name != target)),
        )  # fmt: skip

    def _delete_cursors(self, topic: Topic, wanted: Collection[str]) -> None:
        """Delete the cursors of targets that the policy does not name, so that trimming does not wait for them."""
        for name in _cursors(topic):
            if name != JOURNAL and name.removeprefix(GEO_PREFIX) not in wanted:
                try:
                    topic.delete_subscription(name)
                    logger.info("topic %s: cursor %s was deleted: the policy does not name it", topic.name, name)
                except NoSuchSubscriptionError:
                    continue

    def _topic_closed(self, topic: Topic, _: object) -> None:
        with self._lock:
            replicated = self._replicated.get(topic.name)
        if replicated is not None and replicated.topic is topic:
            self._drop(topic.name)
        self.wake(SETTLE_S)

    def _drop(self, name: str) -> None:
        """End the replications of a topic that this process no longer owns. The cursors stay."""
        with self._lock:
            replicated = self._replicated.pop(name, None)
        if replicated is not None:
            if replicated.subscriptions is not None:
                replicated.subscriptions.close()
            for replication in list(replicated.replications.values()):
                replication.replicator.close()

    def _targets(self, name: str) -> tuple[str, ...]:
        """Return the targets in the policy of a topic, known or unknown clusters; none if it cannot be read."""
        targets = self._listed.get(name)
        if targets is None:
            try:
                targets = self._config.targets_of(name)
            except InvalidMetadataError:
                targets = ()
            self._listed[name] = targets
        return targets

    def _is_listed(self, name: str) -> bool:
        """Return whether a topic is to be opened for its replication: one of its targets is a known cluster."""
        return any(isinstance(self._config.clusters.get(target), RemoteCluster) for target in self._targets(name))

    # ---- topics without an owner -----------------------------------------------------------------------------

    def _open_unowned(self) -> None:
        """Open the listed topics that have no owner and for which all servers choose this one."""
        if len(self._watches) == 1:
            callback = weak_callback(self._changed)
            self._watches += [self._store.watch(key, callback) for key in (SERVERS, OWNERS, TOPICS)]
        if self._registration.keep(self._topics.address) and self._topics.address:
            self.wake(JOIN_S)
            return  # servers that start at the same time share the topics
        servers = self._store.list(SERVERS)
        names, owned = self._store.list(TOPICS), {*self._store.list(OWNERS)}
        self._idle -= {unquote_name(name) for name in owned}
        unowned = [unquote_name(name) for name in names if name not in owned]
        now_us = self._clock.monotonic_us()
        with self._lock:
            self._failures = {name: failure for name, failure in self._failures.items() if name in {*unowned}}
            waiting = {name for name, (_, at_us) in self._failures.items() if now_us < at_us}
        mine = [
            name for name in unowned
            if self._is_listed(name) and name not in self._idle and name not in waiting
            and name not in self._opening and choose_server(name, servers or [self._registration.name])
            == self._registration.name
        ]  # fmt: skip
        idle = self._caught_up(mine)
        self._idle |= idle
        for name in mine:
            if name not in idle:
                self._open_later(name)

    def _caught_up(self, names: list[str]) -> set[str]:
        """Return the topics that surely have no unsent messages, from their metadata alone, in batches."""
        keys, rows = [], []
        for name in names:
            targets = self._targets(name)
            rows.append((name, targets))
            keys += [topic_key(name), *(subscription_key(name, cursor_name(target)) for target in targets)]
        values = iter(self._store.get_many(keys))
        idle, ids = set(), self._config.cluster_ids
        for name, targets in rows:
            chain, cursors = next(values), [next(values) for _ in targets]
            try:
                stored = {
                    target: None if cursor is None else cursor.value
                    for target, cursor in zip(targets, cursors, strict=True)
                }
                if chain is not None and _has_all(chain.value, stored, ids):
                    idle.add(name)
            except InvalidMetadataError as error:
                logger.debug("topic %s: it is opened to count its unsent messages: %s", name, error)
        return idle

    def _open_later(self, name: str) -> None:
        with self._lock:
            if self._error is not None:
                return
            if self._pool is None:
                self._pool = ThreadPool(OPENERS, "pyreplog-geo")
            self._opening.add(name)
            self._pool.submit(partial(weak_callback(self._open), name))

    def _open(self, name: str) -> None:
        """Open a topic, in a thread of the pool. Its `on_opened` starts its replication."""
        try:
            self._check_open()
            self._topics.open(name, create=False)
        except (TopicOwnedError, NoSuchTopicError, ClosedError) as error:
            logger.debug("topic %s: it is not opened here: %s", name, error)
            self._note_failure(name)
        except Exception as error:
            logger.warning("topic %s: it cannot be opened for its replication: %s", name, error)
            self._note_failure(name)
        else:
            with self._lock:
                self._failures.pop(name, None)
        finally:
            with self._lock:
                self._opening.discard(name)

    def _note_failure(self, name: str) -> None:
        with self._lock:
            pause_s = min(max(2 * self._failures.get(name, (0.0, 0))[0], RETRY_S), RETRY_MOST_S)
            self._failures[name] = pause_s, self._clock.monotonic_us() + int(pause_s * 1e6)

    # ---- status ---------------------------------------------------------------------------------------------

    def _all_replicated(self) -> list[_ReplicatedTopic]:
        with self._lock:
            return list(self._replicated.values())

    def statuses(self, topics: Iterable[str] | None = None) -> list[ReplicatorStatus]:
        """Return the state of each replication of this process, by topic and target.

        Args:
            topics: names of topics; None: all.
        """
        wanted = None if topics is None else {*topics}
        rows = []
        for replicated in self._all_replicated():
            if wanted is not None and replicated.topic.name not in wanted:
                continue
            subscriptions = replicated.subscriptions  # a round in another thread may take it away
            alarms = {} if subscriptions is None else subscriptions.alarms()
            for replication in list(replicated.replications.values()):
                row = replication.replicator.status()
                if alarms and not row.alarm:
                    row = replace(row, alarm="; ".join(alarms.values()))
                rows.append(row)
            missing = list(replicated.missing.items())  # at once, for the same reason
            rows += [_missing_target_status(replicated.topic, target, why) for target, why in missing]
        return sorted(rows, key=lambda row: (row.topic, row.target))

    def readiness(self, topics: Iterable[str] | None = None) -> list[SubscriptionReadiness]:
        """Return the effect of a fail-over of each replicated subscription of this process now; may wait.

        Args:
            topics: names of topics; None: all.
        """
        wanted = None if topics is None else {*topics}
        rows: list[SubscriptionReadiness] = []
        for replicated in self._all_replicated():
            subscriptions = replicated.subscriptions
            if subscriptions is not None and (wanted is None or replicated.topic.name in wanted):
                rows += subscriptions.readiness()
                known = {row.target for row in rows if row.topic == replicated.topic.name}
                for target, why in list(replicated.missing.items()):
                    if target not in known:
                        rows += subscriptions.unknown(target, why)
        return sorted(rows, key=lambda row: (row.topic, row.subscription, row.target))

    def where(self, topic: str, subscription: str) -> list[SubscriptionPosition]:
        """Return the positions of a replicated subscription of this process; may wait.

        Args:
            topic: name of its topic; a partitioned topic stands for all partitions.
            subscription: name of the subscription.
        """
        rows: list[SubscriptionPosition] = []
        for replicated in sorted(self._all_replicated(), key=lambda replicated: replicated.topic.name):
            subscriptions = replicated.subscriptions
            if subscriptions is not None and topic in names_of(replicated.topic.name):
                rows += subscriptions.where(subscription)
        return rows

    # ---- handovers ------------------------------------------------------------------------------------------

    def has_open(self, topic: str) -> bool:
        """Return whether this process owns a topic.

        Args:
            topic: name of the topic or partition.
        """
        return any(opened.name == topic for opened in self._topics.opened())

    def open(self, topic: str) -> None:
        """Open an existing topic.

        Args:
            topic: name of the topic or partition.

        Raises:
            ReplogError: as `Cluster.topic`.
        """
        self._topics.open(topic, create=False)

    def hand_over(
        self, topic: str, subscription: str, target: str, *, order: str, timeout: float, grace: float
    ) -> dict[str, Any] | None:
        """Begin a handover, or return its status; see `SubscriptionReplication.hand_over`.

        Args:
            topic: name of the topic or partition.
            subscription: name of the subscription.
            target: name of the cluster that is to deliver the subscription.
            order: id of the order.
            timeout: seconds after which the handover is cancelled, if the home has not moved.
            grace: seconds after which messages that consumers hold are taken from them.

        Returns:
            The fields of `HandoverStatus`; None: the policy of the topic has not been applied yet.
        """
        subscriptions = self._subscriptions_of(topic)
        if subscriptions is None:
            return None
        return subscriptions.hand_over(subscription, target, order=order, timeout=timeout, grace=grace)

    def take_over(self, topic: str, subscription: str, *, any_cluster: bool) -> dict[str, Any] | None:
        """Make this cluster the home of a subscription; see `SubscriptionReplication.take_over`.

        Args:
            topic: name of the topic or partition.
            subscription: name of the subscription.
            any_cluster: let all clusters deliver the subscription.

        Returns:
            The fields of `HandoverStatus`; None: the policy of the topic has not been applied yet.
        """
        subscriptions = self._subscriptions_of(topic)
        return None if subscriptions is None else subscriptions.take_over(subscription, any_cluster=any_cluster)

    def _subscriptions_of(self, topic: str) -> SubscriptionReplication | None:
        with self._lock:
            replicated = self._replicated.get(topic)
        return None if replicated is None else replicated.subscriptions

    def _do_close(self) -> None:
        for watch in self._watches:
            watch.close()
        with ExitStack() as stack:
            stack.callback(self._registration.close)
            for name in list(self._replicated):
                stack.callback(self._drop, name)
            with self._lock:
                pool, self._pool = self._pool, None
            if pool is not None:
                stack.callback(pool.close, 5.0)


def _missing_target_status(topic: Topic, target: str, why: str) -> ReplicatorStatus:
    """Return the state of a target that gets no messages: all stored messages count as unsent."""
    start, end = topic.managed.start, topic.managed.end
    return ReplicatorStatus(
        topic.name, target, "failed", None, end.offset, end.offset - start.offset, end.size - start.size, error=why,
        alarm=why,
    )  # fmt: skip


def _cursors(topic: Topic) -> list[str]:
    names = [cursor.name for cursor in topic.internal_stats().cursors]
    return [name for name in names if name.startswith(GEO_PREFIX) or name == JOURNAL]


def _target_position_of(replicated: _ReplicatedTopic, target: str) -> TargetPosition | None:
    """Return the position in a topic that a target reported last; None: the topic is not sent to it."""
    replication = replicated.replications.get(target)
    return None if replication is None else replication.replicator.target_position


def _forwarded_to(replicated: _ReplicatedTopic, target: str, origin: Origin) -> int | None:
    """Return the offset at another origin that a target reported last; None: its messages are not forwarded to it."""
    replication = replicated.replications.get(target)
    return None if replication is None else replication.replicator.forwarded(origin)


def _sent_to(replicated: _ReplicatedTopic, target: str, origin: Origin) -> int:
    """Return the offset at an origin below which messages were sent that a target may store."""
    replication = replicated.replications.get(target)
    return 0 if replication is None else replication.replicator.sent(origin)


def _lacks_cursor(manager_ref: ref[ReplicatorManager], name: str, cursors: Collection[str]) -> bool:
    """As `ReplicatorManager.lacks_cursor`, without keeping the manager alive."""
    manager = manager_ref()
    return manager is not None and manager.lacks_cursor(name, cursors)


def _has_all(chain_value: bytes, cursors: Mapping[str, bytes | None], ids: Mapping[str, str]) -> bool:
    """Return whether the cursors of all targets are at the end of a topic, which was closed cleanly.

    cursors, ids: by target. Raises InvalidMetadataError if a value cannot be read.
    """
    chain = LedgerChain.decode(chain_value)
    if chain.open_ledger is not None or chain.deleted:
        return chain.deleted
    for target, value in cursors.items():
        if value is None:
            return False
        metadata = SubscriptionMetadata.decode(value)
        if metadata.cursor_ledger >= 0:
            return False
        mark = stored_position(cursor_name(target), metadata.snapshot, ids.get(target, ""))
        if mark is None or mark.offset < chain.end.offset:
            return False
    return True
