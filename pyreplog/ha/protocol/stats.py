"""The state of a replica group, as reported by its master."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.ha.protocol.members import Members
from pyreplog.ha.protocol.replica_progress import ReplicaStats
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import Term


class GroupStats(NamedTuple):
    """The state of a master's group.

    Attributes:
        term: the term of the master.
        fenced: the higher term that fenced it; None: not fenced.
        members: the members of the group.
        committed: the commit point.
        asynchronous: whether the master waits for no replica now (fallback).
        unreplicated: whether readers may see entries that enough replicas do not have.
        fallbacks: how often the master began to commit without replicas.
        alone_commits: how often the commit point moved without replicas.
        refused: replicas that were refused.
        reports: reports received from replicas.
        replicas: the state of each replica.
    """

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
