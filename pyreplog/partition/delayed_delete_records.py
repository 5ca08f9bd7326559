"""Deletions of records that wait until all live replicas have carried them out (KIP-107)."""

from __future__ import annotations

from _thread import allocate_lock
from functools import partial
from typing import NamedTuple

from pyreplog.errors import OutcomeUnknownError
from pyreplog.future import AppendFuture, set_result
from pyreplog.partition.partition import DeletedRecords, Partition
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory


class DeleteRecordsResponse(NamedTuple):
    """The outcome of a deletion in one partition.

    Attributes:
        code: NONE, or the error. After REQUEST_TIMED_OUT and NOT_LEADER_OR_FOLLOWER some replicas may have deleted the
            records.
        low_watermark: offset before which all live replicas have deleted the records; -1: unknown.
        message: the error in words.
    """

    code: ErrorCode
    low_watermark: int = -1
    message: str = ""


DeleteRecordsResponses = dict[TopicPartition, DeleteRecordsResponse]


class DelayedDeleteRecords:
    """A DeleteRecords request. It is complete when each of its partitions has an outcome.

    Args:
        responses: responses of the partitions that do not wait.
        pending: the other partitions, with the records that their leaders have deleted; at least one.
        future: future of all responses.
    """

    __slots__ = ("_future", "_lock", "_pending", "_responses")

    def __init__(
        self, responses: DeleteRecordsResponses, pending: dict[TopicPartition, tuple[Partition, DeletedRecords]],
        future: AppendFuture[DeleteRecordsResponses],
    ) -> None:  # fmt: skip
        self._responses, self._pending, self._future = responses, pending, future
        self._lock = allocate_lock()

    def watch(self, purgatory: Purgatory, deadline_us: int) -> None:
        """Wait, without holding locks. A role that ended before it was watched has woken no request, so it is checked
        again."""
        for name, (partition, deleted) in list(self._pending.items()):
            wait = AppendFuture[None](None)
            wait.add_done_callback(partial(self._wait_ended, name))
            entry = purgatory.watch(deleted.role.low_watermark_key, deleted.before, wait, deadline_us)
            low = partition.low_watermark(deleted.role)
            if low is None or low >= deleted.before:
                purgatory.cancel(entry)
                self._complete(name, _response(low))

    def _wait_ended(self, name: TopicPartition, wait: AppendFuture[None]) -> None:
        """Complete a partition after its wait, which ends at the low watermark, with the role or at the time-out."""
        pending = self._pending.get(name)
        if pending is None:
            return
        partition, deleted = pending
        low = partition.low_watermark(deleted.role)
        if low is not None and low < deleted.before:
            assert isinstance(wait.exception(), OutcomeUnknownError), "the low watermark has decreased"
            message = f"some replicas have not deleted the records before offset {deleted.before} yet"
            self._complete(name, DeleteRecordsResponse(ErrorCode.REQUEST_TIMED_OUT, -1, message))
        else:
            self._complete(name, _response(low))

    def _complete(self, name: TopicPartition, response: DeleteRecordsResponse) -> None:
        """Note the outcome of a partition, once; complete the request with the last one."""
        with self._lock:
            if self._pending.pop(name, None) is None:
                return
            self._responses[name] = response
            is_last = not self._pending
        if is_last:
            set_result(self._future, self._responses)


def _response(low_watermark: int | None) -> DeleteRecordsResponse:
    if low_watermark is None:
        return DeleteRecordsResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return DeleteRecordsResponse(ErrorCode.NONE, low_watermark)
