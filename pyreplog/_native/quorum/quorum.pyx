"""Quorums: which bookies an entry is written to, and which acks complete it. Numbers only: no policy, no clock, no I/O.

An ensemble of E bookies is known by its indexes 0 .. E - 1. Entry e is written to Qw of them, (e + k) mod E for k < Qw,
and is complete when Qa of those have acked it: E >= Qw >= Qa >= 1, the terms and rules of BookKeeper.

Wrong arguments raise InvalidArgumentError. Threads: any.
"""

from cpython.number cimport PyNumber_Index

from pyreplog.errors import InvalidArgumentError

MAX_ENSEMBLE = ENSEMBLE_LIMIT
MAX_ENTRY = ENTRY_LIMIT


# ---- arguments -------------------------------------------------------------------------------------------------


cdef int64_t int64_of(object value, str name) except? -1:
    try:
        return PyNumber_Index(value)    # Cython's own conversion would cut a float
    except OverflowError:
        raise InvalidArgumentError(f"{name}: expected a signed 64-bit integer, found {value}") from None


cdef int64_t entry_of(object value, str name) except -1:
    cdef int64_t entry = int64_of(value, name)
    if not 0 <= entry <= ENTRY_LIMIT:
        raise InvalidArgumentError(f"{name}: expected an entry id of 0 to {ENTRY_LIMIT}, found {entry}")
    return entry


cdef int within(object value, int64_t low, int64_t high, str name) except -1:
    """Check that a small number is at least `low` (0 or more) and at most `high`, and return it."""
    cdef int64_t number = int64_of(value, name)
    if not low <= number <= high:
        raise InvalidArgumentError(f"{name}: expected {low} to {high}, found {number}")
    return <int>number


cdef uint64_t indexes_of(object indexes, int ensemble, str name) except? 0:
    """Return a bit for each ensemble index; an index that is named twice counts once."""
    cdef uint64_t bits = 0
    for index in indexes:
        bits |= <uint64_t>1 << within(index, 0, ensemble - 1, name)
    return bits


cdef Quorums quorums_of(object ensemble_size, object write_quorum, object ack_quorum) except *:
    cdef Quorums q
    q.ensemble = within(ensemble_size, 1, ENSEMBLE_LIMIT, "ensemble_size")
    q.write = within(write_quorum, 1, q.ensemble, "write_quorum (at most the ensemble size)")
    q.ack = within(ack_quorum, 1, q.write, "ack_quorum (at most the write quorum)")
    return q


def check_quorums(ensemble_size, write_quorum, ack_quorum, /):
    """Raise InvalidArgumentError unless MAX_ENSEMBLE >= ensemble_size >= write_quorum >= ack_quorum >= 1."""
    quorums_of(ensemble_size, write_quorum, ack_quorum)


def write_set(entry, ensemble_size, write_quorum, /):
    """Return the ensemble indexes that store `entry`, a tuple: (entry + k) mod ensemble_size, k < write_quorum."""
    cdef Quorums q = quorums_of(ensemble_size, write_quorum, 1)
    cdef int64_t start = entry_of(entry, "entry") % q.ensemble
    cdef int k
    return tuple([(start + k) % q.ensemble for k in range(q.write)])


# ---- coverage --------------------------------------------------------------------------------------------------


cdef extern from *:
    int popcount "__builtin_popcountll"(unsigned long long word) noexcept nogil


cdef bint windows_covered(int ensemble, int write, int ack, uint64_t unknown) noexcept nogil:
    """Whether each run of `write` consecutive indexes has fewer than `ack` unknown ones."""
    cdef int start, k, count
    for start in range(ensemble):
        count = 0
        for k in range(write):
            count += unknown >> (start + k) % ensemble & 1
        if count >= ack:
            return False
    return True


def coverage(ensemble_size, write_quorum, ack_quorum, unknown, /):
    """Return whether an ensemble is covered though the bookies `unknown` (iterable of indexes) did not answer.

    It is covered if no entry can have been acked by unknown bookies alone: of each write set, fewer than ack_quorum are
    unknown. By write set rather than by ensemble as BookKeeper's RoundRobinDistributionSchedule: with more bookies
    than write_quorum fewer answers are needed, and they suffice.
    """
    cdef Quorums q = quorums_of(ensemble_size, write_quorum, ack_quorum)
    return windows_covered(q.ensemble, q.write, q.ack, indexes_of(unknown, q.ensemble, "unknown"))


def covers_cohort(cohort, ack_quorum, have, /):
    """Return whether fewer than ack_quorum members of `cohort` are not in `have` (both: iterables of indexes).

    Indexes in `have` that are not in the cohort do not count. The cohort is the ensemble or a write set: QuorumCoverage
    of Vanlightly's TLA+ specification. Raises InvalidArgumentError unless ack_quorum is from 1 to the cohort's size.
    """
    cdef uint64_t those = indexes_of(cohort, ENSEMBLE_LIMIT, "cohort")
    cdef uint64_t having = indexes_of(have, ENSEMBLE_LIMIT, "have")
    cdef int ack = within(ack_quorum, 1, popcount(those), "ack_quorum (at most the cohort's size)")
    return popcount(those & ~having) < ack


# ---- order statistic -------------------------------------------------------------------------------------------


cdef int64_t kth(int64_t *values, int count, int k) noexcept nogil:
    """Return the k-th largest value, 1 <= k <= count; leave the values sorted, largest first."""
    cdef int i, at
    cdef int64_t value
    for i in range(1, count):
        value, at = values[i], i
        while at > 0 and values[at - 1] < value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value
    return values[k - 1]


def kth_largest(values, k, /):
    """Return the k-th largest of up to MAX_ENSEMBLE numbers (int64), which at least k replicas have reached.

    The commit point of an unstriped log: k = replicas that must have it, RocketMQ's synchronous replication;
    k = len(values), the smallest: Kafka's high watermark over the log ends of the ISR.
    """
    cdef int64_t numbers[ENSEMBLE_LIMIT]
    cdef int count = 0
    for value in values:
        if count == ENSEMBLE_LIMIT:
            raise InvalidArgumentError(f"values: expected at most {ENSEMBLE_LIMIT}, found more")
        numbers[count] = int64_of(value, "value")
        count += 1
    return kth(numbers, count, within(k, 1, count, "k (at most the number of values)"))
