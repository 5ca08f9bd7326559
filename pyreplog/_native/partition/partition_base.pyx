"""The append of a leader: from the checks that need the log to the response.

Threads: everything runs under the partition's lock.
"""

from libc.stdint cimport int64_t

from pyreplog._native.kafka.record_batch cimport CONTROL, TRANSACTIONAL, ProducedBatch, RecordBatchHeader
from pyreplog._native.log.log_position cimport entry_of
from pyreplog._native.machines.named cimport item, named
from pyreplog._native.partition.leading_replica_base cimport LeadingReplicaBase
from pyreplog._native.partition.partition_log_base cimport PartitionLogBase
from pyreplog._native.partition.producer_state_manager_base cimport ProducerStateManagerBase
from pyreplog._native.partition.producer_states_base cimport StoredBatch
from pyreplog._native.partition.replica_role_base cimport ReplicaRoleBase
from pyreplog.errors import InvalidArgumentError, RecordTooLargeError, ReplogError, WindowFullError

cdef enum:
    ACKS_ALL = -1
    # error codes of Kafka's protocol
    NO_ERROR = 0
    NOT_LEADER_OR_FOLLOWER = 6
    RECORD_LIST_TOO_LARGE = 18
    INVALID_PRODUCER_EPOCH = 47
    KAFKA_STORAGE_ERROR = 56
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89


cdef class PartitionBase:
    """Base of Partition, which describes the fields."""

    cdef public object _lock, _clock, _purgatory, config, failure
    cdef public LeadingReplicaBase _leading
    cdef public ReplicaRoleBase _role
    cdef public PartitionLogBase _log
    cdef public ProducerStateManagerBase _producers

    def append(self, records, checks, int acks, verification):
        """Append records, as leader. It does not sync them.

        Args:
            records: messages, or a record batch that has passed the checks that need no log.
            checks: checks of the origin.
            acks: acks of the produce: -1, 0 or 1.
            verification: token of the transaction from `begin_verification`; None: the coordinator was not asked.

        Returns:
            The response if the outcome is known, with NONE or the error; otherwise the pending append.
        """
        cdef list deferred = []
        try:
            with self._lock:
                return self.append_locked(records, checks, acks, verification, deferred)
        finally:
            self._run_deferred(deferred)

    cdef object append_locked(self, records, checks, int acks, verification, list deferred):
        cdef ProducedBatch batch = records if isinstance(records, ProducedBatch) else None
        cdef RecordBatchHeader head = None if batch is None else batch.header
        cdef bint is_produced = head is not None and head.producer_id >= 0
        cdef int64_t append_time_ms = -1, now_us = 0
        cdef LeadingReplicaBase leading = self._leading
        cdef object marker = None
        if self.failure is not None:
            return self._error_response(KAFKA_STORAGE_ERROR, str(self.failure))
        if leading is None:
            return self._error_response(NOT_LEADER_OR_FOLLOWER, f"{self.member.broker} does not lead {self.name}")
        epoch = leading.epoch.number
        if checks.leader_epoch is not None and checks.leader_epoch != epoch:
            return self._error_response(NOT_LEADER_OR_FOLLOWER, f"expected epoch {checks.leader_epoch}, found {epoch}")
        code = leading.admit(acks)
        if code:
            state = leading.isr.committed
            return self._error_response(code, f"{state.isr}: expected {state.effective_min_isr}")
        assert self._producers is not None, "a leader has replayed its log"
        if is_produced:
            if head.attributes & CONTROL:
                marker = self._marker_of(batch)
            response = self.check_producer(head, marker, checks, acks, verification)
            if response is not None:
                return response
        before = leading.end
        try:
            if batch is None:
                values, keys, event_times = records
                end = self._log.append_values(values, keys, event_times)
            else:
                if self.config.log_append_time:
                    append_time_ms = self._clock.now_us() // 1000
                end = self.append_batch(batch, entry_of(before), epoch, append_time_ms)
        except RecordTooLargeError as error:
            return self._error_response(RECORD_LIST_TOO_LARGE, str(error))
        except WindowFullError as error:
            return self._error_response(THROTTLING_QUOTA_EXCEEDED, str(error))
        except InvalidArgumentError as error:
            return self._error_response(INVALID_RECORD, str(error))
        except (ReplogError, OSError) as error:
            self._append_failed(error, deferred)
            return self._error_response(KAFKA_STORAGE_ERROR, str(error))
        if is_produced:
            now_us = self._clock.now_us()
        self._producers.appended(head, marker, before, end, now_us)
        return self.appended(leading, before, end, acks, append_time_ms, deferred)

    cdef object append_batch(self, ProducedBatch batch, int64_t offset, int64_t epoch, int64_t append_time_ms):
        cdef int64_t time_ms = batch.header.max_timestamp if append_time_ms < 0 else append_time_ms
        data = batch.stamp(offset, epoch, append_time_ms)
        return self._log.append_counted(
            data, batch.header.last_offset_delta + 1, None if time_ms < 0 else time_ms * 1000)

    cdef object check_producer(self, RecordBatchHeader head, marker, checks, int acks, verification):
        """Check a batch of a producer. Return None if it is to be appended; otherwise the response, for a duplicate
        with acks=-1 perhaps a pending append."""
        cdef ProducerStateManagerBase known = self._producers
        cdef StoredBatch *duplicate = NULL
        cdef int code = NO_ERROR
        if head.attributes & CONTROL:
            if marker is not None and checks.coordinator_epochs:
                version = checks.transaction_version or self.config.transaction_version
                code = known.transactions.check_marker(marker, version)
        else:
            if checks.producer_epochs:
                code = known.producers.check_sequences(
                    head.producer_id, head.producer_epoch, head.base_sequence, head.last_offset_delta + 1, &duplicate)
                if not checks.sequences and code != INVALID_PRODUCER_EPOCH:
                    code, duplicate = NO_ERROR, NULL
            if duplicate != NULL:
                return self._duplicate_response(duplicate.first_offset, duplicate.last_offset, acks)
            if code == NO_ERROR and head.attributes & TRANSACTIONAL and checks.transactions:
                code = known.transactions.check(head.producer_id, head.producer_epoch, verification, head.base_sequence)
        return None if code == NO_ERROR else self._error_response(code, f"producer {head.producer_id}")

    cdef object appended(self, LeadingReplicaBase leading, before, end, int acks, int64_t append_time_ms, list deferred):
        """Report an append to the state machine; return the response, or with acks=-1 perhaps a pending append."""
        cdef ReplicaRoleBase role = self._role
        cdef list effects
        cdef bint requires_sync = leading.config.requires_sync
        log_end, synced = end, leading.synced
        if requires_sync:  # otherwise the synced position does not count
            log_end, synced = self._log.ends
        effects = leading.appended(log_end, synced, self._clock.monotonic_us())
        if effects:
            self._perform(effects, deferred)
        role.advance_log_end(self._purgatory, end)
        code = self._no_error
        if acks == ACKS_ALL:
            if requires_sync:
                self._sync_soon(deferred)
            code = leading.check_enough_replicas_reach_offset(end)
        log_start = max(leading.log_start, entry_of(leading.start))
        response = named(self._response_type, (
            self._no_error if code is None else code, entry_of(before), entry_of(end), log_start, append_time_ms, "", ()))
        return self._pending_append(response, role, end) if code is None else response

    cpdef object _perform(self, list effects, list deferred):
        """Carry out effects of the state machine; return the response to a fetch if they have one."""
        cdef object answer = None, response
        for effect in effects:
            if type(effect) is self._high_watermark_advanced:  # first, because nearly every append has it
                self._log.show_high_watermark(item(effect, 0))
                self._advance_marks()
            else:
                response = self._perform_one(effect, deferred)
                answer = answer if response is None else response
        return answer

    cpdef _advance_marks(self):
        """Set the marks of the role, up to which requests read, and wake the requests that wait for them."""
        cdef LeadingReplicaBase leading = self._leading
        if leading is None:
            self._advance_follower_marks()
            return
        assert self._producers is not None, "a leader has replayed its log"
        high_watermark = leading.high_watermark
        stable = self._producers.transactions.last_stable(high_watermark)
        self._role.advance_all(self._purgatory, leading.end, high_watermark, stable)
