"""StateStore: compare-and-set of partitions' keys, for the state machines of a broker, which must not block."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyreplog.errors import NoSuchKeyError, ReplogError, VersionConflictError
from pyreplog.handles import Handle
from pyreplog.metadata.store import MetadataStore
from pyreplog.partition.metadata.topic_metadata import state_key
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.partition.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

_THREADS = 4
_BACKOFF_S = 0.1


def machine_version(version: int) -> int:
    """Return the version of a key for the state machines, whose versions begin with 1; those of stores begin with 0."""
    return version + 1


class StateStore(Handle):
    """Reads and writes the keys of partitions, in a few threads. Any thread may use it.

    Args:
        store: metadata store.

    Example:
        ```python
        states = StateStore(store)
        states.of_topic(topic.topic_id).compare_and_set(TopicPartition("orders", 0), version, state, print)
        ```
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="pyreplog-partition-states")
        super().__init__("store of partition states")

    def of_topic(self, topic_id: str) -> TopicStates:
        """Return the keys of the partitions of one topic.

        Args:
            topic_id: id of the topic. A replica of a deleted topic finds no key, also if a new topic has its name.
        """
        return TopicStates(self, topic_id)

    def compare_and_set(
        self, topic_id: str, partition: TopicPartition, version: int, state: PartitionState,
        done: Callable[[int | None], object],
    ) -> None:  # fmt: skip
        """Set a key if it has this version; see `PartitionStateStore`."""
        self._submit(lambda: self._compare_and_set(topic_id, partition, version, state, done))

    def load(self, topic_id: str, partition: TopicPartition, done: Callable[[int, PartitionState], object]) -> None:
        """Read a key, with retries until that succeeds; see `PartitionStateStore`. `done` is not called for a missing
        key."""
        self._submit(lambda: self._load(topic_id, partition, done))

    def _submit(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the pool was closed
            self._pool.submit(self._guarded, call)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # no caller reads the pool's future
            if not self._stopping.is_set():
                logger.exception("a change of a partition's state failed")

    def _compare_and_set(
        self, topic_id: str, partition: TopicPartition, version: int, state: PartitionState,
        done: Callable[[int | None], object],
    ) -> None:  # fmt: skip
        key = state_key(topic_id, partition.partition)
        try:
            result: int | None = machine_version(self._store.put(key, state.encode(), version - 1))
        except (VersionConflictError, NoSuchKeyError):
            result = 0
        except ReplogError as error:
            logger.info("%s: its state is tried again: %s", partition, error)
            result = None
            if self._stopping.wait(_BACKOFF_S):
                return
        done(result)

    def _load(self, topic_id: str, partition: TopicPartition, done: Callable[[int, PartitionState], object]) -> None:
        key = state_key(topic_id, partition.partition)
        while not self._stopping.is_set():
            try:
                stored = self._store.get(key)
            except ReplogError as error:
                logger.info("%s: its state is read again: %s", partition, error)
                self._stopping.wait(_BACKOFF_S)
                continue
            if stored is not None:
                done(machine_version(stored.version), PartitionState.decode(stored.value))
            return

    def _do_close(self) -> None:
        self._stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)


class TopicStates:
    """The keys of the partitions of one topic, as a `PartitionStateStore`. Made by `StateStore.of_topic`.

    Args:
        states: reads and writes the keys.
        topic_id: id of the topic.
    """

    def __init__(self, states: StateStore, topic_id: str) -> None:
        self._states, self._topic_id = states, topic_id

    def compare_and_set(
        self, partition: TopicPartition, version: int, state: PartitionState, done: Callable[[int | None], object]
    ) -> None:  # fmt: skip
        """See `PartitionStateStore`."""
        self._states.compare_and_set(self._topic_id, partition, version, state, done)

    def load(self, partition: TopicPartition, done: Callable[[int, PartitionState], object]) -> None:
        """See `PartitionStateStore`. `done` is not called for a missing key."""
        self._states.load(self._topic_id, partition, done)
