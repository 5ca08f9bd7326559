"""OKs of bookies taken natively, against the same in Python; and what is left to Python code."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.net.add_replies import AddGroup, AddQueue, Answer, settle
from pyreplog._native.net.frame import FrameBatch, FrameParser, encode
from pyreplog._native.quorum.ack_tracker import AckTracker, Part
from pyreplog.bookie.protocol import Reply, ReplyStatus, encode_reply

LEDGER = 7


class Driver:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.acks = 0
        self.answers: list[tuple[Any, Any]] = []

    def acked(self) -> None:
        self.acks += 1

    def answered(self, send: Any, answer: Any) -> None:
        self.answers.append((send, answer))


class FakeAddQueue(AddQueue):
    def __init__(self) -> None:
        self.answers: list[tuple[AddGroup, Any]] = []
        self.proceeded = 0

    def proceed(self) -> None:
        self.proceeded += 1

    def answered(self, group: AddGroup, answer: Any) -> None:
        self.answers.append((group, answer))


def tracker_of(*quorums: int, lap: int) -> AckTracker:
    tracker = AckTracker(*quorums)
    tracker.pushed(lap)
    return tracker


def frames(*replies: tuple[int, bytes]) -> FrameBatch:
    return FrameParser().feed(b"".join(encode(number, body) for number, body in replies))


def ok(first: int, last: int, status: int = ReplyStatus.OK, ledger: int = LEDGER, body: bytes = b"") -> bytes:
    return encode_reply(Reply(status, ledger, first, last)) + body


def group_of(lane: AddQueue, driver: Driver, tracker: AckTracker, place: int, *ranges: tuple[int, int]) -> AddGroup:
    adds = tuple((None, Answer(driver, r, LEDGER, Part(tracker, place, *r))) for r in ranges)
    return AddGroup(lane, LEDGER, ranges[0][0], ranges[-1][1], adds)


# ---- one answer ------------------------------------------------------------------------------------------------


def test_ok_is_counted_and_its_driver_called_when_something_changed() -> None:
    tracker, driver = tracker_of(3, 3, 2, lap=4), Driver()
    for place in (0, 1, 2):
        Answer(driver, "send", LEDGER, Part(tracker, place, 0, 4))(Reply(ReplyStatus.OK, LEDGER, 0, 4))
        assert (driver.acks, driver.answers) == ([0, 1, 2][place], [])
    assert (tracker.lac, tracker.has_news) == (4, True)
    tracker.confirm()
    tracker.released = tracker.below_write_quorum()
    assert not tracker.has_news


OTHERS = {
    "refused": Reply(ReplyStatus.FENCED, LEDGER, 0, 4),
    "of another ledger": Reply(ReplyStatus.OK, LEDGER + 1, 0, 4),
    "of other entries": Reply(ReplyStatus.OK, LEDGER, 0, 3),
    "from another entry on": Reply(ReplyStatus.OK, LEDGER, 1, 4),
    "no reply": OSError("lost"),
    "a tuple": (0, LEDGER, 0),
}


@pytest.mark.parametrize("answer", OTHERS.values(), ids=OTHERS)
def test_all_others_are_the_drivers(answer: object) -> None:
    tracker, driver = tracker_of(3, 3, 2, lap=4), Driver()
    Answer(driver, "send", LEDGER, Part(tracker, 0, 0, 4))(answer)
    assert (driver.acks, driver.answers, tracker.awaited(0)) == (0, [("send", answer)], 0)


LATE: dict[str, Callable[[AckTracker], None]] = {
    "muted": lambda tracker: tracker.mute(0),
    "its place is another's": lambda tracker: tracker.withdraw([0], 0),
}


@pytest.mark.parametrize("change", LATE.values(), ids=LATE)
def test_ok_that_no_longer_counts_is_passed_to_the_driver(change: Callable[[AckTracker], None]) -> None:
    tracker, driver, lane = tracker_of(3, 3, 2, lap=4), Driver(), FakeAddQueue()
    answer, group = Answer(driver, "send", LEDGER, Part(tracker, 0, 0, 4)), group_of(lane, driver, tracker, 0, (0, 4))
    change(tracker)
    reply = Reply(ReplyStatus.OK, LEDGER, 0, 4)
    answer(reply)
    assert driver.answers == [("send", reply)]
    others, calls, tellers = settle(frames((5, ok(0, 4))), {5: (group, 0)})
    assert [number for number, _ in others] == [5] and not calls and not tellers
    assert tracker.awaited(0) == 0 and not tracker.has_answered(0)


def test_ok_of_the_successor_of_a_muted_bookie_counts() -> None:
    tracker = tracker_of(3, 3, 2, lap=4)
    tracker.mute(0)
    tracker.withdraw([0], 0)
    Answer(Driver(), "send", LEDGER, Part(tracker, 0, 0, 4))(Reply(ReplyStatus.OK, LEDGER, 0, 4))
    assert tracker.awaited(0) == 5 and tracker.has_answered(0)


# ---- requests --------------------------------------------------------------------------------------------------


def test_a_lane_counts_what_is_on_its_way() -> None:
    lane = FakeAddQueue()
    assert [lane.begin(2) for _ in range(3)] == [True, True, False]
    lane.end()
    assert (lane.unanswered, lane.begin(2)) == (1, True)


def test_an_ok_settles_all_that_left_together() -> None:
    tracker, driver, lane = tracker_of(2, 2, 1, lap=9), Driver(), FakeAddQueue()
    assert lane.begin(1)
    waiting = {3: (group_of(lane, driver, tracker, 1, (0, 2), (3, 3), (4, 9)), 0)}
    others, calls, tellers = settle(frames((3, ok(0, 9))), waiting)
    assert (others, waiting, lane.unanswered, tracker.awaited(1)) == ([], {}, 0, 10)
    assert (len(calls), len(tellers), driver.acks) == (0, 1, 0)
    tellers[0]()
    assert driver.acks == 1


def test_queue_with_waiting_adds_proceeds_after_an_ok() -> None:
    tracker, driver, lane = tracker_of(2, 2, 1, lap=9), Driver(), FakeAddQueue()
    lane.waits = lane.begin(1)
    _, calls, tellers = settle(frames((3, ok(0, 9))), {3: (group_of(lane, driver, tracker, 1, (0, 9)), 0)})
    assert calls == [lane.proceed] and len(tellers) == 1


def test_driver_that_has_looked_since_is_not_called_again() -> None:
    tracker, driver, lane = tracker_of(2, 2, 1, lap=9), Driver(), FakeAddQueue()
    tellers = []
    for place in (0, 1):
        assert lane.begin(2)
        tellers += settle(frames((3, ok(0, 9))), {3: (group_of(lane, driver, tracker, place, (0, 9)), 0)})[2]
    for tell in tellers:
        tell()
        tracker.confirm()
        tracker.released = tracker.below_write_quorum()
    assert (len(tellers), driver.acks) == (2, 1)


@pytest.mark.parametrize(
    "body",
    [ok(0, 9, ReplyStatus.FENCED), ok(0, 8), ok(1, 9), ok(0, 9, ledger=8), ok(0, 9, body=b"x"), ok(0, 9)[:-1], b"\0"],
)
def test_replies_other_than_ok_are_left_to_python(body: bytes) -> None:
    tracker, driver, lane = tracker_of(2, 2, 1, lap=9), Driver(), FakeAddQueue()
    assert lane.begin(1)
    waiting = {3: (group_of(lane, driver, tracker, 1, (0, 9)), 0)}
    others, calls, tellers = settle(frames((3, body)), waiting)
    assert [(number, bytes(view)) for number, view in others] == [(3, body)]
    assert (calls + tellers, list(waiting), lane.unanswered, tracker.awaited(1)) == ([], [3], 1, 0)


def test_group_with_another_callback_is_left_to_python() -> None:
    tracker, driver, lane = tracker_of(2, 2, 1, lap=9), Driver(), FakeAddQueue()
    adds = ((None, Answer(driver, "send", LEDGER, Part(tracker, 0, 0, 3))), (None, print))
    group = AddGroup(lane, LEDGER, 0, 9, adds)
    others, calls, tellers = settle(frames((3, ok(0, 9))), {3: (group, 0)})
    assert (len(others), calls + tellers, tracker.awaited(0)) == (1, [], 0)
    group("error")
    assert lane.answers == [(group, "error")]


def test_heartbeats_are_passed_over_and_unknown_replies_are_left() -> None:
    others, calls, tellers = settle(frames((0, b""), (9, ok(0, 9)), (-1, b"control"), (4, ok(0, 1))), {4: (print, 0)})
    assert ([number for number, _ in others], calls + tellers) == ([9, -1, 4], [])


@given(st.integers(0, 1 << 32))
def test_tracker_equals_one_that_is_updated_from_python(seed: int) -> None:
    """Any cut of the replies, in any order, some of them twice, places given away in between."""
    random = Random(seed)
    tracker, twin, driver, lane = tracker_of(3, 2, 2, lap=59), tracker_of(3, 2, 2, lap=59), Driver(), FakeAddQueue()
    waiting: dict[int, Any] = {}
    replies: list[tuple[int, int, int, int, int]] = []
    lives = [0, 0, 0]
    for number in range(40):
        place = random.randrange(3)
        entries = sorted(e for e in random.sample(range(60), 2) if (place - e) % 3 < 2)
        if not entries:
            continue
        first, last = entries[0], entries[-1]
        waiting[number] = group_of(lane, driver, tracker, place, (first, last)), 0
        replies.append((number, place, lives[place], first, last))
        if random.random() < 0.1:
            since = min(tracker.awaited(place), 59)
            tracker.withdraw([place], since)
            twin.withdraw([place], since)
            lives[place] += 1
    random.shuffle(replies)
    told = 0
    while told < len(replies):
        some = replies[told : told + random.randint(1, 6)]
        told += len(some)
        settle(frames(*((number, ok(first, last)) for number, _, _, first, last in some)), waiting)
        for _, place, life, first, last in some:
            if life == lives[place]:
                twin.ack_range(place, first, last)
    assert [tracker.awaited(i) for i in range(3)] == [twin.awaited(i) for i in range(3)]
    assert tracker.lac == twin.lac


def test_an_ok_without_a_reply_counts_as_one_with_it() -> None:
    driver, tracker = Driver(), tracker_of(3, 3, 2, lap=0)
    answers = [Answer(driver, index, LEDGER, Part(tracker, index, 0, 0)) for index in range(3)]
    assert answers[0].stored() and driver.acks == 0
    assert answers[1].stored() and driver.acks == 1 and tracker.lac == 0
    tracker.mute(2)
    assert not answers[2].stored() and driver.acks == 1 and not driver.answers
