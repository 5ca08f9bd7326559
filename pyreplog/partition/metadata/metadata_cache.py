"""MetadataCache: a broker's cache of topics, states of partitions and brokers in the metadata store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple, Protocol

from pyreplog.metadata.followed_folder import FollowedFolder
from pyreplog.metadata.store import MetadataStore
from pyreplog.partition.metadata.broker_registration import (
    AVAILABLE,
    BROKERS,
    BrokerAvailability,
    BrokerMetadata,
    registrations_of,
)
from pyreplog.partition.metadata.topic_metadata import TOPICS, TopicMetadata, states_key
from pyreplog.partition.protocol.partition_state import BrokerRegistration, PartitionState
from pyreplog.topic_names import quote_name, unquote_name

Retry = Callable[[Callable[[], None]], object]
"""See `FollowedFolder`."""
DeletionWatcher = Callable[[Mapping[str, Set[str]]], object]
"""See `MetadataCache.watch_deletions`."""


class PartitionId(NamedTuple):
    """The id of a partition.

    Attributes:
        topic_id: id of the topic.
        number: number of the partition in its topic, from 0 on.
    """

    topic_id: str
    number: int


class MetadataListener(Protocol):
    """Callbacks for changes of metadata. A thread of the metadata store calls them; they must not block."""

    def topics_changed(self, topics: Set[str]) -> None:
        """Handle topics, by id, that were created, deleted or got other settings, or whose states were read for the
        first time."""
        ...

    def states_changed(self, partitions: Set[PartitionId]) -> None:
        """Handle partitions whose states were created, deleted or changed."""
        ...

    def brokers_changed(self) -> None:
        """Handle a change of the registrations of brokers."""
        ...


class MetadataCache:
    """A cache of the metadata of partitions. Reads do not block; any thread may use it.

    It may be behind the metadata store. Each change is a compare-and-set under the version that was read.

    Args:
        store: metadata store. Close this object first.
        listener: called after changes, possibly before the constructor returns.
        retry: see `FollowedFolder`.
    """

    def __init__(self, store: MetadataStore, listener: MetadataListener, retry: Retry) -> None:
        self._store, self._listener, self._retry = store, listener, retry
        self._lock = threading.Lock()  # guards the tables below; held while the constructor runs
        self._states: dict[str, FollowedFolder[PartitionState]] = {}  # by topic id
        self._keys: dict[str, str] = {}  # names of the topics' keys, by topic id
        self._ids: dict[str, str] = {}  # ids of the topics, by name of the key
        self._deleted_ids: set[str] = set()  # ids of topics in deletion, which the watchers know
        self._deletion_watchers: tuple[DeletionWatcher, ...] = ()
        self._is_closed = False
        with self._lock:  # a thread of the store calls back at once
            self._brokers = FollowedFolder(store, BROKERS, BrokerMetadata.decode, self._brokers_changed, retry)
            self._available = FollowedFolder(store, AVAILABLE, BrokerAvailability.decode, self._brokers_changed, retry)
            self._topics = FollowedFolder(store, TOPICS, TopicMetadata.decode, self._topics_changed, retry)

    def wait(self, timeout_s: float) -> bool:
        """Wait until topics and brokers were read; return False after a time-out. States may be read later."""
        folders = (self._brokers, self._available, self._topics)
        return all(folder.wait(timeout_s) for folder in folders)

    # ---- topics ---------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicMetadata]:
        """Return all topics, by name."""
        return {unquote_name(name): topic for name, topic in self._topics.items()}

    def topic(self, name: str) -> TopicMetadata | None:
        """Return a topic; None: it does not exist."""
        return self._topics.get(quote_name(name))

    def topic_by_id(self, topic_id: str) -> tuple[str, TopicMetadata] | None:
        """Return the name of the topic with an id, and the topic, which may be in deletion; None: it does not exist."""
        key = self._keys.get(topic_id)
        topic = None if key is None else self._topics.get(key)
        if key is None or topic is None or topic.topic_id != topic_id:
            return None
        return unquote_name(key), topic

    def topic_name(self, topic_id: str) -> str | None:
        """Return the name of the topic with an id; None: it does not exist, or is being deleted."""
        named = self.topic_by_id(topic_id)
        return None if named is None or named[1].is_deleted else named[0]

    def _topics_changed(self, keys: Set[str]) -> None:
        changed: set[str] = set()
        deleted: dict[str, Set[str]] = {}
        gone: list[FollowedFolder[PartitionState]] = []
        with self._lock:
            if self._is_closed:
                return
            for key in keys:
                topic, before = self._topics.get(key), self._ids.pop(key, None)
                deleted_ids = self._note_deletion(topic, before)
                if deleted_ids:
                    deleted[unquote_name(key)] = deleted_ids
                if topic is not None:
                    self._ids[key] = topic.topic_id
                    self._keys[topic.topic_id] = key
                    changed.add(topic.topic_id)
                    if topic.topic_id not in self._states:
                        self._states[topic.topic_id] = self._follow(topic.topic_id)
                if before is not None and before != self._ids.get(key) and self._keys[before] == key:
                    del self._keys[before]
                    gone.append(self._states.pop(before))
                    changed.add(before)
        for folder in gone:
            folder.close()
        if deleted:
            for callback in self._deletion_watchers:
                callback(deleted)
        self._listener.topics_changed(changed)

    def _note_deletion(self, topic: TopicMetadata | None, before: str | None) -> set[str]:
        """Return the ids of topics that were deleted since the last change of a key; before: id that the key had.

        The deletion is noted as soon as the topic is marked, and not again when its key is deleted.
        """
        deleted: set[str] = set()
        if before is not None and (topic is None or topic.topic_id != before):
            if before not in self._deleted_ids:
                deleted.add(before)
            self._deleted_ids.discard(before)
        if topic is not None and topic.is_deleted and topic.topic_id not in self._deleted_ids:
            self._deleted_ids.add(topic.topic_id)
            deleted.add(topic.topic_id)
        return deleted

    def watch_deletions(self, callback: DeletionWatcher) -> Callable[[], None]:
        """Call `callback` when topics are deleted.

        Args:
            callback: called with the ids of the deleted topics by name, once for each deletion, on a thread of the
                metadata store: it must not block.

        Returns:
            A function that ends the watch. A call that has begun may still go on.
        """
        with self._lock:
            self._deletion_watchers = (*self._deletion_watchers, callback)

        def end() -> None:
            with self._lock:
                self._deletion_watchers = tuple(each for each in self._deletion_watchers if each is not callback)

        return end

    def _follow(self, topic_id: str) -> FollowedFolder[PartitionState]:
        def changed(names: Set[str]) -> None:
            if names:
                self._listener.states_changed({PartitionId(topic_id, int(name)) for name in names if name.isdecimal()})
            else:
                self._listener.topics_changed({topic_id})

        return FollowedFolder(self._store, states_key(topic_id), PartitionState.decode, changed, self._retry)

    # ---- partitions -----------------------------------------------------------------------------------------

    def state(self, partition: PartitionId) -> tuple[int, PartitionState] | None:
        """Return the version and the state of a partition; None: it has no state, or that was not read yet."""
        folder = self._states.get(partition.topic_id)
        return None if folder is None else folder.versioned(f"{partition.number:05d}")

    def partitions(self, topic_id: str) -> list[tuple[PartitionId, PartitionState]]:
        """Return the partitions of a topic that have a state, by number."""
        folder = self._states.get(topic_id)
        items = [] if folder is None else folder.items()
        return [(PartitionId(topic_id, int(name)), state) for name, state in items if name.isdecimal()]

    def has_states(self, topic_id: str) -> bool:
        """Return whether the states of a topic were read."""
        folder = self._states.get(topic_id)
        return folder is not None and folder.wait(0)

    # ---- brokers --------------------------------------------------------------------------------------------

    def brokers(self) -> dict[str, BrokerRegistration]:
        """Return the registrations of brokers for the state machines, by name."""
        return registrations_of(dict(self._brokers.items()), dict(self._available.items()))

    def broker(self, name: str) -> BrokerMetadata | None:
        """Return the lasting key of a broker; None: it is not registered."""
        return self._brokers.get(name)

    def availability(self, name: str) -> BrokerAvailability | None:
        """Return the availability of a broker, with its address; None: it is not alive."""
        return self._available.get(name)

    def _brokers_changed(self, _: Set[str]) -> None:
        with self._lock:
            if self._is_closed:
                return
        self._listener.brokers_changed()

    def close(self) -> None:
        """Stop following the store."""
        with self._lock:
            self._is_closed = True
            folders = list(self._states.values())
            self._states = {}
        self._topics.close()
        self._brokers.close()
        self._available.close()
        for folder in folders:
            folder.close()
