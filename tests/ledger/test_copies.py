"""The check for missing copies on a bookie, one message at a time, and the repair."""

from __future__ import annotations

import pytest

from pyreplog.bookie.protocol import Reply, ReplyStatus
from pyreplog.errors import InvalidArgumentError, UnauthorizedError, UnreadableError
from pyreplog.ledger.protocol.copies import COUNTED_MAX, CopyCount, MissingCopiesCheck

from .lab import KEY, LEDGER, Bench, Lab, written


def check(lab: Lab, bookie: str, stripe: range) -> Bench:
    bench = Bench(lab, MissingCopiesCheck(lab.metadata, KEY, bookie, stripe))
    bench.do(bench.machine.start())
    return bench


@pytest.mark.parametrize("stripe", [range(10), range(1, 10, 3), range(9, 10), range(0)])
@pytest.mark.parametrize("limit", [1, 200, 1 << 20])
def test_copy_check_finds_missing_entries_of_a_stripe(
    stripe: range, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyreplog.ledger.protocol.copies.READ_BYTES_MAX", limit)
    lab = Lab()
    written(lab, 10)
    assert check(lab, "a", stripe).run().result == []
    for lost in (0, 4, 7, 8, 9):
        del lab.logs["a"].held[LEDGER][lost]
    assert check(lab, "a", stripe).run().result == [entry for entry in (0, 4, 7, 8, 9) if entry in stripe]


@pytest.mark.parametrize("damaged", [0, 2, 5])
def test_damaged_entry_counts_as_missing_and_entries_after_it_do_not(damaged: int) -> None:
    lab = Lab()
    written(lab, 6)
    bench = check(lab, "a", range(6))
    send = bench.take("a")
    good = bench.arrive(send)
    size = len(good.body) // 6
    body = bytearray(good.body)
    body[damaged * size + 70] ^= 1
    bench.reply(send, good._replace(body=bytes(body)))
    assert bench.run().result == [damaged]
    lab.logs["a"].damaged.add((LEDGER, 0))
    assert check(lab, "a", range(6)).run().result == [0]


def test_limbo_names_one_entry_after_the_other() -> None:
    lab = Lab()
    written(lab, 4)
    for lost in (1, 3):
        del lab.logs["a"].held[LEDGER][lost]
    lab.bookies["a"].limbo.enter([LEDGER])
    assert check(lab, "a", range(4)).run().result == [1, 3]


def test_a_bookie_without_an_answer_is_an_error() -> None:
    lab = Lab()
    written(lab, 4)
    lab.down.add("a")
    assert isinstance(check(lab, "a", range(4)).run().error, UnreadableError)
    for status, error in ((ReplyStatus.UNAUTHORIZED, UnauthorizedError), (ReplyStatus.OVERLOADED, UnreadableError)):
        bench = check(lab, "a", range(4))
        bench.reply(bench.take("a"), Reply(status, LEDGER))
        assert isinstance(bench.error, error)
    bench = check(lab, "a", range(4))
    bench.reply(bench.take("a"), Reply(ReplyStatus.OK, LEDGER, 0, -1))
    assert isinstance(bench.error, UnreadableError), "it speaks of nothing, and would be asked for ever"


def test_a_count_is_bounded_by_no_lie_of_the_metadata() -> None:
    lab = Lab()
    with pytest.raises(InvalidArgumentError):
        CopyCount(lab.metadata.closed(COUNTED_MAX, 1, 1), KEY)


@pytest.mark.parametrize(
    "reply",
    [Reply(ReplyStatus.UNKNOWN, LEDGER, 0, 3, body=b"its disk fails"), Reply(ReplyStatus.OK, LEDGER, 0, -1)],
    ids=["unknown", "speaks of nothing"],
)
def test_a_bookie_that_does_not_say_counts_for_none(reply: Reply) -> None:
    """It is not asked again, and not blamed for a damaged copy."""
    lab = Lab()
    written(lab, 4)
    bench = Bench(lab, CopyCount(lab.metadata.closed(3, 1, 1), KEY))
    bench.do(bench.machine.start())
    bench.reply(bench.take("a"), reply)
    assert bench.run().result.tolist() == [2, 2, 2, 2]
    assert not bench.bad
