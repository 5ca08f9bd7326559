"""A ledger beside other replicated stores, with the same durability, all their servers on this machine."""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple

from benchmarks.entries import SIZES, in_turn, make_values
from benchmarks.peers.replicated import REPLICATED, ReplicatedPeer
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Durability, Figure, Goal, Section, Table
from benchmarks.sampling import collector_off

_GOALS = {100: 10.0, 1024: 5.0}
_DURABILITIES: tuple[Durability, ...] = ("appended", "synced")
_OURS = "OurLedger"
_TURN_BYTES = 64 << 20
"""No more in one turn than our segments kept ready, and PostgreSQL's log, can take."""


class Found(NamedTuple):
    """Of one store: entries per second in its batches, one outstanding; seconds of one append; entries read back."""

    batched: float
    single: float
    latency: float
    read_back: int


def peers(plan: Plan) -> Section:
    """Entries per second at each store's best, and the median of single appends."""
    section = Section("ledgers-peers", "Ledger beside other replicated stores, loopback TCP")
    shares = len(_GOALS) * sum(len(kind.durabilities) for kind in REPLICATED.values())
    for durability in _DURABILITIES:
        found = {
            name: _measure(plan.shared(shares), kind, durability)
            for name, kind in REPLICATED.items()
            if durability in kind.durabilities
        }
        for size in _GOALS:
            of_size = {name: by_size[size] for name, by_size in found.items()}
            section.comparisons += _against_best(durability, size, of_size)
            section.tables.append(_table(durability, size, of_size))
    section.notes += [
        f"Versions: {'; '.join(kind.version() for kind in REPLICATED.values())}.",
        "appended: an entry survives the processes. Redis writes its files before it answers and syncs them once a "
        "second (its replica confirms what it has received); PostgreSQL runs with fsync off and remote_write; NATS "
        "syncs every two minutes. synced: PostgreSQL with fsync and synchronous_commit on; the others cannot.",
        f"Batches: Redis {REPLICATED['RedisPair'].batch} XADD and a WAIT in one pipeline; NATS "
        f"{REPLICATED['NatsCluster'].batch} on their way at once; PostgreSQL COPY of "
        f"{REPLICATED['PostgresPair'].batch} in a transaction; ours {REPLICATED[_OURS].batch} per batch in a window of "
        "4 MiB.",
    ]
    return section


def _measure(plan: Plan, kind: type[ReplicatedPeer], durability: Durability) -> dict[int, Found]:
    """One store alone on the machine, by size of entries."""
    with plan.folder() as folder, ExitStack() as stack, collector_off():
        peer = kind(folder, durability)
        stack.callback(peer.close)
        return {size: _measure_size(plan, peer, size) for size in _GOALS}


def _measure_size(plan: Plan, peer: ReplicatedPeer, size: int) -> Found:
    """Medians over turns behind those that are not counted."""
    values = make_values(size)
    seconds = max(plan.budget / (2 * plan.rounds), 0.001)
    batched = [_batches(peer, values, seconds) for _ in range(plan.uncounted + plan.rounds)][plan.uncounted :]
    read_back = _verify(peer, values, batched[-1][1])
    singles = [_singles(peer, values, seconds) for _ in range(plan.uncounted + plan.rounds)][plan.uncounted :]
    read_back += _verify(peer, values, singles[-1][2])
    return Found(
        median(rate for rate, _ in batched),
        median(rate for rate, _, _ in singles),
        median(latency for _, latency, _ in singles),
        read_back,
    )


def _batches(peer: ReplicatedPeer, values: list[bytes], seconds: float) -> tuple[float, int]:
    """(entries per second, entries)"""
    peer.start()
    entries = in_turn(values, peer.batch)
    done, begin = 0, time.perf_counter()
    while done == 0 or (time.perf_counter() - begin < seconds and done * len(values[0]) < _TURN_BYTES):
        peer.append_batch(entries)
        done += len(entries)
    peer.flush()
    return done / (time.perf_counter() - begin), done


def _singles(peer: ReplicatedPeer, values: list[bytes], seconds: float) -> tuple[float, float, int]:
    """(entries per second, median seconds, entries)"""
    peer.start()
    append, clock, taken = peer.append, time.perf_counter, list[float]()
    deadline = clock() + seconds
    while clock() < deadline or len(taken) < len(values):
        value, begin = values[len(taken) % len(values)], clock()
        append(value)
        taken.append(clock() - begin)
    return len(taken) / sum(taken), median(taken), len(taken)


def _verify(peer: ReplicatedPeer, values: list[bytes], written: int) -> int:
    count = 0
    for value in peer.values():
        if value != values[count % len(values)]:
            raise ValueError(f"{peer.title}: entry {count} is not what was written")
        count += 1
    if count != written:
        raise ValueError(f"{peer.title}: {count} of {written} entries were read back")
    return count


def _against_best(durability: Durability, size: int, found: dict[str, Found]) -> list[Comparison]:
    ours, verified = found[_OURS], f"{sum(one.read_back for one in found.values()):,} entries of all stores"
    others = {name: one for name, one in found.items() if name != _OURS}
    fastest = max(others, key=lambda name: others[name].batched)
    quickest = min(others, key=lambda name: others[name].latency)
    title = REPLICATED[_OURS].title
    return [
        Comparison(
            f"{SIZES[size]}, batches",
            Figure(title, ours.batched, "/s", durability, size),
            Figure(REPLICATED[fastest].title, others[fastest].batched, "/s", durability, size),
            Goal("at least", _GOALS[size]),
            verified,
        ),
        Comparison(
            f"{SIZES[size]}, one append",
            Figure(title, ours.latency, "s", durability),
            Figure(REPLICATED[quickest].title, others[quickest].latency, "s", durability),
            Goal("at most", 1.0),
            verified,
        ),
    ]


def _table(durability: Durability, size: int, found: dict[str, Found]) -> Table:
    """In brackets how many times as fast ours is."""
    ours = found[_OURS]
    rows = []
    for name, one in found.items():
        ratio = "" if name == _OURS else f" ({ours.batched / one.batched:.1f})"
        batched, single = (str(Figure("", rate, "/s", durability)) for rate in (one.batched, one.single))
        rows.append([REPLICATED[name].title, batched + ratio, single, str(Figure("", one.latency, "s", durability))])
    return Table(f"{SIZES[size]}, {durability}", ["", "batches", "one outstanding", "median of one"], rows)
