"""TransactionCoordinator: the transactional ids of the partitions of `__transaction_state` that this broker leads."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol

from pyreplog.clock import Clock
from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.handles import Handle
from pyreplog.partition.protocol.append_origin import AppendOrigin
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.requests import (
    FetchIsolation,
    PartitionCodes,
    PartitionProduceResponse,
    ProduceResponses,
    VerifyTransactionRequest,
    WriteMarkersRequest,
)
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.metadata_view import PartitionLeader
from pyreplog.partition.transactions.transaction_log import (
    TRANSACTION_STATE,
    decode_record_batch,
    encode_record_batch,
    partition_of,
)
from pyreplog.partition.transactions.transaction_machine import (
    AddPartitionsResult,
    AllocateProducerId,
    AppendState,
    Effects,
    EndTransactionResult,
    Forget,
    InitProducerIdResult,
    Reply,
    TransactionEffect,
    TransactionMachine,
    TransactionResult,
    WriteMarkers,
)
from pyreplog.partition.transactions.transaction_metadata import TransactionMetadata, TransactionState
from pyreplog.partition.transactions.transaction_transport import TransactionTransport

logger = logging.getLogger(__name__)

_ID_BYTES_MAX = 8192
_UNCERTAIN = (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR)
"""Errors after which a record may be in the log, even if its offset is not known."""


class ClusterView(Protocol):
    """The cluster metadata that a coordinator reads."""

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0: unknown. Does not block."""
        ...

    def leader_of(self, partition: TopicPartition) -> PartitionLeader | None:
        """Return the leader of a partition; None: it has no leader, or is unknown. Does not block."""
        ...

    def exists(self, partition: TopicPartition) -> bool:
        """Return whether a partition exists in the metadata store. May block; raises errors of the store."""
        ...

    def create_transaction_state(self) -> None:
        """Create the topic of the coordinators, if it does not exist. May block; raises errors of the store."""
        ...


class ProducerIdSource(Protocol):
    """Allocates producer ids."""

    def next(self) -> int:
        """Return an unused id. May block; raises errors of the store."""
        ...


class TransactionConfig(NamedTuple):
    """Settings of a coordinator. All times are milliseconds.

    Attributes:
        max_timeout_ms: the longest time-out of transactions (`transaction.max.timeout.ms`).
        expiration_ms: an id without requests is removed after this time (`transactional.id.expiration.ms`).
        append_timeout_ms: the outcome of an append counts as unknown after this time.
        backoff_ms: time before a retry.
        check_ms: interval of checks for transactions that timed out and ids that expired
            (`transaction.abort.timed.out.transaction.cleanup.interval.ms`).
        log_slack: a partition's log is trimmed when the number of its records exceeds that of its ids by so many.
    """

    max_timeout_ms: int = 900_000
    expiration_ms: int = 604_800_000
    append_timeout_ms: int = 5_000
    backoff_ms: int = 100
    check_ms: int = 1_000
    log_slack: int = 10_000


class TransactionDescription(NamedTuple):
    """The answer to DescribeTransactions for one id.

    Attributes:
        code: NONE, or the error.
        metadata: the stored state; None: an error.
    """

    code: ErrorCode
    metadata: TransactionMetadata | None = None


class ListTransactionsResult(NamedTuple):
    """The answer to ListTransactions.

    Attributes:
        code: NONE; COORDINATOR_LOAD_IN_PROGRESS: not all are loaded.
        transactions: ids with their stored states.
    """

    code: ErrorCode
    transactions: Sequence[tuple[str, TransactionMetadata]]


@dataclass(eq=False, slots=True)
class _Call:
    """A waiting request."""

    future: AppendFuture[Any]
    failure: Callable[[ErrorCode], TransactionResult]


@dataclass(eq=False, slots=True)
class _Entry:
    """One transactional id. lock: guards its machine; held only for a step of the machine."""

    transactional_id: str
    machine: TransactionMachine
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False, slots=True)
class _Shard:
    """A partition of `__transaction_state` while this broker leads it. The coordinator's lock guards all fields.

    Attributes:
        records: approximate number of records in the log.
        mark: offset to which the log is being trimmed; None: it is not being trimmed.
        unrefreshed: ids without a record from `mark` on.
    """

    partition: TopicPartition
    epoch: int
    is_loaded: bool = False
    is_resigned: bool = False
    entries: dict[str, _Entry] = field(default_factory=dict)
    calls: set[_Call] = field(default_factory=set)
    records: int = 0
    mark: int | None = None
    unrefreshed: set[str] = field(default_factory=set)


class TransactionCoordinator(Handle):
    """The coordinator of the transactional ids whose partitions this broker leads.

    Its methods are Kafka's requests. They do not block; each returns a future of the answer, which is completed when
    the change is committed in `__transaction_state`. Any thread may call them, without holding locks. The owner calls
    `expire` periodically.

    Args:
        broker: name of this broker.
        replicas: partitions of this broker.
        view: metadata of the cluster.
        producer_ids: allocates producer ids.
        transport: transport to other brokers.
        clock: source of time.
        config: settings.
    """

    def __init__(
        self, broker: str, replicas: ReplicaManager, view: ClusterView, producer_ids: ProducerIdSource,
        transport: TransactionTransport, clock: Clock, config: TransactionConfig | None = None,
    ) -> None:  # fmt: skip
        self._broker, self._replicas, self._view, self._producer_ids = broker, replicas, view, producer_ids
        self._transport, self._clock, self.config = transport, clock, config or TransactionConfig()
        self._lock = threading.Lock()
        self._shards: dict[int, _Shard] = {}  # by partition
        self._delayed: list[tuple[int, int, Callable[[], object]]] = []  # delayed calls, a heap by due time
        self._order = count()
        self._idempotent: set[_Call] = set()  # requests without a transactional id
        self._check_at_us = 0
        self._is_creating = self._is_closed = False
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="pyreplog-transactions")  # for calls that may block
        super().__init__(f"transaction coordinator of broker {broker}")
        replicas.watch_roles(self._role_changed)

    @property
    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    # ---- requests -------------------------------------------------------------------------------------------

    def find_coordinator(self, transactional_id: str) -> tuple[ErrorCode, str]:
        """Return NONE and the broker that coordinates an id; COORDINATOR_NOT_AVAILABLE and "": no broker does for now.

        The topic of the coordinators is created when it does not exist.
        """
        partition = self.partition_for(transactional_id)
        leader = None if partition is None else self._view.leader_of(partition)
        if leader is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ""
        return ErrorCode.NONE, leader.broker

    def partition_for(self, transactional_id: str) -> TopicPartition | None:
        """Return the partition of an id; None: the topic is being created."""
        partitions = self._view.partition_count(TRANSACTION_STATE)
        if partitions:
            return TopicPartition(TRANSACTION_STATE, partition_of(transactional_id, partitions))
        with self._lock:
            is_creating, self._is_creating = self._is_creating, True
        if not is_creating:
            self._submit(self._create)
        return None

    def create_topic(self) -> None:
        """Create the topic of the coordinators, if it does not exist. Blocks. Raises errors of the store."""
        self._view.create_transaction_state()

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, producer_id: int = -1, producer_epoch: int = -1, *,
        transaction_version: int = 1,
    ) -> AppendFuture[InitProducerIdResult]:  # fmt: skip
        """Initialise a producer (InitProducerId).

        Args:
            transactional_id: transactional id of the producer; None: it is idempotent only, and gets a new producer id.
            timeout_ms: time-out of its transactions, milliseconds.
            producer_id: id of a producer that requests its next epoch (KIP-360); -1: a new producer.
            producer_epoch: its present epoch; -1: a new producer.
            transaction_version: 2: its transactions end with higher epochs (KIP-890); 1: they keep the epoch.
        """
        future = AppendFuture[InitProducerIdResult]()
        expected = None if producer_id < 0 else (producer_id, producer_epoch)
        if transactional_id is None:
            call = _Call(future, InitProducerIdResult)
            with self._lock:
                is_closed = self._is_closed
                if not is_closed:
                    self._idempotent.add(call)
            if is_closed:
                set_result(future, InitProducerIdResult(ErrorCode.NOT_COORDINATOR))
            else:
                self._submit(partial(self._init_idempotent, call))
        elif not _is_transactional_id(transactional_id) or (producer_id < 0) != (producer_epoch < 0):
            set_result(future, InitProducerIdResult(ErrorCode.INVALID_REQUEST))
        elif not 0 < timeout_ms <= self.config.max_timeout_ms:
            set_result(future, InitProducerIdResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
        else:
            self._request(
                transactional_id, _Call(future, InitProducerIdResult),
                lambda machine, call: machine.init_producer_id(
                    call, timeout_ms, self._now_ms, expected, transaction_version
                ),
                creates=True,
            )  # fmt: skip
        return future

    def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition]
    ) -> AppendFuture[AddPartitionsResult]:  # fmt: skip
        """Add partitions to a transaction (AddPartitionsToTxn, AddOffsetsToTxn)."""
        future = AppendFuture[AddPartitionsResult]()
        self._request(
            transactional_id, _Call(future, partial(_all_partitions, partitions)),
            lambda machine, call: machine.add_partitions(call, producer_id, producer_epoch, partitions, self._now_ms),
        )  # fmt: skip
        return future

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition]
    ) -> AppendFuture[AddPartitionsResult]:  # fmt: skip
        """Return whether partitions belong to an open transaction (AddPartitionsToTxn, verify-only)."""
        future = AppendFuture[AddPartitionsResult]()

        def verify(machine: TransactionMachine, call: _Call) -> Effects:
            return [Reply(call, machine.verify_partitions(producer_id, producer_epoch, partitions))]

        self._request(transactional_id, _Call(future, partial(_all_partitions, partitions)), verify)
        return future

    def verify(self, request: VerifyTransactionRequest) -> AppendFuture[PartitionCodes]:
        """Answer another broker's request whether partitions belong to an open transaction."""
        future = AppendFuture[PartitionCodes]()
        transactional_id, producer_id, producer_epoch, partitions = request
        verified = self.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)
        verified.add_done_callback(lambda done: set_result(future, {**done.result().partitions}))
        return future

    def end_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, is_commit: bool,
        transaction_version: int = 1,
    ) -> AppendFuture[EndTransactionResult]:  # fmt: skip
        """Commit or abort a transaction (EndTxn)."""
        future = AppendFuture[EndTransactionResult]()
        self._request(
            transactional_id, _Call(future, EndTransactionResult),
            lambda machine, call: machine.end_transaction(
                call, producer_id, producer_epoch, self._now_ms, is_commit=is_commit,
                transaction_version=transaction_version,
            ),
        )  # fmt: skip
        return future

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Return the stored state of an id (DescribeTransactions)."""
        shard = self._shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return TransactionDescription(shard)
        with self._lock:
            entry = shard.entries.get(transactional_id)
        metadata = None if entry is None else entry.machine.metadata
        if metadata is None:
            return TransactionDescription(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return TransactionDescription(ErrorCode.NONE, metadata)

    def list_transactions(
        self, states: Collection[TransactionState] = (), producer_ids: Collection[int] = ()
    ) -> ListTransactionsResult:  # fmt: skip
        """Return the transactional ids of this broker (ListTransactions).

        Args:
            states: states of the returned ids; empty: any state.
            producer_ids: producers of the returned ids; empty: any producer.
        """
        with self._lock:
            shards = list(self._shards.values())
            entries = [entry for shard in shards for entry in shard.entries.values()]
        listed = [(entry.transactional_id, entry.machine.metadata) for entry in entries]
        found = [
            (name, metadata)
            for name, metadata in listed
            if metadata is not None
            and (not states or metadata.state in states)
            and (not producer_ids or metadata.producer_id in producer_ids)
        ]
        is_loaded = all(shard.is_loaded for shard in shards)
        return ListTransactionsResult(
            ErrorCode.NONE if is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, sorted(found, key=lambda at: at[0])
        )

    def _shard_of(self, transactional_id: str) -> _Shard | ErrorCode:
        partition = self.partition_for(transactional_id)
        if partition is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        with self._lock:
            shard = self._shards.get(partition.partition)
            if shard is None:
                leader = None if self._is_closed else self._view.leader_of(partition)
                is_expected = leader is not None and leader.broker == self._broker  # it will lead soon
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_expected else ErrorCode.NOT_COORDINATOR
            return shard if shard.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _request(
        self, transactional_id: str, call: _Call, event: Callable[[TransactionMachine, _Call], Effects], *,
        creates: bool = False,
    ) -> None:  # fmt: skip
        shard = self._shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            set_result(call.future, call.failure(shard))
            return
        with self._lock:
            is_resigned = shard.is_resigned
            entry = shard.entries.get(transactional_id)
            if not is_resigned and entry is None and creates:
                entry = shard.entries[transactional_id] = _Entry(transactional_id, TransactionMachine(shard.epoch))
            if not is_resigned and entry is not None:
                shard.calls.add(call)
        if is_resigned or entry is None:
            code = ErrorCode.NOT_COORDINATOR if is_resigned else ErrorCode.INVALID_PRODUCER_ID_MAPPING
            set_result(call.future, call.failure(code))
            return
        self._run(shard, entry, lambda machine: event(machine, call))

    # ---- roles ----------------------------------------------------------------------------------------------

    def _role_changed(self, partition: TopicPartition, _: int | None) -> None:
        """Adopt the present role of a replica: two threads may report changes in any order."""
        if partition.topic != TRANSACTION_STATE:
            return
        calls: set[_Call] = set()
        shard = None
        with self._lock:
            replica = self._replicas.partition(partition)
            epoch = None if replica is None or self._is_closed else replica.leader_epoch
            known = self._shards.get(partition.partition)
            if known is not None and known.epoch != epoch:
                del self._shards[partition.partition]
                known.is_resigned = True
                calls, known.calls = known.calls, set()
                known = None
            if known is None and epoch is not None:
                shard = self._shards[partition.partition] = _Shard(partition, epoch)
        for call in calls:
            set_result(call.future, call.failure(ErrorCode.NOT_COORDINATOR))
        if shard is not None:
            self._submit(partial(self._load, shard))

    def _load(self, shard: _Shard) -> None:
        """Read the committed records. They include all of earlier leaders once the high watermark has reached this
        epoch."""
        replica = self._replicas.partition(shard.partition)
        if shard.is_resigned or replica is None:
            return
        states: dict[str, TransactionMetadata] = {}
        records = 0
        try:
            known = replica.committed_range(shard.epoch)
            if known is None:
                self._schedule(self.config.backoff_ms // 10 + 1, partial(self._submit, partial(self._load, shard)))
                return
            for _, batch in replica.committed_batches(*known[:2]):
                for transactional_id, metadata in decode_record_batch(batch):
                    records += 1
                    if metadata is None:
                        states.pop(transactional_id, None)
                    else:
                        states[transactional_id] = metadata
        except (ReplogError, OSError) as error:
            logger.warning("%s: loading is retried: %s", shard.partition, error)
            self._schedule(self.config.backoff_ms, partial(self._submit, partial(self._load, shard)))
            return
        states = self._without_deleted(states)
        entries = {name: _Entry(name, TransactionMachine(shard.epoch, metadata)) for name, metadata in states.items()}
        with self._lock:
            if shard.is_resigned or replica.leader_epoch != shard.epoch:
                return  # `_role_changed` was called for the new role, or will be
            shard.entries, shard.records, shard.is_loaded = entries, records, True
        logger.info("%s: %d transactional ids are loaded in epoch %d", shard.partition, len(entries), shard.epoch)
        for entry in entries.values():
            self._run(shard, entry, TransactionMachine.begin)

    def _without_deleted(self, states: Mapping[str, TransactionMetadata]) -> dict[str, TransactionMetadata]:
        """Return states whose open transactions have no partitions of topics that were deleted.

        No request is served yet, so a topic that is created again now cannot be in a transaction: its producer adds it.
        Partitions stay if the metadata store does not answer; they get no marker, see `_find_deleted`.
        """
        is_open = TransactionState.ONGOING
        partitions = {each for state in states.values() if state.state is is_open for each in state.partitions}
        deleted: set[TopicPartition] = set()
        with suppress(ReplogError):
            for partition in partitions:
                if self._view.leader_of(partition) is None and not self._view.exists(partition):
                    deleted.add(partition)
        return {
            name: replace(state, partitions=state.partitions - deleted)
            if state.state is is_open and not deleted.isdisjoint(state.partitions)
            else state
            for name, state in states.items()
        }

    # ---- effects --------------------------------------------------------------------------------------------

    def _run(self, shard: _Shard, entry: _Entry, event: Callable[[TransactionMachine], Effects]) -> None:
        with entry.lock:
            effects = event(entry.machine)
        for effect in effects:
            self._perform(shard, entry, effect)

    def _perform(self, shard: _Shard, entry: _Entry, effect: TransactionEffect) -> None:
        match effect:
            case Reply(call, result):
                assert isinstance(call, _Call)
                with self._lock:
                    shard.calls.discard(call)
                set_result(call.future, result)
            case AppendState(metadata, is_again):
                append = partial(self._append, shard, entry, metadata)
                if is_again:
                    self._schedule(self.config.backoff_ms, append)
                else:
                    append()
            case AllocateProducerId():
                self._submit(partial(self._allocate, shard, entry))
            case WriteMarkers(number, marker, partitions, version):
                self._write_markers(shard, entry, number, marker, version, partitions)
            case Forget():
                with self._lock:
                    if shard.entries.get(entry.transactional_id) is entry:
                        del shard.entries[entry.transactional_id]
                    shard.unrefreshed.discard(entry.transactional_id)

    def _append(self, shard: _Shard, entry: _Entry, metadata: TransactionMetadata | None) -> None:
        if shard.is_resigned:
            return
        batch = encode_record_batch([(entry.transactional_id, metadata)], self._now_ms)
        future = self._replicas.append_records(
            ACKS_ALL, {shard.partition: batch}, timeout_ms=self.config.append_timeout_ms,
            origin=AppendOrigin.COORDINATOR, internal_topics_allowed=True, leader_epoch=shard.epoch,
        )  # fmt: skip
        future.add_done_callback(partial(self._appended, shard, entry))

    def _appended(self, shard: _Shard, entry: _Entry, future: AppendFuture[ProduceResponses]) -> None:
        response = future.result()[shard.partition]
        if shard.is_resigned:
            return
        if response.code is ErrorCode.NONE:
            with self._lock:
                shard.records += 1
                if shard.mark is not None and response.base_offset >= shard.mark:
                    shard.unrefreshed.discard(entry.transactional_id)
            self._run(shard, entry, lambda machine: machine.appended(self._now_ms))
            return
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if response.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            code = ErrorCode.NOT_COORDINATOR
        if _may_be_appended(response):
            logger.info("%s: the outcome of an append is unknown: %s", shard.partition, response.code.name)
            self._run(shard, entry, lambda machine: machine.append_unknown(code))
        else:
            self._run(shard, entry, lambda machine: machine.append_refused(code))

    def _allocate(self, shard: _Shard, entry: _Entry) -> None:
        try:
            producer_id = self._producer_ids.next()
        except ReplogError as error:
            logger.warning("%s: no producer id can be allocated for now: %s", entry.transactional_id, error)
            self._run(shard, entry, TransactionMachine.producer_id_refused)
            return
        self._run(shard, entry, lambda machine: machine.producer_id_allocated(producer_id))

    # ---- markers --------------------------------------------------------------------------------------------

    def _write_markers(
        self, shard: _Shard, entry: _Entry, number: int, marker: TransactionMarker, version: int,
        partitions: Iterable[TopicPartition],
    ) -> None:  # fmt: skip
        """Write a marker to partitions; writes without a success are retried for ever."""
        if shard.is_resigned:
            return
        by_leader: dict[str, dict[TopicPartition, int]] = {}
        leaderless = []
        for partition in sorted(partitions):
            leader = self._view.leader_of(partition)
            if leader is None:
                leaderless.append(partition)
            else:
                by_leader.setdefault(leader.broker, {})[partition] = leader.epoch
        if leaderless:
            self._submit(partial(self._find_deleted, shard, entry, number, marker, version, leaderless))
        for broker, led in by_leader.items():
            future = self._write_to(broker, WriteMarkersRequest(marker, version, led))
            future.add_done_callback(partial(self._markers_written, shard, entry, number, marker, version, [*led]))

    def _write_to(self, broker: str, request: WriteMarkersRequest) -> AppendFuture[PartitionCodes]:
        try:
            if broker == self._broker:
                return self._replicas.write_markers(request, timeout_ms=self.config.append_timeout_ms)
            return self._transport.write_markers(broker, request)
        except ReplogError as error:  # this broker is closing, or the other one's address is malformed
            failed = AppendFuture[PartitionCodes]()
            set_exception(failed, error)
            return failed

    def _markers_written(
        self, shard: _Shard, entry: _Entry, number: int, marker: TransactionMarker, version: int,
        partitions: list[TopicPartition], future: AppendFuture[PartitionCodes],
    ) -> None:  # fmt: skip
        codes = {} if future.exception() is not None else future.result()
        missing = [partition for partition in partitions if codes.get(partition) is not ErrorCode.NONE]
        for partition in partitions:
            if codes.get(partition) is ErrorCode.NONE:
                self._note_written(shard, entry, number, partition)
        if missing:
            why = future.exception() or codes
            logger.debug("%s: a marker is written again to %s: %s", entry.transactional_id, missing, why)
            again = partial(self._write_markers, shard, entry, number, marker, version, missing)
            self._schedule(self.config.backoff_ms, again)

    def _note_written(self, shard: _Shard, entry: _Entry, number: int, partition: TopicPartition) -> None:
        if not shard.is_resigned:
            self._run(shard, entry, lambda machine: machine.marker_written(number, partition, self._now_ms))

    def _find_deleted(
        self, shard: _Shard, entry: _Entry, number: int, marker: TransactionMarker, version: int,
        partitions: list[TopicPartition],
    ) -> None:  # fmt: skip
        """Retry partitions without a known leader. One that was deleted needs no marker, which only the metadata store
        shows."""
        missing = []
        for partition in partitions:
            is_deleted = False
            with suppress(ReplogError):
                is_deleted = not self._view.exists(partition)
            if is_deleted:
                self._note_written(shard, entry, number, partition)
            else:
                missing.append(partition)
        if missing:
            again = partial(self._write_markers, shard, entry, number, marker, version, missing)
            self._schedule(self.config.backoff_ms, again)

    # ---- time -----------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Run due retries, abort transactions that timed out, remove expired ids, trim logs."""
        now_us = self._clock.monotonic_us()
        due: list[Callable[[], object]] = []
        with self._lock:
            while self._delayed and self._delayed[0][0] <= now_us:
                due.append(heapq.heappop(self._delayed)[2])
            is_time = now_us >= self._check_at_us
            if is_time:
                self._check_at_us = now_us + self.config.check_ms * 1000
            shards = [shard for shard in self._shards.values() if shard.is_loaded] if is_time else []
        for call in due:
            call()
        now_ms, monotonic_ms, expiration_ms = self._now_ms, now_us // 1000, self.config.expiration_ms
        for shard in shards:
            with self._lock:
                entries = list(shard.entries.values())
            for entry in entries:
                self._run(shard, entry, lambda machine: machine.expire(now_ms, expiration_ms, monotonic_ms))
            self._trim_log(shard)

    def _trim_log(self, shard: _Shard) -> None:
        """Append the states of all ids again, and trim the records before them once they are committed."""
        replica = self._replicas.partition(shard.partition)
        if replica is None:
            return
        with self._lock:
            has_mark, is_long = shard.mark is not None, shard.records > len(shard.entries) + self.config.log_slack
        if not has_mark:
            code, latest = replica.latest_offset(FetchIsolation.HIGH_WATERMARK)
            if not is_long or code is not ErrorCode.NONE:
                return
            with self._lock:
                shard.mark = latest
                shard.unrefreshed = {
                    name for name, entry in shard.entries.items() if entry.machine.metadata is not None
                }
        with self._lock:
            entries = [shard.entries[name] for name in shard.unrefreshed if name in shard.entries]
        for entry in entries:
            self._run(shard, entry, TransactionMachine.refresh)
        with self._lock:
            mark = shard.mark
            if shard.unrefreshed or shard.is_resigned or mark is None:
                return
            shard.mark, shard.records = None, len(shard.entries)
        code = replica.trim(mark)
        logger.info("%s: the records before %d are trimmed: %s", shard.partition, mark, code.name)

    def _schedule(self, ms: int, call: Callable[[], object]) -> None:
        due_us = self._clock.monotonic_us() + ms * 1000
        with self._lock:
            heapq.heappush(self._delayed, (due_us, next(self._order), call))

    # ---- calls that may block -------------------------------------------------------------------------------

    def _submit(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the executor is shut down
            self._worker.submit(self._guarded, call)

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:  # no caller reads the pool's future
            logger.exception("broker %s: a step of the transaction coordinator failed", self._broker)

    def _create(self) -> None:
        try:
            self._view.create_transaction_state()
        except ReplogError as error:
            logger.warning("%s cannot be created, which is retried: %s", TRANSACTION_STATE, error)
        finally:
            with self._lock:
                self._is_creating = False

    def _init_idempotent(self, call: _Call) -> None:
        try:
            result = InitProducerIdResult(ErrorCode.NONE, self._producer_ids.next(), 0)
        except ReplogError as error:
            logger.warning("no producer id can be allocated for now: %s", error)
            result = InitProducerIdResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        with self._lock:
            self._idempotent.discard(call)
        set_result(call.future, result)

    def _do_close(self) -> None:
        """Answer waiting requests. Close this object before the partitions and the store."""
        with self._lock:
            self._is_closed = True
            shards, self._shards, self._delayed = list(self._shards.values()), {}, []
            for shard in shards:
                shard.is_resigned = True
            calls = [*self._idempotent, *(call for shard in shards for call in shard.calls)]
        for call in calls:
            set_result(call.future, call.failure(ErrorCode.NOT_COORDINATOR))
        self._worker.shutdown(wait=True, cancel_futures=True)


def _may_be_appended(response: PartitionProduceResponse) -> bool:
    return response.base_offset >= 0 or response.code in _UNCERTAIN


def _is_transactional_id(text: str) -> bool:
    """Return whether a record of the log can hold the id."""
    return 0 < len(text.encode()) <= _ID_BYTES_MAX


def _all_partitions(partitions: Collection[TopicPartition], code: ErrorCode) -> AddPartitionsResult:
    return AddPartitionsResult(code, dict.fromkeys(partitions, code))
