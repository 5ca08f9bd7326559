"""Terms and histories: where two logs diverge, and what is stored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.errors import CorruptionError, FormatVersionError, HigherTermError
from pyreplog.log.files import RealFiles
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import HISTORY_MAX, NO_TERM, TERMS, History, Term, Terms, TermsFile, TermStart


def history(*starts: tuple[int, str, int]) -> History:
    """Return a history of (number, master, entry)."""
    return History(tuple(TermStart(Term(number, master), mark(entry)) for number, master, entry in starts))


def mark(entry: int) -> LogPosition:
    return LogPosition(100 * entry, entry)


def test_terms_of_two_masters_differ() -> None:
    """The name of the master is a part of the term and of its order, whichever members elected it."""
    assert NO_TERM < Term(1, "a") < Term(1, "b") < Term(2, "a")
    assert Term(1, "b").after("a") > Term(1, "b")
    assert str(Term(3, "b")) == "3 of b" and str(NO_TERM) == "none"


MASTER = history((1, "a", 0), (2, "b", 10), (4, "a", 20))


@pytest.mark.parametrize(
    ("own", "end", "common"),
    [
        pytest.param(MASTER, 30, 30, id="the same"),
        pytest.param(MASTER, 25, 25, id="a prefix"),
        pytest.param(MASTER, 15, 15, id="a prefix that ends in an older term"),
        pytest.param(history((1, "a", 0), (2, "b", 10)), 23, 20, id="beyond where the master's next term began"),
        pytest.param(history((1, "a", 0), (2, "b", 10), (3, "c", 14)), 40, 14, id="they part where its own term began"),
        pytest.param(history((1, "a", 0), (2, "c", 10)), 40, 10, id="two masters of one number"),
        pytest.param(history((1, "a", 0), (3, "c", 12)), 40, 10, id="it missed a term"),
        pytest.param(history((1, "a", 0), (2, "b", 10), (4, "a", 22)), 40, 20, id="one term with two starts"),
        pytest.param(history((1, "b", 0), (3, "c", 12)), 40, None, id="nothing in common"),
        pytest.param(history((5, "b", 0)), 0, None, id="empty"),
    ],
)
def test_histories_have_a_common_point_where_they_diverge(own: History, end: int, common: int | None) -> None:
    assert own.common_point(mark(end), MASTER, mark(30)) == (None if common is None else mark(common))


def test_common_point_of_a_master_that_ends_earlier() -> None:
    assert MASTER.common_point(mark(30), MASTER, mark(12)) == mark(12)


def test_a_term_of_which_nothing_is_held_does_not_count() -> None:
    """A replica gets its master's history before its records. An election must not take the replica for one that has
    them."""
    assert MASTER.up_to(mark(20)).last == Term(2, "b")
    assert MASTER.up_to(mark(21)).last == Term(4, "a")
    assert MASTER.up_to(mark(0)).last == NO_TERM
    assert MASTER.begin(Term(5, "c"), mark(10)) == history((1, "a", 0), (5, "c", 10))


@given(st.data())
def test_common_point_is_where_the_logs_part(data: st.DataObject) -> None:
    """Compare with logs in which each record names its term, and each log extends a part of another one."""
    logs: list[tuple[list[Term], History]] = [([], History())]
    for number in range(1, data.draw(st.integers(2, 8))):
        records, known = data.draw(st.sampled_from(logs))
        kept = data.draw(st.integers(0, len(records)))
        term = Term(number, "m")
        grown = records[:kept] + [term] * data.draw(st.integers(1, 4))
        logs.append((grown, known.begin(term, mark(kept))))
    (draw, first), (other, second) = data.draw(st.sampled_from(logs)), data.draw(st.sampled_from(logs))
    same = next(
        (i for i, pair in enumerate(zip(draw, other, strict=False)) if pair[0] != pair[1]), min(len(draw), len(other))
    )
    common_point = first.common_point(mark(len(draw)), second, mark(len(other)))
    assert common_point == (mark(same) if same else None)


def test_history_forgets_the_oldest_terms() -> None:
    long = History()
    for number in range(1, HISTORY_MAX + 3):
        long = History((*long.starts, TermStart(Term(number, "a"), mark(number))))
    long = long.begin(Term(HISTORY_MAX + 3, "a"), mark(HISTORY_MAX + 3))
    assert len(long.starts) == HISTORY_MAX
    assert long.starts[0].term.number == 4 and long.start_of(Term(3, "a")) is None
    assert Terms.decode(Path(TERMS), Terms(Term(HISTORY_MAX + 3, "a"), long).encode()).history == long


# ---- the file --------------------------------------------------------------------------------------------------


class CountingFiles(RealFiles):
    """Counts what is durable."""

    def __init__(self) -> None:
        self.synced: list[Terms] = []

    def replace_small(self, path: Path, data: bytes) -> None:
        super().replace_small(path, data)
        self.synced.append(Terms.decode(path, path.read_bytes()))


def test_a_promise_is_durable_when_it_is_given(tmp_path: Path) -> None:
    files = CountingFiles()
    kept = TermsFile(tmp_path, files)
    kept.promise(Term(3, "b"))
    assert files.synced[-1].promised == Term(3, "b") == TermsFile(tmp_path, RealFiles()).promised
    kept.promise(Term(3, "b"))
    assert len(files.synced) == 1, "nothing changed"
    for lower in (Term(2, "z"), Term(3, "a")):
        with pytest.raises(HigherTermError, match="3 of b was promised"):
            kept.promise(lower)
    assert kept.promised == Term(3, "b")


def test_promise_that_cannot_be_stored_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RealFiles()
    kept = TermsFile(tmp_path, files)

    def fail(path: Path, data: bytes) -> None:
        raise OSError("no")

    monkeypatch.setattr(files, "replace_small", fail)
    with pytest.raises(OSError, match="no"):
        kept.promise(Term(3, "b"))
    assert kept.promised == NO_TERM


def test_the_terms_file_keeps_promises_and_terms_of_a_master(tmp_path: Path) -> None:
    kept = TermsFile(tmp_path, RealFiles())
    kept.begin(Term(1, "a"), mark(0))
    assert TermsFile(tmp_path, RealFiles()).terms == Terms(Term(1, "a"), history((1, "a", 0)), is_master=True)
    kept.promise(Term(2, "b"))
    assert not TermsFile(tmp_path, RealFiles()).terms.is_master, "who promised another term is master no more"
    kept.follow(Term(4, "a"), MASTER)
    kept.begin(Term(6, "c"), mark(25))
    kept.resign()
    terms = TermsFile(tmp_path, RealFiles()).terms
    assert terms == Terms(Term(6, "c"), MASTER.begin(Term(6, "c"), mark(25)), is_master=False)
    with pytest.raises(HigherTermError):
        kept.begin(Term(5, "c"), mark(30))


@given(flips=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 255)), max_size=3), cut=st.integers(0, 120))
def test_a_damaged_terms_file_is_refused(flips: list[tuple[int, int]], cut: int) -> None:
    fine = Terms(Term(4, "a"), MASTER, is_master=True).encode()
    bad = bytearray(fine)
    for at, mask in flips:
        bad[at % len(bad)] ^= mask
    bad = bad[:cut] if cut < len(bad) else bad
    if bytes(bad) == fine:
        return
    with pytest.raises((CorruptionError, FormatVersionError)):
        Terms.decode(Path(TERMS), bytes(bad))


def test_garbage_in_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / TERMS).write_bytes(os.urandom(64))
    with pytest.raises(CorruptionError, match="terms"):
        TermsFile(tmp_path, RealFiles())
