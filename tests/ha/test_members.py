"""Members of a group: quorums that intersect, changes of members, and the file."""

from __future__ import annotations

import errno
from itertools import combinations
from pathlib import Path

import pytest

from pyreplog.errors import ChangeUnderWayError, CorruptionError, DiskFullError, InvalidArgumentError
from pyreplog.ha.protocol.members import MEMBERS, MEMBERS_MAX, Members, MembersFile, MembersVersion, Quorum
from pyreplog.log.files import RealFiles
from pyreplog.stream.terms import NO_TERM, Term

NAMES = "abcdefg"


def subsets(names: tuple[str, ...]) -> list[frozenset[str]]:
    return [frozenset(some) for size in range(len(names) + 1) for some in combinations(names, size)]


@pytest.mark.parametrize(("size", "k"), [(n, k) for n in range(1, 7) for k in range(n)])
def test_every_election_quorum_intersects_every_ack_quorum(size: int, k: int) -> None:
    """A record is on the master and k others. Each quorum that may elect includes one of these; with one promise less
    it may not."""
    members = Members.first(NAMES[:size], k)
    names = members.quorum.names
    elects = [some for some in subsets(names) if not members.missing(some)]
    acknowledge = [some for some in subsets(names) if len(some) == k + 1]
    assert all(voter & other for voter in elects for other in acknowledge)
    fewer = [some for some in subsets(names) if members.missing(some) == 1]
    assert any(not (member & other) for member in fewer for other in acknowledge)


def test_outsiders_do_not_elect() -> None:
    members = Members.first("abc", 1)
    assert members.missing(frozenset("axyz")) == 1
    assert members.missing(frozenset("ab")) == 0


@pytest.mark.parametrize(
    ("names", "k"), [([], 0), (["a", "a"], 0), (["a", "b"], 2), (["a"], -1), ([""], 0), (["x" * 256], 0),
                     ([str(number) for number in range(MEMBERS_MAX + 1)], 1)],
)  # fmt: skip
def test_malformed_quorums_are_refused(names: list[str], k: int) -> None:
    with pytest.raises(InvalidArgumentError):
        Quorum.of(names, k)


def test_a_change_needs_both_quorums() -> None:
    members = Members.first("abc", 1)
    begun = members.change(Quorum.of("ade", 2))
    assert begun.stamp == MembersVersion(NO_TERM, 2) and begun.all_names == frozenset("abcde")
    assert begun.missing(frozenset("ab")) == 0, "2 of the former, 1 of the new"
    assert begun.missing(frozenset("ad")) == 1, "of the former only a"
    assert begun.missing(frozenset("bc")) == 1, "of the new nobody"
    assert not begun.is_known_to_old(frozenset("ade")) and begun.is_known_to_old(frozenset("ab"))
    with pytest.raises(ChangeUnderWayError):
        begun.change(members.quorum)
    done = begun.completed()
    assert done == Members(MembersVersion(NO_TERM, 3), Quorum(("a", "d", "e"), 2))


def test_members_of_a_later_term_replace_unconfirmed_changes() -> None:
    lonely = Members.first("abc", 1).change(Quorum.of("a", 0)).completed().change(Quorum.of("ab", 0))
    taken_over = Members.first("abc", 1).led_by(Term(2, "b"))
    assert taken_over.stamp > lonely.stamp
    assert taken_over.quorum == Quorum(("a", "b", "c"), 1)


def test_a_master_that_would_be_removed_turns_the_change_round() -> None:
    begun = Members.first("abc", 1).change(Quorum.of("ab", 1))
    turned = begun.led_by(Term(2, "c"))
    assert (turned.quorum, turned.former) == (begun.former, begun.quorum)
    assert begun.led_by(Term(2, "b")).quorum == begun.quorum


def test_the_members_file_is_read_again_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    kept = MembersFile(tmp_path, RealFiles())
    assert kept.members is None
    for members in (Members.first(["one", "zwölf"], 1), Members.first("abc", 1).change(Quorum.of("abcd", 2))):
        kept.store(members)
        assert MembersFile(tmp_path, RealFiles()).members == members
    path = tmp_path / MEMBERS
    fine = path.read_bytes()
    for at in range(len(fine)):
        path.write_bytes(fine[:at] + bytes([fine[at] ^ 0x10]) + fine[at + 1 :])
        with pytest.raises(CorruptionError, match="members"):
            MembersFile(tmp_path, RealFiles())
        path.write_bytes(fine[:at])
        with pytest.raises(CorruptionError, match="members"):
            MembersFile(tmp_path, RealFiles())


class Refusing(RealFiles):
    """A disk without free space."""

    def replace_small(self, path: Path, data: bytes) -> None:
        raise DiskFullError(errno.ENOSPC, "full")


def test_members_that_cannot_be_stored_are_not_those_of_the_node(tmp_path: Path) -> None:
    first, second = Members.first("abc", 1), Members.first("abcd", 2)
    MembersFile(tmp_path, RealFiles()).store(first)
    kept = MembersFile(tmp_path, Refusing())
    kept.store(first)  # the file is not written again
    for _ in range(2):
        with pytest.raises(DiskFullError):
            kept.store(second)
        assert kept.members == first
