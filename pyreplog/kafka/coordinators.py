"""Coordinators: drives the coordinator of this broker's groups, with a thread for time-outs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from pyreplog.clock import SystemClock
from pyreplog.errors import ClosedError, TopicExistsError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.handles import Handle
from pyreplog.kafka.config import KafkaConfig
from pyreplog.kafka.groups.group_coordinator import GroupCoordinator
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC, ReplicaManagerOffsetsLog
from pyreplog.kafka.groups.topic_catalog import NO_TOPIC_ID, KnownTopic
from pyreplog.partition.broker import Broker
from pyreplog.partition.metadata.metadata_cache import PartitionId
from pyreplog.partition.metadata.topic_metadata import create_topic, find_topic_ids
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.topic_partition import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from pyreplog.kafka.ledgers.topics import LedgerTopics

logger = logging.getLogger(__name__)

_TICK_S = 0.01
_LOOK_UP_S = 2.0
"""Seconds to wait for topics on ledgers; `close` may wait as long. A question without an answer is asked again."""


class _BrokerTopicCatalog:
    """The topics of a broker's metadata, and those on ledgers, for the coordinator (`TopicCatalog`)."""

    def __init__(self, broker: Broker, ledger_topics: LedgerTopics | None) -> None:
        self._broker, self._ledger_topics = broker, ledger_topics
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="pyreplog-kafka-topic-ids")  # for calls of the store

    def topic(self, name: str) -> KnownTopic | None:
        topic = self._broker.metadata.topic(name)
        if topic is None and self._ledger_topics is not None and name not in INTERNAL_TOPICS:
            return self._ledger_topics.known(name)
        if topic is None or topic.is_deleted:
            return None
        return KnownTopic(bytes.fromhex(topic.topic_id), topic.partitions)

    def names(self) -> Iterable[str]:
        names = self._broker.metadata.topics()
        return names if self._ledger_topics is None else [*names, *self._ledger_topics.known_names()]

    def look_up(self, names: Collection[str]) -> AppendFuture[Mapping[str, bytes]]:
        future = AppendFuture[Mapping[str, bytes]]()
        try:
            self._worker.submit(self._find_ids, names, future)
        except RuntimeError:
            set_exception(future, ClosedError("the coordinator of groups was closed"))
        return future

    def _find_ids(self, names: Collection[str], future: AppendFuture[Mapping[str, bytes]]) -> None:
        try:
            ids = {name: bytes.fromhex(each) for name, each in find_topic_ids(self._broker.store, names).items()}
            others = [name for name in names if name not in ids]
            if self._ledger_topics is None:  # a listener that serves topics on ledgers may know them
                ids |= dict.fromkeys(others, NO_TOPIC_ID)
            elif others:
                found = self._ledger_topics.find(others).result(_LOOK_UP_S)
                ids |= {name: topic.topic_id for name, topic in found.items()}
        except Exception as error:  # the caller logs it
            set_exception(future, error)
        else:
            set_result(future, ids)

    def close(self) -> None:
        """End the calls of the store, after the one that runs."""
        self._worker.shutdown(wait=True, cancel_futures=True)


class Coordinators(Handle):
    """Drives the group coordinator of one broker: reports leadership changes, transaction markers and time to it.

    Any thread may use it.

    Args:
        broker: the broker. Close this object first.
        config: settings of the listener.
        ledger_topics: topics on ledgers that are served as well; None: there are none.
    """

    def __init__(self, broker: Broker, config: KafkaConfig, ledger_topics: LedgerTopics | None = None) -> None:
        groups = config.groups
        self._broker, self._config, self._clock = broker, config, SystemClock()
        log = ReplicaManagerOffsetsLog(broker.replicas, groups.append_timeout_ms)
        self._topics = _BrokerTopicCatalog(broker, ledger_topics)
        self.groups = GroupCoordinator(
            log, self._clock, groups, is_expected=self._is_expected, topics=self._topics
        )  # fmt: skip
        """The coordinator of groups."""
        self._role_lock = threading.Lock()  # serialises the leadership changes that are reported to the coordinator
        self._is_over = False
        self._deleted_topics: dict[str, set[bytes]] = {}  # ids of topics that were deleted since the last tick
        self._deletion_lock = threading.Lock()  # guards `_deleted_topics`
        self._stopping = threading.Event()
        super().__init__("coordinators of Kafka groups")
        self._end_watches = [
            # first, so that no marker after the loaded records is missed
            broker.replicas.watch_markers(self._marker_written),
            broker.replicas.watch_roles(self._role_changed),
            broker.metadata.watch_deletions(self._topics_deleted),
        ]
        self._thread = threading.Thread(target=self._run, name="pyreplog-kafka-groups", daemon=True)
        self._thread.start()

    def create_offsets_topic(self) -> None:
        """Create the topic `__consumer_offsets` if it does not exist.

        Blocks for the store. Raises errors of the store.
        """
        registered = len(self._broker.metadata.brokers())  # also dead ones: the topic keeps this number of replicas
        with suppress(TopicExistsError):
            create_topic(
                self._broker.store, OFFSETS_TOPIC, partitions=self._config.offsets_partitions,
                replication_factor=max(min(self._config.offsets_replication_factor, registered), 1),
                now_us=self._clock.now_us(),
            )  # fmt: skip
            logger.info("topic %s was created, because a Kafka client asked for a group's coordinator", OFFSETS_TOPIC)

    def _run(self) -> None:
        while not self._stopping.wait(_TICK_S):
            try:
                self._delete_offsets()
                self.groups.expire()
            except Exception:  # keep running for the next tick
                logger.exception("the coordinator of groups failed")

    def _topics_deleted(self, topics: Mapping[str, Set[str]]) -> None:
        """Note deleted topics. The thread deletes their offsets, because that writes to the disk."""
        with self._deletion_lock:
            for name, ids in topics.items():
                # offsets without an id are of earlier builds
                self._deleted_topics.setdefault(name, {NO_TOPIC_ID}).update(map(bytes.fromhex, ids))

    def _delete_offsets(self) -> None:
        with self._deletion_lock:
            topics, self._deleted_topics = self._deleted_topics, {}
        if topics:
            self.groups.topics_deleted(topics)

    def _role_changed(self, name: TopicPartition, _: int | None) -> None:
        """Report the current role: two threads may deliver role changes in any order."""
        if name.topic != OFFSETS_TOPIC:
            return
        with self._role_lock:
            replica = self._broker.replicas.partition(name)
            epoch = None if replica is None or self._is_over else replica.leader_epoch
            self.groups.leadership_changed(name, epoch)

    def _is_expected(self, name: TopicPartition) -> bool:
        """Return whether this broker leads a partition according to the metadata, even if its replica does not yet."""
        metadata = self._broker.metadata
        topic = metadata.topic(name.topic)
        stored = None if topic is None else metadata.state(PartitionId(topic.topic_id, name.partition))
        is_leader = stored is not None and stored[1].leader == self._broker.name
        return is_leader and self._broker.is_registered and not self._is_over

    def _marker_written(self, name: TopicPartition, marker: TransactionMarker) -> None:
        self.groups.handle_txn_completion(name, marker.producer_id, committed=marker.is_commit)

    def _do_close(self) -> None:
        for end_watch in self._end_watches:
            end_watch()
        with self._role_lock:
            self._is_over = True
        self._stopping.set()
        self._thread.join()
        self.groups.close()
        self._topics.close()
