"""When an open ledger may be recovered: single looks, and many of them with writers that live and die."""

from __future__ import annotations

import random

import pytest

from pyreplog.autorecovery.protocol.member_ends import MemberEnds
from pyreplog.autorecovery.protocol.open_ledger_watch import QUIET_US, Ends, OpenLedgerWatch, Verdict
from pyreplog.bookie.protocol import Reply, ReplyStatus
from tests.ledger.lab import LEDGER, Bench, Lab, acked, written

S = 1_000_000
WAIT, NOTIFY, RECOVER = Verdict.WAIT, Verdict.NOTIFY, Verdict.RECOVER
QUIET = {"a": Ends(5, 4), "b": Ends(5, 4), "c": None}
"""What members say while nobody writes; c is lost."""


class Watched:
    """A watch, and its clock."""

    def __init__(self) -> None:
        self.watch, self.now_us = OpenLedgerWatch(), 7 * S

    def observe(
        self, after_s: float, *, key: bool | None = False, ends: dict[str, Ends | None] | None = None
    ) -> Verdict:
        self.now_us += round(after_s * S)
        return self.watch.observe(self.now_us, key, QUIET if ends is None else ends)


# ---- without a writer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_s", [1, 5, 10])
def test_the_time_ends_on_time(interval_s: int) -> None:
    watched = Watched()
    verdicts = [watched.observe(interval_s) for _ in range(30 // interval_s + 1)]
    assert verdicts == [WAIT] * (30 // interval_s) + [RECOVER]
    assert QUIET_US == 30 * S
    assert watched.observe(1) is RECOVER, "until something is done about it"


def test_open_ledger_is_recovered_only_after_the_full_wait() -> None:
    watched = Watched()
    assert [watched.observe(after_s) for after_s in (0, 10, 10, 9.999_999)] == [WAIT] * 4
    assert watched.observe(0.000_001) is RECOVER


def test_two_observations_far_apart_do_not_decide() -> None:
    """The process slept, or was stopped; so may have been the writer's, and its machine."""
    watched = Watched()
    assert [watched.observe(after_s) for after_s in (0, 3600, 3600)] == [WAIT] * 3
    assert watched.observe(3600) is RECOVER


def test_silence_is_measured_between_observations() -> None:
    """What counts is the time between what one look heard last and what the next one asked first."""
    watch = OpenLedgerWatch()
    for at_s in range(0, 40, 10):
        verdict = watch.observe((at_s + 5) * S, False, QUIET, asked_us=at_s * S)
        assert verdict is WAIT, at_s
    assert watch.silent_us == 15 * S


def test_a_clock_that_goes_back_adds_nothing() -> None:
    watched = Watched()
    for after_s in (0, 10, -1000, 10, 10):
        assert watched.observe(after_s) is not RECOVER or watched.watch.silent_us == 30 * S
    assert watched.watch.silent_us == 30 * S


@pytest.mark.parametrize("ends", [Ends(6, 4), Ends(5, 5), Ends(4, 4)], ids=["an entry", "the LAC", "another life"])
@pytest.mark.parametrize("bookie", ["a", "b"])
def test_progress_on_any_member_begins_the_time_anew(bookie: str, ends: Ends) -> None:
    """A writer of an older build has no key."""
    watched = Watched()
    for after_s in (0, 10, 10, 9):
        watched.observe(after_s)
    moved = {**QUIET, bookie: ends}
    assert watched.observe(1, ends=moved) is WAIT and watched.watch.silent_us == 0
    assert [watched.observe(10, ends=moved) for _ in range(3)] == [WAIT, WAIT, RECOVER]


# ---- what is unknown -------------------------------------------------------------------------------------------


def test_an_unknown_key_begins_the_time_anew() -> None:
    """The store is away, and leases get lost: whoever lives has the time to make its key again."""
    watched = Watched()
    for after_s in (0, 10, 10, 9):
        watched.observe(after_s)
    assert watched.observe(1, key=None) is WAIT
    assert [watched.observe(10) for _ in range(4)] == [WAIT, WAIT, WAIT, RECOVER]


def test_without_an_answer_the_time_stands_still() -> None:
    watched = Watched()
    nobody: dict[str, Ends | None] = dict.fromkeys("abc")
    for after_s in (0, 10, 10):
        watched.observe(after_s)
    assert [watched.observe(10, ends=nobody) for _ in range(9)] == [WAIT] * 9
    assert watched.observe(10) is WAIT and watched.watch.silent_us == 20 * S
    assert watched.observe(10) is RECOVER


def test_a_member_that_answers_for_the_first_time_begins_the_time_anew() -> None:
    """What it knew before is not known; one that was heard before and says the same has not moved."""
    watched = Watched()
    without = {**QUIET, "b": None}
    assert [watched.observe(after_s, ends=without) for after_s in (0, 10, 10)] == [WAIT] * 3
    assert watched.observe(9) is WAIT and watched.watch.silent_us == 0
    assert watched.observe(10, ends=without) is WAIT
    assert [watched.observe(10), watched.observe(10)] == [WAIT, RECOVER]


# ---- with a writer ---------------------------------------------------------------------------------------------


def test_an_idle_writer_with_a_key_is_never_recovered_and_notified_now_and_then() -> None:
    watched = Watched()
    verdicts = [watched.observe(10, key=True) for _ in range(12)]
    assert verdicts == [WAIT, WAIT, WAIT, NOTIFY] + [WAIT, WAIT, NOTIFY] * 2 + [WAIT, WAIT]


def test_a_key_that_comes_back_begins_the_time_anew() -> None:
    watched = Watched()
    for after_s in (0, 10, 10, 9.9):
        watched.observe(after_s)
    assert watched.observe(0.1, key=True) is WAIT
    assert [watched.observe(10) for _ in range(4)] == [WAIT, WAIT, WAIT, RECOVER]


def test_a_key_that_comes_and_goes_is_not_notified() -> None:
    watched = Watched()
    verdicts = [watched.observe(10, key=bool(number % 3)) for number in range(30)]
    assert set(verdicts) == {WAIT}


@pytest.mark.parametrize("number", range(50))
def test_a_writer_that_gives_a_sign_within_the_time_is_safe(number: int, seed: int) -> None:
    """Any looks at any times, with answers and keys that are unknown at times: as long as a writer shows its key or
    an entry at least every 30 s to those who can see it, its ledger is not recovered. Once it is dead, it is."""
    draw = random.Random(seed + number)
    watch, now_us, entries, shown_us = OpenLedgerWatch(), 0, 0, 0
    for _ in range(300):
        now_us += draw.randrange(12 * S)
        key: bool | None = False
        if now_us - shown_us > draw.randrange(29 * S):
            shown_us = now_us
            key = draw.choice((True, False))
            entries += not key
        ends: dict[str, Ends | None] = {
            name: Ends(entries, entries - 1) if draw.random() < 0.8 or (key is False and shown_us == now_us) else None
            for name in "ab"
        }
        if draw.random() < 0.1 and shown_us != now_us:
            key = None
        assert watch.observe(now_us, key, ends) is not RECOVER or now_us - shown_us >= QUIET_US
    verdicts = []
    for _ in range(8):
        now_us += 10 * S
        verdicts.append(watch.observe(now_us, False, {"a": Ends(entries, entries), "b": Ends(entries, entries)}))
    assert verdicts[-1] is RECOVER


# ---- the question ----------------------------------------------------------------------------------------------


def asking(lab: Lab) -> Bench:
    bench = Bench(lab, MemberEnds(lab.metadata))
    bench.do(bench.machine.start())
    return bench


def test_each_member_is_asked_and_none_is_fenced() -> None:
    lab = Lab(4, 3, 2)
    writer = written(lab, 6)
    asked = asking(lab)
    asked.deliver("abd")
    assert not asked.finished
    asked.fail("c")
    assert asked.result == {"a": Ends(4, -1), "b": Ends(5, -1), "c": None, "d": Ends(5, -1)}
    future = writer.append()
    writer.deliver()
    assert acked(future)


def test_bookie_that_does_not_answer_in_time_is_unknown() -> None:
    """A bookie of the same process has no time-out."""
    lab = Lab()
    written(lab, 1)
    asked = asking(lab)
    asked.deliver("a")
    late = asked.take("b")
    asked.do(asked.machine.woken(asked.wakes.pop().about))
    assert asked.result == {"a": Ends(0, -1), "b": None, "c": None}
    asked.reply(late)
    asked.deliver("c")
    assert len(asked.finished) == 1


@pytest.mark.parametrize(("status", "answers"), [(ReplyStatus.LIMBO, True), (ReplyStatus.UNKNOWN, False)])
def test_limbo_reply_reports_the_ends_of_an_open_ledger_and_unknown_reply_does_not(
    status: ReplyStatus, answers: bool
) -> None:
    lab = Lab()
    asked = asking(lab)
    asked.deliver("bc")
    asked.reply(asked.take("a"), Reply(status, LEDGER, -1, 3, 2))
    assert asked.result["a"] == (Ends(3, 2) if answers else None)
