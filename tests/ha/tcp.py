"""A master and its replicas over TCP, with a minimal protocol: a replica sends the position from which it needs the
log."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyreplog._native.net.frame import CONTROL_OFFSET, FrameBatch
from pyreplog.errors import ReplogError
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.replica import is_replica
from pyreplog.net.connection import Connection
from pyreplog.net.reactor import Reactor
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.receiver import StreamReceiver
from pyreplog.stream.sender import StreamSender
from tests.ha.streams import config

JOIN, PROGRESS, COMMIT = struct.Struct(">cq"), struct.Struct(">cqqqq"), struct.Struct(">cqq")


class MasterEnd:
    """Handles the connections of the server: streams `log` to each replica from the position that it sends. The commit
    point that it sends is the end of its log.

    Attributes:
        senders: of all connections, also of those that have ended.
    """

    def __init__(
        self, reactor: Reactor, log: CommitLog, make: Callable[[Connection, int], StreamSender] | None = None
    ) -> None:
        self.reactor, self.log = reactor, log
        self.make = make or (lambda connection, position: StreamSender(reactor, connection, log, position))
        self.senders: list[StreamSender] = []
        self.connections: list[Connection] = []
        self.progress: dict[Connection, tuple[int, ...]] = {}
        self.errors: list[ReplogError] = []
        self._of: dict[Connection, StreamSender] = {}

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        for offset, body in batch:
            if offset == CONTROL_OFFSET:
                self._on_message(connection, bytes(body))

    def _on_message(self, connection: Connection, body: bytes) -> None:
        if body[:1] == b"J":
            _, position = JOIN.unpack(body)
            sender = self._of[connection] = self.make(connection, position)
            self.senders.append(sender)
            sender.control(COMMIT.pack(b"C", 1 << 62, 1 << 62))
            sender.pump()
        else:
            _, *marks = PROGRESS.unpack(body)
            self.progress[connection] = tuple(marks)

    def drained(self, connection: Connection) -> None:
        if connection in self._of:
            self._of[connection].drained()

    def closed(self, connection: Connection, error: ReplogError) -> None:
        self.errors.append(error)
        if connection in self._of:
            self._of.pop(connection).closed()

    def pump(self) -> None:
        for sender in list(self._of.values()):
            sender.pump()


class ReplicaEnd(StreamReceiver):
    """A replica. `log` is its copy, which is created if there is none."""

    def __init__(self, path: Path, master: CommitLog, *, syncs: bool = False, **settings: Any) -> None:
        super().__init__(
            on_opened=self._on_opened, on_control=self._on_control, on_progress=self._report, on_closed=self._on_closed
        )
        self.syncs = syncs
        self.reports: list[tuple[LogPosition, LogPosition]] = []
        self.errors: list[ReplogError] = []
        if is_replica(path):
            self.log = MirrorLog(path, config(**settings))
        else:
            start, size = (master.start_position, master.start), master.segment_bytes
            self.log = MirrorLog.create(
                path, config(**{**settings, "segment_bytes": size}), uuid=master.uuid, segment_bytes=size, start=start
            )

    def _on_opened(self) -> None:
        self.stream(self.log, syncs=self.syncs)
        self.send(JOIN.pack(b"J", self.log.received_mark[0]))

    def _on_control(self, body: bytes) -> None:
        _, position, entry = COMMIT.unpack(body)
        self.log.show(position, entry)

    def _report(self) -> None:
        received, synced = self.log.progress
        self.reports.append((received, synced))
        self.send(PROGRESS.pack(b"P", *received, *synced))

    def _on_closed(self, error: ReplogError) -> None:
        self.errors.append(error)
