"""Produces that wait until their records are committed."""

from __future__ import annotations

from _thread import allocate_lock

from pyreplog.errors import OutcomeUnknownError
from pyreplog.future import AppendFuture, set_result
from pyreplog.partition.partition import PendingAppend
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import FetchIsolation, ProduceResponses
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory


class _Wait(AppendFuture[None]):
    """The wait of one partition in the purgatory."""

    __slots__ = ("name",)

    def __init__(self, name: TopicPartition) -> None:
        super().__init__(None)
        self.name = name


class DelayedProduce:
    """A produce with acks=-1. It is complete when each of its partitions has an outcome, in any order; outcomes are
    independent of each other.

    A partition waits only for its high watermark. When that is reached, when the replica loses the leadership, or at
    the time-out, its state machine is asked for the outcome. Without one it is REQUEST_TIMED_OUT: unknown.

    Args:
        responses: responses of the partitions that do not wait.
        pending: the partitions that wait; at least one.
        future: future of all responses.
    """

    __slots__ = ("_future", "_lock", "_pending", "_responses")

    def __init__(
        self, responses: ProduceResponses, pending: dict[TopicPartition, PendingAppend],
        future: AppendFuture[ProduceResponses],
    ) -> None:  # fmt: skip
        self._responses, self._pending, self._future = responses, pending, future
        self._lock = allocate_lock()

    def watch(self, purgatory: Purgatory, deadline_us: int) -> None:
        """Wait, without holding locks. Check-watch-check: a high watermark that moved before it was watched has woken
        no request."""
        for name, pending in list(self._pending.items()):
            wait = _Wait(name)
            wait.add_done_callback(self._wait_ended)
            key = pending.role.keys[FetchIsolation.HIGH_WATERMARK]
            entry = purgatory.watch(key, pending.required.position, wait, deadline_us)
            code = pending.partition.check_enough_replicas(pending.role, pending.required)
            if code is not None:
                purgatory.cancel(entry)
                self._complete(name, code)

    def _wait_ended(self, wait: AppendFuture[None]) -> None:
        """Complete a partition after its wait, which ends at the high watermark, with the role or at the time-out."""
        assert isinstance(wait, _Wait)
        pending = self._pending.get(wait.name)
        if pending is None:
            return
        code = pending.partition.check_enough_replicas(pending.role, pending.required)
        if code is None:
            assert isinstance(wait.exception(), OutcomeUnknownError), "the high watermark has decreased"
            code = ErrorCode.REQUEST_TIMED_OUT
        self._complete(wait.name, code)

    def _complete(self, name: TopicPartition, code: ErrorCode) -> None:
        """Note the outcome of a partition, once; complete the produce with the last one."""
        with self._lock:
            pending = self._pending.pop(name, None)
            if pending is None:
                return
            self._responses[name] = pending.response._replace(code=code)
            is_last = not self._pending
        if is_last:
            set_result(self._future, self._responses)
