"""What the state machines of this package ask for, in order: each is done before the next one."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.messages import DivergingEpoch, Fetch, FetchedRecords, FetchRefused
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History


class AppendLeaderEpoch(NamedTuple):
    """Append the control record of an epoch, which has no entry number; report `appended`. Nothing comes before it."""

    epoch: LeaderEpoch


class AlterIsr(NamedTuple):
    """Set the partition's key if it has this version; report `altered`, `conflicted` or `alter_unknown`."""

    version: int
    state: PartitionState


class LoadState(NamedTuple):
    """Read the partition's key, until that succeeds; report `state_changed`."""


class HighWatermarkAdvanced(NamedTuple):
    """All before this position is committed: complete produces and fetches that wait, and tell followers."""

    high_watermark: LogPosition


class LeadershipLost(NamedTuple):
    """There is another leader: requests that wait fail with NOT_LEADER_OR_FOLLOWER."""

    version: int
    state: PartitionState


class SendFetchResponse(NamedTuple):
    """Send this answer to the follower that sent the fetch."""

    fetch: Fetch
    response: DivergingEpoch | FetchRefused


class ReadRecords(NamedTuple):
    """Answer a fetch with `LeadingReplica.response`: at once if there is anything to tell, otherwise when there is, or
    the follower's time is over."""

    fetch: Fetch


class SendFetch(NamedTuple):
    """Send a fetch to the leader. Report `answered`, or `timed_out`; earlier fetches are abandoned."""

    leader: str
    fetch: Fetch


class TruncateLog(NamedTuple):
    """Cut the log to a position, durably. Report `truncated`."""

    to: LogPosition


class ResetLog(NamedTuple):
    """Remove all records; the log begins and ends at a position, durably. Report `truncated`."""

    start: LogPosition
    history: History


class AppendRecords(NamedTuple):
    """Append these records of the leader's log. Report `appended`."""

    records: FetchedRecords


class ShowHighWatermark(NamedTuple):
    """Readers may read up to there."""

    high_watermark: LogPosition


class TrimLog(NamedTuple):
    """The leader's log begins there: records before it may go."""

    start: LogPosition


class AdvanceLogStart(NamedTuple):
    """The leader has deleted the records before this offset: readers see none of them any more. Never back."""

    offset: int


LeadingEffect: TypeAlias = (
    AppendLeaderEpoch | AlterIsr | LoadState | HighWatermarkAdvanced | LeadershipLost | SendFetchResponse | ReadRecords
)

FollowingEffect: TypeAlias = (
    SendFetch | TruncateLog | ResetLog | AppendRecords | ShowHighWatermark | TrimLog | AdvanceLogStart
)
