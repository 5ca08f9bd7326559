"""Plans which copies are moved from full bookies to empty ones, and out of racks that have all copies of an entry.

The plan is a pure function of bytes, racks and members. A move replaces a bookie in all fragments of one closed ledger
by another bookie, which is in none of these fragments. No move reduces the number of racks of a write set.

Planning terminates. A move for balance is made only from a bookie that is `SLACK` above its share, and only if the
target stays emptier than the source is afterwards, so that the same copies are never moved back. A move for racks
lowers the number of write sets within one rack, and no other move raises that number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum

from pyreplog.autorecovery.protocol.rack_windows import count_racks, keeps_racks, single_rack_windows
from pyreplog.ledger.ledger_metadata import LedgerMetadata

MOVES_MAX = 1000
"""Maximum number of moves of one plan. The next plan continues from there."""
SLACK = 0.1
"""Copies are moved from a bookie that exceeds its share by more than this fraction of the share."""


class NoMoveReason(StrEnum):
    """Why the copies of a ledger stay on a bookie that exceeds its share."""

    NO_TARGET = "no-target"
    """Each emptier bookie is a member already, or is read-only."""
    NO_SPACE = "no-space"
    """No emptier bookie that is not a member has enough space."""
    RACKS = "racks"
    """Write sets would have fewer racks."""
    NO_GAIN = "no-gain"
    """The copies are so large that the target would be fuller than the source."""


@dataclass(frozen=True)
class BookieLoad:
    """A running bookie that does not leave the cluster.

    Attributes:
        bookie: its id.
        used_bytes: size of the copies for which metadata name it, bytes.
        free_bytes: free space of its disk, bytes.
        rack: its rack; "": unknown.
        takes: whether it takes copies, because it is not read-only.
    """

    bookie: str
    used_bytes: int
    free_bytes: int
    rack: str = ""
    takes: bool = True

    @property
    def capacity(self) -> int:
        """Bytes that the bookie can hold."""
        return max(self.used_bytes + self.free_bytes, 1)


@dataclass(frozen=True)
class LedgerCopies:
    """The members of a closed ledger. All of them run and do not leave the cluster.

    Attributes:
        ledger: its id.
        write_quorum: number of copies of an entry.
        ensembles: the ensemble of each fragment.
        sizes: size of the copies on each member, bytes.
    """

    ledger: int
    write_quorum: int
    ensembles: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> LedgerCopies:
        """Return the copies of a closed ledger; their sizes are estimated from its length."""
        entries = metadata.last_entry + 1
        sizes = {
            bookie: metadata.length * sum(map(len, metadata.holdings(bookie))) // max(entries, 1)
            for bookie in metadata.bookies()
        }
        ensembles = tuple(dict.fromkeys(fragment.ensemble for fragment in metadata.fragments))
        return cls(metadata.ledger, metadata.write_quorum, ensembles, sizes)

    def violations(self, racks: Mapping[str, str]) -> int:
        """Count the write sets within one rack. Fragments with equal ensembles count once."""
        return sum(single_rack_windows(ensemble, self.write_quorum, racks) for ensemble in self.ensembles)

    def moved(self, source: str, target: str) -> LedgerCopies:
        """Return the copies after `target` has replaced `source`."""
        ensembles = tuple(
            tuple(target if bookie == source else bookie for bookie in ensemble) for ensemble in self.ensembles
        )
        sizes = {bookie: size for bookie, size in self.sizes.items() if bookie != source}
        sizes[target] = sizes.get(target, 0) + self.sizes.get(source, 0)
        return LedgerCopies(self.ledger, self.write_quorum, ensembles, sizes)

    def admits(self, source: str, target: str) -> bool:
        """Return whether no fragment names both the source and the target."""
        return not any(source in ensemble and target in ensemble for ensemble in self.ensembles)

    def keeps_racks(self, source: str, target: str, racks: Mapping[str, str]) -> bool:
        """Return whether no write set has fewer racks after a move."""
        return all(
            keeps_racks(ensemble, ensemble.index(source), target, self.write_quorum, racks)
            for ensemble in self.ensembles
            if source in ensemble
        )


@dataclass(frozen=True)
class Move:
    """A move of the copies that one bookie has of a ledger to another bookie.

    Attributes:
        ledger: id of the ledger.
        source: id of the bookie that has the copies.
        target: id of the bookie that replaces it.
        size: estimated size of the copies, bytes.
        fixed_violations: number of write sets that are within one rack before the move, and not afterwards.
    """

    ledger: int
    source: str
    target: str
    size: int
    fixed_violations: int = 0


@dataclass(frozen=True)
class RebalancePlan:
    """Moves, in the order in which they are made.

    Attributes:
        moves: the moves, at most one for each ledger.
        kept: number of ledgers whose copies stay on a bookie that exceeds its share, by reason.
        before: used bytes of each bookie as a fraction of its share, before the moves; 1.0: exactly the share.
        after: the same fractions after the moves.
        violations_left: number of write sets within one rack after the moves, in the ledgers considered.
    """

    moves: tuple[Move, ...]
    kept: Mapping[NoMoveReason, int]
    before: Mapping[str, float]
    after: Mapping[str, float]
    violations_left: int = 0

    @property
    def size(self) -> int:
        """Size of all moves, bytes."""
        return sum(move.size for move in self.moves)


def overfull(loads: Iterable[BookieLoad], slack: float = SLACK) -> list[str]:
    """Return the bookies that exceed their share by more than `slack`."""
    balance = _Balance(loads)
    return [bookie for bookie in balance.loads if balance.ratio(bookie) > 1 + slack]


def plan_moves(
    loads: Iterable[BookieLoad],
    ledgers: Sequence[LedgerCopies],
    *,
    moves_max: int = MOVES_MAX,
    bytes_max: int | None = None,
    keep_free_bytes: int = 0,
    slack: float = SLACK,
) -> RebalancePlan:
    """Plan moves: first those that restore rack diversity, then those from full bookies to empty ones.

    Args:
        loads: running bookies that do not leave the cluster.
        ledgers: closed ledgers whose members are all in `loads`.
        moves_max: maximum number of moves.
        bytes_max: maximum number of bytes; None: no limit.
        keep_free_bytes: free space that a target keeps, bytes.
        slack: fraction of its share by which a bookie may exceed it.
    """
    planner = _Planner(loads, moves_max, bytes_max, keep_free_bytes, slack)
    before = planner.balance.ratios()
    planner.repair_racks(ledgers)
    planner.balance_bytes(ledgers)
    current = [planner.current.get(copies.ledger, copies) for copies in ledgers]
    violations = sum(copies.violations(planner.racks) for copies in current)
    return RebalancePlan(
        tuple(planner.moves), dict(planner.kept), before, planner.balance.ratios(), violations_left=violations
    )


class _Balance:
    """Used bytes of each bookie while moves are planned. The share of a bookie is in proportion to its capacity."""

    def __init__(self, loads: Iterable[BookieLoad]) -> None:
        self.loads = {load.bookie: load for load in loads}
        self.used = {bookie: load.used_bytes for bookie, load in self.loads.items()}
        capacity = sum(load.capacity for load in self.loads.values())
        self._fullness = sum(self.used.values()) / max(capacity, 1)

    def ratio(self, bookie: str, more: int = 0) -> float:
        """Return the used bytes of a bookie plus `more`, as a fraction of its share."""
        share = self._fullness * self.loads[bookie].capacity
        return (self.used[bookie] + more) / share if share else 0.0

    def ratios(self) -> dict[str, float]:
        return {bookie: self.ratio(bookie) for bookie in self.loads}

    def has_room(self, bookie: str, size: int, keep_free_bytes: int) -> bool:
        load = self.loads[bookie]
        return load.free_bytes - (self.used[bookie] - load.used_bytes) - size >= keep_free_bytes

    def move(self, move: Move) -> None:
        self.used[move.source] -= move.size
        self.used[move.target] += move.size


@dataclass
class _Planner:
    loads: Iterable[BookieLoad]
    moves_max: int
    bytes_max: int | None
    keep_free_bytes: int
    slack: float
    moves: list[Move] = field(default_factory=list)
    current: dict[int, LedgerCopies] = field(default_factory=dict)  # ledgers with a move, as they are after it
    kept: Counter[NoMoveReason] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.balance = _Balance(self.loads)
        self.racks = {bookie: load.rack for bookie, load in self.balance.loads.items()}
        self._bytes = 0

    def _fits(self, size: int) -> bool:
        """Return whether the plan has room for one more move of `size` bytes."""
        return len(self.moves) < self.moves_max and (self.bytes_max is None or self._bytes + size <= self.bytes_max)

    def _add(self, copies: LedgerCopies, move: Move) -> None:
        self.moves.append(move)
        self._bytes += move.size
        self.balance.move(move)
        self.current[move.ledger] = copies.moved(move.source, move.target)

    def _targets(self, copies: LedgerCopies, source: str) -> list[str]:
        """Return the bookies that take copies and can replace the source, the emptiest first."""
        balance = self.balance
        return sorted(
            (
                bookie
                for bookie, load in balance.loads.items()
                if load.takes and bookie != source and copies.admits(source, bookie)
            ),
            key=lambda bookie: (balance.ratio(bookie), bookie),
        )

    # ---- racks ----------------------------------------------------------------------------------------------

    def repair_racks(self, ledgers: Iterable[LedgerCopies]) -> None:
        """Plan moves out of racks that have all copies of an entry; ledgers with the most such write sets first."""
        if count_racks(self.racks) < 2:
            return
        bad = [(count, copies) for copies in ledgers if (count := copies.violations(self.racks))]
        for count, copies in sorted(bad, key=lambda pair: (-pair[0], pair[1].ledger)):
            if not self._fits(0):
                return
            move = self._best_rack_move(copies, count)
            if move is not None and self._fits(move.size):
                self._add(copies, move)

    def _best_rack_move(self, copies: LedgerCopies, count: int) -> Move | None:
        """Return the move that fixes the most write sets; among equals, the one to the emptiest bookie."""
        best: tuple[int, float, str, str] | None = None
        for source in sorted({bookie for ensemble in copies.ensembles for bookie in ensemble}):
            size = copies.sizes.get(source, 0)
            for target in self._targets(copies, source):
                if not self.balance.has_room(target, size, self.keep_free_bytes):
                    continue
                if not copies.keeps_racks(source, target, self.racks):
                    continue
                fixed_violations = count - copies.moved(source, target).violations(self.racks)
                key = (-fixed_violations, self.balance.ratio(target, size), source, target)
                if fixed_violations > 0 and (best is None or key < best):
                    best = key
                if fixed_violations == count:  # the following targets are fuller
                    break
        if best is None:
            return None
        return Move(copies.ledger, best[2], best[3], copies.sizes.get(best[2], 0), -best[0])

    # ---- bytes ----------------------------------------------------------------------------------------------

    def balance_bytes(self, ledgers: Iterable[LedgerCopies]) -> None:
        """Plan moves from bookies that exceed their share: always from the fullest one, its largest copies first."""
        left: dict[str, list[LedgerCopies]] = {}
        for copies in ledgers:
            for bookie, size in copies.sizes.items():
                if size and bookie in self.balance.loads and copies.ledger not in self.current:
                    left.setdefault(bookie, []).append(copies)
        for bookie, some in left.items():
            some.sort(key=lambda copies: (copies.sizes[bookie], -copies.ledger))  # popped from the end
        while (source := self._fullest(left.keys())) is not None:
            copies = left[source].pop()
            if not left[source]:
                del left[source]
            if copies.ledger not in self.current:
                self._move_out(copies, source)

    def _fullest(self, bookies: Set[str]) -> str | None:
        """Return the fullest bookie in relation to its share; None if it does not exceed it, or the plan is full."""
        if not bookies or not self._fits(0):
            return None
        fullest = max(bookies, key=lambda bookie: (self.balance.ratio(bookie), bookie))
        return fullest if self.balance.ratio(fullest) > 1 + self.slack else None

    def _move_out(self, copies: LedgerCopies, source: str) -> None:
        """Plan the move of a ledger's copies to the emptiest bookie that can take them, or count why there is none."""
        balance, size, why = self.balance, copies.sizes[source], NoMoveReason.NO_TARGET
        if not self._fits(size):
            return
        for target in self._targets(copies, source):
            if balance.ratio(target) >= balance.ratio(source):
                break
            if balance.ratio(target, size) > balance.ratio(source, -size):
                why = NoMoveReason.NO_GAIN
            elif not balance.has_room(target, size, self.keep_free_bytes):
                why = NoMoveReason.NO_SPACE
            elif not copies.keeps_racks(source, target, self.racks):
                why = NoMoveReason.RACKS
            else:
                self._add(copies, Move(copies.ledger, source, target, size))
                return
        self.kept[why] += 1
