"""Appends that wait for the commit point."""

from __future__ import annotations

import asyncio

import pytest

from pyreplog.ack import Ack
from pyreplog.clock import ManualClock
from pyreplog.errors import DeposedError, ReplicationTimeoutError
from pyreplog.ha.awaited import Awaited
from pyreplog.ha.protocol.terms import Term

TIMEOUT_US = 1_000_000


class Room:
    """Appends that wait, and how often they were offered."""

    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.offers = 0
        self.awaited = Awaited(100, self._offer, TIMEOUT_US, self.clock)

    def _offer(self) -> None:
        self.offers += 1

    def reach(self, position: int) -> None:
        self.awaited.advance(position)
        self.awaited.drain()


@pytest.fixture
def room() -> Room:
    return Room()


def test_an_append_without_a_loop_is_offered_at_once(room: Room) -> None:
    ack = Ack(7)
    room.awaited.add(200, ack)
    assert (room.offers, ack.done()) == (1, False)
    room.reach(199)
    assert not ack.done()
    room.reach(200)
    assert ack.result() == 7


def test_what_is_reached_waits_for_nothing(room: Room) -> None:
    ack = Ack(1)
    room.awaited.add(100, ack)
    assert ack.done()


def test_a_round_of_a_loop_is_offered_once_and_settled_together(room: Room) -> None:
    async def main() -> list[int]:
        acks = [Ack(number) for number in range(50)]
        for number, ack in enumerate(acks):
            room.awaited.add(200 + number, ack)
        assert room.offers == 0
        await asyncio.sleep(0)
        assert room.offers == 1
        room.reach(248)
        assert not any(ack.done() for ack in acks), "the last one of what was sent together is not there"
        room.reach(249)
        return [await ack for ack in acks]

    assert asyncio.run(main()) == list(range(50))


def test_a_round_whose_loop_has_ended_is_taken_by_the_clock(room: Room) -> None:
    ack, loop = Ack(1), asyncio.new_event_loop()

    async def main() -> None:
        room.awaited.add(200, ack)
        loop.stop()  # behind this round: the next one would offer

    task = loop.create_task(main())
    loop.run_forever()
    assert task.done()
    loop.close()
    room.awaited.tick()
    room.reach(200)
    assert (room.offers, ack.done()) == (0, True)


@pytest.mark.parametrize("is_in_a_round", [False, True])
def test_a_failure_reaches_all_who_wait(room: Room, is_in_a_round: bool) -> None:
    ack, error = Ack(1), DeposedError("over", Term(3, "b"))

    async def main() -> None:
        room.awaited.add(200, ack)
        room.awaited.fail(error)

    if is_in_a_round:
        asyncio.run(main())
    else:
        room.awaited.add(200, ack)
        room.awaited.fail(error)
    assert ack.exception() is error
    assert room.awaited.is_over(200)
    with pytest.raises(DeposedError):
        room.awaited.check(200)
    room.awaited.check(100)


def test_time_outs_leave_the_outcome_unknown(room: Room) -> None:
    first, second = Ack(1), Ack(2)
    room.awaited.add(200, first)
    room.clock.advance(TIMEOUT_US // 2)
    room.awaited.add(300, second)
    room.clock.advance(TIMEOUT_US // 2)
    room.awaited.tick()
    assert isinstance(first.exception(), ReplicationTimeoutError)
    assert not second.done()
    assert not room.awaited.is_over(300)
    with pytest.raises(ReplicationTimeoutError, match="position 300"):
        room.awaited.check(300)
    room.reach(300)
    assert second.result() == 2
