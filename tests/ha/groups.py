"""A master's state machine and its replicas, with positions given as entry numbers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

from pyreplog.ha.protocol.effects import Committed, Disconnect, Effect, SendMessage
from pyreplog.ha.protocol.joining import StreamedLog
from pyreplog.ha.protocol.master_machine import GroupConfig, MasterMachine
from pyreplog.ha.protocol.members import Members
from pyreplog.ha.protocol.messages import Accept, Join, ProgressReport
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import History, Term, TermStart

UUID = b"u" * 16
SEGMENT_BYTES = 1 << 16
T1, T2, T3, T4 = Term(1, "a"), Term(2, "m"), Term(3, "c"), Term(4, "d")
HISTORY = History((TermStart(T1, LogPosition(0, 0)), TermStart(T2, LogPosition(1000, 10))))
MS = 1000

E = TypeVar("E")


def mark(entry: int) -> LogPosition:
    return LogPosition(100 * entry, entry)


def only(kind: type[E], effects: list[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


class Lab:
    """Master m of term 2, which began at entry 10, and replicas a, b, c, d. The log ends at entry 20, and is synced."""

    def __init__(self, members: str = "mabcd", k: int = 1, end: int = 20, **config: Any) -> None:
        self.now_us = 1_000_000
        source = StreamedLog(UUID, SEGMENT_BYTES, T2, HISTORY, ORIGIN, mark(end))
        self.end = end
        self.group = MasterMachine(
            "m", source, mark(end), Members.first(members, k), GroupConfig(**config), committed=mark(5)
        )  # fmt: skip
        self.sent: dict[Hashable, int] = {}

    def wait(self, ms: float) -> None:
        self.now_us += int(ms * MS)

    def append(self, end: int, synced: int | None = None) -> list[Effect]:
        self.end = end
        return self.group.appended(mark(end), mark(end if synced is None else synced), self.now_us)

    def join(self, name: str, received: int = 10, connection: Hashable | None = None, **fields: Any) -> list[Effect]:
        """Join as a replica that has a part of the master's log."""
        fields = {"observer": False, "synced": mark(received), "promised": T2, **fields}
        join = Join(
            fields.pop("uuid", UUID), fields.pop("segment_bytes", SEGMENT_BYTES), name, received=mark(received),
            history=fields.pop("history", HISTORY.up_to(mark(received))), **fields,
        )  # fmt: skip
        return self.group.join(name if connection is None else connection, join, self.now_us)

    def follow(self, name: str, received: int = 10, connection: Hashable | None = None, **fields: Any) -> None:
        """Join, send the first report, and report that the members are stored."""
        connection = name if connection is None else connection
        effects = self.join(name, received, connection, **fields)
        accepted = [effect.message for effect in only(SendMessage, effects) if isinstance(effect.message, Accept)]
        assert len(accepted) == 1, effects
        self.report(connection, accepted[0].resume.entry)
        self.stored(connection, self.group.members.stamp.version)

    def stored(self, connection: Hashable, version: int) -> list[Effect]:
        """Report for a replica that it has stored members."""
        return self.group.members_stored(connection, version, self.now_us)

    def report(
        self, connection: Hashable, received: int, synced: int | None = None, sent: int | None = None
    ) -> list[Effect]:
        progress = ProgressReport(mark(received), mark(received if synced is None else synced))
        return self.group.progress(
            connection, progress, mark(self.end if sent is None else sent).position, self.now_us
        )  # fmt: skip

    def refusal(self, effects: list[Effect]) -> int:
        """Return the code of the refusal; check that nothing else was sent."""
        (disconnect,) = only(Disconnect, effects)
        assert not only(SendMessage, effects)
        return disconnect.refusal.code

    @property
    def committed(self) -> int:
        return self.group.committed.entry


def commits(effects: list[Effect]) -> list[int]:
    return [effect.mark.entry for effect in only(Committed, effects)]
