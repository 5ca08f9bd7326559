"""CleanedSegmentFetcher: a follower copies the segments that its leader has compacted, byte for byte."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from pyreplog.errors import PeerError
from pyreplog.future import AppendFuture
from pyreplog.partition.broker_answers import wait_for_answer
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import (
    CleanedSegments,
    CleanedSegmentsRequest,
    SegmentPiece,
    SegmentReadRequest,
)

if TYPE_CHECKING:
    from pyreplog.partition.partition import MirroredSegments, Partition
    from pyreplog.partition.store.segment_copy import SegmentDigest

logger = logging.getLogger(__name__)

T = TypeVar("T")

PIECE_BYTES = 1 << 20
"""Bytes of a segment in one request."""
_ANSWER_S = 30.0


@runtime_checkable
class SegmentTransport(Protocol):
    """Sends the requests for compacted segments to other brokers. Any thread may use it; it does not block.

    A future fails with a PeerError if there is no answer.
    """

    def cleaned_segments(self, broker: str, request: CleanedSegmentsRequest) -> AppendFuture[CleanedSegments]:
        """Ask a leader which segments it has compacted; see `Partition.cleaned_segments`."""
        ...

    def read_segment(self, broker: str, request: SegmentReadRequest) -> AppendFuture[SegmentPiece]:
        """Read bytes of a compacted segment of a leader; see `Partition.read_segment`."""
        ...


class CleanedSegmentFetcher:
    """Copies the compacted segments of leaders, one partition at a time. One thread.

    Args:
        transport: transport to other brokers.
        stopping: set when the broker is stopping.
    """

    def __init__(self, transport: SegmentTransport, stopping: threading.Event) -> None:
        self._transport, self._stopping = transport, stopping
        self._unreachable: set[str] = set()

    def fetch(self, partition: Partition) -> int:
        """Replace sealed segments of a follower by its leader's compacted ones, in order.

        Args:
            partition: the replica. The call has no effect if it is not a follower, or is compacted further than its
                leader.

        Returns:
            Number of replaced segments.

        Raises:
            StreamError, CorruptionError: the bytes are not those of the segment that the leader has listed. A later
                call tries again.
            ReplogError, OSError: the leader did not answer, or the disk failed.
        """
        mirrored = partition.begin_mirroring()
        if mirrored is None or mirrored.leader in self._unreachable:
            return 0
        try:
            return self._fetch(partition, mirrored)
        except PeerError:
            self._unreachable.add(mirrored.leader)
            raise

    def begin_round(self) -> None:
        """Try all leaders again. Within a round, a leader that did not answer for one partition is not asked about
        others."""
        self._unreachable.clear()

    def _fetch(self, partition: Partition, mirrored: MirroredSegments) -> int:
        name, epoch = partition.name, mirrored.epoch
        request = CleanedSegmentsRequest(name, partition.member, epoch, mirrored.cleaned)
        answer = self._wait(self._transport.cleaned_segments(mirrored.leader, request))
        if answer.code is not ErrorCode.NONE or answer.cleaned < mirrored.cleaned:
            return 0
        replaced, digests = 0, partition.segment_digests(answer.cleaned)
        for digest in answer.segments:
            own = digests.get(digest.base)
            if digest.base < mirrored.start or own == digest:
                continue
            if own is None or (own.first, own.end) != (digest.first, digest.end):
                return replaced  # it is not sealed, or not committed, here yet
            if not self._fetch_segment(partition, mirrored, digest):
                return replaced
            replaced += 1
        if answer.cleaned > mirrored.cleaned and partition.end_mirroring(mirrored, answer.cleaned):
            request = request._replace(cleaned=answer.cleaned)
            self._wait(self._transport.cleaned_segments(mirrored.leader, request))  # the leader waits for it
        return replaced

    def _fetch_segment(self, partition: Partition, mirrored: MirroredSegments, digest: SegmentDigest) -> bool:
        """Copy a segment; return whether it was replaced. False: the leader's segment has changed, or it is not the
        leader any more."""
        copy = partition.begin_segment_copy(digest)
        try:
            while copy.size < digest.size:
                size = min(PIECE_BYTES, digest.size - copy.size)
                request = SegmentReadRequest(partition.name, mirrored.epoch, digest.base, copy.size, size)
                piece = self._wait(self._transport.read_segment(mirrored.leader, request))
                if piece.code is not ErrorCode.NONE:
                    return False
                copy.write(memoryview(piece.data))
            copy.finish()
            return partition.take_over_segment(mirrored, copy)
        finally:
            copy.discard()

    def _wait(self, future: AppendFuture[T]) -> T:
        text = "the leader did not answer a request for its compacted segments"
        return wait_for_answer(future, _ANSWER_S, self._stopping.is_set, text)
