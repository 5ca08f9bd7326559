"""One replica of a master, as long as it is connected: what it is sent, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

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


class ReplicaStream:
    """The stream to one replica. Its master calls all of it, from any thread.

    A replica that has reported all it was sent gets more at once; one that has not gets it with its next report, or
    when `ahead_bytes` have come together: what many appends of a round trip leave goes out in one piece. The commit
    point is told by `tell`, now and then: with every piece of data it would cost as much again.
    """

    __slots__ = ("_ahead_bytes", "_told", "reported", "sender", "synced")

    def __init__(self, sender: StreamSender, ahead_bytes: int) -> None:
        self.sender = sender
        self._ahead_bytes = ahead_bytes
        self.reported = sender.feed.position
        """Position up to which it says that it has the log."""
        self.synced = 0
        """Position up to which it says that it has the log on disk; kept by chains."""
        self._told: Commit | None = None

    @classmethod
    def begin(
        cls,
        context: NodeContext,
        connection: Connection,
        log: CommitLog,
        resume: LogPosition,
        growth: TailWatcher | None = None,
    ) -> Self:
        """One that was accepted. growth: as of StreamSender."""
        config = context.config
        sender = StreamSender(
            context.reactor, connection, log, resume.position, transfer_bytes=config.transfer_bytes, growth=growth,
            throttle=RateLimiter.of(config.throttle_bytes_per_s, context.now_us),
        )  # fmt: skip
        return cls(sender, config.transfer_bytes)

    @property
    def is_due(self) -> bool:
        """Whether it is to be sent what there is."""
        feed, reported = self.sender.feed, self.reported
        return feed.position <= reported or feed.mark_position <= reported or feed.behind >= self._ahead_bytes

    def push(self) -> None:
        """The log has grown, or the replica has reported: send what is due."""
        if self.sender.feed.behind and self.is_due:
            self.sender.pump()

    def tell(self, commit: Commit, *, again: bool = False) -> None:
        """Let it know the commit point, if it does not, or `again`."""
        if again or commit != self._told:
            self._told = commit
            self.sender.control(messages.encode(commit))
