"""NodeContext: what the parts of one node share; and positions in its log."""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path

from pyreplog._native.log.apply_replicated import marks_of
from pyreplog.clock import Clock
from pyreplog.ha.config import NodeConfig
from pyreplog.ha.long_polls import CommitLongPolls
from pyreplog.ha.protocol.client_messages import CLIENT_VERSION
from pyreplog.ha.protocol.members import MembersFile
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import Files
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import TermsFile

SERVICE = "ha"
"""Name of the service in the hello."""


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """What the parts of one node share.

    Attributes:
        lock: held for events of all state machines, and for changes of the two files.
        secret: as of `net`.
        tls: TLS contexts of the server and of clients, as of `net`.
    """

    path: Path
    config: NodeConfig
    files: Files
    clock: Clock
    reactor: Reactor
    terms: TermsFile
    members: MembersFile
    limits: Limits = field(default_factory=Limits)
    secret: Secret | None = None
    tls: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = (None, None)
    lock: threading.RLock = field(default_factory=threading.RLock)
    polls: CommitLongPolls | None = None
    """Reads of clients that wait for the commit point; None: the node serves no clients."""

    @property
    def identity(self) -> NodeIdentity:
        """The identity that this node gives in its hello."""
        return NodeIdentity(node=self.config.name, service=SERVICE, version=CLIENT_VERSION)

    @property
    def now_us(self) -> int:
        return self.clock.monotonic_us()


def ends_of(log: CommitLog) -> tuple[LogPosition, LogPosition]:
    """Return the end of what may be sent and the end of what is synced, read together."""
    end, synced, _ = marks_of(log)
    return end, synced


def start_of(log: CommitLog) -> LogPosition:
    """Return the position where a log begins."""
    return LogPosition(log.start_position, log.start)


def shown_of(log: CommitLog) -> LogPosition:
    """Return the end of the entries that readers see: the last known commit point.

    ORIGIN: readers see no entries. The commit point of entries that retention has removed is unknown.
    """
    visible = marks_of(log)[2]
    return visible if visible.entry > log.start else ORIGIN


def owed_of(log: CommitLog) -> LogPosition | None:
    """Return the end of the entries that readers saw from a master without replicas; None: enough replicas have all."""
    return marks_of(log)[2] if log.unreplicated else None
