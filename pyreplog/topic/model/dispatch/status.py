"""The state of a dispatcher, for statistics, and the reasons why nothing is delivered."""

from __future__ import annotations

from typing import NamedTuple


class ConsumerStatus(NamedTuple):
    """permits: messages it still asked for; unacked: those that it has; is_blocked: too many of them."""

    id: int
    name: str
    priority: int
    permits: int
    unacked: int
    is_blocked: bool
    is_active: bool
    delivered: int
    acknowledged: int


class DispatchStatus(NamedTuple):
    """One subscription's delivery.

    position: next offset to be read; end: of the topic. reads: under way; forgotten: those of before a rewind.
    in_hand: messages read that nobody has room for; replay: to be read again, now or later; delayed: waiting for their
    time; aside: waiting for their key or its consumer; unacked: delivered; dead_letters: being published elsewhere.
    redelivered: messages whose redeliveries are counted. next_us: when something is due. waits: why nothing is
    delivered or read, in words; empty when nothing holds it up.
    """

    position: int
    end: int
    reads: int
    forgotten: int
    read_failures: int
    in_hand: int
    replay: int
    delayed: int
    aside: int
    unacked: int
    dead_letters: int
    redelivered: int
    next_us: int | None
    consumers: tuple[ConsumerStatus, ...]
    waits: tuple[str, ...]
