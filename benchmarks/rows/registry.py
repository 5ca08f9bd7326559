"""All rows, in the order of the goals."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.plan import Plan
from benchmarks.proc import Load
from benchmarks.result import Section
from benchmarks.rows.append import batches, single
from benchmarks.rows.follower import follower
from benchmarks.rows.fresh import fresh
from benchmarks.rows.memory import memory
from benchmarks.rows.peers import groups, peers
from benchmarks.rows.read import read
from benchmarks.rows.recovery import recovery
from benchmarks.rows.scan import scan
from benchmarks.rows.synced import callers, one
from benchmarks.rows.tail import tail

Row = Callable[[Plan], Section]

ROWS: dict[str, Row] = {
    "append": single,
    "batch": batches,
    "fresh": fresh,
    "tail": tail,
    "synced": one,
    "groups": groups,
    "callers": callers,
    "scan": scan,
    "read": read,
    "follower": follower,
    "peers": peers,
    "recovery": recovery,
    "memory": memory,
}


def measure(name: str, plan: Plan) -> Section:
    """One row, and what else the machine did meanwhile."""
    load, begin = Load(), time.monotonic()
    section = ROWS[name](plan)
    section.others, section.seconds = load.others(), time.monotonic() - begin
    return section
