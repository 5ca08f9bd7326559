"""Members of a replica group: the nodes that vote and acknowledge.

They are stored in the file `members` of the log directory. Of |M| members a record is acknowledged when the master and
k others have it; an election needs |M| - k promises. So every election reaches a member with every acknowledged record.
A change of members is joint consensus (Raft, §6): until it is complete, both the former and the new members have to
acknowledge, and to elect.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pyreplog._native.quorum.quorum import MAX_ENSEMBLE
from pyreplog.errors import ChangeUnderWayError, CorruptionError, InvalidArgumentError, InvalidMessageError
from pyreplog.log.files import Files
from pyreplog.regular_files import read_regular
from pyreplog.stream.fields import NAME_BYTES_MAX, FieldReader, FieldWriter, is_name
from pyreplog.stream.terms import NO_TERM, Term, read_term, seal, unseal, write_term

MEMBERS = "members"
FILE_MAX = 1 << 20  # bytes
MAGIC = b"RPMEMB01"
MEMBERS_MAX = MAX_ENSEMBLE
"""Most members of a group. The number of observers, replicas that are no members, is not limited."""


class MembersVersion(NamedTuple):
    """Version of a member list; the higher one is newer. The term comes first: a list that only a deposed master knew
    is older than the lists of later masters."""

    term: Term
    version: int


class Quorum(NamedTuple):
    """Names of members, ascending, and k: how many members besides the master must have a record."""

    names: tuple[str, ...]
    k: int

    def __str__(self) -> str:
        return f"{', '.join(self.names)} with {self.k} synchronous"

    @property
    def promises(self) -> int:
        """How many members must promise a new term."""
        return len(self.names) - self.k

    @classmethod
    def of(cls, names: Iterable[str], k: int) -> Quorum:
        """Return the quorum of these members. Raises InvalidArgumentError: the names or `k` are invalid."""
        listed = list(names)
        quorum = cls(tuple(sorted(set(listed))), k)
        if not 1 <= len(listed) == len(quorum.names) <= MEMBERS_MAX:
            raise InvalidArgumentError(f"expected 1 to {MEMBERS_MAX} members, all different, found {listed}")
        for name in listed:
            if not is_name(name):
                raise InvalidArgumentError(f"a member's name has 1 to {NAME_BYTES_MAX} bytes of UTF-8, found {name!r}")
        if not 0 <= k < len(listed):
            raise InvalidArgumentError(
                f"sync_replicas: expected 0 to {len(listed) - 1} of {len(listed)} members, found {k}"
            )
        return quorum


@dataclass(frozen=True)
class Members:
    """The members of a group, as of one version. former: the quorum before the change that is under way, or None."""

    stamp: MembersVersion
    quorum: Quorum
    former: Quorum | None = None

    @classmethod
    def first(cls, names: Iterable[str], sync_replicas: int) -> Members:
        """Return the members of a new group. Raises InvalidArgumentError as `Quorum.of`."""
        return cls(MembersVersion(NO_TERM, 1), Quorum.of(names, sync_replicas))

    @cached_property
    def quorums(self) -> tuple[Quorum, ...]:
        """The quorums that must agree, each by itself."""
        return (self.quorum,) if self.former is None else (self.former, self.quorum)

    @property
    def all_names(self) -> frozenset[str]:
        return frozenset(name for quorum in self.quorums for name in quorum.names)

    @property
    def sync_replicas(self) -> int:
        return max(quorum.k for quorum in self.quorums)

    def missing(self, promised: frozenset[str]) -> int:
        """Return how many promises an election lacks; 0: it has enough."""
        return max(max(0, quorum.promises - len(promised.intersection(quorum.names))) for quorum in self.quorums)

    def change(self, wanted: Quorum) -> Members:
        """Return members that change to `wanted`. Raises ChangeUnderWayError: an earlier change is not complete."""
        if self.former is not None:
            raise ChangeUnderWayError(
                f"a change of the members is under way, from {self.former} to {self.quorum}: wait until it is complete"
            )
        return Members(self._next(), wanted, self.quorum)

    def forced(self, wanted: Quorum) -> Members:
        """Return members that are changed at once, without joint consensus."""
        return Members(self._next(), wanted)

    def completed(self) -> Members:
        return Members(self._next(), self.quorum)

    def is_known_to_old(self, stored: frozenset[str]) -> bool:
        """Return whether so many former members have stored this version that each election among them learns of it."""
        return self.former is None or len(stored.intersection(self.former.names)) > self.former.k

    def led_by(self, term: Term) -> Members:
        """Return the members that a new master of `term` stores and sends: newer than those of all earlier masters.

        A change that would remove the new master is reversed; both quorums must agree in either direction.
        """
        stamp = MembersVersion(term, self.stamp.version + 1)
        if self.former is not None and term.master not in self.quorum.names:
            return Members(stamp, self.former, self.quorum)
        return replace(self, stamp=stamp)

    def _next(self) -> MembersVersion:
        return MembersVersion(self.stamp.term, self.stamp.version + 1)

    def encode(self) -> bytes:
        """Return the contents of the file."""
        fields = FieldWriter("<")
        write_members(fields, self)
        return seal(MAGIC, fields.take())

    @classmethod
    def decode(cls, path: Path, data: bytes) -> Members:
        """Return the members in the contents of a file. Raises CorruptionError and FormatVersionError."""
        fields = unseal(path, MAGIC, data)
        try:
            members = read_members(fields)
            fields.end()
        except InvalidMessageError as error:
            raise CorruptionError(path, 0, "intact members", str(error)) from error
        return members


def write_members(fields: FieldWriter, members: Members) -> None:
    write_term(fields, members.stamp.term)
    fields.numbers("QB", members.stamp.version, members.former is not None)
    for names, k in reversed(members.quorums):
        fields.numbers("BB", k, len(names))
        for name in names:
            fields.name(name)


def read_members(fields: FieldReader) -> Members:
    term = read_term(fields)
    (version,) = fields.numbers("Q")
    is_changing = fields.flag()
    quorum = _read_quorum(fields)
    return Members(MembersVersion(term, version), quorum, _read_quorum(fields) if is_changing else None)


def _read_quorum(fields: FieldReader) -> Quorum:
    k, count = fields.numbers("BB")
    names = [fields.name() for _ in range(count)]
    try:
        quorum = Quorum.of(names, k)
    except InvalidArgumentError as error:
        raise fields.error("members", str(error)) from error
    if list(quorum.names) != names:
        raise fields.error("names in order", ", ".join(names))
    return quorum


class MembersFile:
    """The file with the members that a node knows. Not thread-safe.

    Opening raises CorruptionError and FormatVersionError; `store` raises OSError, and then nothing changed.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._path, self._files = directory / MEMBERS, files
        self.members: Members | None = None
        if self._path.exists():
            files.sync_directory(directory)  # the process that stored it may have been killed before it synced
            self.members = Members.decode(self._path, read_regular(self._path, FILE_MAX))

    def store(self, members: Members) -> None:
        """Make the members durable. Those of a master replace even newer ones, which belong to no elected master."""
        if members != self.members:
            self._files.replace_small(self._path, members.encode())
            self.members = members
