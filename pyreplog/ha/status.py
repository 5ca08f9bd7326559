"""How a node is, for people and programs: JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyreplog.ha.protocol.members import Members, Quorum
from pyreplog.ha.protocol.stats import GroupStats
from pyreplog.ha.voting import ends

if TYPE_CHECKING:
    from pyreplog.ha.node import Node


def describe(node: Node) -> dict[str, Any]:
    """name, role, address, uuid, term, log (start, received, synced, committed: entry numbers and positions),
    unreplicated (enough replicas may not have all that is committed, for the master goes on alone, or did), members; of
    a master its replicas and counters, of a replica its master and what keeps it from streaming."""
    received, synced = ends(node)
    log, members = node._log, node.members
    found: dict[str, Any] = {
        "name": node.name,
        "role": node.role,
        "address": node.address,
        "log": None if log is None else log.uuid.hex(),
        "term": str(node.term),
        "start": 0 if log is None else log.start,
        "received": received._asdict(),
        "synced": synced._asdict(),
        "committed": node.committed._asdict(),
        "unreplicated": log is not None and log.unreplicated,
        "members": None if members is None else _members(members),
    }
    replica = node._replica
    if replica is not None:
        master = replica.master
        found["master"] = None if master is None else f"{master[0]}:{master[1]}"
        found["streaming"] = replica.is_streaming
        found["trouble"] = replica.trouble
    leading = node._master
    if leading is not None:
        found |= _group(leading.stats())
    return found


def _members(members: Members) -> dict[str, Any]:
    former = members.former
    return {**_quorum(members.quorum), "former": None if former is None else _quorum(former)}


def _quorum(quorum: Quorum) -> dict[str, Any]:
    return {"names": list(quorum.names), "sync_replicas": quorum.k}


def _group(stats: GroupStats) -> dict[str, Any]:
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
