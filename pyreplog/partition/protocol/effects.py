"""The effects that the state machines of this package return. The caller carries each out before the next one."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.messages import DivergingEpoch, Fetch, FetchedRecords, FetchRefused
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History


class AppendLeaderEpoch(NamedTuple):
    """Append the control record of an epoch, which has no offset, before all other records; then call `appended`."""

    epoch: LeaderEpoch


class AlterIsr(NamedTuple):
    """Set the partition's key if it has this version; then call `altered`, `conflicted` or `alter_unknown`."""

    version: int
    state: PartitionState


class LoadState(NamedTuple):
    """Read the partition's key, with retries until that succeeds; then call `state_changed`."""


class HighWatermarkAdvanced(NamedTuple):
    """Complete waiting produces and fetches, and inform followers: all records before this position are committed."""

    high_watermark: LogPosition


class LeadershipLost(NamedTuple):
    """Fail waiting requests with NOT_LEADER_OR_FOLLOWER: another broker was elected leader."""

    version: int
    state: PartitionState


class SendFetchResponse(NamedTuple):
    """Send this response to the follower that sent the fetch."""

    fetch: Fetch
    response: DivergingEpoch | FetchRefused


class ReadRecords(NamedTuple):
    """Answer a fetch with `LeadingReplica.response`: at once if `has_news`, otherwise as soon as it has, or when the
    follower's maximal wait has passed."""

    fetch: Fetch


class SendFetch(NamedTuple):
    """Send a fetch to the leader, and abandon earlier ones; then call `answered` or `timed_out`."""

    leader: str
    fetch: Fetch


class TruncateLog(NamedTuple):
    """Truncate the log to a position, durably; then call `truncated`."""

    to: LogPosition


class ResetLog(NamedTuple):
    """Remove all records, durably, so that the log begins and ends at a position; then call `truncated`."""

    start: LogPosition
    history: History


class AppendRecords(NamedTuple):
    """Append these records of the leader's log; then call `appended`."""

    records: FetchedRecords


class ShowHighWatermark(NamedTuple):
    """Let readers read up to this position."""

    high_watermark: LogPosition


class TrimLog(NamedTuple):
    """Allow the removal of records before this position, where the leader's log begins."""

    start: LogPosition


class AdvanceLogStart(NamedTuple):
    """Hide the records before this offset from readers: the leader has deleted them. The offset never decreases."""

    offset: int


LeadingEffect: TypeAlias = (
    AppendLeaderEpoch | AlterIsr | LoadState | HighWatermarkAdvanced | LeadershipLost | SendFetchResponse | ReadRecords
)

FollowingEffect: TypeAlias = (
    SendFetch | TruncateLog | ResetLog | AppendRecords | ShowHighWatermark | TrimLog | AdvanceLogStart
)
