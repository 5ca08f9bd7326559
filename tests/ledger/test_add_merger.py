"""Adds that are sent in one request, and the outcome of each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from pyreplog._native.net.add_replies import Answer, settle
from pyreplog._native.net.frame import FrameParser, encode
from pyreplog._native.quorum.ack_tracker import AckTracker, Part
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind, encode_reply
from pyreplog.errors import DisconnectedError
from pyreplog.ledger.protocol.add_merger import MERGED_BYTES_MAX, AddMerger

Outcome = Reply | Exception


class FakeDriver:
    """The part of a driver that an `Answer` uses."""

    acks = 0

    def acked(self) -> None:
        self.acks += 1

    def answered(self, send: object, answer: object) -> None:
        raise AssertionError("all are OK")


class Bookie:
    """Records requests, which the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[Request], Callable[[Outcome], None]]] = []

    def ask(self, group: Sequence[Request], on_reply: Callable[[Outcome], None]) -> None:
        self.asked.append((list(group), on_reply))

    def entries(self) -> list[list[int]]:
        return [[request.first for request in group] for group, _ in self.asked]

    def answer(self, number: int, status: int = ReplyStatus.OK) -> None:
        group, on_reply = self.asked[number]
        on_reply(Reply(status, 7, group[0].first, group[-1].last, 3))


@pytest.fixture(autouse=True)
def allow_two_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow two unanswered requests, so that the third one waits."""
    monkeypatch.setattr("pyreplog.ledger.protocol.add_merger.UNANSWERED_MAX", 2)


def add(entry: int, size: int = 10, *, key: bytes = b"k" * 16, flags: int = 0) -> Request:
    return Request(RequestKind.ADD, 7, entry, entry, key, flags, records=bytes(size))


def sent(adds: AddMerger, requests: Sequence[Request]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for request in requests:
        adds.send(request, outcomes.append)
    return outcomes


def test_a_lone_add_leaves_at_once_and_others_behind_two_leave_as_one() -> None:
    bookie = Bookie()
    adds = AddMerger(bookie.ask)
    outcomes = sent(adds, [add(entry) for entry in range(6)])
    assert bookie.entries() == [[0], [1]]
    bookie.answer(0)
    assert bookie.entries() == [[0], [1], [2, 3, 4, 5]]
    bookie.answer(2)
    bookie.answer(1)
    assert [(reply.first, reply.last, reply.lac) for reply in outcomes if isinstance(reply, Reply)] == [
        (entry, entry, 3) for entry in (0, 2, 3, 4, 5, 1)
    ]
    assert adds.is_idle
    sent(adds, [add(6)])
    assert bookie.entries()[-1] == [6]


def test_next_request_is_sent_before_outcomes_are_reported() -> None:
    bookie = Bookie()
    adds = AddMerger(bookie.ask)
    seen: list[int] = []
    adds.send(add(0), lambda _: seen.append(len(bookie.asked)))
    sent(adds, [add(1), add(2)])
    bookie.answer(0)
    assert seen == [3]


def test_a_refusal_is_everybodys_in_the_request() -> None:
    bookie = Bookie()
    adds = AddMerger(bookie.ask)
    outcomes = sent(adds, [add(entry) for entry in range(4)])
    bookie.answer(0)
    bookie.answer(2, ReplyStatus.FENCED)
    assert [(reply.first, reply.status) for reply in outcomes if isinstance(reply, Reply)] == [
        (0, ReplyStatus.OK), (2, ReplyStatus.FENCED), (3, ReplyStatus.FENCED),
    ]  # fmt: skip


def test_adds_queued_after_a_lost_request_fail_too() -> None:
    bookie = Bookie()
    adds = AddMerger(bookie.ask)
    outcomes = sent(adds, [add(entry) for entry in range(5)])
    lost = DisconnectedError("gone")
    bookie.asked[0][1](lost)
    assert outcomes == [lost] * 4
    assert bookie.entries() == [[0], [1]]
    bookie.asked[1][1](lost)
    assert outcomes == [lost] * 5
    assert adds.is_idle


def test_only_what_follows_is_merged() -> None:
    """Not merged are: entries that are sent again, those of another key or with other flags, and more than one request
    holds."""
    bookie = Bookie()
    adds = AddMerger(bookie.ask)
    large = MERGED_BYTES_MAX // 2
    sent(adds, [add(10), add(11), add(12), add(3), add(4), add(5, flags=1), add(6, flags=1), add(7, key=b"x" * 16),
                add(8, large), add(9, large), add(10, large)])  # fmt: skip
    at = 0
    while at < len(bookie.asked):
        bookie.answer(at)
        at += 1
    assert bookie.entries() == [[10], [11], [12], [3, 4], [5, 6], [7], [8, 9], [10]]


def test_an_add_larger_than_a_merged_request_goes_alone() -> None:
    bookie = Bookie()
    adds = AddMerger(bookie.ask)
    sent(adds, [add(0), add(1), add(2, 3 * MERGED_BYTES_MAX), add(3)])
    bookie.answer(0)
    bookie.answer(1)
    assert bookie.entries() == [[0], [1], [2], [3]]


def test_an_answer_for_other_entries_is_passed_on_as_it_is() -> None:
    bookie = Bookie()
    adds = AddMerger(bookie.ask)
    outcomes = sent(adds, [add(0), add(1), add(2), add(3)])
    bookie.asked[0][1](Reply(ReplyStatus.OK, 7, 5, 5))
    bookie.asked[2][1](Reply(ReplyStatus.OK, 7, 2, 9))
    assert [(reply.first, reply.last) for reply in outcomes if isinstance(reply, Reply)] == [(5, 5), (2, 9), (2, 9)]


def test_queued_adds_are_sent_after_an_ok_was_settled_natively() -> None:
    bookie, driver = Bookie(), FakeDriver()
    adds = AddMerger(bookie.ask)
    tracker = AckTracker(1, 1, 1)
    tracker.pushed(3)
    for entry in range(4):
        adds.send(add(entry), Answer(driver, None, 7, Part(tracker, 0, entry, entry)))
    waiting = {number: (on_reply, 0) for number, (_, on_reply) in enumerate(bookie.asked)}
    _, calls, tellers = settle(FrameParser().feed(encode(0, encode_reply(Reply(ReplyStatus.OK, 7, 0, 0)))), waiting)
    assert calls == [adds.proceed] and len(tellers) == 1
    adds.proceed()
    assert bookie.entries() == [[0], [1], [2, 3]]
    bookie.answer(2)
    assert tracker.awaited(0) == 1 and driver.acks
    bookie.answer(1)
    assert (tracker.lac, adds.is_idle) == (3, True)


def test_answers_from_many_threads_lose_nothing() -> None:
    done: list[int] = []
    order: list[int] = []
    lock = threading.Lock()

    def ask(group: Sequence[Request], on_reply: Callable[[Outcome], None]) -> None:
        with lock:
            order.extend(request.first for request in group)
        threading.Thread(target=on_reply, args=(Reply(ReplyStatus.OK, 7, group[0].first, group[-1].last),)).start()

    adds = AddMerger(ask)
    finished = threading.Event()

    def count(reply: Outcome) -> None:
        assert isinstance(reply, Reply)
        with lock:
            done.append(reply.first)
            if len(done) == 500:
                finished.set()

    for entry in range(500):
        adds.send(add(entry), count)
    assert finished.wait(30)
    assert sorted(order) == sorted(done) == list(range(500))
