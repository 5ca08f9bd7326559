"""Queries for the LAC without fencing: which answers count, and how many are needed."""

from __future__ import annotations

from pyreplog.bookie.protocol import Reply, ReplyStatus, RequestKind
from pyreplog.errors import UnauthorizedError, UnreadableError
from pyreplog.ledger.protocol.lac import LacQuery

from .lab import KEY, LEDGER, OK, Bench, Lab, acked, written


def query(lab: Lab, known: int = -1, *, wait_ms: int = 0) -> Bench:
    """Return a query that has begun."""
    bench = Bench(lab, LacQuery(lab.metadata, KEY, known, wait_ms=wait_ms))
    bench.do(bench.machine.start())
    return bench


def test_the_highest_that_any_bookie_knows() -> None:
    """35, TestPiggybackLAC: an entry carries the LAC before it."""
    lab = Lab()
    writer = written(lab, 1)
    writer.append()
    writer.deliver("b")
    asked = query(lab)
    asked.deliver("ab")
    assert asked.result == 0


def test_the_writer_is_not_fenced() -> None:
    """34, TestFencing.testNoRecoveryOpen."""
    lab = Lab()
    writer = written(lab, 2)
    query(lab).run()
    future = writer.append()
    writer.deliver()
    assert acked(future)


def test_enough_answer_when_no_ack_quorum_is_silent() -> None:
    lab = Lab()
    written(lab, 2)
    asked = query(lab)
    asked.deliver("a")
    assert asked.finished == []
    asked.deliver("b")
    assert len(asked.finished) == 1
    asked.deliver("c")
    assert len(asked.finished) == 1


def test_a_lac_query_with_too_few_answers_fails() -> None:
    lab = Lab()
    written(lab, 2)
    asked = query(lab)
    asked.deliver("a")
    asked.reply(asked.take("b"), Reply(ReplyStatus.UNKNOWN, LEDGER, lac=9))
    asked.fail("c")
    assert isinstance(asked.error, UnreadableError)


def test_all_before_the_last_fragment_is_confirmed() -> None:
    lab = Lab()
    writer = written(lab, 3)
    writer.append()
    writer.fail("abc")
    lab.change(lab.metadata.replace_bookies({0: ("d", 3), 1: ("e", 3)}))
    assert query(lab).run().result == 2


def test_lac_query_never_returns_less_than_the_known_lac() -> None:
    assert query(Lab(), known=7).run().result == 7


def test_a_long_poll_ends_with_the_first_better_answer() -> None:
    """35, TestReadLastConfirmedLongPoll."""
    lab = Lab()
    asked = query(lab, known=3, wait_ms=1000)
    assert {send.request.kind for send in asked.sends} == {RequestKind.WAIT_LAC}
    asked.reply(asked.take("a"), Reply(OK, LEDGER, lac=3))
    assert asked.finished == []
    asked.reply(asked.take("b"), Reply(OK, LEDGER, lac=5))
    assert asked.result == 5


def test_a_long_poll_that_brings_nothing() -> None:
    lab = Lab()
    asked = query(lab, known=3, wait_ms=1000)
    for bookie in "ab":
        asked.reply(asked.take(bookie), Reply(OK, LEDGER, lac=3))
    assert asked.result == 3


def test_a_lac_query_with_the_wrong_password_fails() -> None:
    lab = Lab()
    asked = query(lab)
    asked.reply(asked.take("a"), Reply(ReplyStatus.UNAUTHORIZED, LEDGER))
    assert isinstance(asked.error, UnauthorizedError)
    asked.deliver()
    assert len(asked.finished) == 1
