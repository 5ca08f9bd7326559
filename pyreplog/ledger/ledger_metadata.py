"""What the metadata store keeps of a ledger: quorums, fragments, state. Immutable; every change makes another one.

(The rules of the states and of the fragments are BookKeeper's LedgerMetadataImpl; kept here in `__post_init__`.)
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self

from pyreplog._native.quorum.quorum import check_quorums, write_set
from pyreplog.bookie.protocol import ID_MAX
from pyreplog.errors import InvalidArgumentError, InvalidMetadataError
from pyreplog.metadata.values import MetadataValue

KEY_BYTES = 16
LEDGERS = "/ledgers"
ID_DIGITS = 19
SHARD_BITS = 12
"""A shard has so many bits of ids: 4,096 ledgers, whose names are 100 KiB. ZooKeeper gives at most 1 MiB in a reply."""
SHARD_DIGITS = 16
_TYPES: dict[str, type] = {"int": int, "str": str, "Mapping[str, str]": dict}  # of the fields, to be checked


class State(StrEnum):
    """OPEN -> CLOSED by the writer; OPEN -> IN_RECOVERY -> CLOSED by who opens it after the writer."""

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    CLOSED = "closed"


class Fragment(NamedTuple):
    """From entry `first` on (up to the next fragment), entries are striped over these bookies, in this order."""

    first: int
    ensemble: tuple[str, ...]


Change = Mapping[int, tuple[str, int]]
"""ensemble index -> (bookie that takes its place, first entry it is to hold)"""


def metadata_key(ledger: int) -> str:
    """Where the metadata of a ledger is kept: shard and id as decimal numbers of fixed width, so that names sort by
    id."""
    return f"{LEDGERS}/{shard_name(ledger)}/{ledger:0{ID_DIGITS}d}"


def shard_name(ledger: int) -> str:
    """Return the name of the folder below LEDGERS that a ledger is in."""
    return f"{ledger >> SHARD_BITS:0{SHARD_DIGITS}d}"


def is_shard(name: str) -> bool:
    """Return whether a name below LEDGERS is that of a shard."""
    return len(name) == SHARD_DIGITS and name.isascii() and name.isdecimal()


def is_flat(name: str) -> bool:
    """Return whether a name below LEDGERS is that of a ledger in layout 1, which had no shards."""
    return len(name) == ID_DIGITS and name.isascii() and name.isdecimal()


def ledger_key(password: bytes) -> bytes:
    """What bookies compare: who has it may write to the ledger and fence it."""
    return hashlib.blake2b(password, digest_size=KEY_BYTES, person=b"pyreplog-ledger").digest()


def key_proof(key: bytes) -> str:
    """What metadata keeps of the key: enough to tell a wrong one, not to make it."""
    return hashlib.blake2b(key, digest_size=KEY_BYTES, person=b"pyreplog-proof").hexdigest()


@dataclass(frozen=True, kw_only=True)
class LedgerMetadata(MetadataValue):
    """One ledger. last_entry, length (bytes of all values) and messages are known once it is CLOSED, -1 and 0 before.

    token: random, of who created it: tells "exists already" from "mine, the reply was lost". custom: the caller's.
    """

    KIND: ClassVar[str] = "ledger metadata"
    VERSION: ClassVar[int] = 2

    ledger: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    proof: str
    durability: str = "synced"
    state: State = State.OPEN
    last_entry: int = -1
    length: int = 0
    messages: int = 0
    created_us: int = 0
    token: str = ""
    custom: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            check_quorums(self.ensemble_size, self.write_quorum, self.ack_quorum)
        except InvalidArgumentError as error:
            raise InvalidMetadataError(f"ledger {self.ledger}: {error}") from None
        firsts = [fragment.first for fragment in self.fragments]
        self._demand(bool(firsts) and firsts[0] == 0, "fragments from entry 0 on", firsts)
        self._demand(firsts == sorted(set(firsts)), "fragments in ascending order", firsts)
        self._demand(firsts[-1] <= ID_MAX, f"entries up to {ID_MAX}", firsts[-1])
        for fragment in self.fragments:
            sizes = {len(fragment.ensemble), len(set(fragment.ensemble))}
            self._demand(sizes == {self.ensemble_size}, f"{self.ensemble_size} bookies", fragment.ensemble)
        self._demand(self.proof.isascii(), "a proof of its key", self.proof)
        self._demand(self.durability in ("synced", "appended"), "durability synced or appended", self.durability)
        if self.state is State.CLOSED:
            self._demand(-1 <= self.last_entry <= ID_MAX, "a last entry", self.last_entry)
            self._demand(self.length >= 0 <= self.messages, "a length", (self.length, self.messages))
            self._demand(firsts[-1] <= max(self.last_entry, 0), "fragments up to the last entry", firsts)
        else:
            self._demand(
                (self.last_entry, self.length) == (-1, 0), "no last entry before it is closed", self.last_entry
            )

    def _demand(self, fine: bool, expected: str, found: object) -> None:
        if not fine:
            raise InvalidMetadataError(f"metadata of ledger {self.ledger}: expected {expected}, found {found!r}")

    @property
    def is_synced(self) -> bool:
        """Whether entries are on disk before they are acknowledged."""
        return self.durability == "synced"

    # ---- fragments ------------------------------------------------------------------------------------------

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def fragment_of(self, entry: int) -> Fragment:
        """The fragment an entry belongs to."""
        return self.fragments[bisect_right(self.fragments, entry, key=lambda fragment: fragment.first) - 1]

    def has(self, bookie: str, entry: int) -> bool:
        """Return whether a bookie is in the ensemble of an entry that the ledger has, or may have while it is not
        closed."""
        if self.state is State.CLOSED and entry > self.last_entry:
            return False
        return bookie in self.fragment_of(entry).ensemble

    def asks_for(self, bookie: str, entry: int) -> bool:
        """Return whether a bookie is in the write set of an entry that the ledger has, or may have while it is not
        closed."""
        if not self.has(bookie, entry):
            return False
        places = write_set(entry, self.ensemble_size, self.write_quorum)
        return self.fragment_of(entry).ensemble.index(bookie) in places

    def has_for_certain(self, entry: int) -> bool:
        """Return whether the entry is in the ledger, whatever bookies say: all are confirmed before the last fragment,
        and all of a closed ledger up to its end. A bookie that should hold it and does not has lost it."""
        return entry <= self.last_entry if self.state is State.CLOSED else entry < self.last_fragment.first

    def holdings(self, bookie: str, below: int | None = None) -> list[range]:
        """Entries of a closed ledger (those below an entry) that a bookie is to hold, in stripes."""
        ranges = []
        limit = self.last_entry + 1 if below is None else below
        for fragment in self.fragments:
            stop = min(self.fragment_end(fragment) or limit, limit)
            if bookie in fragment.ensemble:
                ranges += self.stripes(fragment.ensemble.index(bookie), fragment.first, stop)
        return [stripe for stripe in ranges if stripe]

    def stripes(self, place: int, first: int, stop: int) -> list[range]:
        """Return the entries of [first, stop) that the bookie at a place of the ensemble holds, a range for each write
        set; ranges may be empty."""
        size = self.ensemble_size
        if size == self.write_quorum:
            return [range(first, stop)]
        return [range(first + (place - k - first) % size, stop, size) for k in range(self.write_quorum)]

    def fragment_end(self, fragment: Fragment) -> int | None:
        """First entry behind a fragment; None for the last one."""
        at = self.fragments.index(fragment) + 1
        return self.fragments[at].first if at < len(self.fragments) else None

    def bookies(self, first: int = 0) -> set[str]:
        """Who holds entries from `first` on."""
        since = self.fragment_of(first).first
        return {bookie for fragment in self.fragments if fragment.first >= since for bookie in fragment.ensemble}

    def replace_bookies(self, change: Change) -> Self:
        """Others take the place of some bookies, each from an entry of its own on: a fragment begins there.

        Nobody of `bookies(first)` can take a place from entry `first` on: it has another one there.
        """
        fragments = {fragment.first: list(fragment.ensemble) for fragment in self.fragments}
        for first in sorted({first for _, first in change.values()}):
            fragments.setdefault(first, list(self.fragment_of(first).ensemble))
        for first, ensemble in fragments.items():
            for index, (bookie, since) in change.items():
                if first >= since:
                    ensemble[index] = bookie
        replaced = tuple(Fragment(first, tuple(ensemble)) for first, ensemble in sorted(fragments.items()))
        return dataclasses.replace(self, fragments=replaced)

    # ---- states ---------------------------------------------------------------------------------------------

    def in_recovery(self) -> Self:
        return dataclasses.replace(self, state=State.IN_RECOVERY)

    def closed(self, last_entry: int, length: int, messages: int) -> Self:
        """Fragments that begin behind the last entry hold nothing: they go (BookKeeper #4551)."""
        kept = tuple(fragment for fragment in self.fragments if fragment.first <= max(last_entry, 0))
        return dataclasses.replace(
            self, state=State.CLOSED, fragments=kept, last_entry=last_entry, length=length, messages=messages
        )

    def admits(self, key: bytes) -> bool:
        """Return whether a ledger key is the right one."""
        return hmac.compare_digest(self.proof, key_proof(key))

    @property
    def proof_bytes(self) -> bytes:
        """The proof as bytes, with which copies are added to bookies. Raises InvalidMetadataError."""
        try:
            proof = bytes.fromhex(self.proof)
        except ValueError:
            proof = b""
        self._demand(len(proof) == KEY_BYTES, f"a proof of {KEY_BYTES} bytes in hexadecimal", self.proof)
        return proof

    def admits_copy(self, proof: bytes) -> bool:
        """Return whether these are the bytes of the proof."""
        return hmac.compare_digest(self.proof, proof.hex())

    # ---- bytes ----------------------------------------------------------------------------------------------

    def _encode_fields(self) -> dict[str, Any]:
        fragments = [[fragment.first, list(fragment.ensemble)] for fragment in self.fragments]
        return {**super()._encode_fields(), "fragments": fragments, "custom": dict(self.custom)}

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        fields["fragments"] = tuple(_decode_fragment(*fragment) for fragment in fields["fragments"])
        fields["state"] = State(fields["state"])
        for name, kind in _FIELDS.items():
            if not isinstance(fields[name], _TYPES.get(kind, object)) or type(fields[name]) is bool:
                raise TypeError(f"{name}: {fields[name]!r}")
        if not all(isinstance(word, str) for word in fields["custom"].values()):
            raise TypeError(f"custom: {fields['custom']!r}")
        return fields


_FIELDS = {item.name: str(item.type) for item in dataclasses.fields(LedgerMetadata) if item.name != "kept"}


def _decode_fragment(first: Any, bookies: Any) -> Fragment:
    if type(first) is not int or type(bookies) is not list or not all(isinstance(bookie, str) for bookie in bookies):
        raise TypeError(f"fragment: {first!r}: {bookies!r}")
    return Fragment(first, tuple(bookies))
