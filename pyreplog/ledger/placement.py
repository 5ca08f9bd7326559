"""Which bookies hold a ledger: rendezvous hashing, weighted by free space, spread over racks when there are any.

(Weighted rendezvous: score = weight / -ln(hash in (0, 1)); the k highest win. Losing a bookie moves only what it held.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass

import mmh3


@dataclass(frozen=True)
class Candidate:
    """A bookie that takes entries. weight: free bytes, or anything in proportion; rack: "" none is known."""

    bookie: str
    weight: float = 1.0
    rack: str = ""


def choose(ledger: int, count: int, candidates: Iterable[Candidate], taken: Set[str], *, turn: int = 0) -> list[str]:
    """Up to `count` bookies for a ledger, none of `taken`.

    turn: changes with every choice for the same ledger, so that not always the same one replaces a failed bookie.
    Racks of which the ledger has least come first. The same arguments give the same answer in every process.
    """
    ranked = sorted(
        (candidate for candidate in candidates if candidate.bookie not in taken),
        key=lambda candidate: (-_score(ledger, turn, candidate), candidate.bookie),
    )
    chosen: list[str] = []
    used: dict[str, int] = {}
    while ranked and len(chosen) < count:
        best = min(ranked, key=lambda candidate: used.get(candidate.rack, 0))  # stable: the highest score of those
        ranked.remove(best)
        chosen.append(best.bookie)
        used[best.rack] = used.get(best.rack, 0) + 1
    return chosen


def _score(ledger: int, turn: int, candidate: Candidate) -> float:
    digest = mmh3.hash128(f"{ledger}/{turn}/{candidate.bookie}".encode(), signed=False)
    return max(candidate.weight, 1e-9) / -math.log((digest + 0.5) / (1 << 128))
