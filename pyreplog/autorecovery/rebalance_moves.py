"""The moves of a rebalance, in one key of the metadata store from which workers take them.

Progress is not stored: a move is done when the metadata of its ledger no longer name the source. A worker takes done
moves off the list after a pass, so the list only becomes shorter, and a worker with an old list does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pyreplog.autorecovery.protocol.rebalance import Move
from pyreplog.errors import InvalidMetadataError
from pyreplog.ledger.ledger_store import load_many
from pyreplog.metadata.changes import change_key
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, number
from pyreplog.metadata.values import field as field_of

REBALANCE = "/autorecovery/rebalance"
_REASON_MAX = 200


@dataclass(frozen=True)
class RebalanceMoves(MetadataValue):
    """The value of the key with the moves.

    Attributes:
        since_us: when the rebalance began, microseconds since 1970-01-01 UTC.
        moves: moves that are not known to be done.
        failed: why moves were given up, by ledger.
    """

    KIND: ClassVar[str] = f"moves of a rebalance, {REBALANCE} (`cluster rebalance --end` deletes them)"

    since_us: int
    moves: tuple[Move, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def bytes_left(self) -> int:
        """Estimated size of the moves, bytes."""
        return sum(move.size for move in self.moves)

    def _encode_fields(self) -> dict[str, Any]:
        return {
            "since_us": self.since_us,
            "moves": [[move.ledger, move.source, move.target, move.size] for move in self.moves],
            "failed": {str(ledger): why[:_REASON_MAX] for ledger, why in self.failed.items()},
        }

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "since_us": number(fields, "since_us"),
            "moves": tuple(_decode_move(item) for item in field_of(fields, "moves", list)),
            "failed": {int(ledger): str(why) for ledger, why in field_of(fields, "failed", dict).items()},
        }

    def without(self, done: Iterable[Move], failed: Mapping[int, str]) -> RebalanceMoves:
        """Return the value without the moves that are done or failed."""
        over = {(move.ledger, move.source, move.target) for move in done}
        left = tuple(
            move
            for move in self.moves
            if (move.ledger, move.source, move.target) not in over and move.ledger not in failed
        )
        return replace(self, moves=left, failed={**self.failed, **failed})


def _decode_move(item: Any) -> Move:
    if type(item) is not list or [type(part) for part in item] != [int, str, str, int] or min(item[0], item[3]) < 0:
        raise ValueError(f"move: {str(item)[:80]}")
    return Move(*item)


def find_moves(store: MetadataStore) -> RebalanceMoves | None:
    """Return the moves to make; None: there is no rebalance.

    Raises:
        InvalidMetadataError: the value is malformed, or needs a newer reader.
        ReplogError: errors of the store.
    """
    stored = store.get(REBALANCE)
    return None if stored is None else RebalanceMoves.decode(stored.value)


def settle_moves(store: MetadataStore, moves: Iterable[Move], failed: Mapping[int, str]) -> None:
    """Take done and failed moves off the list; the metadata of the ledgers tell which are done.

    Args:
        store: metadata store.
        moves: the moves to check.
        failed: why moves are given up, by ledger.

    Raises:
        InvalidMetadataError: the list is malformed.
        ReplogError: errors of the store.
    """
    by_ledger = {move.ledger: move for move in moves}
    done: list[Move] = []
    unreadable: dict[int, str] = {}
    for ledger, stored in load_many(store, sorted(by_ledger)):
        if isinstance(stored, InvalidMetadataError):
            unreadable[ledger] = str(stored)
        elif stored is None or by_ledger[ledger].source not in stored.metadata.bookies():
            done.append(by_ledger[ledger])
    over = {move.ledger for move in done}
    given_up = {ledger: why for ledger, why in {**unreadable, **failed}.items() if ledger not in over}
    if not done and not given_up:
        return

    def change(value: bytes | None) -> bytes | None:
        return None if value is None else RebalanceMoves.decode(value).without(done, given_up).encode()

    change_key(store, REBALANCE, change)
