"""The metadata of a ledger: quorums, fragments, state. Immutable; every change returns a new object.

The rules for states and fragments are those of BookKeeper's LedgerMetadataImpl; `__post_init__` checks them.
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
"""Number of bits of the ids in a shard: 4,096 ledgers, whose names are 100 KiB. ZooKeeper replies with at most 1
MiB."""
SHARD_DIGITS = 16
_TYPES: dict[str, type] = {"int": int, "str": str, "Mapping[str, str]": dict}  # types by the annotations of fields


class State(StrEnum):
    """The state of a ledger: OPEN, then CLOSED by its writer; or IN_RECOVERY, then CLOSED by the client that recovers
    it."""

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    CLOSED = "closed"


class Fragment(NamedTuple):
    """A range of entries, from `first` up to the next fragment, that is striped over the bookies of one ensemble."""

    first: int
    ensemble: tuple[str, ...]


Change = Mapping[int, tuple[str, int]]
"""An ensemble change: index in the ensemble -> (the new bookie, the first entry that it has to hold)."""


def metadata_key(ledger: int) -> str:
    """Return the key of a ledger's metadata.

    Shard and id are decimal numbers of fixed width, so that names sort by id.
    """
    return f"{LEDGERS}/{shard_name(ledger)}/{ledger:0{ID_DIGITS}d}"


def shard_name(ledger: int) -> str:
    """Return the name of a ledger's shard, a folder below LEDGERS."""
    return f"{ledger >> SHARD_BITS:0{SHARD_DIGITS}d}"


def is_shard(name: str) -> bool:
    """Return whether a name below LEDGERS is that of a shard."""
    return len(name) == SHARD_DIGITS and name.isascii() and name.isdecimal()


def is_flat(name: str) -> bool:
    """Return whether a name below LEDGERS is that of a ledger in layout 1, which had no shards."""
    return len(name) == ID_DIGITS and name.isascii() and name.isdecimal()


def ledger_key(password: bytes) -> bytes:
    """Derive the key that permits to write to a ledger and to fence it.

    Bookies compare it with the key that they noted.
    """
    return hashlib.blake2b(password, digest_size=KEY_BYTES, person=b"pyreplog-ledger").digest()


def key_proof(key: bytes) -> str:
    """Derive the proof of a key, which is in the metadata: it verifies a key, and the key cannot be derived from it."""
    return hashlib.blake2b(key, digest_size=KEY_BYTES, person=b"pyreplog-proof").hexdigest()


@dataclass(frozen=True, kw_only=True)
class LedgerMetadata(MetadataValue):
    """The metadata of one ledger.

    Attributes:
        ledger: id of the ledger.
        ensemble_size: number of bookies over which the entries are striped.
        write_quorum: number of copies of each entry.
        ack_quorum: number of copies that confirm an entry.
        fragments: the fragments, ascending.
        proof: proof of the ledger's key, see `key_proof`.
        durability: "synced" or "appended".
        state: state of the ledger.
        last_entry: last entry of a closed ledger; -1: the ledger is not closed, or is empty.
        length: bytes of all values of a closed ledger; before 0.
        messages: number of messages of a closed ledger; before 0.
        created_us: when the ledger was created, microseconds since 1970-01-01 UTC.
        token: random, drawn by the client that created the ledger. If the reply to a creation is lost, it tells this
            client whether the existing ledger is its own.
        custom: names and values of the user.
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
        """Return the fragment that an entry belongs to."""
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
        """Return whether the metadata prove that the ledger has an entry, whatever bookies answer.

        All entries before the last fragment are confirmed, and so are all entries of a closed ledger. A bookie that
        should hold such an entry and does not has lost it.
        """
        return entry <= self.last_entry if self.state is State.CLOSED else entry < self.last_fragment.first

    def holdings(self, bookie: str, below: int | None = None) -> list[range]:
        """Return the entries of a closed ledger that a bookie has to hold, as stripes.

        Args:
            bookie: id of the bookie.
            below: leave out entries from this one on; None: all entries of the ledger.
        """
        ranges = []
        limit = self.last_entry + 1 if below is None else below
        for fragment in self.fragments:
            stop = min(self.fragment_end(fragment) or limit, limit)
            if bookie in fragment.ensemble:
                ranges += self.stripes(fragment.ensemble.index(bookie), fragment.first, stop)
        return [stripe for stripe in ranges if stripe]

    def stripes(self, place: int, first: int, stop: int) -> list[range]:
        """Return the entries of [first, stop) that the bookie at a place of the ensemble holds.

        The result has a range for each place of a write set; ranges may be empty.
        """
        size = self.ensemble_size
        if size == self.write_quorum:
            return [range(first, stop)]
        return [range(first + (place - k - first) % size, stop, size) for k in range(self.write_quorum)]

    def fragment_end(self, fragment: Fragment) -> int | None:
        """Return the first entry of the next fragment; None: the fragment is the last one."""
        at = self.fragments.index(fragment) + 1
        return self.fragments[at].first if at < len(self.fragments) else None

    def bookies(self, first: int = 0) -> set[str]:
        """Return the bookies that hold entries from `first` on."""
        since = self.fragment_of(first).first
        return {bookie for fragment in self.fragments if fragment.first >= since for bookie in fragment.ensemble}

    def replace_bookies(self, change: Change) -> Self:
        """Return the metadata after an ensemble change. A fragment begins at the first entry of each new bookie.

        A bookie of `bookies(first)` must not take a place from entry `first` on, because it has another place there.
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
        """Return the metadata of the closed ledger, without fragments that begin behind the last entry (BookKeeper
        #4551)."""
        kept = tuple(fragment for fragment in self.fragments if fragment.first <= max(last_entry, 0))
        return dataclasses.replace(
            self, state=State.CLOSED, fragments=kept, last_entry=last_entry, length=length, messages=messages
        )

    def admits(self, key: bytes) -> bool:
        """Return whether a key is that of the ledger."""
        return hmac.compare_digest(self.proof, key_proof(key))

    @property
    def proof_bytes(self) -> bytes:
        """The proof as bytes, with which copies are added to bookies.

        Raises InvalidMetadataError when it is malformed.
        """
        try:
            proof = bytes.fromhex(self.proof)
        except ValueError:
            proof = b""
        self._demand(len(proof) == KEY_BYTES, f"a proof of {KEY_BYTES} bytes in hexadecimal", self.proof)
        return proof

    def admits_copy(self, proof: bytes) -> bool:
        """Return whether bytes are the proof of the ledger's key."""
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
