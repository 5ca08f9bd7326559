# What an append changes in the state of the producers; see producer_state_manager_base.pyx.
from libc.stdint cimport int64_t

from pyreplog._native.kafka.record_batch cimport RecordBatchHeader
from pyreplog._native.partition.producer_states_base cimport ProducerStatesBase


cdef class ProducerStateManagerBase:
    cdef public ProducerStatesBase producers
    cdef public object transactions, _replayed
    cdef public int64_t _segment_bytes
    cpdef appended(self, RecordBatchHeader head, object marker, object before, object end, int64_t time_us)
    cpdef apply(self, RecordBatchHeader head, object marker, object first, object end, int64_t time_us)
