"""Broker: opens the replicas that the metadata store assigns to it, and runs the services with which they lead and
follow."""

from __future__ import annotations

import errno
import hashlib
import logging
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyreplog.clock import Clock, SystemClock
from pyreplog.disk_usage import size_on_disk
from pyreplog.errors import (
    CorruptionError,
    DiskError,
    LockedError,
    MissingIdentityError,
    NoSuchKeyError,
    NotALogError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.future import AppendFuture
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
from pyreplog.partition.cleaned_segment_fetcher import SegmentTransport
from pyreplog.partition.cleaner_thread import CleanerThread
from pyreplog.partition.client_wire import FEATURE
from pyreplog.partition.config import BrokerConfig, CompactionConfig, RetentionConfig, TopicConfig
from pyreplog.partition.controller import Controller
from pyreplog.partition.delayed_delete_records import DeleteRecordsResponses
from pyreplog.partition.log_syncer import LogSyncer
from pyreplog.partition.metadata.broker_registration import BrokerLease, register_broker
from pyreplog.partition.metadata.metadata_cache import MetadataCache, PartitionId
from pyreplog.partition.metadata.producer_ids import ProducerIds
from pyreplog.partition.metadata.state_store import StateStore, machine_version
from pyreplog.partition.metadata.topic_metadata import TopicMetadata, state_key
from pyreplog.partition.metadata.topic_settings import LOG_APPEND_TIME, TopicSettings
from pyreplog.partition.partition import Partition
from pyreplog.partition.producer_snapshot_fetcher import ProducerSnapshotFetcher, ProducerSnapshotTransport
from pyreplog.partition.protocol.leading import ReplicaConfig
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.partition.protocol.record_batch import AppendLimits
from pyreplog.partition.replica_fetcher import BrokerTransport, ReplicaFetcher
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.service import BrokerService
from pyreplog.partition.store.high_watermarks import HighWatermarkFile
from pyreplog.partition.store.log_directories import LogDirectory, ReplicaSize, describe_directory
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.partition.store.replica_directories import ReplicaDirectories
from pyreplog.partition.tcp_transport import TCPTransport
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.append_guard import AppendGuard
from pyreplog.partition.transactions.metadata_view import MetadataView
from pyreplog.partition.transactions.remote_verifier import RemoteVerifier
from pyreplog.partition.transactions.transaction_coordinator import TransactionConfig, TransactionCoordinator
from pyreplog.partition.transactions.transaction_transport import NoTransport, TransactionTransport
from pyreplog.partition.wire import SERVICE, VERSION
from pyreplog.purgatory import Purgatory

logger = logging.getLogger(__name__)

_EXPIRE_S = 0.01
_RETRY_S = 0.2
_RECHECK_S = 0.1
"""Seconds until retention checks a partition again of which more can be removed once it is replicated."""
_HOUSEKEEPING_S = 0.005
"""Seconds after which retention releases the clock's thread, once the present partition is done."""
_STRAY_CHECK_S = 60.0


@dataclass(frozen=True)
class _Replica:
    """An open replica. path: directory of its log."""

    partition: Partition
    log: PartitionLog
    path: Path


class _Housekeeper:
    """Applies the retention of all partitions, a few at a time, because other tasks wait for the thread. One thread.

    Args:
        replicas: the partitions.
        interval_s: seconds between two checks of a partition.
    """

    def __init__(self, replicas: ReplicaManager, interval_s: float) -> None:
        self._replicas, self._interval_s = replicas, interval_s
        self._next_s, self._recheck_s = time.monotonic() + interval_s, 0.0
        self._due: deque[Partition] = deque()
        self._recheck: list[Partition] = []  # checked again soon

    def run(self, now_s: float) -> None:
        """Check some of the partitions that are due; now_s: monotonic seconds."""
        if now_s >= self._next_s:
            self._next_s, self._due, self._recheck = now_s + self._interval_s, deque(self._replicas), []
        elif self._recheck and now_s >= self._recheck_s:
            self._due.extend(self._recheck)
            self._recheck.clear()
        while self._due:
            partition = self._due.popleft()
            if partition.apply_retention():
                self._recheck.append(partition)
                self._recheck_s = now_s + _RECHECK_S
            if time.monotonic() - now_s > _HOUSEKEEPING_S:
                return


def _retention(settings: TopicSettings) -> RetentionConfig:
    """Return the retention of a topic. If it is only compacted, segments are rolled by age, and not removed."""
    if settings.is_trimmed:
        return RetentionConfig(settings.retention_ms, settings.retention_bytes, settings.segment_ms)
    ages = [limit for limit in (settings.segment_ms, settings.max_compaction_lag_ms) if limit is not None]
    return RetentionConfig(segment_ms=min(ages, default=None))


class Broker(Handle):
    """A broker of partitions. It opens and removes replicas according to the metadata store, and closes them.

    Appends and fetches go to `replicas`. Other brokers reach it over TCP, or within the process by a transport. Any
    thread may use it; `close` blocks.

    Args:
        directory: directory of the broker, with the logs of its replicas; created if it does not exist.
        name: name of the broker, 1 to 100 letters, digits, ".", "_" and "-".
        store: metadata store. Close the broker before it.
        transport: transport to the other brokers; None: TCP.
        config: settings.
        host: host on which it listens for other brokers.
        port: port on which it listens; 0: a free one.
        address: address for other brokers, "host:port"; "": the one on which it listens.
        secret: the secret of the cluster.
        tls: contexts for servers and for clients; None: no TLS.
        limits: limits of connections.
        rack: rack for the placement of replicas; "": none.
        clock: source of time.
        replaces: whether an empty directory may replace the one with which the broker was created.
        directories: more directories for logs, on other disks; created if they do not exist. A new replica is placed in
            the directory with fewest replicas. If a disk fails, replicas on others continue. The identity of the broker
            stays in `directory`.
        files: opens and syncs files; None: the operating system's files.
        transaction_transport: sends the requests of transactions to other brokers; None: `transport`, if it supports
            them.

    Raises:
        LockedError: another process has a directory open.
        IdentityError: the directory does not belong to this broker; subclasses name the reason.
        CorruptionError: a file of the directory is damaged.
        InvalidArgumentError: the name is invalid.
        ReplogError: errors of the metadata store.

    Example:
        ```python
        with open_store("sqlite:metadata") as store, Broker(Path("data-a"), "a", store) as broker:
            print(broker.address)
        ```
    """

    def __init__(
        self, directory: Path, name: str, store: MetadataStore, transport: BrokerTransport | None = None, *,
        config: BrokerConfig | None = None, host: str = "127.0.0.1", port: int = 0, address: str = "",
        secret: Secret | None = None, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        limits: Limits | None = None, rack: str = "", clock: Clock | None = None, files: Files | None = None,
        replaces: bool = False, directories: Sequence[Path] = (),
        transaction_transport: TransactionTransport | None = None,
    ) -> None:  # fmt: skip
        self.name, self.directory, self.config = name, directory, config or BrokerConfig()
        self._store, self._clock = store, clock or SystemClock()
        self._files = files or RealFiles()
        self._open: dict[PartitionId, _Replica] = {}  # used by the thread of changes, and after its end
        self._open_numbers: dict[str, set[int]] = {}  # numbers of the partitions in `_open`, by topic id
        self._due: dict[PartitionId, float] = {}  # failed replicas, and when they are retried
        self._errors: dict[PartitionId, str] = {}  # why replicas could not be opened
        self._next_stray_check_s = 0.0
        self._replaceable: set[PartitionId] = set()  # set when it stops: others have all records of these replicas
        self._lock = threading.Condition()  # guards the fields below
        self._changed: set[PartitionId] = set()
        self._failures: set[PartitionId] = set()  # replicas whose logs have just failed
        self._changed_topics: set[str] = set()  # ids
        self._brokers_changed = self._stopping = False
        self._controller: Controller | None = None
        self._storing = threading.Lock()  # held while high watermarks are stored
        self._ticking = threading.Event()  # set to stop the clock's thread
        self._network = ExitStack()  # closes the connections to other brokers
        with ExitStack() as undo:
            self._files.make_directory(directory)
            lock = WriterLock(directory)
            undo.callback(lock.release)
            self._directories = ReplicaDirectories((directory, *directories), self._files)
            self._locks = {directory: lock}
            self._lock_directories(directories, undo)
            self.member = register_broker(directory, name, store, self._files, rack=rack, replaces=replaces)
            self._high_watermarks = HighWatermarkFile(directory, self._files)
            self._runtime = LogRuntime(locks=self._locks)
            undo.callback(self._runtime.close)
            self._syncer = LogSyncer()
            undo.callback(self._syncer.close)
            self._purgatory = Purgatory()
            self.replicas = ReplicaManager(self._purgatory, self._clock)
            """The partitions of this broker, for appends and fetches."""
            self.address = address
            """The address for other brokers, "host:port"; "": only the transport reaches it."""
            service = BrokerService(self.replicas)
            if transport is None:
                transport = self._serve(undo, service, cluster_id(store).hex(), host, port, secret, tls, limits)
            self._fetcher = ReplicaFetcher(self.member, transport, self.replicas.partition, self.config, self._clock)
            undo.callback(self._fetcher.close)
            self._snapshots = _snapshot_fetcher(transport, undo)
            self._lease = BrokerLease(store, self.member, self.config.lease_ms / 1000)
            undo.callback(self._lease.close)
            self.metadata = MetadataCache(store, self._Listener(self), self._retry)
            """The broker's cache of the metadata of partitions."""
            undo.callback(self.metadata.close)
            self._states = StateStore(store)
            undo.callback(self._states.close)
            self.producer_ids = ProducerIds(store)
            """Allocates ids of producers."""
            transactions = _transactions_over(transaction_transport or transport)
            self.transactions = self._make_coordinator(transactions)
            """The coordinator of the transactional ids whose partitions this broker leads."""
            undo.callback(self.transactions.close)
            service.verify = self.transactions.verify
            self.verifier = RemoteVerifier(name, self.transactions, transactions)
            """Sends verifications to the coordinators of all transactional ids."""
            self.append_guard = AppendGuard(self.replicas, self.verifier)
            """Appends for producers with a transactional id."""
            self._leave_isr_of_lost()
            self._lease.refresh(address=self.address)
            self._controller = Controller(
                store, self.metadata, self._lease, self._clock, self.config.balance_ms / 1000,
                (self.config.replace_after_ms or 0) / 1000,
            )  # fmt: skip
            undo.callback(self._controller.close)
            super().__init__(f"broker {self.member}")
            undo.pop_all()
        self.cleaner = self._make_cleaner(transport)
        """Compacts the partitions of this broker."""
        self._start_threads()

    def _make_cleaner(self, transport: BrokerTransport) -> CleanerThread:
        for_segments = transport if isinstance(transport, SegmentTransport) else None
        config = self.config
        return CleanerThread(self.replicas, config.cleaner_check_ms / 1000, config.cleaner_map_bytes, for_segments)

    def _start_threads(self) -> None:
        self._changes = threading.Thread(target=self._run, name="pyreplog-broker", daemon=True)
        self._clock_thread = threading.Thread(target=self._tick, name="pyreplog-broker-clock", daemon=True)
        self._changes.start()
        self._clock_thread.start()
        self.cleaner.start()

    def _lock_directories(self, directories: Sequence[Path], undo: ExitStack) -> None:
        """Lock the additional directories. A failed disk does not prevent the start."""
        for directory in directories:
            try:
                self._files.make_directory(directory)
                lock = WriterLock(directory)
            except LockedError:
                raise
            except (OSError, ReplogError) as error:
                self._directories.mark_failed(directory, error)
                continue
            undo.callback(lock.release)
            self._locks[directory] = lock

    def _serve(
        self, undo: ExitStack, service: BrokerService, cluster: str, host: str, port: int, secret: Secret | None,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None, limits: Limits | None,
    ) -> TCPTransport:  # fmt: skip
        """Listen for other brokers, and return the transport to them."""
        for_servers, for_clients = tls or (None, None)
        reactor = Reactor(clock=self._clock)
        undo.callback(reactor.close)
        self._network.callback(reactor.close)
        server = Server(
            reactor, service, host=host, port=port, secret=secret, tls=for_servers, limits=limits,
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

    def _make_coordinator(self, transport: TransactionTransport) -> TransactionCoordinator:
        config = TransactionConfig(
            max_timeout_ms=self.config.transaction_max_timeout_ms,
            expiration_ms=self.config.transactional_id_expiration_ms,
        )
        view = MetadataView(self._store, self.metadata, self.config, self._clock)
        return TransactionCoordinator(
            self.name, self.replicas, view, self.producer_ids, transport, self._clock, config
        )  # fmt: skip

    def _address_of(self, broker: str) -> str:
        living = self.metadata.availability(broker)
        return "" if living is None else living.address

    @property
    def is_registered(self) -> bool:
        """Whether the broker's lease is held, so that other brokers count it as alive."""
        return self._lease.is_held

    @property
    def store(self) -> MetadataStore:
        """The metadata store."""
        return self._store

    def advertise_kafka(self, address: str) -> None:
        """Publish the address of the Kafka listener to all brokers and their clients.

        Args:
            address: "host:port"; "": no listener.

        Raises:
            ReplogError: errors of the store. The broker retries later.
        """
        self._lease.refresh(kafka_address=address)

    def partition(self, topic: str, number: int) -> Partition | None:
        """Return this broker's replica of a partition; None: it has no such replica.

        Args:
            topic: name of the topic.
            number: number of the partition.
        """
        return self.replicas.partition(TopicPartition(topic, number))

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout: float = 30.0
    ) -> AppendFuture[DeleteRecordsResponses]:  # fmt: skip
        """Delete the records before an offset, in partitions that this broker leads (KIP-107). Blocks for the disk.

        Args:
            offsets: first offset that stays, by partition, at most the last stable offset; -1: the last stable offset.
            timeout: seconds that it waits at most for the other replicas.

        Returns:
            A future of the outcomes by partition; see `ReplicaManager.delete_records`.
        """
        return self.replicas.delete_records(offsets, timeout_ms=round(timeout * 1000), store=self._store_marks)

    @property
    def failed_replicas(self) -> dict[TopicPartition, str]:
        """The replicas of this broker whose logs failed or could not be opened, with the errors. They are retried."""
        names = {topic.topic_id: name for name, topic in self.metadata.topics().items()}
        failed = {
            TopicPartition(names[partition.topic_id], partition.number): error
            for partition, error in dict(self._errors).items()
            if partition.topic_id in names
        }
        for replica in self.replicas:
            if replica.failure is not None:
                failed[replica.name] = str(replica.failure)
        return failed

    @property
    def failed_directories(self) -> dict[Path, str]:
        """The directories whose disks failed, with the errors. They are retried."""
        return dict(self._directories.failed)

    def describe_directories(self, partitions: Set[TopicPartition] | None = None) -> list[LogDirectory]:
        """Return the directories with the sizes of their replicas and the free space of their disks. Blocks.

        Args:
            partitions: partitions whose replicas are included; None: all.
        """
        failed = self._directories.failed
        found: dict[Path, list[ReplicaSize]] = {path: [] for path in self._directories.paths if path not in failed}
        for replica in sorted(dict(self._open).values(), key=lambda replica: replica.partition.name):
            name, of_directory = replica.partition.name, found.get(replica.path.parent)
            if of_directory is None or (partitions is not None and name not in partitions):
                continue
            lag = 0
            with suppress(ReplogError):  # its log was closed meanwhile
                lag = max(replica.log.end_mark.entry - replica.partition.high_watermark.entry, 0)
            of_directory.append(ReplicaSize(name, size_on_disk(replica.path), lag))
        return [
            LogDirectory(path, failed[path]) if path in failed else describe_directory(path, tuple(found[path]))
            for path in self._directories.paths
        ]

    # ---- changes of metadata --------------------------------------------------------------------------------

    class _Listener:
        """Notes changes for the thread of changes."""

        def __init__(self, broker: Broker) -> None:
            self._broker = broker

        def topics_changed(self, topics: Set[str]) -> None:
            self._broker._retire_deleted(topics)
            self._broker._note_changes(topics=topics)

        def states_changed(self, partitions: Set[PartitionId]) -> None:
            self._broker._note_changes(partitions=partitions)

        def brokers_changed(self) -> None:
            self._broker._note_changes(brokers=True)

    def _retire_deleted(self, topics: Set[str]) -> None:
        """Stop serving the replicas of deleted topics at once, on the thread that has noted the deletion.

        The thread of changes removes them later, perhaps much later if its disks are slow. Meanwhile a new topic of the
        same name may exist, whose records must not be appended to the log of the old one.
        """
        for topic_id in topics:
            for number in tuple(self._open_numbers.get(topic_id, ())):
                replica = self._open.get(PartitionId(topic_id, number))
                if replica is not None and self._is_deleted(topic_id):
                    self._retire(replica)

    def _retire(self, replica: _Replica) -> None:
        if self.replicas.partition(replica.partition.name) is replica.partition:
            self.replicas.remove(replica.partition.name)

    def _is_deleted(self, topic_id: str) -> bool:
        named = self.metadata.topic_by_id(topic_id)
        return named is None or named[1].is_deleted

    def _note_changes(
        self, *, partitions: Set[PartitionId] = frozenset(), topics: Set[str] = frozenset(), brokers: bool = False
    ) -> None:  # fmt: skip
        with self._lock:
            self._changed |= partitions
            self._changed_topics |= topics
            self._brokers_changed |= brokers
            self._lock.notify()
        if self._controller is not None:
            self._controller.wake(None if brokers else partitions, topics)

    def _retry(self, call: Callable[[], None]) -> None:
        timer = threading.Timer(_RETRY_S, call)
        timer.daemon = True
        timer.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(self._has_changes, self._wait_s())
                if self._stopping:
                    return
                changed, self._changed = self._changed, set()
                failures, self._failures = self._failures, set()
                topics, self._changed_topics = self._changed_topics, set()
                brokers, self._brokers_changed = self._brokers_changed, False
            for partition in sorted(failures):
                self._note_failure(partition)
            now_s = time.monotonic()
            changed |= {partition for partition, due_s in self._due.items() if due_s <= now_s}
            if brokers:
                self.replicas.brokers_changed(self.metadata.brokers())
            for topic_id in topics:
                if (named := self.metadata.topic_by_id(topic_id)) is not None:
                    self._apply_settings(named[1])
                changed |= {PartitionId(topic_id, number) for number in self._open_numbers.get(topic_id, ())}
                changed |= {partition for partition, _ in self.metadata.partitions(topic_id)}
            # deleted ones first: a new topic may have the name of a deleted one
            for partition in sorted(changed, key=lambda each: (not self._is_deleted(each.topic_id), each)):
                self._apply(partition, self.metadata.topic_by_id(partition.topic_id))
            if now_s >= self._next_stray_check_s:
                self._check_strays(now_s)

    def _has_changes(self) -> bool:
        is_changed = self._changed or self._changed_topics or self._brokers_changed or self._failures
        return self._stopping or bool(is_changed)

    def _wait_s(self) -> float:
        """Return the seconds until the next retry or check."""
        return max(min([self._next_stray_check_s, *self._due.values()]) - time.monotonic(), 0.0)

    def _apply(self, partition: PartitionId, topic: tuple[str, TopicMetadata] | None) -> None:
        """Open, update or remove a replica, according to its state."""
        try:
            stored = self.metadata.state(partition)
            if topic is None or topic[1].is_deleted or (stored is not None and self.name not in stored[1].replicas):
                self._due.pop(partition, None)
                self._errors.pop(partition, None)
                self._remove(partition)
            elif stored is not None:
                replica = self._open.get(partition)
                is_failed = partition in self._errors or (replica is not None and replica.partition.failure is not None)
                if is_failed and time.monotonic() >= self._due.get(partition, 0.0):
                    replica = self._reopen(partition, *topic, stored[1])
                elif not is_failed and replica is None:
                    replica = self._open_replica(partition, *topic, stored[1])
                if replica is not None and self._is_deleted(partition.topic_id):  # while it was opened
                    self._remove(partition)
                elif replica is not None:
                    replica.partition.state_changed(machine_version(stored[0]), stored[1])
                else:
                    self._leave_isr(partition, topic[0], *stored)
        except (ReplogError, OSError) as error:
            logger.error("broker %s: %s cannot be served, which is retried: %s", self.name, partition, error)
            self._errors[partition] = str(error)
            self._retry_later(partition)
            if topic is not None and stored is not None and partition not in self._open:
                self._leave_isr(partition, topic[0], *stored)

    # ---- failures -------------------------------------------------------------------------------------------

    def _replica_failed(self, partition: PartitionId) -> None:
        """Note the failure of a replica's log. Any thread."""
        with self._lock:
            self._failures.add(partition)
            self._lock.notify()

    def _retry_later(self, partition: PartitionId) -> None:
        self._due[partition] = time.monotonic() + self.config.readmit_ms / 1000

    def _note_failure(self, partition: PartitionId) -> None:
        """Handle the failure of a log: it is retried later, and its disk is checked."""
        replica = self._open.get(partition)
        if replica is not None and replica.partition.failure is not None:  # otherwise it was opened again meanwhile
            self._retry_later(partition)
            self._check_disk(replica.path.parent)

    def _check_disk(self, directory: Path) -> None:
        """If the disk of a directory failed, take all replicas on it offline."""
        if self._directories.probe(directory):
            return
        failure = DiskError(errno.EIO, f"{directory}: the disk failed: {self._directories.failed[directory]}")
        for partition, replica in list(self._open.items()):
            if replica.path.parent == directory and replica.partition.failure is None:
                replica.partition.fail(failure)
                self._retry_later(partition)

    def _reopen(self, partition: PartitionId, name: str, topic: TopicMetadata, state: PartitionState) -> _Replica:
        """Open a replica again whose log failed.

        A damaged log is set aside, and copied again if other replicas have all committed records. If the disk failed,
        the new log is created on another disk.

        Raises:
            ReplogError, OSError: it fails again.
        """
        replica = self._stop_serving(partition)
        if replica is not None:
            with suppress(ReplogError, OSError):
                replica.partition.close()
            self._check_disk(replica.path.parent)
            if isinstance(replica.partition.failure, CorruptionError):
                self._set_aside_damaged(replica.path, state)
        opened = self._open_replica(partition, name, topic, state)
        self._due.pop(partition, None)
        self._errors.pop(partition, None)
        logger.warning("broker %s: the replica of %s works again", self.name, opened.partition.name)
        return opened

    def _is_replaceable(self, state: PartitionState) -> bool:
        """Return whether others have all committed records, and this replica is neither in ISR nor ELR."""
        members = {member.broker for member in (*state.isr, *state.elr)}
        return bool(members) and self.name not in members

    def _set_aside_damaged(self, path: Path, state: PartitionState) -> bool:
        if not self._is_replaceable(state) or not path.exists():
            return False
        aside = self._directories.set_aside(path, self._clock.now_us() // 1000, is_damaged=True)
        logger.warning("broker %s: a damaged log is copied again; its files are kept in %s for now", self.name, aside)
        return True

    def _leave_isr_of_lost(self) -> None:
        """Leave the ISR of partitions whose logs are lost, before other brokers count this one as alive.

        Otherwise it might be elected, and the other replicas would truncate their logs to its empty one.
        """
        for name in self._high_watermarks.names():
            topic_id, _, number = name.rpartition("-")
            if not number.isdecimal() or self._directories.find(name) or self._directories.has_stray(name):
                continue
            stored = self._store.get(state_key(topic_id, int(number)))
            after = None if stored is None else PartitionState.decode(stored.value).without(self.name)
            if stored is None or after is None:
                continue
            logger.error("broker %s: the log of %s is lost, it leaves the ISR", self.name, name)
            with suppress(VersionConflictError, NoSuchKeyError):  # checked again when the replica is opened
                self._store.put(state_key(topic_id, int(number)), after.encode(), stored.version)

    def _leave_isr(self, partition: PartitionId, name: str, version: int, state: PartitionState) -> None:
        """Remove a replica that is not open from the ISR."""
        after = state.without(self.name)
        if after is not None:
            logger.warning("broker %s leaves the ISR of %s: its log is not open", self.name, partition)
            topic_partition = TopicPartition(name, partition.number)
            states = self._states.of_topic(partition.topic_id)
            states.compare_and_set(topic_partition, machine_version(version), after, lambda _: None)

    # ---- replicas -------------------------------------------------------------------------------------------

    def _path(self, partition: PartitionId, state: PartitionState) -> Path:
        """Return the path of a replica's log, which may not exist yet.

        Raises:
            MissingIdentityError: the log is lost, with records for which this broker is in sync.
            OSError: all disks failed.
        """
        name = f"{partition.topic_id}-{partition.number}"
        paths = self._directories.find(name)
        for older in paths[1:]:
            self._directories.set_aside(older, self._clock.now_us() // 1000, is_damaged=True)
        path = paths[0] if paths else self._directories.restore(name)
        if path is not None:
            return path
        if self._high_watermarks.get(name) is not None and not self._is_replaceable(state):
            raise MissingIdentityError(
                f"expected the log of {name} in a directory of this broker, which is in sync, and found it in none"
            )
        return self._directories.choose(name)

    def _open_replica(self, partition: PartitionId, name: str, topic: TopicMetadata, state: PartitionState) -> _Replica:
        path = self._path(partition, state)
        try:
            return self._open_log(partition, path, name, topic)
        except (CorruptionError, NotALogError):
            if not self._set_aside_damaged(path, state):
                raise
        return self._open_log(partition, self._directories.choose(path.name), name, topic)

    def _open_log(self, partition: PartitionId, path: Path, name: str, topic: TopicMetadata) -> _Replica:
        log = PartitionLog.open_or_create(
            path, self.config.log_config(topic.config.segment_bytes), uuid=_log_uuid(partition), clock=self._clock,
            files=self._files, runtime=self._runtime,
        )  # fmt: skip
        try:
            high_watermark = log.restore_high_watermark(self._high_watermarks.get(path.name))
            replica = _Replica(
                Partition(
                    TopicPartition(name, partition.number), log, self.member, self._topic_config(topic),
                    store=self._states.of_topic(partition.topic_id), fetcher=self._fetcher, purgatory=self._purgatory,
                    clock=self._clock, brokers=self.metadata.brokers(), high_watermark=high_watermark,
                    files=self._files,
                    failed=partial(self._replica_failed, partition), request_sync=self._syncer.request,
                    request_snapshot=None if self._snapshots is None else self._snapshots.request,
                ),
                log, path,
            )  # fmt: skip
            self.replicas.add(replica.partition)
        except BaseException:
            log.close()
            raise
        self._open[partition] = replica
        self._open_numbers.setdefault(partition.topic_id, set()).add(partition.number)
        return replica

    def _stop_serving(self, partition: PartitionId) -> _Replica | None:
        """Stop serving a replica, and return it; None: it is not open."""
        replica = self._open.pop(partition, None)
        if replica is not None:
            numbers = self._open_numbers[partition.topic_id]
            numbers.discard(partition.number)
            if not numbers:
                del self._open_numbers[partition.topic_id]
            self._retire(replica)
        return replica

    def _check_strays(self, now_s: float) -> None:
        """Set aside strays: logs whose topics were deleted, or whose replicas moved, while this broker was down. Remove
        strays whose grace period is over."""
        topics = {topic.topic_id: topic for topic in self.metadata.topics().values()}
        if not self.metadata.wait(0) or not all(map(self.metadata.has_states, topics)):
            self._next_stray_check_s = now_s + _RETRY_S
            return
        self._next_stray_check_s = now_s + _STRAY_CHECK_S
        now_ms = self._clock.now_us() // 1000
        try:
            for path, topic_id, number in self._directories.replicas():
                partition = PartitionId(topic_id, number)
                replica = self._open.get(partition)
                if replica is not None and replica.path != path:  # replaced while its disk had failed
                    self._directories.set_aside(path, now_ms, is_damaged=True)
                elif replica is None and self._is_stray(partition, topics.get(topic_id)):
                    aside = self._directories.set_aside(path, now_ms, is_damaged=False)
                    logger.warning("broker %s: %s is a stray, it is renamed to %s", self.name, path, aside.name)
            for path in self._directories.remove_aside(now_ms - self.config.stray_grace_ms):
                logger.info("broker %s: %s is removed", self.name, path)
        except OSError as error:
            logger.warning("broker %s: the check for strays is retried: %s", self.name, error)

    def _is_stray(self, partition: PartitionId, topic: TopicMetadata | None) -> bool:
        """Return whether a replica is not assigned to this broker. A partition without a state is not a stray: it may
        get one."""
        if topic is None or topic.is_deleted:
            return True
        stored = self.metadata.state(partition)
        return stored is not None and self.name not in stored[1].replicas

    def _topic_config(self, topic: TopicMetadata) -> TopicConfig:
        settings = topic.config
        return TopicConfig(
            replicas=ReplicaConfig(requires_sync=settings.requires_sync, lag_us=self.config.lag_ms * 1000),
            limits=AppendLimits(
                settings.max_message_bytes, settings.timestamp_before_max_ms, settings.timestamp_after_max_ms
            ),
            log_append_time=settings.message_timestamp_type == LOG_APPEND_TIME,
            retention=_retention(settings),
            compaction=None if not settings.is_compacted else CompactionConfig(
                settings.min_dirty_ratio, settings.min_compaction_lag_ms, settings.max_compaction_lag_ms,
                settings.delete_retention_ms,
            ),
        )  # fmt: skip

    def _apply_settings(self, topic: TopicMetadata) -> None:
        """Apply the settings of a topic to its open replicas."""
        config = self._topic_config(topic)
        for number in self._open_numbers.get(topic.topic_id, ()):
            partition = self._open[PartitionId(topic.topic_id, number)].partition
            if config != partition.config:
                partition.config_changed(config)

    def _remove(self, partition: PartitionId) -> None:
        """Close a replica and remove its log: the topic was deleted, or others replicate the partition."""
        replica = self._stop_serving(partition)
        if replica is None:
            return
        self._fetcher.forget(replica.partition.name)
        replica.partition.close()
        self._directories.remove(replica.path)
        logger.info("broker %s: the replica of %s is removed", self.name, replica.partition.name)

    # ---- the clock's thread ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        isr_s = self.config.lag_ms / 2000
        expiry_s = self.config.producer_expiration_check_ms / 1000
        periods_s = isr_s, self.config.checkpoint_ms / 1000, 0.0, expiry_s
        next_isr, next_store, next_sync, next_expiry = (time.monotonic() + seconds for seconds in periods_s)
        housekeeper = _Housekeeper(self.replicas, self.config.retention_check_ms / 1000)
        sync_s = self.config.sync_ms / 1000
        while not self._ticking.wait(min(_EXPIRE_S, sync_s) if self.replicas.durable_partitions else _EXPIRE_S):
            now = time.monotonic()
            self.replicas.expire()
            self.transactions.expire()
            if now >= next_sync:
                next_sync = now + sync_s
                for partition in self.replicas.durable_partitions:
                    if partition.needs_sync:
                        self._syncer.request(partition)
            if now >= next_isr:
                next_isr = now + isr_s
                self.replicas.check_isr()
            if now >= next_expiry:
                next_expiry = now + expiry_s
                self.replicas.expire_producers(self.config.producer_expiration_ms * 1000)
            if now >= next_store:
                next_store = now + self.config.checkpoint_ms / 1000
                self._refresh()
                self._store_high_watermarks()
                self.replicas.write_producer_snapshots()
            housekeeper.run(now)

    def _refresh(self) -> None:
        try:
            self._lease.refresh()
        except ReplogError as error:
            logger.warning("broker %s is not registered, which is retried: %s", self.name, error)

    def _store_marks(self) -> None:
        """Store the high watermarks and log start offsets of all replicas. Raises OSError."""
        with self._storing:
            marks = {}
            for replica in list(self._open.values()):
                if replica.log.is_usable:
                    marks[replica.path.name] = replica.log.stored_high_watermark
            for partition in list(self._due):  # keeps the proof that the broker had this log, which may be lost
                name = f"{partition.topic_id}-{partition.number}"
                marks.setdefault(name, self._high_watermarks.get(name))
            self._high_watermarks.store(marks)

    def _store_high_watermarks(self) -> None:
        try:
            self._store_marks()
        except OSError as error:
            logger.warning("broker %s: the high watermarks are not stored: %s", self.name, error)

    # ---- close ----------------------------------------------------------------------------------------------

    def _do_close(self) -> None:
        """Hand over the leaderships, then close all replicas, so that the next start is a clean one."""
        with ExitStack() as stack:
            for lock in self._locks.values():
                stack.callback(lock.release)
            stack.callback(self._runtime.close)
            stack.callback(self._lease.close)
            stack.callback(self._close_replicas)
            stack.callback(self._syncer.close)
            stack.callback(self._states.close)
            stack.callback(self.metadata.close)
            stack.callback(self._network.close)
            stack.callback(self._fetcher.close)
            if self._snapshots is not None:
                stack.callback(self._snapshots.close)
            if self._controller is not None:
                stack.callback(self._controller.close)
            stack.callback(self._stop_threads)
            stack.callback(self.transactions.close)
            self._hand_over()

    def _hand_over(self) -> None:
        deadline = time.monotonic() + self.config.stop_ms / 1000
        try:
            self._lease.refresh(is_stopping=True)
        except ReplogError as error:
            logger.warning("broker %s stops without handing over its leaderships: %s", self.name, error)
            return
        while time.monotonic() < deadline and any(self._can_hand_over(partition) for partition in self.replicas):
            time.sleep(_EXPIRE_S)

    def _can_hand_over(self, partition: Partition) -> bool:
        """Return whether this broker leads a partition that another replica could lead."""
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
        self.cleaner.stop()
        states = {partition: self.metadata.state(partition) for partition in self._open}
        self._replaceable = {
            partition for partition, stored in states.items() if stored is not None and self._is_replaceable(stored[1])
        }

    def _close_replicas(self) -> None:
        """Sync and close all logs. The next start is a clean one only if this succeeded for all replicas whose records
        count."""
        self.replicas.close_sessions()
        self._store_high_watermarks()
        is_clean = True
        for partition, replica in self._open.items():
            self.replicas.remove(replica.partition.name)
            counts = partition not in self._replaceable
            is_clean = is_clean and (replica.partition.failure is None or not counts)
            try:
                replica.log.sync()
                replica.partition.close()
            except (ReplogError, OSError) as error:
                is_clean = is_clean and not counts
                logger.error("broker %s: %s is not closed cleanly: %s", self.name, replica.path, error)
        if is_clean:
            UncleanShutdownMarker(self.directory, self._files).remove()


def _snapshot_fetcher(transport: object, undo: ExitStack) -> ProducerSnapshotFetcher | None:
    """Return the fetcher of lost producer snapshots; None: the transport does not send its requests."""
    if not isinstance(transport, ProducerSnapshotTransport):
        return None
    fetcher = ProducerSnapshotFetcher(transport)
    undo.callback(fetcher.close)
    return fetcher


def _transactions_over(transport: object) -> TransactionTransport:
    return transport if isinstance(transport, TransactionTransport) else NoTransport()


def _log_uuid(partition: PartitionId) -> bytes:
    """Return the identity of a partition's log, the same at all replicas."""
    return hashlib.blake2b(f"{partition.topic_id}-{partition.number}".encode(), digest_size=16).digest()
