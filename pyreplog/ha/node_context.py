"""What the parts of one node share."""

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
"""As the hello names it."""


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """lock: around all state machines and the two files. secret, tls: as of `net`; `tls` is (a server's context, a
    client's)."""

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
    """Clients that wait for the commit point; None: nobody serves any."""

    @property
    def identity(self) -> NodeIdentity:
        """The identity that this node gives in its hello."""
        return NodeIdentity(node=self.config.name, service=SERVICE, version=CLIENT_VERSION)

    @property
    def now_us(self) -> int:
        return self.clock.monotonic_us()


def ends_of(log: CommitLog) -> tuple[LogPosition, LogPosition]:
    """(end of what may be sent, end of what is synced) of a log, of one moment."""
    end, synced, _ = marks_of(log)
    return end, synced


def start_of(log: CommitLog) -> LogPosition:
    """Where a log begins."""
    return LogPosition(log.start_position, log.start)


def shown_of(log: CommitLog) -> LogPosition:
    """End of what readers see, the commit point as far as it was known. ORIGIN: they see nothing; how what retention
    has removed was committed is not known."""
    visible = marks_of(log)[2]
    return visible if visible.entry > log.start else ORIGIN


def owed_of(log: CommitLog) -> LogPosition | None:
    """End of what readers see, if a master showed it on its own and enough replicas may not have it."""
    return marks_of(log)[2] if log.unreplicated else None
