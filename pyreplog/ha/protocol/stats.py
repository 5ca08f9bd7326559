"""What a master tells of its group."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.ha.protocol.members import Members
from pyreplog.ha.protocol.progress import ReplicaStats
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import Term


class GroupStats(NamedTuple):
    """A master's group, for people. asynchronous: the master waits for nobody now. unreplicated: readers may see what
    enough replicas do not have, because of that. fallbacks: how often it went on alone; alone_commits: how often the
    commit point moved meanwhile; refused: joins, reports: from replicas, absurd ones not counted."""

    term: Term
    fenced: Term | None
    members: Members
    committed: LogPosition
    asynchronous: bool
    unreplicated: bool
    fallbacks: int
    alone_commits: int
    refused: int
    reports: int
    replicas: tuple[ReplicaStats, ...]
