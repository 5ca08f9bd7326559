"""Entries, requests, and a bookie that is asked one thing after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyreplog._native.bookie.fast_add import FastAdd
from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.net.frame import FrameParser
from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.ledger_list import ClosedLedgerHoldings
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind, decode_reply
from pyreplog.metadata.store import MetadataStore
from tests.bookie.memory_log import MemoryLog

KEY, OTHER_KEY = b"k" * 16, b"o" * 16
LEDGER = 7
ANY_SPACE = {"reserve_bytes": 0, "read_only_below_bytes": 0, "writable_from_bytes": 0}
"""Settings of a bookie that takes entries however little space is left: others fill the same disk meanwhile."""


def records_of(*entries: int, ledger: int = LEDGER, lac: int | None = None, mark: bytes = b"") -> bytes:
    """Records of these entries; always the same bytes for the same arguments."""
    return b"".join(
        bytes(
            encode_entries(
                [b"%d/%d" % (ledger, entry) + mark],
                ledger=ledger,
                first=entry,
                lac=entry - 1 if lac is None else lac,
                time=1_000_000 + entry,
            ).view
        )
        for entry in entries
    )


def add(*entries: int, ledger: int = LEDGER, flags: int = 0, key: bytes = KEY, **settings: Any) -> Request:
    records = records_of(*entries, ledger=ledger, **settings)
    return Request(RequestKind.ADD, ledger, min(entries), max(entries), key, flags, records=records)


def read(
    first: int, last: int, *, ledger: int = LEDGER, flags: int = 0, key: bytes = KEY, limit: int = 0, step: int = 1
) -> Request:
    return Request(RequestKind.READ, ledger, first, last, key, flags, limit, step)


def last(*, ledger: int = LEDGER, fence: bool = False, key: bytes = KEY) -> Request:
    return Request(RequestKind.LAST, ledger, key=key, flags=Flag.FENCE if fence else 0)


def set_lac(lac: int, *, ledger: int = LEDGER, flags: int = 0, key: bytes = KEY) -> Request:
    return Request(RequestKind.SET_LAC, ledger, 0, lac, key, flags)


def wait_lac(above: int, *, ledger: int = LEDGER, limit: int = 1000) -> Request:
    return Request(RequestKind.WAIT_LAC, ledger, 0, above, limit=limit)


def entries_in(reply: Reply) -> list[int]:
    """Of an OK reply to a READ."""
    assert reply.status == ReplyStatus.OK, bytes(reply.body)
    if not reply.body:
        return []
    batch = parse_entries(reply.body, ledger=reply.ledger, first=reply.first, last=reply.last)
    assert batch.next_position == len(reply.body)
    return batch.entry.tolist()


class Node:
    """A Bookie over a MemoryLog, and what its requests were answered."""

    def __init__(
        self, log: MemoryLog | None = None, *, limbo: tuple[int, ...] = (), staged: bool = True, **settings: Any
    ) -> None:
        self.log = log if log is not None else MemoryLog(staged=staged)
        self.settings = settings
        self.bookie = Bookie(self.log, BookieConfig(**settings), limbo)

    def send(self, request: Request) -> list[Reply]:
        """Without a commit; the reply appears in the list, once."""
        replies: list[Reply] = []
        self.bookie.handle(request, replies.append)
        return replies

    def ask(self, request: Request) -> Reply:
        """With a commit if need be."""
        replies = self.send(request)
        if self.bookie.waits:
            self.bookie.commit()
        (reply,) = replies
        return reply

    def crash(self, kept: int = 0, *, limbo: tuple[int, ...] = ()) -> Node:
        """Another one, over what a power cut left."""
        return Node(self.log.crash(kept), limbo=limbo, **self.settings)


def into(replies: list[Reply]) -> Callable[[Reply | FastAdd], None]:
    """A `respond` for ADDs that take the short way."""
    return lambda answer: replies.append(answer if isinstance(answer, Reply) else reply_of(answer))


def reply_of(add: FastAdd) -> Reply:
    """As the frame of its OK says it."""
    ((_, body),) = FrameParser().feed(add.ok(add.confirmed))
    return decode_reply(body)


class Facts:
    """What the metadata say of ledgers: these are open, and closed ones are to be here as `held` says.

    asked: whether each question was for ledgers without synced entries only.
    """

    def __init__(self, *lost: int, held: dict[int, list[range]] | None = None) -> None:
        self.lost, self.held = lost, held or {}
        self.store: MetadataStore | None = None
        """Where keys say which ledgers there are."""
        self.asked: list[bool] = []
        self.next_ledger = 0
        self.noted: list[tuple[int, int]] = []
        """Copies that are noted for repair."""

    def key(self, ledger: int) -> str:
        return f"/ledgers/{ledger}"

    def listed(self) -> set[int]:
        return set() if self.store is None else {int(name) for name in self.store.list("/ledgers")}

    def admits(self, ledger: int, key: bytes) -> bool | None:
        """Any."""
        return True

    def admits_copy(self, ledger: int, proof: bytes) -> bool | None:
        """Any."""
        return True

    def next_id(self) -> int:
        return self.next_ledger

    def skip_to(self, number: int) -> None:
        self.next_ledger = max(self.next_ledger, number)

    def open_with(self, bookie: str, *, unsynced: bool) -> tuple[int, ...]:
        self.asked.append(unsynced)
        return self.lost

    def named(self, bookie: str) -> list[tuple[int, list[range] | None]]:
        return [*((ledger, None) for ledger in self.lost), *self.held.items()]

    def note_bad_copies(self, bookie: str, ledger: int, entries: Sequence[int]) -> None:
        self.noted += [(ledger, entry) for entry in entries]

    def holdings(self, ledger: int, bookie: str) -> list[range] | None:
        return self.held.get(ledger)

    def closed(self, ledgers: Sequence[int], bookie: str) -> list[ClosedLedgerHoldings | None]:
        return [
            ClosedLedgerHoldings(tuple(self.held[ledger]), 0, frozenset()) if ledger in self.held else None
            for ledger in ledgers
        ]

    def change_version(self, ledger: int, version: int) -> bool:
        return False
