"""Cascade: a replica streams its log to observers, which do not count in any quorum."""

from __future__ import annotations

from pyreplog._native.net.frame import CONTROL_OFFSET, encode
from pyreplog.errors import JoinRefusedError, ReplogError
from pyreplog.ha.node_context import NodeContext
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.messages import Accept, Commit, ProgressReport, Refuse
from pyreplog.ha.replica_stream import ReplicaStream
from pyreplog.net.connection import Connection
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.tail_watcher import TailWatcher


class Cascade:
    """Streams one replica's log while it is open and not truncated. All methods but `close` are called by the reactor's
    driver."""

    def __init__(self, context: NodeContext, log: MirrorLog, commit: Commit) -> None:
        self._context, self._log = context, log
        self._tail_watcher = TailWatcher(log)
        self._followers: dict[Connection, ReplicaStream] = {}
        self._commit = commit

    def join(self, connection: Connection, answer: Accept, synced: int) -> None:
        """Begin the stream to an accepted observer. synced: position up to which its log is on disk."""
        connection.send(encode(CONTROL_OFFSET, messages.encode(answer)))
        follower = ReplicaStream.begin(self._context, connection, self._log, answer.resume, self._tail_watcher)
        self._followers[connection], follower.synced = follower, min(synced, answer.resume.position)
        follower.send_commit(self._commit)
        follower.sender.pump()

    def progress(self, connection: Connection, progress: ProgressReport) -> None:
        follower = self._followers.get(connection)
        if follower is not None:
            follower.reported = max(follower.reported, progress.received.position)
            follower.synced = max(follower.synced, progress.synced.position)
            follower.push()

    @property
    def needed(self) -> list[int]:
        """Synced position of each observer. After a power cut an observer fetches the log from there again."""
        return [follower.synced for follower in list(self._followers.values())]

    def drained(self, connection: Connection) -> None:
        follower = self._followers.get(connection)
        if follower is not None:
            follower.sender.drained()

    def send_commit(self, commit: Commit) -> None:
        """Send a new commit point to the observers."""
        self._commit = commit
        for follower in list(self._followers.values()):
            follower.send_commit(commit)

    def closed(self, connection: Connection) -> None:
        follower = self._followers.pop(connection, None)
        if follower is not None:
            follower.sender.closed()

    def close(self, error: ReplogError | None = None) -> None:
        """Disconnect the observers, which have to join again: the log is truncated or closed, or has a new master."""
        self._tail_watcher.stop()
        for connection in list(self._followers):
            self.closed(connection)
            connection.close(error)


def refuse(connection: Connection, refusal: Refuse) -> None:
    """Send a refusal as the last message of a connection, and close it."""
    connection.send(encode(CONTROL_OFFSET, messages.encode(refusal)))
    connection.close(JoinRefusedError(refusal.code, refusal.text))
