"""Broker: the replicas of one process, as the metadata store says which, with all that lets them lead and follow."""

from __future__ import annotations

import hashlib
import logging
import ssl
import threading
import time
from collections.abc import Callable, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import ReplogError
from pyreplog.handles import Handle
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.lock import WriterLock
from pyreplog.log.runtime import LogRuntime
from pyreplog.log.unclean_shutdown_marker import UncleanShutdownMarker
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from pyreplog.net.sockets import address_text
from pyreplog.partition.client_wire import FEATURE
from pyreplog.partition.config import BrokerConfig, TopicConfig
from pyreplog.partition.controller import Controller
from pyreplog.partition.metadata.broker_registration import BrokerLease, register_broker
from pyreplog.partition.metadata.metadata_cache import MetadataCache, PartitionId
from pyreplog.partition.metadata.state_store import StateStore, machine_version
from pyreplog.partition.metadata.topic_metadata import TopicMetadata
from pyreplog.partition.partition import Partition
from pyreplog.partition.protocol.leading import ReplicaConfig
from pyreplog.partition.replica_fetcher import BrokerTransport, ReplicaFetcher
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.service import BrokerService
from pyreplog.partition.store.high_watermarks import HighWatermarkFile
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.partition.tcp_transport import TCPTransport
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.wire import SERVICE, VERSION
from pyreplog.purgatory import Purgatory

logger = logging.getLogger(__name__)

_EXPIRE_S = 0.01
_RETRY_S = 0.2
_OPEN_AGAIN_S = 10.0


@dataclass(frozen=True)
class _Replica:
    """A replica that is open. path: of its log."""

    partition: Partition
    log: PartitionLog
    path: Path


class Broker(Handle):
    """A broker of partitions. It opens, moves and removes replicas as the metadata store says, and closes all of them.

    Appends and fetches go to `replicas`. Other brokers reach it over TCP, or within the process by a transport. Any
    thread may use it; `close` blocks.

    Args:
        directory: of the broker, with the logs of its replicas; made if it does not exist.
        name: of the broker, 1 to 100 letters, digits, ".", "_" and "-".
        store: metadata store. Close the broker before it.
        transport: to the other brokers; None: over TCP.
        config: settings.
        host: where it listens for other brokers.
        port: 0: a free one.
        address: where other brokers reach it, "host:port"; "": where it listens.
        secret: all brokers of the cluster know it.
        tls: contexts for servers and for clients; None: no TLS.
        limits: of connections.
        rack: for placement; "": none.
        clock: source of time.
        replaces: whether an empty directory may take the place of the one that the broker was made with.

    Raises:
        LockedError: another process has the directory open.
        IdentityError: the directory is not that of this broker; its subclasses say why.
        CorruptionError: a file of the directory is damaged.
        InvalidArgumentError: the name is invalid.
        ReplogError: errors of the metadata store.

    Example:
        ```python
        with open_store("sqlite:data/metadata") as store, Broker(Path("data/a"), "a", store) as broker:
            print(broker.address)
        ```
    """

    def __init__(
        self, directory: Path, name: str, store: MetadataStore, transport: BrokerTransport | None = None, *,
        config: BrokerConfig | None = None, host: str = "127.0.0.1", port: int = 0, address: str = "",
        secret: Secret | None = None, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        limits: Limits | None = None, rack: str = "", clock: Clock | None = None, files: Files | None = None,
        replaces: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.directory, self.config = name, directory, config or BrokerConfig()
        self._store, self._clock = store, clock or SystemClock()
        self._files = files or RealFiles()
        self._open: dict[PartitionId, _Replica] = {}  # for the thread of changes, and after its end
        self._refused: dict[PartitionId, float] = {}  # replicas that could not be opened, and when that is tried again
        self._lock = threading.Condition()  # guards what follows
        self._changed: set[PartitionId] = set()
        self._topics_changed = self._brokers_changed = False
        self._stopping = False
        self._controller: Controller | None = None
        self._ticking = threading.Event()  # set to end the clock's thread
        self._network = ExitStack()  # closes what talks to other brokers
        with ExitStack() as undo:
            self._files.make_directory(directory)
            lock = WriterLock(directory)
            undo.callback(lock.release)
            self.member = register_broker(directory, name, store, self._files, rack=rack, replaces=replaces)
            self._writer_lock = lock
            self._high_watermarks = HighWatermarkFile(directory, self._files)
            self._runtime = LogRuntime()
            undo.callback(self._runtime.close)
            self._purgatory = Purgatory()
            self.replicas = ReplicaManager(self._purgatory, self._clock)
            """The partitions of this broker, for appends and fetches."""
            self.address = address
            """Where other brokers reach it, "host:port"; "": by the transport alone."""
            if transport is None:
                transport = self._serve(undo, cluster_id(store).hex(), host, port, secret, tls, limits)
            self._fetcher = ReplicaFetcher(transport, self.replicas.partition, self.config, self._clock)
            undo.callback(self._fetcher.close)
            self._lease = BrokerLease(store, self.member, self.config.lease_ms / 1000)
            undo.callback(self._lease.close)
            self.metadata = MetadataCache(store, self._Listener(self), self._retry)
            """What the metadata store holds of partitions, as this broker knows it."""
            undo.callback(self.metadata.close)
            self._states = StateStore(store, self.metadata)
            undo.callback(self._states.close)
            self._lease.refresh(address=self.address)
            self._controller = Controller(store, self.metadata, self._lease, self._clock, self.config.balance_ms / 1000)
            undo.callback(self._controller.close)
            super().__init__(f"broker {self.member}")
            undo.pop_all()
        self._changes = threading.Thread(target=self._run, name="pyreplog-broker", daemon=True)
        self._clock_thread = threading.Thread(target=self._tick, name="pyreplog-broker-clock", daemon=True)
        self._changes.start()
        self._clock_thread.start()

    def _serve(
        self, undo: ExitStack, cluster: str, host: str, port: int, secret: Secret | None,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None, limits: Limits | None,
    ) -> TCPTransport:  # fmt: skip
        """Listen for other brokers, and return the transport to them."""
        for_servers, for_clients = tls or (None, None)
        reactor = Reactor(clock=self._clock)
        undo.callback(reactor.close)
        self._network.callback(reactor.close)
        server = Server(
            reactor, BrokerService(self.replicas), host=host, port=port, secret=secret, tls=for_servers, limits=limits,
            identity=NodeIdentity(
                node=self.name, cluster=cluster, service=SERVICE, version=VERSION, features=frozenset({FEATURE})
            ),
        )  # fmt: skip
        undo.callback(server.close)
        self._network.callback(server.close)
        transport = TCPTransport(
            reactor, self.name, cluster, self._address_of, secret=secret, tls=for_clients, limits=limits
        )  # fmt: skip
        undo.callback(transport.close)
        self._network.callback(transport.close)
        reactor.start()
        self.address = self.address or address_text(server.address)
        return transport

    def _address_of(self, broker: str) -> str:
        living = self.metadata.availability(broker)
        return "" if living is None else living.address

    @property
    def is_registered(self) -> bool:
        """Whether other brokers surely take this one for alive."""
        return self._lease.is_held

    def partition(self, topic: str, number: int) -> Partition | None:
        """Return a replica of this broker; None: it has none of this partition."""
        return self.replicas.partition(TopicPartition(topic, number))

    # ---- changes of metadata --------------------------------------------------------------------------------

    class _Listener:
        """Notes what changed, for the thread of changes."""

        def __init__(self, broker: Broker) -> None:
            self._broker = broker

        def topics_changed(self) -> None:
            self._broker._note(topics=True)

        def states_changed(self, partitions: Set[PartitionId]) -> None:
            self._broker._note(partitions=partitions)

        def brokers_changed(self) -> None:
            self._broker._note(brokers=True)

    def _note(self, *, partitions: Set[PartitionId] = frozenset(), topics: bool = False, brokers: bool = False) -> None:
        with self._lock:
            self._changed |= partitions
            self._topics_changed |= topics
            self._brokers_changed |= brokers
            self._lock.notify()
        if self._controller is not None:
            self._controller.wake()

    def _retry(self, call: Callable[[], None]) -> None:
        timer = threading.Timer(_RETRY_S, call)
        timer.daemon = True
        timer.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(self._has_changes, _OPEN_AGAIN_S if self._refused else None)
                if self._stopping:
                    return
                changed, self._changed = self._changed, set()
                topics, self._topics_changed = self._topics_changed, False
                brokers, self._brokers_changed = self._brokers_changed, False
            now_s = time.monotonic()
            changed |= {partition for partition, due_s in self._refused.items() if due_s <= now_s}
            if brokers:
                self.replicas.brokers_changed(self.metadata.brokers())
            names = {topic.topic_id: (name, topic) for name, topic in self.metadata.topics().items()}
            if topics:
                changed |= {partition for partition in self._open if partition.topic_id not in names}
                for topic_id in names:
                    changed |= {partition for partition, _ in self.metadata.partitions(topic_id)}
            for partition in sorted(changed):
                self._apply(partition, names.get(partition.topic_id))

    def _has_changes(self) -> bool:
        return self._stopping or bool(self._changed) or self._topics_changed or self._brokers_changed

    def _apply(self, partition: PartitionId, topic: tuple[str, TopicMetadata] | None) -> None:
        """Open, tell or remove a replica, as its state says."""
        self._refused.pop(partition, None)
        try:
            stored = self.metadata.state(partition)
            if topic is None or topic[1].is_deleted or (stored is not None and self.name not in stored[1].replicas):
                self._remove(partition)
            elif stored is not None:
                replica = self._open.get(partition) or self._open_replica(partition, *topic)
                replica.partition.state_changed(machine_version(stored[0]), stored[1])
        except (ReplogError, OSError) as error:
            logger.error("broker %s: %s cannot be served, which is tried again: %s", self.name, partition, error)
            self._refused[partition] = time.monotonic() + _OPEN_AGAIN_S

    def _path(self, partition: PartitionId) -> Path:
        return self.directory / f"{partition.topic_id}-{partition.number}"

    def _open_replica(self, partition: PartitionId, name: str, topic: TopicMetadata) -> _Replica:
        path = self._path(partition)
        log = PartitionLog.open_or_create(
            path, self.config.log_config(), uuid=_log_uuid(partition), clock=self._clock, files=self._files,
            runtime=self._runtime,
        )  # fmt: skip
        try:
            high_watermark = log.restore_high_watermark(self._high_watermarks.get(path.name))
            replica = _Replica(
                Partition(
                    TopicPartition(name, partition.number), log, self.member, self._topic_config(topic),
                    store=self._states, fetcher=self._fetcher, purgatory=self._purgatory, clock=self._clock,
                    brokers=self.metadata.brokers(), high_watermark=high_watermark,
                ),
                log, path,
            )  # fmt: skip
            self.replicas.add(replica.partition)
        except BaseException:
            log.close()
            raise
        self._open[partition] = replica
        return replica

    def _topic_config(self, topic: TopicMetadata) -> TopicConfig:
        replicas = ReplicaConfig(requires_sync=topic.requires_sync, lag_us=self.config.lag_ms * 1000)
        return TopicConfig(replicas=replicas)

    def _remove(self, partition: PartitionId) -> None:
        """Close a replica and remove its log: the topic was deleted, or others replicate the partition."""
        replica = self._open.pop(partition, None)
        if replica is None:
            return
        self.replicas.remove(replica.partition.name)
        replica.partition.close()
        self._files.remove_tree(replica.path)
        logger.info("broker %s: the replica of %s is removed", self.name, replica.partition.name)

    # ---- the clock's thread ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        isr_s = self.config.lag_ms / 2000
        next_isr, next_store, next_sync = (time.monotonic() + s for s in (isr_s, self.config.checkpoint_ms / 1000, 0.0))
        while not self._ticking.wait(min(_EXPIRE_S, self.config.sync_ms / 1000)):
            now = time.monotonic()
            self.replicas.expire()
            if now >= next_sync:
                next_sync = now + self.config.sync_ms / 1000
                for partition in self.replicas:
                    if partition.needs_sync:
                        partition.sync()
            if now >= next_isr:
                next_isr = now + isr_s
                self.replicas.check_isr()
            if now >= next_store:
                next_store = now + self.config.checkpoint_ms / 1000
                self._refresh()
                self._store_high_watermarks()

    def _refresh(self) -> None:
        try:
            self._lease.refresh()
        except ReplogError as error:
            logger.warning("broker %s is not registered, which is tried again: %s", self.name, error)

    def _store_high_watermarks(self) -> None:
        marks = {}
        for replica in list(self._open.values()):
            if replica.log.is_usable:
                marks[replica.path.name] = replica.log.stored_high_watermark
        try:
            self._high_watermarks.store(marks)
        except OSError as error:
            logger.warning("broker %s: the high watermarks are not stored: %s", self.name, error)

    # ---- the end --------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Hand over what it leads, then close all; after that its next start is a clean one."""
        with ExitStack() as stack:
            stack.callback(self._writer_lock.release)
            stack.callback(self._runtime.close)
            stack.callback(self._lease.close)
            stack.callback(self._close_replicas)
            stack.callback(self._states.close)
            stack.callback(self.metadata.close)
            stack.callback(self._network.close)
            stack.callback(self._fetcher.close)
            if self._controller is not None:
                stack.callback(self._controller.close)
            stack.callback(self._stop_threads)
            self._hand_over()

    def _hand_over(self) -> None:
        deadline = time.monotonic() + self.config.stop_ms / 1000
        try:
            self._lease.refresh(is_stopping=True)
        except ReplogError as error:
            logger.warning("broker %s leaves without handing over: %s", self.name, error)
            return
        while time.monotonic() < deadline and any(self._can_hand_over(partition) for partition in self.replicas):
            time.sleep(_EXPIRE_S)

    def _can_hand_over(self, partition: Partition) -> bool:
        """Whether it is led here, and another replica could lead it."""
        topic = self.metadata.topic(partition.name.topic)
        stored = None if topic is None else self.metadata.state(PartitionId(topic.topic_id, partition.name.partition))
        return partition.is_leader and stored is not None and len(stored[1].isr) > 1

    def _stop_threads(self) -> None:
        with self._lock:
            self._stopping = True
            self._lock.notify()
        self._ticking.set()
        self._changes.join()
        self._clock_thread.join()

    def _close_replicas(self) -> None:
        """Sync and close all logs; the next start is a clean one only if all of that succeeded."""
        self._store_high_watermarks()
        is_clean = True
        for replica in self._open.values():
            self.replicas.remove(replica.partition.name)
            is_clean = is_clean and replica.partition.failure is None
            try:
                replica.log.sync()
                replica.partition.close()
            except (ReplogError, OSError) as error:
                is_clean = False
                logger.error("broker %s: %s is not closed cleanly: %s", self.name, replica.path, error)
        if is_clean:
            UncleanShutdownMarker(self.directory, self._files).remove()


def _log_uuid(partition: PartitionId) -> bytes:
    """Return the identity of a partition's log, the same at all replicas."""
    return hashlib.blake2b(f"{partition.topic_id}-{partition.number}".encode(), digest_size=16).digest()
