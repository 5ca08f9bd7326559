"""The state of members and replicas in JSON values."""

from __future__ import annotations

from typing import Any

from pyreplog.ha.protocol.members import Members, Quorum
from pyreplog.ha.protocol.stats import GroupStats


def describe_members(members: Members) -> dict[str, Any]:
    """Return names and sync_replicas; former: the same of the former members, while a change is not complete."""
    former = members.former
    return {**_quorum(members.quorum), "former": None if former is None else _quorum(former)}


def _quorum(quorum: Quorum) -> dict[str, Any]:
    return {"names": list(quorum.names), "sync_replicas": quorum.k}


def describe_group(stats: GroupStats) -> dict[str, Any]:
    """Return the counters of a master, and its replicas."""
    return {
        "asynchronous": stats.asynchronous,
        "fallbacks": stats.fallbacks,
        "alone_commits": stats.alone_commits,
        "refused": stats.refused,
        "reports": stats.reports,
        "replicas": [
            {
                "name": replica.name, "state": replica.state, "observer": replica.observer,
                "in_sync": replica.in_sync, "received": replica.received._asdict(),
                "synced": replica.synced._asdict(), "lag_bytes": replica.lag_bytes,
                "lag_ms": replica.lag_us // 1000, "bytes_per_s": replica.rate,
            }
            for replica in stats.replicas
        ],
    }  # fmt: skip
