"""AutoTopicCreationManager: creates topics that clients ask for, in the background (`auto.create.topics.enable`)."""

from __future__ import annotations

import logging
from _thread import allocate_lock
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from pyreplog.clock import Clock
from pyreplog.errors import ReplogError, TopicExistsError
from pyreplog.future import AppendFuture
from pyreplog.kafka.config import KafkaConfig
from pyreplog.metadata.store import MetadataStore
from pyreplog.partition.metadata.topic_metadata import create_topic
from pyreplog.partition.metadata.topic_settings import KAFKA_DEFAULTS

logger = logging.getLogger(__name__)

RETRY_US = 1_000_000
"""Minimum number of microseconds between two attempts to create a topic, since clients repeat their requests more
often."""


class AutoTopicCreationManager:
    """Creates each topic that clients ask for once, however many requests there are.

    As in Kafka, clients do not wait for the creation: they are told that the topic has no leaders, and ask again. A
    creation ends when the topic has leaders, or after a while without leaders. A failed creation is logged, and starts
    again at a later request of a client.

    Any thread may use it.

    Args:
        store: metadata store.
        config: settings of the listener, with those of new topics.
        clock: source of time, for the creation time of topics and for retries.
        executor: runs creations, which block for the store. After its shutdown no topic is created.
    """

    def __init__(self, store: MetadataStore, config: KafkaConfig, clock: Clock, executor: Executor) -> None:
        self._store, self._config, self._clock, self._executor = store, config, clock, executor
        self._lock = allocate_lock()  # guards the fields below
        self._inflight: set[str] = set()
        self._retry_at_us: dict[str, int] = {}  # time of the next attempt, for creations that failed

    def is_creating(self, name: str) -> bool:
        """Return whether this broker is creating a topic, so that clients must not use it yet.

        Args:
            name: name of the topic.
        """
        with self._lock:
            return name in self._inflight

    def create_topics(self, names: Iterable[str], wait_for_leaders: Callable[[str], AppendFuture[Any]]) -> None:
        """Start to create topics, except those whose creation is in progress or failed recently.

        The call never blocks.

        Args:
            names: names of topics that this broker does not know.
            wait_for_leaders: returns a future that is done when the named topic has leaders, or after a time-out.
        """
        now_us = self._clock.monotonic_us()
        with self._lock:
            self._retry_at_us = {name: at_us for name, at_us in self._retry_at_us.items() if at_us > now_us}
            wanted = [
                name for name in dict.fromkeys(names) if name not in self._inflight and name not in self._retry_at_us
            ]
            self._inflight.update(wanted)
        for name in wanted:
            with suppress(RuntimeError):  # the listener was closed
                self._executor.submit(self._create, name, wait_for_leaders)

    def _create(self, name: str, wait_for_leaders: Callable[[str], AppendFuture[Any]]) -> None:
        try:
            self._store_topic(name)
            wait_for_leaders(name).add_done_callback(lambda _: self._finish(name))
            return
        except ReplogError as error:
            logger.warning("topic %s, which a Kafka client asked for, was not created: %s", name, error)
        except Exception:
            logger.exception("topic %s, which a Kafka client asked for, was not created", name)
        with self._lock:
            self._retry_at_us[name] = self._clock.monotonic_us() + RETRY_US
        self._finish(name)

    def _finish(self, name: str) -> None:
        with self._lock:
            self._inflight.discard(name)

    def _store_topic(self, name: str) -> None:
        config = self._config
        with suppress(TopicExistsError):  # another broker created it, and this one does not know it yet
            create_topic(
                self._store, name, partitions=config.partitions, replication_factor=config.replication_factor,
                now_us=self._clock.now_us(),
                settings={**KAFKA_DEFAULTS, "min.insync.replicas": config.min_isr},
            )  # fmt: skip
            logger.info("topic %s was created, because a Kafka client asked for it", name)
