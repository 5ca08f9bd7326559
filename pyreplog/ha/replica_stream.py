"""ReplicaStream: what a master sends to one connected replica, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pyreplog._native.ha.master_base import ReplicaStreamBase
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.messages import Commit
from pyreplog.stream.rate_limiter import RateLimiter
from pyreplog.stream.sender import StreamSender

if TYPE_CHECKING:
    from pyreplog.ha.node_context import NodeContext
    from pyreplog.log.commit_log import CommitLog
    from pyreplog.net.connection import Connection
    from pyreplog.stream.log_position import LogPosition
    from pyreplog.stream.tail_watcher import TailWatcher


class ReplicaStream(ReplicaStreamBase):
    """The stream to one replica. Its methods are called by the master, from any thread.

    The commit point is sent by `send_commit`, at intervals: with every piece of data it would double the cost.
    """

    __slots__ = ("_sent_commit", "sender")

    def __init__(self, sender: StreamSender, ahead_bytes: int, segment_bytes: int) -> None:
        super().__init__(sender.feed, ahead_bytes, segment_bytes)
        self.sender = sender
        self._sent_commit: Commit | None = None

    @classmethod
    def begin(
        cls,
        context: NodeContext,
        connection: Connection,
        log: CommitLog,
        resume: LogPosition,
        growth: TailWatcher | None = None,
    ) -> Self:
        """Return the stream of an accepted replica. growth: as of StreamSender."""
        config = context.config
        sender = StreamSender(
            context.reactor, connection, log, resume.position, transfer_bytes=config.transfer_bytes, growth=growth,
            throttle=RateLimiter.of(config.throttle_bytes_per_s, context.now_us),
        )  # fmt: skip
        return cls(sender, config.transfer_bytes, log.segment_bytes)

    def push(self) -> None:
        """Send what is due, after the log has grown or the replica has reported."""
        if self.sender.feed.behind and self.is_due:
            self.sender.pump()

    def send_commit(self, commit: Commit, *, again: bool = False) -> None:
        """Send the commit point, if it has changed since the last message, or `again`."""
        if again or commit != self._sent_commit:
            self._sent_commit = commit
            self.sender.control(messages.encode(commit))
