"""Controller: creates partitions of topics, elects leaders, completes reassignments, replaces brokers, deletes topics.

Each broker has one. Only the one that holds the controller's key works. The key is advisory, because each change is a
compare-and-set under the version that was read: two controllers at once, or one that was suspended, do no harm.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Set

from pyreplog.clock import Clock
from pyreplog.errors import (
    InvalidArgumentError,
    KeyExistsError,
    NoSuchKeyError,
    OutcomeUnknownError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.handles import Handle
from pyreplog.metadata.operations import CheckExists, CreateKey
from pyreplog.metadata.store import MetadataStore
from pyreplog.partition.metadata.broker_registration import CONTROLLER, BrokerLease
from pyreplog.partition.metadata.broker_replacement import replace_brokers
from pyreplog.partition.metadata.metadata_cache import MetadataCache, PartitionId
from pyreplog.partition.metadata.replica_placement import ReplicaCounts, place_replicas
from pyreplog.partition.metadata.topic_metadata import (
    TopicMetadata,
    create_states_folder,
    remove_topic,
    state_key,
    states_key,
)
from pyreplog.partition.protocol.election import (
    cancel_reassignment,
    complete_reassignment,
    elect,
    elect_preferred,
    reassign,
    with_min_isr,
)
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Member, PartitionState

logger = logging.getLogger(__name__)

_REPLACEMENTS_MAX = 16
"""Most partitions whose replicas are replaced at once, so that copies for a dead broker do not overload the others."""
_ABSENCE_US = 2_000_000
"""Microseconds after which new partitions do without a dead broker: brokers that start at the same time wait for each
other, so that the first partitions are spread over all of them."""
_CHECK_S = 1.0
"""Seconds between two rounds without changes of metadata: the controller may have died, or preferred leaders are
due."""


class Controller(Handle):
    """The controller of one broker, with its own thread. Any thread may use it.

    Args:
        store: metadata store. Close this object before it.
        cache: cache of the store.
        lease: registration of this broker.
        clock: source of time.
        balance_s: seconds between two rounds that elect preferred leaders (`leader.imbalance.check.interval.seconds`).
        replace_s: seconds after which the replicas of a broker whose lease has expired are replaced on others; 0:
            never. They count from when this controller has noticed it.
    """

    def __init__(
        self, store: MetadataStore, cache: MetadataCache, lease: BrokerLease, clock: Clock, balance_s: float = 300.0,
        replace_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._store, self._cache, self._lease, self._clock = store, cache, lease, clock
        self._balance_us = round(balance_s * 1e6)
        self._replace_us = round(replace_s * 1e6)
        self._fenced_us: dict[str, int] = {}  # dead brokers, and when this controller noticed
        self._balanced_us = clock.monotonic_us()
        self._wake = threading.Event()
        self._lock = threading.Lock()  # guards `_changed`, `_changed_topics` and `_checks_all`
        self._changed: set[PartitionId] = set()  # partitions, since the last round
        self._changed_topics: set[str] = set()  # ids of topics, since the last round
        self._checks_all = True  # whether the next round checks all partitions
        self._stopping = False
        self._written: dict[PartitionId, int] = {}  # versions that the cache has yet to read
        self._unbalanced: set[PartitionId] = set()  # partitions whose preferred leaders are to be elected
        self._refused: set[str] = set()  # ids of topics whose partitions cannot be placed, which was logged
        self._counts = ReplicaCounts()
        self._round_lock = threading.Lock()
        super().__init__("controller")
        self._watch = store.watch(CONTROLLER, lambda _: self.wake())
        self._thread = threading.Thread(target=self._run, name="pyreplog-controller", daemon=True)
        self._thread.start()

    def wake(self, partitions: Set[PartitionId] | None = None, topics: Set[str] = frozenset()) -> None:
        """Wake the thread for a round, after a change of metadata.

        Args:
            partitions: partitions whose states changed; None: brokers changed, so all partitions are checked.
            topics: ids of the topics that changed.
        """
        with self._lock:
            if partitions is None:
                self._checks_all = True
            else:
                self._changed |= partitions
                self._changed_topics |= topics
        self._wake.set()

    def round(self, partitions: Set[PartitionId] | None = None, topics: Set[str] = frozenset()) -> int:
        """Run one round: change the states of partitions as the metadata require, if this broker is the controller.

        Args:
            partitions: partitions whose states changed since the last round. The round checks only these and those of
                `topics`, unless preferred leaders or replacements are due; None: all.
            topics: ids of the topics that changed since the last round.

        Returns:
            The number of stored changes.

        Raises:
            ReplogError: errors of the store. The next round checks all partitions.
        """
        with self._round_lock:
            brokers, now_us = self._cache.brokers(), self._clock.monotonic_us()
            self._fenced_us = {
                name: self._fenced_us.get(name, now_us)
                for name, registration in brokers.items()
                if registration.is_fenced
            }
            if not self._lease.take_controller():
                self._check_all_next()
                return 0
            is_balancing = now_us - self._balanced_us >= self._balance_us
            if is_balancing:
                self._balanced_us = now_us
            if partitions is None or is_balancing or (self._replace_us and self._fenced_us):
                return self._update_all(brokers, now_us, is_balancing=is_balancing)
            deleted = {partition for partition in partitions if not self._count(partition)}
            changes = sum(self._update_topic(topic_id, brokers, is_balancing=False) for topic_id in sorted(topics))
            for partition in sorted(partitions):
                named = self._cache.topic_by_id(partition.topic_id)
                if named is None or named[1].is_deleted:
                    continue  # handled as a change of topics
                if partition in deleted:
                    changes += self._create_partitions(*named, brokers)
                else:
                    changes += self._update(named[1], partition, brokers, is_balancing=False)
            return changes

    def _check_all_next(self) -> None:
        """Let the next round check all partitions."""
        with self._lock:
            self._checks_all = True

    def _update_all(self, brokers: Mapping[str, BrokerRegistration], now_us: int, *, is_balancing: bool) -> int:
        """Create, delete or update the partitions of all topics; return the number of changes."""
        changes, topics, self._counts = 0, self._cache.topics(), ReplicaCounts()
        for topic in topics.values():
            for partition, state in self._cache.partitions(topic.topic_id):
                self._counts.set(*partition, state.replicas)
        for topic in topics.values():
            changes += self._update_topic(topic.topic_id, brokers, is_balancing=is_balancing)
        return changes + (self._replace(topics, brokers, now_us) if self._replace_us else 0)

    def _count(self, partition: PartitionId) -> bool:
        """Count the replicas of a partition whose state changed; return whether it has a state."""
        stored = self._cache.state(partition)
        self._counts.set(*partition, () if stored is None else stored[1].replicas)
        return stored is not None

    def _update_topic(
        self, topic_id: str, brokers: Mapping[str, BrokerRegistration], *, is_balancing: bool
    ) -> int:  # fmt: skip
        """Create, delete or update the partitions of a topic; return the number of changes."""
        named = self._cache.topic_by_id(topic_id)
        if named is None:
            self._counts.remove_topic(topic_id)
            return 0
        name, topic = named
        if not self._cache.has_states(topic_id):
            return 0
        if topic.is_deleted:
            return self._delete(name, topic)
        changes = self._create_partitions(name, topic, brokers)
        for partition, _ in self._cache.partitions(topic_id):
            changes += self._update(topic, partition, brokers, is_balancing=is_balancing)
        return changes

    def _update(
        self, topic: TopicMetadata, partition: PartitionId, brokers: Mapping[str, BrokerRegistration], *,
        is_balancing: bool,
    ) -> bool:  # fmt: skip
        """Store the next state of a partition; return whether it differs and was stored."""
        stored = self._cache.state(partition)
        if stored is None:
            return False
        version, before = stored
        if is_balancing:
            self._unbalanced.add(partition)  # until its state is read and stored: the next balancing round is far away
        if self._is_behind(partition, version):
            return False
        after = with_min_isr(before, topic.min_isr)
        after = (
            elect(after, brokers, requires_sync=topic.requires_sync, unclean=topic.unclean_election)
            or (elect_preferred(after, brokers) if partition in self._unbalanced else None)
            or after
        )
        after = complete_reassignment(after, brokers) or after
        if after.replaced and any(not brokers[name].is_fenced for name in after.replaced if name in brokers):
            after = cancel_reassignment(after, brokers) or after  # the broker came back in time
        if after != before and not self._store_state(partition, version, after):
            return False
        self._unbalanced.discard(partition)
        if after == before:
            return False
        log = logger.warning if after.is_unclean and not before.is_unclean else logger.info
        log("partition %s: %s leads epoch %s, ISR %s", partition, after.leader or "nobody", after.epoch, after.isr)
        return True

    def _is_behind(self, partition: PartitionId, version: int) -> bool:
        """Return whether the cache has an older version of a state than this controller has stored."""
        if version < self._written.get(partition, 0):
            return True
        self._written.pop(partition, None)
        return False

    def _store_state(self, partition: PartitionId, version: int, state: PartitionState) -> bool:
        """Store the state of a partition if its key has this version; return whether it was stored."""
        try:
            self._written[partition] = self._store.put(state_key(*partition), state.encode(), version)
        except VersionConflictError:
            self._written[partition] = version + 1  # or later; reading it wakes this thread
            return False
        except NoSuchKeyError:
            return False
        except OutcomeUnknownError:
            self._check_all_next()
            return False
        return True

    def _replace(
        self, topics: Mapping[str, TopicMetadata], brokers: Mapping[str, BrokerRegistration], now_us: int
    ) -> int:  # fmt: skip
        """Begin to replace the replicas of brokers that are dead for too long, a few at a time."""
        dead = {name for name, since_us in self._fenced_us.items() if now_us - since_us >= self._replace_us}
        if not dead:
            return 0
        partitions = [
            item for topic in topics.values() if not topic.is_deleted for item in self._cache.partitions(topic.topic_id)
        ]
        chosen = replace_brokers(dead, partitions, self._racks(brokers), _REPLACEMENTS_MAX)
        changes = 0
        for partition, target in chosen.items():
            stored = self._cache.state(partition)
            if stored is None or self._is_behind(partition, stored[0]):
                continue
            version, state = stored
            if not state.leader or (state.target and not state.replaced):
                continue  # the state has changed
            original = state.original or state.replicas
            replaced = [name for name in original if name in dead and name not in target]
            if replaced and self._store_state(partition, version, reassign(state, target, replaced=replaced)):
                changes += 1
                logger.warning(
                    "partition %s: %s been dead for too long, so its replicas are moved to %s",
                    partition, f"broker {replaced[0]} has" if len(replaced) == 1 else "brokers have", ", ".join(target),
                )  # fmt: skip
        return changes

    def _racks(self, brokers: Mapping[str, BrokerRegistration]) -> dict[str, str]:
        """Return the racks of the brokers that may get replicas."""
        return {
            broker: self._rack(broker)
            for broker, registration in brokers.items()
            if not registration.is_fenced and not registration.is_stopping
        }

    def _rack(self, broker: str) -> str:
        metadata = self._cache.broker(broker)
        return "" if metadata is None else metadata.rack

    # ---- topics ---------------------------------------------------------------------------------------------

    def _create_partitions(self, name: str, topic: TopicMetadata, brokers: Mapping[str, BrokerRegistration]) -> int:
        """Create the states of partitions without one.

        All replicas begin in the ISR, because the logs are empty; those of dead brokers leave it with the election.
        Brokers that are dead for a while are chosen only if there are too few others.
        """
        known = {partition.number for partition, _ in self._cache.partitions(topic.topic_id)}
        missing = [
            partition for partition in range(topic.partitions)
            if partition not in known and PartitionId(topic.topic_id, partition) not in self._written
        ]  # fmt: skip
        if not missing:
            return 0
        racks, now_us = self._racks(brokers), self._clock.monotonic_us()
        dead = {
            broker: self._rack(broker)
            for broker, since_us in self._fenced_us.items()
            if broker in brokers and now_us - since_us >= _ABSENCE_US
        }
        placed = {partition: chosen for partition in missing if (chosen := topic.replicas_of(partition))}
        free = [partition for partition in missing if partition not in placed]
        try:
            if free:
                placed |= place_replicas(topic.topic_id, free, topic.replication_factor, racks, self._counts, dead)
        except InvalidArgumentError as error:
            self._check_all_next()  # brokers may be dead for a while by then
            if topic.topic_id not in self._refused:
                self._refused.add(topic.topic_id)
                logger.warning("topic %s: its partitions are created when there are more brokers: %s", name, error)
        changes = 0
        for partition, replicas in sorted(placed.items()):
            if not {*replicas} <= brokers.keys():
                continue  # a broker that its creator chose was never registered
            members = tuple(sorted(Member(broker, brokers[broker].incarnation) for broker in replicas))
            state = PartitionState(replicas, members, topic.min_isr)
            state = elect(state, brokers, requires_sync=topic.requires_sync) or state
            try:
                version = self._create_state(PartitionId(topic.topic_id, partition), state)
            except KeyExistsError:
                continue
            except NoSuchKeyError:
                if create_states_folder(self._store, name, topic.topic_id):
                    self.wake()
                return changes
            except OutcomeUnknownError:
                self._check_all_next()
                continue
            self._written[PartitionId(topic.topic_id, partition)] = version
            self._counts.set(topic.topic_id, partition, replicas)
            changes += 1
        return changes

    def _create_state(self, partition: PartitionId, state: PartitionState) -> int:
        """Create the state of a partition in the folder of its topic; return the version.

        A topic that was deleted has no folder any more, so that a controller that was suspended leaves no state behind.

        Raises:
            NoSuchKeyError: the folder does not exist.
            KeyExistsError: another controller has created the state.
            ReplogError: errors of the store.
        """
        folder, key = states_key(partition.topic_id), state_key(*partition)
        _, version = self._store.multi([CheckExists(folder), CreateKey(key, state.encode())])
        assert version is not None
        return version

    def _delete(self, name: str, topic: TopicMetadata) -> int:
        """Delete the keys of a topic: brokers remove replicas that have no state."""
        for partition, _ in self._cache.partitions(topic.topic_id):
            self._written.pop(partition, None)
            self._unbalanced.discard(partition)
        remove_topic(self._store, name, topic.topic_id)
        logger.info("topic %s is deleted", name)
        return 1

    # ---- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            is_quiet = not self._wake.wait(_CHECK_S)
            self._wake.clear()
            if self._stopping:
                return
            if is_quiet:
                self._forget_written()
            with self._lock:
                changed, self._changed = self._changed, set()
                topics, self._changed_topics = self._changed_topics, set()
                checks_all, self._checks_all = self._checks_all, False
            try:
                self.round(None if checks_all else changed, topics)
            except ReplogError as error:
                self._check_all_next()
                if not self._stopping:
                    logger.warning("controller: a round failed and is retried: %s", error)

    def _forget_written(self) -> None:
        """Let the next round check all partitions if the cache still has not read all stored versions: their keys may
        be deleted."""
        with self._round_lock:
            if self._written:
                self._written.clear()
                self._check_all_next()

    def _do_close(self) -> None:
        self._stopping = True
        self._watch.close()
        self._wake.set()
        self._thread.join()
